//! What an exchange knows of the way that was chosen for it: its host and route, its servers, and who has answered in their place.

use crate::Failure;
use crate::compression::Wish;
use crate::cors::Cors;
use crate::exchange::Exchange;
use crate::forwarding::Chosen;
use crate::lane_state::LaneListener;
use crate::latency::Place;
use crate::limits::Counted;
use crate::pages::page_for;
use crate::rules::{Responses, RouteRef};
use crate::upstream::balance::{Lease, Preference, Tried, cookie, hash_of};
use crate::upstream::group::LaneUpstream;
use sealane_exchange::Loss;
use sealane_http::RequestHead;
use sealane_lane::Millis;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

/// Which server a client sticks to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sticky {
    /// Its group does not have clients stick to servers.
    #[default]
    No,
    /// None yet: it is told which one it has got.
    New,
    /// Its cookie names this one.
    To(usize),
}

impl Sticky {
    fn server(self) -> Option<usize> {
        match self {
            Self::To(server) => Some(server),
            Self::No | Self::New => None,
        }
    }
}

/// What an answer of the gateway's own says beside its status.
#[derive(Default)]
pub(super) enum OwnAnswer {
    #[default]
    Plain,
    /// Seconds after which a client that was too fast may come again.
    RetryAfter(u64),
    /// Where the client is sent.
    Location(Vec<u8>),
    /// The client is to show a password.
    Challenge,
}

/// What of a response was not an upstream's own doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// `maintenance` has refused the request.
    Maintenance,
    /// An error page stands in the place of the gateway's text.
    ErrorPage,
    /// An error page stands in the place of the upstream's response.
    ReplacedPage,
    /// The gateway has answered a CORS preflight.
    Preflight,
}

impl Served {
    /// As the access log has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Maintenance => "maintenance",
            Self::ErrorPage => "error_page",
            Self::ReplacedPage => "error_page_for_upstream",
            Self::Preflight => "cors_preflight",
        }
    }
}

/// Why the gateway has refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeniedBy {
    /// `allow` and `deny`.
    Address,
    /// `allow_certificate` and `deny_certificate`.
    Certificate,
    /// `allow_header` and `deny_header`.
    Header,
    /// `basic_auth`.
    Password,
    /// `max_requests_per_client`.
    Limit,
    /// A `[[concurrency_limit]]`.
    Concurrency,
    /// The server of `forward_auth`.
    Server,
    /// `cors`: a preflight for an origin that is not allowed.
    Origin,
    /// A `[[rate_limit]]`.
    Rate,
    /// `max_body_size`.
    BodySize,
    /// The request came as early data, and cannot be served as such.
    EarlyData,
    /// The path cannot be read in one way, or a rewrite makes it such.
    Path,
    /// The rules of HTTP.
    Malformed,
    /// `queue`: as many requests as may wait for a server do.
    Queue,
    /// `queue_timeout`.
    QueueTimeout,
    /// No server of the upstream can get the request.
    NoServer,
    /// The gateway has forwarded the request to itself.
    Loop,
    /// `upgrade = false`: an extended CONNECT.
    Upgrade,
}

impl DeniedBy {
    /// As the access log has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Certificate => "certificate",
            Self::Header => "header",
            Self::Password => "basic_auth",
            Self::Limit => "max_requests_per_client",
            Self::Concurrency => "concurrency_limit",
            Self::Server => "forward_auth",
            Self::Origin => "cors",
            Self::Rate => "rate_limit",
            Self::BodySize => "max_body_size",
            Self::EarlyData => "early_data",
            Self::Path => "path",
            Self::Malformed => "malformed",
            Self::Queue => "queue",
            Self::QueueTimeout => "queue_timeout",
            Self::NoServer => "no_server",
            Self::Loop => "loop",
            Self::Upgrade => "upgrade",
        }
    }
}

/// What an exchange knows of the way that was chosen for it.
#[derive(Default)]
pub(crate) struct Routed {
    /// The host that the request is for, at the listener that it came to.
    pub(super) host: Option<(Rc<LaneListener>, usize)>,
    pub(super) route: Option<RouteRef>,
    /// Counts as under way at the server in use.
    lease: Option<Lease>,
    tried: Tried,
    hash: Option<u64>,
    pub(super) sticky: Sticky,
    /// It waits for room, or has waited, until then at most.
    waits_until: Option<Millis>,
    /// When the try under way has begun.
    began: Millis,
    pub(super) own: OwnAnswer,
    /// When a kept connection was lost under it. It is sent again over a connection that was begun since.
    pub(super) lost_at: Option<Millis>,
    /// More than the loss itself will tell about the server that is about to be lost.
    pub(super) hint: Option<Failure>,
    /// Why the last try failed.
    pub(super) failure: Option<Failure>,
    /// The gateway adds headers to this response.
    pub(super) adds_headers: bool,
    /// Why the gateway has refused the request, if it has.
    pub(super) denied: Option<DeniedBy>,
    /// What has answered in the place of a server.
    pub(super) served: Option<Served>,
    /// The page for an answer to maintenance: an index into the listener's pages.
    pub(super) page: Option<usize>,
    pub(super) cors: Cors,
    /// What the request says about the compression of its response, where there is a rule for that.
    pub(super) wish: Option<Wish>,
    /// Who the client is, once it has shown the password.
    pub(super) user: Option<Rc<str>>,
    /// The group that it goes to, where there are several.
    pub(super) chosen: Option<Chosen>,
    /// It counts among the requests of its client.
    pub(super) counted: Option<Counted>,
    /// It counts under these limits of its route.
    pub(super) counted_under: Vec<Counted>,
}

impl Routed {
    /// Whether the request is for a host of its listener.
    pub fn has_host(&self) -> bool {
        self.host.is_some()
    }

    pub fn route(&self) -> Option<&RouteRef> {
        self.route.as_ref()
    }

    /// When a connection was begun, at the earliest, that the request may go over. Where a kept connection was lost under it, others may
    /// be as old, and the request is not sent again for the age of a second one.
    #[inline]
    pub fn oldest_connection(&self) -> Option<Millis> {
        self.lost_at
    }

    /// Why the last try failed.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// This is more than the loss itself will tell about the server that is about to be lost.
    pub fn note_hint(&mut self, why: Option<Failure>) {
        self.hint = why;
    }

    /// Why the gateway has refused the request, if it has.
    pub fn denied(&self) -> Option<DeniedBy> {
        self.denied
    }

    /// The request is refused for this reason.
    pub fn deny(&mut self, by: DeniedBy) {
        self.denied = Some(by);
    }

    /// What has answered in the place of a server.
    pub fn served(&self) -> Option<Served> {
        self.served
    }

    /// Who the client is, once it has shown the password.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The group that the request goes to, where there are several.
    pub fn chosen(&self) -> Option<Chosen> {
        self.chosen
    }

    /// The request goes to one of several groups.
    pub fn choose(&mut self, chosen: Chosen) {
        self.chosen = Some(chosen);
    }

    /// The gateway adds headers to the response.
    pub fn add_headers(&mut self) {
        self.adds_headers = true;
    }

    /// Whether the request counts among those of its client.
    #[cfg(test)]
    pub fn is_counted(&self) -> bool {
        self.counted.is_some()
    }

    /// Notes why a server is lost, as exactly as it is known.
    pub fn lost(&mut self, why: Loss) -> Failure {
        let failure = self.hint.take().unwrap_or(Failure::of_loss(why));
        self.failure = Some(failure);
        failure
    }

    /// Notes why the server failed.
    pub fn note_failure(&mut self, failure: Option<Failure>) {
        self.failure = failure;
    }

    /// Notes what the request brings to the choice among an upstream's servers.
    #[inline]
    pub fn preference(x: &mut Exchange, upstream: &LaneUpstream, peer: IpAddr) {
        upstream.note_request();
        if upstream.chooses_by_request() {
            Self::look(x, upstream, peer);
        }
    }

    fn look(x: &mut Exchange, upstream: &LaneUpstream, peer: IpAddr) {
        let config = upstream.settings();
        let fields = &x.request.fields;
        x.routed.hash = hash_of(&config.hash_key, fields, peer);
        if let Some(sticky) = &config.sticky {
            let named = cookie(fields, &sticky.cookie);
            let server = named.and_then(|id| config.servers.iter().position(|s| s.sticky_id[..] == *id));
            x.routed.sticky = server.map_or(Sticky::New, Sticky::To);
            x.routed.adds_headers = true;
        }
    }

    /// Where the duration of the request is recorded; `None` for a request that came to no host.
    #[inline]
    pub fn place(&self) -> Option<&Place> {
        self.shared_place().map(|place| &**place)
    }

    /// The same, to be kept.
    #[inline]
    pub fn shared_place(&self) -> Option<&Arc<Place>> {
        match (&self.route, &self.host) {
            (Some(route), _) => route.place(),
            (None, Some((listener, host))) => listener.latency.hosts.get(*host),
            (None, None) => None,
        }
    }

    /// The server has nothing more to do for this request: its place is free for another one.
    #[inline]
    pub fn release(&mut self) {
        self.lease = None;
    }

    /// The request goes to another group now: what the way to the one before has left is forgotten.
    pub fn begin_again(&mut self) {
        let Self { host, route, own, denied, adds_headers, cors, wish, user, counted, counted_under, .. } =
            std::mem::take(self);
        *self = Self {
            host,
            route,
            own,
            denied,
            adds_headers,
            cors,
            wish,
            user,
            counted,
            counted_under,
            ..Self::default()
        };
    }

    /// The page for an answer with this status, by its index among those of the listener, and the status that the client gets.
    /// `of_upstream`: the answer is an upstream's.
    pub fn page(&self, status: u16, of_upstream: bool) -> Option<(Rc<LaneListener>, usize, u16)> {
        let (listener, _) = self.host.as_ref()?;
        if let (Some(page), 503, false) = (self.page, status, of_upstream) {
            return Some((listener.clone(), page, status));
        }
        let pages = &self.responses()?.error_pages;
        page_for(pages, status, of_upstream).map(|(page, status)| (listener.clone(), page, status))
    }

    /// What the response has: what the route says, or the host where no route is selected.
    pub fn responses(&self) -> Option<&Responses> {
        match (self.route.as_ref().and_then(RouteRef::route), &self.host) {
            (Some(route), _) => Some(&route.responses),
            (None, Some((listener, host))) => listener.routing.host_responses.get(*host),
            (None, None) => None,
        }
    }

    /// The gateway refuses the request: the response has what the host says, even if no route is selected.
    pub fn refuse(&mut self, request: &RequestHead) {
        if self.route.is_some() || self.host.is_none() {
            return;
        }
        self.adds_headers = true;
        if let Some(rule) = self.responses().and_then(|responses| responses.cors.as_ref()) {
            self.cors = rule.judge(request, false);
        }
    }

    /// A page takes the place of the upstream's response, which has said when to come again.
    pub fn replace(&mut self, retry_after: Option<u64>) {
        self.served = Some(Served::ReplacedPage);
        if let Some(seconds) = retry_after {
            self.own = OwnAnswer::RetryAfter(seconds);
        }
    }

    /// The gateway's response asks for a password.
    pub fn challenge(&mut self) {
        self.denied = Some(DeniedBy::Password);
        self.own = OwnAnswer::Challenge;
        self.adds_headers = true;
    }

    /// The gateway's response says that the client may come again after so many seconds.
    pub fn deny_for(&mut self, by: DeniedBy, seconds: u64) {
        self.denied = Some(by);
        self.own = OwnAnswer::RetryAfter(seconds);
        self.adds_headers = true;
    }

    /// What the request brings to the choice of a server.
    #[inline]
    pub fn balancing(&self) -> Preference {
        Preference { tried: self.tried, hash: self.hash, sticky: self.sticky.server() }
    }

    /// Another server is to be selected: what the request had at the one before is over.
    #[inline]
    pub fn leave_server(&mut self) {
        (self.lease, self.failure, self.hint) = (None, None, None);
    }

    /// A try begins, at the server that has lent a place for it.
    #[inline]
    pub fn begin_try(&mut self, lease: Lease, now: Millis) {
        self.began = now;
        self.lease = Some(lease);
    }

    /// A server has failed for this request, which tries the others first.
    pub fn note_tried(&mut self, server: usize) {
        self.tried.note(server);
    }

    /// The server in use has failed as servers do that are ill.
    pub fn failed(&self, failure: Failure) {
        if let Some(lease) = &self.lease {
            lease.server().failed(failure);
        }
    }

    /// The servers that have failed for this request.
    pub fn tried(&self) -> Tried {
        self.tried
    }

    /// Until when it waits for room at most, or has waited.
    #[inline]
    pub fn waits_until(&self) -> Option<Millis> {
        self.waits_until
    }

    /// It waits for room, until then at most if it has not waited before. Until when.
    pub fn wait_until(&mut self, until: Millis) -> Millis {
        *self.waits_until.get_or_insert(until)
    }

    /// The server has answered as servers do.
    #[inline]
    pub fn succeeded(&self) {
        if let Some(lease) = &self.lease {
            lease.server().succeeded();
        }
    }

    /// When the try under way has begun.
    pub fn try_began(&self) -> Millis {
        self.began
    }

    /// The same try goes on over another connection: its time does not begin anew.
    pub fn go_on_with_try(&mut self, began: Millis) {
        self.began = began;
    }

    /// When the last try has begun, if there was one.
    pub fn tried_since(&self) -> Option<Millis> {
        (self.began > 0).then_some(self.began)
    }

    /// A kept connection was lost under the request then.
    #[cfg(test)]
    pub fn lost_connection(&mut self, at: Millis) {
        self.lost_at = Some(at);
    }

    /// A try has begun then.
    #[cfg(test)]
    pub fn try_from(&mut self, began: Millis) {
        self.began = began;
    }

    /// When the try under way must have led to a response's head.
    #[inline]
    pub fn try_until(&self, upstream: &LaneUpstream) -> Option<Millis> {
        Some(self.began + upstream.settings().try_timeout?.as_millis() as Millis)
    }
}
