//! TLS over a blocking socket, with rustls driven by hand so that each moment can be noted.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Instant;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, ProtocolVersion};
use serde::Serialize;

use crate::error::ProbeError;
use crate::net::Socket;
use crate::tickets::TicketStore;
use crate::trust;
use crate::variant::{Group, Handshake, Http, Variant, Version};
use sealane_lab_wire::Verifier;

/// The provider of all cryptography, with the groups in the order that browsers use.
pub fn provider(group: Option<Group>) -> Arc<CryptoProvider> {
    use aws_lc_rs::kx_group::{SECP256R1, SECP384R1, X25519, X25519MLKEM768};
    let groups: Vec<&'static dyn SupportedKxGroup> = match group {
        None => vec![X25519MLKEM768, X25519, SECP256R1, SECP384R1],
        Some(Group::X25519) => vec![X25519],
        Some(Group::P256) => vec![SECP256R1],
        Some(Group::P384) => vec![SECP384R1],
        Some(Group::PostQuantum) => vec![X25519MLKEM768],
    };
    Arc::new(CryptoProvider { kx_groups: groups, ..aws_lc_rs::default_provider() })
}

/// A client for one variant: its configuration and, when it resumes, its tickets.
pub struct Client {
    /// What every connection of the variant starts from.
    pub config: Arc<ClientConfig>,
    /// For connections that only fetch a ticket: the same without early data.
    pub priming: Arc<ClientConfig>,
    /// The tickets, when the variant resumes.
    pub tickets: Option<Arc<TicketStore>>,
}

impl Client {
    /// Builds the configuration that `variant` asks for.
    pub fn new(variant: &Variant, verifier: &Arc<Verifier>) -> Result<Self, ProbeError> {
        let versions: &[&rustls::SupportedProtocolVersion] = match variant.version {
            None => &[&rustls::version::TLS13, &rustls::version::TLS12],
            Some(Version::Tls12) => &[&rustls::version::TLS12],
            Some(Version::Tls13) => &[&rustls::version::TLS13],
        };
        let mut config = ClientConfig::builder_with_provider(provider(variant.group))
            .with_protocol_versions(versions)
            .map_err(|e| ProbeError::Tls(e.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_no_client_auth();
        config.alpn_protocols = match variant.http {
            None => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Some(Http::H1) => vec![b"http/1.1".to_vec()],
            Some(Http::H2) => vec![b"h2".to_vec()],
            Some(Http::H3) => vec![b"h3".to_vec()],
        };
        let tickets = variant.resumes().then(|| Arc::new(TicketStore::default()));
        config.resumption = match &tickets {
            Some(store) => Resumption::store(store.clone()),
            None => Resumption::disabled(),
        };
        let priming = Arc::new(config.clone());
        config.enable_early_data = variant.handshake == Handshake::EarlyData;
        Ok(Self { config: Arc::new(config), priming, tickets })
    }
}

/// What became of early data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EarlyData {
    /// Sent and accepted.
    Accepted,
    /// Sent, and the server wants it again after the handshake.
    Rejected,
}

/// How a handshake went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Certificate and all.
    Full,
    /// With one more round trip, because the server wanted another group (HelloRetryRequest).
    FullWithRetry,
    /// From a ticket.
    Resumed,
}

impl Kind {
    /// Whether a ticket was used.
    pub fn is_resumed(self) -> bool {
        self == Self::Resumed
    }
}

/// What client and server agreed on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Negotiated {
    /// `TLS 1.2` or `TLS 1.3`.
    pub version: String,
    /// The cipher suite's registered name; unknown over QUIC.
    pub suite: Option<String>,
    /// The key-exchange group's name; none in TLS 1.2 without an (EC)DHE exchange, unknown over QUIC.
    pub group: Option<String>,
    /// The application protocol; `None` when the server picked none.
    pub alpn: Option<String>,
    /// How the handshake went.
    pub handshake: Kind,
    /// What became of early data; `None` when none was sent.
    pub early_data: Option<EarlyData>,
}

/// A TLS connection over a blocking socket.
pub struct TlsStream<'w> {
    conn: ClientConnection,
    socket: Socket,
    verifier: &'w Verifier,
    early: Option<usize>,
}

impl<'w> TlsStream<'w> {
    /// Shakes hands. `early`, when there is a ticket that allows it, goes out with the first flight.
    pub fn handshake(
        config: Arc<ClientConfig>,
        name: rustls::pki_types::ServerName<'static>,
        socket: Socket,
        verifier: &'w Verifier,
        early: Option<&[u8]>,
    ) -> Result<Self, ProbeError> {
        let conn = ClientConnection::new(config, name).map_err(|e| ProbeError::Tls(e.to_string()))?;
        let mut stream = Self { conn, socket, verifier, early: None };
        if let (Some(bytes), Some(mut early)) = (early, stream.conn.early_data()) {
            // As much as the ticket allows; the rest follows after the handshake.
            let sent = early.write(bytes).map_err(|e| ProbeError::from_io(e, "writing early data"))?;
            stream.early = Some(sent);
        }
        while stream.conn.is_handshaking() {
            stream.flush("during the TLS handshake")?;
            stream.pump("during the TLS handshake")?;
        }
        // The client's Finished.
        stream.flush("during the TLS handshake")?;
        Ok(stream)
    }

    /// How many bytes of the early data need not be sent again: all that went out, if it was accepted.
    pub fn early_bytes_accepted(&self) -> usize {
        match self.early {
            Some(sent) if self.conn.is_early_data_accepted() => sent,
            _ => 0,
        }
    }

    /// What was agreed on.
    pub fn negotiated(&self) -> Negotiated {
        let conn = &self.conn;
        Negotiated {
            version: match conn.protocol_version() {
                Some(ProtocolVersion::TLSv1_3) => "TLS 1.3".into(),
                Some(ProtocolVersion::TLSv1_2) => "TLS 1.2".into(),
                other => format!("{other:?}"),
            },
            suite: conn.negotiated_cipher_suite().map(|s| format!("{:?}", s.suite()).replacen("TLS13_", "TLS_", 1)),
            group: conn.negotiated_key_exchange_group().map(|g| group_name(g.name())),
            alpn: conn.alpn_protocol().map(|p| crate::cert::printable(&String::from_utf8_lossy(p))),
            handshake: match conn.handshake_kind() {
                Some(HandshakeKind::Resumed) => Kind::Resumed,
                Some(HandshakeKind::FullWithHelloRetryRequest) => Kind::FullWithRetry,
                _ => Kind::Full,
            },
            early_data: self.early.map(|_| match conn.is_early_data_accepted() {
                true => EarlyData::Accepted,
                false => EarlyData::Rejected,
            }),
        }
    }

    /// Sends all of `bytes`.
    pub fn write_all(&mut self, mut bytes: &[u8]) -> Result<(), ProbeError> {
        while !bytes.is_empty() {
            let taken = self.conn.writer().write(bytes).map_err(|e| ProbeError::from_io(e, "sending the request"))?;
            bytes = &bytes[taken..];
            self.flush("sending the request")?;
        }
        Ok(())
    }

    /// Reads some plaintext; 0 at the end of the stream, clean or not (the HTTP layer knows whether it matters).
    pub fn read(&mut self, buf: &mut [u8]) -> Result<usize, ProbeError> {
        loop {
            match self.conn.reader().read(buf) {
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(e) => return Err(ProbeError::from_io(e, "reading the response")),
            }
            if self.conn.wants_write() {
                self.flush("reading the response")?;
            }
            let n = self.conn.read_tls(&mut self.socket).map_err(|e| ProbeError::from_io(e, "reading the response"))?;
            if let Err(error) = self.conn.process_new_packets() {
                return Err(trust::explain(self.verifier, error));
            }
            if n == 0 {
                return Ok(0);
            }
        }
    }

    /// Says goodbye; what the peer makes of it is of no interest.
    pub fn close(mut self) {
        self.conn.send_close_notify();
        let _ = self.flush("closing");
    }

    fn flush(&mut self, during: &'static str) -> Result<(), ProbeError> {
        while self.conn.wants_write() {
            self.conn.write_tls(&mut self.socket).map_err(|e| ProbeError::from_io(e, during))?;
        }
        Ok(())
    }

    fn pump(&mut self, during: &'static str) -> Result<(), ProbeError> {
        let n = self.conn.read_tls(&mut self.socket).map_err(|e| ProbeError::from_io(e, during))?;
        if let Err(error) = self.conn.process_new_packets() {
            // The alert that tells the server why; it may be gone already.
            let _ = self.flush(during);
            return Err(trust::explain(self.verifier, error));
        }
        if n == 0 && self.conn.is_handshaking() {
            return Err(ProbeError::Closed(format!("{during}: end of stream")));
        }
        Ok(())
    }
}

/// The registered name of a group.
fn group_name(group: rustls::NamedGroup) -> String {
    format!("{group:?}")
}

/// Nanoseconds since `start`, on the monotonic clock.
pub fn since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
