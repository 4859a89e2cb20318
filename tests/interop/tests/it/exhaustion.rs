//! What the machine has run out of: descriptors, memory, ports. The gateway says so, keeps what it can, and serves again when
//! the cause is gone.

use crate::operating::{Operated, order};
use sealane_interop::backend::Backend;
use sealane_interop::gateway::launch;
use sealane_interop::http::Wire;
use sealane_interop::process::Server;
use sealane_interop::site::Site;
use sealane_interop::{binary, client, eventually, need, ports, raise_open_files, skip};
use std::process::Command;

fn file(site: &Site, address: &str, admin: &str, server: &str) -> std::path::PathBuf {
    let text = format!(
        "lanes = 1\n[admin]\nlisten = \"{admin}\"\n[[listener]]\naddress = \"{address}\"\n[[host]]\nnames = [\"*\"]\n\
         upstream = \"u\"\n[[upstream]]\nname = \"u\"\nservers = [\"http://{server}\"]\nkeepalive = 0\n"
    );
    site.file("exhausted.toml", text)
}

#[test]
fn descriptors() {
    let site = Site::new();
    let backend = Backend::saying("ok");
    let (address, admin) = (ports::free(), ports::free());
    let config = file(&site, &address.to_string(), &admin.to_string(), &backend.address.to_string());
    let mut command = Command::new("sh");
    // Both limits, so that it cannot raise the one to the other.
    command.args(["-c", "ulimit -n 64 && exec \"$0\" serve -c \"$1\""]).arg(binary::sealane()).arg(config);
    let gateway = launch(&site, command, address, admin);
    // Before that it opens things still, which it cannot do without.
    assert!(eventually(|| gateway.server.log().contains("metrics at ")), "{}", gateway.server.log());
    assert_eq!(gateway.plain_get("/", "").text(), "ok");
    let held: Vec<_> = (0..120).map(|_| client::tcp(gateway.address)).collect();
    // One more cannot be accepted while these are there: it waits in the kernel's queue.
    let mut waiting = Wire::new(client::tcp(gateway.address));
    waiting.send(client::get("/")).expect("the kernel takes it");
    std::thread::sleep(std::time::Duration::from_millis(300));
    drop(held);
    assert_eq!(waiting.response("GET").expect("it is served after all").text(), "ok");
    assert!(gateway.metric_with("sealane_accept_paused_total", "reason=\"descriptors\"") >= Some(1.0));
    let said = || gateway.server.log();
    assert!(
        eventually(|| said().contains("are used up: new clients wait; the limit of file descriptors is LimitNOFILE=")),
        "{}",
        said()
    );
    assert!(said().contains("the gateway can have at most 64 files open"), "{}", said());
    assert!((0..20).all(|_| gateway.plain_get("/", "").text() == "ok"));
}

/// Clients that hold as much as they may: before it is too much, no more are let in, and those who are in are served.
#[test]
fn memory() {
    raise_open_files();
    let site = Site::new();
    let backend = Backend::saying("ok");
    let listen = ports::free();
    let file = |admin: &str, most: u64| {
        format!(
            "{admin}\n[limits]\nmax_memory = {most}\nheader_timeout = \"10m\"\n[[listener]]\naddress = \"{listen}\"\n\
             [[host]]\nnames = [\"*\"]\nto = [{:?}]\n",
            backend.url()
        )
    };
    let mut gateway = Operated::start(&site, 1, |admin| file(admin, 0), listen);
    let mut kept = Wire::new(client::tcp(listen));
    let mut ask = || {
        kept.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("a kept connection is read");
        assert_eq!(kept.response("GET").expect("it is answered").text(), "ok");
    };
    ask();
    let Some(now) = gateway.gateway.server.resident() else { skip!("the system does not say what a process holds") };
    gateway.write(&file(&gateway.admin_lines, now + (16 << 20)));
    order(&gateway.socket, "reload").expect("the file is good");
    // Half a head each, as long as a head may be.
    let half = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(30_000));
    let paused = || gateway.gateway.metric_with("sealane_accept_paused_total", "max_memory") >= Some(1.0);
    let mut held = Vec::new();
    while !paused() {
        assert!(held.len() < 8000, "{} clients were let in", held.len());
        for _ in 0..50 {
            let mut wire = Wire::new(client::tcp(listen));
            wire.send(&half).expect("the kernel takes it");
            held.push(wire);
        }
    }
    let said = gateway.gateway.server.log();
    assert!(said.contains("MiB (max_memory) are in use: new connections wait"), "{said}");
    let most = gateway.gateway.server.resident().expect("it was said before");
    assert!(most < now + (256 << 20), "{most} bytes are held");
    ask();
    // New clients wait in the listening queue now.
    let mut waiting = Wire::new(client::tcp(listen));
    waiting.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("the kernel takes it");
    assert!(gateway.gateway.server.running());
    ask();
    drop(held);
    assert_eq!(waiting.response("GET").expect("it is served after all").text(), "ok");
    ask();
}

/// A network of its own, gone with the test.
struct Namespace(String);

impl Namespace {
    fn new() -> Option<Self> {
        let name = format!("route-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output().ok()?;
        let namespace = made.status.success().then_some(Self(name))?;
        namespace.run("ip", &["link", "set", "lo", "up"]).then_some(namespace)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, program]);
        command
    }

    fn run(&self, program: &str, args: &[&str]) -> bool {
        self.command(program).args(args).output().is_ok_and(|o| o.status.success())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).output();
    }
}

#[test]
fn ports_for_connections_to_upstreams() {
    let site = Site::new();
    need!("ip");
    let curl = need!("curl").display().to_string();
    let Some(namespace) = Namespace::new() else { skip!("no network namespace can be made here") };
    let sealane = binary::sealane().display().to_string();
    let range = |range: &str| {
        // Used ports rest in TIME_WAIT and are not taken again while they do.
        let script = format!(
            "echo {range} > /proc/sys/net/ipv4/ip_local_port_range && echo 0 > /proc/sys/net/ipv4/tcp_tw_reuse"
        );
        namespace.run("sh", &["-c", &script])
    };
    let python = need!("python3").display().to_string();
    let origin = "127.0.0.1:9000";
    // Answers at once, or after some seconds, in which its connections are in use.
    let script = "import http.server as h,time\n\
        class A(h.BaseHTTPRequestHandler):\n\
        \x20def do_GET(s):\n\
        \x20 time.sleep(6 if s.path=='/slow' else 0);s.send_response(200);s.send_header('Content-Length','2');s.end_headers();s.wfile.write(b'ok')\n\
        h.ThreadingHTTPServer.request_queue_size=64\n\
        h.ThreadingHTTPServer(('127.0.0.1',9000),A).serve_forever()";
    let mut command = namespace.command(&python);
    command.args(["-c", script]);
    let _origin = Server::start(command, site.path());
    let config = file(&site, "127.0.0.1:8000", "127.0.0.1:8001", origin);
    let mut command = namespace.command(&sealane);
    command.arg("serve").arg("-c").arg(config);
    let gateway = Server::start(command, site.path());
    let fetch = |from: &str, url: &str| {
        let arguments = ["-s", "-m", "30", "-o", "-", "-w", " %{http_code}", "--interface", from, url];
        let output = namespace.command(&curl).args(arguments).output();
        output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
    };
    let page = "http://127.0.0.1:8000/";
    assert!(eventually(|| fetch("127.0.0.1", page) == "ok 200"));
    // While the origin started it may have been met too early.
    let failures =
        |metrics: &str| metrics.lines().find(|l| l.starts_with("sealane_server_failures_total{")).map(str::to_owned);
    let before = failures(&fetch("127.0.0.1", "http://127.0.0.1:8001/metrics"));
    assert!(before.is_some());
    if !range("50000 50009") {
        skip!("the range of ports cannot be set here");
    }
    // Ten ports towards the origin; the clients come from several addresses, each of which has ten of its own.
    let slow = format!("{page}slow");
    let answers: Vec<String> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..24)
            .map(|i| {
                let (fetch, slow) = (&fetch, &slow);
                scope.spawn(move || fetch(&format!("127.0.0.{}", 2 + i / 4), slow))
            })
            .collect();
        asked.into_iter().map(|a| a.join().expect("no panic")).collect()
    });
    let refused = answers.iter().filter(|a| a.ends_with("503")).count();
    let served = answers.iter().filter(|a| *a == "ok 200").count();
    assert_eq!(refused + served, 24, "{answers:?}");
    assert!(refused >= 10 && served >= 5, "{answers:?}");
    assert!(range("32768 60999"));
    let metrics = fetch("127.0.0.1", "http://127.0.0.1:8001/metrics");
    let counted = metrics.lines().find_map(|l| l.strip_prefix("sealane_upstream_local_errors_total "));
    assert_eq!(counted.and_then(|n| n.parse().ok()), Some(refused), "{metrics}");
    let said = || gateway.log().contains("requests that need another connection to an upstream get 503");
    assert!(eventually(said), "{}", gateway.log());
    // It was not the server that failed.
    assert_eq!(failures(&metrics), before, "{metrics}");
    assert_eq!(fetch("127.0.0.1", page), "ok 200");
}
