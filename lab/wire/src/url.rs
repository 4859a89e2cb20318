//! The part of a URL that a client needs: scheme, host, port, path with query.

use std::fmt;

/// A parsed `http://` or `https://` address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Whether the scheme is `https`.
    pub tls: bool,
    /// Host without brackets.
    pub host: String,
    /// Port, the scheme's own when none was written.
    pub port: u16,
    /// Path and query, at least `/`.
    pub path: String,
}

/// Why an address cannot be used, in words for the one who typed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadUrl {
    /// What was typed.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl fmt::Display for BadUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bad URL {:?}: {}", self.text, self.why)
    }
}

impl std::error::Error for BadUrl {}

impl Url {
    /// Parses an absolute URL (RFC 3986, the subset of `http` and `https`; no user information).
    pub fn parse(text: &str) -> Result<Self, BadUrl> {
        let bad = |why| BadUrl { text: text.to_owned(), why };
        if text.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return Err(bad("it contains a space or a control character; write %20 and so on"));
        }
        // RFC 3986 §3.1: schemes are case-insensitive.
        let (tls, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            _ => return Err(bad("it must begin with https:// or http://")),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err(bad("user names in URLs are not sent; use --header 'Authorization: …'"));
        }
        let (host, port) = if let Some(inner) = authority.strip_prefix('[') {
            let (host, after) = inner.split_once(']').ok_or_else(|| bad("the address lacks its ]"))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(bad("the address in brackets is not IPv6"));
            }
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(bad("something other than a port follows the ]")),
            }
        } else {
            match authority.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            }
        };
        if host.is_empty() {
            return Err(bad("it has no host"));
        }
        if host.contains(':') && !authority.starts_with('[') {
            return Err(bad("an IPv6 address goes in brackets: https://[::1]/"));
        }
        if !host.is_ascii() {
            return Err(bad("write international names in their xn-- form"));
        }
        if !path.is_ascii() {
            return Err(bad("percent-encode characters outside ASCII"));
        }
        let port = match port {
            None if tls => 443,
            None => 80,
            Some(port) => port
                .parse::<u16>()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| bad("its port is not a number from 1 to 65535"))?,
        };
        // RFC 9110 §7.1: the fragment is never sent.
        let path = path.split('#').next().unwrap_or("");
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { tls, host: host.to_owned(), port, path })
    }

    /// The value of the `Host` field for `host`: with the port unless it is the scheme's own.
    pub fn host_field(&self, host: &str) -> String {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        if self.port == if self.tls { 443 } else { 80 } { host } else { format!("{host}:{}", self.port) }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.host_field(&self.host), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let url = Url::parse("https://example.test:8443/a?b=c#d").unwrap();
        assert_eq!((url.tls, url.host.as_str(), url.port, url.path.as_str()), (true, "example.test", 8443, "/a?b=c"));
        assert_eq!(url.host_field("other"), "other:8443");
        let url = Url::parse("http://[::1]?q").unwrap();
        assert_eq!((url.host.as_str(), url.port, url.path.as_str()), ("::1", 80, "/?q"));
        assert_eq!(url.to_string(), "http://[::1]/?q");
        assert_eq!(Url::parse("https://a").unwrap().path, "/");
    }

    #[test]
    fn refused() {
        for text in [
            "",
            "a",
            "ftp://a",
            "https://",
            "https://:443",
            "https://a:0",
            "https://a:99999",
            "https://a:x",
            "https://::1/",
            "https://[::1",
            "https://[zz]/",
            "https://[::1]x",
            "https://u@a/",
            "https://a b/",
            "https://a/\n",
        ] {
            assert!(Url::parse(text).is_err(), "{text:?} was taken");
        }
    }
}
