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
pub use options::{Method, Options};
pub use programs::Program;
pub use rounds::{Rounds, Sample};
pub use spec::Spec;

use sealane_lab_report::Page;

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
}

/// Runs one experiment and returns its page, whatever happens: with an obstacle, an error, or an early end the page
/// says so.
pub fn run(experiment: &dyn Experiment, options: &Options) -> Page {
    let spec = experiment.spec();
    let cannot = |why: String| Page::cannot(&spec.name, &spec.title, &spec.question, why);
    if let Some(why) = experiment.obstacle(options) {
        return cannot(why);
    }
    let mut bench = match Bench::new(spec, options) {
        Ok(bench) => bench,
        Err(error) => return cannot(format!("{error:#}")),
    };
    let result = experiment.run(&mut bench);
    let mut page = bench.into_page();
    experiment.conclude(&mut page);
    if let Err(error) = result {
        let why =
            if error.is::<Stopped>() { "Stopped before its end.".to_owned() } else { format!("Aborted: {error:#}.") };
        page.verdict = format!("{why} {}", page.verdict).trim_end().to_owned();
    }
    page
}
