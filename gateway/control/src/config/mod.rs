//! The configuration: a TOML file, or a command's arguments, read into checked, plain data.
//!
//! ```text
//! text ── toml ──▶ spanned document ── decode, listener, host, upstream, tls, identity ──▶ Config
//!                        │                                                                   │
//!                        └── every mistake, with its place ──▶ Errors        snapshot_parts ─┴─▶ what lanes get
//! ```
//!
//! Reading opens every file that the configuration names, so that what passes `check` also starts. Nothing that is wrong
//! stops the reading: all errors are reported at once. Names of servers are resolved afterwards ([`Config::resolve`]).

mod addresses;
mod args;
mod balancing;
mod decode;
mod diagnostics;
mod host;
mod http3;
mod identity;
mod listener;
mod parts;
mod plan;
mod policy_id;
mod rate;
mod route;
mod schema;
mod sites;
mod tls;
mod trust;
mod tunnel;
mod upstream;

pub use args::{Answer, CommandLine};
pub use diagnostics::{Diagnostic, Errors, Severity, Warning};
pub use http3::{Http3, https_record};
pub use parts::{ListenerParts, Parts, snapshot_parts};
pub use plan::{EJECT_DOUBLINGS, HealthCheck, Plan, ServerPlan};
pub use schema::schema;
pub use trust::Trust;
pub use upstream::NamedServer;
pub(crate) use upstream::expand;

use crate::dns::{self, Found, ResolverKind};
use addresses::{Addresses, Protocol};
use decode::{At, Section};
use diagnostics::{Place, Sink, Source};
use host::{Hosts, Target, Upstreams};
use route::Routes;
use sealane_http::RequestHead;
use sealane_http::h1::Limits;
use sealane_proxy::LogFormat;
use sealane_proxy::snapshot::{Action, ClientLimits, Routing, Upstream};
use sealane_route::{NameMap, SiteMap};
use sealane_sys::privileges::User;
use sealane_tls::policy::ListenerTls;
use sealane_tunnel::plane::Transport;
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use toml::de::DeTable;

/// A configuration file is no larger: ten thousand certificates with long paths are 2 MB.
const MAX_FILE: u64 = 64 << 20;

/// A checked configuration.
#[derive(Debug)]
pub struct Config {
    /// Where it came from, to be read again on a reload.
    pub origin: Origin,
    /// Every file that it names and that was read, certificates and the like; and itself, if it is one.
    pub files: Vec<PathBuf>,
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
    /// The Unix socket where orders are taken.
    pub admin_socket: Option<PathBuf>,
    /// Where access log lines go.
    pub access_log: AccessLogTarget,
    /// What they look like.
    pub log_format: LogFormat,
    /// How long open connections may go on after the first signal to stop.
    pub drain_timeout: Duration,
    /// How long a session ticket is good for; ticket keys are replaced as often.
    pub ticket_lifetime: Duration,
    /// Limits and timeouts towards clients.
    pub limits: ClientLimits,
    /// One per address. Empty only where there is a tunnel.
    pub listeners: Vec<Listener>,
    /// Upstream groups; actions name them by index.
    pub upstreams: Vec<Arc<Upstream>>,
    /// The VPN, if there is one; whoever starts it takes it.
    pub tunnel: Option<Box<crate::vpn::settings::Settings>>,
    /// What control minds for each of them, in the same order.
    pub plans: Vec<Arc<Plan>>,
    /// Who resolves the names of servers.
    pub resolver: ResolverKind,
    /// The servers that have names.
    pub names: Vec<NamedServer>,
    /// Where that is written.
    admin_socket_place: Option<Place>,
    access_log_place: Option<Place>,
    /// The addresses that are listened on, and where they stand.
    listens: Vec<(SocketAddr, Place)>,
    /// The addresses of those names, as far as [`Config::resolve`] has found any.
    pub resolved: HashMap<String, Found>,
    /// What hosts' rules refer to, and rates.
    pub routing: Arc<Routing>,
}

/// Where a configuration came from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A file.
    File(PathBuf),
    /// A command's arguments.
    CommandLine(Box<CommandLine>),
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
    pub address: SocketAddr,
    /// `None`: plain HTTP.
    pub tls: Option<ListenerTls>,
    /// Whose word about clients is taken.
    pub trust: Trust,
    /// CONNECT is allowed.
    pub allow_connect: bool,
    /// TRACE is allowed.
    pub allow_trace: bool,
    /// Whether TLS handshakes may begin in the SYN; without meaning where there is no TLS.
    pub syn_tls: SynTls,
    /// HTTP/2 by prior knowledge, without TLS.
    pub h2c: bool,
    /// What comes is relayed, not read: no TLS of ours, no HTTP.
    pub tcp: bool,
    /// HTTP/3 at the same address.
    pub http3: Option<Http3>,
    /// Which policy and which of `actions` a name has.
    pub sites: Arc<SiteMap>,
    /// What is done with requests, by host; the same for all listeners.
    pub actions: Arc<[Action]>,
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

/// Where access log lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLogTarget {
    /// Nowhere: lanes do not even make them.
    Off,
    /// To the standard output.
    Stdout,
    /// Appended to a file, which is opened again on SIGUSR1.
    File(PathBuf),
}

impl Config {
    /// Whether HTTP/3 is served at an address, as it is written.
    pub fn has_http3_at(&self, address: SocketAddr) -> bool {
        self.listeners.iter().any(|l| l.address == address && l.http3.is_some())
    }

    /// Reads and checks a file, and everything that it names.
    ///
    /// Errors are all that are wrong with it, each with its place; displayed, they are ready to be printed.
    pub fn load(path: &Path) -> Result<(Config, Vec<Warning>), Errors> {
        Self::read_file(path, false)
    }

    /// Checks a file alone, and nothing that it names: no other file, no user, no folder. Not to be served.
    pub fn load_offline(path: &Path) -> Result<(Config, Vec<Warning>), Errors> {
        Self::read_file(path, true)
    }

    fn read_file(path: &Path, offline: bool) -> Result<(Config, Vec<Warning>), Errors> {
        let name = path.display().to_string();
        let unreadable = |message: String, help: Option<String>| Errors {
            errors: vec![Diagnostic {
                severity: Severity::Error,
                file: name.clone(),
                line: 0,
                column: 0,
                message,
                help,
                excerpt: String::new(),
            }],
            warnings: Vec::new(),
            files: Vec::new(),
        };
        let read = std::fs::metadata(path).and_then(|meta| match meta.len() > MAX_FILE {
            true => Err(std::io::Error::from(std::io::ErrorKind::FileTooLarge)),
            false => std::fs::read(path),
        });
        let bytes = read.map_err(|e| {
            let help = (e.kind() == std::io::ErrorKind::NotFound)
                .then(|| format!("start with an example: sealane config example > {name}"));
            unreadable(format!("cannot read the configuration: {}", identity::plain(&e)), help)
        })?;
        let text = String::from_utf8(bytes)
            .map_err(|e| unreadable(format!("not UTF-8 text at byte {}", e.utf8_error().valid_up_to()), None))?;
        // Relative paths are from the file's folder, wherever the program was started.
        let base = path.parent().unwrap_or(Path::new("")).to_path_buf();
        let (mut config, warnings) = Self::parse(&text, name, &base, Origin::File(path.to_path_buf()), offline)?;
        config.files.push(path.to_path_buf());
        Ok((config, warnings))
    }

    /// Resolves the names of servers, for at most `limit`. A name that does not resolve keeps the addresses that were
    /// known last; without any its servers are down until it resolves, which is a warning, too.
    pub async fn resolve(&mut self, limit: Duration) -> Vec<Warning> {
        let hosts: BTreeSet<String> = self.names.iter().map(|n| n.host.clone()).collect();
        let answers = dns::resolve_all(self.resolver, hosts, limit).await;
        let mut warnings = Vec::new();
        for NamedServer { host, place } in &self.names {
            let Some(Err(e)) = answers.get(host) else { continue };
            let why = identity::plain(e);
            let known = dns::last_known(host);
            let (message, help) = match &known {
                Some(_) => (format!("\"{host}\" does not resolve now: {why}"), "the addresses known last are used"),
                None => (
                    format!("\"{host}\" does not resolve: {why}"),
                    "the server is down until it does; \"resolver\" says who is asked",
                ),
            };
            warnings.push(place.diagnostic(Severity::Warning, message, Some(help.to_owned())));
            if let Some(addresses) = known {
                self.resolved.insert(host.clone(), Found { addresses, ttl: Some(Duration::ZERO) });
            }
        }
        self.resolved.extend(answers.into_iter().filter_map(|(host, found)| Some((host, found.ok()?))));
        warnings
    }

    /// [`Config::resolve`] for those who have nothing else to do meanwhile.
    pub fn resolve_and_wait(&mut self, limit: Duration) -> std::io::Result<Vec<Warning>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let warnings = runtime.block_on(self.resolve(limit));
        // Lookups that hang are not waited for.
        runtime.shutdown_background();
        Ok(warnings)
    }

    /// What this machine, as it is now, would refuse when the gateway starts, and `check` says: addresses that are not
    /// its own, a file in the admin socket's place, a log that cannot be written.
    pub fn refused_here(&self) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        for (address, place) in &self.listens {
            if let Err(e) = crate::sockets::has_address(*address) {
                found.push(place.diagnostic(Severity::Error, e.to_string(), None));
            }
        }
        if let Some((socket, place)) = self.admin_socket.as_ref().zip(self.admin_socket_place.as_ref())
            && std::fs::symlink_metadata(socket).is_ok_and(|meta| !meta.file_type().is_socket())
        {
            let message = format!("{} is there and is no socket", socket.display());
            let help = "remove it, or choose another path".to_owned();
            found.push(place.diagnostic(Severity::Error, message, Some(help)));
        }
        // A warning: another user may serve.
        if let (AccessLogTarget::File(log), Some(place)) = (&self.access_log, &self.access_log_place)
            && !crate::user::may_write(log)
        {
            let message = format!("this user cannot write {}", log.display());
            let help = "whoever serves must: give the file, or its folder, to that user".to_owned();
            found.push(place.diagnostic(Severity::Warning, message, Some(help)));
        }
        found
    }

    /// Reads everything again from where it came from.
    pub fn reload(origin: &Origin) -> Result<(Config, Vec<Warning>), Errors> {
        match origin {
            Origin::File(path) => Self::load(path),
            Origin::CommandLine(args) => Self::from_command_line(args),
        }
    }

    /// Checks text. `name` is shown in messages; relative paths are from `base`.
    pub(crate) fn parse(
        text: &str,
        name: String,
        base: &Path,
        origin: Origin,
        offline: bool,
    ) -> Result<(Config, Vec<Warning>), Errors> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut sink = Sink::new(Source::new(name, text));
        sink.offline = offline;
        let (document, syntax) = DeTable::parse_recoverable(text);
        for e in &syntax {
            sink.syntax_error(&e.span().unwrap_or(0..0), e.message().replace('\n', ", "));
        }
        let config = read(&sink, document.get_ref(), base, origin);
        let files = sink.files();
        let (errors, warnings) = sink.finish();
        match config {
            Some(config) if errors.is_empty() => Ok((config, warnings)),
            _ => Err(Errors { errors, warnings, files }),
        }
    }
}

/// The path of `[tunnel] status` in a configuration file. Opens no other file, so whoever may read the configuration may
/// ask: certificates and keys are the gateway's.
pub fn tunnel_status_file(path: &Path) -> anyhow::Result<PathBuf> {
    use anyhow::Context as _;
    let shown = path.display();
    let size = std::fs::metadata(path).with_context(|| shown.to_string())?.len();
    anyhow::ensure!(size <= MAX_FILE, "{shown}: {size} bytes are no configuration");
    let text = std::fs::read_to_string(path).with_context(|| shown.to_string())?;
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| anyhow::anyhow!("{shown}: {}", e.message()))?;
    let tunnel = table.get("tunnel").with_context(|| format!("{shown}: there is no [tunnel] in it"))?;
    let status = tunnel
        .get("status")
        .and_then(toml::Value::as_str)
        .with_context(|| format!("{shown}: [tunnel] has no \"status\": add status = \"/run/sealane/tunnel.json\""))?;
    Ok(path.parent().unwrap_or(Path::new("")).join(status))
}

/// A complete example with every setting explained.
pub fn example() -> &'static str {
    include_str!("example.toml")
}

fn read(sink: &Sink, table: &DeTable, base: &Path, origin: Origin) -> Option<Config> {
    let top = Section::new(sink, "", table, 0..0);
    let lanes = top.optional("lanes", decode::count(1..=1024));
    let drain_timeout = top.or("drain_timeout", Duration::from_secs(30), decode::duration);
    // RFC 8446 §4.6.1: a ticket lives for seven days at most.
    let ticket_lifetime = top.optional_at("ticket_lifetime", decode::timeout);
    let allowed = Duration::from_secs(60)..=Duration::from_secs(7 * 86_400);
    if let Some(t) = ticket_lifetime.as_ref().filter(|t| !allowed.contains(&t.value)) {
        sink.error(&t.span, "\"ticket_lifetime\" is out of range: 1m to 7d", None);
    }
    let reload_on_change = top.or("reload_on_change", false, decode::boolean);
    let user = run_as(&top);
    let mut addresses = Addresses::default();
    let (admin, admin_names, admin_socket) =
        top.table("admin", "[admin]").map_or((None, Vec::new(), None), |s| admin(s, base, &mut addresses));
    let (admin_socket, admin_socket_place) = admin_socket.unzip();
    let (access_log, access_log_place, log_format) =
        top.table("log", "[log]").map_or((AccessLogTarget::Off, None, LogFormat::Combined), |s| log(s, base));
    let mut routing = Routing::default();
    let limits = limits(top.table("limits", "[limits]"), &mut routing);
    let resolver = top.or("resolver", ResolverKind::default(), resolver);

    let mut store = identity::Store::new();
    let listeners_absent = top.key_span("listener").is_none();
    let listeners = listener::read_all(&top, &mut store, base, &mut addresses);
    let mut targets: Vec<Target> = listeners
        .iter()
        .map(|l| Target { written: l.written.clone(), tcp: l.tcp, tls: l.has_tls(), hosts: NameMap::default() })
        .collect();

    let mut system = tls::SystemRoots::default();
    let mut context = upstream::Context { store: &mut store, system: &mut system, base, resolver, names: Vec::new() };
    let mut upstreams = Upstreams::default();
    let mut routes = Routes::default();
    let (rate_limits, rate_places) = rate::read_all(&top, &mut routes);
    routing.rate_limits = rate_limits;
    let mut places = Vec::new();
    for section in top.tables("upstream", "[[upstream]]") {
        let (name, upstream) = upstream::read(section, &mut context);
        let index = upstream.map(|(u, plan)| upstreams.push(u, plan));
        if let Some(name) = name {
            if upstreams.named.insert(name.value.clone(), index).is_some() {
                sink.error(&name.span, format!("a second upstream \"{}\"", name.value), None);
            }
            places.push(name);
        }
    }
    let mut hosts = Hosts::default();
    let sections = top.tables("host", "[[host]]");
    let only_tunnel = top.key_span("tunnel").is_some() && listeners_absent;
    if sections.is_empty() && !only_tunnel {
        let help = "add [[host]] with names = [\"*\"] and to = [\"http://127.0.0.1:3000\"]".to_owned();
        top.missing("there is no [[host]]: every request would be refused".to_owned(), help);
    }
    for section in sections {
        host::read(section, &mut targets, &mut hosts, &mut upstreams, &mut routes, &mut context);
    }
    let names = std::mem::take(&mut context.names);
    for name in places.iter().filter(|n| !upstreams.dangling && !upstreams.used.contains(&n.value)) {
        sink.warn(&name.span, format!("no host uses the upstream \"{}\"", name.value), None);
    }
    let tunnel_lanes = lanes.map_or_else(default_lanes, |n| n as usize);
    let tunnel = top.table("tunnel", "[tunnel]").and_then(|section| {
        let span = section.key_span("listen").unwrap_or_else(|| section.span.clone());
        let settings = tunnel::read(section, base, tunnel_lanes)?;
        for (transport, address) in &settings.listen {
            let protocol = match transport {
                Transport::Udp => Protocol::Udp,
                Transport::Tcp => Protocol::Tcp,
            };
            addresses.take(sink, protocol, *address, true, &span);
        }
        Some(Box::new(settings))
    });
    for name in rate_places.iter().filter(|n| !routes.used.contains(&n.value)) {
        sink.warn(&name.span, format!("no host uses the rate limit \"{}\"", name.value), None);
    }
    routing.routes = routes.all;
    top.finish();

    if !sink.offline {
        listener::warn_uncovered(sink, &listeners, &targets, &hosts);
    }
    let (sites, actions) = sites::compile(sink, &listeners, &targets, hosts, &routing.routes, &upstreams.plans);
    let actions: Arc<[Action]> = actions.into();
    let out = listeners.into_iter().zip(sites).map(|(l, sites)| l.into_listener(sites, actions.clone())).collect();
    Some(Config {
        origin,
        files: sink.files(),
        reload_on_change,
        user,
        lanes: lanes.map_or_else(default_lanes, |n| n as usize),
        admin,
        admin_names,
        admin_socket,
        access_log,
        log_format,
        drain_timeout,
        ticket_lifetime: ticket_lifetime.map_or(Duration::from_secs(12 * 3600), |t| t.value),
        limits,
        listeners: out,
        upstreams: upstreams.all,
        tunnel,
        plans: upstreams.plans,
        resolver,
        names,
        admin_socket_place,
        access_log_place,
        listens: addresses.places(),
        resolved: HashMap::new(),
        routing: Arc::new(routing),
    })
}

/// Who resolves names: "dns", "system" or the address of a DNS server.
fn resolver(sink: &Sink, key: &str, node: &decode::Node) -> Option<ResolverKind> {
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
    let user = top.optional_at("user", decode::text);
    let group = top.optional_at("group", decode::text);
    let sink = top.sink;
    if sink.offline && user.is_some() {
        return None;
    }
    let Some(user) = user else {
        if let Some(group) = group {
            sink.error(&group.span, "\"group\" without \"user\"", Some("add user = \"sealane\"".to_owned()));
        }
        return None;
    };
    let unknown = |what: &str, name: &At<String>, help: String| {
        sink.error(&name.span, format!("there is no {what} \"{}\" on this machine", name.value), Some(help));
    };
    let Ok(Some(found)) = sealane_sys::privileges::find_user(&user.value) else {
        unknown("user", &user, format!("make it: sudo useradd --system --no-create-home {}", user.value));
        return None;
    };
    let gid = match &group {
        None => found.gid,
        Some(group) => match sealane_sys::privileges::find_group(&group.value) {
            Ok(Some(gid)) => gid,
            _ => {
                unknown("group", group, format!("make it: sudo groupadd --system {}", group.value));
                return None;
            }
        },
    };
    Some(RunAs { user: found, gid })
}

fn admin(
    section: Section,
    base: &Path,
    addresses: &mut Addresses,
) -> (Option<SocketAddr>, Vec<String>, Option<(PathBuf, Place)>) {
    let socket = section.optional_at("socket", decode::text);
    let listen = match socket {
        Some(_) => section.optional_at("listen", decode::text),
        None => section.required("listen", "\"127.0.0.1:9901\"", decode::text),
    };
    let names = section.optional("names", decode::strings).unwrap_or_default();
    let sink = section.sink;
    section.finish();
    let names = names.into_iter().filter_map(|name| {
        let mut head = RequestHead::new();
        if head.set_authority(name.value.as_bytes()).is_err() || head.port().is_some() {
            let help = "write \"gateway.internal\", without a port".to_owned();
            sink.error(&name.span, format!("\"{}\" is no host name", name.value), Some(help));
            return None;
        }
        Some(head.host_name().to_owned())
    });
    let names = names.collect();
    let address = listen.and_then(|listen| {
        let address = *decode::listen_addresses(sink, &listen.value, &listen.span)?.first()?;
        if !address.ip().is_loopback() {
            let message = "the admin listener can be reached from other machines, without a password";
            sink.warn(&listen.span, message, Some(format!("write \"127.0.0.1:{}\"", address.port())));
        }
        addresses.take(sink, Protocol::Tcp, address, false, &listen.span);
        Some(address)
    });
    let socket = socket.and_then(|path| {
        let written = base.join(&path.value);
        let folder = written.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // sun_path has 108 bytes (unix(7)), of which we need some for a name to rename from.
        if path.value.is_empty() || written.as_os_str().len() > 90 {
            let help = Some("write \"/run/sealane/admin.sock\"".to_owned());
            sink.error(&path.span, "\"socket\" must be a path of 1 to 90 bytes", help);
            return None;
        }
        if !folder.is_dir() && !sink.offline {
            let help = format!("make it: mkdir -p {}", folder.display());
            sink.error(&path.span, format!("there is no folder {}", folder.display()), Some(help));
            return None;
        }
        Some((written, sink.place_of(&path.span)))
    });
    (address, names, socket)
}

const LOG_FORMATS: &[(&str, LogFormat)] = &[("combined", LogFormat::Combined), ("json", LogFormat::Json)];

fn log(section: Section, base: &Path) -> (AccessLogTarget, Option<Place>, LogFormat) {
    let format = section.or("format", LogFormat::Combined, decode::choice(LOG_FORMATS));
    let sink = section.sink;
    let access = section.optional_at("access", decode::text);
    section.finish();
    let place = access.as_ref().map(|access| sink.place_of(&access.span));
    (access.and_then(|access| log_target(sink, &access, base)).unwrap_or(AccessLogTarget::Off), place, format)
}

fn log_target(sink: &Sink, access: &At<String>, base: &Path) -> Option<AccessLogTarget> {
    match access.value.as_str() {
        "off" => Some(AccessLogTarget::Off),
        "stdout" | "-" => Some(AccessLogTarget::Stdout),
        "" => {
            sink.error(&access.span, "\"access\" is empty", Some("write \"off\", \"stdout\" or a path".to_owned()));
            None
        }
        path => {
            let path = base.join(path);
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            if !sink.offline && (path.is_dir() || !folder.is_dir()) {
                let message = match path.is_dir() {
                    true => format!("{} is a folder", path.display()),
                    false => format!("there is no folder {}", folder.display()),
                };
                sink.error(&access.span, message, Some("write \"off\", \"stdout\" or a file's path".to_owned()));
                return None;
            }
            Some(AccessLogTarget::File(path))
        }
    }
}

fn limits(section: Option<Section>, routing: &mut Routing) -> ClientLimits {
    let d = Limits::default();
    let mut out = ClientLimits {
        http: d,
        max_body: u64::MAX,
        max_connections: 16_384,
        max_per_client: 0,
        client_prefixes: (32, 64),
        max_memory: 0,
        handshake_timeout: Duration::from_secs(10),
        header_timeout: Duration::from_secs(10),
        keepalive_timeout: Duration::from_secs(75),
        idle_timeout: Duration::from_secs(60),
        min_body_rate: 256,
        max_streams: 128,
        max_requests: u64::MAX,
        handshake_budget: Duration::from_micros(400),
    };
    let Some(s) = section else { return out };
    out.http.head = s.or("max_header_size", d.head as u64, decode::size(1024..=1 << 20)) as usize;
    let uri = s.optional_at("max_uri_size", decode::size(256..=1 << 20));
    out.http.target = uri.as_ref().map_or(d.target, |u| u.value as usize).min(out.http.head);
    if let Some(uri) = uri.filter(|u| u.value as usize > out.http.head) {
        let help = "\"max_uri_size\" counts within \"max_header_size\"".to_owned();
        s.sink.error(&uri.span, "\"max_uri_size\" is above \"max_header_size\"", Some(help));
    }
    out.http.fields = s.or("max_header_fields", d.fields as u64, decode::count(8..=10_000)) as usize;
    // 0 is "no limit" in the file, and the largest number for lanes, which then need not ask.
    let unlimited = |n: u64| if n == 0 { u64::MAX } else { n };
    out.max_body = unlimited(s.or("max_body_size", 0, decode::size(0..=i64::MAX as u64)));
    out.max_streams = s.or("max_streams", out.max_streams.into(), decode::count(1..=10_000)) as u32;
    out.max_requests = unlimited(s.or("max_requests", 0, decode::count(0..=i64::MAX as u64)));
    out.max_connections = s.or("max_connections", out.max_connections as u64, decode::count(1..=10_000_000)) as usize;
    out.max_per_client = s.or("max_connections_per_client", 0, decode::count(0..=1_000_000)) as u32;
    out.max_memory = s.or("max_memory", 0, decode::size(0..=i64::MAX as u64));
    out.handshake_timeout = s.or("handshake_timeout", out.handshake_timeout, decode::timeout);
    out.header_timeout = s.or("header_timeout", out.header_timeout, decode::timeout);
    out.keepalive_timeout = s.or("keepalive_timeout", out.keepalive_timeout, decode::timeout);
    out.idle_timeout = s.or("idle_timeout", out.idle_timeout, decode::timeout);
    out.min_body_rate = s.or("min_body_rate", out.min_body_rate, decode::size(0..=1 << 30));
    out.handshake_budget = s.or("handshake_budget", out.handshake_budget, decode::timeout);
    let prefixes = rate::prefixes(&s, "rate_ipv4_prefix", "rate_ipv6_prefix");
    out.client_prefixes = prefixes;
    let entries = s.or("rate_entries", 16_384, decode::count(8..=10_000_000)) as usize;
    routing.connection_rate = rate::of_clients(&s, "connection_rate", "connection_burst", prefixes, entries);
    routing.handshake_rate = rate::of_clients(&s, "handshake_rate", "handshake_burst", prefixes, entries);
    s.finish();
    out
}
