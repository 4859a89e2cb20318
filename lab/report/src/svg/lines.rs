//! Lines over threads, rates or percentiles.

use std::fmt::Write as _;

use super::scale::Scale;
use super::{SERIES, Size, line, mark, picture, series, text};
use crate::model::{Axis, Figure, Part, Source};
use crate::number;

/// One line for each subject and source.
pub fn draw(part: &Part, title: &str, measure: &str, x: &Axis, y: &Axis, names: &[String], size: Size) -> String {
    let figures: Vec<&Figure> = part.of(measure).filter(|f| f.x.is_some()).collect();
    let frame = Frame::new(size);
    let xs = || figures.iter().filter_map(|f| f.x);
    let reach = figures.iter().flat_map(|f| [Some(f.value), f.low, f.high]).flatten();
    let Some(across) = Scale::new(x.log, xs(), frame.left, frame.right) else { return String::new() };
    let Some(up) = Scale::new(y.log, reach, frame.bottom, frame.top) else { return String::new() };
    // What was measured makes the best ticks, while there is room for them.
    let mut own: Vec<f64> = figures
        .iter()
        .filter(|f| matches!(f.source, Source::Measured | Source::Published))
        .filter_map(|f| f.x)
        .collect();
    own.sort_by(f64::total_cmp);
    own.dedup();
    let most = if size == Size::Wide { 8 } else { 5 };
    let apart = own.windows(2).all(|w| across.place(w[1]) - across.place(w[0]) > 34.0);
    let ticks = if !own.is_empty() && own.len() <= most && apart { own } else { across.ticks(most) };
    let ticks = ticks.into_iter().map(|t| (across.place(t), number::short(t))).collect();
    let mut s = frame.grid(ticks, &up, &x.label, &y.label);
    s.push_str(&strokes(&figures, names, &|v| across.place(v), &|v| up.place(v), true));
    picture(title, size, frame.height, &s)
}

/// Latency by percentile.
pub fn spectrum(part: &Part, title: &str, measure: &str, names: &[String], size: Size) -> String {
    let figures: Vec<&Figure> = part.of(measure).filter(|f| f.x.is_some_and(|p| (0.0..100.0).contains(&p))).collect();
    let frame = Frame::new(size);
    let nines = |p: f64| -((1.0 - p / 100.0).max(1e-12)).log10();
    let Some(most) = figures.iter().filter_map(|f| f.x.map(nines)).reduce(f64::max) else { return String::new() };
    let across = Scale::exact(0.0, most, frame.left, frame.right);
    let Some(up) = Scale::new(true, figures.iter().map(|f| f.value), frame.bottom, frame.top) else {
        return String::new();
    };
    let mut ticks: Vec<(f64, String)> = Vec::new();
    for p in [50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999] {
        let x = across.place(nines(p));
        let room = ticks.last().is_none_or(|last| x - last.0 > if size == Size::Wide { 56.0 } else { 50.0 });
        if nines(p) <= most + 1e-9 && room {
            ticks.push((x, number::percentile(p)));
        }
    }
    let unit = figures.first().map_or("", |f| f.unit.as_str());
    let mut s = frame.grid(ticks, &up, "percentile", &format!("latency, {unit}"));
    s.push_str(&strokes(&figures, names, &|p| across.place(nines(p)), &|v| up.place(v), false));
    picture(title, size, frame.height, &s)
}

struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    height: f64,
    size: Size,
}

impl Frame {
    fn new(size: Size) -> Self {
        let (height, left) = if size == Size::Wide { (340.0, 66.0) } else { (280.0, 50.0) };
        Self { left, right: size.width() - 14.0, top: 26.0, bottom: height - 42.0, height, size }
    }

    fn grid(&self, ticks: Vec<(f64, String)>, up: &Scale, x: &str, y: &str) -> String {
        let mut s = String::new();
        for tick in up.ticks(if self.size == Size::Wide { 6 } else { 5 }) {
            let at = up.place(tick);
            s.push_str(&line("grid", self.left, at, self.right, at));
            s.push_str(&text(self.left - 7.0, at + 4.0, "end", "", &number::short(tick)));
        }
        for (at, label) in ticks {
            s.push_str(&line("grid", at, self.top, at, self.bottom));
            // A label at the right end stays within the picture.
            let (at, anchor) = if at > self.right - 22.0 { (self.right + 12.0, "end") } else { (at, "middle") };
            s.push_str(&text(at, self.bottom + 16.0, anchor, "", &label));
        }
        s.push_str(&line("axis", self.left, self.bottom, self.right, self.bottom));
        s.push_str(&text((self.left + self.right) / 2.0, self.height - 8.0, "middle", "head", x));
        s.push_str(&text(4.0, 14.0, "start", "head", y));
        s
    }
}

/// Lines of all series; fits without marks, extrapolations dashed, published values dotted and hollow.
fn strokes(
    figures: &[&Figure],
    names: &[String],
    x: &dyn Fn(f64) -> f64,
    y: &dyn Fn(f64) -> f64,
    marks: bool,
) -> String {
    let mut s = String::new();
    for name in names {
        let n = series(name, names);
        let of = |source: Source| -> Vec<&Figure> {
            let mut own: Vec<&Figure> =
                figures.iter().copied().filter(|f| f.subject == *name && f.source == source).collect();
            own.sort_by(|a, b| a.x.unwrap_or(0.0).total_cmp(&b.x.unwrap_or(0.0)));
            own
        };
        let fitted = of(Source::Fitted);
        for (source, class) in [
            (Source::Published, "dotted"),
            (Source::Fitted, "fit"),
            (Source::Extrapolated, "dashed"),
            (Source::Measured, ""),
        ] {
            let mut own = of(source);
            if source == Source::Extrapolated
                && let Some(last) = fitted.last()
            {
                // Joined to where the measured range ends.
                own.insert(0, last);
            }
            // With a fit beside it, what was measured is points: a line through them would be a second claim.
            let through = source != Source::Measured || fitted.is_empty();
            if through && own.len() > 1 {
                let mut points = String::new();
                for f in &own {
                    let _ = write!(points, "{:.1},{:.1} ", x(f.x.unwrap_or(0.0)), y(f.value));
                }
                let _ = write!(s, "<polyline class='l s{} {class}' points='{}'/>", n % SERIES, points.trim_end());
            }
            if !matches!(source, Source::Measured | Source::Published) || !(marks || own.len() == 1) {
                continue;
            }
            for f in own {
                let at = x(f.x.unwrap_or(0.0));
                if let (Some(low), Some(high)) = (f.low, f.high) {
                    s.push_str(&line("whisker", at, y(low), at, y(high)));
                }
                s.push_str(&mark(at, y(f.value), n, source == Source::Published));
            }
        }
    }
    s
}
