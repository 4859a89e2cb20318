//! Handshake and first byte over the distances, what follows for the percentages, and the study's model fitted.

use crate::place::{Certificates, KEYS, Place};
use crate::study;
use crate::ways::{EMBEDDED_12, EMBEDDED_13, SEQUENTIAL_12, SEQUENTIAL_13, Timed, WAYS};
use sealane_lab_emulator::LinkConfig;
use sealane_lab_harness::rounds::{Quiet, Resumed};
use sealane_lab_harness::{Bench, Rounds, Sample};
use sealane_lab_report::{Axis, Fact, Figure, Part, Source, Void, stats};
use std::time::Duration;

/// What the study's machines computed per handshake.
pub const STUDY_COMPUTING: f64 = 40.0;

/// The handshake with this kind of certificate.
pub fn handshake(key: usize) -> String {
    handshake_of(KEYS[key])
}

/// The first byte with this kind of certificate.
pub fn first_byte(key: usize) -> String {
    first_byte_of(KEYS[key])
}

/// The handshake of connections that a label describes.
fn handshake_of(label: &str) -> String {
    format!("handshake, {label}")
}

fn first_byte_of(label: &str) -> String {
    format!("first byte, {label}")
}

pub fn measure(bench: &mut Bench<'_>, part: &mut Part, certificates: &Certificates) -> anyhow::Result<()> {
    at_each(bench, part, "Link at", |bench, part, config, rtt| over(bench, part, certificates, config, rtt))?;
    study::beside(part)?;
    for label in KEYS {
        derive(part, label);
        show(part, label, "; the study's figures are for RSA 4096");
    }
    Ok(())
}

/// Measures at each of the study's distances. A link that did not have the requested properties is void, and is tried again.
/// `link` begins the names of the settings that say how the links were.
pub fn at_each(
    bench: &mut Bench<'_>,
    part: &mut Part,
    link: &str,
    mut over: impl FnMut(&mut Bench<'_>, &mut Part, &LinkConfig, f64) -> anyhow::Result<OverLink>,
) -> anyhow::Result<()> {
    for rtt in bench.sizes::<f64>("rtts")? {
        let config = LinkConfig::at_distance(Duration::from_secs_f64(rtt / 1e3));
        for attempt in 1..=bench.options.tries.max(1) {
            let (figures, said, void) = over(bench, part, &config, rtt)?;
            bench.say(&format!("   {said}"));
            if let Some(why) = void {
                let what = format!("round trip of {rtt} ms, attempt {attempt}");
                part.voids.push(Void { subject: "the link".into(), what, why });
                continue;
            }
            bench.page.settings.push(Fact::new(format!("{link} {rtt} ms"), said));
            figures.into_iter().for_each(|f| part.push(f));
            break;
        }
    }
    anyhow::ensure!(!part.figures.is_empty(), "no valid result, see the void runs");
    Ok(())
}

/// One link's figures, what it says of itself, and why it is void if it is.
pub type OverLink = (Vec<Figure>, String, Option<String>);

fn over(
    bench: &mut Bench<'_>,
    part: &mut Part,
    certificates: &Certificates,
    config: &LinkConfig,
    rtt: f64,
) -> anyhow::Result<OverLink> {
    let place = Place::new(bench, certificates, config)?;
    let (rounds, attempts): (usize, usize) = (bench.size("rounds")?, bench.size("attempts")?);
    let mut figures = Vec::new();
    for (key, (to, _)) in place.gateways.iter().enumerate() {
        let names: Vec<String> = WAYS.iter().map(|w| w.name.to_owned()).collect();
        let connectors: Vec<_> =
            WAYS.iter().map(|w| w.client(&certificates.der[key])).collect::<anyhow::Result<_>>()?;
        let client = place.link.client();
        client.run(|| WAYS.iter().zip(&connectors).try_for_each(|(w, c)| w.prime(c, *to)))??;
        let held = bench.rounds(part, &names, rounds, Quiet::Wanted, Resumed::Part, |i, _| {
            let timed = client.run(|| {
                (0..attempts).map(|_| WAYS[i].timed(&connectors[i], *to)).collect::<anyhow::Result<Vec<_>>>()
            })??;
            Ok(medians(&timed))
        })?;
        figures.extend(of_rounds(&held, &names, KEYS[key], attempts, rtt));
    }
    Ok(place.finish(figures))
}

/// One round of a way.
pub fn medians(timed: &[Timed]) -> Sample {
    let median =
        |of: &dyn Fn(&Timed) -> f64| stats::median(&timed.iter().map(of).collect::<Vec<_>>()).unwrap_or(f64::NAN);
    Sample::of("handshake_ms", median(&|t| t.handshake)).with("first_byte_ms", median(&|t| t.first_byte))
}

/// The figures of all rounds of all ways at a distance.
pub fn of_rounds(held: &Rounds, names: &[String], label: &str, attempts: usize, rtt: f64) -> Vec<Figure> {
    let mut figures = Vec::new();
    for name in names {
        for (measure, value) in [(handshake_of(label), "handshake_ms"), (first_byte_of(label), "first_byte_ms")] {
            let values = held.values(name, value);
            let figure = Figure::of_rounds(name, &measure, &values, "ms");
            figures.extend(figure.map(|f| f.samples((values.len() * attempts) as u64).at(rtt)));
        }
    }
    figures
}

fn at(part: &Part, measure: &str, subject: &str, rtt: f64) -> Option<f64> {
    let found = part.of(measure).find(|f| f.subject == subject && f.x == Some(rtt) && f.source == Source::Measured);
    found.map(|f| f.value)
}

pub fn distances(part: &Part, measure: &str) -> Vec<f64> {
    let mut all: Vec<f64> = part.of(measure).filter(|f| f.source == Source::Measured).filter_map(|f| f.x).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

/// What is saved against TLS 1.2 (or 1.3) after TCP: in per cent, in per cent with the study's computing added to each handshake,
/// and in round trips.
pub fn derive(part: &mut Part, label: &str) {
    let measure = handshake_of(label);
    let pairs = [
        (format!("{EMBEDDED_12}, compared with {SEQUENTIAL_12}"), SEQUENTIAL_12, EMBEDDED_12),
        (format!("{EMBEDDED_13}, compared with {SEQUENTIAL_13}"), SEQUENTIAL_13, EMBEDDED_13),
        (format!("{EMBEDDED_13}, compared with {SEQUENTIAL_12}"), SEQUENTIAL_12, EMBEDDED_13),
    ];
    let mut more = Vec::new();
    for rtt in distances(part, &measure) {
        for (name, from, to) in &pairs {
            let (Some(a), Some(b)) = (at(part, &measure, from, rtt), at(part, &measure, to, rtt)) else { continue };
            let figures = [
                (format!("sooner, {label}"), 100.0 * (a - b) / a, "%"),
                (format!("sooner with 40 ms added, {label}"), 100.0 * (a - b) / (a + STUDY_COMPUTING), "%"),
                (format!("round trips saved, {label}"), (a - b) / rtt, "RTT"),
            ];
            more.extend(figures.map(|(m, v, unit)| Figure::new(name, &m, v, unit).at(rtt)));
        }
    }
    more.into_iter().for_each(|f| part.push(f));
    for way in &WAYS {
        let points: Vec<(f64, f64)> = distances(part, &measure)
            .into_iter()
            .filter_map(|rtt| Some((rtt, at(part, &measure, way.name, rtt)?)))
            .collect();
        let Some((slope, rest)) = line(&points) else { continue };
        let fitted = |measure: String, value, unit| Figure::new(way.name, &measure, value, unit).from(Source::Fitted);
        part.push(fitted(format!("n, round trips, {label}"), slope, "RTT"));
        part.push(fitted(format!("X + T, {label}"), rest, "ms"));
    }
}

/// Least squares.
fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let n = points.len() as f64;
    if points.len() < 2 {
        return None;
    }
    let (mx, my) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let sxx: f64 = points.iter().map(|p| (p.0 - mx).powi(2)).sum();
    let sxy: f64 = points.iter().map(|p| (p.0 - mx) * (p.1 - my)).sum();
    (sxx > 0.0).then(|| (sxy / sxx, my - sxy / sxx * mx))
}

/// The views of a label's figures; `beside` ends the title of the handshakes.
pub fn show(part: &mut Part, label: &str, beside: &str) {
    let (h, f, k) = (handshake_of(label), first_byte_of(label), label);
    let x = || Axis::linear("round trip, ms");
    part.lines(&format!("Handshake, {k}"), &h, x(), Axis::linear("ms"));
    part.grid(&format!("Handshake, ms, {k}{beside}"), &h, "round trip, ms");
    part.grid(&format!("First byte, ms, {k}"), &f, "round trip, ms");
    part.grid(&format!("How much sooner the handshake ends, %, {k}"), &format!("sooner, {k}"), "round trip, ms");
    let added = format!("sooner with 40 ms added, {k}");
    part.grid(
        &format!("The same with the study's 40 ms of computing added to each handshake, {k}"),
        &added,
        "round trip, ms",
    );
    // As in the study, beside its own figures.
    part.lines(&format!("How much sooner, with 40 ms added, {k}"), &added, x(), Axis::linear("%"));
    part.grid(&format!("Round trips saved, {k}"), &format!("round trips saved, {k}"), "round trip, ms");
    let model = [format!("n, round trips, {k}"), format!("X + T, {k}")];
    part.table(&format!("The study's model X + n(P + Q) + T, fitted, {k}"), &[&model[0], &model[1]]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_and_one_point_is_none() {
        let (slope, rest) = line(&[(1.0, 5.0), (2.0, 8.0), (3.0, 11.0)]).unwrap();
        assert!((slope - 3.0).abs() < 1e-9 && (rest - 2.0).abs() < 1e-9);
        assert_eq!(line(&[(1.0, 5.0)]), None);
        assert_eq!(line(&[(1.0, 5.0), (1.0, 6.0)]), None);
    }
}
