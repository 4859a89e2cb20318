//! One attempt to connect: embedded first, a plain connection beside it when the answer takes too long, and the first
//! success wins.
//!
//! ```text
//!            Connect(Embedded)            hedge delay is over        Connect(Plain)
//!   begin ──────────────────────▶ Alone ──────────────────────▶ Both ◀── embedded failed: Connect(Plain)
//!     │                             │ connected                   │ either connected: Use it, Drop the other
//!     │ sequential: Connect(Plain)  ▼                             ▼
//!     └──────────────────────────▶ Won ◀────────────────────────────   both failed: GiveUp
//!                                   │ the embedded one breaks before the server has said a word
//!                                   └─▶ Connect(Plain), once
//! ```
//!
//! So a path that swallows data-bearing SYNs costs the hedge delay and not the kernel's second, a path that answers them
//! with a reset costs one round trip, and a path that takes the data off costs nothing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// One of the two connections of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// With data in its SYN.
    Embedded,
    /// An ordinary one.
    Plain,
}

/// What the caller has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a connection of this kind.
    Connect(Route),
    /// Close it; it is too late, or has failed.
    Drop(Route),
    /// Go on with this one.
    Use(Route),
    /// There is no connection to be had.
    GiveUp,
}

/// How a connection came about, for those who count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The data went with the SYN and was taken.
    Embedded,
    /// The SYN-ACK acknowledged no data: the server does not take it, or the path took it off. The data followed at
    /// once, as in a sequential connection.
    NotTaken,
    /// There was no cookie yet: one was asked for, and the data followed. The next connection can embed.
    NoCookie,
    /// The SYN with data had no answer in time; a plain connection did.
    Hedged,
    /// The SYN with data was refused, or the connection broke at once; a plain connection was not.
    Refused,
    /// Never tried: a plain connection from the beginning.
    Sequential,
}

/// What a connection with data in its SYN has come to, when it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The data was acknowledged with the SYN.
    Taken,
    /// It was not.
    NotTaken,
    /// It was not sent: no cookie.
    NoCookie,
    /// The SYN had to be sent a second time, without data.
    SentAgain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not tried yet.
    Unused,
    Connecting,
    Failed,
    Connected,
}

/// See the module.
#[derive(Debug)]
pub struct Dial {
    embedded: State,
    plain: State,
    deadline: Option<Instant>,
    winner: Option<Route>,
    how: How,
    /// What the attempt says of the path, for [`crate::Memory`]: whether SYNs with data get through.
    evidence: Option<bool>,
    actions: VecDeque<Action>,
}

impl Dial {
    /// Begins with data in the SYN; a plain connection follows after `hedge_delay` without an answer.
    pub fn embedded(now: Instant, hedge_delay: Duration) -> Self {
        let mut dial = Self::new(How::Embedded);
        dial.embedded = State::Connecting;
        dial.deadline = Some(now + hedge_delay);
        dial.actions.push_back(Action::Connect(Route::Embedded));
        dial
    }

    /// Connects in sequence, without any race.
    pub fn sequential() -> Self {
        let mut dial = Self::new(How::Sequential);
        dial.connect_plainly(How::Sequential);
        dial
    }

    fn new(how: How) -> Self {
        Self {
            embedded: State::Unused,
            plain: State::Unused,
            deadline: None,
            winner: None,
            how,
            evidence: None,
            actions: VecDeque::with_capacity(2),
        }
    }

    /// What is to be done next; to be asked until there is nothing.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Dial::handle_timeout`] wants to be called.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// How the connection came about; final once there is a winner.
    pub fn how(&self) -> How {
        self.how
    }

    /// Whether SYNs with data get through on this path, where the attempt has shown it.
    pub fn evidence(&self) -> Option<bool> {
        self.evidence
    }

    /// The connection that was chosen.
    pub fn winner(&self) -> Option<Route> {
        self.winner
    }

    /// The connection with data in its SYN is connected.
    pub fn handle_embedded(&mut self, ended: Ended) {
        if self.embedded != State::Connecting || self.winner.is_some() {
            return;
        }
        self.embedded = State::Connected;
        (self.how, self.evidence) = match ended {
            Ended::Taken => (How::Embedded, Some(true)),
            Ended::NotTaken => (How::NotTaken, None),
            Ended::NoCookie => (How::NoCookie, None),
            Ended::SentAgain => (How::NotTaken, Some(false)),
        };
        self.win(Route::Embedded);
    }

    /// The plain connection is connected.
    pub fn handle_plain(&mut self) {
        if self.plain != State::Connecting || self.winner.is_some() {
            return;
        }
        self.plain = State::Connected;
        if self.embedded != State::Unused && self.evidence.is_none() {
            self.evidence = Some(false);
        }
        self.win(Route::Plain);
    }

    /// A connection has failed: refused, reset, unreachable.
    pub fn handle_failed(&mut self, route: Route) {
        if self.winner.is_some() || self.state(route) != State::Connecting {
            return;
        }
        self.set(route, State::Failed);
        self.actions.push_back(Action::Drop(route));
        match (route, self.state(other(route))) {
            // Perhaps it is the data that the path refuses. Where nobody listens this costs one more round trip.
            (Route::Embedded, State::Unused) => self.connect_plainly(How::Refused),
            (_, State::Connecting) => {}
            _ => self.actions.push_back(Action::GiveUp),
        }
    }

    /// The embedded connection, which had won, broke before the server had said anything. True if a plain one is tried
    /// in its place.
    pub fn handle_broken(&mut self) -> bool {
        if self.winner != Some(Route::Embedded) || self.plain != State::Unused {
            return false;
        }
        self.embedded = State::Failed;
        self.winner = None;
        self.evidence = None;
        self.actions.push_back(Action::Drop(Route::Embedded));
        self.connect_plainly(How::Refused);
        true
    }

    /// The server would not have the hello that fits into a SYN. True if a plain connection, with an ordinary hello, is
    /// tried in its place.
    pub fn handle_refused(&mut self) -> bool {
        // The data went through: nothing is wrong with the path.
        let evidence = self.evidence;
        let again = self.handle_broken();
        self.evidence = evidence;
        again
    }

    /// The time has come that [`Dial::next_deadline`] gave.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.deadline.is_none_or(|t| now < t) {
            return;
        }
        self.deadline = None;
        if self.winner.is_none() && self.plain == State::Unused {
            self.connect_plainly(How::Hedged);
        }
    }

    fn connect_plainly(&mut self, how: How) {
        self.plain = State::Connecting;
        self.how = how;
        self.deadline = None;
        self.actions.push_back(Action::Connect(Route::Plain));
    }

    fn win(&mut self, route: Route) {
        self.winner = Some(route);
        self.deadline = None;
        if self.state(other(route)) == State::Connecting {
            self.set(other(route), State::Failed);
            self.actions.push_back(Action::Drop(other(route)));
        }
        self.actions.push_back(Action::Use(route));
    }

    fn state(&self, route: Route) -> State {
        match route {
            Route::Embedded => self.embedded,
            Route::Plain => self.plain,
        }
    }

    fn set(&mut self, route: Route, state: State) {
        match route {
            Route::Embedded => self.embedded = state,
            Route::Plain => self.plain = state,
        }
    }
}

fn other(route: Route) -> Route {
    match route {
        Route::Embedded => Route::Plain,
        Route::Plain => Route::Embedded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Action::{Connect, Drop, GiveUp, Use};
    use Route::{Embedded, Plain};

    const WAIT_LIMIT: Duration = Duration::from_millis(250);

    fn actions(dial: &mut Dial) -> Vec<Action> {
        std::iter::from_fn(|| dial.poll_action()).collect()
    }

    fn begun() -> (Dial, Instant) {
        let now = Instant::now();
        let mut dial = Dial::embedded(now, WAIT_LIMIT);
        assert_eq!(actions(&mut dial), [Connect(Embedded)]);
        assert_eq!(dial.next_deadline(), Some(now + WAIT_LIMIT));
        (dial, now)
    }

    #[test]
    fn an_answer_in_time_wins_alone() {
        for (ended, how, evidence) in [
            (Ended::Taken, How::Embedded, Some(true)),
            (Ended::NotTaken, How::NotTaken, None),
            (Ended::NoCookie, How::NoCookie, None),
            (Ended::SentAgain, How::NotTaken, Some(false)),
        ] {
            let (mut dial, now) = begun();
            dial.handle_timeout(now + WAIT_LIMIT / 2);
            dial.handle_embedded(ended);
            assert_eq!(actions(&mut dial), [Use(Embedded)]);
            assert_eq!((dial.how(), dial.evidence(), dial.next_deadline()), (how, evidence, None));
            dial.handle_timeout(now + WAIT_LIMIT * 9);
            assert_eq!(actions(&mut dial), []);
        }
    }

    #[test]
    fn silence_is_hedged_and_the_first_success_wins() {
        let (mut dial, now) = begun();
        dial.handle_timeout(now + WAIT_LIMIT);
        assert_eq!((actions(&mut dial), dial.next_deadline()), (vec![Connect(Plain)], None));
        dial.handle_plain();
        assert_eq!(actions(&mut dial), [Drop(Embedded), Use(Plain)]);
        assert_eq!((dial.how(), dial.evidence(), dial.winner()), (How::Hedged, Some(false), Some(Plain)));
        dial.handle_embedded(Ended::Taken);
        assert_eq!(actions(&mut dial), [], "too late");

        let (mut dial, now) = begun();
        dial.handle_timeout(now + WAIT_LIMIT);
        dial.handle_embedded(Ended::Taken);
        assert_eq!(actions(&mut dial), [Connect(Plain), Drop(Plain), Use(Embedded)]);
        assert_eq!((dial.how(), dial.evidence()), (How::Embedded, Some(true)));
    }

    #[test]
    fn a_refusal_is_tried_once_more_without_data() {
        let (mut dial, _) = begun();
        dial.handle_failed(Embedded);
        assert_eq!(actions(&mut dial), [Drop(Embedded), Connect(Plain)]);
        dial.handle_plain();
        assert_eq!(actions(&mut dial), [Use(Plain)]);
        assert_eq!((dial.how(), dial.evidence()), (How::Refused, Some(false)));

        let (mut dial, _) = begun();
        dial.handle_failed(Embedded);
        dial.handle_failed(Plain);
        assert_eq!(actions(&mut dial).last(), Some(&GiveUp));
        assert_eq!((dial.evidence(), dial.winner()), (None, None), "nobody listens: that says nothing of the path");
    }

    #[test]
    fn one_failure_of_two_leaves_the_other() {
        for (first, second) in [(Plain, Embedded), (Embedded, Plain)] {
            let (mut dial, now) = begun();
            dial.handle_timeout(now + WAIT_LIMIT);
            actions(&mut dial);
            dial.handle_failed(first);
            assert_eq!(actions(&mut dial), [Drop(first)]);
            dial.handle_failed(second);
            assert_eq!(actions(&mut dial), [Drop(second), GiveUp]);
        }
    }

    #[test]
    fn a_connection_that_breaks_at_once_is_replaced_once() {
        let (mut dial, _) = begun();
        dial.handle_embedded(Ended::Taken);
        assert!(dial.handle_broken());
        dial.handle_plain();
        assert_eq!(actions(&mut dial), [Use(Embedded), Drop(Embedded), Connect(Plain), Use(Plain)]);
        assert_eq!((dial.how(), dial.evidence()), (How::Refused, Some(false)));
        assert!(!dial.handle_broken());
    }

    #[test]
    fn a_hello_that_is_refused_is_replaced_and_the_path_not_blamed() {
        let (mut dial, _) = begun();
        dial.handle_embedded(Ended::Taken);
        assert!(dial.handle_refused());
        dial.handle_plain();
        assert_eq!((dial.how(), dial.evidence(), dial.winner()), (How::Refused, Some(true), Some(Plain)));
        assert!(!dial.handle_refused());
    }

    #[test]
    fn sequential_has_no_race() {
        let mut dial = Dial::sequential();
        assert_eq!(actions(&mut dial), [Connect(Plain)]);
        assert_eq!(dial.next_deadline(), None);
        dial.handle_plain();
        assert_eq!(actions(&mut dial), [Use(Plain)]);
        assert_eq!((dial.how(), dial.evidence()), (How::Sequential, None));
        let mut dial = Dial::sequential();
        dial.handle_failed(Plain);
        assert_eq!(actions(&mut dial), [Connect(Plain), Drop(Plain), GiveUp]);
    }
}
