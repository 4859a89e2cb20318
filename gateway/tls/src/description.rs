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

/// A distinguished name, the last part first. `None`: an attribute is not known, or is no text.
fn name(name: &X509Name) -> Option<String> {
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
    fn what_is_in_doubt_is_not_written() {
        let custom = DnType::CustomDnType(vec![1, 2, 3, 4]);
        assert_eq!(described(&[(DnType::CommonName, "a"), (custom, "b")], 1).subject, None);
        assert_eq!(CertificateDescription::of(b"x"), CertificateDescription::default());
        assert_eq!((serial(&[0x80]), serial(&[]), serial(&[0, 0]).as_deref()), (None, None, Some("00")));
    }
}
