//! Compiles every listener's [`SiteMap`], which says where a name is served and under which rules, and refuses
//! configurations that leave a way around a required client certificate.
//!
//! A name's own rules are those of a listener that requires a client certificate for it. No other way may lead to the
//! same host under weaker rules (none, other authorities, or fewer revocation lists):
//!
//! | the other way | what happens |
//! |---|---|
//! | a plain listener, the host without `listeners` | the name is redirected to HTTPS there |
//! | a plain listener that the host names in `listeners` | error |
//! | another listener with TLS | error |
//! | deeper names, where `client_auth` is for `*.example.com` | error |
//! | another name that the host lists, on the same listener | error |
//!
//! A name in `for` that is relayed without being read is an error, too: nobody would ask its clients for a certificate. So is
//! one whose host is served on other listeners only, and one whose servers a wider host relays to.
//!
//! A wider host that leads to the same servers is such a way, too. Another `[[host]]` for the same name on another listener,
//! or for another name, is not: it states its own rules.

use super::Mode;
use super::decode::At;
use super::diagnostics::Sink;
use super::host::{Hosts, Target};
use super::listener::Draft;
use super::plan::{Plan, ServerPlan};
use super::settings::access_of_requests as r;
use rustls::pki_types::CertificateDer;
use sealane_proxy::rules::{Piece, Redirect, Route};
use sealane_proxy::snapshot::Action;
use sealane_route::{NameMap, NamePattern, Rank, SiteMap, groups};
use sealane_tls::policy::{ClientAuth, ClientAuthMode, ClientAuthority, ExpiredLists};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// What metrics call the redirects that plain listeners give for names that need a client certificate: no host can have this
/// name.
const TO_HTTPS: &str = "(redirect to https)";

/// Everything that is looked at.
struct View<'a, 't> {
    sink: &'a Sink<'t>,
    listeners: &'a [Draft],
    targets: &'a [Target],
    hosts: &'a Hosts,
    /// By host: the servers that its requests may go to.
    servers: Vec<BTreeSet<(String, u16)>>,
    /// The groups of names that all hosts and policies together tell apart.
    groups: Vec<NamePattern>,
}

/// A host that a name leads to, and how narrowly it is meant there.
#[derive(Clone, Copy)]
struct Served {
    host: u32,
    rank: Rank,
    /// Connections are passed on without being read: no certificate can be asked for.
    relayed: bool,
}

/// Names that a plain listener redirects: by listener, the names with the port to go to.
type Redirects = HashMap<usize, HashMap<NamePattern, u16>>;

/// Compiles the listeners' tables, and reports ways around client certificates. Returns the hosts' actions as the tables
/// name them, and what metrics call them.
pub(super) fn compile(
    sink: &Sink,
    listeners: &[Draft],
    targets: &[Target],
    hosts: Hosts,
    routes: &[Route],
    plans: &[Arc<Plan>],
) -> (Vec<SiteMap>, Vec<Action>, Vec<String>) {
    let mut redirects = Redirects::new();
    // A listener whose TLS section is wrong would look like a plain one.
    if !listeners.iter().any(|l| l.broken_tls) {
        warn_one_label(sink, listeners, targets, &hosts);
        check_relayed(sink, listeners, targets, &hosts);
        check_asked(sink, listeners, targets, &hosts);
        if listeners.iter().any(requires_certificates) {
            let view = View::new(sink, listeners, targets, &hosts, routes, plans);
            let reported = view.check_depth();
            view.check_names(&reported);
            view.check_elsewhere();
            redirects = view.check_listeners();
        }
    }
    let (mut labels, mut actions): (Vec<String>, Vec<Action>) =
        hosts.all.into_iter().map(|h| (h.label, h.action)).unzip();
    let mut by_port: BTreeMap<u16, u32> = BTreeMap::new();
    for port in redirects.values().flat_map(HashMap::values) {
        by_port.entry(*port).or_insert_with(|| {
            actions.push(Action::Redirect(to_https(*port)));
            labels.push(TO_HTTPS.to_owned());
            actions.len() as u32 - 1
        });
    }
    let none = NameMap::default();
    let tables = listeners.iter().zip(targets).enumerate().map(|(i, (listener, target))| {
        let policies = listener.tls.as_ref().map_or(&none, |t| &t.names);
        let moved = redirects.get(&i);
        // Where some names are redirected, the others must be told apart from them as finely as it was decided.
        let finer = moved.iter().flat_map(|_| groups(all_patterns(listeners, targets)));
        SiteMap::new(policies, &target.hosts, finer, |pattern, host| {
            let port = moved.and_then(|m| m.get(pattern));
            port.map_or(host, |port| by_port.get(port).copied())
        })
        .with_protocols(&target.protocols, &target.hosts)
    });
    let tables = tables.collect();
    (tables, actions, labels)
}

/// The redirect that a plain listener gives for a name that needs a client certificate.
fn to_https(port: u16) -> Redirect {
    let mut to = vec![Piece::Text("https://".to_owned()), Piece::Host];
    if !matches!(port, 0 | 443) {
        to.push(Piece::Text(format!(":{port}")));
    }
    to.push(Piece::Uri);
    Redirect { status: 308, to }
}

fn all_patterns(listeners: &[Draft], targets: &[Target]) -> Vec<NamePattern> {
    let policies = listeners.iter().filter_map(|l| l.tls.as_ref()).flat_map(|t| t.names.iter().map(|(p, _)| p));
    policies.chain(targets.iter().flat_map(|t| t.hosts.iter().map(|(p, _)| p))).collect()
}

/// The rule for a name at a listener, where it requires a client certificate.
fn rule<'a>(listener: &'a Draft, name: &str) -> Option<&'a ClientAuth> {
    let tls = listener.tls.as_ref()?;
    let policy = tls.names.find(name).copied().unwrap_or(0);
    required(tls.policies[policy as usize].client_auth.as_ref())
}

fn required(auth: Option<&ClientAuth>) -> Option<&ClientAuth> {
    auth.filter(|a| a.mode == ClientAuthMode::Require)
}

fn requires_certificates(listener: &Draft) -> bool {
    let policies = listener.tls.iter().flat_map(|t| &t.policies);
    policies.into_iter().any(|p| required(p.client_auth.as_ref()).is_some())
}

/// Whether `other` lets somebody in whom `own` refuses.
fn is_weaker(other: Option<&ClientAuth>, own: &ClientAuth) -> bool {
    let Some(other) = other else { return true };
    // Each certificate that `other` accepts satisfies the rule of one of its authorities: one of ours must be as strict for it.
    let is_covered = |rule: &ClientAuthority, root: &CertificateDer<'_>| {
        own.authorities.iter().any(|own| own.roots.contains(root) && !is_laxer(rule, own))
    };
    other.authorities.iter().any(|rule| rule.roots.iter().any(|root| !is_covered(rule, root)))
}

/// Whether a rule accepts a certificate of a common authority that `own` refuses.
fn is_laxer(rule: &ClientAuthority, own: &ClientAuthority) -> bool {
    // No names means every name.
    let more_names = rule.names.is_empty() || rule.names.iter().any(|name| !own.names.contains(name));
    own.revocation.sources.iter().any(|own| !rule.revocation.sources.iter().any(|o| o.source == own.source))
        || !own.revocation.sources.is_empty()
            && own.revocation.expired == ExpiredLists::Refuse
            && rule.revocation.expired == ExpiredLists::Accept
        || !own.names.is_empty() && more_names
        || rule.depth > own.depth
}

/// The upstreams to which an action may forward requests.
pub(super) fn upstreams_of(action: &Action, routes: &[Route]) -> Vec<usize> {
    match action {
        Action::Routes(table) => {
            table.values().filter_map(|route| routes.get(*route)).flat_map(|route| route.action.upstreams()).collect()
        }
        action => action.upstreams(),
    }
}

/// The addresses that a server's host stands for, as far as they are known without DNS; else its name.
fn resolved(host: &str) -> Vec<String> {
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    // RFC 6761 §6.3.
    if name == "localhost" || name.ends_with(".localhost") {
        return vec![Ipv4Addr::LOCALHOST.to_string(), Ipv6Addr::LOCALHOST.to_string()];
    }
    match name.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        // Connections to these go to the machine itself.
        Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => vec![Ipv4Addr::LOCALHOST.to_string()],
        Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => vec![Ipv6Addr::LOCALHOST.to_string()],
        Ok(ip) => vec![ip.to_string()],
        Err(_) => vec![name],
    }
}

/// Whether two servers are the same, as far as their hosts and ports say.
pub fn is_same_server(a: &ServerPlan, b: &ServerPlan) -> bool {
    let theirs = resolved(&b.host);
    a.port == b.port && resolved(&a.host).iter().any(|host| theirs.contains(host))
}

impl super::Config {
    /// Whether some name is served only to clients with a certificate. Servers that are added while the gateway serves must then
    /// not open another way to a name's servers.
    pub fn requires_client_certificates(&self) -> bool {
        let tls = self.listeners.iter().filter_map(|listener| listener.tls.as_ref());
        tls.flat_map(|tls| tls.policies.iter()).any(|policy| required(policy.client_auth.as_ref()).is_some())
    }
}

impl<'a, 't> View<'a, 't> {
    fn new(
        sink: &'a Sink<'t>,
        listeners: &'a [Draft],
        targets: &'a [Target],
        hosts: &'a Hosts,
        routes: &[Route],
        plans: &'a [Arc<Plan>],
    ) -> Self {
        let servers_of = |upstream: usize| {
            let servers = plans.get(upstream).into_iter().flat_map(|plan| &plan.servers);
            servers.flat_map(|s| resolved(&s.host).into_iter().map(|host| (host, s.port)))
        };
        let servers =
            hosts.all.iter().map(|h| upstreams_of(&h.action, routes).into_iter().flat_map(servers_of).collect());
        let servers = servers.collect();
        let mut groups: Vec<NamePattern> = groups(all_patterns(listeners, targets)).into_iter().collect();
        groups.sort_unstable();
        Self { sink, listeners, targets, hosts, servers, groups }
    }

    /// The host that a name leads to at a listener.
    fn found(&self, listener: usize, name: &str) -> Option<Served> {
        let (pattern, host) = self.targets[listener].hosts.find_pattern(name)?;
        let relayed =
            self.targets[listener].mode != Mode::Http || matches!(self.hosts.action(*host), Action::Passthrough { .. });
        Some(Served { host: *host, rank: pattern.rank(), relayed })
    }

    /// The host whose requests for a name are read and answered at a listener.
    fn served(&self, listener: usize, name: &str) -> Option<Served> {
        self.found(listener, name).filter(|served| !served.relayed)
    }

    /// Whether `other` is a way to what `own` serves for the same name (or one deeper).
    fn is_way_to(&self, other: Served, own: Served) -> bool {
        let shares = || !self.servers[other.host as usize].is_disjoint(&self.servers[own.host as usize]);
        other.host == own.host || (other.rank < own.rank && shares())
    }

    /// Where the name that leads to a host stands in the file.
    fn place(&self, listener: usize, name: &str) -> Option<&'a At<NamePattern>> {
        let (pattern, host) = self.targets[listener].hosts.find_pattern(name)?;
        self.hosts.place(*host, &pattern)
    }

    /// Names below those of a one-label `client_auth` must not lead to the same host without it. Returns the hosts for which
    /// that was reported.
    fn check_depth(&self) -> BTreeSet<u32> {
        let mut reported = BTreeSet::new();
        for (i, listener) in self.listeners.iter().enumerate() {
            let Some(tls) = &listener.tls else { continue };
            for at in &tls.places {
                let NamePattern::OneLabel(suffix) = &at.value else { continue };
                let name = at.value.sample();
                let (Some(own), Some(auth)) = (self.served(i, &name), rule(listener, &name)) else { continue };
                let below = |p: &&NamePattern| {
                    let sample = p.sample();
                    let before = sample.strip_suffix(&**suffix).and_then(|rest| rest.strip_suffix('.'));
                    let deeper = before.is_some_and(|labels| labels.contains('.'));
                    deeper
                        && is_weaker(rule(listener, &sample), auth)
                        && self.served(i, &sample).is_some_and(|other| self.is_way_to(other, own))
                };
                if let Some(deeper) = self.groups.iter().find(below) {
                    let (names, lead) = match deeper {
                        NamePattern::Exact(name) => (format!("\"{name}\""), "this name leads"),
                        other => {
                            let suffix = other.suffix().unwrap_or(suffix);
                            (format!("names with more labels, such as \"b.a.{suffix}\""), "these names lead")
                        }
                    };
                    let message = format!(
                        "client_auth for \"{}\" does not apply to {names}: {lead} to the same host or servers, so a client \
                         reaches them without a certificate that this client_auth accepts",
                        at.value
                    );
                    let help = format!("\"*\" stands for one label: write \"**.{suffix}\", for one or more labels");
                    self.sink.error(&at.span, message, Some(help));
                    reported.insert(own.host);
                }
            }
        }
        reported
    }

    /// The names that a `[[host]]` lists stand under the same rules at a listener: a client that is refused under one of them would
    /// be let in by another.
    fn check_names(&self, reported: &BTreeSet<u32>) {
        let mut reported = reported.clone();
        for ((listener, target), (index, host)) in
            self.listeners.iter().zip(self.targets).flat_map(|l| (0..).zip(&self.hosts.all).map(move |h| (l, h)))
        {
            if matches!(host.action, Action::Passthrough { .. }) {
                continue;
            }
            let here = host.names.iter().filter(|at| target.hosts.get(&at.value) == Some(&index));
            let rules: Vec<_> = here.map(|at| (at, rule(listener, &at.value.sample()))).collect();
            let around = |(at, other): &(&'a At<NamePattern>, Option<&ClientAuth>)| {
                let own = rules.iter().find(|(_, own)| own.is_some_and(|own| is_weaker(*other, own)))?;
                Some((*at, other.is_some(), own.0))
            };
            let Some((at, asks, own)) = rules.iter().find_map(around) else { continue };
            if !reported.insert(index) {
                continue;
            }
            let (name, own, here) = (&at.value, &own.value, &listener.written);
            let message = match asks {
                false => format!(
                    "\"{own}\" needs a client certificate on listener {here}, but \"{name}\", a name of the same host, needs none"
                ),
                true => format!(
                    "listener {here} accepts certificates for \"{name}\" that it refuses for \"{own}\", a name of the same host"
                ),
            };
            let help = format!("use the same client_auth for both names, or write a separate [[host]] for \"{name}\"");
            self.sink.error(&at.span, message, Some(help));
        }
    }

    /// No listener may serve a host under weaker rules than another one does.
    fn check_listeners(&self) -> Redirects {
        let guards: Vec<usize> =
            (0..self.listeners.len()).filter(|i| requires_certificates(&self.listeners[*i])).collect();
        let mut redirects = Redirects::new();
        let (mut reported, mut relays) = (BTreeSet::new(), BTreeSet::new());
        for pattern in &self.groups {
            let name = pattern.sample();
            let own =
                guards.iter().filter_map(|g| Some((*g, self.served(*g, &name)?, rule(&self.listeners[*g], &name)?)));
            let own: Vec<(usize, Served, &ClientAuth)> = own.collect();
            for (guard, own, _) in &own {
                self.check_relays(*guard, *own, &name, &mut relays);
            }
            for (i, listener) in self.listeners.iter().enumerate() {
                let Some(other) = self.served(i, &name) else { continue };
                let way = own.iter().find(|(guard, own, auth)| {
                    *guard != i && is_weaker(rule(listener, &name), auth) && self.is_way_to(other, *own)
                });
                let Some((guard, own, _)) = way else { continue };
                let guard = &self.listeners[*guard];
                let host = &self.hosts.all[other.host as usize];
                // Of a host that says where it is served, this is a contradiction; else the way is closed.
                let meant =
                    host.names_listeners && own.host == other.host && host.names.iter().any(|n| n.value == *pattern);
                if listener.tls.is_none() && !meant {
                    redirects.entry(i).or_default().insert(pattern.clone(), guard.public_port());
                } else if reported.insert((other.host, &listener.written)) {
                    self.report(i, listener, guard, &name, other.host != own.host);
                }
            }
        }
        redirects
    }

    /// A name in `client_auth.for` must not have its own host only where nobody is asked for the certificate.
    fn check_elsewhere(&self) {
        for (i, listener) in self.listeners.iter().enumerate() {
            for at in listener.tls.iter().flat_map(|tls| &tls.places) {
                let name = at.value.sample();
                let Some(auth) = rule(listener, &name) else { continue };
                let found = (0..self.listeners.len()).filter_map(|l| Some((l, self.found(l, &name)?)));
                let found: Vec<(usize, Served)> = found.collect();
                let Some(narrowest) = found.iter().map(|(_, served)| served.rank).max() else { continue };
                let own = || found.iter().filter(|(_, served)| served.rank == narrowest);
                let guarded = |(l, served): &(usize, Served)| {
                    *l == i || !served.relayed && !is_weaker(rule(&self.listeners[*l], &name), auth)
                };
                let open = |(l, served): &&(usize, Served)| {
                    let weaker = served.relayed || is_weaker(rule(&self.listeners[*l], &name), auth);
                    weaker && !self.servers[served.host as usize].is_empty()
                };
                let (false, Some((open, served))) = (own().any(guarded), own().find(open)) else { continue };
                let (here, there) = (&listener.written, &self.listeners[*open].written);
                let message = match (served.relayed, rule(&self.listeners[*open], &name)) {
                    (true, _) => format!(
                        "the host of \"{}\" is only relayed (passthrough), on listener {there}: the gateway cannot ask \
                         clients for a certificate there",
                        at.value
                    ),
                    (false, None) => format!(
                        "the host of \"{}\" is served only on listener {there}, which does not require this certificate",
                        at.value
                    ),
                    (false, Some(_)) => format!(
                        "the host of \"{}\" is served only on listener {there}, which accepts certificates that this listener refuses",
                        at.value
                    ),
                };
                let help = format!(
                    "add \"{here}\" to the host's \"listeners\" and remove \"{there}\" from them, or remove the name \
                     from \"for\""
                );
                self.sink.error(&at.span, message, Some(help));
            }
        }
    }

    /// A wider host must not relay to the servers of one that needs a certificate: a relayed client chooses the host.
    fn check_relays(&self, guard: usize, own: Served, name: &str, reported: &mut BTreeSet<u32>) {
        for (index, host) in (0..).zip(&self.hosts.all) {
            if !matches!(host.action, Action::Passthrough { .. }) {
                continue;
            }
            let by_protocol = |target: &Target| target.protocols.iter().any(|rule| rule.host == index);
            let at_listener = |at: &At<NamePattern>| {
                let found = |target: &Target| target.hosts.get(&at.value) == Some(&index) || by_protocol(target);
                self.targets.iter().position(found)
            };
            for at in &host.names {
                let Some(listener) = at_listener(at) else { continue };
                let relayed = Served { host: index, rank: at.value.rank(), relayed: true };
                // A client chooses its protocol: with `alpn`, the host's own name is such a way, too.
                let chosen = || {
                    by_protocol(&self.targets[listener])
                        && at.value.matches(name)
                        && relayed.rank == own.rank
                        && !self.servers[index as usize].is_disjoint(&self.servers[own.host as usize])
                };
                if (self.is_way_to(relayed, own) || chosen()) && reported.insert(index) {
                    let (here, there) = (&self.listeners[listener].written, &self.listeners[guard].written);
                    let message = format!(
                        "\"{}\" needs a client certificate on listener {there}, but listener {here} relays \"{}\" to the same \
                         server (passthrough): the gateway cannot ask for a certificate there",
                        shown(name),
                        at.value
                    );
                    let help =
                        "relay to other servers, or replace \"passthrough\" with \"to\" or \"upstream\"".to_owned();
                    self.sink.error(&at.span, message, Some(help));
                }
            }
        }
    }

    /// `is_wider`: a wider host than the protected one is the way around, as it has the same servers.
    fn report(&self, index: usize, listener: &Draft, guard: &Draft, name: &str, is_wider: bool) {
        let Some(at) = self.place(index, name) else { return };
        let shown = shown(name);
        let (here, there) = (&listener.written, &guard.written);
        let (how, instead) = match is_wider {
            true => (
                format!(
                    ": on {here}, the host \"{}\" gets the requests for \"{shown}\" and forwards them to the same \
                     server",
                    at.value
                ),
                "give this host other servers, ",
            ),
            false => (String::new(), ""),
        };
        let (message, help) = match (&listener.tls, rule(listener, name)) {
            (None, _) => (
                format!(
                    "\"{shown}\" needs a client certificate on listener {there}, but is also served on {here}, without TLS"
                ),
                format!(
                    "remove \"{here}\" from \"listeners\", or remove \"listeners\": without it, listener {here} redirects \
                     clients to https://"
                ),
            ),
            (Some(_), None) => (
                format!("\"{shown}\" needs a client certificate on listener {there}, but not on listener {here}{how}"),
                format!(
                    "{instead}set listeners = [\"{there}\"] for this host, or add the same client_auth to listener {here}"
                ),
            ),
            (Some(_), Some(_)) => (
                format!("listener {here} accepts certificates for \"{shown}\" that listener {there} refuses{how}"),
                format!(
                    "{instead}set listeners = [\"{there}\"] for this host, or write the same client_auth for both listeners"
                ),
            ),
        };
        self.sink.error(&at.span, message, Some(help));
    }
}

/// A name as a user would write one: of those that stand for a pattern, the labels are none of a host name.
fn shown(name: &str) -> String {
    match name {
        "?" => "*".to_owned(),
        _ => name.replace("?.?.", "b.a.").replace("?.", "a."),
    }
}

/// A `client_auth` for names whose connections are relayed would look like a rule, and be none.
fn check_relayed(sink: &Sink, listeners: &[Draft], targets: &[Target], hosts: &Hosts) {
    for (listener, target) in listeners.iter().zip(targets) {
        for at in listener.tls.iter().flat_map(|tls| &tls.places) {
            let host = target.hosts.find(&at.value.sample());
            if host.is_some_and(|host| matches!(hosts.action(*host), Action::Passthrough { .. })) {
                let message = format!(
                    "connections for \"{}\" are relayed (passthrough), so the gateway cannot ask for a certificate",
                    at.value
                );
                let help = "remove the name from \"for\", or serve its host with \"to\" or \"upstream\"".to_owned();
                sink.error(&at.span, message, Some(help));
            }
        }
    }
}

/// A rule about client certificates is for clients that are asked for one. If no listener asks at all, that is an error. If clients
/// are asked only under the names of other hosts, it is a warning: such a host refuses too many clients, and never too few.
fn check_asked(sink: &Sink, listeners: &[Draft], targets: &[Target], hosts: &Hosts) {
    if hosts.all.iter().all(|host| host.certificates.is_none()) {
        return;
    }
    let is_asked = listeners.iter().any(Draft::asks_for_certificates);
    let names: Vec<String> = groups(all_patterns(listeners, targets)).iter().map(NamePattern::sample).collect();
    let mut asked = BTreeSet::new();
    for (listener, target) in listeners.iter().zip(targets) {
        let names = names.iter().filter(|name| listener.asks_under(name));
        asked.extend(names.filter_map(|name| target.hosts.find(name).copied()));
    }
    for (index, host) in (0..).zip(&hosts.all) {
        let Some((key, span)) = &host.certificates else { continue };
        let refuses = if *key == r::allow_certificate.key { "refuses every client" } else { "refuses no client" };
        let asks = "add client_auth = { mode = \"optional\", ca = \"clients.pem\" } to [listener.tls]";
        if !is_asked {
            let message = format!("\"{key}\" {refuses}: no listener asks for client certificates");
            sink.error(span, message, Some(asks.to_owned()));
        } else if !asked.contains(&index) && !hosts.incomplete {
            let message = format!(
                "\"{key}\" {refuses}: no listener asks for client certificates under the names of the host \"{}\"",
                host.label
            );
            let help = format!("{asks} of a listener of this host, or add its names to \"for\" of client_auth");
            sink.warn(span, message, Some(help));
        }
    }
}

/// `*.example.com` was once for names of any depth: warns where clients may notice that it is for one label.
fn warn_one_label(sink: &Sink, listeners: &[Draft], targets: &[Target], hosts: &Hosts) {
    for (listener, target) in listeners.iter().zip(targets) {
        for (pattern, host) in target.hosts.iter() {
            let NamePattern::OneLabel(suffix) = &pattern else { continue };
            if target.hosts.get(&NamePattern::AnyDepth(suffix.clone())).is_some() {
                continue;
            }
            // Names below its own that no narrower host takes, and that clients have had a certificate for.
            let certificates = listener.tls.iter().flat_map(|t| &t.policies).take(1);
            let certificates = certificates.flat_map(|p| p.identities.names.iter().map(|(c, _)| c.sample()));
            let lost = |name: &String| {
                let before = name.strip_suffix(&**suffix).and_then(|rest| rest.strip_suffix('.'));
                let now = target.hosts.find_pattern(name);
                before.is_some_and(|labels| labels.contains('.'))
                    && now.is_none_or(|(p, now)| p.rank() < pattern.rank() && now != host)
            };
            let any = NamePattern::AnyDepth(suffix.clone()).sample();
            let now = target.hosts.find(&any);
            let refused =
                now.is_none_or(|h| matches!(hosts.action(*h), Action::Respond { status, .. } if *status >= 400));
            let noticed = match listener.tls {
                Some(_) if refused => certificates.into_iter().any(|name| lost(&name)),
                _ => lost(&any),
            };
            let (true, Some(at)) = (noticed, hosts.place(*host, &pattern)) else { continue };
            let what = match target.hosts.find_pattern(&any) {
                Some((wider, _)) => format!("the host \"{wider}\" gets requests for names such as \"b.a.{suffix}\""),
                None => format!("requests for names such as \"b.a.{suffix}\" get 404"),
            };
            let message = format!("\"{pattern}\" does not match names with more labels: {what}");
            let help = format!(
                "\"*\" stands for one label: if this host is also for names with more labels, write \"**.{suffix}\""
            );
            sink.warn(&at.span, message, Some(help));
        }
    }
}
