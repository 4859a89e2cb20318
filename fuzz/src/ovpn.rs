//! OpenVPN: nothing panics, a stranger is answered with no more than was asked, what is not sealed is not opened, and
//! what is read is written the same.

use sealane_ovpn::command::Commands;
use sealane_ovpn::data::replay::WINDOW;
use sealane_ovpn::data::{Cipher, Format, KeyPair, Opener, Replay, ReplayWindow};
use sealane_ovpn::gate::{ACKNOWLEDGEMENT, Gate, Verdict};
use sealane_ovpn::key_method::Message;
use sealane_ovpn::link::{Link, LinkError};
use sealane_ovpn::packet::{Body, Opcode, SessionId, next_frame};
use sealane_ovpn::peer_info::PeerInfo;
use sealane_ovpn::push::{Collector, Pushed, replies};
use sealane_ovpn::saved::SavedLink;
use sealane_ovpn::wrap::v2::{ClientKey, ServerKey};
use sealane_ovpn::wrap::{Digest, StaticKey, Wrap, WrapKey};
use std::collections::BTreeSet;
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

/// Packets from a server that has the keys, each a first byte, a byte that says how its body is made, a length and bytes: what is
/// sent to it can be read, and nothing is taken twice. The first byte of all chooses what packets are wrapped with.
pub mod keyed {
    use super::*;

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let Some((kind, mut data)) = data.split_first() else { return };
        let (own, other) = (SessionId::new([1; 8]).expect("not zero"), SessionId::new([2; 8]).expect("not zero"));
        let (key, theirs) = match (wrap_key(kind % 3), wrap_key(kind % 3)) {
            (key, WrapKey::Auth { key: shared, digest, .. }) => {
                (key, WrapKey::Auth { key: shared, direction: Some(false), digest })
            }
            (key, same) => (key, same),
        };
        let mut link = Link::client(own, &key, None, kind & 0x80 != 0, 1);
        if kind & 0x40 != 0 {
            link.use_dynamic_wrap(&[9; 256], 1);
        }
        let mut server = Wrap::new(&theirs, true, 1);
        let mut dynamic = server.dynamic(&[9; 256], true, 1);
        let (mut now, mut out, mut packet) = (Instant::now(), Vec::new(), Vec::new());
        while let [first, how, length, rest @ ..] = data {
            let (bytes, next) = rest.split_at(usize::from(*length).min(rest.len()));
            data = next;
            let Some(opcode) = Opcode::of(*first).filter(|opcode| !opcode.is_data()) else { continue };
            let mut body = Vec::new();
            match bytes.split_first() {
                Some((id, payload)) if how & 1 != 0 => {
                    let acks: Vec<u32> = (0..u32::from(how >> 5)).collect();
                    let acked_session = (!acks.is_empty()).then_some(own);
                    Body { acks, acked_session, message: Some((u32::from(*id), payload)) }.write(&mut body);
                }
                _ => body.extend_from_slice(bytes),
            }
            let wrap = if kind & 0x40 != 0 && first & 7 != 0 { &mut dynamic } else { &mut server };
            wrap.wrap(opcode, first & 7, other, &body, &mut packet);
            let _ = link.handle(&packet);
            if kind % 3 != 0 {
                let again = link.handle(&packet);
                assert!(matches!(again, Err(LinkError::Packet(_))), "a packet is taken twice: {again:?}");
            }
            for key_id in 0..8 {
                while link.read(key_id).is_some() {}
                link.write(key_id, b"some TLS bytes");
            }
            let mut sent = 0;
            while link.poll_transmit(now, &mut out) {
                let renegotiates = kind & 0x40 != 0 && out[0] & 7 != 0;
                let wrap = if renegotiates { &mut dynamic } else { &mut server };
                let read = wrap.unwrap(&out).expect("what is sent can be read");
                assert!(out.len() <= 1250 && read.session == own && Body::parse(read.opcode, &read.body).is_ok());
                sent += 1;
                assert!(sent < 64, "a packet is answered with a flood");
            }
            now += Duration::from_millis(300);
        }
    }
}

/// Packet ids, two bytes each, forward or backward from the newest: the window agrees with a set of all ids, also after it was
/// handed over.
pub mod replay {
    use super::*;

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let (mut window, mut seen, mut newest) = (ReplayWindow::new(), BTreeSet::new(), 0u64);
        for bytes in data.as_chunks::<2>().0 {
            let step = u64::from(u16::from_be_bytes(*bytes) & 0x3fff);
            let id = match bytes[0] >> 6 {
                0 => newest.saturating_add(step),
                1 => newest.saturating_sub(step),
                2 => newest.saturating_add(step << 40),
                _ => {
                    let (newest, bits) = window.snapshot();
                    window = ReplayWindow::restore(newest, bits);
                    newest.saturating_sub(WINDOW + 2).saturating_add(step % 4)
                }
            };
            let expected = match () {
                () if id == 0 || (id <= newest && newest - id >= WINDOW) => Replay::Old,
                () if seen.contains(&id) => Replay::Seen,
                () => Replay::New,
            };
            assert_eq!(window.check(id), expected, "{id} with newest {newest}");
            assert_eq!(window.accept(id), expected, "{id} with newest {newest}");
            if expected == Replay::New {
                seen.insert(id);
                newest = newest.max(id);
            }
            assert_eq!(window.newest(), newest);
        }
    }
}

/// The state of a session that another process has left, as JSON, and, behind a zero byte, packets for it, each with its length
/// before it. What is restored is saved the same.
pub mod state {
    use super::*;

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        const ALL: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
        let end = data.iter().position(|b| *b == 0).unwrap_or(data.len());
        if let Ok(saved) = serde_json::from_slice::<sealane_vpn::handover::SavedServer>(&data[..end]) {
            let text = serde_json::to_string(&saved).expect("it is plain data");
            let again: sealane_vpn::handover::SavedServer = serde_json::from_str(&text).expect("what is saved is read");
            assert_eq!(serde_json::to_string(&again).expect("it is plain data"), text);
        }
        let Ok(saved) = serde_json::from_slice::<SavedLink>(&data[..end]) else { return };
        let now = Instant::now();
        let Some(mut link) = Link::restore(&saved, now) else { return };
        let save =
            |link: &Link| serde_json::to_string(&link.save(&ALL).expect("it has a peer")).expect("it is plain data");
        let text = save(&link);
        let again = Link::restore(&serde_json::from_str(&text).expect("what is saved is read"), now);
        assert_eq!(save(&again.expect("what is saved is restored")), text);
        let (mut packets, mut out) = (data.get(end + 1..).unwrap_or_default(), Vec::new());
        while let Some((&length, rest)) = packets.split_first() {
            let (packet, rest) = rest.split_at(usize::from(length).min(rest.len()));
            packets = rest;
            let _ = link.handle(packet);
            for key_id in ALL {
                while link.read(key_id).is_some() {}
                link.write(key_id, b"some TLS bytes");
            }
            let mut sent = 0;
            while link.poll_transmit(now, &mut out) {
                sent += 1;
                assert!(sent < 64, "a packet is answered with a flood");
            }
        }
    }
}
