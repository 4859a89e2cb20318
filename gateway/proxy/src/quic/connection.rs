//! One QUIC connection: the protocol's state (quinn-proto) and what the lane adds to it. It knows no HTTP.
//!
//! Its owner asks the connection for events ([`Connection::poll`]), reads and writes its streams, and closes it.
//! The endpoint gives it datagrams ([`Connection::handle`]) and takes datagrams from it (`send`).

use crate::quic::{config, congestion};
use crate::snapshot::QuicSettings;
use bytes::{Bytes, BytesMut};
use quinn_proto::{
    ConnectionError, ConnectionEvent, ConnectionHandle, Dir, Event, RecvStream, SendStream, Side, StreamId, VarInt,
};
use sealane_tls::CertificateDer;
use sealane_tls::quic::{self as tls_quic, Handshake};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Datagrams kept of a connection whose hello is not whole yet.
const MAX_RAW: usize = 8;
/// How long the first packets of a hello go unacknowledged while the rest is on its way: `max_ack_delay`'s default
/// (RFC 9000 §18.2). A client's own timer is far longer.
const HOLD: Duration = Duration::from_millis(25);
/// How long a connection is taken for one that is over soon.
const BRIEF: Duration = Duration::from_millis(100);

pub(crate) struct Connection {
    pub(super) protocol: quinn_proto::Connection,
    pub(super) handle: ConnectionHandle,
    /// Index of its endpoint.
    pub(super) endpoint: usize,
    stage: Stage,
    /// When the protocol's timer is known to fire.
    pub(super) armed: Option<Instant>,
    /// Its hello may turn out to be another lane's; then nothing has been sent yet.
    undecided: Option<Undecided>,
    /// Until when it is taken for one that is over soon: what only a lasting connection needs waits until then. That is
    /// more ids for it, looking for larger datagrams (both `send`), and the keys of a key update.
    brief_until: Option<Instant>,
    /// How many streams the client may have open, if it has not been told of all of them.
    all_streams: Option<u32>,
    /// Bytes that the transport takes for a client before it has acknowledged some, and how many these may become.
    send_window: u64,
    most_send_window: u64,
    /// Bytes that a client may send ahead: on a stream, and on all of them.
    windows: Windows,
    /// Bytes of datagrams that have come, and those of them before the last look at its events.
    received: u64,
    seen: u64,
}

/// How many bytes a peer may send before they are read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Windows {
    /// On one stream.
    pub stream: usize,
    /// On all streams.
    pub connection: usize,
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Handshake,
    Established,
    /// The client has closed it: nothing is sent any more, whatever comes, nor the one answer that there may be
    /// (RFC 9000 §10.2.2). `established`: the handshake was over before.
    ClosedByClient {
        established: bool,
    },
}

/// What is kept of a connection whose hello may be another lane's.
struct Undecided {
    /// The datagrams so far.
    raw: Vec<BytesMut>,
    /// The lane slot that the hello has turned out to be for.
    foreign: Option<usize>,
    /// Until when nothing is sent.
    hold: Instant,
}

impl Connection {
    /// A connection to a server.
    pub(super) fn new(protocol: quinn_proto::Connection, handle: ConnectionHandle, endpoint: usize) -> Self {
        Self {
            protocol,
            handle,
            endpoint,
            stage: Stage::Handshake,
            armed: None,
            undecided: None,
            brief_until: None,
            all_streams: None,
            send_window: 0,
            most_send_window: 0,
            windows: Windows::default(),
            received: 0,
            seen: 0,
        }
    }

    /// Makes it a client's. `raw`: its datagrams so far, if its hello may be another lane's; `foreign`: whose it is, if that
    /// is known; `settings`: those of its listener.
    pub(super) fn accepted(
        &mut self,
        now: Instant,
        raw: Vec<BytesMut>,
        foreign: Option<usize>,
        settings: Option<&QuicSettings>,
    ) {
        self.undecided = (!raw.is_empty()).then(|| Undecided { raw, foreign, hold: now + HOLD });
        self.brief_until = Some(now + BRIEF);
        let Some(settings) = settings else { return };
        self.all_streams = Some(settings.max_streams).filter(|all| *all > config::FIRST_STREAMS);
        self.send_window = config::first_send_window(settings);
        self.most_send_window = settings.send_window;
        let bytes = |window: u64| usize::try_from(window).unwrap_or(usize::MAX);
        self.windows = Windows { stream: bytes(settings.stream_window), connection: bytes(settings.connection_window) };
    }

    /// Takes a datagram in, of `len` bytes. `raw`: these, in case that the hello goes to another lane.
    #[inline]
    pub(super) fn handle(&mut self, event: ConnectionEvent, len: usize, raw: Option<BytesMut>) {
        self.received += len as u64;
        let ((), foreign) = tls_quic::hear(self.may_move(), || self.protocol.handle_event(event));
        if let Some(undecided) = &mut self.undecided {
            undecided.raw.extend(raw);
            undecided.foreign = undecided.foreign.or(foreign);
        }
    }

    /// Packets that were sent, and those of them that were lost.
    pub fn losses(&self) -> (u64, u64) {
        let path = self.protocol.stats().path;
        (path.sent_packets, path.lost_packets)
    }

    /// The next thing that has happened.
    #[inline]
    pub fn poll(&mut self) -> Option<Event> {
        let event = self.protocol.poll()?;
        match &event {
            Event::Connected => {
                self.stage = Stage::Established;
                if self.brief_until.is_none() {
                    self.prepare_key_update();
                }
            }
            Event::ConnectionLost { reason } if self.is_accepted() => {
                // It may be ours to say so.
                congestion::closes(self.protocol.congestion_state());
                if matches!(reason, ConnectionError::ConnectionClosed(_) | ConnectionError::ApplicationClosed(_)) {
                    self.stage = Stage::ClosedByClient { established: self.is_established() };
                }
            }
            _ => {}
        }
        Some(event)
    }

    /// Lets the transport of a client's connection take more, once the client has acknowledged more: twice the congestion window,
    /// which only acknowledgements open. So the transport always has what it may send and as much again, and a client that
    /// acknowledges nothing makes it hold little, however wide its own windows are. To be called before [`Connection::poll`],
    /// which reports the streams that have room.
    #[inline]
    pub fn widen(&mut self) {
        if self.send_window < self.most_send_window {
            let window = self.protocol.congestion_state().window().saturating_mul(2).min(self.most_send_window);
            if window > self.send_window {
                self.send_window = window;
                self.protocol.set_send_window(window);
            }
        }
    }

    /// The most bytes that the transport of a client's connection holds until the client acknowledges them.
    pub fn send_window(&self) -> usize {
        usize::try_from(self.send_window).unwrap_or(usize::MAX)
    }

    /// How many bytes the client has acknowledged on its present path.
    pub fn acknowledged(&self) -> u64 {
        congestion::acknowledged(self.protocol.congestion_state())
    }

    /// How far the client may send ahead.
    pub fn windows(&self) -> Windows {
        self.windows
    }

    /// Bytes of all datagrams that have come.
    #[inline]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Those of them before the datagrams that its present events are about: none of a stream that is new.
    #[inline]
    pub fn received_before(&self) -> u64 {
        self.seen
    }

    /// All its events have been looked at.
    #[inline]
    pub fn note_looked_at(&mut self) {
        self.seen = self.received;
    }

    /// Whether its hello may still go to another lane.
    #[inline]
    pub fn may_move(&self) -> bool {
        self.undecided.is_some()
    }

    /// The datagrams of a hello that has turned out to be another lane's, and the slot of that lane. It stays here from
    /// the moment when it is clear that the hello is not.
    pub(super) fn take_foreign_hello(&mut self) -> Option<(Vec<BytesMut>, usize)> {
        let undecided = self.undecided.as_mut()?;
        if let Some(owner) = undecided.foreign {
            return Some((std::mem::take(&mut undecided.raw), owner));
        }
        // Past the hello, or so much of it that it is none.
        if self.protocol.crypto_session().handshake_data().is_some()
            || undecided.raw.len() > MAX_RAW
            || self.protocol.is_closed()
        {
            self.undecided = None;
        }
        None
    }

    /// Whether it keeps silent, because its hello may still go to another lane.
    pub fn is_held(&mut self, now: Instant) -> bool {
        // After that it does not go to another lane any more, whatever its hello says.
        self.undecided.take_if(|undecided| undecided.hold <= now);
        self.undecided.is_some()
    }

    /// Whether it is taken for one that is over soon.
    pub(super) fn is_brief(&mut self, now: Instant) -> bool {
        if self.brief_until.is_some_and(|until| until <= now) {
            self.brief_until = None;
            self.prepare_key_update();
            self.allow_all_streams();
        }
        self.brief_until.is_some()
    }

    /// Whether the client has closed it, so that nothing is sent any more.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.stage, Stage::ClosedByClient { .. })
    }

    /// When it wants to be woken.
    pub(super) fn wakes_at(&mut self) -> Option<Instant> {
        let own = [self.undecided.as_ref().map(|undecided| undecided.hold), self.brief_until];
        self.protocol.poll_timeout().into_iter().chain(own.into_iter().flatten()).min()
    }

    /// Nothing that comes later shall take the time in which keys are derived; see there.
    fn prepare_key_update(&self) {
        if let Some(handshake) = self.handshake() {
            handshake.prepare_key_update();
        }
    }

    /// The client opens more than one stream, or stays: it may have as many open as are allowed.
    pub fn allow_all_streams(&mut self) {
        if let Some(all) = self.all_streams.take() {
            self.protocol.set_max_concurrent_streams(Dir::Bi, VarInt::from_u32(all));
        }
    }

    /// Whether the peer is a client.
    pub(super) fn is_accepted(&self) -> bool {
        self.protocol.side() == Side::Server
    }

    /// Whether the handshake is over.
    #[inline]
    pub fn is_established(&self) -> bool {
        matches!(self.stage, Stage::Established | Stage::ClosedByClient { established: true })
    }

    /// What TLS has found out, once the hello has been read.
    pub fn handshake(&self) -> Option<Box<Handshake>> {
        self.protocol.crypto_session().handshake_data().and_then(|d| d.downcast().ok())
    }

    /// The peer's own certificate, if it has shown one.
    pub fn peer_certificate(&self) -> Option<CertificateDer<'static>> {
        let chain = self.protocol.crypto_session().peer_identity()?;
        chain.downcast::<Vec<CertificateDer<'static>>>().ok()?.into_iter().next()
    }

    pub fn remote_address(&self) -> SocketAddr {
        self.protocol.remote_address()
    }

    /// The address of ours that the peer uses, where the system tells.
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.protocol.local_ip()
    }

    /// Opens a stream, if the peer allows one.
    pub fn open(&mut self, dir: Dir) -> Option<StreamId> {
        self.protocol.streams().open(dir)
    }

    /// The next stream that the peer has opened.
    pub fn accept(&mut self, dir: Dir) -> Option<StreamId> {
        self.protocol.streams().accept(dir)
    }

    /// What the peer sends on a stream.
    #[inline]
    pub fn recv_stream(&mut self, id: StreamId) -> RecvStream<'_> {
        self.protocol.recv_stream(id)
    }

    /// What goes to the peer on a stream.
    #[inline]
    pub fn send_stream(&mut self, id: StreamId) -> SendStream<'_> {
        self.protocol.send_stream(id)
    }

    /// Streams with something that the peer has not acknowledged.
    pub fn send_streams(&mut self) -> usize {
        self.protocol.streams().send_streams()
    }

    /// Closes the connection, with a code of its owner.
    pub fn close(&mut self, now: Instant, code: VarInt, reason: &'static str) {
        congestion::closes(self.protocol.congestion_state());
        self.protocol.close(now, code, Bytes::from_static(reason.as_bytes()));
    }
}
