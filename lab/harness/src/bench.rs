//! What an experiment works with: its sizes, programs and CPUs, and the page that it fills.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, anyhow, bail};
use sealane_lab_load::hlog;
use sealane_lab_report::{Fact, Page, Part, Round, Subject, Void};

use crate::cores::Cores;
use crate::journal::{self, Conditions, Finished, Journal, Slot};
use crate::options::{Method, Options};
use crate::programs::{self, Program};
use crate::rounds::{self, Quiet, Resumed, Rounds, Sample};
use crate::spec::{PartSpec, Spec};
use crate::{machine, study};

/// The run was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stopped")
    }
}

impl std::error::Error for Stopped {}

/// The workplace of one experiment.
#[derive(Debug)]
pub struct Bench<'a> {
    /// What was asked for.
    pub options: &'a Options,
    /// The experiment's file.
    pub spec: &'a Spec,
    /// The division of the machine.
    pub cores: Cores,
    /// What was found of the subjects.
    pub programs: Vec<Program>,
    /// What is filled.
    pub page: Page,
}

impl<'a> Bench<'a> {
    /// Finds the programs and begins the page.
    pub fn new(spec: &'a Spec, options: &'a Options) -> anyhow::Result<Self> {
        let (programs, missing) = programs::find(spec, options)?;
        let sizes = if options.quick { &spec.quick } else { &spec.full };
        for (key, _) in &options.set {
            if !sizes.contains_key(key) {
                let known: Vec<&str> = sizes.keys().map(String::as_str).collect();
                bail!(
                    "--set {key}: the experiment \"{}\" has no value of this name in this run; its values are {}",
                    spec.name,
                    known.join(", ")
                );
            }
        }
        if let Some(id) = options.only.iter().find(|id| spec.part(id).is_none()) {
            let known: Vec<&str> = spec.parts.iter().map(|p| p.id.as_str()).collect();
            bail!("--only {id}: the experiment \"{}\" has no such part; its parts are {}", spec.name, known.join(", "));
        }
        let cores = Cores::divide(options)?;
        let mut settings: Vec<Fact> = spec
            .settings
            .iter()
            .map(|(k, v)| Fact::new(k, v.as_str().map_or_else(|| v.to_string(), str::to_owned)))
            .collect();
        settings.push(Fact::new("CPUs", cores.text()));
        if !cores.apart() {
            settings.push(Fact::new("Attention", "servers and load share CPUs on this machine"));
        }
        let (method, void) = match options.method {
            Method::Turns => (
                "one subject after the other, and each subject alone",
                format!(
                    "a round in which other programs used more than {:.2} CPUs, or that failed a check",
                    options.max_foreign
                ),
            ),
            Method::Together => (
                "all subjects at the same time on one CPU; each round starts them again, in another order",
                "a round in which any subject failed a check".to_owned(),
            ),
        };
        settings.push(Fact::new("Subjects measured", method));
        let for_all =
            if options.whole_cycles { "; a round without a valid attempt of one subject is void for all" } else { "" };
        settings.push(Fact::new("Void", format!("{void}; a round is tried at most {} times{for_all}", options.tries)));
        settings.extend(missing.into_iter().map(|m| Fact::new("Missing", m)));
        let page = Page {
            name: spec.name.clone(),
            title: spec.title.clone(),
            question: spec.question.clone(),
            method: spec.method.clone(),
            settings,
            subjects: programs.iter().map(subject).collect(),
            studies: spec.studies.iter().map(|s| study::study(s)).collect::<anyhow::Result<_>>()?,
            command: options.command.clone(),
            ..Page::default()
        };
        Ok(Self { options, spec, cores, programs, page })
    }

    /// A size of this run: from `--set`, or the file's `[quick]` or `[full]`.
    pub fn size<T: FromStr>(&self, key: &str) -> anyhow::Result<T>
    where
        T::Err: fmt::Display,
    {
        let text = self.size_text(key)?;
        text.parse().map_err(|why| anyhow!("{key} = {text}: {why}"))
    }

    /// A list of sizes, written as an array or with commas.
    pub fn sizes<T: FromStr>(&self, key: &str) -> anyhow::Result<Vec<T>>
    where
        T::Err: fmt::Display,
    {
        let text = self.size_text(key)?;
        let parts = text.trim_matches(['[', ']']).split(',').map(str::trim).filter(|p| !p.is_empty());
        parts.map(|p| p.trim_matches('"').parse().map_err(|why| anyhow!("{key}: {p}: {why}"))).collect()
    }

    fn size_text(&self, key: &str) -> anyhow::Result<String> {
        if let Some((_, text)) = self.options.set.iter().rev().find(|(k, _)| k == key) {
            return Ok(text.clone());
        }
        let sizes = if self.options.quick { &self.spec.quick } else { &self.spec.full };
        let value = sizes.get(key).with_context(|| format!("{}: no size {key:?}", self.spec.name))?;
        Ok(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }

    /// Whether this run has a part.
    pub fn wants(&self, id: &str) -> bool {
        let only = &self.options.only;
        match self.spec.part(id) {
            None => false,
            Some(part) if only.is_empty() => part.quick || !self.options.quick,
            Some(_) => only.iter().any(|o| o == id),
        }
    }

    /// Measures a part, if this run has it, and puts it on the page. What goes wrong in it is its reason for having
    /// been left out; only the wish to stop ends the experiment.
    pub fn part(
        &mut self,
        id: &str,
        measure: impl FnOnce(&mut Self, &mut Part) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if !self.wants(id) {
            return Ok(());
        }
        let PartSpec { title, what, .. } =
            self.spec.part(id).cloned().with_context(|| format!("{}: no part {id:?}", self.spec.name))?;
        self.say(&format!("── {title}"));
        if let Some(finished) = self.options.journal.as_ref().and_then(|j| j.finished(&self.spec.name, id)) {
            self.say("   measured before this run was resumed");
            self.page.settings.extend(finished.settings);
            for (subject, text) in &finished.configurations {
                self.show_configuration(subject, text);
            }
            self.page.parts.push(finished.part);
            return Ok(());
        }
        let mut part = Part::new(id, &title, &what);
        let settings = self.page.settings.len();
        let result = measure(self, &mut part);
        let stopped = matches!(&result, Err(error) if error.is::<Stopped>());
        match result {
            Err(error) if !stopped => {
                self.say(&format!("   left out: {error:#}"));
                part.skipped = Some(format!("{error:#}"));
            }
            _ => {}
        }
        if stopped {
            part.note("Stopped before its end.");
        } else if let Some(journal) = self.options.journal.as_ref().filter(|journal| self.is_complete(journal, &part)) {
            let shown = self.page.subjects.iter().filter(|s| !s.configuration.is_empty());
            journal.finish(Finished {
                experiment: self.spec.name.clone(),
                part: part.clone(),
                settings: self.page.settings.iter().skip(settings).cloned().collect(),
                configurations: shown.map(|s| (s.name.clone(), s.configuration.clone())).collect(),
            })?;
        }
        self.page.parts.push(part);
        if stopped { Err(Stopped.into()) } else { Ok(()) }
    }

    /// Whether a resumed run takes this part as it is. One that failed is measured again, and so is a round without a valid attempt,
    /// if the others can be taken from the journal.
    fn is_complete(&self, journal: &Journal, part: &Part) -> bool {
        let same = |a: &Round, b: &Round| a.subject == b.subject && a.what == b.what;
        let holds = |round: &Round| part.rounds.iter().any(|other| same(other, round) && other.void.is_empty());
        let every_round_holds = || part.rounds.iter().all(|round| round.void.is_empty() || holds(round));
        part.skipped.is_none() && (!journal.has_slots(&self.spec.name, &part.id) || every_round_holds())
    }

    /// So many rounds of all `subjects`, interleaved; `measure` gets the subject's place in the list and the round.
    pub fn rounds(
        &self,
        part: &mut Part,
        subjects: &[String],
        rounds: usize,
        quiet: Quiet,
        resumed: Resumed,
        mut measure: impl FnMut(usize, usize) -> anyhow::Result<Sample>,
    ) -> anyhow::Result<Rounds> {
        let mut held = Rounds::default();
        for round in 0..rounds {
            let what = format!("round {}", round + 1);
            let mut cycle: Vec<(usize, Sample)> = Vec::new();
            for i in rounds::order(subjects.len(), round) {
                let slot = match resumed {
                    Resumed::Part => None,
                    Resumed::Round => self.slot(part, &format!("{}, {what}", subjects[i])),
                };
                let mut one = || measure(i, round);
                let sample = rounds::take_in(self.options, slot.as_ref(), part, &subjects[i], &what, quiet, &mut one)?;
                let Some(sample) = sample else { continue };
                self.say(&format!("   {what} of {rounds}  {:<16} {}", subjects[i], sample.told()));
                cycle.push((i, sample));
            }
            let void = (0..subjects.len()).find(|i| cycle.iter().all(|(valid, _)| valid != i));
            if let Some(void) = void.filter(|_| self.options.whole_cycles) {
                let why = format!("{} had no valid attempt in this round", subjects[void]);
                part.voids.extend(cycle.iter().map(|(i, _)| Void {
                    subject: subjects[*i].clone(),
                    what: what.clone(),
                    why: why.clone(),
                }));
                continue;
            }
            for (i, sample) in cycle {
                held.push(&subjects[i], round, sample);
            }
        }
        Ok(held)
    }

    /// The place of a round in the journal, if this run has one.
    pub fn slot(&self, part: &Part, label: &str) -> Option<Slot> {
        self.options.journal.as_ref().map(|journal| journal.slot(&self.spec.name, &part.id, label))
    }

    /// What must be the same when this run is resumed: programs, sizes, settings and the machine.
    pub fn conditions(&self) -> anyhow::Result<Conditions> {
        let options = self.options;
        let mut all = Conditions::new();
        all.insert("sealane-lab".to_owned(), journal::fingerprint(Path::new("/proc/self/exe")));
        for program in &self.programs {
            all.insert(format!("program {}", program.name), journal::fingerprint(&program.path));
        }
        let machine = machine::describe();
        all.insert("CPU".to_owned(), machine.cpu);
        all.insert("number of CPUs".to_owned(), machine.cpus.to_string());
        // The load differs from one moment to the next.
        let facts = machine.facts.into_iter().filter(|fact| !fact.name.starts_with("Load"));
        all.extend(facts.map(|fact| (fact.name, fact.value)));
        for fact in &self.page.settings {
            all.insert(format!("setting {}", fact.name), fact.value.clone());
        }
        all.insert("--quick".to_owned(), options.quick.to_string());
        all.insert("--only".to_owned(), options.only.join(","));
        all.insert("--max-lag".to_owned(), format!("{:?}", options.max_lag));
        all.insert("--whole-cycles".to_owned(), options.whole_cycles.to_string());
        let sizes = if options.quick { &self.spec.quick } else { &self.spec.full };
        for key in sizes.keys() {
            let name = if key == journal::ROUNDS { key.clone() } else { format!("size {key}") };
            all.insert(name, self.size_text(key)?);
        }
        Ok(all)
    }

    /// Keeps a run's histograms among the raw data, as an HdrHistogram log.
    pub fn keep(&self, part: &str, subject: &str, what: &str, report: &sealane_lab_load::Report) -> anyhow::Result<()> {
        let Some(out) = &self.options.out else { return Ok(()) };
        let folder = out.join("histograms");
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let name: String = format!("{}-{part}-{subject}-{what}.hlog", self.spec.name)
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' })
            .collect();
        let mut file = std::io::BufWriter::new(std::fs::File::create(folder.join(&name)).context(name)?);
        hlog::write(report, &mut file).context("histograms")
    }

    /// Progress, on standard error.
    pub fn say(&self, text: &str) {
        if !self.options.quiet {
            eprintln!("{text}");
        }
    }

    /// Shows a subject's configuration in the report, unless it has one already.
    pub fn show_configuration(&mut self, subject: &str, text: &str) {
        if let Some(s) = self.page.subjects.iter_mut().find(|s| s.name == subject && s.configuration.is_empty()) {
            s.configuration = text.to_owned();
        }
    }

    /// The page, finished.
    pub fn into_page(self) -> Page {
        self.page
    }
}

fn subject(program: &Program) -> Subject {
    Subject { name: program.name.clone(), version: program.version.clone(), configuration: String::new() }
}
