//! Real peers, where this machine has them: NGINX for HTTP/2 and its 0-RTT, openssl for what nobody else offers.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::server::Authority;
use super::{FAR, NAME, Probe, trusting};
use sealane_lab_probe::variant::parse_list;

/// A process that ends with the test.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn installed(program: &str, test: &str) -> bool {
    let found = Command::new(program).arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("{test}: skipped: {program} is not installed (apt install {program})");
    }
    found
}

fn start(mut command: impl FnMut(u16) -> Command) -> (Peer, SocketAddr) {
    for _ in 0..5 {
        let port = sealane_lab_ports::reserve().expect("a port can be reserved");
        let child = command(port).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut peer = Peer(child.expect("started"));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(90) {
            // A peer that could not bind is gone, and another program listens on its port.
            if peer.0.try_wait().expect("waited").is_some() {
                break;
            }
            if TcpStream::connect(address).is_ok() {
                return (peer, address);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    panic!("the peer did not start");
}

fn write_identity(authority: &Authority) -> &Path {
    let (cert, key, _) = authority.sign(NAME, FAR);
    std::fs::write(authority.folder.path().join("cert.pem"), cert).expect("written");
    std::fs::write(authority.folder.path().join("key.pem"), key).expect("written");
    authority.folder.path()
}

#[test]
fn nginx() {
    if !installed("nginx", "nginx") {
        return;
    }
    let authority = Authority::new();
    let folder = write_identity(&authority).to_owned();
    let (_peer, address) = start(|port| {
        let at = folder.display();
        let conf = format!(
            "daemon off; master_process off; pid {at}/pid; error_log {at}/error.log;\nevents {{}}\nhttp {{ access_log off; \
             client_body_temp_path {at}; proxy_temp_path {at}; fastcgi_temp_path {at}; uwsgi_temp_path {at}; \
             scgi_temp_path {at};\nserver {{ listen 127.0.0.1:{port} ssl http2; ssl_certificate {at}/cert.pem; \
             ssl_certificate_key {at}/key.pem; ssl_protocols TLSv1.2 TLSv1.3; ssl_early_data on; \
             ssl_session_cache shared:S:1m; ssl_session_timeout 600;\n\
             location / {{ add_header Strict-Transport-Security max-age=63072000; return 200 hello; }} }} }}\n"
        );
        std::fs::write(folder.join("nginx.conf"), conf).expect("written");
        let mut command = Command::new("nginx");
        command.arg("-c").arg(folder.join("nginx.conf")).arg("-e").arg(folder.join("error.log"));
        command
    });
    let mut probe = Probe::new(address, &trusting(&authority));
    let variants = parse_list("tls1.2+h1,tls1.2+h2,tls1.3+h2,tls1.2+h2+resumed,0-rtt+h2,0-rtt+h1").expect("valid");
    let measurement = probe.measure(&variants, 3).expect("measured");
    for m in &measurement.variants {
        assert_eq!((m.statuses.get(&200), m.body_bytes), (Some(&3), 5), "{}", m.variant);
        let alpn = if m.variant.contains("h1") { "http/1.1" } else { "h2" };
        assert_eq!(m.negotiated.alpn.as_deref(), Some(alpn), "{}", m.variant);
        assert_eq!(m.early_data_accepted, if m.variant.contains("0-rtt") { 3 } else { 0 }, "{}", m.variant);
    }
    let seen = probe.inspect();
    assert!(seen.http2 && seen.server.as_deref().is_some_and(|s| s.starts_with("nginx")));
    assert_eq!(seen.hsts.as_deref(), Some("max-age=63072000"));
    assert_eq!((seen.tls12.tickets.lifetime_s, seen.tls13.early_data_accepted), (Some(600), Some(true)));
}

#[test]
fn openssl_with_everything_that_is_old() {
    if !installed("openssl", "openssl") {
        return;
    }
    let authority = Authority::new();
    let folder = write_identity(&authority).to_owned();
    let (_peer, address) = start(|port| {
        let mut command = Command::new("openssl");
        command.args(["s_server", "-quiet", "-www", "-accept", &format!("127.0.0.1:{port}")]);
        // Level 0 of OpenSSL 3 lets TLS 1.0 with SHA-1 through, and suites without a cipher.
        command.args(["-cipher", "ALL:COMPLEMENTOFALL:@SECLEVEL=0"]);
        command.arg("-cert").arg(folder.join("cert.pem")).arg("-key").arg(folder.join("key.pem"));
        command
    });
    let mut probe = Probe::new(address, &super::ANYONE);
    let seen = probe.inspect();
    assert!(!seen.certificate_checked);
    let scan = seen.scan.as_ref().expect("scanned");
    for name in ["TLS 1.0", "TLS 1.1", "CBC mode", "NULL, export or anonymous", "secp521r1"] {
        assert!(scan.accepted(name), "{name}: {scan:?}");
    }
    // The key is for ECDSA, so that an exchange under an RSA key is out of the question; SSL 3 is not built in.
    for name in ["SSL 3", "RSA key exchange"] {
        assert!(!scan.accepted(name), "{name}: {scan:?}");
    }
    let advice = sealane_lab_probe::advice::advise(&seen);
    for id in ["old-versions", "weak-suites", "hsts", "no-http2"] {
        assert!(advice.iter().any(|a| a.id == id), "{id}");
    }
}

/// A server with Encrypted ClientHello: Go's.
#[test]
fn a_server_with_ech_accepts_what_is_encrypted_for_it() {
    if !installed("go", "ech") {
        return;
    }
    let authority = Authority::new();
    let folder = write_identity(&authority).to_owned();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/ech");
    let program = folder.join("ech");
    let mut build = Command::new("go");
    build.current_dir(source).env("GOFLAGS", "-mod=readonly").arg("build").arg("-o").arg(&program).arg(".");
    let built = build.output().expect("go can be started");
    if !built.status.success() {
        // Go before 1.24 has no ECH for servers.
        eprintln!("ech: skipped: {}", String::from_utf8_lossy(&built.stderr));
        return;
    }
    let (_peer, address) = start(|port| {
        let mut command = Command::new(&program);
        command.arg(format!("127.0.0.1:{port}")).arg(folder.join("cert.pem")).arg(folder.join("key.pem")).arg(NAME);
        command
    });
    let seen = Probe::new(address, &trusting(&authority)).inspect();
    let ech = seen.ech.expect("it was asked");
    assert_eq!(
        (ech.offered, ech.accepted, &ech.public_names[..]),
        (Some(true), Some(true), &[NAME.to_owned()][..]),
        "{ech}"
    );
    assert_eq!(ech.problem, None);
}
