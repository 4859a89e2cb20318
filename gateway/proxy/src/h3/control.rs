//! The control streams of both sides: SETTINGS, GOAWAY, priorities, and what else the peer opens of its own.

use super::connection::{H3Connection, Phase, Role, Stay};
use crate::exchange::priority::Priority;
use quinn_proto::{Dir, ReadError, StreamId, VarInt};
use sealane_exchange::deadlines::{ConnectionLimits, ConnectionWait};
use sealane_http::h3::{self, Code, ControlEvent, Settings};
use sealane_lane::Millis;

/// The last stream that a client can open (RFC 9000 §2.1).
const LAST_STREAM: u64 = (1 << 62) - 4;

impl H3Connection {
    /// Opens our control stream as soon as the peer allows one.
    pub fn open_control(&mut self, settings: &Settings) {
        if self.control.is_none()
            && let Some(id) = self.quic.open(Dir::Uni)
        {
            self.control = Some(id);
            let mut opening = Vec::new();
            h3::put_control_opening(&mut opening, settings);
            opening.append(&mut self.control_out);
            self.control_out = opening;
        }
    }

    /// Tells a client that there is not much time left: what it sends until it has heard of it is still served
    /// (RFC 9114 §5.2).
    pub fn leave_soon(&mut self, now: Millis) {
        if matches!(self.phase, Phase::Handshake | Phase::Open)
            && let Role::Client { stay: stay @ Stay::Stays, .. } = &mut self.role
        {
            *stay = Stay::Until(ConnectionWait::Goaway.until(now, &ConnectionLimits::default()));
            h3::put_goaway(&mut self.control_out, LAST_STREAM);
        }
    }

    /// The time is over for a client that was told so: it opens no more streams.
    pub fn leave_in_time(&mut self, now: Millis) {
        if self.phase == Phase::Open && matches!(self.role, Role::Client { stay: Stay::Until(at), .. } if at <= now) {
            self.leave();
        }
    }

    /// Tells the peer to open no more streams.
    pub fn leave(&mut self) {
        if matches!(self.phase, Phase::Handshake | Phase::Open) {
            self.phase = Phase::Leaving;
            h3::put_goaway(&mut self.control_out, self.next_id);
        }
    }

    /// Hands the transport what waits on our control stream.
    pub fn flush_control(&mut self) {
        let Some(id) = self.control else { return };
        if self.control_out.is_empty() {
            return;
        }
        // What the peer's window does not let out waits for it to say so.
        if let Ok(n) = self.quic.send_stream(id).write(&self.control_out) {
            self.control_out.drain(..n);
        }
    }

    /// Reads one of the peer's own streams. `Some`: the peer is a server that goes away, and has not looked at requests from
    /// this stream on. An error ends the connection.
    pub fn read_uni(&mut self, id: StreamId, now: Millis) -> Result<Option<u64>, Code> {
        let Some(at) = self.uni.iter().position(|(i, _)| *i == id) else { return Ok(None) };
        let mut result = Ok(());
        let mut ended = false;
        let mut events = Vec::new();
        {
            let mut recv = self.quic.recv_stream(id);
            let Ok(mut chunks) = recv.read(true) else { return Ok(None) };
            while result.is_ok() {
                match chunks.next(usize::MAX) {
                    Ok(Some(chunk)) => {
                        result = self.uni[at].1.feed(&mut self.peer, &chunk.bytes, |event| {
                            events.push(event);
                            Ok(())
                        });
                    }
                    Err(ReadError::Blocked) => break,
                    Ok(None) | Err(ReadError::Reset(_)) => {
                        ended = true;
                        break;
                    }
                }
            }
            let _ = chunks.finalize();
        }
        if ended && result.is_ok() {
            result = self.uni[at].1.finish();
            self.uni.swap_remove(at);
        } else if self.uni[at].1.is_ignored() {
            // RFC 9114 §6.2: what is not known is not read.
            self.stop(id, Code::StreamCreationError);
            self.uni.swap_remove(at);
        }
        result.map_err(|e| e.code())?;
        let mut leaves_from = None;
        for event in events {
            match event {
                // Nothing that is sent depends on them.
                ControlEvent::Settings(_) => {}
                // From a client it is about pushes, of which there are none.
                ControlEvent::Goaway(_) if self.is_client() => {}
                // Each says less than the one before (RFC 9114 §5.2).
                ControlEvent::Goaway(id) => leaves_from = Some(id),
                ControlEvent::Priority(id, value) => {
                    // RFC 9114 §10.5: what costs the receiver more than the sender has a bound.
                    self.priority_budget.wasted(1, now).map_err(|_| Code::ExcessiveLoad)?;
                    if let Ok(id) = VarInt::from_u64(id) {
                        self.reprioritise(StreamId::from(id), Priority::parse(&value));
                    }
                }
            }
        }
        Ok(leaves_from)
    }
}
