//! The rotating secret behind session tickets.

use crate::handover::Tickets;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use sealane_tls::policy::TicketKeys;
use std::sync::Arc;
use std::time::Duration;

/// Makes each epoch's key. Rotated once per ticket lifetime, with the previous key kept, every ticket can be opened
/// for as long as it says that it is good.
#[derive(Debug)]
pub struct TicketRing {
    current: Arc<TicketKeys>,
}

impl TicketRing {
    /// A ring with one fresh key.
    ///
    /// Errors: the system's source of randomness fails.
    pub fn new(lifetime: Duration) -> anyhow::Result<Self> {
        let lifetime = u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX);
        Ok(Self { current: Arc::new(TicketKeys { epoch: 1, masters: vec![fresh()?], lifetime, reset: fresh()? }) })
    }

    /// Goes on with a predecessor's keys, so that its clients resume here.
    pub fn inherit(&mut self, keys: Tickets) {
        let Tickets { epoch, masters, reset } = keys;
        let TicketKeys { lifetime, reset: own, .. } = *self.current;
        self.current = Arc::new(TicketKeys { epoch, masters, lifetime, reset: reset.unwrap_or(own) });
    }

    /// What to publish.
    pub fn current(&self) -> Arc<TicketKeys> {
        Arc::clone(&self.current)
    }

    /// Starts an epoch; publish [`TicketRing::current`] again. To be called every [`TicketRing::period`].
    pub fn rotate(&mut self) -> anyhow::Result<()> {
        let old = &self.current;
        let masters = std::iter::once(fresh()?).chain(old.masters.first().copied()).collect();
        self.current = Arc::new(TicketKeys { epoch: old.epoch + 1, masters, ..TicketKeys::clone(old) });
        Ok(())
    }

    /// Changes how long tickets made from now on are good for (a reload).
    pub fn set_lifetime(&mut self, lifetime: Duration) {
        let lifetime = u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX);
        if lifetime != self.current.lifetime {
            self.current = Arc::new(TicketKeys { lifetime, ..TicketKeys::clone(&self.current) });
        }
    }

    /// Time between rotations.
    pub fn period(&self) -> Duration {
        Duration::from_secs(self.current.lifetime.into())
    }
}

fn fresh() -> anyhow::Result<[u8; 32]> {
    let mut key = [0; 32];
    SystemRandom::new().fill(&mut key).map_err(|_| anyhow::anyhow!("the system gives no random numbers"))?;
    Ok(key)
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
}
