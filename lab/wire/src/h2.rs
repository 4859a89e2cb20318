//! HTTP/2 from the client's side (RFC 9113), sans-IO. The caller gives each request an operation of any type `T` and gets it back
//! with the outcome.
//!
//! ```text
//!   start ──HEADERS──► Open ──DATA… as windows allow──► Sent ──END_STREAM from the server──► Done
//!                        └────────── RST_STREAM, GOAWAY below its number ──────────► Failed
//! ```
//!
//! Requests are encoded field sections with frames around them; of responses the status and the end are
//! read. Windows for what we receive are so large that they need an update once in half a gigabyte.

use std::sync::Arc;

use crate::fields::{self, Coding, Sections};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What we let the server send, per stream and per connection.
const RECEIVE_WINDOW: u32 = 1 << 30;
/// The longest frame that the server may send (RFC 9113 §4.2, the default).
const MAX_FRAME: usize = 16_384;
/// The longest field section that is read.
const MAX_SECTION: usize = 64 * 1024;
/// The window before any settings (RFC 9113 §6.9.2).
const DEFAULT_WINDOW: i64 = 65_535;

// RFC 9113 §6.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// What a connection reports.
#[derive(Debug)]
pub enum Event<T> {
    /// The server's settings have come: its limits are known.
    Settings,
    /// The head of an interim response, for the operation in this slot.
    Interim(usize),
    /// The head of the final response, for the operation in this slot.
    Answer(usize),
    /// A response is complete.
    Done {
        /// The operation.
        op: T,
        /// The status.
        status: u16,
        /// Bytes of content.
        content: u64,
    },
    /// A request was refused or cut off.
    Failed(T, String),
}

/// The server broke the protocol, or ended the connection with an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub String);

fn broken<T>(why: &str) -> Result<T, Broken> {
    Err(Broken(why.to_owned()))
}

#[derive(Debug)]
struct Stream<T> {
    id: u32,
    op: T,
    status: u16,
    /// What the server still lets us send on it.
    window: i64,
    body: Arc<[u8]>,
    sent: usize,
    /// Bytes since the last window update.
    received: u32,
    /// Bytes of content.
    content: u64,
}

/// A connection.
#[derive(Debug)]
pub struct Client<T> {
    /// Bytes to be sent.
    pub out: Vec<u8>,
    /// A frame that has not come whole yet.
    partial: Vec<u8>,
    streams: Vec<Stream<T>>,
    next_id: u32,
    /// The most streams at once that we want…
    wanted: usize,
    /// …and may have.
    limit: usize,
    window: i64,
    initial_window: i64,
    max_frame: usize,
    received: u32,
    /// The stream whose field section continues, with whether it ends the stream.
    section: Option<(u32, bool)>,
    section_bytes: Vec<u8>,
    /// The shared fields are in the server's table.
    indexed: bool,
    /// The server's table is too small for them.
    unindexed: bool,
    /// The next field section has to say that the table is no longer used (RFC 7541 §4.2).
    resize: bool,
    settled: bool,
    leaving: bool,
}

impl<T> Client<T> {
    /// A new connection: the preface waits in `out`.
    pub fn new(streams: usize) -> Self {
        let mut out = Vec::with_capacity(512);
        out.extend_from_slice(PREFACE);
        frame(&mut out, 18, SETTINGS, 0, 0);
        // HEADER_TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW_SIZE.
        for (id, value) in [(1u16, 0u32), (2, 0), (4, RECEIVE_WINDOW)] {
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&value.to_be_bytes());
        }
        frame(&mut out, 4, WINDOW_UPDATE, 0, 0);
        out.extend_from_slice(&(RECEIVE_WINDOW - 65_535).to_be_bytes());
        Self {
            out,
            partial: Vec::new(),
            streams: Vec::with_capacity(streams),
            next_id: 1,
            wanted: streams,
            limit: streams,
            window: DEFAULT_WINDOW,
            initial_window: DEFAULT_WINDOW,
            max_frame: MAX_FRAME,
            received: 0,
            section: None,
            section_bytes: Vec::new(),
            indexed: false,
            unindexed: false,
            resize: false,
            settled: false,
            leaving: false,
        }
    }

    /// Whether another request may start.
    #[inline]
    pub fn has_room(&self) -> bool {
        !self.leaving && self.streams.len() < self.limit && self.next_id < 1 << 31
    }

    /// Whether the connection takes no more requests, ever.
    #[inline]
    pub fn leaving(&self) -> bool {
        self.leaving || self.next_id >= 1 << 31
    }

    /// Requests under way.
    #[inline]
    pub fn active(&self) -> usize {
        self.streams.len()
    }

    /// The operations under way.
    pub fn operations(&self) -> impl Iterator<Item = &T> {
        self.streams.iter().map(|s| &s.op)
    }

    /// Bytes of content so far of all responses under way.
    pub fn content(&self) -> u64 {
        self.streams.iter().map(|s| s.content).sum()
    }

    /// Takes the operations under way: the connection is lost.
    pub fn abandon(&mut self) -> Vec<T> {
        self.streams.drain(..).map(|s| s.op).collect()
    }

    /// The operation in a slot, for changes.
    pub fn op(&mut self, slot: usize) -> Option<&mut T> {
        self.streams.get_mut(slot).map(|s| &mut s.op)
    }

    /// Starts a request. Before the server's settings are known, `early`, its table is not used.
    pub fn start(&mut self, request: &Sections, body: &Arc<[u8]>, op: T) {
        let id = self.next_id;
        self.next_id += 2;
        let section = match (self.settled && !self.unindexed, self.indexed) {
            (false, _) => &request.plain,
            (true, false) => {
                self.indexed = true;
                &request.first
            }
            (true, true) => &request.next,
        };
        let mut resized = Vec::new();
        let section: &[u8] = if std::mem::take(&mut self.resize) {
            resized.push(0x20);
            resized.extend_from_slice(section);
            &resized
        } else {
            section
        };
        let end = if body.is_empty() { END_STREAM } else { 0 };
        let mut chunks = section.chunks(self.max_frame).peekable();
        let mut kind = HEADERS;
        while let Some(chunk) = chunks.next() {
            let last = if chunks.peek().is_none() { END_HEADERS } else { 0 };
            frame(&mut self.out, chunk.len(), kind, last | if kind == HEADERS { end } else { 0 }, id);
            self.out.extend_from_slice(chunk);
            kind = CONTINUATION;
        }
        self.streams.push(Stream {
            id,
            op,
            status: 0,
            window: self.initial_window,
            body: body.clone(),
            sent: 0,
            received: 0,
            content: 0,
        });
        if end == 0 {
            self.send_bodies();
        }
    }

    /// Sends as much of the bodies as the windows allow.
    fn send_bodies(&mut self) {
        for s in &mut self.streams {
            while s.sent < s.body.len() {
                let room = s.window.min(self.window).max(0) as usize;
                let n = (s.body.len() - s.sent).min(room).min(self.max_frame);
                if n == 0 {
                    break;
                }
                let end = if s.sent + n == s.body.len() { END_STREAM } else { 0 };
                frame(&mut self.out, n, DATA, end, s.id);
                self.out.extend_from_slice(&s.body[s.sent..s.sent + n]);
                s.sent += n;
                s.window -= n as i64;
                self.window -= n as i64;
            }
        }
    }

    /// Takes in bytes from the server.
    pub fn receive(&mut self, mut bytes: &[u8], events: &mut Vec<Event<T>>) -> Result<(), Broken> {
        if !self.partial.is_empty() {
            // Complete the frame that was cut, first its header, then its payload.
            while !bytes.is_empty() {
                let wanted = match frame_length(&self.partial)? {
                    None => 9 - self.partial.len(),
                    Some(len) => 9 + len - self.partial.len(),
                };
                let n = wanted.min(bytes.len());
                self.partial.extend_from_slice(&bytes[..n]);
                bytes = &bytes[n..];
                if frame_length(&self.partial)?.is_some_and(|len| self.partial.len() == 9 + len) {
                    let whole = std::mem::take(&mut self.partial);
                    let handled = self.handle_frame(&whole, events);
                    self.partial = whole;
                    self.partial.clear();
                    handled?;
                    break;
                }
            }
        }
        while let Some(len) = frame_length(bytes)? {
            let Some(whole) = bytes.get(..9 + len) else { break };
            self.handle_frame(whole, events)?;
            bytes = &bytes[9 + len..];
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }

    fn handle_frame(&mut self, frame_bytes: &[u8], events: &mut Vec<Event<T>>) -> Result<(), Broken> {
        let (kind, flags) = (frame_bytes[3], frame_bytes[4]);
        let id = u32::from_be_bytes([frame_bytes[5], frame_bytes[6], frame_bytes[7], frame_bytes[8]]) & 0x7fff_ffff;
        let payload = &frame_bytes[9..];
        // RFC 9113 §6.10: nothing may come between the parts of a field section.
        if self.section.is_some_and(|(stream, _)| kind != CONTINUATION || stream != id) {
            return broken("a field section was interrupted");
        }
        match kind {
            DATA => self.handle_data(id, flags, payload, events),
            HEADERS => {
                let mut section = unpadded(payload, flags)?;
                if flags & PRIORITY != 0 {
                    section = section.get(5..).ok_or_else(|| Broken("HEADERS too short".to_owned()))?;
                }
                let end = flags & END_STREAM != 0;
                if flags & END_HEADERS != 0 {
                    return self.handle_section(id, end, section, events);
                }
                self.section = Some((id, end));
                self.section_bytes.clear();
                self.section_bytes.extend_from_slice(section);
                Ok(())
            }
            CONTINUATION => {
                let Some((_, end)) = self.section else { return broken("CONTINUATION without HEADERS") };
                if self.section_bytes.len() + payload.len() > MAX_SECTION {
                    return broken("a field section beyond 64 KiB");
                }
                self.section_bytes.extend_from_slice(payload);
                if flags & END_HEADERS == 0 {
                    return Ok(());
                }
                self.section = None;
                let section = std::mem::take(&mut self.section_bytes);
                let handled = self.handle_section(id, end, &section, events);
                self.section_bytes = section;
                handled
            }
            RST_STREAM => {
                let code = code(payload)?;
                if let Some(at) = self.find(id) {
                    let s = self.streams.swap_remove(at);
                    events.push(Event::Failed(s.op, format!("stream reset by the server, {}", error_name(code))));
                }
                Ok(())
            }
            SETTINGS => self.handle_settings(flags, payload, events),
            PUSH_PROMISE => broken("PUSH_PROMISE, which was switched off"),
            PING if flags & ACK == 0 => {
                if payload.len() != 8 {
                    return broken("PING of the wrong length");
                }
                frame(&mut self.out, 8, PING, ACK, 0);
                self.out.extend_from_slice(payload);
                Ok(())
            }
            GOAWAY => {
                let last = code(payload)? & 0x7fff_ffff;
                let error = code(payload.get(4..).unwrap_or_default())?;
                self.leaving = true;
                let mut at = 0;
                while at < self.streams.len() {
                    if self.streams[at].id > last {
                        let s = self.streams.swap_remove(at);
                        events.push(Event::Failed(
                            s.op,
                            format!("connection ended by the server, {}", error_name(error)),
                        ));
                    } else {
                        at += 1;
                    }
                }
                Ok(())
            }
            WINDOW_UPDATE => {
                let more = i64::from(code(payload)? & 0x7fff_ffff);
                if id == 0 {
                    self.window += more;
                } else if let Some(at) = self.find(id) {
                    self.streams[at].window += more;
                }
                self.send_bodies();
                Ok(())
            }
            // RFC 9113 §5.5: what is unknown is ignored.
            _ => Ok(()),
        }
    }

    fn handle_data(&mut self, id: u32, flags: u8, payload: &[u8], events: &mut Vec<Event<T>>) -> Result<(), Broken> {
        // RFC 9113 §6.9: padding counts.
        let n = payload.len() as u32;
        let content = unpadded(payload, flags)?.len() as u64;
        self.received += n;
        if self.received >= RECEIVE_WINDOW / 2 {
            window_update(&mut self.out, 0, self.received);
            self.received = 0;
        }
        let Some(at) = self.find(id) else { return Ok(()) };
        let s = &mut self.streams[at];
        if s.status == 0 {
            return broken("DATA before HEADERS");
        }
        s.content += content;
        if flags & END_STREAM != 0 {
            self.end(at, events);
            return Ok(());
        }
        s.received += n;
        if s.received >= RECEIVE_WINDOW / 2 {
            window_update(&mut self.out, id, s.received);
            s.received = 0;
        }
        Ok(())
    }

    fn handle_section(&mut self, id: u32, end: bool, section: &[u8], events: &mut Vec<Event<T>>) -> Result<(), Broken> {
        let status = fields::status(Coding::Hpack, section).map_err(|e| Broken(e.0.to_owned()))?;
        let Some(at) = self.find(id) else { return Ok(()) };
        let s = &mut self.streams[at];
        match (s.status, status) {
            (0, 0) => return broken("a response without :status"),
            // RFC 9113 §8.1: interim responses, the final one follows.
            (0, 100..200) if end => return broken("an interim response that ends its stream"),
            (0, 100..200) => {
                events.push(Event::Interim(at));
                return Ok(());
            }
            (0, _) => {
                s.status = status;
                events.push(Event::Answer(at));
            }
            // Trailers.
            (_, _) if !end => return broken("trailers that do not end their stream"),
            (_, _) => {}
        }
        if end {
            self.end(at, events);
        }
        Ok(())
    }

    fn end(&mut self, at: usize, events: &mut Vec<Event<T>>) {
        let s = self.streams.swap_remove(at);
        if s.sent < s.body.len() {
            // RFC 9113 §8.1: an answer before the request was all sent; what is left is given up.
            frame(&mut self.out, 4, RST_STREAM, 0, s.id);
            self.out.extend_from_slice(&8u32.to_be_bytes());
        }
        events.push(Event::Done { op: s.op, status: s.status, content: s.content });
    }

    fn handle_settings(&mut self, flags: u8, payload: &[u8], events: &mut Vec<Event<T>>) -> Result<(), Broken> {
        if flags & ACK != 0 {
            return Ok(());
        }
        if !payload.len().is_multiple_of(6) {
            return broken("SETTINGS of the wrong length");
        }
        for setting in payload.chunks_exact(6) {
            let id = u16::from_be_bytes([setting[0], setting[1]]);
            let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
            match id {
                // A smaller table than the default one: do without.
                1 if value < 4096 => {
                    self.resize = !self.unindexed;
                    self.unindexed = true;
                }
                3 => self.limit = self.wanted.min(value as usize),
                4 => {
                    let window = i64::from(value);
                    if window > 0x7fff_ffff {
                        return broken("a window beyond 2^31 - 1");
                    }
                    for s in &mut self.streams {
                        s.window += window - self.initial_window;
                    }
                    self.initial_window = window;
                }
                5 if (MAX_FRAME..1 << 24).contains(&(value as usize)) => self.max_frame = value as usize,
                _ => {}
            }
        }
        frame(&mut self.out, 0, SETTINGS, ACK, 0);
        self.settled = true;
        self.send_bodies();
        events.push(Event::Settings);
        Ok(())
    }

    fn find(&self, id: u32) -> Option<usize> {
        self.streams.iter().position(|s| s.id == id)
    }
}

/// Appends a frame's header.
fn frame(out: &mut Vec<u8>, len: usize, kind: u8, flags: u8, stream: u32) {
    out.extend_from_slice(&(len as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

fn window_update(out: &mut Vec<u8>, stream: u32, more: u32) {
    frame(out, 4, WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&more.to_be_bytes());
}

/// The payload's length, once three bytes of the header are there.
fn frame_length(bytes: &[u8]) -> Result<Option<usize>, Broken> {
    if bytes.len() < 9 {
        return Ok(None);
    }
    let len = usize::from(bytes[0]) << 16 | usize::from(bytes[1]) << 8 | usize::from(bytes[2]);
    if len > MAX_FRAME { broken("a frame beyond 16 KiB") } else { Ok(Some(len)) }
}

fn unpadded(payload: &[u8], flags: u8) -> Result<&[u8], Broken> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let padding = usize::from(*payload.first().ok_or_else(|| Broken("no padding length".to_owned()))?);
    let end = payload.len().checked_sub(padding).filter(|end| *end >= 1);
    end.map(|end| &payload[1..end]).ok_or_else(|| Broken("more padding than frame".to_owned()))
}

fn code(payload: &[u8]) -> Result<u32, Broken> {
    match payload {
        [a, b, c, d, ..] => Ok(u32::from_be_bytes([*a, *b, *c, *d])),
        _ => broken("a frame that is too short"),
    }
}

/// RFC 9113 §7.
fn error_name(code: u32) -> String {
    const NAMES: [&str; 14] = [
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
        "INADEQUATE_SECURITY",
        "HTTP_1_1_REQUIRED",
    ];
    NAMES.get(code as usize).map_or_else(|| format!("error {code:#x}"), |name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;

    fn ask(client: &mut Client<u32>, op: u32, body: &[u8]) {
        let get = Request { method: "GET", tls: true, authority: "a".into(), path: "/", headers: &[], body };
        client.start(&fields::encode(Coding::Hpack, &get), &Arc::from(body), op);
    }

    fn server(frames: &[(u8, u8, u32, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (kind, flags, stream, payload) in frames {
            frame(&mut out, payload.len(), *kind, *flags, *stream);
            out.extend_from_slice(payload);
        }
        out
    }

    /// What the client reports, whether the bytes come at once or one by one.
    fn report(frames: &[(u8, u8, u32, &[u8])]) -> Result<Vec<String>, Broken> {
        let bytes = server(frames);
        let mut all = Vec::new();
        for size in [bytes.len(), 1] {
            let mut client = Client::new(2);
            ask(&mut client, 7, b"");
            ask(&mut client, 8, b"");
            let mut events = Vec::new();
            for piece in bytes.chunks(size) {
                client.receive(piece, &mut events)?;
            }
            all.push(events.iter().map(|event| format!("{event:?}")).collect::<Vec<_>>());
        }
        assert_eq!(all[0], all[1]);
        Ok(all.remove(0))
    }

    #[test]
    fn the_first_request_goes_out_with_the_preface_in_every_connection_alike() {
        let sent = |op| {
            let mut client = Client::new(1);
            ask(&mut client, op, b"");
            client.out
        };
        assert!(sent(1).starts_with(PREFACE));
        assert_eq!(sent(1)[PREFACE.len()..][..9], [0, 0, 18, SETTINGS, 0, 0, 0, 0, 0]);
        assert_eq!(sent(1), sent(2));
    }

    #[test]
    fn responses_have_status_content_and_an_end() {
        let said = report(&[
            (SETTINGS, 0, 0, &[]),
            // 103, then 200, content of 3 bytes with padding of 2, trailers.
            (HEADERS, END_HEADERS, 1, b"\x08\x03103"),
            (HEADERS, END_HEADERS, 1, &[0x88]),
            (DATA, PADDED, 1, b"\x02abc\0\0"),
            (HEADERS, END_HEADERS | END_STREAM, 3, &[0x8d]),
            (HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x01t\x01x"),
        ]);
        let done = |op, status, content| format!("Done {{ op: {op}, status: {status}, content: {content} }}");
        let said = said.unwrap();
        assert_eq!(said[..3], ["Settings", "Interim(0)", "Answer(0)"]);
        assert_eq!(said[4..], [done(8, 404, 0), done(7, 200, 3)]);
    }

    #[test]
    fn resets_and_goaway_fail_what_they_concern() {
        let said = report(&[(RST_STREAM, 0, 1, &[0, 0, 0, 7]), (GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 11])]).unwrap();
        assert!(said[0].contains("Failed(7") && said[0].contains("REFUSED_STREAM"), "{said:?}");
        assert!(said[1].contains("Failed(8") && said[1].contains("ENHANCE_YOUR_CALM"), "{said:?}");
    }

    #[test]
    fn what_breaks_the_protocol_is_refused() {
        let long = [0; MAX_FRAME + 1];
        for frames in [
            &[(DATA, 0, 1, &b"x"[..])][..],
            &[(PUSH_PROMISE, 0, 1, &[0; 4])],
            &[(CONTINUATION, END_HEADERS, 1, &[0x88])],
            &[(HEADERS, 0, 1, &[0x88]), (DATA, 0, 1, b"x")],
            &[(HEADERS, END_HEADERS | PADDED, 1, &[3, 7, 0])],
            &[(HEADERS, END_HEADERS | PRIORITY, 1, &[1, 2])],
            &[(SETTINGS, 0, 0, &[1])],
            &[(DATA, 0, 1, &long)],
        ] {
            assert!(report(frames).is_err(), "{frames:?}");
        }
    }
}
