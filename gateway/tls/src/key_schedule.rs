//! The hashes of TLS 1.3's suites: transcripts, and HKDF for the key schedule, from RustCrypto.
//!
//! A handshake derives some thirty values over TCP and twice as many over QUIC, each of a few blocks of SHA-2. Through
//! aws-lc-rs a derivation sets up and tears down HMAC contexts on the heap, and one from an extracted secret repeats the
//! extraction (*measured*: 9 % of a QUIC handshake). Here a secret's two inner states are made once and lie beside each
//! other, and are wiped when dropped; [`hkdf_sha256`](crate::hkdf_sha256) is the usual case. Records, packets,
//! signatures and key exchange stay with aws-lc.
//!
//! SHA-2 takes no branch and no address from what it hashes, so all of this runs in constant time.
//!
//! In builds with AWS-LC's FIPS module, suites have the module's hashes and HKDF instead.

use crate::early_skip::WatchedAead;
use crate::fips;
use crate::hkdf_sha256::HkdfSha256;
use aws_lc_rs::aead;
use hkdf::HmacImpl;
use hkdf::hmac::Hmac;
use hkdf::hmac::digest::Output;
use rustls::crypto::cipher::Tls13AeadAlgorithm;
use rustls::crypto::hash::{self, HashAlgorithm};
use rustls::crypto::tls13::{Hkdf, HkdfExpander, OkmBlock, OutputLengthError};
use rustls::crypto::{CipherSuiteCommon, hmac};
use rustls::{CipherSuite, SupportedCipherSuite, Tls13CipherSuite};
use sha2::{Digest, Sha256, Sha384};
use std::marker::PhantomData;
use zeroize::Zeroize;

/// A suite with its hashes from here. `records`, where given, stand in for its record keys, which are not derived then.
///
/// The result lives as long as the process: this is called once per suite.
pub(crate) fn suite(
    theirs: SupportedCipherSuite,
    records: Option<&'static dyn Tls13AeadAlgorithm>,
) -> SupportedCipherSuite {
    let Some(base) = theirs.tls13() else { return theirs };
    let (hash_provider, hkdf_provider): (&dyn hash::Hash, &dyn Hkdf) = match base.common.hash_provider.algorithm() {
        _ if fips::BUILD => (base.common.hash_provider, base.hkdf_provider),
        HashAlgorithm::SHA256 => {
            let hkdf: &dyn Hkdf = if records.is_some() { &HkdfSha256::<false> } else { &HkdfSha256::<true> };
            (&Sha::<Sha256>(HashAlgorithm::SHA256, PhantomData), hkdf)
        }
        HashAlgorithm::SHA384 => {
            (&Sha::<Sha384>(HashAlgorithm::SHA384, PhantomData), &Derive::<Hmac<Sha384>>(PhantomData))
        }
        _ => return theirs,
    };
    let algorithm = match base.common.suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => &aead::AES_128_GCM,
        CipherSuite::TLS13_AES_256_GCM_SHA384 => &aead::AES_256_GCM,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => &aead::CHACHA20_POLY1305,
        _ => return theirs,
    };
    let over_tcp =
        || -> &dyn Tls13AeadAlgorithm { Box::leak(Box::new(WatchedAead { inner: base.aead_alg, algorithm })) };
    SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: base.common.suite,
            hash_provider,
            confidentiality_limit: base.common.confidentiality_limit,
        },
        hkdf_provider,
        aead_alg: records.unwrap_or_else(over_tcp),
        quic: base.quic,
    })))
}

/// A hash function, by its name and implementation.
struct Sha<D>(HashAlgorithm, PhantomData<D>);

impl<D: Digest + Clone + Send + Sync + 'static> hash::Hash for Sha<D> {
    fn start(&self) -> Box<dyn hash::Context> {
        Box::new(Transcript(D::new()))
    }

    fn hash(&self, data: &[u8]) -> hash::Output {
        hash::Output::new(&D::digest(data))
    }

    fn output_len(&self) -> usize {
        <D as Digest>::output_size()
    }

    fn algorithm(&self) -> HashAlgorithm {
        self.0
    }
}

/// A hash under way.
struct Transcript<D>(D);

impl<D: Digest + Clone + Send + Sync + 'static> hash::Context for Transcript<D> {
    fn fork_finish(&self) -> hash::Output {
        hash::Output::new(&self.0.clone().finalize())
    }

    fn fork(&self) -> Box<dyn hash::Context> {
        Box::new(Self(self.0.clone()))
    }

    fn finish(self: Box<Self>) -> hash::Output {
        hash::Output::new(&self.0.finalize())
    }

    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }
}

/// HKDF (RFC 5869) over an HMAC.
struct Derive<H>(PhantomData<fn() -> H>);

impl<H: HmacImpl + Send + Sync + 'static> Hkdf for Derive<H> {
    fn extract_from_zero_ikm(&self, salt: Option<&[u8]>) -> Box<dyn HkdfExpander> {
        self.extract_from_secret(salt, &[0; OkmBlock::MAX_LEN][..H::output_size()])
    }

    fn extract_from_secret(&self, salt: Option<&[u8]>, secret: &[u8]) -> Box<dyn HkdfExpander> {
        // §2.2: no salt is as many zeroes as the hash has bytes, which is what HMAC makes of an empty key.
        let mut hmac = H::new_from_slice(salt.unwrap_or_default());
        hmac.update(secret);
        let mut extracted = hmac.finalize();
        let expander = Expander(H::new_from_slice(&extracted));
        extracted.as_mut_slice().zeroize();
        Box::new(expander)
    }

    fn expander_for_okm(&self, okm: &OkmBlock) -> Box<dyn HkdfExpander> {
        Box::new(Expander(H::new_from_slice(okm.as_ref())))
    }

    fn hmac_sign(&self, key: &OkmBlock, message: &[u8]) -> hmac::Tag {
        let mut hmac = H::new_from_slice(key.as_ref());
        hmac.update(message);
        hmac::Tag::new(&hmac.finalize())
    }
}

/// A secret to derive from.
struct Expander<H>(H);

impl<H: HmacImpl + Send + Sync + 'static> HkdfExpander for Expander<H> {
    fn expand_slice(&self, info: &[&[u8]], output: &mut [u8]) -> Result<(), OutputLengthError> {
        // §2.3.
        if output.len() > 255 * self.hash_len() {
            return Err(OutputLengthError);
        }
        let mut previous: Option<Output<H>> = None;
        for (piece, number) in output.chunks_mut(self.hash_len()).zip(1..=u8::MAX) {
            let mut hmac = self.0.clone();
            if let Some(previous) = &previous {
                hmac.update(previous);
            }
            info.iter().for_each(|part| hmac.update(part));
            hmac.update(&[number]);
            let mut block = hmac.finalize();
            piece.copy_from_slice(&block[..piece.len()]);
            previous.get_or_insert_default().copy_from_slice(&block);
            block.as_mut_slice().zeroize();
        }
        if let Some(last) = &mut previous {
            last.as_mut_slice().zeroize();
        }
        Ok(())
    }

    fn expand_block(&self, info: &[&[u8]]) -> OkmBlock {
        let mut block = [0; OkmBlock::MAX_LEN];
        let block = &mut block[..self.hash_len()];
        // One block is within the limit.
        let _ = self.expand_slice(info, block);
        let made = OkmBlock::new(block);
        block.zeroize();
        made
    }

    fn hash_len(&self) -> usize {
        H::output_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hkdf_sha256::Keyed;
    use crate::testing::{Seeded, Vector, Verdict, hex};
    use rustls::crypto::aws_lc_rs::cipher_suite as cs;

    fn both(theirs: SupportedCipherSuite) -> [&'static Tls13CipherSuite; 2] {
        [theirs.tls13().unwrap(), suite(theirs, None).tls13().unwrap()]
    }

    const SUITES: [SupportedCipherSuite; 3] =
        [cs::TLS13_AES_128_GCM_SHA256, cs::TLS13_AES_256_GCM_SHA384, cs::TLS13_CHACHA20_POLY1305_SHA256];

    #[test]
    fn rfc_5869_s_examples() {
        rfc_5869_s_examples_with(&Derive::<Hmac<Sha256>>(PhantomData));
        rfc_5869_s_examples_with(&HkdfSha256::<true>);
        rfc_5869_s_examples_with(&HkdfSha256::<false>);
    }

    fn rfc_5869_s_examples_with(hkdf: &dyn Hkdf) {
        // §A.1 and §A.2, whose output is of several blocks.
        let mut out = [0; 42];
        let salt: Vec<u8> = (0..=0x0c).collect();
        let info: Vec<u8> = (0xf0..=0xf9).collect();
        let expander = hkdf.extract_from_secret(Some(&salt), &[0x0b; 22]);
        expander.expand_slice(&[&info[..4], &info[4..]], &mut out).ok().unwrap();
        let known = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865";
        assert_eq!(out[..], hex(known));
        let bytes = |from: u8, to: u8| (from..=to).collect::<Vec<u8>>();
        let mut out = [0; 82];
        let expander = hkdf.extract_from_secret(Some(&bytes(0x60, 0xaf)), &bytes(0, 0x4f));
        expander.expand_slice(&[&bytes(0xb0, 0xff)], &mut out).ok().unwrap();
        let known = "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87";
        assert_eq!(out[..], hex(known));
        assert!(expander.expand_slice(&[], &mut [0; 255 * 32]).is_ok());
        assert!(expander.expand_slice(&[], &mut [0; 255 * 32 + 1]).is_err());
    }

    #[test]
    fn derivations_are_those_of_aws_lc() {
        let long: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for theirs in SUITES {
            let [theirs, ours] = both(theirs).map(|s| s.hkdf_provider);
            let size = ours.extract_from_zero_ikm(None).hash_len();
            // Around the lengths at which another block begins.
            for n in [0, 1, 31, 32, 33, 47, 48, 54, 55, 56, 63, 64, 65, 111, 112, 127, 128, 129, 200, 1000] {
                let data = &long[..n];
                let with = |hkdf: &dyn Hkdf| {
                    let salted = hkdf.extract_from_secret(Some(data), &long[..size]);
                    let unsalted = hkdf.extract_from_secret(None, data);
                    let okm = salted.expand_block(&[data, &long[..n / 2]]);
                    let mut slice = vec![0; 3 * n / 2];
                    hkdf.expander_for_okm(&okm).expand_slice(&[b"label", data], &mut slice).ok().unwrap();
                    let zero = hkdf.extract_from_zero_ikm(Some(data)).expand_block(&[]);
                    let zeroes = hkdf.extract_from_zero_ikm(None).expand_block(&[data]);
                    let tag = hkdf.hmac_sign(&okm, data);
                    let blocks = [&okm, &unsalted.expand_block(&[b"x"]), &zero, &zeroes].map(|b| b.as_ref().to_vec());
                    (blocks, slice, tag.as_ref().to_vec(), salted.hash_len())
                };
                assert_eq!(with(theirs), with(ours), "{n} bytes");
            }
        }
    }

    #[test]
    fn hashes_are_those_of_aws_lc() {
        let long: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for theirs in SUITES {
            let [theirs, ours] = both(theirs).map(|s| s.common.hash_provider);
            assert_eq!((theirs.output_len(), theirs.algorithm()), (ours.output_len(), ours.algorithm()));
            for n in [0, 1, 55, 56, 63, 64, 65, 111, 112, 127, 128, 1000] {
                let with = |hash: &dyn hash::Hash| {
                    let mut context = hash.start();
                    context.update(&long[..n / 3]);
                    let mut fork = context.fork();
                    context.update(&long[n / 3..n]);
                    let early = context.fork_finish();
                    context.update(&long[..n]);
                    fork.update(b"fork");
                    [hash.hash(&long[..n]), early, context.finish(), fork.finish()].map(|o| o.as_ref().to_vec())
                };
                assert_eq!(with(theirs), with(ours), "{n} bytes");
            }
        }
    }

    /// Derivations of a seed: secrets, salts, infos in parts, and lengths, also those that are too large.
    #[test]
    fn any_derivation_is_that_of_aws_lc() {
        for seed in 0..3_000 {
            for theirs in SUITES {
                let [theirs, ours] = both(theirs).map(|s| s.hkdf_provider);
                let with = |hkdf: &dyn Hkdf| {
                    let mut rng = Seeded::new(seed);
                    let size = hkdf.extract_from_zero_ikm(None).hash_len();
                    let (salt, secret) = (rng.bytes(200), rng.bytes(300));
                    let salt = (!rng.once_in(5)).then_some(&salt[..]);
                    let expander = match rng.below(4) {
                        0 => hkdf.extract_from_zero_ikm(salt),
                        1 => {
                            let long: Vec<u8> = (0..size).map(|_| rng.next() as u8).collect();
                            hkdf.expander_for_okm(&OkmBlock::new(&long))
                        }
                        _ => hkdf.extract_from_secret(salt, &secret),
                    };
                    let info: Vec<Vec<u8>> = (0..rng.below(7)).map(|_| rng.bytes(90)).collect();
                    let info: Vec<&[u8]> = info.iter().map(Vec::as_slice).collect();
                    let length = match rng.below(30) {
                        0 => 255 * size,
                        1 => 255 * size + 1 + rng.below(100),
                        2 => rng.below(255 * size),
                        _ => rng.below(200),
                    };
                    let mut slice = vec![7; length];
                    let expanded = expander.expand_slice(&info, &mut slice).ok().map(|()| slice);
                    let block = expander.expand_block(&info);
                    let tag = hkdf.hmac_sign(&block, &rng.bytes(400));
                    (expanded, block.as_ref().to_vec(), tag.as_ref().to_vec())
                };
                assert_eq!(
                    with(ours),
                    with(theirs),
                    "seed {seed}, {size} bytes",
                    size = ours.extract_from_zero_ikm(None).hash_len()
                );
            }
        }
    }

    /// Transcripts of a seed: pieces of any length, and forks between them.
    #[test]
    fn any_transcript_is_that_of_aws_lc() {
        for seed in 0..3_000 {
            for theirs in SUITES {
                let [theirs, ours] = both(theirs).map(|s| s.common.hash_provider);
                let with = |hash: &dyn hash::Hash| {
                    let mut rng = Seeded::new(seed);
                    let mut contexts = vec![hash.start()];
                    let mut made = Vec::new();
                    for _ in 0..rng.below(12) {
                        let at = rng.below(contexts.len());
                        match rng.below(4) {
                            0 => {
                                let fork = contexts[at].fork();
                                contexts.push(fork);
                            }
                            1 => made.push(contexts[at].fork_finish().as_ref().to_vec()),
                            _ => contexts[at].update(&rng.bytes(300)),
                        }
                    }
                    made.extend(contexts.into_iter().map(|context| context.finish().as_ref().to_vec()));
                    made
                };
                assert_eq!(with(ours), with(theirs), "seed {seed}");
            }
        }
    }

    #[test]
    fn wycheproof_of_hkdf() {
        let sha384 = both(cs::TLS13_AES_256_GCM_SHA384)[1].hkdf_provider;
        let files = [
            (include_str!("../../../tests/vectors/wycheproof/hkdf_sha256.json"), &HkdfSha256::<true> as &dyn Hkdf),
            (include_str!("../../../tests/vectors/wycheproof/hkdf_sha256.json"), &HkdfSha256::<false>),
            (include_str!("../../../tests/vectors/wycheproof/hkdf_sha256.json"), &Derive::<Hmac<Sha256>>(PhantomData)),
            (include_str!("../../../tests/vectors/wycheproof/hkdf_sha384.json"), sha384),
        ];
        for (file, hkdf) in files {
            let (mut good, mut refused) = (0, 0);
            for (_, test) in Vector::all(file) {
                let (secret, salt, info) = (test.bytes("ikm"), test.bytes("salt"), test.bytes("info"));
                let expander = hkdf.extract_from_secret(Some(&salt), &secret);
                let mut made = vec![0; test.number("size")];
                let (one, other) = info.split_at(info.len() / 2);
                let is_made = expander.expand_slice(&[one, other], &mut made).is_ok();
                match test.verdict() {
                    Verdict::Invalid => assert!(!is_made, "{}", test.id()),
                    _ => assert_eq!((is_made, &made), (true, &test.bytes("okm")), "{}", test.id()),
                }
                (good, refused) = (good + usize::from(is_made), refused + usize::from(!is_made));
            }
            assert!(good >= 80 && refused >= 1, "{good} and {refused}");
        }
    }

    #[test]
    fn wycheproof_of_hmac() {
        let sha384 = both(cs::TLS13_AES_256_GCM_SHA384)[1].hkdf_provider;
        let sha256 = |key: &[u8], message: &[u8]| Some(Keyed::new(key).mac([message]).to_vec());
        let signed = |hkdf: &dyn Hkdf, key: &[u8], message: &[u8]| {
            // The key schedule has no longer keys.
            (key.len() <= OkmBlock::MAX_LEN).then(|| hkdf.hmac_sign(&OkmBlock::new(key), message).as_ref().to_vec())
        };
        type Mac<'a> = &'a dyn Fn(&[u8], &[u8]) -> Option<Vec<u8>>;
        let files: [(&str, Mac, usize); 3] = [
            (include_str!("../../../tests/vectors/wycheproof/hmac_sha256.json"), &sha256, 174),
            (
                include_str!("../../../tests/vectors/wycheproof/hmac_sha256.json"),
                &|key, message| signed(&HkdfSha256::<true>, key, message),
                100,
            ),
            (
                include_str!("../../../tests/vectors/wycheproof/hmac_sha384.json"),
                &|key, message| signed(sha384, key, message),
                100,
            ),
        ];
        for (file, mac, least) in files {
            let mut made = 0;
            for (group, test) in Vector::all(file) {
                let Some(code) = mac(&test.bytes("key"), &test.bytes("msg")) else { continue };
                let same = code[..group.number("tagSize") / 8] == test.bytes("tag");
                assert_eq!(same, test.verdict() != Verdict::Invalid, "{}", test.id());
                made += 1;
            }
            assert!(made >= least, "{made} of {least}");
        }
    }
}
