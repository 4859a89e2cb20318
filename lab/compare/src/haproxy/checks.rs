//! Health checks: what they ask, and an answer that satisfies what they expect.

use super::dialogues::{Rules, rules};
use super::{Proxy, server_address, socket};
use crate::draft::{Check, Dialogue};
use crate::samples;
use crate::tree::{Node, Place};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Statuses that are tried, the usual ones first.
const STATUSES: [u16; 12] = [200, 204, 201, 301, 302, 401, 403, 404, 500, 503, 400, 100];

/// What the checks of a section with servers ask.
#[derive(Default)]
pub struct Checks {
    /// The HTTP checks, and answers that satisfy them.
    pub http: Vec<Check>,
    /// The checks with `tcp-check`, and answers that satisfy them.
    pub dialogues: Vec<Dialogue>,
    /// The addresses to which checks connect.
    pub addresses: BTreeSet<SocketAddr>,
    /// Lines that the copy does not contain, because no answer is known that satisfies them.
    pub unanswered: BTreeSet<Place>,
    /// The first expectation of a check without a request: no answer satisfies it. The copy only connects instead.
    pub silent: Option<Place>,
}

impl Checks {
    /// Reads those of a section.
    pub fn of(proxy: &Proxy<'_>) -> Self {
        let mut out = Self { addresses: addresses(proxy, None), ..Self::default() };
        out.read_http(proxy);
        match rules(proxy) {
            Rules::None => {}
            Rules::Unknown(lines) => out.unanswered.extend(lines),
            Rules::Known(talks) => {
                for talk in talks {
                    out.addresses.extend(addresses(proxy, talk.port));
                    if !talk.turns.is_empty() {
                        let servers = connected(proxy, talk.port);
                        out.dialogues.push(Dialogue { servers, turns: talk.turns });
                    }
                }
            }
        }
        out
    }

    fn read_http(&mut self, proxy: &Proxy<'_>) {
        let is_option = |n: &&&Node| n.word(0) == "option" && n.word(1) == "httpchk";
        let is_rule = |n: &&&Node| n.name() == "http-check" && matches!(n.word(1), "connect" | "send" | "expect");
        if kind(proxy) != Some("httpchk") {
            return;
        }
        // A section with rules of its own inherits neither rules nor the request.
        let own: Vec<&Node> = proxy.section.inner().iter().collect();
        let is = |n: &Node, what: &str| n.name() == "http-check" && n.word(1) == what;
        let has_own = own.iter().any(|n| is_option(&n) || is_rule(&n));
        let is_silent = has_own && !own.iter().any(|n| is_option(&n) || is(n, "send"));
        let lines: Vec<&Node> = match has_own {
            true if is_silent => {
                let mut expects = own.iter().filter(|n| is(n, "expect")).map(|n| n.place.clone()).peekable();
                if expects.peek().is_none() {
                    // Connections without a request.
                    for node in own.iter().filter(|n| is(n, "connect")) {
                        self.addresses.extend(addresses(proxy, node.after("port").and_then(number)));
                    }
                    return;
                }
                if !own.iter().any(|n| is(n, "connect")) {
                    self.silent = expects.next();
                }
                self.unanswered.extend(expects);
                // The translation sends the inherited request, and expects what the section expects.
                proxy.inherited.iter().copied().filter(|n| !is(n, "expect")).chain(own).collect()
            }
            true => own,
            false => proxy.lines().collect(),
        };
        let option = lines.iter().rev().find(is_option);
        let (method, target) = match option.and_then(|n| n.words.get(2..)).unwrap_or_default() {
            [] => ("OPTIONS", "/"),
            [target] => ("OPTIONS", target.as_str()),
            [method, target, ..] => (method.as_str(), target.as_str()),
        };
        let mut steps = vec![Step::new(method, target)];
        let (mut sent, mut port) = (false, None);
        for node in lines.iter().filter(is_rule) {
            match node.word(1) {
                "connect" => port = node.after("port").and_then(number),
                "send" => {
                    // The first one completes what the option says.
                    if std::mem::replace(&mut sent, true) {
                        steps.push(Step::new("GET", "/"));
                    }
                    let Some(step) = steps.last_mut() else { continue };
                    step.port = port;
                    if let Some(method) = node.after("meth") {
                        method.clone_into(&mut step.method);
                    }
                    if let Some(target) = node.after("uri").or(node.after("uri-lf")) {
                        target.clone_into(&mut step.target);
                    }
                }
                _ => match (steps.last_mut(), Expect::read(node.words.get(2..).unwrap_or_default())) {
                    (Some(step), Some(expect)) => step.expects.push(expect),
                    // A check without it is satisfied with any success.
                    _ => drop(self.unanswered.insert(node.place.clone())),
                },
            }
        }
        for step in steps {
            let port = step.port.or(port);
            self.addresses.extend(addresses(proxy, port));
            self.http.push(step.check(servers(proxy, port)));
        }
    }
}

/// The kind of a section's checks, of those that the copy contains: the last one counts.
pub(super) fn kind<'n>(proxy: &Proxy<'n>) -> Option<&'n str> {
    let options = proxy.lines().filter(|n| n.word(0) == "option").map(|n| n.word(1));
    options.filter(|o| matches!(*o, "httpchk" | "tcp-check")).last()
}

/// The port of a connection: `8080` or `int(8080)`.
pub(super) fn number(text: &str) -> Option<u16> {
    let bare = text.strip_prefix("int(").and_then(|t| t.strip_suffix(')')).unwrap_or(text);
    bare.parse().ok()
}

/// The addresses to which the checks of a section's servers connect: the server's, or that of `addr` and `port`. `port`: that of a rule.
fn addresses(proxy: &Proxy<'_>, port: Option<u16>) -> BTreeSet<SocketAddr> {
    let defaults = || proxy.lines().filter(|n| n.name() == "default-server");
    let default = |option: &str| defaults().filter_map(|n| n.after(option)).last();
    let mut out = BTreeSet::new();
    for node in proxy.lines().filter(|n| matches!(n.name(), "server" | "server-template")) {
        let Some(server) = server_address(server_word(node)) else { continue };
        let addr = node.after("addr").or(default("addr")).and_then(|a| a.parse().ok());
        let port = port.or(node.after("port").or(default("port")).and_then(number));
        out.insert(SocketAddr::new(addr.unwrap_or(server.ip()), port.unwrap_or(server.port())));
    }
    out
}

/// The names of back-ends to which the checks of a section connect.
fn connected(proxy: &Proxy<'_>, port: Option<u16>) -> BTreeSet<String> {
    let lines = proxy.lines().filter(|n| matches!(n.name(), "server" | "server-template"));
    let sockets = lines.filter_map(|n| socket(server_word(n)));
    addresses(proxy, port).into_iter().map(|a| a.to_string()).chain(sockets).collect()
}

/// The same, and the servers themselves: the translation may have no addresses of their own for checks.
fn servers(proxy: &Proxy<'_>, port: Option<u16>) -> BTreeSet<String> {
    let lines = proxy.lines().filter(|n| matches!(n.name(), "server" | "server-template"));
    let mut out = connected(proxy, port);
    out.extend(lines.filter_map(|n| server_address(server_word(n))).map(|a| a.to_string()));
    out
}

fn server_word(node: &Node) -> &str {
    node.word(if node.name() == "server" { 2 } else { 3 })
}

/// A request of a check with what its response has to be.
struct Step {
    method: String,
    target: String,
    port: Option<u16>,
    expects: Vec<Expect>,
}

impl Step {
    fn new(method: &str, target: &str) -> Self {
        Self { method: method.to_owned(), target: target.to_owned(), port: None, expects: Vec::new() }
    }

    fn check(self, servers: BTreeSet<String>) -> Check {
        let is_good = |status: &u16| self.expects.iter().all(|e| e.allows(*status) != Some(false));
        let stated = self.expects.iter().flat_map(Expect::statuses);
        let status = STATUSES.into_iter().chain(stated).find(is_good).unwrap_or(200);
        let mut headers = Vec::new();
        // Texts that have to be there, one after the other.
        let mut content = String::new();
        for expect in self.expects.iter().filter(|e| !e.negated) {
            match &expect.what {
                What::Text(text) => content.push_str(text),
                What::Header { name, value } => headers.push((name.clone(), value.clone())),
                What::Status(_) => {}
            }
        }
        // Content that must not be there is seldom this one.
        let avoids = self.expects.iter().any(|e| e.negated && matches!(e.what, What::Text(_)));
        let content = (!content.is_empty()).then_some(content).or(avoids.then(|| "-\n".to_owned()));
        Check { servers, method: self.method, target: self.target, status, headers, content }
    }
}

/// What a response has to be.
struct Expect {
    negated: bool,
    what: What,
}

enum What {
    /// One of these ranges.
    Status(Vec<(u16, u16)>),
    /// It contains this text.
    Text(String),
    Header {
        name: String,
        value: String,
    },
}

impl Expect {
    /// Reads the words behind `http-check expect`. `None`: it is not understood.
    fn read(words: &[String]) -> Option<Self> {
        let mut rest = words.iter();
        let mut negated = false;
        loop {
            let pattern = |rest: &mut std::slice::Iter<'_, String>| rest.next().cloned();
            let what = match rest.next()?.as_str() {
                "!" => {
                    negated = !negated;
                    continue;
                }
                "comment" | "min-recv" | "ok-status" | "error-status" | "tout-status" | "on-success" | "on-error"
                | "status-code" => {
                    rest.next();
                    continue;
                }
                "status" => {
                    let number = |t: &str| t.parse::<u16>().ok();
                    let range = |t: &str| match t.split_once('-') {
                        Some((a, b)) => Some((number(a)?, number(b)?)),
                        None => Some((number(t)?, number(t)?)),
                    };
                    What::Status(pattern(&mut rest)?.split(',').map(|t| range(t.trim())).collect::<Option<_>>()?)
                }
                "rstatus" => {
                    // A beginning of a status is completed.
                    let pattern = pattern(&mut rest)?;
                    let samples = samples::regex(&pattern, false)?;
                    let status = |text: String| {
                        let text = format!("{text:0<3}");
                        text.parse::<u16>().ok().filter(|n| (100..600).contains(n))
                    };
                    let all: Vec<u16> = samples.into_iter().filter_map(status).collect();
                    let is_beginning = !pattern.trim_start_matches('^').ends_with('$') && pattern.len() <= 2;
                    match (is_beginning, all.first()) {
                        (true, Some(first)) => What::Status(vec![(first / 100 * 100, first / 100 * 100 + 99)]),
                        (_, Some(_)) => What::Status(all.into_iter().map(|n| (n, n)).collect()),
                        (_, None) => return None,
                    }
                }
                "string" | "string-lf" => What::Text(pattern(&mut rest)?),
                "rstring" => What::Text(samples::text(&pattern(&mut rest)?)?),
                "hdr" | "fhdr" => header(&mut rest)?,
                _ => return None,
            };
            return Some(Self { negated, what });
        }
    }

    /// Whether a status is as it has to be; `None`: it says nothing of statuses.
    fn allows(&self, status: u16) -> Option<bool> {
        let What::Status(ranges) = &self.what else { return None };
        Some(ranges.iter().any(|(a, b)| (*a..=*b).contains(&status)) != self.negated)
    }

    /// Statuses that it names.
    fn statuses(&self) -> Vec<u16> {
        match &self.what {
            What::Status(ranges) => ranges.iter().map(|(a, _)| *a).collect(),
            _ => Vec::new(),
        }
    }
}

/// `name [-m …] NAME [value [-m …] VALUE]`
fn header(rest: &mut std::slice::Iter<'_, String>) -> Option<What> {
    let mut next = || -> Option<String> {
        let mut word = rest.next()?;
        let mut how = "str";
        while word == "-m" {
            how = rest.next()?;
            word = rest.next()?;
        }
        match how {
            "reg" => samples::text(word),
            _ => Some(word.clone()),
        }
    };
    next().filter(|w| w == "name")?;
    let name = next()?;
    let value = match next() {
        Some(word) if word == "value" => next()?,
        _ => "1".to_owned(),
    };
    Some(What::Header { name, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(line: &str, block: Option<Vec<Node>>) -> Node {
        let words = line.split(' ').map(|w| w.replace("\\n", "\n")).collect();
        Node { place: Place { file: "h".into(), line: 1 }, words, block, from: None }
    }

    fn found(lines: &[&str]) -> Vec<Check> {
        let lines = lines.iter().map(|l| node(l, None)).chain([node("server s 10.0.0.1:80 check port 81", None)]);
        let section = node("backend b", Some(lines.collect()));
        Checks::of(&Proxy { section: &section, inherited: Vec::new() }).http
    }

    #[test]
    fn a_check_has_an_answer_that_satisfies_it() {
        assert!(found(&["balance roundrobin"]).is_empty());
        let one = |lines: &[&str]| found(lines).remove(0);
        let check = one(&["option httpchk GET /health HTTP/1.1\\nHost:x", "http-check expect string OK"]);
        assert_eq!((check.method.as_str(), check.target.as_str(), check.status), ("GET", "/health", 200));
        assert_eq!(check.content.as_deref(), Some("OK"));
        assert_eq!(check.servers, ["10.0.0.1:80", "10.0.0.1:81"].map(str::to_owned).into());
        assert_eq!(one(&["option httpchk"]).method, "OPTIONS");
        for (expect, status) in [
            ("status 204", 204),
            ("status 300-399,418", 301),
            ("status 418", 418),
            ("! status 200-299", 301),
            ("rstatus ^4", 401),
            ("rstatus ^(204|418)$", 204),
            ("min-recv 10 comment x status 500", 500),
        ] {
            let line = format!("http-check expect {expect}");
            assert_eq!(one(&["option httpchk /", &line]).status, status, "{expect}");
        }
        let check = one(&["option httpchk /", "http-check expect rstring ^(up|ok)[0-9]+$"]);
        assert_eq!(check.content.as_deref(), Some("up7"));
        let check = one(&["option httpchk /", "http-check expect hdr name X-Up value -m beg yes"]);
        assert_eq!(check.headers, [("X-Up".to_owned(), "yes".to_owned())]);
        let check = one(&["option httpchk /", "http-check expect ! string DOWN"]);
        assert_eq!(check.content.as_deref(), Some("-\n"));
    }

    #[test]
    fn a_section_with_checks_of_its_own_inherits_none() {
        let inherited = [
            node("option httpchk GET /d", None),
            node("http-check expect status 200", None),
            node("default-server addr 10.0.0.9", None),
        ];
        let of = |lines: &[&str]| {
            let lines = lines.iter().map(|l| node(l, None)).chain([node("server s 10.0.0.1:80 check", None)]);
            let section = node("backend b", Some(lines.collect()));
            let checks = Checks::of(&Proxy { section: &section, inherited: inherited.iter().collect() });
            (checks.http, checks.addresses, checks.unanswered.len())
        };
        let (http, addresses, _) = of(&[]);
        assert_eq!((http[0].target.as_str(), http[0].status), ("/d", 200));
        let all = |text: &str| -> BTreeSet<SocketAddr> { text.split(' ').map(|a| a.parse().unwrap()).collect() };
        assert_eq!(addresses, all("10.0.0.9:80"));
        let (http, addresses, _) =
            of(&["http-check connect port 8081", "http-check send uri /o", "http-check expect status 204"]);
        assert_eq!((http[0].method.as_str(), http[0].target.as_str(), http[0].status), ("OPTIONS", "/o", 204));
        assert!(http[0].servers.contains("10.0.0.9:8081"));
        assert_eq!(addresses, all("10.0.0.9:80 10.0.0.9:8081"));
        assert!(of(&["option tcp-check"]).0.is_empty());
        let (http, addresses, _) = of(&["http-check connect port 8081"]);
        assert!(http.is_empty(), "there is no request");
        assert_eq!(addresses, all("10.0.0.9:80 10.0.0.9:8081"));
        let (http, _, unanswered) = of(&["http-check expect status 204", "http-check expect string up"]);
        assert_eq!((http[0].target.as_str(), http[0].status, http[0].content.as_deref()), ("/d", 204, Some("up")));
        assert_eq!(unanswered, 1, "the copy only connects in the place of the first one");
        let (http, _, unanswered) = of(&["option httpchk /", "http-check expect rstring ^(?!a)b"]);
        assert_eq!((http[0].content.as_deref(), unanswered), (None, 1), "only PCRE looks ahead");
    }

    #[test]
    fn texts_in_quotation_marks_have_an_answer() {
        let rule = ["http-check", "expect", "rstring", "status\"?: *\"?(ok|degraded)"];
        let rule = Node { words: rule.map(str::to_owned).to_vec(), ..node("http-check", None) };
        let section = node("backend b", Some(vec![node("option httpchk", None), rule]));
        let checks = Checks::of(&Proxy { section: &section, inherited: Vec::new() });
        assert_eq!(checks.http[0].content.as_deref(), Some("status\": \"ok"));
    }

    #[test]
    fn a_check_may_have_several_requests() {
        let all = found(&[
            "option httpchk",
            "http-check connect",
            "http-check send meth GET uri /a ver HTTP/1.1 hdr Host x",
            "http-check expect status 200",
            "http-check send meth POST uri /b body x",
            "http-check expect string B",
        ]);
        let said: Vec<(&str, &str, Option<&str>)> =
            all.iter().map(|c| (c.method.as_str(), c.target.as_str(), c.content.as_deref())).collect();
        assert_eq!(said, [("GET", "/a", None), ("POST", "/b", Some("B"))]);
    }
}
