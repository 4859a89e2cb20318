//! The journal of a run: `journal.jsonl` in the folder of the report. Each round is one line, written as soon as the round
//! ends, so that an interrupted run loses at most the round that was in progress. `--resume` reads the journal, and the run
//! takes what is there instead of measuring it again: single rounds where a sample is all that a round leaves
//! ([`crate::rounds::Resumed::Round`]), and whole parts otherwise.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use sealane_lab_report::{Fact, Part};
use serde::{Deserialize, Serialize};

use crate::rounds::Sample;

/// The file's name.
pub const NAME: &str = "journal.jsonl";

/// What must be the same when a run is resumed, by name.
pub type Conditions = BTreeMap<String, String>;

/// The one condition that may change: more rounds continue a run.
pub const ROUNDS: &str = "rounds";

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    /// An experiment begins.
    Begin { experiment: String, conditions: Conditions },
    /// A round is over.
    Round(Taken),
    /// A part is over.
    Part(Box<Finished>),
}

/// A round: one sample, or with `--method together` one of each subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Taken {
    experiment: String,
    part: String,
    slot: String,
    /// When it ended, in seconds since 1970.
    pub at: u64,
    samples: Vec<OfSubject>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct OfSubject {
    subject: String,
    values: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    void: Vec<String>,
}

impl Taken {
    /// The samples by subject.
    pub fn row(&self) -> Vec<(String, Sample)> {
        let sample = |s: &OfSubject| Sample { values: s.values.clone(), void: s.void.clone() };
        self.samples.iter().map(|s| (s.subject.clone(), sample(s))).collect()
    }
}

/// A part that was measured to its end, with what it added to the page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// The experiment.
    pub experiment: String,
    /// The part.
    pub part: Part,
    /// Settings that it added.
    pub settings: Vec<Fact>,
    /// Configurations that it showed, by subject.
    pub configurations: Vec<(String, String)>,
}

/// The open file, and what was in it.
#[derive(Debug)]
pub struct Journal {
    file: Mutex<File>,
    earlier: Mutex<Earlier>,
    /// How often a label was asked for in a part: the same subject and round may come several times.
    labels: Mutex<HashMap<(String, String, String), usize>>,
    rounds: AtomicUsize,
    parts: AtomicUsize,
}

#[derive(Debug, Default)]
struct Earlier {
    begun: HashMap<String, Conditions>,
    rounds: HashMap<(String, String, String), VecDeque<Taken>>,
    finished: HashMap<(String, String), Finished>,
}

/// Nothing that holds a lock here can leave half of a change.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time in seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Journal {
    /// Begins a new journal in this folder.
    pub fn create(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(NAME);
        let cannot = || format!("cannot write to {}", path.display());
        let file = OpenOptions::new().create(true).append(true).open(&path).with_context(cannot)?;
        lock(&file, &path)?;
        file.set_len(0).with_context(cannot)?;
        Ok(Self::new(file, Earlier::default()))
    }

    /// Reads the journal in this folder, and continues it.
    pub fn resume(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(NAME);
        let shown = || path.display().to_string();
        let cannot = || format!("--resume: {} cannot be read; was the run made with --out?", shown());
        let file = OpenOptions::new().append(true).open(&path).with_context(cannot)?;
        lock(&file, &path)?;
        let bytes = std::fs::read(&path).with_context(cannot)?;
        // The last line may be incomplete, if the machine stopped while it was written. It may end within a character.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let text = std::str::from_utf8(&bytes[..whole]).with_context(shown)?;
        let mut earlier = Earlier::default();
        for (number, line) in text.lines().enumerate() {
            let line: Line = serde_json::from_str(line).with_context(|| format!("{}, line {}", shown(), number + 1))?;
            earlier.add(line);
        }
        if earlier.begun.is_empty() {
            bail!("--resume: {} is the journal of no run", shown());
        }
        file.set_len(whole as u64).with_context(shown)?;
        Ok(Self::new(file, earlier))
    }

    fn new(file: File, earlier: Earlier) -> Self {
        Self {
            file: Mutex::new(file),
            earlier: Mutex::new(earlier),
            labels: Mutex::default(),
            rounds: AtomicUsize::new(0),
            parts: AtomicUsize::new(0),
        }
    }

    /// Appends a line, in one write.
    fn append(&self, line: &Line) -> anyhow::Result<()> {
        let text = serde_json::to_string(line).context(NAME)? + "\n";
        locked(&self.file).write_all(text.as_bytes()).context(NAME)
    }

    /// What is not as it was when this experiment began, a sentence each. Nothing for an experiment that has not begun.
    pub fn changed(&self, experiment: &str, conditions: &Conditions) -> Vec<String> {
        let earlier = locked(&self.earlier);
        let Some(before) = earlier.begun.get(experiment) else { return Vec::new() };
        let mut names: Vec<&String> = before.keys().chain(conditions.keys()).filter(|name| *name != ROUNDS).collect();
        names.sort_unstable();
        names.dedup();
        let value = |of: &Conditions, name: &String| of.get(name).cloned().unwrap_or_else(|| "(none)".to_owned());
        let differs = names.into_iter().filter(|name| before.get(*name) != conditions.get(*name));
        differs.map(|name| format!("{name}: was {}, is {}", value(before, name), value(conditions, name))).collect()
    }

    /// Begins or resumes an experiment.
    pub fn begin(&self, experiment: &str, conditions: &Conditions) -> anyhow::Result<()> {
        let changed = self.changed(experiment, conditions);
        if !changed.is_empty() {
            bail!("--resume: this is not the run that was interrupted. {}", changed.join("; "));
        }
        let mut earlier = locked(&self.earlier);
        let before = earlier.begun.insert(experiment.to_owned(), conditions.clone());
        if before.as_ref() == Some(conditions) {
            return Ok(());
        }
        // With another number of rounds, no part is finished; its rounds still count.
        earlier.finished.retain(|(name, _), _| name != experiment);
        drop(earlier);
        self.append(&Line::Begin { experiment: experiment.to_owned(), conditions: conditions.clone() })
    }

    /// The place of a round in a part. The same label in the same part is another place each time.
    pub fn slot(self: &Arc<Self>, experiment: &str, part: &str, label: &str) -> Slot {
        let key = (experiment.to_owned(), part.to_owned(), label.to_owned());
        let mut labels = locked(&self.labels);
        let count = labels.entry(key).or_insert(0);
        *count += 1;
        let name = format!("{label} #{count}");
        Slot { journal: Arc::clone(self), key: (experiment.to_owned(), part.to_owned(), name) }
    }

    /// Whether rounds of this part are noted one by one.
    pub fn has_slots(&self, experiment: &str, part: &str) -> bool {
        locked(&self.labels).keys().any(|(of, name, _)| of == experiment && name == part)
    }

    /// The part, if it was measured to its end.
    pub fn finished(&self, experiment: &str, part: &str) -> Option<Finished> {
        let finished = locked(&self.earlier).finished.remove(&(experiment.to_owned(), part.to_owned()));
        self.parts.fetch_add(usize::from(finished.is_some()), Ordering::Relaxed);
        finished
    }

    /// Notes that a part was measured to its end.
    pub fn finish(&self, finished: Finished) -> anyhow::Result<()> {
        self.append(&Line::Part(Box::new(finished)))
    }

    /// How many rounds and parts were taken from the journal.
    pub fn taken(&self) -> (usize, usize) {
        (self.rounds.load(Ordering::Relaxed), self.parts.load(Ordering::Relaxed))
    }
}

impl Earlier {
    fn add(&mut self, line: Line) {
        match line {
            Line::Begin { experiment, conditions } => {
                self.finished.retain(|(name, _), _| *name != experiment);
                self.begun.insert(experiment, conditions);
            }
            Line::Round(taken) => {
                let key = (taken.experiment.clone(), taken.part.clone(), taken.slot.clone());
                self.rounds.entry(key).or_default().push_back(taken);
            }
            Line::Part(finished) => {
                let key = (finished.experiment.clone(), finished.part.id.clone());
                self.finished.insert(key, *finished);
            }
        }
    }
}

/// Where a round belongs.
#[derive(Debug)]
pub struct Slot {
    journal: Arc<Journal>,
    key: (String, String, String),
}

impl Slot {
    /// The next attempt of this round that an earlier run made.
    pub fn earlier(&self) -> Option<Taken> {
        let taken = locked(&self.journal.earlier).rounds.get_mut(&self.key)?.pop_front();
        self.journal.rounds.fetch_add(usize::from(taken.is_some()), Ordering::Relaxed);
        taken
    }

    /// Notes an attempt; values that are not finite are left out, because JSON has no word for them.
    pub fn note<'a>(&self, row: impl Iterator<Item = (&'a str, &'a Sample)>, at: u64) -> anyhow::Result<()> {
        let (experiment, part, slot) = self.key.clone();
        let of_subject = |(subject, sample): (&str, &Sample)| OfSubject {
            subject: subject.to_owned(),
            values: sample.values.iter().filter(|(_, v)| v.is_finite()).map(|(name, v)| (name.clone(), *v)).collect(),
            void: sample.void.clone(),
        };
        let samples = row.map(of_subject).collect();
        self.journal.append(&Line::Round(Taken { experiment, part, slot, at, samples }))
    }
}

/// Keeps other runs away from this journal until the file is closed. A file system without locks keeps nobody away.
fn lock(file: &File, path: &Path) -> anyhow::Result<()> {
    // A process that this one is starting may hold a copy of a file that was just closed.
    for _ in 0..10 {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(50)),
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(()),
        }
    }
    bail!("another run writes to {}: wait for its end, or use another folder", path.display())
}

/// A fingerprint of a program's file, to see whether it is still the same (FNV-1a over words of eight bytes; no protection
/// against somebody who wants to deceive).
pub fn fingerprint(path: &Path) -> String {
    let Ok(bytes) = std::fs::read(path) else { return "not readable".to_owned() };
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    format!("{} bytes, {hash:016x}", bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(pairs: &[(&str, &str)]) -> Conditions {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn begun(folder: &Path) -> Arc<Journal> {
        let journal = Journal::create(folder).unwrap();
        journal.begin("proxies", &conditions(&[("seconds", "4"), (ROUNDS, "6")])).unwrap();
        Arc::new(journal)
    }

    fn note(journal: &Arc<Journal>, label: &str, sample: &Sample) {
        let slot = journal.slot("proxies", "keepalive", label);
        slot.note([("nginx", sample)].into_iter(), 7).unwrap();
    }

    #[test]
    fn rounds_come_back_in_their_places_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let journal = begun(folder.path());
        let void = Sample::of("v", 1.5).void("late");
        // Two attempts of one round, and the same label once more in this part.
        let slot = journal.slot("proxies", "keepalive", "nginx, round 1");
        slot.note([("nginx", &void)].into_iter(), 7).unwrap();
        slot.note([("nginx", &Sample::of("v", 2.5).with("bad", f64::NAN))].into_iter(), 8).unwrap();
        note(&journal, "nginx, round 1", &Sample::of("v", 3.5));
        drop((slot, journal));

        let journal = Arc::new(Journal::resume(folder.path()).unwrap());
        let slot = journal.slot("proxies", "keepalive", "nginx, round 1");
        let first = slot.earlier().unwrap();
        assert_eq!((first.at, first.row()), (7, vec![("nginx".to_owned(), void)]));
        assert_eq!(slot.earlier().unwrap().row(), [("nginx".to_owned(), Sample::of("v", 2.5))]);
        assert_eq!(slot.earlier(), None);
        let again = journal.slot("proxies", "keepalive", "nginx, round 1");
        assert_eq!(again.earlier().unwrap().row()[0].1, Sample::of("v", 3.5));
        assert_eq!(journal.slot("proxies", "bulk", "nginx, round 1").earlier(), None);
        assert_eq!(journal.taken(), (3, 0));
    }

    #[test]
    fn a_torn_line_is_dropped_and_a_broken_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        note(&begun(folder.path()), "nginx, round 1", &Sample::of("v", 1.0));
        let whole = std::fs::read_to_string(&path).unwrap();
        let torn = [whole.as_bytes(), b"{\"part\":{\"unit\":\"\xc2"].concat();
        std::fs::write(&path, torn).unwrap();
        let journal = Arc::new(Journal::resume(folder.path()).unwrap());
        note(&journal, "nginx, round 2", &Sample::of("v", 2.0));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(&whole) && text.lines().count() == 3 && text.ends_with('\n'), "{text}");
        drop(journal);

        std::fs::write(&path, format!("{whole}nonsense\n{whole}")).unwrap();
        let why = format!("{:#}", Journal::resume(folder.path()).unwrap_err());
        assert!(why.contains("line 3"), "{why}");
        std::fs::write(&path, "").unwrap();
        assert!(Journal::resume(folder.path()).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(format!("{:#}", Journal::resume(folder.path()).unwrap_err()).contains("--out"));
    }

    #[test]
    fn other_conditions_are_refused_and_more_rounds_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let journal = begun(folder.path());
        let part = Part::new("keepalive", "", "");
        let finished =
            Finished { experiment: "proxies".into(), part, settings: Vec::new(), configurations: Vec::new() };
        journal.finish(finished.clone()).unwrap();
        drop(journal);
        let resumed = || Journal::resume(folder.path()).unwrap();

        let why = resumed().begin("proxies", &conditions(&[("seconds", "5"), (ROUNDS, "6")])).unwrap_err();
        assert!(why.to_string().contains("seconds: was 4, is 5"), "{why}");
        assert!(resumed().changed("tunnel", &conditions(&[])).is_empty());

        let same = resumed();
        same.begin("proxies", &conditions(&[("seconds", "4"), (ROUNDS, "6")])).unwrap();
        assert_eq!(same.finished("proxies", "keepalive"), Some(finished));
        assert_eq!(same.taken(), (0, 1));
        drop(same);

        let more = resumed();
        more.begin("proxies", &conditions(&[("seconds", "4"), (ROUNDS, "9")])).unwrap();
        assert_eq!(more.finished("proxies", "keepalive"), None, "it has fewer rounds than are wanted now");
        drop(more);
        assert_eq!(resumed().finished("proxies", "keepalive"), None);
    }

    #[test]
    fn two_runs_do_not_write_to_one_journal() {
        let folder = tempfile::tempdir().unwrap();
        let journal = begun(folder.path());
        note(&journal, "nginx, round 1", &Sample::of("v", 1.0));
        for other in [Journal::create(folder.path()), Journal::resume(folder.path())] {
            let why = other.unwrap_err().to_string();
            assert!(why.contains("another run writes to"), "{why}");
        }
        drop(journal);
        let again = Arc::new(Journal::resume(folder.path()).unwrap());
        assert!(again.slot("proxies", "keepalive", "nginx, round 1").earlier().is_some(), "nothing was overwritten");
    }

    #[test]
    fn a_changed_program_has_another_fingerprint() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            fingerprint(&path)
        };
        let first = of(b"0123456789");
        assert_eq!(first, of(b"0123456789"));
        assert_ne!(first, of(b"0123456788"));
        assert_ne!(of(b"a"), of(b"a\0"));
        assert_eq!(fingerprint(&folder.path().join("none")), "not readable");
    }
}
