//! A request to be sent to both programs, and what a configuration asks to be tried.

use crate::tree::{Place, Scope};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// What the recording back-end does with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behaviour {
    /// 200.
    #[default]
    Answer,
    /// 302 to the host that it was asked for.
    Redirect,
    /// 302 to its own address.
    RedirectToItself,
    /// The same, where `proxy_pass` of NGINX has a path: NGINX replaces its URL.
    RedirectToPass,
    /// 500.
    Error,
    /// 404.
    Missing,
    /// 503.
    Unavailable,
    /// 403, as a server that is asked whether a request may pass.
    Forbidden,
    /// 200, after a while.
    Hold,
}

impl Behaviour {
    /// The word in the request's header.
    pub fn word(self) -> &'static str {
        match self {
            Self::Answer => "answer",
            Self::Redirect => "redirect",
            Self::RedirectToItself | Self::RedirectToPass => "redirect-to-itself",
            Self::Error => "error",
            Self::Missing => "missing",
            Self::Unavailable => "unavailable",
            Self::Forbidden => "forbidden",
            Self::Hold => "hold",
        }
    }
}

/// The version of HTTP in which a request is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Over {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2, by ALPN or by prior knowledge.
    Http2,
    /// HTTP/3. An original that has no HTTP/3 gets the request over TLS, at the same address.
    Http3,
}

/// The certificate that a client shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// None.
    #[default]
    None,
    /// One of the CA that the configuration names.
    Known,
    /// One of the same CA, of another subject with the same common name.
    Namesake,
    /// One of another CA.
    Stranger,
}

/// How many are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// One.
    #[default]
    Once,
    /// So many at once, from one address: what a limit refuses.
    AtOnce(u32),
}

/// The type of gRPC's content.
pub const GRPC: &str = "application/grpc";
/// The length of an empty message of gRPC: a flag, and a length of four bytes.
pub const GRPC_MESSAGE: u64 = 5;

/// Lanes of the translation if limits are tried: what a limit lets pass besides depends on their number.
pub const LANES: u32 = 2;

/// The client that a proxy names in `X-Forwarded-For`; [`Plan::spread`] gives each request one of its own.
pub const FORWARDED: &str = "10.1.2.3";

/// What stands for another address in each of many requests at once.
pub const ROTATING: &str = "{client}";

/// The client that a proxy names in `X-Forwarded-For` of the request with this number.
pub fn forwarded(number: usize) -> String {
    format!("10.{}.{}.{}", 1 + number / 62_500 % 250, number / 250 % 250, 1 + number % 250)
}

/// The largest content that is sent.
pub const MAX_CONTENT: u64 = 64 << 20;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The listener.
    pub to: SocketAddr,
    /// Whether it speaks TLS.
    pub tls: bool,
    /// The version of HTTP.
    pub over: Over,
    /// Whether it wants the header of the PROXY protocol.
    pub proxy: bool,
    /// Who sends that header: an address that the configuration trusts, unless it is a `stranger`.
    pub hop: Option<IpAddr>,
    /// Whether an address sends that header that may not do so.
    pub stranger: bool,
    /// Whether it names another client than the one that sends it.
    pub claims: bool,
    /// The client's address; `None` for one of its own.
    pub from: Option<IpAddr>,
    /// The name in the handshake; `None` for the host.
    pub sni: Option<String>,
    /// `Host`.
    pub host: String,
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Further headers.
    pub headers: Vec<(String, String)>,
    /// Bytes of content.
    pub content: u64,
    /// The client's certificate.
    pub shown: Shown,
    /// How many are sent.
    pub times: Times,
    /// What the back-end does.
    pub behaviour: Behaviour,
    /// Further headers of the back-end's response: names, or `name:value` without spaces.
    pub served: Vec<String>,
    /// Whether the original answers with files.
    pub files: bool,
    /// Whether a header has another spelling than the one that the configuration compares (`X_Key` for `X-Key`).
    pub spelled: bool,
    /// The line that it is for.
    pub place: Place,
    /// The lines that take part in its answer.
    pub scope: Scope,
}

impl Draft {
    /// `GET /` for a host.
    pub fn new(listener: &Listener, host: &str, place: &Place, scope: &Scope) -> Self {
        Self {
            to: listener.address,
            tls: listener.tls,
            over: Over::Http1,
            proxy: listener.proxy,
            hop: listener.hop,
            stranger: false,
            claims: false,
            from: None,
            sni: None,
            host: host.to_owned(),
            method: "GET".to_owned(),
            path: "/".to_owned(),
            headers: Vec::new(),
            content: 0,
            shown: Shown::None,
            times: Times::Once,
            behaviour: Behaviour::Answer,
            served: Vec::new(),
            files: false,
            spelled: false,
            place: place.clone(),
            scope: scope.clone(),
        }
    }

    /// With a header in the place of one of that name.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With another spelling of a header that another request has not, and that servers may read as the same name. `None`: there is
    /// no such header.
    pub fn spelled(mut self, other: &Self) -> Option<Self> {
        let is_new = |(name, _): &&mut (String, String)| {
            name.contains('-') && !other.headers.iter().any(|(there, _)| there.eq_ignore_ascii_case(name))
        };
        let (name, _) = self.headers.iter_mut().find(is_new)?;
        *name = name.replace('-', "_");
        self.spelled = true;
        Some(self)
    }

    /// For another path.
    pub fn at(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// A call of a gRPC service: the content is one message.
    pub fn grpc(self, over: Over) -> Self {
        let new = Self { over, method: "POST".to_owned(), content: GRPC_MESSAGE, ..self };
        new.with("Content-Type", GRPC).with("TE", "trailers")
    }

    /// Whether it is a call of a gRPC service.
    pub fn is_grpc(&self) -> bool {
        self.headers.iter().any(|(n, v)| n.eq_ignore_ascii_case("content-type") && v == GRPC)
    }

    /// One of many at once, with the address that it claims. `number`: of the draft.
    pub fn of_client(mut self, number: usize, at: u32) -> Self {
        for (_, value) in self.headers.iter_mut().filter(|(_, value)| value.contains(ROTATING)) {
            *value = value.replace(ROTATING, &format!("10.{}.{}.{}", 100 + number % 100, at / 250, 1 + at % 250));
        }
        self
    }

    /// What the request says to the back-end: its number, and what the back-end does.
    pub fn note(&self, number: usize) -> String {
        let words = [&[number.to_string(), self.behaviour.word().to_owned()], self.served.as_slice()].concat();
        words.join(" ")
    }

    /// The request for people.
    pub fn text(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        let mut out = format!("{} {scheme}://{}{} to {}", self.method, self.host, self.path, self.to);
        for (name, value) in &self.headers {
            out.push_str(&format!(", {name}: {value}"));
        }
        if let Some(from) = self.from {
            out.push_str(&format!(", from {from}"));
        }
        if let Some(hop) = self.hop.filter(|_| self.claims) {
            out.push_str(&format!(", PROXY header of {hop}"));
        }
        if self.content > 0 {
            out.push_str(&format!(", {} bytes", self.content));
        }
        match self.shown {
            Shown::None => {}
            Shown::Known => out.push_str(", with a certificate"),
            Shown::Namesake => out.push_str(", with a certificate of another subject and the same CN"),
            Shown::Stranger => out.push_str(", with the certificate of another CA"),
        }
        if self.behaviour != Behaviour::Answer {
            out.push_str(&format!(", back-end: {}", self.behaviour.word()));
        }
        if !self.served.is_empty() {
            out.push_str(&format!(", the back-end sends {}", self.served.join(", ")));
        }
        if let Some(name) = self.sni.as_ref().filter(|name| **name != self.host) {
            out.push_str(&format!(", handshake for {name}"));
        }
        if let Times::AtOnce(n) = self.times {
            out.push_str(&format!(", {n} at once"));
        }
        match self.over {
            Over::Http1 => {}
            Over::Http2 => out.push_str(", over HTTP/2"),
            Over::Http3 => out.push_str(", over HTTP/3"),
        }
        out
    }
}

/// An address on which the original listens.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Where a client reaches it.
    pub address: SocketAddr,
    /// The address that the program binds; `None`: any.
    pub bound: Option<IpAddr>,
    /// Whether it speaks TLS.
    pub tls: bool,
    /// Whether it speaks QUIC, and nothing else.
    pub quic: bool,
    /// Whether it speaks HTTP/2.
    pub http2: bool,
    /// Whether it wants the header of the PROXY protocol.
    pub proxy: bool,
    /// Who sends that header: an address that the configuration trusts; `None`: anybody.
    pub hop: Option<IpAddr>,
    /// The line.
    pub place: Place,
}

/// Handshakes to be tried at a listener.
#[derive(Clone, Debug)]
pub struct Handshakes {
    /// The listener.
    pub listener: Listener,
    /// Names to ask for; `None`: no name.
    pub names: Vec<Option<String>>,
    /// Further names, of servers that have other suites of TLS 1.2 than the first: each suite is tried for each of them.
    pub with_suites: Vec<String>,
    /// Whether the configuration itself chooses suites of TLS 1.2, suites of TLS 1.3, and groups.
    pub chosen: Chosen,
    /// The lines that decide about them.
    pub scope: Scope,
}

/// What the configuration says about TLS, apart from defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Versions.
    pub versions: bool,
    /// Suites.
    pub suites: bool,
    /// Groups.
    pub groups: bool,
    /// Protocols above TLS.
    pub alpn: bool,
}

/// A line of which nothing was tried.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Untried {
    /// The line.
    pub place: Place,
    /// Why.
    pub why: String,
    /// Whether the copy does not contain the line; otherwise no request is for it.
    pub is_left_out: bool,
}

impl Untried {
    /// What it is, for people.
    pub fn title(&self) -> &'static str {
        if self.is_left_out { "not compared" } else { "not tried" }
    }
}

/// What a configuration asks to be tried.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The listeners.
    pub listeners: Vec<Listener>,
    /// The requests, without repetitions.
    pub drafts: Vec<Draft>,
    /// The handshakes.
    pub handshakes: Vec<Handshakes>,
    /// Addresses of servers that stand for each other, for they are in one group.
    pub groups: Vec<Vec<String>>,
    /// The addresses of the servers of each back-end that has a name.
    pub backends: std::collections::BTreeMap<String, Vec<String>>,
    /// Addresses of servers.
    pub servers: Vec<SocketAddr>,
    /// Unix sockets of servers.
    pub sockets: BTreeSet<String>,
    /// Addresses of servers that get copies of requests.
    pub mirrors: BTreeSet<String>,
    /// The addresses of inner servers of the translation, with the names of their upstreams.
    pub inner: std::collections::BTreeMap<String, String>,
    /// Whether servers speak HTTP/2 over TLS.
    pub http2_servers: bool,
    /// Further ports of servers.
    pub ports: Vec<u16>,
    /// What health checks of servers expect.
    pub checks: Vec<Check>,
    /// What health checks without HTTP expect.
    pub dialogues: Vec<Dialogue>,
    /// The lines that requests are for.
    pub asked: BTreeSet<Place>,
    /// What was not tried.
    pub untried: Vec<Untried>,
    /// The requests that are there.
    known: BTreeSet<(String, Option<String>)>,
}

impl Plan {
    /// Adds a request that is not there yet: the first line that asks for it names it.
    pub fn push(&mut self, draft: Draft) {
        if is_sendable(&draft) {
            self.asked.insert(draft.place.clone());
            if self.known.insert((draft.text(), draft.sni.clone())) {
                self.drafts.push(draft);
            }
        }
    }

    /// Gives each request that a proxy has forwarded a client of its own, so that no limit counts two requests together.
    pub fn spread(&mut self) {
        for (n, draft) in self.drafts.iter_mut().enumerate() {
            for (_, value) in draft.headers.iter_mut().filter(|(_, value)| value == FORWARDED) {
                *value = forwarded(n);
            }
        }
    }

    /// Notes that a line is not in the copy, so that nothing is compared.
    pub fn skip(&mut self, place: &Place, why: impl Into<String>) {
        self.note(Untried { place: place.clone(), why: why.into(), is_left_out: true });
    }

    /// Notes that a line gets no request.
    pub fn unasked(&mut self, place: &Place, why: impl Into<String>) {
        self.note(Untried { place: place.clone(), why: why.into(), is_left_out: false });
    }

    fn note(&mut self, new: Untried) {
        if !self.untried.contains(&new) {
            self.untried.push(new);
        }
    }

    /// Leaves out what is more than the limit, and notes the lines that then have no request.
    pub fn limit(&mut self, most: usize) {
        if self.drafts.len() <= most {
            return;
        }
        let more = self.drafts.split_off(most);
        let there: BTreeSet<&Place> = self.drafts.iter().map(|d| &d.place).collect();
        let mut lost: std::collections::BTreeMap<&Place, usize> = std::collections::BTreeMap::new();
        more.iter().for_each(|d| *lost.entry(&d.place).or_default() += 1);
        let why = |place: &Place, n: usize| match there.contains(place) {
            true => format!("further requests of this line are beyond --requests: {n}"),
            false => format!("all requests of this line are beyond --requests: {n}"),
        };
        let all: Vec<(Place, String)> = lost.into_iter().map(|(place, n)| (place.clone(), why(place, n))).collect();
        all.into_iter().for_each(|(place, why)| self.unasked(&place, why));
    }
}

/// A health check, and an answer that satisfies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Addresses and Unix sockets of the servers; checks may have ports of their own.
    pub servers: BTreeSet<String>,
    /// The method.
    pub method: String,
    /// The path.
    pub target: String,
    /// The status.
    pub status: u16,
    /// Headers.
    pub headers: Vec<(String, String)>,
    /// The content; `None`: any.
    pub content: Option<String>,
}

/// A health check without HTTP, and answers that satisfy it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialogue {
    /// Addresses and Unix sockets of the servers; checks may have ports of their own.
    pub servers: BTreeSet<String>,
    /// What the check sends and the back-end answers.
    pub turns: Vec<Turn>,
}

/// One turn of a [`Dialogue`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// What the check sends; empty: the back-end speaks first.
    pub asks: Vec<u8>,
    /// What the back-end answers.
    pub answer: Vec<u8>,
    /// Whether the back-end has to close the connection then.
    pub closes: bool,
}

/// Whether only letters and digits are encoded with `%`.
fn is_spelled(path: &str) -> bool {
    path.split('%').skip(1).all(|behind| {
        let code = behind.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        code.is_some_and(|byte| byte.is_ascii_alphanumeric())
    })
}

/// Whether a request is one that both programs understand in one way: what is malformed or ambiguous is not tried.
pub fn is_sendable(draft: &Draft) -> bool {
    let path = draft.path.split('?').next().unwrap_or_default();
    path.starts_with('/')
        && !path.contains("//")
        && !path.contains("/./")
        && !path.contains("/../")
        && !path.ends_with("/.")
        && !path.ends_with("/..")
        && draft.path.bytes().all(|b| b.is_ascii_graphic() && !b"\"<>\\^`{|};#".contains(&b))
        && is_spelled(path)
        && !draft.host.starts_with('.')
        && !draft.host.contains("..")
        && draft.host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_:[]".contains(&b))
        && draft.headers.iter().all(|(n, v)| {
            n.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' && draft.spelled)
                && v.bytes().all(|b| b == b' ' || b.is_ascii_graphic())
        })
}

/// Listeners and requests for tests.
#[cfg(test)]
pub(crate) mod cases {
    use super::*;

    pub(crate) fn place(line: u32) -> Place {
        Place { file: "n".into(), line }
    }

    /// One without TLS, of line 1.
    pub(crate) fn listener() -> Listener {
        Listener {
            address: ([203, 0, 113, 10], 80).into(),
            bound: None,
            tls: false,
            quic: false,
            http2: false,
            proxy: false,
            hop: None,
            place: place(1),
        }
    }

    /// `GET /` for the host `a`, of line 2.
    pub(crate) fn draft() -> Draft {
        Draft::new(&listener(), "a", &place(2), &Scope::default())
    }
}
