//! The configurations in `examples/`: each is checked as it is, and those that need no more than loopback are served.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::client;
use sealane_interop::gateway::{Gateway, configured, run};
use sealane_interop::h2;
use sealane_interop::h3::{Client, over_quic};
use sealane_interop::http::{Message, Wire};
use sealane_interop::site::{Identity, Site};
use sealane_interop::{ports, websocket_accept};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn text(name: &str) -> String {
    let file = examples().join(name);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// A site with every file that the examples name, at the paths that they name.
fn site() -> Site {
    let site = Site::new();
    let certs = site.path().join("certs");
    std::fs::create_dir(&certs).expect("the folder is new");
    for name in ["example.com", "shop.example.net", "admin.example.com", "grpc.example.com"] {
        let www = format!("www.{name}");
        let Identity { key, .. } = site.issue(&format!("certs/{name}"), &[name, &www]);
        std::fs::rename(key, certs.join(format!("{name}.key"))).expect("both are in one folder");
    }
    std::fs::copy(&site.ca, certs.join("clients-ca.pem")).expect("the authority's file is there");
    site.revocations("certs/clients.crl", &[]);
    let vpn = site.path().join("vpn");
    let made = run(["tunnel", "init", "vpn.example.com:1194", "--folder", vpn.to_str().expect("a plain name")]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    site
}

/// The example, listening on loopback with its admin listener on TCP. `@ADDRESS@` takes the place of port 443.
fn on_loopback(name: &str) -> String {
    let text = text(name);
    assert!(text.contains("socket = \"/run/sealane/admin.sock\""), "{name}");
    text.replace("socket = \"/run/sealane/admin.sock\"", "listen = \"@ADMIN@\"")
        .replace("\":443\"", "\"@ADDRESS@\"")
        .replace("udp://:1194", &format!("udp://{}", ports::free()))
}

/// The example served, with these servers in the place of its own.
fn serve(site: &Site, name: &str, servers: &[(&str, &str)]) -> Gateway {
    let mut text = on_loopback(name);
    for (written, real) in servers {
        assert!(text.contains(written), "{name} names {written}");
        text = text.replace(written, real);
    }
    configured(site, &text)
}

fn wire(gateway: &Gateway, host: &str) -> Wire<client::Tls> {
    let socket = client::tcp(gateway.address);
    Wire::new(client::handshake(socket, gateway.config(), host).unwrap_or_else(|error| panic!("{host}: {error}")))
}

fn get(gateway: &Gateway, host: &str, path: &str) -> Message {
    let mut wire = wire(gateway, host);
    wire.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).expect("the gateway reads");
    wire.response("GET").unwrap_or_else(|broken| panic!("{host}{path}: {broken:?}"))
}

#[test]
fn every_example_passes_the_check() {
    let site = site();
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(examples()).expect("the folder is there") {
        let name = entry.expect("it can be read").file_name().into_string().expect("a plain name");
        if !name.ends_with(".toml") {
            continue;
        }
        // As it is, without its files.
        let file = examples().join(&name);
        let offline = run(["check", "--offline", "-c", file.to_str().expect("a plain name")]);
        assert!(offline.status.success() && offline.stderr.is_empty(), "{name}: {offline:?}");
        // With them; ports below 1024 may not be this user's.
        let free = || ports::free().to_string();
        let whole = on_loopback(&name)
            .replace("@ADMIN@", &free())
            .replace("@ADDRESS@", &free())
            .replace("\":80\"", &format!("\"{}\"", free()));
        let file = site.file(&name, whole);
        let checked = run(["check", "-c", file.to_str().expect("a plain name")]);
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success() && !said.contains("warning"), "{name}: {said}");
        names.insert(name);
    }
    let list = text("README.md");
    assert_eq!(names.len(), 10);
    for name in names {
        assert!(list.contains(&format!("[{name}]({name})")), "examples/README.md lists {name}");
    }
}

/// The ports that the compose file forwards, and the address of the image's health check, are those of its configuration.
#[test]
fn the_compose_file_and_its_configuration_agree() {
    let folder = examples().join("compose");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let (compose, configuration) = (read("compose.yaml"), read("sealane.toml"));
    let file = folder.join("sealane.toml");
    let offline = run(["check", "--offline", "-c", file.to_str().expect("a plain name")]);
    assert!(offline.status.success() && offline.stderr.is_empty(), "{offline:?}");
    for (forwarded, address) in
        [("\"80:8080\"", "\":8080\""), ("\"443:8443\"", "\":8443\""), ("\"443:8443/udp\"", "http3 = true")]
    {
        assert!(compose.contains(forwarded) && configuration.contains(address), "{forwarded}, {address}");
    }
    let admin = "127.0.0.1:9901";
    let image = std::fs::read_to_string(examples().join("../xtask/src/image.rs")).expect("the image's description");
    let file = examples().join("../packaging/image/sealane.toml");
    let default = std::fs::read_to_string(&file).expect("the image's configuration");
    assert!([&configuration, &image, &default].iter().all(|text| text.contains(admin)));
    assert!(run(["check", "--offline", "-c", file.to_str().expect("a plain name")]).status.success());
}

#[test]
fn one_site() {
    let (site, app) = (site(), Backend::saying("app"));
    let gateway = serve(&site, "one-site.toml", &[("http://127.0.0.1:3000", &app.url())]);
    assert_eq!(get(&gateway, "example.com", "/").text(), "app");
}

#[test]
fn many_sites() {
    let site = site();
    let servers = ["website", "api", "api", "shop"].map(Backend::saying);
    let written = [3000, 3001, 3002, 3003].map(|port| format!("http://127.0.0.1:{port}"));
    let urls = servers.each_ref().map(Backend::url);
    let pairs: Vec<(&str, &str)> = written.iter().map(String::as_str).zip(urls.iter().map(String::as_str)).collect();
    let gateway = serve(&site, "many-sites.toml", &pairs);
    assert_eq!(get(&gateway, "www.example.com", "/").text(), "website");
    assert_eq!(get(&gateway, "example.com", "/api/x").text(), "api");
    assert_eq!(get(&gateway, "shop.example.net", "/api/x").text(), "shop");
    let refused = client::handshake(client::tcp(gateway.address), gateway.config(), "unknown.example.org");
    assert!(refused.is_err(), "strict_sni refuses names without a certificate");
}

#[test]
fn http_to_https() {
    let (site, app, acme) = (site(), Backend::saying("app"), Backend::saying("challenge"));
    let plain = ports::free();
    let servers = [
        ("http://127.0.0.1:3000", &*app.url()),
        ("http://127.0.0.1:8888", &*acme.url()),
        ("\":80\"", &*format!("\"{plain}\"")),
    ];
    let gateway = serve(&site, "http-to-https.toml", &servers);
    let ask = |path: &str| {
        let mut wire = Wire::new(client::tcp(plain));
        wire.send(format!("GET {path} HTTP/1.1\r\nHost: example.com\r\n\r\n")).expect("the gateway reads");
        wire.response("GET").expect("an answer")
    };
    let redirected = ask("/page?x=1");
    assert_eq!((redirected.status(), redirected.header("Location")), (308, Some("https://example.com/page?x=1")));
    assert_eq!(ask("/.well-known/acme-challenge/token").text(), "challenge");
    let answer = get(&gateway, "example.com", "/");
    assert_eq!((answer.text(), answer.header("Strict-Transport-Security")), ("app".into(), Some("max-age=31536000")));
}

#[test]
fn mutual_tls() {
    let (site, app, admin) = (site(), Backend::saying("app"), Backend::saying("admin"));
    let servers = [("http://127.0.0.1:3000", &*app.url()), ("http://127.0.0.1:3001", &*admin.url())];
    let gateway = serve(&site, "mutual-tls.toml", &servers);
    assert_eq!(get(&gateway, "example.com", "/").text(), "app");
    let mut without = wire(&gateway, "admin.example.com");
    let _ = without.send("GET / HTTP/1.1\r\nHost: admin.example.com\r\n\r\n");
    assert!(without.response("GET").is_err(), "a client without a certificate is refused");

    let (chain, key) = site.issue("client", &["client.example.com"]).load();
    let mut roots = rustls::RootCertStore::empty();
    let authority = rustls::pki_types::pem::PemObject::pem_file_iter(&site.ca).expect("the authority's file");
    for certificate in authority {
        roots.add(certificate.expect("it is PEM")).expect("it is a certificate");
    }
    let config = rustls::ClientConfig::builder_with_provider(client::provider().into())
        .with_safe_default_protocol_versions()
        .expect("the provider knows them")
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .expect("the key belongs to the certificate");
    let stream = client::handshake(client::tcp(gateway.address), &Arc::new(config), "admin.example.com");
    let mut with = Wire::new(stream.expect("the certificate is accepted"));
    with.send("GET / HTTP/1.1\r\nHost: admin.example.com\r\n\r\n").expect("the gateway reads");
    assert_eq!(with.response("GET").expect("an answer").text(), "admin");
    assert!(admin.last().header("Client-Cert").is_some());
}

#[test]
fn grpc() {
    let site = site();
    let server = h2::Server::start(|(request, mut respond)| async move {
        h2::say(&mut respond, request.uri().path().as_bytes());
    });
    let servers = [("http://127.0.0.1:50051", &*server.url()), ("http://127.0.0.1:50052", &*server.url())];
    let gateway = serve(&site, "grpc.toml", &servers);
    assert_eq!(get(&gateway, "grpc.example.com", "/service/Method").text(), "/service/Method");
}

#[test]
fn websocket() {
    let (site, app) = (site(), Backend::saying("app"));
    let chat = Backend::answering(|request| match request.header("Sec-WebSocket-Key") {
        Some(key) => format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n\r\n",
            websocket_accept(key)
        )
        .into_bytes(),
        None => ok(b"chat"),
    });
    let servers = [("http://127.0.0.1:3000", app.url()), ("http://127.0.0.1:3001", chat.url())];
    // One chat server is enough here; a group does not take the same one twice.
    let text = on_loopback("websocket.toml").replace(", \"http://127.0.0.1:3002\"", "");
    let text = servers.iter().fold(text, |text, (written, real)| text.replace(written, real));
    let gateway = configured(&site, &text);
    assert_eq!(get(&gateway, "example.com", "/").text(), "app");
    let plain = get(&gateway, "example.com", "/chat");
    assert_eq!(plain.text(), "chat");
    assert!(plain.header("Set-Cookie").is_some_and(|cookie| cookie.starts_with("chat_server=")));
    let mut wire = wire(&gateway, "example.com");
    let upgrade = "GET /chat HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    wire.send(upgrade).expect("the gateway reads");
    let answer = wire.response("GET").expect("an answer");
    assert_eq!((answer.status(), answer.header("Sec-WebSocket-Accept")), (101, Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")));
}

#[test]
fn http3() {
    let (site, app) = (site(), Backend::saying("app"));
    // The test's HTTP/3 client asks for the site's own name.
    let certificate = (
        "cert = \"certs/example.com.pem\", key = \"certs/example.com.key\"",
        &*format!("cert = \"{}\", key = \"{}\"", site.ecdsa.cert.display(), site.ecdsa.key.display()),
    );
    let servers = [("http://127.0.0.1:3000", &*app.url()), ("\"example.com\"", "\"localhost\""), certificate];
    let gateway = serve(&site, "http3.toml", &servers);
    let answer = get(&gateway, "localhost", "/");
    assert!(answer.header("Alt-Svc").is_some_and(|value| value.starts_with("h3=")), "{answer:?}");
    let mut client = Client::connect(gateway.address, &over_quic(gateway.config(), false));
    assert_eq!(client.get("/").body, b"app");
}

#[test]
fn tls_passthrough() {
    let (site, app) = (site(), Backend::saying("app"));
    let mail = site.issue("mail", &["mail.example.com"]);
    let server = Backend::start_tls(sealane_interop::backend::tls(&mail), |mut connection| {
        while connection.request().is_some() {
            connection.send(ok(b"mail"));
        }
    });
    let servers =
        [("http://127.0.0.1:3000", &*app.url()), ("tcp://127.0.0.1:8443", &*format!("tcp://{}", server.address))];
    let gateway = serve(&site, "tls-passthrough.toml", &servers);
    assert_eq!(get(&gateway, "example.com", "/").text(), "app");
    assert_eq!(get(&gateway, "mail.example.com", "/").text(), "mail");
}

#[test]
fn proxy_protocol() {
    let (site, app) = (site(), Backend::saying("app"));
    let servers = [("http://127.0.0.1:3000", &*app.url()), ("10.0.0.0/24", "127.0.0.0/8")];
    let gateway = serve(&site, "proxy-protocol.toml", &servers);
    let mut socket = client::tcp(gateway.address);
    socket.write_all(b"PROXY TCP4 203.0.113.7 192.0.2.1 1234 443\r\n").expect("the gateway reads");
    let stream = client::handshake(socket, gateway.config(), "example.com").expect("the header is believed");
    let mut wire = Wire::new(stream);
    wire.send("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n").expect("the gateway reads");
    assert_eq!(wire.response("GET").expect("an answer").text(), "app");
    assert_eq!(app.last().header("X-Forwarded-For"), Some("203.0.113.7"));
}
