//! Our client behind HTTP and SOCKS proxies, as a stock client is: both reach a stock server over TCP by the same lines of the
//! profile.

use crate::tunnel_profiles::stock_server;
use crate::tunnel_world::{End, INSIDE, World, said};
use sealane_interop::process::Server;
use sealane_interop::{binary, peers, skip};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// The only place where the proxies connect to.
const TARGET: &str = "10.99.0.1:1194";

/// What a proxy does with a client: `Ok` says where it is to be connected.
type Greet = fn(&mut TcpStream) -> io::Result<Option<SocketAddr>>;

/// A proxy at the server's end, until it is dropped.
struct Proxy {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    #[track_caller]
    fn start(world: &World, port: u16, greet: Greet) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let flag = ends.clone();
        // Its threads stay in the namespace in which they begin.
        let thread = world.within(End::Server, move || {
            let listener = TcpListener::bind(("10.99.0.1", port)).expect("nobody else listens here");
            listener.set_nonblocking(true).expect("a socket option");
            thread::spawn(move || {
                while !flag.load(Ordering::Relaxed) {
                    match listener.accept() {
                        Ok((client, _)) => drop(thread::spawn(move || serve(client, greet))),
                        Err(_) => thread::sleep(Duration::from_millis(20)),
                    }
                }
            })
        });
        Self { ends, thread: Some(thread) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of its own has failed the test already.
            let _ = thread.join();
        }
    }
}

/// Both directions, until both ends have closed. What goes wrong ends the connection.
fn serve(mut client: TcpStream, greet: Greet) {
    // It may have it from the listener.
    let _ = client.set_nonblocking(false);
    let Ok(Some(target)) = greet(&mut client) else { return };
    let Ok(server) = TcpStream::connect(target) else { return };
    let (Ok(mut from_client), Ok(mut to_server)) = (client.try_clone(), server.try_clone()) else { return };
    let up = thread::spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let (mut server, mut client) = (server, client);
    let _ = io::copy(&mut server, &mut client);
    let _ = client.shutdown(Shutdown::Both);
    let _ = up.join();
}

/// An HTTP proxy for `al` with the password `right`.
fn http(client: &mut TcpStream) -> io::Result<Option<SocketAddr>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    // base64 of `al:right`
    if !head.contains("\r\nProxy-Authorization: Basic YWw6cmlnaHQ=\r\n") {
        client.write_all(b"HTTP/1.0 407 Who are you\r\nProxy-Authenticate: Basic realm=\"test\"\r\n\r\n")?;
        return Ok(None);
    }
    if !head.starts_with(&format!("CONNECT {TARGET} HTTP/1.")) {
        client.write_all(b"HTTP/1.0 403 Not there\r\n\r\n")?;
        return Ok(None);
    }
    client.write_all(b"HTTP/1.0 200 Connected\r\nVia: test\r\n\r\n")?;
    Ok(TARGET.parse().ok())
}

/// A SOCKS5 proxy for `al` with the password `right`. It understands names and IPv4 addresses.
fn socks(client: &mut TcpStream) -> io::Result<Option<SocketAddr>> {
    let mut two = [0; 2];
    client.read_exact(&mut two)?;
    let mut methods = vec![0; usize::from(two[1])];
    client.read_exact(&mut methods)?;
    if !methods.contains(&2) {
        client.write_all(&[5, 0xff])?;
        return Ok(None);
    }
    client.write_all(&[5, 2])?;
    let mut login = Vec::new();
    client.read_exact(&mut two[..1])?;
    for _ in 0..2 {
        client.read_exact(&mut two[..1])?;
        let mut text = vec![0; usize::from(two[0])];
        client.read_exact(&mut text)?;
        login.push(text);
    }
    let is_right = login == [b"al".to_vec(), b"right".to_vec()];
    client.write_all(&[1, u8::from(!is_right)])?;
    if !is_right {
        return Ok(None);
    }
    let mut head = [0; 4];
    client.read_exact(&mut head)?;
    let length = match head[3] {
        3 => {
            client.read_exact(&mut two[..1])?;
            usize::from(two[0])
        }
        _ => 4,
    };
    let mut rest = vec![0; length + 2];
    client.read_exact(&mut rest)?;
    let (host, port) = rest.split_at(length);
    let is_there = (host == b"10.99.0.1" || host == [10, 99, 0, 1]) && port == 1194_u16.to_be_bytes();
    client.write_all(&[5, if is_there { 0 } else { 2 }, 0, 1, 0, 0, 0, 0, 0, 0])?;
    Ok(TARGET.parse().ok().filter(|_| is_there))
}

/// The profile of `alice`, for a stock server over TCP.
#[track_caller]
fn alice(world: &World) -> String {
    world.init("");
    world.profile("alice");
    let profile = world.read("alice.ovpn");
    let lines = profile.lines().filter(|line| !line.starts_with("remote ") && !line.starts_with("proto "));
    let lines: String = lines.map(|line| format!("{line}\n")).collect();
    format!("remote 10.99.0.1 1194 tcp-client\n{lines}")
}

/// Our client without a terminal, with these lines as its input.
fn client(world: &World, profile: &str, answers: &str) -> Server {
    world.write("tried.ovpn", profile);
    world.write("answers", answers);
    let mut command = world.command(End::Client, &peers::find("setsid").expect("util-linux has it"));
    let connect = format!("exec {} tunnel connect --dns off tried.ovpn < answers", binary::sealane().display());
    command.arg(peers::find("sh").expect("every system has one")).args(["-c", &connect]);
    Server::start(command, &world.path(""))
}

#[test]
fn proxies_are_passed_as_openvpn_passes_them() {
    let world = world!();
    let profile = alice(&world);
    let server = stock_server(&world, "proto tcp-server\ntopology subnet\n");
    let _http = Proxy::start(&world, 3128, http);
    let _socks = Proxy::start(&world, 1080, socks);
    world.write("login", "al\nright\n");
    world.write("others", "al\nwrong\n");
    let custom =
        "http-proxy-option VERSION 1.1\nhttp-proxy-option AGENT test\nhttp-proxy-option CUSTOM-HEADER X-Test yes\n";
    for lines in [
        "http-proxy 10.99.0.1 3128 login basic\n".to_owned(),
        format!("http-proxy 10.99.0.1 3128 login\n{custom}"),
        "socks-proxy 10.99.0.1 1080 login\n".to_owned(),
    ] {
        let text = format!("{profile}{lines}");
        let ours = client(&world, &text, "");
        assert!(said(&ours, "connected to"), "{lines}: {}\n{}", ours.log(), server.log());
        assert!(ours.log().contains("over TCP through the proxy 10.99.0.1"), "{lines}: {}", ours.log());
        assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 1300), 3, "{lines}: {}", ours.log());
        drop(ours);
        drop(world.connected(&world.write("stock.ovpn", &text), &[]));
    }
    // The user has the login: at once, or when the proxy wants it.
    for lines in [
        "http-proxy 10.99.0.1 3128 stdin basic\n",
        "http-proxy 10.99.0.1 3128 auto\n",
        "socks-proxy 10.99.0.1 1080 stdin\n",
    ] {
        let ours = client(&world, &format!("{profile}{lines}"), "al\nright\n");
        assert!(said(&ours, "connected to"), "{lines}: {}\n{}", ours.log(), server.log());
    }
    for (lines, message) in [
        ("http-proxy 10.99.0.1 3128 others\n", "the proxy 10.99.0.1: it refuses the user name or the password"),
        ("socks-proxy 10.99.0.1 1080 others\n", "the proxy 10.99.0.1: it refuses the user name or the password"),
        ("http-proxy 10.99.0.1 3128 auto\n", "there was no answer to \"User name for the proxy 10.99.0.1:\""),
        ("proto udp\nremote 10.99.0.1 1194 udp\nhttp-proxy 10.99.0.1 3128\n", "`http-proxy` with UDP"),
        ("remote 10.99.0.1 1194 udp\nsocks-proxy 10.99.0.1\n", "`socks-proxy` with UDP"),
    ] {
        let mut ours = client(&world, &format!("{profile}{lines}"), "");
        assert!(!ours.wait().success() && ours.log().contains(message), "{lines}: {}", ours.log());
    }
    // What may be different the next time is tried again.
    let elsewhere = profile.replace("10.99.0.1 1194", "10.99.0.1 1195");
    for (profile, lines, message) in [
        (&elsewhere, "http-proxy 10.99.0.1 3128 login\n", "it refuses the connection: 403 Not there; trying again"),
        (
            &elsewhere,
            "socks-proxy 10.99.0.1 1080 login\n",
            "it refuses the connection: it is not allowed; trying again",
        ),
        (&profile, "http-proxy 10.99.0.1 3128\n", "it wants a user name and a password: name a file with them"),
        (&profile, "http-proxy 10.99.0.1 3129\n", "Connection refused"),
    ] {
        let ours = client(&world, &format!("{profile}{lines}"), "");
        assert!(said(&ours, message), "{lines}: {}", ours.log());
    }
}
