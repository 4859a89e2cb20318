//! Private keys in tokens: what they sign with, and that each signature is verified before a client gets it.

use crate::failure::Failure;
use crate::token::{KeyName, Token};
use aws_lc_rs::digest::{Algorithm, SHA256, SHA384, SHA512, digest};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    UnparsedPublicKey, VerificationAlgorithm,
};
use cryptoki::mechanism::rsa::{PkcsMgfType, PkcsPssParams};
use cryptoki::mechanism::{Mechanism, MechanismType};
use cryptoki::object::KeyType;
use rustls::SignatureScheme;
use rustls::pki_types::CertificateDer;
use sealane_config::TokenUri;
use sealane_log as log;
use sealane_tls::remote::{RemoteKey, Work};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use x509_parser::prelude::{FromDer, X509Certificate};

/// SHA-256 before the longer ones, as for keys in files.
const RSA: &[SignatureScheme] = &[
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
];
const P256: &[SignatureScheme] = &[SignatureScheme::ECDSA_NISTP256_SHA256];
const P384: &[SignatureScheme] = &[SignatureScheme::ECDSA_NISTP384_SHA384];

/// What is in front of a hash that RSASSA-PKCS1-v1_5 signs (RFC 8017 §9.2).
const DIGEST_INFO_SHA256: &[u8] = b"\x30\x31\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x01\x05\x00\x04\x20";
const DIGEST_INFO_SHA384: &[u8] = b"\x30\x41\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x02\x05\x00\x04\x30";
const DIGEST_INFO_SHA512: &[u8] = b"\x30\x51\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x03\x05\x00\x04\x40";

/// How long the first signatures of a key may take.
const PROOF_LIMIT: Duration = Duration::from_secs(12);
/// What a key signs first: nothing that a TLS handshake signs begins like this.
const PROOF: &[u8] = b"sealane: this key belongs to its certificate";

/// A private key in a token.
#[derive(Debug)]
pub(crate) struct TokenPrivateKey {
    token: Arc<Token>,
    name: KeyName,
    /// The certificate's key: a SubjectPublicKeyInfo.
    public: Vec<u8>,
    /// The same key without its algorithm.
    bits: Vec<u8>,
    schemes: &'static [SignatureScheme],
    /// For the log.
    uri: String,
    /// The last signature failed.
    fails: AtomicBool,
}

impl TokenPrivateKey {
    /// The key for a certificate. Nothing is asked of the token.
    pub fn new(token: Arc<Token>, uri: &TokenUri, certificate: &CertificateDer<'_>) -> Result<Self, Failure> {
        let (_, certificate) = X509Certificate::from_der(certificate).map_err(|_| Failure::Certificate)?;
        let info = certificate.public_key();
        let curve = info.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
        let curve = curve.map(|oid| oid.to_id_string());
        let (kind, schemes) = match (info.algorithm.algorithm.to_id_string().as_str(), curve.as_deref()) {
            ("1.2.840.113549.1.1.1", _) => (KeyType::RSA, RSA),
            ("1.2.840.10045.2.1", Some("1.2.840.10045.3.1.7")) => (KeyType::EC, P256),
            ("1.2.840.10045.2.1", Some("1.3.132.0.34")) => (KeyType::EC, P384),
            ("1.2.840.10045.2.1", _) => return Err(Failure::Unsupported("ECDSA keys on other curves")),
            _ => return Err(Failure::Unsupported("keys of this type")),
        };
        Ok(Self {
            token,
            name: KeyName { object: uri.object.clone(), id: uri.id.clone(), kind },
            public: info.raw.to_vec(),
            bits: info.subject_public_key.data.to_vec(),
            schemes,
            uri: uri.to_string(),
            fails: AtomicBool::new(false),
        })
    }

    /// Has the token sign in each way that TLS 1.2 and 1.3 need. Blocks, for a limited time.
    pub fn prove(self: &Arc<Self>) -> Result<(), Failure> {
        let (tell, told) = sync_channel(1);
        let key = self.clone();
        let needed: &'static [SignatureScheme] = match self.name.kind {
            KeyType::RSA => &[SignatureScheme::RSA_PSS_SHA256, SignatureScheme::RSA_PKCS1_SHA256],
            _ => self.schemes,
        };
        let prove = move || {
            let proven = needed.iter().try_for_each(|scheme| key.sign_verified(*scheme, PROOF).map(drop));
            let _ = tell.send(proven);
        };
        if !self.token.submit(Box::new(prove)) {
            return Err(Failure::TimedOut);
        }
        told.recv_timeout(PROOF_LIMIT).map_err(|_| Failure::TimedOut)?
    }

    /// Signs, and verifies the signature by the certificate's key.
    fn sign_verified(&self, scheme: SignatureScheme, message: &[u8]) -> Result<Vec<u8>, Failure> {
        let how = How::of(scheme).ok_or(Failure::Unsupported("signatures of this kind"))?;
        let signed = self.token.sign(&self.name, &how.mechanism, &how.input(message))?;
        let signature = if self.name.kind == KeyType::EC { ecdsa_der(&signed) } else { signed };
        let verified = UnparsedPublicKey::new(how.verify, &self.bits).verify(message, &signature);
        verified.map(|()| signature).map_err(|_| Failure::OtherKey)
    }
}

impl RemoteKey for TokenPrivateKey {
    fn public_key(&self) -> &[u8] {
        &self.public
    }

    fn schemes(&self) -> &[SignatureScheme] {
        self.schemes
    }

    fn sign(&self, scheme: SignatureScheme, message: &[u8]) -> Result<Vec<u8>, String> {
        let signed = self.sign_verified(scheme, message);
        // The first failure is an event, and the first success after it.
        if signed.is_err() != self.fails.swap(signed.is_err(), Ordering::Relaxed) {
            match &signed {
                Ok(_) => log::info!("{}: the token signs again", self.uri),
                Err(why) => log::error!(
                    "{}: the token does not sign: {why}; full handshakes with its certificate fail until it does",
                    self.uri
                ),
            }
        }
        signed.map_err(|failure| failure.to_string())
    }

    fn submit(&self, work: Work) -> bool {
        self.token.submit(work)
    }
}

/// How a scheme is computed and verified.
struct How {
    hash: &'static Algorithm,
    /// What is in front of the hash.
    prefix: &'static [u8],
    mechanism: Mechanism<'static>,
    verify: &'static dyn VerificationAlgorithm,
}

impl How {
    fn of(scheme: SignatureScheme) -> Option<Self> {
        let pss =
            |hash_alg, mgf, s_len: u64| Mechanism::RsaPkcsPss(PkcsPssParams { hash_alg, mgf, s_len: s_len.into() });
        let (hash, prefix, mechanism, verify): (_, &[u8], _, &dyn VerificationAlgorithm) = match scheme {
            SignatureScheme::RSA_PSS_SHA256 => {
                (&SHA256, b"", pss(MechanismType::SHA256, PkcsMgfType::MGF1_SHA256, 32), &RSA_PSS_2048_8192_SHA256)
            }
            SignatureScheme::RSA_PSS_SHA384 => {
                (&SHA384, b"", pss(MechanismType::SHA384, PkcsMgfType::MGF1_SHA384, 48), &RSA_PSS_2048_8192_SHA384)
            }
            SignatureScheme::RSA_PSS_SHA512 => {
                (&SHA512, b"", pss(MechanismType::SHA512, PkcsMgfType::MGF1_SHA512, 64), &RSA_PSS_2048_8192_SHA512)
            }
            SignatureScheme::RSA_PKCS1_SHA256 => {
                (&SHA256, DIGEST_INFO_SHA256, Mechanism::RsaPkcs, &RSA_PKCS1_2048_8192_SHA256)
            }
            SignatureScheme::RSA_PKCS1_SHA384 => {
                (&SHA384, DIGEST_INFO_SHA384, Mechanism::RsaPkcs, &RSA_PKCS1_2048_8192_SHA384)
            }
            SignatureScheme::RSA_PKCS1_SHA512 => {
                (&SHA512, DIGEST_INFO_SHA512, Mechanism::RsaPkcs, &RSA_PKCS1_2048_8192_SHA512)
            }
            SignatureScheme::ECDSA_NISTP256_SHA256 => (&SHA256, b"", Mechanism::Ecdsa, &ECDSA_P256_SHA256_ASN1),
            SignatureScheme::ECDSA_NISTP384_SHA384 => (&SHA384, b"", Mechanism::Ecdsa, &ECDSA_P384_SHA384_ASN1),
            _ => return None,
        };
        Some(Self { hash, prefix, mechanism, verify })
    }

    /// What the token signs: the hash, and for PKCS#1 v1.5 the name of the hash in front.
    fn input(&self, message: &[u8]) -> Vec<u8> {
        [self.prefix, digest(self.hash, message).as_ref()].concat()
    }
}

/// An ECDSA signature as TLS has it (RFC 3279 §2.2.3): a SEQUENCE of two INTEGERs. Tokens give both one behind the other.
fn ecdsa_der(raw: &[u8]) -> Vec<u8> {
    let (r, s) = raw.split_at(raw.len() / 2);
    let mut content = Vec::with_capacity(raw.len() + 6);
    for number in [r, s] {
        let zeros = number.iter().take_while(|byte| **byte == 0).count().min(number.len().saturating_sub(1));
        let number = &number[zeros..];
        // The first bit is the sign.
        let negative = number.first().is_some_and(|first| *first >= 0x80);
        content.extend([2, (number.len() + usize::from(negative)) as u8]);
        content.extend(negative.then_some(0));
        content.extend_from_slice(number);
    }
    // At most 2 × (48 + 3) bytes: one byte of length.
    let mut der = vec![0x30, content.len() as u8];
    der.append(&mut content);
    der
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ecdsa_signature_has_the_shortest_positive_numbers() {
        assert_eq!(ecdsa_der(&[0, 1, 0x80, 0]), [0x30, 8, 2, 1, 1, 2, 3, 0, 0x80, 0]);
        assert_eq!(ecdsa_der(&[0, 0, 0, 5]), [0x30, 6, 2, 1, 0, 2, 1, 5]);
    }

    #[test]
    fn each_scheme_of_a_key_can_be_computed() {
        for scheme in [RSA, P256, P384].concat() {
            let how = How::of(scheme).unwrap();
            assert_eq!(how.input(b"message").len(), how.prefix.len() + how.hash.output_len);
        }
        assert!(How::of(SignatureScheme::ED25519).is_none());
    }
}
