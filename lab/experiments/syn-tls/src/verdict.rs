//! What it comes to, in words made from this run's figures.

use crate::distances::{distances, first_byte, handshake};
use crate::loss;
use crate::place::KEYS;
use crate::ways::{EMBEDDED_0, EMBEDDED_12, EMBEDDED_13, SEQUENTIAL_12, SEQUENTIAL_13};
use sealane_lab_report::{Page, Part, Source, number::short};

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
