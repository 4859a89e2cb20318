//! Plaintexts that are not IP packets: neither begins with a nibble of 4 or 6.

/// A keep-alive; never answered, only counted as a sign of life.
pub const PING: [u8; 16] =
    [0x2a, 0x18, 0x7b, 0xf3, 0x64, 0x1e, 0xb4, 0xcb, 0x07, 0xed, 0x2d, 0x0a, 0x98, 0x1f, 0xc7, 0x48];

/// What OCC messages begin with; an opcode follows.
pub const OCC: [u8; 16] =
    [0x28, 0x7f, 0x34, 0x6b, 0xd4, 0xef, 0x7a, 0x81, 0x2d, 0x56, 0xb8, 0xd3, 0xaf, 0xc5, 0x45, 0x9c];

/// The only OCC opcode that is obeyed: the peer leaves (`explicit-exit-notify` of clients before 2.6).
pub const OCC_EXIT: u8 = 6;

/// What a plaintext is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// An IPv4 packet, by its first nibble.
    Ipv4,
    /// An IPv6 packet, by its first nibble.
    Ipv6,
    /// [`PING`].
    Ping,
    /// The peer leaves.
    Exit,
    /// Another OCC message: dropped.
    Occ,
    /// Nothing known: dropped.
    Unknown,
}

/// Looks at a plaintext.
pub fn payload(plaintext: &[u8]) -> Payload {
    match plaintext.first().map(|b| b >> 4) {
        Some(4) => Payload::Ipv4,
        Some(6) => Payload::Ipv6,
        _ if plaintext == PING => Payload::Ping,
        _ => match plaintext.strip_prefix(&OCC) {
            Some([OCC_EXIT, ..]) => Payload::Exit,
            Some(_) => Payload::Occ,
            None => Payload::Unknown,
        },
    }
}

/// The OCC message that says "I leave".
pub fn exit_message() -> [u8; 17] {
    let mut message = [OCC_EXIT; 17];
    message[..16].copy_from_slice(&OCC);
    message
}
