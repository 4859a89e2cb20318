//! HTTP/3 from clients: requests, bodies both ways, trailers, early data, WebSocket, drain, migration, many lanes.

use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{Dir, TokenMemoryCache, TransportConfig, VarInt};
use sealane_http::h3::Code;
use sealane_http::{BodyLength, Scheme};
use sealane_interop::backend::{Backend, chunked, in_chunks, ok};
use sealane_interop::gateway::{Gateway, Setup, before, configured, run};
use sealane_interop::h3::{Client, Failure, data, head, headers, over_quic};
use sealane_interop::peers::curl;
use sealane_interop::site::Site;
use sealane_interop::versions::Listening;
use sealane_interop::{base64, eventually, need, noise, ports};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

fn served<'s>(site: &'s Site, backend: &Backend) -> Setup<'s> {
    before(site, [backend.url()]).listener("http3 = true")
}

fn connect(gateway: &Gateway) -> Client {
    Client::connect(gateway.address, &over_quic(gateway.config(), false))
}

/// Reads one stream's worth of HTTP/3's HEADERS for a body.
fn post(path: &str, body: BodyLength) -> Vec<u8> {
    headers("POST", path, &[], body)
}

#[test]
fn requests_share_a_connection_and_the_upstream_is_told_where_they_come_from() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = served(&site, &backend).start();
    let mut client = connect(&gateway);
    for i in 0..20 {
        let response = client.get(&format!("/{i}?q"));
        assert_eq!((response.status, &response.body[..]), (200, &b"hello"[..]));
        assert_eq!(response.field("content-length"), Some("5"));
    }
    let head = client.exchange(&headers("HEAD", "/", &[], BodyLength::None), b"").unwrap();
    assert_eq!((head.status, head.field("content-length"), head.body.len()), (200, Some("5"), 0));
    let last = &backend.requests()[5];
    assert_eq!((last.method(), last.target(), last.header("Host")), ("GET", "/5?q", Some("localhost")));
    assert_eq!(last.header("X-Forwarded-Proto"), Some("https"));
    assert_eq!(last.header("X-Forwarded-For"), Some("127.0.0.1"));
    assert!(last.header("Transfer-Encoding").is_none() && last.header("Content-Length").is_none());
    assert_eq!(backend.connections(), 1, "the connection to the backend is kept");
    assert_eq!(gateway.metric("sealane_quic_connections_total"), Some(1.0));
    assert_eq!(gateway.metric("sealane_requests_total"), Some(21.0));
}

#[test]
fn http3_is_announced_over_tcp_and_not_over_itself() {
    let site = Site::new();
    let backend =
        Backend::answering(|_| b"HTTP/1.1 200 OK\r\nAlt-Svc: h3=\":1\"\r\nContent-Length: 0\r\n\r\n".to_vec());
    let gateway = served(&site, &backend).start();
    let announced = format!("h3=\":{}\"; ma=86400", gateway.address.port());
    assert_eq!(gateway.get("/").header("Alt-Svc"), Some(announced.as_str()));
    assert_eq!(connect(&gateway).get("/").field("alt-svc"), None);
}

/// Where clients come by another port than the bound one, that one is announced.
#[test]
fn another_port_can_be_announced() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let quic = |line: &str| served(&site, &backend).listener(&format!("[listener.quic]\n{line}"));
    let gateway = quic("alt_svc_port = 443").start();
    assert_eq!(gateway.get("/").header("Alt-Svc"), Some("h3=\":443\"; ma=86400"));
    for (wrong, said) in [("alt_svc_port = 0", "1 to 65535"), ("alt_svc = false\nalt_svc_port = 1", "has no effect")] {
        let file = site.file("wrong.toml", quic(wrong).file(gateway.address, gateway.admin));
        let output = run([OsStr::new("check"), OsStr::new("-c"), file.as_os_str()]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(1) && errors.contains("alt_svc_port") && errors.contains(said),
            "{errors}"
        );
    }
}

/// Where clients reach HTTP/3 by another name, that one is announced, over HTTP/1.1 and HTTP/2, and the records for DNS do not say that
/// the name itself serves HTTP/3. Over HTTP/3, nothing is announced.
#[test]
fn another_host_can_be_announced() {
    need!("curl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let plain = ports::free();
    let text = |line: &str| {
        let hosts = format!("[[host]]\nnames = [\"*\"]\nto = {:?}\n", backend.url());
        let text = Listening { rest: &hosts, ..Listening::default() }.text(&site, plain);
        text.replacen("[listener.tls]", &format!("[listener.quic]\n{line}\n[listener.tls]"), 1)
    };
    let gateway = configured(&site, &text("alt_svc_host = \"Quic.Example.com\"\nalt_svc_port = 443"));
    assert_eq!(gateway.get("/").header("Alt-Svc"), Some("h3=\"quic.example.com:443\"; ma=86400"));
    let second = curl(&gateway, "/", ["--http2", "--include"]).text();
    assert!(
        second.starts_with("HTTP/2 200") && second.contains("alt-svc: h3=\"quic.example.com:443\"; ma=86400"),
        "{second}"
    );
    assert_eq!(connect(&gateway).get("/").field("alt-svc"), None);
    let checked = |line: &str, more: &[&str]| {
        let text = text(line).replace("@ADDRESS@", "127.0.0.1:8443").replace("@ADMIN@", "127.0.0.1:9901");
        let file = site.file("checked.toml", text);
        run([&["check", "--offline", "-c", &file.display().to_string()][..], more].concat())
    };
    let records = checked("alt_svc_host = \"quic.example.com\"", &["--dns-records"]);
    let records = String::from_utf8_lossy(&records.stdout).into_owned();
    assert!(records.contains("alpn=\"h2\"") && !records.contains("h3"), "{records}");
    for (wrong, said) in [
        ("alt_svc_host = \"quic.example.com:443\"", "is not a host"),
        ("alt_svc_host = \"*.example.com\"", "is not a host"),
        ("alt_svc_host = \"::1\"", "alt_svc_host = \"[::1]\""),
        ("alt_svc_host = \"1.2.3\"", "write all four numbers"),
        ("alt_svc_host = 'a\"; ma=1'", "is not a host"),
        ("alt_svc = false\nalt_svc_host = \"quic.example.com\"", "has no effect"),
    ] {
        let output = checked(wrong, &[]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(1) && errors.contains("alt_svc_host") && errors.contains(said),
            "{errors}"
        );
    }
    let without = text("alt_svc_host = \"quic.example.com\"").replace("http3 = true\n", "");
    let without = without.replace("@ADDRESS@", "127.0.0.1:8443").replace("@ADMIN@", "127.0.0.1:9901");
    let file = site.file("checked.toml", without);
    let output = run(["check", "--offline", "-c", &file.display().to_string()]);
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && said.contains("has no effect without \"http3\""), "{said}");
}

#[test]
fn bodies_go_both_ways_whole() {
    let site = Site::new();
    let backend = Backend::answering(|request| match request.target() {
        "/chunked" => chunked(&request.body, 10_000),
        _ => ok(&request.body),
    });
    let gateway = served(&site, &backend).start();
    let mut client = connect(&gateway);
    for (i, size) in [1, 1000, 16_384, 65_536, 3_000_000].into_iter().enumerate() {
        let body = noise(size, i as u64);
        for (path, length) in [("/", BodyLength::Known(size as u64)), ("/chunked", BodyLength::Chunked)] {
            let response = client.exchange(&post(path, length), &body).unwrap();
            assert!(response.status == 200 && response.body == body, "{size} {path}");
        }
    }
    // As many at once as there may be.
    let body = noise(100_000, 7);
    let bytes = [post("/", BodyLength::Chunked), data(&body)].concat();
    let ids: Vec<_> = (0..100).map(|_| client.open(&bytes, true)).collect();
    for id in ids {
        assert!(client.response(id).unwrap().body == body);
    }
}

#[test]
fn interim_responses_and_trailers() {
    let site = Site::new();
    let backend = Backend::answering(|request| {
        let mut answer =
            b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nTrailer: X-Sum\r\n".to_vec();
        answer.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
        let mut body = in_chunks(&request.body, 100);
        body.truncate(body.len() - 2);
        body.extend_from_slice(b"X-Sum: 42\r\n\r\n");
        answer.extend_from_slice(&body);
        answer
    });
    let gateway = served(&site, &backend).start();
    let mut client = connect(&gateway);
    let response = client.exchange(&post("/", BodyLength::Known(500)), &[7; 500]).unwrap();
    assert_eq!((response.status, response.interim, response.body), (200, vec![103], vec![7; 500]));
    assert_eq!(response.trailers, [("x-sum".to_owned(), "42".to_owned())]);
}

#[test]
fn a_slow_reader_holds_up_its_own_stream_only() {
    let site = Site::new();
    let body = noise(4_000_000, 3);
    let large = body.clone();
    let backend = Backend::answering(move |request| match request.target() {
        "/large" => ok(&large),
        _ => ok(b"small"),
    });
    let gateway = served(&site, &backend).start();
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(20_000));
    transport.max_concurrent_uni_streams(VarInt::from_u32(8));
    let config = over_quic(gateway.config(), false);
    let mut client = Client::begin_with(gateway.address, &config, transport);
    assert!(client.until(|c| !c.quic.is_handshaking()));
    client.open_control();
    // Nobody reads this stream for a while: it is opened behind the harness' back.
    let slow = client.quic.streams().open(quinn_proto::Dir::Bi).unwrap();
    client.write(slow, &headers("GET", "/large", &[], BodyLength::None));
    client.finish(slow);
    for _ in 0..50 {
        assert_eq!(client.get("/small").body, b"small");
    }
    // And then it is, to its end.
    let mut got = Vec::new();
    let whole = client.until(|c| {
        let mut recv = c.quic.recv_stream(slow);
        let Ok(mut chunks) = recv.read(true) else { return true };
        let ended = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => got.extend_from_slice(&chunk.bytes),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        let _ = chunks.finalize();
        ended
    });
    assert!(whole && got.len() > body.len() && got.len() < body.len() + 100_000, "{}", got.len());
}

#[test]
fn early_data_is_marked_single_use_and_safe_methods_only() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = served(&site, &backend).tls("early_data = \"16KiB\"").start();
    let config = over_quic(gateway.config(), true);
    let mut first = Client::connect(gateway.address, &config);
    first.get("/first");
    // The tickets come with the end of the handshake, before the response.
    first.close();
    for (method, status, mark) in [("GET", 200, Some("1")), ("POST", 425, None)] {
        let mut client = Client::begin(gateway.address, &config);
        assert!(client.quic.has_0rtt(), "a ticket for early data");
        client.open_control();
        let response = client.exchange(&headers(method, "/early", &[], BodyLength::None), b"").unwrap();
        assert_eq!(response.status, status);
        assert!(client.until(|c| !c.quic.is_handshaking()) && client.quic.accepted_0rtt());
        if status == 200 {
            assert_eq!(backend.last().header("Early-Data"), mark);
        }
        // The next connection needs a ticket of this one.
        client.get("/later");
        client.close();
    }
    // A WebSocket is not safe either, with what follows it (RFC 9220, RFC 8470 §3).
    let mut client = Client::begin(gateway.address, &config);
    assert!(client.quic.has_0rtt(), "a ticket for early data");
    client.open_control();
    let mut request = head("GET", "/chat", &[("sec-websocket-version", "13")]);
    request.fields.push(b"upgrade", b"websocket").unwrap();
    let mut bytes = Vec::new();
    sealane_http::h3::encode_request(&mut bytes, &request, BodyLength::None, Scheme::Https, true);
    bytes.extend(data(b"message"));
    let id = client.open(&bytes, true);
    assert_eq!(client.response(id).unwrap().status, 425);
    assert!(backend.requests().iter().all(|r| r.target() != "/chat"));
    client.close();
    assert_eq!(gateway.metric_with("sealane_early_data_connections_total", "accepted"), Some(3.0));
}

/// Early data of a connection that is ending is early data all the same: with `max_requests = 1` the first request ends the connection.
/// The server answers 425, and the request is sent again without `Early-Data` only when the handshake is over (RFC 8470 §5.2).
#[test]
fn early_data_of_a_leaving_connection_waits_for_the_handshake() {
    let site = Site::new();
    let backend = Backend::answering(|request| match request.header("early-data") {
        Some(_) => b"HTTP/1.1 425 Too Early\r\nContent-Length: 0\r\n\r\n".to_vec(),
        None => ok(b"late"),
    });
    let setup = served(&site, &backend).tls("early_data = \"16KiB\"").lanes(1);
    let gateway = setup.limits("max_requests = 1").start();
    let config = over_quic(gateway.config(), true);
    let mut first = Client::connect(gateway.address, &config);
    first.get("/first");
    first.close();
    let reached = |path: &str| backend.requests().iter().filter(|request| request.target() == path).count();
    let mut client = Client::begin(gateway.address, &config);
    assert!(client.quic.has_0rtt(), "a ticket for early data");
    client.open_control();
    let id = client.open(&headers("GET", "/early", &[], BodyLength::None), true);
    // The client sends, and reads nothing: its handshake does not end.
    client.pump_once();
    assert!(eventually(|| reached("/early") == 1));
    // The same lane serves others, and has read the 425 long ago.
    for _ in 0..20 {
        assert_eq!(gateway.get("/other").text(), "late");
    }
    assert_eq!(reached("/early"), 1, "the request was repeated before the handshake was over");
    let response = client.response(id).unwrap();
    assert_eq!((response.status, response.body), (200, b"late".to_vec()));
    assert_eq!(reached("/early"), 2);
}

#[test]
fn websocket_over_http3() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        let Ok(Some(request)) = connection.wire.request_head() else { return };
        connection.note(&request);
        let key = request.header("Sec-WebSocket-Key").unwrap_or_default();
        let digest = aws_lc_rs::digest::digest(
            &aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY,
            format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11").as_bytes(),
        );
        connection.send(format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n\r\n",
            base64(digest.as_ref())
        ));
        let mut echoed = Vec::new();
        while connection.wire.exactly(10, &mut echoed).is_ok() {
            connection.send(&echoed);
            echoed.clear();
        }
    });
    let gateway = served(&site, &backend).start();
    let mut client = connect(&gateway);
    let mut request = head("GET", "/chat", &[("sec-websocket-version", "13")]);
    request.fields.push(b"upgrade", b"websocket").unwrap();
    let mut bytes = Vec::new();
    sealane_http::h3::encode_request(&mut bytes, &request, BodyLength::None, Scheme::Https, true);
    let id = client.open(&bytes, false);
    for i in 0..10u8 {
        let before = client.received(id).len();
        client.write(id, &data(&[i; 10]));
        assert!(client.until(|c| c.received(id).len() >= before + 12 && c.received(id).ends_with(&[i; 10])), "{i}");
    }
    let asked = backend.last();
    assert_eq!((asked.method(), asked.target(), asked.header("Upgrade")), ("GET", "/chat", Some("websocket")));
    assert!(asked.header("Sec-WebSocket-Key").is_some_and(|k| k.len() == 24));
    client.finish(id);
    let response = client.response(id).unwrap();
    assert_eq!((response.status, response.body.len()), (200, 100));
    assert_eq!(response.field("sec-websocket-accept"), None);
}

#[test]
fn a_client_that_moves_is_still_served() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = served(&site, &backend).lanes(4).start();
    let mut clients: Vec<Client> = (0..12).map(|_| connect(&gateway)).collect();
    for client in &mut clients {
        client.get("/before");
        let old = client.local();
        for _ in 0..4 {
            client.rebind();
            assert_ne!(client.local(), old);
            assert_eq!(client.get("/after").body, b"hello");
        }
    }
    assert_eq!(gateway.metric("sealane_quic_connections_total"), Some(12.0), "none had to connect again");
}

/// RFC 9000 §8.1.3: who has shown where it is need not do so again; each connection brings what the next one needs.
#[test]
fn a_token_spares_the_round_trip_of_a_retry() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = served(&site, &backend).listener("[listener.quic]\nretry_above = 0").start();
    let retries = || gateway.metric("sealane_quic_retries_total");
    let config = over_quic(gateway.config(), false);
    let tokens = Arc::new(TokenMemoryCache::default());
    for _ in 0..3 {
        let crypto = QuicClientConfig::try_from(config.clone()).unwrap();
        let mut known = quinn_proto::ClientConfig::new(Arc::new(crypto));
        known.token_store(tokens.clone());
        let mut client = Client::begin_as(gateway.address, known);
        assert!(client.until(|c| !c.quic.is_handshaking()));
        client.open_control();
        assert_eq!(client.get("/").body, b"hello");
        assert!(client.until(|c| c.quic.stats().frame_rx.new_token > 0));
        assert_eq!(retries(), Some(1.0), "the first alone");
        client.close();
    }
    assert_eq!(connect(&gateway).get("/").body, b"hello");
    assert_eq!(retries(), Some(2.0), "who has none is asked");
}

/// The first update comes before the gateway has any need of further keys, the others after.
#[test]
fn keys_are_updated_early_and_late() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = served(&site, &backend).start();
    let mut client = connect(&gateway);
    for _ in 0..10 {
        // Without effect while the one before is still going on.
        client.quic.force_key_update();
        assert_eq!(client.get("/").body, b"hello");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(gateway.metric("sealane_quic_connections_total"), Some(1.0));
}

/// What only connections that last need is not there at first, and comes by itself.
#[test]
fn spare_connection_ids_come_later_and_a_close_is_not_answered() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = served(&site, &backend).start();
    let mut client = connect(&gateway);
    client.get("/");
    // The probe for a larger MTU is a PING.
    let lasting = |c: &mut Client| {
        let frames = c.quic.stats().frame_rx;
        frames.new_connection_id >= 4 && frames.ping > 0 && frames.max_streams_bidi > 0
    };
    assert!(client.until(lasting), "{:?}", client.quic.stats().frame_rx);
    assert_eq!(client.get("/").body, b"hello");
    client.close();
    assert!(eventually(|| gateway.metric("sealane_connections_open") == Some(0.0)));
    client.pump();
    assert_eq!(client.quic.stats().frame_rx.connection_close, 0);
}

/// Not all of the requests that RFC 9114 §6.1 wants allowed at a time are from the first moment.
#[test]
fn who_makes_more_than_one_request_may_make_many_at_a_time() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = served(&site, &backend).start();
    let mut client = connect(&gateway);
    assert_eq!(client.get("/").body, b"hello");
    assert_eq!(client.get("/").body, b"hello");
    let mut streams = 0;
    let all = client.until(|c| {
        // Those that are only opened, and say nothing, are known to the client alone.
        while c.quic.streams().open(Dir::Bi).is_some() {
            streams += 1;
        }
        // Of 100; ends of single ones are not worth a frame.
        streams >= 88
    });
    assert!(all, "{streams} streams");
}

#[test]
fn a_ping_is_acknowledged_when_nothing_else_is_said() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = served(&site, &backend).start();
    let mut client = connect(&gateway);
    assert_eq!(client.get("/").body, b"hello");
    for _ in 0..3 {
        let before = client.quic.stats().frame_rx.acks;
        client.quic.ping();
        assert!(client.until(|c| c.quic.stats().frame_rx.acks > before), "{:?}", client.quic.stats().frame_rx);
    }
}

#[test]
fn tickets_with_early_data_are_good_on_any_lane() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = served(&site, &backend).lanes(4).tls("early_data = \"16KiB\"").start();
    let config = over_quic(gateway.config(), true);
    let mut first = Client::connect(gateway.address, &config);
    first.get("/first");
    // What says so comes with the tickets, and a fast response to early data before both.
    let confirmed = |c: &mut Client| c.quic.stats().frame_rx.handshake_done > 0;
    first.until(confirmed);
    first.close();
    let (mut early, mut tried) = (0, 0);
    for _ in 0..8 {
        let mut client = Client::begin(gateway.address, &config);
        tried += u32::from(client.quic.has_0rtt());
        client.open_control();
        assert_eq!(client.get("/").body, b"hello");
        client.until(confirmed);
        early += u32::from(client.quic.accepted_0rtt());
        client.close();
    }
    assert!(tried >= 6 && early == tried, "{early} of {tried}");
}

#[test]
fn connections_survive_a_reload_and_end_with_a_drain() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        while let Some(request) = connection.request() {
            if request.target() == "/slow" {
                std::thread::sleep(Duration::from_secs(1));
            }
            connection.send(ok(b"hello"));
        }
    });
    let mut gateway = served(&site, &backend).start();
    let mut client = connect(&gateway);
    client.get("/before");
    for i in 1..=3 {
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(gateway.server.id() as i32).unwrap(),
            rustix::process::Signal::HUP,
        )
        .unwrap();
        assert_eq!(client.get("/after").body, b"hello");
        // Two signals in quick succession may be one.
        assert!(eventually(|| gateway.server.log().matches("reloaded").count() == i), "{}", gateway.server.log());
    }
    let new = connect(&gateway).get("/new");
    assert_eq!((new.body, client.get("/old").body), (b"hello".to_vec(), b"hello".to_vec()));
    let slow = client.open(&headers("GET", "/slow", &[], BodyLength::None), true);
    client.pump();
    assert!(eventually(|| backend.last().target() == "/slow"));
    gateway.server.terminate();
    assert_eq!(client.response(slow).unwrap().body, b"hello");
    assert!(client.until(|c| c.lost.is_some()));
    assert_eq!(client.failure(), Failure::Closed(u64::from(Code::NoError.value())));
    let goaway = client.uni.values().any(|bytes| bytes.windows(2).any(|w| w[0] == 7));
    assert!(goaway, "{:?}", client.uni);
    assert!(gateway.server.wait().success());
}

/// What waits for the client's acknowledgements does not hold up the word that the connection ends.
#[test]
fn a_client_that_acknowledges_nothing_hears_of_the_end() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        while connection.request().is_some() {
            connection.send(ok(&noise(1 << 20, 1)));
        }
    });
    let mut gateway = served(&site, &backend).start();
    // Closed by the first signal: the second one comes after it.
    let mut idle = gateway.connect();
    let mut client = connect(&gateway);
    let download = client.open(&headers("GET", "/", &[], BodyLength::None), true);
    client.pump();
    // From here on the client takes nothing until the gateway has ended: the window is full soon.
    let mut before = None;
    assert!(eventually(|| {
        let now = gateway.metric_with("sealane_quic_datagrams_total", "direction=\"out\"");
        let full = now == before && !backend.requests().is_empty();
        before = now;
        full
    }));
    gateway.server.terminate();
    assert_eq!(idle.rest().0, b"");
    gateway.server.terminate();
    assert!(gateway.server.wait().success());
    client.until(|c| c.lost.is_some());
    assert_eq!(client.failure(), Failure::Closed(u64::from(Code::NoError.value())));
    assert!(client.so_far(download).is_ok_and(|r| r.body.len() < 1 << 20));
}

/// A name for which another client certificate is asked is not served on this connection, whatever its version.
#[test]
fn another_name_with_other_rules_is_misdirected() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let rule = format!("client_auth = {{ for = [\"secret.example.test\"], mode = \"require\", ca = {:?} }}", site.ca);
    let gateway = served(&site, &backend).tls(&rule).start();
    let mut client = connect(&gateway);
    for (name, status) in [("secret.example.test", 421), ("public.example.test", 200), ("secret.example.test", 421)] {
        let mut request = head("GET", "/", &[]);
        request.set_authority(name.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        sealane_http::h3::encode_request(&mut bytes, &request, BodyLength::None, Scheme::Https, false);
        assert_eq!(client.exchange(&bytes, b"").unwrap().status, status, "{name}");
    }
    if sealane_interop::peers::find("curl").is_none() {
        sealane_interop::skip!("over TCP: `curl` is not installed");
    }
    for version in ["--http1.1", "--http2"] {
        for (name, status) in [("secret.example.test", "421"), ("public.example.test", "200")] {
            let host = format!("Host: {name}");
            let said = curl(&gateway, "/", ["-H", &host, "-o", "/dev/null", "-w", "%{http_code}", version]);
            assert_eq!(said.text(), status, "{version} {name} {}", said.err);
        }
    }
}
