//! A peer that moves: followed once it has proved who it is.

use super::rig::*;
use sealane_tunnel::plane::Event;
use std::net::SocketAddr;

#[test]
fn a_peer_is_followed_by_authentic_packets_alone() {
    in_namespace(|| {
        let rig = Rig::new(3, false);
        let service = service(7);
        for id in 0..6 {
            let mut peer = Peer::new(&rig, id);
            rig.admit(&peer);
            let to = SocketAddr::new(peer.ip().into(), 4000);
            peer.send(&peer.datagram(SERVER, b"here"));
            service.recv_from(&mut [0; 100]).unwrap();
            // A forger, and one who repeats, from elsewhere.
            let late = peer.seal(&peer.datagram(SERVER, b"late"));
            let mut forged = peer.seal(&peer.datagram(SERVER, b"forged"));
            forged[30] ^= 1;
            let elsewhere = bind();
            elsewhere.send_to(&forged, rig.udp).unwrap();
            rig.wait_total("drop_forged", u64::from(id) + 1);
            assert_eq!(rig.total("floats"), u64::from(id));
            service.send_to(b"you", to).unwrap();
            assert_eq!(payload4(&peer.receive()), b"you");
            // It moves.
            let old = std::mem::replace(&mut peer.socket, bind());
            peer.send(&peer.datagram(SERVER, b"moved"));
            service.recv_from(&mut [0; 100]).unwrap();
            let new = peer.socket.local_addr().unwrap();
            let told = rig.sink.wait("FloatTo", |e| match e {
                Event::FloatTo { peer: p, remote, .. } if *p == peer.id => Some(*remote),
                _ => None,
            });
            assert_eq!(told, new);
            service.send_to(b"found", to).unwrap();
            assert_eq!(payload4(&peer.receive()), b"found");
            // What comes late from the address before is taken, and does not move it back.
            old.send_to(&late, rig.udp).unwrap();
            let mut got = [0; 100];
            let (n, _) = service.recv_from(&mut got).unwrap();
            assert_eq!(&got[..n], b"late");
            service.send_to(b"still", to).unwrap();
            assert_eq!(payload4(&peer.receive()), b"still");
            assert_eq!(rig.total("floats"), u64::from(id) + 1);
        }
    });
}
