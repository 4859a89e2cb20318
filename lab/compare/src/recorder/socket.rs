//! Sockets of back-ends: TCP and Unix.

use rustix::net::RecvFlags;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// Where a back-end listens. A Unix socket has the name that the configuration gives it.
pub(super) enum Door {
    Tcp(TcpListener),
    Unix(UnixListener, String),
}

impl Door {
    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => listener.set_nonblocking(true),
            Self::Unix(listener, _) => listener.set_nonblocking(true),
        }
    }

    /// The next connection, and the address to which it has come.
    pub fn accept(&self) -> io::Result<(Socket, String)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                let local = stream.local_addr()?;
                let address = SocketAddr::new(local.ip().to_canonical(), local.port());
                Ok((Socket::Tcp(stream), address.to_string()))
            }
            Self::Unix(listener, name) => {
                let (stream, _) = listener.accept()?;
                Ok((Socket::Unix(stream), name.clone()))
            }
        }
    }
}

/// A connection to a back-end.
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Makes it blocking, with a limit for each call.
    pub fn prepare(&self, limit: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(s) => {
                s.set_nonblocking(false)?;
                s.set_read_timeout(Some(limit))?;
                s.set_write_timeout(Some(limit))?;
                s.set_nodelay(true)
            }
            Self::Unix(s) => {
                s.set_nonblocking(false)?;
                s.set_read_timeout(Some(limit))?;
                s.set_write_timeout(Some(limit))
            }
        }
    }

    /// Sets how long a read may take.
    pub fn set_read_limit(&self, limit: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(s) => s.set_read_timeout(Some(limit)),
            Self::Unix(s) => s.set_read_timeout(Some(limit)),
        }
    }

    /// Reads without taking.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.look(buffer, RecvFlags::PEEK)
    }

    /// Reads without taking, and waits until the buffer is full or the client has closed.
    pub fn peek_all(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.look(buffer, RecvFlags::PEEK | RecvFlags::WAITALL)
    }

    fn look(&self, buffer: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        let read = match self {
            Self::Tcp(s) => rustix::net::recv(s, buffer, flags),
            Self::Unix(s) => rustix::net::recv(s, buffer, flags),
        };
        let (n, _) = read?;
        Ok(n)
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(s) => s.read(buffer),
            Self::Unix(s) => s.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(s) => s.write(bytes),
            Self::Unix(s) => s.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(s) => s.flush(),
            Self::Unix(s) => s.flush(),
        }
    }
}
