//! Weaknesses of a server's configuration, and the settings that remove them.
//!
//! Rules of this module: early data is encrypted; what it lacks is protection against replay and forward secrecy, and
//! advice says exactly that. And no rule may refuse requests by method alone: a POST after the handshake is as safe as
//! any other.

use serde::Serialize;

use crate::inspect::{Inspection, VersionReport};

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Clients or data are at risk now.
    High,
    /// A known weakness without a use for it today.
    Medium,
    /// Better, but nothing breaks without it.
    Low,
}

/// One thing to change.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// A stable name.
    pub id: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// What was found.
    pub finding: String,
    /// Why it matters.
    pub why: &'static str,
    /// Settings of NGINX; empty if no setting helps.
    pub nginx: &'static str,
    /// Settings of HAProxy.
    pub haproxy: &'static str,
    /// Settings of Sealane, as TOML.
    pub sealane: &'static str,
}

const NGINX_VERSIONS: &str = "ssl_protocols TLSv1.2 TLSv1.3;";
const HAPROXY_VERSIONS: &str = "ssl-default-bind-options ssl-min-ver TLSv1.2";
const SEALANE_PRESET: &str = "[[listener]]\n[listener.tls]\npreset = \"intermediate\"";
const NGINX_SUITES: &str = "ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-\
GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305;";
const HAPROXY_SUITES: &str = "ssl-default-bind-ciphers ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-\
ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305";
const SEALANE_STAPLE: &str = "[[listener]]\n[listener.tls]\nocsp_stapling = true";

/// Half a year, in seconds: less is hardly remembered between visits.
const HSTS_SECONDS: u64 = 15_768_000;

/// All advice for the inspected server, the most severe first.
pub fn advise(seen: &Inspection) -> Vec<Advice> {
    let mut advice = Vec::new();
    versions(seen, &mut advice);
    certificate(seen, &mut advice);
    resumption(seen, &mut advice);
    fields(seen, &mut advice);
    advice.sort_by_key(|a| a.severity);
    advice
}

fn versions(seen: &Inspection, advice: &mut Vec<Advice>) {
    if !seen.tls13.offered {
        advice.push(Advice {
            id: "no-tls13",
            severity: Severity::Medium,
            finding: "no request over TLS 1.3 succeeded".into(),
            why: "TLS 1.3 saves a round trip on every new connection, and does not have the weak options of TLS 1.2",
            nginx: NGINX_VERSIONS,
            haproxy: HAPROXY_VERSIONS,
            sealane: SEALANE_PRESET,
        });
    }
    let Some(scan) = &seen.scan else { return };
    let names = |findings: &[crate::scan::Finding]| -> Vec<String> {
        findings.iter().filter(|f| f.accepted == Some(true)).map(|f| f.name.clone()).collect()
    };
    let old = names(&scan.old_versions);
    if !old.is_empty() {
        advice.push(Advice {
            id: "old-versions",
            severity: Severity::High,
            finding: format!("{} accepted", old.join(", ")),
            why: "TLS 1.0 and 1.1 use MD5 and SHA-1 and are deprecated (RFC 8996); SSL 3 is broken",
            nginx: NGINX_VERSIONS,
            haproxy: HAPROXY_VERSIONS,
            sealane: SEALANE_PRESET,
        });
    }
    let weak = names(&scan.weak_suites);
    if !weak.is_empty() {
        let broken = weak.iter().any(|w| matches!(w.as_str(), "3DES" | "RC4") || w.starts_with("NULL"));
        advice.push(Advice {
            id: "weak-suites",
            severity: if broken { Severity::High } else { Severity::Medium },
            finding: format!("weak cipher suites accepted: {}", weak.join(", ")),
            why: "RSA key exchange has no forward secrecy; CBC suites allow padding and timing attacks; 3DES, RC4, NULL, \
                  export and anonymous suites are broken (RFC 9325)",
            nginx: NGINX_SUITES,
            haproxy: HAPROXY_SUITES,
            sealane: SEALANE_PRESET,
        });
    }
    if seen.tls13.offered && !scan.post_quantum() && !scan.is_post_quantum_unclear() {
        advice.push(Advice {
            id: "no-post-quantum",
            severity: Severity::Medium,
            finding: "no post-quantum key exchange (X25519MLKEM768)".into(),
            why: "an attacker can record traffic today and decrypt it later with a quantum computer",
            nginx: "# with OpenSSL 3.5 or newer\nssl_ecdh_curve X25519MLKEM768:X25519:prime256v1:secp384r1;",
            haproxy: "# with OpenSSL 3.5 or newer, or AWS-LC\nssl-default-bind-curves X25519MLKEM768:X25519:P-256:P-384",
            sealane: SEALANE_PRESET,
        });
    }
}

fn certificate(seen: &Inspection, advice: &mut Vec<Advice>) {
    let mut plain = |id, severity, finding: String, why| {
        advice.push(Advice { id, severity, finding, why, nginx: "", haproxy: "", sealane: "" });
    };
    let Some(leaf) = seen.certificates.first() else { return };
    match leaf.days_left {
        left if left < 0 => plain(
            "certificate-expired",
            Severity::High,
            format!("the certificate expired on {}", leaf.not_after),
            "clients refuse it",
        ),
        left if left < 14 => plain(
            "certificate-expires-soon",
            Severity::High,
            format!("the certificate expires in {left} days, on {}", leaf.not_after),
            "clients will refuse it; automatic renewal usually happens earlier",
        ),
        _ => {}
    }
    for cert in seen.certificates.iter().filter(|c| c.key == "RSA" && c.key_bits < 2048) {
        plain(
            "small-key",
            Severity::High,
            format!("'{}' has an RSA key of {} bits", cert.subject, cert.key_bits),
            "an attacker with enough money can break keys below 2048 bits",
        );
    }
    // A root's own signature protects nothing, so its hash does not matter.
    for cert in seen.certificates.iter().filter(|c| !c.self_issued) {
        if cert.signature_algorithm.contains("SHA-1") || cert.signature_algorithm.contains("MD5") {
            plain(
                "weak-signature",
                Severity::High,
                format!("'{}' is signed by {}", cert.subject, cert.signature_algorithm),
                "attackers can create collisions; clients refuse the certificate",
            );
        }
    }
    if leaf.subject_alternative_names.is_empty() {
        plain(
            "no-names",
            Severity::High,
            "the certificate has no subject alternative names".into(),
            "clients ignore the common name, so they find no name in the certificate (RFC 9525)",
        );
    }
    let revoked = seen.ocsp_staple.as_ref().is_some_and(|s| s.status == "revoked");
    if revoked {
        plain(
            "revoked",
            Severity::High,
            "the stapled OCSP response says that the certificate is revoked".into(),
            "clients refuse it",
        );
    }
    if seen.ocsp_staple.is_none() && leaf.ocsp_url.is_some() {
        advice.push(Advice {
            id: "no-staple",
            severity: if leaf.must_staple { Severity::High } else { Severity::Low },
            finding: match leaf.must_staple {
                true => "the certificate requires a stapled OCSP response (must staple), but the server sends none".into(),
                false => "the server staples no OCSP response, although the authority offers one".into(),
            },
            why: "without a stapled response, clients do not check revocation, or they ask the authority: this takes time, \
                  and the authority learns who visits the site",
            nginx: "ssl_stapling on;\nssl_stapling_verify on;\nresolver 127.0.0.53;",
            haproxy: "# in the crt-list, per certificate (HAProxy 2.8 or newer)\n/etc/haproxy/cert.pem [ocsp-update on]",
            sealane: SEALANE_STAPLE,
        });
    }
}

fn resumption(seen: &Inspection, advice: &mut Vec<Advice>) {
    let versions = [("TLS 1.2", &seen.tls12), ("TLS 1.3", &seen.tls13)];
    // After an error of the second connection, nothing is known.
    let is_without = |v: &VersionReport| match v.resumed {
        Some(resumed) => !resumed,
        None => v.tickets.tls12 + v.tickets.tls13 == 0,
    };
    let without: Vec<&str> =
        versions.iter().filter(|(_, v)| v.offered && is_without(v)).map(|(name, _)| *name).collect();
    if !without.is_empty() {
        advice.push(Advice {
            id: "no-resumption",
            severity: Severity::Low,
            finding: format!("sessions are not resumed in {}", without.join(" and ")),
            why: "every new connection needs a full handshake: CPU time of the server, and in TLS 1.2 one more round trip",
            nginx: "ssl_session_cache shared:TLS:10m;\nssl_session_timeout 1d;\nssl_session_tickets on;",
            haproxy: "# on by default: remove no-tls-tickets from the bind line and from\n\
                      # ssl-default-bind-options, and do not set tune.ssl.cachesize to 0",
            sealane: "[[listener]]\n[listener.tls]\nresumption = true",
        });
    }
    if seen.tls13.early_data_accepted == Some(true) {
        advice.push(Advice {
            id: "early-data",
            severity: Severity::Medium,
            finding: "early data (0-RTT) is accepted: make sure that the application handles it".into(),
            why: "early data is encrypted, but an attacker who records it can send it again, and it lacks forward secrecy: \
                  before the end of the handshake, process only requests that may happen twice (RFC 8470)",
            nginx: "# the application must answer 425 (Too Early) if a replay of the request would do harm\n\
                    proxy_set_header Early-Data $ssl_early_data;",
            haproxy: "# requests that may not happen twice wait for the end of the handshake\n\
                      http-request wait-for-handshake unless METH_GET",
            sealane: "# switch early data off\n[[listener]]\n[listener.tls]\nearly_data = \"off\"",
        });
    }
}

fn fields(seen: &Inspection, advice: &mut Vec<Advice>) {
    let age = seen.hsts.as_deref().map(hsts_max_age);
    let finding = match age {
        None => Some("no Strict-Transport-Security (HSTS)".to_owned()),
        Some(None) => Some("Strict-Transport-Security has no max-age, so clients ignore it".into()),
        Some(Some(age)) if age < HSTS_SECONDS => {
            Some(format!("Strict-Transport-Security lasts only {} days", age / 86_400))
        }
        Some(Some(_)) => None,
    };
    if let Some(finding) = finding {
        advice.push(Advice {
            id: "hsts",
            severity: Severity::Medium,
            finding,
            why: "without HSTS, an attacker on the network path can prevent the change from http:// to https://. With HSTS, \
                  clients use only https:// until max-age has passed: begin with a small value if a host of this name \
                  still needs http://",
            nginx: "add_header Strict-Transport-Security \"max-age=63072000\" always;",
            haproxy: "http-response set-header Strict-Transport-Security max-age=63072000",
            sealane: "[[host]]\nhsts = \"max-age=63072000\"",
        });
    }
    if !seen.http2 {
        advice.push(Advice {
            id: "no-http2",
            severity: Severity::Low,
            finding: "the server did not choose HTTP/2, which the probe offered".into(),
            why: "with HTTP/1.1, browsers open up to six connections, each with its own handshake",
            nginx: "http2 on;  # before 1.25.1: listen 443 ssl http2;",
            haproxy: "bind :443 ssl crt /etc/haproxy/cert.pem alpn h2,http/1.1",
            sealane: "[[listener]]\n[listener.tls]\nalpn = [\"h2\", \"http/1.1\"]",
        });
    }
    if seen.server.as_deref().is_some_and(|s| s.bytes().any(|b| b.is_ascii_digit())) {
        advice.push(Advice {
            id: "server-version",
            severity: Severity::Low,
            finding: format!("the header Server contains a version: {}", seen.server.as_deref().unwrap_or_default()),
            why: "attackers who look for a known vulnerability find the server more easily",
            nginx: "server_tokens off;",
            haproxy: "http-response del-header Server",
            sealane: "[[host]]\nresponse_headers = { remove = [\"Server\"] }",
        });
    }
}

/// `max-age` of an HSTS field (RFC 6797 §6.1.1); quotes are allowed around the number.
fn hsts_max_age(field: &str) -> Option<u64> {
    field.split(';').find_map(|directive| {
        let (name, value) = directive.split_once('=')?;
        name.trim().eq_ignore_ascii_case("max-age").then(|| value.trim().trim_matches('"').parse().ok()).flatten()
    })
}

#[cfg(test)]
#[path = "advice_tests.rs"]
mod tests;
