//! `mirror`: copies of requests go to another upstream, over every version of HTTP on both sides. What becomes of a copy is nothing to
//! the client.

use crate::early_data::{eager, early, prime};
use sealane_http::BodyLength;
use sealane_interop::backend::{Backend, in_chunks, ok};
use sealane_interop::client;
use sealane_interop::gateway::Gateway;
use sealane_interop::h2;
use sealane_interop::h3_server;
use sealane_interop::http::{Message, Wire};
use sealane_interop::ports;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Asked, Everywhere, Listening, VERSIONS};
use sealane_interop::{eventually, noise};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// A gateway in front of an application, whose host says `rest`, with an upstream `shadow`.
fn gateway(site: &Site, app: &str, shadow: &str, rest: &str) -> (Gateway, SocketAddr) {
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {app:?}\n{rest}\n[[upstream]]\nname = \"shadow\"\n{shadow}\n");
    Listening { tls: "early_data = \"16KiB\"", plain: "allow_connect = true", rest: &rest, ..Listening::default() }
        .start(site)
}

fn servers(shadow: &Backend) -> String {
    format!("servers = {:?}", shadow.url())
}

const MIRROR: &str = "mirror = { upstream = \"shadow\" }";

fn skipped(gateway: &Gateway, reason: &str) -> f64 {
    gateway.metric_with("sealane_mirror_skipped_total", &format!("reason=\"{reason}\"")).unwrap_or_default()
}

fn results(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric_with("sealane_mirror_results_total", &format!("result=\"{result}\"")).unwrap_or_default()
}

/// A mirror that takes requests, and answers them when the test has ended.
fn silent() -> Backend {
    Backend::start(|mut connection| {
        let _ = connection.request();
        // Until the gateway gives up.
        let _ = connection.request();
    })
}

#[test]
fn a_copy_is_what_the_upstream_gets() {
    let site = Site::new();
    let (app, shadow) = (Backend::saying("hello"), Backend::saying("from the mirror"));
    let rest = "mirror = { upstream = \"shadow\", remove_headers = [\"Authorization\"] }\n\
                request_headers = { set = { X-Version = \"2\" } }";
    let (gateway, plain) = gateway(&site, &app.url(), &servers(&shadow), rest);
    let mut every = Everywhere::new(&gateway, plain);
    let fields = [("cookie", "a=b"), ("authorization", "Bearer x"), ("x-version", "1")];
    let got = every.ask(Asked { target: "/a/b?c=d", fields: &fields, ..Asked::default() });
    assert_eq!(got, [(); 3].map(|()| (200, "hello".to_owned())));
    assert!(eventually(|| shadow.requests().len() == 3), "{:?}", shadow.requests());
    let trailers = [("x-sum", "1"), ("authorization", "hush")];
    let posted = Asked { method: "POST", target: "/up", fields: &fields, trailers: &trailers };
    assert_eq!(every.ask(posted), [(); 3].map(|()| (200, "hello".to_owned())));
    assert!(eventually(|| shadow.requests().len() == 6), "{:?}", shadow.requests());
    // Copies may overtake each other.
    let sorted = |mut requests: Vec<Message>| {
        requests.sort_by_key(|r| (r.method().to_owned(), r.all("via")[0].to_owned()));
        requests
    };
    let (seen, copies) = (sorted(app.requests()), sorted(shadow.requests()));
    let kept = |request: &Message, without: &str| -> Vec<(String, String)> {
        let mut fields: Vec<(String, String)> = request
            .headers
            .iter()
            .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
            .filter(|(name, _)| name != without && name != "connection")
            .filter(|(_, value)| value != "1.1 sealane-mirror")
            .collect();
        fields.sort_unstable();
        fields
    };
    for (at, (request, copy)) in seen.iter().zip(&copies).enumerate() {
        let version = VERSIONS[at % 3];
        assert_eq!((copy.method(), copy.target()), (request.method(), request.target()), "{version}");
        assert_eq!(copy.text(), request.text(), "{version}");
        assert_eq!(kept(copy, ""), kept(request, "authorization"), "{version}");
        assert_eq!((copy.header("x-version"), copy.header("authorization")), (Some("2"), None), "{version}");
        assert_eq!(copy.all("via")[1..], ["1.1 sealane-mirror"], "{version}");
    }
    assert!(copies[3..].iter().all(|copy| copy.text() == "hello"), "the body came along");
    for copy in &copies[3..] {
        assert_eq!(copy.trailers, [("x-sum".to_owned(), "1".to_owned())], "{copy:?}");
    }
    assert!(eventually(|| results(&gateway, "answered") == 6.0), "{}", gateway.metrics());
    assert_eq!(gateway.metric("sealane_mirrored_requests_total"), Some(6.0));
    // Copies are nobody's requests.
    assert_eq!(gateway.metric("sealane_requests_total"), Some(6.0));
    assert_eq!(gateway.metric_with("sealane_responses_total", "class=\"2xx\""), Some(6.0));
    assert!(eventually(|| site.logged("") == 6), "{}", site.log());
    assert_eq!(site.logged("\"mirror\":\"shadow\""), 6, "{}", site.log());
}

/// Copies go over HTTP/2 and HTTP/3 as well.
#[test]
fn mirrors_may_speak_every_version() {
    type Seen = Arc<Mutex<Vec<(String, Vec<u8>)>>>;
    let site = Site::new();
    let app = Backend::saying("hello");
    let seen = Seen::default();
    let note = |seen: &Seen, path: &str, body: Vec<u8>| {
        seen.lock().expect("nobody panics with it").push((path.to_owned(), body));
    };
    let second = {
        let seen = seen.clone();
        h2::Server::start(move |(request, mut respond)| {
            let seen = seen.clone();
            async move {
                let path = request.uri().path().to_owned();
                let mut body = request.into_body();
                let (bytes, _) = h2::read(&mut body).await;
                note(&seen, &path, bytes);
                h2::say(&mut respond, b"discarded");
            }
        })
    };
    let third = {
        let seen = seen.clone();
        h3_server::Server::start(&site.ecdsa, move |mut asked| {
            let seen = seen.clone();
            async move {
                let path = String::from_utf8_lossy(asked.head.path()).into_owned();
                let (bytes, _) = asked.body().await;
                note(&seen, &path, bytes);
                asked.respond(200, &[], BodyLength::Known(9)).await;
                asked.data(b"discarded").await;
                asked.finish().await;
            }
        })
    };
    let h2 = format!("servers = {:?}\nhttp = \"2\"", second.url());
    let h3 = format!("servers = {:?}\nhttp = \"3\"\n[upstream.tls]\nca = {:?}", third.url(), site.ca);
    for (name, shadow) in [("HTTP/2", h2), ("HTTP/3", h3)] {
        seen.lock().expect("nobody panics with it").clear();
        let (gateway, plain) = gateway(&site, &app.url(), &shadow, MIRROR);
        let mut every = Everywhere::new(&gateway, plain);
        assert_eq!(every.get("/get").map(|(status, _)| status), [200; 3], "{name}");
        let trailers = [("x-sum", "1")];
        let posted = Asked { method: "POST", target: "/post", trailers: &trailers, ..Asked::default() };
        assert_eq!(every.ask(posted).map(|(status, _)| status), [200; 3], "{name}");
        assert!(eventually(|| results(&gateway, "answered") == 6.0), "{name}: {}", gateway.metrics());
        let mut got = seen.lock().expect("nobody panics with it").clone();
        got.sort_unstable();
        let get = ("/get".to_owned(), Vec::new());
        let post = ("/post".to_owned(), b"hello".to_vec());
        assert_eq!(got, [get.clone(), get.clone(), get, post.clone(), post.clone(), post], "{name}");
    }
}

/// However the mirror fails, the client has its response, whole and at once: the mirror has not answered when the test reads it.
#[test]
fn a_broken_mirror_changes_nothing() {
    let site = Site::new();
    let app = Backend::answering(|request| ok(&request.body));
    let endless = Backend::start(|mut connection| {
        while connection.request().is_some() {
            connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            let mut piece = in_chunks(&noise(65_536, 1), 65_536);
            piece.truncate(piece.len() - b"0\r\n\r\n".len());
            // Until the gateway has had enough.
            for _ in 0..400 {
                connection.send(&piece);
            }
        }
    });
    let nonsense = Backend::answering(|_| b"nonsense\r\n\r\n".to_vec());
    let refusing = Backend::answering(|_| b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_vec());
    let silent = silent();
    let nobody = format!("servers = \"http://{}\"", ports::free());
    for (name, shadow, answered) in [
        ("nobody", nobody, false),
        ("nonsense", servers(&nonsense), false),
        ("silent", servers(&silent), false),
        ("endless", servers(&endless), true),
        ("error", servers(&refusing), true),
    ] {
        let rest = "mirror = { upstream = \"shadow\", timeout = \"2s\" }";
        let (gateway, plain) = gateway(&site, &app.url(), &shadow, rest);
        let mut every = Everywhere::new(&gateway, plain);
        let trailers = [("x-sum", "1")];
        let posted = Asked { method: "POST", target: "/post", trailers: &trailers, ..Asked::default() };
        assert_eq!(every.ask(posted), [(); 3].map(|()| (200, "hello".to_owned())), "{name}");
        assert_eq!(every.get("/").map(|(status, _)| status), [200; 3], "{name}");
        let result = if answered { "answered" } else { "failed" };
        assert!(eventually(|| results(&gateway, result) == 6.0), "{name}: {}", gateway.metrics());
        assert_eq!(gateway.metric_with("sealane_responses_total", "class=\"5xx\""), Some(0.0), "{name}");
        assert!(eventually(|| gateway.metric("sealane_requests_active") == Some(0.0)), "{name}: {}", gateway.metrics());
    }
}

/// A mirror that answers nothing holds as many copies as it may, and what else comes is served without.
#[test]
fn copies_are_bounded() {
    let site = Site::new();
    let (app, shadow) = (Backend::answering(|request| ok(&request.body)), silent());
    let rest = "mirror = { upstream = \"shadow\", max_requests = 2, max_body = 10, timeout = \"1h\" }";
    let (gateway, plain) = gateway(&site, &app.url(), &servers(&shadow), rest);
    let post = |body: &str, chunked: bool| {
        let mut wire = Wire::new(client::tcp(plain));
        let framed = match chunked {
            true => format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len()),
            false => format!("Content-Length: {}\r\n\r\n{body}", body.len()),
        };
        wire.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\n{framed}")).expect("the gateway reads");
        wire.response("POST").expect("it is answered").text()
    };
    // A large body is not copied, whether its length is said before or not.
    for chunked in [false, true] {
        assert_eq!(post("hello world", chunked), "hello world");
    }
    assert_eq!((skipped(&gateway, "max_body"), shadow.connections()), (2.0, 0));
    // An upload that is broken off gives its place back: more of them than there are places.
    for _ in 0..5 {
        let mut wire = Wire::new(client::tcp(plain));
        wire.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 9\r\n\r\nsome")).expect("it is read");
        let before = gateway.metric_with("sealane_aborted_exchanges_total", "by=\"client\"");
        drop(wire);
        assert!(eventually(|| gateway.metric_with("sealane_aborted_exchanges_total", "by=\"client\"") > before));
    }
    assert_eq!((skipped(&gateway, "max_requests"), shadow.connections()), (0.0, 0));
    for chunked in [false, true, false, true, true] {
        assert_eq!(post("0123456789", chunked), "0123456789");
    }
    assert_eq!(skipped(&gateway, "max_requests"), 3.0);
    assert!(eventually(|| shadow.requests().len() == 2), "{:?}", shadow.requests());
    assert!(shadow.requests().iter().all(|request| request.text() == "0123456789"));
    assert_eq!(gateway.metric("sealane_mirrored_requests_total"), Some(2.0));
}

/// Copies use no memory that requests need.
#[test]
fn nothing_is_copied_while_memory_is_short() {
    let site = Site::new();
    let (app, shadow) = (Backend::saying("hello"), Backend::saying("mirror"));
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {:?}\nmirror = {{ to = {:?} }}\n", app.url(), shadow.url());
    // A process is always larger than that.
    let top = "[limits]\nmax_memory = \"1MiB\"\n";
    let (gateway, plain) = Listening { top, rest: &rest, ..Listening::default() }.start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    let found = eventually(|| {
        assert_eq!(every.get("/").map(|(status, _)| status), [200; 3]);
        skipped(&gateway, "max_memory") > 0.0
    });
    assert!(found, "{}", gateway.metrics());
    let before = gateway.metric("sealane_mirrored_requests_total");
    let trailers = [("x-sum", "1")];
    let posted = Asked { method: "POST", target: "/post", trailers: &trailers, ..Asked::default() };
    assert_eq!(every.ask(posted), [(); 3].map(|()| (200, "hello".to_owned())));
    assert_eq!(gateway.metric("sealane_mirrored_requests_total"), before);
    assert!(shadow.requests().iter().all(|copy| copy.method() == "GET"));
}

#[test]
fn tunnels_and_early_data_are_not_mirrored() {
    let site = Site::new();
    let (app, shadow) = (Backend::saying("hello"), Backend::saying("mirror"));
    let (gateway, plain) = gateway(&site, &app.url(), &servers(&shadow), MIRROR);
    let mut wire = Wire::new(client::tcp(plain));
    wire.send(format!(
        "GET /ws HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ))
    .expect("the gateway reads");
    assert_eq!(wire.response("GET").expect("an answer").status(), 200, "the application does not know of WebSocket");
    let mut wire = Wire::new(client::tcp(plain));
    wire.send(format!("CONNECT {HOST}:80 HTTP/1.1\r\nHost: {HOST}:80\r\n\r\n")).expect("the gateway reads");
    assert!(wire.line().expect("an answer").contains(" 200"), "what follows is a tunnel");
    let config = eager(&gateway);
    // A request of its own, which is mirrored.
    prime(&gateway, &config);
    let request = format!("GET /early HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    let (response, accepted) = early(gateway.address, &config, request.as_bytes());
    assert!(accepted && response.status() == 200);
    assert_eq!((skipped(&gateway, "upgrade"), skipped(&gateway, "early_data")), (2.0, 1.0));
    assert!(eventually(|| results(&gateway, "answered") == 1.0));
    assert_eq!(shadow.requests().iter().map(|request| request.target().to_owned()).collect::<Vec<_>>(), ["/prime"]);
}

/// Only what passes the route's checks is copied, and routes may have another mirror or none.
#[test]
fn routes_choose_and_refused_requests_are_not_mirrored() {
    let site = Site::new();
    let (app, shadow, other) = (Backend::saying("hello"), Backend::saying("mirror"), Backend::saying("other"));
    let rest = format!(
        "{MIRROR}\n[[host.route]]\npath = \"/none\"\nto = {app:?}\nmirror = false\n\
         [[host.route]]\npath = \"/other\"\nto = {app:?}\nrewrite_prefix = \"/new\"\nmirror = {{ to = {other:?} }}\n\
         [[host.route]]\npath = \"/closed\"\nto = {app:?}\ndeny = \"127.0.0.0/8\"\n\
         [[host.route]]\npath = \"/said\"\nrespond = {{ body = \"said\" }}\n\
         [[host.route]]\npath = \"/half\"\nto = {app:?}\nmirror = {{ upstream = \"shadow\", percent = 50 }}\n",
        app = app.url(),
        other = other.url(),
    );
    let (gateway, plain) = gateway(&site, &app.url(), &servers(&shadow), &rest);
    let mut every = Everywhere::new(&gateway, plain);
    for (target, status) in [("/none/x", 200), ("/closed", 403), ("/said", 200), ("/other/x", 200), ("/all", 200)] {
        assert_eq!(every.get(target).map(|(status, _)| status), [status; 3], "{target}");
    }
    assert!(eventually(|| shadow.requests().len() == 3 && other.requests().len() == 3));
    assert!(shadow.requests().iter().all(|request| request.target() == "/all"));
    assert!(other.requests().iter().all(|request| request.target() == "/new/x"));
    let mut wire = Wire::new(client::tcp(plain));
    for _ in 0..400 {
        wire.send(format!("GET /half HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("the connection is kept").status(), 200);
    }
    let copies = gateway.metric("sealane_mirrored_requests_total").unwrap_or_default() - 6.0;
    assert!((100.0..300.0).contains(&copies), "{copies} of 400");
}
