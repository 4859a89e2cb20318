//! Stateless session tickets (RFC 5077, RFC 8446 §4.6.1) under keys derived from a rotating master.
//!
//! One [`Ticketer`] belongs to one policy, one lane and one epoch and never changes: rustls' own rotator locks, and a
//! ticketer shared by policies with different client-certificate rules would let a client resume around them. When
//! control publishes a new epoch, the lane makes new ones.
//!
//! A ticket is `key name (16) ‖ nonce (12) ‖ AES-256-GCM(state) ‖ tag (16)`. Where clients show certificates, the state
//! begins with when that was and how long it is good for ([`Limits`]).

use crate::authentication::Limits;
use crate::fips;
use crate::policy::TicketKeys;
use crate::random::LaneRandom;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, RandomizedNonceKey, Tag, UnboundKey};
use aws_lc_rs::hkdf;
use rustls::crypto::SecureRandom;
use rustls::server::ProducesTickets;
use zeroize::{Zeroize, Zeroizing};

const NAME_LEN: usize = 16;
const TAG_LEN: usize = 16;

#[derive(Debug)]
struct Key {
    name: [u8; NAME_LEN],
    // Nonces are random, of 96 bits: far more than there are tickets in an epoch.
    aead: LessSafeKey,
    /// In builds with AWS-LC's FIPS module: the same key, for which the module itself makes the nonces.
    module: Option<RandomizedNonceKey>,
}

impl Key {
    /// Encrypts the state in its place, and puts the nonce into its own.
    fn seal(&self, place: &mut [u8], state: &mut [u8]) -> Option<Tag> {
        if let Some(module) = &self.module {
            let (nonce, tag) = module.seal_in_place_separate_tag(Aad::from(&self.name), state).ok()?;
            let nonce: &[u8; NONCE_LEN] = nonce.as_ref();
            place.copy_from_slice(nonce);
            return Some(tag);
        }
        LaneRandom.fill(place).ok()?;
        let nonce = Nonce::try_assume_unique_for_key(place).ok()?;
        self.aead.seal_in_place_separate_tag(nonce, Aad::from(&self.name), state).ok()
    }
}

/// Seals under the newest master, opens under all.
#[derive(Debug)]
pub(crate) struct Ticketer {
    keys: Vec<Key>,
    lifetime: u32,
    limits: Option<Limits>,
}

impl Ticketer {
    /// Derives the keys of a policy; `limits` where it asks for client certificates. `None` if there is no master or the
    /// library refuses (it does not).
    pub(crate) fn new(ring: &TicketKeys, policy: &[u8; 16], limits: Option<Limits>) -> Option<Self> {
        let keys: Option<Vec<Key>> =
            ring.masters.iter().map(|master| derive(master, policy, limits.is_some())).collect();
        let keys = keys.filter(|k| !k.is_empty())?;
        Some(Self { keys, lifetime: ring.lifetime, limits })
    }
}

struct Len(usize);

impl hkdf::KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

/// Each form of ticket has keys of its own, so that none is read as another.
fn derive(master: &[u8; 32], policy: &[u8; 16], authenticated: bool) -> Option<Key> {
    let form: &[u8] = if authenticated { b"sealane ticket v2" } else { b"sealane ticket v1" };
    let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, form).extract(master);
    let mut okm = [0; NAME_LEN + 32];
    prk.expand(&[policy], Len(okm.len())).ok()?.fill(&mut okm).ok()?;
    let mut name = [0; NAME_LEN];
    name.copy_from_slice(&okm[..NAME_LEN]);
    let key = UnboundKey::new(&AES_256_GCM, &okm[NAME_LEN..]).ok();
    let module = fips::BUILD.then(|| RandomizedNonceKey::new(&AES_256_GCM, &okm[NAME_LEN..])).transpose().ok();
    okm.zeroize();
    Some(Key { name, aead: LessSafeKey::new(key?), module: module? })
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.lifetime
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let key = self.keys.first()?;
        let wrapped = self.limits.map(|limits| Zeroizing::new(limits.wrap(plain)));
        let plain = wrapped.as_ref().map_or(plain, |w| &w[..]);
        let mut ticket = Vec::with_capacity(NAME_LEN + NONCE_LEN + plain.len() + TAG_LEN);
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(&[0; NONCE_LEN]);
        ticket.extend_from_slice(plain);
        let (place, state) = ticket[NAME_LEN..].split_at_mut(NONCE_LEN);
        let tag = key.seal(place, state)?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = cipher.split_at_checked(NAME_LEN)?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN)?;
        // The name is no secret; only what it leads to is.
        let key = self.keys.iter().find(|k| k.name == name)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut state = sealed.to_vec();
        let len = key.aead.open_in_place(nonce, Aad::from(&key.name), &mut state).ok()?.len();
        state.truncate(len);
        let Some(limits) = self.limits else { return Some(state) };
        let state = Zeroizing::new(state);
        limits.unwrap(&state).map(<[u8]>::to_vec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(masters: &[u8]) -> TicketKeys {
        TicketKeys { epoch: 1, masters: masters.iter().map(|m| [*m; 32]).collect(), lifetime: 60, reset: [0; 32] }
    }

    #[test]
    fn opened_by_every_lane_and_by_the_next_epoch_only() {
        let a = Ticketer::new(&ring(&[1]), &[0; 16], None).unwrap();
        let ticket = a.encrypt(b"state").unwrap();
        let other_lane = Ticketer::new(&ring(&[1]), &[0; 16], None).unwrap();
        let next_epoch = Ticketer::new(&ring(&[2, 1]), &[0; 16], None).unwrap();
        let later = Ticketer::new(&ring(&[3, 2]), &[0; 16], None).unwrap();
        let other_policy = Ticketer::new(&ring(&[1]), &[1; 16], None).unwrap();
        assert_eq!(other_lane.decrypt(&ticket).as_deref(), Some(&b"state"[..]));
        assert_eq!(next_epoch.decrypt(&ticket).as_deref(), Some(&b"state"[..]));
        assert_eq!(later.decrypt(&ticket), None);
        assert_eq!(other_policy.decrypt(&ticket), None);
        assert_ne!(a.encrypt(b"state").unwrap(), ticket, "nonces differ");
    }

    #[test]
    fn every_changed_or_missing_byte_is_noticed() {
        let t = Ticketer::new(&ring(&[1]), &[0; 16], None).unwrap();
        let ticket = t.encrypt(b"some state").unwrap();
        for at in 0..ticket.len() {
            let mut bad = ticket.clone();
            bad[at] ^= 1;
            assert_eq!(t.decrypt(&bad), None, "byte {at}");
            assert_eq!(t.decrypt(&ticket[..at]), None, "length {at}");
        }
    }
}
