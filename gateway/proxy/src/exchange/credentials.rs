//! `basic_auth`: a client shows a password before anything else of the route happens.
//!
//! ```text
//! route_request ─► authenticate ─┬─ none, or not readable: 401
//!                                ├─ known to be right (`logins`) ──────► log_in ─► run_authenticated
//!                                └─ Event::Verify ─► control ─► verdict ─┬─► log_in
//!                                                                        └─ 401, 429, 503
//! ```
//!
//! `log_in` lets the users pass that the route allows. Any other user with a right password gets 403.
//!
//! The state machine (`sealane-exchange`, [`Event::Verify`]) lets nothing of the request pass meanwhile, so that it holds for
//! WebSocket, CONNECT and gRPC as for every other request. It fails closed: where the password is not checked in time, the client
//! gets 503.

use crate::access::{Verdict, is_address_in_doubt, turn_away};
use crate::counters::Count;
use crate::exchange::Exchange;
use crate::exchange::executor::{refuse, respond_error};
use crate::exchange::routed::{DeniedBy, Routed};
use crate::exchange::routing::run_authenticated;
use crate::flush::flush_marked;
use crate::lane_state::LaneListener;
use crate::logins::{CHECK_LIMIT, Credentials, Digest, PasswordCheck, PasswordVerdict, Place};
use crate::rules::BasicAuth;
use crate::service::Proxy;
use sealane_exchange::{Action as Do, Event};
use sealane_http::FieldError;
use sealane_lane::{Context, Key, Millis};
use std::rc::Rc;
use std::time::Duration;
use zeroize::Zeroizing;

/// What a request waits for whose password is being checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verification {
    /// When it must be over.
    pub until: Millis,
    /// The client waits for 100 (Continue).
    expects: bool,
}

/// Asks for a client's password, or looks at the one that it has sent.
pub(crate) fn authenticate(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    listener: &Rc<LaneListener>,
    auth: &BasicAuth,
    expects: bool,
) {
    let Proxy { connections, exchanges, admission, settings, counters, .. } = proxy;
    let Some(x) = exchanges.get_mut(exchange) else { return };
    let Some(client) = connections.client_of(x.client_stream) else { return };
    let Some(users) = listener.access.users.get(auth.users) else { return refuse(proxy, cx, exchange, 500) };
    if is_address_in_doubt(connections, x) {
        // Guesses are counted by address.
        return turn_away(proxy, cx, exchange, Verdict::TooEarly, expects);
    }
    let Some(credentials) = Credentials::of(&x.request.fields) else {
        return challenge(proxy, cx, exchange, expects);
    };
    let (logins, now) = (admission.logins(), cx.now());
    let digest = logins.digest(users, &credentials);
    if let Some(user) = logins.known(users, &credentials, &digest, now) {
        return log_in(proxy, cx, exchange, user, expects);
    }
    let place = logins.wait(digest, credentials.user(), exchange, now);
    let taken = match place {
        Place::Joined => true,
        Place::Full => false,
        Place::First => {
            counters.count(Count::PasswordsAsked);
            logins.ask(PasswordCheck {
                slot: settings.slot(),
                digest,
                users: users.clone(),
                user: credentials.user().to_owned(),
                password: Zeroizing::new(credentials.password().to_owned()),
                client: x.client_ip(client),
            })
        }
    };
    if !taken {
        return unchecked(proxy, cx, exchange);
    }
    let until = now + CHECK_LIMIT;
    x.verification = Some(Verification { until, expects });
    connections.look_by(cx, x.client_stream, until);
    let _ = x.machine.on(Event::Verify);
}

/// Control has decided about credentials.
pub(crate) fn password_checked(proxy: &mut Proxy, cx: &mut Context, digest: Digest, verdict: PasswordVerdict) {
    let right = verdict == PasswordVerdict::Right;
    let Some(waiting) = proxy.admission.logins().decided(digest, right, cx.now()) else { return };
    for exchange in waiting.exchanges {
        let Some(x) = proxy.exchanges.get_mut(exchange) else { continue };
        if !x.machine.is_verifying() {
            // It was told that it took too long.
            continue;
        }
        let expects = x.verification.take().is_some_and(|verification| verification.expects);
        match verdict {
            PasswordVerdict::Right => {
                if x.machine.on(Event::Verified).has(Do::Admit) {
                    log_in(proxy, cx, exchange, waiting.user.clone(), expects);
                }
            }
            PasswordVerdict::Wrong => challenge(proxy, cx, exchange, expects),
            PasswordVerdict::Throttled(wait) => throttled(proxy, cx, exchange, wait, expects),
            PasswordVerdict::Busy => unchecked(proxy, cx, exchange),
        }
    }
    flush_marked(proxy, cx);
}

/// The client has shown that it is this user.
fn log_in(proxy: &mut Proxy, cx: &mut Context, exchange: Key, user: Rc<str>, expects: bool) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    if rule_of(&x.routed).is_some_and(|auth| !auth.allows(&user)) {
        return forbid(proxy, cx, exchange, user, expects);
    }
    if tell_upstream(x, &user).is_err() {
        return refuse(proxy, cx, exchange, 431);
    }
    x.routed.user = Some(user);
    proxy.counters.count(Count::PasswordsRight);
    run_authenticated(proxy, cx, exchange, expects);
}

/// What the route of a request says about passwords.
fn rule_of(routed: &Routed) -> Option<&BasicAuth> {
    routed.route.as_ref()?.route()?.basic_auth.as_ref()
}

/// The password is right, but the route is not for this user. That was no guess.
fn forbid(proxy: &mut Proxy, cx: &mut Context, exchange: Key, user: Rc<str>, expects: bool) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    (x.routed.user, x.routed.denied) = (Some(user), Some(DeniedBy::Password));
    proxy.counters.count(Count::UsersForbidden);
    respond_error(proxy, cx, exchange, 403, expects);
}

/// Takes the password out of the request, and puts the user's name in, as the configuration says.
fn tell_upstream(x: &mut Exchange, user: &str) -> Result<(), FieldError> {
    let Some(auth) = rule_of(&x.routed) else { return Ok(()) };
    let fields = &mut x.request.fields;
    if !auth.keep_authorization {
        fields.remove_alike(b"Authorization");
    }
    match &auth.user_header {
        Some(name) => {
            fields.remove_alike(name.as_bytes());
            fields.push(name.as_bytes(), user.as_bytes())
        }
        None => Ok(()),
    }
}

/// Asks the client for a password: it has sent none, or a wrong one.
fn challenge(proxy: &mut Proxy, cx: &mut Context, exchange: Key, expects: bool) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    x.routed.challenge();
    proxy.counters.count(Count::PasswordsWrong);
    respond_error(proxy, cx, exchange, 401, expects);
}

/// There were too many wrong passwords.
fn throttled(proxy: &mut Proxy, cx: &mut Context, exchange: Key, wait: Duration, expects: bool) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    x.routed.deny_for(DeniedBy::Password, wait.as_secs() + 1);
    proxy.counters.count(Count::PasswordsThrottled);
    respond_error(proxy, cx, exchange, 429, expects);
}

/// The password was not checked, in time or at all.
pub(crate) fn unchecked(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    x.routed.denied = Some(DeniedBy::Password);
    proxy.counters.count(Count::PasswordsUnchecked);
    refuse(proxy, cx, exchange, 503);
}
