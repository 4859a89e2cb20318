//! Headers with parts of the request (`{client_address}`): over every version of HTTP, whatever the client sends itself.

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sealane_interop::backend::Backend;
use sealane_interop::client;
use sealane_interop::gateway::{Gateway, configured};
use sealane_interop::http::Wire;
use sealane_interop::ports;
use sealane_interop::site::{HOST, Identity, Site};
use sealane_interop::versions::{Asked, Everywhere, VERSIONS};
use std::net::SocketAddr;
use std::sync::Arc;

/// A gateway with TLS, HTTP/3 and client certificates, and a plain listener beside it.
fn gateway(site: &Site, app: &str, rest: &str) -> (Gateway, SocketAddr) {
    let plain = ports::free();
    let text = format!(
        r#"
lanes = 1
[admin]
listen = "@ADMIN@"
[[listener]]
address = "@ADDRESS@"
http3 = true
[listener.tls]
certificates = {{ cert = {cert:?}, key = {key:?} }}
client_auth = {{ mode = "optional", ca = {ca:?} }}
[[listener]]
address = "{plain}"
h2c = true
[[host]]
names = ["*"]
to = {app:?}
{rest}
"#,
        cert = site.ecdsa.cert,
        key = site.ecdsa.key,
        ca = site.ca,
    );
    (configured(site, &text), plain)
}

/// A client that shows a certificate.
fn showing(site: &Site, identity: &Identity) -> Arc<ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&site.ca).expect("PEM")).expect("a certificate");
    let builder = ClientConfig::builder_with_provider(client::provider().into());
    let builder = builder.with_safe_default_protocol_versions().expect("the provider knows them");
    let (chain, key) = identity.load();
    let config = builder.with_root_certificates(roots).with_client_auth_cert(chain, key);
    Arc::new(config.expect("they belong together"))
}

const ALL: &str = r#"
[host.request_headers.set]
X-Real-IP = "{client_address}"
X-Url = "{scheme}://{authority}{uri}"
X-Parts = "{method} {host} {path} {query} {tls_version} {client_certificate_result}"
X-Name = "{client_certificate_name}"
X-Json = '{"group":"a"}'
[[host.route]]
path = "/v1"
to = "APP"
rewrite_prefix = "/v2"
"#;

#[test]
fn values_are_those_of_the_request_and_not_those_of_the_client() {
    let site = Site::new();
    let app = Backend::saying("hello");
    let (gateway, plain) = gateway(&site, &app.url(), &ALL.replace("APP", &app.url()));
    let mut every = Everywhere::new(&gateway, plain);
    // The parser refuses `X_Real_IP`, which imitates a header that it knows.
    let forged = [("x-real-ip", "10.9.9.9"), ("x-name", "root"), ("x_name", "root")];
    for (target, sent) in [("/a/b?c=d", "/a/b?c=d"), ("/v1/x?y", "/v2/x?y")] {
        let before = app.requests().len();
        let said = every.ask(Asked { method: "POST", target, fields: &forged, ..Asked::default() });
        assert_eq!(said, [(); 3].map(|()| (200, "hello".to_owned())));
        for (seen, version) in app.requests()[before..].iter().zip(VERSIONS) {
            assert_eq!(seen.target(), sent, "{version}");
            assert_eq!(seen.all("x-real-ip"), ["127.0.0.1"], "{version}: {seen:?}");
            let url = seen.header("x-url").unwrap_or_default();
            assert!(url.ends_with(target) && url.contains("://"), "{version}: {url}");
            let parts = seen.header("x-parts").unwrap_or_default();
            let (path, query) = target.split_once('?').expect("it has one");
            assert!(parts.starts_with(&format!("POST {HOST} {path} ?{query}")), "{version}: {parts}");
            assert!(parts.ends_with("NONE"), "{version}: {parts}");
            assert!(seen.all("x-name").is_empty() && seen.all("x_name").is_empty(), "{version}: {seen:?}");
            assert!(seen.all("x_real_ip").is_empty(), "{version}");
            assert_eq!(seen.header("x-json"), Some("{\"group\":\"a\"}"), "{version}");
        }
    }
    let mut wire = Wire::new(client::tcp(plain));
    wire.send(format!("GET /x HTTP/1.1\r\nHost: {HOST}:81\r\nConnection: close\r\n\r\n")).expect("it is read");
    assert_eq!(wire.response("GET").expect("an answer").status(), 200);
    assert_eq!(app.last().header("x-url"), Some(format!("http://{HOST}:81/x").as_str()));
    assert_eq!(app.last().header("x-parts"), Some(format!("GET {HOST} /x   NONE").as_str()));
}

#[test]
fn a_certificate_is_told_in_every_form() {
    let site = Site::new();
    let app = Backend::saying("hello");
    let rest = r#"
[host.request_headers.set]
X-Cert = "{client_certificate}"
X-Print = "{client_certificate_fingerprint}"
X-Name = "{client_certificate_name}"
X-Result = "{client_certificate_result}"
X-Subject = "{client_certificate_subject}"
X-Issuer = "{client_certificate_issuer}"
X-Serial = "{client_certificate_serial}"
"#;
    let (gateway, _) = gateway(&site, &app.url(), rest);
    let identity = site.issue("alice", &["alice.clients.test"]);
    let config = showing(&site, &identity);
    let answer = client::exchange(gateway.address, &config, &client::get("/")).expect("a response");
    assert_eq!(answer.status(), 200);
    let seen = app.last();
    assert_eq!((seen.header("x-result"), seen.header("x-name")), (Some("SUCCESS"), Some("alice")));
    assert_eq!(seen.header("x-print").map(str::len), Some(64));
    let (subject, issuer) = (seen.header("x-subject"), seen.header("x-issuer"));
    assert!(subject.is_some_and(|s| s.contains("CN=alice")), "{subject:?}");
    assert!(issuer.is_some_and(|i| i.contains("CN=") && !i.contains("alice")), "{issuer:?}");
    let serial = seen.header("x-serial").unwrap_or_default();
    assert!(!serial.is_empty() && serial.bytes().all(|b| b.is_ascii_hexdigit()), "{serial}");
    let cert = seen.header("x-cert").unwrap_or_default();
    let pem = std::fs::read_to_string(&identity.cert).expect("the certificate");
    let encode = |c: char| match c {
        'A'..='Z' | 'a'..='z' | '0'..='9' | '-' => c.to_string(),
        c => format!("%{:02X}", u32::from(c)),
    };
    let first: String = pem.replace('\r', "").chars().map(encode).collect();
    assert!(first.starts_with(cert), "{cert}\n{first}");
}

#[test]
fn a_part_that_does_not_exist_is_an_error() {
    let site = Site::new();
    let app = Backend::saying("hello");
    let text = |value: &str| {
        format!(
            "[[listener]]\naddress = \"127.0.0.1:1\"\n[[host]]\nnames = [\"*\"]\nto = \"{}\"\nrequest_headers = {{ set = {{ X-A = \"{value}\" }} }}\n",
            app.url()
        )
    };
    let check = |value: &str| {
        let file = site.file("sealane.toml", text(value));
        let output = sealane_interop::gateway::run(["check", "-c", file.to_str().expect("plain")]);
        (
            output.status.success(),
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)),
        )
    };
    let (good, said) = check("{client_adress}");
    assert!(!good && said.contains("{client_adress}") && said.contains("did you mean {client_address}?"), "{said}");
    let (good, said) = check("{client_address}");
    assert!(good, "{said}");
}
