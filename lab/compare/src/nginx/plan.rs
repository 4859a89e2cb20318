//! The requests that a configuration of NGINX asks for.

use super::location::{Location, Matcher, locations};
use super::naming::maps;
use super::runnable::Abilities;
use super::servers::{Server, servers};
use super::site::{Site, scope_of};
use super::{http, listen, server, server_address, socket};
use crate::draft::{Chosen, Draft, Handshakes, Listener, Plan};
use crate::samples;
use crate::tree::{Node, Place, walk};
use crate::words::is_dns_name;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most servers of one address, besides the first, whose suites are tried.
const MAX_SUITES: usize = 20;

/// What a configuration asks to be tried.
pub fn plan(tree: &[Node], abilities: &Abilities) -> Plan {
    let mut plan = Plan::default();
    let nodes = http(tree);
    let mut shared = BTreeSet::new();
    // Maps, zones and groups take part where they are used.
    let used = |n: &&Node| n.block.is_some() || n.name().ends_with("_zone");
    nodes.iter().filter(|n| n.name() != "server" && !used(n)).for_each(|n| n.lines(&mut shared));
    upstreams(tree, &mut plan);
    let wishes = maps(tree, &nodes, &mut plan);
    let servers = servers(&nodes, abilities, &mut plan);
    for server in &servers {
        let mut found = Vec::new();
        locations(server.node.inner(), &[], &mut found, &mut plan);
        mirrors(server.node, &found, tree, &mut plan);
        let mut site =
            Site { server, others: &servers, locations: found, shared: &shared, nodes: &nodes, wishes: &wishes };
        site.add(&mut plan);
    }
    unknown_hosts(&servers, &nodes, &shared, &mut plan);
    handshakes(&nodes, &servers, &mut plan);
    streams(tree, &servers, abilities, &mut plan);
    for listener in servers.iter().flat_map(|s| &s.listeners).filter(|l| !l.quic) {
        if !plan.listeners.iter().any(|l| l.address == listener.address) {
            plan.listeners.push(listener.clone());
        }
    }
    plan
}

/// Groups of servers, and their ports; and which users are not told apart.
fn upstreams(tree: &[Node], plan: &mut Plan) {
    let mut addresses = Vec::new();
    walk(tree, &mut |node| {
        let mut words: Vec<&str> = Vec::new();
        if node.name() == "upstream" {
            words.extend(node.all("server").map(|s| s.word(1)));
            plan.groups.push(words.iter().filter_map(|w| server(w)).collect());
        }
        if node.name() == "limit_except" {
            for file in node.all("auth_basic_user_file") {
                plan.unasked(
                    &file.place,
                    "in the copies, all password files have the same user: test each user with each method yourself",
                );
            }
        }
        if node.name().ends_with("_pass") {
            words.push(node.word(1));
        }
        plan.http2_servers |= node.name() == "grpc_pass" && node.word(1).starts_with("grpcs://");
        addresses.extend(words.iter().filter_map(|w| server_address(w)));
        plan.sockets.extend(words.iter().filter_map(|w| socket(w)));
    });
    // A variable may stand for any of them.
    plan.ports = vec![80, 443];
    plan.servers = addresses;
}

/// The servers that get copies of requests: those of the locations that `mirror` names.
fn mirrors(server: &Node, locations: &[Location<'_>], tree: &[Node], plan: &mut Plan) {
    let mut uris: BTreeSet<&str> = BTreeSet::new();
    walk(std::slice::from_ref(server), &mut |n| {
        if n.name() == "mirror" {
            uris.insert(n.word(1));
        }
    });
    walk(tree, &mut |n| {
        if n.name() == "http" {
            uris.extend(n.all("mirror").map(|m| m.word(1)));
        }
    });
    let is_mirror = |l: &&Location<'_>| match &l.matcher {
        Matcher::Exact(path) | Matcher::Prefix(path) => uris.contains(path.as_str()),
        Matcher::Regex(..) | Matcher::Named => false,
    };
    for pass in locations.iter().filter(is_mirror).flat_map(|l| l.node().all("proxy_pass")) {
        let bare = pass.word(1).split('$').next().unwrap_or_default();
        plan.mirrors.extend(server_address(bare).map(|a| a.to_string()));
        let group = bare.split("://").nth(1).unwrap_or(bare);
        walk(tree, &mut |n| {
            if n.name() == "upstream" && n.word(1) == group {
                plan.mirrors.extend(n.all("server").filter_map(|s| self::server(s.word(1))));
            }
        });
    }
}

fn unknown_hosts<'n>(servers: &[Server<'n>], nodes: &[&'n Node], shared: &BTreeSet<Place>, plan: &mut Plan) {
    let mut done = BTreeSet::new();
    let all = || servers.iter().flat_map(|s| s.listeners.iter().zip(&s.is_default).map(move |(l, d)| (s, l, *d)));
    for (_, listener, _) in all().filter(|(_, l, _)| !l.quic) {
        if !done.insert(listener.address) {
            continue;
        }
        let here = || all().filter(|(_, l, _)| l.address == listener.address);
        let Some((server, ..)) = here().find(|(.., d)| *d).or_else(|| here().next()) else { continue };
        let scope = scope_of(server, servers, nodes, shared, "/");
        for host in ["unknown.compare.invalid".to_owned(), listener.address.ip().to_string()] {
            if !host.contains(':') {
                plan.push(Draft::new(listener, &host, &server.node.place, &scope));
            }
        }
    }
}

fn handshakes(nodes: &[&Node], servers: &[Server<'_>], plan: &mut Plan) {
    let mut done = BTreeSet::new();
    for listener in servers.iter().flat_map(|s| &s.listeners).filter(|l| l.tls && !l.quic && l.address.is_ipv4()) {
        if !done.insert(listener.address) {
            continue;
        }
        let here: Vec<&Server<'_>> =
            servers.iter().filter(|s| s.listeners.iter().any(|l| l.address == listener.address)).collect();
        let mut names: Vec<Option<String>> = Vec::new();
        let mut lines = BTreeSet::new();
        let (mut says, mut all) = (Chosen { alpn: true, ..Chosen::default() }, nodes.to_vec());
        for server in &here {
            let hosts = server.names.iter().flat_map(|n| samples::host(n).unwrap_or_default());
            names.extend(hosts.filter(|h| is_dns_name(h) && h.contains('.')).map(Some));
            all.extend(server.node.inner());
            lines.insert(server.node.place.clone());
        }
        for node in all
            .iter()
            .filter(|n| n.name().starts_with("ssl_") || matches!(n.name(), "listen" | "http2" | "server_name"))
        {
            lines.insert(node.place.clone());
            match node.name() {
                "ssl_protocols" => says.versions = true,
                "ssl_ciphers" => says.suites = true,
                "ssl_ecdh_curve" => says.groups = node.word(1) != "auto",
                "ssl_conf_command" => says = Chosen { versions: true, suites: true, groups: says.groups, alpn: true },
                _ => {}
            }
        }
        // A name that no server has, and a certificate for a whole domain may cover.
        let parent = names.iter().flatten().filter_map(|n| n.split_once('.')).find(|(_, parent)| parent.contains('.'));
        let beside = parent.map(|(_, parent)| format!("no-such-name.{parent}"));
        names.extend(beside.map(Some));
        names.extend([Some("unknown.compare.invalid".to_owned()), None]);
        names.dedup();
        let (listener, with_suites) = (listener.clone(), with_suites(&here, plan));
        plan.handshakes.push(Handshakes { listener, names, with_suites, chosen: says, scope: Arc::new(lines) });
    }
}

/// A name of each server whose suites of TLS 1.2 are others than those of the first server with a name. NGINX takes the suites of the
/// server whose name the client asks for.
fn with_suites(here: &[&Server<'_>], plan: &mut Plan) -> Vec<String> {
    let (mut lists, mut out) = (Vec::new(), Vec::new());
    for server in here {
        let chosen = server.node.all("ssl_ciphers").last();
        let list = chosen.map(|n| n.word(1));
        let mut hosts = server.names.iter().flat_map(|n| samples::host(n).unwrap_or_default());
        let Some(name) = hosts.find(|h| is_dns_name(h) && h.contains('.')) else { continue };
        if lists.contains(&list) {
            continue;
        }
        lists.push(list);
        match out.len() <= MAX_SUITES {
            true => out.push(name),
            false => plan.unasked(
                chosen.map_or(&server.node.place, |n| &n.place),
                format!("only the suites of the first {MAX_SUITES} servers of this address are tried"),
            ),
        }
    }
    // The first one is the name with which everything else is asked.
    out.into_iter().skip(1).collect()
}

/// A connection that is relayed to an address of NGINX itself gets the answers of the server there.
fn chained(stream: &Node, servers: &[Server<'_>], lines: &mut BTreeSet<Place>) {
    let mut targets = BTreeSet::new();
    walk(std::slice::from_ref(stream), &mut |n| targets.extend(n.words.iter().filter_map(|w| server_address(w))));
    for target in targets.into_iter().filter(|t| t.ip().is_loopback()) {
        let here = |s: &&Server<'_>| s.listeners.iter().any(|l| l.address.port() == target.port());
        let is_default = |s: &&Server<'_>| {
            s.listeners.iter().zip(&s.is_default).any(|(l, is)| *is && l.address.port() == target.port())
        };
        let all = || servers.iter().filter(here);
        if let Some(server) = all().find(is_default).or_else(|| all().next()) {
            server.node.lines(lines);
        }
    }
}

/// Relayed connections.
fn streams(tree: &[Node], servers: &[Server<'_>], abilities: &Abilities, plan: &mut Plan) {
    for stream in tree.iter().filter(|n| n.name() == "stream") {
        if !abilities.stream {
            plan.skip(&stream.place, "this NGINX has no stream module");
            continue;
        }
        let mut lines = BTreeSet::new();
        stream.lines(&mut lines);
        chained(stream, servers, &mut lines);
        let scope = Arc::new(lines);
        let names: Vec<String> = stream
            .all("map")
            .filter(|m| m.word(1).contains("ssl_preread_server_name"))
            .flat_map(|m| m.inner().iter().filter(|e| e.name() != "default" && e.name() != "hostnames"))
            .flat_map(|e| samples::host(e.name()).unwrap_or_default())
            .filter(|h| is_dns_name(h))
            .chain(["unknown.compare.invalid".to_owned()])
            .collect();
        for server in stream.all("server") {
            let preread = [stream, server].iter().any(|n| n.all("ssl_preread").any(|p| p.word(1) == "on"));
            for node in server.all("listen") {
                let Some(l) = listen(node.word(1)) else { continue };
                if node.words.iter().any(|w| w == "udp") {
                    plan.skip(&node.place, "UDP is not compared");
                    continue;
                }
                let has = |word: &str| node.words.iter().any(|w| w == word);
                let listener = Listener {
                    address: l.address,
                    bound: l.bound,
                    tls: preread || has("ssl"),
                    quic: false,
                    http2: false,
                    proxy: has("proxy_protocol"),
                    hop: None,
                    place: node.place.clone(),
                };
                for name in &names {
                    plan.push(Draft::new(&listener, name, &node.place, &scope));
                }
                plan.listeners.push(listener);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::site::DEFAULT_CONTENT;
    use super::*;
    use crate::draft::{Behaviour, Over, Shown};

    fn node(line: u32, words: &[&str], block: Option<Vec<Node>>) -> Node {
        let place = Place { file: "n".into(), line };
        Node { place, words: words.iter().map(|w| (*w).to_owned()).collect(), block, from: None }
    }

    #[test]
    fn each_part_of_a_server_is_tried() {
        let location = node(
            5,
            &["location", "/api/"],
            Some(vec![
                node(6, &["if", "($request_method", "=", "POST)"], Some(vec![node(6, &["return", "405"], None)])),
                node(7, &["proxy_pass", "http://10.0.0.1:3000"], None),
                node(8, &["client_max_body_size", "1k"], None),
                node(9, &["allow", "10.0.0.0/8"], None),
            ]),
        );
        let server = node(
            2,
            &["server"],
            Some(vec![
                node(3, &["listen", "80"], None),
                node(4, &["server_name", "a.example", "*.b.example"], None),
                location,
            ]),
        );
        let tree = [node(1, &["http"], Some(vec![server]))];
        let plan = plan(&tree, &Abilities::default());
        assert_eq!(plan.listeners[0].address.to_string(), "203.0.113.10:80");
        assert_eq!(plan.servers[0].to_string(), "10.0.0.1:3000");
        let has = |what: &dyn Fn(&Draft) -> bool| plan.drafts.iter().any(what);
        assert!(has(&|d| d.host == "b.a.b.example"), "a wildcard stands for any number of labels");
        assert!(has(&|d| d.path == "/api") && has(&|d| d.path == "/api/x") && has(&|d| d.path == "/ap%69/"));
        assert!(has(&|d| d.method == "POST" && d.place.line == 6));
        assert!(has(&|d| d.content == 1025) && has(&|d| d.content == 1024));
        assert!(has(&|d| d.from.is_some_and(|f| f.to_string() == "10.254.254.254")));
        assert!(has(&|d| d.host == "unknown.compare.invalid" && d.place.line == 2));
        for host in ["a.example", "unknown.compare.invalid"] {
            let other = plan.drafts.iter().find(|d| d.path == "/" && d.host == host).unwrap();
            assert!(other.scope.iter().any(|p| p.line == 4), "{host}: the server has a part in it");
            assert!(!other.scope.iter().any(|p| p.line == 9), "{host}: another location has no part in it");
        }
        // Another address than the one that sends the request, for the list of addresses.
        let claims: Vec<&Draft> = plan.drafts.iter().filter(|d| d.claims).collect();
        assert!(claims.len() == 6 && claims.iter().all(|d| d.place.line == 9 && d.path == "/api/"), "{claims:?}");
    }

    #[test]
    fn every_version_of_http_is_tried_where_it_is_spoken() {
        let listen = |words: &[&str]| node(3, words, None);
        let grpc = node(5, &["location", "/a.A/"], Some(vec![node(6, &["grpc_pass", "grpcs://10.0.0.1:50051"], None)]));
        let socket = node(7, &["location", "/"], Some(vec![node(8, &["proxy_pass", "http://unix:/run/a.sock"], None)]));
        let server = node(
            2,
            &["server"],
            Some(vec![
                listen(&["listen", "443", "ssl"]),
                listen(&["listen", "443", "quic"]),
                node(4, &["http2", "on"], None),
                node(4, &["server_name", "a.example"], None),
                grpc,
                socket,
            ]),
        );
        let tree = [node(1, &["http"], Some(vec![server]))];
        let plan = plan(&tree, &Abilities::default());
        assert_eq!(plan.listeners.len(), 1, "QUIC is at the address of TCP");
        assert!(plan.http2_servers && plan.sockets.contains("unix:/run/a.sock"));
        let calls: Vec<&Draft> = plan.drafts.iter().filter(|d| d.path.starts_with("/a.A/")).collect();
        assert!(!calls.is_empty() && calls.iter().all(|d| d.is_grpc() && d.method == "POST"), "{calls:?}");
        assert!(calls.iter().any(|d| d.over == Over::Http2) && calls.iter().any(|d| d.over == Over::Http3));
        assert!(plan.drafts.iter().any(|d| d.over == Over::Http3 && d.path == "/x" || d.path == "/"));
        assert!(plan.untried.iter().any(|u| u.why.starts_with("HTTP/3 of this NGINX, which does not support it")));
    }

    #[test]
    fn files_are_told_from_answers_and_conditions_are_tried_by_their_maps() {
        let location = |line: u32, path: &str, inner: Vec<Node>| node(line, &["location", path], Some(inner));
        let server = node(
            5,
            &["server"],
            Some(vec![
                node(6, &["listen", "80"], None),
                node(7, &["if", "($bad)"], Some(vec![node(7, &["return", "403"], None)])),
                location(8, "/", vec![node(8, &["proxy_pass", "http://10.0.0.1"], None)]),
            ]),
        );
        let files = node(
            10,
            &["server"],
            Some(vec![
                node(11, &["listen", "81"], None),
                location(12, "/files/", vec![node(12, &["root", "/srv"], None)]),
                location(13, "/inner/", vec![node(13, &["root", "/srv"], None), node(13, &["internal"], None)]),
                location(14, "/gone/", vec![node(14, &["return", "404"], None)]),
                location(15, "/", vec![node(15, &["proxy_pass", "http://10.0.0.1"], None)]),
            ]),
        );
        let map = node(
            2,
            &["map", "$http_user_agent", "$bad"],
            Some(vec![node(3, &["default", "0"], None), node(4, &["~*(semrush|ahrefs)", "1"], None)]),
        );
        let plan = plan(&[node(1, &["http"], Some(vec![map, server, files]))], &Abilities::default());
        let sent = |d: &&Draft| d.headers.iter().any(|(n, v)| n == "user-agent" && v.eq_ignore_ascii_case("semrush"));
        assert!(plan.drafts.iter().filter(sent).any(|d| d.place.line == 7), "the if by its map");
        assert!(plan.untried.is_empty(), "{:?}", plan.untried);
        let of = |path: &'static str| plan.drafts.iter().filter(move |d| d.path == path && d.to.port() == 81);
        assert!(of("/files/").count() > 0 && of("/files/").all(|d| d.files));
        assert!(of("/file%73/").count() > 0 && of("/file%73/").all(|d| d.files));
        for path in ["/inner/", "/gone/", "/"] {
            assert!(of(path).count() > 0 && of(path).all(|d| !d.files), "{path}");
        }
        assert!(plan.drafts.iter().any(|d| d.content == DEFAULT_CONTENT + 1), "NGINX's own limit");
    }

    #[test]
    fn suites_are_tried_for_each_server_that_has_its_own() {
        let server = |line: u32, name: &str, suites: Option<&str>| {
            let mut block = vec![node(line, &["listen", "443", "ssl"], None), node(line, &["server_name", name], None)];
            block.extend(suites.map(|s| node(line, &["ssl_ciphers", s], None)));
            node(line, &["server"], Some(block))
        };
        let servers = vec![
            server(2, "a.example", None),
            server(3, "b.example", None),
            server(4, "erp.shop.example", Some("AES128-SHA")),
            server(5, "old.example", Some("AES128-SHA")),
        ];
        let plan = plan(&[node(1, &["http"], Some(servers))], &Abilities::default());
        assert_eq!(plan.handshakes.len(), 1);
        assert_eq!(plan.handshakes[0].with_suites, ["erp.shop.example"]);
        assert!(plan.handshakes[0].names.contains(&Some("no-such-name.shop.example".to_owned())));
    }

    #[test]
    fn servers_say_the_addresses_that_nginx_replaces() {
        let location = vec![
            node(4, &["proxy_pass", "http://10.0.0.1"], None),
            node(5, &["proxy_redirect", "http://a.internal/", "/"], None),
            node(6, &["proxy_redirect", "~^http://b/(.*)$", "/$1"], None),
            node(7, &["proxy_cookie_path", "/erp/", "/"], None),
            node(8, &["proxy_cookie_domain", "a.internal", "a.example"], None),
        ];
        let server = vec![node(3, &["listen", "80"], None), node(4, &["location", "/"], Some(location))];
        let plan = plan(&[node(1, &["http"], Some(vec![node(2, &["server"], Some(server))]))], &Abilities::default());
        let said = plan.drafts.iter().filter_map(|d| Some((d.place.line, d.served.first()?.as_str())));
        let mut said: Vec<(u32, &str)> = said.collect();
        said.sort_unstable();
        said.dedup();
        assert_eq!(
            said,
            [
                (5, "Location:http://a.internal/moved"),
                (7, "Set-Cookie:server=1;Path=/erp/"),
                (8, "Set-Cookie:server=1;Domain=a.internal"),
            ]
        );
    }

    #[test]
    fn upgrades_and_methods_behind_a_password_are_tried_and_what_cannot_be_is_named() {
        let refuse = || Some(vec![node(9, &["return", "403"], None)]);
        let pass = || node(8, &["proxy_pass", "http://10.0.0.1"], None);
        let upload = vec![
            node(6, &["if", "($scheme", "=", "http)"], refuse()),
            node(7, &["auth_basic", "Staff"], None),
            node(7, &["limit_except", "PUT"], Some(vec![node(7, &["auth_basic_user_file", "editors"], None)])),
            pass(),
        ];
        let partner = vec![
            node(11, &["if", "($partner", "=", "\"\")"], refuse()),
            node(12, &["if", "($ssl_client_serial", "=", "01)"], refuse()),
            pass(),
        ];
        let server = vec![
            node(3, &["listen", "80"], None),
            node(4, &["listen", "443", "ssl"], None),
            node(5, &["location", "/upload/"], Some(upload)),
            node(10, &["location", "/partner/"], Some(partner)),
            node(13, &["location", "/old/"], Some(vec![node(13, &["proxy_pass", "http://10.0.0.1/erp/"], None)])),
        ];
        let map = node(2, &["map", "$ssl_client_s_dn", "$partner"], Some(vec![node(2, &["CN=a", "1"], None)]));
        let plan =
            plan(&[node(1, &["http"], Some(vec![map, node(2, &["server"], Some(server))]))], &Abilities::default());
        let has = |port: u16, what: &dyn Fn(&Draft) -> bool| plan.drafts.iter().any(|d| d.to.port() == port && what(d));
        for port in [80, 443] {
            assert!(has(port, &|d| d.path == "/upload/" && d.headers.iter().any(|(n, _)| n == "Upgrade")), "{port}");
            assert!(has(port, &|d| d.method == "PUT" && d.headers.iter().any(|(n, _)| n == "Authorization")), "{port}");
        }
        let why: Vec<(u32, &str)> = plan.untried.iter().map(|u| (u.place.line, u.why.as_str())).collect();
        assert!(why.iter().any(|(line, why)| *line == 12 && why.contains("makes the certificates")), "{why:?}");
        assert!(why.iter().any(|(line, why)| *line == 7 && why.contains("have the same user")), "{why:?}");
        assert!(has(443, &|d| d.place.line == 11 && d.shown == Shown::Namesake));
        assert!(has(80, &|d| d.path == "/upload/" && d.behaviour == Behaviour::RedirectToItself));
        assert!(has(80, &|d| d.path == "/old/" && d.behaviour == Behaviour::RedirectToPass));
        assert!(!why.iter().any(|(line, _)| *line == 6), "each listener is asked: {why:?}");
    }
}
