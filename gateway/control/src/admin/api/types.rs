//! What the API reads and writes, as far as no other part of control has it.

use super::problem::Mistake;
use crate::metrics::status::{CertificateStatus, ServerStatus, UpstreamStatus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What `GET /v1/servers` says. Unknown fields are to be ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Servers {
    /// Groups of servers, in the order of the configuration.
    pub upstreams: Vec<UpstreamStatus>,
}

/// A server that is to be added.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewServer {
    /// As in `servers` of `[[upstream]]`: `http://10.0.0.7:3000`.
    pub server: String,
    /// Its weight, from 0 to 256.
    #[serde(default = "one")]
    pub weight: u32,
    /// Used only when no other can be.
    #[serde(default)]
    pub backup: bool,
}

fn one() -> u32 {
    1
}

/// How a server is to be used.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerPatch {
    /// It gets nothing new, or does again.
    #[serde(default)]
    pub drain: Option<bool>,
    /// Another weight, from 0 to 256, until the process ends.
    #[serde(default)]
    pub weight: Option<u32>,
    /// The configured weight again.
    #[serde(default)]
    pub default_weight: bool,
}

/// A server after a change: several, if its name has several addresses. Unknown fields are to be ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServersOfOne {
    /// How it stands.
    pub servers: Vec<ServerStatus>,
    /// The change is not in the file: the next upgrade or start ends it.
    pub temporary: bool,
}

/// What `GET /v1/certificates` says. Unknown fields are to be ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Certificates {
    /// Certificates that are shown to clients.
    pub certificates: Vec<CertificateStatus>,
}

/// A certificate that was sent. Unknown fields are to be ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SentCertificate {
    /// How it stands; its `file` is `api:` and the name.
    pub certificates: Vec<CertificateStatus>,
    /// It is not kept: the next upgrade or start ends it.
    pub temporary: bool,
    /// What there is to say of it.
    pub warnings: Vec<Mistake>,
}

/// What `GET /v1/config` says. Unknown fields are to be ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Configuration {
    /// What `If-Match` must have for a change of this configuration.
    pub etag: String,
    /// Counts the configurations that took effect since the start, from 1.
    pub revision: u64,
    /// Counts publications of a configuration or of ticket keys, from 1.
    pub generation: u64,
    /// The configuration's file, or `command line`.
    pub source: String,
    /// The API has applied it, and it is not in the file: the next reload, upgrade or start ends it.
    pub temporary: bool,
    /// In what it differs from the file as it was read last: a line for each setting, `+` where it is new, `-` where it is gone, `~`
    /// where it differs. Secrets are masked, and show no difference.
    pub not_in_file: Vec<String>,
    /// The settings with defaults filled in and secrets masked, as `sealane config show --json` prints them.
    pub settings: serde_json::Value,
}

/// What became of a configuration that was applied. Unknown fields are to be ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Applied {
    /// What `If-Match` must have for a change of this configuration.
    pub etag: String,
    /// Counts the configurations that took effect since the start, from 1.
    pub revision: u64,
    /// The configuration is not in the file: the next reload, upgrade or start ends it.
    pub temporary: bool,
    /// Settings that take effect later, and when.
    pub notes: Vec<String>,
    /// What there is to say of the configuration.
    pub warnings: Vec<Mistake>,
}

/// What there is to say of a configuration without mistakes. Unknown fields are to be ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Validated {
    /// Warnings, each with its place.
    pub warnings: Vec<Mistake>,
}

/// What `GET /v1/history` says. Only its schema is made of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the history writes itself, from a map of series")]
pub(super) struct History {
    range: String,
    step: u64,
    since: u64,
    most: u64,
    at: Vec<u64>,
    series: BTreeMap<String, Vec<Option<f64>>>,
    heat: Heat,
}

/// The part of [`History`] about durations.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "as above")]
struct Heat {
    bounds: Vec<f64>,
    counts: Vec<Vec<u64>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_has_its_schema() {
        let json = crate::metrics::history::History::default().json("5m", 0).unwrap();
        assert!(serde_json::from_value::<History>(json.clone()).is_ok(), "{json}");
    }
}
