//! Which key a packet was sealed with: at most two are alive, the one that sends and the other.

/// A place for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeySlot {
    /// Seals what is sent; opens.
    Primary,
    /// Only opens: a new key before the peer has it, or an old one whose packets are still on their way (lame duck).
    Secondary,
}

/// The keys of a peer, each with its key id.
#[derive(Clone, Debug)]
pub struct KeySlots<K> {
    primary: Option<(u8, K)>,
    secondary: Option<(u8, K)>,
}

impl<K> Default for KeySlots<K> {
    fn default() -> Self {
        Self { primary: None, secondary: None }
    }
}

impl<K> KeySlots<K> {
    /// Puts a key into a slot and returns what was there. A key id names one key: the other slot is emptied if it
    /// had the same.
    pub fn install(&mut self, slot: KeySlot, key_id: u8, key: K) -> Option<(u8, K)> {
        let other = match slot {
            KeySlot::Primary => &mut self.secondary,
            KeySlot::Secondary => &mut self.primary,
        };
        if other.as_ref().is_some_and(|(id, _)| *id == key_id) {
            *other = None;
        }
        self.slot(slot).replace((key_id, key))
    }

    /// Exchanges the slots. False, and nothing is done, where there is no secondary key to send with.
    pub const fn swap(&mut self) -> bool {
        if self.secondary.is_none() {
            return false;
        }
        std::mem::swap(&mut self.primary, &mut self.secondary);
        true
    }

    /// Empties a slot.
    pub fn remove(&mut self, slot: KeySlot) -> Option<(u8, K)> {
        self.slot(slot).take()
    }

    /// The key that seals.
    pub fn primary(&mut self) -> Option<&mut K> {
        self.primary.as_mut().map(|(_, key)| key)
    }

    /// The key of a packet that came.
    pub fn by_id(&mut self, key_id: u8) -> Option<&mut K> {
        [&mut self.primary, &mut self.secondary].into_iter().flatten().find(|(id, _)| *id == key_id).map(|(_, k)| k)
    }

    /// What is in a slot.
    pub fn peek(&self, slot: KeySlot) -> Option<(u8, &K)> {
        let slot = match slot {
            KeySlot::Primary => &self.primary,
            KeySlot::Secondary => &self.secondary,
        };
        slot.as_ref().map(|(id, key)| (*id, key))
    }

    const fn slot(&mut self, slot: KeySlot) -> &mut Option<(u8, K)> {
        match slot {
            KeySlot::Primary => &mut self.primary,
            KeySlot::Secondary => &mut self.secondary,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_id_names_one_key() {
        let mut slots = KeySlots::default();
        assert!(!slots.swap());
        slots.install(KeySlot::Primary, 0, "old");
        slots.install(KeySlot::Secondary, 1, "new");
        assert_eq!(slots.by_id(0), Some(&mut "old"));
        assert_eq!(slots.by_id(1), Some(&mut "new"));
        assert!(slots.swap());
        assert_eq!(slots.primary(), Some(&mut "new"));
        assert_eq!(slots.install(KeySlot::Primary, 0, "again"), Some((1, "new")));
        assert_eq!(slots.peek(KeySlot::Secondary), None);
        assert_eq!(slots.by_id(0), Some(&mut "again"));
        assert_eq!(slots.by_id(7), None);
    }
}
