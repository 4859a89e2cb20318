//! TLS towards upstreams: verified by default, resumed, and with a certificate of our own where asked.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sealane_interop::backend::{self, Backend, Connection, ok};
use sealane_interop::client;
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::site::{HOST, Site};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn ca_line(site: &Site) -> String {
    format!("ca = \"{}\"", site.ca.display())
}

fn hello(mut connection: Connection) {
    while connection.request().is_some() {
        connection.send(ok(b"hello"));
    }
}

fn refused(gateway: &Gateway, backend: &Backend) {
    let response = gateway.get("/");
    assert_eq!(response.status(), 502, "{response:?}");
    assert!(backend.requests().is_empty(), "a request was sent to an upstream that is not who it should be");
}

#[test]
fn verified_by_a_given_ca() {
    let site = Site::new();
    let backend = Backend::start_tls(backend::tls(&site.ecdsa), hello);
    let gateway = before(&site, [backend.url()]).upstream_tls(&ca_line(&site)).start();
    assert_eq!(gateway.get("/").text(), "hello");
}

#[test]
fn another_ca_is_a_502() {
    let (site, other) = (Site::new(), Site::new());
    let backend = Backend::start_tls(backend::tls(&other.ecdsa), hello);
    let gateway = before(&site, [backend.url()]).upstream_tls(&ca_line(&site)).start();
    refused(&gateway, &backend);
}

#[test]
fn another_name_is_a_502() {
    let site = Site::new();
    let named = site.issue("other", &["other.test"]);
    let backend = Backend::start_tls(backend::tls(&named), hello);
    let gateway = before(&site, [backend.url()]).upstream_tls(&ca_line(&site)).start();
    refused(&gateway, &backend);
    // The same upstream under the name that its certificate has.
    let name = "server_name = \"other.test\"";
    let gateway = before(&site, [backend.url()]).upstream_tls(&ca_line(&site)).upstream_tls(name).start();
    assert_eq!(gateway.get("/").text(), "hello");
}

#[test]
fn a_plain_upstream_where_tls_was_meant_is_a_502() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| connection.send("HTTP/1.1 400 Bad Request\r\n\r\n"));
    let url = format!("https://{HOST}:{}", backend.address.port());
    let gateway = before(&site, [url]).upstream_tls(&ca_line(&site)).start();
    refused(&gateway, &backend);
}

#[test]
fn verification_is_off_only_where_it_says_dangerous() {
    let (site, other) = (Site::new(), Site::new());
    let backend = Backend::start_tls(backend::tls(&other.ecdsa), hello);
    let gateway = before(&site, [backend.url()]).upstream_tls("dangerous_skip_verification = true").start();
    assert_eq!(gateway.get("/").text(), "hello");
}

#[test]
fn a_connection_per_request_is_resumed() {
    let site = Site::new();
    let (full, resumed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&full), Arc::clone(&resumed));
    let backend = Backend::start_tls(backend::tls(&site.ecdsa), move |mut connection| {
        while connection.request().is_some() {
            if let backend::Pipe::Tls(stream) = &connection.wire.stream {
                let count = match stream.conn.handshake_kind() {
                    Some(rustls::HandshakeKind::Resumed) => &counts.1,
                    _ => &counts.0,
                };
                count.fetch_add(1, Ordering::Relaxed);
            }
            connection.send(ok(b"hello"));
        }
    });
    let gateway = before(&site, [backend.url()]).upstream("keepalive = 0").upstream_tls(&ca_line(&site)).start();
    for _ in 0..10 {
        assert_eq!(gateway.get("/").text(), "hello");
    }
    assert_eq!((full.load(Ordering::Relaxed), resumed.load(Ordering::Relaxed)), (1, 9));
    assert_eq!(backend.connections(), 10);
}

#[test]
fn our_own_certificate_where_it_is_asked_for() {
    let site = Site::new();
    let ours = site.issue("gateway", &["gateway.test"]);
    let (chain, key) = site.ecdsa.load();
    let mut roots = rustls::RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(&site.ca).expect("the authority's file is PEM");
    roots.add(authority).expect("the authority's certificate is one");
    let provider = Arc::new(client::provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider knows the default versions")
        .with_client_cert_verifier(verifier.build().expect("there is a root"))
        .with_single_cert(chain, key)
        .expect("the key belongs to the certificate");
    let backend = Backend::start_tls(config.into(), hello);
    let bare = before(&site, [backend.url()]).upstream_tls(&ca_line(&site)).start();
    refused(&bare, &backend);
    let cert = format!("cert = \"{}\"\nkey = \"{}\"", ours.cert.display(), ours.key.display());
    let gateway = before(&site, [backend.url()]).upstream_tls(&ca_line(&site)).upstream_tls(&cert).start();
    assert_eq!(gateway.get("/").text(), "hello");
}

#[test]
fn an_upstream_that_closes_inside_tls_is_no_whole_response() {
    let site = Site::new();
    // Close-delimited, and then TCP's end without TLS' close_notify: a party in between could have cut it.
    let backend = Backend::start_tls(backend::tls(&site.ecdsa), |mut connection| {
        if connection.request().is_some() {
            connection.send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\npart of it");
        }
    });
    let gateway = before(&site, [backend.url()]).upstream_tls(&ca_line(&site)).start();
    if let Ok(response) = gateway.exchange(client::get("/")) {
        assert_eq!(response.status(), 502, "cut off, but it looks whole: {response:?}");
    }
}
