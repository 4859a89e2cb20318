//! Setting a link up, calibrating it, and saying what it was.

use crate::config::{Backend, LinkConfig, SynData};
use crate::engine::{Engine, Lateness, Seen};
use crate::netem;
use crate::pcap::Pcap;
use crate::ping::{self, Rtt};
use crate::queue::{Counts, Nanos};
use crate::side::Side;
use serde::Serialize;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const CLIENT6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
const SERVER6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
/// Echoes per calibration.
const ECHOES: usize = 40;
/// Time that one calibration may take.
const CALIBRATION: Duration = Duration::from_millis(1500);
/// How often the compensation is refined before the link is taken as it is.
const ROUNDS: usize = 4;

/// Why there is no link. Displays in one line, with what to do.
#[derive(Debug)]
pub enum LinkError {
    /// A setting that cannot be.
    Setting(String),
    /// Not allowed to make namespaces.
    Privileges(io::Error),
    /// No TUN device, or it cannot be set up.
    Device(io::Error),
    /// The kernel's emulator was asked for, and is not to be had.
    Netem(String),
    /// The rest.
    Io(io::Error),
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(what) => f.write_str(what),
            Self::Netem(why) => write!(f, "cannot use netem: {why} (`--backend tun` does not need netem)"),
            Self::Privileges(e) => {
                write!(
                    f,
                    "cannot create a network namespace ({e}): run as root, or allow user namespaces for ordinary \
                     users"
                )
            }
            Self::Device(e) if e.kind() == io::ErrorKind::NotFound => f.write_str(
                "there is no /dev/net/tun: run `sudo modprobe tun`; a container needs --device /dev/net/tun",
            ),
            Self::Device(e) => write!(f, "cannot set up a TUN device: {e} (in a container: --device /dev/net/tun)"),
            Self::Io(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for LinkError {}

impl From<io::Error> for LinkError {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

/// A link that is up; it goes, with both namespaces, when this is dropped.
#[derive(Debug)]
pub struct Link {
    // Before the sides: the emulator ends first. `None`: the kernel's.
    engine: Option<Engine>,
    client: Side,
    server: Side,
    config: LinkConfig,
    compensation: Nanos,
    before: Rtt,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("granted", &self.granted).finish_non_exhaustive()
    }
}

impl Link {
    /// Makes both ends, joins them, and calibrates the delay with echoes.
    pub fn up(config: &LinkConfig) -> Result<Self, LinkError> {
        config.check()?;
        if config.backend == Backend::Netem
            && let Some(what) = netem::lacks(config)
        {
            return Err(LinkError::Netem(format!("netem does not support {what}")));
        }
        let client = Side::new(CLIENT, CLIENT6)?;
        let server = Side::new(SERVER, SERVER6)?;
        let ours = || -> Result<Engine, LinkError> {
            Ok(Engine::start(client.tun(config.mtu)?, server.tun(config.mtu)?, bare(config))?)
        };
        let engine = match config.backend {
            Backend::Tun => Some(ours()?),
            Backend::Netem => None,
            Backend::Auto => match ours() {
                Ok(engine) => Some(engine),
                Err(LinkError::Device(_)) if netem::lacks(config).is_none() && netem::probe().is_ok() => None,
                Err(e) => return Err(e),
            },
        };
        if engine.is_none() {
            netem::join(&client, &server, config.mtu)?;
            netem::configure(&client, &server, &bare(config), 0)?;
        }
        let mut link = Self { engine, client, server, config: config.clone(), compensation: 0, before: Rtt::default() };
        link.calibrate()?;
        link.configure(&link.config)?;
        if let Some(engine) = &link.engine {
            engine.reset();
        }
        Ok(link)
    }

    /// `tun` or `netem`: who holds the packets.
    pub fn backend(&self) -> &'static str {
        if self.engine.is_some() { "tun" } else { "netem" }
    }

    fn configure(&self, config: &LinkConfig) -> Result<(), LinkError> {
        match &self.engine {
            Some(engine) => {
                engine.configure(config.clone(), self.compensation);
                Ok(())
            }
            None => netem::configure(&self.client, &self.server, config, self.compensation),
        }
    }

    /// The end that connects.
    pub fn client(&self) -> &Side {
        &self.client
    }

    /// The end that listens.
    pub fn server(&self) -> &Side {
        &self.server
    }

    /// What it is meant to be.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Changes the link's properties while it is up (all but the MTU, which stays); packets under way keep their time.
    pub fn set(&mut self, config: &LinkConfig) -> Result<(), LinkError> {
        config.check()?;
        let mtu = self.config.mtu;
        if self.engine.is_none()
            && let Some(what) = netem::lacks(config)
        {
            return Err(LinkError::Netem(format!("netem does not support {what}")));
        }
        self.config = LinkConfig { mtu, ..config.clone() };
        self.configure(&self.config)
    }

    /// The RTT that it has now, without loss, jitter and the rest, from `count` echoes.
    pub fn measure(&self, count: usize) -> Result<Rtt, LinkError> {
        self.configure(&bare(&self.config))?;
        let rtt = self.echoes(count);
        self.configure(&self.config)?;
        rtt
    }

    /// The packets seen since it was last asked, if [`LinkConfig::trace`] is set.
    pub fn take_trace(&self) -> Vec<Seen> {
        self.engine.as_ref().map(Engine::take_trace).unwrap_or_default()
    }

    /// Writes every packet, as it comes in, to a pcap file from now on.
    pub fn capture(&self, path: &Path) -> Result<(), LinkError> {
        let Some(engine) = &self.engine else {
            return Err(LinkError::Netem("netem does not write pcap files".to_owned()));
        };
        engine.capture(Some(Pcap::create(path)?));
        Ok(())
    }

    /// What the link has been so far, without a new measurement.
    pub fn report(&self) -> Report {
        let now = self.engine.as_ref().and_then(Engine::report);
        let mut report = Report {
            target: millis(self.config.rtt),
            tolerance: millis(self.config.tolerance),
            before: self.before,
            after: None,
            lateness: now.map(|r| r.lateness).unwrap_or_default(),
            to_server: now.map(|r| r.to_server).unwrap_or_default(),
            to_client: now.map(|r| r.to_client).unwrap_or_default(),
            real_time: self.engine.as_ref().is_none_or(|e| e.granted.fifo),
            backend: self.backend(),
            void: None,
        };
        report.void = report.judge();
        report
    }

    /// Measures once more and says what the link was.
    pub fn finish(self) -> Report {
        let mut report = self.report();
        if let Some(engine) = &self.engine {
            engine.capture(None);
        }
        report.after = self.measure(self.rounds_of_echoes()).ok();
        report.void = report.judge();
        report
    }

    fn calibrate(&mut self) -> Result<(), LinkError> {
        let count = self.rounds_of_echoes();
        // The first packets of a namespace pay for its caches.
        self.echoes(3)?;
        for _ in 0..ROUNDS {
            self.before = self.echoes(count)?;
            if self.before.samples == 0 {
                return Err(LinkError::Io(io::Error::other("no echo came back over the link; is ICMP filtered here?")));
            }
            let off = self.before.mean - millis(self.config.rtt);
            if off.abs() < millis(self.config.tolerance) / 4.0 {
                break;
            }
            // By the median: one late wake-up of a busy machine is not the emulator's share.
            let off = self.before.median - millis(self.config.rtt);
            let change = (off * 1e6 / 2.0) as i64;
            self.compensation = self.compensation.saturating_add_signed(change);
            self.configure(&bare(&self.config))?;
        }
        Ok(())
    }

    fn rounds_of_echoes(&self) -> usize {
        let each = self.config.rtt + Duration::from_millis(1);
        ((CALIBRATION.as_micros() / each.as_micros()) as usize).clamp(8, ECHOES)
    }

    fn echoes(&self, count: usize) -> Result<Rtt, LinkError> {
        let (to, expected) = (self.server.address(), self.config.rtt);
        Ok(self.client.run(|| ping::ping(to, count, expected))??)
    }
}

/// The link's delay alone.
fn bare(config: &LinkConfig) -> LinkConfig {
    LinkConfig {
        jitter: Duration::ZERO,
        rate: None,
        loss: 0.0,
        reorder: 0.0,
        duplicate: 0.0,
        syn_data: SynData::Pass,
        duplicate_syn: None,
        trace: false,
        ..config.clone()
    }
}

fn millis(d: Duration) -> f64 {
    d.as_nanos() as f64 / 1e6
}

/// What a link was. Times in milliseconds, lateness in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The RTT asked for.
    pub target: f64,
    /// How far the mean may be off.
    pub tolerance: f64,
    /// Echoes before the run.
    pub before: Rtt,
    /// Echoes after it.
    pub after: Option<Rtt>,
    /// How late packets were delivered during the run.
    pub lateness: Lateness,
    /// Packets from client to server.
    pub to_server: Counts,
    /// Packets from server to client.
    pub to_client: Counts,
    /// The emulator ran at real-time priority.
    pub real_time: bool,
    /// `tun` or `netem`: who held the packets.
    pub backend: &'static str,
    /// Why what was measured over this link does not count.
    pub void: Option<String>,
}

impl Report {
    fn judge(&self) -> Option<String> {
        self.judge_by("mean", "on average", |rtt| rtt.mean, self.lateness.mean)
    }

    /// Why medians that were measured over this link do not count, if so. They stand where [`Report::void`] is set
    /// only because the machine was taken away for some milliseconds now and then, which moves means.
    pub fn void_for_medians(&self) -> Option<String> {
        self.judge_by("median", "at the median", |rtt| rtt.median, self.lateness.median)
    }

    fn judge_by(&self, which: &str, when: &str, of: impl Fn(&Rtt) -> f64, late: f64) -> Option<String> {
        let off = |what: &str, rtt: &Rtt| {
            let error = of(rtt) - self.target;
            (rtt.samples == 0 || error.abs() > self.tolerance)
                .then(|| format!("the {which} RTT {what} was off by {error:+.3} ms, more than {} ms", self.tolerance))
        };
        // Half of the tolerance each way.
        let late = (late / 1e3 > self.tolerance / 2.0).then(|| format!("packets came {late:.0} µs late {when}"));
        off("before the run", &self.before)
            .or_else(|| self.after.as_ref().and_then(|r| off("after the run", r)))
            .or(late)
    }

    /// How far the mean RTT was off, the worse of before and after, in milliseconds.
    pub fn error(&self) -> f64 {
        let errors = [Some(self.before), self.after].into_iter().flatten().map(|r| r.mean - self.target);
        errors.fold(0.0, |worst: f64, e| if e.abs() > worst.abs() { e } else { worst })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link: RTT {} ms requested, {:.3} before the run", self.target, self.before.mean)?;
        if let Some(after) = &self.after {
            write!(f, ", {:.3} after it", after.mean)?;
        }
        let l = &self.lateness;
        if self.backend == "netem" {
            // What it has done to packets, the kernel does not tell.
            write!(f, " (error {:+.3}); by the kernel's netem", self.error())?;
            return self.void.as_ref().map_or(Ok(()), |why| write!(f, "\n  void: {why}"));
        }
        write!(f, " (error {:+.3}); ", self.error())?;
        write!(f, "packets late by {:.0} µs (mean), {:.0} (p99), {:.0} (max)", l.mean, l.p99, l.max)?;
        for (way, c) in [("to server", &self.to_server), ("to client", &self.to_client)] {
            write!(f, "\n  {way}: {} packets, {} bytes", c.delivered, c.bytes)?;
            let others = [
                (c.lost, "lost"),
                (c.overflowed, "dropped by the full queue"),
                (c.duplicated, "duplicated"),
                (c.reordered, "reordered"),
                (c.syn_dropped, "SYNs with data dropped"),
                (c.syn_stripped, "SYNs stripped of data"),
                (c.syn_reset, "SYNs with data answered with a reset"),
            ];
            for (n, what) in others.into_iter().filter(|(n, _)| *n > 0) {
                write!(f, ", {n} {what}")?;
            }
        }
        if !self.real_time {
            write!(f, "\n  without real-time priority (it needs CAP_SYS_NICE): packets are delivered later")?;
        }
        match &self.void {
            Some(why) => write!(f, "\n  void: {why}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(before: f64, after: f64, late: f64) -> Report {
        let rtt = |mean| Rtt { samples: 10, mean, median: 10.0, ..Rtt::default() };
        let mut r = Report {
            target: 10.0,
            tolerance: 0.1,
            before: rtt(before),
            after: Some(rtt(after)),
            lateness: Lateness { packets: 5, mean: late, median: 1.0, p99: late, max: late },
            to_server: Counts::default(),
            to_client: Counts::default(),
            real_time: true,
            backend: "tun",
            void: None,
        };
        r.void = r.judge();
        r
    }

    #[test]
    fn a_link_that_was_off_is_void_and_says_so() {
        assert_eq!(report(10.05, 9.95, 10.0).void, None);
        for (bad, why) in [
            (report(10.2, 10.0, 1.0), "before the run"),
            (report(10.0, 9.8, 1.0), "after the run"),
            (report(10.0, 10.0, 80.0), "80 µs late"),
        ] {
            assert!(bad.void.as_ref().is_some_and(|v| v.contains(why)), "{bad:?}");
            assert!(bad.to_string().contains("void: "), "{bad}");
            assert_eq!(bad.void_for_medians(), None);
        }
        let mut bad = report(10.0, 10.0, 1.0);
        bad.after.as_mut().unwrap().median = 10.2;
        assert!(bad.void_for_medians().unwrap().starts_with("the median RTT after the run was off by +0.200 ms"));
        assert!((report(10.05, 9.93, 1.0).error() + 0.07).abs() < 1e-9);
    }
}
