//! How a user ends the client.

use anyhow::Result;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals by which a user ends it.
pub(super) struct Stop {
    interrupt: Signal,
    terminate: Signal,
    /// The terminal has been closed. `None`: the signal is to be ignored, as after `nohup`.
    hangup: Option<Signal>,
}

impl Stop {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: (!ignores_hangup()).then(|| signal(SignalKind::hangup())).transpose()?,
        })
    }

    pub(super) async fn asked(&mut self) {
        let Self { interrupt, terminate, hangup } = self;
        let closed = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = closed => {}
        }
    }
}

/// Whether this process was started so that it ignores SIGHUP.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    ignored.is_some_and(|ignored| ignored & 1 != 0)
}
