use super::super::frame::{MessageReader, Piece, Side};
use super::*;

fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = vec![0, 0];
    for (name, value) in fields {
        // As they stand, upper case and all.
        out.push(0x27);
        out.push(name.len() as u8 - 7);
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

fn request(fields: &[(&str, &str)]) -> Result<(RequestInfo, RequestHead), H3Error> {
    let mut head = RequestHead::new();
    let info = read_request(&section(fields), &Limits::default(), &mut head, &mut QpackScratch::default())?;
    Ok((info, head))
}

fn refused(fields: &[(&str, &str)]) -> ParseError {
    match request(fields) {
        Err(H3Error::Message(e)) => e,
        other => panic!("{fields:?}: {other:?}"),
    }
}

const GET: [(&str, &str); 4] = [(":method", "GET"), (":scheme", "https"), (":authority", "a.b"), (":path", "/x?y")];

fn get_and(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    GET.iter().chain(more).copied().collect()
}

#[test]
fn a_request() {
    let fields = get_and(&[("accept", "*/*"), ("te", "trailers"), ("cookie", "a=1"), ("x-y", "z"), ("cookie", "b=2")]);
    let (info, head) = request(&fields).unwrap();
    assert_eq!(info, RequestInfo { content_length: None, expect_continue: false, websocket: false });
    assert_eq!((head.method(), head.target(), head.host_name()), (Method::Get, &b"/x?y"[..], "a.b"));
    assert_eq!((head.version, head.scheme, head.accepts_trailers), (Version::Http3, Some(Scheme::Https), true));
    assert_eq!(head.fields.all(Known::Cookie).collect::<Vec<_>>(), [&b"a=1; b=2"[..]]);
    assert_eq!(head.fields.len(), 3);
}

#[test]
fn hosts() {
    let with_host = [(":method", "GET"), (":scheme", "https"), (":path", "/"), ("host", "c.d:1")];
    let (_, head) = request(&with_host).unwrap();
    assert_eq!((head.authority(), head.fields.len()), (&b"c.d:1"[..], 0));
    assert!(request(&get_and(&[("host", "A.b")])).is_ok());
    assert_eq!(refused(&get_and(&[("host", "other")])), ParseError::HostMismatch);
    assert_eq!(refused(&get_and(&[("host", "a.b"), ("host", "a.b")])), ParseError::HostDuplicate);
    assert_eq!(refused(&with_host[..3]), ParseError::HostMissing);
}

#[test]
fn connects() {
    let (_, head) = request(&[(":method", "CONNECT"), (":authority", "a:443")]).unwrap();
    assert_eq!((head.target(), head.port()), (&b"a:443"[..], Some(443)));
    assert_eq!(refused(&[(":method", "CONNECT"), (":authority", "a")]), ParseError::PseudoField);
    assert_eq!(refused(&[(":method", "CONNECT"), (":authority", "a:1"), (":path", "/")]), ParseError::PseudoField);
    let websocket = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":path", "/chat"),
        (":authority", "a"),
        ("sec-websocket-version", "13"),
    ];
    let (info, head) = request(&websocket).unwrap();
    assert!(info.websocket);
    assert_eq!((head.method(), head.target(), head.host_name()), (Method::Connect, &b"/chat"[..], "a"));
    assert_eq!(refused(&get_and(&[])[..3]), ParseError::PseudoField);
    let mut get = websocket;
    get[0].1 = "GET";
    assert_eq!(refused(&get), ParseError::PseudoField);
    let mut other = websocket;
    other[1].1 = "webtransport";
    assert_eq!(refused(&other), ParseError::Upgrade);
}

#[test]
fn what_is_refused() {
    for (more, error) in [
        ((":method", "GET"), ParseError::PseudoField),
        ((":status", "200"), ParseError::PseudoField),
        ((":new", "1"), ParseError::PseudoField),
        (("Accept", "x"), ParseError::FieldCase),
        (("connection", "close"), ParseError::ConnectionField),
        (("transfer-encoding", "chunked"), ParseError::ConnectionField),
        (("upgrade", "h2c"), ParseError::ConnectionField),
        (("keep-alive", "1"), ParseError::ConnectionField),
        (("proxy-connection", "x"), ParseError::ConnectionField),
        (("te", "gzip"), ParseError::ConnectionField),
        (("content_length", "1"), ParseError::FieldLookalike),
        (("content-length", "1, 1"), ParseError::ContentLength),
        (("content-length", "+1"), ParseError::ContentLength),
        (("a b", "x"), ParseError::FieldName),
        (("x", "a\r\nb: c"), ParseError::FieldValue),
        (("x", " a"), ParseError::FieldValue),
        (("x", "a\0"), ParseError::FieldValue),
        (("cookie", "a\nb"), ParseError::FieldValue),
        (("expect", "magic"), ParseError::Expect),
    ] {
        assert_eq!(refused(&get_and(&[more])), error, "{more:?}");
    }
    assert_eq!(refused(&get_and(&[("x", "y"), (":path", "/")])), ParseError::PseudoField);
    let two = [("content-length", "1"), ("content-length", "1")];
    assert_eq!(refused(&get_and(&two)), ParseError::ContentLengthDuplicate);
    for (i, bad, error) in [
        (0, "GE T", ParseError::Method),
        (1, "ftp", ParseError::Target),
        (2, "u@a", ParseError::Userinfo),
        (3, "x", ParseError::Target),
        (3, "*", ParseError::Target),
        (3, "", ParseError::Target),
        (3, "/a b", ParseError::Target),
        (3, "/a#b", ParseError::Target),
    ] {
        let mut fields = GET;
        fields[i].1 = bad;
        assert_eq!(refused(&fields), error, "{bad:?}");
    }
    for missing in [0, 1, 3] {
        let mut fields = GET.to_vec();
        fields.remove(missing);
        assert_eq!(refused(&fields), ParseError::PseudoField);
    }
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
    let info = read_request(&section, &Limits::default(), &mut back, &mut QpackScratch::default()).unwrap();
    assert_eq!(info.content_length, Some(7));
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
    out.clear();
    encode_request(&mut out, &get, BodyLength::None, Scheme::Https, true);
    let (_, section) = reread(&out);
    assert!(read_request(&section, &Limits::default(), &mut back, &mut QpackScratch::default()).unwrap().websocket);
}

#[test]
fn responses_round_trip() {
    let read = |out: &[u8], method| {
        let mut head = ResponseHead::new();
        let info = read_response(&reread(out).1, &Limits::default(), method, &mut head, &mut QpackScratch::default());
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
            assert_eq!((got.status, info.interim), (status, status == 103));
            let none = matches!(status, 103 | 204 | 304) || method == Method::Head;
            assert_eq!(info.body, if none { BodyLength::None } else { BodyLength::Known(5) });
        }
    }
    let mut out = Vec::new();
    head.status = 101;
    encode_response(&mut out, &head, BodyLength::None, false);
    assert!(read(&out, Method::Get).is_err());
    out.clear();
    head.status = 200;
    encode_response(&mut out, &head, BodyLength::None, true);
    let (info, got) = read(&out, Method::Connect).unwrap();
    assert!(info.tunnel && got.fields.is_empty());
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
    let large = section(&[("x", "vvvvvvvvvvvvvvvvvvvvvvvvvvvvv"); 100]);
    let e = read_trailers(&large, &Limits::default(), &mut back, scratch);
    assert_eq!(e, Err(ParseError::TrailersTooLarge.into()));
}
