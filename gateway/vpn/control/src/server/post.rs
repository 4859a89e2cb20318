//! What is going on, put up for those who ask.

use super::{Server, inside};
use crate::peer::Stage;
use crate::status::{ClientStatus, Status};
use sealane_log as log;
use sealane_ovpn::data::{Format, PeerId};
use sealane_tunnel::plane::{PeerCounters, Transport};
use std::time::Instant;

impl Server {
    pub(super) fn post(&self) {
        let now = Instant::now();
        let seconds = |since: Instant| now.duration_since(since).as_secs();
        let connected = self.peers.values().filter(|p| p.stage == Stage::Connected);
        let mut clients: Vec<ClientStatus> = connected
            .map(|p| {
                let counters: PeerCounters = p.id.and_then(|id| self.plane.counters(id)).unwrap_or_default();
                ClientStatus {
                    name: p.name.clone(),
                    user: p.user.clone(),
                    remote: p.remote.to_string(),
                    transport: if p.transport == Transport::Udp { "udp" } else { "tcp" }.into(),
                    addresses: inside(p.addresses),
                    cipher: p.cipher.name().into(),
                    format: if p.format() == Format::Epoch { "epoch" } else { "stock" }.into(),
                    tls: p.session.tls_described(p.key_id),
                    version: format!("{} {}", p.info.version, p.info.platform).trim().to_owned(),
                    peer_id: p.id.map_or(0, PeerId::get),
                    connected_s: seconds(p.connected_at),
                    key_age_s: seconds(p.key_made),
                    keys: p.keys,
                    rx_bytes: counters.rx_bytes,
                    tx_bytes: counters.tx_bytes,
                    rx_packets: counters.rx_packets,
                    tx_packets: counters.tx_packets,
                    dropped: counters.dropped,
                    certificate_expires: p.certificate.as_ref().map(|(_, end)| *end),
                    group: p.group.clone(),
                }
            })
            .collect();
        clients.sort_by(|a, b| a.name.cmp(&b.name).then(a.peer_id.cmp(&b.peer_id)));
        self.registry.post(Status {
            plane: self.plane.kind().into(),
            notes: self.notes.clone(),
            interface: self.plane.interface().to_owned(),
            clients,
            expiries: self.settings.expiries.iter().map(|&(what, at)| (what.into(), at)).collect(),
            control: self.counts.named(),
            data: self.plane.totals().into_iter().map(|(name, n)| (name.into(), n)).collect(),
        });
        if let Some(path) = &self.settings.status
            && let Err(e) = self.registry.write(path)
            && !self.status_failed.replace(true)
        {
            log::warn!("tunnel: cannot write the status to {}: {e}", path.display());
        }
    }
}
