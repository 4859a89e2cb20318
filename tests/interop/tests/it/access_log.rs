//! Where access log lines go, what they look like and which requests get one, over the whole program.

use crate::operating::{Operated, order};
use sealane_interop::backend::{Backend, ok};
use sealane_interop::client;
use sealane_interop::frames::{END_STREAM, Frames, kind};
use sealane_interop::gateway::{Gateway, configured};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Everywhere, Listening};
use sealane_interop::{WAIT_LIMIT, eventually, ports};
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// A gateway whose `[log]` has these lines, with a server that says hello and a route that refuses.
fn logging(site: &Site, backend: &Backend, log: &str) -> Gateway {
    let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
    configured(
        site,
        &format!(
            "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[log]\n{log}\n[[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\n\
             certificates = {{ cert = {cert:?}, key = {key:?} }}\n[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n\
             [[host]]\nnames = [\"*\"]\nupstream = \"app\"\n\
             [[host.route]]\nname = \"the private part\"\npath = \"/private\"\nrespond = {{ status = 403 }}\n",
            backend.url()
        ),
    )
}

/// The lines of a file once there are so many.
#[track_caller]
fn lines(file: &Path, wanted: usize) -> Vec<String> {
    let read = || std::fs::read_to_string(file).unwrap_or_default();
    assert!(eventually(|| read().lines().count() >= wanted && read().ends_with('\n')), "{}", read());
    read().lines().map(str::to_owned).collect()
}

#[test]
fn a_template_has_the_values_of_requests() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let log = site.path().join("access.log");
    let gateway = logging(
        &site,
        &backend,
        &format!(
            "access = {log:?}\nformat = '$remote_addr \"$request\" $status $body_bytes_sent $scheme://$host ${{ssl_protocol}} \
             $upstream_addr/$upstream_name [$route] $http_x_team'"
        ),
    );
    for path in ["/one?q=1", "/private/x"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\nX-Team: a \"b\"\r\nConnection: close\r\n\r\n");
        gateway.exchange(request).expect("an answer comes");
    }
    let team = "a \\x22b\\x22";
    assert_eq!(
        lines(&log, 2),
        [
            format!(
                "127.0.0.1 \"GET /one?q=1 HTTP/1.1\" 200 5 https://{HOST} TLSv1.3 {}/app [-] {team}",
                backend.address
            ),
            format!("127.0.0.1 \"GET /private/x HTTP/1.1\" 403 0 https://{HOST} TLSv1.3 -/- [the private part] {team}"),
        ]
    );
}

#[test]
fn requests_are_chosen_and_personal_data_is_left_out() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let log = site.path().join("access.log");
    let settings = format!(
        "access = {log:?}\nformat = \"logfmt\"\nstatuses = [\"2xx\", \"403\"]\nskip_paths = \"/health\"\nsample = 3\n\
         ipv4_prefix = 8\nqueries = false"
    );
    let gateway = logging(&site, &backend, &settings);
    for path in ["/health", "/private/1?secret", "/a?secret", "/b", "/c?secret", "/private/2", "/d", "/e", "/f"] {
        gateway.get(path);
    }
    let found = lines(&log, 4);
    let targets: Vec<&str> = found.iter().filter_map(|l| l.split(" target=").nth(1)?.split(' ').next()).collect();
    // One in three of those that are answered well, and all that are not.
    assert_eq!(targets, ["/private/1", "/c", "/private/2", "/f"], "{found:?}");
    for line in &found {
        assert!(line.contains(" remote=127.0.0.0 ") && !line.contains("secret"), "{line}");
    }
}

#[test]
fn lines_have_the_fields_that_are_named() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let log = site.path().join("access.log");
    let fields = "fields = [\"status\", \"target\", \"error\", \"upstream\"]";
    for (format, line) in [
        ("json", "{\"target\":\"/one\",\"upstream\":\"SERVER\",\"status\":200}"),
        ("logfmt", "target=/one upstream=SERVER status=200"),
    ] {
        let gateway = logging(&site, &backend, &format!("access = {log:?}\nformat = \"{format}\"\n{fields}"));
        assert_eq!(gateway.get("/one").text(), "hello");
        assert_eq!(lines(&log, 1), [line.replace("SERVER", &backend.address.to_string())]);
        std::fs::remove_file(&log).expect("our own file");
    }
}

#[test]
fn a_syslog_server_gets_a_message_for_each_line() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    let path = site.path().join("syslog");
    let unix = UnixDatagram::bind(&path).expect("our own folder");
    udp.set_read_timeout(Some(WAIT_LIMIT)).expect("it is ours");
    unix.set_read_timeout(Some(WAIT_LIMIT)).expect("it is ours");
    type Receive<'r> = Box<dyn FnMut(&mut [u8]) -> std::io::Result<usize> + 'r>;
    let mut receivers: [(String, Receive); 2] = [
        (format!("syslog+udp://{}", udp.local_addr().expect("it is bound")), Box::new(|b| udp.recv(b))),
        (format!("syslog+unix://{}", path.display()), Box::new(|b| unix.recv(b))),
    ];
    for (server, receive) in &mut receivers {
        let gateway = logging(&site, &backend, &format!("access = \"{server}\"\nformat = '$uri $status'"));
        for path in ["/one", "/private"] {
            gateway.get(path);
        }
        for wanted in ["/one 200", "/private 403"] {
            let mut buffer = [0; 2048];
            let n = receive(&mut buffer).unwrap_or_else(|e| panic!("{server}: {e}"));
            let message = String::from_utf8_lossy(&buffer[..n]).into_owned();
            assert!(message.starts_with("<190>1 ") && message.ends_with(&format!(" access - {wanted}")), "{message}");
        }
        assert_eq!(gateway.metric("sealane_access_log_dropped_total"), Some(0.0));
    }
}

#[test]
fn the_journal_gets_an_entry_for_each_line() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let path = site.path().join("journal");
    let journal = UnixDatagram::bind(&path).expect("our own folder");
    journal.set_read_timeout(Some(WAIT_LIMIT)).expect("it is ours");
    let gateway = sealane_interop::gateway::configured(
        &site,
        &format!(
            "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[log]\naccess = \"journald://{}\"\n\
             format = '$uri $status $http_x_name'\n[[listener]]\naddress = \"@ADDRESS@\"\n\
             [[host]]\nnames = [\"*\"]\nto = [{:?}]\n",
            path.display(),
            backend.url()
        ),
    );
    // What a client sends begins no field.
    for (asked, logged) in
        [("/one", "/one 200 a\\x09PRIORITY=0"), ("/MESSAGE=two", "/MESSAGE=two 200 a\\x09PRIORITY=0")]
    {
        assert_eq!(gateway.plain_get(asked, "X-Name: a\tPRIORITY=0\r\n").text(), "hello");
        let mut buffer = [0; 4096];
        let length = journal.recv(&mut buffer).expect("an entry comes");
        let entry = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let lines: Vec<&str> = entry.lines().collect();
        assert_eq!(lines[..2], ["PRIORITY=6", "SYSLOG_FACILITY=23"], "{entry}");
        assert_eq!(
            lines[2..],
            ["SYSLOG_IDENTIFIER=sealane", "SEALANE_LOG=access", &format!("MESSAGE={logged}")],
            "{entry}"
        );
    }
    assert_eq!(gateway.metric("sealane_access_log_dropped_total"), Some(0.0));
}

#[test]
fn a_syslog_server_that_comes_later() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let server = ports::free();
    let gateway = logging(&site, &backend, &format!("access = \"syslog+tcp://{server}\"\nformat = '$uri'"));
    for _ in 0..3 {
        assert_eq!(gateway.get("/before").text(), "hello");
    }
    // Nobody waits, and what is lost is counted.
    let lost = || gateway.metric("sealane_access_log_dropped_total");
    assert!(eventually(|| lost() == Some(3.0)), "{:?}", lost());
    assert!(gateway.metric("sealane_access_log_errors_total").is_some_and(|n| n >= 1.0));
    assert!(gateway.server.log().contains("cannot send the access log"), "{}", gateway.server.log());
    let listener = TcpListener::bind(server).expect("the port is reserved for this test");
    listener.set_nonblocking(true).expect("it is ours");
    let mut accepted = None;
    assert!(eventually(|| {
        gateway.get("/after");
        accepted = accepted.take().or_else(|| listener.accept().ok());
        accepted.is_some()
    }));
    let (mut stream, _) = accepted.expect("it was accepted");
    stream.set_nonblocking(false).expect("it is ours");
    stream.set_read_timeout(Some(WAIT_LIMIT)).expect("it is ours");
    let mut text = [0; 4096];
    let n = stream.read(&mut text).expect("a message comes");
    let text = String::from_utf8_lossy(&text[..n]);
    let (length, message) = text.split_once(' ').expect("a message has its length before it");
    let length: usize = length.parse().expect("the length is a number");
    assert!(message[..length].ends_with(" access - /after"), "{text}");
}

#[test]
fn a_file_is_renamed_at_its_size_and_loses_no_line() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let log = site.path().join("access.log");
    let settings = format!("access = {log:?}\nformat = '$request_uri'\nrotate_size = 4096\nrotate_keep = 1000");
    let gateway = logging(&site, &backend, &settings);
    let mut wire = gateway.connect();
    let long = "x".repeat(500);
    let mut sent = 0;
    let files = || {
        let name = |n: u32| site.path().join(format!("access.log.{n}"));
        let old: Vec<_> = (1..).map(name).take_while(|path| path.exists()).collect();
        old.into_iter()
            .rev()
            .chain([log.clone()])
            .map(|path| std::fs::read_to_string(path).unwrap_or_default())
            .collect()
    };
    let written = || -> Vec<String> { files() };
    assert!(eventually(|| {
        for _ in 0..10 {
            wire.send(format!("GET /{sent}/{long} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
            assert_eq!(wire.response("GET").expect("the gateway answers").text(), "hello");
            sent += 1;
        }
        written().len() >= 3
    }));
    let numbers = || -> Vec<usize> {
        let text = written().concat();
        text.lines().filter_map(|line| line.split('/').nth(1)?.parse().ok()).collect()
    };
    assert!(eventually(|| numbers().len() == sent), "{} of {sent}", numbers().len());
    assert_eq!(numbers(), (0..sent).collect::<Vec<_>>(), "in order");
    assert_eq!(gateway.metric("sealane_access_log_errors_total"), Some(0.0));
}

#[test]
fn the_format_changes_with_a_reload() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let log = site.path().join("access.log");
    let file = |admin: &str, format: &str| {
        let admin = format!("{admin}\n[log]\naccess = {log:?}\nformat = '{format}'\n");
        Operated::simple_file(&site, &admin, listen, &backend.url())
    };
    let running = Operated::start(&site, 1, |admin| file(admin, "one $uri"), listen);
    running.get("/a");
    lines(&log, 1);
    running.write(&file(&running.admin_lines, "two $uri"));
    order(&running.socket, "reload").expect("it may");
    running.get("/b");
    assert_eq!(lines(&log, 2), ["one /a", "two /b"]);
    // One that is wrong changes nothing.
    running.write(&file(&running.admin_lines, "three $uir"));
    let refused = order(&running.socket, "reload").expect_err("it is wrong").to_string();
    assert!(refused.contains("$uir") && refused.contains("did you mean \"$uri\"?"), "{refused}");
    running.get("/c");
    assert_eq!(lines(&log, 3)[2], "two /c");
}

/// Nobody chooses by a rewrite that a request gets no line, and a line has the path that its client has sent.
#[test]
fn a_rewrite_hides_no_request() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nto = {app:?}\n[[host.route]]\npath = \"/api\"\nto = {app:?}\nrewrite_prefix = \"/\"\n\
         [[host.route]]\npath_regex = '^/old/(.*)$'\nto = {app:?}\nrewrite = \"/new/{{1}}\"\n",
        app = backend.url(),
    );
    // `top` follows the lines of `[log]`.
    let listening = Listening { top: "skip_paths = [\"/health\", \"/new\"]\n", rest: &rest, ..Listening::default() };
    let (gateway, plain) = listening.start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    for target in ["/health?a", "/api/health?b", "/old/c?d", "/last"] {
        assert_eq!(every.get(target).map(|(status, _)| status), [200; 3], "{target}");
    }
    let targets: Vec<String> = backend.requests().iter().map(|request| request.target().to_owned()).collect();
    let asked = ["/health?a", "/health?b", "/new/c?d", "/last"];
    assert_eq!(targets, asked.map(|target| [target; 3]).concat());
    for (target, times) in [("/last", 3), ("/api/health?b", 3), ("/old/c?d", 3), ("/health?a", 0)] {
        let text = format!("\"target\":\"{target}\"");
        assert!(eventually(|| site.logged(&text) == times), "{target}: {}", site.log());
    }
    assert_eq!(site.logged("\"target\""), 9, "{}", site.log());
}

/// It is found by the library that resets the stream: with the head of the request, or later.
#[test]
fn a_body_of_another_length_is_malformed_over_http2_too() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {:?}\n", backend.url());
    let (gateway, plain) = Listening { rest: &rest, ..Listening::default() }.start(&site);
    let mut frames = Frames::plain(plain, &[]);
    let (more, less) = (&b"123456"[..], &b"1234"[..]);
    for (number, (data, waits)) in [(more, false), (less, false), (more, true), (less, true)].into_iter().enumerate() {
        let stream = 2 * number as u32 + 1;
        frames.request(stream, "POST", "/", &[("content-length", "5")], false).expect("the gateway reads");
        let has_begun = || gateway.metric("sealane_requests_total") == Some(number as f64 + 1.0);
        assert!(!waits || eventually(has_begun), "{}", gateway.metrics());
        frames.send(kind::DATA, END_STREAM, stream, data).expect("the gateway reads");
        let end = frames.find(|f| f.stream == stream && f.kind == kind::RST_STREAM).expect("it is reset");
        assert_ne!(end.code(), 0);
    }
    assert!(eventually(|| site.logged("\"denied\":\"malformed\",\"status\":400") == 4), "{}", site.log());
    assert_eq!(gateway.metric_with("sealane_parse_errors_total", "\"length_mismatch\""), Some(4.0));
}

/// Whatever the gateway refuses or cuts off itself, the line says why.
#[test]
fn refusals_have_a_reason() {
    let site = Site::new();
    // It answers nobody who asks for `/held`.
    let backend = Backend::start(|mut connection| {
        while let Some(request) = connection.request() {
            match request.target() {
                "/held" => {}
                "/large" => connection.send(ok(&[b'x'; 200_000])),
                _ => connection.send(ok(b"hello")),
            }
        }
    });
    let (_refusing, refused) = ports::refusing();
    let rest = format!(
        r#"
[[rate_limit]]
name = "few"
rate = "1/h"
burst = 1
[[upstream]]
name = "one"
servers = {app:?}
max_connections = 1
queue = 1
queue_timeout = "500ms"
[[upstream]]
name = "auth"
servers = "http://{refused}"
[[host]]
names = ["*"]
to = {app:?}
[[host.route]]
path = "/rate"
to = {app:?}
rate_limit = "few"
[[host.route]]
path = "/body"
to = {app:?}
max_body_size = "10B"
[[host.route]]
path = "/held"
upstream = "one"
[[host.route]]
path = "/asked"
to = {app:?}
forward_auth = {{ upstream = "auth", path = "/" }}
"#,
        app = backend.url(),
    );
    let listening = Listening { top: "[limits]\nidle_timeout = \"1s\"\n", rest: &rest, ..Listening::default() };
    let (_gateway, plain) = listening.start(&site);
    let send = |text: String| {
        let mut wire = Wire::new(client::tcp(plain));
        wire.send(text).expect("the gateway reads");
        wire
    };
    let get = |path: &str| send(format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
    let status = |mut wire: Wire<_>| wire.response("GET").expect("a response").status();
    assert_eq!([status(get("/rate")), status(get("/rate"))], [200, 429]);
    assert_eq!(status(get("/a/../b")), 400);
    assert_eq!(status(send(format!("GET /x HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: x\r\n\r\n"))), 400);
    let post =
        |length: &str, body: &str| send(format!("POST /body HTTP/1.1\r\nHost: {HOST}\r\n{length}\r\n\r\n{body}"));
    assert_eq!(status(post("Content-Length: 11", "")), 413);
    assert_eq!(status(post("Transfer-Encoding: chunked", "b\r\nhello world\r\n0\r\n\r\n")), 413);
    assert_eq!(status(post("Content-Length: 9", "hello")), 408, "the rest does not come");
    assert_eq!(status(get("/asked")), 502);
    let held = get("/held");
    assert!(eventually(|| backend.requests().iter().any(|r| r.target() == "/held")));
    let waits = get("/held");
    // The queue has room for one.
    let mut full = get("/held");
    assert_eq!(full.response("GET").expect("a response").status(), 503);
    assert_eq!(status(waits), 503);
    drop(held);
    // SETTINGS_INITIAL_WINDOW_SIZE: the response cannot leave.
    let mut frames = Frames::plain(plain, &[(4, 0)]);
    frames.request(1, "GET", "/large", &[], true).expect("the gateway reads");
    let find = |target: &str, reason: &str| {
        eventually(|| site.log().lines().any(|line| line.contains(target) && line.contains(reason)))
    };
    for (target, reason) in [
        ("/rate", "\"denied\":\"rate_limit\",\"status\":429"),
        ("/a/../b", "\"denied\":\"path\",\"status\":400"),
        ("\"status\":400", "\"denied\":\"malformed\""),
        ("/body", "\"denied\":\"max_body_size\",\"status\":413"),
        ("/body", "\"end\":\"idle_timeout\",\"status\":408"),
        ("/asked", "\"denied\":\"forward_auth\",\"status\":502"),
        ("/held", "\"denied\":\"queue\",\"status\":503"),
        ("/held", "\"denied\":\"queue_timeout\",\"status\":503"),
        ("/large", "\"end\":\"idle_timeout\",\"status\":200"),
    ] {
        assert!(find(target, reason), "{target} {reason}: {}", site.log());
    }
    for line in site.log().lines().filter(|line| line.contains("\"denied\":\"queue")) {
        assert!(!line.contains("\"upstream\""), "no server got it: {line}");
    }
    let unexplained: Vec<_> = {
        let log = site.log();
        let fails =
            |line: &&str| [400, 408, 413, 429, 502, 503].iter().any(|s| line.contains(&format!("\"status\":{s},")));
        log.lines()
            .filter(fails)
            .filter(|line| !line.contains("\"denied\":") && !line.contains("\"end\":"))
            .map(str::to_owned)
            .collect()
    };
    assert!(unexplained.is_empty(), "{unexplained:?}");
}
