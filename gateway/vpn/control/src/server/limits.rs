//! The addresses of clients, and the limits that the settings put on groups, names and time.

use super::super::addresses_file;
use super::super::peer::{Peer, Stage};
use super::super::pool::Pool;
use super::super::settings::Settings;
use super::admit::Denied;
use super::{Key, Server};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Instant;

/// Addresses that are set aside for clients of the configuration.
fn reserved(settings: &Settings) -> Vec<(Option<Ipv4Addr>, Option<Ipv6Addr>)> {
    let mut reserved: Vec<_> = settings.clients.values().map(|c| (c.address4, c.address6)).collect();
    reserved.sort_unstable();
    reserved
}

fn pool(settings: &Settings) -> Pool {
    Pool::new(settings.network4, settings.network6, reserved(settings).into_iter(), &settings.groups)
        .limited(settings.pool4, settings.pool6)
}

/// The pool at the start, with the addresses that names had before.
pub(super) fn first_pool(settings: &Settings) -> Pool {
    let mut pool = pool(settings);
    if let Some(path) = &settings.addresses_file {
        addresses_file::read(path, &mut pool);
    }
    pool
}

/// Whether the pools of two configurations differ.
fn has_other_addresses(settings: &Settings, before: &Settings) -> bool {
    let ranges = |settings: &Settings| -> Vec<_> {
        settings.groups.iter().map(|g| (g.name.clone(), g.addresses4, g.addresses6)).collect()
    };
    let pools = |settings: &Settings| (settings.pool4, settings.pool6);
    ranges(settings) != ranges(before) || reserved(settings) != reserved(before) || pools(settings) != pools(before)
}

impl Server {
    /// New settings may give groups other addresses. Connected clients keep theirs.
    pub(super) fn renew_pool(&mut self, before: &Settings) {
        if !has_other_addresses(&self.settings, before) {
            return;
        }
        let before = std::mem::replace(&mut self.pool, pool(&self.settings));
        self.pool.remember_all(before);
        for peer in self.peers.values().filter(|p| p.id.is_some()) {
            self.pool.hold(&peer.name, peer.addresses);
        }
    }

    /// Whether the client's group and its name may have one connection more.
    pub(super) fn has_room(&self, key: Key) -> Result<(), Denied> {
        let Some(peer) = self.peers.get(&key) else { return Ok(()) };
        let duplicates = self.settings.duplicate_names;
        let group = self.settings.groups.iter().find(|group| peer.group.as_ref() == Some(&group.name));
        let count = |meant: &dyn Fn(&Peer) -> bool| {
            self.peers.iter().filter(|(k, p)| **k != key && p.id.is_some() && meant(p)).count()
        };
        // Without `duplicate_names`, the new connection of a name replaces the old one.
        let of_group = |p: &Peer| p.group == peer.group && (duplicates || p.name != peer.name);
        if group.and_then(|group| group.max_clients).is_some_and(|most| count(&of_group) >= most) {
            return Err(Denied::for_now("the group is full"));
        }
        let most = group.and_then(|group| group.max_sessions).or(self.settings.max_sessions);
        if duplicates && most.is_some_and(|most| count(&|p| p.name == peer.name) >= most) {
            return Err(Denied::for_now("too many connections with this name"));
        }
        Ok(())
    }

    /// Disconnects clients that have sent and received too little for too long.
    pub(super) fn drop_inactive(&mut self, now: Instant) {
        let (Some(limit), least) = (self.settings.inactive, self.settings.inactive_bytes) else { return };
        let mut inactive = Vec::new();
        for (&key, peer) in self.peers.iter_mut().filter(|(_, p)| p.stage == Stage::Connected) {
            let Some(counters) = peer.id.and_then(|id| self.plane.counters(id)) else { continue };
            let total = counters.rx_bytes.saturating_add(counters.tx_bytes);
            let (since, before) = peer.activity;
            if total.saturating_sub(before) >= least {
                peer.activity = (now, total);
            } else if now.saturating_duration_since(since) >= limit {
                inactive.push(key);
            }
        }
        for key in inactive {
            self.counts.inactive += 1;
            self.send_off(key, b"HALT,inactive for too long\0", "inactive for too long", now);
        }
    }

    /// Ends sessions that have lasted for `session_timeout`. Without `[P]`, a client forgets its token and its password.
    pub(super) fn end_long_sessions(&mut self, now: Instant) {
        let Some(limit) = self.settings.session_timeout else { return };
        let is_over =
            |peer: &Peer| peer.stage == Stage::Connected && now.saturating_duration_since(peer.connected_at) >= limit;
        let over: Vec<Key> = self.peers.iter().filter(|(_, peer)| is_over(peer)).map(|(key, _)| *key).collect();
        for key in over {
            self.counts.session_timeout += 1;
            self.send_off(key, b"RESTART,session timeout\0", "the session has lasted for session_timeout", now);
        }
    }

    /// Writes the file of names and addresses, where there is one.
    pub(super) fn write_addresses(&mut self, now: Instant, is_end: bool) {
        if let Some(path) = &self.settings.addresses_file {
            self.addresses_file.write(path, &self.pool, now, is_end);
        }
    }
}
