//! The client: sends a request to one program, and notes what comes back.

mod http2;
mod http3;

use crate::draft::{Draft, Over, Shown, Times};
use crate::files::{Files, Identity};
use crate::network::{Network, client};
use crate::recorder::{HEADER, HOLD, Received, Recorder};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use sealane_lab_wire::h1::{Reader, Sink, fields};
use sealane_lab_wire::{Trust, Verifier, Verify};
use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How long a response may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a refusal may take when many are sent at once; what is delayed is not refused.
const REFUSAL: Duration = Duration::from_millis(1200);
/// How long a server that looks at the length alone may take to refuse it.
const EARLY: Duration = Duration::from_millis(250);
/// How long the copy of a request may come after its response.
const COPY: Duration = Duration::from_millis(300);
/// Most content that is kept.
const MAX_CONTENT: usize = 64 * 1024;

/// What was negotiated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// The version of TLS.
    pub version: String,
    /// The suite.
    pub suite: String,
    /// The protocol above TLS.
    pub alpn: Option<String>,
    /// The server's certificates, in DER.
    pub chain: Vec<Vec<u8>>,
}

/// A response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The headers, in order.
    pub headers: Vec<(String, String)>,
    /// The content.
    pub content: Vec<u8>,
}

impl Response {
    /// The values of a header, with commas between them.
    pub fn header(&self, name: &str) -> Option<String> {
        let values: Vec<&str> =
            self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str()).collect();
        (!values.is_empty()).then(|| values.join(", "))
    }
}

/// How long a TCP connection may take at least.
const CONNECT: Duration = Duration::from_secs(20);

/// What client and back-ends saw of a request.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The response, or why there is none.
    pub response: Result<Response, String>,
    /// What was negotiated.
    pub tls: Option<Negotiated>,
    /// What back-ends got.
    pub received: Vec<Received>,
    /// With many at once: the statuses other than the back-end's.
    pub refused: BTreeSet<u16>,
}

impl Seen {
    fn new(response: Result<Response, String>) -> Self {
        Self { response, tls: None, received: Vec::new(), refused: BTreeSet::new() }
    }

    /// What an exchange has come to that has a runtime's time limit.
    fn of(done: Result<Exchanged, tokio::time::error::Elapsed>) -> Self {
        match done {
            Ok(Ok((response, tls))) => Self { tls, ..Self::new(Ok(response)) },
            Ok(Err(why)) => Self::new(Err(why)),
            Err(_) => Self::new(Err("no response in time".to_owned())),
        }
    }
}

/// A response with what was negotiated, or why there is none.
type Exchanged = Result<(Response, Option<Negotiated>), String>;

/// A client of one program.
pub struct Client<'n> {
    network: &'n Network,
    recorder: &'n Recorder,
    /// Whether the program speaks HTTP/3.
    http3: bool,
    /// Servers that get copies, perhaps after the response.
    mirrors: &'n BTreeSet<String>,
    /// For HTTP/2 and HTTP/3.
    runtime: Runtime,
    plain: Arc<Configured>,
    known: Arc<Configured>,
    namesake: Arc<Configured>,
    stranger: Arc<Configured>,
}

/// A configuration with its verifier, which has the last chain.
struct Configured {
    config: Arc<ClientConfig>,
    verifier: Arc<Verifier>,
}

/// A verifier that accepts every certificate and keeps it.
pub(crate) fn verifier() -> anyhow::Result<Arc<Verifier>> {
    let provider = Arc::new(default_provider());
    Ok(Arc::new(Verifier::new(Verify::Signature, &Trust::System, &provider)?.recording()))
}

fn configured(identity: Option<&Identity>) -> anyhow::Result<Arc<Configured>> {
    let verifier = verifier()?;
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone());
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => builder.with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())?,
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(Configured { config: Arc::new(config), verifier }))
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A connection over which a request goes.
struct Connection {
    stream: Box<dyn Stream + Send>,
    socket: TcpStream,
    tls: Option<Negotiated>,
}

impl<'n> Client<'n> {
    /// With the certificates of a run. `http3`: whether the program speaks HTTP/3; where it does not, such requests go over TLS.
    pub fn new(
        network: &'n Network,
        recorder: &'n Recorder,
        http3: bool,
        mirrors: &'n BTreeSet<String>,
        files: &Files,
    ) -> anyhow::Result<Self> {
        let with = |identity: &Identity| configured(Some(identity));
        let (known, namesake, stranger) = (with(&files.known)?, with(&files.namesake)?, with(&files.stranger)?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { network, recorder, http3, mirrors, runtime, plain: configured(None)?, known, namesake, stranger })
    }

    /// Sends a request, and waits for its response.
    pub fn send(&self, number: usize, draft: &Draft) -> Seen {
        let mut seen = match draft.times {
            Times::Once => match draft.over {
                Over::Http2 => self.over_http2(number, draft),
                Over::Http3 if self.http3 => self.over_http3(number, draft),
                Over::Http1 | Over::Http3 => self.once(number, draft),
            },
            Times::AtOnce(n) => self.at_once(number, draft, n),
        };
        seen.received = self.recorder.take(number);
        let is_copy = |r: &Received| self.mirrors.contains(&r.address);
        let until = Instant::now() + COPY;
        while !self.mirrors.is_empty()
            && draft.times == Times::Once
            && !seen.received.iter().any(is_copy)
            && seen.received.iter().any(|r| !is_copy(r))
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(2));
            seen.received.extend(self.recorder.take(number));
        }
        seen
    }

    fn once(&self, number: usize, draft: &Draft) -> Seen {
        let mut connection = match self.connect(number, draft, LIMIT) {
            Ok(connection) => connection,
            Err(error) => return Seen::new(Err(error)),
        };
        let tls = connection.tls.take();
        Seen { tls, ..Seen::new(exchange(&mut connection, number, draft)) }
    }

    /// Sends many before the first answer is read.
    fn at_once(&self, number: usize, draft: &Draft, count: u32) -> Seen {
        let mut open = Vec::new();
        let mut seen = Seen::new(Ok(Response::default()));
        for at in 0..count {
            match self.connect(number, draft, LIMIT) {
                Ok(mut connection) => {
                    let head = head(number, &draft.clone().of_client(number, at));
                    if connection.stream.write_all(&head).and_then(|()| connection.stream.flush()).is_ok() {
                        open.push(connection);
                    }
                }
                // A connection that is closed at once is refused, too.
                Err(_) => drop(seen.refused.insert(0)),
            }
        }
        let end = Instant::now() + REFUSAL.max(HOLD + Duration::from_millis(500));
        for connection in &mut open {
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let _ = connection.socket.set_read_timeout(Some(left));
            match read(&mut *connection.stream, draft) {
                Ok(response) if response.status != 200 => drop(seen.refused.insert(response.status)),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => drop(seen.refused.insert(0)),
                _ => {}
            }
        }
        seen
    }

    /// A TCP connection, with the header of the PROXY protocol where there is to be one.
    fn socket(&self, number: usize, draft: &Draft, limit: Duration) -> Result<TcpStream, String> {
        let from: IpAddr = draft.from.unwrap_or_else(|| client(number));
        let refused = |e: io::Error| format!("no connection: {}", e.kind());
        // Neither program drops a SYN, but on a busy machine the kernel may, and repeats it after seconds.
        let connect_timeout = limit.max(CONNECT);
        let mut socket =
            self.network.connect(draft.to, Some(draft.hop.unwrap_or(from)), connect_timeout).map_err(refused)?;
        let set = |s: &TcpStream| -> io::Result<()> {
            s.set_nodelay(true)?;
            s.set_read_timeout(Some(limit))?;
            s.set_write_timeout(Some(limit))
        };
        set(&socket).map_err(refused)?;
        if draft.proxy {
            let line = format!("PROXY TCP4 {from} {} 40000 {}\r\n", draft.to.ip(), draft.to.port());
            let v6 = draft.to.is_ipv6() || from.is_ipv6();
            let line = if v6 { "PROXY UNKNOWN\r\n".to_owned() } else { line };
            socket.write_all(line.as_bytes()).map_err(refused)?;
        }
        Ok(socket)
    }

    /// How TLS is spoken: with the certificate that a request shows.
    fn configured(&self, draft: &Draft) -> &Configured {
        match draft.shown {
            Shown::None => &self.plain,
            Shown::Known => &self.known,
            Shown::Namesake => &self.namesake,
            Shown::Stranger => &self.stranger,
        }
    }

    fn connect(&self, number: usize, draft: &Draft, limit: Duration) -> Result<Connection, String> {
        let mut socket = self.socket(number, draft, limit)?;
        let control = socket.try_clone().map_err(|e| format!("no connection: {}", e.kind()))?;
        if !draft.tls {
            return Ok(Connection { stream: Box::new(socket), socket: control, tls: None });
        }
        let configured = self.configured(draft);
        let mut session = ClientConnection::new(configured.config.clone(), server_name(draft))
            .map_err(|e| format!("no handshake: {e}"))?;
        if let Err(error) = session.complete_io(&mut socket) {
            return Err(format!("handshake refused: {}", alert(&error)));
        }
        let tls = negotiated(&session, configured);
        Ok(Connection { stream: Box::new(StreamOwned::new(session, socket)), socket: control, tls: Some(tls) })
    }
}

/// The name in the handshake.
fn server_name(draft: &Draft) -> ServerName<'static> {
    let name = draft.sni.as_deref().unwrap_or(&draft.host);
    let name = name.split(':').next().unwrap_or_default().to_owned();
    ServerName::try_from(name).unwrap_or(ServerName::IpAddress(draft.to.ip().into()))
}

fn negotiated(session: &ClientConnection, configured: &Configured) -> Negotiated {
    Negotiated {
        version: session.protocol_version().map_or_else(String::new, |v| format!("{v:?}")),
        suite: session.negotiated_cipher_suite().map_or_else(String::new, |s| format!("{:?}", s.suite())),
        alpn: session.alpn_protocol().map(|a| String::from_utf8_lossy(a).into_owned()),
        chain: configured.verifier.last().map(|s| s.chain).unwrap_or_default(),
    }
}

/// An alert's name where there is one: alone that the handshake failed counts, and not how.
fn alert(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::AlertReceived(alert)) => format!("{alert:?}"),
        _ => error.kind().to_string(),
    }
}

/// The head of a request.
fn head(number: usize, draft: &Draft) -> Vec<u8> {
    let mut out = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", draft.method, draft.path, draft.host);
    for (name, value) in &draft.headers {
        out.push_str(&format!("{name}: {value}\r\n"));
    }
    let has = |name: &str, part: &str| {
        draft.headers.iter().any(|(n, v)| n.eq_ignore_ascii_case(name) && v.to_ascii_lowercase().contains(part))
    };
    // A handshake without a key is invalid (RFC 6455 §4.1), and HAProxy answers it with 400.
    if has("upgrade", "websocket") && !has("sec-websocket-key", "") {
        out.push_str("Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n");
    }
    if draft.content > 0 || matches!(draft.method.as_str(), "POST" | "PUT" | "PATCH") {
        out.push_str(&format!("Content-Length: {}\r\n", draft.content));
    }
    if !draft.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("connection")) {
        out.push_str("Connection: close\r\n");
    }
    out.push_str(&format!("{HEADER}: {}\r\n\r\n", draft.note(number)));
    out.into_bytes()
}

fn exchange(connection: &mut Connection, number: usize, draft: &Draft) -> Result<Response, String> {
    let broken = |e: io::Error| match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "no response in time".to_owned(),
        // TLS 1.3: the server refuses the client's certificate when the client has finished its handshake.
        _ => match e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) {
            Some(_) => format!("handshake refused: {}", alert(&e)),
            None => "closed without a response".to_owned(),
        },
    };
    let stream = &mut connection.stream;
    // A server may refuse before it has everything; what it says is read below.
    let sent = stream.write_all(&head(number, draft)).and_then(|()| stream.flush());
    if sent.is_ok() && draft.content > 0 {
        // Who answers to the length closes, and a reset by what is sent then would take its answer away.
        let _ = connection.socket.set_read_timeout(Some(EARLY));
        match read(&mut **stream, draft) {
            Ok(response) => return Ok(response),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(e) => return Err(broken(e)),
        }
        let _ = connection.socket.set_read_timeout(Some(LIMIT));
        let piece = [b'x'; 16 * 1024];
        let mut left = draft.content;
        while left > 0 {
            let n = left.min(piece.len() as u64) as usize;
            if stream.write_all(&piece[..n]).is_err() {
                break;
            }
            left -= n as u64;
        }
        let _ = stream.flush();
    }
    read(&mut **stream, draft).map_err(broken)
}

#[derive(Default)]
struct Kept(Response);

impl Sink for Kept {
    fn head(&mut self, head: &[u8]) {
        let string = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        self.0.headers = fields(head).map(|(n, v)| (string(n), string(v))).collect();
    }

    fn content(&mut self, piece: &[u8]) {
        let room = MAX_CONTENT.saturating_sub(self.0.content.len());
        self.0.content.extend(&piece[..piece.len().min(room)]);
    }
}

fn read(stream: &mut dyn Stream, draft: &Draft) -> io::Result<Response> {
    let (mut reader, mut kept) = (Reader::new(draft.method == "HEAD"), Kept::default());
    if draft.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("upgrade")) {
        reader.allow_upgrade();
    }
    let (mut buffer, mut started) = ([0; 16 * 1024], false);
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidData);
    while !reader.done() {
        match stream.read(&mut buffer) {
            Ok(0) => {
                if !reader.end() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                break;
            }
            Ok(n) => {
                started = true;
                let mut piece = &buffer[..n];
                while !piece.is_empty() && !reader.done() {
                    let used = reader.feed_with(piece, &mut kept).map_err(invalid)?;
                    if used == 0 {
                        break;
                    }
                    piece = &piece[used..];
                }
            }
            // TLS without its closing alert: the length says whether all has come.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof && started && reader.end() => break,
            Err(e) => return Err(e),
        }
    }
    kept.0.status = reader.status();
    Ok(kept.0)
}
