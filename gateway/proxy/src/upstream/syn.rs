//! Connections to upstreams whose `ClientHello` travels in the SYN (`syn_tls` on an upstream).
//!
//! Does what [`Dial`] says, on the lane's loop: the hello is made before there is a connection and leaves with the SYN; a
//! plain connection is begun beside it when no answer comes in time, and the first success wins. Both sockets are watched
//! under the connection's own key. What paths have shown is kept per lane, and looked at before the next connection.
//!
//! ```text
//! open_with_hello ─► Connecting ──► syn_event, syn_timeout ─► Handshake (with the hello that has gone)
//!                        ▲                  └─► connected (a plain one: an ordinary hello) ─► Handshake
//!                        └── syn_again: broken before a word, or the shorter hello refused
//! ```

use crate::connections::Connections;
use crate::counters::{Count, Counters};
use crate::service::Proxy;
use crate::transport::Transport;
use crate::upstream::connection::{upstream_connected, upstream_lost};
use crate::upstream::group::LaneUpstream;
use crate::upstream::h1::upstream_go_on;
use crate::upstream::phase::{Step, UpstreamConnection, UpstreamPhase};
use crate::upstream::pools::UpstreamPools;
use rustix::net::sockopt;
use sealane_dial::{Action, Dial, Ended, How, Route};
use sealane_lane::{Context, Key, Millis};
use sealane_sys::fastopen::{self, Cookie};
use sealane_sys::fastopen_open::{self, Settled};
use sealane_tls::Session;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Destinations that a lane remembers.
pub(crate) const DESTINATIONS: usize = 1024;
/// How long the third packet may wait for something to carry (see `connect`).
const LONGEST_GRACE: Duration = Duration::from_millis(20);
const SHORTEST_GRACE: Duration = Duration::from_millis(2);

/// What a connection keeps that began with its hello in the SYN, until its handshake is over.
pub(crate) struct UpstreamSyn {
    dial: Dial,
    embedded: Embedded,
    /// The plain one, until it takes the wire's place.
    plain: Option<OwnedFd>,
    hello: HelloSize,
    reply: Reply,
    give_up: Millis,
}

/// The embedded socket, which is the connection's as long as it has not lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Embedded {
    /// It may still win. `cookie_missing`: there was none for its SYN.
    MayWin { cookie_missing: bool },
    /// It is given up.
    Lost,
}

/// How much the hello in the SYN offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HelloSize {
    Ordinary,
    /// Less than the ordinary one.
    Trimmed,
}

/// What the server has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    /// Nothing, and the third packet waits for our Finished.
    AwaitedWithFinished,
    /// Nothing.
    Awaited,
    /// Something.
    Begun,
}

/// Opens a connection with its hello in the SYN. `None` where it is to be made in sequence, which is counted.
pub(crate) fn open_with_hello(
    proxy: &mut Proxy,
    cx: &Context,
    upstream: &LaneUpstream,
    server: usize,
    only_h1: bool,
    header: &[u8],
) -> Option<(Transport, Box<UpstreamSyn>)> {
    let cookie = upstream.upstream.syn_tls?;
    let address = upstream.upstream.servers.get(server)?.address;
    let now = cx.instant();
    if proxy.pools.is_paused(address.ip(), now) {
        proxy.counters.count(Count::UpstreamSynPaused);
        return None;
    }
    let context = upstream.context(only_h1).ok()??;
    let budget = upstream.syn_budget(server, address, cx.now())?;
    let Proxy { scratch, counters, pools, .. } = proxy;
    let Some(made) = Session::client_for_syn(&context, upstream.wants_whole(server), scratch.empty_records()).ok()?
    else {
        counters.count(Count::UpstreamSynWhole);
        return None;
    };
    let mut data = header.to_vec();
    data.extend_from_slice(scratch.records());
    if data.len() > budget {
        counters.count(Count::UpstreamSynTooLarge);
        return None;
    }
    let opened = fastopen_open::socket(address)
        .and_then(|fd| fastopen_open::open_with_data(fd, address, &data, cookie))
        .inspect_err(|e| {
            // Others come again with the plain connection.
            if e.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()) {
                counters.count(Count::UpstreamSynNotAllowed);
            }
        })
        .ok()?;
    let mut transport = Transport::new(opened.fd);
    scratch.empty_records();
    transport.start_client(made.session, scratch);
    transport.send_raw(&data[opened.sent..]);
    let mut dial = Dial::embedded(now, pools.hedge_delay(address.ip()));
    // The connection is open already.
    let _ = dial.poll_action();
    let syn = UpstreamSyn {
        dial,
        embedded: Embedded::MayWin { cookie_missing: opened.cookie_missing },
        plain: None,
        hello: if made.trimmed { HelloSize::Trimmed } else { HelloSize::Ordinary },
        reply: if cookie == Cookie::Ask { Reply::AwaitedWithFinished } else { Reply::Awaited },
        give_up: 0,
    };
    Some((transport, Box::new(syn)))
}

/// The connection is watched: its time begins.
pub(crate) fn syn_begun(connections: &mut Connections, cx: &mut Context, key: Key, give_up: Millis) {
    if let Some(syn) = connections.upstream(key).and_then(UpstreamConnection::syn) {
        syn.give_up = give_up;
    }
    syn_arm(connections, cx, key);
}

/// Something has become of one of the sockets, or of both.
pub(crate) fn syn_event(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    let Some((_, syn)) = upstream_conn.phase.syn() else { return };
    if let Embedded::MayWin { cookie_missing } = syn.embedded {
        match fastopen_open::settled(&upstream_conn.transport.fd, cookie_missing) {
            Ok(None) => {}
            Ok(Some(settled)) => syn.dial.handle_embedded(ended(settled)),
            Err(_) => syn.dial.handle_failed(Route::Embedded),
        }
    }
    if let Some(fd) = &syn.plain {
        match fastopen_open::settled(fd, false) {
            Ok(None) => {}
            Ok(Some(_)) => syn.dial.handle_plain(),
            Err(_) => syn.dial.handle_failed(Route::Plain),
        }
    }
    syn_act(proxy, cx, key);
}

/// A deadline has passed; true if it was one of this module's.
pub(crate) fn syn_timeout(proxy: &mut Proxy, cx: &mut Context, key: Key) -> bool {
    let (now, instant) = (cx.now(), cx.instant());
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return false };
    let Some((step, syn)) = upstream_conn.phase.syn() else { return false };
    if now >= syn.give_up {
        return false;
    }
    match step {
        Step::Connecting => {
            syn.dial.handle_timeout(instant);
            syn_act(proxy, cx, key);
        }
        Step::Handshake => {
            if syn.reply == Reply::AwaitedWithFinished {
                syn.reply = Reply::Awaited;
                // The server's flight is late: perhaps it is lost, and is sent again only after the third packet.
                let _ = sockopt::set_tcp_quickack(&upstream_conn.transport.fd, true);
            }
            syn_arm(&mut proxy.connections, cx, key);
        }
    }
    true
}

fn syn_act(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    while let Some(action) =
        proxy.connections.upstream(key).and_then(UpstreamConnection::syn).and_then(|s| s.dial.poll_action())
    {
        match action {
            Action::Connect(Route::Plain) => syn_open_plain(&mut proxy.connections, cx, key),
            Action::Connect(Route::Embedded) => {}
            Action::Drop(route) => {
                if let Some(syn) = proxy.connections.upstream(key).and_then(UpstreamConnection::syn) {
                    match route {
                        Route::Embedded => syn.embedded = Embedded::Lost,
                        Route::Plain => syn.plain = None,
                    }
                }
            }
            Action::Use(Route::Embedded) => return syn_won(proxy, cx, key),
            Action::Use(Route::Plain) => {
                let Proxy { connections, scratch, .. } = proxy;
                let Some(crate::conn::Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
                if let Some(fd) = upstream_conn.syn().and_then(|s| s.plain.take()) {
                    let mut transport = Transport::new(fd);
                    transport.take_place_of(&upstream_conn.transport);
                    // The hello that has gone out in a SYN goes with its socket.
                    std::mem::replace(&mut upstream_conn.transport, transport).dismantle(scratch);
                }
                if let Some(syn) = upstream_conn.syn() {
                    (syn.embedded, syn.reply) = (Embedded::Lost, Reply::Awaited);
                }
                syn_arm(&mut proxy.connections, cx, key);
                return upstream_connected(proxy, cx, key);
            }
            Action::GiveUp => return upstream_lost(proxy, cx, key, false),
        }
    }
    syn_arm(&mut proxy.connections, cx, key);
}

fn syn_open_plain(connections: &mut Connections, cx: &mut Context, key: Key) {
    let Some(upstream_conn) = connections.upstream(key) else { return };
    let Some(address) = upstream_conn.upstream.upstream.servers.get(upstream_conn.server).map(|s| s.address) else {
        return;
    };
    let Some(syn) = upstream_conn.syn() else { return };
    let opened = fastopen_open::socket(address).and_then(|fd| fastopen_open::open(fd, address));
    match opened {
        Ok(opened) if cx.watch(&opened.fd, key.to_u64()).is_ok() => syn.plain = Some(opened.fd),
        _ => syn.dial.handle_failed(Route::Plain),
    }
}

/// The embedded connection is made: the handshake is under way already.
fn syn_won(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    let Some((step, syn)) = upstream_conn.phase.syn() else { return };
    *step = Step::Handshake;
    (upstream_conn.transport.readable, upstream_conn.transport.writable) = (true, true);
    // Without data in the SYN, the hello that follows carries the third packet.
    if syn.reply == Reply::AwaitedWithFinished && syn.dial.how() != How::Embedded {
        syn.reply = Reply::Awaited;
    }
    proxy.connections.mark_for_flush(key);
    // The server's flight may have come with its SYN-ACK, in the same event.
    upstream_go_on(proxy, cx, key);
    syn_arm(&mut proxy.connections, cx, key);
}

/// Sets the connection's deadline to whatever comes first.
fn syn_arm(connections: &mut Connections, cx: &mut Context, key: Key) {
    let (now, instant) = (cx.now(), cx.instant());
    let Some(upstream_conn) = connections.upstream(key) else { return };
    let Some((step, syn)) = upstream_conn.phase.syn() else { return };
    let until = match step {
        Step::Connecting => syn.dial.next_deadline().map(|t| t.saturating_duration_since(instant)),
        Step::Handshake if syn.reply == Reply::AwaitedWithFinished => {
            let rtt = fastopen::info(&upstream_conn.transport.fd).map_or(Duration::ZERO, |i| i.rtt);
            Some((rtt / 4).clamp(SHORTEST_GRACE, LONGEST_GRACE))
        }
        Step::Handshake => None,
    };
    // One more: the loop's clock counts whole milliseconds.
    let at = until.map_or(syn.give_up, |t| (now + t.as_millis() as Millis + 1).min(syn.give_up));
    upstream_conn.deadline.set(cx, key, at);
}

/// The server has said something.
pub(crate) fn syn_heard(connections: &mut Connections, cx: &mut Context, key: Key) {
    let Some(syn) = connections.upstream(key).and_then(UpstreamConnection::syn) else { return };
    if std::mem::replace(&mut syn.reply, Reply::Begun) == Reply::AwaitedWithFinished {
        syn_arm(connections, cx, key);
    }
}

/// A connection has broken whose handshake was not over; `refused`: by an alert. True if another takes its place.
pub(crate) fn syn_again(proxy: &mut Proxy, cx: &mut Context, key: Key, refused: bool) -> bool {
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return false };
    let Some((step, syn)) = upstream_conn.phase.syn() else { return false };
    let again = match step {
        Step::Handshake if refused => syn.hello == HelloSize::Trimmed && syn.dial.handle_refused(),
        // A path that lets the SYN through and nothing after it.
        Step::Handshake if syn.reply != Reply::Begun => syn.dial.handle_broken(),
        Step::Handshake | Step::Connecting => false,
    };
    if !again {
        return false;
    }
    *step = Step::Connecting;
    // The broken one stays in its place until another wins.
    upstream_conn.transport.writable = false;
    syn.reply = Reply::Awaited;
    if refused {
        upstream_conn.upstream.note_whole(upstream_conn.server);
    }
    syn_act(proxy, cx, key);
    true
}

/// The handshake is over: what it has shown is counted and kept.
pub(crate) fn syn_done(
    connections: &mut Connections,
    pools: &mut UpstreamPools,
    counters: &Counters,
    cx: &Context,
    key: Key,
) {
    let Some(upstream_conn) = connections.upstream(key) else { return };
    let UpstreamPhase::Making(making) = &mut upstream_conn.phase else { return };
    let Some(syn) = making.syn.take() else { return };
    let rtt = fastopen::info(&upstream_conn.transport.fd).map(|i| i.rtt).ok().filter(|rtt| !rtt.is_zero());
    let address = upstream_conn.upstream.upstream.servers.get(upstream_conn.server).map(|s| s.address.ip());
    match syn.dial.how() {
        How::Embedded => counters.count(Count::UpstreamSynEmbedded),
        How::NotTaken => counters.count(Count::UpstreamSynNotTaken),
        How::NoCookie => counters.count(Count::UpstreamSynNoCookie),
        How::Hedged => counters.count(Count::UpstreamSynHedged),
        How::Refused => counters.count(Count::UpstreamSynRefused),
        How::Sequential => {}
    }
    let Some(address) = address else { return };
    pools.note_path(address, syn.dial.evidence(), rtt, cx.instant());
}

fn ended(settled: Settled) -> Ended {
    match settled {
        Settled::Taken => Ended::Taken,
        Settled::NotTaken => Ended::NotTaken,
        Settled::NoCookie => Ended::NoCookie,
        Settled::SentAgain => Ended::SentAgain,
    }
}

/// What a lane knows of a server for hellos in SYNs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SynServer {
    budget: usize,
    /// Until when the budget is taken for good.
    fresh: Millis,
    /// It has refused a hello that offers less than the ordinary one.
    whole: bool,
}

/// How long a path's MTU is believed.
const FRESH: Millis = 10_000;

impl LaneUpstream {
    /// Bytes that a SYN to this server takes. `None` where there is no way to it.
    fn syn_budget(&self, server: usize, address: SocketAddr, now: Millis) -> Option<usize> {
        let mut known = self.syn_server(server)?;
        if known.fresh <= now {
            let mtu = fastopen::path_mtu(address).ok()?;
            known.budget = sealane_dial::budget::bytes(address.ip(), mtu);
            known.fresh = now + FRESH;
        }
        Some(known.budget)
    }

    fn wants_whole(&self, server: usize) -> bool {
        self.syn_server(server).is_some_and(|s| s.whole)
    }

    fn note_whole(&self, server: usize) {
        if let Some(mut known) = self.syn_server(server) {
            known.whole = true;
        }
    }
}
