//! The ways of connecting, and one timed connection.

use crate::place::NAME;
use crate::quic::Quic;
use anyhow::{Context, ensure};
use rustls::RootCertStore;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{default_provider, kx_group::X25519};
use rustls::pki_types::CertificateDer;
use rustls::version::{TLS12, TLS13};
use sealane_connect::{Connector, Cookie, Early, Options};
use sealane_lab_wire::{Trust, Verifier, Verify};
use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: server.test\r\nUser-Agent: sealane-lab\r\nAccept: */*\r\n\r\n";
/// How long tickets are waited for, beyond the round trip that they take: after early data they follow our Finished.
const TICKETS: Duration = Duration::from_millis(60);
/// Connections made in place of those whose early data was not taken, for want of a ticket.
const TRIES: usize = 4;

/// A way of connecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// In charts.
    pub name: &'static str,
    pub embed: bool,
    tls13: bool,
    /// Resumed, the request as early data.
    pub early: bool,
    /// The certificate is known, and not checked again.
    known: bool,
    /// Over QUIC, which has no handshake below TLS's.
    pub quic: bool,
}

const fn way(name: &'static str, embed: bool, tls13: bool, early: bool, known: bool) -> Way {
    Way { name, embed, tls13, early, known, quic: false }
}

const fn over_quic(name: &'static str, early: bool) -> Way {
    Way { name, embed: false, tls13: true, early, known: false, quic: true }
}

/// What a way connects with.
pub enum Client {
    Tcp(Box<Connector>),
    Quic(Box<Quic>),
}

pub const SEQUENTIAL_12: &str = "TLS 1.2 after TCP";
pub const EMBEDDED_12: &str = "TLS 1.2 in the SYN";
pub const SEQUENTIAL_13: &str = "TLS 1.3 after TCP";
pub const EMBEDDED_13: &str = "TLS 1.3 in the SYN";
pub const EMBEDDED_0: &str = "0-RTT in the SYN";

pub const WAYS: [Way; 9] = [
    way(SEQUENTIAL_12, false, false, false, false),
    way(EMBEDDED_12, true, false, false, false),
    way(SEQUENTIAL_13, false, true, false, false),
    way(EMBEDDED_13, true, true, false, false),
    way("0-RTT after TCP", false, true, true, false),
    way(EMBEDDED_0, true, true, true, false),
    way("TLS 1.3 in the SYN, chain verified in advance", true, true, false, true),
    over_quic("QUIC", false),
    over_quic("0-RTT over QUIC", true),
];

impl Way {
    pub fn client(self, certificate: &CertificateDer<'static>) -> anyhow::Result<Client> {
        Ok(match self.quic {
            true => Client::Quic(Box::new(Quic::new(certificate, self.early)?)),
            false => Client::Tcp(Box::new(self.connector(certificate, Cookie::Ask)?)),
        })
    }

    pub fn connector(self, certificate: &CertificateDer<'static>, cookie: Cookie) -> anyhow::Result<Connector> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone())?;
        let provider = CryptoProvider { kx_groups: vec![X25519], ..default_provider() };
        // What is left to check is the signature over the handshake.
        let pin = Trust::Pinned(certificate.clone());
        let known: Arc<dyn ServerCertVerifier> =
            Arc::new(Verifier::new(Verify::Signature, &pin, &Arc::new(provider.clone()))?);
        let options = Options {
            verifier: self.known.then_some(known),
            versions: vec![if self.tls13 { &TLS13 } else { &TLS12 }],
            provider: Some(provider),
            embed: self.embed,
            cookie,
            resumption: self.early,
            early_data: self.early,
            ..Options::with_roots(roots)
        };
        Ok(Connector::new(options)?)
    }

    /// Fetches the cookie, and tickets where they are used.
    pub fn prime(self, client: &Client, to: SocketAddr) -> anyhow::Result<()> {
        for _ in 0..2 {
            client.once(to, self.early)?;
        }
        Ok(())
    }

    /// One connection of a client that has neither a cookie nor a ticket, and knows nothing of the path.
    pub fn first_contact(self, certificate: &CertificateDer<'static>, to: SocketAddr) -> anyhow::Result<Timed> {
        self.timed(&Client::Tcp(Box::new(self.connector(certificate, Cookie::None)?)), to)
    }

    /// One connection that went as this way says; others are an error.
    pub fn timed(self, client: &Client, to: SocketAddr) -> anyhow::Result<Timed> {
        let mut timed = client.once(to, self.early)?;
        for _ in 0..TRIES {
            if timed.early == self.early {
                break;
            }
            timed = client.once(to, self.early)?;
        }
        ensure!(
            timed.embedded == self.embed,
            "{}: the ClientHello was sent {}",
            self.name,
            if timed.embedded { "in the SYN" } else { "after the SYN" }
        );
        ensure!(
            timed.early == self.early,
            "{}: early data was {}accepted",
            self.name,
            if timed.early { "" } else { "not " }
        );
        Ok(timed)
    }
}

/// What one connection took, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    pub handshake: f64,
    pub first_byte: f64,
    pub embedded: bool,
    pub early: bool,
}

impl Client {
    /// One connection with one request; `tickets` are waited for.
    pub fn once(&self, to: SocketAddr, tickets: bool) -> anyhow::Result<Timed> {
        match self {
            Self::Tcp(connector) => once(connector, to, tickets),
            Self::Quic(quic) => quic.once(to, tickets.then_some(TICKETS)),
        }
    }
}

/// One connection with one request; `tickets` are waited for.
pub fn once(connector: &Connector, to: SocketAddr, tickets: bool) -> anyhow::Result<Timed> {
    let begun = Instant::now();
    let mut stream = connector.connect_tls(to, NAME, REQUEST)?;
    let handshake = stream.outcome().handshake.as_secs_f64() * 1e3;
    let mut byte = [0; 2048];
    ensure!(stream.read(&mut byte).context("no response")? > 0, "no response");
    let first_byte = begun.elapsed().as_secs_f64() * 1e3;
    ensure!(byte.starts_with(b"HTTP/1.1 200"), "the server sent another response than the expected one");
    let (embedded, early) = (stream.outcome().embedded(), stream.outcome().early == Early::Accepted);
    if tickets {
        stream.tcp().set_read_timeout(Some(begun.elapsed() + TICKETS))?;
        // It ends with the time: nothing but tickets follows.
        let _ = stream.read(&mut byte);
    }
    Ok(Timed { handshake, first_byte, embedded, early })
}

/// A handshake without a request, up to our Finished.
pub fn bare(connector: &Connector, to: SocketAddr) -> anyhow::Result<sealane_connect::TlsStream> {
    Ok(connector.connect_tls(to, NAME, &[])?)
}
