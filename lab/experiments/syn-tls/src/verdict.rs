//! What it comes to, in words made from this run's figures.

use crate::distances::{STUDY_COMPUTING, distances, first_byte, handshake};
use crate::loss;
use crate::place::KEYS;
use crate::study::RSA;
use crate::ways::{EMBEDDED_0, EMBEDDED_12, EMBEDDED_13, SEQUENTIAL_12, SEQUENTIAL_13};
use sealane_lab_harness::study::data;
use sealane_lab_report::{Figure, Finding, Outcome, Page, Part, Source, number::short};

/// Fills verdict and advice.
pub fn conclude(page: &mut Page) {
    let said: Vec<String> = [over_distance(page), under_loss(page)].into_iter().flatten().collect();
    page.verdict = if said.is_empty() { "Nothing could be compared.".to_owned() } else { said.join(" ") };
    if !said.is_empty() {
        page.advice = vec![
            "Leave syn_tls at \"cookie\", and allow TCP Fast Open on servers: sysctl net.ipv4.tcp_fastopen=3. Clients then save one round trip from their second connection on.".to_owned(),
            "`sealane client` does TLS in the SYN for programs that cannot be changed. New programs in Rust can use `connect_tls` (client/connect).".to_owned(),
        ];
    }
}

/// The study's main claim: with RSA 4096, the handshake ends sooner if it is inside TCP's handshake. At the longest of the study's
/// distances that this run has.
pub fn finding(page: &Page) -> Finding {
    let study = data("sslmtcp").unwrap_or_default();
    let rows = study["table_2_ms"].as_array().into_iter().flatten().chain([&study["wifi_ms"]]);
    let mut rows: Vec<[f64; 4]> = rows
        .filter_map(|row| {
            let number = |key: &str| row[key].as_f64();
            Some([number("ping")?, number("sequential")?, number("embedded")?, number("reduction_percent")?])
        })
        .collect();
    rows.sort_by(|a, b| b[0].total_cmp(&a[0]));
    let told = |[ping, sequential, embedded, less]: [f64; 4]| {
        let row =
            format!("round trip {} ms: {} ms in sequence, {} ms", short(ping), short(sequential), short(embedded));
        Finding::new("TLS inside TCP's handshake", format!("{row} inside TCP's handshake ({} % less)", short(less)))
    };
    let measure = handshake(RSA);
    let part = page.part("distances");
    let at = |way: &str, rtt: f64| -> Option<&Figure> {
        let of = |f: &&Figure| f.subject == way && f.x == Some(rtt) && f.source == Source::Measured;
        part?.figures.iter().filter(|f| f.measure == measure).find(of)
    };
    for row in &rows {
        let (Some(old), Some(new)) = (at(SEQUENTIAL_12, row[0]), at(EMBEDDED_12, row[0])) else { continue };
        let outcome = Outcome::lower(new, old);
        let finding = match outcome {
            Outcome::Confirmed => "A TLS 1.2 handshake (RSA 4096) ends sooner if the ClientHello is in the SYN.",
            Outcome::Contradicted => "A TLS 1.2 handshake (RSA 4096) ends later if the ClientHello is in the SYN.",
            _ => "The times of a TLS 1.2 handshake (RSA 4096) do not show a difference.",
        };
        let less = 100.0 * (old.value - new.value) / old.value;
        let added = 100.0 * (old.value - new.value) / (old.value + STUDY_COMPUTING);
        let measured = format!(
            "{} ms in sequence, {} ms in the SYN ({less:.1} % less; {added:.1} % with the study's computing time added)",
            short(old.value),
            short(new.value)
        );
        return told(*row).found(finding, measured, outcome);
    }
    rows.into_iter().next().map_or_else(|| Finding::new("TLS inside TCP's handshake", ""), told)
}

fn value(part: &Part, measure: &str, subject: &str, x: f64) -> Option<f64> {
    let mut found = part.of(measure).filter(|f| f.subject == subject && f.source == Source::Measured);
    found.find(|f| f.x == Some(x)).map(|f| f.value)
}

fn over_distance(page: &Page) -> Option<String> {
    let part = page.part("distances")?;
    let all = distances(part, &handshake(0));
    // The study's farthest wired line, or what this run has.
    let rtt = all.iter().copied().find(|r| *r == 11.6).or(all.last().copied())?;
    let (h, f) = (handshake(0), first_byte(0));
    let old = value(part, &h, SEQUENTIAL_12, rtt)?;
    let (old_embedded, new) = (value(part, &h, EMBEDDED_12, rtt)?, value(part, &h, EMBEDDED_13, rtt)?);
    let per_cent = |v: f64| short(100.0 * (old - v) / old);
    let early = value(part, &f, EMBEDDED_0, rtt)?;
    Some(format!(
        "At a round trip of {rtt} ms ({}), a TLS 1.2 handshake takes {} ms if the ClientHello follows TCP's handshake, and {} \
         ms if it is in the SYN ({} % less). With TLS 1.3 in the SYN, it takes {} ms ({} % less). With 0-RTT in the SYN, the \
         response begins after {} ms, {} round trips.",
        KEYS[0],
        short(old),
        short(old_embedded),
        per_cent(old_embedded),
        short(new),
        per_cent(new),
        short(early),
        short(early / rtt)
    ))
}

fn under_loss(page: &Page) -> Option<String> {
    let part = page.part("loss")?;
    let worst = part.of(loss::MEASURE).filter_map(|f| f.x).reduce(f64::max)?;
    let sequential = value(part, loss::MEASURE, SEQUENTIAL_13, worst)?;
    let embedded = value(part, loss::MEASURE, EMBEDDED_13, worst)?;
    Some(format!(
        "When {worst} % of the packets are lost, a TLS 1.3 handshake takes {} ms on average if the ClientHello follows \
         TCP's handshake, and {} ms if it is in the SYN.",
        short(sequential),
        short(embedded)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(times: &[(f64, f64, f64)]) -> Page {
        let mut part = Part::new("distances", "", "");
        for (rtt, old, new) in times {
            for (way, ms) in [(SEQUENTIAL_12, *old), (EMBEDDED_12, *new)] {
                let figure = Figure::new(way, &handshake(RSA), ms, "ms").at(*rtt);
                part.push(figure.between(ms - 0.2, ms + 0.2).samples(15));
            }
        }
        Page { parts: vec![part], ..Page::default() }
    }

    #[test]
    fn the_longest_distance_of_the_study_is_compared() {
        // The study has no distance of 50 ms.
        let row = finding(&page(&[(6.0, 26.0, 21.0), (11.6, 40.0, 29.0), (50.0, 160.0, 110.0)]));
        assert_eq!(row.outcome, Outcome::Confirmed);
        assert!(row.published.starts_with("round trip 11.6 ms: 74.6 ms"), "{}", row.published);
        assert_eq!(
            row.measured,
            "40 ms in sequence, 29 ms in the SYN (27.5 % less; 13.8 % with the study's computing time added)"
        );
        assert_eq!(finding(&page(&[(6.0, 21.0, 26.0)])).outcome, Outcome::Contradicted);
        assert_eq!(finding(&page(&[(6.0, 21.0, 21.1)])).outcome, Outcome::Undecided);
        let row = finding(&page(&[]));
        assert_eq!(row.outcome, Outcome::NotMeasured);
        assert!(row.published.starts_with("round trip 85.5 ms: 326.6 ms"), "{}", row.published);
    }
}
