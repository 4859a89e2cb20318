//! The conditions of `if`.

use super::parser::Directive;
use crate::patterns;

/// A condition of `if`, as far as it is understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// The request came over TLS.
    Tls(bool),
    /// The host is one of these names, or (`false`) none of them.
    Host(Vec<String>, bool),
    /// The method is one of these, or (`false`) none of them.
    Method(Vec<String>, bool),
    /// A header, by name, and the condition in TOML.
    Header(String, String),
    Unknown,
}

/// Reads the condition of an `if`.
pub(super) fn condition(d: &Directive) -> Condition {
    let mut words: Vec<String> = d.arguments().into_iter().map(str::to_owned).collect();
    if let Some(first) = words.first_mut()
        && let Some(rest) = first.strip_prefix('(')
    {
        *first = rest.to_owned();
    }
    if let Some(last) = words.last_mut()
        && let Some(rest) = last.strip_suffix(')')
    {
        *last = rest.to_owned();
    }
    let words: Vec<&str> = words.iter().map(String::as_str).filter(|w| !w.is_empty()).collect();
    let Some(variable) = words.first().and_then(|w| w.strip_prefix('$')) else { return Condition::Unknown };
    let variable = variable.trim_start_matches('{').trim_end_matches('}');
    let (operator, value) = match words[1..] {
        [] => ("", ""),
        [operator] => (operator, ""),
        [operator, value] => (operator, value),
        _ => return Condition::Unknown,
    };
    let positive = !operator.starts_with('!');
    let operator = operator.trim_start_matches('!');
    match (variable, operator) {
        ("scheme", "=") => tls(value, positive),
        ("scheme", "~" | "~*") => tls(value.trim_start_matches('^').trim_end_matches('$'), positive),
        ("https", "=") => Condition::Tls((value == "on") == positive),
        ("https", "") => Condition::Tls(true),
        ("server_port", "=") if matches!(value, "80" | "443") => Condition::Tls((value == "443") == positive),
        ("host" | "http_host", "=") => Condition::Host(vec![value.to_ascii_lowercase()], positive),
        ("host" | "http_host", "~" | "~*") => match patterns::names(value) {
            Some(names) if names.iter().all(|n| !n.starts_with('*')) => Condition::Host(names, positive),
            _ => Condition::Unknown,
        },
        ("request_method", "=") => Condition::Method(vec![value.to_owned()], positive),
        ("request_method", "~" | "~*") => match methods(value) {
            Some(list) => Condition::Method(list, positive),
            None => Condition::Unknown,
        },
        (name, operator) => match (name.strip_prefix("http_"), operator) {
            (Some(header), "") => Condition::Header(header_name(header), "true".to_owned()),
            (Some(header), "=") if value.is_empty() => Condition::Header(header_name(header), (!positive).to_string()),
            (Some(header), "=") if positive && !value.ends_with('*') => {
                Condition::Header(header_name(header), crate::output::quoted(value))
            }
            _ => Condition::Unknown,
        },
    }
}

fn tls(scheme: &str, positive: bool) -> Condition {
    match scheme {
        "https" => Condition::Tls(positive),
        "http" => Condition::Tls(!positive),
        _ => Condition::Unknown,
    }
}

/// `$http_x_beta` is the header `X-Beta`.
pub(super) fn header_name(variable: &str) -> String {
    let words: Vec<String> = variable
        .split('_')
        .map(|w| {
            let mut chars = w.chars();
            chars.next().map_or_else(String::new, |c| c.to_ascii_uppercase().to_string() + chars.as_str())
        })
        .collect();
    words.join("-")
}

/// `^(GET|POST)$`: the methods.
pub(super) fn methods(pattern: &str) -> Option<Vec<String>> {
    let expanded = patterns::expand(pattern)?;
    let anchored = expanded.before == patterns::Edge::Nothing && expanded.after == patterns::Edge::Nothing;
    let good = |m: &String| !m.is_empty() && m.bytes().all(|b| b.is_ascii_uppercase());
    (anchored && expanded.texts.iter().all(good)).then_some(expanded.texts)
}
