//! New connections: who must prove its address first, who is refused, who waits for crypto time.

use super::connection::Connection;
use super::forwarding::long_header_id;
use super::{Parts, QuicEndpoint, config};
use crate::accept::admission::Admission;
use crate::counters::{Count, Counters};
use crate::lane_state::LaneListener;
use crate::settings::LaneSettings;
use bytes::BytesMut;
use quinn_proto::{ConnectionError, Incoming};
use sealane_exchange::deadlines::ConnectionWait;
use sealane_lane::{Context, Micros};
use sealane_tls::{quic as tls_quic, sessions};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Instant;

/// Datagrams kept of a hello that waits.
const MAX_RAW: usize = 8;
/// How many of those that wait are looked through for a datagram's.
const LOOK_BACK: usize = 32;

/// Most refusals by address that one batch of datagrams reports; all are counted.
const MAX_REPORTED: usize = 16;

/// A client's first packet.
pub(super) struct FirstPacket {
    pub incoming: Incoming,
    /// Its bytes, if they may have to go to another lane.
    pub raw: Option<BytesMut>,
    /// Another lane has asked already whether this client may connect.
    pub counted: bool,
}

/// An Initial that waits for crypto time.
pub(super) struct Waiting {
    endpoint: usize,
    incoming: Incoming,
    /// Since when it waits.
    since: Micros,
    /// The datagrams so far, if they may have to go to another lane.
    raw: Vec<BytesMut>,
}

/// A connection that has begun.
pub(crate) struct Accepted {
    pub connection: Connection,
    /// Whose client it is.
    pub listener: Rc<LaneListener>,
    /// The client.
    pub remote: SocketAddr,
    /// When its first packet came.
    pub since: Micros,
}

/// A hello that came to nothing.
pub(crate) struct Rejected {
    /// The client.
    pub remote: SocketAddr,
    /// Why, in the words of `TLS_FAILURES`.
    pub reason: &'static str,
}

impl QuicEndpoint {
    /// Clients wait for crypto time.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the addresses that were refused since the last call.
    pub fn take_denied(&mut self) -> Vec<SocketAddr> {
        std::mem::take(&mut self.denied)
    }

    /// More of a client that waits still. What is not found costs a retransmission, should it go to another lane.
    pub(super) fn waits(&mut self, index: usize, data: BytesMut) {
        let Some(id) = long_header_id(&data) else { return };
        let same = |w: &&mut Waiting| w.endpoint == index && w.incoming.orig_dst_cid().as_ref() == id;
        let found = self.waiting.iter_mut().rev().take(LOOK_BACK).find(same);
        if let Some(waiting) = found.filter(|w| !w.raw.is_empty() && w.raw.len() < MAX_RAW) {
            waiting.raw.push(data);
        }
    }

    /// A client's first packet: refused, answered by Retry, or queued.
    pub(super) fn first_packet<C>(
        &mut self,
        cx: &mut Context,
        index: usize,
        packet: FirstPacket,
        parts: &mut Parts<'_, C>,
    ) {
        let FirstPacket { incoming, raw, counted } = packet;
        let Parts { admission, settings, counters, .. } = parts;
        let full = self.waiting.len() >= config::MAX_INCOMING || admission.is_full(settings) || settings.is_draining();
        let pressure = self.handshakes + self.waiting.len();
        let Some(Some(endpoint)) = self.endpoints.get_mut(index) else { return };
        let Some(listener) = &endpoint.listener else { return endpoint.endpoint.ignore(incoming) };
        let admitted = counted || listener.admits(incoming.remote_address().ip());
        let retry_above = listener.listener.quic.as_ref().map_or(0, |q| q.settings.retry_above);
        let mut answer = std::mem::take(&mut self.out.scratch);
        answer.clear();
        if full || endpoint.leaving {
            counters.count(Count::QuicRefused);
            let transmit = endpoint.endpoint.refuse(incoming, &mut answer);
            self.out.answer(index, &transmit, &answer, counters);
        } else if !admitted {
            counters.count(Count::ConnectionsDenied);
            if self.denied.len() < MAX_REPORTED {
                self.denied.push(incoming.remote_address());
            }
            let transmit = endpoint.endpoint.refuse(incoming, &mut answer);
            self.out.answer(index, &transmit, &answer, counters);
        } else if pressure >= retry_above && incoming.may_retry() && !incoming.remote_address_validated() {
            // RFC 9000 §8.1.2: nothing is kept of a client that has not shown that it is where it says.
            counters.count(Count::QuicRetries);
            match endpoint.endpoint.retry(incoming, &mut answer) {
                Ok(transmit) => self.out.answer(index, &transmit, &answer, counters),
                Err(e) => endpoint.endpoint.ignore(e.into_incoming()),
            }
        } else if !counted
            && !is_within_rates(admission, settings, counters, cx, incoming.remote_address().ip(), listener)
        {
            let transmit = endpoint.endpoint.refuse(incoming, &mut answer);
            self.out.answer(index, &transmit, &answer, counters);
        } else {
            let raw = raw.into_iter().collect();
            self.waiting.push_back(Waiting { endpoint: index, incoming, since: cx.micros(), raw });
        }
        self.out.scratch = answer;
    }

    /// Begins the handshake of the client that has waited longest, unless it has waited for longer than a handshake may take. `None`
    /// if there is none, or its listener is gone.
    /// `micros`: what the lane's clock would say now, if it did not stand still during a turn.
    pub fn accept_next(
        &mut self,
        (now, micros): (Instant, Micros),
        admission: &Admission,
        settings: &LaneSettings,
        counters: &Counters,
    ) -> Option<Result<Accepted, Rejected>> {
        let Waiting { endpoint: index, incoming, since, raw } = self.waiting.pop_front()?;
        let endpoint = self.endpoints.get_mut(index)?.as_mut()?;
        let Some(listener) = endpoint.listener.clone() else {
            endpoint.endpoint.ignore(incoming);
            return None;
        };
        let remote = incoming.remote_address();
        let mut answer = std::mem::take(&mut self.out.scratch);
        answer.clear();
        if settings.limits().until(ConnectionWait::Handshake, since / 1000) < micros / 1000 {
            // Its handshake would not end in time any more.
            counters.count(Count::ClientTimeouts);
            let transmit = endpoint.endpoint.refuse(incoming, &mut answer);
            self.out.answer(index, &transmit, &answer, counters);
            self.out.scratch = answer;
            return Some(Err(Rejected { remote, reason: "timeout" }));
        }
        // Others that waited with it have taken places since: of the lane, or of this client.
        let is_full = admission.is_full(settings);
        if is_full {
            counters.count(Count::QuicRefused);
        }
        if is_full || !admission.has_place_for(remote.ip(), &listener, settings, counters) {
            let transmit = endpoint.endpoint.refuse(incoming, &mut answer);
            self.out.answer(index, &transmit, &answer, counters);
            self.out.scratch = answer;
            return None;
        }
        counters.hello_waited(micros.saturating_sub(since));
        #[expect(clippy::result_large_err, reason = "it is quinn-proto's, and is looked at right below")]
        let accept =
            || tls_quic::with_client(remote.ip(), || endpoint.endpoint.accept(incoming, now, &mut answer, None));
        let (accepted, foreign) = tls_quic::hear(!raw.is_empty(), accept);
        counters.set(Count::ForgedSessionIds, sessions::forged());
        let accepted = match accepted {
            Err(e) => {
                if let Some(transmit) = &e.response {
                    self.out.answer(index, transmit, &answer, counters);
                }
                Err(Rejected { remote, reason: failure(&e.cause) })
            }
            Ok((handle, protocol)) => {
                counters.count(Count::Accepted);
                self.handshakes += 1;
                let settings = listener.listener.quic.as_ref().map(|q| &q.settings);
                let mut connection = Connection::new(protocol, handle, index);
                connection.accepted(now, raw, foreign, settings);
                Ok(Accepted { connection, listener, remote, since })
            }
        };
        self.out.scratch = answer;
        Some(accepted)
    }
}

/// Whether a client may connect, as its address' connections and handshakes go; looked at before anything is
/// decrypted for it. Behind Retry, so that with `retry_above = 0` no forged address uses up another's share.
fn is_within_rates(
    admission: &mut Admission,
    settings: &LaneSettings,
    counters: &Counters,
    cx: &mut Context,
    peer: IpAddr,
    listener: &LaneListener,
) -> bool {
    admission.allows_connection(cx, peer, counters)
        && admission.has_place_for(peer, listener, settings, counters)
        && admission.allows_handshake(cx, peer, counters)
}

/// Why a handshake failed, in the words of `TLS_FAILURES`.
pub(crate) fn failure(reason: &ConnectionError) -> &'static str {
    match reason {
        ConnectionError::TimedOut => "timeout",
        ConnectionError::ConnectionClosed(_) | ConnectionError::ApplicationClosed(_) => "peer_alert",
        ConnectionError::Reset => "closed",
        // RFC 9001 §4.8: alerts are codes from 0x100 on.
        ConnectionError::TransportError(e) => match u64::from(e.code).checked_sub(0x100) {
            Some(112) => "unknown_name",
            Some(120) => "no_application_protocol",
            Some(116) => "no_client_certificate",
            // Bad, unsupported, of an unknown authority, and badly signed. Rustls reports a certificate for another purpose as unsupported.
            Some(42 | 43 | 48 | 51) => "bad_certificate",
            Some(44) => "certificate_revoked",
            Some(45) => "certificate_expired",
            Some(49) => "client_name_not_allowed",
            Some(40) => "incompatible",
            Some(_) => "bad_message",
            None => "other",
        },
        _ => "other",
    }
}
