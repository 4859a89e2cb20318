//! Where things lie in a data packet.

use super::TAG;

/// A data packet without a peer id, from clients before 2.4 and to them.
pub const DATA_V1: u8 = 6;
/// A data packet with a peer id.
pub const DATA_V2: u8 = 9;

/// Names a peer in DATA_V2 packets, 24 bits. The receiver chooses it; the server's carry the lane's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(u32);

impl PeerId {
    /// "No peer id yet": what clients send before they are given one.
    pub const UNSET: PeerId = PeerId(0xff_ffff);

    /// `None` when it has more than 24 bits.
    pub const fn new(id: u32) -> Option<Self> {
        if id <= 0xff_ffff { Some(Self(id)) } else { None }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// What comes before the packet id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// 0 to 7.
    pub key_id: u8,
    /// `None` in DATA_V1, where the sender's address names the peer.
    pub peer_id: Option<PeerId>,
}

impl Header {
    /// Reads a packet's header. `None` when it is no data packet, or shorter than its header.
    pub const fn parse(packet: &[u8]) -> Option<Self> {
        let Some(&first) = packet.first() else { return None };
        let key_id = first & 7;
        match (first >> 3, packet) {
            (DATA_V1, _) => Some(Self { key_id, peer_id: None }),
            (DATA_V2, &[_, a, b, c, ..]) => {
                Some(Self { key_id, peer_id: Some(PeerId(u32::from_be_bytes([0, a, b, c]))) })
            }
            _ => None,
        }
    }

    /// Bytes on the wire.
    pub const fn len(self) -> usize {
        if self.peer_id.is_some() { 4 } else { 1 }
    }

    /// Never: a header has a byte at least.
    pub const fn is_empty(self) -> bool {
        false
    }

    /// The wire form; the first [`Header::len`] bytes count.
    pub const fn bytes(self) -> [u8; 4] {
        match self.peer_id {
            None => [DATA_V1 << 3 | self.key_id & 7, 0, 0, 0],
            Some(PeerId(id)) => {
                let [_, a, b, c] = id.to_be_bytes();
                [DATA_V2 << 3 | self.key_id & 7, a, b, c]
            }
        }
    }

    /// How much of the header is authenticated: all of V2's; V1 begins to count with the packet id.
    pub(super) const fn unauthenticated(self) -> usize {
        if self.peer_id.is_some() { 0 } else { 1 }
    }
}

/// How packet id, tag and ciphertext follow the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 32-bit packet id, tag, ciphertext: OpenVPN 2.4 to 2.6.
    Stock,
    /// 16-bit epoch with 48-bit packet id, ciphertext, tag: OpenVPN 2.7.
    Epoch,
}

impl Format {
    /// Bytes of the packet id, with the epoch.
    pub const fn id_len(self) -> usize {
        match self {
            Self::Stock => 4,
            Self::Epoch => 8,
        }
    }

    /// Bytes between the start of a packet and its ciphertext.
    pub const fn head(self, header: Header) -> usize {
        header.len()
            + match self {
                Self::Stock => 4 + TAG,
                Self::Epoch => 8,
            }
    }

    /// Bytes after the ciphertext.
    pub const fn tail(self) -> usize {
        match self {
            Self::Stock => 0,
            Self::Epoch => TAG,
        }
    }

    /// What a packet is longer than its plaintext.
    pub const fn overhead(self, header: Header) -> usize {
        self.head(header) + self.tail()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_read_as_they_were_written() {
        for (key_id, peer) in [(0, None), (7, PeerId::new(0)), (3, PeerId::new(0x12_3456)), (1, Some(PeerId::UNSET))] {
            let header = Header { key_id, peer_id: peer };
            assert_eq!(Header::parse(&header.bytes()), Some(header));
        }
        assert_eq!(Header::parse(&[]), None);
        assert_eq!(Header::parse(&[DATA_V2 << 3, 0, 0]), None);
        // An acknowledgement is not data.
        assert_eq!(Header::parse(&[5 << 3, 0, 0, 0, 0]), None);
        assert_eq!(PeerId::new(1 << 24), None);
    }
}
