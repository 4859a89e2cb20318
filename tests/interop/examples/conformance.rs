//! Runs the conformance suites of other projects against gateways, compares with what is expected, and stores the results. Started by
//! `cargo xtask conformance`, which builds everything first.

use anyhow::{Context, bail, ensure};
use clap::Parser;
use sealane_interop::conformance::expected::{self, Expected};
use sealane_interop::conformance::report::{self, Run, Suite};
use sealane_interop::conformance::{h2spec, judge, sslyze, testssl, tlsfuzzer};
use sealane_interop::peers;
use sealane_interop::site::Site;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

#[derive(Parser)]
struct Options {
    /// The root of the repository
    root: PathBuf,
    /// A clone of tlsfuzzer
    #[arg(long)]
    tlsfuzzer: Option<PathBuf>,
    /// A clone of testssl.sh
    #[arg(long)]
    testssl: Option<PathBuf>,
    /// Only these suites: h2spec, sslyze, testssl, tlsfuzzer
    #[arg(long, num_args = 1..)]
    only: Vec<String>,
    /// Only scripts whose names contain one of these
    #[arg(long, num_args = 1..)]
    scripts: Vec<String>,
    /// Scripts that run at the same time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Store the results
    #[arg(long)]
    store: bool,
    /// Only write the page again
    #[arg(long)]
    page: bool,
    /// Where the scripts' output is kept
    #[arg(long)]
    logs: PathBuf,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("conformance: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<bool> {
    let expected = expected::read()?;
    if options.page {
        report::store(&options.root, Vec::new(), &expected)?;
        return Ok(true);
    }
    std::fs::create_dir_all(&options.logs).with_context(|| options.logs.display().to_string())?;
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let mut suites = Vec::new();
    if wanted("h2spec") {
        suites.push(of_h2spec(&expected)?);
    }
    if wanted("sslyze") {
        suites.push(of_sslyze(options, &expected)?);
    }
    match &options.testssl {
        Some(folder) if wanted("testssl") => suites.push(of_testssl(folder, options, &expected)?),
        None if options.only.iter().any(|only| only == "testssl") => bail!("testssl needs `--testssl FOLDER`"),
        None => println!("testssl: skipped, `--testssl FOLDER` names no clone"),
        Some(_) => {}
    }
    match &options.tlsfuzzer {
        Some(folder) if wanted("tlsfuzzer") => suites.push(of_tlsfuzzer(folder, options, &expected)?),
        None if options.only.iter().any(|only| only == "tlsfuzzer") => bail!("tlsfuzzer needs `--tlsfuzzer FOLDER`"),
        None => println!("tlsfuzzer: skipped, `--tlsfuzzer FOLDER` names no clone"),
        Some(_) => {}
    }
    println!("\n{:<10} {:>8} {:>8} {:>11} {:>8}", "suite", "pass", "listed", "unexpected", "seconds");
    for suite in &suites {
        let unexpected = suite.unexpected().count();
        let (passed, listed) = (suite.passed(), suite.differing());
        println!("{:<10} {passed:>8} {listed:>8} {unexpected:>11} {:>8}", suite.name, suite.seconds);
    }
    let mut good = true;
    for suite in &suites {
        for (run, why) in suite.unexpected() {
            println!("unexpected: {}: {run}: {why}", suite.name);
            good = false;
        }
    }
    if options.store {
        ensure!(good, "results that are not expected are not stored");
        ensure!(options.scripts.is_empty(), "only whole suites are stored");
        report::store(&options.root, suites, &expected)?;
    }
    Ok(good)
}

fn suite(name: &str, version: &str, start: Instant, runs: Vec<Run>) -> anyhow::Result<Suite> {
    let output = Command::new("date").arg("+%F").output().context("date")?;
    let date = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let (name, version) = (name.to_owned(), version.to_owned());
    Ok(Suite { name, version, date, seconds: start.elapsed().as_secs(), runs })
}

fn of_h2spec(expected: &Expected) -> anyhow::Result<Suite> {
    let program = h2spec::program().map_err(anyhow::Error::msg).context("h2spec")?;
    let (start, site) = (Instant::now(), Site::new());
    let mut runs = Vec::new();
    for name in h2spec::GATEWAYS {
        let (gateway, _backend) = h2spec::gateway(&site, name);
        let cases = h2spec::run(&program, &gateway, name).map_err(anyhow::Error::msg)?;
        let listed = expected.h2spec.get(name).map_or(&[][..], Vec::as_slice);
        runs.push(judge(name, &cases, listed, expected));
        println!("h2spec, {name}: {} pass", runs[runs.len() - 1].passed);
    }
    suite("h2spec", peers::H2SPEC, start, runs)
}

fn of_sslyze(options: &Options, expected: &Expected) -> anyhow::Result<Suite> {
    let python = peers::venv("conformance-sslyze", &[sslyze::PACKAGE]).map_err(anyhow::Error::msg).context("sslyze")?;
    let (start, site) = (Instant::now(), Site::new());
    let mut runs = Vec::new();
    for preset in sslyze::PRESETS {
        let (gateway, _backend) = sslyze::gateway(&site, preset);
        let log = options.logs.join(format!("sslyze-{preset}.log"));
        let cases = sslyze::run(&python, &gateway, preset, &log).map_err(anyhow::Error::msg)?;
        let listed = expected.sslyze.get(preset).map_or(&[][..], Vec::as_slice);
        runs.push(judge(preset, &cases, listed, expected));
        println!("sslyze, {preset}: {} pass", runs[runs.len() - 1].passed);
    }
    suite("sslyze", sslyze::PACKAGE.split("==").last().unwrap_or_default(), start, runs)
}

fn of_testssl(folder: &Path, options: &Options, expected: &Expected) -> anyhow::Result<Suite> {
    let clone = testssl::Checkout::open(folder)?;
    let (start, site) = (Instant::now(), Site::new());
    let mut runs = Vec::new();
    for preset in testssl::PRESETS {
        let (gateway, _backend) = testssl::gateway(&site, preset);
        let results = options.logs.join(format!("testssl-{preset}.json"));
        let cases = testssl::run(&clone, &gateway, &results).map_err(anyhow::Error::msg)?;
        runs.push(judge(preset, &cases, &[], expected));
        println!("testssl, {preset}: {} pass", runs[runs.len() - 1].passed);
    }
    suite("testssl", &clone.revision, start, runs)
}

fn of_tlsfuzzer(folder: &Path, options: &Options, expected: &Expected) -> anyhow::Result<Suite> {
    let clone = tlsfuzzer::Checkout::open(folder)?;
    if clone.revision != expected.tlsfuzzer.revision {
        let (is, made_for) = (&clone.revision, &expected.tlsfuzzer.revision);
        println!("tlsfuzzer: the clone is at {is}, and expected.toml is made for {made_for}");
    }
    let packages: Vec<&str> = expected.tlsfuzzer.packages.iter().map(String::as_str).collect();
    let python = peers::venv("conformance-tlsfuzzer", &packages).map_err(anyhow::Error::msg).context("tlsfuzzer")?;
    let (start, site) = (Instant::now(), Site::new());
    let plan = tlsfuzzer::plan(&clone, &expected.tlsfuzzer, &options.scripts)?;
    let names: Vec<&str> = tlsfuzzer::GATEWAYS.iter().map(|(name, _)| *name).collect();
    let needed: Vec<&str> = names.into_iter().filter(|name| plan.iter().any(|s| s.gateway == *name)).collect();
    let mut targets = tlsfuzzer::gateways(&site, &needed);
    let (next, runs) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || -> anyhow::Result<()> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(script) = plan.get(at) else { return Ok(()) };
            let mut name = script.name.trim_end_matches(".py").trim_start_matches("test-").to_owned();
            if script.gateway != "rsa" {
                name += &format!(", `{}`", script.gateway);
            }
            if script.ecdhe {
                name += ", with ECDHE";
            }
            let run = match &script.not_run {
                Some(reason) => Run { name, not_run: Some(reason.clone()), ..Run::default() },
                None => {
                    let log = options.logs.join(format!("{at:03}-{}.log", script.name));
                    let begun = Instant::now();
                    let cases = clone.run(&python, script, &targets[&script.gateway], &log)?;
                    let run = judge(&name, &cases, &script.differ, expected);
                    let (passed, unexpected) = (run.passed, run.unexpected.len());
                    println!("{}: {passed} pass, {unexpected} unexpected, {} s", run.name, begun.elapsed().as_secs());
                    run
                }
            };
            runs.lock().expect("no run panics with it").push((at, run));
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no run panics"))
    })?;
    let mut runs = runs.into_inner().expect("no run panics with it");
    runs.sort_by_key(|(at, _)| *at);
    let mut runs: Vec<Run> = runs.into_iter().map(|(_, run)| run).collect();
    // A gateway that ended, or a lane that panicked, is worse than any alert.
    for (name, target) in &mut targets {
        let mut broken = Run { name: format!("the gateway `{name}`"), ..Run::default() };
        if !target.gateway.server.running() {
            broken.unexpected.push("it has ended".to_owned());
        }
        let log = target.gateway.server.log();
        broken.unexpected.extend(log.lines().filter(|line| line.contains("panicked")).map(str::to_owned));
        if !broken.unexpected.is_empty() {
            runs.push(broken);
        }
    }
    suite("tlsfuzzer", &clone.revision, start, runs)
}
