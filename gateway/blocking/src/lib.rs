//! Calls that may block for ever, such as those to a network file system whose server is away, in bounded time.
//!
//! Each call runs on a thread of its own. A thread that hangs cannot be ended. So while a call for a path hangs, another call
//! for the same path fails at once: repeated attempts leave one thread behind, not many.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

/// Why a call has no result.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// An earlier call for the same path still hangs.
    StillHanging,
    /// The call did not return before the deadline.
    TimedOut,
    /// The call panicked.
    Panicked(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StillHanging => f.write_str("the file system has not yet responded to an earlier attempt"),
            Self::TimedOut => f.write_str("the file system has not responded in time"),
            Self::Panicked(why) => write!(f, "an internal error of the gateway ({why}); this is a bug"),
        }
    }
}

/// The paths whose calls hang, each as long as its thread lives.
static HANGING: Mutex<Option<HashMap<PathBuf, Weak<()>>>> = Mutex::new(None);

/// Whether a call for this path hangs.
pub fn hangs(path: &Path) -> bool {
    let mut hanging = HANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let hanging = hanging.get_or_insert_default();
    hanging.retain(|_, thread| thread.strong_count() > 0);
    hanging.contains_key(path)
}

/// Notes that a call for this path hangs, as long as its thread holds what `thread` points to.
pub fn note_hanging(path: &Path, thread: Weak<()>) {
    let mut hanging = HANGING.lock().unwrap_or_else(PoisonError::into_inner);
    hanging.get_or_insert_default().insert(path.to_path_buf(), thread);
}

/// Runs a call that may block, and waits for it until `deadline`. `path` is what the call depends on.
pub async fn call<T: Send + 'static>(
    path: &Path,
    deadline: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    if hangs(path) {
        return Err(Failure::StillHanging);
    }
    let thread = Arc::new(());
    let mark = Arc::downgrade(&thread);
    let work = spawn_blocking(move || {
        let done = work();
        drop(thread);
        done
    });
    match timeout_at(deadline, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(e)) => Err(Failure::Panicked(e.to_string())),
        Err(_) => {
            note_hanging(path, mark);
            Err(Failure::TimedOut)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_path_that_hangs_leaves_one_thread_however_often_it_is_tried() {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let path = Path::new("/far/file");
            let soon = || Instant::now() + Duration::from_millis(20);
            let later = || Instant::now() + Duration::from_secs(60);
            // A file system that hangs, which no test can have, is a call that does not return.
            let (end, ended) = std::sync::mpsc::channel::<()>();
            assert_eq!(call(path, soon(), move || ended.recv().is_ok()).await, Err(Failure::TimedOut));
            for _ in 0..3 {
                assert_eq!(call(path, later(), || true).await, Err(Failure::StillHanging));
            }
            assert_eq!(call(Path::new("/near/file"), later(), || true).await, Ok(true), "another path is not held up");
            drop(end);
            while hangs(path) {
                tokio::task::yield_now().await;
            }
            assert_eq!(call(path, later(), || true).await, Ok(true));
        });
    }
}
