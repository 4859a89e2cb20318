//! What to probe: the URL, and where its host is really to be reached.

use std::net::IpAddr;

use rustls::pki_types::ServerName;
use sealane_lab_wire::url::Url;

use crate::error::ProbeError;

/// A parsed `https://` URL.
#[derive(Clone, Debug)]
pub struct Target {
    /// The host without brackets: what is resolved and what the certificate must name.
    pub host: String,
    /// The port.
    pub port: u16,
    /// What `Host` and `:authority` say.
    pub authority: String,
    /// Path and query; begins with `/`.
    pub path: String,
    /// The host as rustls wants it.
    pub server_name: ServerName<'static>,
}

impl Target {
    /// Parses `url`; without a scheme it is taken as `https://`.
    pub fn parse(url: &str) -> Result<Self, ProbeError> {
        let bad = |why: &str| ProbeError::Usage(format!("bad URL {url:?}: {why}"));
        let absolute = if url.contains("://") { url.to_owned() } else { format!("https://{url}") };
        let read = Url::parse(&absolute).map_err(|e| bad(e.why))?;
        if !read.tls {
            return Err(bad("the URL must begin with https://, because the probe measures TLS"));
        }
        let server_name = ServerName::try_from(read.host.clone())
            .map_err(|_| bad(&format!("'{}' is neither a host name nor an address", read.host)))?;
        Ok(Self {
            authority: read.host_field(&read.host),
            host: read.host,
            port: read.port,
            path: read.path,
            server_name,
        })
    }
}

/// Where to connect instead: curl's `--connect-to` and `--resolve`.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    connect_to: Vec<ConnectTo>,
    resolve: Vec<Resolve>,
}

#[derive(Clone, Debug)]
struct ConnectTo {
    from_host: String,
    from_port: Option<u16>,
    to_host: String,
    to_port: Option<u16>,
}

#[derive(Clone, Debug)]
struct Resolve {
    host: String,
    port: u16,
    addresses: Vec<IpAddr>,
}

impl Overrides {
    /// Reads the options' values: `HOST1:PORT1:HOST2:PORT2` (each may be empty) and `HOST:PORT:ADDRESS[,ADDRESS]`.
    pub fn parse(connect_to: &[String], resolve: &[String]) -> Result<Self, ProbeError> {
        let connect_to = connect_to
            .iter()
            .map(|text| {
                ConnectTo::parse(text).ok_or_else(|| {
                    ProbeError::Usage(format!(
                        "--connect-to '{text}': write HOST1:PORT1:HOST2:PORT2, each may be empty"
                    ))
                })
            })
            .collect::<Result<_, _>>()?;
        let resolve = resolve
            .iter()
            .map(|text| {
                Resolve::parse(text)
                    .ok_or_else(|| ProbeError::Usage(format!("--resolve '{text}': write HOST:PORT:ADDRESS[,ADDRESS]")))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { connect_to, resolve })
    }

    /// The host and port to connect to for `target`: the first `--connect-to` that matches wins.
    pub fn endpoint<'a>(&'a self, target: &'a Target) -> (&'a str, u16) {
        let found = self.connect_to.iter().find(|c| {
            (c.from_host.is_empty() || c.from_host.eq_ignore_ascii_case(&target.host))
                && c.from_port.is_none_or(|port| port == target.port)
        });
        match found {
            None => (&target.host, target.port),
            Some(c) => {
                let host = if c.to_host.is_empty() { target.host.as_str() } else { c.to_host.as_str() };
                (host, c.to_port.unwrap_or(target.port))
            }
        }
    }

    /// The addresses that `--resolve` gives for a host and port.
    pub fn addresses(&self, host: &str, port: u16) -> Option<&[IpAddr]> {
        self.resolve
            .iter()
            .find(|r| (r.host == "*" || r.host.eq_ignore_ascii_case(host)) && r.port == port)
            .map(|r| r.addresses.as_slice())
    }
}

impl ConnectTo {
    fn parse(text: &str) -> Option<Self> {
        let parts = split_outside_brackets(text);
        let [from_host, from_port, to_host, to_port] = parts.as_slice() else { return None };
        Some(Self {
            from_host: unbracket(from_host),
            from_port: optional_port(from_port)?,
            to_host: unbracket(to_host),
            to_port: optional_port(to_port)?,
        })
    }
}

impl Resolve {
    fn parse(text: &str) -> Option<Self> {
        // curl's `+` asks for an entry that expires; ours live only as long as the probe anyway.
        let text = text.strip_prefix('+').unwrap_or(text);
        let (host, rest) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once("]:")?,
            None => text.split_once(':')?,
        };
        let (port, addresses) = rest.split_once(':')?;
        let addresses: Vec<IpAddr> = addresses
            .split(',')
            .map(|a| a.trim().trim_start_matches('[').trim_end_matches(']').parse().ok())
            .collect::<Option<_>>()?;
        (!host.is_empty() && !addresses.is_empty()).then_some(())?;
        Some(Self { host: host.to_owned(), port: port.parse().ok()?, addresses })
    }
}

fn optional_port(text: &str) -> Option<Option<u16>> {
    if text.is_empty() { Some(None) } else { text.parse().ok().filter(|&p| p != 0).map(Some) }
}

fn unbracket(text: &str) -> String {
    text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text).to_owned()
}

fn split_outside_brackets(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.split(|c| {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        c == ':' && !inside
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Target {
        Target::parse(url).unwrap_or_else(|e| panic!("{url}: {e}"))
    }

    #[test]
    fn urls() {
        let t = parse("https://example.org");
        assert_eq!((t.host.as_str(), t.port, t.path.as_str()), ("example.org", 443, "/"));
        let t = parse("HTTPS://example.org:8443/a/b?c=d#e");
        assert_eq!((t.port, t.path.as_str(), t.authority.as_str()), (8443, "/a/b?c=d", "example.org:8443"));
        let t = parse("https://[::1]:444?x");
        assert_eq!((t.host.as_str(), t.port, t.path.as_str(), t.authority.as_str()), ("::1", 444, "/?x", "[::1]:444"));
        assert_eq!(parse("localhost:9").port, 9);
    }

    #[test]
    fn bad_urls_say_why() {
        for (url, why) in [
            ("http://example.org", "https://"),
            ("ftp://example.org", "https://"),
            ("https://", "no host"),
            ("https://a:0/", "from 1 to 65535"),
            ("https://a:99999/", "from 1 to 65535"),
            ("https://a:b:c/", "in brackets"),
            ("https://[::1/", "lacks its ]"),
            ("https://u:p@a/", "Authorization"),
            ("https://exa mple/", "space"),
            ("https://a/\r\nX: y", "control"),
            ("https://bücher.example/", "xn--"),
            ("https://-_-..-/", "neither"),
        ] {
            let error = Target::parse(url).expect_err(url);
            assert!(error.to_string().contains(why), "{url}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn connect_to_and_resolve_like_curl() {
        let strings = |items: &[&str]| items.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        let target = parse("https://example.org/");
        let overrides = Overrides::parse(
            &strings(&["other:443:x:1", "example.org:443:[::1]:8443"]),
            &strings(&["*:8443:127.0.0.1,::1"]),
        )
        .expect("valid");
        assert_eq!(overrides.endpoint(&target), ("::1", 8443));
        assert_eq!(overrides.addresses("::1", 8443).map(<[_]>::len), Some(2));
        assert_eq!(overrides.addresses("::1", 443), None);
        let overrides = Overrides::parse(&strings(&["::backend:"]), &[]).expect("valid");
        assert_eq!(overrides.endpoint(&target), ("backend", 443));
        for bad in ["", "a:b", "a:1:b:c", "a:0:b:1"] {
            assert!(Overrides::parse(&strings(&[bad]), &[]).is_err(), "{bad}");
        }
        for bad in ["", "a:443", "a:443:", "a:443:nope", ":443:127.0.0.1"] {
            assert!(Overrides::parse(&[], &strings(&[bad])).is_err(), "{bad}");
        }
    }
}
