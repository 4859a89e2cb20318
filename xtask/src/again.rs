//! The tests, and those few that failed up to two times more.
//!
//! Many of our tests run peers, namespaces and floods, and CI's machines are shared: now and then one fails for what its
//! neighbours do. A test that fails among all others and then passes by itself is named as flaky, with how often it was
//! run, for somebody to look at, and does not fail the run. One that fails each time does, and so does everything that is
//! no single test's failure: a test program that died, a build that broke, more failures than chance explains.

use crate::report::{Report, Skip};
use anyhow::Context;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// With more than these there is a cause to find, not chance.
const FEW: usize = 3;
/// How often a test that failed is run again.
const AGAIN: usize = 2;

/// Runs what `tests` makes, a `cargo test`, and again, by themselves, the tests that failed in it; the exit status. What
/// was skipped and what was run again goes into the report.
pub fn run(tests: impl Fn() -> Command, report: &mut Report, out: &mut impl Write) -> anyhow::Result<u8> {
    let mut command = tests();
    // What passing tests print is read for `skipped: …`, and not shown.
    command.args(["--", "--show-output"]);
    let (status, mut first) = watch(&mut command, out)?;
    report.skips.append(&mut first.skips);
    let Some(all) = first.worth_repeating().filter(|_| status != 0) else { return Ok(status) };
    let mut left = all.clone();
    // By test: the run of those alone in which it passed, counted from 1.
    let mut passed: Vec<(String, usize)> = Vec::new();
    for run in 1..=AGAIN {
        writeln!(out, "\nrun again, alone, {run} of at most {AGAIN} times: {}", left.join(", "))?;
        report.retries += left.len();
        let mut command = tests();
        command.args(["--", "--exact", "--test-threads=1"]).args(&left);
        let (status, outcome) = watch(&mut command, out)?;
        let Some(failed) = outcome.failed_of(&left, status) else { break };
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
    Ok(if left.is_empty() { 0 } else { status })
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

    /// The failed tests, where they are all that went wrong, and few.
    fn worth_repeating(&self) -> Option<Vec<String>> {
        let all_ended = self.begun == self.ended;
        (all_ended && (1..=FEW).contains(&self.failed.len())).then(|| self.failed.clone())
    }

    /// Which of these tests, which were run by themselves, failed; `None` where it is not certain that the others passed.
    fn failed_of(&self, names: &[String], status: u8) -> Option<Vec<String>> {
        let failed: Vec<String> = names.iter().filter(|name| self.failed.contains(name)).cloned().collect();
        let explained = (status == 0) == self.failed.is_empty() && self.failed.iter().all(|name| names.contains(name));
        let shown = self.begun == self.ended && self.passed >= names.len() - failed.len();
        (explained && shown).then_some(failed)
    }
}

/// Runs a command, shows what it prints, and reads along.
fn watch(command: &mut Command, out: &mut impl Write) -> anyhow::Result<(u8, Outcome)> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cargo test")?;
    let mut outcome = Outcome::default();
    let mut output = BufReader::new(child.stdout.take().context("no pipe")?);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        if outcome.line(text.trim_end_matches(['\r', '\n'])) {
            write!(out, "{text}")?;
            out.flush()?;
        }
        line.clear();
    }
    Ok((super::steps::exit_code(child.wait()?), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(outcome.worth_repeating(), Some(vec!["b::breaks".to_owned()]));
    }

    #[test]
    fn neither_a_dead_program_nor_many_failures_nor_none_are_repeated() {
        assert_eq!(outcome(&format!("{ONE}\nrunning 1 test\n")).worth_repeating(), None);
        assert_eq!(outcome("").worth_repeating(), None);
        let many = ONE.replace("    b::breaks", "    b::a\n    b::b\n    b::c\n    b::d");
        assert_eq!(outcome(&many).worth_repeating(), None);
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

    #[cfg(unix)]
    #[test]
    fn the_output_of_passing_tests_is_not_shown_and_retries_are_reported() {
        let (mut report, mut out) = (Report::default(), Vec::new());
        let passes = "running 1 test\ntest b::breaks ... ok\n\ntest result: ok. 1 passed; 0 failed;";
        assert_eq!(run(outcomes(&[(ONE, 101), (passes, 0)]), &mut report, &mut out).unwrap(), 0);
        assert_eq!((report.retries, report.retried.len()), (1, 1));
        out.clear();
        assert_eq!(run(outcomes(&[(SKIPPING, 0)]), &mut report, &mut out).unwrap(), 0);
        let shown = String::from_utf8(out).unwrap();
        assert!(!shown.contains("no curl") && shown.contains("test result: ok. 3 passed"), "{shown}");
    }

    /// A command that prints these texts one after the other each time that it is made, and ends with these statuses.
    #[cfg(unix)]
    fn outcomes(runs: &[(&str, u8)]) -> impl Fn() -> Command {
        let made = std::cell::Cell::new(0);
        move || {
            let (text, status) = runs[made.replace(made.get() + 1)];
            let mut command = Command::new("sh");
            // What is given besides are its arguments.
            command.args(["-c", &format!("cat <<'END'\n{text}\nEND\nexit {status}")]);
            command
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_passes_alone_is_flaky_and_what_fails_each_time_has_failed() {
        const PASSES: (&str, u8) = ("running 1 test\ntest b::breaks ... ok\n\ntest result: ok. 1 passed; 0 failed;", 0);
        const FAILS: (&str, u8) = (ONE, 101);
        let result = |runs: &[(&'static str, u8)]| {
            // Not to the standard output, where the run of this test would read it as results.
            run(outcomes(runs), &mut Report::default(), &mut Vec::new()).unwrap()
        };
        assert_eq!(result(&[PASSES]), 0);
        assert_eq!(result(&[FAILS, PASSES]), 0);
        assert_eq!(result(&[FAILS, FAILS, PASSES]), 0);
        assert_eq!(result(&[FAILS, FAILS, FAILS]), 101);
        // Nothing ran: nothing was shown. The same where something died.
        assert_eq!(result(&[FAILS, ("running 0 tests\n\ntest result: ok. 0 passed;", 0)]), 101);
        assert_eq!(result(&[FAILS, ("running 1 test", 101)]), 101);
        // What does not fail in a test is not repeated.
        assert_eq!(result(&[("error: could not compile", 101)]), 101);
        // Of two, each has to pass once.
        let two = ONE.replace("    b::breaks", "    b::breaks\n    c::too").leak();
        assert_eq!(result(&[(two, 101), FAILS, PASSES]), 0);
        assert_eq!(result(&[(two, 101), FAILS, FAILS]), 101);
    }
}
