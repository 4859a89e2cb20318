//! Whether the server is who it says, and, if the proof fails, which check failed and why.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::crypto::CryptoProvider;
use rustls::{CertificateError, Error};
use sealane_lab_wire::TrustError;
pub use sealane_lab_wire::{Trust, Verifier, Verify};

use crate::cert::Certificate;
use crate::error::ProbeError;

/// Loads the authorities, once for all connections. The verifier records what servers show.
pub fn verifier(trust: &Trust, verify: Verify, provider: &Arc<CryptoProvider>) -> Result<Arc<Verifier>, ProbeError> {
    let verifier = Verifier::new(verify, trust, provider).map_err(|error| match error {
        TrustError::File(path, why) => ProbeError::Usage(format!("--cacert {}: {why}", path.display())),
        TrustError::NoRoots(why) => ProbeError::Certificate {
            problem: format!("this machine has no certificate authorities to trust ({why})"),
            remedy: "install them (Debian: apt install ca-certificates), or name a file with --cacert".into(),
        },
        TrustError::Unusable(why) => ProbeError::Tls(why),
    })?;
    Ok(Arc::new(verifier.recording()))
}

/// Turns rustls' error into one that says which check failed and how to go on.
pub fn explain(verifier: &Verifier, error: Error) -> ProbeError {
    let Error::InvalidCertificate(reason) = error else {
        return ProbeError::Tls(explain_tls(&error));
    };
    let leaf = verifier.last().and_then(|s| Certificate::read(s.chain.first()?, unix_now()));
    let (subject, issuer) = leaf.as_ref().map_or(("?", "?"), |c| (c.subject.as_str(), c.issuer.as_str()));
    let dates = leaf.as_ref().map_or(String::new(), |c| format!(" (valid {} to {})", c.not_before, c.not_after));
    let (problem, remedy) = match reason {
        CertificateError::UnknownIssuer => (
            format!("the issuer is not trusted: '{subject}' was issued by '{issuer}'"),
            "to trust that issuer, give its certificate (PEM) with --cacert FILE. If it is an intermediate certificate, \
             the server should send it",
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            let names = leaf.as_ref().map(|c| c.subject_alternative_names.join(", ")).unwrap_or_default();
            let names = if names.is_empty() { "no name at all".into() } else { names };
            (
                format!("the name does not match: the certificate is for {names}"),
                "probe one of those names, and reach this server under it with --connect-to or --resolve",
            )
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            (format!("'{subject}' has expired{dates}"), "renew it; or check this machine's clock")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            (format!("'{subject}' is not valid yet{dates}"), "check the clocks of both machines")
        }
        // webpki has no variant of its own for this in rustls' error.
        CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => (
            format!("'{subject}' is a certificate authority's (CA:TRUE), not a server's"),
            "sign a certificate for the server with it, or make one with \
             openssl req -x509 -addext basicConstraints=critical,CA:FALSE …",
        ),
        CertificateError::BadSignature => (
            format!("'{subject}' was not signed by the '{issuer}' that is trusted"),
            "another authority of the same name signed it, perhaps an older one: --cacert FILE with that one",
        ),
        CertificateError::Revoked => (format!("'{subject}' has been revoked"), "replace it"),
        other => (format!("'{subject}' issued by '{issuer}': {other}"), "replace it by a certificate for servers"),
    };
    ProbeError::Certificate {
        problem,
        remedy: format!("{remedy}\nto measure without checking the server's identity: --insecure"),
    }
}

fn explain_tls(error: &Error) -> String {
    use rustls::AlertDescription as Alert;
    match error {
        Error::AlertReceived(Alert::ProtocolVersion) => {
            "the server refused the TLS version (alert protocol_version)".into()
        }
        Error::AlertReceived(Alert::HandshakeFailure) => {
            "the server refused the handshake (alert handshake_failure): no cipher suite or group in common, or none \
             for this host name"
                .into()
        }
        Error::AlertReceived(Alert::NoApplicationProtocol) => {
            "the server supports none of the offered HTTP versions (alert no_application_protocol)".into()
        }
        Error::AlertReceived(Alert::UnrecognisedName) => {
            "the server does not know this host name (alert unrecognized_name)".into()
        }
        Error::AlertReceived(Alert::CertificateRequired) => {
            "the server requires a client certificate, and the probe has none".into()
        }
        Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => {
            "the response is not TLS; is this an http:// port?".into()
        }
        other => other.to_string(),
    }
}

/// Seconds since 1970.
pub fn unix_now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64)
}
