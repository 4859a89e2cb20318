//! The crypto provider of a policy: aws-lc-rs with the suites and groups that the policy names, in its order.

use crate::policy::{Group, Suite, Version};
use rustls::crypto::aws_lc_rs::{cipher_suite as cs, default_provider, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};
use std::sync::Arc;

pub(crate) fn provider(suites: &[Suite], groups: &[Group]) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: suites.iter().copied().map(suite).collect(),
        kx_groups: groups.iter().copied().map(group).collect(),
        secure_random: &crate::random::LaneRandom,
        ..default_provider()
    })
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
        Group::X25519 => kx_group::X25519,
        Group::Secp256r1 => kx_group::SECP256R1,
        Group::Secp384r1 => kx_group::SECP384R1,
    }
}

fn suite(s: Suite) -> SupportedCipherSuite {
    match s {
        Suite::TLS13_AES_128_GCM_SHA256 => cs::TLS13_AES_128_GCM_SHA256,
        Suite::TLS13_AES_256_GCM_SHA384 => cs::TLS13_AES_256_GCM_SHA384,
        Suite::TLS13_CHACHA20_POLY1305_SHA256 => cs::TLS13_CHACHA20_POLY1305_SHA256,
        Suite::ECDHE_ECDSA_AES_128_GCM_SHA256 => cs::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        Suite::ECDHE_ECDSA_AES_256_GCM_SHA384 => cs::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        Suite::ECDHE_ECDSA_CHACHA20_POLY1305_SHA256 => cs::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        Suite::ECDHE_RSA_AES_128_GCM_SHA256 => cs::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        Suite::ECDHE_RSA_AES_256_GCM_SHA384 => cs::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        Suite::ECDHE_RSA_CHACHA20_POLY1305_SHA256 => cs::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    }
}
