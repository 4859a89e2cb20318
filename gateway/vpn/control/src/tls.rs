//! TLS inside a control channel: bytes in and out of rustls, one record at a time.
//!
//! OpenVPN has no framing of its own inside TLS: a message is what one record holds. rustls joins the plaintext of
//! records, so they are given to it one by one.

use super::records::{Records, SavedRecords};
use anyhow::{Context as _, Result, bail};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use std::io::{Read as _, Write as _};
use std::sync::Arc;

/// RFC 8446 §5.2 and RFC 5246 §6.2.3: a record's head, 2^14 bytes, and what encryption adds at most.
const MAX_RECORD: usize = 5 + (1 << 14) + 2048;

/// What new connections are made of.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// A server's.
    Server(Arc<ServerConfig>),
    /// A client's.
    Client(Arc<ClientConfig>),
}

impl Endpoint {
    /// Whether it is a server's.
    pub const fn is_server(&self) -> bool {
        matches!(self, Self::Server(_))
    }
}

enum Engine {
    Rustls(Box<Connection>),
    /// One that has come from another process, and what it has to send.
    Moved(Box<Records>, Vec<u8>),
}

/// One TLS connection.
pub struct Tls {
    engine: Engine,
    /// Bytes of a record that is not whole yet.
    partial: Vec<u8>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// A connection that has not begun; a client's hello is ready to be taken.
    pub fn new(endpoint: &Endpoint) -> Result<Self> {
        let connection = match endpoint {
            Endpoint::Server(config) => Connection::Server(ServerConnection::new(config.clone())?),
            Endpoint::Client(config) => {
                // It is not sent (SNI is off), and certificates are checked without it.
                let name = ServerName::try_from("openvpn")?;
                Connection::Client(ClientConnection::new(config.clone(), name)?)
            }
        };
        Ok(Self { engine: Engine::Rustls(Box::new(connection)), partial: Vec::new() })
    }

    /// A connection that has come from another process.
    pub fn restore(saved: SavedRecords) -> Result<Self> {
        let (records, partial) = Records::restore(saved)?;
        Ok(Self { engine: Engine::Moved(Box::new(records), Vec::new()), partial })
    }

    /// Its keys, to go on elsewhere. Everything that it had to send must have been taken.
    pub fn save(self) -> Result<SavedRecords> {
        let described = self.described();
        match self.engine {
            Engine::Moved(records, _) => Ok(records.save(self.partial)),
            Engine::Rustls(connection) => {
                let version = connection.protocol_version().context("the handshake is not over")?;
                let secrets = connection.dangerous_extract_secrets()?;
                SavedRecords::new(version, &secrets, self.partial, described)
            }
        }
    }

    /// Takes bytes and gives the plaintext of each record that they complete.
    pub fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(Vec<u8>)) -> Result<()> {
        self.partial.extend_from_slice(bytes);
        let mut start = 0;
        let result = loop {
            let rest = &self.partial[start..];
            let Some(&[_, _, _, high, low]) = rest.first_chunk::<5>() else { break Ok(()) };
            let length = 5 + usize::from(u16::from_be_bytes([high, low]));
            if length > MAX_RECORD {
                break Err(anyhow::anyhow!("not TLS: a record of {length} bytes"));
            }
            let Some(mut record) = rest.get(..length) else { break Ok(()) };
            start += length;
            let connection = match &mut self.engine {
                Engine::Rustls(connection) => connection,
                Engine::Moved(records, _) => match records.open(record) {
                    Ok(plaintext) => {
                        plaintext.into_iter().for_each(&mut each);
                        continue;
                    }
                    Err(e) => break Err(e),
                },
            };
            while !record.is_empty() {
                if connection.read_tls(&mut record)? == 0 {
                    bail!("TLS has ended");
                }
            }
            let state = match connection.process_new_packets() {
                Ok(state) => state,
                Err(e) => break Err(e.into()),
            };
            if state.plaintext_bytes_to_read() > 0 {
                let mut plaintext = vec![0; state.plaintext_bytes_to_read()];
                connection.reader().read_exact(&mut plaintext)?;
                each(plaintext);
            }
        };
        self.partial.drain(..start);
        if self.partial.is_empty() {
            // Most of a connection's life nothing is partial.
            self.partial = Vec::new();
        }
        result
    }

    /// Seals a message as one record.
    pub fn write(&mut self, message: &[u8]) -> Result<()> {
        if message.len() > 1 << 14 {
            bail!("a message of {} bytes does not fit into a record", message.len());
        }
        match &mut self.engine {
            Engine::Rustls(connection) => Ok(connection.writer().write_all(message)?),
            Engine::Moved(records, out) => records.seal(message, out),
        }
    }

    /// Bytes to send.
    pub fn take_output(&mut self) -> Vec<u8> {
        let connection = match &mut self.engine {
            Engine::Rustls(connection) => connection,
            Engine::Moved(_, out) => return std::mem::take(out),
        };
        let mut out = Vec::new();
        while connection.wants_write() {
            // A Vec takes everything.
            if connection.write_tls(&mut out).is_err() {
                break;
            }
        }
        out
    }

    /// Whether the handshake is going on.
    pub fn is_handshaking(&self) -> bool {
        matches!(&self.engine, Engine::Rustls(connection) if connection.is_handshaking())
    }

    /// RFC 5705 without a context.
    pub fn export(&self, label: &[u8]) -> Result<[u8; 256]> {
        match &self.engine {
            Engine::Rustls(connection) => Ok(connection.export_keying_material([0; 256], label, None)?),
            Engine::Moved(..) => bail!("a session that was handed over exports no keys"),
        }
    }

    /// The peer's certificate, DER.
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        match &self.engine {
            Engine::Rustls(connection) => connection.peer_certificates()?.first().map(|c| c.as_ref()),
            Engine::Moved(..) => None,
        }
    }

    /// `TLSv1.3 TLS13_AES_256_GCM_SHA384`, for the log.
    pub fn described(&self) -> String {
        let connection = match &self.engine {
            Engine::Rustls(connection) => connection,
            Engine::Moved(records, _) => return records.described().to_owned(),
        };
        let version = connection.protocol_version().and_then(|v| v.as_str().map(str::to_owned));
        let suite = connection.negotiated_cipher_suite().map(|s| format!("{:?}", s.suite()));
        format!("{} {}", version.unwrap_or_default(), suite.unwrap_or_default())
    }
}
