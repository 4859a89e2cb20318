//! One session: a client at a listener, and the socket that is connected to its server.

use super::table::Place;
use crate::Failure;
use crate::client::identity::Client;
use crate::snapshot::UdpRelay as Ends;
use crate::upstream::balance::{Lease, Tried};
use crate::upstream::group::LaneUpstream;
use sealane_lane::{Context, Deadline, Key, Micros, Millis};
use sealane_sys::udp::Socket;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

/// What has passed in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    pub datagrams: u64,
    pub bytes: u64,
}

/// The server of a session.
pub(super) struct Connected {
    pub socket: Socket,
    /// Which of the group's servers it is.
    pub server: usize,
    pub address: SocketAddr,
    pub lease: Lease,
    /// The PROXY protocol header in front of each datagram; empty: none.
    pub header: Vec<u8>,
}

pub(crate) struct UdpSession {
    pub(super) client: Client,
    /// The address at which the client has reached the gateway: replies leave from there.
    pub(super) local: Option<IpAddr>,
    /// Which of the lane's sockets the client comes to.
    pub(super) endpoint: usize,
    pub(super) place: Place,
    pub(super) group: Rc<LaneUpstream>,
    pub(super) to: Connected,
    /// Servers that have refused datagrams of the session since the last reply.
    pub(super) tried: Tried,
    pub(super) failure: Option<Failure>,
    /// The server in use has replied.
    pub(super) has_replied: bool,
    pub(super) began: Micros,
    pub(super) up: Passed,
    pub(super) down: Passed,
    pub(super) deadline: Deadline,
    /// How long the session may be silent.
    pub(super) idle: Duration,
    /// Its listener no longer relays to its server.
    pub(super) has_left_configuration: bool,
}

impl UdpSession {
    /// Who the client is.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The same, to change it.
    pub fn client_mut(&mut self) -> &mut Client {
        &mut self.client
    }

    /// An entry of the timer wheel has fired: whether the session has been silent for too long.
    pub fn fired(&mut self, cx: &mut Context, key: Key) -> bool {
        self.deadline.fired(cx, key)
    }

    /// Whether an entry of the timer wheel is the one that counts.
    pub fn is_armed_for(&self, tick: u64) -> bool {
        self.deadline.is_armed_for(tick)
    }

    /// A datagram has passed.
    pub(super) fn note_activity(&mut self, cx: &mut Context, key: Key) {
        self.deadline.after(cx, key, self.idle);
    }

    /// The session may be silent for no longer than this from now on.
    pub(super) fn hurry(&mut self, cx: &mut Context, key: Key, idle: Duration) {
        self.idle = self.idle.min(idle);
        let at = (cx.now() + self.idle.as_millis() as Millis).min(self.deadline.at());
        self.deadline.set(cx, key, at);
    }

    /// Whether the next datagram of the client begins another session.
    pub(super) fn has_all_requests(&self) -> bool {
        self.ends().is_some_and(|ends| has_all_requests(ends, self.up))
    }

    /// Whether everything that was expected has come.
    pub(super) fn is_complete(&self) -> bool {
        self.ends().is_some_and(|ends| is_complete(ends, self.up, self.down))
    }

    /// How many more replies may pass; `None`: any number.
    pub(super) fn expected_replies(&self) -> Option<u64> {
        expected_replies(self.ends()?, self.up, self.down)
    }

    fn ends(&self) -> Option<&Ends> {
        self.group.settings().udp.as_ref()
    }
}

fn has_all_requests(ends: &Ends, up: Passed) -> bool {
    ends.requests.is_some_and(|requests| up.datagrams >= u64::from(requests))
}

/// With both limits, the replies to datagrams that have yet to come may come before these.
fn expected_replies(ends: &Ends, up: Passed, down: Passed) -> Option<u64> {
    let requests = up.datagrams.max(ends.requests.map_or(0, u64::from));
    Some(requests.saturating_mul(u64::from(ends.responses?)).saturating_sub(down.datagrams))
}

/// With both limits, all datagrams of the client must have come first.
fn is_complete(ends: &Ends, up: Passed, down: Passed) -> bool {
    let Some(responses) = ends.responses else { return false };
    let expected = up.datagrams.saturating_mul(u64::from(responses));
    (ends.requests.is_none() || has_all_requests(ends, up)) && down.datagrams >= expected
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(datagrams: u64) -> Passed {
        Passed { datagrams, bytes: 0 }
    }

    #[test]
    fn a_session_is_complete_when_all_responses_have_come() {
        let complete =
            |requests, responses, up, down| is_complete(&Ends { requests, responses }, passed(up), passed(down));
        assert!(!complete(None, None, 1, 1), "nothing is expected: only silence ends it");
        assert!(!complete(None, Some(1), 1, 0) && complete(None, Some(1), 1, 1) && complete(None, Some(1), 1, 2));
        assert!(!complete(None, Some(2), 2, 3) && complete(None, Some(2), 2, 4), "for each datagram of the client");
        assert!(complete(None, Some(0), 1, 0), "no response is expected");
        assert!(!complete(Some(2), Some(1), 1, 1) && complete(Some(2), Some(1), 2, 2));
        assert!(!complete(Some(1), None, 1, 1), "any number of responses may follow");
    }

    #[test]
    fn no_more_replies_pass_than_are_expected() {
        let expected =
            |requests, responses, up, down| expected_replies(&Ends { requests, responses }, passed(up), passed(down));
        assert_eq!(expected(None, None, 1, 9), None);
        assert_eq!((expected(None, Some(2), 1, 0), expected(None, Some(2), 3, 5)), (Some(2), Some(1)));
        assert_eq!((expected(None, Some(2), 1, 3), expected(Some(2), Some(1), 1, 1)), (Some(0), Some(1)));
    }

    #[test]
    fn so_many_datagrams_of_a_client_are_a_session() {
        let all = |requests, up| has_all_requests(&Ends { requests, responses: None }, passed(up));
        assert!(!all(None, 1 << 40) && !all(Some(2), 1) && all(Some(2), 2));
    }
}
