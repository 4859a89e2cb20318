use super::*;
use crate::fixtures;
use sealane_http::coding::{Codecs, EncodeError, Then};
use sealane_http::h1::{Limits, parse_request, parse_response};

fn rule() -> CompressionRule {
    let types = ["text/*", "application/json", "application/*+xml"].map(|t| MediaTypes::parse(t).unwrap());
    CompressionRule {
        codings: vec![(Coding::Zstd, 3), (Coding::Gzip, 5)],
        types: types.to_vec(),
        min_length: 1000,
        with_credentials: false,
    }
}

fn request(lines: &str) -> RequestHead {
    let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
    let mut head = RequestHead::new();
    parse_request(text.as_bytes(), &Limits::default(), &mut head).unwrap().unwrap();
    head
}

fn response(status: u16, lines: &str) -> ResponseHead {
    let text = format!("HTTP/1.1 {status} S\r\n{lines}\r\n");
    let mut head = ResponseHead::new();
    parse_response(text.as_bytes(), &Limits::default(), Method::Head, &mut head).unwrap().unwrap();
    head
}

/// What becomes of a response with a body of unknown length.
fn judged(rule: &CompressionRule, asked: &str, status: u16, said: &str) -> Verdict {
    let wish = rule.look_at(&request(asked), false);
    judge(rule, wish, &response(status, said), BodyLength::Chunked, Method::Get)
}

const WANTS: &str = "Accept-Encoding: gzip, zstd\r\n";
const TEXT: &str = "Content-Type: text/html; charset=utf-8\r\n";

#[test]
fn types_match_as_they_are_written() {
    let matches = |pattern: &str, value: &str| MediaTypes::parse(pattern).unwrap().matches(value.as_bytes());
    for (pattern, value) in [
        ("text/html", "Text/HTML ; charset=utf-8"),
        ("text/*", "text/css"),
        ("*/*", "video/mp4"),
        ("application/*+json", "application/problem+json"),
        ("APPLICATION/*+JSON", "application/ld+json;a=b"),
        ("application/vnd.*", "application/vnd.ms-fontobject"),
    ] {
        assert!(matches(pattern, value), "{pattern} {value}");
    }
    for (pattern, value) in [
        ("text/html", "text/html2"),
        ("text/*", "textile/css"),
        ("text/*", "text"),
        ("application/*+json", "application/json"),
        ("application/*+json", "text/x+json"),
        ("application/a*a", "application/a"),
    ] {
        assert!(!matches(pattern, value), "{pattern} {value}");
    }
    for none in
        ["", "text", "text/", "/html", "*/html", "te*t/html", "text/a*b*c", "text/html; charset=utf-8", "text/ html"]
    {
        assert_eq!(MediaTypes::parse(none), None, "{none:?}");
    }
}

#[test]
fn a_response_is_compressed_if_everything_allows_it() {
    use Count as C;
    let rule = rule();
    let table: &[(&str, u16, &str, Verdict)] = &[
        (WANTS, 200, TEXT, Verdict::Now(Coding::Zstd, 3)),
        ("Accept-Encoding: gzip\r\n", 404, TEXT, Verdict::Now(Coding::Gzip, 5)),
        ("", 200, TEXT, Verdict::NotNow(Some(C::CompressionSkippedNotAccepted))),
        ("Accept-Encoding: br\r\n", 200, TEXT, Verdict::NotNow(Some(C::CompressionSkippedNotAccepted))),
        // The type.
        (WANTS, 200, "", Verdict::Never(Some(C::CompressionSkippedType))),
        (
            WANTS,
            200,
            "Content-Type: text/html\r\nContent-Type: image/png\r\n",
            Verdict::Never(Some(C::CompressionSkippedType)),
        ),
        (WANTS, 200, "Content-Type: image/png\r\n", Verdict::Never(Some(C::CompressionSkippedType))),
        (WANTS, 200, "Content-Type: Text/Event-Stream\r\n", Verdict::Never(Some(C::CompressionSkippedType))),
        (WANTS, 200, "Content-Type: application/grpc-web+proto\r\n", Verdict::Never(Some(C::CompressionSkippedType))),
        // What the response says of its body.
        (
            WANTS,
            200,
            "Content-Type: text/a\r\nContent-Encoding: br\r\n",
            Verdict::Never(Some(C::CompressionSkippedEncoded)),
        ),
        (
            WANTS,
            200,
            "Content-Type: text/a\r\nCache-Control: max-age=1, No-Transform\r\n",
            Verdict::Never(Some(C::CompressionSkippedNoTransform)),
        ),
        (
            WANTS,
            200,
            "Content-Type: text/a\r\nrepr-digest: sha-256=:AA==:\r\n",
            Verdict::Never(Some(C::CompressionSkippedNoTransform)),
        ),
        // The status.
        (WANTS, 204, TEXT, Verdict::Never(None)),
        (WANTS, 205, TEXT, Verdict::Never(None)),
        (WANTS, 206, TEXT, Verdict::NotNow(None)),
        (WANTS, 206, "Content-Type: video/mp4\r\n", Verdict::Never(None)),
        (WANTS, 304, "", Verdict::NotNow(None)),
        // The request asks for the bytes as they are.
        ("Accept-Encoding: gzip\r\nRange: bytes=0-9\r\n", 200, TEXT, Verdict::NotNow(Some(C::CompressionSkippedRange))),
        (
            "Accept-Encoding: gzip\r\nCache-Control: no-transform\r\n",
            200,
            TEXT,
            Verdict::NotNow(Some(C::CompressionSkippedRange)),
        ),
        // Secrets.
        (
            "Accept-Encoding: gzip\r\nCookie: a=b\r\n",
            200,
            TEXT,
            Verdict::NotNow(Some(C::CompressionSkippedCredentials)),
        ),
        (
            "Accept-Encoding: gzip\r\nAuthorization: Bearer x\r\n",
            200,
            TEXT,
            Verdict::NotNow(Some(C::CompressionSkippedCredentials)),
        ),
        (
            WANTS,
            200,
            "Content-Type: text/a\r\nSet-Cookie: a=b\r\n",
            Verdict::NotNow(Some(C::CompressionSkippedCredentials)),
        ),
    ];
    for (asked, status, said, expected) in table {
        assert_eq!(judged(&rule, asked, *status, said), *expected, "{asked:?} {status} {said:?}");
    }
}

#[test]
fn credentials_can_be_declared_harmless() {
    let rule = CompressionRule { with_credentials: true, ..rule() };
    let compressed = Verdict::Now(Coding::Zstd, 3);
    assert_eq!(judged(&rule, "Accept-Encoding: zstd\r\nCookie: a=b\r\n", 200, TEXT), compressed);
    assert_eq!(judged(&rule, WANTS, 200, "Content-Type: text/a\r\nSet-Cookie: a=b\r\n"), compressed);
}

#[test]
fn a_client_certificate_is_a_credential() {
    let wish = rule().look_at(&request(WANTS), true);
    let verdict = judge(&rule(), wish, &response(200, TEXT), BodyLength::Chunked, Method::Get);
    assert_eq!(verdict, Verdict::NotNow(Some(Count::CompressionSkippedCredentials)));
}

#[test]
fn clients_of_http_1_0_get_no_coding() {
    let mut head = request(WANTS);
    head.version = Version::Http10;
    assert_eq!(rule().look_at(&head, false).coding, None);
}

#[test]
fn short_bodies_stay_as_they_are() {
    let (rule, response) = (rule(), response(200, TEXT));
    let wish = rule.look_at(&request(WANTS), false);
    let of = |body, method| judge(&rule, wish, &response, body, method);
    let short = Verdict::Never(Some(Count::CompressionSkippedShort));
    assert_eq!(of(BodyLength::Known(999), Method::Get), short);
    assert_eq!(of(BodyLength::Known(1000), Method::Get), Verdict::Now(Coding::Zstd, 3));
    assert_eq!(of(BodyLength::UntilClose, Method::Get), Verdict::Now(Coding::Zstd, 3));
    assert_eq!(of(BodyLength::None, Method::Get), Verdict::Never(None));
    let any = CompressionRule { min_length: 0, ..rule.clone() };
    assert_eq!(judge(&any, wish, &response, BodyLength::Known(0), Method::Get), short, "there is nothing to compress");
}

#[test]
fn head_is_told_what_get_would_be_told() {
    let rule = rule();
    let wish = rule.look_at(&request(WANTS), false);
    let of = |lines: &str| judge(&rule, wish, &response(200, lines), BodyLength::None, Method::Head);
    assert_eq!(of("Content-Type: text/a\r\nContent-Length: 5000\r\n"), Verdict::Now(Coding::Zstd, 3));
    assert_eq!(of(TEXT), Verdict::Now(Coding::Zstd, 3));
    let short = of("Content-Type: text/a\r\nContent-Length: 5\r\n");
    assert_eq!(short, Verdict::Never(Some(Count::CompressionSkippedShort)));
}

#[test]
fn a_coded_response_is_another_representation() {
    let mut head = response(
        200,
        "Content-Type: text/a\r\nContent-Length: 5000\r\nAccept-Ranges: bytes\r\nETag: \"v1\"\r\nVary: Origin\r\n",
    );
    add_vary(&mut head.fields);
    describe(Coding::Gzip, &mut head.fields);
    let fields = &head.fields;
    assert_eq!(fields.get(Known::ContentEncoding), Some(&b"gzip"[..]));
    assert_eq!(fields.get(Known::Etag), Some(&b"W/\"v1\""[..]));
    assert_eq!(fields.all(Known::Vary).collect::<Vec<_>>(), [&b"Origin"[..], b"Accept-Encoding"]);
    assert!(!fields.contains(Known::ContentLength) && fields.get_named(b"Accept-Ranges").is_none());
    for (etag, vary) in [("W/\"v1\"", "Accept-Encoding"), ("W/\"v1\"", "Origin, accept-encoding"), ("W/\"v1\"", "*")] {
        let mut head = response(200, &format!("ETag: {etag}\r\nVary: {vary}\r\n"));
        add_vary(&mut head.fields);
        describe(Coding::Gzip, &mut head.fields);
        assert_eq!(head.fields.get(Known::Etag), Some(etag.as_bytes()), "it is weak already");
        assert_eq!(head.fields.all(Known::Vary).collect::<Vec<_>>(), [vary.as_bytes()], "it is said already");
    }
}

#[test]
fn not_modified_names_the_validator_that_the_client_knows() {
    for (asked, etag) in [
        ("If-None-Match: W/\"v1\"\r\n", "W/\"v1\""),
        ("If-None-Match: \"x\", W/\"v1\"\r\n", "W/\"v1\""),
        ("If-None-Match: \"v1\"\r\n", "\"v1\""),
        ("If-None-Match: W/\"v2\"\r\n", "\"v1\""),
        ("", "\"v1\""),
    ] {
        let mut head = response(304, "ETag: \"v1\"\r\n");
        weaken_not_modified(&request(asked).fields, &mut head.fields);
        assert_eq!(head.fields.get(Known::Etag), Some(etag.as_bytes()), "{asked:?}");
    }
}

#[test]
fn digests_in_trailers_are_not_those_of_the_coded_body() {
    let mut trailers = Fields::new();
    for name in ["Content-Digest", "X-Sum", "Signature"] {
        trailers.push(name.as_bytes(), b"1").unwrap();
    }
    trailers.push(b"ETag", b"\"v1\"").unwrap();
    clean_trailers(&mut trailers);
    assert_eq!(trailers.iter().map(|(_, name, _)| name).collect::<Vec<_>>(), [&b"X-Sum"[..], b"ETag"]);
    assert_eq!(trailers.get(Known::Etag), Some(&b"W/\"v1\""[..]));
}

#[test]
fn trailers_that_do_not_come_are_not_announced() {
    for (announced, left) in [
        ("Trailer: X-T, Content-Digest\r\n", Some("X-T")),
        ("Trailer: content-digest\r\n", None),
        ("Trailer: Signature\r\nTrailer: A,, repr-digest, B\r\n", Some("A, B")),
        ("Trailer: A,B\r\n", Some("A,B")),
    ] {
        let mut head = response(200, announced);
        describe(Coding::Gzip, &mut head.fields);
        assert_eq!(head.fields.get(Known::Trailer), left.map(str::as_bytes), "{announced}");
        assert!(head.fields.all(Known::Trailer).count() <= 1, "{announced}");
    }
}

#[test]
fn a_validator_without_quotes_is_not_passed_on_as_a_strong_one() {
    for (etag, left) in [("v1", None), ("W/v1", None), ("W/\"v1\"", Some("W/\"v1\""))] {
        let mut head = response(200, &format!("ETag: {etag}\r\n"));
        describe(Coding::Gzip, &mut head.fields);
        assert_eq!(head.fields.get(Known::Etag), left.map(str::as_bytes), "{etag}");
    }
}

/// Codes nothing.
#[derive(Debug)]
struct Plain;

impl Encoder for Plain {
    fn encode(&mut self, data: &[u8], _: Then, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(data);
        Ok(())
    }

    fn memory(&self) -> usize {
        100
    }

    fn reset(&mut self) -> bool {
        true
    }
}

impl Codecs for Plain {
    fn encoder(&self, _: Coding, _: u8) -> Option<Box<dyn Encoder>> {
        Some(Box::new(Plain))
    }
}

fn settings(compressors: usize) -> (LaneSettings, impl Sized) {
    let limits = crate::snapshot::ClientLimits { compressors, ..fixtures::limits() };
    let mut snapshot = fixtures::snapshot(limits, Vec::new());
    snapshot.codecs = Some(std::sync::Arc::new(Plain));
    fixtures::settings(snapshot)
}

#[test]
fn there_are_no_more_encoders_than_may_be() {
    let (settings, _published) = settings(2);
    let mut compressors = Compressors::default();
    let take = |compressors: &mut Compressors| compressors.take(&settings, Coding::Gzip, 5);
    let first = take(&mut compressors).unwrap();
    assert!(take(&mut compressors).is_some() && take(&mut compressors).is_none());
    compressors.give_back(Coding::Gzip, 5, first);
    assert_eq!(compressors.active(), 1);
    assert!(
        take(&mut compressors).is_some() && compressors.free_idle() == 0,
        "the one that was given back is used again"
    );
}

#[test]
fn few_encoders_wait_for_their_next_body() {
    let (settings, _published) = settings(100);
    let mut compressors = Compressors::default();
    let all: Vec<_> = (0..20).map(|_| compressors.take(&settings, Coding::Gzip, 5).unwrap()).collect();
    all.into_iter().for_each(|encoder| compressors.give_back(Coding::Gzip, 5, encoder));
    assert_eq!((compressors.active(), compressors.free_idle()), (0, IDLE * 100));
}

#[test]
fn a_turn_has_so_much_time_and_those_that_waited_go_first() {
    let mut cx = Context::new().unwrap();
    cx.turns = 1;
    let mut compressors = Compressors::default();
    assert!(compressors.has_time(&cx, false));
    let Some(long_ago) = Instant::now().checked_sub(TURN) else { return };
    compressors.worked_since(&cx, long_ago);
    assert!(!compressors.has_time(&cx, false) && !compressors.has_time(&cx, true), "it is used up");
    let (first, second) = (Key::from_u64(1), Key::from_u64(2));
    compressors.wait(first);
    compressors.wait(second);
    assert_eq!(compressors.next_waiting(&cx), None);
    cx.turns = 2;
    assert!(!compressors.has_time(&cx, false), "others wait");
    assert_eq!(compressors.next_waiting(&cx), Some(first));
    compressors.worked_since(&cx, long_ago);
    assert_eq!(compressors.next_waiting(&cx), None, "the first one has used it up");
    cx.turns = 3;
    assert_eq!((compressors.next_waiting(&cx), compressors.waiting()), (Some(second), 0));
    assert!(compressors.has_time(&cx, false));
}

#[test]
fn a_lane_whose_turns_are_long_is_late() {
    let mut compressors = Compressors::default();
    compressors.turn_took(3_600_000_000);
    assert!(!compressors.is_late(), "one turn says little");
    (0..20).for_each(|_| compressors.turn_took(3 * LATE));
    assert!(compressors.is_late());
    (0..40).for_each(|_| compressors.turn_took(100));
    assert!(!compressors.is_late());
}
