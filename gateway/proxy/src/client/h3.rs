//! HTTP/3 towards clients: streams as sources of requests. `h3_responses` is the other half, `h3_connection`
//! has what concerns a connection as a whole.
//!
//! ```text
//! request stream ─► MessageReader ─► head ─► exchange (begin)
//!                                └─► data, trailers, end, reset ─► exchange (request_*)
//! ```
//! A stream is read as far as its sink has room; what is not read is not acknowledged to the client's flow control, so
//! that a slow upstream stalls its stream and nobody else's.

use crate::client::h3_connection::h3_client_error;
use crate::conn::Conn;
use crate::counters::Count;
use crate::exchange::Exchange;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::executor::{abort_exchange, begin_request, refuse_head};
use crate::exchange::priority::Priority;
use crate::exchange::request::{request_broken, request_data, request_end, request_room};
use crate::exchange::streams::{ClientStream, Later};
use crate::exchange::waste::{calling_off_wastes, client_wasted};
use crate::exchange::websocket;
use crate::h3::READ_AHEAD;
use crate::h3::stream::{Read, Stream};
use crate::scratch::Scratch;
use crate::service::Proxy;
use crate::settings::LaneSettings;
use quinn_proto::{StreamId, VarInt};
use sealane_exchange as machine;
use sealane_exchange::deadlines::ConnectionWait;
use sealane_http::h3::{self, Code, H3Error, MessageReader, Piece, Side};
use sealane_http::list::ListInfo;
use sealane_http::{BodyLength, Known, Method, ParseError, Version};
use sealane_lane::{Context, Key};

/// A request's head has come, but whether anything follows is not known yet.
struct Begun {
    x: Box<Exchange>,
    info: Result<ListInfo, ParseError>,
}

/// The client has opened a stream.
pub(crate) fn h3_stream_opened(proxy: &mut Proxy, cx: &mut Context, key: Key, id: StreamId) {
    let limits = proxy.settings.limits().clone();
    let Some(q) = proxy.connections.quic(key) else { return };
    if !q.takes_requests() {
        // Beyond what GOAWAY said.
        q.reject(id);
        proxy.connections.mark_for_flush(key);
        return client_wasted(proxy, cx, key, 1);
    }
    let until = limits.until(ConnectionWait::RequestHead, cx.now());
    let stream = Stream::new(id, MessageReader::new(Side::Server, limits.http.head), until);
    let index = q.add(stream);
    if id.index() > 0 {
        q.transport_mut().allow_all_streams();
    }
    h3_read(proxy, cx, key, index);
}

/// Reads a request stream as far as there is room for it.
pub(crate) fn h3_read(proxy: &mut Proxy, cx: &mut Context, key: Key, index: u32) {
    let Some((id, mut reader)) = proxy.connections.quic(key).and_then(|q| q.take_reader(index)) else { return };
    let result = h3_read_with(proxy, cx, key, index, &mut reader);
    let is_there = proxy.connections.quic(key).is_some_and(|q| q.return_reader(index, id, reader));
    if let (true, Err(e)) = (is_there, result) {
        h3_stream_error(proxy, cx, key, index, e);
    }
    // Windows may have to be opened.
    proxy.connections.mark_for_flush(key);
}

fn h3_read_with(
    proxy: &mut Proxy,
    cx: &mut Context,
    key: Key,
    index: u32,
    reader: &mut MessageReader,
) -> Result<(), H3Error> {
    let mut begun: Option<Begun> = None;
    let mut ahead = 0;
    loop {
        let Some(exchange) = proxy.connections.quic(key).and_then(|q| q.stream(index)).map(|s| s.exchange()) else {
            return Ok(());
        };
        // It has its response, and what it still sends is thrown away unread.
        let mut drains = false;
        if let Some(exchange) = exchange {
            let Some(x) = proxy.exchanges.get(exchange) else { return Ok(()) };
            drains = x.machine().request() == machine::Phase::Draining;
            if !matches!(x.machine().request(), machine::Phase::Streaming | machine::Phase::Draining) {
                // Nobody can take the body yet, or there is none; but the client may call all of it off.
                if proxy.connections.quic(key).is_some_and(|q| q.is_called_off(index)) {
                    h3_called_off(proxy, cx, key, index);
                }
                return Ok(());
            }
        }
        let Some(stream) = proxy.connections.quic(key).and_then(|q| q.stream(index)) else {
            return Ok(());
        };
        if stream.unread() == 0 {
            match proxy.connections.quic(key).map_or(Read::Blocked, |q| q.fetch(index)) {
                Read::Data => {}
                Read::Blocked => {
                    return match begun {
                        Some(begun) => h3_begin(proxy, cx, key, index, begun, false),
                        None => Ok(()),
                    };
                }
                Read::End => {
                    reader.finish()?;
                    return match begun {
                        Some(begun) => h3_begin(proxy, cx, key, index, begun, true),
                        None => h3_ended(proxy, cx, key, index),
                    };
                }
                Read::Reset(_) => {
                    h3_called_off(proxy, cx, key, index);
                    return Ok(());
                }
            }
            continue;
        }
        if let Some(begun) = begun.take() {
            h3_begin(proxy, cx, key, index, begun, false)?;
            continue;
        }
        let mut step = stream.unread();
        if let Some(exchange) = exchange {
            // The sink's room bounds what is looked at, and so every piece.
            match request_room(&mut proxy.connections, &mut proxy.exchanges, cx, exchange, step) {
                None | Some(0) => return Ok(()),
                Some(room) => step = step.min(room),
            }
            ahead += step;
            if ahead > READ_AHEAD {
                proxy.exchanges.go_on_later(Later::Client(exchange));
                return Ok(());
            }
        }
        let Some(stream) = proxy.connections.quic(key).and_then(|q| q.stream(index)) else {
            return Ok(());
        };
        let data = stream.ahead(step);
        let (used, piece) = reader.read(&data)?;
        stream.take(used);
        match piece {
            Piece::NeedMore => {}
            Piece::Head(section) => {
                begun = Some(h3_head(&mut proxy.exchanges, &mut proxy.scratch, &proxy.settings, key, index, section)?);
            }
            Piece::Data(bytes) => {
                if !drains {
                    stream.count(bytes)?;
                }
                let Some(exchange) = exchange else { return Ok(()) };
                if !request_data(proxy, cx, exchange, bytes, false) {
                    return Ok(());
                }
            }
            Piece::Trailers(_) | Piece::TooLarge(_) if drains => {}
            Piece::TooLarge(e) => return Err(e.into()),
            Piece::Trailers(section) => {
                let Proxy { exchanges, scratch, settings, .. } = proxy;
                let Some(x) = exchange.and_then(|x| exchanges.get_mut(x)) else { return Ok(()) };
                h3::read_trailers(
                    section,
                    &settings.limits().http,
                    x.request_body_mut().trailers_mut(),
                    scratch.qpack(),
                )?;
            }
        }
    }
}

/// A request's head is whole.
fn h3_head(
    exchanges: &mut Exchanges,
    scratch: &mut Scratch,
    settings: &LaneSettings,
    key: Key,
    index: u32,
    section: &[u8],
) -> Result<Begun, H3Error> {
    let mut x = exchanges.fresh(ClientStream::H3(key, index));
    let limits = settings.limits();
    let read = h3::read_request(section, false, &limits.http, x.request_mut(), scratch.qpack());
    let info = match read {
        Ok(info) => Ok(info),
        Err(H3Error::Message(e)) => Err(e),
        Err(e) => {
            exchanges.put_back(x);
            return Err(e);
        }
    };
    Ok(Begun { x, info })
}

/// A request begins. `ended`: nothing follows its head.
fn h3_begin(
    proxy: &mut Proxy,
    cx: &mut Context,
    key: Key,
    index: u32,
    begun: Begun,
    ended: bool,
) -> Result<(), H3Error> {
    let Begun { mut x, info } = begun;
    let limits = proxy.settings.limits().clone();
    let Some(Conn::Quic(q)) = proxy.connections.get_mut(key) else { return Ok(()) };
    let is_early = q.is_handshaking();
    let Some(client) = q.client() else { return Ok(()) };
    let number = client.next_request();
    let last = client.is_at_last_request(limits.max_requests);
    x.arrive(ClientStream::H3(key, index), number, cx.micros());
    let priority = x.request().fields.get_named(b"priority").map(Priority::parse);
    let mut promised = None;
    let info = info.and_then(|mut info| {
        match info.body {
            // RFC 9114 §4.1.2.
            BodyLength::Known(n) if ended && n > 0 => return Err(ParseError::LengthMismatch),
            BodyLength::Known(n) => promised = Some(n),
            BodyLength::Chunked if ended => {
                info.body = BodyLength::None;
                // As over the other versions: nothing is left to wait for (RFC 9110 §10.1.1).
                info.expect_continue = false;
                x.request_mut().fields.remove(Known::Expect);
            }
            // RFC 9110 §9.3.8.
            BodyLength::Chunked if x.request().method() == Method::Trace => return Err(ParseError::BodyForbidden),
            _ => {}
        }
        Ok(info)
    });
    match &info {
        Ok(info) => {
            x.begin(info.body, info.upgrade, is_early, &limits);
            if info.upgrade {
                websocket::add_key(&mut x);
            }
        }
        Err(e) => x.begin_unread(Version::Http3, Some(*e)),
    }
    let Some(stream) = q.stream(index) else { return Ok(()) };
    proxy.counters.count(Count::Requests);
    proxy.counters.set(Count::Active, proxy.exchanges.len() as u64 + 1);
    let exchange = proxy.exchanges.insert(x);
    stream.serve(exchange);
    stream.begin_body(promised);
    q.place(index, priority);
    if last {
        q.leave();
    }
    match info {
        Ok(info) => begin_request(proxy, cx, exchange, info.expect_continue),
        Err(e) => refuse_head(proxy, cx, exchange, e),
    }
    Ok(())
}

/// A request stream has come to its end, and so has the request.
fn h3_ended(proxy: &mut Proxy, cx: &mut Context, key: Key, index: u32) -> Result<(), H3Error> {
    let Some(stream) = proxy.connections.quic(key).and_then(|q| q.stream(index)) else { return Ok(()) };
    let exchange = stream.exchange();
    let phase = exchange.and_then(|x| proxy.exchanges.get(x)).map(|x| x.machine().request());
    // RFC 9114 §4.1.2. One that drains has been answered already, maybe for this.
    if phase != Some(machine::Phase::Draining) && stream.is_short() {
        return Err(ParseError::LengthMismatch.into());
    }
    if let (Some(exchange), Some(phase)) = (exchange, phase)
        && phase != machine::Phase::Complete
    {
        request_end(proxy, cx, exchange);
    }
    Ok(())
}

/// The client has called a request off (RESET_STREAM).
fn h3_called_off(proxy: &mut Proxy, cx: &mut Context, key: Key, index: u32) {
    let Some(stream) = proxy.connections.quic(key).and_then(|q| q.stream(index)) else { return };
    // Before the head has come there is no exchange yet, and after the response none any more.
    let (exchange, served) = (stream.leave_exchange(), stream.is_served());
    proxy.counters.count(Count::H3Resets);
    let wasted = exchange.map_or(!served, |exchange| calling_off_wastes(&proxy.exchanges, cx, exchange));
    if let Some(exchange) = exchange {
        abort_exchange(proxy, cx, exchange);
    }
    let Some(q) = proxy.connections.quic(key) else { return };
    q.reset(index, Code::RequestCancelled);
    if wasted {
        client_wasted(proxy, cx, key, 1);
    }
}

/// The client wants no more of a response (STOP_SENDING).
pub(crate) fn h3_client_stopped(proxy: &mut Proxy, cx: &mut Context, key: Key, index: u32, why: VarInt) {
    if let Some(q) = proxy.connections.quic(key) {
        q.give_up_response(index, why);
    }
    h3_called_off(proxy, cx, key, index);
}

/// A stream breaks the rules: its own fault, or one that ends the connection.
fn h3_stream_error(proxy: &mut Proxy, cx: &mut Context, key: Key, index: u32, error: H3Error) {
    match error {
        H3Error::Connection(code, why) => h3_client_error(proxy, cx, key, code, why),
        H3Error::Stream(code, _) => {
            proxy.counters.count(Count::H3StreamErrors);
            h3_cut(proxy, cx, key, index, code);
            client_wasted(proxy, cx, key, 1);
        }
        H3Error::Message(e) => {
            if let Some(exchange) = proxy.connections.quic(key).and_then(|q| q.exchange_of(index)) {
                return request_broken(proxy, cx, exchange, e);
            }
            // A head that is beyond the limit, before it was read: answered like any other request.
            let mut x = proxy.exchanges.fresh(ClientStream::H3(key, index));
            x.request_mut().clear();
            x.request_mut().version = Version::Http3;
            let _ = x.request_mut().set_target(b"-");
            // Its end cannot be found any more.
            if let Some(q) = proxy.connections.quic(key) {
                q.refuse_rest(index, Code::MessageError);
            }
            let _ = h3_begin(proxy, cx, key, index, Begun { x, info: Err(e) }, false);
        }
    }
}

/// A request is called off by us, in both directions.
pub(crate) fn h3_cut(proxy: &mut Proxy, cx: &mut Context, key: Key, index: u32, code: Code) {
    let Some(stream) = proxy.connections.quic(key).and_then(|q| q.stream(index)) else { return };
    let exchange = stream.leave_exchange();
    if let Some(exchange) = exchange {
        abort_exchange(proxy, cx, exchange);
    }
    if let Some(q) = proxy.connections.quic(key) {
        q.reset(index, code);
    }
    proxy.connections.mark_for_flush(key);
}
