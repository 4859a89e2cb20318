//! Connections with data in their SYN, on tokio: does what [`Dial`] says.

use rustix::net::sockopt;
use sealane_dial::{Action, Dial, Ended, How, Memory, Route, Verdict, budget};
use sealane_sys::fastopen::{self, Cookie};
use sealane_sys::fastopen_open::{self, Settled};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::sleep_until;

/// Destinations that are remembered.
const DESTINATIONS: usize = 4096;
/// How long a server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Set on our own connections, so that they are not redirected to us again.
pub(super) const MARK: u32 = 0x5ea1_a4e0;

/// A connection to a server.
pub(super) struct Connected {
    pub stream: TcpStream,
    /// Bytes of the hello that have gone already.
    pub sent: usize,
    /// For people.
    pub how: &'static str,
    /// The hello went with the SYN.
    pub embedded: bool,
}

/// Lets the third packet go by itself when the server's flight does not follow its SYN-ACK at once: a server whose flight
/// was lost waits for that packet before it sends again.
pub(super) async fn acknowledge_unless_answered(stream: &TcpStream) {
    let rtt = fastopen::info(stream).map_or(Duration::ZERO, |i| i.rtt);
    let grace = (rtt / 4).clamp(Duration::from_millis(2), Duration::from_millis(20));
    if tokio::time::timeout(grace, stream.readable()).await.is_err() {
        // Without effect where it has left already.
        let _ = sockopt::set_tcp_quickack(stream, true);
    }
}

/// Makes connections, and remembers paths.
pub(super) struct Dialer {
    memory: RefCell<Memory>,
    cookie: Cookie,
    mark: bool,
    embedded: Cell<u64>,
    hedged: Cell<u64>,
    others: Cell<u64>,
}

/// One of an attempt's connections.
struct Attempt {
    stream: TcpStream,
    sent: usize,
    cookie_missing: bool,
}

impl Dialer {
    /// `mark`: connections to redirected destinations, which needs CAP_NET_ADMIN.
    pub fn new(no_cookie: bool, mark: bool) -> io::Result<Self> {
        Ok(Self {
            memory: RefCell::new(Memory::new(DESTINATIONS)),
            cookie: if no_cookie { Cookie::None } else { Cookie::Ask },
            mark,
            embedded: Cell::new(0),
            hedged: Cell::new(0),
            others: Cell::new(0),
        })
    }

    pub fn summary(&self) -> String {
        let (embedded, hedged, others) = (self.embedded.get(), self.hedged.get(), self.others.get());
        format!(
            "connections with the ClientHello in the SYN: {embedded}; with the ClientHello after the TCP handshake: {hedged} \
             because the SYN with data was refused or got no answer in time, {others} for other reasons"
        )
    }

    /// Connects, with the hello in the SYN where it fits.
    pub async fn connect(&self, to: SocketAddr, hello: &[u8]) -> io::Result<Connected> {
        let dial = self.plan(to, hello)?;
        let result = tokio::time::timeout(TIMEOUT, self.race(to, hello, dial)).await;
        let (attempt, dial) = result.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        self.note(to, &dial, &attempt.stream);
        let (count, how) = match dial.how() {
            How::Embedded => (&self.embedded, "ClientHello in the SYN"),
            How::NotTaken => {
                (&self.others, "ClientHello after the TCP handshake: the data in the SYN was not accepted")
            }
            How::NoCookie => (
                &self.others,
                "ClientHello after the TCP handshake: there was no Fast Open cookie for this server yet, and this connection \
                 asked for one",
            ),
            How::Hedged => {
                (&self.hedged, "ClientHello after the TCP handshake: the SYN with data got no answer in time")
            }
            How::Refused => (&self.hedged, "ClientHello after the TCP handshake: the SYN with data was refused"),
            How::Sequential => (&self.others, "ClientHello after the TCP handshake"),
        };
        count.set(count.get() + 1);
        let embedded = dial.how() == How::Embedded;
        Ok(Connected { stream: attempt.stream, sent: attempt.sent, how, embedded })
    }

    fn plan(&self, to: SocketAddr, hello: &[u8]) -> io::Result<Dial> {
        let memory = self.memory.borrow();
        let fits = !hello.is_empty() && hello.len() <= budget::bytes(to.ip(), fastopen::path_mtu(to)?);
        Ok(match fits && memory.verdict(to.ip(), Instant::now()) == Verdict::Embed {
            true => Dial::embedded(Instant::now(), memory.hedge_delay(to.ip())),
            false => Dial::sequential(),
        })
    }

    async fn race(&self, to: SocketAddr, hello: &[u8], mut dial: Dial) -> io::Result<(Attempt, Dial)> {
        let mut attempts: [Option<Attempt>; 2] = [None, None];
        let index = |route| usize::from(route == Route::Plain);
        let mut error = io::Error::from(io::ErrorKind::NotConnected);
        loop {
            while let Some(action) = dial.poll_action() {
                match action {
                    Action::Connect(route) => match self.open(to, route, hello) {
                        Ok(attempt) => attempts[index(route)] = Some(attempt),
                        Err(e) => {
                            error = e;
                            dial.handle_failed(route);
                        }
                    },
                    Action::Drop(route) => attempts[index(route)] = None,
                    Action::Use(route) => {
                        return attempts[index(route)].take().map(|a| (a, dial)).ok_or(error);
                    }
                    Action::GiveUp => return Err(error),
                }
            }
            let deadline = dial.next_deadline();
            tokio::select! {
                result = settled(attempts[0].as_ref()) => match result {
                    Ok(ended) => dial.handle_embedded(ended),
                    Err(e) => {
                        error = e;
                        dial.handle_failed(Route::Embedded);
                    }
                },
                result = settled(attempts[1].as_ref()) => match result {
                    Ok(_) => dial.handle_plain(),
                    Err(e) => {
                        error = e;
                        dial.handle_failed(Route::Plain);
                    }
                },
                () = at(deadline) => dial.handle_timeout(Instant::now()),
            }
        }
    }

    fn open(&self, to: SocketAddr, route: Route, hello: &[u8]) -> io::Result<Attempt> {
        let fd = fastopen_open::socket(to)?;
        if self.mark {
            fastopen::set_mark(&fd, MARK)?;
        }
        let opened = match route {
            Route::Plain => fastopen_open::open(fd, to)?,
            Route::Embedded => fastopen_open::open_with_data(fd, to, hello, self.cookie)?,
        };
        let stream = TcpStream::from_std(std::net::TcpStream::from(opened.fd))?;
        Ok(Attempt { stream, sent: opened.sent, cookie_missing: opened.cookie_missing })
    }

    fn note(&self, to: SocketAddr, dial: &Dial, stream: &TcpStream) {
        let (mut memory, now) = (self.memory.borrow_mut(), Instant::now());
        match dial.evidence() {
            Some(true) => memory.note_success(to.ip(), now),
            Some(false) => memory.note_failure(to.ip(), now),
            None => {}
        }
        if let Ok(info) = fastopen::info(stream)
            && !info.rtt.is_zero()
        {
            memory.note_rtt(to.ip(), info.rtt, now);
        }
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(t) => sleep_until(t.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits until a connection is made or has failed; for ever if there is none.
async fn settled(attempt: Option<&Attempt>) -> io::Result<Ended> {
    let Some(attempt) = attempt else { return std::future::pending().await };
    let stream = &attempt.stream;
    let look = || match fastopen_open::settled(stream, attempt.cookie_missing)? {
        None => Err(io::ErrorKind::WouldBlock.into()),
        Some(Settled::Taken) => Ok(Ended::Taken),
        Some(Settled::NotTaken) => Ok(Ended::NotTaken),
        Some(Settled::NoCookie) => Ok(Ended::NoCookie),
        Some(Settled::SentAgain) => Ok(Ended::SentAgain),
    };
    stream.async_io(Interest::WRITABLE, look).await
}
