//! `cargo xtask plant`: do the tests find bugs? Each file in `tests/planted` is a bug, with the tests that must fail of it.
//!
//! A bug is planted in a copy of the tree (a git worktree in `target/plant`, with a build folder of its own), the suite that
//! has the named tests is built and these tests run. The bug is caught if each of them fails, and if each of them passes
//! without it. A bug that does not compile is caught by nobody: then the patch is out of date.

use crate::metadata::Workspace;
use crate::steps::Checks;
use anyhow::{Context, bail, ensure};
use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Where the bugs are.
const FOLDER: &str = "tests/planted";

/// Suites, and how cargo builds and runs them. The last one starts the gateway, which is built before.
const SUITES: &[(&str, &[&str])] = &[
    ("http", &["-p", "sealane-http", "--lib", "--test", "codec"]),
    ("exchange", &["-p", "sealane-exchange", "--lib"]),
    ("routing", &["-p", "sealane-route", "--lib"]),
    // With the crate that has the TLS library's other features, so that the library is compiled once for all suites.
    ("protocol", &["-p", "sealane-ovpn", "-p", "sealane-tls", "--lib", "--test", "data"]),
    ("tls", &["-p", "sealane-tls", "--lib"]),
    ("lane", &["-p", "sealane-lane", "--lib"]),
    ("proxy", &["-p", "sealane-proxy", "--lib"]),
    (INTEROP, &["-p", "sealane", "-p", "sealane-interop", "--test", "it"]),
];
const INTEROP: &str = "interop";

#[derive(clap::Args)]
pub struct Options {
    /// Only these bugs, by the names of their files in tests/planted
    #[arg(value_name = "BUG")]
    only: Vec<String>,
    /// Only list the bugs
    #[arg(long)]
    list: bool,
}

/// A planted bug: the lines before its patch.
#[derive(Debug, PartialEq, Eq)]
struct Bug {
    name: String,
    /// As issues and reviews call such bugs.
    kind: String,
    /// What the patch breaks.
    text: String,
    suite: String,
    /// By their full names. Each must fail.
    tests: Vec<String>,
}

impl Bug {
    fn parse(name: &str, patch: &str) -> anyhow::Result<Self> {
        let mut fields: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for line in patch.lines().take_while(|line| !line.is_empty()) {
            let (key, value) =
                line.split_once(": ").with_context(|| format!("{name}: not a `Name: value` line: {line}"))?;
            fields.entry(key).or_default().push(value.to_owned());
        }
        let mut one = |key: &str| {
            let values = fields.remove(key).unwrap_or_default();
            <[String; 1]>::try_from(values)
                .map(|[value]| value)
                .map_err(|_| anyhow::anyhow!("{name}: one line `{key}:` is needed"))
        };
        let (kind, text, suite) = (one("Kind")?, one("Bug")?, one("Suite")?);
        let tests = fields.remove("Test").unwrap_or_default();
        ensure!(!tests.is_empty(), "{name}: there is no line `Test:`");
        ensure!(fields.is_empty(), "{name}: unknown lines: {:?}", fields.keys());
        ensure!(arguments(&suite).is_some(), "{name}: no suite is called {suite}");
        Ok(Self { name: name.to_owned(), kind, text, suite, tests })
    }

    fn file(&self, root: &Path) -> PathBuf {
        root.join(FOLDER).join(format!("{}.patch", self.name))
    }
}

fn arguments(suite: &str) -> Option<&'static [&'static str]> {
    SUITES.iter().find(|(name, _)| *name == suite).map(|(_, arguments)| *arguments)
}

/// All bugs, by name.
fn bugs(root: &Path) -> anyhow::Result<Vec<Bug>> {
    let mut bugs = Vec::new();
    for entry in std::fs::read_dir(root.join(FOLDER)).context(FOLDER)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "patch") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            bugs.push(Bug::parse(&name, &std::fs::read_to_string(&path)?)?);
        }
    }
    bugs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(bugs)
}

/// Plants the bugs one by one and prints a table; 1 if a bug is not caught.
pub fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<u8> {
    let mut bugs = bugs(workspace.root())?;
    if let Some(unknown) = options.only.iter().find(|name| !bugs.iter().any(|bug| bug.name == **name)) {
        bail!("{FOLDER} has no {unknown}.patch");
    }
    bugs.retain(|bug| options.only.is_empty() || options.only.contains(&bug.name));
    if options.list {
        bugs.iter().for_each(|bug| println!("{}: {}", bug.name, bug.text));
        return Ok(0);
    }
    let copy = Copy::make(workspace)?;
    // By suite: whether the named tests pass without a bug. Else their failure would mean nothing.
    let mut sound: BTreeMap<String, Result<(), String>> = BTreeMap::new();
    let mut rows = Vec::new();
    for bug in &bugs {
        let start = Instant::now();
        if !sound.contains_key(&bug.suite) {
            let tests: Vec<&str> =
                bugs.iter().filter(|b| b.suite == bug.suite).flat_map(|b| &b.tests).map(String::as_str).collect();
            println!("── {}: without a bug", bug.suite);
            sound.insert(bug.suite.clone(), copy.test(&bug.suite, &tests)?.all("pass", true));
        }
        println!("── {}: {}", bug.suite, bug.name);
        let verdict = match &sound[&bug.suite] {
            Err(why) => Err(format!("without the bug: {why}")),
            Ok(()) => copy.try_bug(workspace.root(), bug)?,
        };
        println!("{}", verdict.as_ref().map_or_else(|why| format!("NOT CAUGHT: {why}"), |()| "caught".to_owned()));
        rows.push((bug, verdict, start.elapsed()));
        stdout().flush()?;
    }
    println!("\n{}", table(&rows));
    Ok(u8::from(rows.iter().any(|(_, verdict, _)| verdict.is_err())))
}

type Row<'a> = (&'a Bug, Result<(), String>, Duration);

/// The result as Markdown, for docs/testing.md.
fn table(rows: &[Row<'_>]) -> String {
    let mut out = String::from("| kind | planted | caught by |\n|---|---|---|\n");
    for (bug, verdict, _) in rows {
        let by = match verdict {
            Ok(()) => {
                format!("{}: {}", bug.suite, bug.tests.iter().map(|t| format!("`{t}`")).collect::<Vec<_>>().join(", "))
            }
            Err(why) => format!("**nobody**: {why}"),
        };
        out += &format!("| {} | `{}`: {} | {by} |\n", bug.kind, bug.name, bug.text);
    }
    let seconds: u64 = rows.iter().map(|(.., time)| time.as_secs()).sum();
    let caught = rows.iter().filter(|(_, verdict, _)| verdict.is_ok()).count();
    out + &format!("\n{caught} of {} caught, {seconds} s\n", rows.len())
}

/// The copy of the tree in which bugs are planted.
struct Copy<'a> {
    workspace: &'a Workspace,
    tree: PathBuf,
    target: PathBuf,
}

impl<'a> Copy<'a> {
    /// Makes it, or brings it up to date: the last commit with what has been changed since in files that git knows.
    fn make(workspace: &'a Workspace) -> anyhow::Result<Self> {
        let folder = workspace.target().join("plant");
        let copy = Self { workspace, tree: folder.join("tree"), target: folder.join("target") };
        let root = workspace.root();
        let changed = git(root, &["stash", "create"])?;
        let commit = if changed.is_empty() { git(root, &["rev-parse", "HEAD"])? } else { changed };
        if !copy.tree.join("Cargo.toml").is_file() {
            std::fs::create_dir_all(&folder)?;
            let tree = copy.tree.to_string_lossy().into_owned();
            git(root, &["worktree", "prune"])?;
            git(root, &["worktree", "add", "--force", "--detach", &tree, &commit])?;
        }
        git(&copy.tree, &["checkout", "--quiet", "--force", "--detach", &commit])?;
        Ok(copy)
    }

    /// Plants a bug, and removes it again.
    fn try_bug(&self, root: &Path, bug: &Bug) -> anyhow::Result<Result<(), String>> {
        let patch = bug.file(root).to_string_lossy().into_owned();
        git(&self.tree, &["apply", &patch]).with_context(|| format!("{}: the patch is out of date", bug.name))?;
        let tests: Vec<&str> = bug.tests.iter().map(String::as_str).collect();
        let results = self.test(&bug.suite, &tests);
        git(&self.tree, &["checkout", "--quiet", "--", "."])?;
        Ok(results?.all("fail", false))
    }

    /// Builds a suite and runs some of its tests.
    fn test(&self, suite: &str, tests: &[&str]) -> anyhow::Result<Results> {
        let arguments = arguments(suite).context("no such suite")?;
        let cargo = |verb: &str| {
            let mut command = Checks::On.cargo(self.workspace);
            command.args([verb, "--release"]).current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target);
            command
        };
        let mut build = cargo("test");
        build.args(arguments).arg("--no-run");
        let mut builds = vec![build];
        if suite == INTEROP {
            let mut gateway = cargo("build");
            gateway.args(&arguments[..4]).args(["--bin", "sealane"]);
            builds.push(gateway);
        }
        for mut build in builds {
            let output = build.output().context("cargo")?;
            ensure!(output.status.success(), "{suite} does not compile:\n{}", String::from_utf8_lossy(&output.stderr));
        }
        let mut run = cargo("test");
        run.args(arguments).args(["--no-fail-fast", "--", "--exact"]).args(tests);
        run.env("SEALANE_BIN", self.target.join("release").join(format!("sealane{}", std::env::consts::EXE_SUFFIX)));
        Ok(Results::of(&run.output().context("cargo test")?, tests))
    }
}

/// What became of each test; `None` if it did not run to its end.
struct Results(Vec<(String, Option<bool>)>);

impl Results {
    fn of(output: &Output, tests: &[&str]) -> Self {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let became = |test: &str| {
            text.lines().find_map(|line| {
                let result = line.strip_prefix("test ")?.strip_prefix(test)?.strip_prefix(" ... ")?;
                [("ok", true), ("FAILED", false)]
                    .into_iter()
                    .find(|(word, _)| result == *word)
                    .map(|(_, passed)| passed)
            })
        };
        Self(tests.iter().map(|test| ((*test).to_owned(), became(test))).collect())
    }

    /// Whether each did the same. Else which one did not.
    fn all(&self, what: &str, passed: bool) -> Result<(), String> {
        match self.0.iter().find(|(_, result)| *result != Some(passed)) {
            None => Ok(()),
            Some((test, None)) => Err(format!("`{test}` did not run to its end")),
            Some((test, Some(_))) => Err(format!("`{test}` must {what}, and does not")),
        }
    }
}

fn git(folder: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().context("git")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {}", arguments.join(" "), said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    /// So that a patch that code has outgrown is noticed by the tests of each commit, and not when bugs are planted next.
    #[test]
    fn each_bug_can_be_planted() {
        let bugs = bugs(root()).unwrap();
        assert!(bugs.len() >= 12, "{}", bugs.len());
        for bug in bugs {
            let file = bug.file(root()).canonicalize().unwrap();
            let output = Command::new("git").args(["apply", "--check"]).arg(file).current_dir(root()).output();
            let output = output.expect("git is there");
            assert!(output.status.success(), "{}: {}", bug.name, String::from_utf8_lossy(&output.stderr));
        }
    }

    #[test]
    fn a_bug_says_what_it_is() {
        let text = "Kind: a kind\nBug: what is wrong\nSuite: http\nTest: a::b\nTest: c\n\ndiff --git a/x b/x\n";
        let bug = Bug::parse("x", text).unwrap();
        assert_eq!((&bug.kind[..], &bug.text[..], &bug.suite[..]), ("a kind", "what is wrong", "http"));
        assert_eq!(bug.tests, ["a::b", "c"]);
        for wrong in
            ["Kind: a\n", "Kind: a\nBug: b\nSuite: none\nTest: t\n", "Kind: a\nBug: b\nSuite: http\n", "text\n"]
        {
            assert!(Bug::parse("x", wrong).is_err(), "{wrong}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn results_are_read_from_what_tests_print() {
        let text = "running 2 tests\ntest a::b ... ok\ntest a::bc ... FAILED\ntest d ... ignored\n";
        let status = std::os::unix::process::ExitStatusExt::from_raw(0);
        let output = Output { status, stdout: text.into(), stderr: Vec::new() };
        let results = |tests: &[&str]| Results::of(&output, tests);
        assert_eq!(results(&["a::b"]).all("pass", true), Ok(()));
        assert_eq!(results(&["a::bc"]).all("fail", false), Ok(()));
        assert!(results(&["a::b", "a::bc"]).all("fail", false).is_err());
        assert!(results(&["d"]).all("pass", true).is_err() && results(&["e"]).all("fail", false).is_err());
    }
}
