//! Packets as a middlebox sees them: which are SYNs with data, and what is left when the data is taken out.

use serde::Serialize;

/// TCP header flags (RFC 9293 §3.1).
pub mod flag {
    /// No more data from the sender.
    pub const FIN: u8 = 1;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 2;
    /// Reset the connection.
    pub const RST: u8 = 4;
    /// Push.
    pub const PSH: u8 = 8;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 16;
}

const TCP: u8 = 6;
const V6_HEADER: usize = 40;

/// Where the parts of a TCP segment lie in its packet, and what its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Segment {
    /// IP version.
    pub version: u8,
    /// Where the TCP header begins.
    pub header: usize,
    /// Where the payload begins.
    pub payload: usize,
    /// Bytes of payload.
    pub len: usize,
    /// See [`flag`].
    pub flags: u8,
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// Sequence number.
    pub sequence: u32,
}

impl Segment {
    /// A SYN of a client that carries data.
    pub fn is_syn_with_data(&self) -> bool {
        self.flags & (flag::SYN | flag::ACK) == flag::SYN && self.len > 0
    }
}

/// Reads a packet as a TCP segment. `None` for everything else: other protocols, fragments, IPv6 with extension
/// headers, lengths that contradict each other.
pub fn tcp(packet: &[u8]) -> Option<Segment> {
    let version = packet.first()? >> 4;
    let (header, end) = match version {
        4 => {
            let header = usize::from(packet[0] & 15) * 4;
            let total = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
            let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x3fff;
            if header < 20 || fragment != 0 || *packet.get(9)? != TCP {
                return None;
            }
            (header, total)
        }
        6 if *packet.get(6)? == TCP => {
            (V6_HEADER, V6_HEADER + usize::from(u16::from_be_bytes([*packet.get(4)?, *packet.get(5)?])))
        }
        _ => return None,
    };
    let t = packet.get(header..end)?;
    let payload = header + usize::from(t.get(12)? >> 4) * 4;
    if payload < header + 20 || payload > end || end != packet.len() {
        return None;
    }
    Some(Segment {
        version,
        header,
        payload,
        len: end - payload,
        flags: t[13],
        source: u16::from_be_bytes([t[0], t[1]]),
        destination: u16::from_be_bytes([t[2], t[3]]),
        sequence: u32::from_be_bytes([t[4], t[5], t[6], t[7]]),
    })
}

/// Takes the payload out of a segment and mends lengths and checksums, as middleboxes do that know no data in a SYN.
pub(crate) fn strip(packet: &mut Vec<u8>, segment: &Segment) {
    packet.truncate(segment.payload);
    let len = packet.len();
    if segment.version == 4 {
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        packet[10..12].fill(0);
        let sum = fold(add(0, &packet[..segment.header]));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet[4..6].copy_from_slice(&((len - V6_HEADER) as u16).to_be_bytes());
    }
    let at = segment.header + 16;
    packet[at..at + 2].fill(0);
    let sum = checksum(packet, segment);
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// What answers a SYN where nobody listens (RFC 9293 §3.10.7.1), from where it was going to. `None` for what is no
/// segment.
pub(crate) fn reset(packet: &[u8]) -> Option<Vec<u8>> {
    let segment = tcp(packet)?;
    let addresses = if segment.version == 4 { 12..20 } else { 8..40 };
    let half = addresses.len() / 2;
    let mut answer = packet[..segment.header].to_vec();
    answer[addresses].rotate_left(half);
    answer.extend(segment.destination.to_be_bytes());
    answer.extend(segment.source.to_be_bytes());
    answer.extend([0; 4]);
    // The SYN takes a number of its own.
    let acknowledged = segment.sequence.wrapping_add(1).wrapping_add(segment.len as u32);
    answer.extend(acknowledged.to_be_bytes());
    answer.extend([5 << 4, flag::RST | flag::ACK, 0, 0, 0, 0, 0, 0]);
    let bare = Segment { payload: answer.len(), len: 0, ..segment };
    // Lengths and checksums are those of a segment that had more.
    strip(&mut answer, &bare);
    Some(answer)
}

/// The TCP checksum over pseudo-header and segment (RFC 9293 §3.1, RFC 8200 §8.1), with the field as it is.
fn checksum(packet: &[u8], segment: &Segment) -> u16 {
    let addresses = if segment.version == 4 { 12..20 } else { 8..40 };
    let length = (packet.len() - segment.header) as u32;
    fold(add(add(u32::from(TCP) + length, &packet[addresses]), &packet[segment.header..]))
}

fn add(sum: u32, bytes: &[u8]) -> u32 {
    bytes.chunks(2).fold(sum, |s, c| s + (u32::from(c[0]) << 8) + c.get(1).map_or(0, |b| u32::from(*b)))
}

fn fold(mut sum: u32) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A TCP packet with right checksums.
    pub(crate) fn build(version: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut p = match version {
            4 => {
                let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, TCP, 0, 0];
                ip.extend([10, 77, 0, 1, 10, 77, 0, 2]);
                ip
            }
            _ => {
                let mut ip = vec![0x60, 0, 0, 0, 0, 0, TCP, 64];
                ip.extend((0..32).map(|i| i as u8));
                ip
            }
        };
        let header = p.len();
        p.extend([0x9c, 0x40, 1, 187, 0, 0, 0, 7, 0, 0, 0, 0, 6 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
        p.extend([2, 4, 5, 0xb4]);
        p.extend_from_slice(payload);
        let len = p.len();
        if version == 4 {
            p[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            let sum = fold(add(0, &p[..header]));
            p[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            p[4..6].copy_from_slice(&((len - V6_HEADER) as u16).to_be_bytes());
        }
        let segment = tcp(&p).unwrap();
        let sum = checksum(&p, &segment);
        p[header + 16..header + 18].copy_from_slice(&sum.to_be_bytes());
        p
    }

    #[test]
    fn segments_are_read_and_stripped_in_both_families() {
        for version in [4, 6] {
            let full = build(version, flag::SYN, b"hello!!");
            let s = tcp(&full).unwrap();
            assert!(s.is_syn_with_data() && s.len == 7 && s.destination == 443 && s.sequence == 7, "{s:?}");
            // A right checksum sums up to nothing.
            assert_eq!(checksum(&full, &s), 0);
            let mut bare = full.clone();
            strip(&mut bare, &s);
            let s = tcp(&bare).unwrap();
            assert!(!s.is_syn_with_data() && s.len == 0);
            assert_eq!(checksum(&bare, &s), 0, "IPv{version}");
            assert_eq!(bare, build(version, flag::SYN, b""));
        }
        assert!(!tcp(&build(4, flag::SYN | flag::ACK, b"x")).unwrap().is_syn_with_data());
    }

    #[test]
    fn a_reset_answers_everything_in_both_families() {
        for version in [4, 6] {
            let syn = build(version, flag::SYN, b"hello!!");
            let answer = reset(&syn).unwrap();
            let s = tcp(&answer).unwrap();
            assert_eq!((s.flags, s.len, s.sequence), (flag::RST | flag::ACK, 0, 0), "{s:?}");
            assert_eq!((s.source, s.destination), (443, 0x9c40));
            assert_eq!(answer[s.header + 8..s.header + 12], (7u32 + 1 + 7).to_be_bytes());
            assert_eq!(checksum(&answer, &s), 0, "IPv{version}");
            let (from, to) = if version == 4 { (12..16, 16..20) } else { (8..24, 24..40) };
            assert_eq!((&answer[from.clone()], &answer[to.clone()]), (&syn[to], &syn[from]));
        }
        assert_eq!(reset(b"no packet"), None);
    }

    #[test]
    fn cut_packets_are_no_segments() {
        for version in [4, 6] {
            let full = build(version, flag::SYN, b"hello");
            for cut in 0..full.len() {
                assert_eq!(tcp(&full[..cut]), None, "{cut}");
            }
            let mut long_header = full.clone();
            let at = tcp(&full).unwrap().header + 12;
            long_header[at] = 0xf0;
            assert_eq!(tcp(&long_header), None);
        }
        let mut udp = build(4, flag::SYN, b"");
        udp[9] = 17;
        assert_eq!(tcp(&udp), None);
    }
}
