//! The HTTP/1.1 codec: nothing panics, nothing is consumed that is not there, a message means the same however its
//! bytes come, and what is accepted is written in a form that reads the same.

use sealane_http::h1::{
    BodyDecoder, ConnectionOption, Limits, What, encode_chunk, encode_last_chunk, encode_request, encode_response,
    parse_request, parse_response,
};
use sealane_http::{BodyLength, Fields, Known, Method, ParseError, RequestHead, ResponseHead, Version};

/// Small, so that a fuzzer reaches them.
const LIMITS: Limits = Limits { head: 512, target: 64, fields: 8, trailers: 128 };
/// What is written may be longer than what was read.
const ROOMY: Limits = Limits { head: 4096, target: 1024, fields: 32, trailers: 512 };

/// The end-to-end fields, save those that the encoder writes by itself.
fn listed(fields: &Fields) -> Vec<(&[u8], &[u8])> {
    fields.end_to_end().filter(|(known, ..)| *known != Known::ContentLength).map(|(_, n, v)| (n, v)).collect()
}

/// Asserts that no part of `input` but the whole completes or breaks the head: `parse` says how much it consumes.
fn prefixes(input: &[u8], consumed: usize, mut parse: impl FnMut(&[u8]) -> Result<Option<usize>, ParseError>) {
    for end in 0..consumed {
        assert_eq!(parse(&input[..end]), Ok(None), "at {end} of {consumed}");
    }
    assert_eq!(parse(&input[..consumed]), Ok(Some(consumed)));
}

/// `parse_request`, then `encode_request`, then both again.
pub mod request {
    use super::*;

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let mut head = RequestHead::new();
        let info = match parse_request(data, &LIMITS, &mut head) {
            Ok(Some(info)) => info,
            Ok(None) => return assert!(data.len() < LIMITS.head),
            Err(_) => return,
        };
        assert!(info.consumed <= data.len().min(LIMITS.head));
        assert_ne!(info.body, BodyLength::UntilClose);
        assert!(!head.target().is_empty() && !head.method_name().is_empty());
        assert!(head.version == Version::Http10 || !head.host_name().is_empty());
        let mut again = RequestHead::new();
        prefixes(data, info.consumed, |part| Ok(parse_request(part, &LIMITS, &mut again)?.map(|i| i.consumed)));

        if head.authority().is_empty() {
            head.set_authority(b"fallback").expect("a host name");
        }
        let mut out = Vec::new();
        encode_request(&mut out, &head, info.body, ConnectionOption::KeepAlive);
        let second = parse_request(&out, &ROOMY, &mut again).expect("what we write is legal").expect("and complete");
        assert_eq!((second.consumed, second.body, second.keep_alive), (out.len(), info.body, true));
        assert_eq!((again.method_name(), again.target()), (head.method_name(), head.target()));
        assert_eq!((again.authority(), again.port()), (head.authority(), head.port()));
        assert_eq!(listed(&again.fields), listed(&head.fields));
    }
}

/// `parse_response`, then `encode_response`, then both again. The first byte chooses the method that is answered.
pub mod response {
    use super::*;

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let Some((first, data)) = data.split_first() else { return };
        let method = [Method::Get, Method::Head, Method::Connect][usize::from(*first) % 3];
        let mut head = ResponseHead::new();
        let info = match parse_response(data, &LIMITS, method, &mut head) {
            Ok(Some(info)) => info,
            Ok(None) => return assert!(data.len() < LIMITS.head),
            Err(_) => return,
        };
        assert!(info.consumed <= data.len().min(LIMITS.head));
        assert!((100..=599).contains(&head.status));
        assert!(!(info.keep_alive && info.body == BodyLength::UntilClose));
        let mut again = ResponseHead::new();
        prefixes(
            data,
            info.consumed,
            |part| Ok(parse_response(part, &LIMITS, method, &mut again)?.map(|i| i.consumed)),
        );

        let mut out = Vec::new();
        let option = if head.status == 101 { ConnectionOption::Upgrade } else { ConnectionOption::KeepAlive };
        let body = encode_response(&mut out, &head, Version::Http11, info.body, option);
        let second =
            parse_response(&out, &ROOMY, method, &mut again).expect("what we write is legal").expect("and complete");
        assert_eq!((second.consumed, second.body, second.upgrade), (out.len(), body, info.upgrade));
        assert_eq!(again.status, head.status);
        assert_eq!(listed(&again.fields), listed(&head.fields));
    }
}

/// `BodyDecoder` on the chunked coding. The first byte chooses the size of the pieces that the bytes come in.
pub mod chunked {
    use super::*;

    /// How a body ended, with its bytes, its trailers and where it ended.
    type End = (Result<bool, ParseError>, Vec<u8>, String, usize);

    fn run(data: &[u8], step: usize) -> End {
        let mut decoder = BodyDecoder::new(BodyLength::Chunked, &LIMITS);
        let (mut body, mut start, mut end) = (Vec::new(), 0, 0);
        let verdict = loop {
            let piece = match decoder.decode(&data[start..end]) {
                Ok(piece) => piece,
                // How far the bytes before the error were consumed depends on how they came.
                Err(error) => return (Err(error), body, String::new(), 0),
            };
            assert!(piece.consumed <= end - start);
            start += piece.consumed;
            match piece.what {
                What::Data(piece) => {
                    assert!(!piece.is_empty());
                    body.extend_from_slice(piece);
                }
                What::NeedMore if end == data.len() => break decoder.is_done(),
                What::NeedMore => {
                    assert!(end - start < LIMITS.trailers, "more is held back than a trailer section may have");
                    end = (end + step).min(data.len());
                }
                What::Trailers | What::End => break true,
            }
        };
        assert_eq!(decoder.eof().is_ok(), verdict);
        (Ok(verdict), body, format!("{:?}", decoder.trailers()), if verdict { start } else { 0 })
    }

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let Some((first, data)) = data.split_first() else { return };
        let whole = run(data, data.len().max(1));
        assert_eq!(run(data, 1 + usize::from(*first) % 16), whole);
        assert_eq!(run(data, 1), whole);
    }
}

/// A message as it is read from one side of the gateway, and must be read from the other.
#[derive(Debug, PartialEq, Eq)]
struct Message {
    /// What its first line says, and to whom it goes.
    start: String,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    body: Vec<u8>,
    trailers: Vec<(Vec<u8>, Vec<u8>)>,
}

fn owned(fields: &Fields) -> Vec<(Vec<u8>, Vec<u8>)> {
    listed(fields).into_iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

/// Bytes that come in pieces.
struct Input<'d> {
    data: &'d [u8],
    step: usize,
    /// What has come.
    end: usize,
    /// What has been consumed.
    at: usize,
}

impl<'d> Input<'d> {
    fn new(data: &'d [u8], step: usize) -> Self {
        Self { data, step: step.max(1), end: 0, at: 0 }
    }

    fn here(&self) -> &'d [u8] {
        &self.data[self.at..self.end]
    }

    /// Another piece; false at the end.
    fn more(&mut self) -> bool {
        let end = (self.end + self.step).min(self.data.len());
        std::mem::replace(&mut self.end, end) < end
    }
}

/// Reads a body and writes it to `out`, framed as `framing` says. `None`: it is not complete.
fn pass_body(
    input: &mut Input<'_>,
    limits: &Limits,
    length: BodyLength,
    framing: BodyLength,
    out: &mut Vec<u8>,
) -> Result<Option<(Vec<u8>, Fields)>, ParseError> {
    let mut decoder = BodyDecoder::new(length, limits);
    let mut body = Vec::new();
    loop {
        let piece = decoder.decode(input.here())?;
        input.at += piece.consumed;
        match piece.what {
            What::Data(data) => {
                body.extend_from_slice(data);
                match framing {
                    BodyLength::Chunked => encode_chunk(out, data),
                    _ => out.extend_from_slice(data),
                }
            }
            What::NeedMore if input.more() => {}
            // The connection's end may be the body's.
            What::NeedMore if decoder.eof().is_ok() => break,
            What::NeedMore => return Ok(None),
            What::Trailers | What::End => break,
        }
    }
    let trailers = std::mem::take(decoder.trailers_mut());
    if framing == BodyLength::Chunked {
        encode_last_chunk(out, Some(&trailers));
    }
    Ok(Some((body, trailers)))
}

/// Requests one after the other on a connection, with bodies, passed on to a server: it reads the same requests, however the bytes
/// came. So no request can be hidden in another.
pub mod requests {
    use super::*;

    /// The complete requests of a connection; what is passed on is written to `out`. Also whether it ended with an error.
    fn pass(data: &[u8], step: usize, limits: &Limits, out: &mut Vec<u8>) -> (Vec<Message>, bool) {
        let (mut input, mut head, mut all) = (Input::new(data, step), RequestHead::new(), Vec::new());
        loop {
            let info = match parse_request(input.here(), limits, &mut head) {
                Ok(Some(info)) => info,
                Ok(None) if input.more() => continue,
                Ok(None) => return (all, false),
                Err(_) => return (all, true),
            };
            input.at += info.consumed;
            if head.authority().is_empty() {
                head.set_authority(b"fallback").expect("a host name");
            }
            let connection = if info.keep_alive { ConnectionOption::KeepAlive } else { ConnectionOption::Close };
            encode_request(out, &head, info.body, connection);
            let start =
                [head.method_name(), head.target(), head.authority()].map(|part| part.escape_ascii().to_string());
            let (start, fields) = (start.join(" "), owned(&head.fields));
            match pass_body(&mut input, limits, info.body, info.body, out) {
                Ok(Some((body, trailers))) => all.push(Message { start, fields, body, trailers: owned(&trailers) }),
                Ok(None) => return (all, false),
                Err(_) => return (all, true),
            }
            if !info.keep_alive {
                return (all, false);
            }
        }
    }

    /// Runs the target. The first byte chooses the size of the pieces.
    pub fn fuzz_one(data: &[u8]) {
        let Some((first, data)) = data.split_first() else { return };
        let mut out = Vec::new();
        let whole = pass(data, data.len(), &LIMITS, &mut out);
        for step in [1 + usize::from(*first), 1] {
            let mut out = Vec::new();
            assert_eq!(pass(data, step, &LIMITS, &mut out), whole, "in pieces of {step}");
            check(&out, &whole.0);
        }
        check(&out, &whole.0);
    }

    fn check(out: &[u8], sent: &[Message]) {
        let (read, failed) = pass(out, out.len(), &ROOMY, &mut Vec::new());
        assert!(!failed, "what is passed on is refused: {}", out.escape_ascii());
        assert_eq!(read, sent, "{}", out.escape_ascii());
    }
}

/// Responses one after the other on a connection, with bodies, passed on to a client: it reads the same responses, however the bytes
/// came.
pub mod responses {
    use super::*;

    /// As for requests; `methods` are what is answered, two bits each.
    fn pass(data: &[u8], mut methods: u8, step: usize, limits: &Limits, out: &mut Vec<u8>) -> (Vec<Message>, bool) {
        let (mut input, mut head, mut all) = (Input::new(data, step), ResponseHead::new(), Vec::new());
        loop {
            let method = [Method::Get, Method::Head, Method::Post, Method::Connect][usize::from(methods & 3)];
            let info = match parse_response(input.here(), limits, method, &mut head) {
                Ok(Some(info)) => info,
                Ok(None) if input.more() => continue,
                Ok(None) => return (all, false),
                Err(_) => return (all, true),
            };
            input.at += info.consumed;
            let option = if head.status == 101 { ConnectionOption::Upgrade } else { ConnectionOption::KeepAlive };
            let framing = encode_response(out, &head, Version::Http11, info.body, option);
            assert_ne!(framing, BodyLength::UntilClose, "HTTP/1.1 clients get chunks");
            let (start, fields) = (head.status.to_string(), owned(&head.fields));
            match pass_body(&mut input, limits, info.body, framing, out) {
                Ok(Some((body, trailers))) => all.push(Message { start, fields, body, trailers: owned(&trailers) }),
                Ok(None) => return (all, false),
                Err(_) => return (all, true),
            }
            // Another one answers the same request.
            if head.status >= 200 {
                methods >>= 2;
            }
            if info.upgrade || (!info.keep_alive && head.status >= 200) {
                return (all, false);
            }
        }
    }

    /// Runs the target. The first byte chooses the methods, the second the size of the pieces.
    pub fn fuzz_one(data: &[u8]) {
        let Some((&[methods, first], data)) = data.split_first_chunk() else { return };
        let mut out = Vec::new();
        let whole = pass(data, methods, data.len(), &LIMITS, &mut out);
        for step in [1 + usize::from(first), 1] {
            let mut out = Vec::new();
            assert_eq!(pass(data, methods, step, &LIMITS, &mut out), whole, "in pieces of {step}");
            check(&out, methods, &whole.0);
        }
        check(&out, methods, &whole.0);
    }

    fn check(out: &[u8], methods: u8, sent: &[Message]) {
        let (read, failed) = pass(out, methods, out.len(), &ROOMY, &mut Vec::new());
        assert!(!failed, "what is passed on is refused: {}", out.escape_ascii());
        assert_eq!(read, sent, "{}", out.escape_ascii());
    }
}
