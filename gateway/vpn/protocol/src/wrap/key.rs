//! The 2048-bit static key of tls-auth and tls-crypt, and its file.

use crate::data::cipher::wipe;

const BEGIN: &str = "-----BEGIN OpenVPN Static key V1-----";
const END: &str = "-----END OpenVPN Static key V1-----";

/// Two keys, each 64 bytes for a cipher and 64 for a MAC.
#[derive(Clone, PartialEq, Eq)]
pub struct StaticKey(Box<[u8; 256]>);

impl std::fmt::Debug for StaticKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StaticKey")
    }
}

impl Drop for StaticKey {
    fn drop(&mut self) {
        wipe(&mut *self.0);
    }
}

/// What is wrong with a key file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The line that begins or ends the key is missing.
    NoKey,
    /// Between them is something that is not the encoding.
    Encoding,
    /// The key has not the size that it must have.
    Size,
}

impl std::fmt::Display for KeyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NoKey => "no key of this kind in it (the lines -----BEGIN … and -----END … name the kind)",
            Self::Encoding => "the key between its BEGIN and END lines is damaged",
            Self::Size => "the key has the wrong length",
        })
    }
}

impl std::error::Error for KeyError {}

impl StaticKey {
    /// From its bytes, which should be random.
    pub fn new(bytes: [u8; 256]) -> Self {
        Self(Box::new(bytes))
    }

    /// Reads the file that `openvpn --genkey secret` writes.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        let body = between(text, BEGIN, END)?;
        let mut bytes = [0; 256];
        let mut digits = body.chars().filter(|c| !c.is_whitespace());
        for byte in &mut bytes {
            let (Some(high), Some(low)) = (digits.next(), digits.next()) else { return Err(KeyError::Size) };
            let (Some(high), Some(low)) = (high.to_digit(16), low.to_digit(16)) else {
                return Err(KeyError::Encoding);
            };
            *byte = (high << 4 | low) as u8;
        }
        match digits.next() {
            None => Ok(Self::new(bytes)),
            Some(_) => Err(KeyError::Size),
        }
    }

    /// The file's text.
    pub fn to_text(&self) -> String {
        let mut text = format!("#\n# 2048 bit OpenVPN static key\n#\n{BEGIN}\n");
        for line in self.0.chunks(16) {
            line.iter().for_each(|b| text.push_str(&format!("{b:02x}")));
            text.push('\n');
        }
        text + END + "\n"
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8; 256] {
        &self.0
    }

    pub(super) fn cipher(&self, at: usize) -> &[u8] {
        &self.0[at * 128..at * 128 + 64]
    }

    pub(super) fn mac(&self, at: usize) -> &[u8] {
        &self.0[at * 128 + 64..at * 128 + 128]
    }
}

/// What stands between two lines.
pub(super) fn between<'t>(text: &'t str, begin: &str, end: &str) -> Result<&'t str, KeyError> {
    let (_, rest) = text.split_once(begin).ok_or(KeyError::NoKey)?;
    rest.split_once(end).map(|(body, _)| body).ok_or(KeyError::NoKey)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_files_read_as_they_were_written() {
        let key = StaticKey::new(std::array::from_fn(|i| i as u8));
        let text = key.to_text();
        assert_eq!(StaticKey::from_text(&text), Ok(key));
        assert_eq!(StaticKey::from_text(&text.replace("0a0b", "0a")), Err(KeyError::Size));
        assert_eq!(StaticKey::from_text(&text.replace("0a0b", "0a0g")), Err(KeyError::Encoding));
        assert_eq!(StaticKey::from_text(&text.replace("0a0b", "0a0b0c")), Err(KeyError::Size));
        assert_eq!(StaticKey::from_text("nothing"), Err(KeyError::NoKey));
    }
}
