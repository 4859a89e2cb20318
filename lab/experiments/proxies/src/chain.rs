//! The SSL study's resumption test: ten ports of one process, each forwarding to the next with a new connection, so
//! that one thing is measured, the cost of resuming sessions on both sides while threads share them.

use std::ffi::OsString;
use std::path::Path;

use sealane_lab_harness::rounds::{Quiet, Resumed};
use sealane_lab_harness::web::{self, Answer, Server, Site};
use sealane_lab_harness::workspace::Key;
use sealane_lab_harness::{Bench, study};
use sealane_lab_load::plan::Kind;
use sealane_lab_report::{Axis, Figure, Part, Source};
use sealane_lab_stacks::builder::Builder;

use crate::{Setup, Tls, load, site, threads};

const RATE: &str = "end-to-end connections per second";
const CPU: &str = "CPU per end-to-end connection";

/// Over threads, with the usual locks and, where a library for it is given, with light ones.
pub fn measure(bench: &mut Bench<'_>, part: &mut Part, setup: &Setup) -> anyhow::Result<()> {
    // The load needs a tenth of what the chain does, so that the chain may have every CPU.
    let mut cpus = bench.cores.server.clone();
    cpus.extend(bench.cores.client.iter().chain(&bench.cores.backend).filter(|c| !bench.cores.server.contains(c)));
    cpus.dedup();
    let hops: usize = bench.size("hops")?;
    let light = light_locks(bench, part)?;
    let mut points: Vec<(String, f64, f64)> = Vec::new();
    for count in threads::counts(bench, cpus.len())? {
        let own = &cpus[..count.min(cpus.len())];
        let servers = start(bench, part, setup, hops, count, own, &light)?;
        let names: Vec<String> = servers.iter().map(|s| s.name.clone()).collect();
        let rounds = bench.rounds(part, &names, bench.size("rounds")?, Quiet::Wanted, Resumed::Round, |i, _| {
            one(bench, setup, &servers[i], hops)
        })?;
        let x = count as f64;
        for name in &names {
            for (measure, key, unit) in [(RATE, "rate", "/s"), (CPU, "cpu_us", "µs")] {
                part.figures.extend(Figure::of_rounds(name, measure, &rounds.values(name, key), unit).map(|f| f.at(x)));
            }
            points.extend(rounds.median(name, "rate").map(|rate| (name.clone(), x, rate)));
        }
        if count > bench.cores.server.len() {
            part.note(format!(
                "With {count} threads, the chain shares CPUs with the load generator and the backend: this machine has {} CPUs.",
                cpus.len()
            ));
        }
    }
    threads::fits(part, RATE, &points);
    published(part);
    part.lines(
        "Resumed end-to-end connections per second, by number of threads. Hollow points: the study (HAProxy 3.1-dev1, 64 Arm cores)",
        RATE,
        Axis::log("threads"),
        Axis::log("per second"),
    );
    part.grid("CPU time per end-to-end connection", CPU, "threads");
    Ok(())
}

/// What a HAProxy with light locks has in its environment; nothing where none is wanted or to be had.
fn light_locks(bench: &Bench<'_>, part: &mut Part) -> anyhow::Result<Vec<(String, OsString)>> {
    let preload = |library: OsString| ("LD_PRELOAD".to_owned(), library);
    Ok(match bench.size::<String>("light_locks")?.as_str() {
        "" | "off" => Vec::new(),
        // What `sealane-lab locks --light --no-count` gives to any program.
        "own" => match Builder::new(None).and_then(|builder| builder.lock_counter()) {
            Ok(library) => vec![preload(library.into()), ("SEALANE_LOCKS_LIGHT".to_owned(), "1".into())],
            Err(why) => {
                part.note(format!("HAProxy with light locks (read-write locks of one word in place of the C library's) is left out: {why}"));
                Vec::new()
            }
        },
        library => vec![preload(library.into())],
    })
}

/// A server that really has loaded what was preloaded: a program that is linked statically, or may not be preloaded
/// into, would go on with its usual locks.
fn preloaded(server: Server, light: &[(String, OsString)]) -> anyhow::Result<Server> {
    for (_, library) in light.iter().filter(|(name, _)| name == "LD_PRELOAD") {
        let name = Path::new(library).file_name().unwrap_or(library).to_string_lossy();
        for pid in server.running.pids() {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
            anyhow::ensure!(maps.contains(&*name), "the process has not loaded {name}");
        }
    }
    Ok(server)
}

/// Everybody, and every HAProxy once more with light locks.
fn start(
    bench: &mut Bench<'_>,
    part: &mut Part,
    setup: &Setup,
    hops: usize,
    threads: usize,
    cpus: &[usize],
    light: &[(String, OsString)],
) -> anyhow::Result<Vec<Server>> {
    let site = Site {
        threads,
        // After a resumption OpenSSL sends one whatever is set.
        tickets: 1,
        ..site(bench, Answer::Chain { hops, to: setup.backend.tls_port })?
    };
    let mut servers = Vec::new();
    for program in bench.programs.clone() {
        let mut ways = vec![(program.name.clone(), site.clone())];
        if program.kind == "haproxy" && !light.is_empty() {
            ways.push((format!("{}, light locks", program.name), Site { env: light.to_vec(), ..site.clone() }));
        }
        for (name, site) in ways {
            let started = web::start(&program, &name, &setup.workspace, &site, cpus);
            match started.and_then(|s| preloaded(s, &site.env)).and_then(|s| works(setup, s)) {
                Ok(server) => servers.push(server),
                Err(error) => part.note(format!("{name} with {threads} threads is left out: {error:#}")),
            }
        }
    }
    anyhow::ensure!(!servers.is_empty(), "no subject could be chained: {}", part.notes.join("; "));
    Ok(servers)
}

/// A request goes through all hops, and the second arrives at the end over a resumed session.
fn works(setup: &Setup, server: Server) -> anyhow::Result<Server> {
    use sealane_lab_harness::client;
    let tls = Tls::V13.options(Key::Ecdsa);
    let before = setup.backend.resumed();
    for _ in 0..8 {
        let mut connection = client::connect(server.address, &tls)?;
        let answer = client::ask(&mut connection, "/")?;
        anyhow::ensure!(answer.status == 200, "the chain answers with status {}", answer.status);
    }
    let after = setup.backend.resumed();
    let (resumed, all) = (after.0 - before.0, after.1 - before.1);
    anyhow::ensure!(
        resumed > 0,
        "its connections to the next hop are not resumed ({resumed} of {all} at the end of the chain)"
    );
    Ok(server)
}

fn one(bench: &Bench<'_>, setup: &Setup, server: &Server, hops: usize) -> anyhow::Result<sealane_lab_harness::Sample> {
    let mut plan = load::connections(load::plan(bench, server, "/", &Tls::V13.options(Key::Ecdsa))?, Kind::Resumed);
    plan.connections = bench.size("chain_connections")?;
    plan.threads = plan.threads.min(plan.connections).max(1);
    let before = setup.backend.resumed();
    let report = load::run(bench, &plan)?;
    let after = setup.backend.resumed();
    let mut sample = load::sample(&report)?;
    let hops = hops as f64;
    if let Some(rate) = sample.values.get_mut("rate") {
        *rate *= hops;
    }
    if let Some(cpu) = sample.values.get_mut("cpu_us") {
        *cpu /= hops;
    }
    // The last hop tells for all: they are the same code with the same settings.
    let all = (after.1 - before.1).max(1) as f64;
    let share = (after.0 - before.0) as f64 / all;
    if share < 0.98 {
        sample.void.push(format!("only {:.1} % of the last hop's connections were resumed", share * 100.0));
    }
    Ok(sample.with("resumed_at_the_end", share))
}

/// The study's figures at 64 threads, those that it gives as numbers.
fn published(part: &mut Part) {
    let Ok(data) = study::data("ssl-stacks") else { return };
    let section = &data["resumed_end_to_end_connections_per_second_64_threads"];
    for locks in ["default locks", "light locks"] {
        let Some(map) = section[locks].as_object() else { continue };
        for (library, value) in map {
            if let Some(rate) = value.as_f64() {
                let subject = format!("{library}, {locks}");
                part.push(Figure::new(&subject, RATE, rate, "/s").at(64.0).from(Source::Published));
            }
        }
    }
}
