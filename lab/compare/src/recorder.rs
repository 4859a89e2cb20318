//! Back-ends that record what they get: HTTP/1 and HTTP/2, with or without TLS and the header of the PROXY protocol, on every
//! address of the outside and at Unix sockets; and a DNS server that knows the names of the configuration.

mod dialogue;
mod http2;
mod socket;

use crate::draft::{Check, Dialogue, Plan};
use crate::network::{Network, host};
use crate::words::Named;
use anyhow::Context as _;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sealane_http::h1::{BodyDecoder, Limits, What};
use sealane_http::message::BodyLength;
use sealane_lab_wire::h1::fields;
use socket::{Door, Socket};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The header that ties what a back-end got to what a client sent, and says what the back-end does.
pub const HEADER: &str = "X-Sealane-Compare";
/// The content of answers.
pub const CONTENT: &str = "from the recording back-end\n";
/// How long a back-end holds a request that it is told to hold.
pub const HOLD: Duration = Duration::from_secs(3);

/// Longest head.
const MAX_HEAD: usize = 128 * 1024;
/// Most connections at a time.
const MAX_CONNECTIONS: usize = 2000;
/// The stack of a connection's thread, which is only taken where it is used.
const STACK: usize = 2 << 20;
/// How long a connection may be silent.
const IDLE: Duration = Duration::from_secs(20);

/// A request as a back-end got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The number of the request; `None` if the header is missing.
    pub number: Option<usize>,
    /// The back-end's address with its port, or its Unix socket, as the configuration names it.
    pub address: String,
    /// Whether it came over TLS, and the name that was asked for.
    pub tls: Option<Option<String>>,
    /// The version of the PROXY protocol's header, and the client's address in it.
    pub proxy: Option<String>,
    /// The method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The headers, in order.
    pub headers: Vec<(String, String)>,
    /// Bytes of content.
    pub content: u64,
}

#[derive(Debug)]
struct Shared {
    received: Mutex<Vec<Received>>,
    tls: Arc<ServerConfig>,
    stop: AtomicBool,
    connections: AtomicUsize,
    checks: Vec<Check>,
    dialogues: Vec<Dialogue>,
}

impl Shared {
    /// The health checks without HTTP of a server.
    fn dialogues(&self, address: &str) -> Vec<&Dialogue> {
        self.dialogues.iter().filter(|d| d.servers.contains(address)).collect()
    }

    /// The health check that a request without our header is.
    fn check(&self, address: &str, method: &str, target: &str) -> Option<&Check> {
        let is_there = |c: &&Check| c.servers.contains(address);
        let same = |c: &&Check| c.target == target;
        let of = || self.checks.iter().filter(is_there);
        of().find(|c| same(c) && c.method == method).or_else(|| of().find(same)).or_else(|| of().next())
    }

    fn note(&self, received: Received) {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).push(received);
    }
}

/// The back-ends of one network. Their threads end when this is dropped.
#[derive(Debug)]
pub struct Recorder {
    shared: Arc<Shared>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl Recorder {
    /// Starts back-ends on ports of the outside, at addresses of the loopback inside, and at Unix sockets: for each socket of the
    /// configuration the path that takes its place. `plan` has what health checks expect.
    pub fn start(
        network: &Network,
        ports: &BTreeSet<u16>,
        loopback: &BTreeSet<SocketAddr>,
        sockets: &BTreeMap<String, PathBuf>,
        tls: Arc<ServerConfig>,
        plan: &Plan,
    ) -> anyhow::Result<Self> {
        let shared = Shared {
            received: Mutex::default(),
            tls,
            stop: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            checks: plan.checks.clone(),
            dialogues: plan.dialogues.clone(),
        };
        let recorder = Self { shared: Arc::new(shared) };
        for port in ports {
            let any = |v4: bool| -> SocketAddr {
                let ip: IpAddr = if v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
                SocketAddr::new(ip, *port)
            };
            // A socket of IPv6 takes connections of IPv4, too.
            let address = any(!network.has_v6);
            let listener = network.outside().run(|| TcpListener::bind(address))?;
            let listener = listener.with_context(|| format!("a back-end on port {port}"))?;
            recorder.serve(Door::Tcp(listener))?;
        }
        for address in loopback {
            let listener = network.inside().run(|| TcpListener::bind(address))?;
            recorder.serve(Door::Tcp(listener.with_context(|| format!("a back-end at {address}"))?))?;
        }
        for (name, path) in sockets {
            let listener = UnixListener::bind(path).with_context(|| path.display().to_string())?;
            recorder.serve(Door::Unix(listener, name.clone()))?;
        }
        Ok(recorder)
    }

    fn serve(&self, door: Door) -> io::Result<()> {
        door.set_nonblocking()?;
        let shared = self.shared.clone();
        std::thread::Builder::new().name("back-end".into()).spawn(move || {
            while !shared.stop.load(Ordering::Relaxed) {
                let Ok((stream, address)) = door.accept() else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                if shared.connections.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
                    continue;
                }
                let shared = shared.clone();
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let work = move || {
                    // What a client breaks off is no error here.
                    let _ = connection(stream, address, &shared);
                    shared.connections.fetch_sub(1, Ordering::Relaxed);
                };
                let _ = std::thread::Builder::new().stack_size(STACK).spawn(work);
            }
        })?;
        Ok(())
    }

    /// What has come for a request, in order.
    pub fn take(&self, number: usize) -> Vec<Received> {
        let mut all = self.shared.received.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::new();
        all.retain(|r| {
            let is = r.number == Some(number);
            if is {
                found.push(r.clone());
            }
            !is
        });
        found
    }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// Where a request has come, and how.
#[derive(Clone, Debug)]
struct Arrival {
    address: String,
    tls: Option<Option<String>>,
    proxy: Option<String>,
}

fn connection(mut stream: Socket, address: String, shared: &Arc<Shared>) -> io::Result<()> {
    stream.prepare(IDLE)?;
    let dialogues = shared.dialogues(&address);
    let mut asked = dialogue::unasked(&stream, &dialogues)?;
    let proxy = if asked.is_none() { proxy_header(&mut stream)? } else { None };
    if proxy.is_some() {
        asked = dialogue::unasked(&stream, &dialogues)?;
    }
    if asked.is_none() {
        asked = dialogue::asked(&stream, &dialogues)?;
    }
    if let Some(asked) = asked {
        return dialogue::hold(&mut stream, asked);
    }
    let mut first = [0; 4];
    let arrival = Arrival { address, tls: None, proxy };
    match stream.peek_all(&mut first)? {
        0 => return Ok(()),
        _ if &first == b"PRI " => return http2::plain(stream, arrival, shared),
        // FastCGI and its like, which wait for an answer.
        _ if first[0] != 0x16 && !first[0].is_ascii_uppercase() => return Ok(()),
        _ if first[0] != 0x16 => return requests(&mut stream, shared, &arrival),
        _ => {}
    }
    if let Socket::Tcp(stream) = stream {
        return http2::over_tls(stream, arrival, shared);
    }
    let mut session = ServerConnection::new(shared.tls.clone()).map_err(io::Error::other)?;
    session.complete_io(&mut stream)?;
    requests_over_tls(StreamOwned::new(session, stream), Vec::new(), arrival, shared)
}

/// Serves HTTP/1.1 after a handshake. `begin`: what has been read already.
fn requests_over_tls<S: Read + Write>(
    mut tls: StreamOwned<ServerConnection, S>,
    begin: Vec<u8>,
    arrival: Arrival,
    shared: &Shared,
) -> io::Result<()> {
    let name = tls.conn.server_name().map(str::to_owned);
    let mut begun = dialogue::Begun::new(begin, &mut tls);
    let (begin, asked) = dialogue::read(&mut begun, &shared.dialogues(&arrival.address))?;
    let mut stream = dialogue::Begun::new(begin, &mut begun);
    let done = match asked {
        Some(asked) => dialogue::hold(&mut stream, asked),
        None => requests(&mut stream, shared, &Arrival { tls: Some(name), ..arrival }),
    };
    tls.conn.send_close_notify();
    let _ = tls.flush();
    done
}

/// Reads the header of the PROXY protocol, if there is one.
fn proxy_header(stream: &mut Socket) -> io::Result<Option<String>> {
    const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    let mut seen = [0; 16];
    let n = stream.peek(&mut seen)?;
    if seen[..n].starts_with(b"PROXY ") {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while !line.ends_with(b"\r\n") && line.len() < 108 {
            stream.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        let source = String::from_utf8_lossy(&line).split(' ').nth(2).unwrap_or("-").to_owned();
        return Ok(Some(format!("v1 {source}")));
    }
    if n >= 12 && seen[..12] == *V2 {
        stream.read_exact(&mut seen)?;
        let mut rest = vec![0; usize::from(u16::from_be_bytes([seen[14], seen[15]]))];
        stream.read_exact(&mut rest)?;
        let source = match (seen[13] >> 4, rest.first_chunk::<4>(), rest.first_chunk::<16>()) {
            (1, Some(a), _) => Ipv4Addr::from(*a).to_string(),
            (2, _, Some(a)) => Ipv6Addr::from(*a).to_string(),
            _ => "-".to_owned(),
        };
        return Ok(Some(format!("v2 {source}")));
    }
    Ok(None)
}

fn requests(stream: &mut dyn Stream, shared: &Shared, arrival: &Arrival) -> io::Result<()> {
    let Arrival { address, tls, proxy } = arrival;
    let mut buffer: Vec<u8> = Vec::new();
    loop {
        let Some(end) = fill_head(stream, &mut buffer)? else { return Ok(()) };
        let head: Vec<u8> = buffer.drain(..end).collect();
        let text = String::from_utf8_lossy(&head).into_owned();
        let mut line = text.lines().next().unwrap_or_default().split(' ');
        let (method, target) = (line.next().unwrap_or_default().to_owned(), line.next().unwrap_or_default().to_owned());
        let last = line.next() == Some("HTTP/1.0");
        let string = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let headers: Vec<(String, String)> = fields(&head).map(|(n, v)| (string(n), string(v))).collect();
        let header = |name: &str| headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str());
        if header("expect").is_some() {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let chunked = header("transfer-encoding").is_some_and(|v| v.to_ascii_lowercase().contains("chunked"));
        let length = header("content-length").and_then(|v| v.parse().ok()).unwrap_or(0);
        let content =
            content(stream, &mut buffer, if chunked { BodyLength::Chunked } else { BodyLength::Known(length) })?;
        let told = header(HEADER).unwrap_or_default().to_owned();
        let Told { number, word, served } = Told::of(&told);
        let check = if told.is_empty() { shared.check(address, &method, &target) } else { None };
        let close = last || header("connection").is_some_and(|v| v.to_ascii_lowercase().contains("close"));
        let received = Received {
            number,
            address: address.clone(),
            tls: tls.clone(),
            proxy: proxy.clone(),
            method: method.clone(),
            target: target.clone(),
            headers: headers.clone(),
            content,
        };
        shared.note(received);
        if word == "hold" {
            std::thread::sleep(HOLD);
        }
        let asked = Asked { host: header("host"), path: target.split('?').next().unwrap_or_default() };
        let reply = Reply::new(word, &served, asked, arrival).of(check);
        stream.write_all(&reply.to_http1(&method, close))?;
        stream.flush()?;
        if close {
            return Ok(());
        }
    }
}

/// What a request says to the back-end.
struct Told<'t> {
    number: Option<usize>,
    word: &'t str,
    /// Headers that the response has.
    served: Vec<&'t str>,
}

impl<'t> Told<'t> {
    fn of(text: &'t str) -> Self {
        let mut words = text.split(' ');
        let number = words.next().and_then(|n| n.parse().ok());
        Self { number, word: words.next().unwrap_or_default(), served: words.collect() }
    }
}

/// What a request names.
#[derive(Clone, Copy)]
struct Asked<'r> {
    host: Option<&'r str>,
    path: &'r str,
}

/// What a back-end answers.
struct Reply {
    status: u16,
    reason: &'static str,
    headers: Vec<(String, String)>,
    content: String,
}

impl Reply {
    /// `word`: what the request asks for.
    fn new(word: &str, served: &[&str], asked: Asked<'_>, arrival: &Arrival) -> Self {
        let (status, reason) = match word {
            "redirect" | "redirect-to-itself" => (302, "Found"),
            "error" => (500, "Internal Server Error"),
            "missing" => (404, "Not Found"),
            "unavailable" => (503, "Service Unavailable"),
            "forbidden" => (403, "Forbidden"),
            _ => (200, "OK"),
        };
        let always = [
            ("Server", "recorder"),
            ("X-Powered-By", "recorder"),
            ("Content-Type", "text/plain"),
            ("ETag", "\"1\""),
            ("Set-Cookie", "session=1; Path=/"),
        ];
        let named = served.iter().map(|word| word.split_once(':').unwrap_or((*word, "from-the-server")));
        let mut headers: Vec<(String, String)> =
            always.into_iter().chain(named).map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
        if status == 302 && !served.iter().any(|word| word.starts_with("Location:")) {
            // A Unix socket has no address that a client could go to.
            let own = if arrival.address.starts_with("unix:") { "localhost" } else { arrival.address.as_str() };
            let to = if word == "redirect" { asked.host.unwrap_or(own) } else { own };
            let (scheme, port) = if arrival.tls.is_some() { ("https", ":443") } else { ("http", ":80") };
            // Servers leave out the port of the scheme.
            let to = to.strip_suffix(port).unwrap_or(to);
            // Below the path that was asked for: NGINX rewrites redirects that begin with the URL of proxy_pass.
            let path = asked.path.trim_end_matches('/');
            headers.push(("Location".to_owned(), format!("{scheme}://{to}{path}/moved?x=1")));
        }
        Self { status, reason, headers, content: CONTENT.to_owned() }
    }

    /// What satisfies a health check.
    fn of(mut self, check: Option<&Check>) -> Self {
        let Some(check) = check else { return self };
        self.status = check.status;
        self.headers.retain(|(n, _)| !check.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(n)));
        self.headers.extend(check.headers.iter().cloned());
        if let Some(content) = &check.content {
            self.content.clone_from(content);
        }
        // These statuses have no content.
        if matches!(self.status, 100..200 | 204 | 304) {
            self.content.clear();
        }
        self
    }

    fn to_http1(&self, method: &str, close: bool) -> Vec<u8> {
        let mut out = format!("HTTP/1.1 {} {}\r\n", self.status, self.reason);
        for (name, value) in &self.headers {
            out.push_str(&format!("{name}: {value}\r\n"));
        }
        let connection = if close { "close" } else { "keep-alive" };
        out.push_str(&format!("Content-Length: {}\r\nConnection: {connection}\r\n\r\n", self.content.len()));
        if method != "HEAD" {
            out.push_str(&self.content);
        }
        out.into_bytes()
    }
}

/// Reads until a head is complete; returns its length. `None`: the client has closed.
fn fill_head(stream: &mut dyn Stream, buffer: &mut Vec<u8>) -> io::Result<Option<usize>> {
    let mut piece = [0; 8192];
    loop {
        if let Some(at) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
            return Ok(Some(at + 4));
        }
        if buffer.len() > MAX_HEAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match stream.read(&mut piece)? {
            0 => return Ok(None),
            n => buffer.extend(&piece[..n]),
        }
    }
}

fn content(stream: &mut dyn Stream, buffer: &mut Vec<u8>, length: BodyLength) -> io::Result<u64> {
    if matches!(length, BodyLength::Known(0)) {
        return Ok(0);
    }
    let limits = Limits { head: MAX_HEAD, target: MAX_HEAD, fields: 200, trailers: MAX_HEAD };
    let mut decoder = BodyDecoder::new(length, &limits);
    let (mut total, mut piece) = (0, [0; 16 * 1024]);
    loop {
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidData);
        let (consumed, more, end) = match decoder.decode(buffer).map_err(invalid)? {
            p if matches!(p.what, What::Data(_)) => {
                let What::Data(data) = p.what else { continue };
                total += data.len() as u64;
                (p.consumed, false, decoder.is_done())
            }
            p => (p.consumed, matches!(p.what, What::NeedMore), !matches!(p.what, What::NeedMore)),
        };
        buffer.drain(..consumed);
        if end {
            return Ok(total);
        }
        if more {
            match stream.read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => buffer.extend(&piece[..n]),
            }
        }
    }
}

/// A DNS server that gives each name of the configuration an address of the outside. It ends with the recorder.
pub fn dns(network: &Network, servers: &BTreeSet<IpAddr>, named: &Named, recorder: &Recorder) -> anyhow::Result<()> {
    // An unspecified address would take the port from all others.
    for server in servers.iter().filter(|a| !a.is_unspecified()) {
        let socket = network.of(*server).run(|| UdpSocket::bind((*server, 53)))?;
        let Ok(socket) = socket else { continue };
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        let (hosts, shared) = (named.hosts.clone(), recorder.shared.clone());
        std::thread::Builder::new().name("dns".into()).spawn(move || {
            let mut packet = [0; 1500];
            while !shared.stop.load(Ordering::Relaxed) {
                let Ok((n, from)) = socket.recv_from(&mut packet) else { continue };
                if let Some(answer) = resolve(&packet[..n], &hosts) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        })?;
    }
    Ok(())
}

/// The answer to a question (RFC 1035 §4): an address of IPv4 for a name of the configuration, no such name for another one.
fn resolve(question: &[u8], hosts: &BTreeSet<String>) -> Option<Vec<u8>> {
    let (header, mut rest) = question.split_first_chunk::<12>()?;
    if header[2] & 0x80 != 0 || header[4..6] != [0, 1] {
        return None;
    }
    let mut name = String::new();
    loop {
        let (&length, after) = rest.split_first()?;
        if length == 0 {
            rest = after;
            break;
        }
        if length > 63 {
            return None;
        }
        let (label, after) = after.split_at_checked(length.into())?;
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(&String::from_utf8_lossy(label).to_ascii_lowercase());
        rest = after;
    }
    let kind = u16::from_be_bytes(*rest.first_chunk::<2>()?);
    let end = question.len() - rest.len() + 4;
    let known = hosts.contains(&name);
    let has_address = known && kind == 1;
    let mut out = question.get(..end)?.to_vec();
    // A response that recursion is available for.
    out[2] = 0x80 | (header[2] & 0x01);
    out[3] = 0x80 | if known { 0 } else { 3 };
    out[6..12].copy_from_slice(&[0, u8::from(has_address), 0, 0, 0, 0]);
    if has_address {
        // The name of the question, A, IN, one hour, four bytes.
        out.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 14, 16, 0, 4]);
        out.extend(host(&name).octets());
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_configuration_have_addresses() {
        let hosts: BTreeSet<String> = ["app.internal".to_owned()].into();
        let question = |name: &str, kind: u8| {
            let mut q = vec![7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            for label in name.split('.') {
                q.push(label.len() as u8);
                q.extend(label.bytes());
            }
            q.extend([0, 0, kind, 0, 1]);
            q
        };
        let known = resolve(&question("App.internal", 1), &hosts).unwrap();
        assert_eq!((known[3] & 15, known[7]), (0, 1));
        assert_eq!(known[known.len() - 4..], host("app.internal").octets());
        let v6 = resolve(&question("app.internal", 28), &hosts).unwrap();
        assert_eq!((v6[3] & 15, v6[7]), (0, 0));
        assert_eq!(resolve(&question("app.internal.lan", 1), &hosts).unwrap()[3] & 15, 3);
        let whole = question("app.internal", 1);
        for end in 0..whole.len() {
            let _ = resolve(&whole[..end], &hosts);
        }
    }
}
