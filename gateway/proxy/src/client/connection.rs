//! A client's connection over TCP: PROXY header, ClientHello, handshake, plaintext for `client::h1` or `client::h2`, and its
//! end.

use crate::accept::proxy_protocol;
use crate::accept::syn::{is_proven, may_answer};
use crate::client::h1::{client_ended, client_read_size, client_wants, open_timeout, take_plain};
use crate::client::h2_connection::{h2_abort_all, h2_client_begin, h2_client_take, h2_client_timeout, h2_exchanges};
use crate::client::signing;
use crate::client::state::{ClientConnection, ClientPhase, EarlyData, Handshake, Protocol, Turn};
use crate::client::tunnel::hand_to_tunnel;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::{Count, Counters};
use crate::exchange::executor::{abort_exchange, handshake_done};
use crate::exchange::streams::Later;
use crate::h2::guard::PREFACE;
use crate::lifecycle::close_connection;
use crate::records::ConnectionId;
use crate::relay::{passthrough_for, passthrough_for_hello, relay_client, relay_reads_on};
use crate::scratch::{READ_SIZE, Scratch};
use crate::service::{HandedOver, Message, Proxy};
use crate::settings::LaneSettings;
use crate::shared_tickets::{self, TicketVerdict};
use crate::snapshot::{Listener, Relays};
use crate::transport::{ReadResult, TransportError};
use crate::tunnel_port::FirstBytes;
use sealane_exchange::deadlines::ConnectionWait;
use sealane_lane::{Context, Key, Ready};
use sealane_sys::probes;
use sealane_tls::hello::{self, HelloError, LargeHello, SMALL_HELLO, fatal_alert};
use sealane_tls::policy::Version;
use sealane_tls::sessions::Owner;
use sealane_tls::{ServerContext, Session, sessions};
use std::net::SocketAddr;

/// RFC 8446 §6.2.
const UNRECOGNIZED_NAME: u8 = 112;
pub(crate) const INTERNAL_ERROR: u8 = 80;
const ACCESS_DENIED: u8 = 49;
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
        Relays::Named => ClientPhase::HELLO,
        _ if listener.tls.is_some() => ClientPhase::HELLO,
        _ => ClientPhase::Open,
    }
}

pub(crate) fn client_event(proxy: &mut Proxy, cx: &mut Context, key: Key, ready: Ready) {
    client_ready(proxy, cx, key);
    if ready.error {
        // Reset, or closed both ways: nobody is left to answer. What could be read has been read.
        if let Some(client_conn) = proxy.connections.client(key)
            && client_conn.closes().is_none()
            && !relay_reads_on(&proxy.connections, &proxy.exchanges, key)
        {
            client_gone(proxy, cx, key);
        }
    }
}

/// Goes on with a client's connection: takes what can be taken.
pub(crate) fn client_ready(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    loop {
        let Proxy { connections, scratch, .. } = proxy;
        let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return };
        match client_conn.phase() {
            ClientPhase::ProxyHeader => match client_conn.transport.read_raw(scratch) {
                Ok(ReadResult::Progress) => proxy_header_arrived(proxy, cx, key),
                Ok(ReadResult::Blocked) => return,
                Ok(ReadResult::End { .. }) => {
                    // A balancer that only looks whether somebody listens sends nothing.
                    if !client_conn.transport.unread.is_empty() {
                        proxy.counters.count(Count::BadProxyHeaders);
                    }
                    return close_connection(proxy, cx, key);
                }
                Err(e) => return client_failed(proxy, cx, key, e),
            },
            ClientPhase::Hello { .. } => match client_conn.transport.read_raw(scratch) {
                Ok(ReadResult::Progress) => hello_arrived(proxy, cx, key, true),
                Ok(ReadResult::Blocked) => return,
                Ok(ReadResult::End { .. }) => {
                    handshake_failed(proxy, key, "closed");
                    return close_connection(proxy, cx, key);
                }
                Err(e) => return client_failed(proxy, cx, key, e),
            },
            ClientPhase::Open => {
                scratch.clear_plaintext();
                return client_open(proxy, cx, key);
            }
            ClientPhase::Lingering { .. } => {
                client_conn.transport.tls = None;
                client_conn.transport.unread.clear();
                match client_conn.transport.read(scratch, READ_SIZE) {
                    Ok(ReadResult::Progress) => {
                        if client_conn.throws_away_too_much(scratch.plaintext_len()) {
                            return close_connection(proxy, cx, key);
                        }
                    }
                    Ok(ReadResult::Blocked) => return,
                    _ => return close_connection(proxy, cx, key),
                }
            }
            ClientPhase::AwaitsTicket { .. }
            | ClientPhase::Admission
            | ClientPhase::AwaitsSignature
            | ClientPhase::Closing { .. } => return,
        }
    }
}

fn proxy_header_arrived(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(client_conn) = proxy.connections.client(key) else { return };
    match proxy_protocol::parse(&client_conn.transport.unread) {
        Ok(None) => {}
        Ok(Some(header)) => {
            client_conn.transport.unread.drain(..header.consumed);
            if let Some(source) = header.source {
                client_conn.client.note_source(source);
            }
            let listener = client_conn.client.listener().clone();
            let peer = client_conn.client.peer().ip();
            if !listener.admits(peer) {
                let client = (client_conn.client.peer(), client_conn.client.id());
                connection_denied(proxy, client);
                return close_connection(proxy, cx, key);
            }
            let is_unnamed = client_conn.client.is_unnamed();
            if !is_unnamed && !proxy.admission.allows_connection(cx, peer, &proxy.counters) {
                return close_connection(proxy, cx, key);
            }
            if !proxy.admission.count_in_connection(&mut proxy.connections, key, &proxy.settings, &proxy.counters) {
                return close_connection(proxy, cx, key);
            }
            proxy.admission.talkers().accepted(peer);
            let Some(client_conn) = proxy.connections.client(key) else { return };
            let phase = first_phase(&listener.listener);
            client_conn.begin_with(phase);
            match phase {
                ClientPhase::Hello { .. } if client_conn.transport.unread.is_empty() => {}
                ClientPhase::Hello { .. } => hello_arrived(proxy, cx, key, true),
                _ if listener.listener.relays == Relays::Everything => relay_all(proxy, cx, key),
                _ => client_conn.inbuf = std::mem::take(&mut client_conn.transport.unread),
            }
        }
        Err(_) => {
            proxy.counters.count(Count::BadProxyHeaders);
            close_connection(proxy, cx, key);
        }
    }
}

/// Looks at the hello: refuses it, hands it to the lane that owns its session, or queues it for crypto time.
pub(crate) fn hello_arrived(proxy: &mut Proxy, cx: &mut Context, key: Key, may_hand_over: bool) {
    let Proxy { connections, scratch, settings, .. } = proxy;
    let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return };
    if client_conn.client.listener().listener.tunnel
        && let Some(port) = &settings.snapshot().tunnel
    {
        match port.judge(&client_conn.transport.unread) {
            FirstBytes::Incomplete => return,
            FirstBytes::Tunnel => return hand_to_tunnel(proxy, cx, key),
            FirstBytes::Other => {}
        }
    }
    let (awaited_proof, is_proven) = (client_conn.awaits_proof(), !client_conn.is_unproven());
    let Handshake::UnderWay(opening) = &mut client_conn.handshake else { return };
    let hello = match hello::parse(&client_conn.transport.unread, scratch.text()) {
        Ok(None) if client_conn.transport.unread.len() <= SMALL_HELLO || opening.large_hello.is_some() => return,
        Ok(None) => {
            opening.large_hello = LargeHello::acquire();
            match opening.large_hello {
                Some(_) => return,
                None => return refuse_hello(proxy, cx, key, HelloError::TooManyLarge),
            }
        }
        Ok(Some(hello)) => hello,
        Err(_) if client_conn.client.listener().listener.tls.is_none() => {
            // No hello, so no name: the connection is relayed like one without a name.
            return relay_all(proxy, cx, key);
        }
        Err(e) => return refuse_hello(proxy, cx, key, e),
    };
    let listener = client_conn.client.listener().clone();
    let name = hello.name();
    if listener.listener.relays != Relays::Never {
        let passthrough = passthrough_for_hello(&listener.listener, name.as_deref(), &hello);
        if passthrough.is_some() || listener.listener.tls.is_none() {
            return relay_client(proxy, cx, key, passthrough, name.as_deref());
        }
    }
    let Some(tls) = &listener.listener.tls else { return };
    let policy = tls.policy_for(name.as_deref());
    let challenge = hello.is_acme_challenge().then(|| proxy.settings.snapshot().challenges.tls(name.as_deref()));
    let challenge = challenge.flatten().cloned();
    let rules = challenge.as_ref().unwrap_or(&tls.policies[policy]);
    let identities = &rules.identities;
    let known = name.as_deref().map_or(&identities.default[..], |n| identities.find(n));
    // Once per connection: not again by the lane that it is handed to, nor when its client has proven its address.
    let is_first = may_hand_over && !awaited_proof;
    let peer = client_conn.client.peer().ip();
    if let (Some(on_demand), Some(name), true) = (&proxy.settings.snapshot().on_demand, &name, challenge.is_none())
        && may_hand_over
        && is_proven
        && !client_conn.client.is_unnamed()
    {
        on_demand.note(&proxy.counters, identities, &listener.listener.sites, name, peer);
    }
    if known.is_empty() {
        handshake_failed(proxy, key, "unknown_name");
        return refuse_raw(proxy, cx, key, &fatal_alert(UNRECOGNIZED_NAME));
    }
    if let Err(e) = hello.check(&rules.versions, identities, known) {
        return refuse_hello(proxy, cx, key, e);
    }
    let stateful = tls.policies[policy].early_data() > 0;
    let place = match hello.psk_identity {
        Some(id) if stateful => sessions::place(&tls.policies[policy].id, id),
        _ if !hello.offers_tls13 && !hello.session_id.is_empty() && !hello.has_ticket => {
            sessions::owner(hello.session_id)
        }
        _ => Owner::Here,
    };
    let shared = hello.psk_identity.filter(|_| place == Owner::Store).and_then(|id| <[u8; 32]>::try_from(id).ok());
    if proxy.admission.counts_by_server_name() {
        client_conn.client.note_server_name(name);
    }
    if is_first && !client_conn.client.is_unnamed() && !proxy.admission.allows_handshake(cx, peer, &proxy.counters) {
        return refuse_raw(proxy, cx, key, &fatal_alert(ACCESS_DENIED));
    }
    let owner = place.elsewhere().filter(|_| may_hand_over);
    opening.early = if hello.early_data { EarlyData::Offered } else { EarlyData::None };
    opening.may_sign_elsewhere = identities.has_remote_key(known);
    client_conn.client.note_policy(policy);
    let cheap = hello.signs_cheaply(identities, known);
    if challenge.is_some() && opening.challenge.is_none() {
        // The certificate is the answer. An authority that has seen it may reset the connection.
        proxy.counters.count(Count::ChallengesTls);
    }
    opening.challenge = challenge;
    proxy.counters.set(Count::ForgedSessionIds, sessions::forged());
    if let Some(owner) = owner {
        if hand_over(proxy, cx, key, owner) {
            return;
        }
        // A full handshake here, then.
        proxy.counters.count(Count::HandoverNoRoom);
    }
    if let Some(id) = shared
        && shared_tickets::ask(proxy, cx, key, tls.policies[policy].id, id, cheap)
    {
        return;
    }
    queue_hello(proxy, cx, key, cheap);
}

/// Queues a whole hello for crypto time, unless its client must prove its address first.
pub(crate) fn queue_hello(proxy: &mut Proxy, cx: &mut Context, key: Key, cheap: bool) {
    let Some(client_conn) = proxy.connections.client(key) else { return };
    if client_conn.is_unproven()
        && !may_answer(&mut proxy.connections, &mut proxy.admission, &proxy.counters, cx, key, cheap)
    {
        return;
    }
    if let Some(client_conn) = proxy.connections.client(key) {
        client_conn.await_answer();
        proxy.admission.hello(key, cx.micros());
    }
}

/// The third packet of TCP's handshake may have come (`accept::syn`). Goes on with what waited for it.
pub(crate) fn maybe_proven(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(Conn::Client(client_conn)) = proxy.connections.get_mut(key) else { return };
    if !client_conn.is_unproven() || !is_proven(client_conn) {
        return;
    }
    let waits = client_conn.awaits_proof();
    proxy.connections.mark_for_flush(key);
    if waits {
        hello_arrived(proxy, cx, key, true);
    }
}

/// The ticket of a hello has been looked up in the store that gateways share: the hello goes on.
pub(crate) fn ticket_arrived(proxy: &mut Proxy, cx: &mut Context, key: Key, verdict: TicketVerdict) {
    if let Some(cheap) = shared_tickets::arrived(&mut proxy.connections, &proxy.counters, cx, key, verdict) {
        queue_hello(proxy, cx, key, cheap);
    }
}

fn refuse_hello(proxy: &mut Proxy, cx: &mut Context, key: Key, error: HelloError) {
    handshake_failed(proxy, key, error.label());
    let Some(client_conn) = proxy.connections.client(key) else { return };
    // Somebody typed http:// in front of an https port: say so in their language.
    let http = client_conn.transport.unread.first().is_some_and(u8::is_ascii_uppercase);
    let alert = error.alert();
    let answer = alert.as_ref().map_or(if http { SPEAKS_TLS } else { &[][..] }, |a| &a[..]);
    refuse_raw(proxy, cx, key, answer);
}

/// Relays a connection that names nobody.
pub(crate) fn relay_all(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(client_conn) = proxy.connections.client(key) else { return };
    let passthrough = passthrough_for(&client_conn.client.listener().listener, None);
    relay_client(proxy, cx, key, passthrough, None);
}

/// Hands a connection to the lane that has its session. False if that one has no room, or cannot be reached: nothing
/// has happened then.
fn hand_over(proxy: &mut Proxy, cx: &mut Context, key: Key, owner: usize) -> bool {
    let Some(Conn::Client(client_conn)) = proxy.connections.get_mut(key) else { return true };
    let Some(mailbox) = proxy.settings.mailbox(owner).filter(|m| !m.is_closed()) else { return false };
    // A duplicate of the descriptor travels; ours is closed, and with it the watch.
    let Ok(fd) = rustix::io::fcntl_dupfd_cloexec(&client_conn.transport.fd, 0) else { return false };
    let bytes = std::mem::take(&mut client_conn.transport.unread);
    let (listener, peer) = (client_conn.client.listener().listener.id, client_conn.client.peer());
    match mailbox.send(Message::Connection(HandedOver { fd, bytes, listener, peer })) {
        Ok(()) => {
            cx.unwatch(&client_conn.transport.fd);
            proxy.counters.count(Count::HandedOver);
            close_connection(proxy, cx, key);
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
pub(crate) fn start_session(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let lane = proxy.settings.lane().clone();
    let Proxy { connections, scratch, .. } = proxy;
    let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return };
    if !client_conn.awaits_answer() {
        return;
    }
    let Handshake::UnderWay(opening) = &mut client_conn.handshake else { return };
    let context = match (&opening.challenge, client_conn.client.policy()) {
        // Not kept: it is asked for a few times in months.
        (Some(challenge), _) => Some(ServerContext::new(challenge, &lane.snapshot.ticket_keys).map(Some)),
        (None, policy) => policy.map(|policy| client_conn.client.listener().context(policy, &lane.snapshot)),
    };
    let context = match context {
        Some(Ok(Some(context))) => Some(context.for_client(client_conn.client.peer().ip())),
        _ => None,
    };
    let early = opening.early != EarlyData::None;
    let may_sign_elsewhere = opening.may_sign_elsewhere;
    let session = context.as_ref().and_then(|context| Session::server(context, early).ok());
    let Some(session) = session else {
        handshake_failed(proxy, key, "other");
        return refuse_raw(proxy, cx, key, &fatal_alert(INTERNAL_ERROR));
    };
    client_conn.note_admitted(cx.micros());
    if may_sign_elsewhere {
        let again = || context.and_then(|context| Session::server(&context, early).ok());
        return signing::start(proxy, cx, key, session, again);
    }
    let result = client_conn.transport.start_server(session, scratch);
    proxy.connections.mark_for_flush(key);
    match result {
        Ok(()) => client_open(proxy, cx, key),
        Err(e) => client_failed(proxy, cx, key, e),
    }
}

/// Takes plaintext: what the last read has left in the scratch buffers, then what the socket has.
pub(crate) fn client_open(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    // Most events find nothing left, and the socket is read at once.
    let mut takes = !proxy.connections.client(key).is_some_and(|client_conn| client_conn.has_taken_all());
    for turn in 0.. {
        if std::mem::replace(&mut takes, true) {
            take_early(&mut proxy.connections, &mut proxy.scratch, key);
            if signing::awaits_second_hello(&mut proxy.connections, key) {
                return signing::read_second_hello(proxy, cx, key);
            }
            look_for_certificate(&mut proxy.connections, key);
            let mut input = proxy.scratch.take_plaintext();
            let Proxy { connections, settings, counters, .. } = proxy;
            let ended = match decide_version(connections, settings, counters, cx, key, &mut input) {
                Speaks::Unknown => false,
                Speaks::H1 => take_plain(proxy, cx, key, &input),
                Speaks::H2 => {
                    h2_client_take(proxy, cx, key, &mut input);
                    false
                }
            };
            input.clear();
            proxy.scratch.return_plaintext(input);
            if !note_established(proxy, cx, key) || ended {
                return;
            }
        }
        if !client_wants(&proxy.connections, &proxy.exchanges, key) {
            return;
        }
        if turn >= READS {
            proxy.exchanges.go_on_later(Later::Conn(key));
            return;
        }
        let size = client_read_size(&mut proxy.connections, &mut proxy.exchanges, cx, key);
        if size == 0 {
            return;
        }
        let Proxy { connections, scratch, .. } = proxy;
        let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return };
        match client_conn.transport.read(scratch, size) {
            // What the session has to say to what it has read leaves now: it may be the end of the handshake, or an
            // alert that no response follows.
            Ok(ReadResult::Progress) => {
                if !client_conn.transport.is_flushed() {
                    proxy.connections.mark_for_flush(key);
                }
            }
            Ok(ReadResult::Blocked) => return,
            Ok(ReadResult::End { clean }) => return client_ended(proxy, cx, key, clean),
            Err(e) => return client_failed(proxy, cx, key, e),
        }
    }
}

/// Which version the client speaks: by ALPN, or by its first bytes where prior knowledge is allowed.
fn decide_version(
    connections: &mut Connections,
    settings: &LaneSettings,
    counters: &Counters,
    cx: &mut Context,
    key: Key,
    input: &mut Vec<u8>,
) -> Speaks {
    let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return Speaks::H1 };
    if client_conn.answers_challenge() {
        input.clear();
        return Speaks::Unknown;
    }
    match client_conn.protocol {
        Protocol::H1(_) => return Speaks::H1,
        Protocol::H2(_) => return Speaks::H2,
        Protocol::Unknown => {}
    }
    let h2 = match &client_conn.transport.tls {
        // Nothing of ours can be sent before the handshake is over, or early data have come.
        Some(tls) if input.is_empty() && tls.is_handshaking() => return Speaks::Unknown,
        Some(tls) => tls.alpn() == Some(b"h2"),
        None if client_conn.client.listener().listener.h2c => {
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
    if h2 {
        h2_client_begin(connections, settings, counters, cx, key);
        return Speaks::H2;
    }
    client_conn.protocol = Protocol::H1(Turn::Idle);
    Speaks::H1
}

/// Early data is HTTP like any other, but a request that is whole before the handshake is over is marked.
fn take_early(connections: &mut Connections, scratch: &mut Scratch, key: Key) {
    if scratch.join_early_data()
        && let Some(opening) = connections.client(key).and_then(ClientConnection::opening)
    {
        opening.early = EarlyData::Taken;
    }
}

/// Notes the client's certificate before anything is done with what it says: both may have come in one read.
fn look_for_certificate(connections: &mut Connections, key: Key) {
    let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return };
    if !client_conn.is_established() && !client_conn.transport.is_handshaking() {
        client_conn.note_certificate();
    }
}

/// Notes the end of the handshake, once. False if the connection is gone.
fn note_established(proxy: &mut Proxy, cx: &mut Context, key: Key) -> bool {
    let Some(Conn::Client(client_conn)) = proxy.connections.get_mut(key) else { return false };
    if client_conn.is_established() || client_conn.transport.is_handshaking() {
        return true;
    }
    let Handshake::UnderWay(opening) = std::mem::replace(&mut client_conn.handshake, Handshake::Over) else {
        return true;
    };
    if opening.challenge.is_some() {
        // The handshake was the answer (RFC 8737 §3): nothing is served on this connection.
        client_conn.transport.finish();
        client_conn.begin_closing(cx, key, true, proxy.settings.limits());
        proxy.connections.mark_for_flush(key);
        return false;
    }
    let Some(tls) = &client_conn.transport.tls else { return true };
    let summary = tls.summary();
    // HTTP/2 has set its own, and those of requests that have come already.
    if client_conn.protocol.is_idle() && !client_conn.protocol.is_h2() {
        let at = proxy.settings.limits().until(ConnectionWait::FirstRequest, cx.now());
        client_conn.expire_at(cx, key, at);
    }
    client_conn.note_certificate();
    let (exchange, is_h2) = (client_conn.protocol.exchange(), client_conn.protocol.is_h2());
    let took = client_conn.note_established(cx.micros());
    let c = &proxy.counters;
    if let Some(s) = summary {
        c.handshake_took(false, s.version, s.resumed, took);
        probes::handshake_done(|| Some((client_conn.client.id().to_u64(), took, s.resumed.into(), 0)));
        c.signed(s.key);
    }
    match summary.map(|s| (s.version, s.resumed)) {
        Some((Version::Tls13, false)) => c.count(Count::FullTls13),
        Some((Version::Tls13, true)) => c.count(Count::ResumedTls13),
        Some((Version::Tls12, false)) => c.count(Count::FullTls12),
        Some((Version::Tls12, true)) => c.count(Count::ResumedTls12),
        None => {}
    }
    match opening.early {
        EarlyData::Taken => c.count(Count::EarlyDataAccepted),
        EarlyData::Offered => c.count(Count::EarlyDataRejected),
        EarlyData::None => {}
    }
    if let Some(exchange) = exchange {
        handshake_done(proxy, cx, exchange);
    }
    if is_h2 {
        for exchange in h2_exchanges(&mut proxy.connections, key) {
            handshake_done(proxy, cx, exchange);
        }
    }
    if opening.has_failed() && proxy.connections.client(key).is_some_and(|client_conn| client_conn.closes().is_none()) {
        // As in `client_event`, which is not called: what was deferred ends with the handshake.
        client_gone(proxy, cx, key);
    }
    proxy.connections.get(key).is_some()
}

/// Counts and reports that a connection ends because its client's address is not let in.
pub(crate) fn connection_denied(proxy: &Proxy, client: (SocketAddr, ConnectionId)) {
    proxy.counters.count(Count::ConnectionsDenied);
    proxy.log.records().connection_denied(&proxy.counters, client);
}

/// Tells tracers that a client's handshake failed.
#[inline]
pub(crate) fn probe_failure(connection: impl FnOnce() -> Option<ConnectionId>, reason: &'static str) {
    probes::handshake_failed(|| Some((connection()?.to_u64(), reason.as_ptr().addr() as u64, reason.len() as u64)));
}

/// Counts and reports that a client's handshake failed, for one of the reasons in
/// [`TLS_FAILURES`](crate::counters::TLS_FAILURES).
pub(crate) fn handshake_failed(proxy: &Proxy, key: Key, reason: &'static str) {
    proxy.counters.tls_failure(reason);
    probe_failure(|| Some(proxy.connections.client_at(key)?.id()), reason);
    if let Some(client) = proxy.connections.client_at(key) {
        proxy.log.records().handshake_failed(&proxy.counters, (client.peer(), client.id()), reason);
    }
}

pub(crate) fn client_failed(proxy: &mut Proxy, cx: &mut Context, key: Key, error: TransportError) {
    match error {
        TransportError::Io => client_gone(proxy, cx, key),
        TransportError::Tls(e) => {
            handshake_failed(proxy, key, e.label());
            let Some(client_conn) = proxy.connections.client(key) else { return };
            // The alert waits to be sent.
            client_conn.transport.tls = None;
            client_conn.transport.stage.clear();
            client_conn.handshake = Handshake::Over;
            if let Some(exchange) = client_conn.protocol.exchange() {
                abort_exchange(proxy, cx, exchange);
            }
            h2_abort_all(proxy, cx, key);
            if let Some(client_conn) = proxy.connections.client(key) {
                if client_conn.protocol.is_h2() {
                    client_conn.protocol = Protocol::Unknown;
                }
                client_conn.begin_closing(cx, key, true, proxy.settings.limits());
            }
            proxy.connections.mark_for_flush(key);
        }
    }
}

/// The client is gone: what it asked for is called off.
pub(crate) fn client_gone(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(client_conn) = proxy.connections.client(key) else { return };
    if let Some(exchange) = client_conn.protocol.exchange() {
        abort_exchange(proxy, cx, exchange);
    }
    close_connection(proxy, cx, key);
}

/// Sends bytes as they are and closes; for connections without a session.
pub(crate) fn refuse_raw(proxy: &mut Proxy, cx: &mut Context, key: Key, answer: &[u8]) {
    let Some(client_conn) = proxy.connections.client(key) else { return };
    if answer.is_empty() {
        return close_connection(proxy, cx, key);
    }
    // Its place among the large hellos is free while the client is still read.
    if let Some(opening) = client_conn.opening() {
        opening.large_hello = None;
    }
    client_conn.transport.send_raw(answer);
    client_conn.begin_closing(cx, key, true, proxy.settings.limits());
    proxy.connections.mark_for_flush(key);
}

pub(crate) fn client_timeout(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(client_conn) = proxy.connections.client(key) else { return };
    if let Some(cheap) = client_conn.awaits_ticket()
        && shared_tickets::timed_out(&mut proxy.connections, cx, key)
    {
        return queue_hello(proxy, cx, key, cheap);
    }
    let Some(client_conn) = proxy.connections.client(key) else { return };
    match client_conn.phase() {
        ClientPhase::ProxyHeader => {
            proxy.counters.count(Count::ClientTimeouts);
            proxy.counters.count(Count::BadProxyHeaders);
            close_connection(proxy, cx, key);
        }
        ClientPhase::Hello { .. }
        | ClientPhase::AwaitsTicket { .. }
        | ClientPhase::Admission
        | ClientPhase::AwaitsSignature => {
            proxy.counters.count(Count::ClientTimeouts);
            handshake_failed(proxy, key, "timeout");
            close_connection(proxy, cx, key);
        }
        ClientPhase::Open if client_conn.protocol.is_h2() => h2_client_timeout(proxy, cx, key),
        ClientPhase::Open => open_timeout(proxy, cx, key),
        ClientPhase::Closing { .. } => {
            proxy.counters.count(Count::ClientTimeouts);
            client_gone(proxy, cx, key);
        }
        ClientPhase::Lingering { .. } => close_connection(proxy, cx, key),
    }
}
