//! Two planes, a server and a client, in two namespaces joined by a veth pair: what the system's TCP makes of it.

use super::rig::{Collector, SERVER, WAIT_LIMIT, expansion};
use sealane_ovpn::data::{Cipher, Format, KeySlot, PeerId};
use sealane_sys::netlink::Netlink;
use sealane_sys::netlink_route::LinkSet;
use sealane_sys::netns::NetNs;
use sealane_tunnel::plane::{Command, Event, KeyNew, PeerNew, Plane, SocketId, Transport};
use sealane_tunnel::user::{Config, Role, Sockets, UserPlane};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
pub const OUTER: [&str; 2] = ["192.0.2.1:1194", "192.0.2.2:1194"];
pub const PEER: PeerId = PeerId::new(9).unwrap();

/// Two namespaces with a link between them. `None`, with the reason printed, where they may not be made.
pub fn joined() -> Option<[NetNs; 2]> {
    let made = || -> std::io::Result<[NetNs; 2]> {
        let ends = [NetNs::new()?, NetNs::new()?];
        ends[0].run(|| Netlink::route()?.veth_add("td-a", "td-b", &ends[1]))??;
        for (ns, (name, address)) in ends.iter().zip([("td-a", OUTER[0]), ("td-b", OUTER[1])]) {
            ns.run(|| -> std::io::Result<()> {
                let mut netlink = Netlink::route()?;
                let index = netlink.link_index(name)?;
                for link in [1, index] {
                    netlink.link_set(link, &LinkSet { up: Some(true), ..LinkSet::default() })?;
                }
                let address: SocketAddr = address.parse().map_err(std::io::Error::other)?;
                netlink.address_add(index, address.ip(), 24)
            })??;
        }
        Ok(ends)
    };
    if !std::path::Path::new("/dev/net/tun").exists() {
        eprintln!("skipped: no /dev/net/tun");
        return None;
    }
    made().inspect_err(|e| eprintln!("skipped: no namespaces joined by a veth pair: {e}")).ok()
}

/// One end in user space, with a key installed.
fn end(server: bool, offload: bool, max_segment: u16, format: Format) -> UserPlane {
    let own = if server { OUTER[0] } else { OUTER[1] };
    let mut sockets = Sockets::open(&[own.parse().unwrap()], &[], 1).unwrap();
    if !offload {
        sockets = sockets.without_offload();
    }
    let sink = Arc::new(Collector::default());
    let config = Config { offload, ..config(server) };
    let plane = UserPlane::start(&config, sockets, sink.clone()).unwrap();
    introduce(&plane, server, max_segment);
    install(&plane, &sink, server, KeySlot::Primary, 2, format);
    plane
}

pub fn config(server: bool) -> Config {
    let address = if server { SERVER } else { CLIENT };
    let role = if server { Role::Server { client_to_client: false } } else { Role::Client };
    Config { role, addresses: vec![(IpAddr::V4(address), 24)], interface: "td%d".into(), ..Config::default() }
}

/// Tells one end of the other.
pub fn introduce(plane: &dyn Plane, server: bool, max_segment: u16) {
    let (other, address) = if server { (OUTER[1], CLIENT) } else { (OUTER[0], SERVER) };
    let mut new = PeerNew::new(PEER, SocketId::new(0, 0), Transport::Udp, other.parse().unwrap());
    if server {
        new.vpn_ip4 = Some(address);
    }
    new.max_segment = max_segment;
    plane.command(Command::PeerNew(new)).unwrap();
}

/// Gives one end a key, which the key id alone decides.
pub fn install(plane: &dyn Plane, sink: &Collector, server: bool, slot: KeySlot, key_id: u8, format: Format) {
    let keys = expansion(77 + key_id, server);
    let key = KeyNew { peer: PEER, slot, key_id, cipher: Cipher::Aes256Gcm, format, keys };
    plane.command(Command::KeyNew(Box::new(key))).unwrap();
    sink.wait("KeyInstalled", |e| match e {
        Event::KeyInstalled { key_id: k, .. } if *k == key_id => Some(()),
        _ => None,
    });
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    })
    .take(len)
    .collect()
}

/// Sends and receives at once through the tunnel; both directions must arrive as they were sent.
pub fn transfer(ends: &[NetNs; 2], len: usize) {
    let listener = ends[0].run(|| TcpListener::bind((SERVER, 80)).unwrap()).unwrap();
    let client = ends[1].run(|| TcpStream::connect((SERVER, 80)).unwrap()).unwrap();
    let (server, from) = listener.accept().unwrap();
    assert_eq!(from.ip(), CLIENT);
    std::thread::scope(|scope| {
        for (stream, write, read) in [(&client, 1, 2), (&server, 2, 1)] {
            stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
            scope.spawn(move || {
                let mut stream = stream;
                stream.write_all(&bytes(len, write)).unwrap();
            });
            scope.spawn(move || {
                let (mut stream, mut got) = (stream, vec![0; len]);
                stream.read_exact(&mut got).unwrap();
                assert!(got == bytes(len, read), "what came is not what was sent");
            });
        }
    });
}

const LEN: usize = 20 << 20;

fn total(plane: &UserPlane, name: &str) -> u64 {
    plane.totals().into_iter().find(|(n, _)| *n == name).unwrap().1
}

#[test]
fn streams_arrive_whole_with_offload_and_without_in_every_mix() {
    let Some(ends) = joined() else { return };
    for (server, client) in [(true, true), (true, false), (false, true), (false, false)] {
        let planes = [
            ends[0].run(|| end(true, server, 1400, Format::Stock)).unwrap(),
            ends[1].run(|| end(false, client, 1400, Format::Stock)).unwrap(),
        ];
        transfer(&ends, LEN);
        for (plane, offload) in planes.iter().zip([server, client]) {
            let (sent, messages) = (total(plane, "link_sent"), total(plane, "link_messages"));
            // 20 MB in segments of 1,388 bytes.
            assert!(sent > 15_000, "{sent}");
            if offload {
                // Acknowledgements leave one by one; data leaves in segmented messages.
                assert!(sent > messages * 2, "{sent} packets in {messages} messages: not segmented");
            } else {
                assert_eq!(sent, messages);
            }
            for counter in ["drop_forged", "drop_inner", "drop_source", "tun_lost"] {
                assert_eq!(total(plane, counter), 0, "{counter}");
            }
        }
    }
}

#[test]
fn the_epoch_format_and_packets_beyond_the_outer_mtu_arrive_too() {
    let Some(ends) = joined() else { return };
    for (max_segment, format) in [(0, Format::Stock), (1400, Format::Epoch)] {
        let planes = [
            ends[0].run(|| end(true, true, max_segment, format)).unwrap(),
            ends[1].run(|| end(false, true, max_segment, format)).unwrap(),
        ];
        transfer(&ends, LEN);
        if max_segment == 0 {
            // Packets of 1,500 bytes leave as fragments, each message refused once for its segmentation.
            assert!(planes.iter().all(|p| total(p, "link_lost") == 0));
        }
    }
}
