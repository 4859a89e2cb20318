//! Truncated, oversized, replayed, reflected, forged and reordered packets: each dropped, counted and survived.

use super::rig::*;
use sealane_sys::netlink::Netlink;
use sealane_sys::netlink_route::LinkSet;
use sealane_tunnel::plane::{Command, Event, KeySlot, PeerNew, Plane, Transport};
use sealane_tunnel::user::Config;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Instant;

/// The packet still passes: nothing that came before has done harm.
fn still_works(rig: &Rig, peer: &mut Peer, service: &std::net::UdpSocket) {
    peer.send(&peer.datagram(SERVER, b"still there?"));
    let mut got = [0; 100];
    let (n, from) = service.recv_from(&mut got).unwrap();
    assert_eq!(&got[..n], b"still there?");
    service.send_to(b"yes", from).unwrap();
    assert_eq!(payload4(&peer.receive()), b"yes");
    assert_eq!(rig.total("tun_lost"), 0);
}

#[test]
fn forged_truncated_and_replayed_packets_are_dropped_and_counted_each() {
    in_namespace(|| {
        let rig = Rig::new(1, false);
        let service = service(7);
        let mut peer = Peer::new(&rig, 1);
        rig.admit(&peer);
        let good = peer.seal(&peer.datagram(SERVER, b"once"));
        // Every bit of the packet counts, but for the key id and the peer id, which find the key.
        let mut forged = 0;
        for at in 4..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            peer.send_raw(&bad);
            forged += 1;
        }
        rig.wait_total("drop_forged", forged);
        // Every truncation: too short for its tag, or not authentic.
        for len in 4..good.len() {
            peer.send_raw(&good[..len]);
        }
        let short = 25 - 4;
        rig.wait_total("drop_malformed", short);
        rig.wait_total("drop_forged", forged + (good.len() as u64 - 25));
        for _ in 0..20 {
            peer.send_raw(&good);
        }
        rig.wait_total("drop_replayed", 19);
        let mut got = [0; 100];
        assert_eq!(service.recv_from(&mut got).unwrap().0, 4);
        assert_eq!(&got[..4], b"once");
        // Another key id, another peer.
        let mut other = good.clone();
        other[0] ^= 4;
        peer.send_raw(&other);
        other = good.clone();
        other[3] ^= 8;
        peer.send_raw(&other);
        rig.wait_total("drop_unknown_key", 1);
        rig.wait_total("drop_unknown_peer", 1);
        still_works(&rig, &mut peer, &service);
        let counters = rig.plane.counters(peer.id).unwrap();
        assert_eq!(counters.dropped, forged + short + (good.len() as u64 - 25) + 19 + 1);
    });
}

#[test]
fn a_packet_of_ours_sent_back_is_not_taken() {
    in_namespace(|| {
        let rig = Rig::new(1, false);
        let service = service(7);
        let mut peer = Peer::new(&rig, 1);
        rig.admit(&peer);
        service.send_to(b"hello", SocketAddr::new(peer.ip().into(), 4000)).unwrap();
        let ours = peer.receive_raw();
        peer.send_raw(&ours);
        rig.wait_total("drop_forged", 1);
        assert_eq!(payload4(&peer.open(&ours)), b"hello");
        still_works(&rig, &mut peer, &service);
    });
}

#[test]
fn reordered_packets_pass_within_the_window_and_not_behind_it() {
    in_namespace(|| {
        let rig = Rig::new(1, false);
        let service = service(7);
        let mut peer = Peer::new(&rig, 1);
        rig.admit(&peer);
        let mut packets: Vec<Vec<u8>> =
            (0..5000u32).map(|i| peer.seal(&peer.datagram(SERVER, &i.to_be_bytes()))).collect();
        // The newest first: all of the window still pass, what is older does not.
        let newest = packets.pop().unwrap();
        peer.send_raw(&newest);
        let mut got = [0; 100];
        service.recv_from(&mut got).unwrap();
        let (old, young) = packets.split_at(5000 - 2048);
        for packet in young.iter().rev() {
            peer.send_raw(packet);
            let (n, _) = service.recv_from(&mut got).unwrap();
            assert_eq!(n, 4);
        }
        for packet in old.iter().take(500) {
            peer.send_raw(packet);
        }
        rig.wait_total("drop_old", 500);
        still_works(&rig, &mut peer, &service);
    });
}

#[test]
fn garbage_of_every_opcode_and_size_is_survived() {
    in_namespace(|| {
        let rig = Rig::new(2, false);
        let service = service(7);
        let mut peer = Peer::new(&rig, 2);
        rig.admit(&peer);
        let mut state = 7u64;
        let mut sent = 0;
        for first in 0..=255u8 {
            for len in [1, 2, 3, 4, 5, 8, 24, 25, 100, 1500, 9000, 65_507] {
                let mut packet = vec![0; len];
                for b in &mut packet {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    *b = (state >> 33) as u8;
                }
                packet[0] = first;
                peer.send_raw(&packet);
                sent += 1;
                if sent % 16 == 0 {
                    rig.wait_total("link_received", sent + rig.total("forwarded"));
                }
            }
        }
        still_works(&rig, &mut peer, &service);
    });
}

#[test]
fn plaintexts_that_are_no_packets_of_the_peer_are_dropped() {
    in_namespace(|| {
        let rig = Rig::new(1, false);
        let service = service(7);
        let mut peer = Peer::new(&rig, 1);
        rig.admit(&peer);
        let stranger: SocketAddr = "10.78.0.99:4000".parse().unwrap();
        peer.send(&udp4(stranger, SocketAddr::new(SERVER.into(), 7), b"not mine"));
        peer.send(&udp4(SocketAddr::new(SERVER.into(), 7), SocketAddr::new(SERVER.into(), 7), b"nor yours"));
        rig.wait_total("drop_source", 2);
        for inner in [&[0x45][..], &[0x60; 39], &[0; 100], &[0xff], &[0x28, 0x7f, 0x34]] {
            peer.send(inner);
        }
        rig.wait_total("drop_inner", 5);
        // Right addresses and nonsense after them are the system's to judge.
        let mut nonsense = peer.datagram(SERVER, &[0; 300]);
        for at in [2, 3, 6, 9, 22, 24, 26] {
            nonsense[at] ^= 0x5a;
            peer.send(&nonsense);
        }
        still_works(&rig, &mut peer, &service);
    });
}

#[test]
fn a_tun_that_takes_nothing_loses_and_counts() {
    in_namespace(|| {
        let rig = Rig::with(&Config { interface: "backed0".into(), ..Config::default() });
        let mut peer = Peer::new(&rig, 1);
        rig.admit(&peer);
        let mut netlink = Netlink::route().unwrap();
        let index = netlink.link_index(rig.plane.interface()).unwrap();
        netlink.link_set(index, &LinkSet { up: Some(false), ..LinkSet::default() }).unwrap();
        for _ in 0..50 {
            peer.send(&peer.datagram(SERVER, b"nobody is in"));
        }
        rig.wait_total("tun_lost", 50);
        netlink.link_set(index, &LinkSet { up: Some(true), ..LinkSet::default() }).unwrap();
        netlink.address_add(index, Ipv4Addr::new(10, 78, 0, 1).into(), 24).unwrap();
        let service = service(7);
        peer.send(&peer.datagram(SERVER, b"back"));
        assert_eq!(service.recv_from(&mut [0; 100]).unwrap().0, 4);
    });
}

/// It reads nothing of what is sent to it over TCP: what nothing has room for is lost and counted, others are served.
#[test]
fn a_stuck_client_loses_its_own_packets_only() {
    in_namespace(|| {
        let rig = Rig::new(1, false);
        let service = service(7);
        let stuck = TcpStream::connect(rig.tcp).unwrap();
        let socket = rig.sink.wait("SocketOpened", |e| match e {
            Event::SocketOpened { socket, .. } => Some(*socket),
            _ => None,
        });
        let slow = Peer::new(&rig, 1);
        let mut about = PeerNew::new(slow.id, socket, Transport::Tcp, stuck.local_addr().unwrap());
        about.vpn_ip4 = Some(slow.ip());
        rig.do_it(Command::PeerNew(about)).unwrap();
        rig.install(&slow, KeySlot::Primary, &slow.key);
        let mut other = Peer::new(&rig, 2);
        rig.admit(&other);
        let end = Instant::now() + WAIT_LIMIT;
        while rig.total("link_lost") == 0 {
            assert!(Instant::now() < end, "everything is taken: {:?}", rig.plane.totals());
            (0..100).for_each(|_| drop(service.send_to(&[7; 1400], (slow.ip(), 4000))));
        }
        still_works(&rig, &mut other, &service);
    });
}
