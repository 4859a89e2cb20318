//! The same numbers, a row for each figure.

use crate::model::{Figure, Report};

/// The first line.
pub const HEADER: &str = "experiment,part,measure,subject,x,value,low,high,n,unit,source";

/// All figures of the report.
pub fn write(report: &Report) -> String {
    let mut s = format!("{HEADER}\n");
    for page in &report.pages {
        for part in &page.parts {
            for figure in &part.figures {
                s.push_str(&row(&page.name, &part.id, figure));
            }
        }
    }
    s
}

fn row(page: &str, part: &str, f: &Figure) -> String {
    let number = |v: Option<f64>| v.map_or_else(String::new, |v| v.to_string());
    let cells = [
        field(page),
        field(part),
        field(&f.measure),
        field(&f.subject),
        number(f.x),
        f.value.to_string(),
        number(f.low),
        number(f.high),
        f.n.to_string(),
        field(&f.unit),
        f.source.name().to_owned(),
    ];
    cells.join(",") + "\n"
}

/// RFC 4180 §2: quotes around what contains a comma, a quote or a line's end; quotes doubled. A leading `=`, `+`, `-`
/// or `@` would be a formula to a spreadsheet.
fn field(text: &str) -> String {
    let text = if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        assert_eq!(field("plain"), "plain");
        assert_eq!(field("a,b"), "\"a,b\"");
        assert_eq!(field("say \"so\""), "\"say \"\"so\"\"\"");
        assert_eq!(field("=1+1"), "'=1+1");
    }
}
