//! Connections that the system redirects here: the nftables rules for it, and where the programs meant to go.
//!
//! The rules are one table of our own, which goes when we end. They leave out what carries our mark, or our own
//! connections would come back to us.

use super::dialer::MARK;
use anyhow::{Context, Result, bail};
use rustix::net::sockopt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use tokio::net::TcpStream;

const TABLE: &str = "sealane_client";

/// The rules; taken away when this is dropped.
pub(super) struct Rules;

impl Rules {
    /// Redirects this machine's own connections to these TCP ports.
    pub fn install(ports: &[u16], to: u16) -> Result<Self> {
        // What a run that was killed has left behind.
        let _ = remove();
        let mut nft = Command::new("nft")
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start nft: install the package nftables, or use --to")?;
        if let Some(mut stdin) = nft.stdin.take() {
            stdin.write_all(script(ports, to).as_bytes())?;
        }
        let output = nft.wait_with_output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("nft does not take the rules (they need root and nf_tables): {}", said.lines().next().unwrap_or("?"));
        }
        Ok(Self)
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        if !remove() {
            eprintln!("sealane: the rules are still there: `sudo nft delete table inet {TABLE}`");
        }
    }
}

fn remove() -> bool {
    let mut nft = Command::new("nft");
    let status = nft.args(["delete", "table", "inet", TABLE]).stderr(Stdio::null()).status();
    status.is_ok_and(|s| s.success())
}

fn script(ports: &[u16], to: u16) -> String {
    let ports = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    format!(
        "table inet {TABLE} {{\n  chain output {{\n    type nat hook output priority -100;\n    \
         meta mark != {MARK:#x} tcp dport {{ {ports} }} redirect to :{to}\n  }}\n}}\n"
    )
}

/// Where a redirected connection was meant to go. An error for one that came here by itself: it would go in circles.
pub(super) fn original_destination(stream: &TcpStream, ours: SocketAddr) -> io::Result<SocketAddr> {
    let local = stream.local_addr()?;
    let meant = match local.ip().to_canonical() {
        IpAddr::V4(_) => SocketAddr::V4(sockopt::ip_original_dst(stream)?),
        IpAddr::V6(_) => SocketAddr::V6(sockopt::ipv6_original_dst(stream)?),
    };
    if meant.port() == ours.port() && (meant == local || meant.ip().is_loopback()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a connection that was not redirected here"));
    }
    Ok(meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_leave_our_own_connections_alone() {
        let text = script(&[443, 8443], 7443);
        assert!(text.contains("meta mark != 0x5ea1a4e0 tcp dport { 443, 8443 } redirect to :7443"), "{text}");
    }
}
