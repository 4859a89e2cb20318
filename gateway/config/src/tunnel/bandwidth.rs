//! `upload_rate` and `download_rate`: how much the clients of the tunnel may send and receive.

use crate::decode::{self, Node, Section};
use crate::diagnostics::Sink;
use crate::settings::{Own, Setting, Shape};
use sealane_tunnel::plane::Rates;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use toml::de::DeValue;

/// In bits per second. At the lowest rate, the largest packet that `mtu` allows takes about a second.
const BOUNDS: RangeInclusive<u64> = 64_000..=100_000_000_000;

/// Reads bits per second (`"20Mbit/s"`). Returns bytes per second.
pub(crate) fn bandwidth(sink: &Sink, key: &str, node: &Node) -> Option<NonZeroU64> {
    let help = || format!("write bits per second: {key} = \"512kbit/s\", \"20Mbit/s\" or \"1Gbit/s\"");
    let fail = |message: String| {
        sink.error(&node.span(), message, Some(help()));
        None
    };
    let text = match node.get_ref() {
        DeValue::String(text) => text,
        DeValue::Integer(_) => return fail(format!("\"{key}\" has no unit")),
        _ => {
            decode::wrong_type(sink, key, node, "a rate", help());
            return None;
        }
    };
    match bits(text) {
        Some(bits) if BOUNDS.contains(&bits) => NonZeroU64::new(bits / 8),
        Some(_) => fail(format!("\"{text}\" is not a rate from 64kbit/s to 100Gbit/s")),
        None => fail(format!("\"{text}\" is not a rate")),
    }
}

fn bits(text: &str) -> Option<u64> {
    let text = text.strip_suffix("/s").unwrap_or(text).strip_suffix("bit")?;
    let factor = match text.chars().next_back()? {
        'k' | 'K' => 1_000,
        'm' | 'M' => 1_000_000,
        'g' | 'G' => 1_000_000_000,
        _ => return None,
    };
    let number = text[..text.len() - 1].trim_end_matches(' ');
    // `parse` takes a sign.
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(factor)
}

/// What [`bandwidth`] reads.
pub(crate) fn bandwidth_shape() -> Shape {
    Shape::Text(Some("^[0-9]+ *[kKmMgG]bit(/s)?$"))
}

type Rate = Setting<Own<NonZeroU64>>;

/// Both directions of a table.
pub(super) fn rates(section: &Section, upload: &Rate, download: &Rate) -> Rates {
    Rates { upload: section.optional(upload), download: section.optional(download) }
}

#[cfg(test)]
mod tests {
    use super::bits;

    #[test]
    fn rates_are_bits_per_second() {
        for (text, expected) in [
            ("64kbit/s", Some(64_000)),
            ("64 Kbit/s", Some(64_000)),
            ("20Mbit/s", Some(20_000_000)),
            ("20mbit", Some(20_000_000)),
            ("1Gbit/s", Some(1_000_000_000)),
            ("18446744073709551615Gbit/s", None),
            ("", None),
            ("bit/s", None),
            ("kbit/s", None),
            ("20", None),
            ("20M", None),
            ("20MB/s", None),
            ("20MiB/s", None),
            ("2.5Mbit/s", None),
            ("+20Mbit/s", None),
            ("-20Mbit/s", None),
            ("20\u{fc}bit/s", None),
            ("20Mbit/m", None),
        ] {
            assert_eq!(bits(text), expected, "{text}");
        }
    }
}
