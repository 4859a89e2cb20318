//! Exports traces to an OpenTelemetry collector (OTLP 1.x): protobuf over HTTP/1.1, or gRPC.
//!
//! ```text
//!  lanes ─▶ queues (bounded) ─▶ exporter: one task ─▶ spans: records become spans ─▶ client: one request ─▶ collector
//! ```
//!
//! The exporter takes a batch from the queues, and the next one when the collector has answered. So what waits is bounded by the
//! queues, where lanes count what does not fit: a collector that is slow, dead or lying costs traces, and nothing else. Each request
//! has a deadline, each answer a limit.

mod client;
mod exporter;
mod spans;

pub use exporter::{Exporter, Report};
