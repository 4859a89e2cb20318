//! Access log lines, formatted by the lane and handed over in batches.
//!
//! The combined format that NGINX and Apache write, then: duration in seconds, TLS version (`-` without), bytes
//! received, upstream server, SHA-256 fingerprint of the client's certificate.

use crate::clock::Clock;
use crate::conn::Client;
use crate::exchange::Exchange;
use sealane_http::Known;
use sealane_http::h1::encode_decimal;
use std::io::Write;

/// Where finished lines go: takes a buffer of whole lines, and gives an empty one back. It never blocks; what its
/// writer cannot take in time it drops and counts.
pub type LogSink = Box<dyn FnMut(Vec<u8>) -> Vec<u8> + Send>;

/// Lines are handed over when there are this many bytes, or after [`FLUSH_MS`].
const BATCH: usize = 32 * 1024;
pub(crate) const FLUSH_MS: u64 = 256;

pub(crate) struct AccessLog {
    buffer: Vec<u8>,
    sink: Option<LogSink>,
    pub due: u64,
}

impl AccessLog {
    pub fn new(sink: Option<LogSink>) -> Self {
        Self { buffer: Vec::new(), sink, due: 0 }
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        self.sink.is_some()
    }

    /// Appends the line of a finished exchange. Says whether the buffer was empty before.
    pub fn line(
        &mut self,
        x: &Exchange,
        client: &Client,
        tls: Option<sealane_tls::policy::Version>,
        clock: &Clock,
        now: u64,
    ) -> bool {
        let first = self.buffer.is_empty();
        let b = &mut self.buffer;
        b.extend_from_slice(client.peer_text.as_bytes());
        b.extend_from_slice(b" - - [");
        b.extend_from_slice(clock.log.as_bytes());
        b.extend_from_slice(b"] \"");
        escape(b, x.request.method_name());
        b.push(b' ');
        escape(b, x.request.target());
        b.push(b' ');
        b.extend_from_slice(x.request.version.name().as_bytes());
        b.extend_from_slice(b"\" ");
        encode_decimal(b, u64::from(x.status));
        b.push(b' ');
        encode_decimal(b, x.down.bytes);
        for known in [Known::Referer, Known::UserAgent] {
            b.extend_from_slice(b" \"");
            match x.request.fields.get(known) {
                Some(value) => escape(b, value),
                None => b.push(b'-'),
            }
            b.push(b'"');
        }
        let elapsed = x.lingers.unwrap_or(now).saturating_sub(x.started);
        b.push(b' ');
        encode_decimal(b, elapsed / 1000);
        let millis = elapsed % 1000;
        b.extend_from_slice(&[b'.', b'0' + (millis / 100) as u8, b'0' + (millis / 10 % 10) as u8]);
        b.push(b'0' + (millis % 10) as u8);
        b.extend_from_slice(match tls {
            None => b" - ".as_slice(),
            Some(sealane_tls::policy::Version::Tls13) => b" TLSv1.3 ".as_slice(),
            Some(sealane_tls::policy::Version::Tls12) => b" TLSv1.2 ".as_slice(),
        });
        encode_decimal(b, x.up.bytes);
        b.push(b' ');
        match x.upstream.as_ref().and_then(|u| u.upstream.servers.get(x.server)) {
            Some(server) => b.extend_from_slice(server.name.as_bytes()),
            None => b.push(b'-'),
        }
        b.push(b' ');
        b.extend_from_slice(client.cert.as_ref().map_or(b"-", |c| c.fingerprint.as_bytes()));
        b.push(b'\n');
        first
    }

    /// Hands the lines over if there are many, or if `all`.
    pub fn hand_over(&mut self, all: bool) {
        if self.buffer.is_empty() || (!all && self.buffer.len() < BATCH) {
            return;
        }
        if let Some(sink) = &mut self.sink {
            self.buffer = sink(std::mem::take(&mut self.buffer));
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_can_forge_a_line() {
        let mut out = Vec::new();
        escape(&mut out, b"a\"b\\c\nd\x80");
        assert_eq!(out, b"a\\x22b\\x5Cc\\x0Ad\\x80");
    }
}
