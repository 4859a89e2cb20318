//! The tasks that export metrics and the log (`[otlp]`).
//!
//! Metrics are asked for once in an interval, and sent in parts of a bounded size. Lines of the log wait in a bounded queue; what does
//! not fit is counted where the log is written. Nothing waits for the collector.

use crate::delivery::{Delivery, Report};
use crate::messages::{self, MAX_POINTS, points};
use prost::Message as _;
use sealane_config::{OtlpSettings, Signal};
use sealane_log::Exported;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, timeout};

/// How often the queue of the log is looked at.
const EVERY: Duration = Duration::from_millis(500);
/// Lines of a message.
const BATCH: usize = 512;
/// The first metrics are sent so soon.
const FIRST: Duration = Duration::from_secs(1);

/// A metric with its samples.
#[derive(Clone, Debug)]
pub struct Family {
    /// The name, as in `/metrics`.
    pub name: String,
    /// What it means.
    pub help: String,
    /// It only rises.
    pub is_counter: bool,
    /// Its samples.
    pub samples: Vec<Sample>,
}

/// A sample.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// Its value.
    pub value: SampleValue,
}

/// The value of a sample.
#[derive(Clone, Debug)]
pub enum SampleValue {
    /// A whole number.
    Count(u64),
    /// Another number.
    Float(f64),
    /// A distribution.
    Histogram {
        /// Upper bounds.
        bounds: Vec<f64>,
        /// What is in the buckets, one more than there are bounds; not added up.
        counts: Vec<u64>,
        /// The sum of all values.
        sum: f64,
    },
}

/// What is asked for the metrics as they are now.
pub type MetricsSource = Box<dyn Fn() -> Vec<Family> + Send + Sync>;

/// The running tasks. When this is dropped, they end.
#[derive(Debug)]
pub struct Telemetry {
    reports: [Arc<Mutex<Report>>; 2],
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Telemetry {
    /// Starts them, in a runtime of tokio's. `started`: when counters were 0.
    pub fn start(
        settings: &OtlpSettings,
        started: SystemTime,
        metrics: MetricsSource,
        logs: Option<Receiver<Exported>>,
    ) -> Self {
        let reports = [Arc::new(Mutex::new(Report::default())), Arc::new(Mutex::new(Report::default()))];
        let (stop, stopping) = watch::channel(false);
        let service = settings.collector.service.clone();
        let delivery = |signal, report: &Arc<Mutex<Report>>| {
            Delivery::new(settings.collector.clone(), signal, report.clone(), stopping.clone())
        };
        let mut tasks = Vec::new();
        if let Some(every) = settings.metrics {
            let delivery = delivery(Signal::Metrics, &reports[0]);
            tasks.push(tokio::spawn(send_metrics(delivery, service.clone(), every, started, metrics)));
        }
        if let Some(logs) = logs {
            tasks.push(tokio::spawn(send_logs(delivery(Signal::Logs, &reports[1]), service, logs)));
        }
        Self { reports, stop, tasks }
    }

    /// What was exported so far: points of metrics, and lines of the log.
    pub fn reports(&self) -> [Arc<Mutex<Report>>; 2] {
        self.reports.clone()
    }

    /// Exports what waits, for at most so long, and ends.
    pub async fn finish(self, limit: Duration) {
        let _ = self.stop.send(true);
        let all = async {
            for task in self.tasks {
                let _ = task.await;
            }
        };
        let _ = timeout(limit, all).await;
    }
}

async fn send_metrics(
    mut delivery: Delivery,
    service: String,
    every: Duration,
    started: SystemTime,
    source: MetricsSource,
) {
    let mut tick = interval_at(Instant::now() + every.min(FIRST), every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !delivery.is_stopping() {
        tokio::select! {
            _ = tick.tick() => {}
            // The last values are sent, too.
            () = delivery.stopped() => {}
        }
        let (families, now) = (source(), SystemTime::now());
        for part in messages::parts(families, MAX_POINTS) {
            let count = points(&part);
            let message = messages::metrics(&service, part, started, now).encode_to_vec();
            delivery.deliver(&message, count).await;
        }
    }
}

async fn send_logs(mut delivery: Delivery, service: String, queue: Receiver<Exported>) {
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = delivery.stopped() => {}
        }
        loop {
            let batch: Vec<Exported> = queue.try_iter().take(BATCH).collect();
            if batch.is_empty() {
                break;
            }
            let is_full = batch.len() == BATCH;
            let count = batch.len() as u64;
            let message = messages::logs(&service, batch).encode_to_vec();
            delivery.deliver(&message, count).await;
            // What has come meanwhile waits for the next time: it may be about this batch.
            if !is_full {
                break;
            }
        }
        if delivery.is_stopping() {
            return;
        }
    }
}
