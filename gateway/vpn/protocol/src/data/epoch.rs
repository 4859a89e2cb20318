//! The epoch format's keys (OpenVPN 2.7): one secret per direction, from which each epoch's key and nonce mask are
//! derived, and the next epoch's secret. A direction moves on without its peer being asked.

use super::aead::Ready as Aead;
use super::cipher::{Cipher, wipe};
use super::{DirectionKey, NONCE};
use aws_lc_rs::hkdf;

/// The last packet id of an epoch.
pub const MAX_ID: u64 = (1 << 48) - 1;

/// Epochs ahead of the newest one seen whose packets are opened.
pub const AHEAD: u16 = 4;

/// An epoch's secret.
#[derive(Clone)]
pub struct EpochSecret {
    epoch: u16,
    secret: [u8; 32],
}

impl Drop for EpochSecret {
    fn drop(&mut self) {
        wipe(&mut self.secret);
    }
}

/// A number of bytes, as HKDF's interface wants it.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// RFC 8446 §7.1's HKDF-Expand-Label with SHA-256, the prefix "ovpn " and no context.
pub fn expand_label(secret: &[u8; 32], label: &[u8], out: &mut [u8]) {
    let prk = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret);
    // Labels are ours and short; outputs are keys.
    let length = (out.len() as u16).to_be_bytes();
    let name = [5 + label.len() as u8];
    let info: [&[u8]; 5] = [&length, &name, b"ovpn ", label, &[0]];
    // HKDF gives up to 255 hashes; a key needs one.
    prk.expand(&info, Length(out.len())).and_then(|okm| okm.fill(out)).expect("a key is shorter than HKDF's limit");
}

impl EpochSecret {
    /// The first epoch's.
    pub fn first(key: &DirectionKey) -> Self {
        Self { epoch: 1, secret: key.key }
    }

    /// Which epoch it is for, from 1.
    pub const fn epoch(&self) -> u16 {
        self.epoch
    }

    /// The next one's, `None` after the last.
    pub fn next(&self) -> Option<Self> {
        let mut next = Self { epoch: self.epoch.checked_add(1)?, secret: [0; 32] };
        expand_label(&self.secret, b"datakey upd", &mut next.secret);
        Some(next)
    }

    /// The epoch's key and what its nonces are XORed with.
    pub(super) fn derive(&self, cipher: Cipher) -> (Aead, [u8; NONCE]) {
        let (mut key, mut mask) = ([0; 32], [0; NONCE]);
        let length = cipher.key_len();
        expand_label(&self.secret, b"data_key", &mut key[..length]);
        expand_label(&self.secret, b"data_iv", &mut mask);
        let ready = cipher.ready(&key).expect("as long as the cipher asks");
        wipe(&mut key);
        (ready, mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector of OpenVPN's own unit test (`crypto_test_ovpn_label_expand`).
    #[test]
    fn labels_expand_as_openvpn_does() {
        let secret = [
            0x07, 0x77, 0x09, 0x36, 0x2c, 0x2e, 0x32, 0xdf, 0x0d, 0xdc, 0x3f, 0x0d, 0xc4, 0x7b, 0xba, 0x63, 0x90, 0xb6,
            0xc7, 0x3b, 0xb5, 0x0f, 0x9c, 0x31, 0x22, 0xec, 0x84, 0x4a, 0xd7, 0xc2, 0xb3, 0xe5,
        ];
        let mut out = [0; 16];
        expand_label(&secret, b"unit test", &mut out);
        let expected = [0x18, 0x5e, 0xaa, 0x1c, 0x7f, 0x22, 0x8a, 0xb8, 0xeb, 0x29, 0x77, 0x32, 0x14, 0xd9, 0x20, 0x46];
        assert_eq!(out, expected);
    }

    #[test]
    fn epochs_end() {
        let last = EpochSecret { epoch: u16::MAX, secret: [1; 32] };
        assert!(last.next().is_none());
        let first = EpochSecret::first(&DirectionKey { key: [1; 32], tail: [0; 8] });
        let second = first.next().expect("there is one");
        assert_eq!((first.epoch(), second.epoch()), (1, 2));
        assert_ne!(first.secret, second.secret);
    }
}
