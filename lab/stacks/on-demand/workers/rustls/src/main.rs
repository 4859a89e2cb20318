//! The worker for rustls, with aws-lc-rs or with ring.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

#[cfg(feature = "aws-lc")]
use rustls::crypto::aws_lc_rs as backend;
#[cfg(all(feature = "ring", not(feature = "aws-lc")))]
use rustls::crypto::ring as backend;

use rustls::client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use rustls::server::ResolvesServerCert;
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, NamedGroup, RootCertStore, ServerConfig, ServerConnection,
    SupportedProtocolVersion,
};
use stack_worker::{
    Connection, Context, Facts, Group, OldSuite, Outcome, Pipe, Settings, Sides, Stack, connect, exchange,
    hello_asks_for, pipe,
};

fn main() -> ExitCode {
    stack_worker::main::<Rustls>()
}

struct Rustls;

impl Stack for Rustls {
    type Context = Config;

    fn load(_: Option<&Path>) -> Result<Self, String> {
        Ok(Self)
    }

    fn version(&self) -> String {
        let crypto = if cfg!(feature = "aws-lc") { "aws-lc-rs" } else { "ring" };
        format!("rustls 0.23 with {crypto}")
    }

    fn server(&self, settings: &Settings) -> Result<Config, String> {
        Ok(Config::Server(Arc::new(server(settings)?)))
    }

    fn client(&self, settings: &Settings) -> Result<Config, String> {
        Ok(Config::Client(Arc::new(client(settings)?)))
    }

    fn feature(&self, name: &str, settings: &Settings) -> Outcome {
        match name {
            "sni" => Outcome::of(sni(settings)),
            "alpn" => Outcome::of(alpn(settings)),
            "ocsp" => Outcome::of(ocsp(settings)),
            "crl" => Outcome::of(crl(settings)),
            "early-data" => Outcome::of(early_data(settings)),
            "quic" => Outcome::of(quic(settings)),
            "fips" => Outcome::of(fips(settings)),
            "ct" => Outcome::of(transparency(settings)),
            _ => Outcome::Unknown,
        }
    }

    fn with_suite(&self, suite: &OldSuite, _: &Settings) -> Option<Result<Sides<Self>, String>> {
        let has = backend::ALL_CIPHER_SUITES.iter().any(|s| u16::from(s.suite()) == suite.id);
        (!has).then(|| Err("not among its suites".to_owned()))
    }
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn provider(settings: &Settings) -> Result<Arc<CryptoProvider>, String> {
    let mut provider = backend::default_provider();
    let cipher = settings.cipher.id(settings.tls, settings.key);
    provider.cipher_suites.retain(|suite| u16::from(suite.suite()) == cipher);
    let mut groups: Vec<&'static dyn SupportedKxGroup> = vec![backend::kx_group::X25519, backend::kx_group::SECP256R1];
    match settings.group {
        Group::X25519 => {}
        Group::P256 => groups.reverse(),
        #[cfg(feature = "aws-lc")]
        Group::X25519MlKem768 => groups.insert(0, backend::kx_group::X25519MLKEM768),
        #[cfg(not(feature = "aws-lc"))]
        Group::X25519MlKem768 => return Err("ring has no X25519MLKEM768".into()),
    }
    provider.kx_groups = groups;
    Ok(Arc::new(provider))
}

fn versions(settings: &Settings) -> Result<&'static [&'static SupportedProtocolVersion], String> {
    static TLS13: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS13];
    static TLS12: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS12];
    match settings.tls {
        0x304 => Ok(&TLS13),
        0x303 => Ok(&TLS12),
        _ => Err(format!("rustls has no TLS {}", settings.tls_name())),
    }
}

fn server(settings: &Settings) -> Result<ServerConfig, String> {
    let (chain, key) = identity(settings)?;
    let mut config = ServerConfig::builder_with_provider(provider(settings)?)
        .with_protocol_versions(versions(settings)?)
        .map_err(text)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(text)?;
    config.ticketer = backend::Ticketer::new().map_err(text)?;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = settings.tickets as usize;
    Ok(config)
}

fn identity(settings: &Settings) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    let chain = CertificateDer::pem_slice_iter(&settings.read("crt")?).collect::<Result<_, _>>().map_err(text)?;
    Ok((chain, PrivateKeyDer::from_pem_slice(&settings.read("key")?).map_err(text)?))
}

fn roots(settings: &Settings) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(&settings.read("ca")?) {
        roots.add(authority.map_err(text)?).map_err(text)?;
    }
    Ok(roots)
}

fn client(settings: &Settings) -> Result<ClientConfig, String> {
    let mut config = ClientConfig::builder_with_provider(provider(settings)?)
        .with_protocol_versions(versions(settings)?)
        .map_err(text)?
        .with_root_certificates(roots(settings)?)
        .with_no_client_auth();
    config.resumption =
        if settings.resumed { Resumption::store(Arc::new(Tickets::default())) } else { Resumption::disabled() };
    Ok(config)
}

/// Tickets of a context that threads share. Each thread has a server of its own, with its own ticket keys, so each
/// resumes from its own tickets; rustls' own cache would mix them, and keeps eight where one serves once.
#[derive(Debug, Default)]
struct Tickets(Mutex<HashMap<ThreadId, Kept>>);

#[derive(Debug, Default)]
struct Kept {
    tls12: Option<Tls12ClientSessionValue>,
    tls13: VecDeque<Tls13ClientSessionValue>,
    group: Option<NamedGroup>,
}

const MOST_TICKETS: usize = 8;

impl Tickets {
    fn own<T>(&self, f: impl FnOnce(&mut Kept) -> T) -> Option<T> {
        Some(f(self.0.lock().ok()?.entry(std::thread::current().id()).or_default()))
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.own(|kept| kept.group = Some(group));
    }
    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.own(|kept| kept.group)?
    }
    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.own(|kept| kept.tls12.get_or_insert(value).clone());
    }
    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.own(|kept| kept.tls12.clone())?
    }
    fn remove_tls12_session(&self, _: &ServerName<'static>) {}
    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.own(|kept| {
            if kept.tls13.len() == MOST_TICKETS {
                kept.tls13.pop_front();
            }
            kept.tls13.push_back(value);
        });
    }
    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.own(|kept| kept.tls13.pop_back())?
    }
}

enum Config {
    Server(Arc<ServerConfig>),
    Client(Arc<ClientConfig>),
}

impl Context for Config {
    type Connection = Tls;
    // Tickets are the client's configuration's.
    type Session = ();

    fn open(&self, pipe: Pipe, _: Option<&()>) -> Result<Tls, String> {
        let tls = match self {
            Config::Server(config) => ServerConnection::new(config.clone()).map_err(text)?.into(),
            Config::Client(config) => {
                let name = ServerName::try_from("localhost").map_err(text)?;
                ClientConnection::new(config.clone(), name).map_err(text)?.into()
            }
        };
        Ok(Tls { tls, pipe })
    }
}

struct Tls {
    tls: rustls::Connection,
    pipe: Pipe,
}

impl Tls {
    fn receive(&mut self) -> Result<(), String> {
        while self.pipe.pending() > 0 && self.tls.wants_read() {
            self.tls.read_tls(&mut self.pipe).map_err(text)?;
            if let Err(why) = self.tls.process_new_packets() {
                let _ = self.send();
                return Err(text(why));
            }
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), String> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.pipe).map_err(text)?;
        }
        Ok(())
    }
}

impl Connection for Tls {
    type Session = ();

    fn handshake(&mut self) -> Result<bool, String> {
        self.send()?;
        self.receive()?;
        self.send()?;
        Ok(!self.tls.is_handshaking())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.tls.writer().write_all(bytes).map_err(text)?;
        self.send()
    }

    fn read(&mut self, into: &mut [u8]) -> Result<usize, String> {
        for last in [false, true] {
            match self.tls.reader().read(into) {
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == ErrorKind::WouldBlock && last => return Ok(0),
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.receive()?,
                Err(e) => return Err(text(e)),
            }
        }
        Ok(0)
    }

    fn facts(&self) -> Facts {
        let (client, tickets) = match &self.tls {
            rustls::Connection::Client(c) => (true, c.tls13_tickets_received()),
            rustls::Connection::Server(_) => (false, 0),
        };
        Facts {
            resumed: u32::from(self.tls.handshake_kind() == Some(HandshakeKind::Resumed)),
            // With this verifier there is no other way to a finished handshake.
            verified: u32::from(client && self.tls.peer_certificates().is_some()),
            tls: self.tls.protocol_version().map_or(0, |v| u32::from(u16::from(v))),
            cipher: self.tls.negotiated_cipher_suite().map_or(0, |s| u32::from(u16::from(s.suite()))),
            group: self.tls.negotiated_key_exchange_group().map_or(0, |g| u32::from(u16::from(g.name()))),
            tickets,
        }
    }

    fn session(&mut self) -> Option<()> {
        Some(())
    }
}

fn pair(server: ServerConfig, client: ClientConfig) -> Result<(Tls, Tls), String> {
    let (server, client) = (Config::Server(Arc::new(server)), Config::Client(Arc::new(client)));
    let mut pair = connect(&server, &client, None, None)?;
    exchange(&mut pair, None)?;
    Ok((pair.server, pair.client))
}

/// Gives the certificate only to those who ask for the right name.
#[derive(Debug)]
struct ByName(Arc<CertifiedKey>);

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        (hello.server_name() == Some("localhost")).then(|| self.0.clone())
    }
}

fn certified(settings: &Settings) -> Result<CertifiedKey, String> {
    let (chain, key) = identity(settings)?;
    CertifiedKey::from_der(chain, key, &*provider(settings)?).map_err(text)
}

fn sni(settings: &Settings) -> Result<&'static str, String> {
    let mut server = server(settings)?;
    server.cert_resolver = Arc::new(ByName(Arc::new(certified(settings)?)));
    pair(server, client(settings)?).map(|_| "the server saw the name")
}

fn alpn(settings: &Settings) -> Result<&'static str, String> {
    let (mut server, mut client) = (server(settings)?, client(settings)?);
    server.alpn_protocols = vec![b"h2".to_vec()];
    client.alpn_protocols = vec![b"h2".to_vec()];
    let (_, client) = pair(server, client)?;
    if client.tls.alpn_protocol() == Some(b"h2") { Ok("h2 was agreed on") } else { Err("nothing agreed on".into()) }
}

/// Stands at the normal verifier's place and looks whether a staple came.
#[derive(Debug)]
struct SeesStaple(Arc<dyn rustls::client::danger::ServerCertVerifier>, std::sync::atomic::AtomicBool);

impl rustls::client::danger::ServerCertVerifier for SeesStaple {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        self.1.store(ocsp == b"\x30\x03\x0a\x01\x00", std::sync::atomic::Ordering::Relaxed);
        self.0.verify_server_cert(end, between, name, ocsp, now)
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, signed)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, signed)
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

fn ocsp(settings: &Settings) -> Result<&'static str, String> {
    let mut server = server(settings)?;
    let mut key = certified(settings)?;
    key.ocsp = Some(b"\x30\x03\x0a\x01\x00".to_vec());
    server.cert_resolver = Arc::new(ByName(Arc::new(key)));
    let mut client = client(settings)?;
    let normal =
        rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots(settings)?), provider(settings)?)
            .build()
            .map_err(text)?;
    let sees = Arc::new(SeesStaple(normal, false.into()));
    client.dangerous().set_certificate_verifier(sees.clone());
    pair(server, client)?;
    if sees.1.load(std::sync::atomic::Ordering::Relaxed) {
        Ok("the client got the staple")
    } else {
        Err("the client got no staple".into())
    }
}

fn crl(settings: &Settings) -> Result<&'static str, String> {
    let list = CertificateRevocationListDer::from_pem_slice(&settings.read("crl")?).map_err(text)?;
    let mut client = client(settings)?;
    let verifier =
        rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots(settings)?), provider(settings)?)
            .with_crls([list])
            .only_check_end_entity_revocation()
            .build()
            .map_err(text)?;
    client.dangerous().set_certificate_verifier(verifier);
    match pair(server(settings)?, client) {
        Err(why) if why.contains("Revoked") => Ok("a revoked certificate was refused"),
        Err(why) => Err(format!("refused, but not as revoked: {why}")),
        Ok(_) => Err("a revoked certificate was accepted".into()),
    }
}

fn early_data(settings: &Settings) -> Result<&'static str, String> {
    let settings = Settings { tls: 0x304, resumed: true, ..settings.clone() };
    let (mut server, mut client) = (server(&settings)?, client(&settings)?);
    server.max_early_data_size = 1024;
    // rustls takes early data only with sessions that the server keeps.
    server.ticketer = Arc::new(NoTickets);
    server.session_storage = rustls::server::ServerSessionMemoryCache::new(16);
    client.enable_early_data = true;
    let (server, client) = (Config::Server(Arc::new(server)), Config::Client(Arc::new(client)));
    let mut first = connect(&server, &client, None, None)?;
    exchange(&mut first, None)?;
    let (c, s) = pipe();
    let (mut c, mut s) = (client.open(c, None)?, server.open(s, None)?);
    let rustls::Connection::Client(tls) = &mut c.tls else { return Err("not a client".into()) };
    tls.early_data().ok_or("the client may send none")?.write_all(b"early").map_err(text)?;
    c.handshake()?;
    s.handshake()?;
    let mut got = [0; 5];
    let rustls::Connection::Server(tls) = &mut s.tls else { return Err("not a server".into()) };
    let n = tls.early_data().ok_or("not accepted")?.read(&mut got).map_err(text)?;
    if &got[..n] == b"early" { Ok("early data arrived") } else { Err("it did not arrive".into()) }
}

#[derive(Debug)]
struct NoTickets;

impl rustls::server::ProducesTickets for NoTickets {
    fn enabled(&self) -> bool {
        false
    }
    fn lifetime(&self) -> u32 {
        0
    }
    fn encrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
    fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

fn quic(settings: &Settings) -> Result<&'static str, String> {
    let settings = Settings { tls: 0x304, ..settings.clone() };
    let config = Arc::new(client(&settings)?);
    let name = ServerName::try_from("localhost").map_err(text)?;
    let mut hello = Vec::new();
    let mut quic =
        rustls::quic::ClientConnection::new(config, rustls::quic::Version::V1, name, Vec::new()).map_err(text)?;
    quic.write_hs(&mut hello);
    if hello.is_empty() { Err("no hello".into()) } else { Ok("its own interface (rustls::quic)") }
}

/// It has no call for it; its hello says whether it asks for time stamps by itself (RFC 6962 §3.3.1).
fn transparency(settings: &Settings) -> Result<String, String> {
    let client = Config::Client(Arc::new(client(settings)?));
    let (ours, theirs) = pipe();
    client.open(ours, None)?.handshake()?;
    hello_asks_for(&theirs, 18, "time stamps")
}

fn fips(settings: &Settings) -> Result<&'static str, String> {
    if provider(settings)?.fips() {
        Ok("the provider says so")
    } else if cfg!(feature = "aws-lc") {
        Err("not in this build; with rustls' feature fips, it uses AWS-LC-FIPS".into())
    } else {
        Err("ring is not validated".into())
    }
}
