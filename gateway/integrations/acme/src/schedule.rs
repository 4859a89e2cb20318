//! When a certificate is renewed, and when an attempt that failed is repeated. Functions of numbers: seconds since 1970,
//! and a random share of 1.

use std::time::{SystemTime, UNIX_EPOCH};

/// The least time from one order for a name to the next.
pub(crate) const SPACING: u64 = 10;
/// The first wait after a failure. Let's Encrypt allows five failed validations of a name in an hour.
const FIRST_WAIT: u64 = 60;
/// The longest.
pub(crate) const LONGEST_WAIT: u64 = 86_400;

/// The time of day.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// When a certificate is renewed: after two thirds of its life, give or take a thirtieth, so that certificates that were
/// issued together are not renewed together.
pub(crate) fn renewal(not_before: u64, not_after: u64, share: f64) -> u64 {
    let life = not_after.saturating_sub(not_before);
    not_before + (life as f64 * (2.0 / 3.0 - 1.0 / 30.0 + share / 15.0)) as u64
}

/// The same where the authority has said when it would like it (RFC 9773 §4.2): at a random moment of its window. Never in the
/// last fifth of the certificate's life: an authority must not make us let it expire.
pub(crate) fn renewal_in(window: (u64, u64), not_before: u64, not_after: u64, share: f64) -> u64 {
    let (start, end) = window;
    let chosen = start + ((end.saturating_sub(start)) as f64 * share) as u64;
    chosen.min(not_after.saturating_sub(not_after.saturating_sub(not_before) / 5))
}

/// The least time from one order for a name to the next, by the life of the certificate: whatever an authority issues or
/// suggests, and whatever the clock says, a certificate is not ordered again and again.
pub(crate) fn spacing(life: Option<u64>) -> u64 {
    life.map_or(SPACING, |life| (life / 60).clamp(SPACING, LONGEST_WAIT))
}

/// A time to wait for, as it was computed earlier. No wait is longer than `longest`: one that ends later was computed when the
/// clock ran ahead, and counts no more.
pub(crate) fn genuine(at: u64, now: u64, longest: u64) -> u64 {
    if at > now.saturating_add(longest) { now } else { at }
}

/// How long to wait after so many failures in a row: a minute, then twice as long each time, up to a day; half of it is random.
/// Certificates that live for less than an hour wait for a shorter time: a sixtieth of their life at first. What the authority
/// demands holds in every case.
pub(crate) fn back_off(failures: u32, life: Option<u64>, demanded: Option<u64>, share: f64) -> u64 {
    let first = life.map_or(FIRST_WAIT, |life| (life / 60).clamp(1, FIRST_WAIT));
    let whole = first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(LONGEST_WAIT);
    let wait = whole / 2 + (whole as f64 / 2.0 * share) as u64;
    wait.max(1).max(demanded.unwrap_or(0).min(LONGEST_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    #[test]
    fn renewal_is_around_two_thirds_of_the_life() {
        assert_eq!(renewal(0, 90 * DAY, 0.0) / DAY, 57);
        assert_eq!(renewal(0, 90 * DAY, 1.0) / DAY, 63);
        assert_eq!(renewal(1000, 1060, 0.5), 1040);
        // A certificate that ends before it begins.
        assert_eq!(renewal(1000, 10, 0.5), 1000);
    }

    #[test]
    fn the_authority_chooses_the_moment_but_not_the_end() {
        assert_eq!(renewal_in((100, 200), 0, 1000, 0.5), 150);
        assert_eq!(renewal_in((5, 5), 0, 1000, 0.9), 5);
        assert_eq!(renewal_in((990, 2000), 0, 1000, 1.0), 800);
        assert_eq!(renewal_in((u64::MAX, 0), 0, 1000, 1.0), 800);
    }

    #[test]
    fn orders_are_spaced_by_the_life_of_the_certificate() {
        assert_eq!(spacing(None), 10);
        assert_eq!(spacing(Some(60)), 10);
        assert_eq!(spacing(Some(90 * DAY)), DAY);
        assert_eq!(spacing(Some(6 * 3600)), 360);
    }

    #[test]
    fn a_wait_that_began_when_the_clock_ran_ahead_ends_now() {
        let now = 1_000_000_000;
        assert_eq!(genuine(now + DAY, now, DAY), now + DAY);
        assert_eq!(genuine(now + 365 * DAY, now, DAY), now);
        assert_eq!(genuine(0, now, DAY), 0);
        assert_eq!(genuine(u64::MAX, u64::MAX, DAY), u64::MAX);
    }

    #[test]
    fn waits_double_up_to_a_day() {
        assert_eq!(back_off(1, None, None, 1.0), 60);
        assert_eq!(back_off(1, None, None, 0.0), 30);
        assert_eq!(back_off(3, None, None, 1.0), 240);
        assert_eq!(back_off(40, None, None, 1.0), DAY);
        assert_eq!(back_off(1, Some(60), None, 1.0), 1);
        assert_eq!(back_off(1, Some(90 * DAY), None, 1.0), 60);
        assert_eq!(back_off(1, None, Some(3600), 0.0), 3600);
        assert_eq!(back_off(1, None, Some(u64::MAX), 0.0), DAY, "nobody makes us wait for ever");
    }
}
