//! Reads rows of `curl -w` output, so that measurements made elsewhere can be judged by the same statistics.

use crate::comparison::Series;
use crate::error::ProbeError;
use crate::timing::{Metric, Timing};

/// What to give curl so that each run appends one row; the first two columns are the caller's.
pub const WRITE_OUT: &str =
    "GROUP,ATTEMPT,%{time_namelookup},%{time_connect},%{time_appconnect},%{time_starttransfer},%{time_total}\\n";

/// No file of honest rows is larger.
pub const MAX_BYTES: u64 = 16 << 20;

/// Parses CSV whose header names a group (the first column) and curl's five times in seconds, with or without
/// `_s`. Other columns are ignored. Series come in the order in which their groups first appear.
pub fn parse(text: &str) -> Result<Vec<Series>, ProbeError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let (_, header) = lines.next().ok_or_else(|| usage("the file is empty"))?;
    let names: Vec<&str> = header.split(',').map(str::trim).collect();
    let mut columns = [0; 5];
    for (column, metric) in columns.iter_mut().zip(Metric::CUMULATIVE) {
        let name = metric.name();
        *column = names.iter().position(|n| n.strip_suffix("_s").unwrap_or(n) == name).ok_or_else(|| {
            usage(format!(
                "the header has no column {name} (it reads: {header})\n\
                 a header that works: group,attempt,time_namelookup,time_connect,time_appconnect,time_starttransfer,\
                 time_total\nrows for it: curl -so /dev/null -w '{WRITE_OUT}' URL >> rows.csv"
            ))
        })?;
    }
    if columns.contains(&0) {
        return Err(usage("the first column must name the group (for example 1.2 or 1.3), not a time"));
    }

    let mut series: Vec<Series> = Vec::new();
    for (index, line) in lines {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let at = |problem: String| usage(format!("line {}: {problem}", index + 1));
        let mut moments = [0; 5];
        for (moment, (&column, metric)) in moments.iter_mut().zip(columns.iter().zip(Metric::CUMULATIVE)) {
            let cell = cells.get(column).copied().unwrap_or_default();
            *moment = nanoseconds(cell).ok_or_else(|| {
                at(format!("{} is '{cell}', which is not a time in seconds between 0 and a day", metric.name()))
            })?;
        }
        if !moments.is_sorted() {
            return Err(at(
                "the times decrease, but the times of curl are cumulative: each includes the times before it \
                           (time_appconnect is 0 when the URL is http:// or the connection was reused)"
                    .into(),
            ));
        }
        let [namelookup, connect, appconnect, starttransfer, total] = moments;
        let timing = Timing { namelookup, connect, appconnect, starttransfer, total };
        let group = cells[0];
        match series.iter_mut().find(|s| s.name == group) {
            Some(found) => found.samples.push(timing),
            None => series.push(Series { name: group.to_owned(), samples: vec![timing] }),
        }
    }
    if series.is_empty() {
        return Err(usage("the file has a header but no rows"));
    }
    Ok(series)
}

fn nanoseconds(cell: &str) -> Option<u64> {
    let seconds: f64 = cell.parse().ok()?;
    // curl prints microseconds, so that rounding to nanoseconds brings back exactly what it measured.
    (0.0..86_400.0).contains(&seconds).then(|| (seconds * 1e9).round() as u64)
}

fn usage(problem: impl Into<String>) -> ProbeError {
    ProbeError::Usage(format!("--from-curl: {}", problem.into()))
}

#[cfg(test)]
#[path = "curl_tests.rs"]
mod tests;
