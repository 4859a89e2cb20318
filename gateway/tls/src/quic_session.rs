//! One TLS session inside a QUIC connection.
//!
//! ```text
//! server: Hello ─► Running          client: Running
//!           └────► Foreign (another lane's ticket; nothing is ever said)
//! ```

use crate::authentication::{self, Authentication};
use crate::hello::{self, HelloError, LargeHello, SMALL_HELLO};
use crate::policy::{KeyKind, Version};
use crate::quic::{EarlyData, Handshake, QuicServer, accepted_client, moves_to, retry_tag};
use crate::quic_packets::{self, NextKeys};
use crate::server;
use crate::session::Summary;
use crate::sessions;
use quinn_proto::crypto::{self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::HandshakeKind;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::quic::{self, Connection, KeyChange, Secrets, Suite};
use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;

// RFC 9001 §5.8.
pub(crate) const RETRY_KEY: [u8; 16] =
    [0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8, 0x4e];
pub(crate) const RETRY_NONCE: [u8; 12] = [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];

// RFC 8446 §6.2.
const UNEXPECTED_MESSAGE: u8 = 10;
const INTERNAL_ERROR: u8 = 80;
const UNRECOGNIZED_NAME: u8 = 112;

enum State {
    /// The hello is being collected.
    Hello {
        server: Arc<QuicServer>,
        client: Option<IpAddr>,
        bytes: Vec<u8>,
        large: Option<LargeHello>,
        params: Vec<u8>,
    },
    /// The hello's ticket is another lane's.
    Foreign,
    Running(Box<Connection>),
}

pub(crate) struct QuicSession {
    state: State,
    initial: Suite,
    /// Given with the 1-RTT keys, until it is first asked what follows them.
    next_secrets: Option<Secrets>,
    next_keys: Option<Arc<NextKeys>>,
    told: bool,
    policy: usize,
    early_offered: bool,
    /// Of the client, where it has shown a certificate.
    authentication: Option<Authentication>,
    /// Of a server: the kind of the key whose certificate was chosen.
    key: Option<KeyKind>,
}

fn alert(description: u8, reason: &str) -> TransportError {
    TransportError { code: TransportErrorCode::crypto(description), frame: None, reason: reason.to_owned() }
}

fn encoded(params: &TransportParameters) -> Vec<u8> {
    let mut bytes = Vec::new();
    params.write(&mut bytes);
    bytes
}

impl QuicSession {
    fn with(state: State, initial: Suite) -> Self {
        Self {
            state,
            initial,
            next_secrets: None,
            next_keys: None,
            told: false,
            policy: 0,
            early_offered: false,
            authentication: None,
            key: None,
        }
    }

    pub fn server(server: Arc<QuicServer>, params: &TransportParameters, initial: Suite) -> Self {
        let client = accepted_client();
        let state = State::Hello { server, client, bytes: Vec::new(), large: None, params: encoded(params) };
        Self::with(state, initial)
    }

    /// The error is the name, where it is no server's.
    pub fn client(
        config: Arc<rustls::ClientConfig>,
        name: ServerName<'static>,
        params: &TransportParameters,
        initial: Suite,
    ) -> Result<Self, String> {
        let text = name.to_str().into_owned();
        let connection = quic::ClientConnection::new(config, quic::Version::V1, name, encoded(params));
        let state = State::Running(Box::new(Connection::Client(connection.map_err(|_| text)?)));
        Ok(Self::with(state, initial))
    }

    fn running(&self) -> Option<&Connection> {
        match &self.state {
            State::Running(connection) => Some(connection),
            _ => None,
        }
    }

    /// Collects the hello; once it is whole chooses the policy and starts rustls with it.
    fn read_hello(&mut self, buf: &[u8]) -> Result<(), TransportError> {
        let State::Hello { server, client, bytes, large, params } = &mut self.state else { return Ok(()) };
        bytes.extend_from_slice(buf);
        let hello = match hello::parse_message(bytes) {
            Ok(None) if bytes.len() <= SMALL_HELLO || large.is_some() => return Ok(()),
            Ok(None) => {
                *large = Some(LargeHello::acquire().ok_or_else(|| refused(HelloError::TooManyLarge))?);
                return Ok(());
            }
            Ok(Some(hello)) => hello,
            Err(e) => return Err(refused(e)),
        };
        let name = hello.name();
        self.policy = server.tls.policy_for(name.as_deref());
        self.early_offered = hello.early_data;
        let policy = &server.tls.policies[self.policy];
        let known = name.as_deref().map_or(&policy.identities.default[..], |n| policy.identities.find(n));
        if known.is_empty() {
            return Err(alert(UNRECOGNIZED_NAME, "no certificate for this name"));
        }
        hello.check(&[Version::Tls13], &policy.identities, known).map_err(refused)?;
        if let (true, Some(id)) = (policy.early_data() > 0, hello.psk_identity)
            && let Some(owner) = sessions::place(&policy.id, id).elsewhere()
            && moves_to(owner)
        {
            self.state = State::Foreign;
            return Ok(());
        }
        let config = server.config(self.policy, *client).ok_or_else(|| alert(INTERNAL_ERROR, "no configuration"))?;
        let connection = quic::ServerConnection::new(config, quic::Version::V1, std::mem::take(params));
        let connection = connection.map_err(|_| alert(INTERNAL_ERROR, "no session"))?;
        let bytes = std::mem::take(bytes);
        self.state = State::Running(Box::new(Connection::Server(connection)));
        self.read(&bytes)
    }

    /// Lets rustls take a part of the handshake.
    fn read(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        let State::Running(connection) = &mut self.state else { return Ok(()) };
        let result = authentication::during(&mut self.authentication, || connection.read_hs(bytes));
        self.key = server::chosen_key().or(self.key);
        if connection.handshake_kind().is_some_and(|kind| kind != HandshakeKind::Resumed) {
            authentication::forget_unused_ticket(&mut self.authentication);
        }
        result.map_err(|e| failed(connection, &e))
    }
}

fn refused(error: HelloError) -> TransportError {
    // Each error of a message without records has an alert.
    alert(error.alert().map_or(UNEXPECTED_MESSAGE, |record| record[6]), "the hello is refused")
}

fn failed(connection: &mut Connection, e: &rustls::Error) -> TransportError {
    match connection.alert() {
        Some(description) => alert(description.into(), &e.to_string()),
        None => {
            TransportError { code: TransportErrorCode::PROTOCOL_VIOLATION, frame: None, reason: format!("TLS: {e}") }
        }
    }
}

fn summary(connection: &Connection, key: Option<KeyKind>) -> Option<Summary> {
    if connection.is_handshaking() {
        return None;
    }
    let kind = connection.handshake_kind()?;
    Some(Summary {
        version: Version::Tls13,
        suite: connection.negotiated_cipher_suite()?.suite().as_str().unwrap_or("unknown"),
        resumed: kind == HandshakeKind::Resumed,
        key: key.filter(|_| kind != HandshakeKind::Resumed),
        retried: kind == HandshakeKind::FullWithHelloRetryRequest,
    })
}

impl crypto::Session for QuicSession {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        quic_packets::initial_keys(&self.initial, dst_cid, side)
    }

    /// A [`Handshake`].
    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let connection = self.running()?;
        let early_data = match (self.early_offered, connection) {
            (true, Connection::Server(session)) if session.zero_rtt_keys().is_some() => EarlyData::Accepted,
            (true, _) => EarlyData::Rejected,
            (false, _) => EarlyData::None,
        };
        let (policy, next_keys) = (self.policy, self.next_keys.clone());
        Some(Box::new(Handshake { policy, early_data, summary: summary(connection, self.key), next_keys }))
    }

    /// The certificates, `Vec<CertificateDer>`, leaf first.
    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        let certificates: Vec<CertificateDer<'static>> =
            self.running()?.peer_certificates()?.iter().map(|c| c.clone().into_owned()).collect();
        Some(Box::new(certificates))
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let keys = self.running()?.zero_rtt_keys()?;
        Some((Box::new(keys.header), quic_packets::packet_key(keys.packet)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        match self.running()? {
            Connection::Client(session) => Some(session.is_early_data_accepted()),
            Connection::Server(_) => None,
        }
    }

    fn is_handshaking(&self) -> bool {
        self.running().is_none_or(|c| c.is_handshaking())
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        match &mut self.state {
            State::Hello { .. } => self.read_hello(buf)?,
            State::Foreign => {}
            State::Running(_) => self.read(buf)?,
        }
        let ready = self.running().is_some_and(|c| c.alpn_protocol().is_some() || !c.is_handshaking());
        Ok(ready && !std::mem::replace(&mut self.told, true))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(connection) = self.running() else { return Ok(None) };
        let side = match connection {
            Connection::Client(_) => Side::Client,
            Connection::Server(_) => Side::Server,
        };
        match connection.quic_transport_parameters() {
            None => Ok(None),
            Some(mut bytes) => Ok(Some(TransportParameters::read(side, &mut bytes)?)),
        }
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let State::Running(connection) = &mut self.state else { return None };
        Some(quic_packets::keys(match connection.write_hs(buf)? {
            KeyChange::Handshake { keys } => keys,
            KeyChange::OneRtt { keys, next } => {
                self.next_secrets = Some(next);
                keys
            }
        }))
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let secrets = match self.next_secrets.take() {
            Some(first) => first,
            None => self.next_keys.as_ref()?.following(),
        };
        Some(self.next_keys.insert(NextKeys::new(secrets)).pair())
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        let Some(at) = payload.len().checked_sub(16) else { return false };
        let (rest, tag) = payload.split_at(at);
        aws_lc_rs::constant_time::verify_slices_are_equal(&retry_tag(orig_dst_cid, &[header, rest]), tag).is_ok()
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        let connection = self.running().ok_or(ExportKeyingMaterialError)?;
        match connection.export_keying_material(output, label, Some(context)) {
            Ok(_) => Ok(()),
            Err(_) => Err(ExportKeyingMaterialError),
        }
    }
}
