//! NGINX's variables, as far as Sealane has something for them.

use super::auth;
use super::parser::Directive;
use super::scope::{Import, Scope};

/// A piece of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece<'t> {
    Text(&'t str),
    Variable(&'t str),
}

/// Splits a value into texts and variables.
pub(super) fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let after = &rest[at + 1..];
        let (name, used) = match after.strip_prefix('{') {
            Some(inner) => match inner.find('}') {
                Some(end) => (&inner[..end], end + 2),
                None => ("", 0),
            },
            None => {
                let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
                (&after[..end], end)
            }
        };
        if at > 0 {
            out.push(Piece::Text(&rest[..at]));
        }
        if name.is_empty() {
            out.push(Piece::Text("$"));
        } else {
            out.push(Piece::Variable(name));
        }
        rest = &after[used..];
    }
    if !rest.is_empty() {
        out.push(Piece::Text(rest));
    }
    out
}

pub(super) fn has_variables(text: &str) -> bool {
    pieces(text).iter().any(|p| matches!(p, Piece::Variable(_)))
}

/// Longest value.
const MAX_VALUE: usize = 16 << 10;
/// Most bytes of all values together.
pub(super) const MAX_EXPANSION: usize = 16 << 20;

/// Puts the values of variables in their place that `set` gives a constant. Those of `set` are marked as translated.
pub(super) fn expand<'d>(import: &mut Import<'d>, scope: &Scope<'d>, text: &str) -> String {
    let mut text = text.to_owned();
    // A value may have variables in turn.
    for _ in 0..4 {
        if text.len() > MAX_VALUE || import.expansion < text.len() {
            return too_long();
        }
        import.expansion -= text.len();
        let mut out = String::new();
        let mut changed = false;
        for piece in pieces(&text) {
            match piece {
                Piece::Text(t) => out.push_str(t),
                Piece::Variable(_) if !spend(import, scope) => return too_long(),
                Piece::Variable(name) => match constant(scope, name) {
                    Some((d, value)) => {
                        import.same(d, "its value is written where the variable is used");
                        if out.len() + value.len() > MAX_VALUE {
                            return too_long();
                        }
                        out.push_str(value);
                        changed = true;
                    }
                    None => {
                        out.push_str("${");
                        out.push_str(name);
                        out.push('}');
                    }
                },
            }
        }
        if !changed {
            break;
        }
        text = out;
    }
    text
}

/// Takes the work of looking for a variable; whether there was enough.
fn spend(import: &mut Import, scope: &Scope) -> bool {
    let work: usize = scope.blocks().map(<[Directive]>::len).sum();
    let enough = import.expansion >= work;
    import.expansion = import.expansion.saturating_sub(work);
    enough
}

/// A value for which there is nothing: whatever uses it is not translated.
fn too_long() -> String {
    "${too_long}".to_owned()
}

/// The `set` that gives a variable its value, where there is one only.
fn constant<'d>(scope: &Scope<'d>, name: &str) -> Option<(&'d Directive, &'d str)> {
    let is = |d: &&'d Directive| d.name() == "set" && d.word(1).and_then(|w| w.strip_prefix('$')) == Some(name);
    let block = scope.blocks().find(|b| b.iter().any(|d| is(&d)))?;
    let mut found = block.iter().filter(is);
    let d = found.next()?;
    // One that `if` or an answer changes is no constant.
    let changed = scope.blocks().flatten().filter(|d| d.name() == "if").any(|d| d.inner().iter().any(|d| is(&d)));
    (found.next().is_none() && !changed && !auth::sets(scope, name)).then_some((d, d.word(2)?))
}

/// A URL for a redirect, as `to` of Sealane. The error is the variable for which there is nothing.
pub(super) fn target(text: &str, server_name: Option<&str>) -> Result<String, String> {
    // What Sealane calls {uri} has the query in it.
    let text = text
        .replace("${uri}", "$uri")
        .replace("$uri$is_args$args", "$request_uri")
        .replace("$uri$is_args$query_string", "$request_uri")
        .replace("$uri${is_args}${args}", "$request_uri")
        .replace("$request_uri$is_args$args", "$request_uri");
    let mut out = String::new();
    for piece in pieces(&text) {
        match piece {
            Piece::Text(t) if t.contains(['{', '}']) => return Err(t.to_owned()),
            Piece::Text(t) => out.push_str(t),
            Piece::Variable(name) => out.push_str(match name {
                "scheme" => "{scheme}",
                "host" | "http_host" => "{host}",
                "server_name" => server_name.ok_or("$server_name")?,
                "request_uri" => "{uri}",
                "uri" | "document_uri" => "{path}",
                "is_args" => continue,
                "args" | "query_string" => "{query}",
                other => return Err(format!("${other}")),
            }),
        }
    }
    // {query} has its question mark.
    let out = out.replace("?{query}", "{query}");
    let good = !out.is_empty() && out.bytes().all(|b| b.is_ascii_graphic());
    if !good {
        return Err("characters that no URL has".to_owned());
    }
    let rooted = ["/", "http://", "https://", "{scheme}", "{uri}", "{path}"].iter().any(|p| out.starts_with(p));
    if rooted { Ok(out) } else { Err("a target without a scheme".to_owned()) }
}

/// A value of a request header, with parts of the request as `request_headers` names them. The error is what there is nothing for.
pub(super) fn of_request(text: &str, server_name: Option<&str>, port: Option<u16>) -> Result<String, String> {
    let text = text.replace("${is_args}${args}", "$is_args$args").replace("$is_args$query_string", "$is_args$args");
    let mut out = String::new();
    let mut parts = 0;
    let text = text.replace("$is_args$args", "${query_of_sealane}");
    for piece in pieces(&text) {
        let part = match piece {
            Piece::Text(t) => {
                out.push_str(t);
                continue;
            }
            Piece::Variable("server_name") => {
                out.push_str(server_name.ok_or("$server_name")?);
                continue;
            }
            Piece::Variable("server_port") if port.is_some() => {
                out.push_str(&port.unwrap_or_default().to_string());
                continue;
            }
            Piece::Variable(name) => match name {
                "remote_addr" => "{client_address}",
                "scheme" => "{scheme}",
                "host" => "{host}",
                "http_host" => "{authority}",
                "server_port" => "{port}",
                "request_method" => "{method}",
                "request_uri" => "{uri}",
                "query_of_sealane" => "{query}",
                "ssl_protocol" => "{tls_version}",
                "ssl_client_verify" => "{client_certificate_result}",
                "ssl_client_escaped_cert" => "{client_certificate}",
                "ssl_client_s_dn" => "{client_certificate_subject}",
                "ssl_client_i_dn" => "{client_certificate_issuer}",
                "ssl_client_serial" => "{client_certificate_serial}",
                other => return Err(format!("${other}")),
            },
        };
        out.push_str(part);
        parts += 1;
    }
    // Text that Sealane would take for a part.
    match parts_of(&out) == Some(parts) {
        true => Ok(out),
        false => Err("text in braces".to_owned()),
    }
}

/// How many parts of the request Sealane finds in the value of a header; `None`: it refuses the value.
pub(crate) fn parts_of(value: &str) -> Option<usize> {
    let template = sealane_proxy::templates::Template::parse(value).ok()?;
    Some(template.map_or(0, |t| t.parts_in()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_pieces() {
        assert_eq!(
            pieces("https://$host${request_uri}x"),
            [Piece::Text("https://"), Piece::Variable("host"), Piece::Variable("request_uri"), Piece::Text("x")]
        );
        assert_eq!(pieces("a$"), [Piece::Text("a"), Piece::Text("$")]);
        assert_eq!(pieces("${a"), [Piece::Text("$"), Piece::Text("{a")]);
    }

    #[test]
    fn headers_have_parts_of_requests() {
        let is = |text: &str| of_request(text, Some("a.b"), Some(8443));
        assert_eq!(is("$remote_addr").as_deref(), Ok("{client_address}"));
        assert_eq!(is("$scheme://$http_host$request_uri").as_deref(), Ok("{scheme}://{authority}{uri}"));
        assert_eq!(is("${server_name}:$server_port/$request_method").as_deref(), Ok("a.b:8443/{method}"));
        assert_eq!(is("x$is_args$args").as_deref(), Ok("x{query}"));
        assert_eq!(is("{\"a\":1}").as_deref(), Ok("{\"a\":1}"));
        for bad in ["$uri", "$args", "$cookie_x", "$remote_addr{uri}", "{remote}", "$proxy_add_x_forwarded_for"] {
            assert!(is(bad).is_err(), "{bad}");
        }
        assert_eq!(of_request("$server_port", None, None).as_deref(), Ok("{port}"));
    }

    #[test]
    fn targets_have_sealanes_placeholders() {
        assert_eq!(target("https://$host$request_uri", None).as_deref(), Ok("https://{host}{uri}"));
        assert_eq!(target("$scheme://www.a.b$uri$is_args$args", None).as_deref(), Ok("{scheme}://www.a.b{uri}"));
        assert_eq!(target("https://$server_name/x?$args", Some("a.b")).as_deref(), Ok("https://a.b/x{query}"));
        assert!(target("https://$cookie_x/", None).is_err());
        assert!(target("a.b", None).is_err());
        assert!(target("/{x}", None).is_err());
    }
}
