//! The requests that one server of the configuration asks for.

use super::location::{Location, Matcher, locations, paths};
use super::naming::add_named;
use super::servers::Server;
use super::variables::{Wish, condition, grant, of_if, of_map};
use crate::claims::{Trusted, claimed, rotating};
use crate::difference::decoded;
use crate::draft::{Behaviour, Draft, FORWARDED, LANES, Listener, MAX_CONTENT, Over, Plan, Shown, Times};
use crate::files::CREDENTIALS;
use crate::samples;
use crate::tree::{Node, Place, Scope, walk};
use crate::words::{in_and_out, is_dns_name, size};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Directives that answer or refuse requests, or send them elsewhere: where none of them is, NGINX answers with files.
const ANSWERS: &[&str] = &[
    "return",
    "rewrite",
    "if",
    "internal",
    "allow",
    "deny",
    "satisfy",
    "auth_basic",
    "auth_request",
    "auth_jwt",
    "limit_except",
    "stub_status",
    "secure_link",
    "valid_referers",
    "empty_gif",
    "mirror",
];

/// Headers that no client sends, or that mean something to the connection.
const NOT_SENT: &[&str] = &[
    "host",
    "connection",
    "upgrade",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "content-length",
    "content-encoding",
    "expect",
    "authorization",
    "cookie",
];
/// Most values of variables that are tried at one location.
const MAX_WISHES: usize = 40;
/// Most networks of one condition that are claimed.
const MAX_NETWORKS: usize = 20;
/// Most requests that are sent at once.
const MAX_AT_ONCE: u64 = 300;

/// NGINX's own limit.
pub(super) const DEFAULT_CONTENT: u64 = 1 << 20;

/// Variables that have one value for all requests at a listener.
const OF_LISTENER: &[&str] = &["scheme", "https", "server_port"];

/// A request that asks for a WebSocket.
fn upgrade(draft: &Draft) -> Draft {
    draft.clone().with("Connection", "upgrade").with("Upgrade", "websocket")
}

/// One server with what it needs.
pub(super) struct Site<'s, 'n> {
    pub server: &'s Server<'n>,
    /// All servers.
    pub others: &'s [Server<'n>],
    pub locations: Vec<Location<'n>>,
    pub shared: &'s BTreeSet<Place>,
    pub nodes: &'s [&'n Node],
    pub wishes: &'s [(Place, Wish)],
}

/// The lines of a server that take part in the answer for a path.
pub(super) fn scope_of<'n>(
    server: &Server<'n>,
    others: &[Server<'n>],
    nodes: &[&'n Node],
    shared: &BTreeSet<Place>,
    path: &str,
) -> Scope {
    let mut found = Vec::new();
    // What is not understood is noted with the server's own requests.
    locations(server.node.inner(), &[], &mut found, &mut Plan::default());
    Site { server, others, locations: found, shared, nodes, wishes: &[] }.scope(path, None)
}

impl<'n> Site<'_, 'n> {
    /// The locations of which one takes a path.
    fn taking(&self, path: &str) -> Vec<&Location<'n>> {
        // Of several prefixes the longest takes the request.
        let length = |l: &&Location<'_>| match &l.matcher {
            Matcher::Prefix(p) if path.starts_with(p.as_str()) => p.len(),
            _ => usize::MAX,
        };
        let longest = self.locations.iter().map(|l| length(&l)).filter(|l| *l != usize::MAX).max();
        // An exact one ends the search.
        let bare = path.split('?').next().unwrap_or_default();
        let is_exact = |l: &Location<'_>| matches!(&l.matcher, Matcher::Exact(p) if p == bare);
        let exact = self.locations.iter().any(is_exact);
        let takes = |l: &&Location<'_>| {
            l.may_take(path)
                && (length(l) == usize::MAX || Some(length(l)) == longest)
                && (!exact || is_exact(l) || l.matcher == Matcher::Named)
        };
        self.locations.iter().filter(takes).collect()
    }

    /// Whether NGINX answers with files, whichever location takes a path.
    fn is_file(&self, path: &str) -> bool {
        let answers = |n: &Node| {
            let is_named = n.name() == "try_files" && n.words.last().is_some_and(|w| w.starts_with('@'));
            ANSWERS.contains(&n.name()) || n.name().ends_with("_pass") || n.name().contains("_by_") || is_named
        };
        // A rewrite of the server is for other paths, or redirects.
        let around = self.nodes.iter().copied().chain(self.server.node.inner()).filter(|n| n.name() != "rewrite");
        let path = decoded(path);
        let locations = self.taking(&path).into_iter().filter(|l| l.matcher != Matcher::Named);
        !locations.flat_map(|l| &l.chain).flat_map(|n| n.inner()).chain(around).any(answers)
    }

    /// Who may name a client, if the configuration says so.
    fn trusted(&self) -> Option<Trusted> {
        let all = self.server.node.inner().iter().chain(self.nodes.iter().copied());
        all.filter(|n| n.name() == "set_real_ip_from").find_map(|n| Trusted::of(n.word(1)))
    }

    /// The lines that take part in the answer for a path.
    fn scope(&self, path: &str, own: Option<&Location<'n>>) -> Scope {
        let mut out = self.shared.clone();
        let own_lines = |node: &Node, out: &mut BTreeSet<Place>| {
            out.insert(node.place.clone());
            node.inner().iter().filter(|n| n.name() != "location").for_each(|n| n.lines(out));
        };
        own_lines(self.server.node, &mut out);
        for location in self.taking(path).into_iter().chain(own) {
            location.chain.iter().for_each(|n| own_lines(n, &mut out));
        }
        // What these lines name: maps of variables, zones, groups of servers, and what those name.
        let mut text = String::new();
        let mut add = |n: &Node| {
            text.push_str(&n.words.join(" "));
            text.push('\n');
        };
        walk(std::slice::from_ref(self.server.node), &mut |n| {
            if out.contains(&n.place) {
                add(n);
            }
        });
        self.nodes.iter().filter(|n| out.contains(&n.place)).for_each(|n| add(n));
        add_named(self.nodes, text, &mut out);
        Arc::new(out)
    }

    /// A name by which this server is selected, and its line.
    fn names(&self) -> Vec<(String, Place)> {
        let mut out = Vec::new();
        for node in self.server.node.all("server_name") {
            for name in node.arguments() {
                let hosts = samples::host(name).unwrap_or_default();
                out.extend(hosts.into_iter().filter(|h| is_dns_name(h)).map(|h| (h, node.place.clone())));
            }
        }
        out.retain(|(name, _)| name != "_");
        if out.is_empty() {
            out.push(("unknown.compare.invalid".to_owned(), self.server.node.place.clone()));
        }
        out
    }

    /// Adds the requests to a plan.
    pub fn add(&mut self, plan: &mut Plan) {
        let mut own = Plan::default();
        self.derive(&mut own);
        // What a location for gRPC may take is a call, over HTTP/2 where the listener speaks it.
        let is_grpc = |d: &Draft| self.locations.iter().any(|l| l.is_grpc() && l.may_take(&d.path));
        for mut draft in own.drafts {
            draft.files = self.is_file(&draft.path);
            if !is_grpc(&draft) || draft.is_grpc() {
                plan.push(draft);
                continue;
            }
            let listener = self.server.listeners.iter().find(|l| l.address == draft.to && !l.quic);
            let over = match draft.over {
                Over::Http1 if listener.is_some_and(|l| l.http2) && draft.times == Times::Once => Over::Http2,
                over => over,
            };
            plan.push(draft.grpc(over));
        }
        own.untried.into_iter().for_each(|u| plan.unasked(&u.place, u.why));
    }

    /// Each location over HTTP/2 or HTTP/3, where a listener speaks it.
    fn versions(&self, base: &Draft, listener: &Listener, plan: &mut Plan) {
        let over = match (listener.quic, listener.http2 && listener.tls) {
            (true, _) => Over::Http3,
            (false, true) => Over::Http2,
            (false, false) => return,
        };
        let base = Draft { over, ..base.clone() };
        plan.push(base.clone());
        for location in &self.locations {
            let Some(path) = paths(location).into_iter().next() else { continue };
            let (scope, place) = (self.scope(&path, Some(location)), location.node().place.clone());
            let draft = Draft { place, scope, ..base.clone().at(&path) };
            plan.push(Draft { method: "POST".to_owned(), content: 3, ..draft.clone() });
            plan.push(draft.clone().with("X-Forwarded-For", FORWARDED));
            plan.push(draft);
        }
    }

    fn derive(&self, plan: &mut Plan) {
        let names = self.names();
        let listeners = &self.server.listeners;
        for listener in listeners {
            let root = self.scope("/", None);
            // IPv6 beside IPv4 at the same port is tried once.
            let twin = listener.address.is_ipv6()
                && listeners.iter().any(|l| l.address.is_ipv4() && l.address.port() == listener.address.port());
            let some = self.locations.iter().find_map(|l| paths(l).into_iter().find(|p| p != "/"));
            for (at, (name, place)) in names.iter().enumerate().filter(|_| !listener.quic) {
                let draft = Draft::new(listener, name, place, &root);
                plan.push(draft.clone());
                if twin {
                    break;
                }
                if let Some(path) = &some {
                    plan.push(Draft { scope: self.scope(path, None), ..draft.clone().at(path) });
                }
                if at == 0 {
                    plan.push(Draft { host: name.to_ascii_uppercase(), ..draft.clone() });
                    plan.push(Draft { host: format!("{name}:{}", listener.address.port()), ..draft });
                }
            }
            if twin {
                continue;
            }
            let base = Draft::new(listener, &names[0].0, &names[0].1, &root);
            self.versions(&base, listener, plan);
            if listener.quic {
                continue;
            }
            self.other_names(&base, listener, plan);
            self.clients(&base, self.server.node, plan);
            self.block(&base.clone(), self.server.node, None, plan);
            for location in &self.locations {
                self.location(&base, location, plan);
            }
            self.default_content(&base, plan);
        }
    }

    /// A request for the first location that passes requests on, and for which a test holds.
    fn passed(&self, base: &Draft, is: impl Fn(&Location<'n>) -> bool) -> Option<Draft> {
        let passes = |l: &&Location<'n>| l.node().all("proxy_pass").next().is_some() && is(l);
        let (location, path) =
            self.locations.iter().filter(passes).find_map(|l| Some((l, paths(l).into_iter().next()?)))?;
        let scope = self.scope(&path, Some(location));
        Some(Draft { place: location.node().place.clone(), scope, ..base.clone().at(&path) })
    }

    /// A body that is larger than NGINX's own limit, where no other one is set.
    fn default_content(&self, base: &Draft, plan: &mut Plan) {
        let is_limit = |n: &Node| n.name() == "client_max_body_size";
        if self.nodes.iter().copied().chain(self.server.node.inner()).any(is_limit) {
            return;
        }
        let has_none = |l: &Location<'n>| !l.chain.iter().flat_map(|n| n.inner()).any(is_limit);
        if let Some(draft) = self.passed(base, has_none) {
            plan.push(Draft { method: "POST".to_owned(), content: DEFAULT_CONTENT + 1, ..draft });
        }
    }

    /// A connection for another name than that of its request: a host that asks for certificates must not be reachable that way.
    fn other_names(&self, base: &Draft, listener: &Listener, plan: &mut Plan) {
        let asks = |n: &Node| n.all("ssl_verify_client").any(|v| v.word(1) != "off");
        if !listener.tls || !self.others.iter().any(|s| asks(s.node)) {
            return;
        }
        let here = |s: &&Server<'n>| s.listeners.iter().any(|l| l.address == listener.address && !l.quic);
        let own = self.names();
        for other in self.others.iter().filter(here).filter(|s| s.node.place != self.server.node.place) {
            let hosts = other.names.iter().filter_map(|n| samples::host(n)).flatten();
            for name in hosts.filter(|h| is_dns_name(h) && !own.iter().any(|(n, _)| n == h)).take(1) {
                let draft = Draft { sni: Some(name), ..base.clone() };
                for shown in [Shown::None, Shown::Known] {
                    plan.push(Draft { shown, ..draft.clone() });
                }
            }
        }
    }

    /// Headers that a block changes, sent by the client and by the server.
    fn headers(&self, draft: &Draft, location: &Location<'n>, plan: &mut Plan) {
        let all = || {
            self.nodes
                .iter()
                .copied()
                .chain(self.server.node.inner())
                .chain(location.chain.iter().flat_map(|n| n.inner()))
        };
        let named = |words: &[&str]| -> BTreeSet<String> {
            let of = |n: &Node| match n.name() {
                "more_set_headers" => n.word(1).split(':').next().unwrap_or_default().trim().to_owned(),
                _ => n.word(1).to_owned(),
            };
            let names = all().filter(|n| words.contains(&n.name())).map(of);
            names.filter(|name| !name.is_empty() && !NOT_SENT.contains(&name.to_ascii_lowercase().as_str())).collect()
        };
        let sent = named(&["proxy_set_header", "grpc_set_header"]);
        if !sent.is_empty() {
            let forged = sent.iter().fold(draft.clone(), |draft, name| draft.with(name, "from-the-client"));
            plan.push(forged);
        }
        let served =
            named(&["add_header", "proxy_hide_header", "grpc_hide_header", "more_set_headers", "more_clear_headers"]);
        if !served.is_empty() && !location.is_grpc() {
            plan.push(Draft { served: served.into_iter().collect(), ..draft.clone() });
        }
    }

    /// What servers say of their own addresses, where NGINX replaces it by another text.
    fn addresses(&self, draft: &Draft, location: &Location<'n>, plan: &mut Plan) {
        let of_server = self.nodes.iter().copied().chain(self.server.node.inner());
        for node in of_server.chain(location.chain.iter().flat_map(|n| n.inner())) {
            let from = node.word(1);
            if node.arguments().len() < 2 || from.starts_with('~') || from.contains(['$', ' ', ';', ',']) {
                continue;
            }
            let (behaviour, sent) = match node.name() {
                "proxy_redirect" if from.ends_with("://") => {
                    (Behaviour::Redirect, format!("Location:{from}server.example/moved"))
                }
                "proxy_redirect" => (Behaviour::Redirect, format!("Location:{}/moved", from.trim_end_matches('/'))),
                "proxy_cookie_path" => (Behaviour::Answer, format!("Set-Cookie:server=1;Path={from}")),
                "proxy_cookie_domain" => (Behaviour::Answer, format!("Set-Cookie:server=1;Domain={from}")),
                _ => continue,
            };
            plan.push(Draft { place: node.place.clone(), behaviour, served: vec![sent], ..draft.clone() });
        }
    }

    /// The headers that `auth_request_set` takes from the answer of the server that is asked.
    fn answers(&self, draft: &Draft, location: &Location<'n>, plan: &mut Plan) {
        let of_server = self.nodes.iter().copied().chain(self.server.node.inner());
        for node in of_server.chain(location.chain.iter().flat_map(|n| n.inner())) {
            let value = node.word(2).replace(['{', '}'], "");
            let header = value.strip_prefix("$upstream_http_").filter(|_| node.name() == "auth_request_set");
            if let Some(header) =
                header.filter(|h| !h.is_empty() && h.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
            {
                let served = vec![format!("{}:from-the-answer", header.replace('_', "-"))];
                plan.push(Draft { place: node.place.clone(), served, ..draft.clone() });
            }
        }
    }

    fn location(&self, base: &Draft, location: &Location<'n>, plan: &mut Plan) {
        let node = location.node();
        let paths = paths(location);
        for path in &paths {
            let scope = self.scope(path, Some(location));
            plan.push(Draft { place: node.place.clone(), scope, ..base.clone().at(path) });
        }
        let Some(first) = paths.first() else { return };
        let scope = self.scope(first, Some(location));
        let draft = Draft { place: node.place.clone(), scope, ..base.clone().at(first) };
        for method in ["HEAD", "POST", "PUT", "DELETE", "OPTIONS"] {
            let content = if matches!(method, "POST" | "PUT") { 3 } else { 0 };
            plan.push(Draft { method: method.to_owned(), content, ..draft.clone() });
        }
        let mut passes = false;
        walk(node.inner(), &mut |n| passes |= n.name() == "proxy_pass");
        if passes || location.is_grpc() {
            self.headers(&draft, location, plan);
        }
        // A method that is allowed may still ask for a password.
        let asks = |n: &Node| n.name() == "auth_basic" && n.word(1) != "off";
        let all = || self.nodes.iter().copied().chain(self.server.node.inner());
        if all().chain(location.chain.iter().flat_map(|n| n.inner())).any(asks) {
            for method in ["POST", "PUT", "DELETE"] {
                let content = if method == "DELETE" { 0 } else { 3 };
                let draft = draft.clone().with("Authorization", CREDENTIALS);
                plan.push(Draft { method: method.to_owned(), content, ..draft });
            }
        }
        let asks = |n: &Node| n.all("auth_request").any(|a| a.word(1) != "off");
        if location.chain.iter().any(|n| asks(n)) || asks(self.server.node) {
            plan.push(Draft { behaviour: Behaviour::Forbidden, ..draft.clone() });
            self.answers(&draft, location, plan);
        }
        if passes {
            plan.push(upgrade(&draft));
            let has_path =
                |url: &str| !url.contains('$') && url.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
            let itself = match node.all("proxy_pass").any(|p| has_path(p.word(1))) {
                true => Behaviour::RedirectToPass,
                false => Behaviour::RedirectToItself,
            };
            for behaviour in [Behaviour::Redirect, itself, Behaviour::Error, Behaviour::Missing] {
                plan.push(Draft { behaviour, ..draft.clone() });
            }
            self.addresses(&draft, location, plan);
        } else if location.is_grpc() {
            for behaviour in [Behaviour::Error, Behaviour::Missing] {
                plan.push(Draft { behaviour, ..draft.clone() });
            }
        }
        for (_, wish) in self.wishes.iter().take(MAX_WISHES) {
            for draft in grant(&draft, wish).unwrap_or_default() {
                plan.push(draft);
            }
        }
        self.block(&draft, node, Some(location), plan);
        self.clients(&draft, node, plan);
    }

    /// The lines that take part in the answer to a request for another host, which another server may take.
    fn scope_elsewhere(&self, draft: &Draft) -> Scope {
        let here = || self.others.iter().filter(|s| s.listeners.iter().any(|l| l.address == draft.to));
        let named = here().find(|s| s.names.iter().any(|n| n.eq_ignore_ascii_case(&draft.host)));
        let is_default =
            |s: &&Server<'_>| s.listeners.iter().zip(&s.is_default).any(|(l, is)| *is && l.address == draft.to);
        let mut out = BTreeSet::clone(&draft.scope);
        if let Some(server) = named.or_else(|| here().find(is_default)).or_else(|| here().next()) {
            let there = scope_of(server, self.others, self.nodes, self.shared, &draft.path);
            out.extend(there.iter().cloned());
        }
        Arc::new(out)
    }

    /// The variable of the client's certificate that an `if` compares, itself or by a `map`.
    fn of_certificate(&self, node: &Node) -> Option<String> {
        let (variable, ..) = condition(node)?;
        let is_its = |n: &&Node| n.words.last().and_then(|w| w.strip_prefix('$')) == Some(variable.as_str());
        let map = self.nodes.iter().copied().filter(|n| n.name() == "map").find(is_its);
        let source = map.map_or(variable.as_str(), |n| n.word(1).trim_start_matches('$').trim_matches(['{', '}']));
        source.starts_with("ssl_client").then(|| source.to_owned())
    }

    /// What an `if` asks to be tried: values of its variable, or, where a `map` or `geo` sets it, of what this reads.
    fn of_if(&self, node: &Node) -> Option<Vec<Wish>> {
        let set = |n: &&&Node| {
            let variable = n.words.last().and_then(|w| w.strip_prefix('$'));
            matches!(n.name(), "map" | "geo") && variable.is_some_and(|v| condition(node).is_some_and(|c| c.0 == v))
        };
        self.nodes.iter().find(set).map_or_else(|| of_if(node), |map| of_map(map))
    }

    /// `if` and `rewrite`.
    fn block(&self, draft: &Draft, block: &'n Node, location: Option<&Location<'n>>, plan: &mut Plan) {
        for node in block.inner() {
            match node.name() {
                "if" => {
                    let wishes = self.of_if(node);
                    if wishes.iter().flatten().filter(|w| w.is_address()).nth(MAX_NETWORKS).is_some() {
                        let why =
                            format!("only the first {MAX_NETWORKS} networks are tried with a false X-Forwarded-For");
                        plan.unasked(&node.place, why);
                    }
                    let granted: Option<Vec<Draft>> = wishes.map(|wishes| {
                        let draft = Draft { place: node.place.clone(), ..draft.clone() };
                        let claims = wishes.iter().filter(|w| w.is_address()).take(MAX_NETWORKS);
                        let claims = claims.flat_map(|w| claimed(&draft, &w.value, self.trusted()));
                        wishes.iter().filter_map(|w| grant(&draft, w)).flatten().chain(claims).collect()
                    });
                    match granted {
                        Some(drafts) if !drafts.is_empty() => {
                            for d in drafts {
                                let scope =
                                    if d.host == draft.host { d.scope.clone() } else { self.scope_elsewhere(&d) };
                                plan.push(Draft { scope, ..d });
                            }
                        }
                        // Each location is asked for at each listener.
                        _ if condition(node).is_some_and(|c| OF_LISTENER.contains(&c.0.as_str())) => {
                            plan.push(Draft { place: node.place.clone(), ..draft.clone() });
                        }
                        _ => match self.of_certificate(node) {
                            // The certificate of the run has a subject that the configuration names.
                            Some(variable) if variable == "ssl_client_s_dn" => {
                                for shown in [Shown::None, Shown::Known, Shown::Namesake] {
                                    plan.push(Draft { place: node.place.clone(), shown, ..draft.clone() });
                                }
                            }
                            Some(_) => plan.unasked(
                                &node.place,
                                "no request is made for its condition, because the command makes the certificates of clients itself. Check \
                                 by hand that Sealane refuses a client certificate that NGINX refuses",
                            ),
                            None => plan.unasked(&node.place, "no request is made for its condition"),
                        },
                    }
                    self.block(draft, node, location, plan);
                }
                "rewrite" => match samples::path_regex(node.word(1), false) {
                    Some(paths) => {
                        for path in paths {
                            let scope = self.scope(&path, location);
                            plan.push(Draft { place: node.place.clone(), scope, ..draft.clone().at(&path) });
                        }
                    }
                    None => plan.unasked(&node.place, "its regular expression has parts for which no samples are made"),
                },
                _ => {}
            }
        }
    }

    /// What depends on who the client is, how much it sends, and how often.
    fn clients(&self, draft: &Draft, block: &Node, plan: &mut Plan) {
        for node in block.inner() {
            let draft = Draft { place: node.place.clone(), ..draft.clone() };
            match node.name() {
                "allow" | "deny" | "set_real_ip_from" => {
                    for from in in_and_out(node.word(1)).into_iter().flat_map(|(i, o)| [i, o]) {
                        let scheme = if draft.tls { "http" } else { "https" };
                        let forwarded =
                            draft.clone().with("X-Forwarded-For", FORWARDED).with("X-Forwarded-Proto", scheme);
                        let draft = if node.name() == "set_real_ip_from" { forwarded } else { draft.clone() };
                        plan.push(Draft { from: Some(from), ..draft });
                    }
                    if node.name() != "set_real_ip_from" {
                        claimed(&draft, node.word(1), self.trusted()).into_iter().for_each(|d| plan.push(d));
                    }
                }
                "auth_basic" => {
                    for value in [CREDENTIALS, "Basic Og=="] {
                        plan.push(draft.clone().with("Authorization", value));
                    }
                }
                "ssl_verify_client" | "ssl_client_certificate" => {
                    for shown in [Shown::Known, Shown::Namesake, Shown::Stranger] {
                        plan.push(Draft { shown, ..draft.clone() });
                    }
                }
                "client_max_body_size" => self.content(&draft, node, plan),
                "limit_req" | "limit_conn" => self.limit(&draft, node, plan),
                _ => {}
            }
        }
        if block.name() == "server" {
            for node in self.nodes.iter().filter(|n| {
                matches!(
                    n.name(),
                    "client_max_body_size"
                        | "limit_req"
                        | "limit_conn"
                        | "allow"
                        | "deny"
                        | "set_real_ip_from"
                        | "auth_basic"
                )
            }) {
                let alone = Node { block: Some(vec![(*node).clone()]), ..block.clone() };
                let alone = Node { words: vec!["http".to_owned()], ..alone };
                self.clients(draft, &alone, plan);
            }
        }
    }

    fn content(&self, draft: &Draft, node: &Node, plan: &mut Plan) {
        match size(node.word(1)) {
            Some(limit) if limit > 0 && limit < MAX_CONTENT => {
                for content in [limit, limit + 1] {
                    plan.push(Draft { method: "POST".to_owned(), content, ..draft.clone() });
                }
            }
            Some(0) => plan.push(Draft { method: "POST".to_owned(), content: DEFAULT_CONTENT + 1, ..draft.clone() }),
            _ => plan.unasked(&node.place, "the command does not send so large a body"),
        }
    }

    fn limit(&self, draft: &Draft, node: &Node, plan: &mut Plan) {
        let value = |name: &str| node.words.iter().find_map(|w| w.strip_prefix(name));
        let number = |name: &str| value(name).and_then(|n| n.parse::<u64>().ok());
        let at_once = match node.name() {
            "limit_conn" => node.word(2).parse::<u64>().ok().map(|n| n + 3),
            _ => {
                let zone = value("zone=").unwrap_or_default();
                let made = self.nodes.iter().find(|n| {
                    n.name() == "limit_req_zone"
                        && n.words
                            .iter()
                            .any(|w| w.strip_prefix("zone=").and_then(|z| z.split(':').next()) == Some(zone))
                });
                let rate = made.and_then(|n| n.words.iter().find_map(|w| w.strip_prefix("rate=")).map(str::to_owned));
                let per_second = rate.and_then(|r| {
                    let (n, unit) = r.split_once("r/")?;
                    Some(n.parse::<u64>().ok()? / if unit == "m" { 60 } else { 1 })
                });
                // Each lane may let a whole burst pass before it hears of the others.
                per_second.map(|r| u64::from(LANES) * (number("burst=").unwrap_or(0) + 1) + r + 5)
            }
        };
        let behaviour = if node.name() == "limit_conn" { Behaviour::Hold } else { Behaviour::Answer };
        // A limit of the server or of all servers is tried where requests are passed on: elsewhere, other refusals would be counted.
        let passes = |l: &Location<'n>| l.node().inner().iter().any(|n| n.name().ends_with("_pass"));
        let is_own = self.locations.iter().any(|l| l.node().inner().iter().any(|n| n.place == node.place));
        let draft = match is_own || self.taking(&draft.path).into_iter().any(passes) {
            true => Some(draft.clone()),
            false => self.passed(draft, |_| true).map(|d| Draft { place: node.place.clone(), ..d }),
        };
        let Some(draft) = draft else { return };
        match at_once {
            Some(n) if n <= MAX_AT_ONCE => {
                let many = Draft { times: Times::AtOnce(n as u32), behaviour, ..draft };
                plan.push(many.clone());
                rotating(&many, self.trusted()).into_iter().for_each(|d| plan.push(d));
            }
            _ => plan.unasked(&node.place, "the command does not send so many requests"),
        }
    }
}
