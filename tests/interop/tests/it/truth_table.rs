//! How each version's end, reset, abort and silence maps to each other's: the table of `docs/http-versions.md`, walked
//! for every version in front with every version behind. A version more is a variant of [`Front`] or [`Back`] and its
//! functions here; the rows stay.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response};
use sealane_interop::backend::Backend;
use sealane_interop::eventually;
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::h2::{self, End, Server, connect};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Front {
    H1,
    H2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Back {
    H1,
    H2,
}

/// What a client comes away with.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    /// 0: no response.
    status: u16,
    body: String,
    /// The response came to its end, and not to another.
    whole: bool,
    /// The trailer `x-sum`.
    trailer: Option<String>,
}

fn whole(status: u16, body: &str) -> Outcome {
    Outcome { status, body: body.to_owned(), whole: true, trailer: None }
}

/// A row: what the client asks, and what it must come away with, whatever the versions.
fn rows() -> Vec<(&'static str, &'static str, Outcome)> {
    let cut = |body: &str| Outcome { whole: false, ..whole(200, body) };
    vec![
        ("GET", "/length", whole(200, "hello")),
        ("GET", "/unknown-length", whole(200, "hello")),
        ("GET", "/empty", whole(200, "")),
        ("GET", "/no-content", whole(204, "")),
        ("HEAD", "/length", whole(200, "")),
        ("GET", "/interim", whole(200, "hello")),
        ("GET", "/trailers", Outcome { trailer: Some("42".to_owned()), ..whole(200, "hello") }),
        ("POST", "/echo", whole(200, "request")),
        // Before the response's head: an error of the gateway's own.
        ("POST", "/abort-before-head", whole(502, "502 Bad Gateway\n")),
        ("GET", "/nonsense", whole(502, "502 Bad Gateway\n")),
        ("GET", "/silence", whole(504, "504 Gateway Timeout\n")),
        // After it: nothing may look whole.
        ("GET", "/abort-in-length", cut("hel")),
        ("GET", "/abort-in-unknown-length", cut("hel")),
        ("GET", "/silence-in-body", cut("hel")),
        // An answer before the request has come whole.
        ("POST", "/early-answer", whole(200, "early")),
    ]
}

/// A server, and how many requests have been called off on it.
struct Behind {
    url: String,
    aborted: Arc<AtomicUsize>,
    _kept: Box<dyn std::any::Any>,
}

fn h1_server() -> Behind {
    let aborted = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&aborted);
    let backend = Backend::start(move |mut connection| {
        while let Ok(Some(mut request)) = connection.wire.request_head() {
            let path = request.target().to_owned();
            if path == "/early-answer" {
                connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly");
                // Bytes left unread would turn the close into a reset, which may overtake the answer.
                let _ = connection.wire.rest();
                return;
            }
            let length = request.header("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
            if connection.wire.exactly(length, &mut request.body).is_err() {
                counted.fetch_add(1, Ordering::SeqCst);
                return;
            }
            let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n";
            match &path[..] {
                "/length" if request.method() == "HEAD" => {
                    connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
                }
                "/length" => connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
                "/unknown-length" => connection.send(format!("{chunked}\r\n5\r\nhello\r\n0\r\n\r\n")),
                "/empty" => connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
                "/no-content" => connection.send("HTTP/1.1 204 No Content\r\n\r\n"),
                "/interim" => connection.send(
                    "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
                ),
                "/trailers" => {
                    connection.send(format!("{chunked}Trailer: X-Sum\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 42\r\n\r\n"))
                }
                "/echo" => {
                    let length = request.body.len();
                    connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"));
                    connection.send(&request.body);
                }
                "/abort-before-head" => return connection.reset(),
                "/nonsense" => {
                    connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!");
                    return;
                }
                "/abort-in-length" => {
                    connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel");
                    return;
                }
                "/abort-in-unknown-length" => {
                    connection.send(format!("{chunked}\r\n3\r\nhel\r\n"));
                    return;
                }
                path => {
                    if path == "/silence-in-body" {
                        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel");
                    }
                    // Until the gateway gives up.
                    let mut byte = [0];
                    if matches!(connection.wire.stream.read(&mut byte), Ok(0) | Err(_)) {
                        counted.fetch_add(1, Ordering::SeqCst);
                    }
                    return;
                }
            }
        }
    });
    Behind { url: backend.url(), aborted, _kept: Box::new(backend) }
}

fn h2_server() -> Behind {
    let aborted = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&aborted);
    let server = Server::start(move |(request, mut respond)| {
        let counted = Arc::clone(&counted);
        async move {
            let (parts, mut body) = request.into_parts();
            let path = parts.uri.path().to_owned();
            let mut response = Response::new(());
            let length = |n: u64| HeaderValue::from(n);
            if path == "/early-answer" {
                return h2::say(&mut respond, b"early");
            }
            let (bytes, ended) = h2::read(&mut body).await;
            if !matches!(ended, End::Whole | End::Trailers(_)) {
                counted.fetch_add(1, Ordering::SeqCst);
                return;
            }
            match &path[..] {
                "/abort-before-head" => return respond.send_reset(::h2::Reason::INTERNAL_ERROR),
                "/nonsense" => {
                    response.headers_mut().append("content-length", length(5));
                    response.headers_mut().append("content-length", length(6));
                }
                "/interim" => {
                    let mut hints = Response::new(());
                    *hints.status_mut() = http::StatusCode::EARLY_HINTS;
                    let _ = respond.send_informational(hints);
                    response.headers_mut().insert("content-length", length(5));
                }
                "/length" | "/abort-in-length" | "/silence-in-body" => {
                    response.headers_mut().insert("content-length", length(5));
                }
                "/no-content" => *response.status_mut() = http::StatusCode::NO_CONTENT,
                _ => {}
            }
            let bare = matches!(&path[..], "/empty" | "/no-content") || parts.method == Method::HEAD;
            if path == "/silence" {
                let _ = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
                counted.fetch_add(1, Ordering::SeqCst);
                return;
            }
            let Ok(mut send) = respond.send_response(response, bare) else { return };
            if bare {
                return;
            }
            match &path[..] {
                "/abort-in-length" | "/abort-in-unknown-length" | "/silence-in-body" => {
                    let _ = send.send_data(Bytes::from_static(b"hel"), false);
                    // What was sent arrives before what comes next.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    if path == "/silence-in-body" {
                        let _ = std::future::poll_fn(|cx| send.poll_reset(cx)).await;
                        counted.fetch_add(1, Ordering::SeqCst);
                    } else {
                        send.send_reset(::h2::Reason::INTERNAL_ERROR);
                    }
                }
                "/trailers" => {
                    let _ = send.send_data(Bytes::from_static(b"hello"), false);
                    let mut trailers = HeaderMap::new();
                    trailers.insert("x-sum", HeaderValue::from_static("42"));
                    let _ = send.send_trailers(trailers);
                }
                "/echo" => drop(send.send_data(Bytes::from(bytes), true)),
                _ => drop(send.send_data(Bytes::from_static(b"hello"), true)),
            }
        }
    });
    Behind { url: server.url(), aborted, _kept: Box::new(server) }
}

/// `/early-answer` announces more than it sends until it is answered; `/echo` sends all.
fn body_of(path: &str) -> (&'static str, usize) {
    match path {
        "/echo" => ("request", 7),
        "/early-answer" => ("request", 8),
        "/abort-before-head" => ("request", 7),
        _ => ("", 0),
    }
}

fn ask_h1(gateway: &Gateway, method: &str, path: &str) -> Outcome {
    let mut wire = Wire::new(sealane_interop::client::tcp(gateway.address));
    let (body, length) = body_of(path);
    let head = match method {
        "POST" => format!("POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {length}\r\n\r\n{body}"),
        _ => format!("{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nTE: trailers\r\nConnection: TE\r\n\r\n"),
    };
    wire.send(head).expect("the gateway reads");
    let (response, whole) = match wire.response(method) {
        Ok(response) => (response, true),
        Err(broken) => (broken.partial, false),
    };
    let trailer = response.trailers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-sum"));
    Outcome {
        status: response.status(),
        body: String::from_utf8_lossy(&response.body).into_owned(),
        whole,
        trailer: trailer.map(|(_, value)| value.clone()),
    }
}

fn ask_h2(gateway: &Gateway, method: &str, path: &str) -> Outcome {
    h2::run(async {
        let client = connect(gateway.address).await;
        let mut client = client.ready().await.expect("the connection is open");
        let (body, length) = body_of(path);
        let mut request = h2::request(&method.parse().expect("a method"), path);
        if method == "POST" {
            request.headers_mut().insert("content-length", HeaderValue::from(length));
        }
        let (response, mut send) = client.send_request(request, method != "POST").expect("it can be sent");
        if method == "POST" {
            let _ = send.send_data(Bytes::from_static(body.as_bytes()), body.len() == length);
        }
        let answer = h2::answer(response).await;
        let trailer = match &answer.end {
            End::Trailers(trailers) => trailers.get("x-sum").and_then(|v| v.to_str().ok()).map(str::to_owned),
            _ => None,
        };
        Outcome {
            status: answer.status,
            body: String::from_utf8_lossy(&answer.body).into_owned(),
            whole: matches!(answer.end, End::Whole | End::Trailers(_)),
            trailer,
        }
    })
}

/// Asks for what is never answered, and leaves.
fn leave(front: Front, gateway: &Gateway) {
    match front {
        Front::H1 => {
            let mut wire = Wire::new(sealane_interop::client::tcp(gateway.address));
            wire.send(format!("GET /silence?abandoned HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
            std::thread::sleep(Duration::from_millis(100));
        }
        Front::H2 => h2::run(async {
            let client = connect(gateway.address).await;
            let mut client = client.ready().await.expect("the connection is open");
            let (_response, mut send) =
                client.send_request(h2::request(&Method::GET, "/silence?abandoned"), true).expect("it can be sent");
            tokio::time::sleep(Duration::from_millis(100)).await;
            send.send_reset(::h2::Reason::CANCEL);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }),
    }
}

fn walk(front: Front, back: Back) {
    let site = Site::new();
    let behind = match back {
        Back::H1 => h1_server(),
        Back::H2 => h2_server(),
    };
    let setup = before(&site, [&behind.url]).plain().listener("h2c = true");
    let setup = setup.upstream("first_byte_timeout = \"1s\"").upstream("idle_timeout = \"1s\"");
    let gateway = match back {
        Back::H1 => setup,
        Back::H2 => setup.upstream("http = \"2\""),
    }
    .start();
    for (method, path, expected) in rows() {
        let outcome = match front {
            Front::H1 => ask_h1(&gateway, method, path),
            Front::H2 => ask_h2(&gateway, method, path),
        };
        // What had not left when the response was cut off may be lost with it.
        let cut_shorter = !expected.whole && expected.body.starts_with(&outcome.body);
        let expected = if cut_shorter { Outcome { body: outcome.body.clone(), ..expected } } else { expected };
        assert_eq!(outcome, expected, "{method} {path} from {front:?} to {back:?}\n{}", gateway.server.log());
    }
    let before = behind.aborted.load(Ordering::SeqCst);
    leave(front, &gateway);
    let told = eventually(|| behind.aborted.load(Ordering::SeqCst) > before);
    assert!(told, "a client that leaves ({front:?}) is not told to the server ({back:?})");
}

#[test]
fn h1_to_h1() {
    walk(Front::H1, Back::H1);
}

#[test]
fn h1_to_h2() {
    walk(Front::H1, Back::H2);
}

#[test]
fn h2_to_h1() {
    walk(Front::H2, Back::H1);
}

#[test]
fn h2_to_h2() {
    walk(Front::H2, Back::H2);
}
