//! `http-request`, `use_backend` and the like, in their order, for one kind of requests.

mod apply;

pub(super) use apply::{Then, Trace, apply};

use super::acl::{Acls, Condition, Counter, HostSample, Match, Remarks, Test, Users};
use super::formats::Flags;
use super::parser::{Line, Proxy};
use crate::addresses::{Access, Clients};
use crate::nginx::{FRAMING, is_name, is_value, location_pair, parts_of};
use crate::output::{Action, BasicAuth, Edits};
use crate::paths::PathTest;
use crate::patterns;
use crate::report::{Id, Place, Report};
use crate::values;
use std::collections::BTreeMap;

/// A rule that has been read.
pub(super) struct Rule<'l> {
    pub line: &'l Line,
    pub condition: Condition,
    pub what: What,
    /// Other lines because of which alone the condition is not understood.
    pub because: Option<String>,
}

/// What a rule does.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// It answers.
    Answer(Action),
    Backend(String),
    Header(Of, Edit),
    /// Servers get the name of the user whose password was right in this header.
    User(String),
    /// The beginning of the path is replaced, where it passes a test.
    Prefix {
        tests: Vec<PathTest>,
        from: String,
        to: String,
    },
    /// The path is replaced by this one.
    Path(String),
    /// Requests without a user of a list are refused.
    Auth {
        realm: Option<String>,
        users: Option<Users>,
    },
    /// It cannot be translated, and may decide who gets what.
    Refuse(&'static str),
    /// A limit by a stick table.
    Deny,
    /// Requests are counted by their addresses, with the counter of this number.
    Track(u8),
    /// No later rule of this kind applies.
    Allow,
    /// It answers, with something for which there is nothing.
    Unanswered,
    /// It is known to decide nothing about requests, and nothing takes its place.
    Skip(&'static str),
    /// The same, and nothing has to take its place.
    Nothing(&'static str),
    /// Sealane does something else by itself.
    Different(&'static str),
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
    /// The beginning of `Location`, and what stands in its place.
    Location(String, String),
}

impl Edit {
    /// The name of the header.
    pub fn name(&self) -> &str {
        match self {
            Self::Set(name, _) | Self::Add(name, _) | Self::Remove(name) => name,
            Self::Location(..) => "Location",
        }
    }
}

const NEW_VALUE: &str = "Sealane does not change the values of response headers, except the beginning of Location (rewrite_location): let \
     the server send the right value. For Location, it gets the client's scheme and host in X-Forwarded-Proto and X-Forwarded-Host. For a \
     constant value, write response_headers";

/// The beginning that a rule replaces, and by what: `^http://a/(.*)$ https://b/\1`.
fn new_beginning(words: &[String]) -> Option<(String, String)> {
    let [_, _, _, expression, to] = words else { return None };
    let expression = expression.strip_prefix('^')?;
    let beginning = expression.strip_suffix("(.*)$").or_else(|| expression.strip_suffix("(.*)"))?;
    let mut from = String::new();
    let mut chars = beginning.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => from.push(chars.next().filter(|c| c.is_ascii_punctuation())?),
            // Nearly everybody means the dot itself.
            c if c.is_ascii_alphanumeric() || "./:-_~@,;=&%#".contains(c) => from.push(c),
            _ => return None,
        }
    }
    let to = to.strip_suffix("\\1").filter(|to| !to.contains(['\\', '%']))?;
    location_pair(&from, to)
}

/// What rules lead to for an atom.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub action: Option<(Action, Place)>,
    pub backend: Option<(String, Place)>,
    /// Backends to which chance sends some of the requests that come so far.
    pub shares: Vec<Share>,
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
    /// What is changed in `Location` of servers' responses: a beginning, and what stands in its place.
    pub location: Option<(String, String, Place)>,
    pub rewrite: Option<(String, Place)>,
    /// The path that servers get.
    pub template: Option<(String, Place)>,
    /// A rule has changed the path.
    pub rewritten: bool,
    /// Where.
    pub rewritten_by: Option<Place>,
    /// Lines that refuse above a rate.
    pub rates: Vec<Limit>,
    /// What counters count, by their numbers.
    pub counted: BTreeMap<u8, Counted>,
    /// The most bytes of a body.
    pub max_body: Option<(u64, Place)>,
    /// Which clients are let in.
    pub access: Access,
    /// Which users are.
    pub basic_auth: Option<BasicAuth>,
    /// The users of `basic_auth`.
    pub users: Option<Users>,
    /// Rules that select a server or answer, and that are not translated.
    pub lost: Vec<Place>,
}

/// Whose requests a counter counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    Nobody,
    Everybody,
    These(Clients),
    Unknown,
}

/// A line that refuses above a rate.
#[derive(Clone, Debug)]
pub(super) struct Limit {
    pub counter: Counter,
    /// The clients that it refuses; `None`: all.
    pub clients: Option<Clients>,
    /// This many requests are allowed.
    pub requests: u32,
    /// It refuses only some of the requests that HAProxy counts.
    pub partial: bool,
    pub id: Id,
    pub section: Id,
    pub place: Place,
}

/// A part of the requests for a backend.
#[derive(Clone, Debug)]
pub(super) struct Share {
    pub backend: String,
    /// This many of so many.
    pub part: (u32, u32),
    pub id: Id,
    pub place: Place,
}

#[derive(Clone, Debug)]
pub(super) struct Exception {
    /// The requests that it is for.
    pub only: Match,
    /// What is done with them.
    pub then: Box<Outcome>,
    pub place: Place,
}

/// Reads the rules of a proxy, in the order in which HAProxy applies them.
pub(super) fn rules<'l>(proxy: &Proxy<'l>, acls: &Acls<'l>, report: &mut Report) -> Vec<Rule<'l>> {
    let mut out = Vec::new();
    let lines: Vec<&'l Line> = proxy.all().collect();
    for line in lines.iter().filter(|l| l.is(&["option", "forwardfor"])) {
        forwarded_for(line, report);
        let Some(name) = line.after("header").filter(|n| !n.eq_ignore_ascii_case("x-forwarded-for")) else { continue };
        if !is_name(name) || FRAMING.contains(&name.to_ascii_lowercase().as_str()) {
            report.decide(line.id, "is not the name of a header");
            continue;
        }
        report.differs(
            line.id,
            "request_headers.set: the header contains only the address of the client. If the client sends this header, \
             its value is replaced",
        );
        let what = What::Header(Of::Requests, Edit::Set(name.to_owned(), "{client_address}".to_owned()));
        out.push(Rule { line, condition: Condition::default(), what, because: None });
    }
    for kinds in
        [["http-request", "", ""], ["redirect", "", ""], ["use_backend", "http-response", "http-after-response"]]
    {
        for line in lines.iter().filter(|l| kinds.contains(&l.word(0))) {
            let last = !lines.iter().any(|l| l.word(0) == "use_backend" && l.id > line.id);
            match mapped(line, acls, last) {
                Some(mut rules) => {
                    report.same(
                        line.id,
                        "one host or route per entry of the map file; later changes of the file have no effect",
                    );
                    out.append(&mut rules);
                }
                None => out.extend(rule(line, &proxy.section.name, acls, report)),
            }
        }
    }
    out
}

/// Whether a rule refuses requests with a body that is not translated.
fn loses_body(what: &What, words: &[String]) -> bool {
    let is_empty = match what {
        What::Answer(action) => {
            action.is_refusal()
                && matches!(action, Action::Respond { status, .. } if *action == Action::status(*status))
        }
        What::Deny => true,
        _ => false,
    };
    let bodies = ["file", "lf-file", "errorfile", "errorfiles", "string", "lf-string", "hdr", "default-errorfiles"];
    is_empty && words.iter().skip(2).any(|w| bodies.contains(&w.as_str()))
}

/// Reports the options of `option forwardfor` that Sealane does not have.
fn forwarded_for(line: &Line, report: &mut Report) {
    if let Some(network) = line.after("except") {
        report.differs(
            line.id,
            format!(
                "except: HAProxy leaves the X-Forwarded-For of clients in {network} unchanged. Sealane replaces the X-Forwarded-For of \
                 every client that is not in trusted_proxies. If {network} are proxies whose X-Forwarded-For is true, write \
                 trusted_proxies = [\"{network}\"] in the [[listener]]: they then also decide which address allow, deny and limits see, \
                 and their X-Forwarded-Proto and X-Forwarded-Host are passed on, unless request_headers.set replaces them"
            ),
        );
    }
    if line.words.iter().any(|w| w == "if-none") {
        report.differs(
            line.id,
            "if-none: HAProxy keeps an X-Forwarded-For that the client sends. Sealane keeps only those of trusted_proxies, and replaces all \
             others",
        );
    }
}

/// `proxy`: the name of the section, which is the realm of passwords that have no other.
fn rule<'l>(line: &'l Line, proxy: &str, acls: &Acls<'l>, report: &mut Report) -> Option<Rule<'l>> {
    let at = line.words.iter().position(|w| w == "if" || w == "unless").unwrap_or(line.words.len());
    let mut remarks = Remarks::default();
    let mut what = what(&line.words[..at]);
    if acls.trusts
        && let Some(edit) = own_claim(&line.words[..at])
    {
        what = What::Header(Of::Requests, edit);
    }
    // A condition on the response is not understood, and one on the request is rare.
    if matches!(what, What::Header(_, Edit::Location(..))) && at < line.words.len() {
        what = What::Skip(NEW_VALUE);
    }
    match &what {
        What::Nothing(why) => {
            report.same(line.id, *why);
            return None;
        }
        What::Different(why) => {
            report.differs(line.id, *why);
            return None;
        }
        What::Skip(why) => {
            report.missing(line.id, *why);
            return None;
        }
        What::Refuse(why) => {
            let variables = acls.variables(&line.words[..at]);
            let because =
                if variables.is_empty() { String::new() } else { format!("; {}", because(&variables.join(" and "))) };
            report.decide(line.id, format!("{why}{because}"));
            return None;
        }
        What::Unanswered => {
            let advice =
                line.words.iter().find_map(|w| advice(w)).map_or_else(String::new, |advice| format!("; {advice}"));
            report.missing(
                line.id,
                format!("a response must have a constant body (respond); these requests get 501{advice}"),
            );
        }
        _ => {}
    }
    match line.word(1) {
        "silent-drop" | "reject" if line.word(0) == "http-request" => {
            report.differs(line.id, "status 403: the gateway closes no connection without a response");
        }
        "tarpit" => report.differs(line.id, "the response is sent immediately"),
        _ => {}
    }
    if let What::Answer(Action::Respond { status, file: Some(file), .. }) = &mut what {
        *file = acls.path(file);
        let size = acls.size(file);
        if size.is_some_and(|size| size > MAX_BODY) {
            report.missing(
                line.id,
                format!("{file} has more than 64 KiB: let a server send it, and write a route with this server"),
            );
            what = if *status >= 400 { What::Answer(Action::status(*status)) } else { What::Unanswered };
        } else if size.is_none() {
            report.differs(line.id, format!("respond.file: the import cannot read {file} here"));
        }
    }
    if loses_body(&what, &line.words[..at]) {
        report.differs(
            line.id,
            "the body and the headers of this response are left out: write respond = { status, body, content_type } in the route. \
             error_page replaces only the errors of the gateway itself, for example those of allow, deny and rate_limit",
        );
    }
    let Some(mut condition) = acls.condition(line.section, line.from(at), &mut remarks) else {
        report.decide(line.id, "the import does not understand its condition: write hosts and routes that do the same");
        return None;
    };
    if let What::Auth { realm, users } = &mut what {
        let Some((list, rest)) = users_of(&condition) else {
            report.decide(
                line.id,
                "it asks for passwords in another way than \"unless { http_auth(LIST) }\" or \"unless { http_auth_group(LIST) GROUP }\": \
                 write basic_auth",
            );
            return None;
        };
        (condition, *users) = (rest, Some(list));
        realm.get_or_insert(proxy.to_owned());
    }
    if matches!(what, What::Header(Of::Responses | Of::AllResponses, _)) && condition.needs_request() {
        let advice = match &what {
            What::Header(_, edit) => advice(edit.name()).map_or_else(String::new, |advice| format!("; {advice}")),
            _ => String::new(),
        };
        let says = "when a response arrives, HAProxy no longer has the request's host, path and headers, so it never applies this rule";
        match condition.fails_in_responses() {
            // Where none of these is true, which is what HAProxy takes them for, the rule never applies.
            true => report.differs(line.id, format!("left out: {says}{advice}")),
            false => report
                .decide(line.id, format!("{says} as it is written: write response_headers of a host or route{advice}")),
        }
        return None;
    }
    let because = remarks.only_because();
    for (remark, negated) in remarks.wider {
        match &what {
            What::Backend(_) => report.differs(line.id, remark),
            // Nobody gets in whom HAProxy would keep out.
            refusal if refusal.refuses() && !negated => report.differs(line.id, remark),
            _ => report.decide(line.id, format!("{remark}; write routes, or let the server decide")),
        }
    }
    match (condition.without_claims(), &what) {
        (None, _) => {}
        // What answers before would let requests through, or refuse all.
        (Some(false), What::Answer(_) | What::Unanswered) | (_, What::Allow | What::Auth { .. } | What::Deny) => {
            report.decide(line.id, values::claim_decides());
        }
        (_, What::Answer(action)) if action.is_refusal() => report.decide(line.id, values::claim_decides()),
        _ => report.differs(line.id, values::CLAIM),
    }
    let by_host = |t: &Test| match t {
        Test::Header(name, is) => name.eq_ignore_ascii_case("host") && is.contains("regex"),
        _ => false,
    };
    if condition.tests().any(by_host) {
        report.differs(
            line.id,
            "Sealane compares the expression with the host and its port, if the client sends one. HAProxy removes the default port (443 for \
             https) from the host of HTTP/2 first. If the expression ends with $, write (:[0-9]+)?$",
        );
    }
    if condition.tests().any(|t| matches!(t, Test::Certificate { now: true, .. })) {
        report.differs(
            line.id,
            "ssl_c_used: in Sealane, a resumed session keeps the certificate of its first handshake, so the condition \
             is true there, too",
        );
    }
    if condition.tests().any(|t| matches!(t, Test::ServerName(_))) && line.word(0) != "use_backend" {
        report.differs(line.id, "Sealane compares the host of the request, not the name in the ClientHello");
    }
    Some(Rule { line, condition, what, because })
}

/// What is said of a line that is undecided only because of others.
pub(super) fn because(lines: &str) -> String {
    format!("this is a consequence of {lines}, which the import does not translate: decide that first")
}

/// Longest body of a response of Sealane itself.
const MAX_BODY: usize = 64 << 10;

/// The users that a condition asks for, and what is left of the condition. `None`: it is not "all users except these".
fn users_of(condition: &Condition) -> Option<(Users, Condition)> {
    let mut found: Option<&Users> = None;
    let mut rest = Vec::new();
    let is_users = |one: &&(bool, Vec<Test>)| one.0 && matches!(one.1.as_slice(), [Test::Users(_)]);
    for all in &condition.0 {
        let mut users = all.iter().filter(is_users);
        let (Some((_, tests)), None) = (users.next(), users.next()) else { return None };
        let [Test::Users(one)] = tests.as_slice() else { return None };
        if found.is_some_and(|there| there != one) {
            return None;
        }
        found = Some(one);
        rest.push(all.iter().filter(|one| !is_users(one)).cloned().collect());
    }
    Some((found?.clone(), Condition(rest)))
}

/// `use_backend %[req.hdr(host),lower,map(FILE,DEFAULT)]`: a rule for each entry of the file. `last`: no `use_backend` follows. `None`:
/// it is something else, or not understood.
fn mapped<'l>(line: &'l Line, acls: &Acls<'l>, last: bool) -> Option<Vec<Rule<'l>>> {
    let expression = line.word(1).strip_prefix("%[").filter(|_| line.word(0) == "use_backend")?.strip_suffix(")]")?;
    let (source, map) = expression.rsplit_once(",map")?;
    let (kind, arguments) = map.split_once('(')?;
    let (file, default) = arguments.split_once(',').map_or((arguments, None), |(f, d)| (f, Some(d)));
    // A name in capitals is another one for HAProxy.
    let host = HostSample::of(source).filter(|host| host.lower);
    let (source, lower) = source.strip_suffix(",lower").map_or((source, false), |s| (s, true));
    let of = |key: &str| -> Option<Test> {
        let words = |fetch: &str, flags: &[&str]| -> Option<Test> {
            let all: Vec<String> = [fetch].iter().chain(flags).chain(&["--", key]).map(|w| (*w).to_owned()).collect();
            acls.read(&all)
        };
        match (source.to_ascii_lowercase().as_str(), kind) {
            (_, "" | "_str") if host.is_some() => words("hdr(host)", &["-i"]),
            ("ssl_fc_sni" | "req.ssl_sni" | "req_ssl_sni", "" | "_str") if lower => words("req.ssl_sni", &["-i"]),
            ("path", "" | "_str") if !lower => words("path", &[]),
            ("path", "_beg") if !lower => words("path_beg", &[]),
            _ => None,
        }
    };
    let mut remarks = Remarks::default();
    let condition = acls.condition(line.section, line.from(2), &mut remarks)?;
    let because = remarks.only_because();
    let mut entries: Vec<(String, String)> = Vec::new();
    for entry in acls.entries(file)? {
        let (key, value) = entry.split_once([' ', '\t'])?;
        // The first of several entries counts.
        if !entries.iter().any(|(k, _)| k == key) {
            entries.push((key.to_owned(), value.trim().to_owned()));
        }
    }
    // The longest beginning counts.
    entries.sort_by_key(|(key, _)| std::cmp::Reverse(key.len()));
    let mut out = Vec::new();
    for (key, value) in entries {
        let test = of(&key)?;
        let terms = if condition.0.is_empty() { vec![Vec::new()] } else { condition.0.clone() };
        let with = |all: &Vec<(bool, Vec<Test>)>| [all.as_slice(), &[(false, vec![test.clone()])]].concat();
        let condition = Condition(terms.iter().map(with).collect());
        out.push(Rule { line, condition, what: What::Backend(value), because: because.clone() });
    }
    match default {
        Some(name) => out.push(Rule { line, condition, what: What::Backend(name.to_owned()), because }),
        // What is not found goes to the default backend, whatever follows.
        None if !last => return None,
        None => {}
    }
    Some(out)
}

/// What the words before a condition say. What is not listed is refused.
fn what(words: &[String]) -> What {
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    match (word(0), word(1)) {
        ("use_backend", name) if words.len() == 2 && !name.contains('%') => What::Backend(name.to_owned()),
        ("use_backend", _) => {
            What::Refuse("an expression selects the backend: write a host or a route for each backend")
        }
        ("redirect", _) => redirect(&words[1..]),
        ("http-request", "redirect") => redirect(&words[2..]),
        ("http-request", "deny" | "silent-drop" | "reject" | "tarpit") => {
            let default = if word(1) == "tarpit" { 500 } else { 403 };
            let status = match words.get(2..).unwrap_or_default() {
                [] => Some(default),
                [name, status, ..] if name == "deny_status" || name == "status" => status.parse().ok(),
                // Bodies and headers of refusals are left out.
                [name, ..] => [
                    "content-type",
                    "errorfile",
                    "errorfiles",
                    "file",
                    "lf-file",
                    "string",
                    "lf-string",
                    "hdr",
                    "default-errorfiles",
                ]
                .contains(&name.as_str())
                .then_some(default),
            };
            match status {
                Some(429) => What::Deny,
                Some(status @ (200..=299 | 400..=599)) => What::Answer(Action::status(status)),
                _ => What::Refuse(
                    "Sealane cannot respond with this status: write a route with respond and another status",
                ),
            }
        }
        ("http-request", "return") => returned(words.get(2..).unwrap_or_default()),
        ("http-request", "auth") => match words.get(2..).unwrap_or_default() {
            [] => What::Auth { realm: None, users: None },
            [name, realm] if name == "realm" && is_value(realm) => {
                What::Auth { realm: Some(realm.clone()), users: None }
            }
            _ => What::Refuse("is not understood: write basic_auth"),
        },
        ("http-request", "allow") if words.len() == 2 => What::Allow,
        ("http-request", "set-header") => header(Of::Requests, word(2), words.get(3..).unwrap_or_default(), true),
        ("http-request", "add-header") => header(Of::Requests, word(2), words.get(3..).unwrap_or_default(), false),
        ("http-request", "del-header") if words.len() == 3 && is_name(word(2)) => {
            What::Header(Of::Requests, Edit::Remove(word(2).to_owned()))
        }
        ("http-request", "del-header") if words.len() > 3 => {
            What::Refuse("request_headers.remove has whole names: write each header that clients must not send")
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
        ("http-request", "replace-path") if words.len() == 4 => prefix(word(2), word(3)),
        ("http-request", "set-path") if words.len() == 3 && is_new_path(word(2)) => What::Path(word(2).to_owned()),
        ("http-request", "set-path") if words.len() == 3 && word(2).ends_with("%[path]") => {
            prefix("^(.*)$", &word(2).replace("%[path]", "\\1"))
        }
        ("http-request", "set-path") if words.len() == 3 => {
            // %[path,regsub(^/api/?,/)]
            let inner = word(2).strip_prefix("%[path,regsub(").and_then(|r| r.strip_suffix(")]"));
            let parts: Vec<&str> = inner.map_or_else(Vec::new, |i| i.split(',').map(|p| p.trim_matches('"')).collect());
            match parts.as_slice() {
                [from, "/"] => {
                    match from.strip_prefix('^').and_then(|f| f.strip_suffix("/?").or(f.strip_suffix('/'))) {
                        Some(plain) => prefix(&format!("^{plain}/(.*)"), "/\\1"),
                        None => What::Refuse(REWRITES),
                    }
                }
                _ => What::Refuse(REWRITES),
            }
        }
        ("http-request" | "http-response", name) if is_harmless(name) => {
            What::Skip("variables, counters and captures have no counterpart; rules that use them are reported")
        }
        ("http-after-response", name) if is_harmless(name) => {
            What::Skip("variables, counters and captures have no counterpart; rules that use them are reported")
        }
        ("http-request", name @ ("track-sc0" | "track-sc1" | "track-sc2")) => {
            match words.get(2..).unwrap_or_default() {
                [src] if src == "src" => What::Track(number_of(name)),
                [src, table, _] if src == "src" && table == "table" => What::Track(number_of(name)),
                _ => What::Skip(
                    "the import translates only counters of addresses (src): for a header, write a [[rate_limit]] with \
                 key = \"header:NAME\"",
                ),
            }
        }
        ("http-request", "wait-for-handshake") => What::Different(
            "with early_data, requests with safe methods do not wait; servers see Early-Data: 1, and can answer 425 (RFC 8470)",
        ),
        ("http-request" | "http-response", "wait-for-body") => What::Different(
            "bodies are passed on as they arrive; [limits] idle_timeout and min_body_rate end slow ones",
        ),
        ("http-request", "disable-l7-retry") => What::Nothing("a request is sent again only where that is safe"),
        ("http-request", "normalize-uri")
            if [
                "fragment-strip",
                "fragment-encode",
                "path-merge-slashes",
                "path-strip-dot",
                "path-strip-dotdot",
                "percent-to-uppercase",
            ]
            .contains(&word(2)) =>
        {
            What::Different("paths are not changed: on hosts with routes, a path that can be read in two ways gets 400")
        }
        ("http-request", "set-src") => What::Refuse(
            "Sealane takes the client's address only from X-Forwarded-For or Forwarded, and only from the addresses \
             in trusted_proxies: write trusted_proxies in the [[listener]], and let the proxy in front send \
             X-Forwarded-For, or Forwarded with client_address_header = \"Forwarded\". The proxy must replace the \
             X-Forwarded-For of its clients or append to it: a client that can choose its last address has that address in all rules",
        ),
        ("http-request", "cache-use") | ("http-response", "cache-store") => {
            What::Skip("Sealane has no cache: put a cache between Sealane and the server, or let the server cache")
        }
        ("http-response", "deny") => What::Refuse("Sealane does not refuse responses: let the server decide"),
        ("http-response" | "http-after-response", "replace-header" | "replace-value")
            if word(2).eq_ignore_ascii_case("set-cookie") =>
        {
            What::Refuse(
                "Sealane does not change the values of response headers: let the server set its cookies with Secure, HttpOnly and SameSite. \
                 It gets the client's scheme in X-Forwarded-Proto",
            )
        }
        ("http-response" | "http-after-response", "replace-header" | "replace-value") => {
            match new_beginning(words).filter(|_| word(2).eq_ignore_ascii_case("location")) {
                Some((from, to)) => What::Header(Of::Responses, Edit::Location(from, to)),
                None => What::Skip(NEW_VALUE),
            }
        }
        ("http-response" | "http-after-response", _) => What::Refuse(
            "the import does not translate this change of responses: write response_headers, or let the server make \
             the change",
        ),
        _ => What::Refuse(crate::report::UNREAD),
    }
}

/// The number of the counter in `track-sc1`.
fn number_of(name: &str) -> u8 {
    name.strip_prefix("track-sc").and_then(|number| number.parse().ok()).unwrap_or_default()
}

const REWRITES: &str = "the import does not translate this rewrite: write a route with path_regex and rewrite, or let the server rewrite \
     the path";

/// Actions that only store or count something.
fn is_harmless(name: &str) -> bool {
    let name = name.split('(').next().unwrap_or("");
    [
        "set-log-level",
        "capture",
        "set-var",
        "unset-var",
        "set-var-fmt",
        "set-nice",
        "sc-inc-gpc0",
        "sc-inc-gpc1",
        "sc-inc-gpc",
    ]
    .contains(&name)
}

/// `return`.
fn returned(words: &[String]) -> What {
    let mut status: u16 = 200;
    let mut content_type = None;
    let (mut body, mut file, mut headers) = (None, None, Vec::new());
    let mut odd = false;
    let mut i = 0;
    while i < words.len() {
        let Some(value) = words.get(i + 1).map(String::as_str) else {
            // `default-errorfiles` has no value.
            odd = true;
            break;
        };
        match words[i].as_str() {
            "status" => match value.parse() {
                Ok(n) => status = n,
                Err(_) => {
                    return What::Refuse(
                        "Sealane cannot respond with this status: write a route with respond and another status",
                    );
                }
            },
            "content-type" => content_type = Some(value.to_owned()),
            "string" => body = Some(value.to_owned()),
            "lf-string" if !value.contains('%') => body = Some(value.to_owned()),
            "hdr" => {
                let text = words.get(i + 2).map_or("", String::as_str);
                let framing = FRAMING.contains(&value.to_ascii_lowercase().as_str());
                // A format, a header that the gateway manages, or what is better said in another way.
                odd |= !is_name(value) || !is_value(text) || text.contains('%') || framing || advice(value).is_some();
                headers.push((value.to_owned(), text.to_owned()));
                i += 1;
            }
            "file" => file = Some(value.to_owned()),
            "lf-string" | "lf-file" | "errorfile" | "errorfiles" => odd = true,
            _ => return What::Refuse("is not understood: write a route with respond"),
        }
        i += 2;
    }
    match (status, odd) {
        // A refusal refuses, whatever its body.
        (400..=599, true) => What::Answer(Action::status(status)),
        (_, true) => What::Unanswered,
        (200..=299 | 400..=599, false) => {
            let (body, file) = if matches!(status, 204 | 205) { (None, None) } else { (body, file) };
            What::Answer(Action::Respond { status, body: body.unwrap_or_default(), file, content_type, headers })
        }
        _ => What::Unanswered,
    }
}

fn redirect(words: &[String]) -> What {
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let mut code = 302;
    let mut i = 2;
    while i < words.len() {
        match word(i) {
            "code" => {
                i += 1;
                match word(i).parse() {
                    Ok(n @ (301 | 302 | 303 | 307 | 308)) => code = n,
                    _ => {
                        return What::Refuse(
                            "a redirect has the status 301, 302, 303, 307 or 308: write a route with redirect",
                        );
                    }
                }
            }
            "drop-query" => {}
            "set-cookie" | "clear-cookie" | "set-cookie-fmt" => {
                return What::Refuse("a redirect of Sealane cannot set cookies: let the server send this redirect");
            }
            _ => return What::Refuse("is not understood: write a route with redirect"),
        }
        i += 1;
    }
    let drop_query = words.iter().any(|w| w == "drop-query");
    let uri = if drop_query { "{path}" } else { "{uri}" };
    let value = word(1);
    let mut to = match word(0) {
        "scheme" => format!("{value}://{{host}}{uri}"),
        "prefix" => format!("{value}{uri}"),
        "location" => value.to_owned(),
        _ => return What::Refuse("is not understood: write a route with redirect"),
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
        ("%[req.hdr(host),field(1,:)]", "{host}"),
        ("%[hdr(host),field(1,:)]", "{host}"),
        ("%[req.hdr(host),field(1,:),lower]", "{host}"),
        ("%[hdr(host),field(1,:),lower]", "{host}"),
        ("%[req.hdr(host),lower,field(1,:)]", "{host}"),
        ("%[hdr(host),lower,field(1,:)]", "{host}"),
        ("%HU", "{uri}"),
        ("%HP", "{path}"),
        ("%HQ", "{query}"),
    ] {
        to = to.replace(from, into);
    }
    if value.contains(",map") {
        return What::Refuse(
            "for a table of paths and targets, write a route with redirects = { file = \"FILE\" }: a path and a target on each \
             line of the file, as in a map file",
        );
    }
    let rooted = ["/", "http://", "https://"].iter().any(|p| to.starts_with(p));
    if value.contains(['{', '}']) || to.contains(['%', '$']) || !rooted || !to.bytes().all(|b| b.is_ascii_graphic()) {
        return What::Refuse(
            "a redirect can contain only {scheme}, {host}, {uri}, {path}, {query}, {rest} and the groups of \
             path_regex: write a route with redirect, or let the server send this redirect",
        );
    }
    What::Answer(Action::Redirect { to, status: code })
}

const ALWAYS: &str = "always sent; the gateway removes values from clients that are not in trusted_proxies";

const CORS: &str = "for pages of other origins, write cors = { origins = [\"https://app.example.com\"], … } in the [[host]] or the route: the gateway \
     then compares Origin, answers preflights, and sends the Access-Control-* headers. An OPTIONS request without \
     Access-Control-Request-Method is no preflight: it goes to the server";

/// The settings that do what a header of responses is meant for.
pub(super) fn advice(header: &str) -> Option<&'static str> {
    header.get(..15).is_some_and(|begin| begin.eq_ignore_ascii_case("access-control-")).then_some(CORS)
}

/// The value of a header that the gateway sends by itself, but passes on if a trusted proxy sends it.
fn own_claim(words: &[String]) -> Option<Edit> {
    let [keyword, action, name, value @ ..] = words else { return None };
    if keyword != "http-request" || action != "set-header" {
        return None;
    }
    let value = value.join(" ");
    let own = match name.to_ascii_lowercase().as_str() {
        "x-forwarded-proto" if value.contains("%[ssl_fc") => "{scheme}",
        "x-forwarded-host" if of_request(value.trim()).as_deref() == Some("{authority}") => "{authority}",
        _ => return None,
    };
    Some(Edit::Set(name.clone(), own.to_owned()))
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
            "x-forwarded-for" | "forwarded" => {
                return match value.contains("[src]") || value.contains("%ci") {
                    true => What::Nothing(ALWAYS),
                    false => What::Different(
                        "always sent, with the client's address; behind trusted_proxies, this is the address that they name",
                    ),
                };
            }
            "x-forwarded-proto" if value.contains('%') => return What::Nothing(ALWAYS),
            "x-forwarded-host" if of_request(value).as_deref() == Some("{authority}") => return What::Nothing(ALWAYS),
            n if FRAMING.contains(&n) => {
                return What::Nothing("the gateway manages connections and upgrades");
            }
            _ => {}
        }
    }
    if !is_name(name) {
        return What::Refuse("is not the name of a header");
    }
    if request && set && matches!(value, "%[http_auth_user]" | "%[http_auth_user()]") && !values::is_claim(name) {
        return What::User(name.to_owned());
    }
    let said = if request { of_request(value) } else { (!value.contains('%')).then(|| value.to_owned()) };
    let Some(value) = said else {
        let of_certificate = lower.contains("client-cert") || lower.starts_with("x-ssl") || value.contains("ssl_c_");
        return match request {
            true if of_certificate => What::Refuse(
                "servers get the client's certificate in Client-Cert (RFC 9440). A value in request_headers can also \
                 contain some fields of the certificate, such as {client_certificate_name}, but not this one: make \
                 the server read Client-Cert or a header with one of these fields",
            ),
            // The client must not be able to say it instead.
            true => What::Header(of, Edit::Remove(name.to_owned())),
            false => What::Refuse(
                advice(name).unwrap_or("values of response headers must be constants: let the server send this header"),
            ),
        };
    };
    let value = value.as_str();
    if !is_value(value) || FRAMING.contains(&lower.as_str()) {
        return What::Refuse(
            "the import cannot set this header: the gateway manages headers of this name, or the value is not valid",
        );
    }
    match set {
        true => What::Header(of, Edit::Set(name.to_owned(), value.to_owned())),
        false => What::Header(of, Edit::Add(name.to_owned(), value.to_owned())),
    }
}

/// A value of a request header, with parts of the request as `request_headers` names them. `None`: there is nothing for a part of it.
fn of_request(value: &str) -> Option<String> {
    let mut out = String::new();
    let mut parts = 0;
    let mut rest = value;
    // The flags of `%{+Q}o`, which apply to all items after it.
    let mut all = Flags::default();
    while let Some((before, behind)) = rest.split_once('%') {
        out.push_str(before);
        if let Some(after) = behind.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        let (flags, behind) = all.read(behind)?;
        let (part, quotes, after) = match behind.strip_prefix('[') {
            Some(inner) => {
                let (expression, after) = inner.split_once(']')?;
                let part = sample(expression)?;
                // In headers, HAProxy puts no sample in quotation marks.
                if flags.escaped && may_be_escaped(part) {
                    return None;
                }
                (part, "", after)
            }
            None => {
                let end = behind.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(behind.len());
                let (part, is_text) = match &behind[..end] {
                    "ci" => ("{client_address}", true),
                    "fp" => ("{port}", false),
                    "HM" => ("{method}", true),
                    "sslv" => ("{tls_version}", true),
                    "o" => {
                        (all, rest) = (flags, &behind[end..]);
                        continue;
                    }
                    _ => return None,
                };
                if flags.hexadecimal {
                    return None;
                }
                (part, if flags.quoted && is_text { "\"" } else { "" }, &behind[end..])
            }
        };
        out.push_str(quotes);
        out.push_str(part);
        out.push_str(quotes);
        parts += 1;
        rest = after;
    }
    out.push_str(rest);
    // Text that Sealane would take for a part.
    (parts_of(&out) == Some(parts)).then(|| out.trim().to_owned())
}

/// Whether a part of a request can have a character that the flag E would change.
fn may_be_escaped(part: &str) -> bool {
    !["{client_address}", "{port}", "{method}", "{tls_version}", "{client_certificate_serial}"].contains(&part)
}

/// The part of a request that a sample is.
fn sample(expression: &str) -> Option<&'static str> {
    if HostSample::of(expression).is_some_and(|host| host.lower && host.bare) {
        return Some("{host}");
    }
    Some(match expression {
        "src" => "{client_address}",
        "dst_port" => "{port}",
        "method" => "{method}",
        "path" => "{path}",
        "pathq" => "{uri}",
        "req.hdr(host)" | "req.hdr(Host)" | "hdr(host)" | "hdr(Host)" => "{authority}",
        "ssl_fc_protocol" => "{tls_version}",
        "ssl_c_s_dn(cn)" | "ssl_c_s_dn(CN)" => "{client_certificate_name}",
        "ssl_c_s_dn(,0,rfc2253)" => "{client_certificate_subject}",
        "ssl_c_i_dn(,0,rfc2253)" => "{client_certificate_issuer}",
        "ssl_c_serial,hex" => "{client_certificate_serial}",
        _ => return None,
    })
}

/// Whether a value depends on `Host`, which a rule may have changed before.
pub(super) fn names_host(value: &str) -> bool {
    ["{authority}", "{host}"].iter().any(|part| value.contains(part))
}

/// Whether a value depends on the path, which a rule may have changed before.
pub(super) fn names_path(value: &str) -> bool {
    ["{uri}", "{path}"].iter().any(|part| value.contains(part))
}

/// Whether a path can take the place of that of every request.
fn is_new_path(path: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/-._~".contains(&b);
    path.starts_with('/') && !path.contains("//") && !path.contains("/.") && path.bytes().all(plain)
}

/// `^/api(/.*)? \1` and `^/api/(.*) /v1/\1`.
fn prefix(pattern: &str, to: &str) -> What {
    // The whole path follows a new beginning.
    if let ("(.*)" | "^(.*)" | "^(.*)$" | "^(/.*)$", Some(head)) = (pattern, to.strip_suffix("\\1"))
        && is_new_path(head)
        && !head.ends_with('/')
    {
        return What::Prefix { tests: vec![PathTest::begins("/")], from: String::new(), to: format!("{head}/") };
    }
    let body = pattern.strip_prefix('^').unwrap_or("").trim_end_matches('$');
    let forms = [("(/.*)?", true), ("(/.*)", true), ("/(.*)", false), ("[/]?(.*)", false), ("/?(.*)", false)];
    let Some((from, slash)) = forms.into_iter().find_map(|(f, slash)| Some((body.strip_suffix(f)?, slash))) else {
        return What::Refuse(REWRITES);
    };
    let (Some(head), Some(tests)) = (to.strip_suffix("\\1"), patterns::paths(pattern, false)) else {
        return What::Refuse(REWRITES);
    };
    let plain = |t: &str| t.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-_~".contains(&b));
    let to = if slash { format!("{head}/") } else { head.to_owned() };
    match from.starts_with('/') && plain(from) && plain(&to) && to.starts_with('/') && to.ends_with('/') {
        true => What::Prefix { tests, from: from.to_owned(), to },
        false => What::Refuse(REWRITES),
    }
}
