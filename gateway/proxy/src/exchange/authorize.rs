//! `forward_auth`: a server is asked whether a request may pass, before anything else of the route happens.
//!
//! The question goes the way of a request: server selection, connections, retries and deadlines are the same. While it is under
//! way, the exchange's `request` is the question, and the client's request waits in [`Question`]. The state machine
//! (`sealane-exchange`, `Event::Authorize`) lets nothing of that request pass meanwhile, so that it holds for WebSocket, CONNECT and
//! gRPC as for every other request.
//!
//! ```text
//! route_request ─► authorize ─► server of forward_auth ──► 2xx: admit ─► run_route
//!                                                     └──► any other answer is the client's
//! ```
//!
//! It fails closed: where no server answers, the client gets 502, 503 or 504.

use crate::counters::Count;
use crate::exchange::executor::{perform, refuse, refuse_loop};
use crate::exchange::routed::Routed;
use crate::exchange::routing::run_route;
use crate::exchange::streams::{server_finish, server_reset};
use crate::exchange::{Exchange, forwarded};
use crate::lane_state::LaneListener;
use crate::rules::ForwardAuth;
use crate::service::Proxy;
use crate::templates::Origin;
use sealane_exchange::Event;
use sealane_http::{BodyLength, FieldError, Method, RequestHead};
use sealane_lane::{Context, Key, Millis};
use std::rc::Rc;

/// A request whose place a question has taken.
pub(crate) struct Question {
    request: RequestHead,
    body: BodyLength,
    /// Its client waits for 100 (Continue).
    expects: bool,
    /// When the answer must be there.
    pub until: Millis,
}

/// The request of the client that a question is about.
pub(crate) fn asked_about(question: &Question) -> &RequestHead {
    &question.request
}

/// What a question must not say: fields about a body that it has not, conditions to which the answer would be no answer, and
/// what belongs to a change of protocols.
const LEFT_OUT: &[&str] = &[
    "Content-Length",
    "Content-Type",
    "Content-Encoding",
    "Content-Range",
    "Transfer-Encoding",
    "Trailer",
    "Expect",
    "Upgrade",
    "Sec-WebSocket-Key",
    "Sec-WebSocket-Version",
    "Sec-WebSocket-Extensions",
    "Sec-WebSocket-Protocol",
    "If-Match",
    "If-None-Match",
    "If-Modified-Since",
    "If-Unmodified-Since",
    "If-Range",
    "Range",
];

/// Headers that the server of `forward_auth` needs of the client even where its answer replaces them in the request: they show who it is.
const CREDENTIALS: &[&str] = &["Authorization", "Cookie"];

/// Removes the client's own headers of the names that the answer gives: a server that repeats them, or that trusts them, would let the
/// client say who it is.
fn remove_copied(request: &mut RequestHead, copy: &[(String, String)]) {
    let is_credential = |name: &str| CREDENTIALS.iter().any(|own| own.eq_ignore_ascii_case(name));
    for (name, from) in copy {
        for name in [name, from].into_iter().filter(|name| !is_credential(name)) {
            request.fields.remove_alike(name.as_bytes());
        }
    }
}

/// Makes a request the question about it. HEAD stays HEAD: an answer that is the client's must not have a body then.
fn make_question(request: &mut RequestHead, target: &str) -> Result<(), FieldError> {
    let (method, uri) = (request.method_name().to_vec(), request.target().to_vec());
    let asked: &[u8] = if request.method() == Method::Head { b"HEAD" } else { b"GET" };
    // Both are checked: the one is ours, the other was read with the configuration.
    request.set_method(asked).map_err(|_| FieldError::Value)?;
    request.set_target(target.as_bytes()).map_err(|_| FieldError::Value)?;
    request.accepts_trailers = false;
    for name in LEFT_OUT {
        request.fields.remove_named(name.as_bytes());
    }
    for (name, value) in [("X-Forwarded-Method", &method), ("X-Forwarded-Uri", &uri)] {
        request.fields.remove_alike(name.as_bytes());
        request.fields.push(name.as_bytes(), value)?;
    }
    Ok(())
}

/// Asks whether a request may pass.
pub(crate) fn authorize(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    listener: &Rc<LaneListener>,
    auth: &ForwardAuth,
    expects: bool,
) {
    let Proxy { connections, exchanges, scratch, .. } = proxy;
    let Some(x) = exchanges.get_mut(exchange) else { return };
    let Some(client) = connections.client_of(x.client_stream) else { return };
    let Some(upstream) = listener.upstreams.get(auth.upstream).cloned() else {
        return refuse(proxy, cx, exchange, 500);
    };
    if forwarded::comes_round(&x.request.fields) {
        return refuse_loop(proxy, cx, exchange);
    }
    let until = cx.now() + auth.timeout.as_millis() as Millis;
    let early = x.machine.is_early();
    Routed::preference(x, &upstream, x.client_ip(client));
    let question = Question { request: x.request.clone(), body: x.body, expects, until };
    let from = Origin { connections: &*connections, stream: x.client_stream, client, claims: &x.claims };
    let mut values = auth.set.values(&x.request, &from).into_iter();
    remove_copied(&mut x.request, &auth.copy);
    let prepared = forwarded::prepare(x, client, early, scratch.text())
        .and_then(|()| make_question(&mut x.request, &auth.target))
        .and_then(|()| auth.set.apply(&mut x.request.fields, &mut values));
    if prepared.is_err() {
        x.request = question.request;
        return refuse(proxy, cx, exchange, 431);
    }
    if let Some(host) = &upstream.settings().host_header
        && x.request.set_authority(host.as_bytes()).is_err()
    {
        x.request = question.request;
        return refuse(proxy, cx, exchange, 500);
    }
    x.question = Some(Box::new(question));
    x.body = BodyLength::None;
    x.upstream = Some(upstream);
    connections.look_by(cx, x.client_stream, until);
    let actions = x.machine.on(Event::Authorize);
    perform(proxy, cx, exchange, actions);
}

/// Puts the client's request back into its place, once its question has an answer or is given up.
pub(crate) fn restore_request(x: &mut Exchange) -> Option<bool> {
    let question = *x.question.take()?;
    x.request = question.request;
    x.body = question.body;
    Some(question.expects)
}

/// A server has admitted the request. `body`: what its response has behind the head, which nobody wants.
pub(crate) fn admit(proxy: &mut Proxy, cx: &mut Context, exchange: Key, body: BodyLength) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let Some(expects) = restore_request(x) else { return };
    x.routed.succeeded();
    let upstream_stream = x.upstream_stream.take();
    let copied = copy_fields(x);
    x.response.clear();
    (x.upstream, x.attempts, x.server, x.times.sent) = (None, 0, 0, 0);
    x.routed.begin_again();
    match upstream_stream {
        Some(stream) if body.is_empty() => server_finish(proxy, cx, stream, true),
        Some(stream) => server_reset(proxy, cx, stream),
        None => {}
    }
    if copied.is_err() {
        return refuse(proxy, cx, exchange, 502);
    }
    proxy.counters.count(Count::Admitted);
    run_route(proxy, cx, exchange, expects);
}

/// Puts the fields of the answer into the request that the configuration names, and takes the client's own out.
fn copy_fields(x: &mut Exchange) -> Result<(), FieldError> {
    let Some(auth) = x.routed.route.as_ref().and_then(|route| route.route()?.forward_auth.as_ref()) else {
        return Ok(());
    };
    for (name, from) in &auth.copy {
        x.request.fields.remove_alike(name.as_bytes());
        let given = x.response.fields.iter().filter(|(_, n, _)| n.eq_ignore_ascii_case(from.as_bytes()));
        for (_, _, value) in given {
            x.request.fields.push(name.as_bytes(), value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_has_no_header_that_the_answer_gives() {
        let mut request = RequestHead::new();
        for name in ["Remote-User", "remote_user", "X-Auth-User", "Authorization", "Cookie", "Remote-Users"] {
            request.fields.push(name.as_bytes(), b"1").unwrap();
        }
        let copy = [("Remote-User", "X-Auth-User"), ("authorization", "Authorization"), ("Cookie", "Cookie")];
        remove_copied(&mut request, &copy.map(|(name, from)| (name.to_owned(), from.to_owned())));
        let left: Vec<&[u8]> = request.fields.iter().map(|(_, name, _)| name).collect();
        assert_eq!(left, [&b"Authorization"[..], b"Cookie", b"Remote-Users"]);
    }

    #[test]
    fn a_question_has_no_body_and_no_conditions() {
        let mut request = RequestHead::new();
        request.set_method(b"POST").unwrap();
        request.set_target(b"/a?b=c").unwrap();
        for (name, value) in [
            ("Content-Length", "5"),
            ("content-type", "application/grpc"),
            ("If-None-Match", "*"),
            ("Range", "bytes=0-1"),
            ("Sec-WebSocket-Key", "x"),
            ("X_Forwarded_Uri", "/forged"),
            ("X-Forwarded-Method", "GET"),
            ("Cookie", "session=1"),
        ] {
            request.fields.push(name.as_bytes(), value.as_bytes()).unwrap();
        }
        make_question(&mut request, "/verify").unwrap();
        assert_eq!((request.method(), request.target()), (Method::Get, &b"/verify"[..]));
        let fields: Vec<(&[u8], &[u8])> = request.fields.iter().map(|(_, name, value)| (name, value)).collect();
        let wanted: [(&[u8], &[u8]); 3] =
            [(b"Cookie", b"session=1"), (b"X-Forwarded-Method", b"POST"), (b"X-Forwarded-Uri", b"/a?b=c")];
        assert_eq!(fields, wanted);
        let mut head = RequestHead::new();
        head.set_method(b"HEAD").unwrap();
        head.set_target(b"/").unwrap();
        make_question(&mut head, "/verify").unwrap();
        assert_eq!(head.method(), Method::Head);
    }
}
