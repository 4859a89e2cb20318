//! Bounds how much of a turn new clients get.
//!
//! Events of established connections are handled at once. Accepting and all steps of handshakes are deferred to the end of
//! the turn, and take what `handshake_budget` allows. Then the lane polls again. So a request on a kept connection waits for
//! at most that time, or for one signature if that takes longer, however many new clients there are.

use crate::accept::syn::Signatures;
use crate::accept::{LISTENER, accept_clients, own_sockets};
use crate::client::connection::{client_event, start_session};
use crate::client::identity::Client;
use crate::client::state::ClientConnection;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::{Count, Counters};
use crate::flush::flush_marked;
use crate::lane_state::LaneListener;
use crate::limits::{ClientCounts, ConcurrencyLimit, Counted, CountedBy, LaneLimits, Levels, Passed};
use crate::logins::Logins;
use crate::service::{Message, Proxy};
use crate::settings::LaneSettings;
use crate::talkers::Talkers;
use sealane_http::Fields;
use sealane_lane::{Context, Deadline, Key, Micros, Millis, Ready, Undelivered};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Connections accepted before other new clients get their turn.
const ACCEPTS: usize = 4;
/// New clients that may wait before accepting pauses.
const MAX_WAITING: usize = 512;
/// Clients that a lane takes even while memory is short: it may be so for reasons that have nothing to do with them.
const ALWAYS: usize = 64;
/// How long accepting pauses when descriptors have run out.
const EXHAUSTED_MS: Millis = 100;
/// Descriptors that must be free before accepting goes on after such a pause.
const SPARE_DESCRIPTORS: usize = 8;

/// What a lane has to do for new clients, and who may become one.
pub(crate) struct Admission {
    /// What is cheap, oldest first.
    steps: VecDeque<Step>,
    /// Hellos that wait for crypto time, oldest first, and since when.
    hellos: VecDeque<(Key, Micros)>,
    /// How long the last hello took to be answered.
    last: Duration,
    /// The last turn had no time left for a hello: in the next one comes first.
    owed: bool,
    /// The listening sockets are watched.
    listening: bool,
    /// Accepting has paused because descriptors were used up.
    lacks_descriptors: bool,
    /// When a pause of accepting is over.
    pause: Deadline,
    /// Clients that are connected.
    clients: usize,
    /// How many connections each client has, in all lanes.
    per_address: Arc<ClientCounts>,
    /// How many requests of each are under way, in all lanes.
    requests_per_address: Arc<ClientCounts>,
    /// The passwords of clients.
    logins: Logins,
    /// The process holds more memory than it should.
    short_of_memory: Arc<AtomicBool>,
    rates: LaneLimits,
    /// Who came, and who makes most of the load.
    talkers: Talkers,
    signatures: Signatures,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Connections wait at the socket with this token.
    Accept(u64),
    /// A connection before or in its handshake goes on with what was deferred.
    Event(Key),
}

impl Admission {
    /// Nobody is connected, and nothing is listened on yet.
    pub fn new(
        per_address: Arc<ClientCounts>,
        requests_per_address: Arc<ClientCounts>,
        logins: Logins,
        short_of_memory: Arc<AtomicBool>,
    ) -> Self {
        Self {
            steps: VecDeque::new(),
            hellos: VecDeque::new(),
            last: Duration::ZERO,
            owed: false,
            listening: false,
            lacks_descriptors: false,
            pause: Deadline::default(),
            clients: 0,
            per_address,
            requests_per_address,
            logins,
            short_of_memory,
            rates: LaneLimits::default(),
            talkers: Talkers::default(),
            signatures: Signatures::default(),
        }
    }

    /// Takes a new snapshot in; what is limited as before is remembered.
    pub fn refresh(&mut self, settings: &LaneSettings) {
        self.rates.refresh(settings.lane(), settings.lanes());
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.hellos.is_empty()
    }

    /// Enough are waiting: nobody else is accepted before they have got on.
    pub fn is_queue_full(&self) -> bool {
        self.steps.len() + self.hellos.len() >= MAX_WAITING
    }

    pub fn hello(&mut self, key: Key, now: Micros) {
        self.hellos.push_back((key, now));
    }

    /// The socket with this token has connections to accept.
    pub fn listener_ready(&mut self, token: u64) {
        // Sockets are few, and those that are ready stay so.
        let step = Step::Accept(token);
        if !self.steps.iter().any(|s| *s == step) {
            self.steps.push_back(step);
        }
    }

    /// Defers an event of a new client; each is in the queue once.
    pub fn event(&mut self, key: Key, client_conn: &mut ClientConnection, ready: Ready) {
        if client_conn.defer(ready) {
            self.steps.push_back(Step::Event(key));
        }
    }

    /// Whether a hello is answered whose client has not proven its address, as far as the lane has made few signatures for
    /// such clients.
    pub fn may_sign_unproven(&mut self, now: Millis) -> bool {
        self.signatures.take(now)
    }
}

/// Listening.
impl Admission {
    #[inline]
    pub fn is_listening(&self) -> bool {
        self.listening
    }

    /// Watches this slot's listening sockets.
    pub fn listen(&mut self, cx: &Context, settings: &LaneSettings) -> std::io::Result<()> {
        for (token, socket) in own_sockets(settings) {
            // Connections inherit it from the socket that accepts them: answers leave when we say so.
            let _ = rustix::net::sockopt::set_tcp_nodelay(socket, true);
            if let Err(error) = cx.watch_listener(socket, token) {
                // Those that are watched already would wake the lane for ever, and fail the next try.
                self.unlisten(cx, settings);
                return Err(error);
            }
        }
        self.listening = true;
        settings.own_mailbox().set_closed(false);
        Ok(())
    }

    /// Watches them no more.
    pub fn unlisten(&mut self, cx: &Context, settings: &LaneSettings) {
        for (_, socket) in own_sockets(settings) {
            cx.unwatch(socket);
        }
        self.listening = false;
    }

    /// Accepts nobody for now.
    pub fn pause(&mut self, cx: &Context, settings: &LaneSettings) {
        if self.listening {
            self.unlisten(cx, settings);
        }
        // Nor do other lanes hand connections over.
        settings.own_mailbox().set_closed(true);
    }

    /// Pauses because there is no place for another client.
    pub fn pause_full(&mut self, cx: &mut Context, settings: &LaneSettings, counters: &Counters) {
        if self.clients < settings.limits().max_connections {
            counters.count(Count::PausedMemory);
            // Memory can be enough again without one of ours being closed.
            self.accept_again(cx);
        } else {
            counters.count(Count::PausedConnections);
        }
        self.pause(cx, settings);
    }

    /// Pauses because descriptors are used up.
    pub fn pause_without_descriptors(&mut self, cx: &mut Context, settings: &LaneSettings, counters: &Counters) {
        counters.count(Count::PausedDescriptors);
        self.lacks_descriptors = true;
        self.accept_again(cx);
        self.pause(cx, settings);
    }

    /// Looks again soon whether there is room.
    pub fn accept_again(&mut self, cx: &mut Context) {
        let at = cx.now() + EXHAUSTED_MS;
        self.pause.set_no_later(cx, LISTENER, at);
    }

    /// The timer of a pause has fired, or another one of the listeners'.
    pub fn timeout(&mut self, cx: &mut Context, settings: &LaneSettings) {
        if self.pause.fired(cx, LISTENER) {
            self.resume(cx, settings);
        }
    }

    /// Accepts again if there is room.
    #[inline]
    pub fn resume(&mut self, cx: &mut Context, settings: &LaneSettings) {
        if !self.listening {
            self.resume_paused(cx, settings);
        }
    }

    fn resume_paused(&mut self, cx: &mut Context, settings: &LaneSettings) {
        if settings.is_draining() {
            return;
        }
        if self.lacks_descriptors {
            if !has_spare_descriptors(settings) {
                return self.accept_again(cx);
            }
            self.lacks_descriptors = false;
        }
        if !self.is_full(settings) {
            if self.listen(cx, settings).is_err() {
                self.accept_again(cx);
            }
        } else if self.clients < settings.limits().max_connections {
            self.accept_again(cx);
        }
    }
}

/// Who is connected, and who may be.
impl Admission {
    /// Whether there is no room for another client.
    pub fn is_full(&self, settings: &LaneSettings) -> bool {
        self.clients >= settings.limits().max_connections || self.clients >= ALWAYS && self.is_short_of_memory()
    }

    /// Whether the process uses more memory than it may.
    pub fn is_short_of_memory(&self) -> bool {
        self.short_of_memory.load(Ordering::Relaxed)
    }

    /// Whether clients are connected.
    #[inline]
    pub fn has_clients(&self) -> bool {
        self.clients > 0
    }

    /// A client has connected.
    pub fn arrived(&mut self, counters: &Counters) {
        self.clients += 1;
        counters.set(Count::Open, self.clients as u64);
    }

    /// A client's connection is over, whatever it spoke: there may be a place for another client. `counted`: it was among those
    /// of its address.
    pub fn left(&mut self, cx: &mut Context, counted: Option<Counted>, settings: &LaneSettings, counters: &Counters) {
        if let Some(counted) = counted {
            self.per_address.leave(settings.slot(), counted);
        }
        self.clients -= 1;
        counters.set(Count::Open, self.clients as u64);
        self.resume(cx, settings);
    }

    /// A session of relayed datagrams is over, which counted among the connections of its client.
    pub fn session_over(&mut self, counted: Option<Counted>, settings: &LaneSettings) {
        if let Some(counted) = counted {
            self.per_address.leave(settings.slot(), counted);
        }
    }

    /// Who came, and who makes most of the load.
    pub fn talkers(&mut self) -> &mut Talkers {
        &mut self.talkers
    }

    /// Counts a connection among those of its client. False if it has too many.
    pub fn count_in_connection(
        &self,
        connections: &mut Connections,
        key: Key,
        settings: &LaneSettings,
        counters: &Counters,
    ) -> bool {
        connections.get_mut(key).and_then(Conn::client).is_none_or(|client| self.count_in(client, settings, counters))
    }

    fn count_in(&self, client: &mut Client, settings: &LaneSettings, counters: &Counters) -> bool {
        if client.is_unnamed() {
            // It may bring the connections of many clients.
            return true;
        }
        let place = self.place_for(client.peer().ip(), client.listener(), settings, counters);
        client.count_in(place.flatten());
        place.is_some()
    }

    /// A place for another connection of a client: `Some(None)` if its connections are not counted, `None` if it has too many.
    fn place_for(
        &self,
        peer: IpAddr,
        listener: &LaneListener,
        settings: &LaneSettings,
        counters: &Counters,
    ) -> Option<Option<Counted>> {
        let limits = settings.limits();
        // A trusted proxy brings the connections of many clients.
        if limits.max_per_client == 0 || listener.listener.trusted_proxies.contains(peer) {
            return Some(None);
        }
        let counted = self.per_address.admit(settings.slot(), peer, limits.client_prefixes, limits.max_per_client);
        if counted.is_none() {
            counters.count(Count::ClientsLimited);
        }
        counted.map(Some)
    }

    /// Counts a request among those of its client. `None` if too many are under way.
    pub fn count_request(&self, client: IpAddr, settings: &LaneSettings) -> Option<Counted> {
        let limits = settings.limits();
        let most = limits.max_requests_per_client;
        self.requests_per_address.admit(settings.slot(), client, limits.client_prefixes, most)
    }

    /// Counts a request among those that a limit of its route counts. `None` if too many of them are under way.
    pub fn count_request_under(
        &self,
        limit: &ConcurrencyLimit,
        key: CountedBy,
        settings: &LaneSettings,
    ) -> Option<Counted> {
        self.requests_per_address.admit_under(settings.slot(), limit, key)
    }

    /// A request that was counted is over.
    pub fn request_over(&self, counted: Counted, settings: &LaneSettings) {
        self.requests_per_address.leave(settings.slot(), counted);
    }

    /// The passwords of clients.
    pub fn logins(&mut self) -> &mut Logins {
        &mut self.logins
    }

    /// Whether a client may have another connection.
    pub fn has_place_for(
        &self,
        peer: IpAddr,
        listener: &LaneListener,
        settings: &LaneSettings,
        counters: &Counters,
    ) -> bool {
        let place = self.place_for(peer, listener, settings, counters);
        if let Some(Some(counted)) = place {
            self.per_address.leave(settings.slot(), counted);
        }
        place.is_some()
    }
}

/// Rates.
impl Admission {
    /// Whether a new connection of this client is within its rate.
    #[inline]
    pub fn allows_connection(&mut self, cx: &mut Context, peer: IpAddr, counters: &Counters) -> bool {
        let passed = self.rates.connection(cx, peer);
        if !passed {
            counters.count(Count::ConnectionsLimited);
        }
        passed
    }

    /// Whether a new session of this client is within its rate.
    #[inline]
    pub fn allows_handshake(&mut self, cx: &mut Context, peer: IpAddr, counters: &Counters) -> bool {
        let passed = self.rates.handshake(cx, peer);
        if !passed {
            counters.count(Count::HandshakesLimited);
        }
        passed
    }

    /// Lets a request pass a limit of the snapshot, or says after how many milliseconds to come again.
    pub fn request(
        &mut self,
        cx: &mut Context,
        limit: usize,
        peer: IpAddr,
        name: &[u8],
        fields: &Fields,
    ) -> Result<(), Millis> {
        self.rates.request(cx, limit, peer, name, fields)
    }

    /// Whether a limit counts requests by the client's address.
    pub fn counts_by_address(&self, limit: usize) -> bool {
        self.rates.counts_by_address(limit)
    }

    /// Some limit counts by the name in the hello.
    #[inline]
    pub fn counts_by_server_name(&self) -> bool {
        self.rates.by_server_name()
    }

    /// Another lane has let something pass.
    pub fn heard(&mut self, cx: &Context, passed: &Passed) {
        self.rates.heard(cx, passed);
    }

    /// What all gateways together have let pass.
    pub fn lower_rates(&mut self, cx: &Context, levels: &Levels) {
        self.rates.lower(cx, levels);
    }

    /// The timer of the rates has fired: tells the other lanes what has passed here, and control for the other gateways.
    pub fn tell_others(&mut self, cx: &mut Context, settings: &LaneSettings, counters: &Counters) {
        let news: Vec<Arc<Passed>> = self.rates.fired(cx).into_iter().map(Arc::new).collect();
        for (slot, mailbox) in settings.others() {
            let earlier = self.rates.take_untold(slot).into_iter().map(Arc::new);
            for passed in earlier.chain(news.iter().cloned()) {
                // A lane that has ended lets nothing pass.
                if let Err(Undelivered::Full(Message::Passed(passed))) = mailbox.send(Message::Passed(passed)) {
                    counters.add(Count::RateNewsLost, self.rates.keep(cx, slot, &passed));
                }
            }
        }
        if let Some(shared) = self.rates.shared() {
            let own = settings.slot();
            let earlier = self.rates.take_untold(own).into_iter().map(Arc::new);
            for passed in earlier.chain(news) {
                if !(shared.tell)(&passed) {
                    counters.add(Count::RateNewsLost, self.rates.keep(cx, own, &passed));
                }
            }
        }
    }
}

/// Whether there are descriptors for more than the next client: its request may need an upstream connection.
fn has_spare_descriptors(settings: &LaneSettings) -> bool {
    let Some((_, socket)) = own_sockets(settings).next() else { return true };
    let spare = (0..SPARE_DESCRIPTORS).map_while(|_| rustix::io::fcntl_dupfd_cloexec(socket, 0).ok());
    spare.collect::<Vec<_>>().len() == SPARE_DESCRIPTORS
}

/// Goes on with new clients until the turn's time for them is spent. At least one step or hello, so that a small
/// budget still gets on; none beyond it that would, taking as long as the last, end after it.
pub(crate) fn serve_admission(proxy: &mut Proxy, cx: &mut Context) {
    if proxy.admission.is_empty() {
        return;
    }
    let budget = proxy.settings.limits().handshake_budget;
    let start = cx.instant();
    let mut now = start;
    let mut begun = false;
    let mut answered = false;
    if std::mem::take(&mut proxy.admission.owed)
        && let Some(hello) = proxy.admission.hellos.pop_front()
        && let Some(after) = answer_hello(proxy, cx, hello, start, now)
    {
        now = after;
        (begun, answered) = (true, true);
    }
    while (!begun || now - start < budget)
        && let Some(step) = proxy.admission.steps.pop_front()
    {
        match step {
            Step::Accept(token) => {
                if proxy.admission.is_listening() && accept_clients(proxy, cx, token, ACCEPTS) {
                    proxy.admission.listener_ready(token);
                }
            }
            Step::Event(key) => deferred_event(proxy, cx, key),
        }
        flush_marked(proxy, cx);
        now = cx.instant();
        begun = true;
    }
    while let Some(hello) = proxy.admission.hellos.pop_front() {
        if begun && now - start + proxy.admission.last > budget {
            proxy.admission.hellos.push_front(hello);
            proxy.admission.owed = !answered;
            break;
        }
        if let Some(after) = answer_hello(proxy, cx, hello, start, now) {
            now = after;
            (begun, answered) = (true, true);
        }
    }
    proxy.counters.set(Count::HellosWaiting, proxy.admission.hellos.len() as u64);
}

fn deferred_event(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    // It may have timed out meanwhile.
    let Some(Conn::Client(client_conn)) = proxy.connections.get_mut(key) else { return };
    if let Some(ready) = client_conn.take_deferred() {
        client_event(proxy, cx, key, ready);
    }
}

/// `start`: when the turn's time for new clients began, and `before`: now. `None`: the client is gone, and what it did not take says
/// nothing of how long the next will.
fn answer_hello(
    proxy: &mut Proxy,
    cx: &mut Context,
    (key, since): (Key, Micros),
    start: Instant,
    before: Instant,
) -> Option<Instant> {
    let waits = |conn: &Conn| matches!(conn, Conn::Client(client_conn) if client_conn.awaits_answer());
    if !proxy.connections.get(key).is_some_and(waits) {
        return None;
    }
    // The lane's clock stands still during a turn, in which others may have come first.
    proxy.counters.hello_waited(cx.micros() - since + (before - start).as_micros() as Micros);
    start_session(proxy, cx, key);
    flush_marked(proxy, cx);
    let now = cx.instant();
    proxy.admission.last = now - before;
    proxy.counters.add(Count::HandshakeNanos, proxy.admission.last.as_nanos() as u64);
    Some(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn admission(short_of_memory: bool) -> Admission {
        let counts = || Arc::new(ClientCounts::new(2));
        let logins = Logins::new(Box::new(|_| false)).unwrap();
        Admission::new(counts(), counts(), logins, Arc::new(AtomicBool::new(short_of_memory)))
    }

    #[test]
    fn clients_are_counted_in_and_out() {
        let mut limits = fixtures::limits();
        limits.max_connections = 2;
        let (settings, _published) = fixtures::settings(fixtures::snapshot(limits, Vec::new()));
        let (mut admission, counters) = (admission(false), Counters::default());
        assert!(!admission.has_clients() && !admission.is_full(&settings));
        admission.arrived(&counters);
        admission.arrived(&counters);
        assert!(admission.has_clients() && admission.is_full(&settings));
        assert_eq!(counters.value(Count::Open), 2);
        admission.left(&mut Context::new().unwrap(), None, &settings, &counters);
        assert!(!admission.is_full(&settings));
        assert_eq!(counters.value(Count::Open), 1);
    }

    #[test]
    fn short_of_memory_a_few_are_still_taken() {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let (mut admission, counters) = (admission(true), Counters::default());
        for _ in 0..ALWAYS {
            assert!(!admission.is_full(&settings));
            admission.arrived(&counters);
        }
        assert!(admission.is_full(&settings));
    }

    #[test]
    fn one_address_has_no_more_connections_than_it_may() {
        let mut limits = fixtures::limits();
        limits.max_per_client = 2;
        let (settings, _published) = fixtures::settings(fixtures::snapshot(limits, Vec::new()));
        let (mut admission, counters) = (admission(false), Counters::default());
        let mut clients: Vec<Client> =
            (0..3).map(|_| fixtures::client(&settings.listeners()[0], "192.0.2.1:5")).collect();
        let come = |client: &mut Client| admission.count_in(client, &settings, &counters);
        assert_eq!([come(&mut clients[0]), come(&mut clients[1]), come(&mut clients[2])], [true, true, false]);
        assert_eq!(counters.value(Count::ClientsLimited), 1);
        let peer = clients[0].peer().ip();
        let has_place =
            |admission: &Admission| admission.has_place_for(peer, &settings.listeners()[0], &settings, &counters);
        assert!(!has_place(&admission));
        admission.arrived(&counters);
        admission.left(&mut Context::new().unwrap(), clients[0].count_out(), &settings, &counters);
        assert!(has_place(&admission));
        assert!(has_place(&admission), "to ask takes no place");
        assert!(admission.count_in(&mut clients[2], &settings, &counters));
    }

    #[test]
    fn a_listener_waits_once_and_a_client_too() {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let mut admission = admission(false);
        assert!(admission.is_empty());
        admission.listener_ready(LISTENER | 1);
        admission.listener_ready(LISTENER | 1);
        admission.listener_ready(LISTENER | 2);
        assert_eq!(admission.steps.len(), 2);
        let (conn, _peer) = fixtures::connection(&settings.listeners()[0]);
        let Conn::Client(client_conn) = conn else { unreachable!() };
        let (mut client_conn, key) = (client_conn.in_handshake(1000), Key::from_u64(7));
        admission.event(key, &mut client_conn, Ready { read: true, ..Ready::default() });
        admission.event(key, &mut client_conn, Ready { error: true, ..Ready::default() });
        assert_eq!(admission.steps.len(), 3);
        let deferred = client_conn.take_deferred().unwrap();
        assert!(deferred.read && deferred.error, "nothing that has come is lost");
        (0..MAX_WAITING).for_each(|_| admission.hello(key, 0));
        assert!(admission.is_queue_full());
    }

    #[test]
    fn a_pause_tells_other_lanes_and_ends() {
        let mut limits = fixtures::limits();
        limits.max_connections = 1;
        let (settings, _published) = fixtures::settings(fixtures::snapshot(limits, Vec::new()));
        let (mut admission, counters, mut cx) = (admission(false), Counters::default(), Context::new().unwrap());
        admission.listen(&cx, &settings).unwrap();
        assert!(admission.is_listening() && !settings.own_mailbox().is_closed());
        admission.arrived(&counters);
        admission.pause_full(&mut cx, &settings, &counters);
        assert!(!admission.is_listening() && settings.own_mailbox().is_closed());
        assert_eq!((counters.value(Count::PausedConnections), counters.value(Count::PausedMemory)), (1, 0));
        admission.resume(&mut cx, &settings);
        assert!(!admission.is_listening(), "there is no place yet");
        admission.left(&mut cx, None, &settings, &counters);
        assert!(admission.is_listening() && !settings.own_mailbox().is_closed());
    }
}
