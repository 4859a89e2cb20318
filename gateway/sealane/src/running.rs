//! Commands to a gateway that runs: `status`, `reload`, `upgrade`, `drain`, `reopen-logs`.

use crate::top::problem_lines;
use crate::top::rates::days_from_now;
use anyhow::{Context, Result};
use clap::Args;
use sealane_control::admin::ask::{Where, ask, ask_with};
use sealane_control::log::Level;
use sealane_control::metrics::status::{CertificateStatus, ServerChange, ServerStatus, Status};
use sealane_control::resolve;
use std::fmt::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time limits for the response to a query, and to a command (an upgrade waits for the new process).
pub const SOON: Duration = Duration::from_secs(10);
const LATER: Duration = Duration::from_secs(180);

/// Where the gateway is asked.
#[derive(Args)]
pub struct At {
    /// The gateway's admin socket (`socket` in `[admin]`) [default: /run/sealane/admin.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// The same, where reading is enough.
#[derive(Args)]
pub struct AtEither {
    #[command(flatten)]
    socket: At,
    /// The gateway's admin address (`listen` in `[admin]`), instead of the socket
    #[arg(long, value_name = "ADDR", conflicts_with = "socket", value_parser = address)]
    admin: Option<SocketAddr>,
}

/// An IP address and a port, or a name of this machine's such as `localhost:9901`.
fn address(s: &str) -> Result<SocketAddr, String> {
    // IPv4 first: that is what `localhost` is listened on, most often.
    let found = s.to_socket_addrs().ok().into_iter().flatten().min_by_key(|a| !a.is_ipv4());
    found.ok_or_else(|| "write an address and a port, as in 127.0.0.1:9901 or [::1]:9901".to_owned())
}

impl At {
    /// The socket that is asked.
    pub fn place(self) -> Where {
        self.socket.map_or_else(Where::usual, Where::Socket)
    }

    /// The socket of a configuration, unless one was named.
    pub fn place_in(self, config: &Path) -> Result<Where> {
        let known = match self.socket {
            Some(socket) => Some(socket),
            None => resolve::document_and_wait(config)?.admin_socket()?,
        };
        let socket = known.with_context(|| {
            format!("{}: [admin] has no \"socket\": add socket = \"/run/sealane/admin.sock\"", config.display())
        })?;
        Ok(Where::Socket(socket))
    }
}

impl AtEither {
    /// Where is asked.
    pub fn place(self) -> Where {
        self.admin.map_or_else(|| self.socket.place(), Where::Address)
    }
}

/// Sends an admin command; returns the gateway's response.
pub fn command(at: At, what: &str) -> Result<String> {
    ask(&at.place(), "POST", &format!("/v1/{what}"), LATER)
}

/// What `sealane server` may change.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct Change {
    /// Send the server new requests only from clients that `sticky` keeps with it; open requests are finished
    #[arg(long)]
    drain: bool,
    /// End the drain: send requests to the server again
    #[arg(long)]
    ready: bool,
    /// Set the weight, 0 to 256; 0: only sticky clients still get this server
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=256))]
    weight: Option<u32>,
    /// Restore the configured weight
    #[arg(long)]
    default_weight: bool,
}

/// Whether a change of a server is written into the file.
#[derive(Args)]
pub struct Keep {
    /// Also write the change into the gateway's file; without this option, it is temporary
    #[arg(long, conflicts_with = "default_weight")]
    keep: bool,
}

/// `sealane server`: drains a server or sets its weight.
pub fn server(at: At, upstream: String, server: String, change: &Change, keep: &Keep) -> Result<String> {
    let change = ServerChange {
        upstream,
        server,
        drain: (change.drain || change.ready).then_some(change.drain),
        weight: change.weight,
        default_weight: change.default_weight,
        keep: keep.keep,
    };
    ask_with(&at.place(), "POST", "/v1/server", &serde_json::to_string(&change)?, LATER)
}

/// `sealane certificates renew`: returns what has become of the order.
pub fn renew(at: At, name: &str) -> Result<String> {
    ask_with(&at.place(), "POST", "/v1/renew", name, LATER)
}

/// `sealane certificates`: a line or more for each, or the same as JSON.
pub fn certificates(at: AtEither, json: bool) -> Result<String> {
    let (status, _) = fetch(&at.place())?;
    if json {
        return Ok(serde_json::to_string_pretty(&status.certificates)? + "\n");
    }
    let mut text = String::new();
    for certificate in &status.certificates {
        describe_certificate(&mut text, certificate);
    }
    if text.is_empty() {
        text = "no certificates: no listener has TLS\n".to_owned();
    }
    Ok(text)
}

fn describe_certificate(t: &mut String, c: &CertificateStatus) {
    // Writing to a string cannot fail.
    let _ = writeln!(t, "{}", c.subject);
    let issuer = match (c.self_signed, &c.automatic) {
        (true, Some(_)) => "self-signed, until an authority has issued a certificate",
        (true, None) => "self-signed",
        (false, _) => &c.issuer,
    };
    let _ = writeln!(t, "  issuer        {issuer}");
    let _ = writeln!(t, "  file          {}", c.file);
    let _ = writeln!(t, "  expires       {}", days_from_now(c.not_after));
    if let Some(automatic) = &c.automatic {
        let next = automatic.next.and_then(|next| i64::try_from(next).ok());
        let unknown = if automatic.last_error.is_empty() { "by another process" } else { "none" };
        let next = next.map_or_else(|| unknown.to_owned(), days_from_now);
        let _ = writeln!(t, "  next renewal  {next}");
        if !automatic.store.is_empty() {
            let _ = writeln!(t, "  shared by     the store {}, with a copy in the file", automatic.store);
        }
        if !automatic.holder.is_empty() {
            let _ = writeln!(t, "  ordered now   by {}", automatic.holder);
        }
        if automatic.on_demand {
            let _ = writeln!(t, "  ordered       on demand: a client asked for the name");
        }
        if !automatic.last_error.is_empty() {
            let _ = writeln!(t, "  last error    {}", automatic.last_error);
        }
    }
    if let Some(ocsp) = &c.ocsp {
        let days = |at: Option<u64>| at.and_then(|at| i64::try_from(at).ok()).map(days_from_now);
        let _ = match (ocsp.standing.as_str(), days(ocsp.next_update)) {
            ("", _) | (_, None) => writeln!(t, "  OCSP          none"),
            (standing, Some(expires)) => writeln!(t, "  OCSP          {standing}, expires {expires}"),
        };
        if let Some(next) = days(ocsp.next_request) {
            let _ = writeln!(t, "  OCSP request  {next}");
        }
        if !ocsp.last_error.is_empty() {
            let _ = writeln!(t, "  OCSP error    {}", ocsp.last_error);
        }
    }
    if !c.refused.is_empty() {
        let _ = writeln!(t, "  refused       {}", c.refused.replace('\n', "\n                "));
    }
}

/// `sealane log-level`: changes the level, if there is one to change it to, and returns the level in force.
pub fn log_level(at: At, level: Option<Level>) -> Result<String> {
    let at = at.place();
    match level {
        Some(level) => ask_with(&at, "POST", "/v1/log-level", level.name(), SOON),
        None => Ok(fetch(&at)?.0.log_level + "\n"),
    }
}

/// The status, and the same as JSON.
pub fn fetch(at: &Where) -> Result<(Status, String)> {
    let text = ask(at, "GET", "/v1/status", SOON)?;
    let status = serde_json::from_str(&text).context("the response is not a gateway's status")?;
    Ok((status, text))
}

/// `sealane status`: what there is to say, or the same as JSON.
pub fn status(at: AtEither, json: bool) -> Result<String> {
    let (status, text) = fetch(&at.place())?;
    Ok(if json { text } else { describe(&status) })
}

fn describe(s: &Status) -> String {
    let mut t = String::new();
    let total = |name: &str| s.totals.get(name).copied().unwrap_or(0);
    let starting =
        |prefix: &str| -> u64 { s.totals.iter().filter(|(n, _)| n.starts_with(prefix)).map(|(_, v)| v).sum() };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    // Writing to a string cannot fail.
    let _ = writeln!(t, "sealane {} {} (pid {}), up {}", s.version, s.state, s.pid, span(s.uptime as u64));
    let _ = writeln!(t, "configuration  {}, generation {}", s.configuration, s.generation);
    let _ = writeln!(t, "reloads        {} good, {} failed", s.reloads.good, s.reloads.failed);
    if !s.reloads.last_error.is_empty() {
        let _ = writeln!(t, "last error     {}", s.reloads.last_error.replace('\n', "\n               "));
    }
    for line in problem_lines(s) {
        let _ = writeln!(t, "{line}");
    }
    for old in &s.old_processes {
        let ends = old.until.saturating_sub(now);
        let _ = writeln!(
            t,
            "old process    pid {} finishes {} requests and {} upgraded connections, within {}",
            old.pid,
            old.requests,
            old.upgraded,
            span(ends)
        );
    }
    for l in &s.listeners {
        let quic = if l.http3 { ", HTTP/3" } else { "" };
        let kind = match (l.mode.as_str(), l.tls) {
            ("tcp", _) => "relays TCP",
            ("udp", _) => "relays UDP",
            (_, true) => "TLS",
            (_, false) => "plain",
        };
        let _ = writeln!(t, "listener       {} {kind}{quic}", l.address);
    }
    for c in &s.certificates {
        let _ = writeln!(t, "certificate    {} ({}), expires {}", c.subject, c.file, days_from_now(c.not_after));
    }
    for u in &s.upstreams {
        let servers: Vec<String> = u.servers.iter().map(|s| format!("{} {}", s.name, state(s))).collect();
        let _ = writeln!(t, "upstream       {}: {}", u.name, servers.join(", "));
    }
    if let Some(tunnel) = &s.tunnel {
        let _ = writeln!(
            t,
            "tunnel         {} connected, interface {}, data plane {}",
            tunnel.connected, tunnel.interface, tunnel.plane
        );
    }
    for line in temporary(s) {
        let _ = writeln!(t, "temporary      {line}");
    }
    let _ =
        writeln!(t, "connections    {} open, {} accepted", total("connections_open"), total("connections_accepted"));
    let _ = writeln!(t, "requests       {} active, {} started", total("requests_active"), total("requests"));
    let _ = writeln!(t, "handshakes     {}", starting("handshakes{"));
    for lane in &s.lanes {
        let count = |name: &str| lane.counters.get(name).copied().unwrap_or(0);
        let cpu = lane.cpu_seconds.map_or_else(|| "?".to_owned(), |c| format!("{c:.1} s"));
        let _ = writeln!(
            t,
            "lane {:<9} {} requests, {} connections open, {cpu} of CPU time",
            lane.lane,
            count("requests"),
            count("connections_open")
        );
    }
    for (what, n) in &s.refused {
        let _ = writeln!(t, "refused        {n} × {what}");
    }
    t
}

/// What operators have changed beside the configuration's file: a restart ends it.
pub fn temporary(status: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    if status.temporary {
        lines.push(
            "a configuration from the API, not the file, is in use: a reload, upgrade or restart reads the file"
                .to_owned(),
        );
        lines.extend(status.not_in_file.iter().cloned());
    }
    for upstream in &status.upstreams {
        for server in &upstream.servers {
            if server.added {
                lines.push(format!("server {} of {} was added", server.name, upstream.name));
            }
            if server.weight_is_set {
                lines.push(format!("server {} of {} has weight {}", server.name, upstream.name, server.weight));
            }
            if server.drain_is_set {
                let what = match server.state.as_str() {
                    "draining" => " is draining",
                    "up" | "backup" => " is not draining",
                    // Its state says more than its drain.
                    _ => ": an operator has set drain",
                };
                lines.push(format!("server {} of {}{what}", server.name, upstream.name));
            }
        }
        lines.extend(upstream.removed.iter().map(|name| format!("server {name} of {} was removed", upstream.name)));
    }
    let added = status.certificates.iter().filter(|certificate| certificate.added && !certificate.kept);
    lines.extend(added.map(|c| format!("certificate {} ({}) was added", c.file, c.subject)));
    lines
}

/// How a server stands, and why requests fail there if they do.
pub fn state(server: &ServerStatus) -> String {
    match server.failing.as_str() {
        "" => server.state.clone(),
        why => format!("{}, failing: {why}", server.state),
    }
}

/// `3d 4h`, `5m 6s`: the two largest units.
pub fn span(seconds: u64) -> String {
    let (d, h, m, s) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    match (d, h, m) {
        (0, 0, 0) => format!("{s}s"),
        (0, 0, _) => format!("{m}m {s}s"),
        (0, _, _) => format!("{h}h {m}m"),
        _ => format!("{d}d {h}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units() {
        for (seconds, text) in [(5, "5s"), (65, "1m 5s"), (7260, "2h 1m"), (90_000, "1d 1h")] {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn temporary_changes_are_told() {
        let status: Status = serde_json::from_str(
            r#"{"upstreams":[{"name":"app","removed":["a:1"],"servers":[{"name":"b:1","added":true,"weight":7,"weight_is_set":true}]}]}"#,
        )
        .unwrap();
        let told = ["server b:1 of app was added", "server b:1 of app has weight 7", "server a:1 of app was removed"];
        assert_eq!(temporary(&status), told);
        assert!(describe(&status).contains("temporary      server b:1 of app was added\n"));
    }

    #[test]
    fn a_status_is_described() {
        let status: Status = serde_json::from_str(
            r#"{"version":"1","pid":7,"state":"serving","uptime":61.5,"totals":{"requests":3,"handshakes{a}":2,"handshakes{b}":3},
                "reloads":{"failed":1,"last_error":"x:1: error\nhelp"},"lanes":[{"lane":0,"cpu_seconds":1.25,"counters":{"requests":3}}]}"#,
        )
        .unwrap();
        let text = describe(&status);
        assert!(text.starts_with("sealane 1 serving (pid 7), up 1m 1s\n"), "{text}");
        assert!(text.contains("handshakes     5\n") && text.contains("lane 0         3 requests, 0 "), "{text}");
        assert!(text.contains("last error     x:1: error\n               help\n"), "{text}");
    }
}
