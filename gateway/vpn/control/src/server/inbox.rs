//! The two ends between a plane and control: packets, which may be lost, and events, which may not.
//!
//! Every queue is bounded. Packets have a number of places. Of what a connected client can cause as often as it likes (its
//! moves, its in-band messages) the newest of each client waits, and replaces the one before. All other events answer a
//! command of control's own, or happen once in a peer's life.

use sealane_ovpn::data::{PeerId, magic};
use sealane_tunnel::plane::{ControlIn, Event, Sink};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// Control packets that may wait; more are lost, as on a full link.
const WAITING: usize = 4096;

/// What a client has caused last.
#[derive(Debug, Default)]
struct Latest {
    moved: Option<Event>,
    /// An exit message stays.
    message: Option<Event>,
}

/// The newest events of each client, and how many older ones they have replaced.
#[derive(Debug, Default)]
struct Merged {
    latest: Mutex<HashMap<PeerId, Latest>>,
    replaced: AtomicU64,
}

/// Where the plane's words arrive.
#[derive(Debug)]
pub struct Inbox {
    packets: mpsc::Sender<ControlIn>,
    events: mpsc::UnboundedSender<Event>,
    merged: Arc<Merged>,
    /// Rings when something is in `merged`.
    bell: mpsc::Sender<()>,
}

/// The other end of an [`Inbox`].
#[derive(Debug)]
pub struct Outlet {
    packets: mpsc::Receiver<ControlIn>,
    events: mpsc::UnboundedReceiver<Event>,
    merged: Arc<Merged>,
    bell: mpsc::Receiver<()>,
    /// Taken out of `merged`.
    taken: VecDeque<Event>,
    /// The last word was one of `taken`: a packet's turn is next, so that clients that repeat themselves without end do not
    /// keep the others' packets out.
    packet_next: bool,
}

/// The two ends between plane and control.
pub fn inbox() -> (Arc<Inbox>, Outlet) {
    let (packets, packets_out) = mpsc::channel(WAITING);
    let (events, events_out) = mpsc::unbounded_channel();
    let (bell, bell_out) = mpsc::channel(1);
    let merged = Arc::<Merged>::default();
    let inbox = Inbox { packets, events, merged: merged.clone(), bell };
    let taken = VecDeque::new();
    let outlet = Outlet { packets: packets_out, events: events_out, merged, bell: bell_out, taken, packet_next: false };
    (Arc::new(inbox), outlet)
}

fn is_exit(event: &Event) -> bool {
    matches!(event, Event::InbandIn(_, message) if magic::payload(message) == magic::Payload::Exit)
}

impl Inbox {
    fn merge(&self, peer: PeerId, event: Event) {
        let mut latest = self.merged.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = latest.entry(peer).or_default();
        let slot = if matches!(event, Event::InbandIn(..)) { &mut latest.message } else { &mut latest.moved };
        if slot.is_some() {
            self.merged.replaced.fetch_add(1, Ordering::Relaxed);
        }
        if !slot.as_ref().is_some_and(is_exit) {
            *slot = Some(event);
        }
        // A bell that rings already is enough.
        let _ = self.bell.try_send(());
    }
}

impl Sink for Inbox {
    fn control_in(&self, packet: ControlIn) -> bool {
        self.packets.try_send(packet).is_ok()
    }

    fn event(&self, event: Event) {
        match event {
            // A connection matters once it brings a packet.
            Event::SocketOpened { .. } => {}
            Event::FloatTo { peer, .. } | Event::InbandIn(peer, _) => self.merge(peer, event),
            // Nobody listens only when everything is ending.
            event => drop(self.events.send(event)),
        }
    }
}

impl Outlet {
    pub(crate) async fn next(&mut self) -> Option<Word> {
        loop {
            if std::mem::take(&mut self.packet_next)
                && let Ok(packet) = self.packets.try_recv()
            {
                return Some(Word::Packet(packet));
            }
            if let Some(event) = self.taken.pop_front() {
                self.packet_next = true;
                return Some(Word::Event(event));
            }
            tokio::select! {
                // Events first: they are few, and say which packets can be answered.
                biased;
                event = self.events.recv() => return event.map(Word::Event),
                rung = self.bell.recv() => {
                    rung?;
                    self.take_merged();
                }
                packet = self.packets.recv() => return packet.map(Word::Packet),
            }
        }
    }

    /// What is there already.
    pub(crate) fn try_next(&mut self) -> Option<Word> {
        let event = self.events.try_recv().ok();
        self.take_merged();
        let event = event.or_else(|| self.taken.pop_front()).map(Word::Event);
        event.or_else(|| self.packets.try_recv().ok().map(Word::Packet))
    }

    /// Events that newer ones of the same client have replaced.
    pub(crate) fn replaced(&self) -> u64 {
        self.merged.replaced.load(Ordering::Relaxed)
    }

    fn take_merged(&mut self) {
        let latest = std::mem::take(&mut *self.merged.latest.lock().unwrap_or_else(PoisonError::into_inner));
        self.taken.extend(latest.into_values().flat_map(|l| [l.moved, l.message]).flatten());
    }
}

/// What a plane says.
#[derive(Debug)]
pub(crate) enum Word {
    Event(Event),
    Packet(ControlIn),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_repeats_takes_one_place() {
        let (inbox, mut outlet) = inbox();
        let peer = PeerId::new(3).expect("a peer id");
        for port in 0..1000 {
            let remote = ([192, 0, 2, 1], port).into();
            inbox.event(Event::FloatTo { peer, remote, local: None });
            inbox.event(Event::InbandIn(peer, magic::exit_message().to_vec()));
            inbox.event(Event::InbandIn(peer, [&magic::OCC[..], &[1]].concat()));
        }
        let mut got = Vec::new();
        while let Some(Word::Event(event)) = outlet.try_next() {
            got.push(event);
        }
        assert_eq!(got.len(), 2, "{got:?}");
        assert!(matches!(got[0], Event::FloatTo { remote, .. } if remote.port() == 999), "the newest counts");
        assert!(is_exit(&got[1]), "an exit is not replaced");
        assert_eq!(outlet.replaced(), 999 + 1999);
    }

    /// One client that sends in-band messages faster than they are handled.
    #[test]
    fn packets_of_others_come_through_a_flood_of_messages() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (inbox, mut outlet) = inbox();
        let peer = PeerId::new(3).expect("a peer id");
        let packet = || ControlIn {
            socket: sealane_tunnel::plane::SocketId::new(0, 0),
            transport: sealane_tunnel::plane::Transport::Udp,
            remote: ([192, 0, 2, 1], 1).into(),
            local: None,
            bytes: vec![7],
        };
        assert!((0..100).all(|_| inbox.control_in(packet())));
        let mut packets = 0;
        for _ in 0..400 {
            inbox.event(Event::InbandIn(peer, vec![1]));
            packets += usize::from(matches!(runtime.block_on(outlet.next()), Some(Word::Packet(_))));
        }
        assert_eq!(packets, 100);
    }
}
