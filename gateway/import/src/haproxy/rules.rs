//! `http-request`, `use_backend` and the like, in their order, for one kind of requests.

use super::acl::{Acls, Atom, Condition, Left, Remarks, Test};
use super::parser::{Line, Proxy};
use crate::nginx::{FRAMING, is_name, is_value};
use crate::output::{Action, Edits, Path};
use crate::report::{Place, Report};
use std::collections::BTreeMap;

/// A rule that has been read.
pub(super) struct Rule<'l> {
    pub line: &'l Line,
    pub condition: Condition,
    pub what: What,
}

/// What a rule does.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// It answers.
    Answer(Action),
    Backend(String),
    Header(Of, Edit),
    /// The beginning of the path is replaced.
    Prefix {
        from: String,
        to: String,
    },
    /// It refuses requests, and cannot be translated.
    Refuse(&'static str),
    /// A limit by a stick table.
    Deny,
    /// It decides nothing about who may connect, and cannot be translated.
    Skip(&'static str),
}

/// Whose headers are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Requests,
    /// Of servers.
    Responses,
    /// HAProxy's own, too.
    AllResponses,
}

#[derive(Clone, Debug)]
pub(super) enum Edit {
    Set(String, String),
    Add(String, String),
    Remove(String),
}

/// What rules lead to for an atom.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub action: Option<(Action, Place)>,
    pub backend: Option<(String, Place)>,
    /// Routes by method and header that come before.
    pub exceptions: Vec<Exception>,
    pub request: Edits,
    /// Of servers' responses.
    pub response: Edits,
    pub hsts: Option<(String, Place)>,
    /// Of all responses, HAProxy's own, too.
    pub after: Edits,
    pub after_hsts: Option<(String, Place)>,
    pub host: Option<(String, Place)>,
    pub rewrite: Option<(String, Place)>,
    /// Lines that refuse above a rate, with the number of requests.
    pub rates: Vec<(u32, crate::report::Id, Place)>,
}

#[derive(Clone, Debug)]
pub(super) struct Exception {
    pub methods: Vec<String>,
    pub headers: Vec<(String, String)>,
    /// What is done with them.
    pub then: Box<Outcome>,
    pub place: Place,
}

/// Reads the rules of a proxy, in the order in which HAProxy applies them.
pub(super) fn rules<'l>(proxy: &Proxy<'l>, acls: &Acls<'l>, report: &mut Report) -> Vec<Rule<'l>> {
    let mut out = Vec::new();
    let lines: Vec<&'l Line> = proxy.all().collect();
    for kinds in
        [["http-request", "", ""], ["redirect", "", ""], ["use_backend", "http-response", "http-after-response"]]
    {
        for line in lines.iter().filter(|l| kinds.contains(&l.word(0))) {
            if let Some(rule) = rule(line, acls, report) {
                out.push(rule);
            }
        }
    }
    out
}

fn rule<'l>(line: &'l Line, acls: &Acls<'l>, report: &mut Report) -> Option<Rule<'l>> {
    let at = line.words.iter().position(|w| w == "if" || w == "unless").unwrap_or(line.words.len());
    let mut remarks = Remarks::default();
    let what = what(&line.words[..at]);
    let condition = acls.condition(line.from(at), &mut remarks);
    let refuses = matches!(&what, What::Refuse(_) | What::Deny) || matches!(&what, What::Answer(a) if a.is_refusal());
    let Some(condition) = condition else {
        match refuses {
            true => report.decide(
                line.id,
                "its condition is not understood, and it refuses requests: let the server refuse them",
            ),
            false => report.missing(line.id, "its condition is not understood"),
        }
        return None;
    };
    let of_request = |t: &Test| {
        matches!(t, Test::Host(_) | Test::Path(_) | Test::PathBegins(_) | Test::Method(_) | Test::Header(..))
    };
    if matches!(what, What::Header(Of::Responses | Of::AllResponses, _)) && condition.tests().any(of_request) {
        let says = "left out: HAProxy does not know the request's host, path and headers any more when a response comes, so it never \
                    applies this either";
        report.differs(line.id, says);
        return None;
    }
    if let What::Refuse(why) = &what {
        report.decide(line.id, *why);
        return None;
    }
    if let What::Skip(why) = &what {
        match why.strip_prefix("same:") {
            Some(why) => report.same(line.id, why),
            None => report.missing(line.id, *why),
        }
        return None;
    }
    for remark in remarks.0 {
        match refuses {
            true => report.decide(
                line.id,
                format!("{remark}: what is refused here is less than in HAProxy; add routes, or let the server refuse"),
            ),
            false => report.differs(line.id, remark),
        }
    }
    // A beginning that ends within a segment.
    for test in condition.tests() {
        let Test::PathBegins(texts) = test else { continue };
        for text in texts.iter().filter(|t| !t.ends_with('/')) {
            match refuses {
                true => report.decide(
                    line.id,
                    format!("a route's path has whole segments: {text} and {text}/x are meant, {text}x is not"),
                ),
                false => report.differs(line.id, format!("whole segments: {text} and {text}/x, not {text}x")),
            }
        }
    }
    Some(Rule { line, condition, what })
}

fn what(words: &[String]) -> What {
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let after = |name: &str| words.iter().position(|w| w == name).and_then(|i| words.get(i + 1)).map(String::as_str);
    match (word(0), word(1)) {
        ("use_backend", name) if !name.contains('%') => What::Backend(name.to_owned()),
        ("use_backend", _) => What::Skip("the backend is chosen by an expression: write a host or route for each"),
        ("redirect", _) => redirect(&words[1..]),
        ("http-request", "redirect") => redirect(&words[2..]),
        ("http-request", "deny" | "silent-drop" | "reject" | "tarpit") => {
            let status = after("deny_status").or(after("status")).and_then(|s| s.parse().ok());
            let default = if word(1) == "tarpit" { 500 } else { 403 };
            match status.unwrap_or(default) {
                429 => What::Deny,
                status @ 400..=599 => What::Answer(Action::status(status)),
                status @ 200..=299 => What::Answer(Action::status(status)),
                _ => What::Refuse("is no status that Sealane answers with"),
            }
        }
        ("http-request", "return") => {
            let status = after("status").and_then(|s| s.parse::<u16>().ok()).unwrap_or(200);
            let body = after("string").or(after("lf-string")).unwrap_or("");
            let odd =
                words.iter().any(|w| matches!(w.as_str(), "file" | "lf-file" | "errorfile" | "errorfiles" | "hdr"));
            if odd || body.contains("%[") || !(200..=599).contains(&status) || (300..400).contains(&status) {
                return What::Skip("an answer has a constant body (respond); let a server give it");
            }
            let content_type = after("content-type").map(str::to_owned);
            let body = if matches!(status, 204 | 205) { String::new() } else { body.to_owned() };
            What::Answer(Action::Respond { status, body, content_type })
        }
        ("http-request", "auth") => {
            What::Refuse("Sealane asks for no passwords; let the server ask, or require client certificates")
        }
        ("http-request", "allow") => {
            What::Refuse("it lets requests past the rules behind it: write a host or route for them")
        }
        ("http-request", "set-header") => header(Of::Requests, word(2), words.get(3..).unwrap_or_default(), true),
        ("http-request", "add-header") => header(Of::Requests, word(2), words.get(3..).unwrap_or_default(), false),
        ("http-request", "del-header") if words.len() == 3 && is_name(word(2)) => {
            What::Header(Of::Requests, Edit::Remove(word(2).to_owned()))
        }
        ("http-response" | "http-after-response", "set-header") => {
            header(of_responses(word(0)), word(2), words.get(3..).unwrap_or_default(), true)
        }
        ("http-response" | "http-after-response", "add-header") => {
            header(of_responses(word(0)), word(2), words.get(3..).unwrap_or_default(), false)
        }
        ("http-response" | "http-after-response", "del-header") if words.len() == 3 && is_name(word(2)) => {
            What::Header(of_responses(word(0)), Edit::Remove(word(2).to_owned()))
        }
        ("http-request", "replace-path" | "replace-uri") => prefix(word(2), word(3)),
        ("http-request", "set-path") => {
            // %[path,regsub(^/api/?,/)]
            let inner = word(2).strip_prefix("%[path,regsub(").and_then(|r| r.strip_suffix(")]"));
            match inner.and_then(|i| i.split_once(',')) {
                Some((from, to)) => {
                    let from = from.trim_matches('"').trim_end_matches("/?").trim_end_matches('/');
                    prefix(&format!("{from}/(.*)"), &format!("{}/\\1", to.trim_matches('"').trim_end_matches('/')))
                }
                None => What::Skip("paths are rewritten by a route's rewrite_prefix only; let the server do it"),
            }
        }
        ("http-request", "track-sc0" | "track-sc1" | "track-sc2") => What::Skip("same:counted by [[rate_limit]]"),
        ("http-request", "set-log-level" | "capture" | "set-var" | "unset-var" | "set-nice" | "sc-inc-gpc0") => {
            What::Skip("variables and captures have no counterpart; rules that use them are reported")
        }
        ("http-request", "wait-for-handshake") => {
            What::Skip("same:early data is accepted for safe methods only (early_data)")
        }
        ("http-request", "disable-l7-retry") => What::Skip("same:a request is sent again only where that is safe"),
        ("http-request", "normalize-uri") => What::Skip("same:ambiguous paths are refused on hosts with routes"),
        ("http-request", "set-src") => {
            What::Refuse("who the client is says trusted_proxies, in X-Forwarded-For or Forwarded")
        }
        ("http-request", "cache-use") | ("http-response", "cache-store") => {
            What::Skip("Sealane has no cache: put one between, or let the server cache")
        }
        ("http-response", "deny") => What::Refuse("responses are not refused: let the server decide"),
        ("http-request", _) => {
            What::Refuse("is not understood: say what it does with settings of Sealane, or leave it out")
        }
        _ => What::Skip("responses are changed by response_headers only"),
    }
}

fn redirect(words: &[String]) -> What {
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let code = words
        .iter()
        .position(|w| w == "code")
        .and_then(|i| words.get(i + 1))
        .and_then(|c| c.parse().ok())
        .unwrap_or(302);
    if !matches!(code, 301 | 302 | 303 | 307 | 308) || words.iter().any(|w| w == "set-cookie" || w == "clear-cookie") {
        return What::Skip("a redirect sets no cookies");
    }
    let drop_query = words.iter().any(|w| w == "drop-query");
    let uri = if drop_query { "{path}" } else { "{uri}" };
    let value = word(1);
    let mut to = match word(0) {
        "scheme" => format!("{value}://{{host}}{uri}"),
        "prefix" => format!("{value}{uri}"),
        "location" => value.to_owned(),
        _ => return What::Skip("is not understood"),
    };
    for (from, into) in [
        ("%[hdr(host)]", "{host}"),
        ("%[req.hdr(host)]", "{host}"),
        ("%[req.hdr(Host)]", "{host}"),
        ("%[hdr(Host)]", "{host}"),
        ("%[capture.req.uri]", "{uri}"),
        ("%[path]", "{path}"),
        ("%[pathq]", "{uri}"),
        ("%[url]", "{uri}"),
        ("%HU", "{uri}"),
        ("%HP", "{path}"),
        ("%HQ", "{query}"),
    ] {
        to = to.replace(from, into);
    }
    let rooted = ["/", "http://", "https://"].iter().any(|p| to.starts_with(p));
    if to.contains(['%', '$']) || !rooted || !to.bytes().all(|b| b.is_ascii_graphic()) {
        return What::Skip("a redirect has {scheme}, {host}, {uri}, {path} and {query} only");
    }
    What::Answer(Action::Redirect { to, status: code })
}

fn of_responses(keyword: &str) -> Of {
    if keyword == "http-response" { Of::Responses } else { Of::AllResponses }
}

fn header(of: Of, name: &str, value: &[String], set: bool) -> What {
    let request = of == Of::Requests;
    let value = value.join(" ");
    let value = value.trim();
    let lower = name.to_ascii_lowercase();
    if request {
        match lower.as_str() {
            "x-forwarded-proto" | "x-forwarded-for" | "x-forwarded-host" | "forwarded" => {
                return What::Skip(
                    "same:always sent; what a client has made up is removed, except from trusted_proxies",
                );
            }
            "x-real-ip" => {
                return What::Skip(
                    "the server finds the client in X-Forwarded-For, whose last entry is the gateway's, or in Forwarded",
                );
            }
            n if FRAMING.contains(&n) => {
                return What::Skip("same:connections and upgrades are the gateway's to manage");
            }
            n if n.contains("client-cert") || n.starts_with("x-ssl") || value.contains("ssl_c_") => {
                return What::Refuse(
                    "servers get the client's certificate in Client-Cert (RFC 9440) and nothing else of it: make the server read it",
                );
            }
            _ => {}
        }
    }
    if !is_name(name) {
        return What::Skip("is not the name of a header");
    }
    if value.contains('%') {
        // The client must not be able to say it instead.
        return match request {
            true => What::Header(of, Edit::Remove(name.to_owned())),
            false => What::Skip("values of headers are constants here; let the server send it"),
        };
    }
    if !is_value(value) || FRAMING.contains(&lower.as_str()) {
        return What::Skip("is not a header that can be set");
    }
    match set {
        true => What::Header(of, Edit::Set(name.to_owned(), value.to_owned())),
        false => What::Header(of, Edit::Add(name.to_owned(), value.to_owned())),
    }
}

/// `^/api(/.*)? \1` and `^/api/(.*) /v1/\1`.
fn prefix(pattern: &str, to: &str) -> What {
    const NO: What = What::Skip("paths are rewritten by a route's rewrite_prefix only; let the server do it");
    let body = pattern.strip_prefix('^').unwrap_or(pattern).trim_end_matches('$');
    let forms = [("(/.*)?", true), ("(/.*)", true), ("/(.*)", false), ("[/]?(.*)", false), ("/?(.*)", false)];
    let Some((from, slash)) = forms.into_iter().find_map(|(f, slash)| Some((body.strip_suffix(f)?, slash))) else {
        return NO;
    };
    let Some(head) = to.strip_suffix("\\1") else { return NO };
    let plain = |t: &str| t.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-_~".contains(&b));
    let to = if slash { format!("{head}/") } else { head.to_owned() };
    match from.starts_with('/') && plain(from) && plain(&to) && to.starts_with('/') && to.ends_with('/') {
        true => What::Prefix { from: from.to_owned(), to },
        false => NO,
    }
}

/// Applies rules to an atom. `backends`: the rules of each backend, which follow.
pub(super) fn apply<'l>(
    rules: &[Rule<'l>],
    backends: &BTreeMap<String, Vec<Rule<'l>>>,
    default: Option<(&str, &Place)>,
    atom: &Atom,
    report: &mut Report,
) -> Outcome {
    let mut out = Outcome::default();
    run(rules, atom, report, &mut out);
    if out.action.is_none() && out.backend.is_none() {
        out.backend = default.map(|(name, place)| (name.to_owned(), place.clone()));
    }
    // Exceptions have the frontend's changes, too, and then those of their own backend.
    let mut exceptions = std::mem::take(&mut out.exceptions);
    for Exception { then, .. } in &mut exceptions {
        (then.request, then.response) = (out.request.clone(), out.response.clone());
        (then.hsts, then.host, then.rewrite) = (out.hsts.clone(), out.host.clone(), out.rewrite.clone());
        (then.after, then.after_hsts) = (out.after.clone(), out.after_hsts.clone());
        let Some(rules) =
            then.backend.as_ref().filter(|_| then.action.is_none()).and_then(|(name, _)| backends.get(name))
        else {
            continue;
        };
        run(rules, atom, report, then);
        for inner in std::mem::take(&mut then.exceptions) {
            let id = rules.iter().find(|r| r.line.place == inner.place).map(|r| r.line.id);
            if let Some(id) = id {
                report.decide(id, "its condition is added to that of use_backend: write a route with both");
            }
        }
    }
    out.exceptions = exceptions;
    if let (None, Some((name, _))) = (&out.action, &out.backend)
        && let Some(rules) = backends.get(name)
    {
        run(rules, atom, report, &mut out);
    }
    out
}

fn run(rules: &[Rule], atom: &Atom, report: &mut Report, out: &mut Outcome) {
    for rule in rules {
        let (id, place) = (rule.line.id, &rule.line.place);
        let response = matches!(rule.what, What::Header(Of::Responses | Of::AllResponses, _));
        if (out.action.is_some()) && !response {
            continue;
        }
        let left = rule.condition.of(atom);
        match (&rule.what, left) {
            (_, Left::Never) => {}
            (What::Backend(_), _) if out.backend.is_some() => {}
            (What::Answer(action), Left::Always) => {
                report.same(id, "redirect or respond");
                out.action = Some((action.clone(), place.clone()));
            }
            (What::Backend(name), Left::Always) => {
                report.same(id, "upstream");
                out.backend = Some((name.clone(), place.clone()));
            }
            (What::Deny, Left::Always) => {
                report.same(id, "respond with 429");
                out.action = Some((Action::status(429), place.clone()));
            }
            (What::Answer(_) | What::Backend(_) | What::Deny, Left::Routes(routes)) => {
                let then = match &rule.what {
                    What::Answer(action) => {
                        Outcome { action: Some((action.clone(), place.clone())), ..Outcome::default() }
                    }
                    What::Backend(name) => {
                        Outcome { backend: Some((name.clone(), place.clone())), ..Outcome::default() }
                    }
                    _ => Outcome { action: Some((Action::status(429), place.clone())), ..Outcome::default() },
                };
                report.same(id, "a route with a condition");
                for (methods, headers) in routes {
                    out.exceptions.push(Exception {
                        methods,
                        headers,
                        then: Box::new(then.clone()),
                        place: place.clone(),
                    });
                }
            }
            (What::Deny, Left::Rate(n)) => out.rates.push((n, id, place.clone())),
            (What::Answer(a), Left::Rate(n)) if a.is_refusal() => {
                report.differs(id, "rate_limit: the status is 429");
                out.rates.push((n, id, place.clone()));
            }
            (What::Answer(a), Left::Access | Left::Unknown | Left::Rate(_)) if a.is_refusal() => {
                report.decide(id, "its condition cannot be translated, and it refuses requests: let the server or a firewall refuse them");
            }
            (What::Deny, _) => report.decide(id, "its condition cannot be translated, and it refuses requests"),
            (_, Left::Access | Left::Rate(_)) => {
                report.decide(
                    id,
                    "its condition checks who the client is, which Sealane does by client certificates only",
                );
            }
            (_, Left::Unknown) => report
                .missing(id, "its condition cannot be translated: hosts, paths, methods and headers can be compared"),
            (What::Header(..) | What::Prefix { .. }, Left::Routes(_)) => {
                report.missing(id, "headers are changed for hosts and paths, not by method or header; write a route with these conditions");
            }
            (What::Header(of, edit), Left::Always) => apply_edit(*of, edit, rule.line, report, out),
            (What::Prefix { from, to }, Left::Always) => match atom.path {
                Path::Below(p) if p.trim_end_matches('/') == from => {
                    report.same(id, "rewrite_prefix");
                    out.rewrite = Some((to.clone(), place.clone()));
                }
                Path::Below(p) if p != "/" && from.starts_with(&format!("{}/", p.trim_end_matches('/'))) => {}
                // The paths that it changes are atoms of their own.
                _ => report.same(id, "rewrite_prefix"),
            },
            (What::Refuse(_) | What::Skip(_), _) => {}
        }
    }
}

fn apply_edit(of: Of, edit: &Edit, line: &Line, report: &mut Report, out: &mut Outcome) {
    let request = of == Of::Requests;
    let (id, place) = (line.id, &line.place);
    if let (true, Edit::Set(name, value)) = (request, edit)
        && name.eq_ignore_ascii_case("host")
    {
        out.host = Some((value.clone(), place.clone()));
        return report.same(id, "host_header");
    }
    if let (false, Edit::Set(name, value) | Edit::Add(name, value)) = (request, edit)
        && name.eq_ignore_ascii_case("strict-transport-security")
        && value.contains("max-age=")
    {
        match of {
            Of::AllResponses => out.after_hsts = Some((value.clone(), place.clone())),
            _ => out.hsts = Some((value.clone(), place.clone())),
        }
        return report.same(id, "hsts");
    }
    let edits = match of {
        Of::Requests => &mut out.request,
        Of::Responses => &mut out.response,
        Of::AllResponses => &mut out.after,
    };
    match edit {
        Edit::Set(name, value) => edits.set(name, value, place),
        Edit::Add(name, value) => {
            if !edits.add(name, value, place) {
                return report.missing(id, "a header of this name is added already; put both values in one");
            }
        }
        Edit::Remove(name) => {
            if FRAMING.contains(&name.to_ascii_lowercase().as_str()) || name.eq_ignore_ascii_case("host") {
                return report.same(id, "the gateway's to manage");
            }
            edits.remove(name, place);
            if line.word(1) != "del-header" {
                return report.missing(id, "values of headers are constants here; the header is removed from requests");
            }
        }
    }
    report.same(id, if request { "request_headers" } else { "response_headers" });
}
