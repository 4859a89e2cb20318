//! One-time codes that change every 30 seconds (TOTP, RFC 6238), as authenticator apps show them: HMAC-SHA-1, six digits.

use aws_lc_rs::{constant_time, hmac};
use std::collections::HashMap;
use std::fmt;
use zeroize::Zeroizing;

/// Seconds for which a code is shown.
const STEP: u64 = 30;
/// Codes that are accepted before and after the one of the moment: clocks differ, and typing takes time (RFC 6238 §5.2).
const WINDOW: u64 = 1;
const DIGITS: usize = 6;
/// The shortest secret, in bytes, that authenticators make. RFC 4226 §4 asks for 16.
const MIN_SECRET: usize = 10;
const MAX_SECRET: usize = 64;
/// Length of the secrets that we make (RFC 4226 §4).
const SECRET: usize = 20;
/// RFC 4648 §6.
const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// What a user's codes are made from.
#[derive(Clone, PartialEq, Eq)]
pub struct CodeSecret(Zeroizing<Vec<u8>>);

impl fmt::Debug for CodeSecret {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CodeSecret")
    }
}

impl CodeSecret {
    /// Makes one. The error is the random generator's.
    pub fn random() -> Result<Self, String> {
        let mut bytes = Zeroizing::new(vec![0; SECRET]);
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| "the system has no random bytes".to_owned())?;
        Ok(Self(bytes))
    }

    /// Reads base32 (RFC 4648 §6), in upper or lower case, with or without padding.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() * 5 / 8));
        let (mut buffer, mut bits) = (0_u32, 0);
        for c in text.trim_end_matches('=').bytes() {
            let value = BASE32.iter().position(|b| *b == c.to_ascii_uppercase());
            let Some(value) = value else { return Err("the secret of \"totp=\" is not base32".to_owned()) };
            buffer = buffer << 5 | value as u32;
            bits += 5;
            if bits >= 8 {
                bits -= 8;
                bytes.push((buffer >> bits) as u8);
                buffer &= (1 << bits) - 1;
            }
        }
        match bytes.len() {
            MIN_SECRET..=MAX_SECRET => Ok(Self(bytes)),
            n => Err(format!("the secret of \"totp=\" has {n} bytes; it must have {MIN_SECRET} to {MAX_SECRET}")),
        }
    }

    /// In base32, without padding.
    pub fn to_base32(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(self.0.len() * 8 / 5 + 1));
        for group in self.0.chunks(5) {
            let mut padded = [0; 8];
            padded[3..3 + group.len()].copy_from_slice(group);
            let value = u64::from_be_bytes(padded);
            let letters = (group.len() * 8).div_ceil(5);
            text.extend((0..letters).map(|i| char::from(BASE32[(value >> (35 - 5 * i)) as usize & 31])));
        }
        text
    }

    /// What an authenticator app takes, as text or as a QR code.
    pub fn to_url(&self, issuer: &str, user: &str) -> Zeroizing<String> {
        let (issuer, user) = (escaped(issuer), escaped(user));
        Zeroizing::new(format!("otpauth://totp/{issuer}:{user}?secret={}&issuer={issuer}", self.to_base32().as_str()))
    }

    /// The code of a step (RFC 4226 §5.3).
    fn code(&self, step: u64) -> [u8; DIGITS] {
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &self.0);
        let tag = hmac::sign(&key, &step.to_be_bytes());
        let tag = tag.as_ref();
        let at = usize::from(tag[19] & 15);
        let mut number = u32::from_be_bytes([tag[at], tag[at + 1], tag[at + 2], tag[at + 3]]) & 0x7fff_ffff;
        let mut digits = [0; DIGITS];
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        digits
    }

    /// The step whose code this is, of those that are accepted at a time (in seconds since 1970). All of them are compared.
    fn step_of(&self, code: &[u8], unix: u64) -> Option<u64> {
        let now = unix / STEP;
        (now.saturating_sub(WINDOW)..=now + WINDOW).fold(None, |found, step| {
            let is_this = constant_time::verify_slices_are_equal(&self.code(step), code).is_ok();
            if is_this { Some(step) } else { found }
        })
    }
}

/// Percent-encodes all but unreserved characters (RFC 3986 §2.3).
fn escaped(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// The codes that were used: each is good once (RFC 6238 §5.2). Bounded by the number of users.
#[derive(Debug, Default)]
pub struct UsedCodes(HashMap<String, u64>);

impl UsedCodes {
    /// Whether a user's code is right and was not used before, and neither was a later one.
    pub fn accept(&mut self, user: &str, secret: &CodeSecret, code: &[u8], unix: u64) -> bool {
        let Some(step) = secret.step_of(code, unix) else { return false };
        if self.0.get(user).is_some_and(|last| step <= *last) {
            return false;
        }
        // What is too old to be accepted need not be remembered.
        let oldest = (unix / STEP).saturating_sub(WINDOW);
        self.0.retain(|_, last| *last >= oldest);
        self.0.insert(user.to_owned(), step);
        true
    }
}

/// A password as it came from a client, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub struct WithCode<'a> {
    /// The password.
    pub password: std::borrow::Cow<'a, str>,
    /// The answer to the client's question, if it came with one.
    pub code: Option<Zeroizing<Vec<u8>>>,
}

impl<'a> WithCode<'a> {
    /// Takes apart what OpenVPN's clients send with `static-challenge`: `SCRV1:` with password and answer in base64, or (format
    /// `concat`, and clients without a question) the password with the code behind it. `wants_code`: the user has codes.
    pub fn of(sent: &'a str, wants_code: bool, base64: impl Fn(&str) -> Option<Vec<u8>>) -> Option<Self> {
        if let Some((password, code)) = sent.strip_prefix("SCRV1:").and_then(|rest| rest.split_once(':')) {
            let password = String::from_utf8(base64(password)?).ok()?;
            return Some(Self { password: password.into(), code: Some(Zeroizing::new(base64(code)?)) });
        }
        if !wants_code {
            return Some(Self { password: sent.into(), code: None });
        }
        let at = sent.len().checked_sub(DIGITS).filter(|at| sent.is_char_boundary(*at))?;
        let (password, code) = sent.split_at(at);
        Some(Self { password: password.into(), code: Some(Zeroizing::new(code.as_bytes().to_vec())) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> CodeSecret {
        CodeSecret(Zeroizing::new(b"12345678901234567890".to_vec()))
    }

    /// RFC 6238, appendix B, the last six of its eight digits.
    #[test]
    fn codes_are_those_of_the_rfc() {
        for (unix, code) in [
            (59, b"287082"),
            (1_111_111_109, b"081804"),
            (1_111_111_111, b"050471"),
            (1_234_567_890, b"005924"),
            (2_000_000_000, b"279037"),
            (20_000_000_000, b"353130"),
        ] {
            assert_eq!(&secret().code(unix / STEP), code, "{unix}");
        }
    }

    #[test]
    fn a_code_is_good_once_and_for_a_short_time() {
        let (mut used, unix) = (UsedCodes::default(), 1_000_000_020);
        let code = |ahead: i64| secret().code((unix as i64 / STEP as i64 + ahead) as u64);
        for wrong in [&code(-2)[..], &code(2), b"", b"12345", b"1234567", b"abcdef"] {
            assert!(!used.accept("al", &secret(), wrong, unix), "{wrong:?}");
        }
        assert!(used.accept("al", &secret(), &code(0), unix));
        assert!(!used.accept("al", &secret(), &code(0), unix), "again");
        assert!(!used.accept("al", &secret(), &code(-1), unix), "an older one");
        assert!(used.accept("bo", &secret(), &code(-1), unix), "another user");
        assert!(used.accept("al", &secret(), &code(1), unix));
        assert_eq!(used.0.len(), 2);
        assert!(used.accept("cy", &secret(), &secret().code(unix / STEP + 100), unix + 100 * STEP));
        assert_eq!(used.0.len(), 1, "what is too old is forgotten");
    }

    #[test]
    fn secrets_are_base32() {
        assert_eq!(secret().to_base32().as_str(), "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ");
        for text in [
            "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ",
            "gezdgnbvgy3tqojqgezdgnbvgy3tqojq",
            "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ=",
        ] {
            assert_eq!(CodeSecret::parse(text), Ok(secret()));
        }
        for text in ["", "GEZDGNBV", "GEZDGNBVGY3TQOJ1", "GEZD GNBVGY3TQOJQ", &"A".repeat(120)] {
            assert!(CodeSecret::parse(text).is_err(), "{text}");
        }
        for length in MIN_SECRET..=MAX_SECRET {
            let secret = CodeSecret(Zeroizing::new((0..length as u8).map(|b| b.wrapping_mul(37)).collect()));
            assert_eq!(CodeSecret::parse(&secret.to_base32()), Ok(secret), "{length}");
        }
        let url = secret().to_url("vpn.example.com", "al b@c");
        assert_eq!(
            url.as_str(),
            "otpauth://totp/vpn.example.com:al%20b%40c?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&issuer=vpn.example.com"
        );
        assert!(!format!("{:?}", secret()).contains("123"));
    }

    #[test]
    fn what_clients_send_is_taken_apart() {
        let base64 = |text: &str| match text {
            "cA" => Some(b"p".to_vec()),
            "MQ" => Some(b"1".to_vec()),
            "/w" => Some(vec![0xff]),
            _ => None,
        };
        let of = |sent: &'static str, wants| {
            WithCode::of(sent, wants, base64).map(|w| (w.password.into_owned(), w.code.map(|c| c.to_vec())))
        };
        assert_eq!(of("SCRV1:cA:MQ", true), Some(("p".to_owned(), Some(b"1".to_vec()))));
        // A profile with a question serves users without codes, too.
        assert_eq!(of("SCRV1:cA:MQ", false), Some(("p".to_owned(), Some(b"1".to_vec()))));
        assert_eq!(of("p123456", true), Some(("p".to_owned(), Some(b"123456".to_vec()))));
        assert_eq!(of("p123456", false), Some(("p123456".to_owned(), None)));
        for broken in ["SCRV1:/w:MQ", "SCRV1:?:MQ", "SCRV1:cA:?", "12345", "", "é23456"] {
            assert_eq!(of(broken, true), None, "{broken}");
        }
    }
}
