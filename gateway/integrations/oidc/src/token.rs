//! ID tokens (OpenID Connect Core §2, §3.1.3.7): a strict reader of signed JWTs (RFC 7515, RFC 7519) and key sets (RFC 7517). The
//! signatures are verified by aws-lc-rs.
//!
//! A token is read only as far as it is needed before its signature is verified: its header, which names the algorithm and the key.
//! Algorithms are a list of this gateway's, and a key is used only with the algorithms of its own kind, so that neither `none` nor a
//! public key in the place of a secret is ever a choice.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, RSA_PKCS1_2048_8192_SHA256, RSA_PSS_2048_8192_SHA256,
    RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

/// The longest token.
pub(crate) const MAX_TOKEN: usize = 64 << 10;
/// Keys of a set that are looked at.
const MAX_KEYS: usize = 64;
/// How far clocks may differ, in seconds.
const LEEWAY: u64 = 60;
/// The oldest token, in seconds: it is issued for this login.
const MAX_AGE: u64 = 600;

/// Why a token proves nothing. Without any part of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    Length,
    Form,
    Algorithm,
    /// No key of the provider's has the token's key ID and kind.
    Key,
    Signature,
    Issuer,
    Audience,
    Expired,
    /// It was issued in the future, or long ago, or is not valid yet.
    Time,
    Nonce,
}

impl std::fmt::Display for Flaw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Length => "it is too long",
            Self::Form => "it is malformed",
            Self::Algorithm => "its algorithm is not accepted (RS256, PS256, ES256 and ES384 are)",
            Self::Key => "the provider has no such key",
            Self::Signature => "its signature is wrong",
            Self::Issuer => "it is from another issuer",
            Self::Audience => "it is for another client",
            Self::Expired => "it has expired",
            Self::Time => "its times are wrong: compare this machine's clock with the provider's",
            Self::Nonce => "it is for another login",
        })
    }
}

/// What a token must say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected<'a> {
    pub issuer: &'a str,
    pub client_id: &'a str,
    pub nonce: &'a str,
    /// Seconds since 1970.
    pub now: u64,
}

/// How tokens are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Rs256,
    Ps256,
    Es256,
    Es384,
}

impl Algorithm {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rs256,
            "PS256" => Self::Ps256,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            _ => return None,
        })
    }
}

/// A public key of the provider's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    id: Option<String>,
    /// The only algorithm that it is for, if it says so.
    algorithm: Option<String>,
    material: Material,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Material {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point.
    P256(Vec<u8>),
    P384(Vec<u8>),
}

impl Key {
    /// Reads a key. `None`: it is of another kind, or not for signatures.
    fn read(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?).ok();
        if text("use").is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let point = |length: usize| {
            let (x, y) = (bytes("x")?, bytes("y")?);
            (x.len() == length && y.len() == length).then(|| [&[4_u8][..], &x, &y].concat())
        };
        let material = match (text("kty")?, text("crv")) {
            ("RSA", _) => {
                let strip = |bytes: Vec<u8>| bytes.into_iter().skip_while(|byte| *byte == 0).collect::<Vec<u8>>();
                Material::Rsa { n: strip(bytes("n")?), e: strip(bytes("e")?) }
            }
            ("EC", Some("P-256")) => Material::P256(point(32)?),
            ("EC", Some("P-384")) => Material::P384(point(48)?),
            _ => return None,
        };
        Some(Self { id: text("kid").map(str::to_owned), algorithm: text("alg").map(str::to_owned), material })
    }

    /// Whether it can have signed such a token.
    fn fits(&self, id: Option<&str>, name: &str, algorithm: Algorithm) -> bool {
        let is_kind = matches!(
            (&self.material, algorithm),
            (Material::Rsa { .. }, Algorithm::Rs256 | Algorithm::Ps256)
                | (Material::P256(_), Algorithm::Es256)
                | (Material::P384(_), Algorithm::Es384)
        );
        is_kind
            && id.is_none_or(|id| self.id.as_deref() == Some(id))
            && self.algorithm.as_deref().is_none_or(|own| own == name)
    }

    fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let verified = match (&self.material, algorithm) {
            (Material::Rsa { n, e }, Algorithm::Rs256) => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            (Material::Rsa { n, e }, Algorithm::Ps256) => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PSS_2048_8192_SHA256, message, signature)
            }
            (Material::P256(point), Algorithm::Es256) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            (Material::P384(point), Algorithm::Es384) => {
                UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point).verify(message, signature)
            }
            _ => return false,
        };
        verified.is_ok()
    }
}

/// The keys of a set that can be used. `None`: it is no set.
pub(crate) fn keys(set: &[u8]) -> Option<Vec<Key>> {
    let set: Value = serde_json::from_slice(set).ok()?;
    Some(set.get("keys")?.as_array()?.iter().take(MAX_KEYS).filter_map(Key::read).collect())
}

/// A token whose header is read.
#[derive(Debug)]
pub(crate) struct Unverified<'a> {
    /// What is signed.
    message: &'a str,
    claims: &'a str,
    signature: Vec<u8>,
    name: String,
    algorithm: Algorithm,
    key_id: Option<String>,
}

impl<'a> Unverified<'a> {
    /// Reads the header.
    pub fn read(token: &'a str) -> Result<Self, Flaw> {
        if token.len() > MAX_TOKEN {
            return Err(Flaw::Length);
        }
        let (message, signature) = token.rsplit_once('.').ok_or(Flaw::Form)?;
        let (header, claims) = message.split_once('.').ok_or(Flaw::Form)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| Flaw::Form)?;
        let header = object(header)?;
        // An extension that must be understood (RFC 7515 §4.1.11), and none is.
        if header.contains_key("crit") {
            return Err(Flaw::Form);
        }
        let name = header.get("alg").and_then(Value::as_str).ok_or(Flaw::Form)?.to_owned();
        let algorithm = Algorithm::named(&name).ok_or(Flaw::Algorithm)?;
        let key_id = match header.get("kid") {
            None => None,
            Some(id) => Some(id.as_str().ok_or(Flaw::Form)?.to_owned()),
        };
        Ok(Self { message, claims, signature, name, algorithm, key_id })
    }

    /// Whether one of these keys can have signed it. If not, the provider may have another by now.
    pub fn has_key(&self, keys: &[Key]) -> bool {
        keys.iter().any(|key| key.fits(self.key_id.as_deref(), &self.name, self.algorithm))
    }

    /// The token's claims, if it is signed, and is for this login.
    pub fn verified(&self, keys: &[Key], expected: &Expected<'_>) -> Result<Map<String, Value>, Flaw> {
        if !self.has_key(keys) {
            return Err(Flaw::Key);
        }
        let mut fitting = keys.iter().filter(|key| key.fits(self.key_id.as_deref(), &self.name, self.algorithm));
        if !fitting.any(|key| key.verifies(self.algorithm, self.message.as_bytes(), &self.signature)) {
            return Err(Flaw::Signature);
        }
        let claims = object(self.claims)?;
        check(&claims, expected)?;
        Ok(claims)
    }
}

fn object(part: &str) -> Result<Map<String, Value>, Flaw> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| Flaw::Form)?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(Flaw::Form),
    }
}

fn check(claims: &Map<String, Value>, expected: &Expected<'_>) -> Result<(), Flaw> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    if text("iss") != Some(expected.issuer) {
        return Err(Flaw::Issuer);
    }
    let for_us = match claims.get("aud") {
        Some(Value::String(audience)) => audience == expected.client_id,
        // With several, the one that it was issued to must be named, and is checked below.
        Some(Value::Array(all)) => {
            all.iter().any(|audience| audience.as_str() == Some(expected.client_id))
                && (all.len() == 1 || claims.contains_key("azp"))
        }
        _ => false,
    };
    let is_issued_to_us = claims.get("azp").is_none_or(|party| party.as_str() == Some(expected.client_id));
    if !for_us || !is_issued_to_us {
        return Err(Flaw::Audience);
    }
    let time = |name: &str| match claims.get(name) {
        None => Ok(None),
        Some(value) => {
            let whole = value.as_u64().or_else(|| value.as_f64().filter(|n| *n >= 0.0).map(|n| n as u64));
            whole.map(Some).ok_or(Flaw::Form)
        }
    };
    let (expires, issued) = (time("exp")?.ok_or(Flaw::Form)?, time("iat")?.ok_or(Flaw::Form)?);
    if expires.saturating_add(LEEWAY) <= expected.now {
        return Err(Flaw::Expired);
    }
    let is_future = |at: u64| at > expected.now.saturating_add(LEEWAY);
    if is_future(issued) || expected.now.saturating_sub(issued) > MAX_AGE || time("nbf")?.is_some_and(is_future) {
        return Err(Flaw::Time);
    }
    match text("nonce") {
        Some(nonce) if nonce == expected.nonce => Ok(()),
        _ => Err(Flaw::Nonce),
    }
}

#[cfg(test)]
mod tests;
