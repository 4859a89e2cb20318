//! What becomes of a request on its way to upstreams, where its route says more than to which group it goes.
//!
//! A route that says no more has [`Action::Proxy`](crate::snapshot::Action::Proxy), whose requests come through none of this.

use crate::mirrors::Mirror;

/// Where the requests of a route go, and what else is done on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// Index into the snapshot's upstreams.
    pub upstream: usize,
    /// Where copies go.
    pub mirror: Option<Mirror>,
}

impl Forwarding {
    /// All upstream groups, by index.
    pub fn upstreams(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.upstream).chain(self.mirror.as_ref().map(|mirror| mirror.upstream))
    }

    /// The group that all requests go to, if there is only one.
    pub fn only_upstream(&self) -> Option<usize> {
        Some(self.upstream)
    }
}
