//! `total_timeout`, `min_body_rate` and `max_body_size` of routes, over every version of HTTP: a request ends after its time, whatever
//! it waits for, and no longer body than allowed gets to a server.

use bytes::Bytes;
use http::{Method, Request};
use sealane_http::{BodyLength, Scheme};
use sealane_interop::backend::{Backend, ok};
use sealane_interop::client;
use sealane_interop::frames::{Frames, kind};
use sealane_interop::gateway::Gateway;
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Everywhere, Listening};
use sealane_interop::{eventually, h2, h3};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// All limits but those of the route are so long that a test would not see their end, and that nothing is looked at because of
/// them.
const LONG: &str = "[limits]\nidle_timeout = \"1h\"\nhandshake_timeout = \"1h\"\nheader_timeout = \"1h\"\n";

/// `host` and `upstream` are lines of the host, with its routes, and of the upstream `app`, with what follows.
fn gateway(site: &Site, servers: &[&Backend], host: &str, upstream: &str) -> (Gateway, SocketAddr) {
    let servers: Vec<String> = servers.iter().map(|server| server.url()).collect();
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nupstream = \"app\"\n{host}\n[[upstream]]\nname = \"app\"\nservers = {servers:?}\n\
         connect_timeout = \"1h\"\nfirst_byte_timeout = \"1h\"\nidle_timeout = \"1h\"\n{upstream}\n"
    );
    Listening { top: LONG, rest: &rest, ..Listening::default() }.start(site)
}

/// Never answers; says what has come.
fn silent() -> Backend {
    Backend::start(|mut connection| while connection.request().is_some() {})
}

fn ended(gateway: &Gateway) -> f64 {
    gateway.metric("sealane_total_timeouts_total").unwrap_or_default()
}

fn failures(gateway: &Gateway) -> f64 {
    gateway.metric("sealane_server_failures_total").unwrap_or_default()
}

/// A POST whose body does not come to its end, over every version: the statuses.
fn post_without_end(gateway: &Gateway, plain: SocketAddr) -> [u16; 3] {
    let mut wire = Wire::new(client::tcp(plain));
    wire.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 10\r\n\r\nsome")).expect("it is read");
    let first = wire.response("POST").expect("it is answered").status();
    let second = h2::run(async {
        let mut client = h2::connect(plain).await.ready().await.expect("the connection is open");
        let (response, mut send) = client.send_request(h2::request(&Method::POST, "/"), false).expect("it can be sent");
        let _ = send.send_data(Bytes::from_static(b"some"), false);
        h2::answer(response).await.status
    });
    let mut third = h3::Client::connect(gateway.address, &h3::over_quic(gateway.config(), false));
    let mut bytes = h3::headers("POST", "/", &[], BodyLength::Chunked);
    bytes.extend(h3::data(b"some"));
    let id = third.open(&bytes, false);
    assert!(third.until(|c| c.so_far(id).is_ok_and(|r| r.status != 0)));
    [first, second, third.so_far(id).expect("a head").status]
}

#[test]
fn a_request_ends_after_its_time_whatever_it_waits_for() {
    let site = Site::new();
    let (one, two) = (silent(), silent());
    let asked = || one.requests().len() + two.requests().len();
    // For the head of the response: the other server is not tried, although it could be.
    let (waiting, plain) = gateway(&site, &[&one, &two], "total_timeout = \"1s\"", "tries = 3\neject_after = 0");
    let mut every = Everywhere::new(&waiting, plain);
    assert_eq!(every.get("/").map(|(status, _)| status), [504; 3]);
    assert_eq!((asked(), waiting.metric("sealane_upstream_retries_total")), (3, Some(0.0)));
    assert_eq!((ended(&waiting), failures(&waiting)), (3.0, 3.0));
    // For the body of the request: no server has failed.
    assert_eq!(post_without_end(&waiting, plain), [408; 3]);
    assert_eq!((ended(&waiting), failures(&waiting)), (6.0, 3.0));
    assert!(eventually(|| site.logged("\"end\":\"total_timeout\"") == 6), "{}", site.log());
    // For room at a server: of two requests, one is at the server, and one in the queue.
    let (full, plain) = gateway(
        &site,
        &[&one],
        "total_timeout = \"1s\"\n[[host.route]]\npath = \"/long\"\nupstream = \"app\"\ntotal_timeout = \"0s\"",
        "max_connections = 1\nqueue_timeout = \"1h\"\neject_after = 0",
    );
    let mut first = Wire::new(client::tcp(plain));
    first.send(format!("GET /long HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    assert!(eventually(|| full.metric("sealane_server_in_use") == Some(1.0)), "{}", full.metrics());
    assert_eq!(Everywhere::new(&full, plain).get("/").map(|(status, _)| status), [504; 3]);
    assert_eq!((full.metric("sealane_upstream_queued_total"), ended(&full), failures(&full)), (Some(3.0), 3.0, 0.0));
    // For a client that takes nothing of the response.
    let large = Backend::answering(|_| ok(&[b'x'; 100_000]));
    let (stalled, plain) = gateway(&site, &[&large], "total_timeout = \"1s\"", "");
    let mut frames = Frames::plain(plain, &[(4, 0)]);
    frames.request(1, "GET", "/", &[], true).expect("the gateway reads");
    assert!(frames.find(|f| f.kind == kind::RST_STREAM && f.stream == 1).is_some(), "it is reset");
    assert_eq!((ended(&stalled), failures(&stalled)), (1.0, 0.0));
}

/// The time does not begin only once the request may pass.
#[test]
fn the_time_counts_from_the_head_also_during_checks() {
    let site = Site::new();
    let (app, auth) = (Backend::saying("hello"), silent());
    let host = "total_timeout = \"1s\"\nforward_auth = { upstream = \"auth\", path = \"/\", timeout = \"1h\" }";
    let auth_upstream = format!(
        "[[upstream]]\nname = \"auth\"\nservers = {:?}\nconnect_timeout = \"1h\"\nfirst_byte_timeout = \"1h\"\nidle_timeout = \"1h\"\n",
        auth.url()
    );
    let (gateway, plain) = gateway(&site, &[&app], host, &auth_upstream);
    let mut every = Everywhere::new(&gateway, plain);
    assert_eq!(every.get("/").map(|(status, _)| status), [504; 3]);
    assert_eq!((ended(&gateway), auth.requests().len(), app.requests().len()), (3.0, 3, 0));
    assert_eq!(gateway.metric_with("sealane_forward_auth_total", "result=\"failed\""), Some(3.0));
    assert_eq!(gateway.metric_with("sealane_server_failures_total", "upstream=\"auth\""), Some(3.0), "it hangs");
    assert!(eventually(|| site.logged("\"end\":\"total_timeout\"") == 3), "{}", site.log());
}

/// A server is found to hang also where no request waits for `first_byte_timeout`.
#[test]
fn a_server_that_hangs_is_ejected_although_the_route_has_less_time() {
    let site = Site::new();
    let (hung, well) = (silent(), Backend::saying("hello"));
    let (gateway, plain) =
        gateway(&site, &[&hung, &well], "total_timeout = \"2s\"", "eject_after = 2\neject_for = \"1h\"");
    let mut every = Everywhere::new(&gateway, plain);
    let is_up = || gateway.metric_with("sealane_server_up", &format!("server=\"{}\"", hung.address)) == Some(1.0);
    assert!(is_up());
    let found = eventually(|| {
        let _ = every.get("/");
        !is_up()
    });
    assert!(found, "{}", gateway.metrics());
    assert_eq!(gateway.metric("sealane_server_ejections_total"), Some(1.0));
    assert!(gateway.metric("sealane_upstream_timeouts_total") >= Some(2.0));
    // The lane hears of it at its next look.
    assert!(eventually(|| (0..3).all(|_| every.get("/").iter().all(|(status, _)| *status == 200))));
}

/// A client that keeps its request back until the time is nearly over makes no server look as if it hung.
#[test]
fn a_slow_client_cannot_have_a_server_ejected() {
    let site = Site::new();
    let (app, other) = (silent(), silent());
    let (gateway, plain) =
        gateway(&site, &[&app, &other], "total_timeout = \"2s\"", "eject_after = 1\neject_for = \"1h\"");
    for _ in 0..2 {
        let mut wire = Wire::new(client::tcp(plain));
        wire.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 8\r\n\r\nsome")).expect("it is read");
        std::thread::sleep(Duration::from_millis(600));
        // On a slow machine its time may be over.
        let _ = wire.send("more");
        assert!(matches!(wire.response("POST").expect("it is answered").status(), 408 | 504));
    }
    assert_eq!((ended(&gateway), failures(&gateway)), (2.0, 0.0));
    assert_eq!(gateway.metric("sealane_server_ejections_total"), Some(0.0));
}

/// Over every version, a response that begins does not come to its end, in a way that shows this.
#[track_caller]
fn is_cut_off(gateway: &Gateway, plain: SocketAddr, target: &str) {
    let mut wire = Wire::new(client::tcp(plain));
    wire.send(format!("GET {target} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    let broken = wire.response("GET").expect_err("it is not whole");
    assert_eq!(broken.partial.status(), 200);
    h2::run(async {
        let mut client = h2::connect(plain).await.ready().await.expect("the connection is open");
        let (response, _) = client.send_request(h2::request(&Method::GET, target), true).expect("it can be sent");
        let answer = h2::answer(response).await;
        assert_eq!(answer.status, 200);
        assert!(matches!(answer.end, h2::End::Reset(_)), "{:?}", answer.end);
    });
    let mut third = h3::Client::connect(gateway.address, &h3::over_quic(gateway.config(), false));
    let id = third.open(&h3::headers("GET", target, &[], BodyLength::None), true);
    assert!(third.until(|c| c.so_far(id).is_ok_and(|r| r.status == 200)));
    assert!(matches!(third.response(id), Err(h3::Failure::Reset(_))), "{target}");
}

/// Answers with a body that never ends: a byte in each piece of time.
fn trickle(pause: Duration) -> Backend {
    Backend::start(move |mut connection| {
        while connection.request().is_some() {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
            // Until the gateway closes the connection.
            while connection.wire.send("x").is_ok() {
                std::thread::sleep(pause);
            }
        }
    })
}

/// Of a response that trickles, so many bytes of the body come.
#[track_caller]
fn comes(plain: SocketAddr, target: &str, bytes: usize) {
    let mut wire = Wire::new(client::tcp(plain));
    wire.send(format!("GET {target} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    while !wire.line().expect("the head comes").is_empty() {}
    wire.exactly(bytes, &mut Vec::new()).expect("the body comes");
}

/// A response that trickles is cut off, and its server, which has answered, has not failed.
#[test]
fn a_response_that_is_under_way_is_cut_off() {
    let site = Site::new();
    let app = trickle(Duration::from_millis(20));
    let host = "total_timeout = \"2s\"\n[[host.route]]\npath = \"/none\"\nupstream = \"app\"\ntotal_timeout = \"0s\"\n";
    let (gateway, plain) = gateway(&site, &[&app], host, "");
    is_cut_off(&gateway, plain, "/");
    assert_eq!((ended(&gateway), failures(&gateway)), (3.0, 0.0));
    // Where the route says so, it goes on: these bytes take more than two seconds.
    comes(plain, "/none", 150);
    assert_eq!(ended(&gateway), 3.0);
}

/// However busy an upgraded connection is.
#[test]
fn an_upgraded_connection_ends_after_its_time() {
    const PAUSE: Duration = Duration::from_millis(5);
    let site = Site::new();
    let app = Backend::websocket_echo();
    let (gateway, plain) = gateway(&site, &[&app], "total_timeout = \"2s\"", "");
    let started = Instant::now();
    let goes_on = |rounds: &mut u32| {
        *rounds += 1;
        assert!(started.elapsed() < sealane_interop::WAIT_LIMIT, "it never ends");
    };
    let mut rounds = [0; 3];
    let mut wire = Wire::new(client::tcp(plain));
    wire.send(format!(
        "GET /ws HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ))
    .expect("the gateway reads");
    assert_eq!(wire.response("GET").expect("an answer").status(), 101);
    let mut echoed = Vec::new();
    while wire.send(b"ping").is_ok() && wire.exactly(4, &mut echoed).is_ok() {
        goes_on(&mut rounds[0]);
        std::thread::sleep(PAUSE);
    }
    h2::run(async {
        let mut client = h2::connect(plain).await.ready().await.expect("the connection is open");
        while !client.is_extended_connect_protocol_enabled() {
            tokio::task::yield_now().await;
        }
        let mut ask = Request::connect(format!("http://{HOST}/ws")).body(()).expect("it is well-formed");
        ask.headers_mut().insert("sec-websocket-version", "13".parse().expect("a value"));
        ask.extensions_mut().insert(::h2::ext::Protocol::from_static("websocket"));
        let (response, mut send) = client.send_request(ask, false).expect("it can be sent");
        let response = response.await.expect("it is answered");
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        while send.send_data(Bytes::from_static(b"ping"), false).is_ok() {
            match body.data().await {
                Some(Ok(piece)) => drop(body.flow_control().release_capacity(piece.len())),
                Some(Err(_)) | None => break,
            }
            goes_on(&mut rounds[1]);
            tokio::time::sleep(PAUSE).await;
        }
    });
    let mut third = h3::Client::connect(gateway.address, &h3::over_quic(gateway.config(), false));
    let mut head = h3::head("GET", "/ws", &[("sec-websocket-version", "13")]);
    head.fields.push(b"upgrade", b"websocket").expect("a legal field");
    let mut bytes = Vec::new();
    sealane_http::h3::encode_request(&mut bytes, &head, BodyLength::None, Scheme::Https, true);
    let id = third.open(&bytes, false);
    assert!(third.until(|c| c.so_far(id).is_ok_and(|r| r.status == 200)));
    while third.ended(id).is_none() && third.lost.is_none() {
        let before = third.received(id).len();
        // What was stopped takes nothing.
        let _ = third.quic.send_stream(id).write(&h3::data(b"ping"));
        third.until(|c| c.received(id).len() > before || c.ended(id).is_some() || c.lost.is_some());
        goes_on(&mut rounds[2]);
        std::thread::sleep(PAUSE);
    }
    assert!(rounds.iter().all(|rounds| *rounds > 1), "{rounds:?}");
    assert!(eventually(|| ended(&gateway) == 3.0), "{}", gateway.metrics());
    assert!(eventually(|| site.logged("\"end\":\"total_timeout\"") == 3), "{}", site.log());
}

/// A connection may be open for longer than its requests: each has its own time, also behind others.
#[test]
fn each_request_has_its_own_time() {
    let site = Site::new();
    let app = Backend::start(|mut connection| {
        while let Some(request) = connection.request() {
            if request.target() != "/silent" {
                connection.send(ok(b"hello"));
            }
        }
    });
    let (gateway, plain) = gateway(&site, &[&app], "total_timeout = \"3s\"", "");
    let mut first = Wire::new(client::tcp(plain));
    let mut third = h3::Client::connect(gateway.address, &h3::over_quic(gateway.config(), false));
    let mut ask = |target: &str| {
        first.send(format!("GET {target} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
        [first.response("GET").expect("the connection is kept").status(), third.get(target).status]
    };
    h2::run(async {
        let second = h2::connect(plain).await;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            let answer = h2::fetch(&second, h2::request(&Method::GET, "/"), None).await;
            assert_eq!(answer.status, 200);
            assert_eq!(ask("/"), [200; 2]);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(ended(&gateway), 0.0);
        // It is watched on such a connection, too.
        assert_eq!(h2::fetch(&second, h2::request(&Method::GET, "/silent"), None).await.status, 504);
        assert_eq!(ask("/silent"), [504; 2]);
    });
    assert_eq!(ended(&gateway), 3.0);
}

/// The rate of a route stands in the place of those of the client and of the upstream, whether it is higher or lower.
#[test]
fn a_route_has_its_own_lowest_rate() {
    let site = Site::new();
    let start = |app: &Backend, everywhere: &str, route: &str| {
        let top = format!("[limits]\nidle_timeout = \"3s\"\nmin_body_rate = {everywhere}\n");
        let rest = format!(
            "[[host]]\nnames = [\"*\"]\nupstream = \"app\"\n[[host.route]]\npath = \"/own\"\nupstream = \"app\"\n\
             min_body_rate = {route}\n[[upstream]]\nname = \"app\"\nservers = {:?}\nidle_timeout = \"3s\"\nmin_body_rate = {everywhere}\n",
            app.url()
        );
        Listening { top: &top, rest: &rest, ..Listening::default() }.start(&site)
    };
    let slow = |gateway: &Gateway, party: &str| {
        gateway.metric_with("sealane_slow_bodies_total", &format!("party=\"{party}\"")).unwrap_or_default()
    };
    // Some 50 bytes per second: too few where 1 KiB is asked for. The bytes that come take longer than two measurements.
    let app = trickle(Duration::from_millis(20));
    let (strict, plain) = start(&app, "0", "\"1KiB\"");
    is_cut_off(&strict, plain, "/own");
    assert_eq!((slow(&strict, "upstream"), slow(&strict, "client")), (3.0, 0.0));
    comes(plain, "/", 350);
    assert_eq!(slow(&strict, "upstream"), 3.0);
    let (free, plain) = start(&app, "\"1KiB\"", "0");
    is_cut_off(&free, plain, "/");
    comes(plain, "/own", 350);
    assert_eq!((slow(&free, "upstream"), slow(&free, "client")), (3.0, 0.0));
    // The same of requests.
    let reader = Backend::answering(|_| ok(b"read"));
    let (strict, plain) = start(&reader, "0", "\"1KiB\"");
    let upload = |target: &str, pieces: usize| {
        let mut wire = Wire::new(client::tcp(plain));
        let head = format!("POST {target} HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n");
        wire.send(head).expect("the gateway reads");
        // One that was refused is not read to its end.
        for _ in 0..pieces {
            if wire.send("1\r\nx\r\n").is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = wire.send("0\r\n\r\n");
        wire.response("POST").map(|response| response.status()).unwrap_or_default()
    };
    assert_ne!(upload("/own", 500), 200);
    assert_eq!((slow(&strict, "client"), slow(&strict, "upstream")), (1.0, 0.0));
    assert_eq!(upload("/", 350), 200);
    assert_eq!(slow(&strict, "client"), 1.0);
}

/// A POST with this body over every version, with its `Content-Length` or without: the statuses.
fn post(gateway: &Gateway, plain: SocketAddr, path: &str, body: &[u8], announced: bool) -> [u16; 3] {
    let length = body.len().to_string();
    let mut wire = Wire::new(client::tcp(plain));
    let mut bytes = format!("POST {path} HTTP/1.1\r\nHost: {HOST}\r\n").into_bytes();
    match announced {
        true => bytes.extend(format!("Content-Length: {length}\r\n\r\n").bytes().chain(body.iter().copied())),
        false => {
            bytes.extend(format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", body.len()).bytes());
            bytes.extend(body.iter().copied().chain(*b"\r\n0\r\n\r\n"));
        }
    }
    // One that is refused need not be read to its end.
    let _ = wire.send(bytes);
    let first = wire.response("POST").expect("it is answered").status();
    let second = h2::run(async {
        let mut client = h2::connect(plain).await.ready().await.expect("the connection is open");
        let mut request = h2::request(&Method::POST, path);
        if announced {
            request.headers_mut().insert("content-length", length.parse().expect("digits"));
        }
        let (response, mut send) = client.send_request(request, false).expect("it can be sent");
        let _ = send.send_data(Bytes::copy_from_slice(body), true);
        h2::answer(response).await.status
    });
    let mut third = h3::Client::connect(gateway.address, &h3::over_quic(gateway.config(), false));
    let known = if announced { BodyLength::Known(body.len() as u64) } else { BodyLength::Chunked };
    let mut bytes = h3::headers("POST", path, &[], known);
    bytes.extend(h3::data(body));
    let id = third.open(&bytes, true);
    assert!(third.until(|c| c.so_far(id).is_ok_and(|r| r.status != 0)));
    [first, second, third.so_far(id).expect("a head").status]
}

/// The limit of a route stands in the place of that of its host, and this one in the place of that of all, whether it is higher or lower.
#[test]
fn a_route_has_its_own_limit_of_bodies() {
    let site = Site::new();
    let app = Backend::answering(|_| ok(b"read"));
    let page = site.file("page.html", "too much");
    let rest = format!(
        "[[host]]\nnames = [{HOST:?}]\nupstream = \"app\"\nmax_body_size = 2000\nresponse_headers = {{ set = {{ X-Host = \"1\" }} }}\n\
         [[host.error_page]]\nstatuses = [413]\nfile = {page:?}\n\
         [[host.route]]\npath = \"/less\"\nupstream = \"app\"\nmax_body_size = 10\n\
         [[host.route]]\npath = \"/more\"\nupstream = \"app\"\nmax_body_size = \"8KiB\"\n\
         [[host.route]]\npath = \"/any\"\nupstream = \"app\"\nmax_body_size = 0\n\
         [[host.route]]\npath = \"/other\"\nupstream = \"app\"\n\
         [[host.route]]\npath = \"/closed\"\nupstream = \"app\"\nmax_body_size = 10\ndeny = [\"0.0.0.0/0\"]\n\
         [[host.route]]\npath = \"/answer\"\nrespond = {{ status = 200, body = \"own\" }}\nmax_body_size = 10\n\
         [[host]]\nnames = [\"*\"]\nupstream = \"app\"\n\
         [[upstream]]\nname = \"app\"\nservers = {:?}\n",
        app.url()
    );
    let top = "[limits]\nmax_body_size = 100\n";
    let (gateway, plain) = Listening { top, rest: &rest, ..Listening::default() }.start(&site);
    let mut passed = 0;
    for (path, limit) in [("/less/x", 10), ("/more", 8192), ("/other", 2000), ("/", 2000), ("/any", usize::MAX)] {
        for announced in [true, false] {
            let most = vec![b'x'; limit.min(100_000)];
            // A window of HTTP/2 has no room for more.
            let most = &most[..most.len().min(60_000)];
            assert_eq!(post(&gateway, plain, path, most, announced), [200; 3], "{path} {announced}");
            passed += 3;
            if limit < 60_000 {
                let more = vec![b'x'; limit + 1];
                assert_eq!(post(&gateway, plain, path, &more, announced), [413; 3], "{path} {announced}");
            }
        }
    }
    // No request with a longer Content-Length has got to the server, and none without one has got there whole.
    let whole = app.requests().iter().filter(|r| !r.body.is_empty()).count();
    assert_eq!(whole, passed);
    // As in NGINX, the limit comes before other checks, and also counts where the gateway answers itself.
    assert_eq!(post(&gateway, plain, "/closed", &[b'x'; 11], true), [413; 3]);
    assert_eq!(post(&gateway, plain, "/closed", &[b'x'; 10], true), [403; 3]);
    assert_eq!(post(&gateway, plain, "/answer", &[b'x'; 11], true), [413; 3]);
    assert_eq!(post(&gateway, plain, "/answer", &[b'x'; 10], true), [200; 3]);
    // The refusal has the headers and the page of the route.
    let large = format!("POST /less HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 11\r\n\r\n");
    let mut wire = Wire::new(client::tcp(plain));
    wire.send(large).expect("the gateway reads");
    let answer = wire.response("POST").expect("it is answered");
    assert_eq!((answer.status(), answer.text().as_str(), answer.header("x-host")), (413, "too much", Some("1")));
    // Another host has the limit of all.
    let send = |length: usize| {
        let mut wire = Wire::new(client::tcp(plain));
        let body = "x".repeat(length);
        wire.send(format!("POST / HTTP/1.1\r\nHost: b.test\r\nContent-Length: {length}\r\n\r\n{body}"))
            .expect("it reads");
        wire.response("POST").expect("it is answered").status()
    };
    assert_eq!((send(100), send(101)), (200, 413));
    let refused = 4 * 2 * 3 + 2 * 3 + 2;
    assert_eq!(gateway.metric("sealane_bodies_too_large_total"), Some(f64::from(refused)));
}
