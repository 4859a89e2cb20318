//! Servers by name: DNS that changes, comes back empty, says no, and is silent.

use sealane_interop::backend::ok;
use sealane_interop::eventually;
use sealane_interop::gateway::configured;
use sealane_interop::http::Wire;
use sealane_interop::site::Site;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};

/// What the DNS server answers for every name.
#[derive(Clone)]
pub enum Says {
    Addresses(Vec<Ipv4Addr>),
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
            // The kind stands before the last two bytes: 1 is A, 28 is AAAA, for which there is nothing here.
            let is_a = question[length - 3] == 1;
            let (code, addresses) = match ours.lock().expect("nobody panics with it").clone() {
                Says::Addresses(list) => (0, if is_a { list } else { Vec::new() }),
                Says::NoSuchName => (3, Vec::new()),
                Says::Failure => (2, Vec::new()),
                Says::Nothing => continue,
            };
            let mut answer = question.to_vec();
            (answer[2], answer[3], answer[7]) = (0x81, 0x80 | code, addresses.len() as u8);
            for ip in addresses {
                // A pointer to the name asked for, A, IN, a minute, four bytes.
                answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                answer.extend_from_slice(&ip.octets());
            }
            let _ = socket.send_to(&answer, from);
        }
    });
    (address, says)
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
    let gateway = configured(
        &site,
        &format!(
            "lanes = 2\nresolver = \"{resolver}\"\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n\
             [[host]]\nnames = [\"*\"]\nupstream = \"u\"\n[[upstream]]\nname = \"u\"\n\
             servers = [\"http://app.example.test:{port}\"]\nresolve_interval = \"1s\"\n"
        ),
    );
    let who = || gateway.plain_get("/", "").text();
    assert!((0..4).all(|_| who() == "127.0.0.2"));

    // Another address joins.
    say(Says::Addresses(vec![ips[1], ips[0]]));
    let metric = |name: &str| gateway.metric(name).unwrap_or(0.0);
    assert!(eventually(|| metric("sealane_dns_changes_total") == 1.0));
    assert!(eventually(|| who() == "127.0.0.3"));
    // The same in another order is no change.
    say(Says::Addresses(vec![ips[0], ips[1]]));

    // No answer, no such name, an empty answer, a failure: the last good one stays.
    for bad in [Says::NoSuchName, Says::Addresses(vec![]), Says::Failure, Says::Nothing] {
        let before = metric("sealane_dns_failures_total");
        say(bad);
        assert!(eventually(|| metric("sealane_dns_failures_total") > before));
        let all: std::collections::HashSet<String> = (0..12).map(|_| who()).collect();
        assert_eq!(all, ["127.0.0.2".to_owned(), "127.0.0.3".to_owned()].into());
    }
    assert_eq!(metric("sealane_dns_changes_total"), 1.0);
    // A reload in that state does not fail.
    gateway.server.hang_up();
    assert!(eventually(|| gateway.server.log().contains("sealane: reloaded")), "{}", gateway.server.log());
    assert!(gateway.server.log().contains("does not resolve now"), "{}", gateway.server.log());
    assert!(["127.0.0.2", "127.0.0.3"].contains(&who().as_str()));

    // All others than before; the old ones get nothing more.
    say(Says::Addresses(vec![ips[2]]));
    assert!(eventually(|| who() == "127.0.0.4"));
    assert!(eventually(|| (0..8).all(|_| who() == "127.0.0.4")));
    let log = gateway.server.log();
    assert!(log.contains("app.example.test is now 127.0.0.4"), "{log}");
    assert!(log.contains("the last known addresses stay in use"), "{log}");
}
