//! The harness with subjects that are not what they seem: whatever they do, there is a page, and it says what happened.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sealane_lab_harness::rounds::{Quiet, Resumed};
use sealane_lab_harness::{Bench, Experiment, Journal, Options, Sample, Spec, check_resumed, run};
use sealane_lab_report::{Finding, Outcome, Page};

const FILE: &str = "
name = 'fake'
title = 'Fakes'
question = 'Does the harness hold?'
method = ['One paragraph.']
studies = ['proxies']
[settings]
'TLS' = 'none'
[[subject]]
name = 'shell'
kind = 'shell'
program = 'sh'
[[subject]]
name = 'absent'
kind = 'absent'
program = 'no-such-program-anywhere'
optional = true
[[part]]
id = 'steady'
title = 'Steady'
quick = true
[[part]]
id = 'broken'
title = 'Broken'
quick = true
[[part]]
id = 'long'
title = 'Long'
[quick]
rounds = 2
[full]
rounds = 6
";

struct Fake {
    spec: Spec,
    body: fn(&mut Bench<'_>) -> anyhow::Result<()>,
}

impl Experiment for Fake {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn run(&self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        (self.body)(bench)
    }

    fn conclude(&self, page: &mut Page) {
        page.verdict = format!("{} parts.", page.parts.len());
    }

    fn finding(&self, page: &Page) -> Option<Finding> {
        let row = Finding::new("Fakes", "10 µs");
        let measured = page.part("steady").and_then(|part| part.value("a", "cost"));
        Some(match measured {
            None => row,
            Some(value) => row.found("Fakes cost something.", format!("{value} µs"), Outcome::Undecided),
        })
    }
}

fn fake(body: fn(&mut Bench<'_>) -> anyhow::Result<()>) -> Fake {
    Fake { spec: Spec::parse(FILE).unwrap(), body }
}

fn options() -> Options {
    Options { quick: true, max_foreign: 1e9, max_wait: Duration::ZERO, quiet: true, ..Options::default() }
}

fn steady(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    bench.part("steady", |bench, part| {
        let names = ["a".to_owned(), "b".to_owned()];
        let flaky = Cell::new(0);
        let rounds =
            bench.rounds(part, &names, bench.size("rounds")?, Quiet::Indifferent, Resumed::Part, |i, round| {
                flaky.set(flaky.get() + 1);
                let sample = Sample::of("v", (10 * (i + 1) + round) as f64);
                Ok(if flaky.get() == 2 { sample.void("an operation failed") } else { sample })
            })?;
        for name in &names {
            part.rounds(name, "cost", &rounds.values(name, "v"), "µs");
        }
        part.bars("cost", &["cost"], "lower");
        Ok(())
    })?;
    bench.part("broken", |_, _| anyhow::bail!("its subject would not start"))?;
    bench.part("long", |_, part| {
        part.note("measured");
        Ok(())
    })
}

#[test]
fn a_page_has_figures_voids_and_reasons() {
    let page = run(&fake(steady), &options());
    assert_eq!((page.verdict.as_str(), page.obstacle.as_ref()), ("2 parts.", None));
    let ids: Vec<&str> = page.parts.iter().map(|p| p.id.as_str()).collect();
    assert_eq!(ids, ["steady", "broken"], "a quick run has no long part");
    let steady = &page.parts[0];
    assert_eq!(steady.value("a", "cost"), Some(10.5));
    assert_eq!(steady.value("b", "cost"), Some(20.5));
    assert_eq!((steady.voids.len(), steady.voids[0].why.as_str()), (1, "an operation failed"));
    assert_eq!(page.parts[1].skipped.as_deref(), Some("its subject would not start"));
    assert!(page.settings.iter().any(|f| f.value.contains("no-such-program-anywhere")), "{:?}", page.settings);
    assert_eq!(page.studies.len(), 1);
    let finding = page.finding.as_ref().expect("the row of the study");
    assert_eq!((finding.measured.as_str(), finding.outcome), ("10.5 µs", Outcome::Undecided));
}

#[test]
fn a_study_has_its_row_even_if_the_experiment_could_not_run() {
    let mut spec = Spec::parse(FILE).unwrap();
    spec.subjects[1].optional = false;
    let page = run(&Fake { spec, body: steady }, &options());
    let why = page.obstacle.expect("a program that does not exist");
    let finding = page.finding.expect("the row of the study");
    assert_eq!(finding.outcome, Outcome::NotMeasured);
    assert_eq!(finding.finding, format!("Not run here: {why}."));
}

#[test]
fn sizes_and_parts_can_be_chosen() {
    let mut own = options();
    own.only = vec!["long".into()];
    assert_eq!(run(&fake(steady), &own).parts[0].id, "long");
    own.set = vec![("rounds".into(), "1".into())];
    own.only = vec!["steady".into()];
    assert_eq!(run(&fake(steady), &own).parts[0].value("a", "cost"), Some(10.0));
    for (only, set, said) in [("none", ("rounds", "1"), "steady, broken, long"), ("long", ("depth", "1"), "rounds")] {
        own.only = vec![only.into()];
        own.set = vec![(set.0.into(), set.1.into())];
        let why = run(&fake(steady), &own).obstacle.unwrap();
        assert!(why.contains(said), "{why}");
    }
}

#[test]
fn a_missing_subject_is_a_reason_and_not_a_panic() {
    let mut spec = Spec::parse(FILE).unwrap();
    spec.subjects[1].optional = false;
    let page = run(&Fake { spec, body: steady }, &options());
    assert!(page.obstacle.unwrap().contains("--subject absent=PATH"));
    assert!(page.parts.is_empty());
}

#[test]
fn a_run_that_is_ended_keeps_what_it_has() {
    let page = run(
        &fake(|bench| {
            bench.part("steady", |bench, part| {
                part.rounds("a", "cost", &[1.0], "µs");
                bench.options.cancel.store(true, Ordering::Relaxed);
                bench
                    .rounds(part, &["a".to_owned()], 1, Quiet::Indifferent, Resumed::Part, |_, _| panic!("measured"))
                    .map(drop)
            })?;
            panic!("went on")
        }),
        &options(),
    );
    assert_eq!(page.verdict, "Stopped before its end. 1 parts.");
    assert_eq!(page.parts[0].value("a", "cost"), Some(1.0));
}

#[test]
fn an_error_outside_of_parts_is_said() {
    let page = run(&fake(|_| anyhow::bail!("no room")), &options());
    assert!(page.verdict.contains("Aborted: no room"), "{}", page.verdict);
}

#[test]
fn a_round_without_quiet_is_void() {
    let own = Options { max_foreign: -1.0, tries: 1, ..options() };
    let page = run(
        &fake(|bench| {
            bench.part("steady", |bench, part| {
                let rounds = bench.rounds(part, &["a".to_owned()], 2, Quiet::Wanted, Resumed::Part, |_, _| {
                    Ok(Sample::of("v", 1.0))
                })?;
                anyhow::ensure!(rounds.values("a", "v").is_empty(), "a void round counted");
                Ok(())
            })
        }),
        &own,
    );
    assert_eq!(page.parts[0].skipped, None);
    assert_eq!(page.parts[0].voids.len(), 2);
    assert!(page.parts[0].voids[0].why.starts_with("other programs used"), "{:?}", page.parts[0].voids);
}

#[test]
fn a_round_that_is_void_for_one_subject_can_be_void_for_all() {
    let measured = |whole_cycles| {
        let own = Options { whole_cycles, tries: 1, set: vec![("rounds".into(), "3".into())], ..options() };
        let body = |bench: &mut Bench<'_>| {
            bench.part("steady", |bench, part| {
                let names = ["a".to_owned(), "b".to_owned()];
                let count = bench.size("rounds")?;
                let rounds = bench.rounds(part, &names, count, Quiet::Indifferent, Resumed::Part, |i, round| {
                    let sample = Sample::of("v", round as f64);
                    Ok(if (i, round) == (1, 1) { sample.void("late") } else { sample })
                })?;
                for name in &names {
                    part.rounds(name, "cost", &rounds.values(name, "v"), "µs");
                }
                Ok(())
            })
        };
        run(&fake(body), &own)
    };
    let of = |page: &Page| {
        let n = |name: &str| page.parts[0].of("cost").find(|f| f.subject == name).map(|f| f.n);
        (n("a"), n("b"), page.parts[0].voids.len())
    };
    assert_eq!(of(&measured(false)), (Some(3), Some(2), 1));
    let whole = measured(true);
    assert_eq!(of(&whole), (Some(2), Some(2), 2));
    let void = &whole.parts[0].voids[1];
    assert_eq!((void.subject.as_str(), void.why.as_str()), ("a", "b had no valid attempt in this round"));
}

thread_local! {
    /// How often [`slices`] measured in this test.
    static MEASURED: Cell<usize> = const { Cell::new(0) };
}

/// As [`steady`] with rounds that can be resumed. The run is asked to stop during the third measurement.
fn slices(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    bench.part("steady", |bench, part| {
        let names = ["a".to_owned(), "b".to_owned()];
        let rounds =
            bench.rounds(part, &names, bench.size("rounds")?, Quiet::Indifferent, Resumed::Round, |i, round| {
                MEASURED.set(MEASURED.get() + 1);
                if MEASURED.get() == 3 {
                    bench.options.cancel.store(true, Ordering::Relaxed);
                }
                Ok(Sample::of("v", (10 * (i + 1) + round) as f64))
            })?;
        bench.page.settings.push(sealane_lab_report::Fact::new("added", "by the part"));
        for name in &names {
            part.rounds(name, "cost", &rounds.values(name, "v"), "µs");
        }
        Ok(())
    })
}

/// One subject whose second round is void for as long as less than five measurements were made.
fn unlucky(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    bench.part("steady", |bench, part| {
        let names = ["a".to_owned()];
        let rounds =
            bench.rounds(part, &names, bench.size("rounds")?, Quiet::Indifferent, Resumed::Round, |_, round| {
                MEASURED.set(MEASURED.get() + 1);
                let sample = Sample::of("v", round as f64);
                Ok(if round == 1 && MEASURED.get() < 5 { sample.void("late") } else { sample })
            })?;
        part.rounds("a", "cost", &rounds.values("a", "v"), "µs");
        Ok(())
    })
}

#[test]
fn a_round_without_a_valid_attempt_is_tried_again_when_the_run_is_resumed() {
    MEASURED.set(0);
    let folder = tempfile::tempdir().unwrap();
    let first = Options { journal: Some(Arc::new(Journal::create(folder.path()).unwrap())), ..options() };
    let page = run(&fake(unlucky), &first);
    assert_eq!((MEASURED.get(), page.parts[0].voids.len(), page.parts[0].value("a", "cost")), (4, 3, Some(0.0)));
    drop(first);
    let page = run(&fake(unlucky), &resumed(folder.path()));
    assert_eq!((MEASURED.get(), page.parts[0].voids.len(), page.parts[0].value("a", "cost")), (5, 3, Some(0.5)));
    assert_eq!(page.parts[0].rounds.len(), 5, "the raw data have every attempt of both runs");
}

fn resumed(folder: &Path) -> Options {
    Options { journal: Some(Arc::new(Journal::resume(folder).unwrap())), ..options() }
}

#[test]
fn a_run_that_was_stopped_goes_on_where_it_was() {
    MEASURED.set(0);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let first = Options { journal: Some(Arc::new(Journal::create(folder).unwrap())), ..options() };
    let page = run(&fake(slices), &first);
    assert!(page.verdict.starts_with("Stopped") && page.parts[0].figures.is_empty(), "{page:?}");
    assert_eq!(page.parts[0].rounds.len(), 2, "the third was not over");
    drop(first);

    // The two rounds that were over are not measured again.
    let page = run(&fake(slices), &resumed(folder));
    assert_eq!(MEASURED.get(), 5);
    assert_eq!((page.parts[0].value("a", "cost"), page.parts[0].value("b", "cost")), (Some(10.5), Some(20.5)));
    let fact = |page: &Page, name: &str| page.settings.iter().find(|f| f.name == name).map(|f| f.value.clone());
    let said = fact(&page, "Resumed").unwrap();
    assert!(said.starts_with("2 rounds and 0 whole parts"), "{said}");

    // A part that was measured to its end comes from the journal, with what it added to the page.
    let again = run(&fake(slices), &resumed(folder));
    assert_eq!((MEASURED.get(), &again.parts), (5, &page.parts));
    assert_eq!(fact(&again, "added").as_deref(), Some("by the part"));

    // More rounds than before go on from those that there are.
    let more = Options { set: vec![("rounds".into(), "3".into())], ..resumed(folder) };
    let page = run(&fake(slices), &more);
    assert_eq!((MEASURED.get(), page.parts[0].value("a", "cost")), (7, Some(11.0)));
    drop(more);

    // Another experiment than that of the journal begins; other conditions are refused.
    let other = Options { max_lag: Duration::from_secs(9), ..resumed(folder) };
    assert!(check_resumed(&fake(slices), &other).unwrap_err().to_string().contains("--max-lag"));
    assert!(run(&fake(slices), &other).obstacle.unwrap().contains("--max-lag"));
    drop(other);
    assert!(check_resumed(&fake(slices), &resumed(folder)).is_ok());
    assert_eq!(MEASURED.get(), 7);
}
