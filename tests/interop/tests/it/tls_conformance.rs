//! TLS to the letter: the cases of tlsfuzzer's scripts that found something, as records made by hand. What rustls does
//! otherwise is in the table of `docs/reference/upstream-bugs.md`, and its cases here say what it does.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::{CipherSuite, ClientConfig, ConnectionTrafficSecrets, SupportedProtocolVersion};
use sealane_interop::backend::Backend;
use sealane_interop::client::{self, alert, tcp};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{eventually, h3};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

// RFC 8446 §6.2.
const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const HANDSHAKE_FAILURE: u8 = 40;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;
const INTERNAL_ERROR: u8 = 80;
const INAPPROPRIATE_FALLBACK: u8 = 86;
const NO_RENEGOTIATION: u8 = 100;
const MISSING_EXTENSION: u8 = 109;

const HANDSHAKE: u8 = 22;
const ALERT: u8 = 21;

const SUPPORTED_GROUPS: u16 = 10;
const SIGNATURE_ALGORITHMS: u16 = 13;
const PADDING: u16 = 21;
const SUPPORTED_VERSIONS: u16 = 43;
const KEY_SHARE: u16 = 51;
const RENEGOTIATION_INFO: u16 = 0xff01;

/// A ClientHello that TLS 1.3 can go on with: x25519, AES-128-GCM, ECDSA.
#[derive(Clone)]
struct Hello {
    legacy_version: [u8; 2],
    suites: Vec<u8>,
    extensions: Vec<(u16, Vec<u8>)>,
}

impl Hello {
    fn new() -> Self {
        let share = [&[0, 36, 0, 29, 0, 32][..], &[9; 32]].concat();
        let extensions = vec![
            (SUPPORTED_VERSIONS, vec![4, 3, 4, 3, 3]),
            (SUPPORTED_GROUPS, vec![0, 2, 0, 29]),
            (SIGNATURE_ALGORITHMS, vec![0, 4, 4, 3, 8, 4]),
            (KEY_SHARE, share),
        ];
        Self { legacy_version: [3, 3], suites: vec![0x13, 1, 0xc0, 0x2b], extensions }
    }

    fn without(mut self, kind: u16) -> Self {
        self.extensions.retain(|(k, _)| *k != kind);
        self
    }

    fn with(self, kind: u16, body: &[u8]) -> Self {
        let mut hello = self.without(kind);
        hello.extensions.push((kind, body.to_vec()));
        hello
    }

    fn message(&self) -> Vec<u8> {
        let mut extensions = Vec::new();
        for (kind, body) in &self.extensions {
            extensions.extend(kind.to_be_bytes());
            extensions.extend(u16::try_from(body.len()).expect("an extension is short").to_be_bytes());
            extensions.extend(body);
        }
        let mut body = self.legacy_version.to_vec();
        body.extend([7; 32]);
        body.push(0);
        body.extend(u16::try_from(self.suites.len()).expect("they are few").to_be_bytes());
        body.extend(&self.suites);
        body.extend([1, 0]);
        body.extend(u16::try_from(extensions.len()).expect("together they are, too").to_be_bytes());
        body.extend(extensions);
        let mut message = (body.len() as u32).to_be_bytes().to_vec();
        message[0] = 1;
        message.extend(body);
        message
    }

    fn records(&self, size: usize) -> Vec<u8> {
        records(&self.message(), size)
    }
}

fn records(message: &[u8], size: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[HANDSHAKE, 3, 1, (part.len() >> 8) as u8, part.len() as u8], part].concat();
    message.chunks(size).flat_map(record).collect()
}

fn sent(gateway: &Gateway, bytes: &[u8]) -> TcpStream {
    let mut stream = tcp(gateway.address);
    stream.write_all(bytes).expect("the gateway reads");
    stream
}

/// Whether a hello is taken: a ServerHello comes.
fn taken(gateway: &Gateway, bytes: &[u8]) -> bool {
    let mut first = [0; 6];
    let read = sent(gateway, bytes).read_exact(&mut first);
    read.is_ok() && (first[0], first[5]) == (HANDSHAKE, 2)
}

#[test]
fn hellos_that_must_be_refused() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    assert!(taken(&gateway, &Hello::new().records(5000)));
    let version = |high, low| Hello { legacy_version: [high, low], ..Hello::new() };
    let tls12 = |schemes: &[u8]| {
        Hello::new().without(SUPPORTED_VERSIONS).without(KEY_SHARE).with(SIGNATURE_ALGORITHMS, schemes)
    };
    assert!(taken(&gateway, &tls12(&[0, 4, 5, 3, 4, 3]).records(5000)));
    let cases = [
        ("legacy_version SSL 3", version(3, 0), PROTOCOL_VERSION),
        ("legacy_version 0", version(0, 0), PROTOCOL_VERSION),
        ("legacy_version TLS 1.1", version(3, 2), PROTOCOL_VERSION),
        ("legacy_version TLS 1.3", version(3, 4), PROTOCOL_VERSION),
        ("renegotiation_info", Hello::new().with(RENEGOTIATION_INFO, &[2, 1, 1]), HANDSHAKE_FAILURE),
        ("no key_share", Hello::new().without(KEY_SHARE), MISSING_EXTENSION),
        ("no supported_groups", Hello::new().without(SUPPORTED_GROUPS), MISSING_EXTENSION),
        ("no signature_algorithms", Hello::new().without(SIGNATURE_ALGORITHMS), MISSING_EXTENSION),
        ("only rsa_pkcs1", Hello::new().with(SIGNATURE_ALGORITHMS, &[0, 2, 4, 1]), HANDSHAKE_FAILURE),
        (
            "only ECDSA on P-384 and P-521",
            Hello::new().with(SIGNATURE_ALGORITHMS, &[0, 4, 5, 3, 6, 3]),
            HANDSHAKE_FAILURE,
        ),
        ("only RSA", Hello::new().with(SIGNATURE_ALGORITHMS, &[0, 2, 8, 4]), HANDSHAKE_FAILURE),
        ("only ECDSA with SHA-384, in TLS 1.2", tls12(&[0, 2, 5, 3]), HANDSHAKE_FAILURE),
        ("only RSA, in TLS 1.2", tls12(&[0, 4, 4, 1, 8, 4]), HANDSHAKE_FAILURE),
        ("no scheme in signature_algorithms", Hello::new().with(SIGNATURE_ALGORITHMS, &[0, 0, 4, 3]), DECODE_ERROR),
        ("half a scheme in signature_algorithms", tls12(&[0, 3, 4, 3, 4]), DECODE_ERROR),
        ("an empty key_share", Hello::new().with(KEY_SHARE, &[]), DECODE_ERROR),
        ("a short x25519 share", Hello::new().with(KEY_SHARE, &[0, 5, 0, 29, 0, 1, 9]), ILLEGAL_PARAMETER),
    ];
    for (what, hello, expected) in cases {
        // The alert is all that comes: no ServerHello before it.
        let said = Wire::new(sent(&gateway, &hello.records(5000))).rest().0;
        assert_eq!(said, [ALERT, 3, 3, 0, 2, 2, expected], "{what}");
    }
    // An empty renegotiation_info is what RFC 5746 asks for.
    assert!(taken(&gateway, &Hello::new().with(RENEGOTIATION_INFO, &[0]).records(5000)));
    assert!(gateway.failed_handshakes("incompatible") >= 6.0);
    assert_eq!(gateway.get("/").text(), "hello");
}

/// In TLS 1.3 a signature scheme of ECDSA has one curve (RFC 8446 §4.2.3): a client is refused if it cannot verify signatures on the
/// curve of the certificate's key, and only then.
#[test]
fn a_client_must_know_the_curve_of_the_key() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (p384, rsa) = (site.issue_p384("p384", &[HOST]), site.issue_rsa("rsa", &[HOST]));
    let of =
        |schemes: &[u8]| Hello::new().with(SIGNATURE_ALGORITHMS, &[&[0, schemes.len() as u8][..], schemes].concat());
    let refused = |gateway: &Gateway, schemes: &[u8]| {
        let said = Wire::new(sent(gateway, &of(schemes).records(5000))).rest().0;
        assert_eq!(said, [ALERT, 3, 3, 0, 2, 2, HANDSHAKE_FAILURE], "{schemes:?}");
    };
    let gateway = before(&site, [backend.url()]).identities(&[&p384]).start();
    assert!(taken(&gateway, &of(&[5, 3]).records(5000)));
    assert!(taken(&gateway, &of(&[4, 3, 5, 3]).records(5000)));
    refused(&gateway, &[4, 3]);
    refused(&gateway, &[6, 3, 4, 3, 8, 4]);
    assert_eq!(gateway.failed_handshakes("incompatible"), 2.0);
    assert_eq!(gateway.get("/").text(), "hello");
    // A certificate with another kind of key serves the clients that do not know the curve.
    let gateway = before(&site, [backend.url()]).identities(&[&p384, &rsa]).start();
    assert!(taken(&gateway, &of(&[6, 3, 4, 3, 8, 4]).records(5000)));
    refused(&gateway, &[4, 3]);
}

/// RFC 7507: a client that comes back with an older version, because somebody prevented the newer one, is told so.
#[test]
fn a_client_that_was_made_to_fall_back_hears_of_it() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let mut tls12 = Hello::new().without(SUPPORTED_VERSIONS).without(KEY_SHARE);
    assert!(taken(&gateway, &tls12.records(5000)));
    tls12.suites.extend([0x56, 0]);
    let said = Wire::new(sent(&gateway, &tls12.records(5000))).rest().0;
    assert_eq!(said, [ALERT, 3, 3, 0, 2, 2, INAPPROPRIATE_FALLBACK]);
    // Without supported_versions, this is TLS 1.2, too (RFC 8446 §4.2.1).
    let newer = Hello { legacy_version: [3, 4], ..tls12.clone() };
    let said = Wire::new(sent(&gateway, &newer.records(5000))).rest().0;
    assert_eq!(said, [ALERT, 3, 3, 0, 2, 2, INAPPROPRIATE_FALLBACK]);
    // TLS 1.3 is the newest there is.
    let mut tls13 = Hello::new();
    tls13.suites.extend([0x56, 0]);
    assert!(taken(&gateway, &tls13.records(5000)));
    let gateway = before(&site, [backend.url()]).tls("versions = [\"1.2\"]").start();
    assert!(taken(&gateway, &tls12.records(5000)));
}

/// A whole conversation with TLS 1.2 up to the client's key, whose share is empty.
#[test]
fn an_empty_share_in_tls_1_2_gets_an_alert() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let hello = Hello::new().without(SUPPORTED_VERSIONS).without(KEY_SHARE);
    for (share, expected) in
        [(&[0][..], [DECODE_ERROR, ILLEGAL_PARAMETER]), (&[1, 9], [ILLEGAL_PARAMETER, DECODE_ERROR])]
    {
        let mut stream = sent(&gateway, &hello.records(5000));
        let mut flight = Vec::new();
        // Up to ServerHelloDone.
        while !flight.ends_with(&[14, 0, 0, 0]) {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("the gateway sends its flight");
            flight.push(byte[0]);
        }
        let message = [&[16, 0, 0, share.len() as u8][..], share].concat();
        stream.write_all(&records(&message, 5000)).expect("the gateway reads");
        let said = alert(&mut stream);
        assert!(said.as_ref().is_ok_and(|said| expected.contains(said)), "{said:?}");
    }
    assert_eq!(gateway.get("/").text(), "hello");
}

#[test]
fn large_hellos_are_taken_and_larger_ones_are_not() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let padded = |n: usize| Hello::new().with(PADDING, &vec![0; n]);
    for (size, record) in [(17_000, 16_384), (40_000, 16_384), (65_000, 16_384), (40_000, 100)] {
        assert!(taken(&gateway, &padded(size).records(record)), "{size} in records of {record}");
    }
    // In pieces, so that it waits as a large one.
    let bytes = padded(60_000).records(16_384);
    let mut stream = sent(&gateway, &bytes[..30_000]);
    std::thread::sleep(std::time::Duration::from_millis(50));
    stream.write_all(&bytes[30_000..]).expect("the gateway reads");
    let mut first = [0; 6];
    stream.read_exact(&mut first).expect("it is answered");
    assert_eq!((first[0], first[5]), (HANDSHAKE, 2));
    // One that says that it is longer is refused before it has come.
    let mut long = padded(60_000).message();
    long[1] = 1;
    assert_eq!(alert(&mut sent(&gateway, &records(&long[..20], 20))), Ok(ILLEGAL_PARAMETER));
    // In records of a byte most of it would be headers.
    let mut stream = tcp(gateway.address);
    let _ = stream.write_all(&padded(60_000).records(1));
    assert_eq!(alert(&mut stream), Ok(ILLEGAL_PARAMETER));
    assert_eq!(gateway.failed_handshakes("oversize_hello"), 2.0);
    assert_eq!(gateway.get("/").text(), "hello");
}

#[test]
fn the_number_of_large_hellos_is_bounded() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let bytes = Hello::new().with(PADDING, &vec![0; 40_000]).records(16_384);
    // Each has sent half of one. Those that are too many are told so.
    let mut held: Vec<TcpStream> = (0..40).map(|_| sent(&gateway, &bytes[..20_000])).collect();
    assert!(eventually(|| gateway.failed_handshakes("too_many_large_hellos") == 8.0));
    let mut alerts = 0;
    for stream in &mut held {
        stream.set_nonblocking(true).expect("a socket can be told so");
        let mut record = [0; 7];
        if stream.read_exact(&mut record).is_ok() {
            assert_eq!(record, [ALERT, 3, 3, 0, 2, 2, INTERNAL_ERROR]);
            alerts += 1;
        }
    }
    assert_eq!(alerts, 8);
    // Ordinary ones are served beside them, and large ones again when they are gone.
    assert_eq!(gateway.get("/").text(), "hello");
    drop(held);
    assert!(eventually(|| taken(&gateway, &bytes)));
}

#[test]
fn large_hellos_over_quic() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).listener("http3 = true").start();
    let mut config = client::config_with(gateway.ca(), client::provider(), &[&rustls::version::TLS13]);
    config.alpn_protocols = (0..150u8).map(|n| vec![n; 200]).collect();
    let mut quic = (*h3::over_quic(&config, false)).clone();
    // Some 30 KB of protocols that nobody speaks, and the one that is spoken.
    quic.alpn_protocols = config.alpn_protocols.iter().cloned().chain([b"h3".to_vec()]).collect();
    assert_eq!(h3::Client::connect(gateway.address, &Arc::new(quic)).get("/").status, 200);
}

/// A connection whose records the test makes itself from here on, under AES-256-GCM.
struct Raw {
    socket: TcpStream,
    key: LessSafeKey,
    iv: Vec<u8>,
    sequence: u64,
    tls13: bool,
    /// What opens the gateway's records.
    their_key: LessSafeKey,
    their_iv: Vec<u8>,
    their_sequence: u64,
}

fn key_of(secrets: &ConnectionTrafficSecrets) -> (LessSafeKey, Vec<u8>) {
    let ConnectionTrafficSecrets::Aes256Gcm { key, iv } = secrets else { panic!("another suite was agreed on") };
    let key = UnboundKey::new(&AES_256_GCM, key.as_ref()).expect("a key of the right length");
    (LessSafeKey::new(key), iv.as_ref().to_vec())
}

impl Raw {
    fn connect(gateway: &Gateway, version: &'static SupportedProtocolVersion) -> Self {
        let mut provider = client::provider();
        let wanted = [CipherSuite::TLS13_AES_256_GCM_SHA384, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384];
        provider.cipher_suites.retain(|suite| wanted.contains(&suite.suite()));
        let mut config: ClientConfig = client::config_with(gateway.ca(), provider, &[version]);
        config.enable_secret_extraction = true;
        let mut wire = client::connect(gateway.address, &Arc::new(config));
        // A first exchange, so that its tickets are behind us.
        wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("it answers").text(), "hello");
        let (session, socket) = wire.stream.into_parts();
        let secrets = session.dangerous_extract_secrets().expect("it was allowed");
        let ((sequence, ours), (their_sequence, theirs)) = (secrets.tx, secrets.rx);
        let ((key, iv), (their_key, their_iv)) = (key_of(&ours), key_of(&theirs));
        let tls13 = version == &rustls::version::TLS13;
        Self { socket, key, iv, sequence, tls13, their_key, their_iv, their_sequence }
    }

    fn nonce(&self, iv: &[u8], sequence: u64) -> Nonce {
        let mut nonce = [0; 12];
        nonce.copy_from_slice(iv);
        for (place, byte) in nonce[4..].iter_mut().zip(sequence.to_be_bytes()) {
            *place ^= byte;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    fn record(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        if self.tls13 {
            return self.sealed([content, &[kind]].concat());
        }
        let sequence = self.sequence;
        self.sequence += 1;
        let nonce = self.nonce(&self.iv, sequence);
        let mut body = content.to_vec();
        // RFC 5288 §3: the nonce's second part is in the record. Ours is what rustls' would be.
        let explicit = nonce.as_ref()[4..].to_vec();
        let mut aad = sequence.to_be_bytes().to_vec();
        aad.extend([kind, 3, 3]);
        aad.extend((content.len() as u16).to_be_bytes());
        self.key.seal_in_place_append_tag(nonce, Aad::from(aad), &mut body).expect("it can be sealed");
        let len = ((body.len() + 8) as u16).to_be_bytes();
        [&[kind, 3, 3, len[0], len[1]][..], &explicit, &body].concat()
    }

    /// A record of TLS 1.3 with this TLSInnerPlaintext: the content, its type, zeros (RFC 8446 §5.2).
    fn sealed(&mut self, mut inner: Vec<u8>) -> Vec<u8> {
        let nonce = self.nonce(&self.iv, self.sequence);
        self.sequence += 1;
        let len = ((inner.len() + 16) as u16).to_be_bytes();
        let header = [23, 3, 3, len[0], len[1]];
        self.key.seal_in_place_append_tag(nonce, Aad::from(header), &mut inner).expect("it can be sealed");
        [&header[..], &inner].concat()
    }

    fn send(&mut self, kind: u8, content: &[u8]) {
        let record = self.record(kind, content);
        self.socket.write_all(&record).expect("the gateway reads");
    }

    /// The gateway's next record, opened: its type and content. `None` if it ends the connection.
    fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut header = [0; 5];
        self.socket.read_exact(&mut header).ok()?;
        let mut body = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
        self.socket.read_exact(&mut body).ok()?;
        let sequence = self.their_sequence;
        self.their_sequence += 1;
        if self.tls13 {
            let nonce = self.nonce(&self.their_iv, sequence);
            let plain = self.their_key.open_in_place(nonce, Aad::from(header), &mut body).expect("it decrypts");
            let end = plain.iter().rposition(|byte| *byte != 0).expect("a record has a type");
            return Some((plain[end], plain[..end].to_vec()));
        }
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&self.their_iv[..4]);
        nonce[4..].copy_from_slice(&body[..8]);
        let len = ((body.len() - 24) as u16).to_be_bytes();
        let aad = [&sequence.to_be_bytes()[..], &[header[0], 3, 3, len[0], len[1]]].concat();
        let nonce = Nonce::assume_unique_for_key(nonce);
        let plain = self.their_key.open_in_place(nonce, Aad::from(aad), &mut body[8..]).expect("it decrypts");
        Some((header[0], plain.to_vec()))
    }
}

#[test]
fn renegotiation_is_declined_at_once() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let mut raw = Raw::connect(&gateway, &rustls::version::TLS12);
    raw.send(HANDSHAKE, &Hello::new().without(SUPPORTED_VERSIONS).message());
    // A warning, without a request that would carry it along; the connection goes on.
    assert_eq!(raw.receive(), Some((ALERT, vec![1, NO_RENEGOTIATION])));
    raw.send(23, format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n").as_bytes());
    let (kind, answer) = raw.receive().expect("it goes on");
    assert!(kind == 23 && answer.starts_with(b"HTTP/1.1 200"), "{kind}: {}", String::from_utf8_lossy(&answer));
}

/// Whatever is wrong, the connection ends with a fatal alert. Which one is rustls' in an encrypted connection: the
/// table in `docs/reference/upstream-bugs.md` says where it is not the RFC's.
#[test]
fn encrypted_breaches_end_with_an_alert() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let key_update: &[u8] = &[24, 0, 0, 1, 0];
    type Records<'a> = Vec<(u8, &'a [u8])>;
    let cases: [(&str, Records); 4] = [
        ("application data inside a handshake message", vec![(HANDSHAKE, &key_update[..2]), (23, b"GET")]),
        ("a second hello in TLS 1.3", vec![(HANDSHAKE, &[1, 0, 0, 1, 0])]),
        ("a KeyUpdate that shares its record", vec![(HANDSHAKE, &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0])]),
        ("an unknown request in KeyUpdate", vec![(HANDSHAKE, &[24, 0, 0, 1, 7])]),
    ];
    for (what, records) in cases {
        let mut raw = Raw::connect(&gateway, &rustls::version::TLS13);
        for (kind, content) in records {
            raw.send(kind, content);
        }
        let said = raw.receive();
        let fatal = said.as_ref().is_some_and(|(kind, content)| *kind == ALERT && content.first() == Some(&2));
        assert!(fatal, "{what}: {said:02x?}");
    }
    // An ordinary update is followed by a request under the new keys in other tests; alone it is no breach.
    let mut raw = Raw::connect(&gateway, &rustls::version::TLS12);
    raw.send(HANDSHAKE, &[16, 0, 0, 1, 0]);
    assert_eq!(raw.receive(), Some((ALERT, vec![2, UNEXPECTED_MESSAGE])));
}

/// Lengths and padding of records, RFC 8446 §5.1, §5.2, §5.4; RFC 5246 §6.2. The table in `docs/reference/upstream-bugs.md` says where
/// the alert is not the RFC's.
#[test]
fn records_of_the_wrong_size_end_with_an_alert() {
    const MOST: usize = 1 << 14;
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let (new, old) = (&rustls::version::TLS13, &rustls::version::TLS12);
    let get = || format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nX: ");
    let long = |n: usize| [get().as_bytes(), &vec![b'x'; n - get().len()]].concat();
    let padded = |content: &[u8], zeros: usize| [content, &[23], &vec![0; zeros]].concat();
    type Make<'a> = &'a dyn Fn(&mut Raw) -> Vec<u8>;
    // The RFC's: unexpected_message for what is only padding, record_overflow for the others.
    let cases: [(&str, &'static SupportedProtocolVersion, Make, u8); 8] = [
        ("only padding", new, &|raw| raw.sealed(vec![0; 16]), BAD_RECORD_MAC),
        ("nothing at all", new, &|raw| raw.sealed(Vec::new()), BAD_RECORD_MAC),
        ("a content of 2^14 + 1", new, &|raw| raw.record(23, &long(MOST + 1)), RECORD_OVERFLOW),
        ("2^14 + 2 with the padding", new, &|raw| raw.sealed(padded(b"GET", MOST - 2)), RECORD_OVERFLOW),
        ("a ciphertext of 2^14 + 257", new, &|raw| raw.sealed(vec![b'x'; MOST + 241]), RECORD_OVERFLOW),
        ("a ciphertext of 2^14 + 2049", new, &|raw| raw.sealed(vec![b'x'; MOST + 2033]), DECODE_ERROR),
        ("a content of 2^14 + 1 in TLS 1.2", old, &|raw| raw.record(23, &long(MOST + 1)), RECORD_OVERFLOW),
        ("a ciphertext of 2^14 + 2049 in TLS 1.2", old, &|raw| raw.record(23, &long(MOST + 2025)), DECODE_ERROR),
    ];
    let mut got = Vec::new();
    for (what, version, make, _) in &cases {
        let mut raw = Raw::connect(&gateway, version);
        let record = make(&mut raw);
        let _ = raw.socket.write_all(&record);
        got.push((*what, raw.receive()));
    }
    let wanted: Vec<_> = cases.iter().map(|(what, _, _, alert)| (*what, Some((ALERT, vec![2, *alert])))).collect();
    assert_eq!(got, wanted);
    // The longest that there may be, and one that is mostly padding.
    let served = |record: &dyn Fn(&mut Raw) -> Vec<u8>| {
        let mut raw = Raw::connect(&gateway, new);
        let record = record(&mut raw);
        raw.socket.write_all(&record).expect("the gateway reads");
        let rest = raw.record(23, b"\r\nConnection: close\r\n\r\n");
        raw.socket.write_all(&rest).expect("the gateway reads");
        raw.receive().is_some_and(|(kind, answer)| kind == 23 && answer.starts_with(b"HTTP/1.1 200"))
    };
    assert!(served(&|raw| raw.record(23, &long(MOST))));
    assert!(served(&|raw| raw.sealed(padded(get().as_bytes(), MOST - get().len()))));
}
