//! One report in all its forms: they carry the same numbers, load nothing, and change only on purpose
//! (`UPDATE_SNAPSHOT=1 cargo test -p sealane-lab-report` writes the snapshot anew; look at the difference).

use sealane_lab_report::{Figure, Report, csv, html, text};

use crate::sample::report;

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
        "other programs used 0.41 CPUs",
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
fn the_first_screen_has_a_row_for_each_study() {
    let report = report();
    let page = html::page(&report);
    let table = page.find("class='words findings'").expect("the table of the studies");
    assert!(table < page.find("class=verdict").unwrap(), "before the verdict");
    let rows = &page[table..table + page[table..].find("</table>").unwrap()];
    for said in [
        "<a href='#proxies'>HAProxy &amp; NGINX</a><td>haproxy fails first.<td data-of=published>HAProxy fails first\
         <td data-of=here>1,000/s &lt; 2,000/s<td><b class=confirmed>confirmed</b>",
        "<a href='#tunnel'>OpenVPN DCO</a><td>This run did not measure it.<td data-of=published>3.6 times\
         <td data-of=here>–<td><b class=open>not measured</b>",
    ] {
        assert!(rows.contains(said), "{said}\n{rows}");
    }
    // A report of a version without findings has no table.
    let mut old = report;
    old.pages.iter_mut().for_each(|page| page.finding = None);
    assert!(!html::page(&old).contains("class='words findings'"));
    let json = serde_json::to_string(&old).unwrap();
    assert!(!json.contains("\"finding\""), "{json}");
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), old);
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
        "HAProxy & NGINX: confirmed",
        "here: 1,000/s < 2,000/s",
        "OpenVPN DCO: not measured",
    ] {
        assert!(text.contains(said), "{said}\n{text}");
    }
}

#[test]
fn the_page_changes_only_on_purpose() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/snapshot.html");
    let page = html::page(&report());
    if std::env::var_os("UPDATE_SNAPSHOT").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    let differ = kept.lines().zip(page.lines()).find(|(a, b)| a != b);
    assert!(kept == page, "the page differs from tests/it/snapshot.html, first here: {differ:?}");
}
