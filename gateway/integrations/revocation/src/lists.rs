//! The tasks that keep revocation lists, one for each URL: fetch, verify, put the file in its place.

use crate::fetch::{self, Failure};
use crate::folder;
use crate::schedule::{self, now, share};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use sealane_config::{FetchedList, RevocationSettings, parse_revocation_lists};
use sealane_log as log;
use sealane_tls::crl::List;
use sealane_tls::{control_client, root_store};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// The largest list: those of large authorities have 10 MiB.
const MAX_LIST: usize = 32 << 20;
/// How far the clocks of authorities may differ from ours, in seconds.
const SKEW: u64 = 300;
/// The longest sleep: a clock may be set.
const LONGEST_SLEEP: u64 = 60;
/// The shortest time from one request to the next.
const SPACING: u64 = 1;

/// How a list stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListReport {
    /// When the next request is made, in seconds since 1970.
    pub next_request: Option<u64>,
    /// Why the last request failed; empty after one that did not.
    pub last_error: String,
}

/// How all stand.
#[derive(Clone, Debug, Default)]
pub struct ListReports {
    /// By URL.
    pub lists: BTreeMap<String, ListReport>,
    /// Requests that have brought a new list, since the start.
    pub updated: u64,
    /// Requests that have brought the list in use.
    pub unchanged: u64,
    /// Requests that failed, and lists that were refused.
    pub failed: u64,
}

#[derive(Debug, Default)]
struct Shared {
    reports: Arc<Mutex<ListReports>>,
    written: Notify,
}

impl Shared {
    fn reports(&self) -> MutexGuard<'_, ListReports> {
        // Each change is one assignment.
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running tasks. They end when this is dropped.
#[derive(Debug)]
pub struct Lists {
    settings: RevocationSettings,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

impl Lists {
    /// Starts them, in a runtime of tokio's.
    pub fn start(settings: RevocationSettings) -> Self {
        let shared = Arc::new(Shared::default());
        let tls = TlsConnector::from(Arc::new(tls(&settings.roots)));
        let mut tasks = JoinSet::new();
        for list in &settings.lists {
            let task = Task {
                list: list.clone(),
                refresh: settings.refresh.as_secs().max(SPACING),
                tls: tls.clone(),
                shared: shared.clone(),
                held: Vec::new(),
                failures: 0,
            };
            tasks.spawn(task.run());
        }
        Self { settings, shared, _tasks: tasks }
    }

    /// What they were started with.
    pub fn settings(&self) -> &RevocationSettings {
        &self.settings
    }

    /// Waits until a file has been replaced. Cancel safe.
    pub async fn written(&self) {
        self.shared.written.notified().await;
    }

    /// How all stand.
    pub fn reports(&self) -> Arc<Mutex<ListReports>> {
        self.shared.reports.clone()
    }
}

/// The settings of TLS for servers signed by `roots`.
pub(crate) fn tls(roots: &[CertificateDer<'static>]) -> ClientConfig {
    control_client(root_store(roots))
}

struct Task {
    list: FetchedList,
    /// In seconds.
    refresh: u64,
    tls: TlsConnector,
    shared: Arc<Shared>,
    /// The file as it is.
    held: Vec<u8>,
    /// In a row.
    failures: u32,
}

impl Task {
    async fn run(mut self) {
        let mut at = now();
        match folder::read(self.list.file.clone(), MAX_LIST).await {
            Ok(Some(bytes)) if parse_revocation_lists(&self.list.file, &bytes).is_ok() => {
                at = at.max(self.next(&bytes, at));
                self.held = bytes;
            }
            _ => {}
        }
        // Gateways that are started together do not ask together; without a list nothing is waited for.
        if !self.held.is_empty() {
            at = at.saturating_add((share() * self.refresh.min(60) as f64) as u64);
        }
        loop {
            self.report(at, None);
            while schedule::genuine(at, now()) > now() {
                let left = at.saturating_sub(now()).clamp(1, LONGEST_SLEEP);
                tokio::time::sleep(Duration::from_secs(left)).await;
            }
            let done = self.update().await;
            let now = now();
            match done {
                Ok(()) => {
                    if self.failures > 0 {
                        log::info!("{}: the revocation list can be updated again", self.list.url);
                    }
                    self.failures = 0;
                    at = self.next(&self.held, now);
                    self.report(at, Some(String::new()));
                }
                Err(Failure { why, demanded }) => {
                    self.failures = self.failures.saturating_add(1);
                    let wait = schedule::back_off(self.failures, None, demanded, share()).min(self.refresh.max(60));
                    at = now + wait;
                    if self.failures == 1 {
                        log::warn!("the revocation list cannot be updated: {why}");
                    }
                    self.shared.reports().failed += 1;
                    self.report(at, Some(why));
                }
            }
        }
    }

    /// When a list is fetched again: after the usual time, give or take a tenth, or after half of the time until it expires.
    fn next(&self, bytes: &[u8], now: u64) -> u64 {
        let usual = self.refresh as f64 * (0.9 + share() / 5.0);
        let expiry = parse_revocation_lists(&self.list.file, bytes).ok().and_then(|lists| lists.next_update);
        let half = expiry.filter(|expiry| *expiry > now).map_or(u64::MAX, |expiry| (expiry - now) / 2);
        now.saturating_add((usual as u64).min(half).max(SPACING))
    }

    /// Fetches the list, and puts it in the place of the file.
    async fn update(&mut self) -> Result<(), Failure> {
        let bytes = fetch::get(&self.list.url, &self.tls, MAX_LIST).await?;
        if bytes == self.held {
            self.shared.reports().unchanged += 1;
            return Ok(());
        }
        // A list of a million entries takes a while.
        let (list, old) = (self.list.clone(), std::mem::take(&mut self.held));
        let judged = tokio::task::spawn_blocking(move || {
            let verdict = judge(&bytes, &old, &list, now());
            (verdict, bytes, old)
        });
        let (verdict, bytes, old) = judged.await.map_err(|e| format!("{e}; this is a bug"))?;
        self.held = old;
        verdict.map_err(|why| format!("{}: {why}", self.list.url))?;
        let content: Arc<[u8]> = Arc::from(bytes.as_slice());
        folder::write(self.list.file.clone(), content)
            .await
            .map_err(|e| format!("the list was fetched, but cannot be written, so the gateway does not use it: {e}"))?;
        self.held = bytes;
        self.shared.reports().updated += 1;
        self.shared.written.notify_one();
        Ok(())
    }

    fn report(&self, next: u64, error: Option<String>) {
        let mut reports = self.shared.reports();
        let report = reports.lists.entry(self.list.url.clone()).or_default();
        report.next_request = Some(next);
        if let Some(error) = error {
            report.last_error = error;
        }
    }
}

/// Whether lists that were fetched may take the place of the old ones. The error says why not.
fn judge(bytes: &[u8], old: &[u8], list: &FetchedList, now: u64) -> Result<(), String> {
    let read = |bytes: &[u8]| -> Result<Vec<List>, String> {
        let parsed = parse_revocation_lists(&list.file, bytes)?;
        parsed.lists.iter().map(|der| List::read(der)).collect()
    };
    let parsed = parse_revocation_lists(&list.file, bytes)?;
    let old = read(old).unwrap_or_default();
    for der in &parsed.lists {
        let new = List::read(der)?;
        if !new.is_signed_by(der, &list.authorities) {
            return Err("the list is not signed by a certificate of \"ca\"".to_owned());
        }
        if new.this_update > now.saturating_add(SKEW) {
            return Err("the list is from the future: is this machine's clock right?".to_owned());
        }
        // One that somebody has kept, from before a certificate was revoked.
        if old.iter().any(|old| old.issuer == new.issuer && old.this_update > new.this_update) {
            return Err("the list is older than the list in use".to_owned());
        }
    }
    let kept = |old: &List| parsed.lists.iter().any(|der| List::read(der).is_ok_and(|new| new.issuer == old.issuer));
    match old.iter().find(|&old| !kept(old)) {
        None => Ok(()),
        Some(old) => Err(format!(
            "the response has no list of the issuer {}, although the gateway has one; the gateway continues to use the lists that \
             it has",
            old.issuer_name()
        )),
    }
}

#[cfg(test)]
mod tests;
