//! TLS of the control plane's own connections: to directories, collectors, authorities and stores.

use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;

/// The certificates of CAs among these; what is none is left out.
pub fn root_store(certificates: &[CertificateDer<'static>]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates.iter().cloned());
    roots
}

/// Settings for a client that verifies servers with these roots, and has no certificate.
pub fn control_client(roots: RootCertStore) -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .expect("the provider has suites for both versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
}
