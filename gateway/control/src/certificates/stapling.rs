//! What is fetched about certificates: OCSP responses for those of listeners (`ocsp_stapling = true`), and revocation lists
//! (`crl` with a URL). The integration `sealane-revocation` fetches them, where this program is built with it; here responses enter the
//! configuration, from which the snapshot is made. Lists are files, which are watched.
//!
//! A certificate with "must staple" that replaces another one waits for its response, for a while: clients would refuse it without.

use crate::config::{CertificateDigest, CertificateFiles, Config, Loaded};
use crate::log;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Whether this program can.
pub const BUILT_IN: bool = cfg!(feature = "revocation");

/// How long a certificate that needs a response waits for it. Afterwards it is served without one: the old one may have been
/// replaced for a reason.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The most issuers without a responder that are named in the log.
const MAX_NAMED: usize = 100;

/// How the response about a certificate stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StapleReport {
    /// "good" or "revoked"; empty where there is no response.
    pub standing: &'static str,
    /// When the response expires, in seconds since 1970.
    pub next_update: Option<u64>,
    /// When the next request is made.
    pub next_request: Option<u64>,
    /// Why the last request failed; empty after one that did not.
    pub last_error: String,
}

/// How the responses about all certificates stand.
#[derive(Clone, Debug, Default)]
pub struct StapleReports {
    /// By certificate.
    pub certificates: HashMap<CertificateDigest, StapleReport>,
    /// Responses that say "good", since the start.
    pub good: u64,
    /// Responses that say "revoked".
    pub revoked: u64,
    /// Requests that failed, and responses that were refused.
    pub failed: u64,
}

/// How a revocation list stands that is fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListStatus {
    /// When the next request is made, in seconds since 1970.
    pub next_request: Option<u64>,
    /// Why the last request failed; empty after one that did not.
    pub last_error: String,
}

/// How all of them stand.
#[derive(Clone, Debug, Default)]
pub struct ListReports {
    /// By URL.
    pub lists: BTreeMap<String, ListStatus>,
    /// Requests that have brought a new list, since the start.
    pub updated: u64,
    /// Requests that have brought the list in use.
    pub unchanged: u64,
    /// Requests that failed, and lists that were refused.
    pub failed: u64,
}

/// What is asked how the lists stand.
pub type ListReporter = Arc<dyn Fn() -> ListReports + Send + Sync>;

/// What control has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// To enter responses into the configuration, and certificates that have waited for theirs.
    Responses,
    /// To look at the files of lists.
    Lists,
}

/// What is asked how the responses stand.
pub type StapleReporter = Arc<dyn Fn() -> StapleReports + Send + Sync>;

/// The integration's task, if there is something for it to do.
#[derive(Debug, Default)]
pub struct Stapling {
    #[cfg(feature = "revocation")]
    manager: Option<sealane_revocation::Manager>,
    #[cfg(feature = "revocation")]
    lists: Option<sealane_revocation::Lists>,
    /// Issuers whose certificates name no responder, which was said.
    without_responder: HashSet<String>,
    /// Certificates that wait for their response, and until when.
    waiting: HashMap<CertificateFiles, (Arc<Loaded>, Instant)>,
}

impl Stapling {
    /// Of certificates that were read again, those that take the place of the old ones now. The others wait for their response.
    pub fn admit(
        &mut self,
        config: &Config,
        new: HashMap<CertificateFiles, Arc<Loaded>>,
        now: Instant,
    ) -> HashMap<CertificateFiles, Arc<Loaded>> {
        let mut admitted = HashMap::new();
        for (files, loaded) in new {
            // What was read before is out of date.
            self.waiting.remove(&files);
            let needs =
                loaded.stated.must_staple && loaded.stated.responder.is_some() && loaded.identity.ocsp.is_none();
            if needs && config.staples(&files) && !self.has(&loaded) {
                let shown = files.cert.display();
                log::info!(
                    "{shown}: the new certificate requires a stapled OCSP response (must staple). Clients get the \
                     previous certificate until the gateway has fetched a response, for at most {} s",
                    LONGEST_WAIT.as_secs()
                );
                self.waiting.insert(files, (loaded, now + LONGEST_WAIT));
            } else {
                admitted.insert(files, loaded);
            }
        }
        self.configure(config);
        admitted
    }

    /// Those that need not wait any longer.
    pub fn ready(&mut self, now: Instant) -> HashMap<CertificateFiles, Arc<Loaded>> {
        let done: Vec<CertificateFiles> = self
            .waiting
            .iter()
            .filter(|(_, (loaded, until))| *until <= now || self.has(loaded))
            .map(|(files, _)| files.clone())
            .collect();
        done.into_iter().filter_map(|files| self.waiting.remove(&files).map(|(loaded, _)| (files, loaded))).collect()
    }

    /// All is as a new configuration says.
    pub fn reconfigure(&mut self, config: &Config) {
        self.waiting.clear();
        self.configure(config);
        for issuer in config.issuers_without_responder() {
            if self.without_responder.len() < MAX_NAMED && self.without_responder.insert(issuer.clone()) {
                log::warn!(
                    "some certificates of {issuer} name no OCSP responder: the gateway sends no OCSP responses with these \
                     certificates"
                );
            }
        }
    }

    /// The first moment at which a certificate has waited long enough.
    fn deadline(&self) -> Option<Instant> {
        self.waiting.values().map(|(_, until)| *until).min()
    }
}

#[cfg(feature = "revocation")]
impl Stapling {
    /// Fetches what a configuration wants, and what certificates wait for. What is known stays known.
    pub fn configure(&mut self, config: &Config) {
        let settings = config.revocation.as_ref().map(|revocation| &revocation.settings);
        if self.manager.as_ref().map(sealane_revocation::Manager::settings) != settings {
            self.manager = settings.cloned().map(sealane_revocation::Manager::start);
        }
        let with_lists = settings.filter(|settings| !settings.lists.is_empty());
        if self.lists.as_ref().map(sealane_revocation::Lists::settings) != with_lists {
            // The old ones first: they write the same files.
            self.lists = None;
            self.lists = with_lists.cloned().map(sealane_revocation::Lists::start);
        }
        let Some(manager) = &self.manager else { return };
        let waiting = self.waiting.values().map(|(loaded, _)| loaded.clone());
        let wanted = config.stapled().into_iter().chain(waiting);
        manager.want(wanted.filter_map(|loaded| sealane_revocation::Wanted::of(&loaded)).collect());
    }

    /// Leaves everything to a successor, or to nobody.
    pub fn stop(&mut self) {
        self.manager = None;
        self.lists = None;
        self.waiting.clear();
    }

    /// The next thing to do. Cancel safe.
    pub async fn next(&self) -> Event {
        let changed = async {
            match &self.manager {
                Some(manager) => manager.changed().await,
                None => std::future::pending().await,
            }
        };
        let waited = async {
            match self.deadline() {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let written = async {
            match &self.lists {
                Some(lists) => lists.written().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed => Event::Responses,
            () = waited => Event::Responses,
            () = written => Event::Lists,
        }
    }

    /// Enters all responses into a configuration. Returns whether it has others now.
    pub fn enter(&self, config: &mut Config) -> bool {
        self.manager.as_ref().is_some_and(|manager| config.set_staples(&manager.staples()))
    }

    /// The same for a configuration that was just read: certificates that are new to us keep the response that was read with them.
    pub fn enter_new(&self, config: &mut Config) -> bool {
        let Some(manager) = &self.manager else { return false };
        let read = config.stapled();
        let staples = manager.staples_with(read.iter().map(|loaded| (loaded.digest, loaded.identity.ocsp.as_deref())));
        config.set_staples(&staples)
    }

    fn has(&self, loaded: &Loaded) -> bool {
        self.manager.as_ref().is_some_and(|manager| manager.has(&loaded.digest))
    }

    /// What tells how all stand.
    pub fn reporter(&self) -> Option<StapleReporter> {
        let reports = self.manager.as_ref()?.reports();
        Some(Arc::new(move || {
            let reports = reports.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let report = |r: &sealane_revocation::Report| StapleReport {
                standing: r.standing,
                next_update: r.next_update,
                next_request: r.next_request,
                last_error: r.last_error.clone(),
            };
            StapleReports {
                certificates: reports.certificates.iter().map(|(digest, r)| (*digest, report(r))).collect(),
                good: reports.good,
                revoked: reports.revoked,
                failed: reports.failed,
            }
        }))
    }
}

#[cfg(feature = "revocation")]
impl Stapling {
    /// What tells how all lists stand.
    pub fn list_reporter(&self) -> Option<ListReporter> {
        let reports = self.lists.as_ref()?.reports();
        Some(Arc::new(move || {
            let reports = reports.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
            let status = |(url, report): (String, sealane_revocation::ListReport)| {
                (url, ListStatus { next_request: report.next_request, last_error: report.last_error })
            };
            ListReports {
                lists: reports.lists.into_iter().map(status).collect(),
                updated: reports.updated,
                unchanged: reports.unchanged,
                failed: reports.failed,
            }
        }))
    }
}

#[cfg(not(feature = "revocation"))]
impl Stapling {
    /// There is nothing to do: a configuration that would want it is refused.
    pub fn configure(&mut self, _: &Config) {}

    /// There is nothing to stop.
    pub fn stop(&mut self) {}

    /// Comes when a certificate has waited, which none does.
    pub async fn next(&self) -> Event {
        match self.deadline() {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
        Event::Responses
    }

    /// There are none.
    pub fn enter(&self, _: &mut Config) -> bool {
        false
    }

    /// There are none.
    pub fn enter_new(&self, _: &mut Config) -> bool {
        false
    }

    fn has(&self, _: &Loaded) -> bool {
        true
    }

    /// Nothing is told.
    pub fn reporter(&self) -> Option<StapleReporter> {
        None
    }

    /// Nothing is told.
    pub fn list_reporter(&self) -> Option<ListReporter> {
        None
    }
}
