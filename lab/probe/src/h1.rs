//! A request and its response over HTTP/1.1 (RFC 9112): enough to find the first byte and the last.

use std::time::Instant;

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

/// What came back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Fields in order; over HTTP/2 and HTTP/3 only what the probe needs.
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

/// The largest head, in bytes.
pub const MAX_HEAD: usize = 64 << 10;
/// The largest content: a probe is no download.
pub const MAX_BODY: u64 = 256 << 20;
/// Interim (1xx) responses before the final one.
pub const MAX_INTERIM: usize = 16;

/// The request as it goes on the wire.
pub fn encode(request: &Request) -> Vec<u8> {
    let mut head = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", request.method, request.path, request.authority);
    let has = |name: &str| request.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    for (name, value) in [("User-Agent", USER_AGENT), ("Accept", "*/*")] {
        if !has(name) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    // RFC 9110 §8.6: a method that usually has content says that there is none.
    if matches!(request.method.as_str(), "POST" | "PUT" | "PATCH") && !has("content-length") {
        head.push_str("Content-Length: 0\r\n");
    }
    for (name, value) in &request.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    head.into_bytes()
}

/// Who we say we are.
pub const USER_AGENT: &str = concat!("sealane-lab/", env!("CARGO_PKG_VERSION"));

/// Reads the response to a request with `method`, up to its last byte.
pub fn receive(stream: &mut TlsStream<'_>, method: &str, start: Instant) -> Result<Response, ProbeError> {
    let mut input = Input { stream, buffer: Vec::with_capacity(16 << 10), at: 0, start, first_byte: None };
    for _ in 0..=MAX_INTERIM {
        let mut response = input.head()?;
        if (100..200).contains(&response.status) && response.status != 101 {
            continue;
        }
        response.body_bytes = input.body(&response, method)?;
        response.last_byte = since(start);
        return Ok(response);
    }
    Err(ProbeError::Http(format!("more than {MAX_INTERIM} interim responses")))
}

struct Input<'a, 'w> {
    stream: &'a mut TlsStream<'w>,
    buffer: Vec<u8>,
    at: usize,
    start: Instant,
    first_byte: Option<u64>,
}

impl Input<'_, '_> {
    fn fill(&mut self) -> Result<usize, ProbeError> {
        if self.at == self.buffer.len() {
            self.buffer.clear();
            self.at = 0;
        }
        let old = self.buffer.len();
        self.buffer.resize(old + (16 << 10), 0);
        let n = self.stream.read(&mut self.buffer[old..])?;
        self.buffer.truncate(old + n);
        if n > 0 {
            self.first_byte.get_or_insert_with(|| since(self.start));
        }
        Ok(n)
    }

    /// One line without its end. The line's length is bounded by what is left of the head.
    fn line(&mut self, budget: &mut usize) -> Result<String, ProbeError> {
        let mut searched = 0;
        loop {
            let unread = &self.buffer[self.at..];
            if let Some(end) = unread[searched..].iter().position(|&b| b == b'\n').map(|i| i + searched) {
                *budget = budget
                    .checked_sub(end + 1)
                    .ok_or_else(|| ProbeError::Http(format!("the head is larger than {MAX_HEAD} bytes")))?;
                let line = unread[..end].strip_suffix(b"\r").unwrap_or(&unread[..end]);
                let line = String::from_utf8_lossy(line).into_owned();
                self.at += end + 1;
                return Ok(line);
            }
            searched = unread.len();
            if searched > *budget {
                return Err(ProbeError::Http(format!("the head is larger than {MAX_HEAD} bytes")));
            }
            if self.fill()? == 0 {
                return Err(match self.first_byte {
                    None => ProbeError::Closed("no response came".into()),
                    Some(_) => ProbeError::Closed("in the middle of the response's head".into()),
                });
            }
        }
    }

    fn head(&mut self) -> Result<Response, ProbeError> {
        let mut budget = MAX_HEAD;
        let line = self.line(&mut budget)?;
        let status = status_line(&line).ok_or_else(|| {
            ProbeError::Http(format!(
                "not a status line: '{}'",
                crate::cert::printable(&line).chars().take(60).collect::<String>()
            ))
        })?;
        let mut response = Response { status, first_byte: self.first_byte.unwrap_or_default(), ..Response::default() };
        loop {
            let line = self.line(&mut budget)?;
            if line.is_empty() {
                return Ok(response);
            }
            let (name, value) =
                line.split_once(':').ok_or_else(|| ProbeError::Http("a header field without a colon".into()))?;
            response.headers.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }

    /// Reads the content to its end (RFC 9112 §6.3) and returns its length.
    fn body(&mut self, response: &Response, method: &str) -> Result<u64, ProbeError> {
        if method == "HEAD" || matches!(response.status, 101 | 204 | 304) {
            return Ok(0);
        }
        if let Some(coding) = response.header("transfer-encoding") {
            if coding.rsplit(',').next().is_some_and(|last| last.trim().eq_ignore_ascii_case("chunked")) {
                return self.chunked();
            }
            return self.until_close();
        }
        match response.header("content-length") {
            None => self.until_close(),
            Some(text) => {
                let length = text
                    .parse::<u64>()
                    .map_err(|_| ProbeError::Http(format!("Content-Length '{}'", crate::cert::printable(text))))?;
                self.skip(length, 0)?;
                Ok(length)
            }
        }
    }

    fn chunked(&mut self) -> Result<u64, ProbeError> {
        let mut total = 0u64;
        loop {
            let line = self.line(&mut 4096)?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size =
                u64::from_str_radix(size, 16).map_err(|_| ProbeError::Http("a chunk size that is no number".into()))?;
            if size == 0 {
                let mut budget = MAX_HEAD;
                while !self.line(&mut budget)?.is_empty() {}
                return Ok(total);
            }
            self.skip(size, total)?;
            total += size;
            if !self.line(&mut 2)?.is_empty() {
                return Err(ProbeError::Http("a chunk longer than its size".into()));
            }
        }
    }

    fn skip(&mut self, length: u64, already: u64) -> Result<(), ProbeError> {
        check_size(length.saturating_add(already))?;
        let mut left = length;
        loop {
            let here = (self.buffer.len() - self.at) as u64;
            let take = left.min(here);
            self.at += take as usize;
            left -= take;
            if left == 0 {
                return Ok(());
            }
            if self.fill()? == 0 {
                return Err(ProbeError::Closed(format!("{left} bytes of the response are missing")));
            }
        }
    }

    fn until_close(&mut self) -> Result<u64, ProbeError> {
        let mut total = 0u64;
        loop {
            total += (self.buffer.len() - self.at) as u64;
            self.at = self.buffer.len();
            check_size(total)?;
            if self.fill()? == 0 {
                return Ok(total);
            }
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

fn status_line(line: &str) -> Option<u16> {
    let rest = line.strip_prefix("HTTP/1.1 ").or_else(|| line.strip_prefix("HTTP/1.0 "))?;
    let code = rest.get(..3).filter(|c| c.bytes().all(|b| b.is_ascii_digit()))?;
    (rest.len() == 3 || rest.as_bytes()[3] == b' ').then(|| code.parse().ok()).flatten().filter(|c| *c >= 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_lines() {
        assert_eq!(status_line("HTTP/1.1 200 OK"), Some(200));
        assert_eq!(status_line("HTTP/1.0 404"), Some(404));
        for bad in ["", "HTTP/1.1 20", "HTTP/1.1 2000", "HTTP/2 200", "SSH-2.0-x", "HTTP/1.1 0é0 x", "HTTP/1.1 099 x"]
        {
            assert_eq!(status_line(bad), None, "{bad}");
        }
    }

    #[test]
    fn requests_carry_the_callers_fields_once() {
        let request = Request {
            method: "POST".into(),
            authority: "a:1".into(),
            path: "/x".into(),
            headers: vec![("user-agent".into(), "me".into())],
        };
        let text = String::from_utf8(encode(&request)).expect("ASCII");
        assert_eq!(text, "POST /x HTTP/1.1\r\nHost: a:1\r\nAccept: */*\r\nContent-Length: 0\r\nuser-agent: me\r\n\r\n");
    }
}
