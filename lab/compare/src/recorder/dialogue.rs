//! Health checks without HTTP: a back-end answers what they send.
//!
//! A connection is one of a check if its first bytes are those that the check sends, or if nothing comes where the check waits for the
//! back-end to speak. All other connections have requests.

use super::IDLE;
use super::socket::Socket;
use crate::draft::Dialogue;
use std::io::{self, Cursor, Read, Write};
use std::time::{Duration, Instant};

/// How long a client says nothing that waits for the back-end to speak. Requests come at once.
const SILENCE: Duration = Duration::from_millis(250);
/// How long the rest of what a check sends may take.
const REST: Duration = Duration::from_secs(1);
/// How many bytes tell a check from a request.
const BEGIN: usize = 512;

/// What the first bytes of a connection say of it.
#[derive(Debug, PartialEq, Eq)]
enum Begin<'d> {
    /// They are those of a check.
    Check(&'d Dialogue),
    /// There may be more of them.
    Part,
    /// They are something else.
    Other,
}

fn begin<'d>(seen: &[u8], all: &[&'d Dialogue]) -> Begin<'d> {
    let mut out = Begin::Other;
    for &dialogue in all {
        let Some(asks) = dialogue.turns.first().map(|t| t.asks.as_slice()).filter(|a| !a.is_empty()) else { continue };
        let asks = asks.get(..BEGIN).unwrap_or(asks);
        if seen.starts_with(asks) {
            return Begin::Check(dialogue);
        }
        if asks.starts_with(seen) {
            out = Begin::Part;
        }
    }
    out
}

/// The check in which the back-end speaks first, if the client says nothing.
pub(super) fn unasked<'d>(socket: &Socket, all: &[&'d Dialogue]) -> io::Result<Option<&'d Dialogue>> {
    let speaks = |d: &&&Dialogue| d.turns.first().is_some_and(|t| t.asks.is_empty());
    let Some(first) = all.iter().find(speaks).copied() else { return Ok(None) };
    socket.set_read_limit(SILENCE)?;
    let peeked = socket.peek(&mut [0]);
    socket.set_read_limit(IDLE)?;
    match peeked {
        Ok(_) => Ok(None),
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(Some(first)),
        Err(e) => Err(e),
    }
}

/// The check that the first bytes of a connection are. They are not taken.
pub(super) fn asked<'d>(socket: &Socket, all: &[&'d Dialogue]) -> io::Result<Option<&'d Dialogue>> {
    if begin(b"", all) == Begin::Other {
        return Ok(None);
    }
    let (mut seen, end) = ([0; BEGIN], Instant::now() + REST);
    loop {
        let n = socket.peek(&mut seen)?;
        match begin(&seen[..n], all) {
            Begin::Check(dialogue) => return Ok(Some(dialogue)),
            Begin::Part if n > 0 && Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            Begin::Part | Begin::Other => return Ok(None),
        }
    }
}

/// The first bytes of a connection, which are taken, and the check that they are.
pub(super) fn read<'d>(stream: &mut dyn Read, all: &[&'d Dialogue]) -> io::Result<(Vec<u8>, Option<&'d Dialogue>)> {
    let (mut seen, mut piece) = (Vec::new(), [0; BEGIN]);
    loop {
        match begin(&seen, all) {
            Begin::Check(dialogue) => return Ok((seen, Some(dialogue))),
            Begin::Other => return Ok((seen, None)),
            Begin::Part => {}
        }
        match stream.read(&mut piece)? {
            0 => return Ok((seen, None)),
            n => seen.extend(&piece[..n]),
        }
    }
}

/// Answers a check.
pub(super) fn hold(stream: &mut (impl Read + Write), dialogue: &Dialogue) -> io::Result<()> {
    for turn in &dialogue.turns {
        let mut asks = vec![0; turn.asks.len()];
        stream.read_exact(&mut asks)?;
        stream.write_all(&turn.answer)?;
        stream.flush()?;
    }
    Ok(())
}

/// A stream of which some bytes have been read.
pub(super) struct Begun<'s, S> {
    begin: Cursor<Vec<u8>>,
    stream: &'s mut S,
}

impl<'s, S> Begun<'s, S> {
    pub(super) fn new(begin: Vec<u8>, stream: &'s mut S) -> Self {
        Self { begin: Cursor::new(begin), stream }
    }
}

impl<S: Read> Read for Begun<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.begin.read(buffer)? {
            0 => self.stream.read(buffer),
            n => Ok(n),
        }
    }
}

impl<S: Write> Write for Begun<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Turn;
    use std::os::unix::net::UnixStream;

    fn dialogue(turns: &[(&str, &str)]) -> Dialogue {
        let turn = |(asks, answer): &(&str, &str)| Turn {
            asks: asks.as_bytes().into(),
            answer: answer.as_bytes().into(),
            closes: false,
        };
        Dialogue { servers: ["10.0.0.1:6379".to_owned()].into(), turns: turns.iter().map(turn).collect() }
    }

    fn pair() -> (Socket, UnixStream) {
        let (one, other) = UnixStream::pair().unwrap();
        let socket = Socket::Unix(one);
        socket.prepare(IDLE).unwrap();
        (socket, other)
    }

    #[test]
    fn the_first_bytes_tell_a_check_from_a_request() {
        let (redis, web) = (dialogue(&[("PING\r\n", "+PONG")]), dialogue(&[("GET /up HTTP/1.0\r\n", "ok")]));
        let all = [&redis, &web];
        assert_eq!(begin(b"", &all), Begin::Part);
        assert_eq!(begin(b"PING\r\nx", &all), Begin::Check(&redis));
        assert_eq!(begin(b"GET /up", &all), Begin::Part);
        assert_eq!(begin(b"GET /up HTTP/1.1\r\n", &all), Begin::Other);
        let (socket, mut client) = pair();
        client.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        assert_eq!(asked(&socket, &all).unwrap(), None);
        assert_eq!(asked(&socket, &[]).unwrap(), None);
        let (seen, found) = read(&mut &b"GET /up HTTP/1.0\r\n\r\n"[..], &all).unwrap();
        assert_eq!((seen.len(), found), (20, Some(&web)));
        let mut rest = &b"b"[..];
        let mut whole = String::new();
        Begun::new(b"a".to_vec(), &mut rest).read_to_string(&mut whole).unwrap();
        assert_eq!(whole, "ab");
    }

    #[test]
    fn a_check_is_answered_turn_by_turn() {
        let redis = dialogue(&[("PING\r\n", "+PONG"), ("QUIT\r\n", "+OK")]);
        let (mut socket, mut client) = pair();
        client.write_all(b"PING\r\n").unwrap();
        assert_eq!(asked(&socket, &[&redis]).unwrap(), Some(&redis));
        let server = std::thread::spawn(move || hold(&mut socket, &redis));
        let mut answer = [0; 5];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+PONG");
        client.write_all(b"QUIT\r\n").unwrap();
        let mut rest = String::new();
        client.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "+OK", "then the connection is closed");
        server.join().unwrap().unwrap();
    }

    #[test]
    fn a_back_end_speaks_first_to_a_silent_client_only() {
        let mail = dialogue(&[("", "+OK")]);
        let (socket, mut client) = pair();
        assert_eq!(unasked(&socket, &[&mail]).unwrap(), Some(&mail));
        client.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        assert_eq!(unasked(&socket, &[&mail]).unwrap(), None);
        assert_eq!(asked(&socket, &[&mail]).unwrap(), None);
    }
}
