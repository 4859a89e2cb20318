//! Handshakes over threads: what was measured, and the fitted curve with its interval.

use std::collections::BTreeMap;

use anyhow::anyhow;
use sealane_lab_harness::Bench;
use sealane_lab_report::usl::Fit;
use sealane_lab_report::{Axis, Figure, Part, Source, stats};
use sealane_lab_stacks::study::Machine;
use sealane_lab_stacks::wire::Case;
use serde_json::Value;

use crate::Stacks;
use crate::speed::rounds;
use crate::verdict::ENOUGH;

/// What is run at each number of threads.
struct Kind {
    measure: &'static str,
    resumed: bool,
    light: bool,
    own_context: bool,
}

pub const RESUMED: &str = "resumed";
const KINDS: [Kind; 4] = [
    Kind { measure: "full", resumed: false, light: false, own_context: false },
    Kind { measure: RESUMED, resumed: true, light: false, own_context: false },
    Kind { measure: "resumed, light locks", resumed: true, light: true, own_context: false },
    Kind { measure: "resumed, own contexts", resumed: true, light: false, own_context: true },
];

/// A stack's rates, round by round, at each number of threads.
type Curves = BTreeMap<String, Vec<(f64, Vec<f64>)>>;

pub fn scaling(bench: &mut Bench<'_>, part: &mut Part, stacks: &Stacks) -> anyhow::Result<()> {
    let cpus = Machine::this().cpus;
    let threads: Vec<usize> = if bench.size::<String>("threads")? == "all" {
        let mut list: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < cpus).collect();
        list.push(cpus);
        list
    } else {
        bench.sizes("threads")?
    };
    if let Some(n) = threads.iter().find(|n| **n > cpus) {
        return Err(anyhow!("{n} threads on {cpus} CPUs would wait for CPUs, not for locks"));
    }
    let to: f64 = bench.size("extrapolate")?;
    for kind in KINDS.iter().filter(|kind| !(kind.own_context && bench.options.quick)) {
        let measure = kind.measure;
        let mut curves = Curves::new();
        for &threads in &threads {
            let case = Case { resumed: kind.resumed, own_context: kind.own_context, threads, ..Case::BASE };
            rounds(bench, part, stacks, &case, kind.light, |part, name, held| {
                let rates = held.values(name, "rate");
                if let Some(figure) = Figure::of_rounds(name, measure, &rates, "/s") {
                    part.push(figure.at(threads as f64));
                    curves.entry(name.to_owned()).or_default().push((threads as f64, rates));
                }
            })?;
        }
        fit(part, &curves, measure, to);
        let axis = || Axis::linear("threads");
        part.lines(&format!("Handshakes per second, {measure}"), measure, axis(), Axis::linear("per second"));
        let fitted = format!("{measure}, fitted");
        if part.of(&fitted).next().is_some() {
            let title = format!("Handshakes per second, {measure}, fitted; dashed lines are beyond the measured range");
            part.lines(&title, &fitted, axis(), Axis::linear("per second"));
        }
        part.grid(&format!("Handshakes per second, {measure}, by threads"), measure, "threads");
    }
    published(part)?;
    if (cpus as f64) < ENOUGH {
        part.note(format!(
            "This machine has {cpus} CPUs: the study saw libraries collapse under their own locks with twelve threads \
             or more, which this machine cannot show. The counts above are exact on every machine, and decide how far \
             a library scales."
        ));
    }
    Ok(())
}

/// The curves that the medians make. Each round is a measurement of the whole curve: between the fits of single rounds
/// lies the interval.
fn fit(part: &mut Part, curves: &Curves, measure: &str, to: f64) {
    let fitted = format!("{measure}, fitted");
    let mut refused = None;
    for (name, curve) in curves {
        let medians: Vec<(f64, f64)> =
            curve.iter().filter_map(|(n, rates)| Some((*n, stats::median(rates)?))).collect();
        let fit = match Fit::of(&medians) {
            Ok(fit) => fit,
            Err(why) => {
                refused = Some(why.0);
                continue;
            }
        };
        let rounds = curve.iter().map(|(_, rates)| rates.len()).min().unwrap_or(0);
        let round = |r: usize| -> Vec<(f64, f64)> { curve.iter().map(|(n, rates)| (*n, rates[r])).collect() };
        let single: Vec<Fit> = (0..rounds).filter_map(|r| Fit::of(&round(r)).ok()).collect();
        for figure in fit.figures(name, &fitted, "/s", to) {
            let (low, high) = fit.between(&single, |fit| fit.at(figure.x.unwrap_or(1.0)));
            part.push(figure.between(low, high).samples(single.len() as u64));
        }
        let (sigma, kappa) = (fit.between(&single, |fit| fit.sigma), fit.between(&single, |fit| fit.kappa));
        part.note(format!(
            "{measure}: {}; fits of single rounds: σ {:.4} to {:.4}, κ {:.6} to {:.6}",
            fit.text(name),
            sigma.0,
            sigma.1,
            kappa.0,
            kappa.1
        ));
    }
    if let Some(why) = refused {
        part.note(format!("{measure}: no curve is fitted ({why})."));
    }
}

/// The study's throughputs, as far as they are numbers; what it gives in words stands among its facts.
fn published(part: &mut Part) -> anyhow::Result<()> {
    let study = sealane_lab_harness::study::data("ssl-stacks")?;
    let resumed = &study["resumed_end_to_end_connections_per_second_64_threads"];
    let groups = [
        ("study: full, 64 threads", &study["full_handshakes_per_second_64_threads"]),
        ("study: resumed end to end, default locks", &resumed["default locks"]),
        ("study: resumed end to end, light locks", &resumed["light locks"]),
    ];
    for (measure, values) in groups {
        for (stack, value) in values.as_object().into_iter().flatten() {
            if let Some(rate) = Value::as_f64(value) {
                part.push(Figure::new(stack, measure, rate, "/s").from(Source::Published));
            }
        }
    }
    part.table("The study: 64 Arm cores, through HAProxy", &groups.map(|g| g.0));
    Ok(())
}
