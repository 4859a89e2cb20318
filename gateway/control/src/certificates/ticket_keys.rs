//! The rotating secret behind session tickets.

use crate::upgrade::handover::Tickets;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use sealane_tls::policy::TicketKeys;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zeroize::Zeroize;

/// Makes each epoch's key. Rotated once per ticket lifetime, with the previous key kept, every ticket can be opened
/// for as long as it says that it is good.
#[derive(Debug)]
pub struct TicketRing {
    current: Arc<TicketKeys>,
    /// When the newest key was made, here or in a predecessor.
    since: Instant,
    /// How old it was when this process took it over.
    inherited_age: Duration,
    origin: Origin,
}

/// Who makes the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Origin {
    /// The ring itself.
    #[default]
    Own,
    /// A file: the ring makes none.
    File,
    /// Other gateways, as long as they do.
    Fleet,
}

/// As good as never.
const NEVER: Duration = Duration::from_secs(30 * 365 * 86_400);

impl TicketRing {
    /// A ring with one fresh key.
    ///
    /// Errors: the system's source of randomness fails.
    pub fn new(lifetime: Duration) -> anyhow::Result<Self> {
        let mut keys =
            TicketKeys { epoch: 1, masters: vec![[0; 32]], lifetime: whole_seconds(lifetime), reset: [0; 32] };
        keys.masters.iter_mut().try_for_each(fresh)?;
        fresh(&mut keys.reset)?;
        Ok(Self { current: Arc::new(keys), since: Instant::now(), inherited_age: Duration::ZERO, origin: Origin::Own })
    }

    /// Continues with a predecessor's keys, so that its clients resume here, and with their age, so that upgrades do not
    /// put their replacement off.
    pub fn inherit(&mut self, keys: &Tickets) {
        let mut inherited = TicketKeys::clone(&self.current);
        inherited.epoch = keys.epoch;
        inherited.masters.zeroize();
        inherited.masters.extend_from_slice(&keys.masters);
        if let Some(reset) = keys.reset {
            inherited.reset = reset;
        }
        self.current = Arc::new(inherited);
        self.since = Instant::now();
        self.inherited_age = Duration::from_secs(keys.age);
    }

    /// What to publish.
    pub fn current(&self) -> Arc<TicketKeys> {
        Arc::clone(&self.current)
    }

    /// Starts an epoch; publish [`TicketRing::current`] again. To be called when [`TicketRing::remaining`] is over.
    pub fn rotate(&mut self) -> anyhow::Result<()> {
        let mut keys = TicketKeys::clone(&self.current);
        keys.epoch += 1;
        let mut masters = vec![[0; 32]; 1 + keys.masters.len().min(1)];
        fresh(&mut masters[0])?;
        if let (Some(place), Some(newest)) = (masters.get_mut(1), keys.masters.first()) {
            *place = *newest;
        }
        keys.masters.zeroize();
        keys.masters = masters;
        self.current = Arc::new(keys);
        self.since = Instant::now();
        self.inherited_age = Duration::ZERO;
        if self.origin == Origin::Fleet {
            self.origin = Origin::Own;
        }
        Ok(())
    }

    /// Goes by the keys of a file: the first seals, all open.
    pub fn take_from_file(&mut self, keys: &[[u8; 32]]) {
        self.origin = Origin::File;
        self.take(keys);
    }

    /// Goes by the keys that gateways share. If nobody replaces them for two lifetimes, the ring makes its own again.
    pub fn take_from_fleet(&mut self, keys: &[[u8; 32]]) {
        self.origin = Origin::Fleet;
        self.take(keys);
    }

    /// Makes its own keys from now on.
    pub fn make_own(&mut self) -> anyhow::Result<()> {
        if self.origin == Origin::Own {
            return Ok(());
        }
        self.origin = Origin::Own;
        self.rotate()
    }

    /// Makes its own keys, if they came from a file, until others give it theirs.
    pub fn leave_file(&mut self) -> anyhow::Result<()> {
        if self.origin == Origin::File { self.make_own() } else { Ok(()) }
    }

    fn take(&mut self, given: &[[u8; 32]]) {
        let Some(sealing) = given.first() else { return };
        if self.current.masters.starts_with(given) {
            return;
        }
        let mut keys = TicketKeys::clone(&self.current);
        let mut masters = Vec::with_capacity(given.len() + 1);
        masters.extend_from_slice(given);
        // Tickets of the key so far can be opened here until the next change.
        masters.extend(keys.masters.first().filter(|old| !given.contains(old)));
        if keys.masters.first() != Some(sealing) {
            self.since = Instant::now();
            self.inherited_age = Duration::ZERO;
        }
        keys.epoch += 1;
        keys.masters.zeroize();
        keys.masters = masters;
        self.current = Arc::new(keys);
    }

    /// Changes how long tickets made from now on are good for (a reload).
    pub fn set_lifetime(&mut self, lifetime: Duration) {
        let lifetime = whole_seconds(lifetime);
        if lifetime != self.current.lifetime {
            let mut keys = TicketKeys::clone(&self.current);
            keys.lifetime = lifetime;
            self.current = Arc::new(keys);
        }
    }

    /// Time between rotations.
    pub fn period(&self) -> Duration {
        Duration::from_secs(self.current.lifetime.into())
    }

    /// How old the newest key is.
    pub fn age(&self) -> Duration {
        self.inherited_age.saturating_add(self.since.elapsed())
    }

    /// Time until the next rotation.
    pub fn remaining(&self) -> Duration {
        match self.origin {
            Origin::Own => self.period().saturating_sub(self.age()),
            Origin::Fleet => (self.period() * 2).saturating_sub(self.age()),
            Origin::File => NEVER,
        }
    }
}

fn whole_seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

fn fresh(key: &mut [u8; 32]) -> anyhow::Result<()> {
    SystemRandom::new().fill(key).map_err(|_| anyhow::anyhow!("the system provides no random numbers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_previous_key_is_kept_and_the_one_before_is_not() {
        let mut ring = TicketRing::new(Duration::from_secs(3600)).unwrap();
        let first = ring.current();
        ring.rotate().unwrap();
        let second = ring.current();
        ring.rotate().unwrap();
        let third = ring.current();
        assert_eq!((first.epoch, second.epoch, third.epoch), (1, 2, 3));
        assert_eq!(second.masters.len(), 2);
        assert_eq!(second.masters[1], first.masters[0]);
        assert_eq!(third.masters, [third.masters[0], second.masters[0]]);
        assert_ne!(third.masters[0], third.masters[1]);
        assert_eq!(ring.period(), Duration::from_secs(3600));
    }

    #[test]
    fn keys_of_a_file_are_never_replaced_and_those_of_a_fleet_when_nobody_does() {
        let mut ring = TicketRing::new(Duration::from_secs(3600)).unwrap();
        let (own, reset) = (ring.current().masters[0], ring.current().reset);
        ring.take_from_file(&[[1; 32], [2; 32]]);
        assert_eq!((&ring.current().masters, ring.current().reset), (&vec![[1; 32], [2; 32], own], reset));
        assert!(ring.remaining() > Duration::from_secs(365 * 86_400));
        let (epoch, before) = (ring.current().epoch, ring.current());
        ring.take_from_file(&[[1; 32], [2; 32]]);
        assert!(Arc::ptr_eq(&ring.current(), &before), "nothing has changed");
        ring.take_from_fleet(&[[3; 32], [1; 32]]);
        assert_eq!((&ring.current().masters, ring.current().epoch), (&vec![[3; 32], [1; 32]], epoch + 1));
        let left = ring.remaining();
        assert!(left > Duration::from_secs(7000) && left <= Duration::from_secs(7200), "{left:?}");
        ring.rotate().unwrap();
        assert_eq!(ring.current().masters[1], [3; 32]);
        assert!(ring.remaining() <= Duration::from_secs(3600), "its own key is replaced in time");
        ring.take_from_file(&[[5; 32]]);
        ring.make_own().unwrap();
        assert_ne!(ring.current().masters[0], [5; 32]);
        assert_eq!(ring.current().masters[1], [5; 32]);
        ring.take_from_file(&[]);
        assert_eq!(ring.current().masters[1], [5; 32], "no keys change nothing");
    }

    #[test]
    fn keys_that_are_taken_over_keep_their_age() {
        let mut ring = TicketRing::new(Duration::from_secs(3600)).unwrap();
        let own_reset = ring.current().reset;
        ring.inherit(&Tickets { epoch: 7, masters: vec![[1; 32], [2; 32]], reset: None, age: 3000 });
        assert_eq!((ring.current().epoch, ring.current().masters.len(), ring.current().reset), (7, 2, own_reset));
        assert!(ring.age() >= Duration::from_secs(3000));
        assert!(ring.remaining() <= Duration::from_secs(600));
        ring.set_lifetime(Duration::from_secs(1000));
        assert_eq!(ring.remaining(), Duration::ZERO);
        ring.rotate().unwrap();
        assert!(ring.age() < Duration::from_secs(1000));
        assert_eq!(ring.current().masters[1], [1; 32]);
    }
}
