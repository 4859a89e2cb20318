//! Listeners on Unix sockets: who may connect, what is known of clients, and that the socket outlives reloads and upgrades.

use crate::operating::{Operated, Other, order};
use sealane_interop::backend::Backend;
use sealane_interop::frames::{Frames, kind};
use sealane_interop::gateway::{Gateway, configured, run};
use sealane_interop::http::{Message, Wire};
use sealane_interop::peers::{self, find, haproxy};
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Asked, Everywhere, Listening, VERSIONS};
use sealane_interop::{eventually, need, ports};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// A gateway that listens on a Unix socket alone. `listener` and `host` are lines of these tables.
fn gateway(site: &Site, listener: &str, host: &str) -> (Gateway, PathBuf) {
    let path = site.path().join(format!("http-{}.sock", ports::free().port()));
    let text = format!(
        "lanes = 2\n[admin]\nlisten = \"@ADMIN@\"\n[log]\naccess = {log:?}\nformat = \"json\"\n\
         [[listener]]\naddress = \"unix:{path}\"\n{listener}\n[[host]]\nnames = [\"*\"]\n{host}\n",
        log = site.log_file(),
        path = path.display(),
    );
    (configured(site, &text), path)
}

fn connect(path: &Path) -> Wire<UnixStream> {
    let stream = UnixStream::connect(path).expect("the gateway listens");
    stream.set_read_timeout(Some(sealane_interop::WAIT_LIMIT * 2)).expect("a socket has a timeout");
    Wire::new(stream)
}

/// A GET with these lines in its head, on a connection of its own.
fn get(path: &Path, lines: &str) -> Message {
    let mut wire = connect(path);
    wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n{lines}\r\n")).expect("it is read");
    wire.response("GET").expect("it is answered")
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("the file is there").permissions().mode() & 0o777
}

/// Over HTTP/1.1 and HTTP/2 directly, and over every version through another gateway, whose word about clients is taken or not.
#[test]
fn requests_come_over_a_unix_socket() {
    let site = Site::new();
    let app = Backend::saying("hello");
    let (inner, path) = gateway(&site, "h2c = true\nsocket_mode = \"0666\"", &format!("to = {:?}", app.url()));
    assert_eq!(mode(&path), 0o666);
    assert_eq!(get(&path, "X-Forwarded-For: 6.6.6.6\r\n").text(), "hello");
    let mut frames = Frames::begin(UnixStream::connect(&path).expect("the gateway listens"), &[]);
    frames.request(1, "GET", "/", &[("x-forwarded-for", "6.6.6.6")], true).expect("it is read");
    assert!(frames.find(|f| f.kind == kind::DATA && f.payload == b"hello").is_some());
    for request in app.requests() {
        assert_eq!(request.all("x-forwarded-for"), ["unix"], "{request:?}");
        assert!(request.header("forwarded").is_some_and(|value| value.starts_with("for=_unix;")), "{request:?}");
    }
    assert!(eventually(|| site.logged("\"remote\":\"unix\"") == 2), "{}", site.log());
    assert_eq!(inner.metric("sealane_requests_total"), Some(2.0));
    drop(inner);
    // Another gateway in front. With a PROXY header, or as one that is trusted, it names the client.
    for (listener, upstream, told) in [
        ("", "", "unix"),
        ("trusted_proxies = [\"unix\"]", "", "127.0.0.1, unix"),
        ("proxy_protocol = true", "proxy_protocol = \"v2\"", "127.0.0.1"),
        ("proxy_protocol = true\ntrusted_proxies = [\"unix\"]", "proxy_protocol = \"v1\"", "127.0.0.1"),
    ] {
        let site = Site::new();
        let app = Backend::saying("hello");
        let (_inner, path) = gateway(&site, listener, &format!("to = {:?}", app.url()));
        let edge = Site::new();
        let rest = format!(
            "[[host]]\nnames = [\"*\"]\nupstream = \"inner\"\n[[upstream]]\nname = \"inner\"\nservers = \"unix:{}\"\n{upstream}\n",
            path.display()
        );
        let (outer, plain) = Listening { rest: &rest, ..Listening::default() }.start(&edge);
        let mut every = Everywhere::new(&outer, plain);
        let trailers = [("x-sum", "1")];
        let asked = Asked { method: "POST", target: "/", trailers: &trailers, ..Asked::default() };
        assert_eq!(every.ask(asked), [(); 3].map(|()| (200, "hello".to_owned())), "{listener}");
        assert_eq!(every.get("/"), [(); 3].map(|()| (200, "hello".to_owned())), "{listener}");
        for (request, version) in app.requests().iter().zip(VERSIONS.iter().cycle()) {
            assert_eq!(request.all("x-forwarded-for"), [told], "{listener}, {version}");
        }
        let client = told.split(',').next().unwrap_or_default();
        assert!(eventually(|| site.logged(&format!("\"remote\":\"{client}\"")) == 6), "{listener}: {}", site.log());
    }
}

/// Programs that we did not write: curl as the client, over TLS, too, and HAProxy in front.
#[test]
fn other_programs_speak_to_a_unix_socket() {
    need!("curl");
    let program = need!("haproxy");
    let site = Site::new();
    let app = Backend::saying("hello");
    let to = format!("to = {:?}", app.url());
    let curl = |path: &Path, arguments: &[&str], url: &str| {
        let mut command = std::process::Command::new(find("curl").expect("the test looked for it first"));
        command.args(["--disable", "--noproxy", "*", "--silent", "--show-error", "--unix-socket"]).arg(path);
        command.arg("--cacert").arg(&site.ca).args(arguments).args(["--write-out", " %{http_version}", url]);
        peers::Said::from(sealane_interop::process::run(&mut command, b"")).all()
    };
    let (_plain, path) = gateway(&site, "h2c = true", &to);
    let url = format!("http://{HOST}/");
    assert_eq!(curl(&path, &["--http1.1"], &url).trim_end(), "hello 1.1");
    assert_eq!(curl(&path, &["--http2-prior-knowledge"], &url).trim_end(), "hello 2");
    let tls = format!("[listener.tls]\ncertificates = {{ cert = {:?}, key = {:?} }}", site.ecdsa.cert, site.ecdsa.key);
    let (_secure, path) = gateway(&site, &tls, &to);
    let url = format!("https://{HOST}/");
    assert_eq!(curl(&path, &["--http1.1"], &url).trim_end(), "hello 1.1");
    assert_eq!(curl(&path, &["--http2"], &url).trim_end(), "hello 2");
    // HAProxy names its clients in PROXY headers.
    let (_behind, path) = gateway(&site, "proxy_protocol = true", &to);
    let front = ports::free();
    let sections = format!("listen front\n  bind {front}\n  server gateway unix@{} send-proxy-v2", path.display());
    let _haproxy = haproxy(&site, &program, front, &sections);
    let before = app.requests().len();
    let mut wire = Wire::new(sealane_interop::client::tcp(front));
    wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("HAProxy reads");
    assert_eq!(wire.response("GET").expect("it is answered").text(), "hello");
    assert_eq!(app.requests()[before..].iter().map(|r| r.all("x-forwarded-for").len()).collect::<Vec<_>>(), [1]);
    assert_eq!(app.last().header("x-forwarded-for"), Some("127.0.0.1"));
}

/// Clients without an address are not one client: limits for one do not apply to all of them together. Rules about addresses let
/// none of them in.
#[test]
fn clients_without_an_address_are_not_counted_as_one() {
    let site = Site::new();
    let path = site.path().join("limited.sock");
    let text = format!(
        "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[limits]\nmax_connections_per_client = 1\nmax_requests_per_client = 1\n\
         connection_rate = \"1/m\"\n[[listener]]\naddress = \"unix:{}\"\n[[host]]\nnames = [\"*\"]\nrespond = {{ body = \"hello\" }}\n\
         [[host.route]]\npath = \"/inner\"\nrespond = {{ body = \"inner\" }}\nallow = [\"10.0.0.0/8\", \"127.0.0.0/8\"]\n",
        path.display()
    );
    let gateway = configured(&site, &text);
    let mut kept: Vec<_> = (0..5).map(|_| connect(&path)).collect();
    for wire in &mut kept {
        for (target, status) in [("/", 200), ("/inner", 403)] {
            wire.send(format!("GET {target} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("it is read");
            assert_eq!(wire.response("GET").expect("the connection is kept").status(), status, "{target}");
        }
    }
    assert_eq!(gateway.metric("sealane_rate_limited_total"), Some(0.0), "{}", gateway.metrics());
    assert_eq!(gateway.metric("sealane_connections_open"), Some(5.0));
}

/// Clients that ask over a Unix socket, each on a connection of its own, while something happens.
struct Crowd {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<Result<(), String>>>,
}

impl Crowd {
    fn start(path: &Path) -> Self {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (path, end, count) = (path.to_owned(), stop.clone(), served.clone());
        let thread = std::thread::spawn(move || {
            while !end.load(SeqCst) {
                let stream = UnixStream::connect(&path).map_err(|e| format!("no connection: {e}"))?;
                let mut wire = Wire::new(stream);
                let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
                wire.send(request).map_err(|e| format!("not sent: {e}"))?;
                let response = wire.response("GET").map_err(|broken| format!("no response: {broken:?}"))?;
                if response.text() != "hello" {
                    return Err(format!("{response:?}"));
                }
                count.fetch_add(1, SeqCst);
            }
            Ok(())
        });
        Self { stop, served, thread: Some(thread) }
    }

    /// More of them are served.
    #[track_caller]
    fn goes_on(&self) {
        let before = self.served.load(SeqCst);
        assert!(eventually(|| self.served.load(SeqCst) > before + 20), "clients are not served");
    }

    #[track_caller]
    fn end(mut self) {
        self.stop.store(true, SeqCst);
        let result = self.thread.take().expect("it ends once").join().expect("it does not panic");
        assert_eq!(result, Ok(()));
    }
}

#[test]
fn a_socket_outlives_reloads_and_upgrades() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (listen, path, other) = (ports::free(), site.path().join("http.sock"), site.path().join("other.sock"));
    let (shown, to) = (path.display().to_string(), backend.url());
    let more = move |lines: &str| {
        format!("[[listener]]\naddress = \"{listen}\"\n{lines}[[host]]\nnames = [\"*\"]\nto = {to:?}\n")
    };
    let with = |mode: &str| format!("[[listener]]\naddress = \"unix:{shown}\"\nsocket_mode = \"{mode}\"\n");
    let mut gateway = Operated::start(&site, 2, |admin| format!("{admin}\n{}", more(&with("0660"))), listen);
    let admin = gateway.admin_lines.clone();
    let file = |lines: &str| format!("{admin}\n{}", more(lines));
    let inode = || std::fs::metadata(&path).expect("the file is there").ino();
    let (first, mut kept) = (inode(), connect(&path));
    assert_eq!(mode(&path), 0o660);
    let crowd = Crowd::start(&path);
    crowd.goes_on();
    // The rights change, and another socket comes and goes; this one stays.
    let second = format!("{}[[listener]]\naddress = \"unix:{}\"\n", with("0600"), other.display());
    gateway.write(&file(&second));
    order(&gateway.socket, "reload").expect("the file is good");
    assert_eq!((mode(&path), inode(), mode(&other)), (0o600, first, 0o600));
    assert_eq!(get(&other, "").text(), "hello");
    gateway.write(&file(&with("0600")));
    order(&gateway.socket, "reload").expect("the file is good");
    assert!(!other.exists(), "nobody listens there any more");
    // A reload that fails changes nothing.
    std::fs::write(&other, "not a socket").expect("our own folder");
    gateway.write(&file(&second.replace("0600", "0666")));
    let refused = format!("{:#}", order(&gateway.socket, "reload").expect_err("there is a file"));
    assert!(refused.contains("exists, but is not a socket"), "{refused}");
    assert_eq!((mode(&path), inode()), (0o600, first));
    gateway.write(&file(&with("0600")));
    crowd.goes_on();
    kept.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    assert_eq!(kept.response("GET").expect("the connection is kept").text(), "hello");
    drop(kept);
    // A successor takes the socket over, and the file stays when the old process ends.
    let mut others = Vec::new();
    for _ in 0..2 {
        order(&gateway.socket, "upgrade").expect("the same program can be started again");
        others.push(Other::of(&gateway));
        crowd.goes_on();
    }
    assert_eq!(gateway.gateway.server.wait().code(), Some(0), "the first process ends well");
    crowd.goes_on();
    assert_eq!(inode(), first);
    crowd.end();
    // Somebody removes the file: the next reload puts another socket there.
    std::fs::remove_file(&path).expect("our own folder");
    order(&gateway.socket, "reload").expect("the file is good");
    assert_eq!(get(&path, "").text(), "hello");
    assert_ne!(inode(), first);
    others.iter().for_each(Other::terminate);
    assert!(eventually(|| !path.exists()), "the last process removes it");
}

#[test]
fn a_path_that_is_taken_is_not_taken_over() {
    let site = Site::new();
    let path = site.path().join("taken.sock");
    let text = |more: &str| {
        format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = \"unix:{}\"\n{more}[[host]]\nnames = [\"*\"]\nrespond = {{}}\n",
            path.display()
        )
    };
    let said = |command: &str, text: String| {
        let file = site.file("taken.toml", text);
        let output = run([std::ffi::OsStr::new(command), "-c".as_ref(), file.as_os_str()]);
        assert!(!output.status.success());
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let other = UnixListener::bind(&path).expect("our own folder");
    let refused = said("serve", text(""));
    assert!(refused.contains("another program listens there"), "{refused}");
    assert!(UnixStream::connect(&path).is_ok(), "it is still there");
    drop(other);
    // Nobody listens: it is left over.
    let stale = std::fs::metadata(&path).expect("the file is there").ino();
    let gateway = configured(&site, &text("").replace("127.0.0.1:0", "@ADMIN@"));
    assert_eq!(get(&path, "").status(), 200);
    assert!(std::fs::metadata(&path).expect("the file is there").ino() != stale || mode(&path) == 0o600);
    gateway.server.terminate();
    assert!(eventually(|| !path.exists()), "it is removed at the end");
    std::fs::write(&path, "a file").expect("our own folder");
    for command in ["check", "serve"] {
        let refused = said(command, text(""));
        assert!(refused.contains("exists, but is not a socket"), "{command}: {refused}");
    }
    assert_eq!(std::fs::read(&path).expect("the file is there"), b"a file");
    for (more, wanted) in [
        ("socket_mode = \"rw\"\n", "\"rw\" is not a mode"),
        ("socket_mode = \"0755\"\n", "execute permissions"),
        ("socket_owner = \"nobody-of-this-name\"\n", "there is no user \"nobody-of-this-name\""),
        ("http3 = true\n", "\"http3\" is for IP addresses"),
    ] {
        let refused = said("check", text(more));
        assert!(refused.contains(wanted), "{more}{refused}");
    }
}

/// A socket that systemd has made is used as it is, and left where it is.
#[test]
fn the_service_manager_may_pass_the_socket() {
    let site = Site::new();
    let python = need!("python3");
    let path = site.path().join("passed.sock");
    let admin = ports::free();
    let text = format!(
        "[admin]\nlisten = \"{admin}\"\n[[listener]]\naddress = \"unix:{}\"\n[[host]]\nnames = [\"*\"]\nrespond = {{ body = \"hello\" }}\n",
        path.display()
    );
    let file = site.file("passed.toml", text);
    let mut command = std::process::Command::new(python);
    command.args(["-c", ACTIVATE]).arg(&path).arg(sealane_interop::binary::sealane()).arg("serve").arg("-c").arg(file);
    let server = sealane_interop::gateway::start_ready(&site, command);
    assert_eq!(get(&path, "").text(), "hello");
    assert_eq!(mode(&path), 0o622, "as it was made");
    server.terminate();
    assert!(eventually(|| UnixStream::connect(&path).is_err()));
    assert!(path.exists(), "it is the service manager's");
}

/// Binds the path of the first argument as descriptor 3, and becomes the program of the others.
const ACTIVATE: &str = r"
import os, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
s.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o622)
s.listen(16)
fd = os.dup(s.fileno())
os.dup2(fd, 3)
os.set_inheritable(3, True)
os.environ['LISTEN_FDS'] = '1'
os.environ['LISTEN_PID'] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
";
