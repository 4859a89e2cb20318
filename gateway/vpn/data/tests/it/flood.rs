//! Floods: none lost by rekeying, no packet id issued twice, ids nearly in order.

use super::rig::*;
use sealane_tunnel::plane::{Command, Event, KeySlot, Plane};
use sealane_tunnel::user::{Config, Role};
use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

/// Swaps of keys during a flood.
const SWAPS: u8 = 60;

/// Numbered packets go both ways, each answered before many others follow, while keys are exchanged as control does
/// it: install for receiving, wait for the acknowledgement, then send with it, the old one staying for what is still
/// on its way.
#[test]
fn no_packet_is_lost_across_key_swaps() {
    in_namespace(|| {
        let rig = Rig::new(2, false);
        let service = service(7);
        let mut peer = Peer::new(&rig, 3);
        rig.admit(&peer);
        let (mut old_sealer, mut old_opener) = (None, None);
        let (mut sent, mut received) = (0u32, 0u32);
        for swap in 1..=SWAPS {
            let key = Key::new(swap % 8, swap);
            // What was sealed before, with every key that still lives, comes after the swap.
            let late: Vec<u8> = peer.seal(&peer.datagram(SERVER, &sent.to_be_bytes()));
            sent += 1;
            rig.install(&peer, KeySlot::Secondary, &key);
            let (sealer, opener) = ends(peer.id, &key, true);
            old_sealer = Some(std::mem::replace(&mut peer.sealer, sealer));
            // The peer begins with the new key while we still send with the old one.
            for _ in 0..20 {
                peer.send(&peer.datagram(SERVER, &sent.to_be_bytes()));
                sent += 1;
                service.send_to(b"to you", SocketAddr::new(peer.ip().into(), 4000)).unwrap();
            }
            rig.do_it(Command::KeySwap(peer.id)).unwrap();
            peer.send_raw(&late);
            for _ in 0..20 {
                service.send_to(b"to you", SocketAddr::new(peer.ip().into(), 4000)).unwrap();
            }
            old_opener = Some(std::mem::replace(&mut peer.opener, opener));
            for _ in 0..40 {
                let packet = peer.receive_raw();
                let inner = if packet[0] & 7 == key.key_id {
                    peer.open(&packet)
                } else {
                    let mut out = vec![0; packet.len()];
                    let n = old_opener.as_mut().unwrap().open_into(&packet, &mut out).unwrap();
                    out.truncate(n);
                    out
                };
                assert_eq!(payload4(&inner), b"to you");
            }
            let mut seen = HashSet::new();
            while received < sent {
                let mut got = [0; 100];
                let (n, _) = service.recv_from(&mut got).unwrap();
                assert_eq!(n, 4);
                assert!(seen.insert(got[..4].to_vec()), "twice");
                received += 1;
            }
        }
        drop((old_sealer, old_opener));
        for counter in ["drop_unknown_key", "drop_forged", "drop_old", "drop_replayed", "drop_no_key", "tun_lost"] {
            assert_eq!(rig.total(counter), 0, "{counter}");
        }
    });
}

/// Several flows, which the system spreads over the TUN's queues, and so over all lanes, to one peer. One lane seals for it,
/// whatever the others bring, so its packet ids are issued once and leave in their order. The lanes share a core, so that
/// the kernel between them and the peer keeps that order, too; how many packets get through a flood is the machine's affair.
#[test]
fn no_packet_id_is_issued_twice_and_they_leave_in_order() {
    const LANES: u16 = 4;
    const FLOWS: usize = 32;
    const ENOUGH: usize = 2_000;
    in_namespace(|| {
        let role = Role::Server { client_to_client: false };
        let rig = Rig::with(&Config { lanes: LANES, cores: vec![0], role, ..Config::default() });
        let mut peer = Peer::new(&rig, 6);
        rig.admit(&peer);
        let to = SocketAddr::new(peer.ip().into(), 4000);
        let done = AtomicBool::new(false);
        let (mut ids, mut newest) = (HashSet::new(), 0u32);
        std::thread::scope(|scope| {
            for part in 0..4 {
                let done = &done;
                scope.spawn(move || {
                    // Threads of a scope do not inherit the namespace by `enter`, but by being started here.
                    let sockets: Vec<UdpSocket> =
                        (0..FLOWS / 4).map(|i| service(20_000 + (part * FLOWS + i) as u16)).collect();
                    while !done.load(Ordering::Acquire) {
                        sockets.iter().for_each(|s| drop(s.send_to(&[7; 100], to)));
                        std::thread::yield_now();
                    }
                });
            }
            let mut packet = [0; 2000];
            // A failure must not leave the senders alone.
            let received = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                while ids.len() < ENOUGH {
                    let (n, _) = peer.socket.recv_from(&mut packet).expect("packets come");
                    let id = u32::from_be_bytes(packet[4..8].try_into().unwrap());
                    assert!(ids.insert(id), "packet id {id} was issued twice");
                    assert!(id > newest, "packet id {id} came after {newest}");
                    newest = id;
                    assert_eq!(payload4(&peer.open(&packet[..n])), [7; 100]);
                }
            }));
            done.store(true, Ordering::Release);
            received.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        // Each was sealed once: there are no more ids than packets.
        assert!(u64::from(newest) <= rig.plane.counters(peer.id).unwrap().tx_packets);
        assert!(rig.total("forwarded") > 0, "the flows did not come to several lanes");
    });
}

#[test]
fn packets_without_a_key_are_dropped_and_counted() {
    in_namespace(|| {
        let rig = Rig::new(1, false);
        let service = service(7);
        let mut peer = Peer::new(&rig, 1);
        rig.admit(&peer);
        rig.do_it(Command::KeyDel(peer.id, KeySlot::Primary)).unwrap();
        // Commands are obeyed in their order, and this one is answered.
        rig.do_it(Command::KeySwap(peer.id)).unwrap();
        rig.sink.wait("Failed", |e| matches!(e, Event::Failed { .. }).then_some(()));
        service.send_to(b"lost", SocketAddr::new(peer.ip().into(), 4000)).unwrap();
        rig.wait_total("drop_no_key", 1);
        peer.send(&peer.datagram(SERVER, b"lost"));
        rig.wait_total("drop_unknown_key", 1);
    });
}
