//! A seat's connection over QUIC, with quinn-proto for the protocol and HTTP/3 on top.
//!
//! One endpoint per thread, a UDP socket per origin and source address. A connection that is given up
//! stays here, apart from its seat, until the protocol has drained it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use quinn_proto as quic;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{ConnectionHandle, DatagramEvent, Dir, StreamEvent, StreamId};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::Worker;
use super::pacer::Op;
use super::seat::Phase;
use crate::clock::{Clock, Nanos};
use crate::plan::{Kind, Operation, Plan};
use crate::record::{Failure, note};
use crate::socket;
use crate::tls::{self, Client};
use sealane_lab_wire::h3;

/// Marks a UDP socket's events among those of seats.
pub(super) const UDP: u64 = 1 << 63;

/// The thread's QUIC side.
pub struct Quic {
    endpoint: quic::Endpoint,
    ordinary: quic::ClientConfig,
    early: quic::ClientConfig,
    sockets: Vec<(OwnedFd, SocketAddr)>,
    /// Sockets per origin: one for each source address.
    per_origin: usize,
    /// Who a connection belongs to, by its handle.
    owners: Vec<Owner>,
    /// When connections want to be woken; entries may be out of date.
    timers: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// Datagrams to send.
    buffer: Vec<u8>,
    /// A socket whose sending brought to light that nobody listens.
    refused: Option<usize>,
}

#[derive(Default)]
enum Owner {
    #[default]
    Nobody,
    Seat(u32),
    /// Given up, not drained.
    Closing(Box<Link>),
}

/// A connection.
pub struct Link {
    handle: ConnectionHandle,
    conn: quic::Connection,
    socket: usize,
    streams: Vec<Stream>,
    /// Opened, for the next request: only so does the protocol say whether the server allows one more.
    next: Option<StreamId>,
    server_streams: Vec<(StreamId, h3::ServerStream)>,
    /// When the protocol wants to be woken.
    armed: Nanos,
    /// The server showed a certificate.
    full: bool,
    /// The request went out as early data.
    early: bool,
    leaving: bool,
}

struct Stream {
    id: StreamId,
    op: Op,
    response: h3::Response,
    bytes: (u16, u16, u16),
    sent: usize,
    finished: bool,
}

impl Link {
    /// Requests under way.
    pub fn active(&self) -> usize {
        self.streams.len()
    }

    /// When the oldest of them was started.
    pub fn oldest(&self) -> Option<Nanos> {
        self.streams.iter().map(|s| s.op.started).min()
    }

    /// Takes the operations under way: the connection is lost.
    pub fn abandon(&mut self) -> Vec<Op> {
        self.streams.drain(..).map(|s| s.op).collect()
    }

    fn has_room(&mut self, streams: usize) -> bool {
        if self.leaving || self.streams.len() >= streams {
            return false;
        }
        self.next = self.next.or_else(|| self.conn.streams().open(Dir::Bi));
        self.next.is_some()
    }
}

impl Quic {
    /// Endpoint, sockets and configurations for a plan.
    pub fn new(plan: &Plan, client: &Client, epoll: &OwnedFd, thread: usize) -> Result<Self, String> {
        let mut transport = quic::TransportConfig::default();
        let timeout = quic::IdleTimeout::try_from(plan.timeout.max(std::time::Duration::from_secs(30)));
        transport.max_idle_timeout(timeout.ok());
        // Our datagrams go out one by one.
        transport.enable_segmentation_offload(false);
        // A server opens a few streams of its own and no others (RFC 9114 §6.1), and each that it might open is made room
        // for on every connection.
        transport.max_concurrent_bidi_streams(quic::VarInt::from_u32(0));
        transport.max_concurrent_uni_streams(quic::VarInt::from_u32(8));
        if plan.operation != Operation::KeepAlive {
            // What is over after one request does not look for a larger MTU.
            transport.mtu_discovery_config(None);
        }
        // Large enough never to hold a server back; the body is only counted.
        transport.receive_window(quic::VarInt::from_u32(1 << 30));
        transport.stream_receive_window(quic::VarInt::from_u32(1 << 28));
        let transport = Arc::new(transport);
        let initial = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256
            .tls13()
            .and_then(|suite| suite.quic_suite())
            .ok_or("no suite for QUIC's first packets")?;
        let make = |config: &Arc<rustls::ClientConfig>| {
            let crypto = QuicClientConfig::with_initial(config.clone(), initial).map_err(|e| e.to_string())?;
            let mut config = quic::ClientConfig::new(Arc::new(crypto));
            config.transport_config(transport.clone());
            Ok::<_, String>(config)
        };
        let mut sockets = Vec::new();
        let sources: Vec<_> =
            if plan.sources.is_empty() { vec![None] } else { plan.sources.iter().map(|s| Some(*s)).collect() };
        for origin in &plan.origins {
            for source in &sources {
                let fd = socket::datagram(&origin.address, *source).map_err(|e| format!("UDP socket: {e}"))?;
                let data = EventData::new_u64(UDP | sockets.len() as u64);
                epoll::add(epoll, &fd, data, EventFlags::IN | EventFlags::ET).map_err(|e| format!("epoll: {e}"))?;
                sockets.push((fd, origin.address));
            }
        }
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&(plan.seed ^ (thread as u64) << 32).to_le_bytes());
        // Two runs on one machine must not choose the same connection ids.
        seed[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        seed[12..28].copy_from_slice(&now.as_nanos().to_le_bytes());
        Ok(Self {
            endpoint: quic::Endpoint::new(Arc::new(quic::EndpointConfig::default()), None, true, Some(seed)),
            ordinary: make(&client.ordinary)?,
            early: make(&client.early)?,
            sockets,
            per_origin: sources.len(),
            owners: Vec::new(),
            timers: BinaryHeap::new(),
            buffer: Vec::with_capacity(2048),
            refused: None,
        })
    }

    /// When a connection next wants to be woken.
    pub fn next_timer(&self) -> Option<Nanos> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    fn own(&mut self, handle: ConnectionHandle, owner: Owner) -> Owner {
        if self.owners.len() <= handle.0 {
            self.owners.resize_with(handle.0 + 1, Owner::default);
        }
        std::mem::replace(&mut self.owners[handle.0], owner)
    }

    /// Lets the endpoint know, sends what is to be sent, sets the timer. How many bytes went out.
    fn settle(&mut self, link: &mut Link, clock: &Clock, now: Nanos) -> u64 {
        while let Some(event) = link.conn.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(link.handle, event) {
                link.conn.handle_event(answer);
            }
        }
        let mut sent = 0;
        let instant = clock.instant(now);
        loop {
            self.buffer.clear();
            let Some(transmit) = link.conn.poll_transmit(instant, 1, &mut self.buffer) else { break };
            // What the socket will not take is lost, and the protocol sends it again.
            let out = socket::send(&self.sockets[link.socket].0, &self.buffer[..transmit.size]);
            if out == Err(Errno::CONNREFUSED) {
                self.refused = Some(link.socket);
            }
            sent += out.ok().flatten().unwrap_or(0) as u64;
        }
        let wake = link.conn.poll_timeout().map_or(crate::clock::NEVER, |at| clock.nanos(at));
        if wake != link.armed {
            link.armed = wake;
            if wake != crate::clock::NEVER {
                self.timers.push(Reverse((wake, link.handle.0)));
            }
        }
        sent
    }
}

impl Worker<'_> {
    /// Opens a seat's connection over QUIC.
    pub(super) fn open_quic(&mut self, i: usize, now: Nanos) {
        self.next_source = self.next_source.wrapping_add(1);
        let group = self.seats[i].group as usize;
        let name = if self.plan.names.is_empty() { group } else { self.name_weights.draw(&mut self.rng) };
        let host = if self.plan.names.is_empty() { &self.plan.origins[group].host } else { &self.plan.names[name].0 };
        let seat = &mut self.seats[i];
        seat.generation = seat.generation.wrapping_add(1);
        seat.phase = Phase::Handshaking;
        seat.name = name as u16;
        (seat.opened, seat.connected) = (now, now);
        (seat.requested, seat.offered, seat.tickets) = (false, false, 0);
        let mut kind = seat.op.as_ref().map_or(Kind::Full, |op| op.kind);
        let at_hand = tls::tickets_at_hand(&self.names[name]);
        if kind >= Kind::Resumed {
            seat.offered = at_hand > 0;
            if !seat.offered {
                kind = Kind::Full;
                if seat.op.as_ref().is_some_and(|op| op.measured) {
                    self.record.handshakes.no_ticket += 1;
                }
            }
        }
        let Some(quic) = &mut self.quic else { return };
        let socket = group * quic.per_origin + self.next_source % quic.per_origin;
        let config = if kind == Kind::EarlyData { quic.early.clone() } else { quic.ordinary.clone() };
        tls::offer_tickets(kind >= Kind::Resumed);
        let begun = quic.endpoint.connect(self.clock.instant(now), config, self.plan.origins[group].address, host);
        tls::offer_tickets(false);
        let (handle, conn) = match begun {
            Ok(begun) => begun,
            Err(e) => return self.fail(i, Failure::Connect, now, || e.to_string()),
        };
        let early = kind == Kind::EarlyData && conn.has_0rtt();
        quic.own(handle, Owner::Seat(i as u32));
        self.seats[i].quic = Some(Box::new(Link {
            handle,
            conn,
            socket,
            streams: Vec::with_capacity(self.plan.streams),
            next: None,
            server_streams: Vec::new(),
            armed: crate::clock::NEVER,
            full: false,
            early,
            leaving: false,
        }));
        if self.measuring(now) {
            self.record.connections += 1;
        }
        if early && let Some(op) = self.seats[i].op {
            self.open_control(i);
            self.request_quic(i, op, now);
            self.seats[i].requested = true;
        }
        self.settle_quic(i, now);
    }

    /// Our control stream (RFC 9114 §6.2.1).
    fn open_control(&mut self, i: usize) {
        let Some(link) = &mut self.seats[i].quic else { return };
        if let Some(id) = link.conn.streams().open(Dir::Uni) {
            // Three bytes always fit where a stream may be opened at all.
            let _ = link.conn.send_stream(id).write(&h3::CONTROL_OPENING);
        }
    }

    /// Starts an operation on a connection that is kept.
    pub(super) fn begin_quic(&mut self, i: usize, op: Op, now: Nanos) {
        self.request_quic(i, op, now);
        let seat = &mut self.seats[i];
        let room = seat.quic.as_mut().is_some_and(|link| link.has_room(self.plan.streams));
        if room && seat.phase == Phase::Open {
            self.offer(i, now);
        }
        let seat = &mut self.seats[i];
        if seat.quic.is_some() && !seat.dirty {
            seat.dirty = true;
            self.dirty.push(i as u32);
        }
    }

    fn request_quic(&mut self, i: usize, op: Op, now: Nanos) {
        let seat = &mut self.seats[i];
        let Some(link) = &mut seat.quic else { return };
        let Some(id) = link.next.take().or_else(|| link.conn.streams().open(Dir::Bi)) else {
            // The server allows none at all.
            if self.plan.operation == Operation::KeepAlive {
                self.in_flight -= 1;
                self.note_failed(Some(&op), Failure::Reset, now, || "the server allows no further streams".to_owned());
            } else {
                self.fail(i, Failure::Reset, now, || "the server allows no stream".to_owned());
            }
            return;
        };
        let bytes = (seat.group, seat.name, op.target);
        link.streams.push(Stream { id, op, response: h3::Response::default(), bytes, sent: 0, finished: false });
        let at = link.streams.len() - 1;
        self.push_request(i, at);
    }

    /// Hands the protocol as much of a request as it takes.
    fn push_request(&mut self, i: usize, at: usize) {
        let Some(link) = &mut self.seats[i].quic else { return };
        let Some(stream) = link.streams.get_mut(at) else { return };
        let (group, name, target) = stream.bytes;
        let request = &self.requests[group as usize][name as usize][target as usize];
        while stream.sent < request.len() {
            match link.conn.send_stream(stream.id).write(&request[stream.sent..]) {
                Ok(n) => stream.sent += n,
                // Blocked until Writable, or stopped: then the response decides.
                Err(_) => return,
            }
        }
        if !stream.finished {
            stream.finished = true;
            // Fails only where the peer has stopped the stream: then the response decides.
            let _ = link.conn.send_stream(stream.id).finish();
        }
    }

    /// Sends, and sets timers, after something happened on a seat's connection.
    pub(super) fn settle_quic(&mut self, i: usize, now: Nanos) {
        let Self { seats, quic: Some(quic), clock, .. } = self else { return };
        let Some(link) = &mut seats[i].quic else { return };
        self.record.bytes_out += quic.settle(link, clock, now);
    }

    /// Reads a UDP socket to its end.
    pub(super) fn readable_quic(&mut self, index: usize) {
        loop {
            let Some(quic) = &mut self.quic else { return };
            let Some((fd, remote)) = quic.sockets.get(index) else { return };
            let remote = *remote;
            let n = match socket::recv(fd, &mut self.scratch) {
                Ok(None) => return,
                Ok(Some(n)) => n,
                Err(Errno::CONNREFUSED) => {
                    self.refused_quic(index);
                    continue;
                }
                Err(_) => return,
            };
            self.record.bytes_in += n as u64;
            let now = self.clock.now();
            let data = BytesMut::from(&self.scratch[..n]);
            quic.buffer.clear();
            let event = quic.endpoint.handle(self.clock.instant(now), remote, None, None, data, &mut quic.buffer);
            match event {
                Some(DatagramEvent::ConnectionEvent(handle, event)) => self.deliver(handle, event, now),
                Some(DatagramEvent::Response(transmit)) => {
                    let _ = socket::send(&quic.sockets[index].0, &quic.buffer[..transmit.size]);
                }
                // Nobody connects to a client.
                Some(DatagramEvent::NewConnection(_)) | None => {}
            }
        }
    }

    /// ICMP said that nobody listens: true of all that are connecting there.
    fn refused_quic(&mut self, index: usize) {
        let now = self.clock.now();
        for i in 0..self.seats.len() {
            let seat = &self.seats[i];
            let connecting = seat.phase == Phase::Handshaking && seat.quic.as_ref().is_some_and(|l| l.socket == index);
            if connecting {
                let address = self.plan.origins[seat.group as usize].address;
                self.fail(i, Failure::Refused, now, || format!("{address}: no server listens on that UDP port"));
            }
        }
    }

    fn deliver(&mut self, handle: ConnectionHandle, event: quic::ConnectionEvent, now: Nanos) {
        let Some(quic) = &mut self.quic else { return };
        match quic.owners.get_mut(handle.0) {
            Some(Owner::Seat(i)) => {
                let i = *i as usize;
                let shown = |client: &Option<Client>| client.as_ref().map_or(0, Client::certificates_shown);
                let certificates = shown(&self.client);
                let tickets = tls::tickets_received();
                let seat = &mut self.seats[i];
                if let Some(link) = &mut seat.quic {
                    link.conn.handle_event(event);
                    link.full |= shown(&self.client) != certificates;
                    seat.tickets += tls::tickets_received() - tickets;
                }
                self.drive_quic(i, now);
            }
            Some(Owner::Closing(link)) => {
                link.conn.handle_event(event);
                self.settle_closing(handle, now);
            }
            Some(Owner::Nobody) | None => {}
        }
    }

    /// Wakes the connections whose time has come.
    pub(super) fn wake_quic(&mut self, now: Nanos) {
        if let Some(index) = self.quic.as_mut().and_then(|quic| quic.refused.take()) {
            self.refused_quic(index);
        }
        while let Some(quic) = &mut self.quic
            && let Some(Reverse((at, index))) = quic.timers.peek().copied()
            && at <= now
        {
            quic.timers.pop();
            let instant = self.clock.instant(now);
            match quic.owners.get_mut(index) {
                Some(Owner::Seat(i)) => {
                    let i = *i as usize;
                    if let Some(link) = self.seats[i].quic.as_mut().filter(|link| link.armed == at) {
                        link.armed = crate::clock::NEVER;
                        link.conn.handle_timeout(instant);
                        self.drive_quic(i, now);
                    }
                }
                Some(Owner::Closing(link)) if link.armed == at => {
                    link.armed = crate::clock::NEVER;
                    link.conn.handle_timeout(instant);
                    self.settle_closing(ConnectionHandle(index), now);
                }
                _ => {}
            }
        }
    }

    fn settle_closing(&mut self, handle: ConnectionHandle, now: Nanos) {
        let Some(quic) = &mut self.quic else { return };
        let Owner::Closing(mut link) = quic.own(handle, Owner::Nobody) else { return };
        // Nobody is interested in what it has to say.
        while link.conn.poll().is_some() {}
        let sent = quic.settle(&mut link, &self.clock, now);
        if !link.conn.is_drained() {
            quic.own(handle, Owner::Closing(link));
        }
        self.record.bytes_out += sent;
    }

    /// Gives a seat's connection up: says goodbye, and lets it drain apart from the seat.
    pub(super) fn vacate_quic(&mut self, i: usize) {
        let Some(mut link) = self.seats[i].quic.take() else { return };
        let now = self.clock.now();
        let Some(quic) = &mut self.quic else { return };
        link.streams.clear();
        link.conn.close(self.clock.instant(now), quic::VarInt::from_u32(h3::NO_ERROR), Bytes::new());
        let handle = link.handle;
        quic.own(handle, Owner::Closing(link));
        self.settle_closing(handle, now);
    }

    /// Acts on what a connection has to say.
    fn drive_quic(&mut self, i: usize, now: Nanos) {
        let generation = self.seats[i].generation;
        loop {
            let seat = &mut self.seats[i];
            if seat.generation != generation {
                return;
            }
            let Some(link) = &mut seat.quic else { return };
            match link.conn.poll() {
                None => break,
                Some(quic::Event::Connected) => self.established_quic(i, now),
                Some(quic::Event::ConnectionLost { reason }) => return self.lost_quic(i, &reason, now),
                Some(quic::Event::Stream(StreamEvent::Readable { id })) => self.read_stream(i, id, now),
                Some(quic::Event::Stream(StreamEvent::Writable { id })) => {
                    if let Some(at) = link.streams.iter().position(|s| s.id == id) {
                        self.push_request(i, at);
                    }
                }
                Some(quic::Event::Stream(StreamEvent::Available { dir: Dir::Bi })) => {
                    // The server allows more requests at once.
                    let room = link.has_room(self.plan.streams);
                    if room && seat.phase == Phase::Open && self.plan.operation == Operation::KeepAlive {
                        self.offer(i, now);
                    }
                }
                Some(quic::Event::Stream(StreamEvent::Opened { dir: Dir::Uni })) => {
                    while let Some(id) = self.seats[i].quic.as_mut().and_then(|l| l.conn.streams().accept(Dir::Uni)) {
                        if let Some(link) = &mut self.seats[i].quic {
                            link.server_streams.push((id, h3::ServerStream::default()));
                        }
                        self.read_stream(i, id, now);
                    }
                }
                Some(_) => {}
            }
        }
        let seat = &self.seats[i];
        let Some(link) = &seat.quic else { return };
        if seat.phase == Phase::Closing {
            if self.has_ticket(i) {
                return self.ticket_came(i, now);
            }
        } else if link.leaving && self.plan.operation == Operation::KeepAlive {
            let idle = link.active() == 0;
            self.withdraw(i);
            if idle {
                self.vacate(i);
                return self.open_quic(i, now);
            }
        }
        self.settle_quic(i, now);
    }

    fn established_quic(&mut self, i: usize, now: Nanos) {
        let seat = &mut self.seats[i];
        let Some(link) = &mut seat.quic else { return };
        let resumed = !link.full;
        let early_sent = link.early;
        let early_accepted = early_sent && link.conn.accepted_0rtt();
        if let Some(op) = &mut seat.op {
            op.kind = self.record.handshakes.note(op, seat.offered, (resumed, false), (early_sent, early_accepted));
            if op.measured {
                note(&mut self.record.times(op.kind).handshake, now - seat.opened);
            }
        }
        if early_sent && !early_accepted {
            // The protocol has forgotten these streams, and so do we: everything is sent again.
            link.streams.clear();
            link.next = None;
            link.server_streams.clear();
            seat.requested = false;
        }
        seat.phase = Phase::Open;
        if !early_accepted {
            self.open_control(i);
        }
        match self.plan.operation {
            Operation::KeepAlive => self.opened(i, now),
            Operation::Connection { request: true, .. } => {
                if !early_accepted && let Some(op) = self.seats[i].op {
                    self.seats[i].requested = true;
                    self.request_quic(i, op, now);
                }
            }
            Operation::Connection { request: false, .. } => self.complete(i, 0, now),
        }
    }

    fn read_stream(&mut self, i: usize, id: StreamId, now: Nanos) {
        let Some(link) = &mut self.seats[i].quic else { return };
        let own = link.streams.iter().position(|s| s.id == id);
        let server = link.server_streams.iter().position(|(s, _)| *s == id);
        let mut broken = None;
        let mut ended = false;
        let mut reset = None;
        {
            let mut recv = link.conn.recv_stream(id);
            let Ok(mut chunks) = recv.read(true) else { return };
            loop {
                match chunks.next(usize::MAX) {
                    Ok(Some(chunk)) => {
                        let fed = match (own, server) {
                            (Some(at), _) => link.streams[at].response.feed(&chunk.bytes),
                            (None, Some(at)) => link.server_streams[at].1.feed(&chunk.bytes).map(|l| link.leaving |= l),
                            (None, None) => Ok(()),
                        };
                        broken = broken.or(fed.err());
                    }
                    Ok(None) => {
                        ended = true;
                        break;
                    }
                    Err(quic::ReadError::Blocked) => break,
                    Err(quic::ReadError::Reset(code)) => {
                        reset = Some(code);
                        break;
                    }
                }
            }
            // Window updates go out with whatever is sent next.
            let _ = chunks.finalize();
        }
        if let Some(h3::Broken(why)) = broken {
            return self.fail(i, Failure::Malformed, now, || why.to_owned());
        }
        let Some(at) = own else { return };
        if self.plan.operation != Operation::KeepAlive
            && let Some(op) = &mut self.seats[i].op
            && op.first_byte == 0
        {
            op.first_byte = now;
        }
        let Some(link) = &mut self.seats[i].quic else { return };
        let outcome = match (ended, reset) {
            (_, Some(code)) => Err((Failure::Reset, format!("stream reset by the server, code {code}"))),
            (true, None) if link.streams[at].response.complete() => Ok(link.streams[at].response.status()),
            (true, None) => Err((Failure::Closed, "the stream ended before the response was complete".to_owned())),
            (false, None) => return,
        };
        let stream = link.streams.swap_remove(at);
        match (outcome, self.plan.operation == Operation::KeepAlive) {
            (Ok(status), false) => self.complete(i, status, now),
            (Err((failure, why)), false) => self.fail(i, failure, now, || why),
            (outcome, true) => {
                self.in_flight -= 1;
                match outcome {
                    Ok(status) => {
                        self.completed += 1;
                        self.note_completed(&stream.op, status, now);
                    }
                    Err((failure, why)) => self.note_failed(Some(&stream.op), failure, now, || why),
                }
                if self.seats[i].quic.as_mut().is_some_and(|link| link.has_room(self.plan.streams)) {
                    self.offer(i, now);
                }
            }
        }
    }

    /// The connection is gone.
    fn lost_quic(&mut self, i: usize, reason: &quic::ConnectionError, now: Nanos) {
        let seat = &self.seats[i];
        match seat.phase {
            Phase::Closing => self.ticket_came(i, now),
            Phase::Handshaking => {
                let failure = match reason {
                    quic::ConnectionError::TimedOut => Failure::Timeout,
                    quic::ConnectionError::TransportError(_) | quic::ConnectionError::ConnectionClosed(_) => {
                        Failure::Tls
                    }
                    _ => Failure::Connect,
                };
                self.fail(i, failure, now, || format!("QUIC handshake: {reason}"));
            }
            _ if seat.busy() => self.fail(i, Failure::Reset, now, || format!("QUIC: {reason}")),
            _ => {
                self.withdraw(i);
                self.vacate(i);
                self.rest(i, now);
            }
        }
    }
}
