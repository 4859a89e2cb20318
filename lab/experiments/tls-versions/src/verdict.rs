//! What it comes to, in words made from this run's figures.

use sealane_lab_report::{Page, number};

use crate::measure::TOTAL;

/// Fills verdict and advice.
pub fn conclude(page: &mut Page) {
    let mut said: Vec<String> = page.subjects.iter().filter_map(|s| on_loopback(page, &s.name)).collect();
    said.extend(page.subjects.iter().filter_map(|s| over_distance(page, &s.name)));
    page.verdict = if said.is_empty() { "Nothing could be compared.".to_owned() } else { said.join(" ") };
    page.advice = advice(page);
}

/// The name of a server's figures over distance.
pub fn distance_measure(server: &str) -> String {
    format!("{TOTAL} over distance, {server}")
}

fn on_loopback(page: &Page, server: &str) -> Option<String> {
    let part = page.part("loopback")?;
    let measure = format!("{TOTAL}, {server}");
    let old = part.value("TLS 1.2 full", &measure)?;
    let new = part.value("TLS 1.3 full", &measure)?;
    Some(format!(
        "Without network delay, a request over a new connection to {server} takes {} ms with TLS 1.2 and {} ms with TLS 1.3.",
        number::short(old),
        number::short(new)
    ))
}

/// Totals at the longest distance that was measured.
fn over_distance(page: &Page, server: &str) -> Option<String> {
    let part = page.part("distance")?;
    let measure = distance_measure(server);
    let far = part.of(&measure).filter_map(|f| f.x).reduce(f64::max)?;
    let at = |way: &str| part.of(&measure).find(|f| f.subject == way && f.x == Some(far)).map(|f| f.value);
    let (old, new) = (at("TLS 1.2 full")?, at("TLS 1.3 full")?);
    let early = at("TLS 1.3 0-RTT").map_or_else(String::new, |v| format!(", {} ms with 0-RTT", number::short(v)));
    Some(format!(
        "At a round trip of {} ms, this request to {server} takes {} ms with TLS 1.2, {} ms with TLS 1.3{early}.",
        number::short(far),
        number::short(old),
        number::short(new)
    ))
}

fn advice(page: &Page) -> Vec<String> {
    let mut list = Vec::new();
    for server in page.subjects.iter().map(|s| &s.name) {
        let Some(part) = page.part("distance") else { continue };
        let measure = distance_measure(server);
        let Some(far) = part.of(&measure).filter_map(|f| f.x).reduce(f64::max) else { continue };
        let at = |way: &str| part.of(&measure).find(|f| f.subject == way && f.x == Some(far)).map(|f| f.value);
        if let (Some(old), Some(new)) = (at("TLS 1.2 full"), at("TLS 1.3 full"))
            && old - new > far * 0.7
        {
            list.push(format!(
                "Offer TLS 1.3: it saves each new client of {server} about one round trip ({:.0} of {far:.0} ms).",
                old - new
            ));
        }
        if let (Some(full), Some(early)) = (at("TLS 1.3 full"), at("TLS 1.3 0-RTT"))
            && full - early > far * 0.7
        {
            list.push(format!(
                "For requests that may be repeated safely, 0-RTT saves returning clients of {server} one more round \
                 trip. Let the application refuse all other requests with 425 (RFC 8470)."
            ));
        }
    }
    list
}
