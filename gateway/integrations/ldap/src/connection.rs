//! A connection to a server of the directory: one operation at a time.

use crate::ber::{Malformed, SEQUENCE, head};
use crate::messages::{self, Entry, NO_SUCH_OBJECT, Outcome, Response, SIZE_LIMIT_EXCEEDED, SUCCESS, Search};
use rustls::pki_types::ServerName;
use sealane_config::{LdapUrl, connection_error_in_words};
use std::fmt;
use std::io;
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// The longest message of a server.
const MAX_MESSAGE: usize = 256 << 10;
/// The most bytes of all messages for one check: the entry of a user, and those of the user's groups.
const MAX_ANSWERS: usize = 2 << 20;

/// What a connection reads from and writes to.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Why an operation has no result.
#[derive(Debug)]
pub enum Failure {
    /// The connection has ended, or cannot be used any more. Another one may be better.
    Lost(String),
    /// The server says no, or what cannot be used.
    Said(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(why) | Self::Said(why) => f.write_str(why),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Self::Lost(match e.kind() {
            io::ErrorKind::UnexpectedEof => "the server has closed the connection".to_owned(),
            _ => e.to_string(),
        })
    }
}

impl From<Malformed> for Failure {
    fn from(_: Malformed) -> Self {
        Self::Lost("the server's answer is not LDAP".to_owned())
    }
}

/// What a server said instead of yes.
pub fn refusal(what: &str, outcome: &Outcome) -> Failure {
    let text = if outcome.text.is_empty() { String::new() } else { format!(" ({})", outcome.text) };
    Failure::Said(format!("{what}: LDAP result {}{text}", outcome.code))
}

/// Who the server takes us for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The connection is new, or bound as a user: it must be bound as `bind_dn` before the next search.
    Unknown,
    /// Who may search.
    Searcher,
}

/// A connection.
pub struct Connection<S: ?Sized = dyn Stream> {
    stream: Box<S>,
    next_id: u32,
    /// Bytes that may still come.
    left: usize,
    pub identity: Identity,
    pub used_at: Instant,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects. Over TCP there is TLS before anything else is said.
    pub async fn open(url: &LdapUrl, tls: Option<&TlsConnector>) -> Result<Self, Failure> {
        let (host, port, start_tls) = match url {
            LdapUrl::Unix(path) => return Ok(Self::new(Box::new(BufReader::new(UnixStream::connect(path).await?)))),
            LdapUrl::Tcp { host, port, start_tls } => (host, *port, *start_tls),
        };
        let tls = tls.ok_or_else(|| Failure::Said("no CA certificate can be used".to_owned()))?;
        let name =
            ServerName::try_from(host.clone()).map_err(|_| Failure::Said(format!("{host} is not a host name")))?;
        let tcp = TcpStream::connect((host.as_str(), port)).await?;
        tcp.set_nodelay(true)?;
        let mut plain = Connection::<TcpStream>::new(Box::new(tcp));
        if start_tls {
            let outcome = plain.start_tls().await?;
            if outcome.code != SUCCESS {
                return Err(refusal("the server refuses StartTLS", &outcome));
            }
        }
        // This connection has read nothing behind the answer: what there is, TLS refuses.
        Ok(Self::new(Box::new(BufReader::new(
            tls.connect(name, *plain.stream).await.map_err(connection_error_in_words)?,
        ))))
    }
}

impl<S: Stream + ?Sized> Connection<S> {
    fn new(stream: Box<S>) -> Self {
        Self { stream, next_id: 0, left: MAX_ANSWERS, identity: Identity::Unknown, used_at: Instant::now() }
    }

    /// Another check begins.
    pub const fn begin(&mut self) {
        self.left = MAX_ANSWERS;
    }

    const fn id(&mut self) -> u32 {
        // RFC 4511 §4.1.1.1: from 1 to 2³¹ − 1.
        self.next_id = if self.next_id == 0x7fff_ffff { 1 } else { self.next_id + 1 };
        self.next_id
    }

    async fn send(&mut self, message: &[u8]) -> Result<(), Failure> {
        self.stream.write_all(message).await?;
        Ok(self.stream.flush().await?)
    }

    /// Reads exactly one message.
    async fn message(&mut self) -> Result<Vec<u8>, Failure> {
        let mut start = Vec::with_capacity(8);
        let length = loop {
            match head(&start)? {
                Some((SEQUENCE, length, _)) => break length,
                Some(_) => return Err(Malformed.into()),
                None => start.push(self.stream.read_u8().await?),
            }
        };
        if length > MAX_MESSAGE || start.len() + length > self.left {
            return Err(Failure::Lost("the server's answer is too long".to_owned()));
        }
        self.left -= start.len() + length;
        // Not all at once: a server that announces much and sends little is to take little.
        let mut content = Vec::new();
        (&mut self.stream).take(length as u64).read_to_end(&mut content).await?;
        match content.len() == length {
            true => Ok(content),
            false => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }

    /// The next response to an operation.
    async fn response(&mut self, id: u32) -> Result<Response, Failure> {
        let (found, response) = messages::response(&self.message().await?)?;
        match (found, response) {
            (found, response) if found == id => Ok(response),
            // RFC 4511 §4.4.1: the server says why it disconnects.
            (0, Response::Extended(outcome)) => {
                Err(Failure::Lost(refusal("the server disconnects", &outcome).to_string()))
            }
            _ => Err(Failure::Lost("the server's answer belongs to another request".to_owned())),
        }
    }

    async fn start_tls(&mut self) -> Result<Outcome, Failure> {
        let id = self.id();
        self.send(&messages::start_tls(id)).await?;
        match self.response(id).await? {
            Response::Extended(outcome) => Ok(outcome),
            _ => Err(Malformed.into()),
        }
    }

    /// Binds. The server then takes us for this entry, or after a failure for nobody.
    pub async fn bind(&mut self, dn: &str, password: &str) -> Result<Outcome, Failure> {
        let id = self.id();
        self.identity = Identity::Unknown;
        self.send(&messages::bind(id, dn, password)).await?;
        match self.response(id).await? {
            Response::Bound(outcome) => Ok(outcome),
            _ => Err(Malformed.into()),
        }
    }

    /// Searches. The error says so if there are more entries than are asked for.
    pub async fn search(&mut self, search: &Search<'_>) -> Result<Vec<Entry>, Failure> {
        let id = self.id();
        self.send(&messages::search(id, search)).await?;
        let mut entries = Vec::new();
        loop {
            match self.response(id).await? {
                Response::Entry(_) if entries.len() >= search.most as usize => {
                    return Err(Failure::Lost("the server sends more entries than it was asked for".to_owned()));
                }
                Response::Entry(entry) => entries.push(entry),
                Response::Reference => {}
                Response::Done(outcome) => match outcome.code {
                    SUCCESS => return Ok(entries),
                    // There is no such base: an operator's mistake, which is to be seen.
                    NO_SUCH_OBJECT => return Err(refusal(&format!("there is no entry {}", search.base), &outcome)),
                    SIZE_LIMIT_EXCEEDED => {
                        let why = format!("more than {} entries below {} match the filter", search.most, search.base);
                        return Err(Failure::Said(why));
                    }
                    _ => return Err(refusal("the server refuses the search", &outcome)),
                },
                _ => return Err(Malformed.into()),
            }
        }
    }
}
