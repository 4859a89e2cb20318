use super::*;
use crate::cert::Certificate;
use crate::scan::{Finding, Scan};
use crate::tickets::TicketCount;
use crate::tls::{Kind, Negotiated};

fn certificate_of_today() -> Certificate {
    Certificate {
        subject: "CN=a".into(),
        issuer: "CN=ca".into(),
        serial: "01".into(),
        not_before: String::new(),
        not_after: String::new(),
        days_left: 60,
        key: "ECDSA P-256".into(),
        key_bits: 256,
        signature_algorithm: "ECDSA with SHA-256".into(),
        subject_alternative_names: vec!["a".into()],
        ocsp_url: None,
        must_staple: false,
        self_issued: false,
    }
}

fn version(resumed: bool) -> VersionReport {
    VersionReport {
        offered: true,
        problem: None,
        negotiated: None,
        tickets: TicketCount::default(),
        resumed: Some(resumed),
        early_data_accepted: None,
    }
}

fn accepted(name: &str) -> Finding {
    Finding { name: name.into(), accepted: Some(true), answer: String::new() }
}

/// A server about which there is nothing to say.
fn good() -> Inspection {
    Inspection {
        negotiated: Negotiated {
            version: "TLS 1.3".into(),
            suite: None,
            group: None,
            alpn: None,
            handshake: Kind::Full,
            early_data: None,
        },
        certificate_checked: true,
        certificates: vec![certificate_of_today()],
        ocsp_staple: None,
        tls12: version(true),
        tls13: version(true),
        http2: true,
        status: 200,
        hsts: Some("max-age=63072000; includeSubDomains".into()),
        server: Some("nginx".into()),
        alt_svc: None,
        scan: Some(Scan { groups: vec![accepted("X25519MLKEM768")], ..Scan::default() }),
        ech: None,
    }
}

/// The worst server there is.
fn bad() -> Inspection {
    let mut seen = good();
    seen.certificates[0].days_left = 3;
    seen.certificates[0].ocsp_url = Some("http://ocsp".into());
    seen.certificates[0].key = "RSA".into();
    seen.certificates[0].key_bits = 1024;
    seen.certificates[0].signature_algorithm = "RSA with SHA-1".into();
    seen.certificates[0].subject_alternative_names.clear();
    seen.tls12 = version(false);
    seen.tls13.early_data_accepted = Some(true);
    seen.http2 = false;
    seen.hsts = None;
    seen.server = Some("nginx/1.2.3".into());
    seen.scan =
        Some(Scan { old_versions: vec![accepted("TLS 1.0")], weak_suites: vec![accepted("3DES")], groups: vec![] });
    seen
}

fn ids(seen: &Inspection) -> Vec<&'static str> {
    advise(seen).iter().map(|a| a.id).collect()
}

#[test]
fn a_good_server_gets_no_advice() {
    assert!(ids(&good()).is_empty(), "{:?}", ids(&good()));
}

#[test]
fn each_fault_gets_its_advice_and_the_worst_comes_first() {
    let found = ids(&bad());
    for id in [
        "old-versions",
        "weak-suites",
        "no-post-quantum",
        "certificate-expires-soon",
        "small-key",
        "weak-signature",
        "no-names",
        "no-staple",
        "no-resumption",
        "early-data",
        "hsts",
        "no-http2",
        "server-version",
    ] {
        assert!(found.contains(&id), "{id} is missing from {found:?}");
    }
    assert!(advise(&bad()).is_sorted_by_key(|a| a.severity));
    let mut seen = good();
    seen.tls13.offered = false;
    assert_eq!(ids(&seen), ["no-tls13"]);
    let mut seen = good();
    seen.certificates[0].days_left = -1;
    assert_eq!(ids(&seen), ["certificate-expired"]);
}

#[test]
fn without_a_scan_nothing_is_claimed_about_what_it_would_have_found() {
    let mut seen = bad();
    seen.scan = None;
    for id in ["old-versions", "weak-suites", "no-post-quantum"] {
        assert!(!ids(&seen).contains(&id), "{id}");
    }
}

#[test]
fn nothing_is_claimed_about_what_was_not_found_out() {
    let mut seen = good();
    // The second connection failed.
    seen.tls13.resumed = None;
    seen.tls13.tickets = TicketCount { tls13: 2, ..TicketCount::default() };
    // The server was silent.
    let silent = Finding { name: "X25519MLKEM768".into(), accepted: None, answer: String::new() };
    seen.scan = Some(Scan { groups: vec![silent], ..Scan::default() });
    assert!(ids(&seen).is_empty(), "{:?}", ids(&seen));
    seen.tls13.tickets = TicketCount::default();
    assert_eq!(ids(&seen), ["no-resumption"]);
}

/// Both mistakes of the study that this project may not repeat.
#[test]
fn early_data_is_never_called_unencrypted_and_no_rule_refuses_a_method() {
    for advice in advise(&bad()) {
        let text = format!("{} {} {} {} {}", advice.finding, advice.why, advice.nginx, advice.haproxy, advice.sealane);
        let text = text.to_lowercase();
        for wrong in [
            "unencrypted",
            "not encrypted",
            "cleartext",
            "plaintext",
            "403",
            "deny",
            "return 4",
            "limit_except",
            "meth_post",
        ] {
            assert!(!text.contains(wrong), "{}: {wrong}", advice.id);
        }
    }
    let early = advise(&bad()).into_iter().find(|a| a.id == "early-data").expect("advice");
    assert!(early.why.contains("is encrypted") && early.why.contains("again") && early.why.contains("forward secrecy"));
}

/// The settings of Sealane are those that its reference describes: it staples responses, adds HSTS and serves HTTP/2.
#[test]
fn settings_of_sealane_are_current() {
    let advice = advise(&bad());
    for (id, line) in [
        ("no-staple", "ocsp_stapling = true"),
        ("hsts", "hsts = \"max-age=63072000\""),
        ("no-http2", "alpn = [\"h2\", \"http/1.1\"]"),
        ("server-version", "response_headers = { remove = [\"Server\"] }"),
    ] {
        let found = advice.iter().find(|a| a.id == id).map(|a| a.sealane);
        assert!(found.is_some_and(|lines| lines.lines().any(|l| l == line)), "{id}: {found:?}");
    }
}

#[test]
fn hsts_ages() {
    assert_eq!(hsts_max_age("max-age=300"), Some(300));
    assert_eq!(hsts_max_age("includeSubDomains; Max-Age=\"31536000\" ; preload"), Some(31_536_000));
    assert_eq!(hsts_max_age("includeSubDomains"), None);
    assert_eq!(hsts_max_age("max-age=x"), None);
    let mut seen = good();
    seen.hsts = Some("max-age=300".into());
    assert_eq!(ids(&seen), ["hsts"]);
}
