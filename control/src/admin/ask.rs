//! Asking a running gateway, over its admin socket or its admin address: what `sealane status`, `top`, `reload` and the
//! like do.

use anyhow::{Context, Result, bail};
use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Longest answer that is read.
const MAX_ANSWER: u64 = 64 << 20;

/// Where a running gateway is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Where {
    /// The Unix socket.
    Socket(PathBuf),
    /// The admin listener; it takes no orders.
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

/// Asks, and returns the body of the answer. `patience` bounds the wait for it.
///
/// Errors: nobody listens there, or the answer is an error, whose text is the message.
pub fn ask(at: &Where, method: &str, path: &str, patience: Duration) -> Result<String> {
    ask_with(at, method, path, "", patience)
}

/// The same with a body.
pub fn ask_with(at: &Where, method: &str, path: &str, body: &str, patience: Duration) -> Result<String> {
    // What may be asked by address is said where it may: orders are taken at the socket alone.
    let other = if method == "GET" { ", or its admin address with --admin" } else { "" };
    let unreachable = || format!("no gateway answers at {at}; name its admin socket with --socket{other}");
    match at {
        Where::Socket(socket) => {
            let stream = match UnixStream::connect(socket) {
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                    bail!("permission denied: {at} is for the gateway's user and root")
                }
                connected => connected.with_context(unreachable)?,
            };
            stream.set_read_timeout(Some(patience))?;
            exchange(stream, method, path, body)
        }
        Where::Address(address) => {
            let stream = TcpStream::connect_timeout(address, patience).with_context(unreachable)?;
            stream.set_read_timeout(Some(patience))?;
            exchange(stream, method, path, body)
        }
    }
}

fn exchange(mut stream: impl Read + Write, method: &str, path: &str, body: &str) -> Result<String> {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: sealane\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).context("the gateway does not answer")?;
    let answer = String::from_utf8(answer).context("the answer is not text")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the gateway ended before it answered")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if status != "200" {
        bail!("{}", body.trim_end());
    }
    Ok(body.to_owned())
}
