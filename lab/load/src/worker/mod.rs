//! One generator thread: its loop over epoll, its seats, its schedule.
//!
//! ```text
//!            schedule                    socket
//!               │ due                      │ readable, writable
//!   Vacant ──open──► Connecting ──► Handshaking ──► Open (idle ⇄ busy)
//!      ▲                 │               │              │
//!      └──── rest ◄──────┴──── fail ─────┴── closed ────┘
//! ```
//!
//! A *seat* is the place of one connection. In keep-alive mode all seats are connected before the clock
//! starts and an operation is a request on one of them; in connection mode an operation takes a vacant
//! seat, and its connection lives as long as the operation. Free seats wait in first-in-first-out order,
//! so that all connections are used alike. A seat that failed rests before it is used again.

mod outcome;
mod pacer;
mod quic;
mod seat;
mod streams;
mod tcp;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use hdrhistogram::Histogram;
use rustix::event::{Timespec, epoll};
use rustls::pki_types::ServerName;

use crate::clock::{Clock, NEVER, Nanos, nanos};
use crate::plan::{Kind, Operation, Origin, Pace, Plan, Protocol, Target};
use crate::record::{Failure, Failures, Record, histogram, note};
use crate::schedule::{Rng, Weighted};
use crate::tls::{self, Client, OutBuf};
pub use pacer::{Op, Pacer, Timeline};
use quic::Quic;
use sealane_lab_wire::fields::{self, Coding, Sections};
use sealane_lab_wire::{h1, h2, h3};
use seat::Seat;

/// How often timeouts are looked for.
const SWEEP: Nanos = 50_000_000;
/// How long a seat rests after a failure, so that a server that refuses is not hammered.
const REST: Nanos = 10_000_000;
/// How often one seat may fail before the clock starts.
const ATTEMPTS: u32 = 3;
/// How long an operation that is done waits for its ticket.
const TICKET_TIMEOUT: Nanos = 1_000_000_000;
/// The longest that the end of a run waits for what is under way, once nothing moves any more. What does move has the
/// operation's own time-out.
const DRAIN: Nanos = 5_000_000_000;

/// What the main thread tells the workers: written a few times per run, so that reading costs nothing.
#[derive(Debug, Default)]
pub struct Signals {
    /// The moment the load starts; 0 while connections are being prepared.
    pub start: AtomicU64,
    /// Give up as soon as possible.
    pub stop: AtomicBool,
    /// Raised when an interval ends: every worker then hands over its histogram of it.
    pub interval: AtomicU64,
}

/// What a worker shows while it runs; it alone writes, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Gauge {
    /// Operations started.
    pub started: AtomicU64,
    /// Operations completed.
    pub completed: AtomicU64,
    /// Operations failed.
    pub failed: AtomicU64,
    /// Nanoseconds spent spinning towards a deadline.
    pub spun: AtomicU64,
    /// Set at the thread's end, when nobody can ask the kernel any more: nanoseconds on a CPU…
    pub ran: AtomicU64,
    /// …and waiting for one.
    pub waited: AtomicU64,
    /// The kernel's id of the thread.
    pub tid: AtomicU64,
}

/// What a worker reports to the main thread.
#[derive(Debug)]
pub enum News {
    /// Everything is connected; waiting for the start.
    Ready,
    /// Preparing failed: nothing can be measured.
    Hopeless(Failure, String),
    /// The histogram of an interval (thread, histogram).
    Interval(usize, Box<Histogram<u64>>),
    /// The thread is through.
    Done(Box<Record>),
}

/// What a worker is given.
#[derive(Clone, Copy, Debug)]
pub struct Assignment<'a> {
    /// What to do.
    pub plan: &'a Plan,
    /// Which of `plan.threads` this is.
    pub thread: usize,
    /// The core to stay on.
    pub cpu: Option<usize>,
    /// The run's clock.
    pub clock: Clock,
    /// What the main thread says.
    pub signals: &'a Signals,
    /// Where to show progress.
    pub gauge: &'a Gauge,
}

pub(super) struct Worker<'a> {
    plan: &'a Plan,
    clock: Clock,
    signals: &'a Signals,
    gauge: &'a Gauge,
    news: Sender<News>,
    thread: usize,
    epoll: OwnedFd,
    /// Received bytes of whatever connection is being read.
    scratch: Vec<u8>,
    /// Bytes to send of whatever connection is being written.
    out: OutBuf,
    seats: Vec<Seat>,
    pacer: Pacer,
    client: Option<Client>,
    names: Vec<ServerName<'static>>,
    name_weights: Weighted,
    /// Request bytes by origin, name and target.
    requests: Vec<Vec<Vec<Box<[u8]>>>>,
    /// The same without `Connection: close`, for requests that go as early data: a server that answers and
    /// closes at once never completes the handshake, and so never gives the ticket for the next one.
    lingering: Vec<Vec<Vec<Box<[u8]>>>>,
    /// The same as field sections, for HTTP/2.
    sections: Vec<Vec<Vec<Sections>>>,
    /// QUIC's side, when HTTP/3 is spoken.
    quic: Option<Box<Quic>>,
    /// What HTTP/2 connections reported in the reading under way.
    reported: Vec<h2::Event<Op>>,
    /// Seats with HTTP/2 frames to send at the end of the turn.
    dirty: Vec<u32>,
    rng: Rng,
    record: Record,
    /// Failures outside the measured phase: they explain a run that never got that far.
    outside: Failures,
    interval: Option<Histogram<u64>>,
    interval_seen: u64,
    resting: VecDeque<(Nanos, u32)>,
    in_flight: usize,
    next_source: usize,
    next_sweep: Nanos,
    started: u64,
    completed: u64,
    failed: u64,
    spun: Nanos,
    /// Connections still to be made before the clock starts.
    preparing: usize,
    /// Operations still to be made before the clock starts, to gather tickets.
    priming: usize,
    /// Of those, the ones not begun.
    unprimed: usize,
    hopeless: Option<(Failure, String)>,
}

/// Runs a worker to its end; everything it has to say goes through `news`.
pub fn work(assignment: Assignment<'_>, news: Sender<News>) {
    if let Some(cpu) = assignment.cpu {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        // Refused in some sandboxes; the lag tells if it hurts.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
    // Sleep to the nanosecond that was asked for, not to the 50 µs that the kernel likes to round to.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    assignment.gauge.tid.store(u64::from(tid.unsigned_abs()), Ordering::Relaxed);
    // A thread that panics is lost, and the run void; the others' figures are still told.
    let whole = std::panic::catch_unwind(AssertUnwindSafe(|| match Worker::new(assignment, news.clone()) {
        Ok(worker) => worker.run(),
        Err(why) => Err((Failure::Connect, why)),
    }));
    let Ok(ended) = whole else { return };
    if let Some((ran, waited)) = crate::accounting::thread_times(u64::from(tid.unsigned_abs())) {
        assignment.gauge.ran.store(ran, Ordering::Relaxed);
        assignment.gauge.waited.store(waited, Ordering::Relaxed);
    }
    let last = match ended {
        Ok(record) => News::Done(Box::new(record)),
        Err((failure, why)) => News::Hopeless(failure, why),
    };
    // Nobody listens any more only when the run was given up.
    drop(news.send(last));
}

/// QUIC has TLS 1.3 and no other (RFC 9001 §4.2).
fn tls_options(plan: &Plan) -> tls::TlsOptions {
    let mut options = plan.tls.clone();
    if plan.protocol == Protocol::Http3 {
        options.versions = tls::TlsVersions::Tls13;
    }
    options
}

/// Something for every origin, name and target.
fn by_origin<'a, T>(
    plan: &'a Plan,
    hosts: &[&'a str],
    make: impl Fn(&'a Target, &'a Origin, &'a str) -> T,
) -> Vec<Vec<Vec<T>>> {
    let for_name = |origin: &'a Origin, host| origin.targets.iter().map(|t| make(t, origin, host)).collect();
    plan.origins.iter().map(|origin| hosts.iter().map(|host| for_name(origin, *host)).collect()).collect()
}

impl<'a> Worker<'a> {
    fn new(a: Assignment<'a>, news: Sender<News>) -> Result<Self, String> {
        let plan = a.plan;
        let tls = plan.origins.iter().any(|o| o.tls);
        let client = match tls {
            true => Some(Client::new(&tls_options(plan), plan.protocol.alpn()).map_err(|e| e.to_string())?),
            false => None,
        };
        // Names apply to all origins; without them, each origin has its own.
        let shared = !plan.names.is_empty();
        let hosts: Vec<&str> = match shared {
            true => plan.names.iter().map(|(name, _)| name.as_str()).collect(),
            false => plan.origins.iter().map(|o| o.host.as_str()).collect(),
        };
        let names = match tls {
            true => {
                hosts.iter().map(|h| Client::server_name(h)).collect::<Result<_, _>>().map_err(|e| e.to_string())?
            }
            false => Vec::new(),
        };
        let close = matches!(plan.operation, Operation::Connection { .. });
        // Indexed like `names`, so that a seat's name index serves both.
        let host_of = |origin: &'a Origin, host: &'a str| if shared { host } else { origin.host.as_str() };
        let requests = by_origin(plan, &hosts, |t, origin, host| match plan.protocol {
            Protocol::Http3 => h3::encode(&fields::encode(Coding::Qpack, &t.request(host_of(origin, host))), &t.body),
            _ => h1::encode(&t.request(host_of(origin, host)), close),
        });
        let early = matches!(&plan.operation, Operation::Connection { mix, .. } if mix.iter().any(|(k, _)| *k == Kind::EarlyData));
        let lingering = match plan.protocol {
            Protocol::Http1 if early => {
                by_origin(plan, &hosts, |t, origin, host| h1::encode(&t.request(host_of(origin, host)), false))
            }
            _ => Vec::new(),
        };
        let sections = match plan.protocol {
            Protocol::Http2 => by_origin(plan, &hosts, |t, origin, host| {
                fields::encode(Coding::Hpack, &t.request(host_of(origin, host)))
            }),
            _ => Vec::new(),
        };
        let pacer = Pacer::new(plan, a.thread);
        let seats: Vec<Seat> = pacer.seats().map(Seat::new).collect();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| format!("epoll: {e}"))?;
        let quic = match (&client, plan.protocol) {
            (Some(client), Protocol::Http3) => Some(Box::new(Quic::new(plan, client, &epoll, a.thread)?)),
            _ => None,
        };
        Ok(Self {
            plan,
            clock: a.clock,
            signals: a.signals,
            gauge: a.gauge,
            news,
            thread: a.thread,
            epoll,
            scratch: vec![0; 256 * 1024],
            out: OutBuf::new(),
            pacer,
            client,
            name_weights: Weighted::new(match shared {
                true => plan.names.iter().map(|(_, weight)| *weight).collect::<Vec<_>>(),
                false => vec![1],
            }),
            names,
            requests,
            lingering,
            sections,
            quic,
            reported: Vec::new(),
            dirty: Vec::new(),
            rng: Rng::seeded(plan.seed ^ (a.thread as u64 + 1).wrapping_mul(0xe703_7ed1_a0b4_28db)),
            record: Record::new(plan),
            outside: Failures::default(),
            interval: plan.interval.map(|_| histogram()),
            interval_seen: 0,
            resting: VecDeque::with_capacity(seats.len()),
            seats,
            in_flight: 0,
            next_source: a.thread,
            next_sweep: SWEEP,
            started: 0,
            completed: 0,
            failed: 0,
            spun: 0,
            preparing: 0,
            priming: 0,
            unprimed: 0,
            hopeless: None,
        })
    }

    fn run(mut self) -> Result<Record, (Failure, String)> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        self.prepare();
        let mut told = false;
        // What is under way when the load ends may take until then.
        let mut drained_by = NEVER;
        let grace = DRAIN.min(nanos(self.plan.timeout));
        let (mut moved, mut moved_at) = (0, 0);
        let mut warm_end = NEVER;
        let mut tickets_before = tls::tickets_received();
        loop {
            let mut now = self.clock.now();
            if self.pacer.timeline().is_none() {
                if let Some(hopeless) = self.hopeless.take() {
                    return Err(hopeless);
                }
                if self.preparing == 0 && self.priming == 0 && !told {
                    told = true;
                    drop(self.news.send(News::Ready));
                }
                let start = self.signals.start.load(Ordering::Acquire);
                if told && start != 0 {
                    let timeline = Timeline::new(self.plan, start);
                    warm_end = timeline.warm_end;
                    drained_by = timeline.end.saturating_add(grace);
                    self.pacer.start(self.plan, self.thread, timeline, now);
                }
            } else {
                self.start_due(now);
                if now >= warm_end {
                    // The measured phase begins here for this thread's own figures.
                    warm_end = NEVER;
                    tickets_before = tls::tickets_received();
                }
                if self.pacer.through() && drained_by == NEVER {
                    drained_by = now + grace;
                }
                let bytes = self.record.bytes_in + self.record.bytes_out;
                if bytes != moved {
                    (moved, moved_at) = (bytes, now);
                }
                let finished = self.pacer.ended(now) && self.in_flight == 0 && !self.pacer.has_backlog();
                let still = now >= drained_by && now >= moved_at.saturating_add(grace);
                if finished || still || self.signals.stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            if now >= self.next_sweep {
                self.sweep(now);
            }
            if self.quic.is_some() {
                self.wake_quic(now);
            }
            self.flush_dirty();
            self.publish();
            now = self.clock.now();
            let wake = self.next_wake(now);
            let spin = nanos(self.plan.spin);
            let pause = if wake <= now.saturating_add(spin) { 0 } else { wake - now - spin };
            let timeout = Timespec { tv_sec: (pause / 1_000_000_000) as i64, tv_nsec: (pause % 1_000_000_000) as i64 };
            events.clear();
            if epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)).is_err() {
                // Interrupted by a signal: look again.
                continue;
            }
            if pause == 0 && events.is_empty() {
                self.spun += self.clock.now() - now;
            }
            for event in &events {
                let (data, flags) = (event.data.u64(), event.flags);
                self.handle_event(data, flags);
                let now = self.clock.now();
                self.start_due(now);
            }
        }
        let now = self.clock.now();
        self.finish(now);
        self.record.handshakes.tickets = tls::tickets_received() - tickets_before;
        self.publish();
        Ok(self.record)
    }

    /// Opens what must be open before the clock starts: all connections in keep-alive mode, or as many
    /// full handshakes as it takes to have tickets for the first ones to be resumed.
    fn prepare(&mut self) {
        let now = self.clock.now();
        match self.plan.operation {
            Operation::KeepAlive => {
                self.preparing = self.seats.len();
                for i in 0..self.seats.len() {
                    self.open(i, now);
                }
            }
            Operation::Connection { .. } => {
                for i in 0..self.seats.len() {
                    self.offer(i, now);
                }
                // Over QUIC nobody has looked yet whether there is a server at all.
                if self.plan.wants_tickets() || self.quic.is_some() {
                    // One connection yields one ticket or more, and an operation takes one.
                    self.priming =
                        if self.plan.wants_tickets() { self.seats.len() * self.names.len().max(1) } else { 1 };
                    let at_once = self.priming.min(self.seats.len()).min(8);
                    self.unprimed = self.priming - at_once;
                    for _ in 0..at_once {
                        self.prime(now);
                    }
                }
            }
        }
    }

    /// Starts one more operation whose only purpose is its tickets.
    fn prime(&mut self, now: Nanos) {
        if let Some(i) = self.pacer.take_seat() {
            self.begin(i as usize, Op::priming(now), now);
        }
    }

    fn start_due(&mut self, now: Nanos) {
        let mut now = now;
        for group in 0..self.pacer.groups() {
            // A seat that fails at once must not be tried again in the same turn.
            for _ in 0..self.pacer.idle(group) * self.plan.streams {
                let Some((seat, op, lag)) = self.pacer.take(group, now, &mut self.rng) else { break };
                if op.measured {
                    self.record.started += 1;
                    if let Some(lag) = lag {
                        note(&mut self.record.lag, lag);
                    }
                }
                self.started += 1;
                self.begin(seat as usize, op, now);
                now = self.clock.now();
            }
        }
    }

    fn next_wake(&self, now: Nanos) -> Nanos {
        let mut wake = self.next_sweep;
        if let Some((at, _)) = self.resting.front() {
            wake = wake.min(*at);
        }
        if let Some(at) = self.quic.as_ref().and_then(|quic| quic.next_timer()) {
            wake = wake.min(at);
        }
        if self.pacer.timeline().is_none() {
            // The start comes by a variable, not by an event.
            return wake.min(now + 500_000);
        }
        wake.min(self.pacer.next(now))
    }

    fn publish(&mut self) {
        self.gauge.started.store(self.started, Ordering::Relaxed);
        self.gauge.completed.store(self.completed, Ordering::Relaxed);
        self.gauge.failed.store(self.failed, Ordering::Relaxed);
        self.gauge.spun.store(self.spun, Ordering::Relaxed);
        if let Some(interval) = &mut self.interval {
            let seen = self.signals.interval.load(Ordering::Relaxed);
            if seen != self.interval_seen {
                self.interval_seen = seen;
                drop(self.news.send(News::Interval(self.thread, Box::new(interval.clone()))));
                interval.reset();
            }
        }
    }

    /// Times out what takes too long, and wakes the seats that have rested.
    fn sweep(&mut self, now: Nanos) {
        self.next_sweep = now + SWEEP;
        let timeout = nanos(self.plan.timeout);
        for i in 0..self.seats.len() {
            if self.waited_enough(i, now) {
                self.ticket_came(i, now);
            } else if self.seats[i].overdue(now, timeout) {
                self.fail(i, Failure::Timeout, now, || format!("nothing within {:?}", self.plan.timeout));
            }
        }
        self.wake_rested(now);
    }

    fn wake_rested(&mut self, now: Nanos) {
        while let Some((at, seat)) = self.resting.front().copied() {
            if at > now {
                break;
            }
            self.resting.pop_front();
            match self.plan.operation {
                Operation::KeepAlive => self.open(seat as usize, now),
                Operation::Connection { .. } => {
                    self.offer(seat as usize, now);
                    if self.priming > 0 {
                        self.prime(now);
                    }
                }
            }
        }
    }

    /// Whether a moment lies in the measured phase.
    fn measuring(&self, at: Nanos) -> bool {
        self.pacer.timeline().is_some_and(|t| (t.warm_end..t.end).contains(&at))
    }

    /// Whether a finished operation counts: by its intended moment in an open loop, by its end in a closed one.
    fn counts(&self, op: &Op, end: Nanos) -> bool {
        match self.plan.pace {
            Pace::Open { .. } => op.measured,
            Pace::Closed => op.measured && self.measuring(end),
        }
    }

    /// Accounts for what the end of the run cut off.
    fn finish(&mut self, now: Nanos) {
        let stopped = self.signals.stop.load(Ordering::Relaxed);
        if !stopped && matches!(self.plan.pace, Pace::Open { .. }) {
            for i in 0..self.seats.len() {
                if self.seats[i].busy() {
                    self.fail(i, Failure::Timeout, now, || "not finished when the run ended".to_owned());
                }
            }
            // Never started, and waited for at least this long: leaving them out would flatter the server.
            let kind = self.plan.kinds()[0];
            for intended in self.pacer.leftover(now) {
                self.record.unstarted += 1;
                note(&mut self.record.times(kind).corrected, now - intended);
            }
        }
        for i in 0..self.seats.len() {
            // TCP says goodbye by itself.
            self.vacate_quic(i);
        }
        if self.record.failures.total() == 0 && self.record.completed == 0 {
            self.record.failures = std::mem::take(&mut self.outside);
        }
    }
}
