//! The assembly: starts what a checked configuration asks for, and keeps it going until told to stop.
//!
//! The one place that names everything: sockets, snapshots, lanes, ticket keys, metrics, access log, admin, signals,
//! a predecessor and a successor.

pub mod access_log_writer;
mod changed_files;
pub(crate) mod changes;
pub(crate) mod commands;
mod execute;
pub mod inspection;
mod keep;
mod lanes;
pub(crate) mod listeners;
pub(crate) mod memory;
mod passwords;
pub mod recording;
mod reload;
pub(crate) mod shortage;
pub mod signals;
pub mod sockets;
mod successor;
pub mod syn_tls;
mod syslog;
pub(crate) mod systemd;
mod tunnel_port;
pub(crate) mod user;
pub(crate) mod watch;

use crate::admin::{self, Admin, Takers};
use crate::certificates::automatic::{self, Automatic};
use crate::certificates::on_demand::OnDemandCertificates;
use crate::certificates::stapling::{self, Stapling};
use crate::certificates::ticket_keys::TicketRing;
use crate::certificates::validity::InvalidCertificates;
use crate::certificates::watch::{FileSet, FileWatch};
use crate::config::{AccessLogTarget, AdminTls, AdminTlsFiles, Config, Mode, Print, TicketKeySource};
use crate::directory;
use crate::dns;
use crate::fips;
use crate::fleet::Fleet;
use crate::health::LiveUpstreams;
use crate::log;
use crate::metrics::LaneMetrics;
use crate::metrics::latency::Latencies;
use crate::metrics::status::StatusRegistry;
use crate::metrics::talkers::TalkersWatch;
use crate::resolve::{self, SentCertificate};
use crate::run::access_log_writer::AccessLog;
use crate::run::changes::{Changes, PendingChange};
use crate::run::commands::{Command, Commands, PendingCommand};
use crate::run::lanes::{LaneEvent, Lanes};
use crate::run::listeners::Listeners;
use crate::run::memory::MemoryWatch;
use crate::run::reload::{Asked, MAX_VALIDATIONS, Step, Written, print_of_file};
use crate::run::shortage::ShortageWatch;
use crate::run::signals::{Event, Signals};
use crate::run::systemd::Notifier;
use crate::run::watch::{Look, Watched};
use crate::self_check::few_open_files;
use crate::telemetry::Telemetry;
use crate::traces::Traces;
use crate::upgrade::handover::{self, InheritedState, Program};
use crate::upgrade::remaining::RemainingFile;
use crate::upgrade::stored_tunnel;
use crate::vpn::{SharedPort, Vpn};
use anyhow::{Context as _, Result, bail};
use sealane_lane::Published;
use sealane_proxy::snapshot::Snapshot;
use sealane_proxy::{Channel, Message};
use sealane_sys::privileges;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

/// How long the access log's last lines may take.
const LOG_TIMEOUT: Duration = Duration::from_secs(2);
/// The same of the last traces.
const TRACES_TIMEOUT: Duration = Duration::from_secs(2);
/// How often files are looked at when changes of them are to be noticed.
const WATCH_EVERY: Duration = Duration::from_secs(2);

/// What the started gateway serves, for the caller to print.
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
    let scheme = if config.admin_tls.is_some() { "https" } else { "http" };
    serve_with(config, |ready| {
        for address in &ready.listeners {
            log::info!("listening on {address}, {lanes} lane{}", if lanes == 1 { "" } else { "s" });
        }
        if let Some(admin) = ready.admin {
            log::info!("status at {scheme}://{admin}/, metrics at {scheme}://{admin}/metrics");
        }
    })
}

/// Serves until told to stop; `ready` is called once everything is listened on.
pub fn serve_with(config: Config, ready: impl FnOnce(&Ready)) -> Result<()> {
    log::start(config.log);
    if let Some(module) = fips::module() {
        if let Err(why) = fips::check() {
            bail!("the FIPS module {module} is not in force: {why}");
        }
        log::info!("cryptography by the FIPS module {module}");
    }
    let program = Program::this()?;
    let inherited_state = handover::receive()?;
    if let Some(warning) = few_open_files(sockets::raise_open_files()) {
        log::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async move {
        let mut running = Running::start(config, program, inherited_state).await?;
        ready(&running.ready());
        let result = running.run().await;
        if let Some(file) = &running.remaining {
            file.write(None);
        }
        if let Some(log) = running.log.take() {
            log.finish(LOG_TIMEOUT);
        }
        running.traces.finish(TRACES_TIMEOUT).await;
        running.telemetry.finish(TRACES_TIMEOUT).await;
        running.admin.close().await;
        running.lanes.log_records(&running.metrics);
        {
            let listeners = &running.config.listeners;
            let over_udp = listeners.iter().any(|listener| listener.mode == Mode::Udp);
            let over_tcp = !over_udp || listeners.iter().any(|listener| listener.mode != Mode::Udp);
            log::info!("{}", running.metrics.summary(over_tcp, over_udp));
        }
        log::finish();
        anyhow::Ok((result, running.vpn, running.notifier))
    });
    let result = ended.and_then(|(result, vpn, notifier)| {
        vpn.iter().for_each(|vpn| stored_tunnel::store(vpn, &notifier));
        result
    });
    // Nothing that still waits (for a successor that says nothing) delays the end.
    runtime.shutdown_background();
    result
}

/// Everything that is up.
struct Running {
    config: Config,
    program: Program,
    upstreams: LiveUpstreams,
    listeners: Listeners,
    ring: TicketRing,
    published: Arc<Published<Snapshot>>,
    lanes: Lanes,
    log: Option<AccessLog>,
    metrics: Arc<LaneMetrics>,
    status: Arc<StatusRegistry>,
    admin: Admin,
    notifier: Notifier,
    watched: Option<Watched>,
    /// Certificates and lists that are taken without a reload.
    files: FileWatch,
    automatic: Automatic,
    /// Certificates that were issued because clients had asked for them.
    on_demand: OnDemandCertificates,
    stapling: Stapling,
    /// Certificates of changed files that are not valid now.
    invalid: InvalidCertificates,
    invalid_admin: InvalidCertificates<AdminTlsFiles, AdminTls>,
    /// Certificates that operators have sent, by name.
    sent: BTreeMap<String, SentCertificate>,
    /// What is shared with other gateways.
    fleet: Fleet,
    traces: Traces,
    telemetry: Telemetry,
    /// Files that a configuration named which could not be read: the next try may be better once one of them is there.
    wanted: Vec<PathBuf>,
    signals: Signals,
    commands: Commands,
    requested: mpsc::Receiver<PendingCommand>,
    /// Changes that the API asks for.
    asked_for: mpsc::Receiver<PendingChange>,
    /// For whom a configuration is being read, and who waits for theirs.
    loading: Option<Asked>,
    waiting: VecDeque<Asked>,
    /// A configuration that is in force, and is being written into the file. Meanwhile nothing else is read.
    writing: Option<Written>,
    tell_loaded: mpsc::Sender<Step>,
    loaded: mpsc::Receiver<Step>,
    /// How the configuration's file was when it was read the last time, with success.
    file_print: Print,
    /// How many configurations may be checked for the API at a time.
    validating: Arc<Semaphore>,
    /// A command to upgrade that waits for the successor.
    upgrading: Option<PendingCommand>,
    /// The channel to the successor, and the listeners whose UDP sockets stay in this process.
    successor_channel: Option<(Arc<Channel>, Arc<[SocketAddr]>)>,
    draining: bool,
    /// Another process serves.
    has_successor: bool,
    /// When this process ends at the latest, in seconds since 1970, if it drains.
    drains_until: Option<u64>,
    /// Where processes write down what they still finish.
    remaining: Option<RemainingFile>,
    /// What the service manager was told of it.
    said_remaining: String,
    vpn: Option<Vpn>,
}

impl Running {
    /// Opens sockets and files, then changes to the configured user, then starts the lanes.
    async fn start(mut config: Config, program: Program, mut inherited_state: InheritedState) -> Result<Self> {
        let signals = Signals::new()?;
        let run_as = user::to_become(&config).cloned();
        let keep = user::kept_capabilities(&config);
        if run_as.is_some() {
            // Before there are other threads, which would keep what they may gain.
            privileges::gain_nothing_more(keep).context("cannot drop privileges")?;
        }
        let notifier = Notifier::from_environment();
        let mut sent = BTreeMap::new();
        reload::take_kept(&mut sent, reload::read_kept(config.admin_storage.clone()).await);
        config.set_sent_certificates(&sent.values().cloned().collect::<Vec<_>>());
        let on_demand = OnDemandCertificates::of_folder(&config).await;
        config.set_on_demand_certificates(&on_demand.certificates(&config));
        let mut ring = TicketRing::new(config.ticket_lifetime)?;
        if let Some(keys) = inherited_state.tickets.take() {
            ring.inherit(&keys);
        }
        go_by(&mut ring, &config)?;
        let mut fleet = Fleet::default();
        fleet.configure(&config)?;
        let latencies = Arc::new(Latencies::new(config.lanes));
        let mut listeners = Listeners::of(&mut inherited_state, latencies.clone());
        listeners.set_shared(&fleet);
        let mut traces = Traces::default();
        traces.configure(&config);
        listeners.set_traces(traces.rules());
        let port = SharedPort::default();
        listeners.set_tunnel(config.tunnel.is_some().then(|| tunnel_port::of(port.clone())));
        let mut snapshot = listeners.snapshot(&config, &ring, 1)?;
        // Clients that come meanwhile wait to be accepted. A server whose name does not resolve is down until it does.
        dns::inherit(std::mem::take(&mut inherited_state.names), std::mem::take(&mut inherited_state.services));
        for warning in resolve::names(&mut config, dns::LOAD_LIMIT).await {
            log::warn!("{warning}");
        }
        let upstreams = LiveUpstreams::new(&config, latencies.clone());
        snapshot.upstreams = upstreams.current();
        for address in listeners.forget_inherited() {
            log::warn!(
                "the service manager or the old process passed a socket for {address}, but no listener has this \
                 address: the socket is closed"
            );
        }
        let log = AccessLog::start(&config.access_log, config.rotation, config.lanes, run_as.as_ref());
        let log = log.with_context(|| match &config.access_log {
            AccessLogTarget::File(path) => format!("cannot write the access log {}", path.display()),
            _ => "cannot start the access log".to_owned(),
        })?;
        let (log, lane_logs) = match log {
            Some((log, lanes)) => (Some(log), lanes.into_iter().map(Some).collect()),
            None => (None, (0..config.lanes).map(|_| None).collect()),
        };
        let mut opened = admin::open(&config, inherited_state.admin.take(), inherited_state.is_successor())?;
        if let Some(run_as) = &run_as {
            opened.give(run_as)?;
            user::give_tunnel_files(&config, run_as);
        }
        // Its interface takes more rights than the configured user has.
        let tunnel = config.tunnel.take();
        // A predecessor's is taken at the very end, since its packets wait meanwhile.
        let (vpn, inherits) = match tunnel {
            Some(settings) if inherited_state.has_tunnel() => (None, Some(settings)),
            Some(settings) => {
                let settings = directory::with_directory(*settings);
                (Some(stored_tunnel::start(settings, inherited_state.stored_tunnel.take(), &notifier, &port)?), None)
            }
            None => (None, None),
        };
        user::become_user(&config, keep)?;
        let published = Published::new(snapshot);
        let lanes = Lanes::start(&published, lane_logs).await?;
        fleet.attach(lanes.mailboxes());
        for predecessor in listeners.predecessors().iter() {
            lanes.listen_to(predecessor.channel.clone(), listeners.ids())?;
        }
        upstreams.start(lanes.waker())?;
        let metrics = LaneMetrics::new(lanes.counters.clone(), log.as_ref().map(AccessLog::stats));
        let metrics = Arc::new(metrics.with_upstreams(upstreams.clone()).with_latencies(latencies));
        let status = Arc::new(StatusRegistry::new(metrics.clone()));
        status.configured(&config, &listeners, 1);
        status.is_of_file(true);
        let (commands, requested) = Commands::channel();
        let (changes, asked_for) = Changes::channel();
        let admin = opened.serve(&metrics, &status, &Takers { commands: commands.clone(), changes })?;
        admin.answer_to(&config.admin_names);
        let sets = FileSet::of(&config);
        let paths = sets.iter().flat_map(FileSet::all).chain(&config.files).cloned().collect();
        let (read, look) = (Look::of_read(std::mem::take(&mut config.prints)), Look::bounded(paths).await);
        let file_print = print_of_file(&config.origin, &read);
        let watched = config.reload_on_change.then(|| Watched::new(config.files.clone(), &read, &look));
        let files = FileWatch::start(sets, &read, &look);
        let mut automatic = Automatic::default();
        automatic.configure(&config, &fleet);
        status.automatic(automatic.reporter());
        let mut stapling = Stapling::default();
        stapling.reconfigure(&config);
        status.stapling(stapling.reporter());
        status.lists(stapling.list_reporter());
        status.fleet(fleet.reporter());
        status.traces(traces.reporter());
        let remaining = inherited_state.remaining.take().or_else(RemainingFile::new);
        status.remaining(remaining.clone());
        let mut telemetry = Telemetry::default();
        telemetry.configure(&config, &metrics, &status);
        status.telemetry(telemetry.reporter());
        let inherits = inherits
            .map(|settings| Vpn::prepare(directory::with_directory(*settings), inherited_state.take_tunnel()?))
            .transpose()?;
        // From here on the predecessor does not come back: packets may be sealed with its keys.
        if let Some(predecessor) = inherited_state.announce() {
            let commands = commands.clone();
            tokio::spawn(async move {
                let _ = tokio::task::spawn_blocking(|| predecessor.reads_no_more()).await;
                commands.tell(Command::ReadUdp).await;
            });
        }
        let vpn = match inherits {
            Some(prepared) => Some(prepared.start(&port)?),
            None => vpn,
        };
        vpn.iter().for_each(|vpn| metrics.set_tunnel(vpn.registry()));
        tunnel_port::tell(&config, &listeners);
        if let Some(note) = syn_tls::note(&config) {
            log::warn!("{note}");
        }
        notifier.ready(&status.sentence());
        let (tell_loaded, loaded) = mpsc::channel(1);
        let mut running = Self {
            config,
            program,
            upstreams,
            listeners,
            ring,
            published,
            lanes,
            log,
            metrics,
            status,
            admin,
            notifier,
            watched,
            files,
            automatic,
            on_demand,
            stapling,
            invalid: InvalidCertificates::default(),
            invalid_admin: InvalidCertificates::default(),
            sent,
            fleet,
            traces,
            telemetry,
            wanted: Vec::new(),
            signals,
            commands,
            requested,
            asked_for,
            loading: None,
            waiting: VecDeque::new(),
            writing: None,
            file_print,
            validating: Arc::new(Semaphore::new(MAX_VALIDATIONS)),
            tell_loaded,
            loaded,
            upgrading: None,
            successor_channel: None,
            draining: false,
            has_successor: false,
            drains_until: None,
            remaining,
            said_remaining: String::new(),
            vpn,
        };
        running.report_demands();
        Ok(running)
    }

    fn ready(&self) -> Ready {
        let listeners = self.config.listeners.iter().filter_map(|l| self.listeners.bound_of(l)).collect();
        Ready { listeners, admin: self.admin.address() }
    }

    /// Handles signals, commands, files and time until the lanes are done.
    async fn run(&mut self) -> Result<()> {
        let mut rotation = next_rotation(&self.ring);
        let mut heartbeat = every(self.notifier.heartbeat);
        let mut memory_look = every(Some(memory::LOOK_EVERY));
        let memory = MemoryWatch::new(self.lanes.short_of_memory.clone());
        let mut shortages = ShortageWatch::default();
        let mut talkers = TalkersWatch::default();
        let mut look = every(self.watched.as_ref().map(|_| WATCH_EVERY));
        // One look at a time.
        let (tell_looked, mut looked) = mpsc::channel(1);
        let mut looking = false;
        loop {
            tokio::select! {
                event = self.lanes.events.recv() => match event {
                    Some(LaneEvent::Up) => {}
                    Some(LaneEvent::Ended(slot, Err(e))) => bail!("lane {slot} failed: {e}"),
                    Some(LaneEvent::Ended(slot, Ok(()))) if !self.draining => {
                        bail!("lane {slot} ended unexpectedly; this is a bug")
                    }
                    Some(LaneEvent::Ended(..)) => {
                        self.lanes.running -= 1;
                        if self.lanes.running == 0 {
                            return self.lanes.join();
                        }
                    }
                    None => return self.lanes.join(),
                },
                event = self.signals.next() => {
                    let command = match event {
                        Event::Drain => Command::Drain,
                        Event::Quit => Command::Quit,
                        Event::Reload => Command::Reload,
                        Event::Reopen => Command::Reopen,
                        Event::Upgrade => Command::Upgrade,
                    };
                    // Commands are executed one after the other; a full channel delays signals, it loses none.
                    let commands = self.commands.clone();
                    tokio::spawn(async move { commands.tell(command).await });
                }
                Some(pending) = self.requested.recv() => self.execute(pending),
                Some(pending) = self.asked_for.recv() => self.change(pending)?,
                Some(step) = self.loaded.recv() => {
                    let watching = self.watched.is_some();
                    self.go_on(step);
                    // It goes by the age of the key, so that reloads do not put it off.
                    rotation = next_rotation(&self.ring);
                    // Not with each reload: reloads that come often would put it off for ever.
                    if self.watched.is_some() != watching {
                        look = every(self.watched.as_ref().map(|_| WATCH_EVERY));
                    }
                }
                () = &mut rotation => {
                    self.ring.rotate()?;
                    rotation = next_rotation(&self.ring);
                    self.publish_keys()?;
                }
                given = self.fleet.next() => {
                    self.ring.take_from_fleet(given.keys());
                    rotation = next_rotation(&self.ring);
                    self.publish_keys()?;
                }
                _ = memory_look.tick() => {
                    let used = memory.look(self.config.limits.max_memory);
                    if used.short {
                        self.lanes.send_all(|| Message::FreeMemory);
                    }
                    self.metrics.set_memory(used);
                    self.lanes.log_records(&self.metrics);
                    self.status.look();
                    self.note_remaining();
                    self.take_valid()?;
                    let (wanted, count, now) = (self.status.wants_talkers(), self.lanes.running, std::time::Instant::now());
                    if let Some(answers) = talkers.tick(wanted, count, now, || self.lanes.ask_talkers()) {
                        self.metrics.add_talkers(answers);
                    }
                    log::tell_pending();
                    for line in shortages.look(self.metrics.shortages(), std::time::Instant::now()) {
                        log::warn!("{line}");
                    }
                }
                _ = heartbeat.tick() => self.notifier.alive(),
                _ = look.tick(), if !looking => {
                    if let Some(watched) = &self.watched {
                        looking = true;
                        let (look, tell) = (Look::bounded(watched.files().to_vec()), tell_looked.clone());
                        tokio::spawn(async move { tell.send(look.await).await });
                    }
                }
                Some(look) = looked.recv() => {
                    looking = false;
                    if self.watched.as_mut().is_some_and(|watched| watched.changed(&look)) && !self.draining {
                        // A command like any other, so that what becomes of it is said.
                        let commands = self.commands.clone();
                        tokio::spawn(async move { commands.tell(Command::ReloadChanged).await });
                    }
                }
                read = self.files.next() => self.take_files(read)?,
                read = self.on_demand.next() => self.take_on_demand(read)?,
                event = self.stapling.next() => match event {
                    stapling::Event::Responses => self.take_staples()?,
                    stapling::Event::Lists => self.files.look_now(),
                },
                event = self.automatic.next() => match event {
                    automatic::Event::Written => self.files.look_now(),
                    automatic::Event::OnDemand(wanted) => self.on_demand.want(&self.config, wanted),
                    automatic::Event::Challenges(version, challenges) => {
                        self.listeners.set_challenges(challenges.clone());
                        // Everything else stays as it is, and with it what lanes have made of it.
                        let mut snapshot = (*self.published.newest()).clone();
                        snapshot.generation += 1;
                        snapshot.challenges = challenges;
                        self.publish(snapshot);
                        self.automatic.published(version);
                    }
                },
                // Other servers: names have resolved to something new.
                () = self.upstreams.changed() => {
                    let generation = self.published.newest().generation + 1;
                    let snapshot = self.listeners.snapshot(&self.config, &self.ring, generation)?;
                    self.publish(snapshot);
                }
            }
        }
    }

    /// Tells lanes where they report names that have no certificate.
    fn report_demands(&mut self) {
        let on_demand = self.automatic.on_demand();
        if on_demand.is_none() && self.published.newest().on_demand.is_none() {
            return;
        }
        self.listeners.set_on_demand(on_demand.clone());
        let mut snapshot = (*self.published.newest()).clone();
        snapshot.generation += 1;
        snapshot.on_demand = on_demand;
        self.publish(snapshot);
    }

    fn publish(&self, mut snapshot: Snapshot) {
        snapshot.upstreams = self.upstreams.current();
        self.published.publish(snapshot);
        self.lanes.wake();
    }
}

/// Has ticket keys come from where a configuration says.
fn go_by(ring: &mut TicketRing, config: &Config) -> Result<()> {
    match &config.ticket_keys {
        TicketKeySource::Own => ring.make_own()?,
        TicketKeySource::File(_, keys) => ring.take_from_file(keys.keys()),
        TicketKeySource::Store => ring.leave_file()?,
    }
    Ok(())
}

/// Waits until the ticket keys are to be replaced.
fn next_rotation(ring: &TicketRing) -> Pin<Box<tokio::time::Sleep>> {
    Box::pin(tokio::time::sleep(ring.remaining()))
}

/// Ticks every so often, the first time after that time; never for `None`.
fn every(period: Option<Duration>) -> tokio::time::Interval {
    // Thirty years: as good as never, and no special case.
    let period = period.unwrap_or(Duration::from_secs(30 * 365 * 86_400)).max(Duration::from_millis(1));
    tokio::time::interval_at(Instant::now() + period, period)
}
