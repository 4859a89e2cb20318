//! Random configurations of NGINX, and what NGINX does with requests under them.

use super::{Answer, Generated, Random, Request};
use std::fmt::Write as _;

/// A regular expression, with what it matches.
type Pattern = (&'static str, fn(&str) -> bool);

const PATTERNS: &[Pattern] = &[
    ("^/a/", |p| p.starts_with("/a/")),
    ("^/(a|b)/", |p| p.starts_with("/a/") || p.starts_with("/b/")),
    ("^/a$", |p| p == "/a"),
    ("^/a/.*$", |p| p.starts_with("/a/")),
    ("^/b/(.+)$", |p| p.starts_with("/b/") && p.len() > 3),
    ("^/a/|/b/$", |p| p.starts_with("/a/") || p.ends_with("/b/")),
    ("^/a/b/|^/b$", |p| p.starts_with("/a/b/") || p == "/b"),
    ("^/a", |p| p.starts_with("/a")),
    ("\\.php$", |p| p.ends_with(".php")),
];
const PREFIXES: &[&str] = &["/", "/a", "/a/", "/a/b", "/a/b/", "/ab", "/ab/", "/b/", "/b", "/A/"];
const WHOLE: &[&str] = &["/", "/a/", "/a/b/", "/ab/", "/b/", "/A/"];
/// Names of servers, with what they match and how they are preferred: exact, wildcard, pattern.
type Name = (&'static str, fn(&str) -> bool, usize);
const NAMES: &[Name] = &[
    ("a.example", |h| h == "a.example", 0),
    ("b.example", |h| h == "b.example", 0),
    ("x.a.example", |h| h == "x.a.example", 0),
    ("*.a.example", |h| h.ends_with(".a.example"), 1),
    ("*.example", |h| h.ends_with(".example"), 2),
    ("~^(a|b)\\.example$", |h| h == "a.example" || h == "b.example", 3),
    ("~^[^.]+\\.a\\.example$", |h| h.strip_suffix(".a.example").is_some_and(|l| !l.contains('.')), 3),
    ("~^(.+)\\.example$", |h| h.ends_with(".example"), 3),
];

#[derive(Clone)]
enum Matcher {
    Exact(&'static str),
    Prefix(&'static str, bool),
    Pattern(Pattern, bool),
}

#[derive(Clone)]
enum When {
    Method(&'static str, bool),
    Methods(&'static [&'static str], bool),
    Present,
    One(&'static str),
    /// `X-One` matches this pattern, or (`false`) does not. Without the header, NGINX compares an empty text.
    Matches(&'static Value, bool),
}

/// A pattern for values, and what it matches.
type Value = (&'static str, fn(&str) -> bool);

const VALUES: &[Value] = &[
    ("~ ^1", |v| v.starts_with('1')),
    ("~* 2|x", |v| v.contains('2') || v.contains('x')),
    ("~ \"^$|1\"", |v| v.is_empty() || v.contains('1')),
    ("~ ^(1|2)$", |v| v == "1" || v == "2"),
];

impl When {
    fn holds(&self, r: &Request) -> bool {
        match self {
            Self::Method(m, is) => (r.method == *m) == *is,
            Self::Methods(list, is) => list.contains(&r.method) == *is,
            Self::Present => r.one.is_some(),
            Self::One(v) => r.one == Some(v),
            Self::Matches((_, matches), is) => matches(r.one.unwrap_or("")) == *is,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Method(m, is) => format!("$request_method {} {m}", if *is { "=" } else { "!=" }),
            Self::Methods(list, is) => {
                format!("$request_method {} ^({})$", if *is { "~" } else { "!~" }, list.join("|"))
            }
            Self::Present => "$http_x_one".to_owned(),
            Self::One(v) => format!("$http_x_one = \"{v}\""),
            Self::Matches((text, _), is) => format!("$http_x_one {}{text}", if *is { "" } else { "!" }),
        }
    }
}

#[derive(Clone)]
enum Does {
    Return(Answer),
    If(When, Answer),
    /// A pattern, and what it redirects to.
    Redirect(Pattern, Answer),
    /// `rewrite … last`: a pattern, and the new path, which may have the rest of paths below `/b/`.
    Last(Pattern, &'static str),
    LimitExcept(&'static str),
    DenyAll,
    Internal,
    Pass(usize, Option<&'static str>),
    /// An address list, which nothing takes the place of.
    Allow,
}

#[derive(Clone)]
struct Location {
    matcher: Matcher,
    does: Vec<Does>,
    /// Another location in this one.
    inner: Vec<Location>,
}

struct Server {
    names: Vec<Name>,
    does: Vec<Does>,
    locations: Vec<Location>,
}

fn answer(random: &mut Random, number: &mut usize) -> Answer {
    *number += 1;
    match random.below(4) {
        0 => Answer::Redirect(302, format!("https://r.example/{number}")),
        1 => Answer::Status(200, format!("text{number}")),
        2 => Answer::Status(404, String::new()),
        _ => Answer::Status(403, String::new()),
    }
}

fn when(random: &mut Random) -> When {
    match random.below(7) {
        0 => When::Method("POST", random.one_in(2)),
        1 => When::Methods(&["GET", "HEAD"], random.one_in(2)),
        2 => When::Methods(&["POST", "PUT"], random.one_in(2)),
        3 => When::Present,
        4 | 5 => When::Matches(&VALUES[random.below(VALUES.len())], !random.one_in(3)),
        _ => When::One(random.pick(&["1", "2"])),
    }
}

fn does(random: &mut Random, number: &mut usize, of_location: bool) -> Vec<Does> {
    let mut out = Vec::new();
    for _ in 0..random.below(3) {
        if random.one_in(2) {
            out.push(Does::If(when(random), answer(random, number)));
        }
    }
    if random.one_in(8) {
        out.push(Does::Redirect(
            random.pick(&PATTERNS[..5]),
            Answer::Redirect(301, format!("https://p.example/{number}")),
        ));
    }
    if random.one_in(7) {
        let pattern = random.pick(&PATTERNS[..5]);
        let new = match pattern.0.contains("(.+)") && random.one_in(2) {
            true => random.pick(&["/a/$1", "/ab/$1", "/A/$1"]),
            false => random.pick(&["/a/b/x", "/ab/", "/A/x", "/x.php", "/b/x"]),
        };
        out.push(Does::Last(pattern, new));
    }
    if random.one_in(if of_location { 5 } else { 12 }) {
        out.push(Does::Return(answer(random, number)));
    }
    if of_location {
        if random.one_in(8) {
            out.push(Does::LimitExcept("GET"));
        }
        if random.one_in(12) {
            out.push(Does::Internal);
        }
        if random.one_in(10) {
            out.push(Does::DenyAll);
        }
        if random.one_in(40) {
            out.push(Does::Allow);
        }
        if !random.one_in(5) {
            let uri = if random.one_in(5) { Some("/new/") } else { None };
            out.push(Does::Pass(random.below(6), uri));
        }
    } else if random.one_in(20) {
        out.push(Does::DenyAll);
    }
    // The order of rewriting counts; that of others does not.
    for at in (1..out.len()).rev() {
        out.swap(at, random.below(at + 1));
    }
    out
}

fn location(random: &mut Random, number: &mut usize, whole: bool) -> Location {
    let prefixes = if whole { WHOLE } else { PREFIXES };
    let matcher = match random.below(6) {
        0 => Matcher::Exact(random.pick(PREFIXES)),
        1 => Matcher::Pattern(random.pick(PATTERNS), false),
        2 if random.one_in(3) => Matcher::Pattern(random.pick(&PATTERNS[..4]), true),
        3 => Matcher::Prefix(random.pick(prefixes), true),
        _ => Matcher::Prefix(random.pick(prefixes), false),
    };
    let does = does(random, number, true);
    let mut inner = Vec::new();
    if let Matcher::Prefix("/a/", _) = matcher
        && random.one_in(3)
    {
        inner.push(Location {
            matcher: match random.below(3) {
                0 => Matcher::Exact("/a/b"),
                1 => Matcher::Prefix("/a/b/", random.one_in(2)),
                _ => Matcher::Pattern(random.pick(PATTERNS), false),
            },
            does: self::does(random, number, true),
            inner: Vec::new(),
        });
        without_uri(&mut inner[0]);
    }
    let mut out = Location { matcher, does, inner };
    without_uri(&mut out);
    out
}

/// NGINX refuses a path in proxy_pass of a regular expression.
fn without_uri(l: &mut Location) {
    for d in &mut l.does {
        if let (Does::Pass(_, uri), Matcher::Pattern(..)) = (d, &l.matcher) {
            *uri = None;
        }
    }
}

fn same(a: &Matcher, b: &Matcher) -> bool {
    match (a, b) {
        (Matcher::Exact(a), Matcher::Exact(b)) | (Matcher::Prefix(a, _), Matcher::Prefix(b, _)) => a == b,
        _ => false,
    }
}

/// A configuration; `whole`: its prefixes end with slashes.
pub fn generate(random: &mut Random, whole: bool) -> Generated {
    let mut number = 0;
    let mut servers: Vec<Server> = Vec::new();
    for _ in 0..1 + random.below(3) {
        let mut locations: Vec<Location> = Vec::new();
        for _ in 0..1 + random.below(5) {
            let new = location(random, &mut number, whole);
            if !locations.iter().any(|l| same(&l.matcher, &new.matcher)) {
                locations.push(new);
            }
        }
        let mut names: Vec<Name> = Vec::new();
        for _ in 0..random.below(3) {
            let new = random.pick(NAMES);
            if !names.iter().any(|n| n.0 == new.0) {
                names.push(new);
            }
        }
        servers.push(Server { names, does: does(random, &mut number, false), locations });
    }
    let mut text = "http {\n".to_owned();
    for server in &servers {
        text.push_str("server {\nlisten LISTEN;\n");
        if !server.names.is_empty() {
            let names: Vec<&str> = server.names.iter().map(|n| n.0).collect();
            let _ = writeln!(text, "server_name {};", names.join(" "));
        }
        write(&server.does, &mut text);
        server.locations.iter().for_each(|l| write_location(l, &mut text));
        text.push_str("}\n");
    }
    text.push_str("}\n");
    let text = text.replace("LISTEN", "127.0.0.1:8080");
    Generated { text, model: Box::new(move |request| decide(&servers, request)) }
}

fn write_location(l: &Location, out: &mut String) {
    let _ = match &l.matcher {
        Matcher::Exact(p) => writeln!(out, "location = {p} {{"),
        Matcher::Prefix(p, true) => writeln!(out, "location ^~ {p} {{"),
        Matcher::Prefix(p, false) => writeln!(out, "location {p} {{"),
        Matcher::Pattern((p, _), any_case) => writeln!(out, "location {} {p} {{", if *any_case { "~*" } else { "~" }),
    };
    write(&l.does, out);
    l.inner.iter().for_each(|l| write_location(l, out));
    out.push_str("}\n");
}

fn returned(a: &Answer) -> String {
    match a {
        Answer::Redirect(status, to) => format!("return {status} {to};"),
        Answer::Status(status, body) if body.is_empty() => format!("return {status};"),
        Answer::Status(status, body) => format!("return {status} {body};"),
        Answer::Server(..) | Answer::File => String::new(),
    }
}

fn write(does: &[Does], out: &mut String) {
    for d in does {
        let _ = match d {
            Does::Return(a) => writeln!(out, "{}", returned(a)),
            Does::If(when, a) => writeln!(out, "if ({}) {{ {} }}", when.text(), returned(a)),
            Does::Redirect((p, _), Answer::Redirect(_, to)) => writeln!(out, "rewrite {p} {to}? permanent;"),
            Does::Redirect(..) => Ok(()),
            Does::Last((p, _), new) => writeln!(out, "rewrite {p} {new} last;"),
            Does::LimitExcept(m) => writeln!(out, "limit_except {m} {{ deny all; }}"),
            Does::DenyAll => writeln!(out, "deny all;"),
            Does::Internal => writeln!(out, "internal;"),
            Does::Pass(server, uri) => {
                writeln!(out, "proxy_pass http://10.0.0.{}{};", server + 1, uri.unwrap_or_default())
            }
            Does::Allow => writeln!(out, "allow 192.0.2.0/24;"),
        };
    }
}

fn decide(servers: &[Server], r: &Request) -> Answer {
    let mut best: Option<(usize, usize)> = None;
    for (at, server) in servers.iter().enumerate() {
        for (_, matches, class) in &server.names {
            if matches(r.host) && best.is_none_or(|(_, c)| *class < c) {
                best = Some((at, *class));
            }
        }
    }
    let server = &servers[best.map_or(0, |(at, _)| at)];
    let mut path = r.path.to_owned();
    let mut internal = false;
    match rewriting(&server.does, r, &path) {
        Next::Answer(a) => return a,
        Next::Path(new) => (path, internal) = (new, true),
        Next::Nothing => {}
    }
    // NGINX stops after ten new paths.
    for _ in 0..11 {
        match of_location(server, r, &path, internal) {
            Next::Answer(a) => return a,
            Next::Path(new) => (path, internal) = (new, true),
            Next::Nothing => break,
        }
    }
    Answer::Status(500, String::new())
}

/// What a location does with a path. `internal`: the path is that of a `rewrite`.
fn of_location(server: &Server, r: &Request, path: &str, internal: bool) -> Next {
    let status = |status| Next::Answer(Answer::Status(status, String::new()));
    let denied = |does: &[Does]| does.iter().any(|d| matches!(d, Does::DenyAll));
    let hidden = |l: &Location| !internal && l.does.iter().any(|d| matches!(d, Does::Internal));
    let l = match select(&server.locations, path) {
        Selected::None if denied(&server.does) => return status(403),
        Selected::None => return Next::Answer(Answer::File),
        Selected::Slash(l) if hidden(l) => return status(404),
        Selected::Slash(_) => {
            return Next::Answer(Answer::Redirect(301, format!("http://{}:8080{path}/", r.host)));
        }
        Selected::Location(path) => path,
    };
    let own = *l.last().expect("it is there");
    // Locations inherit it.
    if l.iter().any(|l| hidden(l)) {
        return status(404);
    }
    let excepted = own
        .does
        .iter()
        .any(|d| matches!(d, Does::LimitExcept(m) if r.method != *m && (*m != "GET" || r.method != "HEAD")));
    if excepted {
        return status(403);
    }
    match rewriting(&own.does, r, path) {
        Next::Nothing => {}
        next => return next,
    }
    // The innermost block with a list counts.
    let lists = |does: &[Does]| does.iter().any(|d| matches!(d, Does::DenyAll | Does::Allow));
    let block = l.iter().rev().map(|l| &l.does).chain([&server.does]).find(|does| lists(does));
    if block.is_some_and(|does| denied(does)) {
        return status(403);
    }
    for d in &own.does {
        if let Does::Pass(n, uri) = d {
            let path = match (uri, &own.matcher) {
                (Some(uri), Matcher::Exact(p) | Matcher::Prefix(p, _)) => format!("{uri}{}", &path[p.len()..]),
                _ => path.to_owned(),
            };
            return Next::Answer(Answer::Server(format!("10.0.0.{}:80", n + 1), path));
        }
    }
    Next::Answer(Answer::File)
}

/// What the directives of rewriting lead to.
enum Next {
    Nothing,
    Answer(Answer),
    /// A location is selected for this path.
    Path(String),
}

fn rewriting(does: &[Does], r: &Request, path: &str) -> Next {
    for d in does {
        match d {
            Does::Return(a) => return Next::Answer(a.clone()),
            Does::If(when, a) if when.holds(r) => return Next::Answer(a.clone()),
            Does::Redirect((_, matches), a) if matches(path) => return Next::Answer(a.clone()),
            Does::Last((_, matches), new) if matches(path) => {
                return Next::Path(new.replace("$1", path.strip_prefix("/b/").unwrap_or("")));
            }
            _ => {}
        }
    }
    Next::Nothing
}

enum Selected<'l> {
    None,
    /// Redirected to this location.
    Slash(&'l Location),
    /// The location, behind those around it.
    Location(Vec<&'l Location>),
}

fn passes(l: &Location) -> bool {
    l.does.iter().any(|d| matches!(d, Does::Pass(..)))
}

/// `ngx_http_core_find_location`.
fn select<'l>(locations: &'l [Location], path: &str) -> Selected<'l> {
    for l in locations {
        if matches!(l.matcher, Matcher::Exact(p) if p == path) {
            return Selected::Location(vec![l]);
        }
    }
    let mut longest: Option<(&Location, &str, bool)> = None;
    for l in locations {
        if let Matcher::Prefix(p, caret) = l.matcher
            && path.starts_with(p)
            && longest.is_none_or(|(_, other, _)| p.len() > other.len())
        {
            longest = Some((l, p, caret));
        }
    }
    let here = longest.is_some_and(|(_, p, _)| p == path);
    let slashed = |l: &&Location| match l.matcher {
        Matcher::Exact(p) | Matcher::Prefix(p, _) => p.strip_suffix('/') == Some(path),
        Matcher::Pattern(..) => false,
    };
    if !here && locations.iter().filter(slashed).any(passes) {
        let exact = locations.iter().filter(slashed).find(|l| matches!(l.matcher, Matcher::Exact(_)));
        return exact.or(locations.iter().find(slashed)).map_or(Selected::None, Selected::Slash);
    }
    let mut inner = Selected::None;
    if let Some((l, ..)) = longest {
        inner = select(&l.inner, path);
        match inner {
            Selected::Slash(_) if l.does.iter().any(|d| matches!(d, Does::Internal)) => return Selected::Slash(l),
            Selected::Slash(_) => return inner,
            // An exact one, or an expression, ends the search.
            Selected::Location(ref found) if matches!(found[0].matcher, Matcher::Exact(_) | Matcher::Pattern(..)) => {
                return Selected::Location([&[l][..], found].concat());
            }
            _ => {}
        }
    }
    if longest.is_none_or(|(.., caret)| !caret) {
        for l in locations {
            if let Matcher::Pattern((_, matches), any_case) = l.matcher {
                let is = if any_case { matches(&path.to_ascii_lowercase()) } else { matches(path) };
                if is {
                    return Selected::Location(vec![l]);
                }
            }
        }
    }
    match (longest, inner) {
        (None, _) => Selected::None,
        (Some((l, ..)), Selected::Location(path)) => Selected::Location([&[l][..], &path].concat()),
        (Some((l, ..)), _) => Selected::Location(vec![l]),
    }
}
