//! The oracle. It knows what the peers did and saw, and compares.

use crate::gateway::{Gateway, PortPhase, X};
use crate::net::{FOREVER, World};
use crate::record::{Asked, Outcome};
use crate::script::{Fault, Settings, Wish};
use sealane_exchange::MAX_INTERIM;
use sealane_exchange::deadlines::{Deadline, LINGER, Party, Reason, Wait};

/// A deadline has passed: the party that is blamed was slow by its script.
pub fn check_blame(w: &World, settings: &Settings, x: &X, passed: &Deadline) {
    let (link, whose) = match passed.wait.party() {
        Some(Party::Client) => (Some(x.front), 0),
        // An idle tunnel is nobody's fault; `slow` below looks at both.
        Some(Party::Upstream) | None => (x.back, 1),
    };
    if passed.wait == Wait::RequestRest && passed.reason == Reason::Total {
        return;
    }
    if passed.wait == Wait::Queue {
        return assert!(w.now >= x.began + settings.queue_timeout, "request {:?}: it has not waited", x.id);
    }
    let link = link.expect("somebody to blame");
    let limit = match passed.wait {
        Wait::Handshake => settings.handshake,
        Wait::Connection => settings.connect + settings.first_byte,
        Wait::ResponseHead => settings.first_byte,
        Wait::RequestBody if x.call => settings.idle[1],
        _ => settings.idle[whose],
    };
    let from = match passed.reason {
        Reason::Idle => w.now.saturating_sub(limit),
        Reason::Rate => x.began,
        Reason::Total => w.now.saturating_sub(limit),
    };
    let mut slow = w.slowness(link, from, w.now);
    if passed.wait == Wait::Tunnel {
        // Neither side has sent anything.
        slow = slow.max(w.slowness(x.front, from, w.now));
    }
    if x.call && passed.wait == Wait::RequestBody {
        // Both sides of a call are silent; the one whose turn it is may be the server.
        slow = slow.max(x.back.map_or(0, |back| w.slowness(back, from, w.now)));
    }
    let of_try = settings.try_timeout.is_some() && passed.reason == Reason::Total;
    if of_try && x.up.bytes > 1500 {
        // The try's time goes by in many round trips, too.
        return;
    }
    let (from, least) = if of_try { (x.try_began, limit.min(500)) } else { (from, limit / 2) };
    slow = slow.max(if of_try { w.slowness(link, from, w.now) } else { 0 });
    assert!(slow >= least, "request {:?}: {passed:?} blames link {link}, which was slow for {slow} ms only", x.id);
}

/// An exchange is over: with rates in force it cannot have taken longer than all its deadlines together.
pub fn check_duration(w: &World, settings: &Settings, x: &X) {
    if settings.rate.contains(&0) || x.machine.is_tunnel() || x.call {
        return;
    }
    let [a, b] = settings.idle;
    let tries = x.dispatched as u64 + 1;
    let bytes = (x.up.bytes + x.down.bytes + x.drained) * 1000;
    let bodies = 4 * (a + b) + 2 * (bytes / settings.rate[0] + bytes / settings.rate[1]);
    let heads =
        tries * (settings.connect + 2 * settings.first_byte) + settings.handshake + LINGER + settings.queue_timeout;
    let took = w.now - x.began;
    assert!(took <= heads + bodies, "request {:?}: it took {took} ms", x.id);
}

/// The run is over.
pub fn check_end(w: &World, gateway: &Gateway) {
    for x in &gateway.xs {
        assert_eq!(x.finished, 1, "request {:?} has not ended", x.id);
        assert!(x.back.is_none());
    }
    for (link, port) in gateway.ports.iter().enumerate() {
        let Some(port) = port else { continue };
        assert_eq!(port.exchange, None, "link {link} is still held");
        let free = match port.phase {
            PortPhase::Closed => true,
            PortPhase::Idle => !port.front && port.inbuf.is_empty() && port.staged.is_empty(),
            PortPhase::Closing => port.version > 1,
            // A stream of which nothing has come.
            PortPhase::Open => port.front && port.version > 1,
            PortPhase::Connecting => false,
        };
        assert!(free, "link {link} is left behind: {:?}", port.phase);
    }
    for (id, asked) in w.record.asked.iter().enumerate() {
        check_request(w, gateway, id, asked);
    }
    for (a, attempt) in w.record.attempts.iter().enumerate() {
        let asked = &w.record.asked[attempt.request];
        assert!(
            !attempt.early || asked.ask.is_safe() && !asked.ask.is_tunnel(),
            "attempt {a}: an unsafe request in early data"
        );
    }
}

fn check_request(w: &World, gateway: &Gateway, id: usize, asked: &Asked) {
    let Some(front) = asked.link else {
        let stuck = |link: &crate::net::Link| link.front && link.slow.iter().any(|s| s.1 >= FOREVER);
        assert!(w.links.iter().any(stuck), "request {id} was never sent");
        return;
    };
    let attempts = || w.record.attempts.iter().filter(|a| a.request == id);
    let processed = attempts().filter(|a| a.processed && !(a.early && a.status == 425)).count();
    assert!(processed <= 1 || asked.ask.is_idempotent(), "request {id} was processed {processed} times");
    let slow = |link: usize| w.slowness(link, 0, w.now) >= 400;
    let trouble = |link: usize| slow(link) || w.links[link].faulty;
    let odd = attempts().any(|a| {
        let interims = a.serve.interims >= usize::from(MAX_INTERIM) || a.status == 101 && !a.accepted;
        interims || asked.ask.wish == Wish::WebSocket && !a.accepted
    });
    let server_failed = asked.backs.iter().any(|back| trouble(*back)) || odd;
    let server_slow = asked.backs.iter().any(|back| slow(*back));
    match asked.outcome {
        None => assert!(w.slowness(front, 0, FOREVER) > FOREVER / 2, "request {id} has no end for its client"),
        Some(Outcome::Left) => {}
        Some(Outcome::Cut) => {
            let too_much = asked.ask.body as u64 > gateway.settings.max_body.min(gateway.settings.max_drained);
            let refused = asked.ask.wish == Wish::Relay && gateway.settings.places != usize::MAX;
            let why = !asked.first || trouble(front) || server_failed || too_much || !asked.sent_whole || refused;
            assert!(why, "request {id} was cut without a reason");
        }
        Some(Outcome::Complete) => {
            let (status, attempt) = asked.finals[0];
            if let Some(a) = attempt {
                let got = w.record.attempts[a].got;
                // What a client has sent before it ended its direction arrives also after the server has ended its own.
                let relayed = asked.ask.wish == Wish::Relay && asked.ask.ends && asked.sent_whole;
                let undisturbed = !server_failed && asked.ask.course.fault.is_none() && !trouble(front);
                assert!(!(relayed && undisturbed) || got == asked.sent, "request {id}: relayed bytes are lost");
                return;
            }
            // By its reset the client tells a deadline from a failure.
            let cancelled = asked.ask.wish == Wish::Call && attempts().any(|a| a.cancelled);
            assert!(status != 502 || !cancelled, "request {id}: a cancelled call is answered");
            let why = match status {
                400 => asked.ask.course.fault.is_some_and(|f| f.1 == Fault::Broken || f.1 == Fault::End),
                404 => asked.ask.answer.is_some(),
                408 => slow(front) || asked.ask.wish == Wish::Call && server_slow,
                413 => asked.ask.body as u64 > gateway.settings.max_body,
                425 => gateway.settings.early_until > 0,
                502 => server_failed,
                503 => gateway.settings.places != usize::MAX,
                // The try's time goes by in many round trips, too.
                504 => server_slow || gateway.settings.try_timeout.is_some() && asked.ask.body > 1500,
                _ => false,
            };
            assert!(why, "request {id}: the gateway answers {status} without a reason");
        }
    }
}
