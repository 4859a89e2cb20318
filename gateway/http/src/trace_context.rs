//! What a request says of the trace that it is part of: `traceparent` and `tracestate` (W3C Trace Context, Level 2), and
//! `baggage` (W3C Baggage).
//!
//! The parsers are strict and bounded: a field that breaks the rules counts as absent, as both specifications demand. Nothing
//! here makes identifiers or decides whom to believe; the caller brings random bytes, and asks only for requests of peers that
//! it trusts.

use crate::scan::{is_token, list, trim};

/// Bytes of `traceparent` in version 00: `00-TRACE-SPAN-FLAGS`.
pub const TRACEPARENT_LEN: usize = 55;
/// Bytes of all `tracestate` fields of a request together. Trace Context §3.3.1.5: at least 512 should be passed on.
pub const MAX_TRACESTATE: usize = 512;
/// Members of `tracestate` (Trace Context §3.3.1.1).
pub const MAX_TRACESTATE_MEMBERS: usize = 32;
/// Bytes of all `baggage` fields of a request together (Baggage §3.3.2).
pub const MAX_BAGGAGE: usize = 8192;
/// Members of `baggage` (Baggage §3.3.2).
pub const MAX_BAGGAGE_MEMBERS: usize = 64;

/// This trace is recorded.
const SAMPLED: u8 = 1;
/// The last seven bytes of the trace's id are random.
const RANDOM: u8 = 2;
/// `RANDOM_BITS` of a trace's id decide whether it is sampled: the last seven bytes (Trace Context §3.2.2.3).
const RANDOM_BITS: u32 = 56;

/// The id of a trace. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId([u8; 16]);

/// The id of a span. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId([u8; 8]);

impl TraceId {
    /// An id of random bytes.
    pub fn from_random(mut bytes: [u8; 16]) -> Self {
        // 0 is no id (§3.2.2.3); it comes once in 2^128 times, or where the system has no random numbers.
        if bytes == [0; 16] {
            bytes[15] = 1;
        }
        Self(bytes)
    }

    /// The bytes, in the order of the text.
    pub fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// The id as 32 hexadecimal digits.
    pub fn text(self) -> [u8; 32] {
        let mut text = [0; 32];
        write_hex(&mut text, &self.0);
        text
    }
}

impl SpanId {
    /// An id of random bytes.
    pub fn from_random(mut bytes: [u8; 8]) -> Self {
        if bytes == [0; 8] {
            bytes[7] = 1;
        }
        Self(bytes)
    }

    /// The bytes, in the order of the text.
    pub fn bytes(self) -> [u8; 8] {
        self.0
    }
}

/// The value of `traceparent`: which span of which trace a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace: TraceId,
    /// The span that has made the request.
    pub span: SpanId,
    flags: u8,
}

impl TraceParent {
    /// The first of a new trace, whose id is random.
    pub fn new(trace: TraceId, span: SpanId, sampled: bool) -> Self {
        Self { trace, span, flags: if sampled { RANDOM | SAMPLED } else { RANDOM } }
    }

    /// Reads a value (§3.2). `None`: it breaks the rules, and the request starts a new trace.
    ///
    /// Of versions after 00 only what version 00 has is read (§4.3), and unknown flags are not passed on (§3.2.2.5).
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (head, rest) = value.split_at_checked(TRACEPARENT_LEN)?;
        let [version] = read_hex(&head[..2])?;
        match version {
            0 if rest.is_empty() => {}
            1..=0xfe if rest.is_empty() || rest[0] == b'-' => {}
            _ => return None,
        }
        if [head[2], head[35], head[52]] != *b"---" {
            return None;
        }
        let (trace, span) = (read_hex(&head[3..35])?, read_hex(&head[36..52])?);
        let [flags] = read_hex(&head[53..55])?;
        let is_good = trace != [0; 16] && span != [0; 8];
        is_good.then_some(Self { trace: TraceId(trace), span: SpanId(span), flags: flags & (SAMPLED | RANDOM) })
    }

    /// Whether the one who has made the request records the trace.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The same trace, from another span.
    pub fn with_span(self, span: SpanId) -> Self {
        Self { span, ..self }
    }

    /// The value as text, in version 00.
    pub fn text(&self) -> [u8; TRACEPARENT_LEN] {
        let mut text = [b'-'; TRACEPARENT_LEN];
        text[..2].copy_from_slice(b"00");
        write_hex(&mut text[3..35], &self.trace.0);
        write_hex(&mut text[36..52], &self.span.0);
        write_hex(&mut text[53..55], &[self.flags]);
        text
    }
}

/// Whether a new trace is sampled: one in so many is, by the random bits of its id, so that everybody who goes by the same
/// number decides alike. 0: none is.
pub fn is_sampled(trace: TraceId, one_in: u32) -> bool {
    let mut word = [0; 8];
    word[1..].copy_from_slice(&trace.0[9..]);
    let random = u64::from_be_bytes(word);
    one_in > 0 && random <= ((1u64 << RANDOM_BITS) - 1) / u64::from(one_in)
}

/// Whether the values of all `tracestate` fields of a request, in their order, are a list that may be passed on (§3.3).
pub fn is_trace_state<'v>(values: impl Iterator<Item = &'v [u8]>) -> bool {
    // Their keys: a list is refused in which one stands twice.
    let mut keys = [&b""[..]; MAX_TRACESTATE_MEMBERS];
    let (mut members, mut bytes) = (0, 0);
    for value in values {
        bytes += value.len();
        if bytes > MAX_TRACESTATE {
            return false;
        }
        for member in list(value) {
            let Some(equals) = member.iter().position(|b| *b == b'=') else { return false };
            let (key, value) = (&member[..equals], &member[equals + 1..]);
            let known = &keys[..members];
            if members == MAX_TRACESTATE_MEMBERS || !is_key(key) || !is_state(value) || known.contains(&key) {
                return false;
            }
            keys[members] = key;
            members += 1;
        }
    }
    true
}

/// §3.3.1.3.1.
fn is_key(key: &[u8]) -> bool {
    let first = key.first().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let rest = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-*/@".contains(b);
    first && key.len() <= 256 && key.iter().all(rest)
}

/// §3.3.1.3.2. White space around it has been removed.
fn is_state(value: &[u8]) -> bool {
    let printable = |b: &u8| matches!(b, b' '..=b'~') && !matches!(b, b',' | b'=');
    (1..=256).contains(&value.len()) && value.iter().all(printable)
}

/// Whether the values of all `baggage` fields of a request, in their order, are a list that may be passed on (Baggage §3.3.1).
pub fn is_baggage<'v>(values: impl Iterator<Item = &'v [u8]>) -> bool {
    let (mut members, mut bytes) = (0, 0);
    for value in values {
        bytes += value.len();
        if bytes > MAX_BAGGAGE {
            return false;
        }
        for member in value.split(|b| *b == b',') {
            members += 1;
            if members > MAX_BAGGAGE_MEMBERS || !is_baggage_member(member) {
                return false;
            }
        }
    }
    true
}

fn is_baggage_member(member: &[u8]) -> bool {
    let mut parts = member.split(|b| *b == b';');
    let Some((key, value)) = parts.next().and_then(pair) else { return false };
    is_token(key)
        && is_octets(value)
        && parts.all(|property| match pair(property) {
            Some((key, value)) => is_token(key) && is_octets(value),
            None => is_token(trim(property)),
        })
}

/// `key = value`, without the white space around both.
fn pair(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = text.iter().position(|b| *b == b'=')?;
    Some((trim(&text[..equals]), trim(&text[equals + 1..])))
}

/// Baggage §3.3.1.3.
fn is_octets(value: &[u8]) -> bool {
    value.iter().all(|b| matches!(b, b'!'..=b'~') && !matches!(b, b'"' | b',' | b';' | b'\\'))
}

/// Reads lower-case hexadecimal digits, which are all that is allowed (§3.2).
fn read_hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    let (pairs, rest) = text.as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

/// Writes two digits for each byte.
fn write_hex(text: &mut [u8], bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Trace Context §3.2.
    const EXAMPLE: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_parent_is_read_and_written() {
        let parent = TraceParent::parse(EXAMPLE).unwrap();
        assert!(parent.is_sampled());
        assert_eq!(parent.text(), EXAMPLE);
        assert_eq!(&parent.trace.text(), &EXAMPLE[3..35]);
        assert_eq!(parent.span.bytes()[7], 0xb7);
        let next = parent.with_span(SpanId::from_random([0x11; 8])).text();
        assert_eq!(&next[..], b"00-4bf92f3577b34da6a3ce929d0e0e4736-1111111111111111-01");
        let new = TraceParent::new(TraceId::from_random([0; 16]), SpanId::from_random([0; 8]), false).text();
        assert_eq!(&new[..], b"00-00000000000000000000000000000001-0000000000000001-02");
        assert!(TraceParent::parse(&new).is_some_and(|parent| !parent.is_sampled()));
    }

    #[test]
    fn what_breaks_the_rules_is_no_parent() {
        let text = |value: &str| TraceParent::parse(value.as_bytes());
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7_01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "0g-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.what",
            " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(text(bad), None, "{bad}");
        }
        // A later version may say more, and a flag that nobody knows yet is not passed on.
        let later = text("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fd-what").unwrap();
        assert_eq!(&later.text()[..], EXAMPLE);
        assert!(text("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00").is_some());
    }

    #[test]
    fn one_in_so_many_traces_is_sampled() {
        let id = |random: u64| {
            let mut bytes = [0xff; 16];
            bytes[8..].copy_from_slice(&random.to_be_bytes());
            TraceId::from_random(bytes)
        };
        // Spread evenly over the 56 bits; the byte before them does not count.
        let ids = || (0..1000u64).map(|n| id((n * ((1 << 56) / 1000)) | (0xab << 56)));
        for (one_in, wanted) in [(0, 0), (1, 1000), (2, 501), (10, 101), (1000, 2)] {
            let sampled = ids().filter(|id| is_sampled(*id, one_in)).count();
            assert!(sampled.abs_diff(wanted) <= 1, "{one_in}: {sampled}");
        }
        assert!(is_sampled(id(u64::MAX), 1) && !is_sampled(id(u64::MAX), 2));
    }

    #[test]
    fn a_trace_state_is_a_list_of_different_keys() {
        let is_good = |values: &[&str]| is_trace_state(values.iter().map(|value| value.as_bytes()));
        let long = format!("a={}", "b".repeat(256));
        let many: Vec<String> = (0..33).map(|n| format!("k{n}=1")).collect();
        let (most, too_many) = (many[..32].join(","), many.join(","));
        let (too_long, other) = (format!("{long}b"), long.replace('a', "b"));
        let long = long.as_str();
        for good in [
            &["rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"][..],
            &["a=1", "b=2"],
            &[" a=1 ,\t b=with blank , "],
            &["0tenant@system=1,a_-*/@=1"],
            &["a=1,,b=2"],
            &[""],
            &[],
            &[long],
            &[most.as_str()],
        ] {
            assert!(is_good(good), "{good:?}");
        }
        for bad in [
            &["a"][..],
            &["a="],
            &["=1"],
            &["A=1"],
            &["_a=1"],
            &["a=1=2"],
            &["a=\u{e9}"],
            &["a=1\u{1}"],
            &["a=1,a=2"],
            &["a=1", "a=2"],
            &["a =1"],
            &[too_long.as_str()],
            &[too_many.as_str()],
            &[long, other.as_str(), "c=1"],
        ] {
            assert!(!is_good(bad), "{bad:?}");
        }
    }

    #[test]
    fn baggage_is_a_list_of_pairs() {
        let is_good = |values: &[&str]| is_baggage(values.iter().map(|value| value.as_bytes()));
        let many: Vec<String> = (0..65).map(|n| format!("k{n}=1")).collect();
        let (most, too_many) = (many[..64].join(","), many.join(","));
        let too_long = format!("a={}", "b".repeat(8191));
        for good in [
            &["userId=alice"][..],
            &["a = 1 ; secret ; p = 2 , b=%20"],
            &["a=", "b==="],
            &["a=1,a=2"],
            &[],
            &[most.as_str()],
        ] {
            assert!(is_good(good), "{good:?}");
        }
        for bad in [
            &["a"][..],
            &[""],
            &["a=1,"],
            &["a b=1"],
            &["=1"],
            &["a=b c"],
            &["a=\"1\""],
            &["a=\u{e9}"],
            &["a=1;p q"],
            &["a=1;"],
            &[too_many.as_str()],
            &[too_long.as_str()],
        ] {
            assert!(!is_good(bad), "{bad:?}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        for len in 0..60 {
            for byte in [0, b' ', b'-', b'=', b',', b';', b'0', 0xff] {
                let value = vec![byte; len];
                let _ = TraceParent::parse(&value);
                let _ = is_trace_state([&value[..]].into_iter());
                let _ = is_baggage([&value[..]].into_iter());
            }
        }
    }
}
