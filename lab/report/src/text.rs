//! The summary for a terminal.

use std::fmt::Write as _;

use crate::model::{Figure, Page, Part, Report, Source, View};
use crate::{hours, number};

/// The report in lines of text.
pub fn summary(report: &Report) -> String {
    let mut s = String::new();
    let _ = writeln!(s, "{} ({} run)\n{}", report.title, report.mode, report.verdict);
    for row in report.pages.iter().filter_map(|p| p.finding.as_ref()) {
        let _ = writeln!(s, "\n{}: {}\n   {}", row.study, row.outcome.words(), row.finding);
        let _ = writeln!(s, "   published: {}", row.published);
        if !row.measured.is_empty() {
            let _ = writeln!(s, "   here: {}", row.measured);
        }
    }
    for page in &report.pages {
        write_page(&mut s, page, report.pages.len() > 1);
    }
    s
}

fn write_page(s: &mut String, page: &Page, several: bool) {
    if several {
        let _ = writeln!(s, "\n== {}\n{}", page.title, page.verdict);
    }
    if let Some(why) = &page.obstacle {
        let _ = writeln!(s, "not run here: {why}");
        return;
    }
    let names = page.names();
    for part in &page.parts {
        write_part(s, part, &names);
    }
    let voids = page.voids();
    if voids > 0 {
        let _ = writeln!(s, "\n{voids} void round(s); the report names them.");
        for hour in hours::of(page) {
            let why: Vec<String> = hour.reasons.iter().map(|(why, n)| format!("{n} × {why}")).collect();
            let (began, void, attempts) = (&hour.began, hour.void, hour.attempts);
            let _ = writeln!(s, "  hour from {began}: {void} of {attempts} attempts void  {}", why.join("; "));
        }
    }
    if !page.advice.is_empty() {
        let _ = writeln!(s, "\nRecommendations:");
        for advice in &page.advice {
            let _ = writeln!(s, "  - {advice}");
        }
    }
}

fn write_part(s: &mut String, part: &Part, names: &[String]) {
    let _ = writeln!(s, "\n-- {}", part.title);
    if let Some(why) = &part.skipped {
        let _ = writeln!(s, "   left out: {why}");
        return;
    }
    // Curves are for the page; what has a bar or a place on the x axis and was measured or published is told here.
    let spectrum =
        |f: &Figure| part.views.iter().any(|v| matches!(v, View::Spectrum { measure, .. } if *measure == f.measure));
    let told = |f: &&Figure| {
        matches!(f.source, Source::Measured | Source::Published) && (f.x.is_none() || !spectrum(f) || usual(f))
    };
    let figures: Vec<&Figure> = part.figures.iter().filter(told).collect();
    let mut measures: Vec<&str> = Vec::new();
    for f in &figures {
        if !measures.contains(&f.measure.as_str()) {
            measures.push(&f.measure);
        }
    }
    let wide = names.iter().map(|n| n.chars().count()).max().unwrap_or(8);
    for measure in measures {
        let _ = writeln!(s, "   {measure}");
        for name in names {
            for f in figures.iter().filter(|f| f.measure == measure && f.subject == *name) {
                let place = |x| if spectrum(f) { number::percentile(x) } else { number::short(x) };
                let x = f.x.map_or_else(String::new, |x| format!(" at {}", place(x)));
                let range = match (f.low, f.high) {
                    (Some(l), Some(h)) if h > l => format!("  ({} to {})", number::short(l), number::short(h)),
                    _ => String::new(),
                };
                let source = if f.source == Source::Published { "  published" } else { "" };
                let value = number::with_unit(f.value, &f.unit);
                let _ = writeln!(s, "     {name:wide$}{x}  {value}{range}{source}");
            }
        }
    }
    for note in &part.notes {
        let _ = writeln!(s, "   note: {note}");
    }
}

/// Of a spectrum's many points only those that people name.
fn usual(f: &Figure) -> bool {
    const SOME: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 99.9999];
    f.x.is_some_and(|x| SOME.iter().any(|p| (p - x).abs() < 1e-9))
}
