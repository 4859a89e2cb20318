//! A session's control channel as plain data, to go on with in another process.
//!
//! The form is the caller's (these are serde's structures); a reader of a newer one ignores what it does not
//! know. It holds keys: it belongs into a pipe between two processes, never into a file.

use crate::packet::{Opcode, SessionId};
use crate::wrap::{Digest, StaticKey, WrapKey};
use serde::{Deserialize, Serialize};

/// [`crate::link::Link`]. Debug shows no keys.
#[derive(Clone, Serialize, Deserialize)]
pub struct SavedLink {
    /// Our session id.
    pub own: [u8; 8],
    /// The peer's.
    pub remote: [u8; 8],
    /// Packets may be lost.
    pub datagrams: bool,
    /// The first exchange's wrap.
    pub wrap: SavedWrap,
    /// Renegotiations'.
    #[serde(default)]
    pub dynamic: Option<SavedWrap>,
    /// The exchanges that are alive.
    pub channels: Vec<SavedChannel>,
}

impl std::fmt::Debug for SavedLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SavedLink").field("channels", &self.channels.len()).finish_non_exhaustive()
    }
}

/// [`crate::wrap::Wrap`].
#[derive(Clone, Serialize, Deserialize)]
pub struct SavedWrap {
    /// `none`, `crypt`, or a tls-auth digest's name.
    kind: String,
    #[serde(default)]
    direction: Option<bool>,
    #[serde(default)]
    key: Vec<u8>,
    pub(crate) next_id: u32,
    pub(crate) time: u32,
    pub(crate) seen_time: u32,
    pub(crate) newest: u64,
    pub(crate) seen: Vec<u64>,
}

impl SavedWrap {
    pub(crate) fn new(key: &WrapKey) -> Self {
        let (kind, direction, bytes) = match key {
            WrapKey::None => ("none", None, None),
            WrapKey::Auth { key, direction, digest } => (digest.name(), *direction, Some(key)),
            WrapKey::Crypt(key) => ("crypt", None, Some(key)),
        };
        let key = bytes.map_or_else(Vec::new, |key| key.bytes().to_vec());
        Self { kind: kind.to_owned(), direction, key, next_id: 0, time: 0, seen_time: 0, newest: 0, seen: Vec::new() }
    }

    /// `None` when it names what is not known here.
    pub(crate) fn key(&self) -> Option<WrapKey> {
        if self.kind == "none" {
            return Some(WrapKey::None);
        }
        let key = StaticKey::new(self.key.as_slice().try_into().ok()?);
        Some(match self.kind.as_str() {
            "crypt" => WrapKey::Crypt(key),
            digest => WrapKey::Auth { key, direction: self.direction, digest: Digest::from_name(digest)? },
        })
    }
}

impl Drop for SavedWrap {
    fn drop(&mut self) {
        crate::data::cipher::wipe(&mut self.key);
    }
}

/// One exchange's reliable stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedChannel {
    /// Its key's id.
    pub key_id: u8,
    pub(crate) sends: u32,
    pub(crate) outstanding: Vec<SavedMessage>,
    pub(crate) waiting: Vec<u8>,
    pub(crate) expects: u32,
    pub(crate) held: Vec<SavedMessage>,
    pub(crate) acks: Vec<u32>,
    pub(crate) ready: Vec<Vec<u8>>,
    pub(crate) begun: bool,
}

/// A message under way, or one that came before its turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SavedMessage {
    pub(crate) id: u32,
    opcode: u8,
    pub(crate) payload: Vec<u8>,
    #[serde(default)]
    pub(crate) sent: bool,
}

impl SavedMessage {
    pub(crate) fn new(id: u32, opcode: Opcode, payload: &[u8], sent: bool) -> Self {
        Self { id, opcode: opcode as u8, payload: payload.to_vec(), sent }
    }

    pub(crate) fn opcode(&self) -> Option<Opcode> {
        Opcode::of(self.opcode.checked_mul(8)?)
    }
}

/// A session id that was saved.
pub(crate) fn session(bytes: [u8; 8]) -> Option<SessionId> {
    SessionId::new(bytes)
}
