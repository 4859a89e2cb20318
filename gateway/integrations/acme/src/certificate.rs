//! What the schedule has to know of a certificate, and what an order checks before it keeps one.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use sealane_config::address_of;
use std::net::IpAddr;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// The most certificates of a chain.
const MAX_CHAIN: usize = 10;

/// A certificate that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub not_before: u64,
    pub not_after: u64,
    pub leaf: CertificateDer<'static>,
}

/// Reads a chain, with its key, and checks that it can be served for a name: it parses, the key is the leaf's, the name is in
/// it. Its dates are not judged: a clock may be wrong.
pub(crate) fn check(pem: &[u8], name: &str) -> Result<Info, String> {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(pem).take(MAX_CHAIN + 1).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    let leaf = chain.first().ok_or("there is no certificate in it")?.clone();
    if chain.len() > MAX_CHAIN {
        return Err(format!("its chain has more than {MAX_CHAIN} certificates"));
    }
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|e| format!("its private key: {e}"))?;
    let (not_before, not_after) = {
        let (_, parsed) = X509Certificate::from_der(&leaf).map_err(|_| "it does not parse".to_owned())?;
        let names = parsed.subject_alternative_name().ok().flatten();
        let address = name.parse::<IpAddr>().ok();
        let is_name = |n: &GeneralName| match n {
            GeneralName::DNSName(dns) => dns.eq_ignore_ascii_case(name),
            GeneralName::IPAddress(bytes) => address.is_some() && address_of(bytes) == address,
            _ => false,
        };
        if !names.is_some_and(|names| names.value.general_names.iter().any(is_name)) {
            return Err(format!("it is not for {name}"));
        }
        let second = |t: i64| u64::try_from(t).unwrap_or(0);
        (second(parsed.validity().not_before.timestamp()), second(parsed.validity().not_after.timestamp()))
    };
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    CertifiedKey::from_der(chain, key, &provider).map_err(|_| "it does not belong to its key".to_owned())?;
    Ok(Info { not_before, not_after, leaf })
}

/// When the first certificate of a chain ends, in seconds since 1970.
pub(crate) fn end(pem: &[u8]) -> Option<u64> {
    let leaf = CertificateDer::pem_slice_iter(pem).next()?.ok()?;
    let (_, parsed) = X509Certificate::from_der(&leaf).ok()?;
    u64::try_from(parsed.validity().not_after.timestamp()).ok()
}
