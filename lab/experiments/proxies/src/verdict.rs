//! What it comes to, in words made from the figures: nothing is said that was not measured in this run.

use sealane_lab_report::{Page, number};

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

/// Advice for operators of a proxy; each sentence only if this run shows it.
fn advice(page: &Page) -> Vec<String> {
    let mut list = Vec::new();
    let value = |id: &str, measure: &str, name: &str| page.part(id).and_then(|p| p.value(name, measure));
    for subject in &page.subjects {
        let name = &subject.name;
        if let (Some(full), Some(kept)) = (value("full-ecdsa", CPU, name), value("keepalive", CPU, name))
            && full > 3.0 * kept
        {
            list.push(format!(
                "Keep connections open: with {name} a new connection costs as much CPU time as {} requests on a kept connection.",
                number::short((full / kept).round())
            ));
        }
        if let (Some(rsa), Some(ecdsa)) = (value("full-rsa", CPU, name), value("full-ecdsa", CPU, name))
            && rsa > 1.5 * ecdsa
        {
            list.push(format!(
                "Prefer ECDSA P-256 certificates to RSA-2048: a full handshake costs {name} {} times as much with RSA.",
                number::short(rsa / ecdsa)
            ));
        }
        if let (Some(full), Some(resumed)) = (value("full-ecdsa", CPU, name), value("resumed", CPU, name)) {
            let share = (1.0 - resumed / full) * 100.0;
            if share > 10.0 {
                list.push(format!("Let clients resume sessions: this saves {name} {share:.0} % of the CPU time of a full ECDSA handshake."));
            }
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use sealane_lab_report::{Figure, Part, Subject};

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
    fn advice_is_given_only_where_it_follows() {
        let list = advice(&page());
        assert_eq!(list.len(), 1, "{list:?}");
        assert!(list[0].contains("nginx a new connection costs as much CPU time as 18 requests"), "{list:?}");
    }
}
