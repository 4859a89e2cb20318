//! Secrets that are not needed any more are not in the gateway's memory: the whole memory of the process is searched for them.

use crate::operating::{Operated, Other, order};
use rustls::{ClientConfig, KeyLog};
use sealane_interop::backend::Backend;
use sealane_interop::client::{self, get};
use sealane_interop::gateway::before;
use sealane_interop::http::Wire;
use sealane_interop::process::occurrences;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{base64, eventually, h3, ports, replace, skip};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

const VERSIONS: [&rustls::SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];

/// How often each is in a gateway's memory, or the test is skipped.
macro_rules! occurrences {
    ($process:expr, $wanted:expr) => {
        match occurrences($process, $wanted) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                skip!("the memory of another process cannot be read here: {error}")
            }
            found => found.expect("the gateway runs"),
        }
    };
}

fn random() -> [u8; 32] {
    let mut key = [0; 32];
    aws_lc_rs::rand::fill(&mut key).expect("the system has random numbers");
    key
}

/// New clients get sessions, and resume them: the lane has all keys that are derived from the newest.
fn visit(address: SocketAddr, ca: &Path) {
    for version in VERSIONS {
        let config = Arc::new(client::config_with(ca, client::provider(), &[version]));
        for _ in 0..2 {
            let answer = client::exchange(address, &config, &get("/")).expect("the gateway answers");
            assert_eq!(answer.text(), "hello");
        }
    }
    let config = h3::over_quic(&client::config_with(ca, client::provider(), &[&rustls::version::TLS13]), false);
    for _ in 0..2 {
        let mut client = h3::Client::connect(address, &config);
        assert_eq!(client.get("/").status, 200);
        client.close();
    }
}

/// Of the keys that encrypt tickets, only the newest and the one before it are in memory.
#[test]
fn ticket_keys_that_were_replaced_are_wiped() {
    replaced_keys_are_wiped(false);
}

/// The same of those that a process was handed by its predecessor.
#[test]
fn ticket_keys_that_were_replaced_are_wiped_after_an_upgrade() {
    replaced_keys_are_wiped(true);
}

fn replaced_keys_are_wiped(upgraded: bool) {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let keys = [(); 4].map(|()| random());
    let texts = keys.map(|key| base64(&key));
    let [oldest, old, previous, newest] = &texts;
    let listen = ports::free();
    let list = site.file("ticket.keys", oldest);
    let file = |admin: &str| {
        let text = Operated::simple_file(&site, admin, listen, &backend.url());
        let text = text.replace("[listener.tls]", "http3 = true\n[listener.tls]");
        format!("ticket_keys = \"file\"\nticket_keys_file = {list:?}\n{text}")
    };
    let mut gateway = Operated::start(&site, 2, file, listen);
    visit(listen, &site.ca);
    let mut process = gateway.gateway.server.id();
    let mut successor = None;
    if upgraded {
        order(&gateway.socket, "upgrade").expect("the same program can be started again");
        let other = successor.insert(Other::of(&gateway));
        process = other.0.as_raw_nonzero().get() as u32;
        assert_eq!(gateway.gateway.server.wait().code(), Some(0));
        visit(listen, &site.ca);
    }
    // Else it would be no wonder that nothing is found.
    assert!(occurrences!(process, &[&keys[0]])[0] > 0, "the key in use is not found");
    // By itself, and by a reload.
    replace(&list, old);
    let replaced = || gateway.gateway.metric_with("sealane_ticket_key_replacements_total", "good");
    assert!(eventually(|| replaced() == Some(1.0)), "{}", gateway.gateway.metrics());
    visit(listen, &site.ca);
    for text in [previous, newest] {
        replace(&list, text);
        assert_eq!(order(&gateway.socket, "reload").expect("the file is good"), "reloaded\n");
        visit(listen, &site.ca);
    }
    // What the file says is not kept, either.
    let gone = [&keys[0][..], &keys[1], oldest.as_bytes(), old.as_bytes(), previous.as_bytes(), newest.as_bytes()];
    let mut found = Vec::new();
    let wiped = eventually(|| {
        // A lane that has something to do looks for news.
        visit(listen, &site.ca);
        found = occurrences(process, &gone).unwrap_or_default();
        found == [0; 6]
    });
    assert!(wiped, "found, of two keys and of the four lines of the file: {found:?}");
    let found = occurrences!(process, &[&keys[2], &keys[3]]);
    assert!(found.iter().all(|found| *found > 0), "the keys in use are not found: {found:?}");
}

/// The secrets of a client's connections.
#[derive(Debug, Default)]
struct Secrets(Mutex<Vec<(String, Vec<u8>)>>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        self.0.lock().expect("nobody panics while it is held").push((label.to_owned(), secret.to_vec()));
    }
}

impl Secrets {
    /// All of them, by their names.
    fn all(&self) -> Vec<(String, Vec<u8>)> {
        self.0.lock().expect("nobody panics while it is held").clone()
    }
}

/// The secrets of a connection that has ended are not kept: what rustls leaves in freed memory when it moves them is overwritten by a
/// few connections that follow.
#[test]
fn the_secrets_of_a_closed_connection_are_not_kept() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).listener("http3 = true").start();
    let process = gateway.server.id();
    for over_quic in [false, true] {
        let log = Arc::new(Secrets::default());
        let mut config: ClientConfig = client::config_with(&site.ca, client::provider(), &[&rustls::version::TLS13]);
        config.key_log = Arc::clone(&log) as _;
        let traffic = |log: &Secrets| {
            let all = log.all().into_iter().filter(|(label, _)| label.ends_with("_TRAFFIC_SECRET_0"));
            all.map(|(_, secret)| secret).collect::<Vec<_>>()
        };
        if over_quic {
            let mut client = h3::Client::connect(gateway.address, &h3::over_quic(&config, false));
            assert_eq!(client.get("/").status, 200);
            let found = occurrences!(process, &traffic(&log).iter().map(Vec::as_slice).collect::<Vec<_>>());
            assert!(found.iter().any(|found| *found > 0), "the open connection's secrets are not found: {found:?}");
            client.close();
        } else {
            let stream = client::handshake(client::tcp(gateway.address), &Arc::new(config), HOST);
            let mut wire = Wire::new(stream.expect("the gateway shakes hands"));
            wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
            assert_eq!(wire.response("GET").expect("it is answered").text(), "hello");
            let found = occurrences!(process, &traffic(&log).iter().map(Vec::as_slice).collect::<Vec<_>>());
            assert!(found.iter().any(|found| *found > 0), "the open connection's secrets are not found: {found:?}");
        }
        // Two for the handshake, two for what follows, and the exporter's.
        let all = log.all();
        assert_eq!(all.len(), 5, "{all:?}");
        let secrets: Vec<&[u8]> = all.iter().map(|(_, secret)| &secret[..]).collect();
        let mut found = Vec::new();
        let gone = eventually(|| {
            (0..5).for_each(|_| visit(gateway.address, &site.ca));
            found = occurrences(process, &secrets).unwrap_or_default();
            found == [0; 5]
        });
        let labels: Vec<&str> = all.iter().map(|(label, _)| &label[..]).collect();
        assert!(gone, "{labels:?} are found {found:?} times (over QUIC: {over_quic})");
    }
}
