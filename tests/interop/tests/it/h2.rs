//! HTTP/2 from clients and to upstreams, by well-behaved ends made of the `h2` crate.

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use sealane_interop::backend::{Backend, ok};
use sealane_interop::base64;
use sealane_interop::client;
use sealane_interop::frames::{END_HEADERS, END_STREAM, Frames, block, frame, kind};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::h2::{self, End, Server, connect, fetch, request, say};
use sealane_interop::http::Wire;
use sealane_interop::noise;
use sealane_interop::site::{HOST, Site};
use std::io::Write;

/// A plain gateway that takes HTTP/2 from clients.
fn plain<'s>(site: &'s Site, backend: &str) -> sealane_interop::gateway::Setup<'s> {
    before(site, [backend]).plain().listener("h2c = true")
}

fn streams(gateway: &Gateway, side: &str) -> f64 {
    gateway.metric_with("sealane_http2_connections_total", &format!("side=\"{side}\"")).unwrap_or(0.0)
}

#[test]
fn a_hundred_requests_share_connections_on_both_sides() {
    let site = Site::new();
    let backend = Server::start(|(request, mut respond)| async move {
        say(&mut respond, request.uri().path().as_bytes());
    });
    let gateway = plain(&site, &backend.url()).upstream("http = \"2\"").start();
    h2::run(async {
        let client = connect(gateway.address).await;
        let fetches: Vec<_> = (0..100)
            .map(|n| {
                let client = client.clone();
                tokio::spawn(async move { fetch(&client, request(&Method::GET, &format!("/{n}")), None).await })
            })
            .collect();
        for (n, fetched) in fetches.into_iter().enumerate() {
            let answer = fetched.await.expect("it does not panic");
            assert_eq!((answer.status, answer.body), (200, format!("/{n}").into_bytes()));
        }
    });
    // To the server there is one with wide windows, and one with narrow ones.
    assert_eq!((streams(&gateway, "client"), streams(&gateway, "upstream")), (1.0, 2.0));
    assert_eq!(backend.connections(), 2);
}

#[test]
fn a_reader_that_stops_stalls_only_its_stream() {
    let site = Site::new();
    let body = noise(8 << 20, 5);
    let served = body.clone();
    let backend = Backend::answering(move |r| if r.target() == "/large" { ok(&served) } else { ok(b"small") });
    let gateway = plain(&site, &backend.url()).start();
    let held = gateway.server.resident();
    h2::run(async {
        let client = connect(gateway.address).await;
        let mut stalled = Vec::new();
        for _ in 0..10 {
            let mut client = client.clone().ready().await.expect("the connection is open");
            let (response, _) = client.send_request(request(&Method::GET, "/large"), true).expect("it can be sent");
            stalled.push(response.await.expect("its head comes").into_body());
        }
        let (read, _) = h2::read(&mut stalled[0]).await;
        assert_eq!(read.len(), body.len());
        assert!(read == body, "8 MiB that differ");
        for _ in 0..20 {
            assert_eq!(fetch(&client, request(&Method::GET, "/"), None).await.body, b"small");
        }
    });
    if let (Some(before), Some(after)) = (held, gateway.server.resident()) {
        assert!(after.saturating_sub(before) < 32 << 20, "ten readers that stopped took {} bytes", after - before);
    }
}

#[test]
fn uploads_are_held_back_by_a_slow_server_and_arrive_whole() {
    let site = Site::new();
    let backend = Server::start(|(request, mut respond)| async move {
        let mut body = request.into_body();
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let (bytes, _) = h2::read(&mut body).await;
        say(&mut respond, sealane_interop::sha256(&bytes).as_bytes());
    });
    let gateway = plain(&site, &backend.url()).upstream("http = \"2\"").start();
    let body = noise(5 << 20, 6);
    let expected = sealane_interop::sha256(&body);
    h2::run(async {
        let client = connect(gateway.address).await;
        for _ in 0..2 {
            let answer = fetch(&client, request(&Method::POST, "/"), Some(&body)).await;
            assert_eq!((answer.status, String::from_utf8_lossy(&answer.body).into_owned()), (200, expected.clone()));
        }
    });
}

#[test]
fn trailers_and_interim_responses_pass_both_ways() {
    let site = Site::new();
    let backend = Server::start(|(request, mut respond)| async move {
        let mut body = request.into_body();
        let (_, ended) = h2::read(&mut body).await;
        let mut hints = http::Response::new(());
        *hints.status_mut() = http::StatusCode::EARLY_HINTS;
        hints.headers_mut().insert("link", http::HeaderValue::from_static("</style.css>"));
        let _ = respond.send_informational(hints);
        let Ok(mut send) = respond.send_response(http::Response::new(()), false) else { return };
        let End::Trailers(trailers) = ended else { return send.send_reset(::h2::Reason::INTERNAL_ERROR) };
        let _ = send.send_data(Bytes::from_static(b"body"), false);
        let _ = send.send_trailers(trailers);
    });
    let gateway = plain(&site, &backend.url()).upstream("http = \"2\"").start();
    h2::run(async {
        let client = connect(gateway.address).await;
        let mut client = client.ready().await.expect("the connection is open");
        let (mut response, mut send) = client.send_request(request(&Method::POST, "/"), false).expect("it can be sent");
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", http::HeaderValue::from_static("42"));
        let _ = send.send_data(Bytes::from_static(b"hello"), false);
        let _ = send.send_trailers(trailers.clone());
        let interim = std::future::poll_fn(|cx| response.poll_informational(cx)).await;
        let interim = interim.expect("an interim response comes").expect("it is well-formed");
        assert_eq!((interim.status().as_u16(), interim.headers().get("link").is_some()), (103, true));
        let answer = h2::answer(response).await;
        assert_eq!((answer.status, answer.body, answer.end), (200, b"body".to_vec(), End::Trailers(trailers)));
    });
}

#[test]
fn what_http1_could_not_carry_is_refused_and_the_connection_goes_on() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = plain(&site, &backend.url()).start();
    let mut frames = Frames::plain(gateway.address, &[]);
    let good = [(":method", "GET"), (":scheme", "http"), (":authority", HOST), (":path", "/")];
    let cases: &[&[(&str, &str)]] = &[
        &[("connection", "close")],
        &[("transfer-encoding", "chunked")],
        &[("upgrade", "websocket")],
        &[("keep-alive", "1")],
        &[("te", "gzip")],
        &[("x", " a")],
        &[("content-length", "5")],
        &[("content-length", "0"), ("content-length", "0")],
        &[("content_length", "1")],
        &[("host", "other.test")],
        &[(":path", "/again")],
        &[("x", "y"), (":late", "z")],
    ];
    let mut stream = 1;
    // The h2 crate ends the connection at a name that is none.
    let mut upper = Frames::plain(gateway.address, &[]);
    upper.request(1, "GET", "/", &[("X-Upper", "1")], true).expect("the gateway reads");
    assert_eq!(upper.fate(), Some(1), "PROTOCOL_ERROR");
    // And at a value that is none.
    for value in ["a\r\nb: c", "a\0"] {
        let mut ended = Frames::plain(gateway.address, &[]);
        ended.request(1, "GET", "/", &[("x", value)], true).expect("the gateway reads");
        assert_eq!(ended.fate(), Some(1), "PROTOCOL_ERROR");
    }
    for case in cases {
        let list: Vec<_> = good.iter().chain(*case).copied().collect();
        stream += 2;
        if refused(&mut frames, stream, &list) {
            frames = Frames::plain(gateway.address, &[]);
        }
    }
    for (at, value) in [(0, "G ET"), (0, ""), (1, "ftp"), (2, "u@a"), (2, "a b"), (3, ""), (3, "x"), (3, "/a b")] {
        let mut list = good;
        list[at].1 = value;
        let less: Vec<_> = good.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, f)| *f).collect();
        for list in [&list[..], &less] {
            stream += 2;
            if refused(&mut frames, stream, list) {
                frames = Frames::plain(gateway.address, &[]);
            }
        }
    }
    stream += 2;
    // More data than announced, and less.
    for data in [&b"123456"[..], b"1234"] {
        frames.request(stream, "POST", "/", &[("content-length", "5")], false).expect("the gateway reads");
        frames.send(kind::DATA, END_STREAM, stream, data).expect("the gateway reads");
        let end = frames.find(|f| f.stream == stream && f.kind == kind::RST_STREAM).expect("it is reset");
        assert_ne!(end.code(), 0);
        stream += 2;
    }
    frames.request(stream, "GET", "/", &[], true).expect("the gateway reads");
    let body = frames.find(|f| f.stream == stream && f.kind == kind::DATA).expect("the connection goes on");
    assert_eq!(body.payload, b"hello");
    assert_eq!(backend.requests().len(), 1, "{:?}", backend.requests());
}

/// Refused is a reset, or a response by status 4xx or 5xx, of which the first byte is all that is looked at: in the
/// static table 200 has 0x88. Or the h2 crate ends the whole connection, for which true is returned.
fn refused(frames: &mut Frames<std::net::TcpStream>, stream: u32, list: &[(&str, &str)]) -> bool {
    frames.send(kind::HEADERS, END_HEADERS | END_STREAM, stream, &block(list)).expect("the gateway reads");
    let answer = frames.find(|f| f.stream == stream || f.kind == kind::GOAWAY);
    let answer = answer.unwrap_or_else(|| panic!("the connection ended at {list:?}"));
    match answer.kind {
        kind::RST_STREAM => assert_ne!(answer.code(), 0, "{list:?}"),
        kind::HEADERS => assert_ne!(answer.payload[0], 0x88, "{list:?} was answered with 200"),
        kind::GOAWAY => assert_eq!(answer.payload.get(4..8), Some(&[0, 0, 0, 1][..]), "{list:?}: PROTOCOL_ERROR"),
        other => panic!("{list:?} led to frame {other}: {answer:?}"),
    }
    answer.kind == kind::GOAWAY
}

#[test]
fn websocket_over_http2_reaches_an_http1_server() {
    let site = Site::new();
    // Answers the handshake as RFC 6455 wants it, then echoes bytes.
    let backend = Backend::start(|mut connection| {
        let Some(request) = connection.request() else { return };
        let key = request.header("sec-websocket-key").expect("the gateway adds a key").to_owned();
        assert_eq!(request.header("upgrade"), Some("websocket"));
        let digest = aws_lc_rs::digest::digest(
            &aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY,
            format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11").as_bytes(),
        );
        let answer = if request.target() == "/liar" { "bm90aGluZw==".to_owned() } else { base64(digest.as_ref()) };
        connection.send(format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
             Sec-WebSocket-Accept: {answer}\r\n\r\n"
        ));
        let mut byte = [0];
        while std::io::Read::read_exact(&mut connection.wire.stream, &mut byte).is_ok() {
            connection.send(byte);
        }
    });
    let gateway = plain(&site, &backend.url()).start();
    h2::run(async {
        let client = connect(gateway.address).await;
        for path in ["/echo", "/liar"] {
            let mut client = client.clone().ready().await.expect("the connection is open");
            // SETTINGS_ENABLE_CONNECT_PROTOCOL comes with the gateway's first frames.
            while !client.is_extended_connect_protocol_enabled() {
                tokio::task::yield_now().await;
            }
            let mut ask = Request::connect(format!("http://{HOST}{path}")).body(()).expect("it is well-formed");
            ask.extensions_mut().insert(::h2::ext::Protocol::from_static("websocket"));
            let (response, mut send) = client.send_request(ask, false).expect("it can be sent");
            let response = response.await.expect("it is answered");
            if path == "/liar" {
                assert_eq!(response.status(), 502);
                continue;
            }
            assert_eq!(response.status(), 200);
            assert!(response.headers().is_empty(), "{:?}", response.headers());
            let mut body = response.into_body();
            for round in 0..3u8 {
                let data = noise(10_000, u64::from(round));
                send.send_data(Bytes::from(data.clone()), false).expect("the tunnel is open");
                let mut echoed = Vec::new();
                while echoed.len() < data.len() {
                    let piece = body.data().await.expect("more comes").expect("it is not reset");
                    let _ = body.flow_control().release_capacity(piece.len());
                    echoed.extend_from_slice(&piece);
                }
                assert!(echoed == data, "round {round}");
            }
            let _ = send.send_data(Bytes::new(), true);
            let (rest, end) = h2::read(&mut body).await;
            assert_eq!((rest.len(), end), (0, End::Whole));
        }
    });
}

#[test]
fn websocket_over_http1_reaches_an_http2_server() {
    let site = Site::new();
    let backend = Server::start(|(request, mut respond)| async move {
        assert_eq!(request.extensions().get::<::h2::ext::Protocol>().map(|p| p.as_str()), Some("websocket"));
        assert!(request.headers().get("sec-websocket-key").is_none());
        let mut body = request.into_body();
        let Ok(mut send) = respond.send_response(http::Response::new(()), false) else { return };
        while let Some(Ok(piece)) = body.data().await {
            let _ = body.flow_control().release_capacity(piece.len());
            let _ = send.send_data(piece, false);
        }
        let _ = send.send_data(Bytes::new(), true);
    });
    let gateway = before(&site, [backend.url()]).upstream("http = \"2\"").start();
    // The connection, and with it the server's SETTINGS, must be there before an extended CONNECT may be sent.
    let mut wire: Wire<_> = gateway.connect();
    let served = sealane_interop::eventually(|| {
        wire = gateway.connect();
        let ask = format!(
            "GET / HTTP/1.1\r\nHost: {HOST}\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        wire.send(ask).expect("the gateway reads");
        let response = wire.response("GET").expect("the gateway answers");
        let accept = response.header("sec-websocket-accept");
        response.status() == 101 && accept == Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
    });
    assert!(served);
    let mut echoed = Vec::new();
    wire.send("through the tunnel").expect("the tunnel is open");
    wire.exactly(18, &mut echoed).expect("it comes back");
    assert_eq!(echoed, b"through the tunnel");
}

#[test]
fn a_drain_lets_streams_end_and_opens_no_more() {
    let site = Site::new();
    let backend = Server::start(|(_, mut respond)| async move {
        let Ok(mut send) = respond.send_response(http::Response::new(()), false) else { return };
        for _ in 0..10 {
            let _ = send.send_data(Bytes::from_static(b"piece"), false);
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        let _ = send.send_data(Bytes::new(), true);
    });
    let mut gateway = plain(&site, &backend.url()).upstream("http = \"2\"").start();
    h2::run(async {
        let client = connect(gateway.address).await;
        let mut client = client.ready().await.expect("the connection is open");
        let (response, _) = client.send_request(request(&Method::GET, "/"), true).expect("it can be sent");
        let mut body = response.await.expect("it is answered").into_body();
        gateway.server.terminate();
        let (bytes, end) = h2::read(&mut body).await;
        assert_eq!((bytes.len(), end), (50, End::Whole));
        let later = client.ready().await;
        assert!(later.is_err(), "the connection takes requests after its GOAWAY");
    });
    assert!(gateway.server.wait().success());
}

/// A client that answers no PING never gets the second GOAWAY. Its streams are refused all the same.
#[test]
fn max_requests_holds_for_a_client_that_ignores_goaway() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = plain(&site, &backend.url()).limits("max_requests = 3").start();
    let mut frames = Frames::plain(gateway.address, &[]);
    let mut stream = 1;
    let mut is_served = || {
        frames.request(stream, "GET", "/", &[], true).expect("the gateway reads");
        let last = frames.find(|f| f.stream == stream && (f.kind == kind::RST_STREAM || f.flags & END_STREAM != 0));
        let last = last.expect("each stream ends");
        stream += 2;
        let refused = last.kind == kind::RST_STREAM;
        assert!(!refused || last.code() == 7, "it is refused in another way: {last:?}");
        !refused
    };
    assert!((0..3).all(|_| is_served()));
    assert!(sealane_interop::eventually(|| !is_served()), "{} requests are served", backend.requests().len());
    assert!(!is_served());
    // Each of them costs it as much as one that it resets: over HTTP/3, too.
    let mut farewell = None;
    for _ in 0..1000 {
        if frames.request(stream, "GET", "/", &[], true).is_err() {
            break;
        }
        let answer = frames.find(|f| f.stream == stream || f.kind == kind::GOAWAY && f.code() != 0);
        stream += 2;
        if answer.as_ref().is_none_or(|f| f.kind == kind::GOAWAY) {
            farewell = answer;
            break;
        }
    }
    assert_eq!(farewell.map(|f| f.code()), Some(11), "ENHANCE_YOUR_CALM");
}

#[test]
fn a_request_that_was_refused_unseen_goes_again() {
    let site = Site::new();
    let seen = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = seen.clone();
    let backend = Server::start(move |(_, mut respond)| {
        let first = counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
        async move { if first { respond.send_reset(::h2::Reason::REFUSED_STREAM) } else { say(&mut respond, b"served") } }
    });
    let gateway = plain(&site, &backend.url()).upstream("http = \"2\"").start();
    h2::run(async {
        let client = connect(gateway.address).await;
        // Not idempotent: only since it was refused may it go again.
        let answer = fetch(&client, request(&Method::POST, "/"), None).await;
        assert_eq!((answer.status, answer.body), (200, b"served".to_vec()));
    });
    assert_eq!(seen.load(std::sync::atomic::Ordering::SeqCst), 2);
}

#[test]
fn early_data_is_for_safe_methods_and_told_to_the_upstream() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).tls("early_data = \"16KiB\"").start();
    let mut config = client::config_with(gateway.ca(), client::provider(), &[&rustls::version::TLS13]);
    config.enable_early_data = true;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let config = std::sync::Arc::new(config);
    // Brings the tickets.
    let mut first = Frames::begin(client::connect(gateway.address, &config).stream, &[]);
    first.request(1, "GET", "/", &[], true).expect("the gateway reads");
    first.find(|f| f.kind == kind::DATA).expect("it is answered");
    for (method, expected) in [("GET", &b"hello"[..]), ("POST", b"425 Too Early\n")] {
        let list = [(":method", method), (":scheme", "https"), (":authority", HOST), (":path", "/early")];
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(kind::SETTINGS, 0, 0, &[]));
        bytes.extend(frame(kind::HEADERS, END_STREAM | END_HEADERS, 1, &block(&list)));
        let mut session = client::session(&config, HOST);
        let sent = session.early_data().expect("the ticket allows early data").write(&bytes);
        assert_eq!(sent.expect("there is room for a small request"), bytes.len());
        let mut socket = client::tcp(gateway.address);
        while session.is_handshaking() {
            session.complete_io(&mut socket).expect("the handshake goes through");
        }
        assert!(session.is_early_data_accepted(), "{method}");
        let mut frames = Frames { stream: rustls::StreamOwned::new(session, socket) };
        let data = frames.find(|f| f.kind == kind::DATA).expect("it is answered");
        assert_eq!(data.payload, expected, "{method}");
    }
    let requests = backend.requests();
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert_eq!((requests[0].header("early-data"), requests[1].header("early-data")), (None, Some("1")));
}

/// `h2` answers it by itself, without a word to the gateway.
#[test]
fn a_head_that_is_too_large_is_counted() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = plain(&site, &backend.url()).start();
    let mut frames = Frames::plain(gateway.address, &[]);
    let value = "x".repeat(900);
    let mut list = vec![(":method", "GET"), (":scheme", "http"), (":authority", HOST), (":path", "/")];
    list.extend((0..60).map(|_| ("x-long", value.as_str())));
    for stream in [1, 3] {
        let head = block(&list);
        let (first, rest) = head.split_at(16_000);
        frames.send(kind::HEADERS, END_STREAM, stream, first).expect("the gateway reads");
        let pieces: Vec<&[u8]> = rest.chunks(16_000).collect();
        for (i, piece) in pieces.iter().enumerate() {
            let flags = if i + 1 == pieces.len() { END_HEADERS } else { 0 };
            frames.send(kind::CONTINUATION, flags, stream, piece).expect("the gateway reads");
        }
        frames.find(|f| f.kind == kind::HEADERS && f.stream == stream).expect("it is answered");
    }
    frames.request(5, "GET", "/", &[], true).expect("the gateway reads");
    frames.find(|f| f.kind == kind::HEADERS && f.stream == 5).expect("it is answered");
    let metric = |name, label| gateway.metric_with(name, label);
    assert_eq!(metric("sealane_parse_errors_total", "reason=\"head_length\""), Some(2.0), "{}", gateway.metrics());
    assert_eq!(metric("sealane_responses_total", "class=\"4xx\""), Some(2.0));
}
