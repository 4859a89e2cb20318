//! Upgraded and relayed connections go on after `drain_timeout`, until `drain_upgraded_timeout`: in the old process of an upgrade,
//! and after SIGTERM.

use crate::operating::{Operated, Other, order};
use crate::service_manager::Manager;
use bytes::Bytes;
use http::{Method, Request};
use sealane_http::{BodyLength, Scheme};
use sealane_interop::backend::Backend;
use sealane_interop::h2::{self, End};
use sealane_interop::h3::{self, Client, Failure, over_quic};
use sealane_interop::h3_server::NO_ERROR;
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{binary, client, eventually, ports, websocket_accept};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// Echoes over WebSocket; every other response begins, and does not end.
fn backend() -> Backend {
    Backend::start(|mut connection| {
        let Ok(Some(request)) = connection.wire.request_head() else { return };
        let Some(key) = request.header("sec-websocket-key") else {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome");
            let _ = connection.wire.rest();
            return;
        };
        let accept = websocket_accept(key);
        connection.send(format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        ));
        let mut buffer = vec![0; 1000];
        while let Ok(n @ 1..) = connection.wire.stream.read(&mut buffer) {
            connection.send(&buffer[..n]);
        }
    })
}

/// A server of relayed connections that repeats what it hears.
pub fn echo() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a loopback port can be had");
    let address = listener.local_addr().expect("a bound socket has an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let (mut from, mut to) = (stream.try_clone().expect("a socket can be cloned"), stream);
                let _ = std::io::copy(&mut from, &mut to);
            });
        }
    });
    address
}

struct World {
    gateway: Operated,
    manager: Manager,
    /// Speaks HTTP/2 by prior knowledge.
    plain: SocketAddr,
    relaying: SocketAddr,
}

fn world(site: &Site, backend: &Backend, times: &str) -> World {
    let [listen, plain, relaying] = [ports::free(), ports::free(), ports::free()];
    let path = site.path().join("notify");
    let manager = Manager::listen(&path);
    let mut command = Command::new(binary::sealane());
    command.env("NOTIFY_SOCKET", &path);
    let file = |admin: &str| {
        let admin = admin.replace("drain_timeout = \"10m\"", times);
        let text = Operated::simple_file(site, &admin, listen, &backend.url());
        let address = format!("address = \"{listen}\"\n");
        text.replace(&address, &format!("{address}http3 = true\n"))
            + &format!(
                "[[listener]]\naddress = \"{plain}\"\nh2c = true\n\
                 [[listener]]\naddress = \"{relaying}\"\nmode = \"tcp\"\n[[host]]\nnames = [\"relayed.test\"]\n\
                 listeners = [\"{relaying}\"]\npassthrough = \"echo\"\n[[upstream]]\nname = \"echo\"\n\
                 servers = \"tcp://{}\"\n[limits]\nidle_timeout = \"30m\"\nkeepalive_timeout = \"30m\"\n",
                echo()
            )
    };
    let gateway = Operated::start_by(site, command, 1, file, listen);
    World { gateway, manager, plain, relaying }
}

fn websocket(gateway: &Operated) -> Wire<client::Tls> {
    let mut wire = gateway.gateway.connect();
    wire.send(format!(
        "GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ))
    .expect("the gateway reads");
    assert_eq!(wire.response("GET").expect("it switches").status(), 101);
    wire
}

fn echoes<S: Read + Write>(wire: &mut Wire<S>, text: &[u8]) {
    wire.send(text).expect("the gateway reads");
    let mut got = Vec::new();
    wire.exactly(text.len(), &mut got).expect("it comes back");
    assert_eq!(got, text);
}

/// A connection that is relayed by the name in its hello: the server gets the hello, and sends it back.
pub fn relayed(address: SocketAddr, config: &std::sync::Arc<rustls::ClientConfig>) -> Wire<TcpStream> {
    let mut wire = Wire::new(client::tcp(address));
    let hello = client::hello(config, "relayed.test");
    echoes(&mut wire, &hello);
    wire
}

fn h3_websocket(client: &mut Client) -> quinn_proto::StreamId {
    let mut request = h3::head("GET", "/", &[("sec-websocket-version", "13")]);
    request.fields.push(b"upgrade", b"websocket").expect("a legal field");
    let mut bytes = Vec::new();
    sealane_http::h3::encode_request(&mut bytes, &request, BodyLength::None, Scheme::Https, true);
    let id = client.open(&bytes, false);
    assert!(client.until(|c| c.so_far(id).is_ok_and(|r| r.status == 200)), "{:?}", client.lost);
    id
}

/// What a client of HTTP/2 has of a WebSocket: its connection, and both directions.
type Second = (::h2::client::SendRequest<Bytes>, ::h2::SendStream<Bytes>, ::h2::RecvStream);

async fn h2_websocket(plain: SocketAddr) -> Second {
    let mut second = h2::connect(plain).await.ready().await.expect("the connection is open");
    while !second.is_extended_connect_protocol_enabled() {
        tokio::task::yield_now().await;
    }
    let mut ask = Request::connect(format!("http://{HOST}/")).body(()).expect("it is well-formed");
    ask.headers_mut().insert("sec-websocket-version", "13".parse().expect("a value"));
    ask.extensions_mut().insert(::h2::ext::Protocol::from_static("websocket"));
    let (response, send) = second.send_request(ask, false).expect("it can be sent");
    let response = response.await.expect("it is answered");
    assert_eq!(response.status(), 200);
    (second, send, response.into_body())
}

/// A reload ends none of them, not even one that removes their hosts with their servers. What comes later gets the new rules.
#[test]
fn they_go_on_over_a_reload_that_removes_their_hosts() {
    let (site, backend) = (Site::new(), backend());
    let times = "drain_timeout = \"10m\"";
    let World { gateway, manager: _manager, plain, relaying } = world(&site, &backend, times);
    let mut first = websocket(&gateway);
    let mut passed = relayed(relaying, gateway.gateway.config());
    let mut third = Client::connect(gateway.gateway.address, &over_quic(gateway.gateway.config(), false));
    let third_id = h3_websocket(&mut third);
    h2::run(async {
        let (_second, mut send, mut body) = h2_websocket(plain).await;
        let text = gateway.text();
        let new = text
            .replace(&format!("to = [{:?}]\n", backend.url()), "respond = { status = 410 }\n")
            .replace("names = [\"relayed.test\"]", "names = [\"other.test\"]");
        assert!(!new.contains(&backend.url()) && !new.contains("relayed.test"), "{new}");
        gateway.write(&new);
        assert_eq!(order(&gateway.socket, "reload").expect("the file is good"), "reloaded\n");
        assert_eq!(gateway.get("/").status(), 410);
        assert_eq!(gateway.gateway.metric("sealane_upgraded_connections"), Some(4.0));
        for _ in 0..2 {
            echoes(&mut first, b"over HTTP/1.1");
            echoes(&mut passed, b"relayed");
            send.send_data(Bytes::from_static(b"over HTTP/2"), false).expect("the tunnel is open");
            assert_eq!(body.data().await.expect("more comes").expect("it is not reset"), &b"over HTTP/2"[..]);
        }
        third.write(third_id, &h3::data(b"over HTTP/3"));
        assert!(third.until(|c| c.so_far(third_id).is_ok_and(|r| r.body == b"over HTTP/3")), "{:?}", third.lost);
    });
}

/// WebSockets over HTTP/1.1, HTTP/2 and HTTP/3, and a relayed connection, go on in the old process when everything else has ended
/// there, the requests beside them on the same connections included. The process ends with the last of them.
#[test]
fn they_go_on_when_requests_have_had_their_time() {
    let (site, backend) = (Site::new(), backend());
    let World { mut gateway, manager, plain, relaying } =
        world(&site, &backend, "drain_timeout = \"2s\"\ndrain_upgraded_timeout = \"1h\"");
    assert_eq!(gateway.status()["old_processes"], serde_json::json!([]));
    let mut first = websocket(&gateway);
    let mut passed = relayed(relaying, gateway.gateway.config());
    let mut slow = gateway.gateway.connect();
    slow.send(format!("GET /slow HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    assert_eq!(slow.line().expect("the response begins"), "HTTP/1.1 200 OK");
    let mut third = Client::connect(gateway.gateway.address, &over_quic(gateway.gateway.config(), false));
    let (third_slow, third_id) =
        (third.open(&h3::headers("GET", "/slow", &[], BodyLength::None), true), h3_websocket(&mut third));
    assert!(third.until(|c| c.so_far(third_slow).is_ok_and(|r| r.body == b"some")), "{:?}", third.lost);
    h2::run(async {
        let (second, mut send, mut body) = h2_websocket(plain).await;
        let mut second = second.ready().await.expect("the connection is open");
        let (response, _) = second.send_request(h2::request(&Method::GET, "/slow"), true).expect("it can be sent");
        let mut second_slow = response.await.expect("it is answered").into_body();

        let old_pid = gateway.status()["pid"].clone();
        order(&gateway.socket, "upgrade").expect("the same program can be started again");
        let _other = Other::of(&gateway);
        let remaining = |gateway: &Operated| {
            let old = gateway.status()["old_processes"].clone();
            (old[0]["pid"].clone(), old[0]["requests"].as_u64(), old[0]["upgraded"].as_u64())
        };
        assert!(eventually(|| remaining(&gateway) == (old_pid.clone(), Some(3), Some(4))), "{}", gateway.status());
        assert!(eventually(|| gateway.gateway.metric_with("sealane_old_process_connections", "upgraded") == Some(4.0)));
        assert!(eventually(|| manager.hear().ends_with(&format!("; process {old_pid} has 4 upgraded connections\n"))));

        // After `drain_timeout`.
        let (rest, end) = h2::read(&mut second_slow).await;
        assert!(rest == b"some" && matches!(end, End::Reset(_)), "{end:?}");
        assert!(slow.rest().0.ends_with(b"some"));
        assert!(third.until(|c| c.ended(third_slow).is_some()), "{:?}", third.lost);
        assert!(matches!(third.ended(third_slow), Some(Err(_))) && third.lost.is_none(), "{:?}", third.lost);
        assert!(eventually(|| remaining(&gateway) == (old_pid.clone(), Some(0), Some(4))), "{}", gateway.status());
        assert!(gateway.gateway.server.running());

        // What goes on does so both ways.
        echoes(&mut first, b"over HTTP/1.1");
        echoes(&mut passed, b"relayed");
        send.send_data(Bytes::from_static(b"over HTTP/2"), false).expect("the tunnel is open");
        assert_eq!(body.data().await.expect("more comes").expect("it is not reset"), &b"over HTTP/2"[..]);
        third.write(third_id, &h3::data(b"over HTTP/3"));
        assert!(third.until(|c| c.so_far(third_id).is_ok_and(|r| r.body == b"over HTTP/3")), "{:?}", third.lost);

        // One after the other ends, and with the last one the process.
        drop((first, passed));
        let _ = send.send_data(Bytes::new(), true);
        assert_eq!(h2::read(&mut body).await, (Vec::new(), End::Whole));
        assert!(eventually(|| remaining(&gateway).2 == Some(1)), "{}", gateway.status());
        assert!(gateway.gateway.server.running());
        third.finish(third_id);
        // It acknowledges the end, and hears that the connection is over.
        assert!(third.until(|c| c.lost.is_some()));
        assert_eq!(gateway.gateway.server.wait().code(), Some(0), "{}", gateway.gateway.server.log());
        assert!(eventually(|| gateway.status()["old_processes"] == serde_json::json!([])), "{}", gateway.status());
    });
}

#[test]
fn they_end_at_their_own_deadline() {
    let (site, backend) = (Site::new(), backend());
    let World { mut gateway, relaying, .. } =
        world(&site, &backend, "drain_timeout = \"200ms\"\ndrain_upgraded_timeout = \"2s\"");
    let mut first = websocket(&gateway);
    let mut passed = relayed(relaying, gateway.gateway.config());
    let mut third = Client::connect(gateway.gateway.address, &over_quic(gateway.gateway.config(), false));
    h3_websocket(&mut third);
    let began = Instant::now();
    order(&gateway.socket, "upgrade").expect("the same program can be started again");
    let _other = Other::of(&gateway);
    assert_eq!(gateway.gateway.server.wait().code(), Some(0), "{}", gateway.gateway.server.log());
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!((first.rest().0.len(), passed.rest().0.len()), (0, 0));
    third.until(|c| c.lost.is_some());
    assert_eq!(third.failure(), Failure::Closed(u64::from(NO_ERROR)));
}

/// The service manager waits as long, and hears how many there are. A second signal waits for none.
#[test]
fn they_go_on_after_sigterm_until_a_second_one() {
    let (site, backend) = (Site::new(), backend());
    let World { mut gateway, manager, .. } =
        world(&site, &backend, "drain_timeout = \"100ms\"\ndrain_upgraded_timeout = \"1h\"");
    let mut first = websocket(&gateway);
    let mut idle = gateway.gateway.connect();
    idle.send(format!("GET /slow HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    assert_eq!(idle.line().expect("the response begins"), "HTTP/1.1 200 OK");
    assert_eq!(gateway.gateway.metric("sealane_upgraded_connections"), Some(1.0));
    let said = order(&gateway.socket, "drain").expect("it serves");
    assert!(said.contains("upgraded connections for at most 3600 s"), "{said}");
    assert!(eventually(|| manager.hear() == "STOPPING=1\nEXTEND_TIMEOUT_USEC=3615000000\n"));
    let told = |word: String| word.starts_with("STATUS=stopping") && word.ends_with("has 1 upgraded connection\n");
    assert!(eventually(|| told(manager.hear())));
    assert!(idle.rest().0.ends_with(b"some"));
    echoes(&mut first, b"still there");
    assert!(gateway.gateway.server.running());
    assert!(eventually(|| {
        gateway.gateway.server.terminate();
        !gateway.gateway.server.running()
    }));
    assert_eq!(gateway.gateway.server.wait().code(), Some(0), "{}", gateway.gateway.server.log());
    assert!(first.rest().0.is_empty());
}
