//! `sealane check --post-quantum`: which connections and certificates withstand a quantum computer.
//!
//! Key exchange matters today: what is recorded now can be decrypted later. Certificates matter once such a computer exists: it
//! could forge signatures then, but not those of the past.

use super::certificates::load::{self, Loaded};
use super::{Config, Mode};
use rustls::pki_types::CertificateDer;
use sealane_proxy::snapshot::Action;
use sealane_tls::policy::{Group, KeyKind, Version};
use serde::Serialize;
use std::collections::HashSet;
use x509_parser::prelude::{FromDer, X509Certificate};

/// How far a connection or a certificate is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Protection {
    /// In every connection.
    Always,
    /// In connections with peers that support it.
    IfSupported,
    /// In none.
    Never,
    /// The gateway does not take part in the handshake.
    Relayed,
}

impl std::fmt::Display for Protection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Always => "ready",
            Self::IfSupported => "ready for peers that support it",
            Self::Never => "not ready",
            Self::Relayed => "relayed",
        })
    }
}

/// One listener, upstream or certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// `"listener"`, `"upstream"` or `"certificate"`.
    pub kind: &'static str,
    /// The address, the name or the file.
    pub name: String,
    /// How far it is protected.
    pub protection: Protection,
    /// Why, in words.
    pub why: &'static str,
}

impl std::fmt::Display for Readiness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}: {}", self.kind, self.name, self.protection, self.why)
    }
}

/// What connections with these settings agree on.
fn key_exchange(versions: &[Version], groups: &[Group]) -> (Protection, &'static str) {
    if !versions.contains(&Version::Tls13) {
        return (Protection::Never, "\"versions\" lacks \"1.3\", and ML-KEM needs TLS 1.3");
    }
    if !groups.iter().any(|group| group.is_post_quantum()) {
        return (Protection::Never, "\"groups\" has no group with ML-KEM, such as \"X25519MLKEM768\"");
    }
    let only_tls13 = versions.iter().all(|version| *version == Version::Tls13);
    if only_tls13 && groups.iter().all(|group| group.is_post_quantum()) {
        return (Protection::Always, "every key exchange has ML-KEM");
    }
    (Protection::IfSupported, "ML-KEM for peers with TLS 1.3 that support it, and other groups for all other peers")
}

/// How a certificate is protected: its key and what has signed its chain. The signature of a root says nothing.
fn certificate(loaded: &Loaded) -> (Protection, &'static str) {
    match loaded.identity.kind {
        KeyKind::Ecdsa => return (Protection::Never, "its key is ECDSA and not ML-DSA"),
        KeyKind::Rsa => return (Protection::Never, "its key is RSA and not ML-DSA"),
        KeyKind::Ed25519 => return (Protection::Never, "its key is Ed25519 and not ML-DSA"),
        KeyKind::MlDsa44 | KeyKind::MlDsa65 | KeyKind::MlDsa87 => {}
    }
    let is_safe = |(i, der): (usize, &CertificateDer<'_>)| {
        X509Certificate::from_der(der).is_ok_and(|(_, parsed)| {
            let signature = parsed.signature_algorithm.algorithm.to_id_string();
            load::ml_dsa(&signature).is_some() || i > 0 && parsed.subject() == parsed.issuer()
        })
    };
    match loaded.identity.chain.iter().enumerate().all(is_safe) {
        true => (Protection::Always, "its key and its signatures are ML-DSA"),
        false => (Protection::Never, "its key is ML-DSA, but a signature in its chain is not"),
    }
}

/// Why something is [`Protection::Relayed`].
const RELAYED: &str = "clients and servers agree on the key exchange";

impl Config {
    /// Whether the gateway sends nothing of its own to an upstream: it relays the connections of clients, whose TLS ends at the servers.
    fn only_relays_to(&self, upstream: usize) -> bool {
        // Listeners have the actions of all hosts.
        let of_hosts = self.listeners.first().map(|listener| &listener.actions[..]).unwrap_or_default();
        let routes = &self.routing.routes;
        let all = of_hosts.iter().chain(routes.iter().map(|route| &route.action));
        let users: Vec<&Action> = all.filter(|action| action.upstreams().contains(&upstream)).collect();
        let asks = routes.iter().filter_map(|route| route.forward_auth.as_ref()).any(|auth| auth.upstream == upstream);
        !users.is_empty() && users.iter().all(|action| matches!(action, Action::Passthrough { .. })) && !asks
    }

    /// How every listener, upstream and certificate is protected.
    pub fn post_quantum(&self) -> Vec<Readiness> {
        let mut out = Vec::new();
        let mut add = |kind, name: String, (protection, why)| out.push(Readiness { kind, name, protection, why });
        for listener in &self.listeners {
            let policy = listener.tls.as_ref().and_then(|tls| tls.policies.first());
            let found = match policy {
                Some(policy) => key_exchange(&policy.versions, &policy.groups),
                None if listener.mode != Mode::Http => (Protection::Relayed, RELAYED),
                None => (Protection::Never, "it has no TLS"),
            };
            add("listener", listener.address.to_string(), found);
        }
        for (i, upstream) in self.upstreams.iter().enumerate() {
            let found = match &upstream.tls {
                Some(policy) => key_exchange(&policy.versions, &policy.groups),
                None if self.only_relays_to(i) => (Protection::Relayed, RELAYED),
                None => (Protection::Never, "the gateway talks to it without TLS"),
            };
            add("upstream", upstream.name.clone(), found);
        }
        let mut seen = HashSet::new();
        for (files, loaded) in self.certificates().filter(|(_, loaded)| seen.insert(loaded.digest)) {
            add("certificate", files.cert.display().to_string(), certificate(loaded));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_exchange_needs_ml_kem_and_tls_1_3() {
        use Group::{MlKem1024, Secp256r1MlKem768, X25519, X25519MlKem768};
        use Version::{Tls12, Tls13};
        let protection = |versions: &[Version], groups: &[Group]| key_exchange(versions, groups).0;
        assert_eq!(protection(&[Tls13], &[X25519MlKem768]), Protection::Always);
        assert_eq!(protection(&[Tls13], &[MlKem1024, Secp256r1MlKem768]), Protection::Always);
        assert_eq!(protection(&[Tls13], &[MlKem1024, X25519]), Protection::IfSupported);
        assert_eq!(protection(&[Tls13, Tls12], &[X25519MlKem768]), Protection::IfSupported);
        assert_eq!(protection(&[Tls13], &[X25519MlKem768, X25519]), Protection::IfSupported);
        assert_eq!(protection(&[Tls13], &[X25519]), Protection::Never);
        assert_eq!(protection(&[Tls12], &[X25519MlKem768, X25519]), Protection::Never);
    }
}
