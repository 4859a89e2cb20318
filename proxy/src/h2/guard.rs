//! What a client's frames cost us, counted as they come, before `h2` sees them.
//!
//! `h2` bounds its memory (pending resets, header blocks, small DATA frames), and we bound what is spent: a client may
//! send frames that carry nothing (PING, SETTINGS, PRIORITY, RST_STREAM, WINDOW_UPDATE) only so often. Each kind has an
//! allowance that fills up again with time, and for WINDOW_UPDATE with what we send. PRIORITY_UPDATE (RFC 9218 §7.1) is
//! read here too, since `h2` drops it, and the connection's WINDOW_UPDATE, since `h2` keeps it to itself.

use super::priority::Priority;
use sealane_lane::Millis;

/// The client's first bytes (RFC 9113 §3.4).
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEADERS: u8 = 1;
const DATA: u8 = 0;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const PRIORITY_UPDATE: u8 = 16;
const END_HEADERS: u8 = 4;
/// Longest payload that is read; a PRIORITY_UPDATE's value has two short members.
const LONGEST_UPDATE: usize = 64;

/// Too much of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flood;

/// An allowance.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: u32,
    most: u32,
    per_second: u32,
}

impl Bucket {
    const fn new(most: u32, per_second: u32) -> Self {
        Self { left: most, most, per_second }
    }

    fn take(&mut self) -> Result<(), Flood> {
        self.left = self.left.checked_sub(1).ok_or(Flood)?;
        Ok(())
    }

    fn add(&mut self, n: u64) {
        self.left = u64::from(self.left).saturating_add(n).min(u64::from(self.most)) as u32;
    }
}

/// Reads frame headers off a client's bytes.
pub(super) struct Guard {
    /// Bytes of the preface that are still to come.
    preface: u8,
    header: [u8; 9],
    /// How much of the header is there.
    have: u8,
    /// Payload bytes to come.
    left: u32,
    /// Of frames that are read.
    payload: Vec<u8>,
    /// PING, SETTINGS, PRIORITY and what is unknown.
    control: Bucket,
    resets: Bucket,
    windows: Bucket,
    filled: Millis,
    /// Since when a header block has been coming.
    block_since: Option<Millis>,
    /// Priorities that were changed, by stream.
    pub updates: Vec<(u32, Priority)>,
    /// By how much the client has opened the connection's window since this was last taken.
    pub opened: u64,
}

impl Guard {
    pub fn new(now: Millis) -> Self {
        Self {
            preface: PREFACE.len() as u8,
            header: [0; 9],
            have: 0,
            left: 0,
            payload: Vec::new(),
            // Browsers send a handful at the start, gRPC clients a PING per burst of data.
            control: Bucket::new(200, 50),
            // As many as there may be streams, twice: somebody leaves a page full of images, and the next one too.
            resets: Bucket::new(256, 32),
            windows: Bucket::new(4000, 400),
            filled: now,
            block_since: None,
            updates: Vec::new(),
            opened: 0,
        }
    }

    /// So many bytes have been sent: the client has reason to update its windows.
    pub fn sent(&mut self, bytes: usize) {
        self.windows.add(bytes as u64 / 128);
    }

    /// Since when the client has been sending a header block, or nothing of its preface.
    pub fn block_since(&self) -> Option<Millis> {
        self.block_since
    }

    /// Looks at bytes, in any pieces.
    pub fn observe(&mut self, mut bytes: &[u8], now: Millis) -> Result<(), Flood> {
        // Not for every millisecond, of which rounding would leave nothing.
        let elapsed = now.saturating_sub(self.filled);
        if elapsed >= 50 {
            self.filled = now;
            for bucket in [&mut self.control, &mut self.resets, &mut self.windows] {
                bucket.add(elapsed * u64::from(bucket.per_second) / 1000);
            }
        }
        let preface = bytes.len().min(usize::from(self.preface));
        self.preface -= preface as u8;
        bytes = &bytes[preface..];
        while !bytes.is_empty() {
            if self.left > 0 {
                let n = bytes.len().min(self.left as usize);
                if matches!(self.header[3], PRIORITY_UPDATE | WINDOW_UPDATE) && self.payload.len() + n <= LONGEST_UPDATE
                {
                    self.payload.extend_from_slice(&bytes[..n]);
                }
                self.left -= n as u32;
                bytes = &bytes[n..];
                if self.left == 0 {
                    self.finish();
                }
                continue;
            }
            let have = usize::from(self.have);
            let n = bytes.len().min(9 - have);
            self.header[have..have + n].copy_from_slice(&bytes[..n]);
            self.have += n as u8;
            bytes = &bytes[n..];
            if self.have == 9 {
                self.have = 0;
                self.begin(now)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, now: Millis) -> Result<(), Flood> {
        let [a, b, c, kind, flags, ..] = self.header;
        self.left = u32::from_be_bytes([0, a, b, c]);
        match kind {
            DATA => {}
            HEADERS | CONTINUATION => {
                self.block_since.get_or_insert(now);
                // Its last frame ends it; until then its time runs.
                if flags & END_HEADERS != 0 && self.left == 0 {
                    self.block_since = None;
                }
            }
            RST_STREAM => self.resets.take()?,
            WINDOW_UPDATE => self.windows.take()?,
            PRIORITY | SETTINGS | PING | PRIORITY_UPDATE => self.control.take()?,
            _ => self.control.take()?,
        }
        if self.left == 0 {
            self.finish();
        }
        Ok(())
    }

    /// A frame is whole.
    fn finish(&mut self) {
        let [_, _, _, kind, flags, stream @ ..] = self.header;
        if matches!(kind, HEADERS | CONTINUATION) && flags & END_HEADERS != 0 {
            self.block_since = None;
        }
        // Reserved bits are ignored.
        let number = |bytes: &[u8; 4]| u32::from_be_bytes(*bytes) & 0x7fff_ffff;
        match (kind, self.payload.split_first_chunk::<4>()) {
            (PRIORITY_UPDATE, Some((id, value))) => self.updates.push((number(id), Priority::parse(value))),
            (WINDOW_UPDATE, Some((more, []))) if number(&stream) == 0 => self.opened += u64::from(number(more)),
            _ => {}
        }
        self.payload.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.extend(payload);
        bytes
    }

    fn begun() -> Guard {
        let mut guard = Guard::new(0);
        guard.observe(PREFACE, 0).unwrap();
        guard
    }

    #[test]
    fn floods_are_seen_in_any_pieces_and_time_heals() {
        for (kind, payload, most) in
            [(PING, &[0; 8][..], 200), (SETTINGS, &[], 200), (RST_STREAM, &[0; 4], 256), (WINDOW_UPDATE, &[0; 4], 4000)]
        {
            let bytes = frame(kind, 0, payload);
            let mut guard = begun();
            for i in 0..most {
                for piece in bytes.chunks(1 + i % 5) {
                    guard.observe(piece, 0).unwrap();
                }
            }
            assert_eq!(guard.observe(&bytes, 0), Err(Flood), "{kind}");
            guard.observe(&bytes, 1000).unwrap();
        }
    }

    #[test]
    fn data_and_requests_cost_nothing_here() {
        let mut guard = begun();
        let bytes = [frame(DATA, 0, &[0; 100]), frame(HEADERS, END_HEADERS, &[0; 10])].concat();
        for _ in 0..10_000 {
            guard.observe(&bytes, 0).unwrap();
        }
        guard.observe(&frame(HEADERS, 0, &[0; 3]), 5).unwrap();
        assert_eq!(guard.block_since(), Some(5));
        guard.observe(&frame(CONTINUATION, END_HEADERS, &[0; 3])[..11], 6).unwrap();
        assert_eq!(guard.block_since(), Some(5));
        guard.observe(&[0], 7).unwrap();
        assert_eq!(guard.block_since(), None);
    }

    #[test]
    fn the_connections_window() {
        let mut guard = begun();
        let mut bytes = frame(WINDOW_UPDATE, 0, &[0x80, 1, 0, 2]);
        guard.observe(&bytes, 0).unwrap();
        assert_eq!(guard.opened, 0, "it is a stream's");
        bytes[8] = 0;
        for piece in bytes.chunks(5) {
            guard.observe(piece, 0).unwrap();
        }
        assert_eq!(guard.opened, 0x1_0002);
    }

    #[test]
    fn priority_updates() {
        let mut guard = begun();
        guard.observe(&frame(PRIORITY_UPDATE, 0, b"\0\0\0\x05u=1, i"), 0).unwrap();
        guard.observe(&frame(PRIORITY_UPDATE, 0, b"\0\0"), 0).unwrap();
        guard.observe(&frame(PRIORITY_UPDATE, 0, &[b'x'; 500]), 0).unwrap();
        assert_eq!(guard.updates[0], (5, Priority { urgency: 1, incremental: true }));
        assert!(guard.updates.len() <= 2);
    }
}
