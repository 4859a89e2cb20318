//! One direction of a link: which packets are lost, held, changed or doubled, and when each is due. Without a clock.

use crate::config::{LinkConfig, SynData};
use crate::packet;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds.
pub(crate) type Nanos = u64;

/// What has happened to packets in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Packets that came out at the other end.
    pub delivered: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, TCP segments.
    pub segments: u64,
    /// Of these, TCP segments with data.
    pub data_segments: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Dropped since the queue was full.
    pub overflowed: u64,
    /// Dropped since data was in a SYN.
    pub syn_dropped: u64,
    /// SYNs that had their data taken out.
    pub syn_stripped: u64,
    /// SYNs with data that were answered with a reset.
    pub syn_reset: u64,
    /// Packets that came twice.
    pub duplicated: u64,
    /// Packets that were overtaken.
    pub reordered: u64,
}

/// What a link did to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Fate {
    /// It is, or was, on its way.
    Carried,
    /// Lost by chance.
    Lost,
    /// There was no room.
    Overflowed,
    /// It was a SYN with data.
    SynDropped,
    /// It was a SYN with data, and goes on without.
    SynStripped,
    /// It was a SYN with data; a reset comes back in its place.
    SynReset,
}

/// A small, good, seeded generator (SplitMix64).
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn happens(&mut self, share: f64) -> bool {
        share > 0.0 && self.share() < share
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    due: Nanos,
    order: u64,
    packet: Vec<u8>,
}

/// A packet that is due.
#[derive(Debug)]
pub(crate) struct Due {
    pub at: Nanos,
    pub packet: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Direction {
    config: LinkConfig,
    /// What the emulator itself adds to every packet's way; taken off its delay.
    compensation: Nanos,
    random: Random,
    held: BinaryHeap<Reverse<Held>>,
    order: u64,
    queued: usize,
    /// When the sender's turn at the rate comes.
    free: Nanos,
    /// When the packet before is due: nobody overtakes unasked.
    last: Nanos,
    pub counts: Counts,
}

impl Direction {
    /// `salt` keeps the two directions' choices apart.
    pub fn new(config: LinkConfig, salt: u64) -> Self {
        let random = Random(config.seed ^ salt.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self {
            config,
            compensation: 0,
            random,
            held: BinaryHeap::new(),
            order: 0,
            queued: 0,
            free: 0,
            last: 0,
            counts: Counts::default(),
        }
    }

    /// Another link from now on; what is under way stays as it is. The seed's sequence starts anew.
    pub fn reconfigure(&mut self, config: LinkConfig, salt: u64, compensation: Nanos) {
        let counts = self.counts;
        let held = std::mem::take(&mut self.held);
        let (order, queued, free, last) = (self.order, self.queued, self.free, self.last);
        *self = Self { held, order, queued, free, last, counts, compensation, ..Self::new(config, salt) };
    }

    /// Takes a packet that has come in at `now`.
    pub fn handle(&mut self, now: Nanos, mut packet: Vec<u8>) -> Fate {
        let mut fate = Fate::Carried;
        if let Some(segment) = packet::tcp(&packet).filter(packet::Segment::is_syn_with_data) {
            match self.config.syn_data {
                SynData::Pass => {}
                SynData::Drop => {
                    self.counts.syn_dropped += 1;
                    return Fate::SynDropped;
                }
                SynData::Strip => {
                    self.counts.syn_stripped += 1;
                    packet::strip(&mut packet, &segment);
                    fate = Fate::SynStripped;
                }
                SynData::Reset => {
                    self.counts.syn_reset += 1;
                    return Fate::SynReset;
                }
            }
            if let Some(later) = self.config.duplicate_syn {
                self.counts.duplicated += 1;
                self.schedule(now, packet.clone(), nanos(later));
            }
        }
        // The same number of draws for every packet: one setting does not change what another chooses.
        let lost = self.random.happens(self.config.loss);
        let twice = self.random.happens(self.config.duplicate);
        let late = self.random.happens(self.config.reorder);
        if lost {
            self.counts.lost += 1;
            return Fate::Lost;
        }
        if twice {
            self.counts.duplicated += 1;
            self.schedule(now, packet.clone(), 0);
        }
        let extra = if late { nanos(self.config.reorder_by) } else { 0 };
        self.counts.reordered += u64::from(late);
        if self.schedule(now, packet, extra) { fate } else { Fate::Overflowed }
    }

    /// Takes a packet that the far end of the other direction answers one that has come in there at `now` with: it leaves
    /// when that would have arrived.
    pub fn answer(&mut self, now: Nanos, packet: Vec<u8>) {
        let arrived = nanos(self.config.rtt) / 2;
        self.schedule(now, packet, arrived);
    }

    fn schedule(&mut self, now: Nanos, packet: Vec<u8>, extra: Nanos) -> bool {
        let len = packet.len();
        let mut start = now;
        if let Some(rate) = self.config.rate {
            if self.queued + len > self.config.queue {
                self.counts.overflowed += 1;
                return false;
            }
            let turn = self.free.max(now);
            self.free = turn + (len as u64 * 8_000_000_000) / rate;
            start = self.free;
        }
        let jitter = nanos(self.config.jitter);
        let around = if jitter > 0 { self.random.next() % (2 * jitter + 1) } else { 0 };
        let delay = nanos(self.config.rtt) / 2;
        let mut due = (start + delay + around + extra).saturating_sub(self.compensation + jitter).max(now);
        if extra == 0 {
            due = due.max(self.last);
            self.last = due;
        }
        self.order += 1;
        self.queued += len;
        self.held.push(Reverse(Held { due, order: self.order, packet }));
        true
    }

    /// When the next packet is due.
    pub fn next_due(&self) -> Option<Nanos> {
        self.held.peek().map(|Reverse(h)| h.due)
    }

    /// The next packet that is due by `now`.
    pub fn poll_due(&mut self, now: Nanos) -> Option<Due> {
        if self.next_due()? > now {
            return None;
        }
        let Reverse(held) = self.held.pop()?;
        self.queued -= held.packet.len();
        self.counts.delivered += 1;
        self.counts.bytes += held.packet.len() as u64;
        if let Some(segment) = packet::tcp(&held.packet) {
            self.counts.segments += 1;
            self.counts.data_segments += u64::from(segment.len > 0);
        }
        Some(Due { at: held.due, packet: held.packet })
    }
}

fn nanos(d: std::time::Duration) -> Nanos {
    d.as_nanos() as Nanos
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{flag, tests::build};
    use std::time::Duration;

    const MS: Nanos = 1_000_000;

    fn link(change: impl FnOnce(&mut LinkConfig)) -> Direction {
        let mut config = LinkConfig::with_rtt(Duration::from_millis(10));
        change(&mut config);
        Direction::new(config, 1)
    }

    fn run(d: &mut Direction, packets: u64, every: Nanos) -> Vec<(Nanos, u64)> {
        let mut out = Vec::new();
        for i in 0..packets {
            d.handle(i * every, i.to_be_bytes().to_vec());
        }
        while let Some(due) = d.poll_due(Nanos::MAX) {
            out.push((due.at, u64::from_be_bytes(due.packet.try_into().unwrap())));
        }
        out
    }

    #[test]
    fn every_packet_takes_half_the_rtt() {
        let out = run(&mut link(|_| ()), 5, MS);
        assert_eq!(out, (0..5).map(|i| (i * MS + 5 * MS, i)).collect::<Vec<_>>());
    }

    #[test]
    fn nothing_is_due_before_its_time_and_compensation_brings_it_forward() {
        let mut d = link(|_| ());
        d.reconfigure(LinkConfig::with_rtt(Duration::from_millis(10)), 1, MS / 10);
        d.handle(0, vec![1]);
        assert_eq!(d.next_due(), Some(5 * MS - MS / 10));
        assert!(d.poll_due(4 * MS).is_none());
        assert!(d.poll_due(5 * MS).is_some());
    }

    #[test]
    fn a_rate_spaces_packets_and_a_full_queue_drops() {
        // 8 bytes at 64 kbit/s take a millisecond each; five wait.
        let mut d = link(|c| (c.rate, c.queue) = (Some(64_000), 40));
        let out = run(&mut d, 8, 0);
        assert_eq!(out, (0..5).map(|i| ((i + 1) * MS + 5 * MS, i)).collect::<Vec<_>>());
        assert_eq!(d.counts.overflowed, 3);
    }

    #[test]
    fn jitter_stays_within_bounds_and_keeps_the_order() {
        let out = run(&mut link(|c| c.jitter = Duration::from_millis(2)), 1000, 10 * MS);
        for (at, i) in &out {
            let delay = at - i * 10 * MS;
            assert!((3 * MS..=7 * MS).contains(&delay), "{delay}");
        }
        let mean = out.iter().map(|(at, i)| at - i * 10 * MS).sum::<u64>() / 1000;
        assert!(mean.abs_diff(5 * MS) < MS / 5, "{mean}");
        let dense = run(&mut link(|c| c.jitter = Duration::from_millis(2)), 1000, MS / 10);
        assert!(dense.windows(2).all(|w| w[0].1 < w[1].1));
    }

    #[test]
    fn chances_follow_the_seed_and_their_shares() {
        let mut a = link(|c| (c.loss, c.duplicate, c.reorder) = (0.1, 0.1, 0.1));
        let mut b = link(|c| (c.loss, c.duplicate, c.reorder) = (0.1, 0.1, 0.1));
        let mut c = link(|c| (c.loss, c.duplicate, c.reorder, c.seed) = (0.1, 0.1, 0.1, 2));
        let (x, y, z) = (run(&mut a, 5000, MS), run(&mut b, 5000, MS), run(&mut c, 5000, MS));
        assert_eq!(x, y);
        assert_ne!(x, z);
        for n in [a.counts.lost, a.counts.duplicated, a.counts.reordered] {
            assert!((400..600).contains(&n), "{:?}", a.counts);
        }
        assert!(x.windows(2).any(|w| w[0].1 > w[1].1), "reordered");
    }

    #[test]
    fn data_in_syns_is_dropped_stripped_or_doubled_and_other_packets_pass() {
        let syn = build(4, flag::SYN, b"data");
        let plain = build(4, flag::SYN, b"");
        let mut d = link(|c| c.syn_data = SynData::Drop);
        assert_eq!(d.handle(0, syn.clone()), Fate::SynDropped);
        assert_eq!(d.handle(0, plain.clone()), Fate::Carried);
        assert_eq!(d.poll_due(Nanos::MAX).unwrap().packet, plain);
        assert!(d.poll_due(Nanos::MAX).is_none());
        let mut d = link(|c| c.syn_data = SynData::Strip);
        assert_eq!(d.handle(0, syn.clone()), Fate::SynStripped);
        assert_eq!(d.poll_due(Nanos::MAX).unwrap().packet, plain);
        let mut d = link(|c| c.duplicate_syn = Some(Duration::from_millis(3)));
        d.handle(0, syn.clone());
        d.handle(0, plain.clone());
        let out: Vec<Nanos> = std::iter::from_fn(|| d.poll_due(Nanos::MAX)).map(|x| x.at).collect();
        assert_eq!(out, [5 * MS, 5 * MS, 8 * MS]);
        assert_eq!((d.counts.segments, d.counts.data_segments), (3, 2));
    }

    #[test]
    fn a_reset_comes_back_after_a_round_trip() {
        let mut there = link(|c| c.syn_data = SynData::Reset);
        assert_eq!(there.handle(0, build(4, flag::SYN, b"data")), Fate::SynReset);
        assert_eq!(there.handle(0, build(4, flag::SYN, b"")), Fate::Carried);
        assert_eq!((there.counts.syn_reset, there.poll_due(Nanos::MAX).is_some()), (1, true));
        assert!(there.poll_due(Nanos::MAX).is_none());
        let mut back = link(|_| ());
        back.answer(0, vec![1]);
        back.handle(6 * MS, vec![2]);
        let out: Vec<Nanos> = std::iter::from_fn(|| back.poll_due(Nanos::MAX)).map(|x| x.at).collect();
        assert_eq!(out, [10 * MS, 11 * MS]);
    }
}
