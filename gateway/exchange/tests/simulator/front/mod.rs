//! The gateway towards clients: HTTP/1.1 by the real codec, HTTP/2 and HTTP/3 by frames.

mod sink;

pub use sink::{end_of, ends_connection, framed};

use crate::gateway::{Gateway, PortPhase, READ, X};
use crate::net::{Code, Item, Wake, Way, World};
use sealane_exchange::Phase;
use sealane_exchange::deadlines::Millis;
use sealane_http::h1::{
    ConnectionOption, Limits, What, encode_chunk_header, encode_last_chunk, encode_response, parse_request,
};
use sealane_http::{BodyLength, Fields, Version};

const HEADER_TIMEOUT: Millis = 2000;
const KEEPALIVE_TIMEOUT: Millis = 2500;

impl Gateway {
    /// The client opens a connection (HTTP/1.1) or a stream.
    pub fn accept(&mut self, w: &mut World, link: usize) {
        let version = self.settings.versions.0;
        let early_until = self.settings.early_until;
        let port = self.add_port(link, version, true);
        port.handshaking = w.now < early_until;
        if port.handshaking {
            w.slow(link, w.now, early_until);
            w.at(early_until, Wake::Handshake(link));
        }
        if version == 1 {
            self.await_request(w, link);
        }
    }

    pub fn handshake(&mut self, w: &mut World, link: usize) {
        let port = self.port(link);
        port.handshaking = false;
        if let Some(x) = port.exchange {
            self.handshake_done(w, x);
        }
    }

    /// A connection of HTTP/1.1 waits for its next request.
    pub fn await_request(&mut self, w: &mut World, link: usize) {
        self.set_timer(w, link, KEEPALIVE_TIMEOUT);
        w.at(w.now, Wake::Arrived(link, Way::Up));
        self.flush(w, link);
    }

    pub fn set_timer(&mut self, w: &mut World, link: usize, after: Millis) {
        let port = self.port(link);
        port.timer += 1;
        let timer = port.timer;
        w.at(w.now + after, Wake::Idle(link, timer));
    }

    /// The timer of a connection that has no exchange.
    pub fn idle_timeout(&mut self, w: &mut World, link: usize, timer: u64) {
        let port = self.port(link);
        if port.timer != timer || port.exchange.is_some() {
            return;
        }
        match port.phase {
            PortPhase::Closing if !port.front => self.server_reset(w, link),
            PortPhase::Closing => self.close_front(w, link, Code::NoError),
            PortPhase::Open if port.in_head => {
                let x = self.unread(w, link);
                self.refuse(w, x, 408);
            }
            PortPhase::Open => ends_connection(self, w, link),
            _ => {}
        }
    }

    /// An exchange for a request that was never read whole.
    fn unread(&mut self, w: &World, link: usize) -> usize {
        let x = self.xs.len();
        let mut run = X::new(link, w.now);
        run.request.version = Version::Http11;
        run.machine =
            sealane_exchange::Exchange::new(sealane_exchange::Request { has_body: true, ..Default::default() });
        self.xs.push(run);
        let port = self.port(link);
        (port.exchange, port.in_head) = (Some(x), false);
        x
    }

    /// Takes what a client has sent, as far as it can be used.
    pub fn front_ready(&mut self, w: &mut World, link: usize) {
        while self.front_step(w, link) {}
        let port = self.port(link);
        assert!(port.inbuf.len() <= Limits::default().head + READ, "link {link}: a read buffer without a bound");
    }

    /// One step of it. False: nothing more can be done now.
    fn front_step(&mut self, w: &mut World, link: usize) -> bool {
        let port = self.ports[link].as_mut().expect("a port");
        match port.phase {
            PortPhase::Closed => return w.take(link, Way::Up, READ).is_some(),
            PortPhase::Closing => {
                match w.take(link, Way::Up, READ) {
                    // What is still staged goes out first.
                    Some(Item::End) if port.version == 1 && !port.staged.is_empty() => {}
                    Some(Item::End) if port.version == 1 => self.close_front(w, link, Code::NoError),
                    Some(Item::Reset(_) | Item::Stop) => self.close_front(w, link, Code::NoError),
                    Some(_) => {}
                    None => return false,
                }
                return true;
            }
            _ => {}
        }
        if w.has_reset(link, Way::Up) {
            self.client_gone(w, link);
            return false;
        }
        match (port.version, port.exchange) {
            (1, None) => self.read_head(w, link),
            (1, Some(x)) => self.read_body(w, link, x),
            (_, _) => self.read_frame(w, link),
        }
    }

    fn read_head(&mut self, w: &mut World, link: usize) -> bool {
        let port = self.ports[link].as_mut().expect("a port");
        if !port.staged.is_empty() {
            return false;
        }
        let mut run = X::new(link, w.now);
        if !port.inbuf.is_empty() {
            match parse_request(&port.inbuf, &Limits::default(), &mut run.request) {
                Ok(Some(info)) => {
                    port.inbuf.drain(..info.consumed);
                    let x = self.xs.len();
                    (port.exchange, port.in_head) = (Some(x), false);
                    (run.body, run.keep_alive, run.upgrade) = (info.body, info.keep_alive, info.upgrade);
                    run.up.decoder.reset(info.body);
                    self.xs.push(run);
                    self.begin(w, x);
                    return true;
                }
                Ok(None) if !port.in_head => {
                    port.in_head = true;
                    self.set_timer(w, link, HEADER_TIMEOUT);
                }
                Ok(None) => {}
                Err(e) => {
                    let x = self.unread(w, link);
                    self.refuse(w, x, e.status());
                    return true;
                }
            }
        }
        match w.take(link, Way::Up, 4096) {
            Some(Item::Bytes(bytes)) => {
                self.port(link).inbuf.extend_from_slice(&bytes);
                true
            }
            Some(_) => {
                self.close_front(w, link, Code::NoError);
                false
            }
            None => false,
        }
    }

    fn read_body(&mut self, w: &mut World, link: usize, x: usize) -> bool {
        let room = self.up_room(w, x);
        let phase = self.xs[x].machine.request();
        let port = self.ports[link].as_mut().expect("a port");
        if room == 0 && !(phase == Phase::Complete && port.inbuf.is_empty()) {
            return false;
        }
        if port.inbuf.is_empty() {
            // What follows a complete request is the next one, and waits; its end does not.
            match w.take(link, Way::Up, room) {
                Some(Item::Bytes(bytes)) => port.inbuf = bytes,
                Some(Item::End) => match phase {
                    Phase::Complete => {}
                    Phase::Streaming if self.xs[x].machine.is_tunnel() => self.up_end(w, x),
                    _ => self.client_gone(w, link),
                },
                Some(_) => self.client_gone(w, link),
                None => return false,
            }
            return true;
        }
        let end = port.inbuf.len().min(room);
        let run = &mut self.xs[x];
        if run.machine.is_tunnel() {
            let data: Vec<u8> = port.inbuf.drain(..end).collect();
            return self.up_data(w, x, &data, false);
        }
        let input = std::mem::take(&mut port.inbuf);
        match run.up.decoder.decode_at_most(&input, room) {
            Ok(piece) => {
                let done = run.up.decoder.is_done();
                port.inbuf = input[piece.consumed..].to_vec();
                match piece.what {
                    What::Data(data) => return self.up_data(w, x, data, done),
                    What::NeedMore => {
                        return match w.take(link, Way::Up, READ) {
                            Some(Item::Bytes(bytes)) => {
                                self.port(link).inbuf.extend_from_slice(&bytes);
                                true
                            }
                            Some(_) => {
                                self.client_gone(w, link);
                                false
                            }
                            None => false,
                        };
                    }
                    What::Trailers => std::mem::swap(&mut run.up.trailers, run.up.decoder.trailers_mut()),
                    What::End => {}
                }
                self.up_end(w, x);
            }
            Err(e) => self.refuse(w, x, e.status()),
        }
        true
    }

    fn read_frame(&mut self, w: &mut World, link: usize) -> bool {
        let Some(x) = self.port(link).exchange else {
            let Some(Item::Request(head, length, upgrade)) = w.take(link, Way::Up, 0) else { return false };
            let x = self.xs.len();
            let mut run = X::new(link, w.now);
            (run.request, run.body, run.upgrade) = (*head, length, upgrade);
            self.xs.push(run);
            let port = self.port(link);
            port.exchange = Some(x);
            port.left = if let BodyLength::Known(n) = length { Some(n) } else { None };
            self.begin(w, x);
            return true;
        };
        let room = self.up_room(w, x);
        if self.xs[x].machine.request() == Phase::Complete {
            return false;
        }
        let Some(item) = w.take(link, Way::Up, room) else { return false };
        let port = self.ports[link].as_mut().expect("a port");
        match item {
            Item::Bytes(data) => {
                if let Some(left) = &mut port.left {
                    *left = left.saturating_sub(data.len() as u64);
                }
                self.up_data(w, x, &data, false);
            }
            Item::Trailers(_) | Item::End => {
                if port.left.is_some_and(|left| left > 0) {
                    self.refuse(w, x, 400);
                    return true;
                }
                if let Item::Trailers(fields) = item {
                    self.xs[x].up.trailers = *fields;
                }
                self.up_end(w, x);
            }
            _ => self.client_gone(w, link),
        }
        true
    }
}
