//! ACLs: requests for both outcomes, and which outcome a request has.

use super::lists::{Lists, Sample};
use crate::draft::{Behaviour, Draft, MAX_CONTENT, Over, Shown, Times};
use crate::files::CREDENTIALS;
use crate::samples;
use crate::tree::Node;
use crate::words::in_and_out;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Most requests that are sent at once.
const MAX_AT_ONCE: u32 = 150;
/// Most values of a criterion that are tried.
const MAX_VALUES: usize = 200;
/// Most values of a criterion for which texts are tried that are near.
const MAX_NEAR: usize = 20;
/// What a client sends with a wrong password.
const WRONG_CREDENTIALS: &str = "Basic Og==";

/// How a value is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Is,
    Begin,
    End,
    Within,
    Folder,
    Domain,
    Regex,
    Found,
}

/// What of a request is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Of {
    Host,
    Path,
    /// Path and query.
    Target,
    /// Host and path.
    Base,
    Query(String),
    /// `listed`: each of the values that commas separate.
    Header {
        name: String,
        listed: bool,
    },
    Cookie(String),
    Method,
    Source,
    Tls,
    Sni,
    Certificate,
    /// The name in the client's certificate; this is the one that clients show.
    CommonName(String),
    /// A counter of requests, or of connections, that is compared with a number.
    Counter(bool),
    /// The length of the body, which is compared with a number.
    Length,
    /// Whether the client has the password of a user of a list; with groups, of a user in one of them.
    Users,
    Constant(bool),
}

/// A criterion with its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// What is compared.
    pub of: Of,
    /// How it is compared.
    pub how: Match,
    /// Whether upper and lower case are the same.
    pub ignore_case: bool,
    /// Whether a port is removed.
    pub bare: bool,
    /// With what it is compared: any of them.
    pub values: Vec<String>,
}

/// The ACLs of a section, by name: each is true if one of its lines is. `None`: a line that is not understood.
pub type Named<'n> = BTreeMap<&'n str, Vec<Option<Test>>>;

/// Reads the lines of a section.
pub fn named<'n>(lines: impl Iterator<Item = &'n Node>, lists: &Lists) -> Named<'n> {
    let mut out: Named<'n> = BTreeMap::new();
    for line in lines.filter(|n| n.name() == "acl") {
        out.entry(line.word(1)).or_default().push(Test::read(line.words.get(2..).unwrap_or_default(), lists));
    }
    out
}

/// One of the conditions that must hold together.
#[derive(Clone, Debug)]
pub struct Term {
    /// Any of them.
    tests: Vec<Option<Test>>,
    negated: bool,
}

/// What stands behind `if` or `unless`: any of these groups of terms.
pub fn condition(words: &[String], acls: &Named<'_>, lists: &Lists) -> Option<Vec<Vec<Term>>> {
    let at = words.iter().position(|w| w == "if" || w == "unless")?;
    let mut out = vec![Vec::new()];
    let mut rest = words[at + 1..].iter();
    let mut negated = false;
    while let Some(word) = rest.next() {
        let (bang, word) = word.strip_prefix('!').map_or((false, word.as_str()), |w| (true, w));
        negated ^= bang;
        match word {
            "" => {}
            "or" | "||" => out.push(Vec::new()),
            "and" | "&&" => {}
            "{" => {
                let inside: Vec<String> = rest.by_ref().take_while(|w| *w != "}").cloned().collect();
                out.last_mut()?.push(Term { tests: vec![Test::read(&inside, lists)], negated });
                negated = false;
            }
            name => {
                let tests = acls.get(name).cloned().unwrap_or_else(|| vec![predefined(name)]);
                out.last_mut()?.push(Term { tests, negated });
                negated = false;
            }
        }
    }
    Some(out)
}

fn predefined(name: &str) -> Option<Test> {
    let of = |of: Of, how: Match, values: &[&str]| {
        let values = values.iter().map(|v| (*v).to_owned()).collect();
        Some(Test { of, how, ignore_case: false, bare: false, values })
    };
    match name {
        "TRUE" | "HTTP" | "HTTP_1.1" => of(Of::Constant(true), Match::Found, &[]),
        "FALSE" => of(Of::Constant(false), Match::Found, &[]),
        "LOCALHOST" => of(Of::Source, Match::Is, &["127.0.0.0/8"]),
        "HTTP_URL_SLASH" => of(Of::Path, Match::Is, &["/"]),
        name => of(Of::Method, Match::Is, &[name.strip_prefix("METH_")?]),
    }
}

impl Test {
    /// Reads a criterion, its flags and its values.
    pub fn read(words: &[String], lists: &Lists) -> Option<Self> {
        let (name, rest) = words.split_first()?;
        if name == "nbsrv" || name.starts_with("nbsrv(") {
            return alive(rest);
        }
        let sample = Sample::read(name, lists).ok()?;
        let (mut how, mut ignore_case, mut rest) = (sample.how, sample.lower, rest.iter());
        let mut values = Vec::new();
        while let Some(word) = rest.next() {
            match word.as_str() {
                "-i" => ignore_case = true,
                "-n" | "-M" => {}
                "-m" => {
                    how = Some(match rest.next()?.as_str() {
                        "str" => Match::Is,
                        "beg" => Match::Begin,
                        "end" => Match::End,
                        "sub" => Match::Within,
                        "dir" => Match::Folder,
                        "dom" => Match::Domain,
                        "reg" => Match::Regex,
                        "found" | "bool" => Match::Found,
                        "ip" => Match::Is,
                        _ => return None,
                    });
                }
                "-f" => values.extend(lists.lines(rest.next()?)?),
                "--" => values.extend(rest.by_ref().cloned()),
                flag if flag.starts_with('-') && flag.len() == 2 => return None,
                value => values.push(value.to_owned()),
            }
        }
        if let Some(map) = &sample.map {
            // It holds for the keys whose value is as it has to be.
            let value =
                Self { of: Of::Constant(true), how: how.unwrap_or(Match::Is), ignore_case, bare: false, values };
            if map.default.as_ref().is_some_and(|d| value.accepts(d) != Some(false)) {
                return None;
            }
            let mut keys = Vec::new();
            for (key, text) in &map.entries {
                if value.accepts(text)? {
                    keys.push(key.clone());
                }
            }
            return (!keys.is_empty()).then(|| sample.test(map.how, keys));
        }
        let of = sample.of;
        if matches!(of, Of::Counter(_)) {
            let ["gt" | "ge", number] = [values.first()?.as_str(), values.get(1)?.as_str()] else { return None };
            number.parse::<u32>().ok()?;
        }
        if of == Of::Length {
            least_longer(&values)?;
        }
        Some(Self { of, how: how.unwrap_or(Match::Is), ignore_case, bare: sample.bare, values })
    }

    /// Why there is no request for which it holds.
    fn unasked(&self) -> Option<&'static str> {
        match self.of {
            Of::Counter(_) if self.least() > MAX_AT_ONCE => {
                Some("its limit is larger than the number of requests that are sent at once")
            }
            Of::Length if least_longer(&self.values).is_none_or(|(least, _)| least > MAX_CONTENT) => {
                Some("its limit is larger than the largest body that is sent")
            }
            _ if self.how == Match::Regex
                && self.values.iter().any(|v| samples::regex(v, self.ignore_case).is_none()) =>
            {
                Some("its regular expression has parts for which no samples are made")
            }
            _ if self.values.len() > MAX_VALUES => Some("only the first 200 of its values are asked for"),
            _ => None,
        }
    }

    /// The number that a counter has to reach.
    fn least(&self) -> u32 {
        self.values.get(1).and_then(|n| n.parse().ok()).unwrap_or(u32::MAX)
    }

    /// Requests for which it holds, or does not; the first one of each is the plainest.
    pub fn requests(&self, draft: &Draft, wanted: bool) -> Vec<Draft> {
        let mut out = Vec::new();
        let mut push = |d: Draft| {
            if self.holds(&d).is_none_or(|h| h == wanted) && !out.contains(&d) {
                out.push(d);
            }
        };
        match &self.of {
            Of::Constant(_) | Of::Tls => push(draft.clone()),
            Of::Counter(connections) => {
                let least = self.least();
                let behaviour = if *connections { Behaviour::Hold } else { draft.behaviour };
                match wanted {
                    false => push(draft.clone()),
                    true if least <= MAX_AT_ONCE => {
                        push(Draft { times: Times::AtOnce(least + 5), behaviour, ..draft.clone() });
                    }
                    true => {}
                }
            }
            Of::Length => {
                // A body of the least length that is longer, and one of a byte less.
                let Some((least, longer)) = least_longer(&self.values) else { return out };
                let content = if wanted == longer { least } else { least.saturating_sub(1) };
                if content <= MAX_CONTENT {
                    let method = if content > 0 { "POST".to_owned() } else { draft.method.clone() };
                    push(Draft { method, content, ..draft.clone() });
                }
            }
            Of::Users => {
                let with = |value: &str| draft.clone().with("Authorization", value);
                match wanted {
                    true => push(with(CREDENTIALS)),
                    false => {
                        let mut without = draft.clone();
                        without.headers.retain(|(n, _)| !n.eq_ignore_ascii_case("authorization"));
                        push(without);
                        push(with(WRONG_CREDENTIALS));
                    }
                }
            }
            Of::Certificate => {
                let shown = if wanted { Shown::Known } else { Shown::None };
                push(Draft { shown, ..draft.clone() });
            }
            Of::CommonName(_) => {
                push(Draft { shown: Shown::Known, ..draft.clone() });
                push(Draft { shown: Shown::None, ..draft.clone() });
            }
            Of::Source => {
                // What is as it has to be stays as it is.
                push(draft.clone());
                for (inside, outside) in self.values.iter().take(MAX_VALUES).filter_map(|v| in_and_out(v)) {
                    push(Draft { from: Some(if wanted { inside } else { outside }), ..draft.clone() });
                }
            }
            _ => {
                if !wanted {
                    push(draft.clone());
                }
                for text in self.texts(wanted) {
                    if let Some(d) = set(draft, &self.of, &text) {
                        push(d);
                    }
                }
                if let (false, Of::Header { name, .. }) = (wanted, &self.of) {
                    let mut d = draft.clone();
                    d.headers.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
                    push(d);
                }
            }
        }
        out
    }

    /// Texts that match, or that are near.
    fn texts(&self, wanted: bool) -> Vec<String> {
        let mut out = Vec::new();
        if self.how == Match::Found {
            return vec!["1".to_owned()];
        }
        for (at, value) in self.values.iter().enumerate().take(MAX_VALUES) {
            let v = value.trim_matches('/');
            let is_path = matches!(self.of, Of::Path | Of::Target);
            let (mut yes, mut near) = match self.how {
                Match::Is => (vec![value.clone()], vec![format!("{value}x"), format!("{value}/")]),
                Match::Begin if is_path && !value.ends_with('/') => {
                    (vec![format!("{value}x"), value.clone(), format!("{value}/x")], Vec::new())
                }
                Match::Begin => (
                    vec![format!("{value}x"), value.clone()],
                    value.strip_suffix('/').map(|b| vec![b.to_owned(), format!("{b}x")]).unwrap_or_default(),
                ),
                Match::End if is_path => (vec![format!("/x{value}")], vec![format!("/x{value}x")]),
                Match::End => (
                    vec![format!("x{value}"), format!("y.x{value}"), value.trim_start_matches('.').to_owned()],
                    vec![format!("{value}x")],
                ),
                Match::Within if is_path => (vec![format!("/x{value}y")], vec!["/xy".to_owned()]),
                // Other words mean something to the connection.
                Match::Within if self.is_of_connection() => (vec![value.clone()], Vec::new()),
                Match::Within => (vec![format!("x{value}y"), value.clone()], Vec::new()),
                Match::Folder if is_path => (
                    vec![format!("/{v}/x"), format!("/{v}"), format!("/x/{v}/y")],
                    vec![format!("/{v}x/y"), format!("/x{v}")],
                ),
                Match::Domain => (vec![format!("a.{v}.b"), v.to_owned()], vec![format!("a{v}.b")]),
                Match::Regex => (samples::regex(value, self.ignore_case).unwrap_or_default(), vec!["/zzz".to_owned()]),
                _ => (Vec::new(), Vec::new()),
            };
            let is_header = matches!(self.of, Of::Header { .. });
            if (is_path || is_header) && self.ignore_case && self.how != Match::Regex {
                let other: Vec<String> = yes.iter().map(|text| text.to_ascii_uppercase()).collect();
                yes.extend(other);
            }
            // One of several values.
            if is_header && let Some(first) = yes.first() {
                yes.push(format!("zzz, {first}"));
                near.extend(near.first().map(|first| format!("zzz, {first}")));
            }
            if is_path {
                for text in yes.iter_mut().chain(&mut near).filter(|t| !t.starts_with('/')) {
                    text.insert(0, '/');
                }
            }
            match wanted {
                true => out.extend(yes),
                // What is near to each of many values is not tried.
                false if at == 0 || self.values.len() <= MAX_NEAR => out.extend(near),
                false => {}
            }
        }
        if !wanted {
            let is_path = matches!(self.of, Of::Path | Of::Target);
            out.push(if is_path { "/zzz".to_owned() } else { "zzz.compare.invalid".to_owned() });
        }
        out
    }

    /// Whether it is about a header of the connection.
    fn is_of_connection(&self) -> bool {
        matches!(&self.of, Of::Header { name, .. } if ["connection", "upgrade", "te"].iter().any(|h| name.eq_ignore_ascii_case(h)))
    }

    /// Whether it holds for a request; `None` if that is not known here.
    pub fn holds(&self, draft: &Draft) -> Option<bool> {
        let value: String = match &self.of {
            Of::Constant(value) => return Some(*value),
            Of::Tls => return Some(draft.tls),
            Of::Certificate => return Some(draft.shown == Shown::Known),
            Of::CommonName(_) if draft.shown != Shown::Known => return Some(false),
            Of::CommonName(name) => name.clone(),
            Of::Counter(_) => return Some(draft.times != Times::Once),
            Of::Length => {
                let (least, longer) = least_longer(&self.values)?;
                return Some((draft.content >= least) == longer);
            }
            Of::Source => {
                let from = draft.from.unwrap_or(IpAddr::from([198, 18, 1, 1]));
                let all: Option<Vec<bool>> = self.values.iter().map(|v| is_in(from, v)).collect();
                return Some(all?.contains(&true));
            }
            Of::Users => {
                let has = |(n, v): &(String, String)| n.eq_ignore_ascii_case("authorization") && v == CREDENTIALS;
                return Some(draft.headers.iter().any(has));
            }
            Of::Host if self.bare => draft.host.split(':').next().unwrap_or_default().to_owned(),
            Of::Host => draft.host.clone(),
            Of::Base => format!("{}{}", draft.host, draft.path.split('?').next().unwrap_or_default()),
            // HTTP/2 has the whole URL.
            Of::Target if draft.over != Over::Http1 => return None,
            Of::Target => draft.path.clone(),
            Of::Sni => draft.sni.clone().unwrap_or_else(|| draft.host.clone()),
            Of::Path => draft.path.split('?').next().unwrap_or_default().to_owned(),
            Of::Method => draft.method.clone(),
            Of::Header { name, listed } => {
                let all = draft.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
                let values = all.flat_map(|(_, value)| match listed {
                    true => value.split(',').map(str::trim).collect(),
                    false => vec![value.as_str()],
                });
                let found: Vec<Option<bool>> = values.map(|value| self.accepts(value)).collect();
                return if found.contains(&None) { None } else { Some(found.contains(&Some(true))) };
            }
            Of::Query(_) | Of::Cookie(_) => return None,
        };
        self.accepts(&value)
    }

    /// Whether a text matches; `None` if that is not known here.
    pub fn accepts(&self, value: &str) -> Option<bool> {
        let same = |a: &str, b: &str| if self.ignore_case { a.eq_ignore_ascii_case(b) } else { a == b };
        let lower = |t: &str| if self.ignore_case { t.to_ascii_lowercase() } else { t.to_owned() };
        let (text, values) = (lower(value), self.values.iter().map(|v| lower(v)).collect::<Vec<_>>());
        Some(match self.how {
            Match::Found => true,
            Match::Is => self.values.iter().any(|v| same(v, value)),
            Match::Begin => values.iter().any(|v| text.starts_with(v.as_str())),
            Match::End => values.iter().any(|v| text.ends_with(v.as_str())),
            Match::Within => values.iter().any(|v| text.contains(v.as_str())),
            Match::Folder => values.iter().any(|v| format!("{text}/").contains(&format!("/{}/", v.trim_matches('/')))),
            Match::Domain | Match::Regex => return None,
        })
    }
}

/// `nbsrv(backend) ge 1`: all servers are alive.
fn alive(words: &[String]) -> Option<Test> {
    let values: Vec<&str> = words.iter().map(String::as_str).collect();
    let holds = match values.as_slice() {
        ["lt" | "le", _] | ["eq", "0"] | ["0"] => false,
        ["gt" | "ge", _] => true,
        _ => return None,
    };
    let of = Of::Constant(holds);
    Some(Test { of, how: Match::Found, ignore_case: false, bare: false, values: Vec::new() })
}

/// For `gt 1000` and the like, the least length of those that are longer, and whether the longer ones match.
fn least_longer(values: &[String]) -> Option<(u64, bool)> {
    let [operator, number] = values else { return None };
    let number: u64 = number.parse().ok()?;
    Some(match operator.as_str() {
        "gt" => (number.checked_add(1)?, true),
        "ge" => (number, true),
        "le" => (number.checked_add(1)?, false),
        "lt" => (number, false),
        _ => return None,
    })
}

fn is_in(address: IpAddr, network: &str) -> Option<bool> {
    let (IpAddr::V4(address), (inside, length)) = (address, network.split_once('/').unwrap_or((network, "32"))) else {
        return Some(false);
    };
    let IpAddr::V4(inside) = inside.parse().ok()? else { return Some(false) };
    let length: u32 = length.parse().ok().filter(|l| *l <= 32)?;
    let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
    Some(u32::from(address) & mask == u32::from(inside) & mask)
}

pub fn suffix(fetch: &str) -> (Option<Match>, &str) {
    for (end, how) in [
        ("_beg", Match::Begin),
        ("_end", Match::End),
        ("_sub", Match::Within),
        ("_dir", Match::Folder),
        ("_dom", Match::Domain),
        ("_reg", Match::Regex),
    ] {
        if let Some(bare) = fetch.strip_suffix(end) {
            return (Some(how), bare);
        }
    }
    (None, fetch)
}

pub fn of(fetch: &str, argument: &str) -> Option<Of> {
    let argument = argument.split(',').next().unwrap_or_default();
    Some(match fetch {
        "hdr" | "req.hdr" | "req.fhdr" if argument.eq_ignore_ascii_case("host") => Of::Host,
        "hdr" | "req.hdr" => Of::Header { name: argument.to_owned(), listed: true },
        "req.fhdr" => Of::Header { name: argument.to_owned(), listed: false },
        "base" => Of::Base,
        "url" | "pathq" | "capture.req.uri" => Of::Target,
        "http_auth" | "http_auth_group" => Of::Users,
        "path" => Of::Path,
        "method" | "capture.req.method" => Of::Method,
        "src" => Of::Source,
        "ssl_fc" => Of::Tls,
        "ssl_fc_sni" | "req_ssl_sni" | "req.ssl_sni" => Of::Sni,
        "ssl_c_used" | "ssl_fc_has_crt" => Of::Certificate,
        // A certificate that is not accepted ends the handshake.
        "ssl_c_verify" | "req.ssl_hello_type" | "req_ssl_hello_type" => Of::Tls,
        "urlp" | "url_param" => Of::Query(argument.to_owned()),
        "cook" | "req.cook" => Of::Cookie(argument.to_owned()),
        "always_true" => Of::Constant(true),
        "always_false" => Of::Constant(false),
        "req.body_size" | "body_size" => Of::Length,
        "req.hdr_val" | "hdr_val" if argument.eq_ignore_ascii_case("content-length") => Of::Length,
        f if f.ends_with("http_req_rate") || f.ends_with("conn_rate") => Of::Counter(false),
        f if f.ends_with("conn_cur") => Of::Counter(true),
        _ => return None,
    })
}

fn set(draft: &Draft, of: &Of, text: &str) -> Option<Draft> {
    let mut out = draft.clone();
    match of {
        Of::Host => text.clone_into(&mut out.host),
        Of::Sni => {
            text.clone_into(&mut out.host);
            out.sni = Some(text.to_owned());
        }
        Of::Target if text.starts_with('/') => text.clone_into(&mut out.path),
        Of::Base => {
            let (host, path) = text.split_once('/').unwrap_or((text, ""));
            host.clone_into(&mut out.host);
            out.path = format!("/{path}");
        }
        Of::Path => {
            let query = draft.path.split_once('?').map(|(_, q)| format!("?{q}")).unwrap_or_default();
            out.path = format!("{text}{query}");
        }
        Of::Method if !text.is_empty() && text.bytes().all(|b| b.is_ascii_uppercase()) => {
            text.clone_into(&mut out.method);
        }
        Of::Header { name, .. } => out = out.with(name, text),
        Of::Cookie(name) => out = out.with("Cookie", &format!("{name}={text}")),
        Of::Query(name) => out.path = format!("{}?{name}={text}", draft.path.split('?').next()?),
        _ => return None,
    }
    Some(out)
}

impl Term {
    /// The networks with which the client's address is compared.
    pub fn networks(&self) -> impl Iterator<Item = &String> {
        self.tests.iter().flatten().filter(|t| t.of == Of::Source).flat_map(|t| &t.values)
    }

    /// Requests for which the term is as wanted. `None`: none is known.
    fn requests(&self, draft: &Draft, wanted: bool) -> Option<Vec<Draft>> {
        let wanted = wanted != self.negated;
        let mut out = Vec::new();
        if wanted {
            for test in &self.tests {
                out.extend(test.as_ref()?.requests(draft, true));
            }
        } else {
            // None of the tests may hold.
            let first = self.tests.first()?.as_ref()?;
            out = first.requests(draft, false);
            out.retain(|d| self.tests.iter().flatten().all(|t| t.holds(d) != Some(true)));
        }
        (!out.is_empty()).then_some(out)
    }

    fn holds(&self, draft: &Draft) -> Option<bool> {
        let mut out = Some(false);
        for test in &self.tests {
            match test.as_ref().and_then(|t| t.holds(draft)) {
                Some(true) => return Some(!self.negated),
                Some(false) => {}
                None => out = None,
            }
        }
        out.map(|o| o != self.negated)
    }
}

/// Whether a condition can hold for a request, as far as that is known here.
pub fn may_hold(groups: &[Vec<Term>], draft: &Draft) -> bool {
    groups.iter().any(|g| g.iter().all(|t| t.holds(draft) != Some(false)))
}

/// Whether a condition holds for a request for certain.
pub fn must_hold(groups: &[Vec<Term>], draft: &Draft) -> bool {
    groups.iter().any(|g| g.iter().all(|t| t.holds(draft) == Some(true)))
}

/// Requests for a condition: with all of its terms true, and with each of them false.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// It holds.
    pub held: Vec<Draft>,
    /// It does not.
    pub missed: Vec<Draft>,
    /// A part is not understood.
    pub unknown: bool,
    /// Why there is no request for a part that is understood.
    pub why: Option<&'static str>,
}

/// Makes them.
pub fn outcomes(groups: &[Vec<Term>], draft: &Draft) -> Outcomes {
    let mut out = Outcomes::default();
    for group in groups {
        let tests = group.iter().flat_map(|t| &t.tests);
        out.why = out.why.or_else(|| tests.flatten().find_map(Test::unasked));
        // All terms true, each by its first sample.
        let mut base = Some(draft.clone());
        for term in group {
            base = base.and_then(|d| term.requests(&d, true)).and_then(|d| d.into_iter().next());
        }
        let Some(base) = base else {
            out.unknown |= group.iter().any(|t| t.tests.iter().any(Option::is_none));
            continue;
        };
        if group.iter().all(|t| t.holds(&base) != Some(false)) {
            out.held.push(base.clone());
        }
        for term in group {
            for held in term.requests(&base, true).unwrap_or_default() {
                if group.iter().all(|t| t.holds(&held) != Some(false)) {
                    out.held.push(held);
                }
            }
            out.missed.extend(term.requests(&base, false).unwrap_or_default());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Place;
    use std::collections::BTreeSet;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn draft() -> Draft {
        Draft { host: "unknown.example".to_owned(), ..crate::draft::cases::draft() }
    }

    #[test]
    fn a_condition_is_tried_in_both_outcomes() {
        let acls = Named::new();
        let text = "use_backend b if { hdr(host) -i shop.example } { path_beg /api/ } !{ method POST }";
        let groups = condition(&words(text), &acls, &Lists::default()).unwrap();
        let out = outcomes(&groups, &draft());
        let held = &out.held[0];
        assert_eq!((held.host.as_str(), held.path.as_str(), held.method.as_str()), ("shop.example", "/api/x", "GET"));
        let missed = |what: &dyn Fn(&Draft) -> bool| out.missed.iter().any(what);
        assert!(missed(&|d| d.host == "unknown.example" || d.host == "shop.examplex"));
        assert!(missed(&|d| d.path == "/api" && d.host == "shop.example"), "the edge of a prefix");
        assert!(missed(&|d| d.method == "POST" && d.path == "/api/x"));
        assert!(!out.unknown);
        assert!(may_hold(&groups, held) && !may_hold(&groups, &draft()));
    }

    #[test]
    fn headers_have_several_values() {
        let values = |condition: &str| {
            let out = outcomes(&condition_of(condition), &draft());
            let of = |all: &[Draft]| -> Vec<String> {
                all.iter().map(|d| d.headers.iter().map(|(_, v)| v.clone()).collect::<Vec<_>>().join("|")).collect()
            };
            (of(&out.held), of(&out.missed))
        };
        let (held, missed) = values("x if { hdr(X-A) -i b }");
        assert!(["b", "B", "zzz, b"].iter().all(|v| held.iter().any(|h| h == v)), "{held:?}");
        assert!(["bx", "zzz, bx", ""].iter().all(|v| missed.iter().any(|m| m == v)), "{missed:?}");
        let (held, missed) = values("x if { req.fhdr(X-A) b }");
        assert!(!held.contains(&"zzz, b".to_owned()) && missed.contains(&"bx".to_owned()), "{held:?} {missed:?}");
    }

    fn condition_of(text: &str) -> Vec<Vec<Term>> {
        condition(&words(text), &Named::new(), &Lists::default()).unwrap()
    }

    #[test]
    fn what_is_not_understood_is_said() {
        let groups =
            condition(&words("http-request deny if { rand(100) lt 5 }"), &Named::new(), &Lists::default()).unwrap();
        assert!(outcomes(&groups, &draft()).unknown);
    }

    #[test]
    fn servers_are_alive_and_certificates_have_a_name() {
        let of =
            |text: &str, lists: &Lists| outcomes(&condition(&words(text), &Named::new(), lists).unwrap(), &draft());
        let out = of("use_backend b if { nbsrv(b) ge 1 } { path /x }", &Lists::default());
        assert!(out.held.iter().any(|d| d.path == "/x") && !out.unknown);
        assert!(of("use_backend b if { nbsrv(b) lt 1 }", &Lists::default()).held.is_empty());
        assert!(of("use_backend b if { nbsrv(b) 2:3 }", &Lists::default()).unknown);
        let node = |text: &str, block| Node {
            place: Place { file: "h".into(), line: 1 },
            words: words(text),
            block,
            from: None,
        };
        let line = node("http-request deny if !{ ssl_c_s_dn(cn) -i acme other }", None);
        let section = node("backend b", Some(vec![line]));
        let lists = Lists::new(std::path::Path::new("/nonexistent")).of(&[section]);
        assert_eq!(lists.client(), Some("acme"));
        let out = of("http-request deny if !{ ssl_c_s_dn(cn) acme }", &lists);
        assert!(out.held.iter().all(|d| d.shown == Shown::None) && out.missed[0].shown == Shown::Known);
        assert!(of("http-request deny if { ssl_c_s_dn(cn) other }", &lists).held.is_empty());
    }

    #[test]
    fn networks_and_counters_are_tried() {
        let out = outcomes(
            &condition(&words("x if !{ src 10.0.0.0/8 }"), &Named::new(), &Lists::default()).unwrap(),
            &draft(),
        );
        assert!(out.held.iter().any(|d| d.from.is_none()));
        assert!(out.missed.iter().any(|d| d.from == Some(IpAddr::from([10, 254, 254, 254]))));
        let out = outcomes(
            &condition(&words("x if { sc_http_req_rate(0) gt 30 }"), &Named::new(), &Lists::default()).unwrap(),
            &draft(),
        );
        assert!(out.held.iter().any(|d| d.times == Times::AtOnce(35)));
        for text in ["x if { req.body_size gt 1000 }", "x if !{ req.hdr_val(content-length) le 1000 }"] {
            let out = outcomes(&condition_of(text), &draft());
            let lengths = |all: &[Draft]| all.iter().map(|d| d.content).collect::<BTreeSet<_>>();
            assert_eq!((lengths(&out.held), lengths(&out.missed)), ([1001].into(), [1000].into()), "{text}");
        }
    }
}
