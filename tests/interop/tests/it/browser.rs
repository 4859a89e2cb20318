//! A browser, which tells by itself over which version of HTTP it was served.

use aws_lc_rs::digest::{SHA256, digest};
use sealane_interop::backend::Backend;
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::process::Server;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{base64, eventually, need};
use std::path::Path;
use std::process::Command;

/// Sends something large, and tells the backend what was used for that and for the page itself.
const PAGE: &str = "<!doctype html><title>page</title><body><script>(async () => { \
    const answer = await (await fetch('/probe', {method: 'POST', body: 'x'.repeat(100000)})).text(); \
    const used = kind => [...new Set(performance.getEntriesByType(kind).map(e => e.nextHopProtocol))].join(); \
    await fetch(`/report?page=${used('navigation')}&probe=${used('resource')}&bytes=${answer}`); \
    })()</script>";
/// Asks again and again until it is served over HTTP/3, and tells the backend over what it was at first and at last.
const ASKING: &str = "<!doctype html><title>page</title><body><script>(async () => { \
    const all = []; \
    for (let i = 0; i < 400 && all.at(-1) != 'h3'; i++) { \
        await (await fetch('/ask?' + i)).text(); \
        all.push(...performance.getEntriesByType('resource').slice(all.length).map(e => e.nextHopProtocol)); \
        await new Promise(done => setTimeout(done, 100)); \
    } \
    const page = performance.getEntriesByType('navigation')[0].nextHopProtocol; \
    await fetch(`/report?page=${page}&last=${all.at(-1)}`); \
    })()</script>";
/// A browser that gets nowhere is started again so often.
const ATTEMPTS: usize = 3;

/// What a browser reports. It runs until it has; how long it takes is the machine's affair.
fn reported(program: &Path, site: &Site, gateway: &Gateway, backend: &Backend, flags: &[&str]) -> String {
    let already = backend.requests().len();
    let report = || {
        let requests = backend.requests();
        requests[already..].iter().find_map(|r| r.target().strip_prefix("/report?").map(str::to_owned))
    };
    for attempt in 0..ATTEMPTS {
        let mut command = Command::new(program);
        command.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
        ]);
        // Else it ends when the page is there.
        command.arg("--remote-debugging-port=0");
        let profile = site.path().join(format!("browser-{already}-{attempt}"));
        command.arg(format!("--user-data-dir={}", profile.display()));
        // The gateway is on IPv4 alone, and a datagram to a port that is closed ends an attempt.
        command.arg(format!("--host-resolver-rules=MAP {HOST} 127.0.0.1"));
        // Chromium takes QUIC from authorities of the user's own only by the key's hash.
        command.arg(format!("--ignore-certificate-errors-spki-list={}", key_hash(site)));
        command.args(flags).arg(gateway.url("/"));
        let mut browser = Server::start(command, site.path());
        eventually(|| report().is_some() || !browser.running());
        if let Some(report) = report() {
            return report;
        }
        println!("attempt {attempt}: {:?}\n{}", backend.requests().len(), browser.log());
    }
    panic!("the browser reports nothing");
}

/// SHA-256 of the certificate's public key, in base64.
fn key_hash(site: &Site) -> String {
    let pair = rcgen::KeyPair::from_pem(&std::fs::read_to_string(&site.ecdsa.key).expect("the key file is there"));
    let pair = pair.expect("it is a key");
    let hash = digest(&SHA256, &rcgen::PublicKeyData::subject_public_key_info(&pair));
    base64(hash.as_ref())
}

#[test]
fn chromium_over_http2_and_http3() {
    let chromium = need!("chromium");
    let site = Site::new();
    let backend = Backend::answering(|request| {
        let body = if request.method() == "POST" { request.body.len().to_string() } else { PAGE.to_owned() };
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
    });
    let gateway = before(&site, [backend.url()]).lanes(2).listener("http3 = true").start();
    let reported = |flags: &[&str]| reported(&chromium, &site, &gateway, &backend, flags);
    let origin = format!("--origin-to-force-quic-on={HOST}:{}", gateway.address.port());
    assert_eq!(reported(&[&origin]), "page=h3&probe=h3&bytes=100000");
    assert_eq!(reported(&["--disable-quic"]), "page=h2&probe=h2&bytes=100000");
    assert!(gateway.metric("sealane_quic_connections_total") >= Some(1.0));
    assert_eq!(gateway.metric("sealane_http3_errors_total"), Some(0.0));
}

/// Chromium finds HTTP/3 by Alt-Svc alone. It takes QUIC only from authorities that come with it; for others, also those
/// that its user trusts, the host must be among those of `--origin-to-force-quic-on` (with whatever port: here one that is
/// not this origin's, so that nothing is forced), or it tries, ends the handshake with `certificate_unknown`, and stays
/// with TCP.
#[test]
fn chromium_moves_to_http3_by_alt_svc() {
    let chromium = need!("chromium");
    let site = Site::new();
    let backend = Backend::answering(|_| {
        let length = ASKING.len();
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\n\r\n{ASKING}").into_bytes()
    });
    let gateway = before(&site, [backend.url()]).lanes(2).listener("http3 = true").start();
    let other_port = format!("--origin-to-force-quic-on={HOST}:1");
    assert_eq!(reported(&chromium, &site, &gateway, &backend, &[&other_port]), "page=h2&last=h3");
}
