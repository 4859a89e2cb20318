//! HAProxy: what its configuration asks to be tried, and a copy of it that can run anywhere.

mod acl;
mod certificates;
mod checks;
mod dialogues;
mod lists;
mod plan;
mod rules;
mod runnable;

pub use certificates::prepare;
pub use lists::Lists;
pub use plan::plan;
pub use runnable::{Paths, folder, runnable};

use crate::network::{ANY4, ANY6, host};
use crate::tree::{Node, Place};
use crate::words::is_dns_name;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// A `frontend`, `backend` or `listen` with what it inherits.
pub(crate) struct Proxy<'n> {
    pub section: &'n Node,
    /// The lines of its `defaults`.
    pub inherited: Vec<&'n Node>,
}

impl<'n> Proxy<'n> {
    /// All lines, inherited ones first.
    pub fn lines(&self) -> impl Iterator<Item = &'n Node> + '_ {
        self.inherited.iter().copied().chain(self.section.inner())
    }

    /// The last line that begins with a word.
    pub fn last(&self, word: &str) -> Option<&'n Node> {
        self.lines().filter(|n| n.name() == word).last()
    }

    /// Whether it relays connections.
    pub fn is_tcp(&self) -> bool {
        self.last("mode").is_none_or(|n| n.word(1) != "http")
    }

    /// Adds the lines that are for every request.
    pub fn scope(&self, into: &mut BTreeSet<Place>) {
        into.insert(self.section.place.clone());
        into.extend(self.lines().map(|n| n.place.clone()));
    }
}

/// The sections that have servers or clients.
pub(crate) fn proxies(tree: &[Node]) -> Vec<Proxy<'_>> {
    let mut out = Vec::new();
    let mut last: Option<usize> = None;
    for (at, section) in tree.iter().enumerate() {
        if section.name() == "defaults" {
            last = Some(at);
            continue;
        }
        if !matches!(section.name(), "frontend" | "backend" | "listen") {
            continue;
        }
        let named = |name: &str, before: usize| {
            tree[..before].iter().rposition(|s| s.name() == "defaults" && s.word(1) == name)
        };
        let mut next = match &section.from {
            Some(name) => named(name, at),
            None => last,
        };
        let mut chain = Vec::new();
        while let Some(index) = next {
            chain.push(&tree[index]);
            next = tree[index].from.as_deref().and_then(|name| named(name, index));
        }
        let inherited = chain.iter().rev().flat_map(|s| s.inner()).collect();
        out.push(Proxy { section, inherited });
    }
    out
}

/// The addresses of a `bind`: where a client reaches each, and what HAProxy binds. `None`: a socket that is not of the network.
pub(crate) fn binds(word: &str) -> Vec<Option<(SocketAddr, Option<IpAddr>)>> {
    word.split(',').map(bind).collect()
}

/// The addresses of a `bind` for QUIC, as those of [`binds`].
pub(crate) fn quic_binds(word: &str) -> Vec<(SocketAddr, Option<IpAddr>)> {
    let address = |w: &str| bind(w.strip_prefix("quic4@").or_else(|| w.strip_prefix("quic6@"))?);
    word.split(',').filter_map(address).collect()
}

/// The path of a server's Unix socket.
pub(crate) fn socket_path(word: &str) -> Option<&str> {
    word.strip_prefix("unix@").or(Some(word)).filter(|path| path.starts_with('/'))
}

/// The name of a server's Unix socket, as the translation writes it.
pub(crate) fn socket(word: &str) -> Option<String> {
    Some(format!("unix:/{}", socket_path(word)?.trim_start_matches('/')))
}

fn bind(word: &str) -> Option<(SocketAddr, Option<IpAddr>)> {
    let word = word.strip_prefix("ipv4@").or_else(|| word.strip_prefix("ipv6@")).unwrap_or(word);
    if word.contains('@') || word.starts_with('/') {
        return None;
    }
    let (name, port) = word.rsplit_once(':')?;
    // Of several ports the first one.
    let port: u16 = port.split('-').next()?.parse().ok()?;
    let name = name.trim_matches(['[', ']']);
    match name {
        "" | "*" | "0.0.0.0" => Some(((ANY4, port).into(), None)),
        "::" | ":" => Some(((ANY6, port).into(), None)),
        name => {
            let address: IpAddr = match name.parse() {
                Ok(address) => address,
                Err(_) if name == "localhost" => IpAddr::from([127, 0, 0, 1]),
                Err(_) => host(name).into(),
            };
            Some(((address, port).into(), Some(address)))
        }
    }
}

/// The address of a server.
pub(crate) fn server_address(word: &str) -> Option<SocketAddr> {
    let word = word.strip_prefix("ipv4@").or_else(|| word.strip_prefix("ipv6@")).unwrap_or(word);
    if word.contains('@') || word.starts_with('/') {
        return None;
    }
    // `::1` and `2001:db8::1:80` are read as HAProxy does: the last part is the port.
    let (name, port) = word.rsplit_once(':').unwrap_or((word, "80"));
    let port: u16 = port.trim_start_matches('+').parse().ok()?;
    let name = name.trim_matches(['[', ']']);
    let address: IpAddr = match name.parse() {
        Ok(address) => address,
        Err(_) if name == "localhost" => IpAddr::from([127, 0, 0, 1]),
        Err(_) if is_dns_name(name) => host(name).into(),
        Err(_) => return None,
    };
    Some((address, port).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binds_are_where_clients_go() {
        let text = |w: &str| -> Vec<String> {
            binds(w).into_iter().map(|b| b.map_or("-".to_owned(), |(a, _)| a.to_string())).collect()
        };
        assert_eq!(text(":80,*:443"), ["203.0.113.10:80", "203.0.113.10:443"]);
        assert_eq!(text("[::]:443"), ["[2001:db8::10]:443"]);
        assert_eq!(text(":::443"), ["[2001:db8::10]:443"]);
        assert_eq!(text("10.0.0.1:80-90"), ["10.0.0.1:80"]);
        assert_eq!(text("/run/x.sock"), ["-"]);
        assert_eq!(text("quic4@:443"), ["-"]);
        assert_eq!(quic_binds("quic4@:443,:80")[0].0.to_string(), "203.0.113.10:443");
        assert!(quic_binds(":443").is_empty());
        assert_eq!(socket("unix@/run/a.sock").as_deref(), Some("unix:/run/a.sock"));
        assert_eq!(socket("10.0.0.1:80"), None);
    }
}
