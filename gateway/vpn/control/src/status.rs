//! What is going on, for `sealane tunnel status` and for metrics.

use super::output_file;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A connected client.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientStatus {
    /// Its name.
    pub name: String,
    /// Its user name, if it gave one.
    pub user: Option<String>,
    /// From where it is connected.
    pub remote: String,
    /// `udp` or `tcp`.
    pub transport: Cow<'static, str>,
    /// Its addresses inside.
    pub addresses: Vec<String>,
    /// The data channel's cipher.
    pub cipher: Cow<'static, str>,
    /// `stock` or `epoch` packets.
    pub format: Cow<'static, str>,
    /// TLS' version and suite.
    pub tls: String,
    /// Its program and platform, as it says.
    pub version: String,
    /// Its number in packets.
    pub peer_id: u32,
    /// Seconds since it connected.
    pub connected_s: u64,
    /// Seconds since its key was made.
    pub key_age_s: u64,
    /// Keys that it has had.
    pub keys: u64,
    /// IP bytes from it.
    pub rx_bytes: u64,
    /// IP bytes to it.
    pub tx_bytes: u64,
    /// IP packets from it.
    pub rx_packets: u64,
    /// IP packets to it.
    pub tx_packets: u64,
    /// Its data packets that were dropped.
    pub dropped: u64,
    /// When its certificate expires, in seconds since 1970.
    #[serde(default)]
    pub certificate_expires: Option<i64>,
    /// Its group.
    #[serde(default)]
    pub group: Option<String>,
}

/// The whole tunnel.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Which data plane serves: `user` or `kernel`.
    pub plane: Cow<'static, str>,
    /// Why it is this one, and what it leaves out of what the settings ask.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The interface.
    pub interface: String,
    /// Connected clients.
    pub clients: Vec<ClientStatus>,
    /// When certificates and lists of the tunnel expire: `ca`, `server`, `crl`, and seconds since 1970.
    #[serde(default)]
    pub expiries: Vec<(Cow<'static, str>, i64)>,
    /// What control has counted.
    pub control: Vec<(Cow<'static, str>, u64)>,
    /// What the data plane has counted.
    pub data: Vec<(Cow<'static, str>, u64)>,
}

/// Holds the newest status for its readers.
#[derive(Clone, Debug, Default)]
pub struct StatusRegistry(Arc<Mutex<Status>>);

impl StatusRegistry {
    /// Replaces the status.
    pub fn post(&self, status: Status) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// Writes it to a file.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let text = serde_json::to_string_pretty(&self.read())? + "\n";
        output_file::replace(path, &text, 0o666)
    }

    /// A copy.
    pub fn read(&self) -> Status {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What control counts.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Control packets that came.
    pub packets: u64,
    /// Dropped: malformed, not authentic, of no session.
    pub dropped: u64,
    /// Stateless answers to first packets.
    pub answered: u64,
    /// First packets that were refused, cookies among them.
    pub refused: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Sessions turned away since too many were going on.
    pub crowded: u64,
    /// Sessions that made room for newer ones before they were through their handshake.
    pub evicted: u64,
    /// Key exchanges that failed.
    pub failed: u64,
    /// Clients whose name, password or certificate was refused.
    pub unauthorised: u64,
    /// Clients whose password was not looked at, after too many wrong ones.
    pub throttled: u64,
    /// Clients whose password nobody could check: the directory or the program did not answer, or too many waited.
    pub unchecked: u64,
    /// Lines about clients that were left out, since there were too many.
    pub lines_left_out: u64,
    /// Moves and in-band messages of clients that newer ones replaced before they were handled.
    pub replaced: u64,
    /// Clients connected, ever.
    pub connected: u64,
    /// Keys renewed.
    pub renewed: u64,
    /// Clients that fell silent.
    pub expired: u64,
    /// Clients that moved to another address.
    pub floated: u64,
    /// Clients that were disconnected by a command.
    pub kicked: u64,
    /// Events that were not delivered: the queue was full, or the receiver failed or took too long.
    pub events_lost: u64,
    /// Sessions beyond `connect_rate`.
    pub rate_limited: u64,
    /// Clients that were disconnected since they were inactive.
    pub inactive: u64,
    /// Sessions that were ended by `session_timeout`.
    pub session_timeout: u64,
    /// Decisions that a program on the management socket was asked for.
    pub asked: u64,
    /// Of these, those that came too late, or not at all.
    pub unanswered: u64,
    /// Programs on the management socket that were disconnected since they read too slowly.
    pub programs_dropped: u64,
    /// TCP connections that a listener of the gateway handed over (`tunnel = true`).
    pub shared_port: u64,
    /// The same that the data plane did not take: it has no room, or supports only UDP.
    pub shared_port_refused: u64,
    /// Logins in the browser that have begun.
    pub logins: u64,
    /// Of these, those that have let a client in, as far as the provider is concerned.
    pub login_granted: u64,
    /// Those that the provider or the user has refused.
    pub login_denied: u64,
    /// Those whose token was not valid.
    pub login_invalid: u64,
    /// Those of users in none of the groups or domains that may connect.
    pub login_not_allowed: u64,
    /// Those that failed since the provider did not answer.
    pub login_unavailable: u64,
    /// Those that took too long.
    pub login_expired: u64,
    /// Clients that were refused since too many others were logging in.
    pub login_busy: u64,
    /// Clients that cannot open a page.
    pub login_unsupported: u64,
    /// Requests for login pages that were refused.
    pub login_requests_refused: u64,
}

impl Counts {
    /// With names, for metrics.
    pub fn named(&self) -> Vec<(Cow<'static, str>, u64)> {
        let counts = [
            ("packets", self.packets),
            ("dropped", self.dropped),
            ("answered", self.answered),
            ("refused", self.refused),
            ("sessions", self.sessions),
            ("crowded", self.crowded),
            ("evicted", self.evicted),
            ("failed", self.failed),
            ("unauthorised", self.unauthorised),
            ("throttled", self.throttled),
            ("unchecked", self.unchecked),
            ("lines_left_out", self.lines_left_out),
            ("replaced", self.replaced),
            ("connected", self.connected),
            ("renewed", self.renewed),
            ("expired", self.expired),
            ("floated", self.floated),
            ("kicked", self.kicked),
            ("events_lost", self.events_lost),
            ("rate_limited", self.rate_limited),
            ("inactive", self.inactive),
            ("session_timeout", self.session_timeout),
            ("asked", self.asked),
            ("unanswered", self.unanswered),
            ("programs_dropped", self.programs_dropped),
            ("shared_port", self.shared_port),
            ("shared_port_refused", self.shared_port_refused),
            ("logins", self.logins),
            ("login_granted", self.login_granted),
            ("login_denied", self.login_denied),
            ("login_invalid", self.login_invalid),
            ("login_not_allowed", self.login_not_allowed),
            ("login_unavailable", self.login_unavailable),
            ("login_expired", self.login_expired),
            ("login_busy", self.login_busy),
            ("login_unsupported", self.login_unsupported),
            ("login_requests_refused", self.login_requests_refused),
        ];
        counts.map(|(name, n)| (Cow::Borrowed(name), n)).to_vec()
    }
}
