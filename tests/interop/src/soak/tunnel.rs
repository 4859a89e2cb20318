//! The tunnel of a soak test: a gateway with a stock OpenVPN client, in network namespaces of their own, while pings go through it.
//!
//! A reload and an upgrade must lose no packet. After a kill, the client must come back by itself.

use super::faults::Faults;
use crate::eventually;
use crate::process::Server;
use crate::tunnel_world::{End, INSIDE, World};
use anyhow::{Context, ensure};
use sealane_control::admin::ask::{Where, ask};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pings of a round: one every 50 ms.
const PINGS: u32 = 20;
/// The client begins anew when it has heard nothing for ten seconds, whatever the server pushes.
const CLIENT: [&str; 7] = ["--pull-filter", "ignore", "ping", "--ping", "2", "--ping-restart", "10"];

/// What happens to the tunnel's gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelFault {
    /// The file is read again.
    Reload,
    /// The program is started anew, and takes the sessions over.
    Upgrade,
    /// The process is killed, and started anew.
    Kill,
}

/// The gateway, its client, and what the pings came to.
pub struct Tunnel {
    _client: Server,
    server: Option<Server>,
    world: Arc<World>,
    shared: Arc<Shared>,
    /// `None` once it has been stopped.
    thread: Option<JoinHandle<()>>,
}

/// What the pings came to.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    faults: Faults,
    answered: AtomicU64,
    excused: AtomicU64,
    failures: Mutex<Vec<String>>,
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct Pings {
    /// Answered pings.
    pub answered: u64,
    /// Pings that were lost beside a kill.
    pub excused: u64,
    /// Rounds with losses that no fault excuses.
    pub failures: Vec<String>,
}

/// What the helpers of tests panic with becomes an error.
fn caught<T>(run: impl FnOnce() -> T) -> anyhow::Result<T> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        anyhow::anyhow!("{}", text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it has panicked"))
    })
}

impl Tunnel {
    /// Starts both ends, and the pings. The error says what is missing here: root, OpenVPN, a TUN device.
    pub fn start() -> anyhow::Result<Self> {
        let world = World::new().map_err(|why| anyhow::anyhow!(why))?;
        let (server, client) = caught(|| {
            world.init("");
            let profile = world.profile("soak");
            let server = world.serve();
            (server, world.connected(&profile, &CLIENT))
        })?;
        let (world, shared) = (Arc::new(world), Arc::<Shared>::default());
        let (at, counts) = (world.clone(), shared.clone());
        let thread = Some(std::thread::spawn(move || ping(&at, &counts)));
        Ok(Self { world, server: Some(server), _client: client, shared, thread })
    }

    /// Causes a fault, and waits until pings are answered again.
    pub fn cause(&mut self, fault: TunnelFault) -> anyhow::Result<()> {
        let (world, log) =
            (&self.world, |server: &Option<Server>| server.as_ref().map(Server::log).unwrap_or_default());
        let under_way = (fault == TunnelFault::Kill).then(|| self.shared.faults.begin());
        match fault {
            TunnelFault::Reload => {
                let socket = Where::Socket(world.path("vpn/admin.sock"));
                ask(&socket, "POST", "/v1/reload", crate::WAIT_LIMIT).context("reload of the tunnel")?;
            }
            TunnelFault::Upgrade => {
                let before = log(&self.server).matches("taken over").count();
                caught(|| world.upgrade())?;
                let done = || log(&self.server).matches("taken over").count() > before && world.serving().len() == 1;
                ensure!(eventually(done), "the tunnel was not taken over");
            }
            TunnelFault::Kill => {
                world.kill();
                ensure!(eventually(|| world.serving().is_empty()), "the tunnel's gateway is still there");
                self.server = None;
                // One left by the process that was killed.
                let _ = std::fs::remove_file(world.path("vpn/admin.sock"));
                self.server = Some(caught(|| world.serve())?);
            }
        }
        let answered = self.shared.answered.load(Ordering::Relaxed);
        let goes_on = eventually(|| self.shared.answered.load(Ordering::Relaxed) > answered + u64::from(PINGS));
        drop(under_way);
        ensure!(goes_on, "no pings are answered any more: {}", log(&self.server));
        Ok(())
    }

    /// Stops the pings.
    pub fn end(mut self) -> Pings {
        self.stop();
        let failures = std::mem::take(&mut *self.shared.failures.lock().unwrap_or_else(PoisonError::into_inner));
        let [answered, excused] = [&self.shared.answered, &self.shared.excused].map(|n| n.load(Ordering::Relaxed));
        Pings { answered, excused, failures }
    }

    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Also where a run ends with an error: while the thread runs, the namespaces and the processes in them stay.
impl Drop for Tunnel {
    fn drop(&mut self) {
        self.stop();
    }
}

fn ping(world: &World, shared: &Shared) {
    let mut size = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        size = (size + 331) % 1400;
        // Ping fails while the client has no route.
        let may_be_lost = || shared.faults.excuse(begun);
        let answered =
            caught(|| world.pings_unless(End::Client, INSIDE, PINGS, "0.05", size, may_be_lost)).unwrap_or(0);
        shared.answered.fetch_add(answered.into(), Ordering::Relaxed);
        let lost = PINGS - answered.min(PINGS);
        if lost > 0 {
            match shared.faults.excuse(begun) {
                true => {
                    shared.excused.fetch_add(lost.into(), Ordering::Relaxed);
                }
                false => {
                    let text = format!("tunnel: {lost} of {PINGS} pings of {size} bytes were not answered");
                    shared.failures.lock().unwrap_or_else(PoisonError::into_inner).push(text);
                }
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}
