//! A peer, as its lane keeps it.

use super::bucket::Buckets;
use super::counters::PeerStats;
use super::outbox::Filling;
use crate::plane::{KeyNew, PeerNew, PeerSet};
use sealane_lane::Millis;
use sealane_ovpn::data::{Header, KeySlots, Opener, Sealer};
use std::net::IpAddr;
use std::sync::Arc;

/// Both directions of a key.
pub(super) struct Key {
    /// As it was installed: for a hand-over.
    pub new: Box<KeyNew>,
    pub sealer: Sealer,
    pub opener: Opener,
    /// [`crate::plane::Event::KeyExhausted`] has been said.
    pub told: bool,
}

impl Key {
    pub(super) fn new(new: Box<KeyNew>, peer: &Peer) -> Self {
        let header = Header { key_id: new.key_id, peer_id: peer.about.sent_peer };
        Self {
            sealer: Sealer::new(new.cipher, new.format, header, &new.keys.encrypt),
            opener: Opener::new(new.cipher, new.format, &new.keys.decrypt),
            told: false,
            new,
        }
    }
}

/// One peer: owned by one lane, so nothing of it is locked.
pub(super) struct Peer {
    /// What control said of it; address and VPN addresses follow what has happened since.
    pub about: PeerNew,
    pub keys: KeySlots<Key>,
    pub stats: Arc<PeerStats>,
    /// What is left of its rates, if it has any.
    pub buckets: Option<Box<Buckets>>,
    /// Which outgoing message it is filling.
    pub filling: Filling,
    /// When something authentic came last, or when it was made.
    pub last_in: Millis,
    /// When something was sent last.
    pub last_out: Millis,
    /// [`crate::plane::Event::PeerExpired`] has been said.
    pub expired: bool,
    /// Tells a timer of this peer from one of its predecessor with the same id.
    pub generation: u32,
}

impl Peer {
    pub(super) fn new(about: PeerNew, stats: Arc<PeerStats>, now: Millis, generation: u32) -> Self {
        Self {
            buckets: Buckets::new(about.rates, now),
            about,
            keys: KeySlots::default(),
            stats,
            filling: Filling::default(),
            last_in: now,
            last_out: now,
            expired: false,
            generation,
        }
    }

    pub(super) fn set(&mut self, set: PeerSet, now: Millis) {
        let about = &mut self.about;
        about.remote = set.remote.unwrap_or(about.remote);
        about.local = set.local.or(about.local);
        about.vpn_ip4 = set.vpn_ip4.or(about.vpn_ip4);
        about.vpn_ip6 = set.vpn_ip6.or(about.vpn_ip6);
        about.mtu = set.mtu.unwrap_or(about.mtu);
        about.max_segment = set.max_segment.unwrap_or(about.max_segment);
        about.keepalive = set.keepalive.unwrap_or(about.keepalive);
        if let Some(routes) = set.routes {
            about.routes = routes;
        }
        if let Some(filter) = set.filter {
            about.filter = filter;
        }
        // Rates that stay go on with what is left of them.
        if let Some(rates) = set.rates.filter(|rates| *rates != about.rates) {
            about.rates = rates;
            self.buckets = Buckets::new(rates, now);
        }
    }

    /// Whether an address is its own VPN address. Networks behind it are found in the routes.
    #[inline]
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(a) => self.about.vpn_ip4 == Some(a),
            IpAddr::V6(a) => self.about.vpn_ip6 == Some(a),
        }
    }

    /// When to look at it again for its keep-alive; `None` when it has none.
    pub(super) fn deadline(&self) -> Option<Millis> {
        let seconds = |s: u16| u64::from(s) * 1000;
        let ping = (self.about.keepalive.ping > 0).then(|| self.last_out + seconds(self.about.keepalive.ping));
        let expiry = (self.about.keepalive.ping_restart > 0 && !self.expired)
            .then(|| self.last_in + seconds(self.about.keepalive.ping_restart));
        match (ping, expiry) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}
