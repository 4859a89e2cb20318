//! `sealane debug record`: lanes record exchanges for a while, and control collects them.
//!
//! One recording at a time: it ends with its time, its number of exchanges, its bytes, or when the next one begins, so that one whose
//! client has gone is in nobody's way.

use crate::log;
use crate::run::commands::PendingCommand;
use sealane_http::Version;
use sealane_proxy::recording::{Recorded, Recording};
use sealane_proxy::unix_clients::ClientAddress;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, UNIX_EPOCH};
use tokio::time::Instant;

/// The longest recording: shorter than the life of a connection to the admin socket.
pub const LONGEST: Duration = Duration::from_secs(240);
/// The most exchanges of a recording.
pub const MOST: u32 = 1000;
/// Bytes of text of a recording.
const MAX_BYTES: usize = 4 << 20;
/// Exchanges that wait for control, which looks a few times a second.
const QUEUE: usize = 128;
const LOOK: Duration = Duration::from_millis(100);

/// Recordings that have not ended: one, and for a moment the one that it has replaced.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// What is to be recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordingRequest {
    /// For how long, in milliseconds.
    pub millis: u64,
    /// Requests for this host; `None`: for any.
    #[serde(default)]
    pub host: Option<String>,
    /// One in so many requests.
    #[serde(default = "one")]
    pub one_in: u32,
    /// At most so many exchanges.
    #[serde(default = "hundred")]
    pub limit: u32,
}

fn one() -> u32 {
    1
}

fn hundred() -> u32 {
    100
}

/// What was recorded. Unknown fields are to be ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordedExchanges {
    /// The recording has ended early because there were as many exchanges as it may have, or as many bytes.
    pub is_cut: bool,
    /// It has ended early because another recording has begun, or because the gateway is ending.
    pub is_replaced: bool,
    /// The exchanges, as they ended.
    pub exchanges: Vec<RecordedExchange>,
}

/// An exchange that is over.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordedExchange {
    /// Its id, as in the log.
    pub id: String,
    /// When it was over, in seconds since 1970.
    pub at: f64,
    /// The client's address, as connected.
    pub client: String,
    /// The version of HTTP that the client speaks.
    pub protocol: String,
    /// The method.
    pub method: String,
    /// The host.
    pub host: String,
    /// The path, without its query.
    pub path: String,
    /// The status that the client got.
    pub status: u16,
    /// The upstream; empty without one.
    pub upstream: String,
    /// The last server.
    pub server: String,
    /// Why the last attempt failed that did; empty if none did.
    pub failure: String,
    /// Attempts that failed.
    pub failed_attempts: usize,
    /// Seconds from the end of the request's head until it was sent to the server.
    pub sent: Option<f64>,
    /// Seconds until the head of the response was there.
    pub responded: Option<f64>,
    /// Seconds until the exchange was over.
    pub took: f64,
    /// Bytes of the request's body.
    pub bytes_in: u64,
    /// Bytes of the response's body.
    pub bytes_out: u64,
    /// The request's header fields, as they were passed on. Secrets are masked.
    pub request: Vec<(String, String)>,
    /// The response's header fields.
    pub response: Vec<(String, String)>,
}

impl From<Recorded> for RecordedExchange {
    fn from(r: Recorded) -> Self {
        let seconds = |micros: u64| micros as f64 / 1e6;
        let protocol = match r.version {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2",
            Version::Http3 => "HTTP/3",
        };
        let (upstream, server) = r.server.unwrap_or_default();
        Self {
            id: r.id.to_string(),
            at: r.at.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
            client: ClientAddress(r.client).to_string(),
            protocol: protocol.to_owned(),
            method: r.method,
            host: r.host,
            path: r.path,
            status: r.status,
            upstream,
            server,
            failure: r.failure.map_or_else(String::new, |failure| failure.text().into_owned()),
            failed_attempts: r.failed_attempts,
            sent: r.sent.map(seconds),
            responded: r.headed.map(seconds),
            took: seconds(r.took),
            bytes_in: r.bytes.0,
            bytes_out: r.bytes.1,
            request: r.request,
            response: r.response,
        }
    }
}

/// Ends with a recording, however it ends.
struct UnderWay;

impl Drop for UnderWay {
    fn drop(&mut self) {
        if UNDER_WAY.fetch_sub(1, SeqCst) == 1 {
            log::set_recording(false);
        }
    }
}

/// Begins a recording by giving it to the lanes, and answers when it is over.
pub fn start(request: &RecordingRequest, pending: PendingCommand, begin: impl FnOnce(&Recording)) {
    let millis = request.millis;
    let longest = LONGEST.as_millis() as u64;
    if millis == 0 || millis > longest || request.limit == 0 || request.limit > MOST || request.one_in == 0 {
        let seconds = LONGEST.as_secs();
        return pending.answer(Err(format!(
            "a recording lasts at most {seconds} s, records 1 to {MOST} requests, and `one_in` is 1 or more"
        )));
    }
    UNDER_WAY.fetch_add(1, SeqCst);
    let under_way = UnderWay;
    let (queue, recorded) = sync_channel(QUEUE);
    begin(&Recording::new(request.host.clone(), request.one_in, request.limit, millis, queue));
    log::set_recording(true);
    let (until, limit) = (Instant::now() + Duration::from_millis(millis), request.limit as usize);
    tokio::spawn(async move {
        let (exchanges, pending) = collect(recorded, until, limit, pending).await;
        // Before the answer: another one may begin with it.
        drop(under_way);
        pending.answer(serde_json::to_string(&exchanges).map_err(|e| e.to_string()));
    });
}

async fn collect(
    recorded: Receiver<Box<Recorded>>,
    until: Instant,
    limit: usize,
    pending: PendingCommand,
) -> (RecordedExchanges, PendingCommand) {
    let (mut found, mut bytes) = (RecordedExchanges::default(), 0);
    loop {
        let is_over = Instant::now() >= until;
        loop {
            match recorded.try_recv() {
                Ok(exchange) => {
                    bytes += exchange.size();
                    found.exchanges.push((*exchange).into());
                    if found.exchanges.len() >= limit || bytes >= MAX_BYTES {
                        found.is_cut = true;
                        return (found, pending);
                    }
                }
                Err(TryRecvError::Empty) => break,
                // Each lane has ended, or has begun the next recording. If one had recorded as many as it may, they would be here.
                Err(TryRecvError::Disconnected) => {
                    found.is_replaced = Instant::now() < until;
                    return (found, pending);
                }
            }
        }
        if is_over || pending.is_given_up() {
            return (found, pending);
        }
        tokio::time::sleep_until((Instant::now() + LOOK).min(until)).await;
    }
}
