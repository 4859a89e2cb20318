//! Many certificates beside one: time to start and to reload, memory, and CPU time per full handshake.

use std::time::{Duration, Instant};

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
/// HAProxy's users report more than eight minutes for 50,000 certificates.
const LIMIT: Duration = Duration::from_secs(1800);

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
            let begin = Instant::now();
            match web::start_within(&program, &name, &setup.workspace, &site, &cpus, LIMIT) {
                Ok(server) => {
                    part.push(Figure::new(&name, "time to start", begin.elapsed().as_secs_f64() * 1e3, "ms"));
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
    for program in &bench.programs {
        let memory = |label: &str| {
            let name = format!("{}, {label}", program.name);
            let server = servers.iter().find(|(server, _)| server.name == name);
            server.map(|(server, _)| server.running.memory() as f64 / 1024.0)
        };
        if let (Some(one), Some(many)) = (memory("one certificate"), memory("many")) {
            // Both have the certificate for all other names, too.
            let each = (many - one) / (number.max(2) - 1) as f64;
            part.push(Figure::new(&program.name, "memory per certificate", each, "KiB"));
        }
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
    for (server, _) in &mut servers {
        match server.reload(LIMIT) {
            Ok(reload) => {
                part.push(Figure::new(&server.name, "time to reload", reload.time.as_secs_f64() * 1e3, "ms"));
                part.push(Figure::new(&server.name, "CPU to reload", reload.cpu_ns as f64 / 1e6, "ms"));
            }
            Err(error) => part.note(format!("{}: {error:#}", server.name)),
        }
    }
    part.bars("CPU time per full handshake, µs", &["CPU per full handshake"], "lower");
    let rows = [
        "time to start",
        "CPU to start",
        "time to reload",
        "CPU to reload",
        "memory after the start",
        "memory per certificate",
        "many ÷ one, CPU per full handshake",
    ];
    part.table(
        &format!("{number} certificates compared with one; clients connect to {} of the names", asked.len()),
        &rows,
    );
    Ok(())
}
