//! QUIC's TLS (RFC 9001): what a QUIC endpoint asks of cryptography, answered from our policies.
//!
//! quinn-proto carries the handshake and asks for keys through its `crypto` traits; this module is their only
//! implementation here. A server's session begins without a rustls configuration: the `ClientHello` is collected, and
//! its server name chooses the policy, as over TCP. A hello whose single-use ticket another lane owns gets no session
//! at all; [`hear`] tells the lane, which passes the datagrams on.

use crate::client::ClientContext;
use crate::policy::{ListenerTls, ServerPolicy, TicketKeys, Version};
use crate::provider::quic_provider;
use crate::quic_keys::{ResetKey, TokenKey};
use crate::quic_packets::{NextKeys, initial_keys};
use crate::quic_session::{QuicSession, RETRY_KEY, RETRY_NONCE};
use crate::server::{BuildError, ServerContext};
use crate::session::Summary;
use aws_lc_rs::aead;
use quinn_proto::crypto::{self, HandshakeTokenKey, HmacKey, Keys, UnsupportedVersion};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side};
use rustls::pki_types::ServerName;
use rustls::quic::Suite;
use std::cell::Cell;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

/// HTTP/3's protocol name (RFC 9114 §3.1).
pub const ALPN: &[u8] = b"h3";
/// The one version of QUIC that is spoken (RFC 9000 §15).
pub const VERSION: u32 = 1;

/// What became of early data over QUIC. A client that offers them has sent them, or was about to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyData {
    /// The client has not offered any.
    None,
    /// Also before the ServerHello has been made.
    Rejected,
    /// They are read, whether they come before the handshake is over or in the same datagrams as its end.
    Accepted,
}

/// How a handshake over QUIC went: what `handshake_data` of a connection's session holds.
#[derive(Clone, Debug)]
pub struct Handshake {
    /// Index into the listener's policies.
    pub policy: usize,
    /// What became of the client's early data.
    pub early_data: EarlyData,
    /// `None` before it is over.
    pub summary: Option<Summary>,
    pub(crate) next_keys: Option<Arc<NextKeys>>,
}

impl Handshake {
    /// Derives the keys of the next key update, so that the time a packet takes does not tell that it begins one
    /// (RFC 9001 §6.3, §9.5). Without it they are derived for that packet, which is allowed, and spares the many
    /// connections that end before.
    pub fn prepare_key_update(&self) {
        if let Some(next) = &self.next_keys {
            next.keys();
        }
    }
}

thread_local! {
    static MAY_MOVE: Cell<bool> = const { Cell::new(false) };
    static FOREIGN: Cell<Option<usize>> = const { Cell::new(None) };
    static CLIENT: Cell<Option<IpAddr>> = const { Cell::new(None) };
}

/// Accepts a connection from a client, whose address its session learns in this way.
pub fn with_client<T>(client: IpAddr, accept: impl FnOnce() -> T) -> T {
    CLIENT.set(Some(client));
    let accepted = accept();
    CLIENT.set(None);
    accepted
}

/// The client whose connection is accepted now.
pub(crate) fn accepted_client() -> Option<IpAddr> {
    CLIENT.get()
}

/// Lets one connection take in what has come for it. With `may_move`, a hello whose single-use ticket is another lane's
/// gets no session, and the slot of that lane is returned; else the ticket counts for nothing, and the handshake is a
/// full one. A connection may move only as long as it has sent nothing: its first packet tells the client its id, which
/// the other lane's would not have (RFC 9000 §7.2).
pub fn hear<T>(may_move: bool, take_in: impl FnOnce() -> T) -> (T, Option<usize>) {
    MAY_MOVE.set(may_move);
    FOREIGN.set(None);
    let taken = take_in();
    MAY_MOVE.set(false);
    (taken, FOREIGN.take())
}

/// Whether the hello goes to the ticket's owner.
pub(crate) fn moves_to(owner: usize) -> bool {
    if MAY_MOVE.get() {
        FOREIGN.set(Some(owner));
    }
    MAY_MOVE.get()
}

/// The first packets' suite (RFC 9001 §5).
pub(crate) fn initial_suite() -> Option<Suite> {
    crate::provider::initial_suite().tls13().and_then(|suite| suite.quic_suite())
}

/// The configurations of a policy.
#[derive(Clone)]
struct Configs {
    usual: Arc<rustls::ServerConfig>,
    /// For the clients whose secrets are written, where these are not all.
    logged: Option<Arc<rustls::ServerConfig>>,
}

/// A lane's TLS for the QUIC connections of one listener.
pub struct QuicServer {
    pub(crate) tls: ListenerTls,
    keys: Arc<TicketKeys>,
    // Made when first used; only this lane's thread comes here, so that nobody ever waits.
    configs: Box<[OnceLock<Option<Configs>>]>,
    initial: Suite,
}

impl std::fmt::Debug for QuicServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuicServer").field("policies", &self.tls.policies.len()).finish_non_exhaustive()
    }
}

impl QuicServer {
    /// For a listener's policies under the current ticket keys. Fails where a policy allows no TLS 1.3.
    pub fn new(tls: &ListenerTls, keys: &Arc<TicketKeys>) -> Result<Self, BuildError> {
        let initial = initial_suite().ok_or_else(|| BuildError("no suite for QUIC's first packets".into()))?;
        if let Some(policy) = tls.policies.iter().find(|p| !p.versions.contains(&Version::Tls13)) {
            return Err(BuildError(format!("{}: QUIC needs TLS 1.3", policy.name)));
        }
        let configs = tls.policies.iter().map(|_| OnceLock::new()).collect();
        Ok(Self { tls: tls.clone(), keys: keys.clone(), configs, initial })
    }

    /// The configuration of one policy for a client; `None` if it cannot be built.
    pub(crate) fn config(&self, policy: usize, client: Option<IpAddr>) -> Option<Arc<rustls::ServerConfig>> {
        let (made, policy) = (self.configs.get(policy)?, self.tls.policies.get(policy)?);
        let configs = made.get_or_init(|| build(policy, &self.keys).ok()).as_ref()?;
        let is_logged = || policy.dangerous_key_log.as_ref().zip(client).is_some_and(|(rules, ip)| rules.includes(ip));
        Some(configs.logged.as_ref().filter(|_| is_logged()).unwrap_or(&configs.usual).clone())
    }
}

/// A policy's configuration in QUIC's form.
fn build(policy: &Arc<ServerPolicy>, keys: &TicketKeys) -> Result<Configs, BuildError> {
    let over_quic =
        ServerPolicy { versions: vec![Version::Tls13], alpn: vec![ALPN.to_vec()], ..ServerPolicy::clone(policy) };
    let provider = quic_provider(&policy.suites, &policy.groups);
    // Its hellos do not wait for a store.
    let context = ServerContext::with(&Arc::new(over_quic), keys, provider, false)?;
    let in_quic = |config: &rustls::ServerConfig| {
        let mut config = config.clone();
        // RFC 9001 §4.6.1: on or off; how much, QUIC's flow control says.
        config.max_early_data_size = if config.max_early_data_size > 0 { u32::MAX } else { 0 };
        Arc::new(config)
    };
    Ok(Configs { usual: in_quic(&context.config), logged: context.logged.as_deref().map(in_quic) })
}

impl crypto::ServerConfig for QuicServer {
    fn initial_keys(&self, version: u32, dst_cid: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        if version != VERSION {
            return Err(UnsupportedVersion);
        }
        Ok(initial_keys(&self.initial, dst_cid, Side::Server))
    }

    fn retry_tag(&self, _version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        retry_tag(orig_dst_cid, &[packet])
    }

    fn start_session(self: Arc<Self>, _version: u32, params: &TransportParameters) -> Box<dyn crypto::Session> {
        let initial = self.initial;
        Box::new(QuicSession::server(self, params, initial))
    }
}

/// A Retry packet's integrity tag (RFC 9001 §5.8).
pub(crate) fn retry_tag(orig_dst_cid: &ConnectionId, packet: &[&[u8]]) -> [u8; 16] {
    let mut pseudo = vec![orig_dst_cid.len() as u8];
    pseudo.extend_from_slice(orig_dst_cid);
    packet.iter().for_each(|part| pseudo.extend_from_slice(part));
    let mut out = [0; 16];
    let sealed = aead::UnboundKey::new(&aead::AES_128_GCM, &RETRY_KEY).and_then(|key| {
        let nonce = aead::Nonce::assume_unique_for_key(RETRY_NONCE);
        aead::LessSafeKey::new(key).seal_in_place_separate_tag(nonce, aead::Aad::from(&pseudo[..]), &mut [])
    });
    // The key is a constant of the right length, and nothing else can fail.
    if let Ok(tag) = sealed {
        out.copy_from_slice(tag.as_ref());
    }
    out
}

/// A lane's TLS for QUIC connections to one upstream.
pub struct QuicClient {
    config: Arc<rustls::ClientConfig>,
    server_name: ServerName<'static>,
    initial: Suite,
}

impl std::fmt::Debug for QuicClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuicClient").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl QuicClient {
    /// The same rules as over TCP, for HTTP/3. Where they allow no TLS 1.3, every connect fails.
    pub fn new(context: &ClientContext) -> Result<Self, BuildError> {
        let initial = initial_suite().ok_or_else(|| BuildError("no suite for QUIC's first packets".into()))?;
        let mut config = (*context.config).clone();
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self { config: Arc::new(config), server_name: context.server_name.clone(), initial })
    }
}

impl crypto::ClientConfig for QuicClient {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        _server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn crypto::Session>, ConnectError> {
        if version != VERSION {
            return Err(ConnectError::UnsupportedVersion);
        }
        let session = QuicSession::client(self.config.clone(), self.server_name.clone(), params, self.initial);
        session.map(|s| Box::new(s) as Box<dyn crypto::Session>).map_err(ConnectError::InvalidServerName)
    }
}

/// The key that makes stateless reset tokens (RFC 9000 §10.3): the same for every lane, and over rotations.
pub fn reset_key(keys: &TicketKeys) -> Arc<dyn HmacKey> {
    Arc::new(ResetKey::new(keys))
}

/// The keys that seal address validation tokens (RFC 9000 §8.1): under the newest master, opened under all.
pub fn token_key(keys: &TicketKeys) -> Arc<dyn HandshakeTokenKey> {
    Arc::new(TokenKey::new(keys))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rfc_s_retry_packet() {
        // RFC 9001 §A.4.
        let cid = ConnectionId::new(&[0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08]);
        let packet =
            [0xff, 0, 0, 0, 1, 0, 8, 0xf0, 0x67, 0xa5, 0x50, 0x2a, 0x42, 0x62, 0xb5, 0x74, 0x6f, 0x6b, 0x65, 0x6e];
        let tag = [0x04, 0xa2, 0x65, 0xba, 0x2e, 0xff, 0x4d, 0x82, 0x90, 0x58, 0xfb, 0x3f, 0x0f, 0x24, 0x96, 0xba];
        assert_eq!(retry_tag(&cid, &[&packet[..6], &packet[6..]]), tag);
    }
}
