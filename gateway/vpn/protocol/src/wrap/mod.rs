//! What protects control packets besides TLS: `tls-auth`, `tls-crypt`, `tls-crypt-v2`, and dynamic `tls-crypt`.
//!
//! A [`Wrap`] is one session's state: its key, the packet ids that it issues and those that it has seen.

mod crypt;
pub mod key;
pub mod v2;

pub use key::{KeyError, StaticKey};

use crate::data::cipher::wipe;
use crate::data::{Replay, ReplayWindow};
use crate::packet::{MAX_PACKET, Opcode, PacketError, SessionId, take, take_array};
use crate::saved::SavedWrap;
use aws_lc_rs::hmac;
use crypt::CryptKey;

/// A tls-auth digest (`auth`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digest {
    /// SHA-1, OpenVPN's default here.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Digest {
    /// As `auth` names it.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name.to_ascii_uppercase().as_str() {
            "SHA1" | "SHA-1" => Self::Sha1,
            "SHA256" | "SHA2-256" => Self::Sha256,
            "SHA384" | "SHA2-384" => Self::Sha384,
            "SHA512" | "SHA2-512" => Self::Sha512,
            _ => return None,
        })
    }

    /// The name in option strings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
            Self::Sha384 => "SHA384",
            Self::Sha512 => "SHA512",
        }
    }

    const fn algorithm(self) -> hmac::Algorithm {
        match self {
            Self::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha384 => hmac::HMAC_SHA384,
            Self::Sha512 => hmac::HMAC_SHA512,
        }
    }

    const fn len(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }
}

/// What a session's control packets are wrapped with.
#[derive(Clone, Debug)]
pub enum WrapKey {
    /// Nothing.
    None,
    /// `tls-auth`: an HMAC.
    Auth {
        /// The shared key.
        key: StaticKey,
        /// `key-direction`: `None` uses one key both ways.
        direction: Option<bool>,
        /// `auth`.
        digest: Digest,
    },
    /// `tls-crypt`, or a client's key of `tls-crypt-v2`.
    Crypt(StaticKey),
}

enum Cipher {
    None,
    /// To send and to receive.
    Auth {
        keys: Box<(hmac::Key, hmac::Key)>,
        length: usize,
    },
    Crypt(Box<CryptKey>),
}

/// The packet id of a client that can send its wrapped key a second time begins here (OpenVPN 2.6).
const EARLY_NEGOTIATION: u32 = 0x0f00_0000;

/// A session's wrap.
pub struct Wrap {
    cipher: Cipher,
    /// What it was made from: dynamic tls-crypt mixes it into the next one.
    key: WrapKey,
    next_id: u32,
    time: u32,
    seen_time: u32,
    seen: ReplayWindow,
}

impl std::fmt::Debug for Wrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wrap").field("next_id", &self.next_id).finish_non_exhaustive()
    }
}

/// A control packet with its wrap taken off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwrapped {
    /// What it is.
    pub opcode: Opcode,
    /// Which key exchange it belongs to.
    pub key_id: u8,
    /// The sender's session.
    pub session: SessionId,
    /// What [`crate::packet::Body::parse`] reads.
    pub body: Vec<u8>,
    /// The wrap's packet id and time, where it has them.
    pub id: Option<(u32, u32)>,
}

impl Unwrapped {
    /// Whether the client that sent this reset can show its wrapped key again.
    pub fn resends_client_key(&self) -> bool {
        self.id.is_some_and(|(id, _)| id & 0xff00_0000 == EARLY_NEGOTIATION)
    }
}

impl Wrap {
    /// `server` chooses the direction; `unix` is the time that packet ids go with.
    pub fn new(key: &WrapKey, server: bool, unix: u32) -> Self {
        let cipher = match key {
            WrapKey::None => Cipher::None,
            WrapKey::Auth { key, direction, digest } => {
                // Direction 0 sends with the first key; without one the first serves both.
                let (send, receive) = match direction {
                    None => (0, 0),
                    Some(false) => (0, 1),
                    Some(true) => (1, 0),
                };
                let ready = |at: usize| hmac::Key::new(digest.algorithm(), &key.mac(at)[..digest.len()]);
                Cipher::Auth { keys: Box::new((ready(send), ready(receive))), length: digest.len() }
            }
            WrapKey::Crypt(key) => Cipher::Crypt(Box::new(CryptKey::new(key, server))),
        };
        Self { cipher, key: key.clone(), next_id: 1, time: unix, seen_time: 0, seen: ReplayWindow::new() }
    }

    /// The wrap of renegotiations: `exported` from the first TLS session, mixed with the session's first key.
    pub fn dynamic(&self, exported: &[u8; 256], server: bool, unix: u32) -> Self {
        let mut mixed = *exported;
        if let WrapKey::Auth { key: original, .. } | WrapKey::Crypt(original) = &self.key {
            mixed.iter_mut().zip(original.bytes()).for_each(|(m, o)| *m ^= o);
        }
        let key = StaticKey::new(mixed);
        wipe(&mut mixed);
        Self::new(&WrapKey::Crypt(key), server, unix)
    }

    /// Its state, to go on elsewhere.
    pub fn save(&self) -> SavedWrap {
        let mut saved = SavedWrap::new(&self.key);
        let (newest, seen) = self.seen.snapshot();
        (saved.next_id, saved.time, saved.seen_time) = (self.next_id, self.time, self.seen_time);
        (saved.newest, saved.seen) = (newest, seen.to_vec());
        saved
    }

    /// Goes on: no packet id is issued again, and none that was seen is taken again. `None` for what nobody has saved.
    pub fn restore(saved: &SavedWrap, server: bool) -> Option<Self> {
        let mut wrap = Self::new(&saved.key()?, server, saved.time);
        (wrap.next_id, wrap.seen_time) = (saved.next_id, saved.seen_time);
        wrap.seen = ReplayWindow::restore(saved.newest, saved.seen.as_slice().try_into().ok()?);
        Some(wrap)
    }

    /// A client's first packet id, where it shows a tls-crypt-v2 key and can do so again.
    pub const fn announce_early_negotiation(&mut self) {
        self.next_id = EARLY_NEGOTIATION | 1;
    }

    /// Stateless answers used this many packet ids.
    pub const fn skip_ids(&mut self, n: u32) {
        self.next_id = self.next_id.saturating_add(n);
    }

    /// What a packet is longer than its body.
    pub const fn overhead(&self) -> usize {
        9 + match &self.cipher {
            Cipher::None => 0,
            Cipher::Auth { length, .. } => 8 + *length,
            Cipher::Crypt(_) => 8 + crypt::TAG,
        }
    }

    /// Wraps a body, replacing what was in `out`.
    pub fn wrap(&mut self, opcode: Opcode, key_id: u8, session: SessionId, body: &[u8], out: &mut Vec<u8>) {
        out.clear();
        out.push(opcode.first_byte(key_id));
        out.extend_from_slice(session.bytes());
        let mut id = [0; 8];
        id[..4].copy_from_slice(&self.next_id.to_be_bytes());
        id[4..].copy_from_slice(&self.time.to_be_bytes());
        match &self.cipher {
            Cipher::None => {
                out.extend_from_slice(body);
                return;
            }
            Cipher::Auth { keys, .. } => {
                let mut mac = hmac::Context::with_key(&keys.0);
                mac.update(&id);
                mac.update(out);
                mac.update(body);
                out.extend_from_slice(mac.sign().as_ref());
                out.extend_from_slice(&id);
                out.extend_from_slice(body);
            }
            Cipher::Crypt(key) => {
                out.extend_from_slice(&id);
                key.seal(body, out);
            }
        }
        // 2^32 control packets under one session: the ids go on in the next second, as OpenVPN's do.
        self.next_id = self.next_id.wrapping_add(1);
        if self.next_id == 0 {
            (self.next_id, self.time) = (1, self.time.wrapping_add(1));
        }
    }

    /// Takes the wrap off and remembers the packet id.
    pub fn unwrap(&mut self, packet: &[u8]) -> Result<Unwrapped, PacketError> {
        let unwrapped = self.peek(packet)?;
        self.remember(&unwrapped)?;
        Ok(unwrapped)
    }

    /// Remembers the id of a packet that was only looked at before.
    pub(crate) fn remember(&mut self, unwrapped: &Unwrapped) -> Result<(), PacketError> {
        if let Some((id, time)) = unwrapped.id {
            if time < self.seen_time {
                return Err(PacketError::Replayed);
            }
            if time > self.seen_time {
                (self.seen_time, self.seen) = (time, ReplayWindow::new());
            }
            if self.seen.accept(u64::from(id)) != Replay::New {
                return Err(PacketError::Replayed);
            }
        }
        Ok(())
    }

    /// Takes the wrap off without remembering: for the first packet, when there is no session yet.
    pub fn peek(&self, packet: &[u8]) -> Result<Unwrapped, PacketError> {
        if packet.len() > MAX_PACKET {
            return Err(PacketError::Length);
        }
        let mut rest = packet;
        let first = take_array::<1>(&mut rest)?[0];
        let opcode = Opcode::of(first).filter(|o| !o.is_data()).ok_or(PacketError::Opcode)?;
        let session = SessionId::new(take_array(&mut rest)?).ok_or(PacketError::SessionId)?;
        let (body, id) = match &self.cipher {
            Cipher::None => (rest.to_vec(), None),
            Cipher::Auth { keys, length } => {
                let mac = take(&mut rest, *length)?;
                let id = take_array::<8>(&mut rest)?;
                let mut message = Vec::with_capacity(packet.len());
                message.extend_from_slice(&id);
                message.extend_from_slice(&packet[..9]);
                message.extend_from_slice(rest);
                hmac::verify(&keys.1, &message, mac).map_err(|_| PacketError::Forged)?;
                (rest.to_vec(), Some(id))
            }
            Cipher::Crypt(key) => {
                let id = take_array::<8>(&mut rest)?;
                (key.open(&packet[..17], rest)?, Some(id))
            }
        };
        let split =
            |[a, b, c, d, e, f, g, h]: [u8; 8]| (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        Ok(Unwrapped { opcode, key_id: first & 7, session, body, id: id.map(split) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> StaticKey {
        StaticKey::new(std::array::from_fn(|i| (i * 7) as u8))
    }

    fn kinds() -> Vec<(WrapKey, WrapKey)> {
        let auth = |direction, digest| WrapKey::Auth { key: key(), direction, digest };
        vec![
            (WrapKey::None, WrapKey::None),
            (auth(None, Digest::Sha1), auth(None, Digest::Sha1)),
            (auth(Some(false), Digest::Sha256), auth(Some(true), Digest::Sha256)),
            (auth(Some(true), Digest::Sha512), auth(Some(false), Digest::Sha512)),
            (WrapKey::Crypt(key()), WrapKey::Crypt(key())),
        ]
    }

    #[test]
    fn what_one_side_wraps_the_other_unwraps_once() {
        let session = SessionId::new([9; 8]).expect("not zero");
        for (server, client) in kinds() {
            let (mut a, mut b) = (Wrap::new(&server, true, 1000), Wrap::new(&client, false, 1000));
            let mut packet = Vec::new();
            for body in [&b"\0\0\0\0\0"[..], &[7; 1200]] {
                b.wrap(Opcode::ControlV1, 3, session, body, &mut packet);
                assert_eq!(packet.len(), body.len() + b.overhead());
                let got = a.unwrap(&packet).expect("authentic");
                assert_eq!((got.opcode, got.key_id, got.session), (Opcode::ControlV1, 3, session));
                assert_eq!(got.body, body);
                if !matches!(server, WrapKey::None) {
                    assert_eq!(a.unwrap(&packet), Err(PacketError::Replayed));
                    for byte in 0..packet.len() {
                        packet[byte] ^= 0x10;
                        assert!(a.unwrap(&packet).is_err(), "byte {byte}");
                        packet[byte] ^= 0x10;
                    }
                    for length in 0..packet.len() {
                        assert!(a.unwrap(&packet[..length]).is_err(), "length {length}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_reflected_tls_crypt_packet_is_forged() {
        let mut wrap = Wrap::new(&WrapKey::Crypt(key()), true, 1);
        let mut packet = Vec::new();
        wrap.wrap(Opcode::AckV1, 0, SessionId::new([1; 8]).expect("not zero"), b"\0", &mut packet);
        assert_eq!(wrap.unwrap(&packet), Err(PacketError::Forged));
    }

    #[test]
    fn an_older_second_is_a_replay() {
        let session = SessionId::new([1; 8]).expect("not zero");
        let (mut old, mut new) =
            (Wrap::new(&WrapKey::Crypt(key()), false, 5), Wrap::new(&WrapKey::Crypt(key()), false, 6));
        let mut server = Wrap::new(&WrapKey::Crypt(key()), true, 5);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        old.wrap(Opcode::AckV1, 0, session, b"\0", &mut a);
        new.wrap(Opcode::AckV1, 0, session, b"\0", &mut b);
        assert!(server.unwrap(&b).is_ok());
        assert_eq!(server.unwrap(&a), Err(PacketError::Replayed));
    }
}
