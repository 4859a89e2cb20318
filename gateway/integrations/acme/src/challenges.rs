//! The table of open challenges: orders enter what has to be answered, control publishes it to the lanes.

use crate::order::Failure;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long control may take to publish an answer.
const PUBLISH_LIMIT: Duration = Duration::from_secs(10);

/// What is to be answered to an authority.
#[derive(Debug)]
pub struct Challenge {
    /// The name that is checked.
    pub name: String,
    /// The answer.
    pub proof: Proof,
}

/// The answer to a challenge.
#[derive(Debug)]
pub enum Proof {
    /// HTTP-01: the last segment of the path, and the body.
    Http {
        /// The last segment of the path: characters of base64url.
        token: String,
        /// The body.
        key_authorization: String,
    },
    /// TLS-ALPN-01: a self-signed certificate with the digest in it, and its key.
    Tls {
        /// The certificate.
        certificate: CertificateDer<'static>,
        /// Its key.
        key: PrivateKeyDer<'static>,
    },
}

/// The open challenges: at most one for each order of this gateway, and those of other gateways.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Counts changes.
    pub version: u64,
    /// In no order.
    pub open: Vec<Arc<Challenge>>,
    /// Those of other gateways, whose answers the store has.
    pub others: Vec<Arc<Challenge>>,
}

/// Where orders enter their challenges.
#[derive(Clone)]
pub(crate) struct Responder {
    table: Arc<watch::Sender<Table>>,
    /// The version that lanes answer from.
    published: watch::Receiver<u64>,
}

impl Responder {
    pub fn new(table: watch::Sender<Table>, published: watch::Receiver<u64>) -> Self {
        Self { table: Arc::new(table), published }
    }

    /// Answers these challenges of other gateways, in place of those before.
    pub fn answer_others(&self, challenges: Vec<Arc<Challenge>>) {
        self.table.send_modify(|table| {
            table.version += 1;
            table.others = challenges;
        });
    }

    /// Enters a challenge, and waits until lanes answer it. They do until the result is dropped.
    pub async fn answer(&self, entry: Arc<Challenge>) -> Result<Answered, Failure> {
        let mut version = 0;
        self.table.send_modify(|table| {
            table.version += 1;
            version = table.version;
            table.open.push(entry.clone());
        });
        let answered = Answered { table: self.table.clone(), entry };
        let mut published = self.published.clone();
        match timeout(PUBLISH_LIMIT, published.wait_for(|v| *v >= version)).await {
            Ok(Ok(_)) => Ok(answered),
            _ => Err(Failure::ours("the answer to the challenge could not be published")),
        }
    }
}

/// A challenge that is answered as long as this exists.
pub(crate) struct Answered {
    table: Arc<watch::Sender<Table>>,
    entry: Arc<Challenge>,
}

impl Drop for Answered {
    fn drop(&mut self) {
        self.table.send_modify(|table| {
            table.version += 1;
            table.open.retain(|entry| !Arc::ptr_eq(entry, &self.entry));
        });
    }
}
