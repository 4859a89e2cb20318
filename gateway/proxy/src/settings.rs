//! What control has given to a lane: its place among the lanes, the newest snapshot, and the order to drain.

use crate::exchange::expiry::first_look;
use crate::lane_state::{LaneListener, LaneSnapshot};
use crate::quic::Datagram;
use crate::service::Message;
use crate::snapshot::{ClientLimits, Snapshot};
use sealane_lane::{Mailbox, Millis, Subscription};
use sealane_tls::sessions;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) struct LaneSettings {
    slot: usize,
    /// Of all lanes, by slot.
    mailboxes: Vec<Mailbox<Message>>,
    snapshots: Subscription<Snapshot>,
    lane: Rc<LaneSnapshot>,
    /// How long until an exchange that begins is looked at, with the limits of this snapshot.
    first_look: Millis,
    life: Life,
}

/// How a lane's life goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Serving,
    /// It drains, and another process serves its listeners: connections close with the response to their next request.
    Succeeded {
        until: DrainEnd,
    },
    /// It drains, and nobody follows: connections over HTTP/1.1 close as soon as they serve no request.
    Ending {
        until: DrainEnd,
    },
}

/// When a lane that drains cuts off what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainEnd {
    /// Requests, and connections that carry none.
    pub requests: Millis,
    /// Upgraded and relayed connections.
    pub upgraded: Millis,
    /// The first of these times has passed, and requests have been cut off.
    only_upgraded: bool,
}

impl DrainEnd {
    pub fn new(requests: Millis, upgraded: Millis) -> Self {
        Self { requests, upgraded, only_upgraded: false }
    }

    /// Nothing goes on after this.
    pub fn last(self) -> Millis {
        self.requests.max(self.upgraded)
    }
}

impl LaneSettings {
    /// Takes up the newest snapshot.
    pub fn new(slot: usize, mailboxes: Vec<Mailbox<Message>>, snapshots: Subscription<Snapshot>) -> Self {
        let lane = Rc::new(LaneSnapshot::new(snapshots.current().clone(), None, slot, mailboxes.len()));
        share_tickets(&lane.snapshot);
        let first_look = first_look(&lane.snapshot.limits);
        Self { slot, mailboxes, snapshots, lane, first_look, life: Life::Serving }
    }

    /// The lane's slot.
    #[inline]
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// How many lanes there are.
    #[inline]
    pub fn lanes(&self) -> usize {
        self.mailboxes.len()
    }

    /// This lane's own mailbox.
    pub fn own_mailbox(&self) -> &Mailbox<Message> {
        &self.mailboxes[self.slot]
    }

    /// The mailbox of the lane in a slot, if there is one.
    pub fn mailbox(&self, slot: usize) -> Option<&Mailbox<Message>> {
        self.mailboxes.get(slot)
    }

    /// The mailbox of the lane that serves a socket: there may be more sockets than lanes.
    fn mailbox_of_socket(&self, socket: usize) -> &Mailbox<Message> {
        &self.mailboxes[socket % self.mailboxes.len()]
    }

    /// Mails a datagram to the lane that serves a socket. False if it does not fit: it is lost, and counted there.
    pub fn mail_datagram(&self, socket: usize, datagram: Datagram) -> bool {
        self.mailbox_of_socket(socket).send(Message::Datagram(Box::new(datagram))).is_ok()
    }

    /// The mailboxes of the other lanes, with their slots.
    pub fn others(&self) -> impl Iterator<Item = (usize, &Mailbox<Message>)> {
        self.mailboxes.iter().enumerate().filter(|(slot, _)| *slot != self.slot)
    }

    /// The lane's own form of the snapshot.
    #[inline]
    pub fn lane(&self) -> &Rc<LaneSnapshot> {
        &self.lane
    }

    /// The snapshot that the lane goes by.
    #[inline]
    pub fn snapshot(&self) -> &Snapshot {
        &self.lane.snapshot
    }

    /// Limits and timeouts of clients.
    #[inline]
    pub fn limits(&self) -> &Arc<ClientLimits> {
        &self.lane.snapshot.limits
    }

    /// What is listened on.
    #[inline]
    pub fn listeners(&self) -> &[Rc<LaneListener>] {
        &self.lane.listeners
    }

    /// Whether control has published a snapshot that the lane has not taken up.
    #[inline]
    pub fn are_outdated(&self) -> bool {
        self.snapshots.is_outdated()
    }

    /// Picks up the newest snapshot, which [`Self::take_up`] puts in the place of the one before; `None` if it is the same.
    pub fn newest(&mut self) -> Option<Arc<Snapshot>> {
        self.snapshots.changed().then(|| self.snapshots.current().clone())
    }

    /// Goes by a snapshot from now on. What has not changed is kept.
    pub fn take_up(&mut self, snapshot: Arc<Snapshot>) {
        self.lane = Rc::new(LaneSnapshot::new(snapshot, Some(&self.lane), self.slot, self.mailboxes.len()));
        share_tickets(&self.lane.snapshot);
        self.first_look = first_look(&self.lane.snapshot.limits);
    }

    /// How long until an exchange that begins is looked at.
    #[inline]
    pub fn first_look(&self) -> Millis {
        self.first_look
    }

    /// Whether the lane lets what is under way finish, and begins nothing.
    #[inline]
    pub fn is_draining(&self) -> bool {
        !matches!(self.life, Life::Serving)
    }

    /// When what is left is cut off, if the lane drains.
    #[inline]
    pub fn drain_until(&self) -> Option<DrainEnd> {
        match self.life {
            Life::Serving => None,
            Life::Succeeded { until } | Life::Ending { until } => Some(until),
        }
    }

    /// Whether connections over HTTP/1.1 close as soon as they serve no request. Otherwise they close with the response to
    /// their next request, also while the lane drains.
    #[inline]
    pub fn closes_idle(&self) -> bool {
        matches!(self.life, Life::Ending { .. })
    }

    /// The lane drains from now on; whatever is left then is cut off. `is_alone`: no other process serves its listeners.
    pub fn drain(&mut self, until: DrainEnd, is_alone: bool) {
        self.life = if is_alone { Life::Ending { until } } else { Life::Succeeded { until } };
    }

    /// Whether it is time to cut off requests, while upgraded connections may go on.
    #[inline]
    pub fn is_time_to_end_requests(&self, now: Millis) -> bool {
        self.drain_until().is_some_and(|until| (until.requests..until.upgraded).contains(&now) && !until.only_upgraded)
    }

    /// Nothing but upgraded connections goes on from now on.
    pub fn serve_only_upgraded(&mut self) {
        if let Life::Succeeded { until } | Life::Ending { until } = &mut self.life {
            until.only_upgraded = true;
        }
    }

    /// Whether nothing but upgraded connections goes on.
    pub fn serves_only_upgraded(&self) -> bool {
        self.drain_until().is_some_and(|until| until.only_upgraded)
    }
}

/// Sessions of this thread go by the snapshot's store.
fn share_tickets(snapshot: &Snapshot) {
    sessions::share(snapshot.shared_tickets.as_ref().map(|store| store.tickets.clone()));
}

#[cfg(test)]
mod tests {
    use super::{DrainEnd, LaneSettings};
    use crate::fixtures::{limits, settings, snapshot, upstream};
    use std::rc::Rc;

    #[test]
    fn a_snapshot_counts_once_it_is_taken_up() {
        let (mut settings, published) = settings(snapshot(limits(), Vec::new()));
        assert!(!settings.are_outdated() && settings.newest().is_none());
        let mut newer = limits();
        newer.max_body = 7;
        published.publish(snapshot(newer, Vec::new()));
        assert!(settings.are_outdated());
        let newest = settings.newest().unwrap();
        assert_ne!(settings.limits().max_body, 7, "the one before holds until then");
        settings.take_up(newest);
        assert_eq!(settings.limits().max_body, 7);
        assert!(!settings.are_outdated() && settings.newest().is_none());
    }

    #[test]
    fn a_group_that_has_not_changed_keeps_its_pool() {
        let (mut settings, published) = settings(snapshot(limits(), vec![upstream(1)]));
        let before = settings.lane().upstreams[0].clone();
        let mut next = snapshot(limits(), vec![upstream(1)]);
        next.upstreams.insert(0, settings.snapshot().upstreams[0].clone());
        published.publish(next);
        let newest = settings.newest().unwrap();
        settings.take_up(newest);
        assert!(Rc::ptr_eq(&settings.lane().upstreams[0], &before));
        assert!(!Rc::ptr_eq(&settings.lane().upstreams[1], &before));
    }

    #[test]
    fn others_are_all_lanes_but_this() {
        let (mut settings, _published) = settings(snapshot(limits(), Vec::new()));
        let slots: Vec<usize> = settings.others().map(|(slot, _)| slot).collect();
        assert_eq!((slots, settings.slot(), settings.lanes()), (vec![1], 0, 2));
        assert!(settings.mailbox(1).is_some() && settings.mailbox(2).is_none());
        settings.own_mailbox().set_closed(true);
        assert!(settings.mailbox_of_socket(4).is_closed(), "lane 0 serves every second socket");
        assert!(!settings.is_draining());
        settings.drain(DrainEnd::new(5, 5), false);
        let until = |settings: &LaneSettings| settings.drain_until().map(|until| (until.requests, until.last()));
        assert_eq!((settings.is_draining(), until(&settings), settings.closes_idle()), (true, Some((5, 5)), false));
        assert!(!settings.is_time_to_end_requests(5), "all ends at once");
        settings.drain(DrainEnd::new(7, 9), true);
        assert_eq!((until(&settings), settings.closes_idle()), (Some((7, 9)), true));
    }

    #[test]
    fn requests_end_once_and_before_upgraded_connections() {
        let (mut settings, _published) = settings(snapshot(limits(), Vec::new()));
        assert!(!settings.is_time_to_end_requests(5));
        settings.drain(DrainEnd::new(5, 8), false);
        let times = |settings: &LaneSettings| [4, 5, 7, 8].map(|now| settings.is_time_to_end_requests(now));
        assert_eq!((times(&settings), settings.serves_only_upgraded()), ([false, true, true, false], false));
        settings.serve_only_upgraded();
        assert_eq!((times(&settings), settings.serves_only_upgraded()), ([false; 4], true));
        assert_eq!(settings.drain_until().map(DrainEnd::last), Some(8));
    }
}
