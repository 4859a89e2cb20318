//! Servers by name: DNS that changes, comes back empty, says no, and is silent.

use sealane_interop::backend::{self, Backend, ok};
use sealane_interop::gateway::{configured, run};
use sealane_interop::http::Wire;
use sealane_interop::site::Site;
use sealane_interop::versions::{Everywhere, Listening};
use sealane_interop::{eventually, ports};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};

/// What the DNS server answers for every name.
#[derive(Clone)]
pub enum Says {
    Addresses(Vec<Ipv4Addr>),
    /// These SRV records of every service: priority, weight, port, and the address of a host that has no other service.
    Service(Vec<(u16, u16, u16, Ipv4Addr)>),
    NoSuchName,
    Failure,
    Nothing,
}

/// A DNS server that says what it is told to.
pub fn dns() -> (SocketAddr, Arc<Mutex<Says>>) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port can be had");
    let address = socket.local_addr().expect("a bound socket has an address");
    let says = Arc::new(Mutex::new(Says::Nothing));
    let ours = Arc::clone(&says);
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let question = &buffer[..length];
            // The kind stands before the last two bytes. There are no records of other kinds here.
            let kind = question[length - 3];
            let (is_a, is_srv) = (kind == 1, kind == 33);
            let octets = |ips: &[Ipv4Addr]| ips.iter().map(|ip| ip.octets().to_vec()).collect();
            let (code, records): (u8, Vec<Vec<u8>>) = match ours.lock().expect("nobody panics with it").clone() {
                Says::Addresses(list) if is_a => (0, octets(&list)),
                Says::Service(list) if is_srv => (0, list.iter().enumerate().map(|(n, of)| srv(n, of)).collect()),
                // `h1.example.test` is the host in the second record.
                Says::Service(list) if is_a && question[12] == 2 && question[13] == b'h' => {
                    let at = usize::from(question[14].wrapping_sub(b'0'));
                    (0, list.get(at).map_or_else(Vec::new, |of| octets(&[of.3])))
                }
                Says::Addresses(_) | Says::Service(_) => (0, Vec::new()),
                Says::NoSuchName => (3, Vec::new()),
                Says::Failure => (2, Vec::new()),
                Says::Nothing => continue,
            };
            let mut answer = question.to_vec();
            (answer[2], answer[3], answer[7]) = (0x81, 0x80 | code, records.len() as u8);
            for record in records {
                // A pointer to the name asked for, the kind, IN, a minute, so many bytes.
                answer.extend_from_slice(&[0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, record.len() as u8]);
                answer.extend_from_slice(&record);
            }
            let _ = socket.send_to(&answer, from);
        }
    });
    (address, says)
}

/// An SRV record's data: the target is `hN.example.test`.
fn srv(n: usize, (priority, weight, port, _): &(u16, u16, u16, Ipv4Addr)) -> Vec<u8> {
    let numbers = [priority, weight, port].map(|number| number.to_be_bytes());
    let target = [&[2, b'h', b'0' + n as u8, 7][..], b"example", &[4], b"test", &[0]].concat();
    [numbers.concat(), target].concat()
}

/// Servers on the same port of these addresses, each of which says where it is.
pub fn servers(ips: &[Ipv4Addr]) -> u16 {
    for _ in 0..100 {
        let port = sealane_interop::ports::free().port();
        let listeners: Vec<_> = ips.iter().map(|ip| TcpListener::bind((*ip, port))).collect();
        if listeners.iter().any(Result::is_err) {
            continue;
        }
        for (listener, ip) in listeners.into_iter().flatten().zip(ips) {
            let text = ip.to_string();
            std::thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    let text = text.clone();
                    std::thread::spawn(move || {
                        let mut wire = Wire::new(stream);
                        while let Ok(Some(_)) = wire.request() {
                            let _ = wire.send(ok(text.as_bytes()));
                        }
                    });
                }
            });
        }
        return port;
    }
    panic!("no port is free on all of {ips:?}");
}

#[test]
fn names_are_resolved_again() {
    let site = Site::new();
    let ips = [2, 3, 4].map(|n| Ipv4Addr::new(127, 0, 0, n));
    let port = servers(&ips);
    let (resolver, says) = dns();
    let say = |what: Says| *says.lock().expect("nobody panics with it") = what;
    say(Says::Addresses(vec![ips[0]]));
    let plain = ports::free();
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nupstream = \"u\"\n[[upstream]]\nname = \"u\"\n\
         servers = [\"http://app.example.test:{port}\"]\nresolve_interval = \"1s\"\n"
    );
    let text = Listening { lanes: 2, rest: &rest, ..Listening::default() }.text(&site, plain);
    let gateway = configured(&site, &format!("resolver = \"{resolver}\"\n{text}"));
    let mut every = Everywhere::new(&gateway, plain);
    // The servers that requests of each version got.
    let mut who = || every.get("/").map(|(_, server)| server);
    assert!((0..4).all(|_| who() == ["127.0.0.2"; 3]));

    // Another address joins.
    say(Says::Addresses(vec![ips[1], ips[0]]));
    let metric = |name: &str| gateway.metric(name).unwrap_or(0.0);
    assert!(eventually(|| metric("sealane_dns_changes_total") == 1.0));
    assert!(eventually(|| who().contains(&"127.0.0.3".to_owned())));
    // The same in another order is no change.
    say(Says::Addresses(vec![ips[0], ips[1]]));

    // No answer, no such name, an empty answer, a failure: the last good one stays.
    for bad in [Says::NoSuchName, Says::Addresses(vec![]), Says::Failure, Says::Nothing] {
        let before = metric("sealane_dns_failures_total");
        say(bad);
        assert!(eventually(|| metric("sealane_dns_failures_total") > before));
        let all: std::collections::HashSet<String> = (0..12).flat_map(|_| who()).collect();
        assert_eq!(all, ["127.0.0.2".to_owned(), "127.0.0.3".to_owned()].into());
    }
    assert_eq!(metric("sealane_dns_changes_total"), 1.0);
    // A reload in that state does not fail.
    gateway.server.hang_up();
    assert!(eventually(|| gateway.server.log().contains("sealane: reloaded")), "{}", gateway.server.log());
    assert!(gateway.server.log().contains("does not resolve now"), "{}", gateway.server.log());
    assert!(who().iter().all(|server| ["127.0.0.2", "127.0.0.3"].contains(&server.as_str())));

    // All others than before; the old ones get nothing more.
    say(Says::Addresses(vec![ips[2]]));
    assert!(eventually(|| who() == ["127.0.0.4"; 3]));
    assert!(eventually(|| (0..8).all(|_| who() == ["127.0.0.4"; 3])));
    let log = gateway.server.log();
    assert!(log.contains("app.example.test is now 127.0.0.4"), "{log}");
    assert!(log.contains("the last known addresses stay in use"), "{log}");
}

/// The servers of a service are those that its SRV records name, with their ports, weights and priorities.
#[test]
fn services_are_found_by_srv_records() {
    const NAME: &str = "_http._tcp.app.example.test";
    let site = Site::new();
    let servers = ["a", "b", "c"].map(Backend::saying);
    let [a, b, c] = servers.each_ref().map(|server| server.address.port());
    let (resolver, says) = dns();
    let say = |list: &[(u16, u16, u16)]| {
        let list = list.iter().map(|(priority, weight, port)| (*priority, *weight, *port, Ipv4Addr::LOCALHOST));
        *says.lock().expect("nobody panics with it") = Says::Service(list.collect());
    };
    // Port 0 is nowhere.
    say(&[(10, 3, a), (10, 1, b), (20, 1, c), (5, 1, 0)]);
    let plain = ports::free();
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nupstream = \"u\"\n[[upstream]]\nname = \"u\"\nservers = \"http+srv://{NAME}\"\n\
         resolve_interval = \"1s\"\n[upstream.health]\npath = \"/health\"\ninterval = \"200ms\"\n"
    );
    let text = Listening { rest: &rest, ..Listening::default() }.text(&site, plain);
    let gateway = configured(&site, &format!("resolver = \"{resolver}\"\n{text}"));
    let mut every = Everywhere::new(&gateway, plain);
    let mut count = || {
        let mut counts = [0; 3];
        for (status, body) in (0..8).flat_map(|_| every.get("/")) {
            assert_eq!(status, 200);
            counts[["a", "b", "c"].iter().position(|name| *name == body).expect("one of them")] += 1;
        }
        counts
    };
    assert_eq!(count(), [18, 6, 0], "by weight, and none to the backup");
    assert!(eventually(|| servers[0].requests().iter().any(|r| r.target() == "/health")));
    let checked = servers[0].requests().into_iter().find(|request| request.target() == "/health");
    assert_eq!(checked.as_ref().and_then(|request| request.header("host")), Some("app.example.test"));
    let named = |port: u16, label: &str| {
        gateway
            .metric_with("sealane_server_weight", &format!("server=\"{NAME} (127.0.0.1:{port})\""))
            .is_some_and(|w| w == label.parse::<f64>().expect("a number"))
    };
    assert!(named(a, "3") && named(b, "1") && named(c, "1"), "{}", gateway.metrics());
    // Other weights, and another server: the answers change, and so do the servers.
    say(&[(10, 1, b), (10, 1, c)]);
    assert!(eventually(|| count() == [0, 12, 12]), "{}", gateway.metrics());
    // No answer, no such name, a failure: the last good answer stays, also over an upgrade of the configuration.
    for bad in [Says::NoSuchName, Says::Failure, Says::Service(Vec::new()), Says::Nothing] {
        let before = gateway.metric("sealane_dns_failures_total");
        *says.lock().expect("nobody panics with it") = bad;
        assert!(eventually(|| gateway.metric("sealane_dns_failures_total") > before), "{}", gateway.metrics());
        assert_eq!(count(), [0, 12, 12]);
    }
    // Where those of the best priority cannot be reached, the others serve.
    let nobody = ports::free().port();
    say(&[(1, 1, nobody), (2, 1, a)]);
    assert!(eventually(|| count() == [24, 0, 0]), "{}", gateway.metrics());
}

/// The certificate must be for the domain of the service, whatever name the answer of DNS has.
#[test]
fn a_service_with_tls_has_a_certificate_for_its_domain() {
    let site = Site::new();
    let server = Backend::start_tls(backend::tls(&site.ecdsa), |mut connection| {
        while connection.request().is_some() {
            connection.send(ok(b"hello"));
        }
    });
    let (resolver, says) = dns();
    *says.lock().expect("nobody panics with it") =
        Says::Service(vec![(1, 0, server.address.port(), Ipv4Addr::LOCALHOST)]);
    let gateway = |name: &str| {
        configured(
            &site,
            &format!(
                "resolver = \"{resolver}\"\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n\
                 [[host]]\nnames = [\"*\"]\nupstream = \"u\"\n[[upstream]]\nname = \"u\"\n\
                 servers = [\"https+srv://{name}\"]\ntls = {{ ca = {:?} }}\n",
                site.ca
            ),
        )
    };
    assert_eq!(gateway("_https._tcp.app.example.test").plain_get("/", "").text(), "hello");
    assert_eq!(gateway("_https._tcp.elsewhere.test").plain_get("/", "").status(), 502);
}

#[test]
fn a_service_that_is_wrong_is_named() {
    let site = Site::new();
    for (server, wanted) in [
        ("\"http+srv://app.example\"", "write \"http+srv://_http._tcp.app.example\""),
        ("\"http+srv://_http._tcp.app.example:80\"", "SRV records have the ports"),
        ("\"http://_http._tcp.app.example\"", "is the name of a service"),
        ("[{ url = \"http+srv://_http._tcp.app.example\", weight = 2 }]", "have the weights of their SRV records"),
    ] {
        let text = format!("[[listener]]\naddress = \"127.0.0.1:0\"\n[[host]]\nnames = [\"*\"]\nto = {server}\n");
        let file = site.file("checked.toml", text);
        let output = run([std::ffi::OsStr::new("check"), "-c".as_ref(), file.as_os_str()]);
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(said.contains(wanted), "{server}\n{said}");
    }
}
