//! One self-contained page: text, charts and tables; no script, nothing loaded.

use std::fmt::Write as _;

use crate::model::{Fact, Figure, Page, Part, Report, Source, Subject, View};
use crate::style::STYLE;
use crate::{Finding, hours, number, svg};

/// The report as a page.
pub fn page(report: &Report) -> String {
    let mut s = String::new();
    // Writing to a String cannot fail.
    let _ = write(report, &mut s);
    s
}

/// For text and for attributes in single quotes.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}

fn write(r: &Report, s: &mut String) -> std::fmt::Result {
    let title = escape(&r.title);
    write!(
        s,
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta name=viewport content='width=device-width,initial-scale=1'>\n\
         <meta name=color-scheme content='light dark'>\n<title>{title}</title>\n<style>{STYLE}</style>\n<body>\n<header>\n<h1>{title}</h1>\n"
    )?;
    writeln!(
        s,
        "<p class=soft>{} · {} CPUs · {} · {} <span class=badge>{} run</span></p>",
        escape(&r.machine.cpu),
        r.machine.cpus,
        escape(&r.started.replace('T', " ").replace('Z', " UTC")),
        escape(&r.tool),
        escape(&r.mode)
    )?;
    findings(r, s)?;
    write!(s, "<div class=verdict>")?;
    paragraphs(s, &r.verdict)?;
    writeln!(s, "</div>\n</header>")?;
    if r.pages.len() > 1 {
        overview(r, s)?;
    }
    for page in &r.pages {
        section(page, s, r.pages.len() > 1)?;
    }
    machine(r, s)?;
    reading(s)?;
    s.push_str("</body>\n</html>\n");
    Ok(())
}

fn paragraphs(s: &mut String, text: &str) -> std::fmt::Result {
    text.lines().filter(|l| !l.trim().is_empty()).try_for_each(|l| write!(s, "<p>{}</p>", escape(l)))
}

/// The first screen: a row for each study.
fn findings(r: &Report, s: &mut String) -> std::fmt::Result {
    const MEASURED: &str = "here";
    let rows: Vec<(&Page, &Finding)> = r.pages.iter().filter_map(|p| Some((p, p.finding.as_ref()?))).collect();
    if rows.is_empty() {
        return Ok(());
    }
    write!(
        s,
        "<div class=scroll><table class='words findings'><thead><tr><th scope=col>study<th scope=col>finding\
         <th scope=col>published<th scope=col>{MEASURED}<th scope=col>result</thead>"
    )?;
    for (page, row) in rows {
        let measured = if row.measured.is_empty() { "–" } else { &row.measured };
        write!(
            s,
            "<tr><th scope=row><a href='#{}'>{}</a><td>{}<td data-of=published>{}<td data-of={MEASURED}>{}<td><b class={}>{}</b>",
            escape(&page.name),
            escape(&row.study),
            escape(&row.finding),
            escape(&row.published),
            escape(measured),
            row.outcome.class(),
            row.outcome.words()
        )?;
    }
    writeln!(
        s,
        "</table></div>\n<p class=soft>Confirmed: the same direction as in the study, and the intervals of the compared figures do \
         not overlap. Contradicted: the opposite direction. Sizes depend on the machine.</p>"
    )
}

fn overview(r: &Report, s: &mut String) -> std::fmt::Result {
    write!(s, "<nav aria-label=Experiments><ul>")?;
    for page in &r.pages {
        write!(s, "<li><a href='#{0}'>{1}</a>", escape(&page.name), escape(&page.title))?;
    }
    writeln!(s, "<li><a href='#machine'>Machine and how to read</a></ul></nav>")?;
    let all: Vec<&String> = r.pages.iter().flat_map(|p| &p.advice).collect();
    if !all.is_empty() {
        writeln!(s, "<h2 id=advice>Recommendations</h2>")?;
        list(s, all.into_iter())?;
    }
    Ok(())
}

fn list<'a>(s: &mut String, items: impl Iterator<Item = &'a String>) -> std::fmt::Result {
    write!(s, "<ul>")?;
    for item in items {
        write!(s, "<li>{}", escape(item))?;
    }
    writeln!(s, "</ul>")
}

fn facts(s: &mut String, facts: &[Fact]) -> std::fmt::Result {
    write!(s, "<div class=scroll><table class=words>")?;
    for fact in facts {
        write!(s, "<tr><th scope=row>{}<td>{}", escape(&fact.name), escape(&fact.value))?;
    }
    writeln!(s, "</table></div>")
}

fn section(page: &Page, s: &mut String, several: bool) -> std::fmt::Result {
    let name = escape(&page.name);
    if several {
        writeln!(s, "<section aria-labelledby='{name}'>\n<h2 id='{name}'>{}</h2>", escape(&page.title))?;
    } else {
        writeln!(s, "<section id='{name}'>")?;
    }
    writeln!(s, "<p><b>Question.</b> {}</p>", escape(&page.question))?;
    if let Some(why) = &page.obstacle {
        writeln!(s, "<p class=void><b>Not run here:</b> {}</p>\n</section>", escape(why))?;
        return Ok(());
    }
    if several {
        write!(s, "<div class=verdict>")?;
        paragraphs(s, &page.verdict)?;
        writeln!(s, "</div>")?;
    } else if !page.advice.is_empty() {
        writeln!(s, "<h3>Recommendations</h3>")?;
        list(s, page.advice.iter())?;
    }
    let names = page.names();
    for p in &page.parts {
        part(p, &names, &page.name, s)?;
    }
    voids(page, s)?;
    writeln!(s, "<h3>Method</h3>")?;
    for paragraph in &page.method {
        paragraphs(s, paragraph)?;
    }
    if !page.settings.is_empty() {
        writeln!(s, "<h4>Settings that are equal for all</h4>")?;
        facts(s, &page.settings)?;
    }
    writeln!(s, "<h4>Run it again</h4><pre>{}</pre>", escape(&page.command))?;
    writeln!(s, "<h3>What was compared</h3>")?;
    for one in &page.subjects {
        subject(one, s)?;
    }
    for study in &page.studies {
        writeln!(s, "<h3>The published study</h3>\n<p>{}</p>", escape(&study.title))?;
        facts(s, &study.facts)?;
    }
    writeln!(s, "</section>")
}

fn subject(one: &Subject, s: &mut String) -> std::fmt::Result {
    write!(s, "<h4>{}</h4>", escape(&one.name))?;
    if !one.version.is_empty() {
        write!(s, "<p><small>{}</small></p>", one.version.iter().map(|v| escape(v)).collect::<Vec<_>>().join("<br>"))?;
    }
    if !one.configuration.is_empty() {
        writeln!(s, "<details><summary>Configuration</summary><pre>{}</pre></details>", escape(&one.configuration))?;
    }
    Ok(())
}

fn part(p: &Part, names: &[String], page: &str, s: &mut String) -> std::fmt::Result {
    writeln!(s, "<h3 id='{}-{}'>{}</h3>", escape(page), escape(&p.id), escape(&p.title))?;
    if !p.what.is_empty() {
        writeln!(s, "<p class=soft>{}</p>", escape(&p.what))?;
    }
    if let Some(why) = &p.skipped {
        return writeln!(s, "<p class=void><b>Left out:</b> {}</p>", escape(why));
    }
    for view in &p.views {
        show(p, view, names, s)?;
    }
    if !p.notes.is_empty() {
        list(s, p.notes.iter())?;
    }
    Ok(())
}

fn show(p: &Part, view: &View, names: &[String], s: &mut String) -> std::fmt::Result {
    let caption = match view {
        View::Bars { title, better, .. } if !better.is_empty() => format!("{title} ({better} is better)"),
        View::Bars { title, .. }
        | View::Lines { title, .. }
        | View::Spectrum { title, .. }
        | View::Table { title, .. }
        | View::Grid { title, .. } => title.clone(),
    };
    write!(s, "<figure><figcaption>{}</figcaption>", escape(&caption))?;
    let picture = svg::chart(p, view, names);
    match view {
        View::Bars { measures, .. } => {
            s.push_str(&picture);
            numbers(s, &table(p, measures, names))?;
        }
        View::Lines { measure, x, .. } => {
            s.push_str(&svg::legend(&svg::shown(p, std::slice::from_ref(measure), names), names));
            s.push_str(&picture);
            numbers(s, &grid(p, measure, &x.label, names, &|x| number::short(x), false))?;
        }
        View::Spectrum { measure, .. } => {
            s.push_str(&svg::legend(&svg::shown(p, std::slice::from_ref(measure), names), names));
            s.push_str(&picture);
            s.push_str(&grid(p, measure, "percentile", names, &number::percentile, true));
        }
        View::Table { measures, .. } => s.push_str(&table(p, measures, names)),
        View::Grid { measure, label, .. } => s.push_str(&grid(p, measure, label, names, &|x| number::short(x), false)),
    }
    writeln!(s, "</figure>")
}

fn numbers(s: &mut String, table: &str) -> std::fmt::Result {
    write!(s, "<details><summary>The numbers</summary>{table}</details>")
}

/// A measure a row.
fn table(p: &Part, measures: &[String], names: &[String]) -> String {
    let keep = |f: &&Figure| f.x.is_none() && measures.contains(&f.measure);
    let figures: Vec<&Figure> = p.figures.iter().filter(keep).collect();
    let rows: Vec<(String, Vec<&Figure>)> = measures
        .iter()
        .map(|m| (m.clone(), figures.iter().copied().filter(|f| f.measure == *m).collect()))
        .filter(|(_, row): &(String, Vec<&Figure>)| !row.is_empty())
        .collect();
    cells("", &rows, names)
}

/// A value of x a row; `standard` keeps to the percentiles that people name.
fn grid(
    p: &Part,
    measure: &str,
    label: &str,
    names: &[String],
    show: &dyn Fn(f64) -> String,
    standard: bool,
) -> String {
    const NAMED: [f64; 9] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999, 99.9999];
    // A fit is a curve; its points are in the CSV.
    // A study's single points beside a spectrum are in the chart.
    let keep =
        |f: &&Figure| f.x.is_some() && (f.source == Source::Measured || f.source == Source::Published && !standard);
    let figures: Vec<&Figure> = p.of(measure).filter(keep).collect();
    let mut xs: Vec<f64> = figures.iter().filter_map(|f| f.x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    if standard {
        xs.retain(|x| NAMED.iter().any(|n| (n - x).abs() < 1e-9));
    }
    let rows: Vec<(String, Vec<&Figure>)> =
        xs.iter().map(|x| (show(*x), figures.iter().copied().filter(|f| f.x == Some(*x)).collect())).collect();
    cells(label, &rows, names)
}

fn cells(corner: &str, rows: &[(String, Vec<&Figure>)], names: &[String]) -> String {
    let present: Vec<&String> =
        names.iter().filter(|n| rows.iter().any(|(_, row)| row.iter().any(|f| f.subject == **n))).collect();
    let mut s = format!("<div class=scroll><table><thead><tr><th scope=col>{}", escape(corner));
    for name in &present {
        let _ = write!(s, "<th scope=col>{}", escape(name));
    }
    s.push_str("</thead>");
    for (label, row) in rows {
        let unit = row.first().map_or("", |f| f.unit.as_str());
        let same = row.iter().all(|f| f.unit == unit);
        let head = if same && !unit.is_empty() { format!("{label}, {unit}") } else { label.clone() };
        // A percentile's row carries its unit in the caption's chart; "p99, ms" still reads well.
        let _ = write!(s, "<tr><th scope=row>{}", escape(&head));
        for name in &present {
            s.push_str("<td>");
            let mut first = true;
            for f in row.iter().filter(|f| f.subject == **name) {
                if !std::mem::take(&mut first) {
                    s.push_str("<br>");
                }
                cell(&mut s, f, same);
            }
            if first {
                s.push('–');
            }
        }
    }
    s.push_str("</table></div>");
    s
}

fn cell(s: &mut String, f: &Figure, unit_said: bool) {
    let value = if unit_said { number::short(f.value) } else { number::with_unit(f.value, &f.unit) };
    let value = escape(&value);
    let _ = match f.source {
        Source::Published => write!(s, "<i>{value}</i> <small>published</small>"),
        _ => write!(s, "{value}"),
    };
    if let (Some(low), Some(high)) = (f.low, f.high)
        && high > low
    {
        let _ = write!(s, " <small>{} to {}</small>", number::short(low), number::short(high));
    }
}

fn voids(page: &Page, s: &mut String) -> std::fmt::Result {
    let count = page.voids();
    if count == 0 {
        return writeln!(s, "<h3>Void runs</h3>\n<p>None: every round met its conditions.</p>");
    }
    writeln!(
        s,
        "<h3>Void runs</h3>\n<p>{count} round(s) did not meet their conditions and are in no figure.</p>\n\
         <details{}><summary>All of them</summary><div class=scroll><table class=words><thead><tr><th>part<th>subject<th>which<th>why</thead>",
        if count <= 12 { " open" } else { "" }
    )?;
    for part in &page.parts {
        for void in &part.voids {
            write!(
                s,
                "<tr><td>{}<td>{}<td>{}<td>{}",
                escape(&part.id),
                escape(&void.subject),
                escape(&void.what),
                escape(&void.why)
            )?;
        }
    }
    writeln!(s, "</table></div></details>")?;
    let hours = hours::of(page);
    if hours.is_empty() {
        return Ok(());
    }
    writeln!(
        s,
        "<h4>Void attempts by hour</h4>\n<div class=scroll><table class=words><thead><tr><th>from<th>attempts<th>void<th>%<th>why</thead>"
    )?;
    for hour in &hours {
        let share = 100.0 * hour.void as f64 / hour.attempts.max(1) as f64;
        let why: Vec<String> = hour.reasons.iter().map(|(why, n)| format!("{n} × {}", escape(why))).collect();
        let (began, attempts, void) = (&hour.began, hour.attempts, hour.void);
        write!(s, "<tr><td>{began}<td>{attempts}<td>{void}<td>{share:.0}<td>{}", why.join("<br>"))?;
    }
    writeln!(s, "</table></div>")
}

fn machine(r: &Report, s: &mut String) -> std::fmt::Result {
    writeln!(s, "<section>\n<h2 id=machine>The machine, and how to read this</h2>")?;
    let mut all = vec![Fact::new("Processor", &r.machine.cpu), Fact::new("CPUs used", r.machine.cpus.to_string())];
    all.extend(r.machine.facts.iter().cloned());
    all.push(Fact::new("Began", &r.started));
    all.push(Fact::new("Took", format!("{:.0} minutes", (r.seconds / 60.0).ceil())));
    facts(s, &all)?;
    writeln!(s, "<h4>Repeat this run</h4><pre>{}</pre>", escape(&r.command))
}

fn reading(s: &mut String) -> std::fmt::Result {
    writeln!(
        s,
        "<h4>How to read</h4><ul>\
         <li>A figure is the median of its rounds. The interval beside it contains the true median with a confidence of at \
         least 95 % if there are six rounds or more. With fewer rounds, it is the range of the rounds, and the confidence \
         is lower (five rounds: 94 %, four: 88 %, three: 75 %). The interval of a ratio from 20 rounds or more is \
         that of a block bootstrap: it allows for disturbances that last several rounds.\
         <li>CPU time per operation is the figure to trust on a machine that others use too; rates and latencies are not.\
         <li>Percentiles appear only with ten or more samples beyond them.\
         <li>Published figures come from the study's machine. Compare their shape with what was measured here, not their height.\
         <li>Dashed lines are extrapolated: nobody measured there.</ul>\n</section>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_becomes_markup() {
        assert_eq!(escape("<a href='x'>&\"</a>"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;&lt;/a&gt;");
    }
}
