//! Cutting super-packets: what a network card with segmentation offload does, done here before sealing.
//!
//! A TUN with offload hands out up to 64 KB of one flow at a time. Each segment becomes a packet of its own: stock
//! peers want each sealed separately.
//!
//! Nothing is copied for it: a segment's headers are written in front of its payload, over the end of the segment before,
//! which has been sealed into its message by then. So segments are made in their order, and each once.

use super::checksum::{finish, pseudo, sum};
use super::ip::{TCP, TCP_CHECKSUM, UDP, UDP_CHECKSUM, be16, be32};
use sealane_sys::tun::{NEEDS_CHECKSUM, Vnet, gso};
use std::ops::Range;

/// IPv4 with options and TCP with options: 60 each; IPv6's extension headers may be longer, then it is not cut.
const MAX_HEADERS: usize = 160;

const FIN_AND_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// How one packet from the TUN becomes packets for the peer.
#[derive(Debug)]
pub(super) struct Plan {
    /// How many segments there are.
    pub count: usize,
    len: usize,
    /// `None`: it is one packet, and complete.
    cut: Option<Cut>,
}

/// What all segments of a super-packet have in common.
#[derive(Debug)]
struct Cut {
    v6: bool,
    tcp: bool,
    /// Where the transport header begins.
    at: usize,
    /// Where the payload begins.
    payload: usize,
    /// Payload bytes per segment.
    segment: usize,
    /// The headers as they came, but zero where segments differ from each other.
    header: [u8; MAX_HEADERS],
    /// The sum over the IPv4 header, and that over pseudo-header and transport header.
    sums: [u64; 2],
    /// What they differ in, as it came: identification, sequence number, flags.
    identification: u16,
    sequence: u32,
    flags: u8,
}

/// Makes a packet that is no super-packet complete, or plans how a super-packet is cut. `None` when its header
/// contradicts the packet.
#[inline]
pub(super) fn prepare(vnet: &Vnet, packet: &mut [u8]) -> Option<Plan> {
    let (at, offset) = (usize::from(vnet.checksum_start), usize::from(vnet.checksum_offset));
    let (kind, len) = (vnet.gso & !gso::ECN, packet.len());
    if kind == gso::NONE {
        if vnet.flags & NEEDS_CHECKSUM != 0 {
            packet.get(at + offset..at + offset + 2)?;
            let mut checksum = finish(sum(&packet[at..], 0));
            // RFC 768: a UDP checksum of 0 is sent as all ones.
            if checksum == [0, 0] && offset == UDP_CHECKSUM {
                checksum = [0xff, 0xff];
            }
            packet[at + offset..at + offset + 2].copy_from_slice(&checksum);
        }
        return Some(Plan { count: 1, len, cut: None });
    }
    let cut = Cut::new(kind, at, usize::from(vnet.segment), packet)?;
    Some(Plan { count: (len - cut.payload).div_ceil(cut.segment), len, cut: Some(cut) })
}

impl Cut {
    fn new(kind: u8, at: usize, segment: usize, packet: &[u8]) -> Option<Self> {
        let v6 = packet.first()? >> 4 == 6;
        let tcp = match kind {
            gso::TCP4 if !v6 => true,
            gso::TCP6 if v6 => true,
            gso::UDP => false,
            _ => return None,
        };
        let payload = at + if tcp { usize::from(packet.get(at + 12)? >> 4) * 4 } else { 8 };
        let least = if v6 { 40 } else { 20 };
        let fixed = if tcp { at + 20 } else { at + 8 };
        if at < least || payload < fixed || payload > MAX_HEADERS || payload >= packet.len() || segment == 0 {
            return None;
        }
        let mut header = [0; MAX_HEADERS];
        let h = &mut header[..payload];
        h.copy_from_slice(&packet[..payload]);
        let (mut sums, mut identification) = ([0; 2], 0);
        if !v6 {
            // IPv4's options end before the transport header.
            let end = usize::from(h[0] & 15) * 4;
            if end < 20 || end > at {
                return None;
            }
            identification = be16(h, 4);
            h[2..6].fill(0);
            h[10..12].fill(0);
            sums[0] = sum(&h[..end], 0);
        } else {
            h[4..6].fill(0);
        }
        let (mut sequence, mut flags) = (0, 0);
        let (protocol, offset) = if tcp {
            (sequence, flags) = (be32(h, at + 4), h[at + 13]);
            h[at + 4..at + 8].fill(0);
            h[at + 13] = 0;
            (TCP, TCP_CHECKSUM)
        } else {
            h[at + 4..at + 6].fill(0);
            (UDP, UDP_CHECKSUM)
        };
        h[at + offset..at + offset + 2].fill(0);
        sums[1] = sum(&h[at..], pseudo(h, v6, protocol, 0));
        Some(Self { v6, tcp, at, payload, segment, header, sums, identification, sequence, flags })
    }

    /// Writes a segment's headers into `h`, which end where its payload begins.
    #[inline]
    fn write(&self, number: usize, last: bool, h: &mut [u8], body: &[u8]) {
        let at = self.at;
        let word = |value: u16| u64::from(u16::from_ne_bytes(value.to_be_bytes()));
        h.copy_from_slice(&self.header[..self.payload]);
        let total = self.payload + body.len();
        let length = (total - at) as u16;
        if self.v6 {
            h[4..6].copy_from_slice(&((total - 40) as u16).to_be_bytes());
        } else {
            // Each segment is a packet of its own, so each has its own identification.
            let (total, id) = (total as u16, self.identification.wrapping_add(number as u16));
            h[2..4].copy_from_slice(&total.to_be_bytes());
            h[4..6].copy_from_slice(&id.to_be_bytes());
            h[10..12].copy_from_slice(&finish(self.sums[0] + word(total) + word(id)));
        }
        let (differs, offset) = if self.tcp {
            let sequence = self.sequence.wrapping_add((number * self.segment) as u32);
            h[at + 4..at + 8].copy_from_slice(&sequence.to_be_bytes());
            // FIN and PSH belong to the last segment, CWR to the first (RFC 3168 §6.1.2).
            let end = if last { 0 } else { FIN_AND_PSH };
            let begin = if number == 0 { 0 } else { CWR };
            let flags = self.flags & !(end | begin);
            h[at + 13] = flags;
            (word((sequence >> 16) as u16) + word(sequence as u16) + word(u16::from(flags)), TCP_CHECKSUM)
        } else {
            h[at + 4..at + 6].copy_from_slice(&length.to_be_bytes());
            (word(length), UDP_CHECKSUM)
        };
        let mut checksum = finish(sum(body, self.sums[1] + word(length) + differs));
        if checksum == [0, 0] && !self.tcp {
            checksum = [0xff, 0xff];
        }
        h[at + offset..at + offset + 2].copy_from_slice(&checksum);
    }
}

impl Plan {
    /// Bytes of a segment with its headers.
    #[inline]
    pub(super) fn len(&self, number: usize) -> usize {
        let Some(cut) = &self.cut else { return self.len };
        let begin = cut.payload + number * cut.segment;
        cut.payload + cut.segment.min(self.len.saturating_sub(begin))
    }

    /// Makes a segment with its headers, and says where it lies. Those before it are destroyed.
    #[inline]
    pub(super) fn place(&self, packet: &mut [u8], number: usize) -> Range<usize> {
        let Some(cut) = &self.cut else { return 0..self.len };
        let begin = number * cut.segment;
        let range = begin..begin + self.len(number);
        let (h, body) = packet[range.clone()].split_at_mut(cut.payload);
        cut.write(number, number + 1 == self.count, h, body);
        range
    }
}

#[cfg(test)]
mod tests {
    use super::super::ip::Transport;
    use super::super::ip::tests::{packet, tcp, udp};
    use super::*;

    fn cut(vnet: &Vnet, p: &mut [u8]) -> Vec<Vec<u8>> {
        let plan = prepare(vnet, p).unwrap();
        (0..plan.count)
            .map(|i| {
                let range = plan.place(p, i);
                assert_eq!(range.len(), plan.len(i));
                p[range].to_vec()
            })
            .collect()
    }

    #[test]
    fn tcp_segments_are_whole_packets_that_make_up_the_stream() {
        for v6 in [false, true] {
            let data: Vec<u8> = (0..5_000u32).map(|i| (i * 31) as u8).collect();
            let options = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
            // CWR, PSH, FIN, ACK.
            let mut p = packet(v6, TCP, &tcp(u32::MAX - 100, 0x99, &options), &data);
            let at = if v6 { 40 } else { 20 };
            let vnet = Vnet {
                flags: NEEDS_CHECKSUM,
                gso: if v6 { gso::TCP6 } else { gso::TCP4 } | gso::ECN,
                header_len: at + 32,
                segment: 1_400,
                checksum_start: at,
                checksum_offset: 16,
            };
            let segments = cut(&vnet, &mut p);
            assert_eq!(segments.len(), 4);
            let (mut stream, mut sequence) = (Vec::new(), u32::MAX - 100);
            for (i, s) in segments.iter().enumerate() {
                let t = Transport::find(s).unwrap();
                assert!(t.checksum_right(s), "segment {i}");
                if !v6 {
                    assert_eq!(finish(sum(&s[..20], 0)), [0, 0]);
                    assert_eq!(be16(s, 4), 9 + i as u16);
                }
                assert_eq!(be32(s, t.at + 4), sequence);
                let flags = s[t.at + 13];
                assert_eq!(flags & 0x80 != 0, i == 0);
                assert_eq!(flags & 0x09 == 0x09, i == 3);
                sequence = sequence.wrapping_add((s.len() - t.payload) as u32);
                stream.extend_from_slice(&s[t.payload..]);
            }
            assert_eq!(stream, data);
        }
    }

    /// Each is written over several of those before.
    #[test]
    fn segments_shorter_than_their_headers_are_whole_too() {
        let data: Vec<u8> = (0..100).collect();
        let mut p = packet(false, TCP, &tcp(1, 0x10, &[]), &data);
        let vnet = Vnet {
            flags: NEEDS_CHECKSUM,
            gso: gso::TCP4,
            header_len: 40,
            segment: 7,
            checksum_start: 20,
            checksum_offset: 16,
        };
        let segments = cut(&vnet, &mut p);
        assert_eq!(segments.len(), 15);
        let stream: Vec<u8> = segments.iter().flat_map(|s| s[40..].to_vec()).collect();
        assert_eq!(stream, data);
        assert!(segments.iter().all(|s| Transport::find(s).unwrap().checksum_right(s)));
    }

    #[test]
    fn udp_segments_are_datagrams() {
        for v6 in [false, true] {
            let mut p = packet(v6, UDP, &udp(250), &[5; 250]);
            let at = if v6 { 40 } else { 20 };
            let vnet = Vnet {
                flags: NEEDS_CHECKSUM,
                gso: gso::UDP,
                header_len: at + 8,
                segment: 100,
                checksum_start: at,
                checksum_offset: 6,
            };
            let segments = cut(&vnet, &mut p);
            let lengths: Vec<usize> = segments.iter().map(|s| s.len() - usize::from(at) - 8).collect();
            assert_eq!(lengths, [100, 100, 50]);
            for s in &segments {
                let t = Transport::find(s).unwrap();
                assert!(t.checksum_right(s));
                assert_eq!(usize::from(be16(s, t.at + 4)), s.len() - t.at);
            }
        }
    }

    #[test]
    fn a_missing_checksum_is_filled_in() {
        for (protocol, header, offset) in [(TCP, tcp(1, 0x18, &[]), 16), (UDP, udp(5), 6)] {
            let whole = packet(false, protocol, &header, b"hello");
            let mut p = whole.clone();
            let partial = super::super::checksum::fold(pseudo(&p, false, protocol, p.len() - 20)).to_ne_bytes();
            p[20 + offset..22 + offset].copy_from_slice(&partial);
            let vnet =
                Vnet { flags: NEEDS_CHECKSUM, checksum_start: 20, checksum_offset: offset as u16, ..Vnet::default() };
            assert_eq!(cut(&vnet, &mut p), [whole]);
        }
    }

    #[test]
    fn headers_that_contradict_the_packet_are_refused() {
        let whole = packet(false, TCP, &tcp(1, 0x10, &[]), &[1; 300]);
        let good =
            Vnet { flags: 1, gso: gso::TCP4, header_len: 40, segment: 100, checksum_start: 20, checksum_offset: 16 };
        let bad = [
            Vnet { gso: gso::TCP6, ..good },
            Vnet { gso: 3, ..good },
            Vnet { segment: 0, ..good },
            Vnet { checksum_start: 0, ..good },
            Vnet { checksum_start: 400, ..good },
            Vnet { gso: 0, checksum_start: 330, ..good },
            Vnet { gso: 0, checksum_start: u16::MAX, checksum_offset: u16::MAX, ..good },
        ];
        for vnet in bad {
            assert!(prepare(&vnet, &mut whole.clone()).is_none(), "{vnet:?}");
        }
        assert!(prepare(&good, &mut []).is_none());
        // IPv4's options would reach into the transport header.
        let mut options = whole.clone();
        options[0] = 0x4f;
        assert!(prepare(&good, &mut options).is_none());
        assert_eq!(prepare(&good, &mut whole.clone()).unwrap().count, 3);
    }
}
