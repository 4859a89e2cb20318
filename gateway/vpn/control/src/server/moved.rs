//! Going on elsewhere, and going on with what another process has left.

use super::super::handover::{Fixed, HandoverState, SavedServer};
use super::super::peer::{Peer, Stage};
use super::{Outlet, Server, Word, connection};
use crate::auth;
use anyhow::{Context as _, Result};
use sealane_log as log;
use sealane_ovpn::data::KeySlot;
use sealane_tunnel::plane::{Command, Transport};
use std::time::Instant;

impl Server {
    /// Whether some handshake or renewal would be lost by leaving now.
    pub(super) fn is_busy(&self) -> bool {
        self.peers.values().any(|p| p.stage != Stage::Connected || p.renewal.is_some() || !p.session.is_flushed())
    }

    /// Stops the plane and saves its state. A client whose handshake is not complete begins again at the successor.
    pub(super) fn leave(mut self, outlet: &mut Outlet) -> Result<HandoverState> {
        let plane = self.plane.hand_over().context("the data plane cannot be handed over")?;
        // The last messages of the lanes still count. A reply that they cause is lost here, and the successor repeats it.
        let now = Instant::now();
        while let Some(word) = outlet.try_next() {
            match word {
                Word::Packet(packet) => self.packet(packet, now),
                Word::Event(event) => self.event(event, now),
            }
        }
        self.settle();
        self.write_addresses(now, true);
        let mut peers = Vec::new();
        for (key, peer) in self.peers.drain() {
            let name = peer.name.clone();
            match peer.save(now) {
                Ok(Some(saved)) => peers.push(saved),
                Ok(None) => {}
                Err(e) => {
                    log::warn!(connection = connection(key); "tunnel: cannot hand over the session of {name} to the \
                                                              new process, so this client must reconnect: {e:#}")
                }
            }
        }
        let control = serde_json::to_vec(&SavedServer {
            fixed: Fixed::of(&self.settings),
            cookie: self.cookie,
            tokens: auth::process_secret(),
            next_id: self.next_id,
            login_terms: self.settings.oidc.as_ref().map(|oidc| oidc.terms()),
            notes: self.notes,
            peers,
        })?;
        Ok(HandoverState { control, plane })
    }

    /// Goes on with clients that the plane has already.
    pub(super) fn inherit(&mut self, saved: SavedServer, now: Instant) {
        self.next_id = saved.next_id;
        let oidc = self.settings.oidc.as_ref();
        let same_logins = oidc.is_some_and(|oidc| saved.login_terms.is_some_and(|terms| terms == oidc.terms()));
        for saved in saved.peers {
            let name = saved.name.clone();
            let peer = match Peer::restore(saved, &self.settings, now) {
                Ok(peer) => peer,
                Err(e) => {
                    log::warn!(
                        "tunnel: cannot take over the session of {name} from the old process, so this client must \
                         reconnect: {e:#}"
                    );
                    continue;
                }
            };
            let (Some(id), Some(session)) = (peer.id, peer.session.remote()) else { continue };
            // The plane may have dropped it in the last moment.
            if self.plane.counters(id).is_none() {
                continue;
            }
            let key = self.next_key;
            self.next_key += 1;
            self.pool.hold(&peer.name, peer.addresses);
            if let Some(user) = peer.user.as_ref().filter(|_| same_logins) {
                self.remembered.remember(user, peer.directory_groups.clone());
            }
            self.by_session.insert((peer.remote, session), key);
            self.by_id.insert(id, key);
            if peer.transport == Transport::Tcp {
                self.by_socket.insert(peer.socket, key);
            }
            // A renewal that was not finished: its key is nobody's.
            if peer.lame_duck.is_none() {
                let _ = self.plane.command(Command::KeyDel(id, KeySlot::Secondary));
            }
            self.restless.insert(key);
            self.peers.insert(key, peer);
            self.say("take_over", key, &[]);
            self.tell_established(key);
        }
        // Peers of the plane that are nobody's are dropped when it answers.
        let _ = self.plane.command(Command::CountersGet(None));
        self.follow_settings();
        let tcp = self.peers.values().filter(|p| p.transport == Transport::Tcp).count();
        log::info!("tunnel: {} clients taken over, {tcp} of them on TCP", self.peers.len());
    }
}
