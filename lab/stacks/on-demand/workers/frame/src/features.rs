//! What the library can do, tried rather than recited: each feature becomes a line.

use crate::drive::{self, Connection, Context, Stack};
use crate::json::Line;
use crate::peer::Peer;
use crate::pipe::Pipe;
use crate::settings::{Cipher, Group, Key, Settings};

/// What came of trying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It works; how it was seen.
    Yes(String),
    /// It does not; why.
    No(String),
    /// This worker cannot try it.
    Unknown,
}

impl Outcome {
    /// From a trial that works or says why not.
    pub fn of(tried: Result<impl Into<String>, String>) -> Self {
        match tried {
            Ok(how) => Outcome::Yes(how.into()),
            Err(why) => Outcome::No(why),
        }
    }
}

/// A suite of TLS 1.2 that libraries drop one after the other: without authentication of what is encrypted, without
/// forward secrecy, or with a cipher that is too old.
#[derive(Clone, Copy, Debug)]
pub struct OldSuite {
    /// As its feature is called.
    pub name: &'static str,
    /// Its number.
    pub id: u16,
    /// Its name for OpenSSL and its kin, and for wolfSSL.
    pub openssl: &'static str,
    /// Its parts in GnuTLS' words: what of priorities allows it and no other.
    pub gnutls: &'static str,
}

/// All with RSA certificates, from the one that most have kept to the one that most have dropped.
const OLD_SUITES: &[OldSuite] = &[
    OldSuite {
        name: "ecdhe-aes128-cbc",
        id: 0xc013,
        openssl: "ECDHE-RSA-AES128-SHA",
        gnutls: "+ECDHE-RSA:-CIPHER-ALL:+AES-128-CBC:-MAC-ALL:+SHA1",
    },
    OldSuite {
        name: "dhe-aes128-gcm",
        id: 0x009e,
        openssl: "DHE-RSA-AES128-GCM-SHA256",
        gnutls: "+DHE-RSA:-CIPHER-ALL:+AES-128-GCM:+GROUP-FFDHE2048",
    },
    OldSuite {
        name: "rsa-aes128-gcm",
        id: 0x009c,
        openssl: "AES128-GCM-SHA256",
        gnutls: "+RSA:-CIPHER-ALL:+AES-128-GCM",
    },
    OldSuite {
        name: "rsa-aes128-cbc",
        id: 0x002f,
        openssl: "AES128-SHA",
        gnutls: "+RSA:-CIPHER-ALL:+AES-128-CBC:-MAC-ALL:+SHA1",
    },
    OldSuite {
        name: "rsa-3des-cbc",
        id: 0x000a,
        openssl: "DES-CBC3-SHA",
        gnutls: "+RSA:-CIPHER-ALL:+3DES-CBC:-MAC-ALL:+SHA1",
    },
];

/// Features that each stack tries in its own way, through [`Stack::feature`].
const OWN: &[&str] = &["early-data", "quic", "sni", "alpn", "ocsp", "crl", "ct", "fips"];

/// Tries everything.
pub fn report<S: Stack>(stack: &S, settings: &Settings) {
    let peer = settings.peer.as_deref().and_then(|path| Peer::load(path).ok());
    let mut newest = settings.tls;
    for (name, tls) in [("tls1.0", 0x301), ("tls1.1", 0x302), ("tls1.2", 0x303), ("tls1.3", 0x304)] {
        let tried = version(stack, &Settings { tls, ..settings.clone() });
        if tried.is_ok() {
            newest = tls;
        }
        line(stack, name, &Outcome::of(tried));
    }
    // What does not need a version of its own is tried with the newest that there is.
    let settings = &Settings { tls: newest, ..settings.clone() };
    for (name, group) in [("x25519", Group::X25519), ("p256", Group::P256), ("x25519mlkem768", Group::X25519MlKem768)] {
        let settings = Settings { group, ..settings.clone() };
        line(stack, &format!("group:{name}"), &with_peer(stack, peer.as_ref(), &settings));
    }
    for tls in [0x303, 0x304] {
        let ciphers = [("aes128", Cipher::Aes128), ("aes256", Cipher::Aes256), ("chacha20", Cipher::ChaCha20)];
        for (name, cipher) in ciphers {
            let settings = Settings { tls, cipher, ..settings.clone() };
            let name = format!("cipher:{}:{name}", settings.tls_name());
            line(stack, &name, &with_peer(stack, peer.as_ref(), &settings));
        }
    }
    for suite in OLD_SUITES {
        let settings = Settings { tls: 0x303, key: Key::Rsa2048, ..settings.clone() };
        let outcome = match stack.with_suite(suite, &settings) {
            None => Outcome::Unknown,
            Some(made) => Outcome::of(made.and_then(|(server, client)| agreed(&server, &client, suite))),
        };
        line(stack, &format!("cipher:1.2:{}", suite.name), &outcome);
    }
    for tls in [0x303, 0x304] {
        let settings = Settings { tls, resumed: true, ..settings.clone() };
        let name = format!("tickets:{}", settings.tls_name());
        line(stack, &name, &resumption(stack, peer.as_ref(), &settings));
    }
    for name in OWN {
        line(stack, name, &stack.feature(name, settings));
    }
}

fn line<S: Stack>(stack: &S, name: &str, outcome: &Outcome) {
    let (state, note) = match outcome {
        Outcome::Yes(how) => ("yes", how.as_str()),
        Outcome::No(why) => ("no", why.as_str()),
        Outcome::Unknown => ("unknown", "this worker has no trial for it"),
    };
    let line = Line::new("feature").text("name", name).text("state", state).text("note", note);
    println!("{}", line.text("version", &stack.version()).end());
}

/// A handshake of the library with itself, in one version only.
fn version<S: Stack>(stack: &S, settings: &Settings) -> Result<&'static str, String> {
    let (server, client) = (stack.server(settings)?, stack.client(settings)?);
    once(&server, &client, None, settings)?;
    Ok("a handshake with itself")
}

/// A handshake of the library with itself, with this suite: the fixed peer has none of these.
fn agreed<C: Context>(server: &C, client: &C, suite: &OldSuite) -> Result<&'static str, String> {
    let mut pair = drive::connect(server, client, None, None)?;
    drive::exchange(&mut pair, None)?;
    let facts = pair.client.facts();
    drive::end(pair, None);
    if (facts.tls, facts.cipher, facts.verified) == (0x303, u32::from(suite.id), 1) {
        Ok("a handshake with itself")
    } else {
        Err(format!("agreed on suite {:#06x} of version {:#06x} instead", facts.cipher, facts.tls))
    }
}

/// A handshake with the fixed peer, which says what was agreed on.
fn with_peer<S: Stack>(stack: &S, peer: Option<&Peer>, settings: &Settings) -> Outcome {
    let Some(peer) = peer else { return Outcome::Unknown };
    Outcome::of((|| {
        once(&stack.server(settings)?, &peer.client(settings)?, None, settings)?;
        Ok("a handshake with the fixed client")
    })())
}

fn resumption<S: Stack>(stack: &S, peer: Option<&Peer>, settings: &Settings) -> Outcome {
    let Some(peer) = peer else { return Outcome::Unknown };
    Outcome::of((|| {
        let (server, client) = (stack.server(settings)?, peer.client(settings)?);
        once(&server, &client, None, &Settings { resumed: false, ..settings.clone() })?;
        once(&server, &client, Some(&()), settings)?;
        Ok("the fixed client resumed")
    })())
}

fn once<S: Context, C: Context>(
    server: &S,
    client: &C,
    session: Option<&C::Session>,
    settings: &Settings,
) -> Result<(), String> {
    let mut pair = drive::connect(server, client, session, None)?;
    drive::exchange(&mut pair, None)?;
    drive::check(settings, pair.server.facts(), pair.client.facts(), settings.resumed)?;
    drive::end(pair, None);
    Ok(())
}

/// Whether the hello that waits in a pipe has an extension: what can be seen of a feature for which a library has no
/// call. `what` is for people.
pub fn hello_asks_for(from: &Pipe, extension: u16, what: &str) -> Result<String, String> {
    let mut hello = vec![0; 16384];
    let n = from.read(&mut hello);
    match has_extension(&hello[..n], extension) {
        Some(true) => Ok(format!("its client asks for {what} by itself; the library has no function for it")),
        Some(false) => Err(format!("the library has no function for it, and its ClientHello does not ask for {what}")),
        None => Err("the library has no function for it, and its ClientHello could not be read".into()),
    }
}

/// Whether a record with a whole ClientHello has an extension (RFC 8446 §4.1.2).
fn has_extension(record: &[u8], wanted: u16) -> Option<bool> {
    let skip = |at: &[u8], bytes: usize| -> Option<usize> {
        // A vector with a length of so many bytes.
        let len = at.get(..bytes)?.iter().fold(0usize, |n, &b| n << 8 | usize::from(b));
        Some(bytes + len)
    };
    // Record header, handshake header, version and random.
    let mut rest = record.get(5 + 4 + 2 + 32..)?;
    for bytes in [1, 2, 1] {
        rest = rest.get(skip(rest, bytes)?..)?;
    }
    let mut extensions = rest.get(2..skip(rest, 2)?)?;
    while !extensions.is_empty() {
        if extensions.get(..2)? == wanted.to_be_bytes() {
            return Some(true);
        }
        extensions = extensions.get(2 + skip(extensions.get(2..)?, 2)?..)?;
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::has_extension;

    #[test]
    fn an_extension_is_found_in_a_hello() {
        let mut hello = vec![22, 3, 1, 0, 0, 1, 0, 0, 0, 3, 3];
        hello.extend([7; 32]);
        // No session id, one suite, one compression, two extensions: 43, with a byte, and 18, empty.
        hello.extend([0, 0, 2, 0x13, 1, 1, 0, 0, 9, 0, 43, 0, 1, 3, 0, 18, 0, 0]);
        assert_eq!((has_extension(&hello, 18), has_extension(&hello, 16)), (Some(true), Some(false)));
        assert_eq!(has_extension(&hello[..60], 18), None);
    }
}
