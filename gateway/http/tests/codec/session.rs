//! Reads a stream of messages the way a caller does, with bytes that come in pieces, and writes down what came out.

use sealane_http::h1::{BodyDecoder, Limits, What, parse_request, parse_response};
use sealane_http::{Fields, Method, ParseError, RequestHead, ResponseHead};

/// Whose messages.
#[derive(Clone, Copy, Debug)]
pub enum Side {
    Requests,
    /// Responses to this method.
    Responses(Method),
}

/// The messages in the concatenation of `pieces`, in the notation of `corpus/README.md`.
pub fn transcript(side: Side, pieces: &[&[u8]]) -> String {
    let mut reader = Reader::new(side);
    for piece in pieces {
        reader.buffer.extend_from_slice(piece);
        if let Err(error) = reader.run() {
            reader.out.push(format!("error {}", error.label()));
            return reader.out.join("; ");
        }
    }
    if let Some(line) = reader.current.take() {
        // A response may end with the connection.
        match reader.body.eof() {
            Ok(()) => reader.out.push(finish(line, &reader.content, reader.framed, reader.body.trailers())),
            Err(_) => reader.out.push("incomplete".to_owned()),
        }
    } else if reader.at < reader.buffer.len() {
        reader.out.push("incomplete".to_owned());
    }
    reader.out.join("; ")
}

struct Reader {
    side: Side,
    limits: Limits,
    buffer: Vec<u8>,
    at: usize,
    request: RequestHead,
    response: ResponseHead,
    body: BodyDecoder,
    /// The message whose body is being read: what stands before the body, and what behind it.
    current: Option<(String, String)>,
    framed: bool,
    content: Vec<u8>,
    out: Vec<String>,
}

impl Reader {
    fn new(side: Side) -> Self {
        let limits = Limits::default();
        let body = BodyDecoder::new(sealane_http::BodyLength::None, &limits);
        Self {
            side,
            limits,
            buffer: Vec::new(),
            at: 0,
            request: RequestHead::new(),
            response: ResponseHead::new(),
            body,
            current: None,
            framed: false,
            content: Vec::new(),
            out: Vec::new(),
        }
    }

    fn run(&mut self) -> Result<(), ParseError> {
        loop {
            if self.current.is_none() && !self.head()? {
                return Ok(());
            }
            loop {
                let rest = &self.buffer[self.at..];
                let piece = self.body.decode(rest)?;
                assert!(piece.consumed <= rest.len(), "consumed more than given");
                self.at += piece.consumed;
                match piece.what {
                    What::Data(data) => {
                        assert!(!data.is_empty());
                        self.content.extend_from_slice(data);
                    }
                    What::NeedMore => return Ok(()),
                    What::Trailers | What::End => break,
                }
            }
            assert_eq!(self.body.eof(), Ok(()));
            if let Some(line) = self.current.take() {
                self.out.push(finish(line, &self.content, self.framed, self.body.trailers()));
            }
        }
    }

    /// Reads a head; false when there is none yet.
    fn head(&mut self) -> Result<bool, ParseError> {
        let rest = &self.buffer[self.at..];
        if rest.is_empty() {
            return Ok(false);
        }
        let (consumed, length, line) = match self.side {
            Side::Requests => {
                let Some(info) = parse_request(rest, &self.limits, &mut self.request)? else { return Ok(false) };
                let head = &self.request;
                let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
                let line = format!("{} {} {}", text(head.method_name()), text(head.target()), text(head.authority()));
                let flags =
                    [(!info.keep_alive, "close"), (info.expect_continue, "continue"), (info.upgrade, "upgrade")];
                (info.consumed, info.body, (line, flag_text(&flags)))
            }
            Side::Responses(method) => {
                let info = parse_response(rest, &self.limits, method, &mut self.response)?;
                let Some(info) = info else { return Ok(false) };
                let flags = [(!info.keep_alive, "close"), (info.upgrade, "upgrade")];
                (info.consumed, info.body, (self.response.status.to_string(), flag_text(&flags)))
            }
        };
        assert!(consumed > 0 && consumed <= rest.len(), "consumed more than given");
        self.at += consumed;
        self.body.reset(length);
        self.framed = length != sealane_http::BodyLength::None;
        self.content.clear();
        self.current = Some(line);
        Ok(true)
    }
}

fn flag_text(flags: &[(bool, &str)]) -> String {
    flags.iter().filter(|(on, _)| *on).map(|(_, name)| format!(" +{name}")).collect()
}

fn finish((line, flags): (String, String), content: &[u8], framed: bool, trailers: &Fields) -> String {
    let body = if framed { format!("\"{}\"", escape(content)) } else { "-".to_owned() };
    let names: Vec<_> = trailers.iter().map(|(_, name, _)| escape(name)).collect();
    let trailers = if names.is_empty() { String::new() } else { format!(" +trailers({})", names.join(",")) };
    format!("{line} {body}{flags}{trailers}")
}

fn escape(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string().replace("\\\"", "\"").replace("\\'", "'")
}
