//! Who comes in: the decision's consequences, a first key, the next ones, and the way out of those who may not stay.

use super::super::auth::{Authenticator, Claim, NOT_NOW, Verdict as AuthVerdict};
use super::super::peer::Stage;
use super::super::pool::Addresses;
use super::super::settings::Settings;
use super::{About, FAREWELL, Key, Server, connection, unix};
use sealane_log as log;
use sealane_ovpn::data::{KeySlot as Slot, PeerId};
use sealane_ovpn::peer_info::{PeerInfo, proto};
use sealane_ovpn::share::Network;
use sealane_ovpn::update;
use sealane_tunnel::plane::{Command, Feature, Keepalive, KeyNew, PeerNew, PeerSet, lane_of};
use std::collections::HashMap;
use std::time::Instant;

/// What a client hears whose certificate is revoked.
const REVOKED: &str = "the certificate is revoked";
/// What a client hears whose user is another one than its certificate is for.
const NOT_BOUND: &str = "this user may not use this certificate";
/// A name that would begin a line of a log, or of a protocol.
pub(super) const CONTROL_CHARACTER: &str = "the user name contains a control character";

/// Why a client that has proved who it is does not come in.
pub(super) struct Denied {
    reason: String,
    /// It may try again: the reason is ours, and may pass.
    temporary: bool,
}

impl Denied {
    pub(super) fn for_now(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), temporary: true }
    }
}

impl From<String> for Denied {
    fn from(reason: String) -> Self {
        Self { reason, temporary: false }
    }
}

impl From<&str> for Denied {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

impl Server {
    /// Somebody has decided about a client.
    pub(super) fn decided(&mut self, key: Key, key_id: u8, verdict: AuthVerdict, now: Instant) {
        if !self.awaits(key, key_id) {
            return;
        }
        self.restless.insert(key);
        let Some(peer) = self.peers.get(&key) else { return };
        // A token says nothing about a password.
        let is_password = |claim: &Claim| !self.settings.auth.is_token(claim);
        let is_connected = peer.stage == Stage::Connected;
        let guess = peer
            .claim(key_id)
            .filter(is_password)
            .map(|c| (Authenticator::guessed(&c.username), Network::of(c.remote.ip())));
        match verdict {
            AuthVerdict::Accept { user, groups } => {
                self.joins(key, groups);
                if let (Some(_), Some((name, network))) = (&user, guess) {
                    self.guesses.right(&name, network, now);
                }
                match (self.settings.oidc.is_some(), self.settings.asks()) {
                    (true, _) => self.log_in(key, key_id, now),
                    (false, true) => self.ask(key, key_id, user, now),
                    (false, false) => self.conclude(key, key_id, user, now),
                }
            }
            AuthVerdict::Token { user, .. } if self.settings.oidc.is_some() => self.with_login(key, key_id, user, now),
            AuthVerdict::Token { user, groups: Some(groups) } => {
                self.joins(key, groups);
                self.conclude(key, key_id, Some(user), now);
            }
            // The groups of a connected client are known, and it has a token so that nobody need be asked.
            AuthVerdict::Token { user, groups: None } if is_connected => self.conclude(key, key_id, Some(user), now),
            AuthVerdict::Token { groups: None, .. } => {
                self.counts.unchecked += 1;
                self.refuse(key, key_id, true, NOT_NOW, now);
            }
            AuthVerdict::Wrong => {
                if let Some((name, network)) = guess {
                    self.guesses.wrong(&name, network, now);
                }
                self.refuse(key, key_id, false, "wrong user name or password", now);
            }
            AuthVerdict::Refuse(reason) => self.refuse(key, key_id, false, reason, now),
            AuthVerdict::Later(reason) => self.refuse(key, key_id, true, reason, now),
        }
    }

    /// The directory, or the provider, has said in which groups a client's user is.
    pub(super) fn joins(&mut self, key: Key, groups: Vec<String>) {
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.directory_groups = groups;
        }
    }

    /// Whether a decision about an exchange is waited for.
    pub(super) fn awaits(&self, key: Key, key_id: u8) -> bool {
        self.peers.get(&key).is_some_and(|peer| {
            let renewal = peer.renewal.is_some_and(|r| r.key_id == key_id && !r.installed);
            renewal && peer.stage == Stage::Connected || key_id == 0 && peer.stage == Stage::Deciding
        })
    }

    /// A client may come in, or stay, as far as those who were asked are concerned.
    pub(super) fn conclude(&mut self, key: Key, key_id: u8, user: Option<String>, now: Instant) {
        let is_plain = |name: &String| !name.chars().any(char::is_control);
        let result = match self.peers.get(&key).map(|peer| peer.stage) {
            None => return,
            Some(_) if !user.as_ref().is_none_or(is_plain) => Err(Denied::from(CONTROL_CHARACTER)),
            Some(Stage::Connected) => self.renew(key, key_id, user),
            Some(_) => self.admit(key, user, now),
        };
        if let Err(Denied { reason, temporary }) = result {
            self.refuse(key, key_id, temporary, &reason, now);
        }
    }

    /// Tells a client that it may not come in. It hears of it inside TLS only after our message.
    pub(super) fn refuse(&mut self, key: Key, key_id: u8, temporary: bool, reason: &str, now: Instant) {
        self.turn_away(key, key_id, temporary, reason, Some(reason), now);
    }

    /// Refuses a client. `said`: what it is told; `None`: only that it may not come in.
    pub(super) fn turn_away(
        &mut self,
        key: Key,
        key_id: u8,
        temporary: bool,
        reason: &str,
        said: Option<&str>,
        now: Instant,
    ) {
        self.counts.unauthorised += 1;
        if self.may_say(About::Refused, now) {
            log::warn!(connection = connection(key); "tunnel: {} is refused: {reason}", self.shown(key));
            let claim = self.peers.get(&key).and_then(|p| p.claim(key_id));
            let more = [
                ("reason", reason.into()),
                ("temporary", temporary.into()),
                ("certificate", claim.as_ref().and_then(|c| c.common_name.clone()).into()),
                ("user", claim.map(|c| c.username).filter(|u| !u.is_empty()).into()),
            ];
            self.say("refused", key, &more);
        }
        let Some(peer) = self.peers.get_mut(&key) else { return };
        // Who is refused has not been agreed with yet: what it knows is in its message.
        let message = peer.session.message(key_id).map(|m| PeerInfo::parse(&m.peer_info));
        let has_temporary =
            [message.as_ref(), Some(&peer.info)].into_iter().flatten().any(|i| i.has(proto::AUTH_FAIL_TEMP));
        let text = match said {
            Some(said) if temporary && has_temporary => format!("AUTH_FAILED,TEMP:{said}\0"),
            Some(said) => format!("AUTH_FAILED,{said}\0"),
            None => "AUTH_FAILED\0".to_owned(),
        };
        peer.pending = None;
        let said = peer.session.answer(key_id).and_then(|()| peer.session.send_command(text.as_bytes()));
        if let Err(e) = said {
            log::warn!(connection = connection(key); "tunnel: {}: {e:#}", peer.remote);
        }
        self.dismiss(key, now + FAREWELL, now);
    }

    /// Disconnects a connected client, which is told a command of the control channel.
    pub(super) fn send_off(&mut self, key: Key, farewell: &[u8], why: &str, now: Instant) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        if let Err(e) = peer.session.send_command(farewell) {
            log::debug!(connection = connection(key); "tunnel: {}: {e:#}", peer.remote);
        }
        let peer = &self.peers[&key];
        self.say_gone(key, peer, why);
        self.dismiss(key, now + FAREWELL, now);
    }

    /// Nothing more of a client passes. It goes at this time; until then it may hear why.
    pub(super) fn dismiss(&mut self, key: Key, at: Instant, now: Instant) {
        // Over TCP the plane closes the connection with its peer, so what there is to say leaves before.
        self.transmit(key, now);
        self.tell_gone(key);
        let Some(peer) = self.peers.get_mut(&key) else { return };
        peer.stage = Stage::Leaving(at);
        peer.login = None;
        if let Some(id) = peer.id.take() {
            let addresses = std::mem::take(&mut peer.addresses);
            self.by_id.remove(&id);
            self.drop_from_plane(id);
            self.pool.give_back(addresses);
        }
        self.restless.insert(key);
    }

    pub(super) fn drop_from_plane(&self, id: PeerId) {
        let (received, sent) = self.past_bytes.get();
        let last = self.plane.counters(id).unwrap_or_default();
        self.past_bytes.set((received + last.rx_bytes, sent + last.tx_bytes));
        if let Err(e) = self.plane.command(Command::PeerDel(id)) {
            log::warn!("tunnel: cannot remove peer {} from the data plane: {e}", id.get());
        }
    }

    /// A new client: name, addresses, cipher, key.
    fn admit(&mut self, key: Key, user: Option<String>, now: Instant) -> Result<(), Denied> {
        let connected = self.peers.values().filter(|p| p.id.is_some()).count();
        let Some(peer) = self.peers.get_mut(&key) else { return Ok(()) };
        let claim = peer.claim(0).ok_or("the key exchange is not complete")?;
        let (common_name, user_name) = (claim.common_name.as_deref(), user.as_deref());
        let name = self.settings.name_of(common_name, user_name);
        let name = name.ok_or("neither a certificate with a common name nor a user name")?;
        if !self.settings.may_use(common_name, user_name) {
            return Err(NOT_BOUND.into());
        }
        // The list may be newer than the key exchange.
        peer.remember_certificate(0);
        if peer.is_revoked(&self.settings) {
            return Err(REVOKED.into());
        }
        peer.agree(&self.settings)?;
        let client = self.settings.clients.get(&name);
        if client.is_none() && self.settings.known_clients_only {
            return Err("this server does not know the client".into());
        }
        peer.settings = client.cloned().unwrap_or_default();
        if peer.settings.disabled {
            return Err("disabled".into());
        }
        if connected >= self.settings.max_clients {
            return Err(Denied::for_now("the server is full"));
        }
        let group = self.settings.group_of(&peer.member(user_name));
        peer.filter = Some(self.settings.filter_of(&name, group));
        peer.rates = Some(self.settings.rates_of(&name, group));
        peer.group = group.map(|group| group.name.clone());
        peer.token = user_name.and_then(|user| self.settings.auth.token_after(&claim, user, unix()));
        (peer.name, peer.user) = (name.clone(), user);
        peer.pending = None;
        self.has_room(key)?;
        // The same name again: the newest stands, as the old one has mostly lost its network.
        if !self.settings.duplicate_names {
            let same: Vec<Key> = self
                .peers
                .iter()
                .filter(|(k, p)| **k != key && p.id.is_some() && p.name == name)
                .map(|(k, _)| *k)
                .collect();
            same.into_iter().for_each(|other| self.forget(other, "the client has connected again"));
        }
        self.install_first(key, &name, now)
    }

    fn install_first(&mut self, key: Key, name: &str, now: Instant) -> Result<(), Denied> {
        let Some(peer) = self.peers.get(&key) else { return Ok(()) };
        let fixed = Addresses { four: peer.settings.address4, six: peer.settings.address6 };
        let addresses =
            self.pool.take(name, fixed, peer.group.as_deref()).map_err(|_| Denied::for_now("no address is left"))?;
        let result = self.install_with(key, addresses, now);
        if result.is_err() {
            self.pool.give_back(addresses);
        }
        result
    }

    fn install_with(&mut self, key: Key, addresses: Addresses, now: Instant) -> Result<(), Denied> {
        let lanes = self.plane.lanes();
        let Some(peer) = self.peers.get_mut(&key) else { return Ok(()) };
        let id = free_id(&self.by_id, &mut self.next_id, peer.socket.lane(), lanes);
        let id = id.ok_or_else(|| Denied::for_now("no peer ID is left"))?;
        let mut new = PeerNew::new(id, peer.socket, peer.transport, peer.remote);
        if !peer.info.has(proto::DATA_V2) {
            if !self.plane.supports(Feature::Unnumbered) {
                return Err("Data channel negotiation failed (missing DATA_V2)".into());
            }
            new.sent_peer = None;
        }
        new.local = peer.local;
        (new.vpn_ip4, new.vpn_ip6) = (addresses.four, addresses.six);
        new.routes = peer.settings.routes.clone();
        new.filter = peer.filter.clone().flatten();
        new.rates = peer.rates.unwrap_or_default();
        (new.mtu, new.max_segment) = (self.settings.mtu, peer.max_segment(self.settings.mssfix));
        let Keepalive { ping, ping_restart } = self.settings.keepalive;
        // The client gives up first, and connects again: as OpenVPN's `keepalive` does it.
        new.keepalive = Keepalive { ping, ping_restart: ping_restart.saturating_mul(2) };
        let keys = peer.session.keys(0, peer.flags.tls_ekm).map_err(|e| format!("{e:#}"))?;
        let first =
            KeyNew { peer: id, slot: Slot::Primary, key_id: 0, cipher: peer.cipher, format: peer.format(), keys };
        self.plane.command(Command::PeerNew(new)).map_err(|e| Denied::for_now(e.to_string()))?;
        if let Err(e) = self.plane.command(Command::KeyNew(Box::new(first))) {
            self.drop_from_plane(id);
            return Err(Denied::for_now(e.to_string()));
        }
        (peer.id, peer.addresses, peer.stage) = (Some(id), addresses, Stage::Installing);
        peer.deadline = now + self.settings.handshake;
        self.by_id.insert(id, key);
        Ok(())
    }

    /// A known client's next key.
    fn renew(&mut self, key: Key, key_id: u8, user: Option<String>) -> Result<(), Denied> {
        let Some(peer) = self.peers.get_mut(&key) else { return Ok(()) };
        let claim = peer.claim(key_id).ok_or("the key exchange is not complete")?;
        // The client that renews its keys must be the one that connected.
        let (common_name, user_name) = (claim.common_name.as_deref(), user.as_deref());
        let name = self.settings.name_of(common_name, user_name).unwrap_or_default();
        if !self.settings.may_use(common_name, user_name) {
            return Err(NOT_BOUND.into());
        }
        if name != peer.name || user != peer.user {
            return Err("the certificate or user name differs from that of the first key exchange".into());
        }
        peer.remember_certificate(key_id);
        if peer.is_revoked(&self.settings) {
            return Err(REVOKED.into());
        }
        peer.token = user_name.and_then(|user| self.settings.auth.token_after(&claim, user, unix()));
        peer.pending = None;
        let Some(id) = peer.id else { return Ok(()) };
        // The directory may have told of other groups.
        self.follow_group(key).map_err(Denied::for_now)?;
        let Some(peer) = self.peers.get_mut(&key) else { return Ok(()) };
        let keys = peer.session.keys(key_id, peer.flags.tls_ekm).map_err(|e| format!("{e:#}"))?;
        // The old lame duck makes room.
        peer.lame_duck = None;
        let new = KeyNew { peer: id, slot: Slot::Secondary, key_id, cipher: peer.cipher, format: peer.format(), keys };
        self.plane.command(Command::KeyNew(Box::new(new))).map_err(|e| Denied::for_now(e.to_string()))
    }

    /// New settings: for new clients at once, for connected ones with what can change under them.
    pub(super) fn reload(&mut self, mut settings: Settings) {
        settings.tunnel.epoch &= self.plane.supports(Feature::Epoch);
        // What only a start can change: the plane is of this network. A pool of another network has no address of it.
        let networks = (self.settings.network4, self.settings.network6);
        if (settings.network4, settings.network6) != networks {
            (settings.tunnel.pool4, settings.tunnel.pool6) = (self.settings.pool4, self.settings.pool6);
        }
        (settings.tunnel.network4, settings.tunnel.network6) = networks;
        for peer in self.peers.values_mut() {
            peer.session.set_endpoint(settings.tls.clone());
        }
        self.log.reopen(settings.log.as_deref());
        self.log.deliver_to(settings.targets());
        if settings.keep_management(&self.settings) {
            log::warn!("tunnel: a change of the management socket takes effect at the next start or upgrade");
        }
        let before = std::mem::replace(&mut self.settings, settings);
        self.follow_logins(&before);
        self.renew_pool(&before);
        self.follow_settings();
        self.update_options(&before);
    }

    /// The file of revocation lists has changed. The error says why the lists in use stay.
    pub(super) fn take_lists(&mut self, lists: &[Vec<u8>]) -> Result<(), String> {
        let tunnel = self.settings.tunnel.with_lists(lists).map_err(|e| format!("{e:#}"))?;
        let settings = self.settings.with_tunnel(tunnel);
        self.reload(settings);
        Ok(())
    }

    /// Sends changed options to connected clients that support PUSH_UPDATE.
    fn update_options(&mut self, before: &Settings) {
        for (&key, peer) in &mut self.peers {
            if peer.stage != Stage::Connected || !peer.configured || !peer.info.has(proto::PUSH_UPDATE) {
                continue;
            }
            let messages = update::updates(&peer.push_options(before), &peer.push_options(&self.settings));
            let sent = match messages {
                Ok(messages) => messages.iter().try_for_each(|message| peer.session.send_command(message)),
                Err(option) => Err(anyhow::anyhow!("the option cannot be pushed: {option}")),
            };
            if let Err(e) = sent {
                log::warn!(connection = connection(key); "tunnel: {}: cannot change the client's options: {e:#}", peer.name);
            }
            self.restless.insert(key);
        }
    }

    /// Connected clients get what may change under them.
    pub(super) fn follow_settings(&mut self) {
        let gone: Vec<Key> = self
            .peers
            .iter()
            .filter(|(_, p)| p.id.is_some())
            .filter(|(_, p)| {
                let refused = match self.settings.clients.get(&p.name) {
                    Some(client) => client.disabled,
                    None => self.settings.known_clients_only,
                };
                let user = p.user.as_deref();
                refused
                    || user.is_some_and(|user| !self.settings.auth.knows(user))
                    || !self.settings.may_use(p.common_name.as_deref(), user)
            })
            .map(|(k, _)| *k)
            .collect();
        gone.into_iter().for_each(|key| self.forget(key, "the client is no longer allowed"));
        let admitted = self.peers.iter().filter(|(_, p)| p.id.is_some());
        let revoked: Vec<Key> = admitted.filter(|(_, p)| p.is_revoked(&self.settings)).map(|(k, _)| *k).collect();
        let now = Instant::now();
        for key in revoked {
            let farewell = format!("AUTH_FAILED,{REVOKED}\0");
            self.send_off(key, farewell.as_bytes(), "the client's certificate is no longer accepted", now);
        }
        let all: Vec<Key> = self.peers.keys().copied().collect();
        for key in all {
            if let Err(why) = self.follow_group(key) {
                self.forget(key, why);
                continue;
            }
            let Some((peer, id)) = self.peers.get_mut(&key).and_then(|p| p.id.map(|id| (p, id))) else { continue };
            let routes = self.settings.clients.get(&peer.name).map(|c| c.routes.clone()).unwrap_or_default();
            if routes != peer.settings.routes {
                let set = PeerSet { routes: Some(routes.clone()), ..PeerSet::default() };
                match self.plane.command(Command::PeerSet(id, set)) {
                    Ok(()) => peer.settings.routes = routes,
                    Err(e) => {
                        log::warn!(connection = connection(key); "tunnel: {}: cannot change the client's routes: \
                                                                  {e}", peer.name)
                    }
                }
            }
        }
    }

    /// A connected client is of the group that it belongs to now, and has its access list and its rates. The error says why it cannot
    /// stay.
    fn follow_group(&mut self, key: Key) -> Result<(), &'static str> {
        let Some((peer, id)) = self.peers.get_mut(&key).and_then(|p| p.id.map(|id| (p, id))) else { return Ok(()) };
        let group = self.settings.group_of(&peer.member(peer.user.as_deref()));
        let (filter, rates) = (self.settings.filter_of(&peer.name, group), self.settings.rates_of(&peer.name, group));
        peer.group = group.map(|g| g.name.clone());
        // What a predecessor has set is not known.
        let has_new_filter = match &peer.filter {
            Some(before) => *before != filter,
            None => filter.is_some() || self.plane.supports(Feature::AccessLists),
        };
        let has_new_rates = match peer.rates {
            Some(before) => before != rates,
            None => !rates.is_unlimited() || self.plane.supports(Feature::Rates),
        };
        if has_new_filter || has_new_rates {
            let set = PeerSet {
                filter: has_new_filter.then(|| filter.clone()),
                rates: has_new_rates.then_some(rates),
                ..PeerSet::default()
            };
            match self.plane.command(Command::PeerSet(id, set)) {
                Ok(()) => (peer.filter, peer.rates) = (Some(filter), Some(rates)),
                Err(e) => {
                    log::warn!(connection = connection(key); "tunnel: {}: the client is disconnected, because its access \
                                                              list and its rates cannot be changed: {e}", peer.name);
                    return Err("the client's access list or rates cannot be applied");
                }
            }
        }
        Ok(())
    }
}

/// A number that nobody has, of the lane where the client was heard. They are given in turn, so that a late packet of
/// a client that has gone does not meet another.
fn free_id(taken: &HashMap<PeerId, Key>, next: &mut u32, lane: u16, lanes: u16) -> Option<PeerId> {
    let step = u32::from(lanes.max(1));
    let most = (PeerId::UNSET.get() - 1) / step;
    for _ in 0..=taken.len() {
        let id = PeerId::new((*next % most) * step + u32::from(lane) % step)?;
        *next = next.wrapping_add(1);
        debug_assert_eq!(lane_of(id, lanes), lane % lanes.max(1));
        if !taken.contains_key(&id) {
            return Some(id);
        }
    }
    None
}
