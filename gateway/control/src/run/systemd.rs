//! The service manager: it is told when the gateway is ready, reloads, stops or goes on as another process
//! (sd_notify(3)). Without one nothing happens.

use rustix::time::{ClockId, clock_gettime};
use sealane_sys::inherit::send_descriptors;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

/// How long the service manager may leave a word unread when its queue is full.
const LISTENS_WITHIN: Duration = Duration::from_secs(5);

/// How long the process may take to end after its requests have ended: connections are closed, the tunnel is stored, logs are written.
const ENDS_WITHIN: Duration = Duration::from_secs(15);

/// Where the service manager listens, and how often it wants to hear from us.
#[derive(Debug)]
pub struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// Half the watchdog's time, if it is on.
    pub heartbeat: Option<Duration>,
    /// It keeps descriptors between two processes of the service (`FileDescriptorStoreMax=`).
    store: bool,
}

impl Notifier {
    /// By `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID` and `FDSTORE`, which systemd says from version 254 on.
    pub fn from_environment() -> Self {
        let address = std::env::var("NOTIFY_SOCKET").ok().and_then(|name| match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name).ok(),
            None => SocketAddr::from_pathname(Path::new(&name)).ok(),
        });
        let socket = address.and_then(|a| Some((UnixDatagram::unbound().ok()?, a)));
        if let Some((socket, _)) = &socket {
            // A service manager that does not read holds nothing up for longer; it fails only for a time of zero.
            let _ = socket.set_write_timeout(Some(LISTENS_WITHIN));
        }
        let number = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|us| ours && *us > 0);
        let store = number("FDSTORE").is_some_and(|most| most > 0);
        Self { heartbeat: watchdog.filter(|_| socket.is_some()).map(|us| Duration::from_micros(us / 2)), socket, store }
    }

    fn say(&self, text: &str) {
        if let Some((socket, address)) = &self.socket {
            // A service manager that does not listen is its own problem.
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }

    /// Whether descriptors can be left with it.
    pub fn keeps(&self) -> bool {
        self.store && self.socket.is_some()
    }

    /// Leaves a descriptor, which the next process of the service is passed under this name. Whether its other end is
    /// closed is not to be looked at.
    pub fn keep(&self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let (_, address) = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(address)?;
        let text = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}\n");
        send_descriptors(&socket, text.as_bytes(), &[descriptor]).map(drop)
    }

    /// What was left under this name has been used.
    pub fn keep_no_more(&self, name: &str) {
        self.say(&format!("FDSTOREREMOVE=1\nFDNAME={name}\n"));
    }

    /// Everything is listened on.
    pub fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={status}\n"));
    }

    /// What is said of the service, if that has changed.
    pub fn status(&self, status: &str) {
        self.say(&format!("STATUS={status}\n"));
    }

    /// The configuration is being read again; [`Notifier::ready`] follows.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\n"));
    }

    /// Open requests may continue for this long. The service manager waits for the end of the process for that long, and
    /// [`ENDS_WITHIN`] more, even if its own limit (`TimeoutStopSec=`) is shorter: `drain_timeout` and `drain_upgraded_timeout` are the
    /// settings of both.
    pub fn stopping(&self, drain: Duration) {
        let micros = u64::try_from(drain.saturating_add(ENDS_WITHIN).as_micros()).unwrap_or(u64::MAX);
        // systemd takes the largest number for "no number".
        self.say(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}\n", micros.min(u64::MAX / 2)));
    }

    /// From now on the service is this process.
    pub fn main_process(&self, pid: u32) {
        self.say(&format!("MAINPID={pid}\n"));
    }

    /// Control is alive; to be said every [`Notifier::heartbeat`]. Never waits: where the queue is full, others like it wait
    /// to be read.
    pub fn alive(&self) {
        if let Some((socket, _)) = &self.socket {
            // Neither fails for a socket that is open.
            let _ = socket.set_nonblocking(true);
            self.say("WATCHDOG=1\n");
            let _ = socket.set_nonblocking(false);
        }
    }
}
