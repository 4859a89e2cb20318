//! A tunnel that goes on in another process: what control leaves beside what its plane leaves.
//!
//! ```text
//! asked ─▶ no new handshakes; those under way have a few seconds ─▶ the plane stops ─▶ what it said last is heard
//!       ─▶ HandoverState ─▶ the other process has it and serves: the end
//!                         └▶ it has failed: the same state goes on here
//! ```
//!
//! The successor seals nothing before it has said that it serves, and this process takes its state back only when that
//! word did not come: so no packet id is issued twice. The bytes hold keys; they go through a socket pair and nowhere
//! else.

use super::peer::SavedPeer;
use super::settings::Settings;
use anyhow::{Context as _, Result, bail};
use sealane_config::Tunnel;
use sealane_tunnel::HandOver;
use sealane_tunnel::plane::Transport;
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::sync::oneshot;

/// Everything of a tunnel: control's part as JSON, the plane's in its own form.
pub struct HandoverState {
    /// Clients and their sessions.
    pub control: Vec<u8>,
    /// Sockets, interface, peers, keys.
    pub plane: HandOver,
}

impl std::fmt::Debug for HandoverState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the keys.
        f.debug_struct("HandoverState").field("descriptors", &self.plane.descriptors.len()).finish_non_exhaustive()
    }
}

impl HandoverState {
    /// With duplicates of the descriptors, to be taken back.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        let descriptors = self.plane.descriptors.iter().map(std::os::fd::OwnedFd::try_clone);
        let descriptors = descriptors.collect::<std::io::Result<_>>()?;
        let plane = HandOver { bytes: self.plane.bytes.clone(), descriptors };
        Ok(Self { control: self.control.clone(), plane })
    }
}

/// The state that was handed over, kept until the outcome is known.
#[derive(Debug)]
pub struct Handed {
    /// It.
    pub state: HandoverState,
    /// True: another process serves. Anything else: it is taken back.
    pub outcome: oneshot::Sender<bool>,
}

/// Settings that a running tunnel keeps. A successor that is told others cannot go on with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fixed {
    listen: Vec<(bool, SocketAddr)>,
    device: String,
    lanes: u16,
    mtu: u16,
    network4: Option<(Ipv4Addr, u8)>,
    network6: Option<(Ipv6Addr, u8)>,
    client_to_client: bool,
    data_plane: String,
}

impl Fixed {
    /// Those of some settings.
    pub fn of(settings: &Tunnel) -> Self {
        Self {
            listen: settings.listen.iter().map(|(t, a)| (*t == Transport::Tcp, *a)).collect(),
            device: settings.device.clone(),
            lanes: settings.lanes,
            mtu: settings.mtu,
            network4: settings.network4,
            network6: settings.network6,
            client_to_client: settings.client_to_client,
            data_plane: format!("{:?}", settings.data_plane).to_lowercase(),
        }
    }

    /// Names what is not the same.
    pub fn differs(&self, other: &Self) -> Option<String> {
        let names = [
            ("listen", self.listen != other.listen),
            ("device", self.device != other.device),
            ("lanes", self.lanes != other.lanes),
            ("mtu", self.mtu != other.mtu),
            ("network", self.network4 != other.network4),
            ("network6", self.network6 != other.network6),
            ("client_to_client", self.client_to_client != other.client_to_client),
            ("data_plane", self.data_plane != other.data_plane),
        ];
        let names: Vec<&str> = names.iter().filter(|(_, differs)| *differs).map(|(name, _)| *name).collect();
        (!names.is_empty()).then(|| {
            let which = names.join(", ");
            format!("\"{which}\" in [tunnel] differs from the running tunnel; a change needs a restart")
        })
    }
}

/// What control's part says. Unknown fields are ignored, so that either side can be newer.
#[derive(Serialize, Deserialize)]
pub struct SavedServer {
    pub(super) fixed: Fixed,
    /// Of the gate's cookies.
    pub(super) cookie: [u8; 32],
    /// Of the tokens that clients have in place of passwords.
    pub(super) tokens: [u8; 32],
    pub(super) next_id: u32,
    /// What logins in the browser depend on; `None`: without `[tunnel.oidc]`.
    #[serde(default)]
    pub(super) login_terms: Option<String>,
    #[serde(default)]
    pub(super) notes: Vec<String>,
    pub(super) peers: Vec<SavedPeer>,
}

impl std::fmt::Debug for SavedServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SavedServer").field("peers", &self.peers.len()).finish_non_exhaustive()
    }
}

impl SavedServer {
    /// Reads it, for settings that must fit it.
    pub fn read(bytes: &[u8], settings: &Settings) -> Result<Self> {
        let saved: Self = serde_json::from_slice(bytes).context("the format of the tunnel's sessions is unknown")?;
        if let Some(what) = saved.fixed.differs(&Fixed::of(settings)) {
            bail!("{what}");
        }
        Ok(saved)
    }
}
