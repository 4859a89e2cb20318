//! The time of day as text, made once a second.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// `Date` fields and log times, remade when the second changes.
#[derive(Default)]
pub(crate) struct Clock {
    checked_at: u64,
    second: u64,
    http: String,
    log: String,
    iso: String,
}

impl Clock {
    /// IMF-fixdate (RFC 9110 §5.6.7).
    #[inline]
    pub fn http(&self) -> &[u8] {
        self.http.as_bytes()
    }

    /// As in the common log format, without brackets.
    pub fn log(&self) -> &[u8] {
        self.log.as_bytes()
    }

    /// RFC 3339, in UTC.
    pub fn iso(&self) -> &[u8] {
        self.iso.as_bytes()
    }

    /// Looks at the time of day, at most once per 100 ms of lane time.
    pub fn refresh(&mut self, now_ms: u64) {
        if !self.http.is_empty() && now_ms < self.checked_at + 100 {
            return;
        }
        self.checked_at = now_ms;
        let second = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        if second != self.second || self.http.is_empty() {
            self.second = second;
            let (year, month, day) = civil(second / 86_400);
            let (h, m, s) = (second / 3600 % 24, second / 60 % 60, second % 60);
            self.iso = format!("{year}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}Z");
            let (weekday, month) = (DAYS[(second / 86_400 % 7) as usize], MONTHS[month as usize - 1]);
            self.http = format!("{weekday}, {day:02} {month} {year} {h:02}:{m:02}:{s:02} GMT");
            self.log = format!("{day:02}/{month}/{year}:{h:02}:{m:02}:{s:02} +0000");
        }
    }
}

/// Year, month and day of a day since 1970-01-01 (proleptic Gregorian, by eras of 400 years).
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + u64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn days_become_dates() {
        for (days, date) in
            [(0, (1970, 1, 1)), (11_016, (2000, 2, 29)), (19_782, (2024, 2, 29)), (20_778, (2026, 11, 21))]
        {
            assert_eq!(civil(days), date);
        }
    }
}
