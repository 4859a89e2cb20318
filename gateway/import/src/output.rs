//! What is written: the tables of a `sealane.toml`, with the origin beside each setting.

use crate::addresses::Access;
use crate::report::{Place, Report};
use std::fmt::Write as _;

/// Quotes a string for TOML.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out + "\""
}

/// A list of strings in TOML.
pub(crate) fn list<S: AsRef<str>>(items: &[S]) -> String {
    let quoted: Vec<String> = items.iter().map(|i| quoted(i.as_ref())).collect();
    format!("[{}]", quoted.join(", "))
}

/// A string for TOML, without escapes where that is possible.
fn literal(text: &str) -> String {
    let plain = !text.contains('\'') && !text.chars().any(char::is_control);
    if plain { format!("'{text}'") } else { quoted(text) }
}

/// A key of TOML: bare where that is possible.
pub(crate) fn key(name: &str) -> String {
    let bare = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    if bare { name.to_owned() } else { quoted(name) }
}

/// The variables of a template of the access log, but for `http_NAME`. The test of the corpus has each of them checked.
pub(crate) const LOG_VARIABLES: &[&str] = &[
    "args",
    "body_bytes_sent",
    "connection",
    "connection_requests",
    "host",
    "is_args",
    "msec",
    "pid",
    "query_string",
    "remote_addr",
    "remote_port",
    "remote_user",
    "request",
    "request_id",
    "request_method",
    "request_time",
    "request_uri",
    "scheme",
    "server_port",
    "server_protocol",
    "ssl_protocol",
    "status",
    "time_iso8601",
    "time_local",
    "upstream_addr",
    "uri",
];

/// Settings of a table, in order: key, value in TOML, origin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings(Vec<(String, String, Option<Place>)>);

impl Settings {
    /// Sets a key; a value that is there is replaced.
    pub fn set(&mut self, key: &str, value: impl Into<String>, origin: &Place) {
        let entry = (key.to_owned(), value.into(), Some(origin.clone()));
        match self.0.iter_mut().find(|(k, ..)| k == key) {
            Some(there) => *there = entry,
            None => self.0.push(entry),
        }
    }

    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    pub fn value(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, ..)| k == key).map(|(_, v, _)| v.as_str())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keys and values, without their origins: what makes two tables the same.
    pub fn same(&self) -> Vec<(&str, &str)> {
        let mut all: Vec<_> = self.0.iter().map(|(k, v, _)| (k.as_str(), v.as_str())).collect();
        all.sort_unstable();
        all
    }

    fn write(&self, out: &mut String) {
        for (key, value, origin) in &self.0 {
            line(out, &format!("{key} = {value}"), origin.as_ref());
        }
    }
}

/// One line, with its origin as a comment.
pub(crate) fn line(out: &mut String, text: &str, origin: Option<&Place>) {
    out.push_str(text);
    if let Some(place) = origin {
        out.push_str("  # ");
        out.extend(place.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }));
    }
    out.push('\n');
}

fn comment(out: &mut String, place: &Place, what: &str) {
    line(out, &format!("\n# {what}"), None);
    out.pop();
    out.push_str(": ");
    out.extend(place.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }));
    out.push('\n');
}

/// Changes to headers, each with its origin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edits {
    pub remove: Vec<(String, Place)>,
    pub set: Vec<(String, String, Place)>,
    pub add: Vec<(String, String, Place)>,
}

impl Edits {
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }

    pub fn remove(&mut self, name: &str, place: &Place) {
        self.set.retain(|(n, ..)| !n.eq_ignore_ascii_case(name));
        self.add.retain(|(n, ..)| !n.eq_ignore_ascii_case(name));
        if !self.remove.iter().any(|(n, _)| n.eq_ignore_ascii_case(name)) {
            self.remove.push((name.to_owned(), place.clone()));
        }
    }

    pub fn set(&mut self, name: &str, value: &str, place: &Place) {
        self.remove.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self.set.retain(|(n, ..)| !n.eq_ignore_ascii_case(name));
        self.set.push((name.to_owned(), value.to_owned(), place.clone()));
    }

    /// Makes further changes after these.
    pub fn then(&mut self, later: Self) {
        later.remove.iter().for_each(|(name, place)| self.remove(name, place));
        later.set.iter().for_each(|(name, value, place)| self.set(name, value, place));
        later.add.iter().for_each(|(name, value, place)| {
            self.add(name, value, place);
        });
    }

    /// Whether there was room: a name can be added once.
    pub fn add(&mut self, name: &str, value: &str, place: &Place) -> bool {
        if self.add.iter().any(|(n, ..)| n.eq_ignore_ascii_case(name)) {
            return false;
        }
        self.add.push((name.to_owned(), value.to_owned(), place.clone()));
        true
    }

    fn same(&self) -> String {
        let remove: Vec<_> = self.remove.iter().map(|r| &r.0).collect();
        let pairs =
            |list: &[(String, String, Place)]| format!("{:?}", list.iter().map(|e| (&e.0, &e.1)).collect::<Vec<_>>());
        format!("{remove:?} {} {}", pairs(&self.set), pairs(&self.add))
    }

    fn write(&self, out: &mut String, table: &str) {
        if let Some((_, place)) = self.remove.first() {
            let names: Vec<_> = self.remove.iter().map(|r| &r.0).collect();
            line(out, &format!("{table}.remove = {}", list(&names)), Some(place));
        }
        for (what, entries) in [("set", &self.set), ("add", &self.add)] {
            for (name, value, place) in entries {
                line(out, &format!("{table}.{what}.{} = {}", key(name), quoted(value)), Some(place));
            }
        }
    }
}

/// What is done with requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Upstream(String),
    Passthrough(String),
    Respond { status: u16, body: String, content_type: Option<String> },
    Redirect { to: String, status: u16 },
}

impl Action {
    pub fn status(status: u16) -> Self {
        Self::Respond { status, body: String::new(), content_type: None }
    }

    /// The answer where there is nothing to translate to.
    pub fn untranslated() -> Self {
        Self::Respond {
            status: 501,
            body: "This part of the site has not been translated.\n".to_owned(),
            content_type: None,
        }
    }

    /// It lets nobody through, as the original does.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Respond { status: 400.., .. }) && *self != Self::untranslated()
    }

    fn write(&self, out: &mut String, place: &Place) {
        let text = match self {
            Self::Upstream(name) => format!("upstream = {}", quoted(name)),
            Self::Passthrough(name) => format!("passthrough = {}", quoted(name)),
            Self::Redirect { to, status } => format!("redirect = {{ to = {}, status = {status} }}", quoted(to)),
            Self::Respond { status, body, content_type } => {
                let mut text = format!("respond = {{ status = {status}");
                if !body.is_empty() {
                    let _ = write!(text, ", body = {}", quoted(body));
                }
                if let Some(kind) = content_type {
                    let _ = write!(text, ", content_type = {}", quoted(kind));
                }
                text + " }"
            }
        };
        line(out, &text, Some(place));
    }
}

/// Which paths a route is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Path {
    /// All below, compared by whole segments.
    Below(String),
    Exact(String),
}

/// A route, or (with the path `/` and no other condition) what a host does itself.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub path: Path,
    /// `path_regex`.
    pub pattern: Option<String>,
    pub methods: Vec<String>,
    /// Names and conditions in TOML.
    pub headers: Vec<(String, String)>,
    pub action: Action,
    /// `rewrite_prefix`.
    pub rewrite: Option<(String, Place)>,
    /// `rewrite`: a path with groups of the expression.
    pub template: Option<(String, Place)>,
    /// `error_page`s.
    pub pages: Vec<ErrorPage>,
    pub request: Edits,
    pub response: Edits,
    pub hsts: Option<(String, Place)>,
    pub rate_limits: Vec<(String, Place)>,
    /// Which clients are let in.
    pub access: Access,
    /// The server that is asked whether a request may pass.
    pub forward_auth: Option<ForwardAuth>,
    /// The users that are let in.
    pub basic_auth: Option<BasicAuth>,
    pub origin: Place,
}

/// `basic_auth`.
#[derive(Clone, Debug)]
pub(crate) struct BasicAuth {
    pub users: String,
    pub realm: String,
    pub origin: Place,
}

impl BasicAuth {
    /// Both originals pass the password on to the server.
    fn to_toml(&self) -> String {
        let realm = quoted(&self.realm);
        format!("{{ users = {}, realm = {realm}, keep_authorization = true }}", quoted(&self.users))
    }
}

/// `[[host.error_page]]`.
#[derive(Clone, Debug)]
pub(crate) struct ErrorPage {
    pub statuses: Vec<u16>,
    pub file: String,
    pub content_type: Option<String>,
    /// Also in the place of servers' responses.
    pub upstream: bool,
    pub origin: Place,
}

impl ErrorPage {
    /// What makes two the same.
    fn same(&self) -> String {
        format!("{:?} {} {:?} {}", self.statuses, self.file, self.content_type, self.upstream)
    }

    fn write(&self, out: &mut String, table: &str) {
        let _ = writeln!(out, "\n[[{table}.error_page]]");
        let statuses: Vec<String> = self.statuses.iter().map(u16::to_string).collect();
        line(out, &format!("statuses = [{}]", statuses.join(", ")), Some(&self.origin));
        line(out, &format!("file = {}", quoted(&self.file)), None);
        if let Some(kind) = &self.content_type {
            line(out, &format!("content_type = {}", quoted(kind)), None);
        }
        if self.upstream {
            line(out, "upstream = true", None);
        }
    }
}

/// `forward_auth`.
#[derive(Clone, Debug)]
pub(crate) struct ForwardAuth {
    pub upstream: String,
    pub path: String,
    pub copy_headers: Vec<String>,
    pub timeout: Option<String>,
    pub origin: Place,
}

impl ForwardAuth {
    fn to_toml(&self) -> String {
        let mut out = format!("{{ upstream = {}, path = {}", quoted(&self.upstream), quoted(&self.path));
        if !self.copy_headers.is_empty() {
            let _ = write!(out, ", copy_headers = {}", list(&self.copy_headers));
        }
        if let Some(timeout) = &self.timeout {
            let _ = write!(out, ", timeout = {}", quoted(timeout));
        }
        out + " }"
    }
}

impl Route {
    pub fn new(path: Path, action: Action, origin: &Place) -> Self {
        Self {
            path,
            pattern: None,
            methods: Vec::new(),
            headers: Vec::new(),
            action,
            rewrite: None,
            template: None,
            pages: Vec::new(),
            request: Edits::default(),
            response: Edits::default(),
            hsts: None,
            rate_limits: Vec::new(),
            access: Access::default(),
            forward_auth: None,
            basic_auth: None,
            origin: origin.clone(),
        }
    }

    fn is_everything(&self) -> bool {
        self.path == Path::Below("/".to_owned())
            && self.pattern.is_none()
            && self.methods.is_empty()
            && self.headers.is_empty()
    }

    /// The same requests.
    pub fn conditions(&self) -> String {
        let mut methods = self.methods.clone();
        methods.sort();
        let mut headers = self.headers.clone();
        headers.sort();
        let path = match &self.path {
            Path::Below(p) => format!("below {}", p.trim_end_matches('/')),
            Path::Exact(p) => format!("exact {p}"),
        };
        format!("{path} {:?} {methods:?} {headers:?}", self.pattern)
    }

    /// Whether Sealane prefers this one to another of the same path.
    fn precedes(&self, other: &Self) -> bool {
        let rank = |r: &Self| (r.pattern.is_some(), !r.methods.is_empty(), r.headers.len());
        rank(self) > rank(other)
    }

    /// What is done with requests, without conditions and origins.
    pub fn does(&self) -> String {
        let rewrite = (self.rewrite.as_ref().map(|w| &w.0), self.template.as_ref().map(|w| &w.0));
        let hsts = self.hsts.as_ref().map(|h| &h.0);
        let (changes, checks) = (self.changes(), self.checks());
        format!("{:?} {rewrite:?} {:?} {hsts:?} {changes} {checks} {:?}", self.action, self.limits(), self.pages())
    }

    /// What checks clients.
    pub fn checks(&self) -> String {
        let (forward, basic) = (&self.forward_auth, &self.basic_auth);
        let basic = basic.as_ref().map(BasicAuth::to_toml);
        format!("{} {:?} {basic:?}", self.access.says(), forward.as_ref().map(ForwardAuth::to_toml))
    }

    /// Its error pages, without their origins.
    pub fn pages(&self) -> Vec<String> {
        self.pages.iter().map(ErrorPage::same).collect()
    }

    /// This one, for the requests that match another one, too.
    fn and(&self, other: &Self) -> Both {
        let mut both = self.clone();
        both.methods = match (self.methods.is_empty(), other.methods.is_empty()) {
            (true, _) => other.methods.clone(),
            (_, true) => self.methods.clone(),
            _ => self.methods.iter().filter(|m| other.methods.contains(m)).cloned().collect(),
        };
        if both.methods.is_empty() && !(self.methods.is_empty() && other.methods.is_empty()) {
            return Both::Never;
        }
        // No expression is for what two match.
        let mut twice = matches!((&self.pattern, &other.pattern), (Some(a), Some(b)) if a != b);
        both.pattern = self.pattern.clone().or(other.pattern.clone());
        for (name, rule) in &other.headers {
            match both.headers.iter_mut().find(|(n, _)| n.eq_ignore_ascii_case(name)) {
                None => both.headers.push((name.clone(), rule.clone())),
                Some((_, there)) => match both_rules(there, rule) {
                    OneHeader::Never => return Both::Never,
                    OneHeader::Twice => twice = true,
                    OneHeader::Rule(rule) => *there = rule,
                },
            }
        }
        if twice { Both::Twice } else { Both::Route(Box::new(both)) }
    }

    /// The changes to headers, without their origins.
    pub fn changes(&self) -> String {
        format!("{} {}", self.request.same(), self.response.same())
    }

    fn limits(&self) -> Vec<&str> {
        self.rate_limits.iter().map(|l| l.0.as_str()).collect()
    }

    fn has_extras(&self) -> bool {
        !(self.request.is_empty()
            && self.response.is_empty()
            && self.hsts.is_none()
            && self.rate_limits.is_empty()
            && self.access.is_open()
            && self.forward_auth.is_none()
            && self.basic_auth.is_none())
    }

    fn write_extras(&self, out: &mut String) {
        self.access.write(out);
        if let Some(auth) = &self.forward_auth {
            line(out, &format!("forward_auth = {}", auth.to_toml()), Some(&auth.origin));
        }
        if let Some(auth) = &self.basic_auth {
            line(out, &format!("basic_auth = {}", auth.to_toml()), Some(&auth.origin));
        }
        self.request.write(out, "request_headers");
        self.response.write(out, "response_headers");
        if let Some((value, place)) = &self.hsts {
            line(out, &format!("hsts = {}", quoted(value)), Some(place));
        }
        if let Some((_, place)) = self.rate_limits.first() {
            line(out, &format!("rate_limit = {}", list(&self.limits())), Some(place));
        }
    }
}

/// Which methods an entry is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Methods {
    Any,
    Of(Vec<String>),
    Not(Vec<String>),
}

/// A route of one path, with the methods for which it is meant; its own are not looked at.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub methods: Methods,
    pub route: Route,
}

/// Most routes of one path.
const MAX_ROUTES: usize = 64;

/// The routes for entries of one path of which the first that matches counts, the last one without conditions. `None`: no routes
/// say this.
///
/// Sealane prefers a route with an expression, then one with methods, and then the one with more conditions on headers. Where that is a later one, a route with
/// the conditions of both comes before, and does what the earlier one does. This is repeated until it adds nothing: then, of all
/// routes that match a request, the preferred one belongs to the first entry that matches.
pub(crate) fn in_order(entries: Vec<Entry>) -> Option<Vec<Route>> {
    // Each with the position of its entry.
    let mut routes: Vec<(usize, Route)> = Vec::new();
    let mut put = |at: usize, route: Route| -> bool {
        let same = route.conditions();
        match routes.iter_mut().find(|(_, r)| r.conditions() == same) {
            Some((there, _)) if *there <= at => false,
            Some(there) => {
                *there = (at, route);
                true
            }
            None => {
                routes.push((at, route));
                true
            }
        }
    };
    // Of requests with other methods an entry behind `Not` has decided.
    let mut left: Option<Vec<String>> = None;
    let mut others = None;
    let last = entries.len();
    for (at, Entry { methods, mut route }) in entries.into_iter().enumerate() {
        let among = |list: &[String], is: bool, of: &[String]| -> Vec<String> {
            of.iter().filter(|m| list.contains(m) == is).cloned().collect()
        };
        let some = methods != Methods::Any || left.is_some();
        route.methods = match (methods, &left) {
            (Methods::Any, None) => Vec::new(),
            (Methods::Any, Some(left)) => left.clone(),
            (Methods::Of(list), None) => list,
            (Methods::Of(list), Some(left)) => among(&list, true, left),
            (Methods::Not(list), Some(left)) => among(&list, false, left),
            (Methods::Not(list), None) => {
                if !route.headers.is_empty() || route.pattern.is_some() {
                    return None;
                }
                route.methods.clear();
                others = Some(route);
                left = Some(list);
                continue;
            }
        };
        // One that is for no method is no route.
        if !(some && route.methods.is_empty()) {
            put(at, route);
        }
    }
    if let Some(route) = others {
        put(last, route);
    }
    loop {
        routes.sort_by_key(|(at, _)| *at);
        let mut more = Vec::new();
        for (i, (early, earlier)) in routes.iter().enumerate() {
            for (late, later) in &routes[i + 1..] {
                if late == early || !later.precedes(earlier) {
                    continue;
                }
                match earlier.and(later) {
                    Both::Never => {}
                    // A header that comes twice can have both values.
                    Both::Twice if earlier.does() != later.does() => return None,
                    Both::Twice => {}
                    Both::Route(both) => more.push((*early, *both)),
                }
            }
        }
        let mut changed = false;
        for (at, route) in more {
            let same = route.conditions();
            match routes.iter_mut().find(|(_, r)| r.conditions() == same) {
                Some((there, _)) if *there <= at => {}
                Some(there) => {
                    *there = (at, route);
                    changed = true;
                }
                None => {
                    routes.push((at, route));
                    changed = true;
                }
            }
        }
        if routes.len() > MAX_ROUTES {
            return None;
        }
        if !changed {
            return Some(routes.into_iter().map(|(_, r)| r).collect());
        }
    }
}

/// What two routes of one path have in common.
enum Both {
    Never,
    /// Only a request in which a header comes twice matches both, or one that two expressions match.
    Twice,
    Route(Box<Route>),
}

/// The condition of two on one header.
fn both_rules(a: &str, b: &str) -> OneHeader {
    let text = |rule: &str| rule.strip_prefix('"').and_then(|r| r.strip_suffix('"')).map(str::to_owned);
    match (a, b) {
        _ if a == b => OneHeader::Rule(a.to_owned()),
        ("false", _) | (_, "false") => OneHeader::Never,
        ("true", other) | (other, "true") => OneHeader::Rule(other.to_owned()),
        _ => {
            let (Some(x), Some(y)) = (text(a), text(b)) else { return OneHeader::Twice };
            match (x.strip_suffix('*'), y.strip_suffix('*')) {
                (Some(p), Some(q)) if q.starts_with(p) => OneHeader::Rule(b.to_owned()),
                (Some(p), Some(q)) if p.starts_with(q) => OneHeader::Rule(a.to_owned()),
                (Some(p), None) if y.starts_with(p) => OneHeader::Rule(b.to_owned()),
                (None, Some(q)) if x.starts_with(q) => OneHeader::Rule(a.to_owned()),
                _ => OneHeader::Twice,
            }
        }
    }
}

/// What two conditions on one header have in common.
enum OneHeader {
    Never,
    Twice,
    Rule(String),
}

/// A `[[host]]`.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub names: Vec<String>,
    pub listeners: Vec<String>,
    pub routes: Vec<Route>,
    pub origin: Place,
}

impl Host {
    fn write(&self, out: &mut String) {
        comment(out, &self.origin, "Requests");
        out.push_str("[[host]]\n");
        line(out, &format!("names = {}", list(&self.names)), None);
        line(out, &format!("listeners = {}", list(&self.listeners)), None);
        // What all routes have in common is the host's. What some of them lack is each route's own, since a route has the host's, too.
        let mut routes = self.routes.clone();
        let common = common(&mut routes);
        let own = routes
            .iter()
            .position(|r| r.is_everything() && r.rewrite.is_none() && !r.has_extras() && r.pages.is_empty())
            .map(|i| routes.remove(i));
        if let Some(own) = own {
            own.action.write(out, &own.origin);
        }
        if let Some(common) = common {
            common.write_extras(out);
            common.pages.iter().for_each(|page| page.write(out, "host"));
        }
        for route in &routes {
            out.push_str("\n[[host.route]]\n");
            match &route.path {
                Path::Below(p) if p == "/" && route.pattern.is_some() => {}
                Path::Below(p) => line(out, &format!("path = {}", quoted(p)), Some(&route.origin)),
                Path::Exact(p) => line(out, &format!("exact = {}", quoted(p)), Some(&route.origin)),
            }
            if let Some(pattern) = &route.pattern {
                line(out, &format!("path_regex = {}", literal(pattern)), Some(&route.origin));
            }
            if !route.methods.is_empty() {
                line(out, &format!("methods = {}", list(&route.methods)), None);
            }
            for (name, condition) in &route.headers {
                line(out, &format!("headers.{} = {condition}", key(name)), None);
            }
            route.action.write(out, &route.origin);
            if let Some((to, place)) = &route.rewrite {
                line(out, &format!("rewrite_prefix = {}", quoted(to)), Some(place));
            }
            if let Some((to, place)) = &route.template {
                line(out, &format!("rewrite = {}", quoted(to)), Some(place));
            }
            route.write_extras(out);
            route.pages.iter().for_each(|page| page.write(out, "host.route"));
        }
    }
}

/// Takes out of routes what all of them have in common. Requests are changed for servers only, so routes that answer by themselves have
/// no say in that.
fn common(routes: &mut [Route]) -> Option<Route> {
    let mut out = routes.first()?.clone();
    out.request = Edits::default();
    let passes = |r: &Route| matches!(r.action, Action::Upstream(_));
    if let Some(first) = routes.iter().find(|r| passes(r)).map(|r| r.request.clone())
        && routes.iter().filter(|r| passes(r)).all(|r| r.request.same() == first.same())
    {
        out.request = first;
        routes.iter_mut().for_each(|r| r.request = Edits::default());
    }
    match routes.iter().all(|r| r.response.same() == out.response.same()) {
        true => routes.iter_mut().for_each(|r| r.response = Edits::default()),
        false => out.response = Edits::default(),
    }
    let value = |r: &Route| r.hsts.as_ref().map(|h| h.0.clone());
    match routes.iter().all(|r| value(r) == value(&out)) {
        true => routes.iter_mut().for_each(|r| r.hsts = None),
        false => out.hsts = None,
    }
    match routes.iter().all(|r| r.limits() == out.limits()) {
        true => routes.iter_mut().for_each(|r| r.rate_limits.clear()),
        false => out.rate_limits.clear(),
    }
    match routes.iter().all(|r| r.checks() == out.checks()) {
        true => routes.iter_mut().for_each(|r| {
            (r.access, r.forward_auth, r.basic_auth) = (Access::default(), None, None);
        }),
        false => (out.access, out.forward_auth, out.basic_auth) = (Access::default(), None, None),
    }
    out.pages = routes.iter().find(|r| passes(r)).map(|r| r.pages.clone()).unwrap_or_default();
    match routes.iter().filter(|r| passes(r)).all(|r| r.pages() == out.pages()) {
        true => routes.iter_mut().for_each(|r| r.pages.clear()),
        false => out.pages.clear(),
    }
    Some(out)
}

/// A `[[listener]]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listener {
    pub addresses: Vec<String>,
    pub settings: Settings,
    pub tls: Option<ListenerTls>,
    /// Which clients are let in.
    pub access: Access,
    pub origin: Option<Place>,
}

/// `[listener.tls]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListenerTls {
    pub settings: Settings,
    /// Certificate and key.
    pub certificates: Vec<(String, Option<String>, Place)>,
    pub client_auth: Vec<Settings>,
}

impl Listener {
    fn write(&self, out: &mut String) {
        out.push_str("\n[[listener]]\n");
        line(out, &format!("address = {}", list(&self.addresses)), self.origin.as_ref());
        self.settings.write(out);
        self.access.write(out);
        let Some(tls) = &self.tls else { return };
        out.push_str("\n[listener.tls]\n");
        tls.settings.write(out);
        for (cert, key, place) in &tls.certificates {
            out.push_str("\n[[listener.tls.certificates]]\n");
            line(out, &format!("cert = {}", quoted(cert)), Some(place));
            if let Some(key) = key {
                line(out, &format!("key = {}", quoted(key)), Some(place));
            }
        }
        for auth in &tls.client_auth {
            out.push_str("\n[[listener.tls.client_auth]]\n");
            auth.write(out);
        }
    }
}

/// An `[[upstream]]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Upstream {
    pub name: String,
    /// Each in TOML: a string or an inline table.
    pub servers: Vec<(String, Place)>,
    pub settings: Settings,
    pub tls: Settings,
    pub health: Option<Settings>,
    pub origin: Option<Place>,
}

impl Upstream {
    /// Whether two groups differ in nothing but their names.
    pub fn is_like(&self, other: &Self) -> bool {
        let servers = |u: &Self| u.servers.iter().map(|s| s.0.clone()).collect::<Vec<_>>();
        servers(self) == servers(other)
            && self.settings.same() == other.settings.same()
            && self.tls.same() == other.tls.same()
            && self.health.as_ref().map(Settings::same) == other.health.as_ref().map(Settings::same)
    }

    fn write(&self, out: &mut String) {
        out.push_str("\n[[upstream]]\n");
        line(out, &format!("name = {}", quoted(&self.name)), self.origin.as_ref());
        out.push_str("servers = [\n");
        for (server, place) in &self.servers {
            line(out, &format!("    {server},"), Some(place));
        }
        out.push_str("]\n");
        self.settings.write(out);
        if let Some(health) = &self.health {
            out.push_str("\n[upstream.health]\n");
            health.write(out);
        }
        if !self.tls.is_empty() {
            out.push_str("\n[upstream.tls]\n");
            self.tls.write(out);
        }
    }
}

/// The whole configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Output {
    /// The first line's comment.
    pub title: String,
    pub top: Settings,
    pub admin: Settings,
    pub log: Settings,
    pub limits: Settings,
    pub listeners: Vec<Listener>,
    pub hosts: Vec<Host>,
    pub rate_limits: Vec<Settings>,
    pub upstreams: Vec<Upstream>,
}

impl Output {
    pub fn to_toml(&self, report: &Report) -> String {
        let mut out = String::new();
        line(&mut out, &format!("# {}", self.title.replace(char::is_control, " ")), None);
        out.push_str("# What differs from the original: the import's report, and docs/reference/import.md.\n");
        self.top.write(&mut out);
        let undecided = report.undecided();
        if !undecided.is_empty() {
            out.push_str(
                "# Decide what takes the place of each entry, and take the entry out. Nothing is served before.\n",
            );
            out.push_str("undecided = [\n");
            for entry in undecided {
                line(&mut out, &format!("    {},", quoted(&entry)), None);
            }
            out.push_str("]\n");
        }
        for (name, settings) in [("admin", &self.admin), ("log", &self.log), ("limits", &self.limits)] {
            if !settings.is_empty() {
                let _ = writeln!(out, "\n[{name}]");
                settings.write(&mut out);
            }
        }
        self.listeners.iter().for_each(|l| l.write(&mut out));
        self.hosts.iter().for_each(|h| h.write(&mut out));
        for limit in &self.rate_limits {
            out.push_str("\n[[rate_limit]]\n");
            limit.write(&mut out);
        }
        self.upstreams.iter().for_each(|u| u.write(&mut out));
        out
    }

    /// Takes an upstream in; returns the name by which hosts refer to it. One that differs from another of its name gets a number.
    pub fn upstream(&mut self, mut new: Upstream) -> String {
        let wanted = new.name.clone();
        for n in 1.. {
            if n > 1 {
                new.name = format!("{wanted}-{n}");
            }
            match self.upstreams.iter().find(|u| u.name == new.name) {
                Some(there) if there.is_like(&new) => break,
                Some(_) => {}
                None => {
                    self.upstreams.push(new.clone());
                    break;
                }
            }
        }
        new.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(methods: Methods, headers: &[(&str, &str)], status: u16) -> Entry {
        let mut route = Route::new(Path::Below("/".into()), Action::status(status), &Place::new("x", 1));
        route.headers = headers.iter().map(|(n, r)| ((*n).to_owned(), (*r).to_owned())).collect();
        Entry { methods, route }
    }

    /// What Sealane does with a request that has some headers, each with one value.
    fn decide(routes: &[Route], method: &str, headers: &[(&str, &str)]) -> Option<u16> {
        let holds = |(name, rule): &(String, String)| {
            let value = headers.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
            match rule.as_str() {
                "true" => value.is_some(),
                "false" => value.is_none(),
                rule => {
                    let rule = rule.trim_matches('"');
                    match rule.strip_suffix('*') {
                        Some(begin) => value.is_some_and(|v| v.starts_with(begin)),
                        None => value == Some(rule),
                    }
                }
            }
        };
        let mut found: Option<&Route> = None;
        for r in routes {
            let is = (r.methods.is_empty() || r.methods.iter().any(|m| m == method)) && r.headers.iter().all(holds);
            if is && found.is_none_or(|f| r.precedes(f)) {
                found = Some(r);
            }
        }
        found.map(|r| match r.action {
            Action::Respond { status, .. } => status,
            _ => 0,
        })
    }

    fn of(methods: &[&str]) -> Methods {
        Methods::Of(methods.iter().map(|m| (*m).to_owned()).collect())
    }

    fn not(methods: &[&str]) -> Methods {
        Methods::Not(methods.iter().map(|m| (*m).to_owned()).collect())
    }

    /// All lists of four entries of a few kinds: the first entry that matches decides.
    #[test]
    fn the_first_entry_that_matches_decides() {
        let kinds: Vec<(Methods, Vec<(&str, &str)>)> = vec![
            (of(&["POST"]), vec![]),
            (not(&["GET", "POST"]), vec![]),
            (of(&["GET", "PUT"]), vec![("a", "true")]),
            (Methods::Any, vec![("a", "true")]),
            (Methods::Any, vec![("a", "\"1\"")]),
            (Methods::Any, vec![("a", "\"1*\""), ("b", "false")]),
            (Methods::Any, vec![("b", "true")]),
            (of(&["PUT"]), vec![("b", "true"), ("a", "false")]),
        ];
        let mut said = 0;
        for n in 0..kinds.len().pow(4) {
            let picked: Vec<usize> = (0..4).map(|i| n / kinds.len().pow(i) % kinds.len()).collect();
            let mut entries: Vec<Entry> = picked
                .iter()
                .enumerate()
                .map(|(at, k)| entry(kinds[*k].0.clone(), &kinds[*k].1, 400 + at as u16))
                .collect();
            entries.push(entry(Methods::Any, &[], 200));
            let Some(routes) = in_order(entries.clone()) else { continue };
            said += 1;
            for method in ["GET", "POST", "PUT", "DELETE"] {
                for a in [None, Some("1"), Some("12"), Some("x")] {
                    for b in [None, Some("1")] {
                        let headers: Vec<(&str, &str)> =
                            [a.map(|v| ("a", v)), b.map(|v| ("b", v))].into_iter().flatten().collect();
                        let first = entries.iter().find(|e| {
                            let mut one = e.route.clone();
                            let is = match &e.methods {
                                Methods::Any => true,
                                Methods::Of(list) => list.iter().any(|m| m == method),
                                Methods::Not(list) => !list.iter().any(|m| m == method),
                            };
                            one.methods.clear();
                            is && decide(&[one], method, &headers).is_some()
                        });
                        let wanted = first.and_then(|e| match e.route.action {
                            Action::Respond { status, .. } => Some(status),
                            _ => None,
                        });
                        assert_eq!(decide(&routes, method, &headers), wanted, "{picked:?} {method} {headers:?}");
                    }
                }
            }
        }
        assert!(said > 1000, "{said}");
    }

    #[test]
    fn what_a_repeated_header_would_undo_is_no_route() {
        let deny = entry(Methods::Any, &[("a", "\"1\"")], 403);
        let pass = entry(of(&["POST"]), &[("a", "\"2\"")], 200);
        let rest = entry(Methods::Any, &[], 200);
        assert!(in_order(vec![deny, pass, rest]).is_none());
    }
}
