//! What it comes to, in words made from the figures: nothing is said that was not measured in this run.

use sealane_lab_harness::study;
use sealane_lab_report::{Figure, Finding, Outcome, Page, number};

use crate::knee;
use crate::saturated::CPU;

/// Fills verdict and advice.
pub fn conclude(page: &mut Page) {
    let mut said = Vec::new();
    for (id, what) in [
        ("keepalive", "A request on a kept connection"),
        ("full-ecdsa", "a new ECDSA connection"),
        ("resumed", "a resumed connection"),
    ] {
        if let Some(text) = costs(page, id, CPU, what) {
            said.push(text);
        }
    }
    let costs = (!said.is_empty()).then(|| format!("CPU time, lowest first. {}.", said.join("; ")));
    let said: Vec<String> = costs.into_iter().chain(first_out(page)).collect();
    page.verdict = if said.is_empty() { "No part gave figures to compare.".to_owned() } else { said.join(" ") };
    page.advice = advice(page);
}

/// Everybody's cost in a part, lowest first.
fn costs(page: &Page, id: &str, measure: &str, what: &str) -> Option<String> {
    let list = ranking(page, id, measure);
    if list.len() < 2 {
        return None;
    }
    let text: Vec<String> = list.iter().map(|(name, value)| format!("{name} {}", number::short(*value))).collect();
    Some(format!("{what}: {} µs", text.join(", ")))
}

fn ranking(page: &Page, id: &str, measure: &str) -> Vec<(String, f64)> {
    let Some(part) = page.part(id) else { return Vec::new() };
    let mut list: Vec<(String, f64)> =
        page.subjects.iter().filter_map(|s| part.value(&s.name, measure).map(|v| (s.name.clone(), v))).collect();
    list.sort_by(|a, b| a.1.total_cmp(&b.1));
    list
}

/// Who breaks first under rising rates, and what users of the others wait at that rate.
fn first_out(page: &Page) -> Option<String> {
    let mut knees = ranking(page, "knee-1.3", "knee");
    if knees.len() < 2 {
        return None;
    }
    let part = page.part("knee-1.3")?;
    let (first, rate) = knees.remove(0);
    let at = |name: &str| {
        let own = part.of(knee::COMPARED).filter(|f| f.subject == name);
        own.filter_map(|f| f.x.map(|x| (x, f.value))).filter(|(x, _)| *x <= 99.0).max_by(|a, b| a.0.total_cmp(&b.0))
    };
    let (percentile, worst) = at(&first)?;
    let others: Vec<String> = knees
        .iter()
        .filter_map(|(name, _)| at(name).map(|(_, ms)| format!("{name} {} ms", number::short(ms))))
        .collect();
    Some(format!(
        "When the rate rises, {first} is the first to fail, above {} requests per second. Just above this rate, its {} is {} ms ({}).",
        number::short(rate),
        number::percentile(percentile),
        number::short(worst),
        others.join(", ")
    ))
}

/// The study's main claim: when the rate rises, HAProxy with threads fails before NGINX.
pub fn finding(page: &Page) -> Finding {
    let told = study::data("proxies").unwrap_or_default();
    let of = |name: &str| told["latency_at_85000_rps"][name].as_str().unwrap_or_default().to_owned();
    let published = format!("at 85,000 requests/s: HAProxy with threads {}; NGINX {}", of("HAProxy MT"), of("NGINX"));
    let row = Finding::new("HAProxy against NGINX", published);
    let knee = |name: &str| -> Option<&Figure> {
        page.part("knee-1.3")?.figures.iter().find(|f| f.measure == "knee" && f.subject == name)
    };
    let (Some(haproxy), Some(nginx)) = (knee("haproxy"), knee("nginx")) else { return row };
    // The ends of a knee's interval are rates that were tried, not a range of rounds.
    let outcome = Outcome::apart(haproxy, nginx);
    let finding = match outcome {
        Outcome::Confirmed => "When the rate of requests rises, HAProxy fails before NGINX.",
        Outcome::Contradicted => "When the rate of requests rises, NGINX fails before HAProxy.",
        _ => "HAProxy and NGINX fail at about the same rate of requests.",
    };
    let rate = |f: &Figure| {
        let (held, broke) = f.interval();
        format!("{} good at {}/s, bad at {}/s", f.subject, number::short(held), number::short(broke))
    };
    row.found(finding, format!("{}; {}", rate(haproxy), rate(nginx)), outcome)
}

/// Advice for operators of a proxy; each sentence once, with those subjects for which this run shows it.
fn advice(page: &Page) -> Vec<String> {
    let value = |id: &str, name: &str| page.part(id).and_then(|p| p.value(name, CPU));
    let (mut kept_open, mut ecdsa_first, mut resumed_often) = (Vec::new(), Vec::new(), Vec::new());
    for name in page.subjects.iter().map(|s| &s.name) {
        let Some(full) = value("full-ecdsa", name) else { continue };
        if let Some(kept) = value("keepalive", name).filter(|kept| full > 3.0 * kept) {
            kept_open.push(format!("{} requests ({name})", number::short((full / kept).round())));
        }
        if let Some(rsa) = value("full-rsa", name).filter(|rsa| *rsa > 1.5 * full) {
            ecdsa_first.push(format!("{} times ({name})", number::short(rsa / full)));
        }
        if let Some(saved) = value("resumed", name).map(|resumed| 1.0 - resumed / full).filter(|saved| *saved > 0.1) {
            resumed_often.push(format!("{:.0} % ({name})", saved * 100.0));
        }
    }
    let mut list = Vec::new();
    if !kept_open.is_empty() {
        let all = kept_open.join(", ");
        list.push(format!(
            "Keep connections open: a new connection costs as much CPU time as this many requests on a kept connection: {all}."
        ));
    }
    if !ecdsa_first.is_empty() {
        let all = ecdsa_first.join(", ");
        list.push(format!(
            "Prefer ECDSA P-256 certificates to RSA-2048: with RSA, the CPU time of a full handshake is {all} as high."
        ));
    }
    if !resumed_often.is_empty() {
        let all = resumed_often.join(", ");
        list.push(format!("Let clients resume sessions: of the CPU time of a full ECDSA handshake, this saves {all}."));
    }
    list
}

#[cfg(test)]
mod tests {
    use sealane_lab_report::{Part, Subject};

    use super::*;

    fn page() -> Page {
        let mut keepalive = Part::new("keepalive", "", "");
        let mut full = Part::new("full-ecdsa", "", "");
        for (name, kept, new) in [("nginx", 35.0, 630.0), ("sealane", 21.0, 50.0)] {
            keepalive.push(Figure::new(name, CPU, kept, "µs"));
            full.push(Figure::new(name, CPU, new, "µs"));
        }
        let subjects = ["sealane", "nginx"].map(|n| Subject { name: n.into(), ..Subject::default() });
        Page { subjects: subjects.into(), parts: vec![keepalive, full], ..Page::default() }
    }

    #[test]
    fn the_verdict_orders_by_what_was_measured() {
        let said = costs(&page(), "keepalive", CPU, "A request").unwrap();
        assert_eq!(said, "A request: sealane 21, nginx 35 µs");
        assert_eq!(costs(&page(), "resumed", CPU, "x"), None);
    }

    #[test]
    fn the_first_to_fail_is_compared_with_the_study() {
        let with = |haproxy: (f64, f64), nginx: (f64, f64)| {
            let mut part = Part::new("knee-1.3", "", "");
            for (name, (held, broke)) in [("haproxy", haproxy), ("nginx", nginx)] {
                part.push(Figure::new(name, "knee", held, "/s").between(held, broke));
            }
            finding(&Page { parts: vec![part], ..Page::default() })
        };
        let row = with((12_000.0, 13_000.0), (14_000.0, 15_000.0));
        assert_eq!(row.outcome, Outcome::Confirmed);
        assert!(row.published.contains("1,100 ms") && row.published.contains("8 ms"), "{}", row.published);
        assert_eq!(row.measured, "haproxy good at 12,000/s, bad at 13,000/s; nginx good at 14,000/s, bad at 15,000/s");
        assert_eq!(with((14_000.0, 15_000.0), (12_000.0, 13_000.0)).outcome, Outcome::Contradicted);
        assert_eq!(with((12_000.0, 14_500.0), (14_000.0, 15_000.0)).outcome, Outcome::Undecided);
        assert_eq!(finding(&page()).outcome, Outcome::NotMeasured);
    }

    #[test]
    fn advice_is_given_only_where_it_follows() {
        let list = advice(&page());
        assert_eq!(list.len(), 1, "{list:?}");
        assert!(list[0].ends_with("requests on a kept connection: 18 requests (nginx)."), "{list:?}");

        let mut page = page();
        page.parts[0].push(Figure::new("haproxy", CPU, 50.0, "µs"));
        page.parts[1].push(Figure::new("haproxy", CPU, 700.0, "µs"));
        page.subjects.push(Subject { name: "haproxy".into(), ..Subject::default() });
        let list = advice(&page);
        assert_eq!(list.len(), 1, "one sentence for all: {list:?}");
        assert!(list[0].ends_with("18 requests (nginx), 14 requests (haproxy)."), "{list:?}");
    }
}
