//! What the lane's open requests are waiting for, told when somebody asks: `sealane debug connections` and `exchange`.
//!
//! Requests notice nothing of it: nothing is kept for them that is not kept anyway. The answer has the oldest of
//! them, whose number the question bounds.

use crate::exchange::Exchange;
use crate::records::RequestId;
use crate::service::Proxy;
use sealane_exchange::Phase;
use sealane_http::Version;
use sealane_lane::{Context, Key, Micros};
use std::net::SocketAddr;
use std::sync::mpsc::SyncSender;

/// Bytes that are told of a host or a path.
const MAX_TEXT: usize = 256;

/// A question to a lane.
#[derive(Debug)]
pub struct Inspection {
    /// At most so many requests, the oldest.
    pub limit: usize,
    /// Requests that began longer ago than this.
    pub older_than: Micros,
    /// Where the answer goes. A lane does not wait there.
    pub answer: SyncSender<Vec<OpenRequest>>,
}

/// A request that is under way, or a relayed connection.
#[derive(Clone, Debug)]
pub struct OpenRequest {
    /// Its id, and its connection's.
    pub id: RequestId,
    /// The client's address, as connected.
    pub client: SocketAddr,
    /// The version of HTTP that the client speaks.
    pub version: Version,
    /// The method; empty for a relayed connection.
    pub method: String,
    /// The host that is asked for, cut if it is long.
    pub host: String,
    /// The path without its query, cut if it is long.
    pub path: String,
    /// The upstream, if one was chosen.
    pub upstream: Option<String>,
    /// The server, if one was chosen.
    pub server: Option<String>,
    /// What it waits for.
    pub waits_for: &'static str,
    /// How long ago its head was whole.
    pub age: Micros,
    /// How long ago its head was sent to the server.
    pub sent: Option<Micros>,
    /// How long ago the head of the response was there.
    pub headed: Option<Micros>,
    /// The status that the client got; 0: none yet.
    pub status: u16,
    /// Attempts at servers that failed.
    pub failed_attempts: usize,
    /// Bytes of the request's body, and of the response's.
    pub bytes: (u64, u64),
}

/// Answers a question. Each open request costs a comparison, and each that is told some copies.
pub(crate) fn inspect(proxy: &Proxy, cx: &Context, inspection: &Inspection) {
    let now = cx.micros();
    let age = |x: &Exchange| now.saturating_sub(x.times().started);
    let old =
        |key: Key| Some((proxy.exchanges.get(key).map(age)?, key)).filter(|(age, _)| *age >= inspection.older_than);
    let mut found: Vec<(Micros, Key)> = proxy.exchanges.keys().filter_map(old).collect();
    if inspection.limit < found.len() {
        found.select_nth_unstable_by(inspection.limit, |a, b| b.0.cmp(&a.0));
        found.truncate(inspection.limit);
    }
    let open = found.into_iter().filter_map(|(_, key)| {
        let x = proxy.exchanges.get(key)?;
        let client = proxy.connections.client_of(x.client_stream())?;
        Some(describe(x, RequestId(client.id(), x.number()), client.peer(), now))
    });
    // If the answer cannot be taken, the client that asked has gone.
    let _ = inspection.answer.try_send(open.collect());
}

fn describe(x: &Exchange, id: RequestId, client: SocketAddr, now: Micros) -> OpenRequest {
    let since = |then: Micros| (then > 0).then(|| now.saturating_sub(then));
    let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_TEXT)]).into_owned();
    // While a server is asked about the request, the exchange holds the question.
    let request = x.client_request();
    let is_relay = x.machine().is_relay();
    let of = |bytes: &[u8]| if is_relay { String::new() } else { text(bytes) };
    let upstream = x.upstream().map(|group| group.settings());
    OpenRequest {
        id,
        client,
        version: request.version,
        method: of(request.method_name()),
        host: of(request.host_name().as_bytes()),
        path: of(request.client_path()),
        upstream: upstream.map(|upstream| upstream.name.clone()),
        server: upstream
            .filter(|_| x.upstream_stream().is_some())
            .and_then(|upstream| Some(upstream.servers.get(x.server())?.name.clone())),
        waits_for: waits_for(x),
        age: now.saturating_sub(x.times().started),
        sent: since(x.times().sent),
        headed: since(x.times().headed),
        status: x.status(),
        failed_attempts: x.attempts(),
        bytes: (x.request_body().bytes(), x.response_body().bytes()),
    }
}

/// What an exchange waits for, in words.
fn waits_for(x: &Exchange) -> &'static str {
    let machine = x.machine();
    match (machine.request(), machine.response()) {
        _ if machine.is_relay() => "either side (relayed connection)",
        _ if machine.is_tunnel() => "either side (upgraded connection)",
        _ if machine.awaits_handshake() => "the end of the client's handshake",
        _ if machine.is_verifying() => "the check of the password",
        _ if machine.is_authorizing() => "the answer of forward_auth",
        _ if x.drains_since().is_some() => "the rest of the request, which the gateway discards",
        (_, Phase::Awaiting) if !machine.has_server() => match x.upstream_stream() {
            Some(_) => "the connection to the server",
            None => "a server with room",
        },
        (Phase::Streaming, Phase::Awaiting) if x.request_body().is_blocked() => "the server to read the request's body",
        (Phase::Streaming, Phase::Awaiting) => "the client to send the request's body",
        (_, Phase::Awaiting) => "the head of the server's response",
        (_, Phase::Streaming) if x.response_body().is_blocked() => "the client to read the response's body",
        (_, Phase::Streaming) => "the server to send the response's body",
        _ => "the client to read the end of the response",
    }
}
