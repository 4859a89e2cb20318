//! `cors`: what pages of other origins may do.

use super::decode::{self, At, Node, Section};
use super::diagnostics::Sink;
use super::fields;
use super::settings::cors as s;
use sealane_proxy::cors::{CorsRule, OriginPattern};

/// What `cors` says.
pub(super) enum Cors {
    /// `false`: the host's does not hold here.
    Off,
    On(CorsRule),
}

pub(super) fn read(sink: &Sink, key: &str, node: &Node) -> Option<Cors> {
    let example = "{ origins = [\"https://app.example.com\"] }";
    let Some(table) = decode::table_or_false(sink, key, node, example)? else { return Some(Cors::Off) };
    let section = Section::new(sink, &s::TABLE, table, node.span());
    let origins = section.required(&s::origins);
    let methods = section.or(&s::methods);
    let headers = section.optional_at(&s::headers);
    let expose = section.optional_at(&s::expose_headers);
    let credentials = section.or(&s::credentials);
    let max_age = section.optional(&s::max_age);
    let span = section.key_span("credentials");
    section.finish();
    let origins = origins?;
    let all = origins.value.is_none();
    if let (true, true, Some(span)) = (credentials, all, span) {
        let help = "name the origins: with \"*\", every page that a user opens could act in the user's name".to_owned();
        sink.error(&span, "\"credentials\" excludes the origin \"*\"", Some(help));
        return None;
    }
    for names in [&headers, &expose].into_iter().flatten() {
        if credentials && names.value.iter().any(|n| n == "*") {
            let help = "name the headers: with credentials, browsers treat \"*\" as the name of a header".to_owned();
            sink.error(&names.span, "\"credentials\" excludes the header \"*\"", Some(help));
        }
    }
    let joined = |names: Option<At<Vec<String>>>| names.map(|n| n.value.join(", "));
    Some(Cors::On(CorsRule {
        origins: origins.value,
        methods: methods.join(", "),
        headers: joined(headers),
        expose: joined(expose),
        credentials,
        max_age: max_age.map(|age| age.as_secs().to_string()),
    }))
}

/// Origins; `None`: all.
pub(super) fn origins(sink: &Sink, key: &str, node: &Node) -> Option<Option<Vec<OriginPattern>>> {
    let written = decode::strings(sink, key, node)?;
    if let [one] = &written[..]
        && one.value == "*"
    {
        return Some(None);
    }
    let wanted = written.len();
    let one = |origin: At<String>| {
        let pattern = OriginPattern::parse(&origin.value);
        if pattern.is_none() {
            let bare = origin.value.trim_end_matches('/');
            let help = match origin.value.as_str() {
                "*" => "write \"*\" alone".to_owned(),
                "null" => "pages without an origin cannot be told apart, so they cannot be allowed".to_owned(),
                _ if OriginPattern::parse(&bare.to_ascii_lowercase()).is_some() => {
                    format!("write \"{}\"", bare.to_ascii_lowercase())
                }
                text if !text.contains("://") => format!("write \"https://{bare}\""),
                text => without_path(text).map_or_else(
                    || {
                        "write a scheme and a host, and the port only if it is not the default port of the scheme: \
                         \"https://app.example.com\", \"https://*.example.com\", \"http://localhost:3000\""
                            .to_owned()
                    },
                    |origin| format!("write \"{origin}\": an origin has no path"),
                ),
            };
            sink.error(&origin.span, format!("\"{}\" does not name an origin", origin.value), Some(help));
        }
        pattern
    };
    let good: Vec<OriginPattern> = written.into_iter().filter_map(one).collect();
    (good.len() == wanted).then_some(Some(good))
}

/// The origin of a URL with a path.
fn without_path(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let (authority, _) = rest.split_once('/')?;
    let origin = format!("{scheme}://{authority}").to_ascii_lowercase();
    OriginPattern::parse(&origin).map(|_| origin)
}

/// Names of headers, or `"*"`.
pub(super) fn headers(sink: &Sink, key: &str, node: &Node) -> Option<Vec<String>> {
    let names = decode::strings(sink, key, node)?;
    let good = names.into_iter().filter(|name| {
        let is_good = fields::is_token(&name.value);
        if !is_good {
            let help = "write a name of letters, digits and hyphens, as in \"X-Request-Id\"".to_owned();
            sink.error(&name.span, format!("\"{}\" does not name a header", name.value), Some(help));
        }
        is_good
    });
    Some(good.map(|name| name.value).collect())
}
