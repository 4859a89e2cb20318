//! The five moments of a request that curl reports, and the phases between them.

use serde::Serialize;

/// Moments since the start, in nanoseconds, under curl's names without their `time_`. Each includes all before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// The name is resolved.
    pub namelookup: u64,
    /// TCP is connected. Over QUIC there is no such moment: the same as `namelookup`.
    pub connect: u64,
    /// The TLS (or QUIC) handshake is done.
    pub appconnect: u64,
    /// The first byte of the response is here.
    pub starttransfer: u64,
    /// The last byte of the response is here.
    pub total: u64,
}

/// A way to read one duration out of a [`Timing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// DNS alone.
    Dns,
    /// TCP's handshake alone.
    Tcp,
    /// The TLS (or QUIC) handshake alone.
    Tls,
    /// From the end of the handshake to the first byte of the response.
    FirstByte,
    /// From the first to the last byte of the response.
    Body,
    /// From the start to the end.
    Total,
    /// curl's `time_namelookup`.
    TimeNamelookup,
    /// curl's `time_connect`.
    TimeConnect,
    /// curl's `time_appconnect`.
    TimeAppconnect,
    /// curl's `time_starttransfer`.
    TimeStarttransfer,
    /// curl's `time_total`.
    TimeTotal,
}

impl Metric {
    /// The phases: each duration by itself; they add up to the total.
    pub const PHASES: [Self; 5] = [Self::Dns, Self::Tcp, Self::Tls, Self::FirstByte, Self::Body];

    /// What curl prints: each moment since the start.
    pub const CUMULATIVE: [Self; 5] =
        [Self::TimeNamelookup, Self::TimeConnect, Self::TimeAppconnect, Self::TimeStarttransfer, Self::TimeTotal];

    /// The name in tables and in `--fail-if`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::FirstByte => "first-byte",
            Self::Body => "body",
            Self::Total => "total",
            Self::TimeNamelookup => "time_namelookup",
            Self::TimeConnect => "time_connect",
            Self::TimeAppconnect => "time_appconnect",
            Self::TimeStarttransfer => "time_starttransfer",
            Self::TimeTotal => "time_total",
        }
    }

    /// What the name means, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Dns => "name resolved",
            Self::Tcp => "TCP handshake",
            Self::Tls => "TLS handshake",
            Self::FirstByte => "request to first byte",
            Self::Body => "first to last byte",
            Self::Total => "all of it",
            Self::TimeNamelookup => "dns",
            Self::TimeConnect => "dns + tcp",
            Self::TimeAppconnect => "dns + tcp + tls",
            Self::TimeStarttransfer => "dns + tcp + tls + first-byte",
            Self::TimeTotal => "all of it",
        }
    }

    /// The metric with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::PHASES.into_iter().chain([Self::Total]).chain(Self::CUMULATIVE).find(|m| m.name() == name)
    }

    /// The duration in nanoseconds.
    pub fn of(self, t: &Timing) -> u64 {
        match self {
            Self::Dns | Self::TimeNamelookup => t.namelookup,
            Self::Tcp => t.connect.saturating_sub(t.namelookup),
            Self::Tls => t.appconnect.saturating_sub(t.connect),
            // With early data the first byte may come before the handshake is done: the phase is then 0.
            Self::FirstByte => t.starttransfer.saturating_sub(t.appconnect),
            Self::Body => t.total.saturating_sub(t.starttransfer),
            Self::Total | Self::TimeTotal => t.total,
            Self::TimeConnect => t.connect,
            Self::TimeAppconnect => t.appconnect,
            Self::TimeStarttransfer => t.starttransfer,
        }
    }

    /// The durations of many.
    pub fn of_all(self, timings: &[Timing]) -> Vec<u64> {
        timings.iter().map(|t| self.of(t)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_add_up_to_the_total() {
        let timing = Timing { namelookup: 10, connect: 30, appconnect: 70, starttransfer: 75, total: 90 };
        let phases: Vec<u64> = Metric::PHASES.iter().map(|m| m.of(&timing)).collect();
        assert_eq!(phases, [10, 20, 40, 5, 15]);
        assert_eq!(phases.iter().sum::<u64>(), timing.total);
    }

    #[test]
    fn every_metric_is_found_by_its_name() {
        for metric in Metric::PHASES.into_iter().chain([Metric::Total]).chain(Metric::CUMULATIVE) {
            assert_eq!(Metric::from_name(metric.name()), Some(metric));
        }
        assert_eq!(Metric::from_name("time"), None);
    }
}
