//! `server_name`.

use super::parser::Directive;
use crate::patterns;

/// A name as Sealane writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub pattern: String,
}

/// Names are searched for in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Exact,
    /// `*.example.com`: the longest one counts.
    Wildcard,
    /// `~…`: the first one counts.
    Pattern,
}

/// What a word of `server_name` stands for.
pub(super) enum Meaning {
    Names(Vec<(Class, String)>),
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

/// A word that is one name.
pub(super) fn exact(word: &str) -> Option<String> {
    let lower = word.to_ascii_lowercase();
    (is_host(&lower) && lower.contains('.')).then_some(lower)
}

/// What is said of a regular expression for names that the import cannot write as names.
pub(super) const EXPRESSION: &str = "the import cannot write this regular expression as names: write each name in names of a \
     [[host]], or a pattern: \"*.example.com\" (one more label) or \"**.example.com\" (one or more)";

/// Reads a word of `server_name`.
pub(super) fn meaning(word: &str) -> Meaning {
    let lower = word.to_ascii_lowercase();
    if let Some(pattern) = word.strip_prefix('~') {
        return match patterns::names(pattern) {
            Some(names) => Meaning::Names(names.into_iter().map(|n| (Class::Pattern, n)).collect()),
            None => Meaning::Unknown(EXPRESSION),
        };
    }
    if let Some(rest) = lower.strip_prefix("*.").filter(|r| is_host(r)) {
        // In NGINX it covers any number of labels.
        return Meaning::Names(vec![(Class::Wildcard, format!("**.{rest}"))]);
    }
    if let Some(rest) = lower.strip_prefix('.').filter(|r| is_host(r)) {
        return Meaning::Names(vec![(Class::Exact, rest.to_owned()), (Class::Wildcard, format!("**.{rest}"))]);
    }
    if lower.ends_with(".*") {
        return Meaning::Unknown(
            "write each name in names of a [[host]]: a wildcard can stand only for the first labels",
        );
    }
    if matches!(lower.as_str(), "" | "_" | "-" | "--" | "!@#" | "__") {
        return Meaning::Nothing;
    }
    if lower.contains('$') {
        return Meaning::Unknown("write each name in names of a [[host]]: names have no variables");
    }
    let bare = lower.trim_end_matches('.');
    if lower.starts_with('[') && lower.ends_with(']') && lower[1..lower.len() - 1].parse::<std::net::Ipv6Addr>().is_ok()
    {
        return Meaning::Names(vec![(Class::Exact, lower)]);
    }
    match is_host(bare) {
        true => Meaning::Names(vec![(Class::Exact, bare.to_owned())]),
        false => Meaning::Unknown("is not a host name"),
    }
}

/// Names that cover those of a regular expression, and more.
pub(super) fn wider(word: &str) -> Option<Vec<String>> {
    word.strip_prefix('~').and_then(patterns::wider_names)
}

/// The name that a host has in the result until a person has written its names.
pub(super) fn placeholder(index: usize) -> String {
    format!("names-of-server-{}.invalid", index + 1)
}

/// All words of a server's `server_name`s.
pub(super) fn words(server: &Directive) -> impl Iterator<Item = (&Directive, &str)> {
    let names = server.inner().iter().filter(|d| d.name() == "server_name");
    names.flat_map(|d| d.arguments().into_iter().map(move |w| (d, w)))
}
