//! The study's Table 2 and its Wi-Fi case, beside what was measured.

use crate::distances::handshake;
use crate::place::KEYS;
use anyhow::Context;
use sealane_lab_harness::study::data;
use sealane_lab_report::{Figure, Part, Source};

/// The study's key among [`crate::place::KEYS`].
pub const RSA: usize = 1;

pub fn beside(part: &mut Part) -> anyhow::Result<()> {
    let study = data("sslmtcp")?;
    let rows = study["table_2_ms"].as_array().context("the study's table 2")?;
    for row in rows.iter().chain([&study["wifi_ms"]]) {
        let number = |key: &str| row[key].as_f64().with_context(|| format!("{key} in the study's rows"));
        let rtt = number("ping")?;
        let mut push = |subject: &str, measure: &str, value, unit| {
            part.push(Figure::new(subject, measure, value, unit).at(rtt).from(Source::Published));
        };
        push("study, TLS after TCP", &handshake(RSA), number("sequential")?, "ms");
        push("study, TLS inside TCP's handshake", &handshake(RSA), number("embedded")?, "ms");
        let measure = format!("sooner with 40 ms added, {}", KEYS[RSA]);
        push("study", &measure, number("reduction_percent")?, "%");
    }
    Ok(())
}
