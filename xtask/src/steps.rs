//! The steps of `cargo xtask test`: each is run to its end, timed, listed, and named again when it failed.

use crate::background::Background;
use crate::cpu::CpuTime;
use crate::metadata::{Workspace, cargo};
use crate::report::{Expected, Report, Skip};
use crate::{again, count, deny, layers, measurements, newer, test_programs, walk};
use anyhow::Context;
use clap::ValueEnum;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One step; cheap ones first, then those that need nothing but a compiler while programs are installed, the tests last so that their
/// closing lines are the last thing before the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// Formatting
    Fmt,
    /// Direction of imports, and which crates use `unsafe`
    Layers,
    /// Tables of the documentation, compared with their raw data
    Figures,
    /// Programs and tests compiled
    Build,
    /// Clippy; warnings are errors
    Lint,
    /// The oldest supported compiler compiles everything
    Minimum,
    /// Build of the code's documentation; warnings are errors
    Doc,
    /// Licences, bans, sources and advisories of dependencies
    Deny,
    /// TLS libraries built in the user's cache, for the tests that run them
    Stacks,
    /// Data that lanes share, with every possible order of threads (loom)
    Models,
    /// Counted costs of operations, compared with the stored costs
    Count,
    /// Every test of the workspace
    Test,
}

impl Step {
    pub fn name(self) -> &'static str {
        match self {
            Step::Fmt => "fmt",
            Step::Layers => "layers",
            Step::Figures => "figures",
            Step::Deny => "deny",
            Step::Lint => "lint",
            Step::Doc => "doc",
            Step::Minimum => "minimum",
            Step::Build => "build",
            Step::Stacks => "stacks",
            Step::Models => "models",
            Step::Count => "count",
            Step::Test => "test",
        }
    }

    /// Whether it starts programs that `cargo xtask setup` installs.
    fn needs_setup(self) -> bool {
        matches!(self, Step::Deny | Step::Stacks | Step::Count | Step::Test)
    }

    /// Runs it, one of the plan's; the status is the failing program's own, 0 for success.
    pub fn run(self, workspace: &Workspace, plan: &Plan, report: &mut Report) -> anyhow::Result<u8> {
        match self {
            Step::Fmt => format(workspace, true),
            Step::Layers => findings("layers", &[layers::check(workspace)?, walk::check(workspace.root())?].concat()),
            Step::Figures => findings("figures", &measurements::check(workspace.root())?),
            Step::Deny => deny::check(workspace, report),
            Step::Lint => lint(workspace, plan),
            Step::Minimum => minimum(workspace, report),
            Step::Doc => doc(workspace),
            Step::Build => build(workspace, Checks::On),
            Step::Stacks => stacks(workspace, !plan.steps.contains(&Step::Test)),
            Step::Models => models(workspace),
            Step::Count => count::check(workspace, report),
            Step::Test if plan.fast => fast(workspace, report),
            Step::Test => test(workspace, report),
        }
    }
}

/// What `cargo xtask test` does.
#[derive(Debug, Default)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// Unit tests and the simulator only, and clippy for the workspace only.
    pub fast: bool,
    /// A skip that `xtask/expected-skips.txt` does not list fails the run.
    pub strict: bool,
}

impl Plan {
    /// The steps that run one after the other, and those that run beside them: steps that build in a folder of their own, where the
    /// tests leave CPU time.
    fn split(&self) -> (Vec<Step>, Vec<Step>) {
        let whole = cfg!(target_os = "linux") && self.steps.contains(&Step::Build) && self.steps.contains(&Step::Test);
        let beside = |step: &Step| whole && matches!(step, Step::Minimum | Step::Doc);
        self.steps.iter().copied().partition(|step| !beside(step))
    }
}

/// The steps of `--fast`.
pub const FAST: [Step; 6] = [Step::Fmt, Step::Layers, Step::Figures, Step::Deny, Step::Lint, Step::Test];

/// All steps, or those asked for, in their order.
pub fn choose(only: &[Step], skip: &[Step]) -> Vec<Step> {
    // The models are for those who change what lanes share: `--only models`.
    let asked = |step: &Step| if only.is_empty() { *step != Step::Models } else { only.contains(step) };
    let wanted = |step: &Step| asked(step) && !skip.contains(step);
    Step::value_variants().iter().copied().filter(wanted).collect()
}

/// A step that was run.
struct Done {
    step: Step,
    status: u8,
    time: Duration,
    /// The share of the machine's CPU time that was used meanwhile, also by the steps in the background. `None` for these.
    busy: Option<f64>,
}

/// Runs the steps one after the other, all of them even when one fails, and sums up. Programs may still be being installed.
pub fn run_all(workspace: &Workspace, plan: &Plan, mut preparing: Option<JoinHandle<()>>) -> anyhow::Result<u8> {
    let paint = Paint::new();
    let (mut done, mut report) = (Vec::new(), Report::default());
    let begin = Instant::now();
    let (steps, beside) = plan.split();
    let background = Background::start(beside, workspace.root());
    for step in steps {
        if step.needs_setup()
            && let Some(preparing) = preparing.take()
        {
            wait_for_setup(preparing);
        }
        println!("{}", paint.bold(&format!("── {}", step.name())));
        stdout().flush()?;
        let (start, then) = (Instant::now(), CpuTime::now());
        let status = step.run(workspace, plan, &mut report).unwrap_or_else(|error| {
            eprintln!("{}: {error:#}", step.name());
            1
        });
        let busy = CpuTime::now().zip(then).and_then(|(now, then)| now.busy_since(then));
        done.push(Done { step, status, time: start.elapsed(), busy });
    }
    for ended in background.wait() {
        println!("{}", paint.bold(&format!("── {}, beside the others", ended.step.name())));
        print!("{}", ended.output);
        report.skips.extend(skips(ended.step, &ended.output));
        done.push(Done { step: ended.step, status: ended.status, time: ended.time, busy: None });
    }
    println!("{}", paint.bold("── summary"));
    for step in &done {
        println!("{}", line(&paint, step));
    }
    println!("  in all           {:>10.1} s", begin.elapsed().as_secs_f64());
    report.lines().iter().for_each(|line| println!("{line}"));
    let unexpected = report.unexpected(&Expected::load(workspace.root())?);
    if plan.strict && !unexpected.is_empty() {
        println!("{}", paint.red("skipped, and not in xtask/expected-skips.txt, which fails this run:"));
        unexpected.iter().for_each(|skip| println!("  {}: {}", skip.name, skip.why));
    }
    stdout().flush()?;
    let statuses: Vec<(Step, u8)> = done.iter().map(|done| (done.step, done.status)).collect();
    Ok(verdict(&statuses, plan.strict && !unexpected.is_empty()))
}

/// What a step says in its output that it has skipped.
fn skips(step: Step, output: &str) -> Vec<Skip> {
    let start = format!("skipped: {}: ", step.name());
    let reasons = output.lines().filter_map(|line| line.strip_prefix(&start));
    reasons.map(|why| Skip { name: step.name().to_owned(), why: why.to_owned() }).collect()
}

/// Waits until the programs of the tests are installed.
pub fn wait_for_setup(preparing: JoinHandle<()>) {
    let start = Instant::now();
    if preparing.join().is_err() {
        eprintln!("setup: it ended with a panic");
    }
    println!("setup: the steps have waited {:.1} s for it", start.elapsed().as_secs_f64());
}

/// The status of the whole run: that of the tests when they failed, else that of the first step that did, else 1 when
/// something was skipped that must not be.
fn verdict(done: &[(Step, u8)], skips_refused: bool) -> u8 {
    let failed = |wanted: &dyn Fn(Step) -> bool| done.iter().find(|(step, status)| *status != 0 && wanted(*step));
    let worst = failed(&|step| step == Step::Test).or_else(|| failed(&|_| true));
    worst.map_or(u8::from(skips_refused), |&(_, status)| status)
}

fn line(paint: &Paint, done: &Done) -> String {
    let (name, status) = (done.step.name(), done.status);
    let time = format!("{:.1} s", done.time.as_secs_f64());
    let busy = done.busy.map_or_else(String::new, |share| format!("  CPU {:>3.0} %", 100.0 * share));
    if status == 0 {
        return format!("  {}      {name:<9} {time:>8}{busy}", paint.green("ok"));
    }
    let repeat = match done.step {
        Step::Fmt => "cargo xtask fmt".into(),
        _ => format!("cargo xtask test --only {name}"),
    };
    format!("  {}  {name:<9} {time:>8}{busy}   exit {status}; repeat: {repeat}", paint.red("failed"))
}

/// The lab's workers for TLS libraries, each a workspace of its own: those that load their library at run time and so
/// compile in seconds.
const LIGHT_WORKERS: [&str; 5] = ["frame", "gnutls", "mbedtls", "openssl", "wolfssl"];
/// The others, which bring a TLS library along.
const HEAVY_WORKERS: [&str; 3] = ["peer", "rustls", "s2n"];

fn worker(workspace: &Workspace, name: &str) -> PathBuf {
    workspace.root().join("lab/stacks/on-demand/workers").join(name).join("Cargo.toml")
}

/// Workspaces of their own that are no workers, and that use our packages.
pub const APART: [&str; 2] = ["fuzz/libfuzzer", "tests/models"];

/// The models of what threads share.
fn models(workspace: &Workspace) -> anyhow::Result<u8> {
    let mut test = cargo();
    test.args(["test", "--release", "--locked", "--manifest-path", "tests/models/Cargo.toml", "--target-dir"]);
    test.arg(workspace.target().join("models"));
    run(test, workspace)
}

/// Formats, or only looks.
pub fn format(workspace: &Workspace, check: bool) -> anyhow::Result<u8> {
    let mut all = cargo();
    all.args(["fmt", "--all"]);
    let workers = LIGHT_WORKERS.iter().chain(&HEAVY_WORKERS).map(|name| worker(workspace, name));
    let apart = APART.iter().map(|folder| workspace.root().join(folder).join("Cargo.toml"));
    let others = workers.chain(apart).map(|manifest| {
        let mut one = cargo();
        one.args(["fmt", "--manifest-path"]).arg(manifest);
        one
    });
    let mut worst = 0;
    for mut command in std::iter::once(all).chain(others) {
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
    const PROGRAMS: [&str; 4] = ["generate", "generate-api", "generate-import", "generate-client-options"];
    let mut build = Checks::On.cargo(workspace);
    build.args(["build", "--release", "--workspace"]).args(PROGRAMS.iter().flat_map(|name| ["--example", name]));
    let mut worst = run(build, workspace)?;
    for name in PROGRAMS {
        if worst == 0 {
            worst = run(Command::new(workspace.target().join("release/examples").join(name)), workspace)?;
        }
    }
    Ok(worst)
}

/// What clippy refuses, beside the lints of each package. Each `unsafe` says why it is sound.
const DENIED: [&str; 4] = ["-D", "warnings", "-D", "clippy::undocumented_unsafe_blocks"];

fn lint(workspace: &Workspace, plan: &Plan) -> anyhow::Result<u8> {
    // Where all is built anyway, clippy has looked at it already.
    let built = plan.steps.contains(&Step::Build) && clippy_driver().is_some();
    let mut worst = if built {
        warnings(build_everything(workspace), workspace)?
    } else {
        let mut all = cargo();
        all.args(["clippy", "--release", "--workspace", "--all-targets", "--"]).args(DENIED);
        run(all, workspace)?
    };
    for name in LIGHT_WORKERS.iter().filter(|_| !plan.fast) {
        let mut one = cargo();
        one.args(["clippy", "--release", "--locked", "--all-targets", "--manifest-path"]).arg(worker(workspace, name));
        one.arg("--target-dir").arg(workspace.target()).arg("--").args(DENIED);
        // A session never leaves its thread; an option is reborrowed once more than it must be, as in the lines before.
        one.args(["-A", "clippy::arc_with_non_send_sync", "-A", "clippy::needless_option_as_deref"]);
        worst = worst.max(run(one, workspace)?);
    }
    Ok(worst)
}

/// A line of cargo's messages, as far as it is a message of the compiler.
#[derive(Deserialize)]
struct CompilerMessage {
    message: Diagnostic,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    rendered: Option<String>,
}

/// Runs a build and shows each warning once, also those of an earlier build, which cargo keeps. Fails when there is one.
fn warnings(mut build: Command, workspace: &Workspace) -> anyhow::Result<u8> {
    build.args(["--message-format", "json"]).current_dir(workspace.root()).stdout(Stdio::piped());
    let mut child = build.spawn().context("cargo build")?;
    let messages = BufReader::new(child.stdout.take().context("no pipe")?);
    let mut shown = BTreeSet::new();
    for line in messages.lines() {
        if let Some(text) = warning(&line?)
            && !shown.contains(&text)
        {
            eprintln!("{text}");
            shown.insert(text);
        }
    }
    let status = exit_code(child.wait()?);
    Ok(status.max(u8::from(!shown.is_empty())))
}

/// The text of a warning or an error in a line of cargo's messages.
fn warning(line: &str) -> Option<String> {
    let CompilerMessage { message } = serde_json::from_str(line).ok()?;
    matches!(message.level.as_str(), "warning" | "error").then(|| message.rendered.unwrap_or_default())
}

/// The program that `cargo clippy` starts instead of the compiler. It is the compiler as well.
fn clippy_driver() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
        let driver = Path::new(String::from_utf8_lossy(&sysroot.stdout).trim()).join("bin/clippy-driver");
        driver.is_file().then_some(driver)
    };
    FOUND.get_or_init(find).as_deref()
}

/// By the oldest supported compiler, where it is there: the step `minimum` has read all crates with it already.
fn doc(workspace: &Workspace) -> anyhow::Result<u8> {
    let mut command = oldest_cargo(workspace)?.unwrap_or_else(|_| cargo());
    command.args(["doc", "--locked", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
    run(beside_the_build(command, workspace), workspace)
}

/// Builds the stacks that tests run and that take least: minutes on two cores from nothing, seconds when they are in the
/// cache. Workers are compiled beside the workspace, which has their costly dependencies (AWS-LC) already. Before them the
/// tests of what all workers share (is a handshake that differs from what was asked for refused?), which are outside of
/// the workspace. Then those of the stacks, so that the step means something by itself, unless all tests come anyway.
fn stacks(workspace: &Workspace, tests: bool) -> anyhow::Result<u8> {
    const NAMES: [&str; 4] = ["openssl-3.0", "rustls-aws-lc", "rustls-ring", "gnutls"];
    let mut shared = cargo();
    shared.args(["test", "--release", "--locked", "--manifest-path"]).arg(worker(workspace, "frame"));
    shared.arg("--target-dir").arg(workspace.target());
    for status in [run(shared, workspace)?, build(workspace, Checks::On)?] {
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
    let mut command = Checks::On.cargo(workspace);
    command.args(["test", "--release", "--workspace", "--test", "stacks"]);
    run(command, workspace)
}

/// The binaries first, with the features that the tests' build unifies to, so that the tests that start the gateway
/// find the one of this source and nothing is compiled twice.
fn test(workspace: &Workspace, report: &mut Report) -> anyhow::Result<u8> {
    let status = build(workspace, Checks::On)?;
    if status != 0 {
        return Ok(status);
    }
    run_tests(workspace, &[], Some(&program(workspace, "release")), report)
}

/// The tests that start no other program: those within the sources, and the simulator.
fn fast(workspace: &Workspace, report: &mut Report) -> anyhow::Result<u8> {
    run_tests(workspace, &["--lib", "--bins", "--test", "simulator"], None, report)
}

/// Compiles the tests of the workspace, or of these targets only, and runs them with a gateway.
fn run_tests(
    workspace: &Workspace,
    targets: &[&str],
    gateway: Option<&Path>,
    report: &mut Report,
) -> anyhow::Result<u8> {
    let mut compile = Checks::On.cargo(workspace);
    compile.args(["test", "--release", "--workspace"]).args(targets);
    let mut programs = match test_programs::compile(compile, workspace)? {
        Ok(programs) => programs,
        Err(status) => return Ok(status),
    };
    // One that the user names stays.
    let unnamed = newer::ALL.iter().filter(|newer| std::env::var_os(newer.variable).is_none());
    let newer: Vec<_> = unnamed.filter_map(|newer| Some((newer.variable, newer.program(workspace)?))).collect();
    for program in &mut programs {
        gateway.iter().for_each(|gateway| program.env("SEALANE_BIN", *gateway));
        newer.iter().for_each(|(variable, newer)| program.env(variable, newer));
    }
    again::run(&programs, report, &mut stdout())
}

/// `cargo xtask test --dist`: the interop tests against the program that is shipped.
pub fn dist(workspace: &Workspace) -> anyhow::Result<u8> {
    let mut shipped = cargo();
    shipped.args(["build", "--profile", "dist", "-p", "sealane", "--features", "full"]);
    let status = run(shipped, workspace)?;
    if status != 0 {
        return Ok(status);
    }
    let mut report = Report::default();
    let status = run_tests(workspace, &["--test", "it"], Some(&program(workspace, "dist")), &mut report)?;
    report.lines().iter().for_each(|line| println!("{line}"));
    Ok(status)
}

fn program(workspace: &Workspace, profile: &str) -> PathBuf {
    workspace.target().join(profile).join(format!("sealane{}", std::env::consts::EXE_SUFFIX))
}

/// Compiles with the oldest supported compiler.
fn minimum(workspace: &Workspace, report: &mut Report) -> anyhow::Result<u8> {
    let mut command = match oldest_cargo(workspace)? {
        Ok(command) => command,
        Err(why) => {
            report.skip("minimum", why);
            return Ok(0);
        }
    };
    command.args(["check", "--locked", "--workspace", "--lib", "--bins"]);
    run(beside_the_build(command, workspace), workspace)
}

/// The cargo of the oldest supported compiler (`rust-version`), or why there is none.
fn oldest_cargo(workspace: &Workspace) -> anyhow::Result<Result<Command, String>> {
    let Some(version) = workspace.members().find_map(|package| package.rust_version.clone()) else {
        anyhow::bail!("no package has a `rust-version`");
    };
    let quiet = |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let there =
        || quiet(Command::new("rustup").args(["run", &version, "cargo", "--version"])).is_ok_and(|s| s.success());
    if !there() {
        // May fail, which the next line finds out.
        let _ = quiet(Command::new("rustup").args(["toolchain", "install", &version, "--profile", "minimal"]));
    }
    if !there() {
        return Ok(Err(format!("rustup cannot provide Rust {version} here")));
    }
    // What rustup set for the compiler of this process would select it again.
    let mut command = Command::new("rustup");
    for (name, _) in cargo().get_envs() {
        command.env_remove(name);
    }
    command.args(["run", &version, "cargo"]);
    Ok(Ok(command))
}

/// A cargo that builds in a folder of its own, so that it and the build of the tests do not wait for each other, and without debug
/// information, of C either: nothing of it runs but macros and build scripts.
fn beside_the_build(mut cargo: Command, workspace: &Workspace) -> Command {
    cargo.args(["--config", "profile.dev.debug=0", "--target-dir"]).arg(workspace.target().join("minimum"));
    cargo
}

/// What is tested without optimisation.
const UNOPTIMISED: [&str; 10] = [
    "gateway/import",
    "lab/compare",
    "lab/experiments",
    "lab/harness",
    "lab/probe",
    "lab/report",
    "lab/sealane-lab",
    "lab/stacks",
    "tests/interop",
    "xtask",
];
/// Large dependencies of these alone, which need few optimisations: a disassembler and a reader of object files.
const LITTLE_OPTIMISED: [&str; 2] = ["iced-x86", "object"];

/// Whether our own crates are compiled with overflow checks and debug assertions, and few optimisations: what is tested is, what is
/// counted and shipped is not. Dependencies never are, so they are compiled once for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    On,
    Off,
}

impl Checks {
    /// A cargo that compiles so. By its arguments, and not by its environment: tests start other cargos. Our own crates are compiled by
    /// clippy where they are tested, so that they are read once for both.
    pub fn cargo(self, workspace: &Workspace) -> Command {
        let mut command = cargo();
        command.args(self.settings(workspace));
        if self == Checks::On
            && let Some(driver) = clippy_driver()
        {
            command.args(["--config", &format!("build.rustc-workspace-wrapper={driver:?}")]);
        }
        command
    }

    /// The arguments, for any version of cargo.
    pub fn settings(self, workspace: &Workspace) -> Vec<String> {
        let mut settings = Vec::new();
        if self == Checks::On {
            for setting in ["overflow-checks", "debug-assertions"] {
                settings.push(format!("profile.release.{setting}=true"));
                settings.push(format!("profile.release.package.\"*\".{setting}=false"));
            }
            // Package by package: a level for all would be one for dependencies, too, and they would be compiled again.
            for package in workspace.members() {
                // Tests that wait for programs, and tools, need no optimisation; a program under test needs some, to be fast enough.
                let folder = workspace.folder(package);
                let level = u8::from(!UNOPTIMISED.iter().any(|name| Path::new(&folder).starts_with(name)));
                settings.push(format!("profile.release.package.{}.opt-level={level}", package.name));
            }
            for name in LITTLE_OPTIMISED {
                settings.push(format!("profile.release.package.{name}.opt-level=1"));
            }
        }
        settings.into_iter().flat_map(|setting| ["--config".to_owned(), setting]).collect()
    }
}

/// Programs and tests, with the features that all of the workspace wants. Of what is only counted, the gateway alone: the lab is its client, and
/// may be the one that the tests use.
pub fn build(workspace: &Workspace, checks: Checks) -> anyhow::Result<u8> {
    if checks == Checks::Off {
        for (checks, program) in [(Checks::On, "sealane-lab"), (Checks::Off, "sealane")] {
            let mut build = checks.cargo(workspace);
            build.args(["build", "--release", "--workspace", "--bin", program]);
            if checks == Checks::Off {
                build.args(UNLIKE_SHIPPED);
            }
            let status = run(build, workspace)?;
            if status != 0 {
                return Ok(status);
            }
        }
        return Ok(0);
    }
    run(build_everything(workspace), workspace)
}

/// Left out of what is counted: with the client of Kubernetes, `tracing` has the feature `log`, which the shipped gateway has not, and
/// which costs instructions for each frame of HTTP/2.
const UNLIKE_SHIPPED: [&str; 4] = ["--exclude", "sealane-kube", "--exclude", "sealane-kube-translate"];

/// The build of all programs and of everything that tests need.
fn build_everything(workspace: &Workspace) -> Command {
    let mut build = Checks::On.cargo(workspace);
    build.args(["build", "--release", "--workspace", "--lib", "--bins", "--tests", "--examples"]);
    build
}

/// The gateway without instrumentation, built as [`build`] builds the one that is counted. In a folder of its own, so that it is never
/// taken for the other.
pub fn build_uninstrumented(workspace: &Workspace, folder: &Path) -> anyhow::Result<u8> {
    let mut build = Checks::Off.cargo(workspace);
    build.args(["build", "--release", "--workspace", "--bin", "sealane", "--features", "sealane-proxy/uninstrumented"]);
    build.args(UNLIKE_SHIPPED);
    build.arg("--target-dir").arg(folder);
    run(build, workspace)
}

/// Builds the programs and an example of the interop tests, as the tests are built. The status of the build, and the command that starts
/// the example.
pub fn example(workspace: &Workspace, name: &str) -> anyhow::Result<(u8, Command)> {
    let mut build = Checks::On.cargo(workspace);
    build.args(["build", "--release", "--workspace", "--bins", "--example", name]);
    let status = run(build, workspace)?;
    let mut command = Command::new(workspace.target().join("release/examples").join(name));
    command.env("SEALANE_BIN", program(workspace, "release"));
    Ok((status, command))
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

/// The tests that cause faults, with their pictures written to the documentation.
pub fn pictures(workspace: &Workspace) -> anyhow::Result<u8> {
    let folder = workspace.root().join("docs/how-to/pictures");
    let mut command = Checks::On.cargo(workspace);
    // One at a time, so that no fault is in the picture of another.
    command.args([
        "test",
        "--release",
        "--workspace",
        "--test",
        "it",
        "pictures::",
        "--",
        "--test-threads=1",
        "--nocapture",
    ]);
    command.env("SEALANE_PICTURES", &folder);
    let status = run(command, workspace)?;
    println!("pictures: {}", folder.display());
    Ok(status)
}

/// Runs a program in the repository's root.
pub fn run(mut command: Command, workspace: &Workspace) -> anyhow::Result<u8> {
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
        assert_eq!(choose(&[], &[]).len(), Step::value_variants().len() - 1);
        assert_eq!(choose(&[Step::Test, Step::Fmt], &[]), [Step::Fmt, Step::Test]);
        assert_eq!(choose(&[Step::Test, Step::Fmt], &[Step::Test]), [Step::Fmt]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_builds_in_a_folder_of_its_own_runs_beside_the_tests() {
        let split = |steps: &[Step]| Plan { steps: steps.to_vec(), ..Plan::default() }.split();
        let (steps, beside) = split(&choose(&[], &[]));
        assert_eq!(beside, [Step::Minimum, Step::Doc]);
        assert_eq!(steps.len() + beside.len(), choose(&[], &[]).len());
        // Without the build and the tests, nothing leaves CPU time.
        assert!(split(&[Step::Minimum, Step::Test]).1.is_empty());
        assert_eq!(split(&[Step::Doc]).0, [Step::Doc]);
    }

    #[test]
    fn a_warning_is_read_from_cargos_messages() {
        let line = |level: &str| {
            format!(r#"{{"reason":"compiler-message","message":{{"level":"{level}","rendered":"{level}: unused"}}}}"#)
        };
        assert_eq!(warning(&line("warning")).as_deref(), Some("warning: unused"));
        assert_eq!(warning(&line("error")).as_deref(), Some("error: unused"));
        assert_eq!(warning(&line("failure-note")), None);
        assert_eq!(warning(r#"{"reason":"compiler-artifact","target":{"kind":["lib"]}}"#), None);
        assert_eq!(warning("not JSON"), None);
    }

    #[test]
    fn skips_of_a_step_are_read_from_its_output() {
        let output = "── minimum\nskipped: minimum: no Rust 1.2\nskipped: 1\n  minimum: no Rust 1.2\n";
        assert_eq!(skips(Step::Minimum, output), [Skip { name: "minimum".into(), why: "no Rust 1.2".into() }]);
        assert!(skips(Step::Doc, output).is_empty());
    }

    #[test]
    fn a_skip_that_is_not_expected_fails_a_run_that_passed() {
        let passed = [(Step::Fmt, 0), (Step::Test, 0)];
        assert_eq!((verdict(&passed, false), verdict(&passed, true)), (0, 1));
        let failed = [(Step::Fmt, 2), (Step::Lint, 3), (Step::Test, 101)];
        assert_eq!((verdict(&failed, true), verdict(&failed[..2], true)), (101, 2));
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
