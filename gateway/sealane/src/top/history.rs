//! What the gateway remembers of the last five minutes, as lines of a terminal.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;

/// From low to high.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Characters of a line.
const LINE: usize = 20;

/// The answer of `GET /v1/history`. Unknown fields are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    since: u64,
    most: usize,
    at: Vec<u64>,
    series: BTreeMap<String, Vec<Option<f64>>>,
}

/// The values of the last minutes, by their names.
#[derive(Debug, Default)]
pub struct Plots {
    newest: u64,
    most: usize,
    series: BTreeMap<String, Vec<Option<f64>>>,
}

impl Plots {
    /// What is asked for: what is newer than what is known.
    pub fn question(&self) -> String {
        format!("/v1/history?range=5m&since={}", self.newest)
    }

    /// Takes the answer.
    pub fn add(&mut self, text: &str) -> Result<()> {
        let answer: Answer = serde_json::from_str(text).context("the response is not a gateway's history")?;
        // It was started anew, or its clock was set back: all that it has is new.
        if answer.since != self.newest {
            self.series.clear();
        }
        self.newest = answer.at.last().copied().unwrap_or(answer.since);
        self.most = answer.most.max(1);
        for (name, values) in answer.series {
            let known = self.series.entry(name).or_default();
            known.extend(values);
            known.drain(..known.len().saturating_sub(self.most));
        }
        Ok(())
    }

    /// The values of a series, the oldest first; `None`: there was none.
    pub fn points(&self, name: &str) -> &[Option<f64>] {
        self.series.get(name).map_or(&[], Vec::as_slice)
    }

    /// The newest value of a series.
    pub fn last(&self, name: &str) -> Option<f64> {
        self.points(name).iter().rev().flatten().next().copied()
    }

    /// A series as a line of bars, each of which is a mean. The last one is now; empty without values.
    pub fn line(&self, name: &str) -> String {
        let points = self.points(name);
        let each = self.most.div_ceil(LINE).max(1);
        let mean = |points: &[Option<f64>]| {
            let known: Vec<f64> = points.iter().flatten().copied().collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        let means: Vec<Option<f64>> = points.rchunks(each).map(mean).collect();
        let top = means.iter().flatten().copied().fold(0.0, f64::max);
        let bar = |value: &Option<f64>| match value {
            Some(value) if top > 0.0 => BARS[((value / top * 7.0).round() as usize).min(7)],
            Some(_) => BARS[0],
            None => ' ',
        };
        means.iter().rev().map(bar).collect::<String>().trim_start().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(since: u64, at: &[u64], values: &[Option<f64>]) -> String {
        serde_json::json!({ "since": since, "most": 300, "at": at, "series": { "x": values }, "more": 1 }).to_string()
    }

    #[test]
    fn values_are_added_until_the_gateway_begins_anew() {
        let mut plots = Plots::default();
        plots.add(&answer(0, &[5, 6], &[Some(1.0), None])).unwrap();
        assert_eq!(plots.question(), "/v1/history?range=5m&since=6");
        plots.add(&answer(6, &[7], &[Some(3.0)])).unwrap();
        assert_eq!((plots.points("x"), plots.last("x")), (&[Some(1.0), None, Some(3.0)][..], Some(3.0)));
        plots.add(&answer(7, &[], &[])).unwrap();
        assert_eq!(plots.points("x").len(), 3);
        plots.add(&answer(0, &[2], &[Some(9.0)])).unwrap();
        assert_eq!(plots.points("x"), [Some(9.0)]);
        assert!(plots.add("x").is_err() && plots.points("y").is_empty());
        for round in 0..1000u64 {
            plots.add(&answer(plots.newest, &[round + 10], &[Some(1.0)])).unwrap();
        }
        assert_eq!(plots.points("x").len(), 300);
    }

    #[test]
    fn a_line_has_the_mean_of_each_quarter_minute() {
        let mut plots = Plots::default();
        let values: Vec<Option<f64>> =
            (0..300).map(|n| (n >= 150).then_some(if n < 225 { 1.0 } else { 8.0 })).collect();
        plots.add(&answer(0, &[1], &values)).unwrap();
        assert_eq!(plots.line("x"), "▂▂▂▂▂█████");
        assert_eq!(plots.line("nothing"), "");
        plots.add(&answer(0, &[1], &[])).unwrap();
        assert_eq!(plots.line("x"), "");
    }
}
