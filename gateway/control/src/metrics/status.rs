//! What the gateway says of itself: to `sealane status`, `sealane top`, the status page, and programs.
//!
//! Put together when somebody asks, from what lanes count and control knows; lanes notice nothing of it.

use crate::certificates::automatic::Reporter;
use crate::certificates::stapling::{ListReporter, StapleReporter};
use crate::config::{CertificateDigest, Config, Effective, Origin, hex};
use crate::fleet;
use crate::health::LiveUpstreams;
use crate::metrics::LaneMetrics;
use crate::metrics::errors::ErrorStatus;
use crate::metrics::process::lane_cpu;
use crate::metrics::prometheus::Writer;
use crate::metrics::reports;
pub use crate::metrics::reports::{ChangeStatus, TunnelClient, TunnelStatus};
use crate::metrics::sampler::{LimitStatus, OperationStatus, PlaceStatus};
use crate::run::commands::Reply;
use crate::run::listeners::Listeners;
use crate::telemetry::TelemetryReporter;
use crate::traces::TraceReporter;
use sealane_tls::policy::RevocationLists;
use sealane_tls::transparency::LogList;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Everything, as of now. Unknown fields are to be ignored: newer gateways say more.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The program's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// When it was started, in seconds since 1970.
    pub started: u64,
    /// How long ago that is, in seconds.
    pub uptime: f64,
    /// `serving` or `draining`.
    pub state: String,
    /// The configuration's file, or `command line`.
    pub configuration: String,
    /// The level of the log: `error`, `warn`, `info`, `debug` or `trace`.
    pub log_level: String,
    /// Counts publications of a configuration or of ticket keys, from 1.
    pub generation: u64,
    /// Reloads since the start.
    pub reloads: Reloads,
    /// What is listened on.
    pub listeners: Vec<ListenerStatus>,
    /// Groups of servers.
    pub upstreams: Vec<UpstreamStatus>,
    /// Certificates that are shown to clients.
    pub certificates: Vec<CertificateStatus>,
    /// The lanes, by slot.
    pub lanes: Vec<LaneStatus>,
    /// The counters of all lanes together; names as in [`LaneStatus::counters`].
    pub totals: BTreeMap<String, u64>,
    /// Refused messages, by what was wrong with them; those that are 0 are left out.
    pub refused: BTreeMap<String, u64>,
    /// What operations cost.
    pub operations: Vec<OperationStatus>,
    /// Hosts and routes that have had requests.
    pub places: Vec<PlaceStatus>,
    /// What has refused clients.
    pub limits: Vec<LimitStatus>,
    /// The newest requests that got 5xx, the newest first.
    pub errors: Vec<ErrorStatus>,
    /// What the newest configuration has changed; `None`: it is the first.
    pub changes: Option<ChangeStatus>,
    /// The tunnel, if there is one.
    pub tunnel: Option<TunnelStatus>,
    /// Lines of the configuration in `changes` and the clients of the tunnel are left out: the admin socket alone has them.
    pub reduced: bool,
}

impl Status {
    /// For those who may not give commands: without names of persons, and without values of settings.
    pub fn reduced(mut self) -> Self {
        self.changes.iter_mut().for_each(|changes| changes.lines.clear());
        self.tunnel.iter_mut().for_each(|tunnel| tunnel.clients.clear());
        self.reduced = true;
        self
    }
}

/// How reloads went.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Reloads {
    /// Those that took effect.
    pub good: u64,
    /// Those that changed nothing, because something was wrong.
    pub failed: u64,
    /// Upgrades of the process that failed.
    pub upgrades_failed: u64,
    /// What was wrong the last time; empty after one that was good.
    pub last_error: String,
}

/// A listening address.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ListenerStatus {
    /// As bound.
    pub address: String,
    /// Clients speak TLS.
    pub tls: bool,
    /// HTTP/3 is served there as well, over UDP.
    pub http3: bool,
}

/// A group of servers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UpstreamStatus {
    /// As configured.
    pub name: String,
    /// Its servers.
    pub servers: Vec<ServerStatus>,
}

/// A server of a group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStatus {
    /// As configured.
    pub name: String,
    /// As resolved; empty while its name does not resolve.
    pub address: String,
    /// `up`, `backup`, `draining`, `ejected`, or `down` with the reason.
    pub state: String,
    /// In whole units.
    pub weight: u32,
    /// Requests under way.
    pub in_use: u64,
    /// Requests given to it.
    pub requests: u64,
    /// Connections that failed, broke or timed out.
    pub failures: u64,
    /// Why requests fail there at present; empty if they do not.
    pub failing: String,
}

/// A certificate.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CertificateStatus {
    /// Its file.
    pub file: String,
    /// Whom it names.
    pub subject: String,
    /// Who has signed it.
    pub issuer: String,
    /// When it begins, in seconds since 1970.
    pub not_before: i64,
    /// When it ends, in seconds since 1970.
    pub not_after: i64,
    /// The gateway has made it itself: an authority has not issued one yet.
    pub self_signed: bool,
    /// Why the files are refused as they are now; empty if they are served.
    pub refused: String,
    /// How its renewal stands; `None`: it is renewed by others.
    pub automatic: Option<AutomaticStatus>,
    /// The SHA-256 digest of the certificate, in hexadecimal digits.
    pub sha256: String,
    #[serde(skip)]
    digest: CertificateDigest,
    /// How its OCSP response stands; `None`: the gateway fetches none.
    pub ocsp: Option<OcspStatus>,
}

/// How the OCSP response about a certificate stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OcspStatus {
    /// "good" or "revoked"; empty where no response is sent.
    pub standing: String,
    /// When the response expires, in seconds since 1970.
    pub next_update: Option<u64>,
    /// When the next request is made.
    pub next_request: Option<u64>,
    /// Why the last request failed; empty after one that did not.
    pub last_error: String,
}

/// How the renewal of a certificate stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AutomaticStatus {
    /// When the next order is made, in seconds since 1970; `None`: another process renews.
    pub next: Option<u64>,
    /// Why the last order failed; empty after one that did not.
    pub last_error: String,
}

/// A lane.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LaneStatus {
    /// Its slot.
    pub lane: usize,
    /// Seconds that its thread has been on a core; `None` where the system does not say.
    pub cpu_seconds: Option<f64>,
    /// Its counters: those of `/metrics`, without the prefix `sealane_` and the suffix `_total`, with their labels.
    pub counters: BTreeMap<String, u64>,
}

/// What `POST /v1/server` asks for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerChange {
    /// The group's name.
    pub upstream: String,
    /// The server's name, as configured.
    pub server: String,
    /// It gets nothing new, or does again.
    #[serde(default)]
    pub drain: Option<bool>,
    /// Another weight, until the process ends.
    #[serde(default)]
    pub weight: Option<u32>,
    /// The configured weight again.
    #[serde(default)]
    pub default_weight: bool,
}

/// Where control writes down what it does, for [`Status`].
#[derive(Debug)]
pub struct StatusRegistry {
    metrics: Arc<LaneMetrics>,
    started: (SystemTime, Instant),
    written: Mutex<Written>,
}

#[derive(Default)]
struct Written {
    configuration: String,
    generation: u64,
    key_rotations: u64,
    reloads: Reloads,
    listeners: Vec<ListenerStatus>,
    certificates: Vec<CertificateStatus>,
    /// Certificates whose changed files were taken, and refused.
    replaced: u64,
    refused: u64,
    /// Lists of addresses whose changed files were taken, and refused.
    lists: (u64, u64),
    /// Tables of redirects whose files have changed: taken, and refused.
    redirects: (u64, u64),
    /// The same of files of users.
    users: (u64, u64),
    /// The same of files of ticket keys.
    ticket_keys: (u64, u64),
    /// Why, by file, as long as they are.
    refusals: BTreeMap<String, String>,
    automatic: Option<Reporter>,
    stapling: Option<StapleReporter>,
    lists_fetched: Option<ListReporter>,
    /// Revocation lists in use: what they are called, and when they expire.
    revocation_lists: Vec<(String, Option<u64>)>,
    /// Those whose files have changed: taken, and refused.
    lists_read: (u64, u64),
    /// Lists of transparency logs in use: their files, and when they were written.
    log_lists: Vec<(String, u64)>,
    /// Those whose files have changed: taken, and refused.
    log_lists_read: (u64, u64),
    fleet: Option<fleet::Reporter>,
    traces: Option<TraceReporter>,
    telemetry: Option<TelemetryReporter>,
    /// The settings in force, with secrets masked.
    effective: Option<Arc<Effective>>,
    changes: Option<ChangeStatus>,
}

impl std::fmt::Debug for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Written").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl StatusRegistry {
    /// An empty one.
    pub fn new(metrics: Arc<LaneMetrics>) -> Self {
        Self { metrics, started: (SystemTime::now(), Instant::now()), written: Mutex::default() }
    }

    fn written(&self) -> MutexGuard<'_, Written> {
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
                address: listeners.bound(l.address).unwrap_or(l.address).to_string(),
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

    /// Writes what control counts as metrics.
    pub fn render(&self, out: &mut Writer) {
        let w = self.written();
        let mut family = out.counter("sealane_config_reloads_total", "Reloads, by result.");
        family.sample(&[("result", "good")], w.reloads.good);
        family.sample(&[("result", "failed")], w.reloads.failed);
        out.counter("sealane_upgrades_failed_total", "Upgrades of the process (`sealane upgrade`) that failed.")
            .sample(&[], w.reloads.upgrades_failed);
        let help = "Number of the newest snapshot of the configuration; reloads and changed files increase it.";
        out.gauge("sealane_config_generation", help).sample(&[], w.generation);
        let help = "Replacements of the keys of session tickets and of TCP Fast Open cookies.";
        out.counter("sealane_key_rotations_total", help).sample(&[], w.key_rotations);
        let mut family = out
            .gauge("sealane_certificate_expiry_timestamp_seconds", "When certificates expire, in seconds since 1970.");
        for c in &w.certificates {
            let end = u64::try_from(c.not_after).unwrap_or(0);
            family.sample(&[("file", &c.file), ("subject", &c.subject)], end);
        }
        let mut family = out.gauge(
            "sealane_certificate_start_timestamp_seconds",
            "When the validity of certificates begins, in seconds since 1970.",
        );
        for c in &w.certificates {
            let start = u64::try_from(c.not_before).unwrap_or(0);
            family.sample(&[("file", &c.file), ("subject", &c.subject)], start);
        }
        let mut family =
            out.counter("sealane_certificate_replacements_total", "Certificates whose files have changed, by result.");
        family.sample(&[("result", "good")], w.replaced);
        family.sample(&[("result", "refused")], w.refused);
        let mut family =
            out.counter("sealane_address_list_replacements_total", "Changed files of address lists, by result.");
        family.sample(&[("result", "good")], w.lists.0);
        family.sample(&[("result", "refused")], w.lists.1);
        let mut family =
            out.counter("sealane_redirect_table_replacements_total", "Changed files of redirect tables, by result.");
        family.sample(&[("result", "good")], w.redirects.0);
        family.sample(&[("result", "refused")], w.redirects.1);
        let mut family =
            out.counter("sealane_users_replacements_total", "Changed files of users for basic_auth, by result.");
        family.sample(&[("result", "good")], w.users.0);
        family.sample(&[("result", "refused")], w.users.1);
        let mut family =
            out.counter("sealane_ticket_key_replacements_total", "Changed files of ticket keys, by result.");
        family.sample(&[("result", "good")], w.ticket_keys.0);
        family.sample(&[("result", "refused")], w.ticket_keys.1);
        if let Some(report) = &w.fleet {
            report(out);
        }
        if let Some(reporter) = &w.traces {
            let report = reporter();
            let mut family =
                out.counter("sealane_trace_spans_total", "Spans for the collector of [traces], by result.");
            family.sample(&[("result", "exported")], report.exported);
            family.sample(&[("result", "failed")], report.failed);
            family.sample(&[("result", "rejected")], report.rejected);
            out.gauge("sealane_traces_failing", "1 if the collector did not accept the last batch of spans.")
                .sample(&[], u64::from(!report.last_error.is_empty()));
        }
        if let Some(reporter) = &w.telemetry {
            reports::render_telemetry(&reporter(), out);
        }
        if let Some(reporter) = &w.automatic {
            let reports = reporter();
            let mut family = out.counter("sealane_acme_orders_total", "Orders for certificates, by result.");
            family.sample(&[("result", "issued")], reports.issued);
            family.sample(&[("result", "failed")], reports.failed);
            let mut family = out.gauge(
                "sealane_acme_next_order_timestamp_seconds",
                "When the next order for a certificate is made, in seconds since 1970.",
            );
            for (name, status) in &reports.names {
                if let Some(next) = status.next {
                    family.sample(&[("name", name)], next);
                }
            }
            let mut family = out.gauge(
                "sealane_acme_failing",
                "1 for a name whose last order failed, or for which no certificate can be ordered.",
            );
            for (name, status) in &reports.names {
                family.sample(&[("name", name)], u64::from(!status.last_error.is_empty()));
            }
        }
        if let Some(reporter) = &w.stapling {
            let reports = reporter();
            let mut family = out.counter("sealane_ocsp_requests_total", "Requests for OCSP responses, by result.");
            family.sample(&[("result", "good")], reports.good);
            family.sample(&[("result", "revoked")], reports.revoked);
            family.sample(&[("result", "failed")], reports.failed);
            let report = |c: &CertificateStatus| reports.certificates.get(&c.digest);
            let mut family = out.gauge(
                "sealane_ocsp_response_expiry_timestamp_seconds",
                "When the OCSP responses for clients expire, in seconds since 1970; 0: the gateway sends no response.",
            );
            for c in &w.certificates {
                if let Some(report) = report(c) {
                    family.sample(&[("file", &c.file), ("subject", &c.subject)], report.next_update.unwrap_or(0));
                }
            }
            let mut family = out.gauge("sealane_ocsp_failing", "1 if the last request for an OCSP response failed.");
            for c in &w.certificates {
                if let Some(report) = report(c) {
                    let failing = u64::from(!report.last_error.is_empty());
                    family.sample(&[("file", &c.file), ("subject", &c.subject)], failing);
                }
            }
        }
        let mut family =
            out.counter("sealane_revocation_list_replacements_total", "Changed files of revocation lists, by result.");
        family.sample(&[("result", "good")], w.lists_read.0);
        family.sample(&[("result", "refused")], w.lists_read.1);
        let mut family = out.gauge(
            "sealane_revocation_list_expiry_timestamp_seconds",
            "When revocation lists in use expire, in seconds since 1970; 0: there is no list yet.",
        );
        for (source, end) in &w.revocation_lists {
            family.sample(&[("source", source)], end.unwrap_or(0));
        }
        let mut family = out.counter(
            "sealane_log_list_replacements_total",
            "Changed files with lists of transparency logs, by result.",
        );
        family.sample(&[("result", "good")], w.log_lists_read.0);
        family.sample(&[("result", "refused")], w.log_lists_read.1);
        let mut family = out.gauge(
            "sealane_log_list_timestamp_seconds",
            "When lists of transparency logs in use were written, in seconds since 1970; 0: the list has no date.",
        );
        for (file, written) in &w.log_lists {
            family.sample(&[("file", file)], *written);
        }
        if let Some(reporter) = &w.lists_fetched {
            let reports = reporter();
            let mut family =
                out.counter("sealane_revocation_list_requests_total", "Requests for revocation lists, by result.");
            family.sample(&[("result", "updated")], reports.updated);
            family.sample(&[("result", "unchanged")], reports.unchanged);
            family.sample(&[("result", "failed")], reports.failed);
            let mut family = out.gauge(
                "sealane_revocation_list_failing",
                "1 for a URL whose last request returned no valid revocation list.",
            );
            for (url, status) in &reports.lists {
                family.sample(&[("source", url)], u64::from(!status.last_error.is_empty()));
            }
        }
        let started = self.started.0.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        out.gauge("process_start_time_seconds", "When the process was started, in seconds since 1970.")
            .sample(&[], started);
    }

    fn upstreams(&self) -> Vec<UpstreamStatus> {
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
            };
            match groups.iter_mut().find(|g| g.name == s.upstream) {
                Some(group) => group.servers.push(server),
                None => groups.push(UpstreamStatus { name: s.upstream, servers: vec![server] }),
            }
        }
        groups
    }

    /// Changes how a server is used; the sentence says what was done, or why not.
    pub fn change_server(&self, change: &ServerChange) -> Reply {
        let Some(upstreams) = self.metrics.upstreams() else { return Err("there are no upstreams".to_owned()) };
        let ServerChange { upstream, server, drain, weight, default_weight } = change;
        let mut said = Vec::new();
        if let Some(drain) = drain {
            upstreams.set_drain(upstream, server, *drain)?;
            said.push(if *drain { "gets nothing new".to_owned() } else { "is used again".to_owned() });
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

    /// One line for a service manager.
    pub fn sentence(&self) -> String {
        let w = self.written();
        let addresses: Vec<&str> = w.listeners.iter().map(|l| l.address.as_str()).collect();
        format!("serving {} (configuration {}, generation {})", addresses.join(", "), w.configuration, w.generation)
    }

    /// Everything as of now.
    pub fn status(&self) -> Status {
        let cpu = lane_cpu();
        let lanes = self.metrics.lanes().iter().enumerate().map(|(lane, counters)| LaneStatus {
            lane,
            cpu_seconds: cpu.get(&lane).copied(),
            counters: counters
                .values()
                .into_iter()
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
        let w = self.written();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            log_level: crate::log::level().to_string(),
            started: self.started.0.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            uptime: self.started.1.elapsed().as_secs_f64(),
            state: if self.metrics.healthy() { "serving" } else { "draining" }.to_owned(),
            configuration: w.configuration.clone(),
            generation: w.generation,
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

fn certificates(config: &Config) -> Vec<CertificateStatus> {
    let mut found: Vec<CertificateStatus> = Vec::new();
    let mut known = HashSet::new();
    for (_, loaded) in config.certificates() {
        let identity = &loaded.identity;
        let file = identity.source.display().to_string();
        let leaf = identity.chain.first().and_then(|der| X509Certificate::from_der(der).ok());
        let (Some((_, leaf)), true) = (leaf, known.insert(file.clone())) else { continue };
        found.push(CertificateStatus {
            file,
            subject: subject(&leaf),
            issuer: leaf.issuer().to_string(),
            not_before: leaf.validity().not_before.timestamp(),
            not_after: leaf.validity().not_after.timestamp(),
            self_signed: loaded.self_signed,
            refused: String::new(),
            automatic: config.is_automatic(&identity.source).then(AutomaticStatus::default),
            sha256: hex(&loaded.digest),
            digest: loaded.digest,
            ocsp: None,
        });
    }
    found
}

/// The names that a certificate is good for, or its subject.
fn subject(leaf: &X509Certificate) -> String {
    use x509_parser::prelude::GeneralName;
    let extension = leaf.subject_alternative_name().ok().flatten();
    let names = extension.iter().flat_map(|e| &e.value.general_names).filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    });
    let names: Vec<String> = names.collect();
    if names.is_empty() { leaf.subject().to_string() } else { names.join(", ") }
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

    /// Who can reach a port is not who may give commands.
    #[test]
    fn the_reduced_status_has_no_names_of_clients_and_no_settings() {
        let status: Status = serde_json::from_str(
            r#"{"changes":{"generation":7,"at":5,"lines":["+ host.a.to = \"https://10.1.2.3/?key=hush\""]},
                "tunnel":{"connected":1,"interface":"tun0","clients":[{"name":"alice"}]}}"#,
        )
        .unwrap();
        assert!(!status.reduced);
        let reduced = status.clone().reduced();
        let text = serde_json::to_string(&reduced).unwrap();
        assert!(!text.contains("hush") && !text.contains("alice") && !text.contains("10.1.2.3"), "{text}");
        assert!(reduced.reduced && reduced.changes.is_some_and(|changes| changes.generation == 7));
        assert_eq!(reduced.tunnel.map(|tunnel| tunnel.connected), Some(1), "how many there are is told");
    }

    #[test]
    fn the_status_of_another_version_can_be_read() {
        let status: Status = serde_json::from_str(r#"{"pid":1,"new":{},"lanes":[{"lane":0,"more":1}]}"#).unwrap();
        assert_eq!((status.pid, status.lanes.len()), (1, 1));
    }
}
