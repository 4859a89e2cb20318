//! Commands of a build, which take minutes: what they print goes into a log, and how far they have come is told.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::builder::BuildError;

/// Runs a command, everything it prints appended to the log.
pub fn run(command: Command, log: &Path) -> Result<(), BuildError> {
    run_telling(command, log, &mut |_| {})
}

/// How often a long command's progress is told.
const TELL_EVERY: Duration = Duration::from_secs(20);

/// The same, telling now and then how far it has come.
pub fn run_telling(mut command: Command, log: &Path, say: &mut dyn FnMut(&str)) -> Result<(), BuildError> {
    use std::io::Write;
    let mut file = OpenOptions::new().create(true).append(true).open(log)?;
    let shown = shown(&command);
    writeln!(file, "$ {shown}")?;
    let begun = file.metadata()?.len();
    // make would take our jobs for its own.
    command.env_remove("MAKEFLAGS").env_remove("MFLAGS");
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let failed = |e: std::io::Error| BuildError::Other(format!("{shown}: {e}"));
    let mut child = command.spawn().map_err(failed)?;
    let (start, mut told) = (Instant::now(), TELL_EVERY);
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if start.elapsed() >= told {
            say(&format!("{}, {} compiled", seconds(told), compiled(log, begun)));
            told += TELL_EVERY;
        }
        // Soon noticed where it takes no time, and no burden where it takes minutes.
        std::thread::sleep((start.elapsed() / 8).clamp(Duration::from_millis(1), Duration::from_millis(100)));
    };
    if status.success() {
        return Ok(());
    }
    Err(BuildError::Failed { command: shown, log: log.to_owned(), tail: tail(log, 12) })
}

/// How many files, or crates, the log says were compiled since it had so many bytes.
fn compiled(log: &Path, begun: u64) -> usize {
    let text = fs::read(log).unwrap_or_default();
    let new = text.get(usize::try_from(begun).unwrap_or(usize::MAX)..).unwrap_or_default();
    // As make, cmake, automake and cargo say it.
    let one = |line: &&str| {
        line.contains(" -c ")
            || line.contains("Building C")
            || ["CC ", "Compiling "].iter().any(|word| line.trim_start().starts_with(word))
    };
    String::from_utf8_lossy(new).lines().filter(one).count()
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// A time for people.
pub fn seconds(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..=119 => format!("{s} s"),
        s => format!("{} min {} s", s / 60, s % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_its_log_and_shows_its_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let mut fails = Command::new("sh");
        fails.args(["-c", "echo before; echo the reason >&2; exit 3"]);
        let error = run(fails, &log).expect_err("it fails").to_string();
        assert!(error.contains("the reason") && error.contains(&log.display().to_string()), "{error}");
        let mut works = Command::new("sh");
        works.args(["-c", "echo more"]);
        run(works, &log).expect("it works");
        assert!(tail(&log, 1) == "more" && tail(&log, 9).contains("before"));
        let begun = fs::metadata(&log).expect("there").len();
        let mut compiles = Command::new("sh");
        compiles.args(["-c", "echo 'cc -O2 -c -o a.o a.c'; echo '[ 50%] Building C object x'; echo linking"]);
        run(compiles, &log).expect("it works");
        // The command itself is in the log too, on one line.
        assert_eq!(compiled(&log, begun), 3);
        assert_eq!(compiled(&log, 1 << 40), 0);
    }
}
