//! One TLS session, server or client: ciphertext in; plaintext, early data and records out.
//!
//! The proxy feeds it what it has read and sends what it finds in [`Records`]; all the records that one input leads to
//! (a server's whole flight, an answer with its close_notify) leave in one send.

use crate::authentication::{self, Authentication};
use crate::client::ClientContext;
use crate::early_skip::{EarlySkip, Step};
use crate::hello::fatal_alert;
use crate::policy::{KeyKind, Version};
use crate::records::Records;
use crate::remote::NotSigned;
use crate::server::{self, ServerContext};
use crate::syn;
use crate::transparency;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{AlertDescription, CommonState, HandshakeKind, PeerMisbehaved, ProtocolVersion};

/// Most plaintext in one record (RFC 8446 §5.1).
const MAX_FRAGMENT: usize = 1 << 14;
/// Header, content type, tag, explicit nonce: more than any suite adds to a record.
const RECORD_OVERHEAD: usize = RECORD_HEADER + 1 + 16 + 8;
const RECORD_HEADER: usize = 5;

/// Why a session ended badly.
#[derive(Debug)]
pub enum TlsError {
    /// The peer broke the protocol, or we could not agree; the alert for it is in the records.
    Handshake(rustls::Error),
    /// The peer told us by a fatal alert.
    PeerAlert(AlertDescription),
    /// The library refused to encrypt: too many records under one key.
    Exhausted,
}

impl std::fmt::Display for TlsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Handshake(e) => e.fmt(f),
            Self::PeerAlert(a) => write!(f, "the peer sent the alert {a:?}"),
            Self::Exhausted => f.write_str("too many records under one key"),
        }
    }
}

impl std::error::Error for TlsError {}

impl TlsError {
    /// A short, stable name for counters and logs.
    pub fn label(&self) -> &'static str {
        use rustls::{CertificateError, Error, OtherError, PeerIncompatible};
        match self {
            Self::PeerAlert(_) => "peer_alert",
            Self::Exhausted => "key_exhausted",
            Self::Handshake(e) => match e {
                Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon) => "no_shared_cipher",
                Error::PeerIncompatible(PeerIncompatible::NoKxGroupsInCommon) => "no_shared_group",
                Error::PeerIncompatible(_) => "incompatible",
                Error::NoCertificatesPresented => "no_client_certificate",
                Error::InvalidCertificate(CertificateError::Revoked) => "certificate_revoked",
                Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
                    "certificate_expired"
                }
                Error::InvalidCertificate(
                    CertificateError::UnknownRevocationStatus
                    | CertificateError::ExpiredRevocationList
                    | CertificateError::ExpiredRevocationListContext { .. },
                ) => "revocation_unknown",
                Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
                    "client_name_not_allowed"
                }
                Error::InvalidCertificate(CertificateError::Other(OtherError(other)))
                    if other.downcast_ref::<transparency::Refused>().is_some() =>
                {
                    "not_transparent"
                }
                Error::InvalidCertificate(_) => "bad_certificate",
                Error::DecryptError => "bad_record_mac",
                Error::NoApplicationProtocol => "no_application_protocol",
                Error::Other(OtherError(other)) if other.downcast_ref::<NotSigned>().is_some() => "signing_failed",
                Error::General(_) => "no_certificate",
                _ => "bad_message",
            },
        }
    }
}

/// A certificate's SHA-256 fingerprint, by which logs name it.
pub fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, certificate).as_ref());
    out
}

/// What one call to [`Session::read`] came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Bytes of the input that are done with; the rest must be given again, with more behind it.
    pub consumed: usize,
    /// The peer has sent close_notify: nothing more will come.
    pub closed: bool,
}

/// How a handshake went, for counters, logs and headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The version.
    pub version: Version,
    /// The suite's name in the IANA registry.
    pub suite: &'static str,
    /// The session was resumed.
    pub resumed: bool,
    /// Of a server: the kind of the key that has signed a full handshake.
    pub key: Option<KeyKind>,
    /// The client was sent back for another key share.
    pub retried: bool,
}

/// What [`Session::client_for_syn`] has made.
#[derive(Debug)]
pub struct SynSession {
    /// The session.
    pub session: Session,
    /// Its hello offers less than the ordinary one: a server that needs the rest refuses it with an alert.
    pub trimmed: bool,
}

/// What has become of early data that a session with a server began with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyData {
    /// None was sent.
    #[default]
    None,
    /// It was sent, and the handshake is not over.
    Sent,
    /// The server has it.
    Accepted,
    /// The server has thrown it away: to the server, nothing was sent yet.
    Rejected,
}

enum Side {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// A TLS session without a socket.
pub struct Session {
    side: Side,
    /// A server's handshake is under way.
    accepts: bool,
    /// Of the client, where it has shown a certificate; kept until the handshake is over.
    authentication: Option<Authentication>,
    /// Of a server: the kind of the key whose certificate was chosen.
    key: Option<KeyKind>,
    early_skip: Option<Box<EarlySkip>>,
    /// Of a client.
    early_data: EarlyData,
}

/// Writes a record of the handshake; its length.
fn encode<Data>(record: &mut EncodeTlsData<'_, Data>, out: &mut Records) -> Result<usize, TlsError> {
    let written = match record.encode(out.room()) {
        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
            record.encode(out.unfilled(required_size))
        }
        other => other,
    };
    // `AlreadyEncoded` cannot be: each state is encoded once.
    let written = written.map_err(|_| TlsError::Exhausted)?;
    out.advance(written);
    Ok(written)
}

/// Writes a client's hello, and this early data behind it if the server may have it. Whether it may: a ticket can expire.
fn encode_early(connection: &mut UnbufferedClientConnection, data: &[u8], out: &mut Records) -> Result<bool, TlsError> {
    loop {
        let UnbufferedStatus { state, .. } = connection.process_tls_records(&mut []);
        match state.map_err(TlsError::Handshake)? {
            ConnectionState::EncodeTlsData(mut record) => {
                encode(&mut record, out)?;
            }
            ConnectionState::TransmitTlsData(mut records) => {
                let mut is_sent = false;
                if let Some(mut early) = records.may_encrypt_early_data() {
                    let written = early.encrypt(data, out.unfilled(data.len() + RECORD_OVERHEAD));
                    out.advance(written.map_err(|_| TlsError::Exhausted)?);
                    is_sent = true;
                }
                records.done();
                return Ok(is_sent);
            }
            _ => return Ok(false),
        }
    }
}

/// Whether this is the record by which a client ends early data that the server has accepted (RFC 8446 §4.5): rustls' unbuffered client
/// does not tell by other means. The record is encrypted, but nothing else that a client sends in a handshake has its length: a message
/// of 4 bytes, its type, and a tag of 16 bytes.
fn is_end_of_early_data(record: &[u8]) -> bool {
    const HEADER: [u8; RECORD_HEADER] = [23, 3, 3, 0, 4 + 1 + 16];
    record.len() == RECORD_HEADER + 4 + 1 + 16 && record.starts_with(&HEADER)
}

/// The alert for an error that rustls has none for (RFC 8446 §6.2).
fn description(error: &rustls::Error) -> u8 {
    use rustls::Error;
    match error {
        Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. }
        | Error::PeerMisbehaved(
            PeerMisbehaved::MessageInterleavedWithHandshakeMessage
            | PeerMisbehaved::KeyEpochWithPendingFragment
            | PeerMisbehaved::IllegalMiddleboxChangeCipherSpec
            | PeerMisbehaved::TooManyEmptyFragments,
        ) => 10, // unexpected_message
        Error::DecryptError => 20,            // bad_record_mac
        Error::PeerSentOversizedRecord => 22, // record_overflow
        Error::PeerIncompatible(_) => 40,     // handshake_failure
        Error::PeerMisbehaved(_) => 47,       // illegal_parameter
        Error::InvalidMessage(_) => 50,       // decode_error
        _ => 80,                              // internal_error
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.side {
            Side::Server(_) => "Session(server)",
            Side::Client(_) => "Session(client)",
        })
    }
}

impl Session {
    /// A session with a client. `early_offered`: its hello says that early data follow it.
    pub fn server(context: &ServerContext, early_offered: bool) -> Result<Self, TlsError> {
        let connection = UnbufferedServerConnection::new(context.config.clone()).map_err(TlsError::Handshake)?;
        let early_skip = early_offered.then(|| Box::new(EarlySkip::new()));
        Ok(Self { accepts: true, early_skip, ..Self::new(Side::Server(connection)) })
    }

    fn from_client(connection: UnbufferedClientConnection) -> Self {
        Self::new(Side::Client(connection))
    }

    fn new(side: Side) -> Self {
        let early_data = EarlyData::None;
        Self { side, accepts: false, authentication: None, key: None, early_skip: None, early_data }
    }

    /// A session with a server. The `ClientHello` is in `out` when this returns.
    pub fn client(context: &ClientContext, out: &mut Records) -> Result<Self, TlsError> {
        let name = context.server_name.clone();
        let connection = UnbufferedClientConnection::new(context.config.clone(), name).map_err(TlsError::Handshake)?;
        let mut session = Self::from_client(connection);
        session.read(&mut [], &mut Vec::new(), &mut Vec::new(), out)?;
        Ok(session)
    }

    /// A session with a server that begins with this early data (RFC 8446 §2.3): all of it, behind the `ClientHello` in `out`, or nothing
    /// ([`Self::early_data`]). Nothing is sent early without a ticket that allows as much, if the data needs more than one record, or
    /// if the context is not for that ([`ClientContext::for_early_data`]).
    pub fn client_early(context: &ClientContext, data: &[u8], out: &mut Records) -> Result<Self, TlsError> {
        let early = context.early.as_ref().filter(|early| data.len() <= MAX_FRAGMENT && early.has_room(data.len()));
        let Some(early) = early else { return Self::client(context, out) };
        let name = context.server_name.clone();
        let mut connection =
            UnbufferedClientConnection::new(early.config.clone(), name).map_err(TlsError::Handshake)?;
        let is_sent = encode_early(&mut connection, data, out)?;
        let early_data = if is_sent { EarlyData::Sent } else { EarlyData::None };
        Ok(Self { early_data, ..Self::from_client(connection) })
    }

    /// A session with a server whose `ClientHello` is to travel in a SYN: shorter than the ordinary one. `None` where the
    /// context is not for that ([`ClientContext::for_syn`]), or the shorter hello offers less than the ordinary one and
    /// must not (`whole`: the server has refused it).
    pub fn client_for_syn(
        context: &ClientContext,
        whole: bool,
        out: &mut Records,
    ) -> Result<Option<SynSession>, TlsError> {
        let Some(configs) = &context.syn else { return Ok(None) };
        let ticket = configs.sessions.as_ref().is_some_and(|s| syn::has_ticket(&**s, &context.server_name));
        let trimmed = configs.trimmed && !ticket;
        if trimmed && whole {
            return Ok(None);
        }
        let config = if ticket { &configs.with_ticket } else { &configs.alone };
        let make = || UnbufferedClientConnection::new(config.clone(), context.server_name.clone());
        let connection = syn::make(trimmed, make).map_err(TlsError::Handshake)?;
        let mut session = Self::from_client(connection);
        session.read(&mut [], &mut Vec::new(), &mut Vec::new(), out)?;
        Ok(Some(SynSession { session, trimmed }))
    }

    /// Takes ciphertext. Appends plaintext to `plain` and 0-RTT data to `early`, and what must be sent to `out`. After
    /// an error `out` may hold an alert; nothing else may be done with the session.
    #[inline]
    pub fn read(
        &mut self,
        input: &mut [u8],
        plain: &mut Vec<u8>,
        early: &mut Vec<u8>,
        out: &mut Records,
    ) -> Result<Read, TlsError> {
        if !self.accepts {
            return self.handle(input, plain, early, out);
        }
        let mut authentication = self.authentication.take();
        let result = authentication::during(&mut authentication, || self.read_handshake(input, plain, early, out));
        if self.common().handshake_kind().is_some_and(|kind| kind != HandshakeKind::Resumed) {
            authentication::forget_unused_ticket(&mut authentication);
        }
        self.authentication = authentication;
        self.key = server::chosen_key().or(self.key);
        self.accepts = self.common().is_handshaking();
        result
    }

    /// Takes a server's part of a handshake, without the early data that are not accepted.
    fn read_handshake(
        &mut self,
        input: &mut [u8],
        plain: &mut Vec<u8>,
        early: &mut Vec<u8>,
        out: &mut Records,
    ) -> Result<Read, TlsError> {
        // What rustls is done with, and how far it has seen.
        let (mut consumed, mut seen) = (0, 0);
        while let Some(mut skip) = self.early_skip.take() {
            match skip.next(&input[seen..]) {
                Step::Wait => {
                    self.early_skip = Some(skip);
                    return Ok(Read { consumed, closed: false });
                }
                Step::Pass(n) => {
                    seen += n;
                    let part = &mut input[consumed..seen];
                    let (read, skips) = skip.watch(|| {
                        let read = self.handle(part, plain, early, out);
                        (read, self.common().handshake_kind())
                    });
                    let read: Read = read?;
                    consumed += read.consumed;
                    if read.closed {
                        return Ok(Read { consumed, closed: true });
                    }
                    self.early_skip = skips.then_some(skip);
                }
                Step::Drop(n) => {
                    seen += n;
                    consumed = seen;
                    self.early_skip = Some(skip);
                }
                Step::Done => {}
            }
        }
        let read = self.handle(&mut input[consumed..], plain, early, out)?;
        Ok(Read { consumed: consumed + read.consumed, closed: read.closed })
    }

    /// Lets rustls take ciphertext.
    #[inline]
    fn handle(
        &mut self,
        input: &mut [u8],
        plain: &mut Vec<u8>,
        early: &mut Vec<u8>,
        out: &mut Records,
    ) -> Result<Read, TlsError> {
        let mut done = Read::default();
        let mut failure: Option<rustls::Error> = None;
        let (mut errors, mut before) = (0, 0);
        let mut ends_early_data = false;
        loop {
            let rest = &mut input[done.consumed..];
            // The two sides have the same states under different types; only a server reads early data.
            macro_rules! step {
                ($connection:expr $(, $traffic:ident => $early:expr)?) => {{
                    let UnbufferedStatus { mut discard, state, .. } = $connection.process_tls_records(rest);
                    let go_on = match state {
                        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                            while let Some(Ok(record)) = traffic.next_record() {
                                discard += record.discard;
                                plain.extend_from_slice(record.payload);
                            }
                            true
                        }
                        $(Ok(ConnectionState::ReadEarlyData(mut $traffic)) => $early,)?
                        Ok(ConnectionState::EncodeTlsData(mut data)) => {
                            let written = encode(&mut data, out)?;
                            ends_early_data |= is_end_of_early_data(&out.filled()[out.filled().len() - written..]);
                            true
                        }
                        Ok(ConnectionState::TransmitTlsData(data)) => {
                            data.done();
                            true
                        }
                        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                            done.closed = true;
                            false
                        }
                        Ok(_) => false, // WriteTraffic, BlockedHandshake
                        // rustls queues the alert before it returns the error, and gives it out on the next call. For some
                        // errors it has none; it then reads the same record again, and may have one for that.
                        Err(e) => {
                            if failure.is_none() {
                                failure = Some(e);
                                before = out.filled().len();
                            }
                            errors += 1;
                            errors < 3
                        }
                    };
                    (discard, go_on)
                }};
            }
            let errors_before = errors;
            let (discard, go_on) = match &mut self.side {
                Side::Server(c) => step!(c, traffic => {
                    while let Some(Ok(record)) = traffic.next_record() {
                        early.extend_from_slice(record.payload);
                    }
                    true
                }),
                Side::Client(c) => step!(c),
            };
            done.consumed = (done.consumed + discard).min(input.len());
            // One without any content decrypts again, as nothing of it changes in doing so: it must not.
            if errors > errors_before
                && let (Some(rustls::Error::PeerMisbehaved(PeerMisbehaved::IllegalTlsInnerPlaintext)), Some(byte)) =
                    (&failure, input.get_mut(done.consumed + RECORD_HEADER))
            {
                *byte ^= 1;
            }
            let alerted = failure.is_some() && out.filled().len() > before && !self.common().wants_write();
            if !go_on || alerted {
                break;
            }
        }
        if self.early_data == EarlyData::Sent && !self.is_handshaking() {
            self.early_data = if ends_early_data { EarlyData::Accepted } else { EarlyData::Rejected };
        }
        match failure {
            None => Ok(done),
            Some(rustls::Error::AlertReceived(alert)) => Err(TlsError::PeerAlert(alert)),
            Some(e) => {
                if out.filled().len() == before && self.sends_plaintext() {
                    out.extend(&fatal_alert(description(&e)));
                }
                Err(TlsError::Handshake(e))
            }
        }
    }

    /// Encrypts `plain` into `out`, and a close_notify behind it if `close`. Only once the handshake allows it: after it, or in a server's half-RTT.
    #[inline]
    pub fn write(&mut self, plain: &[u8], close: bool, out: &mut Records) -> Result<(), TlsError> {
        let room = plain.len() + (plain.len() / MAX_FRAGMENT + 2) * RECORD_OVERHEAD + 64;
        macro_rules! write {
            ($connection:expr) => {{
                let UnbufferedStatus { state, .. } = $connection.process_tls_records(&mut []);
                match state {
                    Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                        if !plain.is_empty() {
                            let n = match traffic.encrypt(plain, out.unfilled(room)) {
                                Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) => {
                                    traffic.encrypt(plain, out.unfilled(required_size))
                                }
                                other => other,
                            };
                            out.advance(n.map_err(|_| TlsError::Exhausted)?);
                        }
                        if close {
                            let n = traffic.queue_close_notify(out.unfilled(128)).map_err(|_| TlsError::Exhausted)?;
                            out.advance(n);
                        }
                        Ok(true)
                    }
                    // Once, after the peer's close_notify; writing is still allowed, on the next call.
                    Ok(ConnectionState::PeerClosed) => Ok(false),
                    Ok(_) => Err(TlsError::Exhausted),
                    Err(e) => Err(TlsError::Handshake(e)),
                }
            }};
        }
        loop {
            let written = match &mut self.side {
                Side::Server(c) => write!(c),
                Side::Client(c) => write!(c),
            }?;
            if written {
                return Ok(());
            }
        }
    }

    /// Nothing that was sent so far is encrypted, so that an alert of our own need not be, either.
    fn sends_plaintext(&self) -> bool {
        let common = self.common();
        match common.protocol_version() {
            None => true,
            Some(ProtocolVersion::TLSv1_2) => {
                common.is_handshaking() && common.handshake_kind() != Some(HandshakeKind::Resumed)
            }
            // It is known once the ServerHello is made.
            Some(_) => common.handshake_kind().is_none(),
        }
    }

    #[inline]
    fn common(&self) -> &CommonState {
        match &self.side {
            Side::Server(c) => c,
            Side::Client(c) => c,
        }
    }

    /// The handshake is not over yet (early data may still be exchanged).
    #[inline]
    pub fn is_handshaking(&self) -> bool {
        self.common().is_handshaking()
    }

    /// Of a server: the client was sent back for another key share, and its second hello has not come. Asked after the call of
    /// [`Self::read`] that took the first hello.
    pub fn awaits_second_hello(&self) -> bool {
        self.is_handshaking() && self.common().handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest)
    }

    /// Of a client: what has become of the early data that the session began with.
    pub fn early_data(&self) -> EarlyData {
        self.early_data
    }

    /// Of a client: whether the server has begun its part of the handshake.
    pub fn has_server_hello(&self) -> bool {
        self.common().protocol_version().is_some()
    }

    /// The protocol agreed on by ALPN.
    pub fn alpn(&self) -> Option<&[u8]> {
        self.common().alpn_protocol()
    }

    /// The peer's certificates, leaf first, if it has shown any (also in a resumed session).
    pub fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.common().peer_certificates()
    }

    /// How the handshake went; `None` before it is over.
    pub fn summary(&self) -> Option<Summary> {
        let common = self.common();
        let version = match common.protocol_version()? {
            ProtocolVersion::TLSv1_3 => Version::Tls13,
            _ => Version::Tls12,
        };
        let kind = common.handshake_kind()?;
        Some(Summary {
            version,
            suite: common.negotiated_cipher_suite()?.suite().as_str().unwrap_or("unknown"),
            resumed: kind == HandshakeKind::Resumed,
            key: self.key.filter(|_| kind != HandshakeKind::Resumed),
            retried: kind == HandshakeKind::FullWithHelloRetryRequest,
        })
    }
}
