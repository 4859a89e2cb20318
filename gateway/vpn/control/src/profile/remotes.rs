//! Where a profile connects to: `remote` lines, or `<connection>` blocks.

use super::proxies;
use crate::proxy::Proxy;
use anyhow::{Context as _, Result, bail};
use sealane_ovpn::file::{self, Directive};
use sealane_tunnel::plane::Transport;
use std::net::SocketAddr;
use std::path::Path;

/// A server to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// How.
    pub transport: Transport,
    /// Which of the host's addresses, or of the proxy's.
    pub family: Family,
    /// The number of the proxy that is between.
    pub proxy: Option<usize>,
}

/// Which addresses of a host are used: `udp4` and its like name one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6.
    Any,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

impl Family {
    /// Whether an address is of this family.
    pub const fn takes(self, address: &SocketAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }
}

/// Options of a `<connection>` block that need nothing done.
const IDLE: &[&str] = &[
    "bind",
    "nobind",
    "connect-retry",
    "connect-retry-max",
    "connect-timeout",
    "explicit-exit-notify",
    "float",
    "link-mtu",
    "mssfix",
    "mtu-disc",
    "tun-mtu-extra",
    "tun-mtu-max",
];

fn transport(name: &str) -> Option<(Transport, Family)> {
    let (transport, rest) = match name.split_at_checked(3)? {
        ("udp", rest) => (Transport::Udp, rest),
        ("tcp", rest) => (Transport::Tcp, rest.strip_suffix("-client").unwrap_or(rest)),
        _ => return None,
    };
    Some((
        transport,
        match rest {
            "" => Family::Any,
            "4" => Family::V4,
            "6" => Family::V6,
            _ => return None,
        },
    ))
}

/// Port and transport of a `remote` line that does not have its own, and the way there.
struct Defaults<'d> {
    port: u16,
    transport: (Transport, Family),
    proxy: proxies::Options<'d>,
}

impl<'d> Defaults<'d> {
    /// As OpenVPN has them.
    fn new() -> Self {
        Self { port: 1194, transport: (Transport::Udp, Family::Any), proxy: proxies::Options::default() }
    }

    /// Applies `proto`, `port`, `rport`, and the options about proxies.
    fn with(mut self, directives: impl Iterator<Item = &'d Directive>) -> Result<Self> {
        for d in directives {
            let argument = d.words.get(1).map_or("", String::as_str);
            let port = || argument.parse().with_context(|| format!("line {}: {argument} is not a port", d.line));
            match d.name() {
                "proto" => {
                    let found = transport(argument);
                    self.transport =
                        found.with_context(|| format!("line {}: proto {argument}: not supported", d.line))?;
                }
                "port" | "rport" => self.port = port()?,
                _ => self.proxy.take(d),
            }
        }
        Ok(self)
    }

    fn remote(&self, d: &Directive, found: &mut Found<'_>) -> Result<()> {
        let arguments = d.arguments();
        let host = arguments.first().with_context(|| format!("line {}: remote without a host", d.line))?;
        let port = match arguments.get(1) {
            Some(port) => port.parse().with_context(|| format!("line {}: {port} is not a port", d.line))?,
            None => self.port,
        };
        let (transport, family) = match arguments.get(2) {
            Some(name) => transport(name).with_context(|| format!("line {}: {name} is not supported", d.line))?,
            None => self.transport,
        };
        let proxy = self.proxy.proxy(transport, found.base)?.map(|proxy| found.number_of(proxy));
        found.remotes.push(Remote { host: (*host).to_owned(), port, transport, family, proxy });
        Ok(())
    }
}

/// What is found.
struct Found<'p> {
    /// Files are named from here.
    base: &'p Path,
    remotes: Vec<Remote>,
    proxies: Vec<Proxy>,
}

impl Found<'_> {
    /// Servers with the same proxy share it, and so the user is asked once.
    fn number_of(&mut self, proxy: Proxy) -> usize {
        self.proxies.iter().position(|known| *known == proxy).unwrap_or_else(|| {
            self.proxies.push(proxy);
            self.proxies.len() - 1
        })
    }
}

/// Returns the servers in the profile's order, and their proxies. If there are `<connection>` blocks, `remote` lines outside are
/// ignored, as in OpenVPN. Files are named from `base`.
pub(super) fn remotes(directives: &[Directive], base: &Path) -> Result<(Vec<Remote>, Vec<Proxy>)> {
    let mut found = Found { base, remotes: Vec::new(), proxies: Vec::new() };
    let blocks: Vec<&Directive> = directives.iter().filter(|d| is_block(d)).collect();
    if blocks.is_empty() {
        let defaults = Defaults::new().with(directives.iter())?;
        for d in directives.iter().filter(|d| d.name() == "remote") {
            defaults.remote(d, &mut found)?;
        }
    }
    for block in blocks {
        connection(block, directives, &mut found)?;
    }
    if found.remotes.is_empty() {
        bail!("the profile has no `remote`");
    }
    Ok((found.remotes, found.proxies))
}

/// Whether a directive is a `<connection>` block.
pub(super) fn is_block(d: &Directive) -> bool {
    d.name() == "connection" && d.inline.is_some()
}

/// Reads a block. Options before the block in the profile are its defaults, as in OpenVPN.
fn connection(block: &Directive, directives: &[Directive], found: &mut Found<'_>) -> Result<()> {
    let mut inside = file::parse(block.inline.as_deref().unwrap_or_default())?;
    inside.iter_mut().for_each(|d| d.line += block.line);
    for d in &inside {
        let is_read = ["remote", "proto", "port", "rport"].contains(&d.name()) || proxies::OPTIONS.contains(&d.name());
        if !is_read && !IDLE.contains(&d.name()) && !proxies::IDLE.contains(&d.name()) {
            bail!(
                "line {}: `{}` in a <connection> is not supported; write a separate profile for this server",
                d.line,
                d.name()
            );
        }
    }
    let before = directives.iter().filter(|d| d.line < block.line);
    let defaults = Defaults::new().with(before)?.with(inside.iter())?;
    let remote = inside.iter().rfind(|d| d.name() == "remote");
    let remote = remote.with_context(|| format!("line {}: a <connection> without `remote`", block.line))?;
    defaults.remote(remote, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>> {
        let (found, proxies) = remotes(&file::parse(text).expect("well formed"), Path::new(""))?;
        let shown = |r: &Remote| {
            let proxy = r.proxy.map_or_else(String::new, |at| format!(" {}", proxies[at].host));
            format!("{} {} {:?} {:?}{proxy}", r.host, r.port, r.transport, r.family)
        };
        Ok(found.iter().map(shown).collect())
    }

    #[test]
    fn lines_and_blocks_are_read_as_openvpn_reads_them() {
        let lines = "remote a\nremote b 2\nremote c 3 tcp6\nproto tcp4-client\nport 7\n";
        assert_eq!(read(lines).expect("good"), ["a 7 Tcp V4", "b 2 Tcp V4", "c 3 Tcp V6"]);
        let blocks = "remote outside\nport 5\nproto udp4\n<connection>\nremote a\n</connection>\nproto tcp\n\
                      <connection>\nremote b 9 udp\nnobind\n</connection>\n<connection>\nremote c\nrport 8\n</connection>\n";
        assert_eq!(read(blocks).expect("good"), ["a 5 Udp V4", "b 9 Udp Any", "c 8 Tcp Any"]);
    }

    #[test]
    fn proxies_are_of_all_servers_or_of_a_block() {
        let lines = "remote a 1\nhttp-proxy p 2\nremote b 3\nproto tcp\n";
        assert_eq!(read(lines).expect("good"), ["a 1 Tcp Any p", "b 3 Tcp Any p"]);
        let blocks = "proto tcp\n<connection>\nremote a 1\n</connection>\n<connection>\nremote b 2\nsocks-proxy s\n\
                      </connection>\nhttp-proxy p 3\n<connection>\nhttp-proxy q 4\nremote c 5\n</connection>\n\
                      <connection>\nremote d 6\nhttp-proxy-retry\n</connection>\n";
        let expected = ["a 1 Tcp Any", "b 2 Tcp Any s", "c 5 Tcp Any q", "d 6 Tcp Any p"];
        assert_eq!(read(blocks).expect("good"), expected);
        assert!(read("remote a 1 tcp\nremote b 2 udp\nhttp-proxy p 3\n").is_err(), "not for UDP");
    }

    #[test]
    fn what_is_not_understood_is_refused_by_its_line() {
        for (text, why) in [
            ("dev tun\n", "no `remote`"),
            ("remote a x\n", "line 1"),
            ("proto sctp\nremote a\n", "line 1"),
            ("remote a 1 udp44\n", "line 1"),
            ("remote a\n<connection>\nnobind\n</connection>\n", "line 2"),
            ("<connection>\nremote a\nhttp-proxy p 1\n</connection>\n", "line 3: `http-proxy`"),
            ("<connection>\nremote a\ntls-crypt k\n</connection>\n", "line 3: `tls-crypt`"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
