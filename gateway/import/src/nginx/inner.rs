//! A second NGINX on the same machine, for what Sealane does not do itself: files, FastCGI and its like, caches.
//!
//! Sealane decides about clients as everywhere else, and passes requests on with their paths. The second NGINX has all locations of the
//! original, so it selects the same one as the original; locations that Sealane serves itself answer 404 there. What NGINX checks in a
//! location (`allow`, `auth_basic`, `limit_req`, …) is in the second NGINX, too: `try_files`, `index` and `error_page` lead requests to
//! other locations, whose checks hold then. A location with a directive that this module does not know gets no requests (501).

use super::access;
use super::actions::{PASSES, parts_of_url};
use super::headers::{self, Changes};
use super::lexer::Word;
use super::locations::{Location, Site};
use super::parser::Directive;
use super::scope::{Import, Scope};
use super::table;
use super::variables::{Piece, has_variables, pieces};
use crate::output::{Action, Route, Upstream, quoted};
use crate::report::{Id, Place};
use crate::units::nginx_time;
use crate::{Kind, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;

/// The name of the file, without its ending, and of the upstreams.
pub const INNER: &str = "inner-nginx";
/// What is said of what is in it.
const IN: &str = "in inner-nginx.conf";
/// The same, of what holds for several locations.
const AROUND: &str = "in inner-nginx.conf, for the locations that it serves: other locations do without this directive";

/// The header with the address of the client.
const CLIENT: &str = "X-Real-IP";
/// What takes the place of `$scheme`: the second NGINX gets requests without TLS.
const SCHEME: &str = "${http_x_forwarded_proto}";

/// Directives that do in the second NGINX what they do in the original.
const COPIED: &[&str] = &[
    "alias",
    "allow",
    "auth_basic",
    "auth_basic_user_file",
    "brotli_static",
    "client_body_temp_path",
    "create_full_put_path",
    "default_type",
    "deny",
    "disable_symlinks",
    "empty_gif",
    "error_page",
    "etag",
    "expires",
    "gzip_static",
    "if_modified_since",
    "index",
    "internal",
    "limit_conn",
    "limit_conn_status",
    "limit_except",
    "limit_rate",
    "limit_rate_after",
    "limit_req",
    "limit_req_status",
    "log_not_found",
    "max_ranges",
    "min_delete_depth",
    "random_index",
    "recursive_error_pages",
    "root",
    "satisfy",
    "set",
    "try_files",
    "types",
];
/// The same, by the beginnings of their names.
const FAMILIES: &[&str] = &[
    "autoindex",
    "charset",
    "dav_",
    "fastcgi_",
    "flv",
    "memcached_",
    "mp4",
    "open_file_cache",
    "proxy_",
    "scgi_",
    "uwsgi_",
];
/// Directives that Sealane translates, or that have no effect behind Sealane.
const ELSEWHERE: &[&str] = &[
    "access_log",
    "add_header",
    "aio",
    "brotli",
    "client_body_buffer_size",
    "client_body_timeout",
    "client_max_body_size",
    "directio",
    "error_log",
    "gzip",
    "keepalive_requests",
    "keepalive_timeout",
    "location",
    "more_clear_headers",
    "more_set_headers",
    "output_buffers",
    "proxy_hide_header",
    "proxy_set_header",
    "rewrite_log",
    "send_timeout",
    "sendfile",
    "sendfile_max_chunk",
    "tcp_nodelay",
    "tcp_nopush",
];

/// Variables that have the same value in the second NGINX.
const KNOWN: &[&str] = &[
    "args",
    "binary_remote_addr",
    "content_length",
    "content_type",
    "document_root",
    "document_uri",
    "fastcgi_path_info",
    "fastcgi_script_name",
    "host",
    "hostname",
    "http_host",
    "is_args",
    "nginx_version",
    "proxy_host",
    "proxy_port",
    "query_string",
    "realpath_root",
    "remote_addr",
    "remote_port",
    "remote_user",
    "request_filename",
    "request_method",
    "request_uri",
    "server_addr",
    "server_name",
    "server_protocol",
    "status",
    "uri",
];
/// The same, by the beginnings of their names.
const KNOWN_FAMILIES: &[&str] = &["arg_", "cookie_", "http_", "sent_http_", "upstream_"];

/// Deepest chain of variables.
const MAX_DEPTH: usize = 4;
/// Longest chain of locations that lead to each other.
const MAX_LED: usize = 2;
/// Most names of `index`.
const MAX_INDEX: usize = 8;

/// Lines of the file: words.
type Lines = Vec<Vec<String>>;

/// Directives with a file whose path starts at the folder of the configuration.
const PATHS: &[&str] = &[
    "auth_basic_user_file",
    "proxy_ssl_certificate",
    "proxy_ssl_certificate_key",
    "proxy_ssl_crl",
    "proxy_ssl_password_file",
    "proxy_ssl_trusted_certificate",
];

/// What is known of the second NGINX.
#[derive(Debug)]
pub(super) struct Inner {
    address: SocketAddr,
    /// Ports on which the original listens.
    pub taken: BTreeSet<u16>,
    /// The ports of its servers.
    ports: BTreeMap<Id, u16>,
    /// For each location what is written into it besides its own directives; `None`: requests get 404 there.
    locations: BTreeMap<Id, Option<Lines>>,
    /// Servers that get requests.
    served: BTreeSet<Id>,
    /// The ports of servers of the original that listen on one port only, which is neither 80 nor 443.
    own_ports: BTreeMap<Id, u16>,
}

impl Inner {
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            taken: BTreeSet::new(),
            ports: BTreeMap::new(),
            locations: BTreeMap::new(),
            served: BTreeSet::new(),
            own_ports: BTreeMap::new(),
        }
    }
}

fn is_copied(name: &str) -> bool {
    let is_of_family = FAMILIES.iter().any(|family| name.starts_with(family));
    (COPIED.contains(&name) || is_of_family) && !is_elsewhere(name) && !name.ends_with("_cache_path")
}

fn is_elsewhere(name: &str) -> bool {
    let is_compression = (name.starts_with("gzip_") || name.starts_with("brotli_")) && !name.ends_with("_static");
    ELSEWHERE.contains(&name) || is_compression
}

/// Learns what the second NGINX can do of a server. `None`: there is no second NGINX.
fn learn<'d>(import: &mut Import<'d>, site: &Site<'d>) -> Option<()> {
    let inner = import.inner.as_ref()?;
    if inner.ports.contains_key(&site.server.id) {
        return Some(());
    }
    let used: BTreeSet<u16> = inner.taken.iter().chain(inner.ports.values()).copied().collect();
    let port = (inner.address.port()..=u16::MAX).find(|port| !used.contains(port))?;
    let lines: usize = site.locations.iter().map(|l| l.scope().blocks().map(<[Directive]>::len).sum::<usize>()).sum();
    import.budget.take(lines.saturating_mul(64))?;
    let one = |l: &Location<'d>| (l.directive().id, can(import, site, l, 0).then(|| besides(l)));
    let all: Vec<(Id, Option<Lines>)> = site.locations.iter().map(one).collect();
    let causes: Vec<(&'d Directive, &'d str)> = site.locations.iter().flat_map(|l| causes(import, site, l)).collect();
    for (d, name) in causes {
        import.missing(d, cause(name));
    }
    let inner = import.inner.as_mut()?;
    inner.ports.insert(site.server.id, port);
    if let Some(own) = site.port.filter(|port| !is_usual(*port)) {
        inner.own_ports.insert(site.server.id, own);
    }
    inner.locations.extend(all);
    Some(())
}

/// Whether the second NGINX answers the requests of a location. `named`: where its `try_files` ends.
pub(super) fn serves<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    l: &Location<'d>,
    named: Option<&Location<'d>>,
) -> bool {
    if learn(import, site).is_none() {
        return false;
    }
    let Some(inner) = &import.inner else { return false };
    [Some(l), named].into_iter().flatten().all(|l| matches!(inner.locations.get(&l.directive().id), Some(Some(_))))
}

/// The last directive that passes requests on.
fn passes(l: &Directive) -> Option<&Directive> {
    l.inner().iter().rfind(|d| PASSES.contains(&d.name()))
}

fn is_named(l: &Directive) -> bool {
    l.word(1).is_some_and(|word| word.starts_with('@'))
}

fn stands(d: &Directive) -> bool {
    is_copied(d.name()) || is_elsewhere(d.name())
}

fn is_cached(scope: &Scope) -> bool {
    scope.value("proxy_cache").is_some_and(|(_, zone)| zone != "off")
}

/// Whether a port follows from whether the client's connection has TLS.
fn is_usual(port: u16) -> bool {
    matches!(port, 80 | 443)
}

/// The variables that keep a location without another server out of the second NGINX, each with its directive.
fn causes<'d>(import: &Import<'d>, site: &Site<'d>, l: &Location<'d>) -> Vec<(&'d Directive, &'d str)> {
    let (d, scope) = (l.directive(), l.scope());
    let may_be = match passes(d) {
        Some(pass) => !matches!(pass.name(), "proxy_pass" | "grpc_pass"),
        None => scope.last("root").is_some() || d.inner().iter().any(|d| d.name() == "alias"),
    };
    if !may_be || !d.inner().iter().all(stands) {
        return Vec::new();
    }
    let copied = scope.blocks().flatten().filter(|d| is_copied(d.name()));
    copied.filter_map(|d| Some((d, unknown(import, site, scope, d, 0)?))).collect()
}

/// What is said of a directive with a variable that keeps locations out of the second NGINX.
fn cause(name: &str) -> String {
    let why = match name {
        "server_port" => "the server listens on several ports",
        _ => "its value is not known there",
    };
    format!(
        "${name} in this line keeps locations out of inner-nginx.conf (their requests get 501), because {why}: write a constant, and \
         import again"
    )
}

/// Whether the second NGINX can do what a location does.
fn can<'d>(import: &Import<'d>, site: &Site<'d>, l: &Location<'d>, depth: usize) -> bool {
    let (d, scope) = (l.directive(), l.scope());
    let is_on = |name: &str| scope.last(name).is_some_and(|d| d.word(1) != Some("off"));
    let is_guarded = access::GUARDS.iter().any(|(name, _)| *name != "auth_basic" && is_on(name));
    if depth > MAX_LED || is_guarded || !d.inner().iter().all(stands) {
        return false;
    }
    let mut copied = scope.blocks().flatten().filter(|d| is_copied(d.name()));
    if !copied.all(|d| has_known(import, site, scope, d, 0)) || !zones_are_known(import, site, scope) {
        return false;
    }
    let is_served = match passes(d) {
        Some(pass) if pass.name() == "grpc_pass" => false,
        Some(pass) if pass.name() == "proxy_pass" => {
            let url = pass.word(1).filter(|url| !has_variables(url)).and_then(parts_of_url);
            let headers = scope.all(&["proxy_set_header"]);
            let mut host = headers.iter().filter(|d| is_header(d, "host"));
            url.is_some() && (is_cached(scope) || is_named(d)) && host.all(|d| has_known(import, site, scope, d, 0))
        }
        Some(pass) => pass.word(1).is_some_and(|to| !has_variables(to)),
        None => is_on("root") || d.inner().iter().any(|d| d.name() == "alias"),
    };
    is_served && leads_on(import, site, l, depth)
}

fn is_header(d: &Directive, name: &str) -> bool {
    d.word(1).is_some_and(|n| n.eq_ignore_ascii_case(name))
}

/// Whether the second NGINX can do what comes next: a request that `try_files` or `index` leads to another location.
fn leads_on<'d>(import: &Import<'d>, site: &Site<'d>, l: &Location<'d>, depth: usize) -> bool {
    let d = l.directive();
    let to = |path: &str| match site.location_of(path) {
        Some(there) if there.directive().id == d.id => true,
        Some(there) => {
            let is_proxied = passes(there.directive()).is_some_and(|pass| pass.name() == "proxy_pass");
            !is_proxied && can(import, site, there, depth + 1)
        }
        None => false,
    };
    let last = d.inner().iter().rfind(|d| d.name() == "try_files").and_then(|d| d.arguments().last().copied());
    let tried = match last {
        None => true,
        Some(end) if end.starts_with('=') => true,
        Some(end) if end.starts_with('@') => {
            let named = site.locations.iter().find(|l| l.directive().word(1) == Some(end));
            named.is_some_and(|named| can(import, site, named, depth + 1))
        }
        Some(end) => to(end.split(['$', '?']).next().unwrap_or_default()),
    };
    if passes(d).is_some() {
        return tried;
    }
    let folder = l.text().and_then(|text| text.rsplit_once('/')).map_or("", |(folder, _)| folder);
    let index = l.scope().all(&["index"]);
    let mut files = index.iter().flat_map(|d| d.arguments()).filter(|file| !has_variables(file));
    let few = index.iter().map(|d| d.words.len()).sum::<usize>() <= MAX_INDEX;
    tried && few && files.all(|file| if file.starts_with('/') { to(file) } else { to(&format!("{folder}/{file}")) })
}

/// Whether each variable of a directive has the same value in the second NGINX, or another variable takes its place.
fn has_known<'d>(import: &Import<'d>, site: &Site<'d>, scope: &Scope<'d>, d: &Directive, depth: usize) -> bool {
    unknown(import, site, scope, d, depth).is_none()
}

/// The first variable of a directive of which this does not hold.
fn unknown<'d, 't>(
    import: &Import<'d>,
    site: &Site<'d>,
    scope: &Scope<'d>,
    d: &'t Directive,
    depth: usize,
) -> Option<&'t str> {
    // A `set` names its own variable first.
    let first = if matches!(d.name(), "set" | "proxy_set_header") { 2 } else { 1 };
    let mut own = d.words.iter().skip(first).flat_map(|word| pieces(&word.text));
    let found = own.find_map(|piece| match piece {
        Piece::Variable(name) if !is_known(import, site, scope, name, depth) => Some(name),
        _ => None,
    });
    found.or_else(|| d.inner().iter().find_map(|inner| unknown(import, site, scope, inner, depth)))
}

fn is_known<'d>(import: &Import<'d>, site: &Site<'d>, scope: &Scope<'d>, name: &str, depth: usize) -> bool {
    let is_group = name.bytes().all(|b| b.is_ascii_digit());
    if is_group || KNOWN.contains(&name) || KNOWN_FAMILIES.iter().any(|family| name.starts_with(family)) {
        return true;
    }
    match name {
        "scheme" | "https" => return true,
        "server_port" => return site.port.is_some() || site.ports.iter().all(|port| is_usual(*port)),
        _ if depth == MAX_DEPTH => return false,
        _ => {}
    }
    let sets = |d: &Directive| d.name() == "set" && d.word(1).and_then(|w| w.strip_prefix('$')) == Some(name);
    let all = || scope.blocks().flatten();
    if all().any(|d| d.name() == "if" && d.inner().iter().any(sets)) {
        return false;
    }
    let known = |d: &Directive| has_known(import, site, scope, d, depth + 1);
    if let Some(set) = all().find(|d| sets(d)) {
        return known(set);
    }
    match (import.maps.get(name), import.geos.get(name)) {
        (Some(map), _) => {
            let source = map.word(1).map(pieces).unwrap_or_default();
            let source = source.iter().all(|piece| match piece {
                Piece::Text(_) => true,
                Piece::Variable(source) => is_known(import, site, scope, source, depth + 1),
            });
            source && map.inner().iter().all(known)
        }
        (None, Some(geo)) => {
            let entries = || geo.inner().iter();
            geo.arguments().len() == 1 && entries().all(known) && !entries().any(|e| e.name() == "include")
        }
        (None, None) => false,
    }
}

/// Whether the second NGINX can count what the limits of a location count.
fn zones_are_known<'d>(import: &Import<'d>, site: &Site<'d>, scope: &Scope<'d>) -> bool {
    let requests = scope.all(&["limit_req"]);
    let mut requests = requests.iter().map(|d| {
        let zone = d.arguments().into_iter().find_map(|a| a.strip_prefix("zone="))?;
        import.zones.get(zone).copied()
    });
    let connections = scope.all(&["limit_conn"]);
    let mut connections = connections.iter().map(|d| import.connection_zones.get(d.word(1)?).copied());
    let known = |zone: Option<&Directive>| zone.is_some_and(|zone| has_known(import, site, scope, zone, 0));
    requests.all(known) && connections.all(known)
}

/// What a location has besides its own directives.
fn besides(l: &Location) -> Lines {
    let scope = l.scope();
    let line = |words: &[&str]| -> Vec<String> { words.iter().map(|w| (*w).to_owned()).collect() };
    if passes(l.directive()).is_none_or(|pass| pass.name() != "proxy_pass") {
        return Vec::new();
    }
    let mut out = Vec::new();
    let headers = scope.all(&["proxy_set_header"]);
    let value = |name: &str| headers.iter().rfind(|d| is_header(d, name)).and_then(|d| d.word(2));
    if let Some(host) = value("host") {
        out.push(line(&["proxy_set_header", "Host", host]));
    }
    if value("upgrade").is_some_and(|v| !v.is_empty()) {
        out.push(line(&["proxy_set_header", "Upgrade", "$http_upgrade"]));
        out.push(line(&["proxy_set_header", "Connection", "$sealane_connection"]));
    }
    if is_cached(scope) && scope.last("proxy_cache_key").is_none() {
        // The same page may differ over TLS.
        out.push(line(&["proxy_cache_key", &format!("{SCHEME}$proxy_host$request_uri")]));
    }
    out
}

/// Sends the requests of a location to the second NGINX. `named`: where its `try_files` ends.
pub(super) fn pass<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    l: &Location<'d>,
    named: Option<&Location<'d>>,
    changes: &mut Changes,
    route: &mut Route,
) {
    let from = named.unwrap_or(l);
    let place = &l.directive().place;
    route.upgrade = Some((false, place.clone()));
    if let Some(pass) = passes(from.directive()).filter(|pass| pass.name() == "proxy_pass") {
        headers::request(import, site, from.scope(), "proxy_set_header", changes);
        route.upgrade = Some(headers::upgrade(import, from.scope(), pass));
    }
    changes.request.set(CLIENT, "{client_address}", place);
    for l in [Some(l), named].into_iter().flatten() {
        import.same(l.directive(), IN);
        l.directive().inner().iter().filter(|d| is_copied(d.name())).for_each(|d| import.whole(d, Outcome::Same, IN));
        inherited(import, l.scope(), 1);
        let to = passes(l.directive()).and_then(|pass| group(import, pass));
        if let Some(group) = to {
            import.whole(group, Outcome::Same, IN);
        }
    }
    route.origin = place.clone();
    route.action = Action::Upstream(upstream(import, site, from.scope(), place));
}

/// Sends requests that match no location to the second NGINX, if it has the files of their server. `None`: it has not.
pub(super) fn pass_rest<'d>(import: &mut Import<'d>, site: &Site<'d>, root: &'d Directive) -> Option<Action> {
    learn(import, site)?;
    let scope = &site.scope;
    let is_on = |name: &str| scope.last(name).is_some_and(|d| d.word(1) != Some("off"));
    let is_guarded = access::GUARDS.iter().any(|(name, _)| *name != "auth_basic" && is_on(name));
    let mut own = scope.blocks().flatten().filter(|d| is_copied(d.name()));
    if is_guarded || !own.all(|d| has_known(import, site, scope, d, 0)) || !zones_are_known(import, site, scope) {
        return None;
    }
    inherited(import, scope, 0);
    Some(Action::Upstream(upstream(import, site, scope, &root.place)))
}

/// The header that tells the second NGINX the address of the client.
pub(super) fn name_client(route: &mut Route) {
    let place = route.origin.clone();
    route.request.set(CLIENT, "{client_address}", &place);
    route.upgrade = Some((false, place));
}

/// Says of directives around a location, for which Sealane has nothing, that they are in the file. `own`: how many blocks are the
/// location's own.
fn inherited<'d>(import: &mut Import<'d>, scope: &Scope<'d>, own: usize) {
    let is_missing = |d: &Directive| matches!(table::kind(d.name()), Some(Kind::Missing(_)));
    let around: Vec<&'d Directive> =
        scope.blocks().skip(own).flatten().filter(|d| is_copied(d.name()) && is_missing(d)).collect();
    for d in around {
        import.differs(d, AROUND);
    }
}

/// The `upstream` that a directive names.
fn group<'d>(import: &Import<'d>, pass: &Directive) -> Option<&'d Directive> {
    let to = pass.word(1)?;
    let authority = to.split_once("://").map_or(to, |(_, rest)| rest).split('/').next()?;
    import.upstreams.get(authority).copied()
}

fn upstream<'d>(import: &mut Import<'d>, site: &Site<'d>, scope: &Scope<'d>, place: &Place) -> String {
    let mut up = Upstream { name: INNER.to_owned(), origin: Some(place.clone()), ..Upstream::default() };
    if let Some(inner) = import.inner.as_mut() {
        inner.served.insert(site.server.id);
        let port = inner.ports.get(&site.server.id).copied().unwrap_or_else(|| inner.address.port());
        let address = SocketAddr::new(inner.address.ip(), port);
        up.servers.push((quoted(&format!("http://{address}")), place.clone()));
    }
    let timeouts = ["fastcgi_read_timeout", "uwsgi_read_timeout", "scgi_read_timeout", "proxy_read_timeout"];
    let timeout = timeouts.iter().find_map(|name| scope.value(name));
    if let Some((d, time)) = timeout.and_then(|(d, value)| Some((d, nginx_time(value).filter(|t| t != "0s")?))) {
        up.settings.set("first_byte_timeout", quoted(&time), &d.place);
    }
    import.out.upstream(up)
}

/// The file, if the second NGINX gets requests.
pub(super) fn write<'d>(import: &mut Import<'d>, tree: &'d [Directive]) {
    let Some(inner) = import.inner.take().filter(|inner| !inner.served.is_empty()) else { return };
    let mut servers = Text::default();
    let mut https: Vec<&'d [Directive]> = tree.iter().filter(|d| d.name() == "http").map(Directive::inner).collect();
    if https.is_empty() {
        https.push(tree);
    }
    for block in &https {
        for d in block.iter().filter(|d| is_copied(d.name()) && !names_location(d)) {
            servers.directive(import, d, 1);
        }
        for server in block.iter().filter(|d| inner.served.contains(&d.id)) {
            let Some(port) = inner.ports.get(&server.id) else { continue };
            servers.open(1, &["server"]);
            servers.line(2, &["listen", &SocketAddr::new(inner.address.ip(), *port).to_string()]);
            for d in server.inner().iter().filter(|d| d.name() == "server_name" || is_copied(d.name())) {
                servers.directive(import, d, 2);
            }
            servers.locations(import, server, &inner, 2);
            servers.close(1);
        }
    }
    let mut before = Text { text: String::new(), needs: servers.needs };
    let own_ports = inner.served.iter().filter_map(|id| Some((*inner.ports.get(id)?, *inner.own_ports.get(id)?)));
    before.before(import, &https, &port_map(&own_ports.collect::<Vec<_>>()));
    let mut out = Text::default();
    let _ = writeln!(
        out.text,
        "# {}\n# A second NGINX behind Sealane, for what Sealane does not do itself. Start it on the same machine, for example:\n\
         #     nginx -c /etc/sealane/{INNER}.conf\n# Only programs of this machine can connect to it.",
        import.out.title.replace(char::is_control, " ")
    );
    for d in tree.iter().filter(|d| matches!(d.name(), "user" | "load_module")) {
        out.line(0, &d.words.iter().map(|w| w.text.as_str()).collect::<Vec<_>>());
    }
    out.line(0, &["worker_processes", "auto"]);
    out.line(0, &["pid", "/run/sealane-inner-nginx.pid"]);
    out.open(0, &["events"]);
    out.close(0);
    out.open(0, &["http"]);
    let ip = inner.address.ip().to_string();
    for words in [
        ["access_log", "off"],
        ["set_real_ip_from", ip.as_str()],
        ["real_ip_header", CLIENT],
        ["absolute_redirect", "off"],
        ["client_max_body_size", "0"],
    ] {
        out.line(1, &words);
    }
    out.text.push_str(&before.text);
    out.text.push_str(&servers.text);
    out.close(0);
    import.out.file(INNER, "conf", out.text.as_bytes());
}

/// Whether an `error_page` names a location, which not all servers have.
fn names_location(d: &Directive) -> bool {
    d.name() == "error_page" && d.arguments().last().is_some_and(|target| target.starts_with('@'))
}

/// A part of the file.
#[derive(Default)]
struct Text {
    text: String,
    /// Variables, zones and groups that it names.
    needs: BTreeSet<String>,
}

impl Text {
    fn begin(&mut self, depth: usize, words: &[&str]) {
        self.text.push_str(&"    ".repeat(depth));
        let all: Vec<String> = words.iter().map(|word| written(word)).collect();
        self.text.push_str(&all.join(" "));
    }

    fn line(&mut self, depth: usize, words: &[&str]) {
        self.begin(depth, words);
        self.text.push_str(";\n");
        for word in words {
            for piece in pieces(word) {
                if let Piece::Variable(name) = piece {
                    self.needs.insert(format!("${name}"));
                }
            }
            // A zone, or a group of servers.
            let bare = word.strip_prefix("zone=").unwrap_or(word);
            let bare = bare.split_once("://").map_or(bare, |(_, rest)| rest);
            self.needs.insert(bare.split('/').next().unwrap_or_default().to_owned());
        }
    }

    fn open(&mut self, depth: usize, words: &[&str]) {
        self.begin(depth, words);
        self.text.push_str(" {\n");
    }

    fn close(&mut self, depth: usize) {
        self.text.push_str(&"    ".repeat(depth));
        self.text.push_str("}\n");
    }

    /// A directive with all that is in it.
    fn directive(&mut self, import: &Import, d: &Directive, depth: usize) {
        // A relative path starts at the folder of the original.
        let one = |(at, word): (usize, &Word)| match at == 1 && PATHS.contains(&d.name()) {
            true => import.path(&word.text),
            false => replaced(&word.text),
        };
        let words: Vec<String> = d.words.iter().enumerate().map(one).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match &d.block {
            None => self.line(depth, &words),
            Some(block) => {
                self.open(depth, &words);
                block.iter().for_each(|inner| self.directive(import, inner, depth + 1));
                self.close(depth);
            }
        }
    }

    /// The locations in a block.
    fn locations(&mut self, import: &Import, block: &Directive, inner: &Inner, depth: usize) {
        for l in block.inner().iter().filter(|d| d.name() == "location") {
            let words: Vec<&str> = l.words.iter().map(|w| w.text.as_str()).collect();
            self.open(depth, &words);
            match inner.locations.get(&l.id) {
                Some(Some(besides)) => {
                    for d in l.inner().iter().filter(|d| is_copied(d.name())) {
                        self.directive(import, d, depth + 1);
                    }
                    for words in besides {
                        let words: Vec<String> = words.iter().map(|word| replaced(word)).collect();
                        self.line(depth + 1, &words.iter().map(String::as_str).collect::<Vec<_>>());
                    }
                }
                _ => self.line(depth + 1, &["return", "404"]),
            }
            self.locations(import, l, inner, depth + 1);
            self.close(depth);
        }
    }

    /// What servers name: variables of maps, zones of limits and caches, groups of servers.
    fn before(&mut self, import: &mut Import, https: &[&[Directive]], port_map: &str) {
        let values = |d: &Directive| matches!(d.name(), "map" | "geo");
        // What limits count may be the value of a map.
        for d in https.iter().flat_map(|block| block.iter()).filter(|d| zone(d).is_some()) {
            if zone(d).is_some_and(|zone| self.needs.contains(zone)) {
                let key = d.word(1).map(pieces).unwrap_or_default();
                self.needs.extend(key.iter().filter_map(|piece| match piece {
                    Piece::Variable(name) => Some(format!("${name}")),
                    Piece::Text(_) => None,
                }));
            }
        }
        // A map may name another one.
        for _ in 0..MAX_DEPTH {
            for d in https.iter().flat_map(|block| block.iter()).filter(|d| values(d)) {
                let own = d.words.last().is_some_and(|w| self.needs.contains(&w.text));
                let texts = d.inner().iter().flat_map(|e| e.words.iter().skip(1)).chain(d.words.get(1));
                let names = texts.flat_map(|w| pieces(&w.text)).filter_map(|piece| match piece {
                    Piece::Variable(name) if own => Some(format!("${name}")),
                    _ => None,
                });
                let names: Vec<String> = names.collect();
                self.needs.extend(names);
            }
        }
        for (name, lines) in [
            ("$sealane_connection", "map $http_upgrade $sealane_connection { default upgrade; '' close; }"),
            ("$sealane_https", "map $http_x_forwarded_proto $sealane_https { https on; }"),
            ("$sealane_port", port_map),
        ] {
            if self.needs.contains(name) {
                let _ = writeln!(self.text, "    {lines}");
            }
        }
        for d in https.iter().flat_map(|block| block.iter()) {
            let name = match d.name() {
                "map" | "geo" => d.words.last().map(|w| w.text.as_str()),
                "upstream" => d.word(1),
                _ => zone(d),
            };
            if name.is_none_or(|name| !self.needs.contains(name)) {
                continue;
            }
            import.whole(d, Outcome::Same, IN);
            match d.word(1).filter(|_| d.name().ends_with("_cache_path")) {
                // The original may still use its folder.
                Some(folder) => {
                    let folder = format!("{}-sealane", folder.trim_end_matches('/'));
                    let rest = d.words.iter().skip(2).map(|w| w.text.as_str());
                    let words: Vec<&str> = [d.name(), folder.as_str()].into_iter().chain(rest).collect();
                    self.line(1, &words);
                }
                None => self.directive(import, d, 1),
            }
        }
    }
}

/// The `map` that takes the place of `$server_port`. `own_ports`: ports of the second NGINX, each with the one port of the original.
fn port_map(own_ports: &[(u16, u16)]) -> String {
    if own_ports.is_empty() {
        return "map $http_x_forwarded_proto $sealane_port { https 443; default 80; }".to_owned();
    }
    let mut out = "map $server_port:$http_x_forwarded_proto $sealane_port { ".to_owned();
    for (port, own) in own_ports {
        let _ = write!(out, "~^{port}: {own}; ");
    }
    out.push_str("~:https$ 443; default 80; }");
    out
}

/// The zone that a directive makes, for a limit or a cache.
fn zone(d: &Directive) -> Option<&str> {
    let key = match d.name() {
        "limit_req_zone" | "limit_conn_zone" => "zone=",
        name if name.ends_with("_cache_path") => "keys_zone=",
        _ => return None,
    };
    d.arguments().into_iter().find_map(|a| a.strip_prefix(key)?.split(':').next())
}

/// A word with the variables that take the place of those of the client's connection.
fn replaced(word: &str) -> String {
    if !["scheme", "https", "server_port"].iter().any(|name| word.contains(name)) {
        return word.to_owned();
    }
    let one = |piece| match piece {
        Piece::Text(text) => text.to_owned(),
        Piece::Variable("scheme") => SCHEME.to_owned(),
        Piece::Variable("https") => "${sealane_https}".to_owned(),
        Piece::Variable("server_port") => "${sealane_port}".to_owned(),
        Piece::Variable(name) => format!("${{{name}}}"),
    };
    pieces(word).into_iter().map(one).collect()
}

/// A word as NGINX reads it again.
fn written(word: &str) -> String {
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"");
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && !";{}\"'#".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => escaped,
        false => format!("\"{escaped}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_written_as_nginx_reads_them() {
        for (word, wanted) in [
            ("/srv/a", "/srv/a"),
            (r"\.php$", r"\\.php$"),
            ("", "\"\""),
            ("a b", "\"a b\""),
            ("^/a{2}$", "\"^/a{2}$\""),
            (r#"a"b\c"#, r#""a\"b\\c""#),
        ] {
            assert_eq!(written(word), wanted, "{word}");
        }
        assert_eq!(replaced("$scheme://$host$1"), "${http_x_forwarded_proto}://${host}${1}");
        assert_eq!(replaced("$https"), "${sealane_https}");
        assert_eq!(replaced("/https/$uri"), "/https/${uri}");
    }
}
