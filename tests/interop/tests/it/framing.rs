//! HTTP/1.1 as clients may speak it: pipelining, keep-alive, half-close, limits, refused methods.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::client::get;
use sealane_interop::gateway::before;
use sealane_interop::site::{HOST, Site};

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let site = Site::new();
    let backend = Backend::answering(|request| ok(request.target().as_bytes()));
    let gateway = before(&site, [backend.url()]).start();
    let mut wire = gateway.connect();
    let mut all = String::new();
    for number in 0..50 {
        // With bodies between them, which must not be taken for requests.
        let body = "x".repeat(number % 5);
        all += &format!("PUT /{number} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    }
    wire.send(all).expect("the gateway reads");
    for number in 0..50 {
        let response = wire.response("PUT").unwrap_or_else(|broken| panic!("{number}: {broken:?}"));
        assert_eq!(response.text(), format!("/{number}"));
    }
}

#[test]
fn connections_persist_as_their_version_says() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    for (version, header, stays) in [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.0", "", false),
        ("1.0", "Connection: keep-alive\r\n", true),
    ] {
        let mut wire = gateway.connect();
        let request = format!("GET / HTTP/{version}\r\nHost: {HOST}\r\n{header}\r\n");
        wire.send(&request).expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("an answer comes").text(), "hello");
        if stays {
            wire.send(&request).expect("the gateway reads");
            let again = wire.response("GET").unwrap_or_else(|broken| panic!("HTTP/{version} {header}: {broken:?}"));
            assert_eq!(again.text(), "hello");
        } else {
            let (rest, end) = wire.rest();
            // Ok means close_notify: the client knows that nothing was cut.
            assert!(rest.is_empty() && end.is_ok(), "HTTP/{version} {header}: {rest:?} {end:?}");
        }
    }
}

/// A client that has sent all it has to say closes its side, and still wants the answer.
#[test]
fn a_half_closed_client_gets_its_answer() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        while connection.request().is_some() {
            // After the client's end has long been seen.
            std::thread::sleep(std::time::Duration::from_millis(200));
            connection.send(ok(b"hello"));
        }
    });
    let gateway = before(&site, [backend.url()]).start();
    let mut wire = gateway.connect();
    wire.send(get("/")).expect("the gateway reads");
    wire.stream.conn.send_close_notify();
    let _ = wire.stream.conn.complete_io(&mut wire.stream.sock);
    let response = wire.response("GET").unwrap_or_else(|broken| panic!("{broken:?}"));
    assert_eq!(response.text(), "hello");
}

/// The same with a client that reads slowly, so that the end of the answer still waits in the gateway when its FIN is read.
#[test]
fn a_half_closed_client_gets_its_answer_to_the_end() {
    let site = Site::new();
    let body = sealane_interop::noise(12_000_000, 4);
    let served = body.clone();
    let backend = Backend::answering(move |_| ok(&served));
    let gateway = before(&site, [backend.url()]).plain().start();
    for _ in 0..4 {
        let mut stream = sealane_interop::client::tcp(gateway.address);
        std::io::Write::write_all(&mut stream, &get("/")).expect("the gateway reads");
        stream.shutdown(std::net::Shutdown::Write).expect("a socket can be shut down");
        let mut wire = sealane_interop::http::Wire::new(stream);
        let response = wire.response("GET").unwrap_or_else(|broken| panic!("{broken:?}"));
        assert_eq!(response.body.len(), body.len());
    }
}

#[test]
fn responses_without_a_body_have_none() {
    let site = Site::new();
    let backend = Backend::answering(|request| match request.target() {
        "/204" => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
        "/304" => b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\nETag: \"a\"\r\n\r\n".to_vec(),
        _ => ok(b"end"),
    });
    let gateway = before(&site, [backend.url()]).start();
    let mut wire = gateway.connect();
    for (target, status) in [("/204", 204), ("/304", 304), ("/end", 200)] {
        wire.send(format!("GET {target} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
        let response = wire.response("GET").unwrap_or_else(|broken| panic!("{target}: {broken:?}"));
        assert_eq!(response.status(), status);
    }
}

#[test]
fn interim_responses_are_passed_on() {
    let site = Site::new();
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n";
    let backend = Backend::answering(move |_| [hints.as_bytes(), &ok(b"hello")].concat());
    let gateway = before(&site, [backend.url()]).start();
    let response = gateway.get("/");
    assert_eq!(
        (response.text().as_str(), response.interim.as_slice()),
        ("hello", &["HTTP/1.1 103 Early Hints".to_owned()][..])
    );
    // RFC 9110 §15.2: never to HTTP/1.0.
    let response = gateway.exchange(format!("GET / HTTP/1.0\r\nHost: {HOST}\r\n\r\n")).expect("an answer comes");
    assert!(response.interim.is_empty() && response.text() == "hello", "{response:?}");
}

#[test]
fn connect_is_refused() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let target = backend.address;
    // RFC 9112 §3.2.3 shows a Host without the port, which many clients send as well.
    for (host, expected) in [(target.to_string(), 405), (target.ip().to_string(), 405), ("other".to_owned(), 400)] {
        let response = gateway.exchange(format!("CONNECT {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(response.expect("an answer comes").status(), expected, "{host}");
    }
    assert_eq!(backend.connections(), 0);
}

/// Where it is allowed, the upstream decides, and after its 2xx there are bytes, both ways.
#[test]
fn connect_where_it_is_allowed() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        let Ok(Some(request)) = connection.wire.request_head() else { return };
        connection.note(&request);
        connection.send("HTTP/1.1 200 OK\r\n\r\n");
        let mut said = Vec::new();
        while connection.wire.exactly(5, &mut said).is_ok() {
            connection.send(said.to_ascii_uppercase());
            said.clear();
        }
    });
    let gateway = before(&site, [backend.url()]).listener("allow_connect = true").start();
    for host in ["db.example:5432", "db.example"] {
        let mut wire = gateway.connect();
        wire.send(format!("CONNECT db.example:5432 HTTP/1.1\r\nHost: {host}\r\n\r\n")).expect("the gateway reads");
        assert_eq!(wire.line().expect("it answers"), "HTTP/1.1 200 OK");
        while !wire.line().expect("the head goes on").is_empty() {}
        for word in ["hello", "again"] {
            wire.send(word).expect("the tunnel is open");
            let mut got = Vec::new();
            wire.exactly(5, &mut got).expect("the other end answers");
            assert_eq!(String::from_utf8_lossy(&got), word.to_uppercase());
        }
        assert_eq!(backend.last().start, "CONNECT db.example:5432 HTTP/1.1");
        assert_eq!(backend.last().header("host"), Some("db.example:5432"));
    }
    assert_eq!(gateway.metric("sealane_upgrades_total"), Some(2.0));
}

#[test]
fn limits_have_their_status() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()])
        .limits("max_header_size = \"8KiB\"")
        .limits("max_uri_size = \"1KiB\"")
        .limits("max_body_size = 1000")
        .start();
    let long = |length: usize| "x".repeat(length);
    for (status, request) in [
        (200, format!("GET /{} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n", long(1_000))),
        (414, format!("GET /{} HTTP/1.1\r\nHost: {HOST}\r\n\r\n", long(2_000))),
        (200, format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nX: {}\r\nConnection: close\r\n\r\n", long(7_000))),
        (431, format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nX: {}\r\n\r\n", long(9_000))),
        (431, format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n{}\r\n", "X: y\r\n".repeat(1_500))),
        (
            200,
            format!(
                "POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n{}",
                long(1_000)
            ),
        ),
        (413, format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 1001\r\n\r\n{}", long(1_001))),
        (505, format!("GET / HTTP/3.0\r\nHost: {HOST}\r\n\r\n")),
        (400, format!("GET / HTTP/one\r\nHost: {HOST}\r\n\r\n")),
    ] {
        let what = request[..request.len().min(60)].to_owned();
        let response = gateway.exchange(&request).unwrap_or_else(|broken| panic!("{what:?}: {broken:?}"));
        assert_eq!(response.status(), status, "{what:?}: {response:?}");
    }
    // In chunks the limit shows only on the way: then there may be an answer or a cut, but no success.
    let body = format!(
        "POST / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n{}\r\n0\r\n\r\n",
        long(2_048)
    );
    if let Ok(response) = gateway.exchange(body) {
        assert_eq!(response.status(), 413);
    }
}

/// `sealane respond` answers by itself.
#[test]
fn respond_without_an_upstream() {
    let site = Site::new();
    let (address, admin) = (sealane_interop::ports::free(), sealane_interop::ports::free());
    let mut command = std::process::Command::new(sealane_interop::binary::sealane());
    command.args(["respond", "--listen", &address.to_string(), "--admin", &admin.to_string()]);
    command.arg("--cert").arg(&site.ecdsa.cert).arg("--key").arg(&site.ecdsa.key);
    command.args(["--status", "503", "--body", "back soon\n"]);
    let gateway = sealane_interop::gateway::launch(&site, command, address, admin);
    let mut wire = gateway.connect();
    for method in ["GET", "HEAD", "POST"] {
        wire.send(format!("{method} / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 0\r\n\r\n"))
            .expect("the gateway reads");
        let response = wire.response(method).unwrap_or_else(|broken| panic!("{method}: {broken:?}"));
        assert_eq!((response.status(), response.header("content-length")), (503, Some("10")), "{method}");
        assert_eq!(response.text(), if method == "HEAD" { "" } else { "back soon\n" });
    }
}
