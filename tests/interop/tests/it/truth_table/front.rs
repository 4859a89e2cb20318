//! The clients, one for each version.

use super::{Outcome, Version};
use bytes::Bytes;
use http::{HeaderValue, Method};
use sealane_http::BodyLength;
use sealane_http::h3::Code;
use sealane_interop::gateway::Gateway;
use sealane_interop::h2::{self, End, connect};
use sealane_interop::h3::{self, Client, over_quic};
use sealane_interop::http::Wire;
use sealane_interop::site::HOST;
use std::time::{Duration, Instant};

pub(super) fn ask(version: Version, gateway: &Gateway, method: &str, path: &str) -> Outcome {
    match version {
        Version::H1 => ask_h1(gateway, method, path),
        Version::H2 => ask_h2(gateway, method, path),
        Version::H3 => ask_h3(gateway, method, path),
    }
}

/// What is sent of a body, and how much is announced: where that is more, the rest never comes.
fn body_of(path: &str) -> (&'static str, usize) {
    match path {
        "/echo" => ("request", 7),
        "/early-answer" | "/silence-in-request" => ("request", 8),
        "/too-large" => ("request", 1001),
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
        let (response, mut send) = client.send_request(request, length == 0).expect("it can be sent");
        if length > 0 {
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

fn ask_h3(gateway: &Gateway, method: &str, path: &str) -> Outcome {
    let mut client = Client::connect(gateway.address, &over_quic(gateway.config(), false));
    let (body, length) = body_of(path);
    let announced = if method == "POST" { BodyLength::Known(length as u64) } else { BodyLength::None };
    let mut bytes = h3::headers(method, path, &[("te", "trailers")], announced);
    if !body.is_empty() {
        bytes.extend_from_slice(&h3::data(body.as_bytes()));
    }
    let id = client.open(&bytes, body.len() == length);
    client.until(|c| c.lost.is_some() || c.ended(id).is_some());
    let response = client.so_far(id).unwrap_or_default();
    let trailer = response.trailers.iter().find(|(name, _)| name == "x-sum");
    let outcome = Outcome {
        status: response.status,
        body: String::from_utf8_lossy(&response.body).into_owned(),
        whole: client.ended(id) == Some(Ok(())),
        trailer: trailer.map(|(_, value)| value.clone()),
    };
    client.close();
    outcome
}

/// Asks for what is never answered, and leaves.
pub(super) fn leave(front: Version, gateway: &Gateway) {
    match front {
        Version::H1 => {
            let mut wire = Wire::new(sealane_interop::client::tcp(gateway.address));
            wire.send(format!("GET /silence?abandoned HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
            std::thread::sleep(Duration::from_millis(100));
        }
        Version::H2 => h2::run(async {
            let client = connect(gateway.address).await;
            let mut client = client.ready().await.expect("the connection is open");
            let (_response, mut send) =
                client.send_request(h2::request(&Method::GET, "/silence?abandoned"), true).expect("it can be sent");
            tokio::time::sleep(Duration::from_millis(100)).await;
            send.send_reset(::h2::Reason::CANCEL);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }),
        Version::H3 => {
            let mut client = Client::connect(gateway.address, &over_quic(gateway.config(), false));
            let id = client.open(&h3::headers("GET", "/silence?abandoned", &[], BodyLength::None), true);
            let sent = Instant::now();
            client.until(|_| sent.elapsed() > Duration::from_millis(100));
            client.reset(id, Code::RequestCancelled.value());
            client.pump();
        }
    }
}
