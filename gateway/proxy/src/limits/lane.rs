//! A lane's part in rates that hold over lanes: its tables, and what the other lanes are to be told.

use super::table::{RateTable, Use};
use super::{KeyHasher, Levels, Rate, RateKey, RateLimit, SHARE_KEYS, SharedRates, share_ms};
use crate::lane_state::LaneSnapshot;
use crate::snapshot::Routing;
use sealane_http::Fields;
use sealane_lane::{Context, Deadline, Millis};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// How long a client is to wait while nothing may pass.
const CLOSED_MS: Millis = 1000;

/// Wakes the lane to tell the other lanes what has passed.
pub(crate) const RATES_TIMER: u64 = (1 << 63) | (1 << 61);

/// What a lane has let pass of one limit, for the other lanes.
#[derive(Clone, Debug)]
pub struct Passed {
    limit: u64,
    rate: Rate,
    uses: Vec<Use>,
}

impl Passed {
    /// These uses of a limit.
    pub fn new(limit: u64, rate: Rate, uses: Vec<Use>) -> Self {
        Self { limit, rate, uses }
    }

    /// How many keys.
    pub(crate) fn len(&self) -> usize {
        self.uses.len()
    }

    /// Which limit: the same number in all lanes, and at all gateways with a limit of this name.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The limit's rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// What has passed.
    pub fn uses(&self) -> &[Use] {
        &self.uses
    }
}

/// What could not be told to a lane because its mailbox was full: told the next time, all uses of a key together.
#[derive(Default)]
struct Untold {
    /// By limit and key.
    uses: HashMap<(u64, u64), (u32, Rate)>,
}

impl Untold {
    /// Keeps a telling. Returns how many keys there was no room for.
    fn keep(&mut self, passed: &Passed) -> u64 {
        let mut lost = 0;
        for used in &passed.uses {
            let place = (passed.limit, used.key);
            if self.uses.len() >= SHARE_KEYS && !self.uses.contains_key(&place) {
                lost += 1;
                continue;
            }
            let (count, rate) = self.uses.entry(place).or_insert((0, passed.rate));
            (*count, *rate) = (count.saturating_add(used.count), passed.rate);
        }
        lost
    }

    /// All that was kept, by limit.
    fn take(&mut self) -> Vec<Passed> {
        let mut out: Vec<Passed> = Vec::new();
        for ((limit, key), (count, rate)) in self.uses.drain() {
            let used = Use { key, count };
            match out.iter_mut().find(|p| p.limit == limit) {
                Some(passed) => passed.uses.push(used),
                None => out.push(Passed { limit, rate, uses: vec![used] }),
            }
        }
        out
    }
}

struct Limit {
    id: u64,
    limit: RateLimit,
    table: RateTable,
}

impl Limit {
    fn same(&self, other: &RateLimit) -> bool {
        let shape = |l: &RateLimit| (l.rate, l.entries, l.ipv4_prefix, l.ipv6_prefix);
        let named = self.limit.name == other.name && self.limit.key == other.key;
        named && shape(&self.limit) == shape(other) && self.limit.hasher.same(&other.hasher)
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
    by_server_name: bool,
    /// To tell the other lanes.
    timer: Deadline,
    /// How often the other lanes are told.
    share_ms: Millis,
    /// When the other lanes are told next.
    tell_at: Option<Millis>,
    /// By the slot of the lane. In its own place: what control could not be told.
    untold: Vec<Untold>,
    /// The rates are those of all gateways together.
    shared: Option<Arc<SharedRates>>,
}

impl LaneLimits {
    /// Takes a new snapshot in; what is limited as before is remembered.
    pub fn refresh(&mut self, lane: &LaneSnapshot, lanes: usize) {
        self.share_ms = share_ms(lanes);
        let routing: &Routing = &lane.snapshot.routing;
        let mut old: Vec<Limit> = std::mem::take(&mut self.requests);
        old.extend(self.connections.take());
        old.extend(self.handshakes.take());
        self.shared.clone_from(&lane.snapshot.shared_rates);
        let hash = self.shared.as_ref().map(|shared| shared.hash);
        let mut keep = |limit: &RateLimit, kind: &str| {
            let hasher = hash.map_or_else(|| limit.hasher.clone(), KeyHasher::Fleet);
            let limit = RateLimit { name: format!("{kind}{}", limit.name), hasher, ..limit.clone() };
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
    }

    /// Some limit counts by the name in the hello.
    #[inline]
    pub fn by_server_name(&self) -> bool {
        self.by_server_name
    }

    /// Whether a limit counts requests by the client's address.
    pub fn counts_by_address(&self, limit: usize) -> bool {
        self.requests.get(limit).is_some_and(|l| l.limit.key == RateKey::Address)
    }

    /// Lets a request pass a limit, or says after how many milliseconds to come again.
    pub fn request(
        &mut self,
        cx: &mut Context,
        limit: usize,
        peer: IpAddr,
        name: &[u8],
        fields: &Fields,
    ) -> Result<(), Millis> {
        let is_closed = self.is_closed();
        let Some(l) = self.requests.get_mut(limit) else { return Ok(()) };
        let now = cx.now();
        let mut pass = |key| if is_closed { Err(CLOSED_MS) } else { l.table.pass(key, now) };
        let passed = match &l.limit.key {
            RateKey::Address => Some(pass(l.limit.address_key(peer))),
            RateKey::ServerName => Some(pass(l.limit.text_key(name))),
            // All of them are counted (the route bounds their number), and the longest wait holds.
            RateKey::Field(field) => fields.alike(field.as_bytes()).map(|value| pass(l.limit.text_key(value))).max(),
        };
        let Some(passed) = passed else { return Ok(()) };
        if !is_closed {
            self.note(cx);
        }
        passed
    }

    /// Whether nothing may pass, because the store does not answer.
    #[inline]
    fn is_closed(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.is_closed())
    }

    /// The rates of all gateways, if these are those.
    pub fn shared(&self) -> Option<Arc<SharedRates>> {
        self.shared.clone()
    }

    /// Whether a new connection of this client may be served.
    #[inline]
    pub fn connection(&mut self, cx: &mut Context, peer: IpAddr) -> bool {
        let is_closed = self.is_closed();
        let Some(l) = &mut self.connections else { return true };
        let passed = !is_closed && l.table.pass(l.limit.address_key(peer), cx.now()).is_ok();
        self.note(cx);
        passed
    }

    /// Whether a new session of this client may be made.
    #[inline]
    pub fn handshake(&mut self, cx: &mut Context, peer: IpAddr) -> bool {
        let is_closed = self.is_closed();
        let Some(l) = &mut self.handshakes else { return true };
        let passed = !is_closed && l.table.pass(l.limit.address_key(peer), cx.now()).is_ok();
        self.note(cx);
        passed
    }

    /// Something has passed: the other lanes are to hear of it.
    fn note(&mut self, cx: &mut Context) {
        if self.tell_at.is_none() {
            let at = cx.now() + self.share_ms;
            self.tell_at = Some(at);
            self.timer.set_no_later(cx, RATES_TIMER, at);
        }
    }

    /// Keeps what a lane could not be told, for the next time. Returns how many keys there was no room for.
    pub fn keep(&mut self, cx: &mut Context, slot: usize, passed: &Passed) -> u64 {
        if self.untold.len() <= slot {
            self.untold.resize_with(slot + 1, Untold::default);
        }
        self.note(cx);
        self.untold[slot].keep(passed)
    }

    /// What a lane could not be told before.
    pub fn take_untold(&mut self, slot: usize) -> Vec<Passed> {
        self.untold.get_mut(slot).map(Untold::take).unwrap_or_default()
    }

    /// The timer has fired: what the other lanes are to be told.
    pub fn fired(&mut self, cx: &mut Context) -> Vec<Passed> {
        let mut out = Vec::new();
        if !self.timer.fired(cx, RATES_TIMER) {
            return out;
        }
        if self.tell_at.is_some_and(|at| at <= cx.now()) {
            self.tell_at = None;
            for l in self.requests.iter_mut().chain(&mut self.connections).chain(&mut self.handshakes) {
                let uses = l.table.tell();
                if !uses.is_empty() {
                    out.push(Passed { limit: l.id, rate: l.limit.rate, uses });
                }
                if l.table.has_news() {
                    self.tell_at = Some(cx.now() + self.share_ms);
                }
            }
        }
        if let Some(at) = self.tell_at {
            self.timer.set_no_later(cx, RATES_TIMER, at);
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

    /// What all gateways together have let pass.
    pub fn lower(&mut self, cx: &Context, levels: &Levels) {
        let limits = self.requests.iter_mut().chain(&mut self.connections).chain(&mut self.handshakes);
        for l in limits.filter(|l| l.id == levels.limit) {
            levels.levels.iter().for_each(|level| l.table.lower(level.key, level.micros, cx.now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_told_is_merged_and_bounded() {
        let mut untold = Untold::default();
        let rate = Rate { count: 1, per: std::time::Duration::from_secs(1), burst: 1 };
        let passed = |limit, key, count| Passed { limit, rate, uses: vec![Use { key, count }] };
        for _ in 0..1000 {
            assert_eq!(untold.keep(&passed(1, 5, 2)) + untold.keep(&passed(2, 5, 1)), 0);
        }
        let mut told = untold.take();
        told.sort_by_key(|p| p.limit);
        let of = |p: &Passed| (p.limit, p.uses.clone());
        let uses = |count| vec![Use { key: 5, count }];
        assert_eq!(told.iter().map(of).collect::<Vec<_>>(), [(1, uses(2000)), (2, uses(1000))]);
        assert!(untold.take().is_empty());
        let lost: u64 = (0..2 * SHARE_KEYS as u64).map(|key| untold.keep(&passed(1, key, 1))).sum();
        assert_eq!((lost, untold.uses.len()), (SHARE_KEYS as u64, SHARE_KEYS));
    }
}
