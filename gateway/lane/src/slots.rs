//! Storage for connections and exchanges, with keys that go stale when the entry is gone.

use std::ops::Range;

/// Names an entry of [`Slots`]: an index and the generation of what lives there. A key of a removed entry finds
/// nothing, also when the place has been taken again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// As a number, for epoll and timers.
    #[inline]
    pub fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Back from a number.
    #[inline]
    pub fn from_u64(n: u64) -> Self {
        Self { index: n as u32, generation: (n >> 32) as u32 }
    }
}

impl From<Key> for u64 {
    fn from(key: Key) -> Self {
        key.to_u64()
    }
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// A slab whose keys carry generations.
#[derive(Debug)]
pub struct Slots<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Puts a value in.
    pub fn insert(&mut self, value: T) -> Key {
        self.insert_with(|_| value)
    }

    /// Puts a value in that holds its own key.
    pub fn insert_with(&mut self, value: impl FnOnce(Key) -> T) -> Key {
        match self.free.pop() {
            Some(index) => {
                let entry = &mut self.entries[index as usize];
                let key = Key { index, generation: entry.generation };
                entry.value = Some(value(key));
                key
            }
            None => {
                let key = Key { index: self.entries.len() as u32, generation: 0 };
                self.entries.push(Entry { generation: 0, value: Some(value(key)) });
                key
            }
        }
    }

    /// The entry, unless it is gone.
    #[inline]
    pub fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(key.index as usize)?;
        if entry.generation == key.generation { entry.value.as_ref() } else { None }
    }

    /// The entry, unless it is gone.
    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation == key.generation { entry.value.as_mut() } else { None }
    }

    /// Takes the entry out.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        let value = entry.value.take()?;
        // The top half of generations is left out: those numbers are the loop's own (listeners, mailbox).
        entry.generation = (entry.generation + 1) & 0x7fff_ffff;
        self.free.push(key.index);
        Some(value)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All keys, for rare walks over everything (drain).
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        let live = self.entries.iter().enumerate().filter(|(_, e)| e.value.is_some());
        live.map(|(i, e)| Key { index: i as u32, generation: e.generation })
    }

    /// How many places there are, free ones included.
    pub fn places(&self) -> usize {
        self.entries.len()
    }

    /// The keys in some of the places, for walks that are bounded and go on another time.
    pub fn keys_in(&self, places: Range<usize>) -> impl Iterator<Item = Key> + '_ {
        let (start, end) = (places.start.min(self.entries.len()), places.end.min(self.entries.len()));
        let live = (start..end).filter(move |i| self.entries[*i].value.is_some());
        live.map(move |i| Key { index: i as u32, generation: self.entries[i].generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_keys_find_nothing() {
        let mut s = Slots::default();
        let a = s.insert('a');
        assert_eq!(s.remove(a), Some('a'));
        let b = s.insert('b');
        assert_eq!(s.remove(a), None);
        assert_eq!((s.get(a), s.get(b)), (None, Some(&'b')));
        assert_eq!(Key::from_u64(b.to_u64()), b);
        assert_eq!((s.len(), s.keys().count()), (1, 1));
    }

    #[test]
    fn a_walk_goes_on_where_the_last_one_ended() {
        let mut s = Slots::default();
        let keys: Vec<Key> = (0..5).map(|n| s.insert(n)).collect();
        s.remove(keys[1]);
        assert_eq!(s.places(), 5);
        assert_eq!(s.keys_in(0..3).collect::<Vec<_>>(), [keys[0], keys[2]]);
        assert_eq!(s.keys_in(3..100).collect::<Vec<_>>(), [keys[3], keys[4]]);
        assert_eq!((s.keys_in(7..9).count(), s.keys_in(Range { start: 4, end: 2 }).count()), (0, 0));
    }
}
