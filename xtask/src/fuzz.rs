//! `cargo xtask fuzz`: the fuzz targets with libFuzzer, which sees what an input reaches.
//!
//! `fuzz/libfuzzer` is one static program with all targets, compiled with overflow checks; `fuzz/run.sh` runs it, here or on another
//! machine. What is left of the corpora is kept in `fuzz/minimised`, one file per target, and the totals of all runs in
//! `docs/measurements/fuzzing.json`: so a run goes on where the last one has ended.

use crate::metadata::{Workspace, cargo};
use crate::steps;
use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The longest input that is kept: longer ones say little and make large files.
const LONGEST: usize = 4096;
/// Bytes kept for each target: the smallest inputs first.
const KEPT: usize = 96 * 1024;

const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// What libFuzzer needs of the compiler, and a program that runs on every Linux.
const FLAGS: [&str; 6] = [
    "-Ctarget-feature=+crt-static",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

#[derive(clap::Args)]
pub struct Options {
    /// Only these targets
    #[arg(value_name = "TARGET")]
    only: Vec<String>,
    /// CPU minutes for each target
    #[arg(long, default_value_t = 15.0)]
    cpu_minutes: f64,
    /// Targets that run at the same time
    #[arg(long, value_name = "N", default_value_t = std::thread::available_parallelism().map_or(1, Into::into))]
    jobs: usize,
    /// Only build, and write the files that another machine needs into this folder
    #[arg(long, value_name = "FOLDER")]
    package: Option<PathBuf>,
    /// Only import the findings of another machine: the folder WORK of `fuzz/run.sh`
    #[arg(long, value_name = "FOLDER", conflicts_with = "package")]
    take: Option<PathBuf>,
}

/// Runs targets and keeps what comes of it; 1 if there are findings.
pub fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<u8> {
    let root = workspace.root();
    if let Some(work) = &options.take {
        return take(root, work);
    }
    let folder = workspace.target().join("fuzz");
    let program = build(workspace, &folder)?;
    let seeds = folder.join("seeds");
    unpack(root, &seeds)?;
    if let Some(to) = &options.package {
        std::fs::create_dir_all(to)?;
        for (from, name) in [(&program, "sealane-libfuzzer"), (&root.join("fuzz/run.sh"), "run.sh")] {
            std::fs::copy(from, to.join(name)).with_context(|| from.display().to_string())?;
        }
        pack_seeds(&seeds, &to.join("seeds.tar.gz"))?;
        println!("{}", to.display());
        return Ok(0);
    }
    let known = targets(root)?;
    if let Some(unknown) = options.only.iter().find(|name| !known.contains(name)) {
        bail!("there is no target {unknown}: {}", known.join(", "));
    }
    let work = folder.join("work");
    let mut run = Command::new(root.join("fuzz/run.sh"));
    run.arg(program).arg(seeds).arg(&work);
    run.arg(format!("{:.0}", options.cpu_minutes * 60.0)).arg(options.jobs.to_string()).args(&options.only);
    let status = run.status().context("fuzz/run.sh")?;
    ensure!(status.success(), "fuzz/run.sh: {status}");
    take(root, &work)
}

/// The names of all targets: the folders of their corpora.
fn targets(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join("fuzz/corpus")).context("fuzz/corpus")? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Builds the program with all targets.
fn build(workspace: &Workspace, folder: &Path) -> anyhow::Result<PathBuf> {
    let mut build = cargo();
    build.args(["build", "--release", "--manifest-path", "fuzz/libfuzzer/Cargo.toml", "--target", TRIPLE]);
    // With a target named, build scripts and macros are compiled without the flags.
    build.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f")).env("CARGO_TARGET_DIR", folder.join("build"));
    let status = steps::run(build, workspace)?;
    ensure!(status == 0, "the fuzz targets do not compile with libFuzzer");
    Ok(folder.join("build").join(TRIPLE).join("release/sealane-libfuzzer"))
}

/// Copies the corpora, those in `minimised` as well, to a folder per target.
fn unpack(root: &Path, seeds: &Path) -> anyhow::Result<()> {
    for name in targets(root)? {
        let to = seeds.join(&name);
        if to.exists() {
            std::fs::remove_dir_all(&to)?;
        }
        std::fs::create_dir_all(&to)?;
        for entry in std::fs::read_dir(root.join("fuzz/corpus").join(&name))? {
            let entry = entry?;
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
        let pack = std::fs::read(minimised(root, &name)).unwrap_or_default();
        for (number, input) in inputs(&pack).context("fuzz/minimised")?.into_iter().enumerate() {
            std::fs::write(to.join(format!("{number:05}")), input)?;
        }
    }
    Ok(())
}

fn pack_seeds(seeds: &Path, file: &Path) -> anyhow::Result<()> {
    let status = Command::new("tar").arg("-C").arg(seeds).arg("-czf").arg(file).arg(".").status().context("tar")?;
    ensure!(status.success(), "tar: {status}");
    Ok(())
}

fn minimised(root: &Path, target: &str) -> PathBuf {
    root.join("fuzz/minimised").join(target)
}

/// The inputs of a file in `fuzz/minimised`: each with its length before it (32 bits, big-endian). `sealane_fuzz::minimised` reads
/// the same.
fn inputs(mut pack: &[u8]) -> anyhow::Result<Vec<&[u8]>> {
    let mut all = Vec::new();
    while let Some((length, rest)) = pack.split_first_chunk::<4>() {
        let (input, rest) =
            rest.split_at_checked(u32::from_be_bytes(*length) as usize).context("the last input is incomplete")?;
        all.push(input);
        pack = rest;
    }
    ensure!(pack.is_empty(), "the last input is incomplete");
    Ok(all)
}

/// The smallest inputs, without those that the corpus has as files, as a file in `fuzz/minimised`.
fn packed(mut all: Vec<Vec<u8>>) -> Vec<u8> {
    all.retain(|input| input.len() <= LONGEST);
    all.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    all.dedup();
    let mut pack = Vec::new();
    for input in all {
        if pack.len() + 4 + input.len() > KEPT {
            break;
        }
        pack.extend((input.len() as u32).to_be_bytes());
        pack.extend(input);
    }
    pack
}

/// What all runs of a target have come to.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Total {
    cpu_seconds: f64,
    executions: u64,
    /// Edges and features that the last run has reached, and inputs that are left of its corpus.
    coverage: u64,
    features: u64,
    corpus: u64,
}

impl Total {
    /// Adds a line of `table.tsv`; says how many findings there were.
    fn add(&mut self, fields: &[&str]) -> anyhow::Result<u64> {
        let [_, cpu, executions, coverage, features, corpus, findings] = *fields else {
            bail!("table.tsv has a line with another number of fields than seven")
        };
        self.cpu_seconds += cpu.parse::<f64>()?;
        self.executions += executions.parse::<u64>()?;
        (self.coverage, self.features, self.corpus) = (coverage.parse()?, features.parse()?, corpus.parse()?);
        Ok(findings.parse()?)
    }
}

/// Takes over the corpora and the table of a run.
fn take(root: &Path, work: &Path) -> anyhow::Result<u8> {
    let table = std::fs::read_to_string(work.join("table.tsv")).context("table.tsv")?;
    let file = root.join("docs/measurements/fuzzing.json");
    let mut totals: BTreeMap<String, Total> = match std::fs::read(&file) {
        Ok(bytes) => serde_json::from_slice(&bytes).context("docs/measurements/fuzzing.json")?,
        Err(_) => BTreeMap::new(),
    };
    let mut findings = 0;
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let target = fields[0].to_owned();
        let found = totals.entry(target.clone()).or_default().add(&fields).with_context(|| line.to_owned())?;
        if found > 0 {
            println!("{target}: {found} findings in {}", work.join("findings").join(&target).display());
        }
        findings += found;
        let corpus = work.join("corpus").join(&target);
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&corpus).with_context(|| corpus.display().to_string())? {
            all.push(std::fs::read(entry?.path())?);
        }
        std::fs::create_dir_all(root.join("fuzz/minimised"))?;
        std::fs::write(minimised(root, &target), packed(all))?;
    }
    std::fs::write(&file, serde_json::to_string_pretty(&totals)? + "\n")?;
    println!("{}", markdown(&totals));
    Ok(u8::from(findings > 0))
}

/// The totals, for docs/testing.md.
fn markdown(totals: &BTreeMap<String, Total>) -> String {
    let mut out = String::from("| target | CPU minutes | executions | edges | corpus |\n|---|---|---|---|---|\n");
    for (name, Total { cpu_seconds, executions, coverage, corpus, .. }) in totals {
        out += &format!("| `{name}` | {:.1} | {executions} | {coverage} | {corpus} |\n", cpu_seconds / 60.0);
    }
    let (seconds, executions) = totals.values().fold((0.0, 0), |(s, e), t| (s + t.cpu_seconds, e + t.executions));
    out + &format!("\n{} targets, {:.0} CPU minutes, {executions} executions\n", totals.len(), seconds / 60.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpora_are_read_as_they_were_packed() {
        let long = vec![1; LONGEST + 1];
        let pack = packed(vec![b"abc".to_vec(), b"".to_vec(), long, b"b".to_vec(), b"a".to_vec(), b"b".to_vec()]);
        assert_eq!(inputs(&pack).unwrap(), [&b""[..], b"a", b"b", b"abc"]);
        assert!(inputs(&pack[..pack.len() - 1]).is_err() && inputs(&[0, 0]).is_err());
        let many: Vec<Vec<u8>> = (0..1000u16).map(|n| n.to_be_bytes().repeat(200)).collect();
        assert!(packed(many).len() <= KEPT);
    }

    #[test]
    fn totals_add_up() {
        let mut total = Total::default();
        for (line, found) in [("a\t1.5\t10\t3\t4\t5\t0", 0), ("a\t2\t5\t6\t7\t8\t1", 1)] {
            let fields: Vec<&str> = line.split('\t').collect();
            assert_eq!(total.add(&fields).unwrap(), found);
        }
        assert_eq!(total, Total { cpu_seconds: 3.5, executions: 15, coverage: 6, features: 7, corpus: 8 });
        assert!(total.add(&["a", "b"]).is_err());
    }

    /// What is fuzzed is what is shipped: the same versions of all dependencies.
    #[test]
    fn the_fuzzers_lock_file_has_our_versions() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let packages = |file: &str| -> Vec<(String, String)> {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            let table: toml::Table = text.parse().unwrap();
            let all = table["package"].as_array().unwrap();
            all.iter().map(|p| (p["name"].as_str().unwrap().into(), p["version"].as_str().unwrap().into())).collect()
        };
        let ours = packages("Cargo.lock");
        for package in packages("fuzz/libfuzzer/Cargo.lock") {
            let own = ["sealane-libfuzzer", "libfuzzer-sys", "arbitrary"].contains(&package.0.as_str());
            assert!(
                own || ours.contains(&package),
                "{package:?}: copy Cargo.lock to fuzz/libfuzzer and build there again"
            );
        }
    }
}
