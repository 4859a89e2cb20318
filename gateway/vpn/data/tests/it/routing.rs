//! Which peer a packet goes to, and what a peer may send.

use super::rig::*;
use sealane_tunnel::filter::Filter;
use sealane_tunnel::plane::{Command, Event, KeySlot, PeerSet, Plane, Prefix, Rates, Refused};
use sealane_tunnel::user::{Config, Role};
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn networks_behind_peers_are_routed_and_may_speak() {
    in_namespace(|| {
        let network: Prefix = "10.99.0.0/16".parse().unwrap();
        let rig = Rig::with(&Config { routes: vec![network], lanes: 2, ..Config::default() });
        let service = service(7);
        let (mut wide, mut narrow) = (Peer::new(&rig, 1), Peer::new(&rig, 2));
        for (peer, route) in [(&wide, "10.99.0.0/16"), (&narrow, "10.99.5.0/24")] {
            let mut about = peer.about();
            about.routes = vec![route.parse().unwrap()];
            rig.do_it(Command::PeerNew(about)).unwrap();
            rig.install(peer, sealane_tunnel::plane::KeySlot::Primary, &peer.key);
        }
        let host = |last: &str| -> SocketAddr { format!("10.99.{last}:4000").parse().unwrap() };
        for (peer, last) in [(&mut wide, "4.1"), (&mut narrow, "5.1")] {
            service.send_to(b"question", host(last)).unwrap();
            assert_eq!(payload4(&peer.receive()), b"question");
            peer.send(&udp4(host(last), SocketAddr::new(SERVER.into(), 7), b"answer"));
            let mut got = [0; 100];
            let (n, from) = service.recv_from(&mut got).unwrap();
            assert_eq!((&got[..n], from), (&b"answer"[..], host(last)));
        }
        // Another's network, also when one's own would hold it.
        narrow.send(&udp4(host("4.1"), SocketAddr::new(SERVER.into(), 7), b"spoofed"));
        wide.send(&udp4(host("5.1"), SocketAddr::new(SERVER.into(), 7), b"spoofed"));
        rig.wait_total("drop_source", 2);
        // The narrow route goes: the wide one takes over.
        let set = PeerSet { routes: Some(Vec::new()), ..PeerSet::default() };
        rig.do_it(Command::PeerSet(narrow.id, set)).unwrap();
        service.send_to(b"now you", host("5.1")).unwrap();
        assert_eq!(payload4(&wide.receive()), b"now you");
        assert!(narrow.nothing());
    });
}

/// What its list does not name is dropped and counted; a list that changes or goes does so under the peer.
#[test]
fn a_peer_reaches_what_its_list_names() {
    in_namespace(|| {
        let rig = Rig::new(1, false);
        let (service, other) = (service(7), service(8));
        let mut peer = Peer::new(&rig, 0);
        let list = |allow: &str| {
            let allow = vec![allow.parse().unwrap()];
            Some(Arc::new(Filter::new(Vec::new(), Some(allow)).unwrap()))
        };
        let mut about = peer.about();
        about.filter = list("10.78.0.1 udp 7");
        rig.do_it(Command::PeerNew(about)).unwrap();
        rig.install(&peer, KeySlot::Primary, &peer.key);
        let (id, from) = (peer.id, SocketAddr::new(peer.ip().into(), 4000));
        let set = |filter| {
            rig.do_it(Command::PeerSet(id, PeerSet { filter: Some(filter), ..PeerSet::default() })).unwrap();
        };
        // A lane obeys between packets: what comes too early is sent again.
        let mut reaches = |socket: &UdpSocket| {
            let packet = udp4(from, SocketAddr::new(SERVER.into(), socket.local_addr().unwrap().port()), b"question");
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let end = Instant::now() + WAIT_LIMIT;
            loop {
                peer.send(&packet);
                let mut got = [0; 100];
                match socket.recv(&mut got) {
                    Ok(n) => return assert_eq!(&got[..n], b"question"),
                    Err(e) => assert!(Instant::now() < end, "nothing came: {e}"),
                }
            }
        };
        reaches(&service);
        set(list("10.78.0.1 udp 8"));
        reaches(&other);
        let before = rig.total("drop_access");
        peer.send(&udp4(from, SocketAddr::new(SERVER.into(), 7), b"denied"));
        rig.wait_total("drop_access", before + 1);
        set(None);
        let mut got = [0; 100];
        while service.recv(&mut got).is_ok() {
            assert_eq!(&got[..8], b"question", "what was denied has come");
        }
        let packet = udp4(from, SocketAddr::new(SERVER.into(), 7), b"everything");
        let end = Instant::now() + WAIT_LIMIT;
        loop {
            peer.send(&packet);
            if service.recv(&mut got).is_ok_and(|n| &got[..n] == b"everything") {
                return;
            }
            assert!(Instant::now() < end, "the list stays");
        }
    });
}

/// What is above a peer's rate is dropped and counted, for each direction by itself. Rates that go let everything pass.
#[test]
fn a_peer_sends_and_receives_at_its_rates() {
    in_namespace(|| {
        let rig = Rig::new(1, false);
        let service = service(7);
        service.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut peer = Peer::new(&rig, 0);
        let mut about = peer.about();
        let rate = NonZeroU64::new(1_000);
        about.rates = Rates { upload: rate, download: rate };
        rig.do_it(Command::PeerNew(about)).unwrap();
        rig.install(&peer, KeySlot::Primary, &peer.key);
        let inside = SocketAddr::new(peer.ip().into(), 4000);
        let packet = udp4(inside, SocketAddr::new(SERVER.into(), 7), &[7; 1000]);
        let (mut got, end) = ([0; 2000], Instant::now() + WAIT_LIMIT);
        let mut passed = 0;
        while rig.total("drop_upload_rate") == 0 {
            assert!(Instant::now() < end, "nothing that the peer sends is dropped");
            peer.send(&packet);
            passed += u32::from(service.recv(&mut got).is_ok());
        }
        assert!(passed >= 20, "{passed} packets of a burst of 32 KiB");
        assert_eq!(rig.total("drop_download_rate"), 0);
        while rig.total("drop_download_rate") == 0 {
            assert!(Instant::now() < end, "nothing that is sent to the peer is dropped");
            service.send_to(&[8; 1000], inside).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let counters = rig.plane.counters(peer.id).unwrap();
        assert!(counters.tx_packets >= 20 && counters.rx_packets >= 20, "{counters:?}");
        let set = PeerSet { rates: Some(Rates::default()), ..PeerSet::default() };
        rig.do_it(Command::PeerSet(peer.id, set)).unwrap();
        // More in a row than a burst has.
        let (mut in_a_row, end) = (0, Instant::now() + WAIT_LIMIT);
        while in_a_row < 100 {
            assert!(Instant::now() < end, "the rates stay");
            peer.send(&packet);
            in_a_row = if service.recv(&mut got).is_ok() { in_a_row + 1 } else { 0 };
        }
    });
}

#[test]
fn peers_reach_each_other_only_where_they_may() {
    in_namespace(|| {
        for client_to_client in [false, true] {
            let role = Role::Server { client_to_client };
            let interface = format!("c2c{}", u8::from(client_to_client));
            let rig = Rig::with(&Config { role, lanes: 2, interface, ..Config::default() });
            let mut peers: Vec<Peer> = (0..3).map(|id| Peer::new(&rig, id)).collect();
            peers.iter().for_each(|p| rig.admit(p));
            // Of the same lane, and of the other one.
            for (from, to) in [(0, 2), (0, 1)] {
                let packet = peers[from].datagram(peers[to].ip(), b"psst");
                peers[from].send(&packet);
                if client_to_client {
                    assert_eq!(payload4(&peers[to].receive()), b"psst");
                } else {
                    // It goes to the system, which does not forward here.
                    rig.wait_total("tun_writes", from as u64 + if to == 2 { 1 } else { 2 });
                    assert!(peers[to].nothing());
                }
            }
        }
    });
}

#[test]
fn commands_are_checked() {
    in_namespace(|| {
        let rig = Rig::new(2, false);
        let (a, b) = (Peer::new(&rig, 1), Peer::new(&rig, 2));
        rig.admit(&a);
        assert!(matches!(rig.do_it(Command::PeerNew(a.about())), Err(Refused::PeerExists(p)) if p == a.id));
        let mut taken = b.about();
        taken.vpn_ip4 = Some(a.ip());
        assert!(matches!(rig.do_it(Command::PeerNew(taken)), Err(Refused::AddressTaken(_, p)) if p == a.id));
        assert!(matches!(rig.do_it(Command::KeySwap(b.id)), Err(Refused::NoPeer(p)) if p == b.id));
        rig.do_it(Command::KeySwap(a.id)).unwrap();
        rig.sink.wait("Failed", |e| matches!(e, Event::Failed { why: Refused::NoKey(..), .. }).then_some(()));
        rig.do_it(Command::PeerDel(a.id)).unwrap();
        rig.sink.wait("PeerGone", |e| matches!(e, Event::PeerGone { .. }).then_some(()));
        assert!(matches!(rig.do_it(Command::PeerDel(a.id)), Err(Refused::NoPeer(_))));
        assert!(rig.plane.counters(a.id).is_none());
        // Its address is free again, and so is its id.
        rig.admit(&Peer::new(&rig, 1));
        rig.do_it(Command::CountersGet(None)).unwrap();
        rig.sink.wait("Counters", |e| matches!(e, Event::Counters { peer, .. } if *peer == a.id).then_some(()));
    });
}
