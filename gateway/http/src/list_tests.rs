use super::*;

type Pairs<'a> = &'a [(&'a str, &'a str)];
type Regular<'a> = Vec<(&'a [u8], &'a [u8])>;

fn split<'a>(list: Pairs<'a>) -> (Result<Pseudo<'a>, ParseError>, Regular<'a>) {
    let mut pseudo = Ok(Pseudo::default());
    let mut fields = Vec::new();
    for (name, value) in list {
        if name.starts_with(':') && fields.is_empty() {
            pseudo = pseudo.and_then(|mut p: Pseudo<'a>| p.put(name.as_bytes(), value.as_bytes()).map(|()| p));
        } else {
            fields.push((name.as_bytes(), value.as_bytes()));
        }
    }
    (pseudo, fields)
}

fn request(list: Pairs<'_>, ended: bool) -> Result<(ListInfo, RequestHead), ParseError> {
    let mut head = RequestHead::new();
    let (pseudo, fields) = split(list);
    let info = read_request(&pseudo?, fields.into_iter(), Version::Http2, ended, &Limits::default(), &mut head)?;
    Ok((info, head))
}

fn response(list: Pairs<'_>, ended: bool, method: Method) -> Result<(ListInfo, ResponseHead), ParseError> {
    let mut head = ResponseHead::new();
    let (pseudo, fields) = split(list);
    let fields = fields.into_iter();
    let info = read_response(&pseudo?, fields, Version::Http2, ended, &Limits::default(), method, &mut head)?;
    Ok((info, head))
}

const GET: [(&str, &str); 4] = [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/")];

fn with<'a>(start: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [start, more].concat()
}

#[test]
fn a_request() {
    let list = with(
        &GET,
        &[("cookie", "a=1"), ("te", "trailers"), ("x", "y"), ("cookie", "b=2"), ("content-length", "5"), ("host", "A")],
    );
    let (info, head) = request(&list, false).unwrap();
    assert_eq!(info, ListInfo { body: BodyLength::Known(5), expect_continue: false, upgrade: false });
    assert_eq!((head.method(), head.target(), head.host_name()), (Method::Get, &b"/"[..], "a"));
    assert!(head.accepts_trailers && !head.fields.contains(Known::Te) && !head.fields.contains(Known::Host));
    assert_eq!(head.fields.all(Known::Cookie).collect::<Vec<_>>(), [&b"a=1; b=2"[..]]);
    assert_eq!(request(&GET, true).unwrap().0.body, BodyLength::None);
    assert_eq!(request(&GET, false).unwrap().0.body, BodyLength::Chunked);
    // The authority may come as Host alone (RFC 9113 §8.3.1).
    let list = [(":method", "GET"), (":scheme", "http"), (":path", "/x"), ("host", "b:80")];
    assert_eq!(request(&list, true).unwrap().1.authority(), b"b:80");
}

#[test]
fn connects() {
    let list = [(":method", "CONNECT"), (":authority", "a:1")];
    let (info, head) = request(&list, false).unwrap();
    assert_eq!((info.body, info.upgrade, head.target()), (BodyLength::None, false, &b"a:1"[..]));
    let list = with(&[(":method", "CONNECT"), (":protocol", "websocket")], &GET[1..]);
    let (info, head) = request(&list, false).unwrap();
    assert_eq!((info.body, info.upgrade, head.method()), (BodyLength::None, true, Method::Get));
    assert_eq!(head.fields.get(Known::Upgrade), Some(&b"websocket"[..]));
    for (list, error) in [
        (with(&[(":method", "CONNECT")], &GET[1..]), ParseError::PseudoField),
        (vec![(":method", "CONNECT"), (":authority", "a")], ParseError::Target),
        (vec![(":method", "CONNECT")], ParseError::PseudoField),
        (with(&[(":method", "CONNECT"), (":protocol", "connect-udp")], &GET[1..]), ParseError::Protocol),
        (with(&[(":protocol", "websocket")], &GET), ParseError::PseudoField),
        (with(&list, &[("content-length", "1")]), ParseError::BodyForbidden),
    ] {
        assert_eq!(request(&list, false).err(), Some(error), "{list:?}");
    }
}

#[test]
fn refused_requests() {
    for (more, error) in [
        (&[(":path", "/")][..], ParseError::PseudoField),
        (&[(":status", "200")], ParseError::PseudoField),
        (&[(":x", "")], ParseError::PseudoField),
        (&[("a", "b"), (":path", "/")], ParseError::PseudoField),
        (&[("X", "y")], ParseError::FieldCase),
        (&[("", "y")], ParseError::FieldName),
        (&[("a b", "y")], ParseError::FieldName),
        (&[("a", " b")], ParseError::FieldValue),
        (&[("a", "b\r\nc: d")], ParseError::FieldValue),
        (&[("a", "b\0")], ParseError::FieldValue),
        (&[("cookie", "a\n"), ("cookie", "b")], ParseError::FieldValue),
        (&[("connection", "close")], ParseError::ConnectionField),
        (&[("keep-alive", "5")], ParseError::ConnectionField),
        (&[("proxy-connection", "x")], ParseError::ConnectionField),
        (&[("transfer-encoding", "chunked")], ParseError::ConnectionField),
        (&[("upgrade", "websocket")], ParseError::ConnectionField),
        (&[("te", "gzip")], ParseError::ConnectionField),
        (&[("content_length", "1")], ParseError::FieldLookalike),
        (&[("host", "b")], ParseError::HostMismatch),
        (&[("host", "a"), ("host", "a")], ParseError::HostDuplicate),
        (&[("content-length", "5"), ("content-length", "5")], ParseError::ContentLengthDuplicate),
        (&[("content-length", "5, 5")], ParseError::ContentLength),
        (&[("content-length", "+5")], ParseError::ContentLength),
        (&[("content-length", "5")], ParseError::LengthMismatch),
        (&[("expect", "x")], ParseError::Expect),
    ] {
        let list = with(&GET, more);
        assert_eq!(request(&list, true).err(), Some(error), "{more:?}");
    }
    for (at, value, error) in [
        (0, "G ET", ParseError::Method),
        (0, "", ParseError::Method),
        (1, "ftp", ParseError::Target),
        (2, "u@a", ParseError::Userinfo),
        (2, "", ParseError::Host),
        (3, "", ParseError::Target),
        (3, "a", ParseError::Target),
        (3, "*", ParseError::Target),
        (3, "/a b", ParseError::Target),
        (3, "/a#b", ParseError::Target),
    ] {
        let mut list = GET;
        list[at].1 = value;
        assert_eq!(request(&list, true).err(), Some(error), "{value}");
        let less: Vec<_> = GET.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, f)| *f).collect();
        let missing = if at == 2 { ParseError::HostMissing } else { ParseError::PseudoField };
        assert_eq!(request(&less, true).err(), Some(missing), "without {at}");
    }
    let many: Vec<_> = (0..200).map(|_| ("a", "b")).collect();
    assert_eq!(request(&with(&GET, &many), true).err(), Some(ParseError::TooManyFields));
    let large = "x".repeat(40_000);
    assert_eq!(request(&with(&GET, &[("a", &large)]), true).err(), Some(ParseError::HeadTooLarge));
    let path = format!("/{}", "x".repeat(9000));
    assert_eq!(request(&[GET[0], GET[1], GET[2], (":path", &path)], true).err(), Some(ParseError::TargetTooLong));
    let trace = [(":method", "TRACE"), GET[1], GET[2], GET[3]];
    assert_eq!(request(&trace, false).err(), Some(ParseError::BodyForbidden));
}

#[test]
fn responses() {
    use BodyLength::{Chunked, Known, None};
    for (method, status, length, ended, want) in [
        (Method::Get, "200", Some("5"), false, Ok(Known(5))),
        (Method::Get, "200", Some("5"), true, Err(ParseError::LengthMismatch)),
        (Method::Get, "200", Option::None, false, Ok(Chunked)),
        (Method::Get, "200", Option::None, true, Ok(Known(0))),
        (Method::Head, "200", Some("5"), true, Ok(None)),
        (Method::Get, "304", Some("5"), true, Ok(None)),
        (Method::Get, "204", Option::None, true, Ok(None)),
        (Method::Get, "103", Option::None, false, Ok(None)),
        (Method::Get, "103", Option::None, true, Err(ParseError::BodyForbidden)),
        (Method::Get, "101", Option::None, false, Err(ParseError::Upgrade)),
        (Method::Get, "600", Option::None, true, Err(ParseError::StatusLine)),
        (Method::Get, "20", Option::None, true, Err(ParseError::StatusLine)),
    ] {
        let mut list = vec![(":status", status)];
        list.extend(length.map(|l| ("content-length", l)));
        assert_eq!(response(&list, ended, method).map(|(info, _)| info.body), want, "{method:?} {status} {ended}");
    }
    assert!(response(&[(":status", "200")], false, Method::Connect).unwrap().0.upgrade);
    assert_eq!(response(&[], true, Method::Get).err(), Some(ParseError::PseudoField));
    let list = [(":status", "200"), (":path", "/")];
    assert_eq!(response(&list, true, Method::Get).err(), Some(ParseError::PseudoField));
    let list = [(":status", "200"), ("connection", "close")];
    assert_eq!(response(&list, true, Method::Get).err(), Some(ParseError::ConnectionField));
}

#[test]
fn trailers() {
    let read = |list: Pairs<'_>| {
        let mut trailers = Fields::new();
        let (_, fields) = split(list);
        read_trailers(fields.into_iter(), &Limits::default(), &mut trailers).map(|()| trailers)
    };
    let trailers = read(&[("grpc-status", "0"), ("content-length", "1"), ("host", "x")]).unwrap();
    assert_eq!(trailers.iter().map(|(_, n, _)| n).collect::<Vec<_>>(), [b"grpc-status"]);
    assert_eq!(read(&[("a", "b"), (":path", "/")]).err(), Some(ParseError::PseudoField));
    assert_eq!(read(&[("A", "b")]).err(), Some(ParseError::FieldCase));
    let most = "x".repeat(Limits::default().trailers - 33);
    assert_eq!(read(&[("a", &most)]).unwrap().len(), 1);
    let large = format!("{most}x");
    assert_eq!(read(&[("a", &large)]).err(), Some(ParseError::TrailersTooLarge));
}
