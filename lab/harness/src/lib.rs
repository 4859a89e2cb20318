//! The harness of the experiments: `docs/reference/experiments.md` says how to add one.
//!
//! An [`Experiment`] has a [`Spec`] (its `experiment.toml`: question, method, subjects, parts, how much of it in a quick
//! and in a full run) and code that fills a page of the report. The harness gives it a [`Bench`]: programs found or named
//! by `--subject` ([`programs`]), a workspace with certificates, files and a backend ([`workspace`]), servers configured alike
//! ([`web`]), started, pinned and stopped ([`process`]), rounds that go there and back and are void when others disturbed
//! them ([`rounds`]). The way of the data: [`Spec`] + [`Options`] → [`Bench`] → `Experiment::run` → the page of
//! `sealane-lab-report`.

pub mod awake;
pub mod bench;
pub mod client;
pub mod cores;
pub mod foreign;
pub mod interruptions;
pub mod journal;
pub mod latency;
pub mod machine;
pub mod options;
pub mod precedence;
pub mod process;
pub mod programs;
pub mod rounds;
pub mod spec;
pub mod study;
pub mod web;
pub mod workspace;

pub use bench::{Bench, Stopped};
pub use cores::Cores;
pub use journal::Journal;
pub use options::{Method, Options};
pub use programs::Program;
pub use rounds::{Rounds, Sample};
pub use spec::Spec;

use sealane_lab_report::{Fact, Finding, Page};

/// A question with the means to answer it.
pub trait Experiment {
    /// What `experiment.toml` says.
    fn spec(&self) -> &Spec;

    /// Why it cannot run here, if so: a missing program, a missing right. Asked before anything starts.
    fn obstacle(&self, options: &Options) -> Option<String> {
        let _ = options;
        None
    }

    /// The parts that can be measured with `--method together`.
    fn together(&self) -> &[&str] {
        &[]
    }

    /// Measures, and fills the parts of `bench.page`. An error in one part belongs to that part
    /// ([`Bench::part`]); one returned from here ends the experiment, and keeps what the page has by then.
    fn run(&self, bench: &mut Bench<'_>) -> anyhow::Result<()>;

    /// Writes verdict and advice, from nothing but what the page has: after a run, and after parts of several runs were
    /// put together.
    fn conclude(&self, page: &mut Page);

    /// The main claim of the study that this experiment repeats, beside the page's figures: its row on the report's first
    /// screen. `None` only if it repeats no study; without figures, the row says that.
    fn finding(&self, page: &Page) -> Option<Finding>;
}

/// Writes the sentences of a page from its figures: verdict, advice and the study's row.
pub fn conclude(experiment: &dyn Experiment, page: &mut Page) {
    if page.obstacle.is_none() {
        experiment.conclude(page);
    }
    page.finding = experiment.finding(page);
    if let (Some(why), Some(finding)) = (&page.obstacle, &mut page.finding) {
        finding.finding = format!("Not run here: {why}.");
    }
}

/// Why an interrupted run of this experiment cannot be resumed with these options, if so: something that its journal knows has
/// changed. Asked before the first experiment starts, so that no report is overwritten.
pub fn check_resumed(experiment: &dyn Experiment, options: &Options) -> anyhow::Result<()> {
    let Some(journal) = &options.journal else { return Ok(()) };
    if experiment.obstacle(options).is_some() {
        return Ok(());
    }
    let bench = Bench::new(experiment.spec(), options)?;
    let changed = journal.changed(&experiment.spec().name, &bench.conditions()?);
    anyhow::ensure!(changed.is_empty(), "--resume: this is not the run that was interrupted. {}", changed.join("; "));
    Ok(())
}

/// Runs one experiment and returns its page, whatever happens: with an obstacle, an error, or an early end the page
/// says so.
pub fn run(experiment: &dyn Experiment, options: &Options) -> Page {
    let spec = experiment.spec();
    let cannot = |why: String| {
        let mut page = Page::cannot(&spec.name, &spec.title, &spec.question, why);
        conclude(experiment, &mut page);
        page
    };
    if let Some(why) = experiment.obstacle(options) {
        return cannot(why);
    }
    let mut bench = match Bench::new(spec, options) {
        Ok(bench) => bench,
        Err(error) => return cannot(format!("{error:#}")),
    };
    if let Some(journal) = &options.journal
        && let Err(error) = bench.conditions().and_then(|conditions| journal.begin(&spec.name, &conditions))
    {
        return cannot(format!("{error:#}"));
    }
    let before = options.journal.as_ref().map_or((0, 0), |journal| journal.taken());
    let result = experiment.run(&mut bench);
    let mut page = bench.into_page();
    let after = options.journal.as_ref().map_or((0, 0), |journal| journal.taken());
    let (rounds, parts) = (after.0 - before.0, after.1 - before.1);
    if rounds + parts > 0 {
        let text = format!("{rounds} rounds and {parts} whole parts were measured before this run was resumed");
        page.settings.push(Fact::new("Resumed", text));
    }
    conclude(experiment, &mut page);
    if let Err(error) = result {
        let why =
            if error.is::<Stopped>() { "Stopped before its end.".to_owned() } else { format!("Aborted: {error:#}.") };
        page.verdict = format!("{why} {}", page.verdict).trim_end().to_owned();
    }
    page
}
