//! What it comes to, in words made from this run's figures.

use sealane_lab_harness::study;
use sealane_lab_report::{Finding, Outcome, Page, Part, number};

use crate::datagrams::passed;
use crate::measure::{SERVER_CPU, THROUGHPUT, times};
use crate::world::{KERNEL, MIXED, SEALANE, TUNED};

/// Fills verdict and advice.
pub fn conclude(page: &mut Page) {
    let said: Vec<String> = [
        stream(page, "tcp-segmented", "with outer packets segmented on the wire"),
        stream(page, "tcp-whole", "over a wire that accepts super-packets"),
        stream(page, "tcp-chacha20", "with ChaCha20-Poly1305"),
        stream(page, "tcp-software", "with AES in software"),
        server(page),
        datagrams(page),
    ]
    .into_iter()
    .flatten()
    .collect();
    page.verdict = if said.is_empty() { "Nothing could be compared.".to_owned() } else { said.join(" ") };
    page.advice = advice(page);
}

/// The study's main claim: with the data channel in the kernel (DCO), the throughput is several times as high.
pub fn finding(page: &Page) -> Finding {
    let told = study::data("openvpn-dco").unwrap_or_default();
    let rate = |name: &str| told["mbit_per_second"][name].as_f64().unwrap_or(f64::NAN);
    let (user, kernel) = (rate("if_tun (user space, with AES-NI)"), rate("DCO, AES-NI"));
    let row = Finding::new(
        "OpenVPN in the kernel (DCO)",
        format!(
            "{} Mbit/s in user space, {} Mbit/s with DCO: {} times as much",
            number::short(user),
            number::short(kernel),
            number::short(kernel / user)
        ),
    );
    let Some(part) = page.part("tcp-segmented") else { return row };
    let of = |part: &Part, name: &str| {
        part.figures.iter().find(|f| f.measure == times(THROUGHPUT) && f.subject == name).cloned()
    };
    if let Some(ratio) = of(part, KERNEL) {
        let outcome = Outcome::above_one(&ratio);
        let finding = match outcome {
            Outcome::Confirmed => "With the data channel in the kernel, the throughput is higher.",
            Outcome::Contradicted => "With the data channel in the kernel, the throughput is lower.",
            _ => {
                "The rounds do not show a difference between the data channel in the kernel and OpenVPN in user space."
            }
        };
        return row.found(finding, format!("{} times as much as tuned OpenVPN", number::short(ratio.value)), outcome);
    }
    // The row exists only if the kernel has the module; if all of its rounds were void, it is not measured.
    let void = part.voids.iter().any(|v| v.subject == KERNEL);
    let Some(ours) = of(part, SEALANE).filter(|_| !void) else { return row };
    row.found(
        format!(
            "The kernel has no module `ovpn`. Sealane's data plane in user space carries {} times as much as tuned OpenVPN.",
            number::short(ours.value)
        ),
        String::new(),
        Outcome::NotMeasurable,
    )
}

fn stream(page: &Page, part: &str, how: &str) -> Option<String> {
    let part = page.part(part)?;
    let (ours, theirs) = (part.value(SEALANE, THROUGHPUT)?, part.value(TUNED, THROUGHPUT)?);
    let ratio = part.value(SEALANE, &times(THROUGHPUT))?;
    Some(format!(
        "One TCP stream gets {} Gbit/s through Sealane and {} through tuned OpenVPN {how}: {} times as much.",
        number::short(ours),
        number::short(theirs),
        number::short(ratio)
    ))
}

fn server(page: &Page) -> Option<String> {
    let ratio = page.part("tcp-segmented")?.value(MIXED, &times(SERVER_CPU))?;
    Some(format!(
        "With an unchanged OpenVPN client, Sealane's server needs {} times as much CPU time per gigabyte as tuned OpenVPN's server.",
        number::short(ratio)
    ))
}

fn datagrams(page: &Page) -> Option<String> {
    let ratio = page.part("udp")?.value(SEALANE, &times(&passed(64)))?;
    Some(format!(
        "Sealane carries {} times as many 64-byte datagrams per second as tuned OpenVPN, with at most 0.5 % lost.",
        number::short(ratio)
    ))
}

fn advice(page: &Page) -> Vec<String> {
    let mut list = Vec::new();
    if let Some(part) = page.part("tcp-segmented")
        && let Some(ratio) = part.value(MIXED, &times(SERVER_CPU))
        && ratio < 0.7
    {
        list.push(
            "Replace the server first: Sealane's server needs less CPU time for existing OpenVPN clients, too."
                .to_owned(),
        );
    }
    if let Some(part) = page.part("tcp-segmented")
        && let (Some(plain), Some(tuned)) = (part.value("OpenVPN", THROUGHPUT), part.value(TUNED, THROUGHPUT))
        && tuned > plain * 1.1
    {
        list.push(
            "If you keep OpenVPN, set sndbuf and rcvbuf: the throughput is lower with their defaults.".to_owned(),
        );
    }
    list
}

#[cfg(test)]
mod tests {
    use sealane_lab_report::{Figure, Void};

    use super::*;

    fn page(ratios: &[(&str, f64, u64)]) -> Page {
        let mut part = Part::new("tcp-segmented", "", "");
        for (name, value, n) in ratios {
            let figure = Figure::new(name, &times(THROUGHPUT), *value, "×");
            part.push(figure.between(value - 0.5, value + 0.5).samples(*n));
        }
        Page { parts: vec![part], ..Page::default() }
    }

    #[test]
    fn the_kernel_is_compared_with_the_study_where_it_was_measured() {
        let row = finding(&page(&[(SEALANE, 6.1, 6), (KERNEL, 3.0, 6)]));
        assert_eq!(row.outcome, Outcome::Confirmed);
        assert!(row.published.contains("207.3") && row.published.contains("3.62 times"), "{}", row.published);
        assert_eq!(row.measured, "3 times as much as tuned OpenVPN");
        assert_eq!(finding(&page(&[(KERNEL, 0.4, 6)])).outcome, Outcome::Contradicted);
        assert_eq!(finding(&page(&[(KERNEL, 3.0, 2)])).outcome, Outcome::Undecided, "too few rounds");

        let mut without = page(&[(SEALANE, 6.1, 6)]);
        let row = finding(&without);
        assert_eq!(row.outcome, Outcome::NotMeasurable);
        assert!(row.finding.contains("6.1 times"), "{}", row.finding);
        let void = Void { subject: KERNEL.into(), what: "round 1".into(), why: "late".into() };
        without.parts[0].voids.push(void);
        assert_eq!(finding(&without).outcome, Outcome::NotMeasured, "the kernel has the module");
        assert_eq!(finding(&Page::default()).outcome, Outcome::NotMeasured);
    }
}
