//! The experiment `tls-versions`: TLS 1.2 against 1.3, full, resumed and with early data, at several distances, against
//! NGINX and Sealane; the study's twenty rows beside it.

mod distance;
mod loss;
mod measure;
mod study;
mod verdict;

use sealane_lab_harness::workspace::Workspace;
use sealane_lab_harness::{Bench, Experiment, Spec};
use sealane_lab_report::{Finding, Page};

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
        let workspace = Workspace::new()?;
        parts(bench, &workspace)
    }

    fn conclude(&self, page: &mut Page) {
        verdict::conclude(page);
    }

    fn finding(&self, page: &Page) -> Option<Finding> {
        Some(verdict::finding(page))
    }
}

fn parts(bench: &mut Bench<'_>, workspace: &Workspace) -> anyhow::Result<()> {
    bench.part("loopback", |b, p| measure::loopback(b, p, workspace))?;
    bench.part("distance", |b, p| distance::measure(b, p, workspace))?;
    bench.part("loss", |b, p| loss::measure(b, p, workspace))?;
    bench.part("study", |_, p| study::rows(p))
}
