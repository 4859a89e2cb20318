//! Keys of QUIC's packets (RFC 9001 §5), as quinn-proto wants them.
//!
//! Three things are done for it here. The first packets' keys, which it asks for once when a connection knocks and once
//! when it is let in, are made once. The keys of the next key update, which it asks for in advance, are made when they
//! are used, or when the connection has turned out to be one that lasts. And what is opened comes without the padding at
//! its end ([`quic_padding`]): quinn-proto reads padding as so many frames of a byte each, and every client pads its
//! first datagrams to 1,200 bytes or more (*measured*: a sixth of a handshake's time).

use crate::quic_padding::without_padding;
use bytes::BytesMut;
use quinn_proto::crypto::{self, CryptoError, HeaderKey, KeyPair, Keys};
use quinn_proto::{ConnectionId, Side};
use rustls::quic::{self, HeaderProtectionKey, PacketKeySet, Secrets, Suite};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// First packets' keys that are kept for those who come in: more connections than knock in one turn of a lane.
const KNOCKING: usize = 64;

/// Keys of one level.
pub(crate) fn keys(pair: quic::Keys) -> Keys {
    Keys {
        header: KeyPair { local: Box::new(pair.local.header), remote: Box::new(pair.remote.header) },
        packet: KeyPair { local: packet_key(pair.local.packet), remote: packet_key(pair.remote.packet) },
    }
}

/// A packet key.
pub(crate) fn packet_key(key: Box<dyn quic::PacketKey>) -> Box<dyn crypto::PacketKey> {
    Box::new(PacketKey(key))
}

// ---- Packets --------------------------------------------------------------------------------------------------------

struct PacketKey<K>(K);

/// Where a packet key lies.
trait Held: Send + Sync {
    fn key(&self) -> &dyn quic::PacketKey;
}

impl Held for Box<dyn quic::PacketKey> {
    fn key(&self) -> &dyn quic::PacketKey {
        &**self
    }
}

impl<K: Held> crypto::PacketKey for PacketKey<K> {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let key = self.0.key();
        let Some((header, rest)) = buf.split_at_mut_checked(header_len) else { return };
        let Some(at) = rest.len().checked_sub(key.tag_len()) else { return };
        let (payload, tag) = rest.split_at_mut(at);
        // It fails only for a payload beyond the AEAD's limit, of gigabytes. Then nothing readable goes out.
        match key.encrypt_in_place(packet, header, payload) {
            Ok(made) => tag.copy_from_slice(made.as_ref()),
            Err(_) => payload.fill(0),
        }
    }

    fn decrypt(&self, packet: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        let opened = self.0.key().decrypt_in_place(packet, header, payload).map_err(|_| CryptoError)?;
        let kept = without_padding(opened).len();
        payload.truncate(kept);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.0.key().tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.0.key().confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.0.key().integrity_limit()
    }
}

// ---- The keys of the next key update --------------------------------------------------------------------------------

/// What follows the next key update (RFC 9001 §6), not derived before somebody asks: most connections end without.
pub(crate) struct NextKeys {
    secrets: Secrets,
    made: OnceLock<(PacketKeySet, Secrets)>,
}

impl std::fmt::Debug for NextKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NextKeys").field("made", &self.made.get().is_some()).finish_non_exhaustive()
    }
}

impl NextKeys {
    pub fn new(secrets: Secrets) -> Arc<Self> {
        Arc::new(Self { secrets, made: OnceLock::new() })
    }

    /// Derives them, if nobody has yet.
    pub fn keys(&self) -> &PacketKeySet {
        &self.made().0
    }

    /// The secrets behind the update that comes after.
    pub fn following(&self) -> Secrets {
        self.made().1.clone()
    }

    // Its one user is the lane's thread, so that nobody ever waits.
    fn made(&self) -> &(PacketKeySet, Secrets) {
        self.made.get_or_init(|| {
            let mut secrets = self.secrets.clone();
            (secrets.next_packet_keys(), secrets)
        })
    }

    /// As quinn-proto wants them.
    pub fn pair(self: &Arc<Self>) -> KeyPair<Box<dyn crypto::PacketKey>> {
        let key = |way| Box::new(PacketKey(OfNext(self.clone(), way)));
        KeyPair { local: key(Way::Out), remote: key(Way::In) }
    }
}

/// One of them.
struct OfNext(Arc<NextKeys>, Way);

impl Held for OfNext {
    fn key(&self) -> &dyn quic::PacketKey {
        match self.1 {
            Way::In => &*self.0.keys().remote,
            Way::Out => &*self.0.keys().local,
        }
    }
}

// ---- The first packets' keys ----------------------------------------------------------------------------------------

/// One connection's, for the one who lets it in.
struct Initial {
    id: ConnectionId,
    keys: Arc<quic::Keys>,
}

thread_local! {
    static KNOCKED: RefCell<VecDeque<Initial>> = const { RefCell::new(VecDeque::new()) };
}

/// The keys of a client's first packets. They can be derived from the connection ID, which is not encrypted.
pub(crate) fn initial_keys(suite: &Suite, dst_cid: &ConnectionId, side: Side) -> Keys {
    if side.is_client() {
        return keys(suite.keys(dst_cid, rustls::Side::Client, quic::Version::V1));
    }
    let shared = KNOCKED.with_borrow_mut(|known| {
        if let Some(at) = known.iter().position(|k| k.id == *dst_cid) {
            // It is asked for twice.
            return known.remove(at).map(|k| k.keys);
        }
        if known.len() >= KNOCKING {
            known.pop_front();
        }
        let keys = Arc::new(suite.keys(dst_cid, rustls::Side::Server, quic::Version::V1));
        known.push_back(Initial { id: *dst_cid, keys: keys.clone() });
        Some(keys)
    });
    let Some(shared) = shared else { return keys(suite.keys(dst_cid, rustls::Side::Server, quic::Version::V1)) };
    let header = |way| Box::new(OfInitial(shared.clone(), way));
    let packet = |way| Box::new(PacketKey(OfInitial(shared.clone(), way)));
    Keys {
        header: KeyPair { local: header(Way::Out), remote: header(Way::In) },
        packet: KeyPair { local: packet(Way::Out), remote: packet(Way::In) },
    }
}

#[derive(Clone, Copy)]
enum Way {
    In,
    Out,
}

/// One of a connection's first keys.
struct OfInitial(Arc<quic::Keys>, Way);

impl OfInitial {
    fn direction(&self) -> &quic::DirectionalKeys {
        match self.1 {
            Way::In => &self.0.remote,
            Way::Out => &self.0.local,
        }
    }
}

impl Held for OfInitial {
    fn key(&self) -> &dyn quic::PacketKey {
        &*self.direction().packet
    }
}

impl HeaderKey for OfInitial {
    fn decrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        protect(&*self.direction().header, pn_offset, packet, false);
    }

    fn encrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        protect(&*self.direction().header, pn_offset, packet, true);
    }

    fn sample_size(&self) -> usize {
        self.direction().header.sample_len()
    }
}

/// RFC 9001 §5.4: the sample begins four bytes after where the packet number does. quinn-proto has looked at the length;
/// what is too short all the same stays as it is, and does not open.
fn protect(key: &dyn HeaderProtectionKey, pn_offset: usize, packet: &mut [u8], on: bool) {
    let Some((header, sample)) = packet.split_at_mut_checked(pn_offset + 4) else { return };
    let Some(sample) = sample.get(..key.sample_len()) else { return };
    let Some((first, rest)) = header.split_first_mut() else { return };
    let Some(number) = rest.get_mut(pn_offset.saturating_sub(1)..) else { return };
    // The sample has its length, and a packet number's bytes are four.
    let _ = match on {
        true => key.encrypt_in_place(sample, first, number),
        false => key.decrypt_in_place(sample, first, number),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    fn suite() -> Suite {
        crate::quic::initial_suite().unwrap()
    }

    // RFC 9001 §A.2: the client's Initial, unprotected; the rest of its 1,162 bytes is padding.
    const HEADER: &str = "c300000001088394c8f03e5157080000449e00000002";
    const CRYPTO: &str = concat!(
        "060040f1010000ed0303ebf8fa56f12939b9584a3896472ec40bb863cfd3e86804fe3a47f06a2b69484c00000413011302010000c000",
        "000010000e00000b6578616d706c652e636f6dff01000100000a00080006001d0017001800100007000504616c706e00050005010000",
        "0000003300260024001d00209370b2c9caa47fbabaf4559fedba753de171fa71f50f1ce15d43e994ec74d748002b000302030400",
        "0d0010000e0403050306030203080408050806002d00020101001c00024001003900320408ffffffffffffffff05048000ffff0704",
        "8000ffff0801100104800075300901100f088394c8f03e51570806048000ffff"
    );

    #[test]
    fn the_rfc_s_client_initial_is_opened_without_its_padding() {
        let id = ConnectionId::new(&hex("8394c8f03e515708"));
        let (header, mut frames) = (hex(HEADER), hex(CRYPTO));
        let crypto = frames.len();
        frames.resize(1162, 0);
        let mut packet = [&header[..], &frames[..], &[0; 16]].concat();
        let client = initial_keys(&suite(), &id, Side::Client);
        client.packet.local.encrypt(2, &mut packet, header.len());
        client.header.local.encrypt(18, &mut packet);
        // The beginning and the end of the protected packet.
        assert_eq!(packet[..38], hex("c000000001088394c8f03e5157080000449e7b9aec34d1b1c98dd7689fb8ec11d242b123dc9b"));
        assert_eq!(packet[packet.len() - 16..], hex("e221af44860018ab0856972e194cd934"));
        // Asked for twice, as an endpoint does: both open it.
        for _ in 0..2 {
            let server = initial_keys(&suite(), &id, Side::Server);
            let mut received = packet.clone();
            server.header.remote.decrypt(18, &mut received);
            assert_eq!(received[..header.len()], header);
            let mut payload = BytesMut::from(&received[header.len()..]);
            server.packet.remote.decrypt(2, &header, &mut payload).unwrap();
            // One byte of padding is left of it.
            assert_eq!(payload[..], frames[..=crypto]);
        }
        KNOCKED.with_borrow(|known| assert!(known.is_empty()));
    }

    #[test]
    fn the_rfc_s_server_initial() {
        // RFC 9001 §A.3.
        let id = ConnectionId::new(&hex("8394c8f03e515708"));
        let header = hex("c1000000010008f067a5502a4262b50040750001");
        let frames = hex(concat!(
            "02000000000600405a020000560303eefce7f7b37ba1d1632e96677825ddf73988cfc79825df566dc5430b9a045a1200130100002e00",
            "330024001d00209d3c940d89690b84d08a60993c144eca684d1081287c834d5311bcf32bb9da1a002b00020304"
        ));
        let mut packet = [&header[..], &frames[..], &[0; 16]].concat();
        let server = initial_keys(&suite(), &id, Side::Server);
        server.packet.local.encrypt(1, &mut packet, header.len());
        server.header.local.encrypt(18, &mut packet);
        let known = concat!(
            "cf000000010008f067a5502a4262b5004075c0d95a482cd0991cd25b0aac406a5816b6394100f37a1c69797554780bb38cc5a99f5ede",
            "4cf73c3ec2493a1839b3dbcba3f6ea46c5b7684df3548e7ddeb9c3bf9c73cc3f3bded74b562bfb19fb84022f8ef4cdd93795d77d06ed",
            "bb7aaf2f58891850abbdca3d20398c276456cbc42158407dd074ee"
        );
        assert_eq!(packet, hex(known));
        let client = initial_keys(&suite(), &id, Side::Client);
        client.header.remote.decrypt(18, &mut packet);
        let mut payload = BytesMut::from(&packet[header.len()..]);
        client.packet.remote.decrypt(1, &header, &mut payload).unwrap();
        assert_eq!(payload[..], frames);
        payload[0] ^= 1;
        assert!(client.packet.remote.decrypt(1, &header, &mut payload).is_err());
    }

    #[test]
    fn keys_of_those_who_never_come_in_are_forgotten() {
        let knock = |n: u16| {
            initial_keys(&suite(), &ConnectionId::new(&n.to_be_bytes()), Side::Server);
        };
        (0..200).for_each(knock);
        KNOCKED.with_borrow(|known| assert_eq!(known.len(), KNOCKING));
        knock(199);
        KNOCKED.with_borrow(|known| assert_eq!(known.len(), KNOCKING - 1));
    }

    #[test]
    fn what_is_too_short_is_left_alone() {
        let keys = initial_keys(&suite(), &ConnectionId::new(b"short"), Side::Server);
        for n in 0..24 {
            let mut packet = vec![0xc0; n];
            keys.header.remote.decrypt(4, &mut packet);
            keys.packet.local.encrypt(0, &mut packet, 16);
            assert!(keys.packet.remote.decrypt(0, &[], &mut BytesMut::from(&packet[..n.min(15)])).is_err());
        }
    }
}
