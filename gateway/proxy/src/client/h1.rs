//! HTTP/1.1 towards clients: bytes to requests, responses to bytes.

use crate::client::connection::{client_gone, handshake_failed};
use crate::client::state::{Persistence, Protocol, Turn};
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::Count;
use crate::exchange::Exchange;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::executor::{begin_request, drain_is_over, refuse, refuse_head};
use crate::exchange::expiry::check_deadlines;
use crate::exchange::request::{request_broken, request_data, request_end, request_read_size, request_room};
use crate::exchange::streams::{ClientStream, Later};
use crate::lifecycle::close_connection;
use crate::scratch::{HEAD_READ, READ_SIZE, Scratch, keep_rest};
use crate::service::Proxy;
use crate::settings::LaneSettings;
use sealane_exchange::Phase;
use sealane_exchange::deadlines::ConnectionWait;
use sealane_http::h1::{
    ConnectionOption, RequestInfo, What, encode_body, encode_body_end, encode_response, parse_request,
};
use sealane_http::{BodyLength, ParseError, Version};
use sealane_lane::{Context, Key};

// The source of requests.

/// Consumes plaintext, the connection's own rest first. True if the connection is over.
pub(crate) fn take_plain(proxy: &mut Proxy, cx: &mut Context, key: Key, input: &[u8]) -> bool {
    let Some(client_conn) = proxy.connections.client(key) else { return true };
    if client_conn.inbuf.is_empty() {
        if input.is_empty() {
            return false;
        }
        let used = consume_client(proxy, cx, key, input);
        let Some(client_conn) = proxy.connections.client(key) else { return true };
        if used < input.len() {
            client_conn.inbuf.extend_from_slice(&input[used..]);
        }
        return false;
    }
    // Half a head: only an LF can make it whole.
    let waiting = client_conn.protocol.is_in_head();
    client_conn.inbuf.extend_from_slice(input);
    let head_limit = proxy.settings.limits().http.head;
    let Some(client_conn) = proxy.connections.client(key) else { return true };
    if waiting && memchr::memchr(b'\n', input).is_none() && client_conn.inbuf.len() < head_limit {
        return false;
    }
    let mut inbuf = std::mem::take(&mut client_conn.inbuf);
    let used = consume_client(proxy, cx, key, &inbuf);
    if used > 0 {
        keep_rest(&mut inbuf, used);
    }
    let Some(client_conn) = proxy.connections.client(key) else { return true };
    client_conn.inbuf = inbuf;
    false
}

/// Whether more bytes of this client could be used now.
pub(crate) fn client_wants(connections: &Connections, exchanges: &Exchanges, key: Key) -> bool {
    let Some(Conn::Client(client_conn)) = connections.get(key) else { return false };
    if !client_conn.is_open() {
        return false;
    }
    if let Protocol::H2(h2) = &client_conn.protocol {
        return h2.is_drained();
    }
    let Some(exchange) = client_conn.protocol.exchange() else { return !client_conn.transport.is_backed_up() };
    if client_conn.transport.is_handshaking() {
        return client_conn.inbuf.len() < crate::transport::HIGH_WATER;
    }
    exchanges.get(exchange).is_some_and(|x| match x.machine().request() {
        Phase::Streaming => !x.request_body().is_blocked(),
        Phase::Draining => true,
        Phase::Awaiting | Phase::Complete => false,
    })
}

/// How many bytes to read from a client at once; 0: none, and the connection goes on when there is room for them.
pub(crate) fn client_read_size(
    connections: &mut Connections,
    exchanges: &mut Exchanges,
    cx: &Context,
    key: Key,
) -> usize {
    let Some(Conn::Client(client_conn)) = connections.get(key) else { return 0 };
    match client_conn.protocol.exchange() {
        _ if client_conn.protocol.is_h2() || client_conn.transport.is_handshaking() => READ_SIZE,
        None => HEAD_READ,
        Some(exchange) => request_read_size(connections, exchanges, cx, exchange),
    }
}

/// Takes as much as can be used of a client's plaintext; returns how much.
fn consume_client(proxy: &mut Proxy, cx: &mut Context, key: Key, input: &[u8]) -> usize {
    let mut used = 0;
    loop {
        let Some(Conn::Client(client_conn)) = proxy.connections.get_mut(key) else { return input.len() };
        if !client_conn.is_open() {
            return input.len();
        }
        let rest = &input[used..];
        match client_conn.protocol.exchange() {
            None => {
                // A client that does not read its responses gets no more of them.
                if rest.is_empty() || client_conn.transport.is_backed_up() {
                    return used;
                }
                let mut x = proxy.exchanges.fresh(ClientStream::H1(key));
                match parse_request(rest, &proxy.settings.limits().http, x.request_mut()) {
                    Ok(Some(info)) => {
                        used += info.consumed;
                        request_arrived(proxy, cx, key, x, info);
                    }
                    Ok(None) => {
                        if !client_conn.protocol.is_in_head() {
                            client_conn.protocol = Protocol::H1(Turn::InHead);
                            let at = proxy.settings.limits().until(ConnectionWait::RequestHead, cx.now());
                            client_conn.wait_until(cx, key, at);
                        }
                        proxy.exchanges.put_back(x);
                        return used;
                    }
                    Err(e) => {
                        bad_request(proxy, cx, key, x, e);
                        return input.len();
                    }
                }
            }
            Some(exchange) => match consume_body(proxy, cx, exchange, rest) {
                Some(n) => {
                    used += n;
                    // The exchange may be over, and the next request may be here.
                    let same = proxy.connections.client(key).is_some_and(|f| f.protocol.exchange() == Some(exchange));
                    if same {
                        return used;
                    }
                }
                None => return input.len(),
            },
        }
    }
}

fn request_arrived(proxy: &mut Proxy, cx: &mut Context, key: Key, mut x: Box<Exchange>, info: RequestInfo) {
    let Some(client_conn) = proxy.connections.client(key) else { return };
    let early = client_conn.comes_early();
    x.arrive(ClientStream::H1(key), client_conn.client.next_request(), cx.micros());
    x.request_body_mut().begin_decoding(info.body, &proxy.settings.limits().http);
    x.begin(info.body, info.upgrade, early, proxy.settings.limits());
    proxy.counters.count(Count::Requests);
    proxy.counters.set(Count::Active, proxy.exchanges.len() as u64 + 1);
    let exchange = proxy.exchanges.insert(x);
    let wait = proxy.settings.first_look();
    if let Some(client_conn) = proxy.connections.client(key) {
        let persistence = if info.keep_alive { Persistence::KeepAlive } else { Persistence::Close };
        let at = cx.now() + wait;
        client_conn.begin_exchange(cx, key, (exchange, persistence), at, early);
    }
    begin_request(proxy, cx, exchange, info.expect_continue);
}

/// Passes a request's body on as far as the upstream has room. `None` if the connection is over.
fn consume_body(proxy: &mut Proxy, cx: &mut Context, exchange: Key, input: &[u8]) -> Option<usize> {
    let mut used = 0;
    loop {
        if used == input.len() {
            return Some(used);
        }
        let room = request_room(&mut proxy.connections, &mut proxy.exchanges, cx, exchange, input.len() - used)?;
        if room == 0 {
            return Some(used);
        }
        let rest = &input[used..];
        let x = proxy.exchanges.get_mut(exchange)?;
        if x.machine().is_tunnel() {
            used += room;
            request_data(proxy, cx, exchange, &rest[..room], false);
            continue;
        }
        match x.request_body_mut().decode(rest, room) {
            Ok(piece) => {
                used += piece.consumed;
                match piece.what {
                    What::Data(data) => {
                        let last = x.request_body().is_decoded();
                        if !request_data(proxy, cx, exchange, data, last) {
                            return None;
                        }
                        if last {
                            return Some(used);
                        }
                    }
                    What::NeedMore => return Some(used),
                    What::Trailers => {
                        x.request_body_mut().take_decoded_trailers();
                        request_end(proxy, cx, exchange);
                        return Some(used);
                    }
                    What::End => {
                        request_end(proxy, cx, exchange);
                        return Some(used);
                    }
                }
            }
            Err(e) => {
                request_broken(proxy, cx, exchange, e);
                return None;
            }
        }
    }
}

/// A request that cannot be read is answered, and the connection closed: its bytes have no known position.
fn bad_request(proxy: &mut Proxy, cx: &mut Context, key: Key, x: Box<Exchange>, error: ParseError) {
    let exchange = begin_unread(proxy, cx, key, x, Some(error));
    refuse_head(proxy, cx, exchange, error);
}

/// Begins with a request that was never read whole.
fn begin_unread(proxy: &mut Proxy, cx: &mut Context, key: Key, mut x: Box<Exchange>, error: Option<ParseError>) -> Key {
    proxy.counters.count(Count::Requests);
    x.arrive(ClientStream::H1(key), 0, cx.micros());
    x.begin_unread(Version::Http11, error);
    let exchange = proxy.exchanges.insert(x);
    if let Some(client_conn) = proxy.connections.client(key) {
        client_conn.protocol = Protocol::H1(Turn::Exchange(exchange, Persistence::Close));
    }
    exchange
}

/// The client will send nothing more.
pub(crate) fn client_ended(proxy: &mut Proxy, cx: &mut Context, key: Key, clean: bool) {
    let Some(client_conn) = proxy.connections.client(key) else { return };
    if client_conn.transport.is_handshaking() {
        handshake_failed(proxy, key, "closed");
        return client_gone(proxy, cx, key);
    }
    if client_conn.protocol.is_h2() {
        // RFC 9113 §5.4.1: half a connection is of no use to HTTP/2. What was asked for is called off.
        return client_gone(proxy, cx, key);
    }
    let Some(exchange) = client_conn.protocol.exchange() else {
        if client_conn.transport.is_flushed() {
            return close_connection(proxy, cx, key);
        }
        // It has said all it wants to say, and has not read all of the answer yet.
        client_conn.transport.finish();
        client_conn.begin_closing(cx, key, false, proxy.settings.limits());
        return proxy.connections.mark_for_flush(key);
    };
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return close_connection(proxy, cx, key) };
    match x.machine().request() {
        // Half-closed: it has said all it wants to say, and waits for the answer.
        Phase::Complete => {}
        Phase::Streaming if x.machine().is_tunnel() && clean => request_end(proxy, cx, exchange),
        Phase::Streaming if x.machine().is_tunnel() => client_gone(proxy, cx, key),
        // It has its response, and may not have read it yet.
        Phase::Draining => drain_is_over(proxy, cx, exchange),
        Phase::Awaiting | Phase::Streaming => {
            proxy.counters.parse_error(ParseError::Truncated);
            client_gone(proxy, cx, key);
        }
    }
}

pub(crate) fn open_timeout(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(Conn::Client(client_conn)) = proxy.connections.get_mut(key) else { return };
    if client_conn.transport.is_handshaking()
        && (client_conn.protocol.exchange().is_none() || client_conn.is_late(cx.now()))
    {
        proxy.counters.count(Count::ClientTimeouts);
        handshake_failed(proxy, key, "timeout");
        return client_gone(proxy, cx, key);
    }
    let Some(exchange) = client_conn.protocol.exchange() else {
        if !client_conn.protocol.is_in_head() {
            // Idle between requests: nobody is kept waiting.
            client_conn.transport.finish();
            client_conn.begin_closing(cx, key, false, proxy.settings.limits());
            proxy.connections.mark_for_flush(key);
            return;
        }
        // RFC 9110 §15.5.9.
        proxy.counters.count(Count::ClientTimeouts);
        let x = proxy.exchanges.fresh(ClientStream::H1(key));
        let exchange = begin_unread(proxy, cx, key, x, None);
        return refuse(proxy, cx, exchange, 408);
    };
    if let Some(next) = check_deadlines(proxy, cx, exchange)
        && let Some(client_conn) = proxy.connections.client(key).filter(|f| f.protocol.exchange() == Some(exchange))
    {
        client_conn.wait_until(cx, key, next);
    }
}

// The sink of responses: the operations of `streams`.

pub(crate) fn h1_client_interim(
    connections: &mut Connections,
    exchanges: &Exchanges,
    scratch: &mut Scratch,
    exchange: Key,
    key: Key,
) {
    let (Some(Conn::Client(client_conn)), Some(x)) = (connections.get_mut(key), exchanges.get(exchange)) else {
        return;
    };
    // RFC 9110 §15.2: not to HTTP/1.0 clients.
    if x.request().version < Version::Http11 {
        return;
    }
    scratch.take_buffer(&mut client_conn.transport.stage);
    let stage = &mut client_conn.transport.stage;
    encode_response(stage, x.response(), x.request().version, BodyLength::None, ConnectionOption::KeepAlive);
    connections.mark_for_flush(key);
}

pub(crate) fn h1_client_head(proxy: &mut Proxy, exchange: Key, key: Key, body: BodyLength, upgrade: bool) {
    let draining = proxy.settings.is_draining();
    let max_requests = proxy.settings.limits().max_requests;
    let Proxy { connections, exchanges, scratch, .. } = proxy;
    let (Some(Conn::Client(client_conn)), Some(x)) = (connections.get_mut(key), exchanges.get_mut(exchange)) else {
        return;
    };
    let status = x.response().status;
    if draining || client_conn.client.is_at_last_request(max_requests) {
        client_conn.protocol.close_after_exchange();
    }
    let keep_alive = client_conn.protocol.is_kept_alive();
    let connection = match x.machine().request() {
        _ if upgrade && status == 101 => ConnectionOption::Upgrade,
        _ if upgrade => ConnectionOption::KeepAlive,
        Phase::Complete if keep_alive => ConnectionOption::KeepAlive,
        // The next request lies behind the rest of this one.
        Phase::Draining if keep_alive && x.machine().reads_rest(x.announced_rest()) => ConnectionOption::KeepAlive,
        // A request that is still coming cannot be told from the next one once it is answered: the connection is kept only if
        // the rest of the request comes while the response does (RFC 9112 §9.6).
        Phase::Streaming if keep_alive && !x.body().is_empty() && !body.is_empty() && status < 300 => {
            ConnectionOption::KeepAlive
        }
        _ => ConnectionOption::Close,
    };
    scratch.take_buffer(&mut client_conn.transport.stage);
    let framing =
        encode_response(&mut client_conn.transport.stage, x.response(), x.request().version, body, connection);
    x.response_body_mut().frame(framing);
    if framing == BodyLength::UntilClose || connection != ConnectionOption::KeepAlive {
        client_conn.protocol.close_after_exchange();
    }
    proxy.connections.mark_for_flush(key);
}

pub(crate) fn h1_client_data(
    connections: &mut Connections,
    scratch: &mut Scratch,
    key: Key,
    framing: BodyLength,
    data: &[u8],
) {
    let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return };
    scratch.take_buffer(&mut client_conn.transport.stage);
    encode_body(&mut client_conn.transport.stage, framing, data);
    connections.mark_for_flush(key);
}

pub(crate) fn h1_client_end(connections: &mut Connections, exchanges: &Exchanges, exchange: Key, key: Key) {
    let (Some(Conn::Client(client_conn)), Some(x)) = (connections.get_mut(key), exchanges.get(exchange)) else {
        return;
    };
    encode_body_end(&mut client_conn.transport.stage, x.response_body().framing(), x.response_body().trailers());
    connections.mark_for_flush(key);
}

/// The response is staged whole: the connection serves its next request, or closes. `complete`: the request has come whole.
/// `drained`: the rest of it was read for as long as that of any client.
pub(crate) fn h1_client_finish(
    connections: &mut Connections,
    exchanges: &mut Exchanges,
    settings: &LaneSettings,
    cx: &mut Context,
    key: Key,
    complete: bool,
    drained: bool,
) {
    let limits = settings.limits();
    let Some(client_conn) = connections.client(key) else { return };
    // A client that was told that its connection is kept may have sent its next request already.
    let keep = client_conn.protocol.is_kept_alive() && complete && !settings.closes_idle();
    client_conn.protocol = Protocol::H1(Turn::Idle);
    if keep {
        let at = limits.until(ConnectionWait::Request, cx.now());
        client_conn.wait_until(cx, key, at);
        if !client_conn.inbuf.is_empty() || client_conn.transport.readable {
            exchanges.go_on_later(Later::Conn(key));
        }
    } else {
        let had_time = drained && client_conn.transport.is_flushed();
        client_conn.transport.finish();
        // A close with bytes that nobody has read is a reset, which can take the end of the response (RFC 9112 §9.6).
        let has_unread = !complete || !client_conn.inbuf.is_empty() || client_conn.transport.may_have_unread();
        let linger = has_unread && !had_time;
        client_conn.begin_closing(cx, key, linger, limits);
    }
    connections.mark_for_flush(key);
}
