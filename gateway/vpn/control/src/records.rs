//! TLS' record layer alone, for a connection whose handshake is long over: a session that has come from another process
//! goes on with the keys that rustls gave there.
//!
//! Control channels carry a few messages an hour, so nothing here is for speed. A peer that changes its keys (TLS 1.3's
//! KeyUpdate), renegotiates inside TLS, or sends an alert ends the connection, as what follows can no longer be read:
//! the session then renegotiates, or expires.

use anyhow::{Context as _, Result, anyhow, bail};
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets, ProtocolVersion};
use serde::{Deserialize, Serialize};

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
/// RFC 5246 §6.2.1; TLS 1.3 keeps it on the wire (RFC 8446 §5.1).
const VERSION: [u8; 2] = [3, 3];
const TAG: usize = 16;

/// A connection's keys as plain data. Debug shows none.
#[derive(Clone, Serialize, Deserialize)]
pub struct SavedRecords {
    tls13: bool,
    send: SavedDirection,
    receive: SavedDirection,
    partial: Vec<u8>,
    described: String,
}

impl std::fmt::Debug for SavedRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SavedRecords")
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct SavedDirection {
    cipher: String,
    key: Vec<u8>,
    iv: [u8; 12],
    sequence: u64,
}

impl SavedRecords {
    /// From what rustls gives.
    pub fn new(
        version: ProtocolVersion,
        secrets: &ExtractedSecrets,
        partial: Vec<u8>,
        described: String,
    ) -> Result<Self> {
        let direction = |(sequence, secrets): &(u64, ConnectionTrafficSecrets)| {
            let (cipher, key, iv) = match secrets {
                ConnectionTrafficSecrets::Aes128Gcm { key, iv } => ("AES-128-GCM", key, iv),
                ConnectionTrafficSecrets::Aes256Gcm { key, iv } => ("AES-256-GCM", key, iv),
                ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => ("CHACHA20-POLY1305", key, iv),
                _ => bail!("TLS with a cipher that cannot be handed over"),
            };
            let iv = iv.as_ref().try_into().context("an IV of another size")?;
            Ok(SavedDirection { cipher: cipher.to_owned(), key: key.as_ref().to_vec(), iv, sequence: *sequence })
        };
        let tls13 = version == ProtocolVersion::TLSv1_3;
        Ok(Self { tls13, send: direction(&secrets.tx)?, receive: direction(&secrets.rx)?, partial, described })
    }
}

struct Direction {
    saved: SavedDirection,
    key: LessSafeKey,
}

impl Direction {
    fn new(saved: SavedDirection) -> Result<Self> {
        let algorithm = match saved.cipher.as_str() {
            "AES-128-GCM" => &AES_128_GCM,
            "AES-256-GCM" => &AES_256_GCM,
            "CHACHA20-POLY1305" => &CHACHA20_POLY1305,
            other => bail!("TLS with {other}"),
        };
        let key = UnboundKey::new(algorithm, &saved.key).map_err(|_| anyhow!("a key of another size"))?;
        Ok(Self { key: LessSafeKey::new(key), saved })
    }

    /// TLS 1.2 with GCM sends half of its nonce along (RFC 5288 §3).
    fn explicit(&self, tls13: bool) -> usize {
        if !tls13 && self.saved.cipher != "CHACHA20-POLY1305" { 8 } else { 0 }
    }

    /// RFC 8446 §5.3; RFC 7905 §2 is the same.
    fn nonce(&self) -> [u8; 12] {
        let mut nonce = self.saved.iv;
        nonce[4..].iter_mut().zip(self.saved.sequence.to_be_bytes()).for_each(|(n, s)| *n ^= s);
        nonce
    }

    /// What a record's tag covers besides its text: its head (RFC 8446 §5.2), or number, type, version and length of
    /// the text (RFC 5246 §6.2.3.3).
    fn covered(&self, tls13: bool, head: [u8; 5], length: usize) -> Vec<u8> {
        if tls13 {
            return head.to_vec();
        }
        let length = (length as u16).to_be_bytes();
        [&self.saved.sequence.to_be_bytes()[..], &head[..3], &length].concat()
    }

    fn step(&mut self) -> Result<()> {
        self.saved.sequence =
            self.saved.sequence.checked_add(1).context("the TLS connection has used its last record number")?;
        Ok(())
    }
}

/// A connection after its handshake.
pub struct Records {
    tls13: bool,
    send: Direction,
    receive: Direction,
    described: String,
}

impl Records {
    /// Goes on; with the bytes of a record that was not whole.
    pub fn restore(saved: SavedRecords) -> Result<(Self, Vec<u8>)> {
        let (send, receive) = (Direction::new(saved.send)?, Direction::new(saved.receive)?);
        Ok((Self { tls13: saved.tls13, send, receive, described: saved.described }, saved.partial))
    }

    /// To go on elsewhere once more.
    pub fn save(&self, partial: Vec<u8>) -> SavedRecords {
        let (send, receive) = (self.send.saved.clone(), self.receive.saved.clone());
        SavedRecords { tls13: self.tls13, send, receive, partial, described: self.described.clone() }
    }

    /// As when it was made.
    pub fn described(&self) -> &str {
        &self.described
    }

    /// Opens a whole record; `None`: it holds nothing for the application.
    pub fn open(&mut self, record: &[u8]) -> Result<Option<Vec<u8>>> {
        let (head, sealed) = record.split_first_chunk::<5>().context("a record is cut off")?;
        // RFC 8446 §5: one that is not encrypted is a remnant of the handshake.
        if self.tls13 && head[0] == CHANGE_CIPHER_SPEC {
            return Ok(None);
        }
        let explicit = self.receive.explicit(self.tls13);
        let (ahead, sealed) = sealed.split_at_checked(explicit).context("a record is cut off")?;
        let length = sealed.len().checked_sub(TAG).context("a record is cut off")?;
        let mut nonce = self.receive.nonce();
        if explicit > 0 {
            nonce[..4].copy_from_slice(&self.receive.saved.iv[..4]);
            nonce[4..].copy_from_slice(ahead);
        }
        let covered = Aad::from(self.receive.covered(self.tls13, *head, length));
        let mut text = sealed.to_vec();
        let opened = self.receive.key.open_in_place(Nonce::assume_unique_for_key(nonce), covered, &mut text);
        let length = opened.map_err(|_| anyhow!("a TLS record is not authentic"))?.len();
        text.truncate(length);
        self.receive.step()?;
        let mut kind = head[0];
        if self.tls13 {
            // RFC 8446 §5.2: the type stands behind the text, and zeros behind the type.
            let end = text.iter().rposition(|b| *b != 0).context("a TLS record without a type")?;
            kind = text[end];
            text.truncate(end);
        }
        match kind {
            APPLICATION_DATA => Ok(Some(text).filter(|t| !t.is_empty())),
            ALERT => bail!("the peer has ended TLS"),
            HANDSHAKE => bail!("the peer updates the TLS keys, which a session that was handed over does not support"),
            _ => bail!("a TLS record of type {kind}"),
        }
    }

    /// Seals a message as one record.
    pub fn seal(&mut self, message: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let explicit = self.send.explicit(self.tls13);
        let mut text = message.to_vec();
        if self.tls13 {
            text.push(APPLICATION_DATA);
        }
        let length = u16::try_from(explicit + text.len() + TAG)?.to_be_bytes();
        let head = [APPLICATION_DATA, VERSION[0], VERSION[1], length[0], length[1]];
        let nonce = self.send.nonce();
        let covered = Aad::from(self.send.covered(self.tls13, head, text.len()));
        self.send.step()?;
        let sealed = self.send.key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), covered, &mut text);
        sealed.map_err(|_| anyhow!("a message cannot be sealed"))?;
        out.extend_from_slice(&head);
        out.extend_from_slice(&nonce[12 - explicit..]);
        out.extend_from_slice(&text);
        Ok(())
    }
}
