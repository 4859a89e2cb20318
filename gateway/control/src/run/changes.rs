//! Changes that the API asks the running gateway for. Each is executed as a whole, one after the other, and what came of it goes
//! back to the API.

use super::Running;
use super::reload::{Asked, KeptCertificate, KeptServer};
use crate::admin::api::Applied;
use crate::admin::api::problem::{Mistake, Problem};
use crate::config::{CertificateFiles, Loaded};
use crate::health::{KeptChange, Unchanged};
use crate::resolve::SentCertificate;
use anyhow::Result;
use hyper::body::Bytes;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Certificates that operators may send.
pub(super) const MAX_SENT: usize = 256;

/// What is to be changed.
#[derive(Debug)]
pub enum Change {
    /// A server of an upstream more.
    AddServer {
        /// The upstream's name.
        upstream: String,
        /// As in `servers` of `[[upstream]]`.
        server: String,
        /// Its weight.
        weight: u32,
        /// Used only when no other can be.
        backup: bool,
    },
    /// A server less.
    RemoveServer {
        /// The upstream's name.
        upstream: String,
        /// The server's name.
        server: String,
    },
    /// A change of a server that is written into the file, too.
    KeepServer {
        /// The upstream's name.
        upstream: String,
        /// The change.
        change: KeptChange,
    },
    /// A certificate more, or another one of this name.
    SetCertificate {
        /// What it is called.
        name: String,
        /// What stands for its files.
        files: CertificateFiles,
        /// The certificate.
        loaded: Arc<Loaded>,
        /// Its text, if it is kept for the next start.
        keep: Option<Bytes>,
    },
    /// A certificate less, of those that were sent.
    RemoveCertificate {
        /// What it is called.
        name: String,
        /// It is one that is kept.
        keep: bool,
    },
    /// Checks a whole configuration, and changes nothing.
    Validate(Bytes),
    /// Another configuration.
    Apply(Apply),
}

/// A whole configuration that is to take effect.
#[derive(Debug)]
pub struct Apply {
    /// In TOML.
    pub text: Bytes,
    /// The value of `If-Match`.
    pub expected: String,
    /// Write it into the configuration's file.
    pub keep: bool,
}

impl Apply {
    /// Whether the configuration in force, which has this tag, is the one that is to be replaced (RFC 9110 §13.1.1).
    pub fn expects(&self, etag: &str) -> bool {
        // Weak tags never match here, and begin with W/.
        self.expected.split(',').map(str::trim).any(|expected| expected == "*" || expected == etag)
    }
}

impl From<Unchanged> for Problem {
    fn from(unchanged: Unchanged) -> Self {
        match unchanged {
            Unchanged::Unknown(why) => Self::new(404, why),
            Unchanged::Invalid(why) => Self::new(422, why),
            Unchanged::Conflict(why) => Self::new(409, why),
        }
    }
}

/// What a change has led to.
#[derive(Debug, Default)]
pub struct Changed {
    /// The name of the server that was added.
    pub name: String,
    /// What was applied.
    pub applied: Option<Applied>,
    /// What there is to say of a configuration that was checked.
    pub warnings: Vec<Mistake>,
}

/// What came of a change.
pub type Outcome = Result<Changed, Problem>;

/// A change with the place for what comes of it.
#[derive(Debug)]
pub struct PendingChange {
    /// The change.
    pub change: Change,
    reply: oneshot::Sender<Outcome>,
}

impl PendingChange {
    /// Splits it.
    pub fn take(self) -> (Change, Answer) {
        (self.change, Answer(self.reply))
    }
}

/// The place for what comes of a change.
#[derive(Debug)]
pub struct Answer(oneshot::Sender<Outcome>);

impl Answer {
    /// Whether nobody waits for it any more.
    pub fn is_given_up(&self) -> bool {
        self.0.is_closed()
    }

    /// Waits until nobody waits for it any more.
    pub async fn given_up(&mut self) {
        self.0.closed().await;
    }

    /// Tells the API.
    pub fn send(self, outcome: Outcome) {
        // The client may have gone.
        let _ = self.0.send(outcome);
    }
}

/// Where changes are asked for.
#[derive(Clone, Debug)]
pub struct Changes(mpsc::Sender<PendingChange>);

impl Changes {
    /// A place to ask for changes, and where they arrive.
    pub fn channel() -> (Self, mpsc::Receiver<PendingChange>) {
        let (give, take) = mpsc::channel(16);
        (Self(give), take)
    }

    /// Asks for a change, and waits until it was executed.
    pub async fn make(&self, change: Change) -> Outcome {
        let gone = || Problem::new(503, "the gateway is stopping");
        let (reply, answer) = oneshot::channel();
        self.0.send(PendingChange { change, reply }).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl Running {
    /// Makes a change that the API asks for.
    pub(super) fn change(&mut self, pending: PendingChange) -> Result<()> {
        let (change, answer) = pending.take();
        let changed = match change {
            Change::Apply(apply) => {
                self.load(Asked::Api(apply, answer));
                return Ok(());
            }
            Change::Validate(text) => {
                self.validate(text, answer);
                return Ok(());
            }
            Change::KeepServer { upstream, change } => {
                self.load(Asked::Server(KeptServer { upstream, change, edited: None }, answer));
                return Ok(());
            }
            Change::SetCertificate { name, files, loaded, keep: Some(pem) } => {
                let files = CertificateFiles { is_kept: true, ..files };
                self.load(Asked::Certificate(KeptCertificate { name, sent: Some((files, loaded, pem)) }, answer));
                return Ok(());
            }
            Change::RemoveCertificate { name, keep: true } => {
                self.load(Asked::Certificate(KeptCertificate { name, sent: None }, answer));
                return Ok(());
            }
            Change::SetCertificate { name, files, loaded, keep: None } => {
                let done = self.may_send(&name, true, false);
                let done = done.and_then(|()| self.set_certificate(name, Some((files, loaded))));
                answer.send(done.map(|()| Changed::default()));
                return Ok(());
            }
            Change::RemoveCertificate { name, keep: false } => {
                let done = self.may_send(&name, false, false).and_then(|()| self.set_certificate(name, None));
                answer.send(done.map(|()| Changed::default()));
                return Ok(());
            }
            Change::AddServer { upstream, server, weight, backup } => self
                .upstreams
                .add(&upstream, &server, weight, backup)
                .map(|name| Changed { name, ..Changed::default() }),
            Change::RemoveServer { upstream, server } => {
                self.upstreams.remove(&upstream, &server).map(|()| Changed::default())
            }
        };
        let changed = changed.map_err(Problem::from);
        if changed.is_ok() {
            self.publish_servers()?;
        }
        answer.send(changed);
        Ok(())
    }

    /// Publishes other servers. The caller finds the change in effect: lanes take the snapshot before they read their next request.
    pub(super) fn publish_servers(&mut self) -> Result<()> {
        let generation = self.published.newest().generation + 1;
        let snapshot = self.listeners.snapshot(&self.config, &self.ring, generation)?;
        self.publish(snapshot);
        Ok(())
    }

    /// Whether a certificate may be sent, or removed. `keep`: with its file.
    pub(super) fn may_send(&self, name: &str, is_new: bool, keep: bool) -> Result<(), Problem> {
        if !self.config.listeners.iter().any(|listener| listener.certificates.is_some()) {
            return Err(Problem::new(409, "no listener has TLS: add [listener.tls] to the configuration first"));
        }
        let known = self.sent.get(name).map(|(files, _)| files.is_kept);
        match known {
            None if !is_new => Err(Problem::new(404, format!("the API has not added a certificate {name:?}"))),
            None if self.sent.len() >= MAX_SENT => {
                let detail = format!("the API has added {MAX_SENT} certificates, which is the limit: remove one first");
                Err(Problem::new(409, detail))
            }
            // Else the next start would bring back what nobody sees now.
            Some(true) if !keep => {
                let detail = format!(
                    "the certificate {name:?} is stored in \"storage\" of [admin]: change it with keep=file (option --keep)"
                );
                Err(Problem::new(409, detail))
            }
            _ => Ok(()),
        }
    }

    /// Takes a certificate that operators have sent; `None` removes it.
    pub(super) fn set_certificate(&mut self, name: String, sent: Option<SentCertificate>) -> Result<(), Problem> {
        match sent {
            Some(sent) => drop(self.sent.insert(name, sent)),
            None => drop(self.sent.remove(&name)),
        }
        self.config.set_sent_certificates(&self.sent_certificates());
        self.stapling.configure(&self.config);
        self.stapling.enter(&mut self.config);
        self.publish_configuration().map_err(|e| Problem::new(500, format!("{e:#}")))
    }

    /// The certificates that operators have sent.
    pub(super) fn sent_certificates(&self) -> Vec<SentCertificate> {
        self.sent.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expected_configuration_is_the_one_in_force() {
        let expects = |expected: &str| {
            let apply = Apply { text: Bytes::new(), expected: expected.to_owned(), keep: false };
            apply.expects("\"1-2-3\"")
        };
        assert!(expects("\"1-2-3\"") && expects("*") && expects("\"0\", \"1-2-3\""));
        assert!(!expects("\"1-2-4\"") && !expects("1-2-3") && !expects("W/\"1-2-3\"") && !expects(""));
    }
}
