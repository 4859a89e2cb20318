//! Takes files that have changed into use without a reload: certificates, OCSP responses, ticket keys, lists and tables.

use super::Running;
use crate::certificates::watch::Reread;
use crate::certificates::{on_demand, validity};
use crate::config::{CertificateFiles, Loaded as Certificate, TicketKeySource};
use crate::log;
use crate::metrics::status::StatusRegistry;
use anyhow::Result;
use std::collections::HashMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

impl Running {
    /// Publishes other ticket keys.
    pub(super) fn publish_keys(&mut self) -> Result<()> {
        let generation = self.published.newest().generation + 1;
        let snapshot = self.listeners.snapshot(&self.config, &self.ring, generation)?;
        self.publish(snapshot);
        self.status.keys_rotated();
        Ok(())
    }

    /// Takes certificates and lists that were read again. What is refused leaves what is served.
    pub(super) fn take_files(&mut self, read: Vec<Reread>) -> Result<()> {
        let mut new = HashMap::new();
        let (mut lists, mut tables, mut users) = (Vec::new(), Vec::new(), Vec::new());
        let (mut revoked, mut logs) = (HashMap::new(), HashMap::new());
        for read in read {
            match read {
                Reread::Certificate(files, Ok((loaded, warnings))) => {
                    let config = &self.config;
                    let in_use = || config.certificates().find(|(of, _)| **of == files).map(|(_, used)| used.clone());
                    if let Err(why) = self.invalid.admit(&files, &loaded, validity::now(), in_use) {
                        let shown = files.cert.display();
                        log::error!("{shown}: the certificate in use stays; the changed files are refused: {why}");
                        self.status.certificate_read(&files.cert, Some(why.to_string()));
                        continue;
                    }
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
                    self.invalid.forget(&files);
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
                    refuse_lists(self.config.name_of_lists(&file), &errors, &self.status);
                }
                Reread::TunnelLists(file, Ok(read)) => {
                    if let Some(vpn) = &self.vpn {
                        let answer = vpn.take_lists(read.lists.iter().map(|list| list.to_vec()).collect());
                        tokio::spawn(tell_of_lists(file, answer, self.status.clone()));
                    }
                }
                Reread::TunnelLists(file, Err(errors)) => refuse_lists(file.display(), &errors, &self.status),
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
                Reread::AdminTls(Ok(tls)) => {
                    let (files, in_use) = (tls.files().clone(), self.config.admin_tls.clone());
                    let admitted = self.invalid_admin.admit(&files, &tls, validity::now(), || in_use.clone());
                    // CAs and revocation lists are not kept from being used by the certificate.
                    let tls = match (admitted, in_use) {
                        (Err(why), Some(in_use)) => {
                            let shown = files.certificate.display();
                            log::error!("{shown}: the certificate in use stays; the changed files are refused: {why}");
                            self.status.certificate_read(&files.certificate, Some(why.to_string()));
                            tls.with_certificate_of(&in_use)
                        }
                        _ => {
                            log::info!("the files of TLS in [admin] have changed: the admin listener now uses them");
                            self.status.certificate_read(&files.certificate, None);
                            tls
                        }
                    };
                    self.admin.secure_by(Some(tls.clone()));
                    self.config.admin_tls = Some(tls);
                }
                Reread::AdminTls(Err(errors)) => {
                    log::error!("[admin]: TLS in use stays; the changed files are refused:\n{errors}");
                    if let Some(tls) = &self.config.admin_tls {
                        self.invalid_admin.forget(tls.files());
                        self.status.certificate_read(&tls.files().certificate, Some(errors.to_string()));
                    }
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

    /// Takes certificates that were not valid when they were read, and are valid now.
    pub(super) fn take_valid(&mut self) -> Result<()> {
        for (files, tls) in self.invalid_admin.ready(validity::now()) {
            log::info!("{}: the certificate is valid now: the admin listener uses it", files.certificate.display());
            self.status.certificate_read(&files.certificate, None);
            self.admin.secure_by(Some(tls.clone()));
            self.config.admin_tls = Some(tls);
        }
        if self.invalid.is_empty() || self.draining {
            return Ok(());
        }
        let ready = self.invalid.ready(validity::now());
        if ready.is_empty() {
            return Ok(());
        }
        for files in ready.keys() {
            log::info!("{}: the certificate is valid now: clients get it", files.cert.display());
            self.status.certificate_read(&files.cert, None);
        }
        let new = self.stapling.admit(&self.config, ready, Instant::now());
        self.replace_certificates(&new)
    }

    /// Takes certificates that were issued on demand.
    pub(super) fn take_on_demand(&mut self, read: on_demand::Read) -> Result<()> {
        self.on_demand.take(&self.config, read);
        if self.draining {
            return Ok(());
        }
        self.config.set_on_demand_certificates(&self.on_demand.certificates(&self.config));
        self.stapling.configure(&self.config);
        self.stapling.enter(&mut self.config);
        self.publish_configuration()
    }

    /// Takes OCSP responses, and certificates that have waited for theirs.
    pub(super) fn take_staples(&mut self) -> Result<()> {
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
    pub(super) fn publish_configuration(&mut self) -> Result<()> {
        let generation = self.published.newest().generation + 1;
        let snapshot = self.listeners.snapshot(&self.config, &self.ring, generation)?;
        self.publish(snapshot);
        self.status.configured(&self.config, &self.listeners, generation);
        Ok(())
    }
}

/// Tells what the tunnel, which knows its CAs, has made of a changed file of revocation lists.
async fn tell_of_lists(file: PathBuf, answer: oneshot::Receiver<Result<(), String>>, status: Arc<StatusRegistry>) {
    match answer.await {
        Ok(Ok(())) => {
            log::info!("{} has changed: the tunnel now uses the new revocation list", file.display());
            status.revocation_lists_read(true);
        }
        Ok(Err(why)) => refuse_lists(file.display(), why, &status),
        // The process is ending.
        Err(_) => {}
    }
}

fn refuse_lists(name: impl Display, why: impl Display, status: &StatusRegistry) {
    log::error!("{name}: the revocation list in use stays; the changed file is refused:\n{why}");
    status.revocation_lists_read(false);
}
