//! Names that clients ask for and that the configuration does not list.

use super::{Entry, Saved, Task};
use crate::folder::{certificate_file, is_file_name, state_file};
use crate::http;
use crate::manager::Kept;
use crate::on_demand::{Demand, Gate, MAX_ASKING, Next, Verdict, ask};
use crate::schedule::now;
use sealane_config::{AcmeSettings, AskUrl};
use sealane_log as log;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Semaphore, watch};
use tokio::task::{self, JoinSet};
use tokio_rustls::TlsConnector;

/// What names need that clients ask for.
pub(in crate::manager) struct OnDemand {
    pub(super) gate: Gate,
    pub(super) service: Option<Service>,
    asking: JoinSet<(String, Verdict)>,
    /// Whom each question is about: one that panics cannot say it.
    asked: HashMap<task::Id, String>,
    pub(super) tell: watch::Sender<Kept>,
}

/// The service that decides about names.
#[derive(Clone)]
pub(super) struct Service {
    url: AskUrl,
    tls: Option<TlsConnector>,
    /// Questions that are open at a time.
    room: Arc<Semaphore>,
}

impl Service {
    pub(super) async fn ask(&self, name: &str) -> Verdict {
        let Ok(_room) = self.room.acquire().await else {
            return Verdict::Unanswered("the gateway no longer asks it".into());
        };
        ask(&self.url, self.tls.as_ref(), name).await
    }
}

impl OnDemand {
    pub(in crate::manager) fn new(settings: &AcmeSettings, tell: watch::Sender<Kept>) -> Result<Option<Self>, String> {
        let Some(settings) = settings.on_demand.clone() else { return Ok(None) };
        let service = |url: AskUrl| -> Result<Service, String> {
            let tls = url.tls.then(|| http::tls(&settings.roots)).transpose()?.map(TlsConnector::from);
            Ok(Service { url, tls, room: Arc::new(Semaphore::new(MAX_ASKING)) })
        };
        let service = settings.ask.clone().map(service).transpose()?;
        let gate = Gate::new(settings, Instant::now());
        Ok(Some(Self { gate, service, asking: JoinSet::new(), asked: HashMap::new(), tell }))
    }

    /// The next answer of the service, for a name.
    pub(super) async fn next(this: &mut Option<Self>) -> (String, Verdict) {
        let Some(Self { asking, asked, .. }) = this else { return std::future::pending().await };
        match asking.join_next_with_id().await {
            Some(Ok((id, answer))) => {
                asked.remove(&id);
                answer
            }
            Some(Err(e)) => match asked.remove(&e.id()) {
                Some(name) => (name, Verdict::Unanswered(format!("{e}; this is a bug"))),
                None => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }
}

impl Task {
    /// The names that have certificates on demand.
    pub(super) fn kept(&self) -> BTreeMap<String, u64> {
        let kept = self.entries.iter().filter(|(_, entry)| entry.on_demand && entry.certificate.is_some());
        kept.map(|(name, entry)| (name.clone(), entry.written)).collect()
    }

    pub(super) fn tell_kept(&self) {
        if let Some(on_demand) = &self.on_demand {
            let kept = Arc::new(self.kept());
            on_demand.tell.send_if_modified(|known| std::mem::replace(known, kept.clone()) != kept);
        }
    }

    /// How many certificates on demand there are, or are being ordered.
    pub(super) fn on_demand_entries(&self) -> usize {
        self.entries.values().filter(|entry| entry.on_demand).count()
    }

    /// A client has asked for a name that has no certificate.
    pub(super) fn demand(&mut self, demand: &Demand) {
        let kept = self.on_demand_entries();
        let Some(on_demand) = &mut self.on_demand else { return };
        if self.lock.is_none() {
            on_demand.gate.counts.not_ours += 1;
            return;
        }
        // It has come meanwhile, or the configuration lists it.
        if self.entries.contains_key(&demand.name) {
            on_demand.gate.counts.remembered += 1;
            return;
        }
        match on_demand.gate.demand(demand, Instant::now(), kept, on_demand.asking.len()) {
            Next::Nothing => {}
            Next::Order => self.order_on_demand(&demand.name),
            Next::Ask => {
                let Some(service) = on_demand.service.clone() else { return };
                let name = demand.name.clone();
                let handle = on_demand.asking.spawn(async move {
                    let verdict = service.ask(&name).await;
                    (name, verdict)
                });
                on_demand.asked.insert(handle.id(), demand.name.clone());
            }
        }
    }

    /// The service has said something about a name that a client has asked for.
    pub(super) fn answered(&mut self, name: &str, verdict: &Verdict) {
        let kept = self.on_demand_entries();
        let Some(on_demand) = &mut self.on_demand else { return };
        match verdict {
            Verdict::Allowed => {}
            Verdict::Refused(status) => {
                log::debug!("{name}: \"ask\" refuses a certificate on demand (status {status})")
            }
            Verdict::Unanswered(why) => {
                log::warn!("no certificate is ordered on demand: the service of \"ask\": {why}")
            }
        }
        if on_demand.gate.answered(name, verdict, Instant::now(), kept) == Next::Order {
            self.order_on_demand(name);
        }
    }

    /// A name that clients have asked for gets an order.
    pub(super) fn order_on_demand(&mut self, name: &str) {
        if !is_file_name(name) {
            return;
        }
        log::info!("a client has asked for {name}: a certificate is ordered on demand");
        let directory = self.works[0].settings.directory.clone();
        let saved = Saved { directory, ..Saved::default() };
        self.entries.entry(name.to_owned()).or_insert(Entry { on_demand: true, saved, ..Entry::default() });
        self.tell_known();
    }

    /// Forgets certificates on demand that have expired: nobody has wanted to renew them. A client that asks begins anew.
    pub(super) async fn forget_expired(&mut self) {
        if self.on_demand.is_none() {
            return;
        }
        let now = now();
        let is_over = |entry: &Entry| {
            let expired = entry.certificate.as_ref().is_some_and(|info| info.not_after <= now);
            entry.on_demand && !entry.running && expired
        };
        let over: Vec<String> =
            self.entries.iter().filter(|(_, entry)| is_over(entry)).map(|(name, _)| name.clone()).collect();
        for name in over {
            log::info!("the certificate of {name}, which was ordered on demand, has expired");
            self.forget(&name).await;
        }
    }

    /// Forgets a name that clients have asked for, with its files.
    pub(super) async fn forget(&mut self, name: &str) {
        let Some(entry) = self.entries.remove(name) else { return };
        if entry.certificate.is_some() {
            if let Err(e) = self.save_index().await {
                log::warn!("{e}");
            }
            self.tell_kept();
        }
        self.tell_known();
        self.works[0].forget_pending(name).await;
        for file in [certificate_file(name), state_file(name)] {
            if let Err(e) = self.folder().remove(&file).await {
                log::warn!("{e}");
            }
        }
    }
}
