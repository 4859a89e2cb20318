//! The client as a sink of responses.

use super::*;

impl Gateway {
    pub fn client_interim(&mut self, w: &mut World, x: usize) {
        let run = &self.xs[x];
        let (link, version) = (run.front, run.request.version);
        if self.port(link).version > 1 {
            let head = Box::new(self.xs[x].response.clone());
            return self.stage(w, link, Item::Response(head, BodyLength::None));
        }
        if version >= Version::Http11 {
            let mut out = Vec::new();
            encode_response(&mut out, &self.xs[x].response, version, BodyLength::None, ConnectionOption::KeepAlive);
            self.stage(w, link, Item::Bytes(out));
        }
    }

    pub fn client_head(&mut self, w: &mut World, x: usize, body: BodyLength, upgrade: bool) {
        let link = self.xs[x].front;
        self.xs[x].forwarded = true;
        if self.port(link).version > 1 {
            let run = &mut self.xs[x];
            if upgrade && run.response.status == 101 {
                run.response.status = 200;
            }
            run.down.framing = BodyLength::None;
            let head = Box::new(run.response.clone());
            return self.stage(w, link, Item::Response(head, body));
        }
        let run = &mut self.xs[x];
        let status = run.response.status;
        let connection = match run.machine.request() {
            _ if upgrade && status == 101 => ConnectionOption::Upgrade,
            _ if upgrade => ConnectionOption::KeepAlive,
            Phase::Complete if run.keep_alive => ConnectionOption::KeepAlive,
            Phase::Draining if run.keep_alive && run.machine.reads_rest(run.announced_rest()) => {
                ConnectionOption::KeepAlive
            }
            Phase::Streaming if run.keep_alive && !run.body.is_empty() && status < 300 => ConnectionOption::KeepAlive,
            _ => ConnectionOption::Close,
        };
        let mut out = Vec::new();
        let framing = encode_response(&mut out, &run.response, run.request.version, body, connection);
        run.down.framing = framing;
        run.keep_alive &= framing != BodyLength::UntilClose && connection == ConnectionOption::KeepAlive;
        self.stage(w, link, Item::Bytes(out));
    }

    pub fn client_data(&mut self, w: &mut World, x: usize, data: &[u8]) {
        let (link, framing) = (self.xs[x].front, self.xs[x].down.framing);
        let framing = if self.port(link).version > 1 { BodyLength::None } else { framing };
        self.stage(w, link, Item::Bytes(framed(framing, data)));
    }

    pub fn client_end(&mut self, w: &mut World, x: usize) {
        let run = &mut self.xs[x];
        let (link, framing) = (run.front, run.down.framing);
        if run.machine.is_relay() {
            return self.stage(w, link, Item::End);
        }
        let trailers = std::mem::take(&mut run.down.trailers);
        if let Some(item) = end_of(self.port(link).version, framing, trailers) {
            self.stage(w, link, item);
        }
    }

    /// A response of the gateway's own.
    pub fn send_own(&mut self, w: &mut World, x: usize, status: u16) {
        let run = &mut self.xs[x];
        // A 404 stands for the answers of routes, which leave the connection open behind the rest of the request.
        let close = status != 404 && (!matches!(status, 502 | 504) || run.machine.request() != Phase::Complete);
        run.keep_alive &= !close;
        run.response.clear();
        run.response.status = status;
        let body = format!("{status}\n");
        if run.request.method() == sealane_http::Method::Head {
            self.client_head(w, x, BodyLength::None, false);
        } else {
            self.client_head(w, x, BodyLength::Known(body.len() as u64), false);
            self.client_data(w, x, body.as_bytes());
        }
        self.xs[x].down.trailers.clear();
        self.client_end(w, x);
    }

    /// Cuts a response off, so that it cannot look whole. `stuck`: the client takes nothing.
    pub fn client_cut(&mut self, w: &mut World, link: usize, stuck: bool) {
        if !stuck {
            self.flush(w, link);
        }
        self.close_front(w, link, Code::Internal);
    }

    pub fn close_front(&mut self, w: &mut World, link: usize, code: Code) {
        let port = self.port(link);
        port.staged.clear();
        (port.staged_bytes, port.exchange, port.phase) = (0, None, PortPhase::Closed);
        port.inbuf.clear();
        let ended = w.pipe(link, Way::Down).ended;
        if code == Code::NoError && ended {
            // What was sent is whole: it is not destroyed by a reset.
            w.close(link, Way::Up);
            return;
        }
        w.reset(link, Way::Down, code);
        w.stop(link, Way::Up);
    }
}

/// The connection ends in an orderly way: a client that still sends is read for a while.
pub fn ends_connection(gateway: &mut Gateway, w: &mut World, link: usize) {
    let idle = gateway.settings.idle[0];
    gateway.port(link).phase = PortPhase::Closing;
    gateway.port(link).inbuf.clear();
    if !gateway.port(link).relay {
        gateway.stage(w, link, Item::End);
    }
    gateway.set_timer(w, link, idle);
    w.at(w.now, Wake::Arrived(link, Way::Up));
}

/// A piece of a body in its framing.
pub fn framed(framing: BodyLength, data: &[u8]) -> Vec<u8> {
    if framing != BodyLength::Chunked {
        return data.to_vec();
    }
    let mut out = Vec::with_capacity(data.len() + 20);
    encode_chunk_header(&mut out, data.len());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
    out
}

/// The end of a body in its framing.
pub fn end_of(version: u8, framing: BodyLength, trailers: Fields) -> Option<Item> {
    match (version, framing) {
        (1, BodyLength::Chunked) => {
            let mut out = Vec::new();
            encode_last_chunk(&mut out, (!trailers.is_empty()).then_some(&trailers));
            Some(Item::Bytes(out))
        }
        (1, _) => None,
        _ if trailers.is_empty() => Some(Item::End),
        _ => Some(Item::Trailers(Box::new(trailers))),
    }
}
