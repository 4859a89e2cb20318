//! A run's answer to the main claim of a study: a row of the table on the report's first screen.

use serde::{Deserialize, Serialize};

use crate::model::Figure;

/// With fewer rounds or samples than this, an interval is only a range, and decides nothing.
pub const ENOUGH: u64 = 6;

/// Whether the interval of a figure comes from enough rounds, or from enough samples if it is not the median of rounds.
fn enough(figure: &Figure) -> bool {
    let n = if figure.rounds.is_empty() { figure.n } else { figure.rounds.len() as u64 };
    n >= ENOUGH
}

/// How the measured figures relate to a study's claim. A claim has a direction ("lower", "fails first"): sizes depend on the
/// machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The same direction, and the intervals do not overlap.
    Confirmed,
    /// The opposite direction, and the intervals do not overlap.
    Contradicted,
    /// Measured, but the intervals overlap, or there are fewer than [`ENOUGH`] rounds or samples.
    Undecided,
    /// This run has no such figures.
    NotMeasured,
    /// This machine cannot measure it.
    NotMeasurable,
}

impl Outcome {
    /// All, in the order of a summary.
    const ALL: [Self; 5] =
        [Self::Confirmed, Self::Contradicted, Self::Undecided, Self::NotMeasured, Self::NotMeasurable];

    /// For the claim that `lower` is lower than `higher`.
    pub fn lower(lower: &Figure, higher: &Figure) -> Self {
        if enough(lower) && enough(higher) { Self::apart(lower, higher) } else { Self::Undecided }
    }

    /// For the claim that `lower` is lower than `higher`, of figures whose intervals do not come from samples.
    pub fn apart(lower: &Figure, higher: &Figure) -> Self {
        let (a, b) = (lower.interval(), higher.interval());
        if a.1 < b.0 {
            Self::Confirmed
        } else if a.0 > b.1 {
            Self::Contradicted
        } else {
            Self::Undecided
        }
    }

    /// For the claim that a ratio is above 1.
    pub fn above_one(ratio: &Figure) -> Self {
        let (low, high) = ratio.interval();
        if enough(ratio) && low > 1.0 {
            Self::Confirmed
        } else if enough(ratio) && high < 1.0 {
            Self::Contradicted
        } else {
            Self::Undecided
        }
    }

    /// Several outcomes of the same claim as one: confirmed only if all are.
    pub fn of_all(all: impl IntoIterator<Item = Self>) -> Self {
        let mut whole = None;
        for one in all {
            whole = Some(match (whole, one) {
                (None, one) => one,
                (Some(Self::Contradicted), _) | (_, Self::Contradicted) => Self::Contradicted,
                (Some(before), one) if before == one => one,
                _ => Self::Undecided,
            });
        }
        whole.unwrap_or(Self::NotMeasured)
    }

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Contradicted => "contradicted",
            Self::Undecided => "undecided",
            Self::NotMeasured => "not measured",
            Self::NotMeasurable => "not measurable here",
        }
    }

    /// The class of its cell.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Contradicted => "contradicted",
            Self::Undecided | Self::NotMeasured | Self::NotMeasurable => "open",
        }
    }
}

/// A row: the study's figure beside ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The study, in a few words.
    pub study: String,
    /// The finding of this run, in one sentence.
    pub finding: String,
    /// The study's figure.
    pub published: String,
    /// The figure of this run; empty if there is none.
    pub measured: String,
    /// How they relate.
    pub outcome: Outcome,
}

impl Finding {
    /// A row of a run that did not measure it.
    pub fn new(study: &str, published: impl Into<String>) -> Self {
        Self {
            study: study.to_owned(),
            finding: "This run did not measure it.".to_owned(),
            published: published.into(),
            measured: String::new(),
            outcome: Outcome::NotMeasured,
        }
    }

    /// The same row with figures.
    pub fn found(self, finding: impl Into<String>, measured: impl Into<String>, outcome: Outcome) -> Self {
        Self { finding: finding.into(), measured: measured.into(), outcome, ..self }
    }
}

/// How many rows have which outcome, in one sentence; empty without rows.
pub fn summary<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> String {
    let outcomes: Vec<Outcome> = findings.into_iter().map(|f| f.outcome).collect();
    let count = |outcome: Outcome| outcomes.iter().filter(|o| **o == outcome).count();
    let told: Vec<String> = Outcome::ALL
        .into_iter()
        .filter(|outcome| count(*outcome) > 0)
        .map(|outcome| format!("{} {}", count(outcome), outcome.words()))
        .collect();
    if told.is_empty() { String::new() } else { format!("Main claims of the studies: {}.", told.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(low: f64, high: f64, n: u64) -> Figure {
        Figure::new("a", "m", (low + high) / 2.0, "ms").between(low, high).samples(n)
    }

    #[test]
    fn only_intervals_that_do_not_overlap_decide() {
        let (low, high) = (figure(1.0, 2.0, 6), figure(3.0, 4.0, 6));
        assert_eq!(Outcome::lower(&low, &high), Outcome::Confirmed);
        assert_eq!(Outcome::lower(&high, &low), Outcome::Contradicted);
        assert_eq!(Outcome::lower(&low, &figure(1.5, 5.0, 6)), Outcome::Undecided);
        assert_eq!(Outcome::lower(&low, &figure(3.0, 4.0, 5)), Outcome::Undecided, "too few samples");
        // Many connections in few rounds: the interval is that of the rounds.
        let rounds = |n: usize| Figure::of_rounds("a", "m", &vec![3.5; n], "ms").unwrap().samples(90);
        assert_eq!(Outcome::lower(&low, &rounds(3)), Outcome::Undecided);
        assert_eq!(Outcome::lower(&low, &rounds(6)), Outcome::Confirmed);
        assert_eq!(Outcome::apart(&low, &figure(3.0, 4.0, 0)), Outcome::Confirmed);
        // Without an interval, the figure itself counts.
        assert_eq!(Outcome::apart(&Figure::new("a", "m", 1.0, "ms"), &high), Outcome::Confirmed);
        assert_eq!(Outcome::apart(&Figure::new("a", "m", 3.0, "ms"), &high), Outcome::Undecided);
    }

    #[test]
    fn a_ratio_must_be_above_one_with_its_whole_interval() {
        assert_eq!(Outcome::above_one(&figure(1.1, 3.0, 6)), Outcome::Confirmed);
        assert_eq!(Outcome::above_one(&figure(0.9, 3.0, 6)), Outcome::Undecided);
        assert_eq!(Outcome::above_one(&figure(0.5, 0.9, 6)), Outcome::Contradicted);
        assert_eq!(Outcome::above_one(&figure(1.1, 3.0, 2)), Outcome::Undecided);
    }

    #[test]
    fn several_outcomes_become_the_worst() {
        use Outcome::{Confirmed, Contradicted, NotMeasured, Undecided};
        assert_eq!(Outcome::of_all([Confirmed, Confirmed]), Confirmed);
        assert_eq!(Outcome::of_all([Confirmed, Undecided]), Undecided);
        assert_eq!(Outcome::of_all([Undecided, Confirmed, Contradicted]), Contradicted);
        assert_eq!(Outcome::of_all([Contradicted, Confirmed]), Contradicted);
        assert_eq!(Outcome::of_all([]), NotMeasured);
    }

    #[test]
    fn a_summary_counts_in_a_fixed_order() {
        let row = Finding::new("a", "1 ms");
        let confirmed = row.clone().found("It is.", "2 ms", Outcome::Confirmed);
        assert_eq!(summary([&row, &confirmed, &row]), "Main claims of the studies: 1 confirmed, 2 not measured.");
        assert_eq!(summary([]), "");
    }
}
