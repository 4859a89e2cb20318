//! A request and its response over HTTP/1.1 (RFC 9112): when the first byte came, and when the last.

use std::time::Instant;

use sealane_lab_wire::h1::{self, Reader, Sink};

use crate::error::ProbeError;
use crate::tls::{TlsStream, since};

/// What to ask for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method.
    pub method: String,
    /// `Host` and `:authority`.
    pub authority: String,
    /// Path and query.
    pub path: String,
    /// Further fields.
    pub headers: Vec<(String, String)>,
}

impl Request {
    /// With `User-Agent` and `Accept`, unless the caller has given them.
    pub fn with_usual_fields(mut self) -> Self {
        for (name, value) in [("User-Agent", USER_AGENT), ("Accept", "*/*")] {
            if !self.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name)) {
                self.headers.push((name.to_owned(), value.to_owned()));
            }
        }
        self
    }

    /// The request as the protocols encode it.
    pub fn to_wire(&self) -> sealane_lab_wire::Request<'_> {
        sealane_lab_wire::Request {
            method: &self.method,
            tls: true,
            authority: self.authority.clone(),
            path: &self.path,
            headers: &self.headers,
            body: &[],
        }
    }
}

/// What came back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Fields in order; none over HTTP/2 and HTTP/3.
    pub headers: Vec<(String, String)>,
    /// Bytes of content.
    pub body_bytes: u64,
    /// The moment of the first byte, in nanoseconds since the start.
    pub first_byte: u64,
    /// The moment of the last.
    pub last_byte: u64,
}

impl Response {
    /// The first field of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }
}

impl Sink for Response {
    fn head(&mut self, head: &[u8]) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.headers = h1::fields(head).map(|(name, value)| (text(name), text(value))).collect();
    }
}

/// The largest content: a probe is no download.
pub const MAX_BODY: u64 = 256 << 20;

/// The program's name in requests.
pub const USER_AGENT: &str = concat!("sealane-lab/", env!("CARGO_PKG_VERSION"));

/// The request's bytes.
pub fn encode(request: &Request) -> Vec<u8> {
    h1::encode(&request.to_wire(), false).into()
}

/// Reads the response to `request`, up to its last byte.
pub fn receive(stream: &mut TlsStream<'_>, request: &Request, start: Instant) -> Result<Response, ProbeError> {
    let mut reader = Reader::new(request.method == "HEAD");
    if request.to_wire().has("upgrade") {
        reader.allow_upgrade();
    }
    let mut response = Response::default();
    let mut buffer = vec![0; 16 << 10];
    loop {
        let n = stream.read(&mut buffer)?;
        let now = since(start);
        if n == 0 && !reader.end() {
            return Err(ProbeError::Closed(match (response.first_byte, reader.status()) {
                (0, _) => "no response came".into(),
                (_, 0) => "in the middle of the response's head".into(),
                _ => "in the middle of the response's content".into(),
            }));
        }
        if response.first_byte == 0 {
            response.first_byte = now;
        }
        reader.feed_with(&buffer[..n], &mut response).map_err(|e| ProbeError::Http(e.to_string()))?;
        check_size(reader.announced())?;
        if reader.done() {
            (response.status, response.body_bytes) = (reader.status(), reader.content());
            response.last_byte = now;
            return Ok(response);
        }
    }
}

/// Refuses content that is too large to be worth timing.
pub fn check_size(bytes: u64) -> Result<(), ProbeError> {
    if bytes > MAX_BODY {
        return Err(ProbeError::Http(format!(
            "the response is larger than {} MiB; probe something smaller (or use -X HEAD)",
            MAX_BODY >> 20
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_carry_the_usual_fields_and_the_callers_once() {
        let request = Request {
            method: "POST".into(),
            authority: "a:1".into(),
            path: "/x".into(),
            headers: vec![("user-agent".into(), "me".into())],
        };
        let text = String::from_utf8(encode(&request.with_usual_fields())).expect("ASCII");
        assert_eq!(text, "POST /x HTTP/1.1\r\nHost: a:1\r\nuser-agent: me\r\nAccept: */*\r\nContent-Length: 0\r\n\r\n");
    }
}
