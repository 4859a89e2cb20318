//! HTTP/3: nothing panics, a stream means the same however its bytes come, and what is accepted is written in a form
//! that reads the same.

use sealane_http::h1::Limits;
use sealane_http::h3::{
    H3Error, MessageReader, Peer, Piece, QpackScratch, Side, UniReader, encode_request, encode_response,
    encode_trailers, read_request, read_response, read_trailers,
};
use sealane_http::{Fields, Known, Method, RequestHead, ResponseHead, Scheme};

const LIMITS: Limits = Limits { head: 512, target: 64, fields: 8, trailers: 256 };
const ROOMY: Limits = Limits { head: 8192, target: 1024, fields: 32, trailers: 4096 };

fn sides(first: u8) -> Side {
    if first & 1 == 0 { Side::Server } else { Side::Client }
}

/// A request stream in pieces. The first byte chooses the side and the size of the pieces.
pub mod stream {
    use super::*;

    /// What a stream said, data joined, and how it ended.
    type Said = (Vec<(char, Vec<u8>)>, Option<H3Error>);

    fn run(side: Side, data: &[u8], step: usize) -> Said {
        let mut reader = MessageReader::new(side, 128);
        let mut said: Vec<(char, Vec<u8>)> = Vec::new();
        for part in data.chunks(step) {
            let mut at = 0;
            loop {
                let (used, piece) = match reader.read(&part[at..]) {
                    Ok(step) => step,
                    Err(e) => return (said, Some(e)),
                };
                at += used;
                assert!(at <= part.len());
                match piece {
                    Piece::NeedMore => break assert_eq!(at, part.len()),
                    Piece::Head(s) => {
                        assert!(s.len() <= 128);
                        said.push(('h', s.to_vec()));
                    }
                    Piece::Trailers(s) => said.push(('t', s.to_vec())),
                    Piece::TooLarge(e) => said.push(('!', e.to_string().into_bytes())),
                    Piece::Data(d) => match said.last_mut() {
                        Some(('d', all)) => all.extend_from_slice(d),
                        _ => said.push(('d', d.to_vec())),
                    },
                }
            }
        }
        let end = reader.finish().err();
        (said, end)
    }

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let Some((first, data)) = data.split_first() else { return };
        let side = sides(*first);
        let whole = run(side, data, data.len().max(1));
        assert_eq!(run(side, data, 1 + usize::from(*first) / 16), whole);
        assert_eq!(run(side, data, 1), whole);
    }
}

/// A peer's own stream in pieces. The first byte chooses the side and the size of the pieces.
pub mod control {
    use super::*;

    fn run(side: Side, data: &[u8], step: usize) -> (Vec<String>, Option<H3Error>, bool) {
        let (mut peer, mut reader, mut events) = (Peer::new(side), UniReader::default(), Vec::new());
        for part in data.chunks(step) {
            let fed = reader.feed(&mut peer, part, |event| {
                events.push(format!("{event:?}"));
                Ok(())
            });
            if let Err(e) = fed {
                return (events, Some(e), false);
            }
        }
        (events, None, reader.finish().is_ok())
    }

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let Some((first, data)) = data.split_first() else { return };
        let side = sides(*first);
        let whole = run(side, data, data.len().max(1));
        assert_eq!(run(side, data, 1 + usize::from(*first) / 16), whole);
        assert_eq!(run(side, data, 1), whole);
    }
}

/// A field section as request, response and trailers; what is accepted is encoded and read again.
pub mod section {
    use super::*;

    /// The end-to-end fields as they must come back: names in lower case.
    fn listed(fields: &Fields) -> Vec<(Vec<u8>, Vec<u8>)> {
        let ours = |known, name: &[u8]| {
            let key = name.to_ascii_lowercase().starts_with(b"sec-websocket-");
            matches!(known, Known::ContentLength | Known::Host) || key
        };
        let kept = fields.end_to_end().filter(|(known, name, _)| !ours(*known, name));
        kept.map(|(_, n, v)| (n.to_ascii_lowercase(), v.to_vec())).collect()
    }

    fn head_of(out: &[u8]) -> Vec<u8> {
        let mut reader = MessageReader::new(Side::Client, 1 << 16);
        match reader.read(out) {
            Ok((used, Piece::Head(section))) if used == out.len() => section.to_vec(),
            other => panic!("what we write is legal: {other:?}"),
        }
    }

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let scratch = &mut QpackScratch::default();
        let mut out = Vec::new();
        let (mut head, mut again) = (RequestHead::new(), RequestHead::new());
        if let Ok(info) = read_request(data, false, &LIMITS, &mut head, scratch) {
            assert!(!head.target().is_empty() && !head.host_name().is_empty());
            encode_request(&mut out, &head, info.body, head.scheme.unwrap_or(Scheme::Https), info.upgrade);
            let second =
                read_request(&head_of(&out), false, &ROOMY, &mut again, scratch).expect("what we write is legal");
            assert_eq!(second, info);
            assert_eq!((again.method_name(), again.target()), (head.method_name(), head.target()));
            assert_eq!((again.authority(), again.scheme), (head.authority(), head.scheme));
            assert_eq!(listed(&again.fields), listed(&head.fields));
        }
        let (mut head, mut again) = (ResponseHead::new(), ResponseHead::new());
        if let Ok(info) = read_response(data, false, &LIMITS, Method::Get, &mut head, scratch) {
            out.clear();
            encode_response(&mut out, &head, info.body, false);
            let second = read_response(&head_of(&out), false, &ROOMY, Method::Get, &mut again, scratch);
            assert_eq!(second, Ok(info));
            assert_eq!(again.status, head.status);
            assert_eq!(listed(&again.fields), listed(&head.fields));
        }
        let (mut fields, mut again) = (Fields::new(), Fields::new());
        if read_trailers(data, &LIMITS, &mut fields, scratch).is_ok() {
            out.clear();
            encode_trailers(&mut out, &fields);
            if !out.is_empty() {
                read_trailers(&head_of(&out), &ROOMY, &mut again, scratch).expect("what we write is legal");
            }
            assert_eq!(listed(&again), listed(&fields));
        }
    }
}
