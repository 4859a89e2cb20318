//! Who may see what, for every combination of: the server name of the connection (or none), the host of the request (in several
//! spellings), the version of HTTP (and of TLS), a full, resumed or early handshake, the state of the client's certificate
//! ([`State`]), the name whose session is resumed, and the listener (TLS, another with TLS, plain); and what holds after a reload
//! or an upgrade that changes the rules (`changes`).
//!
//! What is allowed is said once more here, by [`Rules`] and [`owner`], without any of the gateway's code.

mod certificates;
mod changes;

use crate::operating::Operated;

use rustls::client::{ClientSessionMemoryCache, ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, NamedGroup, SignatureScheme, StreamOwned};
use sealane_http::{BodyLength, Scheme};
use sealane_interop::frames::{self, END_HEADERS, END_STREAM, Frames, kind};
use sealane_interop::gateway::Gateway;
use sealane_interop::h3;
use sealane_interop::http::Wire;
use sealane_interop::site::Site;
use sealane_interop::{client, ports, say};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// The model: whether a client must show a certificate.
fn requires(group: Group) -> bool {
    matches!(group, Group::Secret | Group::One)
}

/// The model: which host a name belongs to.
fn owner(name: &str) -> &'static str {
    match RULES.group(Listener::First, name) {
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

/// A client's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The client has none.
    Without,
    Valid,
    Expired,
    Revoked,
    /// From an authority with the same name and another key.
    OtherAuthority,
    /// For servers only.
    WrongUsage,
}

/// In the order of [`World::keys`].
const STATES: [State; 6] =
    [State::Without, State::Valid, State::Expired, State::Revoked, State::OtherAuthority, State::WrongUsage];

/// What the configuration says about clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rules {
    /// Without them, every name is served to everybody.
    on: bool,
    /// The other authority's certificates are valid, instead of ours.
    other_authority: bool,
    /// The list revokes the certificate that is otherwise valid, instead of the one that is otherwise revoked.
    revokes_valid: bool,
    /// `secret.example.test` and `asked.example.test` have changed places.
    swapped: bool,
}

/// Those of most tests.
const RULES: Rules = Rules { on: true, other_authority: false, revokes_valid: false, swapped: false };

/// What a session must not be carried across.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    None,
    Certificate { group: Group, other_authority: bool, revokes_valid: bool, swapped: bool },
}

/// The model.
impl Rules {
    /// Which rule is for a name.
    fn group(self, listener: Listener, name: &str) -> Group {
        let name = match name {
            "secret.example.test" if self.swapped => "asked.example.test",
            "asked.example.test" if self.swapped => "secret.example.test",
            name => name,
        };
        let above = |base: &str| name.strip_suffix(base).map(|labels| labels.split_terminator('.').count());
        match name {
            _ if !self.on => Group::Public,
            "secret.example.test" => Group::Secret,
            "asked.example.test" if listener == Listener::First => Group::Asked,
            _ if above(".deep.example.test").is_some_and(|labels| labels >= 1) => Group::Secret,
            _ if above(".one.example.test") == Some(1) => Group::One,
            _ => Group::Public,
        }
    }

    /// The same with all that clients are judged by.
    fn rule(self, listener: Listener, name: &str) -> Rule {
        match self.group(listener, name) {
            Group::Public => Rule::None,
            group => Rule::Certificate {
                group,
                other_authority: self.other_authority,
                revokes_valid: self.revokes_valid,
                // The names of this rule remain.
                swapped: self.swapped && group != Group::One,
            },
        }
    }

    /// Whether a rule is one of a listener's.
    fn has(self, listener: Listener, rule: Rule) -> bool {
        rule == Rule::None || NAMES.iter().any(|name| self.rule(listener, name) == rule)
    }

    /// Whether a certificate is good.
    fn accepts(self, state: State) -> bool {
        match state {
            State::Without | State::Expired | State::WrongUsage => false,
            State::Valid => !self.other_authority && !self.revokes_valid,
            State::Revoked => !self.other_authority && self.revokes_valid,
            State::OtherAuthority => self.other_authority,
        }
    }

    /// Whether a client gets a connection by a full handshake.
    fn admits(self, listener: Listener, sni: &str, state: State) -> bool {
        match self.group(listener, sni) {
            Group::Public => true,
            Group::Secret | Group::One => self.accepts(state),
            Group::Asked => state == State::Without || self.accepts(state),
        }
    }

    /// What a request gets on a connection that has been made.
    fn wanted(self, listener: Listener, sni: &str, host: &str) -> Outcome {
        if self.group(listener, sni) == self.group(listener, host) {
            Outcome::Served(owner(host).to_owned())
        } else {
            Outcome::Misdirected
        }
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

/// Shows a certificate, or none; whichever authorities the server names.
#[derive(Debug)]
struct Certificate {
    /// In the order of [`STATES`].
    keys: Arc<[Option<Arc<CertifiedKey>>; 6]>,
    shown: AtomicUsize,
}

impl rustls::client::ResolvesClientCert for Certificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.keys[self.shown.load(Ordering::Relaxed)].clone()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

struct World {
    operated: Operated,
    site: Site,
    other: Site,
    second: SocketAddr,
    plain: SocketAddr,
    roots: Arc<rustls::RootCertStore>,
    /// The clients' certificates, in the order of [`STATES`].
    keys: Arc<[Option<Arc<CertifiedKey>>; 6]>,
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

/// Serial numbers.
const VALID: u64 = 11;
const REVOKED: u64 = 12;

impl World {
    fn start() -> World {
        World::with(RULES)
    }

    fn with(rules: Rules) -> World {
        let (site, other) = (Site::new(), Site::new());
        let names = [
            "*.example.test",
            "*.deep.example.test",
            "*.a.deep.example.test",
            "*.one.example.test",
            "*.a.one.example.test",
        ];
        site.issue("all", &names);
        site.revocations("revokes-revoked.crl", &[REVOKED]);
        site.revocations("revokes-valid.crl", &[VALID]);
        other.revocations("revokes-nobody.crl", &[]);
        let provider = Arc::new(client::provider());
        let name = ["client.example.test"];
        let keys = STATES.map(|state| {
            let identity = match state {
                State::Without => return None,
                State::Valid => site.issue_numbered("valid", &name, VALID),
                State::Expired => site.issue_within("expired", &name, 1_500_000_000, 1_600_000_000),
                State::Revoked => site.issue_numbered("revoked", &name, REVOKED),
                State::OtherAuthority => other.issue_numbered("other", &name, VALID),
                State::WrongUsage => site.issue_for_servers("servers", &name),
            };
            let (chain, key) = identity.load();
            Some(Arc::new(CertifiedKey::from_der(chain, key, &provider).expect("they belong together")))
        });
        let (first, second, plain) = (ports::free(), ports::free(), ports::free());
        let file = |admin: &str| configuration(&site, &other, admin, [first, second, plain], rules);
        let operated = Operated::start(&site, 2, file, first);
        let mut roots = rustls::RootCertStore::empty();
        use rustls::pki_types::pem::PemObject;
        let ca = rustls::pki_types::CertificateDer::from_pem_file(&site.ca).expect("it is PEM");
        roots.add(ca).expect("it is an authority's");
        World { operated, site, other, second, plain, roots: Arc::new(roots), keys: Arc::new(keys), provider }
    }

    fn gateway(&self) -> &Gateway {
        &self.operated.gateway
    }

    /// Writes other rules into the configuration file.
    fn write(&self, rules: Rules) {
        let addresses = [self.gateway().address, self.second, self.plain];
        self.operated.write(&configuration(&self.site, &self.other, &self.operated.admin_lines, addresses, rules));
    }

    fn browser(&self, listener: Listener, speaks: Speaks) -> Browser {
        let address = match listener {
            Listener::First => self.gateway().address,
            Listener::Second => self.second,
        };
        let version = if speaks == Speaks::H1Tls12 { &rustls::version::TLS12 } else { &rustls::version::TLS13 };
        let certificate = Arc::new(Certificate { keys: Arc::clone(&self.keys), shown: AtomicUsize::new(0) });
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

/// The configuration file: listeners with and without TLS, the hosts, and the rules.
fn configuration(site: &Site, other: &Site, admin: &str, addresses: [SocketAddr; 3], rules: Rules) -> String {
    let [first, second, plain] = addresses;
    let (ca, list) = match (rules.other_authority, rules.revokes_valid) {
        (true, _) => (&other.ca, other.path().join("revokes-nobody.crl")),
        (false, true) => (&site.ca, site.path().join("revokes-valid.crl")),
        (false, false) => (&site.ca, site.path().join("revokes-revoked.crl")),
    };
    let rule =
        |mode: &str, names: &str| format!("{{ mode = \"{mode}\", ca = {ca:?}, crl = {list:?}, for = {names} }},");
    let (secret, asked) = match rules.swapped {
        false => ("secret.example.test", "asked.example.test"),
        true => ("asked.example.test", "secret.example.test"),
    };
    let require = rule("require", &format!("[\"{secret}\", \"**.deep.example.test\"]"))
        + &rule("require", "[\"*.one.example.test\"]");
    let optional = rule("optional", &format!("[\"{asked}\"]"));
    let client_auth = |rules_of: &str| if rules.on { format!("client_auth = [{rules_of}]\n") } else { String::new() };
    let certificates = format!(
        "certificates = {{ cert = {:?}, key = {:?} }}",
        site.path().join("all.pem"),
        site.path().join("all-key.pem")
    );
    let mut text = format!(
        "{admin}[limits]\nidle_timeout = \"30m\"\nkeepalive_timeout = \"30m\"\n\
         [[listener]]\naddress = \"{first}\"\nhttp3 = true\n\
         [listener.tls]\nearly_data = \"16KiB\"\n{certificates}\n{}\
         [[listener]]\naddress = \"{second}\"\nhttp3 = true\n\
         [listener.tls]\n{certificates}\n{}\
         [[listener]]\naddress = \"{plain}\"\nh2c = true\n",
        client_auth(&(require.clone() + &optional)),
        client_auth(&require),
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
    text
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

/// An open connection.
struct Open {
    stream: Stream,
    /// The first request has been sent as the connection began.
    begun: bool,
    /// The session allowed early data, and the server took it.
    early: (bool, bool),
}

enum Stream {
    H1(Wire<client::Tls>),
    /// With the next stream's number.
    H2(Frames<client::Tls>, u32),
    /// With the stream of the request that was early data.
    H3(Box<h3::Client>, Option<quinn_proto::StreamId>),
}

impl Open {
    /// What a request for a host gets.
    fn ask(&mut self, host: &str) -> Outcome {
        let begun = std::mem::take(&mut self.begun);
        match &mut self.stream {
            Stream::H1(wire) => {
                let sent = begun || wire.send(h1_request(host)).is_ok();
                let Some(response) = sent.then(|| wire.response("GET").ok()).flatten() else { return Outcome::Refused };
                let outcome = read(&response.text());
                assert_eq!(response.status() == 421, outcome == Outcome::Misdirected, "{response:?}");
                outcome
            }
            Stream::H2(frames, next) => {
                let id = *next;
                *next += 2;
                let sent = begun || frames.stream.write_all(&h2_request(id, host)).is_ok();
                let body = sent.then(|| h2_body(frames, id)).flatten();
                body.map_or(Outcome::Refused, |body| read(&body))
            }
            Stream::H3(client, first) => {
                let response = match first.take() {
                    Some(id) => client.response(id),
                    None => client.exchange(&h3_request(host), b""),
                };
                let Ok(response) = response else { return Outcome::Refused };
                let outcome = read(&String::from_utf8_lossy(&response.body));
                assert_eq!(response.status == 421, outcome == Outcome::Misdirected, "{response:?}");
                outcome
            }
        }
    }

    /// Ends it, once the client has its tickets.
    fn close(self) {
        if let Stream::H3(mut client, _) = self.stream {
            // They come with the word that the handshake is confirmed.
            client.until(|c| c.lost.is_some() || c.quic.stats().frame_rx.handshake_done > 0);
            client.close();
        }
    }
}

impl Browser {
    /// Shows this certificate from now on.
    fn show(&self, state: State) {
        self.certificate.shown.store(state as usize, Ordering::Relaxed);
    }

    /// Sends no server name from now on.
    fn hide_name(&mut self) {
        Arc::make_mut(&mut self.config).enable_sni = false;
    }

    /// Connects under a name, and asks for hosts one after the other; the first as early data, if that may be.
    fn visit(&self, sni: &str, hosts: &[&'static str]) -> Visit {
        let mut open = match self.open(sni, hosts[0]) {
            Ok(open) => open,
            Err(early) => return Visit { outcomes: vec![(hosts[0], Outcome::Refused)], early },
        };
        let mut outcomes = Vec::new();
        for host in hosts {
            let outcome = open.ask(host);
            let ended = outcome == Outcome::Refused;
            outcomes.push((*host, outcome));
            if ended {
                break;
            }
        }
        let early = open.early;
        open.close();
        Visit { outcomes, early }
    }

    /// Connects under a name to ask for a host first. The error says whether there was early data.
    fn open(&self, sni: &str, host: &str) -> Result<Open, (bool, bool)> {
        match self.speaks {
            Speaks::H3 => self.open_h3(sni, host),
            _ => self.open_tcp(sni, host),
        }
    }

    fn open_tcp(&self, sni: &str, host: &str) -> Result<Open, (bool, bool)> {
        let opening = if self.speaks == Speaks::H2 { h2_opening(host) } else { h1_request(host) };
        let mut session = client::session(&self.config, sni);
        let mut early = (false, false);
        if let Some(mut data) = session.early_data() {
            early.0 = true;
            assert_eq!(data.write(&opening).expect("there is room for it"), opening.len());
        }
        let mut socket = client::tcp(self.address);
        while session.is_handshaking() {
            if session.complete_io(&mut socket).is_err() {
                return Err(early);
            }
        }
        early.1 = session.is_early_data_accepted();
        let mut stream = StreamOwned::new(session, socket);
        if !early.1 && stream.write_all(&opening).is_err() {
            return Err(early);
        }
        let stream = match self.speaks {
            Speaks::H2 => Stream::H2(Frames { stream }, 1),
            _ => Stream::H1(Wire::new(stream)),
        };
        Ok(Open { stream, begun: true, early })
    }

    fn open_h3(&self, sni: &str, host: &str) -> Result<Open, (bool, bool)> {
        let mut client = h3::Client::begin_named(self.address, &self.config, sni);
        let mut early = (client.quic.has_0rtt(), false);
        let mut first = None;
        if early.0 {
            client.open_control();
            first = client.try_open(&h3_request(host), true);
        }
        if !client.establish() {
            return Err(early);
        }
        early.1 = early.0 && client.quic.accepted_0rtt();
        if !early.1 {
            first = None;
            client.open_control();
        }
        Ok(Open { stream: Stream::H3(Box::new(client), first), begun: false, early })
    }

    /// Gets sessions under a name, with a certificate; then shows none.
    fn prime(&self, sni: &'static str, state: State) {
        self.show(state);
        let visit = self.visit(sni, &[sni]);
        let what = format!("{sni} by {:?}, {state:?}", self.speaks);
        assert_eq!(visit.outcomes, [(sni, Outcome::Served(owner(sni).to_owned()))], "{what}");
        self.show(State::Without);
    }

    /// Whether the client has a session.
    fn has_session(&self) -> bool {
        self.sessions.kept.load(Ordering::Relaxed) > 0
    }
}

/// Checks what a connection that has been made, or refused, has got.
#[track_caller]
fn judge(what: &str, rules: Rules, listener: Listener, sni: &str, may: bool, hosts: &[&'static str], visit: &Visit) {
    assert!(!visit.early.1 || rules.group(listener, sni) == Group::Public, "early data is accepted: {what}");
    if !may {
        assert_eq!(visit.outcomes, [(hosts[0], Outcome::Refused)], "{what}");
        return;
    }
    let expected: Vec<(&str, Outcome)> = hosts.iter().map(|h| (*h, rules.wanted(listener, sni, h))).collect();
    assert_eq!(visit.outcomes, expected, "{what}");
}

/// A client that sends no server name stands under the listener's own rules, whatever it asks for and whichever session it resumes.
#[test]
fn without_a_server_name() {
    let world = World::start();
    // What the certificate is compared with; the model has it among those without rules of their own.
    let name = "public.example.test";
    for listener in [Listener::First, Listener::Second] {
        for speaks in ALL {
            for state in STATES {
                let mut browser = world.browser(listener, speaks);
                browser.show(state);
                browser.hide_name();
                let visit = browser.visit(name, &NAMES);
                let what = format!("{listener:?}, {speaks:?}, no name, {state:?}");
                judge(&what, RULES, listener, name, true, &NAMES, &visit);
            }
            for from in GROUPS {
                let mut browser = world.browser(listener, speaks);
                browser.prime(from, State::Valid);
                browser.hide_name();
                let visit = browser.visit(name, &NAMES);
                let what = format!("{listener:?}, {speaks:?}, no name with a session of {from}");
                judge(&what, RULES, listener, name, true, &NAMES, &visit);
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
    let world = World::start();
    let spelled: Vec<(&str, &str)> =
        NAMES.iter().flat_map(|host| spellings(host).map(|spelling| (*host, spelling))).collect();
    let hosts: Vec<&'static str> = spelled.iter().map(|(_, spelling)| *spelling).collect();
    for listener in [Listener::First, Listener::Second] {
        for speaks in ALL {
            for sni in NAMES {
                let browser = world.browser(listener, speaks);
                browser.show(State::Valid);
                let visit = browser.visit(sni, &hosts);
                let wanted = spelled.iter().map(|(host, spelling)| (*spelling, RULES.wanted(listener, sni, host)));
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
        match requires(RULES.group(Listener::First, host)) {
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
    let world = World::start();
    let mut resumed = 0;
    for listener in [Listener::First, Listener::Second] {
        for speaks in ALL {
            for from in GROUPS {
                for sni in NAMES {
                    let browser = world.browser(listener, speaks);
                    browser.prime(from, State::Valid);
                    let kept = browser.has_session();
                    let visit = browser.visit(sni, &NAMES);
                    let what = format!("{listener:?}, {speaks:?}, {sni} with a session of {from}");
                    // The certificate was shown for the first name, and only for what stands under its rule.
                    let may = !requires(RULES.group(listener, sni)) || (kept && sni == from);
                    judge(&what, RULES, listener, sni, may, &NAMES, &visit);
                    resumed += usize::from(may && requires(RULES.group(listener, sni)));
                    let early = listener == Listener::First && RULES.group(listener, from) == Group::Public;
                    let tls13 = speaks != Speaks::H1Tls12;
                    assert_eq!(visit.early.0, early && tls13 && kept, "early data is offered: {what}");
                }
            }
        }
    }
    assert!(resumed >= 12, "{resumed} sessions with a certificate were resumed");
    assert!(world.gateway().metric_with("sealane_handshakes_total", "kind=\"resumed\"") > Some(0.0));
}

#[test]
fn early_data() {
    let world = World::start();
    for speaks in [Speaks::H1, Speaks::H2, Speaks::H3] {
        let (mut tried, mut accepted) = (0, 0);
        for sni in NAMES {
            // The session of another name is offered where there is none that allows early data.
            let public = RULES.group(Listener::First, sni) == Group::Public;
            let from = if public { sni } else { "public.example.test" };
            for host in NAMES {
                let browser = world.browser(Listener::First, speaks);
                browser.prime(from, State::Valid);
                let visit = browser.visit(sni, &[host]);
                let what = format!("{speaks:?}, {sni} for {host}");
                judge(
                    &what,
                    RULES,
                    Listener::First,
                    sni,
                    !requires(RULES.group(Listener::First, sni)),
                    &[host],
                    &visit,
                );
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
    changes::plain(&World::start(), RULES, "as it was started");
}
