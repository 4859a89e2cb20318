//! The things that can be compared: which TLS, which kind of handshake, which HTTP.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::error::ProbeError;

/// A pinned TLS version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// TLS 1.2 and nothing else.
    Tls12,
    /// TLS 1.3 and nothing else.
    Tls13,
}

/// How a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// No ticket is offered.
    Full,
    /// A ticket of an earlier connection is offered.
    Resumed,
    /// And the request goes out with it, before the handshake is done (RFC 8446 §2.3).
    EarlyData,
}

/// A pinned HTTP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    /// HTTP/1.1.
    H1,
    /// HTTP/2.
    H2,
    /// HTTP/3 over QUIC.
    H3,
}

/// A pinned key-exchange group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// X25519 alone.
    X25519,
    /// NIST P-256 alone.
    P256,
    /// NIST P-384 alone.
    P384,
    /// The post-quantum hybrid X25519MLKEM768 alone.
    PostQuantum,
}

/// One way to make a request, such as `tls1.2+resumed` or `h3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The name as the user wrote it.
    pub name: String,
    /// `None`: whichever is negotiated.
    pub version: Option<Version>,
    /// How the connection begins.
    pub handshake: Handshake,
    /// `None`: HTTP/2 or HTTP/1.1, as negotiated.
    pub http: Option<Http>,
    /// `None`: as browsers offer them, the post-quantum hybrid first.
    pub group: Option<Group>,
}

const WORDS: &str = "tls1.2, tls1.3, full, resumed, 0-rtt, h1, h2, h3, x25519, p256, p384, pq";

impl Variant {
    /// A full handshake with everything negotiated.
    pub fn negotiated() -> Self {
        Self { name: "negotiated".into(), version: None, handshake: Handshake::Full, http: None, group: None }
    }

    /// Whether a ticket is needed first.
    pub fn resumes(&self) -> bool {
        self.handshake != Handshake::Full
    }
}

impl FromStr for Variant {
    type Err = ProbeError;

    /// Words joined by `+`, each fixing one thing.
    fn from_str(text: &str) -> Result<Self, ProbeError> {
        let bad = |problem: String| ProbeError::Usage(format!("variant '{text}': {problem}"));
        let mut variant = Self { name: text.trim().to_ascii_lowercase(), ..Self::negotiated() };
        let mut handshake = None;
        for word in variant.name.clone().split('+').map(str::trim) {
            let first_time = match word {
                "tls1.2" | "tls12" => variant.version.replace(Version::Tls12).is_none(),
                "tls1.3" | "tls13" => variant.version.replace(Version::Tls13).is_none(),
                "full" => handshake.replace(Handshake::Full).is_none(),
                "resumed" => handshake.replace(Handshake::Resumed).is_none(),
                "0-rtt" | "0rtt" | "early-data" => handshake.replace(Handshake::EarlyData).is_none(),
                "h1" => variant.http.replace(Http::H1).is_none(),
                "h2" => variant.http.replace(Http::H2).is_none(),
                "h3" => variant.http.replace(Http::H3).is_none(),
                "x25519" => variant.group.replace(Group::X25519).is_none(),
                "p256" => variant.group.replace(Group::P256).is_none(),
                "p384" => variant.group.replace(Group::P384).is_none(),
                "pq" => variant.group.replace(Group::PostQuantum).is_none(),
                "syn" => {
                    return Err(bad(
                        "sealane-lab probe does not support 'syn' (TLS in the TCP handshake): remove this \
                                    word"
                            .into(),
                    ));
                }
                "" => return Err(bad(format!("an empty word; the words are {WORDS}"))),
                _ => return Err(bad(format!("unknown word '{word}'; the words are {WORDS}, joined by +"))),
            };
            if !first_time {
                return Err(bad(format!("'{word}' sets a property that another word has already set")));
            }
        }
        variant.handshake = handshake.unwrap_or(Handshake::Full);
        let only_13 = match (variant.handshake, variant.http, variant.group) {
            (Handshake::EarlyData, _, _) => Some("0-RTT"),
            (_, Some(Http::H3), _) => Some("HTTP/3"),
            (_, _, Some(Group::PostQuantum)) => Some("post-quantum key exchange"),
            _ => None,
        };
        if let Some(what) = only_13 {
            if variant.version == Some(Version::Tls12) {
                return Err(bad(format!("{what} exists only in TLS 1.3")));
            }
            variant.version = Some(Version::Tls13);
        }
        Ok(variant)
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Serialize for Variant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name)
    }
}

/// Reads `--compare`'s list: two or more different variants.
pub fn parse_list(text: &str) -> Result<Vec<Variant>, ProbeError> {
    let variants: Vec<Variant> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
    if variants.len() < 2 {
        return Err(ProbeError::Usage("--compare needs two or more variants, such as tls1.2,tls1.3".into()));
    }
    for (i, variant) in variants.iter().enumerate() {
        let same = |v: &&Variant| {
            Variant { name: String::new(), ..(*v).clone() } == Variant { name: String::new(), ..variant.clone() }
        };
        if let Some(twin) = variants[..i].iter().find(same) {
            return Err(ProbeError::Usage(format!("--compare: '{twin}' and '{variant}' are the same thing")));
        }
    }
    Ok(variants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_combine() {
        let variant: Variant = "TLS1.2+resumed+h2+p256".parse().expect("valid");
        assert_eq!(variant.version, Some(Version::Tls12));
        assert_eq!(
            (variant.handshake, variant.http, variant.group),
            (Handshake::Resumed, Some(Http::H2), Some(Group::P256))
        );
        let variant: Variant = "0-rtt".parse().expect("valid");
        assert_eq!((variant.version, variant.handshake), (Some(Version::Tls13), Handshake::EarlyData));
        assert_eq!("h3".parse::<Variant>().expect("valid").version, Some(Version::Tls13));
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        for (text, why) in [
            ("tls1.2+0-rtt", "only in TLS 1.3"),
            ("tls1.2+h3", "only in TLS 1.3"),
            ("tls1.2+tls1.3", "already"),
            ("ssl3", "unknown word"),
            ("", "empty"),
            ("tls1.3+", "empty"),
            ("syn", "does not support"),
            ("tls1.3+syn", "does not support"),
        ] {
            let error = text.parse::<Variant>().expect_err(text);
            assert!(error.to_string().contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn lists_need_two_different_variants() {
        assert_eq!(parse_list("tls1.2,tls1.3").expect("valid").len(), 2);
        for bad in ["tls1.2", "tls1.2,tls12", "0-rtt,tls1.3+0-rtt", "h3,tls1.3+h3+full"] {
            assert!(parse_list(bad).is_err(), "{bad}");
        }
    }
}
