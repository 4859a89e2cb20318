//! Joules, where the processor counts them and the kernel lets us read (RAPL, `/sys/class/powercap`). They are the whole
//! machine's: they say something only where nothing else runs.

use std::path::{Path, PathBuf};

/// Where the kernel shows the counters.
const FOLDER: &str = "/sys/class/powercap";

/// One counter: its file, the greatest value before it starts anew, and what it stood at.
#[derive(Debug)]
struct Counter {
    file: PathBuf,
    most: u64,
    at: u64,
}

/// The processors' counters at a moment.
#[derive(Debug)]
pub struct Energy(Vec<Counter>);

fn number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

impl Energy {
    /// Reads them; none where there are none or they may not be read (only root may, on most systems).
    pub fn now() -> Option<Self> {
        Self::of(Path::new(FOLDER))
    }

    fn of(folder: &Path) -> Option<Self> {
        let mut counters = Vec::new();
        for entry in std::fs::read_dir(folder).ok()?.flatten() {
            let zone = entry.path();
            // Packages only: cores and memory within them are zones of their own, and would count twice.
            let name = std::fs::read_to_string(zone.join("name")).unwrap_or_default();
            if !name.starts_with("package") {
                continue;
            }
            let file = zone.join("energy_uj");
            let (Some(at), Some(most)) = (number(&file), number(&zone.join("max_energy_range_uj"))) else { continue };
            counters.push(Counter { file, most, at });
        }
        (!counters.is_empty()).then_some(Self(counters))
    }

    /// Joules since then. A counter that went round once is understood; more often than that takes minutes.
    pub fn joules_since(&self) -> Option<f64> {
        let mut sum = 0;
        for counter in &self.0 {
            let now = number(&counter.file)?;
            sum += if now >= counter.at { now - counter.at } else { (counter.most - counter.at).saturating_add(now) };
        }
        Some(sum as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_summed_and_a_counter_may_go_round() {
        let folder = tempfile::tempdir().expect("a folder");
        let zone = |name: &str, kind: &str, at: &str| {
            let zone = folder.path().join(name);
            std::fs::create_dir_all(&zone).expect("made");
            for (file, text) in [("name", kind), ("energy_uj", at), ("max_energy_range_uj", "1000000\n")] {
                std::fs::write(zone.join(file), text).expect("written");
            }
        };
        assert!(Energy::of(folder.path()).is_none());
        zone("intel-rapl:0", "package-0\n", "100000\n");
        zone("intel-rapl:0:0", "core\n", "5\n");
        zone("intel-rapl:1", "package-1\n", "900000\n");
        let energy = Energy::of(folder.path()).expect("two packages");
        zone("intel-rapl:0", "package-0\n", "350000\n");
        zone("intel-rapl:0:0", "core\n", "500000\n");
        zone("intel-rapl:1", "package-1\n", "150000\n");
        assert_eq!(energy.joules_since(), Some(0.5));
    }
}
