//! Key method 2: what both sides say first inside TLS, and the data keys that come of it.
//!
//! ```text
//! │ 0 × 4 │ 2 │ pre-master 48, clients only │ random 32 │ random 32 │ options │ username │ password │ peer info │
//! ```
//! Strings have a 16-bit length, which counts the NUL at their end. Peer info is missing in old peers.

use crate::data::KeyPair;
use crate::data::cipher::wipe;
use crate::packet::SessionId;
use crate::prf;

/// The longest message that is read.
pub const MAX_MESSAGE: usize = 16 * 1024;
/// The longest user name or password: a token may be long, a password is not.
const MAX_CREDENTIAL: usize = 1024;

/// The label of data keys from TLS' exporter (RFC 5705).
pub const EXPORT_DATA_KEYS: &[u8] = b"EXPORTER-OpenVPN-datakeys";
/// The label of dynamic tls-crypt's key.
pub const EXPORT_DYNAMIC_WRAP: &[u8] = b"EXPORTER-OpenVPN-dynamic-tls-crypt";

/// One side's random bytes.
#[derive(Clone)]
pub struct KeySource {
    /// The client's alone.
    pub pre_master: [u8; 48],
    /// Goes into the master secret.
    pub random1: [u8; 32],
    /// Goes into the keys.
    pub random2: [u8; 32],
}

impl KeySource {
    /// From random bytes.
    pub fn new(random: &[u8; 112]) -> Self {
        let mut source = Self { pre_master: [0; 48], random1: [0; 32], random2: [0; 32] };
        source.pre_master.copy_from_slice(&random[..48]);
        source.random1.copy_from_slice(&random[48..80]);
        source.random2.copy_from_slice(&random[80..]);
        source
    }
}

impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeySource")
    }
}

impl Drop for KeySource {
    fn drop(&mut self) {
        wipe(&mut self.pre_master);
        wipe(&mut self.random1);
        wipe(&mut self.random2);
    }
}

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageError {
    /// It ends too early.
    Short,
    /// It is no message of key method 2.
    Method,
    /// A string is not terminated, too long, or not text.
    Text,
}

impl std::fmt::Display for MessageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Short => "the key exchange message ends too early",
            Self::Method => "not a key exchange message of method 2",
            Self::Text => "a string in the key exchange message is malformed",
        })
    }
}

impl std::error::Error for MessageError {}

/// A message of either side.
#[derive(Clone, Debug)]
pub struct Message {
    /// Random bytes.
    pub source: KeySource,
    /// The options string, which is only compared.
    pub options: String,
    /// Empty in a server's.
    pub username: String,
    /// Empty in a server's.
    pub password: String,
    /// `IV_…` lines.
    pub peer_info: String,
}

impl Drop for Message {
    fn drop(&mut self) {
        let mut password = std::mem::take(&mut self.password).into_bytes();
        wipe(&mut password);
    }
}

impl Message {
    /// Reads a message; `from_client` ones have the pre-master secret.
    pub fn parse(bytes: &[u8], from_client: bool) -> Result<Self, MessageError> {
        let mut rest = bytes;
        let [_, _, _, _, method] = array(&mut rest)?;
        // The low four bits; the high ones were flags once.
        if method & 0x0f != 2 {
            return Err(MessageError::Method);
        }
        let pre_master = if from_client { array(&mut rest)? } else { [0; 48] };
        let source = KeySource { pre_master, random1: array(&mut rest)?, random2: array(&mut rest)? };
        let options = string(&mut rest, 2048)?;
        // Before 2.1 the message ended here.
        let mut more = |limit| if rest.is_empty() { Ok(String::new()) } else { string(&mut rest, limit) };
        let (username, password) = (more(MAX_CREDENTIAL)?, more(MAX_CREDENTIAL)?);
        let peer_info = more(MAX_MESSAGE)?;
        Ok(Self { source, options, username, password, peer_info })
    }

    /// The wire form.
    pub fn to_bytes(&self, from_client: bool) -> Vec<u8> {
        let mut out = vec![0, 0, 0, 0, 2];
        if from_client {
            out.extend_from_slice(&self.source.pre_master);
        }
        out.extend_from_slice(&self.source.random1);
        out.extend_from_slice(&self.source.random2);
        for text in [&self.options, &self.username, &self.password, &self.peer_info] {
            let text = text.as_bytes();
            // An empty string has not even its NUL, as OpenVPN writes it.
            let length = if text.is_empty() { 0 } else { text.len() + 1 };
            out.extend_from_slice(&u16::try_from(length).unwrap_or(0).to_be_bytes());
            if length != 0 {
                out.extend_from_slice(text);
                out.push(0);
            }
        }
        out
    }
}

fn array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], MessageError> {
    let (taken, left) = rest.split_first_chunk::<N>().ok_or(MessageError::Short)?;
    *rest = left;
    Ok(*taken)
}

fn string(rest: &mut &[u8], limit: usize) -> Result<String, MessageError> {
    let length = usize::from(u16::from_be_bytes(array(rest)?));
    let (text, left) = rest.split_at_checked(length).ok_or(MessageError::Short)?;
    *rest = left;
    match text {
        [] => Ok(String::new()),
        [text @ .., 0] if text.len() <= limit && !text.contains(&0) => {
            std::str::from_utf8(text).map(str::to_owned).map_err(|_| MessageError::Text)
        }
        _ => Err(MessageError::Text),
    }
}

/// Data keys as clients before 2.6 derive them.
pub fn prf_keys(
    client: &KeySource,
    server: &KeySource,
    client_session: SessionId,
    server_session: SessionId,
    is_server: bool,
) -> KeyPair {
    let mut master = [0; 48];
    let seed = [&b"OpenVPN master secret"[..], &client.random1, &server.random1].concat();
    prf::tls10(&client.pre_master, &seed, &mut master);
    let sessions = [&client_session.bytes()[..], server_session.bytes()].concat();
    let seed = [&b"OpenVPN key expansion"[..], &client.random2, &server.random2, &sessions].concat();
    let mut expansion = [0; 256];
    prf::tls10(&master, &seed, &mut expansion);
    let keys = KeyPair::from_expansion(&expansion, is_server);
    wipe(&mut master);
    wipe(&mut expansion);
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message {
            source: KeySource::new(&std::array::from_fn(|i| i as u8)),
            options: "V4,dev-type tun".to_owned(),
            username: String::new(),
            password: String::new(),
            peer_info: "IV_VER=2.6\n".to_owned(),
        }
    }

    #[test]
    fn messages_read_as_they_were_written() {
        for client in [true, false] {
            let mut message = message();
            if client {
                message.username = "alice".to_owned();
                message.password = "secret".to_owned();
            }
            let bytes = message.to_bytes(client);
            let again = Message::parse(&bytes, client).expect("we wrote it");
            assert_eq!(again.to_bytes(client), bytes);
            assert_eq!((&again.username, &again.peer_info), (&message.username, &message.peer_info));
            // Cut anywhere within its fixed part or a string it is an error; between strings it is an old peer's.
            let cut = (0..bytes.len()).filter(|n| Message::parse(&bytes[..*n], client).is_ok()).count();
            assert_eq!(cut, 3);
        }
        let mut bytes = message().to_bytes(true);
        bytes[4] = 1;
        assert_eq!(Message::parse(&bytes, true).err(), Some(MessageError::Method));
    }

    #[test]
    fn both_sides_derive_the_same_keys() {
        let (c, s) = (KeySource::new(&[1; 112]), KeySource::new(&[2; 112]));
        let id = |n| SessionId::new([n; 8]).expect("not zero");
        let (server, client) = (prf_keys(&c, &s, id(1), id(2), true), prf_keys(&c, &s, id(1), id(2), false));
        assert_eq!(server.encrypt, client.decrypt);
        assert_eq!(server.decrypt, client.encrypt);
        assert_ne!(server.encrypt, server.decrypt);
        assert_ne!(prf_keys(&c, &s, id(1), id(3), true).encrypt, server.encrypt);
    }
}
