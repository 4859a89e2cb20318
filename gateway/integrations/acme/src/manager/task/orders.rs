//! Orders: when each is due, with which authority, and what comes of it.

use super::{Done, Entry, Task, share};
use crate::certificate;
use crate::folder::certificate_file;
use crate::on_demand::Verdict;
use crate::order::{Failure, Issued, Suggested};
use crate::schedule::{self, now};
use crate::storage::{self, Lease, StorageError};
use rustls::pki_types::CertificateDer;
use sealane_log as log;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use zeroize::Zeroizing;

/// Orders that are open at a time.
const MAX_ORDERS: usize = 4;
/// Of these, orders for names that clients have asked for.
const MAX_ON_DEMAND: usize = 2;
/// Attempts by one authority before another one is asked: one for each way to prove a name that needs no setting.
const ATTEMPTS: usize = 2;
/// How often an authority is asked when it would like a renewal: bounds of what it says itself.
const ASK_AGAIN: (u64, u64) = (60, 86_400);

impl Task {
    pub(super) fn execute_commands(&mut self) {
        while let Some((name, reply)) = self.commanded.pop_front() {
            // An operator may order what clients may demand, whatever the budgets and the service say.
            let settings = self.on_demand.as_ref().map(|on_demand| on_demand.gate.settings());
            let admitted = settings.is_some_and(|settings| settings.admits(&name));
            let full = settings.is_some_and(|settings| self.on_demand_entries() >= settings.max_certificates);
            let without_on_demand = settings.is_none();
            if !self.entries.contains_key(&name) && self.lock.is_some() && admitted && !full {
                self.order_on_demand(&name);
            }
            let refused = match self.entries.get_mut(&name) {
                None if admitted && self.lock.is_none() => Some(self.told.clone()),
                None if admitted && full => Some("\"max_certificates\" of [acme.on_demand] is reached".to_owned()),
                None => {
                    let also = if without_on_demand { "" } else { ", and [acme.on_demand] does not allow this name" };
                    Some(format!("no listener with certificates = \"auto\" orders a certificate for {name}{also}"))
                }
                Some(_) if self.lock.is_none() => Some(self.told.clone()),
                Some(entry) if !entry.running && self.running.len() >= MAX_ORDERS => {
                    Some("too many orders are open: try again".to_owned())
                }
                Some(entry) => {
                    let starts = !entry.running;
                    entry.waiting.push(reply);
                    if starts {
                        self.start_order(&name);
                    }
                    continue;
                }
            };
            // The command that asked may have ended.
            let _ = reply.send(Err(refused.unwrap_or_default()));
        }
    }

    /// The authority for the next order of a name: the first one for two attempts, then the next one, in turn. One that must not
    /// be asked now is passed over, if another may be.
    fn authority_for(&self, entry: &Entry, now: u64) -> usize {
        let wanted = entry.saved.failures as usize / ATTEMPTS;
        let turns = || (0..self.works.len()).map(|i| (wanted + i) % self.works.len());
        turns().find(|i| self.waits[*i] <= now).or_else(|| turns().min_by_key(|i| self.waits[*i])).unwrap_or(0)
    }

    /// When the next order of a name is to be made.
    pub(super) fn due(&self, entry: &Entry) -> u64 {
        entry.due(self.waits[self.authority_for(entry, now())])
    }

    /// The authority that has issued a name's certificate: the only one that knows it.
    fn issuer_of(&self, entry: &Entry) -> Option<usize> {
        self.works.iter().position(|work| work.settings.directory == entry.saved.directory).filter(|_| !entry.foreign)
    }

    pub(super) fn next_due(&self) -> u64 {
        let due = |e: &Entry| self.due(e).min(e.ask_at.unwrap_or(u64::MAX));
        self.entries.values().filter(|e| !e.running).map(due).min().unwrap_or(u64::MAX)
    }

    /// Forgets waits that were computed when the clock ran ahead: it may have been corrected since.
    fn follow_clock(&mut self) {
        let now = now();
        let genuine = |at| schedule::genuine(at, now, schedule::LONGEST_WAIT);
        self.waits.iter_mut().for_each(|wait| *wait = genuine(*wait));
        for entry in self.entries.values_mut() {
            entry.saved.not_before = genuine(entry.saved.not_before);
            entry.spaced = genuine(entry.spaced);
            entry.ask_at = entry.ask_at.map(genuine);
        }
    }

    pub(super) fn start_due(&mut self) {
        self.follow_clock();
        let now = now();
        let mut due: Vec<(u64, String)> = Vec::new();
        let mut ask = Vec::new();
        for (name, entry) in self.entries.iter().filter(|(_, e)| !e.running) {
            match &entry.certificate {
                _ if self.due(entry) <= now => due.push((self.due(entry), name.clone())),
                Some(info)
                    if entry.ask_at.is_some_and(|at| at <= now)
                        && self.issuer_of(entry).is_some_and(|i| self.waits[i] <= now) =>
                {
                    ask.push((name.clone(), info.leaf.clone()));
                }
                _ => {}
            }
        }
        due.sort();
        let mut on_demand = self.entries.values().filter(|entry| entry.on_demand && entry.running).count();
        for (_, name) in due {
            if self.running.len() >= MAX_ORDERS {
                return;
            }
            // The names of the configuration do not wait for those that clients bring.
            if self.entries.get(&name).is_some_and(|entry| entry.on_demand) {
                if on_demand >= MAX_ON_DEMAND {
                    continue;
                }
                on_demand += 1;
            }
            self.start_order(&name);
        }
        for (name, leaf) in ask {
            if self.running.len() >= MAX_ORDERS {
                return;
            }
            self.start_asking(name, leaf);
        }
    }

    /// Begins an order for a name. Where other gateways order for the same names, it begins with the lease.
    fn start_order(&mut self, name: &str) {
        if !self.works[0].storage.is_shared() {
            return self.place_order(name, Lease::Local);
        }
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.running = true;
        let (storage, of) = (self.works[0].storage.clone(), name.to_owned());
        let handle = self.running.spawn(async move {
            let claim = storage.claim(&of).await;
            (of, Done::Claim(claim))
        });
        self.names.insert(handle.id(), name.to_owned());
    }

    pub(super) fn place_order(&mut self, name: &str, lease: Lease) {
        let Some(entry) = self.entries.get(name) else { return };
        let authority = self.authority_for(entry, now());
        let issuer = self.issuer_of(entry);
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.running = true;
        entry.asks = authority;
        entry.lease = Some(lease.clone());
        let (mut work, of, attempt) = (self.works[authority].clone(), name.to_owned(), entry.saved.failures);
        work.lease = lease.clone();
        let mut service = None;
        if entry.on_demand {
            // No records in DNS for names that clients choose.
            let mut settings = (*work.settings).clone();
            settings.challenges.retain(|challenge| !challenge.is_by_dns());
            work.settings = Arc::new(settings);
            // The first time, the service was asked just now.
            let renews = entry.certificate.is_some();
            service = self.on_demand.as_ref().filter(|_| renews).and_then(|on_demand| on_demand.service.clone());
        }
        // Once refused, perhaps because of what it replaces.
        let known = attempt == 0 && issuer == Some(authority);
        let replaces = entry.certificate.as_ref().filter(|_| known).map(|info| info.leaf.clone());
        let handle = self.running.spawn(async move {
            let order = async {
                let verdict = match service {
                    Some(service) => service.ask(&of).await,
                    None => Verdict::Allowed,
                };
                match verdict {
                    Verdict::Allowed => work.obtain(&of, attempt, replaces).await,
                    Verdict::Refused(status) => {
                        Err(Failure::ours(format!("\"ask\" refuses the name (status {status})")))
                    }
                    Verdict::Unanswered(why) => Err(Failure::ours(format!("the service of \"ask\": {why}"))),
                }
            };
            let result = tokio::select! {
                result = order => result,
                () = lease.lost() => {
                    Err(StorageError::Lost("another gateway has taken over the order".to_owned()).into())
                }
            };
            (of, Done::Order(result))
        });
        self.names.insert(handle.id(), name.to_owned());
    }

    fn start_asking(&mut self, name: String, leaf: CertificateDer<'static>) {
        let Some(issuer) = self.entries.get(&name).and_then(|entry| self.issuer_of(entry)) else { return };
        let Some(entry) = self.entries.get_mut(&name) else { return };
        entry.running = true;
        let (work, of) = (self.works[issuer].clone(), name.clone());
        let handle = self.running.spawn(async move {
            let result = work.renewal_window(&leaf).await;
            (of, Done::Window(result))
        });
        self.names.insert(handle.id(), name);
    }

    pub(super) async fn finished(&mut self, name: &str, done: Done) {
        let authority = self.entries.get(name).map_or(0, |entry| entry.asks);
        let result = match done {
            Done::Claim(claim) => return self.claimed(name, claim).await,
            Done::Window(window) => return self.take_window(name, window).await,
            Done::Order(Ok(issued)) => self.keep(name, issued).await,
            Done::Order(Err(failure)) => Err(failure),
        };
        if let Err(failure) = &result
            && failure.account_unknown
        {
            self.works[authority].forget_account().await;
        }
        if let Err(failure) = &result
            && failure.lost
        {
            if let Some(entry) = self.entries.get_mut(name) {
                (entry.running, entry.lease) = (false, None);
            }
            if let Some(shared) = &self.shared {
                shared.counters.lost.fetch_add(1, Relaxed);
            }
            log::warn!("{name}: the order was given up: {}", failure.why);
            return self.postpone(name, &failure.why);
        }
        let now = now();
        let several = self.works.len() > 1;
        let other_is_free = (0..self.works.len()).any(|i| i != authority && self.waits[i] <= now);
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.running = false;
        entry.spaced = now + schedule::spacing(entry.life());
        let lease = entry.lease.clone().unwrap_or(Lease::Local);
        let waiting = std::mem::take(&mut entry.waiting);
        let reply = match result {
            Ok(()) => {
                entry.saved.failures = 0;
                entry.saved.not_before = 0;
                entry.saved.last_error.clear();
                Ok(format!("{name}: a certificate was issued"))
            }
            Err(failure) => {
                entry.saved.failures = entry.saved.failures.saturating_add(1);
                let back_off = schedule::back_off(entry.saved.failures, entry.life(), failure.demanded, share());
                // Where several can be asked, one that is away or limits orders holds up nothing.
                let of_authority = failure.of_authority || several && failure.unreachable;
                let wait = if of_authority && other_is_free { 1 } else { back_off };
                entry.saved.not_before = now + wait;
                let why = match several {
                    true => format!("{}: {}", self.works[authority].settings.directory, failure.why),
                    false => failure.why,
                };
                entry.saved.last_error.clone_from(&why);
                let wait = entry.saved.not_before.max(entry.spaced) - now;
                // Each way to prove it was tried once.
                let gives_up =
                    entry.on_demand && entry.certificate.is_none() && entry.saved.failures as usize >= ATTEMPTS;
                if of_authority {
                    self.waits[authority] = now + back_off;
                    self.save_waits(&lease).await;
                }
                let next = match &self.on_demand {
                    Some(on_demand) if gives_up => {
                        let minutes = on_demand.gate.wait_after_failure(name).as_secs() / 60;
                        format!(
                            "the gateway orders no certificate on demand for this name for the next {minutes} minutes"
                        )
                    }
                    None if gives_up => "the gateway orders no further certificate for this name".to_owned(),
                    _ => format!("next attempt in {wait} s"),
                };
                Err(format!("{name}: the order failed: {why}; {next}"))
            }
        };
        let (on_demand, has_certificate, failures) = self
            .entries
            .get(name)
            .map_or((false, true, 0), |entry| (entry.on_demand, entry.certificate.is_some(), entry.saved.failures));
        if on_demand && !has_certificate {
            // Nothing is kept of a name that may be a stranger's.
            if failures as usize >= ATTEMPTS {
                self.forget(name).await;
                if let Some(on_demand) = &mut self.on_demand {
                    on_demand.gate.failed(name, Instant::now());
                }
            }
        } else {
            self.save(name).await;
        }
        // Other gateways may order from here on.
        if let Some(entry) = self.entries.get_mut(name) {
            entry.lease = None;
        }
        // The state and the report come first: who has seen the counter or the line in the log finds them.
        self.report();
        match &reply {
            Ok(line) => {
                self.reports().issued += 1;
                let _ = self.tell_written.try_send(());
                log::info!("{line} by {}", self.works[authority].settings.directory);
            }
            Err(line) => {
                self.reports().failed += 1;
                log::warn!("{line}");
            }
        }
        for asker in waiting {
            // The command that asked may have ended.
            let _ = asker.send(reply.clone());
        }
    }

    /// Puts what was issued in the place of what is there.
    async fn keep(&mut self, name: &str, issued: Issued) -> Result<(), Failure> {
        let info = certificate::check(&issued.pem, name).map_err(Failure::ours)?;
        let Some(entry) = self.entries.get(name) else { return Ok(()) };
        let mut work = self.works[entry.asks].clone();
        work.lease = entry.lease.clone().unwrap_or(Lease::Local);
        let directory = work.settings.directory.clone();
        let now = now();
        // Larger than that of every certificate before, whatever the clocks of the gateways say.
        let version = now.max(entry.version().max(entry.stored).saturating_add(1));
        let kept = storage::Kept { version, directory: directory.clone(), bytes: Zeroizing::new(issued.pem) };
        work.storage.write(&certificate_file(name), kept, &work.lease).await?;
        work.forget_pending(name).await;
        let dates = (info.not_before, info.not_after);
        let Some(entry) = self.entries.get_mut(name) else { return Ok(()) };
        entry.saved.renew_at = schedule::renewal(dates.0, dates.1, share());
        entry.saved.window = None;
        entry.ask_at = Some(now);
        entry.certificate = Some(info);
        entry.saved.directory = directory;
        entry.saved.version = version;
        entry.foreign = false;
        entry.written = now.max(entry.written + 1);
        let on_demand = entry.on_demand;
        self.tell_known();
        if on_demand {
            self.save_index().await?;
            self.tell_kept();
            if let Some(on_demand) = &mut self.on_demand {
                on_demand.gate.forget(name);
            }
        }
        if now < dates.0.saturating_sub(3600) || now >= dates.1 {
            // It is kept and served: clients have clocks of their own. But renewing it again would lead here again.
            let why = "the certificate that was issued is in use, but is not valid at this time: is this machine's clock right?";
            let _ = self.tell_written.try_send(());
            return Err(Failure::ours(why));
        }
        Ok(())
    }

    async fn take_window(&mut self, name: &str, suggested: Result<Option<Suggested>, Failure>) {
        let now = now();
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.running = false;
        let Some((from, to)) = entry.certificate.as_ref().map(|c| (c.not_before, c.not_after)) else { return };
        match suggested {
            Ok(None) => entry.ask_at = None,
            Err(failure) => {
                // Without it the usual time holds.
                log::debug!("{name}: no renewal information: {}", failure.why);
                entry.ask_at = Some(now + 6 * 3600);
            }
            Ok(Some(Suggested { window, again })) => {
                entry.ask_at = Some(now + again.clamp(ASK_AGAIN.0, ASK_AGAIN.1));
                if entry.saved.window != Some(window) {
                    entry.saved.window = Some(window);
                    entry.saved.renew_at = schedule::renewal_in(window, from, to, share());
                    self.save(name).await;
                }
            }
        }
        // Someone may have asked for a renewal meanwhile.
        if self.entries.get(name).is_some_and(|e| !e.waiting.is_empty()) {
            self.start_order(name);
        }
    }
}
