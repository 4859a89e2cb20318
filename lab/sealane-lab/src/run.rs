//! `sealane-lab run`: experiments, from the command line to a report; and `sealane-lab report`, which renders what
//! earlier runs found again, or puts it together.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::Args as ClapArgs;
use sealane_lab_harness::spec::PartSpec;
use sealane_lab_harness::{Experiment, Journal, Method, Options, machine, programs};
use sealane_lab_load::verdict::time;
use sealane_lab_report::model::{FORMAT, rfc3339};
use sealane_lab_report::{Page, Report, csv, finding, html, text};

/// The experiments that this program knows, in the order of `run all`.
fn experiments() -> anyhow::Result<Vec<Box<dyn Experiment>>> {
    Ok(vec![
        Box::new(sealane_lab_proxies::Proxies::new()?),
        Box::new(sealane_lab_tls_versions::TlsVersions::new()?),
        Box::new(sealane_lab_tunnel::Tunnel::new()?),
        Box::new(sealane_lab_syn_tls::SynTls::new()?),
        Box::new(sealane_lab_tls_stacks::TlsStacks::new()?),
    ])
}

/// Options of `sealane-lab run`.
#[derive(Debug, ClapArgs)]
#[command(before_help = "\
An experiment compares several programs, its subjects (for `proxies`: sealane, nginx, haproxy).")]
#[command(after_help = "EXIT CODES: 0 done, 2 wrong usage, 3 nothing could be measured.

EXAMPLES:
  List the experiments:
      sealane-lab run list
  A short run of a few minutes:
      sealane-lab run proxies --quick --out report
  With a second HAProxy:
      sealane-lab run proxies --subject haproxy-new=/opt/haproxy/sbin/haproxy --out report
  An old and a new gateway:
      sealane-lab run proxies --method together --without nginx,haproxy \\
          --subject sealane=NEW --subject sealane-old=OLD --out report
  All experiments:
      sealane-lab run all --out report
  Continue a run that was interrupted:
      sealane-lab run proxies --set seconds=8 --resume report")]
pub struct Args {
    /// Name of an experiment, `all`, or `list`
    #[arg(value_name = "EXPERIMENT")]
    experiment: String,
    /// Run for only a few minutes: fewer parts, fewer and shorter rounds
    #[arg(long)]
    quick: bool,
    /// Folder for report.html, report.json, report.csv and raw histograms
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Continue the interrupted run whose report is in this folder; write the same options again (--set rounds may be higher)
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    resume: Option<PathBuf>,
    /// Use this program for a subject (`nginx=/opt/nginx`), or add a subject (`haproxy-wolfssl=/opt/haproxy`); repeatable
    #[arg(long, alias = "peer", value_name = "NAME=PATH")]
    subject: Vec<String>,
    /// Leave out these subjects
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    without: Vec<String>,
    /// Measure each subject alone, one after the other; or all together on one CPU, for steady ratios on a shared machine
    #[arg(long, value_enum, default_value_t = How::Turns)]
    method: How,
    /// Run only these parts; with `all`: EXPERIMENT.PART
    #[arg(long, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<String>,
    /// Change a value of the experiment's file, such as rounds=9; with `all`: EXPERIMENT.KEY=VALUE; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// A round is void if other programs used more CPUs than this
    #[arg(long, default_value_t = 0.05, value_name = "CPUS")]
    max_foreign: f64,
    /// An open-loop round is void if the load was later than this at the 99th percentile
    #[arg(long, default_value = "1ms", value_parser = duration, value_name = "TIME")]
    max_lag: Duration,
    /// How long each round waits for a quiet moment
    #[arg(long, visible_alias = "patience", default_value = "60s", value_parser = duration, value_name = "TIME")]
    max_wait: Duration,
    /// Attempts per round before it counts as void
    #[arg(long, default_value_t = 3, value_name = "N")]
    tries: usize,
    /// A round in which one subject had no valid attempt is void for all subjects
    #[arg(long)]
    whole_cycles: bool,
    /// CPUs for the servers [default: half of the CPUs]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    server_cpus: Vec<usize>,
    /// CPUs for the load generator; of several CPUs, the last is for the upstream server [default: the others]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    client_cpus: Vec<usize>,
    /// Print the report as one JSON document on standard output
    #[arg(long)]
    json: bool,
    /// Do not show progress
    #[arg(short, long)]
    quiet: bool,
}

/// `--method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum How {
    /// One subject after the other, each alone
    Turns,
    /// All subjects at the same time on one CPU
    Together,
}

/// Options of `sealane-lab report`.
#[derive(Debug, ClapArgs)]
pub struct Render {
    /// report.json files of earlier runs; parts of a later file replace the same
    /// parts of an earlier file
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Folder for report.html, report.json and report.csv
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
}

const ALL: &str = "The state of secure transport on this machine";

/// Runs experiments.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let known = experiments()?;
    if args.experiment == "list" {
        for e in &known {
            let spec = e.spec();
            println!("{}\n    {}", spec.name, spec.question);
            for part in &spec.parts {
                println!("    {:<22} {}{}", part.id, part.title, if part.quick { "" } else { "  (full run only)" });
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let all = args.experiment == "all";
    let mut shared = options(args)?;
    let chosen = choose(&known, &args.experiment, &shared)?;
    let signals = [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM];
    for signal in signals {
        signal_hook::flag::register(signal, shared.cancel.clone()).context("cannot listen for signals")?;
    }
    // Unwritable folders are found out before hours of measuring.
    if let Some(out) = &args.out {
        std::fs::create_dir_all(out).with_context(|| format!("cannot write to {}", out.display()))?;
        shared.journal = Some(Arc::new(Journal::create(out)?));
    }
    if let Some(folder) = &args.resume {
        shared.journal = Some(Arc::new(Journal::resume(folder)?));
        for experiment in &chosen {
            sealane_lab_harness::check_resumed(*experiment, &narrow(&shared, *experiment, all))?;
        }
    }
    let out = args.resume.as_ref().or(args.out.as_ref());
    let start = Instant::now();
    let mut report = Report {
        format: FORMAT,
        tool: concat!("sealane-lab ", env!("CARGO_PKG_VERSION")).to_owned(),
        title: if all { ALL.to_owned() } else { chosen[0].spec().title.clone() },
        verdict: String::new(),
        mode: if args.quick { "quick" } else { "full" }.to_owned(),
        started: rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()),
        seconds: 0.0,
        machine: machine::describe(),
        command: shared.command.clone(),
        pages: Vec::new(),
    };
    for experiment in chosen {
        if shared.cancelled() {
            break;
        }
        let name = &experiment.spec().name;
        if !args.quiet {
            eprintln!("══ {name}");
        }
        let own = narrow(&shared, experiment, all);
        report.pages.push(sealane_lab_harness::run(experiment, &own));
        report.seconds = start.elapsed().as_secs_f64();
        report.verdict = verdict(&report);
        if args.max_foreign > DISTURBED {
            report.verdict = format!("{}\n{}", report.verdict, disturbed(args.max_foreign));
        }
        // After each: hours of measuring do not hang on the last experiment.
        if let Some(out) = out {
            write(&report, out)?;
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&text::summary(&report))?;
        if let Some(out) = out {
            print(&format!("\nWritten: {}\n", out.join("report.html").display()))?;
        }
    }
    let measured = report.pages.iter().any(|p| p.parts.iter().any(|part| !part.figures.is_empty()));
    Ok(ExitCode::from(if measured { 0 } else { 3 }))
}

/// Renders reports again.
pub fn render(args: &Render) -> anyhow::Result<ExitCode> {
    let known = experiments()?;
    let mut whole: Option<Report> = None;
    for file in &args.files {
        let one = read_report(file)?;
        let Some(report) = &mut whole else {
            whole = Some(one);
            continue;
        };
        if report.machine.cpu != one.machine.cpu || report.machine.cpus != one.machine.cpus {
            bail!("{} is from another machine: {}", file.display(), one.machine.cpu);
        }
        report.title = ALL.to_owned();
        report.seconds += one.seconds;
        if report.mode != one.mode {
            report.mode = "mixed".to_owned();
        }
        for page in one.pages {
            match report.pages.iter_mut().find(|p| p.name == page.name) {
                Some(old) => merge(old, page, &known),
                None => report.pages.push(page),
            }
        }
        report.command = format!("{}\n{}", report.command, one.command);
    }
    let Some(mut report) = whole else { bail!("no report to render") };
    // Alone it keeps its own.
    if args.files.len() > 1 {
        // Pages of versions without findings, which no other report changed.
        for page in report.pages.iter_mut().filter(|page| page.finding.is_none()) {
            if let Some(experiment) = known.iter().find(|e| e.spec().name == page.name) {
                page.finding = experiment.finding(page);
            }
        }
        report.verdict = verdict(&report);
    }
    std::fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    write(&report, &args.out)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the `report.json` of an earlier run.
pub fn read_report(file: &Path) -> anyhow::Result<Report> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let report: Report = serde_json::from_str(&text).with_context(|| format!("{} is not a report", file.display()))?;
    if report.format != FORMAT {
        bail!("{} has format {}, but this program reads only format {FORMAT}", file.display(), report.format);
    }
    Ok(report)
}

/// Takes what a later run measured into the page of an earlier one, part by part: `run --only` fills in what was void.
fn merge(old: &mut Page, later: Page, known: &[Box<dyn Experiment>]) {
    if later.obstacle.is_some() {
        return;
    }
    if old.obstacle.is_some() {
        *old = later;
        return;
    }
    for part in later.parts {
        match old.parts.iter_mut().find(|p| p.id == part.id) {
            Some(_) if part.figures.is_empty() => {}
            Some(earlier) => *earlier = part,
            None => old.parts.push(part),
        }
    }
    for subject in later.subjects {
        if old.subjects.iter().all(|s| s.name != subject.name) {
            old.subjects.push(subject);
        }
    }
    old.command = format!("{}\n{}", old.command, later.command);
    if let Some(experiment) = known.iter().find(|e| e.spec().name == old.name) {
        let order: Vec<&str> = experiment.spec().parts.iter().map(|p| p.id.as_str()).collect();
        old.parts.sort_by_key(|part| order.iter().position(|id| *id == part.id));
        sealane_lab_harness::conclude(&**experiment, old);
    }
}

/// Rounds accepted with more than this are not worth their times.
const DISTURBED: f64 = 0.5;

/// What a report says of itself that was made beside other work.
fn disturbed(foreign: f64) -> String {
    format!(
        "Made on a busy machine: rounds were accepted although other programs used up to {foreign} CPUs (--max-foreign). CPU time \
         per operation still compares, roughly; rates, knees and latencies do not."
    )
}

/// One page's verdict is the report's. Of several, each section has its own; the report counts the findings, and names the
/// experiments that could not run.
fn verdict(report: &Report) -> String {
    match report.pages.as_slice() {
        [one] => one.obstacle.as_ref().map_or_else(|| one.verdict.clone(), |why| format!("Not run here: {why}")),
        pages => {
            let counts = finding::summary(pages.iter().filter_map(|p| p.finding.as_ref()));
            let not_run = |p: &Page| Some(format!("{}: not run here, {}", p.title, p.obstacle.as_ref()?));
            let lines = std::iter::once(counts).filter(|line| !line.is_empty()).chain(pages.iter().filter_map(not_run));
            lines.collect::<Vec<_>>().join("\n")
        }
    }
}

fn write(report: &Report, out: &Path) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(report)? + "\n";
    for (name, text) in [("report.html", html::page(report)), ("report.json", json), ("report.csv", csv::write(report))]
    {
        let path = out.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// A reader that has seen enough (`| head`) is no failure.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

fn options(args: &Args) -> anyhow::Result<Options> {
    let pairs = |list: &[String], what: &str| -> anyhow::Result<Vec<(String, String)>> {
        let pair = |text: &String| {
            let (name, value) = text.split_once('=').with_context(|| format!("{what} {text:?} has no ="))?;
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        };
        list.iter().map(pair).collect()
    };
    if args.tries == 0 || !args.max_foreign.is_finite() {
        bail!("--tries must be at least 1, and --max-foreign must be a number of CPUs");
    }
    Ok(Options {
        quick: args.quick,
        out: args.resume.clone().or_else(|| args.out.clone()),
        method: if args.method == How::Together { Method::Together } else { Method::Turns },
        without: args.without.clone(),
        subjects: pairs(&args.subject, "--subject")?
            .into_iter()
            .map(|(name, path)| (name, PathBuf::from(path)))
            .collect(),
        only: args.only.clone(),
        set: pairs(&args.set, "--set")?,
        max_foreign: args.max_foreign,
        max_lag: args.max_lag,
        max_wait: args.max_wait,
        tries: args.tries,
        whole_cycles: args.whole_cycles,
        server_cpus: args.server_cpus.clone(),
        client_cpus: args.client_cpus.clone(),
        command: command(std::env::args()),
        quiet: args.quiet,
        ..Options::default()
    })
}

/// The experiment of this name; with `all`, every one, or those that `--only` has parts of. What then concerns none of
/// them is a mistake: it would be passed over without a word.
fn choose<'a>(
    known: &'a [Box<dyn Experiment>],
    name: &str,
    options: &Options,
) -> anyhow::Result<Vec<&'a dyn Experiment>> {
    let each = || known.iter().map(|e| &**e);
    let names = || each().map(|e| e.spec().name.as_str()).collect::<Vec<_>>().join(", ");
    if name != "all" {
        let one: Vec<_> = each().filter(|e| e.spec().name == name).collect();
        let Some(experiment) = one.first() else {
            bail!("there is no experiment {name:?}; the experiments are {}, and `all`", names());
        };
        if options.method == Method::Together
            && let Some(what) = not_together(*experiment, &options.only)
        {
            bail!("--method together: {what}");
        }
        return Ok(one);
    }
    let keys = options.set.iter().map(|(key, _)| key);
    if let Some(what) = options.only.iter().chain(keys).find(|what| !each().any(|e| within(e, what).is_some())) {
        bail!(
            "with `all`, write the experiment before {what:?}, such as proxies.{what}; the experiments are {}",
            names()
        );
    }
    if let Some((name, _)) = options.subjects.iter().find(|(name, path)| !each().any(|e| takes(e, name, path))) {
        bail!("--subject {name}: no experiment has such a subject");
    }
    if let Some(name) = options.without.iter().find(|name| !each().any(|e| has(e, name))) {
        bail!("--without {name}: no experiment has such a subject");
    }
    let wanted = |e: &&dyn Experiment| options.only.is_empty() || options.only.iter().any(|o| within(*e, o).is_some());
    let able = |e: &&dyn Experiment| options.method != Method::Together || !e.together().is_empty();
    Ok(each().filter(wanted).filter(able).collect())
}

/// What follows the experiment's name in `EXPERIMENT.PART` or `EXPERIMENT.KEY`; nothing where it is another's.
fn within<'a>(experiment: &dyn Experiment, what: &'a str) -> Option<&'a str> {
    what.strip_prefix(experiment.spec().name.as_str())?.strip_prefix('.')
}

/// Why these parts cannot be measured with `--method together`, if so.
fn not_together(experiment: &dyn Experiment, only: &[String]) -> Option<String> {
    let (name, able) = (&experiment.spec().name, experiment.together());
    if able.is_empty() {
        return Some(format!("no part of {name} can be measured with --method together"));
    }
    let other = only.iter().find(|id| !able.contains(&id.as_str()))?;
    Some(format!("{other} cannot be measured with --method together; in {name}, these parts can: {}", able.join(", ")))
}

/// Whether a subject of `--subject` is one of the experiment's, or one more of their kinds.
fn takes(experiment: &dyn Experiment, name: &str, path: &Path) -> bool {
    programs::kind(experiment.spec(), name, path).is_some()
}

/// Whether the experiment has this subject.
fn has(experiment: &dyn Experiment, name: &str) -> bool {
    experiment.spec().subjects.iter().any(|s| s.name == name)
}

/// With `all`, what concerns one experiment only is kept from the others.
fn narrow(options: &Options, experiment: &dyn Experiment, all: bool) -> Options {
    let mut own = options.clone();
    if all {
        narrow_to(&mut own, options, experiment);
    }
    if own.method == Method::Together {
        let asked = |id: &str| own.only.is_empty() || own.only.iter().any(|o| o == id);
        let able = |part: &&PartSpec| experiment.together().contains(&part.id.as_str());
        let short = |part: &&PartSpec| !own.only.is_empty() || part.quick || !own.quick;
        let parts = experiment.spec().parts.iter().filter(able).filter(short);
        own.only = parts.map(|part| part.id.clone()).filter(|id| asked(id)).collect();
    }
    own
}

fn narrow_to(own: &mut Options, options: &Options, experiment: &dyn Experiment) {
    own.only = options.only.iter().filter_map(|o| within(experiment, o).map(str::to_owned)).collect();
    own.set = options.set.iter().filter_map(|(k, v)| Some((within(experiment, k)?.to_owned(), v.clone()))).collect();
    own.subjects.retain(|(name, path)| takes(experiment, name, path));
    own.without.retain(|name| has(experiment, name));
}

/// The command line as a shell would take it again, by the program's name alone: where it lies is nobody's business.
fn command(args: impl Iterator<Item = String>) -> String {
    let quote = |a: String| {
        let plain = !a.is_empty() && a.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c));
        if plain { a } else { format!("'{}'", a.replace('\'', "'\\''")) }
    };
    let words: Vec<String> = args.skip(1).map(quote).collect();
    format!("sealane-lab {}", words.join(" "))
}

fn duration(text: &str) -> Result<Duration, String> {
    let ns = text.parse::<f64>().map(|s| s * 1e9).ok().or_else(|| time(text));
    let ns = ns.filter(|ns| ns.is_finite() && *ns >= 0.0 && *ns < 1e16);
    ns.map(|ns| Duration::from_nanos(ns as u64)).ok_or_else(|| "a time such as 60s".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_pasted_again() {
        let args = ["/x/sealane-lab", "run", "proxies", "--set", "a b=1", "--subject", "n=/it's"];
        let said = command(args.into_iter().map(str::to_owned));
        assert_eq!(said, r"sealane-lab run proxies --set 'a b=1' --subject 'n=/it'\''s'");
    }

    #[test]
    fn every_experiment_has_a_sound_file_and_a_name_of_its_own() {
        let known = experiments().unwrap();
        let mut names: Vec<&str> = known.iter().map(|e| e.spec().name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), known.len());
    }

    #[test]
    fn with_all_each_gets_its_own() {
        let known = experiments().unwrap();
        let options = Options {
            only: vec!["proxies.bulk".into(), "tls-versions.loopback".into()],
            set: vec![("proxies.rounds".into(), "1".into())],
            subjects: vec![("haproxy-x".into(), "/x".into())],
            ..Options::default()
        };
        let own = narrow(&options, known[0].as_ref(), true);
        assert_eq!((own.only, own.set[0].0.as_str(), own.subjects.len()), (vec!["bulk".to_owned()], "rounds", 1));
        assert!(narrow(&options, known[1].as_ref(), true).subjects.is_empty());
        let chosen = choose(&known, "all", &options).unwrap();
        let names: Vec<&str> = chosen.iter().map(|e| e.spec().name.as_str()).collect();
        assert_eq!(names, ["proxies", "tls-versions"], "only those that have a part in it");
        assert_eq!(choose(&known, "all", &Options::default()).unwrap().len(), known.len());
    }

    #[test]
    fn with_all_nothing_is_passed_over() {
        let known = experiments().unwrap();
        for options in [
            Options { only: vec!["bulk".into()], ..Options::default() },
            Options { only: vec!["proxies".into()], ..Options::default() },
            Options { set: vec![("rounds".into(), "1".into())], ..Options::default() },
            Options { subjects: vec![("apache".into(), "/x".into())], ..Options::default() },
        ] {
            assert!(choose(&known, "all", &options).is_err(), "{options:?}");
            // Of one experiment, its own checks tell.
            assert_eq!(choose(&known, "proxies", &options).unwrap().len(), 1);
        }
        assert!(choose(&known, "none", &Options::default()).err().unwrap().to_string().contains("syn-tls"));
    }
}
