//! Responses are compressed on their way to clients of every version of HTTP, from servers of every version, as a client's own decoders
//! find them; and nothing is compressed that must not be.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sealane_http::BodyLength;
use sealane_interop::backend::Backend;
use sealane_interop::client;
use sealane_interop::gateway::Gateway;
use sealane_interop::h3::{Client, headers, over_quic};
use sealane_interop::http::Wire;
use sealane_interop::peers::curl;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Listening, VERSIONS};
use sealane_interop::{eventually, h2, h3_server, need, noise, say, websocket_accept};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// What the servers say at a path.
struct Content {
    status: u16,
    fields: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// The length stands in the head.
    is_known: bool,
    has_trailers: bool,
    /// The body ends without its end.
    breaks: bool,
}

/// Text that can be compressed, but not to nothing.
fn text(length: usize) -> Vec<u8> {
    static TEXT: OnceLock<Vec<u8>> = OnceLock::new();
    let line = |eight: &[u8]| {
        let number = u16::from_le_bytes([eight[1], eight[2]]);
        format!("{{\"id\": {}, \"name\": \"{number}\"}},\n", eight[0])
    };
    // Longer than what the encoders look back.
    let text =
        TEXT.get_or_init(|| noise(80_000, 17).chunks_exact(8).flat_map(|eight| line(eight).into_bytes()).collect());
    text.iter().copied().cycle().take(length).collect()
}

const LARGE: usize = 10 << 20;

fn content(path: &str) -> Content {
    let of_type = |kind: &str| vec![("content-type", kind.to_owned())];
    let page = |length| Content {
        status: 200,
        fields: of_type("text/html; charset=utf-8"),
        body: text(length),
        is_known: true,
        has_trailers: false,
        breaks: false,
    };
    let with = |name: &'static str, value: &str| {
        let mut content = page(20_000);
        content.fields.push((name, value.to_owned()));
        content
    };
    match path {
        "page" => {
            let mut content = with("etag", "\"v1\"");
            content.fields.push(("accept-ranges", "bytes".to_owned()));
            content
        }
        "large" => Content { is_known: false, ..page(LARGE) },
        "medium" => Content { is_known: false, ..page(2 << 20) },
        "trailers" => Content { is_known: false, has_trailers: true, ..page(300_000) },
        "broken" => Content { is_known: false, breaks: true, ..page(300_000) },
        "empty" => Content { is_known: false, ..page(0) },
        "small" => page(500),
        "missing" => Content { status: 404, ..page(20_000) },
        "cookie" => with("set-cookie", "id=1"),
        "encoded" => with("content-encoding", "br"),
        "no-transform" => with("cache-control", "no-transform"),
        "digest" => with("repr-digest", "sha-256=:AAAA:"),
        "image" => Content { fields: of_type("image/png"), ..page(20_000) },
        "events" => Content { fields: of_type("text/event-stream"), is_known: false, ..page(20_000) },
        "part" => Content { status: 206, ..with("content-range", "bytes 0-19999/50000") },
        "not-modified" => {
            let fields = vec![("etag", "\"v1\"".to_owned())];
            Content { status: 304, fields, body: Vec::new(), is_known: false, ..page(0) }
        }
        other => panic!("there is no {other}"),
    }
}

/// The last part of a path.
fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn first_server() -> Backend {
    Backend::start(|mut connection| {
        while let Some(request) = connection.request() {
            let content = content(name(request.target()));
            let mut head = format!("HTTP/1.1 {} S\r\n", content.status);
            content.fields.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
            let has_body = content.status != 304;
            head.push_str(&match (content.is_known, has_body) {
                (true, _) => format!("content-length: {}\r\n\r\n", content.body.len()),
                (false, true) => "transfer-encoding: chunked\r\n\r\n".to_owned(),
                (false, false) => "\r\n".to_owned(),
            });
            connection.send(head);
            if request.method() == "HEAD" || !has_body {
                continue;
            }
            if content.is_known {
                connection.send(&content.body);
                continue;
            }
            for piece in content.body.chunks(7000) {
                connection.send([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
            }
            if content.breaks {
                return;
            }
            connection.send(if content.has_trailers { "0\r\nX-Sum: 42\r\n\r\n" } else { "0\r\n\r\n" });
        }
    })
}

fn second_server() -> h2::Server {
    h2::Server::start(|(request, mut respond)| async move {
        let content = content(name(request.uri().path()));
        let mut response = Response::builder().status(content.status);
        for (name, value) in &content.fields {
            response = response.header(*name, value);
        }
        if content.is_known {
            response = response.header("content-length", content.body.len());
        }
        let response = response.body(()).expect("it is well-formed");
        let ends = request.method() == http::Method::HEAD || content.status == 304;
        let Ok(mut send) = respond.send_response(response, ends) else { return };
        if ends {
            return;
        }
        for piece in content.body.chunks(7000) {
            send.reserve_capacity(piece.len());
            while send.capacity() < piece.len() {
                match std::future::poll_fn(|cx| send.poll_capacity(cx)).await {
                    Some(Ok(_)) => {}
                    _ => return,
                }
            }
            if send.send_data(Bytes::copy_from_slice(piece), false).is_err() {
                return;
            }
        }
        if content.breaks {
            // As below.
            tokio::time::sleep(Duration::from_millis(200)).await;
            return send.send_reset(::h2::Reason::INTERNAL_ERROR);
        }
        let _ = match content.has_trailers {
            true => {
                let sum = (HeaderName::from_static("x-sum"), HeaderValue::from_static("42"));
                send.send_trailers(HeaderMap::from_iter([sum]))
            }
            false => send.send_data(Bytes::new(), true),
        };
    })
}

fn third_server(site: &Site) -> h3_server::Server {
    h3_server::Server::start(&site.ecdsa, |mut asked: h3_server::Asked| async move {
        let content = content(name(&String::from_utf8_lossy(asked.head.path())));
        let fields: Vec<(&str, &str)> = content.fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let length = match content.is_known {
            true => BodyLength::Known(content.body.len() as u64),
            false => BodyLength::Chunked,
        };
        asked.respond(content.status, &fields, length).await;
        if asked.wants_body() && content.status != 304 {
            for piece in content.body.chunks(7000) {
                asked.data(piece).await;
            }
            if content.breaks {
                // A reset takes back what has not been sent.
                tokio::time::sleep(Duration::from_millis(200)).await;
                return asked.reset(h3_server::INTERNAL_ERROR);
            }
            if content.has_trailers {
                asked.trailers(&[("x-sum", "42")]).await;
            }
        }
        asked.finish().await;
    })
}

/// A response as a client has it before it decodes anything.
#[derive(Debug, Default)]
struct Got {
    status: u16,
    /// By their names in lower case.
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    trailers: Vec<(String, String)>,
    is_whole: bool,
}

impl Got {
    fn all(&self, name: &str) -> Vec<&str> {
        self.fields.iter().filter(|(n, _)| n == name).map(|(_, value)| value.as_str()).collect()
    }

    #[track_caller]
    fn field(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() < 2, "{name} is there {} times: {:?}", all.len(), self.fields);
        all.first().copied()
    }

    /// The body as a client uses it. `None`: it cannot be decoded to its end.
    #[track_caller]
    fn decoded(&self) -> Option<Vec<u8>> {
        decoded(self.field("content-encoding"), &self.body)
    }
}

fn decoded(coding: Option<&str>, body: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match coding {
        None => out.extend_from_slice(body),
        Some("gzip") => drop(flate2::read::GzDecoder::new(body).read_to_end(&mut out).ok()?),
        Some("br") => drop(brotli::Decompressor::new(body, 4096).read_to_end(&mut out).ok()?),
        Some("zstd") => drop(zstd::stream::read::Decoder::new(body).ok()?.read_to_end(&mut out).ok()?),
        Some(other) => panic!("nobody has asked for {other}"),
    }
    Some(out)
}

fn in_lower_case(fields: Vec<(String, String)>) -> Vec<(String, String)> {
    fields.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect()
}

fn in_pairs(fields: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    fields.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect()
}

/// Asks over one of the versions.
struct Asking<'g> {
    gateway: &'g Gateway,
    plain: SocketAddr,
}

impl Asking<'_> {
    /// Asks once more if the lane was late: then it does not compress.
    #[track_caller]
    fn ask(&self, version: &str, method: &str, path: &str, fields: &[(&str, &str)]) -> Got {
        let late = || self.gateway.metric_with("sealane_compression_skipped_total", "\"overload\"");
        let mut got = Got::default();
        let in_time = eventually(|| {
            let before = late();
            got = self.ask_once(version, method, path, fields);
            late() == before
        });
        assert!(in_time, "the lane is always late");
        got
    }

    #[track_caller]
    fn ask_once(&self, version: &str, method: &str, path: &str, fields: &[(&str, &str)]) -> Got {
        match version {
            "HTTP/1.1" => self.first(method, path, fields),
            "HTTP/2" => self.second(method, path, fields),
            _ => self.third(method, path, fields),
        }
    }

    fn first(&self, method: &str, path: &str, fields: &[(&str, &str)]) -> Got {
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n");
        fields.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
        let mut wire = Wire::new(client::tcp(self.plain));
        wire.send(format!("{text}\r\n")).expect("the gateway reads");
        let (message, is_whole) = match wire.response(method) {
            Ok(message) => (message, true),
            Err(broken) => (broken.partial, false),
        };
        let (status, fields) = (message.status(), in_lower_case(message.headers));
        Got { status, fields, body: message.body, trailers: in_lower_case(message.trailers), is_whole }
    }

    fn second(&self, method: &str, path: &str, fields: &[(&str, &str)]) -> Got {
        let mut request = http::Request::builder().method(method).uri(format!("http://{HOST}{path}"));
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("the test's request is legal");
        let answer = h2::run(async {
            let client = h2::connect(self.plain).await;
            h2::fetch(&client, request, None).await
        });
        let (trailers, is_whole) = match &answer.end {
            h2::End::Whole => (Vec::new(), true),
            h2::End::Trailers(trailers) => (in_pairs(trailers), true),
            h2::End::Reset(_) | h2::End::Lost => (Vec::new(), false),
        };
        Got { status: answer.status, fields: in_pairs(&answer.headers), body: answer.body, trailers, is_whole }
    }

    fn third(&self, method: &str, path: &str, fields: &[(&str, &str)]) -> Got {
        // A gateway with much to do refuses new connections.
        let mut client = None;
        eventually(|| {
            let mut next = Client::begin(self.gateway.address, &over_quic(self.gateway.config(), false));
            client = next.establish().then_some(next);
            client.is_some()
        });
        let mut client = client.expect("the gateway takes a connection");
        client.open_control();
        match client.exchange(&headers(method, path, fields, BodyLength::None), b"") {
            Ok(response) => Got {
                status: response.status,
                fields: response.fields,
                body: response.body,
                trailers: response.trailers,
                is_whole: true,
            },
            Err(_) => Got::default(),
        }
    }
}

/// A gateway before servers of all versions, at `/h1/`, `/h2/` and `/h3/`, which compresses as `compression` says.
fn everywhere(site: &Site, first: &str, second: &str, third: &str, compression: &str) -> (Gateway, SocketAddr) {
    let rest = format!(
        "[[upstream]]\nname = \"two\"\nservers = [{second:?}]\nhttp = \"2\"\n\
         [[upstream]]\nname = \"three\"\nservers = [{third:?}]\nhttp = \"3\"\n[upstream.tls]\nca = {ca:?}\n\
         [[host]]\nnames = [\"*\"]\nto = {first:?}\ncompression = {compression}\n\
         [[host.route]]\npath = \"/h2\"\nupstream = \"two\"\n\
         [[host.route]]\npath = \"/h3\"\nupstream = \"three\"\n\
         [[host.route]]\npath = \"/off\"\nto = {first:?}\ncompression = false\n\
         [[host.route]]\npath = \"/secrets\"\nto = {first:?}\ncompression = {{ dangerous_with_credentials = true }}\n\
         [[host.route]]\npath = \"/hidden\"\nto = {first:?}\n\
         request_headers = {{ remove = [\"Accept-Encoding\", \"Cookie\"] }}\n",
        ca = site.ca,
    );
    Listening { rest: &rest, ..Listening::default() }.start(site)
}

const CODINGS: [&str; 3] = ["zstd", "br", "gzip"];

#[test]
fn every_client_can_decode_what_every_server_has_said() {
    let site = Site::new();
    let (first, second, third) = (first_server(), second_server(), third_server(&site));
    let (gateway, plain) = everywhere(&site, &first.url(), &second.url(), &third.url(), "true");
    let asking = Asking { gateway: &gateway, plain };
    let large = content("large").body;
    let mut compressed = 0;
    for (number, version) in VERSIONS.into_iter().enumerate() {
        for (other, server) in ["h1", "h2", "h3"].into_iter().enumerate() {
            let get = |path: &str, coding: &str| {
                let got = asking.ask(version, "GET", &format!("/{server}/{path}"), &[("accept-encoding", coding)]);
                let place = format!("{path} in {coding} over {version} from {server}");
                (got, place)
            };
            for coding in CODINGS {
                let (got, place) = get("page", coding);
                assert_eq!((got.status, got.field("content-encoding")), (200, Some(coding)), "{place}: {got:?}");
                assert_eq!(got.field("vary"), Some("Accept-Encoding"), "{place}");
                assert_eq!(got.field("etag"), Some("W/\"v1\""), "{place}");
                assert_eq!((got.field("content-length"), got.field("accept-ranges")), (None, None), "{place}");
                assert!(got.is_whole && got.body.len() < 10_000, "{place}: {} bytes", got.body.len());
                assert!(got.decoded() == Some(content("page").body), "{place}");
                let (got, place) = get("trailers", coding);
                assert_eq!(got.field("content-encoding"), Some(coding), "{place}");
                assert!(got.is_whole && got.decoded() == Some(content("trailers").body), "{place}");
                assert_eq!(got.trailers, [("x-sum".to_owned(), "42".to_owned())], "{place}");
                let (got, place) = get("broken", coding);
                assert!(!got.is_whole, "{place} looks whole: {}", got.status);
                // Whether it is empty may be known before its head goes out.
                let (got, place) = get("empty", coding);
                assert!(got.is_whole && got.decoded() == Some(Vec::new()), "{place}: {got:?}");
                compressed += 4 + usize::from(got.field("content-encoding").is_some());
                let (got, place) = get("missing", coding);
                assert_eq!((got.status, got.field("content-encoding")), (404, Some(coding)), "{place}");
                assert!(got.decoded() == Some(content("missing").body), "{place}");
            }
            let (got, place) = get("large", CODINGS[(number + other) % 3]);
            assert!(got.is_whole && got.body.len() < LARGE / 2, "{place}: {} bytes", got.body.len());
            assert!(got.decoded().as_ref() == Some(&large), "{place}");
            compressed += 1;
        }
    }
    let whole = |coding: &str| gateway.metric_with("sealane_compressed_responses_total", coding).unwrap_or_default();
    assert_eq!(CODINGS.map(whole).iter().sum::<f64>(), compressed as f64);
    let [bytes_in, bytes_out] =
        ["in", "out"].map(|way| gateway.metric_with("sealane_compression_bytes_total", &format!("\"{way}\"")));
    assert!(bytes_in > Some(9.0 * LARGE as f64) && bytes_out < bytes_in.map(|n| n / 2.0), "{bytes_in:?} {bytes_out:?}");
    assert_eq!(gateway.metric("sealane_compressors_active"), Some(0.0));
    // What the log calls sent is what was sent.
    let logged = || site.logged("\"encoding\":\"br\",\"bytes_uncompressed\":20000");
    assert!(eventually(|| logged() == 18), "{} lines: {}", logged(), site.log());
    let line = site.log().lines().find(|line| line.contains("/h1/page") && line.contains("\"br\"")).map(str::to_owned);
    let line: serde_json::Value = serde_json::from_str(&line.expect("it is there")).expect("a line is JSON");
    assert!(line["bytes_out"].as_u64().is_some_and(|sent| sent > 500 && sent < 10_000), "{line}");
}

/// Path, fields of the request, status, `Vary`.
type Row<'r> = (&'r str, &'r [(&'r str, &'r str)], u16, Option<&'r str>);

#[test]
fn what_must_stay_as_it_is_does() {
    let site = Site::new();
    let (first, second, third) = (first_server(), second_server(), third_server(&site));
    let (gateway, plain) = everywhere(&site, &first.url(), &second.url(), &third.url(), "true");
    let asking = Asking { gateway: &gateway, plain };
    let wants = ("accept-encoding", "gzip, br, zstd");
    let vary = Some("Accept-Encoding");
    let table: &[Row] = &[
        ("/h1/page", &[], 200, vary),
        ("/h1/page", &[("accept-encoding", "identity, deflate, gzip;q=0")], 200, vary),
        ("/h1/page", &[wants, ("cookie", "id=1")], 200, vary),
        ("/h1/page", &[wants, ("authorization", "Bearer x")], 200, vary),
        ("/h1/page", &[wants, ("range", "bytes=0-9")], 200, vary),
        ("/h1/page", &[wants, ("cache-control", "no-transform")], 200, vary),
        ("/hidden/page", &[wants, ("cookie", "id=1")], 200, vary),
        ("/h1/cookie", &[wants], 200, vary),
        ("/h1/part", &[wants], 206, vary),
        ("/h1/small", &[wants], 200, None),
        ("/h1/encoded", &[wants], 200, None),
        ("/h1/no-transform", &[wants], 200, None),
        ("/h1/digest", &[wants], 200, None),
        ("/h1/image", &[wants], 200, None),
        ("/h1/events", &[wants], 200, None),
        ("/off/page", &[wants], 200, None),
    ];
    for (path, fields, status, vary) in table {
        let said = content(name(path));
        for version in VERSIONS {
            let got = asking.ask(version, "GET", path, fields);
            let place = format!("{path} {fields:?} over {version}");
            assert!(got.is_whole && got.body == said.body, "{place}");
            assert_eq!((got.status, got.field("vary")), (*status, *vary), "{place}");
            // Its fields are the server's.
            for name in ["etag", "accept-ranges", "content-encoding"] {
                let own = said.fields.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_str());
                assert_eq!(got.field(name), own, "{place}");
            }
            let length = said.is_known.then(|| said.body.len().to_string());
            assert_eq!(got.field("content-length"), length.as_deref(), "{place}");
        }
    }
    let skipped = |reason: &str| gateway.metric_with("sealane_compression_skipped_total", &format!("\"{reason}\""));
    for (reason, times) in [
        ("not_accepted", 2.0),
        ("credentials", 4.0),
        ("range", 2.0),
        ("short", 1.0),
        ("encoded", 1.0),
        ("no_transform", 2.0),
        ("content_type", 2.0),
    ] {
        assert_eq!(skipped(reason), Some(3.0 * times), "{reason}");
    }
    // 304 has no type, and names the validator that the client knows.
    for version in VERSIONS {
        for (asked, told) in [("W/\"v1\"", "W/\"v1\""), ("\"v1\"", "\"v1\"")] {
            let got = asking.ask(version, "GET", "/h1/not-modified", &[wants, ("if-none-match", asked)]);
            assert_eq!((got.status, got.field("etag"), got.field("vary")), (304, Some(told), vary), "{version}");
        }
    }
    // Who says that there is no secret gets what is asked for, and who hides the question from the server does, too.
    for version in VERSIONS {
        for (path, fields) in [
            ("/secrets/cookie", &[wants, ("cookie", "id=1"), ("authorization", "Bearer x")][..]),
            ("/hidden/page", &[wants]),
        ] {
            let got = asking.ask(version, "GET", path, fields);
            assert_eq!(got.field("content-encoding"), Some("zstd"), "{path} over {version}");
            assert!(got.decoded() == Some(content(name(path)).body), "{path} over {version}");
        }
    }
    // An HTTP/1.0 client could not tell a body that is cut off from one that is whole.
    let mut wire = Wire::new(client::tcp(plain));
    wire.send("GET /h1/page HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n").expect("the gateway reads");
    let old = wire.response("GET").expect("a whole response");
    assert!(old.header("content-encoding").is_none() && old.body == content("page").body);
}

#[test]
fn head_has_the_fields_of_get() {
    let site = Site::new();
    let (first, second, third) = (first_server(), second_server(), third_server(&site));
    let (gateway, plain) = everywhere(&site, &first.url(), &second.url(), &third.url(), "true");
    let asking = Asking { gateway: &gateway, plain };
    let of_get = |got: &Got| -> Vec<(String, String)> {
        let about = ["content-encoding", "content-type", "vary", "etag", "accept-ranges", "content-length"];
        let mut fields: Vec<_> =
            got.fields.iter().filter(|(name, _)| about.contains(&name.as_str())).cloned().collect();
        fields.sort();
        fields
    };
    for version in VERSIONS {
        for server in ["h1", "h2", "h3"] {
            for path in ["page", "small", "image"] {
                let path = format!("/{server}/{path}");
                let [get, head] =
                    ["GET", "HEAD"].map(|m| asking.ask(version, m, &path, &[("accept-encoding", "gzip")]));
                assert!(head.is_whole && head.body.is_empty(), "{path} over {version}");
                assert_eq!((get.status, of_get(&get)), (head.status, of_get(&head)), "{path} over {version}");
            }
        }
    }
    assert_eq!(gateway.metric("sealane_compressed_responses_total"), Some(9.0), "only GET has a body");
}

/// Each line of the body follows when the client has decoded the one before: none of them may wait in an encoder.
#[test]
fn lines_reach_the_client_as_they_are_written() {
    const LINES: usize = 20;
    let (seen, site) = (Arc::new(AtomicUsize::new(0)), Site::new());
    let decoded_lines = seen.clone();
    let backend = Backend::start(move |mut connection| {
        while connection.request().is_some() {
            connection
                .send("HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n");
            for line in 0..LINES {
                let text = format!("{{\"line\": {line}}}\n");
                connection.send(format!("{:x}\r\n{text}\r\n", text.len()));
                if !eventually(|| decoded_lines.load(Ordering::SeqCst) > line) {
                    return;
                }
            }
            decoded_lines.store(0, Ordering::SeqCst);
            connection.send("0\r\n\r\n");
        }
    });
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {:?}\ncompression = true\n", backend.url());
    let (gateway, plain) = Listening { rest: &rest, ..Listening::default() }.start(&site);
    let see = |coding: &str, body: &[u8]| {
        let text = as_far_as_it_goes(coding, body);
        let lines = text.iter().filter(|b| **b == b'\n').count();
        // The backend begins to count anew once it has seen the last line.
        if lines < LINES || seen.load(Ordering::SeqCst) == LINES - 1 {
            seen.store(lines, Ordering::SeqCst);
        }
    };
    for coding in CODINGS {
        let mut wire = Wire::new(client::tcp(plain));
        wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nAccept-Encoding: {coding}\r\n\r\n"))
            .expect("the gateway reads");
        while !wire.line().expect("the head is whole").is_empty() {}
        let mut body = Vec::new();
        loop {
            let size = usize::from_str_radix(&wire.line().expect("another chunk"), 16).expect("a chunk has a size");
            if size == 0 {
                break;
            }
            wire.exactly(size, &mut body).expect("the chunk is whole");
            assert_eq!(wire.line().expect("an end"), "");
            see(coding, &body);
        }
        assert!(decoded(Some(coding), &body).is_some_and(|text| text.ends_with(b"19}\n")), "{coding} over HTTP/1.1");
        h2::run(async {
            let request = http::Request::builder().uri(format!("http://{HOST}/")).header("accept-encoding", coding);
            let mut client = h2::connect(plain).await.ready().await.expect("the connection is open");
            let (response, _) = client.send_request(request.body(()).expect("it is legal"), true).expect("it is sent");
            let mut stream = response.await.expect("there is a response").into_body();
            let mut body = Vec::new();
            while let Some(piece) = stream.data().await {
                let piece = piece.expect("the body goes on");
                let _ = stream.flow_control().release_capacity(piece.len());
                body.extend_from_slice(&piece);
                see(coding, &body);
            }
            assert!(decoded(Some(coding), &body).is_some_and(|text| text.ends_with(b"19}\n")), "{coding} over HTTP/2");
        });
        let mut third = Client::connect(gateway.address, &over_quic(gateway.config(), false));
        let id = third.open(&headers("GET", "/", &[("accept-encoding", coding)], BodyLength::None), true);
        let came = third.until(|client| {
            if let Ok(so_far) = client.so_far(id) {
                see(coding, &so_far.body);
            }
            client.ended(id).is_some()
        });
        let response = third.response(id).expect("a whole response");
        assert!(
            came && decoded(Some(coding), &response.body).is_some_and(|text| text.ends_with(b"19}\n")),
            "{coding} over HTTP/3"
        );
    }
}

/// What can be decoded of a body that is not whole.
fn as_far_as_it_goes(coding: &str, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut reader: Box<dyn Read> = match coding {
        "gzip" => Box::new(flate2::read::GzDecoder::new(body)),
        "br" => Box::new(brotli::Decompressor::new(body, 4096)),
        _ => Box::new(zstd::stream::read::Decoder::new(body).expect("a decoder can be made")),
    };
    let mut byte = [0; 1];
    while let Ok(1) = reader.read(&mut byte) {
        out.push(byte[0]);
    }
    out
}

/// A body that does not get shorter, and never ends for who does not read it. Counts what was taken of all.
fn endless(taken: &Arc<AtomicUsize>) -> Backend {
    let taken = taken.clone();
    Backend::start(move |mut connection| {
        while let Some(request) = connection.request() {
            if request.target() != "/endless" {
                connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5000\r\n\r\n");
                connection.send(text(5000));
                continue;
            }
            connection.send("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000000000\r\n\r\n");
            // It comes again when no encoder remembers it.
            let noise = noise(2 << 20, 3);
            for piece in noise.chunks(64 << 10).cycle() {
                if connection.wire.send(piece).is_err() {
                    return;
                }
                taken.fetch_add(piece.len(), Ordering::SeqCst);
            }
        }
    })
}

/// Whether a number comes to rest.
fn rests(number: impl Fn() -> usize) -> bool {
    let (mut last, mut same) = (usize::MAX, 0);
    eventually(|| {
        let now = number();
        same = if now == last { same + 1 } else { 0 };
        last = now;
        std::thread::sleep(Duration::from_millis(100));
        same == 8
    })
}

#[test]
fn readers_that_take_nothing_hold_back_their_server_and_get_encoders_one_by_one() {
    const ENCODERS: usize = 3;
    let (taken, site) = (Arc::default(), Site::new());
    let backend = endless(&taken);
    let rest = format!(
        "[limits]\nmax_compressed_responses = {ENCODERS}\nidle_timeout = \"30m\"\n\
         [[host]]\nnames = [\"*\"]\nto = {:?}\ncompression = true\n",
        backend.url()
    );
    let (gateway, plain) = Listening { rest: &rest, ..Listening::default() }.start(&site);
    let open = |coding: &str| {
        let mut socket = crate::slow_readers::narrow(plain);
        let request = format!("GET /endless HTTP/1.1\r\nHost: {HOST}\r\nAccept-Encoding: {coding}\r\n\r\n");
        socket.write_all(request.as_bytes()).expect("the gateway reads");
        let mut head = [0; 400];
        socket.read_exact(&mut head).expect("a head comes");
        (String::from_utf8_lossy(&head).to_ascii_lowercase().contains(&format!("content-encoding: {coding}")), socket)
    };
    let before = gateway.server.resident().unwrap_or_default();
    let mut readers: Vec<TcpStream> = Vec::new();
    for coding in CODINGS {
        let is_encoded = eventually(|| {
            let (is_encoded, socket) = open(coding);
            readers.extend(is_encoded.then_some(socket));
            is_encoded
        });
        assert!(is_encoded, "{coding}");
    }
    assert!(rests(|| taken.load(Ordering::SeqCst)), "the server is not held back");
    let held = gateway.server.resident().unwrap_or_default().saturating_sub(before);
    say(&format!(
        "three readers that take nothing: {held} bytes, of {} that the servers have sent",
        taken.load(Ordering::SeqCst)
    ));
    assert!(held < 32 << 20, "{held} bytes for three encoders");
    assert_eq!(gateway.metric("sealane_compressors_active"), Some(ENCODERS as f64));
    // The next one gets the body as it is, over every version.
    let asking = Asking { gateway: &gateway, plain };
    for (number, version) in VERSIONS.into_iter().enumerate() {
        let got = asking.ask(version, "GET", "/", &[("accept-encoding", "gzip")]);
        assert_eq!((got.field("content-encoding"), got.field("vary")), (None, Some("Accept-Encoding")), "{version}");
        assert!(got.is_whole && got.body == text(5000), "{version}");
        let skipped = gateway.metric_with("sealane_compression_skipped_total", "\"compressors\"");
        assert_eq!(skipped, Some(number as f64 + 1.0));
    }
    // The readers leave in the middle, and their encoders are there for others.
    drop(readers);
    assert!(eventually(|| gateway.metric("sealane_compressors_active") == Some(0.0)), "{}", gateway.metrics());
    for version in VERSIONS {
        let got = asking.ask(version, "GET", "/", &[("accept-encoding", "gzip")]);
        assert_eq!(got.field("content-encoding"), Some("gzip"), "{version}");
        assert!(got.decoded() == Some(text(5000)), "{version}");
    }
}

#[test]
fn many_large_responses_at_once_all_come_whole() {
    let site = Site::new();
    let (first, second, third) = (first_server(), second_server(), third_server(&site));
    let (gateway, plain) = everywhere(&site, &first.url(), &second.url(), &third.url(), "true");
    let large = content("medium").body;
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for client in 0..18 {
            let (gateway, large, failures) = (&gateway, &large, &failures);
            scope.spawn(move || {
                let asking = Asking { gateway, plain };
                let (version, coding) = (VERSIONS[client % 3], CODINGS[client / 3 % 3]);
                let path = format!("/{}/medium", ["h1", "h2", "h3"][client / 6]);
                let got = asking.ask(version, "GET", &path, &[("accept-encoding", coding)]);
                if !got.is_whole || got.decoded().as_ref() != Some(large) {
                    let failure = format!("{path} in {coding} over {version}: {} bytes", got.body.len());
                    failures.lock().expect("no thread panics with it").push(failure);
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no thread has panicked");
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(gateway.metric("sealane_compressors_active"), Some(0.0));
}

#[test]
fn curl_decodes_what_it_asks_for() {
    need!("curl");
    let site = Site::new();
    let (first, second, third) = (first_server(), second_server(), third_server(&site));
    let (gateway, _) = everywhere(&site, &first.url(), &second.url(), &third.url(), "true");
    for version in ["--http1.1", "--http2"] {
        let said = curl(&gateway, "/h1/trailers", [version, "--compressed", "--silent"]);
        assert_eq!(said.text().as_bytes(), content("trailers").body, "{version}");
        let said = curl(&gateway, "/h1/page", [version, "--compressed", "--head"]).all().to_ascii_lowercase();
        assert!(said.contains("content-encoding: "), "{version}: {said}");
        let broken = curl(&gateway, "/h1/broken", [version, "--compressed", "--silent", "--show-error"]);
        assert!(broken.all().contains("curl: ("), "{version}: a broken response looks whole");
    }
}

#[test]
fn a_websocket_is_left_alone() {
    let site = Site::new();
    let backend = Backend::websocket_echo();
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {:?}\ncompression = true\n", backend.url());
    let (gateway, plain) = Listening { rest: &rest, ..Listening::default() }.start(&site);
    let mut wire = Wire::new(client::tcp(plain));
    let key = "dGhlIHNhbXBsZSBub25jZQ==";
    wire.send(format!(
        "GET / HTTP/1.1\r\nHost: {HOST}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: {key}\r\nAccept-Encoding: gzip\r\n\r\n"
    ))
    .expect("the gateway reads");
    let response = wire.response("GET").expect("a handshake");
    assert_eq!(response.header("sec-websocket-accept"), Some(&websocket_accept(key)[..]));
    assert!(response.header("content-encoding").is_none() && response.header("vary").is_none());
    let bytes = noise(100_000, 5);
    wire.send(&bytes).expect("the gateway reads");
    let mut echo = Vec::new();
    wire.exactly(bytes.len(), &mut echo).expect("it comes back");
    assert!(echo == bytes);
    assert_eq!(gateway.metric("sealane_compressed_responses_total"), Some(0.0));
}

/// A client with a certificate has shown who it is.
#[test]
fn clients_with_certificates_get_uncompressed_responses() {
    let site = Site::new();
    let backend = first_server();
    let tls = format!("client_auth = {{ mode = \"optional\", ca = {:?} }}", site.ca);
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {:?}\ncompression = true\n", backend.url());
    let (gateway, _) = Listening { tls: &tls, rest: &rest, ..Listening::default() }.start(&site);
    let ask = |config: ClientConfig| {
        let request =
            format!("GET /page HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nAccept-Encoding: gzip\r\n\r\n");
        let response = client::exchange(gateway.address, &Arc::new(config), request.as_bytes());
        response.expect("a whole response").header("content-encoding").map(str::to_owned)
    };
    assert!(eventually(|| ask(client::config(&site.ca)).as_deref() == Some("gzip")));
    let (chain, key) = site.issue("client", &["client.example"]).load();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&site.ca).expect("the authority's file is PEM")).expect("it is one");
    let builder = ClientConfig::builder_with_provider(client::provider().into()).with_safe_default_protocol_versions();
    let builder = builder.expect("the provider knows them").with_root_certificates(roots);
    assert_eq!(ask(builder.with_client_auth_cert(chain, key).expect("they belong together")), None);
}
