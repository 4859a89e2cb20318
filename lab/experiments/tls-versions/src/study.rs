//! The twenty rows of the study, by the statistics that judge our own.

use sealane_lab_harness::study::TLS_VERSIONS_ROWS;
use sealane_lab_probe::comparison::compare;
use sealane_lab_probe::curl;
use sealane_lab_probe::stats::Direction;
use sealane_lab_probe::timing::Metric;
use sealane_lab_report::{Figure, Part, Source, stats};

/// Fills the part.
pub fn rows(part: &mut Part) -> anyhow::Result<()> {
    let series = curl::parse(TLS_VERSIONS_ROWS).map_err(|e| anyhow::anyhow!("{e}"))?;
    for one in &series {
        for (metric, measure) in [(Metric::Tls, "TLS phase alone, study"), (Metric::Total, "total, study")] {
            let ms: Vec<f64> = metric.of_all(&one.samples).iter().map(|ns| *ns as f64 / 1e6).collect();
            if let Some(c) = stats::Centre::of(&ms) {
                let figure = Figure::new(&format!("TLS {} full", one.name), measure, c.median, "ms");
                part.push(figure.between(c.low, c.high).samples(ms.len() as u64).from(Source::Published));
            }
        }
    }
    part.bars("The study's rows, median, ms", &["TLS phase alone, study", "total, study"], "lower");
    for pair in compare(&series, 1) {
        for (metric, what) in [(Metric::Tls, "TLS phase alone"), (Metric::Total, "total")] {
            if let Some(d) = pair.metric(metric) {
                let shown = match d.verdict {
                    Some(Direction::Shorter) => "1.3 is shorter",
                    Some(Direction::Longer) => "1.3 is longer",
                    _ => "no difference shown",
                };
                let p = if d.permutation.p < 0.01 { "< 0.01".into() } else { format!("= {:.2}", d.permutation.p) };
                part.note(format!(
                    "The study's rows, {what}: the mean is {:.2} ms with 1.2 and {:.2} ms with 1.3, p {p} (permutation of means): {shown}.",
                    d.means[0] / 1e6,
                    d.means[1] / 1e6,
                ));
            }
        }
    }
    part.note(
        "According to the study's table, time_appconnect is 12.0 % shorter and the total 2.0 % shorter with TLS 1.3; according \
         to its own rows, 13.2 % and 2.9 %. curl's time_appconnect contains DNS and TCP. The TLS phase alone was a quarter \
         shorter with TLS 1.3.",
    );
    Ok(())
}
