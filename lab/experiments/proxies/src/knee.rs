//! Rising rates: how much each subject holds, and what users wait where the first of them is out of CPU.

use std::time::Duration;

use anyhow::Context;
use sealane_lab_harness::foreign::Watch;
use sealane_lab_harness::rounds::Quiet;
use sealane_lab_harness::web::{self, Answer, Model, Server, Site};
use sealane_lab_harness::workspace::Key;
use sealane_lab_harness::{Bench, Sample, latency, study};
use sealane_lab_load::knee::{Search, Step};
use sealane_lab_load::plan::{Pace, Plan};
use sealane_lab_load::record::{histogram, merge};
use sealane_lab_load::schedule::Arrivals;
use sealane_lab_load::verdict::Threshold;
use sealane_lab_report::{Figure, Part, Source, Void};

use crate::{Setup, Subjects, Tls, haproxies, load, site};

type Histogram = hdrhistogram::Histogram<u64>;

/// The latencies at the rate at which the first subject fails.
pub const COMPARED: &str = "latency at the comparison rate";
/// The servers' CPUs count as spent from here.
const SPENT: f64 = 0.97;

/// A subject's knee.
struct Knee {
    held: Option<f64>,
    broke: Option<f64>,
    why: String,
}

/// All of it for one TLS version.
pub fn measure(bench: &mut Bench<'_>, part: &mut Part, setup: &Setup, tls: Tls) -> anyhow::Result<()> {
    let threads = bench.cores.server.len();
    let cpus = bench.cores.server.clone();
    let site = Site { threads, ..site(bench, Answer::Proxy(setup.backend.requests))? };
    let mut subjects = Subjects::start(bench, part, setup, &site, &cpus)?;
    if threads > 1 {
        for program in haproxies(bench) {
            let processes = Site { model: Model::Processes, ..site.clone() };
            subjects.servers.push(web::start(
                &program,
                &format!("{} (MP)", program.name),
                &setup.workspace,
                &processes,
                &cpus,
            )?);
        }
    }
    let options = tls.options(Key::Ecdsa);
    subjects.check(&options)?;
    let mut knees = Vec::new();
    for server in &subjects.servers {
        let plan = base(bench, server, &options)?;
        let knee = search(bench, part, server, plan)?;
        bench.say(&format!("   knee of {:<16} {}", server.name, told(&knee)));
        if let Some(held) = knee.held {
            let high = knee.broke.unwrap_or(held);
            part.push(Figure::new(&server.name, "knee", held, "/s").between(held, high));
        }
        part.note(format!("{}: {}.", server.name, told(&knee)));
        knees.push(knee);
    }
    part.bars(&format!("Highest sustained rate, requests per second over {threads} CPU(s)"), &["knee"], "higher");
    let best = knees.iter().filter_map(|k| k.held).reduce(f64::max).context("no subject held any rate")?;
    let first = knees
        .iter()
        .zip(&subjects.servers)
        .filter_map(|(k, s)| k.broke.map(|rate| (rate, &s.name, &k.why)))
        .min_by(|a, b| a.0.total_cmp(&b.0));
    let compare = match first {
        Some((rate, name, why)) => {
            part.note(format!("The comparison rate is {rate:.0}/s, at which {name} was the first to fail ({why})."));
            rate
        }
        None => {
            part.note(format!("The comparison rate is {best:.0}/s: no subject failed at a rate that could be tried."));
            best
        }
    };
    let total: f64 = bench.size("latency_requests")?;
    let same = |rate: f64| vec![Some(rate); subjects.servers.len()];
    spectrum(bench, part, &subjects, &options, &same(compare), total, COMPARED)?;
    published(part, COMPARED);
    let total: f64 = bench.size("fraction_requests")?;
    for fraction in bench.sizes::<f64>("fractions")? {
        let measure = format!("latency at {:.0} % of the best knee", fraction * 100.0);
        spectrum(bench, part, &subjects, &options, &same(best * fraction), total, &measure)?;
    }
    for fraction in bench.sizes::<f64>("own_fractions")? {
        let rates: Vec<Option<f64>> = knees.iter().map(|knee| knee.held.map(|held| held * fraction)).collect();
        let measure = format!("latency at {:.0} % of its own knee", fraction * 100.0);
        spectrum(bench, part, &subjects, &options, &rates, total, &measure)?;
    }
    Ok(())
}

fn told(knee: &Knee) -> String {
    match (knee.held, knee.broke) {
        (Some(held), Some(broke)) => format!("held {held:.0}/s, broke at {broke:.0}/s ({})", knee.why),
        (Some(held), None) => format!("held {held:.0}/s, the highest that could be tried ({})", knee.why),
        (None, _) => format!("held nothing ({})", knee.why),
    }
}

fn base(bench: &Bench<'_>, server: &Server, tls: &sealane_lab_load::tls::TlsOptions) -> anyhow::Result<Plan> {
    let mut plan = load::plan(bench, server, "/", tls)?;
    plan.connections = bench.size("knee_connections")?;
    plan.threads = bench.cores.client.len().min(plan.connections).max(1);
    Ok(plan)
}

/// From a glance at what a closed loop does upwards, by doubling and halving.
fn search(bench: &Bench<'_>, part: &mut Part, server: &Server, mut plan: Plan) -> anyhow::Result<Knee> {
    plan.duration = Some(Duration::from_millis(800));
    let glance = load::run(bench, &plan)?;
    let seconds: f64 = bench.size("knee_seconds")?;
    let bounds: Vec<Threshold> = ["p99>50ms", "errors>1%"]
        .iter()
        .map(|t| Threshold::parse(t).map_err(|why| anyhow::anyhow!("{why}")))
        .collect::<anyhow::Result<_>>()?;
    let cpus = bench.cores.server.len() as f64;
    let search = Search {
        from: (glance.rate * 0.4).max(10.0),
        to: glance.rate.max(10.0) * 8.0,
        precision: bench.size("knee_precision")?,
    };
    let mut why_broke = String::new();
    let found = search.find(|rate| -> anyhow::Result<Step> {
        if bench.options.cancelled() {
            return Err(sealane_lab_harness::Stopped.into());
        }
        plan.pace = Pace::Open { rate, arrivals: Arrivals::Uniform };
        // A slow rate needs longer for a p99.
        plan.duration = Some(Duration::from_secs_f64(seconds.max(1200.0 / rate)));
        let watch = Watch::start();
        let mut report = load::run(bench, &plan)?;
        let foreign = watch.foreign();
        report.check(&bounds);
        let mut broken = report.broken.clone();
        if report.server.is_some_and(|s| s.cpus >= cpus * SPENT) {
            broken.push("its CPUs were saturated".to_owned());
        }
        if report.unstarted > 0 {
            broken.push(format!("{} requests never started", report.unstarted));
        }
        let mut void = report.void.clone();
        if foreign > bench.options.max_foreign {
            void.push(format!("other programs used {foreign:.2} CPUs"));
        }
        Ok(match (void.first(), broken.is_empty()) {
            // A server that is out of CPU is so, whatever else happened meanwhile.
            (_, false) if broken.iter().any(|b| b.starts_with("its CPUs")) => {
                why_broke = "its CPUs were saturated".to_owned();
                Step::Broken(broken.join("; "))
            }
            (Some(why), _) => {
                part.voids.push(Void {
                    subject: server.name.clone(),
                    what: format!("{rate:.0}/s"),
                    why: void.join("; "),
                });
                Step::Void(why.clone())
            }
            (None, true) => Step::Held,
            (None, false) => {
                why_broke = broken.join("; ");
                Step::Broken(broken.join("; "))
            }
        })
    })?;
    if why_broke.is_empty() {
        why_broke = found.void.last().cloned().unwrap_or_else(|| "nothing broke".to_owned());
    }
    Ok(Knee { held: found.held, broke: found.broke, why: why_broke })
}

/// Latencies of each subject at its rate, rounds of all merged. A subject without a rate is left out.
fn spectrum(
    bench: &Bench<'_>,
    part: &mut Part,
    subjects: &Subjects,
    tls: &sealane_lab_load::tls::TlsOptions,
    rates: &[Option<f64>],
    total: f64,
    measure: &str,
) -> anyhow::Result<()> {
    let rounds: usize = bench.size("latency_rounds")?;
    let names = subjects.names();
    let mut merged: Vec<Histogram> = names.iter().map(|_| histogram()).collect();
    let mut kept = vec![false; names.len()];
    let mut fresh: Option<(usize, Histogram)> = None;
    for round in 0..rounds {
        for i in sealane_lab_harness::rounds::order(names.len(), round) {
            let Some(rate) = rates[i] else { continue };
            let seconds = (total / rate / rounds.max(1) as f64).max(0.5);
            let what = format!("{rate:.0}/s");
            let label = format!("{what}, round {}", round + 1);
            let sample =
                sealane_lab_harness::rounds::take(bench.options, part, &names[i], &label, Quiet::Wanted, &mut || {
                    let mut plan = base(bench, &subjects.servers[i], tls)?;
                    plan.pace = Pace::Open { rate, arrivals: Arrivals::Uniform };
                    plan.duration = Some(Duration::from_secs_f64(seconds));
                    plan.timeout = Duration::from_secs(60);
                    let report = load::run(bench, &plan)?;
                    let mut sample = Sample::of("rate", report.rate);
                    sample.void = report.void.clone();
                    if let Some(server) = report.server {
                        sample = sample.with("cpus", server.cpus);
                    }
                    fresh = Some((i, report.record.overall()));
                    if !std::mem::replace(&mut kept[i], true) {
                        bench.keep(&part_name(measure), &names[i], &what, &report)?;
                    }
                    Ok(sample)
                })?;
            if let (Some(sample), Some((of, histogram))) = (sample, fresh.take())
                && of == i
            {
                merge(&mut merged[i], &histogram);
                let p99 = latency::percentile(&histogram, 99.0).unwrap_or(f64::NAN);
                bench.say(&format!("   {label} of {rounds}  {:<16} p99_ms {p99:.2}  {}", names[i], sample.told()));
            }
        }
    }
    let mut any = false;
    for (name, histogram) in names.iter().zip(&merged).filter(|(_, h)| !h.is_empty()) {
        latency::spectrum(part, name, measure, histogram);
        any = true;
    }
    let told = told_rates(&names, rates);
    if any {
        part.spectrum(&format!("Latency by percentile at {told} requests per second ({measure})"), measure);
    } else {
        part.note(format!("{measure}, {told}/s: every round was void."));
    }
    Ok(())
}

/// One rate for all, or the rate of each subject.
fn told_rates(names: &[String], rates: &[Option<f64>]) -> String {
    match rates {
        [Some(first), rest @ ..] if rest.iter().all(|rate| *rate == Some(*first)) => format!("{first:.0}"),
        _ => {
            let with = names.iter().zip(rates).filter_map(|(name, rate)| Some(format!("{:.0} ({name})", (*rate)?)));
            with.collect::<Vec<_>>().join(", ")
        }
    }
}

fn part_name(measure: &str) -> String {
    measure.replace([' ', '%'], "-")
}

/// What the study reports at its own rate, as points: it gives no curves in figures.
fn published(part: &mut Part, measure: &str) {
    let Ok(data) = study::data("proxies") else { return };
    let told = &data["latency_at_85000_rps"];
    // The study's words, and the point that they name.
    for (key, subject, percentile, ms) in [
        ("HAProxy MT", "HAProxy 2.3 MT at 85,000/s, study", 90.0, 1100.0),
        ("HAProxy MP", "HAProxy 2.3 MP at 85,000/s, study", 99.0, 400.0),
        ("NGINX", "NGINX 1.18 at 85,000/s, study", 99.9999, 8.0),
    ] {
        let text: String = told[key].as_str().unwrap_or_default().chars().filter(|c| *c != ',').collect();
        // The figure is drawn only while the data still says it.
        if text.contains(&format!("{ms:.0} ms")) {
            part.push(Figure::new(subject, measure, ms, "ms").at(percentile).from(Source::Published));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_told_once_if_they_are_equal() {
        let names = ["nginx".to_owned(), "haproxy".to_owned()];
        assert_eq!(told_rates(&names, &[Some(9000.0), Some(9000.0)]), "9000");
        assert_eq!(told_rates(&names, &[Some(9000.0), Some(8000.4)]), "9000 (nginx), 8000 (haproxy)");
        assert_eq!(told_rates(&names, &[None, Some(8000.0)]), "8000 (haproxy)");
    }
}
