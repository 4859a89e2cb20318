//! What a run came to: figures to print and to hand on as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::accounting::Memory;
use crate::plan::{Close, Kind, Operation, Pace, Plan};
use crate::preflight::Negotiated;
use crate::record::{Failure, HandshakeCounts, Record};
use crate::schedule::Arrivals;
use crate::verdict::{Figures, PERCENTILES, Threshold, tells};

/// A distribution of times, in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Distribution {
    /// How many samples there were.
    pub samples: u64,
    /// The least.
    pub min: u64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub stdev: f64,
    /// Those percentiles that have at least ten samples beyond them, as `p99.9`.
    pub percentiles: BTreeMap<String, u64>,
    /// The greatest.
    pub max: u64,
}

impl Distribution {
    /// Of a histogram; `None` when it is empty.
    pub fn of(h: &Histogram<u64>) -> Option<Self> {
        if h.is_empty() {
            return None;
        }
        let percentiles = PERCENTILES
            .iter()
            .filter(|p| tells(h.len(), **p))
            .map(|p| (format!("p{p}"), h.value_at_quantile(p / 100.0).min(h.max())))
            .collect();
        Some(Self { samples: h.len(), min: h.min(), mean: h.mean(), stdev: h.stdev(), percentiles, max: h.max() })
    }
}

/// The times of one kind of operation.
#[derive(Clone, Debug, Serialize)]
pub struct KindTimes {
    /// From the intended moment; open loop only.
    pub corrected: Option<Distribution>,
    /// From the actual start.
    pub uncorrected: Option<Distribution>,
    /// TCP connect.
    pub connect: Option<Distribution>,
    /// TLS handshake, from established.
    pub handshake: Option<Distribution>,
    /// First byte of the answer, from the start.
    pub first_byte: Option<Distribution>,
}

/// What the server cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ServerCost {
    /// CPU nanoseconds of all its threads and children over the measured phase.
    pub cpu_ns: u64,
    /// Operations completed between the same two moments.
    pub operations: u64,
    /// The one by the other.
    pub cpu_ns_per_operation: f64,
    /// CPUs in use: CPU time by wall time.
    pub cpus: f64,
    /// Resident memory at the end, in bytes.
    pub rss: u64,
    /// Proportional memory at the end, in bytes; 0 where it may not be read.
    pub pss: u64,
}

impl ServerCost {
    /// From two samples' difference.
    pub fn new(cpu_ns: u64, operations: u64, seconds: f64, memory: Memory) -> Self {
        Self {
            cpu_ns,
            operations,
            cpu_ns_per_operation: if operations == 0 { 0.0 } else { cpu_ns as f64 / operations as f64 },
            cpus: cpu_ns as f64 / 1e9 / seconds.max(1e-9),
            rss: memory.rss,
            pss: memory.pss,
        }
    }
}

/// How the generator itself fared.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClientCost {
    /// CPU nanoseconds of its threads over the measured phase, spinning included.
    pub cpu_ns: u64,
    /// Of those, spent spinning towards a deadline.
    pub spun_ns: u64,
    /// CPU nanoseconds per operation, spinning left out.
    pub cpu_ns_per_operation: f64,
    /// Nanoseconds its threads waited for a CPU that they were ready to use.
    pub waited_for_cpu_ns: u64,
    /// The part of the time that the busiest thread had work, 0 to 1.
    pub busiest: f64,
}

/// A failure's count and first message.
#[derive(Clone, Debug, Serialize)]
pub struct FailureCount {
    /// How many.
    pub count: u64,
    /// The first, in words.
    pub first: Option<String>,
}

/// How handshakes went.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HandshakeFigures {
    /// Completed, full.
    pub full: u64,
    /// Completed, resumed without early data.
    pub resumed: u64,
    /// Completed, with early data that was accepted.
    pub early_data: u64,
    /// Needed a second hello.
    pub retried: u64,
    /// A ticket was offered and the server made a full handshake.
    pub not_resumed: u64,
    /// Should have been resumed and there was no ticket.
    pub no_ticket: u64,
    /// Tickets received.
    pub tickets: u64,
    /// Early data accepted.
    pub early_accepted: u64,
    /// Early data refused.
    pub early_rejected: u64,
    /// Early data wanted, not allowed by the ticket.
    pub early_not_offered: u64,
}

/// One run's result.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `sealane-lab load`.
    pub tool: &'static str,
    /// Its version.
    pub version: &'static str,
    /// What was asked for.
    pub urls: Vec<String>,
    /// HTTP version.
    pub protocol: &'static str,
    /// `open` or `closed`.
    pub r#loop: &'static str,
    /// `uniform` or `poisson`, in an open loop.
    pub arrivals: Option<&'static str>,
    /// `request` (kept alive) or `connection`.
    pub operation: &'static str,
    /// Connections at most.
    pub connections: usize,
    /// Generator threads.
    pub threads: usize,
    /// Streams per connection.
    pub streams: usize,
    /// What of the server was verified.
    pub verify: &'static str,
    /// How connections were closed.
    pub close: &'static str,
    /// Seed of the randomness.
    pub seed: u64,
    /// What one handshake before the run negotiated.
    pub negotiated: Option<Negotiated>,
    /// Seconds measured.
    pub seconds: f64,
    /// Operations per second that were offered; open loop only.
    pub rate_offered: Option<f64>,
    /// Operations per second that ended in the measured phase.
    pub rate: f64,
    /// Operations that were started.
    pub started: u64,
    /// Operations that completed.
    pub completed: u64,
    /// Operations that were due and never started.
    pub unstarted: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Failed, never started, or answered with a status from 500 on, as a part of all.
    pub error_share: f64,
    /// Why operations failed.
    pub failures: BTreeMap<&'static str, FailureCount>,
    /// Responses by class of status.
    pub statuses: BTreeMap<&'static str, u64>,
    /// Latency of all kinds together: corrected in an open loop.
    pub latency: Option<Distribution>,
    /// Latency from the actual start, all kinds together.
    pub latency_uncorrected: Option<Distribution>,
    /// Times per kind.
    pub kinds: BTreeMap<&'static str, KindTimes>,
    /// Handshakes; connection mode only.
    pub handshakes: Option<HandshakeFigures>,
    /// Connections opened while measuring.
    pub connections_opened: u64,
    /// Bytes received per second.
    pub bytes_in_per_second: f64,
    /// Bytes sent per second.
    pub bytes_out_per_second: f64,
    /// How late the generator was by its own fault.
    pub lag: Option<Distribution>,
    /// The generator's own cost.
    pub client: ClientCost,
    /// The server's cost, when its process was named.
    pub server: Option<ServerCost>,
    /// CPU pressure in per cent.
    pub cpu_pressure: Option<f64>,
    /// Why the run is void; empty when it holds.
    pub void: Vec<String>,
    /// Thresholds that were broken.
    pub broken: Vec<String>,
    /// Remarks that do not make the run void.
    pub notes: Vec<String>,
    /// The whole record, for logs and charts.
    #[serde(skip)]
    pub record: Record,
    /// Histograms per interval, with the seconds at which they began.
    #[serde(skip)]
    pub intervals: Vec<(f64, Histogram<u64>)>,
}

/// What the main thread measured beside the workers.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// Seconds measured.
    pub seconds: f64,
    /// The generator's cost.
    pub client: ClientCost,
    /// The server's.
    pub server: Option<ServerCost>,
    /// CPU pressure.
    pub pressure: Option<f64>,
    /// The handshake before the run.
    pub negotiated: Option<Negotiated>,
    /// Why the run is void.
    pub void: Vec<String>,
    /// Remarks.
    pub notes: Vec<String>,
}

impl Report {
    /// From the merged record.
    pub fn new(plan: &Plan, record: Record, around: Surroundings) -> Self {
        let connection_mode = plan.operation != Operation::KeepAlive;
        let tried = record.completed + record.failures.total() + record.unstarted;
        let bad = record.failures.total() + record.unstarted + record.statuses[5];
        let count = |kind: Kind| record.times[kind as usize].as_ref().map_or(0, |t| t.uncorrected.len());
        let h: HandshakeCounts = record.handshakes;
        let handshakes = connection_mode.then(|| HandshakeFigures {
            full: count(Kind::Full),
            resumed: count(Kind::Resumed),
            early_data: count(Kind::EarlyData),
            retried: h.retried,
            not_resumed: h.not_resumed,
            no_ticket: h.no_ticket,
            tickets: h.tickets,
            early_accepted: h.early_accepted,
            early_rejected: h.early_rejected,
            early_not_offered: h.early_not_offered,
        });
        let kinds = Kind::ALL
            .iter()
            .filter_map(|kind| {
                let t = record.times[*kind as usize].as_ref().filter(|t| !t.uncorrected.is_empty())?;
                let times = KindTimes {
                    corrected: Distribution::of(&t.corrected),
                    uncorrected: Distribution::of(&t.uncorrected),
                    connect: Distribution::of(&t.connect),
                    handshake: Distribution::of(&t.handshake),
                    first_byte: Distribution::of(&t.first_byte),
                };
                Some((kind.name(), times))
            })
            .collect();
        let names = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];
        let seconds = around.seconds.max(1e-9);
        Self {
            tool: "sealane-lab load",
            version: env!("CARGO_PKG_VERSION"),
            urls: plan.origins.iter().flat_map(|o| o.targets.iter().map(|t| t.url.to_string())).collect(),
            protocol: plan.protocol.name(),
            r#loop: if plan.rate().is_some() { "open" } else { "closed" },
            arrivals: match plan.pace {
                Pace::Closed => None,
                Pace::Open { arrivals: Arrivals::Uniform, .. } => Some("uniform"),
                Pace::Open { arrivals: Arrivals::Poisson, .. } => Some("poisson"),
            },
            operation: if connection_mode { "connection" } else { "request" },
            connections: plan.connections,
            threads: plan.threads,
            streams: plan.streams,
            verify: plan.tls.verify.name(),
            close: if plan.close == Close::Fin { "fin" } else { "rst" },
            seed: plan.seed,
            negotiated: around.negotiated,
            seconds: around.seconds,
            rate_offered: plan.rate(),
            rate: record.in_window as f64 / seconds,
            started: record.started,
            completed: record.completed,
            unstarted: record.unstarted,
            failed: record.failures.total(),
            error_share: if tried == 0 { 0.0 } else { bad as f64 / tried as f64 },
            failures: Failure::ALL
                .iter()
                .filter(|f| record.failures.counts[**f as usize] > 0)
                .map(|f| {
                    let (count, first) =
                        (record.failures.counts[*f as usize], record.failures.first[*f as usize].clone());
                    (f.name(), FailureCount { count, first })
                })
                .collect(),
            statuses: names.into_iter().zip(record.statuses).filter(|(_, n)| *n > 0).collect(),
            latency: Distribution::of(&record.overall()),
            latency_uncorrected: Distribution::of(&record.overall_uncorrected()),
            kinds,
            handshakes,
            connections_opened: record.connections,
            bytes_in_per_second: record.bytes_in as f64 / seconds,
            bytes_out_per_second: record.bytes_out as f64 / seconds,
            lag: Distribution::of(&record.lag),
            client: around.client,
            server: around.server,
            cpu_pressure: around.pressure,
            void: around.void,
            broken: Vec::new(),
            notes: around.notes,
            record,
            intervals: Vec::new(),
        }
    }

    /// Checks thresholds and notes those that are broken.
    pub fn check(&mut self, thresholds: &[Threshold]) {
        let latency = self.record.overall();
        let figures = Figures {
            latency: &latency,
            errors: self.error_share,
            rate: self.rate,
            cpu: self.server.map(|s| s.cpu_ns_per_operation),
        };
        self.broken = thresholds.iter().filter_map(|t| t.violated(&figures)).collect();
    }

    /// The table for people.
    pub fn text(&self) -> String {
        let mut s = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut s);
        s
    }

    fn write(&self, s: &mut String) -> std::fmt::Result {
        if !self.void.is_empty() {
            writeln!(s, "VOID: the figures below say nothing about the server, because")?;
            for why in &self.void {
                writeln!(s, "  - {why}")?;
            }
            writeln!(s)?;
        }
        let what = if self.operation == "connection" { "connections" } else { "requests" };
        match (self.rate_offered, self.arrivals) {
            (Some(rate), Some(arrivals)) => writeln!(
                s,
                "Open loop, {arrivals} arrivals: {rate:.0} {what}/s offered, {:.1}/s done over {:.1} s",
                self.rate, self.seconds
            )?,
            _ => writeln!(
                s,
                "Closed loop: {:.1} {what}/s over {:.1} s (latencies do not include the time that users would have waited; see --rate)",
                self.rate, self.seconds
            )?,
        }
        write!(s, "{} on {} connections, {} thread(s)", self.protocol, self.connections, self.threads)?;
        if let Some(n) = &self.negotiated {
            write!(s, "; {}, {}, {}; verified: {}", n.version, n.suite, n.group, self.verify)?;
        }
        writeln!(s)?;
        writeln!(
            s,
            "{} started, {} completed, {} failed, {} never started; in {}/s, out {}/s",
            self.started,
            self.completed,
            self.failed,
            self.unstarted,
            bytes(self.bytes_in_per_second),
            bytes(self.bytes_out_per_second)
        )?;
        if !self.statuses.is_empty() {
            let list: Vec<String> = self.statuses.iter().map(|(k, v)| format!("{k} {v}")).collect();
            writeln!(s, "Statuses: {}", list.join(", "))?;
        }
        for (name, f) in &self.failures {
            writeln!(s, "Failed, {name}: {} (first: {})", f.count, f.first.as_deref().unwrap_or("-"))?;
        }
        if let Some(h) = &self.handshakes {
            writeln!(
                s,
                "Handshakes: {} full, {} resumed, {} with early data; tickets {}; not resumed {}, no ticket {}; \
                 early data accepted {}, refused {}, not offered {}; HelloRetryRequest {}",
                h.full,
                h.resumed,
                h.early_data,
                h.tickets,
                h.not_resumed,
                h.no_ticket,
                h.early_accepted,
                h.early_rejected,
                h.early_not_offered,
                h.retried
            )?;
        }
        writeln!(s)?;
        let mut columns: Vec<(String, &Distribution)> = Vec::new();
        for (name, k) in &self.kinds {
            for (label, d) in [
                ("intended", &k.corrected),
                ("actual", &k.uncorrected),
                ("connect", &k.connect),
                ("tls", &k.handshake),
                ("1st byte", &k.first_byte),
            ] {
                if let Some(d) = d {
                    columns.push((format!("{name} {label}"), d));
                }
            }
        }
        if !columns.is_empty() {
            write_table(s, &columns)?;
        }
        if let Some(lag) = &self.lag {
            let p99 = lag.percentiles.get("p99").copied().unwrap_or(lag.max);
            writeln!(s, "Generator's own lag: p99 {}, max {}", time(p99), time(lag.max))?;
        }
        if let Some(server) = &self.server {
            writeln!(
                s,
                "Server: {:.2} µs CPU per operation ({:.2} CPUs), {} resident",
                server.cpu_ns_per_operation / 1e3,
                server.cpus,
                bytes(server.rss as f64)
            )?;
        }
        let c = &self.client;
        write!(
            s,
            "Client: {:.2} µs CPU per operation, busiest thread {:.0} %",
            c.cpu_ns_per_operation / 1e3,
            c.busiest * 100.0
        )?;
        match self.cpu_pressure {
            Some(p) => writeln!(s, "; CPU pressure {p:.1} %")?,
            None => writeln!(s)?,
        }
        for note in &self.notes {
            writeln!(s, "Note: {note}")?;
        }
        for broken in &self.broken {
            writeln!(s, "FAILED {broken}")?;
        }
        Ok(())
    }
}

fn write_table(s: &mut String, columns: &[(String, &Distribution)]) -> std::fmt::Result {
    let width = |c: &(String, &Distribution)| c.0.chars().count().max(10);
    write!(s, "{:>10}", "")?;
    for c in columns {
        write!(s, "  {:>w$}", c.0, w = width(c))?;
    }
    writeln!(s)?;
    let mut row = |label: &str, of: &dyn Fn(&Distribution) -> Option<String>| -> std::fmt::Result {
        let cells: Vec<Option<String>> = columns.iter().map(|c| of(c.1)).collect();
        if cells.iter().all(Option::is_none) {
            return Ok(());
        }
        write!(s, "{label:>10}")?;
        for (c, cell) in columns.iter().zip(cells) {
            write!(s, "  {:>w$}", cell.unwrap_or_default(), w = width(c))?;
        }
        writeln!(s)
    };
    row("min", &|d| Some(time(d.min)))?;
    for p in PERCENTILES {
        let name = format!("p{p}");
        row(&name, &|d| d.percentiles.get(&name).map(|v| time(*v)))?;
    }
    row("max", &|d| Some(time(d.max)))?;
    row("mean", &|d| Some(time(d.mean as u64)))?;
    row("samples", &|d| Some(d.samples.to_string()))?;
    writeln!(s)
}

/// A time in the unit that reads best.
pub fn time(ns: u64) -> String {
    let v = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", v / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", v / 1e6),
        _ => format!("{:.2} s", v / 1e9),
    }
}

/// A size in the unit that reads best.
pub fn bytes(v: f64) -> String {
    match v {
        v if v < 1e3 => format!("{v:.0} B"),
        v if v < 1e6 => format!("{:.1} kB", v / 1e3),
        v if v < 1e9 => format!("{:.1} MB", v / 1e6),
        _ => format!("{:.2} GB", v / 1e9),
    }
}
