//! NGINX: what its configuration asks to be tried, and a copy of it that can run anywhere.

mod location;
mod naming;
mod plan;
mod runnable;
mod servers;
mod site;
mod variables;

pub use plan::plan;
pub use runnable::{Abilities, Paths, Runnable, prepare, runnable, with_included, with_old_http2};

use crate::network::{ANY4, ANY6, host};
use crate::tree::{Node, walk};
use crate::words::is_dns_name;
use std::net::{IpAddr, SocketAddr};

/// The servers of a tree: those of `http`, or those of a file without it.
pub(crate) fn http(tree: &[Node]) -> Vec<&Node> {
    let blocks: Vec<&Node> = tree.iter().filter(|n| n.name() == "http").flat_map(|n| n.inner()).collect();
    if blocks.is_empty() { tree.iter().collect() } else { blocks }
}

/// The subjects with which the configuration compares clients' certificates.
pub(crate) fn subjects(tree: &[Node]) -> Vec<String> {
    let mut out = Vec::new();
    walk(tree, &mut |node| match node.name() {
        "if" => {
            let compared = variables::condition(node).filter(|(variable, ..)| variable == "ssl_client_s_dn");
            out.extend(compared.filter(|(_, operator, _)| matches!(operator.as_str(), "=" | "!=")).map(|c| c.2));
        }
        "map" if node.word(1).trim_start_matches('$').trim_matches(['{', '}']) == "ssl_client_s_dn" => {
            out.extend(node.inner().iter().map(|entry| entry.name().to_owned()));
        }
        _ => {}
    });
    out
}

/// What `listen` says of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listen {
    /// Where a client reaches it.
    pub address: SocketAddr,
    /// The address that NGINX binds; `None`: any.
    pub bound: Option<IpAddr>,
}

/// The address of a `listen`; `None` for a Unix socket.
pub(crate) fn listen(word: &str) -> Option<Listen> {
    let any = |port: u16| Listen { address: (ANY4, port).into(), bound: None };
    if word.starts_with("unix:") {
        return None;
    }
    if let Ok(port) = word.parse::<u16>() {
        return Some(any(port));
    }
    let (name, port) = split_port(word, 80)?;
    if name == "*" || name == "0.0.0.0" {
        return Some(any(port));
    }
    if name == "::" {
        return Some(Listen { address: (ANY6, port).into(), bound: None });
    }
    let address: IpAddr = match name.parse() {
        Ok(address) => address,
        Err(_) if name == "localhost" => IpAddr::from([127, 0, 0, 1]),
        Err(_) => host(name).into(),
    };
    Some(Listen { address: (address, port).into(), bound: Some(address) })
}

/// Splits `10.0.0.1:80`, `[::1]:80` and `name`.
pub(crate) fn split_port(word: &str, default: u16) -> Option<(&str, u16)> {
    if let Some(rest) = word.strip_prefix('[') {
        let (address, rest) = rest.split_once(']')?;
        return match rest.strip_prefix(':') {
            Some(port) => Some((address, port.parse().ok()?)),
            None => Some((address, default)),
        };
    }
    match word.split_once(':') {
        Some((name, port)) => Some((name, port.parse().ok()?)),
        None => Some((word, default)),
    }
}

/// The address of a server, as a recording back-end says it.
pub(crate) fn server_address(word: &str) -> Option<SocketAddr> {
    let (word, default) = match word.split_once("://") {
        Some(("https" | "grpcs", rest)) => (rest, 443),
        Some((_, rest)) => (rest, 80),
        None => (word, 80),
    };
    let (name, port) = split_port(word.split('/').next()?, default)?;
    let address: IpAddr = match name.parse() {
        Ok(address) => address,
        Err(_) if name == "localhost" => IpAddr::from([127, 0, 0, 1]),
        Err(_) if is_dns_name(name) => host(name).into(),
        Err(_) => return None,
    };
    Some(SocketAddr::new(address, port))
}

/// The path of a Unix socket in `unix:/run/app.sock` and `http://unix:/run/app.sock:/uri`.
pub(crate) fn socket_path(word: &str) -> Option<&str> {
    let rest = match word.strip_prefix("unix:") {
        Some(rest) => rest,
        None => word.split_once("://")?.1.strip_prefix("unix:")?,
    };
    rest.split(':').next().filter(|path| path.starts_with('/'))
}

/// The name of a Unix socket, as the translation writes it.
pub(crate) fn socket(word: &str) -> Option<String> {
    Some(format!("unix:/{}", socket_path(word)?.trim_start_matches('/')))
}

/// A server's address or Unix socket, as a recording back-end says it.
pub(crate) fn server(word: &str) -> Option<String> {
    socket(word).or_else(|| server_address(word).map(|a| a.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_that_clients_use() {
        let text = |w: &str| listen(w).map(|l| (l.address.to_string(), l.bound.is_some()));
        assert_eq!(text("80"), Some(("203.0.113.10:80".to_owned(), false)));
        assert_eq!(text("*:8080"), Some(("203.0.113.10:8080".to_owned(), false)));
        assert_eq!(text("[::]:443"), Some(("[2001:db8::10]:443".to_owned(), false)));
        assert_eq!(text("10.0.0.1"), Some(("10.0.0.1:80".to_owned(), true)));
        assert_eq!(text("unix:/run/x"), None);
    }

    #[test]
    fn servers_have_the_addresses_of_back_ends() {
        let text = |w: &str| server_address(w).map(|a| a.to_string());
        assert_eq!(text("https://10.0.0.1/x").as_deref(), Some("10.0.0.1:443"));
        assert_eq!(text("[::1]:9000").as_deref(), Some("[::1]:9000"));
        assert_eq!(text("localhost:1").as_deref(), Some("127.0.0.1:1"));
        assert_eq!(text("unix:/x"), None);
        assert_eq!(text("http://$pool"), None);
        assert_eq!(socket("http://unix:/run/a.sock:/x").as_deref(), Some("unix:/run/a.sock"));
        assert_eq!(socket("unix:///run/a.sock").as_deref(), Some("unix:/run/a.sock"));
        assert_eq!(server("unix:/x").as_deref(), Some("unix:/x"));
        assert_eq!(socket("10.0.0.1:80"), None);
    }
}
