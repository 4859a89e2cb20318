//! The tests, and those few that failed up to two times more.
//!
//! Many of our tests run peers, namespaces and floods, and CI's machines are shared: now and then one fails for what its
//! neighbours do. A test that fails among all others and then passes by itself is named as flaky, with how often it was
//! run, for somebody to look at, and does not fail the run. One that fails each time does, and so does everything that is
//! no single test's failure: a test program that died, a build that broke, more failures than chance explains.

use crate::report::{Report, Skip};
use crate::test_programs::{self, Runs};
use std::io::Write;

/// With more than these there is a cause to find, not chance.
const FEW: usize = 3;
/// How often a test that failed is run again.
const AGAIN: usize = 2;

/// Runs test programs, and again, by themselves, the tests that failed in them; the exit status. What was skipped and what was run
/// again goes into the report.
pub fn run(programs: &[impl Runs], report: &mut Report, out: &mut (impl Write + Send)) -> anyhow::Result<u8> {
    let all: Vec<&dyn Runs> = programs.iter().map(|program| program as &dyn Runs).collect();
    // What passing tests print is read for `skipped: …`, and not shown.
    let (statuses, outcomes) = watch(&all, &["--show-output"], out)?;
    report.skips.extend(outcomes.iter().flat_map(|outcome| outcome.skips.clone()));
    let failed = outcomes.iter().map(|outcome| outcome.failed.len()).sum::<usize>();
    let explained = statuses.iter().zip(&outcomes).all(|(status, outcome)| outcome.explains(*status));
    let status = statuses.iter().copied().find(|status| *status != 0).unwrap_or(u8::from(!explained));
    if status == 0 || !explained || failed > FEW {
        return Ok(status);
    }
    let mut unmended = false;
    for (program, outcome) in all.iter().zip(outcomes).filter(|(_, outcome)| !outcome.failed.is_empty()) {
        unmended |= !again(*program, outcome.failed, report, out)?;
    }
    Ok(if unmended { status } else { 0 })
}

/// Runs the tests of a program that failed, until each has passed once. Returns whether each did.
fn again(
    program: &dyn Runs,
    mut left: Vec<String>,
    report: &mut Report,
    out: &mut (impl Write + Send),
) -> anyhow::Result<bool> {
    // By test: the run of those alone in which it passed, counted from 1.
    let mut passed: Vec<(String, usize)> = Vec::new();
    for run in 1..=AGAIN {
        writeln!(out, "\nrun again, alone, {run} of at most {AGAIN} times: {}", left.join(", "))?;
        report.retries += left.len();
        let arguments: Vec<&str> =
            ["--exact", "--test-threads=1"].into_iter().chain(left.iter().map(String::as_str)).collect();
        let (statuses, outcomes) = watch(&[program], &arguments, out)?;
        let Some(failed) = outcomes[0].failed_of(&left, statuses[0]) else { break };
        passed.extend(left.iter().filter(|name| !failed.contains(name)).map(|name| (name.clone(), run)));
        left = failed;
        if left.is_empty() {
            break;
        }
    }
    for (name, run) in &passed {
        report.retried.push(format!("flaky: {name} failed {run} of {} times, and then passed alone", run + 1));
    }
    for name in &left {
        report.retried.push(format!("failed: {name}, also alone"));
    }
    Ok(left.is_empty())
}

/// What the test programs printed of themselves.
#[derive(Debug, Default)]
struct Outcome {
    /// Test programs that began, and that told their result.
    begun: usize,
    ended: usize,
    passed: usize,
    failed: Vec<String>,
    /// Tests that could not run here.
    skips: Vec<Skip>,
    /// Within the closing list of names.
    listing: bool,
    /// Within what passing tests have printed.
    successes: bool,
    /// The test whose output this is.
    test: String,
}

impl Outcome {
    /// Takes note of a line, and returns whether it is to be shown.
    fn line(&mut self, line: &str) -> bool {
        if line == "successes:" {
            self.successes = true;
            self.test.clear();
            return false;
        }
        if self.successes && line != "failures:" && !line.starts_with("test result: ") {
            self.success(line);
            return false;
        }
        self.successes = false;
        if self.listing {
            match line.strip_prefix("    ") {
                Some(name) => {
                    self.failed.push(name.to_owned());
                    return true;
                }
                None => self.listing = false,
            }
        }
        if line == "failures:" {
            self.listing = true;
        } else if line.starts_with("running ") && line.trim_end_matches('s').ends_with(" test") {
            self.begun += 1;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.ended += 1;
            let passed = result.split([';', '.']).find_map(|part| part.trim().strip_suffix(" passed"));
            self.passed += passed.and_then(|n| n.parse::<usize>().ok()).unwrap_or(0);
        }
        true
    }

    /// A line of what passing tests have printed.
    fn success(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            self.test = name.to_owned();
        } else if let Some((before, why)) = line.split_once("skipped: ")
            && (before.is_empty() || before.ends_with(": "))
            && !self.test.is_empty()
        {
            self.skips.push(Skip { name: self.test.clone(), why: why.to_owned() });
        }
    }

    /// Whether a program that ended with this status came to the end of its tests, and failed tests are all that went wrong.
    fn explains(&self, status: u8) -> bool {
        self.begun > 0 && self.begun == self.ended && (status == 0) == self.failed.is_empty()
    }

    /// Which of these tests, which were run by themselves, failed; `None` where it is not certain that the others passed.
    fn failed_of(&self, names: &[String], status: u8) -> Option<Vec<String>> {
        let failed: Vec<String> = names.iter().filter(|name| self.failed.contains(name)).cloned().collect();
        let explained = (status == 0) == self.failed.is_empty() && self.failed.iter().all(|name| names.contains(name));
        let shown = self.begun == self.ended && self.passed >= names.len() - failed.len();
        (explained && shown).then_some(failed)
    }
}

/// Runs programs, shows what they print, and reads along.
fn watch(
    programs: &[&dyn Runs],
    arguments: &[&str],
    out: &mut (impl Write + Send),
) -> anyhow::Result<(Vec<u8>, Vec<Outcome>)> {
    let mut outcomes: Vec<Outcome> = programs.iter().map(|_| Outcome::default()).collect();
    let statuses = test_programs::run(programs, arguments, test_programs::PATIENCE, |index, line| {
        let text = String::from_utf8_lossy(line);
        if outcomes[index].line(text.trim_end_matches(['\r', '\n'])) {
            test_programs::show(out, line)?;
        }
        Ok(())
    })?;
    Ok((statuses, outcomes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_programs::Script;

    fn outcome(text: &str) -> Outcome {
        let mut outcome = Outcome::default();
        for line in text.lines() {
            outcome.line(line);
        }
        outcome
    }

    const ONE: &str = "
running 2 tests
test a::works ... ok
test b::breaks ... FAILED

failures:

---- b::breaks stdout ----
assertion failed

failures:
    b::breaks

test result: FAILED. 1 passed; 1 failed; 0 ignored
";

    #[test]
    fn failed_tests_are_read_from_the_closing_list() {
        let outcome = outcome(ONE);
        assert_eq!((outcome.begun, outcome.ended, outcome.passed), (1, 1, 1));
        assert_eq!(outcome.failed, ["b::breaks"]);
        assert!(outcome.explains(101) && !outcome.explains(0));
    }

    #[test]
    fn a_program_that_dies_is_not_explained_by_its_tests() {
        assert!(!outcome(&format!("{ONE}\nrunning 1 test\n")).explains(101));
        assert!(!outcome("running 1 test").explains(101) && !outcome("").explains(101));
        // A test that ends the program takes the others with it.
        assert!(!outcome("running 2 tests\ntest a ... ok").explains(0) && !outcome("").explains(0));
        assert!(outcome("running 1 test\ntest a ... ok\n\ntest result: ok. 1 passed; 0 failed;").explains(0));
    }

    const SKIPPING: &str = "
running 3 tests
test a ... ok

successes:

---- a::works stdout ----
skipped, it says

---- b::cannot stdout ----
b: skipped: no curl
it was skipped: not so

---- c::cannot stdout ----
skipped: no netem


successes:
    a::works
    b::cannot
    c::cannot

test result: ok. 3 passed; 0 failed; 0 ignored
";

    #[test]
    fn skips_are_read_from_what_passing_tests_print() {
        let outcome = outcome(SKIPPING);
        let skips: Vec<(&str, &str)> = outcome.skips.iter().map(|s| (s.name.as_str(), s.why.as_str())).collect();
        assert_eq!(skips, [("b::cannot", "no curl"), ("c::cannot", "no netem")]);
        assert_eq!((outcome.begun, outcome.ended, outcome.passed), (1, 1, 3));
    }

    const PASSES: (&str, u8) = ("running 1 test\ntest b::breaks ... ok\n\ntest result: ok. 1 passed; 0 failed;", 0);
    const FAILS: (&str, u8) = (ONE, 101);

    #[cfg(unix)]
    #[test]
    fn the_output_of_passing_tests_is_not_shown_and_retries_are_reported() {
        let (mut report, mut out) = (Report::default(), Vec::new());
        assert_eq!(run(&[Script::new(&[FAILS, PASSES])], &mut report, &mut out).unwrap(), 0);
        assert_eq!((report.retries, report.retried.len()), (1, 1));
        out.clear();
        assert_eq!(run(&[Script::new(&[(SKIPPING, 0)])], &mut report, &mut out).unwrap(), 0);
        let shown = String::from_utf8(out).unwrap();
        assert!(!shown.contains("no curl") && shown.contains("test result: ok. 3 passed"), "{shown}");
    }

    /// The status of programs that print these texts, each its own when it is run, and what was run again.
    #[cfg(unix)]
    fn result(programs: &[&[(&str, u8)]]) -> (u8, usize) {
        let (scripts, mut report) =
            (programs.iter().map(|runs| Script::new(runs)).collect::<Vec<_>>(), Report::default());
        // Not to the standard output, where the run of this test would read it as results.
        (run(&scripts, &mut report, &mut Vec::new()).unwrap(), report.retries)
    }

    #[cfg(unix)]
    #[test]
    fn what_passes_alone_is_flaky_and_what_fails_each_time_has_failed() {
        assert_eq!(result(&[&[PASSES]]), (0, 0));
        assert_eq!(result(&[&[FAILS, PASSES]]), (0, 1));
        assert_eq!(result(&[&[FAILS, FAILS, PASSES]]), (0, 2));
        assert_eq!(result(&[&[FAILS, FAILS, FAILS]]), (101, 2));
        // Nothing ran: nothing was shown. The same where something died.
        assert_eq!(result(&[&[FAILS, ("running 0 tests\n\ntest result: ok. 0 passed;", 0)]]), (101, 1));
        assert_eq!(result(&[&[FAILS, ("running 1 test", 101)]]), (101, 1));
        // What does not fail in a test is not repeated.
        assert_eq!(result(&[&[("running 1 test", 134)]]), (134, 0));
        assert_eq!(result(&[&[("running 1 test", 0)]]), (1, 0));
        // Of two, each has to pass once.
        let two = ONE.replace("    b::breaks", "    b::breaks\n    c::too").leak();
        assert_eq!(result(&[&[(two, 101), FAILS, PASSES]]), (0, 3));
        assert_eq!(result(&[&[(two, 101), FAILS, FAILS]]), (101, 3));
    }

    #[cfg(unix)]
    #[test]
    fn only_programs_with_failed_tests_are_run_again() {
        assert_eq!(result(&[&[PASSES], &[FAILS, PASSES], &[PASSES]]), (0, 1));
        assert_eq!(result(&[&[FAILS, PASSES], &[FAILS, FAILS, PASSES]]), (0, 3));
        assert_eq!(result(&[&[FAILS, PASSES], &[FAILS, FAILS, FAILS]]), (101, 3));
        // A program that died is a failure of its own, and more than a few failures have a cause.
        assert_eq!(result(&[&[FAILS], &[("running 1 test", 139)]]), (101, 0));
        assert_eq!(result(&[&[FAILS], &[FAILS], &[FAILS], &[FAILS]]), (101, 0));
    }
}
