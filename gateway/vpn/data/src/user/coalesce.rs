//! Putting packets together again: what receive offload does, done here after opening.
//!
//! Consecutive packets of one flow become one super-packet, and one write to the TUN. The kernel then handles the
//! whole at once, and forwards it as the same packets if it must. The rules are those of Linux' GRO: equal headers,
//! TCP sequence numbers without a gap, equal sizes but for the last.
//!
//! Payloads are not copied: a flow keeps slices of the receive buffers and gathers them in the write.

use super::checksum::{finish, fold, pseudo, sum};
use super::ip::{TCP, TCP_CHECKSUM, Transport, UDP_CHECKSUM, be32};
use arrayvec::ArrayVec;
use sealane_sys::tun::{CHECKSUM_VALID, HEADER, NEEDS_CHECKSUM, Vnet, gso};
use std::io::{self, IoSlice};

/// Flows that are put together at a time; a further one ends the oldest.
const FLOWS: usize = 8;
/// Packets per super-packet: as many as every kernel takes for UDP; TCP's reach 64 KB earlier.
const PACKETS: usize = 64;
/// IPv4 with options is not put together: 40 and TCP with its options.
const MAX_HEADERS: usize = 100;
/// An IP packet's longest.
const MAX_PACKET: usize = 65_535;

const PSH: u8 = 8;
const ACK: u8 = 16;

/// Where packets go: the TUN, or a test.
pub(super) trait Write {
    /// Writes one packet, header first.
    fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize>;
    /// Whether it takes TCP super-packets.
    fn tcp(&self) -> bool;
    /// Whether it takes UDP super-packets.
    fn udp(&self) -> bool;
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    /// Writes.
    pub writes: u64,
    /// Packets lost since the TUN took no more, or refused them.
    pub lost: u64,
}

struct Flow<'b> {
    header: [u8; MAX_HEADERS],
    at: Transport,
    payloads: ArrayVec<&'b [u8], PACKETS>,
    /// Bytes of the first payload; others are as long, but for the last.
    segment: usize,
    /// Headers and payloads so far.
    total: usize,
    /// The sequence number that goes on.
    next: u32,
}

/// Flows being put together, over one batch of receive buffers.
pub(super) struct Coalescer<'b> {
    flows: ArrayVec<Flow<'b>, FLOWS>,
    written: Written,
}

/// What to do with a packet.
enum Fate {
    /// It can begin or continue a flow.
    Joins,
    /// It can't, and what came before it must go first.
    Alone,
}

impl<'b> Coalescer<'b> {
    pub(super) fn new() -> Self {
        Self { flows: ArrayVec::new(), written: Written::default() }
    }

    /// Takes one IP packet.
    pub(super) fn push(&mut self, packet: &'b [u8], to: &mut impl Write) {
        let Some(t) = Transport::find(packet) else { return self.alone(packet, 0, to) };
        let offload = if t.protocol == TCP { to.tcp() } else { to.udp() };
        // What cannot be put together anyway is not looked at further.
        if !offload {
            return self.alone(packet, 0, to);
        }
        let found = self.flows.iter().position(|f| f.same(packet, &t));
        match fate(packet, &t) {
            Fate::Joins => {}
            Fate::Alone => {
                if let Some(i) = found {
                    self.end(i, to);
                }
                return self.alone(packet, 0, to);
            }
        }
        let payload = &packet[t.payload..];
        let pushed = t.protocol == TCP && packet[t.at + 13] & PSH != 0;
        if let Some(i) = found {
            let flow = &mut self.flows[i];
            if flow.takes(packet, &t) {
                flow.payloads.push(payload);
                flow.total += payload.len();
                flow.next = flow.next.wrapping_add(payload.len() as u32);
                if pushed {
                    flow.header[t.at + 13] |= PSH;
                }
                // A shorter one is the last one, and PSH says that somebody waits for it.
                if pushed || payload.len() < flow.segment || flow.payloads.is_full() {
                    self.end(i, to);
                }
                return;
            }
            self.end(i, to);
        }
        if pushed {
            return self.alone(packet, CHECKSUM_VALID, to);
        }
        if self.flows.is_full() {
            self.end(0, to);
        }
        let mut header = [0; MAX_HEADERS];
        header[..t.payload].copy_from_slice(&packet[..t.payload]);
        let mut payloads = ArrayVec::new();
        payloads.push(payload);
        let next = if t.protocol == TCP { be32(packet, t.at + 4).wrapping_add(payload.len() as u32) } else { 0 };
        self.flows.push(Flow { header, at: t, payloads, segment: payload.len(), total: packet.len(), next });
    }

    /// Writes what is left, and says what was written in all.
    pub(super) fn finish(mut self, to: &mut impl Write) -> Written {
        while !self.flows.is_empty() {
            self.end(0, to);
        }
        self.written
    }

    fn alone(&mut self, packet: &[u8], flags: u8, to: &mut impl Write) {
        let header = Vnet { flags, ..Vnet::default() }.encode();
        self.write(&[IoSlice::new(&header), IoSlice::new(packet)], 1, to);
    }

    fn end(&mut self, index: usize, to: &mut impl Write) {
        let mut flow = self.flows.remove(index);
        let vnet = flow.seal_headers();
        let vnet: [u8; HEADER] = vnet.encode();
        let mut pieces = ArrayVec::<IoSlice<'_>, { PACKETS + 2 }>::new();
        pieces.push(IoSlice::new(&vnet));
        pieces.push(IoSlice::new(&flow.header[..flow.at.payload]));
        pieces.extend(flow.payloads.iter().map(|p| IoSlice::new(p)));
        self.write(&pieces, flow.payloads.len() as u64, to);
    }

    fn write(&mut self, pieces: &[IoSlice<'_>], packets: u64, to: &mut impl Write) {
        match to.write(pieces) {
            Ok(_) => self.written.writes += 1,
            Err(_) => self.written.lost += packets,
        }
    }
}

fn fate(packet: &[u8], t: &Transport) -> Fate {
    let plain = if t.protocol == TCP { packet[t.at + 13] & !PSH == ACK } else { true };
    // IPv4 options make the headers longer than 20 bytes. The header is written anew, so a wrong one must not become right.
    let simple = t.v6 || t.at == 20 && finish(sum(&packet[..20], 0)) == [0, 0];
    // The whole is written with "checksum to be filled in", which would make a wrong one right: so each is checked.
    if plain && simple && packet.len() > t.payload && t.payload <= MAX_HEADERS && t.checksum_right(packet) {
        Fate::Joins
    } else {
        Fate::Alone
    }
}

impl Flow<'_> {
    /// The same protocol, addresses and ports.
    #[inline]
    fn same(&self, packet: &[u8], t: &Transport) -> bool {
        let addresses = if t.v6 { 8..40 } else { 12..20 };
        self.at.v6 == t.v6
            && self.at.protocol == t.protocol
            && self.at.at == t.at
            && self.header[addresses.clone()] == packet[addresses]
            && self.header[t.at..t.at + 4] == packet[t.at..t.at + 4]
    }

    /// Whether a packet of the flow continues it: all else that headers say is equal, too.
    #[inline]
    fn takes(&self, packet: &[u8], t: &Transport) -> bool {
        let h = &self.header;
        let len = packet.len() - t.payload;
        let ip = if t.v6 {
            // Traffic class, flow label, hop limit.
            h[..4] == packet[..4] && h[7] == packet[7]
        } else {
            // TOS, flags, TTL. The identification is renumbered, as by a card that segments.
            h[1] == packet[1] && h[6] == packet[6] && h[8] == packet[8]
        };
        let fits = t.payload == self.at.payload && len <= self.segment && self.total + len <= MAX_PACKET;
        let at = t.at;
        ip && fits
            && (t.protocol != TCP
                || be32(packet, at + 4) == self.next
                    // Acknowledgement and offset; window; options.
                    && h[at + 8..at + 13] == packet[at + 8..at + 13]
                    && h[at + 14..at + 16] == packet[at + 14..at + 16]
                    && h[at + 20..t.payload] == packet[at + 20..t.payload])
    }

    /// Makes the first packet's headers those of the whole.
    fn seal_headers(&mut self) -> Vnet {
        if self.payloads.len() == 1 {
            return Vnet { flags: CHECKSUM_VALID, ..Vnet::default() };
        }
        let t = self.at;
        let h = &mut self.header;
        if t.v6 {
            h[4..6].copy_from_slice(&((self.total - 40) as u16).to_be_bytes());
        } else {
            h[2..4].copy_from_slice(&(self.total as u16).to_be_bytes());
            h[10..12].fill(0);
            let checksum = finish(sum(&h[..t.at], 0));
            h[10..12].copy_from_slice(&checksum);
        }
        let len = self.total - t.at;
        let (offset, kind) = match (t.protocol, t.v6) {
            (TCP, false) => (TCP_CHECKSUM, gso::TCP4),
            (TCP, true) => (TCP_CHECKSUM, gso::TCP6),
            _ => {
                h[t.at + 4..t.at + 6].copy_from_slice(&(len as u16).to_be_bytes());
                (UDP_CHECKSUM, gso::UDP)
            }
        };
        let partial = fold(pseudo(h, t.v6, t.protocol, len)).to_ne_bytes();
        h[t.at + offset..t.at + offset + 2].copy_from_slice(&partial);
        Vnet {
            flags: NEEDS_CHECKSUM,
            gso: kind,
            header_len: t.payload as u16,
            segment: self.segment as u16,
            checksum_start: t.at as u16,
            checksum_offset: offset as u16,
        }
    }
}

#[cfg(test)]
#[path = "coalesce_tests.rs"]
mod tests;
