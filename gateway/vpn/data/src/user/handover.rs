//! Handing a plane over to another process: sockets, TUN queues, peers, keys, packet ids and replay windows.
//!
//! The lanes stop first. What comes meanwhile waits in the kernel's queues, whose descriptors go along, so nothing is
//! lost; and since the ids that go along are those after the last packet, none is issued twice.

use super::counters::PeerStats;
use super::lane::Lane;
use super::peer::{Key, Peer};
use super::sockets::Sockets;
use super::stream::Stream;
use crate::fields::{Malformed, Reader, Writer};
use crate::handed::{HandOver, check_version, invalid, read_about, write_about, write_version};
use crate::plane::{KeyNew, KeyPair, KeySlot, PeerCounters, PeerId, PeerNew, SocketId};
use sealane_ovpn::data::{Cipher, DirectionKey, Format, ReplayWindow};
use sealane_sys::tun::Queue;
use sealane_sys::udp::{Options, Socket};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What a plane goes on with.
pub(super) struct Legacy {
    pub interface: String,
    pub queues: Vec<Queue>,
    pub sockets: Sockets,
    pub streams: Vec<(SocketId, Stream)>,
    pub peers: Vec<Inherited>,
}

/// A peer as it was, with its counters.
pub(super) struct Inherited {
    pub about: PeerNew,
    pub stats: Arc<PeerStats>,
    pub keys: Vec<InheritedKey>,
}

/// A key as it was.
pub(super) struct InheritedKey {
    pub new: Box<KeyNew>,
    epoch: u16,
    next: u64,
    used: u64,
    opener_epoch: u16,
    window: ReplayWindow,
}

impl InheritedKey {
    /// Ready to go on: no id before `next` is issued again, no packet that was seen is taken again.
    pub(super) fn ready(self, peer: &Peer) -> Key {
        let mut key = Key::new(self.new, peer);
        key.sealer.resume(self.epoch, self.next, self.used);
        key.opener.resume(self.opener_epoch, self.window);
        key
    }
}

const INTERFACE: u16 = 1;
const LANE: u16 = 2;
const TCP_OFFLOAD: u16 = 1;
const UDP_SOCKETS: u16 = 2;
const LISTENERS: u16 = 3;
const STREAM: u16 = 4;
const PEER: u16 = 5;

/// Writes down what stopped lanes leave. The descriptors come in the order of the fields.
pub(super) fn write(interface: &str, lanes: Vec<Lane>) -> HandOver {
    let mut descriptors = Vec::new();
    let mut writer = write_version().bytes(INTERFACE, interface.as_bytes());
    for lane in lanes {
        let (core, listeners) = lane.into_parts();
        writer = writer.nested(LANE, |mut w| {
            w = w
                .number(TCP_OFFLOAD, core.tun.tcp_offload().into())
                .number(UDP_SOCKETS, core.udp.len() as u64)
                .number(LISTENERS, listeners.len() as u64);
            descriptors.push(core.tun.into());
            descriptors.extend(core.udp.into_iter().map(OwnedFd::from));
            descriptors.extend(listeners);
            for (number, stream) in core.streams {
                let remote = stream.remote;
                let (fd, partial, out) = stream.into_parts();
                descriptors.push(fd);
                let id = SocketId::new(core.number, number);
                w = w.nested(STREAM, |w| w.number(0, id.to_bits()).bytes(1, &partial).bytes(2, &out).socket(3, remote));
            }
            core.peers.into_values().fold(w, |w, peer| w.nested(PEER, |w| write_peer(w, &peer)))
        });
    }
    HandOver { bytes: writer.finish(), descriptors }
}

/// Reads what another process has written.
pub(super) fn read(from: HandOver) -> io::Result<Legacy> {
    let fields = Reader::new(&from.bytes).map_err(invalid)?;
    check_version(&fields)?;
    let mut fds = VecDeque::from(from.descriptors);
    let mut fd = || fds.pop_front().ok_or_else(|| invalid(Malformed("a descriptor is missing")));
    let name = fields.bytes(INTERFACE, "the interface's name").map_err(invalid)?;
    let mut legacy = Legacy {
        interface: String::from_utf8_lossy(name).into_owned(),
        queues: Vec::new(),
        sockets: Sockets::default(),
        streams: Vec::new(),
        peers: Vec::new(),
    };
    for lane in fields.each(LANE) {
        let lane = lane.map_err(invalid)?;
        let count = |tag| lane.number::<u16>(tag, "the number of sockets of a lane").map_err(invalid);
        legacy.queues.push(Queue::adopt(fd()?, count(TCP_OFFLOAD)? == 1)?);
        let mut udp = Vec::new();
        for _ in 0..count(UDP_SOCKETS)? {
            udp.push(Socket::adopt(fd()?, &Options::default())?);
        }
        legacy.sockets.udp.push(udp);
        legacy.sockets.listeners.push((0..count(LISTENERS)?).map(|_| fd()).collect::<io::Result<_>>()?);
        for stream in lane.each(STREAM) {
            let stream = stream.map_err(invalid)?;
            let id = SocketId::from_bits(stream.number(0, "a connection's number").map_err(invalid)?);
            let bytes = |tag| stream.bytes(tag, "a connection's bytes").map_err(invalid);
            // Processes of before do not write it.
            let remote = stream.socket(3, "a client's address").ok();
            legacy.streams.push((id, Stream::resume(fd()?, bytes(1)?, bytes(2)?, remote)?));
        }
        for peer in lane.each(PEER) {
            legacy.peers.push(peer.and_then(read_peer).map_err(invalid)?);
        }
    }
    if legacy.queues.is_empty() {
        return Err(invalid(Malformed("no lanes")));
    }
    Ok(legacy)
}

fn write_peer(w: Writer, peer: &Peer) -> Writer {
    let about = &peer.about;
    // Times are told from each plane's own start: what the other one needs is how long ago.
    let c = peer.stats.read(0);
    let w = write_about(w, about);
    let counters = [c.rx_packets, c.rx_bytes, c.tx_packets, c.tx_bytes, c.link_rx_bytes, c.link_tx_bytes, c.dropped];
    let mut w = w.each(14, counters, |w, n| w.number(0, n));
    for slot in [KeySlot::Primary, KeySlot::Secondary] {
        if let Some((_, key)) = peer.keys.peek(slot) {
            w = w.nested(15, |w| write_key(w, slot, key));
        }
    }
    w
}

fn write_key(w: Writer, slot: KeySlot, key: &Key) -> Writer {
    let new = &key.new;
    let (newest, bits) = key.opener.window().snapshot();
    let bits: Vec<u8> = bits.iter().flat_map(|word| word.to_be_bytes()).collect();
    w.number(0, (slot == KeySlot::Secondary).into())
        .number(1, new.key_id.into())
        .bytes(2, new.cipher.name().as_bytes())
        .number(3, (new.format == Format::Epoch).into())
        .bytes(4, &new.keys.encrypt.key)
        .bytes(5, &new.keys.encrypt.tail)
        .bytes(6, &new.keys.decrypt.key)
        .bytes(7, &new.keys.decrypt.tail)
        .number(8, key.sealer.epoch().into())
        .number(9, key.sealer.next_id())
        .number(10, key.sealer.used())
        .number(11, key.opener.epoch().into())
        .number(12, newest)
        .bytes(13, &bits)
}

pub(super) fn read_peer(fields: Reader<'_>) -> Result<Inherited, Malformed> {
    let about = read_about(fields)?;
    let counters: Vec<u64> = fields.each(14).map(|c| c?.number(0, "a counter")).collect::<Result<_, _>>()?;
    let at = |i: usize| counters.get(i).copied().unwrap_or(0);
    let stats = PeerStats::resume(&PeerCounters {
        rx_packets: at(0),
        rx_bytes: at(1),
        tx_packets: at(2),
        tx_bytes: at(3),
        link_rx_bytes: at(4),
        link_tx_bytes: at(5),
        dropped: at(6),
        idle_ms: None,
    });
    let keys = fields.each(15).map(|key| read_key(about.peer, key?)).collect::<Result<_, _>>()?;
    Ok(Inherited { about, stats: Arc::new(stats), keys })
}

fn read_key(peer: PeerId, fields: Reader<'_>) -> Result<InheritedKey, Malformed> {
    let direction = |key, tail| -> Result<DirectionKey, Malformed> {
        let key = fields.bytes(key, "a key")?.try_into().map_err(|_| Malformed("a key"))?;
        let tail = fields.bytes(tail, "the tail of a key")?.try_into().map_err(|_| Malformed("the tail of a key"))?;
        Ok(DirectionKey { key, tail })
    };
    let name = str::from_utf8(fields.bytes(2, "a cipher")?).map_err(|_| Malformed("a cipher"))?;
    let words: Vec<u64> = fields
        .bytes(13, "a replay window")?
        .chunks_exact(8)
        .map(|w| w.try_into().map(u64::from_be_bytes).unwrap_or(u64::MAX))
        .collect();
    let bits = words.try_into().map_err(|_| Malformed("a replay window of another size"))?;
    let slot = if fields.number::<u8>(0, "a slot")? == 0 { KeySlot::Primary } else { KeySlot::Secondary };
    let format = if fields.number::<u8>(3, "a format")? == 1 { Format::Epoch } else { Format::Stock };
    let new = KeyNew {
        peer,
        slot,
        key_id: fields.number(1, "a key id")?,
        cipher: Cipher::from_name(name).ok_or(Malformed("a cipher"))?,
        format,
        keys: KeyPair { encrypt: direction(4, 5)?, decrypt: direction(6, 7)? },
    };
    Ok(InheritedKey {
        new: Box::new(new),
        epoch: fields.number(8, "an epoch")?,
        next: fields.number(9, "a packet id")?,
        used: fields.number(10, "a key's use")?,
        opener_epoch: fields.number(11, "an epoch")?,
        window: ReplayWindow::restore(fields.number(12, "a replay window")?, bits),
    })
}
