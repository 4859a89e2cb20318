//! Congestion control that lets the end of a connection pass, and that knows whether the peer acknowledges anything. Congestion
//! control is for packets that are acknowledged (RFC 9002 §7), which CONNECTION_CLOSE is not, but quinn-proto holds it back as
//! long as bytes of streams wait for room in the window. A closed connection takes no acknowledgements, so there would never
//! be room.

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Makes [`Congestion`] for the paths of connections.
#[derive(Debug, Default)]
pub(super) struct CongestionConfig(Arc<CubicConfig>);

impl ControllerFactory for CongestionConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = self.0.clone().build(now, current_mtu);
        Box::new(Congestion { inner, acknowledged: 0, closing: Arc::default() })
    }
}

/// CUBIC (RFC 9438), and no bound once the connection closes.
struct Congestion {
    inner: Box<dyn Controller>,
    /// Bytes of packets that were acknowledged for the first time.
    acknowledged: u64,
    /// Shared with the copies that quinn-proto lets us have of it. Only the lane of the connection uses it.
    closing: Arc<AtomicBool>,
}

/// A copy of what quinn-proto has of a path.
fn copy(controller: &dyn Controller) -> Option<Box<Congestion>> {
    controller.clone_box().into_any().downcast().ok()
}

/// How many bytes the peer has acknowledged on the connection's present path. It makes a copy of the controller, and is for timers.
pub(super) fn acknowledged(controller: &dyn Controller) -> u64 {
    copy(controller).map_or(0, |congestion| congestion.acknowledged)
}

/// The connection whose path has this controller closes: what it has to say of that may leave at once.
pub(super) fn closes(controller: &dyn Controller) {
    if let Some(congestion) = copy(controller) {
        congestion.closing.store(true, Ordering::Relaxed);
    }
}

impl Controller for Congestion {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.acknowledged += bytes;
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_packet_num_acked: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent_congestion: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        // Above what is paced.
        if self.closing.load(Ordering::Relaxed) { u64::MAX } else { self.inner.window() }
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        let Self { inner, acknowledged, closing } = self;
        Box::new(Self { inner: inner.clone_box(), acknowledged: *acknowledged, closing: closing.clone() })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_closes_has_room_and_others_have_not() {
        let config = Arc::new(CongestionConfig::default());
        let [one, other] = [(); 2].map(|()| config.clone().build(Instant::now(), 1200));
        assert_eq!(one.window(), one.initial_window());
        closes(&*one);
        assert_eq!((one.window(), other.window()), (u64::MAX, other.initial_window()));
    }
}
