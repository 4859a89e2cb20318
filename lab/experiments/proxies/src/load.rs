//! One run of the load generator as a sample of a round.

use std::time::Duration;

use anyhow::Context;
use sealane_lab_harness::web::Server;
use sealane_lab_harness::{Bench, Sample, client};
use sealane_lab_load::plan::{Close, Kind, Operation, Pinning, Plan};
use sealane_lab_load::tls::TlsOptions;
use sealane_lab_load::{LoadError, Report};

/// A closed loop of requests on kept connections, on the load's CPUs.
pub fn plan(bench: &Bench<'_>, server: &Server, path: &str, tls: &TlsOptions) -> anyhow::Result<Plan> {
    let mut plan = client::plan(&server.url(path), tls)?;
    plan.connections = bench.size("connections")?;
    plan.threads = bench.cores.client.len().min(plan.connections).max(1);
    plan.pinning = Pinning::Cpus(bench.cores.client.clone());
    plan.duration = Some(Duration::from_secs_f64(bench.size("seconds")?));
    plan.warmup = Duration::from_secs_f64(bench.size("warmup")?);
    plan.servers = server.running.pids();
    // Who else used the CPUs is judged round by round, for all loads alike; two busy processes of our own on two CPUs
    // are pressure too.
    plan.honesty.pressure = f64::INFINITY;
    plan.honesty.lag = bench.options.max_lag;
    Ok(plan)
}

/// New connections of one kind, one request each, closed by a reset so that no port waits.
pub fn connections(mut plan: Plan, kind: Kind) -> Plan {
    plan.operation = Operation::Connection { request: true, mix: vec![(kind, 1)] };
    plan.close = Close::Reset;
    plan
}

/// Runs it.
pub fn run(bench: &Bench<'_>, plan: &Plan) -> anyhow::Result<Report> {
    sealane_lab_load::run(plan, &bench.options.cancel, |_| {}).map_err(|error: LoadError| anyhow::anyhow!("{error}"))
}

/// What a closed loop says: CPU per operation, operations per second, and how busy the load itself was.
pub fn sample(report: &Report) -> anyhow::Result<Sample> {
    let server = report.server.context("the server's CPU time is not known")?;
    let mut sample = Sample::of("cpu_us", server.cpu_ns_per_operation / 1e3)
        .with("rate", report.rate)
        .with("server_cpus", server.cpus)
        .with("load_busy", report.client.busiest);
    sample.void = void(report);
    Ok(sample)
}

/// Why a run says nothing.
pub fn void(report: &Report) -> Vec<String> {
    let mut why = report.void.clone();
    if report.failed > 0 {
        let first = report.failures.values().find_map(|f| f.first.clone()).unwrap_or_default();
        why.push(format!("{} of {} operations failed ({first})", report.failed, report.started));
    }
    let bad: u64 = report.statuses.iter().filter(|(class, _)| **class != "2xx").map(|(_, n)| n).sum();
    if bad > 0 {
        why.push(format!("{bad} responses had another status than 2xx"));
    }
    why
}

/// Void where handshakes brought another number of tickets than all were told to give: each costs some microseconds.
/// Those of operations that ended just outside of the measured phase are counted too, hence the tolerance.
pub fn check_tickets(report: &Report, wanted: u32, sample: &mut Sample) {
    let Some(h) = &report.handshakes else { return };
    let made = h.full + h.resumed + h.early_data;
    let each = h.tickets as f64 / made.max(1) as f64;
    if made > 0 && (each - f64::from(wanted)).abs() > 0.4 {
        sample.void.push(format!("{each:.2} tickets for each handshake instead of {wanted}"));
    }
    sample.values.insert("tickets".to_owned(), each);
}
