//! What a thread writes down while the load runs, and how the threads' records become one.

use std::time::Instant;

use hdrhistogram::Histogram;
use rustix::io::Errno;

use crate::clock::Nanos;
use crate::plan::{Kind, Plan};
use crate::worker::Op;

/// The longest time that is told apart: one hour. Longer ones count as that.
const LONGEST: u64 = 3_600_000_000_000;

/// A histogram of nanoseconds from 1 ns to an hour, three significant digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("these bounds are valid")
}

/// Times of one kind of operation.
#[derive(Clone, Debug)]
pub struct Times {
    /// From the intended moment to the end: what a user would have waited. Empty in a closed loop,
    /// where nothing is intended.
    pub corrected: Histogram<u64>,
    /// From the actual start to the end.
    pub uncorrected: Histogram<u64>,
    /// TCP: from the start to established. Connection mode only.
    pub connect: Histogram<u64>,
    /// TLS: from established to the handshake's end. Connection mode only.
    pub handshake: Histogram<u64>,
    /// From the request's start (the connection's, in connection mode) to the first byte of the answer.
    pub first_byte: Histogram<u64>,
}

impl Times {
    fn new() -> Self {
        Self {
            corrected: histogram(),
            uncorrected: histogram(),
            connect: histogram(),
            handshake: histogram(),
            first_byte: histogram(),
        }
    }

    fn add(&mut self, other: &Self) {
        for (to, from) in [
            (&mut self.corrected, &other.corrected),
            (&mut self.uncorrected, &other.uncorrected),
            (&mut self.connect, &other.connect),
            (&mut self.handshake, &other.handshake),
            (&mut self.first_byte, &other.first_byte),
        ] {
            merge(to, from);
        }
    }
}

/// Adds `from` to `to`; both have the same bounds.
pub fn merge(to: &mut Histogram<u64>, from: &Histogram<u64>) {
    to.add(from).expect("histograms of one kind have the same bounds");
}

/// Records a time.
#[inline]
pub fn note(histogram: &mut Histogram<u64>, time: Nanos) {
    histogram.saturating_record(time);
}

/// What an operation can fail of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Failure {
    /// Nobody listens.
    Refused = 0,
    /// The connection could not be made for another reason.
    Connect = 1,
    /// The client had no free port, or no file descriptor, left.
    Ports = 2,
    /// TLS went wrong.
    Tls = 3,
    /// The connection was reset.
    Reset = 4,
    /// It was closed before the response was complete.
    Closed = 5,
    /// The response was not what the protocol allows.
    Malformed = 6,
    /// It took longer than `--timeout`.
    Timeout = 7,
}

impl Failure {
    /// All of them, in the order of their values.
    pub const ALL: [Self; 8] = [
        Self::Refused,
        Self::Connect,
        Self::Ports,
        Self::Tls,
        Self::Reset,
        Self::Closed,
        Self::Malformed,
        Self::Timeout,
    ];

    /// The name in tables and JSON.
    pub fn name(self) -> &'static str {
        ["refused", "connect", "ports", "tls", "reset", "closed", "malformed", "timeout"][self as usize]
    }

    /// What an error of the socket means; `connecting` until the connection stands.
    pub fn of(error: Errno, connecting: bool) -> Self {
        match error {
            Errno::CONNREFUSED => Self::Refused,
            Errno::ADDRNOTAVAIL | Errno::ADDRINUSE | Errno::MFILE | Errno::NFILE => Self::Ports,
            Errno::TIMEDOUT => Self::Timeout,
            _ if connecting => Self::Connect,
            Errno::PIPE => Self::Closed,
            _ => Self::Reset,
        }
    }
}

/// How often something failed, and the first time in words.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    /// Count per [`Failure`].
    pub counts: [u64; 8],
    /// The first message of each.
    pub first: [Option<String>; 8],
}

impl Failures {
    /// Counts a failure; `why` is only called for the first of its kind.
    pub fn note(&mut self, failure: Failure, why: impl FnOnce() -> String) {
        let i = failure as usize;
        self.counts[i] += 1;
        if self.first[i].is_none() {
            self.first[i] = Some(why());
        }
    }

    /// All of them together.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    fn add(&mut self, other: Self) {
        for (i, first) in other.first.into_iter().enumerate() {
            self.counts[i] += other.counts[i];
            self.first[i] = self.first[i].take().or(first);
        }
    }
}

/// Handshakes and what came with them, over the measured phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandshakeCounts {
    /// Handshakes that needed a second hello (RFC 8446 §4.1.4).
    pub retried: u64,
    /// Asked to resume, with a ticket at hand, and got a full handshake.
    pub not_resumed: u64,
    /// Asked to resume without a ticket at hand: a full handshake was made.
    pub no_ticket: u64,
    /// Session tickets received.
    pub tickets: u64,
    /// Requests sent as early data that the server took.
    pub early_accepted: u64,
    /// Requests sent as early data that it refused; they were sent again.
    pub early_rejected: u64,
    /// Early data wanted, but the ticket did not allow any.
    pub early_not_offered: u64,
}

impl HandshakeCounts {
    /// Counts a measured operation's handshake, and says what kind it turned out to be. `kind` is whether it
    /// was resumed and whether it took a second hello; `early` whether early data was sent and taken.
    pub fn note(&mut self, op: &Op, offered: bool, kind: (bool, bool), early: (bool, bool)) -> Kind {
        let (resumed, retried) = kind;
        let (sent, accepted) = early;
        if op.measured {
            self.retried += u64::from(retried);
            self.not_resumed += u64::from(offered && !resumed);
            if op.kind == Kind::EarlyData && offered {
                self.early_accepted += u64::from(sent && accepted);
                self.early_rejected += u64::from(sent && !accepted);
                self.early_not_offered += u64::from(!sent);
            }
        }
        match (resumed, accepted) {
            (false, _) => Kind::Full,
            (true, false) => Kind::Resumed,
            (true, true) => Kind::EarlyData,
        }
    }

    fn add(&mut self, o: Self) {
        self.retried += o.retried;
        self.not_resumed += o.not_resumed;
        self.no_ticket += o.no_ticket;
        self.tickets += o.tickets;
        self.early_accepted += o.early_accepted;
        self.early_rejected += o.early_rejected;
        self.early_not_offered += o.early_not_offered;
    }
}

/// One thread's record of the measured phase; merged, the run's.
#[derive(Clone, Debug)]
pub struct Record {
    /// Times per [`Kind`], for the kinds that the plan can yield.
    pub times: [Option<Box<Times>>; 5],
    /// How late the generator was by its own fault.
    pub lag: Histogram<u64>,
    /// Operations started (open loop: of those intended in the measured phase).
    pub started: u64,
    /// Operations intended in the measured phase that were never started.
    pub unstarted: u64,
    /// Operations completed.
    pub completed: u64,
    /// Those that ended in the measured phase, whenever they were meant to start.
    pub in_window: u64,
    /// Responses by the first digit of their status; 0 for operations without a request.
    pub statuses: [u64; 6],
    /// Failed operations.
    pub failures: Failures,
    /// Handshakes.
    pub handshakes: HandshakeCounts,
    /// Connections opened.
    pub connections: u64,
    /// Bytes received, with TLS.
    pub bytes_in: u64,
    /// Bytes sent, with TLS.
    pub bytes_out: u64,
    /// When the last operation completed.
    pub last: Nanos,
    /// When each was meant to start (in a closed loop: started) and when it was complete, if the plan asks for it.
    pub trace: Vec<(Instant, Instant)>,
}

impl Record {
    /// Nothing yet.
    pub fn new(plan: &Plan) -> Self {
        let kinds = plan.kinds();
        Self {
            times: std::array::from_fn(|i| kinds.contains(&Kind::ALL[i]).then(|| Box::new(Times::new()))),
            lag: histogram(),
            started: 0,
            unstarted: 0,
            completed: 0,
            in_window: 0,
            statuses: [0; 6],
            failures: Failures::default(),
            handshakes: HandshakeCounts::default(),
            connections: 0,
            bytes_in: 0,
            bytes_out: 0,
            last: 0,
            trace: Vec::new(),
        }
    }

    /// The times of `kind`.
    #[inline]
    pub fn times(&mut self, kind: Kind) -> &mut Times {
        self.times[kind as usize].get_or_insert_with(|| Box::new(Times::new()))
    }

    /// Adds another thread's record.
    pub fn add(&mut self, mut other: Self) {
        self.trace.append(&mut other.trace);
        for (mine, theirs) in self.times.iter_mut().zip(other.times) {
            match (mine.as_mut(), theirs) {
                (_, None) => {}
                (Some(mine), Some(theirs)) => mine.add(&theirs),
                (None, theirs) => *mine = theirs,
            }
        }
        merge(&mut self.lag, &other.lag);
        self.started += other.started;
        self.unstarted += other.unstarted;
        self.completed += other.completed;
        self.in_window += other.in_window;
        for (mine, theirs) in self.statuses.iter_mut().zip(other.statuses) {
            *mine += theirs;
        }
        self.failures.add(other.failures);
        self.handshakes.add(other.handshakes);
        self.connections += other.connections;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.last = self.last.max(other.last);
    }

    /// All kinds' corrected times together (in a closed loop: the uncorrected ones).
    pub fn overall(&self) -> Histogram<u64> {
        self.sum(|t| if t.corrected.is_empty() { &t.uncorrected } else { &t.corrected })
    }

    /// All kinds' times from the actual start together.
    pub fn overall_uncorrected(&self) -> Histogram<u64> {
        self.sum(|t| &t.uncorrected)
    }

    fn sum(&self, of: impl Fn(&Times) -> &Histogram<u64>) -> Histogram<u64> {
        let mut all = histogram();
        for times in self.times.iter().flatten() {
            merge(&mut all, of(times));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Rng;

    #[test]
    fn eight_threads_merge_into_exactly_one() {
        let mut rng = Rng::seeded(8);
        let mut one = histogram();
        let mut parts: Vec<_> = (0..8).map(|_| histogram()).collect();
        for i in 0..200_000 {
            // From nanoseconds to beyond an hour.
            let time = rng.bits() >> (rng.bits() % 60);
            note(&mut one, time);
            note(&mut parts[i % 8], time);
        }
        let mut merged = histogram();
        for part in &parts {
            merge(&mut merged, part);
        }
        assert_eq!(merged, one);
        assert_eq!(merged.len(), 200_000);
        let cells = |h: &Histogram<u64>| {
            h.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())).collect::<Vec<_>>()
        };
        assert_eq!(cells(&merged), cells(&one));
    }

    #[test]
    fn failures_keep_their_first_words() {
        let mut f = Failures::default();
        f.note(Failure::Tls, || "first".into());
        f.note(Failure::Tls, || "second".into());
        let mut other = Failures::default();
        other.note(Failure::Tls, || "third".into());
        other.note(Failure::of(Errno::CONNREFUSED, true), || "nobody".into());
        f.add(other);
        assert_eq!(f.counts[Failure::Tls as usize], 3);
        assert_eq!(f.first[Failure::Tls as usize].as_deref(), Some("first"));
        assert_eq!(f.first[Failure::Refused as usize].as_deref(), Some("nobody"));
    }
}
