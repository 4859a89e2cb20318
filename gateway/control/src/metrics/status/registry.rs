//! Where control writes down what it does, and where the status is put together.

use super::certificates::certificates;
use super::{
    CertificateStatus, ChangeStatus, LaneStatus, ListenerStatus, OcspStatus, Reloads, ServerChange, ServerStatus,
    Status, TunnelStatus, UpstreamStatus,
};
use crate::admin::api::Configuration;
use crate::certificates::automatic::Reporter;
use crate::certificates::stapling::{ListReporter, StapleReporter};
use crate::config::{Config, Effective, Origin};
use crate::fleet;
use crate::health::LiveUpstreams;
use crate::metrics::LaneMetrics;
use crate::metrics::problems::{self, Facts, Problems};
use crate::metrics::process::lane_cpu;
use crate::run::commands::Reply;
use crate::run::listeners::Listeners;
use crate::telemetry::TelemetryReporter;
use crate::traces::TraceReporter;
use crate::upgrade::remaining::RemainingFile;
use sealane_lane::histogram::Distribution;
use sealane_tls::policy::RevocationLists;
use sealane_tls::transparency::LogList;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often it is looked whether certificates expire.
const CERTIFICATES_EVERY: Duration = Duration::from_secs(5);
/// After looking for problems, so many times as long is not looked.
const IDLE_TIMES: u32 = 50;
/// Who has read the status is taken to look on for so long.
const READERS_STAY: Duration = Duration::from_secs(10);

/// Where control writes down what it does, for [`Status`].
#[derive(Debug)]
pub struct StatusRegistry {
    metrics: Arc<LaneMetrics>,
    pub(super) started: (SystemTime, Instant),
    written: Mutex<Written>,
    watched: Mutex<Watched>,
}

/// What is wrong, and whether somebody looks.
#[derive(Debug, Default)]
struct Watched {
    problems: Problems,
    /// Not looked for problems before this time.
    next: Option<Instant>,
    /// The cause of something is known only if lanes tell who makes their load.
    needs_talkers: bool,
    /// When somebody has read the status for the last time.
    read: Option<Instant>,
    /// All certificates, as they were when it was last looked: there may be very many.
    certificates: Vec<CertificateStatus>,
    certificates_at: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Written {
    pub(super) configuration: String,
    pub(super) generation: u64,
    pub(super) key_rotations: u64,
    pub(super) reloads: Reloads,
    pub(super) listeners: Vec<ListenerStatus>,
    pub(super) certificates: Vec<CertificateStatus>,
    /// Certificates whose changed files were taken, and refused.
    pub(super) replaced: u64,
    pub(super) refused: u64,
    /// Lists of addresses whose changed files were taken, and refused.
    pub(super) lists: (u64, u64),
    /// Tables of redirects whose files have changed: taken, and refused.
    pub(super) redirects: (u64, u64),
    /// The same of files of users.
    pub(super) users: (u64, u64),
    /// The same of files of ticket keys.
    pub(super) ticket_keys: (u64, u64),
    /// Why, by file, as long as they are.
    pub(super) refusals: BTreeMap<String, String>,
    pub(super) automatic: Option<Reporter>,
    pub(super) stapling: Option<StapleReporter>,
    pub(super) lists_fetched: Option<ListReporter>,
    /// Revocation lists in use: what they are called, and when they expire.
    pub(super) revocation_lists: Vec<(String, Option<u64>)>,
    /// Those whose files have changed: taken, and refused.
    pub(super) lists_read: (u64, u64),
    /// Lists of transparency logs in use: their files, and when they were written.
    pub(super) log_lists: Vec<(String, u64)>,
    /// Those whose files have changed: taken, and refused.
    pub(super) log_lists_read: (u64, u64),
    pub(super) fleet: Option<fleet::Reporter>,
    pub(super) remaining: Option<RemainingFile>,
    pub(super) traces: Option<TraceReporter>,
    pub(super) telemetry: Option<TelemetryReporter>,
    /// The settings in force, with secrets masked.
    pub(super) effective: Option<Arc<Effective>>,
    pub(super) changes: Option<ChangeStatus>,
    /// The settings of the file, as they were read last or written by the API.
    pub(super) of_file: Option<Arc<Effective>>,
    /// The configuration in force is not the file's.
    pub(super) temporary: bool,
}

impl std::fmt::Debug for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Written").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl StatusRegistry {
    /// An empty one.
    pub fn new(metrics: Arc<LaneMetrics>) -> Self {
        Self {
            metrics,
            started: (SystemTime::now(), Instant::now()),
            written: Mutex::default(),
            watched: Mutex::default(),
        }
    }

    pub(super) fn written(&self) -> MutexGuard<'_, Written> {
        // Writing it down cannot fail half way, so even a poisoned lock holds something whole.
        self.written.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A configuration has taken effect.
    pub fn configured(&self, config: &Config, listeners: &Listeners, generation: u64) {
        let mut w = self.written();
        w.configuration = match &config.origin {
            Origin::File(path) => path.display().to_string(),
            Origin::CommandLine(_) => "command line".to_owned(),
        };
        w.generation = generation;
        // Certificates that change are no other settings.
        if let Some(before) = w.effective.replace(config.effective.clone())
            && before != config.effective
        {
            let lines = config.effective.changes_since(&before);
            let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            w.changes = Some(ChangeStatus { generation, at, lines });
        }
        w.listeners = config
            .listeners
            .iter()
            .map(|l| ListenerStatus {
                address: listeners.shown(l),
                mode: l.mode.name().to_owned(),
                tls: l.tls.is_some(),
                http3: l.http3.is_some(),
            })
            .collect();
        w.certificates = certificates(config);
        let name = |lists: &RevocationLists| (config.name_of_lists(&lists.source), lists.next_update);
        w.revocation_lists = config.revocation_lists().iter().map(|lists| name(lists)).collect();
        let name = |list: &LogList| (list.source.display().to_string(), list.written.unwrap_or(0));
        w.log_lists = config.log_lists().iter().map(|list| name(list)).collect();
    }

    /// The files of a certificate have changed: they are served, or refused for this reason.
    pub fn certificate_read(&self, file: &Path, refused: Option<String>) {
        let mut w = self.written();
        let file = file.display().to_string();
        match refused {
            None => {
                w.replaced += 1;
                w.refusals.remove(&file);
            }
            Some(why) => {
                w.refused += 1;
                w.refusals.insert(file, why);
            }
        }
    }

    /// The file of a list of addresses has changed: the new list holds, or is refused.
    pub fn list_read(&self, good: bool) {
        let mut w = self.written();
        let lists = &mut w.lists;
        *(if good { &mut lists.0 } else { &mut lists.1 }) += 1;
    }

    /// The file of a table of redirects has changed: the new table holds, or is refused.
    pub fn redirects_read(&self, good: bool) {
        let mut w = self.written();
        let tables = &mut w.redirects;
        *(if good { &mut tables.0 } else { &mut tables.1 }) += 1;
    }

    /// The file of users has changed: the new users hold, or are refused.
    pub fn users_read(&self, good: bool) {
        let mut w = self.written();
        let users = &mut w.users;
        *(if good { &mut users.0 } else { &mut users.1 }) += 1;
    }

    /// Who tells how the certificates stand that an authority issues.
    pub fn automatic(&self, reporter: Option<Reporter>) {
        self.written().automatic = reporter;
    }

    /// Who tells how the OCSP responses stand that are fetched.
    pub fn stapling(&self, reporter: Option<StapleReporter>) {
        self.written().stapling = reporter;
    }

    /// Where processes from before upgrades write down what they still finish.
    pub fn remaining(&self, file: Option<RemainingFile>) {
        self.written().remaining = file;
    }

    /// Who tells how the export of traces stands.
    pub fn traces(&self, reporter: Option<TraceReporter>) {
        self.written().traces = reporter;
    }

    /// Who tells how the export of metrics and of the log stands.
    pub fn telemetry(&self, reporter: Option<TelemetryReporter>) {
        self.written().telemetry = reporter;
    }

    /// When this process was started.
    pub fn started(&self) -> SystemTime {
        self.started.0
    }

    /// Who tells how the revocation lists stand that are fetched.
    pub fn lists(&self, reporter: Option<ListReporter>) {
        self.written().lists_fetched = reporter;
    }

    /// The file of a revocation list has changed: the new list holds, or is refused.
    pub fn revocation_lists_read(&self, good: bool) {
        let mut w = self.written();
        let lists = &mut w.lists_read;
        *(if good { &mut lists.0 } else { &mut lists.1 }) += 1;
    }

    /// The file of a list of transparency logs has changed: the new list holds, or is refused.
    pub fn log_list_read(&self, good: bool) {
        let mut w = self.written();
        let lists = &mut w.log_lists_read;
        *(if good { &mut lists.0 } else { &mut lists.1 }) += 1;
    }

    /// A reload was tried.
    pub fn reloaded(&self, reply: &Reply) {
        let mut w = self.written();
        match reply {
            Ok(_) => {
                w.reloads.good += 1;
                w.reloads.last_error.clear();
                // All files were read, and are served.
                w.refusals.clear();
            }
            Err(e) => {
                w.reloads.failed += 1;
                w.reloads.last_error.clone_from(e);
            }
        }
    }

    /// Tickets and cookies are made from new keys.
    pub fn keys_rotated(&self) {
        self.written().key_rotations += 1;
    }

    /// A changed file of ticket keys was read: it holds, or was refused.
    pub fn ticket_keys_read(&self, good: bool) {
        let mut written = self.written();
        match good {
            true => written.ticket_keys.0 += 1,
            false => written.ticket_keys.1 += 1,
        }
    }

    /// What tells of the store that gateways share.
    pub fn fleet(&self, reporter: Option<fleet::Reporter>) {
        self.written().fleet = reporter;
    }

    /// An upgrade was given up.
    pub fn upgrade_failed(&self) {
        self.written().reloads.upgrades_failed += 1;
    }

    /// Every group with its servers.
    pub fn upstreams(&self) -> Vec<UpstreamStatus> {
        let mut groups: Vec<UpstreamStatus> = Vec::new();
        for s in self.metrics.upstreams().map(LiveUpstreams::list).unwrap_or_default() {
            let state = match (&s.failing, s.ejected_for) {
                (Some(why), _) => format!("down: {why}"),
                (None, Some(seconds)) => format!("ejected for {seconds} s"),
                (None, None) if s.draining => "draining".to_owned(),
                (None, None) if !s.up => "down".to_owned(),
                (None, None) => if s.backup { "backup" } else { "up" }.to_owned(),
            };
            let server = ServerStatus {
                name: s.server,
                address: s.address.map(|a| a.to_string()).unwrap_or_default(),
                state,
                weight: s.weight,
                in_use: s.in_use,
                requests: s.requests,
                failures: s.failures,
                failing: s.last_failure.unwrap_or_default().into_owned(),
                added: s.added,
                weight_is_set: s.weight_is_set,
                drain_is_set: s.drain_is_set,
            };
            match groups.iter_mut().find(|g| g.name == s.upstream) {
                Some(group) => group.servers.push(server),
                None => groups.push(UpstreamStatus { name: s.upstream, servers: vec![server], removed: Vec::new() }),
            }
        }
        for (name, removed) in self.metrics.upstreams().map(LiveUpstreams::removed).unwrap_or_default() {
            groups.iter_mut().filter(|group| group.name == name).for_each(|group| group.removed.clone_from(&removed));
        }
        groups
    }

    /// Every certificate that clients are shown.
    pub fn certificates(&self) -> Vec<CertificateStatus> {
        self.written().all_certificates()
    }

    /// The configuration in force, with secrets masked.
    pub fn configuration(&self) -> Configuration {
        let w = self.written();
        let effective = w.effective.clone();
        let (revision, generation, source) = (w.revision(), w.generation, w.configuration.clone());
        let (temporary, not_in_file) = (w.temporary, w.not_in_file());
        drop(w);
        let settings = effective.map(|effective| effective.to_value()).unwrap_or_default();
        Configuration { etag: self.etag_of(revision), revision, generation, source, temporary, not_in_file, settings }
    }

    /// Whether the configuration in force is the file's; else the API has applied it.
    pub fn is_of_file(&self, is: bool) {
        let mut w = self.written();
        w.temporary = !is;
        if is {
            w.of_file = w.effective.clone();
        }
    }

    /// A configuration that the API has applied is in force. Returns its tag and its revision.
    pub fn applied(&self, is_of_file: bool) -> (String, u64) {
        self.written().reloads.good += 1;
        self.is_of_file(is_of_file);
        let revision = self.written().revision();
        (self.etag_of(revision), revision)
    }

    /// What `If-Match` must have for a change of the configuration in force. Another process has others.
    pub fn etag(&self) -> String {
        let revision = self.written().revision();
        self.etag_of(revision)
    }

    fn etag_of(&self, revision: u64) -> String {
        let started = self.started.0.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        format!("\"{started:x}-{:x}-{revision}\"", std::process::id())
    }

    /// Whether the API has applied the configuration in force, and it is not the file's.
    pub fn is_temporary(&self) -> bool {
        self.written().temporary
    }

    /// Changes how a server is used; the sentence says what was done, or why not.
    pub fn change_server(&self, change: &ServerChange) -> Reply {
        let Some(upstreams) = self.metrics.upstreams() else { return Err("there are no upstreams".to_owned()) };
        let ServerChange { upstream, server, drain, weight, default_weight, .. } = change;
        let mut said = Vec::new();
        if let Some(drain) = drain {
            upstreams.set_drain(upstream, server, *drain)?;
            said.push(if *drain { "is draining".to_owned() } else { "is no longer draining".to_owned() });
        }
        if let Some(weight) = weight {
            upstreams.set_weight(upstream, server, Some(*weight))?;
            said.push(format!("has weight {weight}"));
        }
        if *default_weight {
            upstreams.set_weight(upstream, server, None)?;
            said.push("has its configured weight".to_owned());
        }
        match said.is_empty() {
            true => Err("nothing to change: write drain, weight or default_weight".to_owned()),
            false => Ok(format!("{server} of {upstream} {}", said.join(" and "))),
        }
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Looks at what lanes have done, and for what is wrong, if it is time to. Called a few times a second.
    pub fn look(&self) {
        let began = Instant::now();
        if !self.metrics.look() || self.watched().next.is_some_and(|next| began < next) {
            return;
        }
        let talkers = self.metrics.talkers();
        let operations = self.metrics.operations();
        let errors = self.metrics.errors();
        let (servers, unresolved) =
            self.metrics.upstreams().map(|all| (all.list(), all.unresolved())).unwrap_or_default();
        let mut watched = self.watched();
        let (reloads, exports) = {
            let w = self.written();
            if watched.certificates_at.is_none_or(|at| began.saturating_duration_since(at) >= CERTIFICATES_EVERY) {
                watched.certificates = w.all_certificates();
                watched.certificates_at = Some(began);
            }
            (w.reloads.clone(), w.exports())
        };
        let (places, limits, recent, waits) = {
            let sampler = self.metrics.sampler();
            let waits: Vec<(String, Distribution)> =
                sampler.waits.recent().map(|(name, waits)| (name.to_owned(), waits)).collect();
            (sampler.places(), sampler.limits(), sampler.window.recent(), waits)
        };
        let facts = Facts {
            now: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            recent,
            limits: &limits,
            places: &places,
            waits: waits.iter().map(|(name, waits)| (name.as_str(), waits.clone())).collect(),
            servers: &servers,
            unresolved: &unresolved,
            certificates: &watched.certificates,
            reloads: Some(&reloads),
            errors: &errors,
            log: self.metrics.log_failure(),
            memory: self.metrics.memory(),
            talkers: talkers.as_ref(),
            operations: &operations,
            exports: &exports,
        };
        let (now, findings, needs_talkers) = (facts.now, problems::find(&facts), problems::needs_talkers(&facts));
        watched.problems.update(now, findings);
        watched.needs_talkers = needs_talkers;
        // With very many servers it is done less often.
        watched.next = Some(Instant::now() + began.elapsed() * IDLE_TIMES);
    }

    /// Whether lanes shall tell who makes their load: somebody looks, or something is wrong.
    pub fn wants_talkers(&self) -> bool {
        let watched = self.watched();
        watched.needs_talkers || watched.read.is_some_and(|at| at.elapsed() < READERS_STAY)
    }

    /// One line for a service manager.
    pub fn sentence(&self) -> String {
        let w = self.written();
        let addresses: Vec<&str> = w.listeners.iter().map(|l| l.address.as_str()).collect();
        let does = if self.metrics.healthy() { "serving" } else { "stopping, served" };
        format!("{does} {} (configuration {}, generation {})", addresses.join(", "), w.configuration, w.generation)
    }

    /// Everything as of now.
    pub fn status(&self) -> Status {
        let cpu = lane_cpu();
        let lanes = self.metrics.lanes().iter().enumerate().map(|(lane, counters)| LaneStatus {
            lane,
            cpu_seconds: cpu.get(&lane).copied(),
            counters: counters
                .values()
                .zip(sealane_proxy::counters::DESCRIPTIONS)
                .map(|(value, d)| (short_name(d.name, d.labels), value))
                .collect(),
        });
        let lanes: Vec<LaneStatus> = lanes.collect();
        let mut totals = BTreeMap::new();
        for (name, value) in lanes.iter().flat_map(|l| &l.counters) {
            *totals.entry(name.clone()).or_insert(0) += value;
        }
        let (places, limits) = {
            let sampler = self.metrics.sampler();
            (sampler.places(), sampler.limits())
        };
        let problems = {
            let mut watched = self.watched();
            watched.read = Some(Instant::now());
            watched.problems.list()
        };
        let w = self.written();
        Status {
            old_processes: w.remaining.as_ref().map(RemainingFile::of_others).unwrap_or_default(),
            problems,
            clients: self.metrics.talkers().map(|talkers| talkers.clients()).unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            log_level: crate::log::level().to_string(),
            started: self.started.0.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            uptime: self.started.1.elapsed().as_secs_f64(),
            state: if self.metrics.healthy() { "serving" } else { "draining" }.to_owned(),
            configuration: w.configuration.clone(),
            generation: w.generation,
            revision: w.revision(),
            temporary: w.temporary,
            not_in_file: w.not_in_file(),
            reloads: w.reloads.clone(),
            listeners: w.listeners.clone(),
            upstreams: self.upstreams(),
            certificates: w.all_certificates(),
            lanes,
            totals,
            refused: self.metrics.refused(),
            operations: self.metrics.operations(),
            places,
            limits,
            errors: self.metrics.errors(),
            changes: w.changes.clone(),
            tunnel: self.metrics.tunnel().map(TunnelStatus::from),
            reduced: false,
        }
    }
}

impl Written {
    /// The first configuration, and each that took effect after it.
    fn revision(&self) -> u64 {
        1 + self.reloads.good
    }

    /// In what the configuration in force differs from the file.
    fn not_in_file(&self) -> Vec<String> {
        match (&self.effective, &self.of_file) {
            (Some(effective), Some(of_file)) if self.temporary => effective.changes_since(of_file),
            _ => Vec::new(),
        }
    }

    /// What collectors do not take, and why.
    fn exports(&self) -> Vec<(&'static str, String)> {
        let traces = self.traces.iter().map(|reporter| ("traces", reporter().last_error));
        let telemetry = self.telemetry.iter().flat_map(|reporter| {
            ["metrics", "the log"].into_iter().zip(reporter()).map(|(what, report)| (what, report.last_error))
        });
        traces.chain(telemetry).filter(|(_, error)| !error.is_empty()).collect()
    }

    /// Every certificate, with what is known of its renewal.
    fn all_certificates(&self) -> Vec<CertificateStatus> {
        let reports = self.automatic.as_ref().map(|reporter| reporter()).unwrap_or_default();
        let staples = self.stapling.as_ref().map(|reporter| reporter()).unwrap_or_default();
        let with = |c: &CertificateStatus| {
            let name = Path::new(&c.file).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            // The file of a wildcard's certificate has a plus sign in the place of the star.
            let automatic =
                c.automatic.as_ref().map(|known| reports.names.get(&name.replace('+', "*")).unwrap_or(known).clone());
            let refused = self.refusals.get(&c.file).cloned().unwrap_or_default();
            let ocsp = staples.certificates.get(&c.digest).map(|report| OcspStatus {
                standing: report.standing.to_owned(),
                next_update: report.next_update,
                next_request: report.next_request,
                last_error: report.last_error.clone(),
            });
            CertificateStatus { automatic, refused, ocsp, ..c.clone() }
        };
        self.certificates.iter().map(with).collect()
    }
}

/// `sealane_handshakes_total` with labels becomes `handshakes{version="1.3",kind="full"}`.
fn short_name(name: &str, labels: &str) -> String {
    let name = name.strip_prefix("sealane_").unwrap_or(name);
    let name = name.strip_suffix("_total").unwrap_or(name);
    if labels.is_empty() { name.to_owned() } else { format!("{name}{{{labels}}}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_metrics() {
        assert_eq!(short_name("sealane_requests_total", ""), "requests");
        assert_eq!(short_name("sealane_handshakes_total", "kind=\"full\""), "handshakes{kind=\"full\"}");
        assert_eq!(short_name("sealane_connections_open", ""), "connections_open");
    }
}
