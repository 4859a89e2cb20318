//! HTTP/3 to upstreams: a connection per server and lane, shared by all requests; TCP where that fails. Requests of clients that
//! have many responses under way share a second one, with narrow windows (`memory`).
//!
//! ```text
//! dispatch ─► h3_dispatch ─┬─ open ─────────► stream ─► request out, response in ─► exchange (response_*)
//!                          ├─ being made ───► waits ──┬─ established ─► stream
//!                          │                          └─ failed ──────► `not_taken`: another one, over TCP
//!                          └─ failed lately, upgrade ─► (TCP)
//! ```
//! A server that could not be reached over QUIC is left alone for [`FORGET`]: UDP is blocked in many networks, and no
//! request waits twice for that to be found out.

use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::{Count, Counters};
use crate::exchange::Exchange;
use crate::exchange::executor::{connected, request_sent};
use crate::exchange::response::{
    not_taken, response_arrived, response_broken, response_data, response_end, response_room, server_lost,
};
use crate::exchange::streams::{Later, UpstreamStream};
use crate::h3::connection::{H3Connection, LostRequests};
use crate::h3::stream::{Read, Stream};
use crate::h3::{READ_AHEAD, next_look};
use crate::latency::HANDSHAKE;
use crate::memory::{Window, grant_window};
use crate::quic::{QuicEndpoint, config};
use crate::service::Proxy;
use crate::settings::LaneSettings;
use crate::snapshot::QuicSettings;
use crate::upstream::connection::may_wait;
use crate::upstream::group::LaneUpstream;
use quinn_proto::{StreamId, VarInt};
use sealane_exchange::deadlines::ConnectionWait;
use sealane_exchange::{Fit, Loss, Reset, Switching};
use sealane_http::h3::{self, Code, H3Error, MessageReader, Piece, Settings, Side};
use sealane_http::list::ListInfo;
use sealane_http::{BodyLength, ParseError, Scheme};
use sealane_lane::{Context, Key, Millis};
use sealane_tls::quic::QuicClient;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long a server that could not be reached over QUIC is asked over TCP.
const FORGET: Millis = 60_000;
/// Beyond all other deadlines: a server that has been silent for so long has gone.
const DEAD_AFTER: Duration = Duration::from_secs(15);

/// Bytes of response bodies that a server may have under way on a stream, on a connection with wide windows.
const STREAM_WINDOW: u32 = 512 << 10;

/// Upgrades and CONNECT go over TCP: whether a server can do them here is not known in advance.
const SWITCHING: Switching = Switching::NoTunnel;

/// Towards upstreams: windows for bulk, no streams of theirs.
const SETTINGS: QuicSettings = QuicSettings {
    max_streams: 0,
    stream_window: STREAM_WINDOW as u64,
    // What streams have to themselves is the bound: those whose clients take nothing must not have the connection's.
    connection_window: 1 << 30,
    send_window: 2 << 20,
    migration: false,
    offload: true,
    retry_above: 0,
    alt_svc: None,
};

/// Sends a request to an upstream that may speak HTTP/3 over that, or lets it wait for a connection that is being made. False: it goes
/// over TCP.
pub(crate) fn h3_dispatch(proxy: &mut Proxy, cx: &mut Context, exchange: Key) -> bool {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return false };
    let Some(upstream) = x.upstream().cloned() else { return false };
    let server = x.server();
    if x.machine().fit(SWITCHING) != Fit::Whole || upstream.h3_is_down(server, cx.now()) {
        return false;
    }
    let oldest = x.routed().oldest_connection();
    let window = grant_window(&mut proxy.connections, &mut proxy.exchanges, exchange, STREAM_WINDOW);
    let mut connecting = 0;
    let known = upstream.h3_connection(server, window);
    let key = match known.filter(|key| h3_usable(&mut proxy.connections, *key, oldest)) {
        Some(key) => {
            let waiting = proxy.connections.quic(key).and_then(H3Connection::waiting_requests);
            if !waiting.is_some_and(|waiting| may_wait(waiting, &proxy.exchanges, key)) {
                return false;
            }
            proxy.counters.count(Count::UpstreamReused);
            key
        }
        None => match h3_connect(
            &mut proxy.connections,
            &mut proxy.quic,
            &proxy.settings,
            &proxy.counters,
            cx,
            (&upstream, server, window),
        ) {
            Some(key) => {
                connecting = cx.micros();
                key
            }
            None => {
                upstream.h3_failed(server, cx.now() + FORGET);
                return false;
            }
        },
    };
    if let Some(x) = proxy.exchanges.get_mut(exchange) {
        x.await_connection(UpstreamStream::Waiting(key));
        x.note_connecting(connecting);
    }
    if let Some(waiting) = proxy.connections.quic(key).and_then(H3Connection::waiting_requests) {
        waiting.push_back(exchange);
    }
    h3_send_waiting(proxy, cx, key);
    true
}

/// Whether a connection takes a request that goes over none that is older than this.
fn h3_usable(connections: &mut Connections, key: Key, oldest: Option<Millis>) -> bool {
    connections.quic(key).is_some_and(|q| q.takes_requests() && oldest.is_none_or(|oldest| q.began() / 1000 >= oldest))
}

/// Begins to connect; `None` if that fails at once.
fn h3_connect(
    connections: &mut Connections,
    quic: &mut QuicEndpoint,
    settings: &LaneSettings,
    counters: &Counters,
    cx: &mut Context,
    (upstream, server, window): (&Rc<LaneUpstream>, usize, Window),
) -> Option<Key> {
    let address = upstream.upstream.servers.get(server)?.address;
    let policy = upstream.upstream.tls.as_ref()?;
    let context = upstream.context(false).ok()??;
    let client = QuicClient::new(&context).ok()?;
    let mut config = quinn_proto::ClientConfig::new(Arc::new(client));
    // Longer than what an answer may take, so that this is what a late one is counted as; but a server that is gone
    // without a word is found out.
    let longest = upstream.upstream.first_byte_timeout.max(upstream.upstream.idle_timeout);
    let silence = longest.saturating_add(DEAD_AFTER);
    let stream_window = window.bytes(STREAM_WINDOW);
    let settings_of_quic = QuicSettings { stream_window: stream_window.into(), ..SETTINGS };
    config.transport_config(Arc::new(config::transport(&settings_of_quic, Some(silence))));
    let connection = quic.connect(cx, settings, config, address, &policy.server_name)?;
    counters.count(Count::UpstreamConnects);
    let (now, began) = (cx.now(), cx.micros());
    let q = H3Connection::with_server(connection, (upstream.clone(), server), stream_window as usize, now, began);
    let key = connections.insert(Conn::Quic(Box::new(q)));
    upstream.h3_note(server, window, key);
    let q = connections.quic(key)?;
    quic.note(q.transport(), key);
    q.expire_at(cx, key, upstream.upstream.until(ConnectionWait::Connect, now));
    connections.mark_for_flush(key);
    Some(key)
}

/// The handshake with a server is over.
pub(crate) fn h3_server_established(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let limits = proxy.settings.limits().clone();
    let Some(q) = proxy.connections.quic(key) else { return };
    let took = q.note_established(cx.now(), cx.micros());
    if let Some((upstream, _)) = q.server() {
        upstream.record(proxy.settings.slot(), HANDSHAKE, took);
    }
    q.open_control(&Settings { max_field_section_size: limits.http.head as u64, connect_protocol: false });
    let handshake = q.transport().handshake();
    q.expire_at(cx, key, cx.now() + next_look(&limits));
    match handshake.and_then(|h| h.summary).is_some_and(|s| s.resumed) {
        true => proxy.counters.count(Count::UpstreamResumed),
        false => proxy.counters.count(Count::UpstreamFull),
    }
    proxy.counters.count(Count::H3UpstreamConnections);
    h3_send_waiting(proxy, cx, key);
}

/// Sends the requests that wait for this connection, as many as the server allows.
pub(crate) fn h3_send_waiting(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    loop {
        let Some(Conn::Quic(q)) = proxy.connections.get_mut(key) else { return };
        let Some(waiting) = q.waiting_requests() else { return };
        let Some(&exchange) = waiting.front() else { return };
        if !proxy.exchanges.waits_for(exchange, key) {
            waiting.pop_front();
            continue;
        }
        if !q.is_open() {
            return;
        }
        let Some(id) = q.open_request() else { return };
        q.waiting_requests().and_then(VecDeque::pop_front);
        h3_send_request(proxy, cx, key, exchange, id);
    }
}

fn h3_send_request(proxy: &mut Proxy, cx: &mut Context, key: Key, exchange: Key, id: StreamId) {
    let max = proxy.settings.limits().http.head;
    let Some(q) = proxy.connections.quic(key) else { return };
    let index = q.add(Stream::new(id, MessageReader::new(Side::Client, max), Millis::MAX));
    let Some(actions) = connected(proxy, cx, exchange, SWITCHING) else {
        return h3_server_reset(&mut proxy.connections, key, index);
    };
    let Proxy { connections, exchanges, .. } = proxy;
    let (Some(Conn::Quic(q)), Some(x)) = (connections.get_mut(key), exchanges.get_mut(exchange)) else { return };
    let Some(stream) = q.stream(index) else { return };
    stream.serve(exchange);
    x.request_body_mut().frame(BodyLength::None);
    h3::encode_request(stream.out(), x.request(), x.body(), Scheme::Https, false);
    if x.body().is_empty() {
        stream.end();
    }
    q.stage(index);
    proxy.connections.mark_for_flush(key);
    request_sent(proxy, cx, exchange, UpstreamStream::H3(key, index), actions);
}

/// Reads a response as far as there is room for it.
pub(crate) fn h3_server_read(proxy: &mut Proxy, cx: &mut Context, key: Key, index: u32) {
    let Some(q) = proxy.connections.quic(key) else { return };
    let Some(exchange) = q.exchange_of(index) else { return };
    let Some((id, mut reader)) = q.take_reader(index) else { return };
    let result = h3_server_read_with(proxy, cx, key, index, exchange, &mut reader);
    if let Some(q) = proxy.connections.quic(key) {
        q.return_reader(index, id, reader);
    }
    match result {
        Ok(()) => {}
        Err(H3Error::Message(e)) => response_broken(proxy, cx, exchange, e),
        Err(H3Error::Stream(..)) => response_broken(proxy, cx, exchange, ParseError::Truncated),
        Err(H3Error::Connection(code, why)) => {
            // The response that breaks the rules is not asked for again together with those beside it.
            server_lost(proxy, cx, exchange, Loss::Broken);
            h3_server_error(proxy, cx, key, code, why);
        }
    }
    proxy.connections.mark_for_flush(key);
}

fn h3_server_read_with(
    proxy: &mut Proxy,
    cx: &mut Context,
    key: Key,
    index: u32,
    exchange: Key,
    reader: &mut MessageReader,
) -> Result<(), H3Error> {
    let mut begun: Option<ListInfo> = None;
    let mut ahead = 0;
    loop {
        let Some(Conn::Quic(q)) = proxy.connections.get_mut(key) else { return Ok(()) };
        let Some(stream) = q.stream(index) else { return Ok(()) };
        if stream.unread() == 0 {
            match q.fetch(index) {
                Read::Data => {}
                Read::Blocked => {
                    if let Some(info) = begun {
                        response_arrived(proxy, cx, exchange, info.body, false);
                    }
                    return Ok(());
                }
                Read::End => {
                    let short = q.stream(index).is_some_and(|s| s.is_short());
                    reader.finish()?;
                    if let Some(mut info) = begun {
                        match info.body {
                            BodyLength::Known(n) if n > 0 => return Err(ParseError::LengthMismatch.into()),
                            BodyLength::Chunked => info.body = BodyLength::Known(0),
                            _ => {}
                        }
                        if !response_arrived(proxy, cx, exchange, info.body, false) {
                            return Ok(());
                        }
                    } else if short {
                        return Err(ParseError::LengthMismatch.into());
                    }
                    response_end(proxy, cx, exchange);
                    return Ok(());
                }
                Read::Reset(code) => {
                    let is_grpc = proxy.exchanges.get(exchange).is_some_and(Exchange::is_grpc_call);
                    server_lost(proxy, cx, exchange, Loss::of_reset(server_reset(code), is_grpc));
                    return Ok(());
                }
            }
            continue;
        }
        if let Some(info) = begun.take() {
            if !response_arrived(proxy, cx, exchange, info.body, false) {
                return Ok(());
            }
            continue;
        }
        let mut step = stream.unread();
        if stream.is_in_body() {
            match response_room(&mut proxy.connections, &mut proxy.exchanges, cx, exchange, step) {
                None | Some(0) => return Ok(()),
                Some(room) => step = step.min(room),
            }
            ahead += step;
            if ahead > READ_AHEAD {
                proxy.exchanges.go_on_later(Later::Server(exchange));
                return Ok(());
            }
        }
        let Proxy { connections, exchanges, scratch, settings, .. } = proxy;
        let Some(Conn::Quic(q)) = connections.get_mut(key) else { return Ok(()) };
        let Some(stream) = q.stream(index) else { return Ok(()) };
        let Some(x) = exchanges.get_mut(exchange) else { return Ok(()) };
        let limits = &settings.limits().http;
        let data = stream.ahead(step);
        let (used, piece) = reader.read(&data)?;
        stream.take(used);
        match piece {
            Piece::NeedMore => {}
            Piece::Head(section) => {
                let method = x.request().method();
                let info = h3::read_response(section, false, limits, method, x.response_mut(), scratch.qpack())?;
                if x.response().status < 200 {
                    reader.expect_another_head();
                    if !response_arrived(proxy, cx, exchange, BodyLength::None, false) {
                        return Ok(());
                    }
                    continue;
                }
                stream.begin_body(match info.body {
                    BodyLength::Known(n) => Some(n),
                    BodyLength::None => Some(0),
                    _ => None,
                });
                q.note_answer();
                begun = Some(info);
            }
            Piece::Data(bytes) => {
                stream.count(bytes)?;
                if !response_data(proxy, cx, exchange, bytes, false) {
                    return Ok(());
                }
            }
            Piece::TooLarge(e) => return Err(e.into()),
            Piece::Trailers(section) => {
                h3::read_trailers(section, limits, x.response_body_mut().trailers_mut(), scratch.qpack())?;
            }
        }
    }
}

/// How the server has reset a stream (RFC 9114 §8.1).
fn server_reset(code: VarInt) -> Reset {
    let is = |named: Code| code.into_inner() == u64::from(named.value());
    match () {
        () if is(Code::RequestRejected) => Reset::Refused,
        () if is(Code::RequestCancelled) => Reset::Cancelled,
        () => Reset::Other,
    }
}

/// The server wants no more of a request (STOP_SENDING): it may have answered already. RFC 9000 §3.5: it is told with the
/// same code that no more comes; it counts the stream as open until then.
pub(crate) fn h3_server_stopped(connections: &mut Connections, key: Key, index: u32, code: VarInt) {
    if let Some(q) = connections.quic(key) {
        q.send_reset(index, code);
        // What is thrown away from now on needs no room.
        q.stage(index);
    }
    connections.mark_for_flush(key);
}

/// The server is going away: requests from this stream on were not looked at.
pub(crate) fn h3_server_leaving(proxy: &mut Proxy, cx: &mut Context, key: Key, from: u64) {
    let Some(q) = proxy.connections.quic(key) else { return };
    q.note_leaving();
    let unseen = q.unseen_requests(from);
    let waiting = q.waiting_requests().map(std::mem::take).unwrap_or_default();
    let useful = q.has_opened();
    h3_forget(&mut proxy.connections, key);
    for exchange in unseen {
        server_lost(proxy, cx, exchange, Loss::Unprocessed);
    }
    h3_not_taken(proxy, cx, key, waiting, useful);
    h3_server_close_if_done(&mut proxy.connections, cx, key);
}

/// Closes a connection that is leaving and has no request under way.
pub(crate) fn h3_server_close_if_done(connections: &mut Connections, cx: &mut Context, key: Key) {
    let Some(q) = connections.quic(key) else { return };
    if q.is_done() {
        q.close(cx.instant(), Code::NoError, "");
    }
    connections.mark_for_flush(key);
}

/// The server has broken HTTP/3's rules: the connection closes with the code that says so.
pub(crate) fn h3_server_error(proxy: &mut Proxy, cx: &mut Context, key: Key, code: Code, why: &'static str) {
    proxy.counters.count(Count::H3ConnectionErrors);
    let Some(q) = proxy.connections.quic(key) else { return };
    q.close(cx.instant(), code, why);
    h3_server_lost(proxy, cx, key);
}

/// Requests that waited for this connection go elsewhere.
fn h3_not_taken(proxy: &mut Proxy, cx: &mut Context, key: Key, waiting: VecDeque<Key>, useful: bool) {
    for exchange in waiting {
        if proxy.exchanges.waits_for(exchange, key) {
            not_taken(proxy, cx, exchange, useful, None);
        }
    }
}

/// No new request takes this connection.
fn h3_forget(connections: &mut Connections, key: Key) {
    if let Some((upstream, server)) = connections.quic(key).and_then(|q| q.server()) {
        upstream.h3_forget(server, key);
    }
}

/// A connection to a server is lost, or was never made.
pub(crate) fn h3_server_lost(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(q) = proxy.connections.quic(key) else { return };
    let Some(LostRequests { under_way, waiting, answered }) = q.lose_requests() else { return };
    // Where QUIC does not come about, TCP is next, and that is known for some time.
    let useful = q.is_handshaking() || q.has_opened();
    if let (true, Some((upstream, server))) = (q.is_handshaking(), q.server()) {
        // UDP does not pass, nobody listens there, or it is not HTTP/3: TCP may do.
        proxy.counters.count(Count::H3Fallbacks);
        upstream.h3_failed(server, cx.now() + FORGET);
    }
    h3_forget(&mut proxy.connections, key);
    for (exchange, awaited) in under_way {
        server_lost(proxy, cx, exchange, Loss::of_connection(answered, awaited));
    }
    h3_not_taken(proxy, cx, key, waiting, useful);
    proxy.connections.mark_for_flush(key);
}

/// Looks at what has run out of time on a connection to a server.
pub(crate) fn h3_server_timeout(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let limits = proxy.settings.limits().clone();
    let (now, instant) = (cx.now(), cx.instant());
    let Some(q) = proxy.connections.quic(key) else { return };
    let Some((upstream, _)) = q.server() else { return };
    let own_limits = upstream.upstream.of_connection();
    if q.is_closed() {
        return;
    }
    // Until the handshake is over, it is looked at when that must be over.
    let is_late = q.is_handshaking();
    let look = now + next_look(&limits);
    match q.state(now, None).deadline(&own_limits) {
        own if is_late || own.is_some_and(|own| own.at <= now) => {
            q.close(instant, Code::NoError, "");
            h3_server_lost(proxy, cx, key);
        }
        own => q.expire_at(cx, key, own.map_or(look, |own| look.min(own.at))),
    }
}

/// The exchange is over.
pub(crate) fn h3_server_finish(connections: &mut Connections, cx: &mut Context, key: Key, index: u32, complete: bool) {
    if let Some(q) = connections.quic(key) {
        q.finish_request(index, cx.now(), complete);
    }
    connections.mark_for_flush(key);
}

/// Calls the request off.
pub(crate) fn h3_server_reset(connections: &mut Connections, key: Key, index: u32) {
    if let Some(q) = connections.quic(key) {
        q.reset(index, Code::RequestCancelled);
    }
    connections.mark_for_flush(key);
}
