//! curl as the client of every kind of request.

use sealane_interop::backend::{Backend, chunked, head_of, ok};
use sealane_interop::gateway::before;
use sealane_interop::need;
use sealane_interop::peers::curl;
use sealane_interop::site::Site;

#[test]
fn both_tls_versions() {
    need!("curl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    for (version, options) in
        [("TLSv1.2", ["--tlsv1.2", "--tls-max", "1.2"]), ("TLSv1.3", ["--tlsv1.3", "--tls-max", "1.3"])]
    {
        let said = curl(&gateway, "/", options.iter().chain(&["--verbose"]));
        assert_eq!((said.code, said.text().as_str()), (Some(0), "hello"), "{}", said.err);
        assert!(said.err.contains(&format!("SSL connection using {version}")), "{}", said.err);
        assert!(said.err.contains("server accepted http/1.1"), "ALPN: {}", said.err);
    }
}

#[test]
fn rsa_certificate() {
    need!("curl");
    let site = Site::new();
    let rsa = site.issue_rsa("rsa", &["localhost"]);
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).identities(&[&rsa]).start();
    for ciphers in
        [["--tls-max", "1.2", "--ciphers", "ECDHE-RSA-AES128-GCM-SHA256"], ["--tlsv1.3", "-v", "--tls-max", "1.3"]]
    {
        let said = curl(&gateway, "/", ciphers);
        assert_eq!((said.code, said.text().as_str()), (Some(0), "hello"), "{}", said.err);
    }
}

#[test]
fn http_1_0() {
    need!("curl");
    let site = Site::new();
    // In chunks, which a client of 1.0 cannot read: the gateway has to take them off.
    let backend = Backend::answering(|_| chunked(b"hello", 2));
    let gateway = before(&site, [backend.url()]).start();
    let said = curl(&gateway, "/", ["--http1.0", "--include"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let text = said.text();
    assert!(text.ends_with("\r\n\r\nhello"), "{text}");
    assert!(!text.to_ascii_lowercase().contains("transfer-encoding"), "{text}");
    assert_eq!(backend.last().start, "GET / HTTP/1.1");
}

#[test]
fn head() {
    need!("curl");
    let site = Site::new();
    let backend = Backend::answering(|_| head_of(&ok(&[b'x'; 1234])).to_vec());
    let gateway = before(&site, [backend.url()]).start();
    // Twice on one connection: a body that does not come must not be waited for.
    let url = gateway.url("/second");
    let said = curl(&gateway, "/first", ["--head", &url]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert_eq!(said.text().to_ascii_lowercase().matches("content-length: 1234\r\n").count(), 2, "{}", said.text());
    assert!(backend.requests().iter().all(|request| request.method() == "HEAD"));
}

#[test]
fn post_that_expects_100_continue() {
    need!("curl");
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        let Ok(Some(mut head)) = connection.wire.request_head() else { return };
        // curl sends the body after this, or else only after a timeout of its own.
        connection.send("HTTP/1.1 100 Continue\r\n\r\n");
        let length = head.header("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
        if connection.wire.exactly(length, &mut head.body).is_ok() {
            connection.note(&head);
            connection.send(ok(b"taken"));
        }
    });
    let gateway = before(&site, [backend.url()]).start();
    let body = "b".repeat(100_000);
    // Without an interim response curl would wait longer than it may take at all.
    let options =
        ["--verbose", "--header", "Expect: 100-continue", "--expect100-timeout", "45", "--data-binary", &body];
    let said = curl(&gateway, "/", options);
    assert_eq!((said.code, said.text().as_str()), (Some(0), "taken"), "{}", said.err);
    assert!(said.err.contains("HTTP/1.1 100 Continue"), "{}", said.err);
    assert_eq!(backend.last().body.len(), 100_000);
}

#[test]
fn an_expectation_refused_needs_no_body() {
    need!("curl");
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        if let Ok(Some(head)) = connection.wire.request_head() {
            connection.note(&head);
            connection.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno\n");
        }
    });
    let gateway = before(&site, [backend.url()]).start();
    let body = "b".repeat(100_000);
    let options =
        ["--include", "--header", "Expect: 100-continue", "--expect100-timeout", "45", "--data-binary", &body];
    let said = curl(&gateway, "/", options);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.text().starts_with("HTTP/1.1 413 "), "{}", said.text());
}

#[test]
fn upload_in_chunks() {
    need!("curl");
    let site = Site::new();
    let backend = Backend::answering(|request| ok(request.text().as_bytes()));
    let gateway = before(&site, [backend.url()]).start();
    let file = site.file("upload", "line of a body\n".repeat(5_000));
    let data = format!("@{}", file.display());
    let said = curl(&gateway, "/", ["--header", "Transfer-Encoding: chunked", "--data-binary", &data]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert_eq!(said.text(), "line of a body\n".repeat(5_000));
}

#[test]
fn trailers_are_passed_on() {
    need!("curl");
    let site = Site::new();
    let answer =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 42\r\n\r\n";
    let backend = Backend::answering(move |_| answer.into());
    let gateway = before(&site, [backend.url()]).start();
    let dump = site.path().join("headers");
    let said = curl(
        &gateway,
        "/",
        ["--dump-header", &dump.display().to_string(), "--header", "TE: trailers", "--header", "Connection: TE"],
    );
    assert_eq!((said.code, said.text().as_str()), (Some(0), "hello"), "{}", said.err);
    let headers = std::fs::read_to_string(dump).expect("curl wrote the headers").to_ascii_lowercase();
    assert!(headers.contains("x-sum: 42"), "{headers}");
}

#[test]
fn redirects_are_left_alone() {
    need!("curl");
    let site = Site::new();
    let answer = "HTTP/1.1 302 Found\r\nLocation: http://elsewhere.test:81/a?b=c\r\nContent-Length: 0\r\n\r\n";
    let backend = Backend::answering(move |_| answer.into());
    let gateway = before(&site, [backend.url()]).start();
    let said = curl(&gateway, "/", ["--include"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let text = said.text();
    assert!(text.starts_with("HTTP/1.1 302 Found\r\n"), "{text}");
    assert!(text.to_ascii_lowercase().contains("location: http://elsewhere.test:81/a?b=c\r\n"), "{text}");
}

#[test]
fn several_requests_share_connections() {
    need!("curl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let url = gateway.url("/again");
    let said = curl(&gateway, "/", ["--write-out", "[%{num_connects}]", &url, &url]);
    assert_eq!((said.code, said.text().as_str()), (Some(0), "hello[1]hello[0]hello[0]"), "{}", said.err);
    assert_eq!((backend.requests().len(), backend.connections()), (3, 1));
}

#[test]
fn an_upstream_that_is_not_there_is_a_502() {
    need!("curl");
    let site = Site::new();
    let nobody = sealane_interop::ports::free();
    let gateway = before(&site, [format!("http://{nobody}")]).start();
    let said = curl(&gateway, "/", ["--include"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.text().starts_with("HTTP/1.1 502 "), "{}", said.text());
}

#[test]
fn servers_are_used_in_turn() {
    need!("curl");
    let site = Site::new();
    let (one, two) = (Backend::saying("1"), Backend::saying("2"));
    let gateway = before(&site, [one.url(), two.url()]).start();
    let url = gateway.url("/");
    let said = curl(&gateway, "/", [&url, &url, &url]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert_eq!((one.requests().len(), two.requests().len()), (2, 2), "{}", said.text());
}
