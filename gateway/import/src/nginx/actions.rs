//! What a server or location does: `return`, `rewrite`, `if`, `proxy_pass`, `try_files`.

use super::chosen;
use super::conditions::{Condition, condition, of_variable, parts};
use super::geo;
use super::headers::{self, Changes};
use super::inner;
use super::locations::{Location, NewPath, Site, Step, Then, When};
use super::maps;
use super::parser::Directive;
use super::referers;
use super::responses;
use super::scope::{Import, Scope};
use super::table;
use super::upstreams::{self, Protocol, Target};
use super::variables::{expand, has_variables, target};
use crate::output::{Action, Path, Route, list};
use crate::paths::PathTest;
use crate::patterns::{self, Expression, capture};
use crate::report::{MEANWHILE, PLACES};
use crate::values::{self, COOKIE};
use crate::{Kind, Outcome};

/// Directives that pass requests on: NGINX redirects `/x` to `/x/` where a location `/x/` has one.
pub(super) const PASSES: &[&str] =
    &["proxy_pass", "grpc_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "memcached_pass"];

/// The `rewrite` that has replaced the path of a request.
#[derive(Clone)]
pub(super) struct Rewritten<'d> {
    pub d: &'d Directive,
    /// The new path, if a location was selected for it.
    pub to: Option<String>,
}

/// The redirect that a `rewrite` makes, and the paths that it is for.
pub(super) fn redirect(d: &Directive, name: Option<&str>) -> Option<(When, Action)> {
    let (pattern, replacement) = (d.word(1)?, d.word(2)?);
    let absolute = ["http://", "https://", "$scheme://"].iter().any(|p| replacement.starts_with(p));
    let status = match (d.word(3), d.words.len()) {
        (Some("permanent"), 4) => 301,
        (Some("redirect"), 4) => 302,
        (Some("last" | "break"), 4) | (None, 3) if absolute => 302,
        _ => return None,
    };
    let (text, query) = match replacement.strip_suffix('?') {
        Some(bare) => (bare, false),
        None => (replacement, true),
    };
    let beginning = of_beginning(pattern, text, query, status, name);
    // Routes match whole segments: `^/old(.*)$` also matches `/older`, as only its expression says.
    match (beginning, is_of_segments(pattern)) {
        (Some(found), true) => Some(found),
        (found, _) => of_expression(pattern, text, query, status, name).or(found),
    }
}

/// Whether a pattern that captures the rest of a path captures whole segments.
fn is_of_segments(pattern: &str) -> bool {
    capture(pattern).is_none_or(|r| {
        let optional = r.slash && pattern.contains("/?");
        !r.rest || r.prefix.is_empty() || r.prefix.ends_with('/') || (r.slash && !optional)
    })
}

/// A redirect with the groups of an expression.
fn of_expression(pattern: &str, text: &str, query: bool, status: u16, name: Option<&str>) -> Option<(When, Action)> {
    let expression = Expression::of(pattern, false).filter(|e| !e.is_of_percent)?;
    // NGINX joins two queries with "&".
    if query && text.contains('?') && !text.contains("$args") {
        return None;
    }
    let groups = expression.groups();
    let mut to = with_groups(target(&mark_groups(text, groups), name).ok()?, groups);
    if query && !["$request_uri", "$args", "?"].iter().any(|q| text.contains(q)) {
        to.push_str("{query}");
    }
    Some((When::Expression(expression), Action::Redirect { to, status }))
}

/// Puts a mark in the place of each group of an expression.
fn mark_groups(text: &str, groups: usize) -> String {
    let marked = |text: String, n| text.replace(&format!("${{{n}}}"), &mark(n)).replace(&format!("${n}"), &mark(n));
    (1..=groups.min(9)).fold(text.to_owned(), marked)
}

fn mark(n: usize) -> String {
    format!("-GROUP-{n}-")
}

/// The groups that have marks, as Sealane names them.
fn with_groups(text: String, groups: usize) -> String {
    (1..=groups.min(9)).fold(text, |text, n| text.replace(&mark(n), &format!("{{{n}}}")))
}

/// A redirect with the rest of the path.
fn of_beginning(pattern: &str, text: &str, query: bool, status: u16, name: Option<&str>) -> Option<(When, Action)> {
    let r = capture(pattern)?;
    let mut text = text.to_owned();
    let whole = r.prefix.is_empty() || r.prefix == "/";
    // What is captured, with the query behind it.
    let captured = match (whole, query) {
        (true, true) => "{uri}".to_owned(),
        (true, false) => "{path}".to_owned(),
        (false, true) => format!("{{rest {}}}", r.prefix.trim_end_matches('/')),
        (false, false) => String::new(),
    };
    if r.rest {
        let slashed = if r.slash { "$1".to_owned() } else { "/$1".to_owned() };
        // `{rest}` begins with a slash, like a path.
        match text.contains(&slashed) {
            true if captured.is_empty() => return None,
            true => text = text.replacen(&slashed, "\u{1}", 1),
            false if text.contains("$1") => return None,
            false => {}
        }
    }
    let has_query =
        text.contains('\u{1}') || text.contains("$request_uri") || text.contains("$args") || text.contains('?');
    let mut to = target(&text.replace('\u{1}', "-CAPTURED-"), name).ok()?.replace("-CAPTURED-", &captured);
    if query && !has_query {
        to.push_str("{query}");
    }
    Some((paths_of(pattern)?, Action::Redirect { to, status }))
}

/// A redirect as the routes of a path have it: `{rest}` is what follows the path of the route, while a pattern captures what follows a
/// text. `None`: the route does not say what that is.
pub(super) fn at_path(action: &Action, path: &Path) -> Option<Action> {
    let Action::Redirect { to, status } = action else { return Some(action.clone()) };
    let Some((before, behind)) = to.split_once("{rest ") else { return Some(action.clone()) };
    let (text, behind) = behind.split_once('}')?;
    let (Path::Below(own) | Path::Exact(own)) = path else { return None };
    let more = match path {
        Path::Below(_) => own.trim_end_matches('/').strip_prefix(text)?,
        _ => own.strip_prefix(text)?,
    };
    let to = format!("{before}{more}{{rest}}{behind}");
    (more.is_empty() || more.starts_with('/')).then_some(Action::Redirect { to, status: *status })
}

/// The paths for which a pattern of `rewrite` is.
fn paths_of(pattern: &str) -> Option<When> {
    let tests = patterns::paths(pattern, false)?;
    let all = tests.iter().any(|t| t.text == "/" && t.matches("/"));
    let everything = all && tests.iter().any(|t| t.matches("/x"));
    Some(if everything { When::Always } else { When::Paths(tests) })
}

/// What `return` answers. `groups`: how many the expression of its location has.
pub(super) fn answer<'d>(
    import: &mut Import<'d>,
    scope: &Scope<'d>,
    d: &'d Directive,
    name: Option<&str>,
    groups: usize,
) -> Action {
    let (status, text) = match (d.word(1).and_then(|s| s.parse::<u16>().ok()), d.word(2)) {
        (Some(status), text) => (status, text),
        (None, _) => (302, d.word(1)),
    };
    let text = text.map(|t| expand(import, scope, t));
    match (status, text) {
        (444, _) => {
            import.differs_a_little(d, "clients get 404; NGINX closes the connection without a response");
            Action::status(404)
        }
        (301 | 302 | 303 | 307 | 308, Some(url)) => match target(&mark_groups(&url, groups), name) {
            Ok(to) => {
                import.same(d, "redirect");
                Action::Redirect { to: with_groups(to, groups), status }
            }
            Err(what) => {
                import.missing(d, format!("a redirect cannot contain {what}; requests get 501"));
                Action::untranslated()
            }
        },
        (200..=599, text) => {
            let mut body = text.unwrap_or_default();
            if has_variables(&body) || body.len() > 60_000 {
                import.missing(d, "a body must be a short constant; the body is left out");
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
                    Action::respond(status, body, kind.map(|(_, v)| v.to_owned()))
                }
            }
        }
        _ => {
            import.missing(d, "Sealane cannot respond with this status; requests get 501");
            Action::untranslated()
        }
    }
}

/// Whether `rewrite ^/api/(.*)$ /v1/$1 break;` is a `rewrite_prefix`, and the paths that it is for.
pub(super) fn is_new_prefix(d: &Directive) -> Option<When> {
    let (from, _) = prefixes(d)?;
    // It matches each path below, which is asked again for the path of the route.
    (!from.is_empty()).then(|| paths_of(d.word(1)?)).flatten()
}

/// Whether `rewrite ^/u/([0-9]+)$ /users/$1 break;` is a `rewrite`, and the paths that it is for.
pub(super) fn is_new_path(d: &Directive) -> Option<When> {
    new_path(d).map(|(expression, _)| When::Expression(expression))
}

/// The expression of a `rewrite … break`, and the path with its groups.
fn new_path(d: &Directive) -> Option<(Expression, String)> {
    path_with_groups(d).filter(|_| d.word(3) == Some("break") && d.words.len() == 4)
}

/// The expression of a `rewrite`, and the path with its groups.
fn path_with_groups(d: &Directive) -> Option<(Expression, String)> {
    let text = d.word(2)?;
    let expression = Expression::of(d.word(1)?, false).filter(|e| !e.is_of_percent)?;
    let marked = mark_groups(text, expression.groups());
    let good = text.starts_with('/')
        && !text.starts_with("//")
        && !marked.contains(['$', '?', '#', '{', '}', '%'])
        && text.bytes().all(|b| b.is_ascii_graphic());
    let groups = expression.groups();
    good.then(|| (expression, with_groups(marked, groups)))
}

/// Says of the directives of NGINX's rewrite module behind `last`, which ends them, that no request gets to them.
pub(super) fn unreached<'d>(import: &mut Import<'d>, block: &'d [Directive], last: &Directive) {
    let says = format!("not reached: {} ends the rewrite directives of this block", named(last));
    for d in block.iter().skip_while(|d| d.id != last.id).skip(1) {
        if matches!(d.name(), "break" | "if" | "return" | "rewrite" | "set") {
            import.whole(d, Outcome::Same, &says);
        }
    }
}

/// A directive with its place: `return (site.conf:12)`.
pub(super) fn named(d: &Directive) -> String {
    let file = d.place.file.rsplit('/').next().unwrap_or_default();
    format!("{} ({file}:{})", d.name(), d.place.line)
}

/// Why a `rewrite` is undecided.
const NO_SEARCH: &str = "this rewrite cannot be translated. Sealane replaces a path by a constant, or with the groups of one \
     expression: write a route with path_regex and rewrite, or let the server rewrite the path";

/// The step of a `rewrite` that is undecided: its requests get 501, so that no other route takes them meanwhile. `None`: no route selects
/// just these requests. `single`: routes of this location have an expression already.
pub(super) fn undecided<'d>(import: &mut Import<'d>, d: &'d Directive, single: bool) -> Option<Step<'d>> {
    let when = undecided_paths(d).filter(|when| !single || !matches!(when, When::Expression(_)));
    let meanwhile = if when.is_some() { "Until then, these requests get 501" } else { MEANWHILE };
    let query = match d.word(2).is_some_and(|w| w.contains('?')) {
        true => {
            ". A rewritten path has no query of its own; only a redirect can write one: path_regex and redirect = { to = \
             \"{scheme}://{host}/path?name={1}\", status = 302 }, if clients may see the new URL"
        }
        false => "",
    };
    import.decide(d, format!("{NO_SEARCH}{query}. {meanwhile}"));
    Some(Step { d, when: when?, then: Then::Answer(Action::untranslated()) })
}

/// The paths that a `rewrite` is for, where these are not all paths.
fn undecided_paths(d: &Directive) -> Option<When> {
    let pattern = d.word(1)?;
    match paths_of(pattern) {
        Some(When::Always) => None,
        Some(When::Paths(tests)) if tests.iter().all(PathTest::is_route) => Some(When::Paths(tests)),
        _ => Expression::of(pattern, false).filter(|e| !e.is_of_percent).map(When::Expression),
    }
}

/// Why a `rewrite` is undecided whose new paths may get to several locations: with the route that gets to the first of them.
/// `checks`: what protects these locations.
pub(super) fn several(d: &Directive, template: &str, checks: &[&Directive]) -> String {
    let repeat = match checks.is_empty() {
        true => String::new(),
        false => format!(
            ". A route inherits nothing from other routes: copy the settings that protect the location into the new \
             route: {}",
            checks.iter().map(|d| named(d)).collect::<Vec<_>>().join(", ")
        ),
    };
    format!(
        "depending on the groups, the new paths may belong to several locations (a location with a regular \
         expression may match some of them). If all new paths belong to one location, write a route with path_regex \
         = '{}', rewrite = \"{template}\" and the upstream of that location. If not, let the server rewrite the \
         path{repeat}. Until then, these requests get 501",
        d.word(1).unwrap_or("")
    )
}

/// Whether NGINX selects a location for the new path of a `rewrite` in a block, and runs no other directive of the block before.
pub(super) fn searches(block: &[Directive], d: &Directive, of_server: bool) -> bool {
    let absolute = ["http://", "https://", "$scheme"].iter().any(|p| d.word(2).is_some_and(|w| w.starts_with(p)));
    match (d.word(3), d.words.len()) {
        _ if absolute => false,
        (Some("last"), 4) => true,
        // Behind the directives of a server, NGINX always selects a location.
        (Some("break"), 4) => of_server,
        // Without a flag, the next directives see the new path.
        (None, 3) => {
            let mut later = block.iter().skip_while(|other| other.id != d.id).skip(1);
            !later.any(|d| matches!(d.name(), "rewrite" | "if" | "return" | "break"))
        }
        _ => false,
    }
}

/// The paths that a `rewrite … last` is for, and what they become. `None`: no route says this.
pub(super) fn search(d: &Directive) -> Option<(When, NewPath)> {
    let (expression, template) = path_with_groups(d)?;
    let routed = |tests: &Vec<PathTest>| tests.iter().all(PathTest::is_route);
    let constant = !template.contains('{');
    match paths_of(d.word(1)?) {
        Some(When::Always) if constant => Some((When::Always, NewPath { template, tests: None })),
        Some(When::Paths(tests)) if constant && routed(&tests) => {
            Some((When::Paths(tests), NewPath { template, tests: None }))
        }
        Some(When::Always) => {
            let tests = Some(vec![PathTest::begins("/")]);
            Some((When::Expression(expression), NewPath { template, tests }))
        }
        Some(When::Paths(tests)) => {
            let tests = Some(tests).filter(routed);
            Some((When::Expression(expression), NewPath { template, tests }))
        }
        _ => Some((When::Expression(expression), NewPath { template, tests: None })),
    }
}

/// The beginnings before and after, with a slash at their ends.
fn prefixes(d: &Directive) -> Option<(String, String)> {
    if d.word(3) != Some("break") || d.words.len() != 4 {
        return None;
    }
    let r = capture(d.word(1)?)?;
    let head = d.word(2)?.strip_suffix("$1")?;
    let new = if r.slash { format!("{head}/") } else { head.to_owned() };
    let good = new.starts_with('/') && new.ends_with('/') && !new.contains(['$', '?', '#']) && !new.contains("//");
    if !r.rest || !good || !(r.slash || r.prefix.ends_with('/')) {
        return None;
    }
    Some((format!("{}/", r.prefix.trim_end_matches('/')), new))
}

/// What the beginning of the paths below `path` becomes.
fn new_prefix(d: &Directive, path: &str) -> Option<String> {
    let (from, new) = prefixes(d)?;
    // The location may be deeper than what is replaced.
    let own = format!("{}/", path.trim_end_matches('/'));
    Some(new + own.strip_prefix(from.as_str())?)
}

/// The block of an `if`.
enum Body {
    Answer(Action),
    /// It decides nothing.
    Nothing,
    Unknown,
}

fn body<'d>(import: &mut Import<'d>, d: &'d Directive, name: Option<&str>) -> Body {
    let mut out = Body::Nothing;
    for inner in d.inner() {
        match (inner.name(), &out) {
            // A variable that `if` changes is no constant: what uses it is not translated.
            ("set", Body::Nothing) => import
                .missing(inner, "Sealane has no variables; the report names the directives that use this variable"),
            ("access_log" | "log_not_found" | "rewrite_log", _) => {}
            // Those of the answer.
            ("add_header", _) => {}
            ("return", Body::Nothing) => out = Body::Answer(answer(import, &Scope::of(d.inner()), inner, name, 0)),
            ("rewrite", Body::Nothing) => match redirect(inner, name) {
                Some((When::Always, action)) => {
                    import.same(inner, "redirect");
                    out = Body::Answer(action);
                }
                _ => return Body::Unknown,
            },
            _ => return Body::Unknown,
        }
    }
    match out {
        Body::Nothing if d.inner().iter().any(|d| d.name() == "add_header") => Body::Unknown,
        out => out,
    }
}

/// Where a server is asked: for a name (as in `[[host]]`), at a port, over TLS or not.
pub(super) struct Asked<'a> {
    pub name: &'a str,
    pub port: u16,
    pub tls: bool,
}

/// The step that an `if` is; `None` where it decides nothing, or is not understood, which is reported. `asked`: for an `if` of a
/// server.
pub(super) fn if_step<'d>(
    import: &mut Import<'d>,
    scope: &Scope<'d>,
    d: &'d Directive,
    name: Option<&str>,
    asked: Option<&Asked>,
) -> Option<Step<'d>> {
    let known = maps::condition(import, d).or_else(|| referers::condition(import, scope, d));
    let condition = known.unwrap_or_else(|| condition(d));
    // Nobody knows which requests the block would answer.
    let is_known = condition != Condition::Unknown || geo::clients(import, d).is_some();
    let decides =
        |d: &Directive| !matches!(d.name(), "set" | "access_log" | "log_not_found" | "rewrite_log" | "add_header");
    if !is_known && d.inner().iter().any(decides) {
        unknown_if(import, d);
        return None;
    }
    let action = match body(import, d, name) {
        Body::Answer(action) => action,
        Body::Nothing => {
            import.missing(d, "it sets variables or logs only");
            return None;
        }
        Body::Unknown => {
            unknown_if(import, d);
            return None;
        }
    };
    let constant = |import: &mut Import<'d>, holds: bool| {
        import.same(d, "a separate host");
        holds.then(|| Step { d, when: When::Always, then: Then::Answer(action.clone()) })
    };
    if let Some((clients, geo)) = geo::clients(import, d) {
        if !action.is_refusal() {
            unknown_if(import, d);
            return None;
        }
        if let Some(geo) = geo {
            import.same(geo, "deny");
        }
        match action == Action::status(403) {
            true => import.same(d, "deny"),
            false => import.differs(d, "deny: the status is 403"),
        }
        return Some(Step { d, when: When::Clients(clients), then: Then::Answer(action) });
    }
    match condition.without_claim() {
        // What answers before would let requests through, or refuse all.
        Some(holds) if !import.trusts && (!holds || action.is_refusal()) => {
            import.decide(d, values::claim_decides());
            for inner in d.inner() {
                import.whole(inner, Outcome::NotTranslated, "see the condition");
            }
            return None;
        }
        Some(_) => import.differs(d, values::CLAIM),
        None => {}
    }
    let when = match (condition, asked) {
        (Condition::Tls(wanted), Some(asked)) => return constant(import, wanted == asked.tls),
        (Condition::Port(port, wanted), Some(asked)) => return constant(import, (port == asked.port) == wanted),
        (Condition::Host(names, wanted), Some(asked)) => {
            let holds = names.iter().any(|n| n == asked.name) == wanted;
            return constant(import, holds);
        }
        // Without TLS, the variable is empty.
        (Condition::NoCertificate { over_tls: true }, Some(asked)) if !asked.tls => {
            return constant(import, false);
        }
        (Condition::NoCertificate { over_tls }, asked) if action.is_refusal() && (!over_tls || asked.is_some()) => {
            match action == Action::status(403) {
                true => import.same(d, "allow_certificate"),
                false => import.differs(d, "allow_certificate: the status is 403"),
            }
            return Some(Step { d, when: When::NoCertificate, then: Then::Answer(action) });
        }
        (Condition::OtherCertificate(_), Some(asked)) if !asked.tls => return constant(import, true),
        (Condition::OtherCertificate(names), _) if action.is_refusal() => {
            match action == Action::status(403) {
                true => import.same(d, "allow_certificate"),
                false => import.differs(d, "allow_certificate: the status is 403"),
            }
            return Some(Step { d, when: When::OtherCertificate(names), then: Then::Answer(action) });
        }
        (Condition::Method(list, is), _) => When::Method(list, is),
        (Condition::Values(any), _) => {
            if any.iter().any(|(_, rule)| rule == "true") {
                import.differs(
                    d,
                    "in Sealane, the condition is true if the header or cookie is present, even with an empty value or 0",
                );
            }
            cookies_differ(import, d, &any);
            When::Values(any)
        }
        (Condition::Except { any, except }, _) => {
            cookies_differ(import, d, &any);
            When::Except(any, except)
        }
        (Condition::OtherValue(name, value), _) if action.is_refusal() && !name.starts_with(COOKIE) => {
            // Of two values, a server may read the other one.
            if !is_allowed(&value) {
                unknown_if(import, d);
                return None;
            }
            match action == Action::status(403) {
                true => import.same(d, "allow_header"),
                false => import.differs(d, "allow_header: the status is 403"),
            }
            return Some(Step { d, when: When::OtherValue(name, value), then: Then::Answer(action) });
        }
        (Condition::OtherValue(name, value), _) => {
            let any = vec![(name, values::negated(&values::equal(&value)))];
            cookies_differ(import, d, &any);
            When::Values(any)
        }
        (Condition::Unmatched { name, rule, anywhere }, _) if anywhere || !action.is_refusal() => {
            let any = vec![(name, rule)];
            cookies_differ(import, d, &any);
            When::Values(any)
        }
        _ => {
            unknown_if(import, d);
            return None;
        }
    };
    import.same(d, "a route with a condition");
    Some(Step { d, when, then: Then::Answer(action) })
}

/// Whether `allow_header` has a text as a value.
fn is_allowed(value: &str) -> bool {
    let plain = value.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
    plain && !value.is_empty() && value.trim() == value && !value.ends_with('*')
}

fn cookies_differ<'d>(import: &mut Import<'d>, d: &'d Directive, any: &[(String, String)]) {
    if any.iter().any(|(name, _)| name.starts_with(COOKIE)) {
        import.differs_a_little(d, COOKIES_DIFFER);
    }
}

/// What is said where cookies are compared.
pub(super) const COOKIES_DIFFER: &str = "cookies: the name of the cookie is in lower case, and if a request has several cookies of this name, all of them are compared";

/// The settings to write in the place of an `if` that is not translated.
fn instead(import: &Import, d: &Directive) -> Option<String> {
    let condition = parts(d)?;
    let returns = |status: &str| d.inner().iter().any(|d| d.name() == "return" && d.word(1) == Some(status));
    if returns("503") {
        return Some(
            "if this is a maintenance page, write maintenance = { page = \"FILE\", retry_after = \"30m\", allow = [\"10.0.0.0/8\"] } in \
             the host or route, with enabled = false until you need it; to change it, edit this setting and run `sealane reload`"
                .to_owned(),
        );
    }
    if condition.variable == "invalid_referer" {
        return Some("write the routes that the entry of valid_referers describes".to_owned());
    }
    let map = import.maps.get(condition.variable.as_str()).copied();
    let source = map.and_then(|m| m.word(1)).map(|w| w.replace(['{', '}', '$'], ""));
    let variable = source.as_deref().unwrap_or(&condition.variable);
    if variable.starts_with("ssl_client") {
        return Some(
            "write allow_certificate in the host or route. To compare the whole subject, write \"subject:CN=a.example,O=Example,C=DE\"; \
             \"cn:a.example\" compares only the CN, which another certificate of the same authority can have, too"
                .to_owned(),
        );
    }
    if matches!(variable, "scheme" | "https") {
        return Some(
            "write two [[host]] with the same names, each with its own routes: one with listeners = [\":80\"], and one with \
             listeners = [\":443\"] (the addresses of your listeners)"
                .to_owned(),
        );
    }
    if let Some(geo) = import.geos.get(variable) {
        return Some(format!(
            "write the addresses of the geo into allow or deny of the host or route, into allow of maintenance, or into exempt of a \
             [[rate_limit]]{}",
            geo::shown(geo)
        ));
    }
    let name = of_variable(variable)?;
    if let Some(map) = map {
        // The map names what is refused, and not what may pass.
        let key = map.inner().iter().map(Directive::name).find(|key| key.starts_with('~'));
        let known = key
            .map(maps::expression)
            .filter(|(text, any_case)| values::matched(&[(text.as_str(), *any_case)]).is_some());
        let regex = match known {
            Some((text, true)) => format!("(?i){text}"),
            Some((text, false)) => text,
            None => "…".to_owned(),
        };
        let (table, name) = name.strip_prefix(COOKIE).map_or(("headers", name.as_str()), |cookie| ("cookies", cookie));
        return Some(format!(
            "for each path of this server or location, write a route before its other routes, with {table} = {{ {name} = {{ regex = '{regex}' \
             }} }} and what the block does (for example, respond = {{ status = 403 }}). A value that the map excepts gets a route before that one"
        ));
    }
    let name = Some(name).filter(|name| !name.starts_with(COOKIE) && (returns("403") || returns("401")))?;
    let texts = match condition.operator.as_str() {
        "!~" => patterns::texts(&condition.value).filter(|all| all.iter().all(|text| is_allowed(text))),
        _ => None,
    };
    let texts = texts.filter(|all| all.len() <= MAX_TEXTS).map_or_else(|| "[\"TEXT\", …]".to_owned(), |all| list(&all));
    Some(format!(
        "write allow_header = {{ {name} = {texts} }} in the host or route, with each value that may pass. Requests with another value, or \
         without this header, get 403"
    ))
}

/// Most values of a header that the report names.
const MAX_TEXTS: usize = 16;

fn unknown_if<'d>(import: &mut Import<'d>, d: &'d Directive) {
    let looks = ["(?!", "(?=", "(?<!", "(?<="].iter().any(|look| d.arguments().iter().any(|a| a.contains(look)));
    let says = match (looks, instead(import, d)) {
        (true, _) => {
            "Sealane's expressions have no look-ahead and no look-behind. Write two routes: first a route for \
                      the header values that the expression excludes, then a route for all other values; or let the \
                      server decide"
                .to_owned()
        }
        (false, Some(advice)) => {
            format!("this condition, or a directive in its block, cannot be translated: {advice}")
        }
        (false, None) => {
            "this condition, or a directive in its block, cannot be translated: let the server decide. Sealane \
                          can compare hosts, ports, methods, headers and cookies, and can refuse addresses"
                .to_owned()
        }
    };
    let map = parts(d).and_then(|p| import.maps.get(p.variable.as_str()).copied());
    let of_path = |map: &&Directive| {
        let source = map.word(1).unwrap_or_default().replace(['{', '}'], "");
        matches!(source.as_str(), "$uri" | "$document_uri" | "$request_uri")
    };
    let table = match map.filter(of_path) {
        Some(map) => {
            import.missing(map, format!("see {}", named(d)));
            ". If the map has the targets of redirects, write a route with redirects = { paths = { \"/old\" = \"/new\" }, \
             status = 301, ignore_case = true }, and a route with path_regex and redirect for each expression"
        }
        None => "",
    };
    import.decide(d, format!("{says}{table}. {MEANWHILE}"));
    for inner in d.inner() {
        import.whole(inner, Outcome::NotTranslated, "see the condition");
    }
}

/// What answers the requests of a location. `named`: where its `try_files` ends.
#[expect(clippy::too_many_arguments, reason = "what is read, and what is written into")]
pub(super) fn content<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    l: &Location<'d>,
    named: Option<&Location<'d>>,
    path: &Path,
    rewritten: Option<Rewritten<'d>>,
    changes: &mut Changes,
    route: &mut Route,
) {
    if rewritten.is_none() && inner::serves(import, site, l, named) {
        return inner::pass(import, site, l, named, changes, route);
    }
    let block = l.directive().inner();
    let passes = |block: &'d [Directive]| block.iter().rfind(|d| d.name() == "proxy_pass" || d.name() == "grpc_pass");
    if let Some(d) = passes(block) {
        if let Some(files) = block.iter().find(|d| d.name() == "try_files") {
            import.decide(files, "the import does not know which requests are for files: let the server decide");
        }
        return pass(import, site, l, d, path, rewritten, changes, route);
    }
    if let (Some(d), Some(named)) = (block.iter().rfind(|d| d.name() == "try_files"), named) {
        import.same(named.directive(), "used by try_files");
        if let Some(pass_) = passes(named.directive().inner()) {
            import.differs(d, "Sealane serves no files: all requests go to the server");
            return pass(import, site, named, pass_, path, rewritten, changes, route);
        }
    }
    let handled = block
        .iter()
        .any(|d| PASSES.contains(&d.name()) || matches!(d.name(), "stub_status" | "root" | "alias" | "try_files"));
    if !handled {
        import.missing(l.directive(), "Sealane serves no files: requests get 501; name a server for them");
    } else {
        import.differs(l.directive(), PLACES);
    }
}

/// Whether a URL of `proxy_pass` needs TLS, its authority, and its path, if it has one.
pub(super) fn parts_of_url(url: &str) -> Option<(bool, &str, Option<&str>)> {
    let (scheme, rest) = url.split_once("://")?;
    let tls = match scheme {
        "http" | "grpc" => false,
        "https" | "grpcs" => true,
        _ => return None,
    };
    Some(match rest.find('/') {
        _ if rest.starts_with("unix:") => match rest[5..].split_once(':') {
            Some((path, uri)) => (tls, &rest[..5 + path.len()], Some(uri).filter(|uri| !uri.is_empty())),
            None => (tls, rest, None),
        },
        Some(at) => (tls, &rest[..at], Some(&rest[at..])),
        None => (tls, rest, None),
    })
}

#[expect(clippy::too_many_arguments, reason = "what is read, and what is written into")]
fn pass<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    l: &Location<'d>,
    d: &'d Directive,
    path: &Path,
    rewritten: Option<Rewritten<'d>>,
    changes: &mut Changes,
    route: &mut Route,
) {
    let scope = l.scope();
    let grpc = d.name() == "grpc_pass";
    let url = expand(import, scope, d.word(1).unwrap_or(""));
    let url = if grpc && !url.contains("://") { format!("grpc://{url}") } else { url };
    let Some((tls, authority, uri)) = parts_of_url(&url) else {
        return import.missing(d, "is not a URL that can be translated; requests get 501");
    };
    let (authority, uri, rewritten) = match authority.strip_suffix("${request_uri}") {
        // The path of the client, whatever it has become since.
        Some(bare) => (bare, None, None),
        None => (authority, uri, rewritten),
    };
    headers::request(import, site, scope, if grpc { "grpc_set_header" } else { "proxy_set_header" }, changes);
    route.upgrade = Some(headers::upgrade(import, scope, d));
    let to = Target { protocol: if grpc { Protocol::Grpc } else { Protocol::Http }, tls, authority };
    pass_to(import, l, d, path, rewritten, (&to, uri), changes, route);
    match route.action.passes() {
        true => route.rewrites = responses::rewrites(import, l, d, &to, uri, changes.host.as_ref()),
        false => unpassed(import, l, d),
    }
}

/// Says of the directives of a location whose requests get 501 that nothing takes the place of those about its server.
fn unpassed<'d>(import: &mut Import<'d>, l: &Location<'d>, pass: &'d Directive) {
    let is_of_server = |d: &&Directive| {
        let is_named = d.name().starts_with("proxy_") || d.name().starts_with("grpc_");
        is_named && d.id != pass.id && matches!(table::kind(d.name()), Some(Kind::Translated(_)))
    };
    // What protects cookies stays a decision.
    let protects = |d: &&Directive| d.arguments().iter().any(|a| a.contains(';'));
    let says = format!("see {}", named(pass));
    for d in l.directive().inner().iter().filter(|d| is_of_server(d) && !protects(d)) {
        if import.report.worst(d.id).is_none_or(|worst| worst == Outcome::Same) {
            import.report.replace(d.id, Outcome::NotTranslated, &says);
        }
    }
}

/// Sends the requests of a location to a server, if routes can do what is done with their path.
#[expect(clippy::too_many_arguments, reason = "what is read, and what is written into")]
fn pass_to<'d>(
    import: &mut Import<'d>,
    l: &Location<'d>,
    d: &'d Directive,
    path: &Path,
    rewritten: Option<Rewritten<'d>>,
    (to, uri): (&Target, Option<&str>),
    changes: &mut Changes,
    route: &mut Route,
) {
    let (scope, authority) = (l.scope(), to.authority);
    if rewritten.is_some() && (uri.is_some() || has_variables(authority)) {
        return import.missing(
            d,
            "two directives rewrite the path; requests get 501: write a route with path_regex and rewrite",
        );
    }
    if has_variables(authority) {
        return chosen::variable(import, scope, d, uri, to, changes, route);
    }
    let constant =
        |uri: &str| !has_variables(uri) && !uri.contains(['?', '#']) && uri.bytes().all(|b| b.is_ascii_graphic());
    let otherwise =
        "the rewrite does not replace the beginning of the path; requests get 501: write a route with rewrite";
    let mut template = None;
    if let Some(Rewritten { d: origin, to: Some(to) }) = &rewritten {
        if to.contains('{') && !matches!(path, Path::Below(_)) {
            return import.missing(d, otherwise);
        }
        template = Some((to.clone(), origin.place.clone()));
    }
    let rewritten = rewritten.filter(|r| r.to.is_none()).map(|r| r.d);
    let rewrite = match (path, uri, rewritten) {
        (_, None, None) => None,
        (Path::Below(_), None, Some(rewrite)) if is_new_prefix(rewrite).is_none() => {
            template = new_path(rewrite).map(|(_, to)| (to, rewrite.place.clone()));
            None
        }
        (Path::Below(p), None, Some(rewrite)) => match new_prefix(rewrite, p) {
            Some(new) => Some((new, rewrite.place.clone())),
            None => return import.missing(d, otherwise),
        },
        (Path::Exact(p), None, Some(rewrite)) => {
            let found = prefixes(rewrite).and_then(|(from, new)| Some(new + p.strip_prefix(&from)?));
            let Some(new) = found else { return import.missing(d, otherwise) };
            template = Some((new, rewrite.place.clone()));
            None
        }
        (Path::Within(_), None, Some(_)) => return import.missing(d, otherwise),
        (_, Some(uri), _) if !constant(uri) => {
            return import.missing(
                d,
                "the new path has a variable, a query or a character that a path cannot have; requests get 501: write \
                 a route with path_regex and rewrite, or let the server rewrite the path",
            );
        }
        (Path::Within(within), Some(uri), _) => {
            if l.text() != Some(within.test.text.as_str()) || within.test.any_case {
                return import.missing(
                    d,
                    "the path does not begin with the replaced part; requests get 501: write a route with path_regex \
                     and rewrite",
                );
            }
            template = Some((format!("{uri}{{1}}"), d.place.clone()));
            None
        }
        (Path::Below(p) | Path::Exact(p), Some(uri), _) => {
            // The route may be for less than the location.
            let Some(text) = l.text() else {
                return import.missing(
                    d,
                    "the import does not know which part of the path is replaced; requests get 501: write a route \
                     with path_regex and rewrite",
                );
            };
            let new = match p.strip_prefix(text) {
                Some(rest) => format!("{uri}{rest}"),
                None if p.trim_end_matches('/') == text.trim_end_matches('/') => uri.to_owned(),
                None => {
                    return import.missing(
                        d,
                        "the path does not begin with the replaced part; requests get 501: write a route with rewrite",
                    );
                }
            };
            match path {
                _ if new == *p => None,
                Path::Below(_) => {
                    if text.ends_with('/') != uri.ends_with('/') {
                        import.differs(
                            d,
                            format!(
                                "for a request below {text}, the server gets a path such as {}/x, with exactly one \
                                 slash before the rest of the path; NGINX only replaces {text} by {uri}, and does not \
                                 add or remove a slash",
                                uri.trim_end_matches('/')
                            ),
                        );
                    }
                    Some((new, d.place.clone()))
                }
                _ if new.contains("//") => {
                    return import
                        .missing(d, "the new path has //; requests get 501: write a route with exact and rewrite");
                }
                _ => {
                    template = Some((new, d.place.clone()));
                    None
                }
            }
        }
    };
    if let Some(name) = upstreams::upstream(import, scope, d, to, changes.host.as_ref()) {
        import.same(d, format!("upstream \"{name}\""));
        (route.action, route.origin, route.rewrite) = (Action::Upstream(name), d.place.clone(), rewrite);
        route.template = template;
    }
}
