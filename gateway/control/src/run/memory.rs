//! Noticing that memory runs short, before the system ends the process for it.
//!
//! Control looks at how much the process holds and tells the lanes when that is too much: until it is less again they accept
//! nobody new, and reset the connections that hold the most, if these hold much. What a connection may hold is bounded
//! anyway.

use crate::log;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// How often it is looked at. Between two looks a lane accepts a few thousand connections at most.
pub const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Without a setting: so much of what the control group may have. The rest is the kernel's, for our sockets.
const OF_GROUP: (u64, u64) = (9, 10);
/// Without a control group: so much of the machine's memory, which others need as well.
const OF_MACHINE: (u64, u64) = (3, 4);

/// How much memory the process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// It is more than it should be.
    pub short: bool,
    /// Bytes in use; `None` where the system does not say.
    pub held: Option<u64>,
    /// The limit in bytes, if there is one.
    pub limit: Option<u64>,
}

/// The watch over the process's memory.
#[derive(Debug)]
pub struct MemoryWatch {
    /// What the lanes read.
    short: Arc<AtomicBool>,
    /// The limit where none is configured.
    default: Option<u64>,
}

impl MemoryWatch {
    /// Tells the lanes by `short`.
    pub fn new(short: Arc<AtomicBool>) -> Self {
        let group = std::fs::read_to_string("/proc/self/cgroup").ok();
        let group = group.and_then(|text| group_limit(Path::new("/sys/fs/cgroup"), &text));
        let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| line_bytes(&text, "MemTotal:"));
        Self { short, default: default_limit(group, machine) }
    }

    /// Looks, and says how much is in use, and whether that is too much. `configured`: the most bytes that the process is to hold; 0: by its control
    /// group, or by the machine.
    pub fn look(&self, configured: u64) -> MemoryUse {
        let limit = if configured > 0 { Some(configured) } else { self.default };
        let held = resident();
        let short = matches!((limit, held), (Some(limit), Some(held)) if held > limit);
        if self.short.swap(short, Relaxed) != short {
            let mib = limit.unwrap_or_default() >> 20;
            match short {
                true => log::warn!(
                    "more than {mib} MiB (max_memory) are in use: new connections wait, and the connections that use the most \
                     memory are reset, until memory use falls"
                ),
                false => {
                    log::info!("less than {mib} MiB (max_memory) are in use again: the gateway accepts new connections")
                }
            }
        }
        MemoryUse { short, held, limit }
    }
}

/// Bytes that the process holds in memory; `None` where the system does not say.
fn resident() -> Option<u64> {
    line_bytes(&std::fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// Bytes on a line of the kernel's, such as `MemTotal:  16384 kB`.
fn line_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// What the process may hold where nothing is configured, by what its control group and the machine have.
fn default_limit(group: Option<u64>, machine: Option<u64>) -> Option<u64> {
    let share = |bytes: u64, (part, whole): (u64, u64)| bytes / whole * part;
    // A group may be allowed more than there is.
    let of_group = group.map(|bytes| share(bytes, OF_GROUP));
    let of_machine = machine.map(|bytes| share(bytes, OF_MACHINE));
    of_group.into_iter().chain(of_machine).min()
}

/// The lowest limit of a control group (version 2) and of those above it. `membership`: `/proc/self/cgroup`.
fn group_limit(root: &Path, membership: &str) -> Option<u64> {
    let path = membership.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limit = |folder: PathBuf| std::fs::read_to_string(folder.join("memory.max")).ok()?.trim().parse::<u64>().ok();
    Path::new(path).ancestors().filter_map(|part| limit(root.join(part))).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_of_the_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("memory.max"), "max\n").unwrap();
        let limit = || group_limit(root.path(), "1:name=x:/y\n0::/a/b\n");
        assert_eq!(limit(), None);
        std::fs::write(root.path().join("a/memory.max"), "1000\n").unwrap();
        assert_eq!(limit(), Some(1000));
        std::fs::write(inner.join("memory.max"), "2000\n").unwrap();
        assert_eq!(limit(), Some(1000));
        assert_eq!(group_limit(root.path(), "1:memory:/a\n"), None);
    }

    #[test]
    fn what_is_held_is_compared() {
        let watch = MemoryWatch { short: Arc::default(), default: None };
        assert!(!watch.look(0).short && !watch.short.load(Relaxed));
        assert!(watch.look(1).short && watch.short.load(Relaxed));
        assert!(!watch.look(u64::MAX).short && !watch.short.load(Relaxed));
        let watch = MemoryWatch { short: Arc::default(), default: Some(1) };
        assert!(watch.look(0).short);
    }

    #[test]
    fn without_a_setting_the_group_and_the_machine_set_the_limit() {
        assert_eq!(default_limit(None, None), None);
        assert_eq!(default_limit(None, Some(4000)), Some(3000));
        assert_eq!(default_limit(Some(1000), Some(4000)), Some(900));
        assert_eq!(default_limit(Some(1 << 60), Some(4000)), Some(3000));
        assert_eq!(line_bytes("MemFree: 1 kB\nMemTotal:       16384 kB\n", "MemTotal:"), Some(16 << 20));
    }
}
