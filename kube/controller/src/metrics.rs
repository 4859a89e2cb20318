//! Counters for Prometheus.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter or a gauge.
#[derive(Debug, Default)]
pub struct Value(AtomicU64);

impl Value {
    /// Counts.
    pub fn add(&self, number: u64) {
        self.0.fetch_add(number, Relaxed);
    }

    /// Sets a gauge.
    pub fn set(&self, number: u64) {
        self.0.store(number, Relaxed);
    }
}

/// What is counted.
#[derive(Debug, Default)]
pub struct Metrics {
    pub translations: Value,
    pub applied: Value,
    pub refused_configurations: Value,
    pub gateway_failures: Value,
    pub refused_objects: Value,
    pub unreadable: Value,
    pub watch_failures: Value,
    pub status_writes: Value,
    pub status_failures: Value,
    pub leader: Value,
    pub configuration_bytes: Value,
}

impl Metrics {
    /// The text for Prometheus.
    pub fn text(&self) -> String {
        let all: [(&str, &str, &str, &Value); 11] = [
            ("translations_total", "counter", "Translations of the objects of the cluster.", &self.translations),
            ("applied_total", "counter", "Configurations that the gateway has applied.", &self.applied),
            (
                "refused_configurations_total",
                "counter",
                "Configurations that the gateway has refused.",
                &self.refused_configurations,
            ),
            (
                "gateway_failures_total",
                "counter",
                "Requests to the gateway's admin socket that failed.",
                &self.gateway_failures,
            ),
            (
                "refused_objects",
                "gauge",
                "Objects that are left out because the gateway refuses what they ask for, or has no room.",
                &self.refused_objects,
            ),
            ("unreadable_total", "counter", "Objects that could not be read.", &self.unreadable),
            ("watch_failures_total", "counter", "Failures of lists and watches.", &self.watch_failures),
            ("status_writes_total", "counter", "Statuses, Services and events that were written.", &self.status_writes),
            (
                "status_failures_total",
                "counter",
                "Statuses, Services and events that could not be written.",
                &self.status_failures,
            ),
            ("leader", "gauge", "Whether this instance writes statuses.", &self.leader),
            ("configuration_bytes", "gauge", "The size of the configuration.", &self.configuration_bytes),
        ];
        let mut out = String::new();
        for (name, kind, help, value) in all {
            let name = format!("sealane_kube_{name}");
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {}", value.0.load(Relaxed));
        }
        out
    }
}
