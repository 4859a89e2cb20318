//! Many cores: the model of contention, with the counts and CPU times of this run, compared with the study's rates.

use anyhow::Context;
use sealane_lab_harness::study::data;
use sealane_lab_report::{Figure, Page, Part, Source};
use sealane_lab_stacks::contention::{self, Parameters, Point, TOLERANCE};
use serde_json::Value;

use crate::{counts, speed};

/// The study's number of threads.
const THREADS: usize = 64;
/// The study's fewer threads of one of its rates.
const FEWER: usize = 32;

/// The study's full handshakes: its name of a library, the stack here, and whether with light locks.
const FULL: [(&str, &str, bool); 6] = [
    ("AWS-LC 1.32 + 30 commits", "aws-lc", false),
    ("OpenSSL 1.1.1w", OPENSSL_1_1_1, false),
    ("AWS-LC 1.29.0", "aws-lc-c99", false),
    ("OpenSSL 3.1, 3.2, 3.3, 3.4-dev", "openssl-3.1", false),
    ("OpenSSL 3.0.2 and 3.0.14", "openssl-3.0", false),
    ("OpenSSL 3.0.14 with light locks", "openssl-3.0", true),
];
/// The study's resumed connections: its name of a library, and the stack here.
const RESUMED: [(&str, &str); 5] = [
    ("wolfSSL 5.7.0", "wolfssl"),
    ("OpenSSL 1.1.1w", OPENSSL_1_1_1),
    ("OpenSSL 3.0.14", "openssl-3.0"),
    ("OpenSSL 3.1 to 3.4-dev", "openssl-3.1"),
    ("AWS-LC 1.29.0 built as C11", "aws-lc"),
];
const OPENSSL_1_1_1: &str = "openssl-1.1.1";
/// The library of Sealane.
const OURS: &str = "rustls-aws-lc";

const STUDY: &str = "the study";
const MODEL: &str = "the model, fitted without this library";
const ERROR: &str = "error of the model";
const PREDICTED: &str = "resumed connections per second with 64 threads, predicted";

/// A rate of the study.
struct Published {
    stack: &'static str,
    resumed: bool,
    light: bool,
    threads: usize,
    rate: f64,
}

impl Published {
    fn what(&self) -> String {
        let kind = if self.resumed { "resumed" } else { "full" };
        let locks = if self.light { ", light locks" } else { "" };
        format!("{kind}{locks}, {} threads", self.threads)
    }
}

/// All rates that the study gives as numbers. Those that it gives in words are no points.
fn published() -> anyhow::Result<Vec<Published>> {
    let study = data("ssl-stacks")?;
    let rate = |of: &Value, key: &str| of[key].as_f64().with_context(|| format!("ssl-stacks.json has no rate {key:?}"));
    let mut all = Vec::new();
    let full = &study["full_handshakes_per_second_64_threads"];
    for (key, stack, light) in FULL {
        all.push(Published { stack, resumed: false, light, threads: THREADS, rate: rate(full, key)? });
    }
    let resumed = &study["resumed_end_to_end_connections_per_second_64_threads"];
    for (locks, light) in [("default locks", false), ("light locks", true)] {
        for (key, stack) in RESUMED {
            all.push(Published { stack, resumed: true, light, threads: THREADS, rate: rate(&resumed[locks], key)? });
        }
    }
    let best = rate(resumed, "OpenSSL 1.1.1w at 32 cores, best")?;
    all.push(Published { stack: OPENSSL_1_1_1, resumed: true, light: false, threads: FEWER, rate: best });
    Ok(all)
}

/// CPU time, calls of the most used lock, and the share of exclusive calls of one operation. A resumed connection of the study
/// is one handshake as a server and one as a client.
fn measured(page: &Page, stack: &str, resumed: bool) -> Option<(f64, f64, f64)> {
    let (counts, cost) = (page.part("counts")?, page.part("cost")?);
    let kind = if resumed { "resumed" } else { "full" };
    let sides: &[&str] = if resumed { &["server", "client"] } else { &["server"] };
    let sum = |measure: fn(&str, &str) -> String| -> Option<f64> {
        sides.iter().map(|test| counts.value(stack, &measure(kind, test))).sum()
    };
    let times: &[&str] =
        if resumed { &[speed::SERVER_RESUMED, speed::CLIENT_RESUMED] } else { &[speed::SERVER_FULL_RSA] };
    let us: f64 = times.iter().map(|measure| cost.value(stack, measure)).sum::<Option<f64>>()?;
    let calls = sum(counts::calls)?;
    // Pages of earlier versions do not have them.
    let exclusive = sum(counts::exclusive).unwrap_or_default();
    Some((us * 1e3, sum(counts::hottest)?, if calls > 0.0 { exclusive / calls } else { 0.0 }))
}

/// What the model gets of a rate; `None` if this run has not measured the library.
fn point(page: &Page, of: &Published) -> Option<Point> {
    let (cost_ns, calls, exclusive) = measured(page, of.stack, of.resumed)?;
    Some(Point {
        library: of.stack.to_owned(),
        what: of.what(),
        overhead: usize::from(of.resumed),
        light: of.light,
        threads: of.threads,
        published: of.rate,
        cost_ns,
        calls,
        exclusive,
    })
}

/// Fills the part.
pub fn model(page: &Page, part: &mut Part) -> anyhow::Result<()> {
    let published = published()?;
    let points: Vec<Point> = published.iter().filter_map(|of| point(page, of)).collect();
    let predictions = contention::validate(&points);
    let worst = contention::worst(&predictions).context(
        "the model needs the parts counts and cost of at least three libraries of the study (--set stacks=all)",
    )?;
    for one in &predictions {
        let subject = format!("{}, {}", one.library, one.what);
        part.push(Figure::new(&subject, STUDY, one.published, "/s").from(Source::Published));
        part.push(Figure::new(&subject, MODEL, one.predicted, "/s").from(Source::Extrapolated));
        part.push(Figure::new(&subject, ERROR, 100.0 * one.error(), "%").from(Source::Extrapolated));
    }
    part.table("The study's rates, and the model's", &[STUDY, MODEL, ERROR]);
    let absent: Vec<String> = published
        .iter()
        .filter(|of| points.iter().all(|p| (&*p.library, p.what.clone()) != (of.stack, of.what())))
        .map(|of| format!("{} ({})", of.stack, of.what()))
        .collect();
    if !absent.is_empty() {
        part.note(format!("Rates of the study whose library was not measured in this run: {}.", absent.join("; ")));
    }
    let (worst, limit) = (worst * 100.0, TOLERANCE * 100.0);
    if contention::holds(&predictions) {
        part.note(format!("The largest error is {worst:.0} %, and {limit:.0} % is allowed. The predictions below are not measurements."));
        predict(page, part, &contention::fit(&points));
    } else {
        part.note(format!(
            "The largest error is {worst:.0} %, and only {limit:.0} % is allowed: the model predicts nothing. Counts of the most used lock \
             and CPU times do not explain the study's rates."
        ));
    }
    Ok(())
}

/// Resumed connections with each library of this run, at the study's number of threads.
fn predict(page: &Page, part: &mut Part, parameters: &Parameters) {
    for stack in page.subjects.iter().map(|s| &s.name) {
        let of = Published { stack: "", resumed: true, light: false, threads: THREADS, rate: 0.0 };
        let Some((cost_ns, calls, exclusive)) = measured(page, stack, of.resumed) else { continue };
        let point = Point {
            library: stack.clone(),
            what: of.what(),
            overhead: usize::from(of.resumed),
            light: of.light,
            threads: of.threads,
            published: of.rate,
            cost_ns,
            calls,
            exclusive,
        };
        let rate = parameters.predict(&point);
        part.push(Figure::new(stack, PREDICTED, rate, "/s").from(Source::Extrapolated));
        if stack == OURS {
            part.note(format!(
                "{OURS} is the library of Sealane. Its figure is a prediction: nobody has measured it on 64 cores."
            ));
        }
    }
    part.table("Predictions", &[PREDICTED]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The committed counts and CPU times.
    const FILES: [&str; 2] = [
        include_str!("../../../../docs/measurements/tls-stacks/data/counts.csv"),
        include_str!("../../../../docs/measurements/tls-stacks/data/speed.csv"),
    ];

    fn page() -> Page {
        let mut parts = [Part::new("counts", "", ""), Part::new("cost", "", "")];
        for line in FILES.iter().flat_map(|text| text.lines()) {
            // The measure alone can have commas, in quotes.
            let Some((head, rest)) = line.split_once('"') else { continue };
            let (measure, rest) = rest.split_once('"').expect("the end of the quotes");
            let fields: Vec<&str> = rest.trim_start_matches(',').split(',').collect();
            let id = head.split(',').nth(1).expect("a part");
            if let (Some(part), "") = (parts.iter_mut().find(|p| p.id == id), fields[1]) {
                part.push(Figure::new(fields[0], measure, fields[2].parse().expect("a number"), ""));
            }
        }
        Page { parts: parts.into(), ..Page::default() }
    }

    #[test]
    fn every_rate_that_is_a_number_is_a_point() {
        fn numbers(value: &Value) -> usize {
            match value {
                Value::Number(_) => 1,
                Value::Object(map) => map.values().map(numbers).sum(),
                _ => 0,
            }
        }
        let study = data("ssl-stacks").unwrap();
        let given = numbers(&study["full_handshakes_per_second_64_threads"])
            + numbers(&study["resumed_end_to_end_connections_per_second_64_threads"]);
        assert_eq!(published().unwrap().len(), given);
    }

    #[test]
    fn the_committed_counts_do_not_explain_the_study() {
        let page = page();
        assert_eq!(measured(&page, "openssl-3.0", false).map(|m| m.1), Some(362.0));
        assert_eq!(measured(&page, "openssl-3.0", true).map(|m| m.1), Some(616.0));
        let mut part = Part::new("model", "", "");
        model(&page, &mut part).unwrap();
        // Four libraries have counts and CPU times.
        assert_eq!(part.of(ERROR).count(), 13, "{:?}", part.notes);
        let worst = part.of(ERROR).map(|f| f.value.abs()).fold(0.0, f64::max);
        assert!(worst > 100.0, "{worst}");
        assert!(part.of(PREDICTED).next().is_none() && part.notes.iter().any(|n| n.contains("predicts nothing")));
        assert!(part.figures.iter().all(|f| f.source != Source::Measured), "no prediction passes for a measurement");
    }

    #[test]
    fn without_libraries_there_is_no_model() {
        let error = model(&Page::default(), &mut Part::new("model", "", "")).unwrap_err().to_string();
        assert!(error.contains("at least three libraries"), "{error}");
    }

    #[test]
    fn predictions_are_marked() {
        let mut page = page();
        page.subjects.push(sealane_lab_report::Subject { name: OURS.into(), ..Default::default() });
        let mut part = Part::new("model", "", "");
        let points: Vec<Point> = published().unwrap().iter().filter_map(|of| point(&page, of)).take(3).collect();
        predict(&page, &mut part, &contention::fit(&points));
        assert_eq!(part.figures.len(), 1);
        assert_eq!((part.figures[0].subject.as_str(), part.figures[0].source), (OURS, Source::Extrapolated));
        assert!(part.notes[0].contains("is a prediction"), "{:?}", part.notes);
    }
}
