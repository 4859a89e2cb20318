//! What is counted: by each lane for itself, and for each peer by its lane.

use crate::plane::PeerCounters;
use sealane_lane::counter::Counter;
use sealane_ovpn::data::OpenError;

macro_rules! lane_counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One lane's counters: written by the lane alone, summed by readers.
        #[derive(Debug, Default)]
        pub(super) struct LaneCounters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        impl LaneCounters {
            /// All, by name.
            pub(super) fn values(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.value()),)*]
            }
        }
    };
}

lane_counters! {
    /// Datagrams and TCP frames that came.
    link_received,
    /// Data packets sent.
    link_sent,
    /// Packets that the sockets did not take.
    link_lost,
    /// Messages to the sockets: system calls send many.
    link_messages,
    /// Control packets given to control.
    control_in,
    /// Control packets that control had no room for.
    control_lost,
    /// Control packets sent for control.
    control_out,
    /// Reads from the TUN: packets or super-packets.
    tun_reads,
    /// Writes to the TUN: packets or super-packets.
    tun_writes,
    /// Packets that the TUN did not take: it is backed up, or down.
    tun_lost,
    /// Data packets of no peer.
    drop_unknown_peer,
    /// Data packets whose key the peer has not.
    drop_unknown_key,
    /// Data packets shorter than their header, or longer than a buffer.
    drop_malformed,
    /// Data packets that are not authentic.
    drop_forged,
    /// Data packets seen before.
    drop_replayed,
    /// Data packets behind the replay window, or of an epoch that is not open.
    drop_old,
    /// Packets from a peer with a source address that is not its own.
    drop_source,
    /// Packets from a peer to a destination that its access list does not let it reach.
    drop_access,
    /// Packets from a peer above its rate.
    drop_upload_rate,
    /// Packets to a peer above its rate.
    drop_download_rate,
    /// Plaintexts that are neither IP nor known, and packets from the TUN that contradict themselves.
    drop_inner,
    /// Packets from the TUN for no peer.
    drop_no_route,
    /// Packets for a peer without a key, or with one that is used up.
    drop_no_key,
    /// Packets handed to another lane.
    forwarded,
    /// Packets that another lane had no room for.
    drop_forward,
    /// Peers that moved to another address.
    floats,
    /// TCP connections refused or closed for breaking the framing, for being too many, or for not reading.
    drop_connection,
    /// TCP connections closed because no session began on them in time.
    connection_timeout,
    /// TCP connections without a session that made room for newer ones.
    connection_evicted,
    /// TCP connections that a listener of the gateway accepted (`tunnel = true`).
    connection_taken,
}

impl LaneCounters {
    pub(super) fn not_opened(&self, error: OpenError) {
        match error {
            OpenError::Short | OpenError::NoRoom => &self.drop_malformed,
            OpenError::Forged | OpenError::Exhausted => &self.drop_forged,
            OpenError::Replayed => &self.drop_replayed,
            OpenError::Old | OpenError::Epoch => &self.drop_old,
        }
        .inc();
    }
}

/// One peer's counters: written by its lane.
#[derive(Debug, Default)]
pub(super) struct PeerStats {
    pub rx_packets: Counter,
    pub rx_bytes: Counter,
    pub tx_packets: Counter,
    pub tx_bytes: Counter,
    pub link_rx_bytes: Counter,
    pub link_tx_bytes: Counter,
    pub dropped: Counter,
    /// Milliseconds since the plane started, plus 1, of the last authentic packet; 0: none yet.
    pub heard: Counter,
}

impl PeerStats {
    /// Goes on counting from what another process has counted.
    pub(super) fn resume(from: &PeerCounters) -> Self {
        let stats = Self::default();
        stats.rx_packets.set(from.rx_packets);
        stats.rx_bytes.set(from.rx_bytes);
        stats.tx_packets.set(from.tx_packets);
        stats.tx_bytes.set(from.tx_bytes);
        stats.link_rx_bytes.set(from.link_rx_bytes);
        stats.link_tx_bytes.set(from.link_tx_bytes);
        stats.dropped.set(from.dropped);
        stats
    }

    /// As of `now`, in milliseconds since the plane started.
    pub(super) fn read(&self, now: u64) -> PeerCounters {
        let heard = self.heard.value();
        PeerCounters {
            rx_packets: self.rx_packets.value(),
            rx_bytes: self.rx_bytes.value(),
            tx_packets: self.tx_packets.value(),
            tx_bytes: self.tx_bytes.value(),
            link_rx_bytes: self.link_rx_bytes.value(),
            link_tx_bytes: self.link_tx_bytes.value(),
            dropped: self.dropped.value(),
            idle_ms: (heard > 0).then(|| (now + 1).saturating_sub(heard)),
        }
    }
}
