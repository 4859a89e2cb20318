//! `sealane-lab locks -- PROGRAM`: which locks a program takes, how hot they are and how long it waits.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use sealane_lab_stacks::builder::Builder;
use sealane_lab_stacks::elf::Images;
use sealane_lab_stacks::locks::{self, Counts, Folder, Whose};
use sealane_lab_stacks::text;

/// Options of `sealane-lab locks`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Counts calls of pthread mutexes, read-write locks and spin locks. It does not count
atomics and locks without pthread (in Rust, Go and Java). Ctrl-C ends the program and prints
the counts.

EXAMPLES:
  HAProxy's locks:
    sealane-lab locks -- haproxy -f haproxy.cfg
  Counts per request, for 10000 requests:
    sealane-lab locks --operations 10000 -- ./server
  With light read-write locks:
    sealane-lab locks --light -- ./server")]
pub struct Args {
    /// Divide the counts by this number of operations
    #[arg(short, long, value_parser = clap::value_parser!(u64).range(1..))]
    operations: Option<u64>,
    /// Replace pthread's read-write locks with lighter locks
    #[arg(long)]
    light: bool,
    /// Do not count: with --light, run the program as in production
    #[arg(long, requires = "light")]
    no_count: bool,
    /// Number of places to show
    #[arg(long, default_value_t = 12)]
    top: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let builder = Builder::new(None)?;
    let counter = builder.lock_counter()?;
    let folder = Folder::new(builder.root()).map_err(|why| anyhow!(why))?;
    let mut command = Command::new(&args.program[0]);
    command.args(&args.program[1..]);
    locks::preload(&mut command, &counter, &folder.0, false, args.light);
    if args.no_count {
        command.env_remove("SEALANE_LOCKS_DIR");
    }
    // Ctrl-C reaches the program as well, being in the same foreground group; this process stays to report.
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone()).context("cannot listen for Ctrl-C")?;
    }
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot run {}", args.program[0].to_string_lossy()))?;
    let mut since = None;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if interrupted.load(Ordering::Relaxed) {
            // Counts are in shared memory: they stay, however it ends.
            if since.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(5) {
                child.kill()?;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let wall = start.elapsed();
    let code = exit_code(status, interrupted.load(Ordering::Relaxed));
    if args.no_count {
        return Ok(code);
    }
    let counts = Counts::read(&folder.0).map_err(|why| anyhow!(why))?;
    let mut images = Images::default();
    let places = counts.places(Whose::All, &mut images);
    let total = counts.total(Whose::All);
    if args.json {
        let document = serde_json::json!({
            "total": total, "kinds": counts.kinds(Whose::All), "threads": counts.threads,
            "processes": counts.processes, "overflow": counts.overflow, "wall_s": wall.as_secs_f64(),
            "operations": args.operations, "light": args.light,
            "hottest_shared": counts.hottest(Whose::All, true), "places": places,
        });
        outln!("{}", serde_json::to_string_pretty(&document)?);
        return Ok(code);
    }
    outln!(
        "{} lock calls in {:.1} s by {} threads of {} processes; {} contended, {:.3} ms waited",
        total.calls,
        wall.as_secs_f64(),
        counts.threads,
        counts.processes,
        total.contended,
        total.waited_ns as f64 / 1e6
    );
    if let Some(operations) = args.operations {
        let per = |n: u64| n as f64 / operations as f64;
        outln!("per operation: {:.2} calls, {:.3} us waited", per(total.calls), per(total.waited_ns) / 1e3);
    }
    if counts.threads == 0 {
        outln!("The counter counted no lock: the program is static, uses no pthread locks, or was not started");
    }
    let rows: Vec<Vec<String>> = places
        .iter()
        .take(args.top)
        .map(|place| {
            vec![
                place.callers.iter().take(4).cloned().collect::<Vec<_>>().join(" < "),
                place.kind.into(),
                place.all.calls.to_string(),
                place.locks.to_string(),
                place.hottest.to_string(),
                place.threads.to_string(),
                place.all.contended.to_string(),
                format!("{:.3}", place.all.waited_ns as f64 / 1e6),
            ]
        })
        .collect();
    if !rows.is_empty() {
        let head = [
            "place where the lock was first taken",
            "kind",
            "calls",
            "locks",
            "hottest",
            "threads",
            "contended",
            "waited ms",
        ];
        out!("{}", text::table(&head, &rows));
    }
    if counts.overflow > 0 {
        outln!("{} calls were of locks beyond the table, which holds 8192 per thread", counts.overflow);
    }
    Ok(code)
}

/// The program's own, as a shell would give it; a program that was ended by Ctrl-C here has done what was wanted.
fn exit_code(status: ExitStatus, interrupted: bool) -> ExitCode {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, _) if interrupted => 0,
        (None, signal) => 128 + signal.unwrap_or(0),
    };
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
