//! What follows when a try at a server has failed: it counts against the server, and the request may be sent again.

use crate::counters::{Count, Counters};
use crate::exchange::Exchange;
use sealane_exchange::{Actions, Event, Loss};
use sealane_lane::Context;

/// A try has ended: its server's place is free, and it counts, however its connection was found. `unanswered`: the client has
/// had nothing of a response.
pub(crate) fn account_for_loss(x: &mut Exchange, why: Loss, unanswered: bool) {
    let failure = x.routed.lost(why);
    if unanswered && why.avoids_server() {
        x.routed.note_tried(x.server);
        if why.blames_server() {
            x.routed.failed(failure);
            nudge(x);
        }
    }
    x.routed.release();
    x.count_try(why.uses_try());
}

/// Whether a request that may be sent again is: there must be a try left, a server, and something in the budget.
pub(crate) fn retry_is_granted(x: &mut Exchange, counters: &Counters, cx: &Context, why: Loss) -> bool {
    let Some(upstream) = &x.upstream else { return false };
    let is_left = !why.uses_try() || upstream.has_try_left(x.attempts(), x.routed.tried());
    let granted = is_left && budget_allows(x, counters, cx);
    if granted && why == Loss::Stale {
        // Other kept connections may be as old.
        x.routed.lost_at = Some(cx.now());
    }
    granted
}

/// Answers [`AskRetry`](sealane_exchange::Action::AskRetry). What is to be done then.
pub(crate) fn answer_retry(x: &mut Exchange, counters: &Counters, granted: bool) -> Actions {
    if granted {
        counters.count(Count::Retries);
    }
    x.machine.on(if granted { Event::RetryGranted } else { Event::RetryDenied })
}

/// Takes a retry from the budget, if there is one.
pub(crate) fn budget_allows(x: &Exchange, counters: &Counters, cx: &Context) -> bool {
    let Some(upstream) = &x.upstream else { return false };
    let granted = upstream.grants_retry(cx.now());
    if !granted {
        counters.count(Count::RetriesDenied);
    }
    granted
}

/// Asks control to look at a failure now rather than later.
fn nudge(x: &Exchange) {
    if let Some(upstream) = &x.upstream {
        upstream.nudge();
    }
}
