//! A fleet of gateways with one store, on one machine.
//!
//! ```text
//! clients ──▶ N gateways (processes with one lane each) ──▶ one server (threads)
//!                  │
//!                  └──▶ one redis-server
//! ```
//!
//! [`Fleet`] does to all gateways what an operator or a failure does to them, and says when each of them had noticed. [`measure`] measures
//! with it (`cargo xtask fleet`), and the tests `fleet_simulation` assert with it.

pub mod measure;
pub mod report;

use crate::backend::{Backend, ok};
use crate::crowd::Crowd;
use crate::gateway::{Gateway, launch, order, serving};
use crate::http::Wire;
use crate::process::kill_gateways;
use crate::site::{HOST, Site};
use crate::store::Store;
use crate::{WAIT_LIMIT, binary, client, eventually, ports, raise_open_files};
use anyhow::{Context, anyhow, bail, ensure};
use report::{EmptyStore, Limit, Memory, Moments, Rotation, StoreLoad};
use rustls::{ClientConfig, HandshakeKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Threads that ask gateways for their state, and that offer requests.
const THREADS: usize = 8;
/// From one request of a client to its next one.
const PAUSE: Duration = Duration::from_millis(100);
/// Keys under which the clients of a gateway send requests while the load of the store is measured.
const KEYS: u64 = 10;
const MIB: f64 = 1_048_576.0;
const UP: &str = "sealane_store_up";
const ROTATIONS: &str = "sealane_key_rotations_total";

/// The rate limit that all gateways hold together, for each API key.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Requests in an hour.
    pub per_hour: u32,
    /// Requests that may come at once.
    pub burst: u32,
}

impl Budget {
    fn per_second(self) -> f64 {
        f64::from(self.per_hour) / 3600.0
    }

    /// What one gateway with one lane would let pass in so many seconds.
    fn allowed(self, seconds: f64) -> f64 {
        f64::from(self.burst) + self.per_second() * seconds
    }

    /// What may pass beyond, once, with so many lanes (docs/how-to/fleet.md#rate-limits).
    fn bound(self, lanes: usize) -> f64 {
        (lanes as f64 - 1.0) * (f64::from(self.burst) + 0.35 * self.per_second())
    }
}

/// What a fleet is to be like.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How many gateways.
    pub size: usize,
    /// The limit.
    pub budget: Budget,
    /// `ticket_lifetime`.
    pub lifetime: Duration,
}

/// A gateway.
struct Member {
    gateway: Gateway,
    /// A second listener, with early data.
    early: SocketAddr,
    socket: PathBuf,
    file: PathBuf,
}

/// Running gateways, their store and their server; ended on drop.
pub struct Fleet {
    members: Vec<Member>,
    store: Store,
    backend: Backend,
    site: Site,
    /// `secret_file` of all gateways.
    secret: PathBuf,
    settings: Settings,
    /// The version of the configuration, which each response has in a header.
    version: u64,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // Also those that have taken over from the first processes.
        let files: Vec<PathBuf> = self.members.iter().map(|member| member.file.clone()).collect();
        if !kill_gateways(&files) {
            crate::say("a gateway of the fleet cannot be killed");
        }
    }
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

impl Fleet {
    /// Starts the gateways one after the other, and waits until all are connected to the store and have its ticket keys. `None`: there is
    /// no server for the store on this machine.
    pub fn start(settings: Settings) -> Option<Self> {
        raise_open_files();
        let store = Store::start()?;
        let site = Site::new();
        let backend = Backend::start(|mut connection| {
            // Requests are not logged: a run has many.
            while let Ok(Some(_)) = connection.wire.request() {
                connection.send(ok(b"hello"));
            }
        });
        let secret = site.file("store.secret", format!("{}A=\n", "x".repeat(42)));
        let members = Vec::with_capacity(settings.size);
        let mut fleet = Self { members, store, backend, site, secret, settings, version: 1 };
        for n in 0..settings.size {
            let member = fleet.start_member(n);
            fleet.members.push(member);
        }
        let ready = |member: &Member| {
            let metric = |name| member.gateway.metric(name);
            eventually(|| metric(UP) == Some(1.0) && metric(ROTATIONS) > Some(0.0))
        };
        let ready = fleet.each(THREADS, ready);
        assert!(ready.iter().all(|ready| *ready), "a gateway is not connected to the store: {ready:?}");
        Some(fleet)
    }

    fn start_member(&self, n: usize) -> Member {
        let [address, early, admin] = [(); 3].map(|()| ports::free());
        let socket = self.site.path().join(format!("{n}.sock"));
        let file = self.site.file(&format!("{n}.toml"), self.text([address, early, admin], &socket));
        let mut command = Command::new(binary::sealane());
        command.arg("serve").arg("-c").arg(&file);
        let mut gateway = launch(&self.site, command, address, admin);
        gateway.server.wait_until(|| socket.exists());
        Member { gateway, early, socket, file }
    }

    /// The configuration of a gateway in the current version.
    fn text(&self, [address, early, admin]: [SocketAddr; 3], socket: &Path) -> String {
        let (cert, key) = (self.site.ecdsa.cert.display(), self.site.ecdsa.key.display());
        let Settings { budget, lifetime, .. } = self.settings;
        let certificates = format!("certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]");
        format!(
            "lanes = 1\nticket_keys = \"store\"\nticket_lifetime = \"{}s\"\ndrain_timeout = \"10m\"\n\
             [admin]\nlisten = \"{admin}\"\nsocket = \"{}\"\n\
             [store]\nurl = \"unix://{}\"\nsecret_file = \"{}\"\nearly_data = true\nrate_limits = true\ntimeout = \"5s\"\n\
             [limits]\nmax_connections = 256\n\
             [[rate_limit]]\nname = \"keys\"\nkey = \"header:X-API-Key\"\nrate = \"{}/h\"\nburst = {}\nentries = 256\n\
             [[listener]]\naddress = \"{address}\"\n[listener.tls]\nsession_context = \"public\"\n{certificates}\n\
             [[listener]]\naddress = \"{early}\"\n[listener.tls]\nsession_context = \"early\"\nearly_data = \"16KiB\"\n{certificates}\n\
             [[host]]\nnames = [\"*\"]\nrate_limit = \"keys\"\nto = [\"{}\"]\n\
             response_headers = {{ set = {{ \"X-Version\" = \"{}\" }} }}\n",
            lifetime.as_secs(),
            socket.display(),
            self.store.socket().display(),
            self.secret.display(),
            budget.per_hour,
            budget.burst,
            self.backend.url(),
            self.version,
        )
    }

    /// Does something with each gateway, with so many at the same time. The results are in the order of the gateways.
    fn each<T: Send>(&self, at_once: usize, work: impl Fn(&Member) -> T + Sync) -> Vec<T> {
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(self.members.len())));
        std::thread::scope(|scope| {
            for _ in 0..at_once.min(self.members.len()) {
                scope.spawn(|| {
                    loop {
                        let n = next.fetch_add(1, Relaxed);
                        let Some(member) = self.members.get(n) else { return };
                        let result = work(member);
                        done.lock().unwrap_or_else(PoisonError::into_inner).push((n, result));
                    }
                });
            }
        });
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_unstable_by_key(|(n, _)| *n);
        done.into_iter().map(|(_, result)| result).collect()
    }

    /// When each gateway was seen in a state for the first time.
    fn when(&self, since: Instant, state: &str, is: impl Fn(usize, &Member) -> bool + Sync) -> anyhow::Result<Moments> {
        // Often enough for moments of tenths of a second, and so rarely that gateways have time for their work.
        let pause = Duration::from_millis(25).max(Duration::from_micros(2500) * self.members.len() as u32);
        let threads = THREADS.min(self.members.len());
        let watch = |thread: usize| {
            let mut waiting: Vec<usize> = (thread..self.members.len()).step_by(threads).collect();
            let mut seen = Vec::with_capacity(waiting.len());
            while !waiting.is_empty() && since.elapsed() < WAIT_LIMIT {
                waiting.retain(|n| {
                    let is = is(*n, &self.members[*n]);
                    if is {
                        seen.push(millis(since));
                    }
                    !is
                });
                std::thread::sleep(pause);
            }
            seen
        };
        let seen: Vec<f64> = std::thread::scope(|scope| {
            let watch = &watch;
            let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || watch(thread))).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("it asks gateways that are there")).collect()
        });
        let (some, all) = (seen.len(), self.members.len());
        ensure!(some == all, "{some} of {all} gateways {state} within {} s", WAIT_LIMIT.as_secs());
        Moments::of(seen)
    }

    /// The memory of the gateways, before any upgrade.
    pub fn memory(&self) -> anyhow::Result<Memory> {
        let each = self.each(THREADS, |member| {
            let server = &member.gateway.server;
            server.resident().zip(server.proportional())
        });
        let each: Vec<(u64, u64)> = each.into_iter().collect::<Option<_>>().context("the system tells no memory")?;
        let mib = |bytes: u64| bytes as f64 / MIB;
        let resident = each.iter().map(|(resident, _)| *resident).max().unwrap_or(0);
        let all: u64 = each.iter().map(|(_, proportional)| *proportional).sum();
        Ok(Memory { largest_resident_mib: mib(resident), all_mib: mib(all) })
    }

    /// Clients with TLS 1.3 that keep their connections, one for each gateway, and clients that make a connection for each request at the
    /// listeners with early data: all together one connection per gateway and second. The former send ten requests per second.
    pub fn crowd(&self) -> Crowd {
        let kept: Vec<SocketAddr> = self.members.iter().map(|member| member.gateway.address).collect();
        let early: Vec<SocketAddr> = self.members.iter().map(|member| member.early).collect();
        let config = Arc::new(self.client());
        let new = self.members.len().div_ceil(10);
        Crowd::of_fleet([&kept, &early], new, &config, PAUSE, |text| text == "hello")
    }

    fn client(&self) -> ClientConfig {
        client::config_with(&self.site.ca, client::provider(), &[&rustls::version::TLS13])
    }

    /// One request to a gateway on a connection of its own, with a session of these settings; whether the session is resumed.
    fn visit(&self, n: usize, config: &Arc<ClientConfig>) -> bool {
        let mut wire = client::connect(self.members[n].gateway.address, config);
        wire.send(client::get("/")).expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("it is served").status(), 200);
        // Tickets come before the end at the latest.
        let _ = wire.rest();
        wire.stream.conn.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Whether a new session of one gateway is resumed by another one.
    pub fn resumes(&self, issuer: usize, acceptor: usize) -> bool {
        let config = Arc::new(self.client());
        self.visit(issuer, &config);
        self.visit(acceptor, &config)
    }

    /// Gives all gateways a new configuration at the same time. When the first response with it came from each of them.
    pub fn roll_out(&mut self) -> anyhow::Result<Moments> {
        self.version += 1;
        for Member { gateway, early, socket, file } in &self.members {
            crate::replace(file, &self.text([gateway.address, *early, gateway.admin], socket));
        }
        let (start, version) = (Instant::now(), self.version.to_string());
        let served = self.each(self.members.len(), |member| -> anyhow::Result<f64> {
            order(&member.socket, "reload")?;
            let serves = || member.gateway.get("/").header("x-version") == Some(version.as_str());
            ensure!(eventually(serves), "a gateway was reloaded, and does not serve the new configuration");
            Ok(millis(start))
        });
        Moments::of(served.into_iter().collect::<anyhow::Result<_>>()?)
    }

    /// How often the ticket keys of the gateway were replaced that has replaced them most often.
    pub fn key_changes(&self) -> f64 {
        let counts = self.each(THREADS, |member| member.gateway.metric(ROTATIONS).unwrap_or(0.0));
        counts.into_iter().fold(0.0, f64::max)
    }

    /// Waits until all gateways have the next ticket key, and until all use it. Meanwhile, sessions of each gateway are shown to the next.
    pub fn rotation(&self) -> anyhow::Result<Rotation> {
        let before = self.each(THREADS, |member| member.gateway.metric(ROTATIONS).unwrap_or(0.0));
        let before = &before;
        let changed = |changes: f64| {
            move |n: usize, member: &Member| member.gateway.metric(ROTATIONS) >= Some(before[n] + changes)
        };
        let stop = AtomicBool::new(false);
        let (moments, resumed) = std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                let (mut resumed, mut pair) = ([0u64; 2], 0);
                while !stop.load(Relaxed) {
                    let (issuer, acceptor) = (pair % self.members.len(), (pair + 1) % self.members.len());
                    resumed[usize::from(self.resumes(issuer, acceptor))] += 1;
                    pair += 1;
                    std::thread::sleep(PAUSE);
                }
                resumed
            });
            let stop = StopOnDrop(&stop);
            let start = Instant::now();
            let moments = self.when(start, "have another ticket key", changed(1.0)).and_then(|distributed| {
                let used = self.when(start, "use another ticket key", changed(2.0))?;
                Ok((distributed, used))
            });
            drop(stop);
            (moments, clients.join().expect("each request is served"))
        });
        let ([not_resumed, resumed], (distributed, used)) = (resumed, moments?);
        Ok(Rotation {
            distribution_ms: distributed.last_ms - distributed.first_ms,
            reserve_ms: used.first_ms - distributed.last_ms,
            disagreement_ms: used.last_ms - used.first_ms,
            distributed,
            used,
            resumed,
            not_resumed,
        })
    }

    /// One client with one API key sends requests to all gateways for so long, each time to all at the same time: what passes.
    pub fn limit(&self, key: &str, time: Duration, pause: Duration) -> anyhow::Result<Limit> {
        let (sent, passed, seconds) = self.offer(time, pause, |_, _| key.to_owned())?;
        let all: u64 = passed.iter().sum();
        let (allowed, bound) = (self.settings.budget.allowed(seconds), self.settings.budget.bound(self.members.len()));
        Ok(Limit {
            seconds,
            sent,
            passed: all,
            allowed,
            excess: all as f64 - allowed,
            bound,
            passed_in_the_first_second: passed.first().copied().unwrap_or(0),
            passed_each_second: passed,
        })
    }

    /// Sends requests to all gateways in rounds, with the API key for a gateway and a round. How many were sent, how many passed in each
    /// second, and how long it took in seconds.
    fn offer(
        &self,
        time: Duration,
        pause: Duration,
        key: impl Fn(usize, u64) -> String + Sync,
    ) -> anyhow::Result<(u64, Vec<u64>, f64)> {
        let mut wires: Vec<Wire<client::Tls>> = self.members.iter().map(|member| member.gateway.connect()).collect();
        let share = wires.len().div_ceil(THREADS);
        let start = Instant::now();
        let parts: Vec<anyhow::Result<(u64, Vec<u64>)>> = std::thread::scope(|scope| {
            let key = &key;
            let threads = wires.chunks_mut(share).enumerate().map(|(part, wires)| {
                scope.spawn(move || rounds(wires, start, time, pause, |n, round| key(part * share + n, round)))
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().expect("it returns what goes wrong")).collect()
        });
        let seconds = start.elapsed().as_secs_f64();
        let (mut sent, mut passed): (u64, Vec<u64>) = (0, Vec::new());
        for part in parts {
            let (more, each_second) = part?;
            sent += more;
            passed.resize(each_second.len().max(passed.len()), 0);
            passed.iter_mut().zip(each_second).for_each(|(sum, count)| *sum += count);
        }
        Ok((sent, passed, seconds))
    }

    /// What the store has to do for so long: for gateways without clients, or with clients.
    pub fn store_load(&self, time: Duration, clients: bool) -> anyhow::Result<StoreLoad> {
        let (before, start) = (self.store.info(), Instant::now());
        let (mut requests, mut connections) = (0u64, 0u64);
        if clients {
            let crowd = self.crowd();
            let offered = self.offer(time, PAUSE, |n, round| format!("client-{n}-{}", round % KEYS));
            let tally = crowd.stop();
            ensure!(tally.failures.is_empty(), "{:?}", tally.failures);
            (requests, connections) = (offered?.0, tally.connections);
        } else {
            std::thread::sleep(time);
        }
        let (after, seconds) = (self.store.info(), start.elapsed().as_secs_f64());
        let number = |name: &str| after.get(name).copied().with_context(|| format!("the store's INFO has no {name}"));
        let rate = |name: &str| anyhow::Ok((number(name)? - before.get(name).copied().unwrap_or(0.0)) / seconds);
        let gateways = self.members.len() as f64;
        Ok(StoreLoad {
            seconds,
            requests_per_second: requests as f64 / seconds,
            connections_per_second: connections as f64 / seconds,
            commands_per_second: rate("total_commands_processed")?,
            commands_per_second_and_gateway: rate("total_commands_processed")? / gateways,
            received_bytes_per_second: rate("total_net_input_bytes")?,
            sent_bytes_per_second: rate("total_net_output_bytes")?,
            cpu_percent: (rate("used_cpu_user")? + rate("used_cpu_sys")?) * 100.0,
            memory_mib: number("used_memory")? / MIB,
            values: self.store.values() as u64,
        })
    }

    /// Upgrades one gateway after the other to the same program. When each new process served, counted from the end of the one before.
    pub fn upgrade_all(&mut self) -> anyhow::Result<Moments> {
        let mut taken = Vec::with_capacity(self.members.len());
        for (n, member) in self.members.iter().enumerate() {
            let before = serving(&member.socket).with_context(|| format!("gateway {n} does not answer"))?;
            let start = Instant::now();
            order(&member.socket, "upgrade").with_context(|| format!("gateway {n}"))?;
            let after = serving(&member.socket).with_context(|| format!("the new gateway {n} does not answer"))?;
            taken.push(millis(start));
            ensure!(after != before, "the old process of gateway {n} still serves");
        }
        Moments::of(taken)
    }

    /// Waits until the first process of each gateway has ended.
    pub fn first_processes_end(&mut self) -> anyhow::Result<()> {
        for (n, member) in self.members.iter_mut().enumerate() {
            let server = &mut member.gateway.server;
            ensure!(
                eventually(|| !server.running()),
                "the first process of gateway {n} does not end:\n{}",
                server.log()
            );
        }
        Ok(())
    }

    /// Kills the store, and starts it again without its data when all gateways have noticed. Sessions that a gateway has begun before are
    /// shown to all gateways afterwards.
    pub fn empty_store(&mut self) -> anyhow::Result<EmptyStore> {
        let restarts = |member: &Member| member.gateway.metric("sealane_store_restarts_total").unwrap_or(0.0);
        let before = self.each(THREADS, restarts);
        let sessions: Vec<Arc<ClientConfig>> = self.members.iter().map(|_| Arc::new(self.client())).collect();
        for session in &sessions {
            self.visit(0, session);
        }
        self.store.kill();
        self.store.forget();
        let noticed = self.when(Instant::now(), "notice that the store is away", |_, member| {
            member.gateway.metric(UP) == Some(0.0)
        })?;
        let start = Instant::now();
        self.store.start_again();
        let connected = self.when(start, "are connected again", |_, member| member.gateway.metric(UP) == Some(1.0))?;
        let keys = || self.store.ask("KEYS sealane:ticket-keys:*").is_some_and(|count| count == "*1");
        ensure!(eventually(keys), "no gateway writes the ticket keys to the store again");
        let (keys_ms, commands) = (millis(start), self.store.info().get("total_commands_processed").copied());
        let resumed = sessions.iter().enumerate().filter(|(n, session)| self.visit(*n, session)).count();
        let after = self.each(THREADS, restarts);
        let noticed_restart = before.iter().zip(&after).filter(|(before, after)| **after == **before + 1.0).count();
        Ok(EmptyStore {
            noticed,
            connected,
            keys_ms,
            commands: commands.context("the store's INFO has no commands")?,
            resumed: resumed as u64,
            noticed_restart: noticed_restart as u64,
        })
    }
}

/// Sends a request over each connection, reads all responses, and begins again after a pause. How many were sent, and how many passed
/// in each second.
fn rounds(
    wires: &mut [Wire<client::Tls>],
    start: Instant,
    time: Duration,
    pause: Duration,
    key: impl Fn(usize, u64) -> String,
) -> anyhow::Result<(u64, Vec<u64>)> {
    let (mut sent, mut passed): (u64, Vec<u64>) = (0, Vec::new());
    for round in 0.. {
        let begun = Instant::now();
        if start.elapsed() >= time {
            break;
        }
        for (n, wire) in wires.iter_mut().enumerate() {
            wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\n\r\n", key(n, round)))?;
            sent += 1;
        }
        for wire in &mut *wires {
            let response = wire.response("GET").map_err(|broken| anyhow!("no whole response: {}", broken.error))?;
            match response.status() {
                200 => {
                    let second = start.elapsed().as_secs() as usize;
                    passed.resize(passed.len().max(second + 1), 0);
                    passed[second] += 1;
                }
                429 => {}
                _ => bail!("{}", response.start),
            }
        }
        std::thread::sleep(pause.saturating_sub(begun.elapsed()));
    }
    Ok((sent, passed))
}

/// Ends a thread also when another one panics.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_that_of_the_documentation() {
        let budget = Budget { per_hour: 72_000, burst: 10 };
        assert_eq!((budget.allowed(2.0), budget.bound(1), budget.bound(11)), (50.0, 0.0, 170.0));
    }
}
