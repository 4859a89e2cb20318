//! Rates of peers: what comes above the rate is dropped, as a slow link with a full queue does it. TCP inside the tunnel then sends
//! more slowly.
//!
//! A bucket is kept as the time at which it would be full again (the virtual scheduling algorithm of ITU-T I.371): it needs no timer,
//! and a packet costs one division. Peers without rates have no buckets.

use crate::plane::Rates;
use sealane_lane::Millis;
use std::num::NonZeroU64;

/// What a peer may send or receive at once after a pause: so much time of its rate, and at least some of the largest packets.
const BURST: u64 = 250 * NANOS_PER_MILLI;
/// In bytes. A peer begins with it, and not with a full burst: who connects again and again would get one each time.
const LEAST_BURST: u64 = 32 << 10;

const NANOS_PER_MILLI: u64 = 1_000_000;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// One direction.
#[derive(Debug)]
struct Bucket {
    /// Bytes per second.
    rate: NonZeroU64,
    /// In nanoseconds of the rate.
    burst: u64,
    /// When it is full again, in nanoseconds.
    full_at: u64,
}

impl Bucket {
    /// With the least burst in it.
    fn new(rate: NonZeroU64, now: Millis) -> Self {
        let least = LEAST_BURST * NANOS_PER_SECOND / rate;
        let burst = least.max(BURST);
        Self { rate, burst, full_at: nanos(now).saturating_add(burst - least) }
    }

    /// Takes a packet's bytes out. False: there are not enough, and none are taken.
    #[inline]
    fn take(&mut self, bytes: usize, now: Millis) -> bool {
        let now = nanos(now);
        // Packets have 64 KiB at most, so the product is far from its limit.
        let full_at = self.full_at.max(now).saturating_add(bytes as u64 * NANOS_PER_SECOND / self.rate);
        let has_room = full_at - now <= self.burst;
        if has_room {
            self.full_at = full_at;
        }
        has_room
    }
}

fn nanos(now: Millis) -> u64 {
    now.saturating_mul(NANOS_PER_MILLI)
}

/// The buckets of a peer.
#[derive(Debug)]
pub(super) struct Buckets {
    upload: Option<Bucket>,
    download: Option<Bucket>,
}

impl Buckets {
    /// Those of a peer that begins now. `None`: it has no rates.
    pub(super) fn new(rates: Rates, now: Millis) -> Option<Box<Self>> {
        let bucket = |rate| Bucket::new(rate, now);
        let buckets = Self { upload: rates.upload.map(bucket), download: rates.download.map(bucket) };
        (!rates.is_unlimited()).then(|| Box::new(buckets))
    }

    /// Whether a packet from the peer may pass.
    #[inline]
    pub(super) fn upload(&mut self, bytes: usize, now: Millis) -> bool {
        self.upload.as_mut().is_none_or(|bucket| bucket.take(bytes, now))
    }

    /// Whether a packet to the peer may pass.
    #[inline]
    pub(super) fn download(&mut self, bytes: usize, now: Millis) -> bool {
        self.download.as_mut().is_none_or(|bucket| bucket.take(bytes, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(upload: u64, download: u64) -> Rates {
        Rates { upload: NonZeroU64::new(upload), download: NonZeroU64::new(download) }
    }

    /// Offers packets of 1,000 bytes, `each` of them in every millisecond of `time`. Returns how many bytes have passed.
    fn offer(bucket: &mut Bucket, time: std::ops::Range<Millis>, each: usize) -> u64 {
        time.map(|now| (0..each).filter(|_| bucket.take(1000, now)).count() as u64 * 1000).sum()
    }

    #[test]
    fn a_peer_gets_its_rate_and_a_burst_and_no_more() {
        for rate in [8_000, 1_250_000, 125_000_000] {
            let mut bucket = Bucket::new(NonZeroU64::new(rate).unwrap(), 0);
            let burst = (rate / 4).max(LEAST_BURST);
            // Twice as much as it may have, for ten seconds.
            let each = (rate as usize * 2 / 1_000_000).max(1);
            let passed = offer(&mut bucket, 0..10_000, each);
            let most = 10 * rate + LEAST_BURST;
            assert!(passed <= most && passed + most / 50 + 1000 >= most, "{rate}: {passed} of {most}");
            // After a pause, however long, there is one burst again.
            let later = 3_600_000;
            let passed = offer(&mut bucket, later..later + 1, usize::try_from(burst / 1000).unwrap() * 3);
            assert!(passed <= burst && passed + 1000 >= burst, "{rate}: {passed} of {burst}");
        }
    }

    /// Who connects again and again gets no more than the least burst each time.
    #[test]
    fn a_new_connection_begins_with_the_least_burst() {
        for rate in [8_000, 1_250_000, 12_500_000_000] {
            for now in [0, 5_000] {
                let mut bucket = Bucket::new(NonZeroU64::new(rate).unwrap(), now);
                let passed = offer(&mut bucket, now..now + 1, 100);
                assert!(passed <= LEAST_BURST && passed + 1000 >= LEAST_BURST, "{rate}: {passed}");
            }
        }
    }

    #[test]
    fn less_than_the_rate_always_passes() {
        let mut bucket = Bucket::new(NonZeroU64::new(2_000_000).unwrap(), 0);
        assert_eq!(offer(&mut bucket, 0..60_000, 2), 2 * 1000 * 60_000);
    }

    /// The largest packet passes at the lowest rate, and what is refused costs nothing.
    #[test]
    fn no_packet_is_too_large_for_ever() {
        let mut bucket = Bucket::new(NonZeroU64::new(8_000).unwrap(), 0);
        assert!(bucket.take(9_000, 0));
        while bucket.take(9_000, 0) {}
        let full_at = bucket.full_at;
        assert!(!bucket.take(9_000, 1) && bucket.full_at == full_at);
        assert!(bucket.take(9_000, 10_000));
        // Clocks and sizes at their ends.
        let mut bucket = Bucket::new(NonZeroU64::new(u64::MAX).unwrap(), 0);
        assert!(bucket.take(65_535, 0));
        bucket.take(65_535, Millis::MAX);
        let mut bucket = Bucket::new(NonZeroU64::new(1).unwrap(), Millis::MAX);
        assert!(bucket.take(1_000, Millis::MAX / NANOS_PER_MILLI));
    }

    #[test]
    fn directions_are_counted_apart() {
        assert!(Buckets::new(Rates::default(), 0).is_none());
        let mut buckets = Buckets::new(rates(8_000, 0), 0).unwrap();
        while buckets.upload(1_000, 0) {}
        assert!((0..1_000).all(|_| buckets.download(1_000, 0)), "it has no rate");
        let mut buckets = Buckets::new(rates(8_000, 8_000), 0).unwrap();
        while buckets.upload(1_000, 0) {}
        assert!(buckets.download(1_000, 0));
        while buckets.download(1_000, 0) {}
        assert!(!buckets.upload(1_000, 0));
    }
}
