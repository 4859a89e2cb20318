//! Two thousand peers at once: they stay, each gets its own packets, and an idle one costs little.

use super::rig::*;
use sealane_tunnel::plane::Plane;
use std::net::SocketAddr;

const PEERS: u32 = 2_000;

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn two_thousand_peers_stay_and_get_their_own() {
    let limit = sealane_sys::limits::raise_open_files();
    if limit < u64::from(PEERS) + 500 {
        return eprintln!("skipped: a process may open only {limit} files here");
    }
    in_namespace(|| {
        let rig = Rig::new(2, false);
        let service = service(7);
        // The test's half of each peer lies in memory, too: made first, so that what grows is the plane's.
        let mut peers: Vec<Peer> = (0..PEERS).map(|id| Peer::new(&rig, id)).collect();
        let before = resident();
        peers.iter().for_each(|p| rig.admit(p));
        let each = resident().saturating_sub(before) / u64::from(PEERS);
        // Other tests of this process take memory meanwhile, so this is told, not judged.
        eprintln!("{each} bytes per idle peer, other tests' memory included");
        for _ in 0..2 {
            for peer in &mut peers {
                let name = peer.id.get().to_be_bytes();
                peer.send(&peer.datagram(SERVER, &name));
                let mut got = [0; 10];
                let (n, from) = service.recv_from(&mut got).unwrap();
                assert_eq!((&got[..n], from), (&name[..], SocketAddr::new(peer.ip().into(), 4000)));
                service.send_to(&got[..n], from).unwrap();
                assert_eq!(payload4(&peer.receive()), name);
            }
        }
        assert!(peers.iter().all(|p| rig.plane.counters(p.id).is_some_and(|c| (c.rx_packets, c.tx_packets) == (2, 2))));
    });
}
