//! The sockets of one attempt: does what [`Dial`] says, and tells it what came of it.

use crate::outcome::ConnectError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use sealane_dial::{Action, Dial, Ended, Route};
use sealane_sys::fastopen::{self, Cookie};
use sealane_sys::fastopen_open::{self, Settled};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long the third packet may wait for something to carry.
const LONGEST_GRACE: Duration = Duration::from_millis(20);
const SHORTEST_GRACE: Duration = Duration::from_millis(2);

/// Lets the third packet go without our Finished when the server's flight does not follow its SYN-ACK at once. Where that
/// flight is lost, the server sends it again only after the third packet has come, and takes the time that this packet
/// took for the round trip: held back for the kernel's 200 ms it would make a lost packet cost nearly a second
/// (*measured*: the slowest 5 % at 2 % loss took 612 ms).
pub(crate) fn acknowledge_unless_answered(tcp: &TcpStream) {
    let rtt = fastopen::info(tcp).map_or(Duration::ZERO, |i| i.rtt);
    let grace = (rtt / 4).clamp(SHORTEST_GRACE, LONGEST_GRACE);
    let grace = Timespec { tv_sec: 0, tv_nsec: i64::from(grace.subsec_nanos()) };
    let mut fds = [PollFd::from_borrowed_fd(tcp.as_fd(), PollFlags::IN)];
    if !matches!(poll(&mut fds, Some(&grace)), Ok(1..)) {
        // Without effect where it has left already.
        let _ = sockopt::set_tcp_quickack(tcp, true);
    }
}

/// A TCP connection.
pub(crate) struct Connected {
    pub fd: OwnedFd,
    pub route: Route,
    /// Bytes of the data that the kernel has taken already.
    pub sent: usize,
}

/// The sockets of an attempt.
pub(crate) struct Race<'a> {
    address: SocketAddr,
    /// For the SYN.
    data: &'a [u8],
    cookie: Cookie,
    embedded: Option<OwnedFd>,
    plain: Option<OwnedFd>,
    sent: usize,
    cookie_missing: bool,
    error: io::Error,
}

impl<'a> Race<'a> {
    pub fn new(address: SocketAddr, data: &'a [u8], cookie: Cookie) -> Self {
        let error = io::ErrorKind::NotConnected.into();
        Self { address, data, cookie, embedded: None, plain: None, sent: 0, cookie_missing: false, error }
    }

    /// Runs until there is a winner.
    pub fn run(&mut self, dial: &mut Dial, deadline: Instant) -> Result<Connected, ConnectError> {
        loop {
            while let Some(action) = dial.poll_action() {
                match action {
                    Action::Connect(route) => {
                        if let Err(e) = self.open(route) {
                            self.error = e;
                            dial.handle_failed(route);
                        }
                    }
                    Action::Drop(route) => drop(self.socket(route).take()),
                    Action::Use(route) => {
                        let sent = if route == Route::Embedded { self.sent } else { 0 };
                        if let Some(fd) = self.socket(route).take() {
                            return Ok(Connected { fd, route, sent });
                        }
                    }
                    Action::GiveUp => {
                        return Err(ConnectError::Connect(std::mem::replace(
                            &mut self.error,
                            io::ErrorKind::NotConnected.into(),
                        )));
                    }
                }
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(ConnectError::Timeout);
            }
            let until = dial.next_deadline().map_or(deadline, |d| d.min(deadline));
            self.wait(until.saturating_duration_since(now))?;
            for route in [Route::Embedded, Route::Plain] {
                self.look(route, dial);
            }
            dial.handle_timeout(Instant::now());
        }
    }

    fn socket(&mut self, route: Route) -> &mut Option<OwnedFd> {
        match route {
            Route::Embedded => &mut self.embedded,
            Route::Plain => &mut self.plain,
        }
    }

    fn open(&mut self, route: Route) -> io::Result<()> {
        let fd = fastopen_open::socket(self.address)?;
        let opened = match route {
            Route::Plain => fastopen_open::open(fd, self.address)?,
            Route::Embedded => fastopen_open::open_with_data(fd, self.address, self.data, self.cookie)?,
        };
        if route == Route::Embedded {
            (self.sent, self.cookie_missing) = (opened.sent, opened.cookie_missing);
        }
        *self.socket(route) = Some(opened.fd);
        Ok(())
    }

    fn wait(&self, time: Duration) -> Result<(), ConnectError> {
        let time = Timespec::try_from(time).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let open = [&self.embedded, &self.plain];
        let mut fds: Vec<PollFd<'_>> =
            open.into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::OUT)).collect();
        match poll(&mut fds, Some(&time)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(ConnectError::Connect(e.into())),
        }
    }

    /// What has become of a socket.
    fn look(&mut self, route: Route, dial: &mut Dial) {
        let missing = self.cookie_missing;
        let Some(fd) = self.socket(route) else { return };
        match fastopen_open::settled(fd, missing) {
            Ok(None) => {}
            Ok(Some(settled)) => match route {
                Route::Plain => dial.handle_plain(),
                Route::Embedded => dial.handle_embedded(match settled {
                    Settled::Taken => Ended::Taken,
                    Settled::NotTaken => Ended::NotTaken,
                    Settled::NoCookie => Ended::NoCookie,
                    Settled::SentAgain => Ended::SentAgain,
                }),
            },
            Err(e) => {
                self.error = e;
                dial.handle_failed(route);
            }
        }
    }
}
