//! What an idle client costs in memory.

use std::time::Duration;

use sealane_lab_harness::rounds::{Quiet, take};
use sealane_lab_harness::web::{Answer, Server};
use sealane_lab_harness::workspace::Key;
use sealane_lab_harness::{Bench, Sample, client};
use sealane_lab_load::preflight;
use sealane_lab_load::tls::Client;
use sealane_lab_report::{Figure, Part};

use crate::{Setup, Subjects, Tls, site};

/// One round: allocators grow in steps, and a second would find what the first left behind.
pub fn measure(bench: &mut Bench<'_>, part: &mut Part, setup: &Setup) -> anyhow::Result<()> {
    let idle: usize = bench.size("idle")?;
    preflight::descriptors(idle + 200)?;
    let site = site(bench, Answer::Respond)?;
    let cpus = [bench.cores.server[0]];
    let subjects = Subjects::start(bench, part, setup, &site, &cpus)?;
    let tls = Tls::V13.options(Key::Ecdsa);
    subjects.check(&tls)?;
    let client = Client::new(&tls, b"http/1.1")?;
    for server in &subjects.servers {
        let sample = take(bench.options, part, &server.name, "the one round", Quiet::Indifferent, &mut || {
            one(bench, server, &client, idle)
        })?;
        let Some(sample) = sample else { continue };
        let kib = sample.values["kib"];
        bench.say(&format!("   {:<16} {kib:.2} KiB", server.name));
        part.push(Figure::new(&server.name, "memory per idle connection", kib, "KiB").samples(idle as u64));
    }
    part.bars("Memory per idle TLS 1.3 connection, KiB", &["memory per idle connection"], "lower");
    Ok(())
}

fn one(bench: &Bench<'_>, server: &Server, client: &Client, idle: usize) -> anyhow::Result<Sample> {
    let connection = || {
        let mut connection = client::connect_with(server.address, client)?;
        client::ask(&mut connection, "/").map(|_| connection)
    };
    for _ in 0..100 {
        connection()?;
    }
    std::thread::sleep(Duration::from_millis(500));
    let before = server.running.memory();
    let mut kept = Vec::with_capacity(idle);
    for _ in 0..idle {
        if bench.options.cancelled() {
            return Err(sealane_lab_harness::Stopped.into());
        }
        kept.push(connection()?);
    }
    std::thread::sleep(Duration::from_secs(2));
    let after = server.running.memory();
    let sample = Sample::of("kib", after.saturating_sub(before) as f64 / 1024.0 / idle as f64);
    Ok(if before == 0 { sample.void("its memory cannot be read (smaps_rollup)") } else { sample })
}
