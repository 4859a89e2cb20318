//! What authorities have signed (certificates, revocation lists, OCSP responses), and the keys that it is verified with.

use crate::der::{Der, tag};
use x509_parser::certificate::X509CertificateParser;
use x509_parser::nom::Parser as _;
use x509_parser::prelude::X509Certificate;

/// A public key, as a certificate has it.
#[derive(Clone, Debug)]
pub(crate) struct PublicKey {
    /// The content of the algorithm's SEQUENCE.
    pub algorithm: Vec<u8>,
    /// The key itself.
    pub bits: Vec<u8>,
}

impl PublicKey {
    /// Reads the DER of a SubjectPublicKeyInfo.
    pub fn read(info: &[u8]) -> Option<Self> {
        let mut info = Der(Der(info).expect(tag::SEQUENCE)?);
        let algorithm = info.expect(tag::SEQUENCE)?.to_vec();
        Some(Self { algorithm, bits: info.bits()?.to_vec() })
    }

    /// Whether this key has signed it.
    pub fn has_signed(&self, signed: &Signed) -> bool {
        // Algorithms with SHA-1 are not among them.
        crate::provider::signature_algorithms().iter().any(|a| {
            a.signature_alg_id().as_ref() == signed.algorithm
                && a.public_key_alg_id().as_ref() == self.algorithm
                && a.verify_signature(&self.bits, signed.message, signed.signature).is_ok()
        })
    }
}

/// A message and its signature.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signed<'a> {
    pub message: &'a [u8],
    /// The content of the signature algorithm's SEQUENCE.
    pub algorithm: &'a [u8],
    pub signature: &'a [u8],
}

impl<'a> Signed<'a> {
    /// Reads the DER of a certificate or a revocation list: what is signed, how, and the signature.
    pub fn read(der: &'a [u8]) -> Option<Self> {
        let mut outer = Der(Der(der).expect(tag::SEQUENCE)?);
        let (_, _, message) = outer.element()?;
        Some(Self { message, algorithm: outer.expect(tag::SEQUENCE)?, signature: outer.bits()? })
    }
}

/// A certificate whose extensions are of no interest.
pub(crate) fn without_extensions(certificate: &[u8]) -> Option<(&[u8], X509Certificate<'_>)> {
    X509CertificateParser::new().with_deep_parse_extensions(false).parse(certificate).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Vector, Verdict};
    use rustls::pki_types::{AlgorithmIdentifier, alg_id};

    /// No signature that is not valid is taken for one: of certificates' transparency, revocation lists and OCSP responses.
    #[test]
    fn wycheproof_of_verifying() {
        let files: [(&str, AlgorithmIdentifier); 3] = [
            (
                include_str!("../../../tests/vectors/wycheproof/rsa_signature_2048_sha256.json"),
                alg_id::RSA_PKCS1_SHA256,
            ),
            (
                include_str!("../../../tests/vectors/wycheproof/rsa_pss_2048_sha256_mgf1_32.json"),
                alg_id::RSA_PSS_SHA256,
            ),
            (include_str!("../../../tests/vectors/wycheproof/ecdsa_secp256r1_sha256.json"), alg_id::ECDSA_SHA256),
        ];
        for (file, algorithm) in files {
            let (mut good, mut bad) = (0, 0);
            for (group, test) in Vector::all(file) {
                let (message, signature) = (test.bytes("msg"), test.bytes("sig"));
                let signed = Signed { message: &message, algorithm: algorithm.as_ref(), signature: &signature };
                let key = PublicKey::read(&group.bytes("publicKeyDer")).expect("it is a key");
                let is_signed = key.has_signed(&signed);
                match test.verdict() {
                    Verdict::Valid => assert!(is_signed, "{}", test.id()),
                    Verdict::Invalid => assert!(!is_signed, "{}", test.id()),
                    Verdict::Acceptable => {}
                }
                (good, bad) = (good + usize::from(is_signed), bad + usize::from(!is_signed));
                // Nor is it one of another message.
                let other = [&message[..], b"x"].concat();
                assert!(!key.has_signed(&Signed { message: &other, ..signed }), "{}", test.id());
            }
            assert!(good >= 5 && bad >= 40, "{good} and {bad}");
        }
    }
}
