//! Who may see what, for every combination of: the server name of the connection (or none), the host of the request (in several
//! spellings), the version of HTTP (and of TLS), a full, resumed or early handshake, a client with or without a certificate, the name whose
//! session is resumed, and the listener (TLS, another with TLS, plain).
//!
//! What is allowed is said once more here, by [`group`] and [`owner`], without any of the gateway's code.

use rustls::client::{ClientSessionMemoryCache, ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, NamedGroup, SignatureScheme, StreamOwned};
use sealane_http::{BodyLength, Scheme};
use sealane_interop::frames::{self, END_HEADERS, END_STREAM, Frames, kind};
use sealane_interop::gateway::{Gateway, configured};
use sealane_interop::h3;
use sealane_interop::http::Wire;
use sealane_interop::site::Site;
use sealane_interop::{client, ports, say};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Every name, as server name and as host.
const NAMES: [&str; 8] = [
    "public.example.test",
    "secret.example.test",
    "asked.example.test",
    "deep.example.test",
    "a.deep.example.test",
    "b.a.deep.example.test",
    "a.one.example.test",
    "b.a.one.example.test",
];

/// One name of each group: those whose sessions are resumed.
const GROUPS: [&str; 4] = ["public.example.test", "secret.example.test", "asked.example.test", "a.one.example.test"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listener {
    /// Early data is on, and one name's clients are asked for a certificate.
    First,
    Second,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    H1Tls12,
    H1,
    H2,
    H3,
}

const ALL: [Speaks; 4] = [Speaks::H1Tls12, Speaks::H1, Speaks::H2, Speaks::H3];

/// The names that stand under one rule of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Public,
    /// A certificate is required: one name, and all below another.
    Secret,
    /// The same by another rule, for one label.
    One,
    /// A certificate is asked for.
    Asked,
}

/// The model: which rule is for a name.
fn group(listener: Listener, name: &str) -> Group {
    let above = |base: &str| name.strip_suffix(base).map(|labels| labels.split_terminator('.').count());
    match name {
        "secret.example.test" => Group::Secret,
        "asked.example.test" if listener == Listener::First => Group::Asked,
        _ if above(".deep.example.test").is_some_and(|labels| labels >= 1) => Group::Secret,
        _ if above(".one.example.test") == Some(1) => Group::One,
        _ => Group::Public,
    }
}

/// The model: whether a client must show a certificate.
fn requires(group: Group) -> bool {
    matches!(group, Group::Secret | Group::One)
}

/// The model: which host a name belongs to.
fn owner(name: &str) -> &'static str {
    match group(Listener::First, name) {
        Group::Secret if name == "secret.example.test" => "secret",
        Group::Secret => "deep",
        Group::One => "one",
        Group::Asked => "asked",
        Group::Public => "public",
    }
}

/// What a request gets.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Served(String),
    Misdirected,
    /// No connection, or it ended without an answer.
    Refused,
}

/// The model: what a request gets on a connection that has been made.
fn wanted(listener: Listener, sni: &str, host: &str) -> Outcome {
    if group(listener, sni) == group(listener, host) {
        Outcome::Served(owner(host).to_owned())
    } else {
        Outcome::Misdirected
    }
}

fn read(body: &str) -> Outcome {
    match body {
        "421 Misdirected Request\n" => Outcome::Misdirected,
        other => Outcome::Served(other.to_owned()),
    }
}

/// Keeps sessions by nothing at all, so that one got under a name is offered under any other.
#[derive(Debug)]
struct AnyName {
    sessions: ClientSessionMemoryCache,
    kept: AtomicUsize,
}

impl AnyName {
    fn name() -> ServerName<'static> {
        ServerName::try_from("any.example").expect("it is a name")
    }
}

impl ClientSessionStore for AnyName {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.sessions.set_kx_hint(Self::name(), group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.sessions.kx_hint(&Self::name())
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.kept.fetch_add(1, Ordering::Relaxed);
        self.sessions.set_tls12_session(Self::name(), value);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.sessions.tls12_session(&Self::name())
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.sessions.remove_tls12_session(&Self::name());
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.kept.fetch_add(1, Ordering::Relaxed);
        self.sessions.insert_tls13_ticket(Self::name(), value);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.sessions.take_tls13_ticket(&Self::name())
    }
}

/// Shows its certificate while it is switched on.
#[derive(Debug)]
struct Certificate {
    key: Arc<CertifiedKey>,
    shown: AtomicBool,
}

impl rustls::client::ResolvesClientCert for Certificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.shown.load(Ordering::Relaxed).then(|| Arc::clone(&self.key))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

struct World {
    gateway: Gateway,
    second: SocketAddr,
    plain: SocketAddr,
    roots: Arc<rustls::RootCertStore>,
    key: Arc<CertifiedKey>,
    provider: Arc<CryptoProvider>,
}

/// One client: its certificate, and its memory of sessions.
struct Browser {
    speaks: Speaks,
    address: SocketAddr,
    config: Arc<ClientConfig>,
    certificate: Arc<Certificate>,
    sessions: Arc<AnyName>,
}

impl World {
    fn start(site: &Site) -> World {
        let names = [
            "*.example.test",
            "*.deep.example.test",
            "*.a.deep.example.test",
            "*.one.example.test",
            "*.a.one.example.test",
        ];
        let ours = site.issue("all", &names);
        let (second, plain) = (ports::free(), ports::free());
        let certificates = format!("certificates = {{ cert = {:?}, key = {:?} }}", ours.cert, ours.key);
        let require = |names: &str| format!("{{ mode = \"require\", ca = {:?}, for = {names} }},", site.ca);
        let rules =
            require("[\"secret.example.test\", \"**.deep.example.test\"]") + &require("[\"*.one.example.test\"]");
        let asked = require("[\"asked.example.test\"]").replace("require", "optional");
        let mut text = format!(
            "lanes = 2\n[admin]\nlisten = \"@ADMIN@\"\n\
             [[listener]]\naddress = \"@ADDRESS@\"\nhttp3 = true\n\
             [listener.tls]\nearly_data = \"16KiB\"\n{certificates}\nclient_auth = [{rules}{asked}]\n\
             [[listener]]\naddress = \"{second}\"\nhttp3 = true\n\
             [listener.tls]\n{certificates}\nclient_auth = [{rules}]\n\
             [[listener]]\naddress = \"{plain}\"\nh2c = true\n"
        );
        for (names, body) in [
            ("secret.example.test", "secret"),
            ("**.deep.example.test", "deep"),
            ("*.one.example.test", "one"),
            ("asked.example.test", "asked"),
            ("*", "public"),
        ] {
            text += &format!("[[host]]\nnames = \"{names}\"\nrespond = {{ body = \"{body}\" }}\n");
        }
        let gateway = configured(site, &text);
        let provider = Arc::new(client::provider());
        let mut roots = rustls::RootCertStore::empty();
        use rustls::pki_types::pem::PemObject;
        let ca = rustls::pki_types::CertificateDer::from_pem_file(&site.ca).expect("it is PEM");
        roots.add(ca).expect("it is an authority's");
        let (chain, key) = site.issue("client", &["client.example.test"]).load();
        let key = CertifiedKey::from_der(chain, key, &provider).expect("they belong together");
        World { gateway, second, plain, roots: Arc::new(roots), key: Arc::new(key), provider }
    }

    fn browser(&self, listener: Listener, speaks: Speaks) -> Browser {
        let address = match listener {
            Listener::First => self.gateway.address,
            Listener::Second => self.second,
        };
        let version = if speaks == Speaks::H1Tls12 { &rustls::version::TLS12 } else { &rustls::version::TLS13 };
        let certificate = Arc::new(Certificate { key: Arc::clone(&self.key), shown: AtomicBool::new(true) });
        let sessions = Arc::new(AnyName { sessions: ClientSessionMemoryCache::new(8), kept: AtomicUsize::new(0) });
        let config = ClientConfig::builder_with_provider(Arc::clone(&self.provider));
        let config = config.with_protocol_versions(&[version]).expect("the provider knows it");
        let config = config.with_root_certificates(Arc::clone(&self.roots));
        let mut config = config.with_client_cert_resolver(Arc::clone(&certificate) as _);
        config.resumption = rustls::client::Resumption::store(Arc::clone(&sessions) as _);
        config.enable_early_data = true;
        config.alpn_protocols = vec![match speaks {
            Speaks::H1Tls12 | Speaks::H1 => b"http/1.1".to_vec(),
            Speaks::H2 => b"h2".to_vec(),
            Speaks::H3 => b"h3".to_vec(),
        }];
        Browser { speaks, address, config: Arc::new(config), certificate, sessions }
    }
}

/// What came of a connection.
struct Visit {
    /// By host; those after a refusal are not asked for.
    outcomes: Vec<(&'static str, Outcome)>,
    /// The session allowed early data, and the server took it.
    early: (bool, bool),
}

/// The preface of HTTP/2, our settings, and a request on the first stream.
fn h2_opening(host: &str) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frames::frame(kind::SETTINGS, 0, 0, &[]));
    bytes.extend(h2_request(1, host));
    bytes
}

fn h2_request(stream: u32, host: &str) -> Vec<u8> {
    let list = [(":method", "GET"), (":scheme", "https"), (":authority", host), (":path", "/")];
    frames::frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &frames::block(&list))
}

/// The body of the response on a stream; `None` if it is reset, or the connection ends.
fn h2_body<S: std::io::Read + Write>(frames: &mut Frames<S>, stream: u32) -> Option<String> {
    let mut body = Vec::new();
    loop {
        let frame = frames.find(|f| f.stream == stream || f.kind == kind::GOAWAY)?;
        match frame.kind {
            kind::DATA => body.extend_from_slice(&frame.payload),
            kind::RST_STREAM | kind::GOAWAY => return None,
            _ => {}
        }
        if frame.flags & END_STREAM != 0 {
            return Some(String::from_utf8_lossy(&body).into_owned());
        }
    }
}

fn h1_request(host: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes()
}

fn h3_request(host: &str) -> Vec<u8> {
    let mut head = h3::head("GET", "/", &[]);
    head.set_authority(host.as_bytes()).expect("the test's hosts are some");
    let mut bytes = Vec::new();
    sealane_http::h3::encode_request(&mut bytes, &head, BodyLength::None, Scheme::Https, false);
    bytes
}

impl Browser {
    /// Connects under a name, and asks for hosts one after the other; the first as early data, if that may be.
    fn visit(&self, sni: &str, hosts: &[&'static str]) -> Visit {
        match self.speaks {
            Speaks::H3 => self.visit_h3(sni, hosts),
            _ => self.visit_tcp(sni, hosts),
        }
    }

    /// Sends no server name from now on.
    fn hide_name(&mut self) {
        Arc::make_mut(&mut self.config).enable_sni = false;
    }

    fn visit_tcp(&self, sni: &str, hosts: &[&'static str]) -> Visit {
        let refused = |early| Visit { outcomes: vec![(hosts[0], Outcome::Refused)], early };
        let opening = if self.speaks == Speaks::H2 { h2_opening(hosts[0]) } else { h1_request(hosts[0]) };
        let mut session = client::session(&self.config, sni);
        let mut early = (false, false);
        if let Some(mut data) = session.early_data() {
            early.0 = true;
            assert_eq!(data.write(&opening).expect("there is room for it"), opening.len());
        }
        let mut socket = client::tcp(self.address);
        while session.is_handshaking() {
            if session.complete_io(&mut socket).is_err() {
                return refused(early);
            }
        }
        early.1 = session.is_early_data_accepted();
        let mut stream = StreamOwned::new(session, socket);
        if !early.1 && stream.write_all(&opening).is_err() {
            return refused(early);
        }
        let outcomes = if self.speaks == Speaks::H2 { ask_h2(stream, hosts) } else { ask_h1(stream, hosts) };
        Visit { outcomes, early }
    }

    fn visit_h3(&self, sni: &str, hosts: &[&'static str]) -> Visit {
        let mut client = h3::Client::begin_named(self.address, &self.config, sni);
        let mut early = (client.quic.has_0rtt(), false);
        let mut first = None;
        if early.0 {
            client.open_control();
            first = client.try_open(&h3_request(hosts[0]), true);
        }
        let refused = |early| Visit { outcomes: vec![(hosts[0], Outcome::Refused)], early };
        if !client.establish() {
            return refused(early);
        }
        early.1 = early.0 && client.quic.accepted_0rtt();
        if !early.1 {
            first = None;
            client.open_control();
        }
        let mut outcomes = Vec::new();
        for host in hosts {
            let response = match first.take() {
                Some(id) => client.response(id),
                None => client.exchange(&h3_request(host), b""),
            };
            let Ok(response) = response else {
                outcomes.push((*host, Outcome::Refused));
                break;
            };
            let outcome = read(&String::from_utf8_lossy(&response.body));
            assert_eq!(response.status == 421, outcome == Outcome::Misdirected, "{response:?}");
            outcomes.push((*host, outcome));
        }
        // Tickets come with the word that the handshake is confirmed.
        client.until(|c| c.lost.is_some() || c.quic.stats().frame_rx.handshake_done > 0);
        client.close();
        Visit { outcomes, early }
    }

    /// Gets sessions under a name, with a certificate; then shows none.
    fn prime(&self, sni: &'static str) {
        self.certificate.shown.store(true, Ordering::Relaxed);
        let visit = self.visit(sni, &[sni]);
        assert_eq!(visit.outcomes, [(sni, Outcome::Served(owner(sni).to_owned()))], "{sni} by {:?}", self.speaks);
        self.certificate.shown.store(false, Ordering::Relaxed);
    }
}

fn ask_h1(stream: StreamOwned<ClientConnection, TcpStream>, hosts: &[&'static str]) -> Vec<(&'static str, Outcome)> {
    let mut wire = Wire::new(stream);
    let mut outcomes = Vec::new();
    for (i, host) in hosts.iter().enumerate() {
        // The first is on its way.
        let sent = i == 0 || wire.send(h1_request(host)).is_ok();
        let response = if sent { wire.response("GET").ok() } else { None };
        let Some(response) = response else {
            outcomes.push((*host, Outcome::Refused));
            break;
        };
        let outcome = read(&response.text());
        assert_eq!(response.status() == 421, outcome == Outcome::Misdirected, "{response:?}");
        outcomes.push((*host, outcome));
    }
    outcomes
}

fn ask_h2(stream: StreamOwned<ClientConnection, TcpStream>, hosts: &[&'static str]) -> Vec<(&'static str, Outcome)> {
    let mut frames = Frames { stream };
    let mut outcomes = Vec::new();
    for (i, host) in hosts.iter().enumerate() {
        let id = 2 * i as u32 + 1;
        let sent = i == 0 || frames.stream.write_all(&h2_request(id, host)).is_ok();
        let body = if sent { h2_body(&mut frames, id) } else { None };
        let Some(body) = body else {
            outcomes.push((*host, Outcome::Refused));
            break;
        };
        outcomes.push((*host, read(&body)));
    }
    outcomes
}

/// Checks what a connection that has been made, or refused, has got.
#[track_caller]
fn judge(what: &str, listener: Listener, sni: &str, may: bool, hosts: &[&'static str], visit: &Visit) {
    if !may {
        assert_eq!(visit.outcomes, [(hosts[0], Outcome::Refused)], "{what}");
        return;
    }
    let expected: Vec<(&str, Outcome)> = hosts.iter().map(|h| (*h, wanted(listener, sni, h))).collect();
    assert_eq!(visit.outcomes, expected, "{what}");
}

#[test]
fn full_handshakes() {
    let site = Site::new();
    let world = World::start(&site);
    for listener in [Listener::First, Listener::Second] {
        for speaks in ALL {
            for sni in NAMES {
                for shown in [false, true] {
                    let browser = world.browser(listener, speaks);
                    browser.certificate.shown.store(shown, Ordering::Relaxed);
                    let visit = browser.visit(sni, &NAMES);
                    let what = format!("{listener:?}, {speaks:?}, {sni}, certificate {shown}");
                    let may = shown || !requires(group(listener, sni));
                    judge(&what, listener, sni, may, &NAMES, &visit);
                }
            }
        }
    }
    assert!(world.gateway.metric("sealane_misdirected_requests_total") > Some(0.0));
}

/// A client that sends no server name stands under the listener's own rules, whatever it asks for and whichever session it resumes.
#[test]
fn without_a_server_name() {
    let site = Site::new();
    let world = World::start(&site);
    // What the certificate is compared with; the model has it among those without rules of their own.
    let name = "public.example.test";
    for listener in [Listener::First, Listener::Second] {
        for speaks in ALL {
            for shown in [false, true] {
                let mut browser = world.browser(listener, speaks);
                browser.certificate.shown.store(shown, Ordering::Relaxed);
                browser.hide_name();
                let visit = browser.visit(name, &NAMES);
                let what = format!("{listener:?}, {speaks:?}, no name, certificate {shown}");
                judge(&what, listener, name, true, &NAMES, &visit);
            }
            for from in GROUPS {
                let mut browser = world.browser(listener, speaks);
                browser.prime(from);
                browser.hide_name();
                let visit = browser.visit(name, &NAMES);
                let what = format!("{listener:?}, {speaks:?}, no name with a session of {from}");
                judge(&what, listener, name, true, &NAMES, &visit);
            }
        }
    }
}

/// The same host in other words: in capitals, with a trailing dot, with a port.
fn spellings(host: &str) -> [&'static str; 5] {
    let capitals = host.to_ascii_uppercase();
    let mixed: String =
        host.chars().enumerate().map(|(i, c)| if i % 2 == 0 { c.to_ascii_uppercase() } else { c }).collect();
    // As long-lived as the names that are compared with them.
    [format!("{host}."), format!("{host}:443"), format!("{capitals}:8443"), format!("{mixed}.:443"), capitals]
        .map(|spelling| &*spelling.leak())
}

/// However a request spells its host, the same rules hold.
#[test]
fn other_spellings_of_the_host() {
    let site = Site::new();
    let world = World::start(&site);
    let spelled: Vec<(&str, &str)> =
        NAMES.iter().flat_map(|host| spellings(host).map(|spelling| (*host, spelling))).collect();
    let hosts: Vec<&'static str> = spelled.iter().map(|(_, spelling)| *spelling).collect();
    for listener in [Listener::First, Listener::Second] {
        for speaks in ALL {
            for sni in NAMES {
                let visit = world.browser(listener, speaks).visit(sni, &hosts);
                let wanted = spelled.iter().map(|(host, spelling)| (*spelling, wanted(listener, sni, host)));
                let what = format!("{listener:?}, {speaks:?}, {sni}");
                assert_eq!(visit.outcomes, wanted.collect::<Vec<_>>(), "{what}");
            }
        }
    }
    // Without TLS.
    for (host, spelling) in spelled {
        let mut wire = Wire::new(client::tcp(world.plain));
        wire.send(h1_request(spelling)).expect("the gateway reads");
        let response = wire.response("GET").expect("it answers");
        let mut frames = Frames::plain(world.plain, &[]);
        frames.stream.write_all(&h2_request(1, spelling)).expect("the gateway reads");
        let second = h2_body(&mut frames, 1);
        match requires(group(Listener::First, host)) {
            true => assert_eq!((response.status(), second.as_deref()), (308, Some("")), "{spelling}"),
            false => assert_eq!(
                (response.text().as_str(), second.as_deref()),
                (owner(host), Some(owner(host))),
                "{spelling}"
            ),
        }
    }
}

#[test]
fn resumed_under_the_same_and_under_other_names() {
    let site = Site::new();
    let world = World::start(&site);
    let mut resumed = 0;
    for listener in [Listener::First, Listener::Second] {
        for speaks in ALL {
            for from in GROUPS {
                for sni in NAMES {
                    let browser = world.browser(listener, speaks);
                    browser.prime(from);
                    let kept = browser.sessions.kept.load(Ordering::Relaxed) > 0;
                    let visit = browser.visit(sni, &NAMES);
                    let what = format!("{listener:?}, {speaks:?}, {sni} with a session of {from}");
                    // The certificate was shown for the first name, and only for what stands under its rule.
                    let may = !requires(group(listener, sni)) || (kept && sni == from);
                    judge(&what, listener, sni, may, &NAMES, &visit);
                    resumed += usize::from(may && requires(group(listener, sni)));
                    let early = listener == Listener::First && group(listener, from) == Group::Public;
                    let tls13 = speaks != Speaks::H1Tls12;
                    assert_eq!(visit.early.0, early && tls13 && kept, "early data is offered: {what}");
                }
            }
        }
    }
    assert!(resumed >= 12, "{resumed} sessions with a certificate were resumed");
    assert!(world.gateway.metric_with("sealane_handshakes_total", "kind=\"resumed\"") > Some(0.0));
}

#[test]
fn early_data() {
    let site = Site::new();
    let world = World::start(&site);
    for speaks in [Speaks::H1, Speaks::H2, Speaks::H3] {
        let (mut tried, mut accepted) = (0, 0);
        for sni in NAMES {
            // The session of another name is offered where there is none that allows early data.
            let public = group(Listener::First, sni) == Group::Public;
            let from = if public { sni } else { "public.example.test" };
            for host in NAMES {
                let browser = world.browser(Listener::First, speaks);
                browser.prime(from);
                let visit = browser.visit(sni, &[host]);
                let what = format!("{speaks:?}, {sni} for {host}");
                judge(&what, Listener::First, sni, !requires(group(Listener::First, sni)), &[host], &visit);
                if visit.early.1 {
                    assert!(public, "{what}");
                }
                tried += usize::from(visit.early.0);
                accepted += usize::from(visit.early.1);
            }
        }
        say(&format!("{speaks:?}: {accepted} of {tried} early connections accepted"));
        assert!(accepted > 0, "{speaks:?}: none of {tried} was accepted");
    }
}

#[test]
fn without_tls() {
    let site = Site::new();
    let world = World::start(&site);
    for host in NAMES {
        let secret = requires(group(Listener::First, host));
        let mut wire = Wire::new(client::tcp(world.plain));
        wire.send(h1_request(host)).expect("the gateway reads");
        let response = wire.response("GET").expect("it answers");
        let to = format!("https://{host}:{}/", world.gateway.address.port());
        match secret {
            true => assert_eq!((response.status(), response.header("location")), (308, Some(to.as_str())), "{host}"),
            false => assert_eq!((response.status(), response.text().as_str()), (200, owner(host)), "{host}"),
        }
        let mut frames = Frames::plain(world.plain, &[]);
        frames.stream.write_all(&h2_request(1, host)).expect("the gateway reads");
        let body = h2_body(&mut frames, 1);
        assert_eq!(body.as_deref(), Some(if secret { "" } else { owner(host) }), "HTTP/2, {host}");
    }
}
