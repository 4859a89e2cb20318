//! Executes exchanges: begins them, answers for the gateway itself, and does what the state machine says
//! (`sealane-exchange`), whatever versions of HTTP the sides speak.
//!
//! `request` and `response` report what the streams say; [`Proxy::perform`] does what follows.
//!
//! | what happens | before the response's head has left | after |
//! |---|---|---|
//! | client is gone or breaks its body | upstream's connection closed; 400, 413, 408 where there is somebody to read it | both closed |
//! | upstream cannot be reached | next server, then 502 or 504 | |
//! | upstream closes or breaks its message | once more, where that is safe; else 502 | client's connection cut, so that the message cannot look whole |
//! | upstream is silent | 504 | client's connection cut |
//! | response ends before the request's body | response sent, then both closed (the client's lingering) | |

use crate::Failure;
use crate::exchange::Exchange;
use crate::exchange::forwarded;
use crate::exchange::streams::{ClientStream, Later};
use crate::lane_state::LaneListener;
use crate::service::Proxy;
use crate::snapshot::Action;
use crate::upstream::selection::Routed;
use sealane_exchange::{Action as Do, Actions, Event, Phase};
use sealane_http::{BodyLength, Known, Method};
use sealane_lane::{Context, Key, Millis};
use sealane_route::Decision;
use std::rc::Rc;

/// How long, and for how many bytes, a client is read on that has been answered before its request was through.
pub(crate) const LINGER: Millis = 2000;
pub(crate) const LINGER_BYTES: usize = 512 * 1024;

impl Proxy {
    /// A request's head is whole: decides what is done with it.
    pub(crate) fn begin(&mut self, cx: &mut Context, exchange: Key, expects: bool) {
        // A client that has heard of a reload is judged by what the reload has brought.
        if self.settings.are_outdated() {
            return self.exchanges.go_on_later(Later::Begin(exchange, expects));
        }
        let Some(client_stream) = self.exchanges.get(exchange).map(|x| x.client_stream) else { return };
        if !self.rules_hold(client_stream.conn()) {
            self.counters.misdirected.inc();
            return self.refuse(cx, exchange, 421);
        }
        let max_body = self.settings.limits().max_body;
        let Self { connections, exchanges, scratch, .. } = self;
        let Some(x) = exchanges.get_mut(exchange) else { return };
        let Some(client) = connections.client_of(x.client_stream) else { return };
        let listener = client.listener.clone();
        if forwarded::receive(x, client, &mut scratch.joined).is_err() {
            return self.refuse(cx, exchange, 431);
        }
        let decision = listener.listener.sites.decide(client.policy, x.request.host_name());
        if decision == Decision::Misdirected {
            // RFC 9110 §15.5.20: this name has other rules, and they have not been applied to this connection.
            self.counters.misdirected.inc();
            return self.refuse(cx, exchange, 421);
        }
        let refused = match x.request.method() {
            Method::Connect if !listener.listener.allow_connect => Some(&self.counters.connects_refused),
            // RFC 9110 §9.3.8: it shows whoever made a browser send it what the browser has added.
            Method::Trace if !listener.listener.allow_trace => Some(&self.counters.traces_refused),
            _ => None,
        };
        if let Some(counter) = refused {
            counter.inc();
            return self.refuse(cx, exchange, 405);
        }
        if matches!(x.body, BodyLength::Known(n) if n > max_body) {
            return self.refuse(cx, exchange, 413);
        }
        if x.machine.is_too_early() {
            self.counters.too_early.inc();
            return self.respond(cx, exchange, 425, b"text/plain", b"425 Too Early\n", expects);
        }
        let Decision::Host(host) = decision else { return self.refuse(cx, exchange, 404) };
        let Some(action) = listener.listener.actions.get(host) else { return self.refuse(cx, exchange, 500) };
        self.act(cx, exchange, &listener, action, expects);
    }

    /// Does what is to be done with a request.
    pub(crate) fn act(
        &mut self,
        cx: &mut Context,
        exchange: Key,
        listener: &Rc<LaneListener>,
        action: &Action,
        expects: bool,
    ) {
        let Self { connections, exchanges, scratch, .. } = self;
        let Some(x) = exchanges.get_mut(exchange) else { return };
        let Some(client) = connections.client_of(x.client_stream) else { return };
        match action {
            Action::Respond { status, content_type, body } => {
                self.respond(cx, exchange, *status, content_type.as_bytes(), body, expects);
            }
            Action::Redirect(redirect) => {
                let secure = client.is_secure();
                self.redirect(cx, exchange, redirect, secure, 0, expects);
            }
            Action::Routes(table) => self.route(cx, exchange, listener, table, expects),
            // RFC 9110 §15.5.20: connections for this name are not for us to read; this one came for another.
            Action::Passthrough { .. } => self.refuse(cx, exchange, 421),
            Action::Proxy { upstream } => {
                let Some(upstream) = listener.upstreams.get(*upstream) else {
                    return self.refuse(cx, exchange, 500);
                };
                let early = x.machine.is_early();
                Routed::preference(x, upstream, x.client_ip(client));
                if forwarded::prepare(x, client, early, &mut scratch.joined).is_err() {
                    return self.refuse(cx, exchange, 431);
                }
                if let Some(route) = &x.routed.route
                    && route.prepare(&mut x.request, &mut scratch.joined).is_err()
                {
                    return self.refuse(cx, exchange, 500);
                }
                if let Some(host) = &upstream.upstream.host_header
                    && x.request.set_authority(host.as_bytes()).is_err()
                {
                    return self.refuse(cx, exchange, 500);
                }
                x.upstream = Some(upstream.clone());
                let actions = x.machine.on(Event::Forward);
                self.perform(cx, exchange, actions);
            }
        }
    }

    /// Does what the state machine says.
    pub(crate) fn perform(&mut self, cx: &mut Context, exchange: Key, actions: Actions) {
        if actions.is_empty() {
            return;
        }
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        let client_stream = x.client_stream;
        if actions.has(Do::ResetUpstream)
            && let Some(upstream_stream) = x.upstream_stream.take()
        {
            self.server_reset(cx, upstream_stream);
        }
        if actions.has(Do::Respond) {
            self.send_error(cx, exchange, actions.status());
        }
        if actions.has(Do::ResumeRequest)
            && let Some(x) = self.exchanges.get_mut(exchange)
        {
            x.request_body.progress.begin(cx.now());
            self.exchanges.go_on_later(Later::Client(exchange));
        }
        if actions.has(Do::ResumeResponse) {
            self.exchanges.go_on_later(Later::Server(exchange));
        }
        if actions.has(Do::EndRequest)
            && let Some(upstream_stream) = self.exchanges.get(exchange).and_then(|x| x.upstream_stream)
        {
            self.server_end(exchange, upstream_stream);
        }
        if actions.has(Do::EndResponse) {
            if actions.has(Do::Finish) {
                self.client_end(exchange, client_stream);
            } else {
                self.half_close(exchange, client_stream);
            }
        }
        if actions.has(Do::SelectServer) {
            self.dispatch(cx, exchange, false);
        }
        if actions.has(Do::AwaitHandshake) {
            self.await_handshake(cx, exchange, client_stream);
        }
        if actions.has(Do::StartDraining) {
            self.start_draining(cx, exchange);
        }
        if actions.has(Do::Finish) {
            self.finish(cx, exchange, actions);
        }
    }

    /// A request that an upstream found too early goes again when the client's handshake is over.
    fn await_handshake(&mut self, cx: &mut Context, exchange: Key, client_stream: ClientStream) {
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        x.response_body.progress.begin(cx.now());
        if !self.client_is_handshaking(client_stream) {
            self.handshake_done(cx, exchange);
        }
    }

    /// The handshake is over: a request that was sent too early may go again.
    pub(crate) fn handshake_done(&mut self, cx: &mut Context, exchange: Key) {
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        let actions = x.machine.on(Event::HandshakeDone);
        if actions.is_empty() {
            return;
        }
        x.request.fields.remove(Known::EarlyData);
        self.counters.retries.inc();
        self.perform(cx, exchange, actions);
    }

    /// Answers with an error of ours and closes, or, if an answer is under way already, cuts the connection.
    pub(crate) fn refuse(&mut self, cx: &mut Context, exchange: Key, status: u16) {
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        if x.routed.relayed && !x.machine.is_answered() {
            // It cannot be told to the client; this is for the log.
            x.status = status;
        }
        let actions = x.machine.on(Event::Refuse { status });
        self.perform(cx, exchange, actions);
    }

    /// Sends an error's response.
    fn send_error(&mut self, cx: &mut Context, exchange: Key, status: u16) {
        let Some(x) = self.exchanges.get(exchange) else { return };
        let phrase = sealane_http::message::reason_phrase(status);
        let why = x.routed.failure.filter(|_| status == 502).and_then(Failure::told);
        let body = match why {
            Some(why) => format!("502 {phrase}: {why}\n"),
            None => format!("{status} {phrase}\n"),
        };
        let close = !matches!(status, 404 | 405 | 421 | 502 | 503 | 504) || x.machine.request() != Phase::Complete;
        self.send_response(cx, exchange, status, b"text/plain", body.as_bytes(), close);
    }

    /// Answers from here.
    pub(crate) fn respond(
        &mut self,
        cx: &mut Context,
        exchange: Key,
        status: u16,
        content_type: &[u8],
        body: &[u8],
        close: bool,
    ) {
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        let actions = x.machine.on(Event::Answer { status });
        if actions.has(Do::Respond) {
            self.send_response(cx, exchange, status, content_type, body, close);
        }
        self.perform(cx, exchange, actions.without(Do::Respond));
    }

    /// Sends a response of the gateway's own.
    fn send_response(
        &mut self,
        cx: &mut Context,
        exchange: Key,
        status: u16,
        content_type: &[u8],
        body: &[u8],
        close: bool,
    ) {
        let draining = self.settings.is_draining();
        let Self { exchanges, clock, .. } = self;
        let Some(x) = exchanges.get_mut(exchange) else { return };
        let client_stream = x.client_stream;
        x.keep_alive &= !close && !draining;
        x.response.clear();
        x.response.status = status;
        let head_only = x.request.method() == Method::Head;
        // None of these can be refused: they are ours, and few.
        let _ = x.response.fields.push_known(Known::Date, clock.http.as_bytes());
        let empty = matches!(status, 204 | 304);
        if !empty {
            let _ = x.response.fields.push_known(Known::ContentType, content_type);
        }
        if status == 405 {
            let _ = x.response.fields.push(b"Allow", b"GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH");
        }
        let length = match () {
            () if empty => BodyLength::None,
            () if head_only => {
                let _ = x.response.fields.push_known(Known::ContentLength, body.len().to_string().as_bytes());
                BodyLength::None
            }
            () => BodyLength::Known(body.len() as u64),
        };
        self.add_response_headers(exchange, true);
        self.client_head(exchange, client_stream, length, false);
        if !matches!(length, BodyLength::None | BodyLength::Known(0)) {
            self.client_data(cx, client_stream, length, body, true);
        }
        self.client_end(exchange, client_stream);
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        if !matches!(length, BodyLength::None) {
            x.response_body.bytes = body.len() as u64;
        }
        x.status = status;
    }

    /// The client has its response and is still sending: it is read for a while, since many clients take the reset of a
    /// stream for the loss of the response that came before it.
    fn start_draining(&mut self, cx: &mut Context, exchange: Key) {
        let now = cx.now();
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        let client_stream = x.client_stream;
        x.request_body.blocked = false;
        x.request_body.progress.begin(now);
        match client_stream {
            // It reads on to the next request.
            ClientStream::H1(_) if x.keep_alive => {}
            // The connection lingers as a whole.
            ClientStream::H1(_) => return self.drained(cx, exchange),
            ClientStream::H2(..) | ClientStream::H3(..) => {
                x.drains_since = Some(now);
                self.connections.look_by(cx, client_stream, now + LINGER);
            }
        }
        self.exchanges.go_on_later(Later::Client(exchange));
    }

    /// A client that has its response has been read for long enough.
    pub(crate) fn drained(&mut self, cx: &mut Context, exchange: Key) {
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        let actions = x.machine.on(Event::DrainTimeout);
        self.perform(cx, exchange, actions);
    }

    /// The client has gone, or has called its request off. What becomes of its connection or stream is the caller's to
    /// say.
    pub(crate) fn abort(&mut self, cx: &mut Context, exchange: Key) {
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        let actions = x.machine.on(Event::ClientGone);
        self.perform(cx, exchange, actions);
    }

    /// An exchange is over: it is counted and logged, and its connections go on or close.
    fn finish(&mut self, cx: &mut Context, exchange: Key, actions: Actions) {
        self.note_held(exchange, 0);
        let Some(mut x) = self.exchanges.remove(exchange) else { return };
        if let Some(upstream_stream) = x.upstream_stream.take() {
            if actions.has(Do::CloseUpstream) && x.routed.relayed {
                self.relay_done(cx, upstream_stream);
            } else {
                self.server_finish(cx, upstream_stream, actions.has(Do::ReleaseUpstream));
            }
        }
        let complete = actions.has(Do::FinishClient);
        if complete && x.drains_since.is_none() {
            self.client_served(x.client_stream);
        }
        if x.status == 0 {
            // As in NGINX's logs: the client left before it was answered.
            x.status = 499;
        }
        self.count(&x);
        self.log_exchange(cx, &x);
        if actions.has(Do::CutClient) {
            self.client_reset(cx, x.client_stream, x.response_body.blocked);
        } else if actions.has(Do::DetachClient) {
            self.client_detach(cx, x.client_stream);
        } else {
            self.client_finish(cx, &x, complete);
        }
        self.exchanges.recycle(x);
    }

    fn count(&self, x: &Exchange) {
        let c = &self.counters;
        if x.routed.relayed {
            c.relayed_up.add(x.request_body.bytes);
            c.relayed_down.add(x.response_body.bytes);
        } else {
            c.status(x.status);
            c.request_bytes.add(x.request_body.bytes);
            c.response_bytes.add(x.response_body.bytes);
        }
        c.active.set(self.exchanges.len() as u64);
    }
}
