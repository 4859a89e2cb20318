//! The lanes' counters as metrics, summed when somebody reads them.

pub mod cost;
pub mod errors;
pub mod history;
pub mod latency;
pub mod native;
pub mod problems;
pub mod process;
pub mod prometheus;
pub mod protobuf;
pub mod regression;
pub mod reports;
pub mod sampler;
pub mod status;
pub mod talkers;
mod tunnel;
pub mod window;

use crate::health::LiveUpstreams;
use crate::metrics::cost::OPERATIONS;
use crate::metrics::errors::{ErrorStatus, RecentErrors};
use crate::metrics::latency::Latencies;
use crate::metrics::prometheus::Writer;
use crate::metrics::regression::Estimate;
use crate::metrics::sampler::{OperationStatus, Sampler};
use crate::metrics::status::OldProcessStatus;
use crate::metrics::talkers::{Answers, Talkers};
use crate::run::access_log_writer::{LogFailure, LogStats};
use crate::run::memory::MemoryUse;
use crate::run::shortage::Shortages;
use crate::vpn::status::{Status, StatusRegistry};
use sealane_http::ParseError;
use sealane_proxy::RequestError;
use sealane_proxy::counters::{Count, Counters, DESCRIPTIONS, TLS_FAILURES};
use sealane_proxy::talkers::LaneTalkers;
use sealane_sys::fastopen_counts;
use sealane_sys::segments::Segments;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Reads the counters of all lanes.
#[derive(Debug)]
pub struct LaneMetrics {
    lanes: Vec<Arc<Counters>>,
    log: Option<LogStats>,
    upstreams: Option<LiveUpstreams>,
    draining: AtomicBool,
    latencies: Arc<Latencies>,
    tunnel: OnceLock<StatusRegistry>,
    sampler: Mutex<Sampler>,
    errors: Mutex<RecentErrors>,
    memory: Mutex<MemoryUse>,
    talkers: Mutex<Answers>,
}

impl LaneMetrics {
    /// Metrics of these lanes, and of the access log if there is one.
    pub fn new(lanes: Vec<Arc<Counters>>, log: Option<LogStats>) -> Self {
        let sampler = Mutex::new(Sampler::new(lanes.len()));
        Self {
            lanes,
            log,
            upstreams: None,
            draining: AtomicBool::new(false),
            latencies: Arc::default(),
            tunnel: OnceLock::new(),
            sampler,
            errors: Mutex::default(),
            memory: Mutex::default(),
            talkers: Mutex::default(),
        }
    }

    /// The groups of servers, if there are any to know of.
    pub fn upstreams(&self) -> Option<&LiveUpstreams> {
        self.upstreams.as_ref()
    }

    /// And of the upstreams' servers.
    pub fn with_upstreams(self, upstreams: LiveUpstreams) -> Self {
        Self { upstreams: Some(upstreams), ..self }
    }

    /// And of the durations that lanes record.
    pub fn with_latencies(self, latencies: Arc<Latencies>) -> Self {
        Self { latencies, ..self }
    }

    /// From now on `/healthz` says that new requests should go elsewhere.
    pub fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// From now on the tunnel's counters are shown, too.
    pub fn set_tunnel(&self, registry: StatusRegistry) {
        // There is one tunnel in a process' life.
        let _ = self.tunnel.set(registry);
    }

    /// Reads the counters for what is known of the last minutes, hours and the last day, if it is time to; returns whether it was. Called
    /// a few times a second.
    pub fn look(&self) -> bool {
        self.sampler().look(&self.lanes, &self.latencies, || self.tunnel.get().map(StatusRegistry::read))
    }

    /// How much memory is in use.
    pub fn memory(&self) -> MemoryUse {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on so much memory is in use.
    pub fn set_memory(&self, memory: MemoryUse) {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = memory;
    }

    /// Lanes have told who makes their load.
    pub fn add_talkers(&self, answers: Vec<LaneTalkers>) {
        self.talkers.lock().unwrap_or_else(PoisonError::into_inner).add(answers, Instant::now());
    }

    /// Who makes the load; `None` where nobody has asked lately.
    pub fn talkers(&self) -> Option<Talkers> {
        self.talkers.lock().unwrap_or_else(PoisonError::into_inner).sum(Instant::now())
    }

    /// Why the access log cannot be written, rotated or reopened, and how often something of this has failed.
    pub fn log_failure(&self) -> Option<(LogFailure, u64)> {
        self.log.as_ref().and_then(|log| Some((log.failure()?, log.write_errors())))
    }

    /// What was read, and what follows from it.
    pub fn sampler(&self) -> MutexGuard<'_, Sampler> {
        // A thread that panicked with the lock did so between two whole states, or the process is ending.
        self.sampler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the kinds of operations cost.
    pub fn operations(&self) -> Vec<OperationStatus> {
        let estimates = self.sampler().costs.estimates();
        let status = |(name, estimate): (&str, Option<Estimate>)| OperationStatus {
            operation: name.to_owned(),
            seconds: estimate.map(|estimate| estimate.cost),
            error: estimate.map(|estimate| estimate.error),
        };
        OPERATIONS.into_iter().zip(estimates).map(status).collect()
    }

    /// A lane has reported a request that got 5xx.
    pub fn failed(&self, error: &RequestError) {
        let error = ErrorStatus::of(error, &self.latencies);
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).add(error);
    }

    /// The newest requests that got 5xx, the newest first.
    pub fn errors(&self) -> Vec<ErrorStatus> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).list()
    }

    /// The tunnel, if there is one.
    pub fn tunnel(&self) -> Option<Status> {
        self.tunnel.get().map(StatusRegistry::read)
    }

    fn sums(&self) -> Vec<u64> {
        let mut sums = vec![0; DESCRIPTIONS.len()];
        for lane in &self.lanes {
            for (sum, value) in sums.iter_mut().zip(lane.values()) {
                *sum += value;
            }
        }
        sums
    }

    /// One sentence about what was done, for the end. `over_tcp`, `over_udp`: whether there were listeners for connections, and for
    /// datagrams that are relayed.
    pub fn summary(&self, over_tcp: bool, over_udp: bool) -> String {
        let sum = |f: fn(&Counters) -> u64| self.lanes.iter().map(|l| f(l)).sum::<u64>();
        let connections = over_tcp.then(|| {
            format!(
                "{} requests on {} connections; {} full and {} resumed handshakes; {} early-data connections; ",
                sum(|c| c.value(Count::Requests)),
                sum(|c| c.value(Count::Accepted)),
                sum(|c| c.value(Count::FullTls13) + c.value(Count::FullTls12)),
                sum(|c| c.value(Count::ResumedTls13) + c.value(Count::ResumedTls12)),
                sum(|c| c.value(Count::EarlyDataAccepted)),
            )
        });
        let datagrams = over_udp.then(|| {
            format!(
                "{} UDP sessions with {} datagrams from clients and {} to clients; ",
                sum(|c| c.value(Count::UdpSessions)),
                sum(|c| c.value(Count::UdpDatagramsUp)),
                sum(|c| c.value(Count::UdpDatagramsDown)),
            )
        });
        format!("{}{}bye", connections.unwrap_or_default(), datagrams.unwrap_or_default())
    }
}

impl LaneMetrics {
    /// Whether new requests are welcome; while draining they are not, and load balancers go elsewhere.
    pub fn healthy(&self) -> bool {
        !self.draining.load(Ordering::Relaxed)
    }

    /// The lanes' counters, by slot.
    pub fn lanes(&self) -> &[Arc<Counters>] {
        &self.lanes
    }

    /// What this process still finishes, if it drains, and when it ends.
    pub fn remaining(&self, until: u64) -> OldProcessStatus {
        let sum = |count| self.lanes.iter().map(|l| l.value(count)).sum::<u64>();
        let upgraded = sum(Count::UpgradedOpen);
        let requests = sum(Count::Active).saturating_sub(upgraded);
        OldProcessStatus { pid: std::process::id(), requests, upgraded, until }
    }

    /// What has run out, and how often.
    pub fn shortages(&self) -> Shortages {
        let sum = |f: fn(&Counters) -> u64| self.lanes.iter().map(|l| f(l)).sum::<u64>();
        Shortages {
            descriptors: sum(|c| c.value(Count::PausedDescriptors)),
            connections: sum(|c| c.value(Count::PausedConnections)),
            upstream: sum(|c| c.value(Count::UpstreamLocalErrors)),
            log: self.log.as_ref().map_or(0, LogStats::dropped),
        }
    }

    /// Refused messages and failed handshakes by reason, without those that are 0.
    pub fn refused(&self) -> BTreeMap<String, u64> {
        let parse = ParseError::ALL
            .iter()
            .map(|e| (format!("message: {}", e.label()), self.lanes.iter().map(|l| l.parse_errors(*e)).sum()));
        let tls = TLS_FAILURES
            .iter()
            .map(|reason| (format!("handshake: {reason}"), self.lanes.iter().map(|l| l.tls_failures(reason)).sum()));
        parse.chain(tls).filter(|(_, n)| *n > 0).collect()
    }

    /// Writes all metrics as they are now.
    pub fn render(&self, out: &mut Writer) {
        let sums = self.sums();
        let mut at = 0;
        while at < DESCRIPTIONS.len() {
            let d = DESCRIPTIONS[at];
            let mut family =
                if d.gauge { out.gauge(d.name, d.help.trim()) } else { out.counter(d.name, d.help.trim()) };
            // Entries of one name stand together.
            while at < DESCRIPTIONS.len() && DESCRIPTIONS[at].name == d.name {
                let labels = labels(DESCRIPTIONS[at].labels);
                family.sample(&labels, sums[at]);
                at += 1;
            }
        }
        let help = "Requests and responses that the gateway refused as malformed, by reason.";
        let mut family = out.counter("sealane_parse_errors_total", help);
        for e in ParseError::ALL {
            let sum: u64 = self.lanes.iter().map(|l| l.parse_errors(*e)).sum();
            family.sample(&[("reason", e.label())], sum);
        }
        let mut family = out.counter("sealane_handshake_failures_total", "Failed handshakes with clients, by reason.");
        for reason in TLS_FAILURES {
            let sum: u64 = self.lanes.iter().map(|l| l.tls_failures(reason)).sum();
            family.sample(&[("reason", reason)], sum);
        }
        let mut family = out.counter("sealane_lane_requests_total", "Requests started, by lane.");
        for (i, lane) in self.lanes.iter().enumerate() {
            family.sample(&[("lane", &i.to_string())], lane.value(Count::Requests));
        }
        self.latencies.render(&self.lanes, out);
        self.render_operations(out);
        if let Some(kernel) = fastopen_counts::Counts::read() {
            out.counter(
                "sealane_syn_queue_overflows_total",
                "SYNs with data (TCP Fast Open) whose data the kernel did not accept because a queue was full, in \
                 this network namespace.",
            )
            .sample(&[], kernel.queue_overflows);
            out.counter(
                "sealane_syn_older_cookies_total",
                "Accepted TCP Fast Open cookies that were made with the previous key, in this network namespace.",
            )
            .sample(&[], kernel.older_cookies);
        }
        if let Some(segments) = Segments::read() {
            out.counter("sealane_tcp_segments_sent_total", "TCP segments that were sent, in this network namespace.")
                .sample(&[], segments.sent);
            out.counter(
                "sealane_tcp_segments_retransmitted_total",
                "TCP segments that were sent again, in this network namespace.",
            )
            .sample(&[], segments.retransmitted);
        }
        if let Some(limit) = self.memory().limit {
            out.gauge("sealane_memory_limit_bytes", "The memory that the process may use: max_memory, or its default.")
                .sample(&[], limit);
        }
        if let Some(upstreams) = &self.upstreams {
            upstreams.render(out);
        }
        if let Some(registry) = self.tunnel.get() {
            tunnel::render(&registry.read(), self.latencies.max_series(), out);
        }
        process::render(out);
        out.counter(
            "sealane_log_lines_lost_total",
            "Lines of the log that could not be written: no program read standard error, or the disk was full.",
        )
        .sample(&[], crate::log::lost_lines());
        if let Some(log) = &self.log {
            out.counter(
                "sealane_access_log_dropped_total",
                "Access log lines lost because the writer was too slow, or because a syslog server did not accept \
                 them.",
            )
            .sample(&[], log.dropped());
            out.counter(
                "sealane_access_log_errors_total",
                "Failed writes to the access log, and failed attempts to rotate or reopen its file.",
            )
            .sample(&[], log.write_errors());
        }
    }
}

impl LaneMetrics {
    fn render_operations(&self, out: &mut Writer) {
        let operations = self.operations();
        let known = || operations.iter().filter_map(|o| Some((o.operation.as_str(), o.seconds?, o.error?)));
        let mut family = out.gauge(
            "sealane_cpu_seconds_per_operation",
            "CPU time of one operation, estimated from the CPU time of the lanes' threads. Absent if the measurements do not \
             determine it.",
        );
        for (operation, seconds, _) in known() {
            family.sample(&[("operation", operation)], seconds);
        }
        let mut family = out.gauge(
            "sealane_cpu_seconds_per_operation_error",
            "The standard error of sealane_cpu_seconds_per_operation.",
        );
        for (operation, _, error) in known() {
            family.sample(&[("operation", operation)], error);
        }
    }
}

/// `a="x",b="y"` as pairs; the text is ours and well-formed.
fn labels(text: &'static str) -> Vec<(&'static str, &'static str)> {
    text.split(',').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k, v.trim_matches('"'))).collect()
}
