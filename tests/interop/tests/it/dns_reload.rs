//! Names of servers while a configuration is read: names that do not resolve, DNS servers that are silent or slow, TTLs,
//! search domains, and what `to` makes of a host's routes.

use crate::operating::{Operated, Other, order};
use crate::service_manager::Manager;
use rustix::process::geteuid;
use sealane_control::admin::ask::{Where, ask};
use sealane_interop::backend::Backend;
use sealane_interop::gateway::{configured, run};
use sealane_interop::peers::find;
use sealane_interop::site::Site;
use sealane_interop::{WAIT_LIMIT, binary, client, eventually, ports, skip};
use std::collections::{BTreeSet, HashMap};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a name has.
#[derive(Clone)]
struct Record {
    addresses: Vec<Ipv4Addr>,
    ttl: u32,
    /// The answer is sent so much later.
    after: Duration,
}

/// A DNS server that knows some names, is silent about those that begin with "silent", and says of all others that they
/// are not.
struct NameServer {
    address: SocketAddr,
    names: Arc<Mutex<HashMap<String, Record>>>,
    /// It answers about names that begin with "silent", too: they are this machine.
    speaks: Arc<AtomicBool>,
}

impl NameServer {
    fn start() -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into()).expect("a loopback port can be had")
    }

    fn at(address: SocketAddr) -> std::io::Result<Self> {
        let socket = Arc::new(UdpSocket::bind(address)?);
        let address = socket.local_addr()?;
        let names: Arc<Mutex<HashMap<String, Record>>> = Arc::default();
        let speaks = Arc::new(AtomicBool::new(false));
        let (known, all) = (names.clone(), speaks.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let question = buffer[..length].to_vec();
                let (name, end) = name(&question);
                let is_silent = name.starts_with("silent");
                if is_silent && !all.load(Ordering::SeqCst) {
                    continue;
                }
                let is_a = question[end..end + 2] == [0, 1];
                let known = known.lock().expect("nobody panics with it").get(&name).cloned();
                let here = || Record { addresses: vec![Ipv4Addr::LOCALHOST], ttl: 60, after: Duration::ZERO };
                let record = known.or_else(|| is_silent.then(here));
                let code = if record.is_some() { 0 } else { 3 };
                let mut answer = question[..end + 4].to_vec();
                let found = record.as_ref().filter(|_| is_a).map_or(&[][..], |r| &r.addresses);
                // One question; so many answers; nothing else, whatever the question came with.
                answer[2..12].copy_from_slice(&[0x81, 0x80 | code, 0, 1, 0, found.len() as u8, 0, 0, 0, 0]);
                for ip in found {
                    // A pointer to the name asked for, A, IN, the TTL, four bytes.
                    answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1]);
                    answer.extend_from_slice(&record.as_ref().map_or(0, |r| r.ttl).to_be_bytes());
                    answer.extend_from_slice(&[0, 4]);
                    answer.extend_from_slice(&ip.octets());
                }
                let (socket, after) = (socket.clone(), record.map_or(Duration::ZERO, |r| r.after));
                std::thread::spawn(move || {
                    std::thread::sleep(after);
                    let _ = socket.send_to(&answer, from);
                });
            }
        });
        Ok(Self { address, names, speaks })
    }

    fn say(&self, name: &str, ip: Ipv4Addr, after: Duration) {
        let record = Record { addresses: vec![ip], ttl: 1, after };
        self.names.lock().expect("nobody panics with it").insert(name.to_owned(), record);
    }
}

/// The name that a question is about, and where its type stands.
fn name(question: &[u8]) -> (String, usize) {
    let (mut at, mut labels) = (12, Vec::new());
    while question[at] != 0 {
        let length = usize::from(question[at]);
        labels.push(String::from_utf8_lossy(&question[at + 1..=at + length]).to_lowercase());
        at += length + 1;
    }
    (labels.join("."), at + 1)
}

/// A GET without TLS for a host, and what came of it.
fn ask_host(gateway: &sealane_interop::gateway::Gateway, host: &str, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let answer = gateway.plain(request).unwrap_or_else(|broken| panic!("{host}{path}: {broken:?}"));
    (answer.status(), answer.text())
}

/// Samples of `/metrics`, each with all its labels, but not its value.
fn series(metrics: &str) -> Vec<&str> {
    metrics.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.rsplit_once(' ')).map(|(s, _)| s).collect()
}

#[test]
fn a_reload_with_silent_names_stops_no_heartbeat() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let dns = NameServer::start();
    let listen = ports::free();
    let path = site.path().join("notify");
    let manager = Manager::listen(&path);
    let mut command = Command::new("sh");
    command.args(["-c", "WATCHDOG_PID=$$ exec \"$0\" \"$@\""]).arg(binary::sealane());
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "100000");
    let file = |admin: &str| Operated::simple_file(&site, admin, listen, &backend.url());
    let gateway = Operated::start_by(&site, command, 1, file, listen);

    let mut text = format!("resolver = \"{}\"\n{}", dns.address, gateway.text());
    for n in 0..5 {
        text += &format!("[[host]]\nnames = [\"{n}.example\"]\nto = [\"http://silent{n}.example.test:81\"]\n");
    }
    gateway.write(&text);
    let socket = gateway.socket.clone();
    let reload = std::thread::spawn(move || order(&socket, "reload").map_err(|e| format!("{e:#}")));
    // What it tells between the reload's start and its end: signs of life, and answers to queries.
    let (mut begun, mut beats, mut answers) = (false, 0, 0);
    loop {
        let word = manager.hear();
        match () {
            () if word.starts_with("RELOADING=1") => begun = true,
            () if word.starts_with("READY=1") && begun => break,
            () if word == "WATCHDOG=1\n" && begun => {
                beats += 1;
                if beats < 4 {
                    ask(&Where::Socket(gateway.socket.clone()), "GET", "/v1/status", WAIT_LIMIT).expect("it answers");
                    answers += 1;
                }
            }
            () => {}
        }
    }
    assert!(beats >= 3 && answers >= 3, "{beats} signs of life, {answers} answers while it read the configuration");
    assert_eq!(reload.join().expect("it does not panic"), Ok("reloaded\n".to_owned()));
    let log = gateway.gateway.server.log();
    assert!(log.contains("\"silent3.example.test\" does not resolve"), "{log}");
    // The servers without an address are down, and say why; the others serve.
    assert_eq!(gateway.get("/").text(), "hello");
    let down = gateway.gateway.metric_with("sealane_server_up", "server=\"silent3.example.test:81\"");
    assert_eq!(down, Some(0.0));
    let status = gateway.status().to_string();
    assert!(status.contains("down: its name does not resolve"), "{status}");

    // An upgrade has the second process wait for the same names. The first one answers for the service until the second serves.
    let unresolved = || gateway.gateway.server.log().matches("\"silent3.example.test\" does not resolve").count();
    let before = unresolved();
    manager.forget();
    let socket = gateway.socket.clone();
    let upgrade = std::thread::spawn(move || order(&socket, "upgrade").map_err(|e| format!("{e:#}")));
    let (mut beats, mut answers) = (0, 0);
    while !upgrade.is_finished() {
        if manager.hear() != "WATCHDOG=1\n" || !gateway.gateway.server.has_child() {
            continue;
        }
        beats += 1;
        if answers < 3 {
            ask(&Where::Socket(gateway.socket.clone()), "GET", "/v1/status", WAIT_LIMIT).expect("it answers");
            answers += 1;
        }
    }
    let upgraded = upgrade.join().expect("it does not panic");
    let _other = Other::of(&gateway);
    assert!(upgraded.is_ok(), "{upgraded:?}: {}", gateway.gateway.server.log());
    assert!(
        beats >= 10 && answers >= 3,
        "{beats} signs of life, {answers} answers while the second process read the names"
    );
    assert!(unresolved() > before, "the second process did not wait for the names");
    assert_eq!(gateway.get("/").text(), "hello");
}

/// Ten times as many names as are looked up at a time, none of which gets an answer: the reload ends, others are served meanwhile, and
/// all names are found when the name server answers.
#[test]
fn ten_times_as_many_silent_names_as_lookups() {
    const NAMES: usize = 640;
    let site = Site::new();
    let backend = Backend::saying("hello");
    let dns = NameServer::start();
    let listen = ports::free();
    let file = |admin: &str| Operated::simple_file(&site, admin, listen, &backend.url());
    let gateway = Operated::start(&site, 1, file, listen);
    let before = gateway.gateway.server.resident();
    let mut text = format!("resolver = \"{}\"\n{}", dns.address, gateway.text());
    let port = backend.address.port();
    for n in 0..NAMES {
        text += &format!(
            "[[host]]\nnames = [\"{n}.example\"]\nupstream = \"u{n}\"\n[[upstream]]\nname = \"u{n}\"\n\
             servers = [\"http://silent{n}.example.test:{port}\"]\nresolve_interval = \"1s\"\n"
        );
    }
    gateway.write(&text);
    let socket = gateway.socket.clone();
    let reload = std::thread::spawn(move || order(&socket, "reload").map_err(|e| format!("{e:#}")));
    while !reload.is_finished() {
        assert_eq!(gateway.get("/").text(), "hello");
    }
    assert_eq!(reload.join().expect("it does not panic"), Ok("reloaded\n".to_owned()));
    let up = || gateway.gateway.metric_with("sealane_server_up", "server=\"silent");
    assert_eq!(up(), Some(0.0));
    let failures = || gateway.gateway.metric("sealane_dns_failures_total");
    assert!(eventually(|| failures() >= Some(64.0)), "{:?}", failures());
    assert_eq!(gateway.get("/").text(), "hello");
    if let (Some(before), Some(after)) = (before, gateway.gateway.server.resident()) {
        // What the hosts themselves take is in it.
        assert!(after < before + (64 << 20), "{before} to {after} bytes");
    }
    dns.speaks.store(true, Ordering::SeqCst);
    assert!(eventually(|| up() == Some(NAMES as f64)), "{:?} of {NAMES} are up", up());
    assert_eq!(gateway.get("/").text(), "hello");
}

#[test]
fn a_name_that_does_not_resolve_prevents_no_start() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let dns = NameServer::start();
    let port = backend.address.port();
    let text = format!(
        "resolver = \"{}\"\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n\
         [[host]]\nnames = [\"good.example\"]\nto = [\"{}\"]\n\
         [[host]]\nnames = [\"late.example\"]\nto = [\"http://late.example.test:{port}\"]\n",
        dns.address,
        backend.url()
    );
    // It is worth a warning, with its place.
    let file = site.file("late.toml", text.replace("@ADMIN@", "127.0.0.1:0").replace("@ADDRESS@", "127.0.0.1:0"));
    let checked = run([&"check".into(), &"-c".into(), &file.into_os_string()]);
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.success(), "{said}");
    assert!(said.contains("late.toml:11:7: warning: \"late.example.test\" does not resolve"), "{said}");

    let gateway = configured(&site, &text);
    assert_eq!(ask_host(&gateway, "good.example", "/"), (200, "hello".to_owned()));
    assert_eq!(ask_host(&gateway, "late.example", "/").0, 503);
    let up = || gateway.metric_with("sealane_server_up", "late.example.test");
    assert_eq!(up(), Some(0.0));
    dns.say("late.example.test", Ipv4Addr::LOCALHOST, Duration::ZERO);
    assert!(eventually(|| ask_host(&gateway, "late.example", "/") == (200, "hello".to_owned())));
    assert_eq!(up(), Some(1.0));
}

#[test]
fn each_to_has_its_own_answers_and_series() {
    let site = Site::new();
    let dns = NameServer::start();
    let ips = [21, 22, 23, 24].map(|n| Ipv4Addr::new(127, 0, 0, n));
    let port = crate::dns::servers(&ips);
    let (quick, slow) = (Duration::ZERO, Duration::from_millis(300));
    dns.say("quick.example.test", ips[0], quick);
    dns.say("slow.example.test", ips[1], slow);
    let gateway = configured(
        &site,
        &format!(
            "resolver = \"{}\"\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n\
             [[host]]\nnames = [\"a.example\"]\nto = [\"http://quick.example.test:{port}\", \"http://quick.example.test:{port}\"]\n\
             [[host.route]]\npath = \"/slow\"\nto = [\"http://slow.example.test:{port}\"]\n\
             [[host.route]]\npath = \"/slow\"\nmethods = [\"PUT\"]\nto = [\"http://slow.example.test:{port}\"]\n\
             [[host.route]]\nmethods = [\"DELETE\"]\nto = [\"http://slow.example.test:{port}\"]\n",
            dns.address
        ),
    );
    let who = |path: &str| ask_host(&gateway, "a.example", path).1;
    assert_eq!((who("/"), who("/slow")), (ips[0].to_string(), ips[1].to_string()));
    let metrics = gateway.metrics();
    let all = series(&metrics);
    let once: BTreeSet<&str> = all.iter().copied().collect();
    assert_eq!(all.len(), once.len(), "a series is there twice:\n{metrics}");
    assert!(metrics.contains("upstream=\"host a.example /slow\""), "{metrics}");
    // Every group takes in its own answer, whichever came first; a second after the last one, as the TTL says.
    dns.say("quick.example.test", ips[2], quick);
    dns.say("slow.example.test", ips[3], slow);
    assert!(eventually(|| who("/") == ips[2].to_string()));
    assert!(eventually(|| who("/slow") == ips[3].to_string()), "{}", gateway.server.log());
}

#[test]
fn a_successor_uses_what_its_predecessor_knew() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let dns = NameServer::start();
    dns.say("app.example.test", Ipv4Addr::LOCALHOST, Duration::ZERO);
    let listen = ports::free();
    let to = format!("http://app.example.test:{}", backend.address.port());
    let file =
        |admin: &str| format!("resolver = \"{}\"\n{}", dns.address, Operated::simple_file(&site, admin, listen, &to));
    let mut gateway = Operated::start(&site, 1, file, listen);
    assert_eq!(gateway.get("/").text(), "hello");
    dns.names.lock().expect("nobody panics with it").clear();
    order(&gateway.socket, "upgrade").unwrap_or_else(|e| panic!("{e:#}: {}", gateway.gateway.server.log()));
    let _other = Other::of(&gateway);
    assert_eq!(gateway.gateway.server.wait().code(), Some(0));
    assert_eq!(gateway.get("/").text(), "hello");
    assert_eq!(order(&gateway.socket, "reload").expect("the file is good"), "reloaded\n");
    assert_eq!(gateway.get("/").text(), "hello");
}

/// With a resolv.conf of its own: search domains are followed by DNS and by the system's resolver alike.
#[test]
fn search_domains_are_followed() {
    if !geteuid().is_root() {
        skip!("needs root, for a file system of its own");
    }
    let Some(unshare) = find("unshare") else { skip!("there is no unshare") };
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let server = Ipv4Addr::new(127, 79, high, low.max(1));
    let dns = match NameServer::at((server, 53).into()) {
        Ok(dns) => dns,
        Err(e) => skip!("no DNS server at {server}: {e}"),
    };
    dns.say("app.inner.example.test", Ipv4Addr::LOCALHOST, Duration::ZERO);
    let site = Site::new();
    let backend = Backend::saying("hello");
    let resolv =
        site.file("resolv.conf", format!("nameserver {server}\nsearch outer.example.test inner.example.test\n"));
    for resolver in ["", "resolver = \"dns\"\n", "resolver = \"system\"\n"] {
        let (listen, admin) = (ports::free(), ports::free());
        let file = site.file(
            "search.toml",
            format!(
                "{resolver}[admin]\nlisten = \"{admin}\"\n[[listener]]\naddress = \"{listen}\"\n[[host]]\nnames = [\"*\"]\n\
                 to = [\"http://app:{}\"]\n",
                backend.address.port()
            ),
        );
        let mut command = Command::new(&unshare);
        command.args(["-m", "sh", "-c", "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\""]);
        command.arg(&resolv).arg(binary::sealane()).arg("serve").arg("-c").arg(&file);
        let gateway = sealane_interop::gateway::launch(&site, command, listen, admin);
        assert!(
            eventually(|| ask_host(&gateway, "a.example", "/").1 == "hello"),
            "{resolver}: {}",
            gateway.server.log()
        );
        drop(client::tcp(listen));
    }
}
