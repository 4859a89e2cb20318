//! Handshakes over threads: does twice the CPUs give twice the work?

use sealane_lab_harness::Bench;
use sealane_lab_harness::rounds::{Quiet, Resumed};
use sealane_lab_harness::web::{self, Answer, Site};
use sealane_lab_harness::workspace::Key;
use sealane_lab_load::plan::Kind;
use sealane_lab_report::usl::Fit;
use sealane_lab_report::{Axis, Figure, Part};

use crate::{Setup, Subjects, Tls, load, site};

const MEASURE: &str = "full handshakes per second";
const CPU: &str = "CPU per full handshake";

/// One, two, four … up to all CPUs of the servers.
pub fn measure(bench: &mut Bench<'_>, part: &mut Part, setup: &Setup, key: Key) -> anyhow::Result<()> {
    let counts = counts(bench, bench.cores.server.len())?;
    anyhow::ensure!(
        counts.len() > 1,
        "the servers have {} CPU(s) on this machine: there is nothing to scale over",
        bench.cores.server.len()
    );
    let tls = Tls::V13.options(key);
    let mut points: Vec<(String, f64, f64)> = Vec::new();
    for threads in counts {
        let cpus = bench.cores.server[..threads.min(bench.cores.server.len())].to_vec();
        let site = Site { threads, key, ..site(bench, Answer::Respond)? };
        let subjects = Subjects::start(bench, part, setup, &site, &cpus)?;
        subjects.check(&tls)?;
        let names = subjects.names();
        let rounds = bench.rounds(part, &names, bench.size("rounds")?, Quiet::Wanted, Resumed::Round, |i, _| {
            let server: &web::Server = &subjects.servers[i];
            load::sample(&load::run(bench, &load::connections(load::plan(bench, server, "/", &tls)?, Kind::Full))?)
        })?;
        for name in &names {
            for (measure, key, unit) in [(MEASURE, "rate", "/s"), (CPU, "cpu_us", "µs")] {
                let figure = Figure::of_rounds(name, measure, &rounds.values(name, key), unit);
                part.figures.extend(figure.map(|f| f.at(threads as f64)));
            }
            points.extend(rounds.median(name, "rate").map(|rate| (name.clone(), threads as f64, rate)));
            if rounds.median(name, "load_busy").is_some_and(|b| b > 0.97) {
                part.note(format!(
                    "{name} with {threads} threads: the CPUs of the load generator were saturated, so the figure is the limit of the load generator."
                ));
            }
        }
    }
    fits(part, MEASURE, &points);
    part.lines(
        "Full handshakes per second, by number of threads",
        MEASURE,
        Axis::linear("threads"),
        Axis::linear("per second"),
    );
    part.grid("CPU time per full handshake", CPU, "threads");
    Ok(())
}

/// The thread counts of this run: as listed, or doubling up to `most`.
pub fn counts(bench: &Bench<'_>, most: usize) -> anyhow::Result<Vec<usize>> {
    let text: String = bench.size("threads")?;
    if text != "auto" {
        return bench.sizes("threads");
    }
    Ok(doubling(most))
}

fn doubling(most: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < most).collect();
    counts.push(most.max(1));
    counts
}

/// A Universal Scalability Law for each subject, or why there is none.
pub fn fits(part: &mut Part, measure: &str, points: &[(String, f64, f64)]) {
    let mut names: Vec<&String> = points.iter().map(|p| &p.0).collect();
    names.dedup();
    names.sort();
    names.dedup();
    let mut refused = None;
    for name in names {
        let own: Vec<(f64, f64)> = points.iter().filter(|p| p.0 == *name).map(|p| (p.1, p.2)).collect();
        match Fit::of(&own) {
            Ok(fit) => {
                let unit = part.of(measure).next().map_or_else(String::new, |f| f.unit.clone());
                // As far again as was measured, and not further: that is guesswork enough.
                part.figures.extend(fit.figures(name, measure, &unit, fit.range.1 * 2.0));
                part.note(fit.text(name));
            }
            Err(why) => refused = Some(why.to_string()),
        }
    }
    if let Some(why) = refused {
        part.note(format!("Universal Scalability Law: {why}."));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_double_and_end_with_all() {
        assert_eq!(doubling(1), [1]);
        assert_eq!(doubling(2), [1, 2]);
        assert_eq!(doubling(6), [1, 2, 4, 6]);
        assert_eq!(doubling(8), [1, 2, 4, 8]);
    }

    #[test]
    fn few_thread_counts_are_told_and_not_fitted() {
        let mut part = Part::new("p", "P", "");
        fits(&mut part, "m", &[("a".into(), 1.0, 10.0), ("a".into(), 2.0, 19.0)]);
        assert!(part.figures.is_empty() && part.notes[0].contains("at least 4"), "{:?}", part.notes);
        let four: Vec<(String, f64, f64)> = [1.0, 2.0, 4.0, 8.0].iter().map(|n| ("a".into(), *n, 10.0 * n)).collect();
        fits(&mut part, "m", &four);
        assert!(!part.figures.is_empty());
    }
}
