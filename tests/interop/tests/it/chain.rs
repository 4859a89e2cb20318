//! NGINX and HAProxy behind the gateway, and in front of it.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::gateway::before;
use sealane_interop::http::Wire;
use sealane_interop::peers::{haproxy, joined, nginx};
use sealane_interop::site::{HOST, Site};
use sealane_interop::{client, need, noise, ports, sha256};

/// What an NGINX backend serves: a file, and what it was asked.
fn nginx_server(listen: &str, root: &std::path::Path) -> String {
    format!(
        "server {{ listen {listen}; root {root}; default_type text/plain;\n\
         location /asked {{ return 200 \"$request_method $request_uri $http_host $http_x_forwarded_for\"; }}\n\
         location /gone {{ return 410; }} }}",
        root = root.display()
    )
}

#[test]
fn nginx_as_backend() {
    let program = need!("nginx");
    let site = Site::new();
    let body = noise(300_000, 7);
    site.file("file", &body);
    let (plain, tls) = (ports::free(), ports::free());
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let listen_tls = format!("{tls} ssl; ssl_certificate {cert}; ssl_certificate_key {key}");
    let servers = [nginx_server(&plain.to_string(), site.path()), nginx_server(&listen_tls, site.path())].join("\n");
    let _nginx = nginx(&site, &program, plain, &servers);
    let ca = format!("ca = \"{}\"", site.ca.display());
    for gateway in [
        before(&site, [format!("http://{plain}")]).start(),
        before(&site, [format!("https://{HOST}:{}", tls.port())]).upstream_tls(&ca).start(),
        // A connection per request, resumed.
        before(&site, [format!("https://{HOST}:{}", tls.port())]).upstream_tls(&ca).upstream("keepalive = 0").start(),
    ] {
        let mut wire = gateway.connect();
        for round in 0..3 {
            wire.send(format!("GET /file HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
            let response = wire.response("GET").unwrap_or_else(|broken| panic!("round {round}: {broken:?}"));
            assert_eq!((response.status(), sha256(&response.body)), (200, sha256(&body)), "round {round}");
            wire.send(format!("GET /gone HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
            assert_eq!(wire.response("GET").expect("an answer comes").status(), 410);
        }
        let asked = gateway.get("/asked?a=b%20c");
        assert_eq!(asked.text(), format!("GET /asked?a=b%20c {HOST} 127.0.0.1"));
    }
    // The same server, judged by an authority that did not sign its certificate.
    let stranger = Site::new();
    let wrong = format!("ca = \"{}\"", stranger.ca.display());
    let gateway = before(&site, [format!("https://{HOST}:{}", tls.port())]).upstream_tls(&wrong).start();
    assert_eq!(gateway.get("/file").status(), 502);
}

#[test]
fn haproxy_as_backend() {
    let program = need!("haproxy");
    let site = Site::new();
    let origin = Backend::answering(|request| ok(sha256(&request.body).as_bytes()));
    let (plain, tls) = (ports::free(), ports::free());
    let pem = joined(&site, &site.ecdsa);
    let sections = format!(
        "listen middle\n  bind {plain}\n  bind {tls} ssl crt {}\n  option http-server-close\n  server origin {}",
        pem.display(),
        origin.address
    );
    let _haproxy = haproxy(&site, &program, plain, &sections);
    let ca = format!("ca = \"{}\"", site.ca.display());
    let body = noise(300_000, 8);
    for gateway in [
        before(&site, [format!("http://{plain}")]).start(),
        before(&site, [format!("https://{HOST}:{}", tls.port())]).upstream_tls(&ca).start(),
    ] {
        let mut wire = gateway.connect();
        for round in 0..3 {
            let head = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {}\r\n\r\n", body.len());
            wire.send(head).expect("the gateway reads");
            wire.send(&body).expect("the gateway reads");
            let response = wire.response("POST").unwrap_or_else(|broken| panic!("round {round}: {broken:?}"));
            assert_eq!((response.status(), response.text()), (200, sha256(&body)), "round {round}");
        }
    }
}

/// Requests through a proxy in front of us: plain HTTP to it, TLS from it to the gateway.
fn through(front: std::net::SocketAddr, origin: &Backend) {
    let body = noise(300_000, 9);
    let mut wire = Wire::new(client::tcp(front));
    for round in 0..3 {
        let head = format!("POST /in HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {}\r\n\r\n", body.len());
        wire.send(head).expect("the front reads");
        wire.send(&body).expect("the front reads");
        let response = wire.response("POST").unwrap_or_else(|broken| panic!("round {round}: {broken:?}"));
        assert_eq!((response.status(), response.text()), (200, sha256(&body)), "round {round}");
    }
    assert_eq!(origin.requests().len(), 3);
    assert_eq!(origin.last().header("x-forwarded-proto"), Some("https"), "as the gateway was reached");
}

#[test]
fn nginx_in_front() {
    let program = need!("nginx");
    let site = Site::new();
    for keepalive in ["keepalive 4;", ""] {
        let origin = Backend::answering(|request| ok(sha256(&request.body).as_bytes()));
        let gateway = before(&site, [origin.url()]).start();
        let front = ports::free();
        let http = format!(
            "upstream gateway {{ server {}; {keepalive} }}\nserver {{ listen {front}; location / {{\n\
             proxy_pass https://gateway; proxy_http_version 1.1; proxy_set_header Connection \"\";\n\
             proxy_set_header Host $host; proxy_ssl_verify on; proxy_ssl_name {HOST}; proxy_ssl_server_name on;\n\
             proxy_ssl_trusted_certificate {}; }} }}",
            gateway.address,
            site.ca.display()
        );
        let _nginx = nginx(&site, &program, front, &http);
        through(front, &origin);
    }
}

#[test]
fn nginx_in_front_with_http_1_0() {
    let program = need!("nginx");
    let site = Site::new();
    let origin = Backend::answering(|request| ok(sha256(&request.body).as_bytes()));
    let gateway = before(&site, [origin.url()]).start();
    let front = ports::free();
    let http = format!(
        "server {{ listen {front}; location / {{ proxy_pass https://{}; proxy_set_header Host $host; \
         proxy_ssl_name {HOST}; proxy_ssl_verify on; proxy_ssl_trusted_certificate {}; }} }}",
        gateway.address,
        site.ca.display()
    );
    let _nginx = nginx(&site, &program, front, &http);
    through(front, &origin);
}

#[test]
fn haproxy_in_front() {
    let program = need!("haproxy");
    let site = Site::new();
    let origin = Backend::answering(|request| ok(sha256(&request.body).as_bytes()));
    let gateway = before(&site, [origin.url()]).start();
    let front = ports::free();
    let sections = format!(
        "listen front\n  bind {front}\n  server gateway {} ssl verify required ca-file {} sni str({HOST}) verifyhost {HOST} check",
        gateway.address,
        site.ca.display()
    );
    let _haproxy = haproxy(&site, &program, front, &sections);
    through(front, &origin);
}
