//! Rounds: everybody in turn, there and back, and again where somebody else disturbed.

use std::collections::BTreeMap;

use sealane_lab_report::{Part, Round, Void, stats};

use crate::foreign::{Watch, await_quiet};
use crate::journal::{Slot, now};
use crate::options::Options;

/// What one round of one subject gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Numbers by name.
    pub values: BTreeMap<String, f64>,
    /// Why the round says nothing; empty when it holds.
    pub void: Vec<String>,
}

impl Sample {
    /// A sample of one number.
    pub fn of(name: &str, value: f64) -> Self {
        Self::default().with(name, value)
    }

    /// The numbers, for the progress.
    pub fn told(&self) -> String {
        self.values.iter().map(|(name, value)| format!("{name} {value:.2}")).collect::<Vec<_>>().join("  ")
    }

    /// With one more number.
    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.values.insert(name.to_owned(), value);
        self
    }

    /// Void for this reason.
    pub fn void(mut self, why: impl Into<String>) -> Self {
        self.void.push(why.into());
        self
    }
}

/// All rounds that held, by subject.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rounds {
    held: Vec<(String, usize, BTreeMap<String, f64>)>,
}

impl Rounds {
    /// A subject's values in the order of rounds.
    pub fn values(&self, subject: &str, name: &str) -> Vec<f64> {
        self.numbered(subject, name).into_iter().map(|(_, v)| v).collect()
    }

    /// The median of a subject's values.
    pub fn median(&self, subject: &str, name: &str) -> Option<f64> {
        stats::median(&self.values(subject, name))
    }

    /// Ratios of one subject's values to another's, paired round by round.
    pub fn ratios(&self, subject: &str, other: &str, name: &str) -> Vec<f64> {
        stats::paired_ratios(&self.numbered(subject, name), &self.numbered(other, name))
    }

    fn numbered(&self, subject: &str, name: &str) -> Vec<(usize, f64)> {
        let own = self.held.iter().filter(|(s, ..)| s == subject);
        own.filter_map(|(_, round, values)| values.get(name).map(|v| (*round, *v))).collect()
    }

    /// Notes a round that held.
    pub fn push(&mut self, subject: &str, round: usize, sample: Sample) {
        self.held.push((subject.to_owned(), round, sample.values));
    }
}

/// The order of a round: forward, then backward, each pair of rounds beginning with another subject, so that drift and
/// order fall on all alike.
pub fn order(subjects: usize, round: usize) -> Vec<usize> {
    if subjects == 0 {
        return Vec::new();
    }
    let turn = (round / 2) % subjects;
    let mut order: Vec<usize> = (0..subjects).map(|i| (i + turn) % subjects).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// Whether a measurement depends on having the CPUs for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quiet {
    /// Times and rates: void when others used too much.
    Wanted,
    /// Memory, counts: other programs' load does not matter.
    Indifferent,
}

/// What a resumed run takes from the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// Whole parts: rounds of a part that was not finished are measured again.
    Part,
    /// Single rounds: a measurement leaves nothing behind but its sample, and no sample depends on what this run measured before.
    Round,
}

/// Takes one sample: waits for a quiet moment, measures, judges by what others used meanwhile, and tries again up to
/// the options' number of tries. Every void try goes to the part with its reason. `None` when none held.
pub fn take(
    options: &Options,
    part: &mut Part,
    subject: &str,
    what: &str,
    quiet: Quiet,
    measure: &mut dyn FnMut() -> anyhow::Result<Sample>,
) -> anyhow::Result<Option<Sample>> {
    take_in(options, None, part, subject, what, quiet, measure)
}

/// As [`take`]. With a slot, attempts that an earlier run made come from the journal, and new ones are noted there. Those of
/// the earlier run are not among the tries: what it gave up is tried again.
pub fn take_in(
    options: &Options,
    slot: Option<&Slot>,
    part: &mut Part,
    subject: &str,
    what: &str,
    quiet: Quiet,
    measure: &mut dyn FnMut() -> anyhow::Result<Sample>,
) -> anyhow::Result<Option<Sample>> {
    let mut left = options.tries.max(1);
    while left > 0 {
        if options.cancelled() {
            return Err(crate::Stopped.into());
        }
        let earlier = slot.and_then(Slot::earlier).and_then(|taken| Some((taken.row().pop()?.1, taken.at)));
        let (sample, at) = match earlier {
            Some(taken) => taken,
            None => {
                left -= 1;
                let sample = measured(options, quiet, measure)?;
                let at = now();
                if let Some(slot) = slot {
                    slot.note([(subject, &sample)].into_iter(), at)?;
                }
                (sample, at)
            }
        };
        note(part, subject, what, &sample, at);
        if sample.void.is_empty() {
            return Ok(Some(sample));
        }
        part.voids.push(Void { subject: subject.to_owned(), what: what.to_owned(), why: sample.void.join("; ") });
    }
    Ok(None)
}

/// Measures once, in a quiet moment where one is wanted, and judges by what others used meanwhile.
fn measured(
    options: &Options,
    quiet: Quiet,
    measure: &mut dyn FnMut() -> anyhow::Result<Sample>,
) -> anyhow::Result<Sample> {
    let watch = (quiet == Quiet::Wanted).then(|| {
        await_quiet(options.max_foreign, options.max_wait, &|| options.cancelled());
        Watch::start()
    });
    let mut sample = measure()?;
    if let Some(foreign) = watch.map(|w| w.foreign()).filter(|f| *f > options.max_foreign) {
        sample.void.push(format!("other programs used {foreign:.2} CPUs (at most {:.2})", options.max_foreign));
    }
    if options.cancelled() {
        return Err(crate::Stopped.into());
    }
    Ok(sample)
}

/// Adds a sample that ended at this time (in seconds since 1970) to the part's raw data.
pub fn note(part: &mut Part, subject: &str, what: &str, sample: &Sample, at: u64) {
    let finite = sample.values.iter().filter(|(_, value)| value.is_finite());
    part.rounds.push(Round {
        subject: subject.to_owned(),
        what: what.to_owned(),
        values: finite.map(|(name, value)| (name.clone(), *value)).collect(),
        void: sample.void.clone(),
        at: Some(at),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options { max_foreign: 1e9, max_wait: std::time::Duration::ZERO, tries: 3, quiet: true, ..Options::default() }
    }

    #[test]
    fn rounds_go_there_and_back_and_begin_with_another() {
        assert_eq!(order(3, 0), [0, 1, 2]);
        assert_eq!(order(3, 1), [2, 1, 0]);
        assert_eq!(order(3, 2), [1, 2, 0]);
        assert_eq!(order(3, 3), [0, 2, 1]);
        assert_eq!(order(1, 7), [0]);
        assert!(order(0, 1).is_empty());
    }

    #[test]
    fn a_void_round_is_repeated_named_and_kept_out() {
        let mut part = Part::new("p", "P", "");
        let mut n = 0.0;
        let sample = take(&options(), &mut part, "nginx", "round 1", Quiet::Indifferent, &mut || {
            n += 1.0;
            let s = Sample::of("v", n);
            Ok(if n < 3.0 { s.void("two operations failed") } else { s })
        });
        assert_eq!(sample.unwrap().unwrap().values["v"], 3.0);
        assert_eq!(part.voids.len(), 2);
        assert!(part.voids.iter().all(|v| v.why == "two operations failed" && v.subject == "nginx"));
        let raw: Vec<(f64, bool)> = part.rounds.iter().map(|r| (r.values["v"], r.void.is_empty())).collect();
        assert_eq!(raw, [(1.0, false), (2.0, false), (3.0, true)], "the raw data have every attempt");
    }

    #[test]
    fn what_stays_void_gives_no_sample() {
        let mut part = Part::new("p", "P", "");
        let mut always = || Ok(Sample::of("v", 1.0).void("no"));
        assert_eq!(take(&options(), &mut part, "x", "r", Quiet::Indifferent, &mut always).unwrap(), None);
        assert_eq!(part.voids.len(), 3);
    }

    #[test]
    fn others_at_work_void_a_round() {
        // Nothing is quiet enough for a bound below nothing.
        let options = Options { max_foreign: -1.0, tries: 1, ..options() };
        let mut part = Part::new("p", "P", "");
        let mut fine = || Ok(Sample::of("v", 1.0));
        assert_eq!(take(&options, &mut part, "x", "r", Quiet::Wanted, &mut fine).unwrap(), None);
        assert!(part.voids[0].why.starts_with("other programs used"), "{}", part.voids[0].why);
        assert!(take(&options, &mut part, "x", "r", Quiet::Indifferent, &mut fine).unwrap().is_some());
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let mut rounds = Rounds::default();
        rounds.push("a", 0, Sample::of("v", 2.0));
        rounds.push("b", 0, Sample::of("v", 4.0));
        rounds.push("a", 1, Sample::of("v", 100.0));
        rounds.push("b", 2, Sample::of("v", 1.0));
        assert_eq!(rounds.ratios("a", "b", "v"), [0.5]);
        assert_eq!(rounds.values("a", "v"), [2.0, 100.0]);
        assert_eq!(rounds.median("c", "v"), None);
    }

    #[test]
    fn a_run_that_is_to_end_stops_before_the_next_round() {
        let options = options();
        options.cancel.store(true, std::sync::atomic::Ordering::Relaxed);
        let mut part = Part::new("p", "P", "");
        let mut never = || -> anyhow::Result<Sample> { panic!("measured") };
        let error = take(&options, &mut part, "x", "r", Quiet::Indifferent, &mut never).unwrap_err();
        assert!(error.is::<crate::Stopped>());
    }
}
