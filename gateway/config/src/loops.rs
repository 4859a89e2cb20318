//! Upstreams that are the gateway itself: requests that come back to the rule by which they were forwarded, until their head is too
//! large.
//!
//! A gateway may forward to another of its listeners, where another rule applies. So only what is certain is an error: a server without
//! TLS at the address of a listener, where the same host and the same rule get the request again. Rules that may refuse the second
//! request, or that look at its headers, make it uncertain.

use super::Mode;
use super::diagnostics::Sink;
use super::host::{Hosts, Target, Upstreams};
use super::listener::Draft;
use super::upstream::is_at;
use sealane_proxy::rules::Route;
use sealane_proxy::snapshot::Action;
use sealane_route::Subject;

/// What comes back.
enum What {
    Requests,
    Copies,
    Checks,
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
        let Some((name, (what, server, listener))) = found else { continue };
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
        };
        sink.error(&name.span, message, Some(help.to_owned()));
    }
}

impl View<'_> {
    /// Whether some request for a name of a host comes back to its rule: what, from which server and which listener.
    fn comes_back(&self, host: u32, name: &str) -> Option<(What, String, String)> {
        let is_served = |target: &Target| target.mode == Mode::Http && target.hosts.find(name) == Some(&host);
        if !self.targets.iter().any(is_served) {
            return None;
        }
        match self.hosts.action(host) {
            Action::Proxy { upstream } => self.back_to(*upstream, host, name).map(|(s, l)| (What::Requests, s, l)),
            Action::Routes(table) if table.goes_by_path_and_method() => {
                let mut paths: Vec<Vec<u8>> = table.paths().collect();
                paths.sort_unstable();
                paths.iter().find_map(|path| self.route_comes_back(self.route(host, path)?, host, name))
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

    fn route_comes_back(&self, route: &Route, host: u32, name: &str) -> Option<(What, String, String)> {
        if let Some(auth) = &route.forward_auth {
            let path = auth.target.split('?').next().unwrap_or_default();
            let (server, listener, at) = self.own(auth.upstream)?;
            let name = self.name_at(auth.upstream, name);
            let asked = self.targets[at].hosts.find(&name).and_then(|host| self.route(*host, path.as_bytes()))?;
            return (asked.forward_auth.as_ref() == Some(auth)).then_some((What::Checks, server, listener));
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
        requests.chain(copies).find_map(|(what, upstream)| {
            let (server, listener) = self.back_to(upstream, host, name)?;
            Some((what, server, listener))
        })
    }

    /// The server and the listener by which requests for a name come back to their host.
    fn back_to(&self, upstream: usize, host: u32, name: &str) -> Option<(String, String)> {
        let (server, listener, at) = self.own(upstream)?;
        let name = self.name_at(upstream, name);
        (self.targets[at].hosts.find(&name) == Some(&host)).then_some((server, listener))
    }

    /// The host that the servers of an upstream are asked for.
    fn name_at(&self, upstream: usize, name: &str) -> String {
        let Some(header) = &self.upstreams.all[upstream].host_header else { return name.to_owned() };
        let host = match header.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
            _ => header,
        };
        host.to_ascii_lowercase()
    }

    /// A server of an upstream that is a listener of the gateway, which takes its requests for certain.
    fn own(&self, upstream: usize) -> Option<(String, String, usize)> {
        let group = self.upstreams.all.get(upstream)?;
        if group.tls.is_some() || group.udp.is_some() || group.proxy_protocol.is_some() {
            return None;
        }
        let servers = self.upstreams.plans[upstream].servers.iter().filter(|server| !server.backup && !server.drain);
        servers.into_iter().find_map(|server| {
            let is_it = |at: &usize| match (
                &server.socket,
                self.listeners[*at].address.ip(),
                self.listeners[*at].address.unix(),
            ) {
                (Some(path), _, Some(socket)) => **path == *socket.path,
                (None, Some(address), _) => is_at(server, address),
                _ => false,
            };
            let at =
                (0..self.listeners.len()).find(|at| is_it(at) && self.listeners[*at].takes_all_requests(group.http))?;
            Some((server.name.clone(), self.targets[at].written.clone(), at))
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::Document;

    const TOP: &str = "[[listener]]\naddress = \"127.0.0.1:8080\"\n[[listener]]\naddress = \":8081\"\n\
                       [[listener]]\naddress = \"unix:/run/own.sock\"\nmode = \"http\"\n";

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
