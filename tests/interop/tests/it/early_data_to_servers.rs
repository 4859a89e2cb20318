//! The gateway's own early data to servers (`early_data` of `[upstream.tls]`): which requests go so, that each reaches the server once, and
//! what follows if the server rejects it, fails or responds with 425.

use crate::early_data::{eager, early, prime};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sealane_interop::backend::{self, Backend, Pipe, ok};
use sealane_interop::client::get;
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::http::{Message, Wire};
use sealane_interop::site::{HOST, Site};
use sealane_interop::{eventually, need, ports};
use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const ON: &str = "early_data = \"16KiB\"";

/// A gateway with a server at this address. Each request needs a new connection.
fn near(site: &Site, server: SocketAddr, mode: &str, upstream: &str) -> Gateway {
    before(site, [format!("https://{HOST}:{}", server.port())])
        .tls(ON)
        .upstream(&format!("keepalive = 0\n{upstream}"))
        .upstream_tls(&format!("ca = \"{}\"\nearly_data = \"{mode}\"", site.ca.display()))
        .start()
}

/// How many connections to servers began with early data that came to this.
fn counted(near: &Gateway, result: &str) -> f64 {
    near.metric_with("sealane_upstream_early_data_connections_total", &format!("\"{result}\"")).expect("a metric")
}

/// The requests that have come, and whether each came as early data.
fn seen(backend: &Backend) -> Vec<(String, bool)> {
    backend.requests().iter().map(|r| (r.target().to_owned(), r.header("early-data") == Some("1"))).collect()
}

fn expected(requests: &[(&str, bool)]) -> Vec<(String, bool)> {
    requests.iter().map(|(path, is_early)| ((*path).to_owned(), *is_early)).collect()
}

/// One that finds everything too early that is.
fn cautious() -> Backend {
    Backend::answering(|request| match request.header("early-data") {
        Some(_) => b"HTTP/1.1 425 Too Early\r\nContent-Length: 0\r\n\r\n".to_vec(),
        None => ok(b"late"),
    })
}

#[test]
fn safe_requests_go_as_early_data_and_arrive_once() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let far = before(&site, [backend.url()]).tls(ON).start();
    let near = near(&site, far.address, "safe", "");
    assert_eq!(near.get("/full").text(), "hello");
    // What may change something does not go early, nor does what has a body.
    let post = format!("POST /post HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx");
    let get_with_body = post.replace("POST /post", "GET /body");
    for request in [post, get_with_body] {
        assert_eq!(near.exchange(request).expect("a response").text(), "hello");
    }
    assert_eq!(counted(&near, "accepted"), 0.0);
    for path in ["/one", "/two"] {
        assert_eq!(near.get(path).text(), "hello");
    }
    let all = [("/full", false), ("/post", false), ("/body", false), ("/one", true), ("/two", true)];
    assert_eq!(seen(&backend), expected(&all));
    assert_eq!(["accepted", "rejected", "failed"].map(|result| counted(&near, result)), [2.0, 0.0, 0.0]);
    assert_eq!(near.metric("sealane_upstream_retries_total"), Some(0.0));
}

/// The response to early data comes with the server's part of the handshake. The connection is good for more requests then.
#[test]
fn a_connection_that_began_with_early_data_is_kept() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let far = before(&site, [backend.url()]).tls(ON).start();
    let near = before(&site, [format!("https://{HOST}:{}", far.address.port())])
        .upstream("keepalive_timeout = \"300ms\"")
        .upstream_tls(&format!("ca = \"{}\"\nearly_data = \"safe\"", site.ca.display()))
        .start();
    assert_eq!(near.get("/full").text(), "hello");
    assert!(eventually(|| near.metric("sealane_upstream_idle_connections") == Some(0.0)), "{}", near.metrics());
    for path in ["/early", "/kept"] {
        assert_eq!(near.get(path).text(), "hello");
    }
    assert_eq!(seen(&backend), expected(&[("/full", false), ("/early", true), ("/kept", false)]));
    assert_eq!(near.metric("sealane_upstream_connects_total"), Some(2.0));
}

#[test]
fn in_mode_client_only_what_came_early_goes_early() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let far = before(&site, [backend.url()]).tls(ON).start();
    let near = near(&site, far.address, "client", "");
    for path in ["/full", "/late"] {
        assert_eq!(near.get(path).text(), "hello");
    }
    let config = eager(&near);
    prime(&near, &config);
    let (response, accepted) = early(near.address, &config, &get("/early"));
    assert!(accepted);
    assert_eq!(response.text(), "hello");
    let all = [("/full", false), ("/late", false), ("/prime", false), ("/early", true)];
    assert_eq!(seen(&backend), expected(&all));
    assert_eq!(counted(&near, "accepted"), 1.0);
}

#[test]
fn off_unless_asked_for() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let far = before(&site, [backend.url()]).tls(ON).start();
    let near = near(&site, far.address, "off", "");
    for path in ["/full", "/resumed"] {
        assert_eq!(near.get(path).text(), "hello");
    }
    assert_eq!(seen(&backend), expected(&[("/full", false), ("/resumed", false)]));
    assert_eq!(far.metric_with("sealane_early_data_connections_total", "accepted"), Some(0.0));
}

/// The ticket is for less than the head: nothing of it goes early.
#[test]
fn a_ticket_for_less_than_the_head_is_not_used_for_early_data() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let far = before(&site, [backend.url()]).tls("early_data = \"64B\"").start();
    let near = near(&site, far.address, "safe", "");
    for path in ["/full", "/resumed"] {
        assert_eq!(near.get(path).text(), "hello");
    }
    assert_eq!(["accepted", "rejected", "failed"].map(|result| counted(&near, result)), [0.0; 3]);
    assert_eq!(near.metric_with("sealane_upstream_handshakes_total", "resumed"), Some(1.0), "{}", near.metrics());
}

#[test]
fn a_server_that_finds_it_too_early_gets_it_once_more() {
    let site = Site::new();
    let backend = cautious();
    // Without a budget, this gateway passes the 425 on.
    let far = before(&site, [backend.url()]).tls(ON).upstream("retry_budget = 0\nretry_budget_min = 0").start();
    let near = near(&site, far.address, "safe", "");
    for path in ["/full", "/again", "/after"] {
        let response = near.get(path);
        assert_eq!((response.status(), response.text().as_str()), (200, "late"), "{path}");
    }
    // After a 425, the server gets no early data for a while.
    let all = [("/full", false), ("/again", true), ("/again", false), ("/after", false)];
    assert_eq!(seen(&backend), expected(&all));
    assert_eq!(near.metric("sealane_upstream_too_early_total"), Some(1.0));
    assert_eq!(near.metric("sealane_upstream_retries_total"), Some(1.0));
    assert_eq!(counted(&near, "accepted"), 1.0);
}

/// The repetition is a retry, and without a budget there is none. The client has sent no early data: it does not get the 425.
#[test]
fn a_request_that_was_too_early_is_repeated_only_within_the_budget() {
    let site = Site::new();
    let backend = cautious();
    let far = before(&site, [backend.url()]).tls(ON).upstream("retry_budget = 0\nretry_budget_min = 0").start();
    let near = near(&site, far.address, "safe", "retry_budget = 0\nretry_budget_min = 0");
    assert_eq!(near.get("/full").status(), 200);
    assert_eq!(near.get("/early").status(), 502);
    assert_eq!(seen(&backend), expected(&[("/full", false), ("/early", true)]));
}

/// A server that responds with 425 whatever it gets makes no loop.
#[test]
fn a_server_that_always_responds_with_425_gets_a_request_twice_at_most() {
    let site = Site::new();
    let backend = Backend::answering(|request| match request.target() {
        "/full" => ok(b"late"),
        _ => b"HTTP/1.1 425 Too Early\r\nContent-Length: 0\r\n\r\n".to_vec(),
    });
    let far = before(&site, [backend.url()]).tls(ON).upstream("retry_budget = 0\nretry_budget_min = 0").start();
    let near = near(&site, far.address, "safe", "");
    assert_eq!(near.get("/full").status(), 200);
    assert_eq!(near.get("/never").status(), 425, "the response to a request that was not early");
    assert_eq!(seen(&backend), expected(&[("/full", false), ("/never", true), ("/never", false)]));
}

/// Serves one request over TLS, whose tickets allow early data.
fn serve(config: &Arc<ServerConfig>, connection: &mut backend::Connection) {
    let Pipe::Plain(socket) = &connection.wire.stream else { return };
    let socket = socket.try_clone().expect("a descriptor can be duplicated");
    let session = ServerConnection::new(Arc::clone(config)).expect("the server's settings are consistent");
    let mut wire = Wire::new(StreamOwned::new(session, socket));
    if let Ok(Some(request)) = wire.request() {
        connection.note(&request);
        let _ = wire.send(ok(b"hello"));
        let _ = wire.rest();
    }
}

/// Serves every connection but the second, on which it reads the hello and what is behind it, says `last`, and leaves.
fn leaving(site: &Site, last: &'static [u8]) -> Backend {
    serving(site, 16 << 10, |connection| connection != 1, last)
}

/// The same for each connection with a number that `serves` says no to. Its tickets allow so many bytes of early data, which it does not read.
fn serving(site: &Site, early: u32, serves: fn(usize) -> bool, last: &'static [u8]) -> Backend {
    let mut config = backend::tls(&site.ecdsa);
    Arc::get_mut(&mut config).expect("nobody else has it").max_early_data_size = early;
    Backend::start(move |mut connection| {
        if serves(connection.number) {
            return serve(&config, &mut connection);
        }
        let _ = connection.wire.stream.read(&mut [0; 4096]);
        if !last.is_empty() {
            connection.send(last);
            // Until the gateway leaves: a reset could overtake the last word.
            let _ = connection.wire.rest();
        }
    })
}

/// RFC 8446 §D.3: a server may not know what it is offered any more, and says so by an alert. The request goes once more without early
/// data, and the server has not failed.
#[test]
fn a_handshake_that_is_refused_with_early_data_is_repeated_without() {
    let site = Site::new();
    // The alert handshake_failure.
    let server = leaving(&site, &[21, 3, 3, 0, 2, 2, 40]);
    let near = near(&site, server.address, "safe", "eject_after = 1");
    for path in ["/full", "/lost", "/after"] {
        assert_eq!(near.get(path).text(), "hello", "{path}");
    }
    let paths: Vec<String> = server.requests().iter().map(|r| r.target().to_owned()).collect();
    assert_eq!(paths, ["/full", "/lost", "/after"]);
    assert_eq!(server.connections(), 4);
    assert_eq!(["accepted", "rejected", "failed"].map(|result| counted(&near, result)), [0.0, 0.0, 1.0]);
    assert_eq!(near.metric("sealane_upstream_retries_total"), Some(1.0));
    assert_eq!(near.metric("sealane_upstream_connect_failures_total"), Some(0.0), "{}", near.metrics());
}

/// A server that leaves without a word may have processed the request: only the ordinary rule for a connection that breaks sends it again.
#[test]
fn a_server_that_leaves_may_have_processed_early_data() {
    let site = Site::new();
    let server = leaving(&site, b"");
    let near = near(&site, server.address, "safe", "tries = 1\neject_after = 0");
    for (path, status) in [("/full", 200), ("/lost", 502), ("/after", 200)] {
        assert_eq!(near.get(path).status(), status, "{path}");
    }
    assert_eq!(server.connections(), 3, "none was begun to repeat it");
    assert_eq!(["accepted", "rejected", "failed"].map(|result| counted(&near, result)), [0.0, 0.0, 1.0]);
    assert_eq!(near.metric("sealane_upstream_retries_total"), Some(0.0));
    // Another server gets it, as it would get any request with an idempotent method.
    let (first, second) = (leaving(&site, b""), serving(&site, 0, |_| true, b""));
    let servers = [&first, &second].map(|server| format!("https://{HOST}:{}", server.address.port()));
    let near = before(&site, servers)
        .upstream("keepalive = 0\ntries = 2\neject_after = 0")
        .upstream_tls(&format!("ca = \"{}\"\nearly_data = \"safe\"", site.ca.display()))
        .start();
    for path in ["/one", "/two", "/three", "/four", "/five", "/six"] {
        assert_eq!(near.get(path).status(), 200, "{path}");
    }
    assert!(near.metric("sealane_upstream_retries_total").is_some_and(|n| n >= 1.0), "{}", near.metrics());
}

/// `openssl s_server` that reads early data, and prints what it gets. The test writes its responses.
struct OpenSsl {
    child: Child,
    log: PathBuf,
}

impl OpenSsl {
    fn start(program: &Path, site: &Site, address: SocketAddr, name: &str, arguments: &[&str]) -> Self {
        let log = site.path().join(name);
        let file = File::create(&log).expect("a log file can be made");
        let twin = file.try_clone().expect("a descriptor can be duplicated");
        let mut command = Command::new(program);
        command.args(["s_server", "-accept", &address.to_string(), "-tls1_3", "-early_data"]);
        command.arg("-cert").arg(&site.ecdsa.cert).arg("-key").arg(&site.ecdsa.key).args(arguments);
        let child = command.stdin(Stdio::piped()).stdout(file).stderr(twin).spawn().expect("openssl starts");
        let server = Self { child, log };
        assert!(eventually(|| server.said("ACCEPT") > 0), "{}", server.text());
        server
    }

    fn text(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    fn said(&self, what: &str) -> usize {
        self.text().matches(what).count()
    }

    /// A request through a gateway; the server responds once it has it.
    fn answer(&mut self, near: &Gateway, path: &str) -> Message {
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| near.get(path));
            assert!(eventually(|| self.said(&format!("GET {path} HTTP/1.1\r\n")) == 1), "{path}: {}", self.text());
            let input = self.child.stdin.as_mut().expect("it is a pipe");
            input.write_all(&ok(b"hello")).expect("openssl reads");
            asked.join().expect("a response")
        })
    }
}

impl Drop for OpenSsl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn openssl_accepts_it_and_rejects_it_after_a_restart() {
    let program = need!("openssl");
    let site = Site::new();
    // With the protection against replays, tickets are good once; without it, they hold the session themselves.
    let protections: [&[&str]; 2] = [&[], &["-no_anti_replay"]];
    for (round, arguments) in protections.into_iter().enumerate() {
        let address = ports::free();
        let mut server = OpenSsl::start(&program, &site, address, &format!("openssl-{round}a"), arguments);
        let near = near(&site, address, "safe", "");
        for (path, early) in [("/full", 0), ("/early", 1), ("/second", 2)] {
            assert_eq!(server.answer(&near, path).text(), "hello");
            assert_eq!(server.said(&format!("GET {path} ")), 1, "{}", server.text());
            assert!(eventually(|| server.said("Early data received") == early), "{path}: {}", server.text());
        }
        assert_eq!(counted(&near, "accepted"), 2.0, "{}", near.metrics());
        drop(server);
        // Another process with other keys, at the same address.
        let mut server = OpenSsl::start(&program, &site, address, &format!("openssl-{round}b"), arguments);
        assert_eq!(server.answer(&near, "/rejected").text(), "hello");
        assert_eq!(server.said("GET /rejected "), 1, "{}", server.text());
        assert!(eventually(|| server.said("Early data was rejected") == 1), "{}", server.text());
        assert_eq!(["accepted", "rejected", "failed"].map(|result| counted(&near, result)), [2.0, 1.0, 0.0]);
        // It is no failure: no retry, and the next request goes early again.
        assert_eq!(near.metric("sealane_upstream_retries_total"), Some(0.0));
        assert_eq!(server.answer(&near, "/early-again").text(), "hello");
        assert_eq!(counted(&near, "accepted"), 3.0, "{}", near.metrics());
    }
}
