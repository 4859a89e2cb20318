//! QUIC's keys that lanes share: for stateless resets and for address validation tokens, derived from the ring.

use crate::hkdf_sha256::Keyed;
use crate::policy::TicketKeys;
use aws_lc_rs::{aead, constant_time};
use quinn_proto::crypto::{AeadKey, CryptoError, HandshakeTokenKey, HmacKey};
use std::sync::Arc;
use zeroize::Zeroize;

/// Makes stateless reset tokens. Its hash is begun once, for every connection id there is takes a token.
pub(crate) struct ResetKey(Keyed);

impl ResetKey {
    pub fn new(keys: &TicketKeys) -> Self {
        Self(Keyed::new(&keys.reset))
    }

    fn tag(&self, data: &[u8]) -> [u8; 32] {
        self.0.mac([data])
    }
}

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], out: &mut [u8]) {
        let tag = self.tag(data);
        let n = out.len().min(tag.len());
        out[..n].copy_from_slice(&tag[..n]);
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        constant_time::verify_slices_are_equal(&self.tag(data), signature).map_err(|_| CryptoError)
    }
}

/// Seals address validation tokens, each under a key of its own (derived from its nonce).
pub(crate) struct TokenKey {
    masters: Arc<[Keyed]>,
}

impl TokenKey {
    pub fn new(keys: &TicketKeys) -> Self {
        let salt = &b"sealane quic token v1"[..];
        Self { masters: keys.masters.iter().map(|master| Keyed::extracted(salt, master)).collect() }
    }
}

impl HandshakeTokenKey for TokenKey {
    fn aead_from_hkdf(&self, nonce: &[u8]) -> Box<dyn AeadKey> {
        Box::new(OneToken { masters: self.masters.clone(), nonce: nonce.into() })
    }
}

/// One token's keys, by master, newest first: derived when needed, since sealing takes the first alone.
struct OneToken {
    masters: Arc<[Keyed]>,
    nonce: Box<[u8]>,
}

impl OneToken {
    fn keys(&self) -> impl Iterator<Item = aead::LessSafeKey> {
        self.masters.iter().filter_map(|master| {
            let mut key = master.first_block(&[&self.nonce[..]]);
            let made = aead::UnboundKey::new(&aead::AES_256_GCM, &key).ok().map(aead::LessSafeKey::new);
            key.zeroize();
            made
        })
    }
}

// Each key seals one message, so its nonce may be constant.
fn nonce() -> aead::Nonce {
    aead::Nonce::assume_unique_for_key([0; 12])
}

impl AeadKey for OneToken {
    fn seal(&self, data: &mut Vec<u8>, additional_data: &[u8]) -> Result<(), CryptoError> {
        let key = self.keys().next().ok_or(CryptoError)?;
        key.seal_in_place_append_tag(nonce(), aead::Aad::from(additional_data), data).map_err(|_| CryptoError)
    }

    fn open<'a>(&self, data: &'a mut [u8], additional_data: &[u8]) -> Result<&'a mut [u8], CryptoError> {
        let sealed = data.to_vec();
        for key in self.keys() {
            // Opening in place destroys what was sealed under another key.
            data.copy_from_slice(&sealed);
            if let Ok(plain) = key.open_in_place(nonce(), aead::Aad::from(additional_data), data) {
                let n = plain.len();
                return Ok(&mut data[..n]);
            }
        }
        Err(CryptoError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(masters: &[u8]) -> TicketKeys {
        let masters = masters.iter().map(|m| [*m; 32]).collect();
        TicketKeys { epoch: 1, masters, lifetime: 60, reset: [9; 32] }
    }

    #[test]
    fn tokens_outlive_one_rotation() {
        let mut token = b"who you are".to_vec();
        TokenKey::new(&ring(&[1])).aead_from_hkdf(b"nonce").seal(&mut token, b"").unwrap();
        let opened = |masters: &[u8], nonce: &[u8]| {
            let mut sealed = token.clone();
            TokenKey::new(&ring(masters)).aead_from_hkdf(nonce).open(&mut sealed, b"").map(|p| p.to_vec()).ok()
        };
        assert_eq!(opened(&[1], b"nonce").as_deref(), Some(&b"who you are"[..]));
        assert_eq!(opened(&[2, 1], b"nonce").as_deref(), Some(&b"who you are"[..]));
        assert_eq!(opened(&[3, 2], b"nonce"), None);
        assert_eq!(opened(&[1], b"other"), None);
    }

    #[test]
    fn reset_tokens_outlive_all_rotations() {
        let (mut a, mut b, mut c) = ([0; 32], [0; 32], [0; 32]);
        ResetKey::new(&ring(&[1])).sign(b"id", &mut a);
        ResetKey::new(&ring(&[5, 4])).sign(b"id", &mut b);
        ResetKey::new(&ring(&[1])).sign(b"other", &mut c);
        assert_eq!(a, b);
        assert_ne!(a, c);
        assert!(ResetKey::new(&ring(&[7])).verify(b"id", &a).is_ok());
    }
}
