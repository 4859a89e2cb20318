//! Who a client is ([`Client`]), whatever its connection speaks: its address, its certificate, the rules that it is served under, and
//! what it uses up.
//!
//! The adapters of this folder report what its handshake shows. The parts outside report what happens to it: that it is counted, that a
//! reload leaves it behind, that it wastes requests, or that responses wait for it.

use crate::exchange::waste::{Flood, WasteBudget};
use crate::lane_state::LaneListener;
use crate::limits::Counted;
use crate::memory::Held;
use crate::records::ConnectionId;
use crate::traces::Made;
use crate::unix_clients::{NAME, UNIX_CLIENT, is_unix};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealane_lane::{Micros, Millis};
use sealane_tls::{CertificateDescription, CertificateNames};
use std::cell::OnceCell;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

/// Who a client is and under which rules it is served, whatever its connection speaks: what the exchange loop asks of it. All of it
/// changes by what happens: see the methods.
pub(crate) struct Client {
    listener: Rc<LaneListener>,
    /// Index into the listener's policies: the rules that its connection was made under. `None` before the hello has
    /// been read; 0 without TLS.
    policy: Option<usize>,
    /// The client, as the PROXY protocol tells or as connected.
    peer: SocketAddr,
    /// Its connection, for logs.
    id: ConnectionId,
    /// The client's address as text.
    peer_text: AddressText,
    /// Its certificate, if it has shown one.
    cert: Option<Box<ClientCert>>,
    /// Requests that have come on its connection.
    requests: u64,
    /// Whether its connection goes by the newest snapshot.
    standing: Standing,
    /// How many more of them it may waste.
    waste: WasteBudget,
    /// The name that it asked for in its hello, where some rate limit counts by it.
    server_name: Option<Box<str>>,
    /// It counts among the connections of its address.
    counted: Option<Counted>,
    /// What the responses to all its requests hold.
    held: Held,
    /// When its connection was made.
    made: Made,
}

/// How a client's connection stands to the newest snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Its listener and its policy are those of the snapshot, or the lane has not looked yet.
    Current,
    /// A reload has taken away the listener or the policy that the connection was made under: it is to end.
    LeftBehind,
}

impl Client {
    /// One whose connection has begun. `policy`: 0 without TLS, else `None`.
    pub fn new(
        listener: Rc<LaneListener>,
        policy: Option<usize>,
        peer: SocketAddr,
        id: ConnectionId,
        made: Made,
    ) -> Self {
        Self {
            listener,
            policy,
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
            made,
        }
    }

    /// The listener that it came to, in its newest form as far as its connection goes by the newest snapshot.
    #[inline]
    pub fn listener(&self) -> &Rc<LaneListener> {
        &self.listener
    }

    /// Index into the listener's policies: the rules that its connection was made under. `None` before the hello has
    /// been read; 0 without TLS.
    #[inline]
    pub fn policy(&self) -> Option<usize> {
        self.policy
    }

    /// Its address, as the PROXY protocol tells or as connected.
    #[inline]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The same as text, without the port.
    #[inline]
    pub fn peer_text(&self) -> &AddressText {
        &self.peer_text
    }

    /// Its connection, for logs.
    #[inline]
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// Its certificate, if it has shown one.
    #[inline]
    pub fn cert(&self) -> Option<&ClientCert> {
        self.cert.as_deref()
    }

    /// Requests that have come on its connection.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// The name that it asked for in its hello, where some rate limit counts by it.
    #[inline]
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// What the responses to all its requests hold.
    #[inline]
    pub fn held(&self) -> Held {
        self.held
    }

    /// When its connection was made.
    #[inline]
    pub fn made(&self) -> Made {
        self.made
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

/// What happens to it before its first request.
impl Client {
    /// A trusted proxy in front has told its address (the PROXY protocol).
    pub(super) fn note_source(&mut self, source: SocketAddr) {
        (self.peer, self.peer_text) = (source, AddressText::new(source.ip()));
    }

    /// Its hello has been read: its connection is made under this policy of its listener.
    pub(super) fn note_policy(&mut self, policy: usize) {
        self.policy = Some(policy);
    }

    /// Its hello asks for this name, and some rate limit counts by it.
    pub(super) fn note_server_name(&mut self, name: Option<String>) {
        self.server_name = name.map(String::into_boxed_str);
    }

    /// Its hello has got the lane's time.
    pub(super) fn note_admitted(&mut self, now: Micros) {
        self.made.admitted = now;
    }

    /// What it has shown in its handshake.
    pub(super) fn note_certificate(&mut self, certificate: Option<Box<ClientCert>>) {
        self.cert = certificate;
    }

    /// Its handshake is over. Returns how long its connection has taken to come to that.
    pub(super) fn note_established(&mut self, now: Micros) -> Micros {
        self.made.established = now;
        now - self.made.began
    }
}

/// What happens to it between its first request and its last one.
impl Client {
    /// Counts a request, and returns its number, from 1.
    #[inline]
    pub fn next_request(&mut self) -> u32 {
        self.requests += 1;
        u32::try_from(self.requests).unwrap_or(u32::MAX)
    }

    /// One of its responses holds `now` what was `before`.
    #[inline]
    pub fn note_held(&mut self, before: Held, now: Held) {
        self.held.change(before, now);
    }

    /// A request that came whole has been served, which makes up for one that was wasted.
    #[inline]
    pub fn note_served(&mut self) {
        self.waste.served();
    }

    /// So many of its requests have been wasted. An error if these are more than it may waste.
    pub fn note_wasted(&mut self, requests: u32, now: Millis) -> Result<(), Flood> {
        self.waste.wasted(requests, now)
    }

    /// It counts among the connections of its address from now on, with this place, if such connections are counted.
    pub fn count_in(&mut self, place: Option<Counted>) {
        self.counted = place;
    }

    /// Its connection is over: returns its place among the connections of its address, once.
    pub fn count_out(&mut self) -> Option<Counted> {
        self.counted.take()
    }

    /// A reload has taken away the listener or the policy that its connection was made under: the connection is to end.
    pub fn leave_behind(&mut self) {
        self.standing = Standing::LeftBehind;
    }

    /// Its connection goes by the newest snapshot, in which these are its listener and its policy.
    pub fn renew(&mut self, listener: Rc<LaneListener>, policy: Option<usize>) {
        (self.listener, self.policy, self.standing) = (listener, policy, Standing::Current);
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{client, limits, settings, snapshot};

    #[test]
    fn a_connection_that_is_left_behind_ends_and_still_counts() {
        let (settings, _published) = settings(snapshot(limits(), Vec::new()));
        let mut client = client(&settings.listeners()[0], "192.0.2.1:5");
        assert_eq!((client.next_request(), client.is_at_last_request(2)), (1, false));
        client.leave_behind();
        assert_eq!((client.next_request(), client.is_at_last_request(100)), (2, true));
        client.renew(settings.listeners()[0].clone(), Some(0));
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
