//! The task that exports traces.

use crate::delivery::{Delivery, Report};
use crate::spans;
use prost::Message as _;
use sealane_config::{Signal, TraceSettings};
use sealane_proxy::traces::TraceRecord;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How often the queues are looked at.
const EVERY: Duration = Duration::from_millis(500);
/// Records of a batch: some 2500 spans, of half a KiB each.
const BATCH: usize = 512;

/// The running task. When this is dropped, it exports what waits, and ends.
#[derive(Debug)]
pub struct Exporter {
    settings: TraceSettings,
    report: Arc<Mutex<Report>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Exporter {
    /// Starts it, in a runtime of tokio's.
    pub fn start(settings: TraceSettings, queues: Vec<Receiver<TraceRecord>>) -> Self {
        let report = Arc::new(Mutex::new(Report::default()));
        let (stop, stopping) = watch::channel(false);
        let collector = settings.collector.clone();
        let task = Task {
            service: collector.service.clone(),
            delivery: Delivery::new(collector, Signal::Traces, report.clone(), stopping),
            queues,
            next: 0,
        };
        Self { settings, report, stop, task: tokio::spawn(task.run()) }
    }

    /// What it was started with.
    pub fn settings(&self) -> &TraceSettings {
        &self.settings
    }

    /// What was exported so far.
    pub fn report(&self) -> Arc<Mutex<Report>> {
        self.report.clone()
    }

    /// Exports what waits, for at most so long, and ends.
    pub async fn finish(self, limit: Duration) {
        let _ = self.stop.send(true);
        let _ = timeout(limit, self.task).await;
    }
}

struct Task {
    delivery: Delivery,
    service: String,
    /// By lane.
    queues: Vec<Receiver<TraceRecord>>,
    /// The lane that is looked at first.
    next: usize,
}

impl Task {
    async fn run(mut self) {
        let mut tick = interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = self.delivery.stopped() => {}
            }
            while let Some(batch) = self.batch() {
                self.export(&batch).await;
            }
            if self.delivery.is_stopping() {
                return;
            }
        }
    }

    /// What waits, a lane after the other, so that each has its share of a batch.
    fn batch(&mut self) -> Option<Vec<TraceRecord>> {
        let lanes = self.queues.len();
        let mut batch = Vec::new();
        for n in 0..lanes {
            let share = (BATCH - batch.len()) / (lanes - n);
            let queue = &self.queues[(self.next + n) % lanes];
            batch.extend(queue.try_iter().take(share.max(1)));
        }
        self.next = (self.next + 1) % lanes.max(1);
        (!batch.is_empty()).then_some(batch)
    }

    async fn export(&mut self, batch: &[TraceRecord]) {
        let mut all = Vec::with_capacity(batch.len() * 5);
        batch.iter().for_each(|record| spans::append(&mut all, record));
        let count = all.len() as u64;
        let message = spans::request(&self.service, all).encode_to_vec();
        self.delivery.deliver(&message, count).await;
    }
}
