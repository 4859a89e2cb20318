//! Results as tables for a terminal.

use std::fmt::Write;

use crate::atomics::NOBODY_MET;
use crate::doctor::Report;
use crate::measure::Figure;
use crate::paths;
use crate::study::Results;
use crate::wire::Case;

/// Columns as wide as they must be; those of numbers to the right.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let wide = |n: usize| {
        let cells = rows.iter().filter_map(|row| row.get(n)).map(|cell| cell.chars().count());
        cells.chain([head[n].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(wide).collect();
    let figure = |cell: &str| matches!(cell, "-" | "+" | "?") || cell.starts_with(|c: char| c.is_ascii_digit());
    let right: Vec<bool> =
        (0..head.len()).map(|n| n > 0 && rows.iter().filter_map(|row| row.get(n)).all(|cell| figure(cell))).collect();
    let mut out = String::new();
    let head: Vec<String> = head.iter().map(|&h| h.to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for (n, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[n].saturating_sub(cell.chars().count()));
            let gap = if n == 0 { "" } else { "  " };
            let _ = if right[n] { write!(line, "{gap}{pad}{cell}") } else { write!(line, "{gap}{cell}{pad}") };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Everything that a run gave.
pub fn results(results: &Results) -> String {
    let mut out = String::new();
    let machine = &results.machine;
    let _ = writeln!(out, "{}; {} CPUs; Linux {}; {}\n", machine.processor, machine.cpus, machine.kernel, results.date);
    out.push_str(&subjects(results));
    for (name, why) in &results.absent {
        let _ = writeln!(out, "{name}: {why}");
    }
    counts(results, &mut out);
    measured(results, &mut out);
    features(results, &mut out);
    if results.machine.cpus < 8 {
        out.push_str(
            "\nThis machine has too few cores to show how a library collapses under its own locks: this needs dozens \
             of cores.\nThe counts above are exact, and they decide how far a library scales.\n",
        );
    }
    out
}

fn subjects(results: &Results) -> String {
    let rows: Vec<Vec<String>> = results
        .subjects
        .iter()
        .map(|s| {
            let ends = s.stack.support_ends.clone().unwrap_or_else(|| "-".into());
            let quic = s.features.iter().find(|f| f.name == "quic");
            let quic = quic.map_or("not tried", |f| if f.state == "no" { "no" } else { f.note.as_str() });
            let (name, version, licence) = (&s.stack.name, &s.version, &s.stack.licence);
            vec![name.clone(), version.clone(), s.support.name().into(), ends, licence.clone(), quic.into()]
        })
        .collect();
    table(&["stack", "version", "support", "until", "licence", "QUIC"], &rows)
}

fn number(value: f64) -> String {
    if value >= 1e6 {
        format!("{:.2} M", value / 1e6)
    } else if value >= 10_000.0 {
        format!("{:.1} k", value / 1e3)
    } else if value >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

fn counts(results: &Results, out: &mut String) {
    if results.locks.is_empty() {
        return;
    }
    for side in ["server", "client"] {
        let _ = writeln!(
            out,
            "\nPer handshake with TLS 1.3, ECDSA P-256, X25519; the {side}'s side, 64 bytes each way included:"
        );
        let find = |stack: &str, resumed: bool| {
            let same = |case: &Case| case.test == side && case.resumed == resumed && case.threads == 1;
            let locks = results.locks.iter().find(|c| c.stack == stack && same(&c.case));
            let instructions = results.instructions.iter().find(|c| c.stack == stack && same(&c.case));
            (locks.and_then(|c| c.count.as_ref()), instructions.and_then(|c| c.count.as_ref()))
        };
        let mut rows = Vec::new();
        for subject in &results.subjects {
            let name = &subject.stack.name;
            let (full, full_code) = find(name, false);
            let (resumed, resumed_code) = find(name, true);
            let cell = |value: Option<f64>| value.map_or_else(|| "-".into(), number);
            rows.push(vec![
                name.clone(),
                cell(full.map(|l| l.calls)),
                cell(resumed.map(|l| l.calls)),
                cell(resumed.map(|l| l.hottest)),
                cell(full_code.and_then(|c| c.locked)),
                cell(resumed_code.and_then(|c| c.locked)),
                cell(full_code.map(|c| c.instructions)),
                cell(resumed_code.map(|c| c.instructions)),
            ]);
        }
        let head = ["stack", "locks", "resumed", "hottest", "LOCK", "resumed", "instructions", "resumed"];
        out.push_str(&table(&head, &rows));
    }
    waiting(results, out);
    if let Some(atomics) = results.atomics {
        let _ = writeln!(
            out,
            "locks: pthread lock calls; hottest: calls of the most used lock, resumed; LOCK: LOCK-prefixed instructions\n\
             An atomic addition costs {:.0} ns if {} threads share the word, and {:.0} ns alone.",
            atomics.contended_ns, atomics.threads, atomics.alone_ns
        );
        if !atomics.met() {
            let _ = writeln!(out, "{NOBODY_MET}");
        }
    }
    let skipped: std::collections::BTreeSet<&str> =
        results.instructions.iter().filter_map(|c| c.skipped.as_deref()).collect();
    for why in skipped {
        let _ = writeln!(out, "instructions not counted: {why}");
    }
}

/// How often threads met in a lock, and how long they waited in it.
fn waiting(results: &Results, out: &mut String) {
    let Some(threads) = results.locks.iter().map(|c| c.case.threads).max().filter(|n| *n > 1) else { return };
    let _ = writeln!(
        out,
        "\nWaiting for locks, {threads} threads on one context, resumed; per handshake, and not the same in every run:"
    );
    let mut rows = Vec::new();
    for subject in &results.subjects {
        let mut row = vec![subject.stack.name.clone()];
        for side in ["server", "client"] {
            let same = |case: &Case| case.test == side && case.threads == threads;
            let found = results.locks.iter().find(|c| c.stack == subject.stack.name && same(&c.case));
            let count = found.and_then(|c| c.count.as_ref());
            row.push(count.map_or_else(|| "-".into(), |l| format!("{:.2}", l.contended)));
            row.push(count.map_or_else(|| "-".into(), |l| format!("{:.2}", l.waited_us)));
        }
        rows.push(row);
    }
    let head = ["stack", "server: contended", "us waited", "client: contended", "us waited"];
    out.push_str(&table(&head, &rows));
}

fn measured(results: &Results, out: &mut String) {
    for case in &results.plan.cases {
        let unit = if case.record.is_some() { ("MB/s", "us/MiB") } else { ("per s", "CPU us") };
        let _ = writeln!(out, "\n{} of {}, {} threads", case.test, case.name(), case.threads);
        let rows: Vec<Vec<String>> = results
            .series
            .iter()
            .filter(|series| series.case == *case)
            .map(|series| {
                let scale = if case.record.is_some() { 1e-6 } else { 1.0 };
                let span = |f: Option<Figure>, by: f64| {
                    f.map_or_else(Vec::new, |f| {
                        vec![number(f.median * by), format!("{}..{}", number(f.least * by), number(f.most * by))]
                    })
                };
                let mut row = vec![series.stack.clone()];
                match series.void() {
                    Some(why) => row.push(why),
                    None => {
                        row.extend(span(series.cost_us(), 1.0));
                        row.extend(span(series.rate(), scale));
                    }
                }
                row
            })
            .collect();
        // Reasons are long: they stand after the table.
        let (figures, void): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.len() > 2);
        if !figures.is_empty() {
            out.push_str(&table(&["stack", unit.1, "least..most", unit.0, "least..most"], &figures));
        }
        for row in void {
            let _ = writeln!(out, "{}: {}", row[0], row[1]);
        }
        for series in results.series.iter().filter(|s| s.case == *case && case.record.is_none()) {
            if let Some(joules) = series.joules_per_million() {
                let _ = writeln!(
                    out,
                    "{}: {} J per million handshakes, the whole machine",
                    series.stack,
                    number(joules.median)
                );
            }
        }
    }
}

fn features(results: &Results, out: &mut String) {
    let names: Vec<&str> = results
        .subjects
        .iter()
        .max_by_key(|s| s.features.len())
        .map_or_else(Vec::new, |s| s.features.iter().map(|f| f.name.as_str()).collect());
    if names.is_empty() {
        return;
    }
    out.push_str("\nFeatures, tried: + works, - does not, ? not tried by the worker\n");
    let mut head = vec!["feature"];
    head.extend(results.subjects.iter().map(|s| s.stack.name.as_str()));
    let rows: Vec<Vec<String>> = names
        .iter()
        .map(|name| {
            let mut row = vec![(*name).to_owned()];
            for subject in &results.subjects {
                let state = subject.features.iter().find(|f| f.name == *name).map(|f| f.state.as_str());
                row.push(
                    match state {
                        Some("yes") => "+",
                        Some("no") => "-",
                        _ => "?",
                    }
                    .to_owned(),
                );
            }
            row
        })
        .collect();
    out.push_str(&table(&head, &rows));
}

/// Where the time of some stacks goes, in percent: one row per stack, then each one's busiest functions.
pub fn profiles(all: &[(String, crate::profile::Profile)]) -> String {
    let mut head = vec!["stack"];
    head.extend(crate::profile::KINDS);
    head.push("samples");
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|(name, profile)| {
            let mut row = vec![name.clone()];
            row.extend(crate::profile::KINDS.iter().map(|k| percent(profile.shares.get(k).copied().unwrap_or(0.0))));
            row.push(profile.samples.to_string());
            row
        })
        .collect();
    let mut out = table(&head, &rows);
    for (name, profile) in all {
        let busiest: Vec<String> =
            profile.functions.iter().take(6).map(|(f, share)| format!("{f} {} %", percent(*share))).collect();
        let _ = writeln!(out, "{name}: {}", busiest.join(", "));
    }
    out
}

/// What the doctor found.
pub fn doctor(report: &Report) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(out, "{name:<12} {text}");
    };
    line("library", &report.library.display().to_string());
    line("version", &report.description.version);
    match (&report.series, &report.support) {
        (Some(series), Some((support, end))) => {
            let support = support.until(end.as_deref());
            line("support", &format!("{series}: {support} (a distribution may support it longer)"));
        }
        _ => line("support", "not in the catalogue: ask its distributor"),
    }
    for (name, text) in [
        ("compiled", &report.description.compiled),
        ("built", &report.description.built),
        ("CPU mask", &report.description.cpu),
    ] {
        if let Some(text) = text {
            line(name, text);
        }
    }
    if let Some(found) = &report.found {
        line("mask means", &found.join(" "));
    }
    if !report.cpu.is_empty() {
        line("this CPU has", &report.cpu.join(" "));
    }
    for taken in &report.taken {
        line("runs", &paths::line(taken));
    }
    if let Some(why) = &report.taken_skipped {
        line("runs", why);
    }
    for text in &report.build {
        line("BUILD", text);
    }
    for text in &report.slow {
        line("SLOW", text);
    }
    for count in &report.locks {
        let kinds: Vec<String> = count.kinds.iter().map(|(kind, n)| format!("{n:.1} {kind}")).collect();
        line(
            "locks",
            &format!(
                "{:.1} per handshake ({}; {} threads on one context): {}; {:.1} of one shared lock, {:.2} us waited",
                count.calls,
                count.case,
                count.threads,
                kinds.join(", "),
                count.hottest,
                count.waited_us
            ),
        );
        for place in count.places.iter().take(3) {
            let per = place.all.calls as f64 / count.handshakes as f64;
            line("", &format!("{per:.1} by {}", place.callers.iter().take(4).cloned().collect::<Vec<_>>().join(" < ")));
        }
    }
    match (&report.light, &report.light_skipped) {
        (Some((plain, light)), _) => line(
            "light locks",
            &format!(
                "{} resumed handshakes per second as it is ({}..{}), {} with light read-write locks ({}..{})",
                number(plain.median),
                number(plain.least),
                number(plain.most),
                number(light.median),
                number(light.least),
                number(light.most)
            ),
        ),
        (None, Some(why)) => line("light locks", why),
        (None, None) => {}
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["a".into(), "1".into()], vec!["long".into(), "22".into()]];
        assert_eq!(table(&["x", "number"], &rows), "x     number\na          1\nlong      22\n");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([1.25, 721.0, 12_345.0, 3_009_123.0].map(number), ["1.2", "721", "12.3 k", "3.01 M"]);
    }
}
