//! A server's response.

use super::*;

impl Conn {
    pub fn send_head(&mut self, w: &mut World, link: usize, status: u16, length: BodyLength, close: bool) {
        let Some(a) = self.attempt else { return };
        let mut head = ResponseHead::new();
        head.status = status;
        head.fields.push(b"X-Id", w.record.attempts[a].request.to_string().as_bytes()).unwrap();
        head.fields.push(b"X-Attempt", a.to_string().as_bytes()).unwrap();
        if length == BodyLength::None
            && w.record.asked[w.record.attempts[a].request].ask.wish == Wish::Head
            && status == 200
        {
            // As long as the answer to a GET would be.
            head.fields.push_known(Known::ContentLength, self.serve.body.to_string().as_bytes()).unwrap();
        }
        if status == 101 {
            head.fields.push(b"Upgrade", b"websocket").unwrap();
            head.fields.push(b"X-Accept", if self.serve.confirms { b"right" } else { b"wrong" }).unwrap();
        }
        let item = if self.version == 1 {
            let option = match () {
                () if status == 101 => ConnectionOption::Upgrade,
                () if close => ConnectionOption::Close,
                () => ConnectionOption::KeepAlive,
            };
            let mut out = Vec::new();
            let to = if length == BodyLength::UntilClose { Version::Http10 } else { Version::Http11 };
            encode_response(&mut out, &head, to, length, option);
            Item::Bytes(out)
        } else {
            Item::Response(Box::new(head), length)
        };
        match &mut self.sender {
            Some(sender) => sender.out.push_back(item),
            None => w.send(link, Way::Down, item),
        }
    }

    pub fn respond(&mut self, w: &mut World, link: usize) {
        if self.over {
            return;
        }
        let Some(a) = self.attempt else {
            if self.closes_at != 0 && w.now >= self.closes_at && self.inbuf.is_empty() {
                w.say(|| format!("link {link}: the server closes the kept connection"));
                self.over = true;
                w.links[link].faulty = true;
                w.send(link, Way::Down, Item::End);
            }
            return;
        };
        if !self.begun {
            let attempt = &w.record.attempts[a];
            let ready = match self.serve.when {
                When::Head => true,
                When::Bytes(n) => attempt.got >= n || attempt.whole,
                When::Whole => attempt.whole,
            };
            if !ready {
                return;
            }
            self.begun = true;
            self.ready_at = w.now + self.serve.thinks;
            w.slow(link, w.now, self.ready_at);
            w.at(self.ready_at, Wake::Peer(link));
        }
        if self.sender.is_none() {
            if w.now < self.ready_at {
                return;
            }
            self.start(w, link, a);
        }
        let Some(sender) = &mut self.sender else { return };
        sender.pump(w);
        let attempt = &mut w.record.attempts[a];
        attempt.sent = sender.at;
        let whole = sender.framing == Framing::Counted && sender.at == sender.total && sender.out.is_empty();
        attempt.sent_whole |= sender.state == State::Sent || whole;
        match sender.state {
            State::Sending => {}
            State::Failed => {
                attempt.failed_at = Some(sender.at);
                self.over = !self.raw || w.pipe(link, Way::Down).reset;
            }
            State::Sent => self.sent(w, link, a),
        }
    }

    /// The response has been sent.
    pub fn sent(&mut self, w: &mut World, link: usize, a: usize) {
        if self.version == 2 && w.record.attempts[a].whole && !self.raw && self.serve.resets {
            // RFC 9113 §8.1: the response is complete, and is to be taken as such.
            self.over = true;
            return w.reset(link, Way::Down, Code::NoError);
        }
        if self.raw || self.version > 1 && w.record.attempts[a].whole {
            return;
        }
        let closes = self.serve.closes || self.serve.framing == 2 || w.pipe(link, Way::Down).ended;
        if !w.record.attempts[a].whole {
            if self.serve.stops || closes {
                self.over = true;
                // The reset may destroy the response.
                w.links[link].faulty |= self.version == 1;
                match self.version {
                    3 => w.stop(link, Way::Up),
                    _ => w.reset(link, Way::Down, Code::NoError),
                }
            }
            return;
        }
        if closes {
            self.over = true;
            // It may not have said so.
            w.links[link].faulty = true;
            if !w.pipe(link, Way::Down).ended {
                w.send(link, Way::Down, Item::End);
            }
            return;
        }
        (self.attempt, self.sender) = (None, None);
        self.closes_at = if w.random.one_in(3) { w.now + w.random.within(1, 800) } else { 0 };
        if self.closes_at != 0 {
            w.at(self.closes_at, Wake::Peer(link));
        }
    }

    pub fn start(&mut self, w: &mut World, link: usize, a: usize) {
        let serve = self.serve.clone();
        let wish = w.record.attempts[a].wish(&w.record);
        let mut sender = Sender::new(link, Way::Down, 2 * a + 1, serve.body, Framing::Counted);
        sender.course = serve.course.clone();
        if self.relay {
            (sender.framing, sender.ends) = (Framing::Raw, serve.ends);
            w.record.attempts[a].total = serve.body;
            self.sender = Some(sender);
            return;
        }
        self.sender = Some(sender);
        let opens = match wish {
            Wish::Connect => serve.status == 200,
            Wish::WebSocket => serve.status == 200 && (self.version > 1 || serve.framing != 2) && self.upgrade,
            _ => false,
        };
        if serve.cancels && self.version > 1 {
            w.links[link].faulty = true;
            self.over = true;
            self.sender = None;
            w.record.attempts[a].cancelled = !w.pipe(link, Way::Up).reset && !w.pipe(link, Way::Down).stopped;
            return w.reset(link, Way::Down, Code::Cancel);
        }
        if serve.nonsense {
            w.say(|| format!("link {link}: nonsense"));
            w.links[link].faulty = true;
            self.over = true;
            self.sender = None;
            return match self.version {
                1 => w.send(link, Way::Down, Item::Bytes(b"HTTP/1.1 OK\r\n\r\n".to_vec())),
                _ => w.reset(link, Way::Down, Code::Internal),
            };
        }
        for _ in 0..serve.interims {
            self.send_head(w, link, 103, BodyLength::None, false);
        }
        w.record.attempts[a].accepted = opens && (self.version > 1 || wish == Wish::Connect || serve.confirms);
        let status = if opens && self.version == 1 && wish == Wish::WebSocket { 101 } else { serve.status };
        w.record.attempts[a].status = status;
        let frames = self.version > 1;
        let bodiless = !opens && w.record.asked[w.record.attempts[a].request].ask.is_bodiless(status);
        let (length, framing) = match serve.framing {
            _ if opens || status == 101 => (BodyLength::None, if frames { Framing::Frames } else { Framing::Raw }),
            _ if bodiless => (BodyLength::None, if frames { Framing::Frames } else { Framing::Counted }),
            0 => (BodyLength::Known(serve.body as u64), if frames { Framing::Frames } else { Framing::Counted }),
            1 => (BodyLength::Chunked, if frames { Framing::Frames } else { Framing::Chunked }),
            _ => (BodyLength::UntilClose, if frames { Framing::Frames } else { Framing::UntilClose }),
        };
        self.send_head(w, link, status, length, serve.closes);
        let Some(sender) = &mut self.sender else { return };
        sender.framing = framing;
        sender.total = if bodiless && !serve.surplus { 0 } else { serve.body };
        // What comes behind a response without content breaks the connection for what follows.
        w.links[link].faulty |= bodiless && sender.total > 0;
        if opens {
            self.raw = true;
            sender.ends = serve.ends;
        } else {
            sender.trailers = serve.trailers && !bodiless;
        }
        w.record.attempts[a].total = sender.total;
        w.record.attempts[a].trailers = sender.trailers && matches!(framing, Framing::Chunked | Framing::Frames);
    }
}
