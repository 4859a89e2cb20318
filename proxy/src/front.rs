//! The client's side: from a connection's first bytes to requests, and everything that can go wrong on the way.

use crate::conn::{Conn, Front, FrontPhase};
use crate::exchange::{Exchange, FlowState};
use crate::proxy_protocol;
use crate::service::{HandedOver, Message, Proxy};
use crate::wire::{ReadResult, WireError};
use sealane_http::BodyLength;
use sealane_http::ParseError;
use sealane_http::h1::{RequestInfo, What, encode_chunk_header, encode_last_chunk, parse_request};
use sealane_lane::{Context, Key, Ready};
use sealane_tls::hello::{self, HelloError, fatal_alert};
use sealane_tls::policy::Version;
use sealane_tls::{Session, sessions};

/// RFC 8446 §6.2.
const PROTOCOL_VERSION: u8 = 70;
const UNRECOGNIZED_NAME: u8 = 112;
const INTERNAL_ERROR: u8 = 80;
const TLS12: u16 = 0x0303;
/// Most bytes of a refused client that are read and thrown away.
const LINGER_BYTES: usize = 512 * 1024;
/// A sink with less room than this is full: pieces stay large, and a trailer section always fits.
pub(crate) const MIN_CREDIT: usize = 8 * 1024;
/// Reads per event before other connections get their turn.
const READS: usize = 4;

const SPEAKS_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 52\r\n\
    Connection: close\r\n\r\nThis port speaks TLS: use https:// in place of http\n";

impl Proxy {
    pub(crate) fn front_event(&mut self, cx: &mut Context, key: Key, ready: Ready) {
        self.front_ready(cx, key);
        if ready.error {
            // Reset, or closed both ways: nobody is left to answer. What could be read has been read.
            if let Some(front) = self.front(key)
                && !matches!(front.phase, FrontPhase::Closing { .. })
            {
                self.front_gone(cx, key);
            }
        }
    }

    /// Goes on with a client's connection: takes what can be taken.
    pub(crate) fn front_ready(&mut self, cx: &mut Context, key: Key) {
        loop {
            let Self { conns, scratch, .. } = self;
            let Some(Conn::Front(front)) = conns.get_mut(key) else { return };
            match front.phase {
                FrontPhase::ProxyHeader => match front.wire.read_raw(scratch) {
                    Ok(ReadResult::Progress) => self.proxy_header(cx, key),
                    Ok(ReadResult::Blocked) => return,
                    Ok(ReadResult::End { .. }) => return self.close(cx, key),
                    Err(e) => return self.front_failed(cx, key, e),
                },
                FrontPhase::Hello => match front.wire.read_raw(scratch) {
                    Ok(ReadResult::Progress) => self.hello_arrived(cx, key, true),
                    Ok(ReadResult::Blocked) => return,
                    Ok(ReadResult::End { .. }) => {
                        self.counters.tls_failure("closed");
                        return self.close(cx, key);
                    }
                    Err(e) => return self.front_failed(cx, key, e),
                },
                FrontPhase::Open => {
                    scratch.plain.clear();
                    scratch.early.clear();
                    return self.front_open(cx, key);
                }
                FrontPhase::Lingering => {
                    front.wire.tls = None;
                    front.wire.unread.clear();
                    match front.wire.read(scratch) {
                        Ok(ReadResult::Progress) => {
                            front.lingered += scratch.plain.len();
                            if front.lingered > LINGER_BYTES {
                                return self.close(cx, key);
                            }
                        }
                        Ok(ReadResult::Blocked) => return,
                        _ => return self.close(cx, key),
                    }
                }
                FrontPhase::Admission | FrontPhase::Closing { .. } => return,
            }
        }
    }

    fn proxy_header(&mut self, cx: &mut Context, key: Key) {
        let Some(front) = self.front(key) else { return };
        match proxy_protocol::parse(&front.wire.unread) {
            Ok(None) => {}
            Ok(Some(header)) => {
                front.wire.unread.drain(..header.consumed);
                if let Some(source) = header.source {
                    front.peer = source;
                    front.peer_text = source.ip().to_canonical().to_string().into();
                }
                if front.listener.listener.tls.is_some() {
                    front.phase = FrontPhase::Hello;
                    if !front.wire.unread.is_empty() {
                        self.hello_arrived(cx, key, true);
                    }
                } else {
                    front.phase = FrontPhase::Open;
                    front.inbuf = std::mem::take(&mut front.wire.unread);
                }
            }
            Err(_) => {
                self.counters.bad_proxy_headers.inc();
                self.close(cx, key);
            }
        }
    }

    /// Looks at the hello: refuses it, hands it to the lane that owns its session, or queues it for crypto time.
    pub(crate) fn hello_arrived(&mut self, cx: &mut Context, key: Key, may_hand_over: bool) {
        let slots = self.mailboxes.len();
        let slot = self.slot;
        let Self { conns, scratch, .. } = self;
        let Some(Conn::Front(front)) = conns.get_mut(key) else { return };
        let hello = match hello::parse(&front.wire.unread, &mut scratch.joined) {
            Ok(None) => return,
            Ok(Some(hello)) => hello,
            Err(e) => {
                let alert = e.alert();
                self.counters.tls_failure(match e {
                    HelloError::NotTls => "not_tls",
                    HelloError::Malformed | HelloError::UnexpectedMessage => "malformed_hello",
                    HelloError::TooLarge | HelloError::RecordOverflow => "oversize_hello",
                });
                // Somebody typed http:// in front of an https port: say so in their language.
                let http = front.wire.unread.first().is_some_and(u8::is_ascii_uppercase);
                let answer = alert.as_ref().map_or(if http { SPEAKS_TLS } else { &[][..] }, |a| &a[..]);
                return self.refuse_raw(cx, key, answer);
            }
        };
        let Some(tls) = &front.listener.listener.tls else { return };
        if !hello.offers_tls13 && hello.legacy_version < TLS12 {
            self.counters.tls_failure("incompatible");
            return self.refuse_raw(cx, key, &fatal_alert(PROTOCOL_VERSION));
        }
        let name = hello.server_name.and_then(|n| std::str::from_utf8(n).ok()).map(str::to_ascii_lowercase);
        let policy = tls.policy_for(name.as_deref());
        let identities = &tls.policies[policy].identities;
        let known = name.as_deref().map_or(&identities.default[..], |n| identities.find(n));
        if known.is_empty() {
            self.counters.tls_failure("unknown_name");
            return self.refuse_raw(cx, key, &fatal_alert(UNRECOGNIZED_NAME));
        }
        let stateful = tls.policies[policy].early_data > 0 && tls.policies[policy].resumption;
        let id = match hello.psk_identity {
            Some(id) if stateful => Some(id),
            _ if !hello.offers_tls13 && !hello.session_id.is_empty() && !hello.has_ticket => Some(hello.session_id),
            _ => None,
        };
        let owner = id.map_or(slot, |id| sessions::owner(id, slots));
        front.early_offered = hello.early_data;
        front.policy = policy;
        if owner != slot && may_hand_over {
            return self.hand_over(cx, key, owner);
        }
        front.phase = FrontPhase::Admission;
        self.admission.push_back(key);
    }

    fn hand_over(&mut self, cx: &mut Context, key: Key, owner: usize) {
        let Some(Conn::Front(front)) = self.conns.get_mut(key) else { return };
        // A duplicate of the descriptor travels; ours is closed, and with it the watch.
        let Ok(fd) = rustix::io::fcntl_dupfd_cloexec(&front.wire.fd, 0) else {
            front.phase = FrontPhase::Admission;
            self.admission.push_back(key);
            return;
        };
        cx.unwatch(&front.wire.fd);
        let bytes = std::mem::take(&mut front.wire.unread);
        let message = HandedOver { fd, bytes, listener: front.listener.listener.id, peer: front.peer };
        self.counters.handed_over.inc();
        // A lane that has ended drops the connection, as it would its own.
        let _ = self.mailboxes[owner].send(Message::Connection(message));
        self.close(cx, key);
    }

    /// Spends crypto time: makes the session and answers the hello.
    pub(crate) fn start_session(&mut self, cx: &mut Context, key: Key) {
        let lane = self.lane.clone();
        let Self { conns, scratch, .. } = self;
        let Some(Conn::Front(front)) = conns.get_mut(key) else { return };
        if front.phase != FrontPhase::Admission {
            return;
        }
        let session = match front.listener.context(front.policy, &lane.snapshot) {
            Ok(Some(context)) => Session::server(&context).ok(),
            _ => None,
        };
        let Some(session) = session else {
            self.counters.tls_failure("other");
            return self.refuse_raw(cx, key, &fatal_alert(INTERNAL_ERROR));
        };
        front.phase = FrontPhase::Open;
        let result = front.wire.start_server(session, scratch);
        self.touch(key);
        match result {
            Ok(()) => self.front_open(cx, key),
            Err(e) => self.front_failed(cx, key, e),
        }
    }

    /// Takes plaintext: what the last read has left in the scratch buffers, then what the socket has.
    fn front_open(&mut self, cx: &mut Context, key: Key) {
        for turn in 0.. {
            self.take_early(key);
            let mut input = std::mem::take(&mut self.scratch.plain);
            let ended = self.take_plain(cx, key, &input);
            input.clear();
            self.scratch.plain = input;
            if !self.note_established(cx, key) || ended {
                return;
            }
            if !self.front_wants(key) {
                return;
            }
            if turn >= READS {
                self.later.push(key);
                return;
            }
            let Self { conns, scratch, .. } = self;
            let Some(Conn::Front(front)) = conns.get_mut(key) else { return };
            let handshaking = front.wire.is_handshaking();
            match front.wire.read(scratch) {
                Ok(ReadResult::Progress) => {
                    if handshaking {
                        self.touch(key);
                    }
                }
                Ok(ReadResult::Blocked) => return,
                Ok(ReadResult::End { clean }) => return self.front_ended(cx, key, clean),
                Err(e) => return self.front_failed(cx, key, e),
            }
        }
    }

    /// Early data is HTTP like any other, but a request that is whole before the handshake is over is marked.
    fn take_early(&mut self, key: Key) {
        if self.scratch.early.is_empty() {
            return;
        }
        let Self { conns, scratch, .. } = self;
        if let Some(Conn::Front(front)) = conns.get_mut(key) {
            front.early_seen = true;
        }
        let early = &mut scratch.early;
        early.extend_from_slice(&scratch.plain);
        std::mem::swap(early, &mut scratch.plain);
        early.clear();
    }

    /// Consumes plaintext, the connection's own rest first. True if the connection is over.
    fn take_plain(&mut self, cx: &mut Context, key: Key, input: &[u8]) -> bool {
        let Some(front) = self.front(key) else { return true };
        if front.inbuf.is_empty() {
            if input.is_empty() {
                return false;
            }
            let used = self.consume_front(cx, key, input);
            let Self { conns, scratch, .. } = self;
            let Some(Conn::Front(front)) = conns.get_mut(key) else { return true };
            if used < input.len() {
                scratch.pool.equip(&mut front.inbuf);
                front.inbuf.extend_from_slice(&input[used..]);
            }
            return false;
        }
        // Half a head: only an LF can make it whole.
        let waiting = front.in_head && front.exchange.is_none();
        front.inbuf.extend_from_slice(input);
        let head_limit = self.lane.snapshot.limits.http.head;
        let Some(front) = self.front(key) else { return true };
        if waiting && memchr::memchr(b'\n', input).is_none() && front.inbuf.len() < head_limit {
            return false;
        }
        let mut inbuf = std::mem::take(&mut front.inbuf);
        let used = self.consume_front(cx, key, &inbuf);
        inbuf.drain(..used);
        let Self { conns, scratch, .. } = self;
        let Some(Conn::Front(front)) = conns.get_mut(key) else { return true };
        front.inbuf = inbuf;
        scratch.pool.reclaim(&mut front.inbuf);
        false
    }

    /// Whether more bytes of this client could be used now.
    fn front_wants(&mut self, key: Key) -> bool {
        let Self { conns, exchanges, .. } = self;
        let Some(Conn::Front(front)) = conns.get(key) else { return false };
        if front.phase != FrontPhase::Open {
            return false;
        }
        let Some(exchange) = front.exchange else { return true };
        if front.wire.is_handshaking() {
            return front.inbuf.len() < crate::wire::HIGH_WATER;
        }
        exchanges.get(exchange).is_some_and(|x| match x.up.state {
            FlowState::Open => !x.up.blocked && x.back.is_some(),
            FlowState::Dropped => true,
            FlowState::Waiting | FlowState::Done => false,
        })
    }

    /// Takes as much as can be used of a client's plaintext; returns how much.
    fn consume_front(&mut self, cx: &mut Context, key: Key, input: &[u8]) -> usize {
        let mut used = 0;
        loop {
            let Some(Conn::Front(front)) = self.conns.get_mut(key) else { return input.len() };
            if front.phase != FrontPhase::Open {
                return input.len();
            }
            let rest = &input[used..];
            match front.exchange {
                None => {
                    if rest.is_empty() {
                        return used;
                    }
                    let mut x = self.spare.pop().unwrap_or_else(|| Box::new(Exchange::new(key)));
                    match parse_request(rest, &self.lane.snapshot.limits.http, &mut x.request) {
                        Ok(Some(info)) => {
                            used += info.consumed;
                            front.in_head = false;
                            self.request_arrived(cx, key, x, info);
                        }
                        Ok(None) => {
                            if !front.in_head {
                                front.in_head = true;
                                front.deadline.after(cx, key, self.lane.snapshot.limits.header_timeout);
                            }
                            self.spare.push(x);
                            return used;
                        }
                        Err(e) => {
                            self.bad_request(cx, key, x, e);
                            return input.len();
                        }
                    }
                }
                Some(exchange) => match self.consume_body(cx, exchange, rest) {
                    Some(n) => {
                        used += n;
                        // The exchange may be over, and the next request may be here.
                        let same = self.front(key).is_some_and(|f| f.exchange == Some(exchange));
                        if same {
                            return used;
                        }
                    }
                    None => return input.len(),
                },
            }
        }
    }

    fn request_arrived(&mut self, cx: &mut Context, key: Key, mut x: Box<Exchange>, info: RequestInfo) {
        let early = {
            let Some(front) = self.front(key) else { return };
            front.requests = front.requests.saturating_add(1);
            front.early_seen && front.wire.is_handshaking()
        };
        x.front = key;
        x.started = cx.now();
        x.body = info.body;
        x.keep_alive = info.keep_alive;
        x.upgrade = info.upgrade;
        x.early = early;
        x.up.decoder.reset(info.body);
        x.up.state = if info.body.is_empty() { FlowState::Done } else { FlowState::Waiting };
        self.counters.requests.inc();
        self.counters.active.set(self.exchanges.len() as u64 + 1);
        let exchange = self.exchanges.insert(x);
        if let Some(front) = self.front(key) {
            front.exchange = Some(exchange);
        }
        self.begin(cx, exchange, info.expect_continue);
    }

    /// Passes a request's body on as far as the upstream has room. `None` if the connection is over.
    fn consume_body(&mut self, cx: &mut Context, exchange: Key, input: &[u8]) -> Option<usize> {
        let max_body = self.lane.snapshot.limits.max_body;
        let idle = self.lane.snapshot.limits.idle_timeout;
        let mut used = 0;
        loop {
            let Self { conns, exchanges, scratch, .. } = self;
            let x = exchanges.get_mut(exchange)?;
            let mut rest = &input[used..];
            let back = match x.up.state {
                FlowState::Waiting | FlowState::Done => return Some(used),
                FlowState::Dropped => None,
                FlowState::Open => {
                    let Some(Conn::Back(back)) = x.back.and_then(|b| conns.get_mut(b)) else { return Some(used) };
                    let credit = back.wire.credit();
                    if credit < MIN_CREDIT {
                        x.up.blocked = true;
                        return Some(used);
                    }
                    rest = &rest[..rest.len().min(credit)];
                    Some(back)
                }
            };
            if rest.is_empty() && (x.up.raw || !x.up.decoder.is_done()) {
                return Some(used);
            }
            if x.up.raw {
                let back = back?;
                scratch.pool.equip(&mut back.wire.stage);
                back.wire.stage.extend_from_slice(rest);
                back.deadline.after(cx, x.back?, idle);
                x.up.bytes += rest.len() as u64;
                used += rest.len();
                let back = x.back?;
                self.touch(back);
                continue;
            }
            match x.up.decoder.decode(rest) {
                Ok(piece) => {
                    used += piece.consumed;
                    match piece.what {
                        What::Data(data) => {
                            x.up.bytes += data.len() as u64;
                            if x.up.bytes > max_body {
                                self.refuse(cx, exchange, 413);
                                return None;
                            }
                            if let Some(back) = back {
                                scratch.pool.equip(&mut back.wire.stage);
                                stage_data(&mut back.wire.stage, x.up.framing, data);
                                back.deadline.after(cx, x.back?, back.upstream.upstream.idle_timeout);
                            }
                            let front = x.front;
                            let back = x.back;
                            if let Some(Conn::Front(f)) = conns.get_mut(front) {
                                f.deadline.after(cx, front, idle);
                            }
                            if let Some(back) = back {
                                self.touch(back);
                            }
                        }
                        What::NeedMore => return Some(used),
                        What::Trailers | What::End => {
                            if let Some(back) = back {
                                stage_end(&mut back.wire.stage, x.up.framing, piece.what, x.up.decoder.trailers());
                            }
                            x.up.state = FlowState::Done;
                            let back = x.back;
                            if let Some(back) = back {
                                self.touch(back);
                            }
                            self.request_done(cx, exchange);
                            return Some(used);
                        }
                    }
                }
                Err(e) => {
                    self.counters.parse_errors[e.index()].inc();
                    self.refuse(cx, exchange, e.status());
                    return None;
                }
            }
        }
    }

    /// A request that cannot be read is answered, and the connection closed: its bytes have no known position.
    fn bad_request(&mut self, cx: &mut Context, key: Key, x: Box<Exchange>, error: ParseError) {
        self.counters.parse_errors[error.index()].inc();
        self.refuse_unread(cx, key, x, error.status());
    }

    /// Answers a request that was never read whole.
    fn refuse_unread(&mut self, cx: &mut Context, key: Key, mut x: Box<Exchange>, status: u16) {
        self.counters.requests.inc();
        x.request.clear();
        // What the log shows must not be what the attacker chose.
        let _ = x.request.set_target(b"-");
        x.front = key;
        x.started = cx.now();
        x.keep_alive = false;
        x.up.state = FlowState::Dropped;
        let exchange = self.exchanges.insert(x);
        if let Some(front) = self.front(key) {
            front.exchange = Some(exchange);
        }
        self.refuse(cx, exchange, status);
    }

    /// Notes the end of the handshake, once. False if the connection is gone.
    fn note_established(&mut self, cx: &mut Context, key: Key) -> bool {
        let keepalive = self.lane.snapshot.limits.header_timeout;
        let Some(Conn::Front(front)) = self.conns.get_mut(key) else { return false };
        if front.established || front.wire.is_handshaking() {
            return true;
        }
        front.established = true;
        let Some(tls) = &front.wire.tls else { return true };
        if front.exchange.is_none() && !front.in_head {
            front.deadline.after(cx, key, keepalive);
        }
        if let Some(certificates) = tls.peer_certificates() {
            front.client_cert = certificates.first().map(|c| crate::forwarded::client_cert(c));
        }
        let summary = tls.summary();
        let (offered, seen, exchange) = (front.early_offered, front.early_seen, front.exchange);
        let c = &self.counters;
        match summary.map(|s| (s.version, s.resumed)) {
            Some((Version::Tls13, false)) => c.full_tls13.inc(),
            Some((Version::Tls13, true)) => c.resumed_tls13.inc(),
            Some((Version::Tls12, false)) => c.full_tls12.inc(),
            Some((Version::Tls12, true)) => c.resumed_tls12.inc(),
            None => {}
        }
        match (offered, seen) {
            (true, true) => c.early_data_accepted.inc(),
            (true, false) => c.early_data_rejected.inc(),
            _ => {}
        }
        if let Some(exchange) = exchange {
            self.handshake_done(cx, exchange);
        }
        self.conns.get(key).is_some()
    }

    /// The client will send nothing more.
    fn front_ended(&mut self, cx: &mut Context, key: Key, clean: bool) {
        let Some(front) = self.front(key) else { return };
        if front.wire.is_handshaking() {
            self.counters.tls_failure("closed");
            return self.front_gone(cx, key);
        }
        let Some(exchange) = front.exchange else { return self.close(cx, key) };
        let Some(x) = self.exchanges.get_mut(exchange) else { return self.close(cx, key) };
        match x.up.state {
            // Half-closed: it has said all it wants to say, and waits for the answer.
            FlowState::Done => {}
            FlowState::Open if x.up.raw => {
                x.up.state = FlowState::Done;
                if let (true, Some(back)) = (clean, x.back) {
                    if let Some(b) = self.back(back) {
                        b.wire.finish_sending();
                    }
                    self.touch(back);
                } else {
                    self.front_gone(cx, key);
                }
            }
            _ => {
                self.counters.parse_errors[ParseError::Truncated.index()].inc();
                self.front_gone(cx, key);
            }
        }
    }

    pub(crate) fn front_failed(&mut self, cx: &mut Context, key: Key, error: WireError) {
        let Some(Conn::Front(front)) = self.conns.get_mut(key) else { return };
        match error {
            WireError::Io => self.front_gone(cx, key),
            WireError::Tls(e) => {
                self.counters.tls_failure(e.label());
                // The alert waits to be sent.
                front.wire.tls = None;
                front.wire.stage.clear();
                front.established = true;
                if let Some(exchange) = front.exchange {
                    self.counters.client_aborts.inc();
                    self.abort(cx, exchange);
                }
                if let Some(front) = self.front(key) {
                    front.phase = FrontPhase::Closing { linger: true };
                }
                self.touch(key);
            }
        }
    }

    /// The client is gone: what it asked for is called off.
    pub(crate) fn front_gone(&mut self, cx: &mut Context, key: Key) {
        let Some(front) = self.front(key) else { return };
        if let Some(exchange) = front.exchange {
            self.counters.client_aborts.inc();
            self.abort(cx, exchange);
        }
        self.close(cx, key);
    }

    /// Sends bytes as they are and closes; for connections without a session.
    fn refuse_raw(&mut self, cx: &mut Context, key: Key, answer: &[u8]) {
        let Self { conns, scratch, .. } = self;
        let Some(Conn::Front(front)) = conns.get_mut(key) else { return };
        if answer.is_empty() {
            return self.close(cx, key);
        }
        front.wire.send_raw(answer, scratch);
        front.phase = FrontPhase::Closing { linger: true };
        self.touch(key);
    }

    pub(crate) fn front_timeout(&mut self, cx: &mut Context, key: Key) {
        let Some(front) = self.front(key) else { return };
        match front.phase {
            FrontPhase::Hello | FrontPhase::ProxyHeader | FrontPhase::Admission => {
                self.counters.client_timeouts.inc();
                self.counters.tls_failure("timeout");
                self.close(cx, key);
            }
            FrontPhase::Open => self.open_timeout(cx, key),
            FrontPhase::Closing { .. } => {
                self.counters.client_timeouts.inc();
                self.front_gone(cx, key);
            }
            FrontPhase::Lingering => self.close(cx, key),
        }
    }

    fn open_timeout(&mut self, cx: &mut Context, key: Key) {
        let idle = self.lane.snapshot.limits.idle_timeout;
        let Some(Conn::Front(front)) = self.conns.get_mut(key) else { return };
        if front.wire.is_handshaking() && front.exchange.is_none() {
            self.counters.client_timeouts.inc();
            self.counters.tls_failure("timeout");
            return self.close(cx, key);
        }
        let Some(exchange) = front.exchange else {
            if !front.in_head {
                // Idle between requests: nobody is kept waiting.
                front.wire.finish();
                front.phase = FrontPhase::Closing { linger: false };
                front.deadline.after(cx, key, idle);
                self.touch(key);
                return;
            }
            // RFC 9110 §15.5.9.
            self.counters.client_timeouts.inc();
            let x = self.spare.pop().unwrap_or_else(|| Box::new(Exchange::new(key)));
            return self.refuse_unread(cx, key, x, 408);
        };
        let Some(x) = self.exchanges.get(exchange) else { return };
        let uploads = matches!(x.up.state, FlowState::Open | FlowState::Dropped) && !x.up.blocked && !x.up.raw;
        if uploads && !x.answered {
            self.counters.client_timeouts.inc();
            return self.refuse(cx, exchange, 408);
        }
        if front.wire.is_flushed() {
            // It is the upstream that is slow, and it has timers of its own.
            front.deadline.after(cx, key, idle);
            return;
        }
        self.counters.client_timeouts.inc();
        self.front_gone(cx, key);
    }
}

impl Front {
    /// Whether this connection came over TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.listener.listener.tls.is_some()
    }
}

/// Appends a piece of a body under the sink's framing.
pub(crate) fn stage_data(stage: &mut Vec<u8>, framing: BodyLength, data: &[u8]) {
    if framing == BodyLength::Chunked {
        encode_chunk_header(stage, data.len());
        stage.extend_from_slice(data);
        stage.extend_from_slice(b"\r\n");
    } else {
        stage.extend_from_slice(data);
    }
}

/// Appends the end of a body under the sink's framing.
pub(crate) fn stage_end(stage: &mut Vec<u8>, framing: BodyLength, what: What<'_>, trailers: &sealane_http::Fields) {
    if framing == BodyLength::Chunked {
        encode_last_chunk(stage, (what == What::Trailers).then_some(trailers));
    }
}
