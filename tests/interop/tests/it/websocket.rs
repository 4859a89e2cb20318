//! WebSocket through the gateway: Python's `websockets` at both ends.

use sealane_interop::backend::Backend;
use sealane_interop::gateway::before;
use sealane_interop::peers::{Said, python};
use sealane_interop::process::{Server, run};
use sealane_interop::site::{HOST, Site};
use sealane_interop::{ports, skip};
use std::net::TcpStream;
use std::process::Command;

const SERVER: &str = r#"
import asyncio, sys, websockets

async def echo(socket):
    async for message in socket:
        await socket.send(message)
        if message == "goodbye":
            await socket.close(4001, "as you wish")

async def main():
    async with websockets.serve(echo, "127.0.0.1", int(sys.argv[1]), max_size=None, subprotocols=["test"]):
        await asyncio.Future()

asyncio.run(main())
"#;

const CLIENT: &str = r#"
import asyncio, os, ssl, sys, websockets

async def main():
    trust = ssl.create_default_context(cafile=sys.argv[2])
    async with websockets.connect(sys.argv[1], ssl=trust, max_size=None, subprotocols=["test"]) as socket:
        assert socket.subprotocol == "test", socket.subprotocol
        for message in ["hello", "", "grüße", os.urandom(1), os.urandom(65536), os.urandom(3_000_000)]:
            await socket.send(message)
            assert await socket.recv() == message
        await (await socket.ping())
        # Both ways at once.
        many = [os.urandom(50_000) for _ in range(40)]
        async def send():
            for message in many:
                await socket.send(message)
        sending = asyncio.create_task(send())
        for message in many:
            assert await socket.recv() == message
        await sending
        await socket.send("goodbye")
        assert await socket.recv() == "goodbye"
        await socket.wait_closed()
        assert socket.close_code == 4001, socket.close_code
    print("all is well")

asyncio.run(main())
"#;

#[test]
fn echo() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => skip!("no Python with `websockets`: {reason}"),
    };
    let site = Site::new();
    let upstream = ports::free();
    let mut command = Command::new(&python);
    command.arg(site.file("server.py", SERVER)).arg(upstream.port().to_string());
    let mut server = Server::start(command, site.path());
    server.wait_until(|| TcpStream::connect(upstream).is_ok());
    let gateway = before(&site, [format!("http://{upstream}")]).start();
    let url = format!("wss://{HOST}:{}/echo", gateway.address.port());
    for round in 0..3 {
        let mut command = Command::new(&python);
        command.arg(site.file("client.py", CLIENT)).arg(&url).arg(&site.ca);
        let said = Said::from(run(&mut command, b""));
        assert_eq!((said.code, said.text().trim()), (Some(0), "all is well"), "round {round}: {}", said.err);
    }
}

/// An upgrade that the backend does not want is an ordinary exchange.
#[test]
fn an_upgrade_refused() {
    let site = Site::new();
    let backend = Backend::saying("no");
    let gateway = before(&site, [backend.url()]).start();
    let mut wire = gateway.connect();
    for _ in 0..2 {
        let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        wire.send(request).expect("the gateway reads");
        let response = wire.response("GET").unwrap_or_else(|broken| panic!("{broken:?}"));
        assert_eq!((response.status(), response.text().as_str()), (200, "no"));
    }
    assert_eq!(backend.last().header("upgrade"), Some("websocket"));
}

/// Bytes that come with the switch, from either side, are the new protocol's already.
#[test]
fn bytes_sent_with_the_switch_are_not_lost() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        let Ok(Some(_)) = connection.wire.request_head() else { return };
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\nfrom the server|";
        connection.send(switch);
        let mut heard = Vec::new();
        if connection.wire.exactly(16, &mut heard).is_ok() {
            connection.send(&heard);
        }
    });
    let gateway = before(&site, [backend.url()]).start();
    let mut wire = gateway.connect();
    let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n");
    wire.send(format!("{request}from the client|")).expect("the gateway reads");
    assert_eq!(wire.response("GET").expect("it switches").status(), 101);
    let (rest, _) = wire.rest();
    assert_eq!(String::from_utf8_lossy(&rest), "from the server|from the client|");
}
