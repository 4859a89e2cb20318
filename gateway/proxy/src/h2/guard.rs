//! The cost of a client's frames, counted as they come, before `h2` sees them.
//!
//! `h2` bounds its memory (pending resets, header blocks), and the guard bounds what is spent: a client may send frames that
//! carry nothing (PING, SETTINGS, PRIORITY, RST_STREAM, WINDOW_UPDATE) only so often. Each kind has an allowance that fills
//! up again with time, and credit for what calls for such frames: each DATA frame that the client gets may be followed by a
//! PING (gRPC clients measure the path while data arrives) and by WINDOW_UPDATEs of the stream and of the connection; each
//! request may be reset once. Requests that are wasted by resets have a budget of their own (`crate::exchange::waste`).
//! PRIORITY_UPDATE (RFC 9218 §7.1) is read here too, since `h2` drops it, and the connection's WINDOW_UPDATE, since `h2`
//! keeps it to itself.

use super::backlog::Backlog;
use super::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, Event, Frames, HEADERS, Header, PRIORITY_UPDATE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE,
};
use super::trailers::BlockWatch;
use crate::exchange::priority::Priority;
use crate::exchange::waste::Flood;
use sealane_lane::Millis;

/// The client's first bytes (RFC 9113 §3.4).
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// WINDOW_UPDATEs that a DATA frame calls for: of its stream and of the connection, and the same again, since clients may
/// update ahead of need.
const UPDATES_PER_DATA: u32 = 4;
/// Time after which each allowance has grown by a whole number.
const REFILL_STEP: Millis = 20;
/// Most credit that is kept. Frames that are still on their way to the client have earned theirs already.
const MOST_CREDIT: u32 = 1 << 20;

/// An allowance.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: u32,
    most: u32,
    per_second: u32,
    /// Earned by what was sent or received; time adds nothing to it.
    credit: u32,
}

impl Bucket {
    const fn new(most: u32, per_second: u32) -> Self {
        Self { left: most, most, per_second, credit: 0 }
    }

    fn take(&mut self) -> Result<(), Flood> {
        match self.credit.checked_sub(1) {
            Some(credit) => self.credit = credit,
            None => self.left = self.left.checked_sub(1).ok_or(Flood)?,
        }
        Ok(())
    }

    fn refill(&mut self, elapsed: Millis) {
        let grown = elapsed * u64::from(self.per_second) / 1000;
        self.left = u64::from(self.left).saturating_add(grown).min(u64::from(self.most)) as u32;
    }

    fn earn(&mut self, n: u32) {
        self.credit = self.credit.saturating_add(n).min(MOST_CREDIT);
    }
}

/// What the client must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Too much of something.
    Flood,
    /// A PRIORITY_UPDATE that is sent on a stream, or that is for the connection (RFC 9218 §7.1).
    PriorityUpdate,
}

impl From<Flood> for Fault {
    fn from(_: Flood) -> Self {
        Self::Flood
    }
}

/// Reads a client's frames.
pub(crate) struct Guard {
    /// Bytes of the preface that are still to come.
    preface: u8,
    frames: Frames,
    costs: Costs,
}

/// What the frames have come to.
struct Costs {
    /// PING, SETTINGS, PRIORITY, resets beyond one per request, and unknown frames.
    control: Bucket,
    resets: Bucket,
    windows: Bucket,
    filled: Millis,
    /// Since when a header block has been coming.
    block_since: Option<Millis>,
    /// The client knows our SETTINGS.
    settled: bool,
    backlog: Backlog,
    trailers: BlockWatch,
    /// Priorities that were changed, by stream.
    updates: Vec<(u32, Priority)>,
    /// By how much the client has opened the connection's window.
    opened: u64,
}

impl Guard {
    pub fn new(now: Millis) -> Self {
        let costs = Costs {
            // Browsers send a handful at the start.
            control: Bucket::new(200, 50),
            resets: Bucket::new(0, 0),
            windows: Bucket::new(4000, 400),
            filled: now,
            block_since: None,
            settled: false,
            backlog: Backlog::default(),
            trailers: BlockWatch::of_client(),
            updates: Vec::new(),
            opened: 0,
        };
        Self { preface: PREFACE.len() as u8, frames: Frames::new(), costs }
    }

    /// DATA frames for these bytes of a response have been given to `h2`. `narrow`: the client's window was too small for
    /// more, so that the number of frames is the client's doing and earns nothing.
    pub fn sent_data(&mut self, bytes: usize, narrow: bool) {
        let Costs { control, windows, .. } = &mut self.costs;
        windows.earn(bytes as u32 / 128);
        if !narrow {
            control.earn(1);
            windows.earn(UPDATES_PER_DATA);
        }
    }

    /// Since when the client has been sending a header block, or nothing of its preface.
    pub fn block_since(&self) -> Option<Millis> {
        self.costs.block_since
    }

    /// Whether the client knows our SETTINGS, and with them how many streams it may open.
    pub fn is_settled(&self) -> bool {
        self.costs.settled
    }

    /// Priorities that were changed, by stream.
    pub fn updates(&mut self) -> &mut Vec<(u32, Priority)> {
        &mut self.costs.updates
    }

    /// By how much the client has opened the connection's window since this was last taken.
    pub fn take_opened(&mut self) -> u64 {
        std::mem::take(&mut self.costs.opened)
    }

    /// The small DATA frames that may wait in `h2`.
    pub fn backlog(&mut self) -> &mut Backlog {
        &mut self.costs.backlog
    }

    /// The blocks of trailers.
    pub fn trailers(&mut self) -> &mut BlockWatch {
        &mut self.costs.trailers
    }

    /// All counts as text: two guards that have read the same bytes have the same. For `crate::fuzzing`.
    pub fn counted(&self) -> String {
        let Costs { control, resets, windows, block_since, settled, backlog, updates, opened, .. } = &self.costs;
        format!("{control:?} {resets:?} {windows:?} {block_since:?} {settled} {backlog:?} {updates:?} {opened}")
    }

    /// Looks at bytes, in any pieces.
    pub fn observe(&mut self, mut bytes: &[u8], now: Millis) -> Result<(), Fault> {
        let Self { preface, frames, costs } = self;
        // In steps of which rounding takes nothing.
        let elapsed = now.saturating_sub(costs.filled) / REFILL_STEP * REFILL_STEP;
        if elapsed > 0 {
            costs.filled += elapsed;
            for bucket in [&mut costs.control, &mut costs.windows] {
                bucket.refill(elapsed);
            }
        }
        let begins = bytes.len().min(usize::from(*preface));
        *preface -= begins as u8;
        bytes = &bytes[begins..];
        frames.read(bytes, |event| match event {
            Event::Begins(header) => costs.begin(header, now),
            Event::Block(piece) => {
                costs.trailers.piece(piece);
                Ok(())
            }
            Event::Ends(header, payload) => costs.end(header, payload),
        })
    }
}

impl Costs {
    fn begin(&mut self, header: Header, now: Millis) -> Result<(), Fault> {
        match header.kind {
            DATA => self.backlog.note(header),
            HEADERS | CONTINUATION => {
                // Its last frame ends it; until then its time runs.
                self.block_since.get_or_insert(now);
                self.trailers.begin(header);
                if header.kind == HEADERS {
                    self.resets.earn(1);
                }
            }
            RST_STREAM if self.resets.take().is_ok() => {}
            WINDOW_UPDATE => self.windows.take()?,
            // RFC 9218 §7.1.
            PRIORITY_UPDATE if header.stream != 0 => return Err(Fault::PriorityUpdate),
            // PRIORITY, SETTINGS, PING, PRIORITY_UPDATE, and what is unknown.
            _ => self.control.take()?,
        }
        Ok(())
    }

    fn end(&mut self, header: Header, payload: &[u8]) -> Result<(), Fault> {
        let number = |bytes: &[u8; 4]| u32::from_be_bytes(*bytes) & 0x7fff_ffff;
        match (header.kind, payload.split_first_chunk::<4>()) {
            (HEADERS | CONTINUATION, _) if header.flags & END_HEADERS != 0 => {
                self.block_since = None;
                self.trailers.end(header);
            }
            (SETTINGS, _) if header.flags & ACK != 0 => self.settled = true,
            (PRIORITY_UPDATE, Some((id, _))) if number(id) == 0 => return Err(Fault::PriorityUpdate),
            (PRIORITY_UPDATE, Some((id, value))) => self.updates.push((number(id), Priority::parse(value))),
            (WINDOW_UPDATE, Some((more, []))) if header.stream == 0 => self.opened += u64::from(number(more)),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::frames::tests::frame;
    use super::super::frames::{HAS_PRIORITY, PADDED};
    use super::*;

    const PING: u8 = 6;

    #[test]
    fn pseudo_fields_in_trailers() {
        let headers = |flags: u8, stream: u8, payload: &[u8]| {
            let mut bytes = frame(HEADERS, flags, payload);
            bytes[8] = stream;
            bytes
        };
        for (trailers, malformed) in [
            (headers(END_HEADERS, 1, &[0x84]), Some(true)),
            (headers(END_HEADERS, 1, &[0x8f]), Some(false)),
            // Padding and priority are no fields.
            (headers(END_HEADERS | PADDED, 1, &[2, 0x8f, 0x84, 0x84]), Some(false)),
            (
                headers(END_HEADERS | PADDED | HAS_PRIORITY, 1, &[1, 0x84, 0x84, 0x84, 0x84, 0x84, 0x8f, 0x84]),
                Some(false),
            ),
            (headers(END_HEADERS | PADDED | HAS_PRIORITY, 1, &[1, 0, 0, 0, 0, 0, 0x84, 0]), Some(true)),
            ([headers(0, 1, &[0x8f]), frame(CONTINUATION, END_HEADERS, &[0x84])].concat(), Some(true)),
            ([headers(0, 1, &[0x04]), frame(CONTINUATION, END_HEADERS, &[1, b'/'])].concat(), Some(true)),
            // A request's.
            (headers(END_HEADERS, 3, &[0x84]), None),
        ] {
            for piece in 1..12 {
                let mut guard = begun();
                guard.observe(&headers(END_HEADERS, 1, &[0x82, 0x84]), 0).unwrap();
                trailers.chunks(piece).for_each(|bytes| guard.observe(bytes, 0).unwrap());
                // A block that is a request's is not noted; in all others each field was dropped.
                let noted = guard.trailers().take(1).map(|noted| {
                    noted.check_trailers(&http::HeaderMap::new(), 0) == Err(sealane_http::ParseError::PseudoField)
                });
                assert_eq!(noted, malformed, "{trailers:02x?} by {piece}");
                assert!(guard.trailers().take(1).is_none() && guard.trailers().take(3).is_none());
            }
        }
    }

    fn begun() -> Guard {
        let mut guard = Guard::new(0);
        guard.observe(PREFACE, 0).unwrap();
        guard
    }

    #[test]
    fn floods_are_seen_in_any_pieces_and_time_heals() {
        for (kind, payload, most) in
            [(PING, &[0; 8][..], 200), (SETTINGS, &[], 200), (RST_STREAM, &[0; 4], 200), (WINDOW_UPDATE, &[0; 4], 4000)]
        {
            let bytes = frame(kind, 0, payload);
            let mut guard = begun();
            for i in 0..most {
                for piece in bytes.chunks(1 + i % 5) {
                    guard.observe(piece, 0).unwrap();
                }
            }
            assert_eq!(guard.observe(&bytes, 0), Err(Fault::Flood), "{kind}");
            guard.observe(&bytes, 1000).unwrap();
        }
    }

    #[test]
    fn data_and_requests_cost_nothing_here() {
        let mut guard = begun();
        let bytes = [
            frame(DATA, 0, &[0; 100]),
            frame(HEADERS, END_HEADERS, &[0; 10]),
            // `crate::exchange::waste` counts the request that it wastes.
            frame(RST_STREAM, 0, &[0; 4]),
        ]
        .concat();
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

    /// As grpc-go and grpcio do while a response of small messages arrives.
    #[test]
    fn data_that_is_sent_pays_for_pings_and_window_updates() {
        let mut guard = begun();
        let update = frame(WINDOW_UPDATE, 0, &[0, 0, 0, 6]);
        let bytes = [frame(PING, 0, &[0; 8]), update.clone(), update].concat();
        for _ in 0..50_000 {
            guard.sent_data(6, false);
            guard.observe(&bytes, 0).unwrap();
        }
    }

    /// A client that opens its window byte by byte pays for each update.
    #[test]
    fn frames_that_the_window_makes_small_earn_nothing() {
        let mut guard = begun();
        let update = frame(WINDOW_UPDATE, 0, &[0, 0, 0, 1]);
        for _ in 0..4_000 {
            guard.sent_data(1, true);
            guard.observe(&update, 0).unwrap();
        }
        assert_eq!(guard.observe(&update, 0), Err(Fault::Flood));
    }

    #[test]
    fn allowances_fill_up_as_fast_as_they_say_whenever_frames_come() {
        for step in [1, 7, 20, 59, 990] {
            let mut guard = begun();
            while guard.costs.control.take().is_ok() {}
            let mut taken = 0;
            for now in (0..=20_000).step_by(step) {
                guard.observe(&[], now).unwrap();
                while guard.costs.control.take().is_ok() {
                    taken += 1;
                }
            }
            assert!((980..=1000).contains(&taken), "{taken} in 20 s, in steps of {step} ms");
        }
    }

    #[test]
    fn the_connections_window() {
        let mut guard = begun();
        let mut bytes = frame(WINDOW_UPDATE, 0, &[0x80, 1, 0, 2]);
        guard.observe(&bytes, 0).unwrap();
        assert_eq!(guard.take_opened(), 0, "it is a stream's");
        bytes[8] = 0;
        for piece in bytes.chunks(5) {
            guard.observe(piece, 0).unwrap();
        }
        assert_eq!(guard.take_opened(), 0x1_0002);
    }

    #[test]
    fn priority_updates() {
        let mut guard = begun();
        let update = |payload: &[u8]| {
            let mut bytes = frame(PRIORITY_UPDATE, 0, payload);
            bytes[8] = 0;
            bytes
        };
        guard.observe(&update(b"\0\0\0\x05u=1, i"), 0).unwrap();
        guard.observe(&update(b"\0\0"), 0).unwrap();
        guard.observe(&update(&[b'x'; 500]), 0).unwrap();
        assert_eq!(guard.updates()[..], [(5, Priority { urgency: 1, incremental: true })]);
        // RFC 9218 §7.1: of no stream, and on a stream.
        assert_eq!(guard.observe(&update(b"\x80\0\0\0u=1"), 0), Err(Fault::PriorityUpdate));
        assert_eq!(begun().observe(&frame(PRIORITY_UPDATE, 0, b"\0\0\0\x05u=1"), 0), Err(Fault::PriorityUpdate));
    }
}
