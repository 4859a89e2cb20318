//! One connection, or one stream, of a client.

use super::*;

impl Conn {
    pub fn begin(&mut self, w: &mut World, link: usize, id: usize) {
        let ask = w.record.asked[id].ask.clone();
        w.say(|| format!("link {link}: request {id}: {ask:?}"));
        w.record.asked[id].link = Some(link);
        w.record.asked[id].first = !self.used;
        self.used = true;
        self.waiting.push_back(id);
        self.schedule_cancel(w, link, &ask);
        let head = head(&ask, id);
        let tunnel = ask.is_tunnel();
        let bodyless = tunnel || matches!(ask.wish, Wish::Get | Wish::Head) && ask.body == 0;
        let (length, framing) = match () {
            () if bodyless => (BodyLength::None, Framing::Counted),
            () if ask.counted => (BodyLength::Known(ask.body as u64), Framing::Counted),
            () => (BodyLength::Chunked, Framing::Chunked),
        };
        let framing = if self.version > 1 && !tunnel { Framing::Frames } else { framing };
        let mut sender = Sender::new(link, Way::Up, 2 * id, if tunnel { 0 } else { ask.body }, framing);
        if self.version == 1 {
            let mut out = Vec::new();
            let option = match () {
                () if ask.wish == Wish::WebSocket => ConnectionOption::Upgrade,
                () if ask.close => ConnectionOption::Close,
                () => ConnectionOption::KeepAlive,
            };
            encode_request(&mut out, &head, length, option);
            if ask.http10 {
                let at = out.windows(8).position(|x| x == b"HTTP/1.1").unwrap();
                out[at + 7] = b'0';
            }
            self.keep &= !ask.close && !ask.http10;
            sender.out.push_back(Item::Bytes(out));
        } else {
            sender.out.push_back(Item::Request(Box::new(head), length, ask.wish == Wish::WebSocket));
        }
        sender.trailers = ask.trailers && !bodyless;
        if !tunnel {
            sender.course = ask.course;
        }
        if ask.expect && ask.body > 0 && !bodyless && sender.flush(w) {
            sender.paused_until = w.now + EXPECTS;
            w.at(sender.paused_until, Wake::Peer(link));
        }
        self.sender = Some((id, sender));
    }

    /// A connection that is relayed: nothing but its own bytes.
    pub fn begin_relay(&mut self, w: &mut World, link: usize, id: usize) {
        let ask = w.record.asked[id].ask.clone();
        w.say(|| format!("link {link}: relay {id}: {ask:?}"));
        (w.record.asked[id].link, w.record.asked[id].first) = (Some(link), true);
        self.waiting.push_back(id);
        self.schedule_cancel(w, link, &ask);
        let mut sender = Sender::new(link, Way::Up, 2 * id, ask.body, Framing::Raw);
        (sender.ends, sender.course) = (ask.ends, ask.course);
        self.sender = Some((id, sender));
        (self.relay, self.tunnel, self.answered, self.keep) = (true, true, true, false);
    }

    fn schedule_cancel(&mut self, w: &mut World, link: usize, ask: &Ask) {
        if let Some(after) = ask.cancels {
            self.cancels_at = self.cancels_at.min(w.now + after);
            w.at(self.cancels_at, Wake::Peer(link));
        }
    }

    /// Reads HTTP/1.1. True if a response is complete.
    pub fn parse(&mut self, w: &mut World, link: usize) -> bool {
        let mut ended = false;
        loop {
            if self.inbuf.is_empty() {
                return ended;
            }
            let Some(&id) = self.waiting.front() else { panic!("link {link}: bytes that nobody asked for") };
            let input = std::mem::take(&mut self.inbuf);
            if self.tunnel {
                self.data(w, &input);
                return ended;
            }
            if !self.answered {
                let method = match w.record.asked[id].ask.wish {
                    Wish::Connect => Method::Connect,
                    Wish::Head => Method::Head,
                    _ => Method::Get,
                };
                let mut head = ResponseHead::new();
                let Some(info) = parse_response(&input, &Limits::default(), method, &mut head).expect("a response")
                else {
                    self.inbuf = input;
                    return ended;
                };
                self.inbuf = input[info.consumed..].to_vec();
                if head.status >= 200 || info.upgrade {
                    self.decoder.reset(info.body);
                    self.until_close = info.body == BodyLength::UntilClose;
                    self.keep &= info.keep_alive;
                }
                let opens = self.tunnel_opens(w, &head, info.upgrade);
                self.head(w, link, &head, opens);
                if self.answered && !self.tunnel && self.decoder.is_done() {
                    ended |= self.complete(w, link, &Fields::new());
                }
                continue;
            }
            let piece = self.decoder.decode(&input).expect("a body");
            self.inbuf = input[piece.consumed..].to_vec();
            match piece.what {
                What::Data(data) => self.data(w, data),
                What::NeedMore => return ended,
                What::Trailers | What::End => {}
            }
            if self.decoder.is_done() {
                let fields = std::mem::take(self.decoder.trailers_mut());
                ended |= self.complete(w, link, &fields);
            }
        }
    }

    pub fn tunnel_opens(&self, w: &World, head: &ResponseHead, upgrade: bool) -> bool {
        let Some(&id) = self.waiting.front() else { return false };
        let success = (200..300).contains(&head.status);
        upgrade || self.version > 1 && success && w.record.asked[id].ask.is_tunnel()
    }

    pub fn head(&mut self, w: &mut World, link: usize, head: &ResponseHead, opens: bool) {
        let Some(&id) = self.waiting.front() else { panic!("link {link}: a response that nobody asked for") };
        let number = |name: &[u8]| Some(std::str::from_utf8(head.fields.get_named(name)?).ok()?.parse().unwrap());
        let attempt: Option<usize> = number(b"X-Attempt");
        w.say(|| format!("link {link}: response {} to request {id} from attempt {attempt:?}", head.status));
        if let (100, Some((_, sender))) = (head.status, &mut self.sender) {
            sender.paused_until = sender.paused_until.min(w.now.max(1));
        }
        w.record.head(id, head.status, attempt, number(b"X-Id"), opens);
        assert!(head.fields.get(Known::EarlyData).is_none());
        if head.status < 200 && !opens {
            return;
        }
        assert!(!self.answered, "request {id}: a second final response");
        self.answered = true;
        if opens {
            self.tunnel = true;
            self.keep = false;
            let ask = &w.record.asked[id].ask;
            let framing = if self.version == 1 { Framing::Raw } else { Framing::Frames };
            let mut sender = Sender::new(link, Way::Up, 2 * id, ask.body, framing);
            (sender.ends, sender.course) = (ask.ends, ask.course.clone());
            self.sender = Some((id, sender));
        }
    }

    pub fn data(&mut self, w: &mut World, data: &[u8]) {
        let Some(&id) = self.waiting.front() else { panic!("a body that nobody asked for") };
        let asked = &mut w.record.asked[id];
        let (status, attempt) = *asked.finals.first().expect("bytes from a server");
        assert!(self.tunnel || !asked.ask.is_bodiless(status), "request {id}: a body where there can be none");
        match attempt {
            Some(attempt) => check_pattern(2 * attempt + 1, asked.got, data, "the client"),
            None => assert!(!self.tunnel && data.len() < 100),
        }
        asked.got += data.len();
    }

    pub fn complete(&mut self, w: &mut World, link: usize, trailers: &Fields) -> bool {
        let Some(id) = self.waiting.pop_front() else { panic!("link {link}: an end that nobody asked for") };
        assert!(self.answered, "request {id}: an end without a response");
        w.say(|| format!("link {link}: the response to request {id} is complete"));
        w.record.complete(id, trailers, self.version, self.tunnel);
        self.answered = false;
        if self.sender.as_ref().is_some_and(|s| s.0 == id) {
            // It was answered before it had sent all.
            if self.tunnel || !w.record.asked[id].ask.stubborn {
                self.keep = false;
            } else if self.version > 1 {
                return false;
            }
        }
        true
    }
}
