//! Access log lines, formatted by the lane and handed over in batches.
//!
//! `format` has the formats, `template` the one of the operator's own. Which requests get a line, and what of them is left
//! out, is in [`AccessLogRules`], which come with the snapshot.

pub(crate) mod format;
mod template;

pub use format::{FIELDS, LogFields, LogFormat};
pub use template::{Template, TemplateError};

use crate::clock::Clock;
use crate::exchange::Exchange;
use crate::records::{ConnectionId, Records};
use crate::request_ids::RequestIds;
pub(crate) use format::Entry;
use sealane_lane::Context;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

/// Where finished lines go: takes a buffer of whole lines, and gives an empty one back. It never blocks; what its
/// writer cannot take in time it drops and counts.
pub type LogSink = Box<dyn FnMut(Vec<u8>) -> Vec<u8> + Send>;

/// Which requests get a line, what it looks like, and what is left out of it.
#[derive(Clone, Debug)]
pub struct AccessLogRules {
    /// What a line looks like.
    pub format: LogFormat,
    /// Which fields JSON and logfmt lines have.
    pub fields: LogFields,
    /// Requests with these statuses get a line; empty: all.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// Requests whose path, as their client sent it, begins so get no line.
    pub skip_paths: Vec<String>,
    /// Of the requests with a status below 400, one in so many gets a line.
    pub one_in: u32,
    /// So many leading bits of IPv4 and IPv6 addresses of clients are written, the others as 0.
    pub prefixes: (u8, u8),
    /// Queries are written.
    pub queries: bool,
}

impl Default for AccessLogRules {
    fn default() -> Self {
        Self {
            format: LogFormat::Combined,
            fields: LogFields::default(),
            statuses: Vec::new(),
            skip_paths: Vec::new(),
            one_in: 1,
            prefixes: (32, 128),
            queries: true,
        }
    }
}

impl AccessLogRules {
    /// Whether a request gets a line. `passed` counts those that sampling has left out since the last line.
    fn wants(&self, x: &Exchange, passed: &mut u32) -> bool {
        if !self.statuses.is_empty() && !self.statuses.iter().any(|range| range.contains(&x.status())) {
            return false;
        }
        if self.skip_paths.iter().any(|path| x.request().client_path().starts_with(path.as_bytes())) {
            return false;
        }
        if x.status() >= 400 {
            return true;
        }
        *passed += 1;
        if *passed < self.one_in {
            return false;
        }
        *passed = 0;
        true
    }

    /// An address without the bits that are not written; `None` if all are.
    fn masked(&self, ip: IpAddr) -> Option<IpAddr> {
        let (ipv4, ipv6) = self.prefixes;
        match ip.to_canonical() {
            IpAddr::V4(ip) if ipv4 < 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(ipv4)).unwrap_or(0);
                Some(Ipv4Addr::from_bits(ip.to_bits() & mask).into())
            }
            IpAddr::V6(ip) if ipv6 < 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(ipv6)).unwrap_or(0);
                Some(Ipv6Addr::from_bits(ip.to_bits() & mask).into())
            }
            _ => None,
        }
    }
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
    /// The time of lines, and of responses of our own.
    clock: Clock,
    /// Requests that sampling has left out since the last line.
    passed: u32,
    /// What is reported beside the access log.
    records: Records,
    /// The ids of requests that get one.
    request_ids: RequestIds,
}

impl AccessLog {
    pub fn new(sink: Option<LogSink>, records: Records) -> Self {
        Self {
            buffer: Vec::new(),
            sink,
            due: 0,
            clock: Clock::default(),
            passed: 0,
            records,
            request_ids: RequestIds::default(),
        }
    }

    /// What time it is.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A turn begins: its time.
    pub fn refresh_clock(&mut self, now: u64) {
        self.clock.refresh(now);
    }

    /// The id of a client's connection that begins.
    pub fn next_connection(&mut self) -> ConnectionId {
        self.records.next_connection()
    }

    /// What makes ids for requests.
    pub fn request_ids(&mut self) -> &mut RequestIds {
        &mut self.request_ids
    }

    /// What is reported beside the access log.
    #[inline]
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// The same, to be changed.
    #[inline]
    pub fn records_mut(&mut self) -> &mut Records {
        &mut self.records
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        self.sink.is_some()
    }

    /// Whether a finished exchange gets a line.
    pub fn wants(&mut self, rules: &AccessLogRules, x: &Exchange) -> bool {
        rules.wants(x, &mut self.passed)
    }

    /// Writes the line of a finished exchange, which is handed over with others, or when they have waited for long enough.
    pub fn write(&mut self, cx: &mut Context, rules: &AccessLogRules, entry: &Entry) {
        let first = self.buffer.is_empty();
        format::line(&mut self.buffer, rules, entry, &self.clock);
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
            let entry = Entry { x: &x, client: &client, tls: None, now: 0, request_id: None };
            let rules = AccessLogRules { format: LogFormat::Json, ..AccessLogRules::default() };
            log.write(&mut cx, &rules, &entry);
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
    fn rules_choose_requests() {
        let mut x = Exchange::new(ClientStream::H1(Key::from_u64(1)));
        x.request_mut().set_target(b"/health/live?x").unwrap();
        let mut lines = |rules: &AccessLogRules, status| {
            x.note_status(status);
            let mut passed = 0;
            (0..6).filter(|_| rules.wants(&x, &mut passed)).count()
        };
        let all = AccessLogRules::default();
        assert_eq!(lines(&all, 200), 6);
        assert_eq!(lines(&AccessLogRules { skip_paths: vec!["/health".into()], ..all.clone() }, 500), 0);
        assert_eq!(lines(&AccessLogRules { skip_paths: vec!["/healthy".into()], ..all.clone() }, 500), 6);
        let hidden = AccessLogRules { skip_paths: vec!["/hidden".into()], ..all.clone() };
        let errors = AccessLogRules { statuses: vec![404..=404, 500..=599], ..all.clone() };
        assert_eq!([200, 403, 404, 502].map(|status| lines(&errors, status)), [0, 0, 6, 6]);
        let sampled = AccessLogRules { one_in: 3, ..all };
        assert_eq!([200, 399, 400, 503].map(|status| lines(&sampled, status)), [2, 2, 6, 6]);
        // The path is the client's.
        x.request_mut().rewrite_target(b"/hidden").unwrap();
        assert!(hidden.wants(&x, &mut 0));
    }

    #[test]
    fn addresses_are_cut_at_a_prefix() {
        let masked = |prefixes, ip: &str| {
            let rules = AccessLogRules { prefixes, ..AccessLogRules::default() };
            rules.masked(ip.parse().unwrap()).map(|ip| ip.to_string())
        };
        assert_eq!(masked((32, 128), "192.0.2.77"), None);
        assert_eq!(masked((24, 48), "192.0.2.77").unwrap(), "192.0.2.0");
        assert_eq!(masked((24, 128), "::ffff:192.0.2.77").unwrap(), "192.0.2.0");
        assert_eq!(masked((0, 0), "192.0.2.77").unwrap(), "0.0.0.0");
        assert_eq!(masked((24, 48), "2001:db8:1:2::3").unwrap(), "2001:db8:1::");
        assert_eq!(masked((0, 0), "2001:db8::1").unwrap(), "::");
    }
}
