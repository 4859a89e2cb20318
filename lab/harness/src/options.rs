//! What the command line asks of a run.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::journal::Journal;

/// How the subjects of a part share the servers' CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// One subject after the other, each alone. For the absolute figures of a quiet machine.
    #[default]
    Turns,
    /// All subjects at the same time. What disturbs the machine disturbs all of them, so that their ratios stay steady
    /// on a shared one.
    Together,
}

/// Options of `sealane-lab run`, the same for all experiments.
#[derive(Clone, Debug)]
pub struct Options {
    /// Fewer parts, fewer and shorter rounds.
    pub quick: bool,
    /// Where the report goes; raw histograms go into `histograms` below it. `None`: nothing raw is kept.
    pub out: Option<PathBuf>,
    /// Programs by name: those of the experiment's own subjects, or more (`haproxy-wolfssl` is a HAProxy).
    pub subjects: Vec<(String, PathBuf)>,
    /// Subjects that are left out.
    pub without: Vec<String>,
    /// How subjects share the servers' CPUs.
    pub method: Method,
    /// Only these parts; empty for all.
    pub only: Vec<String>,
    /// Sizes that replace those of the experiment's file.
    pub set: Vec<(String, String)>,
    /// A round is void when others used more CPUs than this.
    pub max_foreign: f64,
    /// How late the load itself may be at the 99th percentile, in an open loop.
    pub max_lag: Duration,
    /// How long each round waits for a quiet moment.
    pub max_wait: Duration,
    /// How often a void round is tried in all.
    pub tries: usize,
    /// A round in which one subject had no valid attempt is void for all subjects.
    pub whole_cycles: bool,
    /// CPUs for the servers; empty for half of those that there are.
    pub server_cpus: Vec<usize>,
    /// CPUs for the load and the backend; empty for the other half.
    pub client_cpus: Vec<usize>,
    /// Set from outside to end early, with what there is by then.
    pub cancel: Arc<AtomicBool>,
    /// The command line, for the report.
    pub command: String,
    /// No progress on standard error.
    pub quiet: bool,
    /// Where rounds are noted as they end, and taken from when a run is resumed. `None` without a folder for the report.
    pub journal: Option<Arc<Journal>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            quick: false,
            out: None,
            subjects: Vec::new(),
            without: Vec::new(),
            method: Method::default(),
            only: Vec::new(),
            set: Vec::new(),
            max_foreign: 0.05,
            max_lag: Duration::from_millis(1),
            max_wait: Duration::from_secs(60),
            tries: 3,
            whole_cycles: false,
            server_cpus: Vec::new(),
            client_cpus: Vec::new(),
            cancel: Arc::default(),
            command: "sealane-lab run".to_owned(),
            quiet: false,
            journal: None,
        }
    }
}

impl Options {
    /// Whether the run is to end.
    pub fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// The program that `--subject` names for a subject.
    pub fn subject(&self, name: &str) -> Option<&PathBuf> {
        self.subjects.iter().rev().find(|(n, _)| n == name).map(|(_, path)| path)
    }
}
