//! Packets there and back: every cipher, format, header and transport; control packets beside them.

use super::rig::*;
use sealane_ovpn::data::magic::{OCC, PING};
use sealane_ovpn::data::{Cipher, Format, KeySlot};
use sealane_tunnel::plane::{Command, Event, Keepalive, PeerNew, PeerSet, Plane, TakenSocket, Transport};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

#[test]
fn echoes_in_every_cipher_format_and_header() {
    in_namespace(|| {
        let rig = Rig::new(2, false);
        let service = service(7);
        let mut id = 0;
        for cipher in Cipher::ALL {
            for format in [Format::Stock, Format::Epoch] {
                for numbered in [true, false] {
                    let key = Key { key_id: 5, cipher, format, seed: id as u8 + 1 };
                    let mut peer = Peer::with(&rig, id, key, numbered);
                    id += 1;
                    rig.admit(&peer);
                    for size in [1, 64, 1400] {
                        let question = vec![size as u8; size];
                        peer.send(&peer.datagram(SERVER, &question));
                        let mut got = [0; 2000];
                        let (n, from) = service.recv_from(&mut got).unwrap();
                        assert_eq!((&got[..n], from), (&question[..], SocketAddr::new(peer.ip().into(), 4000)));
                        service.send_to(&got[..n], from).unwrap();
                        let answer = peer.receive();
                        assert_eq!(payload4(&answer), question, "{cipher:?} {format:?} {numbered}");
                    }
                    let counters = rig.plane.counters(peer.id).unwrap();
                    assert_eq!((counters.rx_packets, counters.tx_packets), (3, 3));
                    assert_eq!(counters.rx_bytes, 28 * 3 + 1465);
                    assert!(counters.idle_ms.is_some());
                }
            }
        }
        assert_eq!(rig.total("drop_forged"), 0);
    });
}

#[test]
fn control_packets_pass_both_ways_and_a_full_control_loses_and_counts() {
    in_namespace(|| {
        let rig = Rig::new(1, false);
        let client = bind();
        // P_CONTROL_HARD_RESET_CLIENT_V2.
        client.send_to(&[7 << 3, 1, 2, 3], rig.udp).unwrap();
        let packet = rig.sink.control();
        assert_eq!((packet.bytes.as_slice(), packet.remote), (&[7 << 3, 1, 2, 3][..], client.local_addr().unwrap()));
        let answer = Command::ControlOut {
            socket: packet.socket,
            remote: packet.remote,
            local: packet.local,
            bytes: vec![8 << 3, 9],
        };
        rig.do_it(answer).unwrap();
        let mut got = [0; 10];
        let (n, from) = client.recv_from(&mut got).unwrap();
        assert_eq!((&got[..n], from), (&[8 << 3, 9][..], rig.udp));
        for _ in 0..150 {
            client.send_to(&[7 << 3], rig.udp).unwrap();
        }
        rig.wait_total("control_lost", 50);
    });
}

#[test]
fn keep_alives_are_sent_taken_and_missed() {
    in_namespace(|| {
        let rig = Rig::new(1, false);
        let mut peer = Peer::new(&rig, 1);
        rig.admit(&peer);
        let keepalive = Some(Keepalive { ping: 1, ping_restart: 3 });
        rig.do_it(Command::PeerSet(peer.id, PeerSet { keepalive, ..PeerSet::default() })).unwrap();
        assert_eq!(peer.receive(), PING);
        peer.send(&PING);
        assert_eq!(peer.receive(), PING);
        let counters = rig.plane.counters(peer.id).unwrap();
        assert_eq!((counters.rx_packets, counters.tx_packets), (0, 0), "pings are not the user's packets");
        rig.sink.wait("PeerExpired", |e| match e {
            Event::PeerExpired(id) if *id == peer.id => Some(()),
            _ => None,
        });
    });
}

/// A peer gets pings also while others send it what its rate does not let pass.
#[test]
fn what_is_dropped_keeps_no_peer_alive() {
    in_namespace(|| {
        let rig = Rig::new(1, true);
        let (mut sender, mut peer) = (Peer::new(&rig, 1), Peer::new(&rig, 2));
        rig.admit(&sender);
        let mut about = peer.about();
        about.rates.download = NonZeroU64::new(1);
        about.keepalive = Keepalive { ping: 1, ping_restart: 0 };
        rig.do_it(Command::PeerNew(about)).unwrap();
        rig.install(&peer, KeySlot::Primary, &peer.key);
        peer.socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let packet = sender.datagram(peer.ip(), &[7; 1000]);
        let (mut got, end) = ([0; 2000], Instant::now() + WAIT_LIMIT);
        loop {
            assert!(Instant::now() < end, "the peer gets no ping");
            sender.send(&packet);
            let Ok(length) = peer.socket.recv(&mut got) else { continue };
            if peer.open(&got[..length]) == PING && rig.total("drop_download_rate") > 0 {
                break;
            }
        }
    });
}

#[test]
fn in_band_messages_pass_both_ways() {
    in_namespace(|| {
        let rig = Rig::new(1, false);
        let mut peer = Peer::new(&rig, 1);
        rig.admit(&peer);
        let exit = [&OCC[..], &[6]].concat();
        peer.send(&exit);
        let got = rig.sink.wait("InbandIn", |e| match e {
            Event::InbandIn(id, bytes) if *id == peer.id => Some(bytes.clone()),
            _ => None,
        });
        assert_eq!(got, exit);
        rig.do_it(Command::InbandOut(peer.id, exit.clone())).unwrap();
        assert_eq!(peer.receive(), exit);
    });
}

/// Reads one frame of a connection.
fn frame(stream: &mut TcpStream) -> Vec<u8> {
    let mut len = [0; 2];
    stream.read_exact(&mut len).unwrap();
    let mut packet = vec![0; usize::from(u16::from_be_bytes(len))];
    stream.read_exact(&mut packet).unwrap();
    packet
}

fn framed(packet: &[u8]) -> Vec<u8> {
    [&(packet.len() as u16).to_be_bytes()[..], packet].concat()
}

#[test]
fn tcp_carries_control_and_data_in_pieces_of_any_size() {
    in_namespace(|| {
        let rig = Rig::new(2, false);
        let service = service(7);
        let mut stream = TcpStream::connect(rig.tcp).unwrap();
        stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        let socket = rig.sink.wait("SocketOpened", |e| match e {
            Event::SocketOpened { socket, .. } => Some(*socket),
            _ => None,
        });
        stream.write_all(&framed(&[7 << 3, 1])).unwrap();
        let packet = rig.sink.control();
        assert_eq!((packet.socket, packet.transport, packet.bytes), (socket, Transport::Tcp, vec![7 << 3, 1]));
        let bytes = vec![8 << 3, 2];
        rig.do_it(Command::ControlOut { socket, remote: packet.remote, local: None, bytes }).unwrap();
        assert_eq!(frame(&mut stream), [8 << 3, 2]);
        // The peer belongs to the connection's lane.
        let mut peer = Peer::new(&rig, u32::from(socket.lane()) + 2);
        let mut about = PeerNew::new(peer.id, socket, Transport::Tcp, stream.local_addr().unwrap());
        about.vpn_ip4 = Some(peer.ip());
        let wrong = PeerNew { peer: sealane_ovpn::data::PeerId::new(peer.id.get() + 1).unwrap(), ..about.clone() };
        rig.do_it(Command::PeerNew(wrong)).unwrap_err();
        rig.do_it(Command::PeerNew(about)).unwrap();
        rig.install(&peer, sealane_tunnel::plane::KeySlot::Primary, &peer.key.clone());
        for pieces in [1, 3, 1000] {
            let question = vec![pieces as u8; 900];
            let inner = peer.datagram(SERVER, &question);
            let bytes = [framed(&peer.seal(&inner)), framed(&peer.seal(&inner))].concat();
            for piece in bytes.chunks(bytes.len().div_ceil(pieces)) {
                stream.write_all(piece).unwrap();
            }
            for _ in 0..2 {
                let mut got = [0; 2000];
                let (n, from) = service.recv_from(&mut got).unwrap();
                assert_eq!(&got[..n], question);
                service.send_to(&got[..n], from).unwrap();
                let answer = frame(&mut stream);
                assert_eq!(payload4(&peer.open(&answer)), question);
            }
        }
        // An empty frame breaks the framing: the connection ends, and control is told.
        stream.write_all(&[0, 0]).unwrap();
        rig.sink.wait("SocketClosed", |e| match e {
            Event::SocketClosed(s) if *s == socket => Some(()),
            _ => None,
        });
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
        rig.wait_total("drop_connection", 1);
    });
}

/// A client's connection at another listener than the plane's, and the end that this listener has accepted.
fn accepted_elsewhere() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
    (client, listener.accept().unwrap().0)
}

#[test]
fn connections_accepted_elsewhere_go_on_with_what_was_read_there() {
    in_namespace(|| {
        let rig = Rig::new(2, false);
        let named: SocketAddr = "192.0.2.7:1234".parse().unwrap();
        let packet = framed(&[7 << 3, 1, 2, 3]);
        let mut lanes = Vec::new();
        for read in 0..=packet.len() {
            let (mut client, accepted) = accepted_elsewhere();
            let taken = TakenSocket { fd: accepted.into(), bytes: packet[..read].to_vec(), remote: named };
            rig.do_it(Command::SocketTake(taken)).unwrap();
            client.write_all(&packet[read..]).unwrap();
            let got = rig.sink.control();
            assert_eq!(
                (got.bytes, got.remote, got.transport),
                (vec![7 << 3, 1, 2, 3], named, Transport::Tcp),
                "{read}"
            );
            lanes.push(got.socket.lane());
            let bytes = vec![8 << 3, 2];
            rig.do_it(Command::ControlOut { socket: got.socket, remote: named, local: None, bytes }).unwrap();
            assert_eq!(frame(&mut client), [8 << 3, 2]);
        }
        assert!(lanes.contains(&0) && lanes.contains(&1), "lanes take them in turn: {lanes:?}");
        rig.wait_total("connection_taken", packet.len() as u64 + 1);
        let (mut client, accepted) = accepted_elsewhere();
        let taken = TakenSocket { fd: accepted.into(), bytes: vec![0, 0, 0x38], remote: named };
        rig.do_it(Command::SocketTake(taken)).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap_or(0), 0, "an empty frame breaks the framing");
        rig.wait_total("drop_connection", 1);
    });
}

#[test]
fn deleting_a_tcp_peer_sends_what_waits_and_closes() {
    in_namespace(|| {
        let rig = Rig::new(1, false);
        let mut stream = TcpStream::connect(rig.tcp).unwrap();
        stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        let socket = rig.sink.wait("SocketOpened", |e| match e {
            Event::SocketOpened { socket, .. } => Some(*socket),
            _ => None,
        });
        let peer = Peer::new(&rig, 1);
        let remote = stream.local_addr().unwrap();
        rig.do_it(Command::PeerNew(PeerNew::new(peer.id, socket, Transport::Tcp, remote))).unwrap();
        rig.do_it(Command::ControlOut { socket, remote, local: None, bytes: vec![8; 1000] }).unwrap();
        rig.do_it(Command::PeerDel(peer.id)).unwrap();
        assert_eq!(frame(&mut stream), [8; 1000]);
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        rig.sink.wait("PeerGone", |e| matches!(e, Event::PeerGone { .. }).then_some(()));
    });
}
