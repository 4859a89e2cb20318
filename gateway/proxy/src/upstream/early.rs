//! Requests that go to servers as TLS early data (RFC 8446 §2.3, RFC 8470): `early_data` of `[upstream.tls]`.
//!
//! The head of the request for which a connection is made leaves with the hello. The connection stays in its handshake until that is
//! over; only then is the request with the server for the state machine and for the deadlines. If the server has rejected the early data,
//! it has not seen the request, whose head is encoded and sent once more. The state machine decides which requests may go so, how often,
//! and what follows a 425 ([`may_go_early`](sealane_exchange::Exchange::may_go_early)). The TLS session knows how much a ticket allows.

use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::{Count, Counters};
use crate::exchange::Exchange;
use crate::exchange::exchanges::Exchanges;
use crate::service::Proxy;
use crate::upstream::h1::connection_option;
use crate::upstream::phase::{Step, UpstreamConnection, UpstreamPhase};
use sealane_exchange::{Event, Loss};
use sealane_http::h1::encode_request;
use sealane_lane::{Context, Key, Millis};
use sealane_tls::{ClientContext, EarlyData, Session, TlsError};

/// How long a server gets no early data of this lane after early data that was of no use, and cost a connection: the handshake failed, or
/// the server responded with 425.
const PAUSE: Millis = 60_000;

/// Begins the TLS handshake of a connection: the hello waits to be sent, and behind it the request of the connection, if it may go as early
/// data.
pub(super) fn begin_session(
    proxy: &mut Proxy,
    cx: &Context,
    key: Key,
    context: &ClientContext,
) -> Result<(), TlsError> {
    let Proxy { connections, exchanges, scratch, .. } = proxy;
    let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return Ok(()) };
    let mut early = false;
    let session = match early_request(upstream_conn, exchanges, cx.now()) {
        None => Session::client(context, scratch.empty_records())?,
        Some(x) => {
            let mut head = Vec::new();
            scratch.take_buffer(&mut head);
            let connection = connection_option(x, upstream_conn.upstream.settings());
            encode_request(&mut head, x.request(), x.body(), connection);
            let session = Session::client_early(context, &head, scratch.empty_records());
            head.clear();
            scratch.return_buffer(&mut head);
            let session = session?;
            early = session.early_data() == EarlyData::Sent;
            if early {
                let actions = x.report(Event::SentEarly);
                debug_assert!(actions.is_empty());
            }
            session
        }
    };
    upstream_conn.transport.start_client(session, scratch);
    if let UpstreamPhase::Making(making) = &mut upstream_conn.phase {
        (making.step, making.early) = (Step::Handshake, early);
    }
    Ok(())
}

/// The request for which a connection is made, if it may go to the server as early data.
fn early_request<'x>(
    upstream_conn: &UpstreamConnection,
    exchanges: &'x mut Exchanges,
    now: Millis,
) -> Option<&'x mut Exchange> {
    let which = upstream_conn.upstream.early_data(upstream_conn.server, now)?;
    let x = exchanges.get_mut(upstream_conn.exchange()?)?;
    x.machine().may_go_early(which).then_some(x)
}

/// The handshake is over of a connection that has begun with early data. Whether the server has accepted the early data.
pub(super) fn early_over(proxy: &mut Proxy, key: Key) -> bool {
    let Proxy { connections, exchanges, scratch, counters, .. } = proxy;
    let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return false };
    let accepted = upstream_conn.transport.tls.as_ref().is_some_and(|tls| tls.early_data() == EarlyData::Accepted);
    counters.count(if accepted { Count::UpstreamEarlyAccepted } else { Count::UpstreamEarlyRejected });
    if accepted {
        // The response may have come with the server's part of the handshake. A connection on which ours still waits would not be kept.
        // A server that has left already takes nothing more, but what it has sent is read all the same.
        let _ = upstream_conn.transport.flush(scratch);
    } else if let Some(x) = upstream_conn.exchange().and_then(|exchange| exchanges.get_mut(exchange)) {
        let actions = x.report(Event::EarlyRejected);
        debug_assert!(actions.is_empty());
    }
    accepted
}

/// The server of a connection that is being made has sent an alert. In the place of its first message, it says that the server has taken
/// nothing of what came with the hello.
pub(super) fn note_refusal(connections: &mut Connections, key: Key) {
    let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
    let is_first = upstream_conn.transport.tls.as_ref().is_some_and(|tls| !tls.has_server_hello());
    if let UpstreamPhase::Making(making) = &mut upstream_conn.phase {
        making.refused = is_first;
    }
}

/// A connection is lost during a handshake that has begun with early data. Why, as the request's retry needs it. A server that `refused`
/// the handshake has not seen the request: the ticket may be too old for a server that has changed since (RFC 8446 §4.2.10 and §D.3). Every
/// other server may have processed it, so what follows is what follows for a request on any connection.
pub(super) fn early_lost(
    upstream_conn: &UpstreamConnection,
    counters: &Counters,
    now: Millis,
    refused: bool,
    timeout: bool,
) -> Loss {
    counters.count(Count::UpstreamEarlyFailed);
    upstream_conn.upstream.pause_early_data(upstream_conn.server, now + PAUSE);
    match () {
        () if refused => Loss::Stale,
        () if timeout => upstream_conn.upstream.silence(),
        () => Loss::of_connection(false, true),
    }
}

/// A server finds a request too early that the gateway has sent as early data.
pub(crate) fn early_refused(x: &Exchange, counters: &Counters, now: Millis) {
    counters.count(Count::UpstreamTooEarly);
    if let Some(upstream) = x.upstream() {
        upstream.pause_early_data(x.server(), now + PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use crate::fixtures::{client_policy, tls_server};
    use sealane_tls::policy::{ClientPolicy, Group};
    use sealane_tls::{ClientContext, EarlyData, Records, ServerContext, Session};

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";

    /// A client's settings of a test's own, under which its thread has no tickets yet.
    fn client(test: u8) -> ClientContext {
        ClientContext::for_early_data(&ClientPolicy { id: [test; 16], ..client_policy() }).unwrap()
    }

    /// A server that accepts so much early data, with the sessions of this id.
    fn server(id: u8, most: u32) -> ServerContext {
        tls_server(id, most, Group::X25519)
    }

    /// What a server gets of a session whose client has sent this: as early data, and after the handshake, which ends with this `last`.
    fn shake_hands(client: &mut Session, hello: &[u8], context: &ServerContext, last: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut server = Session::server(context, client.early_data() == EarlyData::Sent).unwrap();
        let (mut early, mut plain, mut input) = (Vec::new(), Vec::new(), hello.to_vec());
        let mut out = Records::default();
        while client.is_handshaking() || server.is_handshaking() {
            out.clear();
            let read = server.read(&mut input, &mut plain, &mut early, &mut out).unwrap();
            input.drain(..read.consumed);
            let mut flight = out.filled().to_vec();
            out.clear();
            client.read(&mut flight, &mut Vec::new(), &mut Vec::new(), &mut out).unwrap();
            input.extend_from_slice(out.filled());
        }
        // The tickets come last.
        out.clear();
        let read = server.read(&mut input, &mut plain, &mut early, &mut out).unwrap();
        input.drain(..read.consumed);
        client.read(&mut out.filled().to_vec(), &mut Vec::new(), &mut Vec::new(), &mut Records::default()).unwrap();
        out.clear();
        client.write(last, false, &mut out).unwrap();
        input.extend_from_slice(out.filled());
        server.read(&mut input, &mut plain, &mut early, &mut Records::default()).unwrap();
        (early, plain)
    }

    /// A connection that begins with this: whether it went as early data, what came of it, and what the server got.
    fn connect(client: &ClientContext, server: &ServerContext, data: &[u8]) -> ([EarlyData; 2], (Vec<u8>, Vec<u8>)) {
        let mut hello = Records::default();
        let mut session = Session::client_early(client, data, &mut hello).unwrap();
        let begun = session.early_data();
        let got = shake_hands(&mut session, hello.filled(), server, b"later");
        ([begun, session.early_data()], got)
    }

    #[test]
    fn early_data_needs_a_ticket_and_is_accepted_once() {
        let (client, server) = (client(11), server(1, 1000));
        let later = (Vec::new(), b"later".to_vec());
        assert_eq!(connect(&client, &server, REQUEST), ([EarlyData::None; 2], later));
        for _ in 0..3 {
            let (came, (early, plain)) = connect(&client, &server, REQUEST);
            assert_eq!(came, [EarlyData::Sent, EarlyData::Accepted]);
            assert_eq!((&early[..], &plain[..]), (REQUEST, &b"later"[..]));
        }
    }

    /// Another server, or the same one after a restart.
    #[test]
    fn a_server_that_does_not_know_the_ticket_rejects_the_early_data() {
        let client = client(12);
        let _ = connect(&client, &server(1, 1000), REQUEST);
        let (came, (early, plain)) = connect(&client, &server(2, 1000), REQUEST);
        assert_eq!(came, [EarlyData::Sent, EarlyData::Rejected]);
        assert_eq!((&early[..], &plain[..]), (&b""[..], &b"later"[..]), "the server has skipped it");
    }

    /// RFC 8446 §4.2.10: a HelloRetryRequest is a rejection, too.
    #[test]
    fn a_server_that_wants_another_key_share_rejects_the_early_data() {
        let groups = vec![Group::X25519, Group::Secp256r1];
        let client = ClientContext::for_early_data(&ClientPolicy { id: [15; 16], groups, ..client_policy() }).unwrap();
        let _ = connect(&client, &server(5, 1000), REQUEST);
        let (came, (early, plain)) = connect(&client, &tls_server(5, 1000, Group::Secp256r1), REQUEST);
        assert_eq!(came, [EarlyData::Sent, EarlyData::Rejected]);
        assert_eq!((&early[..], &plain[..]), (&b""[..], &b"later"[..]));
    }

    /// A server need not wait for the end of the handshake.
    #[test]
    fn a_response_may_come_with_the_servers_part_of_the_handshake() {
        let (client, context) = (client(16), server(6, 1000));
        let _ = connect(&client, &context, REQUEST);
        let (mut hello, mut flight, mut rest) = (Records::default(), Records::default(), Records::default());
        let mut session = Session::client_early(&client, REQUEST, &mut hello).unwrap();
        let mut server = Session::server(&context, true).unwrap();
        let (mut early, mut plain) = (Vec::new(), Vec::new());
        server.read(&mut hello.filled().to_vec(), &mut Vec::new(), &mut early, &mut flight).unwrap();
        assert_eq!(early, REQUEST);
        server.write(b"response", false, &mut flight).unwrap();
        assert!(server.is_handshaking());
        session.read(&mut flight.filled().to_vec(), &mut plain, &mut Vec::new(), &mut rest).unwrap();
        assert_eq!((&plain[..], session.early_data()), (&b"response"[..], EarlyData::Accepted));
        assert!(!session.is_handshaking() && !rest.is_empty(), "the end of the handshake waits to be sent");
    }

    #[test]
    fn no_more_is_sent_than_the_ticket_allows() {
        for (most, length, begun) in [
            (0, 1, EarlyData::None),
            (100, 101, EarlyData::None),
            (100, 100, EarlyData::Sent),
            (1 << 20, 1 << 14, EarlyData::Sent),
            // It needs a second record.
            (1 << 20, (1 << 14) + 1, EarlyData::None),
        ] {
            let (client, server) = (client(13), server(3, most));
            // A ticket of the round before may be left.
            let (first, _) = connect(&client, &server, &[b'x'; (1 << 14) + 1]);
            assert_eq!(first, [EarlyData::None; 2]);
            let data = vec![b'x'; length];
            let (came, (early, _)) = connect(&client, &server, &data);
            assert_eq!(came[0], begun, "{length} of {most} bytes");
            assert_eq!(early.len(), if begun == EarlyData::Sent { length } else { 0 });
        }
    }

    #[test]
    fn a_context_that_is_not_for_early_data_sends_none() {
        let server = server(4, 1000);
        let policy = ClientPolicy { id: [14; 16], ..client_policy() };
        let client = ClientContext::new(&policy).unwrap();
        let without = ClientContext::for_early_data(&ClientPolicy { resumption: false, ..policy }).unwrap();
        for context in [&client, &client, &without, &without] {
            assert_eq!(connect(context, &server, REQUEST).0, [EarlyData::None; 2]);
        }
    }
}
