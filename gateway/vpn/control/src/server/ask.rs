//! A program on the management socket decides who may come in, and hears of who has.
//!
//! ```text
//! decided ─▶ ask ─ >CLIENT:CONNECT ─▶ program ─ client-auth ────────▶ accept ─▶ conclude
//!                                        │    ─ client-deny ────────▶ deny
//!                                        │    ─ client-pending-auth ▶ defer (the client is told where to log in)
//!                                        └ no answer in time ───────▶ unanswered: refused
//! ```

use super::super::management::Collecting;
use super::super::management::clean;
use super::super::management::command::{Given, given};
use super::super::peer::{Pending, Stage};
use super::super::settings::Settings;
use super::super::verify::organizational_units;
use super::admit::CONTROL_CHARACTER;
use super::manage::canonical;
use super::steer::MAX_TEXT;
use super::{Key, Server, unix};
use anyhow::{Context as _, Result};
use sealane_config::CertificateId;
use sealane_ovpn::peer_info::{PeerInfo, proto};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// What a client hears when no program is there to decide.
const NOBODY: &str = "authentication is not possible at the moment";
/// What a client hears when the program has not decided in time.
const LATE: &str = "authentication has taken too long";
/// The longest text of a `client-pending-auth`: a client reads commands of up to 2,048 bytes.
const MAX_EXTRA: usize = 1900;
/// The longest answer of a client to a `CR_TEXT`, in base64: OpenVPN's servers read commands of up to 2,048 bytes.
const MAX_RESPONSE: usize = 2000;
/// Answers of a client that a program hears before it decides.
const MAX_RESPONSES: u32 = 8;
/// How long a decision may take if keys are never renewed.
const LONGEST: Duration = Duration::from_secs(1800);
/// Lines about itself that a program hears of a client's.
const MAX_INFO: usize = 64;

/// How long a decision may take when the program asks for more time, as OpenVPN bounds it.
fn longest(settings: &Settings) -> Duration {
    match settings.renegotiate.is_zero() {
        true => LONGEST.max(settings.handshake),
        false => (settings.renegotiate / 2).max(settings.handshake),
    }
}

fn answered(command: &str, found: bool) -> String {
    match found {
        true => format!("SUCCESS: {command} command succeeded"),
        false => format!("ERROR: {command} command failed: no client waits for this decision"),
    }
}

impl Server {
    /// Asks programs whether a client may come in, or stay.
    pub(super) fn ask(&mut self, key: Key, key_id: u8, user: Option<String>, now: Instant) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let Some(claim) = peer.claim(key_id) else { return };
        let is_odd = |text: &str| text.chars().any(char::is_control);
        // It would reach the program as another one.
        if is_odd(&claim.username) || is_odd(&claim.password) {
            return self.refuse(key, key_id, false, CONTROL_CHARACTER, now);
        }
        self.counts.asked += 1;
        if !self.hub.has_programs() {
            self.counts.unanswered += 1;
            return self.refuse(key, key_id, true, NOBODY, now);
        }
        let kid = peer.asked;
        peer.asked = peer.asked.wrapping_add(1);
        // Who has no name of its own keeps the one that the program gave it.
        let user = user.or_else(|| peer.user.clone().filter(|_| peer.user_is_given));
        peer.pending = Some(Pending { kid, key_id, user, since: now, responses: 0 });
        peer.announced = true;
        let event = if peer.stage == Stage::Connected { "REAUTH" } else { "CONNECT" };
        let text = format!(">CLIENT:{event},{key},{kid}\n{}", self.environment(key, key_id, true));
        self.hub.tell(&text);
    }

    /// The decision that a program means.
    fn pending(&self, cid: Key, kid: u32) -> Option<Pending> {
        let pending = self.peers.get(&cid)?.pending.clone()?;
        (pending.kid == kid && self.awaits(cid, pending.key_id)).then_some(pending)
    }

    /// `client-auth`, with its lines.
    pub(super) fn accept_with(&mut self, collected: &Collecting, now: Instant) -> String {
        let all: Result<Vec<Option<Given>>, String> = collected.lines.iter().map(|line| given(line)).collect();
        match all {
            _ if collected.too_many => "ERROR: client-auth command failed: it has too many lines".to_owned(),
            Ok(all) => self.accept(collected.cid, collected.kid, all.into_iter().flatten().collect(), now),
            Err(e) => format!("ERROR: client-auth command failed: {e}"),
        }
    }

    /// The client may come in, as far as the program is concerned.
    pub(super) fn accept(&mut self, cid: Key, kid: u32, all: Vec<Given>, now: Instant) -> String {
        let command = "client-auth";
        let Some(pending) = self.pending(cid, kid) else { return answered(command, false) };
        let Some(peer) = self.peers.get_mut(&cid) else { return answered(command, false) };
        peer.pending = None;
        let (mut user, mut push) = (pending.user, Vec::new());
        for given in all {
            match given {
                Given::Push(option) => push.push(option),
                Given::User(name) => (user, peer.user_is_given) = (Some(name), true),
                Given::DefaultUser(name) if user.is_none() => (user, peer.user_is_given) = (Some(name), true),
                Given::DefaultUser(_) => {}
            }
        }
        // A connected client has its options.
        if peer.stage != Stage::Connected {
            peer.more_push = push;
        }
        self.conclude(cid, pending.key_id, user, now);
        self.restless.insert(cid);
        answered(command, true)
    }

    /// The client may not come in.
    pub(super) fn deny(&mut self, cid: Key, kid: u32, reason: &str, said: Option<&str>, now: Instant) -> String {
        let command = "client-deny";
        if said.is_some_and(|said| said.len() > MAX_TEXT) {
            return format!("ERROR: the reason for the client is longer than {MAX_TEXT} bytes");
        }
        let Some(pending) = self.pending(cid, kid) else { return answered(command, false) };
        self.turn_away(cid, pending.key_id, false, reason, said.filter(|said| !said.is_empty()), now);
        answered(command, true)
    }

    /// The program needs more time; the client is told what to do meanwhile.
    pub(super) fn defer(&mut self, cid: Key, kid: u32, extra: &str, timeout: Duration, now: Instant) -> String {
        let command = "client-pending-auth";
        if extra.len() > MAX_EXTRA {
            return format!("ERROR: the text is longer than {MAX_EXTRA} bytes");
        }
        let Some(Pending { key_id, since, .. }) = self.pending(cid, kid) else { return answered(command, false) };
        match self.hold(cid, key_id, extra, since, timeout, now) {
            Ok(()) => answered(command, true),
            Err(e) => format!("ERROR: {command} command failed: {e:#}"),
        }
    }

    /// The decision about a client takes longer; the client is told what to do meanwhile (`extra`). `since`: when somebody was asked.
    pub(super) fn hold(
        &mut self,
        key: Key,
        key_id: u8,
        extra: &str,
        since: Instant,
        timeout: Duration,
        now: Instant,
    ) -> Result<()> {
        let latest = since + longest(&self.settings);
        let deadline = now.checked_add(timeout).map_or(latest, |at| at.min(latest));
        let peer = self.peers.get_mut(&key).context("the client has gone")?;
        let info = peer.session.message(key_id).map(|message| PeerInfo::parse(&message.peer_info));
        let seconds = deadline.saturating_duration_since(now).as_secs();
        let wait = match info.is_some_and(|info| info.has(proto::AUTH_PENDING_KW)) {
            true => format!("AUTH_PENDING,timeout {seconds}\0"),
            false => "AUTH_PENDING\0".to_owned(),
        };
        // Inside TLS, it hears of it only after our message.
        let said = peer
            .session
            .answer(key_id)
            .and_then(|()| peer.session.send_command(wait.as_bytes()))
            .and_then(|()| peer.session.send_command(format!("INFO_PRE,{extra}\0").as_bytes()));
        match &mut peer.renewal {
            Some(renewal) if renewal.key_id == key_id => renewal.deadline = deadline,
            _ => peer.deadline = deadline,
        }
        self.restless.insert(key);
        said
    }

    /// Tells programs what a client answers to the question of a `client-pending-auth` (`CR_TEXT`).
    pub(super) fn responded(&mut self, key: Key, response: &str) {
        let is_base64 = response.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b));
        let Some(pending) = self.peers.get_mut(&key).and_then(|peer| peer.pending.as_mut()) else { return };
        if !is_base64 || response.len() > MAX_RESPONSE || pending.responses == MAX_RESPONSES {
            return;
        }
        pending.responses += 1;
        let (kid, key_id) = (pending.kid, pending.key_id);
        let environment = self.environment(key, key_id, false);
        self.hub.tell(&format!(">CLIENT:CR_RESPONSE,{key},{kid},{response}\n{environment}"));
    }

    /// No program has decided in time.
    pub(super) fn unanswered(&mut self, key: Key, now: Instant) {
        let Some(pending) = self.peers.get(&key).and_then(|peer| peer.pending.clone()) else { return };
        self.counts.unanswered += 1;
        self.refuse(key, pending.key_id, true, LATE, now);
    }

    /// Tells programs that a client is connected.
    pub(super) fn tell_established(&mut self, key: Key) {
        if !self.settings.asks() {
            return;
        }
        let Some(peer) = self.peers.get_mut(&key) else { return };
        peer.announced = true;
        if !self.hub.has_programs() {
            return;
        }
        let mut text = String::new();
        let four = peer.addresses.four.map(|a| (a.to_string(), 1));
        let six = peer.addresses.six.map(|a| (a.to_string(), 1));
        let networks = peer.settings.routes.iter().map(|prefix| (prefix.to_string(), 0));
        for (address, is_primary) in four.into_iter().chain(six).chain(networks) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, ">CLIENT:ADDRESS,{key},{address},{is_primary}");
        }
        let key_id = peer.key_id;
        let _ = write!(text, ">CLIENT:ESTABLISHED,{key}\n{}", self.environment(key, key_id, false));
        self.hub.tell(&text);
    }

    /// Tells programs that a client is gone, if they know it.
    pub(super) fn tell_gone(&mut self, key: Key) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let key_id = peer.pending.take().map_or(peer.key_id, |pending| pending.key_id);
        if std::mem::take(&mut peer.announced) && self.hub.has_programs() {
            self.hub.tell(&format!(">CLIENT:DISCONNECT,{key}\n{}", self.environment(key, key_id, false)));
        }
    }

    /// What is known of a client, in OpenVPN's words. A client chooses its `IV_` and `UV_` lines, and its user name.
    fn environment(&self, key: Key, key_id: u8, is_question: bool) -> String {
        let Some(peer) = self.peers.get(&key) else { return String::new() };
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, ">CLIENT:ENV,{name}={}", clean(value));
        };
        let message = peer.session.message(key_id);
        let is_word = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        for (name, value) in message
            .iter()
            .flat_map(|message| message.peer_info.lines())
            .filter_map(|info| info.split_once('='))
            .filter(|(name, _)| (name.starts_with("IV_") || name.starts_with("UV_")) && is_word(name))
            .take(MAX_INFO)
        {
            line(name, value);
        }
        if let Some(certificate) = peer.session.peer_certificate(key_id) {
            if let Some((CertificateId { serial, .. }, _)) = CertificateId::of(certificate) {
                let hex: Vec<String> = serial.iter().map(|byte| format!("{byte:02x}")).collect();
                line("tls_serial_hex_0", &hex.join(":"));
            }
            organizational_units(certificate).iter().take(1).for_each(|unit| line("X509_0_OU", unit));
        }
        let common_name = peer.claim(key_id).and_then(|claim| claim.common_name).or_else(|| peer.common_name.clone());
        if let Some(name) = &common_name {
            line("X509_0_CN", name);
        }
        line("common_name", common_name.as_deref().unwrap_or(&peer.name));
        let claimed = message.map(|message| message.username.as_str());
        line("username", peer.user.as_deref().filter(|_| !is_question).or(claimed).unwrap_or(""));
        if let Some(message) = message.filter(|_| is_question) {
            line("password", &message.password);
        }
        let (remote, port) = (canonical(peer.remote), peer.remote.port().to_string());
        let family = match remote.ip() {
            IpAddr::V4(_) => "ip",
            IpAddr::V6(_) => "ip6",
        };
        let is_trusted = if peer.stage == Stage::Connected { "trusted" } else { "untrusted" };
        let kinds = if is_question { ["untrusted", "untrusted"] } else { ["untrusted", is_trusted] };
        for kind in kinds.iter().take(if kinds[0] == kinds[1] { 1 } else { 2 }) {
            line(&format!("{kind}_{family}"), &remote.ip().to_string());
            line(&format!("{kind}_port"), &port);
        }
        if let Some(four) = peer.addresses.four {
            line("ifconfig_pool_remote_ip", &four.to_string());
        }
        if let Some(six) = peer.addresses.six {
            line("ifconfig_pool_remote_ip6", &six.to_string());
        }
        let clients = self.peers.values().filter(|p| p.stage == Stage::Connected).count();
        line("n_clients", &clients.to_string());
        if peer.stage == Stage::Connected {
            let seconds = peer.connected_at.elapsed().as_secs();
            let counters = peer.id.and_then(|id| self.plane.counters(id)).unwrap_or_default();
            line("time_unix", &unix().saturating_sub(seconds).to_string());
            line("time_duration", &seconds.to_string());
            line("bytes_received", &counters.rx_bytes.to_string());
            line("bytes_sent", &counters.tx_bytes.to_string());
        }
        text.push_str(">CLIENT:ENV,END");
        text
    }
}
