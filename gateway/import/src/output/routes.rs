//! `[[host.route]]`: which requests a route is for, and what is done with them.

use super::snippets::Snippets;
use super::{Edits, key, line, list, quoted};
use crate::addresses::Access;
use crate::paths::Within;
use crate::report::Place;
use std::fmt::Write as _;

/// What is done with requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Upstream(String),
    /// Some of several upstreams.
    Split(Split),
    Passthrough(String),
    Respond {
        status: u16,
        body: String,
        /// The file with the body, in its place.
        file: Option<String>,
        content_type: Option<String>,
        /// Further headers. [`Route::settled`] makes `response_headers` of them.
        headers: Vec<(String, String)>,
    },
    Redirect {
        to: String,
        status: u16,
    },
}

/// `split`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Upstreams with their weights.
    pub groups: Vec<(String, u32)>,
    pub hash_by: Option<String>,
}

impl Split {
    fn to_toml(&self) -> String {
        let group = |(name, weight): &(String, u32)| format!("{{ upstream = {}, weight = {weight} }}", quoted(name));
        let groups: Vec<String> = self.groups.iter().map(group).collect();
        let by = self.hash_by.as_ref().map_or_else(String::new, |by| format!(", hash_by = {}", quoted(by)));
        format!("{{ groups = [{}]{by} }}", groups.join(", "))
    }
}

/// `mirror`.
#[derive(Clone, Debug)]
pub(crate) struct Mirror {
    pub upstream: String,
    /// The largest body, in TOML.
    pub max_body: String,
    pub origin: Place,
}

impl Mirror {
    fn to_toml(&self) -> String {
        format!("{{ upstream = {}, max_body = {} }}", quoted(&self.upstream), self.max_body)
    }
}

impl Action {
    /// Whether requests go to a server.
    pub fn passes(&self) -> bool {
        matches!(self, Self::Upstream(_) | Self::Split(_))
    }

    pub fn status(status: u16) -> Self {
        Self::respond(status, String::new(), None)
    }

    /// A response with a body.
    pub fn respond(status: u16, body: String, content_type: Option<String>) -> Self {
        Self::Respond { status, body, file: None, content_type, headers: Vec::new() }
    }

    /// The answer where there is nothing to translate to.
    pub fn untranslated() -> Self {
        Self::respond(501, "This part of the site has not been translated.\n".to_owned(), None)
    }

    /// It lets nobody through, as the original does.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Respond { status: 400.., .. }) && *self != Self::untranslated()
    }

    pub(super) fn write(&self, out: &mut String, place: &Place) {
        let text = match self {
            Self::Upstream(name) => format!("upstream = {}", quoted(name)),
            Self::Split(split) => format!("split = {}", split.to_toml()),
            Self::Passthrough(name) => format!("passthrough = {}", quoted(name)),
            Self::Redirect { to, status } => format!("redirect = {{ to = {}, status = {status} }}", quoted(to)),
            Self::Respond { status, body, file, content_type, .. } => {
                let mut text = format!("respond = {{ status = {status}");
                match file {
                    Some(file) => {
                        let _ = write!(text, ", file = {}", quoted(file));
                    }
                    None if !body.is_empty() => {
                        let _ = write!(text, ", body = {}", quoted(body));
                    }
                    None => {}
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// All below, compared by whole segments.
    Below(String),
    Exact(String),
    /// Some of those below, by an expression. [`Route::settled`] makes `path` and `path_regex` of it.
    Within(Within),
}

/// A route, or (with the path `/` and no other condition) what a host does itself.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub path: Path,
    /// `path_regex`.
    pub pattern: Option<String>,
    pub methods: Vec<String>,
    /// Names and conditions in TOML. Those of cookies begin with [`COOKIE`](crate::values::COOKIE).
    pub headers: Vec<(String, String)>,
    pub action: Action,
    /// `rewrite_prefix`.
    pub rewrite: Option<(String, Place)>,
    /// `rewrite`: a path with groups of the expression.
    pub template: Option<(String, Place)>,
    /// `error_page`s.
    pub pages: Vec<ErrorPage>,
    /// Another upstream that gets copies of requests.
    pub mirror: Option<Mirror>,
    /// What is changed in the responses of servers.
    pub rewrites: Vec<Rewrites>,
    /// Whether servers get `Upgrade`, and the line that says so. `None`: they do, and no line says so.
    pub upgrade: Option<(bool, Place)>,
    pub request: Edits,
    pub response: Edits,
    pub hsts: Option<(String, Place)>,
    pub rate_limits: Vec<(String, Place)>,
    pub concurrency_limits: Vec<(String, Place)>,
    /// `max_body_size` in TOML.
    pub max_body: Option<(String, Place)>,
    /// `compression` in TOML.
    pub compression: Option<(String, Place)>,
    /// `cors` in TOML.
    pub cors: Option<(String, Place)>,
    /// Which clients are let in.
    pub access: Access,
    /// The server that is asked whether a request may pass.
    pub forward_auth: Option<ForwardAuth>,
    /// The users that are let in.
    pub basic_auth: Option<BasicAuth>,
    /// `satisfy = "any"`: what says so.
    pub satisfy_any: Option<Place>,
    pub origin: Place,
}

/// `rewrite_location` and the like: the setting, its value in TOML, and the line that says so.
pub(crate) type Rewrites = (&'static str, String, Place);

/// `basic_auth`.
#[derive(Clone, Debug)]
pub(crate) struct BasicAuth {
    pub users: String,
    /// Those of the file that are let in; `None`: all.
    pub allowed: Option<Vec<String>>,
    pub realm: String,
    /// The header in which servers get the user's name.
    pub user_header: Option<String>,
    pub origin: Place,
}

impl BasicAuth {
    /// Both originals pass the password on to the server.
    fn to_toml(&self) -> String {
        let mut out = format!("{{ users = {}", quoted(&self.users));
        if let Some(names) = &self.allowed {
            let _ = write!(out, ", allow_users = {}", list(names));
        }
        let _ = write!(out, ", realm = {}", quoted(&self.realm));
        if let Some(name) = &self.user_header {
            let _ = write!(out, ", user_header = {}", quoted(name));
        }
        out + ", keep_authorization = true }"
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
    /// The status of the response, if it is not that of the error.
    pub status: Option<u16>,
    pub origin: Place,
}

impl ErrorPage {
    /// What makes two the same.
    fn same(&self) -> String {
        format!("{:?} {} {:?} {} {:?}", self.statuses, self.file, self.content_type, self.upstream, self.status)
    }

    pub(super) fn write(&self, out: &mut String, table: &str) {
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
        if let Some(status) = self.status {
            line(out, &format!("status = {status}"), None);
        }
    }
}

/// `forward_auth`.
#[derive(Clone, Debug)]
pub(crate) struct ForwardAuth {
    pub upstream: String,
    pub path: String,
    /// Names and values of headers.
    pub set_headers: Vec<(String, String)>,
    /// Their names in the request, and in the answer.
    pub copy_headers: Vec<(String, String)>,
    pub timeout: Option<String>,
    pub origin: Place,
}

impl ForwardAuth {
    fn to_toml(&self) -> String {
        let mut out = format!("{{ upstream = {}, path = {}", quoted(&self.upstream), quoted(&self.path));
        if !self.set_headers.is_empty() {
            let all: Vec<String> =
                self.set_headers.iter().map(|(n, v)| format!("{} = {}", key(n), quoted(v))).collect();
            let _ = write!(out, ", set_headers = {{ {} }}", all.join(", "));
        }
        let same = self.copy_headers.iter().all(|(name, from)| name.eq_ignore_ascii_case(from));
        if !self.copy_headers.is_empty() && same {
            let names: Vec<&String> = self.copy_headers.iter().map(|(name, _)| name).collect();
            let _ = write!(out, ", copy_headers = {}", list(&names));
        } else if !self.copy_headers.is_empty() {
            let all: Vec<String> =
                self.copy_headers.iter().map(|(name, from)| format!("{} = {}", key(name), quoted(from))).collect();
            let _ = write!(out, ", copy_headers = {{ {} }}", all.join(", "));
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
            mirror: None,
            rewrites: Vec::new(),
            upgrade: None,
            request: Edits::default(),
            response: Edits::default(),
            hsts: None,
            rate_limits: Vec::new(),
            concurrency_limits: Vec::new(),
            max_body: None,
            compression: None,
            cors: None,
            access: Access::default(),
            forward_auth: None,
            basic_auth: None,
            satisfy_any: None,
            origin: origin.clone(),
        }
    }

    /// With `path` and `path_regex` for [`Path::Within`], and with the headers of its own response.
    pub fn settled(mut self) -> Self {
        if let Action::Respond { headers, .. } = &mut self.action
            && !headers.is_empty()
        {
            let mut all = Edits::default();
            headers.drain(..).for_each(|(name, value)| all.set(&name, &value, &self.origin));
            // What changes all responses changes this one, too.
            all.then(std::mem::take(&mut self.response));
            self.response = all;
        }
        let Path::Within(within) = &self.path else { return self };
        // What the text is followed by goes into the new path.
        let group = self.template.as_ref().is_some_and(|(to, _)| to.contains("{1}"));
        self.pattern = Some(within.expression(group));
        self.path = Path::Below(within.below.clone());
        self
    }

    /// Whether it is for all requests of the host.
    pub fn is_everything(&self) -> bool {
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
            Path::Within(within) => format!("within {within:?}"),
        };
        format!("{path} {:?} {methods:?} {headers:?}", self.pattern)
    }

    /// Whether Sealane prefers this one to another of the same path.
    pub(super) fn precedes(&self, other: &Self) -> bool {
        self.rank() > other.rank()
    }

    /// How Sealane prefers routes of the same path: the larger one.
    pub(super) fn rank(&self) -> (bool, bool, usize) {
        (self.pattern.is_some(), !self.methods.is_empty(), self.headers.len())
    }

    /// What is done with requests, without conditions and origins.
    pub fn does(&self) -> String {
        let rewrite = (self.rewrite.as_ref().map(|w| &w.0), self.template.as_ref().map(|w| &w.0));
        let hsts = self.hsts.as_ref().map(|h| &h.0);
        let (mirror, upgrade) = (self.mirror.as_ref().map(Mirror::to_toml), self.passes_upgrade());
        let (changes, checks, limits, pages) = (self.changes(), self.checks(), self.limits(), self.pages());
        let (body, compression) = (self.body_limit(), self.compression());
        format!(
            "{:?} {rewrite:?} {limits:?} {body:?} {compression:?} {hsts:?} {changes} {checks} {pages:?} {mirror:?} {upgrade} {:?} {:?}",
            self.action,
            self.rewrites(),
            self.cors()
        )
    }

    /// What checks clients.
    pub fn checks(&self) -> String {
        let (forward, basic) = (&self.forward_auth, &self.basic_auth);
        let basic = basic.as_ref().map(BasicAuth::to_toml);
        let (access, any) = (self.access.says(), self.satisfy_any.is_some());
        format!("{access} {:?} {basic:?} {any}", forward.as_ref().map(ForwardAuth::to_toml))
    }

    /// Its error pages, without their origins.
    pub fn pages(&self) -> Vec<String> {
        self.pages.iter().map(ErrorPage::same).collect()
    }

    /// The changes to headers, without their origins.
    pub fn changes(&self) -> String {
        format!("{} {}", self.request.same(), self.response.same())
    }

    /// The names of its limits: of rates, and of open requests.
    pub fn limits(&self) -> [Vec<&str>; 2] {
        [&self.rate_limits, &self.concurrency_limits].map(|all| all.iter().map(|l| l.0.as_str()).collect())
    }

    pub fn body_limit(&self) -> Option<&str> {
        self.max_body.as_ref().map(|b| b.0.as_str())
    }

    pub fn compression(&self) -> Option<&str> {
        self.compression.as_ref().map(|c| c.0.as_str())
    }

    pub fn cors(&self) -> Option<&str> {
        self.cors.as_ref().map(|c| c.0.as_str())
    }

    /// What it changes in the responses of servers, without the origins.
    pub fn rewrites(&self) -> Vec<(&str, &str)> {
        self.rewrites.iter().map(|(setting, value, _)| (*setting, value.as_str())).collect()
    }

    /// Whether a client can ask for WebSocket and other protocols.
    pub fn passes_upgrade(&self) -> bool {
        !matches!(self.upgrade, Some((false, _)))
    }

    /// Whether servers get another path than the client's.
    pub fn rewrites_path(&self) -> bool {
        self.rewrite.is_some() || self.template.is_some()
    }

    pub(super) fn has_extras(&self) -> bool {
        !(self.request.is_empty()
            && self.response.is_empty()
            && self.hsts.is_none()
            && self.rate_limits.is_empty()
            && self.concurrency_limits.is_empty()
            && self.max_body.is_none()
            && self.compression.is_none()
            && self.cors.is_none()
            && self.mirror.is_none()
            && self.rewrites.is_empty()
            && self.upgrade.is_none()
            && self.access.is_open()
            && self.forward_auth.is_none()
            && self.basic_auth.is_none())
    }

    /// Writes what a host can have, too. `table`: the heading.
    pub(super) fn write_extras(&self, out: &mut String, table: &str, snippets: &Snippets) {
        if let Some(place) = &self.satisfy_any {
            line(out, "satisfy = \"any\"", Some(place));
        }
        self.access.write(out);
        if let Some(auth) = &self.forward_auth {
            line(out, &format!("forward_auth = {}", auth.to_toml()), Some(&auth.origin));
        }
        if let Some(auth) = &self.basic_auth {
            line(out, &format!("basic_auth = {}", auth.to_toml()), Some(&auth.origin));
        }
        if let Some(mirror) = &self.mirror {
            line(out, &format!("mirror = {}", mirror.to_toml()), Some(&mirror.origin));
        }
        snippets.write_parts(out, table, self.parts(), |out| self.write_others(out));
    }

    /// What comes behind the headers.
    fn write_others(&self, out: &mut String) {
        if let Some((value, place)) = &self.hsts {
            line(out, &format!("hsts = {}", quoted(value)), Some(place));
        }
        if let Some((upgrade, place)) = &self.upgrade {
            line(out, &format!("upgrade = {upgrade}"), Some(place));
        }
        if let Some((size, place)) = &self.max_body {
            line(out, &format!("max_body_size = {size}"), Some(place));
        }
        if let Some((rule, place)) = &self.compression {
            line(out, &format!("compression = {rule}"), Some(place));
        }
        if let Some((rule, place)) = &self.cors {
            line(out, &format!("cors = {rule}"), Some(place));
        }
        for (key, limits) in [("rate_limit", &self.rate_limits), ("concurrency_limit", &self.concurrency_limits)] {
            let names: Vec<&str> = limits.iter().map(|l| l.0.as_str()).collect();
            if let Some((_, place)) = limits.first() {
                line(out, &format!("{key} = {}", list(&names)), Some(place));
            }
        }
        for (setting, value, place) in &self.rewrites {
            line(out, &format!("{setting} = {value}"), Some(place));
        }
    }
}
