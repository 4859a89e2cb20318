//! Datagrams in both directions, and how sessions begin, change their server and end.

use super::session::{Connected, Passed, UdpSession};
use super::table::Pair;
use super::{MESSAGES, READS, UdpRelay};
use crate::Failure;
use crate::accept::proxy_protocol;
use crate::client::identity::Client;
use crate::conn::Conn;
use crate::counters::Count;
use crate::exchange::streams::ClientStream;
use crate::exchange::{EndedSession, Ending, Exchange};
use crate::lane_state::LaneListener;
use crate::relay::passthrough_for;
use crate::service::{Proxy, log_exchange};
use crate::settings::LaneSettings;
use crate::snapshot::Listener;
use crate::traces::Made;
use crate::upstream::balance::{Lease, Pick, Tried};
use crate::upstream::group::LaneUpstream;
use rustix::io::Errno;
use sealane_lane::{Context, Deadline, Key};
use sealane_sys::udp::{Batch, MAX_MESSAGE, Meta, Options, Socket, Transmit};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

/// How long sessions may be silent in a lane that drains, or once their server is no longer configured: long enough for a
/// reply.
const LAST_REPLIES: Duration = Duration::from_secs(2);
/// So many sessions a lane has even while memory is short: it may be so for reasons that have nothing to do with them.
const ALWAYS: usize = 64;

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Nothing has passed for too long.
    Idle,
    /// All datagrams that were expected have passed.
    Complete,
    /// Another session needed its place.
    GaveWay,
    /// A reload has taken away its listener or its server.
    Reload,
    /// The lane drains.
    Drain,
}

/// A listener's socket has datagrams.
pub(crate) fn udp_ready(proxy: &mut Proxy, cx: &mut Context, index: usize) {
    let Some(mut batch) = proxy.udp.batch.take() else { return };
    for _ in 0..READS {
        // An event from before the sockets became another process's.
        if proxy.udp.left == 0 || proxy.udp.has_successor {
            break;
        }
        let Some(Some(endpoint)) = proxy.udp.endpoints.get(index) else { break };
        let Ok(filled) = endpoint.socket.receive(&mut batch) else { break };
        proxy.udp.left = proxy.udp.left.saturating_sub(filled);
        for (meta, bytes) in batch.iter_mut() {
            if meta.truncated {
                proxy.counters.count(Count::UdpDroppedOversize);
                continue;
            }
            from_client(proxy, cx, index, &meta, bytes);
        }
        if filled < MESSAGES {
            break;
        }
    }
    proxy.udp.batch = Some(batch);
}

/// A session's socket has datagrams, or an error.
pub(crate) fn session_ready(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(mut batch) = proxy.udp.batch.take() else { return };
    for _ in 0..READS {
        let Some(Conn::Udp(session)) = proxy.connections.get(key) else { break };
        if proxy.udp.left == 0 {
            break;
        }
        match session.to.socket.receive(&mut batch) {
            Ok(filled) => {
                proxy.udp.left = proxy.udp.left.saturating_sub(filled);
                from_server(proxy, cx, key, &mut batch);
                if filled < MESSAGES {
                    break;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(_) => {
                server_failed(proxy, cx, key);
                break;
            }
        }
    }
    proxy.udp.batch = Some(batch);
}

/// A message of a client: one datagram, or several in a train.
fn from_client(proxy: &mut Proxy, cx: &mut Context, index: usize, meta: &Meta, data: &[u8]) {
    let Some(key) = session_for(proxy, cx, index, meta) else { return };
    let ends_early = |session: &UdpSession| session.group.settings().udp.as_ref().is_some_and(|ends| ends.are_set());
    let separately = match proxy.connections.get(key) {
        Some(Conn::Udp(session)) => data.len() > meta.segment && ends_early(session),
        _ => return,
    };
    if !separately {
        return forward(proxy, cx, key, data, meta.segment);
    }
    // Each datagram may be the last of its session.
    for datagram in data.chunks(meta.segment) {
        if let Some(key) = session_for(proxy, cx, index, meta) {
            forward(proxy, cx, key, datagram, meta.segment);
        }
    }
}

/// The session of a client, which is opened if there is none.
fn session_for(proxy: &mut Proxy, cx: &mut Context, index: usize, meta: &Meta) -> Option<Key> {
    let listener = &proxy.udp.endpoints.get(index)?.as_ref()?.listener;
    match proxy.udp.sessions.find(&pair_of(listener, meta)) {
        Some(key) => Some(key),
        None => open_session(proxy, cx, index, meta),
    }
}

fn pair_of(listener: &LaneListener, meta: &Meta) -> Pair {
    let Listener { id, address, .. } = *listener.listener;
    Pair { listener: id, client: meta.remote, local: meta.local.filter(|_| address.ip().is_unspecified()) }
}

/// Whether a reply to this source would come back to the gateway, or go to many: no client has such an address. `local`: the
/// address that the datagram was sent to.
///
/// Two relays that take each other for a client and a server send the same datagram back and forth without end.
fn is_no_client(proxy: &Proxy, source: SocketAddr, local: Option<IpAddr>) -> bool {
    let (ip, port) = (source.ip(), source.port());
    let is_broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    if port == 0 || ip.is_unspecified() || ip.is_multicast() || is_broadcast {
        return true;
    }
    is_own_listener(&proxy.settings, source, || local == Some(ip) || is_of_this_machine(source))
}

/// Whether datagrams to this address come to a listener of the gateway. `is_ours`: whether the address is this machine's, which is
/// asked only if a listener has all of the machine's addresses and the same port.
fn is_own_listener(settings: &LaneSettings, address: SocketAddr, is_ours: impl Fn() -> bool) -> bool {
    let ip = address.ip();
    let own = settings.lane().listeners.iter().filter(|l| !l.listener.udp.is_empty());
    let mut own = own.map(|l| l.listener.address).filter(|own| own.port() == address.port());
    own.any(|own| match own.ip().is_unspecified() {
        false => own.ip() == ip,
        true => ip.is_loopback() || ip.is_unspecified() || is_ours(),
    })
}

/// Whether an address is this machine's: what is sent there is sent from there. Asked of the kernel only for sources with the port of
/// a listener.
fn is_of_this_machine(address: SocketAddr) -> bool {
    Socket::connect(address, &Options::default()).is_ok_and(|socket| socket.address().ip() == address.ip())
}

/// Opens a session, unless something forbids it; then the datagram is dropped, and the reason counted.
fn open_session(proxy: &mut Proxy, cx: &mut Context, index: usize, meta: &Meta) -> Option<Key> {
    let listener = proxy.udp.endpoints.get(index)?.as_ref()?.listener.clone();
    let (peer, ip) = (meta.remote, meta.remote.ip());
    if is_no_client(proxy, peer, meta.local) {
        proxy.counters.count(Count::UdpDroppedSource);
        return None;
    }
    if proxy.settings.is_draining() {
        proxy.counters.count(Count::UdpRefusedDraining);
        return None;
    }
    let passthrough = passthrough_for(&listener.listener, None);
    let rules = listener.listener.access.into_iter().chain(passthrough.and_then(|p| p.access()));
    if !listener.permit(rules, ip) {
        proxy.counters.count(Count::RelaysDenied);
        let client = (peer, proxy.log.next_connection());
        proxy.log.records().connection_denied(&proxy.counters, client);
        return None;
    }
    let Some(group) = passthrough.and_then(|p| listener.upstreams.get(p.upstream()).cloned()) else {
        proxy.counters.count(Count::RelaysRefused);
        return None;
    };
    // These count what they refuse.
    if !proxy.admission.allows_connection(cx, ip, &proxy.counters)
        || !proxy.admission.has_place_for(ip, &listener, &proxy.settings, &proxy.counters)
    {
        return None;
    }
    if !make_room(proxy, cx) {
        proxy.counters.count(Count::UdpRefusedFull);
        return None;
    }
    let local = SocketAddr::new(meta.local.unwrap_or(listener.listener.address.ip()), listener.listener.address.port());
    let to = select_server(proxy, cx, &group, (peer, local))?;
    let id = proxy.log.next_connection();
    let idle = group.settings().idle_timeout;
    let Proxy { connections, udp, .. } = proxy;
    let key = connections.insert_with(|key| {
        let place = udp.sessions.insert(pair_of(&listener, meta), key, cx.now());
        Conn::Udp(Box::new(UdpSession {
            client: Client::new(listener, Some(0), peer, id, Made::begun(cx.micros())),
            local: meta.local,
            endpoint: index,
            place,
            group,
            to,
            tried: Tried::default(),
            failure: None,
            has_replied: false,
            began: cx.micros(),
            up: Passed::default(),
            down: Passed::default(),
            deadline: Deadline::default(),
            idle,
            has_left_configuration: false,
        }))
    });
    proxy.counters.count(Count::UdpSessions);
    proxy.counters.set(Count::UdpSessionsActive, proxy.udp.sessions.len() as u64);
    proxy.admission.talkers().accepted(ip);
    let counted = proxy.admission.count_in_connection(&mut proxy.connections, key, &proxy.settings, &proxy.counters);
    let Some(Conn::Udp(session)) = proxy.connections.get_mut(key) else { return None };
    session.note_activity(cx, key);
    if !counted || cx.watch_listener(&session.to.socket, key.to_u64()).is_err() {
        end_session(proxy, cx, key, End::GaveWay);
        return None;
    }
    Some(key)
}

/// Makes room for another session, if there is none and one gives way.
fn make_room(proxy: &mut Proxy, cx: &mut Context) -> bool {
    let (sessions, most) =
        (proxy.udp.sessions.len(), proxy.udp.descriptors.min(proxy.settings.limits().max_connections));
    let is_full = sessions >= most || sessions >= ALWAYS && proxy.admission.is_short_of_memory();
    !is_full || give_way(proxy, cx)
}

/// Ends the session that gives way first. False if none does.
fn give_way(proxy: &mut Proxy, cx: &mut Context) -> bool {
    let first = proxy.udp.sessions.gives_way(cx.now());
    first.inspect(|key| end_session(proxy, cx, *key, End::GaveWay)).is_some()
}

/// Connects to one of the servers. `None`: the reason has been counted.
fn select_server(
    proxy: &mut Proxy,
    cx: &mut Context,
    group: &Rc<LaneUpstream>,
    ends: (SocketAddr, SocketAddr),
) -> Option<Connected> {
    let mut tried = Tried::default();
    for _ in 0..group.settings().tries.max(1) {
        let (server, lease) = match group.begin_session(tried, ends.0.ip()) {
            Ok(chosen) => chosen,
            Err(pick) => {
                let full = pick == Pick::Full;
                proxy.counters.count(if full { Count::UdpRefusedServersFull } else { Count::UdpRefusedNoServer });
                return None;
            }
        };
        match connect(&proxy.settings, group, server, lease, ends) {
            Ok(to) => return Some(to),
            // A session that gives way leaves its descriptor.
            Err(Some(_)) if give_way(proxy, cx) => {}
            Err(Some(_)) => {
                proxy.counters.count(Count::UdpRefusedDescriptors);
                return None;
            }
            Err(None) => tried.note(server),
        }
    }
    proxy.counters.count(Count::UdpRefusedNoServer);
    None
}

/// Opens a socket that is connected to a server. On failure: what this machine lacks for it, or `None` where there is no
/// way to the server, which then counts as failed.
fn connect(
    settings: &LaneSettings,
    group: &LaneUpstream,
    server: usize,
    lease: Lease,
    (client, local): (SocketAddr, SocketAddr),
) -> Result<Connected, Option<Errno>> {
    let place = group.settings().servers.get(server).ok_or(None)?;
    let socket = match Socket::connect(place.address, &Options::default()) {
        Ok(socket) => socket,
        Err(e) => {
            let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL, Errno::AGAIN];
            let lacking = Errno::from_io_error(&e).filter(|errno| lacks.contains(errno));
            if lacking.is_none() {
                lease.server().failed(Failure::Unreachable);
                group.nudge();
            }
            return Err(lacking);
        }
    };
    // `check` refuses such a server as far as the text tells; a name may lead here, too.
    if is_own_listener(settings, place.address, || socket.address().ip() == place.address.ip()) {
        return Err(None);
    }
    let mut header = Vec::new();
    if group.settings().proxy_protocol.is_some() {
        proxy_protocol::encode_datagram(&mut header, client, local);
    }
    Ok(Connected { socket, server, address: place.address, lease, header })
}

/// Sends a client's datagrams to its server.
fn forward(proxy: &mut Proxy, cx: &mut Context, key: Key, data: &[u8], segment: usize) {
    let Some(Conn::Udp(session)) = proxy.connections.get(key) else { return };
    proxy.udp.sessions.heard(session.place, cx.now());
    if !session.to.lease.server().state().standing().usable {
        let mut tried = session.tried;
        tried.note(session.to.server);
        move_session(proxy, cx, key, tried);
    }
    let datagrams = data.len().div_ceil(segment).max(1) as u64;
    let mut sent = send_to_server(proxy, key, data, segment);
    if sent.as_ref().is_err_and(is_unreachable) {
        // The error was about an earlier datagram: this one has not been sent. The same server may be well again.
        server_failed(proxy, cx, key);
        sent = send_to_server(proxy, key, data, segment);
    }
    let Some(Conn::Udp(session)) = proxy.connections.get_mut(key) else { return };
    session.note_activity(cx, key);
    if let Err(e) = sent {
        return proxy.counters.add(dropped(&e), datagrams);
    }
    session.up.datagrams += datagrams;
    session.up.bytes += data.len() as u64;
    proxy.counters.add(Count::UdpDatagramsUp, datagrams);
    proxy.counters.add(Count::UdpBytesUp, data.len() as u64);
    if session.has_all_requests() {
        proxy.udp.sessions.detach(session.place);
    }
    if session.is_complete() {
        end_session(proxy, cx, key, End::Complete);
    }
}

fn send_to_server(proxy: &mut Proxy, key: Key, data: &[u8], segment: usize) -> io::Result<()> {
    let Some(Conn::Udp(session)) = proxy.connections.get(key) else { return Ok(()) };
    let Connected { socket, address, header, .. } = &session.to;
    let nothing = Transmit { remote: *address, local: None, segment, ecn: 0, data: &[] };
    if header.is_empty() {
        return socket.send(&Transmit { data, ..nothing });
    }
    let out = &mut proxy.udp.scratch;
    // With a header each, the datagrams of a train are as equal as they were.
    let each = header.len() + segment;
    let most = (MAX_MESSAGE / each).max(1);
    let mut rest = data;
    loop {
        out.clear();
        let (now, later) = rest.split_at(rest.len().min(most * segment));
        if now.is_empty() {
            out.extend_from_slice(header);
        }
        for datagram in now.chunks(segment) {
            out.extend_from_slice(header);
            out.extend_from_slice(datagram);
        }
        socket.send(&Transmit { segment: each, data: out, ..nothing })?;
        rest = later;
        if rest.is_empty() {
            return Ok(());
        }
    }
}

/// Sends the datagrams of a session's server to its client.
fn from_server(proxy: &mut Proxy, cx: &mut Context, key: Key, batch: &mut Batch) {
    let Proxy { connections, udp, counters, .. } = proxy;
    let Some(Conn::Udp(session)) = connections.get_mut(key) else { return };
    let UdpRelay { endpoints, sessions, .. } = udp;
    let Some(Some(endpoint)) = endpoints.get(session.endpoint) else { return };
    let nothing = Transmit { remote: session.client.peer(), local: session.local, segment: 0, ecn: 0, data: &[] };
    let datagrams = |message: &Transmit| message.data.len().div_ceil(message.segment.max(1)).max(1) as u64;
    let mut messages = [nothing; MESSAGES];
    let mut count = 0;
    let mut expected = session.expected_replies();
    for (meta, bytes) in batch.iter_mut() {
        if meta.truncated {
            counters.count(Count::UdpDroppedOversize);
            continue;
        }
        let segment = if bytes.is_empty() { 0 } else { meta.segment };
        let mut message = Transmit { segment, data: bytes, ..nothing };
        if let Some(left) = &mut expected {
            let all = datagrams(&message);
            let pass = all.min(*left);
            *left -= pass;
            counters.add(Count::UdpDroppedUnexpected, all - pass);
            if pass == 0 {
                continue;
            }
            message.data = &message.data[..message.data.len().min(pass as usize * segment)];
        }
        messages[count] = message;
        count += 1;
    }
    // What does not reach the client has come from the server all the same.
    session.down.datagrams += messages[..count].iter().map(datagrams).sum::<u64>();
    session.down.bytes += messages[..count].iter().map(|message| message.data.len() as u64).sum::<u64>();
    let mut rest = &messages[..count];
    while let Some(first) = rest.first() {
        match endpoint.socket.send_batch(rest) {
            Ok(sent) => {
                let (gone, later) = rest.split_at(sent.clamp(1, rest.len()));
                for message in gone {
                    counters.add(Count::UdpDatagramsDown, datagrams(message));
                    counters.add(Count::UdpBytesDown, message.data.len() as u64);
                }
                rest = later;
            }
            Err(e) => {
                counters.add(dropped(&e), datagrams(first));
                rest = &rest[1..];
            }
        }
    }
    if count > 0 {
        session.note_activity(cx, key);
        sessions.replied(session.place);
        session.tried = Tried::default();
        if !std::mem::replace(&mut session.has_replied, true) {
            session.to.lease.server().succeeded();
        }
    }
    if session.is_complete() {
        end_session(proxy, cx, key, End::Complete);
    }
}

/// The server's host reports that nobody takes datagrams there: the session goes on with another server, if there is one.
fn server_failed(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(Conn::Udp(session)) = proxy.connections.get_mut(key) else { return };
    session.to.lease.server().failed(Failure::Unreachable);
    session.group.nudge();
    session.failure = Some(Failure::Unreachable);
    session.has_replied = false;
    session.tried.note(session.to.server);
    if !session.group.has_untried(session.tried) {
        // All have refused: those before may be well again.
        session.tried = Tried::default();
        session.tried.note(session.to.server);
    }
    let tried = session.tried;
    move_session(proxy, cx, key, tried);
}

/// Gives a session another server than those that were tried. If there is none, the session stays where it is.
fn move_session(proxy: &mut Proxy, cx: &mut Context, key: Key, tried: Tried) {
    let Some(Conn::Udp(session)) = proxy.connections.get_mut(key) else { return };
    if !session.group.has_untried(tried) {
        return;
    }
    let Ok((server, lease)) = session.group.begin_session(tried, session.client.peer().ip()) else { return };
    let own = session.client.listener().listener.address;
    let local = SocketAddr::new(session.local.unwrap_or(own.ip()), own.port());
    let Ok(to) = connect(&proxy.settings, &session.group, server, lease, (session.client.peer(), local)) else {
        return;
    };
    if cx.watch_listener(&to.socket, key.to_u64()).is_err() {
        return;
    }
    // The socket before is closed, and with it the watch.
    session.to = to;
    session.has_replied = false;
}

/// Whether a datagram was not sent because the server's host, or a router, reports that there is no way to the server.
fn is_unreachable(e: &io::Error) -> bool {
    let unreachable = [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::NETUNREACH, Errno::HOSTDOWN];
    Errno::from_io_error(e).is_some_and(|errno| unreachable.contains(&errno))
}

/// Why datagrams were dropped that could not be sent.
fn dropped(e: &io::Error) -> Count {
    match Errno::from_io_error(e) {
        Some(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => Count::UdpDroppedSocketFull,
        Some(Errno::MSGSIZE) => Count::UdpDroppedOversize,
        _ => Count::UdpDroppedUnreachable,
    }
}

/// Ends a session: the access log has a line of it.
pub(crate) fn end_session(proxy: &mut Proxy, cx: &mut Context, key: Key, end: End) {
    let Some(Conn::Udp(session)) = proxy.connections.get(key) else { return };
    proxy.udp.sessions.remove(session.place);
    proxy.counters.set(Count::UdpSessionsActive, proxy.udp.sessions.len() as u64);
    proxy.counters.count(match end {
        End::Idle => Count::UdpEndedIdle,
        End::Complete => Count::UdpEndedComplete,
        End::GaveWay => Count::UdpEndedEvicted,
        End::Reload => Count::UdpEndedReload,
        End::Drain => Count::UdpEndedDrain,
    });
    let failure = session.failure.filter(|_| !session.has_replied);
    if proxy.log.is_on() || failure.is_some() {
        let x = Exchange::of_session(EndedSession {
            stream: ClientStream::H1(key),
            began: session.began,
            group: session.group.clone(),
            server: session.to.server,
            bytes: (session.up.bytes, session.down.bytes),
            failure,
            ending: match end {
                End::Idle => Ending::Idle,
                End::Drain => Ending::Drain,
                End::Complete | End::GaveWay | End::Reload => Ending::No,
            },
        });
        let Proxy { connections, log, counters, settings, .. } = proxy;
        log_exchange(connections, log, counters, settings, cx, &x);
    }
    if let Some(Conn::Udp(mut session)) = proxy.connections.remove(key) {
        proxy.admission.session_over(session.client.count_out(), &proxy.settings);
    }
}

/// The timer of a session has fired.
pub(crate) fn session_timeout(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(Conn::Udp(session)) = proxy.connections.get(key) else { return };
    let end = match session.has_left_configuration {
        _ if proxy.settings.is_draining() => End::Drain,
        true => End::Reload,
        false => End::Idle,
    };
    end_session(proxy, cx, key, end);
}

/// Follows the configuration: sessions go on whose listener still relays to their server.
pub(crate) fn udp_refresh(proxy: &mut Proxy, cx: &mut Context) {
    let is_draining = proxy.settings.is_draining();
    for key in proxy.udp.sessions.keys() {
        let Some(Conn::Udp(session)) = proxy.connections.get_mut(key) else { continue };
        // `renew_clients` has given the client the newest form of its listener.
        let group = passthrough_for(&session.client.listener().listener, None)
            .and_then(|p| session.client.listener().upstreams.get(p.upstream()))
            .filter(|_| session.client.is_current());
        let found = proxy.settings.lane().successor(&session.group, session.to.server);
        match found.filter(|(new, _)| group.is_some_and(|group| Rc::ptr_eq(group, new))) {
            Some((group, server)) => {
                if !is_draining {
                    session.idle = group.settings().idle_timeout;
                }
                (session.group, session.to.server) = (group, server);
                session.tried = Tried::default();
                session.hurry(cx, key, session.idle);
            }
            // The client's next datagram begins another session; replies that are on their way still come.
            None if session.client.is_current() => {
                session.has_left_configuration = true;
                proxy.udp.sessions.detach(session.place);
                session.hurry(cx, key, LAST_REPLIES);
            }
            None => end_session(proxy, cx, key, End::Reload),
        }
    }
    // What cannot be watched now is tried again with the next snapshot; control has opened the sockets.
    let _ = proxy.udp.listen(cx, &proxy.settings);
}

/// The lane drains: sessions get what they wait for, and end. `has_successor`: another process reads the sockets.
pub(crate) fn udp_drain(proxy: &mut Proxy, cx: &mut Context, has_successor: bool) {
    if has_successor {
        proxy.udp.follow(cx);
    }
    for key in proxy.udp.sessions.keys() {
        if let Some(Conn::Udp(session)) = proxy.connections.get_mut(key) {
            session.hurry(cx, key, LAST_REPLIES);
        }
    }
}

/// The lane ends.
pub(crate) fn udp_end(proxy: &mut Proxy, cx: &mut Context) {
    for key in proxy.udp.sessions.keys() {
        end_session(proxy, cx, key, End::Drain);
    }
}
