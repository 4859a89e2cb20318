//! Connects listeners with `tunnel = true` to the tunnel: the lanes of the proxy and the tunnel do not know each other.

use crate::config::Config;
use crate::log;
use crate::run::listeners::Listeners;
use crate::vpn::SharedPort;
use sealane_ovpn::packet;
use sealane_proxy::tunnel_port::{FirstBytes, TunnelClient, TunnelPort};
use sealane_tunnel::plane::TakenSocket;
use std::sync::Arc;

/// What lanes hand connections of OpenVPN clients to.
pub fn of(port: SharedPort) -> Arc<TunnelPort> {
    Arc::new(TunnelPort::new(judge, move |client| {
        let TunnelClient { fd, bytes, remote } = client;
        port.hand_over(TakenSocket { fd, bytes, remote })
    }))
}

fn judge(start: &[u8]) -> FirstBytes {
    match packet::FirstBytes::of(start) {
        packet::FirstBytes::Incomplete => FirstBytes::Incomplete,
        packet::FirstBytes::Session => FirstBytes::Tunnel,
        packet::FirstBytes::Other => FirstBytes::Other,
    }
}

/// Says at which listeners OpenVPN clients are served.
pub fn tell(config: &Config, listeners: &Listeners) {
    for listener in config.listeners.iter().filter(|listener| listener.tunnel) {
        log::info!("tunnel: OpenVPN clients at tcp://{}, too, on the port of HTTPS", listeners.shown(listener));
    }
}
