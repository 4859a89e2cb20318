//! The whole study of some stacks: rounds, counts, features; what `sealane-lab stacks run` does.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::atomics::{Atomics, calibrate};
use crate::builder::{Builder, Built};
use crate::catalogue::{self, Stack, Support};
use crate::certs;
use crate::elf::Images;
use crate::instructions;
use crate::locks;
use crate::measure::{self, Limits, Plan, Series};
use crate::paths::{self, Taken};
use crate::profile;
use crate::wire::{self, Case, Description, Feature, Line};

/// How much to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rounds of every case; 0 for counts alone.
    pub rounds: usize,
    /// Seconds of each run.
    pub seconds: f64,
    /// The numbers of threads.
    pub threads: Vec<usize>,
    /// All kinds of key, groups, versions, bulk ciphers and contexts instead of the main ones.
    pub full: bool,
    /// Lock calls and instructions.
    pub counts: bool,
    /// Try features.
    pub features: bool,
    /// When a run is void.
    pub limits: Limits,
}

/// A stack that took part.
#[derive(Clone, Debug, Serialize)]
pub struct Subject {
    /// From the catalogue.
    #[serde(flatten)]
    pub stack: Stack,
    /// What the library says that it is.
    pub version: String,
    /// Support on the day of the run.
    pub support: Support,
    /// Features, tried.
    pub features: Vec<Feature>,
}

/// Counts of a stack, or why there are none.
#[derive(Clone, Debug, Serialize)]
pub struct Counted<T> {
    /// The stack.
    pub stack: String,
    /// The case.
    pub case: Case,
    /// The counts.
    pub count: Option<T>,
    /// Why not.
    pub skipped: Option<String>,
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// `sealane-lab` that ran it.
    pub sealane: &'static str,
    /// The day.
    pub date: String,
    /// The machine, in words.
    pub machine: Machine,
    /// The stacks.
    pub subjects: Vec<Subject>,
    /// Those that could not be run, and why.
    pub absent: Vec<(String, String)>,
    /// How it was measured.
    pub plan: Plan,
    /// The runs.
    pub series: Vec<Series>,
    /// Lock calls per handshake.
    pub locks: Vec<Counted<locks::PerHandshake>>,
    /// Instructions per handshake.
    pub instructions: Vec<Counted<instructions::PerHandshake>>,
    /// What an atomic costs here.
    pub atomics: Option<Atomics>,
}

/// What matters of a machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// The kernel.
    pub kernel: String,
}

impl Machine {
    /// This one.
    pub fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let info = read("/proc/cpuinfo");
        let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':')).map(|(_, n)| n.trim());
        Self {
            processor: name.unwrap_or(std::env::consts::ARCH).to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

/// The cases of a run. The main ones are those of the study: full handshakes, with RSA as it had them and with ECDSA,
/// and resumed ones; each side by itself against the fixed peer.
pub fn cases(options: &Options) -> Vec<Case> {
    let mut all = Vec::new();
    for &threads in &options.threads {
        for test in ["server", "client"] {
            let base = Case { test, threads, ..Case::BASE };
            all.push(base.clone());
            all.push(Case { resumed: true, ..base.clone() });
            all.push(Case { key: "rsa2048", ..base.clone() });
            if options.full {
                all.push(Case { key: "rsa4096", ..base.clone() });
                all.push(Case { group: "x25519mlkem768", ..base.clone() });
                all.push(Case { tls: "1.2", ..base.clone() });
                all.push(Case { tls: "1.2", resumed: true, ..base.clone() });
                all.push(Case { own_context: true, ..base.clone() });
                all.push(Case { own_context: true, resumed: true, ..base });
            }
        }
    }
    if options.full {
        for test in ["server", "client"] {
            for cipher in ["aes128", "aes256", "chacha20"] {
                for record in [1024, 4096, 16384] {
                    all.push(Case { test, cipher, record: Some(record), ..Case::BASE });
                }
            }
        }
    }
    all
}

/// What counting needs of each stack: both sides, full and resumed.
fn counted_cases() -> Vec<Case> {
    let side = |test| [Case { test, ..Case::BASE }, Case { test, resumed: true, ..Case::BASE }];
    ["server", "client"].into_iter().flat_map(side).collect()
}

/// Where threads meet in locks: resumed, one context, on so many CPUs. What comes of it differs from run to run.
pub fn meeting_cases(cpus: usize) -> Vec<Case> {
    let sides = ["server", "client"].into_iter().filter(|_| cpus > 1);
    sides.map(|test| Case { test, resumed: true, threads: cpus, ..Case::BASE }).collect()
}

/// What every command about built stacks needs.
#[derive(Debug)]
pub struct Bench {
    /// The cache.
    pub builder: Builder,
    /// The fixed peer.
    pub peer: PathBuf,
    /// The certificates.
    pub certs: PathBuf,
}

impl Bench {
    /// Builds what is missing of peer and certificates.
    pub fn new(builder: Builder, say: &mut dyn FnMut(&str)) -> Result<Self, String> {
        let peer = builder.peer(say).map_err(|e| e.to_string())?;
        let certs = certs::folder(builder.root())?;
        Ok(Self { builder, peer, certs })
    }

    /// What a library says about itself.
    pub fn describe(&self, built: &Built) -> Result<Description, String> {
        let lines = wire::run(wire::command(built, &self.peer, &self.certs, &["describe".into()]))?;
        let description = lines.into_iter().find_map(|line| match line {
            Line::Stack(description) => Some(*description),
            _ => None,
        });
        description.ok_or_else(|| "the worker does not name its library".into())
    }

    /// One run of a case; with light read-write locks if asked. What is compared with light locks is to be run by this
    /// too, without them.
    pub fn measure(&self, built: &Built, case: &Case, seconds: f64, light: bool) -> Result<measure::Run, String> {
        let mut arguments = case.arguments();
        arguments.extend(["--seconds".into(), seconds.to_string()]);
        let mut command = wire::command(built, &self.peer, &self.certs, &arguments);
        if light {
            let counter = self.builder.lock_counter().map_err(|e| e.to_string())?;
            locks::preload(&mut command, &counter, Path::new(""), true, true);
            command.env_remove("SEALANE_LOCKS_DIR");
        }
        measure::once(command)
    }

    /// Tries every feature.
    pub fn features(&self, built: &Built) -> Result<Vec<Feature>, String> {
        let lines = wire::run(wire::command(built, &self.peer, &self.certs, &["features".into()]))?;
        Ok(lines.into_iter().filter_map(|l| if let Line::Feature(f) = l { Some(f) } else { None }).collect())
    }

    /// Lock calls of a side.
    pub fn locks(&self, built: &Built, case: &Case, images: &mut Images) -> Result<locks::PerHandshake, String> {
        locks::count(&self.builder, built, &self.peer, &self.certs, case, 200, images)
    }

    /// Which instructions a server runs, so many seconds of each kind of work.
    pub fn paths(&self, built: &Built, tls: &'static str, seconds: f64) -> Result<Vec<Taken>, String> {
        let sampler = self.builder.path_sampler().map_err(|e| e.to_string())?;
        let tools = paths::Tools { peer: &self.peer, certs: &self.certs, sampler: &sampler, root: self.builder.root() };
        paths::look(built, &tools, tls, seconds)
    }

    /// Where the time of a side goes.
    pub fn profile(&self, built: &Built, case: &Case, seconds: f64) -> Result<profile::Profile, String> {
        profile::profile(built, &self.peer, &self.certs, case, seconds, self.builder.root())
    }

    /// Instructions of a side.
    pub fn instructions(
        &self,
        built: &Built,
        case: &Case,
        images: &mut Images,
    ) -> Result<instructions::PerHandshake, String> {
        let root = self.builder.root();
        instructions::count(built, &self.peer, &self.certs, case, 10, root, images)
    }
}

/// Runs it all.
pub fn run(bench: &Bench, stacks: &[Stack], options: &Options, say: &mut dyn FnMut(&str)) -> Result<Results, String> {
    let today = catalogue::today();
    let (mut subjects, mut built, mut absent) = (Vec::new(), Vec::new(), Vec::new());
    for stack in stacks {
        let Some(ready) = bench.builder.ready(stack) else {
            absent.push((stack.name.clone(), format!("not built: sealane-lab stacks build {}", stack.name)));
            continue;
        };
        match bench.describe(&ready) {
            Ok(Description { version, .. }) => {
                let support = stack.support(&today);
                subjects.push(Subject { stack: stack.clone(), version, support, features: Vec::new() });
                built.push(ready);
            }
            Err(why) => absent.push((stack.name.clone(), why)),
        }
    }
    if built.is_empty() {
        let why = absent.first().map_or("no stack was chosen", |(_, why)| why);
        return Err(format!("nothing to run: {why}"));
    }
    if options.features {
        for (subject, built) in subjects.iter_mut().zip(&built) {
            say(&format!("trying features: {}", subject.stack.name));
            subject.features = bench
                .features(built)
                .unwrap_or_else(|why| vec![Feature { name: "all".into(), state: "unknown".into(), note: why }]);
        }
    }
    let (mut locks, mut instructions, mut atomics) = (Vec::new(), Vec::new(), None);
    if options.counts {
        let mut images = Images::default();
        for built in &built {
            for case in counted_cases() {
                let stack = &built.stack.name;
                say(&format!("counting locks: {stack}, {} ({})", case.name(), case.test));
                locks.push(counted(stack, &case, bench.locks(built, &case, &mut images)));
                say(&format!("counting instructions: {stack}, {} ({})", case.name(), case.test));
                instructions.push(counted(stack, &case, bench.instructions(built, &case, &mut images)));
            }
            for case in meeting_cases(Machine::this().cpus) {
                let stack = &built.stack.name;
                say(&format!("waiting for locks: {stack}, {} threads ({})", case.threads, case.test));
                locks.push(counted(stack, &case, bench.locks(built, &case, &mut images)));
            }
        }
        say("what an atomic costs");
        atomics = Some(calibrate(Machine::this().cpus));
    }
    let cases = if options.rounds == 0 { Vec::new() } else { cases(options) };
    let plan = Plan { cases, rounds: options.rounds, seconds: options.seconds, limits: options.limits };
    let series = measure::run(&built, &bench.peer, &bench.certs, &plan, say);
    let sealane = env!("CARGO_PKG_VERSION");
    let machine = Machine::this();
    Ok(Results { sealane, date: today, machine, subjects, absent, plan, series, locks, instructions, atomics })
}

fn counted<T>(stack: &str, case: &Case, result: Result<T, String>) -> Counted<T> {
    let (count, skipped) = match result {
        Ok(count) => (Some(count), None),
        Err(why) => (None, Some(why)),
    };
    Counted { stack: stack.to_owned(), case: case.clone(), count, skipped }
}

/// Writes the results as one JSON document.
pub fn write(results: &Results, path: &Path) -> Result<(), String> {
    let text = serde_json::to_string_pretty(results).map_err(|e| e.to_string())?;
    std::fs::write(path, text + "\n").map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_cases_are_the_studys_and_the_full_ones_add_to_them() {
        let options = |full| Options {
            rounds: 5,
            seconds: 1.0,
            threads: vec![1, 2],
            full,
            counts: false,
            features: false,
            limits: Limits::default(),
        };
        let (main, full) = (cases(&options(false)), cases(&options(true)));
        assert_eq!(main.len(), 12);
        assert!(main.iter().all(|case| full.contains(case)));
        assert!(full.iter().any(|case| case.record == Some(1024)) && full.iter().any(|case| case.own_context));
    }

    #[test]
    fn threads_meet_on_both_sides_where_there_are_cpus_for_it() {
        assert!(meeting_cases(1).is_empty());
        let all = meeting_cases(4);
        assert_eq!(
            all.iter().map(|case| (case.test, case.threads)).collect::<Vec<_>>(),
            [("server", 4), ("client", 4)]
        );
        assert!(all.iter().all(|case| case.resumed && !case.own_context));
    }
}
