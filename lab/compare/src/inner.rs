//! Inner servers as they are on this machine: whether one listens, and what it answers. In the comparison, a recording back-end takes the
//! place of an inner server, so the comparison itself says nothing about this server.

use crate::draft::Draft;
use crate::recorder::Received;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long a connection, and the beginning of an answer, may take.
const LIMIT: Duration = Duration::from_secs(2);

/// What an inner server is asked: the first of the requests that it gets from the translation, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The address with its port, or `unix:/PATH`.
    pub address: String,
    /// Host and path; `None`: the server does not speak HTTP without TLS here, or the method may change something.
    pub request: Option<(String, String)>,
}

impl Question {
    /// The question for a request.
    pub fn of(draft: &Draft, received: &Received) -> Self {
        let is_plain = received.tls.is_none() && received.proxy.is_none();
        let is_safe = matches!(draft.method.as_str(), "GET" | "HEAD");
        let request = (is_plain && is_safe).then(|| (draft.host.clone(), received.target.clone()));
        Self { address: received.address.clone(), request }
    }

    /// Asks the server, as a sentence.
    pub fn answer(&self) -> String {
        let address = &self.address;
        let asked = match address.strip_prefix("unix:") {
            Some(path) => UnixStream::connect(path).ok().map(|stream| {
                let limited = stream.set_read_timeout(Some(LIMIT)).and(stream.set_write_timeout(Some(LIMIT)));
                limited.ok().and_then(|()| self.status(stream))
            }),
            None => self.connect().map(|stream| {
                let limited = stream.set_read_timeout(Some(LIMIT)).and(stream.set_write_timeout(Some(LIMIT)));
                limited.ok().and_then(|()| self.status(stream))
            }),
        };
        match (asked, &self.request) {
            (None, _) => self.missing(),
            (Some(Some(status)), _) => format!("the server at {address} answers HEAD with {status} now"),
            (Some(None), Some(_)) => format!("the server at {address} sends no HTTP response now"),
            (Some(None), None) => format!("a server listens at {address} now"),
        }
    }

    /// What is said of a server that does not listen.
    pub fn missing(&self) -> String {
        format!("no server listens at {} now", self.address)
    }

    fn connect(&self) -> Option<TcpStream> {
        TcpStream::connect_timeout(&self.address.parse::<SocketAddr>().ok()?, LIMIT).ok()
    }

    /// The status of the answer.
    fn status(&self, mut stream: impl Read + Write) -> Option<u16> {
        let (host, path) = self.request.as_ref()?;
        write!(stream, "HEAD {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").ok()?;
        // "HTTP/1.1 200"
        let mut line = [0; 12];
        stream.read_exact(&mut line).ok()?;
        std::str::from_utf8(&line).ok()?.strip_prefix("HTTP/1.")?.get(2..)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_server_that_refuses_is_not_one_that_is_missing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let request = Some(("a.example".to_owned(), "/static/".to_owned()));
        let question = Question { address: address.clone(), request };
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.extend(byte);
            }
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").unwrap();
            String::from_utf8(head).unwrap()
        });
        assert_eq!(question.answer(), format!("the server at {address} answers HEAD with 403 now"));
        let head = server.join().unwrap();
        assert!(head.starts_with("HEAD /static/ HTTP/1.1\r\nHost: a.example\r\n"), "{head}");
        // The listener is gone.
        assert_eq!(question.answer(), format!("no server listens at {address} now"));
    }
}
