//! Health checks: what they ask, and an answer that satisfies what they expect.

use super::{Proxy, server_address, socket};
use crate::draft::Check;
use crate::samples;
use crate::tree::Node;
use std::collections::BTreeSet;

/// Statuses that are tried, the usual ones first.
const STATUSES: [u16; 12] = [200, 204, 201, 301, 302, 401, 403, 404, 500, 503, 400, 100];

/// The HTTP checks of a section with servers, and answers that satisfy them.
pub fn checks(proxy: &Proxy<'_>) -> Vec<Check> {
    let option = |n: &&Node| n.word(0) == "option" && n.word(1) == "httpchk";
    let off = |n: &&Node| n.word(0) == "no" && n.word(1) == "option" && n.word(2) == "httpchk";
    let Some(on) = proxy.lines().filter(|n| option(n) || off(n)).last().filter(option) else { return Vec::new() };
    let servers = servers(proxy);
    let (method, target) = match on.words.get(2..).unwrap_or_default() {
        [] => ("OPTIONS", "/"),
        [target] => ("OPTIONS", target.as_str()),
        [method, target, ..] => (method.as_str(), target.as_str()),
    };
    let mut steps = vec![Step::new(method, target)];
    let mut sent = false;
    for node in proxy.lines().filter(|n| n.name() == "http-check") {
        match node.word(1) {
            "send" => {
                // The first one completes what the option says.
                if std::mem::replace(&mut sent, true) {
                    steps.push(Step::new("GET", "/"));
                }
                let Some(step) = steps.last_mut() else { continue };
                if let Some(method) = node.after("meth") {
                    method.clone_into(&mut step.method);
                }
                if let Some(target) = node.after("uri").or(node.after("uri-lf")) {
                    target.clone_into(&mut step.target);
                }
            }
            "expect" => {
                if let (Some(step), Some(expect)) =
                    (steps.last_mut(), Expect::read(node.words.get(2..).unwrap_or_default()))
                {
                    step.expects.push(expect);
                }
            }
            _ => {}
        }
    }
    steps.into_iter().map(|step| step.check(&servers)).collect()
}

/// The addresses of a section's servers, with the ports of their checks.
fn servers(proxy: &Proxy<'_>) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    let default = proxy.lines().filter(|n| n.name() == "default-server").filter_map(|n| n.after("port")).last();
    for node in proxy.lines().filter(|n| matches!(n.name(), "server" | "server-template")) {
        let word = node.word(if node.name() == "server" { 2 } else { 3 });
        out.extend(socket(word));
        let Some(address) = server_address(word) else { continue };
        out.insert(address.to_string());
        if let Some(port) = node.after("port").or(default).and_then(|p| p.parse().ok()) {
            out.insert(std::net::SocketAddr::new(address.ip(), port).to_string());
        }
    }
    out
}

/// A request of a check with what its response has to be.
struct Step {
    method: String,
    target: String,
    expects: Vec<Expect>,
}

impl Step {
    fn new(method: &str, target: &str) -> Self {
        Self { method: method.to_owned(), target: target.to_owned(), expects: Vec::new() }
    }

    fn check(self, servers: &BTreeSet<String>) -> Check {
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
        Check { servers: servers.clone(), method: self.method, target: self.target, status, headers, content }
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
    use crate::tree::Place;

    fn node(line: &str, block: Option<Vec<Node>>) -> Node {
        let words = line.split(' ').map(|w| w.replace("\\n", "\n")).collect();
        Node { place: Place { file: "h".into(), line: 1 }, words, block, from: None }
    }

    fn found(lines: &[&str]) -> Vec<Check> {
        let lines = lines.iter().map(|l| node(l, None)).chain([node("server s 10.0.0.1:80 check port 81", None)]);
        let section = node("backend b", Some(lines.collect()));
        checks(&Proxy { section: &section, inherited: Vec::new() })
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
