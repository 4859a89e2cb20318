//! Who may come, by the name of a client certificate and by header: `allow_certificate`, `deny_certificate`, `allow_header`,
//! `deny_header` of listeners, hosts and routes.

use http::Method;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, SupportedProtocolVersion};
use sealane_interop::backend::Backend;
use sealane_interop::client;
use sealane_interop::eventually;
use sealane_interop::gateway::{Gateway, run};
use sealane_interop::h2;
use sealane_interop::h3::{Client, over_quic};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Identity, Site};
use sealane_interop::versions::{Asked, Everywhere, Listening};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio_rustls::TlsConnector;

fn denied(gateway: &Gateway, what: &str) -> f64 {
    gateway.metric_with("sealane_access_denied_total", &format!("what=\"{what}\"")).unwrap_or_default()
}

fn gateway(site: &Site, rest: &str) -> (Gateway, SocketAddr) {
    let tls = format!("client_auth = {{ mode = \"optional\", ca = {:?} }}", site.ca);
    Listening { tls: &tls, rest, ..Listening::default() }.start(site)
}

fn with(site: &Site, identity: Option<&Identity>, alpn: &str) -> Arc<ClientConfig> {
    with_version(site, identity, alpn, &rustls::version::TLS13)
}

fn with_version(
    site: &Site,
    identity: Option<&Identity>,
    alpn: &str,
    version: &'static SupportedProtocolVersion,
) -> Arc<ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&site.ca).expect("PEM")).expect("a certificate");
    let builder = ClientConfig::builder_with_provider(client::provider().into());
    let builder = builder.with_protocol_versions(&[version]).expect("the provider knows it");
    let builder = builder.with_root_certificates(roots);
    let mut config = match identity.map(Identity::load) {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).expect("they belong together"),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    Arc::new(config)
}

/// The status over HTTP/2.
fn second(address: SocketAddr, config: &Arc<ClientConfig>, path: &str) -> u16 {
    h2::run(async {
        let stream = tokio::net::TcpStream::connect(address).await.expect("the gateway listens");
        let name = HOST.try_into().expect("a name");
        let tls = TlsConnector::from(config.clone()).connect(name, stream).await.expect("a handshake");
        let (send, connection) = ::h2::client::handshake(tls).await.expect("the gateway speaks HTTP/2");
        tokio::spawn(connection);
        let mut send = send.ready().await.expect("the connection is open");
        let (response, _) = send.send_request(h2::request(&Method::GET, path), true).expect("it can be sent");
        response.await.expect("it is answered").status().as_u16()
    })
}

/// The statuses over HTTP/1.1, HTTP/2 and HTTP/3, each twice: the second connection resumes the first one's session.
fn visit(site: &Site, gateway: &Gateway, identity: Option<&Identity>, path: &str) -> Vec<u16> {
    let (one, two) = (with(site, identity, "http/1.1"), with(site, identity, "h2"));
    let three = over_quic(&one, false);
    let mut statuses = Vec::new();
    for _ in 0..2 {
        let answer = client::exchange(gateway.address, &one, &client::get(path)).expect("a response");
        statuses.push(answer.status());
        statuses.push(second(gateway.address, &two, path));
        let mut client = Client::connect(gateway.address, &three);
        statuses.push(client.get(path).status);
        client.close();
    }
    statuses
}

#[test]
fn a_route_may_be_for_some_certificates() {
    let site = Site::new();
    let rest = r#"
[[host]]
names = ["*"]
respond = {}
deny_certificate = "cn:mallory"
[[host.route]]
path = "/prod"
respond = {}
allow_certificate = ["uri:spiffe://example.test/ns/prod/*", "dns:*.clients.test"]
deny_certificate = ["uri:spiffe://example.test/ns/prod/sa/old"]
[[host.route]]
path = "/any"
respond = {}
allow_certificate = "any"
"#;
    let (gateway, plain) = gateway(&site, rest);
    let issue = |file: &str, name: &str| site.issue(file, &[name]);
    let web = issue("web", "spiffe://example.test/ns/prod/sa/web");
    let app = issue("app", "app.clients.test");
    let old = issue("old", "spiffe://example.test/ns/prod/sa/old");
    let other = issue("other", "spiffe://example.test/ns/test/sa/web");
    let mallory = issue("mallory", "mallory.clients.test");
    let mut refused = 0.0;
    for (identity, path, status) in [
        (Some(&web), "/prod", 200),
        (Some(&app), "/prod/x", 200),
        (Some(&old), "/prod", 403),
        (Some(&old), "/", 200),
        (Some(&other), "/prod", 403),
        (Some(&other), "/", 200),
        // The host's rule holds on its routes, too.
        (Some(&mallory), "/prod", 403),
        (Some(&mallory), "/", 403),
        (None, "/prod", 403),
        (None, "/", 200),
        (Some(&other), "/any", 200),
        (Some(&mallory), "/any", 403),
        (None, "/any", 403),
    ] {
        assert_eq!(visit(&site, &gateway, identity, path), [status; 6], "{identity:?} {path}");
        refused += if status == 403 { 6.0 } else { 0.0 };
    }
    // "any" is any of the listener's authority: with another certificate, the handshake fails, whatever the route allows.
    let others = Site::new();
    let stranger = others.issue("stranger", &["app.clients.test"]);
    let config = with(&site, Some(&stranger), "http/1.1");
    let answer = client::handshake(client::tcp(gateway.address), &config, HOST).and_then(|stream| {
        let mut wire = Wire::new(stream);
        wire.send(client::get("/"))?;
        wire.response("GET").map_err(|broken| broken.error)
    });
    assert!(answer.is_err(), "{answer:?}");
    // Without TLS nobody has a certificate.
    let mut every = Everywhere::new(&gateway, plain);
    assert_eq!(every.get("/prod").map(|(status, _)| status), [403; 3]);
    assert_eq!(denied(&gateway, "request_by_certificate"), refused + 3.0);
    assert_eq!(denied(&gateway, "request"), 0.0);
    let log = || site.log();
    let lines = || log().lines().filter(|line| line.contains("\"denied\":\"certificate\"")).count();
    assert!(eventually(|| lines() as f64 == refused + 3.0), "{}", log());
}

/// With TLS 1.2, a server could ask again in a second handshake of the connection. The gateway does not: what the client has shown
/// in its handshake, or in that of the session that it resumes, is what routes judge by.
#[test]
fn a_route_requires_a_certificate_of_tls_1_2_clients() {
    let site = Site::new();
    let rest = "[[host]]\nnames = [\"*\"]\nrespond = {}\n\
                [[host.route]]\npath = \"/private\"\nrespond = {}\nallow_certificate = \"any\"\n";
    let (gateway, _plain) = gateway(&site, rest);
    let alice = site.issue("alice", &["alice.clients.test"]);
    for (identity, path, status) in
        [(Some(&alice), "/", 200), (Some(&alice), "/private", 200), (None, "/", 200), (None, "/private", 403)]
    {
        let of = |alpn: &str| with_version(&site, identity, alpn, &rustls::version::TLS12);
        let (one, two) = (of("http/1.1"), of("h2"));
        // The second connection resumes the session of the first.
        for _ in 0..2 {
            let answer = client::exchange(gateway.address, &one, &client::get(path)).expect("a response");
            assert_eq!((answer.status(), second(gateway.address, &two, path)), (status, status), "{identity:?} {path}");
        }
        // Requests of one connection: the same client is refused in one route and served in another.
        let stream = client::handshake(client::tcp(gateway.address), &one, HOST).expect("a handshake");
        let mut wire = Wire::new(stream);
        for (path, status) in [("/", 200), (path, status), ("/", 200)] {
            wire.send(format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("it is read");
            assert_eq!(wire.response("GET").expect("a response").status(), status, "{identity:?} {path}");
        }
    }
    assert_eq!(denied(&gateway, "request_by_certificate"), 5.0);
}

/// A subject is compared as a whole: the common name alone is not enough.
#[test]
fn a_route_may_be_for_some_subjects() {
    let site = Site::new();
    let rest = r#"
[[host]]
names = ["*"]
respond = {}
deny_certificate = "subject:O=Banned,CN=edi"
[[host.route]]
path = "/whole"
respond = {}
allow_certificate = ["subject:o=Partner\\, Inc.,cn=edi", "subject:CN=edi,O=Partner"]
[[host.route]]
path = "/name"
respond = {}
allow_certificate = "cn:edi"
[[host.route]]
path = "/issuer"
respond = {}
allow_certificate = "issuer:CN=Sealane interop tests"
[[host.route]]
path = "/stranger"
respond = {}
allow_certificate = "issuer:CN=Another authority"
"#;
    let (gateway, _plain) = gateway(&site, rest);
    let partner = site.issue_of("partner", "edi", "Partner, Inc.");
    let (other, lower) = (site.issue_of("other", "edi", "Partner"), site.issue_of("lower", "edi", "partner, inc."));
    let banned = site.issue_of("banned", "edi", "banned");
    for (identity, path, status) in [
        (Some(&partner), "/whole", 200),
        // Another organization, another order of the parts, another case.
        (Some(&other), "/whole", 403),
        (Some(&lower), "/whole", 403),
        (None, "/whole", 403),
        (Some(&other), "/name", 200),
        // What is denied is so in any case.
        (Some(&banned), "/name", 403),
        (Some(&other), "/issuer", 200),
        (Some(&other), "/stranger", 403),
    ] {
        assert_eq!(visit(&site, &gateway, identity, path), [status; 6], "{identity:?} {path}");
    }
}

#[test]
fn a_route_may_be_for_requests_with_a_header() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let rest = format!(
        r#"
[[host]]
names = ["*"]
to = {url:?}
deny_header = {{ X-Debug = true, User-Agent = {{ regex = '(?i)badbot' }} }}
[[host.route]]
path = "/edge"
to = {url:?}
allow_header = {{ X-Edge-Secret = ["k7Qp2mZc9vTt", "old-secret"], X-Team = "blue*" }}
request_headers = {{ remove = ["X-Edge-Secret"] }}
"#,
        url = backend.url()
    );
    let (gateway, plain) = gateway(&site, &rest);
    let mut every = Everywhere::new(&gateway, plain);
    let (secret, team) = (("x-edge-secret", "k7Qp2mZc9vTt"), ("x-team", "blue-1"));
    let mut refused = 0.0;
    for (target, fields, status) in [
        ("/edge", &[secret, team][..], 200),
        ("/edge", &[("x-edge-secret", "old-secret"), team], 200),
        ("/edge", &[secret], 403),
        ("/edge", &[team], 403),
        ("/edge", &[("x-edge-secret", "k7Qp2mZc9vTu"), team], 403),
        ("/edge", &[("x-edge-secret", ""), team], 403),
        ("/edge", &[secret, ("x-team", "red")], 403),
        // A right value does not excuse a wrong one, in whatever spelling.
        ("/edge", &[secret, team, ("x_team", "red")], 403),
        ("/edge", &[secret, team, ("x-debug", "1")], 403),
        ("/", &[("x_debug", "0")], 403),
        // An expression is compared with each value, in whatever spelling of the name.
        ("/", &[("user-agent", "a BadBot/1")], 403),
        ("/edge", &[secret, team, ("user_agent", "badbot")], 403),
        ("/", &[("user-agent", "curl/8")], 200),
        ("/", &[], 200),
    ] {
        let before = backend.requests().len();
        let answers = every.ask(Asked { target, fields, ..Asked::default() });
        assert_eq!(answers.map(|(status, _)| status), [status; 3], "{target} {fields:?}");
        assert_eq!(backend.requests().len() - before, if status == 200 { 3 } else { 0 });
        refused += if status == 403 { 3.0 } else { 0.0 };
    }
    assert!(backend.requests().iter().all(|request| request.header("x-edge-secret").is_none()));
    assert_eq!(denied(&gateway, "request_by_header"), refused);
    let log = || site.log();
    let lines = || log().lines().filter(|line| line.contains("\"denied\":\"header\"")).count();
    assert!(eventually(|| lines() as f64 == refused), "{}", log());
}

/// A header that decides whether a request may come does not come in its trailers.
#[test]
fn what_is_denied_in_the_head_does_not_come_as_a_trailer() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        let Ok(Some(head)) = connection.wire.request_head() else { return };
        let _ = head;
        // What comes behind the head, as it is.
        let rest = connection.wire.rest_within(std::time::Duration::from_millis(300));
        connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", rest.len()));
        connection.send(&rest);
    });
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {:?}\ndeny_header = {{ X-Debug = true }}\n", backend.url());
    let (_gateway, plain) = gateway(&site, &rest);
    let mut wire = Wire::new(client::tcp(plain));
    let head = "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nTrailer: X-Debug\r\n\r\n";
    wire.send(format!("{head}2\r\nhi\r\n0\r\nX-Debug: 1\r\nX-Other: 2\r\n\r\n")).expect("it is read");
    let text = wire.response("POST").unwrap_or_else(|broken| panic!("{:?}", broken.error)).text().to_lowercase();
    assert!(text.contains("x-other: 2") && !text.contains("x-debug: 1"), "{text}");
}

/// The rule of a listener comes before those of its hosts, for every name and path, and for no other listener.
#[test]
fn a_listener_may_be_for_some_certificates_and_headers() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let rest = format!(
        r#"
[[host]]
names = ["*"]
to = {url:?}
[[host.route]]
path = "/prod"
to = {url:?}
allow_certificate = "cn:web"
[[host.route]]
path = "/moved"
redirect = "/elsewhere"
"#,
        url = backend.url()
    );
    let tls = format!("client_auth = {{ mode = \"optional\", ca = {:?} }}", site.ca);
    let plain = sealane_interop::ports::free();
    let listening =
        Listening { tls: &tls, plain: "deny_header = { X-Debug = true }\n", rest: &rest, ..Listening::default() };
    let rule =
        "http3 = true\nallow_certificate = [\"dns:*.clients.test\", \"cn:web\"]\ndeny_certificate = \"cn:mallory\"\n";
    let text = listening.text(&site, plain).replacen("http3 = true\n", rule, 1);
    let gateway = sealane_interop::gateway::configured(&site, &text);
    let issue = |file: &str, name: &str| site.issue(file, &[name]);
    let (web, app) = (issue("web", "web.clients.test"), issue("app", "app.clients.test"));
    let (other, mallory) = (issue("other", "other.test"), issue("mallory", "mallory.clients.test"));
    let mut refused = 0.0;
    for (identity, path, status) in [
        (Some(&web), "/", 200),
        (Some(&web), "/prod", 200),
        (Some(&app), "/", 200),
        // The listener lets it in, the route does not.
        (Some(&app), "/prod", 403),
        (Some(&app), "/moved", 308),
        (Some(&other), "/", 403),
        (Some(&other), "/moved", 403),
        (Some(&mallory), "/", 403),
        (None, "/", 403),
    ] {
        assert_eq!(visit(&site, &gateway, identity, path), [status; 6], "{identity:?} {path}");
        refused += if status == 403 { 6.0 } else { 0.0 };
    }
    assert_eq!(denied(&gateway, "request_by_certificate"), refused);
    // A name that no host has is not told from one that a host has.
    let response =
        client::exchange(gateway.address, &with(&site, None, "http/1.1"), b"GET / HTTP/1.1\r\nHost: x.test\r\n\r\n");
    assert_eq!(response.expect("a response").status(), 403);
    // The plain listener has another rule, and its header does not come as a trailer.
    let mut wire = Wire::new(client::tcp(plain));
    for (fields, status) in [("", 200), ("X-Debug: 1\r\n", 403), ("", 200)] {
        wire.send(format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n")).expect("it is read");
        assert_eq!(wire.response("GET").expect("a response").status(), status, "{fields}");
    }
    let head = "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nTrailer: X-Debug\r\n\r\n";
    wire.send(format!("{head}2\r\nhi\r\n0\r\nX-Debug: 1\r\nX-Other: 2\r\n\r\n")).expect("it is read");
    assert_eq!(wire.response("POST").expect("a response").status(), 200);
    let requests = backend.requests();
    let last = requests.last().expect("it came");
    assert_eq!(last.text(), "hi");
    assert!(!format!("{last:?}").to_lowercase().contains("x-debug: 1"), "{last:?}");
    assert_eq!(denied(&gateway, "request_by_header"), 1.0);
}

#[test]
fn rules_that_could_not_work_are_refused() {
    let site = Site::new();
    let listener = "[[listener]]\naddress = \"127.0.0.1:8080\"\n";
    let host = "[[host]]\nnames = [\"*\"]\nrespond = {}\n";
    for (line, told) in [
        ("allow_certificate = \"alice\"", "\"alice\" is not the name of a client"),
        ("allow_certificate = \"subject:/C=DE/CN=alice\"", "in the order of RFC 4514"),
        ("deny_certificate = \"subject:CN=alice, O=Example\"", "is not the short name of an attribute"),
        ("allow_certificate = \"cn:alice\"", "no listener asks for client certificates"),
        ("deny_certificate = \"cn:alice\"", "no listener asks for client certificates"),
        ("allow_header = { Host = \"a\" }", "cannot have a condition on \"Host\""),
        ("allow_header = { X-A = 1 }", "not a condition on \"X-A\""),
        ("allow_header = { X-A = \"*\" }", "every value"),
        ("allow_header = { X-A = \" a\" }", "no header has this value"),
        ("allow_header = \"X-A\"", "must be a table of header names"),
    ] {
        let file = site.file("rules.toml", format!("{listener}{host}{line}\n"));
        let said = run(["check".as_ref(), "-c".as_ref(), file.as_os_str()]);
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(!said.status.success() && errors.contains(told), "{line}: {errors}");
    }
    // Bytes of a relayed connection have neither.
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:8443\"\nmode = \"tcp\"\n[[host]]\nnames = [\"{HOST}\"]\npassthrough = \"a\"\n\
         allow_header = {{ X-A = true }}\n[[upstream]]\nname = \"a\"\nservers = \"127.0.0.1:1\"\n"
    );
    let said = run(["check".as_ref(), "-c".as_ref(), site.file("relay.toml", text).as_os_str()]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("cannot be used with \"passthrough\""));
    // Those of a listener need what they look at, and must judge all that it serves.
    let relayed = "passthrough = \"a\"\n[[upstream]]\nname = \"a\"\nservers = \"127.0.0.1:1\"\n";
    let of_listener = |line: &str, rest: &str| format!("{listener}{line}\n{rest}");
    let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
    let tls = format!("[listener.tls]\ncertificates = {{ cert = {cert:?}, key = {key:?} }}\n");
    for (text, told) in [
        (of_listener("allow_certificate = \"any\"", host), "does not ask for client certificates"),
        (of_listener("deny_certificate = \"cn:a\"", &format!("{tls}{host}")), "does not ask for client certificates"),
        (of_listener("allow_header = { X-A = 1 }", host), "not a condition on \"X-A\""),
        (of_listener("deny_header = { X-A = { regex = 'a(' } }", host), "\"regex\" is refused"),
        (of_listener("deny_header = { X-A = { not = 'a' } }", host), "not a condition on \"X-A\""),
        (
            of_listener(
                "mode = \"tcp\"\nallow_header = { X-A = true }",
                &format!("[[host]]\nnames = [\"*\"]\n{relayed}"),
            ),
            "\"allow_header\" judges requests, but this listener relays",
        ),
        (
            of_listener(
                "deny_header = { X-A = true }",
                &format!("{tls}{host}[[host]]\nnames = [\"b.test\"]\n{relayed}"),
            ),
            "cannot judge relayed connections, but the host \"b.test\" relays",
        ),
        (
            of_listener(
                "deny_header = { X-A = true }",
                &format!("{tls}{host}[[host]]\nnames = [\"*\"]\nalpn = [\"x\"]\n{relayed}"),
            ),
            "cannot judge relayed connections, but the host \"*\" relays",
        ),
    ] {
        let said = run(["check".as_ref(), "-c".as_ref(), site.file("listener.toml", &text).as_os_str()]);
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(!said.status.success() && errors.contains(told), "{text}: {errors}");
    }
    // A secret is not shown.
    let text = format!("{listener}{host}allow_header = {{ X-Key = [\"hunter2\"] }}\n");
    let said = run(["config".as_ref(), "show".as_ref(), "-c".as_ref(), site.file("shown.toml", text).as_os_str()]);
    let shown = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(shown.contains("X-Key") && !shown.contains("hunter2"), "{shown}");
}
