//! For [`crate::fuzzing`]: packets on their way to and from the TUN, and saved peers.

use super::checksum::{finish, pseudo, sum};
use super::coalesce::{Coalescer, Write};
use super::handover::read_peer;
use super::ip::{TCP, TCP_CHECKSUM, Transport, UDP, UDP_CHECKSUM, addresses, clamp_mss};
use super::segment::prepare;
use crate::fields::Reader;
use sealane_sys::tun::{HEADER, Vnet, gso};
use std::io::{self, IoSlice};
use std::net::IpAddr;

/// A saved peer, with its counters and keys.
pub fn peer(data: &[u8]) {
    let Ok(fields) = Reader::new(data) else { return };
    if let Ok(peer) = read_peer(fields) {
        // What a key slot may hold.
        assert!(peer.keys.iter().all(|key| key.new.peer == peer.about.peer));
    }
}

/// What segments of a super-packet carry.
fn payload_of(segment: &[u8], at: usize, tcp: bool) -> &[u8] {
    let payload = at + if tcp { usize::from(segment[at + 12] >> 4) * 4 } else { 8 };
    &segment[payload..]
}

/// A packet from the TUN, with its header before it, cut into segments: together they carry what it has carried, and the checksums
/// of each are right.
pub fn segment(data: &[u8]) {
    let Some(vnet) = Vnet::decode(data) else { return };
    let mut packet = data[HEADER..].to_vec();
    let before = packet.clone();
    let Some(plan) = prepare(&vnet, &mut packet) else { return };
    assert!(plan.count > 0 && plan.count <= before.len().max(1));
    let at = usize::from(vnet.checksum_start);
    let kind = vnet.gso & !gso::ECN;
    if kind == gso::NONE {
        assert_eq!((plan.count, plan.len(0), plan.place(&mut packet, 0)), (1, before.len(), 0..before.len()));
        let differs = packet.iter().zip(&before).filter(|(a, b)| a != b).count();
        return assert!(differs <= 2, "{differs} bytes differ");
    }
    let tcp = kind != gso::UDP;
    let mut carried = Vec::new();
    for number in 0..plan.count {
        let len = plan.len(number);
        let range = plan.place(&mut packet, number);
        assert_eq!(range.len(), len);
        let segment = &packet[range];
        let payload = payload_of(segment, at, tcp);
        let is_last = number + 1 == plan.count;
        assert!(payload.len() == usize::from(vnet.segment) || is_last && !payload.is_empty());
        carried.extend_from_slice(payload);
        assert_eq!(segment[0], before[0]);
        // Where the header is the plain one, so that it is known what is summed up.
        if let Some(t) = Transport::find(segment)
            && t.at == at
            && t.protocol == if tcp { TCP } else { UDP }
        {
            assert!(t.checksum_right(segment), "segment {number} of {}", plan.count);
            assert!(t.v6 || finish(sum(&segment[..at], 0)) == [0, 0], "the header of segment {number}");
        }
    }
    assert_eq!(carried, payload_of(&before, at, tcp));
}

/// A TUN that keeps what is written.
#[derive(Default)]
struct Kept(Vec<Vec<u8>>);

impl Write for Kept {
    fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.push(pieces.iter().flat_map(|p| p.to_vec()).collect());
        Ok(0)
    }

    fn tcp(&self) -> bool {
        true
    }

    fn udp(&self) -> bool {
        true
    }
}

/// A packet of eight bytes' description: which flow and version, protocol, flags, what is special, and lengths.
fn described(how: [u8; 8], next: &mut [u32; 4]) -> Vec<u8> {
    let [kind, flags, odd, high, low, special, value, ttl] = how;
    let (v6, tcp, flow) = (kind & 1 != 0, kind & 2 != 0, usize::from(kind >> 2) % 4);
    let len = usize::from(u16::from_be_bytes([high, low])) % 1500;
    let mut transport = vec![0x30, flow as u8, 0, 80];
    if tcp {
        if odd & 1 != 0 {
            next[flow] = next[flow].wrapping_add(u32::from(odd));
        }
        transport.extend(next[flow].to_be_bytes());
        next[flow] = next[flow].wrapping_add(len as u32);
        let options: &[u8] = if odd & 2 != 0 { &[1, 1, 1, 1] } else { &[] };
        // Most packets have ACK alone.
        let flags = if flags & 0x80 != 0 { flags & 0x3f } else { 16 | flags & 8 };
        transport.extend([0, 0, 0, 7, ((20 + options.len()) as u8 / 4) << 4, flags, 1, 0, 0, 0, 0, 0]);
        transport.extend(options);
    } else {
        transport.extend(((len + 8) as u16).to_be_bytes());
        transport.extend([0, 0]);
    }
    let total = transport.len() + len;
    let protocol = if tcp { TCP } else { UDP };
    let mut p = if v6 {
        let mut p = vec![0x60, 0, 0, 0, (total >> 8) as u8, total as u8, protocol, 64 + ttl % 2];
        p.extend([0xfd; 32]);
        p
    } else {
        let whole = total + 20;
        let mut p = vec![0x45, 0, (whole >> 8) as u8, whole as u8, 0, value, 0x40, 0, 64 + ttl % 2, protocol, 0, 0];
        p.extend([10, 8, 0, 2, 10, 8, 0, 1]);
        let checksum = finish(sum(&p, 0));
        p[10..12].copy_from_slice(&checksum);
        p
    };
    let at = p.len();
    p.extend(transport);
    p.extend((0..len).map(|i| (i as u8).wrapping_mul(value | 1)));
    let offset = at + if tcp { TCP_CHECKSUM } else { UDP_CHECKSUM };
    let mut checksum = finish(sum(&p[at..], pseudo(&p, v6, protocol, total)));
    if !tcp && checksum == [0, 0] {
        checksum = [0xff, 0xff];
    }
    p[offset..offset + 2].copy_from_slice(&checksum);
    // Something about it is different, or broken.
    if special & 0x80 != 0 {
        let place = usize::from(special & 0x7f) % p.len();
        p[place] ^= value;
    }
    p
}

/// A packet without what a card that segments numbers anew: the identification of IPv4, and its header's checksum where that
/// was right.
fn plain(packet: &[u8]) -> Vec<u8> {
    let mut p = packet.to_vec();
    if p.len() >= 20 && p[0] == 0x45 && finish(sum(&p[..20], 0)) == [0, 0] {
        p[4..6].fill(0);
        p[10..12].fill(0);
    }
    p
}

/// The flow of a packet, in which its order is kept: addresses, protocol, where its header begins, and ports.
type FlowKey = (IpAddr, IpAddr, u8, usize, Vec<u8>);

fn flow(packet: &[u8]) -> Option<FlowKey> {
    let t = Transport::find(packet)?;
    let (source, destination) = addresses(packet)?;
    Some((source, destination, t.protocol, t.at, packet[t.at..t.at + 4].to_vec()))
}

/// Packets that are put together and cut again are the packets that came, in the order of their flow. Each is described by eight
/// bytes.
pub fn coalesce(data: &[u8]) {
    let mut next = [u32::MAX - 2_000, 0, 7, 1 << 31];
    let packets: Vec<Vec<u8>> =
        data.as_chunks::<8>().0.iter().take(300).map(|how| described(*how, &mut next)).collect();
    let mut tun = Kept::default();
    let mut coalescer = Coalescer::new();
    packets.iter().for_each(|p| coalescer.push(p, &mut tun));
    let written = coalescer.finish(&mut tun);
    assert_eq!((written.writes as usize, written.lost), (tun.0.len(), 0));
    let mut cut = Vec::new();
    for write in &tun.0 {
        let vnet = Vnet::decode(write).expect("a header");
        let mut packet = write[HEADER..].to_vec();
        assert!(packet.len() <= 65_535);
        let plan = prepare(&vnet, &mut packet).expect("what is put together can be cut");
        for number in 0..plan.count {
            let range = plan.place(&mut packet, number);
            cut.push(packet[range].to_vec());
        }
    }
    // A stable sort keeps the order of each flow.
    let sorted = |packets: &[Vec<u8>]| {
        let mut all: Vec<_> = packets.iter().map(|p| (flow(p), plain(p))).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    };
    let (came, went) = (sorted(&packets), sorted(&cut));
    assert_eq!(went.len(), came.len());
    for ((_, went), (_, came)) in went.iter().zip(&came) {
        assert!(went == came, "{} became {}", came.escape_ascii(), went.escape_ascii());
    }
}

/// The MSS of a SYN, lowered: nothing else changes, and a right checksum stays right. The first two bytes are the largest size
/// that is wanted.
pub fn mss(data: &[u8]) {
    let Some((&[high, low], data)) = data.split_first_chunk() else { return };
    let max = u16::from_be_bytes([high, low]);
    let mut packet = data.to_vec();
    clamp_mss(&mut packet, max, false);
    assert_eq!(packet.len(), data.len());
    let changed: Vec<usize> = (0..data.len()).filter(|at| packet[*at] != data[*at]).collect();
    let mut partial = data.to_vec();
    clamp_mss(&mut partial, max, true);
    if changed.is_empty() {
        return assert_eq!(partial, data);
    }
    let t = Transport::find(data).expect("only a whole packet of TCP is changed");
    assert!(t.protocol == TCP && data[t.at + 13] & 2 != 0, "only a SYN is changed");
    let checksum = t.at + TCP_CHECKSUM..t.at + TCP_CHECKSUM + 2;
    let option: Vec<usize> = changed.into_iter().filter(|at| !checksum.contains(at)).collect();
    let (Some(first), Some(last)) = (option.first(), option.last()) else { panic!("only the checksum is changed") };
    assert!(*first >= t.at + 20 && *last < t.payload && last - first <= 1, "{option:?}");
    assert!(option.iter().all(|at| partial[*at] == packet[*at]) && partial[checksum.clone()] == data[checksum]);
    // The option: one of the two places where it may begin, given a changed byte.
    let begins = (t.at + 20..=*first - 2).rev().take(2).find(|at| packet[*at..].starts_with(&[2, 4]));
    let value = |packet: &[u8], at: usize| u16::from_be_bytes([packet[at + 2], packet[at + 3]]);
    let at = begins.expect("it is the option of kind 2");
    let max = if t.v6 { max.saturating_sub(20) } else { max };
    assert!(value(&packet, at) == max && value(data, at) > max);
    if t.checksum_right(data) {
        assert!(t.checksum_right(&packet), "a right checksum became wrong");
    }
}
