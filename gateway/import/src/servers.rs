//! What the servers of both originals have in common: `[[upstream]]` with its `servers`, limits and TLS.

use crate::ciphers::{self, Versions};
use crate::output::{Upstream, list, quoted};
use crate::report::{Id, Place, Report};

/// What is spoken with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
    /// Bytes are relayed as they are.
    Tcp,
    /// Datagrams are.
    Udp,
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// The port of an address that names none.
    pub fn port(self) -> u16 {
        match self {
            Self::Https => 443,
            _ => 80,
        }
    }
}

/// `HOST[:PORT]` as a URL.
pub(crate) fn url(scheme: Scheme, address: &str, port: u16) -> Result<String, &'static str> {
    if let Some(path) = address.strip_prefix("unix:") {
        // The program's folder is not that of the configuration.
        let good =
            path.starts_with('/') && path.len() <= 107 && path.bytes().all(|b| b.is_ascii_graphic() && b != b':');
        return match (scheme, good) {
            (Scheme::Http, true) => Ok(format!("unix:/{}", path.trim_start_matches('/'))),
            (_, false) => Err("is not the absolute path of a Unix socket, of at most 107 bytes"),
            _ => Err("Sealane cannot use TLS or passthrough with a Unix socket: let the server listen on 127.0.0.1"),
        };
    }
    if address.starts_with('/') {
        return Err("write the path of a Unix socket as \"unix:PATH\"");
    }
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !address.ends_with(']') && address.parse::<std::net::Ipv6Addr>().is_err() => {
            match port.parse::<u16>() {
                Ok(port) => (host, port),
                Err(_) => return Err("is not an address and a port"),
            }
        }
        _ => (address, port),
    };
    let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let bare = bracketed.unwrap_or(host);
    let host = if bare.contains(':') { format!("[{bare}]") } else { bare.to_owned() };
    let good = match bracketed.is_some() || bare.contains(':') {
        true => bare.parse::<std::net::Ipv6Addr>().is_ok(),
        false => !bare.is_empty() && bare.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)),
    };
    if good && port > 0 {
        Ok(format!("{}://{host}:{port}", scheme.name()))
    } else {
        Err("is not an address and a port")
    }
}

/// A server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    pub url: String,
    pub weight: Option<u32>,
    pub backup: bool,
}

impl Server {
    /// Adds it to a group.
    pub fn add(&self, up: &mut Upstream, place: &Place) {
        let url = quoted(&self.url);
        let entry = match (self.weight, self.backup) {
            (None, false) => url,
            (weight, backup) => {
                let weight = weight.map_or_else(String::new, |w| format!(", weight = {w}"));
                let backup = if backup { ", backup = true" } else { "" };
                format!("{{ url = {url}{weight}{backup} }}")
            }
        };
        up.servers.push((entry, place.clone()));
    }
}

/// Sets what is one number for all servers of a group, and says so where another one is there.
pub(crate) fn one_for_all(up: &mut Upstream, key: &str, value: &str, place: &Place, id: Id, report: &mut Report) {
    if up.settings.value(key).is_some_and(|there| there != value) {
        report.differs(id, format!("{key} applies to all servers of a group: the import writes the last value"));
    }
    up.settings.set(key, value, place);
}

/// Servers are not verified.
pub(crate) fn skip_verification(up: &mut Upstream, place: &Place, id: Id, report: &mut Report) {
    up.tls.set("dangerous_skip_verification", "true", place);
    report.same(
        id,
        "dangerous_skip_verification: anyone on the network path can read and change everything; set ca instead",
    );
}

/// Sets the versions of TLS that servers are offered.
pub(crate) fn versions(up: &mut Upstream, versions: Versions, place: &Place, id: Id, report: &mut Report) {
    match versions.list() {
        Some(offered) => {
            up.tls.set("versions", list(offered), place);
            match versions.older {
                true => report.differs(id, "TLS 1.0 and 1.1 are not supported"),
                false => report.same(id, "versions"),
            }
        }
        None => report.decide(
            id,
            "TLS 1.0 and 1.1 are not supported, so the server cannot be reached: enable TLS 1.2 or 1.3 on it",
        ),
    }
}

/// What becomes of the list of suites of TLS 1.2 that servers are offered.
pub(crate) const SUITES: &str = "no setting: Sealane offers servers all of its suites, also those that your list leaves out (to restrict \
                                 them, write `[upstream.tls] ciphers`). Undecided if Sealane has no suite of your list";

/// Reports what becomes of the suites of TLS 1.2 that servers are offered.
pub(crate) fn suites(text: &str, id: Id, report: &mut Report) {
    let (suites, others) = ciphers::tls12(text);
    match (suites.is_empty(), others) {
        (true, _) => {
            report.decide(id, "Sealane has none of these; it offers ECDHE with AES-GCM and ChaCha20-Poly1305 only");
        }
        (false, true) => report.differs(id, "ECDHE with AES-GCM and ChaCha20-Poly1305 only"),
        (false, false) if suites.len() < ciphers::all_tls12().len() => {
            report.differs(id, "all suites that Sealane has are offered: ECDHE with AES-GCM and ChaCha20-Poly1305");
        }
        (false, false) => report.same(id, "all of these are offered"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_become_urls() {
        for (address, want) in [
            ("a.example", "http://a.example:80"),
            ("a_b:8080", "http://a_b:8080"),
            ("[::1]:81", "http://[::1]:81"),
            ("[::1]", "http://[::1]:80"),
            ("::1", "http://[::1]:80"),
            ("10.0.0.1:1", "http://10.0.0.1:1"),
            ("unix:/run/a.sock", "unix:/run/a.sock"),
            ("unix:///run/a.sock", "unix:/run/a.sock"),
        ] {
            assert_eq!(url(Scheme::Http, address, 80).as_deref(), Ok(want), "{address}");
        }
        for bad in ["", ":80", "a:0", "a:b", "a:65536", "unix:/x", "/x", "a b", "[x]:80", "a/b"] {
            assert!(url(Scheme::Tcp, bad, 80).is_err(), "{bad}");
        }
        for bad in ["unix:a.sock", "unix:/a b", "unix:/a:/b", "unix:", &format!("unix:/{}", "a".repeat(107))] {
            assert!(url(Scheme::Http, bad, 80).is_err(), "{bad}");
        }
        assert!(url(Scheme::Https, "unix:/x", 80).is_err());
    }
}
