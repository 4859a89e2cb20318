//! `server_name`.

use super::parser::Directive;
use crate::patterns;

/// A name as Sealane writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub pattern: String,
}

/// What a word of `server_name` stands for.
pub(super) enum Meaning {
    Names(Vec<String>),
    /// It matches no request, like `_`.
    Nothing,
    /// There is nothing for it.
    Unknown(&'static str),
}

fn is_host(name: &str) -> bool {
    let label =
        |l: &str| !l.is_empty() && l.len() < 64 && l.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    name.len() < 254 && name.split('.').all(label)
}

/// Reads a word of `server_name`.
pub(super) fn meaning(word: &str) -> Meaning {
    let lower = word.to_ascii_lowercase();
    if let Some(pattern) = word.strip_prefix('~') {
        return match patterns::names(pattern) {
            Some(names) => Meaning::Names(names),
            None => Meaning::Unknown("name the hosts; a pattern is \"*.example.com\" or \"**.example.com\""),
        };
    }
    if let Some(rest) = lower.strip_prefix("*.").filter(|r| is_host(r)) {
        // In NGINX it covers any number of labels.
        return Meaning::Names(vec![format!("**.{rest}")]);
    }
    if let Some(rest) = lower.strip_prefix('.').filter(|r| is_host(r)) {
        return Meaning::Names(vec![rest.to_owned(), format!("**.{rest}")]);
    }
    if lower.ends_with(".*") {
        return Meaning::Unknown("name the hosts: a wildcard stands for the first labels only");
    }
    if lower.is_empty() || lower == "_" || lower == "-" || lower.contains('$') {
        return Meaning::Nothing;
    }
    let bare = lower.trim_end_matches('.');
    if lower.starts_with('[') && lower.ends_with(']') && lower[1..lower.len() - 1].parse::<std::net::Ipv6Addr>().is_ok()
    {
        return Meaning::Names(vec![lower]);
    }
    match is_host(bare) {
        true => Meaning::Names(vec![bare.to_owned()]),
        false => Meaning::Unknown("is not a host name"),
    }
}

/// Whether a name is one of those for which a pattern stands.
pub(super) fn covers(pattern: &str, name: &str) -> bool {
    match (pattern, pattern.strip_prefix("**."), pattern.strip_prefix("*.")) {
        ("*", ..) => true,
        (_, Some(rest), _) => name.strip_suffix(rest).is_some_and(|n| n.len() > 1 && n.ends_with('.')),
        (_, _, Some(rest)) => {
            name.strip_suffix(rest).and_then(|n| n.strip_suffix('.')).is_some_and(|n| !n.is_empty() && !n.contains('.'))
        }
        _ => pattern == name,
    }
}

/// All words of a server's `server_name`s.
pub(super) fn words(server: &Directive) -> impl Iterator<Item = (&Directive, &str)> {
    let names = server.inner().iter().filter(|d| d.name() == "server_name");
    names.flat_map(|d| d.arguments().into_iter().map(move |w| (d, w)))
}
