//! `sealane-lab stacks`: TLS stacks built, run and compared.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Subcommand;
use sealane_lab_stacks::advise::{self, Candidate};
use sealane_lab_stacks::builder::Builder;
use sealane_lab_stacks::catalogue::{self, Support};
use sealane_lab_stacks::doctor::{self, Found};
use sealane_lab_stacks::elf::Images;
use sealane_lab_stacks::flame;
use sealane_lab_stacks::measure::Limits;
use sealane_lab_stacks::study::{self, Bench, Options};
use sealane_lab_stacks::text;
use sealane_lab_stacks::wire::Case;

/// Options of `sealane-lab stacks`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the known TLS libraries: version, licence, support, and whether they are built.
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Build TLS libraries from sources that cargo fetches, in the user's cache.
    Build {
        /// Names, or a libressl-VERSION.tar.gz [default: the default set]
        names: Vec<String>,
        /// All known libraries
        #[arg(long, conflicts_with = "names")]
        all: bool,
        /// Concurrent compilers [default: number of CPUs]
        #[arg(short, long)]
        jobs: Option<usize>,
    },
    /// Run the same work on each library, and count its locks and instructions.
    Run(Box<RunArgs>),
    /// Remove everything that was built.
    Clean,
    /// Examine the TLS library of a program, a process or a file: version, support, CPU features, locks.
    Doctor {
        /// A program, a process ID, a libssl.so, or the name of a built library
        what: String,
        /// Seconds of sampling per kind of work; each round of the comparison with light locks (lighter locks
        /// instead of pthread's read-write locks) takes a quarter of this time
        #[arg(long, default_value_t = 2.0, value_parser = positive)]
        seconds: f64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Use perf to show how a handshake spends its CPU time, and write flame graphs.
    Profile {
        /// Names, or paths of installed libraries [default: the built libraries of the default set]
        names: Vec<String>,
        /// Profile full handshakes instead of resumed handshakes
        #[arg(long)]
        full: bool,
        /// Profile the client's side instead of the server's
        #[arg(long)]
        client: bool,
        /// Number of threads; all share one context
        #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
        threads: u16,
        /// Seconds per library
        #[arg(long, default_value_t = 3.0, value_parser = positive)]
        seconds: f64,
        /// Folder for the flame graphs
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Rank the built libraries by requirements.
    Advise {
        /// Requirements: quic, fips, lts, supported, permissive, 0-rtt, pq, tls1.0 … tls1.3, ocsp, crl, sni, alpn, ct, tickets, chacha20
        #[arg(long, value_delimiter = ',', required = true)]
        need: Vec<String>,
    },
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    /// Names, or paths of an installed libssl [default: the built libraries of the default set]
    names: Vec<String>,
    /// All built libraries
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Test every key type, group, version, bulk cipher and context, not only the main ones
    #[arg(long)]
    full: bool,
    /// Rounds per case; 0: only count
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds per run
    #[arg(long, default_value_t = 0.5, value_parser = positive)]
    seconds: f64,
    /// Thread counts [default: 1, 2, 4 … number of CPUs]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    threads: Vec<u16>,
    /// Do not count locks and instructions
    #[arg(long)]
    no_counts: bool,
    /// Do not test features
    #[arg(long)]
    no_features: bool,
    /// A run is void if its threads waited for a CPU for more than this fraction of their time
    #[arg(long, default_value_t = Limits::default().queued)]
    max_queued: f64,
    /// A run is void if some task on the machine waited for a CPU for more than this fraction of the run
    #[arg(long, default_value_t = Limits::default().pressure)]
    max_pressure: f64,
    /// Write all results, including void runs, as one JSON document
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::List { json } => list(json),
        Command::Build { names, all, jobs } => build(&names, all, jobs),
        Command::Run(args) => measure(&args),
        Command::Doctor { what, seconds, json } => examine(&what, seconds, json),
        Command::Profile { names, full, client, threads, seconds, out, json } => {
            let case = Case {
                test: if client { "client" } else { "server" },
                resumed: !full,
                threads: usize::from(threads),
                ..Case::BASE
            };
            profile(&names, &case, seconds, out.as_deref(), json)
        }
        Command::Advise { need } => advice(&need),
        Command::Clean => {
            let builder = Builder::new(None)?;
            let freed = builder.clean()?;
            outln!("{:.1} GB freed in {}", freed as f64 / 1e9, builder.root().display());
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn list(json: bool) -> anyhow::Result<ExitCode> {
    let (all, builder, today) = (catalogue::catalogue(), Builder::new(None)?, catalogue::today());
    if json {
        outln!("{}", serde_json::to_string_pretty(&all.stacks)?);
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<Vec<String>> = all
        .stacks
        .iter()
        .map(|s| {
            let built = if builder.ready(s).is_some() { "built" } else { "-" };
            let support = s.support(&today);
            let until = s.support_ends.clone().unwrap_or_default();
            let support = match support {
                Support::Rolling => support.name().to_owned(),
                _ => format!("{} {until}", support.name()).trim().to_owned(),
            };
            let set = if s.default { "default" } else { "" };
            vec![s.name.clone(), s.title.clone(), support, s.licence.clone(), set.into(), built.into()]
        })
        .collect();
    out!("{}", text::table(&["stack", "what", "support", "licence", "set", "state"], &rows));
    outln!(
        "\nSupport as of {today}; dates checked on {}. Built ones are in {}.",
        all.checked,
        builder.root().display()
    );
    for stack in all.stacks.iter().filter(|s| s.note.is_some()) {
        outln!("{}: {}", stack.name, stack.note.as_deref().unwrap_or_default());
    }
    Ok(ExitCode::SUCCESS)
}

fn build(names: &[String], all: bool, jobs: Option<usize>) -> anyhow::Result<ExitCode> {
    let stacks = catalogue::choose(&catalogue::catalogue(), names, all).map_err(|why| anyhow!(why))?;
    let builder = Builder::new(jobs)?;
    let say = |n: usize, what: &str| eprintln!("[{}/{}] {}: {what}", n + 1, stacks.len(), stacks[n].name);
    let failed = builder.build_all(&stacks, &say).iter().filter(|built| built.is_err()).count();
    builder.peer(&mut |what| eprintln!("fixed peer: {what}"))?;
    builder.lock_counter()?;
    if failed > 0 {
        eprintln!(
            "{failed} of {} failed; finished builds are kept, and `stacks build` continues from there",
            stacks.len()
        );
    }
    Ok(ExitCode::from(u8::from(failed > 0)))
}

fn measure(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let all = catalogue::catalogue();
    let builder = Builder::new(None)?;
    let mut stacks = catalogue::choose(&all, &args.names, args.all).map_err(|why| anyhow!(why))?;
    if args.names.is_empty() {
        stacks.retain(|stack| builder.ready(stack).is_some());
        if stacks.is_empty() {
            return Err(anyhow!("no stack is built yet: sealane-lab stacks build"));
        }
    }
    let threads = if args.threads.is_empty() {
        let cpus = study::Machine::this().cpus;
        let mut list: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < cpus).collect();
        list.push(cpus);
        list
    } else {
        args.threads.iter().map(|&n| usize::from(n)).collect()
    };
    let options = Options {
        rounds: args.rounds,
        seconds: args.seconds,
        threads,
        full: args.full,
        counts: !args.no_counts,
        features: !args.no_features,
        limits: Limits { queued: args.max_queued, pressure: args.max_pressure },
    };
    let mut say = |what: &str| eprintln!("{what}");
    for stack in stacks.iter().filter(|s| s.path().is_some()) {
        // Only the worker is missing where the library is there already.
        builder.worker(&stack.worker, &mut say).context("the worker for installed libraries")?;
    }
    let bench = Bench::new(builder, &mut say).map_err(|why| anyhow!(why))?;
    let results = study::run(&bench, &stacks, &options, &mut say).map_err(|why| anyhow!(why))?;
    if let Some(path) = &args.out {
        study::write(&results, path).map_err(|why| anyhow!(why))?;
    }
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        out!("{}", text::results(&results));
    }
    let void = !results.series.is_empty() && results.series.iter().all(|s| s.void().is_some());
    Ok(ExitCode::from(if void { 3 } else { 0 }))
}

/// A time that something can be measured in.
fn positive(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s: &f64| s.is_finite() && (0.01..=3600.0).contains(s));
    seconds.ok_or_else(|| "a number of seconds, 0.01 to 3600".to_owned())
}

fn examine(what: &str, seconds: f64, json: bool) -> anyhow::Result<ExitCode> {
    let builder = Builder::new(None)?;
    let known = catalogue::catalogue().stacks.into_iter().find(|stack| stack.name == what);
    let found = match known {
        Some(stack) => doctor::of_stack(&builder, &stack),
        None => doctor::find(what),
    };
    let library = match found.map_err(|why| anyhow!(why))? {
        Found::Library(path) => path,
        found => {
            if json {
                outln!("{}", serde_json::to_string_pretty(&found)?);
                return Ok(ExitCode::from(3));
            }
            match found {
                Found::Other(path) => outln!(
                    "{what} uses {}. No worker runs this library; `sealane-lab locks` counts the\nlocks of any \
                     program.",
                    path.display()
                ),
                Found::Inside(marks) => {
                    outln!(
                        "{what} loads no TLS library; its file contains traces of: {}. A statically linked library cannot be run separately;\n\
                         `sealane-lab locks` counts the locks of the program itself.",
                        marks.join(", ")
                    );
                    let versions = marks.iter().filter_map(|mark| mark.split_once('(').map(|(_, version)| version));
                    for support in versions.filter_map(doctor::support) {
                        outln!("support of {support} (a distribution may support it longer)");
                    }
                }
                _ => outln!("{what} loads no TLS library, and its file contains traces of none"),
            }
            return Ok(ExitCode::from(3));
        }
    };
    let mut say = |text: &str| eprintln!("{text}");
    let bench = Bench::new(builder, &mut say).map_err(|why| anyhow!(why))?;
    let report = doctor::examine(&bench, &library, seconds, &mut say).map_err(|why| anyhow!(why))?;
    if json {
        outln!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        out!("{}", text::doctor(&report));
    }
    Ok(ExitCode::SUCCESS)
}

fn profile(names: &[String], case: &Case, seconds: f64, out: Option<&Path>, json: bool) -> anyhow::Result<ExitCode> {
    let builder = Builder::new(None)?;
    let mut say = |text: &str| eprintln!("{text}");
    let stacks = catalogue::choose(&catalogue::catalogue(), names, false).map_err(|why| anyhow!(why))?;
    for stack in stacks.iter().filter(|s| s.path().is_some()) {
        builder.worker(&stack.worker, &mut say)?;
    }
    let bench = Bench::new(builder, &mut say).map_err(|why| anyhow!(why))?;
    let mut all = Vec::new();
    for stack in &stacks {
        let Some(built) = bench.builder.ready(stack) else {
            say(&format!("{}: not built", stack.name));
            continue;
        };
        say(&format!("{}: {} of {}", stack.name, case.name(), case.test));
        match bench.profile(&built, case, seconds) {
            Ok(found) => all.push((stack.name.clone(), found)),
            Err(why) => say(&format!("{}: {why}", stack.name)),
        }
    }
    if let Some(folder) = out {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        for (name, found) in &all {
            let file = folder.join(format!("{}.svg", name.replace('/', "_").trim_start_matches('_')));
            let title = format!("{name}, {} of {}", case.test, case.name());
            std::fs::write(&file, flame::draw(&title, &found.stacks)).with_context(|| file.display().to_string())?;
        }
    }
    if json {
        outln!("{}", serde_json::to_string_pretty(&all)?);
    } else if !all.is_empty() {
        outln!("{}, {} threads: percent of the {}'s CPU time", case.name(), case.threads, case.test);
        out!("{}", text::profiles(&all));
    }
    Ok(ExitCode::from(if all.is_empty() { 3 } else { 0 }))
}

fn advice(needs: &[String]) -> anyhow::Result<ExitCode> {
    advise::check(needs).map_err(|why| anyhow!(why))?;
    let mut say = |text: &str| eprintln!("{text}");
    let bench = Bench::new(Builder::new(None)?, &mut say).map_err(|why| anyhow!(why))?;
    let mut images = Images::default();
    let candidates: Vec<Candidate> = catalogue::catalogue()
        .stacks
        .into_iter()
        .map(|stack| {
            let ready = bench.builder.ready(&stack);
            let features = ready.as_ref().and_then(|built| bench.features(built).ok());
            let resumed = Case { resumed: true, ..Case::BASE };
            let locks = ready.and_then(|built| bench.locks(&built, &resumed, &mut images).ok()).map(|l| l.calls);
            Candidate { stack, features, locks }
        })
        .collect();
    let ranked = advise::rank(&candidates, needs, &catalogue::today());
    for advice in &ranked {
        outln!("{} {:<16} {}", if advice.fits { "+" } else { "-" }, advice.name, advice.why);
    }
    Ok(ExitCode::from(u8::from(!ranked.iter().any(|a| a.fits))))
}
