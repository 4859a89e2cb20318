//! Two reports of the same experiment side by side: the ratio of each figure with its interval, and the conditions that
//! changed.

use std::fmt::Write as _;

use serde::Serialize;

use crate::model::{Fact, Figure, Page, Report, Source};
use crate::number;
use crate::resample::{self, MANY, RESAMPLES, SEED};

/// An interval needs at least this many rounds on each side: with fewer, the rounds' own spread is not known.
pub const ROUNDS: usize = 6;
/// The probability with which all intervals together contain the true ratios.
const CONFIDENCE: f64 = 0.95;
/// So many resamples for each interval of a comparison, 2 / (1 − [`CONFIDENCE`]): with fewer, no resample would lie beyond the ends of an
/// interval whose confidence is that high.
const FOR_EACH: usize = 40;

/// Two reports, compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// When the first run began, RFC 3339.
    pub a: String,
    /// When the second run began.
    pub b: String,
    /// A ratio may differ from 1 by so much.
    pub tolerance: f64,
    /// The confidence of each interval. It is higher than 0.95, so that all intervals together have 0.95.
    pub confidence: f64,
    /// What else changed between the runs, for all experiments.
    pub conditions: Vec<Change>,
    /// The experiments that both reports have.
    pub pages: Vec<PageDiff>,
}

/// A condition that is not the same in both runs; empty where a run does not have it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The name of the condition.
    pub what: String,
    /// Its value in the first run.
    pub a: String,
    /// Its value in the second run.
    pub b: String,
}

/// One experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PageDiff {
    /// Its name.
    pub name: String,
    /// Settings and subjects that changed.
    pub conditions: Vec<Change>,
    /// The measured figures that both runs have.
    pub figures: Vec<Ratio>,
    /// Measured figures that only the first run has.
    pub only_a: usize,
    /// Measured figures that only the second run has.
    pub only_b: usize,
}

/// What the rounds say about a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// The whole interval is further from 1 than the tolerance.
    Differs,
    /// The rounds do not show a difference; there may still be one, smaller than they can show.
    NoDifferenceShown,
    /// No interval: too few rounds, or the figure is no median of rounds.
    NoInterval,
}

/// A figure of both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The part of the experiment.
    pub part: String,
    /// What was measured.
    pub measure: String,
    /// Whose figure it is.
    pub subject: String,
    /// The place on the x axis.
    pub x: Option<f64>,
    /// The unit of both values.
    pub unit: String,
    /// The value in the first run.
    pub a: f64,
    /// The value in the second run.
    pub b: f64,
    /// `b` divided by `a`; `None` if `a` is 0.
    pub ratio: Option<f64>,
    /// The lower end of the interval.
    pub low: Option<f64>,
    /// The upper end.
    pub high: Option<f64>,
    /// The rounds of each run.
    pub rounds: [usize; 2],
    /// What follows.
    pub finding: Finding,
}

impl Diff {
    /// Compares two reports; the error says why they cannot be compared.
    pub fn of(a: &Report, b: &Report, tolerance: f64) -> Result<Self, String> {
        let names = |r: &Report| r.pages.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
        let both: Vec<(&Page, &Page)> =
            a.pages.iter().filter_map(|p| Some((p, b.pages.iter().find(|other| other.name == p.name)?))).collect();
        if both.is_empty() {
            return Err(format!(
                "the reports are of different experiments: the first of {}, the second of {}",
                names(a),
                names(b)
            ));
        }
        let pairs: Vec<Vec<(&str, &Figure, &Figure)>> = both.iter().map(|(a, b)| pairs(a, b)).collect();
        if pairs.iter().all(Vec::is_empty) {
            return Err("the reports have no measured figure in common".to_owned());
        }
        // Bonferroni: of many intervals with 0.95 each, some would miss by chance.
        let intervals = pairs.iter().flatten().filter(|(_, a, b)| enough(a, b)).count();
        let confidence = 1.0 - (1.0 - CONFIDENCE) / intervals.max(1) as f64;
        let resamples = RESAMPLES.max(FOR_EACH * intervals);
        let pages = both.iter().zip(&pairs).map(|((a, b), pairs)| PageDiff {
            name: a.name.clone(),
            conditions: of_page(a, b),
            figures: pairs.iter().map(|(part, a, b)| ratio(part, a, b, tolerance, confidence, resamples)).collect(),
            only_a: measured(a).count().saturating_sub(pairs.len()),
            only_b: measured(b).count().saturating_sub(pairs.len()),
        });
        Ok(Self {
            a: a.started.clone(),
            b: b.started.clone(),
            tolerance,
            confidence,
            conditions: of_report(a, b),
            pages: pages.collect(),
        })
    }

    /// How many figures have this finding.
    pub fn count(&self, finding: Finding) -> usize {
        self.pages.iter().flat_map(|p| &p.figures).filter(|f| f.finding == finding).count()
    }

    /// The comparison in lines of text.
    pub fn text(&self) -> String {
        let mut s = String::new();
        let _ = writeln!(s, "A: run of {}\nB: run of {}", self.a, self.b);
        let _ = writeln!(
            s,
            "Ratios are B ÷ A. All intervals together contain the true ratios with a probability of {} %.",
            CONFIDENCE * 100.0
        );
        let few = |f: &Ratio| f.low.is_some() && f.rounds.iter().any(|rounds| *rounds < MANY);
        if self.pages.iter().flat_map(|p| &p.figures).any(few) {
            let _ = writeln!(
                s,
                "With fewer than {MANY} rounds in a run, the intervals are too narrow: confirm a difference with {MANY} \
                 rounds or more."
            );
        }
        write_changes(&mut s, &self.conditions);
        for page in &self.pages {
            let _ = writeln!(s, "\n== {}", page.name);
            write_changes(&mut s, &page.conditions);
            write_figures(&mut s, page);
            for (only, run) in [(page.only_a, "A"), (page.only_b, "B")] {
                if only > 0 {
                    let _ = writeln!(s, "   figures that only {run} has: {only}");
                }
            }
        }
        let _ = writeln!(
            s,
            "\n{} figures differ by more than {} %; {} do not; {} have no interval (fewer than {ROUNDS} rounds in a run, or no rounds).",
            self.count(Finding::Differs),
            number::short(self.tolerance * 100.0),
            self.count(Finding::NoDifferenceShown),
            self.count(Finding::NoInterval),
        );
        s
    }
}

fn write_changes(s: &mut String, changes: &[Change]) {
    if changes.is_empty() {
        return;
    }
    let _ = writeln!(s, "   conditions that changed:");
    for change in changes {
        let word = |text: &str| if text.is_empty() { "(none)".to_owned() } else { text.replace('\n', "; ") };
        let _ = writeln!(s, "     {}: {} → {}", change.what, word(&change.a), word(&change.b));
    }
}

fn write_figures(s: &mut String, page: &PageDiff) {
    let (mut part, mut measure) = ("", "");
    let mut points = 0;
    for f in &page.figures {
        // The many points of a curve are in the JSON.
        if f.x.is_some() && f.rounds.contains(&0) {
            points += 1;
            continue;
        }
        if part != f.part {
            let _ = writeln!(s, "-- {}", f.part);
            measure = "";
        }
        if measure != f.measure {
            let _ = writeln!(s, "   {}", f.measure);
        }
        (part, measure) = (f.part.as_str(), f.measure.as_str());
        let x = f.x.map_or_else(String::new, |x| format!(" at {}", number::short(x)));
        let ratio = f.ratio.map_or_else(|| "–".to_owned(), |r| format!("{r:.3}"));
        let interval = match (f.low, f.high) {
            (Some(low), Some(high)) => format!(" ({low:.3} to {high:.3})"),
            _ => format!(" (no interval: {} and {} rounds)", f.rounds[0], f.rounds[1]),
        };
        let mark = if f.finding == Finding::Differs { "  DIFFERS" } else { "" };
        let values = format!("{} → {}", number::short(f.a), number::with_unit(f.b, &f.unit));
        let _ = writeln!(s, "     {}{x}  {ratio}{interval}  {values}{mark}", f.subject);
    }
    if points > 0 {
        let _ = writeln!(s, "   points of curves, not shown here (--json has them): {points}");
    }
}

fn measured(page: &Page) -> impl Iterator<Item = (&str, &Figure)> {
    let figures = page.parts.iter().flat_map(|part| part.figures.iter().map(move |f| (part.id.as_str(), f)));
    figures.filter(|(_, f)| f.source == Source::Measured)
}

/// The measured figures that both pages have, in the first page's order.
fn pairs<'a>(a: &'a Page, b: &'a Page) -> Vec<(&'a str, &'a Figure, &'a Figure)> {
    let key = |f: &Figure| (f.measure.clone(), f.subject.clone(), f.x.map(f64::to_bits), f.unit.clone());
    let mut others: std::collections::HashMap<_, Vec<&Figure>> = std::collections::HashMap::new();
    for (part, figure) in measured(b) {
        others.entry((part, key(figure))).or_default().push(figure);
    }
    let pair = |(part, figure): (&'a str, &'a Figure)| {
        let same = others.get_mut(&(part, key(figure)))?;
        (!same.is_empty()).then(|| (part, figure, same.remove(0)))
    };
    measured(a).filter_map(pair).collect()
}

fn enough(a: &Figure, b: &Figure) -> bool {
    a.rounds.len() >= ROUNDS && b.rounds.len() >= ROUNDS
}

fn ratio(part: &str, a: &Figure, b: &Figure, tolerance: f64, confidence: f64, resamples: usize) -> Ratio {
    let interval =
        enough(a, b).then(|| resample::ratio_of_medians(&a.rounds, &b.rounds, resamples, confidence, SEED)).flatten();
    let finding = match interval {
        None => Finding::NoInterval,
        Some((low, high)) if low > 1.0 + tolerance || high < 1.0 - tolerance => Finding::Differs,
        Some(_) => Finding::NoDifferenceShown,
    };
    Ratio {
        part: part.to_owned(),
        measure: a.measure.clone(),
        subject: a.subject.clone(),
        x: a.x,
        unit: a.unit.clone(),
        a: a.value,
        b: b.value,
        ratio: Some(b.value / a.value).filter(|ratio| ratio.is_finite()),
        low: interval.map(|(low, _)| low),
        high: interval.map(|(_, high)| high),
        rounds: [a.rounds.len(), b.rounds.len()],
        finding,
    }
}

/// Adds a condition if it changed.
fn change(changes: &mut Vec<Change>, what: &str, a: &str, b: &str) {
    if a != b {
        changes.push(Change { what: what.to_owned(), a: a.to_owned(), b: b.to_owned() });
    }
}

fn change_facts(changes: &mut Vec<Change>, a: &[Fact], b: &[Fact]) {
    let value = |facts: &[Fact], name: &str| {
        // A name such as "Missing" may come several times.
        facts.iter().filter(|f| f.name == name).map(|f| f.value.as_str()).collect::<Vec<_>>().join("; ")
    };
    let mut names: Vec<&str> = Vec::new();
    for fact in a.iter().chain(b) {
        if !names.contains(&fact.name.as_str()) {
            names.push(&fact.name);
        }
    }
    for name in names {
        change(changes, name, &value(a, name), &value(b, name));
    }
}

fn of_report(a: &Report, b: &Report) -> Vec<Change> {
    let mut changes = Vec::new();
    change(&mut changes, "program", &a.tool, &b.tool);
    change(&mut changes, "run", &a.mode, &b.mode);
    change(&mut changes, "CPU", &a.machine.cpu, &b.machine.cpu);
    change(&mut changes, "number of CPUs", &a.machine.cpus.to_string(), &b.machine.cpus.to_string());
    change_facts(&mut changes, &a.machine.facts, &b.machine.facts);
    changes
}

fn of_page(a: &Page, b: &Page) -> Vec<Change> {
    let mut changes = Vec::new();
    change(&mut changes, "command", &a.command, &b.command);
    change_facts(&mut changes, &a.settings, &b.settings);
    let names = |page: &Page| page.subjects.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", ");
    change(&mut changes, "subjects", &names(a), &names(b));
    for subject in &a.subjects {
        let Some(other) = b.subjects.iter().find(|s| s.name == subject.name) else { continue };
        let name = &subject.name;
        change(&mut changes, &format!("version of {name}"), &subject.version.join("; "), &other.version.join("; "));
        if subject.configuration != other.configuration {
            change(&mut changes, &format!("configuration of {name}"), "see the report of A", "see the report of B");
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{FORMAT, Machine, Part, Subject};

    fn report(scale: f64, rounds: usize) -> Report {
        let mut part = Part::new("keepalive", "Kept connections", "");
        let values: Vec<f64> = (0..rounds).map(|i| scale * (100.0 + (i % 3) as f64)).collect();
        part.rounds("sealane", "CPU per operation", &values, "µs");
        part.push(Figure::new("sealane", "latency", 3.0, "ms").at(99.0));
        part.push(Figure::new("study", "CPU per operation", 9.0, "µs").from(Source::Published));
        let subjects = vec![Subject { name: "sealane".into(), version: vec!["1".into()], ..Subject::default() }];
        let page = Page { name: "proxies".into(), subjects, parts: vec![part], ..Page::default() };
        Report {
            format: FORMAT,
            tool: "sealane-lab 0.1.0".into(),
            title: String::new(),
            verdict: String::new(),
            mode: "full".into(),
            started: "2026-11-30T00:00:00Z".into(),
            seconds: 1.0,
            machine: Machine { cpu: "EPYC".into(), cpus: 2, facts: vec![Fact::new("Kernel", "Linux 6.1")] },
            command: String::new(),
            pages: vec![page],
        }
    }

    #[test]
    fn a_shift_is_shown_beyond_the_tolerance_only() {
        let finding = |scale: f64, tolerance: f64| {
            let diff = Diff::of(&report(1.0, 12), &report(scale, 12), tolerance).unwrap();
            diff.pages[0].figures[0].finding
        };
        assert_eq!(finding(1.0, 0.0), Finding::NoDifferenceShown);
        assert_eq!(finding(1.2, 0.01), Finding::Differs);
        assert_eq!(finding(0.8, 0.01), Finding::Differs);
        assert_eq!(finding(1.2, 0.3), Finding::NoDifferenceShown);
        assert_eq!(finding(0.8, 0.3), Finding::NoDifferenceShown);
    }

    #[test]
    fn few_rounds_and_points_give_a_ratio_without_an_interval() {
        let diff = Diff::of(&report(1.0, 5), &report(2.0, 12), 0.01).unwrap();
        let figures = &diff.pages[0].figures;
        assert_eq!(figures.len(), 2, "published figures are not compared");
        assert_eq!((figures[0].ratio, figures[0].low, figures[0].finding), (Some(2.0), None, Finding::NoInterval));
        assert_eq!((figures[1].x, figures[1].ratio, figures[1].rounds), (Some(99.0), Some(1.0), [0, 0]));
        assert_eq!(diff.count(Finding::NoInterval), 2);
        assert!(diff.text().contains("no interval: 5 and 12 rounds"), "{}", diff.text());
        let warns = |rounds: usize| {
            let diff = Diff::of(&report(1.0, rounds), &report(1.0, 20), 0.01).unwrap();
            diff.text().contains("the intervals are too narrow")
        };
        assert_eq!([5, 19, 20].map(warns), [false, true, false]);
    }

    #[test]
    fn what_changed_is_named() {
        let (a, mut b) = (report(1.0, 6), report(1.0, 6));
        assert!(Diff::of(&a, &b, 0.01).unwrap().conditions.is_empty());
        b.machine.facts[0].value = "Linux 6.2".into();
        b.machine.facts.push(Fact::new("Memory", "8.0 GiB"));
        b.pages[0].subjects[0].version = vec!["2".into()];
        b.pages[0].subjects[0].configuration = "x".into();
        b.pages[0].settings.push(Fact::new("TLS", "1.3"));
        let diff = Diff::of(&a, &b, 0.01).unwrap();
        let what = |changes: &[Change]| changes.iter().map(|c| c.what.clone()).collect::<Vec<_>>();
        assert_eq!(what(&diff.conditions), ["Kernel", "Memory"]);
        assert_eq!(what(&diff.pages[0].conditions), ["TLS", "version of sealane", "configuration of sealane"]);
        let text = diff.text();
        assert!(text.contains("Kernel: Linux 6.1 → Linux 6.2") && text.contains("TLS: (none) → 1.3"), "{text}");
    }

    #[test]
    fn reports_without_anything_in_common_are_refused() {
        let (a, mut b) = (report(1.0, 6), report(1.0, 6));
        b.pages[0].parts[0].id = "bulk".into();
        assert!(Diff::of(&a, &b, 0.01).unwrap_err().contains("no measured figure in common"));
        b.pages[0].name = "tunnel".into();
        let why = Diff::of(&a, &b, 0.01).unwrap_err();
        assert!(why.contains("proxies") && why.contains("tunnel"), "{why}");
    }

    #[test]
    fn many_figures_make_each_interval_wider() {
        let mut many = report(1.0, 12);
        let figure = many.pages[0].parts[0].figures[0].clone();
        for i in 0..9 {
            let subject = format!("other {i}");
            many.pages[0].parts[0].figures.push(Figure { subject, ..figure.clone() });
        }
        let one = Diff::of(&report(1.0, 12), &report(1.0, 12), 0.01).unwrap();
        let ten = Diff::of(&many, &many, 0.01).unwrap();
        assert!((one.confidence - 0.95).abs() < 1e-12 && (ten.confidence - 0.995).abs() < 1e-12);
        // However many there are, a resample lies beyond each end.
        let beyond = |intervals: usize| {
            let resamples = RESAMPLES.max(FOR_EACH * intervals);
            (1.0 - CONFIDENCE) / intervals as f64 / 2.0 * resamples as f64
        };
        assert!([1, 100, 10_000].map(beyond).iter().all(|count| *count > 0.999));
    }
}
