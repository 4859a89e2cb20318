//! Servers at Unix sockets.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::gateway::{Gateway, run};
use sealane_interop::http::Message;
use sealane_interop::site::Site;
use sealane_interop::versions::{Asked, Everywhere, Listening};
use sealane_interop::{eventually, need, peers, ports};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

fn gateway(site: &Site, rest: &str) -> (Gateway, SocketAddr) {
    Listening { rest, ..Listening::default() }.start(site)
}

/// Passes connections to a Unix socket on to a backend.
fn at_socket(path: &Path, backend: SocketAddr) {
    let listener = UnixListener::bind(path).expect("a socket can be bound");
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(backend) else { continue };
            let (from, to) = (client.try_clone().expect("descriptors are left"), server.try_clone().expect("and more"));
            std::thread::spawn(move || copy(from, to, |to| to.shutdown(Shutdown::Write)));
            std::thread::spawn(move || copy(server, client, |to: &UnixStream| to.shutdown(Shutdown::Write)));
        }
    });
}

fn copy<R: Read, W: Write>(mut from: R, mut to: W, end: impl Fn(&W) -> std::io::Result<()>) {
    // Either side may leave at any time.
    let _ = std::io::copy(&mut from, &mut to);
    let _ = end(&to);
}

#[test]
fn requests_go_to_servers_at_unix_sockets() {
    let site = Site::new();
    let app =
        Backend::answering(|request: &Message| ok(format!("{} {}", request.target(), request.body.len()).as_bytes()));
    let socket = site.path().join("app.sock");
    at_socket(&socket, app.address);
    let rest = format!(
        r#"
[[host]]
names = ["*"]
upstream = "app"
[[host.route]]
path = "/missing"
to = "unix:{missing}"
[[host.route]]
path = "/second"
to = ["unix:{missing}", "unix:{socket}"]
[[upstream]]
name = "app"
servers = "unix:{socket}"
[upstream.health]
path = "/health"
interval = "200ms"
"#,
        socket = socket.display(),
        missing = site.path().join("missing.sock").display(),
    );
    let (gateway, plain) = gateway(&site, &rest);
    let mut every = Everywhere::new(&gateway, plain);
    for _ in 0..3 {
        assert_eq!(every.get("/x"), [(); 3].map(|()| (200, "/x 0".to_owned())));
    }
    let trailers = [("x-sum", "1")];
    let asked = Asked { method: "POST", target: "/body", trailers: &trailers, ..Asked::default() };
    assert_eq!(every.ask(asked), [(); 3].map(|()| (200, "/body 5".to_owned())));
    assert_eq!(every.get("/missing").map(|(status, _)| status), [502; 3]);
    // A server that is not there is one that cannot be reached: the next one is tried.
    for _ in 0..3 {
        assert_eq!(every.get("/second"), [(); 3].map(|()| (200, "/second 0".to_owned())));
    }
    let health = |request: &Message| request.target() == "/health" && request.header("host") == Some("localhost");
    assert!(eventually(|| app.requests().iter().any(health)));
    let name = format!("unix:{}", socket.display());
    assert!(gateway.metrics().contains(&format!("server=\"{name}\"")), "{}", gateway.metrics());
    let logged = || site.log();
    assert!(eventually(|| logged().contains(&name)), "{}", logged());
    // Connections are kept, as to servers over TCP.
    let kept = gateway.metric("sealane_upstream_reused_total").unwrap_or_default();
    assert!(kept >= 6.0, "{kept}");
}

/// A server that we did not write.
#[test]
fn nginx_at_a_unix_socket() {
    need!("nginx");
    let site = Site::new();
    let socket = site.path().join("nginx.sock");
    let program = peers::find("nginx").expect("the test looked for it first");
    let http = format!(
        "server {{ listen 127.0.0.1:{{port}}; }} server {{ listen unix:{}; location / {{ return 200 \"of nginx\"; }} }}",
        socket.display()
    );
    let address = ports::free();
    let http = http.replace("{port}", &address.port().to_string());
    let _server = peers::nginx(&site, &program, address, &http);
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = \"unix:{}\"\n", socket.display());
    let (gateway, plain) = gateway(&site, &rest);
    let mut every = Everywhere::new(&gateway, plain);
    assert_eq!(every.get("/"), [(); 3].map(|()| (200, "of nginx".to_owned())));
}

#[test]
fn a_server_at_a_unix_socket_that_is_wrong_is_named() {
    let site = Site::new();
    for (server, wanted) in [
        ("unix:", "names no socket"),
        ("http://unix:/run/a.sock:/path", "write \"unix:/run/a.sock\""),
        (&*format!("unix:/{}", "a".repeat(107)), "more than 107 bytes"),
    ] {
        let text = format!("[[listener]]\naddress = \"127.0.0.1:0\"\n[[host]]\nnames = [\"*\"]\nto = \"{server}\"\n");
        let file = site.file("checked.toml", text);
        let output = run([std::ffi::OsStr::new("check"), "-c".as_ref(), file.as_os_str()]);
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(said.contains(wanted), "{server}\n{said}");
    }
}
