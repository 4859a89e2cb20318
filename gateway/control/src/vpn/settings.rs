//! What a VPN server is told by the configuration: checked, plain data.

use super::auth::Authenticator;
use super::tls::Endpoint;
use sealane_ovpn::data::Cipher;
use sealane_ovpn::wrap::WrapKey;
use sealane_ovpn::wrap::v2::ServerKey;
use sealane_tunnel::plane::{Keepalive, Prefix, Transport};
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A VPN server's settings. Those under "start" need a restart to change; the rest follows a reload.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Start: where to listen.
    pub listen: Vec<(Transport, SocketAddr)>,
    /// Start: the interface's name.
    pub device: String,
    /// Start: which data plane.
    pub data_plane: sealane_tunnel::Choice,
    /// Start: lanes of the data plane.
    pub lanes: u16,
    /// Start: the longest time that a lane of the user-space plane gathers packets which come fast and singly.
    pub gather: Duration,
    /// Start: the tunnel's MTU.
    pub mtu: u16,
    /// Start: our address and the clients' network.
    pub network4: Option<(Ipv4Addr, u8)>,
    /// Start: the same for IPv6.
    pub network6: Option<(Ipv6Addr, u8)>,
    /// Start: clients may reach each other without the system's routing.
    pub client_to_client: bool,
    /// Start: what control packets are wrapped with.
    pub wrap: WrapKey,
    /// Start: tls-crypt-v2.
    pub wrap_v2: Option<ServerKey>,
    /// TLS.
    pub tls: Endpoint,
    /// Whether clients without a certificate may come.
    pub certificate_optional: bool,
    /// Ciphers, the preferred first.
    pub ciphers: Vec<Cipher>,
    /// The epoch data format for clients that have it.
    pub epoch: bool,
    /// Pings, as clients are told; the server waits twice as long.
    pub keepalive: Keepalive,
    /// TCP inside the tunnel is told segments whose outer packets are no larger; 0: it is not told.
    pub mssfix: u16,
    /// New keys after so long; zero: only when a key is used up.
    pub renegotiate: Duration,
    /// How long an old key may still be used.
    pub transition: Duration,
    /// How long a key exchange may take.
    pub handshake: Duration,
    /// Options for all clients.
    pub push: Vec<String>,
    /// Who is who.
    pub auth: Arc<Authenticator>,
    /// Clients by name.
    pub clients: HashMap<String, ClientSettings>,
    /// Clients that are not among them are refused.
    pub known_clients_only: bool,
    /// One name may be connected several times.
    pub duplicate_names: bool,
    /// Where the status is written, as JSON.
    pub status: Option<PathBuf>,
    /// Where events are written, a JSON object per line.
    pub log: Option<PathBuf>,
    /// Connected clients at a time.
    pub max_clients: usize,
}

/// What one client is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientSettings {
    /// Its address.
    pub address4: Option<Ipv4Addr>,
    /// Its IPv6 address.
    pub address6: Option<Ipv6Addr>,
    /// Networks behind it.
    pub routes: Vec<Prefix>,
    /// Options for it.
    pub push: Vec<String>,
    /// It is refused.
    pub disabled: bool,
}
