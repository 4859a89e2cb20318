//! What an administrator does to connected clients: disconnect them, tell them something.

use super::super::peer::Stage;
use super::{Key, Server};
use sealane_log as log;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Instant;

/// The longest text for a client: a command of the control channel is one TLS record, and clients read no longer ones.
pub(super) const MAX_TEXT: usize = 512;

/// Which clients are meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whom {
    /// All connections of a name: the certificate's, or the user's.
    Name(String),
    /// The one from an address.
    Address(SocketAddr),
    /// The one with a number.
    Peer(u32),
}

impl std::fmt::Display for Whom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => write!(f, "{address}"),
            Self::Peer(id) => write!(f, "peer {id}"),
        }
    }
}

/// What is done to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steer {
    /// They are disconnected. `halt`: they are told not to connect again; otherwise they connect again at once.
    Kick {
        /// They are told to end.
        halt: bool,
        /// What they are told; may be empty.
        reason: String,
    },
    /// They are told a text.
    Message(String),
}

/// A command to connected clients, as it comes over the admin socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steering {
    /// Which clients.
    pub whom: Whom,
    /// What is done.
    pub what: Steer,
}

impl Steering {
    /// Why it cannot be obeyed.
    fn mistake(&self) -> Option<String> {
        let text = match &self.what {
            Steer::Kick { reason, .. } => reason,
            Steer::Message(text) => text,
        };
        if text.len() > MAX_TEXT {
            return Some(format!("the text is longer than {MAX_TEXT} bytes"));
        }
        // A line break or a NUL would begin another command.
        if text.chars().any(char::is_control) {
            return Some("the text contains a control character".to_owned());
        }
        (matches!(self.what, Steer::Message(_)) && text.is_empty()).then(|| "the text is empty".to_owned())
    }
}

impl Server {
    /// Obeys. Returns how many clients were meant; an error: nobody was, or why not.
    pub(super) fn steer(&mut self, steering: &Steering, now: Instant) -> Result<usize, String> {
        if let Some(why) = steering.mistake() {
            return Err(why);
        }
        let meant = |peer: &super::Peer| match &steering.whom {
            Whom::Name(name) => peer.name == *name || peer.user.as_ref() == Some(name),
            Whom::Address(address) => {
                let canonical = |a: SocketAddr| (a.ip().to_canonical(), a.port());
                canonical(peer.remote) == canonical(*address)
            }
            Whom::Peer(id) => peer.id.is_some_and(|own| own.get() == *id),
        };
        let connected = self.peers.iter().filter(|(_, p)| p.stage == Stage::Connected && meant(p));
        let keys: Vec<Key> = connected.map(|(key, _)| *key).collect();
        if keys.is_empty() {
            return Err(format!("{} is not connected", steering.whom));
        }
        for &key in &keys {
            match &steering.what {
                Steer::Kick { halt, reason } => {
                    let word = if *halt { "HALT" } else { "RESTART" };
                    let separator = if reason.is_empty() { "" } else { "," };
                    let farewell = format!("{word}{separator}{reason}\0");
                    self.counts.kicked += 1;
                    self.send_off(key, farewell.as_bytes(), "disconnected by an administrator", now);
                }
                Steer::Message(text) => {
                    let Some(peer) = self.peers.get_mut(&key) else { continue };
                    if let Err(e) = peer.session.send_command(format!("INFO,{text}\0").as_bytes()) {
                        log::warn!(connection = super::connection(key); "tunnel: {}: {e:#}", peer.name);
                    }
                    self.restless.insert(key);
                }
            }
        }
        Ok(keys.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_command_and_not_too_long() {
        let mistake = |what| Steering { whom: Whom::Name("a".to_owned()), what }.mistake();
        assert_eq!(mistake(Steer::Message("back at noon".to_owned())), None);
        assert_eq!(mistake(Steer::Kick { halt: true, reason: String::new() }), None);
        for text in ["a\0PUSH_REPLY,x", "a\nb", "", &"x".repeat(MAX_TEXT + 1)] {
            assert!(mistake(Steer::Message(text.to_owned())).is_some(), "{text:?}");
        }
        assert!(mistake(Steer::Kick { halt: false, reason: "a\0b".to_owned() }).is_some());
    }
}
