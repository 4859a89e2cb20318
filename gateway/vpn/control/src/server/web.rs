//! Logins in a browser: a client waits, and its user logs in at the provider of `[tunnel.oidc]`.
//!
//! ```text
//! decided ─▶ log_in ─ begin ─▶ the login pages ─ outcome ─▶ logged_in ─▶ conclude or refuse
//!              └ the client is told which page to open           └ no outcome in time ─▶ not_logged_in: refused
//! ```
//! At renewals of keys and at later connections, a token stands for the login (`auth.rs`).

use super::super::auth::NO_TOKEN;
use super::super::login::{Begun, Login, LoginClient, LoginOutcome, LoginRefusal};
use super::super::management::Socket;
use super::super::peer::Stage;
use super::super::settings::Settings;
use super::manage::canonical;
use super::{Key, Server, connection};
use sealane_log as log;
use sealane_ovpn::peer_info::PeerInfo;
use std::time::Instant;
use tokio::task::JoinHandle;

/// What a client hears that cannot open a page.
const NO_PAGES: &str = "this server needs a login in the browser, which the client does not support (IV_SSO=webauth)";
/// What a client hears when too many others log in.
const MANY: &str = "too many users are logging in just now";
/// What a client hears whose user has not logged in in time.
const LATE: &str = "the login has taken too long";
/// What a client hears whose login is for settings of before.
const CHANGED: &str = "the settings of the login have changed";
/// What a client hears when this program has no login pages.
const NONE: &str = "authentication is not possible at the moment";

/// The task that serves login pages. It ends with this.
#[derive(Debug)]
pub(super) struct Pages(JoinHandle<()>);

impl Drop for Pages {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Serves the login pages of these settings, where there are any. Within a runtime.
pub(super) fn serve(settings: &Settings, socket: Option<&Socket>) -> Option<Pages> {
    let (logins, socket) = (settings.logins.clone()?, socket?);
    match socket.try_clone().and_then(Socket::listener) {
        Ok(listener) => Some(Pages(tokio::spawn(logins.serve(listener)))),
        Err(e) => {
            log::warn!("tunnel: cannot use the socket of the login pages: {e}");
            None
        }
    }
}

impl Server {
    /// Tells a client to open the login page. The user name that the client sends is ignored.
    pub(super) fn log_in(&mut self, key: Key, key_id: u8, now: Instant) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        // A connected client renews its keys with a token.
        if peer.stage == Stage::Connected {
            return self.refuse(key, key_id, false, NO_TOKEN, now);
        }
        let info = peer.session.message(key_id).map(|message| PeerInfo::parse(&message.peer_info)).unwrap_or_default();
        let Some(opens) = info.opens_pages else {
            self.counts.login_unsupported += 1;
            return self.refuse(key, key_id, false, NO_PAGES, now);
        };
        let (Some(logins), Some(oidc)) = (self.settings.logins.clone(), &self.settings.oidc) else {
            return self.refuse(key, key_id, true, NONE, now);
        };
        let limit = oidc.timeout;
        let client = LoginClient {
            certificate: peer.claim(key_id).and_then(|claim| claim.common_name),
            remote: canonical(peer.remote),
            program: format!("{} {}", info.version, info.platform).trim().to_owned(),
        };
        let question = peer.asked;
        peer.asked = peer.asked.wrapping_add(1);
        let outcomes = self.outcomes.clone();
        let report = Box::new(move |outcome| {
            // The server has ended.
            let _ = outcomes.send((key, question, outcome));
        });
        let Ok(Begun { id, url }) = logins.begin(client, limit, report) else {
            self.counts.login_busy += 1;
            return self.refuse(key, key_id, true, MANY, now);
        };
        self.counts.logins += 1;
        peer.login = Some(Login::new(logins, id, question));
        if let Err(e) = self.hold(key, key_id, &opens.step(&url), now, limit, now) {
            log::warn!(connection = connection(key); "tunnel: {}: {e:#}", self.shown(key));
        }
        log::debug!(connection = connection(key); "tunnel: {} waits for a login in the browser", self.shown(key));
    }

    /// A login has ended.
    pub(super) fn logged_in(&mut self, key: Key, question: u32, outcome: LoginOutcome, now: Instant) {
        let is_meant = |login: &Login| login.question == question;
        let Some(peer) = self.peers.get_mut(&key).filter(|peer| peer.login.as_ref().is_some_and(is_meant)) else {
            return;
        };
        peer.login = None;
        if !self.awaits(key, 0) {
            return;
        }
        self.restless.insert(key);
        match outcome {
            LoginOutcome::Granted { user, groups } => {
                self.counts.login_granted += 1;
                self.remembered.remember(&user, groups.clone());
                self.joins(key, groups);
                self.conclude(key, 0, Some(user), now);
            }
            LoginOutcome::Refused(why) => {
                let counter = match why {
                    LoginRefusal::Denied => &mut self.counts.login_denied,
                    LoginRefusal::Invalid => &mut self.counts.login_invalid,
                    LoginRefusal::NotAllowed => &mut self.counts.login_not_allowed,
                    LoginRefusal::Unavailable => &mut self.counts.login_unavailable,
                };
                *counter += 1;
                self.refuse(key, 0, why.is_temporary(), why.reason(), now);
            }
        }
    }

    /// A client's user has not logged in in time.
    pub(super) fn not_logged_in(&mut self, key: Key, now: Instant) {
        self.counts.login_expired += 1;
        // Not temporarily: the client would open the page again and again, with nobody there.
        self.refuse(key, 0, false, LATE, now);
    }

    /// A client has a good token: it stands for a login, as far as that is known.
    pub(super) fn with_login(&mut self, key: Key, key_id: u8, user: String, now: Instant) {
        let (Some(peer), Some(oidc)) = (self.peers.get(&key), &self.settings.oidc) else { return };
        let groups = match peer.stage {
            Stage::Connected => Some(peer.directory_groups.clone()).filter(|groups| oidc.allows(groups)),
            _ => self.remembered.groups(&user, oidc),
        };
        match groups {
            Some(groups) => {
                self.joins(key, groups);
                self.conclude(key, key_id, Some(user), now);
            }
            None => self.refuse(key, key_id, false, NO_TOKEN, now),
        }
    }

    /// New settings may have another provider. Logins that are under way go on only if it is the same.
    pub(super) fn follow_logins(&mut self, before: &Settings) {
        let is_same = match (&self.settings.oidc, &before.oidc) {
            (Some(now), Some(before)) => now.is_same(before),
            (None, None) => true,
            _ => false,
        };
        if is_same {
            self.settings.logins.clone_from(&before.logins);
            return;
        }
        self.remembered.clear();
        let waiting: Vec<Key> = self.peers.iter().filter(|(_, p)| p.login.is_some()).map(|(k, _)| *k).collect();
        waiting.into_iter().for_each(|key| self.refuse(key, 0, true, CHANGED, Instant::now()));
        let path = |settings: &Settings| settings.oidc.as_ref().map(|oidc| oidc.socket.clone());
        if path(&self.settings) != path(before) || self.login_socket.is_none() {
            self.login_socket.iter().for_each(|socket| socket.file().remove());
            self.login_socket = Socket::login_for(self.settings.oidc.as_ref(), false);
        }
        self._pages = serve(&self.settings, self.login_socket.as_ref());
    }
}
