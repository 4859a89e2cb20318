//! Messages of TLS 1.3 that come in parts, with something between the parts, and the update of keys. The records are made here, under
//! the secrets that the client's session tells. What rustls does otherwise than the RFC is in the table of
//! `docs/reference/upstream-bugs.md`.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA384, KeyType, Prk};
use rustls::{AlertDescription, CipherSuite, ClientConnection, Error, KeyLog};
use sealane_interop::backend::Backend;
use sealane_interop::client::{self, get, tcp};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::http::Wire;
use sealane_interop::noise;
use sealane_interop::site::{HOST, Site};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
/// RFC 8446 §4.6.3: an update that asks for none in return, and one that does.
const KEY_UPDATE: &[u8] = &[24, 0, 0, 1, 0];
const KEY_UPDATE_REQUESTED: &[u8] = &[24, 0, 0, 1, 1];
/// One without a share.
const CLIENT_KEY_EXCHANGE: &[u8] = &[16, 0, 0, 1, 0];

/// The secrets of a session, by their names in a key log.
#[derive(Debug, Default)]
struct Secrets(Mutex<HashMap<String, Vec<u8>>>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        self.0.lock().expect("nobody panics with it").insert(label.to_owned(), secret.to_vec());
    }
}

impl Secrets {
    fn direction(&self, label: &str) -> Direction {
        Direction::new(self.0.lock().expect("nobody panics with it")[label].clone())
    }
}

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label without a context (RFC 8446 §7.1).
fn expand(secret: &[u8], label: &str, length: usize) -> Vec<u8> {
    let label = [b"tls13 ", label.as_bytes()].concat();
    let info = [&[0, length as u8, label.len() as u8][..], &label, &[0]].concat();
    let mut out = vec![0; length];
    let prk = Prk::new_less_safe(HKDF_SHA384, secret);
    prk.expand(&[&info[..]], Length(length)).and_then(|okm| okm.fill(&mut out)).expect("it is short");
    out
}

/// What protects records in one direction, under TLS_AES_256_GCM_SHA384.
struct Direction {
    secret: Vec<u8>,
    key: LessSafeKey,
    iv: Vec<u8>,
    sequence: u64,
}

impl Direction {
    fn new(secret: Vec<u8>) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, &expand(&secret, "key", 32)).expect("a key of the right length");
        Self { key: LessSafeKey::new(key), iv: expand(&secret, "iv", 12), sequence: 0, secret }
    }

    /// Goes on with the next keys (RFC 8446 §7.2).
    fn update(&mut self) {
        *self = Self::new(expand(&self.secret, "traffic upd", 48));
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        nonce.copy_from_slice(&self.iv);
        for (place, byte) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *place ^= byte;
        }
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    fn seal(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        let mut inner = [content, &[kind]].concat();
        let length = ((inner.len() + 16) as u16).to_be_bytes();
        let header = [APPLICATION_DATA, 3, 3, length[0], length[1]];
        let nonce = self.nonce();
        self.key.seal_in_place_append_tag(nonce, Aad::from(header), &mut inner).expect("it can be sealed");
        [&header[..], &inner].concat()
    }

    /// The type and the content of a record.
    fn open(&mut self, record: &[u8]) -> (u8, Vec<u8>) {
        let (header, body) = record.split_at(5);
        let (header, mut body) = (<[u8; 5]>::try_from(header).expect("it was split there"), body.to_vec());
        let nonce = self.nonce();
        let plain = self.key.open_in_place(nonce, Aad::from(header), &mut body).expect("it decrypts");
        let end = plain.iter().rposition(|byte| *byte != 0).expect("a record has a type");
        (plain[end], plain[..end].to_vec())
    }
}

fn record(bytes: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut record = vec![0; 5];
    bytes.read_exact(&mut record)?;
    record.resize(5 + usize::from(u16::from_be_bytes([record[3], record[4]])), 0);
    bytes.read_exact(&mut record[5..])?;
    Ok(record)
}

/// A handshake of which only the client's Finished is not sent.
struct AtFinished {
    session: ClientConnection,
    socket: TcpStream,
    secrets: Arc<Secrets>,
    /// What protects the client's records of the handshake.
    ours: Direction,
    finished: Vec<u8>,
}

impl AtFinished {
    /// `early`: with early data, for which the client has a ticket of this gateway's.
    fn of(gateway: &Gateway, early: Option<&Gateway>) -> Self {
        let mut provider = client::provider();
        provider.cipher_suites.retain(|suite| suite.suite() == CipherSuite::TLS13_AES_256_GCM_SHA384);
        let mut config = client::config_with(gateway.ca(), provider, &[&rustls::version::TLS13]);
        let secrets = Arc::<Secrets>::default();
        config.key_log = secrets.clone();
        config.enable_early_data = early.is_some();
        let config = Arc::new(config);
        if let Some(before) = early {
            let mut wire = client::connect(before.address, &config);
            wire.send(get("/")).expect("the gateway reads");
            assert_eq!(wire.response("GET").expect("it answers").text(), "hello");
            let _ = wire.rest();
        }
        let (mut session, mut socket) = (client::session(&config, HOST), tcp(gateway.address));
        if early.is_some() {
            let mut early = session.early_data().expect("the ticket allows early data");
            early.write_all(b"GET").expect("the ticket allows as much");
        }
        let mut ours = Vec::new();
        while session.is_handshaking() {
            while session.wants_write() {
                session.write_tls(&mut socket).expect("the gateway reads");
            }
            assert!(session.read_tls(&mut socket).expect("the gateway answers") > 0, "it ends the connection");
            session.process_new_packets().expect("its flight is good");
        }
        while session.wants_write() {
            session.write_tls(&mut ours).expect("writing to memory works");
        }
        assert!(early.is_none() || !session.is_early_data_accepted());
        // There may be a ChangeCipherSpec before it.
        let mut all = &ours[..];
        let last = std::iter::from_fn(|| record(&mut all).ok()).last().expect("the client has finished");
        let (kind, finished) = secrets.direction("CLIENT_HANDSHAKE_TRAFFIC_SECRET").open(&last);
        assert_eq!((kind, finished[0]), (HANDSHAKE, 20), "{finished:02x?}");
        let ours = secrets.direction("CLIENT_HANDSHAKE_TRAFFIC_SECRET");
        Self { session, socket, secrets, ours, finished }
    }

    /// Sends a record of the handshake.
    fn send(&mut self, kind: u8, content: &[u8]) {
        let sealed = self.ours.seal(kind, content);
        // The gateway may have ended the connection already.
        let _ = self.socket.write_all(&sealed);
    }

    /// How the gateway ends the connection: with an alert, or without.
    fn end(mut self) -> Option<AlertDescription> {
        loop {
            match self.session.read_tls(&mut self.socket) {
                Ok(0) => return None,
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return None,
                Err(e) => panic!("the connection does not end: {e}"),
                Ok(_) => match self.session.process_new_packets() {
                    Ok(_) => {}
                    Err(Error::AlertReceived(alert)) => return Some(alert),
                    Err(e) => panic!("{e}"),
                },
            }
        }
    }
}

/// The parts of Finished, with something else between them. A handshake message there is taken for more of Finished, which then is
/// wrong; a record of another type is a breach (RFC 8446 §5.1).
#[test]
fn nothing_comes_between_the_parts_of_finished() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    for (what, between, expected) in [
        ("a KeyUpdate", (HANDSHAKE, KEY_UPDATE), AlertDescription::DecryptError),
        ("a ClientKeyExchange", (HANDSHAKE, CLIENT_KEY_EXCHANGE), AlertDescription::DecryptError),
        ("application data", (APPLICATION_DATA, &b"GET"[..]), AlertDescription::BadRecordMac),
    ] {
        let mut handshake = AtFinished::of(&gateway, None);
        let finished = handshake.finished.clone();
        handshake.send(HANDSHAKE, &finished[..10]);
        handshake.send(between.0, between.1);
        handshake.send(HANDSHAKE, &finished[10..]);
        assert_eq!(handshake.end(), Some(expected), "{what}");
    }
    // The same after the handshake, in a hello.
    let hello = [&[1, 0, 0, 20][..], &[0; 20]].concat();
    for (what, between) in [("a KeyUpdate", KEY_UPDATE), ("a ClientKeyExchange", CLIENT_KEY_EXCHANGE)] {
        let mut connection = AtFinished::of(&gateway, None);
        let finished = connection.finished.clone();
        connection.send(HANDSHAKE, &finished);
        connection.ours = connection.secrets.direction("CLIENT_TRAFFIC_SECRET_0");
        [&hello[..10], between, &hello[10..]].into_iter().for_each(|part| connection.send(HANDSHAKE, part));
        assert_eq!(connection.end(), Some(AlertDescription::DecodeError), "{what}");
    }
    // In parts with nothing between them it is a good one.
    let mut handshake = AtFinished::of(&gateway, None);
    let finished = handshake.finished.clone();
    finished.chunks(10).for_each(|part| handshake.send(HANDSHAKE, part));
    let mut ours = handshake.secrets.direction("CLIENT_TRAFFIC_SECRET_0");
    handshake.socket.write_all(&ours.seal(APPLICATION_DATA, &get("/"))).expect("the gateway reads");
    let mut wire = Wire::new(rustls::StreamOwned::new(handshake.session, handshake.socket));
    assert_eq!(wire.response("GET").expect("it answers").text(), "hello");
}

/// Early data that the gateway does not accept comes before Finished, and not between its parts.
#[test]
fn rejected_early_data_between_the_parts_of_finished_ends_the_connection() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let first = before(&site, [backend.url()]).tls("early_data = \"16KiB\"").start();
    let gateway = before(&site, [backend.url()]).tls("early_data = \"off\"").start();
    let garbage = [&[APPLICATION_DATA, 3, 3, 0, 64][..], &noise(64, 7)].concat();
    for at in [0, 10] {
        let mut handshake = AtFinished::of(&gateway, Some(&first));
        let finished = handshake.finished.clone();
        if at > 0 {
            handshake.send(HANDSHAKE, &finished[..at]);
        }
        handshake.socket.write_all(&garbage).expect("the gateway reads");
        handshake.send(HANDSHAKE, &finished[at..]);
        let mut ours = handshake.secrets.direction("CLIENT_TRAFFIC_SECRET_0");
        let _ = handshake.socket.write_all(&ours.seal(APPLICATION_DATA, &get("/after")));
        if at == 0 {
            let mut wire = Wire::new(rustls::StreamOwned::new(handshake.session, handshake.socket));
            assert_eq!(wire.response("GET").expect("it is skipped").text(), "hello");
        } else {
            assert_eq!(handshake.end(), None, "rustls has no alert for it");
        }
    }
    let after = backend.requests().iter().filter(|request| request.target() == "/after").count();
    assert_eq!(after, 1, "what follows the breach is not served");
    assert_eq!(gateway.get("/").text(), "hello");
}

/// A client that asks for new keys gets the gateway's KeyUpdate with the next response, and before its first byte (RFC 8446 §4.6.3).
/// rustls cannot send it alone.
#[test]
fn a_key_update_is_answered_before_the_next_response() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let mut handshake = AtFinished::of(&gateway, None);
    let finished = handshake.finished.clone();
    handshake.send(HANDSHAKE, &finished);
    let (mut socket, secrets) = (handshake.socket, handshake.secrets);
    let mut ours = secrets.direction("CLIENT_TRAFFIC_SECRET_0");
    let mut theirs = secrets.direction("SERVER_TRAFFIC_SECRET_0");
    let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    let mut reading = socket.try_clone().expect("a socket can be cloned");
    // The types of the messages that come before the response, and the response.
    let mut response = || {
        let (mut messages, mut text) = (Vec::new(), String::new());
        while !text.ends_with("\r\n\r\nhello") {
            match theirs.open(&record(&mut reading).expect("the gateway answers")) {
                (HANDSHAKE, content) => {
                    assert!(text.is_empty(), "it stands before the response");
                    messages.push(content[0]);
                    if content[0] == KEY_UPDATE[0] {
                        assert_eq!(content, KEY_UPDATE, "the gateway asks for no update");
                        theirs.update();
                    }
                }
                (kind, content) => {
                    assert_eq!(kind, APPLICATION_DATA, "{content:02x?}");
                    text.push_str(&String::from_utf8_lossy(&content));
                }
            }
        }
        messages
    };
    let mut send = |ours: &mut Direction, kind: u8, content: &[u8]| {
        socket.write_all(&ours.seal(kind, content)).expect("the gateway reads");
    };
    send(&mut ours, APPLICATION_DATA, request.as_bytes());
    let messages = response();
    // Only tickets.
    assert!(messages.iter().all(|kind| *kind == 4), "{messages:?}");
    for _ in 0..3 {
        send(&mut ours, HANDSHAKE, KEY_UPDATE_REQUESTED);
        ours.update();
        send(&mut ours, APPLICATION_DATA, request.as_bytes());
        assert_eq!(response(), [KEY_UPDATE[0]]);
    }
    // One that asks for none gets none.
    send(&mut ours, HANDSHAKE, KEY_UPDATE);
    ours.update();
    send(&mut ours, APPLICATION_DATA, request.as_bytes());
    assert_eq!(response(), Vec::<u8>::new());
}
