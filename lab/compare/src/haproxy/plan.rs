//! The requests that a configuration of HAProxy asks for.

use super::acl::{Named, Term, condition, may_hold, must_hold, named, outcomes};
use super::{Proxy, binds, proxies, quic_binds, server_address, socket};
use crate::draft::{Behaviour, Chosen, Draft, Handshakes, Listener, Over, Plan, Shown};
use crate::files::CREDENTIALS;
use crate::nginx::Abilities;
use crate::samples;
use crate::tree::{Node, Place, Scope};
use crate::words::is_dns_name;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most pairs of a host and a path at one listener.
const MAX_PAIRS: usize = 400;
/// Most pairs that are tried over HTTP/3.
const MAX_HTTP3: usize = 40;

/// What a configuration asks to be tried.
pub fn plan(tree: &[Node], abilities: &Abilities) -> Plan {
    let mut plan = Plan::default();
    let tree = &with_samples(tree);
    let all = proxies(tree);
    for proxy in &all {
        let servers = proxy.section.inner().iter().filter(|n| matches!(n.name(), "server" | "server-template"));
        let at = |n: &Node| if n.name() == "server" { 2 } else { 3 };
        let words: Vec<&str> = servers.map(|n| n.word(at(n))).collect();
        let addresses: Vec<_> = words.iter().filter_map(|w| server_address(w)).collect();
        let sockets: Vec<String> = words.iter().filter_map(|w| socket(w)).collect();
        plan.servers.extend(&addresses);
        plan.groups.push(addresses.iter().map(ToString::to_string).chain(sockets.iter().cloned()).collect());
        plan.sockets.extend(sockets);
        plan.http2_servers |= proxy.lines().any(|n| n.after("alpn").is_some_and(|a| a.contains("h2")));
        // A check may have a port of its own.
        let checks = proxy.lines().filter(|n| matches!(n.name(), "server" | "default-server"));
        plan.ports.extend(checks.filter_map(|n| n.after("port")?.parse::<u16>().ok()));
    }
    let global = globals(tree);
    for proxy in all.iter().filter(|p| matches!(p.section.name(), "frontend" | "listen")) {
        Frontend::new(proxy, &all).add(&mut plan, &global, abilities);
    }
    plan
}

/// The configuration with samples in the place of variables that always have the same one.
fn with_samples(tree: &[Node]) -> Vec<Node> {
    let mut samples: BTreeMap<String, Option<String>> = BTreeMap::new();
    for node in tree.iter().flat_map(Node::inner) {
        let Some(name) = node.word(1).strip_prefix("set-var(").and_then(|n| n.strip_suffix(')')) else { continue };
        let sample = (node.words.len() == 3).then(|| node.word(2).to_owned());
        samples
            .entry(name.to_owned())
            .and_modify(|s| *s = s.take().filter(|s| sample.as_ref() == Some(s)))
            .or_insert(sample);
    }
    let mut out = tree.to_vec();
    for word in out.iter_mut().filter_map(|n| n.block.as_mut()).flatten().flat_map(|n| n.words.iter_mut()) {
        let found = samples.iter().find_map(|(name, sample)| {
            let rest = word.strip_prefix(&format!("var({name})"))?;
            Some(format!("{}{rest}", sample.as_ref()?))
        });
        if let Some(found) = found {
            *word = found;
        }
    }
    out
}

/// What `global` says of TLS, and its lines.
fn globals(tree: &[Node]) -> (Chosen, BTreeSet<Place>) {
    let (mut says, mut lines) = (Chosen::default(), BTreeSet::new());
    for node in tree.iter().filter(|n| n.name() == "global").flat_map(|n| n.inner()) {
        match node.name() {
            "ssl-default-bind-options" => says.versions = true,
            "ssl-default-bind-ciphers" | "ssl-default-bind-ciphersuites" => says.suites = true,
            "ssl-default-bind-curves" => says.groups = true,
            n if n.starts_with("ssl-") || n.starts_with("tune.ssl") => {}
            _ => continue,
        }
        lines.insert(node.place.clone());
    }
    (says, lines)
}

/// A rule with its condition; `None`: it has none.
struct Rule<'n> {
    node: &'n Node,
    condition: Option<Vec<Vec<Term>>>,
}

impl Rule<'_> {
    /// Whether it can apply to a request, as far as that is known here.
    fn may_apply(&self, draft: &Draft) -> bool {
        let Some(condition) = &self.condition else { return true };
        match self.node.words.iter().any(|w| w == "unless") {
            true => !must_hold(condition, draft),
            false => may_hold(condition, draft),
        }
    }
}

const RULES: &[&str] =
    &["http-request", "http-response", "http-after-response", "redirect", "use_backend", "tcp-request", "use-server"];

fn rules<'n>(proxy: &Proxy<'n>, acls: &Named<'n>) -> Vec<Rule<'n>> {
    let lines = proxy.lines().filter(|n| RULES.contains(&n.name()));
    lines.map(|node| Rule { node, condition: condition(&node.words, acls) }).collect()
}

struct Frontend<'p, 'n> {
    proxy: &'p Proxy<'n>,
    all: &'p [Proxy<'n>],
    rules: Vec<Rule<'n>>,
    acls: Named<'n>,
}

impl<'p, 'n> Frontend<'p, 'n> {
    fn new(proxy: &'p Proxy<'n>, all: &'p [Proxy<'n>]) -> Self {
        let acls = named(proxy.lines());
        Self { proxy, all, rules: rules(proxy, &acls), acls }
    }

    fn backend(&self, name: &str) -> Option<&'p Proxy<'n>> {
        self.all.iter().find(|p| p.section.word(1) == name && p.section.name() != "frontend")
    }

    /// The lines that take part in the answer to a request, with those of the back-ends that it may reach.
    fn scope(&self, draft: &Draft) -> Scope {
        let mut out = BTreeSet::new();
        self.proxy.scope(&mut out);
        // Rules that cannot hold have no part in it.
        let mut reached: Vec<&str> = self.proxy.last("default_backend").map(|n| n.word(1)).into_iter().collect();
        for rule in &self.rules {
            if !rule.may_apply(draft) && rule.node.place != draft.place {
                out.remove(&rule.node.place);
            } else if rule.node.name() == "use_backend" {
                reached.push(rule.node.word(1));
            }
        }
        for proxy in reached.into_iter().filter_map(|name| self.backend(name)) {
            proxy.scope(&mut out);
            let acls = named(proxy.lines());
            for rule in rules(proxy, &acls) {
                if !rule.may_apply(draft) && rule.node.place != draft.place {
                    out.remove(&rule.node.place);
                }
            }
        }
        Arc::new(out)
    }

    fn push(&self, plan: &mut Plan, mut draft: Draft) {
        draft.scope = self.scope(&draft);
        plan.push(draft);
    }

    fn add(&self, plan: &mut Plan, global: &(Chosen, BTreeSet<Place>), abilities: &Abilities) {
        let is_tcp = self.proxy.is_tcp();
        let asks_sni = self.proxy.lines().any(|n| n.words.iter().any(|w| w.contains("ssl_sni")));
        for node in self.proxy.section.all("bind") {
            let options = node.words.get(2..).unwrap_or_default();
            let has = |word: &str| options.iter().any(|w| w == word);
            for bound in binds(node.word(1)) {
                let Some((address, bound)) = bound else {
                    if quic_binds(node.word(1)).is_empty() {
                        plan.skip(&node.place, "a listener at a Unix socket, which the import does not translate");
                    }
                    continue;
                };
                let listener = Listener {
                    address,
                    bound,
                    tls: has("ssl") || (is_tcp && asks_sni),
                    quic: false,
                    http2: node.after("alpn").or(node.after("proto")).is_some_and(|a| a.contains("h2")),
                    proxy: has("accept-proxy"),
                    hop: None,
                    place: node.place.clone(),
                };
                if !plan.listeners.iter().any(|l| l.address == address) {
                    plan.listeners.push(listener.clone());
                }
                self.listener(&listener, node, plan);
                if has("ssl") && address.is_ipv4() {
                    self.handshakes(&listener, node, global, plan);
                }
            }
            self.quic(node, abilities, plan);
        }
    }

    /// Requests over HTTP/3, to an address that has TLS over TCP, too: the translation has both at one listener.
    fn quic(&self, node: &Node, abilities: &Abilities, plan: &mut Plan) {
        for (address, bound) in quic_binds(node.word(1)) {
            let beside = |n: &Node| {
                n.words.iter().any(|w| w == "ssl") && binds(n.word(1)).iter().flatten().any(|(a, _)| *a == address)
            };
            if !self.proxy.section.all("bind").any(beside) {
                plan.skip(&node.place, "HTTP/3 without TLS over TCP at the same address");
                continue;
            }
            if !abilities.http3 {
                let why = "HTTP/3 of this HAProxy, which does not support it; the requests that Sealane gets over HTTP/3 are sent to \
                           HAProxy over TCP with TLS, and the responses are compared";
                plan.skip(&node.place, why);
            }
            let place = node.place.clone();
            let listener =
                Listener { address, bound, tls: true, quic: true, http2: false, proxy: false, hop: None, place };
            let base = Draft::new(&listener, "unknown.compare.invalid", &node.place, &Scope::default());
            let base = Draft { over: Over::Http3, ..base };
            let (hosts, paths) = self.dimensions();
            self.push(plan, base.clone());
            let pairs = hosts.iter().flat_map(|h| paths.iter().map(move |p| (h, p))).take(MAX_HTTP3);
            for (host, path) in pairs {
                self.push(plan, Draft { host: host.clone(), ..base.clone().at(path) });
            }
            for path in paths.iter().take(MAX_HTTP3) {
                self.push(plan, Draft { method: "POST".to_owned(), content: 3, ..base.clone().at(path) });
            }
        }
    }

    /// Whether a server that it may reach is asked over HTTP/2.
    fn reaches_h2(&self) -> bool {
        let names =
            self.proxy.lines().filter(|n| matches!(n.name(), "use_backend" | "default_backend")).map(|n| n.word(1));
        let all = names.filter_map(|name| self.backend(name)).chain([self.proxy]);
        all.flat_map(|p| p.lines())
            .any(|n| n.name() == "server" && (n.after("proto") == Some("h2") || n.after("alpn") == Some("h2")))
    }

    /// Hosts and paths that the ACLs of this section and of its back-ends name.
    fn dimensions(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let (mut hosts, mut paths) = (BTreeSet::new(), BTreeSet::from(["/".to_owned()]));
        let listener = Listener {
            address: ([0, 0, 0, 0], 0).into(),
            bound: None,
            tls: true,
            quic: false,
            http2: false,
            proxy: false,
            hop: None,
            place: self.proxy.section.place.clone(),
        };
        let empty = Draft::new(&listener, "", &listener.place, &Scope::default());
        let mut see = |drafts: Vec<Draft>| {
            for draft in drafts {
                if !draft.host.is_empty() {
                    hosts.insert(draft.host);
                }
                paths.insert(draft.path);
            }
        };
        for rule in &self.rules {
            if let Some(condition) = &rule.condition {
                see(outcomes(condition, &empty).held);
            }
        }
        for test in self.acls.values().flatten().flatten() {
            see(test.requests(&empty, true));
        }
        (hosts, paths)
    }

    fn listener(&self, listener: &Listener, bind: &Node, plan: &mut Plan) {
        let section = &self.proxy.section.place;
        // Where nothing else is spoken, all requests are over HTTP/2.
        let spoken = bind.after("alpn").or(bind.after("proto")).unwrap_or_default();
        let over = if listener.http2 && !spoken.contains("http/1") { Over::Http2 } else { Over::Http1 };
        let base = Draft::new(listener, "unknown.compare.invalid", section, &Scope::default());
        let base = Draft { over, ..base };
        self.push(plan, base.clone());
        if listener.http2 && over == Over::Http1 {
            self.push(plan, Draft { over: Over::Http2, ..base.clone() });
        }
        if listener.address.is_ipv6() && plan.listeners.iter().any(|l| l.address.is_ipv4()) {
            return;
        }
        if bind.words.iter().any(|w| w == "verify") {
            for shown in [Shown::Known, Shown::Stranger] {
                self.push(plan, Draft { shown, place: bind.place.clone(), ..base.clone() });
            }
        }
        for (line, tests) in self.proxy.lines().filter(|n| n.name() == "acl").map(|n| (n, self.acls.get(n.word(1)))) {
            for test in tests.into_iter().flatten() {
                let Some(test) = test else {
                    plan.skip(&line.place, "no request is made for its criterion");
                    continue;
                };
                for wanted in [true, false] {
                    for draft in test.requests(&base, wanted) {
                        self.push(plan, Draft { place: line.place.clone(), ..draft });
                    }
                }
            }
        }
        // Where each back-end is reached.
        let mut reached: BTreeMap<&str, Draft> = BTreeMap::new();
        for rule in &self.rules {
            let held = self.rule(rule, &base, plan);
            if rule.node.name() == "use_backend" {
                if let Some(draft) = held {
                    reached.entry(rule.node.word(1)).or_insert(draft);
                } else if rule.node.word(1).contains('%') {
                    plan.skip(&rule.node.place, "its back-end has a name that is made from the request");
                }
            }
        }
        match self.proxy.last("default_backend") {
            Some(node) => drop(reached.entry(node.word(1)).or_insert(base.clone())),
            None if self.proxy.section.name() == "listen" => {
                self.shapes(&base, plan);
            }
            None => {}
        }
        for (name, draft) in reached {
            let Some(proxy) = self.backend(name) else { continue };
            let draft = Draft { place: proxy.section.place.clone(), ..draft };
            self.shapes(&draft, plan);
            let acls = named(proxy.lines());
            for rule in rules(proxy, &acls) {
                self.rule(&rule, &draft, plan);
            }
        }
        // What no rule has asked for by itself.
        let (hosts, paths) = self.dimensions();
        let pairs = hosts.iter().flat_map(|h| paths.iter().map(move |p| (h, p))).take(MAX_PAIRS);
        for (host, path) in pairs {
            self.push(plan, Draft { host: host.clone(), ..base.clone().at(path) });
        }
        if let Some(host) = hosts.iter().next() {
            let base = Draft { host: host.clone(), ..base.clone() };
            self.push(plan, Draft { host: host.to_ascii_uppercase(), ..base.clone() });
            self.push(plan, Draft { host: format!("{host}:{}", listener.address.port()), ..base });
        }
    }

    /// Methods, and what a server may answer.
    fn shapes(&self, draft: &Draft, plan: &mut Plan) {
        self.push(plan, draft.clone());
        for method in ["HEAD", "POST", "PUT", "DELETE", "OPTIONS"] {
            let content = if matches!(method, "POST" | "PUT") { 3 } else { 0 };
            self.push(plan, Draft { method: method.to_owned(), content, ..draft.clone() });
        }
        for behaviour in [Behaviour::Redirect, Behaviour::Error, Behaviour::Missing] {
            self.push(plan, Draft { behaviour, ..draft.clone() });
        }
        self.push(plan, draft.clone().with("X-Forwarded-For", "10.1.2.3"));
        self.push(plan, draft.clone().at(&format!("{}?q=1", draft.path)));
        if self.reaches_h2() {
            let call = draft.clone().grpc(draft.over);
            self.push(plan, Draft { behaviour: Behaviour::Missing, ..call.clone() });
            self.push(plan, call);
        }
    }

    /// Tries a rule; returns a request for which it holds.
    fn rule(&self, rule: &Rule<'_>, base: &Draft, plan: &mut Plan) -> Option<Draft> {
        let node = rule.node;
        let base = Draft { place: node.place.clone(), ..base.clone() };
        let mut held = vec![base.clone()];
        if let Some(condition) = &rule.condition {
            let out = outcomes(condition, &base);
            if out.unknown {
                plan.skip(&node.place, "no request is made for a part of its condition");
            }
            out.missed.into_iter().for_each(|d| self.push(plan, d));
            held = out.held;
        }
        held.iter().cloned().for_each(|d| self.push(plan, d));
        let first = held.into_iter().next()?;
        let argument = node.word(2);
        match (node.word(1), argument) {
            ("set-header" | "add-header" | "del-header" | "replace-header" | "replace-value", name)
                if !name.eq_ignore_ascii_case("host") && node.name() == "http-request" =>
            {
                self.push(plan, first.clone().with(name, "from-the-client"));
            }
            ("set-header" | "add-header" | "del-header" | "replace-header" | "replace-value", name)
                if node.name() != "http-request" =>
            {
                self.push(plan, Draft { served: vec![name.to_owned()], ..first.clone() });
            }
            ("replace-path" | "replace-uri" | "replace-pathq", pattern) => match samples::path_regex(pattern, false) {
                Some(paths) => paths.iter().for_each(|p| self.push(plan, first.clone().at(p))),
                None => plan.skip(&node.place, "its regular expression has parts for which no samples are made"),
            },
            ("auth", _) => {
                for value in [CREDENTIALS, "Basic Og=="] {
                    self.push(plan, first.clone().with("Authorization", value));
                }
            }
            _ => {}
        }
        Some(first)
    }

    fn handshakes(&self, listener: &Listener, bind: &Node, global: &(Chosen, BTreeSet<Place>), plan: &mut Plan) {
        let (hosts, _) = self.dimensions();
        let mut names: Vec<Option<String>> =
            hosts.into_iter().filter(|h| is_dns_name(h) && h.contains('.')).map(Some).collect();
        names.extend([Some("unknown.compare.invalid".to_owned()), None]);
        names.dedup();
        let has = |words: &[&str]| bind.words.iter().any(|w| words.contains(&w.as_str()));
        let chosen = Chosen {
            versions: global.0.versions || has(&["ssl-min-ver", "ssl-max-ver", "no-tlsv12", "no-tlsv13"]),
            suites: global.0.suites || has(&["ciphers", "ciphersuites"]),
            groups: global.0.groups || has(&["curves", "ecdhe"]),
            alpn: has(&["alpn"]),
        };
        let mut lines = global.1.clone();
        lines.insert(bind.place.clone());
        plan.handshakes.push(Handshakes { listener: listener.clone(), names, chosen, scope: Arc::new(lines) });
    }
}
