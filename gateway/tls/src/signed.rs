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
