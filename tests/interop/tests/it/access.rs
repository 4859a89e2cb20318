//! Who may come, by address: `allow` and `deny` of listeners, hosts and routes, and lists in files.

use sealane_http::BodyLength;
use sealane_interop::backend::{self, Backend, ok};
use sealane_interop::client;
use sealane_interop::eventually;
use sealane_interop::gateway::{Gateway, configured};
use sealane_interop::h3::{Client, headers, over_quic};
use sealane_interop::http::Wire;
use sealane_interop::ports;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Asked, Everywhere, Listening};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};

/// A gateway with a listener for TLS and HTTP/3 and one for plain HTTP/1.1 and HTTP/2.
fn gateway(site: &Site, listener: &str, tls: &str, rest: &str) -> (Gateway, SocketAddr) {
    Listening { both: listener, tls, rest, ..Listening::default() }.start(site)
}

fn denied(gateway: &Gateway, what: &str) -> f64 {
    gateway.metric_with("sealane_access_denied_total", &format!("what=\"{what}\"")).unwrap_or_default()
}

/// The statuses over all versions of a request that a trusted proxy passes on for this client.
fn ask(every: &mut Everywhere, client: &str, target: &str) -> [u16; 3] {
    let fields = [("x-forwarded-for", client)];
    every.ask(Asked { target, fields: &fields, ..Asked::default() }).map(|(status, _)| status)
}

#[test]
fn a_client_must_be_let_in_by_the_listener_the_host_and_the_route() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let rest = format!(
        r#"
[[host]]
names = ["*"]
to = {url:?}
allow = ["203.0.113.0/24", "198.51.100.0/24", "2001:db8::/32"]
[[host.route]]
path = "/inner"
to = {url:?}
allow = ["203.0.113.0/25", "192.0.2.1"]
deny = "203.0.113.9"
[[host.route]]
path = "/said"
respond = {{ status = 200 }}
deny = "203.0.113.9"
"#,
        url = backend.url()
    );
    let listener = "trusted_proxies = \"127.0.0.1\"\ndeny = [\"198.51.100.7\", \"2001:db8:bad::/48\"]";
    let (gateway, plain) = gateway(&site, listener, "", &rest);
    let mut every = Everywhere::new(&gateway, plain);
    let mut refused = 0;
    for (client, target, status) in [
        ("203.0.113.1", "/", 200),
        ("198.51.100.1", "/", 200),
        // Of the listener.
        ("198.51.100.7", "/", 403),
        ("2001:db8:bad::1", "/", 403),
        ("2001:db8:1::1", "/", 200),
        ("::ffff:203.0.113.1", "/", 200),
        // Of the host.
        ("192.0.2.1", "/", 403),
        ("192.0.2.1", "/said", 403),
        // Of the route: it adds to what the host says.
        ("203.0.113.1", "/inner/x", 200),
        ("203.0.113.200", "/inner/x", 403),
        ("198.51.100.1", "/inner", 403),
        ("192.0.2.1", "/inner", 403),
        ("203.0.113.9", "/inner", 403),
        ("203.0.113.9", "/said", 403),
        ("203.0.113.9", "/", 200),
        // The last who is no trusted proxy, whatever stands before.
        ("203.0.113.1, 192.0.2.1", "/", 403),
        ("192.0.2.1, 203.0.113.1", "/", 200),
    ] {
        let before = backend.requests().len();
        assert_eq!(ask(&mut every, client, target), [status; 3], "{client} {target}");
        let reached = if status == 200 && target != "/said" { 3 } else { 0 };
        assert_eq!(backend.requests().len() - before, reached, "{client} {target}");
        refused += if status == 403 { 3 } else { 0 };
    }
    assert_eq!(denied(&gateway, "request"), f64::from(refused));
    assert_eq!(denied(&gateway, "connection"), 0.0, "of the proxy");
    let log = || site.log();
    let lines = || log().lines().filter(|line| line.contains("\"denied\":\"address\"")).count();
    assert!(eventually(|| lines() == refused as usize), "{}", log());
    assert!(log().lines().all(|line| line.contains("\"denied\"") == line.contains("\"status\":403")), "{}", log());
}

/// A kept connection may still ask for what its client may have.
#[test]
fn a_refusal_does_not_end_the_connection() {
    let site = Site::new();
    let rest = "[[host]]\nnames = [\"*\"]\nrespond = {}\n[[host.route]]\npath = \"/inner\"\nrespond = {}\ndeny = \"127.0.0.0/8\"\n";
    let (gateway, plain) = gateway(&site, "", "", rest);
    let mut wire = Wire::new(client::tcp(plain));
    let mut third = Client::connect(gateway.address, &over_quic(gateway.config(), false));
    for (path, status) in [("/inner", 403), ("/", 200), ("/inner", 403), ("/", 200)] {
        wire.send(format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("the connection is kept").status(), status, "{path}");
        assert_eq!(third.get(path).status, status, "{path}");
    }
}

/// An HTTP/3 client that comes from another address of this machine.
fn begin_from(from: Ipv4Addr, gateway: &Gateway) -> Client {
    let mut client = Client::begin(gateway.address, &over_quic(gateway.config(), false));
    client.rebind_to(from);
    client
}

/// What a TCP connection gets before it ends.
fn answer(address: SocketAddr, from: Ipv4Addr, sent: &[u8]) -> Vec<u8> {
    let mut stream = client::tcp_from(from, address);
    let mut got = Vec::new();
    // It may be closed before it has been written to.
    let _ = stream.write_all(sent);
    let _ = stream.read_to_end(&mut got);
    got
}

#[test]
fn a_connection_from_a_denied_address_is_closed_before_anything_is_said() {
    let site = Site::new();
    let rest = "[[host]]\nnames = [\"*\"]\nrespond = {}\n";
    let (gateway, plain) = gateway(&site, "allow = \"127.0.0.1\"", "", rest);
    let mut every = Everywhere::new(&gateway, plain);
    assert_eq!(every.get("/").map(|(status, _)| status), [200; 3]);
    let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
    let other = Ipv4Addr::new(127, 0, 0, 2);
    assert!(answer(plain, other, request.as_bytes()).is_empty());
    assert!(answer(gateway.address, other, &client::hello(gateway.config(), HOST)).is_empty());
    assert_eq!(denied(&gateway, "connection"), 2.0);
    let mut third = begin_from(other, &gateway);
    assert!(!third.establish(), "a QUIC client is refused");
    assert!(denied(&gateway, "connection") >= 3.0);
    assert_eq!(denied(&gateway, "request"), 0.0);
    assert_eq!(gateway.failed_handshakes("closed"), 0.0, "there was none");
}

/// The keys are the same, but a laptop that has left the office is not in the office.
#[test]
fn a_quic_client_that_moves_is_judged_where_it_is() {
    let site = Site::new();
    let rest = "[[host]]\nnames = [\"*\"]\nrespond = {}\n[[host.route]]\npath = \"/inner\"\nrespond = {}\nallow = \"127.0.0.1\"\n";
    let (gateway, _) = gateway(&site, "", "", rest);
    let mut client = Client::connect(gateway.address, &over_quic(gateway.config(), false));
    assert_eq!((client.get("/inner").status, client.get("/").status), (200, 200));
    client.rebind_to(Ipv4Addr::new(127, 0, 0, 2));
    assert_eq!((client.get("/").status, client.get("/inner").status), (200, 403));
    // One that comes from where it may not be does not get in by moving.
    let mut client = begin_from(Ipv4Addr::new(127, 0, 0, 2), &gateway);
    assert!(client.establish());
    client.open_control();
    assert_eq!(client.get("/inner").status, 403);
    client.rebind_to(Ipv4Addr::LOCALHOST);
    assert_eq!((client.get("/").status, client.get("/inner").status), (200, 403));
}

#[test]
fn a_forged_address_gains_nothing_by_early_data() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nto = {0:?}\n[[host.route]]\npath = \"/inner\"\nto = {0:?}\nallow = \"127.0.0.1\"\n",
        backend.url()
    );
    let (gateway, _) = gateway(&site, "", "early_data = \"16KiB\"", &rest);
    let config = over_quic(gateway.config(), true);
    let mut first = Client::connect(gateway.address, &config);
    assert_eq!(first.get("/inner").status, 200);
    first.close();
    for (path, status) in [("/", 200), ("/inner", 425)] {
        let before = backend.requests().len();
        let mut client = Client::begin(gateway.address, &config);
        assert!(client.quic.has_0rtt(), "a ticket for early data");
        client.open_control();
        let response = client.exchange(&headers("GET", path, &[], BodyLength::None), b"").expect("a response");
        assert_eq!(response.status, status, "{path}");
        assert!(client.until(|c| !c.quic.is_handshaking()) && client.quic.accepted_0rtt());
        assert_eq!(backend.requests().len() - before, usize::from(status == 200), "{path}");
        // After the handshake it is no replay, and comes from where it says.
        assert_eq!(client.get(path).status, 200, "{path}");
        client.close();
    }
}

/// A stranger gets a ticket under its own address, and sends early data from the address of a proxy: what it says of its client would be
/// believed.
#[test]
fn a_forged_address_of_a_proxy_is_not_believed_in_early_data() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {:?}\n", backend.url());
    let (gateway, _) = gateway(&site, "trusted_proxies = \"127.0.0.1\"", "early_data = \"16KiB\"", &rest);
    let config = over_quic(gateway.config(), true);
    let mut first = Client::connect(gateway.address, &config);
    assert_eq!(first.get("/").status, 200);
    first.close();
    let before = backend.requests().len();
    let mut client = Client::begin(gateway.address, &config);
    assert!(client.quic.has_0rtt(), "a ticket for early data");
    client.open_control();
    let claim = [("x-forwarded-for", "203.0.113.5")];
    let request = headers("GET", "/", &claim, BodyLength::None);
    assert_eq!(client.exchange(&request, b"").expect("a response").status, 425);
    assert!(client.until(|c| !c.quic.is_handshaking()) && client.quic.accepted_0rtt());
    assert_eq!(backend.requests().len(), before);
    // After the handshake it comes from where it says.
    assert_eq!(client.exchange(&request, b"").expect("a response").status, 200);
    assert!(
        backend.last().header("x-forwarded-for").is_some_and(|said| said.contains("203.0.113.5")),
        "{:?}",
        backend.last()
    );
}

#[test]
fn relayed_connections_are_judged_by_the_listener_and_the_host() {
    let site = Site::new();
    let theirs = site.issue("theirs", &["theirs.example.test"]);
    let behind = Backend::start_tls(backend::tls(&theirs), |mut connection| {
        while connection.request().is_some() {
            connection.send(ok(b"theirs"));
        }
    });
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let bare = ports::free();
    let text = format!(
        r#"
[admin]
listen = "@ADMIN@"
[[listener]]
address = "@ADDRESS@"
[listener.tls]
certificates = {{ cert = "{cert}", key = "{key}" }}
[[listener]]
address = "{bare}"
mode = "tcp"
proxy_protocol = true
trusted_proxies = "127.0.0.0/8"
deny = "203.0.113.9"
[[host]]
names = ["theirs.example.test"]
passthrough = "theirs"
allow = ["127.0.0.1", "203.0.113.0/24"]
[[host]]
names = ["*"]
listeners = ["@ADDRESS@"]
respond = {{}}
[[upstream]]
name = "theirs"
servers = "{}"
"#,
        behind.address
    );
    let gateway = configured(&site, &text);
    let shake = |from: [u8; 4], name: &str| {
        client::handshake(client::tcp_from(from.into(), gateway.address), gateway.config(), name).is_ok()
    };
    assert!(shake([127, 0, 0, 1], "theirs.example.test"));
    assert!(!shake([127, 0, 0, 2], "theirs.example.test"));
    assert!(shake([127, 0, 0, 2], HOST), "the rule is the other host's");
    assert_eq!(denied(&gateway, "relay"), 1.0);
    let named = |client: &str| {
        let mut socket = client::tcp(bare);
        let header = format!("PROXY TCP4 {client} 192.0.2.1 1234 443\r\n");
        socket.write_all(header.as_bytes()).expect("the gateway reads");
        client::handshake(socket, gateway.config(), "theirs.example.test").is_ok()
    };
    assert!(named("203.0.113.1"));
    assert!(!named("198.51.100.1"), "the host does not allow it");
    assert!(!named("203.0.113.9"), "the listener denies it");
    assert_eq!((denied(&gateway, "relay"), denied(&gateway, "connection")), (2.0, 1.0));
    assert_eq!(gateway.metric("sealane_relayed_connections_total"), Some(2.0));
}

fn replacements(gateway: &Gateway, result: &str) -> f64 {
    let label = format!("result=\"{result}\"");
    gateway.metric_with("sealane_address_list_replacements_total", &label).unwrap_or_default()
}

#[test]
fn a_changed_list_is_taken_as_a_whole_and_a_bad_one_is_not() {
    let site = Site::new();
    let blocks = |first: u8| {
        let mut text = String::from("# as a feed writes it\n");
        for n in 0..100_000_u32 {
            let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(first, 0, 0, 0)) + 2 * n);
            text.push_str(&format!("{ip}/32 ; entry {n}\n"));
        }
        text
    };
    let list = site.file("blocked.txt", blocks(20));
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nrespond = {{}}\n[[host.route]]\npath = \"/inner\"\nrespond = {{}}\nallow_file = {:?}\n",
        site.file("offices.txt", "203.0.113.0/24\n")
    );
    let listener = format!("trusted_proxies = \"127.0.0.1\"\ndeny_file = {list:?}");
    let (gateway, plain) = gateway(&site, &listener, "", &rest);
    // Its connection over HTTP/3 is kept the whole time.
    let mut every = Everywhere::new(&gateway, plain);
    assert_eq!(ask(&mut every, "20.0.0.2", "/"), [403; 3]);
    assert_eq!(ask(&mut every, "20.0.0.1", "/"), [200; 3]);
    assert_eq!(ask(&mut every, "20.3.13.62", "/"), [403; 3], "the last");
    assert_eq!(ask(&mut every, "20.3.13.64", "/"), [200; 3]);
    assert_eq!(ask(&mut every, "203.0.113.5", "/inner"), [200; 3]);

    std::fs::write(&list, blocks(30)).expect("the test's file can be written");
    assert!(eventually(|| replacements(&gateway, "good") >= 1.0), "{}", gateway.server.log());
    assert_eq!((ask(&mut every, "20.0.0.2", "/"), ask(&mut every, "30.0.0.2", "/")), ([200; 3], [403; 3]));

    // A mistake, and then no file at all: the list before it stays.
    std::fs::write(&list, "40.0.0.0/8\nexample.com\n").expect("the test's file can be written");
    assert!(eventually(|| replacements(&gateway, "refused") >= 1.0), "{}", gateway.server.log());
    assert!(gateway.server.log().contains("blocked.txt:2: \"example.com\" is not a block of addresses"));
    let before = replacements(&gateway, "refused");
    std::fs::remove_file(&list).expect("the test's file can be removed");
    assert!(eventually(|| replacements(&gateway, "refused") > before), "{}", gateway.server.log());
    assert_eq!((ask(&mut every, "40.0.0.1", "/"), ask(&mut every, "30.0.0.2", "/")), ([200; 3], [403; 3]));

    std::fs::write(&list, "50.0.0.0/8\n").expect("the test's file can be written");
    assert!(eventually(|| ask(&mut every, "50.1.2.3", "/") == [403; 3]), "{}", gateway.server.log());
    assert_eq!(ask(&mut every, "30.0.0.2", "/"), [200; 3]);
    assert_eq!(ask(&mut every, "203.0.113.5", "/inner"), [200; 3], "the other list is as it was");
}
