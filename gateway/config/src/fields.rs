//! Names and values of headers: conditions, and changes to messages.

use super::decode::{self, At, Node, Section};
use super::diagnostics::Sink;
use super::settings::edits as e;
use sealane_http::{Fields, Known};
use sealane_proxy::rules::FieldEdits;
use toml::de::DeValue;

/// How a header name is written.
const NAME: &str = "write a name of letters, digits and hyphens, as in \"X-Request-Id\"";

/// The name of a header that tells the upstream something.
pub(super) fn user_header(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let name = decode::text(sink, key, node)?;
    if !is_token(&name) {
        sink.error(&node.span(), format!("\"{name}\" is not a header name"), Some(NAME.to_owned()));
        return None;
    }
    if let Some(why) = reserved(&name) {
        sink.error(&node.span(), format!("\"{name}\" cannot be set"), Some(why.to_owned()));
        return None;
    }
    Some(name)
}

pub(super) fn is_token(name: &str) -> bool {
    Fields::new().push(name.as_bytes(), b"").is_ok()
}

/// The keys and values of a table whose keys are field names.
pub(super) fn named<'n, 'd>(sink: &Sink, key: &str, node: &'n Node<'d>) -> Option<Vec<(At<String>, &'n Node<'d>)>> {
    let DeValue::Table(table) = node.get_ref() else {
        let help = format!("write {key} = {{ X-Name = \"value\" }}");
        decode::wrong_type(sink, key, node, "a table of header names", help);
        return None;
    };
    let mut out = Vec::new();
    for (name, value) in table.iter() {
        let at = At { value: name.get_ref().to_string(), span: name.span() };
        if !is_token(&at.value) {
            sink.error(&at.span, format!("\"{}\" is not a header name", at.value), Some(NAME.to_owned()));
        } else {
            out.push((at, value));
        }
    }
    Some(out)
}

/// Ours to say, or what frames messages.
pub(super) fn reserved(name: &str) -> Option<&'static str> {
    let known = Known::lookup(name.as_bytes());
    match known {
        Known::Host => Some("set \"host_header\" in [[upstream]]"),
        Known::ContentLength | Known::TransferEncoding => {
            Some("this header says where a message ends: the gateway sets it")
        }
        Known::Trailer | Known::Expect => Some("the gateway itself handles this header"),
        k if k.is_hop_by_hop() => Some("this header is for one connection only: the gateway sets it"),
        _ => None,
    }
}

pub(super) fn edits(section: Section) -> Option<FieldEdits> {
    let edits = FieldEdits {
        remove: section.optional(&e::remove).unwrap_or_default(),
        set: section.optional(&e::set).unwrap_or_default(),
        add: section.optional(&e::add).unwrap_or_default(),
        templates: Vec::new(),
    };
    section.finish();
    Some(edits)
}

/// Names and values of headers.
pub(super) fn pairs(sink: &Sink, key: &str, node: &Node) -> Option<Vec<(String, String)>> {
    let mut out = Vec::new();
    for (name, value) in named(sink, key, node)? {
        let Some(text) = decode::text(sink, &name.value, value) else { continue };
        if let Some(why) = reserved(&name.value) {
            sink.error(&name.span, format!("\"{}\" cannot be changed", name.value), Some(why.to_owned()));
        } else if Fields::new().push(b"x", text.as_bytes()).is_err() {
            let message = format!("the value of \"{}\" has control characters, or white space around it", name.value);
            let help = "write the value without control characters and without white space around it".to_owned();
            sink.error(&value.span(), message, Some(help));
        } else {
            // A text that begins so is meant: it is written with two "$".
            if text.starts_with('$') && !text.starts_with("${") {
                let message = format!("\"{text}\" is not replaced: this is NGINX's syntax");
                let help = "in request_headers, write a part such as \"{client_address}\": see \"Headers with parts of the \
                            request\" in docs/how-to/routing.md";
                sink.warn(&value.span(), message, Some(help.to_owned()));
            }
            out.push((name.value, text));
        }
    }
    Some(out)
}

/// Names of headers that are removed.
pub(super) fn removed(sink: &Sink, key: &str, node: &Node) -> Option<Vec<String>> {
    field_names(sink, key, node, "removed")
}

/// Headers that are copied: their new names and their old ones, which are the same in a list.
pub(super) fn copied(sink: &Sink, key: &str, node: &Node) -> Option<Vec<(String, String)>> {
    if !matches!(node.get_ref(), DeValue::Table(_)) {
        let names = field_names(sink, key, node, "copied")?;
        return Some(names.into_iter().map(|name| (name.clone(), name)).collect());
    }
    let mut out = Vec::new();
    for (name, from) in named(sink, key, node)? {
        let Some(text) = decode::text(sink, &name.value, from) else { continue };
        if let Some(why) = reserved(&name.value) {
            sink.error(&name.span, format!("\"{}\" cannot be copied", name.value), Some(why.to_owned()));
        } else if !is_token(&text) {
            let help = "write the name of a header of the response, as in X-User = \"X-Auth-Request-User\"".to_owned();
            sink.error(&from.span(), format!("\"{text}\" is not a header name"), Some(help));
        } else {
            out.push((name.value, text));
        }
    }
    Some(out)
}

fn field_names(sink: &Sink, key: &str, node: &Node, done: &str) -> Option<Vec<String>> {
    let names = decode::strings(sink, key, node)?;
    let good = names.into_iter().filter(|name| {
        let why = reserved(&name.value).or((!is_token(&name.value)).then_some("write a header's name"));
        if let Some(why) = why {
            sink.error(&name.span, format!("\"{}\" cannot be {done}", name.value), Some(why.to_owned()));
        }
        why.is_none()
    });
    Some(good.map(|n| n.value).collect())
}

/// `true`, a time, or the field's whole value (RFC 6797 §6.1).
pub(super) fn hsts(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let year = 365 * 86_400;
    let help = format!("write {key} = true (a year), \"180d\", or \"max-age=31536000; includeSubDomains; preload\"");
    match node.get_ref() {
        DeValue::Boolean(true) => Some(format!("max-age={year}")),
        DeValue::String(s) if s.to_ascii_lowercase().contains("max-age=") => {
            if Fields::new().push(b"x", s.as_bytes()).is_err() {
                let message = format!("\"{key}\" has control characters, or white space around it");
                let help = "write the value without control characters and without white space around it".to_owned();
                sink.error(&node.span(), message, Some(help));
                return None;
            }
            Some(s.to_string())
        }
        DeValue::String(s) => match decode::parse_duration(s).map(|age| age.as_secs()) {
            Some(0) => {
                let help = format!("write {key} = \"max-age=0\" if browsers must forget an earlier value");
                sink.error(&node.span(), format!("\"{key}\" must be at least 1s"), Some(help));
                None
            }
            Some(age) => Some(format!("max-age={age}")),
            None => {
                sink.error(&node.span(), format!("\"{s}\" is not a value for \"{key}\""), Some(help));
                None
            }
        },
        DeValue::Boolean(false) => {
            let help = format!("remove \"{key}\": without it, the gateway does not add the header");
            sink.error(&node.span(), format!("false is not a value for \"{key}\""), Some(help));
            None
        }
        _ => {
            decode::wrong_type(sink, key, node, "true, a duration or the value of the header", help);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::diagnostics::Source;
    use super::*;
    use std::path::PathBuf;

    /// The header, or what is said of the value.
    fn read(value: &'static str) -> Result<String, (String, Option<String>)> {
        let sink = Sink::new(Source::new("f".into(), value), PathBuf::new(), None, None);
        let header = hsts(&sink, "hsts", &DeValue::parse(value).unwrap());
        header.ok_or_else(|| sink.finish().0.into_iter().map(|d| (d.message, d.help)).next().unwrap())
    }

    #[test]
    fn values_of_hsts() {
        for (value, header) in [
            ("true", "max-age=31536000"),
            ("\"180d\"", "max-age=15552000"),
            ("\"1s\"", "max-age=1"),
            ("\"max-age=0\"", "max-age=0"),
            ("\"max-age=31536000; includeSubDomains; preload\"", "max-age=31536000; includeSubDomains; preload"),
        ] {
            assert_eq!(read(value).as_deref(), Ok(header), "{value}");
        }
        let help = "write hsts = true (a year), \"180d\", or \"max-age=31536000; includeSubDomains; preload\"";
        let forget = "write hsts = \"max-age=0\" if browsers must forget an earlier value";
        for (value, message, help) in [
            ("\"yes\"", "\"yes\" is not a value for \"hsts\"", help),
            ("\"500\"", "\"500\" is not a value for \"hsts\"", help),
            ("\"500ms\"", "\"hsts\" must be at least 1s", forget),
            ("\"0s\"", "\"hsts\" must be at least 1s", forget),
            ("5", "\"hsts\" must be true, a duration or the value of the header, but its value here is a number", help),
        ] {
            assert_eq!(read(value), Err((message.to_owned(), Some(help.to_owned()))), "{value}");
        }
    }
}
