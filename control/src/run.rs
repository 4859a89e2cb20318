//! The assembly: starts what a checked configuration asks for, and keeps it going until told to stop.
//!
//! The one place that names everything: sockets, snapshots, lanes, ticket keys, metrics, access log, signals.

use crate::access_log::{AccessLog, LaneLog};
use crate::admin;
use crate::config::{Config, snapshot_parts};
use crate::metrics::LaneMetrics;
use crate::signals::{Event, Signals};
use crate::sockets;
use crate::syn_tls;
use crate::ticket_keys::TicketRing;
use anyhow::{Context as _, Result, bail};
use sealane_lane::{Inbox, Mailbox, Published, mailbox};
use sealane_proxy::counters::Counters;
use sealane_proxy::snapshot::{Listener, Snapshot};
use sealane_proxy::{Message, Proxy, Setup};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long the access log's last lines may take.
const LOG_PATIENCE: Duration = Duration::from_secs(2);

/// What is up, for those who print it.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Addresses as bound, in the order of the configuration.
    pub listeners: Vec<SocketAddr>,
    /// The admin listener, if there is one.
    pub admin: Option<SocketAddr>,
}

/// Serves until told to stop.
pub fn serve(config: Config) -> Result<()> {
    let lanes = config.lanes;
    serve_with(config, |ready| {
        for address in &ready.listeners {
            eprintln!("sealane: listening on {address}, {lanes} lane{}", if lanes == 1 { "" } else { "s" });
        }
        if let Some(admin) = ready.admin {
            eprintln!("sealane: metrics at http://{admin}/metrics");
        }
    })
}

/// Serves until told to stop; `ready` is called once everything is listened on.
pub fn serve_with(config: Config, ready: impl FnOnce(&Ready)) -> Result<()> {
    sockets::raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async move {
        let signals = Signals::new()?;
        let mut listeners = Listeners::default();
        let ring = TicketRing::new(config.ticket_lifetime)?;
        let snapshot = listeners.snapshot(&config, &ring, 1)?;
        let addresses: Vec<SocketAddr> =
            config.listeners.iter().map(|l| listeners.open[&l.address].1.address).collect();
        let log = AccessLog::start(&config.access_log, config.lanes).context("cannot start the access log")?;
        let (log, lane_logs) = match log {
            Some((log, lanes)) => (Some(log), lanes.into_iter().map(Some).collect()),
            None => (None, (0..config.lanes).map(|_| None).collect()),
        };
        let published = Published::new(snapshot);
        let lanes = Lanes::start(&published, lane_logs)?;
        let metrics = Arc::new(LaneMetrics::new(lanes.counters.clone(), log.as_ref().map(AccessLog::stats)));
        let admin = match config.admin {
            None => None,
            Some(address) => {
                let listener = std::net::TcpListener::bind(address)
                    .with_context(|| format!("cannot listen on {address} for the admin page"))?;
                listener.set_nonblocking(true)?;
                let listener = tokio::net::TcpListener::from_std(listener)?;
                let address = listener.local_addr()?;
                tokio::spawn(admin::serve(listener, metrics.clone()));
                Some(address)
            }
        };
        if let Some(note) = syn_tls::note(&config) {
            eprintln!("sealane: {note}");
        }
        ready(&Ready { listeners: addresses, admin });
        let mut running = Running { config, listeners, ring, published, lanes, log, metrics, draining: false };
        let result = running.mind(signals).await;
        if let Some(log) = running.log {
            log.finish(LOG_PATIENCE);
        }
        eprintln!("sealane: {}", running.metrics.summary());
        result
    })
}

/// Everything that is up.
struct Running {
    config: Config,
    listeners: Listeners,
    ring: TicketRing,
    published: Arc<Published<Snapshot>>,
    lanes: Lanes,
    log: Option<AccessLog>,
    metrics: Arc<LaneMetrics>,
    draining: bool,
}

impl Running {
    /// Minds signals and time until the lanes are done.
    async fn mind(&mut self, mut signals: Signals) -> Result<()> {
        let period = self.ring.period();
        let mut rotation = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
        loop {
            tokio::select! {
                ended = self.lanes.ended.recv() => match ended {
                    Some((slot, Err(e))) => bail!("lane {slot} failed: {e}"),
                    Some((slot, Ok(()))) if !self.draining => bail!("lane {slot} ended by itself; this is a bug"),
                    Some(_) => {
                        self.lanes.running -= 1;
                        if self.lanes.running == 0 {
                            return self.lanes.join();
                        }
                    }
                    None => return self.lanes.join(),
                },
                _ = rotation.tick() => {
                    self.ring.rotate()?;
                    let generation = self.published.newest().generation + 1;
                    let snapshot = self.listeners.snapshot(&self.config, &self.ring, generation)?;
                    self.publish(snapshot);
                }
                event = signals.next() => self.obey(event),
            }
        }
    }

    fn obey(&mut self, event: Event) {
        match event {
            Event::Drain => {
                self.draining = true;
                self.metrics.set_draining();
                let limit = self.config.drain_timeout;
                eprintln!("sealane: finishing open requests, {} s at most; again to end at once", limit.as_secs());
                self.lanes.send_all(|| Message::Drain { limit, successor: false });
            }
            Event::Quit => self.lanes.send_all(|| Message::Drain { limit: Duration::ZERO, successor: false }),
            Event::Reopen => {
                if let Some(log) = &self.log {
                    log.reopen();
                }
            }
            Event::Reload => match self.reload() {
                Ok(true) => eprintln!("sealane: reloaded"),
                Ok(false) => eprintln!("sealane: started without a configuration file: there is nothing to reload"),
                Err(e) => eprintln!("{e:#}\nsealane: not reloaded; the running configuration stays"),
            },
        }
    }

    fn publish(&self, snapshot: Snapshot) {
        self.published.publish(snapshot);
        self.lanes.mailboxes.iter().for_each(Mailbox::wake);
    }

    /// Reads the configuration file again. All or nothing: an error leaves everything as it was. False without a file.
    fn reload(&mut self) -> Result<bool> {
        let Some(file) = &self.config.file else { return Ok(false) };
        let (mut config, warnings) = Config::load(file).map_err(|e| anyhow::anyhow!("{e}"))?;
        for warning in warnings {
            eprintln!("{warning}");
        }
        if config.lanes != self.config.lanes {
            eprintln!("sealane: `lanes` takes effect with the next start; {} keep running", self.config.lanes);
            config.lanes = self.config.lanes;
        }
        self.ring.set_lifetime(config.ticket_lifetime);
        let generation = self.published.newest().generation + 1;
        let snapshot = self.listeners.snapshot(&config, &self.ring, generation);
        // What was opened for a configuration that cannot be had is closed again.
        self.listeners.forget_unused(if snapshot.is_ok() { &config } else { &self.config });
        self.publish(snapshot?);
        self.config = config;
        Ok(true)
    }
}

/// Sockets that are listened on, by the address as configured. They stay open as long as the address is configured.
#[derive(Default)]
struct Listeners {
    open: HashMap<SocketAddr, (u32, sockets::Opened)>,
    next_id: u32,
}

impl Listeners {
    /// What is published for a configuration; opens what is not open yet.
    fn snapshot(&mut self, config: &Config, ring: &TicketRing, generation: u64) -> Result<Snapshot> {
        let parts = snapshot_parts(config);
        let mut listeners: Vec<Arc<Listener>> = Vec::new();
        for listener in parts.listeners {
            let address = listener.address;
            if !self.open.contains_key(&address) {
                let opened = sockets::open(address, config.lanes)?;
                self.open.insert(address, (self.next_id, opened));
                self.next_id += 1;
            }
            let (id, opened) = &self.open[&address];
            if let Err(e) = syn_tls::apply(&opened.sockets, listener.syn_tls, &ring.current()) {
                eprintln!("sealane: {address}: TLS handshakes cannot begin in the SYN: {e}");
            }
            listeners.push(Arc::new(listener.with_sockets(*id, opened.address, opened.sockets.clone())));
        }
        Ok(Snapshot {
            generation,
            listeners,
            upstreams: parts.upstreams,
            ticket_keys: ring.current(),
            limits: parts.limits,
            access_log: parts.access_log,
        })
    }

    /// Closes what is no longer configured (once the lanes have let go of it, too).
    fn forget_unused(&mut self, config: &Config) {
        self.open.retain(|address, _| config.listeners.iter().any(|l| l.address == *address));
    }
}

/// The lanes' threads.
struct Lanes {
    mailboxes: Vec<Mailbox<Message>>,
    counters: Vec<Arc<Counters>>,
    threads: Vec<JoinHandle<()>>,
    ended: mpsc::UnboundedReceiver<(usize, Result<(), String>)>,
    running: usize,
}

impl Lanes {
    fn start(published: &Arc<Published<Snapshot>>, logs: Vec<Option<LaneLog>>) -> Result<Self> {
        let count = logs.len();
        let cores = sealane_sys::cpu::allowed();
        let boxes: Vec<(Mailbox<Message>, Inbox<Message>)> =
            (0..count).map(|_| mailbox()).collect::<std::io::Result<_>>()?;
        let mailboxes: Vec<Mailbox<Message>> = boxes.iter().map(|(m, _)| m.clone()).collect();
        let counters: Vec<Arc<Counters>> = (0..count).map(|_| Arc::default()).collect();
        let (tell, ended) = mpsc::unbounded_channel();
        let mut threads = Vec::new();
        for (slot, ((_, inbox), log)) in boxes.into_iter().zip(logs).enumerate() {
            let setup = Setup {
                slot,
                mailboxes: mailboxes.clone(),
                snapshots: published.subscribe(),
                counters: counters[slot].clone(),
                log: log.map(|mut l| Box::new(move |lines| l.hand_over(lines)) as sealane_proxy::LogSink),
            };
            // A core each; more lanes than cores are left to the scheduler.
            let core = (count <= cores.len()).then(|| cores[slot]);
            let tell = tell.clone();
            let thread = std::thread::Builder::new().name(format!("lane-{slot}")).spawn(move || {
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lane(core, setup, &inbox)));
                let result = result.unwrap_or_else(|_| Err(std::io::Error::other("it panicked; this is a bug")));
                // Nobody listens only when the process is ending anyway.
                let _ = tell.send((slot, result.map_err(|e| e.to_string())));
            })?;
            threads.push(thread);
        }
        Ok(Self { mailboxes, counters, threads, ended, running: count })
    }

    fn send_all(&self, message: impl Fn() -> Message) {
        for mailbox in &self.mailboxes {
            // A lane that has ended needs no telling.
            let _ = mailbox.send(message());
        }
    }

    fn join(&mut self) -> Result<()> {
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                bail!("a lane panicked");
            }
        }
        Ok(())
    }
}

/// The life of a lane's thread.
fn lane(core: Option<usize>, setup: Setup, inbox: &Inbox<Message>) -> std::io::Result<()> {
    if let Some(core) = core {
        // Not being allowed to is no reason not to serve.
        let _ = sealane_sys::cpu::pin(core);
    }
    let mut cx = sealane_lane::Context::new()?;
    let proxy = Proxy::new(setup, &mut cx)?;
    sealane_lane::run(cx, proxy, inbox)?;
    Ok(())
}
