//! The replay window: which packet ids have been seen.

/// Words of the bitmap. One of them is being cleared for the ids to come, so the window is a word shorter.
const WORDS: usize = 64;

/// Ids behind the newest that are still told apart: 4,032. Older ones are refused. A stock client's window is 64;
/// GSO, several queues and a fast link reorder further.
pub const WINDOW: u64 = (WORDS as u64 - 1) * 64;

/// What an id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// New: not seen, and inside the window or ahead of it.
    New,
    /// Seen before.
    Seen,
    /// Too old to know.
    Old,
}

/// The ids seen under one key. 520 bytes.
///
/// Ids begin with 1; 0 is never valid. As RFC 6479 has it, the bitmap is a ring of words, and moving ahead clears
/// words instead of shifting bits.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    newest: u64,
    bits: [u64; WORDS],
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self::new()
    }
}

impl ReplayWindow {
    /// Nothing seen.
    pub const fn new() -> Self {
        Self { newest: 0, bits: [0; WORDS] }
    }

    /// The highest id seen, 0 before the first.
    pub const fn newest(&self) -> u64 {
        self.newest
    }

    /// Looks an id up without taking it.
    pub fn check(&self, id: u64) -> Replay {
        if id > self.newest {
            return Replay::New;
        }
        if id == 0 || self.newest - id >= WINDOW {
            return Replay::Old;
        }
        let (word, bit) = place(id);
        if self.bits[word] & bit == 0 { Replay::New } else { Replay::Seen }
    }

    /// Takes an id; only when the packet was authentic. What it was before is returned: use it if it was new.
    pub fn accept(&mut self, id: u64) -> Replay {
        let verdict = self.check(id);
        if verdict == Replay::New {
            if id > self.newest {
                let (from, to) = (self.newest / 64, id / 64);
                for word in (from + 1..=to).take(WORDS) {
                    self.bits[word as usize % WORDS] = 0;
                }
                self.newest = id;
            }
            let (word, bit) = place(id);
            self.bits[word] |= bit;
        }
        verdict
    }

    /// The state as numbers, to hand over: the newest id, then the bitmap.
    pub fn snapshot(&self) -> (u64, [u64; WORDS]) {
        (self.newest, self.bits)
    }

    /// Goes on from a [`ReplayWindow::snapshot`].
    pub const fn restore(newest: u64, bits: [u64; WORDS]) -> Self {
        Self { newest, bits }
    }
}

const fn place(id: u64) -> (usize, u64) {
    ((id / 64) as usize % WORDS, 1 << (id % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_id_is_new_once() {
        let mut w = ReplayWindow::new();
        assert_eq!(w.accept(0), Replay::Old);
        for id in [1, 3, 2, 64, 63, 65, 128, 127, 4000, 66] {
            assert_eq!(w.accept(id), Replay::New, "{id}");
            assert_eq!(w.accept(id), Replay::Seen, "{id}");
        }
        assert_eq!(w.newest(), 4000);
    }

    #[test]
    fn what_falls_out_of_the_window_is_old() {
        let mut w = ReplayWindow::new();
        w.accept(10_000);
        assert_eq!(w.check(10_000 - WINDOW), Replay::Old);
        assert_eq!(w.check(10_000 - WINDOW + 1), Replay::New);
        w.accept(10_000_000);
        assert_eq!(w.check(10_000), Replay::Old);
        assert_eq!(w.accept(u64::MAX), Replay::New);
        assert_eq!(w.accept(u64::MAX), Replay::Seen);
    }

    /// Against a set of all ids ever, over jumps of every size.
    #[test]
    fn agrees_with_a_set() {
        let (mut w, mut seen, mut newest, mut state) = (ReplayWindow::new(), HashSet::new(), 0_u64, 0x9e37_79b9_u64);
        for _ in 0..200_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let id = match state % 16 {
                0 => newest + 1 + (state >> 8) % 9_000,
                1..=6 => newest + 1 + (state >> 8) % 3,
                _ => (newest + 1).saturating_sub((state >> 8) % 5_000),
            };
            let expected = match () {
                () if id == 0 || (id <= newest && newest - id >= WINDOW) => Replay::Old,
                () if seen.contains(&id) => Replay::Seen,
                () => Replay::New,
            };
            assert_eq!(w.accept(id), expected, "{id} with newest {newest}");
            if expected == Replay::New {
                seen.insert(id);
                newest = newest.max(id);
            }
        }
    }

    #[test]
    fn a_handed_over_window_goes_on() {
        let mut w = ReplayWindow::new();
        for id in [5, 9, 700] {
            w.accept(id);
        }
        let (newest, bits) = w.snapshot();
        let mut other = ReplayWindow::restore(newest, bits);
        assert_eq!(other.accept(9), Replay::Seen);
        assert_eq!(other.accept(8), Replay::New);
    }
}
