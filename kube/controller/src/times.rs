//! The time of day in the formats of the API.

use k8s_openapi::jiff::Timestamp;

/// `2026-01-01T00:00:00Z`.
pub fn now() -> String {
    seconds(Timestamp::now())
}

/// `2026-01-01T00:00:00.000000Z`, with exactly six digits (`MicroTime`).
pub fn now_micros() -> String {
    micros(Timestamp::now())
}

fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

fn micros(time: Timestamp) -> String {
    format!("{}.{:06}Z", seconds(time).trim_end_matches('Z'), time.subsec_microsecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        let time = Timestamp::new(1_767_225_600, 1_500_000).unwrap();
        assert_eq!(seconds(time), "2026-01-01T00:00:00Z");
        assert_eq!(micros(time), "2026-01-01T00:00:00.001500Z");
        assert_eq!(micros(Timestamp::UNIX_EPOCH), "1970-01-01T00:00:00.000000Z");
    }
}
