//! `[[host.route]]`: which requests a route is for, and what is done with them.

use super::{Edits, line, list, quoted};
use crate::addresses::Access;
use crate::report::Place;
use std::fmt::Write as _;

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

    pub(super) fn write(&self, out: &mut String, place: &Place) {
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

    pub(super) fn is_everything(&self) -> bool {
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
    pub(super) fn precedes(&self, other: &Self) -> bool {
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

    /// The changes to headers, without their origins.
    pub fn changes(&self) -> String {
        format!("{} {}", self.request.same(), self.response.same())
    }

    pub(super) fn limits(&self) -> Vec<&str> {
        self.rate_limits.iter().map(|l| l.0.as_str()).collect()
    }

    pub(super) fn has_extras(&self) -> bool {
        !(self.request.is_empty()
            && self.response.is_empty()
            && self.hsts.is_none()
            && self.rate_limits.is_empty()
            && self.access.is_open()
            && self.forward_auth.is_none()
            && self.basic_auth.is_none())
    }

    pub(super) fn write_extras(&self, out: &mut String) {
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
