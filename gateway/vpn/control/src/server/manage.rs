//! What programs on the management socket say, and what they hear.

use super::super::management::command::{self, History, Request};
use super::super::management::report::{self, Row};
use super::super::management::{Input, Topic};
use super::super::peer::Stage;
use super::steer::{MAX_TEXT, Steer, Steering, Whom};
use super::{FAREWELL, Key, Server, unix};
use sealane_tunnel::plane::PeerCounters;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Instant;

/// The version of the protocol: that of OpenVPN 2.6.
const VERSION: u32 = 5;
/// From this version on, a program's own version is confirmed.
const CONFIRMED_FROM: u32 = 4;

impl Server {
    /// Something has come from the socket.
    pub(super) fn managed(&mut self, input: Input, now: Instant) {
        match input {
            Input::Attached(id, door) => self.hub.attach(id, door),
            Input::TooSlow(id) => self.hub.drop_slow(id),
            Input::Gone(id) => self.hub.detach(id),
            Input::TooLong(id) => {
                self.hub.answer(id, "ERROR: the line is too long");
                self.hub.detach(id);
            }
            // Lines after `quit`, or of a program that was disconnected.
            Input::Line(id, _) if !self.hub.knows(id) => {}
            Input::Line(id, line) => match self.hub.collected(id, line) {
                Ok(None) => {}
                Ok(Some(collected)) => {
                    let answer = self.accept_with(&collected, now);
                    self.hub.answer(id, &answer);
                }
                Err(line) if line.trim().is_empty() => {}
                Err(line) => match command::parse(&line) {
                    Ok(request) => self.execute(id, request, now),
                    Err(e) => self.hub.answer(id, &format!("ERROR: {e}")),
                },
            },
        }
    }

    fn execute(&mut self, id: u64, request: Request, now: Instant) {
        let answer = match request {
            Request::Help => command::HELP.to_owned(),
            Request::Version(None) => {
                format!("OpenVPN Version: {}\nManagement Version: {VERSION}\nEND", report::title())
            }
            Request::Version(Some(version)) if version < CONFIRMED_FROM => return,
            Request::Version(Some(version)) => format!("SUCCESS: Management client version set to {version}"),
            Request::Pid => format!("SUCCESS: pid={}", std::process::id()),
            Request::Status(format) => report::status(format, &self.rows(), unix(), self.plane.kind() == "kernel"),
            Request::State(parts) => self.history(id, Topic::State, &parts),
            Request::Log(parts) => self.history(id, Topic::Log, &parts),
            Request::ByteCount(every) => {
                self.hub.count_bytes(id, every, now);
                "SUCCESS: bytecount interval changed".to_owned()
            }
            Request::Kill(whom) => self.kill(whom, now),
            Request::ClientKill { cid, message } => self.kill_client(cid, &message, now),
            Request::ClientDeny { cid, kid, reason, client_reason } => {
                self.deny(cid, kid, &reason, client_reason.as_deref(), now)
            }
            Request::ClientAuth { cid, kid } => return self.hub.collect(id, cid, kid),
            Request::ClientAuthNt { cid, kid } => self.accept(cid, kid, Vec::new(), now),
            Request::ClientPendingAuth { cid, kid, extra, timeout } => self.defer(cid, kid, &extra, timeout, now),
            Request::LoadStats => self.load(),
            Request::Hold(None) => "SUCCESS: hold=0".to_owned(),
            Request::Hold(Some(word)) => match word.as_str() {
                "off" => "SUCCESS: hold flag set to OFF".to_owned(),
                "release" => "SUCCESS: hold release succeeded".to_owned(),
                _ => {
                    "ERROR: the server never waits for a release; 'hold off' and 'hold release' are accepted".to_owned()
                }
            },
            Request::Verb(None) => "SUCCESS: verb=3".to_owned(),
            Request::Verb(Some(_)) => "ERROR: use `sealane log-level` to change what the gateway logs".to_owned(),
            Request::Signal(name) => format!(
                "ERROR: signal '{name}' is not accepted on this socket: use `sealane reload`, or the service manager"
            ),
            Request::Quit => return self.hub.detach(id),
        };
        self.hub.answer(id, &answer);
    }

    /// Switches a topic, or tells what is remembered of it.
    fn history(&self, id: u64, topic: Topic, parts: &[History]) -> String {
        let name = match topic {
            Topic::Log => "log",
            Topic::State => "state",
        };
        let mut answer = String::new();
        for part in parts {
            // Writing to a string cannot fail.
            let _ = match part {
                History::On | History::Off => {
                    let on = *part == History::On;
                    self.hub.switch(id, topic, on);
                    let word = if on { "ON" } else { "OFF" };
                    writeln!(answer, "SUCCESS: real-time {name} notification set to {word}")
                }
                History::Last(most) => writeln!(answer, "{}END", self.hub.history(topic, *most)),
            };
        }
        answer
    }

    /// Connected clients, in the order in which they came.
    fn rows(&self) -> Vec<Row> {
        let (now, unix) = (Instant::now(), unix());
        let mut rows: Vec<Row> = self
            .peers
            .iter()
            .filter(|(_, p)| p.stage == Stage::Connected)
            .map(|(key, p)| {
                let counters = p.id.and_then(|id| self.plane.counters(id)).unwrap_or_default();
                let (four, six) = (p.addresses.four.map(|a| a.to_string()), p.addresses.six.map(|a| a.to_string()));
                let networks = p.settings.routes.iter().map(ToString::to_string);
                Row {
                    cid: *key,
                    name: p.name.clone(),
                    user: p.user.clone(),
                    remote: canonical(p.remote).to_string(),
                    routes: four.iter().chain(&six).cloned().chain(networks).collect(),
                    address4: four,
                    address6: six,
                    received: counters.rx_bytes,
                    sent: counters.tx_bytes,
                    since: unix.saturating_sub(now.saturating_duration_since(p.connected_at).as_secs()),
                    heard: unix.saturating_sub(counters.idle_ms.unwrap_or(0) / 1000),
                    peer_id: p.id.map_or(0, |id| id.get()),
                    cipher: p.cipher.name(),
                }
            })
            .collect();
        rows.sort_unstable_by_key(|row| row.cid);
        rows
    }

    fn load(&self) -> String {
        let (mut received, mut sent) = self.past_bytes.get();
        let mut clients = 0;
        for peer in self.peers.values().filter(|p| p.stage == Stage::Connected) {
            let PeerCounters { rx_bytes, tx_bytes, .. } =
                peer.id.and_then(|id| self.plane.counters(id)).unwrap_or_default();
            (clients, received, sent) = (clients + 1, received + rx_bytes, sent + tx_bytes);
        }
        format!("SUCCESS: nclients={clients},bytesin={received},bytesout={sent}")
    }

    /// Clients of a name, or the one from an address, connect again.
    fn kill(&mut self, whom: String, now: Instant) -> String {
        let address = whom.parse::<SocketAddr>().ok();
        let meant = address.map_or_else(|| Whom::Name(whom.clone()), Whom::Address);
        let steering = Steering { whom: meant, what: Steer::Kick { halt: false, reason: String::new() } };
        match (self.steer(&steering, now), address) {
            (Ok(count), None) => format!("SUCCESS: common name '{whom}' found, {count} client(s) killed"),
            (Ok(count), Some(_)) => format!("SUCCESS: {count} client(s) at address {whom} killed"),
            (Err(_), None) => format!("ERROR: common name '{whom}' not found"),
            (Err(_), Some(_)) => format!("ERROR: client at address {whom} not found"),
        }
    }

    fn kill_client(&mut self, cid: Key, message: &str, now: Instant) -> String {
        if message.len() > MAX_TEXT {
            return format!("ERROR: the message is longer than {MAX_TEXT} bytes");
        }
        let farewell = format!("{message}\0");
        match self.peers.get_mut(&cid).map(|peer| (peer.stage, peer)) {
            Some((Stage::Connected, _)) => {
                let why = "disconnected by a program on the management socket";
                self.send_off(cid, farewell.as_bytes(), why, now);
            }
            Some((Stage::Deciding, peer)) => {
                // It hears of it inside TLS only after our message. One that hears nothing gives up by itself.
                peer.pending = None;
                let _ = peer.session.answer(0).and_then(|()| peer.session.send_command(farewell.as_bytes()));
                self.dismiss(cid, now + FAREWELL, now);
            }
            _ => return "ERROR: client-kill command failed: there is no such client".to_owned(),
        }
        self.counts.kicked += 1;
        self.restless.insert(cid);
        "SUCCESS: client-kill command succeeded".to_owned()
    }

    /// Tells programs that want it how many bytes each client has sent and received.
    pub(super) fn tell_bytes(&self, now: Instant) {
        for program in self.hub.due(now) {
            let mut text = String::new();
            for Row { cid, received, sent, .. } in self.rows() {
                // Writing to a string cannot fail.
                let _ = writeln!(text, ">BYTECOUNT_CLI:{cid},{received},{sent}");
            }
            if !text.is_empty() {
                self.hub.answer(program, &text);
            }
        }
    }

    /// The state of the server has changed.
    pub(super) fn say_state(&self, state: &str, detail: &str) {
        if !self.hub.is_open() {
            return;
        }
        let four = self.settings.network4.map_or_else(String::new, |(a, _)| a.to_string());
        let six = self.settings.network6.map_or_else(String::new, |(a, _)| format!(",{a}"));
        self.hub.say(Topic::State, format!("{},{state},{detail},{four},,,,{six}", unix()));
    }
}

/// An address as people write it.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
