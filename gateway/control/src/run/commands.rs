//! Commands to the running gateway, from signals, from the admin socket, and from itself.

use crate::log;
use crate::run::recording::RecordingRequest;
use crate::vpn::Steering;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// What the gateway can be told to do.
#[derive(Clone, Debug)]
pub enum Command {
    /// No new connections; finish those that are open, then end.
    Drain,
    /// End at once.
    Quit,
    /// Read the configuration again.
    Reload,
    /// The same, because its files have changed. Certificates that are not valid replace none that are.
    ReloadChanged,
    /// Open the access log again.
    Reopen,
    /// Start the program's file anew, hand everything over to it, then drain.
    Upgrade,
    /// A successor that was started serves (its pid, and what is to be closed when nothing here reads UDP any more), or
    /// why it does not.
    Succeeded(Result<(u32, Arc<OwnedFd>), String>),
    /// The predecessor reads UDP no more.
    ReadUdp,
    /// Tell the requests that are under way.
    Inspect {
        /// At most so many, the oldest.
        limit: usize,
        /// Those that began longer ago than this.
        older_than: Duration,
    },
    /// Record exchanges.
    Record(Box<RecordingRequest>),
    /// Renew the certificate of this name, which an authority issues.
    Renew(String),
    /// Disconnect clients of the tunnel, or tell them something.
    Steer(Box<Steering>),
}

/// One line about what was done, or why it was not.
pub type Reply = Result<String, String>;

/// A command with the place for its reply.
#[derive(Debug)]
pub struct PendingCommand {
    /// The command.
    pub command: Command,
    reply: Option<oneshot::Sender<Reply>>,
}

impl PendingCommand {
    /// Whether somebody waits for the reply.
    pub fn is_awaited(&self) -> bool {
        self.reply.is_some()
    }

    /// Whether who has given it waits no longer.
    pub fn is_given_up(&self) -> bool {
        self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// Answers the sender, and says it in the log as well.
    pub fn reply(self, reply: Reply) {
        match &reply {
            Ok(line) if line.is_empty() => {}
            Ok(line) => log::info!("{line}"),
            Err(line) => log::error!("{line}"),
        }
        self.answer(reply);
    }

    /// Answers the sender alone.
    pub fn answer(self, reply: Reply) {
        if let Some(to) = self.reply {
            // The caller may have disconnected.
            let _ = to.send(reply);
        }
    }
}

/// Where commands are given.
#[derive(Clone, Debug)]
pub struct Commands(mpsc::Sender<PendingCommand>);

impl Commands {
    /// A place to give commands, and where they arrive.
    pub fn channel() -> (Self, mpsc::Receiver<PendingCommand>) {
        let (give, take) = mpsc::channel(16);
        (Self(give), take)
    }

    /// Gives a command and waits until it was executed.
    pub async fn give(&self, command: Command) -> Reply {
        let gone = || "the gateway is stopping".to_owned();
        let (reply, answer) = oneshot::channel();
        self.0.send(PendingCommand { command, reply: Some(reply) }).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Gives a command without waiting for what becomes of it.
    pub async fn tell(&self, command: Command) {
        // Nobody takes it only when the gateway is stopping.
        let _ = self.0.send(PendingCommand { command, reply: None }).await;
    }
}
