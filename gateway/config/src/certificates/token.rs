//! URIs of private keys in tokens (RFC 7512): `pkcs11:token=web;object=example?module-path=/usr/lib/softhsm/libsofthsm2.so`.

use crate::decode;
use crate::diagnostics::Sink;
use crate::settings::Shape;
use std::fmt;
use std::path::PathBuf;

/// What such a URI begins with.
const SCHEME: &str = "pkcs11:";

/// Where the private key of a certificate is.
#[derive(Clone, Debug)]
pub(crate) enum KeyPlace {
    /// In this file.
    File(PathBuf),
    /// In a token.
    Token(TokenUri),
}

/// Which private key of which token, and the module that leads to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenUri {
    /// The shared library that implements PKCS#11.
    pub module: PathBuf,
    /// The token's label.
    pub token: Option<String>,
    /// The token's manufacturer.
    pub manufacturer: Option<String>,
    /// The token's model.
    pub model: Option<String>,
    /// The token's serial number.
    pub serial: Option<String>,
    /// The number of the token's slot.
    pub slot: Option<u64>,
    /// The key's label.
    pub object: Option<String>,
    /// The key's `CKA_ID`.
    pub id: Option<Vec<u8>>,
    /// As it is written.
    text: String,
}

impl fmt::Display for TokenUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A private key in a token, with what opening it takes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenKey {
    /// The key.
    pub uri: TokenUri,
    /// The file whose first line is the token's PIN.
    pub pin: Option<PathBuf>,
    /// The file of the certificate that the key belongs to.
    pub certificate: PathBuf,
}

impl TokenUri {
    /// Reads a URI. The error says what is wrong, and what to write instead.
    pub(crate) fn parse(text: &str) -> Result<Self, (String, String)> {
        let (path, query) = text.strip_prefix(SCHEME).unwrap_or(text).split_once('?').unwrap_or_else(|| {
            let path = text.strip_prefix(SCHEME).unwrap_or(text);
            (path, "")
        });
        let mut uri = Self {
            module: PathBuf::new(),
            token: None,
            manufacturer: None,
            model: None,
            serial: None,
            slot: None,
            object: None,
            id: None,
            text: text.to_owned(),
        };
        let attributes = path.split(';').map(|part| (part, false)).chain(query.split('&').map(|part| (part, true)));
        for (part, in_query) in attributes.filter(|(part, _)| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let bytes = decoded(value)
                .ok_or_else(|| (format!("\"{part}\" is not percent-encoded correctly"), "write % as %25".to_owned()))?;
            let words = || {
                String::from_utf8(bytes.clone())
                    .map_err(|_| (format!("\"{name}\" is not UTF-8"), "use \"id\" to name the key by bytes".to_owned()))
            };
            match (name, in_query) {
                ("token", false) => uri.token = Some(words()?),
                ("manufacturer", false) => uri.manufacturer = Some(words()?),
                ("model", false) => uri.model = Some(words()?),
                ("serial", false) => uri.serial = Some(words()?),
                ("object", false) => uri.object = Some(words()?),
                ("id", false) => uri.id = Some(bytes),
                ("type", false) if bytes == b"private" => {}
                ("slot-id", false) => {
                    let slot = words()?.parse().map_err(|_| {
                        (
                            format!("\"{part}\" is not a number"),
                            "write the number of a slot, as in slot-id=0".to_owned(),
                        )
                    });
                    uri.slot = Some(slot?);
                }
                ("module-path", true) => uri.module = words()?.into(),
                ("pin-value" | "pin-source", true) => {
                    let help = "write the PIN to a file that only the gateway can read, and set \"passphrase_file\" to its path";
                    return Err((format!("the gateway does not read \"{name}\" in a URI"), help.to_owned()));
                }
                _ => {
                    let help = "before \"?\": token, object, id, serial, manufacturer, model, slot-id and type=private; after \
                                \"?\": module-path";
                    return Err((format!("the gateway does not support \"{name}\" here"), help.to_owned()));
                }
            }
        }
        if !uri.module.is_absolute() {
            let help = "add the path of the token's shared library, as in ?module-path=/usr/lib/softhsm/libsofthsm2.so";
            return Err(("the URI has no absolute \"module-path\"".to_owned(), help.to_owned()));
        }
        Ok(uri)
    }
}

/// Decodes `%41`.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        if *first == b'%' {
            let digits = std::str::from_utf8(behind.get(..2)?).ok()?;
            out.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &behind[2..];
        } else {
            out.push(*first);
            rest = behind;
        }
    }
    Some(out)
}

/// `key` of a certificate: a path, or a URI.
pub(crate) fn key_place(sink: &Sink, key: &str, node: &decode::Node) -> Option<KeyPlace> {
    match node.get_ref() {
        toml::de::DeValue::String(text) if text.starts_with(SCHEME) => match TokenUri::parse(text) {
            Ok(uri) => Some(KeyPlace::Token(uri)),
            Err((message, help)) => {
                sink.error(&node.span(), format!("\"{key}\": {message}"), Some(help));
                None
            }
        },
        _ => decode::path(sink, key, node).map(KeyPlace::File),
    }
}

/// What [`key_place`] reads.
pub(crate) fn key_shape() -> Shape {
    Shape::Path
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "pkcs11:token=web;object=example?module-path=/usr/lib/softhsm/libsofthsm2.so";

    #[test]
    fn a_uri_names_a_token_and_a_key() {
        let uri = TokenUri::parse(EXAMPLE).unwrap();
        assert_eq!((uri.token.as_deref(), uri.object.as_deref()), (Some("web"), Some("example")));
        assert_eq!(uri.module, PathBuf::from("/usr/lib/softhsm/libsofthsm2.so"));
        assert_eq!(uri.to_string(), EXAMPLE);
        let uri = TokenUri::parse("pkcs11:id=%01%fF;slot-id=7;type=private;serial=a%20b?module-path=/m.so").unwrap();
        assert_eq!((uri.id.as_deref(), uri.slot, uri.serial.as_deref()), (Some(&[1, 255][..]), Some(7), Some("a b")));
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_what_to_write() {
        for (wrong, message) in [
            ("pkcs11:token=web", "module-path"),
            ("pkcs11:token=web?module-path=m.so", "module-path"),
            ("pkcs11:token=%zz?module-path=/m.so", "percent"),
            ("pkcs11:token=%ff?module-path=/m.so", "UTF-8"),
            ("pkcs11:slot-id=x?module-path=/m.so", "number"),
            ("pkcs11:type=public?module-path=/m.so", "\"type\""),
            ("pkcs11:module-path=/m.so", "\"module-path\""),
            ("pkcs11:token=a?module-path=/m.so&pin-value=1234", "\"pin-value\""),
            ("pkcs11:token=a?module-path=/m.so&pin-source=/pin", "\"pin-source\""),
            ("pkcs11:library-version=3?module-path=/m.so", "\"library-version\""),
        ] {
            let (found, help) = TokenUri::parse(wrong).unwrap_err();
            assert!(found.contains(message) && !help.is_empty(), "{wrong}: {found}");
            assert!(!found.contains("1234") && !help.contains("1234"), "a PIN is never shown");
        }
    }
}
