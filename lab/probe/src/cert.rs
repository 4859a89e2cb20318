//! Describes the certificates that a server sent.

use std::net::IpAddr;

use serde::Serialize;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;

/// One certificate of the chain, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Certificate {
    /// The subject's distinguished name.
    pub subject: String,
    /// The issuer's distinguished name.
    pub issuer: String,
    /// The serial number in hexadecimal.
    pub serial: String,
    /// When it became valid (UTC).
    pub not_before: String,
    /// When it stops being valid (UTC).
    pub not_after: String,
    /// Whole days until then; negative once it has passed.
    pub days_left: i64,
    /// The key's kind, such as `ECDSA P-256` or `RSA`.
    pub key: String,
    /// The key's size in bits.
    pub key_bits: usize,
    /// How the issuer signed it.
    pub signature_algorithm: String,
    /// Names and addresses that it is valid for.
    pub subject_alternative_names: Vec<String>,
    /// Where its revocation can be asked, if anywhere.
    pub ocsp_url: Option<String>,
    /// Whether it says that a staple must come with it (RFC 7633).
    pub must_staple: bool,
    /// Whether subject and issuer are the same.
    pub self_issued: bool,
}

/// Names shown of one certificate: a hostile one may carry thousands.
const MAX_NAMES: usize = 100;

impl Certificate {
    /// Reads a certificate in DER; `now` is in seconds since 1970.
    pub fn read(der: &[u8], now: i64) -> Option<Self> {
        let (_, cert) = X509Certificate::from_der(der).ok()?;
        let (key, key_bits) = key(&cert);
        let mut read = Self {
            subject: printable(&cert.subject().to_string()),
            issuer: printable(&cert.issuer().to_string()),
            serial: cert.raw_serial().iter().take(20).map(|b| format!("{b:02x}")).collect(),
            not_before: utc(cert.validity().not_before.timestamp()),
            not_after: utc(cert.validity().not_after.timestamp()),
            days_left: cert.validity().not_after.timestamp().saturating_sub(now).div_euclid(86_400),
            key,
            key_bits,
            signature_algorithm: signature_algorithm(&cert),
            subject_alternative_names: Vec::new(),
            ocsp_url: None,
            must_staple: false,
            self_issued: cert.subject().as_raw() == cert.issuer().as_raw(),
        };
        for extension in cert.iter_extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectAlternativeName(names) => {
                    read.subject_alternative_names = names.general_names.iter().take(MAX_NAMES).map(name).collect();
                }
                ParsedExtension::AuthorityInfoAccess(access) => {
                    read.ocsp_url = access.accessdescs.iter().find_map(|a| match a.access_location {
                        GeneralName::URI(uri) if a.access_method.to_id_string() == "1.3.6.1.5.5.7.48.1" => {
                            Some(printable(uri))
                        }
                        _ => None,
                    });
                }
                // TLS Feature holding status_request (5): RFC 7633 §4.2.3.1.
                _ if extension.oid.to_id_string() == "1.3.6.1.5.5.7.1.24" => {
                    read.must_staple = extension.value.windows(3).any(|w| w == [0x02, 0x01, 0x05]);
                }
                _ => {}
            }
        }
        Some(read)
    }
}

fn key(cert: &X509Certificate<'_>) -> (String, usize) {
    let spki = cert.public_key();
    match spki.parsed() {
        Ok(PublicKey::RSA(rsa)) => ("RSA".into(), rsa.key_size()),
        Ok(PublicKey::EC(_)) => {
            let curve = spki.algorithm.parameters.as_ref().and_then(|p| p.as_oid().ok()).map(|o| o.to_id_string());
            match curve.as_deref() {
                Some("1.2.840.10045.3.1.7") => ("ECDSA P-256".into(), 256),
                Some("1.3.132.0.34") => ("ECDSA P-384".into(), 384),
                Some("1.3.132.0.35") => ("ECDSA P-521".into(), 521),
                other => (format!("ECDSA on curve {}", other.unwrap_or("unnamed")), 0),
            }
        }
        Ok(PublicKey::DSA(_)) => ("DSA".into(), 0),
        _ => match spki.algorithm.algorithm.to_id_string().as_str() {
            "1.3.101.112" => ("Ed25519".into(), 256),
            "1.3.101.113" => ("Ed448".into(), 456),
            "2.16.840.1.101.3.4.3.17" => ("ML-DSA-44".into(), 0),
            "2.16.840.1.101.3.4.3.18" => ("ML-DSA-65".into(), 0),
            "2.16.840.1.101.3.4.3.19" => ("ML-DSA-87".into(), 0),
            oid => (format!("unknown ({oid})"), 0),
        },
    }
}

fn signature_algorithm(cert: &X509Certificate<'_>) -> String {
    let oid = cert.signature_algorithm.algorithm.to_id_string();
    let name = match oid.as_str() {
        "1.2.840.113549.1.1.4" => "RSA with MD5",
        "1.2.840.113549.1.1.5" => "RSA with SHA-1",
        "1.2.840.113549.1.1.10" => "RSA-PSS",
        "1.2.840.113549.1.1.11" => "RSA with SHA-256",
        "1.2.840.113549.1.1.12" => "RSA with SHA-384",
        "1.2.840.113549.1.1.13" => "RSA with SHA-512",
        "1.2.840.10045.4.1" => "ECDSA with SHA-1",
        "1.2.840.10045.4.3.2" => "ECDSA with SHA-256",
        "1.2.840.10045.4.3.3" => "ECDSA with SHA-384",
        "1.2.840.10045.4.3.4" => "ECDSA with SHA-512",
        "1.3.101.112" => "Ed25519",
        "1.3.101.113" => "Ed448",
        _ => return format!("unknown ({oid})"),
    };
    name.into()
}

fn name(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(dns) => printable(dns),
        GeneralName::IPAddress(bytes) => match (<[u8; 4]>::try_from(*bytes), <[u8; 16]>::try_from(*bytes)) {
            (Ok(v4), _) => IpAddr::from(v4).to_string(),
            (_, Ok(v6)) => IpAddr::from(v6).to_string(),
            _ => "an address of an odd length".into(),
        },
        GeneralName::URI(uri) => printable(uri),
        GeneralName::RFC822Name(mail) => printable(mail),
        _ => "a name of another kind".into(),
    }
}

/// Text from the network made safe for a terminal: no control characters, no more than 300 characters.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(300).collect()
}

/// Seconds since 1970 as `2026-01-02T03:04:05Z`.
pub fn utc(seconds: i64) -> String {
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days to a civil date, with years that begin in March (Hinnant's algorithm).
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_the_calendar() {
        // `date -u -d @N +%FT%TZ`.
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_323_045, "2026-01-02T03:04:05Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(seconds), date);
        }
    }

    #[test]
    fn a_certificate_is_described() {
        let key = rcgen::KeyPair::generate().expect("key");
        let mut params = rcgen::CertificateParams::new(vec!["a.example".into(), "192.0.2.1".into()]).expect("params");
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 1, 31);
        let der = params.self_signed(&key).expect("certificate").der().to_vec();
        let now = 1_767_225_600 + 86_400 * 10; // ten days after 2026-01-01
        let cert = Certificate::read(&der, now).expect("readable");
        assert_eq!((cert.key.as_str(), cert.key_bits), ("ECDSA P-256", 256));
        assert_eq!(cert.signature_algorithm, "ECDSA with SHA-256");
        assert_eq!(cert.subject_alternative_names, ["a.example", "192.0.2.1"]);
        assert_eq!((cert.days_left, cert.not_after.as_str()), (20, "2026-01-31T00:00:00Z"));
        assert!(cert.self_issued && !cert.must_staple);
        assert_eq!(Certificate::read(&der, now + 86_400 * 21).expect("readable").days_left, -1);
    }

    #[test]
    fn junk_is_no_certificate() {
        assert_eq!(Certificate::read(&[], 0), None);
        assert_eq!(Certificate::read(&[0x30; 64], 0), None);
    }

    #[test]
    fn terminal_escapes_do_not_survive() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(printable(&"x".repeat(1000)).len(), 300);
    }
}
