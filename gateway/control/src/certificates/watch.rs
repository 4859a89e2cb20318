//! Certificates, lists of addresses, tables of redirects and files of users that have changed are read again, each by itself,
//! whatever else of the configuration is right or wrong.
//!
//! The files are looked at, as `watch` does for the configuration. A change counts once it has stood still from one look to the
//! next. A certificate that is replaced before its key is refused for a moment, with the reason, while the old pair serves on;
//! the change of the key is the next one.

use crate::config::{
    AddressSet, AdminTls, AdminTlsFiles, CertificateFiles, Config, Errors, KeyList, Loaded, RedirectTable, TokenKey,
    Users, Warning,
};
use crate::resolve;
use crate::run::watch::{Look, Watched};
use sealane_tls::policy::RevocationLists;
use sealane_tls::transparency::LogList;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

/// How often files are looked at.
const EVERY: Duration = Duration::from_secs(2);
/// And so much longer for each file: ten thousand are looked at every twelve seconds.
const EVERY_FILE: Duration = Duration::from_millis(1);

/// Files that are read again together, and without the rest of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FileSet {
    /// Those of a certificate.
    Certificate(CertificateFiles),
    /// A list of addresses.
    AddressList(PathBuf),
    /// A table of redirects, and whether it ignores case.
    Redirects(PathBuf, bool),
    /// Users of `basic_auth`.
    Users(PathBuf),
    /// Revocation lists.
    RevocationLists(PathBuf),
    /// Those of the tunnel.
    TunnelLists(PathBuf),
    /// A list of transparency logs.
    LogList(PathBuf),
    /// Keys of session tickets.
    TicketKeys(PathBuf),
    /// TLS of the admin listener.
    AdminTls(AdminTlsFiles),
}

impl FileSet {
    /// All that a configuration names.
    pub fn of(config: &Config) -> Vec<Self> {
        let certificates = config.certificate_files().into_iter().map(Self::Certificate);
        let lists = config.address_lists().into_iter().map(Self::AddressList);
        let tables = config.redirect_tables().into_iter().map(|(file, any_case)| Self::Redirects(file, any_case));
        let users = config.users_files().into_iter().map(Self::Users);
        let revoked = config.revocation_lists().into_iter().map(|lists| Self::RevocationLists(lists.source.clone()));
        let tunnel = config.tunnel_lists.iter().cloned().map(Self::TunnelLists);
        let logs = config.log_lists().into_iter().map(|list| Self::LogList(list.source.clone()));
        let keys = config.ticket_keys_file().cloned().map(Self::TicketKeys);
        let admin = config.admin_tls.iter().map(|tls| Self::AdminTls(tls.files().clone()));
        certificates
            .chain(lists)
            .chain(tables)
            .chain(users)
            .chain(revoked)
            .chain(tunnel)
            .chain(logs)
            .chain(keys)
            .chain(admin)
            .collect()
    }

    /// Each file of the set.
    pub fn all(&self) -> impl Iterator<Item = &PathBuf> {
        let (certificate, list, admin) = match self {
            Self::Certificate(files) => (Some(files), None, None),
            Self::AdminTls(files) => (None, None, Some(files)),
            Self::AddressList(file)
            | Self::Redirects(file, _)
            | Self::Users(file)
            | Self::RevocationLists(file)
            | Self::TunnelLists(file)
            | Self::LogList(file)
            | Self::TicketKeys(file) => (None, Some(file), None),
        };
        let certificate = certificate.into_iter().flat_map(CertificateFiles::all);
        certificate.chain(list).chain(admin.into_iter().flat_map(AdminTlsFiles::all))
    }

    /// The private key of a certificate, where a token has it.
    pub fn token(&self) -> Option<&TokenKey> {
        match self {
            Self::Certificate(files) => files.token.as_deref(),
            _ => None,
        }
    }

    /// One file that was renamed into its place, so that there is nothing to wait for once its owner says so.
    fn is_one_file(&self) -> bool {
        match self {
            Self::Certificate(files) => files.cert == files.key,
            Self::RevocationLists(_) | Self::TunnelLists(_) => true,
            _ => false,
        }
    }
}

/// What was read again, or why it is refused.
#[derive(Debug)]
pub enum Reread {
    /// A certificate.
    Certificate(CertificateFiles, Result<(Arc<Loaded>, Vec<Warning>), Errors>),
    /// A list of addresses.
    AddressList(PathBuf, Result<Arc<AddressSet>, Errors>),
    /// A table of redirects.
    Redirects(PathBuf, Result<Arc<RedirectTable>, Errors>),
    /// Users of `basic_auth`.
    Users(PathBuf, Result<Arc<Users>, Errors>),
    /// Revocation lists.
    RevocationLists(PathBuf, Result<Arc<RevocationLists>, Errors>),
    /// Those of the tunnel.
    TunnelLists(PathBuf, Result<Arc<RevocationLists>, Errors>),
    /// A list of transparency logs.
    LogList(PathBuf, Result<Arc<LogList>, Errors>),
    /// Keys of session tickets.
    TicketKeys(PathBuf, Result<Arc<KeyList>, Errors>),
    /// TLS of the admin listener.
    AdminTls(Result<AdminTls, Errors>),
}

/// The task that looks at the files of certificates and lists, until it is dropped.
#[derive(Debug)]
pub struct FileWatch {
    task: JoinHandle<()>,
    found: mpsc::Receiver<Vec<Reread>>,
    look: Arc<Notify>,
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FileWatch {
    /// Watches these. `before` and `after` are how files were before and after the configuration was read.
    pub fn start(sets: Vec<FileSet>, before: &Look, after: &Look) -> Self {
        let watched = sets.into_iter().map(|files| {
            let paths = files.all().cloned().collect();
            let watched = Watched::new(paths, before, after);
            (files, watched)
        });
        let (tell, found) = mpsc::channel(1);
        let look = Arc::new(Notify::new());
        let task = tokio::spawn(watch(watched.collect(), tell, look.clone()));
        Self { task, found, look }
    }

    /// Looks now: a certificate was put in its place as a whole.
    pub fn look_now(&self) {
        self.look.notify_one();
    }

    /// What was read again. Cancel safe.
    pub async fn next(&mut self) -> Vec<Reread> {
        match self.found.recv().await {
            Some(found) => found,
            // There is nothing to watch.
            None => std::future::pending().await,
        }
    }
}

async fn watch(mut sets: Vec<(FileSet, Watched)>, tell: mpsc::Sender<Vec<Reread>>, now: Arc<Notify>) {
    let mut seen = HashSet::new();
    let all = sets.iter().flat_map(|(files, _)| files.all());
    let files: Vec<PathBuf> = all.filter(|path| seen.insert((*path).clone())).cloned().collect();
    if files.is_empty() {
        return;
    }
    let every = EVERY + EVERY_FILE * u32::try_from(files.len()).unwrap_or(u32::MAX);
    loop {
        let at_once = tokio::select! {
            () = tokio::time::sleep(every) => false,
            () = now.notified() => true,
        };
        let look = Look::bounded(files.clone()).await;
        let mut changed: Vec<FileSet> = Vec::new();
        for (files, watched) in &mut sets {
            // One file that is both was renamed into its place: there is nothing to wait for.
            let whole = at_once && files.is_one_file();
            if watched.changed(&look) || whole && watched.changed(&look) {
                changed.push(files.clone());
            }
        }
        if !changed.is_empty() && tell.send(resolve::read_again(changed).await).await.is_err() {
            return;
        }
    }
}
