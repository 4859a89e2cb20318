//! HTTP/3 with peers that we did not write: aioquic and quic-go, as clients and as servers behind the gateway.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::gateway::before;
use sealane_interop::peers::{Said, python, quic_go};
use sealane_interop::process::{Server, run};
use sealane_interop::site::{HOST, Site};
use sealane_interop::{eventually, noise, ports, sha256, skip};
use std::process::Command;

/// One connection: requests one after the other and at once, an upload, a change of address, a key update.
const CLIENT: &str = r#"
import asyncio, hashlib, ssl, sys
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration

class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.h3 = H3Connection(self._quic)
        self.open = {}

    def quic_event_received(self, event):
        for e in self.h3.handle_event(event):
            headers, body, done = self.open[e.stream_id]
            if isinstance(e, HeadersReceived):
                headers.extend(e.headers)
            elif isinstance(e, DataReceived):
                body.extend(e.data)
            if e.stream_ended:
                done.set_result((dict(headers), bytes(body)))

    async def request(self, method, path, body=b""):
        stream = self._quic.get_next_available_stream_id()
        done = asyncio.get_running_loop().create_future()
        self.open[stream] = ([], bytearray(), done)
        fields = [(b":method", method), (b":scheme", b"https"), (b":authority", b"localhost"), (b":path", path),
                  (b"user-agent", b"aioquic"), (b"cookie", b"a=1"), (b"cookie", b"b=2")]
        if body:
            fields.append((b"content-length", str(len(body)).encode()))
        self.h3.send_headers(stream, fields, end_stream=not body)
        if body:
            self.h3.send_data(stream, body, end_stream=True)
        self.transmit()
        return await asyncio.wait_for(done, 30)

async def main():
    config = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name="localhost")
    config.load_verify_locations(sys.argv[2])
    async with connect("127.0.0.1", int(sys.argv[1]), configuration=config, create_protocol=Client) as client:
        for i in range(5):
            headers, body = await client.request(b"GET", b"/%d" % i)
            assert headers[b":status"] == b"200" and body == b"0", (headers, body)
        many = await asyncio.gather(*[client.request(b"GET", b"/many") for _ in range(50)])
        assert all(h[b":status"] == b"200" for h, _ in many)
        upload = bytes(range(256)) * 4000
        headers, body = await client.request(b"POST", b"/upload", upload)
        assert body.decode() == str(len(upload)), body
        client._quic.request_key_update()
        headers, body = await client.request(b"GET", b"/after-key-update")
        assert headers[b":status"] == b"200"
        client.change_connection_id()
        headers, body = await client.request(b"GET", b"/large")
        print(hashlib.sha256(body).hexdigest())

asyncio.run(main())
"#;

/// Echoes what it is asked: method, path and the length of the body; `/large` is a megabyte.
const SERVER: &str = r#"
import asyncio, sys
from aioquic.asyncio import serve
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration

class Server(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.h3 = H3Connection(self._quic)
        self.open = {}

    def quic_event_received(self, event):
        for e in self.h3.handle_event(event):
            request = self.open.setdefault(e.stream_id, [{}, 0])
            if isinstance(e, HeadersReceived):
                request[0].update(dict(e.headers))
            elif isinstance(e, DataReceived):
                request[1] += len(e.data)
            if e.stream_ended:
                fields, length = self.open.pop(e.stream_id)
                text = b"%s %s %d" % (fields[b":method"], fields[b":path"], length)
                body = b"x" * 1000000 if fields[b":path"] == b"/large" else text
                self.h3.send_headers(e.stream_id, [(b":status", b"200"), (b"x-over", b"h3"),
                    (b"x-via", fields.get(b"via", b"-"))])
                self.h3.send_data(e.stream_id, body, end_stream=False)
                self.h3.send_headers(e.stream_id, [(b"x-trailer", b"1")], end_stream=True)
        self.transmit()

async def main():
    config = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
    config.load_cert_chain(sys.argv[2], sys.argv[3])
    await serve("127.0.0.1", int(sys.argv[1]), configuration=config, create_protocol=Server)
    print("ready", flush=True)
    await asyncio.Future()

asyncio.run(main())
"#;

#[test]
fn aioquic_as_client() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    let site = Site::new();
    let large = noise(2_000_000, 5);
    let sum = sha256(&large);
    let backend = Backend::answering(move |request| match request.target() {
        "/large" => ok(&large),
        _ => ok(request.body.len().to_string().as_bytes()),
    });
    let gateway = before(&site, [backend.url()]).listener("http3 = true").lanes(2).start();
    let script = site.file("client.py", CLIENT);
    let mut command = Command::new(python);
    command.arg(script).arg(gateway.address.port().to_string()).arg(gateway.ca());
    let said = Said::from(run(&mut command, b""));
    assert!(said.code == Some(0) && said.all().contains(&sum), "{}", said.all());
    let first = &backend.requests()[0];
    assert_eq!(first.header("Cookie"), Some("a=1; b=2"));
    assert_eq!(gateway.metric("sealane_http3_errors_total"), Some(0.0));
}

/// A client that looks at another path with a probing packet (RFC 9000 §9.1) there, and then with one that moves.
const PROBE: &str = r#"
import asyncio, os, socket, sys
from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicFrameType, QuicPacketType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.tls import Epoch

seen, path = [], ["old"]

def challenge(self, context, frame_type, buf, original=QuicConnection._handle_path_challenge_frame):
    seen.append(("challenge", path[0]))
    original(self, context, frame_type, buf)

def response(self, context, frame_type, buf):
    seen.append(("response", path[0], buf.pull_bytes(8)))

QuicConnection._handle_path_challenge_frame = challenge
QuicConnection._handle_path_response_frame = response

async def main():
    config = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name="localhost")
    config.load_verify_locations(sys.argv[2])
    async with connect("127.0.0.1", int(sys.argv[1]), configuration=config) as client:
        quic, loop = client._quic, asyncio.get_running_loop()
        await client.ping()
        while not quic._peer_cid_available:
            await asyncio.sleep(0.1)
            await client.ping()
        for probing in (True, False):
            there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            there.bind(("127.0.0.1", 0))
            there.setblocking(False)
            token = os.urandom(8)
            builder = QuicPacketBuilder(
                host_cid=quic.host_cid, is_client=True, max_datagram_size=1200, packet_number=quic._packet_number,
                peer_cid=quic._peer_cid.cid, peer_token=b"", quic_logger=None, spin_bit=False, version=quic._version)
            builder.max_flight_bytes = 1200
            builder.start_packet(QuicPacketType.ONE_RTT, quic._cryptos[Epoch.ONE_RTT])
            builder.start_frame(QuicFrameType.PATH_CHALLENGE, capacity=9).push_bytes(token)
            if not probing:
                builder.start_frame(QuicFrameType.PING, capacity=1)
            builder.start_frame(QuicFrameType.PADDING, capacity=1).push_bytes(bytes(1100))
            datagrams, _ = builder.flush()
            quic._packet_number = builder.packet_number
            seen.clear()
            there.sendto(datagrams[0], ("127.0.0.1", int(sys.argv[1])))
            wanted = (lambda: ("response", "new", token) in seen) if probing else \
                (lambda: any(s[0] == "challenge" for s in seen))
            for turn in range(3000):
                await asyncio.sleep(0.01)
                try:
                    datagram, _ = there.recvfrom(2000)
                    path[0] = "new"
                    quic.receive_datagram(datagram, quic._network_paths[0].addr, now=loop.time())
                    path[0] = "old"
                except BlockingIOError:
                    pass
                # Once the answer is there, what does not belong to it has another second to come.
                if wanted():
                    wanted = lambda: False
                    last = turn + 100
                elif "last" in locals() and turn == last:
                    break
            print("probing" if probing else "moving", sorted({s[0] for s in seen}), flush=True)
            del last

asyncio.run(main())
"#;

/// Only a packet that is not a probing one moves a connection, and only then is the client asked to prove its address.
#[test]
fn a_path_that_is_only_probed_is_answered_and_not_challenged() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).listener("http3 = true").lanes(2).start();
    let script = site.file("probe.py", PROBE);
    let mut command = Command::new(python);
    command.arg(script).arg(gateway.address.port().to_string()).arg(gateway.ca());
    let said = Said::from(run(&mut command, b""));
    assert!(said.code == Some(0) && said.all().contains("probing ['response']"), "{}", said.all());
    assert!(said.all().contains("moving ['challenge"), "{}", said.all());
}

#[test]
fn aioquic_as_server() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    let site = Site::new();
    let port = ports::free().port();
    let script = site.file("server.py", SERVER);
    let mut command = Command::new(&python);
    command.arg(&script).arg(port.to_string()).arg(&site.ecdsa.cert).arg(&site.ecdsa.key);
    let server = Server::start(command, site.path());
    assert!(eventually(|| server.log().contains("ready")), "{}", server.log());
    let gateway = before(&site, [format!("https://{HOST}:{port}")])
        .listener("http3 = true")
        .upstream("http = \"3\"")
        .upstream("connect_timeout = \"2s\"")
        .upstream_tls(&format!("ca = {:?}", site.ca))
        .start();
    for i in 0..5 {
        let response = gateway.get(&format!("/{i}"));
        assert_eq!((response.status(), response.text()), (200, format!("GET /{i} 0")));
        assert_eq!(response.header("x-over"), Some("h3"));
    }
    let large = gateway.get("/large");
    assert_eq!((large.body.len(), large.header("x-over")), (1_000_000, Some("h3")));
    assert_eq!(gateway.metric("sealane_http3_upstream_connections_total"), Some(1.0));

    // And HTTP/3 on both sides.
    let config = sealane_interop::h3::over_quic(gateway.config(), false);
    let mut client = sealane_interop::h3::Client::connect(gateway.address, &config);
    let response = client.get("/both");
    assert_eq!((response.status, &response.body[..]), (200, &b"GET /both 0"[..]));
    assert_eq!(response.trailers, [("x-trailer".to_owned(), "1".to_owned())]);
}

#[test]
fn quic_go_as_client() {
    let program = match quic_go() {
        Ok(program) => program,
        Err(reason) => skip!("no quic-go: {reason}"),
    };
    let site = Site::new();
    let large = noise(2_000_000, 6);
    let sum = sha256(&large);
    let backend = Backend::answering(move |request| match request.target() {
        "/large" => ok(&large),
        // It came without a length, and goes back so, with the trailers that it had.
        _ if request.header("Transfer-Encoding").is_some() => {
            let text = request.body.len().to_string();
            let sum = request.trailers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-sum"));
            let sum = sum.map_or("none", |(_, value)| value);
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n";
            format!("{head}{:x}\r\n{text}\r\n0\r\nX-Sum: {sum}\r\n\r\n", text.len()).into_bytes()
        }
        _ => ok(request.body.len().to_string().as_bytes()),
    });
    let setup = before(&site, [backend.url()]).listener("http3 = true").lanes(2);
    let gateway = setup.tls("early_data = \"16KiB\"").start();
    let mut command = Command::new(program);
    let base = format!("https://{HOST}:{}", gateway.address.port());
    let said = Said::from(run(command.arg("client").arg(base).arg(gateway.ca()), b""));
    assert!(said.code == Some(0) && said.all().contains(&format!("early true {sum}")), "{}", said.all());
    // Whether the last request came before the handshake was over is the network's to decide, and so is its mark.
    assert_eq!(gateway.metric("sealane_http3_errors_total"), Some(0.0));
    assert_eq!(gateway.metric("sealane_quic_connections_total"), Some(2.0));
    assert_eq!(gateway.metric_with("sealane_handshakes_total", "kind=\"resumed\""), Some(1.0));
}

#[test]
fn quic_go_as_server() {
    let program = match quic_go() {
        Ok(program) => program,
        Err(reason) => skip!("no quic-go: {reason}"),
    };
    let site = Site::new();
    let address = ports::free();
    let mut command = Command::new(program);
    command.arg("server").arg(address.to_string()).arg(&site.ecdsa.cert).arg(&site.ecdsa.key);
    let server = Server::start(command, site.path());
    assert!(eventually(|| server.log().contains("ready")), "{}", server.log());
    let gateway = before(&site, [format!("https://{HOST}:{}", address.port())])
        .listener("http3 = true")
        .upstream("http = \"3\"")
        .upstream_tls(&format!("ca = {:?}", site.ca))
        .start();
    // It says so before it listens.
    assert!(eventually(|| gateway.exchange(sealane_interop::client::get("/up")).is_ok_and(|r| r.status() == 200)));
    for i in 0..5 {
        let response = gateway.get(&format!("/{i}"));
        assert_eq!((response.status(), response.text()), (200, format!("GET /{i} 0")));
        assert_eq!(response.header("x-over"), Some("HTTP/3.0"));
    }
    assert_eq!(gateway.get("/large").body.len(), 1_000_000);
    let mut client =
        sealane_interop::h3::Client::connect(gateway.address, &sealane_interop::h3::over_quic(gateway.config(), false));
    let upload = noise(700_000, 8);
    let head = sealane_interop::h3::headers("POST", "/up", &[], sealane_http::BodyLength::Chunked);
    let response = client.exchange(&head, &upload).expect("a response");
    assert_eq!((response.status, &response.body[..]), (200, &b"POST /up 700000"[..]));
    assert_eq!(response.trailers, [("x-trailer".to_owned(), "1".to_owned())]);
    assert!(gateway.metric("sealane_http3_upstream_connections_total") >= Some(1.0));
}

#[test]
fn a_server_without_http3_is_asked_over_tcp_and_that_is_remembered() {
    let site = Site::new();
    let backend = Backend::start_tls(sealane_interop::backend::tls(&site.ecdsa), |mut connection| {
        while connection.request().is_some() {
            connection.send(ok(b"over TCP"));
        }
    });
    let gateway = before(&site, [backend.url()])
        .upstream("http = \"3\"")
        .upstream("connect_timeout = \"1s\"")
        .upstream_tls(&format!("ca = {:?}", site.ca))
        .start();
    for _ in 0..5 {
        assert_eq!(gateway.get("/").text(), "over TCP");
    }
    assert_eq!(gateway.metric("sealane_http3_upstream_fallbacks_total"), Some(1.0), "found out once");
    assert_eq!(gateway.metric("sealane_http3_upstream_connections_total"), Some(0.0));
}
