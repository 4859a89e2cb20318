//! What the plane says, and what follows of it: installed keys, renewals, moves.

use super::super::peer::{Renewal, Stage};
use super::{About, Key, Server, connection, inside, unix};
use sealane_log as log;
use sealane_ovpn::data::{PeerId, magic};
use sealane_ovpn::peer_info::proto;
use sealane_ovpn::push;
use sealane_tunnel::plane::{Command, Event, Transport};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A client that asks for its configuration again is given it again after so long, as OpenVPN's server does.
const PUSH_AGAIN: Duration = Duration::from_secs(30);

impl Server {
    /// What the plane says.
    pub(super) fn event(&mut self, event: Event, now: Instant) {
        match event {
            Event::KeyInstalled { peer: id, key_id, .. } => {
                let Some(&key) = self.by_id.get(&id) else { return };
                self.installed(key, key_id, now);
            }
            Event::KeyExhausted { peer: id, key_id } => {
                if let Some(key) = self.by_id.get(&id).copied()
                    && self.peers.get(&key).is_some_and(|p| p.key_id == key_id)
                {
                    self.renegotiate(key, now);
                }
            }
            Event::PeerExpired(id) => {
                if let Some(&key) = self.by_id.get(&id) {
                    self.counts.expired += 1;
                    self.forget(key, "no packet has arrived from the client for too long");
                }
            }
            Event::PeerGone { peer: id, .. } => {
                if let Some(&key) = self.by_id.get(&id) {
                    if let Some(peer) = self.peers.get_mut(&key) {
                        peer.id = None;
                    }
                    self.by_id.remove(&id);
                    self.forget(key, "the data plane has removed the client");
                }
            }
            Event::FloatTo { peer: id, remote, local } => self.float(id, remote, local, now),
            Event::InbandIn(id, message) => {
                if magic::payload(&message) == magic::Payload::Exit
                    && let Some(&key) = self.by_id.get(&id)
                {
                    self.forget(key, "the client has disconnected");
                }
            }
            Event::SocketClosed(socket) => {
                if let Some(key) = self.by_socket.remove(&socket) {
                    self.forget(key, "the client's connection has ended");
                }
            }
            Event::Failed { peer: id, why } => {
                log::warn!("tunnel: the data plane could not serve peer {}: {why}", id.get());
                if let Some(&key) = self.by_id.get(&id) {
                    self.forget(key, "the data plane could not serve the client");
                }
            }
            Event::Note(note) => log::warn!("tunnel: {note}"),
            // Asked for after a hand-over: a peer whose client did not come along.
            Event::Counters { peer: id, .. } if !self.by_id.contains_key(&id) => self.drop_from_plane(id),
            _ => {}
        }
    }

    /// A key can be used: now the client may know.
    fn installed(&mut self, key: Key, key_id: u8, now: Instant) {
        self.restless.insert(key);
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let first = key_id == 0 && peer.stage == Stage::Installing;
        let renewal = peer.renewal.as_mut().filter(|r| r.key_id == key_id && !r.installed);
        if !first && renewal.is_none() {
            return;
        }
        if let Some(renewal) = renewal {
            renewal.installed = true;
        }
        if let Err(e) = peer.session.answer(key_id) {
            log::warn!(connection = connection(key); "tunnel: {}: {e:#}", peer.remote);
        }
        if !first {
            let token = peer.token_options();
            if let (false, Ok(parts)) = (token.is_empty(), push::replies(&token)) {
                parts.iter().for_each(|p| drop(peer.session.send_command(p)));
            }
            // Where somebody was asked, the client may have had our message for long.
            if peer.session.is_confirmed(key_id) {
                self.confirmed(key, key_id, now);
            }
            return;
        }
        peer.stage = Stage::Connected;
        self.handshakes.leave(key);
        (peer.key_since, peer.key_made, peer.connected_at, peer.keys) = (now, now, now, 1);
        if peer.flags.dyn_tls_crypt
            && let Err(e) = peer.session.use_dynamic_wrap(unix() as u32)
        {
            log::warn!(connection = connection(key); "tunnel: {}: {e:#}", peer.remote);
        }
        self.counts.connected += 1;
        let peer = &self.peers[&key];
        let addresses: Vec<String> = inside(peer.addresses);
        log::info!(
            connection = connection(key); "tunnel: {} is connected from {} as {} ({}, {}, {}{}{})",
            peer.name,
            peer.remote,
            addresses.join(" and "),
            peer.cipher.name(),
            peer.session.tls_described(0),
            if peer.info.version.is_empty() { "an old client" } else { &peer.info.version },
            if peer.flags.aead_epoch { ", epoch format" } else { "" },
            if peer.info.has(proto::DATA_V2) { "" } else { ", without peer ids" },
        );
        let more = [
            ("addresses", addresses.into()),
            ("user", peer.user.clone().into()),
            ("transport", if peer.transport == Transport::Tcp { "tcp" } else { "udp" }.into()),
            ("cipher", peer.cipher.name().into()),
            ("tls", peer.session.tls_described(0).into()),
            ("version", peer.info.version.clone().into()),
            ("epoch", peer.flags.aead_epoch.into()),
            ("group", peer.group.clone().into()),
        ];
        let push = peer.push_requested;
        self.say("connect", key, &more);
        self.tell_established(key);
        if push {
            self.push(key);
        }
    }

    /// Gives a client its configuration.
    pub(super) fn push(&mut self, key: Key) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let now = Instant::now();
        let again = peer.pushed_at.is_none_or(|at| now.saturating_duration_since(at) >= PUSH_AGAIN);
        if peer.stage != Stage::Connected || !again {
            return;
        }
        match push::replies(&peer.push_options(&self.settings)) {
            Ok(parts) => {
                for part in parts {
                    if let Err(e) = peer.session.send_command(&part) {
                        log::warn!(connection = connection(key); "tunnel: {}: {e:#}", peer.remote);
                    }
                }
                (peer.pushed_at, peer.configured) = (Some(now), true);
            }
            Err(option) => {
                log::warn!(connection = connection(key); "tunnel: {}: the option cannot be pushed: {option}", peer.name)
            }
        }
        self.restless.insert(key);
    }

    /// The client has our message, and so the new key: it is used from now on.
    pub(super) fn confirmed(&mut self, key: Key, key_id: u8, now: Instant) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let (Some(id), Some(renewal)) = (peer.id, peer.renewal) else { return };
        if renewal.key_id != key_id || !renewal.installed {
            return;
        }
        if let Err(e) = self.plane.command(Command::KeySwap(id)) {
            return log::warn!(connection = connection(key); "tunnel: {}: cannot use the new key: {e}", peer.name);
        }
        peer.session.retire_before(key_id);
        (peer.renewal, peer.key_id, peer.key_since, peer.key_made) = (None, key_id, now, now);
        peer.keys += 1;
        peer.lame_duck = Some(now + self.settings.transition);
        let keys = peer.keys;
        self.counts.renewed += 1;
        self.say("renew", key, &[("keys", keys.into())]);
    }

    pub(super) fn renegotiate(&mut self, key: Key, now: Instant) {
        let Some(peer) = self.peers.get_mut(&key).filter(|p| p.stage == Stage::Connected) else { return };
        if let Some(key_id) = peer.session.renegotiate() {
            let deadline = now + self.settings.handshake;
            peer.renewal = Some(Renewal { key_id, deadline, installed: false });
        }
        self.restless.insert(key);
    }

    fn float(&mut self, id: PeerId, remote: SocketAddr, local: Option<std::net::IpAddr>, now: Instant) {
        let Some(&key) = self.by_id.get(&id) else { return };
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let Some(session) = peer.session.remote() else { return };
        self.by_session.remove(&(peer.remote, session));
        let (name, before) = (peer.name.clone(), peer.remote.to_string());
        (peer.remote, peer.local) = (remote, local);
        self.by_session.insert((remote, session), key);
        self.counts.floated += 1;
        if self.may_say(About::Moved, now) {
            log::info!(connection = connection(key); "tunnel: {name} has moved from {before} to {remote}");
            self.say("move", key, &[("before", before.into())]);
        }
    }
}
