//! The deadlines of connections, over random sequences of states and times.
//!
//! An observer keeps what begins and what ends on a connection, as HTTP/2 on both sides does. After each event it compares the
//! deadline with the one before:
//!
//! - A connection has no deadline only while it serves exchanges and nothing else: these have the deadlines then.
//! - The deadline is the earliest of all waits, and names a row of the table for the peer: one party is to blame.
//! - It moves forward only if the wait that it names has ended or got on, and back only if a wait has begun. Idleness alone gives way
//!   to other waits, and counts on behind them.
//! - A peer that does nothing is found within the longest limit.

use crate::Random;
use sealane_exchange::deadlines::docs::CONNECTIONS;
use sealane_exchange::deadlines::{
    ConnectionDeadline, ConnectionLimits, ConnectionState, ConnectionWait, Millis, Party,
};

/// What can happen on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    HandshakeEnds,
    HeadBegins,
    /// A request's head is whole, or a request is sent to a server.
    RequestBegins,
    RequestEnds,
    /// Something is to be sent.
    Staged,
    /// The peer takes a part of it.
    PartTaken,
    AllTaken,
    /// What the peer does does not concern the table.
    Other,
}

/// What an observer knows who sees events alone.
struct Observer {
    peer: Party,
    limits: ConnectionLimits,
    requests: u32,
    state: ConnectionState,
}

/// Which waits an event has begun and ended. One that gets on is both.
#[derive(Clone, Debug, Default)]
struct Change {
    begun: Vec<ConnectionWait>,
    ended: Vec<ConnectionWait>,
}

impl Change {
    fn begin(&mut self, wait: ConnectionWait, since: &mut Option<Millis>, now: Millis) {
        self.begun.push(wait);
        *since = Some(now);
    }

    fn end(&mut self, wait: ConnectionWait, since: &mut Option<Millis>) {
        if since.take().is_some() {
            self.ended.push(wait);
        }
    }
}

impl Observer {
    fn new(random: &mut Random) -> Self {
        let mut limit = || random.pick(&[1, 10, 500, 700, 3000]);
        let (handshake, head, keepalive, idle) = (limit(), limit(), limit(), limit());
        let peer = random.pick(&[Party::Client, Party::Upstream]);
        let limits = match peer {
            Party::Client => ConnectionLimits { handshake, head, keepalive, idle, ..ConnectionLimits::default() },
            Party::Upstream => ConnectionLimits::of_server(0, None, keepalive, idle),
        };
        let handshake_until = (peer == Party::Client && random.coin()).then_some(handshake);
        let state = ConnectionState { handshake_until, idle_since: Some(0), ..ConnectionState::default() };
        Self { peer, limits, requests: 0, state }
    }

    fn event(&self, random: &mut Random) -> Event {
        use Event::*;
        // Of servers neither the handshake nor heads are the table's.
        match self.peer {
            Party::Client => random.pick(&[
                HandshakeEnds,
                HeadBegins,
                HeadBegins,
                RequestBegins,
                RequestEnds,
                RequestEnds,
                Staged,
                PartTaken,
                AllTaken,
                Other,
            ]),
            Party::Upstream => random.pick(&[RequestBegins, RequestEnds, Staged, PartTaken, AllTaken, Other]),
        }
    }

    fn apply(&mut self, event: Event, now: Millis) -> Change {
        let (mut change, state) = (Change::default(), &mut self.state);
        match event {
            Event::HandshakeEnds => change.end(ConnectionWait::Handshake, &mut state.handshake_until),
            Event::HeadBegins if state.head_since.is_none() => {
                change.begin(ConnectionWait::RequestHead, &mut state.head_since, now);
            }
            Event::RequestBegins => {
                change.end(ConnectionWait::RequestHead, &mut state.head_since);
                change.end(ConnectionWait::Request, &mut state.idle_since);
                self.requests += 1;
            }
            Event::RequestEnds if self.requests > 0 => {
                self.requests -= 1;
                if self.requests == 0 {
                    change.begin(ConnectionWait::Request, &mut state.idle_since, now);
                }
            }
            Event::Staged if state.stuck_since.is_none() => {
                change.begin(ConnectionWait::Room, &mut state.stuck_since, now);
            }
            Event::PartTaken if state.stuck_since.is_some() => {
                change.end(ConnectionWait::Room, &mut state.stuck_since);
                change.begin(ConnectionWait::Room, &mut state.stuck_since, now);
            }
            Event::AllTaken => change.end(ConnectionWait::Room, &mut state.stuck_since),
            Event::HeadBegins | Event::RequestEnds | Event::Staged | Event::PartTaken | Event::Other => {}
        }
        change
    }

    /// All waits but idleness, each with its own end.
    fn waits(&self) -> Vec<(Millis, ConnectionWait)> {
        let ConnectionState { handshake_until, head_since, stuck_since, .. } = self.state;
        let handshake = handshake_until.map(|at| (at, ConnectionWait::Handshake));
        let head = head_since.map(|since| (since + self.limits.head, ConnectionWait::RequestHead));
        let room = stuck_since.map(|since| (since + self.limits.idle, ConnectionWait::Room));
        [handshake, head, room].into_iter().flatten().collect()
    }

    fn deadline(&self) -> Option<ConnectionDeadline> {
        self.state.deadline(&self.limits)
    }

    /// The rules for a state alone.
    fn check(&self, now: Millis) {
        let (due, waits) = (self.deadline(), self.waits());
        let Some(due) = due else {
            assert!(
                self.requests > 0 && waits.is_empty(),
                "a connection waits for something, or for nothing, for ever"
            );
            return;
        };
        match waits.iter().map(|(at, _)| *at).min() {
            Some(earliest) => {
                assert_eq!(due.at, earliest, "it is not the earliest");
                assert!(waits.contains(&(due.at, due.wait)), "it names another wait");
                assert!(due.at > now, "a wait was over before anybody looked");
            }
            None => {
                let idle = self.state.idle_since.map(|since| (since + self.limits.keepalive, ConnectionWait::Request));
                assert_eq!(Some((due.at, due.wait)), idle);
                assert_eq!(self.requests, 0, "a connection that serves requests is not idle");
            }
        }
        let rows = CONNECTIONS.iter().filter(|row| row.wait == due.wait && row.party == Some(self.peer));
        assert_eq!(rows.count(), 1, "one party is to blame, and it is the peer");
        let ConnectionLimits { handshake, head, keepalive, idle, .. } = self.limits;
        let longest = handshake.max(head).max(keepalive).max(idle);
        assert!(due.at <= now + longest, "a peer that does nothing is not found in time");
    }

    /// The rules for a change.
    fn compare(&self, before: Option<ConnectionDeadline>, change: &Change) {
        let after = self.deadline();
        let at = |deadline: Option<ConnectionDeadline>| deadline.map_or(Millis::MAX, |deadline| deadline.at);
        let is_idleness = |deadline: Option<ConnectionDeadline>| {
            deadline.is_some_and(|deadline| deadline.wait == ConnectionWait::Request)
        };
        if at(after) > at(before) {
            let ended = before.is_some_and(|before| change.ended.contains(&before.wait));
            let gives_way = is_idleness(before) && !change.begun.is_empty();
            assert!(ended || gives_way, "a deadline moves while its wait goes on");
        }
        if at(after) < at(before) {
            let begun = after.is_some_and(|after| change.begun.contains(&after.wait));
            let comes_back = is_idleness(after) && !change.ended.is_empty();
            assert!(begun || comes_back, "a deadline moves back although nothing has begun");
        }
        if change.begun.is_empty() && change.ended.is_empty() {
            assert_eq!(after, before, "nothing has happened");
        }
    }
}

/// Which deadline has passed in the end, if any.
fn run(seed: u64) -> Option<(Party, ConnectionWait)> {
    let mut random = Random(seed);
    let mut observer = Observer::new(&mut random);
    let mut script = format!("seed {seed}: {:?}, {:?}, {:?}\n", observer.peer, observer.limits, observer.state);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut now = 0;
        observer.check(now);
        for _ in 0..40 {
            let before = observer.deadline();
            let next = now + random.pick(&[0, 1, 5, 100, 600, 2000]);
            if let Some(due) = before.filter(|due| due.at <= next) {
                // Idleness that has come back may have been over for some time.
                assert!(due.at > now || due.wait == ConnectionWait::Request);
                return Some((observer.peer, due.wait));
            }
            now = next;
            let event = observer.event(&mut random);
            let change = observer.apply(event, now);
            script += &format!("  {now} ms: {event:?} → {:?}\n", observer.deadline());
            observer.compare(before, &change);
            observer.check(now);
        }
        None
    }));
    result.unwrap_or_else(|panic| {
        eprintln!("{script}");
        std::panic::resume_unwind(panic)
    })
}

#[test]
fn the_rules_of_deadlines_hold_for_random_connections() {
    let passed: Vec<_> = (0..50_000).filter_map(run).collect();
    // The runs come to every wait that a state can have.
    for wait in [ConnectionWait::Handshake, ConnectionWait::RequestHead, ConnectionWait::Request, ConnectionWait::Room]
    {
        for peer in [Party::Client, Party::Upstream] {
            let is_in_table = CONNECTIONS.iter().any(|row| row.wait == wait && row.party == Some(peer));
            assert_eq!(passed.contains(&(peer, wait)), is_in_table, "{peer:?} {wait:?}");
        }
    }
}
