//! The HTTP/1.1 codec: nothing panics, nothing is consumed that is not there, a message means the same however its
//! bytes come, and what is accepted is written in a form that reads the same.

use sealane_http::h1::{
    BodyDecoder, ConnectionOption, Limits, What, encode_request, encode_response, parse_request, parse_response,
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
