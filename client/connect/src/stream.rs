//! A TLS stream that is ready to be used.

use crate::outcome::Outcome;
use rustls::ClientConnection;
use std::io::{self, Read, Write};
use std::net::TcpStream;

/// A TLS connection; reads and writes block.
#[derive(Debug)]
pub struct TlsStream {
    pub(crate) tcp: TcpStream,
    pub(crate) tls: ClientConnection,
    pub(crate) outcome: Outcome,
}

impl TlsStream {
    /// How it was made.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The TCP connection, to set timeouts.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// The TLS session: versions, suites, certificates.
    pub fn tls(&self) -> &ClientConnection {
        &self.tls
    }

    /// Says that nothing more will be sent (close_notify, RFC 8446 §6.1) and ends this direction.
    pub fn finish(&mut self) -> io::Result<()> {
        self.tls.send_close_notify();
        self.flush()?;
        self.tcp.shutdown(std::net::Shutdown::Write)
    }
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        rustls::Stream::new(&mut self.tls, &mut self.tcp).read(buffer)
    }
}

impl Write for TlsStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        rustls::Stream::new(&mut self.tls, &mut self.tcp).write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        rustls::Stream::new(&mut self.tls, &mut self.tcp).flush()
    }
}
