//! Runs a fuzz target: on a file, on standard input, or on mutations of its corpus for some seconds.

use sealane_fuzz::mutate::Random;
use sealane_fuzz::{TARGETS, corpus, minimised, target};
use std::io::{Error, Read};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        [name] => run(name, &read_stdin),
        [name, "--seconds", seconds] => match seconds.parse() {
            Ok(seconds) => mutate(name, seconds),
            Err(_) => return usage(),
        },
        [name, file] => run(name, &|| std::fs::read(file).map_err(|e| Error::other(format!("{file}: {e}")))),
        _ => return usage(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sealane-fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    let names: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
    eprintln!("usage: sealane-fuzz TARGET [FILE | --seconds N]\n  TARGET is one of: {}", names.join(", "));
    eprintln!("  without FILE the input is standard input");
    ExitCode::from(2)
}

fn read_stdin() -> std::io::Result<Vec<u8>> {
    let mut data = Vec::new();
    std::io::stdin().lock().read_to_end(&mut data)?;
    Ok(data)
}

fn known(name: &str) -> std::io::Result<fn(&[u8])> {
    target(name).map(|(_, run)| run).ok_or_else(|| Error::other(format!("there is no target `{name}`")))
}

fn run(name: &str, input: &dyn Fn() -> std::io::Result<Vec<u8>>) -> std::io::Result<()> {
    known(name)?(&input()?);
    Ok(())
}

/// A panic ends it, and the input that led there is kept in a file.
fn mutate(name: &str, seconds: u64) -> std::io::Result<()> {
    let run = known(name)?;
    let mut seeds = Vec::new();
    for entry in std::fs::read_dir(corpus(name))? {
        seeds.push(std::fs::read(entry?.path())?);
    }
    seeds.extend(minimised(name));
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64);
    println!("{name}: {} seeds, random seed {seed}", seeds.len());
    let mut random = Random(seed);
    let (start, limit) = (Instant::now(), Duration::from_secs(seconds));
    let mut runs = 0u64;
    while !runs.is_multiple_of(1024) || start.elapsed() < limit {
        let data = random.mutated(&seeds);
        if std::panic::catch_unwind(|| run(&data)).is_err() {
            let file = format!("crash-{name}-{seed}-{runs}");
            std::fs::write(&file, &data)?;
            return Err(Error::other(format!("the input is in {file}: {}", data.escape_ascii())));
        }
        runs += 1;
    }
    println!("{name}: {runs} runs, no finding");
    Ok(())
}
