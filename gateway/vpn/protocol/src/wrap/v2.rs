//! tls-crypt-v2: each client has a key of its own, which the server reads from the client's first packet. The key is
//! wrapped with the server's key, so that the server need not store it.
//!
//! ```text
//! WKc = │ tag 32 │ AES-256-CTR( client key 256, metadata ) │ length 2, of all of it │
//! ```

use super::crypt::{decrypt, decrypting, encrypt, encrypting};
use super::key::{KeyError, StaticKey, between};
use crate::data::cipher::wipe;
use crate::packet::PacketError;
use aws_lc_rs::{constant_time, hmac};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const SERVER: [&str; 2] =
    ["-----BEGIN OpenVPN tls-crypt-v2 server key-----", "-----END OpenVPN tls-crypt-v2 server key-----"];
const CLIENT: [&str; 2] =
    ["-----BEGIN OpenVPN tls-crypt-v2 client key-----", "-----END OpenVPN tls-crypt-v2 client key-----"];

/// The largest wrapped key: OpenVPN's limit.
pub const MAX_WRAPPED: usize = 1024;
const TAG: usize = 32;
const SMALLEST: usize = TAG + 256 + 2;
/// Metadata of the user's own.
const METADATA_USER: u8 = 0;
/// Metadata that says when the key was made.
const METADATA_TIME: u8 = 1;

/// The server's key.
#[derive(Clone)]
pub struct ServerKey(Box<[u8; 128]>);

impl std::fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerKey")
    }
}

impl Drop for ServerKey {
    fn drop(&mut self) {
        wipe(&mut *self.0);
    }
}

/// What a client's key says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// When it was made, in seconds since 1970.
    Made(u64),
    /// What the administrator wrote into it.
    User(Vec<u8>),
    /// Nothing, or a kind that is not known.
    Other(Vec<u8>),
}

impl Metadata {
    fn parse(bytes: &[u8]) -> Self {
        match bytes.split_first() {
            Some((&METADATA_USER, rest)) => Self::User(rest.to_vec()),
            Some((&METADATA_TIME, rest)) if rest.len() == 8 => {
                Self::Made(rest.iter().fold(0, |n, b| n << 8 | u64::from(*b)))
            }
            _ => Self::Other(bytes.to_vec()),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Made(at) => [&[METADATA_TIME][..], &at.to_be_bytes()].concat(),
            Self::User(text) => [&[METADATA_USER][..], text].concat(),
            Self::Other(bytes) => bytes.clone(),
        }
    }
}

impl ServerKey {
    /// From its bytes, which should be random.
    pub fn new(bytes: [u8; 128]) -> Self {
        Self(Box::new(bytes))
    }

    /// Reads the file that `openvpn --genkey tls-crypt-v2-server` writes.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        let bytes = pem(text, SERVER)?;
        Ok(Self::new(bytes.try_into().map_err(|_| KeyError::Size)?))
    }

    /// The file's text.
    pub fn to_text(&self) -> String {
        to_pem(&*self.0, SERVER)
    }

    fn mac(&self, length: u16, text: &[u8]) -> hmac::Tag {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0[64..96]);
        let mut mac = hmac::Context::with_key(&key);
        mac.update(&length.to_be_bytes());
        mac.update(text);
        mac.sign()
    }

    /// Wraps a client's key. `None` when the metadata is too long.
    pub fn wrap(&self, client: &StaticKey, metadata: &Metadata) -> Option<ClientKey> {
        let mut text = client.bytes().to_vec();
        text.extend_from_slice(&metadata.bytes());
        let total = TAG + text.len() + 2;
        if total > MAX_WRAPPED {
            return None;
        }
        let length = total as u16;
        let tag = self.mac(length, &text);
        encrypt(&encrypting(&self.0[..32]), tag.as_ref(), &mut text);
        let wrapped = [tag.as_ref(), &text, &length.to_be_bytes()].concat();
        Some(ClientKey { key: client.clone(), wrapped })
    }

    /// Takes the wrapped key off the end of a packet: the packet without it, the key, and what it says.
    pub fn unwrap<'p>(&self, packet: &'p [u8]) -> Result<(&'p [u8], StaticKey, Metadata), PacketError> {
        let length = *packet.last_chunk::<2>().ok_or(PacketError::Length)?;
        let length = u16::from_be_bytes(length);
        let size = usize::from(length);
        if !(SMALLEST..=MAX_WRAPPED).contains(&size) || size >= packet.len() {
            return Err(PacketError::ClientKey);
        }
        let (rest, wrapped) = packet.split_at(packet.len() - size);
        let (tag, sealed) = wrapped[..size - 2].split_at(TAG);
        let mut text = sealed.to_vec();
        decrypt(&decrypting(&self.0[..32]), tag, &mut text);
        let expected = self.mac(length, &text);
        let authentic = constant_time::verify_slices_are_equal(expected.as_ref(), tag);
        let parts = text.split_first_chunk::<256>().filter(|_| authentic.is_ok());
        let result = parts.map(|(key, metadata)| (rest, StaticKey::new(*key), Metadata::parse(metadata)));
        wipe(&mut text);
        result.ok_or(PacketError::ClientKey)
    }
}

/// A client's key with its wrapped form, which it shows to the server.
#[derive(Clone, Debug)]
pub struct ClientKey {
    /// What control packets are wrapped with.
    pub key: StaticKey,
    /// What goes to the end of the first packets.
    pub wrapped: Vec<u8>,
}

impl ClientKey {
    /// Reads the file that `openvpn --genkey tls-crypt-v2-client` writes.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        let bytes = pem(text, CLIENT)?;
        let (key, wrapped) = bytes.split_first_chunk::<256>().ok_or(KeyError::Size)?;
        if !(SMALLEST..=MAX_WRAPPED).contains(&wrapped.len()) {
            return Err(KeyError::Size);
        }
        Ok(Self { key: StaticKey::new(*key), wrapped: wrapped.to_vec() })
    }

    /// The file's text.
    pub fn to_text(&self) -> String {
        to_pem(&[self.key.bytes(), &self.wrapped[..]].concat(), CLIENT)
    }
}

fn pem(text: &str, [begin, end]: [&str; 2]) -> Result<Vec<u8>, KeyError> {
    let body: String = between(text, begin, end)?.chars().filter(|c| !c.is_whitespace()).collect();
    STANDARD.decode(body).map_err(|_| KeyError::Encoding)
}

fn to_pem(bytes: &[u8], [begin, end]: [&str; 2]) -> String {
    let encoded = STANDARD.encode(bytes);
    let mut text = format!("{begin}\n");
    for line in encoded.as_bytes().chunks(64) {
        text.extend(line.iter().map(|b| char::from(*b)));
        text.push('\n');
    }
    text + end + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> ServerKey {
        ServerKey::new(std::array::from_fn(|i| (i * 3) as u8))
    }

    #[test]
    fn a_wrapped_key_comes_back_with_its_metadata() {
        let key = StaticKey::new(std::array::from_fn(|i| i as u8));
        for metadata in [Metadata::Made(1_700_000_000), Metadata::User(b"alice".to_vec()), Metadata::Other(vec![])] {
            let client = server().wrap(&key, &metadata).expect("short enough");
            let packet = [b"reset", &client.wrapped[..]].concat();
            let (rest, got, said) = server().unwrap(&packet).expect("ours");
            assert_eq!((rest, &got, &said), (&b"reset"[..], &key, &metadata));
            for byte in 5..packet.len() {
                let mut broken = packet.clone();
                broken[byte] ^= 1;
                assert!(server().unwrap(&broken).is_err(), "byte {byte}");
            }
        }
        assert!(server().wrap(&key, &Metadata::User(vec![0; 1000])).is_none());
        assert!(
            ServerKey::new([1; 128]).unwrap(&server().wrap(&key, &Metadata::Made(1)).expect("short").wrapped).is_err()
        );
    }

    #[test]
    fn files_read_as_they_were_written() {
        let again = ServerKey::from_text(&server().to_text()).expect("we wrote it");
        assert_eq!(again.0, server().0);
        let client = server().wrap(&StaticKey::new([5; 256]), &Metadata::Made(3)).expect("short enough");
        let again = ClientKey::from_text(&client.to_text()).expect("we wrote it");
        assert_eq!((again.key, again.wrapped), (client.key, client.wrapped));
        assert!(ClientKey::from_text(&server().to_text()).is_err());
    }
}
