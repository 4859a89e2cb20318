//! The traffic of a soak test: clients of all protocols that check every answer, until they are stopped.

use super::faults::Faults;
use crate::h3::{Client, over_quic};
use crate::http::Wire;
use crate::site::HOST;
use crate::{client, h2, noise, sha256};
use ::h2::client::SendRequest;
use bytes::Bytes;
use quinn_proto::TransportConfig;
use rustls::ClientConfig;
use std::collections::{BTreeMap, HashSet};
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a client waits for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Requests of a connection before the client makes a new one.
const REQUESTS: usize = 20;

/// What clients share.
pub struct Shared {
    /// The listener with TLS and HTTP/3.
    pub tls: SocketAddr,
    /// The listener without TLS.
    pub plain: SocketAddr,
    /// The settings of TLS clients, with their sessions.
    pub config: Arc<ClientConfig>,
    /// What excuses failures.
    pub faults: Arc<Faults>,
    /// How many of a hundred datagrams of the HTTP/3 client are lost, either way.
    pub loss: Arc<AtomicU64>,
    /// Ends the clients.
    pub stop: AtomicBool,
    next: AtomicU64,
    tally: Mutex<Tally>,
}

/// What clients have seen.
#[derive(Default)]
pub struct Tally {
    /// Whole answers, by protocol.
    pub answers: BTreeMap<&'static str, u64>,
    /// Failures that no fault excuses.
    pub failures: Vec<String>,
    /// Failures beside a fault that may cause them.
    pub excused: u64,
    /// Requests on a kept connection that ended before a byte of the response: clients send these again (RFC 9112 §9.3.1).
    pub again: u64,
    /// Uploads that were acknowledged, by their ids.
    pub acknowledged: HashSet<u64>,
}

/// How a visit ended, if not well.
enum Trouble {
    /// The connection had ended before the request.
    Stale,
    /// Anything else.
    Failure(String),
}

impl From<String> for Trouble {
    fn from(text: String) -> Self {
        Trouble::Failure(text)
    }
}

type Visit = fn(&Shared, &mut u64) -> Result<u64, Trouble>;

/// The clients, by protocol, and how many there are of each.
const CLIENTS: [(&str, Visit, usize); 6] = [
    ("HTTP/1.1, kept connections", kept, 2),
    ("HTTP/1.1, new connections", new, 1),
    ("HTTP/2", second, 1),
    ("HTTP/3", third, 1),
    ("WebSocket", websocket, 1),
    ("uploads", uploads, 2),
];

impl Shared {
    /// Clients that are about to begin.
    pub fn new(
        [tls, plain]: [SocketAddr; 2],
        config: Arc<ClientConfig>,
        faults: Arc<Faults>,
        loss: Arc<AtomicU64>,
    ) -> Self {
        let (stop, next, tally) = (AtomicBool::new(false), AtomicU64::new(1), Mutex::default());
        Self { tls, plain, config, faults, loss, stop, next, tally }
    }

    /// What they have seen so far.
    pub fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Starts all clients.
pub fn start(shared: &Arc<Shared>, seed: u64) -> Vec<JoinHandle<()>> {
    let mut threads = Vec::new();
    for (name, visit, count) in CLIENTS {
        for n in 0..count {
            let (shared, seed) = (shared.clone(), seed ^ (threads.len() as u64 + 1) << 32);
            let thread = std::thread::Builder::new().name(format!("{name} {n}"));
            threads.push(thread.spawn(move || client(&shared, name, visit, seed)).expect("a thread can be started"));
        }
    }
    threads
}

fn client(shared: &Shared, name: &'static str, visit: Visit, mut random: u64) {
    while !shared.stopped() {
        let begun = Instant::now();
        // The helpers of tests panic where a test would fail.
        let visited = catch_unwind(AssertUnwindSafe(|| visit(shared, &mut random)));
        let trouble = match visited {
            Ok(Ok(answers)) => {
                *shared.tally().answers.entry(name).or_default() += answers;
                continue;
            }
            Ok(Err(trouble)) => trouble,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                Trouble::Failure(
                    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default(),
                )
            }
        };
        let excuse = shared.faults.excuse(begun);
        let mut tally = shared.tally();
        match (trouble, excuse) {
            (Trouble::Stale, _) => tally.again += 1,
            (Trouble::Failure(_), true) => tally.excused += 1,
            (Trouble::Failure(text), false) => {
                let text = format!("{name}, after {} ms: {text}", begun.elapsed().as_millis());
                tally.failures.push(text.chars().take(600).collect());
            }
        }
        drop(tally);
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn next(random: &mut u64, below: u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random % below
}

/// A path, and the body that must come.
fn question(random: &mut u64) -> (String, Vec<u8>) {
    if next(random, 4) > 0 {
        return ("/small".to_owned(), b"hello".to_vec());
    }
    let (length, seed) = (next(random, 300_000), next(random, 1 << 30) + 1);
    (format!("/large/{length}/{seed}"), noise(length as usize, seed))
}

fn tcp(address: SocketAddr) -> Result<TcpStream, String> {
    let stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT).map_err(|e| format!("connect: {e}"))?;
    for set in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
        set(&stream, Some(ANSWER_LIMIT)).map_err(|e| e.to_string())?;
    }
    Ok(stream)
}

fn tls(shared: &Shared) -> Result<Wire<client::Tls>, String> {
    let stream = client::handshake(tcp(shared.tls)?, &shared.config, HOST).map_err(|e| format!("handshake: {e}"))?;
    Ok(Wire::new(stream))
}

/// One request over HTTP/1.1. The answer says whether the connection stays.
fn ask(wire: &mut Wire<client::Tls>, random: &mut u64, close: bool) -> Result<bool, (bool, String)> {
    let (path, body) = question(random);
    let ending = if close { "Connection: close\r\n" } else { "" };
    let request = format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n{ending}\r\n");
    wire.send(request).map_err(|e| (true, format!("request: {e}")))?;
    let response = wire.response("GET").map_err(|broken| {
        let nothing = broken.partial.start.is_empty() && broken.partial.interim.is_empty();
        let ended = !matches!(broken.error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
        (nothing && ended, format!("{path}: {}: {:?}", broken.error, broken.partial.start))
    })?;
    if response.status() != 200 || response.body != body {
        return Err((false, format!("{path}: {}, {} of {} bytes", response.start, response.body.len(), body.len())));
    }
    Ok(response.header("connection") != Some("close"))
}

fn kept(shared: &Shared, random: &mut u64) -> Result<u64, Trouble> {
    let mut wire = tls(shared)?;
    for n in 0.. {
        match ask(&mut wire, random, false) {
            Ok(stays) if stays && !shared.stopped() && n < 2000 => {
                if n % 50 == 49 {
                    *shared.tally().answers.entry(CLIENTS[0].0).or_default() += 50;
                }
            }
            Ok(_) => return Ok(n % 50 + 1),
            Err((true, _)) if n > 0 => return Err(Trouble::Stale),
            Err((_, text)) => return Err(Trouble::Failure(format!("request {n} of a connection: {text}"))),
        }
    }
    Ok(0)
}

fn new(shared: &Shared, random: &mut u64) -> Result<u64, Trouble> {
    ask(&mut tls(shared)?, random, true).map_err(|(_, text)| Trouble::Failure(text))?;
    Ok(1)
}

fn second(shared: &Shared, random: &mut u64) -> Result<u64, Trouble> {
    let questions: Vec<(String, Vec<u8>)> = (0..REQUESTS).map(|_| question(random)).collect();
    h2::run(async {
        let client = h2::connect(shared.plain).await;
        // All at the same time.
        let ask =
            |(path, _): &(String, Vec<u8>)| tokio::spawn(stream(client.clone(), h2::request(&http::Method::GET, path)));
        let open: Vec<_> = questions.iter().map(ask).collect();
        for (answer, (path, body)) in open.into_iter().zip(&questions) {
            let answer = answer.await.map_err(|e| e.to_string())??;
            if answer.status != 200 || answer.body != *body || answer.end != h2::End::Whole {
                let (status, length, end) = (answer.status, answer.body.len(), &answer.end);
                return Err(format!("{path}: {status}, {length} of {} bytes, {end:?}", body.len()).into());
            }
        }
        Ok(REQUESTS as u64)
    })
}

/// One stream. A stream that the gateway has not processed is sent again by clients (RFC 9113 §8.7).
async fn stream(client: SendRequest<Bytes>, request: http::Request<()>) -> Result<h2::Answer, Trouble> {
    let unprocessed = |e: &::h2::Error| {
        e.reason() == Some(::h2::Reason::REFUSED_STREAM) || e.is_go_away() && e.reason() == Some(::h2::Reason::NO_ERROR)
    };
    let failed = |e: ::h2::Error| if unprocessed(&e) { Trouble::Stale } else { Trouble::Failure(e.to_string()) };
    let mut client = client.ready().await.map_err(failed)?;
    let (response, _) = client.send_request(request, true).map_err(failed)?;
    let (parts, mut body) = response.await.map_err(failed)?.into_parts();
    let (body, end) = h2::read(&mut body).await;
    Ok(h2::Answer { status: parts.status.as_u16(), headers: parts.headers, body, end })
}

fn third(shared: &Shared, random: &mut u64) -> Result<u64, Trouble> {
    let mut transport = TransportConfig::default();
    transport.enable_segmentation_offload(false);
    transport.max_idle_timeout(Some(quinn_proto::VarInt::from_u32(10_000).into()));
    let mut client = Client::begin_with(shared.tls, &over_quic(&shared.config, false), transport);
    client.lose(shared.loss.clone(), *random);
    if !client.establish() {
        return Err(format!("handshake: {:?}", client.lost).into());
    }
    client.open_control();
    let mut got = 0;
    for _ in 0..REQUESTS {
        let (path, body) = question(random);
        let head = crate::h3::headers("GET", &path, &[], sealane_http::BodyLength::None);
        // A gateway that drains says so, and takes no new requests.
        if client.told_to_leave() {
            break;
        }
        match client.exchange(&head, &[]) {
            Ok(response) if response.status == 200 && response.body == body => got += 1,
            Ok(response) => {
                let (status, length) = (response.status, response.body.len());
                return Err(format!("{path}: {status}, {length} of {} bytes", body.len()).into());
            }
            // H3_REQUEST_REJECTED: nothing was done for it (RFC 9114 §4.1.1).
            Err(crate::h3::Failure::Reset(0x10b)) => return Err(Trouble::Stale),
            Err(_) if client.told_to_leave() => return Err(Trouble::Stale),
            Err(failure) => return Err(format!("{path}: {failure:?}").into()),
        }
    }
    client.close();
    Ok(got)
}

fn websocket(shared: &Shared, random: &mut u64) -> Result<u64, Trouble> {
    use std::io::{Read, Write};
    let mut wire = tls(shared)?;
    let key = crate::base64(&next(random, u64::MAX).to_be_bytes().repeat(2));
    wire.send(format!(
        "GET /echo HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    ))
    .map_err(|e| format!("request: {e}"))?;
    let response = wire.response("GET").map_err(|broken| format!("handshake: {broken:?}"))?;
    if response.status() != 101 {
        return Err(format!("handshake: {}", response.start).into());
    }
    for _ in 0..REQUESTS {
        let message = noise(next(random, 2000) as usize + 1, next(random, 1 << 30));
        wire.stream.write_all(&message).and_then(|()| wire.stream.flush()).map_err(|e| format!("message: {e}"))?;
        let mut back = vec![0; message.len()];
        wire.stream.read_exact(&mut back).map_err(|e| format!("echo: {e}"))?;
        if back != message {
            return Err("another message came back".to_owned().into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(REQUESTS as u64)
}

/// An upload that is acknowledged is recorded by a server, once.
fn uploads(shared: &Shared, random: &mut u64) -> Result<u64, Trouble> {
    let id = shared.next.fetch_add(1, Ordering::Relaxed);
    let body = noise(next(random, 60_000) as usize, id);
    let mut wire = tls(shared)?;
    let length = body.len();
    let head =
        format!("POST /record/{id} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    // It may answer and close before it has read everything.
    let _ = wire.send([head.as_bytes(), &body].concat());
    let response =
        wire.response("POST").map_err(|broken| format!("upload: {}: {:?}", broken.error, broken.partial.start))?;
    if response.status() != 200 || response.text() != sha256(&body) {
        return Err(format!("upload: {}", response.start).into());
    }
    shared.tally().acknowledged.insert(id);
    Ok(1)
}
