//! The configuration: a TOML file, or a command's arguments, read into checked, plain data.
//!
//! ```text
//!  model                             resolve (in control)                       snapshot
//!
//!  Document::read ── Questions ────▶ opens files, looks up users
//!        ▲                                      │
//!        └───────────── Answers ◀───────────────┘
//!        │
//!        ├── every mistake, with its place ──▶ Errors
//!        └── decode, listener, host, upstream, tls, certificates ──▶ Config ── snapshot_parts ──▶ what lanes get
//! ```
//!
//! Reading is a function of the text and of [`Answers`]: it opens no file and asks no network. What passes `check` also
//! starts, since every file that the configuration names is asked for. Nothing that is wrong stops the reading: all errors are
//! reported at once.

mod access;
mod access_log;
mod acme;
mod addresses;
mod admin_listeners;
mod args;
mod audit;
mod authentication;
mod balancing;
mod certificates;
mod changes;
mod collector;
mod compression;
mod conditions;
mod cors;
mod decode;
mod diagnostics;
mod document;
mod edit;
mod example;
mod fields;
mod files;
mod fleet;
mod forwarding;
mod host;
mod http3;
mod https_records;
mod include;
mod level;
mod listen_address;
mod listener;
mod loops;
mod names;
mod pages;
mod parts;
mod paths;
mod plan;
mod policy_id;
mod post_quantum;
mod rate;
mod redirects;
mod reference;
mod response_rewrites;
mod revocation;
mod route;
mod schema;
mod settings;
mod shadowed;
mod show;
mod sites;
mod snippets;
mod surroundings;
mod templates;
mod tls;
mod traces;
mod transparency;
mod trust;
mod tunnel;
mod upstream;
mod values;

pub use access::{AccessLists, read_list_again, read_users_again};
pub use access_log::{AccessLogTarget, Rotation, Syslog, SyslogTls};
pub use acme::{
    Acme, AcmeAuthority, AcmeChallenge, AcmeSettings, AskUrl, DnsUpdate, ExternalAccount, ON_DEMAND_INDEX,
    OnDemandSettings, TsigAlgorithm, challenge_policy,
};
pub use admin_listeners::{AdminTls, AdminTlsFiles, read_admin_tls_again};
pub use args::{Answer, CommandLine};
pub use audit::{POLICIES, Policy};
pub use certificates::load::{Loaded, NotValid, address_of, first_line, parse_revocation_lists};
pub use certificates::token::{TokenKey, TokenUri};
pub use certificates::{CertificateFiles, CertificateSet, encrypted_key, read_again, read_kept, read_sent};
pub use collector::{Collector, CollectorEndpoint, CollectorHeader, CollectorProtocol, Signal};
pub use diagnostics::{Diagnostic, Errors, Place, Severity, Warning};
pub use document::{Document, Origin, Reading, about_file};
pub use edit::{ServerEdit, edit_servers};
pub use example::example;
pub use files::{plain, shell_word};
pub use fleet::{
    KeyList, SharedEarlyData, SharedRateLimits, StoreSettings, StoreUrl, TicketKeySource, read_ticket_keys_again,
};
pub use http3::Http3;
pub use https_records::HttpsRecord;
pub use include::{Include, MAX_INCLUDED};
pub use level::{LEVELS, Level, LogSettings};
pub use listen_address::{ListenAddress, UnixSocket};
pub use names::{Endpoint, Found, ResolverKind, ServiceRecord, service_domain};
pub use parts::{ListenerParts, Parts, snapshot_parts};
pub use plan::{DatagramCheck, EJECT_DOUBLINGS, HealthCheck, Plan, ServerPlan};
pub use post_quantum::{Protection, Readiness};
pub use redirects::{RedirectTables, read_redirects_again};
pub use reference::generated;
pub use revocation::{
    CertificateDigest, FetchedList, Revocation, RevocationSettings, Staples, hex, read_revocation_lists_again,
    read_tunnel_lists_again,
};
pub use schema::schema;
pub use sealane_passwords::Users;
pub use sealane_proxy::redirects::RedirectTable;
pub use sealane_route::AddressSet;
pub use sealane_tls::{certificate_problem, connection_error_in_words};
pub use show::Effective;
pub use sites::is_same_server;
pub use surroundings::{Answers, Content, Kind, MAX_FILE, Print, Question, Unreadable};
pub use traces::{Otlp, OtlpSettings, TraceSettings, Traces};
pub use transparency::read_log_list_again;
pub use trust::Trust;
pub use tunnel::{
    CertificateId, ClientCertificates, Ldap, LdapFilter, LdapGroups, LdapPart, LdapUrl, LdapValue, Management, Oidc,
    Revoked, SharedTokenSecret, Tunnel, TunnelClient, TunnelGroup, TunnelMember, TunnelParts, Webhook,
};
pub use upstream::{NamedServer, added_server, expand, written_server};

use addresses::{Addresses, Protocol};
use admin_listeners::Admin;
use decode::{At, Section};
use diagnostics::Sink;
use host::{Hosts, Target, Upstreams};
use route::Routes;
use sealane_http::h1::Limits;
use sealane_proxy::AccessLogRules;
use sealane_proxy::request_ids::RequestIdRules;
use sealane_proxy::snapshot::{Action, ClientLimits, Routing, Upstream};
use sealane_route::{NameMap, SiteMap};
use sealane_sys::privileges::User;
use sealane_tls::policy::ListenerTls;
use sealane_tunnel::plane::Transport;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use toml::de::{DeTable, DeValue};

/// How many tables of a kind the operator has written. Of one listener, there may be several in [`Config::listeners`]; `to` makes
/// an upstream that nobody has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// `[[listener]]`
    pub listeners: usize,
    /// `[[host]]`
    pub hosts: usize,
    /// `[[upstream]]`
    pub upstreams: usize,
}

impl Written {
    fn count(top: &DeTable) -> Self {
        let tables = |key: &str| match top.get(key).map(|node| node.get_ref()) {
            Some(DeValue::Array(tables)) => tables.len(),
            Some(_) => 1,
            None => 0,
        };
        Self { listeners: tables("listener"), hosts: tables("host"), upstreams: tables("upstream") }
    }
}

/// A checked configuration.
#[derive(Debug)]
pub struct Config {
    /// Where it came from, to be read again on a reload.
    pub origin: Origin,
    /// Every file that it names and that was read, certificates and the like; and itself, if it is one.
    pub files: Vec<PathBuf>,
    /// How the files were when they were read, as far as the stage "resolve" has read them: what differs has changed since.
    pub prints: HashMap<PathBuf, Print>,
    /// The SHA-256 digests of the files that its text is from, as far as the stage "resolve" has read them.
    pub digests: HashMap<PathBuf, [u8; 32]>,
    /// Its settings with defaults, and with secrets masked, as far as the stage "resolve" has made them: to tell what a reload has
    /// changed.
    pub effective: Arc<Effective>,
    /// Reload when one of the files changes.
    pub reload_on_change: bool,
    /// Who to be once everything is open, if it was started as root.
    pub user: Option<RunAs>,
    /// Threads that serve; each has its own connections.
    pub lanes: usize,
    /// Where metrics and health are served.
    pub admin: Option<SocketAddr>,
    /// Names under which they are served, besides addresses and `localhost`.
    pub admin_names: Vec<String>,
    /// How they are served to operators alone, by TLS with client certificates.
    pub admin_tls: Option<AdminTls>,
    /// The Unix socket where admin commands are accepted.
    pub admin_socket: Option<PathBuf>,
    /// The folder of the certificates that the API keeps.
    pub admin_storage: Option<PathBuf>,
    /// Where access log lines go.
    pub access_log: AccessLogTarget,
    /// When the file of the access log is replaced by a new one.
    pub rotation: Option<Rotation>,
    /// What they look like, and which requests get one.
    pub access_log_rules: Arc<AccessLogRules>,
    /// The log on the standard error.
    pub log: LogSettings,
    /// How long open connections may go on after the first signal to stop.
    pub drain_timeout: Duration,
    /// The same of upgraded and relayed connections. Not shorter.
    pub drain_upgraded_timeout: Duration,
    /// How long a session ticket is good for; ticket keys are replaced as often.
    pub ticket_lifetime: Duration,
    /// Where ticket keys come from.
    pub ticket_keys: TicketKeySource,
    /// What is shared with other gateways, and how.
    pub store: Option<StoreSettings>,
    /// Limits and timeouts towards clients.
    pub limits: ClientLimits,
    /// How many tables there are in its text.
    pub written: Written,
    /// One per address. Empty only where there is a tunnel.
    pub listeners: Vec<Listener>,
    /// Upstream groups; actions name them by index.
    pub upstreams: Vec<Arc<Upstream>>,
    /// The VPN, if there is one; taken when it is started.
    pub tunnel: Option<Box<Tunnel>>,
    /// The file of the VPN's revocation lists.
    pub tunnel_lists: Option<PathBuf>,
    /// How certificates are obtained, if some listener has `certificates = "auto"`.
    pub acme: Option<Acme>,
    /// How OCSP responses and revocation lists are fetched, if there is one to be fetched.
    pub revocation: Option<Revocation>,
    /// What control minds for each of them, in the same order.
    pub plans: Vec<Arc<Plan>>,
    /// Who resolves the names of servers.
    pub resolver: ResolverKind,
    /// The servers that have names.
    pub names: Vec<NamedServer>,
    /// Where `[admin] socket` stands.
    pub admin_socket_place: Option<Place>,
    /// Where `[log] access` stands.
    pub access_log_place: Option<Place>,
    /// Where `resolver` stands.
    pub resolver_place: Option<Place>,
    /// Where `compression` stands for the first time.
    pub compression_place: Option<Place>,
    /// The addresses that are listened on, and where they stand.
    pub listens: Vec<(SocketAddr, Place)>,
    /// The paths of Unix sockets that listeners listen on, and where they stand.
    pub socket_places: Vec<(PathBuf, Place)>,
    /// The addresses of those names, as far as the stage "resolve" has found any.
    pub resolved: HashMap<String, Found>,
    /// What hosts' rules refer to, and rates.
    pub routing: Arc<Routing>,
    /// Who may come, by address.
    pub access: AccessLists,
    /// Tables of redirects.
    pub redirects: RedirectTables,
    /// What metrics call the hosts, in the order of a listener's actions.
    pub host_labels: Vec<String>,
    /// How many series of durations there may be.
    pub max_series: usize,
    /// How requests are traced, if they are.
    pub traces: Option<Traces>,
    /// In which header requests have ids, if they have any.
    pub request_ids: Option<Arc<RequestIdRules>>,
    /// Where metrics and the log go.
    pub otlp: Option<Otlp>,
}

/// Who the process becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunAs {
    /// The user.
    pub user: User,
    /// Its group, if not the user's first.
    pub gid: u32,
}

/// One listening address.
#[derive(Debug)]
pub struct Listener {
    /// Where to listen.
    pub address: ListenAddress,
    /// The port by which clients come.
    pub public_port: u16,
    /// `None`: plain HTTP.
    pub tls: Option<ListenerTls>,
    /// The certificates of `tls`, and the files they are from.
    pub certificates: Option<Arc<CertificateSet>>,
    /// Whose word about clients is taken.
    pub trust: Trust,
    /// Who may come: an index into [`AccessLists::rules`].
    pub access: Option<usize>,
    /// CONNECT is allowed.
    pub allow_connect: bool,
    /// TRACE is allowed.
    pub allow_trace: bool,
    /// Whether TLS handshakes may begin in the SYN; without meaning where there is no TLS.
    pub syn_tls: SynTls,
    /// HTTP/2 by prior knowledge, without TLS.
    pub h2c: bool,
    /// Whether what comes is read, or relayed: no TLS of ours, no HTTP.
    pub mode: Mode,
    /// OpenVPN clients may come over TCP.
    pub tunnel: bool,
    /// HTTP/3 at the same address.
    pub http3: Option<Http3>,
    /// Which policy and which of `actions` a name has.
    pub sites: Arc<SiteMap>,
    /// What is done with requests, by host; the same for all listeners.
    pub actions: Arc<[Action]>,
}

/// What a listener does with what comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It serves HTTP.
    #[default]
    Http,
    /// It relays connections.
    Tcp,
    /// It relays datagrams.
    Udp,
}

impl Mode {
    /// As the setting has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// Whether a `ClientHello` is taken from a SYN (RFC 7413).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SynTls {
    /// It never is.
    Off,
    /// From clients that show the cookie of an earlier contact.
    #[default]
    Cookie,
    /// From first contacts, too.
    Open,
}

impl Config {
    /// An error about an address that is to be listened on, with the line that names the address.
    pub fn locate_address(&self, address: SocketAddr, error: impl Into<anyhow::Error>) -> anyhow::Error {
        match self.listens.iter().find(|(listens, _)| *listens == address) {
            Some((_, place)) => place.locate(error.into()),
            None => error.into(),
        }
    }

    /// Whether datagrams are relayed at an address, as it is written.
    pub fn relays_udp_at(&self, address: SocketAddr) -> bool {
        self.listeners.iter().any(|l| l.address.ip() == Some(address) && l.mode == Mode::Udp)
    }

    /// Whether HTTP/3 is served at an address, as it is written.
    pub fn has_http3_at(&self, address: SocketAddr) -> bool {
        self.listeners.iter().any(|l| l.address.ip() == Some(address) && l.http3.is_some())
    }
}

/// How long upgraded connections may go on after requests have had their time.
fn drain_upgraded(top: &Section, drain_timeout: Duration) -> Duration {
    let Some(written) = top.optional_at(&settings::top::drain_upgraded_timeout) else { return drain_timeout };
    if written.value < drain_timeout {
        let message = "\"drain_upgraded_timeout\" is shorter than \"drain_timeout\"";
        let help = "upgraded connections may continue longer than requests, not shorter: write a longer duration, or remove \
                    \"drain_upgraded_timeout\"";
        top.sink.error(&written.span, message, Some(help.to_owned()));
    }
    written.value
}

fn read(sink: &Sink, table: &DeTable, origin: Origin) -> Option<Config> {
    let top = Section::new(sink, &settings::top::TABLE, table, 0..0);
    let lanes = top.optional(&settings::top::lanes);
    let drain_timeout = top.or(&settings::top::drain_timeout);
    let drain_upgraded_timeout = drain_upgraded(&top, drain_timeout);
    let ticket_lifetime = top.or(&settings::top::ticket_lifetime);
    let reload_on_change = top.or(&settings::top::reload_on_change);
    include::check(&top);
    // They have been put into their places.
    let _ = top.optional(&settings::top::snippet);
    tunnel::undecided(&top, &settings::top::undecided, "docs/reference/import.md");
    let user = run_as(&top);
    let mut addresses = Addresses::default();
    let Admin { listen: admin, names: admin_names, socket: admin_socket, tls: admin_tls, storage: admin_storage } =
        top.table(&settings::top::admin).map_or_else(Admin::default, |s| admin_listeners::read(s, &mut addresses));
    let (admin_socket, admin_socket_place) = admin_socket.unzip();
    let log_section = top.table(&settings::top::log);
    let messages = log_section.as_ref().map(messages).unwrap_or_default();
    let access_log = log_section.map_or_else(access_log::AccessLog::default, access_log::read);
    let max_series = metrics(&top);
    let mut routing = Routing::default();
    let limits = limits(&top, &mut routing);
    let (resolver, resolver_place) =
        top.optional_at(&settings::top::resolver).map(|at| (at.value, sink.place_of(&at.span))).unzip();
    let resolver = resolver.unwrap_or_default();

    let mut store = certificates::load::Store::new();
    store.fetching = revocation::fetching(&top);
    let listeners_absent = top.key_span("listener").is_none();
    let mut routes = Routes::default();
    let mut listeners = listener::read_all(&top, user.as_ref(), &mut store, &mut addresses, &mut routes);
    let mut targets: Vec<Target> = listeners
        .iter()
        .map(|l| Target {
            written: l.written.clone(),
            mode: l.mode,
            tls: l.has_tls(),
            hosts: NameMap::default(),
            protocols: Vec::new(),
        })
        .collect();

    let udp_listeners = listeners.iter().filter(|l| l.mode == Mode::Udp).filter_map(|l| l.address.ip()).collect();
    let takes_early_data = listeners.iter().any(listener::Draft::takes_early_data);
    let mut context =
        upstream::Context { store: &mut store, resolver, names: Vec::new(), udp_listeners, takes_early_data };
    let mut upstreams = Upstreams::default();
    let (rate_limits, rate_places) = rate::read_all(&top, &mut routes);
    routing.rate_limits = rate_limits;
    let (concurrency_limits, concurrency_places) = rate::read_concurrency(&top, &mut routes);
    routing.concurrency_limits = concurrency_limits;
    let mut places = Vec::new();
    for section in top.tables(&settings::top::upstream) {
        let (name, upstream) = upstream::read(section, &mut context);
        let index = upstream.map(|(u, plan)| upstreams.push(u, plan));
        if let Some(name) = name {
            if upstreams.named.insert(name.value.clone(), index).is_some() {
                let help = Some("give it another name".to_owned());
                sink.error(&name.span, format!("a second upstream \"{}\"", name.value), help);
            }
            places.push(name);
        }
    }
    let mut hosts = Hosts::default();
    let sections = top.tables(&settings::top::host);
    let only_tunnel = top.key_span("tunnel").is_some() && listeners_absent;
    if sections.is_empty() && !only_tunnel {
        let help = "add [[host]] with names = [\"*\"] and to = [\"http://127.0.0.1:3000\"]".to_owned();
        top.missing("there is no [[host]]: the gateway would refuse every request".to_owned(), help);
    }
    for section in sections {
        host::read(section, &mut targets, &mut hosts, &mut upstreams, &mut routes, &mut context);
    }
    forwarding::separate_mirrors(sink, &upstreams, &routes.all, &hosts);
    listener::warn_idle(sink, &listeners, &targets, &hosts, top.key_span("acme").is_some());
    listener::check_relays(sink, &listeners, &targets, &hosts);
    let names = std::mem::take(&mut context.names);
    for name in places.iter().filter(|n| !upstreams.dangling && !upstreams.used.contains(&n.value)) {
        let help = format!("remove it, or write upstream = \"{}\" in a host or route", name.value);
        sink.warn(&name.span, format!("no host uses the upstream \"{}\"", name.value), Some(help));
    }
    let tunnel_lanes = lanes.map_or_else(default_lanes, |n| n as usize);
    let tunnel_span = top.key_span("tunnel");
    let mut tunnel = top.table(&settings::top::tunnel).and_then(|section| {
        audit::tunnel(sink, &section.span);
        let span = section.key_span("listen").unwrap_or_else(|| section.span.clone());
        let oidc_span = section.key_span("oidc");
        let settings = tunnel::read(section, tunnel_lanes, user.as_ref().map(|user| (user.user.uid, user.gid)))?;
        if let (Some(oidc), Some(span)) = (&settings.oidc, oidc_span) {
            tunnel::check_login_route((sink, &span), oidc, &targets, &hosts, &routes.all, &upstreams.plans);
        }
        for (transport, address) in &settings.listen {
            let protocol = match transport {
                Transport::Udp => Protocol::Udp,
                Transport::Tcp => Protocol::Tcp,
            };
            addresses.take(sink, protocol, *address, true, &span);
        }
        Some(Box::new(settings))
    });
    listener::check_tunnel(sink, &listeners, tunnel_span, tunnel.as_deref_mut());
    routes.limits.warn_unused(sink, &rate_places, "rate limit", "rate_limit");
    routes.concurrency_limits.warn_unused(sink, &concurrency_places, "concurrency limit", "concurrency_limit");
    let compression_place = routes.compression.take().map(|span| sink.place_of(&span));
    routing.routes = routes.all;
    let mut access = routes.access;
    access.compile();
    let mut redirects = routes.redirects;
    redirects.compile();
    routing.patterns = routes.patterns;
    routing.pages = routes.pages;
    routing.host_responses = routes.host_responses;
    routing.has_cors = routing.routes.iter().any(|route| route.responses.cors.is_some());

    let is_automatic = |l: &listener::Draft| l.tls.as_ref().is_some_and(|tls| tls.automatic.is_some());
    let automatic = listeners.iter().any(is_automatic);
    let (ticket_keys, store_settings) = fleet::read(&top, takes_early_data, automatic);
    let mut acme = acme::read(&top, &mut listeners, &targets, &hosts, context.store);
    if let Some(acme) = &mut acme {
        acme.settings.store = store_settings.clone().filter(|store| store.certificates);
    }
    let revocation = revocation::give_staples(&top, context.store, &mut listeners);
    let traces = traces::read(&top);
    let request_ids = forwarding::request_ids(&top, &routing.routes);
    let otlp = traces::read_otlp(&top);
    top.finish();
    routing.secrets = Arc::new(sink.secrets());
    loops::check(sink, &listeners, &targets, &hosts, &routing.routes, &upstreams);
    audit::limits(sink);
    audit::plain_listeners(sink, &listeners, &targets, &hosts);
    audit::plain_upstreams(sink, &places, &upstreams, &hosts);
    if !sink.offline() {
        listener::warn_uncovered(sink, &listeners, &targets, &hosts, acme.is_some());
    }
    let (sites, actions, host_labels) =
        sites::compile(sink, &listeners, &targets, hosts, &routing.routes, &upstreams.plans);
    let actions: Arc<[Action]> = actions.into();
    let out = listeners.into_iter().zip(sites).map(|(l, sites)| l.into_listener(sites, actions.clone())).collect();
    Some(Config {
        origin,
        files: Vec::new(),
        prints: HashMap::new(),
        digests: HashMap::new(),
        effective: Arc::default(),
        reload_on_change,
        user,
        lanes: lanes.map_or_else(default_lanes, |n| n as usize),
        admin,
        admin_names,
        admin_tls,
        admin_socket,
        admin_storage,
        access_log: access_log.target,
        rotation: access_log.rotation,
        access_log_rules: Arc::new(access_log.rules),
        log: messages,
        drain_timeout,
        drain_upgraded_timeout,
        ticket_lifetime,
        ticket_keys,
        store: store_settings,
        limits,
        written: Written::count(table),
        listeners: out,
        upstreams: upstreams.all,
        tunnel_lists: tunnel.as_ref().and_then(|tunnel| tunnel.lists.clone()),
        tunnel,
        acme,
        revocation,
        plans: upstreams.plans,
        resolver,
        names,
        admin_socket_place,
        access_log_place: access_log.place,
        resolver_place,
        compression_place,
        socket_places: addresses.socket_places(),
        listens: addresses.places(),
        resolved: HashMap::new(),
        routing: Arc::new(routing),
        access,
        redirects,
        host_labels,
        max_series,
        traces,
        request_ids,
        otlp,
    })
}

/// Who resolves names: "dns", "system" or the address of a DNS server.
fn read_resolver(sink: &Sink, key: &str, node: &decode::Node) -> Option<ResolverKind> {
    let s = decode::text(sink, key, node)?;
    match s.as_str() {
        "dns" => return Some(ResolverKind::Dns),
        "system" => return Some(ResolverKind::System),
        _ => {}
    }
    let address = s.parse::<SocketAddr>().or_else(|_| s.parse::<std::net::IpAddr>().map(|ip| (ip, 53).into()));
    if address.is_err() {
        let help = format!("write {key} = \"127.0.0.53\", {key} = \"[::1]:5353\", \"dns\" or \"system\"");
        sink.error(&node.span(), format!("\"{s}\" is not the address of a DNS server"), Some(help));
    }
    address.ok().map(ResolverKind::Server)
}

/// The cores that this process may use: affinity and cgroup quota counted.
fn default_lanes() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// `user` and `group`, looked up.
fn run_as(top: &Section) -> Option<RunAs> {
    let user = top.optional_at(&settings::top::user);
    let group = top.optional_at(&settings::top::group);
    let sink = top.sink;
    let Some(user) = user else {
        if let Some(group) = group {
            sink.error(&group.span, "\"group\" without \"user\"", Some("add user = \"sealane\"".to_owned()));
        }
        return None;
    };
    let (found, gid) = (sink.user(&user.value), group.as_ref().map(|group| (group, sink.group(&group.value))));
    let unknown = |what: &str, name: &At<String>, help: String| {
        sink.error(&name.span, format!("there is no {what} \"{}\" on this machine", name.value), Some(help));
    };
    let Some(found) = found? else {
        unknown("user", &user, format!("create it: sudo useradd --system --no-create-home {}", user.value));
        return None;
    };
    let gid = match gid {
        None => found.gid,
        Some((group, gid)) => match gid? {
            Some(gid) => gid,
            None => {
                unknown("group", group, format!("create it: sudo groupadd --system {}", group.value));
                return None;
            }
        },
    };
    let found = found.clone();
    Some(RunAs { user: found, gid })
}

/// Reads `[metrics]`: how many series of durations there may be.
fn metrics(top: &Section) -> usize {
    let Some(section) = top.table(&settings::top::metrics) else {
        return settings::metrics::max_series.default() as usize;
    };
    let max_series = section.or(&settings::metrics::max_series) as usize;
    section.finish();
    max_series
}

/// The settings of the log on the standard error.
fn messages(section: &Section) -> LogSettings {
    LogSettings { level: section.or(&settings::log::level), json: section.or(&settings::log::message_format) }
}

/// A number for which 0 means "no limit" in the file, as lanes have it: they need not ask, since no number is larger.
fn unlimited(n: u64) -> u64 {
    if n == 0 { u64::MAX } else { n }
}

/// Reads `[limits]`; without the table every limit has its default.
fn limits(top: &Section, routing: &mut Routing) -> ClientLimits {
    use settings::limits as s;
    // A table without settings has the defaults, which is simpler than a second list of them.
    let empty = DeTable::new();
    let section = top.table(&settings::top::limits);
    let section = section.unwrap_or_else(|| Section::new(top.sink, &s::TABLE, &empty, 0..0));
    let head = section.or(&s::max_header_size) as usize;
    let uri = section.optional_at(&s::max_uri_size);
    let target = uri.as_ref().map_or_else(|| s::max_uri_size.default(), |u| u.value) as usize;
    if let Some(uri) = uri.filter(|u| u.value as usize > head) {
        let help =
            "the URI counts as part of the head: write a smaller \"max_uri_size\", or a larger \"max_header_size\""
                .to_owned();
        section.sink.error(&uri.span, "\"max_uri_size\" is above \"max_header_size\"", Some(help));
    }
    let prefixes = (section.or(&s::rate_ipv4_prefix) as u8, section.or(&s::rate_ipv6_prefix) as u8);
    let entries = section.or(&s::rate_entries) as usize;
    routing.connection_rate = rate::of_clients(&section, &s::connection_rate, &s::connection_burst, prefixes, entries);
    routing.handshake_rate = rate::of_clients(&section, &s::handshake_rate, &s::handshake_burst, prefixes, entries);
    let fields = section.or(&s::max_header_fields) as usize;
    let out = ClientLimits {
        http: Limits { head, target: target.min(head), fields, ..Limits::default() },
        max_body: unlimited(section.or(&s::max_body_size)),
        max_connections: section.or(&s::max_connections) as usize,
        max_per_client: section.or(&s::max_connections_per_client) as u32,
        max_requests_per_client: section.or(&s::max_requests_per_client) as u32,
        client_prefixes: prefixes,
        max_memory: section.or(&s::max_memory),
        compressors: section.or(&s::max_compressed_responses) as usize,
        handshake_timeout: section.or(&s::handshake_timeout),
        header_timeout: section.or(&s::header_timeout),
        keepalive_timeout: section.or(&s::keepalive_timeout),
        idle_timeout: section.or(&s::idle_timeout),
        min_body_rate: section.or(&s::min_body_rate),
        max_streams: section.or(&s::max_streams) as u32,
        max_requests: unlimited(section.or(&s::max_requests)),
        handshake_budget: section.or(&s::handshake_budget),
    };
    section.finish();
    out
}
