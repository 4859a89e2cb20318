//! A lane's part in a server: what it has under way there. A [`Lease`] counts one request, and stops counting when it
//! is dropped, however the request ends.

use crate::Failure;
use crate::snapshot::Server;
use crate::upstream::server_state::ServerState;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// One server as one lane knows it. It outlives reloads as long as requests are under way.
pub(crate) struct LaneServer {
    state: Arc<ServerState>,
    slot: usize,
    /// For hashing: the same in all lanes and all gateways.
    identity: u64,
    active: Cell<u32>,
    /// Control grants how many requests may be under way.
    limited: Cell<bool>,
}

impl LaneServer {
    pub fn new(server: &Server, slot: usize, limited: bool) -> Self {
        // FNV-1a, then mixed where it is used.
        let identity = server
            .name
            .bytes()
            .chain(server.address.to_string().into_bytes())
            .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Self { state: server.state.clone(), slot, identity, active: Cell::new(0), limited: Cell::new(limited) }
    }

    pub fn state(&self) -> &Arc<ServerState> {
        &self.state
    }

    pub fn identity(&self) -> u64 {
        self.identity
    }

    pub fn is_limited(&self) -> bool {
        self.limited.get()
    }

    /// After a reload it may be otherwise.
    pub fn set_limited(&self, limited: bool) {
        self.limited.set(limited);
    }

    /// Requests under way from this lane.
    pub fn active(&self) -> u32 {
        self.active.get()
    }

    /// Whether one more request may go there.
    #[inline]
    pub fn has_room(&self) -> bool {
        !self.limited.get() || self.active.get() < self.state.grant(self.slot)
    }

    /// Tells control that the lane goes by the newest grant.
    pub fn acknowledge(&self) {
        if self.limited.get() {
            self.state.grant(self.slot);
        }
    }

    /// Begins a request.
    pub fn lease(self: &Rc<Self>) -> Lease {
        self.active.set(self.active.get() + 1);
        if let Some(cell) = self.state.lane(self.slot) {
            cell.in_use.set(u64::from(self.active.get()));
            cell.requests.inc();
        }
        Lease(self.clone())
    }

    /// The server did what a server should.
    pub fn succeeded(&self) {
        if let Some(cell) = self.state.lane(self.slot) {
            cell.successes.inc();
        }
    }

    /// It could not be reached, broke the connection, talked nonsense or was silent.
    pub fn failed(&self, why: Failure) {
        if let Some(cell) = self.state.lane(self.slot) {
            cell.failed(why);
        }
    }

    /// Says how many requests wait for the server's group.
    pub fn set_waiting(&self, n: usize) {
        if let Some(cell) = self.state.lane(self.slot) {
            cell.waiting.set(n as u64);
        }
    }
}

/// One request under way at a server.
pub(crate) struct Lease(Rc<LaneServer>);

impl Lease {
    pub fn server(&self) -> &LaneServer {
        &self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let server = &self.0;
        server.active.set(server.active.get() - 1);
        if let Some(cell) = server.state.lane(server.slot) {
            cell.in_use.set(u64::from(server.active.get()));
        }
    }
}
