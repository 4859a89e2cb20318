//! `[[host]]`: what is done with requests, by name.

use super::Mode;
use super::decode::{self, At, Section};
use super::diagnostics::Sink;
use super::forwarding;
use super::pages;
use super::plan::Plan;
use super::route::{self, Routes};
use super::settings::{host as s, respond as r, top};
use super::snippets;
use super::upstream::Context;
use sealane_proxy::snapshot::{Action, Upstream};
use sealane_route::{NameError, NameMap, NamePattern, ProtocolRule};
use std::collections::{HashMap, HashSet};
use std::net::Ipv6Addr;
use std::ops::Range;
use std::sync::Arc;

/// A listener as hosts see it.
pub(super) struct Target {
    /// As written in `address`.
    pub written: String,
    /// Whether what comes is read, or relayed.
    pub mode: Mode,
    /// It has TLS of ours.
    pub tls: bool,
    /// Indices into [`Hosts::all`].
    pub hosts: NameMap<u32>,
    /// The same for hosts with `alpn`, in the order of the file.
    pub protocols: Vec<ProtocolRule>,
}

/// One `[[host]]`.
pub(super) struct Host {
    /// What metrics call it: its first name.
    pub label: String,
    pub action: Action,
    /// The names that are good, where they stand in the file.
    pub names: Vec<At<NamePattern>>,
    /// It says which listeners it is for.
    pub names_listeners: bool,
    /// The first of its settings (or of its routes') that looks at clients' certificates: its name, and where it stands.
    pub certificates: Option<(&'static str, Range<usize>)>,
}

/// Every `[[host]]`, in the order of the file. Each has one action for all its names and listeners.
#[derive(Default)]
pub(super) struct Hosts {
    pub all: Vec<Host>,
    /// Some of their names or listeners are wrong: what else a listener serves is not known.
    pub incomplete: bool,
}

impl Hosts {
    pub fn action(&self, host: u32) -> &Action {
        &self.all[host as usize].action
    }

    /// What all hosts do.
    pub fn actions(&self) -> impl Iterator<Item = &Action> {
        self.all.iter().map(|host| &host.action)
    }

    /// Where one of a host's names stands.
    pub fn place(&self, host: u32, pattern: &NamePattern) -> Option<&At<NamePattern>> {
        self.all[host as usize].names.iter().find(|n| n.value == *pattern)
    }
}

/// The upstreams, by the names that the file gives them.
#[derive(Default)]
pub(super) struct Upstreams {
    /// Those that are good, in the order in which actions name them.
    pub all: Vec<Arc<Upstream>>,
    /// What control minds for each of them.
    pub plans: Vec<Arc<Plan>>,
    /// Every name, with its index unless the upstream is bad.
    pub named: HashMap<String, Option<usize>>,
    /// Names that some host uses.
    pub used: HashSet<String>,
    /// The names made for the servers of a `to`, and how many were made from each label.
    unnamed: HashSet<String>,
    labels: HashMap<String, usize>,
    /// Those that get copies, with the place of the `mirror` that names them.
    pub mirrors: Vec<At<usize>>,
    /// The cookies by which the host that is being read keeps clients with a group of a `split`.
    pub split_cookies: Vec<At<String>>,
    /// Some host names an upstream that is not there: perhaps one that is then unused.
    pub dangling: bool,
}

impl Upstreams {
    /// A name for the servers of a `to` that no other group has: state, metrics and answers of DNS go by it.
    pub fn unused_name(&mut self, label: &str) -> String {
        loop {
            let n = self.labels.entry(label.to_owned()).or_insert(0);
            *n += 1;
            let name = if *n == 1 { label.to_owned() } else { format!("{label} ({n})") };
            if !self.named.contains_key(&name) && self.unnamed.insert(name.clone()) {
                return name;
            }
        }
    }

    /// Takes an upstream in; returns its index.
    pub fn push(&mut self, upstream: Upstream, plan: Plan) -> usize {
        self.all.push(Arc::new(upstream));
        self.plans.push(Arc::new(plan));
        self.all.len() - 1
    }
}

/// Reads one `[[host]]` and enters it into the tables of its listeners.
pub(super) fn read(
    section: Section,
    targets: &mut [Target],
    hosts: &mut Hosts,
    upstreams: &mut Upstreams,
    routes: &mut Routes,
    context: &mut Context,
) {
    let sink = section.sink;
    snippets::note(&section);
    let names = section.required(&s::names);
    let listeners = section.optional(&s::listeners);
    let first = names.as_ref().and_then(|n| n.value.first()).map_or("*", |n| n.value.as_str());
    let label = format!("host {first}");
    let shown = first.to_ascii_lowercase();
    let (given, own) = route::action(&section, &label, true, None, upstreams, routes, context);
    if !given && section.key_span("route").is_none() {
        section.missing(
            "[[host]] does not say what to do with requests".to_owned(),
            "add to = [\"http://127.0.0.1:3000\"], upstream = \"name\", respond = { status = 200 } or [[host.route]]"
                .to_owned(),
        );
    }
    let extras = route::extras(&section, &label, routes, upstreams, context, false);
    routes.host_responses.push(extras.responses());
    let before = routes.all.len();
    let action = route::table(&section, own, extras, &label, routes, upstreams, context);
    forwarding::separate_cookies(sink, upstreams, &routes.all[before..]);
    let asks_passwords = routes.all[before..].iter().any(|route| route.basic_auth.is_some());
    let udp = |action: &Action| matches!(action, Action::Passthrough { upstream, .. } if upstreams.all[*upstream].udp.is_some());
    let protocols = protocols(&section, action.as_ref(), action.as_ref().is_some_and(udp));
    let span = section.span.clone();
    section.finish();

    let passes = matches!(action, Some(Action::Passthrough { .. }));
    let udp = matches!(action, Some(Action::Passthrough { upstream, .. }) if upstreams.all[upstream].udp.is_some());
    let fits = |t: &Target| match t.mode {
        Mode::Udp => udp,
        Mode::Tcp => passes && !udp,
        Mode::Http => !passes || t.tls && !udp,
    };
    let chosen: Vec<usize> = match &listeners {
        // All on which that can be done.
        None => (0..targets.len()).filter(|i| fits(&targets[*i]) || action.is_none()).collect(),
        Some(list) => {
            let mut selected: Vec<Vec<usize>> = list.iter().map(|l| select(sink, l, targets)).collect();
            // Of two listeners at one address, one for connections and one for datagrams, the one that fits is meant.
            for found in selected.iter_mut().filter(|found| found.iter().any(|i| fits(&targets[*i]))) {
                found.retain(|i| fits(&targets[*i]));
            }
            hosts.incomplete |= selected.iter().any(Vec::is_empty);
            selected.concat()
        }
    };
    if let Some(plain) = chosen.iter().map(|i| &targets[*i]).find(|t| asks_passwords && !t.tls && t.mode == Mode::Http)
    {
        let message = format!("listener \"{}\" takes passwords of basic_auth without encryption", plain.written);
        let help = format!("{}, unless a proxy in front of the gateway encrypts", only_with_tls("this host", targets));
        sink.warn(&span, message, Some(help));
    }
    let knows_listeners = !sink.may_have(top::listener.key);
    if let (Some(_), Some(name), true) = (&action, names.as_ref().and_then(|n| n.value.first()), knows_listeners) {
        let unfit = listeners
            .iter()
            .flatten()
            .find(|l| chosen.iter().any(|i| targets[*i].written == l.value && !fits(&targets[*i])));
        let relays_udp =
            |l: &At<String>| chosen.iter().any(|i| targets[*i].written == l.value && targets[*i].mode == Mode::Udp);
        match (unfit, passes) {
            (Some(l), true) if udp => {
                let help = "set mode = \"udp\" for this listener, or write the servers with tcp://".to_owned();
                let message = "this listener takes connections, but the servers of \"passthrough\" are udp://";
                sink.error(&l.span, message, Some(help));
            }
            (Some(l), _) if relays_udp(l) => {
                let help = "use \"passthrough\" with servers that are written with udp://".to_owned();
                let message = "this listener has mode = \"udp\", but the host is not for datagrams";
                sink.error(&l.span, message, Some(help));
            }
            (Some(l), true) => {
                let help = "set [listener.tls] or mode = \"tcp\" for this listener".to_owned();
                sink.error(
                    &l.span,
                    "this listener reads requests without TLS, so it cannot relay connections (passthrough)",
                    Some(help),
                );
            }
            (Some(l), false) => {
                let help = "use \"passthrough\": a listener with mode = \"tcp\" does not read requests".to_owned();
                sink.error(&l.span, "this listener has mode = \"tcp\", but the host is for requests", Some(help));
            }
            (None, _) if chosen.is_empty() && !targets.is_empty() && listeners.is_none() => {
                let (message, help) = match passes {
                    true if udp => ("there is no listener for udp:// servers", "add one with mode = \"udp\""),
                    true => {
                        ("there is no listener for \"passthrough\"", "add one with [listener.tls] or mode = \"tcp\"")
                    }
                    false => (
                        "there is no listener for requests",
                        "add a listener with mode = \"http\", or use \"passthrough\": all listeners have mode \
                         \"tcp\" or \"udp\"",
                    ),
                };
                sink.error(&name.span, message, Some(help.to_owned()));
            }
            _ => {}
        }
    }
    let named = |name: &&At<String>| name.value != "*";
    if let (true, Some(name)) = (udp, names.iter().flat_map(|n| &n.value).find(named)) {
        let help = "write names = [\"*\"]: the address of the listener alone selects the servers".to_owned();
        sink.error(&name.span, "a datagram names no host", Some(help));
    }
    // A host whose action is wrong still takes its names, so that a second one is found.
    let index = hosts.all.len() as u32;
    let placeholder = || Action::Respond { status: 503, content_type: String::new(), body: Vec::new() };
    let action = action.unwrap_or_else(placeholder);
    let names_listeners = listeners.is_some();
    let certificates = routes.access.certificates.take();
    hosts.all.push(Host { label: shown, action, names: Vec::new(), names_listeners, certificates });
    // Without a listener (they may all be wrong), for the mistakes in the names.
    let mut nowhere = [Target {
        written: String::new(),
        mode: Mode::Http,
        tls: false,
        hosts: NameMap::default(),
        protocols: Vec::new(),
    }];
    let mut own: Vec<&mut Target> = match chosen.is_empty() {
        true => nowhere.iter_mut().collect(),
        false => targets.iter_mut().enumerate().filter(|(i, _)| chosen.contains(i)).map(|(_, t)| t).collect(),
    };
    for name in names.iter().flat_map(|n| &n.value) {
        enter(sink, &mut own, hosts, index, name, protocols.as_deref());
    }
}

/// Reads `alpn`: the protocols whose clients are relayed; `None`: all.
fn protocols(section: &Section, action: Option<&Action>, udp: bool) -> Option<Vec<Box<[u8]>>> {
    // What is wrong with it is told.
    let written = section.optional(&s::alpn);
    let (sink, span, written) = (section.sink, section.key_span(s::alpn.key)?, written.unwrap_or_default());
    let unfit = match action {
        Some(Action::Passthrough { .. }) if udp => Some((
            "a datagram names no protocol",
            "remove \"alpn\": the address of the listener alone selects the servers",
        )),
        Some(Action::Passthrough { .. }) => None,
        // What is wrong with the action is told.
        None if section.key_span(s::passthrough.key).is_some() => None,
        _ => Some((
            "\"alpn\" is for hosts with \"passthrough\"",
            "remove \"alpn\", or relay the connections: passthrough = \"name\". The protocols that the gateway itself offers \
             are \"alpn\" in [listener.tls]",
        )),
    };
    if let Some((message, help)) = unfit {
        sink.error(&span, message, Some(help.to_owned()));
        return Some(Vec::new());
    }
    for protocol in written.iter().filter(|p| !(1..=255).contains(&p.value.len())) {
        // RFC 7301 §3.1.
        let help = "write a name of 1 to 255 bytes, such as \"xmpp-client\"".to_owned();
        sink.error(&protocol.span, "this is not the name of a protocol (ALPN)", Some(help));
    }
    let mut out: Vec<Box<[u8]>> = written.into_iter().map(|p| p.value.into_bytes().into_boxed_slice()).collect();
    let mut seen = HashSet::new();
    out.retain(|protocol| seen.insert(protocol.clone()));
    Some(out)
}

/// Enters a name of a host into the tables of its listeners.
fn enter(
    sink: &Sink,
    targets: &mut [&mut Target],
    hosts: &mut Hosts,
    host: u32,
    name: &At<String>,
    protocols: Option<&[Box<[u8]>]>,
) {
    let pattern: NamePattern = match name.value.parse() {
        Ok(pattern) => pattern,
        Err(e) => {
            hosts.incomplete = true;
            return malformed(sink, name, e);
        }
    };
    // Before the search for a second one: it may be in the same list.
    hosts.all[host as usize].names.push(At { value: pattern.clone(), span: name.span.clone() });
    for target in targets {
        if let Some(protocols) = protocols {
            let alike = target.protocols.iter().filter(|rule| rule.name == pattern);
            let mut taken =
                alike.filter_map(|rule| Some((rule.host, rule.protocols.iter().find(|p| protocols.contains(p))?)));
            let Some((first, protocol)) = taken.next() else {
                target.protocols.push(ProtocolRule { name: pattern.clone(), protocols: protocols.to_vec(), host });
                continue;
            };
            let place =
                hosts.place(first, &pattern).map_or_else(String::new, |n| format!(" at {}", sink.place(&n.span)));
            let protocol = String::from_utf8_lossy(protocol);
            let message =
                format!("a second host for \"{}\" with the protocol \"{protocol}\"; the first is{place}", name.value);
            let help = "remove the protocol or the name from one of the hosts".to_owned();
            return sink.error(&name.span, message, Some(help));
        }
        if target.hosts.insert(pattern.clone(), host).is_ok() {
            continue;
        }
        let first = target.hosts.get(&pattern).and_then(|first| hosts.place(*first, &pattern));
        let place = first.map_or_else(|| " elsewhere".to_owned(), |n| format!(" at {}", sink.place(&n.span)));
        let help = "remove the name from one of the hosts; to treat some paths differently, add a [[host.route]] to the first host";
        let message = format!("a second host for \"{}\"; the first is{place}", name.value);
        sink.error(&name.span, message, Some(help.to_owned()));
        return;
    }
}

fn malformed(sink: &Sink, name: &At<String>, e: NameError) {
    let help = match name.value.rsplit_once(':') {
        _ if name.value.parse::<Ipv6Addr>().is_ok() => Some(format!("write \"[{}]\"", name.value)),
        Some((host, port)) if port.parse::<u16>().is_ok() && !host.is_empty() => {
            Some(format!("write the name without the port: \"{host}\""))
        }
        _ if name.value.contains("://") => Some("write only the host name".to_owned()),
        _ if name.value.starts_with('.') => {
            Some(format!("write \"*{0}\" for names with one more label, \"**{0}\" for one or more", name.value))
        }
        _ if name.value == "_" || name.value.is_empty() => Some("write \"*\" for every name".to_owned()),
        _ => None,
    };
    sink.error(&name.span, format!("\"{}\" is {e}", name.value), help);
}

/// The index of the upstream of this name, for requests.
pub(super) fn reference(section: &Section, name: At<String>, upstreams: &mut Upstreams) -> Option<usize> {
    let span = name.span.clone();
    let index = named(section, name, upstreams)?;
    if upstreams.all[index].udp.is_some() {
        let help = "use \"passthrough\", and a listener with mode = \"udp\"".to_owned();
        section.sink.error(&span, "servers with udp:// take no requests", Some(help));
        return None;
    }
    Some(index)
}

/// The index of the upstream of this name.
pub(super) fn named(section: &Section, name: At<String>, upstreams: &mut Upstreams) -> Option<usize> {
    match upstreams.named.get(&name.value) {
        Some(index) => {
            upstreams.used.insert(name.value);
            *index
        }
        None => {
            let mut known: Vec<&str> = upstreams.named.keys().map(String::as_str).collect();
            known.sort_unstable();
            let help = match decode::nearest(&name.value, known.iter().copied()) {
                Some(best) => format!("did you mean \"{best}\"?"),
                None if name.value.contains("://") => format!("write to = [\"{}\"]", name.value),
                None if known.is_empty() => "add an [[upstream]] of this name".to_owned(),
                None => format!("upstreams are {}", decode::listed(known.iter().copied())),
            };
            upstreams.dangling = true;
            if section.sink.may_have(top::upstream.key) {
                return None;
            }
            section.sink.error(&name.span, format!("there is no upstream \"{}\"", name.value), Some(help));
            None
        }
    }
}

/// Most bytes of a body that the gateway answers with itself.
pub(super) const MAX_BODY: usize = 64 << 10;

pub(super) fn respond(section: Section) -> Option<Action> {
    let sink = section.sink;
    let status = section.or(&r::status) as u16;
    let body = section.optional_at(&r::body);
    let file = section.optional_at(&r::file);
    let content_type = section.optional_at(&r::content_type);
    section.finish();
    // RFC 9110 §15.3.5, §15.3.6, §15.4.5: these have no content.
    let has_none = |key: &str, span: &Range<usize>| {
        if matches!(status, 204 | 205 | 304) {
            let help = format!("remove \"{key}\", or write another \"status\"");
            sink.error(span, format!("a response with status {status} must not have a body"), Some(help));
        }
    };
    if let Some(file) = &file {
        has_none(r::file.key, &file.span);
        if body.is_some() {
            let help = "remove \"body\" or \"file\"".to_owned();
            sink.error(&file.span, "\"body\" and \"file\" exclude each other", Some(help));
        }
    }
    if let Some(body) = body.as_ref().filter(|b| !b.value.is_empty()) {
        has_none(r::body.key, &body.span);
        // It is copied whole for each request.
        if body.value.len() > MAX_BODY {
            let help = "serve larger files from an upstream".to_owned();
            sink.error(&body.span, format!("\"body\" has more than {} KiB", MAX_BODY >> 10), Some(help));
        }
    }
    let media_type = |s: &str| !s.is_empty() && s.bytes().all(|b| (0x20..0x7f).contains(&b));
    if let Some(value) = content_type.as_ref().filter(|c| !media_type(&c.value)) {
        sink.error(&value.span, "\"content_type\" is not a media type", Some("write \"text/html\"".to_owned()));
    }
    let by_name = || file.as_ref().map(|file| pages::by_name(&file.value).to_owned());
    Some(Action::Respond {
        status,
        content_type: content_type.map(|c| c.value).or_else(by_name).unwrap_or_else(|| r::content_type.default()),
        body: match &file {
            Some(file) => pages::body(sink, "body", file),
            None => body.map_or_else(|| r::body.default(), |b| b.value).into_bytes(),
        },
    })
}

/// How to have hosts only on listeners with TLS.
pub(super) fn only_with_tls(hosts: &str, targets: &[Target]) -> String {
    let with_tls = targets.iter().filter(|target| target.tls && target.mode == Mode::Http);
    let mut addresses: Vec<String> = with_tls.map(|target| format!("\"{}\"", target.written)).collect();
    addresses.dedup();
    match addresses.is_empty() {
        true => format!(
            "add a [[listener]] with address = \":443\" and [listener.tls], and give {hosts} listeners = [\":443\"]"
        ),
        false => format!("give {hosts} listeners = [{}]", addresses.join(", ")),
    }
}

fn select(sink: &Sink, name: &At<String>, targets: &[Target]) -> Vec<usize> {
    let found: Vec<usize> = (0..targets.len()).filter(|i| targets[*i].written == name.value).collect();
    if found.is_empty() && !sink.may_have(top::listener.key) {
        let mut known: Vec<&str> = targets.iter().map(|t| t.written.as_str()).collect();
        known.dedup();
        let help = format!("the addresses of listeners are {}", decode::listed(known.into_iter()));
        sink.error(&name.span, format!("there is no listener \"{}\"", name.value), Some(help));
    }
    found
}
