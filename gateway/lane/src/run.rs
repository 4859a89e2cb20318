//! The loop of a lane.
//!
//! One turn: wait for events → hand each to the service → pick up mail, within a budget → fire timers → let the service do
//! what it has deferred (admitted handshakes, sends). The service owns everything; the loop only says what is ready.

use crate::mailbox::{Inbox, Mail};
use crate::timers::{Micros, Millis, Timers};
use rustix::event::epoll;
use rustix::event::epoll::EventFlags;
use rustix::time::Timespec;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Most events taken from the kernel at a time.
const EVENTS: usize = 256;
/// Most messages taken from the mailbox per turn. The rest waits for the next turn, so that a flood of mail delays the
/// lane's own connections by this many messages at most.
const MAIL_PER_TURN: usize = 64;
/// One turn out of so many is measured. An odd number, since a request and its response often take two turns: an even one
/// would measure the same of the two each time.
const MEASURED: u8 = 7;
/// The mailbox's token. The top bit is never set in a connection's key.
const MAIL: u64 = u64::MAX;

/// What is ready on a descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ready {
    /// Bytes, a connection or an end can be read.
    pub read: bool,
    /// There is room to write, or a connect is over.
    pub write: bool,
    /// The peer will send nothing more (RDHUP): reading must go on until it says so, since data and the end come as
    /// one event, and a second never comes.
    pub peer_closed: bool,
    /// Reset or failed.
    pub error: bool,
}

/// What a lane does. One type per kind of lane; a value per thread.
pub trait Service {
    /// What can be mailed to it.
    type Message: Mail;

    /// Something is ready on the descriptor watched under `token`.
    fn ready(&mut self, cx: &mut Context, token: u64, ready: Ready);

    /// A timer armed under `token` has fired. The deadline may have moved since.
    fn timeout(&mut self, cx: &mut Context, token: u64);

    /// Mail.
    fn message(&mut self, cx: &mut Context, message: Self::Message);

    /// A turn that was measured has taken so many microseconds, from its events to its end.
    fn turn_took(&mut self, _: u64) {}

    /// The end of a turn. The loop sleeps only if this says [`After::Sleep`].
    fn turn(&mut self, cx: &mut Context) -> After;
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Nothing is left to do: wait for events.
    Sleep,
    /// Work was deferred: look for events without waiting.
    Again,
    /// The lane is done.
    Stop,
}

/// What the loop gives a service to work with.
#[derive(Debug)]
pub struct Context {
    epoll: OwnedFd,
    started: Instant,
    now: Millis,
    micros: Micros,
    /// The lane's timers.
    pub timers: Timers,
    /// Turns of the loop so far.
    pub turns: u64,
    /// This turn has taken as much mail as it may: more may wait, for the next turn.
    pub mail_left: bool,
    /// The loop wakes at this time at the latest, for what wants to be more exact than the timers. The service sets it
    /// anew in every turn.
    pub alarm: Option<Instant>,
    /// The kernel has no `epoll_pwait2` (before Linux 5.11, or hidden by a sandbox): waits end on whole milliseconds.
    milliseconds_only: bool,
}

impl Context {
    /// Makes the lane's poll.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self {
            epoll,
            started: Instant::now(),
            now: 0,
            micros: 0,
            timers: Timers::default(),
            turns: 0,
            mail_left: false,
            alarm: None,
            milliseconds_only: false,
        })
    }

    /// Milliseconds since the lane started, as of the beginning of this turn.
    #[inline]
    pub fn now(&self) -> Millis {
        self.now
    }

    /// The same time as [`Context::now`], in microseconds: for durations that are measured.
    #[inline]
    pub fn micros(&self) -> Micros {
        self.micros
    }

    fn read_clock(&self) -> Micros {
        let elapsed = self.started.elapsed();
        elapsed.as_secs() * 1_000_000 + u64::from(elapsed.subsec_micros())
    }

    fn refresh_time(&mut self) {
        self.micros = self.read_clock();
        self.now = self.micros / 1000;
    }

    #[cfg(test)]
    pub(crate) fn set_now(&mut self, now: Millis) {
        self.now = now;
        self.micros = now * 1000;
    }

    /// The clock itself, for measuring.
    #[inline]
    pub fn instant(&self) -> Instant {
        Instant::now()
    }

    /// When the lane started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Watches a connection, edge-triggered, for everything, until it is closed.
    #[inline]
    pub fn watch(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)?)
    }

    /// Watches a listening socket, level-triggered, so that connections may be left in the kernel's queue.
    pub fn watch_listener(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), EventFlags::IN)?)
    }

    /// Changes for what a descriptor is watched, level-triggered from now on.
    pub fn rewatch(&self, fd: impl AsFd, token: u64, read: bool, write: bool) -> io::Result<()> {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, read);
        flags.set(EventFlags::OUT, write);
        Ok(epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(token), flags)?)
    }

    /// Stops watching.
    pub fn unwatch(&self, fd: impl AsFd) {
        // It fails only for what is not watched, and that is what is wanted.
        let _ = epoll::delete(&self.epoll, fd);
    }
}

/// Runs a service on this thread until it stops.
pub fn run<S: Service>(mut cx: Context, mut service: S, inbox: &Inbox<S::Message>) -> io::Result<S> {
    epoll::add(&cx.epoll, inbox.wake(), epoll::EventData::new_u64(MAIL), EventFlags::IN)?;
    let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
    let mut due = Vec::new();
    let mut after = After::Again;
    let mut until_measured = MEASURED;
    while after != After::Stop {
        let timeout = match after {
            After::Sleep if !cx.mail_left => cx.timers.next(cx.now),
            _ => Some(0),
        };
        let mut timeout = timeout.map(Duration::from_millis);
        // The alarm stays set until the wait is over: a signal may interrupt the wait, which then begins again.
        if let Some(alarm) = cx.alarm {
            let wait = alarm.saturating_duration_since(Instant::now());
            timeout = Some(timeout.map_or(wait, |t| t.min(wait)));
        }
        let waited = if cx.milliseconds_only {
            sealane_sys::epoll::wait_milliseconds(&cx.epoll, &mut events, timeout)
        } else {
            let time = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
            epoll::wait(&cx.epoll, &mut events, time.as_ref()).map(|(ready, _)| ready)
        };
        let ready = match waited {
            Ok(ready) => ready,
            // Some sandboxes refuse what they do not know with EPERM.
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) if !cx.milliseconds_only => {
                cx.milliseconds_only = true;
                continue;
            }
            Err(rustix::io::Errno::INTR) => {
                // Timers and the alarm are waited for from here on, however often signals come.
                cx.refresh_time();
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        cx.alarm = None;
        cx.refresh_time();
        cx.turns += 1;
        let mut mail = std::mem::take(&mut cx.mail_left);
        for event in ready.iter() {
            let token = event.data.u64();
            if token == MAIL {
                mail = true;
                continue;
            }
            let flags = event.flags;
            let error = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            let r = Ready {
                read: error || flags.intersects(EventFlags::IN | EventFlags::RDHUP),
                write: error || flags.contains(EventFlags::OUT),
                peer_closed: error || flags.contains(EventFlags::RDHUP),
                error,
            };
            service.ready(&mut cx, token, r);
        }
        if mail {
            inbox.acknowledge();
            for taken in 1.. {
                let Some(message) = inbox.receive() else { break };
                service.message(&mut cx, message);
                if taken == MAIL_PER_TURN {
                    cx.mail_left = true;
                    break;
                }
            }
        }
        let now = cx.now;
        cx.timers.expire(now, &mut due);
        for token in due.drain(..) {
            service.timeout(&mut cx, token);
        }
        after = service.turn(&mut cx);
        if cfg!(feature = "uninstrumented") {
            continue;
        }
        until_measured -= 1;
        if until_measured == 0 {
            until_measured = MEASURED;
            service.turn_took(cx.read_clock() - cx.micros);
        }
    }
    Ok(service)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::{Load, mailbox};

    struct Word;

    impl Mail for Word {
        fn load(&self) -> Load {
            Load::Free
        }
    }

    /// Sets one alarm, notes whether the turn that it ends comes after it, and stops at the mail that follows.
    struct Alarmed {
        alarm: Instant,
        set: bool,
        early: bool,
        mail: usize,
    }

    impl Service for Alarmed {
        type Message = Word;
        fn ready(&mut self, _: &mut Context, _: u64, _: Ready) {}
        fn timeout(&mut self, _: &mut Context, _: u64) {}
        fn message(&mut self, _: &mut Context, _: Word) {
            self.mail += 1;
        }
        fn turn(&mut self, cx: &mut Context) -> After {
            if !std::mem::replace(&mut self.set, true) {
                cx.alarm = Some(self.alarm);
                return After::Sleep;
            }
            self.early = Instant::now() < self.alarm;
            After::Stop
        }
    }

    #[test]
    fn without_nanoseconds_an_alarm_is_never_early() {
        for milliseconds_only in [false, true] {
            let (to, inbox) = mailbox(&[]).unwrap();
            assert!(to.send(Word).is_ok());
            let mut cx = Context::new().unwrap();
            cx.milliseconds_only = milliseconds_only;
            let alarm = Instant::now() + Duration::from_micros(2300);
            let done = run(cx, Alarmed { alarm, set: false, early: false, mail: 0 }, &inbox).unwrap();
            assert!(done.set && !done.early && done.mail == 1, "{milliseconds_only}");
        }
    }
}
