//! Certificates that were issued because clients had asked for their names: their files are read when the ACME integration says that
//! they are there, and enter the configuration without a reload.

use super::watch::{FileSet, Reread};
use crate::config::{Config, ON_DEMAND_INDEX};
use crate::log;
use crate::resolve::{self, SentCertificate};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Names with certificates on demand, each with the time when its file was written.
pub type Wanted = Arc<BTreeMap<String, u64>>;

/// What was read: a name, the time when its file was written, and what is in it.
pub type Read = Vec<(String, u64, Option<SentCertificate>)>;

/// The certificates on demand of a gateway that serves.
#[derive(Debug)]
pub struct OnDemandCertificates {
    /// What was read of each; `None`: it cannot be used.
    known: BTreeMap<String, (u64, Option<SentCertificate>)>,
    wanted: Wanted,
    is_reading: bool,
    tell: mpsc::Sender<Read>,
    found: mpsc::Receiver<Read>,
}

impl OnDemandCertificates {
    /// Those that are in the folder when the gateway starts, so that it serves them from its first handshake on.
    pub async fn of_folder(config: &Config) -> Self {
        let wanted = match config.acme.as_ref().and_then(|acme| Some((acme, acme.settings.on_demand.as_ref()?))) {
            Some((acme, settings)) => {
                let index = resolve::read_small_file(&acme.settings.storage.join(ON_DEMAND_INDEX)).await;
                // Without an index there are none yet.
                index.map(|text| settings.read_index(&String::from_utf8_lossy(&text))).unwrap_or_default()
            }
            None => BTreeMap::new(),
        };
        let (tell, found) = mpsc::channel(1);
        let read = read(config, wanted.clone().into_iter().collect()).await;
        let known = read.into_iter().map(|(name, written, certificate)| (name, (written, certificate))).collect();
        Self { known, wanted: Arc::new(wanted), is_reading: false, tell, found }
    }

    /// These names have certificates now. Reads those that are new.
    pub fn want(&mut self, config: &Config, wanted: Wanted) {
        self.wanted = wanted;
        if !self.is_reading {
            self.read_new(config);
        }
    }

    fn read_new(&mut self, config: &Config) {
        let is_new =
            |(name, written): &(&String, &u64)| self.known.get(*name).is_none_or(|(known, _)| known != *written);
        let new: Vec<(String, u64)> =
            self.wanted.iter().filter(is_new).map(|(name, written)| (name.clone(), *written)).collect();
        let is_over = self.known.keys().any(|name| !self.wanted.contains_key(name));
        if new.is_empty() && !is_over {
            return;
        }
        self.is_reading = true;
        let (reading, tell) = (read(config, new), self.tell.clone());
        tokio::spawn(async move { tell.send(reading.await).await });
    }

    /// What was read. Cancel safe.
    pub async fn next(&mut self) -> Read {
        match self.found.recv().await {
            Some(read) => read,
            // It has a sender of its own.
            None => std::future::pending().await,
        }
    }

    /// Takes what was read; then the certificates are others than before.
    pub fn take(&mut self, config: &Config, read: Read) {
        self.is_reading = false;
        for (name, written, certificate) in read {
            self.known.insert(name, (written, certificate));
        }
        self.known.retain(|name, _| self.wanted.contains_key(name));
        self.read_new(config);
    }

    /// The certificates that a configuration allows.
    pub fn certificates(&self, config: &Config) -> Vec<SentCertificate> {
        let settings = config.acme.as_ref().map(|acme| &acme.settings);
        let is_allowed = |name: &str, (files, _): &SentCertificate| {
            settings.is_some_and(|settings| {
                settings.on_demand.as_ref().is_some_and(|on_demand| on_demand.admits(name))
                    && !settings.names.iter().any(|configured| configured == name)
                    && config.on_demand_files(name).as_ref() == Some(files)
            })
        };
        let known = self.known.iter().filter_map(|(name, (_, certificate))| Some((name, certificate.as_ref()?)));
        known
            .filter(|(name, certificate)| is_allowed(name, certificate))
            .map(|(_, certificate)| certificate.clone())
            .collect()
    }

    /// Forgets what a new configuration does not allow: its folder may be another one.
    pub fn follow(&mut self, config: &Config) {
        let names: Vec<String> = self.certificates(config).into_iter().filter_map(|(files, _)| files.name).collect();
        self.known.retain(|name, _| names.contains(name));
    }
}

/// Reads the certificates of these names.
fn read(config: &Config, names: Vec<(String, u64)>) -> impl Future<Output = Read> + Send + use<> {
    let with_files = |(name, written): (String, u64)| Some((name.clone(), written, config.on_demand_files(&name)?));
    let wanted: Vec<_> = names.into_iter().filter_map(with_files).collect();
    async move {
        let sets = wanted.iter().map(|(_, _, files)| FileSet::Certificate(files.clone())).collect();
        let mut found = BTreeMap::new();
        for read in resolve::read_again(sets).await {
            match read {
                Reread::Certificate(files, Ok((loaded, _))) => drop(found.insert(files.cert.clone(), (files, loaded))),
                Reread::Certificate(files, Err(errors)) => {
                    log::error!("{}: this certificate on demand cannot be used:\n{errors}", files.cert.display());
                }
                _ => {}
            }
        }
        wanted.into_iter().map(|(name, written, files)| (name, written, found.remove(&files.cert))).collect()
    }
}
