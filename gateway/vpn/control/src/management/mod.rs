//! OpenVPN's management protocol on a Unix socket: for monitoring tools, and for programs that decide who may come in.
//!
//! ```text
//! socket ─ accept ─▶ one task per program: lines ─▶ inputs (bounded) ─▶ the server executes (`server/manage.rs`)
//!                                          write ◀─ queue (bounded in bytes) ◀─ answers and events: `Hub`
//! ```
//!
//! The server waits for no program. A program that does not read is disconnected when its queue is full, or when a write takes too
//! long; a line has a longest length, and few programs may be connected.

pub(crate) mod command;
pub(crate) mod report;
mod socket;

pub(crate) use sealane_sys::unix_socket::SocketFile;
pub(crate) use socket::Socket;

use sealane_log as log;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};

/// Programs that may be connected.
const MAX_PROGRAMS: usize = 8;
/// The longest line; OpenVPN takes 1,023 bytes.
const MAX_LINE: usize = 4096;
/// Lines of all programs that wait to be executed.
const WAITING: usize = 64;
/// Bytes that wait to be read by one program. A single answer may be longer, where nothing else waits.
const MAX_QUEUED: usize = 4 << 20;
/// How long one write may take.
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// Lines of the log that are remembered, as OpenVPN does (`management-log-cache 250`).
const REMEMBERED: usize = 250;
/// Lines of a `client-auth`.
const MAX_COLLECTED: usize = 256;

/// What comes from the socket.
#[derive(Debug)]
pub(crate) enum Input {
    /// A program has connected.
    Attached(u64, Door),
    /// A line, without its end.
    Line(u64, String),
    /// A line that is too long.
    TooLong(u64),
    /// A program has not read for too long.
    TooSlow(u64),
    /// A program has gone.
    Gone(u64),
}

/// The way to a program.
#[derive(Debug)]
pub(crate) struct Door {
    queue: mpsc::UnboundedSender<Arc<str>>,
    queued: Arc<AtomicUsize>,
}

impl Door {
    /// Queues a text. False: the program reads too slowly, or has gone.
    fn push(&self, text: &Arc<str>) -> bool {
        let queued = self.queued.load(Ordering::Relaxed);
        if queued > 0 && queued.saturating_add(text.len()) > MAX_QUEUED {
            return false;
        }
        self.queued.fetch_add(text.len(), Ordering::Relaxed);
        self.queue.send(text.clone()).is_ok()
    }
}

/// Lines of a `client-auth` so far.
#[derive(Debug)]
pub(crate) struct Collecting {
    /// Whose.
    pub cid: u64,
    /// Which exchange.
    pub kid: u32,
    /// The lines.
    pub lines: Vec<String>,
    /// There were too many.
    pub too_many: bool,
}

/// A program that is connected.
#[derive(Debug)]
struct Program {
    door: Door,
    log: bool,
    state: bool,
    /// How often it hears of bytes, and when it hears next.
    bytes: Option<(Duration, Instant)>,
    collecting: Option<Collecting>,
}

/// What a program hears at once when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// `log`.
    Log,
    /// `state`.
    State,
}

/// The programs, and what is remembered for them.
#[derive(Debug)]
pub(crate) struct Hub {
    programs: RefCell<BTreeMap<u64, Program>>,
    log: RefCell<VecDeque<String>>,
    states: RefCell<VecDeque<String>>,
    /// Programs that were disconnected since they read too slowly.
    dropped: Cell<u64>,
    /// There is a socket.
    is_open: bool,
    /// So that the other end of the inputs waits for ever where there is no socket.
    _inputs: mpsc::Sender<Input>,
}

/// Begins to accept programs, where there is a socket. Within a runtime.
pub(crate) fn start(socket: Option<Socket>) -> (Rc<Hub>, mpsc::Receiver<Input>) {
    let (inputs, lines) = mpsc::channel(WAITING);
    let is_open = socket.is_some();
    if let Some(socket) = socket {
        match socket.listener() {
            Ok(listener) => drop(tokio::spawn(accept(listener, inputs.clone()))),
            Err(e) => log::warn!("tunnel: cannot use the management socket: {e}"),
        }
    }
    let hub = Hub {
        programs: RefCell::default(),
        log: RefCell::default(),
        states: RefCell::default(),
        dropped: Cell::new(0),
        is_open,
        _inputs: inputs,
    };
    (Rc::new(hub), lines)
}

async fn accept(listener: UnixListener, inputs: mpsc::Sender<Input>) {
    let places = Arc::new(Semaphore::new(MAX_PROGRAMS));
    for id in 0.. {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // The server has ended, or goes on elsewhere.
            () = inputs.closed() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(e) => {
                log::debug!("tunnel: the management socket: {e}");
                // Too many descriptors, mostly: it does not pass at once.
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            // A new connection has room for a line.
            let _ = stream.try_write(b"ERROR: too many programs are connected to this socket\r\n");
            continue;
        };
        let (queue, out) = mpsc::unbounded_channel();
        let queued = Arc::<AtomicUsize>::default();
        let door = Door { queue, queued: queued.clone() };
        // Before its first line.
        if inputs.send(Input::Attached(id, door)).await.is_err() {
            return;
        }
        let inputs = inputs.clone();
        tokio::spawn(async move {
            talk(stream, id, out, &queued, &inputs).await;
            drop(place);
        });
    }
}

async fn talk(
    stream: UnixStream,
    id: u64,
    mut out: mpsc::UnboundedReceiver<Arc<str>>,
    queued: &AtomicUsize,
    inputs: &mpsc::Sender<Input>,
) {
    let (mut read, mut write) = stream.into_split();
    let reader = async {
        let (mut line, mut piece) = (Vec::new(), [0; 2048]);
        while let Ok(count @ 1..) = read.read(&mut piece).await {
            for byte in &piece[..count] {
                let input = match byte {
                    b'\n' => {
                        let text = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
                        line.clear();
                        Input::Line(id, text)
                    }
                    _ if line.len() < MAX_LINE => {
                        line.push(*byte);
                        continue;
                    }
                    _ => Input::TooLong(id),
                };
                let is_end = matches!(input, Input::TooLong(_));
                if inputs.send(input).await.is_err() || is_end {
                    return;
                }
            }
        }
    };
    let writer = async {
        while let Some(text) = out.recv().await {
            let written = tokio::time::timeout(WRITE_LIMIT, write.write_all(text.as_bytes())).await;
            queued.fetch_sub(text.len(), Ordering::Relaxed);
            match written {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Input::Gone(id),
                Err(_) => return Input::TooSlow(id),
            }
        }
        Input::Gone(id)
    };
    tokio::pin!(writer);
    tokio::select! {
        () = reader => {
            // A program that says no more may still read: its door is dropped, and what is queued is written.
            let _ = inputs.send(Input::Gone(id)).await;
            writer.await;
        }
        input = &mut writer => {
            let _ = inputs.send(input).await;
        }
    }
}

impl Hub {
    /// Whether there is a socket.
    pub const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether this program is connected, and is to be heard.
    pub fn knows(&self, id: u64) -> bool {
        self.programs.borrow().contains_key(&id)
    }

    /// Whether some program is connected.
    pub fn has_programs(&self) -> bool {
        !self.programs.borrow().is_empty()
    }

    /// Programs that were disconnected since they read too slowly.
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// A program has connected.
    pub fn attach(&self, id: u64, door: Door) {
        let program = Program { door, log: false, state: false, bytes: None, collecting: None };
        self.programs.borrow_mut().insert(id, program);
        self.answer(id, ">INFO:OpenVPN Management Interface Version 5 -- type 'help' for more info");
    }

    /// A program has gone, or is to go: what is queued for it is still written.
    pub fn detach(&self, id: u64) {
        self.programs.borrow_mut().remove(&id);
    }

    /// Tells one program something: lines without the last one's end.
    pub fn answer(&self, id: u64, text: &str) {
        self.send(&wired(text), |program, _| *program == id);
    }

    /// Tells all programs.
    pub fn tell(&self, text: &str) {
        if self.has_programs() {
            self.send(&wired(text), |_, _| true);
        }
    }

    fn send(&self, text: &Arc<str>, meant: impl Fn(&u64, &Program) -> bool) {
        let programs = self.programs.borrow();
        let slow: Vec<u64> = programs
            .iter()
            .filter(|(id, program)| meant(id, program) && !program.door.push(text))
            .map(|(id, _)| *id)
            .collect();
        drop(programs);
        slow.into_iter().for_each(|id| self.drop_slow(id));
    }

    /// A program reads too slowly.
    pub fn drop_slow(&self, id: u64) {
        if self.programs.borrow_mut().remove(&id).is_some() {
            self.dropped.set(self.dropped.get() + 1);
            log::warn!("tunnel: a program on the management socket reads too slowly and is disconnected");
        }
    }

    /// Switches what a program hears at once.
    pub fn switch(&self, id: u64, topic: Topic, on: bool) {
        if let Some(program) = self.programs.borrow_mut().get_mut(&id) {
            match topic {
                Topic::Log => program.log = on,
                Topic::State => program.state = on,
            }
        }
    }

    /// Remembers a line and tells those who want to hear it.
    pub fn say(&self, topic: Topic, line: String) {
        let line = clean(&line);
        let (history, prefix) = match topic {
            Topic::Log => (&self.log, ">LOG:"),
            Topic::State => (&self.states, ">STATE:"),
        };
        if self.has_programs() {
            self.send(&wired(&format!("{prefix}{line}")), |_, program| match topic {
                Topic::Log => program.log,
                Topic::State => program.state,
            });
        }
        let mut history = history.borrow_mut();
        if history.len() == REMEMBERED {
            history.pop_front();
        }
        history.push_back(line);
    }

    /// The last lines, the oldest first.
    pub fn history(&self, topic: Topic, most: usize) -> String {
        let history = match topic {
            Topic::Log => self.log.borrow(),
            Topic::State => self.states.borrow(),
        };
        let skipped = history.len().saturating_sub(most);
        history.iter().skip(skipped).map(|line| format!("{line}\n")).collect()
    }

    /// How often a program hears of bytes; zero: not at all.
    pub fn count_bytes(&self, id: u64, every: Duration, now: Instant) {
        if let Some(program) = self.programs.borrow_mut().get_mut(&id) {
            program.bytes = (!every.is_zero()).then(|| (every, now + every));
        }
    }

    /// The programs that hear of bytes now.
    pub fn due(&self, now: Instant) -> Vec<u64> {
        let mut due = Vec::new();
        for (id, program) in self.programs.borrow_mut().iter_mut() {
            if let Some((every, at)) = program.bytes.as_mut().filter(|(_, at)| *at <= now) {
                *at = now + *every;
                due.push(*id);
            }
        }
        due
    }

    /// From now on the lines of a program are those of a `client-auth`.
    pub fn collect(&self, id: u64, cid: u64, kid: u32) {
        if let Some(program) = self.programs.borrow_mut().get_mut(&id) {
            program.collecting = Some(Collecting { cid, kid, lines: Vec::new(), too_many: false });
        }
    }

    /// Takes a line of a `client-auth`. `Err` gives the line back: there is none going on. `Ok(Some)`: that was the last.
    pub fn collected(&self, id: u64, line: String) -> Result<Option<Collecting>, String> {
        let mut programs = self.programs.borrow_mut();
        let Some(program) = programs.get_mut(&id) else { return Err(line) };
        match &mut program.collecting {
            None => Err(line),
            Some(_) if line == "END" => Ok(program.collecting.take()),
            Some(collecting) => {
                if collecting.lines.len() < MAX_COLLECTED {
                    collecting.lines.push(line);
                } else {
                    collecting.too_many = true;
                }
                Ok(None)
            }
        }
    }
}

/// Without characters that would end a line or steer a terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '_' } else { c }).collect()
}

/// As it is sent: lines end as in OpenVPN's protocol.
fn wired(text: &str) -> Arc<str> {
    let mut wired = String::with_capacity(text.len() + 2);
    for line in text.lines() {
        wired.push_str(line);
        wired.push_str("\r\n");
    }
    wired.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> (Door, mpsc::UnboundedReceiver<Arc<str>>) {
        let (queue, out) = mpsc::unbounded_channel();
        (Door { queue, queued: Arc::default() }, out)
    }

    #[test]
    fn a_program_that_does_not_read_is_disconnected_and_others_are_not() {
        let (hub, _lines) = start(None);
        let ((slow, _kept), (quick, mut out)) = (program(), program());
        let read = quick.queued.clone();
        hub.attach(1, slow);
        hub.attach(2, quick);
        let line = "x".repeat(1000);
        for _ in 0..=MAX_QUEUED / 1000 {
            hub.tell(&line);
            while let Ok(text) = out.try_recv() {
                read.fetch_sub(text.len(), Ordering::Relaxed);
            }
        }
        assert_eq!(hub.dropped(), 1);
        assert_eq!(hub.programs.borrow().keys().copied().collect::<Vec<_>>(), [2]);
        // One answer may be longer than what may wait.
        hub.answer(2, &"y".repeat(MAX_QUEUED + 1));
        assert!(out.try_recv().is_ok_and(|text| text.len() > MAX_QUEUED));
        hub.answer(2, "after it");
        assert_eq!(hub.dropped(), 2, "nothing was read meanwhile");
    }

    #[test]
    fn what_is_remembered_has_a_bound_and_no_line_ends() {
        let (hub, _lines) = start(None);
        (0..REMEMBERED + 10).for_each(|n| hub.say(Topic::Log, format!("{n}\r\n>CLIENT:ESTABLISHED,0")));
        assert_eq!(hub.history(Topic::Log, usize::MAX).lines().count(), REMEMBERED);
        let last = hub.history(Topic::Log, 1);
        assert_eq!(last, format!("{}__>CLIENT:ESTABLISHED,0\n", REMEMBERED + 9));
        assert_eq!(hub.history(Topic::State, 5), "");
    }

    #[test]
    fn lines_of_a_configuration_are_collected_up_to_a_bound() {
        let (hub, _lines) = start(None);
        let (door, _out) = program();
        hub.attach(7, door);
        assert_eq!(hub.collected(7, "status".to_owned()).expect_err("none goes on"), "status");
        hub.collect(7, 3, 1);
        (0..MAX_COLLECTED + 1).for_each(|_| assert!(hub.collected(7, "push x".to_owned()).is_ok_and(|c| c.is_none())));
        let all = hub.collected(7, "END".to_owned()).expect("one goes on").expect("it is complete");
        assert_eq!((all.cid, all.kid, all.lines.len(), all.too_many), (3, 1, MAX_COLLECTED, true));
        assert!(hub.collected(7, "END".to_owned()).is_err(), "it is over");
    }
}
