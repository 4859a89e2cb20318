//! One connection from hello to end, and the checks without which it does not count.

use std::path::Path;

use crate::pipe::{Pipe, pipe};
use crate::scope::{Scope, within};
use crate::settings::Settings;

/// A TLS library.
pub trait Stack: Sized + Sync {
    /// What connections are made from, on either side: an `SSL_CTX` and its like.
    type Context: Context + Send + Sync;

    /// Gets the library ready; `library` is what `--library` names.
    fn load(library: Option<&Path>) -> Result<Self, String>;
    /// What the library says that it is.
    fn version(&self) -> String;
    /// What else it says: how it was built, for what, and which of the CPU's abilities it takes.
    fn details(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
    /// A server's context: its certificate, key and ticket policy.
    fn server(&self, settings: &Settings) -> Result<Self::Context, String>;
    /// A client's: it verifies chain and name.
    fn client(&self, settings: &Settings) -> Result<Self::Context, String>;
    /// Tries one of the features that the frame cannot try through contexts alone.
    fn feature(&self, name: &str, settings: &Settings) -> crate::Outcome {
        let _ = (name, settings);
        crate::Outcome::Unknown
    }
    /// A server and a client that have only this suite, or why there are none; nothing where the worker cannot try it.
    fn with_suite(&self, suite: &crate::OldSuite, settings: &Settings) -> Option<Result<Sides<Self>, String>> {
        let _ = (suite, settings);
        None
    }
}

/// A server's context and a client's.
pub type Sides<S> = (<S as Stack>::Context, <S as Stack>::Context);

/// What connections are made from.
pub trait Context {
    /// A connection.
    type Connection: Connection<Session = Self::Session>;
    /// What a client needs to resume.
    type Session: Clone;

    /// After so many resumptions in a row a server needs a full handshake in between.
    const RENEW: u64 = u64::MAX;

    /// A new connection over a pipe; a client's resumes `session` if there is one.
    fn open(&self, pipe: Pipe, session: Option<&Self::Session>) -> Result<Self::Connection, String>;
}

/// What a connection says about itself once the handshake is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Facts {
    /// 1 if the handshake was resumed.
    pub resumed: u32,
    /// On a client, 1 if the server's chain and name were verified.
    pub verified: u32,
    /// Version on the wire.
    pub tls: u32,
    /// Cipher suite's number.
    pub cipher: u32,
    /// Group's number; 0 where the library does not say.
    pub group: u32,
    /// On a client, tickets received so far; 0 where the library does not say.
    pub tickets: u32,
}

/// One side of a connection.
pub trait Connection {
    /// As of its context.
    type Session: Clone;

    /// Goes on with the handshake; true when it is done, false when it waits for the other side.
    fn handshake(&mut self) -> Result<bool, String>;
    /// Sends all of `bytes`.
    fn write(&mut self, bytes: &[u8]) -> Result<(), String>;
    /// Reads what is there; 0 when nothing is.
    fn read(&mut self, into: &mut [u8]) -> Result<usize, String>;
    /// What came of the handshake.
    fn facts(&self) -> Facts;
    /// On a client whose peer has sent data: what to resume from.
    fn session(&mut self) -> Option<Self::Session>;
    /// Ends the connection in order, so that its session stays good.
    fn finish(&mut self) {}
}

/// Nanoseconds on the CPU for each side, of handshake and data.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// The client's handshake.
    pub client: u64,
    /// The server's.
    pub server: u64,
    /// The client's data and end.
    pub client_data: u64,
    /// The server's.
    pub server_data: u64,
}

/// A pair in the middle of its life.
pub struct Pair<S: Context, C: Context> {
    /// The server's side.
    pub server: S::Connection,
    /// The client's side.
    pub client: C::Connection,
}

const REQUEST: [u8; 64] = [b'q'; 64];
const ANSWER: [u8; 64] = [b'a'; 64];

/// Opens both sides and runs the handshake to its end.
pub fn connect<S: Context, C: Context>(
    server: &S,
    client: &C,
    session: Option<&C::Session>,
    mut spent: Option<&mut Spent>,
) -> Result<Pair<S, C>, String> {
    let (client_end, server_end) = pipe();
    macro_rules! on {
        (client $e:expr) => {
            within(Scope::ClientHandshake, spent.as_deref_mut().map(|s| &mut s.client), || $e)
        };
        (server $e:expr) => {
            within(Scope::ServerHandshake, spent.as_deref_mut().map(|s| &mut s.server), || $e)
        };
    }
    let mut c = on!(client client.open(client_end, session)).map_err(|e| format!("client: {e}"))?;
    let mut s = on!(server server.open(server_end, None)).map_err(|e| format!("server: {e}"))?;
    let (mut client_done, mut server_done) = (false, false);
    // A retried key share makes three rounds; more is a fault.
    for _ in 0..12 {
        if !client_done {
            client_done = on!(client c.handshake()).map_err(|e| format!("client: {e}"))?;
        }
        if !server_done {
            server_done = on!(server s.handshake()).map_err(|e| format!("server: {e}"))?;
        }
        if client_done && server_done {
            return Ok(Pair { server: s, client: c });
        }
    }
    Err("the handshake does not end".into())
}

/// A request and an answer, byte by byte the ones that were sent.
pub fn exchange<S: Context, C: Context>(pair: &mut Pair<S, C>, mut spent: Option<&mut Spent>) -> Result<(), String> {
    macro_rules! on {
        (client $e:expr) => {
            within(Scope::ClientData, spent.as_deref_mut().map(|s| &mut s.client_data), || $e)
        };
        (server $e:expr) => {
            within(Scope::ServerData, spent.as_deref_mut().map(|s| &mut s.server_data), || $e)
        };
    }
    let mut got = [0; 64];
    on!(client pair.client.write(&REQUEST)).map_err(|e| format!("client: {e}"))?;
    on!(server all(&mut pair.server, &mut got)).map_err(|e| format!("server: {e}"))?;
    if got != REQUEST {
        return Err("the request changed on its way".into());
    }
    on!(server pair.server.write(&ANSWER)).map_err(|e| format!("server: {e}"))?;
    on!(client all(&mut pair.client, &mut got)).map_err(|e| format!("client: {e}"))?;
    if got != ANSWER {
        return Err("the answer changed on its way".into());
    }
    Ok(())
}

fn all<C: Connection>(connection: &mut C, into: &mut [u8]) -> Result<(), String> {
    let mut have = 0;
    // A read may bring tickets and no data.
    for _ in 0..16 {
        have += connection.read(&mut into[have..])?;
        if have == into.len() {
            return Ok(());
        }
    }
    Err("the data did not arrive".into())
}

/// Ends both sides.
pub fn end<S: Context, C: Context>(pair: Pair<S, C>, mut spent: Option<&mut Spent>) {
    let Pair { mut server, mut client } = pair;
    within(Scope::ClientData, spent.as_deref_mut().map(|s| &mut s.client_data), || {
        client.finish();
        drop(client);
    });
    within(Scope::ServerData, spent.as_deref_mut().map(|s| &mut s.server_data), || {
        server.finish();
        drop(server);
    });
}

/// Whether the connection was the one that was asked for. Group 0 means that this side cannot tell.
pub fn check(settings: &Settings, server: Facts, client: Facts, resumed: bool) -> Result<(), String> {
    let cipher = settings.cipher.id(settings.tls, settings.key);
    for (who, facts) in [("server", server), ("client", client)] {
        if (facts.resumed == 1) != resumed {
            let (was, wanted) = if resumed { ("full", "resumed") } else { ("resumed", "full") };
            return Err(format!("{who}: the handshake was {was} where {wanted} was asked for"));
        }
        if facts.tls != u32::from(settings.tls) {
            return Err(format!("{who}: version {:#06x} instead of {:#06x}", facts.tls, settings.tls));
        }
        if facts.cipher != u32::from(cipher) && settings.tls >= 0x303 {
            return Err(format!("{who}: cipher suite {:#06x} instead of {cipher:#06x}", facts.cipher));
        }
        // A resumed TLS 1.2 handshake has no key exchange.
        let exchanged = settings.tls >= 0x304 || !resumed;
        if exchanged && facts.group != 0 && facts.group != u32::from(settings.group.id()) {
            return Err(format!("{who}: group {:#06x} instead of {:#06x}", facts.group, settings.group.id()));
        }
    }
    if client.verified != 1 {
        return Err("client: the server's chain was not verified".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::parse;

    #[test]
    fn a_connection_that_differs_from_what_was_asked_for_does_not_count() {
        let settings = parse(["handshakes".to_owned()].into_iter()).expect("defaults");
        let good = Facts { resumed: 0, verified: 1, tls: 0x304, cipher: 0x1301, group: 29, tickets: 2 };
        assert_eq!(check(&settings, good, good, false), Ok(()));
        assert_eq!(check(&settings, Facts { group: 0, verified: 0, ..good }, good, false), Ok(()));
        for bad in [
            Facts { resumed: 1, ..good },
            Facts { verified: 0, ..good },
            Facts { tls: 0x303, ..good },
            Facts { cipher: 0x1302, ..good },
            Facts { group: 23, ..good },
        ] {
            assert!(check(&settings, good, bad, false).is_err(), "{bad:?}");
        }
        assert!(check(&settings, good, good, true).is_err());
    }
}
