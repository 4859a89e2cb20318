//! What the fuzz targets (`fuzz/`) run of this crate: its decoders, which are private, and whole lanes (`lane`). Each function takes any
//! bytes and panics when a promise is broken. Nothing else calls this module.

pub(crate) mod fixtures;
mod lane;
mod quic;

pub use lane::{lane_h1_h1, lane_h1_h2, lane_h2_h1, lane_h2_h2};
pub use quic::lane_quic;

use crate::accept::proxy_protocol::{self, ProxyHeader};
use crate::access_log::Template;
use crate::access_log::format::{escape, escape_json};
use crate::h2::frames::{ACK, CONTINUATION, END_HEADERS, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE};
use crate::h2::guard::{Fault, Guard, PREFACE};
use crate::h2::window::Window;
use crate::quic::config::{CID_LEN, id_of, named};
use crate::quic::forwarding::long_header_id;
use crate::quic::succession::{encode, parse};
use sealane_tls::ids::IdKey;
use sealane_tls::policy::TicketKeys;
use std::net::SocketAddr;

/// A PROXY protocol header: no shorter part of one is complete or refused, and what is written is read the same.
pub fn proxy_protocol(data: &[u8]) {
    let whole = proxy_protocol::parse(data);
    let end = match whole {
        Ok(Some(ProxyHeader { consumed, .. })) => {
            assert!((1..=data.len()).contains(&consumed));
            assert_eq!(proxy_protocol::parse(&data[..consumed]), whole, "what follows a header is no part of it");
            consumed
        }
        Ok(None) => data.len(),
        Err(_) => {
            let longer = [data, b"\r\n"].concat();
            return assert_eq!(proxy_protocol::parse(&longer), whole, "what is refused becomes none by more bytes");
        }
    };
    for cut in 0..end {
        assert_eq!(proxy_protocol::parse(&data[..cut]), Ok(None), "cut at {cut} of {end}");
    }
    let Ok(Some(ProxyHeader { source: Some(source), .. })) = whole else { return };
    let destinations: [SocketAddr; 2] = [([192, 0, 2, 1], 443).into(), ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 443).into()];
    for (version, destination) in
        [(1, destinations[0]), (2, destinations[0]), (1, destinations[1]), (2, destinations[1])]
    {
        let mut out = Vec::new();
        proxy_protocol::encode(&mut out, version, source, destination);
        let Ok(Some(ProxyHeader { consumed, source: Some(again) })) = proxy_protocol::parse(&out) else {
            panic!("what is written is refused: {}", out.escape_ascii())
        };
        assert_eq!(
            (consumed, again.ip().to_canonical(), again.port()),
            (out.len(), source.ip().to_canonical(), source.port())
        );
    }
}

/// A frame as the target counts it: kind, flags, stream, declared length, and as much of the payload as there is.
struct Frame<'d> {
    kind: u8,
    flags: u8,
    stream: u32,
    length: usize,
    payload: &'d [u8],
}

impl Frame<'_> {
    fn is_whole(&self) -> bool {
        self.payload.len() == self.length
    }

    /// A payload of four bytes as a number of 31 bits.
    fn number(&self) -> Option<u32> {
        let bytes: [u8; 4] = self.payload.try_into().ok().filter(|_| self.is_whole())?;
        Some(u32::from_be_bytes(bytes) & 0x7fff_ffff)
    }
}

/// All frames that have begun.
fn frames(mut bytes: &[u8]) -> Vec<Frame<'_>> {
    let mut all = Vec::new();
    while let [a, b, c, kind, flags, s, t, u, v, rest @ ..] = bytes {
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        let (payload, next) = rest.split_at(length.min(rest.len()));
        let stream = u32::from_be_bytes([*s, *t, *u, *v]) & 0x7fff_ffff;
        all.push(Frame { kind: *kind, flags: *flags, stream, length, payload });
        bytes = next;
    }
    all
}

/// The bytes of HTTP/2: as they are, or, for a fuzzer's sake, made of short headers (a kind, flags, a stream and a length, a byte
/// each). The first byte chooses; half of it is the size of the pieces.
fn h2_bytes(data: &[u8]) -> Option<(usize, Vec<u8>)> {
    let (first, mut rest) = data.split_first()?;
    let step = 1 + usize::from(first >> 1);
    if first & 1 == 0 {
        return Some((step, rest.to_vec()));
    }
    let mut bytes = Vec::new();
    while let [kind, flags, stream, length, more @ ..] = rest {
        let (payload, next) = more.split_at(usize::from(*length).min(more.len()));
        bytes.extend([0, 0, *length, *kind, *flags, 0, 0, 0, *stream]);
        bytes.extend(payload);
        rest = next;
    }
    Some((step, bytes))
}

/// The guard on a client's HTTP/2 frames: the same counts however the bytes come, and those of a reader that has all of them.
pub fn h2_guard(data: &[u8]) {
    let Some((step, bytes)) = h2_bytes(data) else { return };
    let run = |step: usize| {
        let mut guard = Guard::new(0);
        guard.observe(PREFACE, 0).expect("a preface is no flood");
        let fault = bytes.chunks(step).find_map(|piece| guard.observe(piece, 5).err());
        let noted: Vec<_> = (0..256).map(|stream| guard.trailers().take(stream)).collect();
        (guard.counted(), noted, fault, guard.is_settled(), guard.block_since().is_some(), guard.take_opened())
    };
    let whole = run(bytes.len().max(1));
    assert_eq!(run(step), whole, "in pieces of {step}");
    assert_eq!(run(1), whole, "byte by byte");
    let (_, _, fault, settled, in_block, opened) = whole;
    let frames = frames(&bytes);
    let floods = frames.iter().filter(|f| !matches!(f.kind, 0 | HEADERS | CONTINUATION)).count();
    assert!(fault != Some(Fault::Flood) || floods > 200, "{floods} frames are a flood");
    if fault.is_some() {
        return;
    }
    let windows = frames.iter().filter(|f| f.kind == WINDOW_UPDATE && f.stream == 0);
    assert_eq!(opened, windows.filter_map(|f| f.number()).map(u64::from).sum::<u64>());
    assert_eq!(settled, frames.iter().any(|f| f.kind == SETTINGS && f.flags & ACK != 0 && f.is_whole()));
    let block = frames.iter().rfind(|f| matches!(f.kind, HEADERS | CONTINUATION));
    assert_eq!(in_block, block.is_some_and(|f| f.flags & END_HEADERS == 0 || !f.is_whole()));
    let resets = frames.iter().filter(|f| f.kind == RST_STREAM).count();
    let others = floods - resets - frames.iter().filter(|f| f.kind == WINDOW_UPDATE).count();
    assert!(others <= 200, "{others} frames of control are no flood");
}

/// The window for what the gateway sends over HTTP/2: what the frames that were written leave of it, however they are written.
pub fn h2_window(data: &[u8]) {
    let Some((step, bytes)) = h2_bytes(data) else { return };
    let given = step * 100;
    let run = |step: usize| {
        let mut window = Window::new();
        window.give(given);
        let mut wrote = (0, 0);
        for piece in bytes.chunks(step) {
            let w = window.wrote(piece, false, false, 5);
            wrote = (wrote.0 + w.faults, wrote.1 + w.unknown_heads);
        }
        let before = window.left();
        // All is written: what was given and did not come is had back.
        window.wrote(&[], true, false, 5);
        (before, window.left(), wrote)
    };
    let whole = run(bytes.len().max(1));
    assert_eq!(run(step), whole, "in pieces of {step}");
    assert_eq!(run(1), whole, "byte by byte");
    let frames = frames(&bytes);
    let sent: usize = frames.iter().filter(|f| f.kind == 0).map(|f| f.length).sum();
    let (before, left, (faults, unknown)) = whole;
    assert_eq!(left, 65_535_usize.saturating_sub(sent));
    assert_eq!(before, 65_535_usize.saturating_sub(sent.max(given)));
    assert_eq!(unknown as usize, frames.iter().filter(|f| f.kind == HEADERS && f.stream > 5).count());
    // PROTOCOL_ERROR and all that is no fault of the gateway's: neither NO_ERROR, INTERNAL_ERROR, CANCEL nor REFUSED_STREAM.
    let is_fault = |f: &&Frame<'_>| {
        let code = <[u8; 4]>::try_from(f.payload).ok().filter(|_| f.is_whole()).map(u32::from_be_bytes);
        f.kind == RST_STREAM && code.is_some_and(|code| !matches!(code, 0 | 2 | 7 | 8))
    };
    assert_eq!(faults as usize, frames.iter().filter(is_fault).count());
    let mut window = Window::new();
    frames.iter().for_each(|f| window.open(f.length as u64 * 0x1_0001));
    assert!(window.left() <= 0x7fff_ffff);
}

/// Keys that every run has.
fn id_key() -> IdKey {
    IdKey::of_connections(&TicketKeys { epoch: 1, masters: vec![[1; 32]], lifetime: 60, reset: [2; 32] })
}

/// Connection ids in datagrams: one that the gateway has made is recognised in both kinds of headers, and none else.
pub fn quic_ids(data: &[u8]) {
    let key = id_key();
    let found = named(data);
    if let Some(named) = found {
        assert!(!named.is_made_with(&key), "an id that nobody made");
        if data[0] & 0x80 != 0 {
            let id = long_header_id(data).expect("a long header with an id");
            assert_eq!((id[0], usize::from(u16::from_be_bytes([id[1], id[2]]))), (named.generation, named.slot));
            assert_eq!(id.len() == CID_LEN, !named.may_be_without_mac());
        }
    }
    if let Some(id) = long_header_id(data) {
        assert!(id.len() <= 20 && data[0] & 0x80 != 0 && data[6..].starts_with(id));
    }
    let Some((&[generation, high, low, flip, first], rest)) = data.split_first_chunk() else { return };
    let mut random = [0; CID_LEN - 8];
    random.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    let slot = u16::from_be_bytes([high, low]);
    let id = id_of(generation, slot, random, &key);
    let short = |id: &[u8]| [&[first & 0x7f][..], id, rest].concat();
    let long = |id: &[u8]| [&[first | 0x80, 0, 0, 0, 1, CID_LEN as u8][..], id, rest].concat();
    for datagram in [short(&id), long(&id)] {
        let named = named(&datagram).expect("it is there");
        assert_eq!((named.generation, named.slot, named.is_made_with(&key)), (generation, slot.into(), true));
    }
    let mut forged = id;
    forged[usize::from(flip) / 8 % CID_LEN] ^= 1 << (flip % 8);
    for datagram in [short(&forged), long(&forged)] {
        assert!(!named(&datagram).expect("it is there").is_made_with(&key), "bit {flip} is not covered");
    }
}

/// A datagram on its way to another process: what is understood is written the same.
pub fn quic_channel(data: &[u8]) {
    let known = std::cell::Cell::new(None);
    let listener = |address: SocketAddr| {
        known.set(Some(address));
        (address.port() != 0).then_some(7)
    };
    let Some(datagram) = parse(data, listener) else { return };
    let address = known.get().expect("it was asked for");
    let written = encode(address, &datagram);
    assert!(data.ends_with(&datagram.data) && written.len() <= data.len());
    // Bits of the flags that nobody knows, and the scope of an IPv4 address, are not written.
    let again = parse(&written, listener).expect("what is written is understood");
    let parts =
        |d: &crate::Datagram| (d.listener, d.slot, d.remote, d.local, d.ecn, d.counted, d.fresh, d.data.clone());
    assert_eq!((parts(&again), known.get()), (parts(&datagram), Some(address)));
    assert_eq!(encode(address, &again), written);
}

/// Templates of access logs, and what keeps clients from forging lines.
pub fn access_log(data: &[u8]) {
    let mut out = Vec::new();
    escape(&mut out, data);
    assert!(out.iter().all(|b| matches!(b, b' '..=b'~') && *b != b'"'));
    // Each backslash begins `\xHH`, so that what was sent can be had back.
    let mut back = Vec::new();
    let mut rest = &out[..];
    while let Some((first, more)) = rest.split_first() {
        match (first, more) {
            (b'\\', [b'x', high, low, next @ ..]) => {
                let digit = |b: &u8| char::from(*b).to_digit(16).expect("a digit");
                back.push((digit(high) * 16 + digit(low)) as u8);
                rest = next;
            }
            (b'\\', _) => panic!("a backslash that nobody has escaped"),
            _ => {
                back.push(*first);
                rest = more;
            }
        }
    }
    assert_eq!(back, data);
    let mut json = Vec::new();
    escape_json(&mut json, data);
    assert!(json.iter().all(|b| matches!(b, b' '..=b'~')));
    let quotes = json.iter().enumerate().filter(|(_, b)| **b == b'"');
    for (at, _) in quotes {
        let before = json[..at].iter().rev().take_while(|b| **b == b'\\').count();
        assert_eq!(before % 2, 1, "a quote that ends the string");
    }
    assert_eq!(json.iter().rev().take_while(|b| **b == b'\\').count() % 2, 0, "a backslash that escapes the end");

    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(template) = text.parse::<Template>() else { return assert!(text.contains(['$', '\n', '\r']), "{text:?}") };
    assert!(!text.contains(['\n', '\r']));
    let written = template.to_string();
    assert_eq!(written.parse(), Ok(template), "{text:?} is written as {written:?}");
    assert!(text.contains('$') || written == text);
}
