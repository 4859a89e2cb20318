//! The service manager's side, as systemd does it: sockets passed at the start (sd_listen_fds(3)), and what the gateway
//! tells (sd_notify(3)).

use crate::operating::{Operated, Other, order};
use rustix::time::{ClockId, clock_gettime};
use sealane_interop::backend::Backend;
use sealane_interop::client::get;
use sealane_interop::http::Wire;
use sealane_interop::peers::find;
use sealane_interop::process::Server;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{WAIT_LIMIT, binary, client, eventually, need, ports, skip};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

/// Where the gateway's words arrive. They are read at once, as systemd does: its queue holds ten.
pub struct Manager(Receiver<String>);

impl Manager {
    pub fn listen(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).expect("our own folder");
        let (tell, words) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = socket.recv(&mut buffer) {
                let word = String::from_utf8_lossy(&buffer[..length]).into_owned();
                if tell.send(word).is_err() {
                    break;
                }
            }
        });
        Self(words)
    }

    pub fn hear(&self) -> String {
        self.0.recv_timeout(WAIT_LIMIT).expect("the gateway says something in time")
    }

    /// What was said already is forgotten.
    pub fn forget(&self) {
        while self.0.try_recv().is_ok() {}
    }

    /// The next word but signs of life, which come at any time.
    fn next(&self) -> String {
        loop {
            let word = self.hear();
            if word != "WATCHDOG=1\n" {
                return word;
            }
        }
    }

    fn alive(&self) -> bool {
        eventually(|| self.hear() == "WATCHDOG=1\n")
    }
}

fn monotonic_usec() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}

#[test]
fn it_hears_of_start_reload_upgrade_and_end() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let path = site.path().join("notify");
    let manager = Manager::listen(&path);
    // The watchdog's variables are for one process by its number, as systemd sets them.
    let mut command = Command::new("sh");
    command.args(["-c", "WATCHDOG_PID=$$ exec \"$0\" \"$@\""]).arg(binary::sealane());
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "100000");
    let file = |admin: &str| Operated::simple_file(&site, admin, listen, &backend.url());
    let mut gateway = Operated::start_by(&site, command, 1, file, listen);
    let ready = manager.next();
    assert!(ready.starts_with("READY=1\nSTATUS="), "{ready}");
    assert!(manager.alive());

    let good = gateway.text();
    for (text, works) in [(good.as_str(), true), ("not toml", false), (&good, true)] {
        gateway.write(text);
        let before = monotonic_usec();
        assert_eq!(order(&gateway.socket, "reload").is_ok(), works);
        let said = manager.next();
        let at = said.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").and_then(|at| at.trim_end().parse::<i64>().ok());
        assert!(at.is_some_and(|at| (before..=monotonic_usec()).contains(&at)), "{said}");
        // Good or bad, it goes on, and says how it stands.
        let ready = manager.next();
        assert!(ready.starts_with("READY=1\nSTATUS="), "{ready}");
    }

    order(&gateway.socket, "upgrade").expect("the same program can be started again");
    let other = Other::of(&gateway);
    assert_ne!(other.0.as_raw_nonzero().get() as u32, gateway.gateway.server.id());
    // The successor's own word may come before or after the old one's.
    let mut said = [manager.next(), manager.next()];
    said.sort();
    assert_eq!(said[0], format!("MAINPID={}\n", other.0.as_raw_nonzero()));
    assert!(said[1].starts_with("READY=1\n"), "{said:?}");
    assert_eq!(gateway.gateway.server.wait().code(), Some(0));
    // What the first process said is read; from here on only the second can speak.
    manager.forget();
    assert!(manager.alive(), "the successor does not feed the watchdog");
    other.terminate();
    // `drain_timeout`, and what the end takes.
    assert_eq!(manager.next(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=615000000\n");
}

/// `drain_timeout` alone says how long a stop may take: a longer one extends the unit's `TimeoutStopSec=`.
#[test]
fn it_waits_as_long_as_drain_timeout() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let path = site.path().join("notify");
    let manager = Manager::listen(&path);
    let mut command = Command::new(binary::sealane());
    command.env("NOTIFY_SOCKET", &path);
    let file = |admin: &str| Operated::simple_file(&site, admin, listen, &backend.url());
    let gateway = Operated::start_by(&site, command, 1, file, listen);
    assert!(manager.next().starts_with("READY=1\n"));
    let text = gateway.text();
    gateway.write(&text.replacen("drain_timeout = \"10m\"", "drain_timeout = \"20m\"", 1));
    assert_ne!(gateway.text(), text);
    order(&gateway.socket, "reload").expect("the file is good");
    assert!(manager.next().starts_with("RELOADING=1\n") && manager.next().starts_with("READY=1\n"));
    order(&gateway.socket, "drain").expect("it serves");
    // The value that was loaded last.
    assert_eq!(manager.next(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=1215000000\n");
}

/// The service goes on as another process, whatever ends the old one.
#[test]
fn the_old_process_of_an_upgrade_does_not_say_that_the_service_stops() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let path = site.path().join("notify");
    let manager = Manager::listen(&path);
    let mut command = Command::new(binary::sealane());
    command.env("NOTIFY_SOCKET", &path);
    let file = |admin: &str| Operated::simple_file(&site, admin, listen, &backend.url());
    let mut gateway = Operated::start_by(&site, command, 1, file, listen);
    let mut idle = gateway.gateway.connect();
    idle.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    assert_eq!(idle.response("GET").expect("it answers").text(), "hello");
    order(&gateway.socket, "upgrade").expect("the same program can be started again");
    let other = Other::of(&gateway);
    assert!(gateway.gateway.server.running(), "an idle connection stays with it");
    gateway.gateway.server.terminate();
    assert_eq!(idle.rest().0, b"", "there is a hurry now");
    assert_eq!(gateway.gateway.server.wait().code(), Some(0));
    // All that was said until now, then what the successor says at its own end.
    let marker = UnixDatagram::unbound().expect("a socket can be had");
    marker.send_to(b"marker", &path).expect("it is listened on");
    let said: Vec<String> = std::iter::from_fn(|| Some(manager.next())).take_while(|word| word != "marker").collect();
    assert!(said.iter().any(|word| word.starts_with("MAINPID=")), "{said:?}");
    assert!(!said.iter().any(|word| word.contains("STOPPING=1")), "{said:?}");
    other.terminate();
    assert!(manager.next().starts_with("STOPPING=1\n"));
}

/// Opens what systemd would and becomes the program: two listeners on the first address (SO_REUSEPORT), one on the
/// second, and a UDP socket.
const ACTIVATE: &str = "
import os, socket, sys
def split(text):
    host, port = text.rsplit(':', 1)
    return host, int(port)
def tcp(address):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(address)
    s.listen(64)
    return s
first, second = split(sys.argv[1]), split(sys.argv[2])
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(second)
sockets = [tcp(first), tcp(first), tcp(second), udp]
# Out of the way of the numbers that they are to have.
high = [os.dup2(s.fileno(), 100 + i) for i, s in enumerate(sockets)]
for i, fd in enumerate(high):
    os.dup2(fd, 3 + i, inheritable=True)
    os.close(fd)
os.environ['LISTEN_FDS'] = str(len(high))
os.environ['LISTEN_PID'] = str(os.getpid())
os.execv(sys.argv[3], sys.argv[3:])
";

/// A client that has connected before there is a gateway.
fn early(address: SocketAddr) -> Option<TcpStream> {
    let mut socket = None;
    eventually(|| {
        socket = TcpStream::connect(address).ok();
        socket.is_some()
    });
    socket
}

fn answered(socket: TcpStream, site: &Site) {
    socket.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout above zero is allowed");
    let config = std::sync::Arc::new(client::config(&site.ca));
    let stream = client::handshake(socket, &config, HOST).expect("the gateway takes who waited");
    let mut wire = Wire::new(stream);
    wire.send(get("/")).expect("the gateway reads");
    assert_eq!(wire.response("GET").expect("it answers").text(), "hello");
}

#[test]
fn sockets_that_are_passed_are_served() {
    let python = need!("python3");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (listen, unknown) = (ports::free(), ports::free());
    let mut command = Command::new(python);
    command.args(["-c", ACTIVATE, &listen.to_string(), &unknown.to_string()]).arg(binary::sealane());
    let file = |admin: &str| Operated::simple_file(&site, admin, listen, &backend.url());
    // Three lanes on two sockets: the third is opened beside them.
    let mut gateway = Operated::start_by(&site, command, 3, file, listen);
    let log = gateway.gateway.server.log();
    assert!(log.contains("is not a TCP listener and is not used"), "{log}");
    assert!(log.contains(&format!("passed a socket for {unknown}, but no listener has this address")), "{log}");
    assert!(eventually(|| TcpStream::connect(unknown).is_err()), "nobody serves it, so nobody may be let in");
    // Every lane has its turn.
    let served = |lane: &serde_json::Value| lane["counters"]["requests"].as_u64();
    let all = || gateway.status()["lanes"].as_array().is_some_and(|l| l.iter().all(|lane| served(lane) > Some(0)));
    assert!(
        eventually(|| {
            assert_eq!(gateway.get("/").text(), "hello");
            all()
        }),
        "{}",
        gateway.status()
    );
    assert_eq!(order(&gateway.socket, "reload").expect("the file is good"), "reloaded\n");
    assert_eq!(gateway.get("/").text(), "hello");
    // The successor has them from us, and takes the variables that it has inherited as well for none of its business.
    order(&gateway.socket, "upgrade").expect("the same program can be started again");
    let _other = Other::of(&gateway);
    assert_eq!(gateway.gateway.server.wait().code(), Some(0));
    for _ in 0..10 {
        assert_eq!(gateway.get("/").text(), "hello");
    }
}

/// With systemd's own program, which starts the gateway when the first client has come.
#[test]
fn the_first_client_starts_it() {
    let Some(activate) = find("systemd-socket-activate") else {
        skip!("`systemd-socket-activate` is not installed (Debian's package systemd)")
    };
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let file = site.file("sealane.toml", Operated::simple_file(&site, "lanes = 2\n", listen, &backend.url()));
    let mut command = Command::new(activate);
    command.args(["-l", &listen.to_string()]).arg(binary::sealane()).arg("serve").arg("-c").arg(file);
    let mut server = Server::start(command, site.path());
    let clients: Vec<TcpStream> = (0..5).filter_map(|_| early(listen)).collect();
    assert_eq!(clients.len(), 5, "{}", server.log());
    for client in clients {
        answered(client, &site);
    }
    server.terminate();
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
}

/// systemd has nothing to say about the units that we ship.
#[test]
fn the_units_are_valid() {
    let analyze = need!("systemd-analyze");
    let site = Site::new();
    let packaging = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let units = ["systemd/sealane.service", "systemd/sealane.socket", "systemd/sealane-client@.service"].map(|unit| {
        let text = std::fs::read_to_string(packaging.join(unit)).expect("it is part of the source");
        // It is not installed here.
        site.file(
            unit.trim_start_matches("systemd/"),
            text.replace("/usr/bin/sealane", &binary::sealane().display().to_string()),
        )
    });
    let output = Command::new(analyze).args(["verify", "--man=no"]).args(&units).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    // About units of the machine's own it may have something to say.
    let ours: Vec<&str> =
        said.lines().filter(|line| line.contains("sealane.") || line.contains("sealane-client@")).collect();
    assert!(ours.is_empty(), "{ours:?}");
}

/// How exposed systemd considers the service, in tenths: 0 is nothing, 100 everything.
#[test]
fn the_service_is_confined() {
    let analyze = need!("systemd-analyze");
    let packaging = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let read = |file| std::fs::read_to_string(packaging.join(file)).expect("it is part of the source");
    let exposure = |unit: String| {
        let site = Site::new();
        let unit = site.file("sealane.service", unit);
        let output = Command::new(&analyze).args(["security", "--offline=true"]).arg(unit).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let figure =
            said.lines().find_map(|line| line.split_once("sealane.service: ")).map(|(_, rest)| rest.to_owned());
        let figure = figure.and_then(|rest| rest.split_whitespace().next()?.replace('.', "").parse::<u32>().ok());
        figure.unwrap_or_else(|| panic!("{said} {}", String::from_utf8_lossy(&output.stderr)))
    };
    let service = read("systemd/sealane.service");
    let tunnel = read("openvpn/service.conf");
    // As if the drop-in's settings stood in the unit.
    let settings = tunnel.split_once("[Service]").expect("it has that section").1;
    let with_tunnel = service.replace("[Install]", &format!("{settings}\n[Install]"));
    assert!(exposure(service) <= 15);
    assert!(exposure(with_tunnel) <= 30);
    assert!(exposure(read("systemd/sealane-client@.service")) <= 30);
}
