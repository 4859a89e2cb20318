//! HTTPRoutes and GRPCRoutes: the listeners that they attach to, and the hosts that result.

use crate::backends::{Carries, is_gateway};
use crate::gateways::{GatewayState, ListenerState};
use crate::model::{Host, Section};
use crate::names;
use crate::objects::routes::{GrpcRule, HttpRule, ParentReference, Route};
use crate::objects::{Condition, Kind, Metadata, Name, ObjectRef};
use crate::rules::{Place, Rule, Rules, grpc_rules, http_rules};
use crate::services::gateway_ref;
use crate::status::Status;
use crate::toml::Table;
use crate::{Translation, checks};
use std::collections::{BTreeMap, BTreeSet};

/// A kind of route, and the name that it has.
type KindOfName = (Kind, Option<String>);

/// What a route has in common with routes of other kinds.
#[derive(Clone, Copy)]
pub(crate) struct RouteHead<'r> {
    pub kind: Kind,
    pub metadata: &'r Metadata,
    pub parents: &'r [ParentReference],
    pub hostnames: &'r [String],
}

impl<'r> RouteHead<'r> {
    pub fn of<R>(kind: Kind, route: &'r Route<R>) -> Self {
        let Route { metadata, spec } = route;
        Self { kind, metadata, parents: &spec.parent_refs, hostnames: &spec.hostnames }
    }

    pub fn object(&self) -> ObjectRef {
        ObjectRef { kind: self.kind, name: self.metadata.full_name() }
    }
}

/// A listener that a route has attached to, by the indices of the Gateway and the listener, and the names that it is for there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Attachment {
    pub gateway: usize,
    pub listener: usize,
    /// `None`: every name.
    pub name: Option<String>,
}

/// What became of a reference to a Gateway.
pub(crate) struct Parent<'r> {
    pub reference: &'r ParentReference,
    pub gateway: usize,
    /// The reason and the message of `Accepted` if it is false.
    pub refused: Option<(&'static str, String)>,
}

/// An HTTPRoute or a GRPCRoute.
#[derive(Clone, Copy)]
enum AnyRoute<'r> {
    Http(&'r Route<HttpRule>),
    Grpc(&'r Route<GrpcRule>),
}

impl<'r> AnyRoute<'r> {
    fn head(self) -> RouteHead<'r> {
        match self {
            Self::Http(route) => RouteHead::of(Kind::HttpRoute, route),
            Self::Grpc(route) => RouteHead::of(Kind::GrpcRoute, route),
        }
    }
}

/// The rules for a name at a port of a Gateway.
#[derive(Default)]
struct HostRules {
    routes: Vec<Section>,
    /// The conditions of `routes`: the gateway refuses a second route for the same requests.
    known: BTreeSet<String>,
    origin: Option<ObjectRef>,
}

impl Translation<'_> {
    /// Finds the listeners that a route attaches to.
    pub(crate) fn attach<'r>(
        &self,
        gateways: &[GatewayState],
        route: RouteHead<'r>,
    ) -> (Vec<Parent<'r>>, BTreeSet<Attachment>) {
        let (mut parents, mut attachments) = (Vec::new(), BTreeSet::new());
        let bad_name = route.hostnames.iter().find(|name| !checks::is_hostname_pattern(name));
        for reference in route.parents {
            if !is_gateway(reference.group.as_deref(), reference.kind.as_deref()) {
                continue;
            }
            let namespace = reference.namespace.as_deref().unwrap_or(&route.metadata.namespace);
            let name = Name::new(namespace, &reference.name);
            let Some(at) = gateways.iter().position(|gateway| gateway.name == name) else { continue };
            let gateway = &gateways[at];
            let mut refused = None;
            let mut found = BTreeSet::new();
            let is_meant = |l: &&(usize, &ListenerState)| {
                reference.section_name.as_ref().is_none_or(|name| *name == l.1.name)
                    && reference.port.is_none_or(|port| port == l.1.port)
            };
            let meant: Vec<(usize, &ListenerState)> = gateway.listeners.iter().enumerate().collect();
            let meant: Vec<(usize, &ListenerState)> = meant.iter().filter(is_meant).copied().collect();
            let allowed: Vec<&(usize, &ListenerState)> = meant
                .iter()
                .filter(|(_, l)| l.kinds.contains(&route.kind) && l.allows(self, &name, &route.metadata.namespace))
                .collect();
            for (index, listener) in &allowed {
                let own = listener.hostname.as_deref();
                let mut add = |name: Option<&str>| {
                    found.insert(Attachment { gateway: at, listener: *index, name: name.map(str::to_owned) });
                };
                // TCP and UDP have no names.
                if route.hostnames.is_empty() || matches!(route.kind, Kind::TcpRoute | Kind::UdpRoute) {
                    add(own);
                } else {
                    route.hostnames.iter().filter_map(|name| names::intersection(own, name)).for_each(|n| add(Some(n)));
                }
            }
            let fails = |reason, message: &str| Some((reason, message.to_owned()));
            if let Some(why) = self.world.refusal(route.kind, &route.metadata.full_name()) {
                refused = fails("UnsupportedValue", why);
            } else if let Some(name) = bad_name {
                refused = fails("UnsupportedValue", &format!("{name:?} is not a host name"));
            } else if meant.is_empty() {
                refused = fails("NoMatchingParent", "the Gateway has no such listener");
            } else if allowed.is_empty() {
                refused = fails("NotAllowedByListeners", "no listener of the Gateway allows this route");
            } else if found.is_empty() {
                refused = fails("NoMatchingListenerHostname", "no listener of the Gateway has one of the host names");
            }
            if refused.is_none() {
                attachments.extend(found);
            }
            parents.push(Parent { reference, gateway: at, refused });
        }
        (parents, attachments)
    }

    /// Counts a route at its listeners.
    pub(crate) fn count_attached(gateways: &mut [GatewayState], attachments: &BTreeSet<Attachment>) {
        let listeners: BTreeSet<(usize, usize)> = attachments.iter().map(|a| (a.gateway, a.listener)).collect();
        for (gateway, listener) in listeners {
            gateways[gateway].listeners[listener].attached += 1;
        }
    }

    /// The status of a route. `resolved`: the first reference that cannot be used.
    pub(crate) fn route_status(
        &mut self,
        route: RouteHead,
        parents: Vec<Parent>,
        resolved: &Option<(&'static str, String)>,
    ) {
        if parents.is_empty() {
            // Entries of Gateways that are gone are removed.
            self.statuses.insert(route.object(), Status::Route { parents: Vec::new() });
            return;
        }
        let generation = route.metadata.generation;
        let conditions = |parent: &Parent| {
            let accepted = match &parent.refused {
                None => Condition::new("Accepted", true, "Accepted", "", generation),
                Some((reason, message)) => Condition::new("Accepted", false, reason, message, generation),
            };
            let resolved = match resolved {
                None => Condition::new("ResolvedRefs", true, "ResolvedRefs", "", generation),
                Some((reason, message)) => Condition::new("ResolvedRefs", false, reason, message, generation),
            };
            vec![accepted, resolved]
        };
        let parents = parents.iter().map(|parent| (parent.reference.clone(), conditions(parent))).collect();
        self.statuses.insert(route.object(), Status::Route { parents });
    }

    /// Translates HTTPRoutes and GRPCRoutes. Older routes come first, which decides between equal conditions.
    pub(crate) fn http_routes(&mut self, gateways: &mut [GatewayState]) {
        let world = self.world;
        let mut all: Vec<AnyRoute> = world.http_routes.values().map(AnyRoute::Http).collect();
        all.extend(world.grpc_routes.values().map(AnyRoute::Grpc));
        all.sort_by_key(|route| (route.head().metadata.age(), route.head().kind));
        // By Gateway and port, by listener and name: the kind of route that has the name.
        let mut kinds: BTreeMap<(usize, usize), Vec<KindOfName>> = BTreeMap::new();
        let mut hosts: BTreeMap<(usize, u16), BTreeMap<Option<String>, HostRules>> = BTreeMap::new();
        for route in all {
            let head = route.head();
            let (mut parents, mut attachments) = self.attach(gateways, head);
            if parents.is_empty() && !refers_to_gateways(head) {
                continue;
            }
            // A listener takes routes of one kind for a name; older ones come first.
            let taken = |a: &Attachment| {
                kinds.get(&(a.gateway, a.listener)).is_some_and(|known| {
                    let same = |name: &Option<String>| names::intersect(name.as_deref(), a.name.as_deref());
                    known.iter().any(|(kind, name)| *kind != head.kind && same(name))
                })
            };
            let conflicts: BTreeSet<usize> = attachments.iter().filter(|a| taken(a)).map(|a| a.gateway).collect();
            attachments.retain(|a| !conflicts.contains(&a.gateway));
            for parent in parents.iter_mut().filter(|p| p.refused.is_none() && conflicts.contains(&p.gateway)) {
                let message = "an older route of another kind has one of the host names".to_owned();
                parent.refused = Some(("UnsupportedValue", message));
            }
            // What is wrong with a rule is the same at every listener.
            let tried = if attachments.is_empty() { &mut self.tried_aside } else { &mut self.tried };
            let rules = match route {
                AnyRoute::Http(route) => http_rules(&route.spec.rules, tried),
                AnyRoute::Grpc(route) => grpc_rules(&route.spec.rules, tried),
            };
            let rules = rules.and_then(|rules| match () {
                () if attachments.is_empty() => Ok(rules),
                () if rules.size().saturating_mul(attachments.len()) > checks::MAX_OBJECT => Err(checks::too_large()),
                () => self.count_expressions(&rules.expressions()).map(|()| rules),
            });
            let rules = match rules {
                Ok(rules) => rules,
                Err(why) => {
                    for parent in parents.iter_mut().filter(|p| p.refused.is_none()) {
                        parent.refused = Some(("UnsupportedValue", why.clone()));
                    }
                    attachments.clear();
                    Rules::default()
                }
            };
            for attachment in &attachments {
                let known = kinds.entry((attachment.gateway, attachment.listener)).or_default();
                known.push((head.kind, attachment.name.clone()));
            }
            Self::count_attached(gateways, &attachments);
            let mut bad = None;
            self.add_rules(gateways, head, &rules, &attachments, &mut hosts, &mut bad);
            if attachments.is_empty() {
                // The references are checked all the same, for the status.
                self.resolve_only(head, &rules, &mut bad);
            }
            self.route_status(head, parents, &bad);
        }
        self.add_hosts(gateways, hosts);
    }

    fn resolve_only(&mut self, head: RouteHead, rules: &Rules, bad: &mut Option<(&'static str, String)>) {
        self.only_checks = true;
        for rule in &rules.all {
            self.rule_sections(head, rule, &Place::nowhere(), bad);
        }
        self.only_checks = false;
    }

    fn add_rules(
        &mut self,
        gateways: &[GatewayState],
        head: RouteHead,
        rules: &Rules,
        attachments: &BTreeSet<Attachment>,
        hosts: &mut BTreeMap<(usize, u16), BTreeMap<Option<String>, HostRules>>,
        bad: &mut Option<(&'static str, String)>,
    ) {
        for Attachment { gateway, listener, name } in attachments {
            let (gateway, listener) = (*gateway, &gateways[*gateway].listeners[*listener]);
            let place =
                Place { gateway: Some(&gateways[gateway].name), port: listener.port, https: listener.terminates_tls() };
            let sections: Vec<(String, Section)> =
                rules.all.iter().flat_map(|rule: &Rule| self.rule_sections(head, rule, &place, bad)).collect();
            if !listener.is_served() || is_isolated(&gateways[gateway], listener, name.as_deref()) {
                continue;
            }
            let host = hosts.entry((gateway, listener.port)).or_default().entry(name.clone()).or_default();
            host.origin.get_or_insert_with(|| head.object());
            for (conditions, section) in sections {
                if host.known.insert(conditions) {
                    host.routes.push(section);
                }
            }
        }
    }

    fn add_hosts(
        &mut self,
        gateways: &[GatewayState],
        mut hosts: BTreeMap<(usize, u16), BTreeMap<Option<String>, HostRules>>,
    ) {
        for (at, gateway) in gateways.iter().enumerate() {
            for listener in gateway.listeners.iter().filter(|l| l.is_served() && l.kinds_are_http()) {
                // A name of a listener belongs to this listener even if no route is for it.
                hosts.entry((at, listener.port)).or_default().entry(listener.hostname.clone()).or_default();
            }
        }
        for ((at, port), by_name) in hosts {
            let gateway = &gateways[at];
            let Some(listener) = gateway.listeners.iter().find(|l| l.port == port && l.is_served() && !l.is_udp())
            else {
                continue;
            };
            let address = listener.address();
            for (name, rules) in by_name {
                let mut settings = Table::default();
                if rules.routes.is_empty() {
                    settings.set("respond", Table::default().with("status", 404));
                }
                self.config.hosts.push(Host {
                    names: vec![names::in_configuration(name.as_deref())],
                    listener: address.clone(),
                    settings,
                    routes: rules.routes,
                    origin: rules.origin.unwrap_or_else(|| gateway_ref(&gateway.name)),
                });
            }
        }
    }
}

impl ListenerState {
    fn kinds_are_http(&self) -> bool {
        use crate::gateways::Protocol;
        matches!(self.protocol, Protocol::Http | Protocol::Https)
    }
}

/// Whether another listener of the same port has all requests for a name, because its own name is more specific.
fn is_isolated(gateway: &GatewayState, listener: &ListenerState, name: Option<&str>) -> bool {
    let Some(name) = name else { return false };
    gateway.listeners.iter().filter(|l| l.port == listener.port && l.is_served() && !l.is_udp()).any(|other| {
        let Some(theirs) = other.hostname.as_deref().filter(|_| other.name != listener.name) else { return false };
        let is_narrower = listener.hostname.as_deref().is_none_or(|own| own != theirs && names::covers(own, theirs));
        is_narrower && names::covers(theirs, name)
    })
}

/// Whether a route without a reference to one of our Gateways may have an entry of ours in its status, which must go.
pub(crate) fn refers_to_gateways(head: RouteHead) -> bool {
    head.parents.iter().any(|p| is_gateway(p.group.as_deref(), p.kind.as_deref()))
}

/// What connections to the backends of a kind of route carry.
pub(crate) fn carries(kind: Kind) -> Carries {
    match kind {
        Kind::GrpcRoute => Carries::Grpc,
        Kind::UdpRoute => Carries::Udp,
        Kind::TlsRoute | Kind::TcpRoute => Carries::Tcp,
        _ => Carries::Http,
    }
}
