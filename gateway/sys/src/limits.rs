//! Resource limits of the process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files as far as it may be raised, and returns it.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if setrlimit(Resource::Nofile, wanted).is_ok() {
        limit.maximum.unwrap_or(u64::MAX)
    } else {
        limit.current.unwrap_or(u64::MAX)
    }
}

/// How many files the process may have open.
pub fn open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
