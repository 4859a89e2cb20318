//! What the machine has run out of: descriptors, ports. The gateway says so, keeps what it can, and serves again when
//! the cause is gone.

use sealane_interop::backend::Backend;
use sealane_interop::gateway::launch;
use sealane_interop::http::Wire;
use sealane_interop::process::Server;
use sealane_interop::site::Site;
use sealane_interop::{binary, client, eventually, need, ports, skip};
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
    assert_eq!(gateway.plain_get("/", "").text(), "ok");
    let held: Vec<_> = (0..120).map(|_| client::tcp(gateway.address)).collect();
    // One more cannot be accepted while these are there: it waits in the kernel's queue.
    let mut waiting = Wire::new(client::tcp(gateway.address));
    waiting.send(client::get("/")).expect("the kernel takes it");
    std::thread::sleep(std::time::Duration::from_millis(300));
    drop(held);
    assert_eq!(waiting.response("GET").expect("it is served after all").text(), "ok");
    assert!(gateway.metric("sealane_accept_paused_total") >= Some(1.0));
    assert!((0..20).all(|_| gateway.plain_get("/", "").text() == "ok"));
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
    let _gateway = Server::start(command, site.path());
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
    // It was not the server that failed.
    assert_eq!(failures(&metrics), before, "{metrics}");
    assert_eq!(fetch("127.0.0.1", page), "ok 200");
}
