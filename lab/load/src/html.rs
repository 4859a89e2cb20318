//! A report to look at: one file of HTML with its charts drawn in SVG, no script, nothing from elsewhere.

use std::fmt::Write as _;

use hdrhistogram::Histogram;

use crate::report::{Report, bytes, time};
use crate::verdict::tells;

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}.void{background:#fdecea;border-left:4px solid #b3261e;padding:.6rem 1rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.15rem .8rem;text-align:right;border-bottom:1px solid #d8dee4}
th:first-child,td:first-child{text-align:left}svg{width:100%;height:auto}text{font:12px system-ui,sans-serif;fill:#57606a}
.grid{stroke:#e4e8ec}.a{stroke:#0a58ca;fill:none;stroke-width:2}.b{stroke:#c2570c;fill:none;stroke-width:2;stroke-dasharray:6 4}.dot-a{fill:#0a58ca}.dot-b{fill:#c2570c}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}td,th{border-color:#30363d}.grid{stroke:#21262d}.void{background:#3a1512}text{fill:#9198a1}.a{stroke:#6ea8fe}.b{stroke:#ffa657}}";

/// The report as a page.
pub fn page(report: &Report) -> String {
    let mut s = String::new();
    // Writing to a String cannot fail.
    let _ = write(report, &mut s);
    s
}

fn write(r: &Report, s: &mut String) -> std::fmt::Result {
    let title = format!("Load on {}", r.urls.join(", "));
    write!(
        s,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
         <title>{t}</title><style>{STYLE}</style><h1>{t}</h1>",
        t = escape(&title)
    )?;
    if !r.void.is_empty() {
        write!(s, "<div class=void><b>Void.</b> The figures say nothing about the server, because<ul>")?;
        for why in &r.void {
            write!(s, "<li>{}", escape(why))?;
        }
        write!(s, "</ul></div>")?;
    }
    for broken in &r.broken {
        write!(s, "<p class=void><b>Threshold exceeded:</b> {}</p>", escape(broken))?;
    }
    facts(r, s)?;
    let (first, second) = if r.rate_offered.is_some() {
        ("from the intended moment", "from the actual start")
    } else {
        ("from the actual start", "")
    };
    let corrected = r.record.overall();
    let actual = r.record.overall_uncorrected();
    write!(s, "<h2>Latency by percentile</h2>")?;
    if second.is_empty() {
        percentiles(s, &[(first, &corrected)])?;
    } else {
        percentiles(s, &[(first, &corrected), (second, &actual)])?;
    }
    if r.intervals.len() > 1 {
        write!(s, "<h2>Over time</h2>")?;
        over_time(s, r)?;
    }
    write!(s, "<h2>Times</h2><pre>{}</pre></html>", escape(&r.text()))
}

fn facts(r: &Report, s: &mut String) -> std::fmt::Result {
    write!(s, "<table>")?;
    let mut row = |name: &str, value: String| write!(s, "<tr><th>{name}<td>{}", escape(&value));
    row(
        "Loop",
        match r.rate_offered {
            Some(rate) => format!("open, {rate:.0}/s offered, {} arrivals", r.arrivals.unwrap_or("")),
            None => "closed".to_owned(),
        },
    )?;
    row("Rate", format!("{:.1}/s over {:.1} s", r.rate, r.seconds))?;
    row("Operations", format!("{} completed, {} failed, {} never started", r.completed, r.failed, r.unstarted))?;
    row("Connections", format!("{} over {} thread(s), {}", r.connections, r.threads, r.protocol))?;
    if let Some(n) = &r.negotiated {
        row("TLS", format!("{}, {}, {}; verified: {}", n.version, n.suite, n.group, r.verify))?;
    }
    if let Some(c) = &r.server {
        row(
            "Server",
            format!("{:.2} µs CPU per operation, {} resident", c.cpu_ns_per_operation / 1e3, bytes(c.rss as f64)),
        )?;
    }
    write!(s, "</table>")
}

const W: f64 = 900.0;
const H: f64 = 300.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 30.0;

/// A logarithmic axis of times: the function from nanoseconds to y, with its grid drawn.
fn time_axis(s: &mut String, low: u64, high: u64) -> Result<impl Fn(f64) -> f64 + use<>, std::fmt::Error> {
    let bottom = (low.max(1) as f64).log10().floor();
    let top = (high.max(10) as f64).log10().ceil().max(bottom + 1.0);
    let y = move |ns: f64| {
        (H - BOTTOM) - (ns.max(1.0).log10().clamp(bottom, top) - bottom) / (top - bottom) * (H - BOTTOM - 10.0)
    };
    let mut decade = bottom;
    while decade <= top {
        let at = y(10f64.powf(decade));
        write!(s, "<line class=grid x1={LEFT} x2={W} y1={at:.1} y2={at:.1} />")?;
        write!(
            s,
            "<text x={:.0} y={:.1} text-anchor=end>{}</text>",
            LEFT - 6.0,
            at + 4.0,
            time(10f64.powf(decade) as u64)
        )?;
        decade += 1.0;
    }
    Ok(y)
}

fn percentiles(s: &mut String, lines: &[(&str, &Histogram<u64>)]) -> std::fmt::Result {
    let Some((low, high)) = range(lines.iter().map(|(_, h)| *h)) else { return write!(s, "<p>Nothing completed.</p>") };
    write!(s, "<svg viewBox='0 0 {W} {H}' role=img aria-label='Latency by percentile'>")?;
    let y = time_axis(s, low, high)?;
    let most = lines.iter().map(|(_, h)| h.len()).max().unwrap_or(1);
    // One decade of "nines" after the other, as far as there are samples to tell.
    let decades = (most as f64 / 10.0).log10().clamp(1.0, 7.0);
    let x = |beyond: f64| LEFT + (-beyond.log10()).clamp(0.0, decades) / decades * (W - LEFT - 10.0);
    for p in [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999] {
        if p == 0.0 || tells(most, p) {
            let at = x(1.0 - p / 100.0);
            write!(s, "<line class=grid x1={at:.1} x2={at:.1} y1=10 y2={:.0} />", H - BOTTOM)?;
            write!(
                s,
                "<text x={at:.1} y={:.0} text-anchor=middle>{}</text>",
                H - 10.0,
                if p == 0.0 { "min".into() } else { format!("p{p}") }
            )?;
        }
    }
    for (n, (name, h)) in lines.iter().enumerate() {
        let class = if n == 0 { 'a' } else { 'b' };
        let mut points = String::new();
        let steps = 200;
        for i in 0..=steps {
            let beyond = 10f64.powf(-decades * f64::from(i) / f64::from(steps));
            if h.len() as f64 * beyond < 10.0 {
                break;
            }
            let at = h.value_at_quantile(1.0 - beyond) as f64;
            write!(points, "{:.1},{:.1} ", x(beyond), y(at))?;
        }
        write!(s, "<polyline class={class} points='{}' />", points.trim_end())?;
        let row = 24.0 + 18.0 * n as f64;
        write!(
            s,
            "<circle class=dot-{class} cx={:.0} cy={:.0} r=5 /><text x={:.0} y={:.0}>{}</text>",
            LEFT + 20.0,
            row - 4.0,
            LEFT + 32.0,
            row,
            escape(name)
        )?;
    }
    write!(s, "</svg>")
}

fn over_time(s: &mut String, r: &Report) -> std::fmt::Result {
    let Some((low, high)) = range(r.intervals.iter().map(|(_, h)| h)) else { return Ok(()) };
    let last = r.intervals.last().map_or(1.0, |(t, _)| t + 1.0);
    write!(s, "<svg viewBox='0 0 {W} {H}' role=img aria-label='Latency over time'>")?;
    let y = time_axis(s, low, high)?;
    let x = |t: f64| LEFT + t / last * (W - LEFT - 10.0);
    for i in 0..=5 {
        let t = last * f64::from(i) / 5.0;
        write!(s, "<text x={:.1} y={:.0} text-anchor=middle>{t:.0} s</text>", x(t), H - 10.0)?;
    }
    for (n, (p, class)) in [(50.0, 'a'), (99.0, 'b')].into_iter().enumerate() {
        let mut points = String::new();
        for (t, h) in r.intervals.iter().filter(|(_, h)| tells(h.len(), p)) {
            write!(points, "{:.1},{:.1} ", x(*t), y(h.value_at_quantile(p / 100.0) as f64))?;
        }
        write!(s, "<polyline class={class} points='{}' />", points.trim_end())?;
        let row = 24.0 + 18.0 * n as f64;
        write!(
            s,
            "<circle class=dot-{class} cx={:.0} cy={:.0} r=5 /><text x={:.0} y={:.0}>p{p} of each interval</text>",
            LEFT + 20.0,
            row - 4.0,
            LEFT + 32.0,
            row
        )?;
    }
    write!(s, "</svg>")
}

fn range<'a>(histograms: impl Iterator<Item = &'a Histogram<u64>>) -> Option<(u64, u64)> {
    histograms.filter(|h| !h.is_empty()).map(|h| (h.min(), h.max())).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}
