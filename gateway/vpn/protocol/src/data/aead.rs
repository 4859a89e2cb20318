//! A cipher's key made ready, and who computes with it.
//!
//! AWS-LC does, but for AES-GCM on x86-64 processors that have its instructions for vectors of 256 bits and not for those
//! of 512: there AWS-LC goes block by block, and ring two blocks at a time (`docs/measurements/tunnel`). Both are asked in
//! the same words, and `tests` sees to it that they say the same.

use super::cipher::Cipher;
use super::{NONCE, TAG};
use aws_lc_rs::aead as aws;

/// It is not authentic; or, of sealing, longer than any packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed;

/// A key made ready.
pub(super) enum Ready {
    AwsLc(aws::LessSafeKey),
    #[cfg(target_arch = "x86_64")]
    Ring(Box<ring::aead::LessSafeKey>),
}

/// Whether ring is the faster one here. Who tells AWS-LC what the processor can do (`OPENSSL_ia32cap`) wants that: ring
/// does not look there.
#[cfg(target_arch = "x86_64")]
fn wide_but_not_widest() -> bool {
    use std::sync::LazyLock;
    static ANSWER: LazyLock<bool> = LazyLock::new(|| {
        let wide = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("vaes")
            && is_x86_feature_detected!("vpclmulqdq");
        wide && !is_x86_feature_detected!("avx512f") && std::env::var_os("OPENSSL_ia32cap").is_none()
    });
    *ANSWER
}

impl Ready {
    /// `None` when `key` is too short.
    pub(super) fn new(cipher: Cipher, key: &[u8]) -> Option<Self> {
        let key = key.get(..cipher.key_len())?;
        #[cfg(target_arch = "x86_64")]
        if wide_but_not_widest()
            && let Some(ready) = Self::ring(cipher, key)
        {
            return Some(ready);
        }
        Self::aws_lc(cipher, key)
    }

    fn aws_lc(cipher: Cipher, key: &[u8]) -> Option<Self> {
        let algorithm = match cipher {
            Cipher::Aes128Gcm => &aws::AES_128_GCM,
            Cipher::Aes256Gcm => &aws::AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &aws::CHACHA20_POLY1305,
        };
        aws::UnboundKey::new(algorithm, key).ok().map(|key| Self::AwsLc(aws::LessSafeKey::new(key)))
    }

    #[cfg(target_arch = "x86_64")]
    fn ring(cipher: Cipher, key: &[u8]) -> Option<Self> {
        use ring::aead;
        let algorithm = match cipher {
            Cipher::Aes128Gcm => &aead::AES_128_GCM,
            Cipher::Aes256Gcm => &aead::AES_256_GCM,
            Cipher::ChaCha20Poly1305 => return None,
        };
        aead::UnboundKey::new(algorithm, key).ok().map(|key| Self::Ring(Box::new(aead::LessSafeKey::new(key))))
    }

    /// Seals `plain` into `text`, which is as long, and the tag into `tag`.
    #[inline]
    pub(super) fn seal(
        &self,
        nonce: [u8; NONCE],
        aad: &[u8],
        plain: &[u8],
        text: &mut [u8],
        tag: &mut [u8],
    ) -> Result<(), Failed> {
        match self {
            Self::AwsLc(key) => {
                let nonce = aws::Nonce::assume_unique_for_key(nonce);
                key.seal_out_of_place_scatter(nonce, aws::Aad::from(aad), plain, text, &[], tag).map_err(|_| Failed)
            }
            #[cfg(target_arch = "x86_64")]
            Self::Ring(_) => {
                text.copy_from_slice(plain);
                self.seal_in_place(nonce, aad, text, tag)
            }
        }
    }

    /// Seals `text` where it lies.
    #[inline]
    pub(super) fn seal_in_place(
        &self,
        nonce: [u8; NONCE],
        aad: &[u8],
        text: &mut [u8],
        tag: &mut [u8],
    ) -> Result<(), Failed> {
        match self {
            Self::AwsLc(key) => {
                let nonce = aws::Nonce::assume_unique_for_key(nonce);
                let sealed = key.seal_in_place_separate_tag(nonce, aws::Aad::from(aad), text).map_err(|_| Failed)?;
                tag.copy_from_slice(sealed.as_ref());
            }
            #[cfg(target_arch = "x86_64")]
            Self::Ring(key) => {
                let (nonce, aad) = (ring::aead::Nonce::assume_unique_for_key(nonce), ring::aead::Aad::from(aad));
                let sealed = key.seal_in_place_separate_tag(nonce, aad, text).map_err(|_| Failed)?;
                tag.copy_from_slice(sealed.as_ref());
            }
        }
        Ok(())
    }

    /// Opens `text` into `plain`, which is as long.
    #[inline]
    pub(super) fn open(
        &self,
        nonce: [u8; NONCE],
        aad: &[u8],
        text: &[u8],
        tag: &[u8; TAG],
        plain: &mut [u8],
    ) -> Result<(), Failed> {
        match self {
            Self::AwsLc(key) => {
                let nonce = aws::Nonce::assume_unique_for_key(nonce);
                key.open_separate_gather(nonce, aws::Aad::from(aad), text, tag, plain).map_err(|_| Failed)
            }
            #[cfg(target_arch = "x86_64")]
            Self::Ring(_) => {
                plain.copy_from_slice(text);
                self.open_in_place(nonce, aad, plain, tag)
            }
        }
    }

    /// Opens `text` where it lies.
    #[inline]
    pub(super) fn open_in_place(
        &self,
        nonce: [u8; NONCE],
        aad: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG],
    ) -> Result<(), Failed> {
        match self {
            Self::AwsLc(key) => {
                let nonce = aws::Nonce::assume_unique_for_key(nonce);
                let opened = key.open_in_place_separate_tag(nonce, aws::Aad::from(aad), tag, text);
                opened.map(|_| ()).map_err(|_| Failed)
            }
            #[cfg(target_arch = "x86_64")]
            Self::Ring(key) => {
                let (nonce, aad) = (ring::aead::Nonce::assume_unique_for_key(nonce), ring::aead::Aad::from(aad));
                let opened = key.open_in_place_separate_tag(nonce, aad, (*tag).into(), text, 0..);
                opened.map(|_| ()).map_err(|_| Failed)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length up to some blocks, and a packet's: what one seals the other opens, and nobody opens what was changed.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn both_say_the_same() {
        let key: [u8; 32] = std::array::from_fn(|i| i as u8);
        for cipher in [Cipher::Aes128Gcm, Cipher::Aes256Gcm] {
            let key = &key[..cipher.key_len()];
            let (a, b) = (Ready::aws_lc(cipher, key).expect("a key"), Ready::ring(cipher, key).expect("a key"));
            for length in (1..700).chain([1399, 1400, 1440, 8999]) {
                let plain: Vec<u8> = (0..length).map(|i| (i * 7) as u8).collect();
                let nonce = std::array::from_fn(|i| (i + length) as u8);
                let aad = &[9, 8, 7, 6, 5, 4, 3, 2][..if length % 2 == 0 { 8 } else { 4 }];
                let sealed = [&a, &b].map(|ready| {
                    let (mut text, mut tag) = (vec![0; length], [0; TAG]);
                    ready.seal(nonce, aad, &plain, &mut text, &mut tag).expect("sealed");
                    let (mut place, mut again) = (plain.clone(), [0; TAG]);
                    ready.seal_in_place(nonce, aad, &mut place, &mut again).expect("sealed");
                    assert!(text == place && tag == again, "{length}");
                    (text, tag)
                });
                assert!(sealed[0] == sealed[1], "{cipher:?} {length}");
                let (text, mut tag) = sealed[0].clone();
                for ready in [&a, &b] {
                    let mut opened = vec![0; length];
                    assert_eq!(ready.open(nonce, aad, &text, &tag, &mut opened), Ok(()));
                    assert_eq!(opened, plain);
                    let mut place = text.clone();
                    assert_eq!(ready.open_in_place(nonce, aad, &mut place, &tag), Ok(()));
                    assert_eq!(place, plain);
                }
                tag[length % TAG] ^= 1;
                for ready in [&a, &b] {
                    assert_eq!(ready.open_in_place(nonce, aad, &mut text.clone(), &tag), Err(Failed));
                }
            }
        }
    }

    /// With each library: valid vectors are sealed and opened, and packets that are not authentic are refused.
    #[test]
    fn wycheproof() {
        let files = [
            include_str!("../../../../../tests/vectors/wycheproof/aes_gcm.json"),
            include_str!("../../../../../tests/vectors/wycheproof/chacha20_poly1305.json"),
        ];
        let mut tried = [0, 0];
        for file in files {
            let file: serde_json::Value = serde_json::from_str(file).expect("the file is JSON");
            let is_gcm = file["algorithm"] == "AES-GCM";
            for group in file["groups"].as_array().expect("it has groups") {
                let cipher = match (is_gcm, group["keySize"].as_u64()) {
                    (true, Some(128)) => Cipher::Aes128Gcm,
                    (true, Some(256)) => Cipher::Aes256Gcm,
                    (false, Some(256)) => Cipher::ChaCha20Poly1305,
                    _ => continue,
                };
                for test in group["tests"].as_array().expect("it has tests") {
                    let bytes = |name: &str| {
                        let text = test[name].as_str().expect("it is hexadecimal");
                        let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("it is hexadecimal");
                        (0..text.len()).step_by(2).map(byte).collect::<Vec<u8>>()
                    };
                    // A packet's nonce and tag have one size.
                    let (Ok(nonce), Ok(tag)) = (bytes("iv").try_into(), <[u8; TAG]>::try_from(bytes("tag"))) else {
                        continue;
                    };
                    let nonce: [u8; NONCE] = nonce;
                    let (key, aad, plain, text) = (bytes("key"), bytes("aad"), bytes("msg"), bytes("ct"));
                    let all = [
                        Ready::aws_lc(cipher, &key),
                        #[cfg(target_arch = "x86_64")]
                        Ready::ring(cipher, &key),
                    ];
                    let is_valid = test["result"] == "valid";
                    for ready in all.into_iter().flatten() {
                        let what = format!("{cipher:?}, test {}", test["tcId"]);
                        let (mut opened, mut place) = (vec![0; text.len()], text.clone());
                        assert_eq!(ready.open(nonce, &aad, &text, &tag, &mut opened).is_ok(), is_valid, "{what}");
                        assert_eq!(ready.open_in_place(nonce, &aad, &mut place, &tag).is_ok(), is_valid, "{what}");
                        if is_valid {
                            assert_eq!((&opened, &place), (&plain, &plain), "{what}");
                            let (mut sealed, mut made) = (vec![0; plain.len()], [0; TAG]);
                            ready.seal(nonce, &aad, &plain, &mut sealed, &mut made).expect("it is short");
                            assert_eq!((&sealed, made), (&text, tag), "{what}");
                            let (mut place, mut made) = (plain.clone(), [0; TAG]);
                            ready.seal_in_place(nonce, &aad, &mut place, &mut made).expect("it is short");
                            assert_eq!((&place, made), (&text, tag), "{what}");
                        }
                        tried[usize::from(is_valid)] += 1;
                    }
                }
            }
        }
        assert!(tried[0] >= 100 && tried[1] >= 200, "{tried:?}");
    }
}
