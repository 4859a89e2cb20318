//! Signals as events.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first SIGINT or SIGTERM: no new connections, finish those that are open.
    Drain,
    /// A further SIGINT or SIGTERM: end at once.
    Quit,
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGUSR1: open the access log again.
    Reopen,
    /// SIGUSR2: start the program's file anew and hand everything over to it.
    Upgrade,
}

/// The signals that the gateway minds. From its making on, they do not end the process by themselves.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    user1: Signal,
    user2: Signal,
    draining: bool,
}

impl Signals {
    /// Must be called within a tokio runtime.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
            draining: false,
        })
    }

    /// Waits for the next one. Cancel safe.
    pub async fn next(&mut self) -> Event {
        tokio::select! {
            _ = self.interrupt.recv() => self.stop(),
            _ = self.terminate.recv() => self.stop(),
            _ = self.hangup.recv() => Event::Reload,
            _ = self.user1.recv() => Event::Reopen,
            _ = self.user2.recv() => Event::Upgrade,
        }
    }

    fn stop(&mut self) -> Event {
        match std::mem::replace(&mut self.draining, true) {
            false => Event::Drain,
            true => Event::Quit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, getpid, kill_process};

    #[test]
    fn signals_become_events() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut signals = Signals::new().unwrap();
            for (signal, event) in [
                (Signal::HUP, Event::Reload),
                (Signal::TERM, Event::Drain),
                (Signal::USR1, Event::Reopen),
                (Signal::USR2, Event::Upgrade),
                (Signal::INT, Event::Quit),
            ] {
                kill_process(getpid(), signal).unwrap();
                assert_eq!(signals.next().await, event);
            }
        });
    }
}
