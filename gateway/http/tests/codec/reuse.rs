//! A head that has seen a message takes another like it without asking for memory: its capacity stays, and its bytes
//! stay where they were.

use sealane_http::h1::{
    BodyDecoder, ConnectionOption, Limits, What, encode_request, encode_response, parse_request, parse_response,
};
use sealane_http::{BodyLength, Known, Method, RequestHead, ResponseHead, Version};

const REQUEST: &[u8] = b"PURGE /a?b HTTP/1.1\r\nHost: www.example.com:81\r\nA: b\r\nConnection: x-c\r\nX-C: d\r\n\
    Accept: */*\r\nCookie: e=f\r\nContent-Length: 5\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 404 Not Found\r\nServer: x\r\nContent-Type: text/html\r\n\
    Transfer-Encoding: chunked\r\n\r\n";

#[test]
fn requests() {
    let limits = Limits::default();
    let (mut head, mut out) = (RequestHead::new(), Vec::new());
    let mut first = None;
    for round in 0..100 {
        let info = parse_request(REQUEST, &limits, &mut head).unwrap().unwrap();
        head.fields.set(Known::XForwardedFor, b"192.0.2.1").unwrap();
        head.fields.set(Known::XForwardedProto, b"https").unwrap();
        out.clear();
        encode_request(&mut out, &head, info.body, ConnectionOption::KeepAlive);
        let now = (
            head.capacity(),
            out.capacity(),
            head.target().as_ptr(),
            head.authority().as_ptr(),
            head.host_name().as_ptr(),
            head.method_name().as_ptr(),
            head.fields.get(Known::Cookie).unwrap().as_ptr(),
            out.as_ptr(),
        );
        // The first round makes room; pushing behind the parsed fields may move them once.
        if round == 1 {
            first = Some(now);
        }
        if round > 1 {
            assert_eq!(Some(now), first, "round {round}");
        }
    }
}

#[test]
fn responses_and_bodies() {
    let limits = Limits::default();
    let (mut head, mut out) = (ResponseHead::new(), Vec::new());
    let mut body = BodyDecoder::new(BodyLength::None, &limits);
    let chunks = b"3\r\nabc\r\n0\r\nChecksum: 1\r\n\r\n";
    let mut first = None;
    for round in 0..100 {
        let info = parse_response(RESPONSE, &limits, Method::Get, &mut head).unwrap().unwrap();
        out.clear();
        encode_response(&mut out, &head, Version::Http11, info.body, ConnectionOption::KeepAlive);
        body.reset(info.body);
        let data = body.decode(chunks).unwrap();
        // Nothing is copied: the piece lies in the input.
        assert_eq!(data.what, What::Data(&chunks[3..6]));
        assert!(matches!(data.what, What::Data(d) if d.as_ptr() == chunks[3..].as_ptr()));
        assert_eq!(body.decode(&chunks[data.consumed..]).unwrap().what, What::Trailers);
        let now = (
            head.capacity(),
            out.capacity(),
            body.trailers().capacity(),
            head.reason().as_ptr(),
            head.fields.get(Known::Server).unwrap().as_ptr(),
            body.trailers().get_named(b"checksum").unwrap().as_ptr(),
            out.as_ptr(),
        );
        if round == 0 {
            first = Some(now);
        }
        assert_eq!(Some(now), first, "round {round}");
    }
}

#[test]
fn memory_of_a_large_head_is_given_back() {
    let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", format!("X: {}\r\n", "y".repeat(250)).repeat(100));
    let mut head = RequestHead::new();
    parse_request(text.as_bytes(), &Limits::default(), &mut head).unwrap().unwrap();
    assert!(head.capacity() > 25_000);
    head.clear();
    head.shrink_to(1024);
    assert!(head.capacity() <= 5 * 1024, "{}", head.capacity());
}
