//! The steps of `cargo xtask test`: each is run to its end, timed, listed, and named again when it failed.

use crate::metadata::{Workspace, cargo};
use crate::{again, count, layers, licences};
use anyhow::Context;
use clap::ValueEnum;
use std::io::{IsTerminal, Write, stdout};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// One step; cheap ones first, the tests last so that their closing lines are the last thing before the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// Formatting
    Fmt,
    /// Direction of imports, and where `unsafe` may be
    Layers,
    /// Licences of dependencies
    Licences,
    /// Clippy, warnings denied
    Lint,
    /// Documentation builds, warnings denied
    Doc,
    /// Programs and tests compiled
    Build,
    /// TLS stacks built into the user's cache, for the tests that run them
    Stacks,
    /// What an operation costs, counted, beside what is stored
    Count,
    /// Every test of the workspace
    Test,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Fmt => "fmt",
            Step::Layers => "layers",
            Step::Licences => "licences",
            Step::Lint => "lint",
            Step::Doc => "doc",
            Step::Build => "build",
            Step::Stacks => "stacks",
            Step::Count => "count",
            Step::Test => "test",
        }
    }

    /// Runs it, one of `all`; the status is the failing program's own, 0 for success.
    pub fn run(self, workspace: &Workspace, all: &[Step]) -> anyhow::Result<u8> {
        match self {
            Step::Fmt => format(workspace, true),
            Step::Layers => findings("layers", &layers::check(workspace)?),
            Step::Licences => findings("licences", &licences::check(workspace)),
            Step::Lint => lint(workspace),
            Step::Doc => doc(workspace),
            Step::Build => build_all(workspace),
            Step::Stacks => stacks(workspace, !all.contains(&Step::Test)),
            Step::Count => count::check(workspace),
            Step::Test => test(workspace),
        }
    }
}

/// All steps, or those asked for, in their order.
pub fn choose(only: &[Step], skip: &[Step]) -> Vec<Step> {
    let wanted = |step: &Step| (only.is_empty() || only.contains(step)) && !skip.contains(step);
    Step::value_variants().iter().copied().filter(wanted).collect()
}

/// Runs the steps one after the other, all of them even when one fails, and sums up. The status is that of the tests
/// when they failed, else that of the first step that did.
pub fn run_all(workspace: &Workspace, steps: &[Step]) -> anyhow::Result<u8> {
    let paint = Paint::new();
    let mut done = Vec::new();
    for &step in steps {
        println!("{}", paint.bold(&format!("── {}", step.name())));
        stdout().flush()?;
        let start = Instant::now();
        let status = step.run(workspace, steps).unwrap_or_else(|error| {
            eprintln!("{}: {error:#}", step.name());
            1
        });
        done.push((step, status, start.elapsed()));
    }
    println!("{}", paint.bold("── summary"));
    for &(step, status, time) in &done {
        println!("{}", line(&paint, step, status, time));
    }
    stdout().flush()?;
    let failed = |wanted: &dyn Fn(Step) -> bool| done.iter().find(|(step, status, _)| *status != 0 && wanted(*step));
    let worst = failed(&|step| step == Step::Test).or_else(|| failed(&|_| true));
    Ok(worst.map_or(0, |&(_, status, _)| status))
}

fn line(paint: &Paint, step: Step, status: u8, time: Duration) -> String {
    let time = format!("{:.1} s", time.as_secs_f64());
    let name = step.name();
    if status == 0 {
        return format!("  {}      {name:<9} {time:>8}", paint.green("ok"));
    }
    let repeat = if step == Step::Fmt { "cargo xtask fmt".into() } else { format!("cargo xtask test --only {name}") };
    format!("  {}  {name:<9} {time:>8}   exit {status}; repeat: {repeat}", paint.red("failed"))
}

/// The lab's workers for TLS libraries, each a workspace of its own: those that load their library at run time and so
/// compile in seconds.
const LIGHT_WORKERS: [&str; 5] = ["frame", "gnutls", "mbedtls", "openssl", "wolfssl"];
/// The others, which bring a TLS library along.
const HEAVY_WORKERS: [&str; 3] = ["peer", "rustls", "s2n"];

fn worker(workspace: &Workspace, name: &str) -> PathBuf {
    workspace.root().join("lab/stacks/workers").join(name).join("Cargo.toml")
}

/// Formats, or only looks.
pub fn format(workspace: &Workspace, check: bool) -> anyhow::Result<u8> {
    let mut all = cargo();
    all.args(["fmt", "--all"]);
    let workers = LIGHT_WORKERS.iter().chain(&HEAVY_WORKERS).map(|name| {
        let mut one = cargo();
        one.args(["fmt", "--manifest-path"]).arg(worker(workspace, name));
        one
    });
    let mut worst = 0;
    for mut command in std::iter::once(all).chain(workers) {
        if check {
            command.arg("--check");
        }
        worst = worst.max(run(command, workspace)?);
    }
    Ok(worst)
}

/// Writes the generated files. The program that does is an example of the crate that has the declarations; it is built with
/// the features of the whole workspace, as everything is.
pub fn generate(workspace: &Workspace) -> anyhow::Result<u8> {
    let mut build = cargo();
    build.args(["build", "--release", "--workspace", "--example", "generate"]);
    match run(build, workspace)? {
        0 => run(Command::new(workspace.target().join("release/examples/generate")), workspace),
        failed => Ok(failed),
    }
}

fn lint(workspace: &Workspace) -> anyhow::Result<u8> {
    let mut all = cargo();
    all.args(["clippy", "--release", "--workspace", "--all-targets"]);
    // Each `unsafe` says why it is sound.
    const DENIED: [&str; 5] = ["--", "-D", "warnings", "-D", "clippy::undocumented_unsafe_blocks"];
    all.args(DENIED);
    let mut worst = run(all, workspace)?;
    for name in LIGHT_WORKERS {
        let mut one = cargo();
        one.args(["clippy", "--release", "--locked", "--all-targets", "--manifest-path"]).arg(worker(workspace, name));
        one.arg("--target-dir").arg(workspace.target()).args(DENIED);
        // A session never leaves its thread; an option is reborrowed once more than it must be, as in the lines before.
        one.args(["-A", "clippy::arc_with_non_send_sync", "-A", "clippy::needless_option_as_deref"]);
        worst = worst.max(run(one, workspace)?);
    }
    Ok(worst)
}

fn doc(workspace: &Workspace) -> anyhow::Result<u8> {
    let mut command = cargo();
    command.args(["doc", "--release", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
    run(command, workspace)
}

/// Builds the stacks that tests run and that take least: minutes on two cores from nothing, seconds when they are in the
/// cache. Workers are compiled beside the workspace, which has their costly dependencies (AWS-LC) already. Before them the
/// tests of what all workers share (is a handshake that differs from what was asked for refused?), which are outside of
/// the workspace. Then those of the stacks, so that the step means something by itself, unless all tests come anyway.
fn stacks(workspace: &Workspace, tests: bool) -> anyhow::Result<u8> {
    const NAMES: [&str; 6] = ["openssl-3.0", "openssl-1.1.1", "aws-lc", "rustls-aws-lc", "rustls-ring", "gnutls"];
    let mut shared = cargo();
    shared.args(["test", "--release", "--locked", "--manifest-path"]).arg(worker(workspace, "frame"));
    shared.arg("--target-dir").arg(workspace.target());
    for status in [run(shared, workspace)?, build_all(workspace)?] {
        if status != 0 {
            return Ok(status);
        }
    }
    let lab = workspace.target().join("release").join(format!("sealane-lab{}", std::env::consts::EXE_SUFFIX));
    let mut build = Command::new(lab);
    build.args(["stacks", "build"]).args(NAMES).env("SEALANE_STACKS_TARGET", workspace.target());
    let status = run(build, workspace)?;
    if status != 0 || !tests {
        return Ok(status);
    }
    let mut command = cargo();
    command.args(["test", "--release", "--workspace", "--test", "stacks"]);
    run(command, workspace)
}

/// The binaries first, with the features that the tests' build unifies to, so that the tests that start the gateway
/// find the one of this source and nothing is compiled twice.
fn test(workspace: &Workspace) -> anyhow::Result<u8> {
    let status = build_all(workspace)?;
    if status != 0 {
        return Ok(status);
    }
    let gateway = workspace.target().join("release").join(format!("sealane{}", std::env::consts::EXE_SUFFIX));
    let tests = || {
        let mut command = cargo();
        command.args(["test", "--release", "--workspace", "--no-fail-fast"]).env("SEALANE_BIN", &gateway);
        command.current_dir(workspace.root());
        command
    };
    again::run(tests)
}

/// Programs and tests, with the features that all of the workspace wants.
pub fn build_all(workspace: &Workspace) -> anyhow::Result<u8> {
    let mut build = cargo();
    build.args(["build", "--release", "--workspace", "--bins", "--tests"]);
    run(build, workspace)
}

/// The report's tests in a browser, with their screenshots kept.
pub fn browser(workspace: &Workspace) -> anyhow::Result<u8> {
    let shots = workspace.target().join("screenshots");
    let mut command = cargo();
    command.args(["test", "--release", "-p", "sealane-lab-report", "--test", "it", "browser", "--", "--nocapture"]);
    command.env("SEALANE_SCREENSHOTS", &shots);
    let status = run(command, workspace)?;
    println!("screenshots: {}", shots.display());
    Ok(status)
}

fn run(mut command: Command, workspace: &Workspace) -> anyhow::Result<u8> {
    let name = command.get_args().next().map(|a| a.to_string_lossy().into_owned()).unwrap_or_default();
    let status = command.current_dir(workspace.root()).status().with_context(|| format!("cargo {name}"))?;
    Ok(exit_code(status))
}

/// A program's status as a shell would give it: 128 and the signal's number where one ended it.
pub fn exit_code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return u8::try_from(128 + signal).unwrap_or(u8::MAX);
    }
    status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

fn findings(what: &str, found: &[String]) -> anyhow::Result<u8> {
    for finding in found {
        eprintln!("{what}: {finding}");
    }
    Ok(u8::from(!found.is_empty()))
}

/// Colour on a terminal, unless <https://no-color.org> is asked for.
struct Paint(bool);

impl Paint {
    fn new() -> Self {
        Self(stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
    }

    fn wrap(&self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn bold(&self, text: &str) -> String {
        self.wrap("1", text)
    }

    fn green(&self, text: &str) -> String {
        self.wrap("32", text)
    }

    fn red(&self, text: &str) -> String {
        self.wrap("1;31", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_chosen_in_their_own_order() {
        assert_eq!(choose(&[], &[]).len(), Step::value_variants().len());
        assert_eq!(choose(&[Step::Test, Step::Fmt], &[]), [Step::Fmt, Step::Test]);
        assert_eq!(choose(&[Step::Test, Step::Fmt], &[Step::Test]), [Step::Fmt]);
    }

    #[cfg(unix)]
    #[test]
    fn a_programs_status_is_kept() {
        let status = |script: &str| exit_code(Command::new("sh").args(["-c", script]).status().unwrap());
        assert_eq!(status("exit 0"), 0);
        assert_eq!(status("exit 101"), 101);
        assert_eq!(status("kill -TERM $$"), 143);
    }
}
