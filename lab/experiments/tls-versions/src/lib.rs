//! The experiment `tls-versions`: TLS 1.2 against 1.3, full, resumed and with early data, at several distances, against
//! NGINX and Sealane; the study's twenty rows beside it.

mod distance;
mod measure;
mod study;
mod verdict;

use sealane_lab_experiment::room::Room;
use sealane_lab_experiment::{Bench, Experiment, Spec};
use sealane_lab_report::Page;

/// The experiment.
#[derive(Debug)]
pub struct TlsVersions {
    spec: Spec,
}

impl TlsVersions {
    /// Reads its file.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self { spec: Spec::parse(include_str!("../experiment.toml"))? })
    }
}

impl Experiment for TlsVersions {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn run(&self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let room = Room::new()?;
        parts(bench, &room)
    }

    fn conclude(&self, page: &mut Page) {
        verdict::conclude(page);
    }
}

fn parts(bench: &mut Bench<'_>, room: &Room) -> anyhow::Result<()> {
    bench.part("loopback", |b, p| measure::loopback(b, p, room))?;
    bench.part("distance", |b, p| distance::measure(b, p, room))?;
    bench.part("study", |_, p| study::rows(p))
}
