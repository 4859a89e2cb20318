//! `basic_auth` and `forward_auth`: who asks, and whether that may.

use super::decode::{self, At, Node, Section};
use super::diagnostics::Sink;
use super::plan;
use super::settings::{basic_auth as b, forward_auth as f};
use super::templates;
use sealane_proxy::rules::FieldEdits;
use std::path::PathBuf;
use std::time::Duration;

/// What `basic_auth` says.
pub(super) enum BasicAuth {
    /// `false`: no password is needed.
    Off,
    /// One of these users' is.
    Users { users: At<PathBuf>, challenge: String, user_header: Option<String>, keep_authorization: bool },
}

pub(super) fn basic_auth(sink: &Sink, key: &str, node: &Node) -> Option<BasicAuth> {
    let example = "{ users = \"users.txt\" }";
    let Some(table) = decode::table_or_false(sink, key, node, example)? else { return Some(BasicAuth::Off) };
    let section = Section::new(sink, &b::TABLE, table, node.span());
    let users = section.required(&b::users);
    let realm = section.or(&b::realm);
    let user_header = section.optional(&b::user_header);
    let keep_authorization = section.or(&b::keep_authorization);
    section.finish();
    // RFC 7617 §2.1: what is typed in is UTF-8.
    let challenge = format!("Basic realm=\"{realm}\", charset=\"UTF-8\"");
    Some(BasicAuth::Users { users: users?, challenge, user_header, keep_authorization })
}

/// What stands between quotes in `WWW-Authenticate`.
pub(super) fn realm(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let s = decode::text(sink, key, node)?;
    if s.bytes().any(|b| !(b' '..=b'~').contains(&b) || matches!(b, b'"' | b'\\')) {
        let help = Some("write visible ASCII without quotes and backslashes".to_owned());
        sink.error(&node.span(), format!("\"{key}\" has characters that cannot be shown"), help);
        return None;
    }
    Some(s)
}

/// The target of the request for permission.
pub(super) fn path(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    plan::target(sink, key, node, "/verify")
}

/// What `forward_auth` says.
pub(super) enum ForwardAuth {
    /// `false`: no permission is needed.
    Off,
    /// This upstream is asked.
    Ask { upstream: At<String>, target: String, set: FieldEdits, copy: Vec<(String, String)>, timeout: Duration },
}

pub(super) fn forward_auth(sink: &Sink, key: &str, node: &Node) -> Option<ForwardAuth> {
    let example = "{ upstream = \"auth\", path = \"/verify\" }";
    let Some(table) = decode::table_or_false(sink, key, node, example)? else { return Some(ForwardAuth::Off) };
    let section = Section::new(sink, &f::TABLE, table, node.span());
    let upstream = section.required(&f::upstream);
    let target = section.required(&f::path);
    let set = section.optional_at(&f::set_headers).map_or_else(FieldEdits::default, |At { value: set, span }| {
        templates::of_requests(sink, &span, FieldEdits { set, ..FieldEdits::default() })
    });
    let copy = section.optional(&f::copy_headers).unwrap_or_default();
    let timeout = section.or(&f::timeout);
    section.finish();
    Some(ForwardAuth::Ask { upstream: upstream?, target: target?.value, set, copy, timeout })
}
