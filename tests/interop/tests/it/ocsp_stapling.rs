//! OCSP responses that the gateway fetches itself, from OpenSSL's responder and from others that are slow, dead or lying.

use crate::clock::Clock;
use crate::operating::{Operated, order};
use sealane_interop::client::get;
use sealane_interop::peers::s_client;
use sealane_interop::process;
use sealane_interop::site::{HOST, Identity, Site};
use sealane_interop::{binary, eventually, need, ports};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const SERIAL: u64 = 0x1234;

/// OpenSSL's responder for one certificate behind a small HTTP server, which holds requests while it is shut.
struct Responder {
    address: SocketAddr,
    revoked: Arc<AtomicBool>,
    shut: Arc<AtomicBool>,
}

impl Responder {
    /// Its answers are signed by `signer` and good for so many minutes.
    fn start(site: &Site, openssl: &Path, signer: &Identity, minutes: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (revoked, shut) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let this = Self { address, revoked: revoked.clone(), shut: shut.clone() };
        let folder = site.path().join(format!("responder-{}", address.port()));
        std::fs::create_dir(&folder).expect("the test's folder can be written");
        let (openssl, ca, signer) = (openssl.to_path_buf(), site.ca.clone(), signer.clone());
        std::thread::spawn(move || {
            while let Ok((mut socket, _)) = listener.accept() {
                let Some(request) = body_of(&mut socket) else { continue };
                while shut.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(10));
                }
                let place = |name: &str| folder.join(name);
                // ca(1): state, end, time of revocation, serial number, file, subject; between tabs.
                let (state, since) = if revoked.load(Relaxed) { ("R", "200101000000Z") } else { ("V", "") };
                let entry = format!("{state}\t491231235959Z\t{since}\t{SERIAL:04X}\tunknown\t/CN=it\n");
                std::fs::write(place("index.txt"), entry).expect("our own folder");
                std::fs::write(place("request"), request).expect("our own folder");
                let mut command = Command::new(&openssl);
                command.args(["ocsp", "-nmin", &minutes.to_string(), "-index"]).arg(place("index.txt"));
                command.arg("-CA").arg(&ca).arg("-rsigner").arg(&signer.cert).arg("-rkey").arg(&signer.key);
                command.arg("-reqin").arg(place("request")).arg("-respout").arg(place("response"));
                let said = process::run(&mut command, b"");
                let Ok(response) = std::fs::read(place("response")) else {
                    panic!("{}", String::from_utf8_lossy(&said.stderr));
                };
                let head = "HTTP/1.1 200 OK\r\nContent-Type: application/ocsp-response\r\nContent-Length:";
                let head = format!("{head} {}\r\n\r\n", response.len());
                let _ = socket.write_all(&[head.into_bytes(), response].concat());
            }
        });
        this
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

/// The body of a request with a length.
fn body_of(socket: &mut TcpStream) -> Option<Vec<u8>> {
    let (mut read, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let length = socket.read(&mut piece).ok().filter(|length| *length > 0)?;
        read.extend_from_slice(&piece[..length]);
        let Some(end) = read.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok())?;
        if read.len() >= end + 4 + length {
            return Some(read.split_off(end + 4));
        }
    }
}

fn authority(site: &Site) -> Identity {
    Identity { cert: site.ca.clone(), key: site.ca_key.clone() }
}

/// A gateway with these certificates, which fetches responses.
fn start(site: &Site, certificates: &[&Identity], listen: SocketAddr) -> Operated {
    start_by(site, Command::new(binary::sealane()), certificates, listen)
}

fn start_by(site: &Site, program: Command, certificates: &[&Identity], listen: SocketAddr) -> Operated {
    let entry = |identity: &&Identity| {
        format!("{{ cert = \"{}\", key = \"{}\" }}", identity.cert.display(), identity.key.display())
    };
    let certificates: Vec<String> = certificates.iter().map(entry).collect();
    let storage = site.path().join("revocation");
    let file = |admin: &str| {
        format!(
            "{admin}\n[revocation]\nstorage = \"{}\"\n[[listener]]\naddress = \"{listen}\"\n[listener.tls]\n\
             ocsp_stapling = true\ncertificates = [{}]\n[[host]]\nnames = [\"*\"]\nrespond = {{ body = \"hello\" }}\n",
            storage.display(),
            certificates.join(", ")
        )
    };
    Operated::start_by(site, program, 1, file, listen)
}

/// What OpenSSL's client says of the response.
fn stapled(gateway: &Operated, version: &str) -> String {
    s_client(&gateway.gateway, [version, "-status"], &get("/")).all()
}

fn metric(gateway: &Operated, name: &str) -> f64 {
    let text = gateway.gateway.metrics();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().expect("a metric is a number"))
}

fn certificates(gateway: &Operated) -> String {
    let out = sealane_interop::gateway::run(["certificates", "--socket", &gateway.socket.display().to_string()]);
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn a_response_is_fetched_and_sent_and_there_after_a_restart() {
    let openssl = need!("openssl");
    let site = Site::new();
    for (name, signer) in [("by-issuer", authority(&site)), ("by-delegate", site.issue_responder("delegate"))] {
        let listen = ports::free();
        let responder = Responder::start(&site, &openssl, &signer, 60);
        let identity = site.issue_with_responder(name, &[HOST], SERIAL, &responder.url(), true);
        let gateway = start(&site, &[&identity], listen);
        let log = || gateway.gateway.server.log();
        assert!(eventually(|| stapled(&gateway, "-tls1_3").contains("Cert Status: good")), "{name}: {}", log());
        for version in ["-tls1_2", "-tls1_3"] {
            let said = stapled(&gateway, version);
            assert!(said.contains("OCSP Response Status: successful"), "{name}, {version}: {said}");
            assert!(said.contains("\r\n\r\nhello"), "{name}, {version}: {said}");
        }
        assert_eq!(metric(&gateway, "sealane_ocsp_requests_total{result=\"good\"}"), 1.0);
        let listed = certificates(&gateway);
        assert!(listed.contains("OCSP          good") && listed.contains("OCSP request"), "{listed}");
        // The next process has it without asking anybody.
        assert!(eventually(|| site
            .path()
            .join("revocation/ocsp")
            .read_dir()
            .is_ok_and(|dir| dir.flatten().any(|file| file.path().extension().is_some_and(|e| e == "der")))));
        responder.shut.store(true, Relaxed);
        drop(gateway);
        let gateway = start(&site, &[&identity], listen);
        let said = stapled(&gateway, "-tls1_3");
        assert!(said.contains("Cert Status: good"), "{name}: {said}");
        assert_eq!(metric(&gateway, "sealane_ocsp_requests_total{result=\"good\"}"), 0.0);
        drop(gateway);
        std::fs::remove_dir_all(site.path().join("revocation")).expect("our own folder");
    }
}

/// A server that takes every connection, reads a request, and answers with these bytes; with none, it never answers.
fn answering(answer: Option<Vec<u8>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok((mut socket, _)) = listener.accept() {
            let Some(answer) = &answer else {
                kept.push(socket);
                continue;
            };
            let _ = socket.read(&mut [0; 4096]);
            let _ = socket.write_all(answer);
        }
    });
    address
}

#[test]
fn a_slow_dead_or_lying_responder_harms_nobody() {
    let openssl = need!("openssl");
    let (site, liar) = (Site::new(), Site::new());
    let listen = ports::free();
    let (_refusing, dead) = ports::refusing();
    let slow = answering(None);
    // Of another authority with the same name, about a certificate with the same number.
    let lying = Responder::start(&liar, &openssl, &authority(&liar), 60).address;
    // A responder that the authority has not authorized, and one whose answer is about another certificate.
    let stranger = Responder::start(&site, &openssl, &site.issue("stranger", &["stranger.test"]), 60).address;
    let mistaken = Responder::start(&site, &openssl, &authority(&site), 60).address;
    let nonsense = answering(Some(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nnonsense".to_vec()));
    let issue = |name: &str, host: &str, serial: u64, at: SocketAddr| {
        site.issue_with_responder(name, &[host], serial, &format!("http://{at}/"), false)
    };
    let all = [
        issue("dead", HOST, SERIAL, dead),
        issue("slow", "slow.test", SERIAL, slow),
        issue("lying", "lying.test", SERIAL, lying),
        issue("unauthorized", "unauthorized.test", SERIAL, stranger),
        issue("mistaken", "mistaken.test", SERIAL + 1, mistaken),
        issue("nonsense", "nonsense.test", SERIAL, nonsense),
        site.issue("silent", &["silent.test"]),
    ];
    let gateway = start(&site, &all.each_ref(), listen);
    assert_eq!(gateway.get("/").text(), "hello");
    let failed = || metric(&gateway, "sealane_ocsp_requests_total{result=\"failed\"}");
    assert!(eventually(|| failed() >= 6.0), "{}", gateway.gateway.server.log());
    let listed = certificates(&gateway);
    for wanted in [
        "cannot be reached",
        "has not answered within",
        "its signature is wrong",
        "signed neither by the certificate's issuer nor by a responder",
        "the responder does not know the certificate",
        "it is not an OCSP response",
    ] {
        assert!(listed.contains(wanted), "{wanted}: {listed}");
    }
    // One that names no responder costs nothing, and is said once.
    let log = gateway.gateway.server.log();
    assert_eq!(log.matches("name no OCSP responder").count(), 1, "{log}");
    let said = stapled(&gateway, "-tls1_3");
    assert!(said.contains("OCSP response: no response sent") && said.contains("\r\n\r\nhello"), "{said}");
    assert_eq!(metric(&gateway, "sealane_ocsp_requests_total{result=\"good\"}"), 0.0);
}

#[test]
fn a_revocation_reaches_clients_by_itself() {
    let openssl = need!("openssl");
    let site = Site::new();
    let listen = ports::free();
    let responder = Responder::start(&site, &openssl, &authority(&site), 1);
    let identity = site.issue_with_responder("revoked", &[HOST], SERIAL, &responder.url(), false);
    let gateway = start(&site, &[&identity], listen);
    assert!(eventually(|| stapled(&gateway, "-tls1_3").contains("Cert Status: good")));
    responder.revoked.store(true, Relaxed);
    // After half of a minute.
    let revoked = || stapled(&gateway, "-tls1_3").contains("Cert Status: revoked");
    assert!(eventually(revoked), "{}", gateway.gateway.server.log());
    assert!(gateway.gateway.server.log().contains("the authority has revoked this certificate"));
    assert!(metric(&gateway, "sealane_ocsp_requests_total{result=\"revoked\"}") >= 1.0);
    assert!(certificates(&gateway).contains("OCSP          revoked"));
}

#[test]
fn a_new_certificate_with_must_staple_waits_for_its_response() {
    let openssl = need!("openssl");
    let site = Site::new();
    let listen = ports::free();
    let responder = Responder::start(&site, &openssl, &authority(&site), 60);
    responder.shut.store(true, Relaxed);
    let served = site.issue("served", &[HOST]);
    let gateway = start(&site, &[&served], listen);
    let first = gateway.served_certificate();
    let second = site.issue_with_responder("second", &[HOST], SERIAL, &responder.url(), true);
    for (to, from) in [(&served.cert, &second.cert), (&served.key, &second.key)] {
        std::fs::copy(from, to).expect("a file can be overwritten");
    }
    let log = || gateway.gateway.server.log();
    assert!(eventually(|| log().contains("(must staple). Clients get the previous certificate until")), "{}", log());
    assert_eq!(gateway.served_certificate(), first);
    responder.shut.store(false, Relaxed);
    let leaf = Some(second.load().0[0].to_vec());
    assert!(eventually(|| gateway.served_certificate() == leaf), "{}", log());
    let said = stapled(&gateway, "-tls1_3");
    assert!(said.contains("Cert Status: good"), "{said}");
}

/// While the responder is dead, a response is sent until it expires, and not again after a reload or a restart.
#[test]
fn an_expired_response_is_not_sent_again() {
    let (openssl, compiler) = (need!("openssl"), need!("cc"));
    let site = Site::new();
    let time = Clock::new(&site, &compiler);
    let listen = ports::free();
    let responder = Responder::start(&site, &openssl, &authority(&site), 60);
    let identity = site.issue_with_responder("short", &[HOST], SERIAL, &responder.url(), false);
    let gateway = start_by(&site, time.program(), &[&identity], listen);
    assert!(eventually(|| stapled(&gateway, "-tls1_3").contains("Cert Status: good")));
    responder.shut.store(true, Relaxed);
    order(&gateway.socket, "reload").expect("nothing has changed");
    assert!(stapled(&gateway, "-tls1_3").contains("Cert Status: good"), "it is good for an hour");
    // Two hours later.
    time.set(2 * 3600);
    let none = |gateway: &Operated| stapled(gateway, "-tls1_3").contains("OCSP response: no response sent");
    let withdrawn = || {
        order(&gateway.socket, "reload").expect("nothing has changed");
        none(&gateway)
    };
    assert!(eventually(withdrawn), "{}", gateway.gateway.server.log());
    for _ in 0..3 {
        order(&gateway.socket, "reload").expect("nothing has changed");
        assert!(none(&gateway), "it came back: {}", gateway.gateway.server.log());
    }
    drop(gateway);
    let gateway = start_by(&site, time.program(), &[&identity], listen);
    assert!(none(&gateway), "it came back from the folder: {}", gateway.gateway.server.log());
}
