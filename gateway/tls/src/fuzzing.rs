//! What the fuzz targets (`fuzz/`) run of this crate's decoders, which are private. Nothing else calls this module.

use crate::quic_padding::without_padding;
use quinn_proto::{ConnectionId, Side};
use std::ops::Range;

/// An OCSP response: one that nobody has signed is never accepted.
pub fn ocsp_response(data: &[u8]) {
    crate::ocsp::fuzz(data);
}

/// Timestamps of transparency logs, as in a certificate and as a list: those that no log has signed are never accepted.
pub fn timestamps(data: &[u8]) {
    crate::transparency::fuzz(data);
}

/// A revocation list: one that is read has an issuer, and nobody has signed it where nobody is trusted.
pub fn revocation_list(data: &[u8]) {
    if let Ok(list) = crate::crl::List::read(data) {
        assert!(!list.issuer.is_empty() && !list.is_signed_by(data, &[]));
    }
}

/// Reads bytes as RFC 9000 §16 has numbers.
struct Frames<'d> {
    rest: &'d [u8],
}

impl Frames<'_> {
    fn number(&mut self) -> Option<u64> {
        let (first, _) = self.rest.split_first()?;
        let bytes = self.take(1 << (first >> 6))?;
        let value = bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        Some(value & (u64::MAX >> (66 - 8 * bytes.len())))
    }

    fn take(&mut self, len: usize) -> Option<&[u8]> {
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(bytes)
    }

    fn data(&mut self) -> Option<()> {
        let len = self.number()?;
        self.take(usize::try_from(len).ok()?).map(|_| ())
    }

    /// Reads one frame; what it is made of comes from RFC 9000 §19, one row per type.
    fn frame(&mut self) -> Option<u64> {
        const NUMBERS: [(u64, u8); 15] = [
            (0x00, 0),
            (0x01, 0),
            (0x04, 3),
            (0x05, 2),
            (0x10, 1),
            (0x11, 2),
            (0x12, 1),
            (0x13, 1),
            (0x14, 1),
            (0x15, 2),
            (0x16, 1),
            (0x17, 1),
            (0x19, 1),
            (0x1e, 0),
            (0x1f, 0),
        ];
        let kind = self.number()?;
        if let Some((_, count)) = NUMBERS.iter().find(|(known, _)| *known == kind) {
            for _ in 0..*count {
                self.number()?;
            }
            return Some(kind);
        }
        match kind {
            2 | 3 => {
                self.number()?;
                self.number()?;
                let ranges = self.number()?;
                self.number()?;
                // A number takes a byte at least: more ranges than bytes end in an error soon.
                for _ in 0..ranges {
                    self.number()?;
                    self.number()?;
                }
                if kind == 3 {
                    for _ in 0..3 {
                        self.number()?;
                    }
                }
            }
            6 => {
                self.number()?;
                self.data()?;
            }
            7 | 0x1d => return None,
            8..=15 => {
                self.number()?;
                if kind & 4 != 0 {
                    self.number()?;
                }
                if kind & 2 != 0 {
                    self.data()?;
                } else {
                    self.rest = &[];
                }
            }
            0x18 => {
                self.number()?;
                self.number()?;
                let len = *self.take(1)?.first()?;
                self.take(usize::from(len) + 16)?;
            }
            0xaf => {
                for _ in 0..4 {
                    self.number()?;
                }
            }
            _ => return None,
        }
        Some(kind)
    }
}

/// Where the frames lie that are not padding, and whether all of the payload is frames.
fn frames(payload: &[u8]) -> (Vec<Range<usize>>, bool) {
    let mut reader = Frames { rest: payload };
    let mut found = Vec::new();
    while !reader.rest.is_empty() {
        let start = payload.len() - reader.rest.len();
        match reader.frame() {
            Some(0) => {}
            Some(_) => found.push(start..payload.len() - reader.rest.len()),
            None => return (found, false),
        }
    }
    (found, true)
}

/// The walker over a QUIC packet's frames that takes the padding off: the same frames are left, and an error stays one. The first
/// byte says how much padding is put behind the data.
pub fn quic_padding(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    let payload = [data, &vec![0; 8 * usize::from(*first)]].concat();
    let kept = without_padding(&payload);
    assert_eq!(kept, &payload[..kept.len()]);
    assert!(payload[kept.len()..].iter().all(|byte| *byte == 0), "more than padding was taken off");
    assert!(kept.is_empty() == payload.is_empty(), "a packet without a frame");
    assert_eq!(frames(kept), frames(&payload));
    assert_eq!(without_padding(kept), kept, "some is left");
}

/// A client's first packet of QUIC (RFC 9000 §17.2.2) to this connection ID, with this number and these frames, padded to a datagram of
/// 1,200 bytes: for targets that play a client.
pub fn client_initial(destination: &[u8], number: u8, frames: &[u8]) -> Vec<u8> {
    const DATAGRAM: usize = 1200;
    let suite = crate::quic::initial_suite().expect("a suite for first packets");
    let keys = crate::quic_packets::initial_keys(&suite, &ConnectionId::new(destination), Side::Client);
    let mut packet = vec![0xc0, 0, 0, 0, 1, destination.len() as u8];
    packet.extend_from_slice(destination);
    // Neither a connection ID of the client's nor a token.
    packet.extend([0, 0]);
    let at = packet.len() + 2;
    let tag = keys.packet.local.tag_len();
    let length = (1 + frames.len() + tag).max(DATAGRAM - at);
    packet.extend((0x4000 | length as u16).to_be_bytes());
    packet.push(number);
    packet.extend_from_slice(frames);
    packet.resize(at + length, 0);
    keys.packet.local.encrypt(number.into(), &mut packet, at + 1);
    keys.header.local.encrypt(at, &mut packet);
    packet
}
