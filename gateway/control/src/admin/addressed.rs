//! Whom requests to the TCP listener are addressed to. A web page can make its own name point here (DNS rebinding), and
//! then read what a browser on this machine is told; but it cannot choose what the browser says in `Host`. So names are
//! answered only when they are known: IP addresses, `localhost`, and those of `[admin] names`.

use hyper::header::HOST;
use hyper::{Request, Version};
use sealane_http::RequestHead;
use std::net::IpAddr;

/// Whether a request lacks the `Host` that its version demands (RFC 9112 §3.2).
pub(super) fn lacks_host<B>(request: &Request<B>) -> bool {
    request.version() != Version::HTTP_10 && !request.headers().contains_key(HOST)
}

/// Whether a request is addressed to us. One without any host (HTTP/1.0) is no browser's.
pub(super) fn is_addressed<B>(request: &Request<B>, names: &[String]) -> bool {
    let hosts = request.headers().get_all(HOST).iter().map(|value| value.as_bytes());
    let target = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    hosts.chain(target).all(|host| is_ours(host, names))
}

fn is_ours(host: &[u8], names: &[String]) -> bool {
    let mut head = RequestHead::new();
    if head.set_authority(host).is_err() {
        return false;
    }
    let name = head.host_name();
    let literal = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    name == "localhost" || literal.parse::<IpAddr>().is_ok() || names.iter().any(|own| own == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addressed(uri: &str, hosts: &[&str]) -> bool {
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        is_addressed(&request.body(()).unwrap(), &["gateway.internal".to_owned()])
    }

    #[test]
    fn addresses_localhost_and_configured_names() {
        for host in ["127.0.0.1:9901", "10.0.0.1", "[::1]:9901", "localhost", "LOCALHOST:1", "Gateway.Internal.:9901"] {
            assert!(addressed("/", &[host]), "{host}");
        }
        assert!(addressed("/", &[]) && addressed("http://127.0.0.1:9901/metrics", &["127.0.0.1:9901"]));
        for host in
            ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "a b", "gateway.internal.x"]
        {
            assert!(!addressed("/", &[host]), "{host}");
        }
        assert!(!addressed("/", &["127.0.0.1", "evil.example"]));
        assert!(!addressed("http://evil.example/", &["127.0.0.1"]));
    }

    #[test]
    fn only_http_1_0_has_no_host() {
        for (version, hosts, lacks) in [
            (Version::HTTP_11, &["localhost"][..], false),
            (Version::HTTP_11, &[], true),
            (Version::HTTP_10, &[], false),
        ] {
            let mut request = Request::builder().version(version);
            for host in hosts {
                request = request.header(HOST, *host);
            }
            assert_eq!(lacks_host(&request.body(()).unwrap()), lacks, "{version:?} {hosts:?}");
        }
    }
}
