//! Servers as processes: started on their CPUs, waited for, accounted, and taken along whatever happens.

use std::ffi::OsString;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use sealane_lab_load::accounting::{self, CpuSample};

use crate::cores;

/// A process to be.
#[derive(Clone, Debug)]
pub struct Launch {
    /// For messages.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// What is added to its environment.
    pub env: Vec<(String, OsString)>,
    /// The CPUs that it and its threads may use; empty for all.
    pub cpus: Vec<usize>,
    /// TCP ports of the loopback that it will listen on.
    pub ports: Vec<u16>,
    /// Where its output goes.
    pub output: PathBuf,
    /// Whether the kernel ends it with the thread that starts it: the net below everything else, for when this process
    /// is killed. Not for threads that end early, such as those of a namespace.
    pub tied: bool,
}

/// Processes that run, and end when this is dropped.
#[derive(Debug, Default)]
pub struct Running {
    children: Vec<(String, Child)>,
}

/// How long a server may take to listen, unless the caller has another limit.
pub const WAIT_LIMIT: Duration = Duration::from_secs(15);

impl Running {
    /// Starts one and waits until it listens.
    pub fn start(launch: &Launch) -> anyhow::Result<Self> {
        let mut running = Self::default();
        running.add(launch)?;
        Ok(running)
    }

    /// Starts one more.
    pub fn add(&mut self, launch: &Launch) -> anyhow::Result<()> {
        self.add_within(launch, WAIT_LIMIT)
    }

    /// The same for a server that may take this long to listen.
    pub fn add_within(&mut self, launch: &Launch, limit: Duration) -> anyhow::Result<()> {
        let output = File::create(&launch.output).with_context(|| launch.output.display().to_string())?;
        let mut command = if launch.tied {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "TERM", "--"]).arg(&launch.program);
            command
        } else {
            Command::new(&launch.program)
        };
        command.args(&launch.args);
        command.envs(launch.env.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output);
        // Out of the terminal's group: Ctrl-C is for the lab, which then ends its servers in order.
        command.process_group(0);
        let mut spawn = || command.spawn().with_context(|| format!("cannot start {}", launch.program.display()));
        let child = if launch.cpus.is_empty() { spawn()? } else { cores::pinned(&launch.cpus, spawn)?? };
        self.children.push((launch.name.clone(), child));
        let limit = Instant::now() + limit;
        for port in &launch.ports {
            self.await_port(launch, *port, limit)?;
        }
        Ok(())
    }

    fn await_port(&mut self, launch: &Launch, port: u16, limit: Instant) -> anyhow::Result<()> {
        loop {
            if let Some((_, child)) = self.children.last_mut()
                && let Some(status) = child.try_wait()?
            {
                bail!("{} ended while it started ({status}): {}", launch.name, tail(&launch.output));
            }
            if accepts(port) {
                return Ok(());
            }
            if Instant::now() > limit {
                bail!("{} does not listen on port {port}: {}", launch.name, tail(&launch.output));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The processes that were started; their descendants belong to them.
    pub fn pids(&self) -> Vec<u32> {
        self.children.iter().map(|(_, child)| child.id()).collect()
    }

    /// CPU time so far.
    pub fn cpu(&self) -> CpuSample {
        CpuSample::take(&self.pids())
    }

    /// Proportional memory of all of them, in bytes.
    pub fn memory(&self) -> u64 {
        accounting::memory(&self.pids()).pss
    }

    /// One that has ended by itself, which servers under test must not.
    pub fn ended(&mut self) -> Option<String> {
        self.children.iter_mut().find_map(|(name, child)| match child.try_wait() {
            Ok(Some(status)) => Some(format!("{name} ended unexpectedly ({status})")),
            _ => None,
        })
    }

    /// Ends them at once, as a crash does.
    pub fn kill(&mut self) {
        for (_, child) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.children.clear();
    }

    /// Ends them: politely, and after five seconds not.
    pub fn stop(&mut self) {
        for (_, child) in &self.children {
            if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
                // It may have ended already.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
        }
        let limit = Instant::now() + Duration::from_secs(5);
        for (_, child) in &mut self.children {
            while Instant::now() < limit && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        self.children.clear();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether a server listens on this port of the loopback.
pub fn accepts(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&address, Duration::from_millis(500)).is_ok()
}

/// Reserves a port of the loopback for this process, over TCP and UDP.
pub fn free_port() -> anyhow::Result<u16> {
    sealane_lab_ports::reserve().context("no free port")
}

/// The end of a log, for error messages.
pub fn tail(path: &Path) -> String {
    let text = std::fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    match lines.len() {
        0 => "the program printed nothing".to_owned(),
        n => lines[n.saturating_sub(4)..].join(" | "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(folder: &Path, program: &str, args: &[&str], ports: Vec<u16>) -> Launch {
        Launch {
            name: "fake".into(),
            program: program.into(),
            args: args.iter().map(OsString::from).collect(),
            env: Vec::new(),
            cpus: Vec::new(),
            ports,
            output: folder.join("out"),
            tied: true,
        }
    }

    #[test]
    fn a_server_that_ends_at_once_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port().unwrap();
        let bad = launch(folder.path(), "sh", &["-c", "echo no such setting; exit 3"], vec![port]);
        let error = Running::start(&bad).unwrap_err().to_string();
        assert!(error.contains("no such setting") && error.contains("3"), "{error}");
        assert!(Running::start(&launch(folder.path(), "/nowhere", &[], vec![port])).is_err());
    }

    #[test]
    fn what_was_started_ends_with_us() {
        let folder = tempfile::tempdir().unwrap();
        let running = Running::start(&launch(folder.path(), "sleep", &["60"], Vec::new())).unwrap();
        let pid = running.pids()[0];
        assert!(accounting::exists(pid));
        drop(running);
        assert!(!accounting::exists(pid));
    }
}
