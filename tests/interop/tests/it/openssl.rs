//! `openssl s_client`: a TLS stack that is not ours, shaking hands in every way that it can.

use sealane_interop::backend::Backend;
use sealane_interop::client::get;
use sealane_interop::gateway::before;
use sealane_interop::need;
use sealane_interop::peers::s_client;
use sealane_interop::site::Site;

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
