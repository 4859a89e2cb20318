//! What a lane keeps for a connection: with a client ([`ClientConnection`], [`H3Connection`]), or with an upstream
//! ([`UpstreamConnection`], [`H3Connection`]). Who a client is ([`Client`]) does not depend on what its connection speaks.

use crate::client::h2_connection::H2Client;
pub(crate) use crate::client::identity::Client;
use crate::client::state::ClientConnection;
use crate::h3::connection::H3Connection;
use crate::mirrors::MirrorClient;
use crate::transport::Transport;
use crate::udp::session::UdpSession;
use crate::upstream::h2_connection::H2Upstream;
use crate::upstream::phase::UpstreamConnection;

pub(crate) enum Conn {
    Client(Box<ClientConnection>),
    Upstream(Box<UpstreamConnection>),
    Quic(Box<H3Connection>),
    /// The client of a mirrored request, which has no socket.
    Mirror(Box<MirrorClient>),
    /// A session of relayed datagrams.
    Udp(Box<UdpSession>),
}

impl Conn {
    /// The client, if it is one that is at the other end.
    pub fn client(&mut self) -> Option<&mut Client> {
        match self {
            Self::Client(f) => Some(f.client_mut()),
            Self::Quic(q) => q.client(),
            Self::Udp(session) => Some(session.client_mut()),
            Self::Upstream(_) | Self::Mirror(_) => None,
        }
    }

    /// Nothing that has been read waits for room elsewhere.
    pub fn is_drained(&self) -> bool {
        match self {
            Self::Client(f) => f.h2().is_none_or(H2Client::is_drained),
            Self::Upstream(b) => b.h2().is_none_or(H2Upstream::is_drained),
            Self::Quic(_) | Self::Mirror(_) | Self::Udp(_) => true,
        }
    }

    /// `h2` has frames that its transport had no room for: it must be driven once there is room.
    pub fn has_unwritten(&self) -> bool {
        match self {
            Self::Client(f) => f.is_open() && f.h2().is_some_and(H2Client::has_unwritten),
            Self::Upstream(b) => b.h2().is_some_and(H2Upstream::has_unwritten),
            Self::Quic(_) | Self::Mirror(_) | Self::Udp(_) => false,
        }
    }

    /// Whether an entry of the timer wheel is the one at which it is looked at again.
    pub fn is_armed_for(&self, tick: u64) -> bool {
        match self {
            Self::Client(f) => f.is_armed_for(tick),
            Self::Upstream(b) => b.is_armed_for(tick),
            Self::Quic(q) => q.is_armed_for(tick),
            Self::Mirror(mirror) => mirror.is_armed_for(tick),
            Self::Udp(session) => session.is_armed_for(tick),
        }
    }

    /// The version of TLS that it speaks, once that is known.
    pub fn tls_version(&self) -> Option<sealane_tls::policy::Version> {
        let transport = match self {
            Self::Client(f) => f.transport(),
            Self::Upstream(b) => b.transport(),
            // RFC 9001 §4.2: there is no other version under QUIC.
            Self::Quic(_) => return Some(sealane_tls::policy::Version::Tls13),
            Self::Mirror(_) | Self::Udp(_) => return None,
        };
        transport.tls.as_ref().and_then(|t| t.summary()).map(|s| s.version)
    }

    /// Its stream of bytes, where it is one.
    pub fn transport(&mut self) -> Option<&mut Transport> {
        match self {
            Self::Client(f) => Some(f.transport_mut()),
            Self::Upstream(b) => Some(b.transport_mut()),
            Self::Quic(_) | Self::Mirror(_) | Self::Udp(_) => None,
        }
    }
}
