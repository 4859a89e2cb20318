//! How a connection was made, and why none was.

use sealane_dial::How;
use std::fmt;
use std::io;
use std::time::Duration;

/// Why the hello was not put into the SYN to begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// [`crate::Options::embed`] is off.
    SwitchedOff,
    /// The hello was this long, and this much would have fitted.
    TooLarge {
        /// Bytes of the hello.
        hello: usize,
        /// Bytes that fit.
        budget: usize,
    },
    /// The server has refused the shorter hello that fits (it speaks TLS 1.2 only, say).
    Refused,
    /// SYNs with data were lost on the way there before; tried again when the pause is over.
    Paused,
    /// The system does not allow it (`net.ipv4.tcp_fastopen` lacks the client's bit).
    NotAllowed,
}

/// What became of the bytes that were to go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Early {
    /// There were none.
    None,
    /// They went as early data, and the server has taken them.
    Accepted,
    /// They went as early data, the server did not take them, and they were sent again after the handshake.
    Rejected,
    /// No ticket allowed early data: they were sent after the handshake.
    AfterHandshake,
}

/// How a connection was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How the TCP connection came about.
    pub how: How,
    /// Why the hello was not embedded, where it was not tried.
    pub skipped: Option<Skipped>,
    /// What became of the first bytes.
    pub early: Early,
    /// Bytes of the `ClientHello`.
    pub hello: usize,
    /// Bytes that went in the SYN, early data included; 0 when nothing did.
    pub in_syn: usize,
    /// From the beginning until the TLS handshake was over.
    pub handshake: Duration,
    /// The session was resumed.
    pub resumed: bool,
}

impl Outcome {
    /// The hello travelled in the SYN and was taken: a round trip was saved.
    pub fn embedded(&self) -> bool {
        self.how == How::Embedded
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub enum ConnectError {
    /// The name is no server name, or the address does not resolve.
    Address(String),
    /// No TCP connection.
    Connect(io::Error),
    /// The TLS handshake failed.
    Tls(rustls::Error),
    /// The connection was lost during the handshake.
    Handshake(io::Error),
    /// It took longer than [`crate::Options::timeout`].
    Timeout,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(what) => f.write_str(what),
            Self::Connect(e) => write!(f, "cannot connect: {e}"),
            Self::Tls(e) => write!(f, "the TLS handshake failed: {e}"),
            Self::Handshake(e) => write!(f, "the connection was lost during the TLS handshake: {e}"),
            Self::Timeout => f.write_str("no connection in time"),
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connect(e) | Self::Handshake(e) => Some(e),
            Self::Tls(e) => Some(e),
            Self::Address(_) | Self::Timeout => None,
        }
    }
}

impl From<ConnectError> for io::Error {
    fn from(e: ConnectError) -> Self {
        match e {
            ConnectError::Connect(e) | ConnectError::Handshake(e) => e,
            ConnectError::Timeout => io::ErrorKind::TimedOut.into(),
            e => io::Error::other(e),
        }
    }
}
