//! The beginning of an attempt: an address, a socket and a session.

use super::hosts::proxy_of;
use super::interface::Interface;
use super::{Turn, unix};
use crate::profile::{Profile, Remote};
use crate::session::{Session, Words};
use anyhow::{Context as _, Result, anyhow};
use sealane_log as log;
use sealane_ovpn::challenge;
use sealane_ovpn::peer_info::{self, proto};
use sealane_ovpn::push::options_string;
use sealane_ovpn::wrap::WrapKey;
use sealane_tunnel::plane::{Command, Plane, SocketId, Transport};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long a TCP connection may take to be made.
const TCP_CONNECT: Duration = Duration::from_secs(10);
/// How long a proxy may take to connect to the server.
const PROXY_CONNECT: Duration = Duration::from_secs(30);

/// Says at once that a server cannot be reached. As a stock client does, the attempt goes on until its time is over: the server may
/// only be restarting.
pub(super) fn say_unreachable(address: SocketAddr, e: &std::io::Error) {
    log::warn!("{address} cannot be reached: {e}; still trying");
}

/// A session with its socket. Each TCP connection has a number of its own. Through a proxy, the address is the proxy's.
pub(super) async fn open(
    plane: &Arc<dyn Plane>,
    profile: &Profile,
    remote: &Remote,
    turn: &Turn,
    interface: &mut Interface,
) -> Result<(Session, SocketId, SocketAddr)> {
    let proxy = proxy_of(profile, remote);
    let (host, port) = proxy.map_or((&remote.host, remote.port), |proxy| (&proxy.host, proxy.port));
    let mut found = turn.hosts.resolve_or_remember(host, port).await?;
    found.retain(|address| remote.family.takes(address));
    // Each round through the servers uses the host's next address.
    let round = (turn.attempt - 1) / profile.remotes.len() as u64;
    let address = found.get((round % found.len().max(1) as u64) as usize);
    let address = *address.with_context(|| format!("{host} does not resolve to an address"))?;
    interface.before_connecting(plane.interface(), address.ip().to_canonical());
    let tcp = remote.transport == Transport::Tcp;
    let cipher = profile.ciphers[0].name();
    let auth = matches!(profile.wrap, WrapKey::Auth { .. });
    let bits = match profile {
        Profile { before_2_4: true, .. } => proto::REQUEST_PUSH,
        Profile { before_2_6: true, .. } => proto::DATA_V2 | proto::REQUEST_PUSH,
        _ => {
            proto::DATA_V2
                | proto::REQUEST_PUSH
                | proto::TLS_KEY_EXPORT
                | proto::AUTH_PENDING_KW
                | proto::DNS_OPTION
                | proto::DNS_OPTION_V2
                | proto::CC_EXIT_NOTIFY
                | proto::AUTH_FAIL_TEMP
                | proto::DYN_TLS_CRYPT
                | proto::DATA_EPOCH
                | proto::PUSH_UPDATE
        }
    };
    let mut peer_info =
        peer_info::ours(concat!("sealane-", env!("CARGO_PKG_VERSION")), &profile.ciphers, bits, profile.mtu);
    if bits & proto::AUTH_PENDING_KW != 0 {
        peer_info.push_str(&format!("IV_SSO={}\n", challenge::METHODS));
    }
    let (username, password) = turn.login.clone().or_else(|| profile.credentials.clone()).unwrap_or_default();
    let words = Words { options: options_string(false, tcp, profile.mtu, cipher, auth), username, password, peer_info };
    let mut session =
        Session::client(profile.endpoint.clone(), words, &profile.wrap, profile.wrap_v2.as_ref(), !tcp, unix())?;
    // Renewals begin with the password again, unless the server gives a token: an answer is good once.
    if let (Some(_), Some((username, password))) = (&turn.login, &profile.credentials) {
        session.set_credentials(username.clone(), password.clone());
    }
    let socket = if tcp {
        let limit = profile.connect_timeout.min(TCP_CONNECT);
        let connecting = tokio::time::timeout(limit, tokio::net::TcpStream::connect(address));
        let mut stream = connecting.await.context("no answer")??;
        stream.set_nodelay(true)?;
        if let Some(proxy) = proxy {
            let limit = profile.connect_timeout.min(PROXY_CONNECT);
            let opened = tokio::time::timeout(limit, proxy.open(&mut stream, &remote.host, remote.port)).await;
            let opened = opened.unwrap_or_else(|_| Err(anyhow!("it does not answer")));
            opened.with_context(|| format!("the proxy {host}"))?;
        }
        let socket = SocketId::new(0, 1 << 47 | turn.connection);
        let fd = stream.into_std()?.into();
        plane.command(Command::SocketNew { lane: 0, socket, fd }).map_err(|e| anyhow!("{e}"))?;
        socket
    } else {
        SocketId::new(0, 0)
    };
    Ok((session, socket, address))
}
