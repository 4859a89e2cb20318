//! Headers that the gateway adds to a response because of the way that its request has gone: those of its route, of CORS, cookies,
//! where to go, when to come again.

use crate::connections::Connections;
use crate::exchange::Exchange;
use crate::exchange::routed::{DeniedBy, OwnAnswer, Served, Sticky};
use crate::forwarding::new_cookie;
use crate::request_ids::{name_response, time_response};
use crate::settings::LaneSettings;
use sealane_http::Known;
use sealane_lane::Micros;

/// Adds to a response what the way of its request says, where that adds headers. Called once for each such final response, before its
/// head goes to the client; `ours`: it was not an upstream that made it. Whether there is a rule for the compression of such responses.
#[inline(never)]
pub(crate) fn add_response_headers(
    connections: &Connections,
    x: &mut Exchange,
    settings: &LaneSettings,
    now: Micros,
    ours: bool,
) -> bool {
    let secure = connections.client_of(x.client_stream).is_some_and(|c| c.is_secure());
    let (mut tells_times, mut compresses) = (false, false);
    if let Some(responses) = x.routed.responses() {
        // The addresses and cookies of a server of `forward_auth` are those of a login, and not of the route's upstream.
        let is_of_upstream = !ours && x.routed.denied != Some(DeniedBy::Server);
        if let (Some(rewrites), true) = (&responses.rewrites, is_of_upstream) {
            rewrites.apply(&mut x.response.fields);
        }
        // In maintenance, nothing is said for the route, such as its cookies.
        let is_of_host = x.routed.served == Some(Served::Maintenance);
        responses.finish(&mut x.response.fields, &x.routed.cors, secure, is_of_host);
        (tells_times, compresses) = (responses.server_timing, responses.compression.is_some());
    }
    if tells_times {
        time_response(x, now);
    }
    name_response(x, settings);
    // None of these can be refused: they are ours, and few.
    if ours {
        let _ = match &x.routed.own {
            OwnAnswer::Plain => Ok(()),
            OwnAnswer::RetryAfter(seconds) => {
                x.response.fields.push_known(Known::RetryAfter, seconds.to_string().as_bytes())
            }
            OwnAnswer::Location(location) => x.response.fields.push_known(Known::Location, location),
            OwnAnswer::Challenge => {
                let auth = x.routed.route.as_ref().and_then(|route| route.route()?.basic_auth.as_ref());
                let challenge = auth.map_or("Basic", |auth| &auth.challenge);
                x.response.fields.push_known(Known::WwwAuthenticate, challenge.as_bytes())
            }
        };
        return compresses;
    }
    if x.routed.chosen.is_some()
        && let Some((name, value)) = new_cookie(x)
    {
        let text = set_cookie(name, value.as_bytes(), secure);
        let _ = x.response.fields.push_known(Known::SetCookie, &text);
    }
    if x.routed.sticky == Sticky::No || x.routed.sticky == Sticky::To(x.server) {
        return compresses;
    }
    let Some(upstream) = &x.upstream else { return compresses };
    let (Some(sticky), Some(server)) = (&upstream.settings().sticky, upstream.settings().servers.get(x.server)) else {
        return compresses;
    };
    let text = set_cookie(&sticky.cookie, &server.sticky_id, secure);
    let _ = x.response.fields.push_known(Known::SetCookie, &text);
    compresses
}

/// Removes from an interim response what [`add_response_headers`] removes from the final one.
#[inline(never)]
pub(crate) fn clean_interim(x: &mut Exchange, settings: &LaneSettings) {
    if let Some(responses) = x.routed.responses() {
        responses.clean_interim(&mut x.response.fields);
    }
    if let Some(rules) = settings.snapshot().request_ids.as_ref().filter(|rules| rules.in_responses) {
        x.response.fields.remove_alike(rules.header.as_bytes());
    }
}

/// A cookie by which the gateway knows a client again.
fn set_cookie(name: &str, value: &[u8], secure: bool) -> Vec<u8> {
    let mut text = Vec::with_capacity(96);
    text.extend_from_slice(name.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value);
    text.extend_from_slice(b"; Path=/; HttpOnly; SameSite=Lax");
    if secure {
        text.extend_from_slice(b"; Secure");
    }
    text
}
