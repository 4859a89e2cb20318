//! Two namespaces, a wire, and a tunnel for each way.

use anyhow::{Context, bail, ensure};
use sealane_lab_harness::process::{Launch, Running, tail};
use sealane_lab_harness::{Bench, Program};
use sealane_lab_load::accounting::CpuSample;
use sealane_sys::netlink::Netlink;
use sealane_sys::netlink_route::LinkSet;
use sealane_sys::netns::NetNs;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The two ends of the wire.
const OUTER: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
const LINKS: [&str; 2] = ["wire-a", "wire-b"];
/// How long a tunnel may take to come up.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// No tunnel at all.
pub const VETH: &str = "veth";
/// OpenVPN as distributed.
pub const OPENVPN: &str = "OpenVPN";
/// OpenVPN with large buffers: what ratios are against.
pub const TUNED: &str = "OpenVPN tuned";
/// Sealane at both ends.
pub const SEALANE: &str = "Sealane";
/// Sealane's server, OpenVPN's client.
pub const MIXED: &str = "Sealane with OpenVPN's client";
/// Sealane's server with two lanes, several clients of OpenVPN.
pub const CROWDED: &str = "Sealane, two lanes";

/// Sealane's server with the kernel's data plane, Sealane's client: where the kernel has `ovpn` (Linux 6.16).
pub const KERNEL: &str = "Sealane in the kernel";

/// What the wire takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Every packet by itself.
    Segmented,
    /// Super-packets.
    Whole,
}

/// What seals packets.
#[derive(Clone, Copy, Debug)]
pub struct Seal {
    cipher: &'static str,
    /// Whether the CPU's own instructions for AES and GCM may be used.
    instructions: bool,
}

impl Seal {
    /// AES-256-GCM as fast as the CPU can.
    pub const USUAL: Self = Self { cipher: "AES-256-GCM", instructions: true };
    /// ChaCha20-Poly1305.
    pub const CHACHA20: Self = Self { cipher: "CHACHA20-POLY1305", instructions: true };
    /// AES-256-GCM on a CPU that knows nothing of it.
    pub const SOFTWARE: Self = Self { cipher: "AES-256-GCM", instructions: false };

    /// What OpenSSL and aws-lc read at their start: without AES and carry-less multiplication, of 128 bits and wider.
    fn env(self) -> Vec<(String, OsString)> {
        const MASK: &str = "~0x200000200000000:~0x60000000000";
        if self.instructions { Vec::new() } else { vec![("OPENSSL_ia32cap".to_owned(), MASK.into())] }
    }
}

/// One way to get from one namespace to the other.
pub struct Way {
    /// As the report calls it.
    pub name: &'static str,
    /// The server's address inside.
    pub address: Ipv4Addr,
    server: Option<Running>,
    client: Option<Running>,
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Way").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Way {
    /// CPU time of both ends' processes so far.
    pub fn cpu(&self) -> [CpuSample; 2] {
        [&self.server, &self.client].map(|r| r.as_ref().map_or_else(|| CpuSample::take(&[]), Running::cpu))
    }
}

/// Everything, for as long as it is held.
#[derive(Debug)]
pub struct World {
    /// The server's namespace and the client's.
    pub ends: [NetNs; 2],
    /// All ways.
    pub ways: Vec<Way>,
    _folder: TempDir,
}

impl World {
    /// Makes namespaces, wire and tunnels, and waits until packets pass.
    pub fn build(bench: &mut Bench<'_>, seal: Seal) -> anyhow::Result<Self> {
        if !seal.instructions && !cfg!(target_arch = "x86_64") {
            bail!("the CPU's AES instructions can be switched off only on x86-64");
        }
        let program = |kind: &str| -> anyhow::Result<Program> {
            bench.programs.iter().find(|p| p.kind == kind).cloned().with_context(|| format!("no {kind}"))
        };
        let (openvpn, sealane) = (program("openvpn")?, program("sealane")?);
        let ends = wire()?;
        let folder = TempDir::new()?;
        let pki = folder.path().join("pki");
        // One authority and one server for all; the server's name in profiles is replaced by each way's own.
        said(Command::new(&sealane.path).args(["tunnel", "init", "192.0.2.1:1194", "--folder"]).arg(&pki))?;
        let profile = said(Command::new(&sealane.path).args(["tunnel", "client-config", "lab", "--folder"]).arg(&pki))?;
        let mut ways = vec![Way { name: VETH, address: OUTER[0], server: None, client: None }];
        let mut makers: Vec<(&'static str, bool, bool, bool)> = vec![
            (OPENVPN, false, false, false),
            (TUNED, false, false, true),
            (SEALANE, true, true, true),
            (MIXED, true, false, true),
        ];
        if ends[0].run(kernel_has_ovpn)? {
            makers.push((KERNEL, true, true, true));
        }
        for (i, (name, our_server, our_client, tuned)) in makers.into_iter().enumerate() {
            let number = i as u8 + 1;
            let plane = if name == KERNEL { "kernel" } else { "user" };
            let setup = Setup { folder: folder.path(), pki: &pki, number, tuned, seal, plane, lanes: 1 };
            let (server, text) =
                if our_server { setup.sealane_server(&sealane)? } else { setup.openvpn_server(&openvpn)? };
            bench.show_configuration(if our_server { "sealane" } else { "openvpn" }, &text);
            let server = ends[0].run(|| Running::start(&server))??;
            let client = if our_client {
                setup.sealane_client(&sealane, &profile)?
            } else {
                setup.openvpn_client(&openvpn, &profile)?
            };
            let output = client.output.clone();
            let client = ends[1].run(|| Running::start(&client))??;
            let way =
                Way { name, address: Ipv4Addr::new(10, 90, number, 1), server: Some(server), client: Some(client) };
            await_answer(&ends[1], way.address, name, &output)?;
            ways.push(way);
        }
        Ok(Self { ends, ways, _folder: folder })
    }

    /// Says what the wire takes.
    pub fn set(&self, wire: Wire) -> anyhow::Result<()> {
        self.ends.iter().zip(LINKS).try_for_each(|(end, link)| set_link(end, link, wire))
    }
}

fn set_link(end: &NetNs, link: &str, wire: Wire) -> anyhow::Result<()> {
    let state = if wire == Wire::Whole { "on" } else { "off" };
    let mut command = Command::new("ethtool");
    command.args(["-K", link, "tso", state, "gso", state, "tx-udp-segmentation", state, "gro", "on"]);
    end.run(|| said(&mut command))??;
    Ok(())
}

/// Several clients of OpenVPN, each in a namespace of its own with a cable to the servers', and two servers: OpenVPN's, tuned, and
/// Sealane's with two lanes. Each client is connected to both.
#[derive(Debug)]
pub struct Crowd {
    /// The servers' namespace.
    pub server: NetNs,
    /// Those of the clients.
    pub clients: Vec<NetNs>,
    /// OpenVPN's, and Sealane's.
    pub ways: Vec<Way>,
    _running: Vec<Running>,
    _folder: TempDir,
}

impl Crowd {
    /// Makes everything, and waits until packets pass.
    pub fn build(bench: &mut Bench<'_>, count: u8) -> anyhow::Result<Self> {
        let program = |kind: &str| -> anyhow::Result<Program> {
            bench.programs.iter().find(|p| p.kind == kind).cloned().with_context(|| format!("no {kind}"))
        };
        let (openvpn, sealane) = (program("openvpn")?, program("sealane")?);
        let folder = TempDir::new()?;
        let pki = folder.path().join("pki");
        said(Command::new(&sealane.path).args(["tunnel", "init", "192.0.2.1:1194", "--folder"]).arg(&pki))?;
        let (server, clients) = star(count)?;
        let (mut ways, mut running) = (Vec::new(), Vec::new());
        for (number, name) in [(1, TUNED), (2, CROWDED)] {
            let at_server = Setup::of_crowd(folder.path(), &pki, number);
            let is_ours = name == CROWDED;
            let (launch, text) =
                if is_ours { at_server.sealane_server(&sealane)? } else { at_server.openvpn_server(&openvpn)? };
            bench.show_configuration(if is_ours { "sealane" } else { "openvpn" }, &text);
            let process = server.run(|| Running::start(&launch))??;
            let address = Ipv4Addr::new(10, 90, number, 1);
            ways.push(Way { name, address, server: Some(process), client: None });
            for (i, client) in clients.iter().enumerate() {
                let own = folder.path().join(format!("client-{i}"));
                std::fs::create_dir_all(&own)?;
                let mut command = Command::new(&sealane.path);
                command.args(["tunnel", "client-config", &format!("lab-{number}-{i}"), "--folder"]).arg(&pki);
                let launch = Setup::of_crowd(&own, &pki, number).openvpn_client(&openvpn, &said(&mut command)?)?;
                running.push(client.run(|| Running::start(&launch))??);
                await_answer(client, address, name, &launch.output)?;
            }
        }
        Ok(Self { server, clients, ways, _running: running, _folder: folder })
    }
}

/// A namespace for servers, with their outer address, and a cable from it to each of so many others.
fn star(count: u8) -> anyhow::Result<(NetNs, Vec<NetNs>)> {
    let server = NetNs::new()?;
    server.run(|| -> std::io::Result<()> {
        let mut netlink = Netlink::route()?;
        netlink.link_set(1, &LinkSet { up: Some(true), ..LinkSet::default() })?;
        netlink.address_add(1, IpAddr::V4(OUTER[0]), 32)
    })??;
    let mut clients = Vec::new();
    for i in 0..count {
        let client = NetNs::new()?;
        let (link, ends) = (format!("wire-{i}"), [1, 2].map(|end| IpAddr::V4(Ipv4Addr::new(198, 18, i, end))));
        cable([&server, &client], &link, ends)?;
        for end in [&server, &client] {
            set_link(end, &link, Wire::Segmented)?;
        }
        client.run(|| -> std::io::Result<()> {
            let mut netlink = Netlink::route()?;
            let index = netlink.link_index(&link)?;
            netlink.route_add(index, IpAddr::V4(OUTER[0]), 32, Some(ends[0]))
        })??;
        clients.push(client);
    }
    Ok((server, clients))
}

/// A veth pair between two namespaces, with an address at each end.
pub fn cable(between: [&NetNs; 2], link: &str, addresses: [IpAddr; 2]) -> anyhow::Result<()> {
    let [first, second] = between;
    first.run(|| Netlink::route()?.veth_add(link, link, second))??;
    for (end, address) in between.into_iter().zip(addresses) {
        end.run(|| -> std::io::Result<()> {
            let mut netlink = Netlink::route()?;
            let index = netlink.link_index(link)?;
            for link in [1, index] {
                netlink.link_set(link, &LinkSet { up: Some(true), ..LinkSet::default() })?;
            }
            netlink.address_add(index, address, 24)
        })??;
    }
    Ok(())
}

/// What one way's configurations are made from.
struct Setup<'a> {
    folder: &'a Path,
    pki: &'a Path,
    number: u8,
    tuned: bool,
    seal: Seal,
    /// Sealane's data plane.
    plane: &'static str,
    lanes: u8,
}

const TUNING: &str = "sndbuf 8388608\nrcvbuf 8388608\ntxqueuelen 1000\n";

impl<'a> Setup<'a> {
    const fn of_crowd(folder: &'a Path, pki: &'a Path, number: u8) -> Self {
        Self { folder, pki, number, tuned: true, seal: Seal::USUAL, plane: "user", lanes: 2 }
    }

    fn port(&self) -> u16 {
        1194 + u16::from(self.number)
    }

    fn launch(&self, program: &Program, role: &str, args: Vec<OsString>) -> Launch {
        Launch {
            name: format!("{} {role}", program.name),
            program: program.path.clone(),
            args,
            env: self.seal.env(),
            cpus: Vec::new(),
            ports: Vec::new(),
            output: self.folder.join(format!("{}-{role}.log", self.number)),
            tied: false,
        }
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.folder.join(format!("{}-{name}", self.number));
        std::fs::write(&path, text)?;
        Ok(path)
    }

    fn openvpn_server(&self, program: &Program) -> anyhow::Result<(Launch, String)> {
        let (pki, n, port) = (self.pki.display(), self.number, self.port());
        let text = format!(
            "dev ovpn{n}\ndev-type tun\nproto udp\nlocal {}\nport {port}\nserver 10.90.{n}.0 255.255.255.0\n\
             topology subnet\nca {pki}/ca.crt\ncert {pki}/server.crt\nkey {pki}/server.key\ndh none\n\
             tls-crypt-v2 {pki}/tls-crypt-v2.key\ndata-ciphers {}\nkeepalive 10 60\ndisable-dco\n{}",
            OUTER[0],
            self.seal.cipher,
            if self.tuned { TUNING } else { "" },
        );
        let path = self.write("server.conf", &text)?;
        Ok((self.launch(program, "server", vec!["--config".into(), path.into()]), text))
    }

    fn sealane_server(&self, program: &Program) -> anyhow::Result<(Launch, String)> {
        let (pki, n, port) = (self.pki.display(), self.number, self.port());
        let text = format!(
            "lanes = {}\n[tunnel]\nlisten = [\"udp://{}:{port}\"]\nnetwork = \"10.90.{n}.0/24\"\ndevice = \"ovpn{n}\"\n\
             ca = \"{pki}/ca.crt\"\ncert = \"{pki}/server.crt\"\nkey = \"{pki}/server.key\"\n\
             tls_crypt_v2 = \"{pki}/tls-crypt-v2.key\"\nciphers = [\"{}\"]\ndata_plane = \"{}\"\n",
            self.lanes, OUTER[0], self.seal.cipher, self.plane,
        );
        let path = self.write("server.toml", &text)?;
        Ok((self.launch(program, "server", vec!["serve".into(), "-c".into(), path.into()]), text))
    }

    /// A client's profile for this way.
    fn profile(&self, profile: &str) -> String {
        let own = |line: &str| match line.split_whitespace().next() {
            Some("remote") => format!("remote {} {}", OUTER[0], self.port()),
            Some("dev") => format!("dev ovpn{}\ndev-type tun", self.number),
            _ => line.to_owned(),
        };
        profile.lines().map(own).collect::<Vec<_>>().join("\n") + "\n"
    }

    fn openvpn_client(&self, program: &Program, profile: &str) -> anyhow::Result<Launch> {
        let tuning = if self.tuned { TUNING } else { "" };
        let text = format!("{}data-ciphers {}\ndisable-dco\n{tuning}", self.profile(profile), self.seal.cipher);
        let path = self.write("client.conf", &text)?;
        Ok(self.launch(program, "client", vec!["--config".into(), path.into()]))
    }

    fn sealane_client(&self, program: &Program, profile: &str) -> anyhow::Result<Launch> {
        let path = self.write("client.ovpn", &self.profile(profile))?;
        Ok(self.launch(program, "client", vec!["tunnel".into(), "connect".into(), path.into()]))
    }
}

/// Whether this kernel makes interfaces of the kind.
fn kernel_has_ovpn() -> bool {
    let try_one = || -> std::io::Result<()> {
        let mut netlink = Netlink::route()?;
        netlink.link_add("ovpn-tried", "ovpn", &[])?;
        let index = netlink.link_index("ovpn-tried")?;
        netlink.link_del(index)
    };
    try_one().is_ok()
}

/// Two namespaces with a veth pair between them.
fn wire() -> anyhow::Result<[NetNs; 2]> {
    let ends = [NetNs::new()?, NetNs::new()?];
    ends[0].run(|| Netlink::route()?.veth_add(LINKS[0], LINKS[1], &ends[1]))??;
    for (i, end) in ends.iter().enumerate() {
        end.run(|| -> std::io::Result<()> {
            let mut netlink = Netlink::route()?;
            let index = netlink.link_index(LINKS[i])?;
            for link in [1, index] {
                netlink.link_set(link, &LinkSet { up: Some(true), ..LinkSet::default() })?;
            }
            netlink.address_add(index, IpAddr::V4(OUTER[i]), 24)
        })??;
    }
    Ok(ends)
}

/// Waits until the server's address inside answers.
fn await_answer(client: &NetNs, address: Ipv4Addr, name: &str, output: &Path) -> anyhow::Result<()> {
    let limit = Instant::now() + WAIT_LIMIT;
    loop {
        let mut ping = Command::new("ping");
        ping.args(["-c", "1", "-W", "1", &address.to_string()]);
        if client.run(|| ping.output())??.status.success() {
            return Ok(());
        }
        if Instant::now() > limit {
            bail!("{name}: no packet passes the tunnel: {}", tail(output));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Runs a command to its end and returns what it said.
pub fn said(command: &mut Command) -> anyhow::Result<String> {
    let done = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
