//! What a lane keeps for a connection: with a client ([`ClientConnection`], [`H3Connection`]), or with an upstream
//! ([`UpstreamConnection`], [`H3Connection`]). Who a client is ([`Client`]) does not depend on what its connection speaks.

use crate::client::h2_connection::H2Client;
use crate::client::state::ClientConnection;
use crate::exchange::waste::WasteBudget;
use crate::h3::connection::H3Connection;
use crate::lane_state::LaneListener;
use crate::limits::Counted;
use crate::memory::Held;
use crate::mirrors::MirrorClient;
use crate::records::ConnectionId;
use crate::traces::Made;
use crate::transport::Transport;
use crate::udp::session::UdpSession;
use crate::unix_clients::{NAME, UNIX_CLIENT, is_unix};
use crate::upstream::h2_connection::H2Upstream;
use crate::upstream::phase::UpstreamConnection;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealane_lane::Micros;
use sealane_tls::{CertificateDescription, CertificateNames};
use std::cell::OnceCell;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

pub(crate) enum Conn {
    Client(Box<ClientConnection>),
    Upstream(Box<UpstreamConnection>),
    Quic(Box<H3Connection>),
    /// The client of a mirrored request, which has no socket.
    Mirror(Box<MirrorClient>),
    /// A session of relayed datagrams.
    Udp(Box<UdpSession>),
}

/// How a client's connection stands to the newest snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Its listener and its policy are those of the snapshot, or the lane has not looked yet.
    Current,
    /// A reload has taken away the listener or the policy that the connection was made under: it is to end.
    LeftBehind,
}

/// Who a client is and under which rules it is served, whatever its connection speaks: what the exchange loop asks of
/// it.
pub(crate) struct Client {
    pub listener: Rc<LaneListener>,
    /// Index into the listener's policies: the rules that its connection was made under. `None` before the hello has
    /// been read; 0 without TLS.
    pub policy: Option<usize>,
    /// The client, as the PROXY protocol tells or as connected.
    pub peer: SocketAddr,
    /// Its connection, for logs.
    pub id: ConnectionId,
    /// The client's address as text.
    pub peer_text: AddressText,
    /// Its certificate, if it has shown one.
    pub cert: Option<Box<ClientCert>>,
    /// Requests that have come on its connection.
    pub requests: u64,
    /// Whether its connection goes by the newest snapshot.
    pub standing: Standing,
    /// How many more of them it may waste.
    pub waste: WasteBudget,
    /// The name that it asked for in its hello, where some rate limit counts by it.
    pub server_name: Option<Box<str>>,
    /// It counts among the connections of its address.
    pub counted: Option<Counted>,
    /// What the responses to all its requests hold.
    pub held: Held,
    /// When its connection was made.
    pub made: Made,
}

/// An IP address as text: IPv6 as in RFC 5952, an IPv4-mapped one as IPv4. A client at a Unix socket has a name in its place.
pub(crate) struct AddressText {
    bytes: [u8; LONGEST_ADDRESS],
    len: u8,
    kind: AddressKind,
}

/// What the text of an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressKind {
    V4,
    V6,
    Unix,
}

/// Eight groups of four digits.
const LONGEST_ADDRESS: usize = 39;

impl AddressText {
    pub fn new(ip: IpAddr) -> Self {
        let mut bytes = [0; LONGEST_ADDRESS];
        let mut rest = &mut bytes[..];
        // There is room for each.
        let kind = match ip.to_canonical() {
            ip if is_unix(ip) => {
                let _ = rest.write_all(NAME.as_bytes());
                AddressKind::Unix
            }
            ip => {
                let _ = write!(rest, "{ip}");
                if ip.is_ipv4() { AddressKind::V4 } else { AddressKind::V6 }
            }
        };
        let len = (LONGEST_ADDRESS - rest.len()) as u8;
        Self { bytes, len, kind }
    }

    /// What stands before it and behind it in an element of `Forwarded`. RFC 7239 §6: an IPv6 address is in brackets and quotes, and
    /// what is no address begins with an underscore.
    #[inline]
    pub fn around(&self) -> (&'static [u8], &'static [u8]) {
        match self.kind {
            AddressKind::V4 => (b"for=", b""),
            AddressKind::V6 => (b"for=\"[", b"]\""),
            AddressKind::Unix => (b"for=_", b""),
        }
    }

    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// What upstreams and logs are told of a client's certificate.
pub(crate) struct ClientCert {
    /// Value for `Client-Cert` (RFC 9440).
    pub field: Vec<u8>,
    /// SHA-256 of the certificate, in hexadecimal.
    pub fingerprint: String,
    /// Its names, once a rule has looked at them.
    names: OnceCell<CertificateNames>,
    /// What it says of itself, once a header has told it.
    description: OnceCell<CertificateDescription>,
}

impl ClientCert {
    pub fn new(field: Vec<u8>, fingerprint: String) -> Self {
        Self { field, fingerprint, names: OnceCell::new(), description: OnceCell::new() }
    }

    /// The names by which rules know the client.
    pub fn names(&self) -> &CertificateNames {
        self.names
            .get_or_init(|| STANDARD.decode(self.base64()).map(|der| CertificateNames::of(&der)).unwrap_or_default())
    }

    /// What the certificate says of itself.
    pub fn description(&self) -> &CertificateDescription {
        self.description.get_or_init(|| {
            STANDARD.decode(self.base64()).map(|der| CertificateDescription::of(&der)).unwrap_or_default()
        })
    }

    /// The certificate in Base64.
    pub fn base64(&self) -> &[u8] {
        // The field has it between two colons (RFC 8941 §3.3.5).
        self.field.get(1..self.field.len().saturating_sub(1)).unwrap_or_default()
    }
}

impl Client {
    /// A client whose datagrams are relayed.
    pub fn relayed(listener: Rc<LaneListener>, peer: SocketAddr, id: ConnectionId, now: Micros) -> Self {
        Self {
            listener,
            policy: Some(0),
            peer,
            id,
            peer_text: AddressText::new(peer.ip()),
            cert: None,
            requests: 0,
            standing: Standing::Current,
            waste: WasteBudget::default(),
            server_name: None,
            counted: None,
            held: Held::default(),
            made: Made::begun(now),
        }
    }

    /// Counts a request, and returns its number, from 1.
    pub fn next_request(&mut self) -> u32 {
        self.requests += 1;
        u32::try_from(self.requests).unwrap_or(u32::MAX)
    }

    /// Whether its connection goes by the newest snapshot, as far as is known.
    #[inline]
    pub fn is_current(&self) -> bool {
        self.standing == Standing::Current
    }

    /// Whether the request that has come is to be the last one on the connection, of which so many may come.
    #[inline]
    pub fn is_at_last_request(&self, max: u64) -> bool {
        self.requests >= max || self.standing == Standing::LeftBehind
    }

    /// Whether it is at a Unix socket, and nobody has told its address: it may bring the requests of many.
    pub fn is_unnamed(&self) -> bool {
        self.peer == UNIX_CLIENT && self.listener.listener.is_unix
    }

    /// Whether it came over TLS (or QUIC).
    pub fn is_secure(&self) -> bool {
        self.listener.listener.tls.is_some()
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{client, limits, settings, snapshot};

    #[test]
    fn a_connection_that_is_left_behind_ends_and_still_counts() {
        let (settings, _published) = settings(snapshot(limits(), Vec::new()));
        let mut client = client(&settings.listeners()[0], "192.0.2.1:5");
        assert_eq!((client.next_request(), client.is_at_last_request(2)), (1, false));
        client.standing = Standing::LeftBehind;
        assert_eq!((client.next_request(), client.is_at_last_request(100)), (2, true));
        client.standing = Standing::Current;
        assert_eq!((client.is_at_last_request(2), client.is_at_last_request(3)), (true, false));
    }

    #[test]
    fn addresses_as_text() {
        for (ip, text) in [
            ("255.255.255.255", "255.255.255.255"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8::1", "2001:db8::1"),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"),
            ("::", "unix"),
            ("::1", "::1"),
        ] {
            assert_eq!(AddressText::new(ip.parse().unwrap()).as_bytes(), text.as_bytes());
        }
    }
}
