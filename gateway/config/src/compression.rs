//! `compression`: which responses are compressed.

use super::decode::{self, Node, Section};
use super::diagnostics::Sink;
use super::settings::compression as s;
use sealane_http::coding::Coding;
use sealane_proxy::compression::{CompressionRule, MediaTypes};
use std::ops::Range;
use toml::de::DeValue;

/// What `compression` says.
pub(super) enum Compression {
    /// `false`: the host's does not hold here.
    Off,
    /// Where it stands, for a program that has no content codings.
    On(CompressionRule, Range<usize>),
}

pub(super) fn read(sink: &Sink, key: &str, node: &Node) -> Option<Compression> {
    let (encodings, levels, types, min_length, with_credentials) = match node.get_ref() {
        DeValue::Boolean(false) => return Some(Compression::Off),
        DeValue::Boolean(true) => {
            let levels = [s::zstd_level.default(), s::br_level.default(), s::gzip_level.default()];
            (s::encodings.default(), levels, s::types.default(), s::min_length.default(), false)
        }
        DeValue::Table(table) => {
            let section = Section::new(sink, &s::TABLE, table, node.span());
            let encodings = section.or(&s::encodings);
            let levels = [section.or(&s::zstd_level), section.or(&s::br_level), section.or(&s::gzip_level)];
            let types = section.or(&s::types);
            let (min_length, credentials) = (section.or(&s::min_length), section.or(&s::dangerous_with_credentials));
            if let Some(span) = section.key_span("dangerous_with_credentials").filter(|_| credentials) {
                let help =
                    "remove \"dangerous_with_credentials\". Keep it only for responses that contain no secrets, or \
                     no text from the request"
                        .to_owned();
                let message = "dangerous_with_credentials: an attacker can find out secrets from the lengths of \
                               compressed responses (BREACH)";
                sink.warn(&span, message, Some(help));
            }
            section.finish();
            (encodings, levels, types, min_length, credentials)
        }
        _ => {
            decode::wrong_type(sink, key, node, "true, false or a table", format!("write {key} = true"));
            return None;
        }
    };
    let codings = encodings.into_iter().map(|coding| (coding, levels[coding as usize] as u8)).collect();
    Some(Compression::On(CompressionRule { codings, types, min_length, with_credentials }, node.span()))
}

/// As `encodings` has them.
pub(super) const CODINGS: &[(&str, Coding)] = &[("zstd", Coding::Zstd), ("br", Coding::Brotli), ("gzip", Coding::Gzip)];

/// Types of content.
pub(super) fn types(sink: &Sink, key: &str, node: &Node) -> Option<Vec<MediaTypes>> {
    let written = decode::strings(sink, key, node)?;
    let mut types = Vec::new();
    for at in &written {
        if MediaTypes::is_excluded(at.value.as_bytes()) {
            let message = format!("responses of the type \"{}\" are never compressed", at.value);
            sink.error(&at.span, message, Some(format!("remove it from \"{key}\"")));
            return None;
        }
        let Some(parsed) = MediaTypes::parse(&at.value) else {
            let help = "write a type such as \"text/html\", \"text/*\" or \"application/*+json\"".to_owned();
            sink.error(&at.span, format!("\"{}\" does not name a content type", at.value), Some(help));
            return None;
        };
        types.push(parsed);
    }
    Some(types)
}
