//! Traces of requests (`[traces]`): the rules and queues that lanes get with the snapshot, and the integration `sealane-otlp`, which
//! exports what they queue, where this program is built with it.

use crate::config::{Config, TraceSettings};
use sealane_proxy::traces::TraceRules;
use std::sync::Arc;
use std::time::Duration;

/// Whether this program can export traces.
pub const BUILT_IN: bool = cfg!(feature = "otlp");

/// Records of a lane that wait for the exporter, of half a KiB each.
#[cfg(feature = "otlp")]
const CAPACITY: usize = 1024;

/// What was exported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceReport {
    /// Spans (or points of metrics, or lines of the log) that the collector has taken.
    pub exported: u64,
    /// Spans that it could not be sent.
    pub failed: u64,
    /// Spans that it has rejected.
    pub rejected: u64,
    /// Why the last batch was not taken; empty after one that was.
    pub last_error: String,
}

/// What is asked how the export stands.
pub type TraceReporter = Arc<dyn Fn() -> TraceReport + Send + Sync>;

/// What an exporter reports.
#[cfg(feature = "otlp")]
pub(crate) fn report_of(report: &std::sync::Mutex<sealane_otlp::Report>) -> TraceReport {
    let report = report.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    let sealane_otlp::Report { exported, failed, rejected, last_error } = report;
    TraceReport { exported, failed, rejected, last_error }
}

/// The rules in force, and the exporter.
#[derive(Debug, Default)]
pub struct Traces {
    rules: Option<Arc<TraceRules>>,
    settings: Option<TraceSettings>,
    #[cfg(feature = "otlp")]
    exporter: Option<sealane_otlp::Exporter>,
}

impl Traces {
    /// Does what a configuration says. What has not changed goes on; what waits of others is exported still.
    pub fn configure(&mut self, config: &Config) {
        let settings = config.traces.as_ref().map(|traces| &traces.settings);
        if self.settings.as_ref() == settings {
            return;
        }
        self.settings = settings.cloned();
        self.rules = None;
        #[cfg(feature = "otlp")]
        drop(self.exporter.take());
        if let Some(settings) = settings {
            self.start(settings.clone(), config.lanes);
        }
    }

    #[cfg(feature = "otlp")]
    fn start(&mut self, settings: TraceSettings, lanes: usize) {
        let (queues, records) = (0..lanes).map(|_| std::sync::mpsc::sync_channel(CAPACITY)).unzip();
        let (one_in, errors, trust, paths) = (settings.one_in, settings.errors, settings.trust, settings.paths);
        self.rules = Some(Arc::new(TraceRules { one_in, errors, trust, paths, queues }));
        self.exporter = Some(sealane_otlp::Exporter::start(settings, records));
    }

    /// There is nothing to start: a configuration that would want it is refused.
    #[cfg(not(feature = "otlp"))]
    fn start(&mut self, _: TraceSettings, _: usize) {}

    /// For the next snapshots.
    pub fn rules(&self) -> Option<Arc<TraceRules>> {
        self.rules.clone()
    }

    /// Exports what waits, for at most so long.
    pub async fn finish(&mut self, limit: Duration) {
        #[cfg(feature = "otlp")]
        if let Some(exporter) = self.exporter.take() {
            exporter.finish(limit).await;
        }
        #[cfg(not(feature = "otlp"))]
        let _ = limit;
    }

    /// What tells how the export stands.
    #[cfg(feature = "otlp")]
    pub fn reporter(&self) -> Option<TraceReporter> {
        let report = self.exporter.as_ref()?.report();
        Some(Arc::new(move || report_of(&report)))
    }

    /// Nothing is told.
    #[cfg(not(feature = "otlp"))]
    pub fn reporter(&self) -> Option<TraceReporter> {
        None
    }
}
