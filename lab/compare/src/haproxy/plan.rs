//! The requests that a configuration of HAProxy asks for.

use super::acl::{Match, Named, Test, named, outcomes};
use super::certificates::{Bases, Listed};
use super::checks::Checks;
use super::lists::Lists;
use super::rules::{RULES, Rule, rules};
use super::{Proxy, binds, proxies, quic_binds, server_address, socket};
use crate::claims::{Trusted, claimed, rotating};
use crate::draft::{Behaviour, Chosen, Draft, Handshakes, Listener, Over, Plan, Shown, Times, is_sendable};
use crate::files::CREDENTIALS;
use crate::nginx::Abilities;
use crate::samples;
use crate::tree::{Node, Place, Scope};
use crate::words::{Named as Names, is_dns_name};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Most pairs of a host and a path at one listener.
const MAX_PAIRS: usize = 400;
/// Most pairs that are tried over HTTP/3.
const MAX_HTTP3: usize = 40;
/// Longest word with its variables replaced, in bytes.
const MAX_WORD: usize = 16 << 10;
/// Most networks of one condition that are claimed.
const MAX_NETWORKS: usize = 20;
/// Most keys of a map that are tried at one listener.
const MAX_KEYS: usize = 200;

/// What a configuration asks to be tried.
pub fn plan(tree: &[Node], abilities: &Abilities, lists: &Lists) -> Plan {
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
        let group: Vec<String> = addresses.iter().map(ToString::to_string).chain(sockets.iter().cloned()).collect();
        plan.backends.entry(proxy.section.word(1).to_owned()).or_default().extend(group.clone());
        plan.groups.push(group);
        plan.sockets.extend(sockets);
        plan.http2_servers |= proxy.lines().any(|n| n.after("alpn").is_some_and(|a| a.contains("h2")));
    }
    for proxy in all.iter().filter(|p| p.section.name() != "frontend") {
        let checks = Checks::of(proxy);
        // A check may have an address of its own.
        plan.servers.extend(checks.addresses);
        plan.checks.extend(checks.http);
        plan.dialogues.extend(checks.dialogues);
        if let Some(place) = checks.silent {
            let why =
                "HAProxy sends no request in this health check, so its servers would be down: the copy only connects";
            plan.skip(&place, why);
        }
        for place in checks.unanswered {
            plan.skip(&place, "this part of a health check: no answer of a server is known that satisfies it");
        }
    }
    let global = globals(tree);
    let bases = Bases::of(tree, lists.folder());
    let names: BTreeSet<String> = Names::of(tree).dns_names().cloned().collect();
    for proxy in all.iter().filter(|p| matches!(p.section.name(), "frontend" | "listen")) {
        let listed = proxy.section.all("bind").map(|n| Listed::of(n, &bases, &names)).collect();
        let mut frontend = Frontend::new(proxy, &all, lists, listed);
        frontend.chained = frontend.chain();
        frontend.add(&mut plan, &global, abilities);
    }
    unasked(&all, &mut plan);
    plan
}

/// Notes what has got no request.
fn unasked(all: &[Proxy<'_>], plan: &mut Plan) {
    let noted: BTreeSet<Place> = plan.untried.iter().map(|u| u.place.clone()).collect();
    for proxy in all {
        let section = &proxy.section.place;
        match (plan.asked.contains(section), proxy.section.name()) {
            (true, _) => {
                for node in proxy.lines().filter(|n| RULES.contains(&n.name()) || n.name() == "acl") {
                    // A rule without a condition is for all requests of its section.
                    let is_free = node.name() != "acl" && !node.words.iter().any(|w| w == "if" || w == "unless");
                    if !is_free && !plan.asked.contains(&node.place) && !noted.contains(&node.place) {
                        plan.unasked(&node.place, "no request is known that it applies to");
                    }
                }
            }
            // A section that only has a table is not for requests.
            (false, "backend") if proxy.section.inner().iter().all(|n| matches!(n.name(), "stick-table" | "peers")) => {
            }
            (false, "backend") => plan.unasked(section, "no request reaches this backend and its rules"),
            (false, _) => plan.unasked(section, "no client can reach this section"),
        }
    }
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
        for (name, sample) in &samples {
            let Some(sample) = sample else { continue };
            if let Some(rest) = word.strip_prefix(&format!("var({name})")) {
                *word = format!("{sample}{rest}");
            }
            let formatted = word.replace(&format!("%[var({name})"), &format!("%[{sample}"));
            if formatted.len() <= MAX_WORD {
                *word = formatted;
            }
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

struct Frontend<'p, 'n> {
    proxy: &'p Proxy<'n>,
    all: &'p [Proxy<'n>],
    rules: Vec<Rule<'n>>,
    acls: Named<'n>,
    lists: &'p Lists,
    /// What the lists of certificates of each `bind` say.
    listed: Vec<Listed>,
    /// The rules of back-ends, by name.
    behind: BTreeMap<&'n str, Vec<Rule<'n>>>,
    /// The frontends to which the servers of a section relay connections.
    chained: Vec<(&'n str, Frontend<'p, 'n>)>,
}

impl<'p, 'n> Frontend<'p, 'n> {
    fn new(proxy: &'p Proxy<'n>, all: &'p [Proxy<'n>], lists: &'p Lists, listed: Vec<Listed>) -> Self {
        let acls = named(proxy.lines(), lists);
        let others = || all.iter().filter(|p| p.section.name() != "frontend");
        let names: Vec<&str> = others().map(|p| p.section.word(1)).collect();
        let of = |p: &Proxy<'n>| rules(p, &named(p.lines(), lists), lists, &names);
        let mut behind = BTreeMap::new();
        for other in others() {
            let section: &'n Node = other.section;
            behind.entry(section.word(1)).or_insert_with(|| of(other));
        }
        Self { proxy, all, rules: rules(proxy, &acls, lists, &names), acls, lists, listed, behind, chained: Vec::new() }
    }

    /// Of a section that relays connections: the frontends of HAProxy itself to which it relays them, with the section that has the server.
    fn chain(&self) -> Vec<(&'n str, Self)> {
        let mut out = Vec::new();
        if !self.proxy.is_tcp() {
            return out;
        }
        for proxy in self.all {
            let lines = || proxy.section.all("server");
            let is_own = |n: &Node| {
                let bound: Vec<_> = binds(n.word(1)).into_iter().flatten().collect();
                let same = |a: SocketAddr| {
                    let here = |(to, ip): &(SocketAddr, Option<IpAddr>)| {
                        to.port() == a.port() && ip.map_or(a.ip().is_loopback(), |ip| ip == a.ip())
                    };
                    bound.iter().any(here)
                };
                lines().filter_map(|s| server_address(s.word(2))).any(same)
            };
            let others =
                self.all.iter().filter(|p| p.section.name() != "backend" && p.section.place != proxy.section.place);
            for other in others.filter(|p| p.section.all("bind").any(is_own)) {
                let section: &'n Node = proxy.section;
                out.push((section.word(1), Self::new(other, self.all, self.lists, Vec::new())));
            }
        }
        out
    }

    /// Who may name a client, if a rule says so.
    fn trusted(&self) -> Option<Trusted> {
        self.rules.iter().find_map(Rule::trusted)
    }

    /// Requests like one for which a rule holds, which claim other addresses.
    fn claims(&self, rule: &Rule<'_>, held: &Draft, plan: &mut Plan) {
        for network in rule.networks().take(MAX_NETWORKS) {
            claimed(held, network, self.trusted()).into_iter().for_each(|d| self.push(plan, d));
        }
        if rule.networks().nth(MAX_NETWORKS).is_some() {
            let why = format!("only the first {MAX_NETWORKS} networks are tried with a false X-Forwarded-For");
            plan.unasked(&rule.node.place, why);
        }
        if held.times != Times::Once {
            rotating(held, self.trusted()).into_iter().for_each(|d| self.push(plan, d));
        }
    }

    /// The back-ends that a rule may select for a request.
    fn selected(&self, rule: &Rule<'n>, draft: &Draft) -> Vec<String> {
        match rule.lookups.first() {
            Some(lookup) => lookup.backends(draft),
            None => vec![rule.node.word(1).to_owned()],
        }
    }

    fn backend(&self, name: &str) -> Option<&'p Proxy<'n>> {
        self.all.iter().find(|p| p.section.word(1) == name && p.section.name() != "frontend")
    }

    /// The lines that take part in the answer to a request, with those of the back-ends that it may reach.
    fn scope(&self, draft: &Draft) -> Scope {
        let mut out = BTreeSet::new();
        self.proxy.scope(&mut out);
        // Rules that cannot hold have no part in it.
        let mut reached: Vec<String> =
            self.proxy.last("default_backend").map(|n| n.word(1).to_owned()).into_iter().collect();
        for rule in &self.rules {
            if !rule.may_apply(draft) && rule.node.place != draft.place {
                out.remove(&rule.node.place);
            } else if rule.node.name() == "use_backend" {
                reached.extend(self.selected(rule, draft));
            }
        }
        for (name, proxy) in reached.iter().filter_map(|name| Some((name, self.backend(name)?))) {
            proxy.scope(&mut out);
            for rule in self.behind.get(name.as_str()).into_iter().flatten() {
                if !rule.may_apply(draft) && rule.node.place != draft.place {
                    out.remove(&rule.node.place);
                }
            }
        }
        // The frontend behind it answers.
        let own = self.proxy.section.word(1);
        for (_, other) in self.chained.iter().filter(|(name, _)| *name == own || reached.iter().any(|r| r == name)) {
            out.extend(other.scope(draft).iter().cloned());
        }
        Arc::new(out)
    }

    fn push(&self, plan: &mut Plan, mut draft: Draft) {
        draft.scope = self.scope(&draft);
        plan.push(draft);
    }

    /// The request as it has to be so that neither the section nor a back-end refuses it: with a password, with a certificate, from an
    /// address.
    fn admitted(&self, draft: &Draft, backend: Option<&str>) -> Draft {
        let mut out = draft.clone();
        if out.tls && self.listed.iter().any(|l| l.asks(&out.host)) {
            out.shown = Shown::Known;
        }
        let behind = backend.and_then(|name| self.behind.get(name)).into_iter().flatten();
        for rule in self.rules.iter().chain(behind) {
            if let Some(passing) = rule.passing(&out) {
                out = passing;
            }
        }
        out
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
                        plan.unasked(&node.place, "the import translates no listeners at Unix sockets");
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
                    hop: self.trusted().map(|t| t.inside).filter(|_| has("accept-proxy")),
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
                plan.unasked(&node.place, "HTTP/3: no listener serves TLS over TCP at this address");
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
        let is_h2 = |n: &Node| n.after("proto") == Some("h2") || n.after("alpn") == Some("h2");
        all.flat_map(|p| p.lines()).any(|n| matches!(n.name(), "server" | "default-server") && is_h2(n))
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
        for lookup in self.rules.iter().flat_map(|r| &r.lookups) {
            for key in lookup.keys().into_iter().take(MAX_KEYS) {
                see(lookup.test(&[key]).requests(&empty, true).into_iter().take(1).collect());
            }
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
        let verify = bind.after("verify").filter(|v| *v != "none");
        if verify.is_some() {
            for shown in [Shown::None, Shown::Known, Shown::Stranger] {
                self.push(plan, Draft { shown, place: bind.place.clone(), ..base.clone() });
            }
        }
        for host in self.listed.iter().flat_map(Listed::asking).filter(|_| listener.tls) {
            let base = Draft { host, place: bind.place.clone(), ..base.clone() };
            for shown in [Shown::None, Shown::Known, Shown::Stranger] {
                self.push(plan, Draft { shown, ..base.clone() });
            }
            // A connection for another name.
            self.push(plan, Draft { sni: Some("unknown.compare.invalid".to_owned()), ..base });
        }
        // Without a certificate, nothing else is tried.
        let shown = if verify == Some("required") { Shown::Known } else { Shown::None };
        let base = Draft { shown, ..base };
        for line in self.proxy.lines().filter(|n| n.name() == "acl") {
            let Some(test) = Test::read(line.words.get(2..).unwrap_or_default(), self.lists) else {
                plan.unasked(&line.place, "no request is made for its criterion");
                continue;
            };
            for wanted in [true, false] {
                for draft in test.requests(&base, wanted) {
                    self.push(plan, Draft { place: line.place.clone(), ..draft });
                }
            }
        }
        // HAProxy itself answers.
        for node in self.proxy.lines().filter(|n| n.name() == "monitor-uri" && !self.proxy.is_tcp()) {
            self.push(plan, Draft { place: node.place.clone(), ..base.clone().at(node.word(1)) });
        }
        // Where each back-end is reached.
        let mut reached: BTreeMap<String, Draft> = BTreeMap::new();
        for rule in &self.rules {
            let Some(held) = self.rule(rule, &base, plan) else { continue };
            let mut found = self.looked_up(rule, &held, plan);
            if rule.lookups.is_empty() && rule.why.is_none() {
                found.push((held, rule.node.word(1).to_owned()));
            }
            if rule.node.name() == "use_backend" {
                for (draft, name) in found {
                    if let Entry::Vacant(entry) = reached.entry(name) {
                        let draft = self.admitted(&draft, Some(entry.key()));
                        entry.insert(draft);
                    }
                }
            }
        }
        match self.proxy.last("default_backend") {
            Some(node) => {
                let name = node.word(1);
                reached.entry(name.to_owned()).or_insert_with(|| self.admitted(&base, Some(name)));
            }
            None if self.proxy.section.name() == "listen" => {
                self.shapes(&self.admitted(&base, None), plan);
            }
            None => {}
        }
        for (name, draft) in reached {
            let Some(proxy) = self.backend(&name) else { continue };
            let draft = Draft { place: proxy.section.place.clone(), ..draft };
            self.shapes(&draft, plan);
            for line in proxy.lines().filter(|n| n.name() == "acl") {
                match Test::read(line.words.get(2..).unwrap_or_default(), self.lists) {
                    Some(test) => [true, false].into_iter().flat_map(|w| test.requests(&draft, w)).for_each(|d| {
                        self.push(plan, Draft { place: line.place.clone(), ..d });
                    }),
                    None => plan.unasked(&line.place, "no request is made for its criterion"),
                }
            }
            for rule in self.behind.get(name.as_str()).into_iter().flatten() {
                if let Some(held) = self.rule(rule, &draft, plan) {
                    self.looked_up(rule, &held, plan);
                }
            }
        }
        // What no rule has asked for by itself.
        let (hosts, paths) = self.dimensions();
        if hosts.len() * paths.len() > MAX_PAIRS {
            let more = hosts.len() * paths.len() - MAX_PAIRS;
            plan.unasked(section, format!("{more} pairs of a host and a path that its rules name are not tried"));
        }
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
        // HAProxy removes Upgrade from a request with content before its rules apply; no client sends both.
        let upgrades = draft.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("upgrade"));
        for method in ["HEAD", "POST", "PUT", "DELETE", "OPTIONS"] {
            let content = if matches!(method, "POST" | "PUT") { 3 } else { 0 };
            if upgrades && content > 0 {
                continue;
            }
            self.push(plan, Draft { method: method.to_owned(), content, ..draft.clone() });
        }
        for behaviour in [Behaviour::Redirect, Behaviour::Error, Behaviour::Missing] {
            self.push(plan, Draft { behaviour, ..draft.clone() });
        }
        let retries = |p: &Proxy<'_>| {
            let by_status = |w: &String| w == "503" || w == "all-retryable-errors";
            p.lines().any(|n| n.name() == "retry-on" && n.words.iter().any(by_status))
        };
        if self.all.iter().any(|p| p.section.place == draft.place && retries(p)) {
            self.push(plan, Draft { behaviour: Behaviour::Unavailable, ..draft.clone() });
        }
        self.push(plan, draft.clone().with("X-Forwarded-For", "10.1.2.3"));
        self.push(plan, draft.clone().at(&format!("{}?q=1", draft.path)));
        let compresses = |proxy: &Proxy<'_>| proxy.lines().any(|n| n.name() == "compression");
        if compresses(self.proxy) || self.all.iter().any(|p| p.section.place == draft.place && compresses(p)) {
            self.push(plan, draft.clone().with("Accept-Encoding", "gzip"));
        }
        if self.reaches_h2() && !upgrades {
            let call = draft.clone().grpc(draft.over);
            self.push(plan, Draft { behaviour: Behaviour::Missing, ..call.clone() });
            self.push(plan, call);
        }
    }

    /// Tries the keys of maps, and values that are not in the map, with a request for which the rule holds. Returns requests with the
    /// back-ends that the map names for them.
    fn looked_up(&self, rule: &Rule<'n>, held: &Draft, plan: &mut Plan) -> Vec<(Draft, String)> {
        let place = &rule.node.place;
        if let Some(why) = &rule.why {
            plan.unasked(place, why.clone());
        }
        let mut out = Vec::new();
        let at_place = |d: Draft| Some(Draft { place: place.clone(), ..d }).filter(is_sendable);
        for lookup in &rule.lookups {
            let file = &lookup.map.file;
            let mut lost: Vec<&str> = Vec::new();
            for (at, (key, value)) in lookup.map.entries.iter().enumerate().take(MAX_KEYS) {
                let all: Vec<Draft> =
                    lookup.test(&[key]).requests(held, true).into_iter().filter_map(at_place).collect();
                let few = match lookup.map.how {
                    _ if at == 0 => all.len(),
                    Match::Domain | Match::End => 2,
                    _ => 1,
                };
                match all.first() {
                    Some(first) => out.push((first.clone(), lookup.backend(value))),
                    None => lost.push(key),
                }
                all.into_iter().take(few).for_each(|d| self.push(plan, d));
            }
            let every = lookup.test(&lookup.keys());
            let near = lookup.map.entries.first().map(|(key, _)| lookup.test(&[key]).requests(held, false));
            for draft in near.into_iter().flatten().filter(|d| every.holds(d) != Some(true)).filter_map(at_place) {
                if let (Some(false), Some(name)) = (every.holds(&draft), &lookup.map.default) {
                    out.push((draft.clone(), lookup.backend(name)));
                }
                self.push(plan, draft);
            }
            if let Some(first) = lost.first() {
                plan.unasked(place, format!("no request is known for {} keys of {file}, such as {first}", lost.len()));
            }
            if let Some(more) = lookup.map.entries.len().checked_sub(MAX_KEYS).filter(|n| *n > 0) {
                plan.unasked(place, format!("{more} of the {} keys of {file} are not tried", lookup.map.entries.len()));
            }
        }
        out
    }

    /// Tries a rule; returns a request for which it holds.
    fn rule(&self, rule: &Rule<'_>, base: &Draft, plan: &mut Plan) -> Option<Draft> {
        let node = rule.node;
        let base = Draft { place: node.place.clone(), ..base.clone() };
        let mut held = vec![base.clone()];
        if let Some(condition) = &rule.condition {
            let out = outcomes(condition, &base);
            if out.unknown {
                plan.unasked(&node.place, "no request is made for a part of its condition");
            }
            if let Some(why) = out.why {
                plan.unasked(&node.place, why);
            }
            for all in [&out.held, &out.missed] {
                let spelled = all.iter().find_map(|d| d.clone().spelled(&base));
                spelled.into_iter().for_each(|d| self.push(plan, d));
            }
            out.missed.into_iter().for_each(|d| self.push(plan, d));
            held = out.held;
        }
        held.iter().cloned().for_each(|d| self.push(plan, d));
        if node.name() == "use-server" {
            plan.unasked(&node.place, "which server of the group is chosen is not compared");
        }
        let first = held.into_iter().next()?;
        self.claims(rule, &first, plan);
        let argument = node.word(2);
        match (node.word(1), argument) {
            ("set-header" | "add-header" | "del-header" | "replace-header" | "replace-value", name)
                if !name.eq_ignore_ascii_case("host") && node.name() == "http-request" =>
            {
                let draft = match name.eq_ignore_ascii_case("upgrade") {
                    true => first.clone().with("Connection", "upgrade").with("Upgrade", "websocket"),
                    false => first.clone().with(name, "from-the-client"),
                };
                // A proxy that may name clients may not say this for HAProxy.
                if let Some(trusted) = self.trusted().filter(|_| !draft.proxy) {
                    self.push(plan, Draft { from: Some(trusted.inside), ..draft.clone() });
                }
                self.push(plan, draft);
            }
            ("set-header" | "add-header" | "del-header" | "replace-header" | "replace-value", name)
                if node.name() != "http-request" =>
            {
                self.push(plan, Draft { served: vec![name.to_owned()], ..first.clone() });
            }
            ("replace-path" | "replace-uri" | "replace-pathq", pattern) => match samples::path_regex(pattern, false) {
                Some(paths) => paths.iter().for_each(|p| self.push(plan, first.clone().at(p))),
                None => plan.unasked(&node.place, "its regular expression has parts for which no samples are made"),
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
        let listed = self.listed.iter().flat_map(|l| &l.names).map(|n| n.replacen('*', "a", 1));
        names.extend(listed.filter(|n| is_dns_name(n)).map(Some));
        names.sort();
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
        plan.handshakes.push(Handshakes {
            listener: listener.clone(),
            names,
            with_suites: Vec::new(),
            chosen,
            scope: Arc::new(lines),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::cases::place;

    fn node(line: u32, words: &str, block: Option<Vec<Node>>) -> Node {
        Node { place: place(line), words: words.split(' ').map(str::to_owned).collect(), block, from: None }
    }

    #[test]
    fn spellings_trusted_proxies_and_status_503_are_tried() {
        let frontend = vec![
            node(2, "mode http", None),
            node(3, "bind :80", None),
            node(4, "http-request set-src req.hdr(x-real-ip) if { src 10.20.0.0/16 }", None),
            node(5, "http-request set-header X-Forwarded-Host %[req.hdr(host)]", None),
            node(6, "http-request deny unless { req.hdr(X-Api-Key) -m found }", None),
            node(7, "default_backend b", None),
        ];
        let backend = |retry: &str| {
            vec![node(9, "mode http", None), node(10, retry, None), node(11, "server s 10.0.0.1:80", None)]
        };
        let drafts = |retry: &str| {
            let tree = [node(1, "frontend f", Some(frontend.clone())), node(8, "backend b", Some(backend(retry)))];
            plan(&tree, &Abilities::default(), &Lists::default()).drafts
        };
        let all = drafts("retry-on conn-failure 503");
        let has = |name: &str, is: &dyn Fn(&Draft) -> bool| {
            all.iter().any(|d| d.headers.iter().any(|(n, _)| n == name) && is(d))
        };
        assert!(has("X_Api_Key", &|d| d.spelled && d.place.line == 6), "{all:?}");
        assert!(!all.iter().any(|d| d.spelled && d.place.line != 6), "{all:?}");
        let is_trusted = |d: &Draft| d.from.is_some_and(|from| from.to_string().starts_with("10.20."));
        assert!(has("X-Forwarded-Host", &is_trusted) && has("X-Forwarded-Host", &|d| d.from.is_none()), "{all:?}");
        let unavailable = |all: &[Draft]| all.iter().any(|d| d.behaviour == Behaviour::Unavailable);
        assert!(unavailable(&all) && !unavailable(&drafts("retry-on conn-failure")));
    }

    #[test]
    fn conditions_on_addresses_are_tried_with_claims() {
        let frontend = vec![
            node(2, "mode http", None),
            node(3, "bind :80 accept-proxy", None),
            node(4, "tcp-request connection expect-proxy layer4 if { src 10.20.0.10 }", None),
            node(5, "http-request deny if { path_beg /staff/ } !{ src 10.0.0.0/8 }", None),
            node(6, "default_backend b", None),
        ];
        let backend = vec![node(8, "mode http", None), node(9, "server s 10.0.0.1:80", None)];
        let tree = [node(1, "frontend f", Some(frontend)), node(7, "backend b", Some(backend))];
        let plan = plan(&tree, &Abilities::default(), &Lists::default());
        let text = |address: Option<IpAddr>| address.map(|a| a.to_string()).unwrap_or_default();
        let claims: Vec<&Draft> = plan.drafts.iter().filter(|d| d.claims && d.place.line == 5).collect();
        assert!(claims.iter().all(|d| d.path.starts_with("/staff/")), "{claims:?}");
        let has = |is: &dyn Fn(&Draft) -> bool| claims.iter().any(|d| is(d));
        assert!(has(&|d| d.stranger && text(d.hop) == "10.20.0.11" && text(d.from) == "10.254.254.254"), "{claims:?}");
        let names = |d: &Draft| d.headers.iter().any(|(n, v)| n == "Forwarded" && v == "for=10.254.254.254");
        assert!(has(&|d| names(d) && text(d.hop) == "10.20.0.10" && text(d.from) == "11.254.254.254"), "{claims:?}");
    }
}
