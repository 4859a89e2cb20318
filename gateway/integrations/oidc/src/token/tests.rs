use super::*;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::json;

const NOW: u64 = 1_700_000_000;
const EXPECTED: Expected<'_> = Expected { issuer: "https://id.example", client_id: "vpn", nonce: "n-1", now: NOW };

/// The provider's keys, and a stranger's.
struct Signer {
    rsa: RsaKeyPair,
    ec: EcdsaKeyPair,
}

impl Signer {
    fn new() -> Self {
        Self {
            rsa: RsaKeyPair::generate(KeySize::Rsa2048).expect("generated"),
            ec: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("generated"),
        }
    }

    /// The key set, as a provider serves it.
    fn set(&self) -> Value {
        let b64 = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        // RSAPublicKey (RFC 8017 §A.1.1) with a modulus of 257 bytes, the first of which is zero.
        let rsa = self.rsa.public_key().as_ref();
        let point = self.ec.public_key().as_ref();
        json!({ "keys": [
            { "kty": "RSA", "use": "enc", "kid": "e", "n": b64(&rsa[9..265]), "e": "AQAB" },
            { "kty": "RSA", "use": "sig", "kid": "r", "alg": "RS256", "n": b64(&rsa[9..265]), "e": "AQAB" },
            { "kty": "EC", "crv": "P-256", "kid": "p", "x": b64(&point[1..33]), "y": b64(&point[33..]) },
            { "kty": "oct", "kid": "o", "k": "AAAA" },
        ] })
    }

    fn keys(&self) -> Vec<Key> {
        keys(self.set().to_string().as_bytes()).expect("a set")
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let b64 = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let message = format!("{}.{}", b64(header.to_string().as_bytes()), b64(claims.to_string().as_bytes()));
        let signature = match header["alg"].as_str() {
            Some("ES256") => self.ec.sign(&SystemRandom::new(), message.as_bytes()).expect("signed").as_ref().to_vec(),
            _ => {
                let mut signature = vec![0; self.rsa.public_modulus_len()];
                let signed = self.rsa.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message.as_bytes(), &mut signature);
                signed.expect("signed");
                signature
            }
        };
        format!("{message}.{}", b64(&signature))
    }
}

fn claims() -> Value {
    json!({
        "iss": "https://id.example", "sub": "al", "aud": "vpn", "exp": NOW + 300, "iat": NOW - 1, "nonce": "n-1",
    })
}

/// The claims with one of them changed; null: without it.
fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    let all = claims.as_object_mut().expect("an object");
    match value {
        Value::Null => drop(all.remove(name)),
        value => drop(all.insert(name.to_owned(), value)),
    }
    claims
}

fn verify(token: &str, keys: &[Key]) -> Result<Map<String, Value>, Flaw> {
    Unverified::read(token)?.verified(keys, &EXPECTED)
}

fn rs256() -> Value {
    json!({ "alg": "RS256", "kid": "r" })
}

#[test]
fn a_token_of_the_provider_is_good() {
    let signer = Signer::new();
    let keys = signer.keys();
    assert_eq!(keys.len(), 2, "one for encryption and a secret are left out");
    for header in [rs256(), json!({ "alg": "RS256" }), json!({ "alg": "ES256", "kid": "p", "typ": "JWT" })] {
        let found = verify(&signer.sign(&header, &claims()), &keys).expect("good");
        assert_eq!(found["sub"], "al");
    }
    for good in [
        with("aud", json!(["vpn"])),
        with("azp", json!("vpn")),
        with("exp", json!(NOW as f64 + 0.5)),
        with("nbf", json!(NOW)),
    ] {
        assert!(verify(&signer.sign(&rs256(), &good), &keys).is_ok(), "{good}");
    }
}

#[test]
fn only_the_providers_signature_counts() {
    let (signer, stranger) = (Signer::new(), Signer::new());
    let keys = signer.keys();
    let good = signer.sign(&rs256(), &claims());
    assert_eq!(verify(&stranger.sign(&rs256(), &claims()), &keys), Err(Flaw::Signature));
    let (message, signature) = good.rsplit_once('.').expect("two dots");
    let unsigned = |header: Value| {
        let header = URL_SAFE_NO_PAD.encode(header.to_string());
        let (_, claims) = message.split_once('.').expect("a dot");
        format!("{header}.{claims}.")
    };
    // No signature, a public key as the secret of a MAC, another kind of key, an extension, and an unknown key.
    for (header, flaw) in [
        (json!({ "alg": "none" }), Flaw::Algorithm),
        (json!({ "alg": "None" }), Flaw::Algorithm),
        (json!({ "alg": "HS256", "kid": "r" }), Flaw::Algorithm),
        (json!({ "alg": "RS256", "kid": "r" }), Flaw::Signature),
        (json!({ "alg": "ES256", "kid": "p" }), Flaw::Signature),
        (json!({ "alg": "ES256", "kid": "r" }), Flaw::Key),
        (json!({ "alg": "PS256", "kid": "r" }), Flaw::Key),
        (json!({ "alg": "RS256", "kid": "o" }), Flaw::Key),
        (json!({ "alg": "RS256", "kid": 1 }), Flaw::Form),
        (json!({ "alg": "RS256", "kid": "r", "crit": ["b64"] }), Flaw::Form),
        (json!({ "kid": "r" }), Flaw::Form),
        (json!([]), Flaw::Form),
    ] {
        assert_eq!(verify(&unsigned(header.clone()), &keys), Err(flaw), "{header}");
    }
    let other = URL_SAFE_NO_PAD.encode(with("sub", json!("bo")).to_string());
    let (header, _) = message.split_once('.').expect("a dot");
    assert_eq!(verify(&format!("{header}.{other}.{signature}"), &keys), Err(Flaw::Signature));
    assert_eq!(verify(&good, &[]), Err(Flaw::Key));
}

#[test]
fn a_token_is_for_this_login_alone() {
    let signer = Signer::new();
    let keys = signer.keys();
    for (claims, flaw) in [
        (with("iss", json!("https://id.example/")), Flaw::Issuer),
        (with("iss", json!(["https://id.example"])), Flaw::Issuer),
        (with("iss", Value::Null), Flaw::Issuer),
        (with("aud", json!("mail")), Flaw::Audience),
        (with("aud", json!(["mail", "vpn"])), Flaw::Audience),
        (with("aud", Value::Null), Flaw::Audience),
        (with("azp", json!("mail")), Flaw::Audience),
        (with("exp", json!(NOW - LEEWAY)), Flaw::Expired),
        (with("exp", json!("2100")), Flaw::Form),
        (with("exp", Value::Null), Flaw::Form),
        (with("iat", json!(NOW + LEEWAY + 1)), Flaw::Time),
        (with("iat", json!(NOW - MAX_AGE - 1)), Flaw::Time),
        (with("iat", Value::Null), Flaw::Form),
        (with("iat", json!(-1)), Flaw::Form),
        (with("nbf", json!(NOW + LEEWAY + 1)), Flaw::Time),
        (with("nonce", json!("n-2")), Flaw::Nonce),
        (with("nonce", Value::Null), Flaw::Nonce),
        (json!("text"), Flaw::Form),
    ] {
        assert_eq!(verify(&signer.sign(&rs256(), &claims), &keys), Err(flaw), "{claims}");
    }
}

#[test]
fn what_is_no_token_is_refused() {
    let keys = Signer::new().keys();
    for bad in ["", ".", "..", "a.b", "a.b.c", "e30.e30.", "e30.e30.e30.e30", "\u{fc}.\u{fc}.\u{fc}"] {
        assert_eq!(verify(bad, &keys), Err(Flaw::Form), "{bad}");
    }
    assert_eq!(verify(&"a".repeat(MAX_TOKEN + 1), &keys), Err(Flaw::Length));
    // Depth costs nothing: the reader has a bound.
    let deep = URL_SAFE_NO_PAD.encode("[".repeat(30_000));
    assert_eq!(verify(&format!("{deep}.e30."), &keys), Err(Flaw::Form));
    for bad in ["", "{}", "[]", "{\"keys\":1}"] {
        assert!(super::keys(bad.as_bytes()).is_none(), "{bad}");
    }
    let many = json!({ "keys": vec![json!({ "kty": "RSA", "n": "AQ", "e": "AQ" }); MAX_KEYS + 10] });
    assert_eq!(super::keys(many.to_string().as_bytes()).map(|keys| keys.len()), Some(MAX_KEYS));
}
