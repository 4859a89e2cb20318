//! A client's connection over TCP: PROXY header, ClientHello, handshake, plaintext for `client::h1` or `client::h2`, and its
//! end.

use crate::accept::proxy_protocol;
use crate::accept::syn::signs_cheaply;
use crate::conn::{ClientPhase, Conn};
use crate::exchange::streams::Later;
use crate::h2::guard::PREFACE;
use crate::relay::passthrough_for;
use crate::scratch::READ_SIZE;
use crate::service::{HandedOver, Message, Proxy};
use crate::snapshot::{Listener, Relays};
use crate::transport::{ReadResult, TransportError};
use sealane_lane::{Context, Key, Ready};
use sealane_tls::hello::{self, HelloError, LargeHello, SMALL_HELLO, fatal_alert};
use sealane_tls::policy::Version;
use sealane_tls::{Session, sessions};

/// RFC 8446 §6.2.
const UNRECOGNIZED_NAME: u8 = 112;
const INTERNAL_ERROR: u8 = 80;
const ACCESS_DENIED: u8 = 49;
/// Most bytes of a refused client that are read and thrown away.
const LINGER_BYTES: usize = 512 * 1024;
/// Reads per event before other connections get their turn.
const READS: usize = 4;

const SPEAKS_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 52\r\n\
    Connection: close\r\n\r\nThis port speaks TLS: use https:// in place of http\n";

/// What is known of the version that a client speaks.
enum Speaks {
    Unknown,
    H1,
    H2,
}

/// What a connection begins with, after a PROXY header if there is one.
pub(crate) fn first_phase(listener: &Listener) -> ClientPhase {
    match listener.relays {
        Relays::Named => ClientPhase::Hello,
        _ if listener.tls.is_some() => ClientPhase::Hello,
        _ => ClientPhase::Open,
    }
}

impl Proxy {
    pub(crate) fn client_event(&mut self, cx: &mut Context, key: Key, ready: Ready) {
        self.client_ready(cx, key);
        if ready.error {
            // Reset, or closed both ways: nobody is left to answer. What could be read has been read.
            if let Some(client_conn) = self.connections.client(key)
                && !matches!(client_conn.phase, ClientPhase::Closing { .. })
                && !self.relay_reads_on(key)
            {
                self.client_gone(cx, key);
            }
        }
    }

    /// Goes on with a client's connection: takes what can be taken.
    pub(crate) fn client_ready(&mut self, cx: &mut Context, key: Key) {
        loop {
            let Self { connections, scratch, .. } = self;
            let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return };
            match client_conn.phase {
                ClientPhase::ProxyHeader => match client_conn.transport.read_raw(scratch) {
                    Ok(ReadResult::Progress) => self.proxy_header(cx, key),
                    Ok(ReadResult::Blocked) => return,
                    Ok(ReadResult::End { .. }) => {
                        // A balancer that only looks whether somebody listens sends nothing.
                        if !client_conn.transport.unread.is_empty() {
                            self.counters.bad_proxy_headers.inc();
                        }
                        return self.close(cx, key);
                    }
                    Err(e) => return self.client_failed(cx, key, e),
                },
                ClientPhase::Hello => match client_conn.transport.read_raw(scratch) {
                    Ok(ReadResult::Progress) => self.hello_arrived(cx, key, true),
                    Ok(ReadResult::Blocked) => return,
                    Ok(ReadResult::End { .. }) => {
                        self.counters.tls_failure("closed");
                        return self.close(cx, key);
                    }
                    Err(e) => return self.client_failed(cx, key, e),
                },
                ClientPhase::Open => {
                    scratch.plain.clear();
                    scratch.early.clear();
                    return self.client_open(cx, key);
                }
                ClientPhase::Lingering => {
                    client_conn.transport.tls = None;
                    client_conn.transport.unread.clear();
                    match client_conn.transport.read(scratch, READ_SIZE) {
                        Ok(ReadResult::Progress) => {
                            client_conn.lingered += scratch.plain.len();
                            if client_conn.lingered > LINGER_BYTES {
                                return self.close(cx, key);
                            }
                        }
                        Ok(ReadResult::Blocked) => return,
                        _ => return self.close(cx, key),
                    }
                }
                ClientPhase::Admission | ClientPhase::Closing { .. } => return,
            }
        }
    }

    fn proxy_header(&mut self, cx: &mut Context, key: Key) {
        let Some(client_conn) = self.connections.client(key) else { return };
        match proxy_protocol::parse(&client_conn.transport.unread) {
            Ok(None) => {}
            Ok(Some(header)) => {
                client_conn.transport.unread.drain(..header.consumed);
                if let Some(source) = header.source {
                    client_conn.client.peer = source;
                    client_conn.client.peer_text = source.ip().to_canonical().to_string().into();
                }
                let listener = client_conn.client.listener.clone();
                let peer = client_conn.client.peer.ip();
                if !self.admission.allows_connection(cx, peer, &self.counters) {
                    return self.close(cx, key);
                }
                if !self.count_in(key) {
                    return self.close(cx, key);
                }
                let Some(client_conn) = self.connections.client(key) else { return };
                client_conn.phase = first_phase(&listener.listener);
                match client_conn.phase {
                    ClientPhase::Hello if client_conn.transport.unread.is_empty() => {}
                    ClientPhase::Hello => self.hello_arrived(cx, key, true),
                    _ if listener.listener.relays == Relays::Everything => self.relay_all(cx, key),
                    _ => client_conn.inbuf = std::mem::take(&mut client_conn.transport.unread),
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
        let Self { connections, scratch, .. } = self;
        let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return };
        let hello = match hello::parse(&client_conn.transport.unread, &mut scratch.joined) {
            Ok(None) if client_conn.transport.unread.len() <= SMALL_HELLO || client_conn.large_hello.is_some() => {
                return;
            }
            Ok(None) => {
                client_conn.large_hello = LargeHello::acquire();
                match client_conn.large_hello {
                    Some(_) => return,
                    None => return self.refuse_hello(cx, key, HelloError::TooManyLarge),
                }
            }
            Ok(Some(hello)) => hello,
            Err(_) if client_conn.client.listener.listener.tls.is_none() => {
                // No hello, so no name: for whoever takes everything.
                return self.relay_all(cx, key);
            }
            Err(e) => return self.refuse_hello(cx, key, e),
        };
        let listener = client_conn.client.listener.clone();
        let name = hello.name();
        if listener.listener.relays != Relays::Never {
            let upstream = passthrough_for(&listener.listener, name.as_deref());
            if upstream.is_some() || listener.listener.tls.is_none() {
                return self.relay(cx, key, upstream, name.as_deref());
            }
        }
        let Some(tls) = &listener.listener.tls else { return };
        let policy = tls.policy_for(name.as_deref());
        let identities = &tls.policies[policy].identities;
        let known = name.as_deref().map_or(&identities.default[..], |n| identities.find(n));
        if known.is_empty() {
            self.counters.tls_failure("unknown_name");
            return self.refuse_raw(cx, key, &fatal_alert(UNRECOGNIZED_NAME));
        }
        if let Err(e) = hello.check(&tls.policies[policy].versions, identities, known) {
            return self.refuse_hello(cx, key, e);
        }
        let stateful = tls.policies[policy].early_data() > 0;
        let id = match hello.psk_identity {
            Some(id) if stateful => Some(id),
            _ if !hello.offers_tls13 && !hello.session_id.is_empty() && !hello.has_ticket => Some(hello.session_id),
            _ => None,
        };
        if self.admission.counts_by_server_name() {
            client_conn.client.server_name = name.map(String::into_boxed_str);
        }
        // Once per connection: not again by the lane that it is handed to.
        let peer = client_conn.client.peer.ip();
        if may_hand_over && !self.admission.allows_handshake(cx, peer, &self.counters) {
            return self.refuse_raw(cx, key, &fatal_alert(ACCESS_DENIED));
        }
        let owner = id.filter(|_| may_hand_over).and_then(|id| sessions::owner(id).elsewhere());
        client_conn.early_offered = hello.early_data;
        client_conn.client.policy = Some(policy);
        let cheap = signs_cheaply(identities, known, hello.offers_ecdsa());
        self.counters.forged_session_ids.set(sessions::forged());
        if let Some(owner) = owner {
            if self.hand_over(cx, key, owner) {
                return;
            }
            // A full handshake here, then.
            self.counters.handover_no_room.inc();
        }
        if self.may_answer(cx, key, cheap)
            && let Some(client_conn) = self.connections.client(key)
        {
            client_conn.phase = ClientPhase::Admission;
            self.admission.hello(key);
        }
    }

    fn refuse_hello(&mut self, cx: &mut Context, key: Key, error: HelloError) {
        self.counters.tls_failure(error.label());
        let Some(client_conn) = self.connections.client(key) else { return };
        // Somebody typed http:// in front of an https port: say so in their language.
        let http = client_conn.transport.unread.first().is_some_and(u8::is_ascii_uppercase);
        let alert = error.alert();
        let answer = alert.as_ref().map_or(if http { SPEAKS_TLS } else { &[][..] }, |a| &a[..]);
        client_conn.large_hello = None;
        self.refuse_raw(cx, key, answer);
    }

    /// Relays a connection that names nobody.
    pub(crate) fn relay_all(&mut self, cx: &mut Context, key: Key) {
        let Some(client_conn) = self.connections.client(key) else { return };
        let upstream = passthrough_for(&client_conn.client.listener.listener, None);
        self.relay(cx, key, upstream, None);
    }

    /// Hands a connection to the lane that has its session. False if that one has no room, or cannot be reached: nothing
    /// has happened then.
    fn hand_over(&mut self, cx: &mut Context, key: Key, owner: usize) -> bool {
        let Some(Conn::Client(client_conn)) = self.connections.get_mut(key) else { return true };
        let Some(mailbox) = self.settings.mailbox(owner).filter(|m| !m.is_closed()) else { return false };
        // A duplicate of the descriptor travels; ours is closed, and with it the watch.
        let Ok(fd) = rustix::io::fcntl_dupfd_cloexec(&client_conn.transport.fd, 0) else { return false };
        let bytes = std::mem::take(&mut client_conn.transport.unread);
        let (listener, peer) = (client_conn.client.listener.listener.id, client_conn.client.peer);
        match mailbox.send(Message::Connection(HandedOver { fd, bytes, listener, peer })) {
            Ok(()) => {
                cx.unwatch(&client_conn.transport.fd);
                self.counters.handed_over.inc();
                self.close(cx, key);
                true
            }
            Err(undelivered) => {
                if let Message::Connection(c) = undelivered.into_message() {
                    client_conn.transport.unread = c.bytes;
                }
                false
            }
        }
    }

    /// Spends crypto time: makes the session and answers the hello.
    pub(crate) fn start_session(&mut self, cx: &mut Context, key: Key) {
        let lane = self.settings.lane().clone();
        let Self { connections, scratch, .. } = self;
        let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return };
        if client_conn.phase != ClientPhase::Admission {
            return;
        }
        let context =
            client_conn.client.policy.map(|policy| client_conn.client.listener.context(policy, &lane.snapshot));
        let session = match context {
            Some(Ok(Some(context))) => Session::server(&context, client_conn.early_offered).ok(),
            _ => None,
        };
        let Some(session) = session else {
            self.counters.tls_failure("other");
            return self.refuse_raw(cx, key, &fatal_alert(INTERNAL_ERROR));
        };
        client_conn.phase = ClientPhase::Open;
        client_conn.large_hello = None;
        let result = client_conn.transport.start_server(session, scratch);
        self.connections.mark_for_flush(key);
        match result {
            Ok(()) => self.client_open(cx, key),
            Err(e) => self.client_failed(cx, key, e),
        }
    }

    /// Takes plaintext: what the last read has left in the scratch buffers, then what the socket has.
    fn client_open(&mut self, cx: &mut Context, key: Key) {
        for turn in 0.. {
            self.take_early(key);
            self.note_certificate(key);
            let mut input = std::mem::take(&mut self.scratch.plain);
            let ended = match self.decide(cx, key, &mut input) {
                Speaks::Unknown => false,
                Speaks::H1 => self.take_plain(cx, key, &input),
                Speaks::H2 => {
                    self.h2_client_take(cx, key, &mut input);
                    false
                }
            };
            input.clear();
            self.scratch.plain = input;
            if !self.note_established(cx, key) || ended {
                return;
            }
            if !self.client_wants(key) {
                return;
            }
            if turn >= READS {
                self.exchanges.go_on_later(Later::Conn(key));
                return;
            }
            let size = self.client_read_size(cx, key);
            if size == 0 {
                return;
            }
            let Self { connections, scratch, .. } = self;
            let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return };
            match client_conn.transport.read(scratch, size) {
                // What the session has to say to what it has read leaves now: it may be the end of the handshake, or an
                // alert that no response follows.
                Ok(ReadResult::Progress) => {
                    if !client_conn.transport.is_flushed() {
                        self.connections.mark_for_flush(key);
                    }
                }
                Ok(ReadResult::Blocked) => return,
                Ok(ReadResult::End { clean }) => return self.client_ended(cx, key, clean),
                Err(e) => return self.client_failed(cx, key, e),
            }
        }
    }

    /// Which version the client speaks: by ALPN, or by its first bytes where prior knowledge is allowed.
    fn decide(&mut self, cx: &mut Context, key: Key, input: &mut Vec<u8>) -> Speaks {
        let Some(Conn::Client(client_conn)) = self.connections.get_mut(key) else { return Speaks::H1 };
        if client_conn.decided {
            return if client_conn.h2.is_some() { Speaks::H2 } else { Speaks::H1 };
        }
        let h2 = match &client_conn.transport.tls {
            // Nothing of ours can be sent before the handshake is over, or early data have come.
            Some(tls) if input.is_empty() && tls.is_handshaking() => return Speaks::Unknown,
            Some(tls) => tls.alpn() == Some(b"h2"),
            None if client_conn.client.listener.listener.h2c => {
                if !client_conn.inbuf.is_empty() {
                    let begun = std::mem::take(&mut client_conn.inbuf);
                    input.splice(..0, begun);
                }
                let start = &input[..input.len().min(PREFACE.len())];
                if start.len() < PREFACE.len() && PREFACE.starts_with(start) {
                    // The buffer is the lane's.
                    client_conn.inbuf = input.to_vec();
                    input.clear();
                    return Speaks::Unknown;
                }
                start == PREFACE
            }
            None => false,
        };
        client_conn.decided = true;
        if h2 {
            self.h2_client_begin(cx, key);
            return Speaks::H2;
        }
        Speaks::H1
    }

    /// Early data is HTTP like any other, but a request that is whole before the handshake is over is marked.
    fn take_early(&mut self, key: Key) {
        if self.scratch.early.is_empty() {
            return;
        }
        let Self { connections, scratch, .. } = self;
        if let Some(Conn::Client(client_conn)) = connections.get_mut(key) {
            client_conn.early_seen = true;
        }
        let early = &mut scratch.early;
        early.extend_from_slice(&scratch.plain);
        std::mem::swap(early, &mut scratch.plain);
        early.clear();
    }

    /// Notes the client's certificate before anything is done with what it says: both may have come in one read.
    fn note_certificate(&mut self, key: Key) {
        let Some(Conn::Client(client_conn)) = self.connections.get_mut(key) else { return };
        if client_conn.established || client_conn.transport.is_handshaking() {
            return;
        }
        let Some(tls) = &client_conn.transport.tls else { return };
        if let Some(certificates) = tls.peer_certificates() {
            client_conn.client.cert = certificates.first().map(|c| crate::exchange::forwarded::client_cert(c));
        }
    }

    /// Notes the end of the handshake, once. False if the connection is gone.
    fn note_established(&mut self, cx: &mut Context, key: Key) -> bool {
        let keepalive = self.settings.limits().header_timeout;
        let Some(Conn::Client(client_conn)) = self.connections.get_mut(key) else { return false };
        if client_conn.established || client_conn.transport.is_handshaking() {
            return true;
        }
        client_conn.established = true;
        let Some(tls) = &client_conn.transport.tls else { return true };
        if client_conn.exchange.is_none() && !client_conn.in_head {
            client_conn.deadline.after(cx, key, keepalive);
        }
        if let Some(certificates) = tls.peer_certificates() {
            client_conn.client.cert = certificates.first().map(|c| crate::exchange::forwarded::client_cert(c));
        }
        let summary = tls.summary();
        let (offered, seen, exchange) = (client_conn.early_offered, client_conn.early_seen, client_conn.exchange);
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
        for exchange in self.h2_exchanges(key) {
            self.handshake_done(cx, exchange);
        }
        self.connections.get(key).is_some()
    }

    pub(crate) fn client_failed(&mut self, cx: &mut Context, key: Key, error: TransportError) {
        let Some(Conn::Client(client_conn)) = self.connections.get_mut(key) else { return };
        match error {
            TransportError::Io => self.client_gone(cx, key),
            TransportError::Tls(e) => {
                self.counters.tls_failure(e.label());
                // The alert waits to be sent.
                client_conn.transport.tls = None;
                client_conn.transport.stage.clear();
                client_conn.established = true;
                if let Some(exchange) = client_conn.exchange {
                    self.counters.client_aborts.inc();
                    self.abort(cx, exchange);
                }
                self.h2_abort_all(cx, key);
                if let Some(client_conn) = self.connections.client(key) {
                    client_conn.h2 = None;
                    client_conn.phase = ClientPhase::Closing { linger: true };
                }
                self.connections.mark_for_flush(key);
            }
        }
    }

    /// The client is gone: what it asked for is called off.
    pub(crate) fn client_gone(&mut self, cx: &mut Context, key: Key) {
        let Some(client_conn) = self.connections.client(key) else { return };
        if let Some(exchange) = client_conn.exchange {
            self.counters.client_aborts.inc();
            self.abort(cx, exchange);
        }
        self.close(cx, key);
    }

    /// Sends bytes as they are and closes; for connections without a session.
    fn refuse_raw(&mut self, cx: &mut Context, key: Key, answer: &[u8]) {
        let Some(client_conn) = self.connections.client(key) else { return };
        if answer.is_empty() {
            return self.close(cx, key);
        }
        client_conn.transport.send_raw(answer);
        client_conn.phase = ClientPhase::Closing { linger: true };
        self.connections.mark_for_flush(key);
    }

    pub(crate) fn client_timeout(&mut self, cx: &mut Context, key: Key) {
        let Some(client_conn) = self.connections.client(key) else { return };
        match client_conn.phase {
            ClientPhase::ProxyHeader => {
                self.counters.client_timeouts.inc();
                self.counters.bad_proxy_headers.inc();
                self.close(cx, key);
            }
            ClientPhase::Hello | ClientPhase::Admission => {
                self.counters.client_timeouts.inc();
                self.counters.tls_failure("timeout");
                self.close(cx, key);
            }
            ClientPhase::Open if client_conn.h2.is_some() => self.h2_client_timeout(cx, key),
            ClientPhase::Open => self.open_timeout(cx, key),
            ClientPhase::Closing { .. } => {
                self.counters.client_timeouts.inc();
                self.client_gone(cx, key);
            }
            ClientPhase::Lingering => self.close(cx, key),
        }
    }
}
