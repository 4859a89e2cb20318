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
}

impl TicketRing {
    /// A ring with one fresh key.
    ///
    /// Errors: the system's source of randomness fails.
    pub fn new(lifetime: Duration) -> anyhow::Result<Self> {
        let mut keys =
            TicketKeys { epoch: 1, masters: vec![[0; 32]], lifetime: whole_seconds(lifetime), reset: [0; 32] };
        keys.masters.iter_mut().try_for_each(fresh)?;
        fresh(&mut keys.reset)?;
        Ok(Self { current: Arc::new(keys), since: Instant::now(), inherited_age: Duration::ZERO })
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
        Ok(())
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
        self.period().saturating_sub(self.age())
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
