//! How long a connection may wait beside what its exchanges wait for: for a handshake, a request, room, or its end.
//!
//! A client's connection and one to a server have one table, whichever version of HTTP they speak. HTTP/3 has heads and last bytes
//! of streams in place of connections; the rows are the same.

use super::{GRACE, LINGER, Millis};

/// What a connection waits for: a row of its table, or two where both sides have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionWait {
    /// The end of a client's handshake, and what comes before it.
    Handshake,
    /// The ticket that a client's hello shows, from the store that gateways share.
    Ticket,
    /// A connection to a server, which is being made.
    Connect,
    /// The first byte of the first request, over HTTP/1.1.
    FirstRequest,
    /// The rest of a request's head, or of HTTP/2's preface.
    RequestHead,
    /// A request: there is none.
    Request,
    /// Room at the peer for what the gateway sends, over HTTP/2. Over other versions an exchange waits for that.
    Room,
    /// Room at the peer for the last bytes. No exchange uses the connection (HTTP/3: the stream) any more.
    LastBytes,
    /// The client's end of a connection on which the gateway has sent its own.
    ClientEnd,
    /// A client that was told by GOAWAY to open no more streams, and may not have heard of it.
    Goaway,
}

/// The limits of a connection. Of what its side does not wait for they are 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionLimits {
    /// For a client's handshake.
    pub handshake: Millis,
    /// For a shared ticket.
    pub ticket: Millis,
    /// For a connection to a server to come about.
    pub connect: Millis,
    /// For the head of a request.
    pub head: Millis,
    /// For the next request.
    pub keepalive: Millis,
    /// For the peer to take something.
    pub idle: Millis,
}

impl ConnectionLimits {
    /// The limits of a connection to a server, on which no request comes. Who waits for one to come about waits no longer than a try
    /// may take.
    #[inline(always)]
    pub fn of_server(connect: Millis, per_try: Option<Millis>, keepalive: Millis, idle: Millis) -> Self {
        let connect = per_try.map_or(connect, |per_try| connect.min(per_try));
        Self { connect, keepalive, idle, ..Self::default() }
    }
}

impl ConnectionWait {
    /// When a wait is over that began then.
    // Inlined so that a caller who waits for one thing pays for one addition.
    #[inline(always)]
    pub fn until(self, since: Millis, limits: &ConnectionLimits) -> Millis {
        since
            + match self {
                Self::Handshake => limits.handshake,
                Self::Ticket => limits.ticket,
                Self::Connect => limits.connect,
                Self::FirstRequest | Self::RequestHead => limits.head,
                Self::Request => limits.keepalive,
                Self::Room | Self::LastBytes => limits.idle,
                Self::ClientEnd => LINGER,
                Self::Goaway => GRACE,
            }
    }
}

/// How a connection stands that serves requests, as far as its own deadlines go.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionState {
    /// When the client's handshake must be over, while it goes on.
    pub handshake_until: Option<Millis>,
    /// Since when a request's head is coming (or HTTP/2's preface is awaited).
    pub head_since: Option<Millis>,
    /// Since when the peer has taken nothing of what waits to be sent to it.
    pub stuck_since: Option<Millis>,
    /// Since when there is no request.
    pub idle_since: Option<Millis>,
}

/// A deadline of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionDeadline {
    /// When it passes.
    pub at: Millis,
    /// What is waited for then.
    pub wait: ConnectionWait,
}

impl ConnectionState {
    /// The earliest deadline. `None`: the connection waits for nothing of its own.
    pub fn deadline(&self, limits: &ConnectionLimits) -> Option<ConnectionDeadline> {
        let after = |wait: ConnectionWait, since: Option<Millis>| {
            since.map(|since| ConnectionDeadline { at: wait.until(since, limits), wait })
        };
        // A connection is not idle while its handshake goes on, a request begins to come, or the peer has something to take.
        // Otherwise the end of idleness, which has passed, would hide the deadline of a peer that takes nothing.
        let is_busy = self.handshake_until.is_some() || self.head_since.is_some() || self.stuck_since.is_some();
        let all = [
            self.handshake_until.map(|at| ConnectionDeadline { at, wait: ConnectionWait::Handshake }),
            after(ConnectionWait::RequestHead, self.head_since),
            after(ConnectionWait::Room, self.stuck_since),
            after(ConnectionWait::Request, self.idle_since.filter(|_| !is_busy)),
        ];
        all.into_iter().flatten().min_by_key(|deadline| deadline.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ConnectionLimits =
        ConnectionLimits { handshake: 500, ticket: 20, connect: 900, head: 700, keepalive: 3000, idle: 1000 };

    fn next(state: ConnectionState) -> Option<(Millis, ConnectionWait)> {
        state.deadline(&LIMITS).map(|deadline| (deadline.at, deadline.wait))
    }

    #[test]
    fn every_wait_has_its_limit() {
        for (wait, limit) in [
            (ConnectionWait::Handshake, 500),
            (ConnectionWait::Ticket, 20),
            (ConnectionWait::Connect, 900),
            (ConnectionWait::FirstRequest, 700),
            (ConnectionWait::RequestHead, 700),
            (ConnectionWait::Request, 3000),
            (ConnectionWait::Room, 1000),
            (ConnectionWait::LastBytes, 1000),
            (ConnectionWait::ClientEnd, LINGER),
            (ConnectionWait::Goaway, GRACE),
        ] {
            assert_eq!(wait.until(100, &LIMITS), 100 + limit, "{wait:?}");
        }
    }

    #[test]
    fn a_connection_is_waited_for_no_longer_than_a_try_takes() {
        for (per_try, within) in [(None, 900), (Some(200), 200), (Some(5000), 900)] {
            let limits = ConnectionLimits::of_server(900, per_try, 3000, 1000);
            assert_eq!(ConnectionWait::Connect.until(100, &limits), 100 + within, "{per_try:?}");
        }
    }

    #[test]
    fn the_earliest_deadline_counts() {
        assert_eq!(next(ConnectionState::default()), None, "its exchanges have deadlines");
        let idle = ConnectionState { idle_since: Some(10), ..ConnectionState::default() };
        assert_eq!(next(idle), Some((3010, ConnectionWait::Request)));
        let stuck = ConnectionState { stuck_since: Some(20), ..idle };
        assert_eq!(next(stuck), Some((1020, ConnectionWait::Room)), "a GOAWAY may wait to be sent");
        // The peer does not take the GOAWAY that idleness has caused: the deadline for that stays.
        let late = ConnectionState { stuck_since: Some(2500), ..idle };
        assert_eq!(next(late), Some((3500, ConnectionWait::Room)));
        let head = ConnectionState { head_since: Some(30), ..stuck };
        assert_eq!(next(head), Some((730, ConnectionWait::RequestHead)));
        // Streams do not put the handshake off that is still to end behind early data.
        let early = ConnectionState { handshake_until: Some(500), idle_since: None, ..head };
        assert_eq!(next(early), Some((500, ConnectionWait::Handshake)));
    }

    #[test]
    fn a_connection_is_not_idle_while_something_begins() {
        let idle = ConnectionState { idle_since: Some(0), ..ConnectionState::default() };
        let handshake = ConnectionState { handshake_until: Some(90_000), ..idle };
        assert_eq!(next(handshake), Some((90_000, ConnectionWait::Handshake)));
        let head = ConnectionState { head_since: Some(90_000), ..idle };
        assert_eq!(next(head), Some((90_700, ConnectionWait::RequestHead)));
    }
}
