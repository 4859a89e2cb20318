//! Control packets: opcodes, session ids, acknowledgements, and frames on TCP.
//!
//! ```text
//! │ opcode, key id │ own session id 8 │ wrap's part │ n │ n × message id 4 │ peer's session id 8 │ message id 4 │ payload │
//!                                                       └── only if n > 0 ──────────────────────┘ └─ not in ACK_V1 ────────┘
//! ```

/// The largest control packet that is looked at. OpenVPN's own are 1,250 bytes; with a wrapped key at the end, more.
pub const MAX_PACKET: usize = 2048;

/// Message ids that one packet may acknowledge.
pub const MAX_ACKS: usize = 8;

/// What a packet is: the high five bits of its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// A new key is negotiated while the old one is in use.
    SoftResetV1 = 3,
    /// A piece of the TLS stream.
    ControlV1 = 4,
    /// Acknowledgements alone.
    AckV1 = 5,
    /// Data without a peer id.
    DataV1 = 6,
    /// A client begins.
    HardResetClientV2 = 7,
    /// A server begins.
    HardResetServerV2 = 8,
    /// Data with a peer id.
    DataV2 = 9,
    /// A client begins and shows its tls-crypt-v2 key.
    HardResetClientV3 = 10,
    /// [`Opcode::ControlV1`] with the wrapped key again, so that the server need not remember it.
    ControlWkcV1 = 11,
}

impl Opcode {
    /// From a packet's first byte. Key method 1's opcodes (1, 2) are not known any more.
    pub const fn of(first: u8) -> Option<Self> {
        Some(match first >> 3 {
            3 => Self::SoftResetV1,
            4 => Self::ControlV1,
            5 => Self::AckV1,
            6 => Self::DataV1,
            7 => Self::HardResetClientV2,
            8 => Self::HardResetServerV2,
            9 => Self::DataV2,
            10 => Self::HardResetClientV3,
            11 => Self::ControlWkcV1,
            _ => return None,
        })
    }

    /// The first byte of a packet.
    pub const fn first_byte(self, key_id: u8) -> u8 {
        (self as u8) << 3 | key_id & 7
    }

    /// Whether it is a data packet, which no control code looks at.
    pub const fn is_data(self) -> bool {
        matches!(self, Self::DataV1 | Self::DataV2)
    }
}

/// Names one side's session; random, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId([u8; 8]);

impl SessionId {
    /// `None` for zero, which means "none" in OpenVPN.
    pub fn new(bytes: [u8; 8]) -> Option<Self> {
        (bytes != [0; 8]).then_some(Self(bytes))
    }

    /// The bytes.
    pub const fn bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

/// The shortest packet that begins a session: opcode, session id, no acknowledgements, message id.
const SHORTEST_RESET: usize = 1 + 8 + 1 + 4;

/// What the first bytes of a TCP connection say, where OpenVPN shares a port with another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstBytes {
    /// They may begin a session; more are needed to tell.
    Incomplete,
    /// They begin a session.
    Session,
    /// No session begins so.
    Other,
}

impl FirstBytes {
    /// Tells by at most three bytes: the length of a client's first packet, and its opcode with key id 0. The first byte of such a
    /// length is below 9; TLS begins with 22, and methods of HTTP with a letter.
    pub fn of(bytes: &[u8]) -> Self {
        let fits = |high: u8, low: u8| {
            let length = usize::from(u16::from_be_bytes([high, low]));
            (SHORTEST_RESET..=MAX_PACKET).contains(&length)
        };
        let begins = |first: u8| {
            first & 7 == 0 && matches!(Opcode::of(first), Some(Opcode::HardResetClientV2 | Opcode::HardResetClientV3))
        };
        match *bytes {
            [] => Self::Incomplete,
            [high] if usize::from(high) <= MAX_PACKET >> 8 => Self::Incomplete,
            [high, low] if fits(high, low) => Self::Incomplete,
            [high, low, first, ..] if fits(high, low) && begins(first) => Self::Session,
            _ => Self::Other,
        }
    }
}

/// What is wrong with a control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketError {
    /// It ends too early, or is longer than [`MAX_PACKET`].
    Length,
    /// Its opcode is not one of a control packet.
    Opcode,
    /// Its session id is zero.
    SessionId,
    /// It acknowledges more than [`MAX_ACKS`] messages.
    TooManyAcks,
    /// Its wrap (tls-auth, tls-crypt) is not authentic.
    Forged,
    /// Its wrap's packet id was seen before or is too old.
    Replayed,
    /// The tls-crypt-v2 key that it shows was not wrapped by our key, or is malformed.
    ClientKey,
}

impl std::fmt::Display for PacketError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Length => "cut short or too long",
            Self::Opcode => "not a control packet",
            Self::SessionId => "without a session id",
            Self::TooManyAcks => "with too many acknowledgements",
            Self::Forged => "not authentic (is the tls-auth or tls-crypt key the same on both sides?)",
            Self::Replayed => "seen before",
            Self::ClientKey => "with a tls-crypt-v2 key that is not of this server",
        })
    }
}

impl std::error::Error for PacketError {}

/// Takes bytes from the front of a packet.
pub(crate) fn take<'p>(rest: &mut &'p [u8], n: usize) -> Result<&'p [u8], PacketError> {
    let (taken, left) = rest.split_at_checked(n).ok_or(PacketError::Length)?;
    *rest = left;
    Ok(taken)
}

pub(crate) fn take_array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], PacketError> {
    let (taken, left) = rest.split_first_chunk::<N>().ok_or(PacketError::Length)?;
    *rest = left;
    Ok(*taken)
}

/// A control packet without its wrap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body<'p> {
    /// Messages of ours that the peer has got.
    pub acks: Vec<u32>,
    /// Our session id as the peer knows it; there with acknowledgements only.
    pub acked_session: Option<SessionId>,
    /// The message, `None` in ACK_V1.
    pub message: Option<(u32, &'p [u8])>,
}

impl<'p> Body<'p> {
    /// Reads what follows the wrap.
    pub fn parse(opcode: Opcode, mut rest: &'p [u8]) -> Result<Self, PacketError> {
        let count = usize::from(take_array::<1>(&mut rest)?[0]);
        if count > MAX_ACKS {
            return Err(PacketError::TooManyAcks);
        }
        let mut acks = Vec::with_capacity(count);
        for _ in 0..count {
            acks.push(u32::from_be_bytes(take_array(&mut rest)?));
        }
        let acked_session = match count {
            0 => None,
            _ => Some(SessionId::new(take_array(&mut rest)?).ok_or(PacketError::SessionId)?),
        };
        let message = match opcode {
            Opcode::AckV1 => None,
            _ => {
                let id = u32::from_be_bytes(take_array(&mut rest)?);
                Some((id, rest))
            }
        };
        Ok(Self { acks, acked_session, message })
    }

    /// The wire form.
    pub fn write(&self, out: &mut Vec<u8>) {
        let acks = &self.acks[..self.acks.len().min(MAX_ACKS)];
        // Without a session id to go with them, acknowledgements cannot be sent.
        match (self.acked_session, acks) {
            (Some(session), acks @ [_, ..]) => {
                out.push(acks.len() as u8);
                acks.iter().for_each(|id| out.extend_from_slice(&id.to_be_bytes()));
                out.extend_from_slice(session.bytes());
            }
            _ => out.push(0),
        }
        if let Some((id, payload)) = self.message {
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(payload);
        }
    }
}

/// On TCP each packet has its length before it. Takes the next whole one from the front of `stream`: the packet and
/// how many bytes it took. An empty frame or one above `limit` is an error, after which the stream means nothing.
pub fn next_frame(stream: &[u8], limit: usize) -> Result<Option<(&[u8], usize)>, PacketError> {
    let Some((length, rest)) = stream.split_first_chunk::<2>() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes(*length));
    if length == 0 || length > limit {
        return Err(PacketError::Length);
    }
    Ok(rest.get(..length).map(|packet| (packet, 2 + length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_read_as_they_were_written() {
        let session = SessionId::new([1, 2, 3, 4, 5, 6, 7, 8]);
        let bodies = [
            (Opcode::AckV1, Body { acks: vec![1, 2], acked_session: session, message: None }),
            (Opcode::ControlV1, Body { acks: vec![], acked_session: None, message: Some((9, b"tls")) }),
            (Opcode::ControlV1, Body { acks: vec![u32::MAX; 8], acked_session: session, message: Some((0, b"")) }),
        ];
        for (opcode, body) in bodies {
            let mut out = Vec::new();
            body.write(&mut out);
            assert_eq!(Body::parse(opcode, &out), Ok(body));
            for length in 0..out.len() {
                // A cut payload is a shorter payload; a cut anything else is an error.
                let short = Body::parse(opcode, &out[..length]);
                let payload = body_payload(&out, opcode);
                assert!(short.is_err() || length >= out.len() - payload, "{opcode:?} {length}");
            }
        }
        assert_eq!(Body::parse(Opcode::AckV1, &[9; 64]), Err(PacketError::TooManyAcks));
    }

    fn body_payload(whole: &[u8], opcode: Opcode) -> usize {
        Body::parse(opcode, whole).ok().and_then(|b| b.message).map_or(0, |(_, payload)| payload.len())
    }

    #[test]
    fn a_session_is_told_by_its_first_bytes() {
        use FirstBytes::{Incomplete, Other, Session};
        for (bytes, says) in [
            (&b""[..], Incomplete),
            (&[0], Incomplete),
            (&[8], Incomplete),
            (&[9], Other),
            (&[0, 14], Incomplete),
            (&[0, 13], Other),
            (&[8, 0], Incomplete),
            (&[8, 1], Other),
            (&[0, 14, 0x38], Session),
            (&[0, 54, 0x38, 1, 2, 3], Session),
            (&[1, 99, 0x50], Session),
            // Another key id, the server's reset, data.
            (&[0, 54, 0x39], Other),
            (&[0, 54, 0x40], Other),
            (&[0, 54, 0x48], Other),
            (b"\x16", Other),
            (b"\x16\x03\x01", Other),
            (b"GET / HTTP/1.1", Other),
            (b"PROXY", Other),
            (b"\r\n\r\n", Other),
            // SSLv2's hello.
            (b"\x80\x2e\x01", Other),
        ] {
            assert_eq!(FirstBytes::of(bytes), says, "{bytes:?}");
        }
    }

    #[test]
    fn frames_come_whole() {
        assert_eq!(next_frame(&[0], 10), Ok(None));
        assert_eq!(next_frame(&[0, 2, 1], 10), Ok(None));
        assert_eq!(next_frame(&[0, 2, 1, 2, 3], 10), Ok(Some((&[1, 2][..], 4))));
        assert_eq!(next_frame(&[0, 0, 1], 10), Err(PacketError::Length));
        assert_eq!(next_frame(&[0, 11], 10), Err(PacketError::Length));
    }
}
