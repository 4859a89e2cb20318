//! What those already connected notice of a storm of new clients.

use std::time::Duration;

use hdrhistogram::Histogram;
use sealane_lab_harness::awake::Awake;
use sealane_lab_harness::foreign::Watch;
use sealane_lab_harness::interruptions::{Interruptions, undisturbed};
use sealane_lab_harness::precedence::real_time;
use sealane_lab_harness::rounds::{Quiet, Resumed};
use sealane_lab_harness::web::{Answer, Server, Site};
use sealane_lab_harness::workspace::Key;
use sealane_lab_harness::{Bench, Sample, latency};
use sealane_lab_load::clock::nanos;
use sealane_lab_load::plan::{Kind, Pace};
use sealane_lab_load::record::{histogram, merge, note};
use sealane_lab_load::schedule::Arrivals;
use sealane_lab_report::{Figure, Part};

use crate::{Setup, Subjects, Tls, load, site};

/// The smallest rate that leaves twelve samples beyond p99.9 in twelve seconds.
const RATE: f64 = 1000.0;
const WILD: usize = 64;
/// How close to an interruption a request must have been due to be left out. A fixed time, so that slow answers are left
/// out no more often than fast ones.
const AROUND: Duration = Duration::from_millis(10);

/// Each subject has one CPU; both loads share the others.
pub fn measure(bench: &mut Bench<'_>, part: &mut Part, setup: &Setup) -> anyhow::Result<()> {
    let site = Site { key: Key::Rsa, ..site(bench, Answer::Respond)? };
    let cpus = [bench.cores.server[0]];
    let subjects = Subjects::start(bench, part, setup, &site, &cpus)?;
    subjects.check(&Tls::V13.options(Key::Rsa))?;
    let names = subjects.names();
    let mut all: Vec<_> = names.iter().map(|_| histogram()).collect();
    let mut ordinary = true;
    let rounds = bench.rounds(part, &names, bench.size("rounds")?, Quiet::Indifferent, Resumed::Part, |i, _| {
        let (sample, calm) = storm(bench, &subjects.servers[i])?;
        if sample.void.is_empty() {
            merge(&mut all[i], &calm);
        }
        Ok(sample)
    })?;
    for (name, histogram) in names.iter().zip(&all) {
        // From all rounds together: what is left of one may be too little for so high a percentile.
        for (measure, p) in [("p99.9 on kept connections", 99.9), ("p99 on kept connections", 99.0)] {
            if let Some(value) = latency::percentile(histogram, p) {
                part.push(Figure::new(name, measure, value, "ms").samples(histogram.len()));
            }
        }
        part.rounds(name, "handshakes of the flood", &rounds.values(name, "storm"), "/s");
        latency::spectrum(part, name, "latency during the flood", histogram);
        let left_out = rounds.values(name, "left out");
        let share = 100.0 * left_out.iter().sum::<f64>() / left_out.len().max(1) as f64;
        part.note(format!(
            "{name}: {} requests count; {share:.0} % are left out, because a CPU was interrupted within 10 ms of \
             their planned time.",
            histogram.len()
        ));
        if rounds.values(name, "first").contains(&0.0) && std::mem::take(&mut ordinary) {
            part.note(
                "The load on kept connections could not get real-time priority (this needs root): if both loads share \
                 a CPU, the latencies include the time that the load itself waited for the CPU, and no request was left out.",
            );
        }
    }
    part.bars("p99.9 of requests on kept connections, ms", &["p99.9 on kept connections"], "lower");
    part.spectrum("Latency by percentile during the flood, all rounds together", "latency during the flood");
    part.table(
        "The p99, and the handshakes that new clients completed meanwhile",
        &["p99 on kept connections", "handshakes of the flood"],
    );
    Ok(())
}

/// One storm. Where a hypervisor takes the CPUs away, the highest percentiles of any server are its doing: of the calm
/// client's requests only those count that were not due close to an interruption of a CPU.
fn storm(bench: &Bench<'_>, server: &Server) -> anyhow::Result<(Sample, Histogram<u64>)> {
    let tls = Tls::V13.options(Key::Rsa);
    let seconds: f64 = bench.size("storm_seconds")?;
    let mut wild = load::connections(load::plan(bench, server, "/", &tls)?, Kind::Full);
    wild.connections = WILD;
    wild.duration = Some(Duration::from_secs_f64(seconds + 3.0));
    let mut calm = load::plan(bench, server, "/", &tls)?;
    calm.threads = 1;
    calm.pace = Pace::Open { rate: RATE, arrivals: Arrivals::Uniform };
    calm.duration = Some(Duration::from_secs_f64(seconds));
    calm.trace = true;
    // What it is late is in its latencies, and no reason to repeat all of it where the hypervisor kept it from running.
    calm.honesty.lag = Duration::MAX;
    let cpus: Vec<usize> = bench.cores.server.iter().take(1).chain(&bench.cores.client).copied().collect();
    // The server's are busy anyhow.
    let _awake = Awake::keep(&bench.cores.client);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| load::run(bench, &wild));
        std::thread::sleep(Duration::from_secs(1));
        // Now that the server is busy.
        let interruptions = Interruptions::watch(&cpus, &server.running.pids());
        let watch = Watch::start();
        let calm = scope.spawn(|| (real_time(10), load::run(bench, &calm)));
        let calm = calm.join();
        let foreign = watch.foreign_but_stolen();
        let (first, report) =
            calm.map_err(|_| anyhow::anyhow!("the thread with the load on kept connections panicked"))?;
        let wild = other.join().map_err(|_| anyhow::anyhow!("the thread with the load of new clients panicked"))??;
        let report = report?;
        let seen = interruptions.map_or_else(Vec::new, |i| i.seen());
        let mut latencies = histogram();
        for (intended, end) in &report.record.trace {
            if undisturbed(&seen, *intended - AROUND, *intended + AROUND) {
                note(&mut latencies, nanos(*end - *intended));
            }
        }
        let left_out = 1.0 - latencies.len() as f64 / report.record.trace.len().max(1) as f64;
        let mut sample = Sample::default()
            .with("storm", wild.rate)
            .with("left out", left_out)
            .with("first", f64::from(u8::from(first)));
        for (name, p) in [("p99.9", 99.9), ("p99", 99.0)] {
            if let Some(value) = latency::percentile(&latencies, p) {
                sample = sample.with(name, value);
            }
        }
        sample.void = load::void(&report);
        // What was stolen is in no slice that counts, and no reason to repeat all of it.
        if foreign > bench.options.max_foreign {
            sample
                .void
                .push(format!("other programs used {foreign:.2} CPUs (at most {:.2})", bench.options.max_foreign));
        }
        if wild.completed == 0 {
            sample.void.push("there were no new connections".to_owned());
        }
        Ok((sample, latencies))
    })
}
