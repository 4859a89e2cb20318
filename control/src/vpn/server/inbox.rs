//! The two ends between a plane and control: packets, which may be lost, and events, which may not.

use sealane_tunnel::plane::{ControlIn, Event, Sink};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Control packets that may wait; more are lost, as on a full link.
const WAITING: usize = 4096;

/// Where the plane's words arrive.
#[derive(Debug)]
pub struct Inbox {
    packets: mpsc::Sender<ControlIn>,
    events: mpsc::UnboundedSender<Event>,
}

/// The other end of an [`Inbox`].
#[derive(Debug)]
pub struct Outlet {
    packets: mpsc::Receiver<ControlIn>,
    events: mpsc::UnboundedReceiver<Event>,
}

/// The two ends between plane and control.
pub fn inbox() -> (Arc<Inbox>, Outlet) {
    let (packets, packets_out) = mpsc::channel(WAITING);
    let (events, events_out) = mpsc::unbounded_channel();
    (Arc::new(Inbox { packets, events }), Outlet { packets: packets_out, events: events_out })
}

impl Sink for Inbox {
    fn control_in(&self, packet: ControlIn) -> bool {
        self.packets.try_send(packet).is_ok()
    }

    fn event(&self, event: Event) {
        // Nobody listens only when everything is ending.
        let _ = self.events.send(event);
    }
}

impl Outlet {
    pub(in crate::vpn) async fn next(&mut self) -> Option<Word> {
        tokio::select! {
            // Events first: they are few, and say which packets can be answered.
            biased;
            event = self.events.recv() => event.map(Word::Event),
            packet = self.packets.recv() => packet.map(Word::Packet),
        }
    }
}

impl Outlet {
    /// What is there already.
    pub(in crate::vpn) fn try_next(&mut self) -> Option<Word> {
        let event = self.events.try_recv().map(Word::Event);
        event.or_else(|_| self.packets.try_recv().map(Word::Packet)).ok()
    }
}

/// What a plane says.
#[derive(Debug)]
pub(in crate::vpn) enum Word {
    Event(Event),
    Packet(ControlIn),
}
