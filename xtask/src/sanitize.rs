//! `cargo xtask sanitize`: errors of memory, as tools see them that watch a program while it runs: the address sanitizer of the nightly
//! compiler, and valgrind's memcheck.
//!
//! Both watch the unit tests of the crates with `unsafe` code and of those that give it memory. For the sanitizer, these are compiled once
//! more, in `target/sanitize`. Memcheck also watches the gateway while some interop tests use it. The gateway's allocator is mimalloc, of whose
//! blocks valgrind knows nothing: there, memcheck finds uses of undefined values, and invalid addresses outside of these blocks.
//!
//! Valgrind's drd is of no use here: it does not know the atomics and locks of Rust's standard library, and reports each message that passes
//! between two threads.

use crate::metadata::{Workspace, cargo, without_ours};
use crate::steps::{self, Checks};
use crate::test_programs::{self, Runs, TestProgram, show};
use anyhow::{Context, ensure};
use clap::ValueEnum;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// Packages whose unit tests run: those with `unsafe` code, and those that give it memory.
const PACKAGES: [&str; 3] = ["sealane-sys", "sealane-lane", "sealane-tunnel"];
/// Interop tests of the gateway, for memcheck. It makes a program some thirty times slower.
const SMOKE: [&str; 5] = [
    "h2::requests",
    "h3::bodies_go_both_ways_whole",
    "h3::requests_share_a_connection",
    "handshake::",
    "udp_relay::replies_go_back",
];
/// What valgrind reports and is none, with a reason for each.
const SUPPRESSIONS: &str = "xtask/valgrind.supp";
/// Written before each error in valgrind's logs.
const MARK: &str = "SEALANE-ERROR";
/// Valgrind makes tests slow.
const SILENCE_LIMIT: Duration = Duration::from_secs(1800);

#[derive(clap::Args)]
pub struct Options {
    /// Only these tools
    #[arg(long, value_enum, num_args = 1.., value_name = "TOOL")]
    only: Vec<Tool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tool {
    /// The address sanitizer
    Address,
    /// Valgrind's memcheck
    Memcheck,
}

/// What a tool has found in some tests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    passed: usize,
    failed: usize,
    errors: usize,
}

/// Runs the tools; 1 if a test fails or a tool finds an error.
pub fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<u8> {
    let mut worst = 0;
    let mut rows =
        vec!["| tool | watches | tests | errors | duration |".to_owned(), "|---|---|---|---|---|".to_owned()];
    for &tool in Tool::value_variants() {
        if !options.only.is_empty() && !options.only.contains(&tool) {
            continue;
        }
        let name = tool.to_possible_value().context("a tool has a name")?.get_name().to_owned();
        if let Some(why) = tool.missing() {
            println!("sanitize: skipped: {name}: {why}");
            continue;
        }
        let logs = workspace.target().join("sanitize").join(&name);
        if logs.exists() {
            std::fs::remove_dir_all(&logs)?;
        }
        std::fs::create_dir_all(&logs)?;
        for (what, found, time) in tool.run(workspace, &logs)? {
            worst = worst.max(u8::from(found.failed + found.errors > 0 || found.passed == 0));
            let Found { passed, failed, errors } = found;
            let tests = if failed == 0 { passed.to_string() } else { format!("{passed}, {failed} fail") };
            rows.push(format!("| {name} | {what} | {tests} | {errors} | {:.1} min |", time.as_secs_f64() / 60.0));
        }
        println!("{name}: the logs are in {}", logs.display());
    }
    println!("\n{}", rows.join("\n"));
    Ok(worst)
}

impl Tool {
    fn missing(self) -> Option<&'static str> {
        let works = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            without_ours(&mut command);
            let status = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        };
        match self {
            Self::Address if !works("rustup", &["run", "nightly", "rustc", "--version"]) => {
                Some("there is no nightly compiler (rustup toolchain install nightly)")
            }
            Self::Memcheck if !works("valgrind", &["--version"]) => Some("`valgrind` is not installed"),
            _ => None,
        }
    }

    /// What was watched, what came of it, and how long that took.
    fn run(self, workspace: &Workspace, logs: &Path) -> anyhow::Result<Vec<(&'static str, Found, Duration)>> {
        let tests = match self {
            Self::Address => nightly(workspace),
            Self::Memcheck => {
                let mut tests = Checks::On.cargo(workspace);
                tests.args(["test", "--release", "--workspace", "--lib"]);
                tests
            }
        };
        let ours = |program: &TestProgram| PACKAGES.iter().any(|name| program.name.ends_with(&name.replace('-', "_")));
        let tool = self.valgrind(workspace, logs);
        let programs: Vec<Watched> = compile(tests, workspace)?
            .into_iter()
            .filter(ours)
            .map(|program| Watched { program, tool: tool.clone(), options: self.options(logs) })
            .collect();
        ensure!(programs.len() == PACKAGES.len(), "cargo has not built the tests of {PACKAGES:?}");
        let mut results = vec![watch(&programs, &[], logs, "unit tests")?];
        if self == Self::Memcheck {
            ensure!(steps::build(workspace, Checks::On)? == 0, "the gateway does not compile");
            let mut tests = Checks::On.cargo(workspace);
            tests.args(["test", "--release", "--workspace", "--test", "it"]);
            let interop = compile(tests, workspace)?.into_iter().find(|program| program.name.starts_with("interop"));
            let mut program = interop.context("cargo has not built the interop tests")?;
            program.env("SEALANE_BIN", wrapper(&tool, &workspace.target().join("release/sealane"), logs)?);
            let interop = Watched { program, tool: Vec::new(), options: Vec::new() };
            results.push(watch(&[interop], &SMOKE, logs, "the gateway in interop tests")?);
        }
        Ok(results)
    }

    /// The command line that watches a program.
    fn valgrind(self, workspace: &Workspace, logs: &Path) -> Vec<OsString> {
        if self == Self::Address {
            return Vec::new();
        }
        let own =
            ["valgrind", "--quiet", "--fair-sched=yes", "--tool=memcheck", "--track-origins=yes", "--leak-check=no"];
        let mut all = own.map(OsString::from).to_vec();
        let with = |option: &str, path: &Path| {
            let mut text = OsString::from(option);
            text.push(path);
            text
        };
        all.push(format!("--error-markers={MARK},END").into());
        all.push(with("--suppressions=", &workspace.root().join(SUPPRESSIONS)));
        all.push(with("--log-file=", &logs.join("%p.log")));
        all
    }

    /// Variables of the environment for what is watched.
    fn options(self, logs: &Path) -> Vec<(&'static str, OsString)> {
        if self != Self::Address {
            return Vec::new();
        }
        let mut options = OsString::from("detect_stack_use_after_return=1:log_path=");
        options.push(logs.join("report"));
        vec![("ASAN_OPTIONS", options)]
    }
}

/// A script that starts the gateway with its arguments, and the tool that watches it.
fn wrapper(tool: &[OsString], gateway: &Path, logs: &Path) -> anyhow::Result<PathBuf> {
    let script = logs.join("sealane");
    let words: Vec<String> = tool.iter().map(|word| format!("'{}'", word.to_string_lossy())).collect();
    std::fs::write(&script, format!("#!/bin/sh\nexec {} '{}' \"$@\"\n", words.join(" "), gateway.display()))?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    Ok(script)
}

/// Runs the tests in these programs whose names have one of these parts.
fn watch(
    programs: &[Watched],
    filters: &[&str],
    logs: &Path,
    what: &'static str,
) -> anyhow::Result<(&'static str, Found, Duration)> {
    let (start, before) = (Instant::now(), errors(logs)?);
    let programs: Vec<&dyn Runs> = programs.iter().map(|program| program as &dyn Runs).collect();
    let arguments: Vec<&str> = ["--test-threads=2"].iter().chain(filters).copied().collect();
    let mut found = Found::default();
    let statuses = test_programs::run(&programs, &arguments, SILENCE_LIMIT, |_, line| {
        found.add(&String::from_utf8_lossy(line));
        show(&mut std::io::stdout(), line)
    })?;
    // A program that died has no closing line.
    found.failed = found.failed.max(statuses.iter().filter(|status| **status != 0).count());
    found.errors = errors(logs)? - before;
    Ok((what, found, start.elapsed()))
}

impl Found {
    /// Reads the closing line of a test program.
    fn add(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test result: ") else { return };
        let number = |word: &str| {
            let (before, _) = rest.split_once(word)?;
            before.rsplit(' ').find(|part| !part.is_empty())?.parse::<usize>().ok()
        };
        self.passed += number(" passed").unwrap_or(0);
        self.failed += number(" failed").unwrap_or(0);
    }
}

/// A test program and the tool that watches it.
struct Watched {
    program: TestProgram,
    /// The command before the program's own.
    tool: Vec<OsString>,
    options: Vec<(&'static str, OsString)>,
}

impl Runs for Watched {
    fn name(&self) -> &str {
        self.program.name()
    }

    fn command(&self) -> Command {
        let own = self.program.command();
        let mut command = match self.tool.split_first() {
            None => Command::new(own.get_program()),
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments).arg(own.get_program());
                command
            }
        };
        if let Some(folder) = own.get_current_dir() {
            command.current_dir(folder);
        }
        for (name, value) in own.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.envs(self.options.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// How many errors the tools have written into this folder.
fn errors(logs: &Path) -> anyhow::Result<usize> {
    let mut errors = 0;
    for entry in std::fs::read_dir(logs)? {
        let text = std::fs::read(entry?.path())?;
        errors += count(&String::from_utf8_lossy(&text));
    }
    Ok(errors)
}

/// How many errors there are in a log.
fn count(log: &str) -> usize {
    let is_error = |line: &&str| line.contains("==ERROR: ") || line.ends_with(MARK);
    log.lines().filter(is_error).count()
}

fn compile(cargo: Command, workspace: &Workspace) -> anyhow::Result<Vec<TestProgram>> {
    test_programs::compile(cargo, workspace)?.map_err(|status| anyhow::anyhow!("cargo has failed: {status}"))
}

/// The nightly cargo, which compiles with the sanitizer into a folder of its own. With a target named, build scripts and macros are
/// compiled without it.
fn nightly(workspace: &Workspace) -> Command {
    let mut command = Command::new("rustup");
    for (name, _) in cargo().get_envs() {
        command.env_remove(name);
    }
    // What rustup set for the compiler of this process would select it again.
    command.env_remove("RUSTUP_TOOLCHAIN");
    command.args(["run", "nightly", "cargo"]).args(Checks::On.settings(workspace));
    command.args(["test", "--release", "--locked", "--lib", "--target", TRIPLE, "--target-dir"]);
    command.arg(workspace.target().join("sanitize")).args(PACKAGES.iter().flat_map(|name| ["-p", name]));
    command.env("CARGO_ENCODED_RUSTFLAGS", "-Zsanitizer=address");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_and_errors_are_counted() {
        let mut found = Found::default();
        found.add("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.01s\n");
        found
            .add("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n");
        found.add("test udp::tests::result: ok\n");
        assert_eq!(found, Found { passed: 15, failed: 2, errors: 0 });
        let valgrind = format!("==7== {MARK}\n==7== Invalid read of size 1\n==7== END\n==7== \n==7== {MARK}\n");
        assert_eq!(count(&valgrind), 2);
        let address =
            "=====\n==7==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x1\nSUMMARY: AddressSanitizer\n";
        assert_eq!(count(address), 1);
    }
}
