//! Memory and connections are shared: who holds the most gives it back when it is short, and a client's connections are
//! counted whatever they speak.

use rustix::process::{Pid, Signal, geteuid, kill_process};
use sealane_http::BodyLength;
use sealane_interop::backend::{Backend, ok};
use sealane_interop::frames::{Frames, kind};
use sealane_interop::gateway::{Gateway, Setup, before, configured, launch};
use sealane_interop::h3::{self, Client, Failure, over_quic};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{binary, client, eventually, h2, h3_server, need, ports, skip};
use std::net::SocketAddr;
use std::process::Command;

/// A hundred responses to a client that takes none of them, while memory is short.
fn stalled_responses_are_given_up(setup: Setup<'_>) {
    let gateway = setup.plain().listener("h2c = true").limits("max_memory = \"1MiB\"").start();
    let mut kept = Wire::new(client::tcp(gateway.address));
    let mut ask = || {
        kept.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("a kept connection is read");
        assert_eq!(kept.response("GET").expect("it is answered").text(), "hello");
    };
    ask();
    let mut frames = Frames::plain(gateway.address, &[(4, 0)]);
    for stream in 0..100 {
        let _ = frames.request(2 * stream + 1, "GET", "/large", &[], true);
    }
    let resets = || gateway.metric("sealane_memory_resets_total");
    assert!(eventually(|| resets() >= Some(1.0)), "{}", gateway.metrics());
    // Who holds little is not asked to give it back.
    ask();
    assert_eq!(resets(), Some(1.0));
    assert!(frames.find(|_| false).is_none(), "its connection is over");
}

/// The body for a path.
fn body(path: &[u8]) -> Vec<u8> {
    if path == b"/" { b"hello".to_vec() } else { vec![b'x'; 256 << 10] }
}

#[test]
fn stalled_responses_are_given_up_when_memory_is_short() {
    let site = Site::new();
    let backend = Backend::answering(|request| ok(&body(request.target().as_bytes())));
    stalled_responses_are_given_up(before(&site, [backend.url()]));
}

/// What waits with a connection to a server that other clients use, too, is counted for the client that takes nothing.
#[test]
fn stalled_responses_of_http2_servers_are_given_up_when_memory_is_short() {
    let site = Site::new();
    let server = h2::Server::start(|(request, mut respond)| async move {
        h2::say(&mut respond, &body(request.uri().path().as_bytes()));
    });
    stalled_responses_are_given_up(before(&site, [server.url()]).upstream("http = \"2\""));
}

#[test]
fn stalled_responses_of_http3_servers_are_given_up_when_memory_is_short() {
    let site = Site::new();
    let server = h3_server::Server::start(&site.ecdsa, |mut asked| async move {
        let body = body(asked.head.target());
        asked.respond(200, &[], BodyLength::Known(body.len() as u64)).await;
        asked.data(&body).await;
        asked.finish().await;
    });
    let setup = before(&site, [server.url()]).upstream("http = \"3\"");
    stalled_responses_are_given_up(setup.upstream_tls(&format!("ca = {:?}", site.ca)));
}

/// H3_EXCESSIVE_LOAD (RFC 9114 §8.1).
const EXCESSIVE_LOAD: u64 = 0x107;

/// What a client does not acknowledge of a response waits with the QUIC connection, whether its windows are open or not.
#[test]
fn stalled_responses_over_http3_are_given_up_when_memory_is_short() {
    let site = Site::new();
    let backend = Backend::answering(|request| ok(&body(request.target().as_bytes())));
    let setup = before(&site, [backend.url()]).listener("http3 = true").limits("max_memory = \"1MiB\"");
    let gateway = setup.start();
    let config = over_quic(gateway.config(), false);
    let mut kept = Client::connect(gateway.address, &config);
    assert_eq!(kept.get("/").body, b"hello");
    let mut stalled: Vec<Client> = (0..10).map(|_| Client::connect_wide(gateway.address, &config)).collect();
    for client in &mut stalled {
        client.open_silently(&h3::headers("GET", "/large", &[], BodyLength::None));
        client.pump_once();
    }
    let resets = || gateway.metric("sealane_memory_resets_total");
    assert!(eventually(|| resets() >= Some(10.0)), "{}", gateway.metrics());
    // Who holds little is not asked to give it back, and another client is served.
    assert_eq!(kept.get("/").body, b"hello");
    assert_eq!(Client::connect(gateway.address, &config).get("/").body, b"hello");
    assert_eq!(resets(), Some(10.0));
    for client in &mut stalled {
        assert!(client.until(|client| client.lost.is_some()), "its connection is over");
        assert_eq!(client.failure(), Failure::Closed(EXCESSIVE_LOAD));
    }
}

/// A gateway that is short of memory, and asks a server that does not answer whether requests without a cookie may pass. The
/// address over which it speaks HTTP/3.
fn asks_in_vain(site: &Site) -> (Gateway, SocketAddr, Backend) {
    let quic = ports::free();
    let silent = Backend::start(|mut connection| {
        while let Some(request) = connection.request() {
            if request.header("cookie").is_none() {
                // Until the gateway gives up.
                let _ = connection.wire.rest();
                return;
            }
            connection.send("HTTP/1.1 204 No Content\r\n\r\n");
        }
    });
    let text = both_transports("max_memory = \"1MiB\"", quic, site);
    let text = text.replace("address = \"@ADDRESS@\"\n", "address = \"@ADDRESS@\"\nh2c = true\n");
    let ask = "forward_auth = { upstream = \"auth\", path = \"/verify\" }";
    let text = format!("{text}{ask}\n[[upstream]]\nname = \"auth\"\nservers = {:?}\n", silent.url());
    (configured(site, &text), quic, silent)
}

/// What a client has sent and nobody takes waits with it, whatever it speaks.
#[test]
fn stalled_uploads_over_http2_are_given_up_when_memory_is_short() {
    let site = Site::new();
    let (gateway, _, _silent) = asks_in_vain(&site);
    let mut kept = Frames::plain(gateway.address, &[]);
    let mut number = 0;
    let mut ask = |kept: &mut Frames<_>| {
        number += 1;
        kept.request(2 * number - 1, "GET", "/", &[("cookie", "a=b")], true).expect("a kept connection is read");
        let response = kept.find(|f| f.kind == kind::DATA).expect("it is answered");
        assert_eq!(response.payload, b"hello");
    };
    ask(&mut kept);
    let mut stalled = Frames::plain(gateway.address, &[]);
    // Within the windows that a client has before it knows of others.
    for stream in [1, 3, 5, 7] {
        stalled.request(stream, "POST", "/", &[], false).expect("the gateway reads");
        for _ in 0..3 {
            let _ = stalled.send(kind::DATA, 0, stream, &[b'x'; 16 << 10]);
        }
    }
    let resets = || gateway.metric("sealane_memory_resets_total");
    assert!(eventually(|| resets() >= Some(1.0)), "{}", gateway.metrics());
    ask(&mut kept);
    assert_eq!(resets(), Some(1.0));
    assert!(stalled.find(|_| false).is_none(), "its connection is over");
}

#[test]
fn stalled_uploads_over_http3_are_given_up_when_memory_is_short() {
    let site = Site::new();
    let (gateway, quic, _silent) = asks_in_vain(&site);
    let config = over_quic(gateway.config(), false);
    let mut kept = Client::connect(quic, &config);
    let head = |method: &str, fields: &[(&str, &str)]| h3::headers(method, "/", fields, BodyLength::None);
    let mut ask = || {
        let response = kept.exchange(&head("GET", &[("cookie", "a=b")]), b"").expect("it is answered");
        assert_eq!(response.body, b"hello");
    };
    ask();
    let mut stalled = Client::connect(quic, &config);
    stalled.open(&[head("POST", &[]), h3::data(&[b'x'; 128 << 10])].concat(), false);
    assert!(stalled.until(|client| client.lost.is_some()), "its connection is over: {}", gateway.metrics());
    assert_eq!(stalled.failure(), Failure::Closed(EXCESSIVE_LOAD));
    ask();
    assert_eq!(gateway.metric("sealane_memory_resets_total"), Some(1.0));
}

#[test]
fn a_client_has_so_many_connections_whatever_they_speak() {
    let site = Site::new();
    let (quic, (cert, key)) = (ports::free(), (site.ecdsa.cert.display(), site.ecdsa.key.display()));
    let text = format!(
        "lanes = 2\n[admin]\nlisten = \"@ADMIN@\"\n[limits]\nmax_connections_per_client = 4\n\
         [[listener]]\naddress = \"@ADDRESS@\"\nh2c = true\n\
         [[listener]]\naddress = \"{quic}\"\nhttp3 = true\n[listener.tls]\n\
         certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
         [[host]]\nnames = [\"*\"]\nrespond = {{ body = \"hello\" }}\n"
    );
    let gateway = configured(&site, &text);
    let open = || gateway.metric("sealane_connections_open");
    assert!(eventually(|| open() == Some(0.0)));
    let served = || {
        let mut wire = Wire::new(client::tcp(gateway.address));
        let _ = wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n"));
        wire.response("GET").is_ok().then_some(wire)
    };
    let mut one = vec![served().expect("the first"), served().expect("the second")];
    let mut two = Frames::plain(gateway.address, &[]);
    two.request(1, "GET", "/", &[], true).expect("the gateway reads");
    assert!(two.find(|f| f.kind == kind::DATA).is_some(), "the third");
    let config = over_quic(gateway.config(), false);
    let mut three = Client::connect(quic, &config);
    assert_eq!(three.get("/").status, 200);
    // That was the fourth.
    assert!(served().is_none());
    let mut refused = Client::begin(quic, &config);
    assert!(refused.until(|c| c.lost.is_some()), "it is refused");
    assert!(gateway.metric_with("sealane_rate_limited_total", "what=\"open_connection\"") >= Some(2.0));
    // Other clients are not concerned, and one that leaves makes room.
    let from = client::tcp_from(std::net::Ipv4Addr::new(127, 0, 0, 9), gateway.address);
    let mut other = Wire::new(from);
    other.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    assert!(other.response("GET").is_ok());
    three.close();
    assert!(eventually(|| served().is_some()), "{}", gateway.metrics());
    one.clear();
    assert!(eventually(|| served().is_some()), "{}", gateway.metrics());
}

/// A listener of both transports, with these limits, at one lane.
fn both_transports(limits: &str, quic: SocketAddr, site: &Site) -> String {
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    format!(
        "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[limits]\n{limits}\n\
         [[listener]]\naddress = \"@ADDRESS@\"\n\
         [[listener]]\naddress = \"{quic}\"\nhttp3 = true\n[listener.quic]\nretry_above = 1000\n[listener.tls]\n\
         certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
         [[host]]\nnames = [\"*\"]\nrespond = {{ body = \"hello\" }}\n"
    )
}

/// A connection over QUIC that ends makes room for one over TCP, where accepting has paused.
#[test]
fn clients_over_tcp_get_the_places_that_clients_over_quic_leave() {
    let (site, quic) = (Site::new(), ports::free());
    let gateway = configured(&site, &both_transports("max_connections = 1", quic, &site));
    assert!(eventually(|| gateway.metric("sealane_connections_open") == Some(0.0)));
    let mut holder = Client::connect(quic, &over_quic(gateway.config(), false));
    assert_eq!(holder.get("/").status, 200);
    let mut waiting = Wire::new(client::tcp(gateway.address));
    waiting.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the kernel takes it");
    let paused = || gateway.metric_with("sealane_accept_paused_total", "reason=\"max_connections\"");
    assert!(eventually(|| paused() >= Some(1.0)), "{}", gateway.metrics());
    holder.close();
    let response = waiting.response("GET").expect("it is accepted now");
    assert_eq!(response.text(), "hello");
}

/// First packets that wait in one turn each find a place, and must not all take it.
#[test]
fn connections_over_quic_that_begin_at_once_take_no_more_places_than_there_are() {
    let (site, quic) = (Site::new(), ports::free());
    let gateway = configured(&site, &both_transports("max_connections_per_client = 4", quic, &site));
    assert!(eventually(|| gateway.metric("sealane_connections_open") == Some(0.0)));
    let config = over_quic(gateway.config(), false);
    // While the gateway stands still, all of them arrive.
    let pid = Pid::from_raw(gateway.server.id() as i32).expect("it runs");
    kill_process(pid, Signal::STOP).expect("it is ours");
    let mut clients: Vec<Client> = (0..40).map(|_| Client::begin(quic, &config)).collect();
    clients.iter_mut().for_each(Client::pump_once);
    kill_process(pid, Signal::CONT).expect("it is ours");
    let established = clients.iter_mut().map(Client::establish).filter(|is_good| *is_good).count();
    let lost = clients.iter().filter(|client| client.lost.is_some()).count();
    assert_eq!((established, lost), (4, 36), "{}", gateway.metrics());
}

/// Bytes on a line of `/proc/meminfo`.
fn of_machine() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("it is Linux");
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("it is told");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// What a gateway says that it may use, once it has looked.
fn limit_of(gateway: &Gateway) -> u64 {
    let limit = || gateway.metric("sealane_memory_limit_bytes");
    assert!(eventually(|| limit().is_some()), "{}", gateway.metrics());
    limit().expect("it was there") as u64
}

/// Without `max_memory`, it is three quarters of the machine's memory, or nine tenths of the control group's if that is less. The group's
/// limit is put where the kernel would show it, in a file system of the gateway's own.
#[test]
fn without_a_setting_the_machine_and_the_control_group_set_the_limit() {
    const SMALL: u64 = 512 << 20;
    let site = Site::new();
    let start = |more: &str, command: Option<(&std::path::Path, String)>| {
        let (address, admin) = (ports::free(), ports::free());
        let text = format!(
            "[admin]\nlisten = \"{admin}\"\n{more}[[listener]]\naddress = \"{address}\"\n[[host]]\nnames = [\"*\"]\n\
             respond = {{ body = \"hello\" }}\n"
        );
        let file = site.file(&format!("limit-{}.toml", address.port()), text);
        let command = match command {
            None => Command::new(binary::sealane()),
            Some((unshare, script)) => {
                let mut command = Command::new(unshare);
                command.args(["-m", "sh", "-e", "-c", &format!("{script}\nexec \"$@\""), "sh"]).arg(binary::sealane());
                command
            }
        };
        let mut command = command;
        command.arg("serve").arg("-c").arg(file);
        launch(&site, command, address, admin)
    };
    assert_eq!(limit_of(&start("[limits]\nmax_memory = \"100MiB\"\n", None)), 100 << 20);
    if !geteuid().is_root() {
        skip!("needs root, for a file system of its own");
    }
    let unshare = need!("unshare");
    let membership = std::fs::read_to_string("/proc/self/cgroup").expect("it is Linux");
    let Some(group) = membership.lines().find_map(|line| line.strip_prefix("0::/")) else {
        skip!("there are no control groups of version 2")
    };
    // None above it has a limit.
    let with = |limit: &str| {
        let folder = format!("/sys/fs/cgroup/{group}");
        start(
            "",
            Some((
                &unshare,
                format!(
                    "mount -t tmpfs none /sys/fs/cgroup\nmkdir -p '{folder}'\necho {limit} > '{folder}/memory.max'"
                ),
            )),
        )
    };
    let machine = of_machine() / 4 * 3;
    assert_eq!(limit_of(&with("max")), machine);
    assert_eq!(limit_of(&with(&SMALL.to_string())), SMALL / 10 * 9);
    assert_eq!(limit_of(&with(&(of_machine() * 2).to_string())), machine, "a group may be allowed more than there is");
}
