//! What can stop a probe, said so that the reader knows what to do next.

use std::fmt;

/// Why a probe gave no result.
#[derive(Debug)]
pub enum ProbeError {
    /// The command asks for something that makes no sense.
    Usage(String),
    /// The name was not resolved.
    Dns {
        /// The name.
        host: String,
        /// What the resolver said.
        detail: String,
    },
    /// No TCP connection, or no packet back.
    Connect {
        /// Where to.
        to: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The certificate failed a check.
    Certificate {
        /// Which check, of which certificate.
        problem: String,
        /// How to go on.
        remedy: String,
    },
    /// The handshake or a record failed.
    Tls(String),
    /// The response is not HTTP, or larger than allowed.
    Http(String),
    /// The peer closed or broke the connection.
    Closed(String),
    /// `--timeout` passed.
    Timeout(&'static str),
    /// The server does not offer what a variant needs.
    NotOffered(String),
}

impl ProbeError {
    /// 2 for wrong usage, 3 when there is no (valid) measurement.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            _ => 3,
        }
    }

    /// One word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Usage(_) => "usage",
            Self::Dns { .. } => "dns",
            Self::Connect { .. } => "connect",
            Self::Certificate { .. } => "certificate",
            Self::Tls(_) => "tls",
            Self::Http(_) => "http",
            Self::Closed(_) => "closed",
            Self::Timeout(_) => "timeout",
            Self::NotOffered(_) => "not_offered",
        }
    }

    /// Maps an I/O error of an established connection.
    pub(crate) fn from_io(error: std::io::Error, during: &'static str) -> Self {
        use std::io::ErrorKind;
        match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Self::Timeout(during),
            _ => Self::Closed(format!("{during}: {error}")),
        }
    }
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(problem) | Self::NotOffered(problem) => f.write_str(problem),
            Self::Dns { host, detail } => write!(
                f,
                "cannot resolve {host}: {detail}\ncheck the spelling, or give the address: --resolve {host}:443:ADDRESS"
            ),
            Self::Connect { to, source } => {
                write!(f, "cannot connect to {to}: {source}")?;
                if source.kind() == std::io::ErrorKind::ConnectionRefused {
                    write!(f, "\nno server listens there; check the port, or use another address with --connect-to")?;
                }
                Ok(())
            }
            Self::Certificate { problem, remedy } => write!(f, "certificate check failed: {problem}\n{remedy}"),
            Self::Tls(problem) => write!(f, "TLS: {problem}"),
            Self::Http(problem) => write!(f, "HTTP: {problem}"),
            Self::Closed(problem) => write!(f, "the server closed or broke the connection: {problem}"),
            Self::Timeout(during) => write!(f, "timed out {during} (raise it with --timeout SECONDS)"),
        }
    }
}

impl std::error::Error for ProbeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connect { source, .. } => Some(source),
            _ => None,
        }
    }
}
