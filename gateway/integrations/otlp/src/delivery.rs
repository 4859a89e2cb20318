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

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Warning(String),
    Information(String),
}

/// The way of one signal to the collector.
pub(crate) struct Delivery {
    client: Client,
    /// The table of the configuration, and what is sent, for the log.
    names: (&'static str, &'static str),
    report: Arc<Mutex<Report>>,
    /// Something of the last batch that was taken was rejected.
    is_rejecting: bool,
    stopping: watch::Receiver<bool>,
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
            Signal::Metrics => ("[otlp]", "data points"),
            Signal::Logs => ("[otlp]", "lines of the log"),
        };
        Self { client: Client::new(collector, signal), names, report, is_rejecting: false, stopping }
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
        match self.note(result, count) {
            Some(Said::Warning(line)) => log::warn!("{line}"),
            Some(Said::Information(line)) => log::info!("{line}"),
            None => {}
        }
    }

    /// Notes what became of a batch. A line for the log where that is something new: what goes wrong with each batch is told once, and
    /// counted.
    fn note(&mut self, result: Result<Taken, Failure>, count: u64) -> Option<Said> {
        let was_rejecting = self.is_rejecting;
        if let Ok(taken) = &result {
            self.is_rejecting = taken.rejected > 0;
        }
        let (table, what) = self.names;
        let mut report = self.report();
        match result {
            Ok(Taken { rejected, why }) => {
                report.exported += count - rejected.min(count);
                report.rejected += rejected.min(count);
                let is_back = !std::mem::take(&mut report.last_error).is_empty();
                if rejected > 0 && !was_rejecting {
                    return Some(Said::Warning(format!(
                        "the collector of {table} has rejected {rejected} of {count} {what}{why}; the gateway counts later rejections, but \
                         does not log them"
                    )));
                }
                is_back.then(|| Said::Information(format!("the collector of {table} accepts {what} again")))
            }
            Err(failure) => {
                report.failed += count;
                let is_new = report.last_error.is_empty();
                let why = failure.to_string();
                report.last_error = failure.why;
                is_new.then(|| {
                    Said::Warning(format!(
                        "cannot export {what}: {why}; {what} are lost until the collector of {table} accepts them"
                    ))
                })
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

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_config::{CollectorEndpoint, CollectorProtocol};

    fn delivery() -> Delivery {
        let endpoint = CollectorEndpoint { tls: false, host: "localhost".to_owned(), port: 4318, path: String::new() };
        let collector = Collector {
            endpoint,
            protocol: CollectorProtocol::Http,
            service: "sealane".to_owned(),
            header: None,
            roots: Vec::new(),
        };
        Delivery::new(collector, Signal::Logs, Arc::default(), watch::channel(false).1)
    }

    /// Each line about a batch would be in the next batch.
    #[test]
    fn what_goes_wrong_with_each_batch_is_told_once() {
        let mut delivery = delivery();
        let rejecting = |rejected| Ok(Taken { rejected, why: String::new() });
        let failing = || Err(Failure { why: "closed".to_owned(), is_temporary: false, wait: None });
        let is_warning = |said: Option<Said>| said.map(|said| matches!(said, Said::Warning(_)));
        assert_eq!(is_warning(delivery.note(rejecting(0), 5)), None);
        let first = delivery.note(rejecting(2), 5);
        assert!(matches!(&first, Some(Said::Warning(line)) if line.contains("rejected 2 of 5")), "{first:?}");
        for _ in 0..100 {
            assert_eq!(is_warning(delivery.note(rejecting(1), 1)), None);
        }
        assert_eq!(is_warning(delivery.note(rejecting(0), 1)), None);
        assert_eq!(is_warning(delivery.note(rejecting(1), 1)), Some(true), "it does so again");
        assert_eq!(is_warning(delivery.note(failing(), 7)), Some(true));
        assert_eq!(is_warning(delivery.note(failing(), 7)), None);
        assert_eq!(is_warning(delivery.note(rejecting(0), 1)), Some(false), "it is back");
        let report = delivery.report();
        assert_eq!((report.exported, report.rejected, report.failed), (10, 103, 14));
    }
}
