//! What the peers did and saw, with the checks that can be made at once.

use crate::script::{Ask, Fault, Serve, Wish};
use crate::sender;
use sealane_exchange::MAX_INTERIM;
use sealane_http::Fields;

/// What became of a request, as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A whole response.
    Complete,
    /// An unmistakable end before that.
    Cut,
    /// The client went away.
    Left,
}

/// A request, as its client knows it.
pub struct Asked {
    pub ask: Ask,
    pub link: Option<usize>,
    /// It is the first on its connection.
    pub first: bool,
    pub sent: usize,
    pub sent_whole: bool,
    pub finals: Vec<(u16, Option<usize>)>,
    pub interims: usize,
    pub got: usize,
    pub outcome: Option<Outcome>,
    /// The links on which it was sent to servers.
    pub backs: Vec<usize>,
}

/// A request, as a server knows it.
pub struct Attempt {
    pub request: usize,
    pub early: bool,
    pub serve: Serve,
    pub got: usize,
    pub whole: bool,
    pub declared: Option<u64>,
    /// The server may have acted on it.
    pub processed: bool,
    /// The server has cancelled it in place of a response.
    pub cancelled: bool,
    pub accepted: bool,
    pub status: u16,
    pub total: usize,
    pub trailers: bool,
    pub sent: usize,
    pub sent_whole: bool,
    pub failed_at: Option<usize>,
}

impl Attempt {
    pub fn new(request: usize, early: bool, serve: Serve) -> Self {
        Self {
            request,
            early,
            serve,
            got: 0,
            whole: false,
            declared: None,
            processed: true,
            cancelled: false,
            accepted: false,
            status: 0,
            total: 0,
            trailers: false,
            sent: 0,
            sent_whole: false,
            failed_at: None,
        }
    }

    pub fn wish(&self, record: &Record) -> Wish {
        record.asked[self.request].ask.wish
    }
}

#[derive(Default)]
pub struct Record {
    pub asked: Vec<Asked>,
    pub attempts: Vec<Attempt>,
}

impl Record {
    pub fn ask(&mut self, ask: Ask) {
        self.asked.push(Asked {
            ask,
            link: None,
            first: false,
            sent: 0,
            sent_whole: false,
            finals: Vec::new(),
            interims: 0,
            got: 0,
            outcome: None,
            backs: Vec::new(),
        });
    }

    /// A server gets a request.
    pub fn attempt(&mut self, request: usize, early: bool, serve: Serve) -> usize {
        self.attempts.push(Attempt::new(request, early, serve));
        self.attempts.len() - 1
    }

    pub fn uses(&mut self, request: Option<usize>, link: usize) {
        if let Some(id) = request {
            self.asked[id].backs.push(link);
        }
    }

    /// A client gets a head.
    pub fn head(&mut self, id: usize, status: u16, attempt: Option<usize>, told: Option<usize>, opens: bool) {
        let asked = &mut self.asked[id];
        if let Some(told) = told {
            assert_eq!(told, id, "a response to another request");
        }
        assert!(!opens || asked.ask.is_tunnel(), "request {id}: a tunnel that nobody asked for");
        if let Some(a) = attempt {
            let attempt = &self.attempts[a];
            assert_eq!(attempt.request, id);
            assert!(!opens || attempt.accepted, "request {id}: a tunnel that the server has not confirmed");
            assert!(status != 425 || !attempt.early, "request {id}: a 425 to early data was passed on");
            let opened = opens && matches!((status, attempt.status), (200, 101) | (101, 200));
            assert!(status < 200 && !opens || status == attempt.status || opened, "request {id}: another status");
            assert!(!attempt.accepted || opens || status < 200);
        }
        if status < 200 && !opens {
            asked.interims += 1;
            assert!(asked.finals.is_empty(), "request {id}: an interim response after the final one");
            assert!(asked.interims <= usize::from(MAX_INTERIM), "request {id}: too many interim responses");
            return;
        }
        asked.finals.push((status, attempt));
        assert_eq!(asked.finals.len(), 1, "request {id}: a second final response");
    }

    /// A client takes a response for whole.
    pub fn complete(&mut self, id: usize, trailers: &Fields, version: u8, tunnel: bool) {
        let asked = &self.asked[id];
        let (status, attempt) = asked.finals[0];
        if let Some(a) = attempt {
            let attempt = &self.attempts[a];
            let own_end =
                tunnel && attempt.failed_at.is_some() && attempt.serve.course.fault.is_some_and(|f| f.1 == Fault::End);
            // Over HTTP/1.1 a body whose length is known is whole with its last byte.
            let counted = version == 1 && attempt.sent == attempt.total && attempt.serve.framing == 0;
            let bodiless = !tunnel && asked.ask.is_bodiless(status);
            let whole = attempt.sent_whole || own_end || counted || bodiless;
            assert!(whole, "request {id}: a cut response looks whole (attempt {a})");
            assert_eq!(asked.got, if bodiless { 0 } else { attempt.sent }, "request {id}: another length");
            let expected = attempt.trailers;
            if version > 1 || !trailers.is_empty() {
                assert_eq!(!trailers.is_empty(), expected, "request {id}: other trailers");
            }
            if !trailers.is_empty() {
                let sum = sender::trailers(2 * a + 1);
                assert_eq!(trailers.get_named(b"X-Sum"), sum.get_named(b"X-Sum"), "request {id}: other trailers");
            }
        } else {
            let length = if asked.ask.wish == Wish::Head { 0 } else { format!("{status}\n").len() };
            assert_eq!(asked.got, length, "request {id}: the gateway's answer is not whole");
        }
        self.end(id, Outcome::Complete);
    }

    pub fn end(&mut self, id: usize, outcome: Outcome) {
        let asked = &mut self.asked[id];
        assert_eq!(asked.outcome, None, "request {id}: a second end");
        asked.outcome = Some(outcome);
    }

    /// A server takes a request for whole.
    pub fn request_complete(&mut self, a: usize, trailers: &Fields, tunnel: bool) {
        let attempt = &mut self.attempts[a];
        let asked = &self.asked[attempt.request];
        let id = attempt.request;
        assert!(tunnel || !attempt.whole, "attempt {a}: a second end");
        attempt.whole = true;
        if tunnel {
            let own_end = asked.ask.course.fault.is_some_and(|f| f.1 == Fault::End);
            assert!(asked.sent_whole || own_end, "attempt {a}: a cut tunnel looks whole");
        } else {
            assert!(asked.sent_whole || asked.sent == asked.ask.body, "attempt {a}: a cut request looks whole");
        }
        assert_eq!(attempt.got, asked.sent, "attempt {a}: another length");
        if !trailers.is_empty() {
            let sum = sender::trailers(2 * id);
            assert_eq!(trailers.get_named(b"X-Sum"), sum.get_named(b"X-Sum"), "attempt {a}: other trailers");
        }
    }
}
