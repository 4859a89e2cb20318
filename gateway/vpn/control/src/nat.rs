//! What lets clients reach other networks through this machine: the kernel's forwarding, which is checked, and source NAT,
//! whose nftables rules are made here.

use anyhow::{Context as _, Result, bail};
use sealane_sys::forwarding;
use sealane_tunnel::plane::Prefix;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The table of nftables that has the rules.
pub const TABLE: &str = "sealane_tunnel";
/// How long `nft` may take.
const LIMIT: Duration = Duration::from_secs(10);

/// The networks of a tunnel's clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    /// IPv4.
    pub four: Option<(Ipv4Addr, u8)>,
    /// IPv6.
    pub six: Option<(Ipv6Addr, u8)>,
}

impl Networks {
    /// The rules: what clients send to other networks gets this machine's address. They replace those that are there, in one
    /// step. IPv6 addresses that are valid everywhere are left as they are: they need a route and no NAT.
    pub fn rules(&self) -> String {
        let network = |address: IpAddr, len| Prefix::new(address, len).map_or_else(String::new, |p| p.to_string());
        let mut rules = Vec::new();
        if let Some((address, len)) = self.four {
            let network = network(address.into(), len);
            rules.push(format!("ip saddr {network} ip daddr != {network} masquerade"));
        }
        if let Some((address, len)) = self.six.filter(|(address, _)| address.is_unique_local()) {
            let network = network(address.into(), len);
            rules.push(format!("ip6 saddr {network} ip6 daddr != {network} masquerade"));
        }
        let rules: String = rules.iter().map(|rule| format!("\t\t{rule}\n")).collect();
        format!(
            "table inet {TABLE} {{}}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n\tchain postrouting {{\n\t\ttype nat hook \
             postrouting priority srcnat; policy accept;\n{rules}\t}}\n}}\n"
        )
    }

    /// The families of these networks between which and other networks the kernel does not forward, as lines that say what to
    /// do.
    pub fn not_forwarded(&self) -> Vec<String> {
        let missing = forwarding::missing(self.four.is_some(), self.six.is_some()).into_iter();
        let line = |(family, setting)| {
            format!(
                "this system does not forward {family}, so clients reach no other network: sudo sysctl -w {setting}=1 (and \
                 a file in /etc/sysctl.d to keep it)"
            )
        };
        missing.map(line).collect()
    }
}

/// Puts rules into force.
pub fn apply(rules: &str) -> Result<()> {
    nft(&["-f", "-"], rules)
}

/// Removes the rules; nothing happens if there are none.
pub fn remove() -> Result<()> {
    nft(&["-f", "-"], &format!("table inet {TABLE} {{}}\ndelete table inet {TABLE}\n"))
}

fn nft(arguments: &[&str], input: &str) -> Result<()> {
    let mut child = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start nft: install the package nftables")?;
    // The rules and the errors fit into a pipe, so neither side waits.
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).context("cannot send the rules to nft")?;
    }
    let limit = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= limit {
            // It may just have ended.
            let _ = child.kill();
            let _ = child.wait();
            bail!("nft takes longer than {} s", LIMIT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    if !status.success() {
        let mut said = String::new();
        if let Some(stderr) = child.stderr.take() {
            // What it has said beyond this is of no use.
            let _ = stderr.take(4096).read_to_string(&mut said);
        }
        bail!("nft does not accept the rules (they need CAP_NET_ADMIN and nf_tables): {}", said.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_of_the_clients_networks_alone() {
        let four = Some(([10, 8, 0, 1].into(), 24));
        let local: Ipv6Addr = "fd00:8::1".parse().expect("an address");
        let global: Ipv6Addr = "2001:db8::1".parse().expect("an address");
        let both = Networks { four, six: Some((local, 64)) }.rules();
        assert!(both.contains("\t\tip saddr 10.8.0.0/24 ip daddr != 10.8.0.0/24 masquerade\n"), "{both}");
        assert!(both.contains("\t\tip6 saddr fd00:8::/64 ip6 daddr != fd00:8::/64 masquerade\n"), "{both}");
        // Whatever was there is gone, in the same transaction.
        assert!(both.starts_with("table inet sealane_tunnel {}\ndelete table inet sealane_tunnel\n"), "{both}");
        let routed = Networks { four: None, six: Some((global, 64)) }.rules();
        assert!(!routed.contains("masquerade"), "{routed}");
    }
}
