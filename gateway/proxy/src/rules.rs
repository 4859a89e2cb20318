//! What a host's rules do with a request and its response: fields, redirects, paths, HSTS.
//!
//! Control fills [`Route`]s; a request that came by one keeps a reference to it, so that its response gets what the
//! route says, whether a server or the gateway makes the response.

use crate::compression::CompressionRule;
use crate::cors::{self, Cors, CorsRule};
use crate::lane_state::LaneListener;
use crate::latency::Place;
use crate::pages::{ErrorPage, Maintenance};
use crate::patterns::Groups;
use crate::response_rewrites::ResponseRewrites;
use crate::snapshot::{Action, Routing};
use crate::templates::{Origin, Template};
use sealane_http::{FieldError, Fields, Known, RequestHead};
use sealane_route::path::{self, Readings};
use sealane_route::{Found, Subject};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// What is done with the requests of one rule.
#[derive(Debug)]
pub struct Route {
    /// What metrics call it: its name as configured, or its pattern.
    pub label: String,
    /// Never [`Action::Routes`].
    pub action: Action,
    /// The expression that the path has matched: an index into the snapshot's patterns.
    pub pattern: Option<usize>,
    /// Who may come: indices into the snapshot's access rules, all of which the client must pass.
    pub access: Vec<usize>,
    /// A password that the client must show.
    pub basic_auth: Option<BasicAuth>,
    /// A server that must admit the request.
    pub forward_auth: Option<ForwardAuth>,
    /// A client that the access rules let in needs neither a password nor that server, and any other client may show them.
    pub satisfy_any: bool,
    /// Changes to the request's fields, for the upstream, one after the other.
    pub request: Vec<FieldEdits>,
    /// What responses have.
    pub responses: Responses,
    /// What becomes of the path.
    pub rewrite: Option<Rewrite>,
    /// Clients may ask the upstream for WebSocket and other protocols.
    pub upgrade: bool,
    /// Indices into the snapshot's rate limits; the request must pass all of them.
    pub rate_limits: Vec<usize>,
    /// Indices into the snapshot's concurrency limits; the request must pass all of them.
    pub concurrency_limits: Vec<usize>,
    /// Requests get 503.
    pub maintenance: Option<Maintenance>,
    /// The most bytes of a request's body, in the place of [`ClientLimits::max_body`](crate::snapshot::ClientLimits::max_body).
    pub max_body: Option<u64>,
}

impl Route {
    /// Whether a client must show who it is: by a password, or to the server of `forward_auth`.
    pub(crate) fn asks(&self) -> bool {
        self.basic_auth.is_some() || self.forward_auth.is_some()
    }

    /// Removes from a request that is let in without a password or a question what these would have removed or replaced: the client is
    /// not to say who it is.
    pub(crate) fn clean_unasked(&self, fields: &mut Fields) {
        let named = self.basic_auth.iter().filter_map(|auth| auth.user_header.as_ref());
        let copied = self.forward_auth.iter().flat_map(|auth| &auth.copy).map(|(name, _)| name);
        named.chain(copied).for_each(|name| fields.remove_alike(name.as_bytes()));
        if self.basic_auth.as_ref().is_some_and(|auth| !auth.keep_authorization) {
            fields.remove_alike(b"Authorization");
        }
    }
}

/// What responses have: those of a route, or those of a host where no route is selected.
#[derive(Debug, Default)]
pub struct Responses {
    /// Changes to the fields, for the client, one after the other.
    pub edits: Vec<FieldEdits>,
    /// How many of these are the host's, which come first.
    pub host_edits: usize,
    /// The value of `Strict-Transport-Security`, sent over TLS only (RFC 6797 §7.2).
    pub hsts: Option<String>,
    /// What clients get in the place of errors: the route's own, then those of its host.
    pub error_pages: Vec<ErrorPage>,
    /// What pages of other origins may do.
    pub cors: Option<CorsRule>,
    /// Responses say how long the gateway and the server took.
    pub server_timing: bool,
    /// Which of them are compressed.
    pub compression: Option<CompressionRule>,
    /// What is changed in those of upstreams.
    pub rewrites: Option<Box<ResponseRewrites>>,
}

impl Responses {
    /// Changes a response for the client; `secure`: it goes over TLS. `is_of_host`: it is not one of the route.
    pub(crate) fn finish(&self, fields: &mut Fields, cors: &Cors, secure: bool, is_of_host: bool) {
        let count = if is_of_host { self.host_edits } else { self.edits.len() };
        // Values were checked with the configuration; what does not fit (4 GiB) is left out.
        let _ = self.edits.iter().take(count).try_for_each(|edits| edits.apply(fields, &mut std::iter::empty()));
        if let (Some(hsts), true) = (&self.hsts, secure) {
            let _ = fields.set(Known::StrictTransportSecurity, hsts.as_bytes());
        }
        if let (Some(rule), true) = (&self.cors, *cors != Cors::Off) {
            rule.add_headers(cors, fields);
        }
    }

    /// Removes from an interim response what the final response does not keep of the server's.
    pub(crate) fn clean_interim(&self, fields: &mut Fields) {
        self.clean_trailers(fields);
        if self.hsts.is_some() {
            fields.remove(Known::StrictTransportSecurity);
        }
    }

    /// Removes from a response's trailers what is removed from its head.
    pub(crate) fn clean_trailers(&self, trailers: &mut Fields) {
        self.edits.iter().for_each(|edits| edits.clean(trailers));
        if self.cors.is_some() {
            cors::remove_headers(trailers);
        }
    }
}

/// How a request's path is changed for the upstream. The query stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// This stands in the place of the path that the rule matched.
    Prefix(String),
    /// This is the whole path: pieces of text and groups.
    Path(Vec<Piece>),
}

/// Which server is asked, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardAuth {
    /// Index into the snapshot's upstreams.
    pub upstream: usize,
    /// The target of the question.
    pub target: String,
    /// Headers of the question.
    pub set: FieldEdits,
    /// Headers of the answer that go into the request: their names in the request, and in the answer. The client's own of these names
    /// never reach a server.
    pub copy: Vec<(String, String)>,
    /// How long the answer may take as a whole.
    pub timeout: Duration,
}

/// Which password a client must show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasicAuth {
    /// Index into the users of the snapshot's [`Access`](crate::access::Access).
    pub users: usize,
    /// Those that may pass, in order; `None`: all.
    pub allowed: Option<Vec<String>>,
    /// The value of `WWW-Authenticate`.
    pub challenge: String,
    /// The header in which the upstream is told the user's name. The client's own of this name never reach a server.
    pub user_header: Option<String>,
    /// The upstream gets the password, too.
    pub keep_authorization: bool,
}

impl BasicAuth {
    /// Whether a user may pass, with the right password.
    pub(crate) fn allows(&self, user: &str) -> bool {
        let is_named = |names: &Vec<String>| names.binary_search_by(|name| name.as_str().cmp(user)).is_ok();
        self.allowed.as_ref().is_none_or(is_named)
    }
}

/// Changes to a message's fields: first what is removed, then what is set, then what is added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldEdits {
    /// Names.
    pub remove: Vec<String>,
    /// Takes the place of all fields of that name.
    pub set: Vec<(String, String)>,
    /// Comes behind those that are there.
    pub add: Vec<(String, String)>,
    /// What is set and added with parts of the request.
    pub templates: Vec<FieldTemplate>,
}

/// A field of a request for the upstream, with parts of the client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTemplate {
    /// Its name.
    pub name: String,
    /// It comes behind those of this name that are there.
    pub adds: bool,
    /// Its value. There is no such field where it is empty.
    pub value: Template,
}

impl FieldEdits {
    /// `values`: those of all templates, in their order.
    pub(crate) fn apply(
        &self,
        fields: &mut Fields,
        values: &mut impl Iterator<Item = Vec<u8>>,
    ) -> Result<(), FieldError> {
        self.clean(fields);
        for (name, value) in &self.set {
            fields.push(name.as_bytes(), value.as_bytes())?;
        }
        for (name, value) in &self.add {
            fields.push(name.as_bytes(), value.as_bytes())?;
        }
        for template in &self.templates {
            if let Some(value) = values.next().filter(|value| !value.is_empty()) {
                fields.push(template.name.as_bytes(), &value)?;
            }
        }
        Ok(())
    }

    /// Removes what is removed or set, in every spelling that a server may take for it.
    fn clean(&self, fields: &mut Fields) {
        let set = self.set.iter().map(|(name, _)| name);
        let templates = self.templates.iter().filter(|t| !t.adds).map(|t| &t.name);
        for name in self.remove.iter().chain(set).chain(templates) {
            fields.remove_alike(name.as_bytes());
        }
    }

    /// Writes the values of all templates.
    pub(crate) fn values(&self, request: &RequestHead, from: &Origin) -> Vec<Vec<u8>> {
        self.templates.iter().map(|template| template.value.value(request, from)).collect()
    }
}

/// A piece of a redirect's target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// As it stands.
    Text(String),
    /// `http` or `https`, as the client came.
    Scheme,
    /// The request's host, without the port.
    Host,
    /// Path and query.
    Uri,
    /// The path alone.
    Path,
    /// The query with its `?`, or nothing.
    Query,
    /// Path and query behind what the rule matched.
    Rest,
    /// What this group of the rule's pattern matched: 1 to 9.
    Group(usize),
}

/// Sends the client elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
    /// The target, in pieces.
    pub to: Vec<Piece>,
}

impl Redirect {
    /// Whether the target takes its host from the request.
    pub(crate) fn names_host(&self) -> bool {
        self.to.iter().any(|piece| matches!(piece, Piece::Host))
    }

    /// Whether the target has a part of the path that a pattern matched.
    pub(crate) fn names_groups(&self) -> bool {
        self.to.iter().any(|piece| matches!(piece, Piece::Group(_)))
    }

    /// The value of `Location`; `matched` is what the rule took of the path.
    pub(crate) fn location(&self, head: &RequestHead, tls: bool, matched: usize, groups: &Groups, out: &mut Vec<u8>) {
        out.clear();
        let target = head.target();
        let path = head.path();
        for piece in &self.to {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Scheme => out.extend_from_slice(if tls { b"https" } else { b"http" }),
                Piece::Host => out.extend_from_slice(head.host_name().as_bytes()),
                // An asterisk (RFC 9112 §3.2.4) or an authority has no place here.
                Piece::Uri | Piece::Path | Piece::Query | Piece::Rest if !path.starts_with(b"/") => {}
                Piece::Group(number) => push_path(out, groups[*number]),
                Piece::Uri => push_path(out, target),
                Piece::Path => push_path(out, path),
                Piece::Query => out.extend_from_slice(&target[path.len()..]),
                Piece::Rest => {
                    let rest = path::rest_behind(path, matched);
                    if out.is_empty() && !rest.starts_with(b"/") {
                        // It stands for a whole path.
                        out.push(b'/');
                    }
                    push_path(out, rest);
                    out.extend_from_slice(&target[path.len()..]);
                }
            }
        }
        if out.is_empty() || out.starts_with(b"?") {
            // What the request has of these pieces is empty. Without a path, the client would come back to where it is.
            out.insert(0, b'/');
        }
    }
}

/// Appends a path. One that begins with `//` and stands first would name a host (RFC 3986 §4.2); so would `/\`, as browsers
/// read it.
fn push_path(out: &mut Vec<u8>, path: &[u8]) {
    let slashes = path.iter().take_while(|b| matches!(b, b'/' | b'\\')).count();
    match () {
        () if out.is_empty() && slashes > 0 => {
            out.push(b'/');
            out.extend_from_slice(&path[slashes..]);
        }
        () if out.ends_with(b"/") => out.extend_from_slice(&path[slashes..]),
        () => out.extend_from_slice(path),
    }
}

/// Which route a request came by.
#[derive(Clone)]
pub(crate) struct RouteRef {
    listener: Rc<LaneListener>,
    index: usize,
    /// What the rule took of the path's literal reading.
    pub matched: usize,
    /// The entry of the table that has the path.
    pub entry: Option<usize>,
}

impl RouteRef {
    pub fn new(listener: Rc<LaneListener>, found: Found<usize>) -> Self {
        Self { listener, index: *found.value, matched: found.matched, entry: found.entry }
    }

    pub fn listener(&self) -> &Rc<LaneListener> {
        &self.listener
    }

    pub fn route(&self) -> Option<&Route> {
        self.listener.routing.routes.get(self.index)
    }

    /// Where it can be found when the lane has no more to do with it.
    pub fn shared(&self) -> (Arc<Routing>, usize) {
        (self.listener.routing.clone(), self.index)
    }

    /// Where the durations of the route's requests are recorded.
    #[inline]
    pub fn place(&self) -> Option<&Arc<Place>> {
        self.listener.latency.routes.get(self.index)
    }

    /// Removes from a request's trailers what is removed from its head.
    pub fn clean_request_trailers(&self, trailers: &mut Fields) {
        let Some(route) = self.route() else { return };
        route.request.iter().for_each(|edits| edits.clean(trailers));
        // What the server says that admits a request is nobody else's to say.
        let copied = route.forward_auth.iter().flat_map(|auth| &auth.copy).map(|(name, _)| name);
        let named = route.basic_auth.iter().filter_map(|auth| auth.user_header.as_ref());
        copied.chain(named).for_each(|name| trailers.remove_alike(name.as_bytes()));
        if route.basic_auth.as_ref().is_some_and(|auth| !auth.keep_authorization) {
            trailers.remove_alike(b"Authorization");
        }
        // What decided whether the request may come does not come behind it.
        let rules = route.access.iter().filter_map(|rule| self.listener.access.rules.get(*rule));
        for condition in rules.flat_map(|rule| rule.header_conditions()) {
            trailers.remove_alike(condition.name.as_bytes());
        }
    }

    /// What the groups of the route's pattern have matched of a path. `None` where that cannot be said in whole characters.
    pub fn groups<'p>(&self, path: &'p [u8], literal: &mut Vec<u8>) -> Option<Groups<'p>> {
        let Some(pattern) = self.route().and_then(|route| route.pattern) else { return Some(Groups::default()) };
        self.listener.patterns.get(pattern)?.groups(path, literal)
    }

    /// Changes a request for the upstream.
    pub fn prepare(&self, head: &mut RequestHead, from: &Origin, text: &mut Vec<u8>) -> Result<(), Unprepared> {
        let Some(route) = self.route() else { return Ok(()) };
        if route.request.is_empty() {
            return self.rewrite(route, head, text);
        }
        // What the values say of the request is what the client has asked for.
        let values: Vec<Vec<u8>> = route.request.iter().flat_map(|edits| edits.values(head, from)).collect();
        self.rewrite(route, head, text)?;
        let mut values = values.into_iter();
        let edited = route.request.iter().try_for_each(|edits| edits.apply(&mut head.fields, &mut values));
        edited.map_err(|_| Unprepared::Fields)
    }

    #[inline]
    fn rewrite(&self, route: &Route, head: &mut RequestHead, text: &mut Vec<u8>) -> Result<(), Unprepared> {
        if let Some(rewrite) = &route.rewrite
            && head.path().starts_with(b"/")
        {
            self.write_path(rewrite, head.path(), text)?;
            text.extend_from_slice(&head.target()[head.path().len()..]);
            // Both are made of what may stand in a target.
            head.rewrite_target(text).map_err(|_| Unprepared::Path)?;
        }
        Ok(())
    }

    /// Writes the path that the upstream gets.
    fn write_path(&self, rewrite: &Rewrite, path: &[u8], text: &mut Vec<u8>) -> Result<(), Unprepared> {
        match rewrite {
            Rewrite::Prefix(prefix) => {
                text.clear();
                text.extend_from_slice(prefix.as_bytes());
                let rest = path::rest_behind(path, self.matched);
                if !rest.is_empty() && !rest.starts_with(b"/") {
                    text.push(b'/');
                }
                text.extend_from_slice(rest);
                if text.is_empty() {
                    text.push(b'/');
                }
                // Text and rest can make together a host in the place of the path.
                if text.starts_with(b"//") || text.starts_with(b"/\\") {
                    return Err(Unprepared::Path);
                }
            }
            Rewrite::Path(pieces) => {
                let groups = self.groups(path, text).ok_or(Unprepared::Path)?;
                text.clear();
                for piece in pieces {
                    match piece {
                        Piece::Text(written) => text.extend_from_slice(written.as_bytes()),
                        Piece::Group(number) => text.extend_from_slice(groups[*number]),
                        // A rewrite has no other pieces.
                        _ => {}
                    }
                }
                // Groups and text can make together what neither is: a segment `..`, or a host in the place of the path.
                if text.starts_with(b"//") || Readings::of(text).is_err() {
                    return Err(Unprepared::Path);
                }
            }
        }
        Ok(())
    }
}

/// Why a request cannot be changed as its route says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unprepared {
    /// The new path is none that a server should get.
    Path,
    /// The fields have no room for what is added.
    Fields,
}

/// A request's head as rules see it.
pub(crate) struct Request<'h> {
    pub head: &'h RequestHead,
    pub method: &'h [u8],
    pub listener: &'h LaneListener,
}

impl Subject for Request<'_> {
    fn method(&self) -> &[u8] {
        self.method
    }

    fn matches(&self, pattern: usize, path: &[u8]) -> bool {
        self.listener.patterns.get(pattern).is_some_and(|pattern| pattern.matches(path))
    }

    fn entry(&self, list: usize, path: &[u8]) -> Option<usize> {
        self.listener.redirects.get(list)?.find(path)
    }

    fn any_field(&self, name: &str, accepts: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        if name.eq_ignore_ascii_case("host") {
            return !self.head.authority().is_empty() && accepts(self.head.authority());
        }
        self.head.fields.iter().any(|(_, own, value)| own.eq_ignore_ascii_case(name.as_bytes()) && accepts(value))
    }

    fn any_other_spelling(&self, name: &str, accepts: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.head.fields.other_spellings(name.as_bytes()).any(accepts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(target: &str) -> RequestHead {
        let mut head = RequestHead::new();
        head.set_target(target.as_bytes()).unwrap();
        head.set_authority(b"Example.com:8080").unwrap();
        head
    }

    #[test]
    fn trailers_are_cleaned_of_what_the_head_has() {
        let cleaned = |with_cors: bool| {
            let rule = CorsRule {
                origins: None,
                methods: "GET".to_owned(),
                headers: None,
                expose: None,
                credentials: false,
                max_age: None,
            };
            let edits = FieldEdits { remove: vec!["X-Secret".to_owned()], ..FieldEdits::default() };
            let responses = Responses { edits: vec![edits], cors: with_cors.then_some(rule), ..Responses::default() };
            let mut trailers = Fields::new();
            for name in ["access-control-allow-origin", "Access-Control-Max-Age", "x_secret", "X-Sum"] {
                trailers.push(name.as_bytes(), b"1").unwrap();
            }
            responses.clean_trailers(&mut trailers);
            trailers.iter().map(|(_, name, _)| String::from_utf8_lossy(name).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(cleaned(true), ["X-Sum"]);
        assert_eq!(cleaned(false), ["access-control-allow-origin", "Access-Control-Max-Age", "X-Sum"]);
    }

    #[test]
    fn redirects_are_put_together() {
        let text = |s: &str| Piece::Text(s.to_owned());
        let to = |pieces: Vec<Piece>, target: &str, matched: usize| {
            let mut out = Vec::new();
            let mut groups = Groups::default();
            (groups[1], groups[2]) = (b"a%2Fb", b"/\\evil.example");
            Redirect { status: 301, to: pieces }.location(&head(target), true, matched, &groups, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            to(vec![text("https://"), Piece::Host, Piece::Uri], "/a%20b?c=d", 0),
            "https://example.com/a%20b?c=d"
        );
        assert_eq!(to(vec![Piece::Scheme, text("://x"), Piece::Path], "/a?c", 0), "https://x/a");
        assert_eq!(to(vec![text("/new"), Piece::Rest], "/old/a?b", 4), "/new/a?b");
        assert_eq!(to(vec![text("/new/"), Piece::Rest], "/old/a", 4), "/new/a");
        assert_eq!(to(vec![text("/new"), Piece::Query], "/old?x", 4), "/new?x");
        // Nobody is sent to a host of the client's choice.
        assert_eq!(to(vec![Piece::Uri], "//evil.example/", 0), "/evil.example/");
        assert_eq!(to(vec![Piece::Rest], "/x//evil.example/", 2), "/evil.example/");
        assert_eq!(to(vec![Piece::Uri], "/\\evil.example/", 0), "/evil.example/");
        assert_eq!(to(vec![text("/"), Piece::Group(2)], "/x", 0), "/evil.example");
        assert_eq!(to(vec![text("/"), Piece::Group(1), text("/x")], "/x", 0), "/a%2Fb/x");
        assert_eq!(to(vec![text("https://"), Piece::Host, Piece::Uri], "*", 0), "https://example.com");
    }

    #[test]
    fn edits_remove_then_set_then_add() {
        let mut fields = Fields::new();
        for (n, v) in [("A", "1"), ("a", "2"), ("B", "1"), ("Cookie", "x")] {
            fields.push(n.as_bytes(), v.as_bytes()).unwrap();
        }
        let pair = |n: &str, v: &str| (n.to_owned(), v.to_owned());
        let edits = FieldEdits {
            remove: vec!["cookie".into()],
            set: vec![pair("A", "3")],
            add: vec![pair("b", "2"), pair("Cookie", "y")],
            templates: Vec::new(),
        };
        edits.apply(&mut fields, &mut std::iter::empty()).unwrap();
        let all: Vec<(&[u8], &[u8])> = fields.iter().map(|(_, n, v)| (n, v)).collect();
        assert_eq!(all, [(&b"B"[..], &b"1"[..]), (b"A", b"3"), (b"b", b"2"), (b"Cookie", b"y")]);
    }

    #[test]
    fn a_value_without_its_part_leaves_no_field() {
        let template = |name: &str, adds| FieldTemplate {
            name: name.to_owned(),
            adds,
            value: Template::parse("{client_certificate_name}").unwrap().unwrap(),
        };
        let edits = FieldEdits {
            templates: vec![template("X-User", false), template("X-Other", true), template("X-Last", false)],
            ..FieldEdits::default()
        };
        let apply = |values: [&str; 3]| {
            let mut fields = Fields::new();
            for name in ["X_User", "X-Other", "X-Last"] {
                fields.push(name.as_bytes(), b"forged").unwrap();
            }
            let mut values = values.into_iter().map(|value| value.as_bytes().to_vec());
            let said = edits.apply(&mut fields, &mut values);
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            (said, fields.iter().map(|(_, n, v)| format!("{}: {}", text(n), text(v))).collect::<Vec<_>>())
        };
        assert_eq!(
            apply(["alice", "b", ""]),
            (Ok(()), vec!["X-Other: forged".into(), "X-User: alice".into(), "X-Other: b".into()])
        );
        assert_eq!(apply(["", "", ""]), (Ok(()), vec!["X-Other: forged".into()]));
        // Nothing of a client's certificate ends a line.
        assert!(apply(["a\r\nX-Admin: 1", "", ""]).0.is_err());
    }
}
