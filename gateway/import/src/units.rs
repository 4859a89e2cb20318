//! Durations and sizes, as NGINX and HAProxy write them.

/// A duration of NGINX (`60`, `60s`, `1m 30s`, `500ms`, `1d`) as one of Sealane; `None` where it is none.
pub(crate) fn nginx_time(text: &str) -> Option<String> {
    time(text, 1000, &[("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 604_800_000)])
}

/// A duration of HAProxy (`5000` are milliseconds, `5s`, `1m`, `500us`) as one of Sealane.
pub(crate) fn haproxy_time(text: &str) -> Option<String> {
    match text.strip_suffix("us") {
        Some(n) => n.parse::<u32>().ok().map(|n| format!("{n}us")),
        None => time(text, 1, &[("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)]),
    }
}

fn time(text: &str, plain: u64, units: &[(&str, u64)]) -> Option<String> {
    let mut total: u64 = 0;
    let mut rest = text.trim();
    if rest.is_empty() || text.len() > 64 {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let n: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "" => plain,
            name => units.iter().find(|(u, _)| *u == name)?.1,
        };
        rest = rest[letters..].trim_start();
        total = total.checked_add(n.checked_mul(unit)?)?;
    }
    Some(shown_time(total))
}

/// Milliseconds as a duration of Sealane.
pub(crate) fn shown_time(ms: u64) -> String {
    // Sealane's longest duration.
    let ms = ms.min(366 * 86_400_000);
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
    match units.iter().find(|(unit, _)| ms > 0 && ms.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", ms / unit),
        None if ms == 0 => "0s".to_owned(),
        None => format!("{ms}ms"),
    }
}

/// A duration of Sealane with one unit (`30s`, `500us`) in microseconds.
pub(crate) fn microseconds(text: &str) -> Option<u64> {
    let n: u64 = text.trim_end_matches(char::is_alphabetic).parse().ok()?;
    let unit = match text.trim_start_matches(|c: char| c.is_ascii_digit()) {
        "d" => 86_400_000_000,
        "h" => 3_600_000_000,
        "m" => 60_000_000,
        "s" => 1_000_000,
        "ms" => 1_000,
        "us" => 1,
        _ => return None,
    };
    Some(n.saturating_mul(unit))
}

/// A size (`8k`, `1M`, `512`) in bytes.
pub(crate) fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, unit) = match text.char_indices().next_back()? {
        (at, 'k' | 'K') => (&text[..at], 1u64 << 10),
        (at, 'm' | 'M') => (&text[..at], 1 << 20),
        (at, 'g' | 'G') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit).filter(|n| *n <= i64::MAX as u64)
}

/// Bytes as a size of Sealane, in TOML.
pub(crate) fn shown_size(n: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(unit, _)| n > 0 && n.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("\"{}{name}\"", n / unit),
        None => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(nginx_time("60").as_deref(), Some("1m"));
        assert_eq!(nginx_time("1m 30s").as_deref(), Some("90s"));
        assert_eq!(nginx_time("500ms").as_deref(), Some("500ms"));
        assert_eq!(nginx_time("9999999999d"), Some("366d".into()));
        assert_eq!(nginx_time("99999999999999999999"), None);
        assert_eq!(nginx_time("x"), None);
        assert_eq!(haproxy_time("5000").as_deref(), Some("5s"));
        assert_eq!(haproxy_time("10s").as_deref(), Some("10s"));
        assert_eq!(haproxy_time("300us").as_deref(), Some("300us"));
        assert_eq!(haproxy_time("-1"), None);
        assert_eq!((microseconds("90s"), microseconds("1h")), (Some(90_000_000), Some(3_600_000_000)));
        assert_eq!((microseconds("300us"), microseconds("x"), microseconds("1w")), (Some(300), None, None));
    }

    #[test]
    fn sizes() {
        assert_eq!(size("8k"), Some(8192));
        assert_eq!(size("1M"), Some(1 << 20));
        assert_eq!((size("x"), size(""), size("99999999999g")), (None, None, None));
        assert_eq!((shown_size(8192), shown_size(1000)), ("\"8KiB\"".into(), "1000".into()));
    }
}
