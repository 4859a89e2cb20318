//! Certificates from an authority that speaks ACME (RFC 8555): obtained, kept in a folder, and renewed.
//!
//! ```text
//!               ┌────────────────────── manager: one task ──────────────────────┐
//!   settings ──▶│ schedule: when each name is due     folder: lock, files, state │──▶ certificates/NAME.pem
//!   renew NAME ▶│ order: one name, from the order to the certificate             │──▶ events: "written"
//!               └───────┬─────────────────────────────────────────────┬──────────┘
//!                       │ http: deadlines, limits                     │ table of challenges
//!                       ▼                                             ▼
//!                  the authority                          control ──▶ lanes, which answer the authority
//! ```
//!
//! Nothing here touches what is served: control notices the new file, checks it like every other certificate, and replaces the
//! old one. So two gateways may share a folder: the one that holds its lock renews, the others read.

mod certificate;
mod challenges;
mod folder;
mod hook;
mod http;
mod manager;
mod order;
mod schedule;

pub use challenges::{Challenge, Proof, Table};
pub use manager::{Event, Manager, Renewer, Report, Reports};

use rustls::pki_types::CertificateDer;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// How an authority checks that we have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChallengeKind {
    /// A GET over plain HTTP at port 80 (RFC 8555 §8.3).
    Http01,
    /// A TLS handshake at port 443 (RFC 8737).
    TlsAlpn01,
    /// A record in DNS, which a program publishes (RFC 8555 §8.4). The only way for wildcards.
    Dns01,
}

/// From which authority, for which names, and where they are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The URL of the authority's directory.
    pub directory: String,
    /// The authorities that may have signed the certificate of the directory's server.
    pub roots: Vec<CertificateDer<'static>>,
    /// Where the authority may write to: `mailto:admin@example.com`.
    pub contact: Vec<String>,
    /// The key of an account that was agreed on beforehand.
    pub external_account: Option<ExternalAccount>,
    /// The kind of certificate, of those that the authority offers.
    pub profile: Option<String>,
    /// In order of preference; never empty.
    pub challenges: Vec<ChallengeKind>,
    /// The program that publishes records, and its arguments; needed by [`ChallengeKind::Dns01`].
    pub dns_hook: Option<Vec<String>>,
    /// The folder.
    pub storage: PathBuf,
    /// DNS names, lower case; `*.` and a name for a wildcard. Each gets a certificate of its own.
    pub names: Vec<String>,
}

/// External account binding (RFC 8555 §7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// The key's name at the authority.
    pub id: String,
    /// The key for HMAC-SHA256.
    pub key: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the key.
        f.debug_struct("ExternalAccount").field("id", &self.id).finish_non_exhaustive()
    }
}
