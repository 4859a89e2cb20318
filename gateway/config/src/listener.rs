//! `[[listener]]`.

use super::access;
use super::addresses::{Addresses, Protocol};
use super::certificates::load::{self, Store};
use super::decode::{self, At, Section};
use super::diagnostics::Sink;
use super::host::{Hosts, Target};
use super::http3::{self, Http3};
use super::listen_address::{ListenAddress, socket_path, unix_socket};
use super::route::Routes;
use super::settings::listener as s;
use super::settings::top;
use super::snippets;
use super::tls::{self, ListenerPolicies};
use super::trust::{self, Trust};
use super::tunnel::Tunnel;
use super::{Listener, Mode, RunAs, SynTls};
use sealane_proxy::snapshot::{Action, UpstreamHttp};
use sealane_route::{NamePattern, SiteMap};
use sealane_sys::unix_socket::Rights;
use sealane_tls::policy::ListenerTls;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

/// A listener before its hosts are known.
pub(super) struct Draft {
    /// As in `address`: how hosts name it.
    pub written: String,
    pub address: ListenAddress,
    /// Where that stands.
    pub span: Range<usize>,
    /// The port by which clients come, where it is not that of `address`.
    public_port: Option<u16>,
    pub tls: Option<ListenerPolicies>,
    /// It has a TLS section, and that is wrong.
    pub broken_tls: bool,
    trust: Trust,
    access: Option<usize>,
    /// A setting of it that judges requests, if there is one: its name, and where it stands.
    request_rule: Option<(&'static str, Range<usize>)>,
    allow_connect: bool,
    allow_trace: bool,
    syn_tls: SynTls,
    h2c: bool,
    /// Whether what comes is read, or relayed.
    pub mode: Mode,
    /// OpenVPN clients may come over TCP: where that is set.
    tunnel: Option<Range<usize>>,
    http3: Option<Http3>,
}

impl Draft {
    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether it asks some clients for certificates, as far as that is known.
    pub fn asks_for_certificates(&self) -> bool {
        let asks = self.tls.as_ref().is_some_and(|tls| tls.policies.iter().any(|policy| policy.client_auth.is_some()));
        asks || self.broken_tls
    }

    /// Whether it asks the clients that send this server name (empty: none) for a certificate.
    pub fn asks_under(&self, server_name: &str) -> bool {
        let Some(tls) = &self.tls else { return false };
        let policy = tls.names.find(server_name).copied().unwrap_or(0);
        tls.policies.get(policy as usize).is_none_or(|policy| policy.client_auth.is_some())
    }

    /// Whether it accepts early data of some clients, as far as that is known.
    pub fn takes_early_data(&self) -> bool {
        let takes = self.tls.as_ref().is_some_and(|tls| tls.policies.iter().any(|policy| policy.early_data() > 0));
        takes || self.broken_tls
    }

    /// Whether every client may connect, and begin with its hello or its request.
    fn admits_all(&self) -> bool {
        !self.broken_tls && self.access.is_none() && !self.trust.proxy_protocol
    }

    /// Whether it takes the requests of every client that sends them in clear text, by this version of HTTP.
    pub fn takes_all_requests(&self, http: UpstreamHttp) -> bool {
        let speaks = match http {
            UpstreamHttp::One | UpstreamHttp::Auto => true,
            UpstreamHttp::Two => self.h2c,
            UpstreamHttp::Three => false,
        };
        speaks && !self.has_tls() && self.mode == Mode::Http && self.admits_all()
    }

    /// The same for clients with TLS that ask for this server name (empty: for none), and send requests for a host.
    pub fn takes_all_requests_over_tls(&self, server_name: &str, host: &str) -> bool {
        let Some(tls) = &self.tls else { return false };
        let policy = |name: &str| tls.names.find(name).copied().unwrap_or(0);
        // Under other rules than those of the connection, the request gets 421.
        !self.asks_under(server_name) && policy(server_name) == policy(host) && self.admits_all()
    }

    /// Whether every client may connect to be relayed.
    pub fn relays_all(&self) -> bool {
        (self.has_tls() || self.mode == Mode::Tcp) && self.admits_all()
    }

    /// The port by which clients come.
    pub fn public_port(&self) -> u16 {
        self.public_port.unwrap_or(self.address.port())
    }

    pub fn into_listener(self, sites: SiteMap, actions: Arc<[Action]>) -> Listener {
        let public_port = self.public_port();
        let Self { address, tls, trust, access, allow_connect, allow_trace, syn_tls, h2c, http3, mode, tunnel, .. } =
            self;
        let sites = Arc::new(sites);
        let certificates = tls.as_ref().map(|t| t.certificates.clone());
        let tls = tls.map(|t| ListenerTls { policies: t.policies, sites: sites.clone() });
        Listener {
            address,
            public_port,
            tls,
            certificates,
            trust,
            access,
            allow_connect,
            allow_trace,
            syn_tls,
            h2c,
            http3,
            mode,
            tunnel: tunnel.is_some(),
            sites,
            actions,
        }
    }
}

/// Reads every `[[listener]]`. One whose TLS section is wrong is returned without, so that hosts can refer to it.
pub(super) fn read_all(
    document: &Section,
    user: Option<&RunAs>,
    store: &mut Store,
    addresses: &mut Addresses,
    routes: &mut Routes,
) -> Vec<Draft> {
    let sections = document.tables(&top::listener);
    if sections.is_empty() && document.key_span("tunnel").is_none() {
        let help = "add [[listener]] with address = \":443\"".to_owned();
        document.missing("there is no [[listener]]: the gateway would serve nothing".to_owned(), help);
    }
    let mut out: Vec<Draft> = Vec::new();
    for section in sections {
        read(section, user, store, &mut out, addresses, routes);
    }
    out
}

fn read(
    section: Section,
    user: Option<&RunAs>,
    store: &mut Store,
    out: &mut Vec<Draft>,
    addresses: &mut Addresses,
    routes: &mut Routes,
) {
    let sink = section.sink;
    let written = section.required(&s::address);
    let is_socket = |text: &At<String>| socket_path(&text.value).is_some();
    let all = || written.iter().flat_map(|w| &w.value);
    let rights = rights(&section, user, all().any(is_socket));
    snippets::note(&section);
    let allow_connect = section.or(&s::allow_connect);
    let allow_trace = section.or(&s::allow_trace);
    let h2c = section.optional_at(&s::h2c);
    let mode = section.or(&s::mode);
    if mode == Mode::Udp {
        check_udp(&section, all().find(|text| is_socket(text)));
    }
    let trust = trust::read(&section, mode == Mode::Tcp, all().all(is_socket));
    let access = access::read(&section, routes);
    let name = written.as_ref().and_then(|w| w.value.first()).map_or("", |w| w.value.as_str());
    if let (Mode::Tcp, Some(span)) = (mode, section.key_span("tls")) {
        let help = "remove \"mode\" or [listener.tls]: relayed connections are not decrypted".to_owned();
        sink.error(&span, "[listener.tls] and mode = \"tcp\" exclude each other", Some(help));
    }
    // One set of policies for all addresses of a listener: a ticket got over IPv4 is good over IPv6.
    let has_tls = section.key_span("tls").is_some();
    let tls = section.table(&s::tls).and_then(|tls| tls::listener(tls, store, name));
    let request_rule = request_rule(&section, mode, tls.as_ref(), has_tls);
    let syn_tls = syn_tls(&section, tls.as_ref(), has_tls);
    if let Some(h2c) = h2c.as_ref().filter(|h| h.value && tls.is_some()) {
        let help = "remove \"h2c\": with TLS, clients choose HTTP/2 by ALPN (\"alpn\" in [listener.tls])".to_owned();
        sink.error(&h2c.span, "\"h2c\" is for listeners without TLS", Some(help));
    }
    let public_port = section.optional_at(&s::public_port);
    if let Some(port) = public_port.as_ref().filter(|_| !has_tls) {
        let help = "set \"public_port\" on the listener with [listener.tls]: clients are redirected to that listener"
            .to_owned();
        sink.error(&port.span, "\"public_port\" is for listeners with TLS", Some(help));
    }
    let public_port = public_port.and_then(|port| u16::try_from(port.value).ok());
    let tunnel = tunnel(&section, mode, has_tls, all().find(|text| is_socket(text)));
    let mut http3 = http3::read(&section, tls.as_ref(), trust.proxy_protocol, all().find(|text| is_socket(text)));
    if let Some(http3) = &mut http3 {
        http3.announced_port = http3.announced_port.or(public_port);
    }
    section.finish();
    for text in all() {
        let span = &text.span;
        let found: Vec<ListenAddress> = if is_socket(text) {
            let socket =
                unix_socket(sink, text, rights).filter(|socket| addresses.take_socket(sink, &socket.path, span));
            socket.into_iter().map(ListenAddress::Unix).collect()
        } else {
            let found = decode::listen_addresses(sink, &text.value, span).unwrap_or_default().into_iter();
            let mut is_free = |address: &SocketAddr| {
                (mode == Mode::Udp || addresses.take(sink, Protocol::Tcp, *address, false, span))
                    && (mode != Mode::Udp && http3.is_none()
                        || addresses.take(sink, Protocol::Udp, *address, false, span))
            };
            found.filter(&mut is_free).map(ListenAddress::Ip).collect()
        };
        for address in found {
            out.push(Draft {
                written: text.value.clone(),
                address,
                span: span.clone(),
                public_port,
                tls: tls.clone(),
                broken_tls: has_tls && tls.is_none(),
                trust: trust.clone(),
                access,
                request_rule: request_rule.clone(),
                allow_connect,
                allow_trace,
                syn_tls,
                h2c: h2c.as_ref().is_some_and(|h| h.value),
                mode,
                tunnel: tunnel.clone(),
                http3: http3.clone(),
            });
        }
    }
}

/// `tunnel`: whether OpenVPN clients may come, and where that is set. `socket`: one of the addresses is this Unix socket.
fn tunnel(section: &Section, mode: Mode, has_tls: bool, socket: Option<&At<String>>) -> Option<Range<usize>> {
    let span = section.optional_at(&s::tunnel).filter(|tunnel| tunnel.value)?.span;
    if let Some(text) = socket {
        let help = "write this address in a [[listener]] of its own, without \"tunnel\"".to_owned();
        section.sink.error(&text.span, "\"tunnel\" is for IP addresses", Some(help));
    } else if !has_tls && mode == Mode::Http {
        let help = "add [listener.tls], or write the address in \"listen\" of [tunnel] (\"tcp://:1194\"): the gateway tells OpenVPN \
                    clients from TLS clients by their first bytes";
        section.sink.error(&span, "\"tunnel\" is for listeners with TLS", Some(help.to_owned()));
    } else if mode == Mode::Tcp {
        let help = "remove \"mode\" and add [listener.tls] (hosts with \"passthrough\" relay connections by their server name), or remove \
                    \"tunnel\"";
        section.sink.error(&span, "\"tunnel\" and mode = \"tcp\" exclude each other", Some(help.to_owned()));
    }
    Some(span)
}

/// Listeners that OpenVPN clients may come to need a tunnel that takes connections, and no rule that these clients go around.
pub(super) fn check_tunnel(
    sink: &Sink,
    listeners: &[Draft],
    section: Option<Range<usize>>,
    tunnel: Option<&mut Tunnel>,
) {
    let spans: BTreeSet<(usize, usize)> =
        listeners.iter().filter_map(|l| l.tunnel.as_ref()).map(|span| (span.start, span.end)).collect();
    if spans.is_empty() {
        return;
    }
    for (start, end) in spans {
        if section.is_none() {
            let help = "add [tunnel] (\"sealane tunnel init\" writes one), or remove \"tunnel\" of this listener";
            sink.error(&(start..end), "\"tunnel\" without [tunnel]: there is no OpenVPN server", Some(help.to_owned()));
        }
    }
    let mut reported = HashSet::new();
    for (key, span) in listeners.iter().filter(|l| l.tunnel.is_some()).filter_map(|l| l.request_rule.as_ref()) {
        if reported.insert(span.start) {
            let help = "move this setting to the hosts, or remove \"tunnel\" of this listener";
            sink.error(
                span,
                format!("\"{key}\" cannot judge the OpenVPN clients of this listener"),
                Some(help.to_owned()),
            );
        }
    }
    let Some(tunnel) = tunnel else { return };
    if tunnel.data_plane == sealane_tunnel::Choice::Kernel {
        let span = section.unwrap_or(0..0);
        let help = "remove \"data_plane\" of [tunnel], or \"tunnel\" of [[listener]]: the user-space data plane serves OpenVPN over TCP";
        let message = "data_plane = \"kernel\" serves only UDP, but a listener with tunnel = true brings OpenVPN clients over TCP";
        sink.error(&span, message, Some(help.to_owned()));
    }
    tunnel.shares_port = true;
}

/// Settings that judge requests: the listener must have what they look at. Returns one of them, if it may stay.
fn request_rule(
    section: &Section,
    mode: Mode,
    tls: Option<&ListenerPolicies>,
    has_tls: bool,
) -> Option<(&'static str, Range<usize>)> {
    let asks = tls.is_some_and(|tls| tls.policies.iter().any(|policy| policy.client_auth.is_some()));
    let is_broken = has_tls && tls.is_none();
    let mut found = None;
    for key in access::OF_REQUESTS {
        let Some(span) = section.key_span(key) else { continue };
        if mode != Mode::Http {
            let help = format!("remove \"{key}\", or use \"allow\" and \"deny\" (addresses)");
            let message = format!(
                "\"{key}\" judges requests, but this listener relays connections or datagrams without reading them"
            );
            section.sink.error(&span, message, Some(help));
        } else if key.ends_with("_certificate") && !asks && !is_broken {
            let help = "add client_auth = { mode = \"optional\", ca = \"clients.pem\" } to [listener.tls], or remove this setting";
            let message = format!("\"{key}\" on a listener that does not ask for client certificates");
            section.sink.error(&span, message, Some(help.to_owned()));
        } else {
            found = Some((key, span));
        }
    }
    found
}

/// A rule of a listener that judges requests must not be one that relayed connections go around.
pub(super) fn check_relays(sink: &Sink, listeners: &[Draft], targets: &[Target], hosts: &Hosts) {
    let mut reported = HashSet::new();
    for (listener, target) in listeners.iter().zip(targets) {
        let Some((key, span)) = &listener.request_rule else { continue };
        let relays = |host: &&u32| matches!(hosts.action(**host), Action::Passthrough { .. });
        let by_protocol = target.protocols.iter().map(|rule| &rule.host);
        let Some(host) = target.hosts.values().chain(by_protocol).filter(relays).min() else { continue };
        if reported.insert(span.start) {
            let message = format!(
                "\"{key}\" cannot judge relayed connections, but the host \"{}\" relays connections of this listener (passthrough)",
                hosts.all[*host as usize].label
            );
            let help = format!(
                "set \"listeners\" of that host to listeners other than \"{}\" (without \"listeners\", the host uses all of them), or \
                 move \"{key}\" to the hosts that serve requests",
                target.written
            );
            sink.error(span, message, Some(help));
        }
    }
}

/// Settings of listeners whose connections are read.
pub(super) const OF_CONNECTIONS: [&str; 13] = [
    "tls",
    "http3",
    "quic",
    "h2c",
    "syn_tls",
    "proxy_protocol",
    "trusted_proxies",
    "client_address_header",
    "trust_forwarded",
    "allow_connect",
    "allow_trace",
    "public_port",
    "tunnel",
];

/// What a listener that relays datagrams cannot have. `socket`: one of its addresses is this Unix socket.
fn check_udp(section: &Section, socket: Option<&At<String>>) {
    if let Some(text) = socket {
        let help = "write an address and a port, as in address = \":53\"".to_owned();
        section.sink.error(&text.span, "mode = \"udp\" is for IP addresses", Some(help));
    }
    for key in OF_CONNECTIONS {
        if let Some(span) = section.key_span(key) {
            let help = format!("remove \"{key}\": datagrams are relayed without being read");
            section.sink.error(&span, format!("\"{key}\" and mode = \"udp\" exclude each other"), Some(help));
        }
    }
}

/// Who may connect to the Unix sockets of a listener. `has_sockets`: it has some.
fn rights(section: &Section, user: Option<&RunAs>, has_sockets: bool) -> Rights {
    let sink = section.sink;
    for key in ["socket_mode", "socket_owner", "socket_group"] {
        if let Some(span) = section.key_span(key).filter(|_| !has_sockets) {
            let help = "write address = \"unix:/run/sealane/http.sock\", or remove this setting".to_owned();
            sink.error(&span, format!("\"{key}\" is for Unix sockets"), Some(help));
        }
    }
    let unknown = |what: &str, name: &At<String>| {
        let help = format!("write the name of an existing {what}, or create this {what}");
        sink.error(&name.span, format!("there is no {what} \"{}\" on this machine", name.value), Some(help));
    };
    let mut owner = user.map(|user| user.user.uid);
    if let Some(name) = section.optional_at(&s::socket_owner)
        && let Some(found) = sink.user(&name.value)
    {
        match found {
            Some(found) => owner = Some(found.uid),
            None => unknown("user", &name),
        }
    }
    let mut group = user.map(|user| user.gid);
    if let Some(name) = section.optional_at(&s::socket_group)
        && let Some(found) = sink.group(&name.value)
    {
        match found {
            Some(found) => group = Some(found),
            None => unknown("group", &name),
        }
    }
    Rights { mode: section.optional(&s::socket_mode).unwrap_or(0o600), owner, group }
}

/// `syn_tls`: where it makes sense.
fn syn_tls(section: &Section, tls: Option<&ListenerPolicies>, has_tls: bool) -> SynTls {
    let Some(written) = section.optional_at(&s::syn_tls) else { return s::syn_tls.default() };
    if !has_tls && written.value != SynTls::Off {
        // What comes in a SYN may come twice; plain requests are never taken from there.
        let help =
            "add [listener.tls], or remove \"syn_tls\": the gateway accepts no plain requests from a SYN".to_owned();
        section.sink.error(&written.span, "\"syn_tls\" is for listeners with TLS", Some(help));
    }
    let dear = tls.is_some_and(|t| {
        t.automatic.is_none() && !t.policies.iter().any(|p| p.identities.all.iter().any(|i| i.kind.is_cheap()))
    });
    if written.value == SynTls::Open && dear {
        let help = "add an ECDSA certificate for the same names, or set syn_tls = \"cookie\"".to_owned();
        let message = "with \"open\", the gateway signs for clients with an unproven address, and a signature with RSA \
                       or ML-DSA costs too much CPU time";
        section.sink.error(&written.span, message, Some(help));
    }
    written.value
}

/// Warns of listeners that no host uses. A plain one may be there for the challenges of ACME alone (`has_acme`).
pub(super) fn warn_idle(sink: &Sink, listeners: &[Draft], targets: &[Target], hosts: &Hosts, has_acme: bool) {
    if hosts.all.is_empty() || hosts.incomplete {
        // That is told.
        return;
    }
    for (listener, target) in listeners.iter().zip(targets) {
        let is_plain = !listener.has_tls() && !listener.broken_tls && listener.mode == Mode::Http;
        if !target.hosts.is_empty() || !target.protocols.is_empty() || (has_acme && is_plain) {
            continue;
        }
        let (message, help) = match listener.mode {
            Mode::Tcp => ("closes every connection: no host with \"passthrough\" uses it", "add one"),
            Mode::Udp => ("drops every datagram: no host with \"passthrough\" and udp:// servers uses it", "add one"),
            Mode::Http => ("refuses every request: no host uses it", "name it in \"listeners\" of a host"),
        };
        let message = format!("listener {} {message}", listener.written);
        sink.warn(&listener.span, message, Some(format!("{help}, or remove the listener")));
    }
}

/// A name without a certificate, and the listeners that serve it.
struct Uncovered<'a> {
    name: &'a At<NamePattern>,
    listeners: Vec<&'a str>,
}

/// Warns of hosts whose clients would get a certificate for another name: once per name, whatever the number of
/// listeners. `has_acme`: automatic certificates are known.
pub(super) fn warn_uncovered(sink: &Sink, listeners: &[Draft], targets: &[Target], hosts: &Hosts, has_acme: bool) {
    // By place and advice.
    let mut found: BTreeMap<(usize, &str), Uncovered> = BTreeMap::new();
    for (listener, target) in listeners.iter().zip(targets) {
        let Some(tls) = &listener.tls else { continue };
        let Some(policy) = tls.policies.first().filter(|_| tls.automatic.is_none() || has_acme) else { continue };
        let usual = match policy.identities.default.is_empty() {
            true => {
                "add a certificate for this name: with strict_sni = true, the gateway refuses clients that ask for this name"
            }
            false => {
                "add a certificate for this name: clients that ask for this name get the default certificate, and do \
                 not accept it"
            }
        };
        for (pattern, host) in target.hosts.iter() {
            let ip = matches!(&pattern, NamePattern::Exact(n) if n.starts_with('[') || n.parse::<IpAddr>().is_ok());
            let relayed = matches!(hosts.action(*host), Action::Passthrough { .. });
            // Its names get their certificates when clients ask for them.
            let on_demand = policy.identities.on_demand && !matches!(pattern, NamePattern::Exact(_));
            if ip || relayed || on_demand || pattern == NamePattern::Any || load::covers(&policy.identities, &pattern) {
                continue;
            }
            let Some(name) = hosts.place(*host, &pattern) else { continue };
            let help = match &pattern {
                NamePattern::AnyDepth(_) if tls.automatic.is_some() => {
                    "certificates = \"auto\" cannot get a certificate for a name with \"**\", because a wildcard of a certificate \
                     stands for one label: list each name instead, or write a name such as \"*.example.com\" and set \
                     challenges = [\"dns-01\"] or [\"dns-persist-01\"] in [acme]"
                }
                NamePattern::OneLabel(_) if tls.automatic.is_some() => {
                    "certificates = \"auto\" gets a certificate for a name with \"*\" only by \"dns-01\" or \"dns-persist-01\": \
                     set challenges = [\"dns-01\"] or [\"dns-persist-01\"] in [acme], or list each name instead"
                }
                _ => usual,
            };
            let new = || Uncovered { name, listeners: Vec::new() };
            let uncovered = found.entry((name.span.start, help)).or_insert_with(new);
            if !uncovered.listeners.contains(&listener.written.as_str()) {
                uncovered.listeners.push(&listener.written);
            }
        }
    }
    for ((_, help), Uncovered { name, listeners }) in found {
        let these = match listeners[..] {
            [one] => format!("listener {one}"),
            _ => format!("listeners {}", listeners.join(", ")),
        };
        let message = format!("no certificate of {these} is for \"{}\"", name.value);
        sink.warn(&name.span, message, Some(help.to_owned()));
    }
}
