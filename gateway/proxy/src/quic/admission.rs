//! New connections: who must prove its address first, who waits for crypto time, whose hello is another lane's.

use super::conn::{BRIEF, Phase, QuicConn, Role};
use super::{Datagram, QuicEndpoint, config};
use crate::Message;
use crate::accept::admission::Admission;
use crate::client::connection::handshake_failed;
use crate::client::h3::our_settings;
use crate::conn::{AddressText, Client, Conn};
use crate::connections::Connections;
use crate::counters::Counters;
use crate::exchange::executor::{abort_exchange, handshake_done};
use crate::exchange::waste::WasteBudget;
use crate::memory::count_in;
use crate::quic::quic_drive;
use crate::service::Proxy;
use crate::settings::LaneSettings;
use crate::upstream::h3::h3_server_lost;
use bytes::BytesMut;
use quinn_proto::{ConnectionError, Incoming};
use sealane_http::h3::{Code, Peer, Settings, Side};
use sealane_lane::{Context, Deadline, Key, Millis};
use sealane_tls::quic::Handshake;
use sealane_tls::{CertificateDer, quic as tls_quic, sessions};
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Datagrams kept of a connection whose hello is not whole yet.
const MAX_RAW: usize = 8;
/// How many of those that wait are looked through for a datagram's.
const LOOK_BACK: usize = 32;
/// How long the first packets of a hello go unacknowledged while the rest is on its way: `max_ack_delay`'s default
/// (RFC 9000 §18.2). A client's own timer is far longer.
const HOLD: Duration = Duration::from_millis(25);
/// First connection ids that are remembered as another lane's.
const MAX_MOVED: usize = 4096;
/// The longest connection id there is (RFC 9000 §17.2).
const LONGEST_ID: usize = 20;

/// An Initial that waits for crypto time.
pub(crate) struct Waiting {
    endpoint: usize,
    incoming: Incoming,
    /// The datagrams so far, if they may have to go to another lane.
    raw: Vec<BytesMut>,
}

/// The connection id that a datagram with a long header is for.
fn long_header_id(datagram: &[u8]) -> Option<&[u8]> {
    if datagram.first()? & 0x80 == 0 {
        return None;
    }
    let len = usize::from(*datagram.get(5)?);
    (len <= LONGEST_ID).then(|| datagram.get(6..6 + len))?
}

/// First connection ids, as clients chose them, of connections that went to another lane: what the client sends before
/// it knows our id goes there, too, as long as it comes from the same address and the handshake may still be going on.
/// Bounded; what is forgotten costs a retransmission at most.
#[derive(Default)]
pub(crate) struct Moved {
    places: HashMap<Vec<u8>, Place>,
    /// The oldest first.
    order: VecDeque<Vec<u8>>,
}

struct Place {
    remote: SocketAddr,
    slot: usize,
    until: Millis,
}

impl Moved {
    /// Who owns a datagram with a long header.
    pub fn owner(&mut self, now: Millis, remote: SocketAddr, datagram: &[u8]) -> Option<usize> {
        if self.order.is_empty() {
            return None;
        }
        self.expire(now);
        let place = self.places.get(long_header_id(datagram)?)?;
        (place.remote == remote).then_some(place.slot)
    }

    fn note(&mut self, now: Millis, remote: SocketAddr, datagram: &[u8], slot: usize, until: Millis) {
        self.expire(now);
        let Some(id) = long_header_id(datagram) else { return };
        // The connection that used this id first keeps it.
        if self.places.contains_key(id) {
            return;
        }
        if self.order.len() >= MAX_MOVED
            && let Some(oldest) = self.order.pop_front()
        {
            self.places.remove(&oldest);
        }
        self.places.insert(id.to_vec(), Place { remote, slot, until });
        self.order.push_back(id.to_vec());
    }

    fn expire(&mut self, now: Millis) {
        while let Some(oldest) = self.order.front()
            && self.places.get(oldest).is_none_or(|place| place.until <= now)
        {
            self.places.remove(oldest);
            self.order.pop_front();
        }
    }
}

impl QuicEndpoint {
    /// More of a client that waits still. What is not found costs a retransmission, should it go to another lane.
    pub fn waits(&mut self, index: usize, data: BytesMut) {
        let Some(id) = long_header_id(&data) else { return };
        let same = |w: &&mut Waiting| w.endpoint == index && w.incoming.orig_dst_cid().as_ref() == id;
        let found = self.waiting.iter_mut().rev().take(LOOK_BACK).find(same);
        if let Some(waiting) = found.filter(|w| !w.raw.is_empty() && w.raw.len() < MAX_RAW) {
            waiting.raw.push(data);
        }
    }
}

/// A client's first packet. `counted`: another lane has asked already whether this client may connect.
pub(crate) fn quic_incoming(
    proxy: &mut Proxy,
    cx: &mut Context,
    index: usize,
    incoming: Incoming,
    raw: Option<BytesMut>,
    counted: bool,
) {
    let full = proxy.quic.waiting.len() >= config::MAX_INCOMING
        || proxy.admission.is_full(&proxy.settings)
        || proxy.settings.is_draining();
    let pressure = proxy.quic.handshakes + proxy.quic.waiting.len();
    let Some(Some(endpoint)) = proxy.quic.endpoints.get_mut(index) else { return };
    let Some(listener) = &endpoint.listener else { return endpoint.endpoint.ignore(incoming) };
    let retry_above = listener.listener.quic.as_ref().map_or(0, |q| q.settings.retry_above);
    let mut answer = std::mem::take(&mut proxy.quic.out.scratch);
    answer.clear();
    if full || endpoint.leaving {
        proxy.counters.quic_refused.inc();
        let transmit = endpoint.endpoint.refuse(incoming, &mut answer);
        proxy.quic.out.push(index, &transmit, &answer);
    } else if pressure >= retry_above && incoming.may_retry() && !incoming.remote_address_validated() {
        // RFC 9000 §8.1.2: nothing is kept of a client that has not shown that it is where it says.
        proxy.counters.quic_retries.inc();
        match endpoint.endpoint.retry(incoming, &mut answer) {
            Ok(transmit) => proxy.quic.out.push(index, &transmit, &answer),
            Err(e) => endpoint.endpoint.ignore(e.into_incoming()),
        }
    } else if !counted
        && !quic_within_rates(
            &mut proxy.admission,
            &proxy.settings,
            &proxy.counters,
            cx,
            incoming.remote_address().ip(),
        )
    {
        let Some(Some(endpoint)) = proxy.quic.endpoints.get_mut(index) else { return };
        let transmit = endpoint.endpoint.refuse(incoming, &mut answer);
        proxy.quic.out.push(index, &transmit, &answer);
    } else {
        let raw = raw.into_iter().collect();
        proxy.quic.waiting.push_back(Waiting { endpoint: index, incoming, raw });
    }
    proxy.quic.out.scratch = answer;
}

/// Whether a client may connect, as its address' connections and handshakes go; looked at before anything is
/// decrypted for it. Behind Retry, so that with `retry_above = 0` no forged address uses up another's share.
fn quic_within_rates(
    admission: &mut Admission,
    settings: &LaneSettings,
    counters: &Counters,
    cx: &mut Context,
    peer: IpAddr,
) -> bool {
    admission.allows_connection(cx, peer, counters)
        && admission.has_place_for(peer, settings, counters)
        && admission.allows_handshake(cx, peer, counters)
}

/// Spends crypto time on those that wait, as `accept::admission::serve_admission` does.
pub(crate) fn quic_admit(proxy: &mut Proxy, cx: &mut Context) {
    if proxy.quic.waiting.is_empty() {
        return;
    }
    let budget = proxy.settings.limits().handshake_budget;
    let start = cx.instant();
    let mut before = start;
    while let Some(waiting) = proxy.quic.waiting.pop_front() {
        quic_accept(proxy, cx, waiting);
        let after = cx.instant();
        let took = after - before;
        before = after;
        if after - start + took > budget {
            break;
        }
    }
    proxy.counters.handshake_nanos.add((before - start).as_nanos() as u64);
}

fn quic_accept(proxy: &mut Proxy, cx: &mut Context, waiting: Waiting) {
    let Waiting { endpoint: index, incoming, raw } = waiting;
    let now = cx.instant();
    let limits = proxy.settings.limits().clone();
    let Some(Some(endpoint)) = proxy.quic.endpoints.get_mut(index) else { return };
    let Some(listener) = endpoint.listener.clone() else { return endpoint.endpoint.ignore(incoming) };
    let remote = incoming.remote_address();
    let mut answer = std::mem::take(&mut proxy.quic.out.scratch);
    answer.clear();
    #[expect(clippy::result_large_err, reason = "it is quinn-proto's, and is looked at right below")]
    let accept = || endpoint.endpoint.accept(incoming, now, &mut answer, None);
    let (accepted, foreign) = tls_quic::hear(!raw.is_empty(), accept);
    proxy.counters.forged_session_ids.set(sessions::forged());
    match accepted {
        Err(e) => {
            let reason = failure(&e.cause);
            proxy.counters.tls_failure(reason);
            let connection = proxy.log.next_connection();
            proxy.log.records().handshake_failed(&proxy.counters, (remote, connection), reason);
            if let Some(transmit) = &e.response {
                proxy.quic.out.push(index, transmit, &answer);
            }
            proxy.quic.out.scratch = answer;
        }
        Ok((handle, quic)) => {
            proxy.quic.out.scratch = answer;
            proxy.counters.accepted.inc();
            let all_streams = listener.listener.quic.as_ref().map(|q| q.settings.max_streams);
            let all_streams = all_streams.filter(|all| *all > config::FIRST_STREAMS);
            let client = Client {
                listener,
                policy: None,
                peer: remote,
                id: proxy.log.next_connection(),
                peer_text: AddressText::new(remote.ip()),
                cert: None,
                requests: 0,
                waste: WasteBudget::default(),
                // Limits by name count by the authority of requests here.
                server_name: None,
                counted: None,
                held: 0,
            };
            let settings = our_settings(&limits);
            let key = quic_insert(
                &mut proxy.connections,
                &mut proxy.quic,
                index,
                handle,
                quic,
                Role::Client(client),
                cx.now(),
            );
            proxy.admission.arrived(&proxy.counters);
            proxy.quic.handshakes += 1;
            count_in(&mut proxy.connections, &proxy.admission, &proxy.settings, &proxy.counters, key);
            if let Some(q) = proxy.connections.quic(key) {
                q.hold = (!raw.is_empty()).then(|| now + HOLD);
                q.raw = raw;
                q.foreign = foreign;
                q.brief_until = Some(now + BRIEF);
                q.all_streams = all_streams;
                q.open_control(&settings);
                q.deadline.after(cx, key, limits.handshake_timeout);
            }
            quic_drive(proxy, cx, key);
        }
    }
}

/// Takes a connection in.
pub(crate) fn quic_insert(
    connections: &mut Connections,
    quic: &mut QuicEndpoint,
    endpoint: usize,
    handle: quinn_proto::ConnectionHandle,
    connection: quinn_proto::Connection,
    role: Role,
    now: Millis,
) -> Key {
    let side = if matches!(role, Role::Client(_)) { Side::Server } else { Side::Client };
    let q = QuicConn {
        quic: connection,
        handle,
        endpoint,
        role,
        phase: Phase::Handshake,
        peer: Peer::new(side),
        settings: Settings::default(),
        uni: Vec::new(),
        control: None,
        control_out: Vec::new(),
        streams: Slab::new(),
        waiting: 0,
        by_id: HashMap::new(),
        early_priorities: VecDeque::new(),
        turns: 0,
        staged: Vec::new(),
        needs_flush: false,
        armed: None,
        deadline: Deadline::default(),
        began: now,
        idle_since: now,
        requests_waiting: VecDeque::new(),
        next_id: 0,
        raw: Vec::new(),
        foreign: None,
        hold: None,
        called_early: false,
        established: false,
        silent: false,
        counted_out: false,
        leave_at: None,
        brief_until: None,
        all_streams: None,
    };
    let key = connections.insert(Conn::Quic(Box::new(q)));
    quic.note(endpoint, handle, key);
    key
}

/// Whether a connection's hello has turned out to be another lane's: its datagrams go there, and nothing is left.
pub(crate) fn quic_gave_up_hello(
    connections: &mut Connections,
    quic: &mut QuicEndpoint,
    admission: &mut Admission,
    settings: &LaneSettings,
    counters: &Counters,
    cx: &Context,
    key: Key,
) -> bool {
    let Some(Conn::Quic(q)) = connections.get_mut(key) else { return true };
    if q.raw.is_empty() {
        return false;
    }
    let Some(owner) = q.foreign else {
        // Past the hello, or so much of it that it is none.
        if q.quic.crypto_session().handshake_data().is_some() || q.raw.len() > MAX_RAW || q.quic.is_closed() {
            q.stays();
        }
        return false;
    };
    let (raw, handle, index) = (std::mem::take(&mut q.raw), q.handle, q.endpoint);
    let (remote, local) = (q.quic.remote_address(), q.quic.local_ip());
    let Some(Some(endpoint)) = quic.endpoints.get_mut(index) else { return true };
    let listener = endpoint.listener.as_ref().map_or(0, |l| l.listener.id);
    // The first of the owner's sockets.
    let slot = owner;
    if let Some(first) = raw.first() {
        let (now, wait) = (cx.now(), settings.limits().handshake_timeout);
        quic.moved.note(now, remote, first, slot, now + wait.as_millis() as Millis);
    }
    counters.handed_over.inc();
    for data in raw {
        // A copy, as in `quic_mail`.
        let data = BytesMut::from(&data[..]);
        let message = Datagram { listener, slot, remote, local, ecn: 0, counted: true, fresh: true, data };
        // What does not fit is lost, and counted there; the client sends it again.
        let _ = settings.mailbox_of_socket(owner).send(Message::Datagram(Box::new(message)));
    }
    // Silently: the client will hear from the other lane.
    let _ = endpoint.endpoint.handle_event(handle, quinn_proto::EndpointEvent::drained());
    if let Some(place) = endpoint.keys.get_mut(handle.0) {
        *place = None;
    }
    quic_left(connections, quic, admission, settings, counters, key);
    connections.remove(key);
    true
}

/// The hello has been read: from now on the rules for its server name apply, to early data as well.
pub(crate) fn quic_hello_read(connections: &mut Connections, key: Key) {
    let Some(Conn::Quic(q)) = connections.get_mut(key) else { return };
    let handshake = q.quic.crypto_session().handshake_data().and_then(|d| d.downcast::<Handshake>().ok());
    if let (Role::Client(client), Some(handshake)) = (&mut q.role, handshake) {
        client.policy = Some(handshake.policy);
    }
}

/// The handshake is over.
pub(crate) fn quic_established(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let draining = proxy.settings.is_draining();
    let limits = proxy.settings.limits().clone();
    let Some(Conn::Quic(q)) = proxy.connections.get_mut(key) else { return };
    if q.phase == Phase::Handshake {
        q.phase = Phase::Open;
    }
    q.established = true;
    if q.brief_until.is_none() {
        q.prepare_key_update();
    }
    let session = q.quic.crypto_session();
    let handshake = session.handshake_data().and_then(|d| d.downcast::<Handshake>().ok());
    let certificates = session.peer_identity().and_then(|d| d.downcast::<Vec<CertificateDer<'static>>>().ok());
    q.open_control(&our_settings(&limits));
    q.idle_since = cx.now();
    proxy.quic.handshakes = proxy.quic.handshakes.saturating_sub(1);
    let c = &proxy.counters;
    c.quic_connections.inc();
    if let Some(h) = &handshake {
        match h.summary.map(|s| s.resumed) {
            Some(true) => c.resumed_tls13.inc(),
            _ => c.full_tls13.inc(),
        }
        match (h.early_offered, q.called_early) {
            (true, true) => c.early_data_accepted.inc(),
            (true, false) => c.early_data_rejected.inc(),
            _ => {}
        }
    }
    let Role::Client(client) = &mut q.role else { return };
    client.cert = certificates.and_then(|c| c.first().map(crate::exchange::forwarded::client_cert));
    let wait = crate::client::h3::sweep(&limits);
    q.deadline.set(cx, key, cx.now() + wait);
    if draining {
        q.leave_soon(cx.now());
    }
    let exchanges: Vec<Key> = q.streams.iter().filter_map(|(_, s)| s.exchange).collect();
    for exchange in exchanges {
        handshake_done(proxy, cx, exchange);
    }
}

/// The connection is lost: closed by the client, timed out, or broken.
pub(crate) fn quic_lost(proxy: &mut Proxy, cx: &mut Context, key: Key, reason: &ConnectionError) {
    let Some(q) = proxy.connections.quic(key) else { return };
    q.silent = matches!(reason, ConnectionError::ConnectionClosed(_) | ConnectionError::ApplicationClosed(_));
    if q.phase == Phase::Handshake {
        handshake_failed(proxy, key, failure(reason));
    }
    match reason {
        ConnectionError::TransportError(_) => proxy.counters.quic_transport_errors.inc(),
        ConnectionError::TimedOut => proxy.counters.client_timeouts.inc(),
        _ => {}
    }
    quic_end(proxy, cx, key);
}

/// No request of a connection goes on; what is left of it is the protocol's.
pub(crate) fn quic_end(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(q) = proxy.connections.quic(key) else { return };
    q.phase = Phase::Closed;
    let exchanges: Vec<Key> = q.streams.iter().filter_map(|(_, s)| s.exchange).collect();
    for exchange in exchanges {
        proxy.counters.client_aborts.inc();
        abort_exchange(proxy, cx, exchange);
    }
    if let Some(q) = proxy.connections.quic(key) {
        q.streams.clear();
        q.waiting = 0;
        q.by_id.clear();
        q.staged.clear();
        q.uni.clear();
    }
    quic_left(&mut proxy.connections, &mut proxy.quic, &mut proxy.admission, &proxy.settings, &proxy.counters, key);
    proxy.connections.mark_for_flush(key);
}

/// Counts a client out, once.
pub(crate) fn quic_left(
    connections: &mut Connections,
    quic: &mut QuicEndpoint,
    admission: &mut Admission,
    settings: &LaneSettings,
    counters: &Counters,
    key: Key,
) {
    let Some(q) = connections.quic(key).filter(|q| q.is_client()) else { return };
    if std::mem::replace(&mut q.counted_out, true) {
        return;
    }
    let counted = q.client().and_then(|c| c.counted.take());
    let handshaking = !q.established;
    if handshaking {
        quic.handshakes = quic.handshakes.saturating_sub(1);
    }
    admission.left(counted, settings, counters);
}

/// The peer has broken HTTP/3's rules: the connection closes with the code that says so.
pub(crate) fn h3_connection_error(proxy: &mut Proxy, cx: &mut Context, key: Key, code: Code, why: &'static str) {
    let now = cx.instant();
    proxy.counters.h3_connection_errors.inc();
    let Some(q) = proxy.connections.quic(key) else { return };
    q.close(now, code, why);
    match q.is_client() {
        true => quic_end(proxy, cx, key),
        false => h3_server_lost(proxy, cx, key, None),
    }
}

/// Why a handshake failed, in the words of `TLS_FAILURES`.
fn failure(reason: &ConnectionError) -> &'static str {
    match reason {
        ConnectionError::TimedOut => "timeout",
        ConnectionError::ConnectionClosed(_) | ConnectionError::ApplicationClosed(_) => "peer_alert",
        ConnectionError::Reset => "closed",
        // RFC 9001 §4.8: alerts are codes from 0x100 on.
        ConnectionError::TransportError(e) => match u64::from(e.code).checked_sub(0x100) {
            Some(112) => "unknown_name",
            Some(120) => "no_application_protocol",
            Some(116) => "no_client_certificate",
            Some(42) => "bad_certificate",
            Some(45) => "certificate_expired",
            Some(40) => "incompatible",
            Some(_) => "bad_message",
            None => "other",
        },
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_connections_are_forgotten_in_time_and_known_from_their_address_only() {
        let mut moved = Moved::default();
        let first = |id: u32| [&[0xc0, 0, 0, 0, 1, 4][..], &id.to_be_bytes(), &[0; 30]].concat();
        let (here, there) = ("192.0.2.1:5".parse().unwrap(), "192.0.2.2:5".parse().unwrap());
        moved.note(0, here, &first(7), 1, 1000);
        moved.note(0, there, &first(7), 0, 1000);
        assert_eq!(moved.owner(1, here, &first(7)), Some(1), "whoever was first");
        assert_eq!(moved.owner(1, there, &first(7)), None);
        assert_eq!(moved.owner(1, here, &first(8)), None);
        for id in 0..10_000 {
            moved.note(500, here, &first(id), 1, 1500);
        }
        assert_eq!((moved.places.len(), moved.order.len()), (MAX_MOVED, MAX_MOVED));
        assert_eq!(moved.owner(1000, here, &first(7)), None);
        assert_eq!(moved.owner(1000, here, &first(8)), None, "there were too many since");
        assert_eq!(moved.owner(1000, here, &first(9_999)), Some(1));
        assert_eq!(moved.owner(1500, here, &first(9_999)), None);
        assert_eq!((moved.places.len(), moved.order.len()), (0, 0));
    }
}
