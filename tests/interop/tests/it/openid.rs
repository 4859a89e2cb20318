//! `forward_auth` with a real OpenID Connect provider (npm's oidc-provider) behind a small authentication service: a person logs in
//! as a browser does, and then requests, WebSockets and gRPC calls pass with who it is.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::binary;
use sealane_interop::eventually;
use sealane_interop::gateway::{Gateway, launch};
use sealane_interop::http::Message;
use sealane_interop::peers::{openid, python};
use sealane_interop::ports;
use sealane_interop::process::{self, Server};
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Asked, Everywhere, VERSIONS};
use sealane_interop::{skip, websocket_accept};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

/// What a person with a browser does: asks for a page, fills in the forms that come, and prints the session's cookie.
const BROWSER: &str = r#"
import html, http.cookiejar, re, ssl, sys, urllib.parse, urllib.request
base, ca, provider = sys.argv[1:]
jar = http.cookiejar.CookieJar()
trust = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca))
web = urllib.request.build_opener(urllib.request.ProxyHandler({}), trust, urllib.request.HTTPCookieProcessor(jar))
page = web.open(base + "/private?x=1", timeout=60)
for fields in ({"login": "alice", "password": "any"}, {}):
    text = page.read().decode()
    assert page.url.startswith(provider), page.url
    form = re.search(r"<form.*?</form>", text, re.S).group(0)
    action = html.unescape(re.search(r'action="([^"]+)"', form).group(1))
    inputs = re.findall(r"<input[^>]*>", form)
    value = lambda tag, name: (re.search(name + r'="([^"]*)"', tag) or [None, ""])[1]
    hidden = {value(i, "name"): value(i, "value") for i in inputs if value(i, "type") == "hidden"}
    sent = urllib.parse.urlencode({**hidden, **fields}).encode()
    page = web.open(urllib.parse.urljoin(page.url, action), sent, timeout=60)
assert page.url == base + "/private?x=1", page.url
assert page.read() == b"alice alice@example.test"
session = [c for c in jar if c.name == "session"]
assert len(session) == 1 and session[0].secure
print("session=" + session[0].value, end="")
"#;

const WEBSOCKET: &str = r#"
import ssl, sys
from websockets.sync.client import connect
from websockets.exceptions import InvalidStatus
uri, ca, cookie = sys.argv[1:]
trust = ssl.create_default_context(cafile=ca)
with connect(uri, ssl=trust, additional_headers={"Cookie": cookie}, compression=None, proxy=None) as socket:
    socket.send("ping")
    assert socket.recv() == "alice: ping"
try:
    connect(uri, ssl=trust, compression=None, proxy=None)
    raise SystemExit("a stranger has come in")
except InvalidStatus as e:
    assert e.response.status_code == 302, e
"#;

const GRPC_SERVER: &str = r#"
import grpc, sys
from concurrent import futures
def unary(request, context):
    return dict(context.invocation_metadata())["remote-user"].encode() + b": " + request
def both(requests, context):
    for request in requests: yield unary(request, context)
server = grpc.server(futures.ThreadPoolExecutor(8))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Both": grpc.stream_stream_rpc_method_handler(both)}),))
assert server.add_insecure_port(sys.argv[1])
server.start()
server.wait_for_termination()
"#;

const GRPC_CLIENT: &str = r#"
import grpc, sys
address, ca, cookie = sys.argv[1:]
channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(open(ca, "rb").read()))
unary, both = channel.unary_unary("/t.T/Unary"), channel.stream_stream("/t.T/Both")
who = (("cookie", cookie), ("remote-user", "root"))
assert unary(b"hello", metadata=who, timeout=60) == b"alice: hello"
assert list(both(iter([b"%d" % n for n in range(100)]), metadata=who, timeout=60)) == [b"alice: %d" % n for n in range(100)]
try:
    unary(b"hello", metadata=(("remote-user", "root"),), timeout=60)
    raise SystemExit("a stranger has come in")
except grpc.RpcError as e:
    assert "302" in e.details(), e
"#;

fn run_python(python: &Path, site: &Site, script: &str, arguments: &[&str]) -> String {
    let file = site.file(&format!("script-{}.py", ports::free().port()), script);
    let said = process::run(Command::new(python).arg(file).args(arguments), b"");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).expect("UTF-8")
}

fn started(mut command: Command, site: &Site, address: SocketAddr) -> Server {
    // No proxy of the environment's.
    command.env_remove("HTTP_PROXY").env_remove("HTTPS_PROXY").env("NO_PROXY", "*");
    let mut server = Server::start(command, site.path());
    server.wait_until(|| TcpStream::connect(address).is_ok());
    server
}

/// Says who asks, in responses and on WebSockets.
fn application() -> Backend {
    Backend::start(|mut connection| {
        let who = |request: &Message, name: &str| request.header(name).unwrap_or("nobody").to_owned();
        while let Ok(Some(request)) = connection.wire.request_head() {
            connection.note(&request);
            let user = who(&request, "remote-user");
            let Some(key) = request.header("sec-websocket-key") else {
                connection.send(ok(format!("{user} {}", who(&request, "remote-email")).as_bytes()));
                continue;
            };
            connection.send(format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {}\r\n\r\n",
                websocket_accept(key)
            ));
            // One text frame of four masked bytes (RFC 6455 §5.2).
            let mut frame = [0; 10];
            if connection.wire.stream.read_exact(&mut frame).is_ok() {
                let text: Vec<u8> = (0..4).map(|n| frame[6 + n] ^ frame[2 + n]).collect();
                let answer = [format!("{user}: ").into_bytes(), text].concat();
                connection.send([&[0x81, answer.len() as u8][..], &answer].concat());
                let _ = connection.wire.stream.read(&mut frame);
            }
            return;
        }
    })
}

#[test]
fn a_person_logs_in_at_an_openid_provider() {
    let (node, folder) = match openid() {
        Ok(found) => found,
        Err(why) => skip!("no oidc-provider: {why}"),
    };
    let python = match python() {
        Ok(python) => python,
        Err(why) => skip!("no Python with grpcio and websockets: {why}"),
    };
    let site = Site::new();
    let [address, admin, plain, provider, service, grpc] = [(); 6].map(|()| ports::free());
    let (outside, issuer) = (format!("https://{HOST}:{}", address.port()), format!("http://{provider}"));
    let node = |program: &str, arguments: [String; 3]| {
        let mut command = Command::new(&node);
        command.current_dir(&folder).arg(program).args(arguments.iter().filter(|argument| !argument.is_empty()));
        command
    };
    let redirect = format!("{outside}/_auth/callback");
    let command = node("provider.mjs", [provider.port().to_string(), redirect, String::new()]);
    let _provider = started(command, &site, provider);
    let command = node("service.mjs", [service.port().to_string(), issuer.clone(), outside.clone()]);
    let authentication = started(command, &site, service);
    let mut command = Command::new(&python);
    command.arg(site.file("calls.py", GRPC_SERVER)).arg(grpc.to_string());
    let _grpc = started(command, &site, grpc);
    let app = application();
    let text = format!(
        r#"
[admin]
listen = "{admin}"
[[listener]]
address = "{address}"
http3 = true
[listener.tls]
certificates = {{ cert = {cert:?}, key = {key:?} }}
[[listener]]
address = "{plain}"
h2c = true
[[host]]
names = ["*"]
to = {app:?}
forward_auth = {{ upstream = "auth", path = "/verify", copy_headers = ["Remote-User", "Remote-Email"] }}
[[host.route]]
path = "/_auth/"
upstream = "auth"
forward_auth = false
[[host.route]]
path = "/t.T/"
upstream = "grpc"
[[upstream]]
name = "auth"
servers = "http://{service}"
[[upstream]]
name = "grpc"
servers = "http://{grpc}"
http = "2"
"#,
        cert = site.ecdsa.cert,
        key = site.ecdsa.key,
        app = app.url(),
    );
    let mut command = Command::new(binary::sealane());
    command.arg("serve").arg("-c").arg(site.file("openid.toml", text));
    let gateway: Gateway = launch(&site, command, address, admin);
    let ca = site.ca.to_str().expect("temporary paths are UTF-8");

    // A stranger is sent to the provider, whatever the stranger says of itself.
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |cookie: &str| {
        let fields = [("cookie", cookie), ("remote-user", "root"), ("remote-email", "root@example.test")];
        every.ask(Asked { target: "/private?x=1", fields: &fields, ..Asked::default() })
    };
    for cookie in ["", "session=guessed"] {
        assert_eq!(ask(cookie).map(|(status, _)| status), [302; 3]);
    }
    assert!(app.requests().is_empty());

    let session = run_python(&python, &site, BROWSER, &[&outside, ca, &issuer]);
    let who = "alice alice@example.test".to_owned();
    for ((status, body), version) in ask(&session).into_iter().zip(VERSIONS) {
        assert_eq!((status, &body), (200, &who), "{version}");
    }
    run_python(&python, &site, WEBSOCKET, &[&format!("wss://{HOST}:{}/ws", address.port()), ca, &session]);
    run_python(&python, &site, GRPC_CLIENT, &[&format!("{HOST}:{}", address.port()), ca, &session]);

    // The session ends, and with the service the permission of everybody.
    let fields = [("cookie", &*session)];
    let left = every.ask(Asked { target: "/_auth/logout", fields: &fields, ..Asked::default() });
    assert_eq!(left.map(|(status, _)| status), [204; 3]);
    let mut ask = |cookie: &str| {
        let fields = [("cookie", cookie)];
        every.ask(Asked { target: "/private", fields: &fields, ..Asked::default() }).map(|(status, _)| status)
    };
    assert_eq!(ask(&session), [302; 3]);
    let before = app.requests().len();
    drop(authentication);
    assert!(eventually(|| ask(&session) == [502; 3]), "it fails closed");
    assert_eq!(app.requests().len(), before);
}
