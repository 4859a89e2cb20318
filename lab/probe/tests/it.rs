//! The probe against real servers on this machine: rustls, quinn, NGINX and openssl where installed, and hostile ones.

#[path = "it/server.rs"]
mod server;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sealane_lab_probe::error::ProbeError;
use sealane_lab_probe::h1::Request;
use sealane_lab_probe::inspect::{Inspection, inspect};
use sealane_lab_probe::net::{Family, Resolver};
use sealane_lab_probe::run::{Measurement, Plan, measure};
use sealane_lab_probe::target::{Overrides, Target};
use sealane_lab_probe::tls::provider;
use sealane_lab_probe::trust::{Trust, Verifier, Verify, verifier};
use sealane_lab_probe::variant::{Variant, parse_list};

use server::{Authority, ONLY_12, RESPONSE, Setup, raw, serve, serve_h3};

const NAME: &str = "probe.test";
const FAR: (i32, u8, u8) = (2199, 1, 1);

struct Probe {
    target: Target,
    request: Request,
    verifier: Arc<Verifier>,
    resolver: Resolver,
    timeout: Duration,
}

impl Probe {
    /// A probe of `https://probe.test/` that is led to `address`.
    fn new(address: SocketAddr, trust: &(Verify, Trust)) -> Self {
        Self::of(NAME, address, trust)
    }

    fn of(name: &str, address: SocketAddr, trust: &(Verify, Trust)) -> Self {
        let target = Target::parse(&format!("https://{name}/")).expect("URL");
        let request = Request {
            method: "GET".into(),
            authority: target.authority.clone(),
            path: target.path.clone(),
            headers: vec![],
        };
        let overrides = Overrides::parse(&[format!("::{address}")], &[]).expect("valid");
        let verifier = verifier(&trust.1, trust.0, &provider(None)).expect("trust");
        let resolver = Resolver::new(overrides, Family::Any);
        Self { target, request, verifier, resolver, timeout: Duration::from_secs(10) }
    }

    fn measure(&mut self, variants: &[Variant], attempts: usize) -> Result<Measurement, ProbeError> {
        let plan = Plan { attempts, warmup: 1, timeout: self.timeout, pause: Duration::ZERO, seed: 1 };
        measure(variants, &self.target, &self.request, &self.verifier, &mut self.resolver, &plan)
    }

    fn one(&mut self, words: &str) -> Result<Measurement, ProbeError> {
        self.measure(&[words.parse().expect("variant")], 1)
    }

    fn inspect(&mut self) -> Inspection {
        inspect(&self.target, &self.request, &self.verifier, &mut self.resolver, self.timeout, true).expect("inspected")
    }
}

fn trusting(authority: &Authority) -> (Verify, Trust) {
    (Verify::Full, Trust::CaFile(authority.file()))
}

/// Chain and name are not checked.
const ANYONE: (Verify, Trust) = (Verify::Signature, Trust::System);

#[test]
fn every_tcp_variant_is_what_it_says() {
    let authority = Authority::new();
    let mut probe = Probe::new(serve(authority.sign(NAME, FAR).2, Setup::default()), &trusting(&authority));
    let variants =
        parse_list("tls1.2,tls1.3,tls1.2+resumed,tls1.3+resumed,0-rtt,tls1.3+pq,tls1.3+p256").expect("valid");
    let measurement = probe.measure(&variants, 4).expect("measured");
    let seen: Vec<(&str, &str, bool, usize)> = measurement
        .variants
        .iter()
        .map(|m| {
            assert_eq!(m.statuses.get(&200), Some(&4), "{}", m.variant);
            assert!(m.also_negotiated.is_empty(), "{}: {:?}", m.variant, m.also_negotiated);
            assert_eq!((m.samples.len(), m.body_bytes), (4, 5));
            for t in &m.samples {
                let moments = [t.namelookup, t.connect, t.appconnect, t.starttransfer, t.total];
                assert!(moments.is_sorted() && t.connect > 0 && t.appconnect > t.connect, "{t:?}");
            }
            let n = &m.negotiated;
            (m.variant.as_str(), n.version.as_str(), n.handshake.is_resumed(), m.early_data_accepted)
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("tls1.2", "TLS 1.2", false, 0),
            ("tls1.3", "TLS 1.3", false, 0),
            ("tls1.2+resumed", "TLS 1.2", true, 0),
            ("tls1.3+resumed", "TLS 1.3", true, 0),
            ("0-rtt", "TLS 1.3", true, 4),
            ("tls1.3+pq", "TLS 1.3", false, 0),
            ("tls1.3+p256", "TLS 1.3", false, 0),
        ]
    );
    let group = |i: usize| measurement.variants[i].negotiated.group.clone();
    assert_eq!(group(5).as_deref(), Some("X25519MLKEM768"));
    assert_eq!(group(6).as_deref(), Some("secp256r1"));
    assert_eq!(measurement.pairs.len(), 6);
}

#[test]
fn an_inspection_sees_what_the_server_was_given() {
    let authority = Authority::new();
    let mut probe = Probe::new(serve(authority.sign(NAME, FAR).2, Setup::default()), &trusting(&authority));
    let seen = probe.inspect();
    assert_eq!(
        seen.ech.as_ref().and_then(|ech| ech.offered),
        Some(false),
        "rustls has no ECH for servers: {:?}",
        seen.ech
    );
    assert!(seen.certificate_checked && seen.tls12.offered && seen.tls13.offered && !seen.http2);
    assert_eq!(seen.certificates[0].subject_alternative_names, [NAME]);
    assert_eq!(seen.certificates[0].issuer, "CN=probe's test authority");
    assert_eq!((seen.tls12.resumed, seen.tls13.resumed), (Some(true), Some(true)));
    assert!(seen.tls13.tickets.tls13 >= 1, "{:?}", seen.tls13.tickets);
    // rustls' servers write a day into their tickets; that it is visible at all is what is tested.
    assert_eq!(seen.tls13.tickets.lifetime_s, Some(86_400));
    assert_eq!((seen.tls13.tickets.max_early_data, seen.tls13.early_data_accepted), (4096, Some(true)));
    assert_eq!((seen.hsts.as_deref(), seen.server.as_deref()), (Some("max-age=300"), Some("test/1.0")));
    assert_eq!(seen.ocsp_staple, None);
    let scan = seen.scan.expect("scanned");
    assert!(scan.old_versions.iter().chain(&scan.weak_suites).all(|f| f.accepted == Some(false)), "{scan:?}");
    assert!(scan.post_quantum() && scan.accepted("x25519") && !scan.accepted("x448"), "{scan:?}");
}

#[test]
fn what_a_server_lacks_is_reported_as_lacking() {
    let authority = Authority::new();
    let setup = Setup { versions: ONLY_12, tickets: false, early_data: 0, ..Setup::default() };
    let mut probe = Probe::new(serve(authority.sign(NAME, FAR).2, setup), &trusting(&authority));
    let seen = probe.inspect();
    assert!(seen.tls12.offered && !seen.tls13.offered);
    assert!(seen.tls13.problem.as_deref().is_some_and(|p| p.contains("version")), "{:?}", seen.tls13.problem);
    assert_eq!(seen.tls12.resumed, None);
    assert!(sealane_lab_probe::advice::advise(&seen).iter().any(|a| a.id == "no-tls13"));
    let error = probe.one("tls1.2+resumed").expect_err("no tickets");
    assert!(matches!(&error, ProbeError::NotOffered(p) if p.contains("no session tickets")), "{error}");
    assert_eq!(error.exit_code(), 3);

    let setup = Setup { early_data: 0, ..Setup::default() };
    let mut probe = Probe::new(serve(authority.sign(NAME, FAR).2, setup), &trusting(&authority));
    let error = probe.one("0-rtt").expect_err("no early data");
    assert!(error.to_string().contains("allow no early data"), "{error}");
    let error = probe.one("h2").expect_err("no HTTP/2");
    assert!(error.to_string().contains("HTTP"), "{error}");
}

#[test]
fn a_post_is_never_sent_as_early_data() {
    let authority = Authority::new();
    let mut probe = Probe::new(serve(authority.sign(NAME, FAR).2, Setup::default()), &trusting(&authority));
    probe.request.method = "POST".into();
    let error = probe.one("0-rtt").expect_err("refused");
    assert!(error.to_string().contains("replay"), "{error}");
    assert_eq!(error.exit_code(), 2);
    assert!(probe.one("tls1.3").is_ok());
}

#[test]
fn certificate_trouble_names_the_check_and_the_way_on() {
    let (authority, stranger) = (Authority::new(), Authority::named("a stranger"));
    let namesake = Authority::new();
    let good = serve(authority.sign(NAME, FAR).2, Setup::default());
    let expired = serve(authority.sign(NAME, (2021, 1, 1)).2, Setup::default());
    for (name, address, trust, problem, remedy) in [
        (NAME, good, trusting(&stranger), "issuer is not trusted", "--cacert"),
        (NAME, good, trusting(&namesake), "was not signed by", "same name"),
        ("other.test", good, trusting(&authority), "for probe.test", "--connect-to"),
        (NAME, expired, trusting(&authority), "expired", "renew"),
    ] {
        let error = Probe::of(name, address, &trust).one("tls1.3").expect_err(problem);
        let text = error.to_string();
        assert!(text.contains(problem) && text.contains(remedy) && text.contains("--insecure"), "{text}");
        assert_eq!((error.kind(), error.exit_code()), ("certificate", 3));
        assert!(Probe::of(name, address, &ANYONE).one("tls1.3").is_ok());
    }
}

#[test]
fn every_http3_variant_is_what_it_says() {
    let authority = Authority::new();
    let address = serve_h3(authority.sign(NAME, FAR).2);
    let mut probe = Probe::new(address, &trusting(&authority));
    let measurement = probe.measure(&parse_list("h3,h3+resumed,h3+0-rtt").expect("valid"), 3).expect("measured");
    let seen: Vec<(bool, usize)> =
        measurement.variants.iter().map(|m| (m.negotiated.handshake.is_resumed(), m.early_data_accepted)).collect();
    assert_eq!(seen, [(false, 0), (true, 0), (true, 3)]);
    for m in &measurement.variants {
        assert_eq!((m.negotiated.alpn.as_deref(), m.body_bytes, m.statuses.get(&200)), (Some("h3"), 5, Some(&3)));
        assert!(m.samples.iter().all(|t| t.connect == t.namelookup && t.appconnect > t.connect));
    }
    let stranger = Authority::named("a stranger");
    let error = Probe::new(address, &trusting(&stranger)).one("h3").expect_err("not trusted");
    assert!(error.to_string().contains("issuer is not trusted"), "{error}");
}

#[test]
fn a_silent_udp_port_is_a_timeout() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let mut probe = Probe::new(silent.local_addr().expect("address"), &ANYONE);
    probe.timeout = Duration::from_millis(200);
    assert!(matches!(probe.one("h3"), Err(ProbeError::Timeout(_))));
}

#[test]
fn hostile_servers_before_tls_end_in_an_error() {
    let junk = raw(|mut s| s.write_all(&[0xff; 100_000]).ok());
    let ssh = raw(|mut s| s.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").ok());
    let endless = raw(|mut s| {
        // One-byte handshake records without end.
        while s.write_all(&[22, 3, 3, 0, 1, 2]).is_ok() {}
        Some(())
    });
    let closing = raw(|_| Some(()));
    let silent = raw(|mut s| s.read_exact(&mut [0; 1 << 20]).ok());
    for (name, address) in
        [("junk", junk), ("ssh", ssh), ("endless", endless), ("closing", closing), ("silent", silent)]
    {
        let mut probe = Probe::new(address, &ANYONE);
        probe.timeout = Duration::from_millis(300);
        for words in ["tls1.2", "tls1.3", "h2"] {
            let error = probe.one(words).expect_err(name);
            assert_eq!(error.exit_code(), 3, "{name} {words}: {error}");
        }
        let scan = sealane_lab_probe::scan::scan(&probe.target, &mut probe.resolver, Duration::from_millis(300))
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(scan.old_versions.iter().chain(&scan.groups).all(|f| f.accepted != Some(true)), "{name}: {scan:?}");
    }
}

#[test]
fn hostile_servers_after_tls_end_in_an_error() {
    let authority = Authority::new();
    for (response, endless) in [
        (&b"SSH-2.0-x\r\n\r\n"[..], false),
        (b"HTTP/1.1 200 OK\r\nX: ", true),
        (b"a: b\r\n", true),
        (b"HTTP/1.1 100 Continue\r\n\r\n", true),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", false),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", false),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n", false),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", false),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\n", false),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxyz\r\n", false),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", false),
    ] {
        let setup = Setup { response, endless, ..Setup::default() };
        let mut probe = Probe::new(serve(authority.sign(NAME, FAR).2, setup), &trusting(&authority));
        probe.timeout = Duration::from_millis(500);
        let error = probe.one("tls1.3+h1").expect_err(&String::from_utf8_lossy(response));
        assert_eq!(error.exit_code(), 3, "{error}");
    }
    let setup = Setup {
        response:
            b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n\
                    2\r\nde\r\n0\r\nTrailer: x\r\n\r\n",
        ..Setup::default()
    };
    let mut probe = Probe::new(serve(authority.sign(NAME, FAR).2, setup), &trusting(&authority));
    assert_eq!(probe.one("tls1.3+h1").expect("a correct response").variants[0].body_bytes, 5);
    assert!(RESPONSE.ends_with(b"hello"));
}

#[path = "it/peers.rs"]
mod peers;
