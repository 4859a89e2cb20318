//! ACLs and conditions.
//!
//! A condition is a disjunction of conjunctions of ACLs. For a given address, host and path most ACLs are decided; what is left is
//! about methods and headers, which routes can say.
//!
//! An ACL is understood if its fetch, its converters, its kind of match, its flags and its values are all in [`read`]; everything
//! else is [`Test::Unknown`], and so is undecided where a rule uses it.

use super::parser::{Line, Proxy};
use crate::addresses::{AddressList, AddressSet, Clients};
use crate::nginx::is_name;
use crate::output::{Methods, quoted};
use crate::paths::{self, PathTest};
use crate::patterns::{self, Expression};
use crate::reader::Reader;
use crate::report::Id;
use std::collections::BTreeMap;
use std::path::Path;

/// What one `acl` line tests; several of one name are alternatives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Always(bool),
    Tls,
    Port(Vec<u16>),
    /// Names of the request's host, as in `[[host]]`.
    Host(Vec<String>),
    /// Names of the ClientHello, as in `[[host]]`. A connection without TLS has none.
    ServerName(Vec<String>),
    Path(Vec<PathTest>),
    /// The path matches.
    Expression(Expression),
    Method(Vec<String>),
    /// A header, and a condition in TOML.
    Header(String, String),
    /// The user and the password are in this list.
    Users(String),
    /// More requests in the period of a stick table than this, by the counter of this number.
    Rate(Counter, u32),
    /// The client's address is one of these.
    Source(AddressList),
    /// It checks who the client is.
    Access,
    Unknown,
}

/// A counter of clients' requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Counter(pub u8);

/// A conjunction: tests, each perhaps negated.
pub(super) type All = Vec<(bool, Vec<Test>)>;

/// A condition. Empty: always.
#[derive(Clone, Debug, Default)]
pub(super) struct Condition(pub Vec<All>);

/// What was said of a condition by its ACLs, to be reported: where a header's value has another case, it is not meant here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Remarks(pub Vec<String>);

/// An `acl` line: what it tests, and remarks about that.
pub(super) type Acl<'l> = (Test, &'l Line, Vec<String>);

/// Methods, headers with their conditions, and the expression of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub methods: Methods,
    pub headers: Vec<(String, String)>,
    pub pattern: Option<String>,
}

/// The files that `-f` names.
#[derive(Clone, Copy)]
pub(super) struct Files<'f> {
    pub reader: &'f dyn Reader,
    /// Relative paths are from here.
    pub base: &'f Path,
}

/// Most entries of a file.
const MAX_ENTRIES: usize = 2000;

impl Files<'_> {
    pub fn path(&self, name: &str) -> String {
        self.base.join(name).to_string_lossy().into_owned()
    }

    /// What a file lists; `None`: it cannot be read, or is too long.
    pub fn entries(&self, name: &str) -> Option<Vec<String>> {
        let bytes = self.reader.read(Path::new(&self.path(name))).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
        let found: Vec<String> = lines.take(MAX_ENTRIES + 1).map(str::to_owned).collect();
        (found.len() <= MAX_ENTRIES).then_some(found)
    }
}

/// The ACLs of a proxy, by section and name: those of `defaults` are for the rules in them only.
pub(super) struct Acls<'l> {
    files: Files<'l>,
    pub named: BTreeMap<(Id, &'l str), Vec<Acl<'l>>>,
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
    pub fn of(proxy: &Proxy<'l>, files: Files<'l>) -> Self {
        let mut out = Self { files, named: BTreeMap::new() };
        for line in proxy.all().filter(|l| l.word(0) == "acl" && l.words.len() > 2) {
            let mut remarks = Vec::new();
            let test = read(line.from(2), files, &mut remarks).unwrap_or_else(|| unknown(line.word(2)));
            out.named.entry((line.section, line.words[1].as_str())).or_default().push((test, line, remarks));
        }
        out
    }

    /// Reads a criterion; `None` where something of it is not known.
    pub fn read(&self, words: &[String]) -> Option<Test> {
        read(words, self.files, &mut Vec::new())
    }

    /// What a file lists; `None`: it cannot be read, or is too long.
    pub fn entries(&self, name: &str) -> Option<Vec<String>> {
        self.files.entries(name)
    }

    /// Reads `if …` or `unless …` at the end of a line of a section; `None` where it cannot be read.
    pub fn condition(&self, section: Id, words: &[String], remarks: &mut Remarks) -> Option<Condition> {
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
            let mut word = words[i].as_str();
            i += 1;
            while let Some(rest) = word.strip_prefix('!') {
                negated = !negated;
                word = rest;
            }
            match word {
                "" => continue,
                "or" | "||" if !negated => {
                    terms.push(Vec::new());
                    continue;
                }
                "{" => {
                    let end = words[i..].iter().position(|w| w == "}")? + i;
                    let test = read(&words[i..end], self.files, &mut remarks.0)
                        .unwrap_or_else(|| unknown(words.get(i).map_or("", String::as_str)));
                    terms.last_mut()?.push((negated, vec![test]));
                    i = end + 1;
                }
                name => {
                    let tests: Vec<Test> = match self.named.get(&(section, name)) {
                        Some(tests) => {
                            tests.iter().for_each(|(.., r)| remarks.0.extend(r.iter().cloned()));
                            tests.iter().map(|(t, ..)| t.clone()).collect()
                        }
                        None => {
                            let predefined = PREDEFINED.iter().find(|(n, _)| *n == name)?.1;
                            let words: Vec<String> = predefined.iter().map(|w| (*w).to_owned()).collect();
                            vec![read(&words, self.files, &mut Vec::new()).unwrap_or(Test::Access)]
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
        if negated || terms.iter().any(Vec::is_empty) {
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

/// A criterion in its parts.
struct Criterion<'w> {
    name: &'w str,
    argument: &'w str,
    /// `-i`, or the converter `lower`.
    any_case: bool,
    /// The converter `lower`.
    lower: bool,
    /// `-m`; empty where there is none.
    matching: &'w str,
    values: Vec<&'w str>,
    /// `-f`: files with more values.
    files: Vec<&'w str>,
}

/// Takes a criterion apart; `None` where a converter, a flag or a parenthesis is not known.
fn criterion(words: &[String]) -> Option<Criterion<'_>> {
    let (fetch, lower) = match words.first()?.strip_suffix(",lower") {
        Some(fetch) => (fetch, true),
        None => (words.first()?.as_str(), false),
    };
    let (name, argument) = match fetch.split_once('(') {
        Some((name, rest)) => (name, rest.strip_suffix(')')?),
        None => (fetch, ""),
    };
    // What is left of a converter has a comma, or a second parenthesis.
    if name.contains([',', ')']) || argument.contains(['(', ')']) {
        return None;
    }
    let mut out =
        Criterion { name, argument, any_case: lower, lower, matching: "", values: Vec::new(), files: Vec::new() };
    let mut i = 1;
    let mut flags = true;
    while i < words.len() {
        match words[i].as_str() {
            "-i" if flags => out.any_case = true,
            "-m" if flags && out.matching.is_empty() => {
                i += 1;
                out.matching = words.get(i)?;
            }
            "-f" if flags => {
                i += 1;
                out.files.push(words.get(i)?);
            }
            "-n" if flags && out.name == "src" => {}
            "--" if flags => flags = false,
            flag if flags && flag.starts_with('-') => return None,
            value => {
                flags = false;
                out.values.push(value);
            }
        }
        i += 1;
    }
    Some(out)
}

/// Reads a criterion. `None`: something of it is not known.
fn read(words: &[String], files: Files, remarks: &mut Vec<String>) -> Option<Test> {
    let c = criterion(words)?;
    if let ("src", "" | "ip", "", false) = (c.name, c.matching, c.argument, c.any_case) {
        return source(&c, files);
    }
    let listed: Vec<Vec<String>> = c.files.iter().map(|f| files.entries(f)).collect::<Option<_>>()?;
    let values: Vec<&str> = c.values.iter().copied().chain(listed.iter().flatten().map(String::as_str)).collect();
    let values = values.as_slice();
    // A value in capitals is never equal to one in small letters.
    if c.lower && values.iter().any(|v| v.bytes().any(|b| b.is_ascii_uppercase())) {
        return None;
    }
    let owned = || values.iter().map(|v| (*v).to_owned()).collect::<Vec<String>>();
    let plain = c.argument.is_empty() && c.matching.is_empty() && !c.any_case;
    let is_host = matches!(c.argument.to_ascii_lowercase().as_str(), "host" | "host,1" | "host,-1");
    let path = |test: fn(&str) -> PathTest| {
        (c.argument.is_empty() && !values.is_empty())
            .then(|| Test::Path(values.iter().map(|v| PathTest { any_case: c.any_case, ..test(v) }).collect()))
    };
    match (c.name, c.matching) {
        ("always_true" | "always_false", _) if plain && values.is_empty() => {
            Some(Test::Always(c.name == "always_true"))
        }
        ("ssl_fc", _) if plain && values.is_empty() => Some(Test::Tls),
        ("req.ssl_hello_type" | "req_ssl_hello_type", _) if plain && values == ["1"] => Some(Test::Always(true)),
        ("dst_port", _) if plain && !values.is_empty() => {
            values.iter().map(|v| v.parse().ok()).collect::<Option<_>>().map(Test::Port)
        }
        ("hdr" | "req.hdr" | "req.fhdr", "" | "str") if is_host => names(values, "str").map(Test::Host),
        ("hdr" | "req.hdr", "end" | "reg") if is_host => names(values, c.matching).map(Test::Host),
        ("hdr_end" | "hdr_reg", "") if is_host => names(values, &c.name[4..]).map(Test::Host),
        ("ssl_fc_sni" | "req.ssl_sni" | "req_ssl_sni", "" | "str") if c.argument.is_empty() => {
            names(values, "str").map(Test::ServerName)
        }
        ("ssl_fc_sni" | "req.ssl_sni" | "req_ssl_sni", "end" | "reg") if c.argument.is_empty() => {
            names(values, c.matching).map(Test::ServerName)
        }
        ("ssl_fc_sni_end" | "req_ssl_sni_end", "") if c.argument.is_empty() => {
            names(values, "end").map(Test::ServerName)
        }
        ("ssl_fc_sni_reg" | "req_ssl_sni_reg", "") if c.argument.is_empty() => {
            names(values, "reg").map(Test::ServerName)
        }
        ("path", "" | "str") | ("path_str", "") => path(PathTest::exact),
        ("path", "beg") | ("path_beg", "") => path(PathTest::begins),
        ("path", "reg") | ("path_reg", "") if c.argument.is_empty() && !values.is_empty() => {
            let all: Option<Vec<Vec<PathTest>>> = values.iter().map(|v| patterns::paths(v, c.any_case)).collect();
            match all.map(|all| all.concat()).filter(|tests| tests.iter().all(PathTest::is_route)) {
                Some(tests) => Some(Test::Path(tests)),
                None => expression(values, |v| Some(v.to_owned()), "", c.any_case),
            }
        }
        ("path", "end") | ("path_end", "") if c.argument.is_empty() && !values.is_empty() => {
            expression(values, escaped, "$", c.any_case)
        }
        ("path", "sub") | ("path_sub", "") if c.argument.is_empty() && !values.is_empty() => {
            expression(values, escaped, "", c.any_case)
        }
        ("http_auth", "") if is_name(c.argument) && values.is_empty() && !c.any_case => {
            Some(Test::Users(c.argument.to_owned()))
        }
        ("method", "" | "str") if c.argument.is_empty() && !c.any_case && !values.is_empty() => {
            let good = |m: &&str| !m.is_empty() && m.bytes().all(|b| b.is_ascii_uppercase());
            values.iter().all(good).then(|| Test::Method(owned()))
        }
        ("hdr" | "req.hdr" | "req.fhdr", "found") if is_name(c.argument) && values.is_empty() => {
            Some(Test::Header(c.argument.to_owned(), "true".to_owned()))
        }
        ("hdr_cnt" | "req.hdr_cnt", "") if is_name(c.argument) && !c.any_case => match values {
            ["gt", "0"] | ["ge", "1"] => Some(Test::Header(c.argument.to_owned(), "true".to_owned())),
            ["0"] | ["eq", "0"] => Some(Test::Header(c.argument.to_owned(), "false".to_owned())),
            _ => None,
        },
        ("hdr" | "req.hdr" | "req.fhdr", "" | "str") if is_name(c.argument) && c.argument != "host" => match values {
            [one] if !one.is_empty() && !one.ends_with('*') && !one.contains(',') => {
                if c.any_case {
                    remarks.push("upper and lower case differ in a header's value".to_owned());
                }
                Some(Test::Header(c.argument.to_owned(), quoted(one)))
            }
            _ => None,
        },
        ("sc_http_req_rate" | "sc0_http_req_rate" | "sc1_http_req_rate" | "sc2_http_req_rate", "") if !c.any_case => {
            let counter = match (c.name.strip_prefix("sc")?.bytes().next()?, c.argument) {
                (b'_', n) => n.parse().ok()?,
                (digit, "") => digit - b'0',
                _ => return None,
            };
            let n = match values {
                ["gt", n] => n.parse().ok()?,
                ["ge", n] => n.parse::<u32>().ok()?.checked_sub(1)?,
                _ => return None,
            };
            Some(Test::Rate(Counter(counter), n))
        }
        _ => None,
    }
}

/// `src`. What is in files is Sealane's to read: they change.
fn source(c: &Criterion, files: Files) -> Option<Test> {
    let set = c.values.iter().map(|v| AddressSet::of(v)).collect::<Option<Vec<_>>>()?.into_iter().collect();
    let files: Vec<String> = c.files.iter().map(|f| files.path(f)).collect();
    (!c.values.is_empty() || !files.is_empty()).then_some(Test::Source(AddressList { set, files }))
}

/// A criterion that is not understood; whether it checks who the client is only changes what is said of it.
fn unknown(fetch: &str) -> Test {
    let about_clients =
        ["src", "http_auth", "ssl_c_", "sc_", "sc0_", "sc1_", "sc2_", "ssl_fc_has", "table_", "so_id", "user"];
    match about_clients.iter().any(|p| fetch.starts_with(p)) {
        true => Test::Access,
        false => Test::Unknown,
    }
}

/// Names of hosts. What ends within a label, or has a port, is not known.
fn names(values: &[&str], matching: &str) -> Option<Vec<String>> {
    let mut out: Vec<String> = Vec::new();
    for value in values {
        let lower = value.to_ascii_lowercase();
        let good = |n: &str| {
            !n.is_empty()
                && n.split('.').all(|l| !l.is_empty())
                && n.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        };
        match (matching, lower.strip_prefix('.')) {
            ("str", None) if good(&lower) => out.push(lower),
            ("end", Some(rest)) if good(rest) => out.push(format!("**.{rest}")),
            ("reg", _) => out.extend(patterns::names(value)?),
            _ => return None,
        }
    }
    (!out.is_empty()).then_some(out)
}

/// An expression for the path. `of`: what a value is in it; `end`: what follows.
fn expression(values: &[&str], of: impl Fn(&str) -> Option<String>, end: &str, any_case: bool) -> Option<Test> {
    let all: Vec<String> = values.iter().map(|v| of(v)).collect::<Option<_>>()?;
    let text = match all.as_slice() {
        [one] => format!("{one}{end}"),
        all => format!("(?:{}){end}", all.join("|")),
    };
    // Each of them is one by itself.
    if !all.iter().all(|v| Expression::of(v, any_case).is_some()) {
        return None;
    }
    Expression::of(&text, any_case).map(Test::Expression)
}

/// A text as an expression.
fn escaped(text: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/_-.~+".contains(c);
    let one = |c: char| match c {
        '.' | '+' => format!("\\{c}"),
        c => c.to_string(),
    };
    (!text.is_empty() && text.chars().all(plain)).then(|| text.chars().map(one).collect())
}

/// Requests that the routes tell apart: those at an address, for a host, at a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Atom<'a> {
    pub tls: bool,
    pub port: u16,
    /// As in `[[host]]`.
    pub host: &'a str,
    /// One of the paths that pass the same tests; none: a rule has changed it.
    pub path: Option<&'a str>,
    /// The path with which expressions are compared; none: many paths.
    pub one: Option<&'a str>,
}

/// What an ACL says of an atom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Known(bool),
    /// It depends on the method.
    Method(Vec<String>),
    /// It depends on the path.
    Expression(String),
    Header(String, String),
    Rate(Counter, u32),
    Source(AddressList),
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
    let is_host = |names: &[String]| names.iter().any(|n| includes(n, atom.host));
    match test {
        Test::Always(is) => Verdict::Known(*is),
        Test::Tls => Verdict::Known(atom.tls),
        Test::Port(ports) => Verdict::Known(ports.contains(&atom.port)),
        Test::Host(names) => Verdict::Known(is_host(names)),
        Test::ServerName(names) => Verdict::Known(atom.tls && is_host(names)),
        Test::Path(tests) => match atom.path {
            Some(path) => Verdict::Known(paths::any(tests, path)),
            None => Verdict::Unknown,
        },
        Test::Expression(e) => match (atom.path, atom.one) {
            (None, _) => Verdict::Unknown,
            (Some(_), Some(path)) => Verdict::Known(e.matches(path)),
            (Some(_), None) => Verdict::Expression(e.text().to_owned()),
        },
        Test::Users(_) => Verdict::Access,
        Test::Method(list) => Verdict::Method(list.clone()),
        Test::Header(name, rule) => Verdict::Header(name.clone(), rule.clone()),
        Test::Rate(counter, n) => Verdict::Rate(*counter, *n),
        Test::Source(list) => Verdict::Source(list.clone()),
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
    Rate(Counter, u32),
    /// These clients.
    Clients(Clients),
    /// It checks who the client is.
    Access,
    Unknown,
}

impl Condition {
    /// The tests in it.
    pub fn tests(&self) -> impl Iterator<Item = &Test> {
        self.0.iter().flatten().flat_map(|(_, tests)| tests)
    }

    /// How many tests it has, for the work that it takes.
    pub fn cost(&self) -> usize {
        self.tests()
            .map(|t| match t {
                Test::Path(tests) => tests.len(),
                Test::Host(names) | Test::ServerName(names) => names.len(),
                Test::Source(list) => list.set.ranges(),
                _ => 1,
            })
            .sum()
    }

    pub fn of(&self, atom: &Atom) -> Left {
        if self.0.is_empty() {
            return Left::Always;
        }
        let mut routes = Vec::new();
        let mut worst = None;
        let mut clients: Option<Clients> = None;
        for all in &self.0 {
            match term(all, atom) {
                Left::Always => return Left::Always,
                Left::Never => {}
                Left::Routes(mut more) => routes.append(&mut more),
                Left::Clients(more) => match clients.as_ref().map_or(Some(more.clone()), |there| there.or(&more)) {
                    Some(both) => clients = Some(both),
                    None => worst = Some(Left::Access),
                },
                Left::Access => worst = Some(Left::Access),
                other => worst = worst.or(Some(other)),
            }
        }
        match (worst, clients, routes.is_empty()) {
            // A rate, or else something that can be said: not both in one limit. So it is with addresses.
            (Some(Left::Rate(..)), _, false) | (Some(Left::Rate(..)), Some(_), _) | (None, Some(_), false) => {
                Left::Access
            }
            (Some(worst), ..) => worst,
            (None, Some(clients), true) => Left::Clients(clients),
            (None, None, true) => Left::Never,
            (None, None, false) => Left::Routes(routes),
        }
    }
}

fn term(all: &All, atom: &Atom) -> Left {
    let mut methods = Methods::Any;
    let mut headers: Vec<(String, String)> = Vec::new();
    let mut pattern: Option<String> = None;
    let mut rate = None;
    let mut clients: Option<Clients> = None;
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
            [Verdict::Method(list)] => match and_methods(&methods, *negated, list) {
                Methods::Of(none) if none.is_empty() => return Left::Never,
                both => methods = both,
            },
            [Verdict::Expression(text)] if !negated && pattern.as_ref().is_none_or(|p| p == text) => {
                pattern = Some(text.clone());
            }
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
            some if some.iter().all(|v| matches!(v, Verdict::Source(_))) => {
                let lists = some.iter().filter_map(|v| if let Verdict::Source(list) = v { Some(list) } else { None });
                let list = lists.fold(AddressList::default(), |all, list| all.union(list));
                let these = if *negated { Clients::NotIn(list) } else { Clients::In(list) };
                match clients.as_ref().map_or(Some(these.clone()), |there| there.and(&these)) {
                    Some(both) => clients = Some(both),
                    None => worst = Some(Left::Access),
                }
            }
            [Verdict::Rate(counter, n)] if !negated && rate.is_none() => rate = Some((*counter, *n)),
            many if many.iter().any(|v| matches!(v, Verdict::Access | Verdict::Rate(..) | Verdict::Source(_))) => {
                worst = Some(Left::Access);
            }
            _ => worst = worst.or(Some(Left::Unknown)),
        }
    }
    let plain = methods == Methods::Any && headers.is_empty() && pattern.is_none();
    match (worst, rate, clients) {
        (Some(worst), ..) => worst,
        (None, Some((counter, n)), None) if plain => Left::Rate(counter, n),
        (None, None, Some(clients)) if plain => Left::Clients(clients),
        (None, None, None) if plain => Left::Always,
        (None, None, None) => Left::Routes(vec![Match { methods, headers, pattern }]),
        _ => Left::Access,
    }
}

/// Methods that are among (`negated`: not among) a list, too.
fn and_methods(methods: &Methods, negated: bool, list: &[String]) -> Methods {
    let kept = |of: &[String], is: bool| of.iter().filter(|m| list.contains(m) == is).cloned().collect();
    match (methods, negated) {
        (Methods::Any, false) => Methods::Of(list.to_vec()),
        (Methods::Any, true) => Methods::Not(list.to_vec()),
        (Methods::Of(there), _) => Methods::Of(kept(there, !negated)),
        (Methods::Not(there), false) => Methods::Of(list.iter().filter(|m| !there.contains(m)).cloned().collect()),
        (Methods::Not(there), true) => Methods::Not([there.as_slice(), list].concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn acls(files: &Memory) -> Acls<'_> {
        Acls { files: Files { reader: files, base: Path::new("/etc") }, named: BTreeMap::new() }
    }

    fn left(condition: &str, path: &str, host: &str) -> Left {
        let mut files = Memory::of("/etc/paths", b"# those\n/a\n /b \n");
        files.files.insert("/etc/none".into(), Vec::new());
        let acls = acls(&files);
        let c = acls.condition(Id::default(), &words(condition), &mut Remarks::default()).unwrap();
        c.of(&Atom { tls: true, port: 443, host, path: Some(path), one: Some(path) })
    }

    #[test]
    fn conditions_have_and_or_and_not() {
        assert_eq!(left("if { ssl_fc } { hdr(host) a.b }", "/", "a.b"), Left::Always);
        assert_eq!(left("if { ssl_fc } { hdr(host) a.b }", "/", "c.d"), Left::Never);
        assert_eq!(left("if !{ ssl_fc } or { hdr_end(host) .b }", "/", "a.b"), Left::Always);
        assert_eq!(left("unless { ssl_fc } || { hdr(host) x.y }", "/", "a.b"), Left::Never);
        let routes = |methods| Left::Routes(vec![Match { methods, headers: vec![], pattern: None }]);
        let post = || vec!["POST".to_owned()];
        assert_eq!(left("if METH_POST", "/", "a.b"), routes(Methods::Of(post())));
        assert_eq!(left("unless METH_POST", "/", "a.b"), routes(Methods::Not(post())));
        assert_eq!(left("if METH_POST METH_PUT", "/", "a.b"), Left::Never);
    }

    #[test]
    fn paths_are_texts() {
        for (condition, path, is) in [
            ("if { path_beg /api/ }", "/api/x", true),
            ("if { path_beg /api/ }", "/api", false),
            ("if { path_beg /api }", "/apix", true),
            ("if { path_beg -i /api }", "/APIx", true),
            ("if { path /api }", "/api/", false),
            ("if { path -m beg /api }", "/api/", true),
            ("if { path_reg ^/(a|b)$ }", "/a", true),
            ("if { path_reg ^/v[0-9]+/ }", "/v12/x", true),
            ("if { path_reg ^/v[0-9]+/ }", "/v/x", false),
            ("if { path_end .env .git }", "/a/.env", true),
            ("if { path_end .env }", "/a/xenv", false),
            ("if { path_end -i .env }", "/a/.ENV", true),
            ("if { path -m sub /cgi-bin/ }", "/a/cgi-bin/x", true),
        ] {
            assert_eq!(left(condition, path, "x"), if is { Left::Always } else { Left::Never }, "{condition} {path}");
        }
    }

    /// What is not in the list of what is understood is unknown: converters, kinds of matches, flags, arguments and values.
    #[test]
    fn what_is_not_known_is_unknown() {
        for criterion in [
            "path,field(2,/) -m str admin",
            "path,length gt 5",
            "path,url_dec /admin",
            "path -m dir admin",
            "path -m sub ad%min",
            "path -f missing /a",
            "path_dir admin",
            "url_beg /admin",
            "path(1) /a",
            "ssl_fc 0",
            "ssl_fc -m bool",
            "always_true 0",
            "method -m beg P",
            "method -i get",
            "hdr(user-agent),length 0",
            "hdr(host),field(1,:) -i a.example",
            "hdr(host),regsub(x,y) a",
            "hdr(host) a.example:8080",
            "hdr_dom(host) a.example",
            "hdr_end(host) a.example",
            "hdr_beg(host) www.",
            "hdr(x) a b",
            "hdr(x) -m sub a",
            "hdr(x) -m found 0",
            "hdr(x,2) a",
            "hdr_beg(x) a",
            "hdr_cnt(x) gt 5",
            "dst_port gt 1024",
            "dst_port 1000:2000",
            "req.cook(session) -m found",
            "path_reg ^/(?!admin/)",
            "path_reg ^/(a",
            "path_reg ^/a ^/(b",
            "req.ssl_hello_type 2",
            "path,lower /Admin",
        ] {
            assert_eq!(left(&format!("if {{ {criterion} }}"), "/", "a.example"), Left::Unknown, "{criterion}");
        }
        for criterion in
            ["sc_http_req_rate(0) lt 5", "sc_http_req_rate(0,t) gt 5", "src_http_req_rate gt 5", "src_conn_cur gt 1"]
        {
            assert_eq!(left(&format!("if {{ {criterion} }}"), "/", "a.example"), Left::Access, "{criterion}");
        }
        for condition in ["if a and b", "if !", "if { path /a", "if", "if or TRUE", "if UNHEARD"] {
            let read = acls(&Memory::default()).condition(Id::default(), &words(condition), &mut Remarks::default());
            assert!(read.is_none(), "{condition}");
        }
    }

    #[test]
    fn addresses_are_sets() {
        let list = |blocks: &[&str], files: &[&str]| AddressList {
            set: blocks.iter().map(|b| AddressSet::of(b).unwrap()).collect(),
            files: files.iter().map(|f| (*f).to_owned()).collect(),
        };
        let is = |condition: &str, clients: Clients| {
            assert_eq!(left(condition, "/", "a.b"), Left::Clients(clients), "{condition}");
        };
        is("if { src 10.0.0.0/8 192.0.2.1 }", Clients::In(list(&["10.0.0.0/8", "192.0.2.1"], &[])));
        is("unless { src 10.0.0.0/8 }", Clients::NotIn(list(&["10.0.0.0/8"], &[])));
        is("if !{ src -f lan 10.0.0.0/8 }", Clients::NotIn(list(&["10.0.0.0/8"], &["/etc/lan"])));
        is(
            "if { src 10.0.0.0/8 } !{ src 10.1.0.0/16 }",
            Clients::of(list(&["10.0.0.0/8"], &[]).set.minus(&list(&["10.1.0.0/16"], &[]).set)),
        );
        is("if { src 10.0.0.0/8 } or LOCALHOST", Clients::In(list(&["10.0.0.0/8", "127.0.0.0/8"], &[])));
        is("if { src 10.0.0.1 } { ssl_fc }", Clients::In(list(&["10.0.0.1"], &[])));
        assert_eq!(left("if { src 10.0.0.1 } !{ ssl_fc }", "/", "a.b"), Left::Never);
        for condition in [
            "if { src 10.0.0.1 } METH_POST",
            "if { src 10.0.0.1 } or METH_POST",
            "if { src -f a } !{ src -f b }",
            "if { src host.example }",
            "if { src,ipmask(24) 10.0.0.0 }",
            "if { src -m str 10.0.0.1 }",
        ] {
            assert_eq!(left(condition, "/", "a.b"), Left::Access, "{condition}");
        }
    }

    #[test]
    fn files_have_values() {
        assert_eq!(left("if { path -f paths }", "/b", "a.b"), Left::Always);
        assert_eq!(left("if { path_beg -i -f paths /c/ }", "/A/x", "a.b"), Left::Always);
        assert_eq!(left("if { path -f paths }", "/c", "a.b"), Left::Never);
        assert_eq!(left("if { path -f none }", "/", "a.b"), Left::Unknown);
    }

    #[test]
    fn patterns_include_names() {
        assert!(
            includes("**.b", "a.b") && includes("**.b", "x.a.b") && !includes("**.b", "b") && includes("*", "**.b")
        );
        assert!(includes("*.b", "a.b") && !includes("*.b", "x.a.b") && !includes("a.b", "**.b"));
    }
}
