//! The way into a lane from outside: messages, and a wake-up.

use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Sends messages to one lane.
pub struct Mailbox<M> {
    sender: Sender<M>,
    wake: Arc<OwnedFd>,
}

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), wake: self.wake.clone() }
    }
}

impl<M> std::fmt::Debug for Mailbox<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mailbox")
    }
}

impl<M> Mailbox<M> {
    /// Leaves a message and wakes the lane. Gives the message back if the lane has ended.
    pub fn send(&self, message: M) -> Result<(), M> {
        self.sender.send(message).map_err(|e| e.0)?;
        self.wake();
        Ok(())
    }

    /// Wakes the lane without a message: something has been published.
    pub fn wake(&self) {
        // It fails only when the count would overflow, and then the lane is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// A lane's end.
#[derive(Debug)]
pub struct Inbox<M> {
    receiver: Receiver<M>,
    wake: Arc<OwnedFd>,
}

impl<M> Inbox<M> {
    /// The next message, if there is one.
    pub fn receive(&self) -> Option<M> {
        self.receiver.try_recv().ok()
    }

    /// Resets the wake-up; called before messages are received, so that none is missed.
    pub fn acknowledge(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
    }

    /// What to watch for reading.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// A mailbox and the lane's end of it.
pub fn mailbox<M>() -> std::io::Result<(Mailbox<M>, Inbox<M>)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
    let (sender, receiver) = channel();
    Ok((Mailbox { sender, wake: wake.clone() }, Inbox { receiver, wake }))
}
