//! What quinn-proto is told: connection ids that name their lane, keys from the shared ring, and limits.

use crate::quic::congestion::CongestionConfig;
use crate::snapshot::{QuicSettings, Snapshot};
use quinn_proto::{
    AckFrequencyConfig, ConnectionId, ConnectionIdGenerator, EndpointConfig, IdleTimeout, InvalidCid, ServerConfig,
    TransportConfig, ValidationTokenConfig, VarInt,
};
use sealane_tls::ids::{IdKey, MAC_LEN};
use sealane_tls::policy::{ListenerTls, TicketKeys};
use sealane_tls::quic::{self, QuicServer};
use sealane_tls::{BuildError, random};
use std::sync::Arc;
use std::time::Duration;

/// Length of our connection ids: generation (1), lane slot (2, big-endian), random (8), MAC over all of it (5).
pub(crate) const CID_LEN: usize = sealane_sys::steer::CID_LEN;
/// What the MAC covers.
const COVERED: usize = CID_LEN - MAC_LEN;
/// Length of the ids of a predecessor that was built before ids had MACs: generation (1), lane slot (2), random (7).
const LEN_WITHOUT_MAC: usize = 10;
/// The client's streams of its own: control, QPACK's two, and some grease.
const UNI_STREAMS: u32 = 8;
/// Requests that a client may have under way until it has begun a second one, or has stayed: quinn-proto makes entries for
/// each of them, on every connection. With the other streams they fill its tables of 32, and their answers fill a first
/// round trip's window; by the end of that the client knows of the rest (RFC 9114 §6.1 wants 100).
pub(crate) const FIRST_STREAMS: u32 = 20;
/// Packets that a peer need not acknowledge one by one: of half a round trip at most, for the rest of it is bounded by
/// the acknowledgement's delay.
const ACK_EVERY: u32 = 9;
/// Bytes of responses that a client's connection takes before the client has acknowledged any: ten times what its first
/// round trip may carry (RFC 9002 §7.2). [`Connection::widen`](super::connection::Connection::widen) raises it.
const FIRST_SEND_WINDOW: u64 = 128 * 1024;
/// Silence on a connection to a server after which it is asked for a sign of life.
const PING_AFTER: Duration = Duration::from_secs(5);
/// Initials that wait for admission, in quinn-proto's own books.
pub(crate) const MAX_INCOMING: usize = 512;
/// Datagrams kept for each of them: a post-quantum hello and early data.
const INCOMING_BYTES: u64 = 16 * 1024;

/// Makes connection ids by which every packet finds its lane.
struct LaneIds {
    prefix: [u8; 3],
    key: Arc<IdKey>,
}

impl ConnectionIdGenerator for LaneIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let [generation, high, low] = self.prefix;
        let mut chosen = [0; COVERED - 3];
        random::fill(&mut chosen);
        ConnectionId::new(&id_of(generation, u16::from_be_bytes([high, low]), chosen, &self.key))
    }

    /// Ids of others get no stateless reset from us: they cannot be ours.
    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let ours = id.len() == CID_LEN && id[1..3] == self.prefix[1..];
        if ours && self.key.verify(&id[..COVERED], &id[COVERED..]) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        CID_LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// The connection id of a lane, with these random bytes.
pub(crate) fn id_of(generation: u8, slot: u16, random: [u8; COVERED - 3], key: &IdKey) -> [u8; CID_LEN] {
    let mut id = [0; CID_LEN];
    id[0] = generation;
    id[1..3].copy_from_slice(&slot.to_be_bytes());
    id[3..COVERED].copy_from_slice(&random);
    let mac = key.mac(&id[..COVERED]);
    id[COVERED..].copy_from_slice(&mac);
    id
}

/// What a datagram's connection id says, if it may be one of ours or of a predecessor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named<'d> {
    /// Which process.
    pub generation: u8,
    /// Which of the listener's sockets, and so which lane.
    pub slot: usize,
    /// The id; in a short header, which does not say where it ends, as long as ours are.
    id: &'d [u8],
    in_long_header: bool,
}

impl Named<'_> {
    /// Whether a process with this key made the id.
    pub fn is_made_with(&self, key: &IdKey) -> bool {
        self.id.len() == CID_LEN && key.verify(&self.id[..COVERED], &self.id[COVERED..])
    }

    /// Whether it may be the id of a process that puts no MAC into them.
    pub fn may_be_without_mac(&self) -> bool {
        !self.in_long_header || self.id.len() == LEN_WITHOUT_MAC
    }
}

/// Reads a datagram's connection id.
pub(crate) fn named(datagram: &[u8]) -> Option<Named<'_>> {
    let in_long_header = datagram.first()? & 0x80 != 0;
    let id = if in_long_header {
        // RFC 8999 §5.1: version (4), length of the id, the id.
        let (len, rest) = datagram.get(5..)?.split_first()?;
        let len = usize::from(*len);
        rest.get(..len).filter(|_| matches!(len, CID_LEN | LEN_WITHOUT_MAC))?
    } else {
        let rest = &datagram[1..];
        rest.get(..CID_LEN).unwrap_or(rest)
    };
    let [generation, high, low, _, ..] = *id else { return None };
    Some(Named { generation, slot: usize::from(u16::from_be_bytes([high, low])), id, in_long_header })
}

/// An endpoint of a lane.
pub(crate) fn endpoint(keys: &TicketKeys, ids: &Arc<IdKey>, generation: u8, slot: usize) -> Arc<EndpointConfig> {
    let [high, low] = (slot as u16).to_be_bytes();
    let mut config = EndpointConfig::new(quic::reset_key(keys));
    let key = ids.clone();
    config.cid_generator(move || Box::new(LaneIds { prefix: [generation, high, low], key: key.clone() }));
    config.supported_versions(vec![quic::VERSION]);
    let mut seed = [0; 32];
    random::fill(&mut seed);
    config.rng_seed(Some(seed));
    Arc::new(config)
}

/// The server's side of a listener.
pub(crate) fn server(
    tls: &ListenerTls,
    settings: &QuicSettings,
    snapshot: &Snapshot,
) -> Result<Arc<ServerConfig>, BuildError> {
    let keys = &snapshot.ticket_keys;
    let crypto = QuicServer::new(tls, keys)?;
    let mut config = ServerConfig::new(Arc::new(crypto), quic::token_key(keys));
    // Ours are the timers that end connections with clients, those of peers that are gone without a word included; the
    // protocol's would cut off who waits for a slow answer.
    let mut transport = transport(settings, None);
    transport.send_window(first_send_window(settings));
    config.transport_config(Arc::new(transport));
    config.migration(settings.migration);
    // Each is sealed under a key of its own. A client that makes several connections at once gets one on each.
    let mut tokens = ValidationTokenConfig::default();
    tokens.sent(1);
    config.validation_token_config(tokens);
    config.max_incoming(MAX_INCOMING);
    config.incoming_buffer_size(INCOMING_BYTES);
    config.incoming_buffer_size_total(INCOMING_BYTES * MAX_INCOMING as u64 / 4);
    Ok(Arc::new(config))
}

/// What the transport takes for a client that has acknowledged nothing.
pub(super) fn first_send_window(settings: &QuicSettings) -> u64 {
    settings.send_window.min(FIRST_SEND_WINDOW)
}

/// RFC 9000 §18.2's limits, and what makes for few packets. `silence`: how long the peer may say nothing at all.
pub(crate) fn transport(settings: &QuicSettings, silence: Option<Duration>) -> TransportConfig {
    let mut config = TransportConfig::default();
    let window = |n: u64| VarInt::from_u64(n).unwrap_or(VarInt::MAX);
    config.max_concurrent_bidi_streams(VarInt::from_u32(settings.max_streams.min(FIRST_STREAMS)));
    config.max_concurrent_uni_streams(VarInt::from_u32(UNI_STREAMS));
    config.stream_receive_window(window(settings.stream_window));
    config.receive_window(window(settings.connection_window));
    config.send_window(settings.send_window);
    config.max_idle_timeout(silence.and_then(|s| IdleTimeout::try_from(s).ok()));
    // RFC 9114 §5.1: a client that waits for a response keeps the connection from being closed for its silence.
    config.keep_alive_interval(silence.map(|_| PING_AFTER));
    config.datagram_receive_buffer_size(None);
    // Where the peer can be asked for fewer acknowledgements, it is.
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(ACK_EVERY));
    config.ack_frequency_config(Some(acks));
    config.congestion_controller_factory(Arc::new(CongestionConfig::default()));
    config.enable_segmentation_offload(settings.offload);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_their_lane_in_both_kinds_of_headers() {
        let key = Arc::new(IdKey::random());
        let mut ids = LaneIds { prefix: [7, 1, 2], key: key.clone() };
        let id = ids.generate_cid();
        assert!(ids.validate(&id).is_ok());
        let short = [&[0x40][..], &id, &[0; 20]].concat();
        let long = [&[0xc0, 0, 0, 0, 1, CID_LEN as u8][..], &id, &[0; 20]].concat();
        for datagram in [&short, &long] {
            let named = named(datagram).unwrap();
            assert_eq!((named.generation, named.slot), (7, 0x102));
            assert!(named.is_made_with(&key) && !named.is_made_with(&IdKey::random()));
        }
        for cut in 0..=CID_LEN {
            assert!(named(&short[..cut]).is_none_or(|n| !n.is_made_with(&key)));
            assert_eq!(named(&long[..cut + 5]), None);
        }
        // Whatever is changed of it, it is not ours any more.
        for at in 0..CID_LEN {
            let mut forged = *id.first_chunk::<CID_LEN>().unwrap();
            forged[at] ^= 1;
            assert!(ids.validate(&ConnectionId::new(&forged)).is_err());
            let datagram = [&[0x40][..], &forged, &[0; 20]].concat();
            assert!(!named(&datagram).unwrap().is_made_with(&key), "byte {at}");
        }
        let foreign = [&[0xc0, 0, 0, 0, 1, 8][..], &[7; 30]].concat();
        assert_eq!(named(&foreign), None);
    }

    #[test]
    fn ids_of_a_build_without_macs_are_told() {
        let long = |len: u8| [&[0xc0, 0, 0, 0, 1, len][..], &[9, 0, 1], &[3; 30]].concat();
        assert!(named(&long(10)).is_some_and(|n| n.may_be_without_mac() && (n.generation, n.slot) == (9, 1)));
        assert!(named(&long(16)).is_some_and(|n| !n.may_be_without_mac()));
        let short = [&[0x40, 9, 0, 1][..], &[3; 30]].concat();
        assert!(named(&short).is_some_and(|n| n.may_be_without_mac() && (n.generation, n.slot) == (9, 1)));
    }
}
