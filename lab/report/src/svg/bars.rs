//! Horizontal bars with intervals: horizontal, so that names fit on a phone too.

use super::scale::Scale;
use super::{Size, line, picture, series, text};
use crate::model::{Figure, Part, Source};
use crate::number;

const ROW: f64 = 26.0;
const HEAD: f64 = 28.0;

/// A group for each measure, in it a bar for each subject.
pub fn draw(part: &Part, title: &str, measures: &[String], names: &[String], size: Size) -> String {
    let figures: Vec<&Figure> =
        part.figures.iter().filter(|f| f.x.is_none() && measures.contains(&f.measure)).collect();
    let width = size.width();
    // On a phone the name stands above its bar.
    let (left, row) = if size == Size::Wide { (178.0, ROW) } else { (4.0, ROW + 15.0) };
    let reach = figures.iter().flat_map(|f| [Some(f.value), f.high]).flatten();
    let Some(scale) = Scale::new(false, reach, left, width - if size == Size::Wide { 150.0 } else { 112.0 }) else {
        return String::new();
    };
    let (mut s, mut y) = (String::new(), 4.0);
    for measure in measures {
        let mut group: Vec<&&Figure> = figures.iter().filter(|f| f.measure == *measure).collect();
        if group.is_empty() {
            continue;
        }
        group.sort_by_key(|f| series(&f.subject, names));
        if measures.len() > 1 {
            s.push_str(&text(4.0, y + 17.0, "start", "head", measure));
            y += HEAD;
        }
        for figure in group {
            s.push_str(&bar(figure, names, &scale, size, left, y));
            y += row;
        }
        y += 8.0;
    }
    let mut grid = String::new();
    for tick in scale.ticks(if size == Size::Wide { 5 } else { 3 }) {
        let x = scale.place(tick);
        grid.push_str(&line("grid", x, 4.0, x, y));
        grid.push_str(&text(x, y + 14.0, "middle", "", &number::short(tick)));
    }
    let unit = figures.first().map_or("", |f| f.unit.as_str());
    s.push_str(&text(width - 4.0, y + 14.0, "end", "", unit));
    picture(title, size, y + 20.0, &format!("{grid}{s}"))
}

fn bar(figure: &Figure, names: &[String], scale: &Scale, size: Size, left: f64, y: f64) -> String {
    let published = figure.source == Source::Published;
    let label = if published { format!("{} (published)", figure.subject) } else { figure.subject.clone() };
    let (mut s, mut top) = (String::new(), y);
    match size {
        Size::Wide => s.push_str(&text(left - 8.0, y + 16.0, "end", "name", &label)),
        Size::Narrow => {
            s.push_str(&text(left, y + 12.0, "start", "name", &label));
            top += 15.0;
        }
    }
    let (x0, x1) = (scale.place(0.0), scale.place(figure.value));
    s.push_str(&format!(
        "<rect class='b s{}{}' x='{x0:.1}' y='{:.1}' width='{:.1}' height='16' rx='2'/>",
        series(&figure.subject, names) % super::SERIES,
        if published { " hollow" } else { "" },
        top + 3.0,
        (x1 - x0).max(1.0),
    ));
    let mut end = x1;
    if let (Some(low), Some(high)) = (figure.low, figure.high)
        && high > low
    {
        let (a, b, middle) = (scale.place(low), scale.place(high), top + 11.0);
        s.push_str(&line("whisker", a, middle, b, middle));
        s.push_str(&line("whisker", a, middle - 4.0, a, middle + 4.0));
        s.push_str(&line("whisker", b, middle - 4.0, b, middle + 4.0));
        end = end.max(b);
    }
    s.push_str(&text(end + 6.0, top + 16.0, "start", "value", &number::with_unit(figure.value, &figure.unit)));
    s
}
