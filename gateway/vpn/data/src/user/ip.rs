//! A look at IP packets inside the tunnel: just enough to route, segment and coalesce them.

use super::checksum::{finish, pseudo, sum};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
/// Where TCP's checksum is in its header.
pub(super) const TCP_CHECKSUM: usize = 16;
/// Where UDP's is.
pub(super) const UDP_CHECKSUM: usize = 6;

#[inline]
pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Source and destination. `None` when it is no IP packet, or shorter than its fixed header.
#[inline]
pub(super) fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match packet.first()? >> 4 {
        4 if packet.len() >= 20 => {
            let at = |i: usize| IpAddr::V4(Ipv4Addr::new(packet[i], packet[i + 1], packet[i + 2], packet[i + 3]));
            Some((at(12), at(16)))
        }
        6 if packet.len() >= 40 => {
            let at = |i: usize| packet[i..].first_chunk::<16>().map(|o| IpAddr::V6(Ipv6Addr::from(*o)));
            Some((at(8)?, at(24)?))
        }
        _ => None,
    }
}

/// Where the transport header of a whole TCP or UDP packet lies. `None` for fragments, IPv6 extension headers, other
/// protocols, and packets whose length is not what their header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transport {
    pub v6: bool,
    pub protocol: u8,
    /// Where its header begins.
    pub at: usize,
    /// Where its payload begins.
    pub payload: usize,
}

impl Transport {
    #[inline]
    pub(super) fn find(packet: &[u8]) -> Option<Self> {
        let (v6, protocol, at, len) = match packet.first()? >> 4 {
            4 if packet.len() >= 20 => {
                let at = usize::from(packet[0] & 15) * 4;
                // More fragments, or a fragment offset.
                if at < 20 || be16(packet, 6) & 0x3fff != 0 {
                    return None;
                }
                (false, packet[9], at, usize::from(be16(packet, 2)))
            }
            6 if packet.len() >= 40 => (true, packet[6], 40, usize::from(be16(packet, 4)) + 40),
            _ => return None,
        };
        if len != packet.len() {
            return None;
        }
        let payload = match protocol {
            TCP if len >= at + 20 => at + usize::from(packet[at + 12] >> 4) * 4,
            UDP if len >= at + 8 => at + 8,
            _ => return None,
        };
        let least = if protocol == TCP { at + 20 } else { at + 8 };
        (payload >= least && payload <= len).then_some(Self { v6, protocol, at, payload })
    }

    /// Whether the transport checksum is right. UDP without one (IPv4 only) is not.
    #[inline]
    pub(super) fn checksum_right(&self, packet: &[u8]) -> bool {
        if self.protocol == UDP && packet[self.at + UDP_CHECKSUM..self.at + 8] == [0, 0] {
            return false;
        }
        let segment = &packet[self.at..];
        finish(sum(segment, pseudo(packet, self.v6, self.protocol, segment.len()))) == [0, 0]
    }
}

/// Lowers the MSS option of a SYN to `max` (IPv6: 20 less), with its checksum. Does nothing to any other packet.
///
/// `partial`: the checksum field holds only the pseudo-header's sum, which does not cover the option.
pub(super) fn clamp_mss(packet: &mut [u8], max: u16, partial: bool) {
    const SYN: u8 = 2;
    // Most packets are sorted out by one byte, where TCP's flags are if it is TCP.
    let flags = 13 + packet.first().map_or(0, |first| if first >> 4 == 4 { usize::from(first & 15) * 4 } else { 40 });
    if packet.get(flags).is_none_or(|flags| flags & SYN == 0) {
        return;
    }
    let Some(t) = Transport::find(packet) else { return };
    if t.protocol != TCP || packet[t.at + 13] & SYN == 0 {
        return;
    }
    let max = if t.v6 { max.saturating_sub(20) } else { max };
    let mut at = t.at + 20;
    while at < t.payload {
        match packet[at] {
            0 => return,
            1 => at += 1,
            kind => {
                let len = match packet.get(at + 1) {
                    Some(len) if *len >= 2 && at + usize::from(*len) <= t.payload => usize::from(*len),
                    _ => return,
                };
                // RFC 9293 §3.7.1: kind 2, four bytes.
                if kind == 2 && len == 4 {
                    let old = be16(packet, at + 2);
                    if old <= max {
                        return;
                    }
                    packet[at + 2..at + 4].copy_from_slice(&max.to_be_bytes());
                    if !partial {
                        patch_checksum(&mut packet[t.at..], TCP_CHECKSUM, at + 2 - t.at, old, max);
                    }
                    return;
                }
                at += len;
            }
        }
    }
}

/// RFC 1624: HC' = ~(~HC + ~m + m'), for a word at any offset.
fn patch_checksum(header: &mut [u8], checksum: usize, changed: usize, old: u16, new: u16) {
    // A word at an odd offset counts with its bytes exchanged.
    let place = |v: u16| u64::from(if changed.is_multiple_of(2) { v } else { v.swap_bytes() });
    let old_sum = u64::from(!be16(header, checksum));
    let sum = old_sum + (!place(old) & 0xffff) + place(new);
    let folded = super::checksum::fold(sum);
    header[checksum..checksum + 2].copy_from_slice(&(!folded).to_be_bytes());
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A TCP or UDP packet with right checksums.
    pub(in crate::user) fn packet(v6: bool, protocol: u8, transport: &[u8], payload: &[u8]) -> Vec<u8> {
        let len = transport.len() + payload.len();
        let mut p = if v6 {
            let mut p = vec![0x60, 0, 0, 0, (len >> 8) as u8, len as u8, protocol, 64];
            p.extend((0..32).map(|i| if i < 16 { 0xfd } else { 0xfe } ^ (i % 16)));
            p
        } else {
            let total = len + 20;
            let mut p = vec![0x45, 0, (total >> 8) as u8, total as u8, 0, 9, 0x40, 0, 64, protocol, 0, 0];
            p.extend([10, 8, 0, 2, 10, 8, 0, 1]);
            let c = finish(sum(&p, 0));
            p[10..12].copy_from_slice(&c);
            p
        };
        let at = p.len();
        p.extend(transport);
        p.extend(payload);
        let offset = at + if protocol == TCP { TCP_CHECKSUM } else { UDP_CHECKSUM };
        p[offset..offset + 2].fill(0);
        let c = finish(sum(&p[at..], pseudo(&p, v6, protocol, len)));
        p[offset..offset + 2].copy_from_slice(&c);
        p
    }

    /// A TCP header with options.
    pub(in crate::user) fn tcp(seq: u32, flags: u8, options: &[u8]) -> Vec<u8> {
        let mut h = vec![0x30, 0x39, 0, 80];
        h.extend(seq.to_be_bytes());
        h.extend([0, 0, 0, 7, ((20 + options.len()) as u8 / 4) << 4, flags, 1, 0, 0, 0, 0, 0]);
        h.extend(options);
        h
    }

    /// A UDP header.
    pub(in crate::user) fn udp(len: usize) -> Vec<u8> {
        vec![0x30, 0x39, 0, 53, ((len + 8) >> 8) as u8, (len + 8) as u8, 0, 0]
    }

    #[test]
    fn built_packets_are_found_and_right() {
        for v6 in [false, true] {
            let p = packet(v6, TCP, &tcp(1, 0x10, &[1, 1, 1, 1]), b"hello");
            let t = Transport::find(&p).unwrap();
            assert_eq!((t.v6, t.protocol, t.payload), (v6, TCP, p.len() - 5));
            assert!(t.checksum_right(&p));
            let mut broken = p.clone();
            *broken.last_mut().unwrap() ^= 1;
            assert!(!t.checksum_right(&broken));
            assert_eq!(Transport::find(&p[..p.len() - 1]), None);
            let p = packet(v6, UDP, &udp(3), b"abc");
            assert!(Transport::find(&p).unwrap().checksum_right(&p));
            assert_eq!(addresses(&p).unwrap().0.is_ipv6(), v6);
        }
    }

    #[test]
    fn every_truncation_is_survived() {
        for v6 in [false, true] {
            let p = packet(v6, TCP, &tcp(1, 2, &[2, 4, 5, 0xb4]), b"");
            for len in 0..p.len() {
                let _ = addresses(&p[..len]);
                clamp_mss(&mut p[..len].to_vec(), 100, false);
                for at in 0..p.len() {
                    let mut q = p.clone();
                    q[at] ^= 0xff;
                    q.truncate(len);
                    clamp_mss(&mut q, 100, false);
                    if let Some(t) = Transport::find(&q) {
                        t.checksum_right(&q);
                    }
                }
            }
        }
    }

    #[test]
    fn a_syn_is_clamped_and_stays_right() {
        // The option at an even and at an odd place, alone and after others.
        for options in
            [&[2, 4, 5, 0xb4][..], &[1, 2, 4, 5, 0xb4, 1, 1, 0], &[8, 10, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 5, 0xb4, 0, 0]]
        {
            for v6 in [false, true] {
                let mut p = packet(v6, TCP, &tcp(1, 2, options), b"");
                clamp_mss(&mut p, 1300, false);
                let t = Transport::find(&p).unwrap();
                assert!(t.checksum_right(&p), "{options:?}");
                let want: u16 = if v6 { 1280 } else { 1300 };
                assert!(p.windows(4).any(|w| w[..2] == [2, 4] && be16(w, 2) == want));
                let before = p.clone();
                clamp_mss(&mut p, 1400, false);
                assert_eq!(p, before, "only ever lowered");
            }
        }
        let mut ack = packet(false, TCP, &tcp(1, 0x10, &[2, 4, 5, 0xb4]), b"");
        let before = ack.clone();
        clamp_mss(&mut ack, 100, false);
        assert_eq!(ack, before);
    }
}
