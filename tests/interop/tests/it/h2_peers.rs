//! HTTP/2 against clients that we did not write: curl, h2load, nghttp, h2spec, gRPC from Python.

use sealane_interop::backend::{Backend, chunked, ok};
use sealane_interop::conformance::{expected, h2spec, judge};
use sealane_interop::gateway::before;
use sealane_interop::peers::{Said, curl, find, python};
use sealane_interop::process::{Server, run};
use sealane_interop::site::Site;
use sealane_interop::{need, noise, ports, sha256, skip};
use std::net::TcpStream;
use std::process::Command;

#[test]
fn curl_moves_files_both_ways() {
    need!("curl");
    let site = Site::new();
    let body = noise(20 << 20, 11);
    let (plain, pieces) = (ok(&body), chunked(&body, 9_973));
    let backend = Backend::answering(move |request| match (request.method(), request.target()) {
        ("POST", _) => ok(sha256(&request.body).as_bytes()),
        (_, "/chunked") => pieces.clone(),
        _ => plain.clone(),
    });
    let gateway = before(&site, [backend.url()]).start();
    for path in ["/length", "/chunked"] {
        let said = curl(&gateway, path, ["--http2", "--write-out", "%{stderr}%{http_version}"]);
        assert_eq!((said.code, said.err.as_str()), (Some(0), "2"), "{path}");
        assert!(said.out == body, "{path}: {} bytes", said.out.len());
    }
    let file = site.file("upload", &body);
    let data = format!("@{}", file.display());
    let said = curl(&gateway, "/", ["--http2", "--data-binary", &data]);
    assert_eq!((said.code, said.text()), (Some(0), sha256(&body)), "{}", said.err);
}

#[test]
fn curl_gets_the_answer_to_an_upload_that_is_refused() {
    need!("curl");
    let site = Site::new();
    let backend = Backend::saying("never");
    let gateway = before(&site, [backend.url()]).limits("max_body_size = 1000").start();
    let file = site.file("upload", noise(300_000, 12));
    let data = format!("@{}", file.display());
    let said = curl(&gateway, "/", ["--http2", "--include", "--data-binary", &data]);
    assert!(said.text().starts_with("HTTP/2 413"), "{said:?}");
}

#[test]
fn prior_knowledge_beside_http1_on_one_port() {
    need!("curl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).plain().listener("h2c = true").start();
    for (option, version) in [("--http1.1", "1.1"), ("--http2-prior-knowledge", "2"), ("--http1.0", "1.0")] {
        let url = format!("http://{}/", gateway.address);
        let mut command = Command::new(find("curl").expect("it was looked for"));
        command.args(["--disable", "--noproxy", "*", "--silent", "--max-time", "50", option]);
        let said: Said = run(command.args(["--write-out", " %{http_version}", &url]), b"").into();
        assert_eq!(said.text(), format!("hello {}", version.replace("1.0", "1.1")), "{option}");
    }
}

#[test]
fn h2load_with_many_streams() {
    let h2load = need!("h2load");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).lanes(2).start();
    let mut command = Command::new(h2load);
    command.args(["-n", "4000", "-c", "8", "-m", "32", &format!("https://{}/", gateway.address)]);
    let said: Said = run(&mut command, b"").into();
    assert!(said.text().contains("4000 succeeded, 0 failed, 0 errored, 0 timeout"), "{}", said.all());
    assert!(said.text().contains("4000 2xx"), "{}", said.all());
}

#[test]
fn nghttp_with_an_upload_and_trailers() {
    let nghttp = need!("nghttp");
    let site = Site::new();
    let answer =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 42\r\n\r\n";
    let backend = Backend::answering(move |_| answer.as_bytes().to_vec());
    let gateway = before(&site, [backend.url()]).start();
    let file = site.file("upload", noise(100_000, 13));
    let mut command = Command::new(nghttp);
    command.args(["-v", "-d"]).arg(&file).arg(format!("https://{}/", gateway.address));
    let said: Said = run(&mut command, b"").into();
    assert!(said.text().contains("x-sum: 42"), "{}", said.all());
    assert_eq!(backend.last().body.len(), 100_000);
}

#[test]
fn h2spec_finds_nothing() {
    let program = match h2spec::program() {
        Ok(program) => program,
        Err(why) => skip!("no h2spec: {why}"),
    };
    let (site, expected) = (Site::new(), expected::read().expect("the list of exceptions is good"));
    for name in h2spec::GATEWAYS {
        let (gateway, _backend) = h2spec::gateway(&site, name);
        let cases = h2spec::run(&program, &gateway, name).unwrap_or_else(|said| panic!("{name}: {said}"));
        let listed = expected.h2spec.get(name).map_or(&[][..], Vec::as_slice);
        let run = judge(name, &cases, listed, &expected);
        assert_eq!(run.unexpected, Vec::<String>::new(), "{name}");
        assert!(run.passed > 130, "{name}: {}", run.passed);
        assert!(gateway.metric("sealane_http2_connections_total") > Some(50.0));
    }
}

const GRPC_SERVER: &str = r#"
import grpc, sys
from concurrent import futures

def unary(request, context):
    if request == b"fail":
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "as you wish")
    context.set_trailing_metadata((("x-sum", "42"),))
    return request[::-1]

def up(requests, context):
    return b"%d" % sum(len(r) for r in requests)

def down(request, context):
    for n in range(int(request)):
        yield b"x" * n

def both(requests, context):
    for r in requests:
        yield r + b"!"

handler = grpc.method_handlers_generic_handler("t.T", {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Up": grpc.stream_unary_rpc_method_handler(up),
    "Down": grpc.unary_stream_rpc_method_handler(down),
    "Both": grpc.stream_stream_rpc_method_handler(both),
})
server = grpc.server(futures.ThreadPoolExecutor(8))
server.add_generic_rpc_handlers((handler,))
assert server.add_insecure_port("127.0.0.1:" + sys.argv[1])
server.start()
server.wait_for_termination()
"#;

const GRPC_CLIENT: &str = r#"
import grpc, sys, threading
trust = grpc.ssl_channel_credentials(open(sys.argv[2], "rb").read())
channel = grpc.secure_channel(sys.argv[1], trust)
unary = channel.unary_unary("/t.T/Unary")
answer, call = unary.with_call(b"abc", timeout=30)
assert answer == b"cba" and dict(call.trailing_metadata())["x-sum"] == "42", (answer, call.trailing_metadata())
large = bytes(range(256)) * 8000
assert unary(large, timeout=30) == large[::-1]
try:
    unary(b"fail", timeout=30)
    raise SystemExit("it did not fail")
except grpc.RpcError as e:
    assert e.code() == grpc.StatusCode.FAILED_PRECONDITION and e.details() == "as you wish", e
assert channel.stream_unary("/t.T/Up")(iter([b"x" * 1000] * 500), timeout=30) == b"500000"
assert [len(m) for m in channel.unary_stream("/t.T/Down")(b"300", timeout=30)] == list(range(300))
# Each message is sent only when the one before has come back.
ready = threading.Semaphore(1)
def messages():
    for n in range(50):
        ready.acquire()
        yield b"%d" % n
got = []
for m in channel.stream_stream("/t.T/Both")(messages(), timeout=30):
    got.append(m)
    ready.release()
assert got == [b"%d!" % n for n in range(50)], got
# A call that is given up in the middle does no harm to the next.
call = channel.unary_stream("/t.T/Down")(b"1000000", timeout=30)
next(call); call.cancel()
assert unary(b"abc", timeout=30) == b"cba"
print("all is well")
"#;

#[test]
fn grpc_unary_and_streaming() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => skip!("no Python packages: {why}"),
    };
    let site = Site::new();
    let (server, client) = (site.file("server.py", GRPC_SERVER), site.file("client.py", GRPC_CLIENT));
    let address = ports::free();
    let mut command = Command::new(&python);
    command.arg(server).arg(address.port().to_string());
    let mut backend = Server::start(command, site.path());
    backend.wait_until(|| TcpStream::connect(address).is_ok());
    let gateway = before(&site, [format!("http://{address}")]).upstream("http = \"2\"").start();
    let mut command = Command::new(python);
    // No proxy of the environment's.
    command.env_remove("https_proxy").env_remove("http_proxy").env("no_proxy", "*");
    command.arg(client).arg(format!("{}:{}", sealane_interop::site::HOST, gateway.address.port())).arg(gateway.ca());
    let said: Said = run(&mut command, b"").into();
    assert_eq!((said.code, said.text().trim()), (Some(0), "all is well"), "{}\n{}", said.err, backend.log());
}
