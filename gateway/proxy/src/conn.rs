//! What a lane keeps for a connection: with a client ([`ClientConnection`]), or with an upstream ([`UpstreamConnection`]).

use crate::client::h2_connection::H2Client;
use crate::exchange::forwarded::client_cert;
use crate::exchange::waste::WasteBudget;
use crate::h3::connection::H3Connection;
use crate::lane_state::LaneListener;
use crate::limits::Counted;
use crate::memory::Held;
use crate::mirrors::MirrorClient;
use crate::records::ConnectionId;
use crate::snapshot::ClientLimits;
use crate::traces::Made;
use crate::transport::Transport;
use crate::unix_clients::{NAME, UNIX_CLIENT, is_unix};
use crate::upstream::h2_connection::H2Upstream;
use crate::upstream::phase::UpstreamConnection;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealane_exchange::deadlines::ConnectionWait;
use sealane_lane::{Context, Deadline, Key, Micros, Millis, Ready};
use sealane_tls::hello::LargeHello;
use sealane_tls::policy::ServerPolicy;
use sealane_tls::{CertificateDescription, CertificateNames};
use std::cell::OnceCell;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

pub(crate) enum Conn {
    Client(Box<ClientConnection>),
    Upstream(Box<UpstreamConnection>),
    Quic(Box<H3Connection>),
    /// The client of a mirrored request, which has no socket.
    Mirror(Box<MirrorClient>),
}

/// The life of a connection with a client:
///
/// ```text
/// ProxyHeader ─► Hello ─► (AwaitsTicket) ─► Admission ─► Open ─► Closing ─► (Lingering) ─► gone
///      └──────────(plain)─────────────────────────────────▲
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientPhase {
    /// A PROXY protocol header must come first.
    ProxyHeader,
    /// The ClientHello is being collected. `awaits_proof`: it is whole, and its client must prove its address before it is
    /// answered.
    Hello { awaits_proof: bool },
    /// The hello is whole, and its ticket is being taken from the store that gateways share. `cheap`: what will be signed is.
    AwaitsTicket { cheap: bool },
    /// The hello is whole and waits for crypto time.
    Admission,
    /// HTTP; under TLS the handshake may still be going on.
    Open,
    /// What is staged is sent, then the connection closes; by way of `Lingering` if `linger`.
    Closing { linger: bool },
    /// Our side is closed; what still comes is read and dropped, so that the peer gets to read our answer before it
    /// sees a reset (RFC 9112 §9.6). `read`: how many bytes so far.
    Lingering { read: u64 },
}

impl ClientPhase {
    /// Nothing of the hello has come.
    pub const HELLO: Self = Self::Hello { awaits_proof: false };
}

/// What a client speaks on a connection over TCP, and where it stands with that.
pub(crate) enum Protocol {
    /// That is not known yet, or does not matter any more.
    Unknown,
    /// HTTP/1.1, or something that is relayed.
    H1(Turn),
    H2(Box<H2Client>),
}

/// What a connection over HTTP/1.1 is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Between two requests.
    Idle,
    /// A request's head has begun to come.
    InHead,
    /// It serves an exchange.
    Exchange(Key, Persistence),
}

/// Whether a connection over HTTP/1.1 serves another request after its exchange (RFC 9112 §9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persistence {
    KeepAlive,
    Close,
}

impl Protocol {
    /// The exchange of a connection that has one at a time.
    #[inline]
    pub fn exchange(&self) -> Option<Key> {
        match self {
            Self::H1(Turn::Exchange(exchange, _)) => Some(*exchange),
            _ => None,
        }
    }

    /// A request's head has begun to come over HTTP/1.1.
    #[inline]
    pub fn is_in_head(&self) -> bool {
        matches!(self, Self::H1(Turn::InHead))
    }

    /// No request is under way or has begun to come, as far as the connection has one at a time.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !matches!(self, Self::H1(Turn::InHead | Turn::Exchange(..)))
    }

    /// The connection serves an exchange over HTTP/1.1 and stays open after it.
    #[inline]
    pub fn is_kept_alive(&self) -> bool {
        matches!(self, Self::H1(Turn::Exchange(_, Persistence::KeepAlive)))
    }

    /// The connection closes after the exchange that it serves over HTTP/1.1.
    #[inline]
    pub fn close_after_exchange(&mut self) {
        if let Self::H1(Turn::Exchange(_, persistence)) = self {
            *persistence = Persistence::Close;
        }
    }

    #[inline]
    pub fn is_h2(&self) -> bool {
        matches!(self, Self::H2(_))
    }

    #[inline]
    pub fn h2(&self) -> Option<&H2Client> {
        match self {
            Self::H2(h2) => Some(h2),
            _ => None,
        }
    }

    #[inline]
    pub fn h2_mut(&mut self) -> Option<&mut H2Client> {
        match self {
            Self::H2(h2) => Some(h2),
            _ => None,
        }
    }
}

/// How far the handshake of a client's connection over TCP has come.
pub(crate) enum Handshake {
    /// It has not begun, goes on, or its end has not been counted.
    UnderWay(Opening),
    /// It is over and has been counted, or there is none.
    Over,
}

/// What is known of a connection while its handshake is not over.
#[derive(Default)]
pub(crate) struct Opening {
    /// The hello is large, and not whole yet.
    pub large_hello: Option<LargeHello>,
    /// The hello is a certificate authority's check (RFC 8737), which this policy answers.
    pub challenge: Option<Arc<ServerPolicy>>,
    pub early: EarlyData,
}

/// What has become of early data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EarlyData {
    /// The hello offers none, or has not been read.
    #[default]
    None,
    /// The hello offers some, of which nothing has come.
    Offered,
    /// Some has come, and was taken.
    Taken,
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

pub(crate) struct ClientConnection {
    pub transport: Transport,
    pub client: Client,
    pub phase: ClientPhase,
    /// Plaintext that has not been taken yet.
    pub inbuf: Vec<u8>,
    pub deadline: Deadline,
    /// When the connection was accepted.
    pub began: Micros,
    /// When the handshake must be over, whatever is done with early data meanwhile.
    pub handshake_until: Millis,
    pub handshake: Handshake,
    /// What has come while its handshake was going on and waits for the new clients' share of the turn.
    pub deferred: Option<Ready>,
    pub protocol: Protocol,
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

impl ClientConnection {
    /// One that has been accepted at `began`.
    pub fn new(
        transport: Transport,
        client: Client,
        phase: ClientPhase,
        began: Micros,
        handshake_until: Millis,
    ) -> Self {
        Self {
            transport,
            client,
            phase,
            inbuf: Vec::new(),
            deadline: Deadline::default(),
            began,
            handshake_until,
            handshake: Handshake::UnderWay(Opening::default()),
            deferred: None,
            protocol: Protocol::Unknown,
        }
    }

    /// It is looked at again at this time.
    pub fn expire_at(&mut self, cx: &mut Context, key: Key, at: Millis) {
        self.deadline.set(cx, key, at);
    }

    /// Begins to close the connection: what is staged is sent, and then the client is read for a while if `linger`.
    /// The caller marks the connection for flush.
    pub fn begin_closing(&mut self, cx: &mut Context, key: Key, linger: bool, limits: &ClientLimits) {
        self.phase = ClientPhase::Closing { linger };
        let at = limits.until(ConnectionWait::LastBytes, cx.now());
        self.deadline.set(cx, key, at);
    }

    /// Begins to wait for the client's end of the connection, for a limited time and for limited bytes.
    pub fn begin_lingering(&mut self, cx: &mut Context, key: Key, limits: &ClientLimits) {
        self.phase = ClientPhase::Lingering { read: 0 };
        let at = limits.until(ConnectionWait::ClientEnd, cx.now());
        self.deadline.set(cx, key, at);
    }

    /// Tells the client that the connection ends: over HTTP/2 with the last of its streams, else, if `ends_idle`, now where no request
    /// is under way. True if something is to be sent.
    pub fn shut_down(&mut self, cx: &mut Context, key: Key, ends_idle: bool, limits: &ClientLimits) -> bool {
        let is_idle = self.phase == ClientPhase::Open && self.protocol.is_idle();
        match &mut self.protocol {
            Protocol::H2(h2) => h2.shut_down(cx.now()),
            _ if ends_idle && is_idle => {
                self.transport.finish();
                self.begin_closing(cx, key, true, limits);
            }
            _ => return false,
        }
        true
    }

    /// Whether the client has not shown that it is where it says, so that only so much is sent to it.
    #[inline]
    pub fn is_unproven(&self) -> bool {
        self.transport.allowance().is_some()
    }

    /// The client is where it says.
    pub fn note_proven(&mut self) {
        self.transport.allow(None);
    }

    /// The hello of an unproven client is answered, with at most so many times its bytes.
    pub fn allow_answer(&mut self, times: usize) {
        self.transport.allow(Some(times * self.transport.unread.len()));
    }

    /// The whole hello waits until its client has shown that it is where it says.
    pub fn await_proof(&mut self) {
        self.phase = ClientPhase::Hello { awaits_proof: true };
    }

    pub fn awaits_proof(&self) -> bool {
        self.phase == ClientPhase::Hello { awaits_proof: true }
    }

    /// The whole hello waits for crypto time.
    pub fn await_answer(&mut self) {
        self.phase = ClientPhase::Admission;
    }

    pub fn awaits_answer(&self) -> bool {
        self.phase == ClientPhase::Admission
    }

    /// Whether what comes waits for the new clients' share of the turn.
    pub fn awaits_admission(&self) -> bool {
        match self.phase {
            _ if self.is_established() => false,
            ClientPhase::ProxyHeader | ClientPhase::Hello { .. } => true,
            ClientPhase::Open => self.is_handshaking(),
            ClientPhase::AwaitsTicket { .. }
            | ClientPhase::Admission
            | ClientPhase::Closing { .. }
            | ClientPhase::Lingering { .. } => false,
        }
    }

    /// Keeps what has come for the new clients' share of the turn. True if nothing was kept before.
    pub fn defer(&mut self, ready: Ready) -> bool {
        match &mut self.deferred {
            Some(earlier) => {
                earlier.error |= ready.error;
                false
            }
            none => {
                *none = Some(ready);
                true
            }
        }
    }

    pub fn take_deferred(&mut self) -> Option<Ready> {
        self.deferred.take()
    }

    /// Its socket, for what the system knows of it.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.transport.fd.as_fd()
    }

    #[inline]
    pub fn is_handshaking(&self) -> bool {
        self.transport.is_handshaking()
    }

    /// How many of `want` bytes the client has room for.
    #[inline]
    pub fn room(&mut self, want: usize) -> usize {
        self.transport.room(0, want)
    }

    /// Whether it serves an exchange over HTTP/1.1 and stays open after it.
    #[inline]
    pub fn is_kept_alive(&self) -> bool {
        self.protocol.is_kept_alive()
    }

    /// It closes after the exchange that it serves over HTTP/1.1.
    #[inline]
    pub fn close_after_exchange(&mut self) {
        self.protocol.close_after_exchange();
    }

    /// The exchange that it served over HTTP/1.1 is over.
    #[inline]
    pub fn leave_exchange(&mut self) {
        self.protocol = Protocol::H1(Turn::Idle);
    }

    /// Whether the handshake is over and has been counted, or there is none.
    #[inline]
    pub fn is_established(&self) -> bool {
        matches!(self.handshake, Handshake::Over)
    }

    /// What is known of it while its handshake is not over.
    #[inline]
    pub fn opening(&mut self) -> Option<&mut Opening> {
        match &mut self.handshake {
            Handshake::UnderWay(opening) => Some(opening),
            Handshake::Over => None,
        }
    }

    /// Whether a request that is whole now came as early data, so that it may be a replay.
    #[inline]
    pub fn comes_early(&self) -> bool {
        matches!(&self.handshake, Handshake::UnderWay(opening) if opening.early == EarlyData::Taken)
            && self.transport.is_handshaking()
    }

    /// Whether the handshake is the answer to a certificate authority, after which nothing is served.
    #[inline]
    pub fn answers_challenge(&self) -> bool {
        matches!(&self.handshake, Handshake::UnderWay(opening) if opening.challenge.is_some())
    }

    /// Notes the certificate that the client has shown in its handshake.
    pub fn note_certificate(&mut self) {
        if let Some(certificates) = self.transport.tls.as_ref().and_then(|tls| tls.peer_certificates()) {
            self.client.cert = certificates.first().map(|c| client_cert(c));
        }
    }

    /// This time, or that of the handshake's end where it is still going on and must end before.
    #[inline]
    pub fn before_handshake_timeout(&self, at: Millis) -> Millis {
        if self.is_established() || !self.transport.is_handshaking() { at } else { at.min(self.handshake_until) }
    }
}

impl Client {
    /// Counts a request, and returns its number, from 1.
    pub fn next_request(&mut self) -> u32 {
        self.requests += 1;
        u32::try_from(self.requests).unwrap_or(u32::MAX)
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
            Self::Client(f) => Some(&mut f.client),
            Self::Quic(q) => q.client(),
            Self::Upstream(_) | Self::Mirror(_) => None,
        }
    }

    /// Nothing that has been read waits for room elsewhere.
    pub fn is_drained(&self) -> bool {
        match self {
            Self::Client(f) => f.protocol.h2().is_none_or(H2Client::is_drained),
            Self::Upstream(b) => b.h2().is_none_or(H2Upstream::is_drained),
            Self::Quic(_) | Self::Mirror(_) => true,
        }
    }

    /// When it is looked at again.
    pub fn deadline(&self) -> &Deadline {
        match self {
            Self::Client(f) => &f.deadline,
            Self::Upstream(b) => &b.deadline,
            Self::Quic(q) => &q.deadline,
            Self::Mirror(mirror) => &mirror.deadline,
        }
    }

    /// The version of TLS that it speaks, once that is known.
    pub fn tls_version(&self) -> Option<sealane_tls::policy::Version> {
        let transport = match self {
            Self::Client(f) => &f.transport,
            Self::Upstream(b) => &b.transport,
            // RFC 9001 §4.2: there is no other version under QUIC.
            Self::Quic(_) => return Some(sealane_tls::policy::Version::Tls13),
            Self::Mirror(_) => return None,
        };
        transport.tls.as_ref().and_then(|t| t.summary()).map(|s| s.version)
    }

    /// Its stream of bytes, where it is one.
    pub fn transport(&mut self) -> Option<&mut Transport> {
        match self {
            Self::Client(f) => Some(&mut f.transport),
            Self::Upstream(b) => Some(&mut b.transport),
            Self::Quic(_) | Self::Mirror(_) => None,
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
