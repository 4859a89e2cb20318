//! Values as a store sees them: sealed under keys that are derived from the fleet's secret, which gateways alone have.

use crate::Incarnation;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hkdf, hmac, rand};
use std::fmt;
use zeroize::{Zeroize, Zeroizing};

/// Bytes of the secret.
pub const SECRET_LEN: usize = 32;
const TAG_LEN: usize = 16;

/// The secret that all gateways of a fleet have. It is never in the store.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<[u8; SECRET_LEN]>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

struct Len(usize);

impl hkdf::KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

impl Secret {
    /// These bytes.
    pub fn new(bytes: [u8; SECRET_LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// A key for one purpose and, within it, one subject.
    pub fn derive(&self, purpose: &str, subject: &[u8]) -> Zeroizing<[u8; 32]> {
        let mut key = Zeroizing::new([0; 32]);
        let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, b"sealane fleet v1").extract(&self.0[..]);
        let info = [purpose.as_bytes(), &[0], subject];
        // The length is that of one block, which cannot be refused.
        if let Ok(okm) = prk.expand(&info, Len(32)) {
            let _ = okm.fill(&mut key[..]);
        }
        key
    }

    /// The name under which the store keeps something: it does not tell what.
    pub fn name(&self, purpose: &str, subject: &[u8]) -> String {
        let key = self.derive("names", purpose.as_bytes());
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key[..]), subject);
        tag.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Seals a value. `about` must be the same when it is opened: what the value is for.
    pub fn seal(&self, purpose: &str, about: &[u8], plain: &[u8]) -> Option<Vec<u8>> {
        // The key is for this value alone: it is derived from random bytes, of which there are enough for any number of values.
        let mut salt = [0; 32];
        rand::fill(&mut salt).ok()?;
        let mut out = salt.to_vec();
        let mut sealed = Zeroizing::new(plain.to_vec());
        self.key(purpose, &salt)?.seal_in_place_append_tag(nonce(), Aad::from(about), &mut *sealed).ok()?;
        out.extend_from_slice(&sealed);
        Some(out)
    }

    /// Opens a value that some gateway of the fleet has sealed.
    pub fn open(&self, purpose: &str, about: &[u8], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (salt, rest) = sealed.split_at_checked(32)?;
        let mut plain = Zeroizing::new(rest.to_vec());
        self.key(purpose, salt)?.open_in_place(nonce(), Aad::from(about), &mut plain).ok()?;
        let len = plain.len().checked_sub(TAG_LEN)?;
        plain[len..].zeroize();
        plain.truncate(len);
        Some(plain)
    }

    fn key(&self, purpose: &str, salt: &[u8]) -> Option<LessSafeKey> {
        let key = self.derive(purpose, salt);
        Some(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key[..]).ok()?))
    }
}

/// Each key seals one value.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

/// A value that is worth nothing after the store's data has had another life: the life's id, then what is sealed. The id is
/// authenticated with it.
pub fn bind(incarnation: &Incarnation, sealed: &[u8]) -> Vec<u8> {
    [&incarnation.bytes()[..], sealed].concat()
}

/// The parts of such a value.
pub fn unbind(value: &[u8]) -> Option<(Incarnation, &[u8])> {
    let (id, sealed) = value.split_first_chunk::<{ Incarnation::LEN }>()?;
    Some((Incarnation::from_bytes(*id), sealed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_value_opens_only_as_it_was_sealed() {
        let (secret, other) = (Secret::new([7; 32]), Secret::new([8; 32]));
        let sealed = secret.seal("records", b"policy 1", b"a secret").unwrap();
        assert_eq!(secret.open("records", b"policy 1", &sealed).unwrap()[..], b"a secret"[..]);
        assert!(secret.open("records", b"policy 2", &sealed).is_none());
        assert!(secret.open("keys", b"policy 1", &sealed).is_none());
        assert!(other.open("records", b"policy 1", &sealed).is_none());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(secret.open("records", b"policy 1", &changed).is_none(), "byte {at}");
            assert!(secret.open("records", b"policy 1", &sealed[..at]).is_none(), "{at} bytes");
        }
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
        assert_ne!(secret.seal("records", b"", b"a").unwrap(), secret.seal("records", b"", b"a").unwrap());
    }

    #[test]
    fn names_tell_nothing_and_are_the_same_for_all_gateways() {
        let name = |secret: u8, purpose, subject| Secret::new([secret; 32]).name(purpose, subject);
        assert_eq!(name(1, "records", b"x"), name(1, "records", b"x"));
        assert_eq!(name(1, "records", b"x").len(), 32);
        let all = [name(1, "records", b"x"), name(1, "records", b"y"), name(1, "r", b"x"), name(2, "records", b"x")];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b), "{i}");
        }
    }

    #[test]
    fn a_value_tells_in_which_life_it_was_written() {
        let life = Incarnation::of(&[b"a", b"b"]);
        let value = bind(&life, b"sealed");
        assert_eq!(unbind(&value), Some((life, &b"sealed"[..])));
        assert_eq!(unbind(&value[..15]), None);
        assert_ne!(life, Incarnation::of(&[b"ab", b""]));
    }
}
