//! The way into a lane from outside: messages, and a wake-up.
//!
//! ```text
//! control ── Load::Free ──────────────────────────┐
//! lanes ──── Load::Counted (kind, amount) ─ room? ─┼─► queue ─► Inbox ─ MAIL_PER_TURN messages per turn ─► Service
//!                                            no ─► Undelivered::Full: the sender drops, refuses or merges
//! ```
//! Messages that a client can cause are counted: each kind has a capacity, given to [`mailbox`], so that a flood of one
//! kind neither grows memory without limit nor takes the room of another kind. What is sent by control alone is free.

use crate::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Ordering, Receiver, Sender, channel};
use crate::wake::Wake;

/// What can be mailed to a lane.
pub trait Mail {
    /// What the message takes of its mailbox's room. The same each time it is asked.
    fn load(&self) -> Load;
}

/// What a message takes of a mailbox's room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Nothing: it is from control, and nobody outside can cause more of it.
    Free,
    /// So much of the room for messages of this kind.
    Counted {
        /// Index of the kind's capacity, as given to [`mailbox`].
        kind: usize,
        /// In the unit of that capacity.
        amount: usize,
    },
}

/// A message that was not delivered, given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered<M> {
    /// There is no room for another message of its kind.
    Full(M),
    /// The lane has ended.
    Ended(M),
}

impl<M> Undelivered<M> {
    /// The message.
    pub fn into_message(self) -> M {
        match self {
            Self::Full(message) | Self::Ended(message) => message,
        }
    }
}

/// What both ends of a mailbox share.
#[derive(Debug)]
struct Shared {
    wake: Wake,
    /// The wake-up has been written and the lane has not acknowledged it yet: another write would change nothing.
    woken: AtomicBool,
    kinds: Box<[Kind]>,
    /// The lane takes no further connections for now.
    closed: AtomicBool,
}

/// The room for messages of one kind.
#[derive(Debug)]
struct Kind {
    waiting: AtomicUsize,
    capacity: usize,
    /// Messages that did not fit.
    refused: AtomicU64,
}

/// Sends messages to one lane.
pub struct Mailbox<M> {
    sender: Sender<M>,
    shared: Arc<Shared>,
}

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), shared: self.shared.clone() }
    }
}

impl<M> std::fmt::Debug for Mailbox<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mailbox")
    }
}

impl<M: Mail> Mailbox<M> {
    /// Leaves a message and wakes the lane.
    ///
    /// Errors: there is no room for it, or the lane has ended; the message is given back.
    pub fn send(&self, message: M) -> Result<(), Undelivered<M>> {
        let load = message.load();
        if !self.shared.reserve(load) {
            return Err(Undelivered::Full(message));
        }
        if let Err(e) = self.sender.send(message) {
            self.shared.release(load);
            return Err(Undelivered::Ended(e.0));
        }
        self.wake();
        Ok(())
    }
}

impl<M> Mailbox<M> {
    /// Wakes the lane without a message: something has been published. Wake-ups that the lane has not seen yet are one.
    pub fn wake(&self) {
        if !self.shared.woken.swap(true, Ordering::AcqRel) {
            self.shared.wake.set();
        }
    }

    /// Says whether the lane takes connections; for senders to look at ([`Self::is_closed`]), not enforced here.
    pub fn set_closed(&self, closed: bool) {
        self.shared.closed.store(closed, Ordering::Relaxed);
    }

    /// How many messages of a kind did not fit so far, of all senders.
    pub fn refused(&self, kind: usize) -> u64 {
        self.shared.kinds.get(kind).map_or(0, |k| k.refused.load(Ordering::Relaxed))
    }

    /// The lane has said that it takes no connections for now.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Relaxed)
    }
}

impl Kind {
    fn new(capacity: usize) -> Self {
        Self { waiting: AtomicUsize::new(0), capacity, refused: AtomicU64::new(0) }
    }
}

impl Shared {
    fn reserve(&self, load: Load) -> bool {
        let Load::Counted { kind, amount } = load else { return true };
        let Some(k) = self.kinds.get(kind) else { return false };
        let more = |n: usize| n.checked_add(amount).filter(|n| *n <= k.capacity);
        let fits = k.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if !fits {
            k.refused.fetch_add(1, Ordering::Relaxed);
        }
        fits
    }

    fn release(&self, load: Load) {
        if let Load::Counted { kind, amount } = load
            && let Some(k) = self.kinds.get(kind)
        {
            k.waiting.fetch_sub(amount, Ordering::Relaxed);
        }
    }
}

/// A lane's end.
#[derive(Debug)]
pub struct Inbox<M> {
    receiver: Receiver<M>,
    shared: Arc<Shared>,
}

impl<M: Mail> Inbox<M> {
    /// The next message, if there is one.
    pub fn receive(&self) -> Option<M> {
        let message = self.receiver.try_recv().ok()?;
        self.shared.release(message.load());
        Some(message)
    }
}

impl<M> Inbox<M> {
    /// Resets the wake-up; called before messages are received, so that none is missed.
    pub fn acknowledge(&self) {
        self.shared.wake.reset();
        // A sender that finds the flag set has queued its message before this line, so the loop below receives it.
        self.shared.woken.swap(false, Ordering::AcqRel);
    }

    /// What to watch for reading.
    pub fn wake(&self) -> &Wake {
        &self.shared.wake
    }
}

/// A mailbox and the lane's end of it. `capacities` by kind of message, see [`Load::Counted`].
pub fn mailbox<M>(capacities: &[usize]) -> std::io::Result<(Mailbox<M>, Inbox<M>)> {
    let shared = Arc::new(Shared {
        wake: Wake::new()?,
        woken: AtomicBool::new(false),
        kinds: capacities.iter().map(|capacity| Kind::new(*capacity)).collect(),
        closed: AtomicBool::new(false),
    });
    let (sender, receiver) = channel();
    Ok((Mailbox { sender, shared: shared.clone() }, Inbox { receiver, shared }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{After, Context, Ready, Service, run};

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Word {
        Order,
        Bytes(usize),
        Guest,
    }

    impl Mail for Word {
        fn load(&self) -> Load {
            match *self {
                Self::Order => Load::Free,
                Self::Bytes(amount) => Load::Counted { kind: 0, amount },
                Self::Guest => Load::Counted { kind: 1, amount: 1 },
            }
        }
    }

    #[test]
    fn each_kind_has_room_of_its_own() {
        let (to, inbox) = mailbox(&[10, 2]).unwrap();
        assert_eq!(to.send(Word::Bytes(6)), Ok(()));
        assert_eq!(to.send(Word::Bytes(5)), Err(Undelivered::Full(Word::Bytes(5))));
        assert_eq!(to.send(Word::Bytes(4)), Ok(()));
        assert_eq!(to.send(Word::Bytes(usize::MAX)), Err(Undelivered::Full(Word::Bytes(usize::MAX))));
        assert_eq!((to.send(Word::Guest), to.send(Word::Guest)), (Ok(()), Ok(())));
        assert_eq!(to.send(Word::Guest), Err(Undelivered::Full(Word::Guest)));
        assert!((0..1000).all(|_| to.send(Word::Order).is_ok()));
        assert_eq!((to.refused(0), to.refused(1), to.refused(2)), (2, 1, 0));
        // What is taken out makes room.
        assert_eq!(inbox.receive(), Some(Word::Bytes(6)));
        assert_eq!(to.send(Word::Bytes(6)), Ok(()));
        assert_eq!(to.send(Word::Bytes(1)), Err(Undelivered::Full(Word::Bytes(1))));
        drop(inbox);
        assert_eq!(to.send(Word::Order), Err(Undelivered::Ended(Word::Order)));
    }

    #[test]
    fn wake_ups_that_nobody_has_seen_are_one() {
        let (to, inbox) = mailbox(&[10]).unwrap();
        let pending = || {
            let mut count = [0; 8];
            rustix::io::read(inbox.wake(), &mut count).map(|_| u64::from_ne_bytes(count))
        };
        assert!((0..10).all(|_| to.send(Word::Bytes(1)).is_ok()));
        assert_eq!(pending(), Ok(1));
        inbox.acknowledge();
        to.wake();
        assert_eq!(pending(), Ok(1));
    }

    /// Counts the messages of each turn.
    struct Turns {
        now: usize,
        each: Vec<usize>,
        wanted: usize,
    }

    impl Service for Turns {
        type Message = Word;
        fn ready(&mut self, _: &mut Context, _: u64, _: Ready) {}
        fn timeout(&mut self, _: &mut Context, _: u64) {}
        fn message(&mut self, _: &mut Context, _: Word) {
            self.now += 1;
        }
        fn turn(&mut self, _: &mut Context) -> After {
            self.each.push(std::mem::take(&mut self.now));
            if self.each.iter().sum::<usize>() >= self.wanted { After::Stop } else { After::Sleep }
        }
    }

    #[test]
    fn a_turn_takes_a_bounded_number_and_no_message_is_forgotten() {
        let (to, inbox) = mailbox(&[1000]).unwrap();
        assert!((0..1000).all(|_| to.send(Word::Bytes(1)).is_ok()));
        let service = Turns { now: 0, each: Vec::new(), wanted: 1000 };
        let turns = run(Context::new().unwrap(), service, &inbox).unwrap().each;
        assert!(turns.len() >= 1000 / 64 && turns.iter().all(|n| *n <= 64), "{turns:?}");
    }
}
