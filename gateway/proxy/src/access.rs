//! Who may come: `allow` and `deny` of listeners, hosts and routes, by address, by client certificate and by header.
//!
//! | what | whose rule | when | refused by |
//! |---|---|---|---|
//! | a connection | the listener's | accept, or once the PROXY header is there; QUIC: the client's first packet | closing it; QUIC: CONNECTION_REFUSED |
//! | a request | the listener's, then those of the host and the route | each request, under the newest lists | 403 |
//! | a relayed connection | the listener's and the host's | before a server is selected | closing it |
//!
//! Certificates and headers are of requests: rules about them do not judge connections. A connection from a trusted proxy that names
//! clients in header fields is judged by its requests alone.
//!
//! An address can be forged until the client has answered a packet, and the certificate of a resumed session is known once the
//! handshake is over. So a request in early data, or a relayed connection, whose client has not done that, waits where a rule would
//! look at it: 425, or the third packet of TCP's handshake. Shares of clients that go by the address (`max_requests_per_client`,
//! rates of requests) wait in the same way.

use crate::client::identity::Client;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::Count;
use crate::exchange::Exchange;
use crate::exchange::executor::{refuse, refuse_over_limit, respond_too_early};
use crate::exchange::routed::DeniedBy;
use crate::exchange::streams::ClientStream;
use crate::lane_state::LaneListener;
use crate::patterns::LanePattern;
use crate::service::Proxy;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use sealane_exchange::Event;
use sealane_http::Fields;
use sealane_lane::{Context, Key};
use sealane_passwords::Users;
use sealane_route::AccessRule;
use sealane_tls::policy::ClientName;
use std::net::IpAddr;
use std::sync::Arc;

/// The rules of a snapshot, with what they read from files. They change when a file does, while all else stays.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Listeners, hosts and routes name them by index.
    pub rules: Box<[Rule]>,
    /// Users with their passwords, which routes name by index.
    pub users: Box<[Arc<Users>]>,
}

/// One rule: all of it must let a client in.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    /// By address; `None`: every address is let in.
    pub addresses: Option<AccessRule>,
    /// By what a request says of itself; never of a listener or a host that relays connections.
    pub request: Option<Arc<RequestRule>>,
}

/// Which requests `allow_certificate`, `deny_certificate`, `allow_header` and `deny_header` let in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestRule {
    /// The client's certificate must have one of these names; `None`: none is needed.
    pub allow_certificate: Option<Vec<ClientName>>,
    /// A client whose certificate has one of these names is refused.
    pub deny_certificate: Vec<ClientName>,
    /// All of these must hold.
    pub allow_header: Vec<HeaderCondition>,
    /// None of these may hold.
    pub deny_header: Vec<HeaderCondition>,
}

/// A condition on the header fields of one name, in every spelling that a server may take for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderCondition {
    /// The name.
    pub name: String,
    /// What they must be.
    pub is: HeaderIs,
}

/// What header fields of a name must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderIs {
    /// There is one.
    Present,
    /// There is none.
    Absent,
    /// They have one of these values.
    OneOf(Vec<HeaderValue>),
    /// They match this expression: an index into the snapshot's patterns. Not compared in constant time.
    Matches(usize),
}

/// A value of a header field. Values are compared in constant time: they may be secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValue {
    /// This one.
    Exact(Vec<u8>),
    /// One that begins with this.
    Prefix(Vec<u8>),
}

impl HeaderValue {
    fn is(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(wanted) => verify_slices_are_equal(value, wanted).is_ok(),
            Self::Prefix(wanted) => {
                value.get(..wanted.len()).is_some_and(|start| verify_slices_are_equal(start, wanted).is_ok())
            }
        }
    }
}

impl HeaderCondition {
    /// Whether the condition holds for all fields of the name. A client that sends two values, of which one is right, may mean
    /// the upstream to read the other.
    fn holds_for_all(&self, fields: &Fields, patterns: &[LanePattern]) -> bool {
        let mut values = fields.alike(self.name.as_bytes()).peekable();
        match &self.is {
            HeaderIs::Present => values.peek().is_some(),
            HeaderIs::Absent => values.peek().is_none(),
            HeaderIs::OneOf(wanted) => values.peek().is_some() && values.all(|value| is_one_of(value, wanted)),
            // An expression that is not there lets nobody in.
            HeaderIs::Matches(at) => {
                let pattern = patterns.get(*at);
                values.peek().is_some() && values.all(|value| pattern.is_some_and(|pattern| pattern.matches(value)))
            }
        }
    }

    /// Whether the condition holds for some field of the name.
    fn holds_for_any(&self, fields: &Fields, patterns: &[LanePattern]) -> bool {
        let mut values = fields.alike(self.name.as_bytes());
        match &self.is {
            HeaderIs::Present => values.next().is_some(),
            HeaderIs::Absent => values.next().is_none(),
            HeaderIs::OneOf(wanted) => values.any(|value| is_one_of(value, wanted)),
            HeaderIs::Matches(at) => {
                let pattern = patterns.get(*at);
                values.any(|value| pattern.is_none_or(|pattern| pattern.matches(value)))
            }
        }
    }
}

/// Compares with all, so that the time says nothing about which it is.
fn is_one_of(value: &[u8], wanted: &[HeaderValue]) -> bool {
    wanted.iter().fold(false, |found, wanted| found | wanted.is(value))
}

impl RequestRule {
    fn looks_at_certificate(&self) -> bool {
        self.allow_certificate.is_some() || !self.deny_certificate.is_empty()
    }

    /// What refuses a request, if anything does.
    fn refuses(&self, x: &Exchange, client: &Client, patterns: &[LanePattern]) -> Option<DeniedBy> {
        if self.looks_at_certificate() {
            let cert = client.cert().map(|cert| cert.names());
            let has = |names: &[ClientName]| cert.is_some_and(|cert| names.iter().any(|name| cert.has(name)));
            let allowed = self.allow_certificate.as_ref().is_none_or(|names| has(names));
            if !allowed || cert.is_some_and(|cert| self.deny_certificate.iter().any(|name| cert.may_be(name))) {
                return Some(DeniedBy::Certificate);
            }
        }
        let fields = &x.request().fields;
        let allowed = self.allow_header.iter().all(|condition| condition.holds_for_all(fields, patterns));
        let denied = self.deny_header.iter().any(|condition| condition.holds_for_any(fields, patterns));
        (!allowed || denied).then_some(DeniedBy::Header)
    }
}

impl Rule {
    /// The conditions on headers.
    pub fn header_conditions(&self) -> impl Iterator<Item = &HeaderCondition> {
        self.request.iter().flat_map(|request| request.allow_header.iter().chain(&request.deny_header))
    }

    fn permits(&self, ip: IpAddr) -> bool {
        self.addresses.as_ref().is_none_or(|addresses| addresses.permits(ip))
    }
}

impl LaneListener {
    /// Whether a rule lets an address in. A rule that is not there lets nobody in.
    fn permits(&self, rule: usize, ip: IpAddr) -> bool {
        self.access.rules.get(rule).is_some_and(|rule| rule.permits(ip))
    }

    /// Removes from a request's trailers what the listener's rule has judged in the head.
    pub fn clean_request_trailers(&self, trailers: &mut Fields) {
        let rule = self.listener.access.and_then(|rule| self.access.rules.get(rule));
        for condition in rule.into_iter().flat_map(Rule::header_conditions) {
            trailers.remove_alike(condition.name.as_bytes());
        }
    }

    /// Whether all of these rules let an address in.
    pub fn permit(&self, rules: impl IntoIterator<Item = usize>, ip: IpAddr) -> bool {
        rules.into_iter().all(|rule| self.permits(rule, ip))
    }

    /// Whether a connection may begin, as far as its peer's address says.
    #[inline]
    pub fn admits(&self, peer: IpAddr) -> bool {
        let Some(rule) = self.listener.access else { return true };
        let names_clients = self.listener.trust_forwarded && self.listener.trusted_proxies.contains(peer);
        names_clients || self.permits(rule, peer)
    }
}

/// What access rules and shares of clients say of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Admitted,
    /// It is not let in.
    Denied(DeniedBy),
    /// It would be let in, but the address may be forged, or the certificate is not known yet.
    TooEarly,
}

/// Whether a request's client is let in by all of these rules.
pub(crate) fn judge(
    connections: &Connections,
    x: &Exchange,
    client: &Client,
    listener: &LaneListener,
    rules: &[usize],
) -> Verdict {
    let is_early = x.machine().is_early();
    let mut too_early = false;
    for rule in rules {
        // A rule that is not there lets nobody in.
        let Some(rule) = listener.access.rules.get(*rule) else { return Verdict::Denied(DeniedBy::Address) };
        if let Some(addresses) = &rule.addresses {
            // A QUIC client that has moved must be let in where it is now, too.
            let moved_to = if x.told().is_none() { quic_address(connections, x.client_stream()) } else { None };
            if !addresses.permits(x.client_ip(client)) || !moved_to.is_none_or(|ip| addresses.permits(ip)) {
                return Verdict::Denied(DeniedBy::Address);
            }
            too_early |= is_address_in_doubt(connections, x);
        }
        let Some(request) = &rule.request else { continue };
        if is_early && client.cert().is_none() && request.looks_at_certificate() {
            too_early = true;
            continue;
        }
        if let Some(by) = request.refuses(x, client, &listener.patterns) {
            return Verdict::Denied(by);
        }
    }
    if too_early { Verdict::TooEarly } else { Verdict::Admitted }
}

/// Answers a request that was not admitted.
pub(crate) fn turn_away(proxy: &mut Proxy, cx: &mut Context, exchange: Key, verdict: Verdict, expects: bool) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let Verdict::Denied(by) = verdict else {
        let actions = x.report(Event::TooEarly);
        return respond_too_early(proxy, cx, exchange, actions, expects);
    };
    if matches!(by, DeniedBy::Limit | DeniedBy::Concurrency) {
        return refuse_over_limit(proxy, cx, exchange, by, expects);
    }
    x.routed_mut().deny(by);
    match by {
        DeniedBy::Certificate => proxy.counters.count(Count::CertificatesDenied),
        DeniedBy::Header => proxy.counters.count(Count::HeadersDenied),
        _ => proxy.counters.count(Count::RequestsDenied),
    }
    refuse(proxy, cx, exchange, 403);
}

/// Where a QUIC client is now.
fn quic_address(connections: &Connections, client: ClientStream) -> Option<IpAddr> {
    match connections.get(client.conn())? {
        Conn::Quic(q) => Some(q.transport().remote_address().ip()),
        Conn::Client(_) | Conn::Upstream(_) | Conn::Mirror(_) | Conn::Udp(_) => None,
    }
}

/// Whether a request came from an address that may be forged. Rules and shares that go by the address wait until it is proven:
/// 425. Otherwise one client could use up what another one may have.
pub(crate) fn is_address_in_doubt(connections: &Connections, x: &Exchange) -> bool {
    x.machine().is_early() && !is_address_proven(connections, x.client_stream())
}

/// Whether a client that sends early data has shown that it is where it says. Over TCP it has, unless its hello came in a SYN
/// without a cookie; over QUIC the address is open until the handshake is over (RFC 9000 §8.1).
fn is_address_proven(connections: &Connections, client: ClientStream) -> bool {
    match connections.get(client.conn()) {
        Some(Conn::Client(client_conn)) => !client_conn.is_unproven(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patterns::Pattern;

    fn condition(name: &str, is: HeaderIs) -> HeaderCondition {
        HeaderCondition { name: name.to_owned(), is }
    }

    fn fields(all: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        for (name, value) in all {
            fields.push(name.as_bytes(), value.as_bytes()).unwrap();
        }
        fields
    }

    #[test]
    fn all_values_of_a_header_must_be_right() {
        let key = condition(
            "X-Key",
            HeaderIs::OneOf(vec![HeaderValue::Exact(b"first".to_vec()), HeaderValue::Prefix(b"second-".to_vec())]),
        );
        for (sent, all, any) in [
            (&[("x-key", "first")][..], true, true),
            (&[("X-Key", "second-3")], true, true),
            (&[("X-Key", "first"), ("x_key", "second-1")], true, true),
            // A right value beside a wrong one, in a spelling that some servers take for the same.
            (&[("X-Key", "first"), ("x_key", "other")], false, true),
            (&[("X-Key", "First")], false, false),
            (&[("X-Key", "second")], false, false),
            (&[("X-Keys", "first")], false, false),
            (&[], false, false),
        ] {
            let fields = fields(sent);
            assert_eq!((key.holds_for_all(&fields, &[]), key.holds_for_any(&fields, &[])), (all, any), "{sent:?}");
        }
        let (with, without) = (fields(&[("a_b", "1")]), fields(&[]));
        for (is, wanted) in [(HeaderIs::Present, [true, false]), (HeaderIs::Absent, [false, true])] {
            let condition = condition("A-B", is);
            assert_eq!([&with, &without].map(|fields| condition.holds_for_all(fields, &[])), wanted);
            assert_eq!([&with, &without].map(|fields| condition.holds_for_any(fields, &[])), wanted);
        }
    }

    #[test]
    fn expressions_are_compared_with_each_value_in_each_spelling() {
        let patterns = [LanePattern::new(&Pattern::new("(?i)bot|^$").unwrap())];
        let bots = condition("User-Agent", HeaderIs::Matches(0));
        for (sent, all, any) in [
            (&[("user-agent", "a Bot 1")][..], true, true),
            (&[("User_Agent", "BOT")], true, true),
            (&[("User-Agent", "curl"), ("user-agent", "bot")], false, true),
            (&[("User-Agent", "")], true, true),
            (&[("User-Agent", "curl")], false, false),
            (&[("X-A", "bot")], false, false),
            (&[], false, false),
        ] {
            let fields = fields(sent);
            let holds = (bots.holds_for_all(&fields, &patterns), bots.holds_for_any(&fields, &patterns));
            assert_eq!(holds, (all, any), "{sent:?}");
        }
        // An expression that is not there lets nobody in who sends the header.
        let fields = fields(&[("User-Agent", "curl")]);
        assert!(!bots.holds_for_all(&fields, &[]) && bots.holds_for_any(&fields, &[]));
    }
}
