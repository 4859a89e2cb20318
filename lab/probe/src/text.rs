//! Reports for people.

use std::fmt::Write;

use crate::cert::Certificate;
use crate::comparison::{MetricSummary, Pair};
use crate::inspect::{Inspection, VersionReport};
use crate::report::Report;
use crate::run::Measured;
use crate::scan::{Finding, Scan};
use crate::stats::{Direction, MannWhitneyMethod, Summary};
use crate::timing::Metric;
use crate::tls::{EarlyData, Kind, Negotiated};

/// A duration in milliseconds with microseconds as decimals, rounded half up as people round.
pub fn time(nanoseconds: f64) -> String {
    let micros = (nanoseconds / 1000.0).round();
    format!("{:.3} ms", micros / 1000.0)
}

fn ms(nanoseconds: f64) -> String {
    format!("{:.3}", (nanoseconds / 1000.0).round() / 1000.0)
}

fn signed(nanoseconds: f64) -> String {
    format!("{:+.3}", (nanoseconds / 1000.0).round() / 1000.0)
}

/// The whole report.
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_report(&mut out, report);
    out
}

fn write_report(out: &mut String, report: &Report) -> std::fmt::Result {
    if let Some(url) = &report.url {
        writeln!(
            out,
            "{url}: {} attempts{} after {} rounds of warm-up; milliseconds",
            report.attempts,
            if report.variants.len() > 1 { " of each variant, taking turns (ABBA)," } else { "" },
            report.warmup_rounds
        )?;
    }
    if let Some(file) = &report.file {
        writeln!(out, "rows of {file}; milliseconds")?;
    }
    for variant in &report.variants {
        write_variant(out, variant)?;
    }
    for group in &report.groups {
        writeln!(out, "\n{} ({} rows)", group.name, group.samples.len())?;
        write_metrics(out, &group.metrics)?;
    }
    for pair in &report.pairs {
        write_pair(out, pair)?;
    }
    if let Some(inspection) = &report.inspection {
        write_inspection(out, inspection)?;
        write_advice(out, report)?;
    }
    if !report.thresholds.is_empty() {
        writeln!(out, "\nthresholds")?;
        for verdict in &report.thresholds {
            let word = match verdict.failed {
                Some(true) => "FAILED",
                Some(false) => "ok",
                None => "not compared: there is no value (too few samples?)",
            };
            writeln!(out, "  {}: {word} ({})", verdict.condition, verdict.found.join(", "))?;
        }
    }
    Ok(())
}

fn write_variant(out: &mut String, measured: &Measured) -> std::fmt::Result {
    writeln!(out, "\n{}: {}", measured.variant, agreed(&measured.negotiated))?;
    for other in &measured.also_negotiated {
        writeln!(out, "  in some attempts: {}", agreed(other))?;
    }
    let statuses: Vec<String> = measured.statuses.iter().map(|(s, n)| format!("{s} (×{n})")).collect();
    writeln!(out, "  from {}, status {}, {} bytes", measured.peer, statuses.join(", "), measured.body_bytes)?;
    if measured.early_data_accepted + measured.early_data_rejected > 0 {
        writeln!(
            out,
            "  early data accepted {} times, rejected {} times; with it the request overlaps the handshake, so compare totals",
            measured.early_data_accepted, measured.early_data_rejected
        )?;
    }
    write_metrics(out, &measured.metrics)
}

fn write_metrics(out: &mut String, metrics: &[MetricSummary]) -> std::fmt::Result {
    let has = |f: fn(&Summary) -> Option<f64>| metrics.iter().any(|m| f(&m.summary).is_some());
    let (p90, p99) = (has(|s| s.p90), has(|s| s.p99));
    write!(out, "  {:<19}{:>10}{:>10}{:>10}", "", "min", "median", "mean")?;
    write!(out, "{}{}", if p90 { "       p90" } else { "" }, if p99 { "       p99" } else { "" })?;
    writeln!(out, "{:>10}", "max")?;
    for metric in metrics {
        if metric.metric == Metric::TimeNamelookup {
            writeln!(out, "  cumulative, as curl -w prints it:")?;
        }
        let s = &metric.summary;
        write!(out, "  {:<19}{:>10}{:>10}{:>10}", metric.metric.name(), ms(s.min as f64), ms(s.median), ms(s.mean))?;
        for value in [(p90, s.p90), (p99, s.p99)].into_iter().filter(|(shown, _)| *shown).map(|(_, v)| v) {
            write!(out, "{:>10}", value.map_or("-".into(), ms))?;
        }
        writeln!(out, "{:>10}   {}", ms(s.max as f64), metric.metric.meaning())?;
    }
    let n = metrics.first().map_or(0, |m| m.summary.n);
    if n < 20 {
        writeln!(out, "  ({n} samples: fewer than ten lie beyond the median, so the median is uncertain)")?;
    } else if n < 100 {
        writeln!(out, "  ({n} samples: p90 needs 100, p99 needs 1000)")?;
    }
    Ok(())
}

fn write_pair(out: &mut String, pair: &Pair) -> std::fmt::Result {
    writeln!(out, "\n{} against {}", pair.second, pair.first)?;
    writeln!(out, "  mean, median: {}; mean', median': {}", pair.first, pair.second)?;
    writeln!(
        out,
        "  {:<19}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}  {:>17}{:>8}{:>8}",
        "", "mean", "mean'", "change", "median", "median'", "diff.", "95 % interval", "p (MW)", "p perm."
    )?;
    for m in &pair.metrics {
        if m.metric == Metric::TimeNamelookup {
            writeln!(out, "  cumulative, as curl -w prints it (each contains those above it):")?;
        }
        writeln!(
            out,
            "  {:<19}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}  {:>17}{:>8}{:>8}  {}",
            m.metric.name(),
            ms(m.means[0]),
            ms(m.means[1]),
            m.relative_difference_of_means.map_or("-".into(), |d| format!("{:+.1} %", d * 100.0)),
            ms(m.medians[0]),
            ms(m.medians[1]),
            signed(m.bootstrap.difference),
            format!("{} … {}", signed(m.bootstrap.low), signed(m.bootstrap.high)),
            p_value(m.mann_whitney.p),
            p_value(m.permutation.p),
            m.verdict.map_or(String::new(), |v| verdict(v).to_owned()),
        )?;
    }
    let total = pair.metric(Metric::Total);
    if let (Some(total), Some(tls)) = (total, pair.metric(Metric::Tls)) {
        for (what, m) in [("In total", total), ("In the TLS phase by itself", tls)] {
            match m.verdict {
                Some(Direction::NoDifferenceShown) | None => writeln!(out, "  {what}: no difference shown.")?,
                Some(direction) => writeln!(
                    out,
                    "  {what}: {} is {} by {} ms at the median (95 % interval {} to {}).",
                    pair.second,
                    if direction == Direction::Shorter { "shorter" } else { "longer" },
                    ms(m.bootstrap.difference.abs()),
                    ms(m.bootstrap.low.abs().min(m.bootstrap.high.abs())),
                    ms(m.bootstrap.low.abs().max(m.bootstrap.high.abs())),
                )?,
            }
        }
        let method = match total.mann_whitney.method {
            MannWhitneyMethod::Exact => "counting (exact)",
            MannWhitneyMethod::Normal => "the normal approximation, corrected for ties",
        };
        writeln!(
            out,
            "  Interval: percentile bootstrap of the difference of medians, {} resamples, seed {}.\n  \
             p (MW): Mann-Whitney, two-sided, for the total by {method}.\n  \
             p perm.: permutation of the means, for the total {}.\n  \
             A difference is shown when the interval leaves out 0 and p (MW) stays below 0.05 after Holm's correction\n  \
             (over all phases; over all totals). Nothing is claimed about cumulative columns.",
            total.bootstrap.resamples,
            total.bootstrap.seed,
            if total.permutation.exact { "over every relabelling" } else { "over a sample of relabellings" },
        )?;
    }
    Ok(())
}

fn verdict(direction: Direction) -> &'static str {
    match direction {
        Direction::Shorter => "shorter",
        Direction::Longer => "longer",
        Direction::NoDifferenceShown => "no difference shown",
    }
}

fn p_value(p: f64) -> String {
    if p < 0.001 { "<0.001".into() } else { format!("{p:.3}") }
}

fn agreed(n: &Negotiated) -> String {
    let mut parts = vec![n.version.clone()];
    parts.extend(n.suite.clone());
    parts.extend(n.group.clone());
    parts.push(n.alpn.clone().unwrap_or_else(|| "no ALPN (HTTP/1.1)".into()));
    parts.push(
        match n.handshake {
            Kind::Full => "full handshake",
            Kind::FullWithRetry => "full handshake with a HelloRetryRequest (one more round trip)",
            Kind::Resumed => "resumed",
        }
        .into(),
    );
    match n.early_data {
        Some(EarlyData::Accepted) => parts.push("early data accepted".into()),
        Some(EarlyData::Rejected) => parts.push("early data rejected".into()),
        None => {}
    }
    parts.join(", ")
}

fn write_inspection(out: &mut String, seen: &Inspection) -> std::fmt::Result {
    writeln!(out, "\nwhat the server offers")?;
    writeln!(out, "  negotiated     {}", agreed(&seen.negotiated))?;
    write_version(out, "TLS 1.2", &seen.tls12)?;
    write_version(out, "TLS 1.3", &seen.tls13)?;
    for (i, cert) in seen.certificates.iter().enumerate() {
        write_certificate(out, cert, i)?;
    }
    if !seen.certificate_checked {
        writeln!(out, "                 neither chain nor name was checked (--insecure)")?;
    }
    match &seen.ocsp_staple {
        None => writeln!(out, "  OCSP staple    none")?,
        Some(staple) => writeln!(
            out,
            "  OCSP staple    {}, of {}, next {} (its signature is not checked)",
            staple.status,
            staple.this_update.as_deref().unwrap_or("?"),
            staple.next_update.as_deref().unwrap_or("unannounced")
        )?,
    }
    writeln!(out, "  HTTP/2         {}", if seen.http2 { "yes" } else { "no" })?;
    writeln!(out, "  HSTS           {}", seen.hsts.as_deref().unwrap_or("none"))?;
    writeln!(out, "  Server         {}", seen.server.as_deref().unwrap_or("none"))?;
    if let Some(alt_svc) = &seen.alt_svc {
        writeln!(out, "  Alt-Svc        {alt_svc}")?;
    }
    if let Some(scan) = &seen.scan {
        writeln!(out, "  old versions   {}", findings(&scan.old_versions))?;
        writeln!(out, "  weak suites    {}", findings(&scan.weak_suites))?;
        writeln!(out, "  groups         {}", findings(&scan.groups))?;
        let key = seen.certificates.first().map(|certificate| certificate.key.as_str());
        writeln!(out, "  post-quantum   {}", post_quantum(scan, key))?;
    }
    if let Some(ech) = &seen.ech {
        writeln!(out, "  ECH            {ech}")?;
    }
    Ok(())
}

/// Whether key exchange and certificate withstand a quantum computer. `key` is the kind of the certificate's key.
fn post_quantum(scan: &Scan, key: Option<&str>) -> String {
    let exchange = match (scan.post_quantum(), scan.is_post_quantum_unclear()) {
        (true, _) => "ready",
        (false, true) => "unclear",
        (false, false) => "not ready",
    };
    let certificate = match key {
        Some(key) if key.starts_with("ML-DSA") => format!("ready ({key})"),
        Some(key) => format!("not ready ({key})"),
        None => "unknown".to_owned(),
    };
    format!("key exchange {exchange}; certificate {certificate}")
}

fn findings(all: &[Finding]) -> String {
    let with = |state| all.iter().filter(|f| f.accepted == state).map(|f| f.name.as_str()).collect::<Vec<_>>();
    let mut parts = Vec::new();
    for (names, word) in [(with(Some(true)), "accepted"), (with(Some(false)), "refused"), (with(None), "unclear")] {
        if !names.is_empty() {
            parts.push(format!("{word}: {}", names.join(", ")));
        }
    }
    parts.join("; ")
}

fn write_version(out: &mut String, name: &str, report: &VersionReport) -> std::fmt::Result {
    write!(out, "  {name}        ")?;
    if !report.offered {
        return writeln!(out, "no request succeeded ({})", report.problem.as_deref().unwrap_or("no reason given"));
    }
    if let Some(n) = &report.negotiated {
        write!(out, "{}", [n.suite.clone(), n.group.clone()].into_iter().flatten().collect::<Vec<_>>().join(", "))?;
    }
    let tickets = report.tickets.tls12 + report.tickets.tls13;
    match (tickets, report.tickets.tls12) {
        (0, _) => write!(out, "; no session tickets")?,
        (n, 0) => write!(out, "; {n} session ticket{}", if n == 1 { "" } else { "s" })?,
        (1, _) => write!(out, "; 1 session ID or ticket")?,
        (n, _) => write!(out, "; {n} session IDs or tickets")?,
    }
    match report.tickets.lifetime_s {
        Some(0) => write!(out, " without a lifetime")?,
        Some(s) => write!(out, " for {s} s")?,
        None => {}
    }
    match report.resumed {
        Some(true) => write!(out, "; the session was resumed")?,
        Some(false) => write!(out, "; the session was NOT resumed")?,
        None => {}
    }
    match (report.tickets.max_early_data, report.early_data_accepted) {
        (0, _) => {}
        (max, Some(true)) => write!(out, "; early data up to {max} bytes, accepted")?,
        (max, Some(false)) => write!(out, "; early data up to {max} bytes offered, then rejected")?,
        (max, None) => write!(out, "; early data up to {max} bytes offered")?,
    }
    writeln!(out)?;
    if let Some(problem) = &report.problem {
        writeln!(out, "                 afterwards: {problem}")?;
    }
    Ok(())
}

fn write_certificate(out: &mut String, cert: &Certificate, depth: usize) -> std::fmt::Result {
    let label = if depth == 0 { "certificate" } else { "  issued by" };
    writeln!(out, "  {label:<14} {} (issuer: {})", cert.subject, cert.issuer)?;
    let bits = if cert.key == "RSA" { format!(" {}", cert.key_bits) } else { String::new() };
    writeln!(
        out,
        "                 {}{bits}, signed by {}; {} to {}, {} days left",
        cert.key, cert.signature_algorithm, cert.not_before, cert.not_after, cert.days_left
    )?;
    if depth == 0 {
        writeln!(out, "                 for {}", cert.subject_alternative_names.join(", "))?;
    }
    Ok(())
}

fn write_advice(out: &mut String, report: &Report) -> std::fmt::Result {
    if report.advice.is_empty() {
        let untested = match report.inspection.as_ref().is_some_and(|seen| seen.scan.is_none()) {
            true => " (old versions, weak suites and groups were not tested: --no-scan)",
            false => "",
        };
        return writeln!(out, "\nno weakness was found{untested}");
    }
    writeln!(out, "\nwhat to tighten")?;
    for advice in &report.advice {
        writeln!(out, "\n  [{}] {}", format!("{:?}", advice.severity).to_lowercase(), advice.finding)?;
        writeln!(out, "    {}", advice.why)?;
        for (name, lines) in [("nginx", advice.nginx), ("haproxy", advice.haproxy), ("sealane", advice.sealane)] {
            for (i, line) in lines.lines().enumerate() {
                writeln!(out, "    {:<9}{line}", if i == 0 { name } else { "" })?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tickets::TicketCount;

    #[test]
    fn the_studys_report_says_what_is_and_is_not_shown() {
        let series = crate::curl::parse(include_str!("../../data/tls-versions-curl.csv")).expect("rows");
        let text = render(&Report::of_rows("study.csv", series, 1));
        for part in [
            "7.473",
            "6.486",
            "-13.2 %",
            "10.405",
            "10.098",
            "-2.9 %",
            "4.201",
            "3.138",
            "-25.3 %",
            "0.677",
            "0.428",
            "In total: no difference shown.",
            "In the TLS phase by itself: 1.3 is shorter",
            "time_appconnect",
        ] {
            assert!(text.contains(part), "{part} is missing from\n{text}");
        }
    }

    #[test]
    fn post_quantum_is_said_of_key_exchange_and_certificate() {
        let scan = |name: &str, accepted| {
            let finding = Finding { name: name.into(), accepted, answer: String::new() };
            Scan { groups: vec![finding], ..Scan::default() }
        };
        let hybrid = "X25519MLKEM768";
        for (scan, key, wanted) in [
            (scan(hybrid, Some(true)), Some("ECDSA P-256"), "key exchange ready; certificate not ready (ECDSA P-256)"),
            (scan(hybrid, Some(false)), Some("ML-DSA-65"), "key exchange not ready; certificate ready (ML-DSA-65)"),
            (scan("x25519", Some(true)), None, "key exchange not ready; certificate unknown"),
            (scan(hybrid, None), None, "key exchange unclear; certificate unknown"),
        ] {
            assert_eq!(post_quantum(&scan, key), wanted);
        }
    }

    #[test]
    fn a_version_is_reported_only_as_far_as_it_was_tested() {
        let said = |offered, problem: Option<&str>, resumed| {
            let tickets = TicketCount { tls13: 2, lifetime_s: Some(300), ..TicketCount::default() };
            let problem = problem.map(str::to_owned);
            let report =
                VersionReport { offered, problem, negotiated: None, tickets, resumed, early_data_accepted: None };
            let mut out = String::new();
            write_version(&mut out, "TLS 1.3", &report).expect("a string takes all");
            out
        };
        let resumed = said(true, None, Some(true));
        assert!(resumed.ends_with("; 2 session tickets for 300 s; the session was resumed\n"), "{resumed}");
        assert!(said(true, None, Some(false)).ends_with("; the session was NOT resumed\n"));
        let untested = said(true, Some("resumption was not tested: timed out"), None);
        assert!(
            untested.contains(" for 300 s\n")
                && untested.ends_with("afterwards: resumption was not tested: timed out\n")
        );
        assert!(said(false, Some("timed out"), None).ends_with("no request succeeded (timed out)\n"));
    }

    #[test]
    fn halves_round_up() {
        assert_eq!(time(6_485_500.0), "6.486 ms");
        assert_eq!(time(0.0), "0.000 ms");
    }
}
