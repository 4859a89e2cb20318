//! The servers, one for each version, which all do the same at the same paths.

use super::Version;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response};
use sealane_http::BodyLength;
use sealane_interop::backend::Backend;
use sealane_interop::h2::{self, End, Server};
use sealane_interop::h3_server;
use sealane_interop::site::Site;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// What was sent arrives before what comes next.
const A_MOMENT: Duration = Duration::from_millis(100);

pub(super) fn start(version: Version, site: &Site) -> Behind {
    match version {
        Version::H1 => h1_server(),
        Version::H2 => h2_server(),
        Version::H3 => h3_server(site),
    }
}

/// A server, and how many requests have been called off on it.
pub(super) struct Behind {
    pub url: String,
    pub aborted: Arc<AtomicUsize>,
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
                "/unknown-length" if request.method() == "HEAD" => connection.send(format!("{chunked}\r\n")),
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
    let rejected = Arc::new(AtomicBool::new(false));
    let server = Server::start(move |(request, mut respond)| {
        let (counted, rejected) = (Arc::clone(&counted), Arc::clone(&rejected));
        async move {
            let (parts, mut body) = request.into_parts();
            let path = parts.uri.path().to_owned();
            let mut response = Response::new(());
            let length = |n: u64| HeaderValue::from(n);
            if path == "/early-answer" {
                return h2::say(&mut respond, b"early");
            }
            if path == "/rejected-once" && !rejected.swap(true, Ordering::SeqCst) {
                return respond.send_reset(::h2::Reason::REFUSED_STREAM);
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
                    tokio::time::sleep(A_MOMENT).await;
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
                "/echo" | "/rejected-once" => drop(send.send_data(Bytes::from(bytes), true)),
                _ => drop(send.send_data(Bytes::from_static(b"hello"), true)),
            }
        }
    });
    Behind { url: server.url(), aborted, _kept: Box::new(server) }
}

fn h3_server(site: &Site) -> Behind {
    let aborted = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&aborted);
    let rejected = Arc::new(AtomicBool::new(false));
    let server = h3_server::Server::start(&site.ecdsa, move |mut asked| {
        let (counted, rejected) = (Arc::clone(&counted), Arc::clone(&rejected));
        async move {
            let path = String::from_utf8_lossy(asked.head.target()).into_owned();
            let (known, unknown) = (BodyLength::Known(5), BodyLength::Chunked);
            if path == "/early-answer" {
                asked.respond(200, &[], known).await;
                asked.data(b"early").await;
                asked.stop(h3_server::NO_ERROR);
                return asked.finish().await;
            }
            if path == "/rejected-once" && !rejected.swap(true, Ordering::SeqCst) {
                asked.stop(h3_server::REQUEST_REJECTED);
                return asked.reset(h3_server::REQUEST_REJECTED);
            }
            let (bytes, whole) = asked.body().await;
            if !whole {
                counted.fetch_add(1, Ordering::SeqCst);
                return;
            }
            match &path[..] {
                "/abort-before-head" => return asked.reset(h3_server::INTERNAL_ERROR),
                "/silence" | "/silence?abandoned" => {
                    asked.called_off().await;
                    counted.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                "/nonsense" => {
                    asked.respond(200, &[("content-length", "5"), ("content-length", "6")], BodyLength::None).await
                }
                "/interim" => {
                    asked.respond(103, &[("link", "</x>")], BodyLength::None).await;
                    asked.respond(200, &[], known).await;
                }
                "/length" | "/abort-in-length" | "/silence-in-body" => asked.respond(200, &[], known).await,
                "/no-content" => asked.respond(204, &[], BodyLength::None).await,
                "/empty" => asked.respond(200, &[], BodyLength::None).await,
                _ => asked.respond(200, &[], unknown).await,
            }
            match &path[..] {
                "/empty" | "/no-content" => {}
                _ if !asked.wants_body() => {}
                "/abort-in-length" | "/abort-in-unknown-length" | "/silence-in-body" => {
                    asked.data(b"hel").await;
                    tokio::time::sleep(A_MOMENT).await;
                    if path == "/silence-in-body" {
                        asked.called_off().await;
                        counted.fetch_add(1, Ordering::SeqCst);
                    } else {
                        asked.reset(h3_server::INTERNAL_ERROR);
                    }
                    return;
                }
                "/trailers" => {
                    asked.data(b"hello").await;
                    asked.trailers(&[("x-sum", "42")]).await;
                }
                "/echo" | "/rejected-once" => asked.data(&bytes).await,
                _ => asked.data(b"hello").await,
            }
            asked.finish().await;
        }
    });
    Behind { url: server.url(), aborted, _kept: Box::new(server) }
}
