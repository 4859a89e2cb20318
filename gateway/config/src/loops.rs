//! Upstreams that are the gateway itself: requests that come back to the rule by which they were forwarded, and relayed connections that
//! come back to their host.
//!
//! A gateway may forward to another of its listeners, where another rule applies. So only what is certain is an error: a server at the
//! address of a listener, where the same host and the same rule get the request again, whether over TLS or not. Rules that may refuse the
//! second request, or that look at its headers, make it uncertain. Whether a handshake succeeds is not looked at: if it does not, the
//! server serves nothing.
//!
//! Loops that the text does not show (a server's name leads to the gateway, or another proxy sends requests back) end while they are
//! served: `Via` counts how often a request has come (`sealane_proxy`, `exchange/forwarded.rs`).

use super::Mode;
use super::diagnostics::Sink;
use super::host::{Hosts, Target, Upstreams};
use super::listener::Draft;
use super::plan::ServerPlan;
use super::upstream::is_at;
use sealane_proxy::rules::Route;
use sealane_proxy::snapshot::{Action, Upstream};
use sealane_route::Subject;
use std::net::IpAddr;

/// What comes back.
enum What {
    Requests,
    Copies,
    Checks,
    Connections,
}

/// A server that is a listener of the gateway.
struct Own {
    server: String,
    listener: String,
    /// The listener's index.
    at: usize,
}

struct View<'a> {
    listeners: &'a [Draft],
    targets: &'a [Target],
    hosts: &'a Hosts,
    routes: &'a [Route],
    upstreams: &'a Upstreams,
}

/// A request without headers.
struct Plain;

impl Subject for Plain {
    fn method(&self) -> &[u8] {
        b"GET"
    }

    fn any_field(&self, _: &str, _: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        false
    }
}

/// Reports hosts whose requests come back for certain.
pub(super) fn check(
    sink: &Sink,
    listeners: &[Draft],
    targets: &[Target],
    hosts: &Hosts,
    routes: &[Route],
    upstreams: &Upstreams,
) {
    let view = View { listeners, targets, hosts, routes, upstreams };
    for (index, host) in (0..).zip(&hosts.all) {
        let found = host.names.iter().find_map(|name| Some((name, view.comes_back(index, &name.value.sample())?)));
        let Some((name, (what, Own { server, listener, .. }))) = found else { continue };
        let own = format!("the server {server} is the gateway's own listener {listener}");
        let (message, help) = match what {
            What::Requests => (
                format!("requests for \"{}\" come back to the gateway without end: {own}", name.value),
                "write the address of the server that the requests are for",
            ),
            What::Copies => (
                format!(
                    "copies of requests for \"{}\" come back to the gateway without end (mirror): {own}",
                    name.value
                ),
                "write the address of the server that the copies are for",
            ),
            What::Checks => (
                format!(
                    "the check of requests for \"{}\" comes back to the gateway without end (forward_auth): {own}, where the \
                     request for permission needs the same permission",
                    name.value
                ),
                "write another upstream, or add a [[host.route]] for the path of the check with forward_auth = false",
            ),
            What::Connections => (
                format!("connections for \"{}\" come back to the gateway without end (passthrough): {own}", name.value),
                "write the address of the server that the connections are for",
            ),
        };
        sink.error(&name.span, message, Some(help.to_owned()));
    }
}

impl View<'_> {
    /// Whether some request or connection for a name of a host comes back to its rule: what, and by which listener.
    fn comes_back(&self, host: u32, name: &str) -> Option<(What, Own)> {
        let is_served = |target: &Target| target.mode != Mode::Udp && target.hosts.find(name) == Some(&host);
        if !self.targets.iter().any(is_served) {
            return None;
        }
        match self.hosts.action(host) {
            Action::Proxy { upstream } => self.back_to(*upstream, host, name).map(|own| (What::Requests, own)),
            Action::Routes(table) if table.goes_by_path_and_method() => {
                let mut paths: Vec<Vec<u8>> = table.paths().collect();
                paths.sort_unstable();
                paths.iter().find_map(|path| self.route_comes_back(self.route(host, path)?, host, name))
            }
            Action::Passthrough { upstream, access: None } => {
                let own = self.own(*upstream, |at| self.relays_to(at, host, name))?;
                Some((What::Connections, own))
            }
            _ => None,
        }
    }

    /// The route of a request, if it can be refused only by its `forward_auth`.
    fn route(&self, host: u32, path: &[u8]) -> Option<&Route> {
        let Action::Routes(table) = self.hosts.action(host) else { return None };
        let found = table.goes_by_path_and_method().then(|| table.find(path, &Plain).ok().flatten()).flatten()?;
        let route = self.routes.get(*found.value)?;
        (route.access.is_empty() && route.basic_auth.is_none() && route.maintenance.is_none()).then_some(route)
    }

    fn route_comes_back(&self, route: &Route, host: u32, name: &str) -> Option<(What, Own)> {
        if let Some(auth) = &route.forward_auth {
            let path = auth.target.split('?').next().unwrap_or_default();
            let (own, name) = self.own_for_requests(auth.upstream, name)?;
            let asked = self.targets[own.at].hosts.find(&name).and_then(|host| self.route(*host, path.as_bytes()))?;
            return (asked.forward_auth.as_ref() == Some(auth)).then_some((What::Checks, own));
        }
        if route.rewrite.is_some() {
            return None;
        }
        let (destinations, mirror) = match &route.action {
            Action::Proxy { upstream } => (vec![*upstream], None),
            Action::Forward(by) => (by.destinations().collect(), by.mirror.as_ref().map(|mirror| mirror.upstream)),
            _ => return None,
        };
        let requests = destinations.into_iter().map(|upstream| (What::Requests, upstream));
        let copies = mirror.into_iter().map(|upstream| (What::Copies, upstream));
        requests.chain(copies).find_map(|(what, upstream)| Some((what, self.back_to(upstream, host, name)?)))
    }

    /// The listener by which requests for a name come back to their host.
    fn back_to(&self, upstream: usize, host: u32, name: &str) -> Option<Own> {
        let (own, name) = self.own_for_requests(upstream, name)?;
        (self.targets[own.at].hosts.find(&name) == Some(&host)).then_some(own)
    }

    /// A server of an upstream that is a listener of the gateway, which takes its requests for certain, and the host that the listener is
    /// asked for.
    fn own_for_requests(&self, upstream: usize, name: &str) -> Option<(Own, String)> {
        let group = self.upstreams.all.get(upstream)?;
        let name = asked_host(group, name);
        Some((self.own(upstream, |at| self.takes_requests(at, group, &name))?, name))
    }

    /// A server of an upstream that is a listener of the gateway for which this holds.
    fn own(&self, upstream: usize, takes: impl Fn(usize) -> bool) -> Option<Own> {
        let group = self.upstreams.all.get(upstream)?;
        if group.udp.is_some() || group.proxy_protocol.is_some() {
            return None;
        }
        let mut servers =
            self.upstreams.plans[upstream].servers.iter().filter(|server| !server.backup && !server.drain);
        servers.find_map(|server| {
            let is_it = |at: &usize| is_listener(server, &self.listeners[*at]) && takes(*at);
            let at = (0..self.listeners.len()).find(is_it)?;
            Some(Own { server: server.name.clone(), listener: self.targets[at].written.clone(), at })
        })
    }

    /// Whether a listener takes all requests of an upstream for a name.
    fn takes_requests(&self, at: usize, group: &Upstream, name: &str) -> bool {
        let (listener, target) = (&self.listeners[at], &self.targets[at]);
        let Some(tls) = &group.tls else { return listener.takes_all_requests(group.http) };
        // RFC 6066 §3: a ClientHello names no address.
        let is_name = tls.server_name.parse::<IpAddr>().is_err();
        let server_name = if is_name { tls.server_name.to_ascii_lowercase() } else { String::new() };
        let relays = |host: &u32| matches!(self.hosts.action(*host), Action::Passthrough { .. });
        let is_relayed = !target.protocols.is_empty() || target.hosts.find(&server_name).is_some_and(relays);
        !is_relayed && listener.takes_all_requests_over_tls(&server_name, name)
    }

    /// Whether a listener relays all connections for a name by this host.
    fn relays_to(&self, at: usize, host: u32, name: &str) -> bool {
        let target = &self.targets[at];
        self.listeners[at].relays_all() && target.protocols.is_empty() && target.hosts.find(name) == Some(&host)
    }
}

/// The host that the servers of an upstream are asked for.
fn asked_host(group: &Upstream, name: &str) -> String {
    let Some(header) = &group.host_header else { return name.to_owned() };
    let host = match header.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => header,
    };
    host.to_ascii_lowercase()
}

/// Whether a server is a listener of the gateway, as far as the text tells.
fn is_listener(server: &ServerPlan, listener: &Draft) -> bool {
    match (&server.socket, listener.address.ip(), listener.address.unix()) {
        (Some(path), _, Some(socket)) => **path == *socket.path,
        (None, Some(address), _) => is_at(server, address),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::Document;

    const TOP: &str = "[[listener]]\naddress = \"127.0.0.1:8080\"\n[[listener]]\naddress = \":8081\"\n\
                       [[listener]]\naddress = \"unix:/run/own.sock\"\nmode = \"http\"\n\
                       [[listener]]\naddress = \":8443\"\n[listener.tls]\ncertificates = { cert = \"c\" }\n\
                       client_auth = { mode = \"require\", ca = \"ca\", for = [\"inner.test\"] }\n\
                       [[listener]]\naddress = \":8444\"\nallow = [\"10.0.0.0/8\"]\n[listener.tls]\n\
                       certificates = { cert = \"c\" }\n\
                       [[listener]]\naddress = \":8025\"\nmode = \"tcp\"\n";

    fn said(text: &str) -> String {
        let document = Document::of_file("f".as_ref(), format!("{TOP}{text}").as_bytes()).unwrap();
        document.read_offline().map_or_else(|e| e.to_string(), |_| String::new())
    }

    #[test]
    fn what_comes_back_for_certain_is_an_error() {
        let upstream =
            |more: &str| format!("[[upstream]]\nname = \"own\"\nservers = \"http://127.0.0.1:8080\"\n{more}");
        let host = |settings: &str| format!("[[host]]\nnames = [\"a.test\"]\n{settings}\n");
        let other = "[[upstream]]\nname = \"app\"\nservers = \"http://127.0.0.1:3000\"\n";
        for (text, wanted) in [
            (host("to = \"http://127.0.0.1:8080\""), "requests for \"a.test\" come back to the gateway without end"),
            (host("to = \"http://localhost:8081\""), "the server localhost:8081 is the gateway's own listener :8081"),
            (host("to = \"unix:/run/own.sock\""), "requests for \"a.test\" come back"),
            (host("to = [\"http://127.0.0.1:3000\", \"http://127.0.0.1:8080\"]"), "requests for \"a.test\" come back"),
            (host("upstream = \"own\"") + &upstream(""), "requests for \"a.test\" come back"),
            (
                host("upstream = \"own\"\nhsts = true") + &upstream("host_header = \"A.test:80\"\n"),
                "requests for \"a.test\" come back",
            ),
            (
                host("respond = { status = 204 }\n[[host.route]]\npath = \"/api/\"\nto = \"http://127.0.0.1:8080\""),
                "requests for \"a.test\" come back",
            ),
            (
                host("upstream = \"app\"\nmirror = { to = \"http://127.0.0.1:8080\" }") + other,
                "copies of requests for \"a.test\" come back to the gateway without end (mirror)",
            ),
            (
                host("upstream = \"app\"\nforward_auth = { upstream = \"own\", path = \"/verify?x\" }")
                    + other
                    + &upstream(""),
                "the check of requests for \"a.test\" comes back to the gateway without end (forward_auth)",
            ),
            (host("").replace("a.test", "*") + "to = \"http://127.0.0.1:8080\"\n", "requests for \"*\" come back"),
            (host("to = \"https://127.0.0.1:8443\""), "the server 127.0.0.1:8443 is the gateway's own listener :8443"),
            (host("").replace("a.test", "*") + "to = \"https://localhost:8443\"\n", "requests for \"*\" come back"),
            (
                host("upstream = \"own\"")
                    + "[[upstream]]\nname = \"own\"\nservers = \"https://127.0.0.1:8443\"\nhttp = \"3\"\n\
                       [upstream.tls]\nserver_name = \"A.test\"\n",
                "requests for \"a.test\" come back",
            ),
            (
                host("upstream = \"app\"\nmirror = { to = \"https://localhost:8443\" }") + other,
                "copies of requests for \"a.test\" come back",
            ),
            // A relayed connection comes back as it is.
            (
                host("passthrough = \"own\"") + "[[upstream]]\nname = \"own\"\nservers = \"tcp://127.0.0.1:8443\"\n",
                "connections for \"a.test\" come back to the gateway without end (passthrough): the server 127.0.0.1:8443 is",
            ),
            (
                host("passthrough = \"own\"") + "[[upstream]]\nname = \"own\"\nservers = \"tcp://localhost:8025\"\n",
                "the gateway's own listener :8025",
            ),
        ] {
            let told = said(&text);
            assert!(told.contains(wanted) && told.contains("help: write "), "{text}\n{told}");
        }
    }

    #[test]
    fn what_may_end_is_none() {
        let own = "http://127.0.0.1:8080";
        let host = |settings: &str| format!("[[host]]\nnames = [\"a.test\"]\n{settings}\n");
        let upstream = |more: &str| format!("[[upstream]]\nname = \"own\"\nservers = \"{own}\"\n{more}");
        let app = "[[upstream]]\nname = \"app\"\nservers = \"http://127.0.0.1:3000\"\n";
        for text in [
            // Another rule gets the request.
            format!(
                "{}{}",
                host(&format!("to = \"{own}\"\nlisteners = [\":8081\"]")),
                host("respond = { status = 204 }\nlisteners = [\"127.0.0.1:8080\"]")
            ),
            format!(
                "{}[[host]]\nnames = [\"b.test\"]\nrespond = {{ status = 204 }}\n{}",
                host("upstream = \"own\""),
                upstream("host_header = \"b.test\"\n")
            ),
            host(&format!(
                "respond = {{ status = 204 }}\n[[host.route]]\npath = \"/a/\"\nrewrite_prefix = \"/b/\"\nto = \"{own}\""
            )),
            // It may be refused, or told apart by its headers.
            host(&format!("to = \"{own}\"\nallow = [\"10.0.0.0/8\"]")),
            host(&format!(
                "to = \"{own}\"\n[[host.route]]\nheaders = {{ X-Seen = true }}\nrespond = {{ status = 508 }}"
            )),
            host("upstream = \"own\"") + &upstream("proxy_protocol = \"v2\"\n"),
            host("to = \"https://127.0.0.1:8080\""),
            host("to = \"http://127.0.0.1:8443\""),
            host("to = \"https://127.0.0.1:8444\""),
            // The client certificate that the listener wants of other names makes it refuse requests for this one.
            host("upstream = \"own\"")
                + "[[upstream]]\nname = \"own\"\nservers = \"https://127.0.0.1:8443\"\ntls = { server_name = \"inner.test\" }\n",
            // The connection is relayed before a request is read.
            host("to = \"https://localhost:8443\"")
                + "[[host]]\nnames = [\"localhost\"]\npassthrough = \"app\"\n[[upstream]]\nname = \"app\"\n\
                   servers = \"tcp://10.0.0.1:443\"\n",
            host("passthrough = \"own\"\nlisteners = [\":8025\"]")
                + "[[upstream]]\nname = \"own\"\nservers = \"tcp://127.0.0.1:8443\"\n",
            host("passthrough = \"own\"\nallow = [\"10.0.0.0/8\"]")
                + "[[upstream]]\nname = \"own\"\nservers = \"tcp://127.0.0.1:8443\"\n",
            host("to = \"http://127.0.0.2:8080\""),
            host("to = \"http://127.0.0.1:8082\""),
            // The check has a route of its own.
            host(
                "upstream = \"app\"\nforward_auth = { upstream = \"own\", path = \"/verify\" }\n\
                 [[host.route]]\nexact = \"/verify\"\nforward_auth = false\nupstream = \"app\"",
            ) + app
                + &upstream(""),
        ] {
            let told = said(&text);
            assert!(!told.contains("come back") && !told.contains("comes back"), "{text}\n{told}");
        }
    }
}
