//! Values of request headers with parts of the request: `{client_address}` and others.

use super::decode;
use super::diagnostics::Sink;
use sealane_proxy::rules::{FieldEdits, FieldTemplate};
use sealane_proxy::templates::{Template, UnknownPart};
use std::ops::Range;

/// Changes to requests, with what their values have of the request. `span`: where they are written.
pub(super) fn of_requests(sink: &Sink, span: &Range<usize>, edits: FieldEdits) -> FieldEdits {
    let FieldEdits { remove, set, add, mut templates } = edits;
    let mut plain = |all: Vec<(String, String)>, adds| -> Vec<(String, String)> {
        let is_plain = |(name, text): &(String, String)| match Template::parse(text) {
            Ok(None) => true,
            Ok(Some(value)) => {
                templates.push(FieldTemplate { name: name.clone(), adds, value });
                false
            }
            Err(UnknownPart(part)) => {
                let help = match decode::nearest(&part, Template::parts()) {
                    Some(best) => format!("did you mean {{{best}}}?"),
                    None => format!("write one of {}", decode::listed(Template::parts())),
                };
                sink.error(
                    span,
                    format!("\"{name}\" has {{{part}}}, which is not the name of a part of the request"),
                    Some(help),
                );
                false
            }
        };
        all.into_iter().filter(is_plain).collect()
    };
    let (set, add) = (plain(set, false), plain(add, true));
    FieldEdits { remove, set, add, templates }
}

/// Warns of parts of the request in values for responses, which are sent as they are written.
pub(super) fn warn_of_responses(sink: &Sink, span: &Range<usize>, edits: &FieldEdits) {
    for (name, text) in edits.set.iter().chain(&edits.add) {
        if matches!(Template::parse(text), Ok(Some(_))) {
            let help = "write a value without parts of the request: only request_headers can have them".to_owned();
            sink.warn(span, format!("\"{name}\" is sent as it is written, with its braces: \"{text}\""), Some(help));
        }
    }
}
