//! How long a client resumes without showing its certificate again: not beyond the certificate's end, nor that of an
//! intermediate, nor beyond `reauthenticate_after`, however often its tickets are replaced. And how long ticket keys live.

use crate::clock::Clock;
use crate::operating::{Operated, Other, order};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, HandshakeKind, SupportedProtocolVersion};
use sealane_interop::backend::Backend;
use sealane_interop::client::{self, get};
use sealane_interop::h3;
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Identity, Site};
use sealane_interop::{eventually, need, ports};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];
const MINUTE: i64 = 60;
const DAY: i64 = 86_400;
/// The first second of 2040.
const YEAR_2040: i64 = 2_208_988_800;

fn with(site: &Site, identity: &Identity, version: &'static SupportedProtocolVersion) -> ClientConfig {
    let (chain, key) = identity.load();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&site.ca).expect("PEM")).expect("a certificate");
    let builder = ClientConfig::builder_with_provider(client::provider().into());
    let builder = builder.with_protocol_versions(&[version]).expect("the provider knows it");
    builder.with_root_certificates(roots).with_client_auth_cert(chain, key).expect("they belong together")
}

/// A gateway that wants certificates, and whose clock the test sets.
fn gateway(site: &Site, clock: &Clock, backend: &Backend, rule: &str) -> (Operated, SocketAddr) {
    let listen = ports::free();
    let ca = site.ca.display();
    let file = |admin: &str| {
        let text = Operated::simple_file(site, admin, listen, &backend.url());
        let text =
            text.replace(&format!("address = \"{listen}\"\n"), &format!("address = \"{listen}\"\nhttp3 = true\n"));
        let rule = format!("client_auth = {{ mode = \"require\", ca = \"{ca}\"{rule} }}\n");
        text.replace("[[host]]", &format!("{rule}[[host]]"))
    };
    (Operated::start_by(site, clock.program(), 1, file, listen), listen)
}

/// What a client with a certificate gets: how the handshake went, or why it failed. Tickets that come are kept.
fn visit(address: SocketAddr, config: &Arc<ClientConfig>) -> Result<HandshakeKind, String> {
    let stream = client::handshake(client::tcp(address), config, HOST).map_err(|e| e.to_string())?;
    let kind = stream.conn.handshake_kind().ok_or("no handshake")?;
    let mut wire = Wire::new(stream);
    wire.send(get("/")).map_err(|e| e.to_string())?;
    let answer = wire.response("GET").map_err(|broken| broken.error.to_string())?;
    assert_eq!(answer.text(), "hello");
    Ok(kind)
}

fn resumed_over_quic(gateway: &Operated) -> f64 {
    gateway.gateway.metric_with("sealane_handshakes_total", "resumed").unwrap_or(0.0)
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs() as i64
}

#[test]
fn replaced_tickets_do_not_put_off_authentication() {
    let compiler = need!("cc");
    let site = Site::new();
    let clock = Clock::new(&site, &compiler);
    let backend = Backend::saying("hello");
    let (_gateway, address) = gateway(&site, &clock, &backend, ", reauthenticate_after = \"1h\"");
    let identity = site.issue("client", &["a.test"]);
    for version in VERSIONS {
        let config = Arc::new(with(&site, &identity, version));
        clock.set(0);
        assert_eq!(visit(address, &config), Ok(HandshakeKind::Full), "{version:?}");
        for minutes in [0, 20, 40, 55] {
            clock.set(minutes * MINUTE);
            assert_eq!(visit(address, &config), Ok(HandshakeKind::Resumed), "{version:?}, {minutes} minutes");
        }
        // Its newest ticket is six minutes old.
        clock.set(61 * MINUTE);
        assert_eq!(visit(address, &config), Ok(HandshakeKind::Full), "{version:?}");
        assert_eq!(visit(address, &config), Ok(HandshakeKind::Resumed), "{version:?}");
    }
}

/// Over QUIC sessions are kept apart from those over TCP.
#[test]
fn replaced_tickets_do_not_put_off_authentication_over_quic() {
    let compiler = need!("cc");
    let site = Site::new();
    let clock = Clock::new(&site, &compiler);
    let backend = Backend::saying("hello");
    let (gateway, address) = gateway(&site, &clock, &backend, ", reauthenticate_after = \"1h\"");
    let identity = site.issue("client", &["a.test"]);
    let config = h3::over_quic(&with(&site, &identity, &rustls::version::TLS13), false);
    let handshakes = || gateway.gateway.metric("sealane_handshakes_total").unwrap_or(0.0);
    // Whether a connection resumes a session. Its tickets have come when this returns.
    let resumes = || {
        let (before, resumed) = (handshakes(), resumed_over_quic(&gateway));
        let mut client = h3::Client::connect(address, &config);
        assert_eq!(client.get("/").status, 200);
        assert!(client.until(|client| client.quic.stats().frame_rx.handshake_done > 0));
        client.close();
        assert!(eventually(|| handshakes() == before + 1.0), "{}", gateway.gateway.metrics());
        resumed_over_quic(&gateway) > resumed
    };
    clock.set(0);
    assert!(!resumes());
    for minutes in [0, 20, 40, 55] {
        clock.set(minutes * MINUTE);
        assert!(resumes(), "{minutes} minutes");
    }
    // Its newest ticket is six minutes old.
    clock.set(61 * MINUTE);
    assert!(!resumes());
    assert!(resumes());
}

#[test]
fn an_expired_certificate_does_not_resume() {
    let compiler = need!("cc");
    let site = Site::new();
    let clock = Clock::new(&site, &compiler);
    let backend = Backend::saying("hello");
    let (_gateway, address) = gateway(&site, &clock, &backend, ", reauthenticate_after = \"30d\"");
    // Its own end, and that of the one that signed it.
    for (leaf, intermediate) in [(2040, 2060), (2060, 2040)] {
        let identity = site.issue_until(&format!("until-{leaf}"), &["a.test"], leaf, intermediate);
        for version in VERSIONS {
            let config = Arc::new(with(&site, &identity, version));
            let what = format!("{version:?}, {leaf} and {intermediate}");
            clock.set(YEAR_2040 - DAY - now());
            assert_eq!(visit(address, &config), Ok(HandshakeKind::Full), "{what}");
            assert_eq!(visit(address, &config), Ok(HandshakeKind::Resumed), "{what}");
            clock.set(YEAR_2040 + DAY - now());
            let error = visit(address, &config).expect_err("the certificate has expired");
            assert!(error.contains("CertificateExpired"), "{what}: {error}");
        }
    }
}

#[test]
fn an_expired_certificate_does_not_resume_over_quic() {
    let compiler = need!("cc");
    let site = Site::new();
    let clock = Clock::new(&site, &compiler);
    let backend = Backend::saying("hello");
    let (gateway, address) = gateway(&site, &clock, &backend, ", reauthenticate_after = \"30d\"");
    let identity = site.issue_until("quic", &["a.test"], 2060, 2040);
    let config = h3::over_quic(&with(&site, &identity, &rustls::version::TLS13), false);
    let answered = || h3::Client::connect(address, &config).get("/").status == 200;
    clock.set(YEAR_2040 - DAY - now());
    assert!(answered() && resumed_over_quic(&gateway) == 0.0);
    assert!(answered());
    assert!(eventually(|| resumed_over_quic(&gateway) == 1.0), "{}", gateway.gateway.metrics());
    clock.set(YEAR_2040 + DAY - now());
    let mut client = h3::Client::begin(address, &config);
    let id = client.open(&h3::headers("GET", "/", &[], sealane_http::BodyLength::None), true);
    assert!(client.response(id).is_err(), "the certificate has expired");
    assert_eq!(resumed_over_quic(&gateway), 1.0);
    assert!(eventually(|| gateway.gateway.failed_handshakes("certificate_expired") == 1.0));
}

/// The keys of tickets are replaced after `ticket_lifetime`, also where the program is upgraded more often.
#[test]
fn an_upgrade_does_not_put_off_the_replacement_of_keys() {
    let compiler = need!("cc");
    let site = Site::new();
    let clock = Clock::new(&site, &compiler);
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let file = |admin: &str| {
        format!("ticket_lifetime = \"600s\"\n{}", Operated::simple_file(&site, admin, listen, &backend.url()))
    };
    let mut gateway = Operated::start_by(&site, clock.program(), 1, file, listen);
    clock.pass(400);
    let mut others = Vec::new();
    order(&gateway.socket, "upgrade").expect("the same program can be started again");
    others.push(Other::of(&gateway));
    assert_eq!(gateway.gateway.server.wait().code(), Some(0));
    let rotations = || gateway.gateway.metric("sealane_key_rotations_total");
    assert_eq!(rotations(), Some(0.0));
    clock.pass(700);
    assert!(eventually(|| rotations() == Some(1.0)), "{:?}", rotations());
}
