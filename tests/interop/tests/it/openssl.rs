//! `openssl s_client`: a TLS stack that is not ours, shaking hands in every way that it can.

use sealane_interop::backend::Backend;
use sealane_interop::client::{self, get};
use sealane_interop::gateway::{Gateway, before, launch};
use sealane_interop::h3;
use sealane_interop::http::Wire;
use sealane_interop::peers::s_client;
use sealane_interop::site::{HOST, Identity, Site};
use sealane_interop::{base64, binary, eventually, need, ports, sha256};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn handshakes_of_both_versions() {
    need!("openssl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    for (option, name) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let said = s_client(&gateway, [option], &get("/"));
        let text = said.all();
        assert!(text.contains(&format!("New, {name}, Cipher is")), "{text}");
        assert!(text.contains("Verify return code: 0 (ok)"), "{text}");
        assert!(text.contains("\r\n\r\nhello"), "{text}");
    }
}

#[test]
fn groups_and_ciphers() {
    need!("openssl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    for group in ["X25519", "P-256", "P-384"] {
        let said = s_client(&gateway, ["-tls1_3", "-groups", group], &get("/"));
        assert!(said.all().contains("\r\n\r\nhello"), "{group}: {}", said.all());
    }
    for suite in ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"] {
        let said = s_client(&gateway, ["-tls1_3", "-ciphersuites", suite], &get("/"));
        assert!(said.all().contains(&format!("Cipher is {suite}")), "{}", said.all());
    }
    for cipher in ["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"] {
        let said = s_client(&gateway, ["-tls1_2", "-cipher", cipher], &get("/"));
        assert!(said.all().contains(&format!("Cipher is {cipher}")), "{}", said.all());
    }
}

/// `-reconnect` makes five more connections with the first one's session.
fn reconnects(options: &[&str]) {
    let site = Site::new();
    let backend = Backend::saying("hello");
    for lanes in [1, 2] {
        let gateway = before(&site, [backend.url()]).lanes(lanes).start();
        let said = s_client(&gateway, options.iter().chain(&["-tls1_2", "-reconnect"]), &get("/"));
        let text = said.all();
        assert_eq!(text.matches("New, TLSv1.2, Cipher is").count(), 1, "lanes {lanes}: {text}");
        assert_eq!(text.matches("Reused, TLSv1.2, Cipher is").count(), 5, "lanes {lanes}: {text}");
        assert!(text.contains("\r\n\r\nhello"), "lanes {lanes}: {text}");
    }
}

#[test]
fn tls12_resumes_by_ticket_on_any_lane() {
    need!("openssl");
    reconnects(&[]);
}

#[test]
fn tls12_resumes_by_session_id() {
    need!("openssl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let text = s_client(&gateway, ["-tls1_2", "-no_ticket", "-reconnect"], &get("/")).all();
    assert_eq!(text.matches("Reused, TLSv1.2, Cipher is").count(), 5, "{text}");
}

#[test]
fn tls13_resumes_by_ticket_on_any_lane() {
    need!("openssl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    for lanes in [1, 2] {
        let gateway = before(&site, [backend.url()]).lanes(lanes).start();
        let session = site.path().join(format!("session-{lanes}"));
        let session = session.to_str().expect("temporary paths are UTF-8");
        let first = s_client(&gateway, ["-tls1_3", "-sess_out", session], &get("/")).all();
        assert!(first.contains("New, TLSv1.3, Cipher is") && first.contains("\r\n\r\nhello"), "{first}");
        // Often enough that each lane has been met.
        for _ in 0..6 {
            let again = s_client(&gateway, ["-tls1_3", "-sess_in", session], &get("/")).all();
            assert!(again.contains("Reused, TLSv1.3, Cipher is"), "lanes {lanes}: {again}");
            assert!(again.contains("\r\n\r\nhello"), "lanes {lanes}: {again}");
        }
    }
}

#[test]
fn a_ticket_survives_nothing_it_should_not() {
    need!("openssl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let session = site.path().join("session");
    let session = session.to_str().expect("temporary paths are UTF-8");
    s_client(&gateway, ["-tls1_3", "-sess_out", session], &get("/"));
    // Another process has other keys: the ticket is worth nothing there, and does no harm.
    let other = before(&site, [backend.url()]).start();
    let again = s_client(&other, ["-tls1_3", "-sess_in", session], &get("/")).all();
    assert!(again.contains("New, TLSv1.3, Cipher is") && again.contains("\r\n\r\nhello"), "{again}");
}

#[test]
fn no_shared_cipher_or_version_is_an_alert() {
    need!("openssl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    // handshake_failure, for a cipher without forward secrecy.
    let said = s_client(&gateway, ["-tls1_2", "-cipher", "AES128-SHA256"], &get("/")).all();
    assert!(said.contains("SSL alert number 40"), "{said}");
    // protocol_version, for TLS 1.1; the level is what lets OpenSSL 3 offer it at all.
    let said = s_client(&gateway, ["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], &get("/")).all();
    assert!(said.contains("SSL alert number 70"), "{said}");
    let said = s_client(&gateway, ["-tls1_3", "-ciphersuites", "TLS_AES_128_CCM_SHA256"], &get("/")).all();
    assert!(said.contains("SSL alert number 40"), "{said}");
    // A client without forward secrecy names no group at all.
    for reason in ["no_shared_group", "incompatible", "no_shared_cipher"] {
        assert_eq!(gateway.failed_handshakes(reason), 1.0, "{reason}: {}", gateway.metrics());
    }
    assert_eq!(backend.connections(), 0);
    assert_eq!(gateway.get("/").text(), "hello");
}

#[test]
fn alpn_without_a_common_protocol_is_an_alert() {
    need!("openssl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let said = s_client(&gateway, ["-alpn", "sealane-test"], &get("/")).all();
    assert!(said.contains("SSL alert number 120"), "{said}");
    assert_eq!(gateway.failed_handshakes("no_application_protocol"), 1.0);
    let said = s_client(&gateway, ["-alpn", "sealane-test,http/1.1"], &get("/")).all();
    assert!(said.contains("ALPN protocol: http/1.1"), "{said}");
}

#[test]
fn a_name_picks_its_certificate() {
    need!("openssl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let exact = site.issue("exact", &["one.other.test"]);
    let wild = site.issue("wild", &["*.other.test"]);
    let rsa = site.issue_rsa("rsa", &["one.other.test"]);
    let gateway = before(&site, [backend.url()]).identities(&[&site.ecdsa, &exact, &wild, &rsa]).start();
    for (name, subject) in [
        ("one.other.test", "CN = exact"),
        ("two.other.test", "CN = wild"),
        ("x.two.other.test", "CN = ecdsa"),
        ("unknown.test", "CN = ecdsa"),
    ] {
        let said = s_client(&gateway, ["-servername", name], &get("/")).all();
        assert!(said.contains(&format!("subject={subject}")), "{name}: {said}");
    }
    // The same name for a client that knows RSA only.
    let options = ["-servername", "one.other.test", "-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256"];
    let said = s_client(&gateway, options, &get("/")).all();
    assert!(said.contains("subject=CN = rsa"), "{said}");
    let options = ["-servername", "one.other.test", "-tls1_3", "-sigalgs", "rsa_pss_rsae_sha256"];
    let said = s_client(&gateway, options, &get("/")).all();
    assert!(said.contains("subject=CN = rsa"), "{said}");
}

/// Sizes that one of the two libraries which sign does not take, and both forms of a key's file.
#[test]
fn rsa_keys_of_every_size_sign_in_every_scheme() {
    need!("openssl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    for (bits, traditional) in [(2048, true), (2560, false), (3072, false), (4096, true)] {
        let rsa = Identity { cert: site.path().join("own.pem"), key: site.path().join("own-key.pem") };
        let (cert, key) = (rsa.cert.display().to_string(), rsa.key.display().to_string());
        let size = format!("rsa:{bits}");
        let made = ["req", "-x509", "-nodes", "-subj", "/CN=own", "-newkey", &size, "-keyout", &key, "-out", &cert];
        openssl(&[&made[..], &["-addext", "subjectAltName=DNS:localhost"]].concat());
        if traditional {
            openssl(&["rsa", "-in", &key, "-traditional", "-out", &key]);
            let text = std::fs::read_to_string(&key).expect("it was written");
            assert!(text.starts_with("-----BEGIN RSA PRIVATE KEY-----"), "{text:.40}");
        }
        let gateway = before(&site, [backend.url()]).identities(&[&rsa]).start();
        for (version, scheme, digest, kind) in [
            ("-tls1_3", "rsa_pss_rsae_sha256", "SHA256", "RSA-PSS"),
            ("-tls1_3", "rsa_pss_rsae_sha384", "SHA384", "RSA-PSS"),
            ("-tls1_3", "rsa_pss_rsae_sha512", "SHA512", "RSA-PSS"),
            ("-tls1_3", "rsa_pss_rsae_sha512:rsa_pss_rsae_sha256", "SHA256", "RSA-PSS"),
            ("-tls1_2", "rsa_pkcs1_sha256", "SHA256", "RSA"),
            ("-tls1_2", "rsa_pkcs1_sha384", "SHA384", "RSA"),
            ("-tls1_2", "rsa_pkcs1_sha512", "SHA512", "RSA"),
        ] {
            let said = s_client(&gateway, [version, "-sigalgs", scheme], &get("/")).all();
            assert!(said.contains("\r\n\r\nhello"), "{bits} {scheme}: {said}");
            assert!(said.contains(&format!("Peer signing digest: {digest}\n")), "{bits} {scheme}: {said}");
            assert!(said.contains(&format!("Peer signature type: {kind}\n")), "{bits} {scheme}: {said}");
        }
    }
}

fn openssl(arguments: &[&str]) {
    let done = Command::new("openssl").args(arguments).output().expect("openssl runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn client_certificates() {
    need!("openssl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let ours = site.issue("client", &["client.test"]);
    let theirs = Site::new();
    let foreign = theirs.issue("client", &["client.test"]);
    let ca = site.ca.display();
    let require = format!("client_auth = {{ mode = \"require\", ca = \"{ca}\" }}");
    let optional = format!("client_auth = {{ mode = \"optional\", ca = \"{ca}\" }}");
    for (rule, bare_is_served) in [(require, false), (optional, true)] {
        let gateway = before(&site, [backend.url()]).tls(&rule).start();
        for version in ["-tls1_2", "-tls1_3"] {
            let with = |identity: &sealane_interop::site::Identity| {
                let (cert, key) = (identity.cert.display().to_string(), identity.key.display().to_string());
                s_client(&gateway, [version, "-cert", &cert, "-key", &key], &get("/")).all()
            };
            assert!(with(&ours).contains("\r\n\r\nhello"), "{version}, {rule}: {}", with(&ours));
            assert!(!with(&foreign).contains("\r\n\r\nhello"), "{version}, {rule}: {}", with(&foreign));
            let bare = s_client(&gateway, [version], &get("/")).all();
            assert_eq!(bare.contains("\r\n\r\nhello"), bare_is_served, "{version}, {rule}: {bare}");
        }
    }
}

/// A certificate of X.509 version 1 says neither whose it is nor what for: RFC 8446 §4.4.2.2 wants version 3.
#[test]
fn a_client_certificate_of_version_1_gets_an_alert() {
    need!("openssl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let old = site.issue_version_1("old");
    let (cert, key) = (old.cert.display().to_string(), old.key.display().to_string());
    for mode in ["require", "optional"] {
        let rule = format!("client_auth = {{ mode = \"{mode}\", ca = \"{}\" }}", site.ca.display());
        let gateway = before(&site, [backend.url()]).tls(&rule).start();
        for version in ["-tls1_2", "-tls1_3"] {
            let said = s_client(&gateway, [version, "-cert", &cert, "-key", &key], &get("/")).all();
            // certificate_unknown.
            assert!(said.contains("SSL alert number 46"), "{version}, {mode}: {said}");
        }
        assert_eq!(gateway.failed_handshakes("bad_certificate"), 2.0, "{mode}: {}", gateway.metrics());
    }
    assert_eq!(backend.connections(), 0);
}

/// The upstream and the log are told which certificate a client has shown; what a client says of that itself is not passed on.
#[test]
fn what_a_client_has_shown_is_told() {
    need!("openssl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let ours = site.issue("client", &["client.test"]);
    let log = site.path().join("access.log");
    let (address, admin) = (ports::free(), ports::free());
    let rule = format!("client_auth = {{ mode = \"optional\", ca = \"{}\" }}", site.ca.display());
    let text = before(&site, [backend.url()]).tls(&rule).file(address, admin);
    let text = format!("{text}\n[log]\naccess = \"{}\"\n", log.display());
    let mut command = Command::new(binary::sealane());
    command.arg("serve").arg("-c").arg(site.file("shown.toml", text));
    let gateway = launch(&site, command, address, admin);
    let (cert, key) = (ours.cert.display().to_string(), ours.key.display().to_string());
    let forged = "GET / HTTP/1.1\r\nHost: localhost\r\nClient-Cert: :Zm9yZ2Vk:\r\nConnection: close\r\n\r\n";
    let der = ours.load().0.remove(0);
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    for (number, (arguments, field, fingerprint)) in [
        (vec!["-cert", &cert, "-key", &key], vec![format!(":{}:", base64(&der))], sha256(&der)),
        (vec![], vec![], "-".to_owned()),
    ]
    .into_iter()
    .enumerate()
    {
        let said = s_client(&gateway, &arguments, forged.as_bytes()).all();
        assert!(said.contains("\r\n\r\nhello"), "{arguments:?}: {said}");
        assert_eq!(backend.last().all("client-cert"), field, "{arguments:?}");
        assert!(eventually(|| lines().lines().count() == number + 1), "{}", lines());
        let last = lines().lines().last().unwrap_or_default().to_owned();
        assert!(last.ends_with(&format!(" {fingerprint}")), "{last}");
    }
}

/// Of others, nothing is written, over TCP and over QUIC.
#[test]
fn secrets_are_written_of_the_clients_that_are_named() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let started = |name: &str, clients: &str| {
        let (address, admin) = (ports::free(), ports::free());
        let log = site.path().join(format!("{name}.log"));
        let setting = format!("dangerous_key_log = {log:?}\ndangerous_key_log_clients = [{clients:?}]");
        let text = before(&site, [backend.url()]).listener("http3 = true").tls(&setting).file(address, admin);
        let mut command = Command::new(binary::sealane());
        command.arg("serve").arg("-c").arg(site.file(&format!("{name}.toml"), text));
        (launch(&site, command, address, admin), log)
    };
    let lines = |log: &std::path::Path| std::fs::read_to_string(log).unwrap_or_default().lines().count();
    let over_tcp = |gateway: &Gateway, from: Ipv4Addr| {
        let stream = client::tcp_from(from, gateway.address);
        let mut wire = Wire::new(client::handshake(stream, gateway.config(), HOST).expect("a handshake"));
        wire.send(get("/")).expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("it answers").text(), "hello");
    };
    let over_quic = |gateway: &Gateway| {
        let config = h3::over_quic(gateway.config(), false);
        assert_eq!(h3::Client::connect(gateway.address, &config).get("/").status, 200);
    };
    let (other, log) = started("other", "127.0.0.9/32");
    over_tcp(&other, Ipv4Addr::LOCALHOST);
    over_quic(&other);
    assert_eq!(lines(&log), 0, "it is not among those who are named");
    over_tcp(&other, Ipv4Addr::new(127, 0, 0, 9));
    assert!(eventually(|| lines(&log) >= 4), "{}", lines(&log));
    assert!(other.server.log().contains("secrets of the TLS connections of some clients"), "{}", other.server.log());
    let (ours, log) = started("ours", "127.0.0.1");
    over_quic(&ours);
    assert!(eventually(|| lines(&log) >= 4), "{}", lines(&log));
}

/// Secrets leave the process only where it says so.
#[test]
fn secrets_are_written_where_it_says_dangerous() {
    need!("openssl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    for dangerous in [true, false] {
        let (ours, theirs) = (site.path().join("ours.log"), site.path().join("theirs.log"));
        let (address, admin) = (ports::free(), ports::free());
        let setting = if dangerous { "dangerous_key_log = \"ours.log\"" } else { "" };
        let text = before(&site, [backend.url()]).tls(setting).file(address, admin);
        let mut command = Command::new(binary::sealane());
        // What browsers and curl obey is nothing to a server.
        command.env("SSLKEYLOGFILE", &ours).arg("serve").arg("-c").arg(site.file("secrets.toml", text));
        let gateway = launch(&site, command, address, admin);
        for version in ["-tls1_2", "-tls1_3"] {
            let said = s_client(&gateway, [version, "-keylogfile", &theirs.display().to_string()], &get("/")).all();
            assert!(said.contains("\r\n\r\nhello"), "{version}: {said}");
        }
        if !dangerous {
            assert!(!ours.exists(), "secrets have been written");
            continue;
        }
        let warned = gateway.server.log();
        assert!(warned.contains("dangerous_key_log"), "{warned}");
        let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
        let (mine, other) = (read(&ours), read(&theirs));
        let wanted: Vec<&str> = other.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
        assert!(wanted.len() >= 5 && wanted.iter().any(|line| line.starts_with("CLIENT_RANDOM ")), "{other}");
        for line in wanted {
            assert!(mine.lines().any(|own| own.eq_ignore_ascii_case(line)), "no {line} in {mine}");
        }
        let mode = std::fs::metadata(&ours).expect("it was read").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::remove_file(&ours).expect("our own file");
    }
}
