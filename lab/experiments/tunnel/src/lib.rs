//! The experiment `tunnel`: OpenVPN in user space and Sealane, against each other's clients, over a veth pair.

mod clients;
mod datagrams;
mod failover;
mod measure;
mod verdict;
mod world;

use sealane_lab_harness::programs::look_up;
use sealane_lab_harness::{Bench, Experiment, Options, Spec};
use sealane_lab_report::{Finding, Page};
use sealane_sys::netns::NetNs;
use world::{Seal, Wire, World};

/// The experiment.
#[derive(Debug)]
pub struct Tunnel {
    spec: Spec,
}

impl Tunnel {
    /// Reads its file.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self { spec: Spec::parse(include_str!("../experiment.toml"))? })
    }
}

impl Experiment for Tunnel {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn obstacle(&self, _: &Options) -> Option<String> {
        if !std::path::Path::new("/dev/net/tun").exists() {
            return Some("there is no /dev/net/tun".into());
        }
        if let Err(e) = NetNs::new() {
            return Some(format!("no network namespaces: {e}"));
        }
        let missing = ["iperf3", "ethtool"].into_iter().find(|p| look_up(p).is_none());
        missing.map(|p| format!("`{p}` is missing (Debian package {p})"))
    }

    fn run(&self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let world = World::build(bench, Seal::USUAL)?;
        parts(bench, &world)?;
        // Others are built for the parts below; this one's tunnels need not be kept alive beside them.
        drop(world);
        bench.part("clients", clients::measure)?;
        bench.part("failover", failover::measure)?;
        seals(bench)
    }

    fn conclude(&self, page: &mut Page) {
        verdict::conclude(page);
    }

    fn finding(&self, page: &Page) -> Option<Finding> {
        Some(verdict::finding(page))
    }
}

fn parts(bench: &mut Bench<'_>, world: &World) -> anyhow::Result<()> {
    bench.part("tcp-segmented", |b, p| measure::tcp(b, p, world, Wire::Segmented, 1))?;
    bench.part("tcp-whole", |b, p| measure::tcp(b, p, world, Wire::Whole, 1))?;
    bench.part("tcp-four", |b, p| measure::tcp(b, p, world, Wire::Segmented, 4))?;
    bench.part("udp", |b, p| datagrams::measure(b, p, world))?;
    bench.part("paced", |b, p| datagrams::paced(b, p, world))
}

fn seals(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    bench.part("tcp-chacha20", |b, p| measure::sealed(b, p, Seal::CHACHA20))?;
    bench.part("tcp-software", |b, p| measure::sealed(b, p, Seal::SOFTWARE))
}
