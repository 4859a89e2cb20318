//! Where a profile connects to: `remote` lines, or `<connection>` blocks.

use anyhow::{Context as _, Result, bail};
use sealane_ovpn::file::{self, Directive};
use sealane_tunnel::plane::Transport;
use std::net::SocketAddr;

/// A server to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// How.
    pub transport: Transport,
    /// Which of the host's addresses.
    pub family: Family,
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

/// Port and transport of a `remote` line that does not have its own.
#[derive(Clone, Copy)]
struct Defaults {
    port: u16,
    transport: (Transport, Family),
}

impl Defaults {
    const OPENVPN: Self = Self { port: 1194, transport: (Transport::Udp, Family::Any) };

    /// Applies `proto`, `port` and `rport`.
    fn with<'d>(mut self, directives: impl Iterator<Item = &'d Directive>) -> Result<Self> {
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
                _ => {}
            }
        }
        Ok(self)
    }

    fn remote(self, d: &Directive) -> Result<Remote> {
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
        Ok(Remote { host: (*host).to_owned(), port, transport, family })
    }
}

/// Returns the servers in the profile's order. If there are `<connection>` blocks, `remote` lines outside are ignored, as in
/// OpenVPN.
pub(super) fn remotes(directives: &[Directive]) -> Result<Vec<Remote>> {
    let mut out = Vec::new();
    let blocks: Vec<&Directive> = directives.iter().filter(|d| is_block(d)).collect();
    if blocks.is_empty() {
        let defaults = Defaults::OPENVPN.with(directives.iter())?;
        for d in directives.iter().filter(|d| d.name() == "remote") {
            out.push(defaults.remote(d)?);
        }
    }
    for block in blocks {
        out.push(connection(block, directives)?);
    }
    if out.is_empty() {
        bail!("the profile has no `remote`");
    }
    Ok(out)
}

/// Whether a directive is a `<connection>` block.
pub(super) fn is_block(d: &Directive) -> bool {
    d.name() == "connection" && d.inline.is_some()
}

/// Reads a block. Options before the block in the profile are its defaults, as in OpenVPN.
fn connection(block: &Directive, directives: &[Directive]) -> Result<Remote> {
    let mut inside = file::parse(block.inline.as_deref().unwrap_or_default())?;
    inside.iter_mut().for_each(|d| d.line += block.line);
    for d in &inside {
        if !["remote", "proto", "port", "rport"].contains(&d.name()) && !IDLE.contains(&d.name()) {
            bail!(
                "line {}: `{}` in a <connection> is not supported; write a separate profile for this server",
                d.line,
                d.name()
            );
        }
    }
    let before = directives.iter().filter(|d| d.line < block.line);
    let defaults = Defaults::OPENVPN.with(before)?.with(inside.iter())?;
    let remote = inside.iter().rfind(|d| d.name() == "remote");
    defaults.remote(remote.with_context(|| format!("line {}: a <connection> without `remote`", block.line))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>> {
        let found = remotes(&file::parse(text).expect("well formed"))?;
        let shown = |r: &Remote| format!("{} {} {:?} {:?}", r.host, r.port, r.transport, r.family);
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
