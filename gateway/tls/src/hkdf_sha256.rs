//! HKDF with SHA-256 (RFC 5869), made for TLS 1.3's key schedule: a derived value costs two compressions and little else.
//!
//! A general HMAC carries two unfinished hashes with a block of input each, copies both for every value, and wipes them
//! byte by byte. Of a secret only the hashes' chaining values are kept here, 64 bytes in all, and a message is laid
//! out, padded, in one block on the stack.

use rustls::crypto::hmac;
use rustls::crypto::tls13::{Hkdf, HkdfExpander, OkmBlock, OutputLengthError};
use sha2::block_api::compress256;
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, optimization_barrier};

/// Bytes of SHA-256's blocks, and of its result.
const BLOCK: usize = 64;
const HASH: usize = 32;
/// Where the message's length begins in its last block.
const LENGTH: usize = BLOCK - 8;
/// What a hash begins with (FIPS 180-4 §5.3.3).
const INITIAL: [u32; 8] =
    [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
// RFC 2104 §2.
const INNER: u8 = 0x36;
const OUTER: u8 = 0x5c;

/// A block of input that leaves nothing behind.
struct Block([u8; BLOCK]);

impl Drop for Block {
    fn drop(&mut self) {
        // As one store of each word, where `zeroize` would make one of each byte.
        self.0 = [0; BLOCK];
        optimization_barrier(&self.0);
    }
}

/// HMAC under a key whose two blocks have been hashed.
pub(crate) struct Keyed {
    inner: [u32; 8],
    outer: [u32; 8],
}

impl Drop for Keyed {
    fn drop(&mut self) {
        self.inner.zeroize();
        self.outer.zeroize();
    }
}

impl Keyed {
    pub fn new(key: &[u8]) -> Self {
        let mut block = Block([0; BLOCK]);
        match block.0.get_mut(..key.len()) {
            Some(place) => place.copy_from_slice(key),
            // RFC 2104 §2.
            None => block.0[..HASH].copy_from_slice(&Sha256::digest(key)),
        }
        let mut keyed = Self { inner: INITIAL, outer: INITIAL };
        block.0.iter_mut().for_each(|byte| *byte ^= INNER);
        compress256(&mut keyed.inner, std::slice::from_ref(&block.0));
        block.0.iter_mut().for_each(|byte| *byte ^= INNER ^ OUTER);
        compress256(&mut keyed.outer, std::slice::from_ref(&block.0));
        keyed
    }

    /// What HKDF expands: the extract of a secret (RFC 5869 §2.2). No salt is as many zeroes as the hash has bytes, which is
    /// what HMAC makes of an empty key.
    pub fn extracted(salt: &[u8], secret: &[u8]) -> Self {
        let mut extract = Self::new(salt).mac([secret]);
        let keyed = Self::new(&extract);
        extract = [0; HASH];
        optimization_barrier(&extract);
        keyed
    }

    /// The first block that HKDF expands to (§2.3).
    pub fn first_block(&self, info: &[&[u8]]) -> [u8; HASH] {
        self.mac(info.iter().copied().chain([&[1][..]]))
    }

    /// The code of a message in parts.
    pub fn mac<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; HASH] {
        let mut block = Block([0; BLOCK]);
        let mut state = self.inner;
        // The key's block is part of the message.
        let mut len = BLOCK;
        for mut part in parts {
            let mut at = len % BLOCK;
            len += part.len();
            while part.len() >= BLOCK - at {
                let (now, rest) = part.split_at(BLOCK - at);
                block.0[at..].copy_from_slice(now);
                compress256(&mut state, std::slice::from_ref(&block.0));
                (part, at) = (rest, 0);
            }
            block.0[at..at + part.len()].copy_from_slice(part);
        }
        let at = len % BLOCK;
        block.0[at] = 0x80;
        block.0[at + 1..].fill(0);
        if at >= LENGTH {
            compress256(&mut state, std::slice::from_ref(&block.0));
            block.0 = [0; BLOCK];
        }
        finish(&mut state, &mut block, len);
        put(&state, &mut block);
        block.0[HASH] = 0x80;
        block.0[HASH + 1..].fill(0);
        state = self.outer;
        finish(&mut state, &mut block, BLOCK + HASH);
        put(&state, &mut block);
        state.zeroize();
        let mut code = [0; HASH];
        code.copy_from_slice(&block.0[..HASH]);
        code
    }
}

/// Hashes the last block of a message of so many bytes.
fn finish(state: &mut [u32; 8], block: &mut Block, len: usize) {
    block.0[LENGTH..].copy_from_slice(&(len as u64 * 8).to_be_bytes());
    compress256(state, std::slice::from_ref(&block.0));
}

/// Writes a hash to the beginning of a block.
fn put(state: &[u32; 8], block: &mut Block) {
    for (place, word) in block.0.chunks_exact_mut(4).zip(state) {
        place.copy_from_slice(&word.to_be_bytes());
    }
}

/// HKDF-SHA-256. Without `RECORDS` the keys of TLS records are zeroes: over QUIC rustls derives four pairs of them, too,
/// for the stand-ins of [`no_records`](crate::no_records), which take none.
pub(crate) struct HkdfSha256<const RECORDS: bool>;

impl<const RECORDS: bool> Hkdf for HkdfSha256<RECORDS> {
    fn extract_from_zero_ikm(&self, salt: Option<&[u8]>) -> Box<dyn HkdfExpander> {
        self.extract_from_secret(salt, &[0; HASH])
    }

    fn extract_from_secret(&self, salt: Option<&[u8]>, secret: &[u8]) -> Box<dyn HkdfExpander> {
        Box::new(Expander::<RECORDS>(Keyed::extracted(salt.unwrap_or_default(), secret)))
    }

    fn expander_for_okm(&self, okm: &OkmBlock) -> Box<dyn HkdfExpander> {
        Box::new(Expander::<RECORDS>(Keyed::new(okm.as_ref())))
    }

    fn hmac_sign(&self, key: &OkmBlock, message: &[u8]) -> hmac::Tag {
        hmac::Tag::new(&Keyed::new(key.as_ref()).mac([message]))
    }
}

/// A secret to derive from.
struct Expander<const RECORDS: bool>(Keyed);

/// Whether what is derived is a record's key or its nonces' base, by the label in HKDF-Expand-Label's parts as rustls
/// gives them (length, length of the label, "tls13 ", label, …; RFC 8446 §7.1, §7.3). QUIC's are labelled otherwise
/// (RFC 9001 §5.1).
fn of_a_record(info: &[&[u8]]) -> bool {
    matches!(info, [_, _, b"tls13 ", b"key" | b"iv", ..])
}

impl<const RECORDS: bool> HkdfExpander for Expander<RECORDS> {
    fn expand_slice(&self, info: &[&[u8]], output: &mut [u8]) -> Result<(), OutputLengthError> {
        // §2.3.
        if output.len() > 255 * HASH {
            return Err(OutputLengthError);
        }
        if !RECORDS && of_a_record(info) {
            output.fill(0);
            return Ok(());
        }
        let mut last = [0; HASH];
        let mut used = 0;
        for (piece, number) in output.chunks_mut(HASH).zip(1..=u8::MAX) {
            let number = [number];
            let parts = [&last[..used]].into_iter().chain(info.iter().copied()).chain([&number[..]]);
            let mut block = self.0.mac(parts);
            piece.copy_from_slice(&block[..piece.len()]);
            (last, used) = (block, HASH);
            block = [0; HASH];
            optimization_barrier(&block);
        }
        last = [0; HASH];
        optimization_barrier(&last);
        Ok(())
    }

    fn expand_block(&self, info: &[&[u8]]) -> OkmBlock {
        let mut block = self.0.first_block(info);
        let made = OkmBlock::new(&block);
        block = [0; HASH];
        optimization_barrier(&block);
        made
    }

    fn hash_len(&self) -> usize {
        HASH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derived<const RECORDS: bool>(label: &[u8], n: usize) -> Vec<u8> {
        let mut out = vec![7; n];
        let expander = HkdfSha256::<RECORDS>.extract_from_secret(None, b"secret");
        let length = (n as u16).to_be_bytes();
        let info = [&length[..], &[6 + label.len() as u8], b"tls13 ", label, &[0], &[]];
        expander.expand_slice(&info, &mut out).ok().unwrap();
        out
    }

    #[test]
    fn only_the_keys_of_records_are_left_out() {
        for label in [&b"key"[..], b"iv"] {
            assert_eq!(derived::<false>(label, 12), [0; 12]);
            assert_ne!(derived::<true>(label, 12), [0; 12]);
        }
        for label in [&b"quic key"[..], b"quic iv", b"quic hp", b"finished", b"c hs traffic", b"resumption", b""] {
            let made = derived::<false>(label, 32);
            assert_eq!(made, derived::<true>(label, 32));
            assert_ne!(made, [0; 32]);
        }
    }
}
