//! Certificates that are good no more: a stapled OCSP response says how ours stands, revocation lists say it of
//! clients' and upstreams'. All come from files, which a reload reads again.

use crate::operating::{Operated, order};
use sealane_http::BodyLength;
use sealane_interop::backend::{self, Backend, ok};
use sealane_interop::client::get;
use sealane_interop::frames::{END_HEADERS, END_STREAM, Frames, block, kind};
use sealane_interop::gateway::before;
use sealane_interop::http::Wire;
use sealane_interop::peers::s_client;
use sealane_interop::process;
use sealane_interop::site::{HOST, Identity, Site};
use sealane_interop::{client, eventually, h3, need, ports};
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// OpenSSL as the authority's responder: an answer about this certificate, in a file.
fn respond(site: &Site, openssl: &Path, identity: &Identity, serial: u64, revoked: bool, into: &Path) {
    // ca(1): state, end, time of revocation, serial number, file, subject; between tabs.
    let (state, since) = if revoked { ("R", "200101000000Z") } else { ("V", "") };
    let index = site.file("index.txt", format!("{state}\t491231235959Z\t{since}\t{serial:04X}\tunknown\t/CN=it\n"));
    let mut command = Command::new(openssl);
    command.args(["ocsp", "-ndays", "7", "-index"]).arg(index);
    command.arg("-CA").arg(&site.ca).arg("-rsigner").arg(&site.ca).arg("-rkey").arg(&site.ca_key);
    command.arg("-issuer").arg(&site.ca).arg("-cert").arg(&identity.cert).arg("-respout").arg(into);
    let said = process::run(&mut command, b"");
    assert!(into.exists(), "{}", String::from_utf8_lossy(&said.stderr));
}

#[test]
fn an_ocsp_response_is_stapled_and_renewed_by_a_reload() {
    let openssl = need!("openssl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let identity = site.issue_numbered("stapled", &[HOST], 0x1234);
    let response = site.path().join("stapled.ocsp");
    respond(&site, &openssl, &identity, 0x1234, false, &response);
    let file = |admin: &str| {
        let text = Operated::simple_file(&site, admin, listen, &backend.url());
        let (cert, key) = (site.ecdsa.cert.display().to_string(), site.ecdsa.key.display().to_string());
        let text = text.replace(&cert, &identity.cert.display().to_string());
        text.replace(&format!("{key}\""), &format!("{}\", ocsp = \"{}\"", identity.key.display(), response.display()))
    };
    let gateway = Operated::start(&site, 1, file, listen);
    let stapled = |version: &str| s_client(&gateway.gateway, [version, "-status"], &get("/")).all();
    for version in ["-tls1_2", "-tls1_3"] {
        let said = stapled(version);
        assert!(said.contains("OCSP Response Status: successful"), "{version}: {said}");
        assert!(said.contains("Cert Status: good"), "{version}: {said}");
        assert!(said.contains("\r\n\r\nhello"), "{version}: {said}");
    }
    // Who does not ask is not told.
    let said = s_client(&gateway.gateway, ["-tls1_3"], &get("/")).all();
    assert!(!said.contains("Cert Status"), "{said}");
    respond(&site, &openssl, &identity, 0x1234, true, &response);
    assert_eq!(order(&gateway.socket, "reload").expect("the file is good"), "reloaded\n");
    assert!(eventually(|| stapled("-tls1_3").contains("Cert Status: revoked")), "{}", stapled("-tls1_3"));
    // What is no response changes nothing.
    std::fs::write(&response, "nonsense").expect("our own file");
    let said = format!("{:#}", order(&gateway.socket, "reload").expect_err("it is no response"));
    assert!(said.contains("not a successful OCSP response"), "{said}");
    assert_eq!(gateway.get("/").text(), "hello");
}

/// RFC 8446 §6.2.
const CERTIFICATE_REVOKED: u8 = 44;

fn with(site: &Site, identity: &Identity, version: &'static rustls::SupportedProtocolVersion) -> rustls::ClientConfig {
    let (chain, key) = identity.load();
    let mut roots = rustls::RootCertStore::empty();
    use rustls::pki_types::pem::PemObject;
    roots.add(rustls::pki_types::CertificateDer::from_pem_file(&site.ca).expect("PEM")).expect("a certificate");
    let builder = rustls::ClientConfig::builder_with_provider(client::provider().into());
    let builder = builder.with_protocol_versions(&[version]).expect("the provider knows it");
    builder.with_root_certificates(roots).with_client_auth_cert(chain, key).expect("they belong together")
}

/// What a client with a certificate gets: the answer, or the error.
fn visit(gateway: &Operated, config: &Arc<rustls::ClientConfig>) -> Result<String, String> {
    let stream = client::handshake(client::tcp(gateway.gateway.address), config, HOST).map_err(|e| e.to_string())?;
    let mut wire = Wire::new(stream);
    wire.send(get("/")).map_err(|e| e.to_string())?;
    let answer = wire.response("GET").map_err(|broken| broken.error.to_string())?;
    Ok(answer.text())
}

#[test]
fn a_revoked_client_is_refused_from_the_reload_on() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let (good, bad) = (site.issue_numbered("good", &["a.test"], 11), site.issue_numbered("bad", &["b.test"], 12));
    let list = site.revocations("clients.crl", &[]);
    let file = |admin: &str| {
        let rule = format!(
            "client_auth = {{ mode = \"require\", ca = \"{}\", crl = \"{}\" }}\n",
            site.ca.display(),
            list.display()
        );
        Operated::simple_file(&site, admin, listen, &backend.url()).replace("[[host]]", &format!("{rule}[[host]]"))
    };
    let gateway = Operated::start(&site, 1, file, listen);
    let versions = [&rustls::version::TLS12, &rustls::version::TLS13];
    let configs = versions.map(|v| [&good, &bad].map(|identity| Arc::new(with(&site, identity, v))));
    for [good, bad] in &configs {
        assert_eq!(visit(&gateway, good).as_deref(), Ok("hello"));
        assert_eq!(visit(&gateway, bad).as_deref(), Ok("hello"));
    }
    site.revocations("clients.crl", &[12]);
    assert_eq!(order(&gateway.socket, "reload").expect("the file is good"), "reloaded\n");
    // Tickets of before were for the rules of before: a revoked client cannot resume around the list.
    for [good, bad] in &configs {
        assert!(
            eventually(|| visit(&gateway, bad).is_err_and(|e| e.contains("CertificateRevoked"))),
            "{:?}, alert {CERTIFICATE_REVOKED} was expected",
            visit(&gateway, bad)
        );
        assert_eq!(visit(&gateway, good).as_deref(), Ok("hello"));
    }
    let counted = || gateway.gateway.metric_with("sealane_handshake_failures_total", "certificate_revoked");
    assert!(counted() >= Some(2.0), "{}", gateway.gateway.metrics());
    assert!(backend.requests().len() >= 6);
}

/// Over QUIC, too, a client cannot resume around a new list.
#[test]
fn a_revoked_client_does_not_resume_over_quic() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let (good, bad) = (site.issue_numbered("good", &["a.test"], 11), site.issue_numbered("bad", &["b.test"], 12));
    let list = site.revocations("clients.crl", &[]);
    let (ca, crl) = (site.ca.display(), list.display());
    let rule = format!("client_auth = {{ mode = \"require\", ca = \"{ca}\", crl = \"{crl}\" }}\n[[host]]");
    let file = |admin: &str| {
        let text = Operated::simple_file(&site, admin, listen, &backend.url()).replace("[[host]]", &rule);
        text.replace("[listener.tls]", "http3 = true\n[listener.tls]")
    };
    let gateway = Operated::start(&site, 1, file, listen);
    let [good, bad] =
        [&good, &bad].map(|identity| h3::over_quic(&with(&site, identity, &rustls::version::TLS13), false));
    let visit = |config: &Arc<rustls::ClientConfig>| {
        let mut client = h3::Client::begin(listen, config);
        let id = client.try_open(&h3::headers("GET", "/", &[], BodyLength::None), true)?;
        let status = client.response(id).ok()?.status;
        // Its tickets come with this.
        client.until(|client| client.lost.is_some() || client.quic.stats().frame_rx.handshake_done > 0);
        client.close();
        Some(status)
    };
    let resumed = || gateway.gateway.metric_with("sealane_handshakes_total", "resumed");
    for config in [&good, &bad, &good, &bad] {
        assert_eq!(visit(config), Some(200));
    }
    assert!(eventually(|| resumed() == Some(2.0)), "{}", gateway.gateway.metrics());
    site.revocations("clients.crl", &[12]);
    assert_eq!(order(&gateway.socket, "reload").expect("the file is good"), "reloaded\n");
    // The lane takes the new list at one of its next turns.
    assert!(eventually(|| visit(&bad).is_none()), "its session is of the time before the list");
    assert!(eventually(|| gateway.gateway.failed_handshakes("certificate_revoked") >= 1.0));
    let (served, before) = (backend.requests().len(), resumed());
    assert_eq!(visit(&bad), None, "its session is of the time before the list");
    assert!(eventually(|| gateway.gateway.failed_handshakes("certificate_revoked") >= 2.0));
    assert_eq!((backend.requests().len(), resumed()), (served, before));
    assert_eq!(visit(&good), Some(200));
}

/// A client could keep its HTTP/2 connection, and with it the rules of before, by answering no PING: the farewell of two
/// GOAWAYs waits for that.
#[test]
fn a_revoked_client_that_ignores_goaway_is_not_served_on() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let bad = site.issue_numbered("bad", &["b.test"], 12);
    let list = site.revocations("clients.crl", &[]);
    let (ca, crl) = (site.ca.display(), list.display());
    let rule = format!("client_auth = {{ mode = \"require\", ca = \"{ca}\", crl = \"{crl}\" }}\n[[host]]");
    let file = |admin: &str| Operated::simple_file(&site, admin, listen, &backend.url()).replace("[[host]]", &rule);
    let gateway = Operated::start(&site, 1, file, listen);
    let mut config = with(&site, &bad, &rustls::version::TLS13);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = client::handshake(client::tcp(listen), &Arc::new(config), HOST).expect("it is good still");
    let mut frames = Frames::begin(stream, &[]);
    let mut next = 1;
    // Whether the next stream ends, by a response or a reset. `None` if the connection is at its end.
    let mut ask = || {
        let list = [(":method", "GET"), (":scheme", "https"), (":authority", HOST), (":path", "/")];
        let stream = next;
        next += 2;
        frames.send(kind::HEADERS, END_HEADERS | END_STREAM, stream, &block(&list)).ok()?;
        frames.find(|f| f.stream == stream && (f.kind == kind::RST_STREAM || f.flags & END_STREAM != 0)).map(drop)
    };
    assert_eq!(ask(), Some(()));
    site.revocations("clients.crl", &[12]);
    assert_eq!(order(&gateway.socket, "reload").expect("the file is good"), "reloaded\n");
    // From then on, and not only once the lane has got round to it.
    let served = backend.requests().len();
    for _ in 0..10 {
        let _ = ask();
    }
    assert_eq!(backend.requests().len(), served);
    let refused = || gateway.gateway.metric("sealane_http2_streams_refused_total");
    assert!(refused() >= Some(1.0), "{}", gateway.gateway.metrics());
}

/// Connected clients are judged by the list of a reload as soon as the reload has reported success: on every lane, over HTTP/1.1, 2 and 3.
#[test]
fn revoked_clients_that_are_connected_are_not_served_after_the_reload() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let bad = site.issue_numbered("bad", &["b.test"], 12);
    let list = site.revocations("clients.crl", &[]);
    let (ca, crl) = (site.ca.display(), list.display());
    let rule = format!("client_auth = {{ mode = \"require\", ca = \"{ca}\", crl = \"{crl}\" }}\n[[host]]");
    let file = |admin: &str| {
        let text = Operated::simple_file(&site, admin, listen, &backend.url()).replace("[[host]]", &rule);
        text.replace("[listener.tls]", "http3 = true\n[listener.tls]")
    };
    let gateway = Operated::start(&site, 2, file, listen);
    let config = Arc::new(with(&site, &bad, &rustls::version::TLS13));
    let get = || format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    // So many that both lanes have some.
    let mut first: Vec<_> = (0..16).map(|_| client::connect(listen, &config)).collect();
    for wire in &mut first {
        wire.send(get()).expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("it is good still").text(), "hello");
    }
    let mut third: Vec<_> = (0..8).map(|_| h3::Client::connect(listen, &h3::over_quic(&config, false))).collect();
    for client in &mut third {
        assert_eq!(client.get("/").status, 200);
    }
    let mut idle = client::connect(listen, &config);
    idle.send(get()).expect("the gateway reads");
    assert_eq!(idle.response("GET").expect("it is good still").text(), "hello");
    // In the middle of a request, which goes on, but is followed by none.
    let mut halfway = client::connect(listen, &config);
    halfway.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 1\r\n\r\n")).expect("the gateway reads");
    assert!(eventually(|| gateway.gateway.metric("sealane_requests_total") == Some(26.0)));
    site.revocations("clients.crl", &[12]);
    let served = backend.requests().len();
    assert_eq!(order(&gateway.socket, "reload").expect("the file is good"), "reloaded\n");
    // A waiting client is told to connect again before it has sent a request.
    let (said, end) = idle.rest();
    assert!(said.is_empty() && end.is_ok(), "{end:?}");
    for wire in &mut first {
        // It is closed, or told to come by another connection, which the list forbids.
        let _ = wire.send(get());
        let answer = wire.response("GET");
        assert!(answer.as_ref().is_err() || answer.as_ref().is_ok_and(|a| a.status() == 421), "{answer:?}");
    }
    for client in &mut third {
        let Some(id) = client.try_open(&h3::headers("GET", "/", &[], BodyLength::None), true) else { continue };
        let answer = client.response(id);
        assert!(answer.as_ref().is_err() || answer.as_ref().is_ok_and(|a| a.status == 421), "{answer:?}");
    }
    let _ = halfway.send(format!("x{}", get()));
    assert_eq!(halfway.response("POST").expect("it had begun").text(), "hello");
    let after = halfway.response("GET");
    assert!(after.as_ref().is_err() || after.as_ref().is_ok_and(|a| a.status() == 421), "{after:?}");
    let methods: Vec<String> = backend.requests()[served..].iter().map(|r| r.method().to_owned()).collect();
    assert!(methods.iter().all(|method| method == "POST"), "{methods:?}");
}

#[test]
fn a_revoked_upstream_gets_no_request() {
    let site = Site::new();
    let named = site.issue_numbered("server", &[HOST], 21);
    let hello = |mut connection: backend::Connection| {
        while connection.request().is_some() {
            connection.send(ok(b"hello"));
        }
    };
    let backend = Backend::start_tls(backend::tls(&named), hello);
    let ca = format!("ca = \"{}\"", site.ca.display());
    for (serial, works) in [(22, true), (21, false)] {
        let list = site.revocations("servers.crl", &[serial]);
        let crl = format!("crl = \"{}\"", list.display());
        let gateway = before(&site, [backend.url()]).upstream_tls(&ca).upstream_tls(&crl).start();
        let (answer, before) = (gateway.get("/"), backend.requests().len());
        match works {
            true => assert_eq!(answer.text(), "hello"),
            false => assert_eq!((answer.status(), before), (502, 1), "{answer:?}"),
        }
    }
}

/// Without a certificate the alert is another one, and so is the counter.
#[test]
fn a_client_without_a_certificate_is_told_so() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let list = site.revocations("clients.crl", &[]);
    let rule =
        format!("client_auth = {{ mode = \"require\", ca = \"{}\", crl = \"{}\" }}", site.ca.display(), list.display());
    let gateway = before(&site, [backend.url()]).tls(&rule).start();
    let config = Arc::new(client::config_with(&site.ca, client::provider(), &[&rustls::version::TLS13]));
    let mut wire = client::connect(gateway.address, &config);
    let _ = wire.send(get("/"));
    let error = wire.stream.read_to_end(&mut Vec::new()).expect_err("it is refused");
    assert!(error.to_string().contains("CertificateRequired"), "{error}");
    assert!(eventually(
        || gateway.metric_with("sealane_handshake_failures_total", "no_client_certificate") == Some(1.0)
    ));
    assert!(backend.requests().is_empty());
}
