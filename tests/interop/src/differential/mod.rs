//! The differential suite: a generated request goes through every version of HTTP, through NGINX and through HAProxy to several servers
//! that say what has arrived.
//!
//! ```text
//!            HTTP/1.1 ─▶┌─────────┐
//! request ─▶ HTTP/2   ─▶│ Sealane │─▶ Node, h11 (Python), Go; Go over HTTP/2
//!            HTTP/3   ─▶└─────────┘
//!            HTTP/1.1, HTTP/2 ─▶ NGINX, HAProxy ─▶ the same servers
//! ```
//!
//! [`Sent::ideal`] says what should arrive, and [`table::TABLE`] lists where something else does, each with its reason. Whatever else is
//! different is a failure.

pub mod servers;
pub mod table;
pub mod ways;

use std::fmt;

/// Versions of HTTP, towards the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.1.
    H1,
    /// HTTP/2.
    H2,
    /// HTTP/3.
    H3,
}

/// Who is between the client and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proxy {
    /// The gateway.
    Sealane,
    /// Of the system's packages.
    Nginx,
    /// Of the system's packages.
    Haproxy,
}

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Server {
    /// Node's `http`.
    Node,
    /// Python's h11.
    H11,
    /// Go's `net/http`.
    Go,
    /// The same over HTTP/2.
    GoH2,
}

/// Which way a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// Through which proxy.
    pub proxy: Proxy,
    /// By which version to there.
    pub version: Version,
    /// To which server.
    pub server: Server,
}

/// How the client announces the length of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    None,
    /// Content-Length.
    Length,
    /// Not at all: in chunks, or until the stream ends.
    Unknown,
}

/// Bytes, shown as text.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl<T: AsRef<[u8]> + ?Sized> From<&T> for Bytes {
    fn from(bytes: &T) -> Self {
        Self(bytes.as_ref().to_vec())
    }
}

/// Names and values.
pub type List = Vec<(Bytes, Bytes)>;

/// A request, as the client means it.
#[derive(Clone, Debug)]
pub struct Sent {
    /// A token.
    pub method: Bytes,
    /// A path with a query, or `*`.
    pub target: Bytes,
    /// The first label of the host is the server's name, in other letters perhaps; the port may follow.
    pub host: fn(&str) -> String,
    /// Names in lower case, `cookie` in several parts.
    pub headers: List,
    /// How its length is announced.
    pub framing: Framing,
    /// Its content.
    pub body: Vec<u8>,
    /// After the body, if its length is not announced.
    pub trailers: List,
    /// The client waits for leave to send the body, where the version of HTTP can say so.
    pub expects: bool,
    /// The status that the server is asked for.
    pub answer: u16,
    /// What differs by the version, without a difference in meaning, comes from here.
    pub noise: u64,
    /// HTTP/1.1: the target has a scheme and the host.
    pub absolute: bool,
    /// HTTP/1.1: a field that `Connection` names.
    pub hop: bool,
}

/// What has arrived at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// As in the request.
    pub method: Bytes,
    /// As in the request.
    pub target: Bytes,
    /// In the order of their names, in lower case; those of one name in their own order. Without [`table::IGNORED`].
    pub headers: List,
    /// The same.
    pub trailers: List,
    /// The body's length, and its digest.
    pub body: (u64, String),
}

/// What the client gets, and what arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The response's; 0 if there is none.
    pub status: u16,
    /// If the request has come to the server.
    pub arrived: Option<Arrived>,
    /// The response's, as a digest.
    pub body: String,
}

/// Numbers that follow from a seed (SplitMix64).
pub struct Random(u64);

impl Random {
    /// Those of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next one.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One below this.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit as u64) as usize
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    pub fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    fn text(&mut self, alphabet: &[u8], least: usize, most: usize) -> Vec<u8> {
        let length = least + self.below(most - least + 1);
        (0..length).map(|_| *self.of(alphabet)).collect()
    }
}

/// RFC 9110 §5.6.2, in lower case.
const TOKEN: &[u8] = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz";
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
/// RFC 3986 §3.3, without `%` and `/`.
const PATH: &[u8] = b"abcXYZ019-._~!$&'()*+,;=:@";

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"];
const RARE_METHODS: [&str; 8] =
    ["TRACE", "PROPFIND", "REPORT", "M-SEARCH", "QUERY", "BREW", "get", "X!#$%&'*+-.^_`|~1"];
/// As clients write them, by which no proxy here selects anything.
const KNOWN: [(&str, &str); 24] = [
    ("accept", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("accept-language", "de-CH, de;q=0.9, *;q=0.5"),
    ("authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
    ("cache-control", "no-cache, max-age=0"),
    ("content-type", "multipart/form-data; boundary=\"=_1\""),
    ("content-encoding", "identity"),
    ("content-disposition", "attachment; filename*=UTF-8''na%C3%AFve.txt"),
    ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
    ("dnt", "1"),
    ("from", "a@example.test"),
    ("if-match", "W/\"a\", \"b\""),
    ("if-none-match", "*"),
    ("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT"),
    ("max-forwards", "10"),
    ("origin", "null"),
    ("pragma", "no-cache"),
    ("priority", "u=2, i"),
    ("range", "bytes=0-5,-1"),
    ("referer", "https://example.test/?a=b#"),
    ("te", "trailers"),
    ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"),
    ("upgrade-insecure-requests", "1"),
    ("user-agent", "test/1.0 (comment (in a comment))"),
];
const STATUSES: [u16; 16] = [200, 200, 200, 200, 200, 200, 201, 204, 206, 301, 304, 401, 404, 418, 451, 599];

impl Sent {
    /// The request of a seed.
    pub fn generate(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let rng = &mut random;
        let method = if rng.once_in(6) { *rng.of(&RARE_METHODS) } else { *rng.of(&METHODS) };
        let may_have_body = method != "TRACE" && (!matches!(method, "GET" | "HEAD" | "OPTIONS") || rng.once_in(6));
        let framing = match may_have_body {
            false => Framing::None,
            true => *rng.of(&[Framing::None, Framing::Length, Framing::Length, Framing::Unknown, Framing::Unknown]),
        };
        let body = match framing {
            Framing::None => Vec::new(),
            _ if rng.once_in(6) => Vec::new(),
            _ if rng.once_in(3) => crate::noise(rng.below(40_000), rng.number()),
            _ => crate::noise(1 + rng.below(50), rng.number()),
        };
        let mut headers = List::new();
        for _ in 0..rng.below(5) {
            let (name, value) = rng.of(&KNOWN);
            if !headers.iter().any(|(n, _)| n == &Bytes::from(name)) {
                headers.push((name.into(), value.into()));
            }
        }
        let most = if rng.once_in(8) { 14 } else { 6 };
        for _ in 0..rng.below(most) {
            let name = name(rng);
            let value = value(rng);
            headers.push(((&name).into(), (&value).into()));
            if rng.once_in(6) {
                // Once more, with another field between.
                headers.push((b"x-between".into(), b"1".into()));
                headers.push(((&name).into(), (&self::value(rng)).into()));
            }
        }
        if rng.once_in(4) {
            for i in 0..1 + rng.below(3) {
                let value = format!("c{i}={}", String::from_utf8_lossy(&rng.text(LETTERS, 0, 12)));
                headers.push((b"cookie".into(), (&value).into()));
            }
        }
        let mut trailers = List::new();
        if framing == Framing::Unknown && rng.once_in(2) {
            for _ in 0..1 + rng.below(3) {
                trailers.push(((&name(rng)).into(), (&value(rng)).into()));
            }
            if rng.once_in(2) {
                let names: Vec<_> = trailers.iter().map(|(name, _)| String::from_utf8_lossy(&name.0)).collect();
                headers.push((b"trailer".into(), (&names.join(", ")).into()));
            }
        }
        let expects = framing != Framing::None && rng.once_in(5);
        if expects {
            headers.push((b"expect".into(), b"100-continue".into()));
        }
        let target = target(rng, method);
        let host = *rng.of(&[plain as fn(&str) -> String, plain, plain, capitals, with_port, with_default_port]);
        let absolute = target.0 != b"*" && rng.once_in(6);
        Self {
            method: (&method).into(),
            target,
            host,
            headers,
            framing,
            body,
            trailers,
            expects,
            answer: *rng.of(&STATUSES),
            absolute,
            hop: rng.once_in(6),
            noise: rng.number(),
        }
    }

    /// The host that selects a server.
    pub fn host(&self, server: Server) -> String {
        (self.host)(server.host())
    }

    /// Whether there is a field of this name.
    pub fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(n, _)| n.0 == name.as_bytes())
    }

    /// What happens where nothing changes anything.
    pub fn ideal(&self, server: Server) -> Outcome {
        let mut headers: List = self.headers.iter().filter(|(name, _)| name.0 != b"cookie").cloned().collect();
        let cookies: Vec<&[u8]> =
            self.headers.iter().filter(|(name, _)| name.0 == b"cookie").map(|(_, value)| &value.0[..]).collect();
        if !cookies.is_empty() {
            headers.push((b"cookie".into(), (&cookies.join(&b"; "[..])).into()));
        }
        headers.push((b"host".into(), (&self.host(server)).into()));
        headers.push((b"x-answer".into(), (&self.answer.to_string()).into()));
        let arrived = Arrived {
            method: self.method.clone(),
            target: self.target.clone(),
            headers: normal(headers),
            trailers: normal(self.trailers.clone()),
            body: (self.body.len() as u64, crate::sha256(&self.body)),
        };
        Outcome { status: self.answer, arrived: Some(arrived), body: self.response(self.answer) }
    }

    /// The digest of the body of a response with this status: the request's, where there may be one.
    pub fn response(&self, status: u16) -> String {
        let bare = self.method.0 == b"HEAD" || status == 204 || status == 304;
        crate::sha256(if bare { b"" } else { &self.body })
    }
}

/// In the order of names, without those that are not compared.
pub fn normal(mut list: List) -> List {
    list.retain(|(name, _)| !table::is_ignored(&name.0));
    list.sort_by(|a, b| a.0.cmp(&b.0));
    list
}

fn plain(host: &str) -> String {
    host.to_owned()
}

fn capitals(host: &str) -> String {
    host.to_ascii_uppercase()
}

fn with_port(host: &str) -> String {
    format!("{host}:8443")
}

fn with_default_port(host: &str) -> String {
    format!("{host}:443")
}

fn name(rng: &mut Random) -> Vec<u8> {
    match rng.below(3) {
        // Any token, of which none means anything.
        0 => [&b"x"[..], &rng.text(TOKEN, 1, 12)].concat(),
        1 => [&b"x-"[..], &rng.text(LETTERS, 1, 30)].concat(),
        _ => [&rng.text(LETTERS, 1, 8), &b"-x"[..], &rng.text(LETTERS, 1, 8)].concat(),
    }
}

fn value(rng: &mut Random) -> Vec<u8> {
    let visible: Vec<u8> = (0x21..0x7f).collect();
    let any: Vec<u8> = (0x20..=0xff).filter(|b| *b != 0x7f).chain([b'\t']).collect();
    let mut value = match rng.below(8) {
        0 => Vec::new(),
        1 => rng.text(&any, 1, 40),
        2 => rng.text(&visible, 400, 900),
        3 => b"\"a\\\"b\", W/\"\", ,,c;d=\"e, f\"".to_vec(),
        4 => rng.text(LETTERS, 1, 1),
        _ => rng.text(&visible, 1, 40),
    };
    // White space around a value is not part of it.
    while matches!(value.last(), Some(b' ' | b'\t')) {
        value.pop();
    }
    let blank = value.iter().take_while(|b| matches!(**b, b' ' | b'\t')).count();
    value.drain(..blank);
    value
}

fn target(rng: &mut Random, method: &str) -> Bytes {
    if method == "OPTIONS" && rng.once_in(3) {
        return b"*".into();
    }
    let mut target = Vec::new();
    for _ in 0..1 + rng.below(4) {
        target.push(b'/');
        let segment = match rng.below(12) {
            0 => b"..".to_vec(),
            1 => b".".to_vec(),
            2 => Vec::new(),
            3 => b"%41%2e%7E".to_vec(),
            4 => rng.of(&[&b"a%2Fb"[..], b"%2f", b"a%5Cb", b"%25", b"%00", b"%0a", b"%C3%A9", b"%ff"]).to_vec(),
            5 => rng.of(&[&b"%2e%2e"[..], b"%2E", b".%2e", b"...", b"..;a", b";a=b"]).to_vec(),
            6 => rng.text(PATH, 100, 400),
            _ => rng.text(PATH, 1, 12),
        };
        target.extend(segment);
    }
    match rng.below(6) {
        0 => target.push(b'?'),
        1 => target.extend(b"?a=1&b=%20&c=+&=&&d=/../?"),
        2 => {
            target.push(b'?');
            target.extend(rng.text(PATH, 0, 40));
        }
        _ => {}
    }
    Bytes(target)
}

impl Server {
    /// All of them.
    pub const ALL: [Server; 4] = [Server::Node, Server::H11, Server::Go, Server::GoH2];

    /// The host that selects it.
    pub fn host(self) -> &'static str {
        match self {
            Server::Node => "node.example.test",
            Server::H11 => "h11.example.test",
            Server::Go => "go.example.test",
            Server::GoH2 => "go-h2.example.test",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_request() {
        let show = |seed| format!("{:?}", Sent::generate(seed));
        assert_eq!(show(1), show(1));
        assert_ne!(show(1), show(2));
    }
}
