//! An HTTP/3 connection: the transport with what is spoken on it, whichever side of it is ours.
//!
//! Its fields are visible in this folder only. The adapters (`client::h3`, `upstream::h3`) and the driver (`quic_driver`) report what
//! happens, and ask.

use super::code;
use super::stream::{Receiving, Serves, Stream};
use crate::conn::{Client, Conn};
use crate::connections::Connections;
use crate::exchange::priority::Priority;
use crate::exchange::waste::WasteBudget;
use crate::quic::ConnectionTable;
use crate::quic::connection::Connection;
use crate::snapshot::ClientLimits;
use crate::upstream::group::LaneUpstream;
use quinn_proto::{Dir, StreamId};
use sealane_exchange::deadlines::{ConnectionState, ConnectionWait};
use sealane_http::h3::{Code, Peer, Side, UniReader};
use sealane_lane::{Context, Deadline, Key, Micros, Millis};
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;

/// Who is at the other end.
pub(super) enum Role {
    /// A client; it opens the streams.
    Client { client: Client, stay: Stay },
    /// An upstream's server; we open the streams.
    Server(Server),
}

/// Whether a client stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stay {
    /// As far as is known.
    Stays,
    /// It has been told that the end is near, and this is when it comes.
    Until(Millis),
    /// It is no longer among the lane's clients.
    CountedOut,
}

/// An upstream's server.
pub(super) struct Server {
    upstream: Rc<LaneUpstream>,
    /// Index into the upstream's servers.
    server: usize,
    requests: Requests,
    /// Bytes that it may send ahead on each of its streams.
    stream_window: usize,
}

/// What becomes of requests to a server.
enum Requests {
    /// They go over this connection. `waiting`: those that wait until it is made, or until the server allows more streams.
    /// `answered`: the server has answered one.
    Sent { waiting: VecDeque<Key>, answered: bool },
    /// The connection is lost, and they have gone elsewhere.
    GoneElsewhere,
}

/// The requests of a connection to a server that is lost, or was never made.
pub(crate) struct LostRequests {
    /// Those that were sent, and whether nothing of their responses has come.
    pub under_way: Vec<(Key, bool)>,
    /// Those that waited to be sent.
    pub waiting: VecDeque<Key>,
    /// The server has answered one.
    pub answered: bool,
}

/// ```text
/// Handshake ─► Open ─► Leaving ─► Closed ─► (drained) gone
///      └────────┴─────────────────▲
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The handshake is not over; early data may come.
    Handshake,
    Open,
    /// GOAWAY has gone out or come in: no new requests, the connection closes with the last of those there are. The
    /// handshake may still be under way ([`H3Connection::is_handshaking`]).
    Leaving,
    /// CONNECTION_CLOSE has gone out or come in. What is left is the protocol's: datagrams that still come.
    Closed,
}

pub(crate) struct H3Connection {
    pub(super) quic: Connection,
    pub(super) role: Role,
    pub(super) phase: Phase,
    pub(super) peer: Peer,
    /// The peer's own streams.
    pub(super) uni: Vec<(StreamId, UniReader)>,
    pub(super) control: Option<StreamId>,
    /// What waits to go out on our control stream.
    pub(super) control_out: Vec<u8>,
    pub(super) streams: Slab<Stream>,
    /// Bytes that were left on streams when they were last flushed.
    pub(super) waiting: usize,
    /// Bytes that the client had acknowledged when that was last looked at.
    pub(super) acknowledged: u64,
    pub(super) by_id: HashMap<StreamId, u32>,
    /// Priorities that came ahead of their requests.
    pub(super) early_priorities: VecDeque<(StreamId, Priority)>,
    /// Bounds how many priorities a client sends beyond one for each request.
    pub(super) priority_budget: WasteBudget,
    /// Counts turns of streams, for taking them in turn.
    pub(super) turns: u64,
    /// Streams that have something to send.
    pub(super) staged: Vec<u32>,
    /// In the lane's list of connections to flush.
    needs_flush: bool,
    deadline: Deadline,
    /// When the handshake began: a client's with its first packet, as over TCP with the accept.
    began: Micros,
    pub(super) idle_since: Millis,
    /// The stream id behind the last request that was looked at: what GOAWAY says.
    pub(super) next_id: u64,
}

impl H3Connection {
    /// One with a client, whose first packet came at `began`.
    pub fn with_client(quic: Connection, client: Client, now: Millis, began: Micros) -> Self {
        let role = Role::Client { client, stay: Stay::Stays };
        Self::new(quic, role, now, began)
    }

    /// One to a server of this group, which may send ahead `stream_window` bytes on each stream.
    pub fn with_server(
        quic: Connection,
        (upstream, server): (Rc<LaneUpstream>, usize),
        stream_window: usize,
        now: Millis,
        began: Micros,
    ) -> Self {
        let requests = Requests::Sent { waiting: VecDeque::new(), answered: false };
        Self::new(quic, Role::Server(Server { upstream, server, requests, stream_window }), now, began)
    }

    fn new(quic: Connection, role: Role, now: Millis, began: Micros) -> Self {
        let side = if matches!(role, Role::Client { .. }) { Side::Server } else { Side::Client };
        Self {
            quic,
            role,
            phase: Phase::Handshake,
            peer: Peer::new(side),
            uni: Vec::new(),
            control: None,
            control_out: Vec::new(),
            streams: Slab::new(),
            waiting: 0,
            acknowledged: 0,
            by_id: HashMap::new(),
            early_priorities: VecDeque::new(),
            priority_budget: WasteBudget::default(),
            turns: 0,
            staged: Vec::new(),
            needs_flush: false,
            deadline: Deadline::default(),
            began,
            idle_since: now,
            next_id: 0,
        }
    }

    /// What carries it.
    #[inline]
    pub fn transport(&self) -> &Connection {
        &self.quic
    }

    #[inline]
    pub fn transport_mut(&mut self) -> &mut Connection {
        &mut self.quic
    }

    /// The client at the other end.
    #[inline]
    pub fn client(&mut self) -> Option<&mut Client> {
        match &mut self.role {
            Role::Client { client, .. } => Some(client),
            Role::Server(_) => None,
        }
    }

    /// The same, to look at.
    #[inline]
    pub fn client_ref(&self) -> Option<&Client> {
        match &self.role {
            Role::Client { client, .. } => Some(client),
            Role::Server(_) => None,
        }
    }

    #[inline]
    pub fn is_client(&self) -> bool {
        matches!(self.role, Role::Client { .. })
    }

    /// The group and the server that it leads to.
    #[inline]
    pub fn server(&self) -> Option<(&Rc<LaneUpstream>, usize)> {
        match &self.role {
            Role::Server(server) => Some((&server.upstream, server.server)),
            Role::Client { .. } => None,
        }
    }

    /// Whether the handshake is under way, so that a request that has come may be a replay; also if the connection is leaving.
    #[inline]
    pub fn is_handshaking(&self) -> bool {
        !self.quic.is_established()
    }

    /// Whether a request may be sent over it, at once or when the handshake is over; or may come.
    pub fn takes_requests(&self) -> bool {
        matches!(self.phase, Phase::Handshake | Phase::Open)
    }

    /// Whether its handshake is over, and neither side has said that it leaves.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether it is closed: what is left of it is the transport's.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// The handshake is over. Returns how long that took.
    pub fn note_established(&mut self, now: Millis, exactly: Micros) -> Micros {
        if self.phase == Phase::Handshake {
            self.phase = Phase::Open;
        }
        self.idle_since = now;
        exactly - self.began
    }

    /// When the handshake began.
    pub fn began(&self) -> Micros {
        self.began
    }

    /// The peer has closed it, or it is lost.
    pub fn note_closed(&mut self) {
        self.phase = Phase::Closed;
    }

    /// Closes the connection.
    pub fn close(&mut self, now: Instant, why: Code, reason: &'static str) {
        if self.phase != Phase::Closed {
            self.phase = Phase::Closed;
            self.quic.close(now, code(why), reason);
        }
    }

    /// When the client's handshake must be over, while it goes on.
    pub fn handshake_until(&self, limits: &ClientLimits) -> Option<Millis> {
        self.is_handshaking().then(|| limits.until(ConnectionWait::Handshake, self.began / 1000))
    }

    /// The client is no longer among the lane's clients. False if it was not before.
    pub fn count_out(&mut self) -> bool {
        match &mut self.role {
            Role::Client { stay, .. } => std::mem::replace(stay, Stay::CountedOut) != Stay::CountedOut,
            Role::Server(_) => false,
        }
    }

    /// The server has answered a request.
    pub fn note_answer(&mut self) {
        if let Role::Server(Server { requests: Requests::Sent { answered, .. }, .. }) = &mut self.role {
            *answered = true;
        }
    }

    /// The server takes no more requests on it.
    pub fn note_leaving(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Leaving;
        }
    }

    /// The requests that wait until it is made, or until the server allows more streams.
    pub fn waiting_requests(&mut self) -> Option<&mut VecDeque<Key>> {
        match &mut self.role {
            Role::Server(Server { requests: Requests::Sent { waiting, .. }, .. }) => Some(waiting),
            Role::Server(_) | Role::Client { .. } => None,
        }
    }

    /// Those that the server has not looked at: on streams from this one on.
    pub fn unseen_requests(&self, from: u64) -> Vec<Key> {
        self.streams.iter().filter(|(_, s)| u64::from(s.id) >= from).filter_map(|(_, s)| s.exchange()).collect()
    }

    /// It is lost, or was never made: its requests go elsewhere, once.
    pub fn lose_requests(&mut self) -> Option<LostRequests> {
        let Role::Server(server) = &mut self.role else { return None };
        let requests = std::mem::replace(&mut server.requests, Requests::GoneElsewhere);
        let Requests::Sent { waiting, answered } = requests else { return None };
        self.phase = Phase::Closed;
        let awaited = |s: &Stream| s.receiving == Receiving::Awaited;
        let under_way = self.streams.iter().filter_map(|(_, s)| Some((s.exchange()?, awaited(s)))).collect();
        self.forget_streams();
        Some(LostRequests { under_way, waiting, answered })
    }

    /// Opens a stream for a request, if the server allows one.
    pub fn open_request(&mut self) -> Option<StreamId> {
        self.quic.open(Dir::Bi)
    }

    /// Whether a request has been sent over it, or has come.
    pub fn has_opened(&self) -> bool {
        self.next_id > 0
    }

    /// The peer has opened a stream of its own.
    pub fn add_uni(&mut self, id: StreamId) {
        self.uni.push((id, UniReader::default()));
    }

    /// One of its streams.
    #[inline]
    pub fn stream(&mut self, index: u32) -> Option<&mut Stream> {
        self.streams.get_mut(index as usize)
    }

    /// The exchange of one of its streams.
    #[inline]
    pub fn exchange_of(&self, index: u32) -> Option<Key> {
        self.streams.get(index as usize)?.exchange()
    }

    /// Whether nothing more is read of a stream.
    pub fn has_read_all(&self, stream: u32) -> bool {
        self.streams.get(stream as usize).is_some_and(|s| s.receiving.is_over() && s.rest.is_empty())
    }

    /// Bytes of responses that may wait on its streams, by exchange. The transport does not tell how many have come, so all count
    /// that the server may have sent.
    pub fn may_hold(&self) -> impl Iterator<Item = (Key, usize)> + '_ {
        let window = match &self.role {
            Role::Server(server) => server.stream_window,
            Role::Client { .. } => 0,
        };
        self.streams.iter().filter_map(move |(_, stream)| {
            let promised = stream.promised.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
            Some((stream.exchange()?, window.min(promised).max(stream.rest.len())))
        })
    }

    /// Bytes of memory that a client's connection holds, with what was read for it at upstreams.
    pub fn holds(&self) -> usize {
        self.client_ref().map_or(0, |client| client.held().bytes() + self.waiting + self.undelivered() + self.unread())
    }

    /// Bytes of responses that the transport may hold for a client: it does not tell how many have been acknowledged, but for those of
    /// whole responses.
    fn undelivered(&self) -> usize {
        let handed = self.streams.iter().fold(0, |sum: usize, (_, stream)| sum.saturating_add(stream.handed));
        handed.min(self.quic.send_window())
    }

    /// Bytes of requests that a client may have sent and nobody has taken. The transport does not tell, so all counts that has come
    /// for the connection since the stream began, less what was read of it, within the windows and what is promised.
    fn unread(&self) -> usize {
        let (windows, received) = (self.quic.windows(), self.quic.received());
        let unread = self.streams.iter().filter(|(_, stream)| !stream.receiving.is_over()).map(|(_, stream)| {
            let promised = stream.promised.unwrap_or(u64::MAX);
            let come = received.saturating_sub(stream.read).min(promised);
            usize::try_from(come).unwrap_or(usize::MAX).min(windows.stream) + stream.rest.len()
        });
        unread.fold(0, usize::saturating_add).min(windows.connection)
    }

    /// Exchanges whose requests are on its streams.
    pub fn exchanges(&self) -> Vec<Key> {
        self.streams.iter().filter_map(|(_, s)| s.exchange()).collect()
    }

    /// Its streams, and what each serves.
    pub fn all_streams(&self) -> Vec<(u32, Serves)> {
        self.streams.iter().map(|(index, s)| (index as u32, s.serves)).collect()
    }

    /// The exchange of a client's stream is over: what is left of the response must be through at `until`, and the client is told
    /// that no more of the request is needed (RFC 9114 §4.1).
    pub fn finish_response(&mut self, index: u32, now: Millis, until: Millis) {
        let Some(stream) = self.streams.get_mut(index as usize) else { return };
        stream.serves = Serves::Nothing { until };
        stream.sending.end();
        self.idle_since = now;
        self.refuse_rest(index, Code::NoError);
        self.stage(index);
    }

    /// The exchange of a request to the server is over. `complete`: so are request and response.
    pub fn finish_request(&mut self, index: u32, now: Millis, complete: bool) {
        self.idle_since = now;
        let Some(stream) = self.streams.get_mut(index as usize) else { return };
        stream.leave_exchange();
        if complete && stream.receiving.is_over() {
            stream.sending.end();
            self.stage(index);
        } else {
            self.reset(index, Code::RequestCancelled);
        }
    }

    /// How it stands, as far as its own deadlines go. `handshake_until`: when its handshake must be over, while it goes on.
    pub fn state(&mut self, now: Millis, handshake_until: Option<Millis>) -> ConnectionState {
        let is_idle = self.streams.is_empty() && handshake_until.is_none();
        if !is_idle {
            self.idle_since = now;
        }
        let idle_since = is_idle.then_some(self.idle_since);
        ConnectionState { handshake_until, idle_since, ..ConnectionState::default() }
    }

    /// Whether it goes away and has nothing left to do.
    pub fn is_done(&mut self) -> bool {
        self.phase == Phase::Leaving
            && self.may_close()
            && self.waiting_requests().is_none_or(|waiting| waiting.is_empty())
    }

    /// Whether a client that leaves may be told so: it has all of its responses. What the protocol still holds of them, or
    /// may have to send again, would be lost with the connection.
    fn may_close(&mut self) -> bool {
        let ours = usize::from(self.control.is_some());
        self.streams.is_empty() && !(self.is_client() && self.quic.send_streams() > ours)
    }

    /// It is to be flushed. False if it was to be before.
    #[inline]
    pub fn mark_for_flush(&mut self) -> bool {
        !std::mem::replace(&mut self.needs_flush, true)
    }

    /// It is being flushed.
    pub fn begin_flush(&mut self) {
        self.needs_flush = false;
    }

    /// It is looked at at this time or before.
    #[inline]
    pub fn look_by(&mut self, cx: &mut Context, key: Key, at: Millis) {
        self.deadline.set_no_later(cx, key, at);
    }

    /// It is looked at again at this time.
    pub fn expire_at(&mut self, cx: &mut Context, key: Key, at: Millis) {
        self.deadline.set(cx, key, at);
    }

    /// A timer has fired: whether it is time.
    pub fn fired(&mut self, cx: &mut Context, key: Key) -> bool {
        self.deadline.fired(cx, key)
    }

    /// Whether an entry of the timer wheel is the one at which it is looked at again.
    pub fn is_armed_for(&self, tick: u64) -> bool {
        self.deadline.is_armed_for(tick)
    }
}

impl ConnectionTable for Connections {
    #[inline]
    fn transport(&self, key: Key) -> Option<&Connection> {
        match self.get(key) {
            Some(Conn::Quic(q)) => Some(&q.quic),
            _ => None,
        }
    }

    #[inline]
    fn transport_mut(&mut self, key: Key) -> Option<&mut Connection> {
        self.quic(key).map(|q| &mut q.quic)
    }

    fn count(&self) -> usize {
        self.len()
    }
}

#[cfg(test)]
impl H3Connection {
    /// When it is looked at again.
    pub fn deadline(&self) -> Millis {
        self.deadline.at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::quic::QuicEndpoint;
    use quinn_proto::Side as QuicSide;
    use sealane_exchange::deadlines::GRACE;
    use sealane_http::h3::MessageReader;
    use sealane_tls::ClientContext;
    use sealane_tls::quic::QuicClient;
    use std::sync::Arc;

    /// Connections to a server and with a client, whose handshakes go on.
    fn connections() -> [H3Connection; 2] {
        let (settings, _published) =
            fixtures::settings(fixtures::snapshot(fixtures::limits(), vec![fixtures::upstream(1)]));
        let (mut endpoint, cx) = (QuicEndpoint::default(), Context::new().unwrap());
        let mut transport = || {
            let client = QuicClient::new(&ClientContext::new(&fixtures::client_policy()).unwrap()).unwrap();
            let config = quinn_proto::ClientConfig::new(Arc::new(client));
            endpoint.connect(&cx, &settings, config, ([127, 0, 0, 1], 9).into(), "a.example").unwrap()
        };
        let server = H3Connection::with_server(transport(), (fixtures::group(settings.lane()), 0), 1000, 5, 5000);
        let client = fixtures::client(&settings.listeners()[0], "192.0.2.1:5");
        [server, H3Connection::with_client(transport(), client, 5, 5000)]
    }

    /// A stream for a request whose head must have come at 700.
    fn stream(number: u64) -> Stream {
        let id = StreamId::new(QuicSide::Client, Dir::Bi, number);
        Stream::new(id, MessageReader::new(Side::Server, 100), 700)
    }

    #[test]
    fn the_requests_of_a_lost_connection_go_elsewhere_once() {
        let [mut q, _] = connections();
        let requests = [1, 2, 3].map(Key::from_u64);
        for (number, request) in requests[..2].iter().enumerate() {
            let index = q.add(stream(number as u64));
            q.stream(index).unwrap().serve(*request);
        }
        q.waiting_requests().unwrap().push_back(requests[2]);
        q.note_answer();
        q.stream(1).unwrap().receive(b"x".to_vec());
        assert_eq!((q.exchanges(), q.unseen_requests(4)), (requests[..2].to_vec(), vec![requests[1]]));
        let held: Vec<_> = q.may_hold().collect();
        assert_eq!(held, [(requests[0], 1000), (requests[1], 1000)]);
        let LostRequests { under_way, waiting, answered } = q.lose_requests().unwrap();
        assert_eq!((under_way, waiting), (vec![(requests[0], true), (requests[1], true)], [requests[2]].into()));
        assert!(answered && q.is_closed() && q.exchanges().is_empty() && q.has_opened());
        assert!(q.lose_requests().is_none() && q.waiting_requests().is_none());
    }

    #[test]
    fn a_stream_serves_an_exchange_between_its_head_and_its_last_bytes() {
        let [_, mut q] = connections();
        let index = q.add(stream(0));
        assert_eq!(q.all_streams(), [(index, Serves::Nothing { until: 700 })]);
        let exchange = Key::from_u64(8);
        q.stream(index).unwrap().serve(exchange);
        assert_eq!(
            (q.all_streams(), q.exchange_of(index)),
            (vec![(index, Serves::Exchange(exchange))], Some(exchange))
        );
        q.finish_response(index, 1000, 1500);
        assert_eq!(q.all_streams(), [(index, Serves::Nothing { until: 1500 })]);
        assert!(q.has_read_all(index) && q.has_staged() && q.stream(index).unwrap().is_served());
    }

    #[test]
    fn a_connection_is_idle_without_streams_once_its_handshake_is_over() {
        let [_, mut q] = connections();
        let limits = fixtures::limits();
        assert_eq!(q.handshake_until(&limits), Some(1005), "it began at 5 ms");
        assert_eq!(q.state(10, Some(1005)).idle_since, None);
        assert_eq!(q.state(20, None).idle_since, Some(10));
        let index = q.add(stream(0));
        assert_eq!(q.state(30, None).idle_since, None);
        q.reset(index, Code::RequestCancelled);
        assert_eq!(q.state(40, None).idle_since, Some(30));
    }

    #[test]
    fn a_client_is_told_of_the_end_and_counted_out_once() {
        let [mut server, mut q] = connections();
        assert!(q.takes_requests() && !q.is_open());
        assert_eq!(q.note_established(50, 50_000), 45_000);
        assert!(q.is_open());
        q.leave_soon(1000);
        q.leave_in_time(1000 + GRACE - 1);
        assert!(q.is_open(), "what it sends until it has heard of it is served");
        q.leave_in_time(1000 + GRACE);
        assert!(!q.takes_requests() && !q.is_closed());
        assert!(q.count_out() && !q.count_out());
        assert!(!server.count_out() && server.server().is_some() && server.client().is_none());
    }
}
