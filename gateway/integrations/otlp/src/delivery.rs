//! Sends batches to the collector, one after the other, again where that may help, and notes what became of them.

use crate::client::{Client, Failure, Taken};
use sealane_config::{Collector, Signal};
use sealane_log as log;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// How often a batch is sent. One that the collector does not take then is lost, and counted.
const TRIES: u32 = 4;
/// Before the second try; twice as long before each one after it.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// What a collector may demand.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// What was exported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Spans, points or records that the collector has taken.
    pub exported: u64,
    /// Those of batches that it has not taken.
    pub failed: u64,
    /// Those that it has rejected, of batches that it has taken.
    pub rejected: u64,
    /// Why the last batch was not taken; empty after one that was.
    pub last_error: String,
}

/// The way of one signal to the collector.
pub(crate) struct Delivery {
    client: Client,
    /// The table of the configuration, and what is sent, for the log.
    names: (&'static str, &'static str),
    report: Arc<Mutex<Report>>,
    stopping: watch::Receiver<bool>,
    /// It has rejected a part of the last message.
    is_rejecting: bool,
}

impl Delivery {
    pub fn new(
        collector: Collector,
        signal: Signal,
        report: Arc<Mutex<Report>>,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let names = match signal {
            Signal::Traces => ("[traces]", "spans"),
            Signal::Metrics => ("[otlp]", "points of metrics"),
            Signal::Logs => ("[otlp]", "lines of the log"),
        };
        Self { client: Client::new(collector, signal), names, report, stopping, is_rejecting: false }
    }

    /// Whether it is to end: somebody has said so, or nobody can say it any more.
    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow() || self.stopping.has_changed().is_err()
    }

    /// Waits until somebody says that it is to end.
    pub async fn stopped(&mut self) {
        // An error: nobody can stop it any more, who has let it go.
        let _ = self.stopping.changed().await;
    }

    fn report(&self) -> MutexGuard<'_, Report> {
        // Each change is one assignment.
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message with so many spans, points or records.
    pub async fn deliver(&mut self, message: &[u8], count: u64) {
        let result = self.send(message).await;
        let (table, what) = self.names;
        // Said once, until a message is taken as a whole: the line may go to the same collector, which may reject it, too.
        let is_rejecting = matches!(&result, Ok(taken) if taken.rejected > 0);
        let was_rejecting = std::mem::replace(&mut self.is_rejecting, is_rejecting);
        let mut report = self.report();
        match result {
            Ok(Taken { rejected, why }) => {
                report.exported += count - rejected.min(count);
                report.rejected += rejected.min(count);
                if rejected > 0 && !was_rejecting {
                    log::warn!("the collector of {table} has rejected {rejected} of {count} {what}{why}");
                }
                if !std::mem::take(&mut report.last_error).is_empty() {
                    log::info!("the collector of {table} takes {what} again");
                }
            }
            Err(failure) => {
                report.failed += count;
                let is_new = report.last_error.is_empty();
                let why = failure.to_string();
                report.last_error = failure.why;
                drop(report);
                if is_new {
                    log::warn!(
                        "cannot export {what}: {why}; {what} are lost until the collector of {table} takes them"
                    );
                }
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
