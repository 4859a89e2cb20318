//! When a response is fetched again.

use std::time::{SystemTime, UNIX_EPOCH};

/// The first wait after a failure, in seconds, and the longest.
const FIRST_WAIT: u64 = 60;
pub(crate) const LONGEST_WAIT: u64 = 3_600;
/// The longest time until something is fetched again, however long it is valid: an authority may revoke a certificate any day.
const LONGEST_USE: u64 = 3 * 86_400;
/// The shortest time from one response to the next request, whatever a responder says.
const SPACING: u64 = 10;

/// The time of day, in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// A random share of 1.
pub(crate) fn share() -> f64 {
    let mut bytes = [0; 4];
    // Without randomness all are fetched at the same time, which is no error.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}

/// When something that is valid in this time is fetched again: after half of its life and up to a tenth more, so that what was
/// fetched together is not fetched together again. There is time left for a responder that is down for long.
pub(crate) fn refresh((from, until): (u64, u64), now: u64, share: f64) -> u64 {
    let life = until.saturating_sub(from);
    let wanted = from.saturating_add(life / 2).saturating_add((life as f64 / 10.0 * share) as u64);
    // A response from a cache may be old already.
    let spacing = (until.saturating_sub(now) / 8).clamp(SPACING, LONGEST_WAIT);
    wanted.clamp(now.saturating_add(spacing), now.saturating_add(LONGEST_USE))
}

/// How long to wait after so many failures in a row: a minute, then twice as long each time, up to an hour; half of it is
/// random. Where a response in use expires soon, the first waits are shorter: a twentieth of what is left of it.
/// What the server demands holds up to the longest wait.
pub(crate) fn back_off(failures: u32, left: Option<u64>, demanded: Option<u64>, share: f64) -> u64 {
    let first = left.map_or(FIRST_WAIT, |left| (left / 20).clamp(SPACING / 2, FIRST_WAIT));
    let whole = first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(LONGEST_WAIT);
    let wait = (whole as f64 * (0.5 + share / 2.0)) as u64;
    wait.max(1).max(demanded.unwrap_or(0).min(LONGEST_WAIT))
}

/// A time to wait for, as it was computed earlier. One that is further away than any is was computed when the clock ran ahead.
pub(crate) fn genuine(at: u64, now: u64) -> u64 {
    if at > now.saturating_add(LONGEST_USE) { now } else { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    #[test]
    fn a_response_is_fetched_again_after_half_of_its_life() {
        assert_eq!(refresh((0, 4 * DAY), 0, 0.0), 2 * DAY);
        assert_eq!(refresh((0, 4 * DAY), 0, 1.0), 2 * DAY + 4 * DAY / 10);
        assert_eq!(refresh((1000, 1060), 1000, 0.0), 1030);
        // At the latest after three days, whatever an authority promises.
        assert_eq!(refresh((0, 365 * DAY), 0, 0.0), 3 * DAY);
        assert_eq!(refresh((0, u64::MAX), 5, 1.0), 3 * DAY + 5);
    }

    #[test]
    fn what_is_old_when_it_comes_is_not_fetched_again_and_again() {
        assert_eq!(refresh((0, 8 * DAY), 7 * DAY, 0.0), 7 * DAY + LONGEST_WAIT);
        assert_eq!(refresh((0, 60), 59, 0.0), 59 + SPACING);
        assert_eq!(refresh((100, 50), 200, 0.5), 200 + SPACING);
    }

    #[test]
    fn waits_double_up_to_an_hour_and_hurry_where_a_response_expires() {
        assert_eq!(back_off(1, None, None, 1.0), 60);
        assert_eq!(back_off(1, None, None, 0.0), 30);
        assert_eq!(back_off(3, None, None, 1.0), 240);
        assert_eq!(back_off(40, None, None, 1.0), LONGEST_WAIT);
        assert_eq!(back_off(1, Some(30), None, 1.0), 5);
        assert_eq!(back_off(1, Some(7 * DAY), None, 1.0), 60);
        assert_eq!(back_off(1, None, Some(600), 0.0), 600);
        assert_eq!(back_off(1, None, Some(u64::MAX), 0.0), LONGEST_WAIT, "nobody makes us wait for ever");
    }

    #[test]
    fn a_wait_of_a_clock_that_ran_ahead_ends_now() {
        assert_eq!(genuine(100 * DAY, DAY), DAY);
        assert_eq!(genuine(2 * DAY, DAY), 2 * DAY);
    }
}
