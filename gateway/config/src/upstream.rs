//! `[[upstream]]`, and the servers named by a host's `to`.

use super::certificates::load::Store;
use super::decode::{self, At, Section};
use super::diagnostics::{Place, Sink};
use super::plan::{self, Plan, ServerPlan};
use super::settings::{self, Shape, udp as u, upstream as s};
use super::snippets;
use super::tls;
use super::{Endpoint, ResolverKind, audit, service_domain};
use super::{balancing, decode::Node};
use rustls::pki_types::ServerName;
use sealane_http::h1::Tolerance;
use sealane_proxy::balance::HashKey;
use sealane_proxy::server_state::ServerState;
use sealane_proxy::snapshot::{EarlyRequests, Server, UdpRelay, Upstream, UpstreamHttp};
use sealane_sys::fastopen::Cookie;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

/// Versions of HTTP.
pub(super) const HTTP: &[(&str, UpstreamHttp)] =
    &[("1.1", UpstreamHttp::One), ("2", UpstreamHttp::Two), ("3", UpstreamHttp::Three), ("auto", UpstreamHttp::Auto)];
/// Whether the hello goes into the SYN, and whether a cookie is needed for that.
pub(super) const SYN_TLS: &[(&str, Option<Cookie>)] =
    &[("off", None), ("cookie", Some(Cookie::Ask)), ("open", Some(Cookie::None))];

/// One server as written.
struct ServerUrl {
    /// `None`: an address without a scheme.
    https: Option<bool>,
    /// Without brackets; of a Unix socket its path.
    host: String,
    port: u16,
    /// It is at a Unix socket.
    is_socket: bool,
    /// It takes datagrams.
    udp: bool,
}

/// Parses what follows `http+srv://`: the name of a service, whose servers SRV records name.
fn parse_service(scheme: &str, https: Option<bool>, rest: &str) -> Result<ServerUrl, (String, Option<String>)> {
    let name = rest.strip_suffix('/').unwrap_or(rest).to_ascii_lowercase();
    let bare = name.trim_end_matches('.');
    if let Some(end) = bare.find([':', '/', '?', '#', '@']) {
        let help = format!("write \"{scheme}://{}\"", &bare[..end]);
        return Err((
            "the name of a service has no port and no path: SRV records have the ports".to_owned(),
            Some(help),
        ));
    }
    let is_label =
        |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if service_domain(bare).is_none() || !bare.split('.').all(is_label) {
        let domain = if bare.is_empty() || bare.starts_with('_') { "app.example" } else { bare };
        let help = format!("write \"{scheme}://_http._tcp.{domain}\"");
        return Err((format!("\"{rest}\" is not the name of a service"), Some(help)));
    }
    Ok(ServerUrl { https, host: name, port: 0, is_socket: false, udp: false })
}

/// The longest path of a Unix socket: `sun_path` has 108 bytes, the last of which is zero (unix(7)).
pub(super) const MAX_SOCKET_PATH: usize = 107;

/// Parses `http://host[:port]`, `https://host[:port]`, `tcp://host:port`, `udp://host:port`, `host:port`, `unix:/path` or `http+srv://_service._tcp.domain`. On failure: what is wrong, and
/// what to write.
fn parse_server(s: &str) -> Result<ServerUrl, (String, Option<String>)> {
    if s.is_empty() {
        return Err((
            "the server is empty".to_owned(),
            Some("write its URL, as in \"http://10.0.0.7:3000\"".to_owned()),
        ));
    }
    if let Some(path) = s.strip_prefix("unix:").or(s.strip_prefix("http://unix:")) {
        let path = path.strip_prefix("//").filter(|rest| rest.starts_with('/')).unwrap_or(path);
        // NGINX writes a path of the request behind the socket's.
        if let Some((socket, _)) = path.split_once(':') {
            return Err(("a server's URL must not have a path".to_owned(), Some(format!("write \"unix:{socket}\""))));
        }
        if path.is_empty() || path.contains('\0') {
            return Err((format!("\"{s}\" names no socket"), Some("write \"unix:/run/app.sock\"".to_owned())));
        }
        return Ok(ServerUrl { https: Some(false), host: path.to_owned(), port: 0, is_socket: true, udp: false });
    }
    let is_udp = s.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("udp"));
    let (https, rest) = match s.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (Some(false), rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (Some(true), rest),
        // For what is passed through; it needs a port.
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("tcp") || is_udp => (None, rest),
        Some(("http+srv", rest)) => return parse_service("http+srv", Some(false), rest),
        Some(("https+srv", rest)) => return parse_service("https+srv", Some(true), rest),
        Some(("tcp+srv", rest)) => return parse_service("tcp+srv", None, rest),
        Some((scheme, rest)) => {
            let help = format!("write \"http://{rest}\" or \"https://{rest}\"");
            return Err((format!("servers of kind \"{scheme}\" are not supported"), Some(help)));
        }
        None => (None, s),
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if let Some(end) = authority.find(['/', '?', '#']) {
        let scheme = &s[..s.len() - rest.len()];
        let help = format!("write \"{scheme}{}\"", &authority[..end]);
        return Err(("a server's URL must not have a path: the path of the request is used".to_owned(), Some(help)));
    }
    if authority.contains('@') {
        let help = "send it in a header: request_headers = { set = { Authorization = \"Basic …\" } }".to_owned();
        return Err(("a server's URL must not have a user name or password".to_owned(), Some(help)));
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => match v6.split_once(']') {
            Some((host, port)) if host.parse::<Ipv6Addr>().is_ok() => (host, port.strip_prefix(':').or(Some(port))),
            _ => return Err((format!("\"{authority}\" is not an IPv6 address in brackets"), None)),
        },
        None => match authority.split_once(':') {
            Some((_, more)) if more.contains(':') => {
                let help = "put an IPv6 address into brackets: \"http://[::1]:3000\"".to_owned();
                return Err((format!("\"{authority}\" is not a host and a port"), Some(help)));
            }
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = match (port.filter(|p| !p.is_empty()), https) {
        (Some(p), _) => match p.parse::<u16>() {
            Ok(port) if port > 0 => port,
            _ => return Err((format!("\"{p}\" is not a port: 1 to 65535"), None)),
        },
        (None, Some(true)) => 443,
        (None, Some(false)) => 80,
        (None, None) if is_udp => {
            return Err(("this server has no port".to_owned(), Some(format!("add a port: \"udp://{authority}:53\""))));
        }
        (None, None) => {
            let help = format!("write \"http://{authority}\", or add a port: \"{authority}:8080\"");
            return Err(("this server has no port".to_owned(), Some(help)));
        }
    };
    if service_domain(host).is_some() {
        let scheme = if https == Some(true) { "https" } else { "http" };
        let help = format!("write \"{scheme}+srv://{host}\", without a port");
        return Err((format!("\"{host}\" is the name of a service (SRV records), not of a host"), Some(help)));
    }
    let good = host.parse::<IpAddr>().is_ok()
        || (!host.is_empty()
            && host.trim_end_matches('.').split('.').all(|label| {
                !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            }));
    if !good {
        let help = "write \"http://127.0.0.1:3000\", \"https://name\" or \"name:port\"".to_owned();
        return Err((format!("\"{host}\" is not a host name or an IP address"), Some(help)));
    }
    Ok(ServerUrl { https, host: host.to_ascii_lowercase(), port, is_socket: false, udp: is_udp })
}

/// The checked servers of a group.
struct Servers {
    https: bool,
    /// They take datagrams.
    udp: bool,
    plans: Vec<ServerPlan>,
    /// The host of each as written, for the name in the certificate.
    hosts: Vec<At<String>>,
}

/// One of `servers`: a URL, or a table with `url`, `weight`, `backup` and `drain`.
pub(super) struct Entry {
    url: At<String>,
    weight: u32,
    backup: bool,
    drain: bool,
}

/// Servers; a single one counts as a list of one. Never empty.
pub(super) fn entries(sink: &Sink, key: &str, node: &Node) -> Option<Vec<Entry>> {
    use toml::de::DeValue;
    let nodes = match node.get_ref() {
        DeValue::Array(a) if a.is_empty() => {
            let help = format!("add a server, as in {key} = [\"http://127.0.0.1:3000\"]");
            sink.error(&node.span(), format!("\"{key}\" is empty"), Some(help));
            return None;
        }
        DeValue::Array(a) => a.iter().collect(),
        _ => vec![node],
    };
    let wanted = nodes.len();
    let read = |node: &Node| {
        let DeValue::Table(table) = node.get_ref() else {
            let value = decode::text(sink, key, node)?;
            return Some(Entry {
                url: At { value, span: node.span() },
                weight: settings::server::weight.default() as u32,
                backup: settings::server::backup.default(),
                drain: settings::server::drain.default(),
            });
        };
        let section = Section::new(sink, &settings::server::TABLE, table, node.span());
        let url = section.required(&settings::server::url);
        let weight = section.or(&settings::server::weight) as u32;
        let backup = section.or(&settings::server::backup);
        let drain = section.or(&settings::server::drain);
        section.finish();
        Some(Entry { url: url?, weight, backup, drain })
    };
    let got: Vec<Entry> = nodes.into_iter().filter_map(read).collect();
    (got.len() == wanted).then_some(got)
}

/// What [`entries`] reads.
pub(super) fn entries_shape() -> Shape {
    Shape::List(Box::new(Shape::Either(vec![Shape::Text(None), Shape::Table(&settings::server::TABLE)])))
}

/// The servers that a planned one stands for. Their state is a placeholder until the gateway starts: only then is it known how
/// many lanes there are.
pub fn expand(plan: &ServerPlan, group: &str, endpoints: &[Endpoint]) -> Vec<Server> {
    let several = endpoints.len() > 1;
    let server = |Endpoint { ip, record }: &Endpoint| {
        let address = SocketAddr::new(*ip, record.map_or(plan.port, |record| record.port));
        let name = match (record, several) {
            (Some(_), _) => format!("{} ({address})", plan.name),
            (None, true) => format!("{} ({ip})", plan.name),
            (None, false) => plan.name.clone(),
        };
        // The same in every gateway with this configuration, and after every restart.
        let digest = aws_lc_rs::digest::digest(
            &aws_lc_rs::digest::SHA256,
            format!("sealane sticky 1\n{group}\n{}\n{address}", plan.name).as_bytes(),
        );
        let mut sticky_id = [0; 16];
        for (hex, byte) in sticky_id.chunks_exact_mut(2).zip(digest.as_ref()) {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            hex.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
        let state = Arc::new(ServerState::new(0, record.map_or(plan.weight, |record| record.weight)));
        let backup = plan.backup || record.is_some_and(|record| record.backup);
        Server { name, address, socket: plan.socket.clone(), backup, sticky_id, state }
    };
    endpoints.iter().map(server).collect()
}

/// `tls_section`: an upstream with a TLS section whose servers have no scheme is https.
fn servers(sink: &Sink, list: &[Entry], tls_section: bool, context: &mut Context) -> Option<Servers> {
    let mut out = Servers { https: false, udp: false, plans: Vec::new(), hosts: Vec::new() };
    let mut kind: Option<((bool, bool), &At<String>)> = None;
    let mut good = true;
    for Entry { url: entry, weight, backup, drain } in list {
        let server = match parse_server(&entry.value) {
            Ok(server) => server,
            Err((message, help)) => {
                sink.error(&entry.span, message, help);
                good = false;
                continue;
            }
        };
        let own = (server.https.unwrap_or(tls_section && !server.udp), server.udp);
        match kind {
            None => kind = Some((own, entry)),
            Some((first, at)) if first != own => {
                let message = format!("\"{}\" and \"{}\" have different schemes", at.value, entry.value);
                let help = "all servers of one upstream must use the same scheme; write two upstreams".to_owned();
                sink.error(&entry.span, message, Some(help));
                good = false;
            }
            Some(_) => {}
        }
        let domain = service_domain(&server.host);
        if domain.is_some() && *weight != settings::server::weight.default() as u32 {
            let help = "remove \"weight\"".to_owned();
            sink.error(&entry.span, "the servers of a service have the weights of their SRV records", Some(help));
        }
        let mut plan = match planned(&server, &sink.base, *weight, *backup) {
            Ok(plan) => plan,
            Err((message, help)) => {
                sink.error(&entry.span, message, help);
                good = false;
                continue;
            }
        };
        plan.drain = *drain;
        // One server may stand in the list several times; each has metrics and a state of its own.
        let same = out.plans.iter().filter(|p| p.host == plan.host && p.port == plan.port).count();
        if same > 0 {
            plan.name = format!("{} #{}", plan.name, same + 1);
        }
        if let Some(own) = context.own_listener(&plan).filter(|_| server.udp) {
            let message =
                format!("\"{}\" is the gateway's own UDP listener {own}: datagrams would loop endlessly", entry.value);
            let help = "write the address of the server that the datagrams are for".to_owned();
            sink.error(&entry.span, message, Some(help));
            good = false;
        }
        if plan.has_name() {
            context.names.push(NamedServer { host: server.host.clone(), place: sink.place_of(&entry.span) });
        }
        // RFC 6125 §6.4: a certificate is for the domain that was asked for, whatever name the answer has.
        let value = service_domain(&server.host).map_or_else(|| plan.host.clone(), str::to_owned);
        out.hosts.push(At { value, span: entry.span.clone() });
        out.plans.push(plan);
    }
    (out.https, out.udp) = kind.map_or((false, false), |(kind, _)| kind);
    good.then_some(out)
}

/// What a server's URL stands for. `base`: the folder that a relative path of a socket is from.
fn planned(server: &ServerUrl, base: &Path, weight: u32, backup: bool) -> Result<ServerPlan, (String, Option<String>)> {
    let (host, port) = (server.host.clone(), server.port);
    let mut plan = ServerPlan { name: String::new(), host, port, socket: None, weight, backup, drain: false };
    plan.name = if service_domain(&server.host).is_some() { server.host.clone() } else { plan.authority() };
    if server.is_socket {
        let path = base.join(&server.host);
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            let message = format!("the path of the socket has more than {MAX_SOCKET_PATH} bytes");
            return Err((message, Some("write a shorter one, as in \"unix:/run/app.sock\"".to_owned())));
        }
        plan.host = format!("unix:{}", path.display());
        plan.name.clone_from(&plan.host);
        plan.socket = Some(path.into());
    }
    Ok(plan)
}

/// Reads a server that is added to a group while the group is served, by the rules of `servers`.
///
/// The error says what is wrong, and how to repair it.
pub fn added_server(text: &str, weight: u32, backup: bool, group: &Upstream) -> Result<ServerPlan, String> {
    let said = |(message, help): (String, Option<String>)| match help {
        Some(help) => format!("{message}; {help}"),
        None => message,
    };
    if text.len() > MAX_ADDED || text.chars().any(char::is_control) {
        return Err(format!("a server is a text of at most {MAX_ADDED} bytes without control characters"));
    }
    let server = parse_server(text).map_err(said)?;
    if service_domain(&server.host).is_some() {
        return Err(
            "the API cannot add a service (SRV records): write it in \"servers\" of the configuration file".to_owned()
        );
    }
    let has_tls = group.tls.is_some();
    if server.https.is_some_and(|https| https != has_tls) {
        let (all, one) = if has_tls { ("use", "with https://") } else { ("do not use", "without https://") };
        return Err(format!("the servers of \"{}\" {all} TLS: write the server {one}", group.name));
    }
    if server.udp != group.udp.is_some() {
        let (all, one) = if server.udp { ("do not use", "without udp://") } else { ("use", "with udp://") };
        return Err(format!("the servers of \"{}\" {all} UDP: write the server {one}", group.name));
    }
    if server.is_socket && !Path::new(&server.host).is_absolute() {
        return Err("write the whole path of the socket, as in \"unix:/run/app.sock\"".to_owned());
    }
    let weights = settings::server::weight.kind.0;
    if !weights.contains(&u64::from(weight)) {
        return Err(format!("the weight must be from {} to {}", weights.start(), weights.end()));
    }
    planned(&server, Path::new(""), weight, backup).map_err(said)
}

/// The text of a server that is added, as it stands in a file. There, a server without a scheme has that of its upstream's table.
pub fn written_server(text: &str, group: &Upstream) -> String {
    match parse_server(text) {
        Ok(ServerUrl { https: None, .. }) if group.tls.is_some() => format!("https://{text}"),
        _ => text.to_owned(),
    }
}

/// Most bytes of the text of a server that is added.
const MAX_ADDED: usize = 512;

/// What the reading of upstreams needs besides the section.
pub(super) struct Context<'c> {
    pub store: &'c mut Store,
    /// Who resolves names.
    pub resolver: ResolverKind,
    /// The servers with names, for what is said of them once they are resolved.
    pub names: Vec<NamedServer>,
    /// Where the gateway relays datagrams.
    pub udp_listeners: Vec<SocketAddr>,
    /// Some listener accepts early data.
    pub takes_early_data: bool,
}

impl Context<'_> {
    /// The listener that relays datagrams and is this server, as far as the text tells.
    fn own_listener(&self, plan: &ServerPlan) -> Option<SocketAddr> {
        self.udp_listeners.iter().find(|own| is_at(plan, **own)).copied()
    }
}

/// Whether a server is what listens at an address, as far as the text tells.
pub(super) fn is_at(plan: &ServerPlan, own: SocketAddr) -> bool {
    let ip: Option<IpAddr> = match plan.host.trim_end_matches('.').eq_ignore_ascii_case("localhost") {
        true => Some(Ipv4Addr::LOCALHOST.into()),
        false => plan.host.trim_matches(['[', ']']).parse().ok(),
    };
    ip.is_some_and(|ip| {
        let ip = ip.to_canonical();
        let all = own.ip().is_unspecified() && (ip.is_loopback() || ip.is_unspecified());
        own.port() == plan.port && (all || own.ip().to_canonical() == ip)
    })
}

/// A server with a name, and where it stands.
#[derive(Debug)]
pub struct NamedServer {
    /// As written.
    pub host: String,
    /// Where it stands.
    pub place: Place,
}

/// Reads one `[[upstream]]`; its name is returned even when the rest is wrong, so that no host's reference to it is
/// called unknown.
pub(super) fn read(section: Section, context: &mut Context) -> (Option<At<String>>, Option<(Upstream, Plan)>) {
    let sink = section.sink;
    snippets::note(&section);
    let name = section.required(&s::name);
    let list = section.required(&s::servers);
    let tls_span = section.key_span("tls");
    let tls_section = section.table(&s::tls);
    let group = list.as_ref().and_then(|l| servers(sink, &l.value, tls_section.is_some(), context));
    let keepalive = section.optional_at(&s::keepalive);
    let http = section.optional_at(&s::http);
    let proxy_protocol = section.optional_at(&s::proxy_protocol);
    let tolerate = section.optional_at(&s::tolerate);
    let d = defaults();
    let mut upstream = Upstream {
        name: name.as_ref().map(|n| n.value.clone()).unwrap_or_default(),
        keepalive: keepalive.as_ref().map_or(d.keepalive, |k| k.value as usize),
        keepalive_timeout: section.or(&s::keepalive_timeout),
        connect_timeout: section.or(&s::connect_timeout),
        first_byte_timeout: section.or(&s::first_byte_timeout),
        idle_timeout: section.or(&s::idle_timeout),
        min_body_rate: section.or(&s::min_body_rate),
        http: http.as_ref().map_or(d.http, |h| h.value),
        proxy_protocol: proxy_protocol.as_ref().map(|p| p.value),
        tolerance: tolerate.as_ref().map(|t| t.value).unwrap_or_default(),
        host_header: section.optional(&s::host_header),
        ..d
    };
    if let Some(at) = tolerate.filter(|_| matches!(upstream.http, UpstreamHttp::Two | UpstreamHttp::Three)) {
        let help = "remove it, or set http = \"1.1\"".to_owned();
        sink.error(&at.span, "\"tolerate\" is for servers that speak HTTP/1.1", Some(help));
    }
    if let Some(at) = http.as_ref().filter(|at| matches!(at.value, UpstreamHttp::Three)) {
        audit::outside_module(sink, &at.span, audit::QUIC, "set http = \"2\"");
    }
    balancing::read(&section, &mut upstream);
    let syn_tls = section.optional_at(&s::syn_tls);
    let udp_span = section.key_span("udp");
    let udp = section.table(&s::udp).map(udp_relay);
    let is_udp = group.as_ref().map(|group| group.udp);
    let mut plan = plan::read(&section, context.resolver, is_udp);
    if is_udp == Some(true) {
        check_udp(&section, &upstream, proxy_protocol.as_ref());
        upstream.udp = Some(udp.unwrap_or_default());
    } else if let (Some(span), Some(false)) = (udp_span, is_udp) {
        let help = "write udp:// in \"servers\", or remove [upstream.udp]".to_owned();
        sink.error(&span, "[upstream.udp] is for servers with udp://", Some(help));
    }
    if proxy_protocol.is_some() && is_udp != Some(true) {
        if let Some(k) = keepalive.filter(|k| k.value > 0) {
            let help = "set keepalive = 0: with \"proxy_protocol\", each client needs a separate connection".to_owned();
            sink.error(&k.span, "\"keepalive\" and \"proxy_protocol\" exclude each other", Some(help));
        }
        upstream.keepalive = 0;
        if let Some(h) = http.filter(|h| h.value != UpstreamHttp::One) {
            let help =
                "remove one of them: HTTP/2 and HTTP/3 connections carry the requests of many clients".to_owned();
            sink.error(&h.span, "\"http\" and \"proxy_protocol\" exclude each other", Some(help));
        }
    }
    let span = list.as_ref().map_or_else(|| section.span.clone(), |l| l.span.clone());
    section.finish();
    let Some(group) = group else {
        // The TLS section is read all the same, for its mistakes.
        if let Some(section) = tls_section {
            tls::upstream(sink, Some(section), &span, context.store);
        }
        return (name, None);
    };
    if let (Some(span), false, false) = (tls_span, group.https, group.udp) {
        let help = "write https:// in \"servers\", or remove [upstream.tls]".to_owned();
        sink.error(&span, "[upstream.tls] is for servers with https://", Some(help));
    }
    if let Some(written) = syn_tls {
        if written.value.is_some() && !group.https {
            let help =
                "write https:// in \"servers\", or remove \"syn_tls\": the gateway sends no plain requests in a SYN"
                    .to_owned();
            sink.error(&written.span, "\"syn_tls\" is for upstreams with TLS", Some(help));
        }
        upstream.syn_tls = written.value;
    }
    plan.servers = group.plans.clone();
    let upstream = finish(sink, upstream, group, tls_section, &span, context);
    (name, upstream.map(|u| (u, plan)))
}

/// An upstream with all settings at their defaults, for a host's `to`.
pub(super) fn anonymous(
    sink: &Sink,
    name: &str,
    list: &At<Vec<Entry>>,
    context: &mut Context,
) -> Option<(Upstream, Plan)> {
    let group = servers(sink, &list.value, false, context)?;
    for host in group.hosts.iter().filter(|_| !group.https) {
        audit::plain_server(sink, &host.value, &host.span);
    }
    let upstream = Upstream { name: name.to_owned(), udp: group.udp.then(UdpRelay::default), ..defaults() };
    let plan = Plan { servers: group.plans.clone(), resolver: context.resolver, ..Plan::default() };
    finish(sink, upstream, group, None, &list.span, context).map(|u| (u, plan))
}

fn defaults() -> Upstream {
    Upstream {
        name: String::new(),
        servers: Vec::new(),
        http: s::http.default(),
        balance: s::balance.default(),
        hash_key: s::hash_by.default(),
        sticky: None,
        max_connections: None,
        queue: s::queue.default() as usize,
        queue_timeout: s::queue_timeout.default(),
        tries: s::tries.default() as usize,
        retry_percent: s::retry_budget.default() as u32,
        retry_per_second: s::retry_budget_min.default() as u32,
        try_timeout: None,
        group: Arc::default(),
        tls: None,
        syn_tls: s::syn_tls.default(),
        early_data: None,
        // 16 HTTP/2 clients of 32 streams each need 512, and with fewer every burst would connect anew.
        keepalive: s::keepalive.default() as usize,
        keepalive_timeout: s::keepalive_timeout.default(),
        connect_timeout: s::connect_timeout.default(),
        first_byte_timeout: s::first_byte_timeout.default(),
        idle_timeout: s::idle_timeout.default(),
        min_body_rate: s::min_body_rate.default(),
        proxy_protocol: None,
        tolerance: Tolerance::default(),
        host_header: None,
        udp: None,
    }
}

fn udp_relay(section: Section) -> UdpRelay {
    let relay = UdpRelay {
        responses: section.optional(&u::responses).map(|n| n as u32),
        requests: section.optional(&u::requests).map(|n| n as u32),
    };
    section.finish();
    relay
}

/// Settings of groups whose servers take connections.
pub(super) const OF_REQUESTS: [&str; 14] = [
    "tls",
    "http",
    "sticky",
    "queue",
    "queue_timeout",
    "try_timeout",
    "keepalive",
    "keepalive_timeout",
    "connect_timeout",
    "first_byte_timeout",
    "min_body_rate",
    "host_header",
    "tolerate",
    "syn_tls",
];

/// What a group of servers that take datagrams cannot have.
fn check_udp(section: &Section, upstream: &Upstream, proxy_protocol: Option<&At<u8>>) {
    for key in OF_REQUESTS {
        if let Some(span) = section.key_span(key) {
            let help = format!("remove \"{key}\": datagrams are relayed without being read");
            section.sink.error(&span, format!("\"{key}\" is not for servers with udp://"), Some(help));
        }
    }
    if let Some(version) = proxy_protocol.filter(|version| version.value != 2) {
        let help = "write proxy_protocol = \"v2\"".to_owned();
        section.sink.error(&version.span, "version 1 of the PROXY protocol has no datagrams", Some(help));
    }
    if let (Some(span), false) = (section.key_span("hash_by"), upstream.hash_key == HashKey::Address) {
        let help = "write hash_by = \"address\"".to_owned();
        section.sink.error(&span, "datagrams have no headers and no cookies", Some(help));
    }
}

fn finish(
    sink: &Sink,
    mut upstream: Upstream,
    group: Servers,
    tls_section: Option<Section>,
    span: &std::ops::Range<usize>,
    context: &mut Context,
) -> Option<Upstream> {
    if !group.https && tls_section.is_none() {
        return Some(upstream);
    }
    let settings = tls::upstream(sink, tls_section, span, context.store)?;
    let server_name = match &settings.server_name {
        Some(name) => name.clone(),
        None => {
            let first = group.hosts.first()?;
            if let Some(other) = group.hosts.iter().find(|h| h.value != first.value) {
                let message = format!(
                    "the servers have different names (\"{}\", \"{}\"), but only one name can be verified in their certificates",
                    first.value, other.value
                );
                let help = "set server_name in [upstream.tls] to a name that is in all their certificates".to_owned();
                sink.error(&other.span, message, Some(help));
                return None;
            }
            first.clone()
        }
    };
    let bare = server_name.value.trim_end_matches('.');
    if ServerName::try_from(bare).is_err() {
        let help = "set server_name in [upstream.tls] to the DNS name or the IP address in the certificate".to_owned();
        sink.error(&server_name.span, format!("\"{bare}\" cannot be a name in a certificate"), Some(help));
        return None;
    }
    if let Some(early) = &settings.early_data {
        if upstream.http != UpstreamHttp::One {
            let help = "set http = \"1.1\", or remove \"early_data\"".to_owned();
            sink.error(&early.span, "\"early_data\" is for servers that speak HTTP/1.1", Some(help));
        }
        if upstream.syn_tls.is_some() {
            let help = "remove one of them: a SYN has room for the ClientHello only".to_owned();
            sink.error(&early.span, "\"early_data\" and \"syn_tls\" exclude each other", Some(help));
        }
        if early.value == EarlyRequests::Client && !context.takes_early_data {
            let help = "add early_data = \"16KiB\" to [listener.tls], or remove this setting".to_owned();
            let message = "early_data = \"client\" has no effect: no listener accepts early data";
            sink.warn(&early.span, message, Some(help));
        }
        upstream.early_data = Some(early.value);
    }
    let policy = settings.policy(&upstream.name, bare.to_owned(), upstream.http);
    upstream.tls = Some(Arc::new(policy));
    Some(upstream)
}

/// What may be tolerated of a server.
pub(super) const TOLERANCES: &[(&str, Tolerance)] = &[
    ("equal_content_lengths", Tolerance { equal_content_lengths: true, bare_lf: false, any_status: false }),
    ("bare_lf", Tolerance { equal_content_lengths: false, bare_lf: true, any_status: false }),
    ("any_status", Tolerance { equal_content_lengths: false, bare_lf: false, any_status: true }),
];

/// What is accepted of responses that break the rules.
pub(super) fn tolerance(sink: &Sink, key: &str, node: &Node) -> Option<Tolerance> {
    let mut all = Tolerance::default();
    for name in decode::strings(sink, key, node)? {
        let one = decode::choose(sink, &format!("\"{key}\""), &name.value, &name.span, TOLERANCES)?;
        all.equal_content_lengths |= one.equal_content_lengths;
        all.bare_lf |= one.bare_lf;
        all.any_status |= one.any_status;
    }
    Some(all)
}

/// A value for `Host` (RFC 9112 §3.2: a host and perhaps a port).
pub(super) fn host_header(sink: &Sink, key: &str, node: &decode::Node) -> Option<String> {
    let s = decode::text(sink, key, node)?;
    let good = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
    if s.is_empty() || !s.bytes().all(good) {
        sink.error(&node.span(), format!("\"{s}\" is not a value for Host"), Some("write \"example.com\"".to_owned()));
        return None;
    }
    Some(s)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(s: &str) -> Option<(Option<bool>, String)> {
        parse_server(s).ok().map(|u| (u.https, format!("{} {}", u.host, u.port)))
    }

    #[test]
    fn a_udp_server_is_not_a_listener_of_the_gateway() {
        let errors = |listen: &str, server: &str| {
            let text = format!(
                "[[listener]]\naddress = \"{listen}\"\nmode = \"udp\"\n[[host]]\nnames = [\"*\"]\npassthrough = \"u\"\n\
                 [[upstream]]\nname = \"u\"\nservers = [\"{server}\"]\n"
            );
            let document = crate::Document::of_file(Path::new("sealane.toml"), text.as_bytes()).unwrap();
            document.read_offline().map_or_else(|e| e.to_string(), |_| String::new())
        };
        for (listen, server) in [
            ("127.0.0.1:53", "udp://127.0.0.1:53"),
            ("0.0.0.0:53", "udp://127.0.0.9:53"),
            (":53", "udp://localhost:53"),
            ("[::]:53", "udp://[::1]:53"),
            ("[::1]:53", "udp://[::1]:53"),
        ] {
            let said = errors(listen, server);
            assert!(said.contains("the gateway's own UDP listener"), "{listen} {server}: {said}");
        }
        for (listen, server) in [
            ("127.0.0.1:53", "udp://127.0.0.1:54"),
            ("127.0.0.1:53", "udp://127.0.0.2:53"),
            ("0.0.0.0:53", "udp://192.0.2.1:53"),
            ("[::1]:53", "udp://dns.example:53"),
        ] {
            assert_eq!(errors(listen, server), "", "{listen} {server}");
        }
    }

    #[test]
    fn an_empty_server_is_said_to_be_empty() {
        assert!(parse_server("").is_err_and(|(message, _)| message == "the server is empty"));
    }

    #[test]
    fn servers_are_urls_or_addresses() {
        assert_eq!(parsed("http://127.0.0.1:3000"), Some((Some(false), "127.0.0.1 3000".into())));
        assert_eq!(parsed("http://127.0.0.1:3000/"), Some((Some(false), "127.0.0.1 3000".into())));
        assert_eq!(parsed("https://Example.COM"), Some((Some(true), "example.com 443".into())));
        assert_eq!(parsed("http://[::1]"), Some((Some(false), "::1 80".into())));
        assert_eq!(parsed("[::1]:9"), Some((None, "::1 9".into())));
        assert_eq!(parsed("unix:/run/App.sock"), Some((Some(false), "/run/App.sock 0".into())));
        assert_eq!(parsed("unix:///run/app.sock"), Some((Some(false), "/run/app.sock 0".into())));
        assert_eq!(parsed("unix:app.sock"), Some((Some(false), "app.sock 0".into())));
        for bad in ["unix:", "unix:/a\0", "http://unix:/run/a.sock:/path"] {
            assert_eq!(parsed(bad), None, "{bad:?}");
        }
        assert_eq!(parsed("app:8080"), Some((None, "app 8080".into())));
        assert_eq!(parsed("http+srv://_http._tcp.App.example"), Some((Some(false), "_http._tcp.app.example 0".into())));
        assert_eq!(parsed("https+srv://_x._tcp.a./"), Some((Some(true), "_x._tcp.a. 0".into())));
        assert_eq!(parsed("tcp+srv://_x._tcp.a"), Some((None, "_x._tcp.a 0".into())));
        for bad in ["http+srv://", "http+srv://app", "http+srv://_x._tcp.a b", "http+srv://_x._tcp..a"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
        for bad in [
            "",
            "app",
            "http://",
            "http://a/b",
            "ftp://a",
            "http://u@a",
            "a:0",
            "a:70000",
            "::1:80",
            "http://a b",
            "[x]:1",
        ] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_added_server_fits_its_group() {
        let plain = Upstream { name: "app".to_owned(), ..defaults() };
        let added = |text: &str| added_server(text, 3, false, &plain).map(|plan| (plan.name, plan.weight));
        assert_eq!(added("http://10.0.0.1:80"), Ok(("10.0.0.1:80".to_owned(), 3)));
        assert_eq!(added("app.example:8080"), Ok(("app.example:8080".to_owned(), 3)));
        assert_eq!(added("unix:/run/a.sock"), Ok(("unix:/run/a.sock".to_owned(), 3)));
        for bad in ["https://10.0.0.1", "unix:a.sock", "http+srv://_http._tcp.a", "", "a\n:1", &"a".repeat(600)] {
            assert!(added(bad).is_err(), "{bad:?}");
        }
        assert!(added_server("http://a", 257, false, &plain).is_err());
    }

    #[test]
    fn messages_say_what_to_write() {
        let help = |s| parse_server(s).err().and_then(|(_, help)| help).unwrap();
        assert_eq!(help("http://a:1/path?q"), "write \"http://a:1\"");
        assert_eq!(help("app"), "write \"http://app\", or add a port: \"app:8080\"");
        assert_eq!(help("ws://a:1"), "write \"http://a:1\" or \"https://a:1\"");
        assert_eq!(help("udp://a"), "add a port: \"udp://a:53\"");
        assert_eq!(help("http+srv://app.example"), "write \"http+srv://_http._tcp.app.example\"");
        assert_eq!(help("https+srv://_x._tcp.a:443"), "write \"https+srv://_x._tcp.a\"");
        assert_eq!(help("http://_x._tcp.a:80"), "write \"http+srv://_x._tcp.a\", without a port");
    }
}
