//! Steps of `cargo xtask test` that run beside the others, with the CPU time that the others leave.
//!
//! Each step is a process of this program (`cargo xtask test --only STEP`): its output stays together, and all programs that it starts
//! have its priority.

use crate::steps::{Step, exit_code};
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The steps, one after the other.
pub struct Background(JoinHandle<Vec<Ended>>);

/// A step that has ended.
pub struct Ended {
    pub step: Step,
    pub status: u8,
    pub time: Duration,
    pub output: String,
}

impl Background {
    /// Starts the steps in the repository's root.
    pub fn start(steps: Vec<Step>, root: &Path) -> Self {
        let root = root.to_owned();
        Self(thread::spawn(move || steps.into_iter().map(|step| run(step, &root)).collect()))
    }

    /// Waits for the last step.
    pub fn wait(self) -> Vec<Ended> {
        self.0.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn run(step: Step, root: &Path) -> Ended {
    let start = Instant::now();
    let mut command = with_idle_priority(&this_program());
    command.args(["test", "--only", step.name()]).current_dir(root);
    let (status, output) = outcome(command).unwrap_or_else(|error| (1, format!("{}: {error}\n", step.name())));
    Ended { step, status, time: start.elapsed(), output }
}

/// This program, also after the build of the tests has put another one in its place.
fn this_program() -> String {
    format!("/proc/{}/exe", std::process::id())
}

/// A program that gets the time in which the CPU would be idle, without a delay of those that have something to do.
fn with_idle_priority(program: &str) -> Command {
    let idle = ["--idle", "0"];
    // A container may forbid it.
    let is_allowed = Command::new("chrt").args(idle).arg("true").output().is_ok_and(|output| output.status.success());
    let (tool, options) = if is_allowed { ("chrt", idle) } else { ("nice", ["-n", "19"]) };
    let mut command = Command::new(tool);
    command.args(options).arg(program);
    command
}

/// Runs a program to its end. Returns its status and all that it has printed.
fn outcome(mut command: Command) -> io::Result<(u8, String)> {
    let (mut reader, writer) = io::pipe()?;
    let mut child = command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).spawn()?;
    // It holds the pipe's other end, too.
    drop(command);
    let mut output = Vec::new();
    reader.read_to_end(&mut output)?;
    Ok((exit_code(child.wait()?), String::from_utf8_lossy(&output).into_owned()))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_a_low_priority_and_all_its_output() {
        let mut command = with_idle_priority("sh");
        command.args(["-c", "echo one; echo two >&2; cat /proc/self/stat; exit 3"]);
        let (status, output) = outcome(command).unwrap();
        assert!(status == 3 && output.starts_with("one\ntwo\n"), "{status} {output}");
        // The numbers of nice (19th) and of the policy (41st) follow the name in parentheses, which is the second.
        let numbers: Vec<&str> = output.rsplit_once(") ").unwrap().1.split(' ').collect();
        assert!(numbers[16] == "19" || numbers[38] == "5", "{output}");
    }

    #[test]
    fn this_program_can_be_started() {
        let mut command = with_idle_priority(&this_program());
        // The test harness itself.
        command.args(["--list", "background::"]);
        let (status, output) = outcome(command).unwrap();
        assert!(status == 0 && output.contains("this_program_can_be_started"), "{status} {output}");
    }
}
