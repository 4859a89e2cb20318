//! Identifiers that name a lane, with proof that this gateway made them.
//!
//! A QUIC connection id names the lane that has the connection; a TLS 1.2 session id and a single-use ticket name the lane
//! that has the session. A client that could forge one could make any lane pass datagrams and connections on to any other. So
//! each carries a short MAC. A lane checks it only before it passes something on: what is for itself is looked up as it is.

use crate::hkdf_sha256::Keyed;
use crate::policy::TicketKeys;
use crate::random;
use aws_lc_rs::aead::quic::{AES_128, HeaderProtectionKey};
use aws_lc_rs::constant_time;
use zeroize::Zeroize;

/// Bytes of a MAC: a forger gets one datagram in 2⁴⁰ passed on.
pub const MAC_LEN: usize = 5;
/// Most bytes that a MAC covers: AES' block.
const BLOCK: usize = 16;

/// Makes and checks the MACs of one kind of identifier. The MAC is the beginning of one block of AES-128, which is a
/// pseudorandom function of inputs of one length: each key is for identifiers of one form.
pub struct IdKey(Option<HeaderProtectionKey>);

impl std::fmt::Debug for IdKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IdKey")
    }
}

impl IdKey {
    /// For QUIC connection ids. Derived from the key of stateless resets, which a successor is given at an upgrade: it
    /// can tell its predecessors' ids.
    pub fn of_connections(keys: &TicketKeys) -> Self {
        let mut key = Keyed::new(&keys.reset).mac([&b"sealane connection id v1"[..]]);
        let made = Self::new(&key[..16]);
        key.zeroize();
        made
    }

    /// For ids that mean nothing beyond this process.
    pub fn random() -> Self {
        let mut key = [0; 16];
        random::fill(&mut key);
        let made = Self::new(&key);
        key.zeroize();
        made
    }

    /// For ids that several gateways understand: under a key that all of them have.
    pub fn shared(key: &[u8; 16]) -> Self {
        Self::new(key)
    }

    fn new(key: &[u8]) -> Self {
        // It fails for a key of another length only. Without a key nothing is verified, and so nothing is passed on.
        Self(HeaderProtectionKey::new(&AES_128, key).ok())
    }

    /// The MAC of an identifier's other bytes: `BLOCK` at most, and always as many.
    pub fn mac(&self, covered: &[u8]) -> [u8; MAC_LEN] {
        let mut block = [0; BLOCK];
        let n = covered.len().min(BLOCK);
        block[..n].copy_from_slice(&covered[..n]);
        self.0.as_ref().and_then(|key| key.new_mask(&block).ok()).unwrap_or_default()
    }

    /// Whether a MAC is that of these bytes.
    pub fn verify(&self, covered: &[u8], mac: &[u8]) -> bool {
        self.0.is_some() && constant_time::verify_slices_are_equal(&self.mac(covered), mac).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_key_s_macs_are_good() {
        let (key, other) = (IdKey::random(), IdKey::random());
        let covered = [7; 11];
        let mac = key.mac(&covered);
        assert!(key.verify(&covered, &mac) && !other.verify(&covered, &mac));
        for at in 0..covered.len() {
            let mut changed = covered;
            changed[at] ^= 1;
            assert!(!key.verify(&changed, &mac), "byte {at}");
        }
        assert!(!key.verify(&covered, &mac[..4]) && !key.verify(&covered, &[0; MAC_LEN]));
        let keys = |reset| TicketKeys { epoch: 1, masters: vec![[1; 32]], lifetime: 1, reset: [reset; 32] };
        // A successor's key is the same, whatever has become of the tickets' keys.
        let later = TicketKeys { epoch: 2, masters: vec![[2; 32]], lifetime: 1, reset: [9; 32] };
        let mac = IdKey::of_connections(&keys(9)).mac(&covered);
        assert!(IdKey::of_connections(&later).verify(&covered, &mac));
        assert!(!IdKey::of_connections(&keys(8)).verify(&covered, &mac));
    }
}
