//! Parts of the status that others know: the tunnel, what a reload has changed, what was sent to a collector.

use crate::metrics::prometheus::Writer;
use crate::traces::TraceReport;
use crate::vpn::status as vpn;
use serde::{Deserialize, Serialize};

/// What a configuration has changed in the one before it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangeStatus {
    /// Its generation.
    pub generation: u64,
    /// When it took effect, in seconds since 1970.
    pub at: u64,
    /// A line for each setting: `+` where it is new, `-` where it is gone, `~` where it differs. Secrets are masked.
    pub lines: Vec<String>,
}

/// The tunnel.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TunnelStatus {
    /// The data plane: `user` or `kernel`.
    pub plane: String,
    /// The interface.
    pub interface: String,
    /// How many clients are connected.
    pub connected: usize,
    /// Clients that are connected, at most 500.
    pub clients: Vec<TunnelClient>,
}

/// A client of the tunnel.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TunnelClient {
    /// Its name.
    pub name: String,
    /// `udp` or `tcp`.
    pub transport: String,
    /// The data channel's cipher.
    pub cipher: String,
    /// Seconds since it connected.
    pub connected: u64,
    /// IP bytes from it.
    pub received: u64,
    /// IP bytes to it.
    pub sent: u64,
    /// Its data packets that were dropped.
    pub dropped: u64,
}

/// Clients of the tunnel that are told.
const MAX_CLIENTS: usize = 500;

impl From<vpn::Status> for TunnelStatus {
    fn from(status: vpn::Status) -> Self {
        let connected = status.clients.len();
        let client = |client: vpn::ClientStatus| TunnelClient {
            name: client.name,
            transport: client.transport.into_owned(),
            cipher: client.cipher.into_owned(),
            connected: client.connected_s,
            received: client.rx_bytes,
            sent: client.tx_bytes,
            dropped: client.dropped,
        };
        let clients = status.clients.into_iter().take(MAX_CLIENTS).map(client).collect();
        Self { plane: status.plane.into_owned(), interface: status.interface, connected, clients }
    }
}

/// Writes how the export of metrics and of the log stands.
pub fn render_telemetry(reports: &[TraceReport; 2], out: &mut Writer) {
    let signals = || ["metrics", "logs"].into_iter().zip(reports);
    let mut family = out.counter(
        "sealane_otlp_items_total",
        "Data points of metrics and lines of the log for the collector of [otlp], by result.",
    );
    for (signal, report) in signals() {
        for (result, count) in [("exported", report.exported), ("failed", report.failed), ("rejected", report.rejected)]
        {
            family.sample(&[("signal", signal), ("result", result)], count);
        }
    }
    family.sample(&[("signal", "logs"), ("result", "lost")], crate::log::lost_exports());
    let mut family = out.gauge(
        "sealane_otlp_failing",
        "1 if the collector of [otlp] did not accept the last batch of metrics, or of lines of the log.",
    );
    for (signal, report) in signals() {
        family.sample(&[("signal", signal)], u64::from(!report.last_error.is_empty()));
    }
}
