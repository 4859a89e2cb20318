//! The admin listener over real sockets.

use sealane_control::admin::{self, MetricSource};
use sealane_control::prometheus::Writer;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

#[derive(Default)]
struct Source {
    draining: AtomicBool,
}

impl MetricSource for Source {
    fn render(&self, out: &mut Writer) {
        out.counter("test_total", "A test.").sample(&[("lane", "0")], 7u64);
    }

    fn healthy(&self) -> bool {
        !self.draining.load(Relaxed)
    }
}

fn with_admin(test: impl FnOnce(SocketAddr, &Source) + Send + 'static) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let source = Arc::new(Source::default());
        let server = tokio::spawn(admin::serve(listener, source.clone()));
        tokio::task::spawn_blocking(move || test(address, &source)).await.unwrap();
        server.abort();
    });
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // A refused request may end in a reset after the answer.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn get(address: SocketAddr, path: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
}

#[test]
fn pages() {
    with_admin(|address, source| {
        let metrics = get(address, "/metrics");
        assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
        assert!(metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{metrics}");
        assert!(metrics.ends_with("# HELP test_total A test.\n# TYPE test_total counter\ntest_total{lane=\"0\"} 7\n"));
        assert!(get(address, "/").contains("/healthz"));
        assert!(get(address, "/healthz").ends_with("ok\n"));
        source.draining.store(true, Relaxed);
        assert!(get(address, "/healthz").starts_with("HTTP/1.1 503 "));
        assert!(get(address, "/etc/passwd").starts_with("HTTP/1.1 404 "));
        let post = ask(address, "POST /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("allow: GET, HEAD\r\n"), "{post}");
        let head = ask(address, "HEAD /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    });
}

#[test]
fn large_heads_are_refused() {
    with_admin(|address, _| {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(64 * 1024));
        let answer = ask(address, &request);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
        assert!(get(address, "/healthz").ends_with("ok\n"));
    });
}

#[test]
fn silent_connections_do_not_take_all_the_places() {
    with_admin(|address, _| {
        // One fewer than there are places: the last one is still served.
        let silent: Vec<TcpStream> = (0..31).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert!(get(address, "/healthz").ends_with("ok\n"));
        drop(silent);
    });
}
