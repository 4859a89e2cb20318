//! One TLS connection, without I/O: TLS bytes in, TLS bytes and plaintext out.

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{CipherSuite, Error, HandshakeKind, NamedGroup, ProtocolVersion};

use super::config::Client;
use super::tickets::offer_tickets;
use crate::plan::Kind;

/// Bytes on their way out: a buffer that is written from its front and sent whole, kept for the next time.
#[derive(Debug)]
pub struct OutBuf {
    bytes: Vec<u8>,
    len: usize,
}

impl OutBuf {
    /// With room for a few records.
    pub fn new() -> Self {
        Self { bytes: vec![0; 64 * 1024], len: 0 }
    }

    /// What waits to be sent.
    #[inline]
    pub fn filled(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets everything: it was sent.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends plain bytes.
    pub fn extend(&mut self, data: &[u8]) {
        if self.bytes.len() - self.len < data.len() {
            self.bytes.resize((self.len + data.len()).next_power_of_two(), 0);
        }
        self.bytes[self.len..self.len + data.len()].copy_from_slice(data);
        self.len += data.len();
    }

    fn append<E>(&mut self, mut write: impl FnMut(&mut [u8]) -> Result<usize, Room<E>>) -> Result<usize, E> {
        loop {
            match write(&mut self.bytes[self.len..]) {
                Ok(n) => {
                    self.len += n;
                    return Ok(n);
                }
                Err(Room::Wanted(n)) => self.bytes.resize((self.len + n).next_power_of_two(), 0),
                Err(Room::Failed(e)) => return Err(e),
            }
        }
    }
}

impl Default for OutBuf {
    fn default() -> Self {
        Self::new()
    }
}

enum Room<E> {
    Wanted(usize),
    Failed(E),
}

/// What processing input came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    /// Bytes at the front of the input that are used up.
    pub used: usize,
    /// The peer said close_notify.
    pub closed: bool,
}

/// A client's session.
pub struct Session {
    conn: UnbufferedClientConnection,
    /// The handshake is complete: application data may be sent.
    ready: bool,
    /// Early data went out with the hello.
    early_sent: bool,
    /// `EndOfEarlyData` was sent: the server took the early data.
    early_accepted: bool,
}

/// An encrypted `EndOfEarlyData`: the only handshake message of four bytes that a client sends
/// (RFC 8446 §4.5; an empty `Certificate` has eight), in a record of 4 + 1 + 16 bytes. It is sent if and
/// only if the server accepted early data, which rustls' unbuffered interface tells in no other way.
const END_OF_EARLY_DATA: [u8; 5] = [0x17, 0x03, 0x03, 0x00, 21];

impl Session {
    /// A new session of `kind`; nothing is sent before the first [`Self::process`].
    pub fn new(client: &Client, name: &ServerName<'static>, kind: Kind) -> Result<Self, Error> {
        offer_tickets(kind >= Kind::Resumed);
        let config = if kind == Kind::EarlyData { &client.early } else { &client.ordinary };
        let conn = UnbufferedClientConnection::new(config.clone(), name.clone());
        offer_tickets(false);
        Ok(Self { conn: conn?, ready: false, early_sent: false, early_accepted: false })
    }

    /// Whether the handshake is complete.
    #[inline]
    pub fn ready(&self) -> bool {
        self.ready
    }

    /// Processes TLS bytes. `early` goes out as early data if there is a chance; plaintext goes to `sink`.
    pub fn process(
        &mut self,
        input: &mut [u8],
        out: &mut OutBuf,
        mut early: Option<&[u8]>,
        mut sink: impl FnMut(&[u8]),
    ) -> Result<Step, Error> {
        let mut step = Step::default();
        loop {
            let UnbufferedStatus { mut discard, state, .. } = self.conn.process_tls_records(&mut input[step.used..]);
            let more = match state? {
                ConnectionState::EncodeTlsData(mut data) => {
                    let from = out.len;
                    out.append(|room| {
                        data.encode(room).map_err(|e| match e {
                            EncodeError::InsufficientSize(wanted) => Room::Wanted(wanted.required_size),
                            EncodeError::AlreadyEncoded => Room::Failed(Error::General(e.to_string())),
                        })
                    })?;
                    if self.early_sent && out.filled()[from..].starts_with(&END_OF_EARLY_DATA) {
                        self.early_accepted = true;
                    }
                    true
                }
                ConnectionState::TransmitTlsData(mut transmit) => {
                    if let Some(data) = early.take()
                        && let Some(mut may) = transmit.may_encrypt_early_data()
                    {
                        use rustls::client::EarlyDataError;
                        // All or nothing: half a request as early data would have to be sent again anyway.
                        let sent = out.append(|room| {
                            may.encrypt(data, room).map_err(|e| match e {
                                EarlyDataError::Encrypt(EncryptError::InsufficientSize(wanted)) => {
                                    Room::Wanted(wanted.required_size)
                                }
                                other => Room::Failed(Error::General(other.to_string())),
                            })
                        });
                        self.early_sent = sent.is_ok();
                    }
                    transmit.done();
                    true
                }
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        discard += record.discard;
                        sink(record.payload);
                    }
                    true
                }
                ConnectionState::WriteTraffic(_) => {
                    self.ready = true;
                    false
                }
                ConnectionState::PeerClosed => {
                    step.closed = true;
                    true
                }
                ConnectionState::Closed => {
                    step.closed = true;
                    false
                }
                // BlockedHandshake; a client reads no early data.
                _ => false,
            };
            step.used += discard;
            if !more {
                return Ok(step);
            }
        }
    }

    /// Encrypts `data` into `out`; only once [`Self::ready`].
    #[inline]
    pub fn encrypt(&mut self, data: &[u8], out: &mut OutBuf) -> Result<(), Error> {
        let UnbufferedStatus { state, .. } = self.conn.process_tls_records(&mut []);
        let ConnectionState::WriteTraffic(mut traffic) = state? else { return Err(Error::HandshakeNotComplete) };
        out.append(|room| {
            traffic.encrypt(data, room).map_err(|e| match e {
                EncryptError::InsufficientSize(wanted) => Room::Wanted(wanted.required_size),
                EncryptError::EncryptExhausted => Room::Failed(Error::EncryptError),
            })
        })?;
        Ok(())
    }

    /// Appends close_notify to `out`, when the session can.
    pub fn close(&mut self, out: &mut OutBuf) {
        let UnbufferedStatus { state, .. } = self.conn.process_tls_records(&mut []);
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = state {
            // A session that cannot say goodbye is closed by its socket.
            let _ = out.append(|room| {
                traffic.queue_close_notify(room).map_err(|e| match e {
                    EncryptError::InsufficientSize(wanted) => Room::Wanted(wanted.required_size),
                    EncryptError::EncryptExhausted => Room::Failed(()),
                })
            });
        }
    }

    /// Full, resumed, or full with another round trip.
    pub fn handshake_kind(&self) -> Option<HandshakeKind> {
        self.conn.handshake_kind()
    }

    /// Whether early data was sent, and whether the server took it.
    pub fn early_data(&self) -> (bool, bool) {
        (self.early_sent, self.early_accepted)
    }

    /// The negotiated protocol by ALPN.
    pub fn alpn(&self) -> Option<&[u8]> {
        self.conn.alpn_protocol()
    }

    /// The negotiated version.
    pub fn version(&self) -> Option<ProtocolVersion> {
        self.conn.protocol_version()
    }

    /// The negotiated cipher suite.
    pub fn suite(&self) -> Option<CipherSuite> {
        self.conn.negotiated_cipher_suite().map(|s| s.suite())
    }

    /// The negotiated key-exchange group.
    pub fn group(&self) -> Option<NamedGroup> {
        self.conn.negotiated_key_exchange_group().map(|g| g.name())
    }
}
