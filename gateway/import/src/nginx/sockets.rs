//! `listen`: the addresses of all servers, and which server is the default there.

use super::names::{Class, Meaning, Name, meaning, placeholder, wider, words};
use super::parser::Directive;
use super::scope::Import;
use crate::output::list;
use crate::report::Place;
use sealane_proxy::patterns::Pattern;
use sealane_route::{NameMap, NamePattern, groups};
use std::collections::HashSet;

/// A server at an address.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    /// Index into the servers.
    pub server: usize,
    /// The names by which it is reached here.
    pub names: Vec<Name>,
}

/// An address with its servers, the default one first.
#[derive(Clone, Debug)]
pub(super) struct Socket {
    /// As in `address` of Sealane.
    pub address: String,
    pub port: u16,
    pub tls: bool,
    pub http2: bool,
    pub quic: bool,
    pub proxy_protocol: bool,
    pub origin: Place,
    pub seats: Vec<Seat>,
    default: Option<usize>,
    order: Vec<usize>,
    claims: Claims,
}

/// Which server NGINX finds by name at an address.
#[derive(Clone, Debug, Default)]
struct Claims {
    exact: NameMap<usize>,
    wildcards: NameMap<usize>,
    patterns: Vec<Claim>,
    /// All names, in the order of the servers.
    all: Vec<NamePattern>,
}

/// The names of an expression, for a server.
#[derive(Clone, Debug)]
struct Claim {
    pattern: NamePattern,
    /// The expression, if the pattern covers more names.
    expression: Option<Pattern>,
    server: usize,
}

impl Claim {
    /// Whether a name, or the sample of a pattern, leads to this server.
    fn takes(&self, name: &str) -> bool {
        let is_sample = name.contains('?');
        let is_one = |e: &Pattern| is_sample || e.matches(name.as_bytes());
        self.pattern.matches(name) && self.expression.as_ref().is_none_or(is_one)
    }
}

/// Most names of regular expressions at one address.
const MAX_PATTERNS: usize = 500;

impl Claims {
    /// Takes a name for a server; whether it is the first one of its kind.
    fn add(&mut self, class: Class, name: &str, server: usize) -> bool {
        let Ok(pattern) = name.parse::<NamePattern>() else { return true };
        let new = match class {
            Class::Exact => self.exact.insert(pattern.clone(), server).is_ok(),
            Class::Wildcard => self.wildcards.insert(pattern.clone(), server).is_ok(),
            Class::Pattern => {
                self.patterns.push(Claim { pattern: pattern.clone(), expression: None, server });
                true
            }
        };
        self.all.push(pattern);
        new
    }

    /// Takes names for a server that cover those of an expression.
    fn cover(&mut self, word: &str, names: &[String], server: usize) {
        // NGINX compares names in any case.
        let expression = Pattern::new(&format!("(?i){}", word.strip_prefix('~').unwrap_or(word))).ok();
        for pattern in names.iter().filter_map(|name| name.parse::<NamePattern>().ok()) {
            self.patterns.push(Claim { pattern: pattern.clone(), expression: expression.clone(), server });
            self.all.push(pattern);
        }
    }

    /// The server of a name; none: the default one.
    fn find(&self, name: &str) -> Option<usize> {
        let named = self.exact.find(name).or_else(|| self.wildcards.find(name)).copied();
        named.or_else(|| self.patterns.iter().find(|claim| claim.takes(name)).map(|claim| claim.server))
    }

    /// Names, each with its server, so that the narrowest one leads to the server that NGINX finds. A name that leads there without
    /// being written is left out, unless the original has it.
    fn names(&self, default: usize) -> Vec<(NamePattern, usize)> {
        let written: HashSet<&NamePattern> = self.all.iter().collect();
        let mut all: Vec<NamePattern> = groups(self.all.iter().cloned()).into_iter().collect();
        all.sort_by(|a, b| a.rank().cmp(&b.rank()).then_with(|| a.cmp(b)));
        let mut table: NameMap<usize> = NameMap::default();
        for pattern in all {
            let name = pattern.sample();
            let (found, there) = (self.find(&name), table.find(&name).copied());
            let server = found.unwrap_or(default);
            if there.unwrap_or(default) != server || found.is_some() && written.contains(&pattern) {
                // Each pattern is there once.
                let _ = table.insert(pattern, server);
            }
        }
        let mut out: Vec<(NamePattern, usize)> = Vec::new();
        let mut seen: HashSet<&NamePattern> = HashSet::new();
        for pattern in self.all.iter().filter(|p| seen.insert(*p)) {
            if let Some(server) = table.get(pattern) {
                out.push((pattern.clone(), *server));
            }
        }
        let mut more: Vec<(NamePattern, usize)> =
            table.iter().filter(|(p, _)| !written.contains(p)).map(|(p, s)| (p, *s)).collect();
        more.sort();
        out.extend(more);
        out
    }
}

impl Socket {
    /// The server of a name.
    pub fn owner(&self, name: &str) -> Option<usize> {
        self.claims.find(name).or_else(|| self.seats.first().map(|s| s.server))
    }
}

/// One `listen`.
struct Listen {
    addresses: Vec<String>,
    port: u16,
    is_default: bool,
    tls: bool,
    http2: bool,
    quic: bool,
    proxy_protocol: bool,
    /// It has an option that is not known.
    unknown: bool,
}

fn listen(d: &Directive) -> Result<Listen, &'static str> {
    let mut arguments = d.arguments().into_iter();
    let Some(address) = arguments.next() else { return Err("names no address") };
    let mut out = Listen {
        addresses: Vec::new(),
        port: 0,
        is_default: false,
        tls: false,
        http2: false,
        quic: false,
        proxy_protocol: false,
        unknown: false,
    };
    let mut both = false;
    for option in arguments {
        match option {
            "default_server" | "default" => out.is_default = true,
            "ssl" => out.tls = true,
            "http2" | "spdy" => out.http2 = true,
            "quic" => out.quic = true,
            "proxy_protocol" => out.proxy_protocol = true,
            "ipv6only=off" => both = true,
            "udp" => return Err("\"udp\" is allowed only in \"stream\""),
            // Who reaches the socket is the same with all of these.
            "bind" | "reuseport" | "deferred" | "ipv6only=on" => {}
            o if ["backlog=", "rcvbuf=", "sndbuf=", "so_keepalive=", "fastopen=", "setfib=", "multipath"]
                .iter()
                .any(|p| o.starts_with(p)) => {}
            o if o.starts_with("accept_filter=") => {}
            _ => out.unknown = true,
        }
    }
    let number = |p: &str| p.parse::<u16>().map_err(|_| "is not an address and a port");
    let (host, port) = if address.starts_with("unix:") {
        return Err(
            "the import does not translate Unix sockets: write a [[listener]] with address = \"unix:PATH\", and write \
             this address in listeners of the hosts that it serves",
        );
    } else if let Some(rest) = address.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("is not an address")?;
        (format!("[{host}]"), rest.strip_prefix(':').map_or(Ok(80), number)?)
    } else if let Some((host, port)) = address.split_once(':') {
        (host.to_owned(), number(port)?)
    } else if address.bytes().all(|b| b.is_ascii_digit()) {
        ("*".to_owned(), number(address)?)
    } else {
        (address.to_owned(), 80)
    };
    out.port = port;
    let host = match host.as_str() {
        "*" | "" | "0.0.0.0" => "0.0.0.0".to_owned(),
        "localhost" => "127.0.0.1".to_owned(),
        h => h.to_owned(),
    };
    let inner = host.trim_matches(['[', ']']);
    if inner.parse::<std::net::IpAddr>().is_err() {
        return Err(
            "a listener needs an IP address, not a name: write the IP address of this name in the original, and \
             import it again",
        );
    }
    out.addresses.push(format!("{host}:{port}"));
    if both && host == "[::]" {
        out.addresses.push(format!("0.0.0.0:{port}"));
    }
    Ok(out)
}

/// All addresses of the servers of a block, with the names by which each is reached.
pub(super) fn sockets<'d>(import: &mut Import<'d>, block: &'d [Directive], servers: &[&'d Directive]) -> Vec<Socket> {
    let mut all: Vec<Socket> = Vec::new();
    for d in block.iter().filter(|d| d.name() == "http2") {
        import.same(d, "[listener.tls]");
    }
    for (index, server) in servers.iter().enumerate() {
        let own: Vec<&Directive> = server.inner().iter().filter(|d| d.name() == "listen").collect();
        let switch = |name: &str| {
            let last = |block: &'d [Directive]| block.iter().rfind(|d| d.name() == name);
            last(server.inner()).or_else(|| last(block)).is_some_and(|d| d.word(1) == Some("on"))
        };
        let mut add = |import: &mut Import<'d>, one: Listen, origin: &Place, d: Option<&Directive>| {
            for address in &one.addresses {
                let at = all.iter().position(|s| s.address == *address).unwrap_or_else(|| {
                    all.push(Socket {
                        address: address.clone(),
                        port: one.port,
                        tls: false,
                        http2: false,
                        quic: false,
                        proxy_protocol: false,
                        origin: origin.clone(),
                        seats: Vec::new(),
                        default: None,
                        order: Vec::new(),
                        claims: Claims::default(),
                    });
                    all.len() - 1
                });
                let s = &mut all[at];
                s.tls |= one.tls || one.quic || switch("ssl");
                s.http2 |= one.http2 || switch("http2");
                s.quic |= one.quic;
                s.proxy_protocol |= one.proxy_protocol;
                if one.is_default {
                    s.default = Some(index);
                }
                if !s.order.contains(&index) {
                    s.order.push(index);
                }
            }
            if let Some(d) = d {
                import.same(d, "[[listener]]");
            }
        };
        for d in server.inner().iter().filter(|d| matches!(d.name(), "http2" | "ssl")) {
            import.same(d, "[listener.tls]");
        }
        for d in &own {
            match listen(d) {
                Ok(one) => {
                    if one.unknown {
                        import.decide(d, "the import does not know an option of this directive: write Sealane settings that have the same effect, or, if you do not need it, only remove its entry from \"undecided\"");
                    }
                    add(import, one, &d.place, Some(d));
                }
                // The server is not reached there: nobody gets in whom NGINX would keep out.
                Err(why) => import.missing(d, why),
            }
        }
        if own.is_empty() {
            let plain = Listen {
                addresses: vec!["0.0.0.0:80".to_owned()],
                port: 80,
                is_default: false,
                tls: false,
                http2: false,
                quic: false,
                proxy_protocol: false,
                unknown: false,
            };
            add(import, plain, &server.place, None);
        }
    }
    for socket in &mut all {
        let default = socket.default.or(socket.order.first().copied()).unwrap_or(0);
        let order = std::mem::take(&mut socket.order);
        let mut covered = Vec::new();
        for index in &order {
            for (d, word) in words(servers[*index]) {
                match meaning(word) {
                    Meaning::Names(names) => {
                        for (class, name) in names {
                            let there = socket.claims.exact.find(&name).copied();
                            if !socket.claims.add(class, &name, *index) && there != Some(*index) {
                                import.differs(
                                    d,
                                    "a server before this one has the same name, and gets its requests, as in NGINX",
                                );
                            }
                        }
                    }
                    Meaning::Nothing => {}
                    // The host is written all the same: only its names are left to write.
                    Meaning::Unknown(why) => match wider(word) {
                        Some(names) => {
                            socket.claims.cover(word, &names, *index);
                            covered.push((d, word, names, *index, why));
                        }
                        None => {
                            let name = placeholder(*index);
                            socket.claims.add(Class::Exact, &name, *index);
                            import.decide(d, format!("{why}. {}", in_place_of(&name)));
                        }
                    },
                }
                import.same(d, "names");
            }
        }
        for (d, word, names, index, why) in covered {
            cover_names(import, socket, d, word, &names, index, why);
        }
        if socket.claims.patterns.len() > MAX_PATTERNS {
            let d = servers[default];
            import
                .decide(d, "there are too many names with regular expressions: write each name in names of a [[host]]");
            socket.claims.patterns.truncate(MAX_PATTERNS);
        }
        let mut seats: Vec<Seat> = order.iter().map(|server| Seat { server: *server, names: Vec::new() }).collect();
        for (pattern, server) in socket.claims.names(default) {
            if let Ok(at) = order.binary_search(&server) {
                seats[at].names.push(Name { pattern: pattern.to_string() });
            }
        }
        if let Ok(at) = order.binary_search(&default) {
            let first = seats.remove(at);
            seats.insert(0, first);
        }
        socket.seats = seats;
    }
    join(all)
}

/// What is said of a name that stands for those that a person has to write.
fn in_place_of(name: &str) -> String {
    format!("Write them in the place of \"{name}\" in the result, which has the routes of this server")
}

/// Says which names the result has in the place of an expression.
fn cover_names(
    import: &mut Import,
    socket: &mut Socket,
    d: &Directive,
    word: &str,
    names: &[String],
    index: usize,
    why: &str,
) {
    let sample = |name: &String| name.parse::<NamePattern>().map(|pattern| pattern.sample()).unwrap_or_default();
    let others = |name: &&String| socket.claims.find(&sample(name)) != Some(index);
    let lost: Vec<String> = names.iter().filter(others).cloned().collect();
    if lost.is_empty() {
        return import.decide(
            d,
            format!(
                "the import writes {} for {word}: requests for names that these patterns cover and the expression does not get to this \
                 host, too. If they may, only remove this entry; otherwise, write the names in their place",
                list(names)
            ),
        );
    }
    if names.iter().all(|name| socket.claims.wildcards.find(&sample(name)).is_some()) {
        return import.differs(
            d,
            "a server with a wildcard has all names of this expression, and gets their requests, as in NGINX",
        );
    }
    // Two hosts cannot have the same pattern.
    let name = placeholder(index);
    socket.claims.add(Class::Exact, &name, index);
    import.decide(
        d,
        format!("{why}. The host of an earlier expression has {} already. {}", list(&lost), in_place_of(&name)),
    );
}

/// Joins the IPv4 and the IPv6 wildcard of a port, where they serve the same: Sealane has `":443"` for both.
fn join(all: Vec<Socket>) -> Vec<Socket> {
    let mut out: Vec<Socket> = Vec::new();
    for socket in all {
        let other = match socket.address.split_once("]:") {
            Some(("[::", port)) => format!("0.0.0.0:{port}"),
            _ => match socket.address.strip_prefix("0.0.0.0:") {
                Some(port) => format!("[::]:{port}"),
                None => String::new(),
            },
        };
        let like = |a: &Socket| {
            let servers = |s: &Socket| s.seats.iter().map(|s| s.server).collect::<Vec<_>>();
            a.address == other
                && (a.tls, a.http2, a.quic, a.proxy_protocol)
                    == (socket.tls, socket.http2, socket.quic, socket.proxy_protocol)
                && servers(a) == servers(&socket)
        };
        match out.iter_mut().find(|a| like(a)) {
            Some(there) => there.address = format!(":{}", socket.port),
            None => out.push(socket),
        }
    }
    out
}
