//! Numbers as people read them.

/// Four significant digits at most, thousands apart: `12,340`, `154.9`, `0.52`.
pub fn short(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let size = value.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    if size < 0.001 {
        return format!("{value:.1e}");
    }
    let digits = match size {
        s if s >= 999.95 => 0,
        s if s >= 99.995 => 1,
        s if s >= 0.995 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    apart(text)
}

/// With its unit, where it has one.
pub fn with_unit(value: f64, unit: &str) -> String {
    if unit.is_empty() { short(value) } else { format!("{} {unit}", short(value)) }
}

/// A percentile's name: `p99.9`.
pub fn percentile(p: f64) -> String {
    // Binary leaves 99.99899999999999; seven digits after the point are more than anybody measures.
    let text = format!("{p:.7}");
    format!("p{}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn apart(text: &str) -> String {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (whole, rest) = digits.split_once('.').map_or((digits, String::new()), |(w, r)| (w, format!(".{r}")));
    let mut out = String::new();
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    format!("{sign}{out}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_digits_are_enough() {
        for (value, text) in [
            (0.0, "0"),
            (0.5231, "0.523"),
            (21.3, "21.3"),
            (154.93, "154.9"),
            (1243.8, "1,244"),
            (999.97, "1,000"),
            (1_234_567.0, "1,234,567"),
            (-1234.0, "-1,234"),
            (0.00001, "1.0e-5"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(short(value), text);
        }
        assert_eq!(with_unit(3.0, "ms"), "3 ms");
    }

    #[test]
    fn percentiles_are_named_by_their_nines() {
        assert_eq!(percentile(50.0), "p50");
        assert_eq!(percentile((1.0 - 1e-6) * 100.0), "p99.9999");
        assert_eq!(percentile(99.9), "p99.9");
    }
}
