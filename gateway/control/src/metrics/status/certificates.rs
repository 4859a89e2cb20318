//! The certificates of a configuration.

use super::{AutomaticStatus, CertificateStatus};
use crate::config::{Config, address_of, hex};
use std::collections::HashSet;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Whether its subject has signed a certificate.
fn is_self_signed(leaf: &X509Certificate) -> bool {
    leaf.subject().as_raw() == leaf.issuer().as_raw()
}

/// Those that clients are shown, each file once.
pub(super) fn certificates(config: &Config) -> Vec<CertificateStatus> {
    let mut found: Vec<CertificateStatus> = Vec::new();
    let mut known = HashSet::new();
    for (files, loaded) in config.certificates() {
        let identity = &loaded.identity;
        let file = identity.source.display().to_string();
        let leaf = identity.chain.first().and_then(|der| X509Certificate::from_der(der).ok());
        let (Some((_, leaf)), true) = (leaf, known.insert(file.clone())) else { continue };
        found.push(CertificateStatus {
            file,
            subject: subject(&leaf),
            issuer: leaf.issuer().to_string(),
            not_before: leaf.validity().not_before.timestamp(),
            not_after: leaf.validity().not_after.timestamp(),
            self_signed: loaded.self_signed || is_self_signed(&leaf),
            refused: String::new(),
            automatic: config
                .is_automatic(&identity.source)
                .then(|| AutomaticStatus { on_demand: files.is_on_demand, ..AutomaticStatus::default() }),
            sha256: hex(&loaded.digest),
            digest: loaded.digest,
            ocsp: None,
            added: files.is_sent,
            kept: files.is_kept,
        });
    }
    found
}

/// Whom a certificate names; `None`: it cannot be read.
pub(crate) fn named_by(certificate: &[u8]) -> Option<String> {
    X509Certificate::from_der(certificate).ok().map(|(_, leaf)| subject(&leaf))
}

/// The names that a certificate is good for, or its subject.
fn subject(leaf: &X509Certificate) -> String {
    use x509_parser::prelude::GeneralName;
    let extension = leaf.subject_alternative_name().ok().flatten();
    let names = extension.iter().flat_map(|e| &e.value.general_names).filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => address_of(bytes).map(|address| address.to_string()),
        _ => None,
    });
    let names: Vec<String> = names.collect();
    if names.is_empty() { leaf.subject().to_string() } else { names.join(", ") }
}
