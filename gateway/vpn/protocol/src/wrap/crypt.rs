//! tls-crypt's construction: the HMAC of header and plaintext is the tag, and its first half the IV of AES-256-CTR.

use super::StaticKey;
use crate::packet::PacketError;
use aws_lc_rs::cipher::{
    AES_256, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::{constant_time, hmac};

/// Bytes of the tag.
pub(super) const TAG: usize = 32;

/// Both directions, ready.
pub(super) struct CryptKey {
    send: EncryptingKey,
    send_mac: hmac::Key,
    receive: DecryptingKey,
    receive_mac: hmac::Key,
}

pub(super) fn encrypting(key: &[u8]) -> EncryptingKey {
    let key = UnboundCipherKey::new(&AES_256, &key[..32]).expect("32 bytes");
    EncryptingKey::ctr(key).expect("CTR takes any AES key")
}

pub(super) fn decrypting(key: &[u8]) -> DecryptingKey {
    let key = UnboundCipherKey::new(&AES_256, &key[..32]).expect("32 bytes");
    DecryptingKey::ctr(key).expect("CTR takes any AES key")
}

/// Encrypts in place with the tag's first half as IV.
pub(super) fn encrypt(key: &EncryptingKey, tag: &[u8], text: &mut [u8]) {
    let mut iv = [0; 16];
    iv.copy_from_slice(&tag[..16]);
    key.less_safe_encrypt(text, EncryptionContext::Iv128(FixedLength::from(iv))).expect("CTR takes any length");
}

/// Decrypts in place.
pub(super) fn decrypt(key: &DecryptingKey, tag: &[u8], text: &mut [u8]) {
    let mut iv = [0; 16];
    iv.copy_from_slice(&tag[..16]);
    key.decrypt(text, DecryptionContext::Iv128(FixedLength::from(iv))).expect("CTR takes any length");
}

impl CryptKey {
    /// The server sends with the first key.
    pub fn new(key: &StaticKey, server: bool) -> Self {
        let (out, into) = if server { (0, 1) } else { (1, 0) };
        Self {
            send: encrypting(key.cipher(out)),
            send_mac: hmac::Key::new(hmac::HMAC_SHA256, &key.mac(out)[..32]),
            receive: decrypting(key.cipher(into)),
            receive_mac: hmac::Key::new(hmac::HMAC_SHA256, &key.mac(into)[..32]),
        }
    }

    /// Appends tag and ciphertext to the header that is in `out`.
    pub fn seal(&self, body: &[u8], out: &mut Vec<u8>) {
        let mut mac = hmac::Context::with_key(&self.send_mac);
        mac.update(out);
        mac.update(body);
        let tag = mac.sign();
        out.extend_from_slice(tag.as_ref());
        let start = out.len();
        out.extend_from_slice(body);
        encrypt(&self.send, tag.as_ref(), &mut out[start..]);
    }

    /// The plaintext of what follows the header.
    pub fn open(&self, header: &[u8], sealed: &[u8]) -> Result<Vec<u8>, PacketError> {
        let (tag, text) = sealed.split_at_checked(TAG).ok_or(PacketError::Length)?;
        if text.is_empty() {
            return Err(PacketError::Length);
        }
        let mut text = text.to_vec();
        decrypt(&self.receive, tag, &mut text);
        let mut mac = hmac::Context::with_key(&self.receive_mac);
        mac.update(header);
        mac.update(&text);
        constant_time::verify_slices_are_equal(mac.sign().as_ref(), tag).map_err(|_| PacketError::Forged)?;
        Ok(text)
    }
}
