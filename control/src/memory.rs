//! Noticing that memory runs short, before the system ends the process for it.
//!
//! Control looks at how much the process holds and tells the lanes when that is too much: they accept nobody new until
//! it is less again, and go on with those whom they have. What a connection may hold is bounded anyway.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// How often it is looked at. Between two looks a lane accepts a few thousand connections at most.
pub const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Without a setting: so much of what the control group may have. The rest is the kernel's, for our sockets.
const SHARE: (u64, u64) = (9, 10);

/// The watch over the process's memory.
#[derive(Debug)]
pub struct MemoryWatch {
    /// What the lanes read.
    short: Arc<AtomicBool>,
    group: Option<u64>,
}

impl MemoryWatch {
    /// Tells the lanes by `short`.
    pub fn new(short: Arc<AtomicBool>) -> Self {
        let group = std::fs::read_to_string("/proc/self/cgroup").ok();
        Self { short, group: group.and_then(|text| group_limit(Path::new("/sys/fs/cgroup"), &text)) }
    }

    /// Looks. `configured`: the most bytes that the process is to hold; 0: by its control group.
    pub fn look(&self, configured: u64) {
        let limit = if configured > 0 { Some(configured) } else { self.group.map(|g| g / SHARE.1 * SHARE.0) };
        let short = matches!((limit, resident()), (Some(limit), Some(held)) if held > limit);
        if self.short.swap(short, Relaxed) != short {
            let mib = limit.unwrap_or_default() >> 20;
            match short {
                true => eprintln!("sealane: more than {mib} MiB are in use: new connections wait until it is less"),
                false => eprintln!("sealane: less than {mib} MiB are in use again: new connections are accepted"),
            }
        }
    }
}

/// Bytes that the process holds in memory; `None` where the system does not say.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
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
        let watch = MemoryWatch { short: Arc::default(), group: None };
        watch.look(0);
        assert!(!watch.short.load(Relaxed));
        watch.look(1);
        assert!(watch.short.load(Relaxed));
        watch.look(u64::MAX);
        assert!(!watch.short.load(Relaxed));
    }
}
