//! What a client certificate says of itself, as text for headers: its subject and issuer (RFC 2253, as OpenSSL and NGINX write them), and
//! its serial number.

use std::fmt::Write as _;
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

/// A certificate's own words, as far as they can be written without doubt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateDescription {
    /// As in `CN=alice,O=Example,C=DE`.
    pub subject: Option<String>,
    /// The same of the authority.
    pub issuer: Option<String>,
    /// In hexadecimal, in capitals.
    pub serial: Option<String>,
}

/// Short names of attributes, as OpenSSL has them, by object identifier.
const ATTRIBUTES: &[(&str, &str)] = &[
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.13", "description"),
    ("2.5.4.15", "businessCategory"),
    ("2.5.4.17", "postalCode"),
    ("2.5.4.41", "name"),
    ("2.5.4.42", "GN"),
    ("2.5.4.43", "initials"),
    ("2.5.4.44", "generationQualifier"),
    ("2.5.4.45", "x500UniqueIdentifier"),
    ("2.5.4.46", "dnQualifier"),
    ("2.5.4.65", "pseudonym"),
    ("2.5.4.97", "organizationIdentifier"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
    ("1.2.840.113549.1.9.2", "unstructuredName"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
];

/// OpenSSL's short name for an attribute of a certificate's subject, by the attribute's object identifier (`2.5.4.3`: `CN`).
pub fn attribute_name(oid: &str) -> Option<&'static str> {
    ATTRIBUTES.iter().find(|(known, _)| *known == oid).map(|(_, short)| *short)
}

impl CertificateDescription {
    /// Describes a certificate in DER. One that does not parse has no description.
    pub fn of(certificate: &[u8]) -> Self {
        let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Self::default() };
        Self { subject: name(parsed.subject()), issuer: name(parsed.issuer()), serial: serial(parsed.raw_serial()) }
    }
}

/// A distinguished name as certificates are described with it, from text (RFC 4514). Equal names lead to equal texts. On failure: what is
/// wrong.
pub fn distinguished_name(text: &str) -> Result<String, String> {
    let mut parts = Vec::new();
    for part in separated(text, b',') {
        let mut together = Vec::new();
        for attribute in separated(part, b'+') {
            let unlike = || format!("\"{attribute}\" is not an attribute, as in CN=alice");
            let (kind, value) = attribute.split_once('=').ok_or_else(unlike)?;
            let mut known = ATTRIBUTES.iter().map(|(_, short)| *short);
            let short = known
                .find(|short| short.eq_ignore_ascii_case(kind))
                .ok_or_else(|| format!("\"{kind}\" is not the short name of an attribute, such as CN or O"))?;
            together.push(format!("{short}={}", escaped(&unescaped(value)?)));
        }
        parts.push(together.join("+"));
    }
    Ok(parts.join(","))
}

/// What stands between separators without a backslash before them.
fn separated(text: &str, separator: u8) -> Vec<&str> {
    let (mut out, mut start, mut is_escaped) = (Vec::new(), 0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            _ if byte == separator => {
                out.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    out.push(&text[start..]);
    out
}

/// The value of an attribute without escapes.
fn unescaped(value: &str) -> Result<String, String> {
    if value.is_empty() {
        return Err("the value of an attribute is empty".to_owned());
    }
    if value.starts_with([' ', '#']) || (value.ends_with(' ') && !value.ends_with("\\ ")) {
        return Err(format!("\"{value}\" has a space or # at its beginning or end without a backslash before it"));
    }
    let mut out = Vec::with_capacity(value.len());
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => match bytes.next() {
                Some(b @ (b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' | b'#' | b' ' | b'=')) => out.push(b),
                high => match (high.and_then(hex_digit), bytes.next().and_then(hex_digit)) {
                    (Some(high), Some(low)) => out.push((high << 4) | low),
                    _ => return Err(format!("\"{value}\" has a backslash before what needs none")),
                },
            },
            b'"' | b'<' | b'>' | b';' | b'+' | b',' => {
                return Err(format!("\"{value}\" has a {} without a backslash before it", char::from(byte)));
            }
            byte => out.push(byte),
        }
    }
    String::from_utf8(out).map_err(|_| format!("\"{value}\" is not text"))
}

fn hex_digit(byte: u8) -> Option<u8> {
    // At most 15.
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// A distinguished name, the last part first. `None`: an attribute is not known, or is no text.
pub(crate) fn name(name: &X509Name) -> Option<String> {
    let mut parts = Vec::new();
    for part in name.iter_rdn() {
        let mut together = Vec::new();
        for attribute in part.iter() {
            let short = attribute_name(&attribute.attr_type().to_id_string())?;
            together.push(format!("{short}={}", escaped(attribute.as_str().ok()?)));
        }
        together.reverse();
        parts.push(together.join("+"));
    }
    parts.reverse();
    (!parts.is_empty()).then(|| parts.join(","))
}

/// A value in ASCII (RFC 2253 §2.4; bytes that are not ASCII as OpenSSL writes them).
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let last = text.len().saturating_sub(1);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => out.extend(['\\', char::from(byte)]),
            b'#' if at == 0 => out.push_str("\\#"),
            b' ' if at == 0 || at == last => out.push_str("\\ "),
            b' '..=b'~' => out.push(char::from(byte)),
            // Writing to a string cannot fail.
            byte => drop(write!(out, "\\{byte:02X}")),
        }
    }
    out
}

fn serial(bytes: &[u8]) -> Option<String> {
    let padding = bytes.iter().take(bytes.len().saturating_sub(1)).take_while(|byte| **byte == 0).count();
    // A serial number is positive (RFC 5280 §4.1.2.2).
    let positive = bytes.first().is_some_and(|first| *first < 0x80);
    positive.then(|| bytes[padding..].iter().map(|byte| format!("{byte:02X}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SerialNumber};

    fn described(names: &[(DnType, &str)], number: u64) -> CertificateDescription {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in names {
            params.distinguished_name.push(kind.clone(), DnValue::Utf8String((*value).to_owned()));
        }
        params.serial_number = Some(SerialNumber::from(number));
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        CertificateDescription::of(certificate.der())
    }

    #[test]
    fn names_are_as_openssl_writes_them() {
        let found = described(
            &[(DnType::CountryName, "DE"), (DnType::OrganizationName, "Example, Inc."), (DnType::CommonName, "alice")],
            0x0a1b,
        );
        assert_eq!(found.subject.as_deref(), Some("CN=alice,O=Example\\, Inc.,C=DE"));
        assert_eq!(found.issuer, found.subject);
        assert_eq!(found.serial.as_deref(), Some("0A1B"));
        let of = |text| described(&[(DnType::CommonName, text)], 200).subject.unwrap();
        assert_eq!(of("#1 ä\r\n"), "CN=\\#1 \\C3\\A4\\0D\\0A");
        assert_eq!(of(" a\"b<c>;\\+ "), "CN=\\ a\\\"b\\<c\\>\\;\\\\\\+\\ ");
        assert_eq!((attribute_name("2.5.4.97"), attribute_name("1.2.3")), (Some("organizationIdentifier"), None));
        assert_eq!(described(&[], 200), CertificateDescription { serial: Some("C8".into()), ..Default::default() });
    }

    #[test]
    fn written_names_are_compared_in_one_form() {
        for (written, wanted) in [
            ("CN=alice,O=Example\\, Inc.,C=DE", "CN=alice,O=Example\\, Inc.,C=DE"),
            ("cn=alice,Serialnumber=1", "CN=alice,serialNumber=1"),
            ("CN=\\#1 ä\\0d\\0A", "CN=\\#1 \\C3\\A4\\0D\\0A"),
            ("CN=\\ a\\\"b\\<c\\>\\;\\\\\\+\\ ", "CN=\\ a\\\"b\\<c\\>\\;\\\\\\+\\ "),
            ("CN=a+UID=b,O=c\\=d=e", "CN=a+UID=b,O=c=d=e"),
        ] {
            assert_eq!(distinguished_name(written).as_deref(), Ok(wanted));
            assert_eq!(distinguished_name(wanted).as_deref(), Ok(wanted), "{wanted}");
        }
        for wrong in [
            "",
            "alice",
            "CN=",
            "CN=a,",
            "CN=a, O=b",
            "CN=a ,O=b",
            "CN= a",
            "X=a",
            "/C=DE/CN=a",
            "CN=#04",
            "CN=a\"b",
            "CN=a;b",
            "CN=a\\",
            "CN=a\\4",
            "CN=a\\zz",
            "CN=\\FF",
        ] {
            assert!(distinguished_name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_in_doubt_is_not_written() {
        let custom = DnType::CustomDnType(vec![1, 2, 3, 4]);
        assert_eq!(described(&[(DnType::CommonName, "a"), (custom, "b")], 1).subject, None);
        assert_eq!(CertificateDescription::of(b"x"), CertificateDescription::default());
        assert_eq!((serial(&[0x80]), serial(&[]), serial(&[0, 0]).as_deref()), (None, None, Some("00")));
    }
}
