//! A client's connection over HTTP/3: it is accepted, its handshake ends, it runs out of time, it is lost.

use crate::accept::admission::Admission;
use crate::client::connection::handshake_failed;
use crate::client::h3::h3_cut;
use crate::client::identity::Client;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::{Count, Counters};
use crate::exchange::executor::{abort_exchange, handshake_done};
use crate::exchange::expiry::check_deadlines;
use crate::exchange::forwarded::client_cert;
use crate::h3::connection::H3Connection;
use crate::h3::next_look;
use crate::h3::stream::Serves;
use crate::quic::QuicEndpoint;
use crate::quic::admission::{Accepted, failure};
use crate::service::Proxy;
use crate::settings::LaneSettings;
use crate::snapshot::ClientLimits;
use crate::traces::Made;
use quinn_proto::ConnectionError;
use sealane_exchange::deadlines::ConnectionWait;
use sealane_http::h3::{Code, Settings};
use sealane_lane::{Context, Key};
use sealane_sys::probes;
use sealane_tls::policy::Version;
use sealane_tls::quic::EarlyData;

/// What we tell clients.
fn our_settings(limits: &ClientLimits) -> Settings {
    Settings { max_field_section_size: limits.http.head as u64, connect_protocol: true }
}

/// Takes in a connection whose handshake has begun.
pub(crate) fn h3_client_accepted(proxy: &mut Proxy, cx: &mut Context, accepted: Accepted) -> Key {
    let Accepted { connection, listener, remote, since } = accepted;
    let made = Made { began: since, admitted: cx.micros(), established: 0 };
    // The name in its hello is not noted: limits by name count by the authority of requests here.
    let client = Client::new(listener, None, remote, proxy.log.next_connection(), made);
    let limits = proxy.settings.limits();
    let q = H3Connection::with_client(connection, client, cx.now(), since);
    let key = proxy.connections.insert(Conn::Quic(Box::new(q)));
    proxy.admission.arrived(&proxy.counters);
    proxy.admission.talkers().accepted(remote.ip());
    let is_counted = proxy.admission.count_in_connection(&mut proxy.connections, key, &proxy.settings, &proxy.counters);
    if let Some(q) = proxy.connections.quic(key) {
        proxy.quic.note(q.transport(), key);
        q.open_control(&our_settings(limits));
        q.expire_at(cx, key, limits.until(ConnectionWait::Handshake, since / 1000));
        if !is_counted {
            // Another lane has given the last place away in this moment.
            q.close(cx.instant(), Code::ExcessiveLoad, "too many connections");
        }
    }
    if !is_counted {
        h3_client_gone(proxy, cx, key);
    }
    key
}

/// The hello has been read: from now on the rules for its server name apply, to early data as well.
pub(crate) fn h3_hello_read(connections: &mut Connections, key: Key) {
    let Some(q) = connections.quic(key) else { return };
    let handshake = q.transport().handshake();
    if let (Some(client), Some(handshake)) = (q.client(), handshake) {
        client.note_policy(handshake.policy);
    }
}

/// The handshake is over.
pub(crate) fn h3_client_established(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let draining = proxy.settings.is_draining();
    let limits = proxy.settings.limits().clone();
    let Some(q) = proxy.connections.quic(key) else { return };
    let took = q.note_established(cx.now(), cx.micros());
    let handshake = q.transport().handshake();
    let certificate = q.transport().peer_certificate();
    q.open_control(&our_settings(&limits));
    proxy.quic.handshake_over();
    let c = &proxy.counters;
    c.count(Count::QuicConnections);
    if let Some(h) = &handshake {
        match h.summary.map(|s| s.resumed) {
            Some(true) => c.count(Count::ResumedTls13),
            _ => c.count(Count::FullTls13),
        }
        let is_resumed = h.summary.is_some_and(|s| s.resumed);
        c.handshake_took(true, Version::Tls13, is_resumed, took);
        probes::handshake_done(|| Some((q.client_ref()?.id().to_u64(), took, is_resumed.into(), 1)));
        c.signed(h.summary.and_then(|s| s.key));
        match h.early_data {
            EarlyData::Accepted => c.count(Count::EarlyDataAccepted),
            EarlyData::Rejected => c.count(Count::EarlyDataRejected),
            EarlyData::None => {}
        }
    }
    let Some(client) = q.client() else { return };
    client.note_certificate(certificate.as_ref().map(client_cert));
    client.note_established(cx.micros());
    // Requests in early data may have deadlines before that.
    q.look_by(cx, key, cx.now() + next_look(&limits));
    if draining {
        q.leave_soon(cx.now());
    }
    for exchange in q.exchanges() {
        handshake_done(proxy, cx, exchange);
    }
}

/// The connection is lost: closed by the client, timed out, or broken.
pub(crate) fn h3_client_lost(proxy: &mut Proxy, cx: &mut Context, key: Key, reason: &ConnectionError) {
    let Some(q) = proxy.connections.quic(key) else { return };
    if !q.is_closed() && q.is_handshaking() {
        handshake_failed(proxy, key, failure(reason));
    }
    match reason {
        ConnectionError::TransportError(_) => proxy.counters.count(Count::QuicTransportErrors),
        ConnectionError::TimedOut => proxy.counters.count(Count::ClientTimeouts),
        _ => {}
    }
    h3_client_gone(proxy, cx, key);
}

/// The client has broken HTTP/3's rules: the connection closes with the code that says so.
pub(crate) fn h3_client_error(proxy: &mut Proxy, cx: &mut Context, key: Key, code: Code, why: &'static str) {
    proxy.counters.count(Count::H3ConnectionErrors);
    let Some(q) = proxy.connections.quic(key) else { return };
    q.close(cx.instant(), code, why);
    h3_client_gone(proxy, cx, key);
}

/// No request of a connection goes on; what is left of it is the transport's.
pub(crate) fn h3_client_gone(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(q) = proxy.connections.quic(key) else { return };
    q.note_closed();
    for exchange in q.exchanges() {
        abort_exchange(proxy, cx, exchange);
    }
    let Proxy { connections, quic, admission, settings, counters, .. } = proxy;
    if let Some(q) = connections.quic(key) {
        q.forget_streams();
    }
    h3_client_left(connections, quic, admission, settings, counters, cx, key);
    connections.mark_for_flush(key);
}

/// Counts a client out, once.
pub(crate) fn h3_client_left(
    connections: &mut Connections,
    quic: &mut QuicEndpoint,
    admission: &mut Admission,
    settings: &LaneSettings,
    counters: &Counters,
    cx: &mut Context,
    key: Key,
) {
    let Some(q) = connections.quic(key) else { return };
    if !q.count_out() {
        return;
    }
    let counted = q.client().and_then(Client::count_out);
    if q.is_handshaking() {
        quic.handshake_over();
    }
    admission.left(cx, counted, settings, counters);
}

/// Closes a connection that is leaving and has no request under way.
pub(crate) fn h3_client_close_if_done(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Proxy { connections, quic, admission, settings, counters, .. } = proxy;
    let Some(q) = connections.quic(key) else { return };
    if q.is_done() {
        q.close(cx.instant(), Code::NoError, "");
        h3_client_left(connections, quic, admission, settings, counters, cx, key);
    }
    connections.mark_for_flush(key);
}

/// Looks at what has run out of time on a client's connection.
pub(crate) fn h3_client_timeout(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let limits = proxy.settings.limits().clone();
    let now = cx.now();
    let instant = cx.instant();
    let Some(q) = proxy.connections.quic(key) else { return };
    if q.is_closed() {
        return;
    }
    q.extend_last_bytes(limits.until(ConnectionWait::LastBytes, now));
    // It may be leaving already. A request in early data has deadlines before that.
    let handshake_until = q.handshake_until(&limits);
    let own = q.state(now, handshake_until).deadline(&limits.of_connection());
    let passed = own.filter(|own| own.at <= now).map(|own| own.wait);
    if passed == Some(ConnectionWait::Handshake) {
        proxy.counters.count(Count::ClientTimeouts);
        handshake_failed(proxy, key, "timeout");
        let Some(q) = proxy.connections.quic(key) else { return };
        q.close(instant, Code::NoError, "");
        return h3_client_gone(proxy, cx, key);
    }
    q.leave_in_time(now);
    if q.is_done() {
        return h3_client_close_if_done(proxy, cx, key);
    }
    if passed == Some(ConnectionWait::Request) {
        q.close(instant, Code::NoError, "");
        return h3_client_gone(proxy, cx, key);
    }
    let mut next = now + next_look(&limits);
    if let Some(own) = own {
        next = next.min(own.at);
    }
    for (index, serves) in q.all_streams() {
        match serves {
            Serves::Exchange(exchange) => {
                if let Some(at) = check_deadlines(proxy, cx, exchange) {
                    next = next.min(at);
                }
            }
            // A head that does not come to its end, or a response that is not taken.
            Serves::Nothing { until } if until <= now => {
                proxy.counters.count(Count::ClientTimeouts);
                if let Some(q) = proxy.connections.quic(key).filter(|q| q.is_delivering(index)) {
                    // It has acknowledged nothing for as long: it has left.
                    q.close(instant, Code::NoError, "");
                    return h3_client_gone(proxy, cx, key);
                }
                h3_cut(proxy, cx, key, index, Code::RequestCancelled);
            }
            Serves::Nothing { until } => next = next.min(until),
        }
    }
    if let Some(q) = proxy.connections.quic(key) {
        q.expire_at(cx, key, next);
    }
}
