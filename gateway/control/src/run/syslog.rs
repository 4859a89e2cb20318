//! Sends access log lines to a syslog server: RFC 5424, over UDP (RFC 5426), TCP (RFC 6587 §3.4.1), TLS (RFC 5425)
//! or a Unix socket; or to journald, in the journal's native protocol.
//!
//! The access log's thread calls this, so waiting here delays nobody but other lines, which wait in a bounded queue and are
//! dropped when it is full. A server that does not answer is tried again after a while, and lines meanwhile are lost.

use crate::config::{Syslog, SyslogTls};
use crate::log::Time;
use rustls::{ClientConfig, ClientConnection};
use sealane_tls::{connection_error_in_words, control_client, root_store};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// `local7.info` (RFC 5424 §6.2.1): 23 times 8, and 6.
const PRIORITY: u8 = 190;
/// The longest message in a datagram; longer lines are cut. RFC 5426 §3.2 promises 480 bytes, servers usually take 8 KiB.
const MAX_DATAGRAM: usize = 8192;
/// The longest line in an entry of the journal; longer ones are cut. journald cuts lines of standard output at 48 KiB.
const MAX_ENTRY: usize = 48 * 1024;
/// The fields of an entry before the line: `info`, `local7`.
const JOURNAL_FIELDS: &str = "PRIORITY=6\nSYSLOG_FACILITY=23\nSYSLOG_IDENTIFIER=sealane\nSEALANE_LOG=access\nMESSAGE=";
/// How long connecting and sending may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long a server is left alone after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// RFC 5424 §6.2.4: the longest name of a host.
const MAX_HOST: usize = 255;

/// A syslog server, connected to when there is something to send.
pub struct Sender {
    server: Syslog,
    /// There for a server under TLS: sessions are resumed.
    tls: Option<Arc<ClientConfig>>,
    /// What stands between the time and the line: ` HOST sealane PID access - `.
    names: String,
    connection: Option<Connection>,
    /// It is not tried before.
    retry_at: Option<Instant>,
    message: Vec<u8>,
}

enum Connection {
    Udp(UdpSocket),
    Tcp(TcpStream),
    Tls(Box<TlsStream>),
    Unix(UnixDatagram),
    Journal(UnixDatagram),
}

/// A connection under TLS.
struct TlsStream {
    session: ClientConnection,
    socket: Deadlined,
}

/// A socket whose reads and writes end with a time, however slowly the other side takes or sends single bytes.
struct Deadlined {
    stream: TcpStream,
    until: Instant,
}

impl Deadlined {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::Error::from(io::ErrorKind::TimedOut)) } else { Ok(left) }
    }
}

impl Read for Deadlined {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer)
    }
}

impl Write for Deadlined {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TlsStream {
    /// Connects, and finishes the handshake.
    fn open(server: &SyslogTls, config: &Arc<ClientConfig>) -> io::Result<Self> {
        let until = Instant::now() + TIMEOUT;
        let stream = TcpStream::connect_timeout(&server.address, TIMEOUT)?;
        // Lines come in batches, each of which is written as a whole.
        stream.set_nodelay(true)?;
        let mut socket = Deadlined { stream, until };
        let mut session = ClientConnection::new(config.clone(), server.name.clone()).map_err(io::Error::other)?;
        while session.is_handshaking() {
            if session.complete_io(&mut socket).map_err(connection_error_in_words)? == (0, 0) {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
        }
        Ok(Self { session, socket })
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.socket.until = Instant::now() + TIMEOUT;
        let mut rest = message;
        while !rest.is_empty() {
            let taken = self.session.writer().write(rest)?;
            rest = &rest[taken..];
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            if self.session.write_tls(&mut self.socket)? == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero));
            }
        }
        Ok(())
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        // RFC 5425 §4.4: the server is told that nothing is missing.
        self.session.send_close_notify();
        self.socket.until = Instant::now() + TIMEOUT;
        let _ = self.flush();
    }
}

/// What became of some lines.
#[derive(Debug, Default)]
pub struct Sent {
    /// Lines that were not sent.
    pub lost: u64,
    /// Why, the last time.
    pub error: Option<io::Error>,
}

impl Sender {
    /// Connects to nothing yet.
    pub fn new(server: Syslog) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        // RFC 5424 §6: printable ASCII, and `-` where nothing is known.
        let host: String = host.trim().chars().filter(char::is_ascii_graphic).take(MAX_HOST).collect();
        let host = if host.is_empty() { "-" } else { &host };
        let names = format!(" {host} sealane {} access - ", std::process::id());
        let tls = match &server {
            Syslog::Tls(server) => Some(Arc::new(control_client(root_store(&server.roots)))),
            _ => None,
        };
        Self { server, tls, names, connection: None, retry_at: None, message: Vec::new() }
    }

    /// Sends whole lines, each as a message.
    pub fn send(&mut self, lines: &[u8]) -> Sent {
        let mut sent = Sent::default();
        let header = format!("<{PRIORITY}>1 {}{}", Time(SystemTime::now()), self.names);
        for line in lines.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
            if let Err(e) = self.send_line(&header, line) {
                sent.lost += 1;
                sent.error = Some(e);
            }
        }
        sent
    }

    fn send_line(&mut self, header: &str, line: &[u8]) -> io::Result<()> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                if self.retry_at.is_some_and(|at| Instant::now() < at) {
                    return Err(io::Error::new(
                        io::ErrorKind::NotConnected,
                        "the syslog server could not be reached a moment ago",
                    ));
                }
                match Connection::open(&self.server, self.tls.as_ref()) {
                    Ok(connection) => none.insert(connection),
                    Err(e) => {
                        self.retry_at = Some(Instant::now() + RETRY);
                        return Err(e);
                    }
                }
            }
        };
        let result = connection.send(&mut self.message, header.as_bytes(), line);
        if let (Err(_), Connection::Tcp(_) | Connection::Tls(_) | Connection::Unix(_) | Connection::Journal(_)) =
            (&result, connection)
        {
            // A message may have been sent in part. A UDP socket stays as good as it was.
            self.connection = None;
            self.retry_at = Some(Instant::now() + RETRY);
        }
        result
    }
}

impl Connection {
    fn open(server: &Syslog, tls: Option<&Arc<ClientConfig>>) -> io::Result<Self> {
        match server {
            Syslog::Tls(server) => {
                let config = tls.ok_or_else(|| io::Error::other("TLS is not available"))?;
                Ok(Self::Tls(Box::new(TlsStream::open(server, config)?)))
            }
            Syslog::Udp(address) => {
                let any = match address {
                    SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
                    SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
                };
                let socket = UdpSocket::bind(any)?;
                socket.connect(address)?;
                socket.set_write_timeout(Some(TIMEOUT))?;
                Ok(Self::Udp(socket))
            }
            Syslog::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, TIMEOUT)?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                Ok(Self::Tcp(stream))
            }
            Syslog::Unix(path) => Self::socket(path).map(Self::Unix),
            Syslog::Journal(path) => Self::socket(path).map(Self::Journal),
        }
    }

    fn socket(path: &Path) -> io::Result<UnixDatagram> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        Ok(socket)
    }

    fn send(&mut self, message: &mut Vec<u8>, header: &[u8], line: &[u8]) -> io::Result<()> {
        message.clear();
        if let Self::Journal(socket) = self {
            // A field is a line: what clients have sent is escaped, so it cannot begin another one.
            message.extend_from_slice(JOURNAL_FIELDS.as_bytes());
            message.extend_from_slice(&line[..line.len().min(MAX_ENTRY)]);
            message.push(b'\n');
            return socket.send(message).map(drop);
        }
        if let Self::Tcp(_) | Self::Tls(_) = self {
            write!(message, "{} ", header.len() + line.len())?;
        }
        message.extend_from_slice(header);
        message.extend_from_slice(line);
        match self {
            Self::Tcp(stream) => stream.write_all(message),
            Self::Tls(stream) => stream.send(message),
            Self::Udp(socket) => socket.send(&message[..message.len().min(MAX_DATAGRAM)]).map(drop),
            Self::Unix(socket) | Self::Journal(socket) => {
                socket.send(&message[..message.len().min(MAX_DATAGRAM)]).map(drop)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    /// `<190>1 TIME HOST sealane PID access - LINE` without what differs from run to run.
    fn line_of(message: &str) -> &str {
        let mut parts = message.splitn(8, ' ');
        let header: Vec<&str> = parts.by_ref().take(7).collect();
        assert_eq!((header[0], header[3], header[5], header[6]), ("<190>1", "sealane", "access", "-"), "{message}");
        assert!(header[1].ends_with('Z') && header[4] == std::process::id().to_string(), "{message}");
        parts.next().unwrap()
    }

    #[test]
    fn datagrams_have_a_line_each() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let unix = UnixDatagram::bind(&path).unwrap();
        let mut buffer = [0; 2 * MAX_DATAGRAM];
        let long = "x".repeat(2 * MAX_DATAGRAM);
        let lines = format!("one two\nthree\n{long}\n");
        type Receive<'r> = Box<dyn FnMut(&mut [u8]) -> io::Result<usize> + 'r>;
        let targets: [(Syslog, Receive); 2] = [
            (Syslog::Udp(server.local_addr().unwrap()), Box::new(|b| server.recv(b))),
            (Syslog::Unix(path.clone()), Box::new(|b| unix.recv(b))),
        ];
        for (target, mut receive) in targets {
            let sent = Sender::new(target).send(lines.as_bytes());
            assert_eq!(sent.lost, 0, "{:?}", sent.error);
            for wanted in ["one two", "three"] {
                let n = receive(&mut buffer).unwrap();
                assert_eq!(line_of(str::from_utf8(&buffer[..n]).unwrap()), wanted);
            }
            assert_eq!(receive(&mut buffer).unwrap(), MAX_DATAGRAM);
        }
    }

    #[test]
    fn the_journal_gets_the_fields_of_an_entry() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        let long = "x".repeat(2 * MAX_ENTRY);
        let sent = Sender::new(Syslog::Journal(path)).send(format!("one two=3\n{long}\n").as_bytes());
        assert_eq!(sent.lost, 0, "{:?}", sent.error);
        let mut buffer = vec![0; 4 * MAX_ENTRY];
        let n = journal.recv(&mut buffer).unwrap();
        let entry = str::from_utf8(&buffer[..n]).unwrap();
        let fields: Vec<(&str, &str)> = entry.lines().map(|line| line.split_once('=').unwrap()).collect();
        let wanted = [
            ("PRIORITY", "6"),
            ("SYSLOG_FACILITY", "23"),
            ("SYSLOG_IDENTIFIER", "sealane"),
            ("SEALANE_LOG", "access"),
            ("MESSAGE", "one two=3"),
        ];
        assert_eq!(fields, wanted);
        assert!(entry.ends_with('\n'));
        assert_eq!(journal.recv(&mut buffer).unwrap(), JOURNAL_FIELDS.len() + MAX_ENTRY + 1);
    }

    #[test]
    fn a_stream_has_lengths_and_is_made_again() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = Sender::new(Syslog::Tcp(server.local_addr().unwrap()));
        assert_eq!(sender.send(b"one\ntwo words\n").lost, 0);
        let (mut stream, _) = server.accept().unwrap();
        sender.connection = None;
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let mut rest = &text[..];
        for wanted in ["one", "two words"] {
            let (length, behind) = rest.split_once(' ').unwrap();
            let (message, more) = behind.split_at(length.parse().unwrap());
            assert_eq!(line_of(message), wanted);
            rest = more;
        }
        assert!(rest.is_empty());
        assert_eq!(sender.send(b"three\n").lost, 0);
        assert!(server.accept().is_ok());
    }

    #[test]
    fn a_server_that_is_not_there_costs_lines_and_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut sender = Sender::new(Syslog::Unix(path.clone()));
        let sent = sender.send(b"one\ntwo\n");
        assert_eq!(sent.lost, 2);
        assert!(sender.retry_at.is_some());
        let server = UnixDatagram::bind(&path).unwrap();
        sender.retry_at = Some(Instant::now());
        assert_eq!(sender.send(b"three\n").lost, 0);
        let mut buffer = [0; 1024];
        let n = server.recv(&mut buffer).unwrap();
        assert_eq!(line_of(str::from_utf8(&buffer[..n]).unwrap()), "three");
    }

    #[test]
    fn a_server_that_drips_bytes_is_given_up() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let dripping = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            // The beginning of a handshake record of 16 KiB, a byte at a time, until nobody reads any more.
            let record = [0x16, 3, 3, 0x40, 0].into_iter().chain(std::iter::repeat(2));
            let mut dripped = 0;
            for byte in record {
                if stream.write_all(&[byte]).is_err() {
                    return dripped;
                }
                dripped += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            dripped
        });
        let name = rustls::pki_types::ServerName::from(address.ip());
        let mut sender = Sender::new(Syslog::Tls(SyslogTls { address, name, roots: Vec::new() }));
        let sent = sender.send(b"one\ntwo\n");
        assert_eq!(sent.lost, 2);
        // Without a limit in total, the handshake would go on for five minutes.
        assert!((1..10_000).contains(&dripping.join().unwrap()));
    }
}
