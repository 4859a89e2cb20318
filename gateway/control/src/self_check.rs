//! `sealane self check`: what this system lets the gateway use, and what to do where it does not.
//!
//! Each check asks the kernel in the way in which the gateway does, and changes nothing.

use rustix::process::{Resource, getrlimit};
use sealane_sys::fastopen::Sysctl;
use sealane_sys::netlink::Netlink;
use sealane_sys::{privileges, steer, udp};
use serde::Serialize;
use std::fmt;
use std::fs::{OpenOptions, read_to_string};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

/// Open files for 10,000 clients with a connection to an upstream each, and what the gateway needs itself.
const FILES: u64 = 20_480;
/// Below it, the start warns: the hard limit of a login shell is at least this on common systems.
const FEW_FILES: u64 = 4_096;
/// How to get more of them.
const MORE_FILES: &str = "set LimitNOFILE=1048576 in the systemd unit, or raise the hard limit of the shell (`ulimit -Hn 1048576`; \
     only root can raise it)";
/// What the gateway asks for with `listen` (`sockets.rs`).
const BACKLOG: u64 = 4096;
/// What QUIC and the tunnel ask for with `SO_RCVBUF`, at least.
const UDP_BUFFER: u64 = 4 << 20;
/// What else a limit of the system needs that applies when a socket is opened.
const FOR_NEW_SOCKETS: &str = ", a file in /etc/sysctl.d that keeps the value after a boot, and a restart of the gateway: open sockets keep \
                               the old value";
/// What else another setting of the system needs.
const KEPT: &str = ", and a file in /etc/sysctl.d that keeps the value after a boot";

/// How a feature of the system is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The gateway can use it.
    Ok,
    /// It works, but less well than it could.
    Limited,
    /// The system does not offer it, or not to this user. The gateway works without.
    Off,
}

/// One feature of the system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The feature's name.
    pub feature: &'static str,
    /// How it is found.
    pub state: State,
    /// What was seen, in words.
    pub detail: String,
    /// What to do about it. `None` when nothing is needed or can be done.
    pub remedy: Option<String>,
}

impl Finding {
    fn ok(feature: &'static str, detail: impl Into<String>) -> Self {
        Self { feature, state: State::Ok, detail: detail.into(), remedy: None }
    }

    fn limited(feature: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { feature, state: State::Limited, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    fn off(feature: &'static str, detail: impl Into<String>, remedy: Option<String>) -> Self {
        Self { feature, state: State::Off, detail: detail.into(), remedy }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Ok => "ok",
            State::Limited => "limited",
            State::Off => "off",
        };
        write!(f, "{state:<8} {:<24} {}", self.feature, self.detail)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n{:33} {remedy}", ""),
            None => Ok(()),
        }
    }
}

/// Looks at the system as this process sees it: its user, its limits, its network namespace.
pub fn run() -> Vec<Finding> {
    vec![
        kernel(),
        open_files(),
        low_ports(),
        backlog(),
        udp_buffers(),
        udp_offload(),
        steering(),
        fast_open(),
        aes(),
        kernel_tls(),
        tun_device(),
        kernel_data_plane(),
        forwarding(),
    ]
}

fn number(file: &str) -> Option<u64> {
    read_to_string(file).ok()?.trim().parse().ok()
}

fn kernel() -> Finding {
    const FEATURE: &str = "Linux kernel";
    let release = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    match version(release) {
        Some(version) if version >= (5, 10) => Finding::ok(FEATURE, release),
        _ => Finding::limited(FEATURE, release, "Sealane is tested on Linux 5.10 and newer"),
    }
}

/// Major and minor number of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn open_files() -> Finding {
    const FEATURE: &str = "open files";
    // The gateway raises its own limit to this one.
    match getrlimit(Resource::Nofile).maximum {
        Some(most) if most < FILES => {
            Finding::limited(FEATURE, format!("at most {most}; each proxied connection needs two"), MORE_FILES)
        }
        Some(most) => Finding::ok(FEATURE, format!("at most {most}")),
        None => Finding::ok(FEATURE, "no limit"),
    }
}

/// The warning at the start if the gateway can open few files. Fewer than `self check` asks for: a warning at each start must not be usual.
pub(crate) fn few_open_files(most: u64) -> Option<String> {
    (most < FEW_FILES).then(|| {
        format!("the gateway can have at most {most} files open, and each proxied connection needs two: {MORE_FILES}")
    })
}

fn low_ports() -> Finding {
    const FEATURE: &str = "ports below 1024";
    let first = number("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or(1024);
    if first <= 80 {
        Finding::ok(FEATURE, format!("open to every user from port {first} on"))
    } else if privileges::may_bind_low_ports() {
        Finding::ok(FEATURE, "this process has CAP_NET_BIND_SERVICE")
    } else {
        Finding::off(
            FEATURE,
            "this process lacks CAP_NET_BIND_SERVICE",
            Some("use the systemd unit, or start as root with `user = \"…\"` in the configuration".to_owned()),
        )
    }
}

fn backlog() -> Finding {
    const FEATURE: &str = "listen backlog";
    match number("/proc/sys/net/core/somaxconn") {
        Some(most) if most < BACKLOG => Finding::limited(
            FEATURE,
            format!("net.core.somaxconn is {most}: if more new connections wait on a socket, the kernel drops them"),
            format!("`sudo sysctl -w net.core.somaxconn={BACKLOG}`{FOR_NEW_SOCKETS}"),
        ),
        Some(_) => Finding::ok(FEATURE, format!("{BACKLOG} connections per socket")),
        None => Finding::off(FEATURE, "net.core.somaxconn cannot be read", None),
    }
}

fn udp_buffers() -> Finding {
    const FEATURE: &str = "UDP buffers";
    let [receive, send] = ["rmem_max", "wmem_max"].map(|name| number(&format!("/proc/sys/net/core/{name}")));
    match (receive, send) {
        (Some(receive), Some(send)) if receive.min(send) < UDP_BUFFER => Finding::limited(
            FEATURE,
            format!(
                "net.core.rmem_max is {receive}, wmem_max {send}: with small buffers, the kernel drops packets of HTTP/3 and the \
                 tunnel during bursts (a gateway with CAP_NET_ADMIN is not limited by this)"
            ),
            format!("`sudo sysctl -w net.core.rmem_max={UDP_BUFFER} net.core.wmem_max={UDP_BUFFER}`{FOR_NEW_SOCKETS}"),
        ),
        (Some(_), Some(_)) => Finding::ok(FEATURE, format!("{} KiB and more", UDP_BUFFER >> 10)),
        _ => Finding::off(FEATURE, "net.core.rmem_max cannot be read", None),
    }
}

fn udp_offload() -> Finding {
    const FEATURE: &str = "UDP offload";
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    match udp::Socket::bind(any, &udp::Options::default()) {
        Ok(socket) => match (socket.segments() > 1, socket.receives_trains()) {
            (true, true) => Finding::ok(FEATURE, "many datagrams per system call, in both directions (GSO, GRO)"),
            (gso, gro) => {
                let has = |has| if has { "yes" } else { "no" };
                let detail = format!("sending (GSO): {}, receiving (GRO): {}", has(gso), has(gro));
                Finding::limited(FEATURE, detail, "Linux 5.0 and newer have both")
            }
        },
        Err(e) => Finding::off(FEATURE, format!("no UDP socket: {e}"), None),
    }
}

/// Tries with two sockets, as control does for its lanes.
fn steering() -> Finding {
    const FEATURE: &str = "QUIC steering by BPF";
    let options = udp::Options { reuse_port: true, ..udp::Options::default() };
    let attached = udp::Socket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &options).and_then(|first| {
        let second = udp::Socket::bind(first.address(), &options)?;
        steer::attach(&[first, second])
    });
    match attached {
        Ok(_) => Finding::ok(FEATURE, "the kernel delivers each datagram to the lane of its connection"),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Finding::off(
            FEATURE,
            "not permitted: lanes forward datagrams to each other instead",
            Some(
                "under sealane.service, install the drop-in /usr/share/doc/sealane/steering.conf (its comment has the commands); \
                 otherwise, start as root with `user = \"…\"`, or with CAP_BPF and CAP_NET_ADMIN"
                    .to_owned(),
            ),
        ),
        Err(e) => Finding::off(FEATURE, format!("{e}: lanes forward datagrams to each other instead"), None),
    }
}

fn fast_open() -> Finding {
    const FEATURE: &str = "TCP Fast Open";
    match Sysctl::read() {
        Some(sysctl) if sysctl.server() && sysctl.client() => {
            Finding::ok(FEATURE, "TLS handshakes in the SYN, with clients and upstreams")
        }
        Some(sysctl) => Finding::limited(
            FEATURE,
            format!("net.ipv4.tcp_fastopen is {}: TLS handshakes need one more round trip", sysctl.bits()),
            format!("`{}`{KEPT}", sysctl.command(true, true)),
        ),
        None => Finding::off(FEATURE, "this kernel does not have TCP Fast Open", None),
    }
}

fn aes() -> Finding {
    const FEATURE: &str = "AES instructions";
    #[cfg(target_arch = "x86_64")]
    let has = std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    let has = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has = false;
    match has {
        true => Finding::ok(FEATURE, "the CPU has these instructions"),
        false => {
            Finding::off(FEATURE, "the CPU lacks these instructions: AES-GCM is slow, ChaCha20-Poly1305 is not", None)
        }
    }
}

fn kernel_tls() -> Finding {
    const FEATURE: &str = "kernel TLS";
    let protocols = read_to_string("/proc/sys/net/ipv4/tcp_available_ulp").unwrap_or_default();
    match protocols.split_whitespace().any(|name| name == "tls") {
        true => Finding::ok(FEATURE, "the kernel has kernel TLS; the gateway does not use it"),
        false => {
            Finding::off(FEATURE, "not in this kernel, or its module is not loaded; the gateway does not use it", None)
        }
    }
}

fn tun_device() -> Finding {
    const FEATURE: &str = "TUN device";
    match OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => Finding::ok(FEATURE, "/dev/net/tun opens"),
        Err(e) => {
            let otherwise = match e.kind() {
                io::ErrorKind::PermissionDenied => "start as root",
                _ => "`sudo modprobe tun`",
            };
            let remedy = format!(
                "only [tunnel] needs it: under sealane.service, install the package sealane-openvpn; in a container, pass the device; \
                 otherwise {otherwise}"
            );
            Finding::off(FEATURE, format!("/dev/net/tun: {e}"), Some(remedy))
        }
    }
}

fn kernel_data_plane() -> Finding {
    const FEATURE: &str = "kernel data plane";
    match Netlink::generic().and_then(|mut generic| generic.family("ovpn")) {
        Ok(Some(_)) => Finding::ok(FEATURE, "the kernel has `ovpn`"),
        Ok(None) => {
            let detail = "no `ovpn` in this kernel: [tunnel] uses the user-space plane";
            Finding::off(FEATURE, detail, Some("Linux 6.16 and newer have it: `sudo modprobe ovpn`".to_owned()))
        }
        Err(e) => Finding::off(FEATURE, format!("the kernel does not answer: {e}"), None),
    }
}

fn forwarding() -> Finding {
    const FEATURE: &str = "IP forwarding";
    match number("/proc/sys/net/ipv4/ip_forward") {
        Some(1) => Finding::ok(FEATURE, "on, for IPv4"),
        _ => Finding::off(
            FEATURE,
            "over IPv4, VPN clients reach only this machine",
            Some(format!("only [tunnel] needs it: `sudo sysctl -w net.ipv4.ip_forward=1`{KEPT}")),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_understood() {
        assert_eq!(version("6.1.0-28-amd64"), Some((6, 1)));
        assert_eq!(version("5.10"), Some((5, 10)));
        assert_eq!(version(""), None);
        assert_eq!(version("unknown"), None);
    }

    #[test]
    fn each_feature_is_reported_once_with_a_remedy_where_it_is_limited() {
        let findings = run();
        let mut names: Vec<&str> = findings.iter().map(|finding| finding.feature).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), findings.len());
        for finding in findings {
            assert!(!finding.detail.is_empty(), "{finding:?}");
            assert!(finding.state != State::Limited || finding.remedy.is_some(), "{finding:?}");
        }
    }
}
