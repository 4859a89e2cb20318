//! What those already connected notice of a storm of new clients.

use std::time::Duration;

use anyhow::Context;
use sealane_lab_experiment::room::Key;
use sealane_lab_experiment::rounds::Quiet;
use sealane_lab_experiment::web::{Answer, Server, Site};
use sealane_lab_experiment::{Bench, Sample, latency};
use sealane_lab_load::plan::{Kind, Pace};
use sealane_lab_load::record::{histogram, merge};
use sealane_lab_load::schedule::Arrivals;
use sealane_lab_report::Part;

use crate::{Cast, Scene, Tls, load, site};

/// The smallest rate that leaves twelve samples beyond p99.9 in twelve seconds.
const RATE: f64 = 1000.0;
const WILD: usize = 64;

/// Each subject has one CPU; both loads share the others.
pub fn measure(bench: &mut Bench<'_>, part: &mut Part, scene: &Scene) -> anyhow::Result<()> {
    let site = Site { key: Key::Rsa, ..site(bench, Answer::Respond)? };
    let cpus = [bench.cores.server[0]];
    let cast = Cast::start(bench, part, scene, &site, &cpus)?;
    cast.check(&Tls::V13.options(Key::Rsa))?;
    let names = cast.names();
    let mut all: Vec<_> = names.iter().map(|_| histogram()).collect();
    let mut first = true;
    let rounds = bench.rounds(part, &names, bench.size("rounds")?, Quiet::Wanted, |i, _| {
        let (sample, calm) = storm(bench, &cast.servers[i])?;
        if sample.void.is_empty() {
            merge(&mut all[i], &calm);
        }
        Ok(sample)
    })?;
    for (name, histogram) in names.iter().zip(&all) {
        part.rounds(name, "p99.9 of the calm", &rounds.values(name, "p99.9"), "ms");
        part.rounds(name, "p99 of the calm", &rounds.values(name, "p99"), "ms");
        part.rounds(name, "handshakes of the storm", &rounds.values(name, "storm"), "/s");
        if !histogram.is_empty() {
            latency::spectrum(part, name, "latency beside a storm", histogram);
        }
        if rounds.values(name, "fifo").contains(&0.0) && std::mem::take(&mut first) {
            part.note(
                "The calm client could not be given real-time priority (that needs root): where both loads share a CPU, \
                 its latencies contain its own waiting.",
            );
        }
    }
    part.bars("p99.9 of requests on kept connections, ms", &["p99.9 of the calm"], "lower");
    part.spectrum("Latency by percentile beside the storm, all rounds together", "latency beside a storm");
    part.table(
        "Calm at the storm's expense would be no merit: what the storm got meanwhile",
        &["p99 of the calm", "handshakes of the storm"],
    );
    Ok(())
}

fn storm(bench: &Bench<'_>, server: &Server) -> anyhow::Result<(Sample, hdrhistogram::Histogram<u64>)> {
    let tls = Tls::V13.options(Key::Rsa);
    let seconds: f64 = bench.size("storm_seconds")?;
    let mut wild = load::connections(load::plan(bench, server, "/", &tls)?, Kind::Full);
    wild.connections = WILD;
    wild.duration = Some(Duration::from_secs_f64(seconds + 3.0));
    let mut calm = load::plan(bench, server, "/", &tls)?;
    calm.threads = 1;
    calm.pace = Pace::Open { rate: RATE, arrivals: Arrivals::Uniform };
    calm.duration = Some(Duration::from_secs_f64(seconds));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| load::run(bench, &wild));
        std::thread::sleep(Duration::from_secs(1));
        let (fifo, report) = scope
            .spawn(|| (go_first(), load::run(bench, &calm)))
            .join()
            .map_err(|_| anyhow::anyhow!("the calm load was lost"))?;
        let wild = other.join().map_err(|_| anyhow::anyhow!("the storm was lost"))??;
        let report = report?;
        let latencies = report.record.overall();
        let mut sample =
            Sample::of("p99.9", latency::percentile(&latencies, 99.9).context("too few requests for p99.9")?)
                .with("p99", latency::percentile(&latencies, 99.0).unwrap_or(f64::NAN))
                .with("storm", wild.rate)
                .with("fifo", f64::from(u8::from(fifo)));
        sample.void = load::void(&report);
        if wild.completed == 0 {
            sample.void.push("there was no storm".to_owned());
        }
        Ok((sample, latencies))
    })
}

/// Gives the calling thread, and those that it starts, precedence over all ordinary ones: what the calm client measures
/// is then the server and not the storm's load beside it. By util-linux' `chrt`, since it is a system call of its own.
fn go_first() -> bool {
    let me = rustix::thread::gettid().as_raw_nonzero().to_string();
    let done = std::process::Command::new("chrt").args(["-f", "-p", "10", &me]).output();
    done.is_ok_and(|output| output.status.success())
}
