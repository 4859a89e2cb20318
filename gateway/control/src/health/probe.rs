//! One active check: a connection, a handshake where the servers are https, a request where a path is set.

use crate::config::{DatagramCheck, HealthCheck};
use sealane_http::h1::{Limits, parse_response_tolerating};
use sealane_http::{Method, ResponseHead};
use sealane_proxy::snapshot::{Upstream, UpstreamHttp};
use sealane_tls::policy::ClientPolicy;
use sealane_tls::{ClientContext, Records, Session};
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket, UnixStream};

/// Most bytes of an answer that are read for its status.
const MAX_HEAD: usize = 64 * 1024;

/// Most replies to a datagram that are looked at.
const MAX_REPLIES: usize = 16;
/// The longest datagram.
const MAX_REPLY: usize = 65_535;
/// §2.2 of proxy-protocol.txt: what follows is of the gateway itself.
const PROXY_LOCAL: &[u8; 16] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// TLS contexts by policy, made once: reading the system's CAs takes a while.
#[derive(Default)]
pub(super) struct Contexts(RefCell<HashMap<usize, (Arc<ClientPolicy>, ClientContext)>>);

impl Contexts {
    /// Of a policy, with which nothing but this protocol is offered.
    fn of(&self, policy: &Arc<ClientPolicy>, protocol: &[u8]) -> Result<ClientContext, String> {
        let mut contexts = self.0.borrow_mut();
        let key = Arc::as_ptr(policy) as usize;
        if let Some((_, context)) = contexts.get(&key) {
            return Ok(context.clone());
        }
        // Those of configurations that are gone.
        contexts.retain(|_, (policy, _)| Arc::strong_count(policy) > 1);
        let asking = ClientPolicy { alpn: vec![protocol.to_vec()], ..(**policy).clone() };
        let context = ClientContext::new(&asking).map_err(|e| format!("TLS settings: {e}"))?;
        contexts.insert(key, (policy.clone(), context.clone()));
        Ok(context)
    }
}

/// Where a server is.
#[derive(Clone)]
pub(super) enum Place {
    Address(SocketAddr),
    /// A Unix socket.
    Socket(Arc<Path>),
}

impl Place {
    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Address(address) => Box::new(TcpStream::connect(address).await?),
            Self::Socket(path) => Box::new(UnixStream::connect(path).await?),
        })
    }
}

/// What a check reads from and writes to.
trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// Asks a server. The error says what was wrong, in a few words. The caller bounds the time.
pub(super) async fn ask(
    check: &HealthCheck,
    upstream: &Upstream,
    name: &str,
    place: &Place,
    contexts: &Contexts,
) -> Result<(), String> {
    let io = |e: std::io::Error| e.to_string();
    let place = &match (place, check.port) {
        (Place::Address(address), Some(port)) => Place::Address(SocketAddr::new(address.ip(), port)),
        _ => place.clone(),
    };
    if let (Some(datagram), Place::Address(address)) = (&check.datagram, place) {
        return ask_by_datagram(datagram, upstream.proxy_protocol.is_some(), *address).await;
    }
    // Servers for which HTTP/2 is set may know nothing else (gRPC); all others know HTTP/1.1.
    let h2 = upstream.http == UpstreamHttp::Two;
    let mut stream = place.connect().await.map_err(io)?;
    // §2.1, §2.2 of proxy-protocol.txt: a connection of our own.
    match upstream.proxy_protocol.filter(|_| upstream.udp.is_none()) {
        Some(1) => stream.write_all(b"PROXY UNKNOWN\r\n").await.map_err(io)?,
        Some(_) => stream.write_all(PROXY_LOCAL).await.map_err(io)?,
        None => {}
    }
    let mut wire = Wire { stream, session: None, pending: Vec::new(), records: Records::with_capacity(4096) };
    if let Some(policy) = &upstream.tls {
        let protocol = if h2 { &b"h2"[..] } else { b"http/1.1" };
        wire.handshake(&contexts.of(policy, protocol)?).await?;
        if h2 && wire.session.as_ref().and_then(Session::alpn) != Some(b"h2") {
            return Err("it does not speak HTTP/2".to_owned());
        }
    }
    let Some(path) = &check.path else { return Ok(()) };
    let host = check.host.as_deref().or(upstream.host_header.as_deref()).unwrap_or(name);
    let good = |status: u16| {
        let (from, to) = check.status;
        if (from..=to).contains(&status) { Ok(()) } else { Err(format!("status {status}")) }
    };
    if h2 {
        let scheme = if upstream.tls.is_some() { "https" } else { "http" };
        return good(super::probe_h2::ask(&mut wire, &format!("{scheme}://{host}{path}")).await?);
    }
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: sealane-health\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    wire.write(request.as_bytes()).await?;
    let mut answer = Vec::new();
    let (mut head, limits) = (ResponseHead::new(), Limits::default());
    let mut used = 0;
    loop {
        match parse_response_tolerating(upstream.tolerance, &answer[used..], &limits, Method::Get, &mut head) {
            Ok(Some(info)) if (100..200).contains(&head.status) => used += info.consumed,
            Ok(Some(_)) => break,
            Ok(None) if answer.len() > MAX_HEAD => return Err("the head of the response is too long".to_owned()),
            Ok(None) => {
                if !wire.read(&mut answer).await? {
                    return Err("the server closed the connection without a response".to_owned());
                }
            }
            Err(e) => return Err(format!("the response is not HTTP: {e}")),
        }
    }
    good(head.status)
}

/// Sends a datagram and waits for the reply. A datagram that is lost is a bad check: `fall` says how many are too many.
async fn ask_by_datagram(check: &DatagramCheck, has_header: bool, address: SocketAddr) -> Result<(), String> {
    let io = |e: std::io::Error| e.to_string();
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).await.map_err(io)?;
    socket.connect(address).await.map_err(io)?;
    let header = if has_header { &PROXY_LOCAL[..] } else { &[] };
    socket.send(&[header, &check.send].concat()).await.map_err(io)?;
    let mut reply = vec![0; MAX_REPLY];
    for _ in 0..MAX_REPLIES {
        let length = socket.recv(&mut reply).await.map_err(io)?;
        let expected = &check.expect;
        if expected.is_empty() || reply[..length].windows(expected.len()).any(|part| part == expected) {
            return Ok(());
        }
    }
    Err("no reply has the expected bytes".to_owned())
}

/// A connection for one check.
pub(super) struct Wire {
    stream: Box<dyn Stream>,
    session: Option<Session>,
    /// Received, but no whole record yet.
    pending: Vec<u8>,
    records: Records,
}

impl Wire {
    async fn handshake(&mut self, context: &ClientContext) -> Result<(), String> {
        self.session = Some(Session::client(context, &mut self.records).map_err(|e| e.label().to_owned())?);
        self.send().await?;
        let mut plain = Vec::new();
        while self.session.as_ref().is_some_and(Session::is_handshaking) {
            if !self.read(&mut plain).await? {
                return Err("the server closed the connection during the handshake".to_owned());
            }
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<(), String> {
        let sent = self.stream.write_all(self.records.filled()).await;
        self.records.clear();
        sent.map_err(|e| e.to_string())
    }

    pub async fn write(&mut self, plain: &[u8]) -> Result<(), String> {
        match &mut self.session {
            None => self.stream.write_all(plain).await.map_err(|e| e.to_string()),
            Some(session) => {
                session.write(plain, false, &mut self.records).map_err(|e| e.label().to_owned())?;
                self.send().await
            }
        }
    }

    /// Appends what comes; false at the end.
    pub async fn read(&mut self, plain: &mut Vec<u8>) -> Result<bool, String> {
        let mut buffer = [0; 8192];
        let n = self.stream.read(&mut buffer).await.map_err(|e| e.to_string())?;
        if n == 0 {
            return Ok(false);
        }
        let Some(session) = &mut self.session else {
            plain.extend_from_slice(&buffer[..n]);
            return Ok(true);
        };
        self.pending.extend_from_slice(&buffer[..n]);
        let mut early = Vec::new();
        let result = session.read(&mut self.pending, plain, &mut early, &mut self.records);
        let failed = result.map_err(|e| format!("TLS: {}", e.label()));
        // An alert, if there is one, is for the server's log.
        self.send().await?;
        let done = failed?;
        self.pending.drain(..done.consumed);
        Ok(!done.closed || !plain.is_empty())
    }
}
