//! The assembly: starts what a checked configuration asks for, and keeps it going until told to stop.
//!
//! The one place that names everything: sockets, snapshots, lanes, ticket keys, metrics, access log, admin, signals,
//! a predecessor and a successor.

pub mod access_log_writer;
pub(crate) mod commands;
pub mod inspection;
mod lanes;
pub(crate) mod listeners;
pub(crate) mod memory;
mod passwords;
pub mod recording;
pub(crate) mod shortage;
pub mod signals;
pub mod sockets;
pub mod syn_tls;
mod syslog;
pub(crate) mod systemd;
pub(crate) mod user;
pub(crate) mod watch;

use crate::admin::{self, Admin};
use crate::certificates::automatic::{self, Automatic};
use crate::certificates::stapling::{self, Stapling};
use crate::certificates::ticket_keys::TicketRing;
use crate::certificates::watch::{FileSet, FileWatch, Reread};
use crate::config::{
    AccessLogTarget, CertificateFiles, Config, Loaded as Certificate, Origin, TicketKeySource, Warning,
};
use crate::dns;
use crate::fleet::Fleet;
use crate::health::LiveUpstreams;
use crate::log::{self, LogSettings};
use crate::metrics::LaneMetrics;
use crate::metrics::latency::Latencies;
use crate::metrics::status::StatusRegistry;
use crate::metrics::talkers::TalkersWatch;
use crate::resolve::{self, Places};
use crate::run::access_log_writer::AccessLog;
use crate::run::commands::{Command, Commands, PendingCommand, Reply};
use crate::run::lanes::{LaneEvent, Lanes};
use crate::run::listeners::Listeners;
use crate::run::memory::MemoryWatch;
use crate::run::shortage::ShortageWatch;
use crate::run::signals::{Event, Signals};
use crate::run::systemd::Notifier;
use crate::run::watch::{Look, Watched};
use crate::telemetry::Telemetry;
use crate::traces::Traces;
use crate::upgrade::handover::{self, HandoverState, InheritedState, Program, Successor};
use crate::upgrade::stored_tunnel;
use crate::vpn::{Steer, Vpn};
use anyhow::{Context as _, Result, bail};
use sealane_lane::Published;
use sealane_proxy::snapshot::Snapshot;
use sealane_proxy::{Channel, Message, QuicPredecessor, QuicSuccessor};
use sealane_sys::privileges;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How long the access log's last lines may take.
const LOG_TIMEOUT: Duration = Duration::from_secs(2);
/// The same of the last traces.
const TRACES_TIMEOUT: Duration = Duration::from_secs(2);
/// Processes before this one to whom a successor can pass on what is theirs; those before them end their connections.
const MAX_PREDECESSORS: usize = 16;
const NO_UPGRADE_NOW: &str = "not upgraded: another upgrade or the stop of the gateway is in progress";
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
    serve_with(config, |ready| {
        for address in &ready.listeners {
            log::info!("listening on {address}, {lanes} lane{}", if lanes == 1 { "" } else { "s" });
        }
        if let Some(admin) = ready.admin {
            log::info!("status at http://{admin}/, metrics at http://{admin}/metrics");
        }
    })
}

/// Serves until told to stop; `ready` is called once everything is listened on.
pub fn serve_with(config: Config, ready: impl FnOnce(&Ready)) -> Result<()> {
    log::start(config.log);
    let program = Program::this()?;
    let inherited_state = handover::receive()?;
    sockets::raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async move {
        let mut running = Running::start(config, program, inherited_state).await?;
        ready(&running.ready());
        let result = running.run().await;
        if let Some(log) = running.log.take() {
            log.finish(LOG_TIMEOUT);
        }
        running.traces.finish(TRACES_TIMEOUT).await;
        running.telemetry.finish(TRACES_TIMEOUT).await;
        running.admin.close().await;
        running.lanes.log_records(&running.metrics);
        log::info!("{}", running.metrics.summary());
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

/// A configuration that was read beside everything else that control does.
struct Loaded {
    config: Result<(Config, Vec<Warning>), String>,
    /// The files that one with errors names: when they come, it is read again.
    wanted: Vec<PathBuf>,
    /// The files as they were before and after.
    before: Look,
    after: Look,
}

/// Reads a configuration again, for a reload of what is `running` here, or for a successor. Nothing here waits without a limit,
/// and heartbeats and commands go on meanwhile.
async fn load(origin: Origin, files: Vec<PathBuf>, running: Option<Places>) -> Loaded {
    // As the files are before they are read: what changes meanwhile has changed since.
    let before = Look::bounded(files.clone()).await;
    let mut config = resolve::load(&origin).await;
    let refused = match (&config, &running) {
        (Ok((read, _)), Some(running)) => Some(resolve::admin_refused(read, running)),
        _ => None,
    };
    if let Some(refused) = refused {
        config = refused.await.and(config);
    }
    // Of files that were read, it is known which state was read.
    let read = config.as_mut().map_or_else(|_| HashMap::new(), |(config, _)| std::mem::take(&mut config.prints));
    let before = before.with(Look::of_read(read));
    let wanted = config.as_ref().err().map_or_else(Vec::new, |e| e.files.clone());
    let named = config.as_ref().map_or(&wanted, |(config, _)| &config.files);
    let sets = config.as_ref().map_or_else(|_| Vec::new(), |(config, _)| FileSet::of(config));
    let paths = sets.iter().flat_map(FileSet::all).chain(named).cloned();
    let after = Look::bounded(files.into_iter().chain(paths).collect()).await;
    if let (Ok((config, warnings)), Some(_)) = (&mut config, running) {
        warnings.extend(resolve::names(config, dns::LOAD_LIMIT).await);
    }
    Loaded { config: config.map_err(|e| e.to_string()), wanted, before, after }
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
    stapling: Stapling,
    /// What is shared with other gateways.
    fleet: Fleet,
    traces: Traces,
    telemetry: Telemetry,
    /// Files that a configuration named which could not be read: the next try may be better once one of them is there.
    wanted: Vec<PathBuf>,
    signals: Signals,
    commands: Commands,
    requested: mpsc::Receiver<PendingCommand>,
    /// The command for which a configuration is being read, and commands that wait for theirs.
    loading: Option<PendingCommand>,
    waiting: VecDeque<PendingCommand>,
    tell_loaded: mpsc::Sender<Loaded>,
    loaded: mpsc::Receiver<Loaded>,
    /// A command to upgrade that waits for the successor.
    upgrading: Option<PendingCommand>,
    /// The channel to the successor, and the listeners whose UDP sockets stay in this process.
    successor_channel: Option<(Arc<Channel>, Arc<[SocketAddr]>)>,
    draining: bool,
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
        let mut ring = TicketRing::new(config.ticket_lifetime)?;
        if let Some(keys) = inherited_state.tickets.take() {
            ring.inherit(&keys);
        }
        go_by(&mut ring, &config)?;
        let mut fleet = Fleet::default();
        fleet.configure(&config)?;
        let latencies = Arc::new(Latencies::new(config.lanes));
        let mut listeners = Listeners::of(&mut inherited_state, latencies.clone());
        listeners.set_shared_tickets(fleet.tickets());
        let mut traces = Traces::default();
        traces.configure(&config);
        listeners.set_traces(traces.rules());
        let mut snapshot = listeners.snapshot(&config, &ring, 1)?;
        // Clients that come meanwhile wait to be accepted. A server whose name does not resolve is down until it does.
        dns::inherit(std::mem::take(&mut inherited_state.names), std::mem::take(&mut inherited_state.services));
        for warning in resolve::names(&mut config, dns::LOAD_LIMIT).await {
            log::warn!("{warning}");
        }
        let upstreams = LiveUpstreams::new(&config, latencies.clone());
        snapshot.upstreams = upstreams.current();
        for address in listeners.forget_inherited() {
            log::warn!("no listener is configured for {address}, which was passed to this process");
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
        }
        // Its interface takes more rights than the configured user has.
        let tunnel = config.tunnel.take();
        // A predecessor's is taken at the very end, since its packets wait meanwhile.
        let (vpn, inherits) = match tunnel {
            Some(settings) if inherited_state.has_tunnel() => (None, Some(settings)),
            Some(settings) => {
                (Some(stored_tunnel::start((*settings).into(), inherited_state.stored_tunnel.take(), &notifier)?), None)
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
        let (commands, requested) = Commands::channel();
        let admin = opened.serve(&metrics, &status, &commands)?;
        admin.answer_to(&config.admin_names);
        let sets = FileSet::of(&config);
        let paths = sets.iter().flat_map(FileSet::all).chain(&config.files).cloned().collect();
        let (read, look) = (Look::of_read(std::mem::take(&mut config.prints)), Look::bounded(paths).await);
        let watched = config.reload_on_change.then(|| Watched::new(config.files.clone(), &read, &look));
        let files = FileWatch::start(sets, &read, &look);
        let mut automatic = Automatic::default();
        automatic.configure(&config);
        status.automatic(automatic.reporter());
        let mut stapling = Stapling::default();
        stapling.reconfigure(&config);
        status.stapling(stapling.reporter());
        status.lists(stapling.list_reporter());
        status.fleet(fleet.reporter());
        status.traces(traces.reporter());
        let mut telemetry = Telemetry::default();
        telemetry.configure(&config, &metrics, &status);
        status.telemetry(telemetry.reporter());
        let inherits =
            inherits.map(|settings| Vpn::prepare((*settings).into(), inherited_state.take_tunnel()?)).transpose()?;
        // From here on the predecessor does not come back: packets may be sealed with its keys.
        if let Some(predecessor) = inherited_state.announce() {
            let commands = commands.clone();
            tokio::spawn(async move {
                let _ = tokio::task::spawn_blocking(|| predecessor.reads_no_more()).await;
                commands.tell(Command::ReadUdp).await;
            });
        }
        let vpn = match inherits {
            Some(prepared) => Some(prepared.start()?),
            None => vpn,
        };
        vpn.iter().for_each(|vpn| metrics.set_tunnel(vpn.registry()));
        if let Some(note) = syn_tls::note(&config) {
            log::warn!("{note}");
        }
        notifier.ready(&status.sentence());
        let (tell_loaded, loaded) = mpsc::channel(1);
        Ok(Self {
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
            stapling,
            fleet,
            traces,
            telemetry,
            wanted: Vec::new(),
            signals,
            commands,
            requested,
            loading: None,
            waiting: VecDeque::new(),
            tell_loaded,
            loaded,
            upgrading: None,
            successor_channel: None,
            draining: false,
            vpn,
        })
    }

    fn ready(&self) -> Ready {
        let listeners = self.config.listeners.iter().filter_map(|l| self.listeners.bound(l.address.ip()?)).collect();
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
                Some(loaded) = self.loaded.recv() => {
                    let watching = self.watched.is_some();
                    self.loaded(loaded);
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
                        tokio::spawn(async move { commands.tell(Command::Reload).await });
                    }
                }
                read = self.files.next() => self.take_files(read)?,
                event = self.stapling.next() => match event {
                    stapling::Event::Responses => self.take_staples()?,
                    stapling::Event::Lists => self.files.look_now(),
                },
                event = self.automatic.next() => match event {
                    automatic::Event::Written => self.files.look_now(),
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

    /// Publishes other ticket keys.
    fn publish_keys(&mut self) -> Result<()> {
        let generation = self.published.newest().generation + 1;
        let snapshot = self.listeners.snapshot(&self.config, &self.ring, generation)?;
        self.publish(snapshot);
        self.status.keys_rotated();
        Ok(())
    }

    /// Takes certificates and lists that were read again. What is refused leaves what is served.
    fn take_files(&mut self, read: Vec<Reread>) -> Result<()> {
        let mut new = HashMap::new();
        let (mut lists, mut tables, mut users) = (Vec::new(), Vec::new(), Vec::new());
        let (mut revoked, mut logs) = (HashMap::new(), HashMap::new());
        for read in read {
            match read {
                Reread::Certificate(files, Ok((loaded, warnings))) => {
                    // An authority may issue certificates for days: that they end soon is no news.
                    for warning in warnings.iter().filter(|_| !self.config.is_automatic(&files.cert)) {
                        log::warn!("{warning}");
                    }
                    log::info!("{} has changed: clients now get the new certificate", files.cert.display());
                    self.status.certificate_read(&files.cert, None);
                    new.insert(files, loaded);
                }
                Reread::Certificate(files, Err(errors)) => {
                    let shown = files.cert.display();
                    log::error!("{shown}: the certificate in use stays; the changed files are refused:\n{errors}");
                    self.status.certificate_read(&files.cert, Some(errors.to_string()));
                }
                Reread::AddressList(file, Ok(set)) => {
                    log::info!("{} has changed: the gateway now uses the new list of addresses", file.display());
                    self.status.list_read(true);
                    lists.push((file, set));
                }
                Reread::AddressList(file, Err(errors)) => {
                    log::error!("{}: the list in use stays; the changed file is refused:\n{errors}", file.display());
                    self.status.list_read(false);
                }
                Reread::Redirects(file, Ok(table)) => {
                    let (file_shown, entries) = (file.display(), table.len());
                    log::info!("{file_shown} has changed: the gateway now uses the new table of {entries} redirects");
                    self.status.redirects_read(true);
                    tables.push((file, table));
                }
                Reread::Redirects(file, Err(errors)) => {
                    log::error!("{}: the table in use stays; the changed file is refused:\n{errors}", file.display());
                    self.status.redirects_read(false);
                }
                Reread::RevocationLists(file, Ok(read)) => {
                    let name = self.config.name_of_lists(&file);
                    log::info!("{name} has changed: the gateway now uses the new revocation list");
                    self.status.revocation_lists_read(true);
                    revoked.insert(file, read);
                }
                Reread::RevocationLists(file, Err(errors)) => {
                    let name = self.config.name_of_lists(&file);
                    log::error!("{name}: the revocation list in use stays; the changed file is refused:\n{errors}");
                    self.status.revocation_lists_read(false);
                }
                Reread::LogList(file, Ok(read)) => {
                    log::info!(
                        "{} has changed: the gateway now uses the new list of {} logs",
                        file.display(),
                        read.len()
                    );
                    self.status.log_list_read(true);
                    logs.insert(file, read);
                }
                Reread::LogList(file, Err(errors)) => {
                    log::error!("{}: the list in use stays; the changed file is refused:\n{errors}", file.display());
                    self.status.log_list_read(false);
                }
                Reread::Users(file, Ok(read)) => {
                    log::info!("{} has changed: the gateway now uses the new list of users", file.display());
                    self.status.users_read(true);
                    users.push((file, read));
                }
                Reread::TicketKeys(file, Ok(keys)) => {
                    log::info!("{} has changed: the gateway now uses the new ticket keys", file.display());
                    self.status.ticket_keys_read(true);
                    self.ring.take_from_file(keys.keys());
                    self.config.ticket_keys = TicketKeySource::File(file, keys);
                    self.publish_keys()?;
                }
                Reread::TicketKeys(file, Err(errors)) => {
                    log::error!("{}: the keys in use stay; the changed file is refused:\n{errors}", file.display());
                    self.status.ticket_keys_read(false);
                }
                Reread::Users(file, Err(errors)) => {
                    log::error!("{}: the users in use stay; the changed file is refused:\n{errors}", file.display());
                    self.status.users_read(false);
                }
            }
        }
        if !lists.is_empty() || !tables.is_empty() || !users.is_empty() {
            lists.into_iter().for_each(|(file, set)| self.config.access.replace(&file, set));
            tables.into_iter().for_each(|(file, table)| self.config.redirects.replace(&file, &table));
            users.into_iter().for_each(|(file, read)| self.config.access.replace_users(&file, read));
            // Everything else stays as it is, and with it what lanes have made of it. It holds while the gateway drains, too.
            let mut snapshot = (*self.published.newest()).clone();
            snapshot.generation += 1;
            snapshot.access = self.config.access.rules().clone();
            snapshot.redirects = self.config.redirects.tables().clone();
            self.publish(snapshot);
        }
        let verified_anew = !revoked.is_empty() || !logs.is_empty();
        if verified_anew && !self.draining {
            self.config.replace_revocation_lists(&revoked);
            self.config.replace_log_lists(&logs);
            self.upstreams.replace_tls(&self.config);
            self.publish_configuration()?;
        }
        if new.is_empty() || self.draining {
            return Ok(());
        }
        let new = self.stapling.admit(&self.config, new, Instant::now());
        self.replace_certificates(&new)
    }

    /// Takes OCSP responses, and certificates that have waited for theirs.
    fn take_staples(&mut self) -> Result<()> {
        let ready = self.stapling.ready(Instant::now());
        self.replace_certificates(&ready)
    }

    /// Puts certificates in the place of those from the same files, and gives all of them their OCSP responses.
    fn replace_certificates(&mut self, new: &HashMap<CertificateFiles, Arc<Certificate>>) -> Result<()> {
        self.config.replace_certificates(new);
        // A replaced certificate is asked about.
        self.stapling.configure(&self.config);
        if !self.stapling.enter(&mut self.config) && new.is_empty() {
            return Ok(());
        }
        self.publish_configuration()
    }

    /// Publishes what has changed in the configuration without a reload.
    fn publish_configuration(&mut self) -> Result<()> {
        let generation = self.published.newest().generation + 1;
        let snapshot = self.listeners.snapshot(&self.config, &self.ring, generation)?;
        self.publish(snapshot);
        self.status.configured(&self.config, &self.listeners, generation);
        Ok(())
    }

    fn execute(&mut self, pending: PendingCommand) {
        match pending.command.clone() {
            Command::Drain => {
                self.say_stopping(self.config.drain_timeout);
                pending.reply(self.drain(None));
            }
            Command::Quit => {
                self.say_stopping(Duration::ZERO);
                self.draining = true;
                self.lanes.send_all(|| Message::Drain { limit: Duration::ZERO, successor: None });
                pending.reply(Ok(String::new()));
            }
            Command::Reopen => {
                if let Some(log) = &self.log {
                    log.reopen();
                }
                self.vpn.iter().for_each(Vpn::reopen_log);
                let said = match self.log.is_some() || self.vpn.is_some() {
                    true => "the log was opened again",
                    false => "there is no log file to reopen",
                };
                pending.reply(Ok(said.to_owned()));
            }
            Command::Reload | Command::Upgrade => self.load(pending),
            Command::Renew(name) => {
                let renewed = self.automatic.renew(name);
                tokio::spawn(async move { pending.answer(renewed.await) });
            }
            Command::Inspect { limit, older_than } => {
                let asked = self.lanes.inspect(limit, older_than);
                tokio::spawn(async move { pending.answer(inspection::answer(asked, limit).await) });
            }
            Command::Record(request) => recording::start(&request, pending, |recording| self.lanes.record(recording)),
            Command::Steer(steering) => {
                let Some(door) = self.vpn.as_ref().map(Vpn::door) else {
                    return pending.answer(Err("this gateway has no [tunnel]".to_owned()));
                };
                let what = match steering.what {
                    Steer::Kick { .. } => "disconnected",
                    Steer::Message(_) => "sent a message",
                };
                let whom = steering.whom.clone();
                tokio::spawn(async move {
                    let done = door.steer(*steering).await;
                    let line = |n| format!("{whom} was {what} ({n} connection{})", if n == 1 { "" } else { "s" });
                    pending.answer(done.map(line));
                });
            }
            Command::ReadUdp => {
                self.listeners.read_udp();
                let generation = self.published.newest().generation + 1;
                pending.reply(match self.listeners.snapshot(&self.config, &self.ring, generation) {
                    Ok(snapshot) => {
                        self.publish(snapshot);
                        Ok(String::new())
                    }
                    Err(e) => Err(format!("no HTTP/3: {e:#}")),
                });
            }
            Command::Succeeded(result) => {
                let reply = match result {
                    Ok((pid, read_no_more)) => {
                        self.notifier.main_process(pid);
                        // The path of the admin socket is the successor's now.
                        self.admin.leave();
                        self.listeners.leave_unix();
                        let successor = self.successor_channel.take().map(|(channel, not_read)| {
                            if let Err(e) = self.lanes.listen_to(channel.clone(), self.listeners.ids()) {
                                log::warn!("QUIC connections of this process end: {e}");
                            }
                            QuicSuccessor { channel, read_no_more, not_read }
                        });
                        self.drain(successor)
                            .map(|_| format!("process {pid} serves now; this process finishes its open requests"))
                    }
                    Err(e) => {
                        self.status.upgrade_failed();
                        Err(format!("not upgraded: {e}; this process continues"))
                    }
                };
                match self.upgrading.take() {
                    Some(asked) => asked.reply(reply),
                    None => pending.reply(reply),
                }
            }
        }
    }

    /// Once. After an upgrade it is the successor that serves, so the service does not stop.
    fn say_stopping(&self, drain: Duration) {
        if !self.draining {
            self.notifier.stopping(drain);
        }
    }

    fn drain(&mut self, successor: Option<QuicSuccessor>) -> Reply {
        self.draining = true;
        // A successor renews from now on.
        self.automatic.stop();
        self.stapling.stop();
        self.metrics.set_draining();
        let limit = self.config.drain_timeout;
        self.lanes.send_all(|| Message::Drain { limit, successor: successor.clone() });
        Ok(format!("finishing open requests for at most {} s; repeat to stop immediately", limit.as_secs()))
    }

    fn publish(&self, mut snapshot: Snapshot) {
        snapshot.upstreams = self.upstreams.current();
        self.published.publish(snapshot);
        self.lanes.wake();
    }

    /// Starts to read the configuration again, for a reload or an upgrade; [`Running::loaded`] goes on. One at a time.
    fn load(&mut self, pending: PendingCommand) {
        if self.loading.is_some() {
            // A signal while one like it waits already asks for nothing more.
            let same = |g: &PendingCommand| {
                matches!(g.command, Command::Upgrade) == matches!(pending.command, Command::Upgrade)
            };
            if pending.is_awaited() || !self.waiting.iter().any(same) {
                self.waiting.push_back(pending);
            }
            return;
        }
        let upgrade = matches!(pending.command, Command::Upgrade);
        match (upgrade, self.draining, &self.config.origin) {
            (false, true, _) => return pending.reply(Err("not reloaded: the gateway is stopping".to_owned())),
            (false, false, _) => self.notifier.reloading(),
            // It starts with the same arguments again.
            (true, _, Origin::CommandLine(_)) => return self.upgrade(pending, None),
            (true, true, _) => return pending.reply(Err(NO_UPGRADE_NOW.to_owned())),
            (true, false, Origin::File(_)) => {}
        }
        self.loading = Some(pending);
        let (origin, files) = (self.config.origin.clone(), self.looked_at());
        let running = (!upgrade).then(|| Places::of(&self.config));
        let tell = self.tell_loaded.clone();
        tokio::spawn(async move {
            // Nobody takes it only when the process ends.
            let _ = tell.send(load(origin, files, running).await).await;
        });
    }

    /// Goes on with what a configuration was read for.
    fn loaded(&mut self, loaded: Loaded) {
        let Some(pending) = self.loading.take() else { return };
        match (&pending.command, loaded.config) {
            // What the configuration's errors are is said on the standard error; the asker gets them too.
            (Command::Reload, config) => {
                let reply = self.reload(Loaded { config, ..loaded });
                pending.reply(reply);
            }
            // A configuration that is wrong is found here, where it costs nothing.
            (_, Err(e)) => {
                self.status.upgrade_failed();
                pending.reply(Err(format!("not upgraded: the configuration is wrong:\n{e}")));
            }
            (_, Ok((config, _))) => self.upgrade(pending, Some(&config)),
        }
        while let (None, Some(next)) = (&self.loading, self.waiting.pop_front()) {
            self.load(next);
        }
    }

    /// Takes a configuration in that was read again. All or nothing: an error leaves everything as it was.
    fn reload(&mut self, loaded: Loaded) -> Reply {
        if self.draining {
            return Err("not reloaded: the gateway is stopping".to_owned());
        }
        self.wanted = loaded.wanted;
        let result = loaded.config.map_err(anyhow::Error::msg).and_then(|(config, said)| self.try_reload(config, said));
        // What has been looked at, good or bad, is not looked at again until it changes again.
        self.watched =
            self.config.reload_on_change.then(|| Watched::new(self.named_files(), &loaded.before, &loaded.after));
        // After an error the certificates are those of before, and so is what is known of their files.
        if result.is_ok() {
            self.files = FileWatch::start(FileSet::of(&self.config), &loaded.before, &loaded.after);
        }
        let reply = match result {
            Ok(notes) if notes.is_empty() => Ok("reloaded".to_owned()),
            Ok(notes) => Ok(format!("reloaded; some changes need more than a reload:\n{}", notes.join("\n"))),
            Err(e) => Err(format!("not reloaded; the running configuration stays:\n{e:#}")),
        };
        self.status.reloaded(&reply);
        self.notifier.ready(&self.status.sentence());
        reply
    }

    /// The files whose changes matter.
    fn named_files(&self) -> Vec<PathBuf> {
        self.config.files.iter().chain(&self.wanted).cloned().collect()
    }

    /// What is looked at before and after a configuration is read.
    fn looked_at(&self) -> Vec<PathBuf> {
        let sets = FileSet::of(&self.config);
        sets.iter().flat_map(FileSet::all).cloned().chain(self.named_files()).collect()
    }

    /// Returns the settings that take effect later, for the response to the command.
    fn try_reload(&mut self, mut config: Config, warnings: Vec<Warning>) -> Result<Vec<String>> {
        for warning in warnings {
            log::warn!("{warning}");
        }
        let mut notes = Vec::new();
        for (name, differs) in [
            ("lanes", config.lanes != self.config.lanes),
            ("[admin] listen", config.admin != self.config.admin),
            ("[admin] socket", config.admin_socket != self.config.admin_socket),
            ("[log] access", config.access_log != self.config.access_log),
            ("[log] rotation", config.rotation != self.config.rotation),
            ("user", config.user != self.config.user),
        ] {
            if differs {
                // Only root can change to another user, and a successor starts as the user of this process.
                let only_start = name == "user" && !privileges::is_root();
                let until = if only_start { "start" } else { "start or upgrade" };
                notes.push(format!("{name} keeps its value until the next {until}"));
            }
        }
        config.lanes = self.config.lanes;
        config.admin = self.config.admin;
        config.admin_socket.clone_from(&self.config.admin_socket);
        config.access_log = self.config.access_log.clone();
        config.rotation = self.config.rotation;
        config.user.clone_from(&self.config.user);
        self.stapling.enter_new(&mut config);
        self.ring.set_lifetime(config.ticket_lifetime);
        if self.automatic.changes(&config) {
            // Its orders end.
            self.listeners.set_challenges(Arc::default());
        }
        let generation = self.published.newest().generation + 1;
        let snapshot = go_by(&mut self.ring, &config).and_then(|()| self.fleet.configure(&config)).and_then(|()| {
            self.listeners.set_shared_tickets(self.fleet.tickets());
            self.traces.configure(&config);
            self.listeners.set_traces(self.traces.rules());
            self.listeners.snapshot(&config, &self.ring, generation)
        });
        if snapshot.is_err() {
            // All or nothing: what was opened is closed again, and what was set on sockets that stay is as it was.
            self.ring.set_lifetime(self.config.ticket_lifetime);
            let _ = go_by(&mut self.ring, &self.config).and_then(|()| self.fleet.configure(&self.config));
            self.listeners.set_shared_tickets(self.fleet.tickets());
            self.traces.configure(&self.config);
            self.listeners.set_traces(self.traces.rules());
            self.listeners.forget_unused(&self.config);
            let as_before = self.listeners.snapshot(&self.config, &self.ring, generation);
            // The link to the store is a new one, and lanes must hear of it.
            if let (true, Ok(as_before)) = (config.store != self.config.store, as_before) {
                self.publish(as_before);
            }
        }
        let snapshot = snapshot?;
        log::start(LogSettings {
            // A level that was set at run time stays until the file has another than before.
            level: if config.log.level == self.config.log.level { log::level() } else { config.log.level },
            ..config.log
        });
        self.listeners.forget_unused(&config);
        self.upstreams.apply(&config);
        self.publish(snapshot);
        match (&self.vpn, config.tunnel.take()) {
            (Some(vpn), Some(settings)) => {
                notes.extend(vpn.obstacle(&settings));
                vpn.reload((*settings).into());
            }
            (None, None) => {}
            (Some(_), None) | (None, Some(_)) => {
                notes.push("adding or removing [tunnel] takes effect at the next start".to_owned())
            }
        }
        self.admin.answer_to(&config.admin_names);
        self.config = config;
        self.status.configured(&self.config, &self.listeners, generation);
        self.automatic.configure(&self.config);
        self.status.automatic(self.automatic.reporter());
        self.stapling.reconfigure(&self.config);
        self.status.stapling(self.stapling.reporter());
        self.status.lists(self.stapling.list_reporter());
        self.status.fleet(self.fleet.reporter());
        self.status.traces(self.traces.reporter());
        self.telemetry.configure(&self.config, &self.metrics, &self.status);
        self.status.telemetry(self.telemetry.reporter());
        Ok(notes)
    }

    /// Starts a successor, which will serve `next` (`None`: the same as this process); the rest follows when it has said
    /// that it serves.
    fn upgrade(&mut self, pending: PendingCommand, next: Option<&Config>) {
        if self.upgrading.is_some() || self.draining {
            return pending.reply(Err(NO_UPGRADE_NOW.to_owned()));
        }
        let next = next.unwrap_or(&self.config);
        let obstacle = match (&self.vpn, &next.tunnel) {
            (Some(vpn), Some(settings)) => vpn.obstacle(settings),
            (Some(_), None) => Some("removing [tunnel] needs a restart".to_owned()),
            (None, Some(_)) => Some("adding [tunnel] needs a restart".to_owned()),
            (None, None) => None,
        };
        if let Some(why) = obstacle {
            self.status.upgrade_failed();
            return pending.reply(Err(format!("not upgraded: {why}")));
        }
        let (ours, theirs) = match Channel::pair() {
            Ok(pair) => pair,
            Err(e) => {
                self.status.upgrade_failed();
                return pending.reply(Err(format!("not upgraded: {e}; this process continues")));
            }
        };
        let (udp, not_read) = self.listeners.udp_to_hand_over(next);
        self.successor_channel = Some((Arc::new(ours), not_read.into()));
        let generation = self.listeners.generation();
        let myself = QuicPredecessor { generation, ids_have_macs: true, channel: Arc::new(theirs) };
        let predecessors = self.listeners.predecessors();
        let (names, services) = dns::all_known();
        let state = HandoverState {
            listeners: self.listeners.to_hand_over(),
            unix: self.listeners.unix_to_hand_over(next),
            admin: self.admin.descriptor(),
            tickets: self.ring.current(),
            tickets_age: self.ring.age(),
            tunnel: self.vpn.is_some(),
            names,
            services,
            udp,
            predecessors: std::iter::once(myself).chain(predecessors.iter().take(MAX_PREDECESSORS).cloned()).collect(),
        };
        match Successor::start(&self.program, &state) {
            Err(e) => {
                self.status.upgrade_failed();
                pending.reply(Err(format!("not upgraded: {e:#}; this process continues")));
            }
            Ok(successor) => {
                self.upgrading = Some(pending);
                let (commands, tunnel) = (self.commands.clone(), self.vpn.as_ref().map(Vpn::door));
                tokio::spawn(async move {
                    let waited =
                        tokio::task::spawn_blocking(|| successor.wait(tunnel).map_err(|e| format!("{e:#}"))).await;
                    let result = waited.unwrap_or_else(|e| Err(e.to_string()));
                    let result = result.map(|(pid, pair)| (pid, Arc::new(pair)));
                    commands.tell(Command::Succeeded(result)).await;
                });
            }
        }
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
