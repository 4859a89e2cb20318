//! The reliability layer: messages arrive once and in order, or the session ends.
//!
//! ```text
//! Outgoing: push ─▶ waiting ─▶ poll (first time, then with growing pauses) ─▶ acknowledged: gone
//! Incoming: handle ─▶ acknowledged ─▶ held until those before it are there ─▶ next
//! ```

use crate::packet::{MAX_ACKS, Opcode};
use crate::saved::SavedMessage;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Messages under way at a time. OpenVPN holds twelve, and sends six.
const SEND_WINDOW: usize = 6;
/// Messages ahead of the next one that are held.
const RECEIVE_WINDOW: u32 = 12;
/// The pause before the first repetition, which doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Acknowledgements that control packets carry besides their message, as OpenVPN limits them.
pub(crate) const ACKS_WITH_MESSAGE: usize = 4;

/// A message under way.
#[derive(Debug)]
struct Outstanding {
    id: u32,
    opcode: Opcode,
    payload: Vec<u8>,
    /// `None`: not sent yet.
    again: Option<Instant>,
    pause: Duration,
    /// Later messages that were acknowledged before this one.
    overtaken: u8,
}

/// The sending side.
#[derive(Debug)]
pub struct Outgoing {
    next_id: u32,
    outstanding: VecDeque<Outstanding>,
    /// On TCP nothing is lost.
    repeat: bool,
}

impl Outgoing {
    /// The first message gets `next_id`; `repeat` where the transport may lose packets.
    pub const fn new(next_id: u32, repeat: bool) -> Self {
        Self { next_id, outstanding: VecDeque::new(), repeat }
    }

    /// Whether another message may be pushed. The peer holds only so many ids beyond the oldest that it lacks.
    pub fn has_room(&self) -> bool {
        let oldest = self.outstanding.front().map_or(self.next_id, |m| m.id);
        self.outstanding.len() < SEND_WINDOW && self.next_id.wrapping_sub(oldest) < SEND_WINDOW as u32
    }

    /// Whether everything has been acknowledged.
    pub fn is_empty(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// The id that the next message gets.
    pub const fn next_id(&self) -> u32 {
        self.next_id
    }

    /// Queues a message; the caller asks [`Outgoing::has_room`] first.
    pub fn push(&mut self, opcode: Opcode, payload: Vec<u8>) {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        self.outstanding.push_back(Outstanding { id, opcode, payload, again: None, pause: FIRST_PAUSE, overtaken: 0 });
    }

    /// The peer has these.
    pub fn acknowledged(&mut self, ids: &[u32]) {
        for id in ids {
            let Some(at) = self.outstanding.iter().position(|m| m.id == *id) else { continue };
            self.outstanding.remove(at);
            for earlier in self.outstanding.iter_mut().take(at) {
                earlier.overtaken = earlier.overtaken.saturating_add(1);
            }
        }
    }

    /// The next message to send now, new or again.
    pub fn poll(&mut self, now: Instant) -> Option<(u32, Opcode, &[u8])> {
        let repeat = self.repeat;
        let due = |m: &Outstanding| match m.again {
            None => true,
            // Three later ones have arrived: it is surely lost.
            Some(at) => repeat && (now >= at || m.overtaken >= 3),
        };
        let message = self.outstanding.iter_mut().find(|m| due(m))?;
        message.again = Some(now + message.pause);
        message.pause = (message.pause * 2).min(LONGEST_PAUSE);
        message.overtaken = 0;
        Some((message.id, message.opcode, &message.payload))
    }

    /// What is under way, to go on elsewhere.
    pub(crate) fn save(&self) -> Vec<SavedMessage> {
        let save = |m: &Outstanding| SavedMessage::new(m.id, m.opcode, &m.payload, m.again.is_some());
        self.outstanding.iter().map(save).collect()
    }

    /// Goes on: what was sent is sent again where packets may be lost. `None` for what nobody has saved.
    pub(crate) fn restore(next_id: u32, repeat: bool, messages: &[SavedMessage], now: Instant) -> Option<Self> {
        if messages.len() > SEND_WINDOW {
            return None;
        }
        let mut outgoing = Self::new(next_id, repeat);
        for m in messages {
            outgoing.outstanding.push_back(Outstanding {
                id: m.id,
                opcode: m.opcode()?,
                payload: m.payload.clone(),
                again: m.sent.then_some(now),
                pause: FIRST_PAUSE,
                overtaken: 0,
            });
        }
        Some(outgoing)
    }

    /// When [`Outgoing::poll`] has something next.
    pub fn deadline(&self) -> Option<Instant> {
        self.outstanding.iter().filter_map(|m| m.again).min().filter(|_| self.repeat)
    }
}

/// The receiving side.
#[derive(Debug)]
pub struct Incoming {
    next_id: u32,
    held: Vec<(u32, Opcode, Vec<u8>)>,
    /// To be acknowledged.
    acks: VecDeque<u32>,
    /// Acknowledged lately: said again while there is room, since acknowledgements get lost, too.
    recent: VecDeque<u32>,
}

/// What became of a message that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// It is held or ready.
    New,
    /// It was there before; it is acknowledged again.
    Again,
    /// It is too far ahead, and is not acknowledged.
    TooFar,
}

impl Incoming {
    /// Waits for `next_id` first.
    pub const fn new(next_id: u32) -> Self {
        Self { next_id, held: Vec::new(), acks: VecDeque::new(), recent: VecDeque::new() }
    }

    /// The id that it waits for, what is held, and what is to be acknowledged: to go on elsewhere.
    pub(crate) fn save(&self) -> (u32, Vec<SavedMessage>, Vec<u32>) {
        let held = self.held.iter().map(|(id, opcode, payload)| SavedMessage::new(*id, *opcode, payload, false));
        (self.next_id, held.collect(), self.acks.iter().copied().collect())
    }

    /// Goes on. `None` for what nobody has saved.
    pub(crate) fn restore(next_id: u32, held: &[SavedMessage], acks: &[u32]) -> Option<Self> {
        if held.len() > RECEIVE_WINDOW as usize || acks.len() > 2 * MAX_ACKS {
            return None;
        }
        let held = held.iter().map(|m| Some((m.id, m.opcode()?, m.payload.clone()))).collect::<Option<_>>()?;
        Some(Self { next_id, held, acks: acks.iter().copied().collect(), recent: VecDeque::new() })
    }

    /// Takes a message.
    pub fn handle(&mut self, id: u32, opcode: Opcode, payload: &[u8]) -> Received {
        let ahead = id.wrapping_sub(self.next_id);
        if ahead >= RECEIVE_WINDOW {
            // Half of the numbers are behind.
            if ahead < 1 << 31 {
                return Received::TooFar;
            }
            self.acknowledge(id);
            return Received::Again;
        }
        self.acknowledge(id);
        if self.held.iter().any(|(held, ..)| *held == id) {
            return Received::Again;
        }
        self.held.push((id, opcode, payload.to_vec()));
        Received::New
    }

    /// Says that a message has come; at most a few wait to be said.
    pub fn acknowledge(&mut self, id: u32) {
        if !self.acks.contains(&id) && self.acks.len() < 2 * MAX_ACKS {
            self.acks.push_back(id);
        }
    }

    /// The next message in order.
    pub fn pop(&mut self) -> Option<(Opcode, Vec<u8>)> {
        let at = self.held.iter().position(|(id, ..)| *id == self.next_id)?;
        let (_, opcode, payload) = self.held.swap_remove(at);
        self.next_id = self.next_id.wrapping_add(1);
        Some((opcode, payload))
    }

    /// Whether something waits to be acknowledged.
    pub fn wants_to_acknowledge(&self) -> bool {
        !self.acks.is_empty()
    }

    /// Up to `max` acknowledgements for the next packet, the new ones first.
    pub fn take_acks(&mut self, max: usize) -> Vec<u32> {
        let mut out: Vec<u32> = self.acks.drain(..self.acks.len().min(max)).collect();
        let fresh = out.len();
        out.extend(
            self.recent.iter().copied().filter(|id| !out[..fresh].contains(id)).take(max - fresh).collect::<Vec<_>>(),
        );
        for id in out[..fresh].iter().rev() {
            self.recent.retain(|r| r != id);
            self.recent.push_front(*id);
        }
        self.recent.truncate(MAX_ACKS);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: Opcode = Opcode::ControlV1;

    #[test]
    fn messages_come_in_order_and_once() {
        let mut i = Incoming::new(1);
        assert_eq!(i.handle(3, C, b"c"), Received::New);
        assert_eq!(i.handle(3, C, b"c"), Received::Again);
        assert_eq!(i.pop(), None);
        assert_eq!(i.handle(1, C, b"a"), Received::New);
        assert_eq!(i.pop(), Some((C, b"a".to_vec())));
        assert_eq!(i.handle(1, C, b"a"), Received::Again);
        assert_eq!(i.handle(14, C, b"x"), Received::TooFar);
        assert_eq!(i.handle(2, C, b"b"), Received::New);
        assert_eq!(i.pop(), Some((C, b"b".to_vec())));
        assert_eq!(i.pop(), Some((C, b"c".to_vec())));
        assert_eq!(i.take_acks(4), [3, 1, 2]);
        assert!(!i.wants_to_acknowledge());
        assert_eq!(i.take_acks(2), [3, 1], "said again");
    }

    #[test]
    fn what_is_lost_is_sent_again_and_later_each_time() {
        let start = Instant::now();
        let mut o = Outgoing::new(0, true);
        o.push(C, vec![1]);
        assert!(o.poll(start).is_some());
        assert!(o.poll(start).is_none());
        let mut at = start;
        for pause in [1, 2, 4, 8, 8] {
            let deadline = o.deadline().expect("something is out");
            assert_eq!(deadline - at, Duration::from_secs(pause));
            at = deadline;
            assert!(o.poll(at - Duration::from_millis(1)).is_none());
            assert!(o.poll(at).is_some());
        }
        o.acknowledged(&[7, 0]);
        assert!(o.is_empty() && o.deadline().is_none());
    }

    #[test]
    fn a_full_window_waits_for_the_oldest() {
        let now = Instant::now();
        let mut o = Outgoing::new(0, true);
        while o.has_room() {
            o.push(C, vec![]);
        }
        assert_eq!(o.next_id(), SEND_WINDOW as u32);
        while o.poll(now).is_some() {}
        o.acknowledged(&[1, 2]);
        assert!(!o.has_room() && o.poll(now).is_none());
        o.acknowledged(&[3]);
        assert_eq!(o.poll(now).map(|(id, ..)| id), Some(0), "overtaken three times");
        o.acknowledged(&[0]);
        assert!(o.has_room());
    }

    #[test]
    fn tcp_repeats_nothing() {
        let now = Instant::now();
        let mut o = Outgoing::new(0, false);
        o.push(C, vec![]);
        assert!(o.poll(now).is_some());
        assert!(o.deadline().is_none() && o.poll(now + Duration::from_secs(60)).is_none());
    }
}
