//! What responses say of a server's own address, path and domain: `proxy_redirect`, `proxy_cookie_path` and `proxy_cookie_domain`.

use super::actions::parts_of_url;
use super::headers::HostHeader;
use super::locations::Location;
use super::parser::Directive;
use super::scope::{Import, Scope};
use super::upstreams::{Protocol, Target};
use super::variables::{expand, has_variables};
use crate::output::{Rewrites, quoted};
use crate::report::Place;

const LOCATION: &str = "rewrite_location can only replace the beginning of a URL by a constant text: write it with the addresses that the \
                        server uses, or let the server write its public address (from X-Forwarded-*)";
const COOKIE: &str = "rewrite_cookie_path and rewrite_cookie_domain can only replace constant texts: write them with the texts that the \
                      server uses, or let the server set Path and Domain for its public address. Otherwise browsers do not send the \
                      cookie back";
const FLAGS: &str = "cookies are passed on as they are: let the server set Secure, HttpOnly and SameSite";

/// What a location that passes requests on changes in responses. `to`, `uri`: what `proxy_pass` says. `host`: the `Host` for the server.
pub(super) fn rewrites<'d>(
    import: &mut Import<'d>,
    l: &Location<'d>,
    pass: &'d Directive,
    to: &Target,
    uri: Option<&str>,
    host: Option<&HostHeader>,
) -> Vec<Rewrites> {
    if to.protocol == Protocol::Grpc {
        return Vec::new();
    }
    let scope = l.scope();
    let mut out = Vec::new();
    let mut push = |setting: &'static str, (pairs, place): (Vec<(String, String)>, Option<Place>)| {
        if let (false, Some(place)) = (pairs.is_empty(), place) {
            let both = |(from, to): &(String, String)| format!("{} = {}", quoted(from), quoted(to));
            let all: Vec<String> = pairs.iter().map(both).collect();
            out.push((setting, format!("{{ {} }}", all.join(", ")), place));
        }
    };
    // With a variable, NGINX replaces nothing of its own accord.
    let usual = if pass.word(1).is_some_and(has_variables) { None } else { usual(l, to, uri, host) };
    push("rewrite_location", locations(import, scope, pass, usual));
    push("rewrite_cookie_path", cookies(import, scope, "proxy_cookie_path", path_of_cookies));
    push("rewrite_cookie_domain", cookies(import, scope, "proxy_cookie_domain", domain_of_cookies));
    out
}

/// What NGINX replaces without a `proxy_redirect`: the URL of `proxy_pass`. Where there is no path and the server gets the client's `Host`,
/// it has no reason to name this URL.
fn usual(l: &Location, to: &Target, uri: Option<&str>, host: Option<&HostHeader>) -> Option<(String, String)> {
    let scheme = if to.tls { "https" } else { "http" };
    let passes: Vec<&Directive> =
        l.scope().blocks().filter_map(|block| block.iter().rfind(|d| d.name() == "proxy_pass")).collect();
    if let [_, .., outermost] = passes[..] {
        // A location inside another one inherits what that one replaces.
        let (tls, authority, uri) = outermost.word(1).filter(|url| !has_variables(url)).and_then(parts_of_url)?;
        let scheme = if tls { "https" } else { "http" };
        // With a path, it is replaced by the path of that location, which is not known here.
        return if uri.is_none() { location_pair(&format!("{scheme}://{authority}/"), "/") } else { None };
    }
    if has_variables(to.authority) || to.authority.starts_with("unix:") {
        return None;
    }
    match uri {
        Some(uri) if has_variables(uri) => None,
        Some(uri) => location_pair(&format!("{scheme}://{}{uri}", to.authority), l.text()?),
        None if matches!(host, Some(HostHeader::Client)) => None,
        None => location_pair(&format!("{scheme}://{}/", to.authority), "/"),
    }
}

/// The pairs of `proxy_redirect`.
fn locations<'d>(
    import: &mut Import<'d>,
    scope: &Scope<'d>,
    pass: &'d Directive,
    usual: Option<(String, String)>,
) -> (Vec<(String, String)>, Option<Place>) {
    let all = scope.all(&["proxy_redirect"]);
    if all.is_empty() {
        return (usual.into_iter().collect(), Some(pass.place.clone()));
    }
    let mut out: Vec<(String, String)> = Vec::new();
    let place = all.first().map(|d| d.place.clone());
    for d in all {
        let found = match d.arguments().as_slice() {
            ["off"] => {
                import.same(d, "off");
                continue;
            }
            ["default"] => usual.clone(),
            [from, to] => {
                let (from, to) = (expand(import, scope, from), expand(import, scope, to));
                let found = location_pair(&from, &of_client(&to));
                if found.is_none() {
                    import.missing(d, LOCATION);
                    continue;
                }
                found
            }
            _ => {
                import.missing(d, LOCATION);
                continue;
            }
        };
        import.same(d, "rewrite_location");
        // In NGINX, the first that fits counts.
        out.extend(found.filter(|(from, _)| !out.iter().any(|(earlier, _)| from.starts_with(earlier.as_str()))));
    }
    (out, place)
}

/// A target on the client's own host as a path, which means the same to browsers.
fn of_client(to: &str) -> String {
    let plain = to.replace(['{', '}'], "");
    let own = ["$scheme://$host:$server_port", "$scheme://$http_host", "$scheme://$host"];
    match own.iter().find_map(|own| plain.strip_prefix(own)) {
        Some("") => "/".to_owned(),
        Some(path) if path.starts_with('/') => path.to_owned(),
        _ => to.to_owned(),
    }
}

/// A pair of `rewrite_location`, if the setting can have it.
pub(crate) fn location_pair(from: &str, to: &str) -> Option<(String, String)> {
    let is_plain = |text: &str| {
        !has_variables(text)
            && !text.contains(['{', '}'])
            && text.bytes().all(|b| b.is_ascii_graphic())
            && !text.starts_with("//")
            && !text.starts_with("/\\")
    };
    let behind = |text: &str| {
        let behind = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
        Some(behind.to_owned())
    };
    let is_good = match (behind(from), behind(to)) {
        (Some(a), Some(b)) if a.is_empty() || b.is_empty() => a == b,
        (Some(a), Some(b)) => !a.starts_with('/') && !b.starts_with('/'),
        (Some(one), None) => !one.is_empty() && !one.starts_with('/') && to.starts_with('/'),
        (None, Some(one)) => !one.is_empty() && !one.starts_with('/') && from.starts_with('/'),
        (None, None) => from.starts_with('/') && to.starts_with('/'),
    };
    (is_good && is_plain(from) && is_plain(to)).then(|| (from.to_owned(), to.to_owned()))
}

/// The pairs of a directive about an attribute of cookies. `read` takes the two texts of one.
fn cookies<'d>(
    import: &mut Import<'d>,
    scope: &Scope<'d>,
    name: &str,
    read: fn(&str, &str) -> Option<(String, String)>,
) -> (Vec<(String, String)>, Option<Place>) {
    let mut out: Vec<(String, String)> = Vec::new();
    let mut place = None;
    for d in scope.all(&[name]) {
        let found = match d.arguments().as_slice() {
            ["off"] => {
                import.same(d, "off");
                continue;
            }
            arguments if arguments.iter().any(|a| a.contains(';')) => {
                import.decide(d, FLAGS);
                continue;
            }
            [from, to] => {
                let (from, to) = (expand(import, scope, from), expand(import, scope, to));
                read(&from, &to)
            }
            _ => None,
        };
        let Some((from, to)) = found else {
            import.decide(d, COOKIE);
            continue;
        };
        import.same(d, name.replace("proxy_", "rewrite_"));
        place.get_or_insert_with(|| d.place.clone());
        // In NGINX, the first that fits counts: paths fit by their beginning, domains as a whole.
        let is_covered = |earlier: &str| from == earlier || (from.starts_with('/') && from.starts_with(earlier));
        if !out.iter().any(|(earlier, _)| is_covered(earlier)) {
            out.push((from, to));
        }
    }
    (out, place)
}

fn path_of_cookies(from: &str, to: &str) -> Option<(String, String)> {
    let is_good = |text: &str| text.starts_with('/') && !text.contains([';', ',']);
    location_pair(from, to).filter(|(from, to)| is_good(from) && is_good(to))
}

fn domain_of_cookies(from: &str, to: &str) -> Option<(String, String)> {
    let bare = |text: &str| text.strip_prefix('.').unwrap_or(text).to_ascii_lowercase();
    let is_good = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_good);
    let (from, to) = (bare(from), bare(to));
    (from.split('.').all(is_label) && to.split('.').all(is_label)).then_some((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_settings_can_have() {
        for (from, to, wanted) in [
            ("http://10.0.0.1:8080/erp/", "/t/", Some("/t/")),
            ("http://10.0.0.1:8080/", "$scheme://$host/", Some("/")),
            ("http://10.0.0.1:8080", "${scheme}://${http_host}", Some("/")),
            ("http://10.0.0.1/", "https://a.example/", Some("https://a.example/")),
            ("http://", "https://", Some("https://")),
            ("/old/", "/new/", Some("/new/")),
            ("http://", "https://a.example/", None),
            ("~^http://10\\.0\\.0\\.1/(.*)$", "/$1", None),
            ("http://10.0.0.1/", "$scheme://$host$uri", None),
            ("http://10.0.0.1/", "//a.example/", None),
            ("http://10.0.0.1/", "a b", None),
        ] {
            let found = location_pair(from, &of_client(to)).map(|(_, to)| to);
            assert_eq!(found.as_deref(), wanted, "{from} {to}");
        }
        let both = |from: &str, to: &str| Some((from.to_owned(), to.to_owned()));
        assert_eq!(path_of_cookies("/erp-web/", "/"), both("/erp-web/", "/"));
        assert_eq!(path_of_cookies("/", "http://a/"), None);
        assert_eq!(path_of_cookies("~^/a", "/"), None);
        assert_eq!(domain_of_cookies(".App.internal", "example.com"), both("app.internal", "example.com"));
        assert_eq!(domain_of_cookies("~\\.internal$", "example.com"), None);
        assert_eq!(domain_of_cookies("app.internal", "$host"), None);
    }
}
