//! For which paths and methods a route is, and to which paths and URLs it leads.

use super::decode::{self, At, Node, Section};
use super::diagnostics::Sink;
use super::fields::is_token;
use super::route::Routes;
use super::settings::redirect as d;
use sealane_proxy::patterns::{Pattern, PatternError};
use sealane_proxy::rules::{Piece, Redirect};
use sealane_route::path::Readings;
use std::ops::Range;
use toml::de::DeValue;

/// The most expressions for paths: each lane keeps a cache for each.
const MAX_PATTERNS: usize = 256;

/// What a route without a name is called: `GET,POST /api/`, `= /health`, `~ ^/users/`.
pub(super) fn pattern(
    path: Option<&At<String>>,
    exact: Option<&At<String>>,
    regex: Option<&At<Written>>,
    methods: Option<&[String]>,
) -> String {
    let path = match (path, exact) {
        (_, Some(exact)) => format!("= {}", exact.value),
        (Some(path), None) => path.value.clone(),
        (None, None) if regex.is_some() => String::new(),
        (None, None) => "/".to_owned(),
    };
    let path = match regex {
        Some(regex) => format!("{path} ~ {}", regex.value.text).trim_start().to_owned(),
        None => path,
    };
    with_methods(path, methods)
}

pub(super) fn with_methods(path: String, methods: Option<&[String]>) -> String {
    match methods {
        Some(methods) => format!("{} {path}", methods.join(",")),
        None => path,
    }
}

/// An expression for paths, as it is written and compiled.
pub(super) struct Written {
    pub text: String,
    pub pattern: Pattern,
}

pub(super) fn path_regex(sink: &Sink, key: &str, node: &Node) -> Option<Written> {
    let text = decode::text(sink, key, node)?;
    match Pattern::new(&text) {
        Ok(pattern) => Some(Written { text, pattern }),
        Err(why) => {
            let help = match &why {
                PatternError::Long => "write several routes".to_owned(),
                PatternError::Large => "write smaller numbers in {…}, or several routes".to_owned(),
                PatternError::Syntax(why) => remedy(key, why),
            };
            sink.error(&node.span(), format!("\"{key}\" is refused: {why}"), Some(help));
            None
        }
    }
}

/// What to write instead of an expression that is none.
fn remedy(key: &str, why: &str) -> String {
    let remedy = match key {
        _ if why.contains("look-around") => "write the expression without (?=, (?!, (?<= and (?<!",
        _ if why.contains("escape sequence") => {
            "in TOML, write the expression in single quotes, so that a backslash needs no second backslash"
        }
        "path_regex" => "write a regular expression such as '^/users/([0-9]+)$'",
        _ => "write a regular expression such as '^(alice|bob)$'",
    };
    remedy.to_owned()
}

/// The index of a compiled expression among those of the configuration.
pub(super) fn compiled_once(sink: &Sink, regex: At<Written>, routes: &mut Routes) -> usize {
    if let Some(there) = routes.patterns.iter().position(|p| p.text() == regex.value.text) {
        return there;
    }
    if routes.patterns.len() == MAX_PATTERNS {
        let help = "use \"path\" or \"text*\" where a prefix is enough".to_owned();
        sink.error(&regex.span, format!("routes have more than {MAX_PATTERNS} different expressions"), Some(help));
        return 0;
    }
    routes.patterns.push(regex.value.pattern);
    routes.patterns.len() - 1
}

/// Whether the route's expression has the groups that are named, and none of them can name a host.
pub(super) fn groups_exist(
    section: &Section,
    span: &Range<usize>,
    pieces: &[Piece],
    pattern: Option<&Pattern>,
) -> bool {
    let sink = section.sink;
    let Some(most) = pieces.iter().filter_map(|p| if let Piece::Group(n) = p { Some(*n) } else { None }).max() else {
        return true;
    };
    let Some(pattern) = pattern else {
        if section.key_span("path_regex").is_some() {
            // What is wrong with the expression is told already.
            return true;
        }
        let help = "add path_regex = \"^/users/([0-9]+)$\", whose first group is {1}".to_owned();
        sink.error(span, format!("{{{most}}} needs \"path_regex\""), Some(help));
        return false;
    };
    if most > pattern.groups() {
        let help = format!("\"path_regex\" has {} groups in parentheses", pattern.groups());
        sink.error(span, format!("there is no group {{{most}}}"), Some(help));
        return false;
    }
    // What stands before the first group, with stand-ins for what the request brings.
    let before: String = pieces
        .iter()
        .take_while(|piece| !matches!(piece, Piece::Group(_)))
        .map(|piece| match piece {
            Piece::Text(text) => text.as_str(),
            Piece::Scheme => "https",
            Piece::Host => "host",
            Piece::Uri | Piece::Path | Piece::Rest => "/",
            Piece::Query | Piece::Group(_) => "",
        })
        .collect();
    let behind = before.split_once("//").map_or(before.as_str(), |(_, authority)| authority);
    if !behind.contains(['/', '?', '#']) {
        let help =
            "write a \"/\" before the group: without it, a client could choose the host of the redirect".to_owned();
        sink.error(span, "the host of the redirect contains a group of path_regex", Some(help));
        return false;
    }
    true
}

/// The longest name of a route, in bytes.
const MAX_NAME: usize = 100;

/// A name for people.
pub(super) fn name(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let s = decode::text(sink, key, node)?;
    if s.trim().is_empty() || s.trim() != s || s.len() > MAX_NAME || s.chars().any(char::is_control) {
        let help = Some(format!("write 1 to {MAX_NAME} bytes, as in {key} = \"api\""));
        sink.error(&node.span(), format!("\"{key}\" is empty, too long, or has spaces around it"), help);
        return None;
    }
    Some(s)
}

/// A path to match everything below it.
pub(super) fn path(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let s = path_text(sink, key, node)?;
    if s.contains('*') {
        let bare = s.trim_end_matches('*');
        let help =
            format!("write {key} = \"{}\": it matches everything below", if bare.is_empty() { "/" } else { bare });
        sink.error(&node.span(), format!("\"{s}\" has a \"*\""), Some(help));
        return None;
    }
    Some(s)
}

pub(super) fn path_text(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let s = decode::text(sink, key, node)?;
    if !s.starts_with('/') {
        let help = match s.strip_prefix("= ").or(s.strip_prefix('=')) {
            Some(exact) => format!("write exact = \"{exact}\""),
            None if s.starts_with(['^', '~']) => {
                format!("write path_regex = '{}'", s.trim_start_matches(['~', '*', ' ']))
            }
            None => format!("write {key} = \"/{s}\""),
        };
        sink.error(&node.span(), format!("\"{s}\" is not a path"), Some(help));
        return None;
    }
    if s.contains(['?', '#']) {
        let end = s.find(['?', '#']).unwrap_or(s.len());
        let help = format!("write {key} = \"{}\": routes do not compare the query", &s[..end]);
        sink.error(&node.span(), format!("\"{s}\" contains more than a path"), Some(help));
        return None;
    }
    Some(s)
}

pub(super) fn rewrite(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let s = path_text(sink, key, node)?;
    if let Some(bad) = s.chars().find(|c| !c.is_ascii_graphic()) {
        let help = "encode spaces and characters outside ASCII with %, as in \"/caf%C3%A9\"".to_owned();
        sink.error(&node.span(), format!("\"{key}\" contains {bad:?}, which must be encoded in a path"), Some(help));
        return None;
    }
    Some(s.trim_end_matches('/').to_owned())
}

/// The most groups in a `rewrite`, so that the path does not grow without bound.
const MAX_USES: usize = 9;

/// A path with groups: `/show/{1}`.
pub(super) fn rewritten(sink: &Sink, key: &str, node: &Node) -> Option<Vec<Piece>> {
    let s = path_text(sink, key, node)?;
    let pieces = target(sink, key, node)?;
    let fail = |message: String, help: &str| {
        sink.error(&node.span(), message, Some(help.to_owned()));
        None
    };
    const EXAMPLE: &str = "write a path, with {1} to {9} for the groups of \"path_regex\", as in \"/show/{1}\"";
    let mut uses = 0;
    for piece in &pieces {
        match piece {
            Piece::Text(text) if Readings::of(text.as_bytes()).is_err() => {
                return fail(
                    format!("\"{s}\" has \"%00\", a \"%\" that encodes nothing, or a segment \".\" or \"..\""),
                    EXAMPLE,
                );
            }
            Piece::Text(_) => {}
            Piece::Group(_) => uses += 1,
            _ => {
                return fail(
                    format!(
                        "\"{key}\" can contain {{1}} to {{9}}, the groups of \"path_regex\", but no other part of the request"
                    ),
                    EXAMPLE,
                );
            }
        }
    }
    if s.starts_with("//") || uses > MAX_USES {
        return fail(format!("\"{s}\" begins with \"//\", or has more than {MAX_USES} groups"), EXAMPLE);
    }
    Some(pieces)
}

pub(super) fn methods(sink: &Sink, key: &str, node: &Node) -> Option<Vec<String>> {
    let list = decode::strings(sink, key, node)?;
    let written = list.len();
    let mut good = Vec::new();
    for method in list {
        let name = method.value;
        if !is_token(&name) {
            sink.error(&method.span, format!("\"{name}\" is not a method"), Some("write \"GET\"".to_owned()));
        } else if name.bytes().any(|b| b.is_ascii_lowercase()) {
            let help = format!("methods are in capitals: \"{}\"", name.to_ascii_uppercase());
            sink.error(&method.span, format!("\"{name}\" is not a method"), Some(help));
        } else {
            good.push(name);
        }
    }
    // A part of the list would be another condition.
    (good.len() == written).then_some(good)
}

pub(super) fn is_redirect(status: u64) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

/// Reports a status that is none of a redirect.
pub(super) fn bad_redirect(sink: &Sink, status: &At<u64>) {
    let help =
        "308 and 301 are permanent; 307 and 302 are temporary; 308 and 307 keep the method; 303 changes it to GET"
            .to_owned();
    sink.error(&status.span, format!("{} is not a redirect status", status.value), Some(help));
}

/// `redirect = "https://{host}{uri}"`, or a table with `to` and `status`.
pub(super) fn redirect(sink: &Sink, key: &str, node: &Node) -> Option<Redirect> {
    if let DeValue::String(_) = node.get_ref() {
        let to = target(sink, key, node)?;
        return Some(Redirect { status: d::status.default() as u16, to });
    }
    let DeValue::Table(table) = node.get_ref() else {
        let help = format!("write {key} = \"https://{{host}}{{uri}}\", or {key} = {{ to = \"/new/\", status = 301 }}");
        decode::wrong_type(sink, key, node, "a string or a table", help);
        return None;
    };
    let section = Section::new(sink, &d::TABLE, table, node.span());
    let to = section.required(&d::to);
    let status = section.optional_at(&d::status);
    section.finish();
    if let Some(status) = status.as_ref().filter(|s| !is_redirect(s.value)) {
        bad_redirect(sink, status);
        return None;
    }
    Some(Redirect { status: status.map_or_else(|| d::status.default(), |s| s.value) as u16, to: to?.value })
}

pub(super) fn target(sink: &Sink, key: &str, node: &Node) -> Option<Vec<Piece>> {
    let s = decode::text(sink, key, node)?;
    let mut pieces = Vec::new();
    let mut rest = s.as_str();
    let fail = |message: String, help: &str| {
        sink.error(&node.span(), message, Some(help.to_owned()));
        None
    };
    const NAMES: &str = "there are {scheme}, {host}, {uri} (path and query), {path}, {query} and {rest} \
                         (path and query after the route's path), and {1} to {9} for the groups of \"path_regex\"";
    while let Some(open) = rest.find('{') {
        if open > 0 {
            pieces.push(Piece::Text(rest[..open].to_owned()));
        }
        let Some(close) = rest[open..].find('}') else {
            return fail(format!("\"{s}\" has a \"{{\" without a \"}}\""), NAMES);
        };
        pieces.push(match &rest[open + 1..open + close] {
            "scheme" => Piece::Scheme,
            "host" => Piece::Host,
            "uri" => Piece::Uri,
            "path" => Piece::Path,
            "query" => Piece::Query,
            "rest" => Piece::Rest,
            digit if matches!(digit.as_bytes(), [b'1'..=b'9']) => Piece::Group(usize::from(digit.as_bytes()[0] - b'0')),
            other => return fail(format!("there is no {{{other}}}"), NAMES),
        });
        rest = &rest[open + close + 1..];
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    if s.contains('$') {
        return fail(
            format!("\"{s}\" has a \"$\""),
            "write {host} for $host, {uri} for $request_uri, {scheme} for $scheme, {1} for $1",
        );
    }
    if s.is_empty() || !s.bytes().all(|b| b.is_ascii_graphic()) {
        return fail(format!("\"{s}\" is not a valid redirect target"), "write \"https://{host}{uri}\" or \"/new/\"");
    }
    let absolute = s.starts_with('/') || s.starts_with("http://") || s.starts_with("https://");
    if !absolute && !matches!(pieces.first(), Some(Piece::Scheme | Piece::Uri | Piece::Path | Piece::Rest)) {
        let help = format!("write \"https://{s}\", or \"/{s}\" for a path of the same host");
        return fail(format!("\"{s}\" has neither a scheme nor a path"), &help);
    }
    Some(pieces)
}
