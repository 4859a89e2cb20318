//! A deterministic simulator: the exchange between scripted clients and upstream servers, on a virtual clock.
//!
//! `gateway` is the executor, a miniature of the proxy: it reports events to [`sealane_exchange::Exchange`], does the
//! actions, and asks [`sealane_exchange::deadlines`] who is late. `client` and `upstream` are its peers. `net` connects
//! them: byte pipes with the real codec for HTTP/1.1, frames for HTTP/2 and HTTP/3 (scripted adapters), with bounded
//! buffers, delays, resets and losses; the streams of a connection share its flow-control windows. There is no TLS and no
//! QUIC. `script` draws from the seed what everybody does: requests with and without content, HEAD, gRPC calls, CONNECT,
//! WebSocket, and, on links of their own beside them, connections that are relayed.
//!
//! The checks (`record`, `checks`) compare what the peers did with what the peers saw:
//!
//! - Every exchange ends once, and no wait is longer than the longest deadline.
//! - A response that looks whole to its client is, byte for byte, what one server has sent for that request; a request
//!   that looks whole to a server is what its client has sent. What was cut never looks whole.
//! - A client gets one final response or an unmistakable end. The gateway's own errors, and cuts, have a cause in the
//!   script.
//! - A response to HEAD, a 204 or a 304 has no content, whatever its server sends behind it.
//! - What a relayed connection's client has sent before its end reaches the server, also if the server ended first.
//! - A request that is not idempotent is processed once at most. Early data carries safe requests only.
//! - A request has at most `tries` tries, one more after a stale connection and one more after a 425, and none after its
//!   client has had a response's head. It has a place at a server as long as that server works for it, and no longer.
//! - A deadline blames a party that was slow by its script.
//! - Nothing is sent after an end or a reset. Buffers keep their bounds. In the end no connection, stream or exchange is held.
//!
//! Each test runs 10,000 seeds. A failing run prints its seed and its script of events; `SEED=n cargo test --test
//! simulator h1_h2` runs one seed, `SEEDS=n` the first n.
//!
//! Mistakes that were planted in `src`, one at a time, and are found: a retry after a released byte; a retry of what is
//! not idempotent; `EndResponse` with a cut; `FinishClient` in place of `CutClient`; a drain without a bound; a 425 to early
//! data passed on, or retried with a part of the body gone; an unsafe early request forwarded; interim responses without
//! a bound; unconfirmed upgrades; a server left behind when the client goes; a wait with the wrong party; both parties
//! excused; no rate; an upload that counts against `try_timeout`; a tunnel ended in which one direction moves. Not found,
//! since an executor cannot tell: `ReleaseUpstream` for a tunnel (HTTP/1.1 connections of tunnels are never kept).

mod back;
mod checks;
mod client;
mod front;
mod gateway;
mod net;
mod record;
mod script;
mod sender;
mod upstream;

use client::Client;
use gateway::Gateway;
use net::{Wake, Way, World};
use std::collections::VecDeque;

/// One run. The log, and whether all checks held.
fn run(seed: u64, versions: (u8, u8), log: bool) -> (Option<Vec<String>>, std::thread::Result<()>) {
    let mut world = World::new(seed, log);
    let w = &mut world;
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| simulate(w, versions)));
    (world.log, result)
}

fn simulate(w: &mut World, versions: (u8, u8)) {
    let settings = script::settings(&mut w.random, versions);
    w.say(|| format!("{settings:?}"));
    let mut requests = VecDeque::new();
    for id in 0..1 + w.random.below(4) {
        let ask = script::ask(&mut w.random, &settings);
        let relay = ask.wish == script::Wish::Relay;
        // Over HTTP/1.1 one request follows the other.
        if relay || versions.0 > 1 || requests.is_empty() {
            w.at(ask.begins, Wake::Start(id));
        }
        if !relay {
            requests.push_back(id);
        }
        w.record.ask(ask);
    }
    let mut client = Client::new(settings.clone(), requests);
    let mut gateway = Gateway::new(settings);
    let mut steps = 0;
    while let Some(wake) = w.pop() {
        steps += 1;
        assert!(steps < 1_000_000, "a run without an end");
        match wake {
            Wake::Start(id) if w.record.asked[id].ask.wish == script::Wish::Relay => {
                let link = client.start_relay(w, id);
                gateway.accept_relay(w, link, id);
                client.step(w, link);
            }
            Wake::Start(_) => {
                if let Some(link) = client.start(w) {
                    gateway.accept(w, link);
                    client.step(w, link);
                }
            }
            Wake::Arrived(link, way) => {
                w.arrive(link, way);
                match (w.links[link].front, way) {
                    (true, Way::Up) => gateway.front_ready(w, link),
                    (true, Way::Down) => client.step(w, link),
                    (false, Way::Up) => gateway.servers.step(w, link),
                    (false, Way::Down) => gateway.back_ready(w, link),
                }
            }
            Wake::Room(link, way) => match (w.links[link].front, way) {
                (true, Way::Up) => client.step(w, link),
                (true, Way::Down) | (false, Way::Up) => gateway.flush(w, link),
                (false, Way::Down) => gateway.servers.step(w, link),
            },
            Wake::Peer(link) if w.links[link].front => client.step(w, link),
            Wake::Peer(link) => gateway.servers.step(w, link),
            Wake::Connect(link, success) => gateway.connected(w, link, success),
            Wake::Handshake(link) => gateway.handshake(w, link),
            Wake::Look(x) => gateway.look(w, x),
            Wake::Idle(link, timer) => gateway.idle_timeout(w, link, timer),
            Wake::Queue => gateway.serve_queue(w),
        }
        gateway.check_places();
    }
    checks::check_end(w, &gateway);
}

fn simulate_all(versions: (u8, u8)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seeds = match (number("SEED"), number("SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, seeds) => 0..seeds.unwrap_or(10_000),
    };
    for seed in seeds {
        let (_, result) = run(seed, versions, false);
        if let Err(panic) = result {
            let (log, _) = run(seed, versions, true);
            eprintln!("seed {seed}, HTTP/{} from the client and HTTP/{} to the server:", versions.0, versions.1);
            eprintln!("{}", log.unwrap_or_default().join("\n"));
            std::panic::resume_unwind(panic);
        }
    }
}

macro_rules! combinations {
    ($($name:ident: $client:literal, $server:literal;)*) => {
        $(#[test]
        fn $name() {
            simulate_all(($client, $server));
        })*
    };
}

combinations! {
    h1_h1: 1, 1;
    h1_h2: 1, 2;
    h1_h3: 1, 3;
    h2_h1: 2, 1;
    h2_h2: 2, 2;
    h2_h3: 2, 3;
    h3_h1: 3, 1;
    h3_h2: 3, 2;
    h3_h3: 3, 3;
}
