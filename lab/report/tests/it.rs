//! One report with everything in it, in all its forms: they carry the same numbers, load nothing, and change only on
//! purpose (`UPDATE_SNAPSHOT=1 cargo test -p sealane-lab-report` writes the snapshot anew; look at the difference).

use sealane_lab_report::usl::Fit;
use sealane_lab_report::{
    Axis, Fact, Figure, Machine, Page, Part, Report, Source, Study, Subject, Void, csv, html, text,
};

fn cost() -> Part {
    let mut part = Part::new("cost", "What a handshake costs", "connect, handshake, close");
    for (subject, scale) in [("sealane", 1.0), ("nginx <new>", 1.4), ("haproxy, MT", 1.7)] {
        let rounds: Vec<f64> = [150.0, 152.0, 149.0, 151.5].iter().map(|v| v * scale).collect();
        part.rounds(subject, "CPU per operation", &rounds, "µs");
        part.push(Figure::new(subject, "memory", 4.25 * scale, "KiB"));
    }
    part.bars("CPU time per handshake, µs", &["CPU per operation"], "lower");
    part.table("Memory", &["memory"]);
    part.voids.push(Void {
        subject: "nginx <new>".into(),
        what: "round 2".into(),
        why: "others used 0.41 CPUs".into(),
    });
    part.note("One & all.");
    part
}

fn spectrum() -> Part {
    let mut part = Part::new("latency", "Latency", "open loop");
    for (subject, scale) in [("sealane", 1.0), ("nginx <new>", 2.5)] {
        for p in [0.0, 50.0, 75.0, 90.0, 99.0, 99.9, 99.99] {
            let ms = scale * 0.2 * (1.0 / (1.0 - p / 100.0_f64)).powf(0.4);
            part.push(Figure::new(subject, "latency", ms, "ms").at(p).samples(100_000));
        }
    }
    part.push(Figure::new("NGINX, study", "latency", 8.0, "ms").at(99.9999).from(Source::Published));
    part.spectrum("Latency by percentile at 9,000/s", "latency");
    part
}

fn scaling() -> Part {
    let mut part = Part::new("threads", "Over threads", "");
    let points = [(1.0, 100.0), (2.0, 190.0), (4.0, 340.0), (8.0, 520.0)];
    for (n, rate) in points {
        part.push(Figure::new("sealane", "rate", rate, "/s").at(n).between(rate * 0.97, rate * 1.02).samples(6));
    }
    let fit = Fit::of(&points).unwrap();
    part.figures.extend(fit.figures("sealane", "rate", "/s", 16.0));
    part.note(fit.text("sealane"));
    part.push(Figure::new("OpenSSL 3.0.2, study", "rate", 60.0, "/s").at(64.0).from(Source::Published));
    part.lines("Handshakes per second", "rate", Axis::log("threads"), Axis::linear("per second"));
    part
}

fn report() -> Report {
    let subjects = ["sealane", "nginx <new>", "haproxy, MT"].map(|name| Subject {
        name: name.into(),
        version: vec![format!("{name} 1.0")],
        configuration: "listen = \"127.0.0.1\" # <&>".into(),
    });
    let page = Page {
        name: "proxies".into(),
        title: "Proxies".into(),
        question: "Which & why?".into(),
        verdict: "sealane 150 µs, nginx 211 µs.".into(),
        method: vec!["Rounds.".into()],
        subjects: subjects.into(),
        settings: vec![Fact::new("TLS", "1.3")],
        parts: vec![cost(), spectrum(), scaling(), Part::skipped("http3", "HTTP/3", "nobody here speaks it")],
        studies: vec![Study { title: "HAProxy vs NGINX".into(), facts: vec![Fact::new("load", "wrk2")] }],
        advice: vec!["Keep connections open.".into()],
        command: "sealane-lab run proxies".into(),
        ..Page::default()
    };
    Report {
        format: 1,
        tool: "sealane-lab 0.1.0".into(),
        title: "The state of <everything>".into(),
        verdict: "One line.\nAnother line.".into(),
        mode: "quick".into(),
        started: "2026-11-21T06:51:45Z".into(),
        seconds: 61.0,
        machine: Machine { cpu: "A CPU".into(), cpus: 2, facts: vec![Fact::new("Kernel", "Linux 6.18")] },
        command: "sealane-lab run all".into(),
        pages: vec![page, Page::cannot("tunnel", "The tunnel", "How fast?", "no /dev/net/tun")],
    }
}

#[test]
fn json_is_the_report() {
    let report = report();
    let back: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(back, report);
}

#[test]
fn csv_has_a_row_for_each_figure_with_the_same_number() {
    let report = report();
    let text = csv::write(&report);
    let mut rows = text.lines();
    assert_eq!(rows.next(), Some(csv::HEADER));
    let figures: Vec<&Figure> = report.pages.iter().flat_map(|p| &p.parts).flat_map(|p| &p.figures).collect();
    let mut count = 0;
    for (row, figure) in rows.by_ref().zip(&figures) {
        let cells = split(row);
        assert_eq!(cells.len(), 11, "{row}");
        assert_eq!((&cells[2], &cells[3]), (&figure.measure, &figure.subject));
        assert_eq!(cells[5].parse::<f64>().unwrap().to_bits(), figure.value.to_bits(), "to the last bit");
        assert_eq!(cells[10], figure.source.name());
        count += 1;
    }
    assert_eq!((count, rows.next()), (figures.len(), None));
}

/// RFC 4180, a row.
fn split(row: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = row.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => cell.extend(chars.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(std::mem::take(&mut cell)),
            c => cell.push(c),
        }
    }
    cells.push(cell);
    cells
}

#[test]
fn the_page_loads_nothing_and_runs_nothing() {
    let page = html::page(&report());
    for forbidden in ["<script", "src=", "href='http", "@import", "url(", "<link", "<iframe", "onload", "onclick"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert!(page.contains("nginx &lt;new&gt;") && !page.contains("nginx <new>"), "names are text, never markup");
    for said in [
        "others used 0.41 CPUs",
        "no /dev/net/tun",
        "nobody here speaks it",
        "Keep connections open.",
        "published",
        "run proxies",
    ] {
        assert!(page.contains(said), "{said}");
    }
    for size in ["class=wide", "class=narrow"] {
        // Bars, spectrum, lines.
        assert_eq!(page.matches(&format!("<svg {size}")).count(), 3, "{size}");
    }
    assert!(page.contains("dashed"), "what is extrapolated is drawn otherwise");
}

#[test]
fn tags_that_must_be_closed_are() {
    let page = html::page(&report());
    for tag in ["svg", "table", "figure", "div", "section", "details", "pre", "text", "ul", "nav", "h2", "h3", "small"]
    {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}

#[test]
fn the_terminal_tells_the_same() {
    let text = text::summary(&report());
    for said in [
        "sealane 150 µs",
        "150.8 µs",
        "published",
        "left out: nobody here speaks it",
        "not run here: no /dev/net/tun",
        "1 void",
    ] {
        assert!(text.contains(said), "{said}\n{text}");
    }
}

#[test]
fn the_page_changes_only_on_purpose() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshot.html");
    let page = html::page(&report());
    if std::env::var_os("UPDATE_SNAPSHOT").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    let differ = kept.lines().zip(page.lines()).find(|(a, b)| a != b);
    assert!(kept == page, "the page differs from tests/snapshot.html, first here: {differ:?}");
}
