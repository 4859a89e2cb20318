//! Charts as inline SVG: no script, no fonts, colours by class so that light, dark and print each have their own.
//!
//! Every chart is drawn twice, for a wide and for a narrow screen, because scaling one picture down makes its text
//! too small to read; the style shows whichever fits.

mod bars;
mod lines;
mod scale;

use std::fmt::Write as _;

use crate::html::escape;
use crate::model::{Figure, Part, Source, View};

/// How many series have a colour and a mark of their own; more begin again.
pub const SERIES: usize = 8;

/// How large a picture is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// For desks and paper.
    Wide,
    /// For phones.
    Narrow,
}

impl Size {
    fn width(self) -> f64 {
        match self {
            Self::Wide => 760.0,
            Self::Narrow => 360.0,
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Narrow => "narrow",
        }
    }
}

/// The chart of a view in both sizes; empty for tables. `names` gives each subject its colour, the same on all of a
/// page.
pub fn chart(part: &Part, view: &View, names: &[String]) -> String {
    let mut s = String::new();
    for size in [Size::Wide, Size::Narrow] {
        match view {
            View::Bars { title, measures, .. } => s.push_str(&bars::draw(part, title, measures, names, size)),
            View::Lines { title, measure, x, y } => s.push_str(&lines::draw(part, title, measure, x, y, names, size)),
            View::Spectrum { title, measure } => s.push_str(&lines::spectrum(part, title, measure, names, size)),
            View::Table { .. } | View::Grid { .. } => {}
        }
    }
    s
}

/// The legend of a chart: each subject that it shows with its mark.
pub fn legend(shown: &[(&str, Source)], names: &[String]) -> String {
    let mut s = String::from("<ul class=legend>");
    for (name, source) in shown {
        let (n, published) = (series(name, names), *source == Source::Published);
        let _ = write!(
            s,
            "<li><svg width=16 height=12 viewBox='0 0 16 12' aria-hidden=true>{}</svg>{}{}",
            mark(8.0, 6.0, n, published),
            escape(name),
            if published { " (published)" } else { "" }
        );
    }
    s.push_str("</ul>");
    s
}

/// Who appears in a measure, in the page's order, with where their figures come from (a fit is its subject's).
pub fn shown<'a>(part: &'a Part, measures: &[String], names: &'a [String]) -> Vec<(&'a str, Source)> {
    let mut list = Vec::new();
    for name in names {
        let of = |f: &&Figure| f.subject == *name && measures.contains(&f.measure);
        let mut all = part.figures.iter().filter(of).peekable();
        if all.peek().is_none() {
            continue;
        }
        let published = all.all(|f| f.source == Source::Published);
        list.push((name.as_str(), if published { Source::Published } else { Source::Measured }));
    }
    list
}

fn series(name: &str, names: &[String]) -> usize {
    names.iter().position(|n| n == name).unwrap_or(0)
}

/// A mark whose shape tells series apart where colours do not; hollow where the figure was published elsewhere.
fn mark(x: f64, y: f64, n: usize, hollow: bool) -> String {
    let class = format!("m s{}{}", n % SERIES, if hollow { " hollow" } else { "" });
    // The ninth series has the first one's colour and another mark.
    match (n + n / SERIES) % 4 {
        0 => format!("<circle class='{class}' cx='{x:.1}' cy='{y:.1}' r='4'/>"),
        1 => format!("<rect class='{class}' x='{:.1}' y='{:.1}' width='7' height='7'/>", x - 3.5, y - 3.5),
        2 => format!("<path class='{class}' d='M{x:.1} {:.1}l4.6 8h-9.2z'/>", y - 4.8),
        _ => format!("<path class='{class}' d='M{x:.1} {:.1}l5 5-5 5-5-5z'/>", y - 5.0),
    }
}

/// The picture's frame: a title for those who cannot see it, and what is drawn inside.
fn picture(title: &str, size: Size, height: f64, inside: &str) -> String {
    let (w, title) = (size.width(), escape(title));
    format!(
        "<svg class={} viewBox='0 0 {w:.0} {height:.0}' width='{w:.0}' height='{height:.0}' role=img aria-label='{title}'>{inside}</svg>",
        size.class()
    )
}

fn text(x: f64, y: f64, anchor: &str, class: &str, words: &str) -> String {
    let class = if class.is_empty() { String::new() } else { format!(" class='{class}'") };
    format!("<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'{class}>{}</text>", escape(words))
}

fn line(class: &str, x1: f64, y1: f64, x2: f64, y2: f64) -> String {
    format!("<line class='{class}' x1='{x1:.1}' y1='{y1:.1}' x2='{x2:.1}' y2='{y2:.1}'/>")
}
