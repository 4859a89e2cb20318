//! A run from its beginning to its end, seen from the thread that asked for it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::Scope;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::accounting::{self, CpuSample};
use crate::clock::{Clock, Nanos, nanos};
use crate::plan::{Pinning, Plan};
use crate::preflight;
use crate::record::{Failure, Record, histogram, merge};
use crate::report::{ClientCost, Report, ServerCost, Surroundings};
use crate::verdict::{self, Conditions};
use crate::worker::{Assignment, Gauge, News, Signals, Timeline, work};

/// Why there is no report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// What was asked for makes no sense or cannot be had here.
    Usage(String),
    /// The server cannot be loaded: nobody there, or no agreement with it.
    Unreachable(String),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(why) | Self::Unreachable(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for LoadError {}

/// A glimpse at a run under way.
#[derive(Debug)]
pub struct Live<'a> {
    /// Seconds since the load began; negative never.
    pub seconds: f64,
    /// Seconds it will last, if time decides.
    pub total: Option<f64>,
    /// Whether it is still warming up.
    pub warming: bool,
    /// Operations completed so far.
    pub completed: u64,
    /// Operations failed so far.
    pub failed: u64,
    /// Operations per second over the last interval.
    pub rate: f64,
    /// Latencies of the last interval.
    pub latency: &'a Histogram<u64>,
}

/// Runs `plan`. `watch` is called once per interval of the plan, if it has one; setting `cancel` ends the
/// run early, with what there is by then.
pub fn run(plan: &Plan, cancel: &AtomicBool, mut watch: impl FnMut(&Live<'_>)) -> Result<Report, LoadError> {
    preflight::descriptors(plan.connections)?;
    if let Some(pid) = plan.servers.iter().find(|pid| !accounting::exists(**pid)) {
        return Err(LoadError::Usage(format!("there is no process {pid}")));
    }
    let negotiated = preflight::handshake(plan)?;
    let clock = Clock::start();
    let signals = Signals::default();
    let gauges: Vec<Gauge> = (0..plan.threads).map(|_| Gauge::default()).collect();
    let cpus = cpus(plan)?;
    std::thread::scope(|scope| {
        let (tell, news) = std::sync::mpsc::channel();
        for (thread, gauge) in gauges.iter().enumerate() {
            let assignment =
                Assignment { plan, thread, cpu: cpus.get(thread).copied(), clock, signals: &signals, gauge };
            let tell = tell.clone();
            spawn(scope, assignment, tell)?;
        }
        drop(tell);
        let mut coordinator = Coordinator {
            plan,
            clock,
            signals: &signals,
            gauges: &gauges,
            news,
            cancel,
            records: Vec::new(),
            ready: 0,
            hopeless: None,
            interval: histogram(),
            interval_parts: 0,
        };
        let result = coordinator.run(negotiated, &mut watch);
        // Whatever happened, nobody goes on.
        signals.stop.store(true, Ordering::Relaxed);
        signals.start.store(1, Ordering::Release);
        result
    })
}

fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    assignment: Assignment<'scope>,
    tell: std::sync::mpsc::Sender<News>,
) -> Result<(), LoadError> {
    std::thread::Builder::new()
        .name(format!("load-{}", assignment.thread))
        .spawn_scoped(scope, move || work(assignment, tell))
        .map(drop)
        .map_err(|e| LoadError::Usage(format!("cannot start a thread: {e}")))
}

fn cpus(plan: &Plan) -> Result<Vec<usize>, LoadError> {
    let allowed = rustix::thread::sched_getaffinity(None).map_err(|e| LoadError::Usage(format!("CPUs: {e}")))?;
    match &plan.pinning {
        Pinning::Off => Ok(Vec::new()),
        Pinning::Cpus(list) => {
            if let Some(cpu) =
                list.iter().find(|cpu| **cpu >= rustix::thread::CpuSet::MAX_CPU || !allowed.is_set(**cpu))
            {
                return Err(LoadError::Usage(format!("this process may not use CPU {cpu}")));
            }
            Ok(list.iter().copied().cycle().take(plan.threads).collect())
        }
        Pinning::Auto => {
            let list: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
            Ok(list.into_iter().cycle().take(plan.threads).collect())
        }
    }
}

/// The kernel's figures at one moment.
struct Sample {
    at: Nanos,
    server: CpuSample,
    completed: u64,
    pressure: Option<u64>,
    /// Per thread: on a CPU, waiting for one, spinning.
    threads: Vec<(u64, u64, u64)>,
}

/// The main thread of a run: starts the generator threads' schedule, gathers what they report and samples the kernel's figures.
struct Coordinator<'a> {
    plan: &'a Plan,
    clock: Clock,
    signals: &'a Signals,
    gauges: &'a [Gauge],
    news: Receiver<News>,
    cancel: &'a AtomicBool,
    records: Vec<Record>,
    ready: usize,
    hopeless: Option<(Failure, String)>,
    interval: Histogram<u64>,
    interval_parts: usize,
}

impl Coordinator<'_> {
    fn run(
        &mut self,
        negotiated: Option<preflight::Negotiated>,
        watch: &mut impl FnMut(&Live<'_>),
    ) -> Result<Report, LoadError> {
        let give_up = self.clock.now() + 3 * nanos(self.plan.timeout) + 5_000_000_000;
        while self.ready < self.plan.threads {
            let more = self.listen(Duration::from_millis(20));
            if let Some((_, why)) = &self.hopeless {
                return Err(LoadError::Unreachable(why.clone()));
            }
            if !more {
                return Err(LoadError::Unreachable("all generator threads ended unexpectedly".to_owned()));
            }
            if self.cancel.load(Ordering::Relaxed) || self.clock.now() > give_up {
                return Err(LoadError::Unreachable("the connections were not established in time".to_owned()));
            }
        }
        // Far enough ahead for every thread to see it in time.
        let start = self.clock.now() + 2_000_000;
        let timeline = Timeline::new(self.plan, start);
        self.signals.start.store(start, Ordering::Release);

        let mut first: Option<Sample> = None;
        let mut last: Option<Sample> = None;
        let mut intervals = Vec::new();
        let step = self.plan.interval.map(nanos);
        let mut next_interval = step.map(|s| start + s);
        let mut completed_before = 0;
        loop {
            let now = self.clock.now();
            if first.is_none() && now >= timeline.warm_end {
                first = Some(self.sample());
            }
            // When a number of operations decides, the first thread to be through ends the accounting.
            if last.is_none() && (now >= timeline.end || !self.records.is_empty()) {
                last = Some(self.sample());
            }
            if let (Some(at), Some(step)) = (next_interval, step)
                && now >= at
            {
                next_interval = Some(at + step);
                self.signals.interval.fetch_add(1, Ordering::Relaxed);
                self.gather_interval();
                let completed = self.sum(|g| &g.completed);
                let seconds = (at - start) as f64 / 1e9;
                watch(&Live {
                    seconds,
                    total: self.plan.duration.map(|d| (d + self.plan.warmup).as_secs_f64()),
                    warming: at <= timeline.warm_end,
                    completed,
                    failed: self.sum(|g| &g.failed),
                    rate: (completed - completed_before) as f64 / (step as f64 / 1e9),
                    latency: &self.interval,
                });
                completed_before = completed;
                intervals.push((seconds - step as f64 / 1e9, std::mem::replace(&mut self.interval, histogram())));
            }
            if self.cancel.load(Ordering::Relaxed) && !self.signals.stop.load(Ordering::Relaxed) {
                last.get_or_insert_with(|| self.sample());
                self.signals.stop.store(true, Ordering::Relaxed);
            }
            let mut until = now + 50_000_000;
            for moment in [Some(timeline.warm_end), Some(timeline.end), next_interval].into_iter().flatten() {
                if moment > now {
                    until = until.min(moment);
                }
            }
            if !self.listen(Duration::from_nanos(until - now)) {
                break;
            }
        }
        let last = last.unwrap_or_else(|| self.sample());
        Ok(self.conclude(negotiated, timeline, first, last, intervals))
    }

    /// Waits for news; whether there may be more.
    fn listen(&mut self, timeout: Duration) -> bool {
        match self.news.recv_timeout(timeout) {
            Ok(news) => {
                self.note(news);
                true
            }
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }

    fn note(&mut self, news: News) {
        match news {
            News::Ready => self.ready += 1,
            News::Hopeless(failure, why) => self.hopeless = Some((failure, why)),
            News::Interval(_, part) => {
                merge(&mut self.interval, &part);
                self.interval_parts += 1;
            }
            News::Done(record) => self.records.push(*record),
        }
    }

    /// The threads hand over their histograms within a loop turn; one that is asleep may be late, and
    /// then counts with the next interval.
    fn gather_interval(&mut self) {
        self.interval_parts = 0;
        let timeout = self.clock.now() + 20_000_000;
        while self.interval_parts < self.plan.threads - self.records.len() {
            let now = self.clock.now();
            if now >= timeout || !self.listen(Duration::from_nanos(timeout - now)) {
                break;
            }
        }
    }

    fn sum(&self, of: impl Fn(&Gauge) -> &std::sync::atomic::AtomicU64) -> u64 {
        self.gauges.iter().map(|g| of(g).load(Ordering::Relaxed)).sum()
    }

    fn sample(&self) -> Sample {
        let threads = self.gauges.iter().map(|g| {
            let left = || (g.ran.load(Ordering::Relaxed), g.waited.load(Ordering::Relaxed));
            let (ran, waited) = accounting::thread_times(g.tid.load(Ordering::Relaxed)).unwrap_or_else(left);
            (ran, waited, g.spun.load(Ordering::Relaxed))
        });
        Sample {
            at: self.clock.now(),
            server: CpuSample::take(&self.plan.servers),
            completed: self.sum(|g| &g.completed),
            pressure: accounting::cpu_pressure(),
            threads: threads.collect(),
        }
    }

    fn conclude(
        &mut self,
        negotiated: Option<preflight::Negotiated>,
        timeline: Timeline,
        first: Option<Sample>,
        last: Sample,
        intervals: Vec<(f64, Histogram<u64>)>,
    ) -> Report {
        let lost = self.plan.threads - self.records.len();
        let mut record = Record::new(self.plan);
        for part in self.records.drain(..) {
            record.add(part);
        }
        let mut around = Surroundings { negotiated, ..Surroundings::default() };
        let mut busiest = 0.0f64;
        if let Some(first) = first {
            let wall = last.at.saturating_sub(first.at).max(1);
            // By time the plan knows how long it measured; by number the last completion does.
            around.seconds = match self.plan.duration {
                Some(d) if !self.cancel.load(Ordering::Relaxed) => d.as_secs_f64(),
                Some(_) => wall as f64 / 1e9,
                None => record.last.saturating_sub(timeline.warm_end) as f64 / 1e9,
            };
            let done = last.completed - first.completed;
            let (mut cpu, mut waited, mut spun) = (0, 0, 0);
            for (a, b) in first.threads.iter().zip(&last.threads) {
                let ran = b.0.saturating_sub(a.0);
                let queued = b.1.saturating_sub(a.1);
                cpu += ran;
                waited += queued;
                // Waiting for a CPU is having work; spinning is not.
                let idle = b.2.saturating_sub(a.2);
                spun += idle.min(ran);
                let worked = (ran + queued).saturating_sub(idle);
                busiest = busiest.max((worked as f64 / wall as f64).min(1.0));
            }
            around.client = ClientCost {
                cpu_ns: cpu,
                spun_ns: spun,
                cpu_ns_per_operation: (cpu - spun) as f64 / done.max(1) as f64,
                waited_for_cpu_ns: waited,
                busiest,
            };
            // The kernel's clock and ours are read one after the other, so the quotient can exceed 100 %.
            around.pressure = first
                .pressure
                .zip(last.pressure)
                .map(|(a, b)| (b.saturating_sub(a) as f64 * 1e3 / wall as f64 * 100.0).min(100.0));
            if !self.plan.servers.is_empty() {
                if last.server.is_empty() {
                    around.notes.push("the server's process had ended before the end of the run".to_owned());
                }
                let cpu = last.server.since(&first.server);
                let memory = accounting::memory(&self.plan.servers);
                around.server = Some(ServerCost::new(cpu, done, wall as f64 / 1e9, memory));
            }
        }
        let conditions = Conditions { pressure: around.pressure, busiest, lost, seconds: around.seconds };
        around.void = verdict::void(self.plan, &record, &conditions);
        if self.plan.rate().is_none() && busiest > 0.95 {
            around.notes.push(
                "the client was busy all the time: the rate may be the limit of the client, not of the server"
                    .to_owned(),
            );
        }
        if self.cancel.load(Ordering::Relaxed) {
            around.notes.push("stopped early".to_owned());
        }
        let mut report = Report::new(self.plan, record, around);
        report.intervals = intervals;
        report
    }
}
