//! A session's control channel: reliable byte streams for TLS, one per key exchange, over wrapped packets.
//!
//! ```text
//! packet ─▶ unwrap ─▶ by key id ─▶ Incoming ─▶ read(): TLS bytes
//! write(): TLS bytes ─▶ Outgoing ─▶ wrap ─▶ poll_transmit()
//! ```
//!
//! Key id 0 is the first exchange; renegotiations count 1 to 7 and begin with 1 again. At most two exchanges are
//! alive: the one that is in use, and the one that follows it.

use crate::gate::Accepted;
use crate::packet::{Body, MAX_ACKS, Opcode, PacketError, SessionId};
use crate::reliable::{ACKS_WITH_MESSAGE, Incoming, Outgoing, Received};
use crate::saved::{SavedChannel, SavedLink, session};
use crate::wrap::v2::ClientKey;
use crate::wrap::{Unwrapped, Wrap, WrapKey};
use std::collections::VecDeque;
use std::time::Instant;

/// OpenVPN's size for control packets (`tls-mtu`).
const PACKET: usize = 1250;
/// TLS bytes that may wait to be sent; a handshake with long chains has a tenth of it.
const MAX_WAITING: usize = 256 * 1024;
/// A server's reset says that it wants the wrapped key again.
const FLAG_RESEND: u16 = 1;

/// What is wrong with a packet of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkError {
    /// Malformed, forged or replayed: drop it.
    Packet(PacketError),
    /// It is of another session: of a client that has begun anew, perhaps.
    OtherSession,
    /// It is for a key exchange that is over or never began.
    UnknownKey,
    /// It is farther ahead than the window.
    TooFar,
}

impl From<PacketError> for LinkError {
    fn from(e: PacketError) -> Self {
        Self::Packet(e)
    }
}

/// One key exchange's stream.
#[derive(Debug)]
struct Channel {
    key_id: u8,
    outgoing: Outgoing,
    incoming: Incoming,
    /// TLS bytes that are not in a message yet.
    waiting: VecDeque<u8>,
    /// TLS bytes that have come.
    ready: VecDeque<Vec<u8>>,
    /// The peer has sent its reset.
    begun: bool,
    /// The client's first CONTROL message carries the wrapped key.
    show_key: bool,
}

/// A session's control channel.
#[derive(Debug)]
pub struct Link {
    server: bool,
    own: SessionId,
    remote: Option<SessionId>,
    wrap: Wrap,
    /// For renegotiations, once dynamic tls-crypt is agreed upon.
    dynamic: Option<Wrap>,
    wrapped_key: Vec<u8>,
    repeat: bool,
    channels: Vec<Channel>,
    scratch: Vec<u8>,
}

/// What a packet has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handled {
    /// The peer has begun a new key exchange with this id.
    pub new_key: Option<u8>,
}

impl Link {
    /// A server's, for a client that has proven its address. `datagrams`: packets may be lost.
    pub fn server(accepted: Accepted, datagrams: bool) -> (Self, Unwrapped) {
        let mut channel = Channel::new(0, Outgoing::new(1, datagrams), Incoming::new(1));
        channel.begun = true;
        // The reset is acknowledged here, since the stateless answer may not have done so.
        channel.incoming.acknowledge(0);
        let link = Self {
            server: true,
            own: accepted.own,
            remote: Some(accepted.remote),
            wrap: accepted.wrap,
            dynamic: None,
            wrapped_key: Vec::new(),
            repeat: datagrams,
            channels: vec![channel],
            scratch: Vec::new(),
        };
        (link, accepted.first)
    }

    /// A client's: its reset is the first thing to send.
    pub fn client(own: SessionId, key: &WrapKey, v2: Option<&ClientKey>, datagrams: bool, unix: u32) -> Self {
        let mut channel = Channel::new(0, Outgoing::new(0, datagrams), Incoming::new(0));
        let (wrap, wrapped_key, reset) = match v2 {
            None => (Wrap::new(key, false, unix), Vec::new(), Opcode::HardResetClientV2),
            Some(v2) => {
                let mut wrap = Wrap::new(&WrapKey::Crypt(v2.key.clone()), false, unix);
                wrap.announce_early_negotiation();
                (wrap, v2.wrapped.clone(), Opcode::HardResetClientV3)
            }
        };
        channel.outgoing.push(reset, Vec::new());
        Self {
            server: false,
            own,
            remote: None,
            wrap,
            dynamic: None,
            wrapped_key,
            repeat: datagrams,
            channels: vec![channel],
            scratch: Vec::new(),
        }
    }

    /// A server's state with these exchanges, to go on elsewhere; `None` before the peer has spoken.
    pub fn save(&self, exchanges: &[u8]) -> Option<SavedLink> {
        let channels = self.channels.iter().filter(|c| exchanges.contains(&c.key_id));
        Some(SavedLink {
            own: *self.own.bytes(),
            remote: *self.remote?.bytes(),
            datagrams: self.repeat,
            wrap: self.wrap.save(),
            dynamic: self.dynamic.as_ref().map(Wrap::save),
            channels: channels.map(Channel::save).collect(),
        })
    }

    /// A server's that goes on. `None` for what nobody has saved.
    pub fn restore(saved: &SavedLink, now: Instant) -> Option<Self> {
        if saved.channels.is_empty() || saved.channels.len() > 2 {
            return None;
        }
        let dynamic = saved.dynamic.as_ref().map(|d| Wrap::restore(d, true));
        Some(Self {
            server: true,
            own: session(saved.own)?,
            remote: Some(session(saved.remote)?),
            wrap: Wrap::restore(&saved.wrap, true)?,
            dynamic: if let Some(dynamic) = dynamic { Some(dynamic?) } else { None },
            wrapped_key: Vec::new(),
            repeat: saved.datagrams,
            channels: saved
                .channels
                .iter()
                .map(|c| Channel::restore(c, saved.datagrams, now))
                .collect::<Option<_>>()?,
            scratch: Vec::new(),
        })
    }

    /// Our session id.
    pub const fn own(&self) -> SessionId {
        self.own
    }

    /// The peer's, once it has spoken.
    pub const fn remote(&self) -> Option<SessionId> {
        self.remote
    }

    /// From now on renegotiations are wrapped with a key from the first TLS session's exporter.
    pub fn use_dynamic_wrap(&mut self, exported: &[u8; 256], unix: u32) {
        self.dynamic = Some(self.wrap.dynamic(exported, self.server, unix));
    }

    /// Handles a packet.
    pub fn handle(&mut self, packet: &[u8]) -> Result<Handled, LinkError> {
        let first = *packet.first().ok_or(PacketError::Length)?;
        let unwrapped = match &mut self.dynamic {
            Some(dynamic) if first & 7 != 0 => dynamic.unwrap(packet)?,
            _ => {
                // A client repeats its packet with the wrapped key when our acknowledgement was lost.
                let packet = match Opcode::of(first) {
                    Some(Opcode::ControlWkcV1) if self.server => strip_client_key(packet)?,
                    _ => packet,
                };
                self.wrap.unwrap(packet)?
            }
        };
        self.handle_unwrapped(&unwrapped)
    }

    /// Handles a packet whose wrap is off already: the one that proved a client's address.
    pub fn handle_unwrapped(&mut self, packet: &Unwrapped) -> Result<Handled, LinkError> {
        match self.remote {
            Some(remote) if remote != packet.session => return Err(LinkError::OtherSession),
            None if packet.opcode != Opcode::HardResetServerV2 => return Err(LinkError::OtherSession),
            _ => {}
        }
        let body = Body::parse(packet.opcode, &packet.body)?;
        if body.acked_session.is_some_and(|acked| acked != self.own) {
            return Err(LinkError::OtherSession);
        }
        self.remote = Some(packet.session);
        let mut handled = Handled::default();
        if self.channel(packet.key_id).is_none() {
            // A renegotiation begins with message 0 under the next id.
            let begins = packet.opcode == Opcode::SoftResetV1 && body.message.is_some_and(|(id, _)| id == 0);
            if !begins || packet.key_id != self.next_key_id() {
                return Err(LinkError::UnknownKey);
            }
            self.begin(packet.key_id);
            handled.new_key = Some(packet.key_id);
        }
        let server = self.server;
        let channel = self.channel(packet.key_id).ok_or(LinkError::UnknownKey)?;
        channel.outgoing.acknowledged(&body.acks);
        if let Some((id, payload)) = body.message {
            if channel.incoming.handle(id, packet.opcode, payload) == Received::TooFar {
                return Err(LinkError::TooFar);
            }
            channel.sort(server);
        }
        Ok(handled)
    }

    /// Begins a renegotiation and returns its key id. `None` while one is going on.
    pub fn renegotiate(&mut self) -> Option<u8> {
        if self.channels.len() > 1 {
            return None;
        }
        let key_id = self.next_key_id();
        self.begin(key_id);
        Some(key_id)
    }

    /// Forgets the exchange before `key_id`, which has taken its place.
    pub fn retire_before(&mut self, key_id: u8) {
        self.channels.retain(|c| c.key_id == key_id);
    }

    /// Forgets an exchange that has failed.
    pub fn abandon(&mut self, key_id: u8) {
        self.channels.retain(|c| c.key_id != key_id);
    }

    /// The next TLS bytes of an exchange.
    pub fn read(&mut self, key_id: u8) -> Option<Vec<u8>> {
        self.channel(key_id)?.ready.pop_front()
    }

    /// Queues TLS bytes; false when too many wait already, or there is no such exchange.
    pub fn write(&mut self, key_id: u8, bytes: &[u8]) -> bool {
        let Some(channel) = self.channel(key_id) else { return false };
        if channel.waiting.len() + bytes.len() > MAX_WAITING {
            return false;
        }
        channel.waiting.extend(bytes);
        true
    }

    /// Whether both sides have begun the exchange, and TLS may start.
    pub fn is_open(&self, key_id: u8) -> bool {
        self.channels.iter().any(|c| c.key_id == key_id && c.begun)
    }

    /// Whether the peer has everything that was written.
    pub fn is_flushed(&self, key_id: u8) -> bool {
        self.channels.iter().all(|c| c.key_id != key_id || (c.waiting.is_empty() && c.outgoing.is_empty()))
    }

    /// Writes the next packet to send into `out`; false when there is none now.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        for at in 0..self.channels.len() {
            let key_id = self.channels[at].key_id;
            let wrap = match &mut self.dynamic {
                Some(dynamic) if key_id != 0 => dynamic,
                _ => &mut self.wrap,
            };
            let channel = &mut self.channels[at];
            channel.fill(wrap.overhead(), self.wrapped_key.len());
            let session = self.remote;
            self.scratch.clear();
            let opcode = match channel.outgoing.poll(now) {
                Some((id, opcode, payload)) => {
                    let acks = match session {
                        Some(_) => channel.incoming.take_acks(ACKS_WITH_MESSAGE),
                        None => Vec::new(),
                    };
                    Body { acks, acked_session: session, message: Some((id, payload)) }.write(&mut self.scratch);
                    opcode
                }
                None if session.is_some() && channel.incoming.wants_to_acknowledge() => {
                    let acks = channel.incoming.take_acks(MAX_ACKS);
                    Body { acks, acked_session: session, message: None }.write(&mut self.scratch);
                    Opcode::AckV1
                }
                None => continue,
            };
            wrap.wrap(opcode, key_id, self.own, &self.scratch, out);
            if matches!(opcode, Opcode::HardResetClientV3 | Opcode::ControlWkcV1) {
                out.extend_from_slice(&self.wrapped_key);
            }
            return true;
        }
        false
    }

    /// When [`Link::poll_transmit`] has something again by itself.
    pub fn deadline(&self) -> Option<Instant> {
        self.channels.iter().filter_map(|c| c.outgoing.deadline()).min()
    }

    fn begin(&mut self, key_id: u8) {
        // The exchange before the last is over.
        if self.channels.len() > 1 {
            self.channels.remove(0);
        }
        let mut channel = Channel::new(key_id, Outgoing::new(0, self.repeat), Incoming::new(0));
        channel.outgoing.push(Opcode::SoftResetV1, Vec::new());
        // A server may hear TLS at once: OpenVPN 3 answers its reset with the ClientHello as message 0, and with no reset
        // of its own.
        channel.begun = self.server;
        self.channels.push(channel);
    }

    fn next_key_id(&self) -> u8 {
        match self.channels.last().map(|c| c.key_id) {
            Some(7) | None => 1,
            Some(id) => id + 1,
        }
    }

    fn channel(&mut self, key_id: u8) -> Option<&mut Channel> {
        self.channels.iter_mut().find(|c| c.key_id == key_id)
    }
}

impl Channel {
    const fn new(key_id: u8, outgoing: Outgoing, incoming: Incoming) -> Self {
        Self {
            key_id,
            outgoing,
            incoming,
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            begun: false,
            show_key: false,
        }
    }

    fn save(&self) -> SavedChannel {
        let (expects, held, acks) = self.incoming.save();
        SavedChannel {
            key_id: self.key_id,
            sends: self.outgoing.next_id(),
            outstanding: self.outgoing.save(),
            waiting: self.waiting.iter().copied().collect(),
            expects,
            held,
            acks,
            ready: self.ready.iter().cloned().collect(),
            begun: self.begun,
        }
    }

    fn restore(saved: &SavedChannel, repeat: bool, now: Instant) -> Option<Self> {
        let outgoing = Outgoing::restore(saved.sends, repeat, &saved.outstanding, now)?;
        let mut channel =
            Self::new(saved.key_id & 7, outgoing, Incoming::restore(saved.expects, &saved.held, &saved.acks)?);
        channel.waiting = saved.waiting.iter().copied().take(MAX_WAITING).collect();
        channel.ready = saved.ready.iter().cloned().collect();
        channel.begun = saved.begun;
        Some(channel)
    }

    /// Sorts what is in order: resets begin, the rest is TLS.
    fn sort(&mut self, server: bool) {
        while let Some((opcode, payload)) = self.incoming.pop() {
            match opcode {
                Opcode::ControlV1 | Opcode::ControlWkcV1 if !payload.is_empty() => self.ready.push_back(payload),
                Opcode::HardResetServerV2 if !server => {
                    self.begun = true;
                    self.show_key = wants_key(&payload);
                }
                Opcode::SoftResetV1 => self.begun = true,
                // Other resets and empty messages bring nothing.
                _ => {}
            }
        }
    }

    /// Makes messages of what waits, as far as the window allows.
    fn fill(&mut self, overhead: usize, wrapped_key: usize) {
        // Acknowledgements: a count, ids, a session id; and the message's own id.
        let fixed = overhead + 1 + 4 * ACKS_WITH_MESSAGE + 8 + 4;
        while self.begun && !self.waiting.is_empty() && self.outgoing.has_room() {
            let show = std::mem::take(&mut self.show_key);
            let (opcode, extra) = match show {
                true => (Opcode::ControlWkcV1, wrapped_key),
                false => (Opcode::ControlV1, 0),
            };
            // A wrapped key of the largest size still leaves room for something.
            let room = PACKET.saturating_sub(fixed + extra).max(64);
            let n = room.min(self.waiting.len());
            self.outgoing.push(opcode, self.waiting.drain(..n).collect());
        }
    }
}

/// Whether a server's reset asks for the wrapped key: type, length, value, as often as they come.
fn wants_key(mut tlvs: &[u8]) -> bool {
    while let Some((head, rest)) = tlvs.split_first_chunk::<4>() {
        let kind = u16::from_be_bytes([head[0], head[1]]);
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let Some((value, rest)) = rest.split_at_checked(length) else { return false };
        if let (1, &[a, b]) = (kind, value) {
            return u16::from_be_bytes([a, b]) & FLAG_RESEND != 0;
        }
        tlvs = rest;
    }
    false
}

/// A repeated CONTROL_WKC_V1 without its key, which is known already.
fn strip_client_key(packet: &[u8]) -> Result<&[u8], PacketError> {
    let length = usize::from(u16::from_be_bytes(*packet.last_chunk::<2>().ok_or(PacketError::Length)?));
    packet.len().checked_sub(length).map(|end| &packet[..end]).ok_or(PacketError::ClientKey)
}
