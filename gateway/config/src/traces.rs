//! `[traces]`: which requests are traced, and where the traces go. `[otlp]`: where metrics and the log go.

use super::collector::{Collector, Written};
use super::decode::Section;
use super::diagnostics::Place;
use super::settings::{otlp as o, top, traces as s};
use sealane_proxy::traces::TraceTrust;
use std::time::Duration;

/// What `[traces]` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSettings {
    /// The collector.
    pub collector: Collector,
    /// Of the traces that begin here, one in so many is sampled; 0: none.
    pub one_in: u32,
    /// Failed requests are exported, even if they are not sampled.
    pub errors: bool,
    /// Whose word about traces is taken.
    pub trust: TraceTrust,
    /// Spans have the path.
    pub paths: bool,
}

/// The settings, and where they stand.
#[derive(Clone, Debug)]
pub struct Traces {
    /// The settings. The place is not among them: a line that moves changes nothing.
    pub settings: TraceSettings,
    /// Where `[traces]` stands.
    pub place: Place,
}

/// What `[otlp]` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpSettings {
    /// The collector.
    pub collector: Collector,
    /// How often metrics are sent; `None`: they are not.
    pub metrics: Option<Duration>,
    /// The log is sent.
    pub logs: bool,
}

/// The settings, and where they stand.
#[derive(Clone, Debug)]
pub struct Otlp {
    /// The settings.
    pub settings: OtlpSettings,
    /// Where `[otlp]` stands.
    pub place: Place,
}

/// Reads `[traces]`.
pub(super) fn read(top: &Section) -> Option<Traces> {
    let section = top.table(&top::traces)?;
    let sink = section.sink;
    let endpoint = section.required(&s::endpoint);
    let protocol = section.or(&s::protocol);
    let (one_in, errors, paths) = (section.or(&s::sample) as u32, section.or(&s::errors), section.or(&s::paths));
    let trust = section.or(&s::trust);
    let service = section.optional_at(&s::service);
    let header_file = section.optional_at(&s::header_file);
    let ca = section.optional_at(&s::ca);
    let span = section.span.clone();
    let has = (section.key_span("ca").is_some(), section.key_span("header_file").is_some());
    section.finish();
    let (title, what, default_service) = ("[traces]", "the traces", s::service.default());
    let place = sink.place_of(&span);
    let written =
        Written { sink, title, what, endpoint, protocol, service, default_service, header_file, ca, has, span };
    let collector = written.checked()?;
    Some(Traces { settings: TraceSettings { collector, one_in, errors, trust, paths }, place })
}

/// Reads `[otlp]`.
pub(super) fn read_otlp(top: &Section) -> Option<Otlp> {
    let section = top.table(&top::otlp)?;
    let sink = section.sink;
    let endpoint = section.required(&o::endpoint);
    let protocol = section.or(&o::protocol);
    let (metrics, interval, logs) = (section.or(&o::metrics), section.or(&o::interval), section.or(&o::logs));
    let service = section.optional_at(&o::service);
    let header_file = section.optional_at(&o::header_file);
    let ca = section.optional_at(&o::ca);
    let span = section.span.clone();
    let has = (section.key_span("ca").is_some(), section.key_span("header_file").is_some());
    section.finish();
    let (title, what, default_service) = ("[otlp]", "metrics and the log", o::service.default());
    let place = sink.place_of(&span);
    if !metrics && !logs {
        let help = "remove [otlp], or write metrics = true or logs = true".to_owned();
        sink.error(&span, "[otlp] sends nothing", Some(help));
        return None;
    }
    let written =
        Written { sink, title, what, endpoint, protocol, service, default_service, header_file, ca, has, span };
    let collector = written.checked()?;
    Some(Otlp { settings: OtlpSettings { collector, metrics: metrics.then_some(interval), logs }, place })
}
