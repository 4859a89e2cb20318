//! What the gateway says of itself: to `sealane status`, `sealane top`, the status page, and programs.
//!
//! Put together when somebody asks, from what lanes count and control knows; lanes notice nothing of it. Control writes down what it
//! does in the [`StatusRegistry`] (`registry`), which also writes it as metrics (`render`).

mod certificates;
mod registry;
mod render;

pub use crate::metrics::reports::{ChangeStatus, TunnelClient, TunnelStatus};
pub(crate) use certificates::named_by;
pub use registry::StatusRegistry;

use crate::config::CertificateDigest;
use crate::metrics::errors::ErrorStatus;
use crate::metrics::problems::ProblemStatus;
use crate::metrics::sampler::{LimitStatus, OperationStatus, PlaceStatus};
use crate::metrics::talkers::ClientStatus;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything, as of now. Unknown fields are to be ignored: newer gateways say more.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The program's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// When it was started, in seconds since 1970.
    pub started: u64,
    /// How long ago that is, in seconds.
    pub uptime: f64,
    /// `serving` or `draining`.
    pub state: String,
    /// The configuration's file, or `command line`.
    pub configuration: String,
    /// The level of the log: `error`, `warn`, `info`, `debug` or `trace`.
    pub log_level: String,
    /// Counts publications of a configuration or of ticket keys, from 1.
    pub generation: u64,
    /// Counts the configurations that took effect since the start, from 1.
    pub revision: u64,
    /// The API has applied the configuration, and it is not in the file: the next reload, upgrade or start ends it.
    pub temporary: bool,
    /// In what the configuration differs from the file as it was read last; lines as in `changes`.
    pub not_in_file: Vec<String>,
    /// Reloads since the start.
    pub reloads: Reloads,
    /// What is listened on.
    pub listeners: Vec<ListenerStatus>,
    /// Processes from before upgrades that still finish requests and upgraded connections, the one that ends last first.
    pub old_processes: Vec<OldProcessStatus>,
    /// Groups of servers.
    pub upstreams: Vec<UpstreamStatus>,
    /// Certificates that are shown to clients.
    pub certificates: Vec<CertificateStatus>,
    /// The lanes, by slot.
    pub lanes: Vec<LaneStatus>,
    /// The counters of all lanes together; names as in [`LaneStatus::counters`].
    pub totals: BTreeMap<String, u64>,
    /// Refused messages, by what was wrong with them; those that are 0 are left out.
    pub refused: BTreeMap<String, u64>,
    /// What is wrong now, and was lately.
    pub problems: Vec<ProblemStatus>,
    /// What operations cost.
    pub operations: Vec<OperationStatus>,
    /// The clients with the most requests or new connections of the last seconds. It takes a second until they are known.
    pub clients: Vec<ClientStatus>,
    /// Hosts and routes that have had requests.
    pub places: Vec<PlaceStatus>,
    /// What has refused clients.
    pub limits: Vec<LimitStatus>,
    /// The newest requests that got 5xx, the newest first.
    pub errors: Vec<ErrorStatus>,
    /// What the newest configuration has changed; `None`: it is the first.
    pub changes: Option<ChangeStatus>,
    /// The tunnel, if there is one.
    pub tunnel: Option<TunnelStatus>,
    /// Lines of the configuration in `changes` and `not_in_file`, the clients of the tunnel and the addresses of clients are left out: the admin socket alone
    /// has them.
    pub reduced: bool,
}

impl Status {
    /// For those who may not give commands: without names and addresses of persons, and without values of settings.
    pub fn reduced(mut self) -> Self {
        self.problems.iter_mut().filter_map(|problem| problem.client.as_mut()).for_each(String::clear);
        self.clients.iter_mut().for_each(|client| client.address.clear());
        self.changes.iter_mut().for_each(|changes| changes.lines.clear());
        self.not_in_file.clear();
        self.tunnel.iter_mut().for_each(|tunnel| tunnel.clients.clear());
        self.reduced = true;
        self
    }
}

/// How reloads went.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Reloads {
    /// Those that took effect.
    pub good: u64,
    /// Those that changed nothing, because something was wrong.
    pub failed: u64,
    /// Upgrades that failed.
    pub upgrades_failed: u64,
    /// What was wrong the last time; empty after one that was good.
    pub last_error: String,
}

/// What a process that drains still finishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OldProcessStatus {
    /// The process.
    pub pid: u32,
    /// Open requests, without upgraded connections.
    pub requests: u64,
    /// Open upgraded and relayed connections.
    pub upgraded: u64,
    /// When it ends at the latest, in seconds since 1970.
    pub until: u64,
}

/// A listening address.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ListenerStatus {
    /// As bound.
    pub address: String,
    /// `http`, `tcp` or `udp`, as in the setting.
    pub mode: String,
    /// Clients speak TLS.
    pub tls: bool,
    /// HTTP/3 is served there as well, over UDP.
    pub http3: bool,
}

/// A group of servers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UpstreamStatus {
    /// As configured.
    pub name: String,
    /// Its servers.
    pub servers: Vec<ServerStatus>,
    /// Servers of the configuration that operators have removed, until the process ends.
    pub removed: Vec<String>,
}

/// A server of a group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStatus {
    /// As configured.
    pub name: String,
    /// As resolved; empty while its name does not resolve.
    pub address: String,
    /// `up`, `backup`, `draining`, `ejected`, or `down` with the reason.
    pub state: String,
    /// In whole units.
    pub weight: u32,
    /// Requests under way.
    pub in_use: u64,
    /// Requests given to it.
    pub requests: u64,
    /// Connections that failed, broke or timed out.
    pub failures: u64,
    /// Why requests fail there at present; empty if they do not.
    pub failing: String,
    /// Operators have added it: it is not in the configuration, and ends with the process.
    pub added: bool,
    /// Operators have set its weight, until the process ends.
    pub weight_is_set: bool,
    /// Operators have begun or ended its drain, until the process ends.
    pub drain_is_set: bool,
}

/// A certificate.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CertificateStatus {
    /// Its file.
    pub file: String,
    /// Whom it names.
    pub subject: String,
    /// Who has signed it.
    pub issuer: String,
    /// When it begins, in seconds since 1970.
    pub not_before: i64,
    /// When it ends, in seconds since 1970.
    pub not_after: i64,
    /// Its subject and its issuer are the same, so no authority has issued it. With `automatic`, the gateway has made it itself until an
    /// authority has issued one.
    pub self_signed: bool,
    /// Why the files are refused as they are now; empty if they are served.
    pub refused: String,
    /// How its renewal stands; `None`: it is renewed by others.
    pub automatic: Option<AutomaticStatus>,
    /// The SHA-256 digest of the certificate, in hexadecimal digits.
    pub sha256: String,
    #[serde(skip)]
    pub(crate) digest: CertificateDigest,
    /// How its OCSP response stands; `None`: the gateway fetches none.
    pub ocsp: Option<OcspStatus>,
    /// Operators have sent it: the configuration does not name it.
    pub added: bool,
    /// It was sent, and is kept for the next start; else what was sent ends with the process.
    pub kept: bool,
}

/// How the OCSP response about a certificate stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OcspStatus {
    /// "good" or "revoked"; empty where no response is sent.
    pub standing: String,
    /// When the response expires, in seconds since 1970.
    pub next_update: Option<u64>,
    /// When the next request is made.
    pub next_request: Option<u64>,
    /// Why the last request failed; empty after one that did not.
    pub last_error: String,
}

/// How the renewal of a certificate stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AutomaticStatus {
    /// When the next order is made, in seconds since 1970; `None`: another process renews.
    pub next: Option<u64>,
    /// Why the last order failed; empty after one that did not.
    pub last_error: String,
    /// It was ordered because a client had asked for its name.
    pub on_demand: bool,
    /// The store through which gateways share it; empty: it is in the folder alone.
    pub store: String,
    /// With a store: the gateway that orders a certificate now; empty: none, as far as is known.
    pub holder: String,
}

/// A lane.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LaneStatus {
    /// Its slot.
    pub lane: usize,
    /// Seconds that its thread has been on a core; `None` where the system does not say.
    pub cpu_seconds: Option<f64>,
    /// Its counters: those of `/metrics`, without the prefix `sealane_` and the suffix `_total`, with their labels.
    pub counters: BTreeMap<String, u64>,
}

/// What `POST /v1/server` asks for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerChange {
    /// The group's name.
    pub upstream: String,
    /// The server's name, as configured.
    pub server: String,
    /// It gets nothing new, or does again.
    #[serde(default)]
    pub drain: Option<bool>,
    /// Another weight, until the process ends.
    #[serde(default)]
    pub weight: Option<u32>,
    /// The configured weight again.
    #[serde(default)]
    pub default_weight: bool,
    /// Write the change into the file, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who can reach a port is not who may give commands.
    #[test]
    fn the_reduced_status_has_no_names_of_clients_and_no_settings() {
        let status: Status = serde_json::from_str(
            r#"{"not_in_file":["+ host.b = \"hush\""],"changes":{"generation":7,"at":5,"lines":["+ host.a.to = \"https://10.1.2.3/?key=hush\""]},
                "problems":[{"kind":"busy_lane","text":"One client","client":"192.0.2.7"},{"kind":"dns"}],
                "clients":[{"address":"192.0.2.8","part":0.5}],
                "tunnel":{"connected":1,"interface":"tun0","clients":[{"name":"alice"}]}}"#,
        )
        .unwrap();
        assert!(!status.reduced);
        let reduced = status.clone().reduced();
        let text = serde_json::to_string(&reduced).unwrap();
        assert!(!text.contains("hush") && !text.contains("alice") && !text.contains("10.1.2.3"), "{text}");
        assert!(!text.contains("192.0.2"), "{text}");
        assert_eq!(reduced.problems[0].client.as_deref(), Some(""), "that there is one is told");
        assert_eq!((reduced.problems[1].client.as_deref(), reduced.clients[0].part), (None, 0.5));
        assert!(reduced.reduced && reduced.changes.is_some_and(|changes| changes.generation == 7));
        assert_eq!(reduced.tunnel.map(|tunnel| tunnel.connected), Some(1), "how many there are is told");
    }

    #[test]
    fn the_status_of_another_version_can_be_read() {
        let status: Status = serde_json::from_str(r#"{"pid":1,"new":{},"lanes":[{"lane":0,"more":1}]}"#).unwrap();
        assert_eq!((status.pid, status.lanes.len()), (1, 1));
    }
}
