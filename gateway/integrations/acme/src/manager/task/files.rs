//! What the folder keeps of names and authorities, and its lock.

use super::{Entry, Saved, SavedAuthority, Task, share};
use crate::certificate;
use crate::folder::{certificate_file, is_file_name, state_file};
use crate::manager::Kept;
use crate::order::Work;
use crate::schedule::{self, now};
use crate::shared::WAITS_FILE;
use crate::storage::{self, Lease};
use sealane_config::ON_DEMAND_INDEX;
use sealane_log as log;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Task {
    /// Becomes the one that renews, if no other process is; then reads what is there.
    pub(super) async fn take_lock(&mut self) {
        let shown = self.works[0].settings.storage.display().to_string();
        let taken = self.folder().lock().await;
        self.follows = matches!(taken, Ok(None));
        let told = match taken {
            Ok(Some(lock)) => {
                self.lock = Some(lock);
                match self.read_folder().await {
                    Ok(()) => String::new(),
                    Err(e) => {
                        self.lock = None;
                        format!("certificates cannot be renewed: {e}")
                    }
                }
            }
            Ok(None) => format!(
                "another process has the lock of {shown} and renews the certificates in this folder; this process does not"
            ),
            Err(e) => format!("certificates cannot be renewed: {e}"),
        };
        if told != self.told {
            if !told.is_empty() {
                log::warn!("{told}");
            }
            self.told = told;
        }
    }

    async fn read_folder(&mut self) -> std::io::Result<()> {
        let saved = self.folder().read(WAITS_FILE).await?;
        self.waits.fill(0);
        self.take_waits(saved.as_deref());
        let names: Vec<String> = self.entries.keys().cloned().collect();
        for name in names {
            let entry = self.read_entry(&name).await?;
            if entry.certificate.is_none() {
                log::info!(
                    "{name} has no certificate yet: the gateway serves a self-signed certificate until {} issues it",
                    self.works[0].settings.directory
                );
            }
            self.entries.insert(name, entry);
        }
        self.remove_unwanted().await?;
        for (name, written) in self.read_index().await? {
            // One that the configuration lists by now is an ordinary name.
            if self.entries.contains_key(&name) || !is_file_name(&name) {
                continue;
            }
            let entry = self.read_entry(&name).await?;
            if entry.certificate.is_some() {
                self.entries.insert(name, Entry { on_demand: true, written, ..entry });
            }
        }
        self.tell_kept();
        self.tell_known();
        Ok(())
    }

    /// Waits at least as long as this file says.
    pub(super) fn take_waits(&mut self, saved: Option<&[u8]>) {
        // What is damaged counts as not there.
        let saved: SavedAuthority = saved.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default();
        for (work, wait) in self.works.iter().zip(&mut self.waits) {
            let of = |saved: &&SavedAuthority| saved.directory == work.settings.directory;
            let known = std::iter::once(&saved).chain(&saved.others).find(of).map_or(0, |saved| saved.not_before);
            *wait = (*wait).max(known);
        }
    }

    /// What the folder has of a name.
    async fn read_entry(&self, name: &str) -> std::io::Result<Entry> {
        let known = |directory: &str| self.works.iter().any(|work| work.settings.directory == directory);
        let (directory, folder) = (&self.works[0].settings.directory, self.folder());
        let now = now();
        let mut entry = Entry::default();
        let saved = folder.read(&state_file(name)).await?;
        entry.saved = saved.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        // Another authority has refused nothing yet, and issued nothing either.
        entry.foreign = !entry.saved.directory.is_empty() && !known(&entry.saved.directory);
        if !known(&entry.saved.directory) {
            entry.saved = Saved { directory: directory.clone(), ..Saved::default() };
        }
        let pem = folder.read(&certificate_file(name)).await?;
        entry.certificate = match pem.map(|pem| certificate::check(&pem, name)) {
            Some(Ok(info)) => Some(info),
            Some(Err(why)) => {
                let file = certificate_file(name);
                log::warn!("{}/{file} cannot be used: {why}", self.works[0].settings.storage.display());
                None
            }
            None => None,
        };
        if let Some(info) = &entry.certificate {
            let usual = schedule::renewal(info.not_before, info.not_after, share());
            if entry.foreign {
                entry.saved.renew_at = now;
            } else if entry.saved.renew_at == 0 || entry.saved.renew_at > info.not_after {
                entry.saved.renew_at = usual;
            }
            entry.ask_at = (!entry.foreign).then_some(now);
            if info.not_before > now + 3600 {
                log::warn!("the certificate of {name} is not valid yet: is this machine's clock right?");
            }
        }
        Ok(entry)
    }

    /// The names that have got certificates on demand.
    async fn read_index(&self) -> std::io::Result<BTreeMap<String, u64>> {
        let Some(on_demand) = &self.on_demand else { return Ok(BTreeMap::new()) };
        let text = self.folder().read(ON_DEMAND_INDEX).await?.unwrap_or_default();
        Ok(on_demand.gate.settings().read_index(&String::from_utf8_lossy(&text)))
    }

    /// Removes the files of names that got certificates on demand and that are no longer allowed.
    async fn remove_unwanted(&self) -> std::io::Result<()> {
        let (Some(on_demand), folder) = (&self.on_demand, self.folder()) else { return Ok(()) };
        let text = folder.read(ON_DEMAND_INDEX).await?.unwrap_or_default();
        for name in String::from_utf8_lossy(&text).lines().filter_map(|line| Some(line.split_once(' ')?.0)) {
            let wanted = on_demand.gate.settings().admits(name) || self.entries.contains_key(name);
            if !wanted && is_file_name(name) {
                folder.remove(&certificate_file(name)).await?;
                folder.remove(&state_file(name)).await?;
            }
        }
        Ok(())
    }

    /// Where another process renews, this one takes what that one has got on demand.
    pub(super) async fn follow_index(&mut self) {
        if !self.follows {
            return;
        }
        // What cannot be read now is read the next time.
        let Ok(index) = self.read_index().await else { return };
        if let Some(on_demand) = &self.on_demand {
            let kept: Kept = Arc::new(index.into_iter().filter(|(name, _)| !self.entries.contains_key(name)).collect());
            on_demand.tell.send_if_modified(|known| std::mem::replace(known, kept.clone()) != kept);
        }
    }

    /// Keeps on disk which names have certificates on demand.
    pub(super) async fn save_index(&self) -> std::io::Result<()> {
        let text: String = self.kept().iter().map(|(name, written)| format!("{name} {written}\n")).collect();
        self.folder().write(ON_DEMAND_INDEX, text.into_bytes()).await
    }

    /// Keeps the state of a name; under a lease, also for the other gateways.
    pub(super) async fn save(&self, name: &str) {
        let Some(entry) = self.entries.get(name) else { return };
        let kept = storage::Kept::plain(serde_json::to_vec(&entry.saved).unwrap_or_default());
        let lease = entry.lease.clone().unwrap_or(Lease::Local);
        if let Err(e) = self.works[0].storage.write(&state_file(name), kept, &lease).await {
            log::warn!("{e}");
        }
    }

    pub(super) async fn save_local(&self, name: &str) {
        let Some(entry) = self.entries.get(name) else { return };
        let bytes = serde_json::to_vec(&entry.saved).unwrap_or_default();
        if let Err(e) = self.folder().write(&state_file(name), bytes).await {
            log::warn!("{e}");
        }
    }

    /// Keeps on disk when authorities may be asked again.
    pub(super) async fn save_waits(&self, lease: &Lease) {
        let saved = |(work, wait): (&Work, &u64)| SavedAuthority {
            directory: work.settings.directory.clone(),
            not_before: *wait,
            others: Vec::new(),
        };
        let mut all = self.works.iter().zip(&self.waits).map(saved);
        let Some(mut first) = all.next() else { return };
        first.others = all.collect();
        let kept = storage::Kept::plain(serde_json::to_vec(&first).unwrap_or_default());
        if let Err(e) = self.works[0].storage.write(WAITS_FILE, kept, lease).await {
            log::warn!("{e}");
        }
    }
}
