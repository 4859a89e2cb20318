//! Replacing the running program: sockets and ticket keys pass from one process to the next.

use crate::operating::{Operated, Other, order};
use rustix::process::{Pid, Signal, kill_process};
use sealane_interop::backend::{Backend, ok};
use sealane_interop::client;
use sealane_interop::crowd::Crowd;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{binary, eventually, ports};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

fn pid(gateway: &Operated) -> u64 {
    gateway.status()["pid"].as_u64().expect("a status has a pid")
}

#[test]
fn upgrades_under_load_lose_nothing() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let mut gateway = Operated::simple(&site, 2, listen, &backend.url());
    let first = pid(&gateway);
    assert_eq!(first, u64::from(gateway.gateway.server.id()));
    let config = std::sync::Arc::new(client::config(&site.ca));
    let crowd = Crowd::start(listen, &config, 3, |text| text == "hello");
    let mut others = Vec::new();
    let mut seen = vec![first];
    for _ in 0..5 {
        let before = crowd.requests();
        let said = order(&gateway.socket, "upgrade").expect("the same program can be started again");
        assert!(said.contains("serves now"), "{said}");
        others.push(Other::of(&gateway));
        assert!(!seen.contains(&pid(&gateway)), "a new process answers");
        seen.push(pid(&gateway));
        if !eventually(|| crowd.requests() > before + 50) {
            panic!("clients are not served on: {:?}", crowd.stop());
        }
    }
    let tally = crowd.stop();
    assert_eq!(tally.failures, Vec::<String>::new());
    assert_eq!(gateway.gateway.server.wait().code(), Some(0), "the first process ends well");
    assert_eq!(gateway.get("/").text(), "hello");
}

/// What is started is what the program's name leads to by then, as installers that keep versions side by side mean it.
#[test]
fn a_link_is_followed_when_the_upgrade_comes() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let (program, link, next) = (binary::sealane().display(), site.path().join("sealane"), site.path().join("next"));
    let newer = site.file("newer", format!("#!/bin/sh\necho a newer one >&2\nexec '{program}' \"$@\"\n"));
    std::fs::set_permissions(&newer, std::fs::Permissions::from_mode(0o755)).expect("our own file");
    symlink(binary::sealane(), &link).expect("our own folder");
    let file = |admin: &str| Operated::simple_file(&site, admin, listen, &backend.url());
    let mut gateway = Operated::start_by(&site, Command::new(&link), 1, file, listen);
    symlink(&newer, &next).and_then(|()| std::fs::rename(&next, &link)).expect("our own folder");
    order(&gateway.socket, "upgrade").expect("the newer one can be started");
    let _other = Other::of(&gateway);
    assert!(gateway.gateway.server.log().contains("a newer one\n"), "{}", gateway.gateway.server.log());
    assert_eq!(gateway.gateway.server.wait().code(), Some(0));
    assert_eq!(gateway.get("/").text(), "hello");
}

#[test]
fn sessions_are_resumed_by_the_successor() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let gateway = Operated::simple(&site, 1, listen, &backend.url());
    assert_eq!(gateway.get("/").text(), "hello");
    order(&gateway.socket, "upgrade").expect("the same program can be started again");
    let _other = Other::of(&gateway);
    // A lane of the first process may take another connection before it has heard.
    let totals = || gateway.status()["totals"].clone();
    let resumed = |totals: &serde_json::Value| totals["handshakes{version=\"1.3\",kind=\"resumed\"}"].as_u64();
    assert!(eventually(|| gateway.get("/").text() == "hello" && resumed(&totals()) >= Some(1)), "{}", totals());
    assert_eq!(totals()["handshakes{version=\"1.3\",kind=\"full\"}"], 0, "{}", totals());
}

/// What is under way in the old process is finished there.
#[test]
fn a_download_outlives_the_upgrade() {
    let site = Site::new();
    let (let_go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let backend = Backend::start(move |mut connection| {
        let Some(_) = connection.request() else { return };
        let answer = ok(&[7; 1000]);
        connection.send(&answer[..500]);
        let _ = wait.lock().expect("one connection only").recv();
        connection.send(&answer[500..]);
    });
    let listen = ports::free();
    let mut gateway = Operated::simple(&site, 1, listen, &backend.url());
    let mut wire = gateway.gateway.connect();
    wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    assert_eq!(wire.line().expect("the answer begins"), "HTTP/1.1 200 OK");
    order(&gateway.socket, "upgrade").expect("the same program can be started again");
    let _other = Other::of(&gateway);
    assert!(gateway.gateway.server.running(), "it has not finished");
    let_go.send(()).expect("the backend waits");
    while !wire.line().expect("the head goes on").is_empty() {}
    let mut body = Vec::new();
    wire.exactly(1000, &mut body).expect("the download is finished");
    assert_eq!(body, [7; 1000]);
    assert_eq!(gateway.gateway.server.wait().code(), Some(0));
}

/// A client that was told before the upgrade that its connection is kept gets an answer to its next request, too: with the word
/// that it is the last.
#[test]
fn a_client_that_was_told_of_a_kept_connection_loses_no_request() {
    let site = Site::new();
    for pipelined in [true, false] {
        let (let_go, wait) = std::sync::mpsc::channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        let backend = Backend::start(move |mut connection| {
            while let Some(request) = connection.request() {
                if request.target() == "/next" {
                    connection.send(ok(b"next"));
                    continue;
                }
                connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfi");
                let _ = wait.lock().expect("one connection only").recv();
                connection.send("rst");
            }
        });
        let mut gateway = Operated::simple(&site, 1, ports::free(), &backend.url());
        let mut wire = gateway.gateway.connect();
        let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
        wire.send(request("/first")).expect("the gateway reads");
        while !wire.line().expect("the head comes").is_empty() {}
        if pipelined {
            wire.send(request("/next")).expect("the gateway reads");
        }
        order(&gateway.socket, "upgrade").expect("the same program can be started again");
        let _other = Other::of(&gateway);
        let_go.send(()).expect("the backend waits");
        let mut body = Vec::new();
        wire.exactly(5, &mut body).expect("the first answer is finished");
        assert_eq!(body, b"first");
        if !pipelined {
            wire.send(request("/next")).expect("the gateway reads");
        }
        let next = wire.response("GET").unwrap_or_else(|broken| panic!("pipelined: {pipelined}: {:?}", broken.error));
        assert_eq!((next.status(), next.text(), next.header("connection")), (200, "next".to_owned(), Some("close")));
        assert_eq!(wire.rest().0, b"");
        assert_eq!(gateway.gateway.server.wait().code(), Some(0));
    }
}

/// The sockets on which the successor listens are the old process' too.
#[test]
fn an_old_process_that_is_stopped_leaves_its_successor_listening() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let mut gateway = Operated::simple(&site, 1, listen, &backend.url());
    let mut idle = gateway.gateway.connect();
    idle.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    assert_eq!(idle.response("GET").expect("it answers").text(), "hello");
    order(&gateway.socket, "upgrade").expect("the same program can be started again");
    let _other = Other::of(&gateway);
    assert!(gateway.gateway.server.running(), "an idle connection stays with it");
    gateway.gateway.server.terminate();
    assert_eq!(idle.rest().0, b"", "there is a hurry now");
    drop(idle);
    assert_eq!(gateway.gateway.server.wait().code(), Some(0));
    assert_eq!(gateway.get("/").text(), "hello");
}

#[test]
fn a_successor_that_cannot_serve_changes_nothing() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let mut gateway = Operated::simple(&site, 1, listen, &backend.url());
    let (first, good) = (pid(&gateway), gateway.text());
    gateway.write("not toml");
    let said = format!("{:#}", order(&gateway.socket, "upgrade").expect_err("the file is wrong"));
    assert!(said.contains("sealane.toml:1"), "{said}");
    // It parses, and the successor finds that it cannot be had.
    let taken = TcpListener::bind("127.0.0.1:0").expect("a loopback port can be had");
    let taken = taken.local_addr().expect("a bound socket has an address");
    gateway.write(&format!("{good}\n[[listener]]\naddress = \"{taken}\"\n"));
    let said = format!("{:#}", order(&gateway.socket, "upgrade").expect_err("the port is taken"));
    assert!(said.contains("ended before it served") && said.contains("this process continues"), "{said}");
    assert_eq!(pid(&gateway), first);
    assert_eq!(gateway.get("/").text(), "hello");
    gateway.write(&good);
    order(&gateway.socket, "upgrade").expect("nothing is in the way any more");
    let _other = Other::of(&gateway);
    assert_eq!(gateway.get("/").text(), "hello");
    assert_eq!(gateway.gateway.server.wait().code(), Some(0));
}

/// The old process is killed in the middle of an upgrade, at whatever moment: the new one serves.
#[test]
fn a_predecessor_that_is_killed_is_no_loss() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    for moment in [0, 2, 10, 40] {
        let listen = ports::free();
        let mut gateway = Operated::simple(&site, 1, listen, &backend.url());
        let old = gateway.gateway.server.id();
        let socket = gateway.socket.clone();
        let asked = std::thread::spawn(move || order(&socket, "upgrade"));
        // From here on there is somebody to take over.
        let children = format!("/proc/{old}/task/{old}/children");
        let child =
            || std::fs::read_to_string(&children).unwrap_or_default().split_whitespace().next().map(str::to_owned);
        assert!(eventually(|| child().is_some() || asked.is_finished()), "no successor was started");
        let successor = child().and_then(|c| c.parse().ok()).and_then(Pid::from_raw);
        std::thread::sleep(std::time::Duration::from_millis(moment));
        let _ = kill_process(Pid::from_raw(old as i32).expect("a pid is not 0"), Signal::KILL);
        gateway.gateway.server.wait();
        let said = asked.join();
        let served = || client::handshake(client::tcp(listen), gateway.gateway.config(), HOST).is_ok();
        let connects = || std::net::TcpStream::connect(listen).is_ok();
        assert!(
            eventually(|| connects() && served()),
            "killed after {moment} ms, {successor:?}, {said:?}: {}",
            gateway.gateway.server.log()
        );
        assert_eq!(gateway.get("/").text(), "hello");
        if let Some(successor) = successor {
            drop(Other(successor));
        }
    }
}
