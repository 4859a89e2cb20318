//! `rewrite_location`, `rewrite_cookie_path` and `rewrite_cookie_domain`: what is changed in the responses of upstreams.

use super::decode::{self, Node, Section};
use super::diagnostics::Sink;
use super::settings::messages as m;
use sealane_proxy::response_rewrites::{Pair, ResponseRewrites};
use toml::de::DeValue;

/// What a host or a route says.
#[derive(Clone, Default)]
pub(super) struct Written {
    location: Option<Vec<Pair>>,
    cookie_path: Option<Vec<Pair>>,
    cookie_domain: Option<Vec<Pair>>,
}

impl Written {
    pub fn read(section: &Section) -> Self {
        Self {
            location: section.optional(&m::rewrite_location),
            cookie_path: section.optional(&m::rewrite_cookie_path),
            cookie_domain: section.optional(&m::rewrite_cookie_domain),
        }
    }

    /// What a route says, and where it says nothing, its host.
    pub fn or(self, host: &Self) -> Self {
        Self {
            location: self.location.or_else(|| host.location.clone()),
            cookie_path: self.cookie_path.or_else(|| host.cookie_path.clone()),
            cookie_domain: self.cookie_domain.or_else(|| host.cookie_domain.clone()),
        }
    }

    /// `None`: nothing is changed.
    pub fn rule(&self) -> Option<Box<ResponseRewrites>> {
        let rewrites = ResponseRewrites {
            location: self.location.clone().unwrap_or_default(),
            cookie_path: self.cookie_path.clone().unwrap_or_default(),
            cookie_domain: self.cookie_domain.clone().unwrap_or_default(),
        };
        (!rewrites.is_empty()).then(|| Box::new(rewrites))
    }
}

/// A table of texts; `good` says what is wrong with a pair. The longest texts come first.
fn pairs(
    sink: &Sink,
    key: &str,
    node: &Node,
    example: &str,
    good: impl Fn(&str, &str) -> Result<(), &'static str>,
) -> Option<Vec<Pair>> {
    let DeValue::Table(written) = node.get_ref() else {
        decode::wrong_type(sink, key, node, "a table", format!("write {key} = {example}"));
        return None;
    };
    let mut out = Vec::new();
    for (from, to) in written.iter() {
        let Some(text) = decode::text(sink, from.get_ref(), to) else { continue };
        let from_text: &str = from.get_ref();
        // One that is not known may be any; the key is checked all the same.
        let text = if sink.is_deferred(&to.span()) { from_text.to_owned() } else { text };
        match good(from_text, &text) {
            Ok(()) => out.push((from_text.to_owned(), text)),
            Err(why) => {
                let message = format!("\"{from_text}\" cannot become \"{text}\": {why}");
                sink.error(&from.span(), message, Some(format!("write {key} = {example}")));
            }
        }
    }
    out.sort_by_key(|(from, _): &Pair| std::cmp::Reverse(from.len()));
    Some(out)
}

/// Whether text is a path, or the beginning of one, that names no other host.
fn is_path(text: &str) -> bool {
    let names_host = text.starts_with("//") || text.starts_with("/\\");
    text.starts_with('/') && !names_host && text.bytes().all(|b| b.is_ascii_graphic())
}

/// What stands behind the scheme of a URL.
fn behind_scheme(text: &str) -> Option<&str> {
    let behind = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
    behind.bytes().all(|b| b.is_ascii_graphic()).then_some(behind)
}

/// `rewrite_location`.
pub(super) fn locations(sink: &Sink, key: &str, node: &Node) -> Option<Vec<Pair>> {
    pairs(sink, key, node, "{ \"http://10.0.0.1:8080/app/\" = \"/\" }", |from, to| {
        match (behind_scheme(from), behind_scheme(to)) {
            // One scheme becomes another.
            (Some(""), Some("")) => Ok(()),
            (Some(""), _) | (_, Some("")) => Err("a scheme alone can only become another scheme"),
            (Some(authority), _) if authority.starts_with('/') => Err("the URL has no host"),
            (_, Some(authority)) if authority.starts_with('/') => Err("the URL has no host"),
            (from_url, _) if from_url.is_none() && !is_path(from) => Err("the first text is neither a URL nor a path"),
            (_, to_url) if to_url.is_none() && !is_path(to) => Err("the second text is neither a URL nor a path"),
            _ => Ok(()),
        }
    })
}

/// `rewrite_cookie_path`.
pub(super) fn cookie_paths(sink: &Sink, key: &str, node: &Node) -> Option<Vec<Pair>> {
    pairs(sink, key, node, "{ \"/app/\" = \"/\" }", |from, to| {
        let is_good = |text: &str| is_path(text) && !text.contains([';', ',']);
        if is_good(from) && is_good(to) { Ok(()) } else { Err("each must be a path without \";\" and \",\"") }
    })
}

/// `rewrite_cookie_domain`.
pub(super) fn cookie_domains(sink: &Sink, key: &str, node: &Node) -> Option<Vec<Pair>> {
    pairs(sink, key, node, "{ \"app.internal\" = \"example.com\" }", |from, to| {
        let is_good = |text: &str| {
            let is_label = |label: &str| {
                !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
            };
            text.split('.').all(is_label)
        };
        if is_good(from) && is_good(to) { Ok(()) } else { Err("each must be a domain without a dot at its beginning") }
    })
}

#[cfg(test)]
mod tests {
    use crate::Document;
    use std::path::Path;

    #[test]
    fn texts_are_checked() {
        let said = |line: &str| {
            let text = format!(
                "[[listener]]\naddress = \":1\"\n[[host]]\nnames = [\"a\"]\nto = [\"http://127.0.0.1:2\"]\n{line}\n"
            );
            let document = Document::of_file(Path::new("f"), text.as_bytes()).unwrap();
            document.read_offline().err().map(|errors| errors.to_string()).unwrap_or_default()
        };
        for good in [
            "rewrite_location = { \"http://10.0.0.1:8080/app/\" = \"/\", \"/old\" = \"https://a.example\", \"http://\" = \"https://\" }",
            "rewrite_location = {}",
            "rewrite_cookie_path = { \"/app\" = \"/\" }",
            "rewrite_cookie_domain = { \"app.internal\" = \"example.com\", localhost = \"example.com\" }",
        ] {
            assert_eq!(said(good), "", "{good}");
        }
        for (wrong, why) in [
            ("rewrite_location = \"/\"", "must be a table"),
            ("rewrite_location = { \"app\" = \"/\" }", "neither a URL nor a path"),
            ("rewrite_location = { \"/app\" = \"//evil.example\" }", "neither a URL nor a path"),
            ("rewrite_location = { \"http://\" = \"/\" }", "a scheme alone"),
            ("rewrite_location = { \"http:///x\" = \"/\" }", "has no host"),
            ("rewrite_location = { \"/a b\" = \"/\" }", "neither a URL nor a path"),
            ("rewrite_cookie_path = { \"/\" = \"/; Secure\" }", "each must be a path"),
            ("rewrite_cookie_domain = { \".a\" = \"b\" }", "each must be a domain"),
        ] {
            assert!(said(wrong).contains(why), "{wrong}: {}", said(wrong));
        }
    }
}
