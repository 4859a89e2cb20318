//! Metrics and the log for a collector (`[otlp]`): the integration `sealane-otlp`, where this program is built with it.

use crate::config::{Config, OtlpSettings};
use crate::metrics::LaneMetrics;
use crate::metrics::status::StatusRegistry;
use crate::traces::TraceReport;
use std::sync::Arc;
use std::time::Duration;

/// Whether this program can export metrics and the log.
pub const BUILT_IN: bool = cfg!(feature = "otlp");

/// Lines of the log that wait for the collector.
#[cfg(feature = "otlp")]
const CAPACITY: usize = 1024;

/// What is asked how the export of metrics and of the log stands.
pub type TelemetryReporter = Arc<dyn Fn() -> [TraceReport; 2] + Send + Sync>;

/// The tasks, and what they were started with.
#[derive(Debug, Default)]
pub struct Telemetry {
    settings: Option<OtlpSettings>,
    #[cfg(feature = "otlp")]
    tasks: Option<sealane_otlp::Telemetry>,
}

impl Telemetry {
    /// Does what a configuration says. What has not changed goes on.
    pub fn configure(&mut self, config: &Config, metrics: &Arc<LaneMetrics>, status: &Arc<StatusRegistry>) {
        let settings = config.otlp.as_ref().map(|otlp| &otlp.settings);
        if self.settings.as_ref() != settings {
            self.settings = settings.cloned();
            self.restart(metrics, status);
        }
    }

    #[cfg(feature = "otlp")]
    fn restart(&mut self, metrics: &Arc<LaneMetrics>, status: &Arc<StatusRegistry>) {
        use crate::log;
        use crate::metrics::prometheus::{Format, Writer};
        log::export(None);
        drop(self.tasks.take());
        let Some(settings) = &self.settings else { return };
        let logs = settings.logs.then(|| {
            let (queue, lines) = std::sync::mpsc::sync_channel(CAPACITY);
            log::export(Some(queue));
            lines
        });
        let (metrics, own) = (metrics.clone(), status.clone());
        let source = move || {
            let mut page = Writer::new(Format::Protobuf);
            metrics.render(&mut page);
            own.render(&mut page);
            page.into_families().into_iter().map(families::family).collect()
        };
        self.tasks = Some(sealane_otlp::Telemetry::start(settings, status.started(), Box::new(source), logs));
    }

    /// There is nothing to start: a configuration that would want it is refused.
    #[cfg(not(feature = "otlp"))]
    fn restart(&mut self, _: &Arc<LaneMetrics>, _: &Arc<StatusRegistry>) {}

    /// Exports what waits, for at most so long.
    pub async fn finish(&mut self, limit: Duration) {
        #[cfg(feature = "otlp")]
        if let Some(tasks) = self.tasks.take() {
            crate::log::export(None);
            tasks.finish(limit).await;
        }
        #[cfg(not(feature = "otlp"))]
        let _ = limit;
    }

    /// What tells how the export stands.
    #[cfg(feature = "otlp")]
    pub fn reporter(&self) -> Option<TelemetryReporter> {
        let reports = self.tasks.as_ref()?.reports();
        Some(Arc::new(move || reports.each_ref().map(|report| crate::traces::report_of(report))))
    }

    /// Nothing is told.
    #[cfg(not(feature = "otlp"))]
    pub fn reporter(&self) -> Option<TelemetryReporter> {
        None
    }
}

#[cfg(feature = "otlp")]
mod families {
    use crate::metrics::prometheus::{FamilyData, HistogramData, Kind, SampleData, SampleValue, Value};
    use sealane_otlp::{Family, Sample, SampleValue as Exported};

    pub fn family(family: FamilyData) -> Family {
        Family {
            name: family.name.to_owned(),
            help: family.help,
            is_counter: family.kind == Kind::Counter,
            samples: family.samples.into_iter().map(sample).collect(),
        }
    }

    fn sample(sample: SampleData) -> Sample {
        let value = match sample.value {
            SampleValue::Number(Value::Count(n)) => Exported::Count(n),
            SampleValue::Number(Value::Float(n)) => Exported::Float(n),
            SampleValue::Histogram(histogram) => {
                let HistogramData { buckets, above, sum, .. } = *histogram;
                let (bounds, mut counts): (Vec<f64>, Vec<u64>) = buckets.into_iter().unzip();
                counts.push(above);
                Exported::Histogram { bounds, counts, sum }
            }
        };
        Sample { labels: sample.labels, value }
    }
}
