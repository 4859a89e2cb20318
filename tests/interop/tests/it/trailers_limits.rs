//! Trailers are bounded, over every version and in both directions: what is larger is refused (431) or cut off, and never
//! dropped without a word.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use sealane_http::{BodyLength, Fields};
use sealane_interop::backend::{Backend, ok};
use sealane_interop::frames::{END_HEADERS, END_STREAM, Frames, block, kind};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::h3::{Client, Failure, data, headers, over_quic};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Asked, Everywhere, Listening};
use sealane_interop::{client, h2, h3_server};
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Most bytes of a trailer section.
const LIMIT: usize = 16 * 1024;
/// 8 KiB in base64, as in `grpc-status-details-bin`.
const DETAILS: usize = 8 * 1024 * 4 / 3;
/// Sizes of a value that are too large: above our limit, above that for a list of fields that `h2` has towards clients
/// (`max_header_size`) and towards servers (64 KiB), and close to what makes it end the connection.
const TOO_LARGE: [usize; 5] = [LIMIT + 1, 33_000, 60_000, 66_000, 100_000];

fn listening(site: &Site, top: &str, url: &str) -> (Gateway, SocketAddr) {
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {url:?}\n");
    Listening { top, rest: &rest, ..Listening::default() }.start(site)
}

fn echo() -> Backend {
    Backend::answering(|request| ok(&request.body))
}

/// No request has come to the server with only some of its trailers.
#[track_caller]
fn came_whole_or_not_at_all(backend: &Backend, names: &[&str]) {
    for request in backend.requests() {
        let came: Vec<String> = request.trailers.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
        assert_eq!(came, names, "{} {}", request.start, request.trailers.len());
    }
}

#[test]
fn a_request_with_too_large_trailers_gets_431_over_every_version() {
    let site = Site::new();
    let backend = echo();
    let (gateway, plain) = listening(&site, "", &backend.url());
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |length: usize| {
        let large = "a".repeat(length);
        let trailers = [("x-a", "1"), ("x-large", &large), ("x-b", "2")];
        every
            .ask(Asked { method: "POST", target: "/", trailers: &trailers, ..Asked::default() })
            .map(|(status, _)| status)
    };
    for length in [100, 5_000, DETAILS, LIMIT - 200] {
        assert_eq!(ask(length), [200; 3], "{length}");
    }
    assert_eq!(backend.requests().len(), 12);
    // Above four times its limit `h2` ends the connection.
    for length in TOO_LARGE {
        assert_eq!(ask(length), [431; 3], "{length}");
    }
    came_whole_or_not_at_all(&backend, &["x-a", "x-large", "x-b"]);
    let refused = 3.0 * TOO_LARGE.len() as f64;
    assert_eq!(gateway.metric_with("sealane_parse_errors_total", "reason=\"trailers\""), Some(refused));
}

/// Where heads may be smaller than that, trailers may not be larger than heads.
#[test]
fn trailers_are_no_larger_than_heads() {
    let site = Site::new();
    let backend = echo();
    let (gateway, plain) = listening(&site, "[limits]\nmax_header_size = \"8KiB\"\n", &backend.url());
    let mut every = Everywhere::new(&gateway, plain);
    for (length, status) in [(7_000, 200), (8_300, 431), (12_000, 431), (20_000, 431)] {
        let large = "a".repeat(length);
        let trailers = [("x-a", "1"), ("x-large", &large), ("x-b", "2")];
        let asked = Asked { method: "POST", target: "/", trailers: &trailers, ..Asked::default() };
        assert_eq!(every.ask(asked).map(|(status, _)| status), [status; 3], "{length}");
    }
    // Many small ones.
    let names: Vec<String> = (0..120).map(|i| format!("x-{i:04}")).collect();
    let value = "v".repeat(80);
    let trailers: Vec<_> = names.iter().map(|name| (name.as_str(), value.as_str())).collect();
    let asked = Asked { method: "POST", target: "/", trailers: &trailers, ..Asked::default() };
    assert_eq!(every.ask(asked).map(|(status, _)| status), [431; 3]);
    came_whole_or_not_at_all(&backend, &["x-a", "x-large", "x-b"]);
}

/// The fate of a stream: a status that is in HPACK's static table, or the code of its reset.
fn fate(frames: &mut Frames<TcpStream>, stream: u32) -> Result<u16, u32> {
    let frame = frames.find(|f| f.stream == stream && matches!(f.kind, kind::HEADERS | kind::RST_STREAM));
    let frame = frame.expect("the stream is answered");
    match (frame.kind, &frame.payload[..]) {
        (kind::RST_STREAM, _) => Err(frame.code()),
        (_, [0x88, ..]) => Ok(200),
        (_, [0x8c, ..]) => Ok(400),
        (_, other) => panic!("{other:02x?}"),
    }
}

/// A field of HPACK's dynamic table can be a pseudo-header field, and `h2` does not tell.
#[test]
fn a_pseudo_field_of_the_dynamic_table_is_an_error_in_trailers() {
    let site = Site::new();
    let backend = echo();
    let (_gateway, plain) = listening(&site, "", &backend.url());
    let mut frames = Frames::plain(plain, &[]);
    // `:path`, with incremental indexing (RFC 7541 §6.2.1): entry 62 from now on.
    let path = [&[0x44, 6][..], b"/first"].concat();
    for (stream, path, trailers, expected) in [
        (1, &path[..], block(&[("x-sum", "1")]), 200),
        (3, &[0xbe][..], [&[0xbe][..], &block(&[("x-sum", "1")])].concat(), 400),
        (5, &[0xbe][..], block(&[("x-sum", "1"), ("x-more", "2")]), 200),
    ] {
        let head = block(&[(":method", "POST"), (":scheme", "http"), (":authority", HOST)]);
        let head = [&head[..], path].concat();
        frames.send(kind::HEADERS, END_HEADERS, stream, &head).expect("it is read");
        frames.send(kind::DATA, 0, stream, b"hello").expect("it is read");
        frames.send(kind::HEADERS, END_HEADERS | END_STREAM, stream, &trailers).expect("it is read");
        assert_eq!(fate(&mut frames, stream), Ok(expected), "{stream}");
    }
    assert_eq!(backend.requests().len(), 2);
}

/// How a response came to its end.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Cut,
    /// Whole, with a trailer of so many bytes.
    Whole(usize),
}

/// A response of this path over every version, as its client sees it.
fn responses(gateway: &Gateway, plain: SocketAddr, path: &str) -> [Ended; 3] {
    let mut wire = Wire::new(client::tcp(plain));
    let lines = "TE: trailers\r\nConnection: TE, close\r\n";
    wire.send(format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n{lines}\r\n")).expect("it is read");
    let length = |trailers: &[(String, String)]| {
        let of = |(name, value): &(String, String)| name.eq_ignore_ascii_case("x-large").then_some(value.len());
        trailers.iter().find_map(of).unwrap_or(0)
    };
    let first = wire.response("GET").map_or(Ended::Cut, |response| Ended::Whole(length(&response.trailers)));
    let answer = h2::run(async {
        let client = h2::connect(plain).await;
        h2::fetch(&client, h2::request(&http::Method::GET, path), None).await
    });
    let second = match answer.end {
        h2::End::Whole => Ended::Whole(0),
        h2::End::Trailers(trailers) => Ended::Whole(trailers.get("x-large").map_or(0, HeaderValue::len)),
        h2::End::Reset(_) => Ended::Cut,
        h2::End::Lost => panic!("the connection goes on"),
    };
    let mut third = Client::connect(gateway.address, &over_quic(gateway.config(), false));
    let third = match third.exchange(&headers("GET", path, &[("te", "trailers")], BodyLength::None), b"") {
        Ok(response) => Ended::Whole(length(&response.trailers)),
        Err(Failure::Reset(_)) => Ended::Cut,
        Err(other) => panic!("{other:?}"),
    };
    [first, second, third]
}

/// The size of the trailer that a path asks for.
fn size_of(path: &str) -> usize {
    path.trim_start_matches('/').parse().expect("the test asks for a size")
}

fn check_responses(gateway: &Gateway, plain: SocketAddr) {
    for length in [100, 5_000, DETAILS, LIMIT - 200] {
        let ended = responses(gateway, plain, &format!("/{length}"));
        assert!(ended.iter().all(|ended| *ended == Ended::Whole(length)), "{length}: {ended:?}");
    }
    for length in TOO_LARGE {
        let ended = responses(gateway, plain, &format!("/{length}"));
        assert!(ended.iter().all(|ended| *ended == Ended::Cut), "{length}: {ended:?}");
    }
    let cut = gateway.metric_with("sealane_aborted_exchanges_total", "by=\"upstream\"");
    assert_eq!(cut, Some(3.0 * TOO_LARGE.len() as f64));
}

#[test]
fn a_response_of_an_http1_server_with_too_large_trailers_is_cut_off() {
    let site = Site::new();
    let backend = Backend::answering(|request| {
        let large = "a".repeat(size_of(request.target()));
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n";
        format!("{head}x-a: 1\r\nx-large: {large}\r\nx-b: 2\r\n\r\n").into_bytes()
    });
    let (gateway, plain) = listening(&site, "", &backend.url());
    check_responses(&gateway, plain);
}

#[test]
fn a_response_of_an_http2_server_with_too_large_trailers_is_cut_off() {
    let site = Site::new();
    let server = h2::Server::start(|(request, mut respond)| async move {
        let Ok(mut send) = respond.send_response(http::Response::new(()), false) else { return };
        let large = "a".repeat(size_of(request.uri().path()));
        let mut trailers = HeaderMap::new();
        for (name, value) in [("x-a", "1"), ("x-large", &large), ("x-b", "2")] {
            trailers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).expect("it is legal"));
        }
        let _ = send.send_data(Bytes::from_static(b"hi"), false);
        let _ = send.send_trailers(trailers);
    });
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nupstream = \"app\"\n[[upstream]]\nname = \"app\"\nhttp = \"2\"\nservers = [{:?}]\n",
        server.url()
    );
    let (gateway, plain) = Listening { rest: &rest, ..Listening::default() }.start(&site);
    check_responses(&gateway, plain);
}

#[test]
fn a_response_of_an_http3_server_with_too_large_trailers_is_cut_off() {
    let site = Site::new();
    let server = h3_server::Server::start(&site.ecdsa, |mut asked| async move {
        let large = "a".repeat(size_of(&String::from_utf8_lossy(asked.head.target())));
        asked.respond(200, &[], BodyLength::Chunked).await;
        asked.data(b"hi").await;
        asked.trailers(&[("x-a", "1"), ("x-large", &large), ("x-b", "2")]).await;
        asked.finish().await;
    });
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nupstream = \"app\"\n[[upstream]]\nname = \"app\"\nhttp = \"3\"\nservers = [{:?}]\n\
         [upstream.tls]\nca = {:?}\n",
        server.url(),
        site.ca
    );
    let (gateway, plain) = Listening { rest: &rest, ..Listening::default() }.start(&site);
    check_responses(&gateway, plain);
}

/// A server that speaks HTTP/2 by prior knowledge, and answers the n-th request of a connection with the n-th of these lists of
/// header blocks: the head, and with a body the trailers.
fn answering_blocks(answers: Vec<Vec<Vec<u8>>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answers = answers.clone();
            std::thread::spawn(move || {
                let mut preface = [0; 24];
                if stream.read_exact(&mut preface).is_err() {
                    return;
                }
                let mut frames = Frames { stream };
                let _ = frames.send(kind::SETTINGS, 0, 0, &[]);
                for blocks in answers {
                    let Some(request) = frames.find(|f| f.kind == kind::HEADERS) else { return };
                    let last = |is_last: bool| END_HEADERS | if is_last { END_STREAM } else { 0 };
                    let _ = frames.send(kind::HEADERS, last(blocks.len() == 1), request.stream, &blocks[0]);
                    if let Some(trailers) = blocks.get(1) {
                        let _ = frames.send(kind::DATA, 0, request.stream, b"hi");
                        let _ = frames.send(kind::HEADERS, last(true), request.stream, trailers);
                    }
                }
                let _ = frames.find(|_| false);
            });
        }
    });
    address
}

/// RFC 9113 §8.1, §8.3: they are malformed, however they are encoded.
#[test]
fn pseudo_fields_of_requests_are_an_error_in_responses_and_all_of_them_in_trailers() {
    let site = Site::new();
    let plain = vec![0x88];
    let sum = block(&[("x-sum", "1")]);
    let address = answering_blocks(vec![
        vec![plain.clone()],
        vec![[&[0x84][..], &plain].concat()],
        vec![[&plain[..], &block(&[(":path", "/")])].concat()],
        // Into the dynamic table, and from there.
        vec![[&plain[..], &[0x44, 2], b"/x"].concat()],
        vec![[&plain[..], &[0xbe]].concat()],
        vec![plain.clone(), [&[0x84][..], &sum].concat()],
        vec![plain.clone(), [&[0xbe][..], &sum].concat()],
        vec![plain, sum],
    ]);
    let gateway = before(&site, [format!("http://{address}")]).plain().upstream("http = \"2\"").start();
    let ask = || {
        let lines = "TE: trailers\r\nConnection: TE\r\n";
        let response = gateway.plain(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n{lines}\r\n"));
        response.map(|response| response.status()).map_err(|broken| broken.partial.status())
    };
    assert_eq!(ask(), Ok(200));
    for case in 1..5 {
        assert_eq!(ask(), Ok(502), "{case}");
    }
    for case in 5..7 {
        assert_eq!(ask(), Err(200), "{case}");
    }
    assert_eq!(ask(), Ok(200));
    assert_eq!(gateway.metric_with("sealane_http2_connections_total", "side=\"upstream\""), Some(1.0));
}

fn third(gateway: &Gateway) -> Client {
    Client::connect(gateway.address, &over_quic(gateway.config(), false))
}

/// What is too large is skipped: it is not read as something else, and other requests of the connection go on.
#[test]
fn too_large_trailers_over_http3_end_one_request_and_not_the_connection() {
    let site = Site::new();
    let backend = echo();
    let setup = before(&site, [backend.url()]).listener("http3 = true");
    let gateway = setup.limits("max_header_size = \"8KiB\"").start();
    let names: Vec<String> = (0..120).map(|i| format!("x-{i:04}")).collect();
    let (value, one) = ("v".repeat(80), "a".repeat(40_000));
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), value.as_str())).collect();
    for trailers in [&many[..], &[("x-large", &one)]] {
        for pause in [false, true] {
            let mut client = third(&gateway);
            let first = client.open(&headers("POST", "/first", &[], BodyLength::Known(10)), false);
            client.write(first, &data(b"hello"));
            let mut bytes = headers("POST", "/second", &[], BodyLength::Chunked);
            bytes.extend(data(b"hello"));
            let mut fields = Fields::new();
            for (name, value) in trailers {
                fields.push(name.as_bytes(), value.as_bytes()).expect("they are legal");
            }
            sealane_http::h3::encode_trailers(&mut bytes, &fields);
            let (some, rest) = bytes.split_at(if pause { 5_000 } else { bytes.len() });
            let second = client.open(some, false);
            if pause {
                client.pump();
                std::thread::sleep(Duration::from_millis(50));
            }
            client.write(second, rest);
            client.finish(second);
            assert_eq!(client.response(second).map(|response| response.status), Ok(431));
            client.write(first, &data(b"world"));
            client.finish(first);
            let response = client.response(first).expect("the connection goes on");
            assert_eq!((response.status, response.body), (200, b"helloworld".to_vec()));
        }
    }
    assert_eq!(gateway.metric_with("sealane_http3_errors_total", "scope=\"connection\""), Some(0.0));
}

#[test]
fn a_body_beyond_its_length_over_http3_gets_400() {
    let site = Site::new();
    let backend = echo();
    let gateway = before(&site, [backend.url()]).listener("http3 = true").start();
    let mut client = third(&gateway);
    let (one, several) = (vec!["hello!"], vec!["hell", "o!", "more"]);
    for (pieces, pause) in [(&one, false), (&one, true), (&several, false), (&several, true)] {
        for _ in 0..5 {
            let id = client.open(&headers("POST", "/", &[], BodyLength::Known(5)), false);
            if pause {
                client.pump();
                std::thread::sleep(Duration::from_millis(20));
            }
            for piece in pieces {
                client.write(id, &data(piece.as_bytes()));
            }
            client.finish(id);
            assert_eq!(client.response(id).map(|response| response.status), Ok(400), "{pieces:?}");
        }
    }
    assert!(backend.requests().is_empty());
}

/// RFC 9110 §10.1.1: there is no content to wait for.
#[test]
fn an_expectation_without_a_body_is_not_forwarded() {
    let site = Site::new();
    let backend = echo();
    let (gateway, plain) = listening(&site, "", &backend.url());
    let mut every = Everywhere::new(&gateway, plain);
    let asked = Asked { target: "/x", fields: &[("expect", "100-continue")], ..Asked::default() };
    assert_eq!(every.ask(asked).map(|(status, _)| status), [200; 3]);
    let requests = backend.requests();
    assert_eq!(requests.len(), 3);
    for request in requests {
        let framing = ["expect", "content-length", "transfer-encoding"].map(|name| request.header(name).is_some());
        assert_eq!(framing, [false; 3], "{request:?}");
    }
}

/// RFC 9218 §7.1.
#[test]
fn a_priority_update_on_a_stream_or_of_none_is_an_error_over_http2() {
    let site = Site::new();
    let backend = echo();
    let (gateway, plain) = listening(&site, "", &backend.url());
    for (stream, id) in [(0, 0), (1, 1)] {
        let mut frames = Frames::plain(plain, &[]);
        let mut payload = Vec::from(u32::to_be_bytes(id));
        payload.extend(b"u=1");
        frames.send(kind::PRIORITY_UPDATE, 0, stream, &payload).expect("it is read");
        // PROTOCOL_ERROR.
        assert_eq!(frames.fate(), Some(1), "{stream}");
    }
    assert_eq!(gateway.metric_with("sealane_http2_connection_errors_total", "protocol"), Some(2.0));
}
