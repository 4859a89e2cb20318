//! Heads between `h2`'s form (the `http` crate's) and ours. What comes in goes through `sealane_http::list`, which
//! judges it; what goes out has been judged already.

use super::trailers::Noted;
use crate::exchange::Exchange;
use bytes::{Bytes, BytesMut};
use h2::ext::Protocol;
use http::header::{self, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TE};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Method, Request, Response, StatusCode};
use sealane_http::h1::Limits;
use sealane_http::list::{self, ListInfo, Pseudo};
use sealane_http::{BodyLength, Fields, Known, ParseError, RequestHead, ResponseHead, Version};

/// A part of our message that the `http` crate does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unfit;

fn pairs(fields: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
}

/// Reads a request that `h2` has taken apart.
pub(crate) fn read_request(
    parts: &http::request::Parts,
    ended: bool,
    limits: &Limits,
    head: &mut RequestHead,
) -> Result<ListInfo, ParseError> {
    let protocol = parts.extensions.get::<Protocol>();
    let uri = &parts.uri;
    let connect = parts.method == Method::CONNECT && protocol.is_none();
    // `h2` has refused what has no `:scheme`, but cannot say which it is without an `:authority` beside it, which is
    // valid where there is a `host` (RFC 9113 §8.3.1).
    let dropped = uri.authority().is_none() && !connect;
    let pseudo = Pseudo {
        method: Some(parts.method.as_str().as_bytes()),
        scheme: uri.scheme_str().or(dropped.then_some("https")).map(str::as_bytes),
        authority: uri.authority().map(|a| a.as_str().as_bytes()),
        // For CONNECT the `http` crate has no path, and for others always one.
        path: uri.path_and_query().filter(|_| !connect).map(|p| p.as_str().as_bytes()),
        protocol: protocol.map(|p| p.as_str().as_bytes()),
        status: None,
    };
    list::read_request(&pseudo, pairs(&parts.headers), Version::Http2, ended, limits, head)
}

/// Reads a response, interim or final. `noted`: what was in its head's block.
pub(crate) fn read_response(
    parts: &http::response::Parts,
    noted: Option<Noted>,
    ended: bool,
    limits: &Limits,
    method: sealane_http::Method,
    head: &mut ResponseHead,
) -> Result<ListInfo, ParseError> {
    if let Some(noted) = noted {
        noted.check_response(&parts.headers)?;
    }
    let pseudo = Pseudo { status: Some(parts.status.as_str().as_bytes()), ..Pseudo::default() };
    list::read_response(&pseudo, pairs(&parts.headers), Version::Http2, ended, limits, method, head)
}

/// Reads trailers that `h2` has handed out, if there are any. `noted`: what was in their block; `most`: the limit of `h2`, above
/// which it drops fields.
pub(crate) fn read_trailers(
    trailers: Option<&HeaderMap>,
    noted: Option<Noted>,
    most: usize,
    limits: &Limits,
    into: &mut Fields,
) -> Result<(), ParseError> {
    let Some(trailers) = trailers else { return Ok(()) };
    // Of trailers of which nothing is known any more, nobody can say that they are whole.
    noted.ok_or(ParseError::PseudoField)?.check_trailers(trailers, most)?;
    list::read_trailers(pairs(trailers), limits, into)
}

/// The `http` crate's form of a name. Known names that are common are not parsed again.
#[inline]
fn header_name(known: Known, name: &[u8]) -> Result<HeaderName, Unfit> {
    Ok(match known {
        Known::Accept => header::ACCEPT,
        Known::AcceptEncoding => header::ACCEPT_ENCODING,
        Known::AcceptLanguage => header::ACCEPT_LANGUAGE,
        Known::Age => header::AGE,
        Known::AltSvc => header::ALT_SVC,
        Known::Authorization => header::AUTHORIZATION,
        Known::CacheControl => header::CACHE_CONTROL,
        Known::ContentEncoding => header::CONTENT_ENCODING,
        Known::ContentRange => header::CONTENT_RANGE,
        Known::ContentType => header::CONTENT_TYPE,
        Known::Cookie => header::COOKIE,
        Known::Date => header::DATE,
        Known::Etag => header::ETAG,
        Known::Expires => header::EXPIRES,
        Known::Forwarded => header::FORWARDED,
        Known::IfModifiedSince => header::IF_MODIFIED_SINCE,
        Known::IfNoneMatch => header::IF_NONE_MATCH,
        Known::LastModified => header::LAST_MODIFIED,
        Known::Location => header::LOCATION,
        Known::Origin => header::ORIGIN,
        Known::Range => header::RANGE,
        Known::Referer => header::REFERER,
        Known::Server => header::SERVER,
        Known::SetCookie => header::SET_COOKIE,
        Known::StrictTransportSecurity => header::STRICT_TRANSPORT_SECURITY,
        Known::UserAgent => header::USER_AGENT,
        Known::Vary => header::VARY,
        Known::Via => header::VIA,
        // The gateway adds these to every request.
        Known::XForwardedFor => const { HeaderName::from_static("x-forwarded-for") },
        Known::XForwardedHost => const { HeaderName::from_static("x-forwarded-host") },
        Known::XForwardedProto => const { HeaderName::from_static("x-forwarded-proto") },
        _ => HeaderName::from_bytes(name).map_err(|_| Unfit)?,
    })
}

/// Fields in the form of the `http` crate. All values lie in one allocation of `room` bytes, which they fit into.
fn write_fields<'a>(
    fields: impl Iterator<Item = (Known, &'a [u8], &'a [u8])> + Clone,
    most: usize,
    room: usize,
) -> Result<HeaderMap, Unfit> {
    let mut text = BytesMut::with_capacity(room);
    fields.clone().for_each(|(_, _, value)| text.extend_from_slice(value));
    let mut text: Bytes = text.freeze();
    let mut map = HeaderMap::with_capacity(most);
    for (known, name, value) in fields {
        let name = header_name(known, name)?;
        let value = HeaderValue::from_maybe_shared(text.split_to(value.len())).map_err(|_| Unfit)?;
        map.append(name, value);
    }
    Ok(map)
}

/// The request of an exchange, for an upstream. `websocket`: as an extended CONNECT (RFC 8441 §5).
pub(crate) fn write_request(x: &Exchange, secure: bool, websocket: bool) -> Result<Request<()>, Unfit> {
    let head = x.request();
    let connect = head.method() == sealane_http::Method::Connect;
    let fields = head.fields.end_to_end().filter(|(known, name, _)| {
        !(matches!(known, Known::ContentLength | Known::Host)
            || websocket && *known == Known::Other && name.eq_ignore_ascii_case(b"sec-websocket-key"))
    });
    let mut map = write_fields(fields, head.fields.len() + 2, head.fields.text_len())?;
    if let BodyLength::Known(n) = x.body() {
        map.insert(CONTENT_LENGTH, HeaderValue::from(n));
    }
    if head.accepts_trailers {
        map.insert(TE, HeaderValue::from_static("trailers"));
    }
    let mut uri = http::uri::Parts::default();
    if !head.authority().is_empty() {
        uri.authority = Some(Authority::try_from(head.authority()).map_err(|_| Unfit)?);
    }
    if !connect {
        uri.scheme = Some(if secure { Scheme::HTTPS } else { Scheme::HTTP });
        uri.path_and_query = Some(PathAndQuery::try_from(head.target()).map_err(|_| Unfit)?);
    }
    let mut request = Request::new(());
    *request.uri_mut() = Uri::from_parts(uri).map_err(|_| Unfit)?;
    *request.headers_mut() = map;
    *request.method_mut() = Method::from_bytes(head.method_name()).map_err(|_| Unfit)?;
    if websocket {
        *request.method_mut() = Method::CONNECT;
        request.extensions_mut().insert(Protocol::from_static("websocket"));
    }
    Ok(request)
}

/// The response of an exchange, for a client; 101 becomes 200 (RFC 8441 §5).
pub(crate) fn write_response(head: &ResponseHead, body: BodyLength) -> Result<Response<()>, Unfit> {
    let switched = head.status == 101;
    let interim = head.status < 200 && !switched;
    // As in HTTP/1.1: what a GET would get is described, and where nothing may be said nothing is.
    let describes = body == BodyLength::None && !interim && !switched && head.status != 204;
    let fields = head.fields.end_to_end().filter(|(known, name, _)| {
        !(*known == Known::ContentLength && !describes
            || switched && *known == Known::Other && name.eq_ignore_ascii_case(b"sec-websocket-accept"))
    });
    let mut response = Response::new(());
    *response.headers_mut() = write_fields(fields, head.fields.len() + 1, head.fields.text_len())?;
    if let BodyLength::Known(n) = body {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(n));
    }
    *response.status_mut() =
        if switched { StatusCode::OK } else { StatusCode::from_u16(head.status).map_err(|_| Unfit)? };
    Ok(response)
}

/// Trailers. They have been judged; if one does not fit after all, none is sent.
pub(crate) fn write_trailers(trailers: &Fields) -> HeaderMap {
    let fields = trailers.end_to_end().filter(|(known, ..)| known.may_be_trailer());
    write_fields(fields, trailers.len(), trailers.text_len()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::streams::ClientStream;
    use crate::fixtures::limits;
    use sealane_http::h1::parse_request;
    use sealane_lane::Key;

    fn exchange(text: &str) -> Exchange {
        let mut x = Exchange::new(ClientStream::H1(Key::from_u64(0)));
        let info = parse_request(text.as_bytes(), &Limits::default(), x.request_mut()).unwrap().unwrap();
        x.begin(info.body, info.upgrade, false, &limits());
        x
    }

    #[test]
    fn known_names_are_what_the_http_crate_reads() {
        for known in Known::ALL.iter().skip(1) {
            let name = known.name().as_bytes();
            assert_eq!(header_name(*known, name), Ok(HeaderName::from_bytes(name).unwrap()), "{known:?}");
        }
    }

    #[test]
    fn requests_there_and_back() {
        let x = exchange(
            "POST /a?b HTTP/1.1\r\nHost: a.b:1\r\nContent-Length: 3\r\nX-Y: z\r\nKeep-Alive: 1\r\nTE: trailers\r\n\
             Connection: TE, X-Gone\r\nX-Gone: 1\r\nCookie: c=d\r\n\r\n",
        );
        let (parts, ()) = write_request(&x, true, false).unwrap().into_parts();
        assert_eq!(parts.uri.to_string(), "https://a.b:1/a?b");
        let mut names: Vec<_> = parts.headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-length", "cookie", "te", "x-y"]);
        let mut head = RequestHead::new();
        let info = read_request(&parts, false, &Limits::default(), &mut head).unwrap();
        assert_eq!(info.body, BodyLength::Known(3));
        assert_eq!((head.method_name(), head.target(), head.authority()), (&b"POST"[..], &b"/a?b"[..], &b"a.b:1"[..]));
        assert!(head.accepts_trailers);
        assert_eq!(head.fields.get_named(b"x-y"), Some(&b"z"[..]));
    }

    #[test]
    fn websocket_there_and_back() {
        let x = exchange(
            "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        );
        let (parts, ()) = write_request(&x, false, true).unwrap().into_parts();
        assert!(parts.headers.get("sec-websocket-key").is_none() && parts.headers.get("upgrade").is_none());
        let mut head = RequestHead::new();
        let info = read_request(&parts, false, &Limits::default(), &mut head).unwrap();
        assert!(info.upgrade && head.fields.get_named(b"sec-websocket-version").is_some());
        let mut response = ResponseHead::new();
        response.status = 101;
        response.fields.push(b"Sec-WebSocket-Accept", b"x").unwrap();
        let written = write_response(&response, BodyLength::None).unwrap();
        assert!(written.status() == 200 && written.headers().is_empty());
    }

    #[test]
    fn a_host_without_an_authority_is_enough() {
        let (mut parts, ()) = Request::builder().uri("/a").body(()).unwrap().into_parts();
        let mut head = RequestHead::new();
        assert_eq!(read_request(&parts, true, &Limits::default(), &mut head), Err(ParseError::HostMissing));
        parts.headers.insert("host", HeaderValue::from_static("a.example:8080"));
        read_request(&parts, true, &Limits::default(), &mut head).unwrap();
        assert_eq!((head.authority(), head.target()), (&b"a.example:8080"[..], &b"/a"[..]));
    }

    #[test]
    fn connects() {
        let x = exchange("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n");
        let (parts, ()) = write_request(&x, false, false).unwrap().into_parts();
        let mut head = RequestHead::new();
        read_request(&parts, false, &Limits::default(), &mut head).unwrap();
        assert_eq!((head.method_name(), head.target()), (&b"CONNECT"[..], &b"a:443"[..]));
    }
}
