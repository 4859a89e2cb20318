//! Web servers and proxies configured alike: what is asked for once, each kind says in its own words.

mod haproxy;
mod nginx;
mod sealane;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal};

use crate::process::{Launch, Running, WAIT_LIMIT, accepts, free_port};
use crate::programs::Program;
use crate::workspace::{Key, Workspace};

/// The kinds that can be configured here.
pub const KINDS: [&str; 3] = ["sealane", "nginx", "haproxy"];

/// What a server does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 1 KiB from memory, by itself.
    Respond,
    /// Forward to this plain port of the loopback, over kept connections.
    Proxy(u16),
    /// So many ports, each forwarding over TLS to the next with a new, resumed connection for every request, the last
    /// to this port: the daisy chain of the SSL study.
    Chain {
        /// How many.
        hops: usize,
        /// The TLS port at the end.
        to: u16,
    },
}

/// How a subject uses more than one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Its usual way: NGINX's workers, HAProxy's threads (the study's MT), Sealane's lanes.
    Usual,
    /// HAProxy as so many single-threaded processes that share the port by SO_REUSEPORT: the study's MP, whose
    /// `nbproc` newer versions do not have.
    Processes,
}

/// HTTP on the client's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    /// HTTP/1.1.
    One,
    /// HTTP/2 offered too.
    Two,
    /// HTTP/3 on the same port number of UDP.
    Three,
}

/// The one group that a server exchanges keys over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// X25519.
    X25519,
    /// P-256.
    P256,
}

impl Group {
    /// As OpenSSL writes it.
    fn openssl(self) -> &'static str {
        match self {
            Self::X25519 => "X25519",
            Self::P256 => "prime256v1",
        }
    }
}

/// What is asked of a server.
#[derive(Clone, Debug)]
pub struct Site {
    /// What it does.
    pub answer: Answer,
    /// The certificate's key.
    pub key: Key,
    /// The group.
    pub group: Group,
    /// TLS 1.3 tickets after a full handshake.
    pub tickets: u32,
    /// Workers, threads or lanes.
    pub threads: usize,
    /// How.
    pub model: Model,
    /// Whether requests are logged, to a file.
    pub logs: bool,
    /// HTTP versions.
    pub http: Http,
    /// Whether 0-RTT is accepted.
    pub early_data: bool,
    /// Where it listens.
    pub address: IpAddr,
    /// Whether clients may take responses as slowly as they like.
    pub slow_clients: bool,
    /// Names that have certificates of their own, by [`Workspace::certificates`]; not for NGINX.
    pub names: Vec<String>,
    /// Added to the environment (a preload, a library path).
    pub env: Vec<(String, OsString)>,
}

impl Site {
    /// HTTP/1.1, an ECDSA key, X25519, two tickets, one thread, a log, the loopback.
    pub fn new(answer: Answer) -> Self {
        Self {
            answer,
            key: Key::Ecdsa,
            group: Group::X25519,
            tickets: 2,
            threads: 1,
            model: Model::Usual,
            logs: true,
            http: Http::One,
            early_data: false,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            slow_clients: false,
            names: Vec::new(),
            env: Vec::new(),
        }
    }
}

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    /// The subject's name.
    pub name: String,
    /// Where its first port is.
    pub address: SocketAddr,
    /// Its processes.
    pub running: Running,
    /// Its configuration, with the workspace's folder as `WORKSPACE`.
    pub configuration: String,
    /// Where its configuration is.
    file: PathBuf,
    /// The kind of its program.
    kind: String,
}

/// What a reload took.
#[derive(Clone, Copy, Debug)]
pub struct Reload {
    /// From the signal until the server serves by the new configuration.
    pub time: Duration,
    /// CPU time of all its processes in this time, in nanoseconds.
    pub cpu_ns: u64,
}

impl Server {
    /// Adds a plain port to the configuration, reloads it, and waits until the port is open.
    pub fn reload(&mut self, limit: Duration) -> anyhow::Result<Reload> {
        let port = free_port()?;
        let (signal, more) = match self.kind.as_str() {
            "sealane" => (
                Signal::HUP,
                format!(
                    "[[listener]]\naddress = \"127.0.0.1:{port}\"\n\
                     [[host]]\nnames = [\"*\"]\nlisteners = [\"127.0.0.1:{port}\"]\nrespond = {{ status = 200 }}\n"
                ),
            ),
            // It needs a master process, see `haproxy::write`.
            "haproxy" => (
                Signal::USR2,
                format!("frontend reloaded\n    bind 127.0.0.1:{port}\n    http-request return status 200\n"),
            ),
            other => bail!("a program of the kind {other:?} is not reloaded"),
        };
        let text = std::fs::read_to_string(&self.file).with_context(|| self.file.display().to_string())?;
        std::fs::write(&self.file, text + &more)?;
        let pid = self.running.pids().first().and_then(|pid| Pid::from_raw(*pid as i32)).context("no process")?;
        let (before, start) = (self.running.cpu(), Instant::now());
        rustix::process::kill_process(pid, signal)?;
        while !accepts(port) {
            if let Some(ended) = self.running.ended() {
                bail!("{ended} when it was reloaded");
            }
            anyhow::ensure!(start.elapsed() < limit, "{} has not reloaded within {limit:?}", self.name);
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Reload { time: start.elapsed(), cpu_ns: self.running.cpu().since(&before) })
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }
}

/// What a kind needs to know to write its configuration.
struct Draft<'a> {
    program: &'a Program,
    workspace: &'a Workspace,
    folder: PathBuf,
    site: &'a Site,
    ports: Vec<u16>,
    cpus: &'a [usize],
}

/// A configuration and how the program is started with it.
struct Written {
    text: String,
    args: Vec<OsString>,
    env: Vec<(String, OsString)>,
}

/// What a launched server looks like before it runs; for experiments that start it elsewhere, such as in a network
/// namespace.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// How to start it.
    pub launches: Vec<Launch>,
    /// Where its first port will be.
    pub address: SocketAddr,
    /// Its configuration.
    pub configuration: String,
    /// Where that is.
    file: PathBuf,
}

/// Writes a subject's configuration into a folder of its own in the workspace.
pub fn prepare(
    program: &Program,
    name: &str,
    workspace: &Workspace,
    site: &Site,
    cpus: &[usize],
) -> anyhow::Result<Prepared> {
    let kind = program.kind.as_str();
    if site.model == Model::Processes && kind != "haproxy" {
        bail!("only HAProxy is run as several processes; {} has workers of its own", program.name);
    }
    if !site.names.is_empty() && kind == "nginx" {
        bail!("NGINX is not configured with many certificates: each of them would be a server block");
    }
    let ports = match site.answer {
        Answer::Chain { hops, .. } => (0..hops.max(1)).map(|_| free_port()).collect::<anyhow::Result<Vec<_>>>()?,
        _ => vec![free_port()?],
    };
    let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let folder = workspace.folder(&format!("{plain}-{}", ports[0]))?;
    let draft = Draft { program, workspace, folder, site, ports, cpus };
    let written = match kind {
        "nginx" => nginx::write(&draft),
        "haproxy" => haproxy::write(&draft),
        "sealane" => sealane::write(&draft),
        other => bail!("a program of the kind {other:?} cannot be configured; known kinds: {}", KINDS.join(", ")),
    }?;
    let file = draft.folder.join(if kind == "sealane" { "sealane.toml" } else { "config" });
    std::fs::write(&file, &written.text).with_context(|| file.display().to_string())?;
    let processes = if site.model == Model::Processes { site.threads } else { 1 };
    let launches = (0..processes)
        .map(|i| Launch {
            name: name.to_owned(),
            program: program.path.clone(),
            args: written.args.iter().cloned().chain([file.clone().into()]).collect(),
            env: written.env.iter().chain(&site.env).cloned().collect(),
            // Several processes have a CPU each, as the study's had.
            cpus: if processes > 1 { vec![cpus[i % cpus.len().max(1)]] } else { cpus.to_vec() },
            ports: if site.address.is_loopback() { draft.ports.clone() } else { Vec::new() },
            output: draft.folder.join(format!("output-{i}.log")),
            tied: true,
        })
        .collect();
    let room_path = workspace.path().display().to_string();
    Ok(Prepared {
        launches,
        address: SocketAddr::new(site.address, draft.ports[0]),
        configuration: written.text.replace(&room_path, "WORKSPACE"),
        file,
    })
}

/// Starts a subject on `cpus` and waits until it listens.
pub fn start(
    program: &Program,
    name: &str,
    workspace: &Workspace,
    site: &Site,
    cpus: &[usize],
) -> anyhow::Result<Server> {
    start_within(program, name, workspace, site, cpus, WAIT_LIMIT)
}

/// The same for a subject that may take this long to listen.
pub fn start_within(
    program: &Program,
    name: &str,
    workspace: &Workspace,
    site: &Site,
    cpus: &[usize],
    limit: Duration,
) -> anyhow::Result<Server> {
    let prepared = prepare(program, name, workspace, site, cpus)?;
    let mut running = Running::default();
    for launch in &prepared.launches {
        running.add_within(launch, limit)?;
    }
    Ok(Server {
        name: name.to_owned(),
        address: prepared.address,
        running,
        configuration: prepared.configuration,
        file: prepared.file,
        kind: program.kind.clone(),
    })
}

/// Whether the program is linked with OpenSSL itself: AWS-LC and its kin have no setting for the number of tickets.
fn openssl(program: &Program) -> bool {
    !program.version.iter().any(|l| ["AWS-LC", "BoringSSL", "wolfSSL", "LibreSSL"].iter().any(|o| l.contains(o)))
}

/// A version such as `1.22.1` out of what the program says, as numbers that compare.
fn number(program: &Program) -> (u32, u32, u32) {
    let text = program.version.join(" ");
    let digits = text.split(|c: char| !(c.is_ascii_digit() || c == '.')).find(|w| w.matches('.').count() >= 1);
    let mut parts = digits.unwrap_or("").split('.').map(|p| p.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(kind: &str, version: &[&str]) -> Program {
        let version = version.iter().map(|v| (*v).to_owned()).collect();
        Program { name: kind.into(), kind: kind.into(), path: "/bin/true".into(), version }
    }

    #[test]
    fn versions_are_read_as_they_are_said() {
        assert_eq!(number(&program("nginx", &["nginx version: nginx/1.22.1"])), (1, 22, 1));
        assert_eq!(number(&program("haproxy", &["HAProxy version 3.5-dev5-50872d-2 2026/08/21"])), (3, 5, 0));
        assert!(openssl(&program("nginx", &["built with OpenSSL 3.0.20"])));
        assert!(!openssl(&program("nginx", &["built with OpenSSL 1.1.1 (compatible; AWS-LC 5.5.0)"])));
    }

    #[test]
    fn every_kind_says_the_same_in_its_own_words() {
        let workspace = Workspace::new().unwrap();
        for kind in KINDS {
            let p = program(kind, &["x/1.22.1"]);
            let site = Site { threads: 2, key: Key::Rsa, ..Site::new(Answer::Proxy(4242)) };
            let text = prepare(&p, kind, &workspace, &site, &[0, 1]).unwrap().configuration;
            assert!(text.contains("127.0.0.1:4242") && text.contains("WORKSPACE/rsa."), "{kind}:\n{text}");
            let three = Site { http: Http::Three, ..Site::new(Answer::Respond) };
            let text = prepare(&p, kind, &workspace, &three, &[0]).unwrap().configuration;
            assert!(
                ["http3 = true", "quic; http3 on", "bind quic4@"].iter().any(|t| text.contains(t)),
                "{kind}:\n{text}"
            );
            let chain = Site::new(Answer::Chain { hops: 10, to: 4243 });
            let prepared = prepare(&p, kind, &workspace, &chain, &[0]).unwrap();
            assert_eq!(prepared.launches[0].ports.len(), 10);
            assert!(prepared.configuration.contains("127.0.0.1:4243"), "{kind}");
        }
        workspace.certificates(&["a.example".into()]).unwrap();
        let named = Site { names: vec!["a.example".into()], ..Site::new(Answer::Respond) };
        for (kind, wanted) in [("sealane", "a.example.crt"), ("haproxy", "crt-list")] {
            let prepared = prepare(&program(kind, &[]), kind, &workspace, &named, &[0]).unwrap();
            assert!(prepared.configuration.contains(wanted), "{kind}: {}", prepared.configuration);
        }
        assert!(prepare(&program("nginx", &[]), "n", &workspace, &named, &[0]).is_err());
        let many = Site { threads: 2, model: Model::Processes, ..Site::new(Answer::Respond) };
        assert_eq!(prepare(&program("haproxy", &[]), "h", &workspace, &many, &[0, 1]).unwrap().launches.len(), 2);
        assert!(prepare(&program("nginx", &[]), "n", &workspace, &many, &[0, 1]).is_err());
        assert!(prepare(&program("apache", &[]), "a", &workspace, &many, &[0]).is_err());
    }
}
