//! The experiment `syn-tls`: handshakes after TCP's and inside TCP's own, over the study's distances.

mod costs;
mod distances;
mod first;
mod loss;
mod place;
mod quic;
mod study;
mod verdict;
mod ways;

use sealane_lab_emulator::{Link, LinkConfig};
use sealane_lab_harness::{Bench, Experiment, Options, Spec};
use sealane_lab_report::{Finding, Page};
use std::time::Duration;

/// The experiment.
#[derive(Debug)]
pub struct SynTls {
    spec: Spec,
}

impl SynTls {
    /// Reads its file.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self { spec: Spec::parse(include_str!("../experiment.toml"))? })
    }
}

impl Experiment for SynTls {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn obstacle(&self, _: &Options) -> Option<String> {
        Link::up(&LinkConfig::with_rtt(Duration::from_millis(1))).err().map(|e| e.to_string())
    }

    fn run(&self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let certificates = place::Certificates::new()?;
        parts(bench, &certificates)
    }

    fn conclude(&self, page: &mut Page) {
        verdict::conclude(page);
    }

    fn finding(&self, page: &Page) -> Option<Finding> {
        Some(verdict::finding(page))
    }
}

fn parts(bench: &mut Bench<'_>, certificates: &place::Certificates) -> anyhow::Result<()> {
    bench.part("distances", |b, p| distances::measure(b, p, certificates))?;
    bench.part("first-contact", |b, p| first::measure(b, p, certificates))?;
    bench.part("messages", |b, p| costs::messages(b, p, certificates))?;
    bench.part("cpu", |b, p| costs::cpu(b, p, certificates))?;
    bench.part("loss", |b, p| loss::measure(b, p, certificates))
}
