//! `basic_auth` and `forward_auth`: who asks, and whether that may.

use super::decode::{self, At, Node, Section};
use super::diagnostics::Sink;
use super::fields;
use super::plan;
use super::settings::{basic_auth as b, forward_auth as f};
use super::templates;
use sealane_http::Known;
use sealane_http::claims::{is_alike, is_claim};
use sealane_passwords::Users;
use sealane_proxy::rules::FieldEdits;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

/// What `basic_auth` says.
pub(super) enum BasicAuth {
    /// `false`: no password is needed.
    Off,
    /// One of these users' is.
    Users {
        users: At<PathBuf>,
        /// The users of the file that may pass; `None`: all.
        allowed: Option<Vec<At<String>>>,
        challenge: String,
        user_header: Option<String>,
        keep_authorization: bool,
    },
}

pub(super) fn basic_auth(sink: &Sink, key: &str, node: &Node) -> Option<BasicAuth> {
    let example = "{ users = \"users.txt\" }";
    let Some(table) = decode::table_or_false(sink, key, node, example)? else { return Some(BasicAuth::Off) };
    let section = Section::new(sink, &b::TABLE, table, node.span());
    let users = section.required(&b::users);
    let allowed = section.optional(&b::allow_users).map(|names| allowed_users(sink, names));
    let realm = section.or(&b::realm);
    let user_header = section.optional(&b::user_header);
    let keep_authorization = section.or(&b::keep_authorization);
    section.finish();
    // RFC 7617 §2.1: what is typed in is UTF-8.
    let challenge = format!("Basic realm=\"{realm}\", charset=\"UTF-8\"");
    Some(BasicAuth::Users { users: users?, allowed, challenge, user_header, keep_authorization })
}

/// `allow_users`.
fn allowed_users(sink: &Sink, names: Vec<At<String>>) -> Vec<At<String>> {
    let mut out = Vec::new();
    for name in names {
        // RFC 7617 §2: the name ends at the colon.
        if name.value.is_empty() || name.value.contains(|c: char| c == ':' || c.is_control()) {
            let help = "write the name as the file of users has it, before the colon".to_owned();
            sink.error(&name.span, format!("no user can have the name \"{}\"", name.value.escape_debug()), Some(help));
            continue;
        }
        out.push(name);
    }
    out
}

/// The users that may pass, in order, to be searched. Warns of those that the file does not have. `known`: the users of the file, which has
/// none if it was not read.
pub(super) fn allowed_of(sink: &Sink, names: Vec<At<String>>, file: &At<PathBuf>, known: &Users) -> Vec<String> {
    for name in names.iter().filter(|name| known.count() > 0 && !known.knows(&name.value)) {
        let message = format!("{} has no user \"{}\"", file.value.display(), name.value.escape_debug());
        let help = "add the user to the file, or remove the name from \"allow_users\"".to_owned();
        sink.warn(&name.span, message, Some(help));
    }
    let mut out: Vec<String> = names.into_iter().map(|name| name.value).collect();
    out.sort_unstable();
    out.dedup();
    out
}

/// Names of users that proxies of other makers write in headers of the family `X-Forwarded-`.
const FORWARDED_USERS: [&str; 4] =
    ["X-Forwarded-User", "X-Forwarded-Email", "X-Forwarded-Groups", "X-Forwarded-Preferred-Username"];

/// The header with the user's name: one that tells servers nothing else.
pub(super) fn user_header(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let name = fields::user_header(sink, key, node)?;
    let is = |other: &&str| is_alike(name.as_bytes(), other.as_bytes());
    let is_known = Known::ALL.iter().any(|known| *known != Known::Other && is(&known.name()));
    if is_known || is_claim(name.as_bytes()) && !FORWARDED_USERS.iter().any(is) {
        let help = format!("write another name: {key} = \"Remote-User\"");
        let message = format!("\"{name}\" cannot be the header for the user's name: it tells servers something else");
        sink.error(&node.span(), message, Some(help));
        return None;
    }
    Some(name)
}

/// Warns of headers of a request for permission in which the gateway tells the server what the client asks for.
fn warn_of_own_names(sink: &Sink, span: &Range<usize>, set: &[(String, String)]) {
    let own = ["X-Forwarded-Method", "X-Forwarded-Uri"];
    let is_own = |(name, _): &&(String, String)| own.iter().any(|own| is_alike(name.as_bytes(), own.as_bytes()));
    for (name, _) in set.iter().filter(is_own) {
        let message = format!("\"{name}\" replaces what the gateway tells the server about the client's request");
        let help = format!("remove \"{name}\" from \"set_headers\": the server needs the gateway's value to decide");
        sink.warn(span, message, Some(help));
    }
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
        warn_of_own_names(sink, &span, &set);
        templates::of_requests(sink, &span, FieldEdits { set, ..FieldEdits::default() })
    });
    let copy = section.optional(&f::copy_headers).unwrap_or_default();
    let timeout = section.or(&f::timeout);
    section.finish();
    Some(ForwardAuth::Ask { upstream: upstream?, target: target?.value, set, copy, timeout })
}

#[cfg(test)]
mod tests {
    use crate::Document;

    #[test]
    fn settings_that_cannot_be_meant_are_refused() {
        let said = |settings: &str| {
            let text = format!(
                "[[listener]]\naddress = \"127.0.0.1:80\"\n[[upstream]]\nname = \"u\"\nservers = \"127.0.0.1:1\"\n\
                 [[upstream]]\nname = \"auth\"\nservers = \"127.0.0.1:2\"\n[[host]]\nnames = [\"*\"]\n{settings}\n"
            );
            let document = Document::of_file("f".as_ref(), text.as_bytes()).unwrap();
            let (errors, warnings) = match document.read_offline() {
                Ok((_, warnings)) => (Vec::new(), warnings),
                Err(errors) => (errors.errors, errors.warnings),
            };
            let lines: Vec<String> = errors.iter().chain(&warnings).map(ToString::to_string).collect();
            lines.join("\n")
        };
        let basic = |name: &str| {
            format!(
                "upstream = \"u\"\nbasic_auth = {{ users = \"u.txt\", user_header = \"{name}\" }}\nallow = \"10.0.0.0/8\""
            )
        };
        let forward = |name: &str| {
            format!(
                "upstream = \"u\"\nforward_auth = {{ upstream = \"auth\", path = \"/v\", set_headers = {{ {name} = \"x\" }} }}"
            )
        };
        let unused = "forward_auth = { upstream = \"auth\", path = \"/v\" }";
        let no_check = "warning: satisfy = \"any\" has no effect";
        for (settings, message, help) in [
            (
                basic("X-Forwarded-For"),
                "error: \"X-Forwarded-For\" cannot be the header",
                "user_header = \"Remote-User\"",
            ),
            (basic("x_real_ip"), "error: \"x_real_ip\" cannot be the header", "user_header = \"Remote-User\""),
            (basic("Cookie"), "error: \"Cookie\" cannot be the header", "user_header = \"Remote-User\""),
            (basic("Client-Cert"), "error: \"Client-Cert\" cannot be the header", "user_header = \"Remote-User\""),
            (
                "upstream = \"u\"\nbasic_auth = { users = \"u.txt\", allow_users = [] }".to_owned(),
                "error: \"allow_users\" is empty",
                "remove \"allow_users\"",
            ),
            (
                "upstream = \"u\"\nbasic_auth = { users = \"u.txt\", allow_users = [\"a:b\"] }".to_owned(),
                "error: no user can have the name \"a:b\"",
                "before the colon",
            ),
            (
                forward("X-Forwarded-Uri"),
                "warning: \"X-Forwarded-Uri\" replaces what the gateway tells",
                "remove \"X-F",
            ),
            (forward("x_forwarded_method"), "warning: \"x_forwarded_method\" replaces what", "remove \"x_f"),
            (
                format!("{}\nallow_header = {{ Connection = \"x\" }}", forward("X-A")),
                "error: \"allow_header\" cannot have a condition on \"Connection\"",
                "for one connection only",
            ),
            (
                format!("{}\ndeny_header = {{ content_length = \"0\" }}", forward("X-A")),
                "error: \"deny_header\" cannot have a condition on \"content_length\"",
                "use \"max_body_size\"",
            ),
            ("redirect = \"{path}\"".to_owned(), "error: this redirect never ends", "write another path or host"),
            ("redirect = \"{path}?{query}\"".to_owned(), "error: this redirect never ends", "write another path"),
            ("redirect = { to = \"{uri}\" }".to_owned(), "error: this redirect never ends", "write another path"),
            (
                "upstream = \"u\"\nsatisfy = \"any\"\n[[upstream]]\nname = \"x\"\nservers = \"127.0.0.1:3\"".to_owned(),
                no_check,
                "add \"allow\"",
            ),
            (
                "upstream = \"u\"\n[[host.route]]\npath = \"/a\"\nsatisfy = \"any\"\nupstream = \"u\"".to_owned(),
                no_check,
                "add \"allow\"",
            ),
        ] {
            let told = said(&settings);
            assert!(told.contains(message) && told.contains(help), "{settings}\n{told}");
        }
        for settings in [
            basic("Remote-User"),
            "upstream = \"u\"\nbasic_auth = { users = \"u.txt\", allow_users = [\"bob\", \"alice\"] }".to_owned(),
            basic("X-Forwarded-User"),
            basic("X-User"),
            forward("X-Original-URL"),
            format!("upstream = \"u\"\nsatisfy = \"any\"\nallow = \"10.0.0.0/8\"\n{unused}"),
            "upstream = \"u\"\nsatisfy = \"any\"\n[[host.route]]\npath = \"/a\"\nupstream = \"u\"\nallow = \"10.0.0.0/8\"".to_owned(),
            "redirect = \"https://www.example.com{path}\"".to_owned(),
            // After a POST, the client gets the page by GET.
            "redirect = { to = \"{uri}\", status = 303 }\n[[host.route]]\nmethods = [\"GET\"]\nupstream = \"u\""
                .to_owned(),
        ] {
            let told = said(&settings);
            for message in ["cannot be the header", "replaces what", "never ends", "allow_users", no_check] {
                assert!(!told.contains(message), "{settings}\n{told}");
            }
        }
    }
}
