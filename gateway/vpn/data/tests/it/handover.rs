//! A plane that goes on in another process: nothing is lost, no id is issued twice, nothing is taken twice.

use super::rig::*;
use sealane_ovpn::data::{Cipher, Format};
use sealane_tunnel::HandOver;
use sealane_tunnel::plane::{Command, Event, KeySlot, PeerNew, Plane, TakenSocket, Transport, VERSION};
use sealane_tunnel::user::{Config, Role, UserPlane};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// Stops the rig's plane and starts one from what it leaves, as an upgraded binary would.
fn hand_over(rig: Rig) -> Rig {
    let Rig { plane, udp, tcp, .. } = rig;
    let HandOver { bytes, descriptors } = plane.hand_over().unwrap();
    let config = Config { role: Role::Server { client_to_client: false }, ..Config::default() };
    let sink = Arc::new(Collector::default());
    let plane = UserPlane::resume(&config, HandOver { bytes, descriptors }, sink.clone()).unwrap();
    Rig { plane, sink, udp, tcp }
}

#[test]
fn traffic_goes_on_and_no_id_is_issued_twice() {
    in_namespace(|| {
        for format in [Format::Stock, Format::Epoch] {
            let mut rig = Rig::new(3, false);
            let service = service(7);
            let key = Key { key_id: 1, cipher: Cipher::Aes128Gcm, format, seed: 9 };
            let mut peer = Peer::with(&rig, 4, key, true);
            rig.admit(&peer);
            let to = SocketAddr::new(peer.ip().into(), 4000);
            let (mut ids, mut packets) = (HashSet::new(), Vec::new());
            let mut got = [0; 100];
            for round in 0..5u8 {
                for n in 0..50u8 {
                    let packet = peer.seal(&peer.datagram(SERVER, &[round, n]));
                    peer.send_raw(&packet);
                    packets.push(packet);
                    service.send_to(&[round, n], to).unwrap();
                }
                // Half of them are still in the kernel's queues.
                rig = hand_over(rig);
                let mut seen = HashSet::new();
                for _ in 0..50 {
                    let packet = peer.receive_raw();
                    assert!(ids.insert(packet[4..4 + format.id_len()].to_vec()), "a packet id was issued twice");
                    assert_eq!(payload4(&peer.open(&packet))[0], round);
                    assert_eq!(service.recv_from(&mut got).unwrap().0, 2);
                    assert_eq!(got[0], round);
                    assert!(seen.insert(got[1]));
                }
            }
            let before = rig.total("drop_replayed");
            packets.iter().for_each(|p| peer.send_raw(p));
            rig.wait_total("drop_replayed", before + packets.len() as u64);
            let counters = rig.plane.counters(peer.id).unwrap();
            assert_eq!((counters.rx_packets, counters.tx_packets), (250, 250));
        }
    });
}

#[test]
fn connections_and_commands_go_on() {
    in_namespace(|| {
        let rig = Rig::new(2, false);
        let service = service(7);
        let mut stream = TcpStream::connect(rig.tcp).unwrap();
        stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        let socket = rig.sink.wait("SocketOpened", |e| match e {
            Event::SocketOpened { socket, .. } => Some(*socket),
            _ => None,
        });
        let mut peer = Peer::new(&rig, u32::from(socket.lane()));
        let mut about = PeerNew::new(peer.id, socket, Transport::Tcp, stream.local_addr().unwrap());
        about.vpn_ip4 = Some(peer.ip());
        about.routes = vec!["10.99.0.0/16".parse().unwrap()];
        rig.do_it(Command::PeerNew(about)).unwrap();
        rig.install(&peer, KeySlot::Primary, &peer.key.clone());
        let packet = peer.seal(&peer.datagram(SERVER, b"in two pieces"));
        let framed = [&(packet.len() as u16).to_be_bytes()[..], &packet].concat();
        stream.write_all(&framed[..20]).unwrap();
        rig.wait_total("link_received", 0);
        std::thread::sleep(std::time::Duration::from_millis(50));
        let rig = hand_over(rig);
        stream.write_all(&framed[20..]).unwrap();
        let mut got = [0; 100];
        let (n, from) = service.recv_from(&mut got).unwrap();
        assert_eq!(&got[..n], b"in two pieces");
        service.send_to(b"answer", from).unwrap();
        let mut len = [0; 2];
        stream.read_exact(&mut len).unwrap();
        let mut answer = vec![0; usize::from(u16::from_be_bytes(len))];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(payload4(&peer.open(&answer)), b"answer");
        // The door knows the peer, its address and its route.
        let other = Peer::new(&rig, peer.id.get() + 2);
        let mut about = other.about();
        about.routes = vec!["10.99.0.0/16".parse().unwrap()];
        rig.do_it(Command::PeerNew(about)).unwrap_err();
        rig.do_it(Command::PeerDel(peer.id)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        rig.admit(&other);
        // New connections get numbers that no former one had.
        let _second = TcpStream::connect(rig.tcp).unwrap();
        let second = rig.sink.wait("SocketOpened", |e| match e {
            Event::SocketOpened { socket, .. } => Some(*socket),
            _ => None,
        });
        assert_ne!(second, socket);
    });
}

/// A load balancer has named the client: the address of the connection is the load balancer's.
#[test]
fn the_named_address_of_a_client_goes_on() {
    in_namespace(|| {
        let rig = Rig::new(1, false);
        let named: SocketAddr = "192.0.2.7:1234".parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let fd = listener.accept().unwrap().0.into();
        rig.do_it(Command::SocketTake(TakenSocket { fd, bytes: vec![0], remote: named })).unwrap();
        rig.wait_total("connection_taken", 1);
        let rig = hand_over(rig);
        client.write_all(&[2, 7 << 3, 1]).unwrap();
        let got = rig.sink.control();
        assert_eq!((got.bytes, got.remote), (vec![7 << 3, 1], named));
    });
}

/// More connected TCP clients of one network than connections without a session may have: all stay connected.
#[test]
fn all_connected_clients_stay() {
    const CLIENTS: u32 = 80;
    in_namespace(|| {
        let rig = Rig::new(1, false);
        let mut streams = Vec::new();
        for id in 1..=CLIENTS {
            let stream = TcpStream::connect(rig.tcp).unwrap();
            stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
            let remote = stream.local_addr().unwrap();
            let socket = rig.sink.wait("SocketOpened", |e| match e {
                Event::SocketOpened { socket, remote: r } if *r == remote => Some(*socket),
                _ => None,
            });
            let peer = Peer::new(&rig, id);
            let mut about = PeerNew::new(peer.id, socket, Transport::Tcp, remote);
            about.vpn_ip4 = Some(peer.ip());
            rig.do_it(Command::PeerNew(about)).unwrap();
            rig.install(&peer, KeySlot::Primary, &peer.key.clone());
            streams.push((peer, stream));
        }
        let rig = hand_over(rig);
        let service = service(7);
        for (mut peer, mut stream) in streams {
            let packet = peer.seal(&peer.datagram(SERVER, b"still here"));
            stream.write_all(&[&(packet.len() as u16).to_be_bytes()[..], &packet].concat()).unwrap();
            let mut got = [0; 100];
            let (n, _) = service.recv_from(&mut got).unwrap();
            assert_eq!(&got[..n], b"still here");
        }
        assert_eq!(rig.total("connection_evicted"), 0);
    });
}

#[test]
fn another_version_of_the_interface_is_refused() {
    in_namespace(|| {
        let rig = Rig::new(1, false);
        let whole = rig.plane.hand_over().unwrap();
        let resume = |bytes: Vec<u8>| {
            let descriptors = whole.descriptors.iter().map(|fd| fd.try_clone().unwrap()).collect();
            UserPlane::resume(&Config::default(), HandOver { bytes, descriptors }, Arc::new(Collector::default()))
        };
        // The first field: a tag and a length, then the number.
        for version in [u64::from(VERSION) + 1, 0, u64::MAX] {
            let mut other = whole.bytes.clone();
            other[6..14].copy_from_slice(&version.to_be_bytes());
            let Err(refused) = resume(other) else { panic!("version {version} is taken over") };
            let refused = refused.to_string();
            assert!(refused.contains(&format!("the old process has version {version} of the interface")), "{refused}");
        }
        assert!(resume(whole.bytes[14..].to_vec()).is_err(), "it says no version");
        assert!(resume(whole.bytes.clone()).is_ok());
    });
}

#[test]
fn what_is_cut_off_or_without_descriptors_is_refused() {
    in_namespace(|| {
        let rig = Rig::new(1, false);
        let peer = Peer::new(&rig, 1);
        rig.admit(&peer);
        let whole = rig.plane.hand_over().unwrap();
        let config = Config::default();
        for len in 0..whole.bytes.len() {
            let descriptors = whole.descriptors.iter().map(|fd| fd.try_clone().unwrap()).collect();
            let part = HandOver { bytes: whole.bytes[..len].to_vec(), descriptors };
            assert!(UserPlane::resume(&config, part, Arc::new(Collector::default())).is_err(), "{len} bytes");
        }
        let bare = HandOver { bytes: whole.bytes, descriptors: Vec::new() };
        assert!(UserPlane::resume(&config, bare, Arc::new(Collector::default())).is_err());
    });
}
