//! HTTP/1.1 messages as the tests read them: strictly, and knowing a whole message from a broken one. Written apart
//! from the gateway's own codec, so that one mistake cannot hide in both.

use std::io::{self, ErrorKind, Read, Write};

/// A request or a response, as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The request line or the status line.
    pub start: String,
    /// Names as they came, in their order.
    pub headers: Vec<(String, String)>,
    /// Without its framing.
    pub body: Vec<u8>,
    /// After a chunked body.
    pub trailers: Vec<(String, String)>,
    /// Status lines of the interim responses before a final one.
    pub interim: Vec<String>,
}

impl Message {
    /// The value of a header that is there once; `None` if there is none.
    #[track_caller]
    pub fn header(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() < 2, "{name} is there {} times: {:?}", all.len(), self.headers);
        all.first().copied()
    }

    /// Every value of a header.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str()).collect()
    }

    /// The status of a response, or 0.
    pub fn status(&self) -> u16 {
        self.start.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// The method of a request.
    pub fn method(&self) -> &str {
        self.start.split(' ').next().unwrap_or_default()
    }

    /// The target of a request.
    pub fn target(&self) -> &str {
        self.start.split(' ').nth(1).unwrap_or_default()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn lists(&self, name: &str, token: &str) -> bool {
        self.all(name).iter().any(|value| value.split(',').any(|item| item.trim().eq_ignore_ascii_case(token)))
    }
}

/// Why no whole message came.
#[derive(Debug)]
pub struct Broken {
    /// What went wrong.
    pub error: io::Error,
    /// What had come of it.
    pub partial: Message,
}

/// A connection with the bytes read ahead.
#[derive(Debug)]
pub struct Wire<S> {
    /// Beneath.
    pub stream: S,
    ahead: Vec<u8>,
}

const HEAD_LIMIT: usize = 1 << 20;

impl<S: Read> Wire<S> {
    /// Nothing read yet.
    pub fn new(stream: S) -> Self {
        Self { stream, ahead: Vec::new() }
    }

    /// Reads a request; `None` where the connection ends in good order instead.
    pub fn request(&mut self) -> io::Result<Option<Message>> {
        let Some(mut message) = self.request_head()? else { return Ok(None) };
        self.body(&mut message, false)?;
        Ok(Some(message))
    }

    /// Reads a request's head and leaves its body on the wire.
    pub fn request_head(&mut self) -> io::Result<Option<Message>> {
        let mut message = Message::default();
        match self.head(&mut message) {
            Ok(()) => Ok(Some(message)),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof && message.start.is_empty() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the final response to a request of this method, past interim ones.
    pub fn response(&mut self, method: &str) -> Result<Message, Box<Broken>> {
        let mut message = Message::default();
        match self.read_response(&mut message, method) {
            Ok(()) => Ok(message),
            Err(error) => Err(Box::new(Broken { error, partial: message })),
        }
    }

    /// The same, and calls `go_on` after the first interim response, which is leave to go on.
    pub fn response_with_leave(&mut self, method: &str, go_on: impl FnOnce(&mut Self)) -> Result<Message, Box<Broken>> {
        let mut message = Message::default();
        let read = self.head(&mut message).and_then(|()| {
            if !(100..200).contains(&message.status()) {
                return self.finish_response(&mut message, method);
            }
            go_on(self);
            let interim = std::mem::take(&mut message);
            message.interim.push(interim.start);
            self.read_response(&mut message, method)
        });
        match read {
            Ok(()) => Ok(message),
            Err(error) => Err(Box::new(Broken { error, partial: message })),
        }
    }

    fn read_response(&mut self, message: &mut Message, method: &str) -> io::Result<()> {
        self.head(message)?;
        while (100..200).contains(&message.status()) && message.status() != 101 {
            let interim = std::mem::take(message);
            message.interim.extend(interim.interim.into_iter().chain([interim.start]));
            self.head(message)?;
        }
        self.finish_response(message, method)
    }

    fn finish_response(&mut self, message: &mut Message, method: &str) -> io::Result<()> {
        if method == "HEAD" || matches!(message.status(), 101 | 204 | 304) {
            return Ok(());
        }
        self.body(message, true)
    }

    /// RFC 9112 §6.3, for a message that is not excepted by its status or method.
    fn body(&mut self, message: &mut Message, to_the_end: bool) -> io::Result<()> {
        if message.lists("transfer-encoding", "chunked") {
            return self.chunks(message);
        }
        let lengths = message.all("content-length");
        match (lengths.first(), lengths.len()) {
            (Some(length), 1) => {
                let length = length.parse().map_err(|_| bad("Content-Length"))?;
                self.exactly(length, &mut message.body)
            }
            (None, _) if to_the_end => loop {
                message.body.append(&mut self.ahead);
                if self.more()? == 0 {
                    return Ok(());
                }
            },
            (None, _) => Ok(()),
            _ => Err(bad("more than one Content-Length")),
        }
    }

    fn chunks(&mut self, message: &mut Message) -> io::Result<()> {
        loop {
            let line = self.line()?;
            let size = line.split(';').next().unwrap_or_default();
            let size = usize::from_str_radix(size, 16).map_err(|_| bad("chunk size"))?;
            if size == 0 {
                return self.fields(&mut message.trailers);
            }
            self.exactly(size, &mut message.body)?;
            if !self.line()?.is_empty() {
                return Err(bad("no line end after a chunk"));
            }
        }
    }

    fn head(&mut self, message: &mut Message) -> io::Result<()> {
        message.start = self.line()?;
        self.fields(&mut message.headers)
    }

    fn fields(&mut self, into: &mut Vec<(String, String)>) -> io::Result<()> {
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(());
            }
            let (name, value) = line.split_once(':').ok_or_else(|| bad("a field without a colon"))?;
            into.push((name.to_owned(), value.trim().to_owned()));
        }
    }

    /// One line, without its CRLF.
    pub fn line(&mut self) -> io::Result<String> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.ahead[searched..].windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.ahead.drain(..searched + end + 2).collect();
                return String::from_utf8(line[..line.len() - 2].to_vec()).map_err(|_| bad("a line is not UTF-8"));
            }
            searched = self.ahead.len().saturating_sub(1);
            if self.ahead.len() > HEAD_LIMIT {
                return Err(bad("an endless line"));
            }
            if self.more()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// So many bytes.
    pub fn exactly(&mut self, length: usize, into: &mut Vec<u8>) -> io::Result<()> {
        let end = into.len() + length;
        loop {
            let take = (end - into.len()).min(self.ahead.len());
            into.extend(self.ahead.drain(..take));
            if into.len() == end {
                return Ok(());
            }
            if self.more()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// All up to the end of the connection: the bytes, and whether it ended in good order.
    pub fn rest(&mut self) -> (Vec<u8>, io::Result<()>) {
        loop {
            match self.more() {
                Ok(0) => return (std::mem::take(&mut self.ahead), Ok(())),
                Ok(_) => {}
                Err(error) => return (std::mem::take(&mut self.ahead), Err(error)),
            }
        }
    }

    fn more(&mut self) -> io::Result<usize> {
        let mut buffer = [0; 65_536];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(n) => {
                    self.ahead.extend_from_slice(&buffer[..n]);
                    return Ok(n);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Wire<crate::backend::Pipe> {
    /// All up to the end of the connection, or for so long.
    pub fn rest_within(&mut self, time: std::time::Duration) -> Vec<u8> {
        // Only the waiting is bounded: a trickle could go on, but no test's gateway trickles for nothing.
        let _ = self.stream.socket().set_read_timeout(Some(time));
        self.rest().0
    }
}

impl<S: Write> Wire<S> {
    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())?;
        self.stream.flush()
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(bytes: &str) -> Result<Message, Box<Broken>> {
        Wire::new(bytes.as_bytes()).response("GET")
    }

    #[test]
    fn whole_messages_are_read() {
        let whole = response("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").unwrap();
        assert_eq!((whole.status(), whole.body.as_slice(), whole.interim.len()), (200, b"hi".as_slice(), 1));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhi\r\n0\r\nA: b\r\n\r\n";
        let chunked = response(chunked).unwrap();
        assert_eq!((chunked.text().as_str(), chunked.trailers.len()), ("hi", 1));
    }

    #[test]
    fn every_cut_is_noticed() {
        for whole in [
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        ] {
            assert!(response(whole).is_ok());
            for cut in 0..whole.len() {
                assert!(response(&whole[..cut]).is_err(), "{:?}", &whole[..cut]);
            }
        }
    }
}
