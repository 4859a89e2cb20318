//! `--method together`: all subjects are loaded at the same time, pinned to the same CPU, each by a thread of its own on the
//! load's CPUs. A neighbour on the host that slows the machine for some seconds slows all subjects alike, so that the ratios
//! of one round stay steady where those of subjects measured in turn do not. Where a process comes to lie in memory makes
//! a difference of some per cent, so each round starts all programs anew, in another order.

use std::time::Duration;

use sealane_lab_harness::journal::{Slot, now};
use sealane_lab_harness::rounds::{note, order};
use sealane_lab_harness::web::{self, Server, Site};
use sealane_lab_harness::{Bench, Program, Rounds, Sample, Stopped};
use sealane_lab_load::Report;
use sealane_lab_load::plan::{Pinning, Plan};
use sealane_lab_load::tls::TlsOptions;
use sealane_lab_report::{Part, Void};

use crate::{Setup, load};

/// Connections open and their handshakes over: the measured phases of all loads overlap but for some milliseconds.
const WARMUP: Duration = Duration::from_secs(1);

/// What each subject is asked.
pub struct Question<'a, F> {
    /// How subjects are configured.
    pub site: &'a Site,
    /// What the load offers.
    pub tls: &'a TlsOptions,
    /// Tickets that each handshake must bring, if that is part of the measurement.
    pub tickets: Option<u32>,
    /// The kind of load.
    pub shape: F,
}

/// Rounds of all `programs` together. A round in which one of them fails a check is void for all.
pub fn rounds<F: Fn(Plan) -> Plan>(
    bench: &Bench<'_>,
    part: &mut Part,
    setup: &Setup,
    programs: &[Program],
    question: &Question<'_, F>,
) -> anyhow::Result<Rounds> {
    let count = bench.size("rounds")?;
    let mut held = Rounds::default();
    for round in 0..count {
        let order: Vec<&Program> = order(programs.len(), round).into_iter().map(|i| &programs[i]).collect();
        let what = format!("round {}", round + 1);
        let slot = bench.slot(part, &format!("together, {what}"));
        let mut left = bench.options.tries.max(1);
        while left > 0 {
            if bench.options.cancelled() {
                return Err(Stopped.into());
            }
            // What an earlier run gave up is tried again.
            let (row, at) = match slot.as_ref().and_then(Slot::earlier) {
                Some(taken) => (taken.row(), taken.at),
                None => {
                    left -= 1;
                    let row = one_round(bench, setup, &order, question)?;
                    if bench.options.cancelled() {
                        return Err(Stopped.into());
                    }
                    let at = now();
                    if let Some(slot) = &slot {
                        slot.note(row.iter().map(|(name, sample)| (name.as_str(), sample)), at)?;
                    }
                    (row, at)
                }
            };
            let failed: Vec<&str> = row.iter().filter(|(_, s)| !s.void.is_empty()).map(|(name, _)| &**name).collect();
            for (name, sample) in &row {
                bench.say(&format!("   {what} of {count}  {name:<16} {}", sample.told()));
                match failed.is_empty() || !sample.void.is_empty() {
                    true => note(part, name, &what, sample, at),
                    false => {
                        note(part, name, &what, &sample.clone().void(format!("void for {}", failed.join(", "))), at);
                    }
                }
            }
            if failed.is_empty() {
                row.into_iter().for_each(|(name, sample)| held.push(&name, round, sample));
                break;
            }
            let void = row.into_iter().filter(|(_, sample)| !sample.void.is_empty());
            part.voids.extend(void.map(|(subject, sample)| Void {
                subject,
                what: what.clone(),
                why: sample.void.join("; "),
            }));
        }
    }
    Ok(held)
}

/// Starts all programs, loads them together, and stops them.
fn one_round<F: Fn(Plan) -> Plan>(
    bench: &Bench<'_>,
    setup: &Setup,
    order: &[&Program],
    question: &Question<'_, F>,
) -> anyhow::Result<Vec<(String, Sample)>> {
    let cpu = [bench.cores.server[0]];
    let mut servers = Vec::new();
    let mut plans = Vec::new();
    for (i, program) in order.iter().enumerate() {
        let server = web::start(program, &program.name, &setup.workspace, question.site, &cpu)?;
        plans.push(plan(bench, &server, i, question)?);
        servers.push(server);
    }
    let reports: Vec<anyhow::Result<Report>> = std::thread::scope(|scope| {
        let loads: Vec<_> = plans.iter().map(|plan| scope.spawn(|| load::run(bench, plan))).collect();
        let lost = |_| Err(anyhow::anyhow!("the load's thread panicked"));
        loads.into_iter().map(|load| load.join().unwrap_or_else(lost)).collect()
    });
    let sample = |report: anyhow::Result<Report>| -> anyhow::Result<Sample> {
        let report = report?;
        let mut sample = load::sample(&report)?;
        if let Some(wanted) = question.tickets {
            load::check_tickets(&report, wanted, &mut sample);
        }
        if report.completed == 0 {
            sample.void.push("nothing was completed".to_owned());
        }
        Ok(sample)
    };
    let samples =
        reports.into_iter().map(|r| sample(r).unwrap_or_else(|why| Sample::default().void(format!("{why:#}"))));
    Ok(servers.iter().map(|server| server.name.clone()).zip(samples).collect())
}

/// One thread's load, on the load's CPUs in turn.
fn plan<F: Fn(Plan) -> Plan>(
    bench: &Bench<'_>,
    server: &Server,
    i: usize,
    question: &Question<'_, F>,
) -> anyhow::Result<Plan> {
    let mut plan = (question.shape)(load::plan(bench, server, "/", question.tls)?);
    plan.connections = plan.connections.min(bench.size("together_connections")?).max(1);
    plan.threads = 1;
    plan.pinning = Pinning::Cpus(vec![bench.cores.client[i % bench.cores.client.len()]]);
    plan.warmup = plan.warmup.max(WARMUP);
    Ok(plan)
}
