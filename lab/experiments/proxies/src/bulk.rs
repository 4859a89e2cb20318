//! Large files through the proxy.

use std::time::Duration;

use sealane_lab_harness::Bench;
use sealane_lab_harness::Sample;
use sealane_lab_harness::rounds::{Quiet, Resumed};
use sealane_lab_harness::web::{Answer, Http, Site};
use sealane_lab_harness::workspace::Key;
use sealane_lab_load::plan::Protocol;
use sealane_lab_report::Part;

use crate::{Setup, Subjects, Tls, load, site};

/// The size of one file: small enough for any client's bound on a body, large enough that its request does not count.
const FILE_MIB: u64 = 32;

/// CPU time per GiB, from a sparse file of the backend, over HTTP/1.1 or HTTP/3.
pub fn measure(bench: &mut Bench<'_>, part: &mut Part, setup: &Setup, http: Http) -> anyhow::Result<()> {
    setup.workspace.sparse("bulk", FILE_MIB << 20)?;
    let site = Site { http, ..site(bench, Answer::Proxy(setup.backend.port))? };
    let cpus = [bench.cores.server[0]];
    let mut subjects = Subjects::start(bench, part, setup, &site, &cpus)?;
    let tls = Tls::V13.options(Key::Ecdsa);
    subjects.check(&tls)?;
    if http == Http::Three {
        subjects.keep_able(bench, part, &tls, |mut plan| {
            plan.protocol = Protocol::Http3;
            plan
        })?;
    }
    let files = (bench.size::<u64>("bulk_mib")? / FILE_MIB).max(1);
    let names = subjects.names();
    let rounds = bench.rounds(part, &names, bench.size("rounds")?, Quiet::Wanted, Resumed::Round, |i, _| {
        let server = &subjects.servers[i];
        let mut plan = load::plan(bench, server, "/files/bulk", &tls)?;
        (plan.connections, plan.threads) = (1, 1);
        if http == Http::Three {
            plan.protocol = Protocol::Http3;
        }
        (plan.requests, plan.duration) = (Some(files), None);
        (plan.warmup, plan.timeout) = (Duration::ZERO, Duration::from_secs(120));
        // The generator's own sample of the server ends when it looks next; here the few operations matter exactly.
        let before = server.running.cpu();
        let report = load::run(bench, &plan)?;
        let spent = server.running.cpu().since(&before) as f64 / 1e6;
        let gib = (report.completed * FILE_MIB) as f64 / 1024.0;
        let mut sample =
            Sample::of("ms_per_gib", spent / gib.max(1e-9)).with("mbit", gib * 8589.934592 / report.seconds.max(1e-9));
        sample.void = load::void(&report);
        if report.completed != files {
            sample.void.push(format!("{} of {files} downloads completed", report.completed));
        }
        Ok(sample)
    })?;
    for name in &names {
        part.rounds(name, "CPU per GiB", &rounds.values(name, "ms_per_gib"), "ms");
        part.rounds(name, "throughput of one connection", &rounds.values(name, "mbit"), "Mbit/s");
    }
    part.bars("CPU time per GiB, ms", &["CPU per GiB"], "lower");
    part.table("Details", &["throughput of one connection"]);
    Ok(())
}
