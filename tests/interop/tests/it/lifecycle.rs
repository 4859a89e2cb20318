//! Starting, failing to start, checking, counting, and stopping.

use crate::upgrade_upgraded::{echo, relayed};
use sealane_http::BodyLength;
use sealane_interop::backend::{Backend, ok};
use sealane_interop::client::get;
use sealane_interop::frames::{Frames, kind};
use sealane_interop::gateway::{self, before, launch};
use sealane_interop::http::Wire;
use sealane_interop::peers::Said;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::Listening;
use sealane_interop::{binary, client, eventually, h3, h3_server, noise, ports, sha256};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::{Arc, Mutex};

/// A download that is under way when the signal comes is finished; nobody new is let in; the end is a success.
#[test]
fn sigterm_drains() {
    let site = Site::new();
    let body = noise(5 << 20, 11);
    let expected = sha256(&body);
    let (let_go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let backend = Backend::start(move |mut connection| {
        let Some(request) = connection.request() else { return };
        let answer = ok(&body);
        if request.target() != "/slow" {
            connection.send(answer);
            return;
        }
        let half = answer.len() / 2;
        connection.send(&answer[..half]);
        let _ = wait.lock().expect("one connection only").recv();
        connection.send(&answer[half..]);
    });
    let mut gateway = before(&site, [backend.url()]).lanes(2).start();
    let mut idle = gateway.connect();
    let mut wire = gateway.connect();
    wire.send(format!("GET /slow HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    assert_eq!(wire.line().expect("the response begins"), "HTTP/1.1 200 OK");
    gateway.server.terminate();
    assert!(eventually(|| TcpStream::connect(gateway.address).is_err()), "still listening");
    // Who is between two requests is let go at once.
    assert_eq!(idle.rest().0, b"");
    assert!(gateway.server.running(), "it left before the download was through");
    let_go.send(()).expect("the backend waits");
    while !wire.line().expect("the head goes on").is_empty() {}
    let mut got = Vec::new();
    wire.exactly(5 << 20, &mut got).expect("the download is finished");
    assert_eq!(sha256(&got), expected);
    let status = gateway.server.wait();
    assert_eq!(status.code(), Some(0), "{}", gateway.server.log());
}

/// What is not finished by the deadline is cut off, and a second signal does not wait for it. Meanwhile a client that asks for
/// its health is told to go elsewhere.
#[test]
fn a_drain_ends_at_its_deadline_or_at_the_second_signal() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        let Some(_) = connection.request() else { return };
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome");
        // Until the gateway leaves.
        let _ = connection.wire.rest();
    });
    for (deadline, second) in [("500ms", false), ("1h", true)] {
        let text = format!(
            "lanes = 2\ndrain_timeout = \"{deadline}\"\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\n\
             address = \"@ADDRESS@\"\n[[host]]\nnames = [\"*\"]\nto = [{:?}]\n",
            backend.url()
        );
        let mut gateway = gateway::configured(&site, &text);
        let health = |gateway: &gateway::Gateway| {
            let mut wire = Wire::new(client::tcp(gateway.admin));
            wire.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it reads");
            wire.response("GET").expect("it answers").status()
        };
        assert_eq!(health(&gateway), 200);
        let mut wire = Wire::new(client::tcp(gateway.address));
        wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("the gateway reads");
        while !wire.line().expect("the response begins").is_empty() {}
        let mut got = Vec::new();
        wire.exactly(4, &mut got).expect("its body begins");
        gateway.server.terminate();
        if second {
            assert!(eventually(|| health(&gateway) == 503), "{}", gateway.server.log());
            assert!(gateway.server.running());
            gateway.server.terminate();
        }
        assert_eq!(gateway.server.wait().code(), Some(0), "{}", gateway.server.log());
        assert_eq!((got.as_slice(), wire.rest().0.as_slice()), (b"some".as_slice(), b"".as_slice()));
    }
}

/// The same over HTTP/3: nobody finds out by a timeout of their own that the gateway has left, neither a client nor a server.
#[test]
fn http3_peers_are_told_of_the_end_of_a_drain() {
    let site = Site::new();
    let tell = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&tell);
    let server = h3_server::Server::start(&site.ecdsa, move |mut asked| {
        let told = Arc::clone(&told);
        async move {
            asked.respond(200, &[], BodyLength::Known(1 << 40)).await;
            asked.data(&[7; 50_000]).await;
            let end = asked.send.stopped().await;
            told.lock().expect("nobody panics with it").push(format!("{end:?}"));
        }
    });
    for (deadline, second) in [("500ms", false), ("1h", true)] {
        let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
        let text = format!(
            "lanes = 2\ndrain_timeout = \"{deadline}\"\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\n\
             address = \"@ADDRESS@\"\nhttp3 = true\n[listener.tls]\ncertificates = [{{ cert = {cert:?}, key = {key:?} }}]\n\
             [[host]]\nnames = [\"*\"]\nupstream = \"backend\"\n[[upstream]]\nname = \"backend\"\n\
             servers = [{:?}]\nhttp = \"3\"\n[upstream.tls]\nca = {:?}\n",
            server.url(),
            site.ca
        );
        let mut gateway = gateway::configured(&site, &text);
        let mut client = h3::Client::connect(gateway.address, &h3::over_quic(gateway.config(), false));
        let id = client.open(&h3::headers("GET", "/", &[], BodyLength::None), true);
        assert!(client.until(|c| c.received(id).len() >= 50_000), "{:?}", client.lost);
        gateway.server.terminate();
        if second {
            assert!(client.until(|c| c.told_to_leave()), "{:?}", client.lost);
            assert!(gateway.server.running());
            gateway.server.terminate();
        }
        assert_eq!(gateway.server.wait().code(), Some(0), "{}", gateway.server.log());
        client.until(|c| c.lost.is_some());
        assert_eq!(client.failure(), h3::Failure::Closed(u64::from(h3_server::NO_ERROR)), "second signal: {second}");
        let ends = || std::mem::take(&mut *tell.lock().expect("nobody panics with it"));
        let mut end = Vec::new();
        assert!(eventually(|| {
            end.append(&mut ends());
            !end.is_empty()
        }));
        assert!(end[0].contains("ApplicationClosed"), "second signal: {second}: {end:?}");
    }
}

/// What is cut off has its line, whatever version it speaks, whether its response has begun or not, and at a second signal, too.
#[test]
fn what_a_drain_cuts_off_is_logged() {
    let backend = Backend::start(|mut connection| {
        let Some(request) = connection.request() else { return };
        if request.target() == "/slow" {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome");
        }
        // Until the gateway leaves.
        let _ = connection.wire.rest();
    });
    let echo = echo();
    for (deadline, second) in [("500ms", false), ("1h", true)] {
        let site = Site::new();
        let [plain, relaying] = [ports::free(), ports::free()];
        let rest = format!(
            "[[listener]]\naddress = \"{relaying}\"\nmode = \"tcp\"\n[[host]]\nnames = [\"relayed.test\"]\n\
             listeners = [\"{relaying}\"]\npassthrough = \"echo\"\n[[upstream]]\nname = \"echo\"\nservers = \"tcp://{echo}\"\n\
             [[host]]\nnames = [\"*\"]\nto = [{:?}]\n",
            backend.url()
        );
        let text = Listening { rest: &rest, ..Listening::default() }.text(&site, plain);
        let text = text.replacen("lanes = 1\n", &format!("lanes = 1\ndrain_timeout = \"{deadline}\"\n"), 1);
        let mut gateway = gateway::configured(&site, &text);
        let get = |target: &str| {
            let mut wire = Wire::new(client::tcp(plain));
            wire.send(format!("GET {target} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
            wire
        };
        let mut first = get("/slow");
        assert_eq!(first.line().expect("the response begins"), "HTTP/1.1 200 OK");
        let asked = backend.requests().len();
        let _unanswered = get("/silent");
        assert!(eventually(|| backend.requests().len() > asked));
        let mut frames = Frames::plain(plain, &[]);
        frames.request(1, "GET", "/slow", &[], true).expect("the gateway reads");
        assert!(frames.find(|f| f.kind == kind::DATA).is_some(), "the response begins");
        let mut third = h3::Client::connect(gateway.address, &h3::over_quic(gateway.config(), false));
        let id = third.open(&h3::headers("GET", "/slow", &[], BodyLength::None), true);
        assert!(third.until(|c| c.so_far(id).is_ok_and(|r| r.body == b"some")), "{:?}", third.lost);
        let _relayed = relayed(relaying, gateway.config());
        gateway.server.terminate();
        if second {
            assert!(third.until(|c| c.told_to_leave()), "{:?}", third.lost);
            assert!(gateway.server.running());
            gateway.server.terminate();
        }
        assert_eq!(gateway.server.wait().code(), Some(0), "{}", gateway.server.log());
        let log = site.log();
        assert_eq!((log.lines().count(), site.logged("\"end\":\"drain\"")), (5, 5), "{log}");
        let versions = ["HTTP/1.1", "HTTP/2", "HTTP/3"].map(|version| ("\"target\":\"/slow\"", version, 200));
        let others = [("\"target\":\"/silent\"", "HTTP/1.1", 499), ("\"method\":\"TCP\"", "relayed.test", 200)];
        for (what, of, status) in versions.into_iter().chain(others) {
            let status = format!("\"status\":{status},");
            let is_it = |line: &&str| [what, of, status.as_str()].iter().all(|part| line.contains(part));
            assert_eq!(log.lines().filter(is_it).count(), 1, "{what} {of} {status}: {log}");
        }
    }
}

#[test]
fn ctrl_c_ends_it_too() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let mut gateway = before(&site, [backend.url()]).start();
    assert_eq!(gateway.get("/").text(), "hello");
    gateway.server.interrupt();
    assert_eq!(gateway.server.wait().code(), Some(0), "{}", gateway.server.log());
}

/// One clear line, perhaps one more with what to do about it, and exit code 1.
#[track_caller]
fn fails_with(said: &Said, words: &[&str]) {
    let lines: Vec<&str> = said.err.lines().filter(|line| !line.trim().is_empty()).collect();
    assert_eq!(said.code, Some(1), "{said:?}");
    let helps = lines.iter().skip(1).all(|line| line.trim_start().starts_with("help:"));
    assert!((1..=2).contains(&lines.len()) && helps, "{said:?}");
    for word in words {
        assert!(lines[0].contains(word), "no {word:?} in {:?}", lines[0]);
    }
    assert!(!lines[0].contains("panicked"), "{}", lines[0]);
}

fn proxy(listen: &str, cert: &std::path::Path, key: &std::path::Path) -> Said {
    let admin = ports::free().to_string();
    let mut arguments: Vec<String> =
        ["proxy", "--listen", listen, "--to", "http://127.0.0.1:1", "--admin", &admin].map(str::to_owned).into();
    for (flag, path) in [("--cert", cert), ("--key", key)] {
        arguments.extend([flag.to_owned(), path.display().to_string()]);
    }
    gateway::run(arguments).into()
}

#[test]
fn a_port_that_is_taken() {
    let site = Site::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a loopback port can be had");
    let address = taken.local_addr().expect("a bound socket has an address").to_string();
    fails_with(&proxy(&address, &site.ecdsa.cert, &site.ecdsa.key), &[&address]);
}

#[test]
fn a_second_gateway_on_the_same_port() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let first = before(&site, [backend.url()]).start();
    // SO_REUSEPORT would let both have it, and half of the clients would meet the wrong one.
    let address = first.address.to_string();
    fails_with(&proxy(&address, &site.ecdsa.cert, &site.ecdsa.key), &[&address]);
    assert_eq!(first.get("/").text(), "hello");
}

#[test]
fn keys_that_cannot_be_used() {
    let site = Site::new();
    let listen = ports::free().to_string();
    let cert = &site.ecdsa.cert;
    let missing = site.path().join("missing.pem");
    fails_with(&proxy(&listen, cert, &missing), &["missing.pem"]);
    fails_with(&proxy(&listen, &missing, &site.ecdsa.key), &["missing.pem"]);
    let nonsense = site.file("nonsense.pem", "not a key");
    fails_with(&proxy(&listen, cert, &nonsense), &["nonsense.pem"]);
    let other = site.issue("other", &[HOST]);
    fails_with(&proxy(&listen, cert, &other.key), &["other-key.pem"]);
    if !rustix::process::geteuid().is_root() {
        std::fs::set_permissions(&other.key, std::fs::Permissions::from_mode(0o0)).expect("our own file");
        fails_with(&proxy(&listen, cert, &other.key), &["other-key.pem", "ermission"]);
    }
}

/// Without root's right to read everything and to bind every port; root can give both up, others never had them.
fn without_rights() -> Option<Command> {
    if !rustix::process::geteuid().is_root() {
        return Some(Command::new(binary::sealane()));
    }
    let mut command = Command::new(sealane_interop::peers::find("setpriv")?);
    let rights = "-dac_override,-dac_read_search,-net_bind_service";
    command.args(["--bounding-set", rights, "--inh-caps", rights]).arg(binary::sealane());
    Some(command)
}

#[test]
fn what_may_not_be_read_written_or_bound() {
    let site = Site::new();
    let (cert, key) = (site.ecdsa.cert.display().to_string(), site.ecdsa.key.display().to_string());
    let forbidden = |name: &str, mode: u32| {
        let path = site.path().join(name);
        if mode == 0o500 {
            std::fs::create_dir(&path).expect("our own folder");
        } else {
            std::fs::copy(&site.ecdsa.key, &path).expect("our own folder");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("ours");
        path.display().to_string()
    };
    let (secret, locked, folder) =
        (forbidden("secret.pem", 0), forbidden("locked.log", 0o400), forbidden("closed", 0o500));
    let (log, socket) = (format!("{folder}/access.log"), format!("{folder}/admin.sock"));
    let run = |listen: &str, key: &str, more: &[&str]| -> Option<Said> {
        let mut command = without_rights()?;
        command.args(["proxy", "--to", "http://127.0.0.1:1", "--cert", &cert, "--key", key, "--listen", listen]);
        Some(sealane_interop::process::run(command.args(more), b"").into())
    };
    let free = ports::free().to_string();
    let Some(said) = run(&free, &secret, &[]) else { sealane_interop::skip!("`setpriv` is not installed") };
    fails_with(&said, &["secret.pem", "ermission denied"]);
    for (more, words) in [
        (["--access-log", &locked], ["cannot write the access log", "locked.log", "ermission denied"]),
        (["--access-log", &log], ["cannot write the access log", "access.log", "ermission denied"]),
        (["--admin-socket", &socket], ["cannot create the admin socket", "admin.sock", "ermission denied"]),
    ] {
        fails_with(&run(&free, &key, &more).expect("it ran before"), &words);
    }
    // Containers often allow every port to everybody.
    let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first: u16 = first.ok().and_then(|n| n.trim().parse().ok()).unwrap_or(1024);
    if first > 1 {
        let low = format!("127.0.0.1:{}", first.min(1024) - 1);
        let said = run(&low, &key, &[]).expect("it ran before");
        fails_with(&said, &[&low, "permission denied", "CAP_NET_BIND_SERVICE"]);
    }
}

#[test]
fn check_judges_files() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let good = before(&site, [backend.url()]).lanes(2).file(ports::free(), ports::free());
    let check = |name: &str, text: &str| -> Said {
        gateway::run(["check", "-c", site.file(name, text).to_str().expect("UTF-8")]).into()
    };
    let said = check("good.toml", &good);
    assert_eq!(said.code, Some(0), "{said:?}");
    for (name, text, words) in [
        ("syntax.toml", good.replace("lanes = 2", "lanes = = 2"), "syntax.toml:1:"),
        ("unknown.toml", good.replace("lanes = 2", "lane = 2"), "unknown.toml:1:"),
        ("kind.toml", good.replace("lanes = 2", "lanes = \"two\""), "kind.toml:1:"),
        ("cert.toml", good.replace("ecdsa.pem", "nowhere.pem"), "nowhere.pem"),
        ("name.toml", good.replace("upstream = \"backend\"", "upstream = \"other\""), "other"),
    ] {
        let said = check(name, &text);
        assert_eq!(said.code, Some(1), "{name}: {said:?}");
        assert!(said.all().contains(words), "{name}: no {words:?} in {said:?}");
    }
    // All mistakes at once.
    let said = check("both.toml", &good.replace("lanes = 2", "lanes = 0").replace("ecdsa.pem", "nowhere.pem"));
    assert!(said.all().contains("lanes") && said.all().contains("nowhere.pem"), "{said:?}");
    let said: Said = gateway::run(["check", "-c", "/nonexistent/sealane.toml"]).into();
    assert_eq!(said.code, Some(1), "{said:?}");
}

#[test]
fn the_example_configuration_is_toml_that_check_reads() {
    let said: Said = gateway::run(["config", "example"]).into();
    assert_eq!(said.code, Some(0), "{said:?}");
    let text = said.text();
    for section in ["[[listener]]", "[[host]]", "[[upstream]]"] {
        assert!(text.contains(section), "no {section} in the example");
    }
    // It names certificates that are not here: these are then the only kind of complaint.
    let site = Site::new();
    let file = site.file("example.toml", &text);
    let said: Said = gateway::run(["check", "-c", file.to_str().expect("UTF-8")]).into();
    for complaint in said.err.lines().filter(|line| line.contains("error:")) {
        assert!(complaint.contains("cannot") || complaint.contains(".pem"), "{complaint}");
    }
}

#[test]
fn an_unknown_argument_is_a_mistake() {
    let said: Said = gateway::run(["proxy", "--no-such-option"]).into();
    assert!(!matches!(said.code, Some(0) | None), "{said:?}");
    assert!(said.err.contains("--no-such-option"), "{said:?}");
}

#[test]
fn counters_move() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).lanes(2).start();
    let read = |name: &str, label: &str| {
        gateway.metric_with(name, label).unwrap_or_else(|| panic!("no {name}{{{label}}} in\n{}", gateway.metrics()))
    };
    let names = [
        ("sealane_connections_accepted_total", "", 10.0),
        ("sealane_handshakes_total", "version=\"1.3\"", 10.0),
        ("sealane_handshakes_total", "kind=\"resumed\"", 9.0),
        ("sealane_requests_total", "", 10.0),
        ("sealane_responses_total", "class=\"2xx\"", 10.0),
        ("sealane_response_body_bytes_total", "", 50.0),
        ("sealane_upstream_connects_total", "", 0.0),
    ];
    // Readiness is a signal, and no connection.
    assert_eq!(read("sealane_connections_accepted_total", ""), 0.0);
    let before: Vec<f64> = names.iter().map(|(name, label, _)| read(name, label)).collect();
    for _ in 0..10 {
        assert_eq!(gateway.get("/").text(), "hello");
    }
    for ((name, label, by), before) in names.iter().zip(before) {
        let moved = || read(name, label) - before;
        assert!(eventually(|| moved() >= *by), "{name}{{{label}}} moved by {} instead of {by}", moved());
        assert!(*by == 0.0 || moved() <= *by, "{name}{{{label}}} moved by {} instead of {by}", moved());
    }
    let connects = read("sealane_upstream_connects_total", "");
    assert_eq!(connects, backend.connections() as f64);
    // A refused request and a failed handshake have their own.
    let bad = gateway.exchange(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nHost: {HOST}\r\n\r\n"));
    assert_eq!(bad.expect("an answer comes").status(), 400);
    let mut plain = client::tcp(gateway.address);
    let _ = plain.write_all(b"GET / HTTP/1.1\r\n\r\n");
    let _ = Wire::new(plain).rest();
    assert!(eventually(|| read("sealane_responses_total", "class=\"4xx\"") == 1.0));
    assert!(eventually(|| gateway.metrics().contains("not_tls")), "{}", gateway.metrics());
}

#[test]
fn metrics_are_what_prometheus_reads() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).lanes(2).start();
    let mut typed = std::collections::HashSet::new();
    for line in gateway.metrics().lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let mut words = rest.split(' ');
            let (name, kind) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            assert!(["counter", "gauge", "histogram", "summary"].contains(&kind), "{line}");
            assert!(typed.insert(name.to_owned()), "{name} has its type twice");
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
            value.parse::<f64>().unwrap_or_else(|_| panic!("no number: {line}"));
            let name = series.split('{').next().unwrap_or_default();
            assert!(typed.iter().any(|typed| name.starts_with(typed.as_str())), "{name} has no type before it");
        }
    }
    assert!(typed.len() > 5, "{typed:?}");
}

#[test]
fn an_access_log_has_a_line_for_each_request() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (address, admin) = (ports::free(), ports::free());
    let log = site.path().join("access.log");
    let text = before(&site, [backend.url()]).file(address, admin);
    let text = format!("{text}\n[log]\naccess = \"{}\"\n", log.display());
    let mut command = Command::new(binary::sealane());
    command.arg("serve").arg("-c").arg(site.file("logged.toml", text));
    let gateway = launch(&site, command, address, admin);
    for path in ["/one", "/two?q=1"] {
        assert_eq!(gateway.exchange(get(path)).expect("an answer comes").text(), "hello");
    }
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    assert!(eventually(|| read().lines().count() == 2), "{:?}", read());
    for (line, path) in read().lines().zip(["/one", "/two?q=1"]) {
        assert!(line.contains(path) && line.contains("200") && line.contains("127.0.0.1"), "{line}");
    }
}

/// An object per line, whatever clients say.
#[test]
fn an_access_log_of_json_is_json() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (address, admin) = (ports::free(), ports::free());
    let log = site.path().join("access.json");
    let text = before(&site, [backend.url()]).file(address, admin);
    let text = format!("{text}\n[log]\naccess = \"{}\"\nformat = \"json\"\n", log.display());
    let mut command = Command::new(binary::sealane());
    command.arg("serve").arg("-c").arg(site.file("logged.toml", text));
    let gateway = launch(&site, command, address, admin);
    let request = format!(
        "POST /a?b=c HTTP/1.1\r\nHost: {HOST}\r\nUser-Agent: \"}},{{\\ \u{e9}\r\nContent-Length: 3\r\n\
         Connection: close\r\n\r\nabc"
    );
    assert_eq!(gateway.exchange(&request).expect("an answer comes").text(), "hello");
    let written = || std::fs::read_to_string(&log).unwrap_or_default();
    assert!(eventually(|| written().ends_with("}\n")), "{:?}", written());
    let line: serde_json::Value = serde_json::from_str(&written()).expect("a line is an object");
    let wanted = serde_json::json!({
        "remote": "127.0.0.1", "method": "POST", "target": "/a?b=c", "protocol": "HTTP/1.1", "tls": "TLSv1.3",
        "host": HOST, "status": 200, "bytes_in": 3, "bytes_out": 5, "upstream": backend.address.to_string(),
        // Bytes as Latin-1.
        "user_agent": "\"},{\\ \u{c3}\u{a9}",
    });
    for (name, value) in wanted.as_object().expect("it is one") {
        assert_eq!(&line[name], value, "{name} in {line}");
    }
    assert!(line["error"].is_null() && line["duration"].is_number() && line["time"].is_string(), "{line}");
}

/// Everything in one command, without a file: what the README begins with.
#[test]
fn the_demo_serves_and_says_what_to_try() {
    let site = Site::new();
    let mut command = Command::new(binary::sealane());
    // Its certificates go to the user's state folder: here one of the test's own.
    for variable in ["HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"] {
        command.env(variable, site.path());
    }
    command.arg("demo");
    let taken = TcpListener::bind(("127.0.0.1", 8443));
    let mut server = sealane_interop::process::Server::start(command, site.path());
    let mut port = None;
    let mut log = String::new();
    // It takes the next free port when 8443 is taken, and says which.
    let mut find = |server: &sealane_interop::process::Server| {
        log = server.log();
        let at = log.find("https://localhost:")? + "https://localhost:".len();
        log[at..].split(|c: char| !c.is_ascii_digit()).next()?.parse::<u16>().ok()
    };
    assert!(eventually(|| {
        port = port.or_else(|| server.running().then(|| find(&server)).flatten());
        port.is_some_and(|port| TcpStream::connect(("127.0.0.1", port)).is_ok())
    }));
    let said = server.log();
    assert!(said.contains("curl") && said.contains(" IN HTTPS 1 "), "{said}");
    // Who else had the port may have left it meanwhile.
    assert!(said.contains("Port 8443 is in use; the demo uses ") || taken.is_err(), "{said}");
    for word in ["--tls-max 1.2", "--tlsv1.3", "-sess_in", "-early_data", "/metrics"] {
        assert!(said.contains(word), "no {word} in {said}");
    }
    let address = ([127, 0, 0, 1], port.expect("it was found")).into();
    let authority =
        find_authority(site.path()).unwrap_or_else(|| panic!("no authority under the state folder:\n{said}"));
    let config = std::sync::Arc::new(client::config(&authority));
    let response = client::exchange(address, &config, &get("/")).unwrap_or_else(|broken| panic!("{broken:?}"));
    assert_eq!(response.status(), 200, "{response:?}");
    // The other versions at the same port.
    let mut second = client::config(&authority);
    second.alpn_protocols = vec![b"h2".to_vec()];
    let tls = client::handshake(client::tcp(address), &std::sync::Arc::new(second), HOST).expect("a handshake");
    assert_eq!(tls.conn.alpn_protocol(), Some(&b"h2"[..]));
    let mut third = h3::Client::connect(address, &h3::over_quic(&config, false));
    assert_eq!(third.get("/").status, 200);
    third.close();
    server.interrupt();
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    assert!(server.log().contains("requests on ") && server.log().ends_with("bye\n"), "{}", server.log());
}

/// Without `--lanes` there is one for each core that the process may use.
#[test]
fn lanes_are_as_many_as_the_cores() {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let taskset = sealane_interop::need!("taskset");
    let cores = sched_getaffinity(None).expect("a process may ask");
    let core = (0..CpuSet::MAX_CPU).find(|core| cores.is_set(*core)).expect("it runs on some core");
    let site = Site::new();
    let (address, admin) = (ports::free(), ports::free());
    let mut command = Command::new(taskset);
    command.args(["--cpu-list", &core.to_string()]).arg(binary::sealane());
    command.args(["respond", "--plain", "--listen", &address.to_string(), "--admin", &admin.to_string()]);
    let gateway = launch(&site, command, address, admin);
    assert_eq!(gateway.metrics().matches("\nsealane_lane_requests_total{").count(), 1, "{}", gateway.server.log());
    assert!(gateway.server.log().contains(", 1 lane\n"), "{}", gateway.server.log());
}

/// The authority's certificate among the files that the demo made; the test's own lies in the top folder.
fn find_authority(top: &std::path::Path) -> Option<std::path::PathBuf> {
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(&folder).ok()?.filter_map(Result::ok).map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let named = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ca"));
            let certificate = || std::fs::read_to_string(&path).is_ok_and(|text| text.contains("BEGIN CERTIFICATE"));
            if named && folder != top && certificate() {
                return Some(path);
            }
        }
    }
    None
}
