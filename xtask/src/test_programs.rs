//! The programs that cargo compiles from tests, run side by side.
//!
//! `cargo test` runs one program after the other. Many of our tests wait most of the time, so several programs use the machine better.
//! They disturb each other no more than the tests of one program do, which run side by side as well: each reserves its own ports
//! (`lab/ports`) and makes its own folders.

use crate::metadata::{Workspace, cargo, without_ours};
use crate::steps::exit_code;
use anyhow::Context;
use serde::Deserialize;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How many programs run at the same time. Each runs as many tests at the same time as the machine has cores, the largest three times as
/// many.
const AT_ONCE: usize = 2;

/// How long a test program may print nothing. The slowest test takes a few minutes on a busy machine; a program that is silent for longer
/// waits for something that never happens, and CI would end the whole run without a report.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// The status of a program that was ended for its silence, as `timeout` has it.
const TIMED_OUT: u8 = 124;

/// A program with tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestProgram {
    /// What cargo calls it: the package, and the kind and name of the target.
    pub name: String,
    file: PathBuf,
    /// The package's folder, where cargo starts test programs.
    folder: PathBuf,
    /// Variables of the environment for it.
    variables: Vec<(&'static str, OsString)>,
}

/// A line of cargo's messages, as far as it is about a program.
#[derive(Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl TestProgram {
    /// The program that a line of cargo's messages names.
    fn of(line: &str) -> Option<Self> {
        let message: Message = serde_json::from_str(line).ok()?;
        let (file, target) = (message.executable?, message.target?);
        message.profile.filter(|profile| profile.test)?;
        let folder = message.manifest_path?.parent()?.to_owned();
        let package = folder.file_name()?.to_string_lossy().into_owned();
        let kind = target.kind.first()?;
        Some(Self { name: format!("{package}: {kind} {}", target.name), file, folder, variables: Vec::new() })
    }

    /// Sets a variable of the environment.
    pub fn env(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.variables.push((name, value.into()));
    }

    /// Whether these are the tests against the running gateway: most of all, and so the first to start.
    fn is_largest(&self) -> bool {
        self.folder.ends_with("tests/interop")
    }
}

/// A program with tests: those of cargo, or what a test of this module takes for one.
pub trait Runs: Sync {
    /// What to call it.
    fn name(&self) -> &str;
    /// The command that runs its tests.
    fn command(&self) -> Command;
}

impl Runs for TestProgram {
    fn name(&self) -> &str {
        &self.name
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        without_ours(&mut command);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if self.is_largest() {
            // It runs longest, most of the time with no other program beside it, and its tests wait more than they compute.
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            command.env("RUST_TEST_THREADS", (3 * cores).to_string());
        }
        // Tests that start cargo start the one that compiled them.
        command.env("CARGO", cargo().get_program());
        command
    }
}

/// Compiles what a `cargo test` would run, and returns the programs, or the status of the failed cargo.
pub fn compile(mut cargo: Command, workspace: &Workspace) -> anyhow::Result<Result<Vec<TestProgram>, u8>> {
    cargo.args(["--no-run", "--message-format", "json-render-diagnostics"]).current_dir(workspace.root());
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("cargo test --no-run")?;
    let messages = BufReader::new(child.stdout.take().context("no pipe")?);
    let mut programs = Vec::new();
    for line in messages.lines() {
        programs.extend(TestProgram::of(&line?));
    }
    let status = exit_code(child.wait()?);
    // The others keep cargo's order.
    programs.sort_by_key(|program| !program.is_largest());
    Ok(if status == 0 { Ok(programs) } else { Err(status) })
}

/// Runs programs, several at a time, and hands each line that they print to a closure with the program's index. The first program's
/// lines are handed over at once, those of the others when the program has ended, so that they stay together. A program that prints
/// nothing for `patience` is ended. Returns the programs' exit statuses.
pub fn run(
    programs: &[&dyn Runs],
    arguments: &[&str],
    patience: Duration,
    take: impl FnMut(usize, &[u8]) -> anyhow::Result<()> + Send,
) -> anyhow::Result<Vec<u8>> {
    let take = Mutex::new(take);
    let waiting = Mutex::new((0..programs.len()).collect::<VecDeque<_>>());
    let statuses = Mutex::new(vec![0; programs.len()]);
    let work = || -> anyhow::Result<()> {
        loop {
            let Some(index) = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front() else { return Ok(()) };
            let take = |lines: &[Vec<u8>]| {
                let mut take = take.lock().unwrap_or_else(PoisonError::into_inner);
                lines.iter().try_for_each(|line| (*take)(index, line))
            };
            let status = one(programs[index], arguments, patience, index == 0, take)?;
            statuses.lock().unwrap_or_else(PoisonError::into_inner)[index] = status;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE.min(programs.len())).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(statuses.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Runs one program.
fn one(
    program: &dyn Runs,
    arguments: &[&str],
    patience: Duration,
    at_once: bool,
    mut take: impl FnMut(&[Vec<u8>]) -> anyhow::Result<()>,
) -> anyhow::Result<u8> {
    let mut command = program.command();
    // Its standard error stays ours: libtest catches what tests print, so there is only what a program says that dies.
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| program.name().to_owned())?;
    let heading = format!("\n     Running {}\n", program.name()).into_bytes();
    let mut kept = vec![heading];
    let status = lines(&mut child, patience, |line| {
        kept.push(line);
        if at_once {
            take(&kept)?;
            kept.clear();
        }
        Ok(())
    })?;
    take(&kept)?;
    Ok(status)
}

/// Reads what a program prints to its end, line by line.
fn lines(
    child: &mut Child,
    patience: Duration,
    mut take: impl FnMut(Vec<u8>) -> anyhow::Result<()>,
) -> anyhow::Result<u8> {
    let mut output = BufReader::new(child.stdout.take().context("no pipe")?);
    let (send, read) = sync_channel(64);
    // Not joined: programs that a test has started and left may hold the pipe open.
    std::thread::spawn(move || {
        loop {
            let mut line = Vec::new();
            let end = !output.read_until(b'\n', &mut line).is_ok_and(|length| length > 0);
            if end || send.send(line).is_err() {
                return;
            }
        }
    });
    loop {
        match read.recv_timeout(patience) {
            Ok(line) => take(line)?,
            Err(RecvTimeoutError::Disconnected) => return Ok(exit_code(child.wait()?)),
            Err(RecvTimeoutError::Timeout) => {
                child.kill()?;
                child.wait()?;
                let why = format!("ended: it printed nothing for {} seconds\n", patience.as_secs());
                take(why.into_bytes())?;
                return Ok(TIMED_OUT);
            }
        }
    }
}

/// Writes a line.
pub fn show(out: &mut impl Write, line: &[u8]) -> anyhow::Result<()> {
    out.write_all(line)?;
    out.flush()?;
    Ok(())
}

/// A program for the tests of this module and of those that use it: a shell script that prints a text and ends with a status.
#[cfg(test)]
pub struct Script {
    texts: Vec<(String, u8)>,
    runs: std::sync::atomic::AtomicUsize,
}

#[cfg(test)]
impl Script {
    /// What it prints each time that it is run.
    pub fn new(runs: &[(&str, u8)]) -> Self {
        let texts = runs.iter().map(|(text, status)| ((*text).to_owned(), *status)).collect();
        Self { texts, runs: 0.into() }
    }
}

#[cfg(test)]
impl Runs for Script {
    fn name(&self) -> &str {
        "script"
    }

    fn command(&self) -> Command {
        let run = self.runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (text, status) = &self.texts[run];
        let mut command = Command::new("sh");
        // What is given besides are its arguments.
        command.args(["-c", &format!("cat <<'END'\n{text}\nEND\nexit {status}"), "sh"]);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn test_programs_are_read_from_cargos_messages() {
        let line = r#"{"reason":"compiler-artifact","package_id":"path+file:///x/gateway/http#sealane-http@0.1.0",
            "manifest_path":"/x/gateway/http/Cargo.toml","target":{"kind":["lib"],"name":"sealane_http","src_path":"/x"},
            "profile":{"opt_level":"1","test":true},"features":[],"executable":"/x/target/release/deps/sealane_http-1","fresh":true}"#;
        let program = TestProgram::of(line).unwrap();
        assert_eq!(
            (program.name.as_str(), program.folder.as_path()),
            ("http: lib sealane_http", Path::new("/x/gateway/http"))
        );
        assert!(!program.is_largest());
        // A library, a program, and another message.
        assert_eq!(TestProgram::of(&line.replace("\"/x/target/release/deps/sealane_http-1\"", "null")), None);
        assert_eq!(TestProgram::of(&line.replace("\"test\":true", "\"test\":false")), None);
        assert_eq!(TestProgram::of(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn every_program_runs_once_and_its_lines_stay_together() {
        let scripts: Vec<Script> = (0..5).map(|n| Script::new(&[(format!("a {n}\nb {n}").as_str(), n)])).collect();
        let programs: Vec<&dyn Runs> = scripts.iter().map(|script| script as &dyn Runs).collect();
        let mut lines = Vec::new();
        let statuses = run(&programs, &["--exact"], PATIENCE, |index, line| {
            lines.push((index, String::from_utf8_lossy(line).trim().to_owned()));
            Ok(())
        });
        assert_eq!(statuses.unwrap(), [0, 1, 2, 3, 4]);
        for index in 0..5 {
            let of: Vec<&str> = lines.iter().filter(|(i, _)| *i == index).map(|(_, line)| line.as_str()).collect();
            assert_eq!(of, ["Running script", &format!("a {index}"), &format!("b {index}")]);
            let first = lines.iter().position(|(i, _)| *i == index).unwrap();
            // The first program's lines are shown as they come.
            assert!(index == 0 || lines[first..first + 3].iter().all(|(i, _)| *i == index), "{lines:?}");
        }
    }

    #[test]
    fn a_program_that_prints_nothing_is_ended() {
        struct Silent;
        impl Runs for Silent {
            fn name(&self) -> &str {
                "silent"
            }
            fn command(&self) -> Command {
                let mut command = Command::new("sh");
                command.args(["-c", "echo begun; exec sleep 1000"]);
                command
            }
        }
        let mut lines = Vec::new();
        let statuses = run(&[&Silent], &[], Duration::from_millis(300), |_, line| {
            lines.push(String::from_utf8_lossy(line).trim().to_owned());
            Ok(())
        });
        assert_eq!(statuses.unwrap(), [TIMED_OUT]);
        assert_eq!(lines, ["Running silent", "begun", "ended: it printed nothing for 0 seconds"]);
    }
}
