//! `cargo xtask mutants`: do the tests notice when a line does something else? cargo-mutants makes the changes.
//!
//! Of each crate, a seed selects a sample of its mutants. Their results are kept in `target/mutants`, from run to run, for as long as the
//! crate's files are the same: so a run goes on where the last one has ended. `--store` writes all results to
//! `docs/measurements/mutants.json` and `mutants.md`.

use crate::metadata::{Workspace, cargo, without_ours};
use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Which version is installed into `target/tools`, so that every machine makes the same mutants.
const VERSION: &str = "27.1.0";
const RESULTS: &str = "docs/measurements/mutants.json";
const PAGE: &str = "docs/measurements/mutants.md";
/// So many of a hundred must be caught.
const CAUGHT: f64 = 85.0;
/// Mutants of one call of cargo-mutants: the command line has a pattern for each.
const AT_ONCE: usize = 100;

/// A crate: what it is called here, its package, its folder, and which of its tests run.
struct Crate {
    name: &'static str,
    package: &'static str,
    folder: &'static str,
    tests: &'static [&'static str],
}

const CRATES: [Crate; 4] = [
    Crate { name: "http", package: "sealane-http", folder: "gateway/http", tests: &["--lib", "--test", "codec"] },
    Crate {
        name: "exchange",
        package: "sealane-exchange",
        folder: "gateway/exchange",
        tests: &["--lib", "--test", "properties"],
    },
    Crate { name: "routing", package: "sealane-route", folder: "gateway/routing", tests: &["--lib"] },
    Crate {
        name: "protocol",
        package: "sealane-ovpn",
        folder: "gateway/vpn/protocol",
        tests: &["--lib", "--test", "data", "--test", "link"],
    },
];

#[derive(clap::Args)]
pub struct Options {
    /// Only these crates
    #[arg(long, num_args = 1.., value_name = "CRATE", value_parser = ["http", "exchange", "routing", "protocol"])]
    only: Vec<String>,
    /// Mutants of each crate
    #[arg(long, value_name = "N", default_value_t = 300)]
    sample: usize,
    /// Seed that selects the mutants
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Stop after so many minutes, for all crates together; the next run goes on
    #[arg(long, value_name = "N", default_value_t = 60)]
    minutes: u64,
    /// Mutants that are tested at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Store the results in docs/measurements
    #[arg(long)]
    store: bool,
}

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Caught,
    /// The tests did not end in time: this is noticed as well.
    Timeout,
    Missed,
    /// It does not compile.
    Unviable,
}

/// The files in which cargo-mutants keeps the names of mutants.
const FILES: [(Outcome, &str); 4] = [
    (Outcome::Caught, "caught.txt"),
    (Outcome::Timeout, "timeout.txt"),
    (Outcome::Missed, "missed.txt"),
    (Outcome::Unviable, "unviable.txt"),
];

/// The results of a crate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct State {
    /// Git's hash of the crate's folder.
    tree: String,
    seed: u64,
    /// How many mutants the crate has.
    all: usize,
    /// How many are in the sample.
    sample: usize,
    outcomes: BTreeMap<String, Outcome>,
}

/// Runs what is left of the samples; 1 if too few mutants of a crate are caught.
pub fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<u8> {
    let until = Instant::now() + Duration::from_secs(options.minutes * 60);
    let program = installed(workspace)?;
    let folder = workspace.target().join("mutants");
    std::fs::create_dir_all(&folder)?;
    let mut states = BTreeMap::new();
    for of in CRATES.iter().filter(|of| options.only.is_empty() || options.only.iter().any(|name| name == of.name)) {
        states.insert(of.name.to_owned(), go_on(workspace, options, of, &program, &folder, until)?);
    }
    println!("\n{}", table(&states));
    if options.store {
        let mut stored: BTreeMap<String, State> = read(&workspace.root().join(RESULTS))?;
        stored.extend(states.clone());
        write(&workspace.root().join(RESULTS), &stored)?;
        std::fs::write(workspace.root().join(PAGE), page(&stored)).context(PAGE)?;
    }
    let few = |state: &State| state.percent().is_some_and(|percent| percent < CAUGHT);
    Ok(u8::from(states.values().any(few)))
}

/// Tests the mutants of a crate's sample that have no result yet.
fn go_on(
    workspace: &Workspace,
    options: &Options,
    of: &Crate,
    program: &Path,
    folder: &Path,
    until: Instant,
) -> anyhow::Result<State> {
    let tree = git(workspace, &["rev-parse", &format!("HEAD:{}", of.folder)])?;
    let changed = git(workspace, &["status", "--porcelain", "--", of.folder])?;
    ensure!(changed.is_empty(), "{} has changes that are not committed:\n{changed}", of.folder);
    let file = folder.join(format!("{}.json", of.name));
    let known: BTreeMap<String, State> = read(&file)?;
    let known = known.into_values().next().filter(|state| (&state.tree, state.seed) == (&tree, options.seed));
    let all = list(workspace, program, of)?;
    let sample = sampled(&all, options.seed, options.sample);
    let mut state = known.unwrap_or_default();
    (state.tree, state.seed, state.all, state.sample) = (tree, options.seed, all.len(), sample.len());
    state.outcomes.retain(|name, _| sample.contains(name));
    loop {
        let left: Vec<&String> =
            sample.iter().filter(|name| !state.outcomes.contains_key(*name)).take(AT_ONCE).collect();
        let time = until.saturating_duration_since(Instant::now());
        // The tests without a mutant run first, so that a short time shows nothing.
        if left.is_empty() || time < Duration::from_secs(60) {
            return Ok(state);
        }
        println!("── {}: {} of {} mutants have results", of.name, state.outcomes.len(), sample.len());
        let out = folder.join(of.name);
        if out.exists() {
            std::fs::remove_dir_all(&out)?;
        }
        std::fs::create_dir_all(&out)?;
        let before = state.outcomes.len();
        let code = test(workspace, options, of, program, &out, &left, time)?;
        state.outcomes.extend(results(&out.join("mutants.out"), &sample)?);
        write(&file, &BTreeMap::from([(of.name.to_owned(), state.clone())]))?;
        // 4: the tests fail without a mutant. 124: the time is over.
        ensure!(code != 4, "{}: the tests fail without a mutant; see {}", of.name, out.display());
        if code == 124 {
            return Ok(state);
        }
        ensure!(state.outcomes.len() > before, "{}: cargo mutants ended with {code} and no result", of.name);
    }
}

/// cargo-mutants, in `target/tools`.
fn installed(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let tools = workspace.target().join("tools");
    let program = tools.join("bin/cargo-mutants");
    let version = Command::new(&program).args(["mutants", "--version"]).output();
    let is_there = version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(VERSION));
    if !is_there {
        let mut install = cargo();
        install.args(["install", "--locked", "--quiet", &format!("cargo-mutants@{VERSION}"), "--root"]).arg(&tools);
        let status = install.status().context("cargo install")?;
        ensure!(status.success(), "cargo-mutants {VERSION} cannot be installed: {status}");
    }
    Ok(program)
}

fn git(workspace: &Workspace, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").args(arguments).current_dir(workspace.root()).output().context("git")?;
    ensure!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// cargo-mutants for a crate. It looks for cargo as a program that cargo has started does.
fn mutants(workspace: &Workspace, program: &Path, of: &Crate) -> Command {
    let mut command = Command::new(program);
    without_ours(&mut command);
    command.args(["mutants", "--package", of.package, "--colors", "never"]).current_dir(workspace.root());
    command
}

/// The names of all mutants of a crate.
fn list(workspace: &Workspace, program: &Path, of: &Crate) -> anyhow::Result<Vec<String>> {
    let output = mutants(workspace, program, of).arg("--list").output().context("cargo mutants")?;
    if !output.status.success() {
        bail!("cargo mutants --list: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Tests these mutants for at most this time; the exit code.
fn test(
    workspace: &Workspace,
    options: &Options,
    of: &Crate,
    program: &Path,
    out: &Path,
    names: &[&String],
    time: Duration,
) -> anyhow::Result<i32> {
    let inner = mutants(workspace, program, of);
    // It ends its own children at an interrupt.
    let mut command = Command::new("timeout");
    without_ours(&mut command);
    command.args(["--signal=INT", "--kill-after=60", &time.as_secs().to_string()]);
    command.arg(inner.get_program()).args(inner.get_args()).current_dir(workspace.root());
    command.args(["--no-shuffle", "--minimum-test-timeout", "60", "--jobs", &options.jobs.to_string(), "--output"]);
    command.arg(out);
    for name in names {
        command.arg("--re").arg(pattern(name));
    }
    command.arg("--").args(of.tests);
    let status = command.status().context("timeout")?;
    Ok(status.code().unwrap_or(124))
}

/// A regular expression that matches this name and no other.
fn pattern(name: &str) -> String {
    let mut out = String::from("^");
    for c in name.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('$');
    out
}

/// So many of the names, which the seed selects: one that is added or gone changes little.
fn sampled(names: &[String], seed: u64, most: usize) -> BTreeSet<String> {
    let mut ranked: Vec<(u64, &String)> = names.iter().map(|name| (rank(name, seed), name)).collect();
    ranked.sort_unstable();
    ranked.into_iter().take(most).map(|(_, name)| name.clone()).collect()
}

/// FNV-1a, then the last step of SplitMix64.
fn rank(name: &str, seed: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for byte in name.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// What cargo-mutants has written about mutants of the sample.
fn results(folder: &Path, sample: &BTreeSet<String>) -> anyhow::Result<BTreeMap<String, Outcome>> {
    let mut all = BTreeMap::new();
    for (outcome, name) in FILES {
        match std::fs::read_to_string(folder.join(name)) {
            Ok(text) => {
                all.extend(text.lines().filter(|line| sample.contains(*line)).map(|line| (line.to_owned(), outcome)));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| folder.join(name).display().to_string()),
        }
    }
    Ok(all)
}

fn read(file: &Path) -> anyhow::Result<BTreeMap<String, State>> {
    match std::fs::read(file) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| file.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    }
}

fn write(file: &Path, states: &BTreeMap<String, State>) -> anyhow::Result<()> {
    std::fs::write(file, serde_json::to_string_pretty(states)? + "\n").with_context(|| file.display().to_string())
}

impl State {
    fn count(&self, of: Outcome) -> usize {
        self.outcomes.values().filter(|outcome| **outcome == of).count()
    }

    /// How many of a hundred mutants that compile are caught; `None` before the first result.
    fn percent(&self) -> Option<f64> {
        let caught = self.count(Outcome::Caught) + self.count(Outcome::Timeout);
        let viable = caught + self.count(Outcome::Missed);
        (viable > 0).then(|| caught as f64 * 100.0 / viable as f64)
    }
}

fn table(states: &BTreeMap<String, State>) -> String {
    let mut out = String::from(
        "| crate | its mutants | seed | sample | with results | caught | timed out | missed | not compiled | caught of those that compile |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for (name, state) in states {
        let [caught, timeout, missed, unviable] = FILES.map(|(outcome, _)| state.count(outcome));
        let State { all, seed, sample, outcomes, .. } = state;
        let percent = state.percent().map_or("no result yet".to_owned(), |percent| format!("{percent:.1} %"));
        out += &format!(
            "| `{name}` | {all} | {seed} | {sample} | {} | {caught} | {timeout} | {missed} | {unviable} | {percent} |\n",
            outcomes.len()
        );
    }
    out
}

/// The page about the stored results.
fn page(states: &BTreeMap<String, State>) -> String {
    let mut out = format!(
        "# Mutation testing\n\n<!-- Written by `cargo xtask mutants --store` from mutants.json. -->\n\n\
         cargo-mutants {VERSION} changes one place of a crate at a time, and the crate's tests run\n\
         ([testing](../testing.md#mutation-testing)). A mutant that no test notices is missed.\n\n{}",
        table(states)
    );
    for (name, state) in states {
        let missed = state.outcomes.iter().filter(|(_, outcome)| **outcome == Outcome::Missed);
        let rows: String = missed.map(|(mutant, _)| format!("- `{mutant}`\n")).collect();
        if !rows.is_empty() {
            out += &format!("\n## Missed in `{name}`\n\n{rows}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    #[test]
    fn crates_are_where_they_are_said_to_be() {
        for of in &CRATES {
            let manifest = std::fs::read_to_string(root().join(of.folder).join("Cargo.toml")).unwrap();
            assert!(manifest.contains(&format!("name = \"{}\"", of.package)), "{}", of.name);
        }
    }

    #[test]
    fn the_page_is_up_to_date() {
        let states = read(&root().join(RESULTS)).unwrap();
        let written = std::fs::read_to_string(root().join(PAGE)).unwrap_or_default();
        assert!(states.is_empty() && written.is_empty() || written == page(&states), "{PAGE} is out of date");
    }

    #[test]
    fn a_sample_depends_on_the_seed_and_on_little_else() {
        let names: Vec<String> = (0..1000).map(|n| format!("src/lib.rs:{n}:1: replace f with ()")).collect();
        let (one, two) = (sampled(&names, 1, 300), sampled(&names, 2, 300));
        assert_eq!((one.len(), one == sampled(&names, 1, 300), one == two), (300, true, false));
        let fewer = sampled(&names[1..], 1, 300);
        assert!(one.intersection(&fewer).count() >= 299);
        assert_eq!(sampled(&names[..5], 1, 300).len(), 5);
    }

    #[test]
    fn a_pattern_is_the_name_and_nothing_else() {
        let name = "src/a.rs:1:2: replace <impl A for B>::f -> Option<u8> with Some(0)";
        let escaped = r"^src/a\.rs:1:2: replace <impl A for B>::f -> Option<u8> with Some\(0\)$";
        assert_eq!(pattern(name), escaped);
    }

    #[test]
    fn results_are_read_and_counted() {
        let folder = std::env::temp_dir().join(format!("sealane-mutants-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("caught.txt"), "a\nb\nof another sample\n").unwrap();
        std::fs::write(folder.join("timeout.txt"), "c\n").unwrap();
        std::fs::write(folder.join("missed.txt"), "d\n").unwrap();
        let sample = ["a", "b", "c", "d", "e"].map(str::to_owned).into();
        let outcomes = results(&folder, &sample).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let state = State { outcomes, sample: 5, ..State::default() };
        assert_eq!((state.outcomes.len(), state.percent()), (4, Some(75.0)));
        assert_eq!(State::default().percent(), None);
        let page = page(&BTreeMap::from([("http".to_owned(), state)]));
        assert!(page.contains("| `http` | 0 | 0 | 5 | 4 | 2 | 1 | 1 | 0 | 75.0 % |"), "{page}");
        assert!(page.contains("## Missed in `http`\n\n- `d`\n"), "{page}");
    }
}
