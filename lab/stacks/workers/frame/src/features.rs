//! What the library can do, tried rather than recited: each feature becomes a line.

use crate::drive::{self, Connection, Context, Stack};
use crate::json::Line;
use crate::peer::Peer;
use crate::settings::{Cipher, Group, Settings};

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

/// Features that each stack tries in its own way, through [`Stack::feature`].
const OWN: &[&str] = &["early-data", "quic", "sni", "alpn", "ocsp", "crl", "ct", "fips"];

/// Tries everything.
pub fn report<S: Stack>(stack: &S, settings: &Settings) {
    let peer = settings.peer.as_deref().and_then(|path| Peer::load(path).ok());
    for (name, tls) in [("tls1.0", 0x301), ("tls1.1", 0x302), ("tls1.2", 0x303), ("tls1.3", 0x304)] {
        line(stack, name, &Outcome::of(version(stack, &Settings { tls, ..settings.clone() })));
    }
    for (name, group) in [("x25519", Group::X25519), ("p256", Group::P256), ("x25519mlkem768", Group::X25519MlKem768)] {
        let settings = Settings { tls: 0x304, group, ..settings.clone() };
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
    once(&server, &client, settings)?;
    Ok("a handshake with itself")
}

/// A handshake with the fixed peer, which says what was agreed on.
fn with_peer<S: Stack>(stack: &S, peer: Option<&Peer>, settings: &Settings) -> Outcome {
    let Some(peer) = peer else { return Outcome::Unknown };
    Outcome::of((|| {
        once(&stack.server(settings)?, &peer.client(settings)?, settings)?;
        Ok("a handshake with the fixed client")
    })())
}

fn resumption<S: Stack>(stack: &S, peer: Option<&Peer>, settings: &Settings) -> Outcome {
    let Some(peer) = peer else { return Outcome::Unknown };
    Outcome::of((|| {
        let (server, client) = (stack.server(settings)?, peer.client(settings)?);
        once(&server, &client, &Settings { resumed: false, ..settings.clone() })?;
        once(&server, &client, settings)?;
        Ok("the fixed client resumed")
    })())
}

fn once<S: Context, C: Context>(server: &S, client: &C, settings: &Settings) -> Result<(), String> {
    let mut pair = drive::connect(server, client, None, None)?;
    drive::exchange(&mut pair, None)?;
    drive::check(settings, pair.server.facts(), pair.client.facts(), settings.resumed)?;
    drive::end(pair, None);
    Ok(())
}
