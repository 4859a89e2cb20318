//! The order in which responses are sent (RFC 9218): where windows are short, the first have it all.

use super::connection::H3Connection;
use super::stream::Stream;
use crate::exchange::priority::Priority;
use quinn_proto::StreamId;
use std::cmp::Reverse;

/// Places for responses of one urgency.
const LEVEL: i32 = 1 << 28;
/// Priorities that are kept of requests that have not come yet.
const EARLY_PRIORITIES: usize = 64;

/// A response's place among others, for quinn-proto: the highest first, those alike in turn. So responses that are not
/// incremental have each a place of their own, in the order of the requests, before the incremental ones of their urgency.
fn rank(priority: Priority, id: StreamId) -> i32 {
    let level = i32::MIN + (7 - i32::from(priority.urgency.min(7))) * LEVEL;
    if priority.incremental { level } else { level + (LEVEL - 1 - i32::try_from(id.index()).unwrap_or(LEVEL)).max(1) }
}

impl H3Connection {
    /// A request has begun: its response gets its place, by its field or by what came ahead of it (RFC 9218 §7).
    pub fn place(&mut self, index: u32, field: Option<Priority>) {
        let Some(id) = self.streams.get(index as usize).map(|s| s.id) else { return };
        self.priority_budget.served();
        let early = self.early_priorities.iter().position(|(i, _)| *i == id);
        let early = early.and_then(|at| self.early_priorities.remove(at)).map(|(_, priority)| priority);
        self.prioritise(index, early.or(field).unwrap_or_default());
    }

    /// PRIORITY_UPDATE: the client's last word on a response.
    pub(super) fn reprioritise(&mut self, id: StreamId, priority: Priority) {
        let index = self.by_id.get(&id).copied();
        // Its request has begun, or even its response has been read to its end, and waits here.
        let placed = |s: &Stream| s.exchange().is_some() || s.is_served();
        match index.map(|index| (index, self.streams.get(index as usize).is_some_and(placed))) {
            Some((index, true)) => self.prioritise(index, priority),
            None if u64::from(id) < self.next_id => {}
            _ => {
                self.early_priorities.retain(|(i, _)| *i != id);
                if self.early_priorities.len() >= EARLY_PRIORITIES {
                    self.early_priorities.pop_front();
                }
                self.early_priorities.push_back((id, priority));
            }
        }
    }

    fn prioritise(&mut self, index: u32, priority: Priority) {
        let Some(stream) = self.streams.get_mut(index as usize) else { return };
        stream.priority = priority;
        // It fails only where that direction is at its end.
        let _ = self.quic.send_stream(stream.id).set_priority(rank(priority, stream.id));
    }

    /// Takes the streams that have something to send, in the order in which they may send.
    pub(super) fn take_staged(&mut self) -> Vec<u32> {
        let mut staged = std::mem::take(&mut self.staged);
        if staged.len() > 1 {
            let streams = &self.streams;
            staged.sort_by_cached_key(|index| {
                let Some(s) = streams.get(*index as usize) else { return (Reverse(0), 0) };
                (Reverse(rank(s.priority, s.id)), if s.priority.incremental { s.turn } else { 0 })
            });
        }
        staged
    }

    /// Whether a stream goes before another that is not of its rank.
    pub(super) fn goes_before(&self, index: u32, other: u32) -> bool {
        let rank = |index: u32| self.streams.get(index as usize).map(|s| rank(s.priority, s.id));
        rank(index) > rank(other)
    }
}
