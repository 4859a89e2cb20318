use super::super::frame::{MessageReader, Piece, Side};
use super::*;

fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = vec![0, 0];
    for (name, value) in fields {
        // As they stand, upper case and all.
        out.push(0x27);
        out.push((name.len() as u8).wrapping_sub(7));
        if name.len() < 7 {
            out.truncate(out.len() - 2);
            out.push(0x20 | name.len() as u8);
        }
        out.extend_from_slice(name.as_bytes());
        assert!(value.len() < 127);
        out.push(value.len() as u8);
        out.extend_from_slice(value.as_bytes());
    }
    out
}

fn request(fields: &[(&str, &str)], ended: bool) -> Result<(ListInfo, RequestHead), H3Error> {
    let mut head = RequestHead::new();
    let scratch = &mut QpackScratch::default();
    let info = read_request(&section(fields), ended, &Limits::default(), &mut head, scratch)?;
    Ok((info, head))
}

const GET: [(&str, &str); 4] = [(":method", "GET"), (":scheme", "https"), (":authority", "a.b"), (":path", "/x?y")];

fn get_and(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    GET.iter().chain(more).copied().collect()
}

#[test]
fn a_request() {
    let fields = get_and(&[("accept", "*/*"), ("te", "trailers"), ("cookie", "a=1"), ("x-y", "z"), ("cookie", "b=2")]);
    let (info, head) = request(&fields, true).unwrap();
    assert_eq!(info, ListInfo { body: BodyLength::None, expect_continue: false, upgrade: false });
    assert_eq!((head.method(), head.target(), head.host_name()), (Method::Get, &b"/x?y"[..], "a.b"));
    assert_eq!((head.version, head.scheme, head.accepts_trailers), (Version::Http3, Some(Scheme::Https), true));
    assert_eq!(head.fields.all(Known::Cookie).collect::<Vec<_>>(), [&b"a=1; b=2"[..]]);
    assert_eq!(head.fields.len(), 3);
    assert_eq!(request(&fields, false).unwrap().0.body, BodyLength::Chunked);
}

#[test]
fn what_is_refused() {
    // The rules are tested where they are; here, that they are asked.
    let refused = |fields: &[(&str, &str)]| match request(fields, true) {
        Err(H3Error::Message(e)) => e,
        other => panic!("{fields:?}: {other:?}"),
    };
    for (more, error) in [
        ((":method", "GET"), ParseError::PseudoField),
        ((":status", "200"), ParseError::PseudoField),
        (("Accept", "x"), ParseError::FieldCase),
        (("connection", "close"), ParseError::ConnectionField),
        (("te", "gzip"), ParseError::ConnectionField),
        (("content-length", "5"), ParseError::LengthMismatch),
        (("x", "a\r\nb: c"), ParseError::FieldValue),
    ] {
        assert_eq!(refused(&get_and(&[more])), error, "{more:?}");
    }
    assert_eq!(refused(&get_and(&[("x", "y"), (":path", "/")])), ParseError::PseudoField);
    assert_eq!(refused(&GET[..3]), ParseError::PseudoField);
}

fn reread(out: &[u8]) -> (usize, Vec<u8>) {
    let mut reader = MessageReader::new(Side::Client, 1 << 16);
    let (used, piece) = reader.read(out).unwrap();
    let Piece::Head(section) = piece else { panic!("{piece:?}") };
    (used, section.to_vec())
}

#[test]
fn requests_round_trip() {
    let mut head = RequestHead::new();
    head.set_method(b"PURGE").unwrap();
    head.set_target(b"/a?b").unwrap();
    head.set_authority(b"Example.com:81").unwrap();
    head.accepts_trailers = true;
    head.fields.push(b"X-Mixed", b"Case").unwrap();
    head.fields.push(b"Connection", b"close").unwrap();
    head.fields.push(b"Content-Length", b"9").unwrap();
    let mut out = Vec::new();
    encode_request(&mut out, &head, BodyLength::Known(7), Scheme::Https, false);
    let (used, section) = reread(&out);
    assert_eq!(used, out.len());
    let mut back = RequestHead::new();
    let scratch = &mut QpackScratch::default();
    let info = read_request(&section, false, &Limits::default(), &mut back, scratch).unwrap();
    assert_eq!(info.body, BodyLength::Known(7));
    assert_eq!(
        (back.method_name(), back.target(), back.authority()),
        (&b"PURGE"[..], &b"/a?b"[..], &b"Example.com:81"[..])
    );
    assert!(back.accepts_trailers);
    assert_eq!(back.fields.get_named(b"x-mixed"), Some(&b"Case"[..]));
    assert!(!back.fields.contains(Known::Connection));

    let mut get = RequestHead::new();
    get.set_target(b"/chat").unwrap();
    get.set_authority(b"a").unwrap();
    get.fields.push(b"Upgrade", b"websocket").unwrap();
    get.fields.push(b"Sec-WebSocket-Key", b"x").unwrap();
    out.clear();
    encode_request(&mut out, &get, BodyLength::None, Scheme::Https, true);
    let (_, section) = reread(&out);
    assert!(read_request(&section, false, &Limits::default(), &mut back, scratch).unwrap().upgrade);
    assert_eq!((back.method(), back.fields.get(Known::Upgrade)), (Method::Get, Some(&b"websocket"[..])));
    assert!(back.fields.get_named(b"sec-websocket-key").is_none());
}

#[test]
fn responses_round_trip() {
    let read = |out: &[u8], method| {
        let mut head = ResponseHead::new();
        let scratch = &mut QpackScratch::default();
        let info = read_response(&reread(out).1, false, &Limits::default(), method, &mut head, scratch);
        info.map(|info| (info, head))
    };
    let mut head = ResponseHead::new();
    head.fields.push(b"Content-Length", b"5").unwrap();
    for status in [200, 204, 304, 418, 599, 103] {
        head.status = status;
        for (body, method) in [(BodyLength::Known(5), Method::Get), (BodyLength::None, Method::Head)] {
            let mut out = Vec::new();
            encode_response(&mut out, &head, body, false);
            let (info, got) = read(&out, method).unwrap();
            assert_eq!(got.status, status);
            let none = matches!(status, 103 | 204 | 304) || method == Method::Head;
            assert_eq!(info.body, if none { BodyLength::None } else { BodyLength::Known(5) });
        }
    }
    let mut out = Vec::new();
    head.status = 101;
    encode_response(&mut out, &head, BodyLength::None, false);
    assert!(read(&out, Method::Get).is_err());
    out.clear();
    encode_response(&mut out, &head, BodyLength::None, true);
    let (info, got) = read(&out, Method::Connect).unwrap();
    assert!(info.upgrade && got.fields.is_empty());
}

#[test]
fn a_large_section_has_a_longer_length() {
    let mut head = ResponseHead::new();
    for _ in 0..40 {
        head.fields.push(b"x-large", &[b'v'; 1000]).unwrap();
    }
    let mut out = Vec::new();
    encode_response(&mut out, &head, BodyLength::Chunked, false);
    assert_eq!(reread(&out).0, out.len());
}

#[test]
fn trailers() {
    let mut fields = Fields::new();
    let mut out = Vec::new();
    encode_trailers(&mut out, &fields);
    assert!(out.is_empty());
    fields.push(b"Grpc-Status", b"0").unwrap();
    fields.push(b"Content-Length", b"5").unwrap();
    encode_trailers(&mut out, &fields);
    let mut back = Fields::new();
    let scratch = &mut QpackScratch::default();
    read_trailers(&reread(&out).1, &Limits::default(), &mut back, scratch).unwrap();
    assert_eq!(back.iter().collect::<Vec<_>>(), [(Known::Other, &b"grpc-status"[..], &b"0"[..])]);
    let pseudo = section(&[(":status", "200")]);
    assert_eq!(read_trailers(&pseudo, &Limits::default(), &mut back, scratch), Err(ParseError::PseudoField.into()));
    let value = "v".repeat(110);
    let large = section(&[("x", &*value); 125]);
    let e = read_trailers(&large, &Limits::default(), &mut back, scratch);
    assert_eq!(e, Err(ParseError::TrailersTooLarge.into()));
}
