//! A lane that gets datagrams of QUIC from a stranger: any bytes, and first packets that are sealed as a client seals them, with any
//! frames. They take the way of datagrams that another lane passes on, so that no socket is read.
//!
//! Whatever comes: nothing panics, the lane falls asleep again, a stranger who has proven no address is sent at most three times as much
//! as came from it, and begins no more connections than it sends first packets.

use super::fixtures::{lane, limits, listener_tls, quic_listener, snapshot};
use crate::conn::Conn;
use crate::quic::Datagram;
use crate::service::{Message, Proxy};
use crate::snapshot::Snapshot;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use bytes::BytesMut;
use sealane_lane::{After, Context, Published, Service};
use sealane_tls::fuzzing::client_initial;
use sealane_tls::policy::ListenerTls;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;

/// Datagrams of an input.
const DATAGRAMS: usize = 64;
/// The longest of them, as on most paths.
const LONGEST: usize = 1452;
/// Connection IDs of first packets.
const IDS: u8 = 4;
/// What the transport may send beyond three times what came: a datagram of each connection (docs/reference/upstream-bugs.md).
const BEYOND: usize = 1500 * IDS as usize;

/// TLS with a certificate for `a.example`. The key is new, and not that of the certificate: no stranger gets far enough to
/// notice.
fn tls() -> ListenerTls {
    let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new()).expect("a key");
    listener_tls(include_bytes!("certificate.der").to_vec(), key.as_ref().to_vec())
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    socket.set_nonblocking(true).expect("a socket can be made so");
    socket
}

/// The lane's snapshot, with HTTP/3 at this socket.
fn config(socket: UdpSocket, retry_above: usize) -> Snapshot {
    let mut config = snapshot(limits(), Vec::new());
    config.listeners = vec![Arc::new(quic_listener(socket, tls(), 10, retry_above))];
    config
}

fn connections(proxy: &Proxy) -> usize {
    let keys = proxy.connections.keys();
    keys.into_iter().filter(|key| matches!(proxy.connections.get(*key), Some(Conn::Quic(_)))).count()
}

/// Runs the target. The first byte chooses whether Retry is sent. Each datagram begins with a byte that says what it is and a length
/// of two bytes.
pub fn lane_quic(data: &[u8]) {
    let Some((first, mut rest)) = data.split_first() else { return };
    let client = socket();
    let remote = client.local_addr().expect("it is bound");
    let published = Published::new(config(socket(), if first & 1 == 0 { 100 } else { 0 }));
    let mut cx = Context::new().expect("a descriptor");
    let (mut proxy, _) = lane(&published, &mut cx);
    let (mut sent, mut got, mut firsts) = (0, 0, 0);
    for _ in 0..DATAGRAMS {
        let Some((&[kind, high, low], more)) = rest.split_first_chunk() else { break };
        let (bytes, next) = more.split_at(usize::from(u16::from_be_bytes([high, low])).min(more.len()));
        rest = next;
        let datagram = match kind & 1 {
            1 => client_initial(&[kind >> 6 & (IDS - 1); 8], kind >> 1 & 31, &bytes[..bytes.len().min(LONGEST - 100)]),
            _ => bytes[..bytes.len().min(LONGEST)].to_vec(),
        };
        sent += datagram.len();
        firsts += 1;
        let data = BytesMut::from(&datagram[..]);
        let (listener, slot, local, ecn) = (1, 0, None, 0);
        let datagram = Datagram { listener, slot, remote, local, ecn, counted: false, fresh: false, data };
        proxy.message(&mut cx, Message::Datagram(Box::new(datagram)));
        let asleep = (0..1000).any(|_| proxy.turn(&mut cx) == After::Sleep);
        assert!(asleep, "a lane that never sleeps");
        let mut answer = [0; 2048];
        while let Ok((n, _)) = client.recv_from(&mut answer) {
            got += n;
        }
        assert!(got <= 3 * sent + BEYOND, "{got} bytes are sent for {sent}");
        let begun = connections(&proxy);
        assert!(begun <= firsts, "{begun} connections of {firsts} datagrams");
    }
}
