//! Draws what `sealane top` shows on a terminal.

use crate::debug::printable;
use crate::tables::{Rows, TABLES, Table};
use crate::top::app::{App, Inspected};
use crate::top::history::Plots;
use crate::top::overview;
use crate::top::rates::{Rates, bytes};
use crate::top::{problem_lines, problems_now};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Paragraph, Sparkline, Wrap};

/// Lines that problems may take.
const PROBLEM_LINES: u16 = 8;
/// A screen that is lower has no plots.
const LOW: u16 = 30;

const KEYS: &str = "Tab table  arrows move  Enter inspect  s S r sort  / find  space pause  q quit";
/// On a narrow screen, beginning with what everybody needs.
const SHORT_KEYS: &str = "q quit  Tab table  Enter inspect  s S r sort  / find";
const INSPECTED_KEYS: &str = "Esc back  space pause  q quit";

/// All that a frame is made of.
pub struct Shown<'s> {
    pub app: &'s App,
    pub rates: &'s Rates<'s>,
    pub rows: &'s Rows,
    pub plots: &'s Plots,
    /// Why the gateway was not asked with success the last time.
    pub trouble: Option<&'s str>,
}

fn strong() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

/// Draws a frame.
pub fn draw(frame: &mut Frame<'_>, shown: &Shown<'_>) {
    let area = frame.area();
    let problems = problems(shown, usize::from(area.width));
    let height = u16::try_from(problems.len()).unwrap_or(PROBLEM_LINES).min(PROBLEM_LINES);
    let [head, found, tabs, main, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(height),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(first_line(shown), head);
    frame.render_widget(Paragraph::new(Text::from(problems)), found);
    frame.render_widget(tab_line(shown.app.table, area.width), tabs);
    match (&shown.app.inspected, shown.app.table) {
        (Some(row), _) => frame.render_widget(inspected(row), main),
        (None, Table::Overview) => draw_overview(frame, shown, main),
        (None, _) => draw_table(frame, shown, main),
    }
    frame.render_widget(last_line(shown, usize::from(area.width)), foot);
}

fn first_line(shown: &Shown<'_>) -> Line<'static> {
    match (shown.trouble, shown.app.is_paused) {
        (Some(why), _) => Line::styled(printable(why), strong().fg(Color::Red)),
        (None, true) => Line::styled(format!("paused (space continues); {}", overview::head(shown.rates)), strong()),
        (None, false) => Line::styled(overview::head(shown.rates), strong()),
    }
}

/// The problems that there are now, each on as many lines as it takes.
fn problems(shown: &Shown<'_>, width: usize) -> Vec<Line<'static>> {
    let now = shown.rates.now;
    let mut lines = Vec::new();
    for (text, problem) in problem_lines(now).into_iter().zip(problems_now(now)) {
        let style = strong().fg(if problem.critical { Color::Red } else { Color::Yellow });
        lines.extend(wrapped(&text, width).into_iter().map(|line| Line::styled(line, style)));
    }
    lines
}

/// A text on lines of at most so many characters, broken between words where that is possible.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let mut rest: Vec<char> = word.chars().collect();
        let used = lines.last().map_or(0, |line| line.chars().count());
        let bare = rest.len() - usize::from(word.ends_with(' '));
        if used > 0 && used + bare > width {
            lines.push(String::new());
        }
        while !rest.is_empty() {
            let used = lines.last().map_or(0, |line| line.chars().count());
            if used >= width {
                // The space at the end of a line is not needed.
                if rest == [' '] {
                    break;
                }
                lines.push(String::new());
                continue;
            }
            let taken = rest.drain(..rest.len().min(width - used)).collect::<String>();
            if let Some(line) = lines.last_mut() {
                line.push_str(&taken);
            }
        }
    }
    lines
}

/// The key and the name of each table; the one that is shown stands out.
fn tab_line(table: Table, width: u16) -> Line<'static> {
    let full = |key: &str, one: Table| format!(" {key} {} ", one.name());
    let mut spans = Vec::new();
    let keys = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "!", "c"];
    let needed: usize = keys.into_iter().zip(TABLES).map(|(key, one)| full(key, one).chars().count()).sum();
    let is_narrow = usize::from(width) < needed;
    for (key, one) in keys.into_iter().zip(TABLES) {
        let is_shown = one == table;
        // On a narrow screen the others have their keys alone.
        let name = if is_shown || !is_narrow { full(key, one) } else { format!(" {key} ") };
        spans.push(Span::styled(name, if is_shown { strong().add_modifier(Modifier::REVERSED) } else { dim() }));
    }
    Line::from(spans)
}

fn last_line(shown: &Shown<'_>, width: usize) -> Line<'static> {
    let app = shown.app;
    let keys = if width < KEYS.len() { SHORT_KEYS } else { KEYS };
    if app.is_typing {
        return Line::styled(
            format!("find: {}_   Enter applies the filter, Esc clears it", printable(&app.wanted)),
            strong(),
        );
    }
    if app.inspected.is_some() {
        return Line::styled(INSPECTED_KEYS, dim());
    }
    if !app.wanted.is_empty() {
        return Line::styled(format!("only rows with \"{}\" (Esc: all)   {keys}", printable(&app.wanted)), dim());
    }
    Line::styled(keys, dim())
}

fn draw_table(frame: &mut Frame<'_>, shown: &Shown<'_>, area: Rect) {
    let (app, rows) = (shown.app, shown.rows);
    if rows.lines.is_empty() {
        frame.render_widget(Paragraph::new(rows.empty.clone()).wrap(Wrap { trim: false }), area);
        return;
    }
    let head_lines = u16::try_from(rows.head.lines().count()).unwrap_or(1).max(1);
    let [head, body] = Layout::vertical([Constraint::Length(head_lines), Constraint::Min(0)]).areas(area);
    let side = (0, app.side);
    frame.render_widget(
        Paragraph::new(rows.head.clone()).style(Style::new().add_modifier(Modifier::UNDERLINED)).scroll(side),
        head,
    );
    let room = usize::from(body.height);
    // What is selected is seen, with a row above it where there is one.
    let first = (app.selected + 2).saturating_sub(room).min(app.selected);
    let line = |(at, text): (usize, &String)| {
        let style = if at == app.selected { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        Line::styled(text.clone(), style)
    };
    let mut lines: Vec<Line<'_>> = rows.lines.iter().enumerate().skip(first).take(room).map(line).collect();
    let more = rows.lines.len().saturating_sub(first + room) + rows.more;
    if let (true, Some(last)) = (more > 0 && lines.len() > 1, lines.last_mut()) {
        *last = Line::styled(format!("and {} more", more + 1), dim());
    }
    frame.render_widget(Paragraph::new(Text::from(lines)).scroll(side), body);
}

/// A row with all its values, whatever their length.
fn inspected(row: &Inspected) -> Paragraph<'static> {
    let width = row.values.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut lines: Vec<Line<'_>> = Vec::new();
    if row.is_gone {
        lines.push(Line::styled("This row no longer exists. These are its last values.", strong().fg(Color::Yellow)));
    }
    for (name, value) in &row.values {
        lines.push(Line::from(vec![Span::styled(format!("{name:>width$}  "), dim()), Span::raw(value.clone())]));
    }
    Paragraph::new(Text::from(lines)).wrap(Wrap { trim: false }).block(Block::new().borders(Borders::TOP))
}

/// What is plotted above the overview: a title, a series, and how its values are written.
type Plot = (&'static str, &'static str, fn(f64) -> String);

const PLOTS: [Plot; 4] = [
    ("requests/s", "requests_per_second", |n| format!("{n:.1}")),
    ("5xx/s", "errors_5xx_per_second", |n| format!("{n:.1}")),
    ("99 % below", "duration_p99_seconds", |n| format!("{:.1} ms", n * 1e3)),
    ("sent", "bytes_sent_per_second", bytes),
];

fn draw_overview(frame: &mut Frame<'_>, shown: &Shown<'_>, area: Rect) {
    let height = if area.height >= LOW { 5 } else { 0 };
    let [plots, body] = Layout::vertical([Constraint::Length(height), Constraint::Min(0)]).areas(area);
    if height > 0 {
        let columns: [Rect; PLOTS.len()] =
            Layout::horizontal([Constraint::Fill(1); PLOTS.len()]).spacing(2).areas(plots);
        for ((title, series, write), area) in PLOTS.into_iter().zip(columns) {
            let points = shown.plots.points(series);
            let newest = &points[points.len().saturating_sub(usize::from(area.width))..];
            let top = newest.iter().flatten().copied().fold(0.0, f64::max);
            let bar = |point: &Option<f64>| match point {
                // A bar is so many parts of the highest: whole numbers, of which there are enough.
                Some(value) if top > 0.0 => (value / top * 1000.0) as u64,
                _ => 0,
            };
            let last = shown.plots.last(series).map_or_else(|| "-".to_owned(), write);
            let block = Block::new().title(Line::styled(format!("{title} {last}"), strong()));
            let bars: Vec<u64> = newest.iter().map(bar).collect();
            frame.render_widget(Sparkline::default().block(block).data(bars).max(1000), area);
        }
    }
    frame.render_widget(Paragraph::new(overview::body(shown.rates)).scroll((0, shown.app.side)), body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use sealane_control::metrics::status::Status;

    fn status() -> Status {
        serde_json::from_value(serde_json::json!({
            "pid": 1, "uptime": 10.0, "version": "1", "state": "serving",
            "places": [
                { "host": "a.example", "per_second": 7.5, "requests": 75, "upstream": "app" },
                { "host": "b.example", "per_second": 2.0, "requests": 20, "upstream": "app" },
            ],
            "problems": [
                { "kind": "dns", "text": format!("The name {} does not resolve.", "very-long-".repeat(12)), "since": 1,
                  "critical": true },
                { "kind": "memory", "text": "It was short.", "since": 1, "until": 3 },
            ],
        }))
        .unwrap()
    }

    /// The screen as text, and which of its lines are reversed.
    fn drawn(app: &App, status: &Status, (width, height): (u16, u16)) -> (String, Vec<String>) {
        let rates = Rates::new(status, None);
        let plots = Plots::default();
        let rows = app.table.shown(&rates, None, &plots, app.sort, &app.wanted);
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let shown = Shown { app, rates: &rates, rows: &rows, plots: &plots, trouble: None };
        terminal.draw(|frame| draw(frame, &shown)).unwrap();
        let buffer = terminal.backend().buffer();
        let (mut text, mut reversed) = (String::new(), Vec::new());
        for y in 0..height {
            let cells: Vec<_> = (0..width).filter_map(|x| buffer.cell((x, y))).collect();
            let line: String = cells.iter().map(|cell| cell.symbol()).collect();
            if y > 0 && cells[0].modifier.contains(Modifier::REVERSED) {
                reversed.push(line.trim_end().to_owned());
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        (text, reversed)
    }

    #[test]
    fn problems_are_above_every_table_and_wrap() {
        for table in TABLES {
            let app = App::new(table, table.usual());
            let (text, _) = drawn(&app, &status(), (80, 24));
            let lines: Vec<&str> = text.lines().collect();
            assert!(lines[0].starts_with("sealane 1 serving"), "{table:?}: {text}");
            assert!(
                lines[1].starts_with("PROBLEM  The name") && lines[2].starts_with("very-long"),
                "{table:?}: {text}"
            );
            assert!(text.contains("does not resolve.") && !lines[1..5].join("").contains("It was short"), "{text}");
            assert!(lines[23].contains("q quit"), "{table:?}: {text}");
        }
    }

    #[test]
    fn every_table_has_its_key_on_a_screen_of_any_width() {
        for width in [60, 120, 137, 138, 200] {
            let (text, _) = drawn(&App::new(Table::Clients, Table::Clients.usual()), &status(), (width, 24));
            assert!(text.contains("c clients") && text.contains(" ! ") && text.contains("q quit"), "{width}: {text}");
            assert_eq!(text.contains("0 overview"), width >= 138, "{width}: {text}");
        }
    }

    #[test]
    fn text_is_broken_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("a verylongword b", 5), ["a ", "veryl", "ongwo", "rd b"]);
        assert_eq!(wrapped("", 5), [""]);
        assert!(wrapped("x y z", 0).len() >= 3);
    }

    #[test]
    fn the_selected_row_stands_out_and_is_seen() {
        let mut app = App::new(Table::Hosts, Table::Hosts.usual());
        app.selected = 1;
        let (text, reversed) = drawn(&app, &status(), (120, 24));
        assert!(text.contains("a.example") && reversed.len() == 1 && reversed[0].contains("b.example"), "{text}");
        let places: Vec<_> = (0..100).map(|n| serde_json::json!({ "host": format!("h{n:03}.example") })).collect();
        let many: Status = serde_json::from_value(serde_json::json!({ "places": places })).unwrap();
        app.sort = Table::Hosts.sorted_by("host").unwrap();
        for selected in [0, 50, 99] {
            app.selected = selected;
            let (text, reversed) = drawn(&app, &many, (120, 24));
            assert!(reversed.len() == 1 && reversed[0].contains(&format!("h{selected:03}.example")), "{text}");
        }
    }

    #[test]
    fn a_screen_of_any_size_is_no_reason_to_panic() {
        for size in [(1, 1), (3, 2), (20, 5), (80, 10), (300, 100)] {
            for table in TABLES {
                drawn(&App::new(table, table.usual()), &status(), size);
            }
        }
    }

    #[test]
    fn a_row_is_shown_with_all_its_values() {
        let mut app = App::new(Table::Hosts, Table::Hosts.usual());
        let name = format!("{}.example", "x".repeat(100));
        app.inspected = Some(Inspected { name: name.clone(), values: vec![("host", name.clone())], is_gone: true });
        let (text, _) = drawn(&app, &status(), (80, 24));
        let joined: String = text.lines().map(str::trim).collect();
        assert!(joined.contains(&name) && text.contains("no longer exists") && text.contains("Esc back"), "{text}");
    }
}
