//! What it comes to, in words made from this run's figures.

use sealane_lab_report::{Figure, Finding, Outcome, Page, number};

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

/// The study's main claim: a request over a new connection takes less time with TLS 1.3.
pub fn finding(page: &Page) -> Finding {
    let row = Finding::new(
        "TLS 1.2 against TLS 1.3",
        "one request in total: 10.304 ms with TLS 1.2, 10.098 ms with TLS 1.3 (2.0 % less)",
    );
    let Some(part) = page.part("distance") else { return row };
    let mut outcomes = Vec::new();
    let mut told = Vec::new();
    for server in page.subjects.iter().map(|s| &s.name) {
        let measure = distance_measure(server);
        let Some(far) = part.of(&measure).filter_map(|f| f.x).reduce(f64::max) else { continue };
        let at = |way: &str| -> Option<&Figure> {
            part.figures.iter().find(|f| f.measure == measure && f.subject == way && f.x == Some(far))
        };
        let (Some(old), Some(new)) = (at("TLS 1.2 full"), at("TLS 1.3 full")) else { continue };
        outcomes.push(Outcome::lower(new, old));
        told.push(format!(
            "{server}, round trip {} ms: {} ms with TLS 1.2, {} ms with TLS 1.3",
            number::short(far),
            number::short(old.value),
            number::short(new.value)
        ));
    }
    if outcomes.is_empty() {
        return row;
    }
    let outcome = Outcome::of_all(outcomes);
    let finding = match outcome {
        Outcome::Confirmed => {
            "With TLS 1.3, a request over a new connection takes less time, over the longest distance measured."
        }
        Outcome::Contradicted => {
            "With TLS 1.3, a request over a new connection takes more time, over the longest distance measured."
        }
        _ => "The times of a request over a new connection do not show a difference.",
    };
    row.found(finding, told.join("; "), outcome)
}

/// Each sentence once, with those servers for which this run shows it.
fn advice(page: &Page) -> Vec<String> {
    let (mut newer, mut early_data) = (Vec::new(), Vec::new());
    for server in page.subjects.iter().map(|s| &s.name) {
        let Some(part) = page.part("distance") else { continue };
        let measure = distance_measure(server);
        let Some(far) = part.of(&measure).filter_map(|f| f.x).reduce(f64::max) else { continue };
        let at = |way: &str| part.of(&measure).find(|f| f.subject == way && f.x == Some(far)).map(|f| f.value);
        if let (Some(old), Some(new)) = (at("TLS 1.2 full"), at("TLS 1.3 full"))
            && old - new > far * 0.7
        {
            newer.push(format!("{:.0} of {far:.0} ms ({server})", old - new));
        }
        if let (Some(full), Some(early)) = (at("TLS 1.3 full"), at("TLS 1.3 0-RTT"))
            && full - early > far * 0.7
        {
            early_data.push(server.as_str());
        }
    }
    let mut list = Vec::new();
    if !newer.is_empty() {
        list.push(format!("Offer TLS 1.3: it saves each new client about one round trip: {}.", newer.join(", ")));
    }
    if !early_data.is_empty() {
        list.push(format!(
            "For requests that may be repeated safely, 0-RTT saves returning clients one more round trip ({}). Let the \
             application refuse all other requests with 425 (RFC 8470).",
            early_data.join(", ")
        ));
    }
    list
}

#[cfg(test)]
mod tests {
    use sealane_lab_report::{Part, Subject};

    use super::*;

    fn page(old: f64, new: f64, n: u64) -> Page {
        let mut part = Part::new("distance", "", "");
        for (rtt, factor) in [(5.0, 1.0), (100.0, 20.0)] {
            for (way, ms) in [("TLS 1.2 full", old), ("TLS 1.3 full", new)] {
                let figure = Figure::new(way, &distance_measure("nginx"), ms * factor, "ms").at(rtt);
                part.push(figure.between(ms * factor - 0.5, ms * factor + 0.5).samples(n));
            }
        }
        let nginx = Subject { name: "nginx".into(), ..Subject::default() };
        Page { subjects: vec![nginx], parts: vec![part], ..Page::default() }
    }

    #[test]
    fn the_longest_distance_is_compared_with_the_study() {
        let row = finding(&page(20.0, 15.0, 20));
        assert_eq!(row.outcome, Outcome::Confirmed);
        assert_eq!(row.measured, "nginx, round trip 100 ms: 400 ms with TLS 1.2, 300 ms with TLS 1.3");
        assert_eq!(finding(&page(15.0, 20.0, 20)).outcome, Outcome::Contradicted);
        assert_eq!(finding(&page(15.0, 15.0, 20)).outcome, Outcome::Undecided);
        assert_eq!(finding(&page(20.0, 15.0, 2)).outcome, Outcome::Undecided, "too few samples");
        assert_eq!(finding(&Page::default()).outcome, Outcome::NotMeasured);
    }
}
