//! A peer's way of sending a body by its script: pauses, faults, framing.

use crate::net::{Code, FOREVER, Item, Wake, Way, World, pattern};
use crate::script::{Course, Fault};
use sealane_exchange::deadlines::Millis;
use sealane_http::Fields;
use sealane_http::h1::{encode_chunk, encode_last_chunk};
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// HTTP/1.1 with Content-Length: the end is known.
    Counted,
    Chunked,
    /// A body up to the connection's end.
    UntilClose,
    /// A tunnel over HTTP/1.1.
    Raw,
    /// HTTP/2, HTTP/3.
    Frames,
}

pub struct Sender {
    pub link: usize,
    pub way: Way,
    pub key: usize,
    pub total: usize,
    pub framing: Framing,
    pub trailers: bool,
    pub course: Course,
    /// A tunnel's direction is ended when all has been sent.
    pub ends: bool,
    pub out: VecDeque<Item>,
    pub paused_until: Millis,
    pub at: usize,
    last_word: bool,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Sending,
    /// All of it has been sent.
    Sent,
    /// It has failed.
    Failed,
}

/// Trailers of a body: they differ from body to body.
pub fn trailers(key: usize) -> Fields {
    let mut fields = Fields::new();
    fields.push(b"X-Sum", key.to_string().as_bytes()).unwrap();
    fields
}

impl Sender {
    pub fn new(link: usize, way: Way, key: usize, total: usize, framing: Framing) -> Self {
        Self {
            link,
            way,
            key,
            total,
            framing,
            trailers: false,
            course: Course::default(),
            ends: true,
            out: VecDeque::new(),
            paused_until: 0,
            at: 0,
            last_word: false,
            state: State::Sending,
        }
    }

    /// Sends what can be sent now.
    pub fn pump(&mut self, w: &mut World) {
        while self.state == State::Sending && w.now >= self.paused_until && self.flush(w) {
            if self.last_word {
                self.state = State::Sent;
                return;
            }
            if let Some((at, fault)) = self.course.fault
                && self.at >= at.min(self.total)
            {
                w.say(|| format!("link {} {:?}: {fault:?} at byte {}", self.link, self.way, self.at));
                self.state = State::Failed;
                return self.fail(w, fault);
            }
            if let Some((at, time)) = self.course.pauses.first().copied()
                && self.at >= at.min(self.total)
            {
                self.course.pauses.remove(0);
                w.say(|| format!("link {} {:?}: pause of {time} ms at byte {}", self.link, self.way, self.at));
                self.pause(w, time);
                continue;
            }
            if self.at == self.total {
                self.end(w);
                continue;
            }
            let next = [self.course.fault.map(|f| f.0), self.course.pauses.first().map(|p| p.0)];
            let next = next.into_iter().flatten().filter(|at| *at > self.at).min().unwrap_or(self.total);
            let piece = w.random.pick(&[1, 500, 8_000, 30_000, 30_000]).min(next.min(self.total) - self.at);
            let data = pattern(self.key, self.at, piece);
            self.at += piece;
            let bytes = if self.framing == Framing::Chunked {
                let mut out = Vec::new();
                encode_chunk(&mut out, data);
                out
            } else {
                data.to_vec()
            };
            self.out.push_back(Item::Bytes(bytes));
        }
    }

    pub fn pause(&mut self, w: &mut World, time: Millis) {
        self.paused_until = w.now + time;
        w.slow(self.link, w.now, self.paused_until);
        w.at(self.paused_until, Wake::Peer(self.link));
    }

    /// Whether all that was waiting has been sent.
    pub fn flush(&mut self, w: &mut World) -> bool {
        while let Some(item) = self.out.pop_front() {
            let Item::Bytes(mut bytes) = item else {
                w.send(self.link, self.way, item);
                continue;
            };
            let room = w.room(self.link, self.way);
            if room < bytes.len() {
                let rest = bytes.split_off(room);
                self.out.push_front(Item::Bytes(rest));
            }
            if !bytes.is_empty() {
                w.send(self.link, self.way, Item::Bytes(bytes));
            }
            if w.room(self.link, self.way) == 0 && !self.out.is_empty() {
                return false;
            }
        }
        true
    }

    fn end(&mut self, w: &mut World) {
        self.last_word = true;
        match self.framing {
            Framing::Counted => {}
            Framing::Chunked => {
                let mut out = Vec::new();
                let fields = trailers(self.key);
                encode_last_chunk(&mut out, self.trailers.then_some(&fields));
                self.out.push_back(Item::Bytes(out));
            }
            Framing::Frames if self.trailers => self.out.push_back(Item::Trailers(Box::new(trailers(self.key)))),
            Framing::Frames | Framing::Raw if !self.ends => {
                // A tunnel in which nothing moves any more.
                w.slow(self.link, w.now, FOREVER);
                self.last_word = true;
            }
            Framing::Frames | Framing::Raw | Framing::UntilClose => self.out.push_back(Item::End),
        }
    }

    fn fail(&mut self, w: &mut World, fault: Fault) {
        let whole = self.at == self.total && matches!(self.framing, Framing::Counted);
        w.links[self.link].faulty = true;
        match fault {
            Fault::Lose => return w.lose(self.link),
            Fault::Kill => return w.kill(self.link),
            Fault::End if self.framing != Framing::Frames && self.framing != Framing::UntilClose => {
                return w.send(self.link, self.way, Item::End);
            }
            // A wrong byte, a wrong chunk: what the gateway cannot take for more of the body.
            Fault::Broken if self.framing == Framing::Chunked && !whole => {
                self.out.push_back(Item::Bytes(vec![0x80; 3]));
                self.flush(w);
                return w.slow(self.link, w.now, FOREVER);
            }
            _ => {}
        }
        w.reset(self.link, self.way, Code::Internal);
        if w.links[self.link].version == 3 {
            w.stop(self.link, self.way.other());
        }
    }
}
