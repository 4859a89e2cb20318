//! A client's and a server's link over a network that loses, doubles and delays packets, on a virtual clock.

use sealane_ovpn::gate::{Gate, Verdict};
use sealane_ovpn::link::Link;
use sealane_ovpn::packet::SessionId;
use sealane_ovpn::wrap::v2::{Metadata, ServerKey};
use sealane_ovpn::wrap::{Digest, StaticKey, WrapKey};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Packets on their way, by the time they arrive; the number keeps those of one time apart.
#[derive(Default)]
struct Wire {
    packets: BTreeMap<(Instant, u64), (bool, Vec<u8>)>,
    number: u64,
}

impl Wire {
    /// A third is lost, a tenth comes twice, and all take from 5 to 300 ms.
    fn send(&mut self, now: Instant, to_server: bool, packet: &[u8], random: &mut Random) {
        let copies = match random.below(30) {
            0..10 => 0,
            10..13 => 2,
            _ => 1,
        };
        for _ in 0..copies {
            self.number += 1;
            let at = now + Duration::from_millis(5 + random.below(295));
            self.packets.insert((at, self.number), (to_server, packet.to_vec()));
        }
    }
}

struct Net {
    gate: Gate,
    client: Link,
    server: Option<Link>,
    wire: Wire,
    now: Instant,
    random: Random,
    got: [Vec<u8>; 2],
    key_id: u8,
}

const FROM: ([u8; 4], u16) = ([192, 0, 2, 7], 999);

impl Net {
    fn new(seed: u64, gate: Gate, client: Link) -> Self {
        Self {
            gate,
            client,
            server: None,
            wire: Wire::default(),
            now: Instant::now(),
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            got: [Vec::new(), Vec::new()],
            key_id: 0,
        }
    }

    /// What both have to send leaves, and time goes on to what comes next. False when nothing does.
    fn step(&mut self) -> bool {
        let mut out = Vec::new();
        while self.client.poll_transmit(self.now, &mut out) {
            self.wire.send(self.now, true, &out, &mut self.random);
        }
        while self.server.as_mut().is_some_and(|s| s.poll_transmit(self.now, &mut out)) {
            self.wire.send(self.now, false, &out, &mut self.random);
        }
        let arrival = self.wire.packets.first_key_value().map(|((at, _), _)| *at);
        let deadlines = [self.client.deadline(), self.server.as_ref().and_then(Link::deadline), arrival];
        let Some(next) = deadlines.into_iter().flatten().min() else { return false };
        self.now = self.now.max(next);
        while let Some(entry) = self.wire.packets.first_entry().filter(|e| e.key().0 <= self.now) {
            let (to_server, packet) = entry.remove();
            self.deliver(to_server, &packet);
        }
        for key_id in [0, self.key_id] {
            while let Some(bytes) = self.client.read(key_id) {
                self.got[0].extend(bytes);
            }
            while let Some(bytes) = self.server.as_mut().and_then(|s| s.read(key_id)) {
                self.got[1].extend(bytes);
            }
        }
        self.move_server();
        true
    }

    /// Now and then the server goes on in another process.
    fn move_server(&mut self) {
        if self.random.below(10) == 0
            && let Some(server) = self.server.take()
        {
            let saved = server.save(&[0, 1]).expect("the client has spoken");
            let text = serde_json::to_string(&saved).expect("plain data");
            let saved = serde_json::from_str(&text).expect("as it was written");
            self.server = Some(Link::restore(&saved, self.now).expect("as it was saved"));
        }
    }

    fn deliver(&mut self, to_server: bool, packet: &[u8]) {
        if !to_server {
            // Repeated and late ones are errors here, and nothing else.
            let _ = self.client.handle(packet);
            return;
        }
        if let Some(server) = &mut self.server {
            let _ = server.handle(packet);
            return;
        }
        match self.gate.judge(packet, SocketAddr::from(FROM), 1_000) {
            Verdict::Reply(reply) => self.wire.send(self.now, false, &reply, &mut self.random),
            Verdict::Accept(accepted) => {
                let (mut link, first) = Link::server(*accepted, true);
                let _ = link.handle_unwrapped(&first);
                self.server = Some(link);
            }
            Verdict::Drop(_) => {}
        }
    }

    /// Sends text both ways under a key id and runs until all of it is there.
    fn exchange(&mut self, seed: u64, key_id: u8, up: &[u8], down: &[u8]) {
        self.key_id = key_id;
        self.got = [Vec::new(), Vec::new()];
        assert!(self.client.write(key_id, up));
        let (mut said, start) = (false, self.now);
        while self.got[0].len() < down.len() || self.got[1].len() < up.len() {
            if !said && let Some(server) = &mut self.server {
                said = server.write(key_id, down);
            }
            assert!(self.step(), "seed {seed}: nothing moves any more");
            assert!(self.now - start < Duration::from_secs(3600), "seed {seed}: it takes an hour");
        }
        assert!(self.got[0] == down && self.got[1] == up, "seed {seed}: not what was sent");
    }
}

#[test]
fn everything_arrives_once_and_in_order() {
    let static_key = || StaticKey::new(std::array::from_fn(|i| (i * 5) as u8));
    let server_key = ServerKey::new([9; 128]);
    let v2 = server_key.wrap(&static_key(), &Metadata::Made(1)).expect("short");
    for seed in 1..=60_u64 {
        let auth = |direction| WrapKey::Auth { key: static_key(), direction: Some(direction), digest: Digest::Sha1 };
        let (server, client, keys) = match seed % 4 {
            0 => (WrapKey::None, WrapKey::None, None),
            1 => (auth(false), auth(true), None),
            2 => (WrapKey::Crypt(static_key()), WrapKey::Crypt(static_key()), None),
            _ => (WrapKey::None, WrapKey::None, Some(&v2)),
        };
        let own = SessionId::new([3; 8]).expect("not zero");
        let gate = Gate::new(server, keys.map(|_| server_key.clone()), &[1; 32]);
        let mut net = Net::new(seed, gate, Link::client(own, &client, keys, true, 900));
        let text = |n: usize| -> Vec<u8> { (0..n).map(|i| (i * 31 % 251) as u8).collect() };
        net.exchange(seed, 0, &text(9_000), &text(7_000));
        // A renegotiation by either side, under a key that both have from TLS.
        net.client.use_dynamic_wrap(&[6; 256], 950);
        net.server.as_mut().expect("it is there").use_dynamic_wrap(&[6; 256], 1_000);
        let begun = match seed % 2 {
            0 => net.client.renegotiate(),
            _ => net.server.as_mut().and_then(Link::renegotiate),
        };
        assert_eq!(begun, Some(1));
        while !net.client.is_open(1) || !net.server.as_ref().is_some_and(|s| s.is_open(1)) {
            assert!(net.step(), "seed {seed}: nothing moves any more");
        }
        net.exchange(seed, 1, &text(3_000), &text(3_000));
    }
}

/// As OpenVPN 3's client does.
#[test]
fn a_server_hears_a_client_that_answers_its_reset_without_one() {
    const OWN: [u8; 8] = [3; 8];
    let own = SessionId::new(OWN).expect("not zero");
    let gate = Gate::new(WrapKey::None, None, &[1; 32]);
    let mut net = Net::new(1, gate, Link::client(own, &WrapKey::None, None, true, 900));
    net.exchange(1, 0, b"hello", b"welcome");
    let mut server = net.server.take().expect("it is there");
    let mut out = Vec::new();
    while server.poll_transmit(net.now, &mut out) {}
    assert_eq!(server.renegotiate(), Some(1));
    assert!(server.poll_transmit(net.now, &mut out));
    // SOFT_RESET_V1 under key id 1, then the server's session.
    assert_eq!(out[0], 3 << 3 | 1);
    // CONTROL_V1: our session, one acknowledgement (of message 0 of the server's session), message 0.
    let mut packet = vec![4 << 3 | 1];
    packet.extend(OWN);
    packet.extend([1, 0, 0, 0, 0]);
    packet.extend(&out[1..9]);
    packet.extend([0, 0, 0, 0]);
    packet.extend(b"ClientHello");
    server.handle(&packet).expect("it belongs to the exchange");
    assert!(server.is_open(1));
    assert_eq!(server.read(1).as_deref(), Some(&b"ClientHello"[..]));
}
