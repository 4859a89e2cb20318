//! What responses of upstreams say of their own addresses, paths and domains, changed to those that clients use: `rewrite_location`,
//! `rewrite_cookie_path` and `rewrite_cookie_domain`.

use sealane_http::Fields;

/// A text, and what stands in its place.
pub type Pair = (String, String);

/// What is changed in the responses of upstreams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseRewrites {
    /// Beginnings of the URLs in `Location` and `Refresh`. The first that fits counts.
    pub location: Vec<Pair>,
    /// Beginnings of the `Path` of cookies. The first that fits counts.
    pub cookie_path: Vec<Pair>,
    /// The `Domain` of cookies, without a dot at its beginning.
    pub cookie_domain: Vec<Pair>,
}

impl ResponseRewrites {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.location.is_empty() && self.cookie_path.is_empty() && self.cookie_domain.is_empty()
    }

    /// Changes a response.
    pub(crate) fn apply(&self, fields: &mut Fields) {
        if !self.location.is_empty() {
            replace(fields, b"Location", |value| moved(value, &self.location));
            replace(fields, b"Refresh", |value| self.refresh(value));
        }
        if !(self.cookie_path.is_empty() && self.cookie_domain.is_empty()) {
            replace(fields, b"Set-Cookie", |value| self.cookie(value));
        }
    }

    /// A `Refresh` whose URL is changed, as in `5; url=/next`.
    fn refresh(&self, value: &[u8]) -> Option<Vec<u8>> {
        let at = value.windows(4).position(|four| four.eq_ignore_ascii_case(b"url="))? + 4;
        let (before, url) = value.split_at(at + usize::from(matches!(value.get(at), Some(b'"' | b'\''))));
        Some([before, &moved(url, &self.location)?[..]].concat())
    }

    /// A `Set-Cookie` with a changed attribute (RFC 6265 §5.2).
    fn cookie(&self, value: &[u8]) -> Option<Vec<u8>> {
        let mut parts = value.split(|b| *b == b';');
        let mut out = parts.next()?.to_vec();
        let mut is_changed = false;
        for part in parts {
            let changed = self.attribute(part);
            is_changed |= changed.is_some();
            out.push(b';');
            match changed {
                Some(changed) => out.extend_from_slice(&changed),
                None => out.extend_from_slice(part),
            }
        }
        is_changed.then_some(out)
    }

    /// An attribute of a cookie with another value.
    fn attribute(&self, part: &[u8]) -> Option<Vec<u8>> {
        let at = part.iter().position(|b| *b == b'=')?;
        let (name, value) = (part[..at].trim_ascii(), part[at + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"Path") {
            return Some([&b" Path="[..], &moved(value, &self.cookie_path)?[..]].concat());
        }
        if !name.eq_ignore_ascii_case(b"Domain") {
            return None;
        }
        let domain = value.strip_prefix(b".").unwrap_or(value);
        let (_, to) = self.cookie_domain.iter().find(|(from, _)| domain.eq_ignore_ascii_case(from.as_bytes()))?;
        Some([&b" Domain="[..], to.as_bytes()].concat())
    }
}

/// Puts other values in the place of those of a name, in their order.
fn replace(fields: &mut Fields, name: &[u8], changed: impl Fn(&[u8]) -> Option<Vec<u8>>) {
    let is_named = |own: &[u8]| own.eq_ignore_ascii_case(name);
    if !fields.iter().any(|(_, own, value)| is_named(own) && changed(value).is_some()) {
        return;
    }
    let value_of = |value: &[u8]| changed(value).unwrap_or_else(|| value.to_vec());
    let named = fields.iter().filter(|&(_, own, _)| is_named(own));
    let all: Vec<Vec<u8>> = named.map(|(_, _, value)| value_of(value)).collect();
    fields.remove_named(name);
    for value in all {
        // They consist of valid values; what does not fit (4 GiB) is left out.
        let _ = fields.push(name, &value);
    }
}

/// A URL or path that begins with one of these texts, with what stands in its place. The text must end where a segment ends, and there
/// is one slash before the rest.
fn moved(value: &[u8], pairs: &[Pair]) -> Option<Vec<u8>> {
    // It names another host, as in `//cdn.example/x`, and not a path of the server.
    if matches!(value, [b'/', b'/' | b'\\', ..]) {
        return None;
    }
    let (rest, from, to) = pairs.iter().find_map(|(from, to)| {
        let rest = value.strip_prefix(from.as_bytes())?;
        let is_whole = from.ends_with('/') || matches!(rest.first(), None | Some(b'/' | b'?' | b'#'));
        is_whole.then_some((rest, from, to))
    })?;
    let mut out = to.clone().into_bytes();
    let rest = match rest.strip_prefix(b"/") {
        Some(behind) if to.ends_with('/') => behind,
        _ => rest,
    };
    if from.ends_with('/') && !to.ends_with('/') && !rest.is_empty() && !rest.starts_with(b"/") {
        out.push(b'/');
    }
    out.extend_from_slice(rest);
    // A browser would take what follows for the name of another host.
    let leads_elsewhere = out.starts_with(b"/") && matches!(out.get(1), Some(b'/' | b'\\' | ..=b' '));
    (!leads_elsewhere).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(all: &[(&str, &str)]) -> Vec<Pair> {
        all.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect()
    }

    fn fields(all: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        all.iter().for_each(|(name, value)| fields.push(name.as_bytes(), value.as_bytes()).unwrap());
        fields
    }

    fn applied(rewrites: &ResponseRewrites, all: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut fields = fields(all);
        rewrites.apply(&mut fields);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        fields.iter().map(|(_, name, value)| (text(name), text(value))).collect()
    }

    #[test]
    fn addresses_of_servers_become_those_of_clients() {
        let all = pairs(&[
            ("http://10.0.0.1:8080/erp/terminal/", "/t/"),
            ("http://10.0.0.1:8080", "/"),
            ("https://", "http://"),
            ("/erp/", "/terminal"),
        ]);
        for (value, wanted) in [
            ("http://10.0.0.1:8080/erp/terminal/next?a=b#c", Some("/t/next?a=b#c")),
            ("http://10.0.0.1:8080/erp/terminal/", Some("/t/")),
            ("http://10.0.0.1:8080", Some("/")),
            ("http://10.0.0.1:8080/x", Some("/x")),
            ("http://10.0.0.1:8080?a", Some("/?a")),
            ("https://a.example/x", Some("http://a.example/x")),
            ("/erp/x", Some("/terminal/x")),
            // Another port, another host, another path.
            ("http://10.0.0.1:80801/x", None),
            ("http://10.0.0.1:8080.a.example/x", None),
            ("/erp2/x", None),
            ("HTTP://10.0.0.1:8080/x", None),
            // Names of other hosts to a browser.
            ("http://10.0.0.1:8080//evil.example", None),
            ("http://10.0.0.1:8080///evil.example", None),
            ("http://10.0.0.1:8080/\\evil.example", None),
            ("http://10.0.0.1:8080/\t/evil.example", None),
        ] {
            let found = moved(value.as_bytes(), &all).map(|found| String::from_utf8(found).unwrap());
            assert_eq!(found.as_deref(), wanted, "{value}");
        }
        let root = pairs(&[("/", "/app/")]);
        assert_eq!(moved(b"/x", &root), Some(b"/app/x".to_vec()));
        for other_host in [b"//cdn.example/x", b"/\\cdn.example/x"] {
            assert_eq!(moved(other_host, &root), None);
        }
        let rewrites = ResponseRewrites { location: all, ..ResponseRewrites::default() };
        assert_eq!(
            applied(&rewrites, &[("Refresh", "5; URL=/erp/x"), ("Location", "/erp/y"), ("X-Location", "/erp/z")]),
            [("X-Location", "/erp/z"), ("Location", "/terminal/y"), ("Refresh", "5; URL=/terminal/x")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        assert_eq!(rewrites.refresh(b"5; url='/erp/x'"), Some(b"5; url='/terminal/x'".to_vec()));
        assert_eq!((rewrites.refresh(b"5"), rewrites.refresh(b"5; url=")), (None, None));
    }

    #[test]
    fn attributes_of_cookies_change_and_nothing_else() {
        let rewrites = ResponseRewrites {
            location: Vec::new(),
            cookie_path: pairs(&[("/erp", "/")]),
            cookie_domain: pairs(&[("app.internal", "example.com")]),
        };
        for (cookie, wanted) in [
            ("a=b; Path=/erp/x; HttpOnly", "a=b; Path=/x; HttpOnly"),
            ("a=b;path = /erp ;Secure", "a=b; Path=/;Secure"),
            ("a=b; Domain=.App.Internal; Path=/erp", "a=b; Domain=example.com; Path=/"),
            // The value of the cookie, other attributes, other paths and domains.
            ("Path=/erp; Path=/other", "Path=/erp; Path=/other"),
            ("a=Path=/erp; x-path=/erp", "a=Path=/erp; x-path=/erp"),
            ("a=b; Path=/erp2; Domain=internal", "a=b; Path=/erp2; Domain=internal"),
            ("a=b; Path; Domain", "a=b; Path; Domain"),
            ("", ""),
        ] {
            let found = applied(&rewrites, &[("Set-Cookie", "first=1"), ("Set-Cookie", cookie)]);
            let found: Vec<&str> = found.iter().map(|(_, value)| value.as_str()).collect();
            assert_eq!(found, ["first=1", wanted]);
        }
    }
}
