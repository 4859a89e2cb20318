//! Revocation lists that the gateway fetches from URLs, that change while it serves, and that expire.

use crate::operating::Operated;
use sealane_interop::backend::{self, Backend, ok};
use sealane_interop::client::{self, get};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Identity, Site};
use sealane_interop::{eventually, ports};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// A server that answers every request with the file's content as it is then; with 503 where there is no file.
fn serving(file: PathBuf) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            let _ = socket.read(&mut [0; 4096]);
            let answer = match std::fs::read(&file) {
                Ok(body) => {
                    [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes(), body].concat()
                }
                Err(_) => b"HTTP/1.1 503 Not now\r\nContent-Length: 0\r\n\r\n".to_vec(),
            };
            let _ = socket.write_all(&answer);
        }
    });
    address
}

/// The settings of a client with this certificate, which resumes sessions.
fn with(site: &Site, identity: &Identity) -> Arc<rustls::ClientConfig> {
    use rustls::pki_types::pem::PemObject;
    let (chain, key) = identity.load();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_file(&site.ca).expect("PEM")).expect("a certificate");
    let builder = rustls::ClientConfig::builder_with_provider(client::provider().into());
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).expect("the provider knows it");
    Arc::new(builder.with_root_certificates(roots).with_client_auth_cert(chain, key).expect("they belong together"))
}

/// What a client with a certificate gets: the answer, or the error.
fn visit(gateway: &Operated, config: &Arc<rustls::ClientConfig>) -> Result<String, String> {
    let stream = client::handshake(client::tcp(gateway.gateway.address), config, HOST).map_err(|e| e.to_string())?;
    let mut wire = Wire::new(stream);
    wire.send(get("/")).map_err(|e| e.to_string())?;
    let answer = wire.response("GET").map_err(|broken| broken.error.to_string())?;
    Ok(answer.text())
}

/// A gateway whose clients are judged by this list. Lists are fetched every second.
fn start(site: &Site, listen: SocketAddr, crl: &str, more: &str) -> Operated {
    let (ca, storage) = (site.ca.display(), site.path().join("revocation"));
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let file = |admin: &str| {
        format!(
            "{admin}\n[revocation]\nstorage = \"{}\"\nrefresh = \"1s\"\n[[listener]]\naddress = \"{listen}\"\n\
             [listener.tls]\ncertificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
             client_auth = {{ mode = \"require\", ca = \"{ca}\", crl = \"{crl}\"{more} }}\n\
             [[host]]\nnames = [\"*\"]\nrespond = {{ body = \"hello\" }}\n",
            storage.display()
        )
    };
    Operated::start(site, 2, file, listen)
}

fn metric(gateway: &Operated, name: &str) -> f64 {
    let text = gateway.gateway.metrics();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().expect("a metric is a number"))
}

#[test]
fn a_list_from_a_url_is_fetched_again_and_a_bad_one_changes_nothing() {
    let (site, stranger) = (Site::new(), Site::new());
    let (good, bad) = (site.issue_numbered("good", &["a.test"], 11), site.issue_numbered("bad", &["b.test"], 12));
    let [good, bad] = [good, bad].map(|identity| with(&site, &identity));
    let served = site.path().join("served.crl");
    let listen = ports::free();
    let gateway = start(&site, listen, &format!("http://{}/clients.crl", serving(served.clone())), "");
    let log = || gateway.gateway.server.log();
    // Nobody knows who is revoked.
    assert!(visit(&gateway, &good).is_err(), "{}", log());
    let unknown = || gateway.gateway.metric_with("sealane_handshake_failures_total", "revocation_unknown");
    assert!(eventually(|| unknown() >= Some(1.0)), "{}", gateway.gateway.metrics());
    let put = |from: PathBuf| std::fs::rename(from, &served).expect("our own folder");
    put(site.revocations("new.crl", &[]));
    // The first request may have failed: the next one comes within a minute.
    assert!(eventually(|| visit(&gateway, &good).is_ok()), "{}", log());
    assert!(visit(&gateway, &bad).is_ok());
    // Signed by another authority of the same name, cut, and no list at all.
    let failed = || metric(&gateway, "sealane_revocation_list_requests_total{result=\"failed\"}");
    put(stranger.revocations("stranger.crl", &[11]));
    let before = failed();
    assert!(eventually(|| failed() > before), "{}", log());
    assert!(log().contains("not signed by a certificate of \"ca\""), "{}", log());
    assert!(visit(&gateway, &good).is_ok());
    put(site.revocations("new.crl", &[12]));
    assert!(eventually(|| visit(&gateway, &bad).is_err_and(|e| e.contains("CertificateRevoked"))), "{}", log());
    assert!(visit(&gateway, &good).is_ok());
    assert_eq!(gateway.status()["reloads"]["good"], 0, "the configuration was not read again");
    // The next process has the list, though nobody serves it.
    std::fs::remove_file(&served).expect("our own file");
    let url = gateway.text();
    drop(gateway);
    let gateway = Operated::start(&site, 1, |_| url, listen);
    assert!(visit(&gateway, &bad).is_err_and(|e| e.contains("CertificateRevoked")));
    assert!(visit(&gateway, &good).is_ok());
}

#[test]
fn a_list_in_a_file_is_read_again_without_a_reload() {
    let site = Site::new();
    let (good, bad) = (site.issue_numbered("good", &["a.test"], 11), site.issue_numbered("bad", &["b.test"], 12));
    let [good, bad] = [good, bad].map(|identity| with(&site, &identity));
    let list = site.revocations("clients.crl", &[]);
    let gateway = start(&site, ports::free(), &list.display().to_string(), "");
    assert!(visit(&gateway, &good).is_ok() && visit(&gateway, &bad).is_ok());
    let mut idle = client::connect(gateway.gateway.address, &bad);
    idle.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    assert_eq!(idle.response("GET").expect("it is good still").text(), "hello");
    site.revocations("clients.crl", &[12]);
    assert!(eventually(|| visit(&gateway, &bad).is_err_and(|e| e.contains("CertificateRevoked"))));
    assert!(visit(&gateway, &good).is_ok());
    // One that is connected is told to come again, which the list forbids.
    let (said, end) = idle.rest();
    assert!(said.is_empty() && end.is_ok(), "{end:?}");
    let replaced =
        |result: &str| metric(&gateway, &format!("sealane_revocation_list_replacements_total{{result=\"{result}\"}}"));
    assert_eq!(replaced("good"), 1.0);
    std::fs::write(&list, "nonsense").expect("our own file");
    assert!(eventually(|| replaced("refused") == 1.0));
    assert!(visit(&gateway, &bad).is_err() && visit(&gateway, &good).is_ok());
}

/// A list that was issued again and revokes nobody else ends no session and no connection.
#[test]
fn a_list_that_was_issued_again_ends_nothing() {
    let site = Site::new();
    let identity = site.issue_numbered("good", &["a.test"], 11);
    let config = with(&site, &identity);
    let list = site.revocations("clients.crl", &[12]);
    let gateway = start(&site, ports::free(), &list.display().to_string(), "");
    let mut kept = client::connect(gateway.gateway.address, &config);
    kept.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    assert_eq!(kept.response("GET").expect("it is good").text(), "hello");
    // The signature is another one each time.
    site.revocations("clients.crl", &[12]);
    let good = "sealane_revocation_list_replacements_total{result=\"good\"}";
    assert!(eventually(|| metric(&gateway, good) == 1.0));
    kept.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    assert_eq!(kept.response("GET").expect("it is good").text(), "hello");
    let resumed = || gateway.gateway.metric_with("sealane_handshakes_total", "resumed").unwrap_or(0.0);
    let before = resumed();
    assert!(visit(&gateway, &config).is_ok());
    assert!(eventually(|| resumed() > before), "{}", gateway.gateway.metrics());
}

#[test]
fn an_expired_list_refuses_if_it_is_to() {
    let site = Site::new();
    let identity = site.issue_numbered("good", &["a.test"], 11);
    let config = with(&site, &identity);
    for (policy, served) in [("", true), (", crl_expired = \"accept\"", true), (", crl_expired = \"refuse\"", false)] {
        let list = site.revocations_until("clients.crl", &[12], 2021);
        let gateway = start(&site, ports::free(), &list.display().to_string(), policy);
        assert_eq!(visit(&gateway, &config).is_ok(), served, "{policy}");
        if served {
            continue;
        }
        let unknown = || gateway.gateway.metric_with("sealane_handshake_failures_total", "revocation_unknown");
        assert!(eventually(|| unknown() >= Some(1.0)), "{}", gateway.gateway.metrics());
        site.revocations("clients.crl", &[12]);
        assert!(eventually(|| visit(&gateway, &config).is_ok()), "{}", gateway.gateway.server.log());
    }
}

/// The same of the servers of an upstream.
#[test]
fn an_expired_list_refuses_servers_if_it_is_to() {
    let site = Site::new();
    let named = site.issue_numbered("server", &[HOST], 21);
    let backend = Backend::start_tls(backend::tls(&named), |mut connection| {
        while connection.request().is_some() {
            connection.send(ok(b"hello"));
        }
    });
    for (policy, status) in [("", 200), ("crl_expired = \"accept\"\n", 200), ("crl_expired = \"refuse\"\n", 502)] {
        let list = site.revocations_until("servers.crl", &[22], 2021);
        let (listen, ca, crl) = (ports::free(), site.ca.display(), list.display());
        let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
        let file = |admin: &str| {
            format!(
                "{admin}\n[[listener]]\naddress = \"{listen}\"\n\
                 [listener.tls]\ncertificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
                 [[upstream]]\nname = \"app\"\nservers = [{:?}]\n[upstream.tls]\nca = \"{ca}\"\ncrl = \"{crl}\"\n{policy}\
                 [[host]]\nnames = [\"*\"]\nupstream = \"app\"\n",
                backend.url()
            )
        };
        let gateway = Operated::start(&site, 1, file, listen);
        assert_eq!(gateway.get("/").status(), status, "{policy:?}: {}", gateway.gateway.server.log());
        if status == 200 {
            continue;
        }
        // A newer list is read without a reload, and the server is good again.
        site.revocations("servers.crl", &[22]);
        assert!(eventually(|| gateway.get("/").status() == 200), "{}", gateway.gateway.server.log());
    }
}

#[test]
fn a_list_from_a_url_holds_for_upstreams() {
    let site = Site::new();
    let named = site.issue_numbered("server", &[HOST], 21);
    let answered: Arc<Mutex<u32>> = Arc::default();
    let count = answered.clone();
    let hello = move |mut connection: backend::Connection| {
        while connection.request().is_some() {
            *count.lock().expect("nobody panics") += 1;
            connection.send(ok(b"hello"));
        }
    };
    let backend = Backend::start_tls(backend::tls(&named), hello);
    let served = site.path().join("served.crl");
    std::fs::rename(site.revocations("new.crl", &[]), &served).expect("our own folder");
    let (listen, ca, storage) = (ports::free(), site.ca.display(), site.path().join("revocation"));
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let url = format!("http://{}/servers.crl", serving(served.clone()));
    let file = |admin: &str| {
        format!(
            "{admin}\n[revocation]\nstorage = \"{}\"\nrefresh = \"1s\"\n[[listener]]\naddress = \"{listen}\"\n\
             [listener.tls]\ncertificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
             [[upstream]]\nname = \"app\"\nservers = [{:?}]\n[upstream.tls]\nca = \"{ca}\"\ncrl = \"{url}\"\n\
             [[host]]\nnames = [\"*\"]\nupstream = \"app\"\n",
            storage.display(),
            backend.url()
        )
    };
    let gateway = Operated::start(&site, 1, file, listen);
    let log = || gateway.gateway.server.log();
    assert!(eventually(|| gateway.get("/").text() == "hello"), "{}", log());
    std::fs::rename(site.revocations("new.crl", &[21]), &served).expect("our own folder");
    assert!(eventually(|| gateway.get("/").status() == 502), "{}", log());
    let before = *answered.lock().expect("nobody panics");
    assert_eq!(gateway.get("/").status(), 502);
    assert_eq!(*answered.lock().expect("nobody panics"), before);
}
