//! Access log lines, formatted by the lane and handed over in batches.
//!
//! Combined: the format that NGINX and Apache write, then: duration in seconds, TLS version (`-` without), bytes
//! received, upstream server, SHA-256 fingerprint of the client's certificate. JSON: one object per line with the same,
//! the host as well, why the upstream server failed, and `"end":"idle"` where an upgraded or relayed connection was silent
//! for too long; what is absent is left out.

use crate::Failure;
use crate::clock::Clock;
use crate::conn::Client;
use crate::exchange::{Ending, Exchange};
use crate::records::{ConnectionId, Records};
use sealane_http::Known;
use sealane_http::h1::encode_decimal;
use sealane_lane::Context;
use std::io::Write;

/// Where finished lines go: takes a buffer of whole lines, and gives an empty one back. It never blocks; what its
/// writer cannot take in time it drops and counts.
pub type LogSink = Box<dyn FnMut(Vec<u8>) -> Vec<u8> + Send>;

/// What a line looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// As NGINX and Apache write it, with more at the end.
    Combined,
    /// An object per line.
    Json,
}

/// Lines are handed over when there are this many bytes, or after [`FLUSH_MS`].
const BATCH: usize = 32 * 1024;
const FLUSH_MS: u64 = 256;
/// Hands lines over that have waited for long enough.
pub(crate) const LOG_TIMER: u64 = (1 << 63) | (1 << 62);

pub(crate) struct AccessLog {
    buffer: Vec<u8>,
    sink: Option<LogSink>,
    /// When the timer fires.
    due: u64,
    /// What is reported beside the access log.
    records: Records,
}

impl AccessLog {
    pub fn new(sink: Option<LogSink>, records: Records) -> Self {
        Self { buffer: Vec::new(), sink, due: 0, records }
    }

    /// The id of a client's connection that begins.
    pub fn next_connection(&mut self) -> ConnectionId {
        self.records.next_connection()
    }

    /// What is reported beside the access log.
    #[inline]
    pub fn records(&self) -> &Records {
        &self.records
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        self.sink.is_some()
    }

    /// Writes the line of a finished exchange, which is handed over with others, or when they have waited for long enough.
    pub fn write(&mut self, cx: &mut Context, format: LogFormat, entry: &Entry, clock: &Clock) {
        let first = self.buffer.is_empty();
        match format {
            LogFormat::Combined => combined(&mut self.buffer, entry, clock),
            LogFormat::Json => json(&mut self.buffer, entry, clock),
        }
        if first && self.due <= cx.now() {
            self.due = cx.now() + FLUSH_MS;
            cx.timers.arm(LOG_TIMER, self.due);
        }
        self.hand_over(false);
    }

    /// Hands all lines over.
    pub fn flush(&mut self) {
        self.hand_over(true);
    }

    /// Hands the lines over if there are many, or if `all`.
    fn hand_over(&mut self, all: bool) {
        if self.buffer.is_empty() || (!all && self.buffer.len() < BATCH) {
            return;
        }
        if let Some(sink) = &mut self.sink {
            self.buffer = sink(std::mem::take(&mut self.buffer));
        }
    }
}

/// What a line is about.
pub(crate) struct Entry<'e> {
    pub x: &'e Exchange,
    pub client: &'e Client,
    pub tls: Option<sealane_tls::policy::Version>,
    pub now: u64,
}

impl Entry<'_> {
    fn tls_version(&self) -> Option<&'static str> {
        self.tls.map(|version| match version {
            sealane_tls::policy::Version::Tls13 => "TLSv1.3",
            sealane_tls::policy::Version::Tls12 => "TLSv1.2",
        })
    }

    fn upstream_server(&self) -> Option<&str> {
        self.x.upstream.as_ref()?.upstream.servers.get(self.x.server).map(|s| s.name.as_str())
    }

    /// A relayed connection is none of HTTP's.
    fn protocol(&self) -> Option<&'static str> {
        (!self.x.machine.is_relay()).then(|| self.x.request.version.name())
    }

    fn millis(&self) -> u64 {
        self.x.drains_since().unwrap_or(self.now).saturating_sub(self.x.started)
    }
}

/// Seconds with three digits behind the point.
fn seconds(b: &mut Vec<u8>, millis: u64) {
    encode_decimal(b, millis / 1000);
    let rest = millis % 1000;
    b.extend_from_slice(&[b'.', b'0' + (rest / 100) as u8, b'0' + (rest / 10 % 10) as u8, b'0' + (rest % 10) as u8]);
}

fn combined(b: &mut Vec<u8>, entry: &Entry, clock: &Clock) {
    let Entry { x, client, .. } = entry;
    match x.told() {
        // A vector takes all that is written to it.
        Some(ip) => drop(write!(b, "{ip}")),
        None => b.extend_from_slice(client.peer_text.as_bytes()),
    }
    b.extend_from_slice(b" - - [");
    b.extend_from_slice(clock.log());
    b.extend_from_slice(b"] \"");
    escape(b, x.request.method_name());
    b.push(b' ');
    escape(b, x.request.target());
    b.push(b' ');
    b.extend_from_slice(entry.protocol().unwrap_or("-").as_bytes());
    b.extend_from_slice(b"\" ");
    encode_decimal(b, u64::from(x.status));
    b.push(b' ');
    encode_decimal(b, x.response_body.bytes);
    for known in [Known::Referer, Known::UserAgent] {
        b.extend_from_slice(b" \"");
        match x.request.fields.get(known) {
            Some(value) => escape(b, value),
            None => b.push(b'-'),
        }
        b.push(b'"');
    }
    b.push(b' ');
    seconds(b, entry.millis());
    b.push(b' ');
    b.extend_from_slice(entry.tls_version().unwrap_or("-").as_bytes());
    b.push(b' ');
    encode_decimal(b, x.request_body.bytes);
    b.push(b' ');
    b.extend_from_slice(entry.upstream_server().unwrap_or("-").as_bytes());
    b.push(b' ');
    b.extend_from_slice(client.cert.as_ref().map_or(b"-", |c| c.fingerprint.as_bytes()));
    b.push(b'\n');
}

fn json(b: &mut Vec<u8>, entry: &Entry, clock: &Clock) {
    let Entry { x, client, .. } = entry;
    b.extend_from_slice(b"{\"time\":\"");
    b.extend_from_slice(clock.iso());
    b.push(b'"');
    let text = |b: &mut Vec<u8>, name: &str, value: Option<&[u8]>| {
        let Some(value) = value else { return };
        b.extend_from_slice(b",\"");
        b.extend_from_slice(name.as_bytes());
        b.extend_from_slice(b"\":\"");
        escape_json(b, value);
        b.push(b'"');
    };
    let told = x.told().map(|ip| ip.to_string());
    text(b, "remote", Some(told.as_ref().map_or(client.peer_text.as_bytes(), String::as_bytes)));
    text(b, "method", Some(x.request.method_name()));
    text(b, "host", Some(x.request.authority()).filter(|a| !a.is_empty()));
    text(b, "target", Some(x.request.target()));
    text(b, "protocol", entry.protocol().map(str::as_bytes));
    text(b, "tls", entry.tls_version().map(str::as_bytes));
    text(b, "upstream", entry.upstream_server().map(str::as_bytes));
    text(b, "referer", x.request.fields.get(Known::Referer));
    text(b, "user_agent", x.request.fields.get(Known::UserAgent));
    text(b, "client_certificate", client.cert.as_ref().map(|c| c.fingerprint.as_bytes()));
    let failure = x.routed.failure.map(Failure::text);
    text(b, "error", failure.as_ref().map(|f| f.as_bytes()));
    text(b, "denied", x.routed.denied.map(|by| by.name().as_bytes()));
    text(b, "end", (x.ending == Ending::Idle).then_some(b"idle"));
    for (name, number) in
        [("status", u64::from(x.status)), ("bytes_in", x.request_body.bytes), ("bytes_out", x.response_body.bytes)]
    {
        b.extend_from_slice(b",\"");
        b.extend_from_slice(name.as_bytes());
        b.extend_from_slice(b"\":");
        encode_decimal(b, number);
    }
    b.extend_from_slice(b",\"connection\":\"");
    connection_id(b, client.id);
    b.extend_from_slice(b"\",\"request\":\"");
    connection_id(b, client.id);
    b.push(b'-');
    encode_decimal(b, u64::from(x.number));
    b.extend_from_slice(b"\",\"duration\":");
    seconds(b, entry.millis());
    b.extend_from_slice(b"}\n");
}

fn connection_id(b: &mut Vec<u8>, id: ConnectionId) {
    encode_decimal(b, id.slot());
    b.push(b'-');
    encode_decimal(b, id.number());
}

/// What a client has sent must not forge lines: quotes, backslashes and bytes that are not printable ASCII are escaped.
fn escape(out: &mut Vec<u8>, bytes: &[u8]) {
    if bytes.iter().all(|b| matches!(b, b' '..=b'~') && !matches!(b, b'"' | b'\\')) {
        out.extend_from_slice(bytes);
        return;
    }
    for b in bytes {
        match b {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => {
                let _ = write!(out, "\\x{b:02X}");
            }
            _ => out.push(*b),
        }
    }
}

/// RFC 8259 §7. Bytes that are not ASCII stand for the characters of these numbers (Latin-1), so that every line is
/// UTF-8 whatever clients send.
fn escape_json(out: &mut Vec<u8>, bytes: &[u8]) {
    for b in bytes {
        match b {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', *b]),
            0..=0x1f | 0x7f.. => {
                let _ = write!(out, "\\u{b:04x}");
            }
            _ => out.push(*b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::streams::ClientStream;
    use crate::fixtures;
    use sealane_lane::Key;
    use std::sync::{Arc, Mutex};

    #[test]
    fn lines_are_handed_over_together() {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let client = fixtures::client(&settings.listeners()[0], "192.0.2.1:5");
        let x = Exchange::new(ClientStream::H1(Key::from_u64(1)));
        let (handed, mut cx) = (Arc::new(Mutex::new(Vec::new())), Context::new().unwrap());
        let batches = handed.clone();
        let sink = move |lines| {
            batches.lock().unwrap().push(String::from_utf8(lines).unwrap());
            Vec::new()
        };
        let mut log = AccessLog::new(Some(Box::new(sink)), Records::new(0, fixtures::record_sink().0));
        let mut write = |log: &mut AccessLog| {
            let entry = Entry { x: &x, client: &client, tls: None, now: 0 };
            log.write(&mut cx, LogFormat::Json, &entry, &Clock::default());
        };
        write(&mut log);
        write(&mut log);
        assert!(log.is_on() && handed.lock().unwrap().is_empty(), "they wait for more");
        log.flush();
        log.flush();
        let first = std::mem::take(&mut *handed.lock().unwrap());
        assert_eq!((first.len(), first[0].lines().count()), (1, 2));
        while handed.lock().unwrap().is_empty() {
            write(&mut log);
        }
        assert!(handed.lock().unwrap()[0].len() >= BATCH);
        assert_eq!(cx.timers.len(), 1, "one timer for all that wait");
    }

    #[test]
    fn json_strings_are_ascii() {
        let mut out = Vec::new();
        escape_json(&mut out, b"a\"b\\c\nd\xff");
        assert_eq!(out, b"a\\\"b\\\\c\\u000ad\\u00ff");
    }

    #[test]
    fn nothing_can_forge_a_line() {
        let mut out = Vec::new();
        escape(&mut out, b"a\"b\\c\nd\x80");
        assert_eq!(out, b"a\\x22b\\x5Cc\\x0Ad\\x80");
    }
}
