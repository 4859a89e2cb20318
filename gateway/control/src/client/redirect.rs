//! Connections that the system redirects here: the nftables rules for it, and where the programs meant to go.
//!
//! The rules are one table of our own, which goes when we end. They leave out what carries our mark, or our own
//! connections would come back to us.

use super::dialer::MARK;
use crate::log;
use anyhow::{Context, Result, bail};
use rustix::net::sockopt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use tokio::net::{TcpListener, TcpStream};

const TABLE: &str = "sealane_client";

/// The rules; taken away when this is dropped.
pub(super) struct Rules;

impl Rules {
    /// Redirects this machine's own connections to these TCP ports, where one of the listeners is of their family.
    pub fn install(ports: &[u16], listeners: &[TcpListener]) -> Result<Self> {
        let to = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
        // What a run that was killed has left behind.
        let _ = remove();
        let mut nft = Command::new("nft")
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start nft: install the package nftables, or use --to")?;
        if let Some(mut stdin) = nft.stdin.take() {
            stdin.write_all(script(ports, &to).as_bytes())?;
        }
        let output = nft.wait_with_output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!(
                "nft does not accept the rules (they need root and nf_tables): {}",
                said.lines().next().unwrap_or("?")
            );
        }
        Ok(Self)
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        if !remove() {
            log::warn!("the rules are not removed: run `sudo nft delete table inet {TABLE}`");
        }
    }
}

fn remove() -> bool {
    let mut nft = Command::new("nft");
    let status = nft.args(["delete", "table", "inet", TABLE]).stderr(Stdio::null()).status();
    status.is_ok_and(|s| s.success())
}

fn script(ports: &[u16], to: &[SocketAddr]) -> String {
    let ports = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    let mut rules = String::new();
    for address in to {
        let families = match address.ip() {
            IpAddr::V4(_) => "meta nfproto ipv4 ",
            IpAddr::V6(ip) if ip.is_unspecified() => "",
            IpAddr::V6(_) => "meta nfproto ipv6 ",
        };
        rules +=
            &format!("    {families}meta mark != {MARK:#x} tcp dport {{ {ports} }} redirect to :{}\n", address.port());
    }
    format!("table inet {TABLE} {{\n  chain output {{\n    type nat hook output priority -100;\n{rules}  }}\n}}\n")
}

/// Where a redirected connection was meant to go. An error for one that came here by itself: it would go in circles.
pub(super) fn original_destination(stream: &TcpStream, ours: SocketAddr) -> io::Result<SocketAddr> {
    let local = stream.local_addr()?;
    let meant = match local.ip().to_canonical() {
        IpAddr::V4(_) => SocketAddr::V4(sockopt::ip_original_dst(stream)?),
        IpAddr::V6(_) => SocketAddr::V6(sockopt::ipv6_original_dst(stream)?),
    };
    if meant.port() == ours.port() && (meant == local || meant.ip().is_loopback()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this connection was not redirected to the proxy"));
    }
    Ok(meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_leave_our_own_connections_alone() {
        let rule = |families: &str| {
            format!("\n    {families}meta mark != 0x5ea1a4e0 tcp dport {{ 443, 8443 }} redirect to :7443\n")
        };
        let script = |addresses: &[&str]| {
            let to: Vec<SocketAddr> = addresses.iter().map(|a| a.parse().expect("an address")).collect();
            script(&[443, 8443], &to)
        };
        let both = script(&["127.0.0.1:7443", "[::1]:7443"]);
        let (v4, v6) = (rule("meta nfproto ipv4 "), rule("meta nfproto ipv6 "));
        assert!(both.contains(&v4) && both.contains(&v6), "{both}");
        let alone = script(&["127.0.0.1:7443"]);
        assert!(alone.contains(&v4) && !alone.contains("ipv6"), "what nobody listens for is left alone: {alone}");
        assert!(script(&["[::]:7443"]).contains(&rule("")));
    }
}
