//! What a lane keeps for a client's connection over TCP: where it is in its life, what it speaks, how far its handshake has come, and
//! when it is looked at again.
//!
//! `connection` and the adapters of HTTP/1.1 and HTTP/2 report here what happens; other parts ask, or say what is to happen.

use crate::client::h2_connection::H2Client;
use crate::client::identity::Client;
use crate::exchange::forwarded::client_cert;
use crate::limits::Counted;
use crate::scratch::Scratch;
use crate::snapshot::ClientLimits;
use crate::transport::Transport;
use sealane_exchange::deadlines::{ConnectionWait, LINGER_BYTES};
use sealane_lane::{Context, Deadline, Key, Micros, Millis, Ready};
use sealane_tls::hello::LargeHello;
use sealane_tls::policy::ServerPolicy;
use sealane_tls::remote::RemoteKey;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// The life of a connection with a client:
///
/// ```text
/// ProxyHeader ─► Hello ─► (AwaitsTicket) ─► Admission ─► (AwaitsSignature) ─► Open ─► Closing ─► (Lingering) ─► gone
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
    /// A signing thread has the session: a token holds the certificate's key.
    AwaitsSignature,
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
pub(crate) struct Opening {
    /// When the handshake must be over, whatever is done with early data meanwhile.
    until: Millis,
    /// What has come and waits for the new clients' share of the turn.
    deferred: Option<Ready>,
    /// The hello is large, and not whole yet.
    pub large_hello: Option<LargeHello>,
    /// The hello is a certificate authority's check (RFC 8737), which this policy answers.
    pub challenge: Option<Arc<ServerPolicy>>,
    pub early: EarlyData,
    /// A token holds the key of a certificate for the name in the hello.
    pub may_sign_elsewhere: bool,
    /// The client was sent back for another key share. Its second hello needs a signature of this key.
    pub second_hello: Option<Arc<dyn RemoteKey>>,
}

impl Opening {
    /// Of a connection that begins, and whose handshake must be over at this time.
    fn new(until: Millis) -> Self {
        Self {
            until,
            deferred: None,
            large_hello: None,
            challenge: None,
            early: EarlyData::None,
            may_sign_elsewhere: false,
            second_hello: None,
        }
    }

    /// The connection has failed, or is closed both ways, and that has not been looked at.
    pub(super) fn has_failed(&self) -> bool {
        self.deferred.is_some_and(|ready| ready.error)
    }
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

/// A client's connection over TCP. The adapters of this folder share its transport, the bytes that they have not taken, and what
/// the connection speaks. All else changes by what happens: see the methods.
pub(crate) struct ClientConnection {
    pub(super) transport: Transport,
    pub(super) client: Client,
    phase: ClientPhase,
    /// Plaintext that has not been taken yet.
    pub(super) inbuf: Vec<u8>,
    deadline: Deadline,
    pub(super) handshake: Handshake,
    pub(super) protocol: Protocol,
}

impl ClientConnection {
    /// One that has been accepted, and whose handshake must be over at this time if there is one.
    pub fn new(transport: Transport, client: Client, phase: ClientPhase, handshake_until: Millis) -> Self {
        Self {
            transport,
            client,
            phase,
            inbuf: Vec::new(),
            deadline: Deadline::default(),
            handshake: Handshake::UnderWay(Opening::new(handshake_until)),
            protocol: Protocol::Unknown,
        }
    }

    /// The phase of its life.
    #[inline]
    pub fn phase(&self) -> ClientPhase {
        self.phase
    }

    /// Whether it serves HTTP, or something that is relayed.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.phase == ClientPhase::Open
    }

    /// Who is at the other end.
    #[inline]
    pub fn client(&self) -> &Client {
        &self.client
    }

    #[inline]
    pub fn client_mut(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Its socket with the session and with what is to be sent.
    #[inline]
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    #[inline]
    pub fn transport_mut(&mut self) -> &mut Transport {
        &mut self.transport
    }

    #[inline]
    pub fn is_h2(&self) -> bool {
        self.protocol.is_h2()
    }

    #[inline]
    pub fn h2(&self) -> Option<&H2Client> {
        self.protocol.h2()
    }

    /// The exchange of a connection that has one at a time.
    #[inline]
    pub fn exchange(&self) -> Option<Key> {
        self.protocol.exchange()
    }

    /// Whether something waits to be read or taken, and no exchange is in its way.
    #[inline]
    pub fn can_go_on(&self) -> bool {
        let more = self.transport.readable || !self.inbuf.is_empty() && !self.protocol.is_in_head();
        more && self.is_open() && self.is_established()
    }

    /// Whether its handshake is over and nothing that was read of it waits: only its socket can have something new.
    #[inline]
    pub(super) fn has_taken_all(&self) -> bool {
        let is_taken = match &self.protocol {
            Protocol::H1(_) => true,
            Protocol::H2(h2) => h2.is_drained(),
            Protocol::Unknown => false,
        };
        is_taken && self.inbuf.is_empty() && self.is_established()
    }

    /// Bytes of memory that it holds, with what was read for it at upstreams.
    pub fn holds(&mut self) -> usize {
        let frames = self.protocol.h2_mut().map_or(0, |h| h.holds());
        self.client.held().bytes() + self.transport.held() + self.inbuf.capacity() + frames
    }

    /// Lets go of its socket and its buffers. Returns its place among the connections of its address.
    pub fn dismantle(mut self: Box<Self>, scratch: &mut Scratch) -> Option<Counted> {
        let counted = self.client.count_out();
        self.transport.dismantle(scratch);
        counted
    }

    /// What another lane has read of it before it was handed over.
    pub fn adopt(&mut self, bytes: Vec<u8>) {
        self.transport.unread = bytes;
    }

    /// What goes before the hello or before HTTP has been read.
    pub(super) fn begin_with(&mut self, phase: ClientPhase) {
        self.phase = phase;
    }

    /// The hello has got its crypto time, and has a session.
    pub(super) fn note_admitted(&mut self, now: Micros) {
        self.phase = ClientPhase::Open;
        if let Some(opening) = self.opening() {
            opening.large_hello = None;
        }
        self.client.note_admitted(now);
    }

    /// The handshake is over. Returns how long that took since the connection was accepted.
    pub(super) fn note_established(&mut self, now: Micros) -> Micros {
        self.client.note_established(now)
    }

    /// Its bytes are relayed from now on, for this exchange. Those that were read of the hello go first.
    pub fn relay(&mut self, cx: &mut Context, key: Key, exchange: Key, idle_timeout: Duration) {
        self.phase = ClientPhase::Open;
        self.handshake = Handshake::Over;
        self.inbuf = std::mem::take(&mut self.transport.unread);
        self.deadline.after(cx, key, idle_timeout);
        self.protocol = Protocol::H1(Turn::Exchange(exchange, Persistence::Close));
    }

    /// A request is whole: this exchange serves it, and is looked at at this time. What was awaited before is here, but for the end
    /// of the handshake of a client that sends early data (`is_early`).
    #[inline]
    pub(super) fn begin_exchange(
        &mut self,
        cx: &mut Context,
        key: Key,
        (exchange, persistence): (Key, Persistence),
        at: Millis,
        is_early: bool,
    ) {
        self.protocol = Protocol::H1(Turn::Exchange(exchange, persistence));
        let at = match &self.handshake {
            Handshake::UnderWay(opening) if is_early => at.min(opening.until),
            Handshake::UnderWay(_) | Handshake::Over => at,
        };
        self.deadline.set(cx, key, at);
    }

    /// Bytes that were read after the end of our direction have been thrown away. Whether these are too many.
    pub(super) fn throws_away_too_much(&mut self, bytes: usize) -> bool {
        let ClientPhase::Lingering { read } = &mut self.phase else { return false };
        *read += bytes as u64;
        *read > LINGER_BYTES
    }

    /// The hello waits for its ticket: until this time, or that of the handshake's end if that is before. `cheap`: what will be
    /// signed is.
    pub fn await_ticket(&mut self, cx: &mut Context, key: Key, cheap: bool, at: Millis) {
        let Handshake::UnderWay(opening) = &self.handshake else { return };
        self.phase = ClientPhase::AwaitsTicket { cheap };
        self.deadline.set(cx, key, at.min(opening.until));
    }

    /// Whether the hello waits for its ticket; if so, whether what will be signed is cheap.
    pub fn awaits_ticket(&self) -> Option<bool> {
        match self.phase {
            ClientPhase::AwaitsTicket { cheap } => Some(cheap),
            _ => None,
        }
    }

    /// The hello does not wait for its ticket any more.
    pub fn leave_ticket(&mut self, cx: &mut Context, key: Key) {
        if let Handshake::UnderWay(opening) = &self.handshake {
            self.deadline.set(cx, key, opening.until);
        }
    }

    /// Whether the time for its handshake is over, while that is not.
    pub fn is_late(&self, now: Millis) -> bool {
        matches!(&self.handshake, Handshake::UnderWay(opening) if opening.until <= now)
    }

    /// A signing thread has the session.
    pub(super) fn await_signature(&mut self) {
        self.phase = ClientPhase::AwaitsSignature;
    }

    /// The session comes back, if it is expected. False: it is not.
    pub(super) fn leave_signature(&mut self) -> bool {
        let awaited = self.phase == ClientPhase::AwaitsSignature;
        if awaited {
            self.phase = ClientPhase::Open;
        }
        awaited
    }

    /// How much time the handshake has left.
    pub(super) fn handshake_time_left(&self, now: Millis) -> Duration {
        match &self.handshake {
            Handshake::UnderWay(opening) => Duration::from_millis(opening.until.saturating_sub(now)),
            Handshake::Over => Duration::ZERO,
        }
    }

    /// When the handshake must be over, while it goes on.
    #[inline]
    pub(super) fn handshake_until(&self) -> Option<Millis> {
        match &self.handshake {
            Handshake::UnderWay(opening) if self.transport.is_handshaking() => Some(opening.until),
            Handshake::UnderWay(_) | Handshake::Over => None,
        }
    }

    /// What it waits for now ends at this time, or with the handshake where that is still going on and must end before.
    #[inline]
    pub(super) fn wait_until(&mut self, cx: &mut Context, key: Key, at: Millis) {
        let at = self.handshake_until().map_or(at, |until| at.min(until));
        self.deadline.set(cx, key, at);
    }

    /// It is looked at at this time or before.
    #[inline]
    pub fn look_by(&mut self, cx: &mut Context, key: Key, at: Millis) {
        self.deadline.set_no_later(cx, key, at);
    }

    /// A timer has fired: whether it is time.
    #[inline]
    pub fn fired(&mut self, cx: &mut Context, key: Key) -> bool {
        self.deadline.fired(cx, key)
    }

    /// Whether an entry of the timer wheel is the one at which it is looked at again.
    pub fn is_armed_for(&self, tick: u64) -> bool {
        self.deadline.is_armed_for(tick)
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

    /// Whether it closes once what is staged has been sent; if so, whether it lingers then.
    #[inline]
    pub fn closes(&self) -> Option<bool> {
        match self.phase {
            ClientPhase::Closing { linger } => Some(linger),
            _ => None,
        }
    }

    /// Ends our direction, and begins to wait for the client's end, for a limited time and for limited bytes.
    pub fn begin_lingering(&mut self, cx: &mut Context, key: Key, limits: &ClientLimits) {
        let _ = rustix::net::shutdown(&self.transport.fd, rustix::net::Shutdown::Write);
        self.transport.readable = true;
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
            | ClientPhase::AwaitsSignature
            | ClientPhase::Closing { .. }
            | ClientPhase::Lingering { .. } => false,
        }
    }

    /// Keeps what has come for the new clients' share of the turn. True if nothing was kept before.
    pub fn defer(&mut self, ready: Ready) -> bool {
        let Handshake::UnderWay(opening) = &mut self.handshake else { return false };
        match &mut opening.deferred {
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
        self.opening()?.deferred.take()
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
            self.client.note_certificate(certificates.first().map(|c| client_cert(c)));
        }
    }
}

#[cfg(test)]
impl ClientConnection {
    /// One that waits for its client's handshake, which must be over at this time.
    pub fn in_handshake(mut self, until: Millis) -> Self {
        self.handshake = Handshake::UnderWay(Opening::new(until));
        self
    }

    /// One that is open, over HTTP/1.1.
    pub fn opened(mut self) -> Self {
        (self.phase, self.handshake, self.protocol) = (ClientPhase::Open, Handshake::Over, Protocol::H1(Turn::Idle));
        self
    }

    /// The same over HTTP/1.1, about to close after an exchange.
    pub fn serve_last(&mut self, exchange: Key) {
        self.protocol = Protocol::H1(Turn::Exchange(exchange, Persistence::Close));
    }

    pub fn deadline(&self) -> Millis {
        self.deadline.at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::Conn;
    use crate::fixtures;
    use std::os::fd::OwnedFd;

    fn open() -> (Box<ClientConnection>, OwnedFd) {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let (conn, peer) = fixtures::connection(&settings.listeners()[0]);
        let Conn::Client(client_conn) = conn else { unreachable!() };
        (client_conn, peer)
    }

    #[test]
    fn a_hello_waits_for_its_ticket_no_longer_than_for_the_handshake() {
        let (mut cx, key) = (Context::new().unwrap(), Key::from_u64(7));
        let (client_conn, _peer) = open();
        let mut client_conn = client_conn.in_handshake(50);
        for (at, deadline) in [(20, 20), (100, 50)] {
            client_conn.await_ticket(&mut cx, key, true, at);
            assert_eq!((client_conn.awaits_ticket(), client_conn.deadline()), (Some(true), deadline));
        }
        client_conn.await_ticket(&mut cx, key, false, 20);
        client_conn.leave_ticket(&mut cx, key);
        assert_eq!((client_conn.awaits_ticket(), client_conn.deadline()), (Some(false), 50));
        assert!(!client_conn.is_late(49) && client_conn.is_late(50));
        client_conn.await_answer();
        assert_eq!(client_conn.awaits_ticket(), None);
    }

    #[test]
    fn a_connection_lingers_for_limited_bytes() {
        let (mut cx, key, limits) = (Context::new().unwrap(), Key::from_u64(7), fixtures::limits());
        let (mut client_conn, _peer) = open();
        assert!(client_conn.is_open() && client_conn.closes().is_none());
        client_conn.begin_closing(&mut cx, key, true, &limits);
        assert_eq!((client_conn.is_open(), client_conn.closes()), (false, Some(true)));
        client_conn.begin_lingering(&mut cx, key, &limits);
        assert!(client_conn.closes().is_none());
        assert!(!client_conn.throws_away_too_much(LINGER_BYTES as usize));
        assert!(client_conn.throws_away_too_much(1));
    }

    #[test]
    fn a_connection_goes_on_only_between_requests() {
        let (mut cx, key, exchange) = (Context::new().unwrap(), Key::from_u64(7), Key::from_u64(8));
        let (mut client_conn, _peer) = open();
        client_conn.transport.readable = false;
        assert!(!client_conn.can_go_on(), "there is nothing to take");
        client_conn.inbuf = b"GET".to_vec();
        assert!(client_conn.can_go_on());
        client_conn.protocol = Protocol::H1(Turn::InHead);
        assert!(!client_conn.can_go_on(), "half a head waits for the rest");
        client_conn.begin_exchange(&mut cx, key, (exchange, Persistence::KeepAlive), 100, false);
        assert_eq!((client_conn.exchange(), client_conn.deadline()), (Some(exchange), 100));
        assert!(client_conn.is_kept_alive());
        client_conn.leave_exchange();
        assert!(client_conn.exchange().is_none() && client_conn.can_go_on());
    }

    #[test]
    fn a_relay_sends_what_was_read_of_the_hello() {
        let (mut cx, key, exchange) = (Context::new().unwrap(), Key::from_u64(7), Key::from_u64(8));
        let (client_conn, _peer) = open();
        let mut client_conn = client_conn.in_handshake(50);
        client_conn.adopt(b"hello".to_vec());
        client_conn.relay(&mut cx, key, exchange, Duration::from_secs(1));
        assert!(client_conn.is_open() && client_conn.is_established() && !client_conn.is_kept_alive());
        assert_eq!((&client_conn.inbuf[..], client_conn.exchange()), (&b"hello"[..], Some(exchange)));
    }
}
