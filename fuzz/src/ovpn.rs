//! OpenVPN: nothing panics, a stranger is answered with no more than was asked, what is not sealed is not opened, and
//! what is read is written the same.

use sealane_ovpn::command::Commands;
use sealane_ovpn::data::{Cipher, Format, KeyPair, Opener};
use sealane_ovpn::gate::{ACKNOWLEDGEMENT, Gate, Verdict};
use sealane_ovpn::key_method::Message;
use sealane_ovpn::link::Link;
use sealane_ovpn::packet::{Body, Opcode, SessionId, next_frame};
use sealane_ovpn::peer_info::PeerInfo;
use sealane_ovpn::push::{Collector, Pushed, replies};
use sealane_ovpn::wrap::v2::{ClientKey, ServerKey};
use sealane_ovpn::wrap::{Digest, StaticKey, Wrap, WrapKey};
use std::time::{Duration, Instant};

fn wrap_key(kind: u8) -> WrapKey {
    let key = StaticKey::new([7; 256]);
    match kind % 3 {
        0 => WrapKey::None,
        1 => WrapKey::Auth { key, direction: Some(true), digest: Digest::Sha256 },
        _ => WrapKey::Crypt(key),
    }
}

/// A packet from nobody, at the gate. The first byte chooses what packets are wrapped with.
pub mod gate {
    use super::*;

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let Some((kind, packet)) = data.split_first() else { return };
        let v2 = (kind & 0x80 != 0).then(|| ServerKey::new([3; 128]));
        let mut gate = Gate::new(wrap_key(*kind), v2, &[1; 32]);
        if let Verdict::Reply(reply) = gate.judge(packet, ([192, 0, 2, 1], 1194).into(), 1_000_000) {
            assert!(
                reply.len() <= packet.len() + ACKNOWLEDGEMENT,
                "an answer larger than its question and an acknowledgement"
            );
        }
        let first = packet.first().copied().unwrap_or(0);
        if let Some(opcode) = Opcode::of(first)
            && let Ok(body) = Body::parse(opcode, packet)
        {
            let mut out = Vec::new();
            body.write(&mut out);
            assert!(packet.starts_with(&out), "a body reads as it was written");
        }
        if let Ok(Some((frame, used))) = next_frame(packet, 1600) {
            assert!(!frame.is_empty() && frame.len() + 2 == used && used <= packet.len());
        }
    }
}

/// Packets for a session, each with its length in one byte before it.
pub mod link {
    use super::*;

    /// Runs the target.
    pub fn fuzz_one(mut data: &[u8]) {
        let own = SessionId::new([1; 8]).expect("not zero");
        let mut link = Link::client(own, &WrapKey::None, None, true, 1);
        let mut now = Instant::now();
        let mut out = Vec::new();
        while let Some((&length, rest)) = data.split_first() {
            let (packet, rest) = rest.split_at(usize::from(length).min(rest.len()));
            data = rest;
            let _ = link.handle(packet);
            for key_id in 0..8 {
                while link.read(key_id).is_some() {}
                link.write(key_id, b"some TLS bytes");
            }
            let mut sent = 0;
            while link.poll_transmit(now, &mut out) {
                assert!(out.len() <= 1250 && Wrap::new(&WrapKey::None, true, 1).peek(&out).is_ok());
                sent += 1;
                assert!(sent < 64, "a packet is answered with a flood");
            }
            now += Duration::from_millis(300);
        }
    }
}

/// A data packet that nobody sealed. The first byte chooses cipher and format.
pub mod data {
    use super::*;

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let Some((kind, packet)) = data.split_first() else { return };
        let cipher = Cipher::ALL[usize::from(*kind) % 3];
        let format = if kind & 0x80 == 0 { Format::Stock } else { Format::Epoch };
        let keys = KeyPair::from_expansion(&[5; 256], true);
        let mut opener = Opener::new(cipher, format, &keys.decrypt);
        let mut room = vec![0; packet.len()];
        assert!(opener.open_into(packet, &mut room).is_err(), "a forgery is opened");
        assert!(opener.open_in_place(&mut packet.to_vec()).is_err(), "a forgery is opened in place");
        assert_eq!((opener.window().newest(), opener.epoch() <= 1), (0, true), "a forgery leaves a trace");
    }
}

/// What comes inside TLS, and key files.
pub mod text {
    use super::*;

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        for from_client in [true, false] {
            if let Ok(message) = Message::parse(data, from_client) {
                let bytes = message.to_bytes(from_client);
                let again = Message::parse(&bytes, from_client).expect("we wrote it");
                assert_eq!(again.to_bytes(from_client), bytes);
                let _ = PeerInfo::parse(&message.peer_info).choose(&Cipher::ALL, &message.options);
            }
        }
        let mut count = 0;
        let _ = Commands::default().take(data, |_| count += 1);
        assert!(count <= data.len());
        let Ok(text) = std::str::from_utf8(data) else { return };
        let _ = PeerInfo::parse(text);
        if let Ok(Some(options)) = Collector::default().take(text) {
            let _ = Pushed::parse(&options);
            if let Ok(parts) = replies(&options) {
                assert!(parts.iter().all(|p| p.len() <= 1024 && p.ends_with(&[0])));
            }
        }
        if let Ok(key) = StaticKey::from_text(text) {
            assert_eq!(StaticKey::from_text(&key.to_text()), Ok(key));
        }
        let _ = (ServerKey::from_text(text), ClientKey::from_text(text));
    }
}
