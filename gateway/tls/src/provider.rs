//! The crypto provider of a policy: aws-lc-rs with the suites and groups that the policy names, in its order, and with
//! TLS 1.3's key schedule from [`key_schedule`].

use crate::key_schedule;
use crate::no_records::NoRecords;
use crate::policy::{Group, Suite, Version};
use rustls::crypto::aws_lc_rs::{cipher_suite as cs, default_provider, kx_group};
use rustls::crypto::cipher::Tls13AeadAlgorithm;
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::SignatureVerificationAlgorithm;
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};
use std::sync::{Arc, LazyLock};

/// TLS 1.3's suites with our key schedule, over TCP and over QUIC.
struct Suites {
    aes_128: SupportedCipherSuite,
    aes_256: SupportedCipherSuite,
    chacha: SupportedCipherSuite,
}

impl Suites {
    fn new(records: Option<&'static dyn Tls13AeadAlgorithm>) -> Self {
        Self {
            aes_128: key_schedule::suite(cs::TLS13_AES_128_GCM_SHA256, records),
            aes_256: key_schedule::suite(cs::TLS13_AES_256_GCM_SHA384, records),
            chacha: key_schedule::suite(cs::TLS13_CHACHA20_POLY1305_SHA256, records),
        }
    }
}

static OVER_TCP: LazyLock<Suites> = LazyLock::new(|| Suites::new(None));
static OVER_QUIC: LazyLock<Suites> = LazyLock::new(|| Suites::new(Some(&NoRecords)));

/// The suite of QUIC's first packets (RFC 9001 §5).
pub(crate) fn initial_suite() -> SupportedCipherSuite {
    OVER_QUIC.aes_128
}

/// For sessions over TCP, and for clients over QUIC.
pub(crate) fn provider(suites: &[Suite], groups: &[Group]) -> Arc<CryptoProvider> {
    made(suites, groups, &OVER_TCP)
}

/// For a server's sessions over QUIC.
pub(crate) fn quic_provider(suites: &[Suite], groups: &[Group]) -> Arc<CryptoProvider> {
    made(suites, groups, &OVER_QUIC)
}

fn made(suites: &[Suite], groups: &[Group], tls13: &Suites) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: suites.iter().map(|name| suite(*name, tls13)).collect(),
        kx_groups: groups.iter().copied().map(group).collect(),
        secure_random: &crate::random::LaneRandom,
        ..default_provider()
    })
}

/// How signatures by others are verified: those of certificates, and of what authorities say about them.
pub(crate) fn signature_algorithms() -> &'static [&'static dyn SignatureVerificationAlgorithm] {
    static ALL: LazyLock<&'static [&'static dyn SignatureVerificationAlgorithm]> =
        LazyLock::new(|| default_provider().signature_verification_algorithms.all);
    *ALL
}

pub(crate) fn versions(versions: &[Version]) -> Vec<&'static SupportedProtocolVersion> {
    versions
        .iter()
        .map(|v| match v {
            Version::Tls12 => &rustls::version::TLS12,
            Version::Tls13 => &rustls::version::TLS13,
        })
        .collect()
}

fn group(g: Group) -> &'static dyn SupportedKxGroup {
    match g {
        Group::X25519MlKem768 => kx_group::X25519MLKEM768,
        Group::Secp256r1MlKem768 => kx_group::SECP256R1MLKEM768,
        Group::MlKem768 => kx_group::MLKEM768,
        Group::MlKem1024 => kx_group::MLKEM1024,
        Group::X25519 => kx_group::X25519,
        Group::Secp256r1 => kx_group::SECP256R1,
        Group::Secp384r1 => kx_group::SECP384R1,
    }
}

fn suite(s: Suite, tls13: &Suites) -> SupportedCipherSuite {
    match s {
        Suite::TLS13_AES_128_GCM_SHA256 => tls13.aes_128,
        Suite::TLS13_AES_256_GCM_SHA384 => tls13.aes_256,
        Suite::TLS13_CHACHA20_POLY1305_SHA256 => tls13.chacha,
        Suite::ECDHE_ECDSA_AES_128_GCM_SHA256 => cs::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        Suite::ECDHE_ECDSA_AES_256_GCM_SHA384 => cs::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        Suite::ECDHE_ECDSA_CHACHA20_POLY1305_SHA256 => cs::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        Suite::ECDHE_RSA_AES_128_GCM_SHA256 => cs::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        Suite::ECDHE_RSA_AES_256_GCM_SHA384 => cs::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        Suite::ECDHE_RSA_CHACHA20_POLY1305_SHA256 => cs::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    }
}
