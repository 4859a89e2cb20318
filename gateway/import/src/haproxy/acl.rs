//! ACLs and conditions.
//!
//! A condition is a disjunction of conjunctions of ACLs. For a given address, host and path most ACLs are decided; what is left is
//! about methods and headers, which routes can say.

use super::parser::{Line, Proxy};
use crate::nginx::is_name;
use crate::patterns;
use std::collections::BTreeMap;

/// What one `acl` line tests; several of one name are alternatives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Always(bool),
    Tls,
    Port(Vec<u16>),
    /// Names as in `[[host]]`.
    Host(Vec<String>),
    /// Texts that a path begins with.
    PathBegins(Vec<String>),
    Path(Vec<String>),
    Method(Vec<String>),
    /// A header, and a condition in TOML.
    Header(String, String),
    /// More than `1` requests in the period of a stick table (`0`: its counter).
    Rate(u32),
    /// It checks who the client is.
    Access,
    Unknown,
}

/// A conjunction: tests, each perhaps negated.
pub(super) type All = Vec<(bool, Vec<Test>)>;

/// A condition. Empty: always.
#[derive(Clone, Debug, Default)]
pub(super) struct Condition(pub Vec<All>);

/// What was said of a condition by its ACLs, to be reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Remarks(pub Vec<String>);

/// An `acl` line: what it tests, and remarks about that.
pub(super) type Acl<'l> = (Test, &'l Line, Vec<String>);

/// Methods (none: any), and headers with their conditions.
pub(super) type Match = (Vec<String>, Vec<(String, String)>);

/// The ACLs of a proxy by name, with the remarks about each.
#[derive(Default)]
pub(super) struct Acls<'l> {
    pub named: BTreeMap<&'l str, Vec<Acl<'l>>>,
}

/// ACLs that HAProxy defines.
const PREDEFINED: &[(&str, &[&str])] = &[
    ("TRUE", &["always_true"]),
    ("FALSE", &["always_false"]),
    ("HTTP", &["always_true"]),
    ("METH_GET", &["method", "GET", "HEAD"]),
    ("METH_HEAD", &["method", "HEAD"]),
    ("METH_POST", &["method", "POST"]),
    ("METH_PUT", &["method", "PUT"]),
    ("METH_DELETE", &["method", "DELETE"]),
    ("METH_OPTIONS", &["method", "OPTIONS"]),
    ("METH_CONNECT", &["method", "CONNECT"]),
    ("METH_TRACE", &["method", "TRACE"]),
    ("LOCALHOST", &["src", "127.0.0.1/8"]),
    ("REQ_CONTENT", &["always_true"]),
    ("WAIT_END", &["always_true"]),
];

/// Most conjunctions of a condition.
const MAX_TERMS: usize = 200;

impl<'l> Acls<'l> {
    pub fn of(proxy: &Proxy<'l>) -> Self {
        let mut out = Self::default();
        for line in proxy.own().filter(|l| l.word(0) == "acl" && l.words.len() > 2) {
            let (test, remarks) = test(line.from(2));
            out.named.entry(line.words[1].as_str()).or_default().push((test, line, remarks));
        }
        out
    }

    /// Reads `if …` or `unless …` at the end of a line; `None` where it cannot be read.
    pub fn condition(&self, words: &[String], remarks: &mut Remarks) -> Option<Condition> {
        let Some(first) = words.first() else { return Some(Condition::default()) };
        let unless = match first.as_str() {
            "if" => false,
            "unless" => true,
            _ => return None,
        };
        let mut terms: Vec<All> = vec![Vec::new()];
        let mut negated = false;
        let mut i = 1;
        while i < words.len() {
            let word = words[i].as_str();
            i += 1;
            let (word, not) = match word.strip_prefix('!') {
                Some(rest) => (rest, true),
                None => (word, false),
            };
            negated ^= not;
            match word {
                "" => continue,
                "or" | "||" => {
                    terms.push(Vec::new());
                    continue;
                }
                "and" | "&&" => continue,
                "{" => {
                    let end = words[i..].iter().position(|w| w == "}")? + i;
                    let (test, mut found) = test(&words[i..end]);
                    remarks.0.append(&mut found);
                    terms.last_mut()?.push((negated, vec![test]));
                    i = end + 1;
                }
                name => {
                    let tests: Vec<Test> = match self.named.get(name) {
                        Some(tests) => {
                            tests.iter().for_each(|(.., r)| remarks.0.extend(r.iter().cloned()));
                            tests.iter().map(|(t, ..)| t.clone()).collect()
                        }
                        None => {
                            let predefined = PREDEFINED.iter().find(|(n, _)| *n == name)?.1;
                            let words: Vec<String> = predefined.iter().map(|w| (*w).to_owned()).collect();
                            vec![test(&words).0]
                        }
                    };
                    terms.last_mut()?.push((negated, tests));
                }
            }
            negated = false;
            if terms.len() > MAX_TERMS || terms.last().is_some_and(|t| t.len() > MAX_TERMS) {
                return None;
            }
        }
        if terms.iter().any(Vec::is_empty) {
            return None;
        }
        match (unless, terms.as_slice()) {
            (false, _) => Some(Condition(terms)),
            // Not (a or b): neither.
            (true, terms) if terms.iter().all(|t| t.len() == 1) => {
                Some(Condition(vec![terms.iter().map(|t| (!t[0].0, t[0].1.clone())).collect()]))
            }
            // Not (a and b): one of them not.
            (true, [one]) => Some(Condition(one.iter().map(|(n, t)| vec![(!n, t.clone())]).collect())),
            (true, _) => None,
        }
    }
}

/// Reads a criterion with its flags and values.
fn test(words: &[String]) -> (Test, Vec<String>) {
    let mut remarks = Vec::new();
    let Some(fetch) = words.first() else { return (Test::Unknown, remarks) };
    let (fetch, converters) = fetch.split_once(',').unwrap_or((fetch.as_str(), ""));
    let (name, argument) = match fetch.split_once('(') {
        Some((name, rest)) => (name, rest.split(')').next().unwrap_or("")),
        None => (fetch, ""),
    };
    let mut matching = "";
    let mut ignore_case = matches!(converters, "lower");
    let mut values: Vec<&str> = Vec::new();
    let mut i = 1;
    let mut flags = true;
    while i < words.len() {
        match words[i].as_str() {
            "-i" if flags => ignore_case = true,
            "-m" if flags => {
                i += 1;
                matching = words.get(i).map_or("", String::as_str);
            }
            "-f" | "-M" | "-n" | "-u" if flags => return (access_or_unknown(name), remarks),
            "--" if flags => flags = false,
            value => {
                flags = false;
                values.push(value);
            }
        }
        i += 1;
    }
    let owned = |values: &[&str]| values.iter().map(|v| (*v).to_owned()).collect::<Vec<String>>();
    let host = matches!(argument.to_ascii_lowercase().as_str(), "host" | "host,1" | "host,-1");
    let case = |remarks: &mut Vec<String>| {
        if ignore_case {
            remarks.push("upper and lower case differ in paths".to_owned());
        }
    };
    let test = match (name, matching) {
        ("always_true", _) => Test::Always(true),
        ("always_false", _) => Test::Always(false),
        ("ssl_fc", _) => Test::Tls,
        ("req.ssl_hello_type" | "req_ssl_hello_type", _) => Test::Always(true),
        ("dst_port", _) => match values.iter().map(|v| v.parse().ok()).collect() {
            Some(ports) => Test::Port(ports),
            None => Test::Unknown,
        },
        ("hdr" | "req.hdr" | "req.fhdr", "" | "str") if host => names(&values, "str", &mut remarks),
        ("hdr" | "req.hdr", "beg" | "end" | "dom" | "reg") if host => names(&values, matching, &mut remarks),
        ("hdr_beg" | "hdr_end" | "hdr_dom" | "hdr_reg", _) if host => names(&values, &name[4..], &mut remarks),
        ("ssl_fc_sni" | "req.ssl_sni" | "req_ssl_sni", m) => {
            names(&values, if m.is_empty() { "str" } else { m }, &mut remarks)
        }
        ("ssl_fc_sni_end" | "req_ssl_sni_end", _) => names(&values, "end", &mut remarks),
        ("ssl_fc_sni_reg" | "req_ssl_sni_reg", _) => names(&values, "reg", &mut remarks),
        ("path", "" | "str") | ("path_str", _) if !values.is_empty() => {
            case(&mut remarks);
            Test::Path(owned(&values))
        }
        ("path", "beg") | ("path_beg" | "url_beg", _) if !values.is_empty() => {
            case(&mut remarks);
            Test::PathBegins(owned(&values))
        }
        ("path", "dir") | ("path_dir", _) => Test::Unknown,
        ("path", "reg") | ("path_reg", _) => {
            let all: Option<Vec<(Vec<String>, bool)>> = values.iter().map(|v| patterns::paths(v)).collect();
            case(&mut remarks);
            match all {
                Some(all) if !all.is_empty() && all.iter().all(|(_, p)| *p == all[0].1) => {
                    let prefix = all[0].1;
                    let texts: Vec<String> = all.into_iter().flat_map(|(t, _)| t).collect();
                    if prefix { Test::PathBegins(texts) } else { Test::Path(texts) }
                }
                _ => Test::Unknown,
            }
        }
        ("method", _) if !values.is_empty() => Test::Method(owned(&values)),
        ("hdr" | "req.hdr" | "req.fhdr", "" | "str" | "found") | ("hdr_cnt" | "req.hdr_cnt", _)
            if is_name(argument) =>
        {
            match (values.as_slice(), matching, name.ends_with("_cnt")) {
                (_, "found", _) => Test::Header(argument.to_owned(), "true".to_owned()),
                (["gt", "0"] | ["ge", "1"], _, true) => Test::Header(argument.to_owned(), "true".to_owned()),
                (["0"] | ["eq", "0"], _, true) => Test::Header(argument.to_owned(), "false".to_owned()),
                ([one], _, false) if !one.ends_with('*') => {
                    if ignore_case {
                        remarks.push("upper and lower case differ in a header's value".to_owned());
                    }
                    Test::Header(argument.to_owned(), crate::output::quoted(one))
                }
                _ => Test::Unknown,
            }
        }
        ("hdr_beg" | "req.hdr_beg", _) | ("hdr" | "req.hdr", "beg") if is_name(argument) && values.len() == 1 => {
            Test::Header(argument.to_owned(), crate::output::quoted(&format!("{}*", values[0])))
        }
        ("sc_http_req_rate" | "sc0_http_req_rate" | "src_http_req_rate", _) => match values.as_slice() {
            ["gt", n] => n.parse().map_or(Test::Access, Test::Rate),
            ["ge", n] => n.parse::<u32>().map_or(Test::Access, |n| Test::Rate(n.saturating_sub(1))),
            _ => Test::Access,
        },
        (name, _) => access_or_unknown(name),
    };
    (test, remarks)
}

fn access_or_unknown(name: &str) -> Test {
    let about_clients =
        ["src", "http_auth", "ssl_c_", "sc_", "sc0_", "sc1_", "sc2_", "ssl_fc_has", "table_", "so_id", "user"];
    match about_clients.iter().any(|p| name.starts_with(p)) {
        true => Test::Access,
        false => Test::Unknown,
    }
}

fn names(values: &[&str], matching: &str, remarks: &mut Vec<String>) -> Test {
    let mut out: Vec<String> = Vec::new();
    for value in values {
        // A port beside the name is not looked at here.
        let lower = value.to_ascii_lowercase();
        let bare = lower.rsplit_once(':').filter(|(_, p)| p.parse::<u16>().is_ok()).map_or(lower.as_str(), |(h, _)| h);
        let good = |n: &str| {
            !n.is_empty()
                && n.split('.').all(|l| !l.is_empty())
                && n.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        };
        match (matching, bare.strip_prefix('.')) {
            ("str", None) if good(bare) => out.push(bare.to_owned()),
            ("end", Some(rest)) if good(rest) => out.push(format!("**.{rest}")),
            ("end" | "dom", None) if good(bare) && bare.contains('.') => {
                out.extend([bare.to_owned(), format!("**.{bare}")]);
                remarks.push(format!("{bare} and the names below it, by whole labels"));
            }
            ("reg", _) => match patterns::names(value) {
                Some(names) => out.extend(names),
                None => return Test::Unknown,
            },
            _ => return Test::Unknown,
        }
    }
    if out.is_empty() { Test::Unknown } else { Test::Host(out) }
}

/// Requests that the routes tell apart: those at an address, for a host, at a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Atom<'a> {
    pub tls: bool,
    pub port: u16,
    /// As in `[[host]]`.
    pub host: &'a str,
    pub path: &'a crate::output::Path,
}

/// What an ACL says of an atom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Known(bool),
    /// It depends on the method.
    Method(Vec<String>),
    Header(String, String),
    Rate(u32),
    Access,
    Unknown,
}

/// Whether all names of a pattern are in another one.
pub(super) fn includes(wide: &str, narrow: &str) -> bool {
    if wide == "*" || wide == narrow {
        return true;
    }
    match (wide.strip_prefix("**."), narrow.strip_prefix("**.").or(narrow.strip_prefix("*."))) {
        (Some(w), Some(n)) => n == w || n.ends_with(&format!(".{w}")),
        (Some(w), None) => narrow.ends_with(&format!(".{w}")),
        (None, None) => wide
            .strip_prefix("*.")
            .and_then(|w| narrow.strip_suffix(w)?.strip_suffix('.'))
            .is_some_and(|label| !label.is_empty() && !label.contains('.')),
        _ => false,
    }
}

fn verdict(test: &Test, atom: &Atom) -> Verdict {
    use crate::output::Path;
    match test {
        Test::Always(is) => Verdict::Known(*is),
        Test::Tls => Verdict::Known(atom.tls),
        Test::Port(ports) => Verdict::Known(ports.contains(&atom.port)),
        Test::Host(names) => Verdict::Known(names.iter().any(|n| includes(n, atom.host))),
        Test::Path(paths) => Verdict::Known(match atom.path {
            Path::Exact(p) => paths.contains(p),
            Path::Below(_) => false,
        }),
        Test::PathBegins(texts) => Verdict::Known(match atom.path {
            Path::Exact(p) => texts.iter().any(|t| p.starts_with(t.as_str())),
            Path::Below(p) => {
                let slashed = format!("{}/", p.trim_end_matches('/'));
                texts.iter().any(|t| slashed.starts_with(t.as_str()))
            }
        }),
        Test::Method(list) => Verdict::Method(list.clone()),
        Test::Header(name, rule) => Verdict::Header(name.clone(), rule.clone()),
        Test::Rate(n) => Verdict::Rate(*n),
        Test::Access => Verdict::Access,
        Test::Unknown => Verdict::Unknown,
    }
}

/// What is left of a condition for an atom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Never,
    Always,
    /// One of these: methods and headers.
    Routes(Vec<Match>),
    Rate(u32),
    /// It checks who the client is.
    Access,
    Unknown,
}

impl Condition {
    /// The tests in it.
    pub fn tests(&self) -> impl Iterator<Item = &Test> {
        self.0.iter().flatten().flat_map(|(_, tests)| tests)
    }

    pub fn of(&self, atom: &Atom) -> Left {
        if self.0.is_empty() {
            return Left::Always;
        }
        let mut routes = Vec::new();
        let mut worst = None;
        for all in &self.0 {
            match term(all, atom) {
                Left::Always => return Left::Always,
                Left::Never => {}
                Left::Routes(mut more) => routes.append(&mut more),
                Left::Access => worst = Some(Left::Access),
                other => worst = worst.or(Some(other)),
            }
        }
        match (worst, routes.is_empty()) {
            (Some(worst), _) => worst,
            (None, true) => Left::Never,
            (None, false) => Left::Routes(routes),
        }
    }
}

fn term(all: &All, atom: &Atom) -> Left {
    let mut methods: Option<Vec<String>> = None;
    let mut headers: Vec<(String, String)> = Vec::new();
    let mut rate = None;
    let mut worst = None;
    for (negated, tests) in all {
        let verdicts: Vec<Verdict> = tests.iter().map(|t| verdict(t, atom)).collect();
        if verdicts.contains(&Verdict::Known(true)) {
            if *negated {
                return Left::Never;
            }
            continue;
        }
        let open: Vec<&Verdict> = verdicts.iter().filter(|v| **v != Verdict::Known(false)).collect();
        match open.as_slice() {
            [] if *negated => {}
            [] => return Left::Never,
            [Verdict::Method(list)] if !negated => match &mut methods {
                Some(there) => there.retain(|m| list.contains(m)),
                None => methods = Some(list.clone()),
            },
            [Verdict::Header(name, rule)] => {
                let rule = match (negated, rule.as_str()) {
                    (false, rule) => rule.to_owned(),
                    (true, "true") => "false".to_owned(),
                    (true, "false") => "true".to_owned(),
                    _ => {
                        worst = worst.or(Some(Left::Unknown));
                        continue;
                    }
                };
                if !headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name)) {
                    headers.push((name.clone(), rule));
                } else {
                    worst = worst.or(Some(Left::Unknown));
                }
            }
            [Verdict::Rate(n)] if !negated => rate = Some(*n),
            many if many.contains(&&Verdict::Access) || many.iter().any(|v| matches!(v, Verdict::Rate(_))) => {
                worst = Some(Left::Access);
            }
            _ => worst = worst.or(Some(Left::Unknown)),
        }
    }
    match (worst, rate, methods, headers.is_empty()) {
        (Some(worst), ..) => worst,
        (None, Some(n), None, true) => Left::Rate(n),
        (None, Some(_), ..) => Left::Access,
        (None, None, None, true) => Left::Always,
        (None, None, Some(m), _) if m.is_empty() => Left::Never,
        (None, None, methods, _) => Left::Routes(vec![(methods.unwrap_or_default(), headers)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Path;

    fn left(condition: &str, path: &Path, host: &str) -> Left {
        let words: Vec<String> = condition.split(' ').map(str::to_owned).collect();
        let acls = Acls::default();
        let c = acls.condition(&words, &mut Remarks::default()).unwrap();
        c.of(&Atom { tls: true, port: 443, host, path })
    }

    #[test]
    fn conditions_have_and_or_and_not() {
        let root = Path::Below("/".into());
        assert_eq!(left("if { ssl_fc } { hdr(host) a.b }", &root, "a.b"), Left::Always);
        assert_eq!(left("if { ssl_fc } { hdr(host) a.b }", &root, "c.d"), Left::Never);
        assert_eq!(left("if !{ ssl_fc } or { hdr_end(host) .b }", &root, "a.b"), Left::Always);
        assert_eq!(left("unless { ssl_fc } || { hdr(host) x.y }", &root, "a.b"), Left::Never);
        assert_eq!(left("if { src 10.0.0.0/8 }", &root, "a.b"), Left::Access);
        assert_eq!(left("if METH_POST", &root, "a.b"), Left::Routes(vec![(vec!["POST".into()], vec![])]));
    }

    #[test]
    fn paths_are_texts() {
        let api = Path::Below("/api".into());
        assert_eq!(left("if { path_beg /api/ }", &api, "x"), Left::Always);
        assert_eq!(left("if { path_beg /api/ }", &Path::Exact("/api".into()), "x"), Left::Never);
        assert_eq!(left("if { path_beg /api }", &Path::Exact("/api".into()), "x"), Left::Always);
        assert_eq!(left("if { path /api }", &api, "x"), Left::Never);
    }

    #[test]
    fn patterns_include_names() {
        assert!(
            includes("**.b", "a.b") && includes("**.b", "x.a.b") && !includes("**.b", "b") && includes("*", "**.b")
        );
        assert!(includes("*.b", "a.b") && !includes("*.b", "x.a.b") && !includes("a.b", "**.b"));
    }
}
