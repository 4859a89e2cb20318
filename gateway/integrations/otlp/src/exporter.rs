//! The task that exports traces.

use crate::client::{Client, Failure, Taken};
use crate::spans;
use prost::Message as _;
use sealane_config::TraceSettings;
use sealane_log as log;
use sealane_proxy::traces::TraceRecord;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// How often the queues are looked at.
const EVERY: Duration = Duration::from_millis(500);
/// Records of a batch: some 2500 spans, of half a KiB each.
const BATCH: usize = 512;
/// How often a batch is sent. One that the collector does not take then is lost, and counted.
const TRIES: u32 = 4;
/// Before the second try; twice as long before each one after it.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// What a collector may demand.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// What was exported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Spans that the collector has taken.
    pub exported: u64,
    /// Spans of batches that it has not taken.
    pub failed: u64,
    /// Spans that it has rejected, of batches that it has taken.
    pub rejected: u64,
    /// Why the last batch was not taken; empty after one that was.
    pub last_error: String,
}

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
        let task = Task {
            client: Client::new(settings.clone()),
            service: settings.service.clone(),
            queues,
            next: 0,
            report: report.clone(),
            stopping,
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
    client: Client,
    service: String,
    /// By lane.
    queues: Vec<Receiver<TraceRecord>>,
    /// The lane that is looked at first.
    next: usize,
    report: Arc<Mutex<Report>>,
    stopping: watch::Receiver<bool>,
}

impl Task {
    async fn run(mut self) {
        let mut tick = interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                // An error: nobody can stop it any more, who has let it go.
                _ = self.stopping.changed() => {}
            }
            while let Some(batch) = self.batch() {
                self.export(&batch).await;
            }
            if self.is_stopping() {
                return;
            }
        }
    }

    fn is_stopping(&self) -> bool {
        *self.stopping.borrow() || self.stopping.has_changed().is_err()
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

    fn report(&self) -> MutexGuard<'_, Report> {
        // Each change is one assignment.
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn export(&mut self, batch: &[TraceRecord]) {
        let mut all = Vec::with_capacity(batch.len() * 5);
        batch.iter().for_each(|record| spans::append(&mut all, record));
        let count = all.len() as u64;
        let message = spans::request(&self.service, all).encode_to_vec();
        let result = self.send(&message).await;
        let mut report = self.report();
        match result {
            Ok(Taken { rejected, why }) => {
                report.exported += count - rejected.min(count);
                report.rejected += rejected.min(count);
                if rejected > 0 {
                    log::warn!("the collector of [traces] has rejected {rejected} of {count} spans{why}");
                }
                if !std::mem::take(&mut report.last_error).is_empty() {
                    log::info!("the collector of [traces] accepts traces again");
                }
            }
            Err(failure) => {
                report.failed += count;
                if report.last_error.is_empty() {
                    log::warn!("cannot export traces: {failure}; traces are lost until the collector accepts them");
                }
                report.last_error = failure.why;
            }
        }
    }

    /// Sends a batch, and again where that may help.
    async fn send(&mut self, message: &[u8]) -> Result<Taken, Failure> {
        let mut wait = FIRST_WAIT;
        for _ in 1..TRIES {
            let failure = match self.client.send(message).await {
                Ok(taken) => return Ok(taken),
                Err(failure) => failure,
            };
            if !failure.is_temporary || self.is_stopping() {
                return Err(failure);
            }
            let demanded = failure.wait.unwrap_or(wait).min(LONGEST_WAIT);
            tokio::select! {
                () = sleep(demanded) => {}
                _ = self.stopping.changed() => {}
            }
            wait *= 2;
        }
        self.client.send(message).await
    }
}
