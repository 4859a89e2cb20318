//! What a server accepts beyond what a modern client asks for: old versions, weak suites, and which groups it knows.
//! One short connection per question, broken off after the server's first answer.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use crate::error::ProbeError;
use crate::hello::{Answer, MAX_ANSWER, Offer, answer, client_hello};
use crate::net::{Deadline, Resolver, Socket};
use crate::stats::Rng;
use crate::target::Target;

/// The answer to one question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was offered, by its usual name.
    pub name: String,
    /// Whether the server accepted it; `None` when its answer does not tell (silence, or not TLS).
    pub accepted: Option<bool>,
    /// What the answer was, in words.
    pub answer: String,
}

/// All answers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Scan {
    /// SSL 3, TLS 1.0 and TLS 1.1.
    pub old_versions: Vec<Finding>,
    /// Weak suites of TLS 1.2, by what is weak about them.
    pub weak_suites: Vec<Finding>,
    /// Key-exchange groups of TLS 1.3.
    pub groups: Vec<Finding>,
}

impl Scan {
    /// Whether `name` was accepted for certain.
    pub fn accepted(&self, name: &str) -> bool {
        self.old_versions
            .iter()
            .chain(&self.weak_suites)
            .chain(&self.groups)
            .any(|f| f.name == name && f.accepted == Some(true))
    }

    /// Whether the server accepted a group with post-quantum protection.
    pub fn post_quantum(&self) -> bool {
        self.has_post_quantum(Some(true))
    }

    /// Whether the server accepted no such group, but at least one answer does not tell.
    pub fn is_post_quantum_unclear(&self) -> bool {
        !self.post_quantum() && self.has_post_quantum(None)
    }

    fn has_post_quantum(&self, accepted: Option<bool>) -> bool {
        self.groups.iter().any(|f| f.name.contains("MLKEM") && f.accepted == accepted)
    }
}

/// Suites that a server of TLS 1.0 or 1.1 may know.
const OLD_SUITES: [u16; 16] = [
    0xc013, 0xc014, 0xc009, 0xc00a, 0x002f, 0x0035, 0x0033, 0x0039, 0xc012, 0xc008, 0x000a, 0x0016, 0x0005, 0x0004,
    0xc011, 0x0041,
];

/// A kind of weakness and the suites that have it.
const WEAK: [(&str, &[u16]); 6] = [
    ("RSA key exchange", &[0x009c, 0x009d, 0x002f, 0x0035, 0x003c, 0x003d, 0xc09c, 0xc09d, 0x0041, 0x0084]),
    (
        "CBC mode",
        &[
            0xc023, 0xc024, 0xc027, 0xc028, 0xc009, 0xc00a, 0xc013, 0xc014, 0x0067, 0x006b, 0x0033, 0x0039, 0x003c,
            0x002f,
        ],
    ),
    ("finite-field Diffie-Hellman", &[0x009e, 0x009f, 0xccaa, 0x0067, 0x006b, 0x0033, 0x0039]),
    ("3DES", &[0xc012, 0xc008, 0x0016, 0x000a]),
    ("RC4", &[0xc011, 0xc007, 0x0005, 0x0004]),
    (
        "NULL, export or anonymous",
        &[
            0x0001, 0x0002, 0x003b, 0xc006, 0xc010, 0x0003, 0x0006, 0x0008, 0x0014, 0x0034, 0x006c, 0x00a6, 0xc018,
            0xc019,
        ],
    ),
];

const GROUPS: [(&str, u16); 8] = [
    ("X25519MLKEM768", 0x11ec),
    ("secp256r1MLKEM768", 0x11eb),
    ("secp384r1MLKEM1024", 0x11ed),
    ("x25519", 29),
    ("secp256r1", 23),
    ("secp384r1", 24),
    ("secp521r1", 25),
    ("x448", 30),
];

/// The groups offered along with TLS 1.2 and older.
const CLASSIC: [u16; 4] = [29, 23, 24, 25];

/// Asks everything. An error means that the server could not be reached at all; a strange answer is an answer.
pub fn scan(target: &Target, resolver: &mut Resolver, timeout: Duration) -> Result<Scan, ProbeError> {
    let addresses = resolver.resolve(target, Deadline::after(timeout))?;
    let mut rng = Rng::new(u64::from(target.port) ^ 0x5ea1_a9e0);
    let mut ask = |name: &str, offer: Offer<'_>| -> Result<Finding, ProbeError> {
        let mut random = [0; 32];
        for chunk in random.chunks_exact_mut(8) {
            chunk.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        let asked = exchange(&addresses, &client_hello(&offer, random), timeout)?;
        Ok(judge(name, &offer, asked))
    };
    let offer =
        |legacy_version, suites| Offer { legacy_version, tls13: false, suites, groups: &CLASSIC, host: &target.host };
    let mut scan = Scan::default();
    for (name, version) in [("SSL 3", 0x0300), ("TLS 1.0", 0x0301), ("TLS 1.1", 0x0302)] {
        scan.old_versions.push(ask(name, offer(version, &OLD_SUITES))?);
    }
    for (name, suites) in WEAK {
        scan.weak_suites.push(ask(name, offer(0x0303, suites))?);
    }
    for (name, group) in GROUPS {
        let groups = [group];
        scan.groups.push(ask(
            name,
            Offer { tls13: true, suites: &[0x1301, 0x1302, 0x1303], groups: &groups, ..offer(0x0303, &[]) },
        )?);
    }
    Ok(scan)
}

enum Asked {
    Answer(Answer),
    Closed,
    Silence,
}

fn exchange(addresses: &[SocketAddr], hello: &[u8], timeout: Duration) -> Result<Asked, ProbeError> {
    let mut socket = Socket::connect(addresses, Deadline::after(timeout))?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    if socket.write_all(hello).is_err() {
        return Ok(Asked::Closed);
    }
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => return Ok(Asked::Closed),
            Ok(n) => bytes.extend(&buffer[..n]),
            Err(e) if matches!(e.kind(), std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock) => {
                return Ok(Asked::Silence);
            }
            Err(_) => return Ok(Asked::Closed),
        }
        if let Some(answer) = answer(&bytes) {
            return Ok(Asked::Answer(answer));
        }
        if bytes.len() > MAX_ANSWER {
            return Ok(Asked::Answer(Answer::Nonsense));
        }
    }
}

fn judge(name: &str, offer: &Offer<'_>, asked: Asked) -> Finding {
    let (accepted, answer) = match asked {
        Asked::Answer(Answer::Hello { version, suite, retry_group }) => {
            let as_offered = offer.suites.contains(&suite)
                && match offer.tls13 {
                    false => version == offer.legacy_version,
                    true => version == 0x0304 && retry_group.is_some_and(|g| offer.groups.contains(&g)),
                };
            let words = match retry_group {
                Some(group) => format!("wants group {group:#06x}"),
                None => format!("chose version {version:#06x}, suite {suite:#06x}"),
            };
            (Some(as_offered), words)
        }
        Asked::Answer(Answer::Alert(description)) => (Some(false), format!("alert {}", alert_name(description))),
        Asked::Answer(Answer::Nonsense) => (None, "not TLS".into()),
        // Some servers hang up without an alert; that is a refusal in all but name, and told as what it is.
        Asked::Closed => (Some(false), "closed without an alert".into()),
        Asked::Silence => (None, "no response in time".into()),
    };
    Finding { name: name.into(), accepted, answer }
}

fn alert_name(description: u8) -> String {
    match description {
        10 => "unexpected_message",
        20 => "bad_record_mac",
        40 => "handshake_failure",
        47 => "illegal_parameter",
        50 => "decode_error",
        70 => "protocol_version",
        71 => "insufficient_security",
        80 => "internal_error",
        86 => "inappropriate_fallback",
        109 => "missing_extension",
        112 => "unrecognized_name",
        120 => "no_application_protocol",
        other => return other.to_string(),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: Offer<'_> =
        Offer { legacy_version: 0x0301, tls13: false, suites: &[0x002f], groups: &CLASSIC, host: "a" };

    fn accepted(offer: &Offer<'_>, answer: Answer) -> Option<bool> {
        judge("x", offer, Asked::Answer(answer)).accepted
    }

    #[test]
    fn only_what_was_offered_counts_as_accepted() {
        let hello = |version, suite, retry_group| Answer::Hello { version, suite, retry_group };
        assert_eq!(accepted(&OFFER, hello(0x0301, 0x002f, None)), Some(true));
        // A server that answers with another version or suite has not accepted this one.
        assert_eq!(accepted(&OFFER, hello(0x0303, 0x002f, None)), Some(false));
        assert_eq!(accepted(&OFFER, hello(0x0301, 0x1301, None)), Some(false));
        assert_eq!(accepted(&OFFER, Answer::Alert(70)), Some(false));
        assert_eq!(accepted(&OFFER, Answer::Nonsense), None);
        assert_eq!(judge("x", &OFFER, Asked::Silence).accepted, None);
        let offer = Offer { tls13: true, suites: &[0x1301], groups: &[29], ..OFFER };
        assert_eq!(accepted(&offer, hello(0x0304, 0x1301, Some(29))), Some(true));
        assert_eq!(accepted(&offer, hello(0x0304, 0x1301, Some(23))), Some(false));
    }
}
