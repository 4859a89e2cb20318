//! Ten thousand certificates beside one: CPU time to start, memory, and CPU time per full handshake.

use sealane_lab_harness::rounds::{Quiet, Resumed};
use sealane_lab_harness::web::{self, Answer, Site};
use sealane_lab_harness::workspace::Key;
use sealane_lab_harness::{Bench, Sample};
use sealane_lab_load::accounting::CpuSample;
use sealane_lab_load::plan::Kind;
use sealane_lab_report::{Figure, Part};

use crate::{Setup, Tls, load, site};

/// Names that the load asks for: more are not needed to see what looking them up costs.
const ASKED: usize = 500;

/// Every program that can be configured so, with one certificate and with many.
pub fn measure(bench: &mut Bench<'_>, part: &mut Part, setup: &Setup) -> anyhow::Result<()> {
    let number: usize = bench.size("certificates")?;
    let names: Vec<String> = (0..number).map(|i| format!("h{i}.example")).collect();
    setup.workspace.certificates(&names)?;
    let asked: Vec<String> = names.iter().step_by((number / ASKED).max(1)).cloned().collect();
    let cpus = [bench.cores.server[0]];
    let one = names.first().cloned().into_iter().collect::<Vec<_>>();
    let mut servers = Vec::new();
    for program in bench.programs.clone() {
        for (label, own, wanted) in [("one certificate", &one, &one), ("many", &names, &asked)] {
            let site = Site { names: own.clone(), ..site(bench, Answer::Respond)? };
            let name = format!("{}, {label}", program.name);
            match web::start(&program, &name, &setup.workspace, &site, &cpus) {
                Ok(server) => {
                    let started = server.running.cpu().since(&CpuSample::default()) as f64 / 1e6;
                    part.push(Figure::new(&name, "CPU to start", started, "ms"));
                    servers.push((server, wanted.clone()));
                }
                Err(error) => part.note(format!("{name} is left out: {error:#}")),
            }
        }
    }
    anyhow::ensure!(!servers.is_empty(), "no subject could be started: {}", part.notes.join("; "));
    // Now that all share the program's pages.
    for (server, _) in &servers {
        let memory = server.running.memory() as f64 / 1024.0;
        part.push(Figure::new(&server.name, "memory after the start", memory, "KiB"));
    }
    let labels: Vec<String> = servers.iter().map(|(s, _)| s.name.clone()).collect();
    let tls = Tls::V13.options(Key::Ecdsa);
    let rounds = bench.rounds(part, &labels, bench.size("rounds")?, Quiet::Wanted, Resumed::Part, |i, _| {
        let (server, wanted) = &servers[i];
        let mut plan = load::connections(load::plan(bench, server, "/", &tls)?, Kind::Full);
        plan.names = wanted.iter().map(|name| (name.clone(), 1)).collect();
        let sample: Sample = load::sample(&load::run(bench, &plan)?)?;
        Ok(sample)
    })?;
    for name in &labels {
        part.rounds(name, "CPU per full handshake", &rounds.values(name, "cpu_us"), "µs");
    }
    for program in &bench.programs {
        let [one, many] = ["one certificate", "many"].map(|n| format!("{}, {n}", program.name));
        part.ratios(&program.name, "many ÷ one, CPU per full handshake", &rounds.ratios(&many, &one, "cpu_us"), "");
    }
    part.bars("CPU time per full handshake, µs", &["CPU per full handshake"], "lower");
    let rows = ["CPU to start", "memory after the start", "many ÷ one, CPU per full handshake"];
    part.table(
        &format!("{number} certificates compared with one; clients connect to {} of the names", asked.len()),
        &rows,
    );
    Ok(())
}
