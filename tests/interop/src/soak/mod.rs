//! The soak test: `cargo xtask soak`. Clients of all protocols use a gateway while faults happen to it, and check every answer.
//!
//! ```text
//! clients ──▶ gateway (sealane serve) ──▶ two servers (processes of their own)
//!                ▲                            ▲
//!                └── faults, one at a time ───┘
//! ```
//!
//! Some faults must cause no failure at all: reloads, upgrades, changes of certificates, names that do not resolve. The others excuse failures
//! of requests that were under way beside them. In the second half, the process is not replaced, so that its memory can be compared.

pub mod clients;
pub mod faults;
pub mod report;
pub mod server;
pub mod tunnel;

use crate::clock::{Clock, clock_face};
use crate::gateway::{Gateway, launch, order, serving};
use crate::http::Wire;
use crate::process::{Server, kill_gateways};
use crate::site::{HOST, Identity, Site};
use crate::{WAIT_LIMIT, binary, client, eventually, peers, ports};
use anyhow::{Context, bail, ensure};
use clients::Shared;
use faults::Faults;
use report::Record;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use sealane_control::admin::ask::{Where, ask};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tunnel::{Tunnel, TunnelFault};

/// Runs at least this long are judged by their memory and descriptors: before, caches and pools grow.
const JUDGED: Duration = Duration::from_secs(600);
/// What memory may grow between the third and the last quarter: 2 %, and what the allocator keeps at a time.
const GROWTH: (f64, u64) = (1.02, 1 << 20);
/// Descriptors that may be more: connections that happen to be open.
const DESCRIPTORS: u64 = 12;
/// Steps of the gateway's time of day, in seconds from the machine's.
const CLOCKS: [i64; 5] = [7 * 3600, -7 * 3600, 40 * 24 * 3600, 1, 0];
/// A name whose responses are the gateway's own, and tell its time of day.
const TIME: &str = "time.example.test";
/// A name of which the server's addresses are asked.
const NAME: &str = "soak.example.test";

/// What a run is to be.
pub struct Plan {
    /// How long.
    pub time: Duration,
    /// What everything random is made from.
    pub seed: u64,
    /// The program that runs a server: it is started with an address and the file of records.
    pub server: PathBuf,
    /// Where its files are kept.
    pub folder: PathBuf,
}

/// Something that happens to the gateway, and whether requests beside it may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Reload,
    BadReload,
    Certificate,
    NoNames,
    Upgrade,
    ServerDies,
    Descriptors,
    KillGateway,
    KillDuringReload,
    KillDuringUpgrade,
    ClockStep,
    FullDisk,
    PacketLoss,
    Tunnel(TunnelFault),
}

/// All of them, with how often they come, and what they are called.
const FAULTS: [(Fault, u64, &str); 16] = [
    (Fault::Reload, 6, "reload"),
    (Fault::BadReload, 2, "reload of a file with a mistake"),
    (Fault::Certificate, 4, "change of the certificate"),
    (Fault::NoNames, 2, "names that do not resolve"),
    (Fault::Upgrade, 4, "upgrade"),
    (Fault::ServerDies, 4, "death of a server"),
    (Fault::Descriptors, 2, "limit of descriptors"),
    (Fault::KillGateway, 2, "kill"),
    (Fault::KillDuringReload, 2, "kill during a reload"),
    (Fault::KillDuringUpgrade, 2, "kill during an upgrade"),
    (Fault::ClockStep, 3, "clock step"),
    (Fault::FullDisk, 2, "full disk under the access log"),
    (Fault::PacketLoss, 3, "packet loss"),
    (Fault::Tunnel(TunnelFault::Reload), 2, "reload of the tunnel"),
    (Fault::Tunnel(TunnelFault::Upgrade), 2, "upgrade of the tunnel"),
    (Fault::Tunnel(TunnelFault::Kill), 1, "kill of the tunnel"),
];

impl Fault {
    /// The process goes on: nothing else happens in the second half.
    fn keeps_process(self) -> bool {
        !matches!(self, Fault::Upgrade | Fault::KillGateway | Fault::KillDuringReload | Fault::KillDuringUpgrade)
    }

    /// Requests beside it may fail.
    fn excuses(self) -> bool {
        matches!(
            self,
            Fault::ServerDies
                | Fault::Descriptors
                | Fault::KillGateway
                | Fault::KillDuringReload
                | Fault::KillDuringUpgrade
        )
    }
}

/// The gateway, its servers, and what is known of them.
struct World {
    site: Site,
    gateway: Option<Gateway>,
    servers: [Option<Server>; 2],
    plan: Plan,
    record: PathBuf,
    socket: PathBuf,
    listen: SocketAddr,
    plain: SocketAddr,
    admin: SocketAddr,
    backends: [SocketAddr; 2],
    resolver: SocketAddr,
    answers_names: Arc<AtomicBool>,
    /// `None` without a C compiler.
    clock: Option<Clock>,
    /// `None` without root, OpenVPN or a TUN device.
    tunnel: Option<Tunnel>,
    /// How many of a hundred datagrams over QUIC are lost.
    loss: Arc<AtomicU64>,
    identity: Identity,
    random: u64,
    reloads: u64,
}

/// Runs it. What went wrong is in the record.
pub fn run(plan: Plan) -> anyhow::Result<Record> {
    let (start, time, seed) = (Instant::now(), plan.time, plan.seed);
    let mut world = World::start(plan)?;
    let faults = Arc::new(Faults::default());
    let config = Arc::new(client::config(&world.site.ca));
    let shared = Arc::new(Shared::new([world.listen, world.plain], config, faults.clone(), world.loss.clone()));
    let threads = clients::start(&shared, seed);
    let watch = Watch::start(world.socket.clone(), world.admin);
    let mut record = Record { seed, ..Record::default() };
    let mut samples: Vec<(Duration, u64, u64)> = Vec::new();
    while start.elapsed() < time {
        std::thread::sleep(Duration::from_millis(500 + world.next(2500)));
        if let Some(sample) = world.sample() {
            samples.push((start.elapsed(), sample.0, sample.1));
        }
        let second_half = start.elapsed() > time / 2;
        let (fault, name) = world.choose(second_half);
        println!("{:>6} s: {name}", start.elapsed().as_secs());
        let under_way = fault.excuses().then(|| faults.begin());
        let done = world.cause(fault).with_context(|| name.to_owned());
        drop(under_way);
        *record.faults.entry(name.to_owned()).or_default() += 1;
        if let Err(error) = done {
            record.problems.push(format!("after {} s: {error:#}", start.elapsed().as_secs()));
            if world.pid().is_none() {
                break;
            }
        }
    }
    shared.stop.store(true, Ordering::Relaxed);
    for thread in threads {
        ensure!(thread.join().is_ok(), "a client has panicked");
    }
    let (comparisons, backwards) = watch.stop();
    let tally = std::mem::take(&mut *shared.tally());
    record.answers = tally.answers.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    (record.excused, record.again, record.comparisons) = (tally.excused, tally.again, comparisons);
    record.acknowledged = tally.acknowledged.len() as u64;
    if let Some(tunnel) = world.tunnel.take() {
        let pings = tunnel.end();
        record.answers.insert("pings through the tunnel".to_owned(), pings.answered);
        record.excused += pings.excused;
        record.problems.extend(pings.failures);
    }
    record.problems.extend(tally.failures);
    record.problems.extend(backwards);
    record.problems.extend(lost(&world.record, &tally.acknowledged));
    record.problems.extend(world.panics());
    record.seconds = start.elapsed().as_secs();
    let (memory, descriptors) = (quarters(&samples, time, |s| s.1), quarters(&samples, time, |s| s.2));
    (record.memory, record.descriptors) = (memory, descriptors);
    if time >= JUDGED {
        if let Some((before, after)) = memory.filter(|(b, a)| *a as f64 > *b as f64 * GROWTH.0 + GROWTH.1 as f64) {
            record.problems.push(format!("memory has grown from {before} to {after} bytes in the second half"));
        }
        if let Some((before, after)) = descriptors.filter(|(b, a)| *a > *b + DESCRIPTORS) {
            record.problems.push(format!("descriptors have grown from {before} to {after} in the second half"));
        }
    }
    Ok(record)
}

/// Medians of the third and the last quarter.
fn quarters(
    samples: &[(Duration, u64, u64)],
    time: Duration,
    of: impl Fn(&(Duration, u64, u64)) -> u64,
) -> Option<(u64, u64)> {
    let median = |from: Duration, to: Duration| {
        let mut values: Vec<u64> = samples.iter().filter(|s| s.0 >= from && s.0 < to).map(&of).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied()
    };
    Some((median(time / 2, time * 3 / 4)?, median(time * 3 / 4, time * 2)?))
}

/// Uploads that were acknowledged and not recorded, and those that were recorded twice.
fn lost(record: &Path, acknowledged: &HashSet<u64>) -> Vec<String> {
    let text = std::fs::read_to_string(record).unwrap_or_default();
    let (mut seen, mut problems) = (HashSet::new(), Vec::new());
    for id in text.lines().filter_map(|line| line.split(' ').next()?.parse::<u64>().ok()) {
        if !seen.insert(id) {
            problems.push(format!("upload {id} came to a server twice"));
        }
    }
    problems.extend(acknowledged.difference(&seen).map(|id| format!("upload {id} was acknowledged and is lost")));
    problems
}

impl World {
    fn start(plan: Plan) -> anyhow::Result<Self> {
        let site = Site::new();
        let [listen, plain, admin, first, second] = [(); 5].map(|()| ports::free());
        let (resolver, answers_names) = name_server()?;
        let identity = site.issue("soak", &[HOST, "127.0.0.1"]);
        let clock = peers::find("cc").map(|compiler| Clock::new(&site, &compiler));
        if clock.is_none() {
            println!("without clock steps: `cc` is not installed");
        }
        let tunnel = Tunnel::start().map_err(|why| println!("without the tunnel: {why:#}")).ok();
        let mut world = Self {
            record: site.path().join("record"),
            socket: site.path().join("admin.sock"),
            gateway: None,
            servers: [None, None],
            random: plan.seed | 1,
            backends: [first, second],
            reloads: 0,
            site,
            plan,
            listen,
            plain,
            admin,
            resolver,
            answers_names,
            clock,
            tunnel,
            loss: Arc::default(),
            identity,
        };
        std::fs::create_dir_all(&world.plan.folder)?;
        for n in 0..2 {
            world.start_server(n);
        }
        world.start_gateway();
        Ok(world)
    }

    fn next(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn choose(&mut self, keeps_process: bool) -> (Fault, &'static str) {
        let allowed: Vec<_> = FAULTS
            .into_iter()
            .filter(|(fault, ..)| (!keeps_process || fault.keeps_process()) && self.can_cause(*fault))
            .collect();
        let mut at = self.next(allowed.iter().map(|(_, weight, _)| weight).sum());
        for (fault, weight, name) in allowed {
            if at < weight {
                return (fault, name);
            }
            at -= weight;
        }
        (Fault::Reload, "reload")
    }

    /// Whether this machine has what the fault takes.
    fn can_cause(&self, fault: Fault) -> bool {
        match fault {
            Fault::ClockStep => self.clock.is_some(),
            Fault::Tunnel(_) => self.tunnel.is_some(),
            _ => true,
        }
    }

    /// The configuration; what a reload changes depends on how many there were.
    fn text(&self) -> String {
        let (cert, key) = (self.identity.cert.display(), self.identity.key.display());
        let n = self.reloads;
        let balance = ["round_robin", "least_connections", "random_two"][n as usize % 3];
        format!(
            "lanes = 2\ndrain_timeout = \"20s\"\nresolver = \"{}\"\n[admin]\nlisten = \"{}\"\nsocket = \"{}\"\n\
             [log]\naccess = \"{}\"\n[limits]\nmax_connections = {}\n\
             [[listener]]\naddress = \"{}\"\nhttp3 = true\n[listener.tls]\n\
             certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
             [[listener]]\naddress = \"{}\"\nh2c = true\n\
             [[host]]\nnames = [\"{TIME}\"]\nrespond = {{ status = 200 }}\n\
             [[host]]\nnames = [\"*\"]\nupstream = \"servers\"\n[[upstream]]\nname = \"servers\"\nbalance = \"{balance}\"\n\
             resolve_interval = \"1s\"\nservers = [\"http://{NAME}:{}\", \"http://{}\"]\n\
             [upstream.health]\npath = \"/small\"\ninterval = \"500ms\"\n",
            self.resolver,
            self.admin,
            self.socket.display(),
            self.site.path().join("access.log").display(),
            2000 + n % 100,
            self.listen,
            self.plain,
            self.backends[0].port(),
            self.backends[1],
        )
    }

    fn write(&self, text: &str) -> PathBuf {
        let file = self.site.file("soak.new", text);
        let to = self.site.path().join("soak.toml");
        std::fs::rename(file, &to).expect("our own folder");
        to
    }

    fn start_server(&mut self, n: usize) {
        let address = self.backends[n];
        let mut command = Command::new(&self.plan.server);
        command.arg("--serve").arg(address.to_string()).arg("--record").arg(&self.record);
        let mut server = Server::start(command, self.site.path());
        server.wait_until(|| TcpStream::connect(address).is_ok());
        self.servers[n] = Some(server);
    }

    fn start_gateway(&mut self) {
        let file = self.write(&self.text());
        let mut command = self.clock.as_ref().map_or_else(|| Command::new(binary::sealane()), Clock::program);
        command.arg("serve").arg("-c").arg(file);
        // One left by a gateway that was killed.
        let _ = std::fs::remove_file(&self.socket);
        let mut gateway = launch(&self.site, command, self.listen, self.admin);
        gateway.server.wait_until(|| self.socket.exists());
        self.gateway = Some(gateway);
    }

    fn order(&self, what: &str) -> anyhow::Result<String> {
        order(&self.socket, what)
    }

    /// The process that serves.
    fn pid(&self) -> Option<i32> {
        serving(&self.socket)
    }

    /// Memory and descriptors of the process that serves.
    fn sample(&self) -> Option<(u64, u64)> {
        let pid = self.pid()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
        Some((kib << 10, descriptors))
    }

    /// A new client is served.
    fn serves(&self) -> anyhow::Result<()> {
        let served = || {
            let Ok(stream) = TcpStream::connect(self.plain) else { return false };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let mut wire = Wire::new(stream);
            wire.send(client::get("/small")).is_ok() && wire.response("GET").is_ok_and(|r| r.status() == 200)
        };
        ensure!(eventually(served), "a new client is not served within {} s", WAIT_LIMIT.as_secs());
        Ok(())
    }

    fn cause(&mut self, fault: Fault) -> anyhow::Result<()> {
        match fault {
            Fault::Reload => {
                self.reloads += 1;
                self.write(&self.text());
                self.order("reload")?;
            }
            Fault::BadReload => {
                self.write("lanes = \"many\"\n");
                ensure!(self.order("reload").is_err(), "a file with a mistake was taken");
                self.write(&self.text());
            }
            Fault::Certificate => self.change_certificate()?,
            Fault::NoNames => {
                self.answers_names.store(false, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1500));
                self.answers_names.store(true, Ordering::SeqCst);
            }
            Fault::Upgrade => {
                self.order("upgrade")?;
            }
            Fault::ServerDies => {
                let n = self.next(2) as usize;
                // Killed by the handle's end.
                self.servers[n] = None;
                std::thread::sleep(Duration::from_millis(200 + self.next(2000)));
                self.start_server(n);
            }
            Fault::Descriptors => self.limit_descriptors()?,
            Fault::ClockStep => self.step_clock()?,
            Fault::FullDisk => self.fill_disk()?,
            Fault::PacketLoss => {
                let percent = 5 + self.next(11);
                self.loss.store(percent, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1000 + self.next(3000)));
                self.loss.store(0, Ordering::Relaxed);
            }
            Fault::Tunnel(fault) => self.tunnel.as_mut().context("there is no tunnel")?.cause(fault)?,
            Fault::KillGateway | Fault::KillDuringReload | Fault::KillDuringUpgrade => {
                let socket = self.socket.clone();
                let what = match fault {
                    Fault::KillDuringReload => Some("/v1/reload"),
                    Fault::KillDuringUpgrade => Some("/v1/upgrade"),
                    _ => None,
                };
                let order = what.map(|what| {
                    // It is killed before it answers.
                    std::thread::spawn(move || drop(ask(&Where::Socket(socket), "POST", what, Duration::from_secs(5))))
                });
                std::thread::sleep(Duration::from_millis(self.next(300)));
                self.kill();
                if let Some(order) = order {
                    let _ = order.join();
                }
                // A successor may have come into being while the order was under way.
                self.kill();
                self.start_gateway();
            }
        }
        self.serves()
    }

    fn change_certificate(&mut self) -> anyhow::Result<()> {
        let new = self.site.issue("soak-next", &[HOST, "127.0.0.1"]);
        let (chain, _) = new.load();
        // The key first: a certificate without its key is no pair, and the old pair stays.
        for (from, to) in [(&new.key, &self.identity.key), (&new.cert, &self.identity.cert)] {
            std::fs::rename(from, to)?;
        }
        self.order("reload")?;
        let gateway = self.gateway.as_ref().context("there is no gateway")?;
        let shown = || {
            let stream = client::handshake(TcpStream::connect(self.listen).ok()?, gateway.config(), HOST).ok()?;
            Some(stream.conn.peer_certificates()?.first()?.to_vec())
        };
        // A resumed session shows the certificate of its first handshake.
        let fresh = Arc::new(client::config(&self.site.ca));
        let shown_anew = || {
            let stream = client::handshake(TcpStream::connect(self.listen).ok()?, &fresh, HOST).ok()?;
            Some(stream.conn.peer_certificates()?.first()?.to_vec())
        };
        ensure!(shown().is_some(), "no handshake after a change of the certificate");
        ensure!(
            eventually(|| shown_anew().as_deref() == Some(chain[0].as_ref())),
            "the old certificate is still shown"
        );
        Ok(())
    }

    fn limit_descriptors(&mut self) -> anyhow::Result<()> {
        let pid = self.pid().and_then(Pid::from_raw).context("the gateway does not answer")?;
        let used = self.sample().context("the process has ended")?.1;
        let few = |limit: &Rlimit| Rlimit { current: Some(used + 4), maximum: limit.maximum };
        let before = prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(used + 4), maximum: None });
        let before = match before {
            Ok(before) => before,
            // Without the right to raise the hard limit it stays as it is.
            Err(_) => {
                let now = rustix::process::getrlimit(Resource::Nofile);
                prlimit(Some(pid), Resource::Nofile, few(&now)).context("prlimit")?
            }
        };
        std::thread::sleep(Duration::from_millis(500 + self.next(1500)));
        prlimit(Some(pid), Resource::Nofile, before).context("prlimit")?;
        Ok(())
    }

    /// The time of day is another one: the gateway tells it, and nothing else changes.
    fn step_clock(&mut self) -> anyhow::Result<()> {
        let step = CLOCKS[self.next(CLOCKS.len() as u64) as usize];
        self.clock.as_ref().context("there is no clock")?.set(step);
        ensure!(
            eventually(|| self.tells(step)),
            "the gateway does not tell the time of a clock that is {step} s ahead"
        );
        Ok(())
    }

    /// Whether the gateway's own responses tell the time of a clock that is so many seconds ahead.
    fn tells(&self, step: i64) -> bool {
        let Ok(stream) = TcpStream::connect(self.plain) else { return false };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        let mut wire = Wire::new(stream);
        let asked = wire.send(format!("GET / HTTP/1.1\r\nHost: {TIME}\r\nConnection: close\r\n\r\n"));
        let Ok(response) = asked.map_err(drop).and_then(|()| wire.response("GET").map_err(drop)) else { return false };
        response.header("date").is_some_and(|date| clock_face(step).iter().any(|face| date.contains(face)))
    }

    /// For a moment, nothing can be written to the access log (full(4)): this is counted, and lines arrive again afterwards.
    fn fill_disk(&self) -> anyhow::Result<()> {
        const ERRORS: &str = "sealane_access_log_errors_total";
        let log = self.site.path().join("access.log");
        let errors = || counters(self.admin).ok().and_then(|all| all.get(ERRORS).copied()).unwrap_or(0.0);
        let before = errors();
        let _ = std::fs::remove_file(&log);
        std::os::unix::fs::symlink("/dev/full", &log)?;
        let reopened = self.order("reopen-logs");
        let counted = reopened.is_ok() && eventually(|| errors() > before);
        std::fs::remove_file(&log)?;
        self.order("reopen-logs")?;
        reopened?;
        ensure!(counted, "no error of a full disk is counted");
        let written = || std::fs::metadata(&log).is_ok_and(|file| file.len() > 0);
        ensure!(eventually(written), "the access log is not written any more after a full disk");
        Ok(())
    }

    /// Kills all gateways, also a successor that does not serve yet.
    fn kill(&mut self) {
        let file = self.site.path().join("soak.toml");
        assert!(kill_gateways(std::slice::from_ref(&file)), "a gateway with {} is still there", file.display());
        self.gateway = None;
    }

    /// Lines of the log that no gateway may write.
    fn panics(&self) -> Vec<String> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.site.path()).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|e| e == "log") && !path.ends_with("access.log") {
                let text = std::fs::read(&path).unwrap_or_default();
                let text = String::from_utf8_lossy(&text);
                found.extend(text.lines().filter(|line| line.contains("panicked")).map(str::to_owned));
            }
        }
        found
    }
}

/// A successor of a gateway is nobody's child: also a run that ends with an error leaves none.
impl Drop for World {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A DNS server that knows one name, and fails while it is told so.
fn name_server() -> anyhow::Result<(SocketAddr, Arc<AtomicBool>)> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let (address, works) = (socket.local_addr()?, Arc::new(AtomicBool::new(true)));
    let answers = works.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let mut answer = buffer[..length].to_vec();
            let Some(end) = answer[12..].iter().position(|byte| *byte == 0).map(|at| 12 + at + 5) else { continue };
            if end > length {
                continue;
            }
            answer.truncate(end);
            let (is_a, works) = (answer[end - 3] == 1, answers.load(Ordering::SeqCst));
            // Else SERVFAIL.
            let code = if works { 0 } else { 2 };
            answer[2..12].copy_from_slice(&[0x81, 0x80 | code, 0, 1, 0, u8::from(is_a && works), 0, 0, 0, 0]);
            if is_a && works {
                // A pointer to the name asked for, A, IN, a TTL of one second, 127.0.0.1.
                answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1]);
            }
            let _ = socket.send_to(&answer, from);
        }
    });
    Ok((address, works))
}

/// Compares the counters of the process that serves with their last values.
struct Watch {
    stop: Arc<AtomicBool>,
    comparisons: Arc<AtomicU64>,
    backwards: Arc<Mutex<Vec<String>>>,
    thread: std::thread::JoinHandle<()>,
}

impl Watch {
    fn start(socket: PathBuf, admin: SocketAddr) -> Self {
        let (stop, comparisons) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let backwards: Arc<Mutex<Vec<String>>> = Arc::default();
        let (stopped, count, found) = (stop.clone(), comparisons.clone(), backwards.clone());
        let thread = std::thread::spawn(move || {
            let mut last: BTreeMap<i32, HashMap<String, f64>> = BTreeMap::new();
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_secs(2));
                let before = serving(&socket);
                let (Some(before), Ok(now)) = (before, counters(admin)) else { continue };
                if serving(&socket) != Some(before) {
                    continue;
                }
                if let Some(old) = last.insert(before, now.clone()) {
                    count.fetch_add(1, Ordering::Relaxed);
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    found.extend(backwards_in(&old, &now));
                }
            }
        });
        Self { stop, comparisons, backwards, thread }
    }

    fn stop(self) -> (u64, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        let found = std::mem::take(&mut *self.backwards.lock().unwrap_or_else(PoisonError::into_inner));
        (self.comparisons.load(Ordering::Relaxed), found)
    }
}

/// Counters that are less than they were.
fn backwards_in(old: &HashMap<String, f64>, new: &HashMap<String, f64>) -> Vec<String> {
    let less = old.iter().filter_map(|(series, before)| Some((series, *before, *new.get(series)?)));
    less.filter(|(_, before, after)| after < before)
        .map(|(series, before, after)| format!("{series} went from {before} to {after}"))
        .collect()
}

/// The samples of `/metrics` that only grow.
fn counters(admin: SocketAddr) -> anyhow::Result<HashMap<String, f64>> {
    let stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut wire = Wire::new(stream);
    wire.send(format!("GET /metrics HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n"))?;
    let response = wire.response("GET").map_err(|broken| broken.error)?;
    if response.status() != 200 {
        bail!("/metrics: {}", response.start);
    }
    Ok(of(&response.text()))
}

fn of(text: &str) -> HashMap<String, f64> {
    let mut found = HashMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        // An exemplar may follow.
        let line = line.split(" # ").next().unwrap_or(line);
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let name = series.split('{').next().unwrap_or(series);
        let grows = ["_total", "_count", "_bucket", "_sum"].iter().any(|end| name.ends_with(end));
        if let (true, Ok(value)) = (grows, value.parse()) {
            found.insert(series.to_owned(), value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_goes_backwards_is_found() {
        let old = of("# TYPE a_total counter\na_total{x=\"1\"} 5\na_total{x=\"2\"} 5\ng 9\nh_bucket{le=\"1\"} 3\n");
        let new = of("a_total{x=\"1\"} 6\na_total{x=\"2\"} 4\ng 1\nh_bucket{le=\"1\"} 3\n");
        assert_eq!(backwards_in(&old, &new), ["a_total{x=\"2\"} went from 5 to 4"]);
    }

    #[test]
    fn what_is_lost_or_doubled_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("record");
        std::fs::write(&file, "1 x\n2 x\n2 x\n").expect("our own folder");
        let problems = lost(&file, &[1, 2, 3].into());
        assert_eq!(problems, ["upload 2 came to a server twice", "upload 3 was acknowledged and is lost"]);
    }

    #[test]
    fn quarters_are_compared_by_their_medians() {
        let samples: Vec<(Duration, u64, u64)> = (0..100).map(|n| (Duration::from_secs(n), n, 7)).collect();
        let time = Duration::from_secs(100);
        assert_eq!(quarters(&samples, time, |s| s.1), Some((62, 87)));
        assert_eq!(quarters(&samples, time, |s| s.2), Some((7, 7)));
        assert_eq!(quarters(&[], time, |s| s.1), None);
    }
}
