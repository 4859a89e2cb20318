//! RSA keys, and who signs with them.
//!
//! AWS-LC does where the CPU has AVX-512 IFMA, for which only it has code, and on all CPUs but x86-64's. On other x86-64
//! CPUs it and ring compute with the same routines, but AWS-LC blinds first, with values that threads take from a pool
//! under a lock; ring does without, its exponentiation taking the same time for every key and input. Both check the
//! signature with the public key before they hand it out. Measured: `docs/measurements/gateway`. In builds with AWS-LC's FIPS module, the
//! module signs.

use aws_lc_rs::rsa as aws;
use aws_lc_rs::signature as aws_signature;
use rustls::pki_types::{PrivateKeyDer, SubjectPublicKeyInfoDer, alg_id};
use rustls::sign::{Signer, SigningKey, public_key_to_spki};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};
use std::sync::Arc;

/// What a key signs with, the first that the client offers. SHA-256 before the longer ones, which are no stronger with
/// the usual keys (2,048 bits give 112 bits of strength) and slower on CPUs with instructions for SHA-256.
const SCHEMES: [SignatureScheme; 6] = [
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
];

/// An RSA key made ready.
#[derive(Debug)]
pub(crate) struct RsaKey(Arc<Ready>);

#[derive(Debug)]
enum Ready {
    AwsLc(aws::KeyPair),
    #[cfg(target_arch = "x86_64")]
    Ring(Box<ring::rsa::KeyPair>),
}

/// Whether ring is the faster one here. Who tells AWS-LC what the CPU can do (`OPENSSL_ia32cap`) wants that: ring does
/// not look there.
#[cfg(target_arch = "x86_64")]
fn ring_is_faster() -> bool {
    use std::sync::LazyLock;
    static ANSWER: LazyLock<bool> =
        LazyLock::new(|| !is_x86_feature_detected!("avx512ifma") && std::env::var_os("OPENSSL_ia32cap").is_none());
    *ANSWER
}

impl RsaKey {
    /// `None` when `der` is no RSA key, or one that cannot be used.
    pub(crate) fn new(der: &PrivateKeyDer<'_>) -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if !crate::fips::BUILD
            && ring_is_faster()
            && let Some(key) = Self::ring(der)
        {
            return Some(key);
        }
        Self::aws_lc(der)
    }

    fn aws_lc(der: &PrivateKeyDer<'_>) -> Option<Self> {
        let key = match der {
            PrivateKeyDer::Pkcs1(der) => aws::KeyPair::from_der(der.secret_pkcs1_der()),
            PrivateKeyDer::Pkcs8(der) => aws::KeyPair::from_pkcs8(der.secret_pkcs8_der()),
            _ => return None,
        };
        key.ok().map(|key| Self(Arc::new(Ready::AwsLc(key))))
    }

    /// ring takes 2,048 to 4,096 bits; AWS-LC up to 8,192.
    #[cfg(target_arch = "x86_64")]
    fn ring(der: &PrivateKeyDer<'_>) -> Option<Self> {
        let key = match der {
            PrivateKeyDer::Pkcs1(der) => ring::rsa::KeyPair::from_der(der.secret_pkcs1_der()),
            PrivateKeyDer::Pkcs8(der) => ring::rsa::KeyPair::from_pkcs8(der.secret_pkcs8_der()),
            _ => return None,
        };
        key.ok().map(|key| Self(Arc::new(Ready::Ring(Box::new(key)))))
    }
}

impl SigningKey for RsaKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let scheme = *SCHEMES.iter().find(|scheme| offered.contains(scheme))?;
        Some(Box::new(RsaSigner { key: self.0.clone(), scheme }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        use aws_lc_rs::signature::KeyPair;
        let public = match &*self.0 {
            Ready::AwsLc(key) => key.public_key().as_ref(),
            #[cfg(target_arch = "x86_64")]
            Ready::Ring(key) => ring::signature::KeyPair::public_key(&**key).as_ref(),
        };
        Some(public_key_to_spki(&alg_id::RSA_ENCRYPTION, public))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::RSA
    }
}

/// A key and what it shall sign with.
#[derive(Debug)]
struct RsaSigner {
    key: Arc<Ready>,
    scheme: SignatureScheme,
}

impl Signer for RsaSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signed = match &*self.key {
            Ready::AwsLc(key) => {
                let encoding: &dyn aws_signature::RsaEncoding = match self.scheme {
                    SignatureScheme::RSA_PSS_SHA256 => &aws_signature::RSA_PSS_SHA256,
                    SignatureScheme::RSA_PSS_SHA384 => &aws_signature::RSA_PSS_SHA384,
                    SignatureScheme::RSA_PSS_SHA512 => &aws_signature::RSA_PSS_SHA512,
                    SignatureScheme::RSA_PKCS1_SHA256 => &aws_signature::RSA_PKCS1_SHA256,
                    SignatureScheme::RSA_PKCS1_SHA384 => &aws_signature::RSA_PKCS1_SHA384,
                    _ => &aws_signature::RSA_PKCS1_SHA512,
                };
                let mut signature = vec![0; key.public_modulus_len()];
                let random = aws_lc_rs::rand::SystemRandom::new();
                key.sign(encoding, &random, message, &mut signature).map(|()| signature).ok()
            }
            #[cfg(target_arch = "x86_64")]
            Ready::Ring(key) => {
                let encoding: &dyn ring::signature::RsaEncoding = match self.scheme {
                    SignatureScheme::RSA_PSS_SHA256 => &ring::signature::RSA_PSS_SHA256,
                    SignatureScheme::RSA_PSS_SHA384 => &ring::signature::RSA_PSS_SHA384,
                    SignatureScheme::RSA_PSS_SHA512 => &ring::signature::RSA_PSS_SHA512,
                    SignatureScheme::RSA_PKCS1_SHA256 => &ring::signature::RSA_PKCS1_SHA256,
                    SignatureScheme::RSA_PKCS1_SHA384 => &ring::signature::RSA_PKCS1_SHA384,
                    _ => &ring::signature::RSA_PKCS1_SHA512,
                };
                let mut signature = vec![0; key.public().modulus_len()];
                let random = ring::rand::SystemRandom::new();
                key.sign(encoding, &random, message, &mut signature).map(|()| signature).ok()
            }
        };
        signed.ok_or_else(|| Error::General("signing failed".into()))
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Vector, Verdict};
    use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
    use aws_lc_rs::signature::{KeyPair, UnparsedPublicKey};
    use rustls::pki_types::PrivatePkcs8KeyDer;

    fn key(size: aws::KeySize) -> (PrivateKeyDer<'static>, Vec<u8>) {
        let pair = aws::KeyPair::generate(size).expect("a key");
        let der: Pkcs8V1Der<'_> = pair.as_der().expect("its encoding");
        (PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der.as_ref().to_vec())), pair.public_key().as_ref().to_vec())
    }

    fn verify(scheme: SignatureScheme, public: &[u8], message: &[u8], signature: &[u8]) -> bool {
        let algorithm = match scheme {
            SignatureScheme::RSA_PSS_SHA256 => &aws_signature::RSA_PSS_2048_8192_SHA256,
            SignatureScheme::RSA_PSS_SHA384 => &aws_signature::RSA_PSS_2048_8192_SHA384,
            SignatureScheme::RSA_PSS_SHA512 => &aws_signature::RSA_PSS_2048_8192_SHA512,
            SignatureScheme::RSA_PKCS1_SHA256 => &aws_signature::RSA_PKCS1_2048_8192_SHA256,
            SignatureScheme::RSA_PKCS1_SHA384 => &aws_signature::RSA_PKCS1_2048_8192_SHA384,
            SignatureScheme::RSA_PKCS1_SHA512 => &aws_signature::RSA_PKCS1_2048_8192_SHA512,
            other => panic!("{other:?} is not RSA's"),
        };
        UnparsedPublicKey::new(algorithm, public).verify(message, signature).is_ok()
    }

    /// With every signer and in every scheme, a signature is valid for its message and for no other.
    #[test]
    fn all_sign_what_verifies() {
        for size in [aws::KeySize::Rsa2048, aws::KeySize::Rsa3072] {
            let (der, public) = key(size);
            let all = [
                RsaKey::aws_lc(&der),
                #[cfg(target_arch = "x86_64")]
                RsaKey::ring(&der),
            ];
            for key in all.map(|key| key.expect("a usable key")) {
                assert_eq!(key.public_key(), Some(public_key_to_spki(&alg_id::RSA_ENCRYPTION, &public)));
                for scheme in SCHEMES {
                    let signer = key.choose_scheme(&[scheme]).expect("it signs so");
                    assert_eq!(signer.scheme(), scheme);
                    let signature = signer.sign(b"a message").expect("a signature");
                    assert!(verify(scheme, &public, b"a message", &signature), "{key:?} {scheme:?}");
                    assert!(!verify(scheme, &public, b"another", &signature), "{key:?} {scheme:?}");
                }
            }
        }
    }

    #[test]
    fn chooses_what_the_client_offers() {
        let (der, _) = key(aws::KeySize::Rsa2048);
        let key = RsaKey::new(&der).expect("a usable key");
        let chosen = |offered: &[SignatureScheme]| key.choose_scheme(offered).map(|signer| signer.scheme());
        assert_eq!(
            chosen(&[
                SignatureScheme::RSA_PKCS1_SHA256,
                SignatureScheme::RSA_PSS_SHA512,
                SignatureScheme::RSA_PSS_SHA256
            ]),
            Some(SignatureScheme::RSA_PSS_SHA256)
        );
        assert_eq!(
            chosen(&[SignatureScheme::RSA_PKCS1_SHA512, SignatureScheme::RSA_PSS_SHA384]),
            Some(SignatureScheme::RSA_PSS_SHA384)
        );
        assert_eq!(chosen(&[SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::RSA_PKCS1_SHA1]), None);
    }

    #[test]
    fn no_key_is_refused() {
        let garbage = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(vec![0x30, 3, 2, 1, 0]));
        assert!(RsaKey::new(&garbage).is_none());
    }

    /// A PKCS #1 signature has one correct value. Keys that are too weak are refused, or their signatures are correct.
    #[test]
    fn wycheproof_of_signing() {
        let files = [
            (include_str!("../../../tests/vectors/wycheproof/rsa_pkcs1_2048_sig_gen.json"), 10),
            (include_str!("../../../tests/vectors/wycheproof/rsa_pkcs1_3072_sig_gen.json"), 10),
            (include_str!("../../../tests/vectors/wycheproof/rsa_pkcs1_4096_sig_gen.json"), 10),
        ];
        for (file, least) in files {
            let mut by_all = 0;
            for (group, test) in Vector::all(file) {
                let scheme = match group.text("sha") {
                    "SHA-256" => SignatureScheme::RSA_PKCS1_SHA256,
                    "SHA-384" => SignatureScheme::RSA_PKCS1_SHA384,
                    "SHA-512" => SignatureScheme::RSA_PKCS1_SHA512,
                    // No hash that is signed with here.
                    _ => continue,
                };
                let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(group.bytes("privateKeyPkcs8")));
                let keys = [
                    RsaKey::aws_lc(&der),
                    #[cfg(target_arch = "x86_64")]
                    RsaKey::ring(&der),
                ];
                let signed: Vec<_> = keys
                    .into_iter()
                    .flatten()
                    .map(|key| {
                        key.choose_scheme(&[scheme])
                            .expect("it signs so")
                            .sign(&test.bytes("msg"))
                            .expect("a signature")
                    })
                    .collect();
                assert!(signed.iter().all(|signature| *signature == test.bytes("sig")), "{}", test.id());
                assert!(!signed.is_empty() || test.verdict() != Verdict::Valid, "{}", test.id());
                by_all += usize::from(signed.len() == 2);
            }
            assert!(by_all >= least || cfg!(not(target_arch = "x86_64")), "{by_all}");
        }
    }
}
