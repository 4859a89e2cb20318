//! The first packets of a client, answered without keeping anything: the server's session id is a cookie.
//!
//! ```text
//! client                               server
//!   HARD_RESET_CLIENT_V2 or V3  ──▶     no state
//!                               ◀──     HARD_RESET_SERVER_V2, session id = HMAC(secret; time, address, client's id)
//!   CONTROL_V1, CONTROL_WKC_V1
//!   or ACK_V1, with that id     ──▶     the cookie is right: state
//! ```
//!
//! An answer acknowledges the client's reset, since a client begins TLS only after that. The acknowledgement makes the
//! answer at most [`ACKNOWLEDGEMENT`] bytes longer than its question, as OpenVPN's own answers are. The client's next
//! packet proves its address: it is the ClientHello, or a bare ACK_V1.
//!
//! Answers are stateless, but their packet ids are not reused: the gate counts its answers of the current second, and a
//! session begins after them. A client drops a packet id that it has seen before, and would wait for a repetition.

use crate::packet::{Body, Opcode, PacketError, SessionId};
use crate::wrap::v2::{Metadata, ServerKey};
use crate::wrap::{StaticKey, Unwrapped, Wrap, WrapKey};
use aws_lc_rs::{constant_time, hmac};
use std::net::{IpAddr, SocketAddr};

/// How long a cookie lives at least; at most half as long again.
const COOKIE_SECONDS: u32 = 60;
/// How much longer than its question an answer may be: a message id of 4 bytes and a session id of 8.
pub const ACKNOWLEDGEMENT: usize = 12;
/// In the answer to a tls-crypt-v2 reset: "send your wrapped key again" (type 1, length 2, flag 1).
const RESEND_CLIENT_KEY: [u8; 6] = [0, 1, 0, 2, 0, 1];

/// What all first packets are judged by.
#[derive(Debug)]
pub struct Gate {
    wrap: WrapKey,
    v2: Option<ServerKey>,
    cookie: hmac::Key,
    answers: Answers,
}

/// The packet ids of answers: a second, and how many answers there were in it.
#[derive(Debug, Default)]
struct Answers {
    time: u32,
    sent: u32,
}

impl Answers {
    /// Moves to the current second. A clock that is set back leaves the newest second in place: clients refuse older
    /// ones.
    const fn at(&mut self, unix: u32) {
        if unix > self.time {
            (self.time, self.sent) = (unix, 0);
        }
    }
}

/// A client that has proven its address.
#[derive(Debug)]
pub struct Accepted {
    /// Our session id: the cookie.
    pub own: SessionId,
    /// The client's.
    pub remote: SessionId,
    /// The wrap for this session, with the packet's id remembered.
    pub wrap: Wrap,
    /// The packet that proved it, to be handled first.
    pub first: Unwrapped,
    /// What the client's tls-crypt-v2 key says.
    pub metadata: Option<Metadata>,
}

/// What to do with a packet that belongs to no session.
#[derive(Debug)]
pub enum Verdict {
    /// Send this back, and forget.
    Reply(Vec<u8>),
    /// Begin a session.
    Accept(Box<Accepted>),
    /// Drop and count it.
    Drop(Refusal),
}

/// Why a first packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Malformed or not authentic.
    Packet(PacketError),
    /// No packet that a client begins with.
    NotFirst,
    /// Its cookie is wrong, or too old.
    Cookie,
    /// The client shows no tls-crypt-v2 key.
    NoClientKey,
    /// The client is older than OpenVPN 2.6 and would make us keep its key before it has proven its address.
    OldClient,
}

impl Gate {
    /// `secret` is random and lives as long as the cookies. `wrap` is for all clients; with `v2`, clients have keys
    /// of their own, and those without one are refused unless there is a `wrap` for them.
    pub fn new(wrap: WrapKey, v2: Option<ServerKey>, secret: &[u8; 32]) -> Self {
        Self { wrap, v2, cookie: hmac::Key::new(hmac::HMAC_SHA256, secret), answers: Answers::default() }
    }

    /// The static key, for option strings.
    pub const fn wrap(&self) -> &WrapKey {
        &self.wrap
    }

    /// Judges a packet. `unix` is the time in seconds.
    pub fn judge(&mut self, packet: &[u8], from: SocketAddr, unix: u32) -> Verdict {
        self.answers.at(unix);
        match self.decide(packet, from, unix) {
            Ok(verdict) => verdict,
            Err(refusal) => Verdict::Drop(refusal),
        }
    }

    fn decide(&mut self, packet: &[u8], from: SocketAddr, unix: u32) -> Result<Verdict, Refusal> {
        let first = *packet.first().ok_or(Refusal::Packet(PacketError::Length))?;
        let opcode = Opcode::of(first).ok_or(Refusal::Packet(PacketError::Opcode))?;
        let shows_key = match opcode {
            Opcode::HardResetClientV3 | Opcode::ControlWkcV1 => true,
            Opcode::HardResetClientV2 | Opcode::ControlV1 | Opcode::AckV1 => false,
            _ => return Err(Refusal::NotFirst),
        };
        // Key id 0: anything else is a renegotiation of a session that is not there.
        if first & 7 != 0 {
            return Err(Refusal::NotFirst);
        }
        let (mut wrap, first, metadata) = self.unwrap(packet, shows_key)?;
        match opcode {
            Opcode::HardResetClientV2 | Opcode::HardResetClientV3 => {
                // A whole reset is as long as the shortest answer.
                let body = Body::parse(opcode, &first.body).map_err(Refusal::Packet)?;
                if body.message.is_none_or(|(id, _)| id != 0) {
                    return Err(Refusal::NotFirst);
                }
                if shows_key && !first.resends_client_key() {
                    return Err(Refusal::OldClient);
                }
                let own = self.cookie(first.session, from, unix / COOKIE_SECONDS * COOKIE_SECONDS);
                wrap.skip_ids(self.answers.sent);
                self.answers.sent = self.answers.sent.saturating_add(1);
                Ok(Verdict::Reply(answer(&mut wrap, own, &first, shows_key)))
            }
            _ => {
                let body = Body::parse(opcode, &first.body).map_err(Refusal::Packet)?;
                let own = body.acked_session.ok_or(Refusal::Cookie)?;
                // Only the first packets of a handshake begin a session.
                let early = body.acks.iter().all(|id| *id <= 1) && body.message.is_none_or(|(id, _)| id <= 1);
                if !early || !self.is_cookie(own, first.session, from, unix) {
                    return Err(Refusal::Cookie);
                }
                wrap.skip_ids(self.answers.sent);
                wrap.remember(&first).map_err(Refusal::Packet)?;
                Ok(Verdict::Accept(Box::new(Accepted { own, remote: first.session, wrap, first, metadata })))
            }
        }
    }

    fn unwrap(&self, packet: &[u8], shows_key: bool) -> Result<(Wrap, Unwrapped, Option<Metadata>), Refusal> {
        let (packet, key, metadata) = match (&self.v2, shows_key) {
            (None, true) => return Err(Refusal::Packet(PacketError::ClientKey)),
            (Some(server), true) => {
                let (rest, key, metadata): (_, StaticKey, _) = server.unwrap(packet).map_err(Refusal::Packet)?;
                (rest, &WrapKey::Crypt(key), Some(metadata))
            }
            // Some wrap there must be, or the gate would stand open.
            (Some(_), false) if matches!(self.wrap, WrapKey::None) => return Err(Refusal::NoClientKey),
            (_, false) => (packet, &self.wrap, None),
        };
        let wrap = Wrap::new(key, true, self.answers.time);
        let first = wrap.peek(packet).map_err(Refusal::Packet)?;
        Ok((wrap, first, metadata))
    }

    fn cookie(&self, client: SessionId, from: SocketAddr, slot: u32) -> SessionId {
        let mut mac = hmac::Context::with_key(&self.cookie);
        mac.update(&slot.to_be_bytes());
        match from.ip() {
            IpAddr::V4(a) => mac.update(&a.octets()),
            IpAddr::V6(a) => mac.update(&a.octets()),
        }
        mac.update(&from.port().to_be_bytes());
        mac.update(client.bytes());
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&mac.sign().as_ref()[..8]);
        // Zero is no session id; one MAC in 2^64 is.
        bytes[7] |= u8::from(bytes == [0; 8]);
        SessionId::new(bytes).unwrap_or(client)
    }

    fn is_cookie(&self, own: SessionId, client: SessionId, from: SocketAddr, unix: u32) -> bool {
        let slot = unix / COOKIE_SECONDS * COOKIE_SECONDS;
        [slot, slot.saturating_sub(COOKIE_SECONDS)].into_iter().any(|slot| {
            let expected = self.cookie(client, from, slot);
            constant_time::verify_slices_are_equal(expected.bytes(), own.bytes()).is_ok()
        })
    }
}

fn answer(wrap: &mut Wrap, own: SessionId, first: &Unwrapped, resend: bool) -> Vec<u8> {
    let payload: &[u8] = if resend { &RESEND_CLIENT_KEY } else { &[] };
    let (mut out, mut bytes) = (Vec::new(), Vec::new());
    Body { acks: vec![0], acked_session: Some(first.session), message: Some((0, payload)) }.write(&mut bytes);
    wrap.wrap(Opcode::HardResetServerV2, 0, own, &bytes, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: ([u8; 4], u16) = ([192, 0, 2, 1], 1194);

    fn session(n: u8) -> SessionId {
        SessionId::new([n; 8]).expect("not zero")
    }

    fn packet(wrap: &mut Wrap, opcode: Opcode, body: &Body<'_>) -> Vec<u8> {
        let (mut bytes, mut out) = (Vec::new(), Vec::new());
        body.write(&mut bytes);
        wrap.wrap(opcode, 0, session(7), &bytes, &mut out);
        out
    }

    fn reset(wrap: &mut Wrap, opcode: Opcode) -> Vec<u8> {
        packet(wrap, opcode, &Body { acks: vec![], acked_session: None, message: Some((0, b"")) })
    }

    #[test]
    fn a_client_with_the_cookie_is_let_in_and_no_other() {
        for key in [WrapKey::None, WrapKey::Crypt(StaticKey::new([3; 256]))] {
            let mut gate = Gate::new(key.clone(), None, &[1; 32]);
            let mut client = Wrap::new(&key, false, 990);
            let question = reset(&mut client, Opcode::HardResetClientV2);
            let Verdict::Reply(reply) = gate.judge(&question, FROM.into(), 1000) else { panic!("no reply") };
            assert_eq!(
                reply.len(),
                question.len() + ACKNOWLEDGEMENT,
                "an answer is no larger than its question and this"
            );
            let reply = client.unwrap(&reply).expect("authentic");
            assert_eq!(reply.opcode, Opcode::HardResetServerV2);
            let body = Body::parse(reply.opcode, &reply.body).expect("well formed");
            assert_eq!(body.acks, [0], "a client begins TLS only once its reset is acknowledged");
            let ack = Body { acks: vec![0], acked_session: Some(reply.session), message: None };
            let ack = packet(&mut client, Opcode::AckV1, &ack);
            for (from, unix, good) in [
                (FROM.into(), 1000, true),
                (FROM.into(), 1059, true),
                (FROM.into(), 1150, false),
                (([192, 0, 2, 2], 1194).into(), 1000, false),
                (([192, 0, 2, 1], 1195).into(), 1000, false),
            ] {
                let accepted = matches!(gate.judge(&ack, from, unix), Verdict::Accept(a) if a.own == reply.session);
                assert_eq!(accepted, good, "{from} {unix}");
            }
            let late = Body { acks: vec![2], acked_session: Some(reply.session), message: None };
            let late = packet(&mut client, Opcode::AckV1, &late);
            assert!(matches!(gate.judge(&late, FROM.into(), 1000), Verdict::Drop(Refusal::Cookie)));
        }
    }

    #[test]
    fn no_packet_id_is_sent_twice_in_one_second() {
        let auth = WrapKey::Auth { key: StaticKey::new([3; 256]), direction: None, digest: crate::wrap::Digest::Sha1 };
        for key in [auth, WrapKey::Crypt(StaticKey::new([3; 256]))] {
            let mut gate = Gate::new(key.clone(), None, &[1; 32]);
            let mut client = Wrap::new(&key, false, 990);
            let question = reset(&mut client, Opcode::HardResetClientV2);
            // The clock is set back in between.
            let mut session = None;
            for unix in [1000, 1000, 1001, 1000, 1001] {
                let Verdict::Reply(reply) = gate.judge(&question, FROM.into(), unix) else { panic!("no reply") };
                session = Some(client.unwrap(&reply).expect("a client takes every answer").session);
            }
            let ack = Body { acks: vec![0], acked_session: session, message: None };
            let ack = packet(&mut client, Opcode::AckV1, &ack);
            let Verdict::Accept(mut accepted) = gate.judge(&ack, FROM.into(), 1001) else { panic!("not accepted") };
            let mut first = Vec::new();
            accepted.wrap.wrap(Opcode::AckV1, 0, accepted.own, &[0], &mut first);
            client.unwrap(&first).expect("and what the session sends after them");
        }
    }

    #[test]
    fn a_client_of_tls_crypt_v2_shows_its_key_twice() {
        let server = ServerKey::new([4; 128]);
        let mut gate = Gate::new(WrapKey::None, Some(server.clone()), &[1; 32]);
        let key = server.wrap(&StaticKey::new([8; 256]), &Metadata::User(b"alice".to_vec())).expect("short");
        let mut client = Wrap::new(&WrapKey::Crypt(key.key.clone()), false, 990);
        let old = [reset(&mut client, Opcode::HardResetClientV3), key.wrapped.clone()].concat();
        assert!(matches!(gate.judge(&old, FROM.into(), 1000), Verdict::Drop(Refusal::OldClient)));
        client.announce_early_negotiation();
        let question = [reset(&mut client, Opcode::HardResetClientV3), key.wrapped.clone()].concat();
        let Verdict::Reply(reply) = gate.judge(&question, FROM.into(), 1000) else { panic!("no reply") };
        assert!(reply.len() <= question.len());
        let reply = client.unwrap(&reply).expect("authentic");
        let body = Body::parse(reply.opcode, &reply.body).expect("well formed");
        assert_eq!((body.acks, body.message), (vec![0], Some((0, &RESEND_CLIENT_KEY[..]))));
        let hello = Body { acks: vec![0], acked_session: Some(reply.session), message: Some((1, b"hello")) };
        let hello = [packet(&mut client, Opcode::ControlWkcV1, &hello), key.wrapped].concat();
        match gate.judge(&hello, FROM.into(), 1000) {
            Verdict::Accept(a) => assert_eq!(a.metadata, Some(Metadata::User(b"alice".to_vec()))),
            other => panic!("{other:?}"),
        }
        let plain = reset(&mut Wrap::new(&WrapKey::None, false, 1), Opcode::HardResetClientV2);
        assert!(matches!(gate.judge(&plain, FROM.into(), 1000), Verdict::Drop(Refusal::NoClientKey)));
    }

    /// What fuzzing found: a reset that is cut short is shorter than any answer.
    #[test]
    fn half_a_reset_gets_no_answer() {
        let mut gate = Gate::new(WrapKey::None, None, &[1; 32]);
        let whole = reset(&mut Wrap::new(&WrapKey::None, false, 1), Opcode::HardResetClientV2);
        assert!(matches!(gate.judge(&whole, FROM.into(), 1), Verdict::Reply(_)));
        for length in 0..whole.len() {
            assert!(matches!(gate.judge(&whole[..length], FROM.into(), 1), Verdict::Drop(_)), "{length}");
        }
    }

    #[test]
    fn what_no_client_begins_with_is_dropped() {
        let mut gate = Gate::new(WrapKey::None, None, &[1; 32]);
        for first in 0..=255_u8 {
            let mut packet = vec![first];
            packet.extend_from_slice(&[1; 8]);
            packet.extend_from_slice(&[0; 5]);
            assert!(matches!(gate.judge(&packet, FROM.into(), 1), Verdict::Drop(_)) || first == 7 << 3, "{first}");
        }
        assert!(matches!(gate.judge(&[], FROM.into(), 1), Verdict::Drop(_)));
    }
}
