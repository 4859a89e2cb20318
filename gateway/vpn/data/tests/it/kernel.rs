//! The kernel's plane (Linux ≥ 6.16) against the user-space one; `cargo xtask ovpn-vm` runs these in a virtual machine
//! where this machine's kernel has no `ovpn`.

use super::pair::{CLIENT, OUTER, PEER, config, install, introduce, joined, transfer};
use super::rig::*;
use sealane_ovpn::data::{Format, KeySlot, PeerId};
use sealane_sys::netns::NetNs;
use sealane_tunnel::kernel::{KernelPlane, Prepared};
use sealane_tunnel::plane::{
    Command, DelReason, Event, Feature, Keepalive, KeyNew, PeerNew, PeerSet, Plane, Refused, SocketId, Transport,
};
use sealane_tunnel::user::{Config, Role, Sockets, UserPlane};
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

struct Ends {
    ns: [NetNs; 2],
    server: KernelPlane,
    server_sink: Arc<Collector>,
    client: UserPlane,
    client_sink: Arc<Collector>,
}

/// A server in the kernel and a client in user space. `None`, with the reason printed, where that cannot be.
fn ends() -> Option<Ends> {
    let ns = joined()?;
    let (server_sink, client_sink) = (Arc::new(Collector::default()), Arc::new(Collector::default()));
    let open = |address: &str| Sockets::open(&[address.parse().unwrap()], &[], 1).unwrap();
    let started = ns[0].run(|| KernelPlane::start(&config(true), &open(OUTER[0]), server_sink.clone())).unwrap();
    let server = match started {
        Ok(server) => server,
        Err(e) if e.kind() == ErrorKind::Unsupported => {
            eprintln!("skipped: {e}; `cargo xtask ovpn-vm` runs this in a virtual machine");
            return None;
        }
        Err(e) => panic!("{e}"),
    };
    let client = ns[1].run(|| UserPlane::start(&config(false), open(OUTER[1]), client_sink.clone()).unwrap()).unwrap();
    introduce(&server, true, 0);
    introduce(&client, false, 1380);
    let ends = Ends { ns, server, server_sink, client, client_sink };
    ends.install(KeySlot::Primary, 1);
    Some(ends)
}

impl Ends {
    fn install(&self, slot: KeySlot, key_id: u8) {
        install(&self.server, &self.server_sink, true, slot, key_id, Format::Stock);
        install(&self.client, &self.client_sink, false, slot, key_id, Format::Stock);
    }

    /// Sockets inside the tunnel, server's and client's.
    fn inside(&self) -> [UdpSocket; 2] {
        let bind =
            |i: usize, address| self.ns[i].run(|| UdpSocket::bind(SocketAddr::new(address, 7)).unwrap()).unwrap();
        let sockets = [bind(0, SERVER.into()), bind(1, CLIENT.into())];
        sockets.iter().for_each(|s| s.set_read_timeout(Some(WAIT_LIMIT)).unwrap());
        sockets
    }
}

#[test]
fn streams_pass_and_are_counted() {
    let Some(ends) = ends() else { return };
    transfer(&ends.ns, 2 << 20);
    let counters = ends.server.counters(PEER).unwrap();
    assert!(counters.rx_bytes > 2 << 20 && counters.tx_bytes > 2 << 20, "{counters:?}");
    ends.server.command(Command::CountersGet(None)).unwrap();
    ends.server_sink.wait("Counters", |e| matches!(e, Event::Counters { peer: PEER, .. }).then_some(()));
}

#[test]
fn no_packet_is_lost_across_key_swaps() {
    let Some(ends) = ends() else { return };
    let [server, client] = ends.inside();
    let mut number = 0u32;
    for swap in 0..20u8 {
        let exchange = |from: &UdpSocket, to: &UdpSocket, address, number: &mut u32| {
            for _ in 0..20 {
                from.send_to(&number.to_be_bytes(), SocketAddr::new(address, 7)).unwrap();
                let mut got = [0; 4];
                to.recv_from(&mut got).unwrap();
                assert_eq!(u32::from_be_bytes(got), *number);
                *number += 1;
            }
        };
        exchange(&server, &client, CLIENT.into(), &mut number);
        ends.install(KeySlot::Secondary, (swap + 2) % 8);
        // One sends with the new key while the other one still sends with the old.
        ends.client.command(Command::KeySwap(PEER)).unwrap();
        exchange(&client, &server, SERVER.into(), &mut number);
        exchange(&server, &client, CLIENT.into(), &mut number);
        ends.server.command(Command::KeySwap(PEER)).unwrap();
        exchange(&server, &client, CLIENT.into(), &mut number);
    }
}

/// As in an upgrade of the program. Data packets pass even while nobody has it.
#[test]
fn another_process_goes_on_with_the_same_peers_and_keys() {
    let Some(ends) = ends() else { return };
    let [server, client] = ends.inside();
    let exchange = |number: u32| {
        for (from, to, address) in [(&server, &client, CLIENT), (&client, &server, SERVER)] {
            from.send_to(&number.to_be_bytes(), (address, 7)).unwrap();
            let mut got = [0; 4];
            to.recv_from(&mut got).unwrap();
            assert_eq!(u32::from_be_bytes(got), number);
        }
    };
    exchange(1);
    let left = ends.server.hand_over().unwrap();
    exchange(2);
    assert!(matches!(ends.server.command(Command::PeerDel(PEER)), Err(Refused::Gone)));
    let Ends { ns, server: old, client: other, .. } = ends;
    drop(old);
    exchange(3);
    // A control packet that comes meanwhile waits.
    let to: SocketAddr = OUTER[0].parse().unwrap();
    let out = |bytes: Vec<u8>| Command::ControlOut { socket: SocketId::new(0, 0), remote: to, local: None, bytes };
    other.command(out(vec![5 << 3; 22])).unwrap();
    let sink = Arc::new(Collector::default());
    let plane = ns[0].run(|| Prepared::read(left).unwrap().start(sink.clone()).unwrap()).unwrap();
    assert_eq!(sink.control().bytes, [5 << 3; 22]);
    exchange(4);
    assert!(plane.counters(PEER).unwrap().rx_packets >= 4);
    install(&plane, &sink, true, KeySlot::Secondary, 2, Format::Stock);
    plane.command(Command::KeySwap(PEER)).unwrap();
    plane.command(Command::PeerDel(PEER)).unwrap();
    sink.wait("PeerGone", |e| matches!(e, Event::PeerGone { peer: PEER, .. }).then_some(()));
}

/// A process that dies leaves its interface, with the routes to the clients' network; the next one begins anew.
#[test]
fn what_a_dead_process_has_left_is_removed() {
    let Some(ends) = ends() else { return };
    let name = ends.server.interface().to_owned();
    ends.server.command(Command::PeerDel(PEER)).unwrap();
    // Nobody comes for it.
    drop(ends.server.hand_over().unwrap());
    let sink = Arc::new(Collector::default());
    let open = || Sockets::open(&["192.0.2.1:1195".parse().unwrap()], &[], 1).unwrap();
    let plane = ends.ns[0].run(|| KernelPlane::start(&config(true), &open(), sink).unwrap()).unwrap();
    assert_eq!(plane.interface(), name);
}

/// Packets between peers pass the system, which must forward them.
#[test]
fn packets_between_peers_need_forwarding() {
    let Some(ns) = joined() else { return };
    let forward = |value: &str| {
        let write = || {
            for name in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                // There may be no IPv6.
                let _ = std::fs::write(format!("/proc/sys/net/{name}"), value);
            }
            std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").is_ok_and(|text| text.trim() == value)
        };
        ns[0].run(write).unwrap()
    };
    let start = || {
        let start = || {
            let config = Config { role: Role::Server { client_to_client: true }, ..config(true) };
            let sockets = Sockets::open(&[OUTER[0].parse().unwrap()], &[], 1).unwrap();
            KernelPlane::start(&config, &sockets, Arc::new(Collector::default()))
        };
        ns[0].run(start).unwrap()
    };
    if !forward("0") {
        return eprintln!("skipped: /proc/sys cannot be written here");
    }
    let refused = start().expect_err("nothing is forwarded");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("sysctl -w net.ipv4.ip_forward=1"), "{refused}");
    assert!(forward("1"));
    match start() {
        Ok(plane) => assert!(!plane.supports(Feature::ClientToClient)),
        Err(e) => assert!(e.to_string().contains("this kernel has no `ovpn`"), "{e}"),
    }
}

#[test]
fn control_packets_pass_beside_the_kernel() {
    let Some(ends) = ends() else { return };
    let to: SocketAddr = OUTER[1].parse().unwrap();
    let out = |bytes: Vec<u8>| Command::ControlOut { socket: SocketId::new(0, 0), remote: to, local: None, bytes };
    // As short as control packets get: the kernel drops what has not four bytes.
    ends.server.command(out(vec![8 << 3; 14])).unwrap();
    let packet = ends.client_sink.control();
    assert_eq!(packet.bytes, [8 << 3; 14]);
    let answer =
        Command::ControlOut { socket: packet.socket, remote: packet.remote, local: None, bytes: vec![5 << 3; 22] };
    ends.client.command(answer).unwrap();
    let packet = ends.server_sink.control();
    assert_eq!((packet.bytes, packet.remote), (vec![5 << 3; 22], to));
}

#[test]
fn peers_expire_and_are_deleted_and_what_the_kernel_cannot_do_is_refused() {
    let Some(ends) = ends() else { return };
    let id = PeerId::new(5).unwrap();
    let socket = SocketId::new(0, 0);
    let remote: SocketAddr = "192.0.2.2:5000".parse().unwrap();
    let tcp = PeerNew::new(id, socket, Transport::Tcp, remote);
    assert!(matches!(ends.server.command(Command::PeerNew(tcp)), Err(Refused::Unsupported(_))));
    let mut unnumbered = PeerNew::new(id, socket, Transport::Udp, remote);
    unnumbered.sent_peer = None;
    assert!(matches!(ends.server.command(Command::PeerNew(unnumbered)), Err(Refused::Unsupported(_))));
    let key = |peer, format| KeyNew {
        peer,
        slot: KeySlot::Secondary,
        key_id: 7,
        cipher: sealane_ovpn::data::Cipher::ChaCha20Poly1305,
        format,
        keys: expansion(1, true),
    };
    let refused = ends.server.command(Command::KeyNew(Box::new(key(PEER, Format::Epoch))));
    assert!(matches!(refused, Err(Refused::Unsupported(_))));
    ends.server.command(Command::KeyNew(Box::new(key(PEER, Format::Stock)))).unwrap();
    ends.server.command(Command::KeyDel(PEER, KeySlot::Secondary)).unwrap();
    // A second peer with a network behind it, which then says nothing.
    let mut new = PeerNew::new(id, socket, Transport::Udp, remote);
    new.vpn_ip4 = Some("10.78.0.5".parse().unwrap());
    new.routes = vec!["10.99.0.0/16".parse().unwrap()];
    ends.server.command(Command::PeerNew(new)).unwrap();
    let keepalive = Some(Keepalive { ping: 1, ping_restart: 2 });
    ends.server.command(Command::PeerSet(id, PeerSet { keepalive, ..PeerSet::default() })).unwrap();
    ends.server_sink.wait("PeerExpired", |e| matches!(e, Event::PeerExpired(p) if *p == id).then_some(()));
    assert!(matches!(ends.server.command(Command::PeerDel(id)), Err(Refused::NoPeer(_))));
    ends.server.command(Command::PeerDel(PEER)).unwrap();
    ends.server_sink.wait("PeerGone", |e| match e {
        Event::PeerGone { peer: PEER, reason: DelReason::Deleted } => Some(()),
        _ => None,
    });
    assert!(ends.server.counters(PEER).is_none());
}
