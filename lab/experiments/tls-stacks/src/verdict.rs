//! What follows, from the page's figures.

use sealane_lab_report::Page;
use sealane_lab_stacks::catalogue::{self, Support};

use crate::{counts, scaling, speed};

/// With fewer threads than this a collapse under locks does not show; the study saw it from a dozen on.
pub const ENOUGH: f64 = 8.0;

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
