//! `[request_id]`: a header by which a request is known in every program that it goes through.
//!
//! ```text
//! begin_request ─► mark_request: the id of a trusted proxy, or one that is made here ─► the request's own field
//!                       └──────► forward_auth, upstream, mirror (they get the fields) · access log · trace · response
//! ```
//!
//! The id is nowhere but among the request's fields, so a request without one costs nothing.

use crate::client::identity::Client;
use crate::counters::{Count, Counters};
use crate::exchange::Exchange;
use crate::settings::LaneSettings;
use crate::traces;
use sealane_http::claims::is_alike;
use sealane_http::{FieldError, Fields};
use sealane_lane::Micros;
use sealane_tls::random;

/// Bytes of an id that is accepted; longer ones are replaced.
pub const MAX_ID: usize = 128;
/// Random bytes of an id that is made here: two of 2^60 ids are alike with a probability of 2^-9.
const RANDOM: usize = 16;
/// Ids for which random bytes are made at a time.
const AT_A_TIME: usize = 32;

/// In which header ids come and go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestIdRules {
    /// The header's name.
    pub header: String,
    /// Responses have it, too.
    pub in_responses: bool,
}

/// Makes the ids of a lane.
pub(crate) struct RequestIds {
    random: [u8; RANDOM * AT_A_TIME],
    used: usize,
}

impl Default for RequestIds {
    fn default() -> Self {
        Self { random: [0; RANDOM * AT_A_TIME], used: RANDOM * AT_A_TIME }
    }
}

impl RequestIds {
    /// A new id, in hexadecimal.
    fn make(&mut self) -> [u8; 2 * RANDOM] {
        if self.used == self.random.len() {
            random::fill(&mut self.random);
            self.used = 0;
        }
        let bytes = &self.random[self.used..self.used + RANDOM];
        self.used += RANDOM;
        let mut text = [0; 2 * RANDOM];
        for (hex, byte) in text.chunks_exact_mut(2).zip(bytes) {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            hex.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
        text
    }
}

/// Whether an id of another program is passed on: nothing that could end a line or a quoted text in a log.
fn is_id(value: &[u8]) -> bool {
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_.~+/=:@".contains(b);
    (1..=MAX_ID).contains(&value.len()) && value.iter().all(is_plain)
}

/// A request has come to a lane that traces requests or gives them ids.
#[inline(never)]
pub(crate) fn mark_request(
    x: &mut Exchange,
    client: &Client,
    settings: &LaneSettings,
    ids: &mut RequestIds,
    counters: &Counters,
) -> Result<(), FieldError> {
    if let Some(rules) = &settings.snapshot().traces {
        traces::begin(x, client, rules);
    }
    match &settings.snapshot().request_ids {
        Some(rules) => name_request(x, client, rules, ids, counters),
        None => Ok(()),
    }
}

/// Keeps the id that a trusted proxy has given to a request, or gives it one.
fn name_request(
    x: &mut Exchange,
    client: &Client,
    rules: &RequestIdRules,
    ids: &mut RequestIds,
    counters: &Counters,
) -> Result<(), FieldError> {
    if rules.in_responses {
        x.routed_mut().add_headers();
    }
    let name = rules.header.as_bytes();
    let listener = &client.listener().listener;
    let is_trusted = listener.trust_forwarded && listener.trusted_proxies.contains(client.peer().ip());
    let fields = &mut x.request_mut().fields;
    let is_kept = is_trusted
        && {
            let mut sent = fields.iter().filter(|(_, n, _)| is_alike(n, name));
            matches!((sent.next(), sent.next()), (Some((_, n, value)), None) if n.eq_ignore_ascii_case(name) && is_id(value))
        };
    if is_kept {
        counters.count(Count::RequestIdsAccepted);
        return Ok(());
    }
    counters.count(Count::RequestIdsMade);
    fields.remove_alike(name);
    fields.push(name, &ids.make())
}

/// The id of a request.
pub(crate) fn id_of<'x>(x: &'x Exchange, settings: &LaneSettings) -> Option<&'x [u8]> {
    let rules = settings.snapshot().request_ids.as_ref()?;
    x.request().fields.get_named(rules.header.as_bytes())
}

/// Removes the header of ids from trailers: nobody says it behind the head.
pub(crate) fn clean_of_id(trailers: &mut Fields, settings: &LaneSettings) {
    if let Some(rules) = &settings.snapshot().request_ids {
        trailers.remove_alike(rules.header.as_bytes());
    }
}

/// Puts the id of a request into its response, in the place of what the server says.
pub(crate) fn name_response(x: &mut Exchange, settings: &LaneSettings) {
    let Some(rules) = settings.snapshot().request_ids.as_ref().filter(|rules| rules.in_responses) else { return };
    let name = rules.header.as_bytes();
    let (request, response) = x.heads_mut();
    let Some(id) = request.fields.get_named(name) else { return };
    response.fields.remove_alike(name);
    // It is a field of the request, so it is legal, and there is room for it.
    let _ = response.fields.push(name, id);
}

/// Says in a response how long the gateway and the server took (<https://www.w3.org/TR/server-timing/>), also where the gateway answers
/// because the server does not. A server that was not reached has taken the time since it was chosen.
pub(crate) fn time_response(x: &mut Exchange, now: Micros) {
    let mut text = Vec::with_capacity(64);
    let mut part = |name: &str, micros: Micros| {
        if !text.is_empty() {
            text.extend_from_slice(b", ");
        }
        // In tenths of a millisecond: more would only help those who measure what they should not.
        let tenths = micros / 100;
        text.extend_from_slice(format!("{name};dur={}.{}", tenths / 10, tenths % 10).as_bytes());
    };
    let chosen = || x.routed().tried_since().map(|since| (since * 1000).max(x.times().started));
    let since = if x.times().sent >= x.times().started { Some(x.times().sent) } else { chosen() };
    match since {
        Some(since) => {
            part("gateway", since.saturating_sub(x.times().started));
            part("upstream", now.saturating_sub(since));
        }
        None => part("gateway", now.saturating_sub(x.times().started)),
    }
    let _ = x.response_mut().fields.push(b"Server-Timing", &text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::streams::ClientStream;
    use crate::fixtures;
    use sealane_lane::Key;
    use sealane_route::proxies::Cidr;
    use std::collections::HashSet;
    use std::sync::Arc;

    #[test]
    fn ids_are_never_the_same() {
        let mut ids = RequestIds::default();
        let made: HashSet<[u8; 32]> = (0..1000).map(|_| ids.make()).collect();
        assert_eq!(made.len(), 1000);
        assert!(made.iter().all(|id| is_id(id) && id.iter().all(u8::is_ascii_hexdigit)));
    }

    #[test]
    fn only_plain_ids_of_trusted_proxies_are_kept() {
        let rules = RequestIdRules { header: "X-Request-Id".into(), in_responses: false };
        let mut snapshot = fixtures::snapshot(fixtures::limits(), Vec::new());
        let mut listener = fixtures::listener(1);
        listener.trusted_proxies = ["192.0.2.1/32".parse::<Cidr>().unwrap()].into_iter().collect();
        listener.trust_forwarded = true;
        let mut distrusting = fixtures::listener(2);
        distrusting.trusted_proxies = ["192.0.2.1/32".parse::<Cidr>().unwrap()].into_iter().collect();
        snapshot.listeners = vec![Arc::new(listener), Arc::new(distrusting)];
        let (settings, _published) = fixtures::settings(snapshot);
        let (mut ids, counters) = (RequestIds::default(), Counters::default());
        let mut named_at = |listener: usize, from: &str, sent: &[(&str, &str)]| {
            let client = fixtures::client(&settings.listeners()[listener], from);
            let mut x = Exchange::new(ClientStream::H1(Key::from_u64(1)));
            for (name, value) in sent {
                x.request_mut().fields.push(name.as_bytes(), value.as_bytes()).unwrap();
            }
            name_request(&mut x, &client, &rules, &mut ids, &counters).unwrap();
            let alike = x.request().fields.iter().filter(|(_, n, _)| is_alike(n, b"X-Request-Id"));
            let all: Vec<String> = alike.map(|(_, _, v)| String::from_utf8_lossy(v).into_owned()).collect();
            assert_eq!(all.len(), 1, "{sent:?}");
            all.into_iter().next()
        };
        let (proxy, stranger) = ("192.0.2.1:5", "192.0.2.2:5");
        let distrusted = named_at(1, proxy, &[("x-request-id", "a")]);
        assert_ne!(distrusted.as_deref(), Some("a"), "trust_forwarded = false");
        let mut named = |from: &str, sent: &[(&str, &str)]| named_at(0, from, sent);
        let long = "a".repeat(MAX_ID);
        for id in ["1-67891233-abcdef012345678912345678", "a", long.as_str()] {
            assert_eq!(named(proxy, &[("x-request-id", id)]).as_deref(), Some(id));
            assert_ne!(named(stranger, &[("x-request-id", id)]).as_deref(), Some(id));
        }
        let longer = format!("{long}a");
        for bad in ["", "a b", "a\"b", "a,b", "\u{e4}", longer.as_str()] {
            assert_ne!(named(proxy, &[("x-request-id", bad)]).as_deref(), Some(bad), "{bad:?}");
        }
        assert_ne!(named(proxy, &[("x_request_id", "a")]).as_deref(), Some("a"), "not this header");
        let two = named(proxy, &[("x-request-id", "a"), ("x-request-id", "b")]);
        assert!(two.is_some_and(|id| id.len() == 32), "which of them?");
        assert_eq!((counters.value(Count::RequestIdsAccepted), counters.value(Count::RequestIdsMade)), (3, 12));
    }

    #[test]
    fn times_are_told_in_tenths_of_milliseconds() {
        let told = |sent, began| {
            let mut x = Exchange::new(ClientStream::H1(Key::from_u64(1)));
            (x.times_mut().started, x.times_mut().sent) = (1000, sent);
            x.routed_mut().try_from(began);
            time_response(&mut x, 13_460);
            String::from_utf8_lossy(x.response().fields.get_named(b"server-timing").unwrap()).into_owned()
        };
        assert_eq!(told(2250, 2), "gateway;dur=1.2, upstream;dur=11.2");
        assert_eq!(told(0, 0), "gateway;dur=12.4", "no server was chosen for this request");
        assert_eq!(told(0, 3), "gateway;dur=2.0, upstream;dur=10.4", "it was not reached");
        assert_eq!(told(0, 1), "gateway;dur=0.0, upstream;dur=12.4");
    }
}
