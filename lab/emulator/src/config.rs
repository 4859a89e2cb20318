//! What a link is like.

use crate::LinkError;
use serde::Serialize;
use std::time::Duration;

/// What happens to SYNs that carry data: paths differ (RFC 7413 §7.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum SynData {
    /// They pass.
    #[default]
    Pass,
    /// They are dropped; SYNs without data pass.
    Drop,
    /// The data is taken out.
    Strip,
    /// They are answered with a reset, as if nobody listened; SYNs without data pass.
    Reset,
}

/// Who holds the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Backend {
    /// Our emulator; the kernel's netem where there are no TUN devices and it can do what is asked.
    #[default]
    Auto,
    /// Our emulator.
    Tun,
    /// The kernel's.
    Netem,
}

/// A link's properties; the same in both directions, unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkConfig {
    /// What an echo takes, there and back.
    pub rtt: Duration,
    /// Each packet's delay differs by up to this, either way, evenly. Packets keep their order all the same.
    pub jitter: Duration,
    /// Bits per second; `None` is as fast as it goes.
    pub rate: Option<u64>,
    /// Bytes that wait for the rate before packets are dropped.
    pub queue: usize,
    /// Share of packets lost, 0 to 1.
    pub loss: f64,
    /// Share of packets that those behind them overtake.
    pub reorder: f64,
    /// How much later than their time those come.
    pub reorder_by: Duration,
    /// Share of packets that come twice.
    pub duplicate: f64,
    /// What happens to data in SYNs.
    pub syn_data: SynData,
    /// SYNs that carry data come again after this time.
    pub duplicate_syn: Option<Duration>,
    /// Largest packet.
    pub mtu: u16,
    /// Every random choice follows from it.
    pub seed: u64,
    /// How far the mean RTT may be off before the run is void.
    pub tolerance: Duration,
    /// How long before a packet is due the emulator stops sleeping and waits actively.
    pub spin: Duration,
    /// Who holds the packets.
    pub backend: Backend,
    /// Notes each packet, for [`crate::Link::take_trace`].
    pub trace: bool,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            rtt: Duration::from_millis(10),
            jitter: Duration::ZERO,
            rate: None,
            queue: 256 * 1024,
            loss: 0.0,
            reorder: 0.0,
            reorder_by: Duration::from_millis(2),
            duplicate: 0.0,
            syn_data: SynData::Pass,
            duplicate_syn: None,
            mtu: 1500,
            seed: 1,
            tolerance: Duration::from_micros(100),
            spin: Duration::from_micros(150),
            backend: Backend::Auto,
            trace: false,
        }
    }
}

impl LinkConfig {
    /// A link that only takes time.
    pub fn with_rtt(rtt: Duration) -> Self {
        Self { rtt, ..Self::default() }
    }

    /// The same for those who compare times of several round trips each: off by at most 1 %, where that is more than the
    /// tenth of a millisecond that a link is held to otherwise.
    pub fn at_distance(rtt: Duration) -> Self {
        let strict = Self::with_rtt(rtt);
        Self { tolerance: strict.tolerance.max(rtt / 100), ..strict }
    }

    pub(crate) fn check(&self) -> Result<(), LinkError> {
        let share = |name, v: f64| match (0.0..=1.0).contains(&v) {
            true => Ok(()),
            false => Err(LinkError::Setting(format!("{name} must be a share from 0 to 1 (or 0% to 100%), not {v}"))),
        };
        share("loss", self.loss)?;
        share("reorder", self.reorder)?;
        share("duplicate", self.duplicate)?;
        if self.jitter > self.rtt / 2 {
            let most = self.rtt / 2;
            return Err(LinkError::Setting(format!("jitter must be at most half of the RTT, here {most:?}")));
        }
        if self.rtt > Duration::from_secs(10) {
            return Err(LinkError::Setting("rtt must be at most 10s".to_owned()));
        }
        if self.mtu < 1280 {
            return Err(LinkError::Setting(
                "mtu must be at least 1280, because IPv6 needs it (RFC 8200 §5)".to_owned(),
            ));
        }
        if self.rate == Some(0) {
            return Err(LinkError::Setting("rate must be more than 0".to_owned()));
        }
        Ok(())
    }
}

/// Reads `11.6ms`, `400us`, `1.5s`.
///
/// Errors: what is wrong, with what to write.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: write \"11.6ms\", \"400us\" or \"1s\"");
    let at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let unit = match &text[at..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err(wrong()),
    };
    let number: f64 = text[..at].trim().parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * unit).map_err(|_| wrong())
}

/// Reads a share: `1%` or `0.01`.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is not a share: write \"1%\" or \"0.01\"");
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |n| (n, 0.01));
    let share: f64 = number.trim().parse::<f64>().map_err(|_| wrong())? * scale;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(wrong()) }
}

/// Reads a rate: `20mbit`, `1.5gbit`, `500kbit`.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a rate: write \"20mbit\", \"1gbit\" or \"500kbit\"");
    let units = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
    let (number, scale) = units.iter().find_map(|(u, s)| Some((text.strip_suffix(u)?, s))).ok_or_else(wrong)?;
    let rate = number.trim().parse::<f64>().map_err(|_| wrong())? * scale;
    if (1.0..1e12).contains(&rate) { Ok(rate as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_shares_and_rates_are_read() {
        assert_eq!(parse_duration("11.6ms"), Ok(Duration::from_micros(11_600)));
        assert_eq!(parse_duration("400us"), Ok(Duration::from_micros(400)));
        assert_eq!(parse_duration("1s"), Ok(Duration::from_secs(1)));
        for bad in ["", "11", "ms", "-1ms", "1m", "nanms", "1e400s"] {
            assert!(parse_duration(bad).is_err_and(|e| e.contains("write")), "{bad}");
        }
        assert_eq!(parse_share("5%"), Ok(0.05));
        assert_eq!(parse_share("0.5"), Ok(0.5));
        assert!(parse_share("101%").is_err() && parse_share("x").is_err() && parse_share("nan").is_err());
        assert_eq!(parse_rate("20mbit"), Ok(20_000_000));
        assert!(parse_rate("20").is_err() && parse_rate("0kbit").is_err());
    }

    #[test]
    fn settings_that_cannot_be_are_refused() {
        assert!(LinkConfig::default().check().is_ok());
        let ms = Duration::from_millis;
        for bad in [
            LinkConfig { loss: 1.5, ..LinkConfig::default() },
            LinkConfig { jitter: ms(6), ..LinkConfig::default() },
            LinkConfig { mtu: 1000, ..LinkConfig::default() },
            LinkConfig { rate: Some(0), ..LinkConfig::default() },
            LinkConfig { rtt: ms(60_000), ..LinkConfig::default() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
