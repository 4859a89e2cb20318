//! The ciphers, and the two keys of a data-channel key.

use super::aead::Ready as Aead;

/// A cipher of the data channel. There are no others: all are AEADs that the kernel's data channel has, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cipher {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

impl Cipher {
    /// All, the preferred first.
    pub const ALL: [Cipher; 3] = [Cipher::Aes256Gcm, Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305];

    /// The name in options and in `IV_CIPHERS`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "AES-128-GCM",
            Self::Aes256Gcm => "AES-256-GCM",
            Self::ChaCha20Poly1305 => "CHACHA20-POLY1305",
        }
    }

    /// Finds a cipher by name; OpenVPN's names are not case-sensitive.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.name().eq_ignore_ascii_case(name))
    }

    /// Bytes of a key.
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }

    /// Most blocks of 16 bytes plus messages under one key, `None` where there is no limit to speak of.
    ///
    /// draft-irtf-cfrg-aead-limits §5.1: q + s ≤ p^(1/2) · 2^(129/2) − 1, with p = 2^-57, which is what OpenVPN 2.7
    /// uses, too. ChaCha20-Poly1305's limit is beyond what its packet ids can count (§5.2).
    pub const fn usage_limit(self) -> Option<u64> {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm => Some((1 << 36) - 1),
            Self::ChaCha20Poly1305 => None,
        }
    }

    /// Failed openings after which a key must not be used any more (the same draft: 2^36 with a margin).
    pub const FORGERY_LIMIT: u64 = 1 << 36;

    /// The key made ready. `None` when `key` is too short.
    pub(super) fn ready(self, key: &[u8]) -> Option<Aead> {
        Aead::new(self, key)
    }
}

/// What one direction's packets are sealed with: bytes as the key exchange gave them.
///
/// In the epoch format `key` is the first epoch's secret (all 32 bytes, whatever the cipher) and `tail` is unused.
#[derive(Clone, PartialEq, Eq)]
pub struct DirectionKey {
    /// The cipher's key: its first [`Cipher::key_len`] bytes.
    pub key: [u8; 32],
    /// The last eight bytes of every nonce; the packet id comes before them.
    pub tail: [u8; 8],
}

impl std::fmt::Debug for DirectionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys are never printed.
        f.write_str("DirectionKey")
    }
}

impl Drop for DirectionKey {
    fn drop(&mut self) {
        wipe(&mut self.key);
        wipe(&mut self.tail);
    }
}

/// Overwrites a secret. The barrier keeps the compiler from leaving out stores that nobody reads.
pub(crate) fn wipe(secret: &mut [u8]) {
    secret.fill(0);
    std::hint::black_box(secret);
}

/// Both directions of a data-channel key, as one side sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// Seals what this side sends.
    pub encrypt: DirectionKey,
    /// Opens what it receives.
    pub decrypt: DirectionKey,
}

impl KeyPair {
    /// From the 256 bytes that both key derivations give: two keys, each 64 bytes for the cipher and 64 for the MAC,
    /// the first one for what the client sends. An AEAD takes its nonce's tail from the MAC's bytes.
    pub fn from_expansion(expansion: &[u8; 256], server: bool) -> Self {
        let direction = |at: usize| {
            let mut d = DirectionKey { key: [0; 32], tail: [0; 8] };
            d.key.copy_from_slice(&expansion[at..at + 32]);
            d.tail.copy_from_slice(&expansion[at + 64..at + 72]);
            d
        };
        let (client, server_key) = (direction(0), direction(128));
        match server {
            true => Self { encrypt: server_key, decrypt: client },
            false => Self { encrypt: client, decrypt: server_key },
        }
    }
}
