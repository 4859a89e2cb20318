//! The admin listeners against clients that want them to fail, and against operators whose certificates are good no more.

use crate::admin_api::{Reply, for_operators_with, over_socket, over_tls, with_certificate};
use crate::operating::Operated;
use sealane_interop::backend::Backend;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{client, eventually, ports};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

fn running(site: &Site) -> (Operated, Backend) {
    let backend = Backend::saying("hello");
    (Operated::simple(site, 1, ports::free(), &backend.url()), backend)
}

/// Sends bytes to the admin socket, and reads until the gateway closes.
fn raw(socket: &Path, bytes: &[u8]) -> Reply {
    let mut stream = UnixStream::connect(socket).expect("the gateway listens");
    // A refused request may end before it was read.
    let _ = stream.write_all(bytes);
    Reply::read(stream)
}

/// A request that operators want to be served whatever happens.
fn is_served(running: &mut Operated) -> bool {
    running.gateway.server.running() && over_socket(&running.socket, "GET", "/healthz", &[], "").status == 200
}

#[test]
fn half_requests_end_by_themselves() {
    let site = Site::new();
    let (mut running, _backend) = running(&site);
    let length = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n";
    for (half, status) in [
        ("POST /v1/reload HTT".to_owned(), [0, 408]),
        ("GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX: ".to_owned(), [0, 408]),
        // The body does not come.
        (format!("POST /v1/server HTTP/1.1\r\n{length}{{\"upstream\""), [408, 408]),
        (format!("POST /v1/upstreams/app/servers HTTP/1.1\r\n{length}{{"), [408, 408]),
        (
            "PUT /v1/config HTTP/1.1\r\nHost: a\r\nIf-Match: *\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nlanes"
                .to_owned(),
            [408, 408],
        ),
    ] {
        let mut stream = UnixStream::connect(&running.socket).expect("the gateway listens");
        stream.write_all(half.as_bytes()).expect("it is read");
        // The client waits; the gateway does not.
        assert!(is_served(&mut running), "{half}");
        let reply = Reply::read(&mut stream);
        assert!(status.contains(&reply.status), "{half}: {reply:?}");
    }
    assert!(is_served(&mut running));
}

#[test]
fn bodies_that_are_no_requests_are_refused() {
    let site = Site::new();
    let (mut running, _backend) = running(&site);
    let json = [("Content-Type", "application/json")];
    let post = |path: &str, body: &str| over_socket(&running.socket, "POST", path, &json, body);
    let deep = "[".repeat(4000);
    let deep_objects = "{\"server\":".repeat(400);
    for body in [
        "",
        "{",
        "null",
        "[]",
        "7",
        "\"\"",
        "{\"server\": 7}",
        "{\"server\": \"http://127.0.0.1:1\", \"server\": \"http://127.0.0.1:2\"}",
        "{\"server\": \"http://127.0.0.1:1\", \"weight\": -1}",
        "{\"server\": \"http://127.0.0.1:1\", \"weight\": 1e99}",
        "{\"server\": \"http://127.0.0.1:1\", \"weight\": 99999999999999999999}",
        "{\"server\": \"\\ud800\"}",
        "{\"server\": \"http://127.0.0.1:1\"} {}",
        "\u{feff}{\"server\": \"http://127.0.0.1:1\"}",
        &deep,
        &deep_objects,
    ] {
        let refused = post("/v1/upstreams/app/servers", body);
        assert!(refused.is_problem(400), "{body}: {refused:?}");
        for command in ["/v1/server", "/v1/record"] {
            assert_eq!(post(command, body).status, 400, "{command} {body}");
        }
    }
    assert!(is_served(&mut running));
}

/// A configuration that is nested without end would overflow the stack of a parser that calls itself.
#[test]
fn texts_that_are_nested_without_end_are_refused() {
    let site = Site::new();
    let (mut running, _backend) = running(&site);
    let toml = [("Content-Type", "application/toml")];
    let many = 300_000;
    for (what, text) in [
        ("lists", format!("a = {}", "[".repeat(many))),
        ("closed lists", format!("a = {}{}", "[".repeat(many), "]".repeat(many))),
        ("tables", format!("a = {}", "{a=".repeat(many))),
        ("dotted keys", format!("a{} = 1", ".a".repeat(many))),
        ("headings", format!("[a{}]", ".a".repeat(many))),
        ("lists of tables", format!("[[a{}]]", ".a".repeat(many))),
        ("a long line", format!("a = \"{}\"", "x".repeat(8 << 20))),
        ("no text", "a = \"\u{0}\"".to_owned()),
    ] {
        let refused = over_socket(&running.socket, "POST", "/v1/config/validate", &toml, &text);
        assert!(refused.is_problem(422) || refused.status == 413, "{what}: {} {}", refused.status, refused.head);
        assert!(refused.body.len() < 1 << 20, "{what}: {}", refused.body.len());
        assert!(is_served(&mut running), "{what}");
    }
}

#[test]
fn bodies_without_end_are_cut() {
    let site = Site::new();
    let (mut running, _backend) = running(&site);
    let chunk = format!("10000\r\n{}\r\n", "#".repeat(0x10000));
    for (path, method, media) in [
        ("/v1/config/validate", "POST", "application/toml"),
        ("/v1/certificates/www", "PUT", "application/x-pem-file"),
        ("/v1/upstreams/app/servers", "POST", "application/json"),
        ("/v1/log-level", "POST", "text/plain"),
    ] {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: {media}\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        let mut stream = UnixStream::connect(&running.socket).expect("the gateway listens");
        stream.write_all(head.as_bytes()).expect("it is read");
        // Until the gateway reads no more, but not for ever.
        let sent = (0..1000).take_while(|_| stream.write_all(chunk.as_bytes()).is_ok()).count();
        assert!(sent < 1000, "{path}: all of it was read");
        let reply = Reply::read(&mut stream);
        assert!(reply.status == 413 || reply.status == 0, "{path}: {reply:?}");
        assert!(is_served(&mut running), "{path}");
    }
    // A length that is a lie costs nothing.
    let head = "PUT /v1/config HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIf-Match: *\r\nContent-Length: 99999999999999\r\n\r\n";
    assert!(raw(&running.socket, head.as_bytes()).is_problem(413));
}

#[test]
fn requests_that_are_no_http_end() {
    let site = Site::new();
    let (mut running, _backend) = running(&site);
    for bytes in [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0\0\0\0\0\0\0\0\r\n\r\n",
        b"GET /v1/status HTTP/9.9\r\n\r\n",
        b"GET /v1/\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /v1/reload HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"POST /v1/reload HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/log-level HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    ] {
        let reply = raw(&running.socket, bytes);
        assert!(reply.status == 0 || (400..506).contains(&reply.status), "{reply:?}");
        assert!(is_served(&mut running), "{bytes:?}");
    }
    // Names that stand for nothing, or for a path.
    for (method, path) in [
        ("DELETE", "/v1/upstreams/%00/servers/%00"),
        ("DELETE", "/v1/upstreams/%zz/servers/a"),
        ("DELETE", "/v1/upstreams/../servers/a"),
        ("DELETE", "/v1/upstreams/app%2f..%2fweb/servers/a"),
        ("DELETE", "/v1/certificates/..%2fsealane"),
        ("DELETE", "/v1/certificates/%2e%2e"),
        ("DELETE", "/v1/certificates/www?keep=file&keep=temporary"),
        ("DELETE", "/v1/certificates/www?keep=FILE"),
        ("DELETE", "/v1/certificates/www?keep"),
    ] {
        let refused = over_socket(&running.socket, method, path, &[], "");
        assert!(refused.is_problem(404) || refused.is_problem(400), "{path}: {refused:?}");
    }
    let revision = over_socket(&running.socket, "GET", "/v1/config", &[], "").json()["revision"].clone();
    assert_eq!(revision, 1, "nothing was changed");
}

/// Every change waits for its turn, and those that nobody waits for any more are not made.
#[test]
fn a_flood_of_changes_is_bounded_and_nobody_else_waits_for_it() {
    let site = Site::new();
    let (mut running, _backend) = running(&site);
    let text = running.text();
    let toml = [("Content-Type", "application/toml"), ("If-Match", "*")];
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let put = |n: usize| {
            let (socket, text) = (&running.socket, format!("{text}# {n}\n"));
            scope.spawn(move || over_socket(socket, "PUT", "/v1/config", &toml, &text).status)
        };
        let writers: Vec<_> = (0..60).map(put).collect();
        // Readers have their answers meanwhile.
        let admin = running.gateway.admin;
        for _ in 0..20 {
            let mut stream = client::tcp(admin);
            stream
                .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                .expect("it is read");
            assert_eq!(Reply::read(stream).status, 200);
        }
        writers.into_iter().map(|writer| writer.join().expect("it does not panic")).collect()
    });
    assert!(statuses.iter().all(|status| [200, 409].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&200), "{statuses:?}");
    // Who goes away before the turn comes leaves nothing that breaks.
    for _ in 0..40 {
        let mut stream = UnixStream::connect(&running.socket).expect("the gateway listens");
        let head = "POST /v1/reload HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(head.as_bytes()).expect("it is read");
    }
    assert!(eventually(|| over_socket(&running.socket, "POST", "/v1/reload", &[], "").status == 200));
    assert!(is_served(&mut running));
}

/// 64 clients of one address that have shown certificates, and read nothing of what they have asked for.
#[test]
fn operators_that_do_not_read_keep_no_other_out() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let running = for_operators_with(&site, &site.ca, &backend, "");
    let admin = running.gateway.admin;
    let alice = with_certificate(&site, &site.issue("alice", &["alice.example.test"]));
    let held: Vec<_> = (0..64)
        .filter_map(|_| {
            let mut stream = client::handshake(client::tcp(admin), &alice, HOST).ok()?;
            let request = "GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(50);
            // One that had to go for a newer one.
            stream.write_all(request.as_bytes()).ok()?;
            Some(stream)
        })
        .collect();
    assert!(!held.is_empty());
    assert_eq!(over_tls(admin, &alice, "GET", "/healthz", &[], "").expect("she may").status, 200);
    assert_eq!(over_tls(admin, &alice, "POST", "/v1/reload", &[], "").expect("she may").status, 200);
    assert_eq!(over_socket(&running.socket, "GET", "/healthz", &[], "").status, 200);
}

#[test]
fn a_revoked_operator_is_refused_without_a_reload_and_open_connections_end() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let list = site.revocations("operators.crl", &[7]);
    let line = format!("client_crl = \"{}\"\n", list.display());
    let running = for_operators_with(&site, &site.ca, &backend, &line);
    let admin = running.gateway.admin;
    let config = |file: &str, serial| with_certificate(&site, &site.issue_numbered(file, &["a.example.test"], serial));
    let (alice, bob, mallory) = (config("alice", 8), config("bob", 9), config("mallory", 7));
    let may = |config| over_tls(admin, config, "GET", "/v1/config", &[], "").is_ok_and(|reply| reply.status == 200);
    assert!(may(&alice) && may(&bob) && !may(&mallory));
    // She keeps a connection open.
    let mut open = client::handshake(client::tcp(admin), &alice, HOST).expect("she may");
    let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut first = [0; 12];
    open.write_all(request.as_bytes()).expect("it is read");
    open.read_exact(&mut first).expect("it answers");
    assert_eq!(&first, b"HTTP/1.1 200");
    site.revocations("operators.crl", &[7, 8]);
    assert!(eventually(|| !may(&alice)), "a revoked operator is served");
    assert!(may(&bob));
    // Whatever she sends now, nothing is done.
    let _ = open.write_all(b"POST /v1/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    let mut rest = Vec::new();
    let _ = open.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("reloaded"), "{}", String::from_utf8_lossy(&rest));
    let configuration = over_socket(&running.socket, "GET", "/v1/config", &[], "").json();
    assert_eq!(configuration["revision"], 1, "no reload was needed, and none was made");
    // A list that cannot be read changes nothing.
    std::fs::write(&list, "no list").expect("it can be written");
    let log = || over_socket(&running.socket, "GET", "/v1/log", &[], "").body;
    assert!(eventually(|| log().contains("[admin]: TLS in use stays")), "{}", log());
    assert!(may(&bob) && !may(&alice));
}

#[test]
fn changed_certificates_and_authorities_of_the_admin_listener_are_taken_without_a_reload() {
    let (site, others) = (Site::new(), Site::new());
    let backend = Backend::saying("hello");
    let authority = site.file("operators.pem", std::fs::read(&site.ca).expect("our own file"));
    let running = for_operators_with(&site, &authority, &backend, "");
    let admin = running.gateway.admin;
    let alice = with_certificate(&site, &site.issue("alice", &["alice.example.test"]));
    let bob = with_certificate(&site, &others.issue("bob", &["bob.example.test"]));
    let shown = || {
        let stream = client::handshake(client::tcp(admin), &alice, HOST).ok()?;
        stream.conn.peer_certificates().map(|chain| chain[0].to_vec())
    };
    let before = shown().expect("a certificate");
    // The same files with another certificate, as a renewal leaves them.
    let new = site.issue("admin", &[HOST]);
    let wanted = new.load().0[0].to_vec();
    assert_ne!(before, wanted);
    assert!(eventually(|| shown() == Some(wanted.clone())), "the old certificate is shown");
    let may = |config| over_tls(admin, config, "GET", "/healthz", &[], "").is_ok();
    assert!(may(&alice) && !may(&bob));
    std::fs::copy(&others.ca, &authority).expect("it can be written");
    assert!(eventually(|| may(&bob) && !may(&alice)), "the old authority holds");
    let configuration = over_socket(&running.socket, "GET", "/v1/config", &[], "").json();
    assert_eq!(configuration["revision"], 1);
}

/// The beginning of a request whose body does not come.
const STALLED: &str = "PUT /v1/config HTTP/1.1\r\nHost: a\r\nIf-Match: *\r\nContent-Type: application/toml\r\n\
                       Content-Length: 1000\r\n\r\nx";

fn stalled(socket: &Path, number: usize) -> Vec<UnixStream> {
    let one = |_| {
        let mut stream = UnixStream::connect(socket).expect("the gateway listens");
        let _ = stream.write_all(STALLED.as_bytes());
        stream
    };
    (0..number).map(one).collect()
}

/// Whether the gateway has sent nothing and not closed.
fn waits(stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).expect("a socket can be made non-blocking");
    let waits = matches!((&*stream).read(&mut [0]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
    stream.set_nonblocking(false).expect("and blocking again");
    waits
}

#[test]
fn stalled_bodies_keep_nobody_out() {
    let site = Site::new();
    let (mut running, _backend) = running(&site);
    let text = running.text();
    let toml = [("Content-Type", "application/toml")];
    let validated = || over_socket(&running.socket, "POST", "/v1/config/validate", &toml, &text).status;
    // A body that has come is not behind those that have not. A slow machine may need more than their ten seconds: then once more.
    let is_first = |_| {
        let held = stalled(&running.socket, 6);
        assert_eq!(validated(), 200);
        held.iter().all(waits)
    };
    assert!((0..3).any(is_first), "a good body waits for stalled ones");
    let mut held = stalled(&running.socket, 6);
    assert!(held.iter_mut().all(|stream| Reply::read(stream).is_problem(408)));

    // More than there is room for.
    let held = stalled(&running.socket, 80);
    assert!(is_served(&mut running));
    let level = over_socket(&running.socket, "POST", "/v1/log-level", &[("Content-Type", "text/plain")], "info");
    assert_eq!(level.status, 200);
    assert_eq!(over_socket(&running.socket, "POST", "/v1/reload", &[], "").status, 200);
    let displaced = running.gateway.metric("sealane_admin_connections_displaced_total");
    assert!(displaced > Some(0.0), "new connections take the place of stalled ones: {displaced:?}");
    drop(held);
    // Each has left a trace: one that was displaced, or one whose body ended too early.
    let traces = || {
        let of = |result: &str| {
            let label = format!("result=\"{result}\"");
            running.gateway.metric_with("sealane_admin_changes_total", &label).unwrap_or(0.0)
        };
        of("abandoned") + of("refused")
    };
    assert!(eventually(|| traces() >= 86.0), "{}", traces());
}

/// A configuration that is one mistake throughout.
#[test]
fn mistakes_without_end_are_counted_and_few_are_told() {
    let site = Site::new();
    let (mut running, _backend) = running(&site);
    let toml = [("Content-Type", "application/toml")];
    let text: String = (0..500_000).map(|n| format!("x{n} = 1\n")).collect();
    let refused = over_socket(&running.socket, "POST", "/v1/config/validate", &toml, &text);
    assert!(refused.is_problem(422), "{} {}", refused.status, refused.head);
    assert!(refused.body.len() < 100_000, "{}", refused.body.len());
    let errors = refused.json()["errors"].as_array().expect("a list").clone();
    let last = errors.last().and_then(|error| error["message"].as_str()).expect("a message").to_owned();
    assert!(errors.len() <= 60 && last.contains("errors are shown; there are"), "{}: {last}", errors.len());
    assert!(is_served(&mut running));
    let file = site.file("mistakes.toml", &text);
    let mut check = std::process::Command::new(sealane_interop::binary::sealane());
    let checked = check.arg("check").arg("-c").arg(file).output().expect("the program is there");
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(!checked.status.success() && said.len() < 100_000, "{}", said.len());
    assert!(said.contains("errors are shown; there are"), "{said}");
}
