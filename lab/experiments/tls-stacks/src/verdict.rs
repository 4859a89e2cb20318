//! What follows, from the page's figures.

use sealane_lab_harness::study;
use sealane_lab_report::{Figure, Finding, Outcome, Page, Part, number};
use sealane_lab_stacks::catalogue::{self, Support};

use crate::{counts, scaling, speed};

/// With fewer threads than this a collapse under locks does not show; the study saw it from a dozen on.
pub const ENOUGH: f64 = 8.0;

/// From this number of threads on, the study's collapse of OpenSSL 3.0 is complete; below [`BEFORE`], it has not begun.
const COLLAPSED: f64 = 16.0;
/// See [`COLLAPSED`].
const BEFORE: f64 = 12.0;
/// The releases of OpenSSL 3.0, the study's own one first.
const OPENSSL_3_0: [&str; 2] = ["openssl-3.0.2", "openssl-3.0"];
/// The release with which the study compares.
const OPENSSL_1_1_1: &str = "openssl-1.1.1";

/// The study's main claim: with OpenSSL 3.0, the rate of resumed handshakes collapses between 12 and 16 threads.
pub fn finding(page: &Page) -> Finding {
    let told = study::data("ssl-stacks").unwrap_or_default();
    let rates = &told["resumed_end_to_end_connections_per_second_64_threads"]["default locks"];
    let published = format!(
        "resumed connections per second with 64 threads: OpenSSL 3.0.2 {}, OpenSSL 1.1.1w {}",
        rates["OpenSSL 3.0.2"].as_str().unwrap_or_default(),
        rates["OpenSSL 1.1.1w"].as_f64().map_or_else(String::new, number::short)
    );
    let row = Finding::new("TLS libraries (SSL stacks)", published);
    if let Some(row) = page.part("scaling").and_then(|part| collapse(part, &row)) {
        return row;
    }
    let locks = |name: &str| page.part("counts").and_then(|part| part.value(name, counts::LOCKS_RESUMED));
    let new = OPENSSL_3_0.iter().find_map(|name| Some((name, locks(name)?)));
    let (Some((name, new)), Some(old)) = (new, locks(OPENSSL_1_1_1)) else { return row };
    row.found(
        format!(
            "A resumed handshake takes {new:.0} lock calls on the server with {name}, and {old:.0} with {OPENSSL_1_1_1}. Whether the \
             rate collapses can be measured only with {COLLAPSED} CPUs or more."
        ),
        String::new(),
        Outcome::NotMeasurable,
    )
}

/// The row, if the part has enough threads for it.
fn collapse(part: &Part, row: &Finding) -> Option<Finding> {
    let rates = |name: &str| -> Vec<(f64, &Figure)> {
        let of = part.figures.iter().filter(|f| f.measure == scaling::RESUMED && f.subject == name);
        of.filter_map(|f| Some((f.x?, f))).collect()
    };
    let (name, all) = OPENSSL_3_0.iter().map(|name| (name, rates(name))).find(|(_, all)| !all.is_empty())?;
    let most = all.iter().filter(|(threads, _)| *threads >= COLLAPSED).max_by(|a, b| a.0.total_cmp(&b.0))?;
    let best = all.iter().filter(|(threads, _)| *threads <= BEFORE).max_by(|a, b| a.1.value.total_cmp(&b.1.value))?;
    let outcome = Outcome::lower(most.1, best.1);
    let finding = match outcome {
        Outcome::Confirmed => "With more threads, OpenSSL 3.0 makes fewer resumed handshakes per second.",
        Outcome::Contradicted => "With more threads, OpenSSL 3.0 makes more resumed handshakes per second.",
        _ => "The rounds do not show whether the rate of OpenSSL 3.0 falls with more threads.",
    };
    let at = |(threads, figure): (f64, &Figure)| {
        format!("{}/s with {} threads", number::short(figure.value), number::short(threads))
    };
    Some(row.clone().found(finding, format!("{name}: {}, {}", at(*best), at(*most)), outcome))
}

/// Writes verdict and advice.
pub fn conclude(page: &mut Page) {
    let mut said = Vec::new();
    if let Some(part) = page.part("counts") {
        let mut all: Vec<(String, f64)> =
            part.of(counts::LOCKS_RESUMED).map(|f| (f.subject.clone(), f.value)).collect();
        all.sort_by(|a, b| a.1.total_cmp(&b.1));
        if let (Some((least, few)), Some((most, many))) = (all.first(), all.last())
            && all.len() > 1
        {
            said.push(format!(
                "A resumed handshake takes {few:.0} lock calls on the server with {least}, and {many:.0} with {most}."
            ));
        }
    }
    if let Some(part) = page.part("cost") {
        for (measure, what) in [(speed::SERVER_FULL, "full"), (speed::SERVER_RESUMED, "resumed")] {
            let mut all: Vec<(String, f64)> = part.of(measure).map(|f| (f.subject.clone(), f.value)).collect();
            all.sort_by(|a, b| a.1.total_cmp(&b.1));
            if let (Some((least, few)), Some((most, many))) = (all.first(), all.last())
                && all.len() > 1
            {
                said.push(format!(
                    "A {what} handshake costs the server {few:.0} µs of CPU with {least} and {many:.0} µs with {most}."
                ));
            }
        }
    }
    let threads = page.part("scaling").and_then(|p| p.of(scaling::RESUMED).filter_map(|f| f.x).reduce(f64::max));
    if let Some(threads) = threads.filter(|n| *n < ENOUGH) {
        said.push(format!(
            "A measurement with at most {threads} threads cannot show how a library collapses under its own locks: \
             this needs a dozen threads or more. The counts say how far each library scales."
        ));
    }
    if said.is_empty() {
        said.push("Nothing was measured that allows a verdict.".into());
    }
    page.verdict = said.join(" ");
    page.advice.clear();
    let today = catalogue::today();
    let ended: Vec<String> = catalogue::catalogue()
        .stacks
        .iter()
        .filter(|s| s.support(&today) == Support::Ended && page.subjects.iter().any(|b| b.name == s.name))
        .map(|s| format!("{} ({})", s.name, s.support_ends.as_deref().unwrap_or_default()))
        .collect();
    if !ended.is_empty() {
        page.advice
            .push(format!("Support has ended for {}: replace them, whatever their figures are.", ended.join(", ")));
    }
    page.advice.push(
        "`sealane-lab stacks advise --need …` ranks libraries for your needs; `sealane-lab stacks doctor PROGRAM` examines the library of a program.".into(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(rates: &[(f64, f64)], locks: bool) -> Page {
        let mut scaling = Part::new("scaling", "", "");
        for (threads, rate) in rates {
            let figure = Figure::new("openssl-3.0", scaling::RESUMED, *rate, "/s").at(*threads);
            scaling.push(figure.between(rate * 0.98, rate * 1.02).samples(6));
        }
        let mut counts = Part::new("counts", "", "");
        for (name, calls) in [("openssl-3.0", 672.0), (OPENSSL_1_1_1, 25.0)].into_iter().filter(|_| locks) {
            counts.push(Figure::new(name, counts::LOCKS_RESUMED, calls, "").samples(200));
        }
        Page { parts: vec![scaling, counts], ..Page::default() }
    }

    #[test]
    fn a_collapse_needs_many_threads() {
        let row = finding(&page(&[(1.0, 2_000.0), (12.0, 15_000.0), (16.0, 9_000.0), (64.0, 1_600.0)], false));
        assert_eq!(row.outcome, Outcome::Confirmed);
        assert_eq!(row.measured, "openssl-3.0: 15,000/s with 12 threads, 1,600/s with 64 threads");
        assert!(row.published.contains("1500 to 1600") && row.published.contains("17,800"), "{}", row.published);
        let growth = finding(&page(&[(1.0, 2_000.0), (12.0, 15_000.0), (16.0, 20_000.0)], true));
        assert_eq!(growth.outcome, Outcome::Contradicted);

        let few = finding(&page(&[(1.0, 2_000.0), (2.0, 4_000.0)], true));
        assert_eq!((few.outcome, few.measured.as_str()), (Outcome::NotMeasurable, ""));
        assert!(few.finding.contains("672 lock calls") && few.finding.contains("16 CPUs"), "{}", few.finding);
        assert_eq!(finding(&page(&[(1.0, 2_000.0), (2.0, 4_000.0)], false)).outcome, Outcome::NotMeasured);
        assert_eq!(finding(&Page::default()).outcome, Outcome::NotMeasured);
    }
}
