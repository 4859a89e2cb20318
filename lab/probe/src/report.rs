//! What a probe found, as one value: printed by [`crate::text`], or as it is with `--json`.

use serde::Serialize;

use crate::advice::Advice;
use crate::comparison::Pair;
use crate::inspect::Inspection;
use crate::run::{Measured, Measurement};
use crate::threshold::Verdict;
use crate::timing::Timing;

/// A probe's result.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Always `probe`.
    pub command: &'static str,
    /// What was probed; `None` for rows read from a file.
    pub url: Option<String>,
    /// The file that rows were read from.
    pub file: Option<String>,
    /// Measured attempts of each variant.
    pub attempts: usize,
    /// Rounds thrown away before them.
    pub warmup_rounds: usize,
    /// The seed of the bootstrap.
    pub seed: u64,
    /// The unit of every duration below.
    pub unit: &'static str,
    /// The variants, in order.
    pub variants: Vec<Measured>,
    /// Groups of rows read from a file.
    pub groups: Vec<Group>,
    /// Each of the others against the first.
    pub pairs: Vec<Pair>,
    /// What was seen of the server.
    pub inspection: Option<Inspection>,
    /// What ought to be tightened.
    pub advice: Vec<Advice>,
    /// Thresholds and whether they held.
    pub thresholds: Vec<Verdict>,
}

/// One group of a file's rows.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// Its name in the file's first column.
    pub name: String,
    /// Each phase, the total, and curl's cumulative columns, in nanoseconds.
    pub metrics: Vec<crate::comparison::MetricSummary>,
    /// The rows, in nanoseconds.
    pub samples: Vec<Timing>,
}

impl Report {
    /// An empty report with the seed that its statistics use.
    pub fn new(seed: u64) -> Self {
        Self {
            command: "probe",
            url: None,
            file: None,
            attempts: 0,
            warmup_rounds: 0,
            seed,
            unit: "ns",
            variants: Vec::new(),
            groups: Vec::new(),
            pairs: Vec::new(),
            inspection: None,
            advice: Vec::new(),
            thresholds: Vec::new(),
        }
    }

    /// Takes a measurement in.
    pub fn add(&mut self, measurement: Measurement) {
        self.variants = measurement.variants;
        self.pairs = measurement.pairs;
    }

    /// A report over rows that were measured elsewhere.
    pub fn of_rows(file: &str, series: Vec<crate::comparison::Series>, seed: u64) -> Self {
        let pairs = crate::comparison::compare(&series, seed);
        let groups = series
            .into_iter()
            .map(|s| Group { metrics: crate::comparison::summarise(&s.samples), name: s.name, samples: s.samples })
            .collect();
        Self { file: Some(file.to_owned()), groups, pairs, ..Self::new(seed) }
    }
}
