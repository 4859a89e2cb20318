//! What a server or location does: `return`, `rewrite`, `if`, `proxy_pass`, `try_files`.

use super::conditions::{Condition, condition};
use super::headers::{self, Changes};
use super::locations::{Location, Site};
use super::parser::Directive;
use super::scope::{Import, Scope};
use super::upstreams::{self, Protocol, Target};
use super::variables::{Piece, expand, has_variables, pieces, target};
use crate::output::{Action, Path, Route};
use crate::report::Place;

/// Directives that pass requests on: NGINX redirects `/x` to `/x/` where a location `/x/` has one.
pub(super) const PASSES: &[&str] =
    &["proxy_pass", "grpc_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "memcached_pass"];

/// An upstream that a `map` chooses by a header.
pub(super) struct Chosen {
    pub header: String,
    /// The condition in TOML.
    pub rule: String,
    pub upstream: String,
    pub place: Place,
}

/// How the phase of rewriting ends.
pub(super) enum Step<'d> {
    /// It answers.
    Answer(Action, &'d Directive),
    /// The request goes on; with another beginning of its path.
    Continue(Option<(String, Place)>),
}

/// A regular expression of `rewrite` that is understood.
struct Rule {
    /// The path before what is captured.
    prefix: String,
    /// The rest is captured; otherwise the path ends here.
    rest: bool,
    /// The captured rest begins with a slash.
    slash: bool,
}

fn rule(pattern: &str) -> Option<Rule> {
    if matches!(pattern, "^" | ".*" | "^.*" | "^.*$" | "(.*)" | "^(.*)" | "^(.*)$") {
        return Some(Rule { prefix: String::new(), rest: true, slash: true });
    }
    let body = pattern.strip_prefix('^')?;
    let forms = [("(/.*)$", true), ("(/.*)", true), ("(.*)$", false), ("(.*)", false), ("/?(.*)$", true)];
    let (prefix, rest, slash) = match forms.into_iter().find_map(|(f, slash)| Some((body.strip_suffix(f)?, slash))) {
        Some((prefix, slash)) => (prefix, true, slash),
        None => (body.strip_suffix('$')?, false, false),
    };
    let prefix = prefix.replace("\\.", ".").replace("\\/", "/").replace("\\-", "-");
    let plain = prefix.starts_with('/') && prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-~".contains(&b));
    let literal = plain && !prefix.contains('.') || pattern.contains("\\.");
    let none = prefix.is_empty() && rest && slash;
    (none || literal && plain).then_some(Rule { prefix, rest, slash })
}

/// The redirect that a `rewrite` makes, and the path that it is for.
pub(super) fn redirect(d: &Directive, name: Option<&str>) -> Option<(Path, Action)> {
    let (pattern, replacement, flag) = (d.word(1)?, d.word(2)?, d.word(3));
    let absolute = ["http://", "https://", "$scheme"].iter().any(|p| replacement.starts_with(p));
    let status = match flag {
        Some("permanent") => 301,
        Some("redirect") => 302,
        None | Some("last" | "break") if absolute => 302,
        _ => return None,
    };
    let r = rule(pattern)?;
    let (mut text, query) = match replacement.strip_suffix('?') {
        Some(bare) => (bare.to_owned(), false),
        None => (replacement.to_owned(), true),
    };
    let whole = r.prefix.is_empty() || r.prefix == "/";
    // What is captured, with the query behind it.
    let captured = match (whole, query) {
        (true, true) => "{uri}",
        (true, false) => "{path}",
        (false, true) => "{rest}",
        (false, false) => return None,
    };
    if r.rest {
        let slashed = if r.slash { "$1".to_owned() } else { "/$1".to_owned() };
        // `{rest}` begins with a slash, like a path.
        match text.contains(&slashed) {
            true => text = text.replacen(&slashed, "\u{1}", 1),
            false if text.contains("$1") => return None,
            false => {}
        }
    }
    let has_query =
        text.contains('\u{1}') || text.contains("$request_uri") || text.contains("$args") || text.contains('?');
    let mut to = target(&text.replace('\u{1}', "-CAPTURED-"), name).ok()?.replace("-CAPTURED-", captured);
    if query && !has_query {
        to.push_str("{query}");
    }
    let path = match (whole, r.rest) {
        (true, true) => Path::Below("/".to_owned()),
        (_, true) => Path::Below(r.prefix),
        (_, false) => Path::Exact(r.prefix),
    };
    Some((path, Action::Redirect { to, status }))
}

/// What `return` answers.
pub(super) fn answer<'d>(import: &mut Import<'d>, scope: &Scope<'d>, d: &'d Directive, name: Option<&str>) -> Action {
    let (status, text) = match (d.word(1).and_then(|s| s.parse::<u16>().ok()), d.word(2)) {
        (Some(status), text) => (status, text),
        (None, _) => (302, d.word(1)),
    };
    let text = text.map(|t| expand(import, scope, t));
    match (status, text) {
        (444, _) => {
            import.differs(d, "the connection is not closed without an answer: clients get 404");
            Action::status(404)
        }
        (301 | 302 | 303 | 307 | 308, Some(url)) => match target(&url, name) {
            Ok(to) => {
                import.same(d, "redirect");
                Action::Redirect { to, status }
            }
            Err(what) => {
                import.missing(d, format!("there is nothing for {what} in a redirect; requests get 501"));
                Action::untranslated()
            }
        },
        (200..=599, text) => {
            let mut body = text.unwrap_or_default();
            if has_variables(&body) || body.len() > 60_000 {
                import.missing(d, "a body is a short constant; it is left out");
                body.clear();
            }
            if matches!(status, 204 | 205 | 304) {
                body.clear();
            }
            let kind = scope.value("default_type").filter(|_| !body.is_empty());
            if let Some((d, _)) = kind {
                import.same(d, "respond.content_type");
            }
            match status {
                300..=399 => {
                    import.missing(d, "a redirect without a target; requests get 501");
                    Action::untranslated()
                }
                _ => {
                    import.same(d, "respond");
                    Action::Respond { status, body, content_type: kind.map(|(_, v)| v.to_owned()) }
                }
            }
        }
        _ => {
            import.missing(d, "is no status that Sealane answers with; requests get 501");
            Action::untranslated()
        }
    }
}

/// Runs the directives that come before access and content. `path`: the location's.
pub(super) fn rewrite_phase<'d>(
    import: &mut Import<'d>,
    scope: &Scope<'d>,
    block: &'d [Directive],
    name: Option<&str>,
    path: Option<&str>,
) -> Step<'d> {
    let mut rewritten = None;
    for d in block {
        match d.name() {
            "return" => return Step::Answer(answer(import, scope, d, name), d),
            "rewrite" => match redirect(d, name) {
                Some((Path::Below(p), action)) if p == "/" || Some(p.as_str()) == path => {
                    import.same(d, "redirect");
                    return Step::Answer(action, d);
                }
                Some(_) if path.is_none() => {}
                Some(_) => import.missing(d, "make it a route of its own, with \"redirect\""),
                None => match path.and_then(|p| new_prefix(d, p)) {
                    Some(new) => {
                        import.same(d, "rewrite_prefix");
                        rewritten = Some((new, d.place.clone()));
                    }
                    None => {
                        import.missing(d, "paths are rewritten by a route's rewrite_prefix only; let the server do it")
                    }
                },
            },
            _ => {}
        }
    }
    Step::Continue(rewritten)
}

/// `rewrite ^/api/(.*)$ /v1/$1 break;` in `location /api/`.
fn new_prefix(d: &Directive, path: &str) -> Option<String> {
    if d.word(3) != Some("break") {
        return None;
    }
    let r = rule(d.word(1)?)?;
    let head = d.word(2)?.strip_suffix("$1")?;
    let new = if r.slash { format!("{head}/") } else { head.to_owned() };
    let good = new.starts_with('/') && new.ends_with('/') && !new.contains(['$', '?', '#']);
    if !r.rest || !good || !(r.slash || r.prefix.ends_with('/')) {
        return None;
    }
    // The location may be deeper than what is replaced.
    let from = format!("{}/", r.prefix.trim_end_matches('/'));
    let own = format!("{}/", path.trim_end_matches('/'));
    Some(new + own.strip_prefix(from.as_str())?)
}

/// The `if`s of a block that depend on the method or a header, with what they lead to. All others are reported.
pub(super) fn conditions<'d>(
    import: &mut Import<'d>,
    block: &'d [Directive],
    name: Option<&str>,
) -> Vec<(Condition, Action, &'d Directive)> {
    let mut out = Vec::new();
    for d in block.iter().filter(|d| d.name() == "if") {
        let condition = condition(d);
        match simple(import, d, name).filter(|action| is_route(&condition, action)) {
            Some(action) => out.push((condition, action, d)),
            None => unknown_if(import, d),
        }
    }
    out
}

/// Whether a condition with an answer can be a route. NGINX takes an empty header for an absent one, which matters where its absence
/// refuses requests.
pub(super) fn is_route(condition: &Condition, action: &Action) -> bool {
    match condition {
        Condition::Method(..) => true,
        Condition::Header(_, rule) => rule != "false" || !action.is_refusal(),
        _ => false,
    }
}

/// What the block of an `if` does, where that is one answer.
pub(super) fn simple<'d>(import: &mut Import<'d>, d: &'d Directive, name: Option<&str>) -> Option<Action> {
    let [only] = d.inner() else { return None };
    match only.name() {
        "return" => Some(answer(import, &Scope::of(d.inner()), only, name)),
        "rewrite" => match redirect(only, name)? {
            (Path::Below(p), action) if p == "/" => {
                import.same(only, "redirect");
                Some(action)
            }
            _ => None,
        },
        _ => None,
    }
}

pub(super) fn unknown_if<'d>(import: &mut Import<'d>, d: &'d Directive) {
    let refuses = d.inner().iter().any(|i| match i.name() {
        "return" => i.word(1).and_then(|s| s.parse::<u16>().ok()).is_some_and(|s| s >= 400),
        "deny" | "allow" | "auth_basic" => true,
        _ => false,
    });
    let about_clients = d.arguments().iter().any(|a| {
        [
            "$ssl_client",
            "$remote_addr",
            "$binary_remote_addr",
            "$remote_user",
            "$geoip",
            "$invalid_referer",
            "$secure_link",
        ]
        .iter()
        .any(|v| a.contains(v))
    });
    match refuses || about_clients {
        true => {
            import.decide(d, "this condition cannot be translated, and it refuses requests: let the server refuse them")
        }
        false => import.missing(d, "conditions are on the method and on headers (methods and headers of a route)"),
    }
    for inner in d.inner() {
        import.whole(inner, crate::Outcome::NotTranslated, "see the condition");
    }
}

/// What answers the requests of a location.
#[expect(clippy::too_many_arguments, reason = "what is read, and what is written into")]
pub(super) fn content<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    l: &Location<'d>,
    path: &Path,
    text: &str,
    rewritten: Option<(String, Place)>,
    changes: &mut Changes,
    route: &mut Route,
) {
    let block = l.directive().inner();
    if let Some(d) = block.iter().rfind(|d| d.name() == "proxy_pass" || d.name() == "grpc_pass") {
        return pass(import, site, l.scope(), d, path, text, rewritten, changes, route);
    }
    if let Some(d) = block.iter().rfind(|d| d.name() == "try_files") {
        let last = d.arguments().last().copied().unwrap_or("").to_owned();
        if let Some(named) = site.locations.iter().find(|n| last.starts_with('@') && n.is_named(&last)) {
            let pass_ = named.directive().inner().iter().rfind(|d| d.name() == "proxy_pass");
            if let Some(pass_) = pass_ {
                import.differs(d, "Sealane serves no files: all requests go to the server");
                import.same(named.directive(), "used by try_files");
                for d in named.directive().inner().iter().filter(|d| d.name() == "rewrite" || d.name() == "if") {
                    import.whole(d, crate::Outcome::NotTranslated, "let the server do it");
                }
                return pass(import, site, named.scope(), pass_, path, text, None, changes, route);
            }
        }
    }
    let handled = block
        .iter()
        .any(|d| PASSES.contains(&d.name()) || matches!(d.name(), "stub_status" | "root" | "alias" | "try_files"));
    if !handled {
        import.missing(l.directive(), "Sealane serves no files: requests get 501; name a server for them");
    } else {
        import.differs(l.directive(), "requests get 501, see the directives in it");
    }
}

#[expect(clippy::too_many_arguments, reason = "what is read, and what is written into")]
fn pass<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    scope: &Scope<'d>,
    d: &'d Directive,
    path: &Path,
    text: &str,
    rewritten: Option<(String, Place)>,
    changes: &mut Changes,
    route: &mut Route,
) {
    let grpc = d.name() == "grpc_pass";
    let url = expand(import, scope, d.word(1).unwrap_or(""));
    let (scheme, rest) = url.split_once("://").unwrap_or((if grpc { "grpc" } else { "" }, &url));
    let tls = match scheme {
        "http" | "grpc" => false,
        "https" | "grpcs" => true,
        _ => {
            import.missing(d, "is not a URL that can be translated; requests get 501");
            return;
        }
    };
    let (authority, uri) = match rest.find('/') {
        _ if rest.starts_with("unix:") => (rest, None),
        Some(at) => (&rest[..at], Some(&rest[at..])),
        None => (rest, None),
    };
    let (authority, uri) = match authority.strip_suffix("${request_uri}") {
        Some(bare) => (bare, None),
        None => (authority, uri.filter(|u| *u != "${request_uri}")),
    };
    headers::request(import, scope, if grpc { "grpc_set_header" } else { "proxy_set_header" }, site.port, changes);
    let to = Target { protocol: if grpc { Protocol::Grpc } else { Protocol::Http }, tls, authority };
    if has_variables(authority) {
        return variable(import, scope, d, authority, uri, &to, changes, route);
    }
    let rewrite = match (path, uri) {
        (_, None) => match (path, rewritten) {
            (Path::Below(p), Some((new, place))) if *p == text => Some((new, place)),
            (_, Some(_)) => return import.missing(d, "a single path is passed on as it is; requests get 501"),
            _ => None,
        },
        (_, Some(uri))
            if has_variables(uri) || uri.contains(['?', '#']) || !uri.bytes().all(|b| b.is_ascii_graphic()) =>
        {
            return import.missing(d, "rewrite_prefix is a constant without a query; requests get 501");
        }
        (Path::Exact(p), Some(uri)) if p == uri => None,
        (Path::Exact(_), Some(_)) => {
            return import.missing(
                d,
                "a single path is passed on as it is (rewrite_prefix is for a path and all below); requests get 501",
            );
        }
        (Path::Below(p), Some(uri)) if p == uri => None,
        (Path::Below(p), Some(uri)) => {
            if p.ends_with('/') != uri.ends_with('/') {
                import.differs(
                    d,
                    format!("{p}…/x becomes {}/x: there is exactly one slash between", uri.trim_end_matches('/')),
                );
            }
            Some((uri.to_owned(), d.place.clone()))
        }
    };
    if let Some(name) = upstreams::upstream(import, scope, d, &to, changes.host.as_ref()) {
        import.same(d, format!("upstream \"{name}\""));
        (route.action, route.origin, route.rewrite) = (Action::Upstream(name), d.place.clone(), rewrite);
    }
}

/// `proxy_pass http://$variable`, where a `map` chooses a group by a header.
#[expect(clippy::too_many_arguments, reason = "what is read, and what is written into")]
fn variable<'d>(
    import: &mut Import<'d>,
    scope: &Scope<'d>,
    d: &'d Directive,
    authority: &str,
    uri: Option<&str>,
    to: &Target,
    changes: &mut Changes,
    route: &mut Route,
) {
    let name = match pieces(authority).as_slice() {
        [Piece::Variable(name)] => (*name).to_owned(),
        _ => String::new(),
    };
    if matches!(name.as_str(), "host" | "http_host" | "ssl_preread_server_name") || name.starts_with("arg_") {
        return import.decide(d, "clients choose the server: Sealane is no open proxy; name the servers");
    }
    let Some(map) = import.maps.get(name.as_str()).copied() else {
        return import.missing(
            d,
            "the server is chosen by a variable; name it, or choose by routes with \"headers\"; requests get 501",
        );
    };
    let default = map.inner().iter().find(|e| e.name() == "default").and_then(|e| e.word(1));
    let Some(default) = default.filter(|v| !has_variables(v) && uri.is_none()) else {
        return import
            .missing(d, "the server is chosen by a variable; choose by routes with \"headers\"; requests get 501");
    };
    let main = Target { protocol: to.protocol, tls: to.tls, authority: default };
    let Some(group) = upstreams::upstream(import, scope, d, &main, changes.host.as_ref()) else { return };
    import.same(d, format!("upstream \"{group}\", or what the map says"));
    (route.action, route.origin) = (Action::Upstream(group), d.place.clone());
    let source = map.word(1).unwrap_or("");
    let Some(header) = source.strip_prefix("$http_").map(super::conditions::header_name) else {
        return import.missing(
            map,
            format!("what is chosen by {source} needs a server that chooses; only its default is translated"),
        );
    };
    import.differs(map, "routes with \"headers\"; upper and lower case differ in the header's value");
    for entry in map.inner().iter().filter(|e| e.name() != "default") {
        let (value, group) = (entry.name(), entry.word(1).unwrap_or(""));
        if value.starts_with('~')
            || value.ends_with('*')
            || group.is_empty()
            || has_variables(group)
            || entry.words.len() != 2
        {
            import.missing(map, format!("{value}: a header's value is a constant"));
            continue;
        }
        let rule =
            if value.is_empty() { "false".to_owned() } else { crate::output::quoted(value.trim_start_matches('\\')) };
        let to = Target { protocol: to.protocol, tls: to.tls, authority: group };
        if let Some(name) = upstreams::upstream(import, scope, d, &to, changes.host.as_ref()) {
            import.chosen.push(Chosen { header: header.clone(), rule, upstream: name, place: entry.place.clone() });
        }
    }
}
