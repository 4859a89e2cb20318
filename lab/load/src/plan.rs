//! What a run is to do, complete and checked before anything starts.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::schedule::Arrivals;
use crate::tls::TlsOptions;
use crate::url::Url;

/// The version of HTTP that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 over TCP, with or without TLS.
    Http1,
    /// HTTP/2 over TLS, or with prior knowledge over TCP.
    Http2,
    /// HTTP/3 over QUIC.
    Http3,
}

impl Protocol {
    /// The ALPN identifier (RFC 7301, RFC 9113 §3.1, RFC 9114 §3.1).
    pub fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
            Self::Http3 => b"h3",
        }
    }

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
            Self::Http3 => "HTTP/3",
        }
    }
}

/// What decides when the next operation starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// The end of the one before: every connection is always busy. Slow answers slow the asking down,
    /// so that the latencies leave out what real users would have waited.
    Closed,
    /// The clock: so many operations per second, whatever the server does.
    Open {
        /// Operations per second over all threads.
        rate: f64,
        /// How they are spread.
        arrivals: Arrivals,
    },
}

/// The kinds of operation that have histograms of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A request on a connection that stays open.
    Request = 0,
    /// A new connection without TLS.
    Plain = 1,
    /// A new connection with a full handshake.
    Full = 2,
    /// A new connection with a resumed session.
    Resumed = 3,
    /// A resumed session whose request travels as early data.
    EarlyData = 4,
}

impl Kind {
    /// All of them, in the order of their values.
    pub const ALL: [Self; 5] = [Self::Request, Self::Plain, Self::Full, Self::Resumed, Self::EarlyData];

    /// The name in options, tables and JSON.
    pub fn name(self) -> &'static str {
        ["request", "connection", "full", "resumed", "early-data"][self as usize]
    }
}

/// What an operation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A request on one of the connections kept open.
    KeepAlive,
    /// A connection of its own: connect, handshake, request, close.
    Connection {
        /// Whether a request is sent once connected.
        request: bool,
        /// Kinds of handshake with their weights; `Plain` alone without TLS.
        mix: Vec<(Kind, u32)>,
    },
}

/// How a connection is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// The usual way, with FIN.
    Fin,
    /// With RST: leaves no TIME_WAIT behind on the client.
    Reset,
}

/// Which cores the threads are pinned to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// One thread per core of those this process may use, in order.
    Auto,
    /// These cores.
    Cpus(Vec<usize>),
    /// The kernel chooses.
    Off,
}

/// One request that is made again and again.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where from; for reports.
    pub url: Url,
    /// The part of the origin's operations that it gets.
    pub weight: u32,
    /// The method.
    pub method: String,
    /// Fields besides `Host`, in order.
    pub headers: Vec<(String, String)>,
    /// The body, empty for none.
    pub body: Arc<[u8]>,
}

/// A server and what is asked of it.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Whether TLS is spoken.
    pub tls: bool,
    /// Host of the URL.
    pub host: String,
    /// Where it is, resolved.
    pub address: SocketAddr,
    /// The part of all operations that it gets.
    pub weight: u32,
    /// What is asked of it.
    pub targets: Vec<Target>,
}

/// Beyond these a run is void.
#[derive(Clone, Copy, Debug)]
pub struct Honesty {
    /// How late the generator itself may be at the 99th percentile of its own lag.
    pub lag: Duration,
    /// The part of the offered rate that must have been reached, when the client is at fault.
    pub offered: f64,
    /// CPU pressure (PSI "some") over the measured phase, in per cent.
    pub pressure: f64,
    /// The part of handshakes that may turn out other than asked.
    pub mismatch: f64,
}

impl Default for Honesty {
    fn default() -> Self {
        Self { lag: Duration::from_millis(1), offered: 0.99, pressure: 20.0, mismatch: 0.01 }
    }
}

/// Everything about a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The servers and requests.
    pub origins: Vec<Origin>,
    /// The version of HTTP.
    pub protocol: Protocol,
    /// Open or closed loop.
    pub pace: Pace,
    /// What is counted as one.
    pub operation: Operation,
    /// Connections over all threads; in connection mode the most at once.
    pub connections: usize,
    /// Requests at once on a connection (HTTP/2 and HTTP/3).
    pub streams: usize,
    /// Generator threads.
    pub threads: usize,
    /// Their cores.
    pub pinning: Pinning,
    /// How long is measured; `None` with `requests`.
    pub duration: Option<Duration>,
    /// How many operations are measured, over all threads.
    pub requests: Option<u64>,
    /// What comes before measuring.
    pub warmup: Duration,
    /// The longest that an operation may take.
    pub timeout: Duration,
    /// Local addresses, used in turn.
    pub sources: Vec<IpAddr>,
    /// Names for SNI and `Host` with their weights; empty for the URL's.
    pub names: Vec<(String, u32)>,
    /// TLS settings.
    pub tls: TlsOptions,
    /// How connections end.
    pub close: Close,
    /// How long before a deadline waiting turns into spinning.
    pub spin: Duration,
    /// Seed of all randomness.
    pub seed: u64,
    /// Processes whose cost is accounted.
    pub servers: Vec<u32>,
    /// When a run is void.
    pub honesty: Honesty,
    /// Whether histograms per interval are kept (for live views, logs and charts), and how long one is.
    pub interval: Option<Duration>,
    /// Whether the moments of each operation are kept ([`crate::record::Record::trace`]): 32 bytes each.
    pub trace: bool,
}

impl Origin {
    /// Groups targets by the server they are on; `place` says where a server is.
    pub fn group<E>(
        targets: Vec<Target>,
        mut place: impl FnMut(&Url) -> Result<SocketAddr, E>,
    ) -> Result<Vec<Self>, E> {
        let mut origins: Vec<Self> = Vec::new();
        for target in targets {
            let url = &target.url;
            let same = |o: &&mut Self| {
                o.targets
                    .first()
                    .is_some_and(|t| (t.url.tls, &t.url.host, t.url.port) == (url.tls, &url.host, url.port))
            };
            match origins.iter_mut().find(same) {
                Some(origin) => {
                    origin.weight += target.weight;
                    origin.targets.push(target);
                }
                None => origins.push(Self {
                    tls: url.tls,
                    host: url.host.clone(),
                    address: place(url)?,
                    weight: target.weight,
                    targets: vec![target],
                }),
            }
        }
        Ok(origins)
    }
}

impl Target {
    /// The request as it is made to `host`.
    pub fn request(&self, host: &str) -> sealane_lab_wire::Request<'_> {
        sealane_lab_wire::Request {
            method: &self.method,
            tls: self.url.tls,
            authority: self.url.host_field(host),
            path: &self.url.path,
            headers: &self.headers,
            body: &self.body,
        }
    }

    /// A GET of `url`.
    pub fn get(url: Url) -> Self {
        Self { url, weight: 1, method: "GET".to_owned(), headers: Vec::new(), body: Arc::from([]) }
    }
}

impl Plan {
    /// The usual settings for these servers: a closed loop of HTTP/1.1 requests on kept connections, one
    /// thread, ten seconds after one of warming up.
    pub fn new(origins: Vec<Origin>) -> Self {
        Self {
            origins,
            protocol: Protocol::Http1,
            pace: Pace::Closed,
            operation: Operation::KeepAlive,
            connections: 64,
            streams: 1,
            threads: 1,
            pinning: Pinning::Auto,
            duration: Some(Duration::from_secs(10)),
            requests: None,
            warmup: Duration::from_secs(1),
            timeout: Duration::from_secs(10),
            sources: Vec::new(),
            names: Vec::new(),
            tls: TlsOptions::default(),
            close: Close::Fin,
            spin: Duration::from_micros(50),
            seed: 1,
            servers: Vec::new(),
            honesty: Honesty::default(),
            interval: None,
            trace: false,
        }
    }

    /// The kinds of operation that this plan can yield.
    pub fn kinds(&self) -> Vec<Kind> {
        match &self.operation {
            Operation::KeepAlive => vec![Kind::Request],
            Operation::Connection { mix, .. } => {
                let mut kinds: Vec<Kind> = mix.iter().map(|(kind, _)| *kind).collect();
                // What was asked for and what it turned out to be may differ.
                if kinds.iter().any(|kind| *kind >= Kind::Full) {
                    kinds.push(Kind::Full);
                }
                if kinds.contains(&Kind::EarlyData) {
                    kinds.push(Kind::Resumed);
                }
                kinds.sort_unstable();
                kinds.dedup();
                kinds
            }
        }
    }

    /// Whether any operation needs a session ticket.
    pub fn wants_tickets(&self) -> bool {
        match &self.operation {
            Operation::KeepAlive => false,
            Operation::Connection { mix, .. } => mix.iter().any(|(kind, _)| *kind >= Kind::Resumed),
        }
    }

    /// The offered rate, when the loop is open.
    pub fn rate(&self) -> Option<f64> {
        match self.pace {
            Pace::Closed => None,
            Pace::Open { rate, .. } => Some(rate),
        }
    }

    /// A thread's share of `total` things: the first threads take the remainder.
    pub fn share(&self, total: usize, thread: usize) -> usize {
        total / self.threads + usize::from(thread < total % self.threads)
    }
}
