//! The tests, and once more those few that failed.
//!
//! Many of our tests run peers, namespaces and floods, and CI's machines are shared: now and then one fails for what its
//! neighbours do. A test that fails among all others and then passes by itself is named as flaky, for somebody to look
//! at, and does not fail the run. One that fails twice does, and so does everything that is no single test's failure:
//! a test program that died, a build that broke, more failures than chance explains.

use anyhow::Context;
use std::io::{BufRead, BufReader, Write, stdout};
use std::process::{Command, Stdio};

/// With more than these there is a cause to find, not chance.
const FEW: usize = 3;

/// Runs `tests`, a `cargo test`, and once more what failed in it; the exit status.
pub fn run(mut tests: Command, mut once_more: Command) -> anyhow::Result<u8> {
    let (status, first) = watch(&mut tests)?;
    let Some(names) = first.worth_repeating().filter(|_| status != 0) else { return Ok(status) };
    println!("\nonce more, alone: {}", names.join(", "));
    once_more.args(["--", "--exact", "--test-threads=1"]).args(&names);
    let (again, second) = watch(&mut once_more)?;
    if again != 0 || second.passed < names.len() {
        return Ok(status);
    }
    for name in names {
        println!("flaky: {name} failed among the others and passed alone");
    }
    Ok(0)
}

/// What the test programs printed of themselves.
#[derive(Debug, Default)]
struct Outcome {
    /// Test programs that began, and that told their result.
    begun: usize,
    ended: usize,
    passed: usize,
    failed: Vec<String>,
    /// Within the closing list of names.
    listing: bool,
}

impl Outcome {
    fn line(&mut self, line: &str) {
        if self.listing {
            match line.strip_prefix("    ") {
                Some(name) => return self.failed.push(name.to_owned()),
                None => self.listing = false,
            }
        }
        if line == "failures:" {
            self.listing = true;
        } else if line.starts_with("running ") && line.trim_end_matches('s').ends_with(" test") {
            self.begun += 1;
        } else if line.starts_with("test result: ") {
            self.ended += 1;
        } else if line.starts_with("test ") && line.ends_with(" ... ok") {
            self.passed += 1;
        }
    }

    /// The failed tests, where they are all that went wrong, and few.
    fn worth_repeating(&self) -> Option<Vec<String>> {
        let all_ended = self.begun == self.ended;
        (all_ended && (1..=FEW).contains(&self.failed.len())).then(|| self.failed.clone())
    }
}

/// Runs a command, shows what it prints, and reads along.
fn watch(command: &mut Command) -> anyhow::Result<(u8, Outcome)> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cargo test")?;
    let mut outcome = Outcome::default();
    let mut output = BufReader::new(child.stdout.take().context("no pipe")?);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        // `print!`, so that our own tests' is captured like any other's.
        print!("{text}");
        stdout().flush()?;
        outcome.line(text.trim_end_matches(['\r', '\n']));
        line.clear();
    }
    Ok((super::steps::exit_code(child.wait()?), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(text: &str) -> Outcome {
        let mut outcome = Outcome::default();
        text.lines().for_each(|line| outcome.line(line));
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

    #[cfg(unix)]
    #[test]
    fn what_fails_once_is_flaky_and_what_fails_twice_has_failed() {
        let dir = std::env::temp_dir().join(format!("xtask-again-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let shell = |name: &str, text: &str, status: u8| {
            std::fs::write(dir.join(name), text).unwrap();
            let mut command = Command::new("sh");
            command.args(["-c", &format!("cat {}; exit {status}", dir.join(name).display())]);
            command
        };
        let passes = || shell("passes", "running 1 test\ntest b::breaks ... ok\n\ntest result: ok.\n", 0);
        assert_eq!(run(shell("fails", ONE, 101), passes()).unwrap(), 0);
        assert_eq!(run(shell("fails", ONE, 101), shell("fails-too", ONE, 101)).unwrap(), 101);
        // Nothing ran: nothing was shown.
        assert_eq!(run(shell("fails", ONE, 101), shell("nothing", "running 0 tests\n", 0)).unwrap(), 101);
        // What does not fail in a test is not repeated.
        assert_eq!(run(shell("broken", "error: could not compile\n", 101), passes()).unwrap(), 101);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
