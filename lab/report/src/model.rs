//! What a report consists of. It is written to `report.json` as it stands here, and can be read back and rendered
//! again, or put together with others.

use serde::{Deserialize, Serialize};

use crate::{Finding, resample, stats};

/// The version of the JSON's shape; raised when a reader would have to change.
pub const FORMAT: u32 = 1;

/// Everything that one `sealane-lab run` found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// Program and version.
    pub tool: String,
    /// The heading.
    pub title: String,
    /// The answer in a sentence or two.
    pub verdict: String,
    /// `quick` or `full`.
    pub mode: String,
    /// When it began, RFC 3339.
    pub started: String,
    /// How long it took.
    pub seconds: f64,
    /// Where it ran.
    pub machine: Machine,
    /// The command that does it again.
    pub command: String,
    /// One page for each experiment.
    pub pages: Vec<Page>,
}

/// A name and what it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// The name.
    pub name: String,
    /// The value, in words.
    pub value: String,
}

impl Fact {
    /// A fact.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// The machine that was measured on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// CPUs that the run could use.
    pub cpus: usize,
    /// What else is worth knowing: memory, kernel, distribution, virtualisation, governor.
    pub facts: Vec<Fact>,
}

/// One experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Page {
    /// The name on the command line.
    pub name: String,
    /// The heading.
    pub title: String,
    /// What was asked.
    pub question: String,
    /// The answer in a sentence or two.
    pub verdict: String,
    /// The main claim of the study that it repeats, beside what was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finding: Option<Finding>,
    /// Why it could not run here; then nothing below is filled.
    pub obstacle: Option<String>,
    /// How it was answered, a paragraph each.
    pub method: Vec<String>,
    /// What was compared.
    pub subjects: Vec<Subject>,
    /// What was the same for all.
    pub settings: Vec<Fact>,
    /// The measurements.
    pub parts: Vec<Part>,
    /// The studies that this stands beside.
    pub studies: Vec<Study>,
    /// What follows for somebody who runs such a thing.
    pub advice: Vec<String>,
    /// The command that does this experiment again.
    pub command: String,
}

/// One of those that were compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// The name in charts and tables.
    pub name: String,
    /// What it says of itself: version, compiler, TLS library.
    pub version: Vec<String>,
    /// Its configuration or command line, as an example of one part.
    pub configuration: String,
}

/// A study that was published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// Its title.
    pub title: String,
    /// What it was measured on and how; the figures themselves are in the parts, as [`Source::Published`].
    pub facts: Vec<Fact>,
}

/// One measurement of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its name on the command line (`--only`).
    pub id: String,
    /// The heading.
    pub title: String,
    /// What one operation is and what is counted.
    pub what: String,
    /// Why it was left out; then there are no figures.
    pub skipped: Option<String>,
    /// The numbers.
    pub figures: Vec<Figure>,
    /// How they are shown.
    pub views: Vec<View>,
    /// Rounds that were thrown away.
    pub voids: Vec<Void>,
    /// The raw data: what each subject gave in each round, void ones included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<Round>,
    /// What to know when reading.
    pub notes: Vec<String>,
}

/// Where a number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Measured in this run.
    Measured,
    /// From a fit, within the range that was measured.
    Fitted,
    /// From a fit, beyond what was measured.
    Extrapolated,
    /// From a study, on its machine.
    Published,
}

impl Source {
    /// The word in CSV.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Fitted => "fitted",
            Self::Extrapolated => "extrapolated",
            Self::Published => "published",
        }
    }
}

/// One number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Whose it is.
    pub subject: String,
    /// What it is; views select by it.
    pub measure: String,
    /// Where on the x axis: threads, a rate, a percentile. `None` for a bar.
    pub x: Option<f64>,
    /// The number itself, in `unit`.
    pub value: f64,
    /// Lower end of its interval.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
    /// How many samples or rounds it comes from; 0 where that makes no sense.
    pub n: u64,
    /// Its unit.
    pub unit: String,
    /// Where it comes from.
    pub source: Source,
    /// The rounds that it is the median of, in the order of time; empty where it is no median of rounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<f64>,
}

impl Figure {
    /// A measured number without an interval.
    pub fn new(subject: &str, measure: &str, value: f64, unit: &str) -> Self {
        Self {
            subject: subject.to_owned(),
            measure: measure.to_owned(),
            x: None,
            value,
            low: None,
            high: None,
            n: 0,
            unit: unit.to_owned(),
            source: Source::Measured,
            rounds: Vec::new(),
        }
    }

    /// The median of rounds with its interval (see [`stats::Centre`]); `None` without rounds.
    pub fn of_rounds(subject: &str, measure: &str, rounds: &[f64], unit: &str) -> Option<Self> {
        let centre = stats::Centre::of(rounds)?;
        let figure = Self::new(subject, measure, centre.median, unit)
            .between(centre.low, centre.high)
            .samples(rounds.len() as u64);
        Some(Self { rounds: rounds.iter().copied().filter(|value| value.is_finite()).collect(), ..figure })
    }

    /// The median of ratios, each within one round. From [`resample::MANY`] rounds on, its interval is that of a block
    /// bootstrap, because what disturbs one round often disturbs the next one, too. With fewer rounds, it is that of
    /// [`Figure::of_rounds`].
    pub fn of_ratios(subject: &str, measure: &str, ratios: &[f64], unit: &str) -> Option<Self> {
        let figure = Self::of_rounds(subject, measure, ratios, unit)?;
        if figure.rounds.len() < resample::MANY {
            return Some(figure);
        }
        let interval = resample::median_interval(&figure.rounds);
        Some(if let Some((low, high)) = interval { figure.between(low, high) } else { figure })
    }

    /// At this place on the x axis.
    pub fn at(mut self, x: f64) -> Self {
        self.x = Some(x);
        self
    }

    /// With this interval.
    pub fn between(mut self, low: f64, high: f64) -> Self {
        (self.low, self.high) = (Some(low), Some(high));
        self
    }

    /// From so many samples.
    pub fn samples(mut self, n: u64) -> Self {
        self.n = n;
        self
    }

    /// The interval; without one, the value itself.
    pub fn interval(&self) -> (f64, f64) {
        (self.low.unwrap_or(self.value), self.high.unwrap_or(self.value))
    }

    /// From somewhere else than this run.
    pub fn from(mut self, source: Source) -> Self {
        self.source = source;
        self
    }
}

/// An axis of a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// What it shows, with its unit.
    pub label: String,
    /// Whether it is logarithmic.
    pub log: bool,
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), log: false }
    }

    /// A logarithmic axis.
    pub fn log(label: &str) -> Self {
        Self { label: label.to_owned(), log: true }
    }
}

/// How figures are shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "view")]
pub enum View {
    /// Horizontal bars with intervals, a group for each measure, all in one unit.
    Bars {
        /// The caption.
        title: String,
        /// Which figures (those without x), in this order.
        measures: Vec<String>,
        /// Whether little is good: `lower` or `higher`, said in the caption.
        better: String,
    },
    /// A line for each subject over x.
    Lines {
        /// The caption.
        title: String,
        /// Which figures (those with x).
        measure: String,
        /// The x axis.
        x: Axis,
        /// The y axis.
        y: Axis,
    },
    /// Latency by percentile: x is a percentile, drawn on a logarithmic axis of nines; y is logarithmic.
    Spectrum {
        /// The caption.
        title: String,
        /// Which figures; their x is a percentile such as 99.9.
        measure: String,
    },
    /// Measures down, subjects across.
    Table {
        /// The caption.
        title: String,
        /// Which figures (those without x), a row each.
        measures: Vec<String>,
    },
    /// Values of x down, subjects across.
    Grid {
        /// The caption.
        title: String,
        /// Which figures (those with x).
        measure: String,
        /// What x is.
        label: String,
    },
}

/// What one subject gave in one round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// The subject.
    pub subject: String,
    /// Which round or step. A repeated round has one entry for each attempt.
    pub what: String,
    /// The numbers by name.
    pub values: std::collections::BTreeMap<String, f64>,
    /// Why the attempt is void; empty if it holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub void: Vec<String>,
    /// When it ended, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
}

/// A round that was thrown away.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Void {
    /// Whose.
    pub subject: String,
    /// Which round or step.
    pub what: String,
    /// Why.
    pub why: String,
}

impl Part {
    /// A part without figures yet.
    pub fn new(id: &str, title: &str, what: &str) -> Self {
        Self { id: id.to_owned(), title: title.to_owned(), what: what.to_owned(), ..Self::default() }
    }

    /// One that was left out.
    pub fn skipped(id: &str, title: &str, why: impl Into<String>) -> Self {
        Self { skipped: Some(why.into()), ..Self::new(id, title, "") }
    }

    /// Adds a figure, unless it is none: a division by nothing must not get into JSON, which has no word for it.
    pub fn push(&mut self, figure: Figure) {
        if figure.value.is_finite() {
            self.figures.push(figure);
        }
    }

    /// Adds the median of rounds; nothing where there are none.
    pub fn rounds(&mut self, subject: &str, measure: &str, rounds: &[f64], unit: &str) {
        self.figures.extend(Figure::of_rounds(subject, measure, rounds, unit));
    }

    /// Adds the median of ratios within rounds; nothing where there are none.
    pub fn ratios(&mut self, subject: &str, measure: &str, ratios: &[f64], unit: &str) {
        self.figures.extend(Figure::of_ratios(subject, measure, ratios, unit));
    }

    /// Adds what is remarkable.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Adds bars; `better` is `lower` or `higher`.
    pub fn bars(&mut self, title: &str, measures: &[&str], better: &str) {
        let measures = measures.iter().map(|m| (*m).to_owned()).collect();
        self.views.push(View::Bars { title: title.to_owned(), measures, better: better.to_owned() });
    }

    /// Adds lines over x.
    pub fn lines(&mut self, title: &str, measure: &str, x: Axis, y: Axis) {
        self.views.push(View::Lines { title: title.to_owned(), measure: measure.to_owned(), x, y });
    }

    /// Adds a percentile spectrum.
    pub fn spectrum(&mut self, title: &str, measure: &str) {
        self.views.push(View::Spectrum { title: title.to_owned(), measure: measure.to_owned() });
    }

    /// Adds a table of measures by subjects.
    pub fn table(&mut self, title: &str, measures: &[&str]) {
        let measures = measures.iter().map(|m| (*m).to_owned()).collect();
        self.views.push(View::Table { title: title.to_owned(), measures });
    }

    /// Adds a table of x by subjects.
    pub fn grid(&mut self, title: &str, measure: &str, label: &str) {
        self.views.push(View::Grid { title: title.to_owned(), measure: measure.to_owned(), label: label.to_owned() });
    }

    /// The figures of a measure.
    pub fn of<'a>(&'a self, measure: &'a str) -> impl Iterator<Item = &'a Figure> {
        self.figures.iter().filter(move |f| f.measure == measure)
    }

    /// A subject's measured figure without x.
    pub fn value(&self, subject: &str, measure: &str) -> Option<f64> {
        self.of(measure)
            .find(|f| f.subject == subject && f.x.is_none() && f.source == Source::Measured)
            .map(|f| f.value)
    }
}

impl Page {
    /// A page that says why its experiment could not run.
    pub fn cannot(name: &str, title: &str, question: &str, why: impl Into<String>) -> Self {
        let why = why.into();
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            question: question.to_owned(),
            verdict: "Not run on this machine.".to_owned(),
            obstacle: Some(why),
            ..Self::default()
        }
    }

    /// The part with this id.
    pub fn part(&self, id: &str) -> Option<&Part> {
        self.parts.iter().find(|p| p.id == id)
    }

    /// Everybody who has a figure, those of this run first, each in order of appearance.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.subjects.iter().map(|s| s.name.clone()).collect();
        for figure in self.parts.iter().flat_map(|p| &p.figures) {
            if !names.contains(&figure.subject) {
                names.push(figure.subject.clone());
            }
        }
        names
    }

    /// Rounds thrown away in all parts.
    pub fn voids(&self) -> usize {
        self.parts.iter().map(|p| p.voids.len()).sum()
    }
}

/// A moment in RFC 3339, UTC, to the second; `seconds` since 1970.
pub fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's civil_from_days, for days since 1970-01-01.
    let z = days as i64 + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_the_rfc_says() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(rfc3339(1_795_243_905), "2026-11-21T06:51:45Z");
    }

    #[test]
    fn ratios_of_many_rounds_have_the_interval_of_a_block_bootstrap() {
        let ratios: Vec<f64> = (0..40).map(|i| 1.0 + f64::from(i * 17 % 41) / 1000.0).collect();
        let range = |figure: Figure| (figure.low.unwrap(), figure.high.unwrap());
        let of_ratios = |n: usize| range(Figure::of_ratios("a", "m", &ratios[..n], "").unwrap());
        let of_rounds = |n: usize| range(Figure::of_rounds("a", "m", &ratios[..n], "").unwrap());
        assert_eq!(of_ratios(19), of_rounds(19));
        assert_eq!(Some(of_ratios(40)), resample::median_interval(&ratios));
        assert_eq!(Figure::of_ratios("a", "m", &[], ""), None);
    }

    #[test]
    fn names_keep_their_order_and_come_once() {
        let mut part = Part::new("a", "A", "");
        part.push(Figure::new("study", "m", 1.0, "s").from(Source::Published));
        part.push(Figure::new("nginx", "m", 1.0, "s"));
        let subjects = vec![Subject { name: "nginx".into(), ..Subject::default() }];
        let page = Page { subjects, parts: vec![part], ..Page::default() };
        assert_eq!(page.names(), ["nginx", "study"]);
        assert_eq!(page.parts[0].value("study", "m"), None);
        assert_eq!(page.parts[0].value("nginx", "m"), Some(1.0));
    }
}
