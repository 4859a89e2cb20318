//! What the lanes answer about their open requests, put together as JSON.

use crate::run::commands::Reply;
use sealane_http::Version;
use sealane_proxy::inspection::OpenRequest;
use sealane_proxy::unix_clients::ClientAddress;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How long all lanes together may take to answer. A lane that is that busy is left out, and that is told.
const WAIT: Duration = Duration::from_secs(5);

/// The answers of lanes to one question.
#[derive(Debug)]
pub struct Asked {
    /// How many were asked.
    pub lanes: usize,
    /// Where their answers come.
    pub answers: Receiver<Vec<OpenRequest>>,
}

/// What `GET /v1/exchanges` says. Unknown fields are to be ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenExchanges {
    /// Lanes that did not answer in time.
    pub lanes_missing: usize,
    /// Requests and relayed connections, the oldest first.
    pub exchanges: Vec<OpenExchange>,
}

/// A request that is under way, or a relayed connection.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenExchange {
    /// Its ID, as in the log and in the access log.
    pub id: String,
    /// Its connection's ID.
    pub connection: String,
    /// The client's address, as connected.
    pub client: String,
    /// The version of HTTP that the client speaks.
    pub protocol: String,
    /// The method; empty for a relayed connection.
    pub method: String,
    /// The host.
    pub host: String,
    /// The path, without its query.
    pub path: String,
    /// The upstream, if one was chosen.
    pub upstream: Option<String>,
    /// The server, if one was chosen.
    pub server: Option<String>,
    /// What it waits for.
    pub waits_for: String,
    /// Seconds since its head was whole.
    pub age: f64,
    /// Seconds since its head was sent to the server.
    pub sent_ago: Option<f64>,
    /// Seconds since the head of the response was there.
    pub responded_ago: Option<f64>,
    /// The status that the client got; 0: none yet.
    pub status: u16,
    /// Attempts at servers that failed.
    pub failed_attempts: usize,
    /// Bytes of the request's body so far.
    pub bytes_in: u64,
    /// Bytes of the response's body so far.
    pub bytes_out: u64,
}

impl From<OpenRequest> for OpenExchange {
    fn from(r: OpenRequest) -> Self {
        let seconds = |micros: u64| micros as f64 / 1e6;
        let protocol = match r.version {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2",
            Version::Http3 => "HTTP/3",
        };
        Self {
            id: r.id.to_string(),
            connection: r.id.0.to_string(),
            client: ClientAddress(r.client).to_string(),
            protocol: if r.method.is_empty() { String::new() } else { protocol.to_owned() },
            method: r.method,
            host: r.host,
            path: r.path,
            upstream: r.upstream,
            server: r.server,
            waits_for: r.waits_for.to_owned(),
            age: seconds(r.age),
            sent_ago: r.sent.map(seconds),
            responded_ago: r.headed.map(seconds),
            status: r.status,
            failed_attempts: r.failed_attempts,
            bytes_in: r.bytes.0,
            bytes_out: r.bytes.1,
        }
    }
}

/// Waits for the lanes, and writes what they have answered.
pub async fn answer(asked: Asked, limit: usize) -> Reply {
    let collected = tokio::task::spawn_blocking(move || collect(&asked)).await.map_err(|e| e.to_string())?;
    let (mut found, lanes_missing) = collected;
    found.sort_by_key(|request| Reverse(request.age));
    found.truncate(limit);
    let exchanges = found.into_iter().map(OpenExchange::from).collect();
    serde_json::to_string(&OpenExchanges { lanes_missing, exchanges }).map_err(|e| e.to_string())
}

fn collect(asked: &Asked) -> (Vec<OpenRequest>, usize) {
    let deadline = Instant::now() + WAIT;
    let mut found = Vec::new();
    for answered in 0..asked.lanes {
        match asked.answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(requests) => found.extend(requests),
            // Lanes that have ended have nothing under way.
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return (found, 0),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => return (found, asked.lanes - answered),
        }
    }
    (found, 0)
}
