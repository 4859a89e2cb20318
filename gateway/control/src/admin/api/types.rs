//! What the API reads and writes, as far as no other part of control has it.

use crate::metrics::status::{CertificateStatus, UpstreamStatus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What `GET /v1/servers` says. Unknown fields are to be ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Servers {
    /// Groups of servers, in the order of the configuration.
    pub upstreams: Vec<UpstreamStatus>,
}

/// What `GET /v1/certificates` says. Unknown fields are to be ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Certificates {
    /// Certificates that are shown to clients.
    pub certificates: Vec<CertificateStatus>,
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
    /// The settings with defaults filled in and secrets masked, as `sealane config show --json` prints them.
    pub settings: serde_json::Value,
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
