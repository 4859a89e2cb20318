//! Names, TCP connections and deadlines, blocking: the calling thread does nothing else meanwhile.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::error::ProbeError;
use crate::target::{Overrides, Target};

/// When an attempt must be over.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// `timeout` from now.
    pub fn after(timeout: Duration) -> Self {
        Self(Instant::now() + timeout)
    }

    /// The time left; an error once there is none.
    pub fn left(&self, during: &'static str) -> Result<Duration, ProbeError> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ProbeError::Timeout(during)) } else { Ok(left) }
    }
}

type Answer = io::Result<Vec<SocketAddr>>;

/// Which addresses may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// Any.
    #[default]
    Any,
    /// Only IPv4.
    V4,
    /// Only IPv6.
    V6,
}

/// Resolves names through the system's resolver on a thread of its own, because `getaddrinfo` has no timeout.
///
/// The hand-over to that thread costs some 20 µs, which belong to the DNS phase (curl pays the same).
/// Addresses and `--resolve` entries never take that way.
pub struct Resolver {
    overrides: Overrides,
    family: Family,
    worker: Option<Worker>,
}

struct Worker {
    questions: mpsc::Sender<(String, u16)>,
    answers: mpsc::Receiver<Answer>,
}

impl Worker {
    fn start() -> io::Result<Self> {
        let (questions, to_do) = mpsc::channel::<(String, u16)>();
        let (done, answers) = mpsc::channel();
        std::thread::Builder::new().name("resolver".into()).spawn(move || {
            for (host, port) in to_do {
                let answer = (host.as_str(), port).to_socket_addrs().map(|found| found.take(64).collect());
                if done.send(answer).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { questions, answers })
    }
}

impl Resolver {
    /// A resolver that honours curl's overrides.
    pub fn new(overrides: Overrides, family: Family) -> Self {
        Self { overrides, family, worker: None }
    }

    /// The addresses to try for `target`, in order; never empty.
    pub fn resolve(&mut self, target: &Target, deadline: Deadline) -> Result<Vec<SocketAddr>, ProbeError> {
        let (host, port) = self.overrides.endpoint(target);
        let mut found: Vec<SocketAddr> = if let Some(addresses) = self.overrides.addresses(host, port) {
            addresses.iter().map(|&ip| SocketAddr::new(ip, port)).collect()
        } else if let Ok(ip) = host.parse::<IpAddr>() {
            vec![SocketAddr::new(ip, port)]
        } else {
            let host = host.to_owned();
            self.ask(&host, port, deadline)?
        };
        let host = self.overrides.endpoint(target).0;
        match self.family {
            Family::Any => {}
            Family::V4 => found.retain(SocketAddr::is_ipv4),
            Family::V6 => found.retain(SocketAddr::is_ipv6),
        }
        if found.is_empty() {
            let detail = match self.family {
                Family::Any => "it has no address",
                Family::V4 => "it has no IPv4 address",
                Family::V6 => "it has no IPv6 address",
            };
            return Err(ProbeError::Dns { host: host.to_owned(), detail: detail.into() });
        }
        Ok(found)
    }

    fn ask(&mut self, host: &str, port: u16, deadline: Deadline) -> Result<Vec<SocketAddr>, ProbeError> {
        let failed = |detail: String| ProbeError::Dns { host: host.to_owned(), detail };
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => Worker::start().map_err(|e| failed(format!("no thread for the resolver: {e}")))?,
        };
        let left = deadline.left("resolving the name")?;
        worker.questions.send((host.to_owned(), port)).map_err(|_| failed("the resolver's thread ended".into()))?;
        match worker.answers.recv_timeout(left) {
            Ok(answer) => {
                self.worker = Some(worker);
                answer.map_err(|e| failed(e.to_string()))
            }
            // The thread is left behind with its question; the next one gets a new thread, never a stale answer.
            Err(_) => Err(ProbeError::Timeout("resolving the name")),
        }
    }
}

/// A connected socket whose every read and write ends by the deadline.
pub struct Socket {
    stream: TcpStream,
    deadline: Deadline,
    /// Where it leads.
    pub peer: SocketAddr,
}

impl Socket {
    /// Connects to the first address that answers.
    pub fn connect(addresses: &[SocketAddr], deadline: Deadline) -> Result<Self, ProbeError> {
        let mut last = None;
        for (i, &peer) in addresses.iter().enumerate() {
            let left = deadline.left("connecting")?;
            // Addresses that may still be tried get their share of the time.
            let share = left / (addresses.len() - i).min(u32::MAX as usize) as u32;
            match TcpStream::connect_timeout(&peer, share.max(Duration::from_millis(1))) {
                Ok(stream) => {
                    // Without it the last segment of a request may wait for an acknowledgement.
                    stream.set_nodelay(true).map_err(|source| ProbeError::Connect { to: peer.to_string(), source })?;
                    return Ok(Self { stream, deadline, peer });
                }
                Err(source) => last = Some(ProbeError::Connect { to: peer.to_string(), source }),
            }
        }
        Err(last.unwrap_or(ProbeError::Timeout("connecting")))
    }

    fn left(&self) -> io::Result<Duration> {
        self.deadline.left("").map_err(|_| io::ErrorKind::TimedOut.into())
    }
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match self.stream.read(buf) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(buf)
    }

    fn write_vectored(&mut self, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolver(resolve: &[&str], family: Family) -> Resolver {
        let resolve: Vec<String> = resolve.iter().map(|s| s.to_string()).collect();
        Resolver::new(Overrides::parse(&[], &resolve).expect("valid"), family)
    }

    #[test]
    fn addresses_and_overrides_need_no_resolver() {
        let deadline = Deadline::after(Duration::from_secs(5));
        let target = Target::parse("https://nowhere.invalid/").expect("valid");
        let mut r = resolver(&["nowhere.invalid:443:127.0.0.1,::1"], Family::V6);
        assert_eq!(r.resolve(&target, deadline).expect("found"), ["[::1]:443".parse().expect("address")]);
        assert!(r.worker.is_none());
        let target = Target::parse("https://[::1]:9/").expect("valid");
        let mut r = resolver(&[], Family::V4);
        assert!(matches!(r.resolve(&target, deadline), Err(ProbeError::Dns { .. })));
    }

    #[test]
    fn a_refused_connection_names_the_address() {
        // A port that was just free: bound and dropped.
        let address = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
        let error =
            Socket::connect(&[address], Deadline::after(Duration::from_secs(5))).map(|_| ()).expect_err("refused");
        assert!(error.to_string().contains(&address.to_string()), "{error}");
        assert!(error.to_string().contains("--connect-to"), "{error}");
        assert_eq!(error.exit_code(), 3);
    }

    #[test]
    fn a_passed_deadline_is_a_timeout() {
        let deadline = Deadline::after(Duration::ZERO);
        assert!(matches!(deadline.left("x"), Err(ProbeError::Timeout("x"))));
    }
}
