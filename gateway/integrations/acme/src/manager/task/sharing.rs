//! Certificates and leases that gateways share through a store.

use super::{Saved, Task, share};
use crate::certificate;
use crate::folder::{certificate_file, is_file_name, pending_file};
use crate::schedule::{self, now};
use crate::shared::{Counters, Known};
use crate::storage::{self, Claim, Ours, StorageError};
use sealane_log as log;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::watch;

/// When a gateway asks again for a lease that another one has, in seconds.
const LEASE_AGAIN: u64 = 5;

/// What is shared with other gateways.
pub(in crate::manager) struct SharedState {
    /// The store, for people.
    pub(in crate::manager) name: String,
    pub(in crate::manager) counters: Arc<Counters>,
    pub(in crate::manager) tell_known: watch::Sender<Known>,
}

impl Task {
    /// Tells the follower of the store which certificates there are.
    pub(super) fn tell_known(&self) {
        if let Some(shared) = &self.shared {
            let known: BTreeMap<String, u64> =
                self.entries.iter().map(|(name, entry)| (name.clone(), entry.version())).collect();
            shared.tell_known.send_replace(Arc::new(known));
        }
    }

    /// What came of the attempt to get the right to order for a name, where other gateways order, too.
    pub(super) async fn claimed(&mut self, name: &str, claim: Result<Claim, StorageError>) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.running = false;
        entry.holder.clear();
        let ours = match claim {
            Ok(Claim::Ours(ours)) => *ours,
            Ok(Claim::Others { holder }) => {
                let why = format!("{holder} orders the certificate of {name} now; this gateway gets it from the store");
                log::debug!("{why}");
                entry.holder = holder;
                return self.postpone(name, &why);
            }
            Err(e) => {
                let why = format!("no certificate is ordered without a lease from the store: {e}");
                if self.told_lease != why {
                    log::warn!("{name}: {why}");
                    self.told_lease.clone_from(&why);
                }
                if let Some(entry) = self.entries.get_mut(name) {
                    entry.obstacle.clone_from(&why);
                }
                return self.postpone(name, &why);
            }
        };
        self.told_lease.clear();
        entry.obstacle.clear();
        let Ours { lease, certificate, state, waits } = ours;
        entry.stored = certificate.as_ref().map_or(0, |kept| kept.version);
        self.take_waits(waits.as_deref());
        let taken = match certificate {
            Some(kept) => self.adopt(name, kept).await,
            None => false,
        };
        let known = state.and_then(|bytes| serde_json::from_slice::<Saved>(&bytes).ok());
        let Some(entry) = self.entries.get_mut(name) else { return };
        if let Some(known) = known.filter(|known| !taken && known.not_before > entry.saved.not_before) {
            // Another gateway has failed: authorities count the attempts of all.
            entry.saved.failures = known.failures;
            entry.saved.not_before = schedule::genuine(known.not_before, now(), schedule::LONGEST_WAIT);
            entry.saved.last_error = known.last_error;
        }
        let asked = !entry.waiting.is_empty();
        let Some(entry) = self.entries.get(name) else { return };
        if asked || self.due(entry) <= now() {
            self.place_order(name, lease);
        }
    }

    /// Asks again later for a lease.
    pub(super) fn postpone(&mut self, name: &str, why: &str) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.spaced = entry.spaced.max(now() + LEASE_AGAIN);
        for asker in std::mem::take(&mut entry.waiting) {
            // The command that asked may have ended.
            let _ = asker.send(Err(format!("{name}: {why}")));
        }
    }

    /// Puts a certificate that another gateway has got in the place of an older one. Whether it is newer.
    pub(super) async fn adopt(&mut self, name: &str, kept: storage::Kept) -> bool {
        if self.lock.is_none() || !is_file_name(name) {
            return false;
        }
        if !self.entries.contains_key(name) {
            let settings = self.on_demand.as_ref().map(|on_demand| on_demand.gate.settings());
            // Other gateways may have other names.
            if !settings
                .is_some_and(|settings| settings.admits(name) && self.on_demand_entries() < settings.max_certificates)
            {
                return false;
            }
        }
        let now = now();
        let ours = self.entries.get(name);
        if ours.is_some_and(|entry| entry.version() >= kept.version) {
            return false;
        }
        let info = match certificate::check(&kept.bytes, name) {
            Ok(info) => info,
            Err(why) => {
                log::warn!("{name}: the certificate in the store cannot be used: {why}");
                return false;
            }
        };
        let is_good = ours.and_then(|entry| entry.certificate.as_ref()).is_some_and(|info| info.not_after > now);
        // An expired one is of use where there is none, since the clock may be wrong; clients that ask for it get a new one.
        if info.not_after <= now && (is_good || ours.is_none_or(|entry| entry.on_demand)) {
            return false;
        }
        if let Err(e) = self.folder().write(&certificate_file(name), kept.bytes.to_vec()).await {
            log::warn!("{e}");
            return false;
        }
        // What was begun here before is out of date.
        if let Err(e) = self.folder().remove(&pending_file(name)).await {
            log::warn!("{e}");
        }
        let is_known = self.works.iter().any(|work| work.settings.directory == kept.directory);
        let directory = if is_known { kept.directory.clone() } else { self.works[0].settings.directory.clone() };
        let is_new = ours.is_none();
        let entry = self.entries.entry(name.to_owned()).or_default();
        entry.on_demand |= is_new;
        entry.saved = Saved {
            directory,
            renew_at: schedule::renewal(info.not_before, info.not_after, share()),
            version: kept.version,
            ..Saved::default()
        };
        entry.ask_at = is_known.then_some(now);
        entry.spaced = now + schedule::SPACING;
        entry.foreign = false;
        entry.written = now.max(entry.written + 1);
        entry.certificate = Some(info);
        entry.holder.clear();
        entry.obstacle.clear();
        let on_demand = entry.on_demand;
        let waiting = if entry.running { Vec::new() } else { std::mem::take(&mut entry.waiting) };
        self.save_local(name).await;
        if on_demand {
            if let Err(e) = self.save_index().await {
                log::warn!("{e}");
            }
            self.tell_kept();
        }
        self.tell_known();
        if let Some(shared) = &self.shared {
            shared.counters.taken.fetch_add(1, Relaxed);
        }
        self.report();
        let _ = self.tell_written.try_send(());
        log::info!("{name}: the certificate that another gateway has got was taken from the store");
        for asker in waiting {
            // The command that asked may have ended.
            let _ = asker.send(Ok(format!("{name}: another gateway has got a certificate")));
        }
        true
    }
}
