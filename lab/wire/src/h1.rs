//! HTTP/1.1 from the client's side: a request made once and sent many times, and the end of a response found (RFC 9112
//! §6.3) without keeping it.

use std::fmt;

use crate::Request;

/// The longest response head (status line and fields) that is accepted.
const MAX_HEAD: usize = 64 * 1024;
/// The most interim responses before the final one.
const MAX_INTERIM: u8 = 16;

/// The bytes of a request; with `close`, one that asks for the connection to be closed.
pub fn encode(request: &Request<'_>, close: bool) -> Box<[u8]> {
    let mut out = Vec::with_capacity(256 + request.body.len());
    out.extend_from_slice(format!("{} {} HTTP/1.1\r\n", request.method, request.path).as_bytes());
    if !request.has("host") {
        out.extend_from_slice(format!("Host: {}\r\n", request.authority).as_bytes());
    }
    for (name, value) in request.headers {
        out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    // RFC 9110 §8.6: a method that usually has content says so even when there is none.
    let expected = matches!(request.method, "POST" | "PUT" | "PATCH");
    if (expected || !request.body.is_empty()) && !request.has("content-length") && !request.has("transfer-encoding") {
        out.extend_from_slice(format!("Content-Length: {}\r\n", request.body.len()).as_bytes());
    }
    if close && !request.has("connection") {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(request.body);
    out.into_boxed_slice()
}

/// The fields of a response's head as [`Sink::head`] gets it, in order; lines without a colon are left out.
pub fn fields(head: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    head.split(|b| *b == b'\n').skip(1).filter_map(|line| {
        let colon = memchr::memchr(b':', line)?;
        Some((line[..colon].trim_ascii(), line[colon + 1..].trim_ascii()))
    })
}

/// A response that is not HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed response: {}", self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Status line and fields; what has come is in `head` unless it came whole.
    Head,
    /// So many bytes of content to come.
    Length(u64),
    /// A chunk's size, in hex, so far; whether a digit was seen.
    ChunkSize(u64, bool),
    /// The rest of a chunk's size line.
    ChunkExtension(u64),
    /// So many bytes of a chunk and its CRLF to come.
    Chunk(u64),
    /// The line after the last chunk: bytes in the current trailer line.
    Trailer(u32),
    /// Until the connection closes.
    UntilClose,
    /// Complete.
    Done,
}

/// What sees a response while it is read.
pub trait Sink {
    /// The head of the final response, status line and empty line included.
    fn head(&mut self, _head: &[u8]) {}
    /// A piece of the content.
    fn content(&mut self, _piece: &[u8]) {}
}

/// Sees nothing, at no cost.
impl Sink for () {}

/// Finds a response's end.
#[derive(Debug)]
pub struct Reader {
    state: State,
    head: Vec<u8>,
    status: u16,
    keep_alive: bool,
    /// The request was HEAD: there is no content whatever the fields say.
    bodyless: bool,
    /// The request asked for another protocol: 101 ends the response.
    upgrade: bool,
    /// Interim responses so far.
    interim: u8,
    /// Bytes of content so far.
    content: u64,
}

impl Reader {
    /// Ready for the response to a request; `head` says that its method was HEAD.
    pub fn new(head: bool) -> Self {
        Self {
            state: State::Head,
            head: Vec::new(),
            status: 0,
            keep_alive: true,
            bodyless: head,
            upgrade: false,
            interim: 0,
            content: 0,
        }
    }

    /// Ready for the next response, keeping memory.
    #[inline]
    pub fn restart(&mut self, head: bool) {
        self.state = State::Head;
        self.head.clear();
        self.status = 0;
        self.keep_alive = true;
        self.bodyless = head;
        self.interim = 0;
        self.content = 0;
    }

    /// Takes 101 for the end of the response, since the request asked for another protocol.
    pub fn allow_upgrade(&mut self) {
        self.upgrade = true;
    }

    /// The status code, 0 before the head has come.
    #[inline]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether the connection may carry another request.
    #[inline]
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether the response is complete.
    #[inline]
    pub fn done(&self) -> bool {
        self.state == State::Done
    }

    /// Bytes of content so far.
    #[inline]
    pub fn content(&self) -> u64 {
        self.content
    }

    /// The length of the content as far as the head, or the size of the chunk under way, says it.
    pub fn announced(&self) -> u64 {
        match self.state {
            State::Length(left) => self.content.saturating_add(left),
            State::Chunk(left) => self.content.saturating_add(left.saturating_sub(2)),
            _ => self.content,
        }
    }

    /// Takes in bytes; how many of them belonged to this response.
    #[inline]
    pub fn feed(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        self.feed_with(bytes, &mut ())
    }

    /// The same, for a caller that wants to see the response.
    pub fn feed_with(&mut self, bytes: &[u8], sink: &mut impl Sink) -> Result<usize, Malformed> {
        let mut at = 0;
        while at < bytes.len() && self.state != State::Done {
            at += self.advance(&bytes[at..], sink)?;
        }
        Ok(at)
    }

    /// The connection was closed: whether that was the response's proper end.
    pub fn end(&mut self) -> bool {
        if self.state == State::UntilClose {
            self.state = State::Done;
        }
        self.state == State::Done
    }

    fn advance(&mut self, bytes: &[u8], sink: &mut impl Sink) -> Result<usize, Malformed> {
        match self.state {
            State::Head => self.read_head(bytes, sink),
            State::Length(left) => {
                let n = left.min(bytes.len() as u64);
                self.content += n;
                sink.content(&bytes[..n as usize]);
                self.state = if n == left { State::Done } else { State::Length(left - n) };
                Ok(n as usize)
            }
            State::ChunkSize(size, any) => {
                match bytes[0] {
                    b @ (b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                        if size >> 56 != 0 {
                            return Err(Malformed("a chunk of more than 2^60 bytes"));
                        }
                        let digit = (b as char).to_digit(16).unwrap_or(0);
                        self.state = State::ChunkSize(size << 4 | u64::from(digit), true);
                    }
                    b'\r' | b';' | b' ' | b'\t' if any => self.state = State::ChunkExtension(size),
                    _ => return Err(Malformed("a chunk's size is not hexadecimal")),
                }
                Ok(1)
            }
            State::ChunkExtension(size) => match memchr::memchr(b'\n', bytes) {
                None => Ok(bytes.len()),
                Some(i) => {
                    self.state = if size == 0 { State::Trailer(0) } else { State::Chunk(size + 2) };
                    Ok(i + 1)
                }
            },
            State::Chunk(left) => {
                let n = left.min(bytes.len() as u64);
                // Its last two bytes are CRLF.
                let content = n.min(left.saturating_sub(2));
                self.content += content;
                sink.content(&bytes[..content as usize]);
                self.state = if n == left { State::ChunkSize(0, false) } else { State::Chunk(left - n) };
                Ok(n as usize)
            }
            State::Trailer(len) => {
                match bytes[0] {
                    b'\n' if len == 0 => self.state = State::Done,
                    b'\n' => self.state = State::Trailer(0),
                    b'\r' => {}
                    _ if len as usize > MAX_HEAD => return Err(Malformed("a trailer beyond 64 KiB")),
                    _ => self.state = State::Trailer(len + 1),
                }
                Ok(1)
            }
            State::UntilClose => {
                self.content += bytes.len() as u64;
                sink.content(bytes);
                Ok(bytes.len())
            }
            State::Done => Ok(0),
        }
    }

    fn read_head(&mut self, bytes: &[u8], sink: &mut impl Sink) -> Result<usize, Malformed> {
        if self.head.is_empty() {
            if let Some(end) = head_end(bytes) {
                self.parse(&bytes[..end], sink)?;
                return Ok(end);
            }
            self.head.extend_from_slice(bytes);
        } else {
            let before = self.head.len();
            self.head.extend_from_slice(bytes);
            // The end may straddle what came before.
            let from = before.saturating_sub(3);
            if let Some(end) = head_end(&self.head[from..]) {
                let head = std::mem::take(&mut self.head);
                let parsed = self.parse(&head[..from + end], sink);
                self.head = head;
                self.head.clear();
                parsed?;
                return Ok(from + end - before);
            }
        }
        if self.head.len() > MAX_HEAD {
            return Err(Malformed("a head beyond 64 KiB"));
        }
        Ok(bytes.len())
    }

    fn parse(&mut self, head: &[u8], sink: &mut impl Sink) -> Result<(), Malformed> {
        let (version, status) = status_line(head)?;
        let mut length: Option<u64> = None;
        let mut coded = false;
        let mut chunked = false;
        // RFC 9112 §9.3: 1.1 persists unless told otherwise, 1.0 the other way round.
        let mut keep_alive = version == 1;
        let mut rest = head;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let line = &rest[..end];
            rest = &rest[end + 1..];
            match line.first() {
                Some(b'c' | b'C') => {
                    if let Some(value) = field(line, b"content-length:") {
                        let n = number(value).ok_or(Malformed("Content-Length is not a number"))?;
                        if length.is_some_and(|before| before != n) {
                            return Err(Malformed("two different Content-Lengths"));
                        }
                        length = Some(n);
                    } else if let Some(value) = field(line, b"connection:") {
                        if has_token(value, b"close") {
                            keep_alive = false;
                        } else if has_token(value, b"keep-alive") {
                            keep_alive = true;
                        }
                    }
                }
                Some(b't' | b'T') => {
                    if let Some(value) = field(line, b"transfer-encoding:") {
                        coded = true;
                        chunked = last_token_is(value, b"chunked");
                    }
                }
                _ => {}
            }
        }
        // RFC 9110 §15.2: interim responses, the final one follows.
        if (100..200).contains(&status) && status != 101 {
            self.interim += 1;
            if self.interim > MAX_INTERIM {
                return Err(Malformed("more than 16 interim responses"));
            }
            self.state = State::Head;
            return Ok(());
        }
        self.status = status;
        sink.head(head);
        if status == 101 {
            if !self.upgrade {
                return Err(Malformed("101 Switching Protocols, which was not asked for"));
            }
            self.keep_alive = false;
            self.state = State::Done;
            return Ok(());
        }
        self.keep_alive = keep_alive;
        // RFC 9112 §6.3, in its order.
        self.state = if self.bodyless || status == 204 || status == 304 {
            State::Done
        } else if coded {
            if chunked {
                State::ChunkSize(0, false)
            } else {
                self.keep_alive = false;
                State::UntilClose
            }
        } else {
            match length {
                Some(0) => State::Done,
                Some(n) => State::Length(n),
                None => {
                    self.keep_alive = false;
                    State::UntilClose
                }
            }
        };
        Ok(())
    }
}

/// The length of a head with its empty line, if it is all there.
#[inline]
fn head_end(bytes: &[u8]) -> Option<usize> {
    let mut from = 0;
    // From newline to newline: fields are short, and bodies are not looked at.
    while let Some(i) = memchr::memchr(b'\n', &bytes[from..]) {
        let next = from + i + 1;
        match bytes.get(next..) {
            Some([b'\n', ..]) => return Some(next + 1),
            Some([b'\r', b'\n', ..]) => return Some(next + 2),
            _ => from = next,
        }
    }
    None
}

fn status_line(head: &[u8]) -> Result<(u8, u16), Malformed> {
    let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor @ (b'0' | b'1'), b' ', a, b, c, after, ..] = head else {
        return Err(Malformed("no HTTP/1 status line"));
    };
    if !matches!(after, b' ' | b'\r' | b'\n') || ![a, b, c].iter().all(|d| d.is_ascii_digit()) || *a == b'0' {
        return Err(Malformed("the status is not three digits"));
    }
    let digit = |d: &u8| u16::from(d - b'0');
    Ok((minor - b'0', digit(a) * 100 + digit(b) * 10 + digit(c)))
}

/// The value of the field if the line has this name (given in lower case, with its colon).
#[inline]
fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let start = line.get(..name.len())?;
    start.eq_ignore_ascii_case(name).then(|| line[name.len()..].trim_ascii())
}

fn number(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(value.iter().fold(0, |n, d| n * 10 + u64::from(d - b'0')))
}

fn has_token(value: &[u8], token: &[u8]) -> bool {
    value.split(|b| *b == b',').any(|t| t.trim_ascii().eq_ignore_ascii_case(token))
}

fn last_token_is(value: &[u8], token: &[u8]) -> bool {
    value.rsplit(|b| *b == b',').next().is_some_and(|t| t.trim_ascii().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds the response whole and byte by byte: (status, keep-alive, bytes that belonged to it).
    fn read(response: &[u8], head: bool) -> Result<(u16, bool, usize, bool), Malformed> {
        let mut whole = Reader::new(head);
        let used = whole.feed(response)?;
        let mut single = Reader::new(head);
        let mut n = 0;
        for byte in response {
            if single.done() {
                break;
            }
            n += single.feed(std::slice::from_ref(byte))?;
        }
        assert_eq!(
            (whole.status(), whole.keep_alive(), whole.state, used),
            (single.status(), single.keep_alive(), single.state, n)
        );
        Ok((whole.status(), whole.keep_alive(), used, whole.done()))
    }

    #[test]
    fn framings() {
        let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP";
        assert_eq!(read(ok, false), Ok((200, true, ok.len() - 4, true)));
        assert_eq!(read(ok, true), Ok((200, true, ok.len() - 9, true)));
        let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, Chunked\r\n\r\n5;x=y\r\nhello\r\nA\r\n0123456789\r\n0\r\nT: x\r\n\r\nrest";
        assert_eq!(read(chunked, false), Ok((200, true, chunked.len() - 4, true)));
        let until = b"HTTP/1.0 200 OK\r\n\r\nanything";
        assert_eq!(read(until, false), Ok((200, false, until.len(), false)));
        for status in ["204 No Content", "304 Not Modified"] {
            let r = format!("HTTP/1.1 {status}\r\nContent-Length: 5\r\n\r\n");
            assert!(read(r.as_bytes(), false).unwrap().3);
        }
        let closing = b"HTTP/1.1 503 Busy\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(read(closing, false), Ok((503, false, closing.len(), true)));
        let interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx";
        assert_eq!(read(interim, false), Ok((200, true, interim.len(), true)));
    }

    #[derive(Default)]
    struct Seen {
        heads: Vec<Vec<u8>>,
        content: Vec<u8>,
    }

    impl Sink for Seen {
        fn head(&mut self, head: &[u8]) {
            self.heads.push(head.to_vec());
        }

        fn content(&mut self, piece: &[u8]) {
            self.content.extend_from_slice(piece);
        }
    }

    #[test]
    fn a_sink_sees_the_head_once_and_all_content() {
        for (response, content) in [
            (&b"HTTP/1.1 200 OK\r\nAlt-Svc: h3\r\nContent-Length: 5\r\n\r\nhello"[..], &b"hello"[..]),
            (b"HTTP/1.1 103 x\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nAlt-Svc: h3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n", b"abcd"),
            (b"HTTP/1.0 200 OK\r\nAlt-Svc:h3\r\n\r\nabcdef", b"abcdef"),
        ] {
            for size in [1, response.len()] {
                let mut seen = Seen::default();
                let mut reader = Reader::new(false);
                for piece in response.chunks(size) {
                    reader.feed_with(piece, &mut seen).unwrap();
                }
                assert_eq!((reader.content(), &*seen.content, seen.heads.len()), (content.len() as u64, content, 1));
                let found: Vec<_> = fields(&seen.heads[0]).filter(|(name, _)| name.eq_ignore_ascii_case(b"alt-svc")).collect();
                assert_eq!(found, [(&b"Alt-Svc"[..], &b"h3"[..])]);
            }
        }
        let mut large = Reader::new(false);
        large.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc").unwrap();
        assert_eq!((large.content(), large.announced()), (3, 1000));
    }

    #[test]
    fn interim_responses_are_bounded_and_101_ends_an_upgrade() {
        let interim = b"HTTP/1.1 103 x\r\n\r\n".repeat(usize::from(MAX_INTERIM));
        let mut reader = Reader::new(false);
        assert_eq!(reader.feed(&interim), Ok(interim.len()));
        assert!(reader.feed(b"HTTP/1.1 103 x\r\n\r\n").is_err());
        let mut upgrade = Reader::new(false);
        upgrade.allow_upgrade();
        upgrade.feed(b"HTTP/1.1 101 Switching\r\n\r\n").unwrap();
        assert!(upgrade.done() && upgrade.status() == 101 && !upgrade.keep_alive());
    }

    #[test]
    fn requests_carry_the_callers_fields_once() {
        let headers = [("Host".to_owned(), "b".to_owned()), ("X".to_owned(), "y".to_owned())];
        let request =
            Request { method: "POST", tls: true, authority: "a:1".into(), path: "/x", headers: &headers, body: b"" };
        let text = String::from_utf8(encode(&request, true).into()).unwrap();
        assert_eq!(text, "POST /x HTTP/1.1\r\nHost: b\r\nX: y\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let plain = Request { method: "GET", headers: &[], body: b"z", ..request };
        let text = String::from_utf8(encode(&plain, false).into()).unwrap();
        assert_eq!(text, "GET /x HTTP/1.1\r\nHost: a:1\r\nContent-Length: 1\r\n\r\nz");
    }

    #[test]
    fn the_end_of_a_close_delimited_response() {
        let mut r = Reader::new(false);
        r.feed(b"HTTP/1.1 200 OK\r\n\r\nabc").unwrap();
        assert!(!r.done() && r.end());
        let mut cut = Reader::new(false);
        cut.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc").unwrap();
        assert!(!cut.end());
    }

    #[test]
    fn not_http() {
        for bad in [
            &b"SSH-2.0-x\r\n\r\n"[..],
            b"HTTP/2 200\r\n\r\n",
            b"HTTP/1.1 2x0 OK\r\n\r\n",
            b"HTTP/1.1 0200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            b"HTTP/1.1 101 Switching\r\n\r\n",
        ] {
            assert!(read(bad, false).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        let mut r = Reader::new(false);
        let flood = vec![b'a'; MAX_HEAD + 1];
        assert_eq!(r.feed(&flood), Err(Malformed("a head beyond 64 KiB")));
    }
}
