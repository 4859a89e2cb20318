//! Certificates whose files have changed are read again, pair by pair, whatever else of the configuration is right or wrong.
//!
//! The files are looked at, as `watch` does for the configuration. A pair counts once it has stood still from one look to the
//! next. A certificate that is replaced before its key is refused for a moment, with the reason, while the old pair serves on;
//! the change of the key is the next one.

use crate::config::{CertificateFiles, Errors, Loaded, Warning};
use crate::resolve;
use crate::run::watch::{Look, Watched};
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

/// A certificate that was read again, or why it is refused.
pub type Reread = (CertificateFiles, Result<(Arc<Loaded>, Vec<Warning>), Errors>);

/// The task that looks at the files of certificates, until it is dropped.
#[derive(Debug)]
pub struct CertificateWatch {
    task: JoinHandle<()>,
    found: mpsc::Receiver<Vec<Reread>>,
    look: Arc<Notify>,
}

impl Drop for CertificateWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl CertificateWatch {
    /// Watches these. `before` and `after` are how files were before and after the configuration was read.
    pub fn start(certificates: Vec<CertificateFiles>, before: &Look, after: &Look) -> Self {
        let watched = certificates.into_iter().map(|files| {
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

    /// The certificates that were read again. Cancel safe.
    pub async fn next(&mut self) -> Vec<Reread> {
        match self.found.recv().await {
            Some(found) => found,
            // There is nothing to watch.
            None => std::future::pending().await,
        }
    }
}

async fn watch(mut certificates: Vec<(CertificateFiles, Watched)>, tell: mpsc::Sender<Vec<Reread>>, now: Arc<Notify>) {
    let mut seen = HashSet::new();
    let all = certificates.iter().flat_map(|(files, _)| files.all());
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
        let mut changed: Vec<CertificateFiles> = Vec::new();
        for (files, watched) in &mut certificates {
            // One file that is both was renamed into its place: there is nothing to wait for.
            let whole = at_once && files.cert == files.key;
            if watched.changed(&look) || whole && watched.changed(&look) {
                changed.push(files.clone());
            }
        }
        if !changed.is_empty() && tell.send(resolve::certificates(changed).await).await.is_err() {
            return;
        }
    }
}
