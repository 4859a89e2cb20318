//! Why a certificate or a revocation list cannot be used, in words. rustls and webpki print the names of their variants.

use rustls::{CertificateError, OtherError};
use std::io;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

const ALGORITHM: &str = "it is signed with an algorithm that is not accepted, such as SHA-1";
const KIND_OF_KEY: &str = "it is signed with a kind of key that is not accepted";

/// Why a certificate is not accepted: a clause about the certificate, such as "it has expired".
pub fn certificate_problem(e: &CertificateError) -> String {
    use CertificateError as E;
    let words = match e {
        E::BadEncoding => "it is damaged (invalid DER)",
        E::Expired | E::ExpiredContext { .. } => "it has expired",
        E::NotValidYet | E::NotValidYetContext { .. } => "it is not valid yet",
        E::Revoked => "it is revoked",
        E::UnhandledCriticalExtension => "it has a critical extension that is not supported",
        E::UnknownIssuer => "no trusted CA has issued it",
        E::UnknownRevocationStatus => "there is no revocation list of its CA",
        E::ExpiredRevocationList | E::ExpiredRevocationListContext { .. } => {
            "the revocation list of its CA has expired"
        }
        E::BadSignature => "its signature is wrong",
        E::UnsupportedSignatureAlgorithmContext { .. } => ALGORITHM,
        E::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => KIND_OF_KEY,
        E::NotValidForName => "it is not for this name",
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => "its extended key usage does not allow this use",
        E::InvalidOcspResponse => "its OCSP response is not valid",
        E::ApplicationVerificationFailure => "its name is not allowed",
        E::Other(OtherError(other)) => match other.downcast_ref::<webpki::Error>() {
            Some(webpki::Error::UnsupportedCertVersion) => "its X.509 version is 1, but must be 3",
            Some(webpki::Error::UnsupportedSignatureAlgorithmContext(_)) => ALGORITHM,
            Some(webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_)) => KIND_OF_KEY,
            Some(e) => return format!("webpki: {e}"),
            None => return other.to_string(),
        },
        // With the names for which it is valid, for example.
        other => return other.to_string(),
    };
    words.to_owned()
}

/// An error of a connection to a server. If the server's certificate is the reason, the error says this in words.
pub fn connection_error_in_words(e: io::Error) -> io::Error {
    match e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(why)) => {
            let why = certificate_problem(why);
            io::Error::new(e.kind(), format!("the server's certificate is not accepted: {why}"))
        }
        _ => e,
    }
}

/// Why a revocation list (DER) cannot be used: a clause about the list, such as "it is damaged".
pub fn revocation_list_problem(list: &[u8], e: &webpki::Error) -> String {
    use webpki::Error as E;
    let words = match e {
        E::UnsupportedDeltaCrl => "it is a delta list; only complete lists are supported",
        E::UnsupportedIndirectCrl => "it is an indirect list; only lists of the CA itself are supported",
        E::UnsupportedRevocationReasonsPartitioning => {
            "it is only for some reasons of revocation; only complete lists are supported"
        }
        E::UnsupportedCriticalExtension => "it has a critical extension that is not supported",
        E::UnsupportedCrlVersion
        | E::BadDer
        | E::BadDerTime
        | E::TrailingData(_)
        | E::MalformedExtensions
        | E::ExtensionValueInvalid
        | E::InvalidCrlNumber
        | E::InvalidSerialNumber => not_in_profile(list),
        other => return format!("webpki: {other}"),
    };
    words.to_owned()
}

/// Why a list does not have the form that RFC 5280 requires. X.509 alone requires less, and webpki calls such a list invalid DER.
fn not_in_profile(list: &[u8]) -> &'static str {
    match CertificateRevocationList::from_der(list) {
        // It has no number of its version.
        Ok((_, list)) if list.version().is_none() => {
            "its X.509 version is 1, but must be 2: create it with `easyrsa gen-crl`, or set crl_extensions = crl_ext in the section of \
             the CA in openssl.cnf before `openssl ca -gencrl`"
        }
        Ok((_, list)) if list.next_update().is_none() => "it does not say when the next list comes (nextUpdate)",
        Ok((_, list)) if list.extensions().is_empty() => {
            "it has no extensions (RFC 5280 requires the CRL number and the authority key identifier)"
        }
        _ => "it is damaged (invalid DER)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn problems_of_certificates_are_in_words() {
        for (e, words) in [
            (CertificateError::UnknownIssuer, "no trusted CA has issued it"),
            (CertificateError::Revoked, "it is revoked"),
            (
                CertificateError::Other(OtherError(Arc::new(webpki::Error::UnsupportedCertVersion))),
                "its X.509 version is 1, but must be 3",
            ),
        ] {
            assert_eq!(certificate_problem(&e), words);
        }
        let refused = rustls::Error::InvalidCertificate(CertificateError::Revoked);
        let refused = connection_error_in_words(io::Error::new(io::ErrorKind::InvalidData, refused));
        assert_eq!(refused.to_string(), "the server's certificate is not accepted: it is revoked");
        let other = connection_error_in_words(io::Error::from(io::ErrorKind::TimedOut));
        assert_eq!(other.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn problems_of_revocation_lists_are_in_words() {
        for (e, words) in [
            (webpki::Error::UnsupportedDeltaCrl, "delta list"),
            (webpki::Error::BadDer, "it is damaged"),
            (webpki::Error::UnsupportedCrlIssuingDistributionPoint, "webpki: "),
        ] {
            let said = revocation_list_problem(b"", &e);
            assert!(said.contains(words), "{said}");
        }
    }
}
