//! Two workers, threads or lanes beside one, at the same rate: what sharing costs where there is no need for it.

use std::time::Duration;

use sealane_lab_harness::rounds::{Quiet, Resumed};
use sealane_lab_harness::web::{self, Answer, Site};
use sealane_lab_harness::{Bench, workspace::Key};
use sealane_lab_load::plan::{Kind, Pace, Pinning};
use sealane_lab_load::schedule::Arrivals;
use sealane_lab_report::Part;

use crate::{Setup, Tls, load, site};

/// Each program twice, with one thread and with two. Neither servers nor load are pinned: the load is wherever a CPU is free.
pub fn measure(bench: &mut Bench<'_>, part: &mut Part, setup: &Setup) -> anyhow::Result<()> {
    let cpus = sealane_lab_harness::cores::allowed()?;
    anyhow::ensure!(cpus.len() > 1, "this machine has one CPU");
    let tls = Tls::V13.options(Key::Ecdsa);
    let mut servers = Vec::new();
    for program in bench.programs.clone() {
        for (threads, name) in [(1, "one"), (2, "two")] {
            let site = Site { threads, ..site(bench, Answer::Respond)? };
            let name = format!("{}, {name}", program.name);
            match web::start(&program, &name, &setup.workspace, &site, &cpus) {
                Ok(server) => servers.push(server),
                Err(error) => part.note(format!("{name} is left out: {error:#}")),
            }
        }
    }
    anyhow::ensure!(!servers.is_empty(), "no subject could be started");
    let names: Vec<String> = servers.iter().map(|s| s.name.clone()).collect();
    let mut measures = Vec::new();
    let mut ratios = Vec::new();
    for (what, key, full) in
        [("full handshake", "lanes_full_rate", true), ("kept-alive request", "lanes_keepalive_rate", false)]
    {
        let rate: f64 = bench.size(key)?;
        let rounds = bench.rounds(part, &names, bench.size("rounds")?, Quiet::Wanted, Resumed::Round, |i, _| {
            let mut plan = load::plan(bench, &servers[i], "/", &tls)?;
            if full {
                plan = load::connections(plan, Kind::Full);
            }
            (plan.threads, plan.pinning) = (1, Pinning::Off);
            plan.pace = Pace::Open { rate, arrivals: Arrivals::Uniform };
            // CPU time per operation does not depend on when the operations started.
            plan.honesty.lag = Duration::MAX;
            load::sample(&load::run(bench, &plan)?)
        })?;
        let measure = format!("CPU per {what} at {rate:.0}/s");
        for name in &names {
            part.rounds(name, &measure, &rounds.values(name, "cpu_us"), "µs");
        }
        for program in &bench.programs {
            let [one, two] = ["one", "two"].map(|n| format!("{}, {n}", program.name));
            let ratio = format!("two ÷ one, CPU per {what}");
            part.ratios(&program.name, &ratio, &rounds.ratios(&two, &one, "cpu_us"), "");
            ratios.push(ratio);
        }
        measures.push(measure);
    }
    ratios.dedup();
    let measures: Vec<&str> = measures.iter().map(String::as_str).collect();
    part.bars("CPU time per operation, µs", &measures, "lower");
    part.table("Ratios, round by round", &ratios.iter().map(String::as_str).collect::<Vec<_>>());
    Ok(())
}
