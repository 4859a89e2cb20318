//! What access log lines look like.
//!
//! Combined: the format that NGINX and Apache write, then: duration in seconds, TLS version (`-` without), bytes
//! received, upstream server, SHA-256 fingerprint of the client's certificate. JSON: one object per line with the same,
//! the host and the route as well, why the upstream server failed (`error`), why the gateway refused the request (`denied`), and which
//! time limit has ended it (`end`); what is absent is left out. logfmt: the same as JSON, as `name=value`.

use super::AccessLogRules;
use super::template::Template;
use crate::Failure;
use crate::client::identity::Client;
use crate::clock::Clock;
use crate::exchange::{Ending, Exchange};
use crate::forwarding::group_of;
use crate::records::ConnectionId;
use crate::snapshot::Action;
use sealane_http::Known;
use sealane_http::h1::encode_decimal;
use sealane_lane::Micros;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;

/// What a line looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// As NGINX and Apache write it, with more at the end.
    Combined,
    /// An object per line.
    Json,
    /// `name=value`, separated by spaces.
    Logfmt,
    /// Text with variables that have NGINX's names.
    Template(Arc<Template>),
}

/// What a line is about.
pub(crate) struct Entry<'e> {
    pub x: &'e Exchange,
    pub client: &'e Client,
    pub tls: Option<sealane_tls::policy::Version>,
    pub now: Micros,
    /// With `[request_id]`: the id that the request has.
    pub request_id: Option<&'e [u8]>,
}

impl Entry<'_> {
    pub fn tls_version(&self) -> Option<&'static str> {
        self.tls.map(sealane_tls::policy::Version::name)
    }

    /// The server of the last try; `None` if there was none.
    pub fn upstream_server(&self) -> Option<&str> {
        self.x.routed().tried_since()?;
        self.x.upstream()?.settings().servers.get(self.x.server()).map(|s| s.name.as_str())
    }

    pub fn upstream_name(&self) -> Option<&str> {
        Some(&self.x.upstream()?.settings().name)
    }

    pub fn route(&self) -> Option<&str> {
        self.x.routed().route()?.route().map(|route| route.label.as_str()).filter(|label| !label.is_empty())
    }

    /// The upstream that a copy of the request has gone to.
    pub fn mirror(&self) -> Option<&str> {
        let route = self.x.routed().route().filter(|_| self.x.copying().is_sent())?;
        let Action::Forward(by) = &route.route()?.action else { return None };
        Some(&route.listener().upstreams.get(by.mirror.as_ref()?.upstream)?.settings().name)
    }

    /// A relayed connection is none of HTTP's.
    pub fn protocol(&self) -> Option<&'static str> {
        (!self.x.machine().is_relay()).then(|| self.x.request().version.name())
    }

    pub fn duration(&self) -> Micros {
        self.x.until(self.now).saturating_sub(self.x.times().started)
    }

    /// The time to the head of the response; `None` if there was none.
    pub fn first_byte(&self) -> Option<Micros> {
        (self.x.times().headed > 0).then(|| self.x.times().headed.saturating_sub(self.x.times().started))
    }

    /// The client's address, as far as it is written.
    pub fn address(&self, b: &mut Vec<u8>, rules: &AccessLogRules) {
        let told = self.x.told();
        // What is no address has nothing to mask.
        let address = told.or_else(|| (!self.client.is_unnamed()).then(|| self.client.peer().ip()));
        let written: Option<IpAddr> = address.and_then(|address| rules.masked(address)).or(told);
        match written {
            // A vector takes all that is written to it.
            Some(ip) => drop(write!(b, "{ip}")),
            None => b.extend_from_slice(self.client.peer_text().as_bytes()),
        }
    }

    /// The target as the client sent it, as far as it is written.
    pub fn target(&self, rules: &AccessLogRules) -> &[u8] {
        if rules.queries { self.x.request().client_target() } else { self.x.request().client_path() }
    }

    /// A field of the request, as far as it is written.
    pub fn field(&self, name: &[u8], rules: &AccessLogRules) -> Option<&[u8]> {
        let value = self.x.request().fields.get_named(name)?;
        // The address of a page has a query, too.
        let has_query = !rules.queries && name.eq_ignore_ascii_case(b"referer");
        Some(if has_query { without_query(value) } else { value })
    }

    pub fn fingerprint(&self) -> Option<&str> {
        self.client.cert().map(|c| c.fingerprint.as_str())
    }

    /// Who the client is, if it has shown a password.
    pub fn user(&self) -> Option<&[u8]> {
        self.x.routed().user().map(str::as_bytes)
    }

    pub fn number(&self, b: &mut Vec<u8>) {
        connection_id(b, self.client.id());
        b.push(b'-');
        encode_decimal(b, u64::from(self.x.number()));
    }
}

fn without_query(value: &[u8]) -> &[u8] {
    value.iter().position(|b| *b == b'?').map_or(value, |at| &value[..at])
}

/// Seconds with three digits behind the point.
pub(super) fn seconds(b: &mut Vec<u8>, micros: Micros) {
    encode_decimal(b, micros / 1_000_000);
    let rest = micros / 1000 % 1000;
    b.extend_from_slice(&[b'.', b'0' + (rest / 100) as u8, b'0' + (rest / 10 % 10) as u8, b'0' + (rest % 10) as u8]);
}

/// Seconds with six digits behind the point.
fn exact_seconds(b: &mut Vec<u8>, micros: Micros) {
    seconds(b, micros);
    let rest = micros % 1000;
    b.extend_from_slice(&[b'0' + (rest / 100) as u8, b'0' + (rest / 10 % 10) as u8, b'0' + (rest % 10) as u8]);
}

/// Appends the line of an entry.
pub(super) fn line(b: &mut Vec<u8>, rules: &AccessLogRules, entry: &Entry, clock: &Clock) {
    match &rules.format {
        LogFormat::Combined => combined(b, rules, entry, clock),
        LogFormat::Json => json(b, rules, entry, clock),
        LogFormat::Logfmt => logfmt(b, rules, entry, clock),
        LogFormat::Template(template) => template.render(b, rules, entry, clock),
    }
    b.push(b'\n');
}

fn combined(b: &mut Vec<u8>, rules: &AccessLogRules, entry: &Entry, clock: &Clock) {
    let x = entry.x;
    entry.address(b, rules);
    b.extend_from_slice(b" - ");
    match entry.user() {
        Some(user) => escape_word(b, user),
        None => b.push(b'-'),
    }
    b.extend_from_slice(b" [");
    b.extend_from_slice(clock.log());
    b.extend_from_slice(b"] \"");
    escape(b, x.request().method_name());
    b.push(b' ');
    escape(b, entry.target(rules));
    b.push(b' ');
    b.extend_from_slice(entry.protocol().unwrap_or("-").as_bytes());
    b.extend_from_slice(b"\" ");
    encode_decimal(b, u64::from(x.status()));
    b.push(b' ');
    encode_decimal(b, x.response_body().bytes());
    for name in [&b"referer"[..], b"user-agent"] {
        b.extend_from_slice(b" \"");
        match entry.field(name, rules) {
            Some(value) => escape(b, value),
            None => b.push(b'-'),
        }
        b.push(b'"');
    }
    b.push(b' ');
    seconds(b, entry.duration());
    b.push(b' ');
    b.extend_from_slice(entry.tls_version().unwrap_or("-").as_bytes());
    b.push(b' ');
    encode_decimal(b, x.request_body().bytes());
    b.push(b' ');
    b.extend_from_slice(entry.upstream_server().unwrap_or("-").as_bytes());
    b.push(b' ');
    b.extend_from_slice(entry.fingerprint().unwrap_or("-").as_bytes());
}

/// What a field of a JSON or logfmt line is.
enum Value<'v> {
    Text(&'v [u8]),
    Number(u64),
    Seconds(Micros),
}

macro_rules! fields {
    ($($field:ident: $name:literal),+ $(,)?) => {
        /// A field of a JSON or logfmt line.
        #[derive(Clone, Copy, Debug)]
        enum Field {
            $($field),+
        }

        /// The names of the fields of JSON and logfmt lines, in their order.
        pub const FIELDS: &[&str] = &[$($name),+];
    };
}

fields! {
    Time: "time",
    Remote: "remote",
    Method: "method",
    Host: "host",
    Target: "target",
    Protocol: "protocol",
    Tls: "tls",
    Route: "route",
    Upstream: "upstream",
    Group: "group",
    Mirror: "mirror",
    Referer: "referer",
    UserAgent: "user_agent",
    ClientCertificate: "client_certificate",
    User: "user",
    Error: "error",
    Denied: "denied",
    AnsweredBy: "answered_by",
    End: "end",
    Status: "status",
    BytesIn: "bytes_in",
    BytesOut: "bytes_out",
    Encoding: "encoding",
    BytesBefore: "bytes_uncompressed",
    Connection: "connection",
    Request: "request",
    RequestId: "request_id",
    TraceId: "trace_id",
    FirstByte: "first_byte",
    Duration: "duration",
}

/// Which fields JSON and logfmt lines have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFields(u32);

impl Default for LogFields {
    /// All.
    fn default() -> Self {
        Self(u32::MAX)
    }
}

impl LogFields {
    /// Those at these indices of [`FIELDS`].
    pub fn at(indices: impl Iterator<Item = usize>) -> Self {
        const { assert!(FIELDS.len() <= u32::BITS as usize) };
        Self(indices.fold(0, |all, index| all | 1 << (index % FIELDS.len())))
    }

    fn has(self, field: Field) -> bool {
        self.0 & 1 << field as u32 != 0
    }
}

/// Gives the fields of a line by name: those that are wanted and there.
fn fields(entry: &Entry, rules: &AccessLogRules, clock: &Clock, mut put: impl FnMut(&str, Value)) {
    let Entry { x, .. } = entry;
    let mut put = |field: Field, value: Value| {
        if rules.fields.has(field) {
            put(FIELDS[field as usize], value);
        }
    };
    put(Field::Time, Value::Text(clock.iso()));
    let mut own = Vec::with_capacity(48);
    entry.address(&mut own, rules);
    put(Field::Remote, Value::Text(&own));
    let mut text = |field: Field, value: Option<&[u8]>| {
        if let Some(value) = value {
            put(field, Value::Text(value));
        }
    };
    text(Field::Method, Some(x.request().method_name()));
    text(Field::Host, Some(x.request().authority()).filter(|a| !a.is_empty()));
    text(Field::Target, Some(entry.target(rules)));
    text(Field::Protocol, entry.protocol().map(str::as_bytes));
    text(Field::Tls, entry.tls_version().map(str::as_bytes));
    text(Field::Route, entry.route().map(str::as_bytes));
    text(Field::Upstream, entry.upstream_server().map(str::as_bytes));
    text(Field::Group, group_of(x).map(str::as_bytes));
    text(Field::Mirror, entry.mirror().map(str::as_bytes));
    text(Field::Referer, x.request().fields.get(Known::Referer).and_then(|_| entry.field(b"referer", rules)));
    text(Field::UserAgent, x.request().fields.get(Known::UserAgent));
    text(Field::ClientCertificate, entry.fingerprint().map(str::as_bytes));
    text(Field::User, entry.user());
    let failure = x.routed().failure().map(Failure::text);
    text(Field::Error, failure.as_ref().map(|f| f.as_bytes()));
    text(Field::Denied, x.routed().denied().map(|by| by.name().as_bytes()));
    text(Field::AnsweredBy, x.routed().served().map(|by| by.name().as_bytes()));
    let end = match x.ending() {
        Ending::Idle => Some(&b"idle"[..]),
        Ending::TooLong => Some(&b"total_timeout"[..]),
        Ending::Drain => Some(&b"drain"[..]),
        Ending::ClientIdle => Some(&b"idle_timeout"[..]),
        Ending::ClientSlow => Some(&b"min_body_rate"[..]),
        Ending::No => None,
    };
    text(Field::End, end);
    put(Field::Status, Value::Number(u64::from(x.status())));
    put(Field::BytesIn, Value::Number(x.request_body().bytes()));
    put(Field::BytesOut, Value::Number(x.response_body().bytes()));
    if let Some(encoding) = x.response_body().encoding() {
        put(Field::Encoding, Value::Text(encoding.coding().name().as_bytes()));
        put(Field::BytesBefore, Value::Number(encoding.taken()));
    }
    own.clear();
    connection_id(&mut own, entry.client.id());
    put(Field::Connection, Value::Text(&own));
    own.clear();
    entry.number(&mut own);
    put(Field::Request, Value::Text(&own));
    if let Some(id) = entry.request_id {
        put(Field::RequestId, Value::Text(id));
    }
    if let Some(trace) = x.trace().id() {
        put(Field::TraceId, Value::Text(&trace.text()));
    }
    if let Some(micros) = entry.first_byte() {
        put(Field::FirstByte, Value::Seconds(micros));
    }
    put(Field::Duration, Value::Seconds(entry.duration()));
}

fn json(b: &mut Vec<u8>, rules: &AccessLogRules, entry: &Entry, clock: &Clock) {
    b.push(b'{');
    let mut is_first = true;
    fields(entry, rules, clock, |name, value| {
        if !std::mem::take(&mut is_first) {
            b.push(b',');
        }
        b.push(b'"');
        b.extend_from_slice(name.as_bytes());
        b.extend_from_slice(b"\":");
        match value {
            Value::Text(text) => {
                b.push(b'"');
                escape_json(b, text);
                b.push(b'"');
            }
            Value::Number(number) => encode_decimal(b, number),
            Value::Seconds(micros) => exact_seconds(b, micros),
        }
    });
    b.push(b'}');
}

fn logfmt(b: &mut Vec<u8>, rules: &AccessLogRules, entry: &Entry, clock: &Clock) {
    let mut is_first = true;
    fields(entry, rules, clock, |name, value| {
        if !std::mem::take(&mut is_first) {
            b.push(b' ');
        }
        b.extend_from_slice(name.as_bytes());
        b.push(b'=');
        match value {
            // Readers of logfmt take quoted values for strings of JSON.
            Value::Text(text) if text.iter().all(|b| matches!(b, b'!'..=b'~') && !matches!(b, b'"' | b'\\' | b'=')) => {
                b.extend_from_slice(text);
            }
            Value::Text(text) => {
                b.push(b'"');
                escape_json(b, text);
                b.push(b'"');
            }
            Value::Number(number) => encode_decimal(b, number),
            Value::Seconds(micros) => exact_seconds(b, micros),
        }
    });
}

pub(super) fn connection_id(b: &mut Vec<u8>, id: ConnectionId) {
    encode_decimal(b, id.slot());
    b.push(b'-');
    encode_decimal(b, id.number());
}

/// What a client has sent must not forge lines: quotes, backslashes and bytes that are not printable ASCII are escaped.
pub(crate) fn escape(out: &mut Vec<u8>, bytes: &[u8]) {
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

/// The same for what spaces end.
pub(super) fn escape_word(out: &mut Vec<u8>, bytes: &[u8]) {
    for (n, word) in bytes.split(|b| *b == b' ').enumerate() {
        if n > 0 {
            out.extend_from_slice(b"\\x20");
        }
        escape(out, word);
    }
}

/// RFC 8259 §7. Bytes that are not ASCII stand for the characters of these numbers (Latin-1), so that every line is
/// UTF-8 whatever clients send.
pub(crate) fn escape_json(out: &mut Vec<u8>, bytes: &[u8]) {
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
pub(super) mod tests {
    use super::*;
    use crate::exchange::streams::ClientStream;
    use crate::fixtures;
    use sealane_lane::Key;

    /// The line of a request for `/a b?q=1` that took 1.234567 s, from 192.0.2.77.
    pub fn rendered(rules: &AccessLogRules) -> String {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let client = fixtures::client(&settings.listeners()[0], "192.0.2.77:5");
        let mut x = Exchange::new(ClientStream::H1(Key::from_u64(1)));
        x.request_mut().set_target(b"/a?q=1").unwrap();
        x.request_mut().set_authority(b"a.example:8443").unwrap();
        x.request_mut().fields.push(b"Referer", b"https://b.example/p?secret=1").unwrap();
        x.request_mut().fields.push(b"User-Agent", b"a \"b\"=c\xff").unwrap();
        x.request_mut().fields.push(b"X-Team", b"blue").unwrap();
        x.arrive(x.client_stream(), 3, 1_000_000);
        x.note_status(200);
        x.times_mut().headed = 1_500_000;
        x.request_body_mut().passed(7);
        x.response_body_mut().passed(11);
        let mut clock = Clock::default();
        clock.refresh(0);
        let mut out = Vec::new();
        let entry = Entry {
            x: &x,
            client: &client,
            tls: Some(sealane_tls::policy::Version::Tls13),
            now: 2_234_567,
            request_id: None,
        };
        line(&mut out, rules, &entry, &clock);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_format_has_what_it_says() {
        let of = |format| rendered(&AccessLogRules { format, ..AccessLogRules::default() });
        let combined = of(LogFormat::Combined);
        assert!(combined.starts_with("192.0.2.77 - - ["), "{combined}");
        let rest = combined.split_once("] ").unwrap().1;
        assert_eq!(
            rest,
            "\"GET /a?q=1 HTTP/1.1\" 200 11 \"https://b.example/p?secret=1\" \"a \\x22b\\x22=c\\xFF\" 1.234 TLSv1.3 7 - -\n"
        );
        let json = of(LogFormat::Json);
        assert!(
            json.starts_with("{\"time\":\"") && json.ends_with("\"first_byte\":0.500000,\"duration\":1.234567}\n"),
            "{json}"
        );
        assert!(
            json.contains("\"user_agent\":\"a \\\"b\\\"=c\\u00ff\",\"status\":200,\"bytes_in\":7,\"bytes_out\":11"),
            "{json}"
        );
        let logfmt = of(LogFormat::Logfmt);
        let rest = logfmt.split_once(' ').unwrap().1;
        assert_eq!(
            rest,
            "remote=192.0.2.77 method=GET host=a.example:8443 target=\"/a?q=1\" protocol=HTTP/1.1 tls=TLSv1.3 \
             referer=\"https://b.example/p?secret=1\" user_agent=\"a \\\"b\\\"=c\\u00ff\" status=200 bytes_in=7 bytes_out=11 \
             connection=0-0 request=0-0-3 first_byte=0.500000 duration=1.234567\n"
        );
    }

    #[test]
    fn lines_have_the_fields_that_are_wanted() {
        let index = |name: &&str| FIELDS.iter().position(|field| field == name).unwrap();
        let of = |format, wanted: &[&str]| {
            let fields = LogFields::at(wanted.iter().map(index));
            rendered(&AccessLogRules { format, fields, ..AccessLogRules::default() })
        };
        // In the order of the lines, whatever the order in which they are named.
        let wanted = ["duration", "status", "remote", "error"];
        assert_eq!(of(LogFormat::Json, &wanted), "{\"remote\":\"192.0.2.77\",\"status\":200,\"duration\":1.234567}\n");
        assert_eq!(of(LogFormat::Logfmt, &wanted), "remote=192.0.2.77 status=200 duration=1.234567\n");
        // No request has failed.
        assert_eq!([of(LogFormat::Json, &["error"]), of(LogFormat::Logfmt, &["error"])], ["{}\n", "\n"]);
        // Each name is that of its field. The time may have gone on.
        let all = of(LogFormat::Json, &FIELDS[1..]);
        let mut rest = &all[..];
        for name in &FIELDS[1..] {
            let alone = of(LogFormat::Json, &[*name]);
            let alone = alone.trim_end().trim_matches(['{', '}']);
            assert!(alone.is_empty() || alone.starts_with(&format!("\"{name}\":")), "{name}: {alone}");
            let at = rest.find(alone).unwrap_or_else(|| panic!("{alone} does not follow in {all}"));
            rest = &rest[at + alone.len()..];
        }
        let default = rendered(&AccessLogRules { format: LogFormat::Json, ..AccessLogRules::default() });
        assert!(default.ends_with(&all[1..]), "{default}");
    }

    #[test]
    fn personal_data_is_left_out_of_every_format() {
        let template = LogFormat::Template(Arc::new(
            "$remote_addr $request $request_uri [$args] [$query_string] $http_referer".parse().unwrap(),
        ));
        for format in [LogFormat::Combined, LogFormat::Json, LogFormat::Logfmt, template] {
            let line =
                rendered(&AccessLogRules { format, prefixes: (24, 48), queries: false, ..AccessLogRules::default() });
            assert!(
                line.contains("192.0.2.0") && line.contains("/a") && line.contains("https://b.example/p"),
                "{line}"
            );
            for hidden in ["192.0.2.77", "q=1", "secret"] {
                assert!(!line.contains(hidden), "{hidden} in {line}");
            }
        }
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
        out.clear();
        escape_word(&mut out, b"a b [\"");
        assert_eq!(out, b"a\\x20b\\x20[\\x22");
    }
}
