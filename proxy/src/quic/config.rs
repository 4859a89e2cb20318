//! What quinn-proto is told: connection ids that name their lane, keys from the shared ring, and limits.

use crate::snapshot::{QuicSettings, Snapshot};
use quinn_proto::{
    AckFrequencyConfig, ConnectionId, ConnectionIdGenerator, EndpointConfig, IdleTimeout, InvalidCid, ServerConfig,
    TransportConfig, ValidationTokenConfig, VarInt,
};
use sealane_tls::policy::{ListenerTls, TicketKeys};
use sealane_tls::quic::{self, QuicServer};
use sealane_tls::{BuildError, random};
use std::sync::Arc;
use std::time::Duration;

/// Length of our connection ids: generation (1), lane slot (2, big-endian), random (7).
pub(crate) const CID_LEN: usize = sealane_sys::steer::CID_LEN;
/// The client's streams of its own: control, QPACK's two, and some grease.
const UNI_STREAMS: u32 = 8;
/// Requests that a client may have under way until it has begun a second one, or has stayed: quinn-proto makes entries for
/// each of them, on every connection. With the other streams they fill its tables of 32, and their answers fill a first
/// round trip's window; by the end of that the client knows of the rest (RFC 9114 §6.1 wants 100).
pub(super) const FIRST_STREAMS: u32 = 20;
/// Packets that a peer need not acknowledge one by one: of half a round trip at most, for the rest of it is bounded by
/// the acknowledgement's delay.
const ACK_EVERY: u32 = 9;
/// Silence on a connection to a server after which it is asked for a sign of life.
const PING_AFTER: Duration = Duration::from_secs(5);
/// Initials that wait for admission, in quinn-proto's own books.
pub(crate) const MAX_INCOMING: usize = 512;
/// Datagrams kept for each of them: a post-quantum hello and early data.
const INCOMING_BYTES: u64 = 16 * 1024;

/// Makes connection ids by which every packet finds its lane.
struct LaneIds {
    prefix: [u8; 3],
}

impl ConnectionIdGenerator for LaneIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; CID_LEN];
        id[..3].copy_from_slice(&self.prefix);
        random::fill(&mut id[3..]);
        ConnectionId::new(&id)
    }

    /// Ids of others get no stateless reset from us: they cannot be ours.
    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        if id.len() == CID_LEN && id[1..3] == self.prefix[1..] { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        CID_LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// The generation and the lane slot that a datagram's connection id names, if it is as long as ours are.
pub(crate) fn named(datagram: &[u8]) -> Option<(u8, usize)> {
    let id = match datagram.first()? {
        // RFC 8999 §5.1: version (4), length of the id, the id.
        0x80.. => {
            let (len, rest) = datagram.get(5..)?.split_first()?;
            (usize::from(*len) == CID_LEN).then_some(rest)?
        }
        _ => datagram.get(1..)?,
    };
    let id = id.get(..CID_LEN)?;
    Some((id[0], usize::from(u16::from_be_bytes([id[1], id[2]]))))
}

/// An endpoint of a lane.
pub(crate) fn endpoint(keys: &TicketKeys, generation: u8, slot: usize) -> Arc<EndpointConfig> {
    let [high, low] = (slot as u16).to_be_bytes();
    let mut config = EndpointConfig::new(quic::reset_key(keys));
    config.cid_generator(move || Box::new(LaneIds { prefix: [generation, high, low] }));
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
    config.transport_config(Arc::new(transport(settings, None)));
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
    // RFC 9114 §5.1: whoever waits for an answer keeps the connection from being ended for its silence.
    config.keep_alive_interval(silence.map(|_| PING_AFTER));
    config.datagram_receive_buffer_size(None);
    // Where the peer can be asked for fewer acknowledgements, it is.
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(VarInt::from_u32(ACK_EVERY));
    config.ack_frequency_config(Some(acks));
    config.enable_segmentation_offload(settings.offload);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_their_lane_in_both_kinds_of_headers() {
        let mut ids = LaneIds { prefix: [7, 1, 2] };
        let id = ids.generate_cid();
        assert!(ids.validate(&id).is_ok());
        let short = [&[0x40][..], &id, &[0; 20]].concat();
        let long = [&[0xc0, 0, 0, 0, 1, CID_LEN as u8][..], &id, &[0; 20]].concat();
        assert_eq!((named(&short), named(&long)), (Some((7, 0x102)), Some((7, 0x102))));
        for cut in 0..=CID_LEN {
            assert_eq!(named(&short[..cut]), None);
            assert_eq!(named(&long[..cut + 5]), None);
        }
        let foreign = [&[0xc0, 0, 0, 0, 1, 8][..], &[7; 30]].concat();
        assert_eq!(named(&foreign), None);
    }
}
