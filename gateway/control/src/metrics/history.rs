//! What the gateway has measured in the last five minutes, the last hour and the last day, for the status page.
//!
//! A range is a ring of points of equal length: what is measured each second goes to the shortest, whose points become those of the
//! longer ones. All rings together hold some 2,100 points of 200 bytes, however long the gateway runs.

use crate::metrics::cost::OPERATIONS;
use sealane_lane::histogram::{BOUNDS, Distribution};
use serde_json::{Value, json};
use std::collections::VecDeque;

/// What is drawn as a line, in the order of [`Point::values`]. The costs of [`OPERATIONS`] follow, in microseconds.
pub const SERIES: [&str; 12] = [
    "requests_per_second",
    "errors_4xx_per_second",
    "errors_5xx_per_second",
    "full_handshakes_per_second",
    "resumed_handshakes_per_second",
    "cpu_cores",
    "cpu_microseconds_per_request",
    "connections_open",
    "bytes_sent_per_second",
    "refused_per_second",
    "duration_p50_seconds",
    "duration_p99_seconds",
];
/// All values of a point.
pub const VALUES: usize = SERIES.len() + OPERATIONS.len();

/// Each fourth bound of the histograms is one of the heatmap: 2.5 times as long as the one before it.
const HEAT_EVERY: usize = 4;
/// From 10 µs to 63 s, and what took longer.
pub const HEAT: usize = (BOUNDS.len() - 10) / HEAT_EVERY + 2;

/// The ranges: their names, the seconds of a point, and how many points there are.
const RANGES: [(&str, u64, usize); 3] = [("5m", 1, 300), ("1h", 10, 360), ("24h", 60, 1440)];

/// A moment.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Its end, in seconds since 1970.
    pub at: u64,
    /// The values; NaN where there is none.
    pub values: [f32; VALUES],
    /// How many requests took so long.
    pub heat: [u32; HEAT],
}

/// The upper bounds of the heatmap's rows in microseconds, but for the last row, which has none.
fn heat_bounds() -> impl Iterator<Item = u64> {
    BOUNDS.iter().copied().step_by(HEAT_EVERY).take(HEAT - 1)
}

/// The column of the heatmap for a distribution.
pub fn heat_of(durations: &Distribution) -> [u32; HEAT] {
    let mut heat = [0; HEAT];
    let mut below = 0;
    for (row, bound) in heat.iter_mut().zip(heat_bounds()) {
        let within = durations.at_most(bound);
        *row = u32::try_from(within - below).unwrap_or(u32::MAX);
        below = within;
    }
    heat[HEAT - 1] = u32::try_from(durations.count().saturating_sub(below)).unwrap_or(u32::MAX);
    heat
}

/// Points of one length.
#[derive(Debug)]
struct Ring {
    step: u64,
    most: usize,
    points: VecDeque<Point>,
    /// What becomes the next point.
    sums: [f64; VALUES],
    counts: [u32; VALUES],
    heat: [u32; HEAT],
    /// The number of the step that it is about: `at / step`.
    of: u64,
}

impl Ring {
    fn new(step: u64, most: usize) -> Self {
        Self { step, most, points: VecDeque::new(), sums: [0.0; VALUES], counts: [0; VALUES], heat: [0; HEAT], of: 0 }
    }

    fn add(&mut self, point: &Point) {
        let of = point.at / self.step;
        if of < self.of {
            // The clock was set back. Points are in the order of their times: those that are still to come would not be.
            *self = Self::new(self.step, self.most);
        }
        if of != self.of {
            self.close();
            self.of = of;
        }
        for (i, value) in point.values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            self.sums[i] += f64::from(*value);
            self.counts[i] += 1;
        }
        self.heat.iter_mut().zip(&point.heat).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
    }

    /// What was collected is a point.
    fn close(&mut self) {
        let values: [f32; VALUES] = std::array::from_fn(|i| match self.counts[i] {
            0 => f32::NAN,
            n => (self.sums[i] / f64::from(n)) as f32,
        });
        if self.of > 0 {
            if self.points.len() == self.most {
                self.points.pop_front();
            }
            self.points.push_back(Point { at: (self.of + 1) * self.step, values, heat: self.heat });
        }
        (self.sums, self.counts, self.heat) = ([0.0; VALUES], [0; VALUES], [0; HEAT]);
    }
}

/// The points of all ranges.
#[derive(Debug)]
pub struct History([Ring; RANGES.len()]);

impl Default for History {
    fn default() -> Self {
        Self(RANGES.map(|(_, step, most)| Ring::new(step, most)))
    }
}

impl History {
    /// Adds what was measured in the last second.
    pub fn add(&mut self, point: &Point) {
        self.0.iter_mut().for_each(|ring| ring.add(point));
    }

    /// The points of a range that are newer than `since`, as JSON; `None`: there is no such range.
    pub fn json(&self, range: &str, since: u64) -> Option<Value> {
        let index = RANGES.iter().position(|(name, ..)| *name == range)?;
        let ring = &self.0[index];
        // Who knows newer ones than there are knows those from before the clock was set back: all are new.
        let is_known = ring.points.back().is_some_and(|newest| since <= newest.at);
        let since = if is_known { since } else { 0 };
        let first = ring.points.partition_point(|point| point.at <= since);
        let points: Vec<&Point> = ring.points.iter().skip(first).collect();
        let names = SERIES.iter().map(|name| (*name).to_owned());
        let names = names.chain(OPERATIONS.iter().map(|name| format!("cpu_microseconds_{name}")));
        let series: serde_json::Map<String, Value> = names
            .enumerate()
            .map(|(i, name)| (name, points.iter().map(|point| short(point.values[i])).collect::<Value>()))
            .collect();
        let bounds: Vec<f64> = heat_bounds().map(|micros| micros as f64 / 1e6).collect();
        Some(json!({
            "range": range,
            "step": ring.step,
            "since": since,
            "most": ring.most,
            "at": points.iter().map(|point| point.at).collect::<Vec<u64>>(),
            "series": series,
            "heat": { "bounds": bounds, "counts": points.iter().map(|point| point.heat.to_vec()).collect::<Vec<_>>() },
        }))
    }
}

/// A value with four digits that count: what a chart can show. None where there is none.
fn short(value: f32) -> Value {
    if !value.is_finite() {
        return Value::Null;
    }
    let value = f64::from(value);
    if value == 0.0 {
        return json!(0);
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    let rounded = (value * scale).round() / scale;
    if rounded.is_finite() { json!(rounded) } else { json!(value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_lane::histogram::Histogram;

    fn point(at: u64, value: f32, count: u32) -> Point {
        let mut point = Point { at, values: [f32::NAN; VALUES], heat: [0; HEAT] };
        point.values[0] = value;
        point.heat[3] = count;
        point
    }

    #[test]
    fn rings_are_bounded_and_longer_ones_have_means() {
        let mut history = History::default();
        // Two days, a second each: values rise by one in a minute.
        const START: u64 = 1_800_000_000;
        for second in 0..2 * 86_400 {
            history.add(&point(START + second, (second / 60) as f32, 2));
        }
        for (range, step, most) in RANGES {
            let json = history.json(range, 0).unwrap();
            let at = json["at"].as_array().unwrap();
            assert_eq!(at.len(), most, "{range}");
            assert!(at.windows(2).all(|pair| pair[1].as_u64() == Some(pair[0].as_u64().unwrap() + step)), "{range}");
            assert_eq!(json["heat"]["counts"][0][3], 2 * step);
            assert_eq!(json["series"]["requests_per_second"].as_array().unwrap().len(), most);
            assert_eq!(json["series"]["cpu_cores"][0], Value::Null, "nothing was measured");
            let newest = at[most - 1].as_u64().unwrap();
            assert_eq!(history.json(range, newest - step).unwrap()["at"].as_array().unwrap().len(), 1);
        }
        let day = history.json("24h", 0).unwrap();
        assert_eq!(day["series"]["requests_per_second"][0], 1439.0, "a mean of one minute");
        assert!(history.json("1y", 0).is_none());
        let bytes = RANGES.iter().map(|(.., most)| most * size_of::<Point>()).sum::<usize>();
        assert!(bytes < 1 << 20, "{bytes}");
    }

    #[test]
    fn a_clock_that_is_set_back_breaks_nothing() {
        let mut history = History::default();
        for at in [5000, 5001, 10, 11, 7000] {
            history.add(&point(at, 1.0, 1));
        }
        // What was measured before is forgotten.
        assert_eq!(history.json("5m", 0).unwrap()["at"], json!([11, 12]));
        // Who has the points from before gets all, and learns that they are all.
        let all = history.json("5m", 5002).unwrap();
        assert_eq!((&all["at"], &all["since"]), (&json!([11, 12]), &json!(0)));
        let new = history.json("5m", 11).unwrap();
        assert_eq!((&new["at"], &new["since"]), (&json!([12]), &json!(11)));
        assert_eq!(history.json("5m", 12).unwrap()["at"], json!([]));
    }

    #[test]
    fn the_heatmap_has_each_duration_once() {
        let histogram = Histogram::default();
        let micros = [1, 10, 11, 25, 900, 40_000, 62_000_000, 63_000_001, 5_000_000_000];
        micros.iter().for_each(|micros| histogram.record(*micros));
        let mut durations = Distribution::default();
        durations.add(&histogram);
        let heat = heat_of(&durations);
        assert_eq!(heat.iter().sum::<u32>(), micros.len() as u32);
        assert_eq!((heat[0], heat[1], heat[HEAT - 1]), (2, 2, 2));
        let bounds: Vec<u64> = heat_bounds().collect();
        assert_eq!((bounds.len(), bounds[0], bounds[1], bounds[HEAT - 2]), (HEAT - 1, 10, 25, 63_000_000));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(short(f32::NAN), Value::Null);
        assert_eq!([short(0.0), short(1234.567), short(0.000_123_456)], [json!(0), json!(1235.0), json!(0.0001235)]);
    }
}
