//! The gateway towards servers: HTTP/1.1 by the real codec, HTTP/2 and HTTP/3 by frames.

use crate::front::{end_of, framed};
use crate::gateway::{Gateway, PortPhase, READ};
use crate::net::{Code, Item, Wake, Way, World};
use sealane_exchange::{Action as Do, Event, Loss, Phase, Reset, Switching};
use sealane_http::BodyLength;
use sealane_http::h1::{ConnectionOption, Tolerance, What, encode_request, parse_response_tolerating};

impl Gateway {
    /// Sends the request's head on a connection that is ready for it.
    pub fn send_request(&mut self, w: &mut World, x: usize, link: usize) {
        let port = self.port(link);
        (port.phase, port.exchange, port.answered) = (PortPhase::Open, Some(x), false);
        let version = port.version;
        if port.relay {
            self.xs[x].down.progress.begin(w.now);
            self.touch(w, x);
            let actions = self.event(w, x, Event::Connected(Switching::Any));
            self.perform(w, x, actions);
            let shortest = self.limits(x).shortest();
            return self.look_by(w, x, w.now + shortest);
        }
        let run = &mut self.xs[x];
        let item = if version == 1 {
            let option = if run.upgrade { ConnectionOption::Upgrade } else { ConnectionOption::KeepAlive };
            run.up.framing = run.body;
            let mut out = Vec::new();
            encode_request(&mut out, &run.request, run.body, option);
            Item::Bytes(out)
        } else {
            run.up.framing = BodyLength::None;
            let body = run.body;
            Item::Request(Box::new(run.request.clone()), body, run.upgrade)
        };
        let tunnel = run.upgrade || run.request.method() == sealane_http::Method::Connect;
        let bare = version > 1 && !tunnel && run.body.is_empty();
        self.stage(w, link, item);
        if bare && self.xs[x].body == BodyLength::None {
            self.stage(w, link, Item::End);
        }
        self.xs[x].down.progress.begin(w.now);
        self.touch(w, x);
        let switching = if version == 1 { Switching::Any } else { Switching::WebSocket };
        let actions = self.event(w, x, Event::Connected(switching)).without(Do::SendHead);
        if bare && self.xs[x].body == BodyLength::Known(0) {
            self.stage(w, link, Item::End);
        }
        self.perform(w, x, actions);
        let shortest = self.limits(x).shortest();
        self.look_by(w, x, w.now + shortest);
    }

    pub fn server_data(&mut self, w: &mut World, x: usize, link: usize, data: &[u8]) {
        let tunnel = self.xs[x].machine.is_tunnel();
        let framing = if tunnel { BodyLength::None } else { self.xs[x].up.framing };
        self.stage(w, link, Item::Bytes(framed(framing, data)));
    }

    pub fn server_end(&mut self, w: &mut World, x: usize, link: usize) {
        let run = &mut self.xs[x];
        let trailers = std::mem::take(&mut run.up.trailers);
        let (framing, tunnel) = (run.up.framing, run.machine.is_tunnel());
        let item = if tunnel { Some(Item::End) } else { end_of(self.port(link).version, framing, trailers) };
        if let Some(item) = item {
            self.stage(w, link, item);
        }
    }

    /// Calls the request off.
    pub fn server_reset(&mut self, w: &mut World, link: usize) {
        let port = self.port(link);
        port.staged.clear();
        (port.staged_bytes, port.exchange) = (0, None);
        port.inbuf.clear();
        if std::mem::replace(&mut port.phase, PortPhase::Closed) != PortPhase::Connecting {
            w.reset(link, Way::Up, Code::Cancel);
            w.stop(link, Way::Down);
        }
    }

    /// The exchange is over; the server's side may be used again if `reusable`.
    pub fn server_finish(&mut self, w: &mut World, link: usize, reusable: bool) {
        let port = self.port(link);
        if !reusable || port.version == 1 && (!port.keep_alive || !port.inbuf.is_empty() || !port.staged.is_empty()) {
            return self.server_reset(w, link);
        }
        port.exchange = None;
        if port.version > 1 {
            port.phase = PortPhase::Closing;
            return;
        }
        (port.phase, port.used) = (PortPhase::Idle, true);
        w.at(w.now, Wake::Arrived(link, Way::Down));
    }

    /// Both directions of a relayed connection have ended; what the server has not taken yet is still sent.
    pub fn relay_done(&mut self, w: &mut World, link: usize) {
        let port = self.port(link);
        (port.exchange, port.phase) = (None, PortPhase::Closing);
        let idle = self.settings.idle[1];
        self.set_timer(w, link, idle);
        self.flush(w, link);
    }

    /// Takes what a server has sent, as far as it can be used.
    pub fn back_ready(&mut self, w: &mut World, link: usize) {
        while self.back_step(w, link) {}
        assert!(self.port(link).inbuf.len() <= 32 * 1024 + READ, "link {link}: a read buffer without a bound");
    }

    fn back_step(&mut self, w: &mut World, link: usize) -> bool {
        if matches!(w.peek(link, Way::Down), Some(Item::Reset(Code::Lost))) {
            self.group_lost(link);
        }
        match self.port(link).phase {
            PortPhase::Connecting => return false,
            PortPhase::Closed | PortPhase::Closing => return w.take(link, Way::Down, READ).is_some(),
            PortPhase::Idle => {
                if w.peek(link, Way::Down).is_some() {
                    self.server_reset(w, link);
                }
                return false;
            }
            PortPhase::Open => {}
        }
        let Some(x) = self.port(link).exchange else { return false };
        if self.port(link).version == 1 { self.read_bytes(w, link, x) } else { self.read_response_frame(w, link, x) }
    }

    fn back_lost(&mut self, w: &mut World, link: usize, x: usize) {
        let port = self.port(link);
        let why = Loss::of_connection(port.used, !port.answered);
        self.lost(w, x, why);
    }

    fn read_bytes(&mut self, w: &mut World, link: usize, x: usize) -> bool {
        let answered = self.xs[x].machine.is_answered();
        let room = if answered { self.down_room(w, x) } else { READ };
        let port = self.ports[link].as_mut().expect("a port");
        let run = &mut self.xs[x];
        if room == 0 {
            return false;
        }
        let tunnel = run.machine.is_tunnel();
        let done = answered && !tunnel && run.down.decoder.is_done();
        let input = std::mem::take(&mut port.inbuf);
        let end = input.len().min(room);
        let mut more = input.is_empty() && !done;
        if !more && !answered {
            port.answered = true;
            let (limits, tolerance) = (sealane_http::h1::Limits::default(), Tolerance::default());
            match parse_response_tolerating(tolerance, &input, &limits, run.request.method(), &mut run.response) {
                Ok(None) => port.inbuf = input,
                Ok(Some(info)) => {
                    port.inbuf = input[info.consumed..].to_vec();
                    port.keep_alive = info.keep_alive;
                    run.down.decoder.reset(info.body);
                    return self.response_arrived(w, x, info.body, info.upgrade);
                }
                Err(_) => {
                    self.lost(w, x, Loss::Broken);
                    return false;
                }
            }
        } else if !more && tunnel {
            port.inbuf = input[end..].to_vec();
            self.down_data(w, x, &input[..end], false);
            return true;
        } else if !more {
            let Ok(piece) = run.down.decoder.decode_at_most(&input, room) else {
                self.lost(w, x, Loss::Broken);
                return false;
            };
            let done = run.down.decoder.is_done();
            port.inbuf = input[piece.consumed..].to_vec();
            match piece.what {
                What::Data(data) => return self.down_data(w, x, data, done),
                What::NeedMore if piece.consumed > 0 => return true,
                What::NeedMore => more = true,
                What::Trailers => std::mem::swap(&mut run.down.trailers, run.down.decoder.trailers_mut()),
                What::End => {}
            }
            if !more {
                self.down_end(w, x);
                return false;
            }
        }
        match w.take(link, Way::Down, room.min(READ)) {
            Some(Item::Bytes(bytes)) => self.port(link).inbuf.extend_from_slice(&bytes),
            Some(Item::End) => {
                let run = &mut self.xs[x];
                let streams = run.machine.response() == Phase::Streaming;
                if streams && (tunnel || run.down.decoder.eof().is_ok()) {
                    self.down_end(w, x);
                } else {
                    self.back_lost(w, link, x);
                }
                return false;
            }
            Some(_) => {
                self.back_lost(w, link, x);
                return false;
            }
            None => return false,
        }
        true
    }

    fn read_response_frame(&mut self, w: &mut World, link: usize, x: usize) -> bool {
        let answered = self.xs[x].machine.is_answered();
        let room = if answered { self.down_room(w, x) } else { 0 };
        let Some(item) = w.take(link, Way::Down, room) else { return false };
        let port = self.ports[link].as_mut().expect("a port");
        match item {
            Item::Response(head, length) => {
                let run = &mut self.xs[x];
                run.response = *head;
                let status = run.response.status;
                if status == 101 {
                    // Neither version has it.
                    self.lost(w, x, Loss::Broken);
                    return false;
                }
                let tunnel = run.upgrade || run.request.method() == sealane_http::Method::Connect;
                let opens = tunnel && (200..300).contains(&status);
                if opens && run.upgrade {
                    run.response.status = 101;
                    run.response.fields.push(b"Upgrade", b"websocket").unwrap();
                }
                if status >= 200 {
                    port.left = match length {
                        BodyLength::Known(n) => Some(n),
                        BodyLength::None if !opens => Some(0),
                        _ => None,
                    };
                }
                let bodiless = port.version == 2 && status >= 200 && !opens && length == BodyLength::None;
                let goes_on = self.response_arrived(w, x, length, opens);
                if goes_on && bodiless {
                    // Whatever comes behind it is not looked at.
                    self.down_end(w, x);
                    return false;
                }
                return goes_on;
            }
            Item::Bytes(data) => {
                if let Some(left) = &mut port.left {
                    if *left == 0 {
                        // Content where there can be none (RFC 9114 §4.1.2).
                        self.lost(w, x, Loss::Broken);
                        return false;
                    }
                    *left = left.saturating_sub(data.len() as u64);
                }
                return self.down_data(w, x, &data, false);
            }
            Item::Trailers(_) | Item::End => {
                if port.left.is_some_and(|left| left > 0) || !answered {
                    self.lost(w, x, Loss::Broken);
                    return false;
                }
                if let Item::Trailers(fields) = item {
                    self.xs[x].down.trailers = *fields;
                }
                self.down_end(w, x);
            }
            Item::Reset(code) => {
                let reset = match code {
                    Code::Refused => Reset::Refused,
                    Code::Cancel => Reset::Cancelled,
                    _ => Reset::Other,
                };
                self.lost(w, x, Loss::of_reset(reset, self.xs[x].call));
            }
            // It wants no more of the request; its response goes on.
            Item::Stop => return true,
            Item::Request(..) => panic!("a request from a server"),
        }
        false
    }
}
