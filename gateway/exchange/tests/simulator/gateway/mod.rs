//! The executor: a miniature of the proxy. It reports what the sides do to the state machine and does what that says.

mod expiry;
mod flow;
mod perform;
mod places;
mod staging;

use crate::front::ends_connection;
use crate::net::{Code, FOREVER, Item, Wake, Way, World};
use crate::script::{Dial, Settings, dial};
use crate::upstream::Servers;
use sealane_exchange::deadlines::{LINGER, Millis, Party, Progress};
use sealane_exchange::{Action as Do, Actions, Direction, Event, Exchange, Head, Kind, Loss, Phase};
use sealane_http::h1::{BodyDecoder, Limits};
use sealane_http::{BodyLength, Fields, Known, RequestHead, ResponseHead};
use std::collections::VecDeque;

/// Bytes that may be staged for a side.
pub const STAGE: usize = 16 * 1024;
/// Bytes that are read at once.
pub const READ: usize = 16 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortPhase {
    Connecting,
    Open,
    Idle,
    /// All has been staged; what comes is thrown away.
    Closing,
    Closed,
}

/// The gateway's end of a link.
pub struct Port {
    pub version: u8,
    pub front: bool,
    pub phase: PortPhase,
    pub inbuf: Vec<u8>,
    pub staged: VecDeque<Item>,
    pub staged_bytes: usize,
    pub exchange: Option<usize>,
    /// Of HTTP/2 and HTTP/3: what is left of a body whose length was told.
    pub left: Option<u64>,
    pub handshaking: bool,
    pub in_head: bool,
    pub timer: u64,
    pub server: usize,
    pub keep_alive: bool,
    /// It is a connection that is relayed.
    pub relay: bool,
    /// The connection has carried a request before this one.
    pub used: bool,
    pub answered: bool,
}

pub struct Flow {
    pub progress: Progress,
    pub decoder: BodyDecoder,
    pub framing: BodyLength,
    pub trailers: Fields,
    pub blocked: bool,
    pub bytes: u64,
    source: Party,
}

impl Flow {
    fn new(source: Party) -> Self {
        Self {
            progress: Progress::default(),
            decoder: BodyDecoder::new(BodyLength::None, &Limits::default()),
            framing: BodyLength::None,
            trailers: Fields::new(),
            blocked: false,
            bytes: 0,
            source,
        }
    }

    pub fn begin(&mut self, now: Millis) {
        self.blocked = false;
        self.progress.begin(now);
    }

    pub fn block(&mut self, now: Millis) {
        if !std::mem::replace(&mut self.blocked, true) {
            self.progress.turn(now, self.source);
        }
    }

    pub fn unblock(&mut self, now: Millis) -> bool {
        let blocked = std::mem::take(&mut self.blocked);
        if blocked {
            self.progress.turn(now, self.source.other());
        }
        blocked
    }
}

/// An exchange, as the executor keeps it.
pub struct X {
    pub machine: Exchange,
    pub id: Option<usize>,
    pub request: RequestHead,
    pub response: ResponseHead,
    pub front: usize,
    pub back: Option<usize>,
    pub up: Flow,
    pub down: Flow,
    pub body: BodyLength,
    pub keep_alive: bool,
    pub upgrade: bool,
    /// A gRPC call.
    pub call: bool,
    /// Tries that have failed, but for the one on a stale connection.
    pub attempts: usize,
    /// Tries that have begun, of any kind.
    pub dispatched: usize,
    pub tried: u32,
    pub stale: bool,
    /// It was sent again after a 425.
    pub early_again: bool,
    /// The final response's head has gone to the client.
    pub forwarded: bool,
    /// The server that was chosen last.
    pub server: Option<usize>,
    /// The server at which it has a place.
    pub place: Option<usize>,
    /// It waits for a place, or has waited, until then at most.
    pub waits_until: Option<Millis>,
    pub began: Millis,
    pub try_began: Millis,
    pub drains_since: Option<Millis>,
    pub drained: u64,
    pub look_at: Millis,
    /// When something has happened last.
    pub touched: Millis,
    /// When bytes have moved last.
    pub moved: Millis,
    pub finished: u32,
}

impl X {
    pub fn new(front: usize, now: Millis) -> Self {
        Self {
            machine: Exchange::default(),
            id: None,
            request: RequestHead::new(),
            response: ResponseHead::new(),
            front,
            back: None,
            up: Flow::new(Party::Client),
            down: Flow::new(Party::Upstream),
            body: BodyLength::None,
            keep_alive: false,
            upgrade: false,
            call: false,
            attempts: 0,
            dispatched: 0,
            tried: 0,
            stale: false,
            early_again: false,
            forwarded: false,
            server: None,
            place: None,
            waits_until: None,
            began: now,
            try_began: now,
            drains_since: None,
            drained: 0,
            look_at: FOREVER,
            touched: now,
            moved: now,
            finished: 0,
        }
    }

    /// How much of the request's body is still to come, if that was announced.
    pub fn announced_rest(&self) -> Option<u64> {
        match self.body {
            BodyLength::Known(n) => Some(n.saturating_sub(self.up.bytes)),
            _ => None,
        }
    }
}

pub struct Gateway {
    pub settings: Settings,
    /// By link.
    pub ports: Vec<Option<Port>>,
    pub xs: Vec<X>,
    pub servers: Servers,
    pub retries: usize,
    /// Of HTTP/2 and HTTP/3: the connection to each server, if there is one.
    groups: Vec<Option<usize>>,
    group: usize,
    /// By server: how many requests have a place.
    places: Vec<usize>,
    /// Requests that wait for a place, the first first.
    queue: VecDeque<usize>,
}

impl Gateway {
    pub fn new(settings: Settings) -> Self {
        let (groups, retries) = (vec![None; settings.servers], settings.retries);
        let (servers, places) = (Servers::default(), vec![0; settings.servers]);
        Self {
            settings,
            ports: Vec::new(),
            xs: Vec::new(),
            servers,
            retries,
            groups,
            group: 0,
            places,
            queue: VecDeque::new(),
        }
    }

    pub fn add_port(&mut self, link: usize, version: u8, front: bool) -> &mut Port {
        if self.ports.len() <= link {
            self.ports.resize_with(link + 1, || None);
        }
        self.ports[link].insert(Port {
            version,
            front,
            phase: PortPhase::Open,
            inbuf: Vec::new(),
            staged: VecDeque::new(),
            staged_bytes: 0,
            exchange: None,
            left: None,
            handshaking: false,
            in_head: false,
            timer: 0,
            server: 0,
            keep_alive: false,
            relay: false,
            used: false,
            answered: false,
        })
    }

    pub fn port(&mut self, link: usize) -> &mut Port {
        self.ports[link].as_mut().expect("a port")
    }

    /// Something has happened in an exchange: no wait may have been longer than the longest deadline.
    pub fn touch(&mut self, w: &World, x: usize) {
        let s = &self.settings;
        let longest = s.idle[0].max(s.idle[1]).max(s.connect + s.first_byte).max(s.handshake).max(LINGER);
        let x = &mut self.xs[x];
        let waited = w.now - x.touched;
        assert!(waited <= longest + 200, "request {:?}: {waited} ms without an event or a deadline", x.id);
        x.touched = w.now;
    }

    pub fn event(&mut self, w: &mut World, x: usize, event: Event) -> Actions {
        let run = &mut self.xs[x];
        let actions = run.machine.on(event);
        w.say(|| format!("request {:?}: {event:?} → {actions:?}", run.id));
        actions
    }
}
