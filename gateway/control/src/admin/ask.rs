//! Asking a running gateway, over its admin socket or its admin address: what `sealane status`, `top`, `reload` and the
//! like do.

use super::api::problem::{self, Problem};
use anyhow::{Context, Result, bail};
use rustix::net::sockopt::Timeout;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest answer that is read.
const MAX_ANSWER: usize = 64 << 20;

/// Where a running gateway is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Where {
    /// The Unix socket.
    Socket(PathBuf),
    /// The admin listener; it accepts no commands.
    Address(SocketAddr),
}

impl Where {
    /// Where the packaged configuration has it.
    pub fn usual() -> Self {
        Self::Socket(PathBuf::from("/run/sealane/admin.sock"))
    }
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "{}", path.display()),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

/// Nobody listens where a gateway was asked.
#[derive(Debug)]
pub struct NoGateway {
    at: Where,
    why: io::Error,
}

impl fmt::Display for NoGateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no gateway listens at {}: {}", self.at, sealane_config::plain(&self.why))
    }
}

impl std::error::Error for NoGateway {}

/// Asks, and returns the body of the response. `timeout` bounds the wait for it.
///
/// Errors: nobody listens there ([`NoGateway`]), or the response is an error, whose text is the message.
pub fn ask(at: &Where, method: &str, path: &str, timeout: Duration) -> Result<String> {
    ask_with(at, method, path, "", timeout)
}

/// The same with a body.
pub fn ask_with(at: &Where, method: &str, path: &str, body: &str, timeout: Duration) -> Result<String> {
    let answered = request(at, &Asking { method, path, headers: &[], body: body.as_bytes() }, timeout)?;
    match answered.is_good() {
        true => Ok(answered.body),
        false => bail!("{}", answered.reason().trim_end()),
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// The method.
    pub method: &'a str,
    /// The path, with the query.
    pub path: &'a str,
    /// Headers besides those that every request has.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body.
    pub body: &'a [u8],
}

/// What the gateway has responded.
#[derive(Clone, Debug)]
pub struct Answered {
    status: u16,
    head: String,
    /// The body.
    pub body: String,
}

impl Answered {
    /// Whether the gateway did what it was asked to.
    pub fn is_good(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Why it did not, for people.
    pub fn reason(&self) -> String {
        reason(&self.head, &self.body)
    }
}

/// Asks, and returns whatever the response is.
///
/// Errors: nobody listens there, or the response is none.
pub fn request(at: &Where, asking: &Asking<'_>, timeout: Duration) -> Result<Answered> {
    let deadline = Instant::now() + timeout;
    let ask = |host: &str| {
        let Asking { method, path, headers, body } = asking;
        let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}Content-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        [head.as_bytes(), body].concat()
    };
    let asked = match at {
        Where::Socket(socket) => connect(socket, timeout).and_then(|s| exchange(s, &ask("localhost"), deadline)),
        Where::Address(address) => {
            TcpStream::connect_timeout(address, timeout).and_then(|s| exchange(s, &ask(&address.to_string()), deadline))
        }
    };
    let answer = match asked {
        Ok(answer) => answer,
        // A time limit of a socket shows as this.
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            let waited = timeout.as_secs();
            bail!("the gateway at {at} has not responded within {waited} s: it may be busy; try again, or read its log")
        }
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            bail!("permission denied: only the gateway's user and root can use {at}")
        }
        Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
            if let Where::Address(address) = at {
                bail!("{}", no_http(*address, &[]));
            }
            bail!(
                "the gateway at {at} closed the connection before it responded; the gateway may be stopping: try again"
            )
        }
        Err(why) => return Err(NoGateway { at: at.clone(), why }.into()),
    };
    if let (Where::Address(address), false) = (at, answer.starts_with(b"HTTP/")) {
        bail!("{}", no_http(*address, &answer));
    }
    let answer = String::from_utf8(answer).context("the response is not text")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the gateway ended before it responded")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Ok(Answered { status, head: head.to_owned(), body: body.to_owned() })
}

/// Why there is no response over TCP. A listener with TLS sends an alert, and ends.
fn no_http(address: SocketAddr, answer: &[u8]) -> String {
    const ALERT: u8 = 21;
    match answer.first() {
        Some(&ALERT) => format!(
            "the listener at {address} uses TLS, which this command does not: use the admin socket (--socket), or an HTTPS client with an \
             operator's certificate"
        ),
        _ => format!(
            "the gateway at {address} closed the connection before it responded: it may be stopping; or the listener uses TLS \
             (\"certificate\" in [admin]): use the admin socket (--socket)"
        ),
    }
}

/// Why a request was refused: the body, which may be a problem document.
fn reason(head: &str, body: &str) -> String {
    let media = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    let is_problem = media.is_some_and(|(_, media)| media.trim() == problem::MEDIA_TYPE);
    let problem = is_problem.then(|| serde_json::from_str::<Problem>(body).ok()).flatten();
    problem.map_or_else(|| body.to_owned(), |problem| problem.describe())
}

/// Connects to a Unix socket. A gateway whose queue of connections is full is waited for, no longer than `timeout`.
fn connect(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    net::sockopt::set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// A stream with time limits.
trait Limited: Read + Write {
    fn limit(&self, left: Duration) -> io::Result<()>;
}

impl Limited for UnixStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left)).and_then(|()| self.set_write_timeout(Some(left)))
    }
}

impl Limited for TcpStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left)).and_then(|()| self.set_write_timeout(Some(left)))
    }
}

/// Asks and reads to the end of the answer, whose bytes may come as slowly as they like until `deadline`.
fn exchange(mut stream: impl Limited, request: &[u8], deadline: Instant) -> io::Result<Vec<u8>> {
    let left = || {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::Error::from(ErrorKind::TimedOut)) } else { Ok(left) }
    };
    stream.limit(left()?)?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    let mut piece = [0; 16 * 1024];
    while answer.len() < MAX_ANSWER {
        stream.limit(left()?)?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => answer.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_document_is_shown_as_text() {
        let head = "HTTP/1.1 403 Forbidden\r\nContent-Type: application/problem+json\r\nX: y";
        assert_eq!(reason(head, r#"{"detail":"not here","status":403}"#), "not here");
        assert_eq!(reason(head, "not JSON"), "not JSON");
        assert_eq!(reason("HTTP/1.1 409 Conflict\r\ncontent-type: text/plain", "{}\n"), "{}\n");
    }
}
