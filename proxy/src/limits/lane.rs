//! A lane's part in what holds over lanes: its rate tables, and the groups that it has to mind.

use super::table::{RateTable, Use};
use super::{RateKey, RateLimit, SHARE_MS};
use crate::lane_state::{LaneSnapshot, LaneUpstream};
use crate::snapshot::Routing;
use sealane_lane::{Context, Millis};
use std::net::IpAddr;
use std::rc::Rc;

/// Wakes the lane for its queues and to tell the other lanes what has passed.
pub(crate) const ROUTING_TIMER: u64 = (1 << 63) | (1 << 61);

/// What a lane has let pass of one limit, for the other lanes.
#[derive(Clone, Debug)]
pub struct Passed {
    limit: u64,
    uses: Vec<Use>,
}

struct Limit {
    id: u64,
    limit: RateLimit,
    table: RateTable,
}

impl Limit {
    fn same(&self, other: &RateLimit) -> bool {
        let shape = |l: &RateLimit| (l.rate, l.entries, l.ipv4_prefix, l.ipv6_prefix);
        self.limit.name == other.name && self.limit.key == other.key && shape(&self.limit) == shape(other)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct LaneLimits {
    /// As in the snapshot.
    requests: Vec<Limit>,
    connections: Option<Limit>,
    handshakes: Option<Limit>,
    /// Some limit counts by the name in the hello.
    pub by_server_name: bool,
    /// Groups for which requests wait.
    pub queued: Vec<Rc<LaneUpstream>>,
    /// Groups whose servers have limits, and the version of their state that has been acknowledged.
    limited: Vec<(Rc<LaneUpstream>, u64)>,
    /// The earliest time for which the timer is armed.
    armed: Option<Millis>,
    /// When the other lanes are told next.
    tell_at: Option<Millis>,
}

impl LaneLimits {
    /// Takes a new snapshot in; what is limited as before is remembered.
    pub fn refresh(&mut self, lane: &LaneSnapshot) {
        let routing: &Routing = &lane.snapshot.routing;
        let mut old: Vec<Limit> = std::mem::take(&mut self.requests);
        old.extend(self.connections.take());
        old.extend(self.handshakes.take());
        let mut keep = |limit: &RateLimit, kind: &str| {
            let limit = RateLimit { name: format!("{kind}{}", limit.name), ..limit.clone() };
            match old.iter().position(|l| l.same(&limit)) {
                Some(at) => old.swap_remove(at),
                None => {
                    let id = limit
                        .name
                        .bytes()
                        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
                    Limit { id, table: RateTable::new(limit.rate, limit.entries), limit }
                }
            }
        };
        self.requests = routing.rate_limits.iter().map(|l| keep(l, "requests ")).collect();
        self.connections = routing.connection_rate.as_ref().map(|l| keep(l, ""));
        self.handshakes = routing.handshake_rate.as_ref().map(|l| keep(l, ""));
        self.by_server_name = self.requests.iter().any(|l| l.limit.key == RateKey::ServerName);
        let limited = lane.upstreams.iter().filter(|u| u.upstream.max_connections.is_some());
        self.limited = limited.map(|u| (u.clone(), u64::MAX)).collect();
    }

    /// Lets a request pass a limit, or says after how many milliseconds to come again.
    pub fn request<'f>(
        &mut self,
        cx: &mut Context,
        limit: usize,
        peer: IpAddr,
        name: &[u8],
        field: impl FnOnce(&str) -> Option<&'f [u8]>,
    ) -> Result<(), Millis> {
        let Some(l) = self.requests.get_mut(limit) else { return Ok(()) };
        let key = match &l.limit.key {
            RateKey::Address => l.limit.address_key(peer),
            RateKey::ServerName => l.limit.text_key(name),
            RateKey::Field(name) => match field(name) {
                Some(value) => l.limit.text_key(value),
                None => return Ok(()),
            },
        };
        let passed = l.table.pass(key, cx.now());
        self.note(cx);
        passed
    }

    /// Whether a new connection of this client may be served.
    #[inline]
    pub fn connection(&mut self, cx: &mut Context, peer: IpAddr) -> bool {
        let Some(l) = &mut self.connections else { return true };
        let passed = l.table.pass(l.limit.address_key(peer), cx.now()).is_ok();
        self.note(cx);
        passed
    }

    /// Whether a new session of this client may be made.
    #[inline]
    pub fn handshake(&mut self, cx: &mut Context, peer: IpAddr) -> bool {
        let Some(l) = &mut self.handshakes else { return true };
        let passed = l.table.pass(l.limit.address_key(peer), cx.now()).is_ok();
        self.note(cx);
        passed
    }

    /// Something has passed: the other lanes are to hear of it.
    fn note(&mut self, cx: &mut Context) {
        if self.tell_at.is_none() {
            let at = cx.now() + SHARE_MS;
            self.tell_at = Some(at);
            self.wake_at(cx, at);
        }
    }

    /// The timer fires at this time or before.
    pub fn wake_at(&mut self, cx: &mut Context, at: Millis) {
        if self.armed.is_none_or(|armed| at < armed) {
            self.armed = Some(at);
            cx.timers.arm(ROUTING_TIMER, at);
        }
    }

    /// The timer has fired: what the other lanes are to be told. Queues are minded at the end of each turn.
    pub fn fired(&mut self, cx: &mut Context, waits_until: Option<Millis>) -> Vec<Passed> {
        self.armed = None;
        let mut out = Vec::new();
        if self.tell_at.is_some_and(|at| at <= cx.now()) {
            self.tell_at = None;
            for l in self.requests.iter_mut().chain(&mut self.connections).chain(&mut self.handshakes) {
                let uses = l.table.tell();
                if !uses.is_empty() {
                    out.push(Passed { limit: l.id, uses });
                }
                if l.table.has_news() {
                    self.tell_at = Some(cx.now() + SHARE_MS);
                }
            }
        }
        if let Some(at) = self.tell_at.into_iter().chain(waits_until).min() {
            self.wake_at(cx, at);
        }
        out
    }

    /// Another lane has let something pass.
    pub fn heard(&mut self, cx: &Context, passed: &Passed) {
        let limits = self.requests.iter_mut().chain(&mut self.connections).chain(&mut self.handshakes);
        for l in limits.filter(|l| l.id == passed.limit) {
            passed.uses.iter().for_each(|u| l.table.debit(*u, cx.now()));
        }
    }

    /// Tells control that this lane goes by the newest grants.
    #[inline]
    pub fn acknowledge(&mut self) {
        for (upstream, seen) in &mut self.limited {
            let version = upstream.upstream.group.version();
            if version != *seen {
                *seen = version;
                upstream.balancer.servers().iter().for_each(|s| s.acknowledge());
            }
        }
    }
}
