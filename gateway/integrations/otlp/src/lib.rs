//! Exports traces, metrics and the log to an OpenTelemetry collector (OTLP 1.x): protobuf over HTTP/1.1, or gRPC.
//!
//! ```text
//!  lanes ─▶ queues (bounded) ─▶ exporter: one task ─▶ spans: records become spans ─┐
//!  control's metrics, once in an interval ──────────▶ telemetry: one task ─────────┼▶ delivery ─▶ client: one request ─▶ collector
//!  the log ─▶ queue (bounded) ──────────────────────▶ telemetry: one task ─────────┘
//! ```
//!
//! A task takes a batch, and the next one when the collector has answered. So what waits is bounded by the queues, where lanes and the
//! log count what does not fit: a collector that is slow, dead or lying costs what it should have got, and nothing else. Each request
//! has a deadline, each answer a limit.

mod client;
mod delivery;
mod exporter;
mod messages;
mod spans;
mod telemetry;

pub use delivery::Report;
pub use exporter::Exporter;
pub use telemetry::{Family, MetricsSource, Sample, SampleValue, Telemetry};
