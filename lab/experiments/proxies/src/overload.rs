//! New clients at several times the rate that a subject can shake hands with: what clients already served wait.

use std::time::{Duration, Instant};

use sealane_lab_harness::awake::Awake;
use sealane_lab_harness::precedence::{ordinary, real_time};
use sealane_lab_harness::rounds::{Quiet, Resumed};
use sealane_lab_harness::web::{Answer, Server, Site};
use sealane_lab_harness::workspace::Key;
use sealane_lab_harness::{Bench, Sample, cores, latency};
use sealane_lab_load::hellos::Hellos;
use sealane_lab_load::plan::{Kind, Pace};
use sealane_lab_load::schedule::Arrivals;
use sealane_lab_load::tls::Client;
use sealane_lab_load::{Live, preflight};
use sealane_lab_report::Part;

use crate::{Setup, Subjects, Tls, load, site};

/// Requests per second of the calm client, and its connections.
const RATE: f64 = 1000.0;
const CALM: usize = 32;
/// Open files that the new clients need.
const FILES: usize = 4000;

/// Each subject has one CPU. First its capacity is measured, then, by turns, the calm client alone and beside new clients,
/// each of whom sends a ClientHello and never goes on.
pub fn measure(bench: &mut Bench<'_>, part: &mut Part, setup: &Setup) -> anyhow::Result<()> {
    preflight::descriptors(FILES)?;
    let site = Site { key: Key::Rsa, ..site(bench, Answer::Respond)? };
    let cpus = [bench.cores.server[0]];
    let subjects = Subjects::start(bench, part, setup, &site, &cpus)?;
    subjects.check(&Tls::V13.options(Key::Rsa))?;
    let names = subjects.names();
    let times: f64 = bench.size("overload_times")?;
    let capacities: Vec<f64> = subjects.servers.iter().map(|s| capacity(bench, s)).collect::<anyhow::Result<_>>()?;
    let rounds = bench.rounds(part, &names, bench.size("rounds")?, Quiet::Indifferent, Resumed::Part, |i, _| {
        one(bench, &subjects.servers[i], capacities[i] * times)
    })?;
    let mut rows = vec!["capacity: full handshakes per second of one CPU"];
    for (name, capacity) in names.iter().zip(&capacities) {
        part.rounds(name, rows[0], &[*capacity], "/s");
        part.rounds(name, "new clients per second", &rounds.values(name, "new clients beside"), "/s");
        for p in ["p50", "p99.9"] {
            for when in ["alone", "beside"] {
                part.rounds(name, &format!("{p} {when}"), &rounds.values(name, &format!("{p} {when}")), "ms");
            }
        }
        part.ratios(name, "p99.9 beside ÷ alone", &rounds.values(name, "ratio"), "");
    }
    rows.extend(["new clients per second", "p50 alone", "p50 beside", "p99.9 alone", "p99.9 beside"]);
    part.bars("p99.9 beside new clients ÷ p99.9 alone", &["p99.9 beside ÷ alone"], "lower");
    part.table("Details", &rows);
    Ok(())
}

/// Full handshakes, with one request each, per second of the server's CPU.
fn capacity(bench: &Bench<'_>, server: &Server) -> anyhow::Result<f64> {
    let plan = load::connections(load::plan(bench, server, "/", &Tls::V13.options(Key::Rsa))?, Kind::Full);
    let report = load::run(bench, &plan)?;
    let cost = report.server.map_or(f64::NAN, |s| s.cpu_ns_per_operation);
    anyhow::ensure!(cost > 0.0, "{}: no handshake was completed", server.name);
    Ok(1e9 / cost)
}

fn one(bench: &Bench<'_>, server: &Server, rate: f64) -> anyhow::Result<Sample> {
    let alone = calm(bench, server, None)?;
    let client = Client::new(&Tls::V13.options(Key::Rsa), b"http/1.1")?;
    let name = Client::server_name("localhost")?;
    let start = || {
        let start = || Hellos::start(server.address, (&client.ordinary, name.clone()), 1, Some(rate));
        Ok(cores::pinned(&bench.cores.client, start)??)
    };
    let beside = calm(bench, server, Some(&start))?;
    let mut sample = Sample::default();
    for (when, values) in [("alone", alone), ("beside", beside)] {
        sample.void.extend(values.void.iter().map(|why| format!("{when}: {why}")));
        sample.values.extend(values.values.into_iter().map(|(name, value)| (format!("{name} {when}"), value)));
    }
    if let (Some(alone), Some(beside)) = (sample.values.get("p99.9 alone"), sample.values.get("p99.9 beside")) {
        let ratio = beside / alone;
        sample = sample.with("ratio", ratio);
    }
    Ok(sample)
}

/// Starts the new clients.
type Start<'a> = dyn Fn() -> anyhow::Result<Hellos> + Sync + 'a;

/// One load of the calm client, whose connections are there before new clients start. It goes before them on the CPU that
/// they share, so that the server's latency is measured.
fn calm(bench: &Bench<'_>, server: &Server, start: Option<&Start<'_>>) -> anyhow::Result<Sample> {
    let mut plan = load::plan(bench, server, "/", &Tls::V13.options(Key::Rsa))?;
    (plan.threads, plan.connections) = (1, CALM);
    plan.pace = Pace::Open { rate: RATE, arrivals: Arrivals::Uniform };
    plan.duration = Some(Duration::from_secs_f64(bench.size("storm_seconds")?));
    plan.warmup = Duration::from_secs(2);
    plan.interval = Some(Duration::from_millis(100));
    let _awake = Awake::keep(&bench.cores.client);
    let mut started: Option<anyhow::Result<(Instant, Hellos)>> = None;
    let report = std::thread::scope(|scope| {
        let calm = scope.spawn(|| {
            real_time(10);
            // The first look at a load that runs: it is connected.
            let look = |_: &Live<'_>| {
                if let (None, Some(start)) = (&started, start) {
                    // Ordinary threads, which go behind this one.
                    let made = std::thread::scope(|s| s.spawn(|| (ordinary(), start()).1).join());
                    let made = made
                        .unwrap_or_else(|_| Err(anyhow::anyhow!("the thread with the load of new clients panicked")));
                    started = Some(made.map(|hellos| (Instant::now(), hellos)));
                }
            };
            sealane_lab_load::run(&plan, &bench.options.cancel, look)
        });
        calm.join().map_err(|_| anyhow::anyhow!("the thread with the load on kept connections panicked"))
    })?;
    let sent = started.transpose()?.map(|(since, hellos)| (since.elapsed().as_secs_f64(), hellos.stop() as f64));
    let report = match report {
        Ok(report) => report,
        Err(why) => return Ok(Sample::default().void(why.to_string())),
    };
    let all = report.record.overall();
    let mut sample = Sample::default();
    for (name, p) in [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9)] {
        if let Some(value) = latency::percentile(&all, p) {
            sample = sample.with(name, value);
        }
    }
    sample.void = load::void(&report);
    if start.is_some() {
        let (seconds, hellos) = sent.unwrap_or((1.0, 0.0));
        sample = sample.with("new clients", hellos / seconds.max(1e-9));
        if hellos == 0.0 {
            sample.void.push("there were no new clients".to_owned());
        }
    }
    Ok(sample)
}
