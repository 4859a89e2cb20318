//! CORS: which pages of other origins may read responses (<https://fetch.spec.whatwg.org/#http-cors-protocol>).
//!
//! With a rule, what is said about it is the gateway's: preflights are answered here, and `Access-Control-*` of upstreams are
//! removed. It is the browser that enforces the rule. A request from an origin that is not allowed is served like any other, without
//! the headers by which a browser would let the page read the response.

use sealane_http::{Fields, Known, Method, RequestHead};
use sealane_route::NamePattern;

/// What is said to pages of other origins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsRule {
    /// Which origins are allowed; `None`: all, without credentials.
    pub origins: Option<Vec<OriginPattern>>,
    /// The value of `Access-Control-Allow-Methods`.
    pub methods: String,
    /// The value of `Access-Control-Allow-Headers`.
    pub headers: Option<String>,
    /// The value of `Access-Control-Expose-Headers`.
    pub expose: Option<String>,
    /// Cookies and other credentials may be sent along.
    pub credentials: bool,
    /// The value of `Access-Control-Max-Age`.
    pub max_age: Option<String>,
}

/// Which origins are meant: `https://app.example.com`, `https://*.example.com:8443`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginPattern {
    /// In lower case.
    pub scheme: String,
    /// The host.
    pub host: NamePattern,
    /// The port, unless it is the scheme's default.
    pub port: Option<u16>,
}

impl OriginPattern {
    /// Reads a pattern. `None`: it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, host, port) = parts(text)?;
        let is_scheme = |s: &str| {
            let mut bytes = s.bytes();
            bytes.next().is_some_and(|b| b.is_ascii_lowercase())
                && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.'))
        };
        let host: NamePattern = host.parse().ok()?;
        (is_scheme(scheme) && host != NamePattern::Any).then(|| Self { scheme: scheme.to_owned(), host, port })
    }

    fn matches(&self, origin: &str) -> bool {
        // Browsers write origins in lower case and without default ports (RFC 6454 §6.1).
        parts(origin)
            .is_some_and(|(scheme, host, port)| scheme == self.scheme && port == self.port && self.host.matches(host))
    }
}

/// Scheme, host and port of an origin, as they are written.
fn parts(origin: &str) -> Option<(&str, &str, Option<u16>)> {
    let (scheme, authority) = origin.split_once("://")?;
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            let canonical = !port.starts_with('0') && port.bytes().all(|b| b.is_ascii_digit());
            (host, Some(port.parse().ok().filter(|_| canonical)?))
        }
        _ => (authority, None),
    };
    let is_default = matches!((scheme, port), ("https", Some(443)) | ("http", Some(80)));
    let is_host = |b: u8| b.is_ascii_graphic() && !matches!(b, b'/' | b'?' | b'#' | b'@' | b',');
    (!host.is_empty() && host.bytes().all(is_host) && !is_default).then_some((scheme, host, port))
}

/// What a request and a rule make together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cors {
    /// There is no rule.
    #[default]
    Off,
    /// The request has no origin, or one that is not allowed.
    Refused,
    /// The origin is allowed; this is what is said of it.
    Allowed { origin: Box<[u8]>, preflight: bool },
}

/// The method that a page is about to use, if the request is a preflight.
#[inline]
pub(crate) fn preflight_method(head: &RequestHead) -> Option<&[u8]> {
    if head.method() != Method::Options || !head.fields.contains(Known::Origin) {
        return None;
    }
    head.fields.get_named(b"Access-Control-Request-Method")
}

/// Removes what an upstream says about CORS.
pub(crate) fn remove_headers(fields: &mut Fields) {
    for name in [
        "Access-Control-Allow-Origin",
        "Access-Control-Allow-Methods",
        "Access-Control-Allow-Headers",
        "Access-Control-Allow-Credentials",
        "Access-Control-Expose-Headers",
        "Access-Control-Max-Age",
    ] {
        fields.remove_named(name.as_bytes());
    }
}

impl CorsRule {
    /// Judges a request.
    pub(crate) fn judge(&self, head: &RequestHead, preflight: bool) -> Cors {
        let mut all = head.fields.all(Known::Origin);
        let (Some(origin), None) = (all.next(), all.next()) else { return Cors::Refused };
        let allowed = |patterns: &[OriginPattern]| {
            std::str::from_utf8(origin).is_ok_and(|origin| patterns.iter().any(|pattern| pattern.matches(origin)))
        };
        match &self.origins {
            None => Cors::Allowed { origin: b"*"[..].into(), preflight },
            Some(patterns) if allowed(patterns) => Cors::Allowed { origin: origin.into(), preflight },
            Some(_) => Cors::Refused,
        }
    }

    /// Adds to a response what browsers are told.
    pub(crate) fn add_headers(&self, cors: &Cors, fields: &mut Fields) {
        // What an upstream says of it counts no more: two values of one field are none for a browser.
        remove_headers(fields);
        let mut add = |name: &str, value: &[u8]| {
            // Values were checked with the configuration, or came as a field's value; what does not fit (4 GiB) is left out.
            let _ = fields.push(name.as_bytes(), value);
        };
        if self.origins.is_some() {
            // Also where the origin is not allowed: a cache must not give that response to one that is.
            add("Vary", b"Origin");
        }
        let Cors::Allowed { origin, preflight } = cors else { return };
        add("Access-Control-Allow-Origin", origin);
        if self.credentials {
            add("Access-Control-Allow-Credentials", b"true");
        }
        match (preflight, &self.expose) {
            (true, _) => {
                add("Access-Control-Allow-Methods", self.methods.as_bytes());
                if let Some(headers) = &self.headers {
                    add("Access-Control-Allow-Headers", headers.as_bytes());
                }
                if let Some(age) = &self.max_age {
                    add("Access-Control-Max-Age", age.as_bytes());
                }
            }
            (false, Some(expose)) => add("Access-Control-Expose-Headers", expose.as_bytes()),
            (false, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_compared_as_a_whole() {
        let pattern = |text: &str| OriginPattern::parse(text).unwrap_or_else(|| panic!("{text}"));
        for (allowed, origin, wanted) in [
            ("https://app.example.com", "https://app.example.com", true),
            ("https://app.example.com", "http://app.example.com", false),
            ("https://app.example.com", "https://app.example.com:8443", false),
            ("https://app.example.com:8443", "https://app.example.com:8443", true),
            ("https://app.example.com", "https://app.example.com.evil.example", false),
            ("https://app.example.com", "https://evil.example/https://app.example.com", false),
            ("https://app.example.com", "https://app.example.com, https://evil.example", false),
            ("https://app.example.com", "https://user@app.example.com", false),
            ("https://*.example.com", "https://a.example.com", true),
            ("https://*.example.com", "https://a.b.example.com", false),
            ("https://*.example.com", "https://example.com", false),
            ("https://*.example.com", "https://evilexample.com", false),
            ("https://*.example.com", "https://evil.test/.example.com", false),
            ("https://**.example.com", "https://a.b.example.com", true),
            ("http://[::1]:3000", "http://[::1]:3000", true),
            ("http://localhost:3000", "http://localhost:03000", false),
            ("https://app.example.com", "null", false),
            ("https://app.example.com", "", false),
            ("chrome-extension://abcdef", "chrome-extension://abcdef", true),
        ] {
            assert_eq!(pattern(allowed).matches(origin), wanted, "{allowed} {origin}");
        }
        for bad in [
            "*",
            "null",
            "app.example.com",
            "https://",
            "https://a.example/",
            "https://a.example:443",
            "https://*",
            "HTTPS://a",
        ] {
            assert_eq!(OriginPattern::parse(bad), None, "{bad}");
        }
    }
}
