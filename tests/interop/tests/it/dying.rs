//! Backends that die at every point of an exchange, or talk nonsense: the client gets a 502 or a connection that is
//! plainly cut, never something that looks like a whole response.

use sealane_interop::backend::{Backend, Connection, ok};
use sealane_interop::client::{self, get};
use sealane_interop::eventually;
use sealane_interop::gateway::before;
use sealane_interop::http::{Broken, Message};
use sealane_interop::site::{HOST, Site};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A backend that sends so many bytes of the response and then ends, one way or the other.
struct Dying {
    backend: Backend,
    plan: Arc<Mutex<(usize, bool)>>,
}

impl Dying {
    fn of(response: &'static [u8]) -> Self {
        let plan = Arc::new(Mutex::new((0, false)));
        let ours = Arc::clone(&plan);
        let backend = Backend::start(move |mut connection| {
            while connection.request().is_some() {
                let (sent, reset) = *ours.lock().expect("nobody panics with it");
                connection.send(&response[..sent]);
                // After a whole response the connection stays, so that the next death is that of a kept one.
                match (sent == response.len(), reset) {
                    (true, _) => {}
                    (false, true) => return connection.reset(),
                    (false, false) => return,
                }
            }
        });
        Self { backend, plan }
    }

    fn after(&self, sent: usize, reset: bool) {
        *self.plan.lock().expect("nobody panics with it") = (sent, reset);
    }
}

/// A POST is never tried again, so that each plan is met exactly once.
fn post(version: &str) -> Vec<u8> {
    format!("POST / HTTP/{version}\r\nHost: {HOST}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi").into_bytes()
}

/// What a client may see of a response that was cut: 502, or less than the whole.
fn judge(result: Result<Message, Box<Broken>>, what: &str) {
    match result {
        Ok(response) => assert_eq!(response.status(), 502, "{what}: {response:?}"),
        Err(broken) => {
            assert!(!matches!(broken.error.kind(), std::io::ErrorKind::WouldBlock), "{what} hangs: {broken:?}")
        }
    }
}

fn dies_at_every_byte(response: &'static [u8], body: &[u8]) {
    let site = Site::new();
    let dying = Dying::of(response);
    let gateway = before(&site, [dying.backend.url()]).start();
    for version in ["1.1", "1.0"] {
        for reset in [false, true] {
            for sent in 0..response.len() {
                dying.after(sent, reset);
                let what = format!("HTTP/{version}, {sent} of {} bytes, reset {reset}", response.len());
                judge(gateway.exchange(post(version)), &what);
            }
        }
        dying.after(response.len(), false);
        let whole = gateway.exchange(post(version)).unwrap_or_else(|broken| panic!("the whole: {broken:?}"));
        assert_eq!((whole.status(), whole.body.as_slice()), (200, body));
    }
    assert_eq!(dying.backend.requests().len(), 2 * (2 * response.len() + 1), "each POST came exactly once");
}

#[test]
fn at_every_byte_of_a_response_with_a_length() {
    dies_at_every_byte(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nX-Test: yes\r\n\r\ntwelve bytes", b"twelve bytes");
}

#[test]
fn at_every_byte_of_a_chunked_response() {
    let response =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\ntwelve\r\n6\r\n bytes\r\n0\r\nX-Sum: 1\r\n\r\n";
    dies_at_every_byte(response, b"twelve bytes");
}

#[test]
fn at_every_byte_after_an_interim_response() {
    dies_at_every_byte(
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"ok",
    );
}

/// Without a length only the connection's end tells; a reset is then no good end, whichever the client's version.
#[test]
fn a_reset_in_a_response_that_ends_with_the_connection() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        let Some(request) = connection.request() else { return };
        connection.send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nsome text");
        if request.target() == "/reset" {
            // After the bytes have been read, since a reset may overtake them.
            let _ = connection.wire.rest_within(std::time::Duration::from_millis(100));
            connection.reset();
        }
    });
    let gateway = before(&site, [backend.url()]).start();
    for version in ["1.1", "1.0"] {
        let ask = |path: &str| {
            let request =
                format!("POST {path} HTTP/{version}\r\nHost: {HOST}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
            gateway.exchange(request)
        };
        let whole = ask("/whole").unwrap_or_else(|broken| panic!("HTTP/{version}: {broken:?}"));
        assert_eq!(whole.text(), "some text", "HTTP/{version}");
        judge(ask("/reset"), &format!("HTTP/{version}"));
    }
}

#[test]
fn before_the_request_is_read() {
    let site = Site::new();
    for reset in [false, true] {
        let backend = Backend::start(move |connection| {
            if reset {
                connection.reset()
            }
        });
        let gateway = before(&site, [backend.url()]).start();
        for request in [get("/"), post("1.1")] {
            let response = gateway.exchange(&request).unwrap_or_else(|broken| panic!("reset {reset}: {broken:?}"));
            assert_eq!(response.status(), 502, "reset {reset}");
        }
    }
}

#[test]
fn in_the_middle_of_an_upload() {
    let site = Site::new();
    for reset in [false, true] {
        let backend = Backend::start(move |mut connection| {
            let Ok(Some(mut head)) = connection.wire.request_head() else { return };
            if head.method() == "GET" {
                connection.send(ok(b"hello"));
                return;
            }
            let _ = connection.wire.exactly(50_000, &mut head.body);
            if reset {
                connection.reset();
            }
        });
        let gateway = before(&site, [backend.url()]).start();
        let mut request = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 5000000\r\n\r\n").into_bytes();
        request.resize(request.len() + 5_000_000, b'x');
        judge(gateway.exchange(&request), &format!("reset {reset}"));
        assert_eq!(gateway.get("/").text(), "hello");
    }
}

/// A backend may answer before it has read all, and then close: its answer is passed on.
#[test]
fn an_early_response_to_an_upload() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        let Ok(Some(_)) = connection.wire.request_head() else { return };
        connection.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno");
        connection.finish();
        // Read on, so that no reset overtakes the answer.
        let _ = connection.wire.rest_within(std::time::Duration::from_secs(2));
    });
    let gateway = before(&site, [backend.url()]).start();
    let mut request = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 400000\r\n\r\n").into_bytes();
    request.resize(request.len() + 400_000, b'x');
    let response = gateway.exchange(&request).unwrap_or_else(|broken| panic!("{broken:?}"));
    assert_eq!((response.status(), response.text().as_str()), (403, "no"));
}

/// What is left of a request after its response cannot be told from the next request: the client is told that the connection
/// closes (RFC 9112 §9.6).
#[test]
fn an_early_response_without_a_body_says_that_the_connection_closes() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        let Ok(Some(_)) = connection.wire.request_head() else { return };
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        let _ = connection.wire.rest_within(std::time::Duration::from_secs(2));
    });
    let gateway = before(&site, [backend.url()]).start();
    let mut wire = gateway.connect();
    wire.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 400000\r\n\r\nsome")).expect("it is read");
    let response = wire.response("POST").unwrap_or_else(|broken| panic!("{broken:?}"));
    assert_eq!((response.status(), response.header("connection")), (200, Some("close")));
}

/// A kept connection that the backend closes between two requests: that is no failure of the next request.
#[test]
fn a_kept_connection_that_went_stale_is_not_the_clients_affair() {
    let site = Site::new();
    for reset in [false, true] {
        let backend = Backend::start(move |mut connection| {
            if connection.request().is_some() {
                connection.send(ok(b"once"));
                if reset {
                    // Later than the response has been read: a reset throws away what has not.
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    connection.reset();
                }
            }
        });
        let gateway = before(&site, [backend.url()]).start();
        let mut wire = gateway.connect();
        for round in 0..50 {
            wire.send(format!("GET /{round} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
            let response = wire.response("GET").unwrap_or_else(|broken| panic!("round {round}: {broken:?}"));
            assert_eq!(response.text(), "once", "round {round}, reset {reset}");
        }
    }
}

/// A POST is not sent twice, so it must not be sent on a connection that is known to be gone.
#[test]
fn a_post_after_the_backend_has_left() {
    let site = Site::new();
    for pause in [0, 20] {
        // The end comes as one event with the response, or as one of its own.
        let backend = Backend::start(move |mut connection| {
            if connection.request().is_some() {
                connection.send(ok(b"once"));
                std::thread::sleep(std::time::Duration::from_millis(pause));
            }
        });
        let gateway = before(&site, [backend.url()]).start();
        for round in 0..20 {
            let response = gateway.exchange(post("1.1")).unwrap_or_else(|broken| panic!("round {round}: {broken:?}"));
            assert_eq!(response.text(), "once", "round {round}, pause {pause}");
            // The gauge may be read before the connection goes to the pool: the second look counts.
            std::thread::sleep(std::time::Duration::from_millis(2 * pause + 5));
            let idle = || gateway.metric("sealane_upstream_idle_connections");
            assert!(eventually(|| idle() == Some(0.0)), "a connection that is gone is kept: {:?}", idle());
        }
    }
}

/// The race: the backend closes at the very moment when the next request comes. A GET may be sent again, a POST not.
#[test]
fn a_request_lost_on_a_kept_connection_is_sent_again_if_it_may() {
    let site = Site::new();
    let lost = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lost);
    let backend = Backend::start(move |mut connection: Connection| {
        while let Some(request) = connection.request() {
            // The second request of the first connection is read, and the connection closed without an answer.
            if request.target() == "/lost" && count.fetch_add(1, Ordering::Relaxed) == 0 {
                return;
            }
            connection.send(ok(b"here"));
        }
    });
    let gateway = before(&site, [backend.url()]).start();
    let mut wire = gateway.connect();
    for target in ["/first", "/lost"] {
        wire.send(format!("GET {target} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("an answer comes").text(), "here", "{target}");
    }
    assert_eq!(lost.load(Ordering::Relaxed), 2);
    lost.store(0, Ordering::Relaxed);
    wire.send(format!("POST /lost HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 0\r\n\r\n")).expect("the gateway reads");
    assert_eq!(wire.response("POST").expect("an answer comes").status(), 502);
    assert_eq!(lost.load(Ordering::Relaxed), 1, "a POST was sent twice");
}

#[test]
fn a_backend_that_hangs_is_a_504() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        let _ = connection.request();
        let _ = connection.wire.rest();
    });
    let gateway = before(&site, [backend.url()]).upstream("first_byte_timeout = \"300ms\"").start();
    assert_eq!(gateway.get("/").status(), 504);
}

#[test]
fn a_backend_that_hangs_in_its_response_is_cut() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        let _ = connection.request();
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome");
        let _ = connection.wire.rest();
    });
    let gateway = before(&site, [backend.url()]).upstream("idle_timeout = \"300ms\"").start();
    let broken = gateway.exchange(get("/")).expect_err("only a part has come");
    assert_eq!(broken.error.kind(), std::io::ErrorKind::UnexpectedEof, "{broken:?}");
    assert_eq!(broken.partial.text(), "some");
}

#[test]
fn a_client_that_leaves_frees_the_upstream() {
    let site = Site::new();
    let gone = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&gone);
    let backend = Backend::start(move |mut connection| {
        let _ = connection.request();
        // Only the gateway's leaving ends this.
        let _ = connection.wire.rest();
        count.fetch_add(1, Ordering::Relaxed);
    });
    let gateway = before(&site, [backend.url()]).start();
    let mut wire = gateway.connect();
    wire.send(get("/")).expect("the gateway reads");
    assert!(eventually(|| backend.requests().len() == 1));
    drop(wire);
    assert!(eventually(|| gone.load(Ordering::Relaxed) == 1), "the upstream is still asked for nobody");
}

#[test]
fn nonsense_is_a_502() {
    let site = Site::new();
    let long = format!("HTTP/1.1 200 OK\r\nX-Long: {}\r\nContent-Length: 0\r\n\r\n", "x".repeat(2 << 20));
    let many = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 0\r\n\r\n", "X-Many: 1\r\n".repeat(20_000));
    let nonsense: Vec<Vec<u8>> = [
        "garbage\r\n\r\n",
        "\0\u{1}\u{2}\u{3}",
        "HTTP/1.1\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 abc OK\r\n\r\n",
        "HTTP/1.1 999999 OK\r\n\r\n",
        "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        "ICY 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n Folded: 1\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        &long,
        &many,
    ]
    .map(|text| text.as_bytes().to_vec())
    .into();
    for bytes in nonsense {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
        let backend = Backend::start(move |mut connection| {
            let _ = connection.request();
            connection.send(&bytes);
        });
        let gateway = before(&site, [backend.url()]).start();
        let response = gateway.exchange(get("/")).unwrap_or_else(|broken| panic!("{shown:?}: {broken:?}"));
        assert_eq!(response.status(), 502, "{shown:?}: {response:?}");
    }
}

/// A backend that says more than it announced must not put words into the next answer.
#[test]
fn what_follows_a_response_unasked_is_not_the_next_one() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        while let Some(request) = connection.request() {
            let mut answer = ok(request.target().as_bytes());
            answer.extend_from_slice(&ok(b"poison"));
            connection.send(answer);
        }
    });
    let gateway = before(&site, [backend.url()]).start();
    let mut wire = gateway.connect();
    for round in 0..10 {
        wire.send(format!("GET /{round} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
        let response = wire.response("GET").unwrap_or_else(|broken| panic!("round {round}: {broken:?}"));
        assert_eq!(response.text(), format!("/{round}"));
    }
    drop(wire);
    // Nor another client's.
    let response = client::exchange(gateway.address, gateway.config(), &get("/other")).expect("an answer comes");
    assert_eq!(response.text(), "/other");
}
