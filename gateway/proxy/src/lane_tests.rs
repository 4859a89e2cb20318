//! A whole lane, driven by hand: events, turns and messages come in the order that a test wants, without a loop, a thread or
//! a clock. Sockets are real. Each test holds something that no part can promise alone.

use crate::access::Verdict;
use crate::client::connection::hello_arrived;
use crate::client::h1::h1_client_finish;
use crate::client::h2_connection::{h2_client_begin, h2_exchanges};
use crate::client::h3::h3_read;
use crate::client::h3_connection::h3_client_accepted;
use crate::client::state::ClientPhase;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::Count;
use crate::exchange::Exchange;
use crate::exchange::executor::{abort_exchange, handshake_done, perform, refuse, request_sent, takes_place};
use crate::exchange::expiry::check_deadlines;
use crate::exchange::response::server_lost;
use crate::exchange::streams::{ClientStream, Later, UpstreamStream, client_is_handshaking, client_reset};
use crate::fixtures::{
    client_policy, connection, lane, limits, listener, quic_listener, snapshot, tls, tls_server, upstream,
};
use crate::h3::stream::Stream;
use crate::lifecycle::end_all;
use crate::limits::{KeyHasher, Rate, RateKey, RateLimit};
use crate::memory::free_memory;
use crate::memory::{Held, NARROW_WINDOW, WINDOW_BUDGET, Window, grant_window};
use crate::mirrors::{Mirror, copy_body, copy_complete, copy_request};
use crate::quic::UDP;
use crate::quic::admission::Accepted;
use crate::quic_driver::quic_timeout;
use crate::scratch::{READ_SIZE, Scratch};
use crate::service::{Message, Proxy};
use crate::snapshot::{Action, ClientLimits, EarlyRequests, Listener, Routing, Snapshot, Upstream, UpstreamHttp};
use crate::transport::{ReadResult, Transport};
use crate::tunnel_port::{FirstBytes, TunnelPort};
use crate::upstream::connection::upstream_handshake;
use crate::upstream::group::LaneUpstream;
use crate::upstream::h2_connection::{h2_join, h2_upstream_begin, h2_upstream_take};
use crate::upstream::phase::{Answer, Making, Purpose, Step, UpstreamConnection, UpstreamPhase};
use quinn_proto::{Dir, Side as QuicSide, StreamId};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use sealane_exchange as machine;
use sealane_exchange::deadlines::{LINGER, LINGER_BYTES};
use sealane_exchange::{Event, Head, Kind, Loss};
use sealane_http::h3::{MessageReader, Side, encode_request};
use sealane_http::{BodyLength, ParseError, Scheme, Version};
use sealane_lane::{After, Context, Key, Published, Ready, Service};
use sealane_route::{NameMap, SiteMap};
use sealane_sys::allocations;
use sealane_tls::policy::{Group, TicketKeys};
use sealane_tls::{ClientContext, Records, ServerContext, Session};
use std::collections::VecDeque;
use std::hash::RandomState;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const GET: machine::Request = machine::Request {
    kind: Kind::Message,
    has_body: false,
    is_safe: true,
    is_idempotent: true,
    is_early: false,
    is_marked_early: false,
    max_drained: LINGER_BYTES,
};
const READ: Ready = Ready { read: true, write: false, peer_closed: false, error: false };
const WRITE: Ready = Ready { read: false, write: true, peer_closed: false, error: false };

struct Lane {
    proxy: Proxy,
    cx: Context,
    published: Arc<Published<Snapshot>>,
}

/// A request of a client that is connected to a lane.
struct Request {
    exchange: Key,
    _peer: OwnedFd,
}

impl Lane {
    fn new(snapshot: Snapshot) -> Self {
        let published = Published::new(snapshot);
        let mut cx = Context::new().unwrap();
        let (proxy, _) = lane(&published, &mut cx);
        Self { proxy, cx, published }
    }

    /// Turns as the loop makes them, until the lane would sleep or stop.
    fn turn(&mut self) -> After {
        for _ in 0..100 {
            match self.proxy.turn(&mut self.cx) {
                After::Again => {}
                after => return after,
            }
        }
        panic!("a lane that never sleeps")
    }

    fn ready(&mut self, key: Key, ready: Ready) {
        self.proxy.ready(&mut self.cx, key.to_u64(), ready);
    }

    fn group(&self) -> Rc<LaneUpstream> {
        self.proxy.settings.lane().upstreams[0].clone()
    }

    /// A request that has come over HTTP/1.1 and is not forwarded yet.
    fn request(&mut self, facts: machine::Request) -> Request {
        self.request_over(facts, |key, _| ClientStream::H1(key), |_| {})
    }

    /// A request that has come on such a stream, for the code behind the client's adapter, and with this head.
    fn request_over(
        &mut self,
        facts: machine::Request,
        stream: fn(Key, u32) -> ClientStream,
        change: impl FnOnce(&mut Exchange),
    ) -> Request {
        let Self { proxy, .. } = self;
        let (conn, peer) = connection(&proxy.settings.listeners()[0]);
        let client = proxy.connections.insert(conn);
        proxy.admission.arrived(&proxy.counters);
        let mut x = proxy.exchanges.fresh(stream(client, 0));
        x.request_mut().version = Version::Http11;
        x.request_mut().set_method(if facts.has_body { b"POST" } else { b"GET" }).unwrap();
        x.request_mut().set_target(b"/").unwrap();
        x.request_mut().set_authority(b"a.example").unwrap();
        change(&mut x);
        let body = if facts.has_body { BodyLength::Known(1 << 20) } else { BodyLength::None };
        x.begin_as(facts, body, proxy.settings.lane().upstreams.first().cloned());
        assert!(x.report(Event::Accepted).is_empty(), "the gateway's rules accept it");
        let exchange = proxy.exchanges.insert(x);
        let Some(client) = proxy.connections.client(client) else { unreachable!() };
        client.serve_last(exchange);
        Request { exchange, _peer: peer }
    }

    fn event(&mut self, request: &Request, event: Event) {
        let actions = self.proxy.exchanges.get_mut(request.exchange).unwrap().report(event);
        perform(&mut self.proxy, &mut self.cx, request.exchange, actions);
    }

    /// Where a request's server stands; `None` if it has none, and panics if the request is over.
    fn upstream_stream(&self, request: &Request) -> Option<UpstreamStream> {
        self.proxy.exchanges.get(request.exchange).expect("a request that is not over").upstream_stream()
    }

    fn is_over(&self, request: &Request) -> bool {
        self.proxy.exchanges.get(request.exchange).is_none()
    }

    /// A connection to the first server, which is in this phase, and its other end.
    fn upstream_connection(&mut self, phase: UpstreamPhase, transport: Transport) -> Key {
        let is_idle = phase.is_idle();
        let upstream_conn = UpstreamConnection::new(transport, (self.group(), 0), phase);
        let key = self.proxy.connections.insert(Conn::Upstream(Box::new(upstream_conn)));
        if is_idle {
            self.group().put_idle(0, key);
            self.proxy.counters.count(Count::Pooled);
        }
        key
    }

    /// A connection to the first server over which HTTP/2 begins, and which no request waits for.
    fn h2_connection(&mut self, socket: OwnedFd) -> Key {
        let purpose = Purpose::ToShare { waiting: VecDeque::new(), window: Window::Wide };
        let key = self.upstream_connection(handshake(purpose), Transport::new(socket));
        self.group().share(0, key);
        h2_upstream_begin(&mut self.proxy, &mut self.cx, key);
        key
    }

    /// Takes the connection that the lane has begun for a request, at the server's end.
    fn accept(&mut self, request: &Request, server: &TcpListener) -> (Key, TcpStream) {
        let Some(UpstreamStream::H1(key)) = self.upstream_stream(request) else { panic!("no connection was begun") };
        let (socket, _) = server.accept().unwrap();
        self.ready(key, WRITE);
        (key, socket)
    }
}

/// A group of one server that is there, with one place, and this for changes.
fn limited_group(change: impl FnOnce(&mut Upstream)) -> (TcpListener, Upstream) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut group = upstream(1);
    group.servers[0].address = server.local_addr().unwrap();
    group.servers[0].state.set_grant(0, 1);
    group.max_connections = Some(1);
    group.queue = 10;
    change(&mut group);
    (server, group)
}

/// A connection whose handshake is not over.
fn handshake(purpose: Purpose) -> UpstreamPhase {
    let step = Step::Handshake;
    UpstreamPhase::Making(Box::new(Making { step, began: 0, purpose, syn: None, early: false, refused: false }))
}

fn socket_pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap()
}

/// Finding 3: work that was postponed ends an exchange after the lane has looked at its events.
#[test]
fn a_place_that_becomes_free_in_a_turn_is_given_away_in_that_turn() {
    let (server, group) = limited_group(|_| {});
    let mut lane = Lane::new(snapshot(limits(), vec![group]));
    let (first, second) = (lane.request(GET), lane.request(GET));
    lane.event(&first, Event::Forward);
    lane.event(&second, Event::Forward);
    let (key, mut socket) = lane.accept(&first, &server);
    assert_eq!(lane.turn(), After::Sleep);
    assert!(lane.upstream_stream(&second).is_none(), "the server has one place");
    let mut request = [0; 1000];
    assert!(socket.read(&mut request).unwrap() > 0);
    socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    // The response is read by postponed work, as it is for a client that had no room.
    let transport = lane.proxy.connections.upstream(key).unwrap().transport_mut();
    poll(&mut [PollFd::new(&transport.fd, PollFlags::IN)], None).unwrap();
    transport.note(READ);
    lane.proxy.exchanges.go_on_later(Later::Server(first.exchange));
    assert_eq!(lane.turn(), After::Sleep);
    assert!(lane.is_over(&first));
    assert!(lane.upstream_stream(&second).is_some(), "the lane sleeps while a request waits for a server that is free");
}

/// Finding 3: a request that has waited for long enough, and for which there is a place now, is not refused.
#[test]
fn room_counts_before_the_time_that_a_request_has_waited() {
    let (_server, group) = limited_group(|group| group.queue_timeout = Duration::ZERO);
    let mut lane = Lane::new(snapshot(limits(), vec![group]));
    let (first, second) = (lane.request(GET), lane.request(GET));
    lane.event(&first, Event::Forward);
    lane.event(&second, Event::Forward);
    refuse(&mut lane.proxy, &mut lane.cx, first.exchange, 503);
    lane.turn();
    assert!(lane.upstream_stream(&second).is_some());
    assert_eq!(lane.proxy.counters.value(Count::QueueTimeouts), 0);
}

/// The table of deadlines says how long a request waits for room, for the timer of the queue and for that of the client.
#[test]
fn a_request_that_has_waited_for_room_is_refused_at_the_time_of_the_table() {
    for timeout in [0, 300] {
        let (_server, group) = limited_group(|group| group.queue_timeout = Duration::from_millis(timeout));
        let mut lane = Lane::new(snapshot(limits(), vec![group]));
        let (first, second) = (lane.request(GET), lane.request(GET));
        lane.event(&first, Event::Forward);
        lane.event(&second, Event::Forward);
        assert_eq!(check_deadlines(&mut lane.proxy, &mut lane.cx, second.exchange), Some(timeout.max(1)));
        assert!(!lane.is_over(&second), "there may be room at the end of the turn");
        lane.turn();
        assert_eq!(lane.is_over(&second), timeout == 0);
        assert_eq!(lane.proxy.counters.value(Count::QueueTimeouts), (timeout == 0).into());
        assert_eq!(lane.proxy.counters.value(Count::UpstreamTimeouts), 0, "nobody has failed");
    }
}

/// Finding 12: under load those who wait would starve.
#[test]
fn nobody_overtakes_those_who_wait_for_a_server() {
    let (_server, group) = limited_group(|_| {});
    let mut lane = Lane::new(snapshot(limits(), vec![group]));
    let requests = [GET; 3].map(|facts| lane.request(facts));
    lane.event(&requests[0], Event::Forward);
    lane.event(&requests[1], Event::Forward);
    refuse(&mut lane.proxy, &mut lane.cx, requests[0].exchange, 503);
    // There is a place now, but somebody waits for it.
    lane.event(&requests[2], Event::Forward);
    lane.turn();
    assert!(lane.upstream_stream(&requests[1]).is_some() && lane.upstream_stream(&requests[2]).is_none());
}

/// Finding 2: the next server's room is not that of the one before.
#[test]
fn an_upload_that_is_sent_again_is_not_blocked_by_the_server_before() {
    let mut lane = Lane::new(snapshot(limits(), vec![upstream(1)]));
    let request = lane.request(machine::Request { has_body: true, is_safe: false, ..GET });
    let x = lane.proxy.exchanges.get_mut(request.exchange).unwrap();
    let _ = x.report(Event::Forward);
    let phase = UpstreamPhase::Busy(request.exchange, Answer::Awaited { kept: false });
    let key = lane.upstream_connection(phase, Transport::new(socket_pair().0));
    let server = UpstreamStream::H1(key);
    let x = lane.proxy.exchanges.get_mut(request.exchange).unwrap();
    let actions = x.report(Event::Connected(machine::Switching::Any));
    request_sent(&mut lane.proxy, &mut lane.cx, request.exchange, server, actions);
    // The server takes nothing of the body, and goes away.
    let x = lane.proxy.exchanges.get_mut(request.exchange).unwrap();
    x.request_body_mut().block(0);
    x.leave_connection();
    let _ = x.report(Event::Lost(Loss::Unprocessed));
    let _ = x.report(Event::RetryGranted);
    lane.proxy.exchanges.take_later();
    let x = lane.proxy.exchanges.get_mut(request.exchange).unwrap();
    let actions = x.report(Event::Connected(machine::Switching::Any));
    request_sent(&mut lane.proxy, &mut lane.cx, request.exchange, server, actions);
    assert!(!lane.proxy.exchanges.get(request.exchange).unwrap().request_body().is_blocked());
    let later = lane.proxy.exchanges.take_later();
    assert!(matches!(later[..], [Later::Client(key)] if key == request.exchange), "the client is read again");
}

/// Finding 6: no client's end would tell such a lane to go on.
#[test]
fn a_raised_limit_resumes_a_lane_that_was_full() {
    let most = |max_connections| ClientLimits { max_connections, ..limits() };
    let mut lane = Lane::new(snapshot(most(1), Vec::new()));
    let Lane { proxy, cx, .. } = &mut lane;
    proxy.admission.arrived(&proxy.counters);
    proxy.admission.pause_full(cx, &proxy.settings, &proxy.counters);
    assert!(!proxy.admission.is_listening());
    lane.published.publish(snapshot(most(1), Vec::new()));
    lane.turn();
    assert!(!lane.proxy.admission.is_listening(), "it is full still");
    lane.published.publish(snapshot(most(2), Vec::new()));
    lane.turn();
    assert!(lane.proxy.admission.is_listening());
}

/// A reload takes a listener away, and another one brings it back: its connections need not end.
#[test]
fn a_connection_whose_listener_comes_back_is_left_behind_no_more() {
    let mut lane = Lane::new(snapshot(limits(), Vec::new()));
    let (conn, _peer) = connection(&lane.proxy.settings.listeners()[0]);
    let key = lane.proxy.connections.insert(conn);
    lane.proxy.admission.arrived(&lane.proxy.counters);
    for listeners in [0, 1] {
        let mut config = snapshot(limits(), Vec::new());
        config.listeners.truncate(listeners);
        config.sockets.truncate(listeners);
        lane.published.publish(config);
        lane.turn();
        assert_eq!(lane.proxy.connections.is_current(key), listeners == 1);
    }
}

/// Finding 7: the client of such a relay has gone, so that nothing else holds the lane.
#[test]
fn a_lane_that_drains_sends_relayed_bytes_to_their_end() {
    const BYTES: usize = 2 << 20;
    let mut lane = Lane::new(snapshot(limits(), vec![upstream(1)]));
    let (socket, peer) = socket_pair();
    let mut transport = Transport::new(socket);
    transport.stage = vec![7; BYTES];
    transport.finish_sending();
    let key = lane.upstream_connection(UpstreamPhase::Closing, transport);
    lane.proxy.connections.mark_for_flush(key);
    let limit = Duration::from_secs(3600);
    lane.proxy.message(&mut lane.cx, Message::Drain { limit, upgraded: limit, successor: None });
    let (mut got, mut buffer) = (0, vec![0; 64 * 1024]);
    loop {
        let after = lane.turn();
        while let Ok(n) = rustix::io::read(&peer, &mut buffer)
            && n > 0
        {
            got += n;
        }
        if after == After::Stop {
            break;
        }
        lane.ready(key, WRITE);
    }
    assert_eq!(got, BYTES, "the lane stopped before all was sent");
}

/// Finding 19: the same socket twice fails as a descriptor limit would, halfway.
#[test]
fn a_listen_that_fails_halfway_watches_nothing_and_is_tried_again() {
    let socket = || {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        Arc::new(OwnedFd::from(socket))
    };
    let listening = |sockets: Vec<Arc<OwnedFd>>| {
        let mut snapshot = snapshot(limits(), Vec::new());
        snapshot.listeners = (1..=sockets.len() as u32).map(|id| Arc::new(listener(id))).collect();
        snapshot.sockets = sockets.into_iter().map(|s| vec![s]).collect();
        snapshot
    };
    let (one, two) = (socket(), socket());
    let mut lane = Lane::new(listening(vec![one.clone()]));
    assert!(lane.proxy.admission.is_listening());
    lane.published.publish(listening(vec![two.clone(), one.clone(), one.clone()]));
    lane.turn();
    assert!(!lane.proxy.admission.is_listening());
    assert!(!lane.cx.timers.is_empty(), "a timer tries again");
    for socket in [&one, &two] {
        // What is watched cannot be watched again.
        lane.cx.watch_listener(socket, 0).expect("a socket that is not watched");
        lane.cx.unwatch(socket);
    }
    let Lane { proxy, cx, .. } = &mut lane;
    assert!(proxy.admission.listen(cx, &proxy.settings).is_err());
    lane.published.publish(listening(vec![one, two]));
    lane.turn();
    assert!(lane.proxy.admission.is_listening());
}

/// A listening socket gives the option to those that it accepts, so a lane need not set it on each.
#[test]
fn nothing_that_a_client_is_sent_waits_for_an_acknowledgement() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    let mut listening = snapshot(limits(), Vec::new());
    listening.listeners = vec![Arc::new(listener(1))];
    let socket = Arc::new(OwnedFd::from(socket));
    listening.sockets = vec![vec![socket.clone()]];
    let lane = Lane::new(listening);
    assert!(lane.proxy.admission.is_listening());
    let _client = TcpStream::connect(address).unwrap();
    let accepted = rustix::net::accept(&socket).unwrap();
    assert!(rustix::net::sockopt::tcp_nodelay(&accepted).unwrap());
}

/// Finding 9: the client that is cut off has not left.
#[test]
fn a_call_that_its_server_cancels_counts_as_the_servers() {
    let mut lane = Lane::new(snapshot(limits(), vec![upstream(1)]));
    let request = lane.request(GET);
    let x = lane.proxy.exchanges.get_mut(request.exchange).unwrap();
    let _ = (x.report(Event::Forward), x.report(Event::Connected(machine::Switching::Any)));
    server_lost(&mut lane.proxy, &mut lane.cx, request.exchange, Loss::Cancelled);
    assert!(lane.is_over(&request));
    let counters = &lane.proxy.counters;
    assert_eq!((counters.value(Count::Status5xx), counters.value(Count::ClientAborts)), (1, 0), "a 502");
    assert_eq!(counters.value(Count::UpstreamAborts), 1);
}

/// The deadline of a call passes at its server: over HTTP/3 as over HTTP/2, the server is not to blame.
#[test]
fn a_server_may_cancel_calls_over_http3_and_nothing_else() {
    // The server is this gateway, too: a response that it cuts off is a cancelled one.
    for is_grpc in [true, false] {
        let (mut server, address) = h3_server(limits());
        let mut state = None;
        let mut client = h3_client(address, |group| state = Some(group.servers[0].state.clone()));
        let first = client.request(GET);
        client.event(&first, Event::Forward);
        go_on_over_quic(&mut client, &mut server);
        assert!(client.is_over(&first));
        let call = client.request_over(GET, ClientStream::H2, |x| {
            let content: &[u8] = if is_grpc { b"application/grpc" } else { b"text/html" };
            x.request_mut().fields.push(b"Content-Type", content).unwrap();
        });
        client.event(&call, Event::Forward);
        client.turn();
        server.proxy.ready(&mut server.cx, UDP, READ);
        // Its response waits for the end of the turn.
        let servers = server.quic();
        let q = server.proxy.connections.quic(servers).unwrap();
        let (index, _) = q.all_streams().into_iter().next().expect("the request has come");
        assert!(q.stream(index).is_some());
        client_reset(&mut server.proxy, &mut server.cx, ClientStream::H3(servers, index), false);
        server.turn();
        client.datagrams();
        assert!(client.is_over(&call));
        let counters = &client.proxy.counters;
        assert_eq!(counters.value(Count::UpstreamAborts), 1);
        let failure = state.unwrap().lane(0).unwrap().last_failure();
        assert_eq!(failure.is_none(), is_grpc, "{failure:?}");
    }
}

/// What a client has pipelined behind its last request may be in the socket still.
#[test]
fn a_connection_that_closes_with_bytes_in_its_socket_lingers() {
    for (has_more, is_over, lingers) in [(false, false, false), (true, false, true), (true, true, false)] {
        let mut lane = Lane::new(snapshot(limits(), Vec::new()));
        let request = lane.request(GET);
        let key = lane.proxy.exchanges.get(request.exchange).unwrap().client_stream().conn();
        let Proxy { connections, exchanges, settings, .. } = &mut lane.proxy;
        let transport = connections.client(key).unwrap().transport_mut();
        (transport.readable, transport.ended) = (has_more, is_over);
        h1_client_finish(connections, exchanges, settings, &mut lane.cx, key, true, false);
        assert_eq!(connections.client(key).unwrap().closes(), Some(lingers));
    }
}

fn found_too_early(lane: &mut Lane) -> Request {
    let request = lane.request(machine::Request { is_early: true, ..GET });
    lane.event(&request, Event::Forward);
    let x = lane.proxy.exchanges.get_mut(request.exchange).unwrap();
    let _ = x.report(Event::Connected(machine::Switching::Any));
    // The server answers 425. The client's handshake goes on.
    let actions = x.report(Event::Head(Head { status: 425, switches: false, confirms: false }));
    let actions = actions.without(machine::Action::AwaitHandshake);
    perform(&mut lane.proxy, &mut lane.cx, request.exchange, actions);
    request
}

/// Finding 10: early requests without a Finished would fill the server.
#[test]
fn a_request_that_waits_for_the_handshake_has_no_place_at_a_server() {
    let (_server, group) = limited_group(|_| {});
    let mut lane = Lane::new(snapshot(limits(), vec![group]));
    let request = found_too_early(&mut lane);
    assert!(!lane.is_over(&request));
    assert_eq!(lane.group().under_way(0), 0);
}

/// Finding 13: every retry counts against the budget.
#[test]
fn a_request_that_was_too_early_is_sent_again_only_within_the_budget() {
    for (per_second, again) in [(0, false), (10, true)] {
        let (_server, mut group) = limited_group(|_| {});
        group.retry_per_second = per_second;
        let mut lane = Lane::new(snapshot(limits(), vec![group]));
        let request = found_too_early(&mut lane);
        handshake_done(&mut lane.proxy, &mut lane.cx, request.exchange);
        let counters = &lane.proxy.counters;
        assert_eq!(
            (counters.value(Count::Retries), counters.value(Count::RetriesDenied)),
            (again.into(), (!again).into())
        );
        assert_eq!(lane.is_over(&request), !again, "the client is told to send it again itself");
    }
}

/// An address that may be forged uses up nothing of what its owner may have.
#[test]
fn a_forged_address_uses_up_no_share() {
    let most = ClientLimits { max_requests_per_client: 1, ..limits() };
    let mut lane = Lane::new(snapshot(most, vec![upstream(1)]));
    let request = lane.request(machine::Request { is_early: true, ..GET });
    for proven in [false, true] {
        let Proxy { connections, exchanges, admission, settings, .. } = &mut lane.proxy;
        let x = exchanges.get_mut(request.exchange).unwrap();
        // Its hello came in a SYN, with or without a cookie.
        connections.client(x.client_stream().conn()).unwrap().transport_mut().allow((!proven).then_some(0));
        let client = connections.client_of(x.client_stream()).unwrap();
        let listener = settings.listeners()[0].clone();
        let verdict = takes_place(connections, x, client, &listener, admission, settings);
        assert_eq!(verdict, if proven { Verdict::Admitted } else { Verdict::TooEarly });
        assert_eq!(x.routed().is_counted(), proven);
    }
}

/// Finding 14: a client that has proven its address has been let in before.
#[test]
fn a_handshake_that_waited_for_a_proof_is_counted_once() {
    let rate = RateLimit {
        name: "handshakes".into(),
        key: RateKey::Address,
        rate: Rate { count: 1, per: Duration::from_secs(3600), burst: 1 },
        ipv4_prefix: 32,
        ipv6_prefix: 64,
        entries: 64,
        exempt: None,
        hasher: KeyHasher::Own(RandomState::new()),
    };
    let mut config = snapshot(limits(), Vec::new());
    let mut secure = listener(1);
    secure.tls = Some(tls());
    config.listeners = vec![Arc::new(secure)];
    config.routing = Arc::new(Routing { handshake_rate: Some(rate), ..Routing::default() });
    let mut lane = Lane::new(config);
    let Lane { proxy, cx, .. } = &mut lane;
    let (conn, _peer) = connection(&proxy.settings.listeners()[0]);
    let Conn::Client(client) = conn else { unreachable!() };
    let mut client = Box::new(client.in_handshake(0));
    Session::client(&ClientContext::new(&client_policy()).unwrap(), proxy.scratch.empty_records()).unwrap();
    client.adopt(proxy.scratch.records().to_vec());
    // Its hello came in the SYN, and used up the rate. The third packet of the TCP handshake comes now.
    let peer = client.client().peer().ip();
    assert!(proxy.admission.allows_handshake(cx, peer, &proxy.counters));
    client.await_proof();
    client.transport_mut().allow(Some(0));
    let key = proxy.connections.insert(Conn::Client(client));
    proxy.admission.arrived(&proxy.counters);
    lane.ready(key, WRITE);
    assert_eq!(lane.proxy.counters.value(Count::HandshakesLimited), 0);
    assert_eq!(lane.proxy.connections.client(key).unwrap().phase(), ClientPhase::Admission);
}

/// The first bytes decide where a connection goes. What the tunnel has no room for is closed and counted.
#[test]
fn the_tunnel_gets_what_begins_as_its_own() {
    let (given, taken) = std::sync::mpsc::sync_channel(1);
    let judge = |start: &[u8]| match start {
        [] | [0] => FirstBytes::Incomplete,
        [0, ..] => FirstBytes::Tunnel,
        _ => FirstBytes::Other,
    };
    let mut config = snapshot(limits(), Vec::new());
    let mut shared = listener(1);
    (shared.tls, shared.tunnel) = (Some(tls()), true);
    config.listeners = vec![Arc::new(shared)];
    config.tunnel = Some(Arc::new(TunnelPort::new(judge, move |client| given.try_send(client).is_ok())));
    let mut lane = Lane::new(config);
    let mut begin = |bytes: &[u8]| {
        let Lane { proxy, cx, .. } = &mut lane;
        let (conn, peer) = connection(&proxy.settings.listeners()[0]);
        let Conn::Client(client) = conn else { unreachable!() };
        let mut client = Box::new(client.in_handshake(10_000));
        client.adopt(bytes.to_vec());
        let key = proxy.connections.insert(Conn::Client(client));
        proxy.admission.arrived(&proxy.counters);
        hello_arrived(proxy, cx, key, true);
        let counts = [Count::TunnelClients, Count::TunnelClientsRefused].map(|count| proxy.counters.value(count));
        (proxy.connections.get(key).is_some(), counts, peer)
    };
    let (is_there, counts, _peer) = begin(&[0]);
    assert!(is_there && counts == [0, 0], "it may be either");
    let (is_there, counts, peer) = begin(&[0, 14, 0x38]);
    assert!(!is_there && counts == [1, 0]);
    let client = taken.try_recv().unwrap();
    assert_eq!((&client.bytes[..], client.remote), (&[0, 14, 0x38][..], ([192, 0, 2, 1], 5).into()));
    rustix::io::write(&client.fd, b"open").unwrap();
    assert_eq!(received(&peer), "open");
    assert_eq!(begin(&[0, 1]).1, [2, 0]);
    let (is_there, counts, _peer) = begin(&[0, 2]);
    assert!(!is_there && counts == [2, 1], "the tunnel has no room");
    assert_eq!(begin(&[22]).1, [2, 1]);
    assert_eq!(begin(b"\xff\xff").1, [2, 1]);
    assert_eq!(taken.try_iter().count(), 1);
}

/// Goes on with one end of a TLS connection.
fn go_on(end: &mut Transport, scratch: &mut Scratch) {
    end.note(READ);
    while matches!(end.read(scratch, READ_SIZE).unwrap(), ReadResult::Progress) {}
    end.flush(scratch).unwrap();
}

/// Both ends of a TLS connection whose handshake is over; the client's has not read the tickets.
fn tls_pair(scratch: &mut Scratch) -> (Transport, Transport) {
    let (client, mut server) = tls_pair_before_the_end(scratch);
    go_on(&mut server, scratch);
    assert!(!client.is_handshaking() && !server.is_handshaking());
    (client, server)
}

/// Both ends of a TLS connection whose handshake is over for the client; the server has not read the end of it.
fn tls_pair_before_the_end(scratch: &mut Scratch) -> (Transport, Transport) {
    let (socket, peer) = socket_pair();
    let (mut client, mut server) = (Transport::new(socket), Transport::new(peer));
    let session = Session::client(&ClientContext::new(&client_policy()).unwrap(), scratch.empty_records()).unwrap();
    client.start_client(session, scratch);
    client.flush(scratch).unwrap();
    server.read_raw(scratch).unwrap();
    let keys = TicketKeys { epoch: 1, masters: vec![[1; 32]], lifetime: 60, reset: [2; 32] };
    let context = ServerContext::new(&tls().policies[0], &keys).unwrap();
    server.start_server(Session::server(&context, false).unwrap(), scratch).unwrap();
    server.flush(scratch).unwrap();
    go_on(&mut client, scratch);
    assert!(!client.is_handshaking() && server.is_handshaking());
    (client, server)
}

/// The head of the request of a lane's client, as it goes to a server.
const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
const HELLO_BACK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A lane that has a ticket of the one server of its group, which gets safe requests as early data.
fn lane_with_a_ticket() -> (Lane, TcpListener, ServerContext) {
    let (listener, group) = limited_group(|group| {
        group.tls = Some(Arc::new(client_policy()));
        group.early_data = Some(EarlyRequests::Safe);
        group.retry_per_second = 1;
    });
    let lane = Lane::new(snapshot(limits(), vec![group]));
    let context = tls_server(1, 1000, Group::X25519);
    let mut hello = Records::default();
    let mut client = Session::client(&lane.group().context(false).unwrap().unwrap(), &mut hello).unwrap();
    let mut server = Session::server(&context, false).unwrap();
    let flight = pass(&mut server, hello.filled()).0;
    let end = pass(&mut client, flight.filled()).0;
    let tickets = pass(&mut server, end.filled()).0;
    pass(&mut client, tickets.filled());
    (lane, listener, context)
}

/// Gives a session what the other end has sent: what it sends then, and what it got as early data and after the handshake.
fn pass(session: &mut Session, sent: &[u8]) -> (Records, Vec<u8>, Vec<u8>) {
    let (mut out, mut early, mut plain) = (Records::default(), Vec::new(), Vec::new());
    let read = session.read(&mut sent.to_vec(), &mut plain, &mut early, &mut out).unwrap();
    assert_eq!((read.consumed, read.closed), (sent.len(), false));
    (out, early, plain)
}

/// What a lane has sent on a connection, at the server's end.
fn server_input(socket: &mut TcpStream) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let n = socket.read(&mut bytes).unwrap();
    bytes.truncate(n);
    bytes
}

/// How many connections began with early data and came to this (accepted, rejected, failed), and how many requests were sent again.
fn early_counts(lane: &Lane) -> [u64; 4] {
    [Count::UpstreamEarlyAccepted, Count::UpstreamEarlyRejected, Count::UpstreamEarlyFailed, Count::Retries]
        .map(|count| lane.proxy.counters.value(count))
}

/// The server responds with its part of the handshake and resets the connection: the rest of the handshake cannot be sent to it, but
/// its response is there.
#[test]
fn a_server_may_answer_early_data_and_leave() {
    let (mut lane, listener, context) = lane_with_a_ticket();
    let request = lane.request(GET);
    lane.event(&request, Event::Forward);
    let (key, mut socket) = lane.accept(&request, &listener);
    lane.turn();
    let mut server = Session::server(&context, true).unwrap();
    let (mut flight, early, _) = pass(&mut server, &server_input(&mut socket));
    assert_eq!(early, HEAD);
    server.write(HELLO_BACK, false, &mut flight).unwrap();
    socket.write_all(flight.filled()).unwrap();
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    drop(socket);
    lane.ready(key, Ready { peer_closed: true, ..READ });
    lane.turn();
    assert!(lane.is_over(&request));
    assert_eq!(early_counts(&lane), [1, 0, 0, 0]);
    assert_eq!(lane.proxy.counters.value(Count::UpstreamAborts), 0);
}

#[test]
fn a_request_whose_early_data_is_rejected_is_sent_again_on_the_same_connection() {
    let (mut lane, listener, _) = lane_with_a_ticket();
    let request = lane.request(GET);
    lane.event(&request, Event::Forward);
    let (key, mut socket) = lane.accept(&request, &listener);
    lane.turn();
    // It does not know the ticket.
    let mut server = Session::server(&tls_server(2, 1000, Group::X25519), true).unwrap();
    let (flight, early, _) = pass(&mut server, &server_input(&mut socket));
    assert!(early.is_empty());
    socket.write_all(flight.filled()).unwrap();
    lane.ready(key, READ);
    lane.turn();
    let (mut answer, early, plain) = pass(&mut server, &server_input(&mut socket));
    assert_eq!((&early[..], &plain[..]), (&b""[..], HEAD));
    server.write(HELLO_BACK, false, &mut answer).unwrap();
    socket.write_all(answer.filled()).unwrap();
    lane.ready(key, READ);
    lane.turn();
    assert!(lane.is_over(&request));
    assert_eq!(early_counts(&lane), [0, 1, 0, 0]);
    assert!(lane.group().early_data(0, lane.cx.now()).is_some(), "that is no reason to send none");
}

#[test]
fn a_request_whose_handshake_with_early_data_is_refused_goes_once_more_without() {
    let (mut lane, listener, context) = lane_with_a_ticket();
    let request = lane.request(GET);
    lane.event(&request, Event::Forward);
    let (key, mut socket) = lane.accept(&request, &listener);
    lane.turn();
    assert!(!server_input(&mut socket).is_empty());
    // The alert handshake_failure.
    socket.write_all(&[21, 3, 3, 0, 2, 2, 40]).unwrap();
    drop(socket);
    lane.ready(key, Ready { peer_closed: true, ..READ });
    assert!(lane.proxy.connections.get(key).is_none());
    let (_key, mut socket) = lane.accept(&request, &listener);
    lane.turn();
    let mut server = Session::server(&context, false).unwrap();
    let (flight, early, _) = pass(&mut server, &server_input(&mut socket));
    assert!(early.is_empty() && !flight.is_empty());
    assert_eq!(early_counts(&lane), [0, 0, 1, 1]);
    assert_eq!(lane.proxy.counters.value(Count::UpstreamConnectFailures), 0, "the server has not failed");
    assert!(lane.group().early_data(0, lane.cx.now()).is_none());
}

/// It may have processed the request, and no other server could get it.
#[test]
fn a_server_that_closes_after_early_data_does_not_get_it_again_beside_the_tries() {
    let (mut lane, listener, _) = lane_with_a_ticket();
    let request = lane.request(GET);
    lane.event(&request, Event::Forward);
    let (key, mut socket) = lane.accept(&request, &listener);
    lane.turn();
    assert!(!server_input(&mut socket).is_empty());
    drop(socket);
    lane.ready(key, Ready { peer_closed: true, ..READ });
    lane.turn();
    assert!(lane.proxy.connections.get(key).is_none() && lane.is_over(&request));
    assert_eq!(early_counts(&lane), [0, 0, 1, 0]);
    assert_eq!(lane.proxy.counters.value(Count::UpstreamAborts), 1);
    assert!(lane.group().early_data(0, lane.cx.now()).is_none());
}

/// Finding 16: epoll is edge-triggered, so no other event tells of the end behind the tickets.
#[test]
fn a_pooled_connection_that_ends_behind_late_tickets_is_closed() {
    let mut lane = Lane::new(snapshot(limits(), vec![upstream(1)]));
    let (client, server) = tls_pair(&mut lane.proxy.scratch);
    // The tickets that follow the client's Finished, and the server's end, come as one event.
    let (tickets, _) = recv(&client.fd, &mut [0; 64][..], RecvFlags::PEEK).unwrap();
    assert!(tickets > 0, "the server has sent no tickets");
    drop(server);
    let key = lane.upstream_connection(UpstreamPhase::Idle, client);
    lane.ready(key, Ready { peer_closed: true, ..READ });
    assert!(lane.proxy.connections.get(key).is_none(), "it stays in the pool");
    assert!(lane.group().take_idle(0).is_none());
}

/// Finding 16: an end that is known, and that has not been read yet.
#[test]
fn a_pooled_connection_that_is_ending_is_not_used_again() {
    let (_server, group) = limited_group(|_| {});
    let mut lane = Lane::new(snapshot(limits(), vec![group]));
    let mut transport = Transport::new(socket_pair().0);
    transport.note(Ready { peer_closed: true, ..READ });
    let ending = lane.upstream_connection(UpstreamPhase::Idle, transport);
    let request = lane.request(GET);
    lane.event(&request, Event::Forward);
    assert!(lane.proxy.connections.get(ending).is_none());
    assert!(matches!(lane.upstream_stream(&request), Some(UpstreamStream::H1(key)) if key != ending));
}

/// A reload puts a group in the place of another one: pooled connections go to it as far as it has room, and each counts once.
#[test]
fn pooled_connections_go_to_the_group_that_takes_the_place_of_theirs() {
    let (before, mut after) = (upstream(1), upstream(1));
    after.servers[0].state = before.servers[0].state.clone();
    after.keepalive = 1;
    let mut lane = Lane::new(snapshot(limits(), vec![before]));
    let old = lane.group();
    let connections = [socket_pair(), socket_pair()]
        .map(|(socket, peer)| (lane.upstream_connection(UpstreamPhase::Idle, Transport::new(socket)), peer));
    lane.published.publish(snapshot(limits(), vec![after]));
    lane.turn();
    assert!(old.take_idle(0).is_none());
    assert_eq!(lane.proxy.counters.value(Count::Pooled), 1);
    let mut open = connections.iter().map(|(key, _)| *key).filter(|key| lane.proxy.connections.get(*key).is_some());
    assert_eq!((open.next(), open.next()), (lane.group().take_idle(0), None));
}

/// HTTP/2 was expected, and the server has changed its mind: those who waited go on, in the same try, but not for ever.
#[test]
fn requests_that_waited_for_http2_go_on_over_http1_within_bounds() {
    for (earlier, goes_on) in [(0, true), (machine::MAX_NOT_TAKEN, false)] {
        let (_server, group) = limited_group(|group| group.http = UpstreamHttp::Auto);
        let mut lane = Lane::new(snapshot(limits(), vec![group]));
        let (client, _peer) = tls_pair(&mut lane.proxy.scratch);
        let request = lane.request(GET);
        let purpose = Purpose::ToShare { waiting: [request.exchange].into(), window: Window::Wide };
        let key = lane.upstream_connection(handshake(purpose), client);
        lane.group().note_h2(0, true);
        lane.group().share(0, key);
        let x = lane.proxy.exchanges.get_mut(request.exchange).unwrap();
        let _ = x.report(Event::Forward);
        (0..earlier).for_each(|_| assert!(!x.report(Event::NotTaken).is_empty()));
        x.await_connection(UpstreamStream::Waiting(key));
        x.response_body_mut().begin_wait(12_345);
        upstream_handshake(&mut lane.proxy, &mut lane.cx, key);
        assert!(lane.proxy.connections.get(key).is_none());
        assert_eq!(lane.is_over(&request), !goes_on, "`tries` is 1");
        if goes_on {
            assert!(matches!(lane.upstream_stream(&request), Some(UpstreamStream::H1(_))));
            let x = lane.proxy.exchanges.get(request.exchange).unwrap();
            assert_eq!((x.attempts(), x.response_body().since()), (0, 12_345), "the time of the try runs on");
        }
        assert_eq!(lane.proxy.counters.value(Count::Retries), 0);
    }
}

/// A server whose SETTINGS allow no request would otherwise be connected to without end, once per round trip.
#[test]
fn a_connection_that_takes_no_request_is_a_failed_try() {
    let (_server, group) = limited_group(|group| group.http = UpstreamHttp::Two);
    let mut lane = Lane::new(snapshot(limits(), vec![group]));
    let request = lane.request(machine::Request { kind: Kind::WebSocket, ..GET });
    let _ = lane.proxy.exchanges.get_mut(request.exchange).unwrap().report(Event::Forward);
    let (socket, peer) = socket_pair();
    let key = lane.h2_connection(socket);
    assert!(h2_join(&mut lane.proxy, &mut lane.cx, request.exchange, Window::Wide));
    // SETTINGS_MAX_CONCURRENT_STREAMS = 0 and SETTINGS_ENABLE_CONNECT_PROTOCOL = 1.
    let settings = [0, 0, 12, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 8, 0, 0, 0, 1];
    rustix::io::write(&peer, &settings).unwrap();
    lane.ready(key, READ);
    lane.turn();
    let counters = &lane.proxy.counters;
    assert_eq!((counters.value(Count::UpstreamConnects), counters.value(Count::Retries)), (0, 0), "`tries` is 1");
    assert!(lane.is_over(&request));
    assert!(lane.proxy.connections.get(key).is_none(), "no request could use it");
}

/// A server whose SETTINGS come before `h2` has written the request: it would wait in `h2` until `first_byte_timeout`.
#[test]
fn a_request_that_settings_hold_back_for_ever_is_a_failed_try() {
    let (_server, group) = limited_group(|group| group.http = UpstreamHttp::Two);
    let mut lane = Lane::new(snapshot(limits(), vec![group]));
    let request = lane.request(GET);
    let _ = lane.proxy.exchanges.get_mut(request.exchange).unwrap().report(Event::Forward);
    let (socket, _peer) = socket_pair();
    let key = lane.h2_connection(socket);
    assert!(h2_join(&mut lane.proxy, &mut lane.cx, request.exchange, Window::Wide));
    let mut settings = vec![0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0];
    h2_upstream_take(&mut lane.proxy, &mut lane.cx, key, &mut settings);
    assert!(lane.is_over(&request), "`tries` is 1");
    assert!(lane.proxy.connections.get(key).is_none(), "no request could use it");
}

/// Finding 8: WebSockets that wait for a server's SETTINGS are as many as requests that wait for a connection may be.
#[test]
fn no_more_websockets_wait_for_settings_than_may() {
    let (_server, group) = limited_group(|group| group.http = UpstreamHttp::Two);
    let mut lane = Lane::new(snapshot(limits(), vec![group]));
    let request = lane.request(machine::Request { kind: Kind::WebSocket, ..GET });
    let _ = lane.proxy.exchanges.get_mut(request.exchange).unwrap().report(Event::Forward);
    let (socket, _peer) = socket_pair();
    let key = lane.h2_connection(socket);
    let joined =
        (0..1000).take_while(|_| h2_join(&mut lane.proxy, &mut lane.cx, request.exchange, Window::Wide)).count();
    assert_eq!(joined, 128);
    assert_eq!(lane.proxy.connections.upstream(key).unwrap().waiting().unwrap().len(), joined);
    // One that is called off makes room, as over HTTP/3.
    let one_more = lane.request(machine::Request { kind: Kind::WebSocket, ..GET });
    let _ = lane.proxy.exchanges.get_mut(one_more.exchange).unwrap().report(Event::Forward);
    assert!(!h2_join(&mut lane.proxy, &mut lane.cx, one_more.exchange, Window::Wide));
    abort_exchange(&mut lane.proxy, &mut lane.cx, request.exchange);
    assert!(h2_join(&mut lane.proxy, &mut lane.cx, one_more.exchange, Window::Wide));
    assert_eq!(lane.proxy.connections.upstream(key).unwrap().waiting().unwrap().len(), 1);
}

/// A request that was lost with a kept connection is not sent again for the age of a second one, over any version of HTTP.
#[test]
fn after_a_kept_connection_was_lost_older_ones_are_not_used() {
    // Over HTTP/3: the connection that is there has begun at 0 ms.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    for (lost_at, again) in [(None, true), (Some(0), true), (Some(5), false)] {
        let mut lane = h3_client(silent.local_addr().unwrap(), |_| {});
        let (first, second) = (lane.request(GET), lane.request(GET));
        lane.event(&first, Event::Forward);
        let x = lane.proxy.exchanges.get_mut(second.exchange).unwrap();
        lost_at.into_iter().for_each(|at| x.routed_mut().lost_connection(at));
        lane.event(&second, Event::Forward);
        let (old, new) = (lane.upstream_stream(&first), lane.upstream_stream(&second));
        assert!(matches!(new, Some(UpstreamStream::Waiting(_))), "{new:?}");
        assert_eq!(old == new, again, "{lost_at:?}");
    }
    // Over HTTP/2, and over HTTP/1.1, where it is a new connection in any case.
    for (lost_at, again) in [(None, true), (Some(0), true), (Some(5), false)] {
        let (_server, group) = limited_group(|group| group.http = UpstreamHttp::Two);
        let mut lane = Lane::new(snapshot(limits(), vec![group]));
        let request = lane.request(GET);
        let x = lane.proxy.exchanges.get_mut(request.exchange).unwrap();
        let _ = x.report(Event::Forward);
        lost_at.into_iter().for_each(|at| x.routed_mut().lost_connection(at));
        lane.h2_connection(socket_pair().0);
        assert_eq!(h2_join(&mut lane.proxy, &mut lane.cx, request.exchange, Window::Wide), again, "{lost_at:?}");
    }
    for (lost_at, again) in [(None, true), (Some(0), false)] {
        let (_server, group) = limited_group(|_| {});
        let mut lane = Lane::new(snapshot(limits(), vec![group]));
        let kept = lane.upstream_connection(UpstreamPhase::Idle, Transport::new(socket_pair().0));
        let request = lane.request(GET);
        let x = lane.proxy.exchanges.get_mut(request.exchange).unwrap();
        lost_at.into_iter().for_each(|at| x.routed_mut().lost_connection(at));
        lane.event(&request, Event::Forward);
        assert_eq!(lane.upstream_stream(&request) == Some(UpstreamStream::H1(kept)), again, "{lost_at:?}");
    }
}

/// A client opens a hundred streams, takes nothing of the responses, and so makes the gateway hold what the servers' windows allow.
#[test]
fn the_windows_of_servers_count_against_a_clients_connection() {
    const WIDE: u32 = 256 << 10;
    let mut lane = Lane::new(snapshot(limits(), vec![upstream(1)]));
    let requests: Vec<Request> = (0..100).map(|_| lane.request(GET)).collect();
    let client = lane.proxy.exchanges.get(requests[0].exchange).unwrap().client_stream().conn();
    for (n, request) in (0..).zip(&requests[..99]) {
        lane.proxy.exchanges.get_mut(request.exchange).unwrap().comes_on(ClientStream::H2(client, n));
    }
    let Proxy { connections, exchanges, .. } = &mut lane.proxy;
    let mut grant = |n: usize| grant_window(connections, exchanges, requests[n].exchange, WIDE);
    let wide = (0..99).filter(|n| grant(*n) == Window::Wide).count();
    assert_eq!(wide, WINDOW_BUDGET / WIDE as usize);
    assert_eq!((grant(0), grant(50)), (Window::Wide, Window::Narrow), "one that is sent again has one window");
    assert_eq!(grant(99), Window::Wide, "another client has a budget of its own");
    let held = |connections: &mut Connections| connections.client(client).unwrap().client().held();
    assert_eq!((held(connections).windows(), held(connections).bytes()), (WINDOW_BUDGET, 0));
    // One that is over makes room for another.
    exchanges.note_held(connections, requests[0].exchange, Held::default());
    let again = [50, 0].map(|n: usize| grant_window(connections, exchanges, requests[n].exchange, WIDE));
    assert_eq!(again, [Window::Wide, Window::Narrow]);
    assert_eq!([Window::Wide, Window::Narrow].map(|window| window.bytes(WIDE)), [WIDE, NARROW_WINDOW]);
    // So does the end of the exchange, whatever it is.
    refuse(&mut lane.proxy, &mut lane.cx, requests[1].exchange, 503);
    let Proxy { connections, exchanges, .. } = &mut lane.proxy;
    assert_eq!(grant_window(connections, exchanges, requests[0].exchange, WIDE), Window::Wide);
}

/// Copies of requests are nobody's: they go before the connection of any client does.
#[test]
fn copies_are_given_up_first_when_memory_is_short() {
    let mut lane = Lane::new(snapshot(limits(), vec![upstream(1)]));
    let mirror = Mirror {
        upstream: 0,
        percent: 100,
        max_body: 1 << 20,
        max_requests: 2,
        timeout: Duration::from_secs(3600),
        remove: Vec::new(),
    };
    let post = machine::Request { has_body: true, is_safe: false, is_idempotent: false, ..GET };
    let copied = |lane: &mut Lane| {
        let request = lane.request(post);
        let listener = lane.proxy.settings.listeners()[0].clone();
        copy_request(&mut lane.proxy, &mut lane.cx, request.exchange, &listener, &mirror);
        let Proxy { exchanges, counters, .. } = &mut lane.proxy;
        copy_body(exchanges.get_mut(request.exchange).unwrap(), counters, &[0; 100_000], false);
        request
    };
    // One whose body is coming, and one that is under way, whose time the table of deadlines has.
    let (coming, complete) = (copied(&mut lane), copied(&mut lane));
    copy_complete(&mut lane.proxy, &mut lane.cx, complete.exchange);
    let copy =
        lane.proxy.exchanges.keys().into_iter().find(|key| {
            matches!(lane.proxy.exchanges.get(*key).map(|x| x.client_stream()), Some(ClientStream::Mirror(_)))
        });
    let stream = lane.proxy.exchanges.get(copy.expect("a copy")).unwrap().client_stream();
    assert_eq!(lane.proxy.connections.copy_until(stream), Some(3_600_000));
    let counted = |lane: &Lane| {
        let c = &lane.proxy.counters;
        [Count::MirrorsFull, Count::MirrorsMemory, Count::MirrorsFailed, Count::MemoryResets]
            .map(|count| c.value(count))
    };
    let third = copied(&mut lane);
    assert_eq!(counted(&lane), [1, 0, 0, 0], "there is no place for a third");
    free_memory(&mut lane.proxy, &mut lane.cx);
    assert_eq!(counted(&lane), [1, 1, 1, 0]);
    assert!([&coming, &complete, &third].iter().all(|request| !lane.is_over(request)), "clients do not notice");
    free_memory(&mut lane.proxy, &mut lane.cx);
    assert_eq!(counted(&lane), [1, 1, 1, 0], "there is nothing more to give");
    let _places = (copied(&mut lane), copied(&mut lane));
    assert_eq!(counted(&lane), [1, 1, 1, 0], "their places are free again");
}

/// A lane that clients reach over HTTP/3, and its address.
fn h3_server(limits: ClientLimits) -> (Lane, SocketAddr) {
    h3_server_for(limits, 10)
}

/// The same, for so many streams of a client at once.
fn h3_server_for(limits: ClientLimits, max_streams: u32) -> (Lane, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let mut config = snapshot(limits, Vec::new());
    config.listeners = vec![Arc::new(quic_listener(socket, tls(), max_streams, 100))];
    (Lane::new(config), address)
}

/// A lane whose only server is to be asked over HTTP/3.
fn h3_client(address: SocketAddr, change: impl FnOnce(&mut Upstream)) -> Lane {
    let mut group = upstream(1);
    group.servers[0].address = address;
    (group.http, group.tls) = (UpstreamHttp::Three, Some(Arc::new(client_policy())));
    change(&mut group);
    Lane::new(snapshot(limits(), vec![group]))
}

impl Lane {
    /// Reads the datagrams that have come to its only UDP socket.
    fn datagrams(&mut self) {
        self.proxy.ready(&mut self.cx, UDP, READ);
        self.turn();
    }

    /// Its only connection over QUIC.
    fn quic(&mut self) -> Key {
        let connections = &mut self.proxy.connections;
        connections.keys().into_iter().find(|key| connections.quic(*key).is_some()).expect("a connection over QUIC")
    }
}

/// A connection may leave during its handshake: at `max_requests`, at a reload, in a drain. What has come by then may be a replay.
#[test]
fn a_request_before_the_end_of_a_handshake_is_early_whether_the_connection_leaves_or_not() {
    for leaves in [false, true] {
        let (mut lane, address) = h3_server(ClientLimits { handshake_timeout: Duration::ZERO, ..limits() });
        let mut client = h3_client(address, |_| {});
        let request = client.request(GET);
        client.event(&request, Event::Forward);
        client.turn();
        // The client does not answer what this lane answers.
        lane.datagrams();
        let key = lane.quic();
        let q = lane.proxy.connections.quic(key).unwrap();
        let id = StreamId::new(QuicSide::Client, Dir::Bi, 0);
        let index = q.add(Stream::new(id, MessageReader::new(Side::Server, 1000), 1000));
        let mut head = Vec::new();
        let sent = &client.proxy.exchanges.get(request.exchange).unwrap().request();
        encode_request(&mut head, sent, BodyLength::None, Scheme::Https, false);
        q.stream(index).unwrap().receive(head);
        if leaves {
            q.leave();
        }
        h3_read(&mut lane.proxy, &mut lane.cx, key, index);
        assert_eq!(lane.proxy.counters.value(Count::Requests), 1);
        assert!(client_is_handshaking(&lane.proxy.connections, ClientStream::H3(key, index)));
        assert_eq!(lane.proxy.counters.value(Count::ClientTimeouts), 0);
        quic_timeout(&mut lane.proxy, &mut lane.cx, key);
        assert_eq!(lane.proxy.counters.value(Count::ClientTimeouts), 1, "`handshake_timeout` applies");
    }
}

/// Reads and answers datagrams, in turn, until nothing comes any more.
fn go_on_over_quic(a: &mut Lane, b: &mut Lane) {
    for _ in 0..10 {
        a.datagrams();
        b.datagrams();
    }
}

/// The beginning of a connection over HTTP/2: a POST whose body does not come.
fn http2_post() -> Vec<u8> {
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    // `:method`, `:scheme`, `:path`, `:authority`.
    let headers = [0, 0, 14, 1, 4, 0, 0, 0, 1, 0x83, 0x87, 0x84, 0x41, 9];
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..], &headers, b"a.example"].concat()
}

/// A request that comes in one read with the end of the handshake has begun before that end is noted.
#[test]
fn the_end_of_a_handshake_postpones_no_deadline_of_a_request_over_http2() {
    let mut lane =
        Lane::new(snapshot(ClientLimits { header_timeout: Duration::from_secs(10), ..limits() }, Vec::new()));
    let (mut client, server) = tls_pair_before_the_end(&mut lane.proxy.scratch);
    client.stage.extend(http2_post());
    client.flush(&mut lane.proxy.scratch).unwrap();
    let (conn, _peer) = connection(&lane.proxy.settings.listeners()[0]);
    let Conn::Client(client_conn) = conn else { unreachable!() };
    let mut client_conn = Box::new(client_conn.in_handshake(10_000));
    *client_conn.transport_mut() = server;
    let key = lane.proxy.connections.insert(Conn::Client(client_conn));
    lane.proxy.admission.arrived(&lane.proxy.counters);
    let Proxy { connections, settings, counters, .. } = &mut lane.proxy;
    h2_client_begin(connections, settings, counters, &mut lane.cx, key);
    assert_eq!(lane.proxy.connections.client(key).unwrap().deadline(), 10_000);
    lane.ready(key, READ);
    lane.turn();
    let client_conn = lane.proxy.connections.client(key).unwrap();
    assert!(client_conn.is_established());
    assert_eq!(client_conn.deadline(), 250, "a quarter of `idle_timeout`");
    assert_eq!(h2_exchanges(&mut lane.proxy.connections, key).len(), 1);
}

/// What comes of a connection before its handshake is over is deferred, and postponed work may end the handshake first.
#[test]
fn a_failure_that_was_deferred_ends_a_connection_whose_handshake_ends_before() {
    let mut lane = Lane::new(snapshot(limits(), Vec::new()));
    let (_client, server) = tls_pair_before_the_end(&mut lane.proxy.scratch);
    let (conn, _peer) = connection(&lane.proxy.settings.listeners()[0]);
    let Conn::Client(client_conn) = conn else { unreachable!() };
    let mut client_conn = Box::new(client_conn.in_handshake(10_000));
    *client_conn.transport_mut() = server;
    client_conn.transport_mut().note(READ);
    assert!(client_conn.defer(Ready { error: true, ..READ }));
    let key = lane.proxy.connections.insert(Conn::Client(client_conn));
    lane.proxy.admission.arrived(&lane.proxy.counters);
    lane.proxy.exchanges.go_on_later(Later::Conn(key));
    lane.turn();
    assert_eq!(lane.proxy.counters.value(Count::FullTls13), 1);
    assert!(lane.proxy.connections.get(key).is_none(), "nobody is left to answer");
}

#[test]
fn the_end_of_a_handshake_postpones_no_deadline_of_a_request_over_http3() {
    let (mut lane, address) = h3_server(limits());
    let mut client = h3_client(address, |_| {});
    let request = client.request(GET);
    client.event(&request, Event::Forward);
    client.turn();
    lane.datagrams();
    let key = lane.quic();
    lane.proxy.connections.look_by(&mut lane.cx, ClientStream::H3(key, 0), 5);
    go_on_over_quic(&mut client, &mut lane);
    let q = lane.proxy.connections.quic(key).unwrap();
    assert!(!q.is_handshaking());
    assert_eq!(q.deadline(), 5);
}

/// As over TCP, where it begins with the accept: a client that has waited for too long for crypto time gets none.
#[test]
fn the_time_for_a_handshake_over_quic_begins_with_the_first_packet() {
    let (since, timeout) = (500_000, 1_000_000);
    for late in [false, true] {
        let (mut lane, address) = h3_server(limits());
        let mut client = h3_client(address, |_| {});
        let request = client.request(GET);
        client.event(&request, Event::Forward);
        client.turn();
        lane.proxy.ready(&mut lane.cx, UDP, READ);
        assert!(lane.proxy.quic.has_waiting());
        let Proxy { quic, admission, settings, counters, .. } = &mut lane.proxy;
        let now = (lane.cx.instant(), if late { timeout + 1000 } else { timeout });
        let accepted = quic.accept_next(now, admission, settings, counters).expect("a client");
        let counters = &lane.proxy.counters;
        assert_eq!(counters.value(Count::ClientTimeouts), late.into());
        assert_eq!(counters.value(Count::Accepted), (!late).into());
        match accepted {
            Err(rejected) => assert!(late && rejected.reason == "timeout"),
            Ok(accepted) => {
                let accepted = Accepted { since, ..accepted };
                let key = h3_client_accepted(&mut lane.proxy, &mut lane.cx, accepted);
                let q = lane.proxy.connections.quic(key).unwrap();
                assert_eq!((q.began(), q.deadline()), (since, (since + timeout) / 1000));
            }
        }
    }
}

/// Otherwise requests would wait again and again for a connection that does not come about, until `connect_timeout` is over.
#[test]
fn a_connection_over_quic_may_take_as_long_as_a_try() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    for (try_timeout, within) in [(None, 1000), (Some(200), 200), (Some(5000), 1000)] {
        let mut lane = h3_client(silent.local_addr().unwrap(), |group| {
            group.try_timeout = try_timeout.map(Duration::from_millis);
        });
        let request = lane.request(GET);
        lane.event(&request, Event::Forward);
        let key = lane.quic();
        assert_eq!(lane.proxy.connections.quic(key).unwrap().deadline(), within);
        quic_timeout(&mut lane.proxy, &mut lane.cx, key);
        assert!(lane.group().h3_is_down(0, 0), "TCP is next");
        assert_eq!(lane.group().h3_connection(0, Window::Wide), None);
    }
}

/// A server that completes no handshake, or allows no streams, makes no queue without end; those who find it full go over TCP.
#[test]
fn no_more_requests_wait_for_a_connection_over_quic_than_may() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut lane = h3_client(silent.local_addr().unwrap(), |_| {});
    let forward = |lane: &mut Lane| {
        let request = lane.request(GET);
        lane.event(&request, Event::Forward);
        request
    };
    let mut requests: Vec<Request> = (0..128).map(|_| forward(&mut lane)).collect();
    let key = lane.quic();
    assert!(requests.iter().all(|request| lane.upstream_stream(request) == Some(UpstreamStream::Waiting(key))));
    let over_tcp = forward(&mut lane);
    assert!(lane.is_over(&over_tcp) || matches!(lane.upstream_stream(&over_tcp), Some(UpstreamStream::H1(_))));
    // Those whose clients have left make room, wherever they are in the queue.
    for request in requests.drain(1..100) {
        abort_exchange(&mut lane.proxy, &mut lane.cx, request.exchange);
    }
    let one_more = forward(&mut lane);
    assert_eq!(lane.upstream_stream(&one_more), Some(UpstreamStream::Waiting(key)));
    let waiting = lane.proxy.connections.quic(key).unwrap().waiting_requests().unwrap();
    assert_eq!(waiting.len(), 128 - 99 + 1);
    assert!(!lane.group().h3_is_down(0, 0));
}

/// A server that goes away gracefully says so twice: that it will, and which requests it has not looked at. Both may come in one read.
#[test]
fn the_second_goaway_of_a_read_says_which_requests_are_sent_again() {
    let (mut server, address) = h3_server(limits());
    let mut client = h3_client(address, |group| (group.tries, group.retry_per_second) = (2, 10));
    let answered = client.request(GET);
    client.event(&answered, Event::Forward);
    go_on_over_quic(&mut client, &mut server);
    assert!(client.is_over(&answered));
    let (key, servers) = (client.quic(), server.quic());
    let q = server.proxy.connections.quic(servers).unwrap();
    q.leave_soon(0);
    q.leave();
    server.proxy.connections.mark_for_flush(servers);
    server.turn();
    let post = client.request(machine::Request { is_safe: false, is_idempotent: false, ..GET });
    client.event(&post, Event::Forward);
    assert!(matches!(client.upstream_stream(&post), Some(UpstreamStream::H3(at, _)) if at == key));
    client.datagrams();
    assert!(!client.is_over(&post), "it may be sent again, whatever its method");
    assert!(matches!(client.upstream_stream(&post), Some(UpstreamStream::Waiting(at)) if at != key));
}

/// The next request's head has begun to come when the last response ends: it has `header_timeout`, not `keepalive_timeout`.
#[test]
fn a_header_block_has_its_time_over_http2_when_the_last_stream_ends() {
    let (header_timeout, keepalive_timeout) = (Duration::from_secs(10), Duration::from_secs(75));
    for (is_unfinished, until) in [(false, 75_000), (true, 10_000)] {
        let mut lane = Lane::new(snapshot(ClientLimits { header_timeout, keepalive_timeout, ..limits() }, Vec::new()));
        let (conn, peer) = connection(&lane.proxy.settings.listeners()[0]);
        let key = lane.proxy.connections.insert(conn);
        lane.proxy.admission.arrived(&lane.proxy.counters);
        let Proxy { connections, settings, counters, .. } = &mut lane.proxy;
        h2_client_begin(connections, settings, counters, &mut lane.cx, key);
        let mut sent = http2_post();
        if is_unfinished {
            // HEADERS of the next stream, without END_HEADERS.
            sent.extend([0, 0, 1, 1, 0, 0, 0, 0, 3, 0x83]);
        }
        rustix::io::write(&peer, &sent).unwrap();
        lane.ready(key, READ);
        let h2 = |lane: &mut Lane| {
            let connections = &mut lane.proxy.connections;
            (h2_exchanges(connections, key), connections.client(key).unwrap().deadline())
        };
        let (exchanges, at) = h2(&mut lane);
        assert_eq!((exchanges.len(), at), (1, 250));
        abort_exchange(&mut lane.proxy, &mut lane.cx, exchanges[0]);
        assert_eq!(h2(&mut lane), (Vec::new(), until));
    }
}

/// What a drain cuts off, no client has aborted.
#[test]
fn what_a_drain_cuts_off_is_counted_as_such() {
    let mut lane = Lane::new(snapshot(limits(), vec![upstream(1)]));
    let requests = [lane.request(GET), lane.request(GET)];
    abort_exchange(&mut lane.proxy, &mut lane.cx, requests[0].exchange);
    end_all(&mut lane.proxy, &mut lane.cx);
    let counters = &lane.proxy.counters;
    assert_eq!((counters.value(Count::ClientAborts), counters.value(Count::DrainAborts)), (1, 1));
}

/// A lane that forwards all requests to a server, and the server's socket.
fn forwarding_lane() -> (Lane, TcpListener) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut group = upstream(1);
    group.servers[0].address = server.local_addr().unwrap();
    (lane_for(group), server)
}

/// A lane that forwards all requests to this group.
fn lane_for(group: Upstream) -> Lane {
    let mut hosts = NameMap::default();
    hosts.insert("*".parse().unwrap(), 0).unwrap();
    let sites = Arc::new(SiteMap::new(&NameMap::default(), &hosts, [], |_, host| host));
    let actions = Arc::new([Action::Proxy { upstream: 0 }]);
    let mut config = snapshot(limits(), vec![group]);
    config.listeners = vec![Arc::new(Listener { sites, actions, ..listener(1) })];
    Lane::new(config)
}

/// A client over HTTP/1.1 that has sent this, and its other end.
fn http1_client(lane: &mut Lane, sent: &[u8]) -> (Key, OwnedFd) {
    let (conn, peer) = connection(&lane.proxy.settings.listeners()[0]);
    let key = lane.proxy.connections.insert(conn);
    lane.proxy.admission.arrived(&lane.proxy.counters);
    rustix::io::write(&peer, sent).unwrap();
    lane.ready(key, READ);
    lane.turn();
    (key, peer)
}

/// Such a client's request that has come now is looked at in time for `try_timeout`, before the lane's first look at others.
fn is_looked_at_in_time(lane: &mut Lane, sent: &[u8]) {
    let (client, _peer) = http1_client(lane, sent);
    let exchange = lane.proxy.connections.client(client).unwrap().exchange().expect("a request that waits");
    let x = lane.proxy.exchanges.get(exchange).unwrap();
    assert!(matches!(x.upstream_stream(), Some(UpstreamStream::Waiting(_))), "{:?}", x.upstream_stream());
    assert!(!x.machine().has_server());
    let deadline = lane.proxy.connections.client(client).unwrap().deadline();
    assert!((1..=lane.cx.now() + 200).contains(&deadline), "{deadline}");
    assert!(lane.proxy.settings.first_look() > 200);
}

/// The connection is open, so that it has no timer for those who wait for a stream on it.
#[test]
fn a_request_that_waits_for_a_stream_over_http3_is_looked_at_in_time() {
    let (mut server, address) = h3_server_for(limits(), 1);
    let mut group = upstream(1);
    group.servers[0].address = address;
    (group.http, group.tls) = (UpstreamHttp::Three, Some(Arc::new(client_policy())));
    group.try_timeout = Some(Duration::from_millis(200));
    let mut lane = lane_for(group);
    let (_first, _peer) = http1_client(&mut lane, b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    // The server's handshake ends; its first stream is taken, and is not answered.
    server.datagrams();
    lane.datagrams();
    let key = lane.quic();
    assert!(lane.proxy.connections.quic(key).unwrap().is_open());
    is_looked_at_in_time(&mut lane, b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
}

/// A lane that answers all requests itself.
fn answering_lane() -> Lane {
    let mut hosts = NameMap::default();
    hosts.insert("*".parse().unwrap(), 0).unwrap();
    let sites = Arc::new(SiteMap::new(&NameMap::default(), &hosts, [], |_, host| host));
    let answer = Action::Respond { status: 401, content_type: "text/plain".into(), body: b"no".to_vec() };
    let long = Duration::from_secs(10);
    let limits = ClientLimits { max_body: u64::MAX, idle_timeout: long, handshake_timeout: long, ..limits() };
    let mut config = snapshot(limits, Vec::new());
    config.listeners = vec![Arc::new(Listener { sites, actions: Arc::new([answer]), ..listener(1) })];
    Lane::new(config)
}

/// What has come to a client, as text.
fn received(peer: &OwnedFd) -> String {
    let (mut got, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    while let Ok(n @ 1..) = rustix::io::read(peer, &mut buffer) {
        got.extend_from_slice(&buffer[..n]);
    }
    String::from_utf8(got).unwrap()
}

/// Sends so many bytes on a client's connection, as far as the lane reads them.
fn send_bytes(lane: &mut Lane, client: Key, peer: &OwnedFd, piece: &[u8], times: usize) {
    for _ in 0..times {
        if rustix::io::write(peer, piece).is_err() {
            return;
        }
        lane.ready(client, READ);
        lane.turn();
    }
}

/// One rule and one bound for all versions of HTTP: without it a client would be read to the end of `max_body_size`.
#[test]
fn the_rest_of_an_answered_request_is_read_within_bounds_over_http1() {
    const CHUNK: usize = 16 << 10;
    let head = |framing: &str| format!("POST / HTTP/1.1\r\nHost: a.example\r\n{framing}\r\n\r\n");
    let answered = |framing: &str| {
        let mut lane = answering_lane();
        let (client, peer) = http1_client(&mut lane, head(framing).as_bytes());
        let answer = received(&peer);
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        (lane, client, peer, answer.to_ascii_lowercase().contains("connection: close"))
    };
    let is_kept = |lane: &mut Lane, client: Key| {
        lane.proxy.connections.client(client).is_some_and(|c| c.is_open() && c.exchange().is_none())
    };

    // A small rest: the connection goes on behind it.
    let (mut lane, client, peer, closes) = answered("Content-Length: 20000");
    assert!(!closes);
    send_bytes(&mut lane, client, &peer, &[7; 10_000], 2);
    assert!(is_kept(&mut lane, client));
    send_bytes(&mut lane, client, &peer, b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", 1);
    assert!(received(&peer).starts_with("HTTP/1.1 401 "));

    // A rest that is announced as too long: the client is told, and the connection lingers.
    let (mut lane, client, _peer, closes) = answered(&format!("Content-Length: {}", LINGER_BYTES + 1));
    assert!(closes);
    assert!(matches!(lane.proxy.connections.client(client).unwrap().phase(), ClientPhase::Lingering { .. }));

    // One that turns out to be too long, and one that does not come in time.
    let chunk = [format!("{CHUNK:x}\r\n").as_bytes(), &[7; CHUNK], b"\r\n"].concat();
    let most = LINGER_BYTES as usize / CHUNK;
    let (mut lane, client, peer, closes) = answered("Transfer-Encoding: chunked");
    assert!(!closes);
    send_bytes(&mut lane, client, &peer, &chunk, most);
    assert!(lane.proxy.connections.client(client).unwrap().exchange().is_some(), "as much is read");
    send_bytes(&mut lane, client, &peer, &chunk, 1);
    assert!(lane.proxy.connections.client(client).is_none(), "and no more");

    let (mut lane, client, _peer, _) = answered("Transfer-Encoding: chunked");
    let client_conn = lane.proxy.connections.client(client).unwrap();
    assert!(client_conn.deadline() <= LINGER);
    let exchange = client_conn.exchange().expect("a rest that is awaited");
    let x = lane.proxy.exchanges.get(exchange).unwrap();
    assert_eq!([LINGER - 1, LINGER].map(|now| x.has_drained_enough(now)), [false, true]);

    // Whether the client sends the body that it has announced so is not known.
    let (mut lane, client, _peer, closes) = answered("Content-Length: 10\r\nExpect: 100-continue");
    assert!(closes);
    assert!(matches!(lane.proxy.connections.client(client).unwrap().phase(), ClientPhase::Lingering { .. }));
}

/// What is wrong with the rest of a request that has been answered takes nothing of the answer, and is no failure of anybody.
#[test]
fn an_error_in_the_rest_of_an_answered_request_cuts_nobody_off() {
    for ends in [false, true] {
        let mut lane = answering_lane();
        let sent = b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n";
        let (client, peer) = http1_client(&mut lane, sent);
        if ends {
            rustix::net::shutdown(&peer, rustix::net::Shutdown::Write).unwrap();
            lane.ready(client, Ready { peer_closed: true, ..READ });
        } else {
            rustix::io::write(&peer, b"no length\r\n").unwrap();
            lane.ready(client, READ);
            let phase = lane.proxy.connections.client(client).unwrap().phase();
            assert!(matches!(phase, ClientPhase::Lingering { .. }), "{phase:?}");
        }
        lane.turn();
        assert!(received(&peer).starts_with("HTTP/1.1 401 "));
        assert_eq!(rustix::io::read(&peer, &mut [0; 9][..]), Ok(0), "an end, and no reset");
        let counters = &lane.proxy.counters;
        assert_eq!(counters.value(Count::ClientAborts), 0);
        assert_eq!(ParseError::ALL.iter().map(|error| counters.parse_errors(*error)).sum::<u64>(), 0);
    }
}

/// The same of a WebSocket, which waits for the server's SETTINGS.
#[test]
fn a_websocket_that_waits_for_settings_is_looked_at_in_time() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut group = upstream(1);
    group.servers[0].address = server.local_addr().unwrap();
    (group.http, group.try_timeout) = (UpstreamHttp::Two, Some(Duration::from_millis(200)));
    let mut lane = lane_for(group);
    let (socket, _silent) = socket_pair();
    let key = lane.h2_connection(socket);
    let upgrade = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    is_looked_at_in_time(&mut lane, upgrade);
    assert_eq!(lane.proxy.connections.upstream(key).unwrap().waiting().unwrap().len(), 1);
}

/// The connection that a lane has begun for its only request, at both ends.
fn accept_only(lane: &mut Lane, server: &TcpListener) -> (Key, TcpStream) {
    let exchange = lane.proxy.exchanges.keys().next().expect("the request has come");
    let stream = lane.proxy.exchanges.get(exchange).unwrap().upstream_stream();
    let Some(UpstreamStream::H1(upstream)) = stream else { panic!("no connection was begun") };
    let (socket, _) = server.accept().unwrap();
    lane.ready(upstream, WRITE);
    lane.turn();
    (upstream, socket)
}

/// Waits until something has come for a connection to a server.
fn await_bytes(lane: &mut Lane, upstream: Key) {
    let transport = lane.proxy.connections.upstream(upstream).unwrap().transport();
    poll(&mut [PollFd::new(&transport.fd, PollFlags::IN)], None).unwrap();
}

/// Bytes of bodies in a sequence of whole frames of HTTP/2.
fn bytes_of_bodies(mut frames: &[u8]) -> usize {
    let mut bytes = 0;
    while let [a, b, c, kind, _, _, _, _, _, rest @ ..] = frames {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        bytes += if *kind == 0 { length } else { 0 };
        frames = rest.get(length..).unwrap_or_default();
    }
    bytes
}

/// The streams that wait for the client's window are resumed where responses are sent, which nothing else calls for then.
#[test]
fn a_response_over_http2_goes_on_when_the_client_opens_its_window() {
    const BODY: usize = 100_000;
    let (mut lane, server) = forwarding_lane();
    let (conn, peer) = connection(&lane.proxy.settings.listeners()[0]);
    let client = lane.proxy.connections.insert(conn);
    lane.proxy.admission.arrived(&lane.proxy.counters);
    let Proxy { connections, settings, counters, .. } = &mut lane.proxy;
    h2_client_begin(connections, settings, counters, &mut lane.cx, client);
    let send = |lane: &mut Lane, bytes: &[u8]| {
        rustix::io::write(&peer, bytes).unwrap();
        lane.ready(client, READ);
        lane.turn();
    };
    let mut request = http2_post();
    let headers = request.len() - 14 - 9;
    // A GET that ends with its head.
    (request[headers + 4], request[headers + 9]) = (5, 0x82);
    send(&mut lane, &request);
    let (upstream, mut socket) = accept_only(&mut lane, &server);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n");
    socket.write_all(&[head.as_bytes(), &[7; BODY]].concat()).unwrap();
    let (mut got, mut buffer) = (Vec::new(), vec![0; 1 << 20]);
    let mut receive = |lane: &mut Lane| {
        for _ in 0..10 {
            lane.ready(upstream, READ);
            lane.turn();
            while let Ok(n) = rustix::io::read(&peer, &mut buffer) {
                got.extend_from_slice(&buffer[..n]);
            }
            lane.ready(client, WRITE);
            lane.turn();
        }
        bytes_of_bodies(&got)
    };
    await_bytes(&mut lane, upstream);
    assert_eq!(receive(&mut lane), 65_535, "the window is used up");
    let update = |stream: u8| [0, 0, 4, 8, 0, 0, 0, 0, stream, 0, 1, 0, 0];
    send(&mut lane, &[update(0), update(1)].concat());
    assert_eq!(receive(&mut lane), BODY);
}

/// As over HTTP/3, whether the client reads or not.
#[test]
fn a_response_over_http2_is_cut_off_as_a_cancelled_one() {
    for is_stuck in [false, true] {
        let (mut lane, _server) = forwarding_lane();
        let (conn, peer) = connection(&lane.proxy.settings.listeners()[0]);
        let client = lane.proxy.connections.insert(conn);
        lane.proxy.admission.arrived(&lane.proxy.counters);
        let Proxy { connections, settings, counters, .. } = &mut lane.proxy;
        h2_client_begin(connections, settings, counters, &mut lane.cx, client);
        rustix::io::write(&peer, &http2_post()).unwrap();
        lane.ready(client, READ);
        let exchange = h2_exchanges(&mut lane.proxy.connections, client)[0];
        let stream = lane.proxy.exchanges.get(exchange).unwrap().client_stream();
        client_reset(&mut lane.proxy, &mut lane.cx, stream, is_stuck);
        lane.turn();
        let (mut got, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        while let Ok(n @ 1..) = rustix::io::read(&peer, &mut buffer) {
            got.extend_from_slice(&buffer[..n]);
        }
        // RST_STREAM of stream 1, with CANCEL.
        let reset = [0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8];
        assert!(got.ends_with(&reset), "stuck: {is_stuck}, {got:?}");
    }
}

/// The first requests make buffers, and the next ones use these again. `most`: what rustls takes, once for each record that it opens
/// and for each that it seals.
#[test]
fn a_request_on_a_kept_connection_takes_no_memory() {
    for (is_tls, most) in [(false, 0), (true, 2)] {
        let (mut lane, server) = forwarding_lane();
        let (conn, peer) = connection(&lane.proxy.settings.listeners()[0]);
        let Conn::Client(mut client_conn) = conn else { unreachable!() };
        let mut scratch = Scratch::new();
        let mut peer = Transport::new(peer);
        if is_tls {
            (peer, *client_conn.transport_mut()) = tls_pair(&mut scratch);
        }
        let client = lane.proxy.connections.insert(Conn::Client(client_conn));
        lane.proxy.admission.arrived(&lane.proxy.counters);
        let turn = |lane: &mut Lane, key: Key, ready: Ready| {
            let before = allocations::taken();
            lane.ready(key, ready);
            lane.turn();
            allocations::taken() - before
        };
        let mut servers = None;
        for number in 0..100 {
            peer.stage.extend_from_slice(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
            peer.flush(&mut scratch).unwrap();
            let mut taken = turn(&mut lane, client, READ);
            let (upstream, socket) = servers.get_or_insert_with(|| accept_only(&mut lane, &server));
            let mut request = [0; 1000];
            assert!(socket.read(&mut request).unwrap() > 0);
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
            await_bytes(&mut lane, *upstream);
            taken += turn(&mut lane, *upstream, READ);
            peer.note(READ);
            peer.read(&mut scratch, READ_SIZE).unwrap();
            assert!(scratch.take_plaintext().ends_with(b"\r\n\r\nok"));
            assert!(
                number < 10 || taken <= most,
                "request {number} over TLS: {is_tls}, memory was taken {taken} times"
            );
        }
    }
}
