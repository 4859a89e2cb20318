//! The same under packet loss: means and slow requests, since what matters are the few connections that lose a packet.

use std::time::Duration;

use sealane_lab_emulator::LinkConfig;
use sealane_lab_harness::Bench;
use sealane_lab_harness::workspace::Workspace;
use sealane_lab_probe::timing::Metric;
use sealane_lab_report::{Axis, Figure, Part, stats};

use crate::distance::on_link;
use crate::measure::Of;

/// A chart for each server.
pub fn measure(bench: &mut Bench<'_>, part: &mut Part, workspace: &Workspace) -> anyhow::Result<()> {
    let rtt: f64 = bench.size("loss_rtt")?;
    let runs = (bench.size("loss_rounds")?, bench.size("loss_attempts")?);
    let mut servers: Vec<String> = Vec::new();
    for loss in bench.sizes::<f64>("losses")? {
        let distance = LinkConfig::at_distance(Duration::from_secs_f64(rtt / 1e3));
        let config = LinkConfig { loss: loss / 100.0, ..distance };
        let all = on_link(bench, part, workspace, &config, &format!("{rtt} ms with {loss} % loss"), runs)?;
        for server in all.iter().flatten() {
            keep(part, server, loss);
            if !servers.contains(&server.name) {
                servers.push(server.name.clone());
            }
        }
    }
    anyhow::ensure!(!part.figures.is_empty(), "no valid result, see the void runs");
    for server in &servers {
        let means = mean_measure(server);
        part.lines(&format!("Mean total to {server}"), &means, Axis::linear("% lost"), Axis::linear("ms"));
        for measure in [means, median_measure(server), slow_measure(server)] {
            part.grid(&format!("{measure}, ms"), &measure, "% lost");
        }
    }
    Ok(())
}

fn mean_measure(server: &str) -> String {
    format!("mean total under loss, {server}")
}

fn median_measure(server: &str) -> String {
    format!("median total under loss, {server}")
}

fn slow_measure(server: &str) -> String {
    format!("95th percentile of the total under loss, {server}")
}

fn keep(part: &mut Part, server: &Of, loss: f64) {
    for (way, samples) in &server.ways {
        let mut ms: Vec<f64> = Metric::Total.of_all(samples).iter().map(|ns| *ns as f64 / 1e6).collect();
        ms.sort_by(f64::total_cmp);
        let Some((mean, half)) = stats::mean(&ms) else { continue };
        let n = ms.len() as u64;
        let figure = Figure::new(way, &mean_measure(&server.name), mean, "ms").between(mean - half, mean + half);
        part.push(figure.samples(n).at(loss));
        part.figures.extend(Figure::of_rounds(way, &median_measure(&server.name), &ms, "ms").map(|f| f.at(loss)));
        // At least ten samples lie beyond it.
        if ms.len() >= 200 {
            let slow = ms[ms.len() * 95 / 100 - 1];
            part.push(Figure::new(way, &slow_measure(&server.name), slow, "ms").samples(n).at(loss));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_lab_probe::timing::Timing;

    #[test]
    fn the_slowest_are_told_only_of_many() {
        let with = |n: usize| {
            let mut part = Part::new("loss", "", "");
            let samples = vec![Timing::default(); n];
            keep(&mut part, &Of { name: "nginx".into(), ways: vec![("TLS 1.3 full", samples)] }, 1.0);
            part
        };
        let measures = |part: &Part| part.figures.iter().map(|f| f.measure.clone()).collect::<Vec<_>>();
        assert_eq!(measures(&with(200)).len(), 3);
        assert_eq!(measures(&with(199)), [mean_measure("nginx"), median_measure("nginx")]);
        assert!(with(1).figures.is_empty());
    }
}
