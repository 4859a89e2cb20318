//! What is put together is cut again by `segment`, and must be the packets that came.

use super::super::ip::UDP;
use super::super::ip::tests::{packet, tcp, udp};
use super::super::segment::prepare;
use super::*;

struct Tun {
    written: Vec<Vec<u8>>,
    tcp: bool,
    udp: bool,
    full: bool,
}

impl Default for Tun {
    fn default() -> Self {
        Self { written: Vec::new(), tcp: true, udp: true, full: false }
    }
}

impl Write for Tun {
    fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.full {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.written.push(pieces.iter().flat_map(|p| p.to_vec()).collect());
        Ok(0)
    }
    fn tcp(&self) -> bool {
        self.tcp
    }
    fn udp(&self) -> bool {
        self.udp
    }
}

/// Writes packets through the coalescer; returns how many packets each write held, and all of them cut again.
fn through(packets: &[Vec<u8>], tun: &mut Tun) -> (Vec<usize>, Vec<Vec<u8>>) {
    let mut c = Coalescer::new();
    packets.iter().for_each(|p| c.push(p, tun));
    let written = c.finish(tun);
    assert_eq!(written.writes as usize, tun.written.len());
    let (mut counts, mut all) = (Vec::new(), Vec::new());
    for w in &tun.written {
        let vnet = Vnet::decode(w).unwrap();
        let mut p = w[HEADER..].to_vec();
        let plan = prepare(&vnet, &mut p).unwrap();
        counts.push(plan.count);
        for i in 0..plan.count {
            let range = plan.place(&mut p, i);
            all.push(p[range].to_vec());
        }
    }
    (counts, all)
}

fn stream(v6: bool, sizes: &[usize], flags: &[u8]) -> Vec<Vec<u8>> {
    let (mut seq, mut out) = (u32::MAX - 2_000, Vec::new());
    for (i, len) in sizes.iter().enumerate() {
        let payload: Vec<u8> = (0..*len).map(|b| (b + i) as u8).collect();
        let mut p = packet(v6, TCP, &tcp(seq, flags.get(i).copied().unwrap_or(ACK), &[1, 1, 1, 1]), &payload);
        if !v6 {
            // As a sender's stack numbers them.
            renumber(&mut p, i as u16);
        }
        out.push(p);
        seq = seq.wrapping_add(*len as u32);
    }
    out
}

fn renumber(p: &mut [u8], number: u16) {
    p[4..6].copy_from_slice(&(9 + number).to_be_bytes());
    p[10..12].fill(0);
    let c = finish(sum(&p[..20], 0));
    p[10..12].copy_from_slice(&c);
}

#[test]
fn a_stream_becomes_one_and_the_same_again() {
    for v6 in [false, true] {
        let packets = stream(v6, &[1400, 1400, 1400, 700], &[]);
        let (counts, all) = through(&packets, &mut Tun::default());
        assert_eq!(counts, [4]);
        assert_eq!(all, packets);
    }
}

#[test]
fn push_ends_it_and_others_go_alone_in_order() {
    let packets = stream(false, &[1400, 1400, 1400, 0, 1400, 100], &[ACK, ACK | PSH, ACK, ACK, ACK | 1, ACK | PSH]);
    let (counts, all) = through(&packets, &mut Tun::default());
    assert_eq!(counts, [2, 1, 1, 1, 1]);
    let mut expected = packets.clone();
    // The identification of what follows in one super-packet counts on from its first.
    renumber(&mut expected[1], 1);
    assert_eq!(all, expected);
}

#[test]
fn a_gap_a_larger_one_and_another_header_do_not_join() {
    let mut packets = stream(false, &[1000, 1000, 1000], &[]);
    packets.remove(1);
    assert_eq!(through(&packets, &mut Tun::default()).0, [1, 1]);
    assert_eq!(through(&stream(false, &[1000, 1001], &[]), &mut Tun::default()).0, [1, 1]);
    for (at, bit) in [(1, 4), (6, 0x40), (8, 4)] {
        let mut packets = stream(false, &[1000, 1000], &[]);
        packets[1][at] ^= bit;
        renumber(&mut packets[1], 1);
        let (_, all) = through(&packets, &mut Tun::default());
        assert!(all == packets, "byte {at}");
    }
}

#[test]
fn a_wrong_checksum_stays_wrong() {
    let mut packets = stream(false, &[1000, 1000, 1000], &[]);
    *packets[1].last_mut().unwrap() ^= 1;
    let mut tun = Tun::default();
    let (counts, all) = through(&packets, &mut tun);
    assert_eq!(counts, [1, 1, 1]);
    assert_eq!(all, packets);
    // Not marked as valid either.
    assert_eq!(tun.written[1][0], 0);
}

#[test]
fn a_wrong_checksum_of_an_ipv4_header_stays_wrong() {
    let mut packets = stream(false, &[1000, 1000, 1000], &[]);
    for at in 0..3 {
        packets[at][10] ^= 1;
        let (counts, all) = through(&packets, &mut Tun::default());
        assert_eq!((counts.iter().sum::<usize>(), &all), (3, &packets), "packet {at}");
        packets[at][10] ^= 1;
    }
}

#[test]
fn datagrams_join_and_their_sizes_survive() {
    for v6 in [false, true] {
        let packets: Vec<Vec<u8>> = (0..100)
            .map(|i| {
                let mut p = packet(v6, UDP, &udp(64), &[i; 64]);
                if !v6 {
                    renumber(&mut p, u16::from(i));
                }
                p
            })
            .collect();
        let (counts, all) = through(&packets, &mut Tun::default());
        assert_eq!(counts, [64, 36]);
        assert_eq!(all, packets);
    }
}

#[test]
fn without_offload_and_for_what_is_not_understood_nothing_joins() {
    let mut tun = Tun { tcp: false, udp: false, ..Tun::default() };
    assert_eq!(through(&stream(false, &[500; 3], &[]), &mut tun).0, [1, 1, 1]);
    let odd = [vec![0x45], vec![0x60; 41], vec![1; 80]];
    let mut tun = Tun::default();
    let mut c = Coalescer::new();
    odd.iter().for_each(|p| c.push(p, &mut tun));
    assert_eq!(c.finish(&mut tun), Written { writes: 3, lost: 0 });
}

#[test]
fn many_flows_take_turns_and_none_is_lost() {
    let mut packets = Vec::new();
    for round in 0..3u32 {
        for port in 0..20u8 {
            let mut header = tcp(round * 100, ACK, &[]);
            header[1] = port;
            packets.push(packet(false, TCP, &header, &[port; 100]));
        }
    }
    let (_, mut all) = through(&packets, &mut Tun::default());
    all.sort();
    packets.sort();
    assert_eq!(all, packets);
}

#[test]
fn a_full_tun_loses_and_counts() {
    let packets = stream(false, &[1400, 1400, 1400], &[]);
    let mut tun = Tun { full: true, ..Tun::default() };
    let mut c = Coalescer::new();
    packets.iter().for_each(|p| c.push(p, &mut tun));
    assert_eq!(c.finish(&mut tun), Written { writes: 0, lost: 3 });
}
