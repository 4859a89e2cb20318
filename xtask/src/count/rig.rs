//! Runs one case: a gateway with one lane under callgrind or strace, NGINX behind it, `sealane-lab load` before it.

use super::{Case, callgrind};
use crate::setup;
use anyhow::{Context, bail};
use serde::Deserialize;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A MiB, so that what a download costs beside its bytes is small.
const BULK: u64 = 1 << 20;
/// A start under callgrind takes seconds, on a busy machine many.
const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// What all cases start.
pub const NEEDS: [&str; 4] = ["valgrind", "strace", "nginx", "openssl"];

/// Begins the count of a thread anew when it enters the function that lanes run.
const LANE_ONLY: &str = "--zero-before=sealane_control::run::lanes::lane";

/// How the gateway is run.
#[derive(Clone, Copy, Debug)]
pub enum Tool {
    Callgrind,
    Strace,
}

/// N of a case: what it takes for chance (a timer that fires, an acknowledgement more) to be lost among the operations.
pub fn operations(case: Case) -> u64 {
    match case {
        Case::FullEcdsa | Case::FullRsa | Case::Resumed | Case::QuicHandshake => 100,
        Case::Keepalive | Case::H2 | Case::H3 => 500,
        Case::Bulk | Case::H3Bulk => 20,
    }
}

/// What of the command line makes the case.
fn load(case: Case) -> (&'static [&'static str], &'static str) {
    match case {
        Case::FullEcdsa | Case::FullRsa => (&["--handshake", "full"], ""),
        Case::Resumed => (&["--handshake", "resumed"], ""),
        Case::Keepalive => (&[], ""),
        Case::H2 => (&["--http", "2"], ""),
        Case::H3 => (&["--http", "3"], ""),
        Case::QuicHandshake => (&["--http", "3", "--handshake", "full"], ""),
        Case::Bulk => (&[], "bulk"),
        Case::H3Bulk => (&["--http", "3"], "bulk"),
    }
}

fn key(case: Case) -> &'static str {
    if case == Case::FullRsa { "rsa" } else { "ecdsa" }
}

fn quic(case: Case) -> bool {
    matches!(case, Case::H3 | Case::QuicHandshake | Case::H3Bulk)
}

/// The gateway answers handshakes' requests itself: the backend's part is counted by the other cases.
fn answers(case: Case) -> bool {
    matches!(case, Case::FullEcdsa | Case::FullRsa | Case::Resumed | Case::QuicHandshake)
}

/// What all cases share: a folder, certificates, the server behind the gateway.
pub struct Rig {
    folder: PathBuf,
    sealane: PathBuf,
    lab: PathBuf,
    backend: u16,
    /// The list of denied addresses of the listener.
    list: Option<PathBuf>,
    _nginx: Running,
}

/// What `sealane-lab load --json` says, as far as it matters here.
#[derive(Deserialize)]
struct Report {
    completed: u64,
    failed: u64,
    void: Vec<String>,
}

impl Rig {
    /// Makes the folder anew and starts the backend.
    pub fn new(folder: &Path, sealane: PathBuf, lab: PathBuf) -> anyhow::Result<Self> {
        if folder.exists() {
            std::fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        std::fs::create_dir_all(folder.join("bulk")).with_context(|| folder.display().to_string())?;
        for (name, key) in [("ecdsa", &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"][..]), ("rsa", &["rsa:2048"])] {
            let mut make = Command::new(program("openssl")?);
            make.current_dir(folder).args([
                "req",
                "-x509",
                "-nodes",
                "-days",
                "30",
                "-subj",
                "/CN=localhost",
                "-newkey",
            ]);
            make.args(key).args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]);
            make.arg("-keyout").arg(format!("{name}.key")).arg("-out").arg(format!("{name}.crt"));
            let done = make.stdin(Stdio::null()).output().context("openssl")?;
            if !done.status.success() {
                bail!("openssl req: {}", String::from_utf8_lossy(&done.stderr).trim());
            }
        }
        let bulk = std::fs::File::create(folder.join("bulk/bulk")).context("bulk")?;
        bulk.set_len(BULK).context("bulk")?;
        let backend = sealane_lab_ports::reserve()?;
        let here = folder.display();
        // One process, so that it reads the files as the user that runs this.
        let text = format!(
            "daemon off; master_process off; pid {here}/nginx.pid; error_log {here}/nginx.log warn;
events {{ worker_connections 512; }}
http {{
    access_log off; keepalive_requests 1000000000; keepalive_timeout 600s; sendfile on;
    client_body_temp_path {here}/t1; proxy_temp_path {here}/t2; fastcgi_temp_path {here}/t3;
    uwsgi_temp_path {here}/t4; scgi_temp_path {here}/t5;
    server {{
        listen 127.0.0.1:{backend};
        location / {{ default_type text/plain; return 200 \"{}\"; }}
        location = /bulk {{ root {here}/bulk; }}
    }}
}}\n",
            "x".repeat(1024)
        );
        std::fs::write(folder.join("nginx.conf"), text).context("nginx.conf")?;
        let mut nginx = Command::new(program("nginx")?);
        nginx.arg("-e").arg(folder.join("nginx.log")).arg("-c").arg(folder.join("nginx.conf"));
        let mut nginx = Running::start(nginx, &folder.join("nginx.out"))?;
        nginx.listens(backend)?;
        Ok(Self { folder: folder.to_owned(), sealane, lab, backend, list: None, _nginx: nginx })
    }

    /// The listener denies so many blocks, none of which has the client. No two of them touch: each is a range of its own.
    pub fn with_list(mut self, blocks: u32) -> anyhow::Result<Self> {
        let file = self.folder.join("blocked.txt");
        let mut text = String::new();
        for n in 0..blocks {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}/30", Ipv4Addr::from(0x0a00_0000 + 8 * n));
        }
        std::fs::write(&file, text).with_context(|| file.display().to_string())?;
        self.list = Some(file);
        Ok(self)
    }

    /// Where the tools' files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs the case; what the names of the tool's files begin with.
    pub fn run(&self, case: Case, tool: Tool, operations: u64) -> anyhow::Result<PathBuf> {
        let name = match tool {
            Tool::Callgrind => "callgrind",
            Tool::Strace => "strace",
        };
        let folder = self.folder.join(case.name()).join(operations.to_string());
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let prefix = folder.join(format!("{name}.out"));
        // A run before left a file for each of its threads; this run's have other names.
        for file in callgrind::beginning(&prefix)? {
            std::fs::remove_file(&file).with_context(|| file.display().to_string())?;
        }
        let port = sealane_lab_ports::reserve()?;
        let config = folder.join("sealane.toml");
        std::fs::write(&config, self.config(case, port)).with_context(|| config.display().to_string())?;
        let mut command = match tool {
            Tool::Callgrind => {
                let mut command = Command::new(program("valgrind")?);
                // Valgrind gives the number of a thread that has ended to a new one, whose counts would include the old one's.
                command.args(["--tool=callgrind", "--separate-threads=yes", LANE_ONLY]);
                command.arg(format!("--callgrind-out-file={}", prefix.display()));
                command
            }
            Tool::Strace => {
                let mut command = Command::new(program("strace")?);
                // -D: what is started is the gateway, which signals reach, and strace its grandchild.
                command.args(["-D", "-ff", "-s", "16", "-o"]).arg(&prefix);
                command
            }
        };
        command.arg(&self.sealane).args(["serve", "-c"]).arg(&config);
        let ready = Ready::new()?;
        command.env("NOTIFY_SOCKET", ready.name());
        let mut gateway = Running::start(command, &folder.join(format!("{name}.log")))?;
        ready.wait(&mut gateway)?;
        self.load(case, port, operations)?;
        gateway.end()?;
        if let Tool::Strace = tool {
            written(&prefix)?;
        }
        Ok(prefix)
    }

    fn load(&self, case: Case, port: u16, operations: u64) -> anyhow::Result<()> {
        let (kind, path) = load(case);
        let mut load = Command::new(&self.lab);
        load.args(["load", "--quiet", "--json", "-c", "1", "-t", "1", "-w", "0s", "--timeout", "60s"]);
        load.args(["--verify", "none", "--tls", "1.3", "--groups", "x25519", "--ciphers", "TLS_AES_128_GCM_SHA256"]);
        load.args(["--cpus", "off", "--max-lag", "60s", "--max-pressure", "1000", "--fail-if", "errors>0%"]);
        load.args(kind).arg("-n").arg(operations.to_string()).arg(format!("https://127.0.0.1:{port}/{path}"));
        let done = load.stdin(Stdio::null()).output().with_context(|| self.lab.display().to_string())?;
        let Ok(report) = serde_json::from_slice::<Report>(&done.stdout) else {
            bail!("sealane-lab load: {}", String::from_utf8_lossy(&done.stderr).trim());
        };
        if report.completed != operations || report.failed != 0 || !report.void.is_empty() {
            let Report { completed, failed, void } = report;
            bail!("{completed} of {operations} operations were completed, {failed} failed. {}", void.join("; "));
        }
        Ok(())
    }

    fn config(&self, case: Case, port: u16) -> String {
        let place = match answers(case) {
            true => format!("respond = {{ status = 200, body = \"{}\" }}", "x".repeat(1024)),
            false => format!("to = [\"http://127.0.0.1:{}\"]", self.backend),
        };
        let (here, key, http3) = (self.folder.display(), key(case), quic(case));
        let list = self.list.as_ref().map_or_else(String::new, |file| format!("deny_file = {file:?}\n"));
        format!(
            "lanes = 1
[log]
access = \"off\"
[limits]
keepalive_timeout = \"300s\"
[[listener]]
address = \"127.0.0.1:{port}\"
http3 = {http3}
{list}[listener.tls]
certificates = [{{ cert = \"{here}/{key}.crt\", key = \"{here}/{key}.key\" }}]
groups = [\"x25519\"]
tickets = 1
[[host]]
names = [\"*\"]
{place}
"
        )
    }
}

/// Calls of the lane's thread, by the files that strace wrote.
pub fn system_calls(prefix: &Path) -> anyhow::Result<u64> {
    let mut lanes = Vec::new();
    for file in callgrind::beginning(prefix)? {
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        if text.contains("prctl(PR_SET_NAME, \"lane-0\"") {
            lanes.push(text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase())).count() as u64);
        }
    }
    let [lane] = lanes[..] else { bail!("{} threads look like a lane in {}*", lanes.len(), prefix.display()) };
    Ok(lane)
}

/// Waits until strace, which ends after the gateway, has written each thread's last line.
fn written(prefix: &Path) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let files = callgrind::beginning(prefix)?;
        let ended = |file: &PathBuf| std::fs::read_to_string(file).is_ok_and(|text| text.contains("\n+++ "));
        if !files.is_empty() && files.iter().all(ended) {
            return Ok(());
        }
        if start.elapsed() > WAIT_LIMIT {
            bail!("the output of strace is not complete: {}*", prefix.display());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Where the gateway says that it serves, as it says it to a service manager (sd_notify(3)): a connection to find that
/// out would be one more for the lane to serve.
struct Ready {
    socket: UnixDatagram,
    name: String,
}

impl Ready {
    fn new() -> anyhow::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // An abstract name: the folder's path may be longer than a socket's can be.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("sealane-count-{}-{number}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).context("a socket's name")?;
        let socket = UnixDatagram::bind_addr(&address).context("a socket for the gateway's readiness")?;
        socket.set_read_timeout(Some(Duration::from_millis(50))).context("a socket's time limit")?;
        Ok(Self { socket, name: format!("@{name}") })
    }

    /// For `NOTIFY_SOCKET`.
    fn name(&self) -> &str {
        &self.name
    }

    fn wait(self, gateway: &mut Running) -> anyhow::Result<()> {
        let start = Instant::now();
        let mut text = [0; 4096];
        loop {
            if self.socket.recv(&mut text).is_ok_and(|length| text[..length].starts_with(b"READY=1\n")) {
                return Ok(());
            }
            if let Some(status) = gateway.child.try_wait()? {
                bail!("{status} at the start: {}", gateway.said());
            }
            if start.elapsed() > WAIT_LIMIT {
                bail!("the gateway is not ready: {}", gateway.said());
            }
        }
    }
}

/// A program that ends when this is dropped.
struct Running {
    child: Child,
    output: PathBuf,
}

impl Running {
    fn start(mut command: Command, output: &Path) -> anyhow::Result<Self> {
        let file = std::fs::File::create(output).with_context(|| output.display().to_string())?;
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(file.try_clone().context("output")?).stderr(file);
        Ok(Self { child: command.spawn().context(name)?, output: output.to_owned() })
    }

    /// Waits until somebody accepts connections there.
    fn listens(&mut self, port: u16) -> anyhow::Result<()> {
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{status} at the start: {}", self.said());
            }
            if start.elapsed() > WAIT_LIMIT {
                bail!("nothing listens on port {port}: {}", self.said());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Asks it to end and waits until it has.
    fn end(mut self) -> anyhow::Result<()> {
        let pid = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().context("kill")?;
        let start = Instant::now();
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{status}: {}", self.said()),
                None if start.elapsed() > WAIT_LIMIT => {
                    bail!("the program does not end after SIGTERM: {}", self.said())
                }
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap_or_default().trim().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program(name: &str) -> anyhow::Result<PathBuf> {
    setup::find(name).with_context(|| format!("`{name}` is missing; `cargo xtask setup` installs it"))
}
