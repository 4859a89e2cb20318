//! Tables of a Markdown page, with the comments before them that name their raw data.

use std::collections::BTreeMap;

/// A table.
pub struct Table {
    /// The line of its header, from 1.
    pub line: usize,
    /// The cells below the header.
    pub rows: Vec<Vec<String>>,
    /// The comment before it.
    pub marker: Option<Marker>,
}

/// How a table is computed.
#[derive(Debug, Default)]
pub struct Marker {
    /// The line of the comment.
    pub line: usize,
    /// Files by name; the first has no name.
    pub files: BTreeMap<String, String>,
    /// What `$row` is in each row.
    pub rows: Vec<String>,
    /// Columns that are not computed, from 1.
    pub free: Vec<usize>,
    short: Vec<(String, String)>,
    columns: BTreeMap<usize, String>,
    cells: BTreeMap<(usize, usize), String>,
}

impl Table {
    /// Whether most cells are figures.
    pub fn has_figures(&self) -> bool {
        let cells = self.rows.iter().flat_map(|row| row.iter().skip(1)).filter(|cell| !cell.is_empty());
        let (mut all, mut figures) = (0, 0);
        for cell in cells {
            all += 1;
            let begin = cell.trim_start_matches(['*', '~', '<', '≤', '±', '−', '-', '+', ' ']);
            figures += usize::from(begin.starts_with(|c: char| c.is_ascii_digit()));
        }
        all > 0 && figures * 2 >= all
    }
}

impl Marker {
    /// How a cell is computed, if it is.
    pub fn template(&self, row: usize, column: usize) -> Option<&str> {
        self.cells.get(&(row, column)).or_else(|| self.columns.get(&column)).map(String::as_str)
    }

    /// A template with `$row` and the names of `set` replaced.
    pub fn expand(&self, template: &str, row: &str) -> String {
        // Those that were set later may contain earlier ones.
        let set = self.short.iter().rev().fold(template.to_owned(), |text, (name, value)| text.replace(name, value));
        set.replace("$row", row)
    }

    fn parse(line: usize, text: &str) -> Result<Self, String> {
        let mut marker = Self { line, ..Self::default() };
        // A line without a keyword continues the line before.
        let mut entries: Vec<(String, String)> = Vec::new();
        for one in text.lines().map(str::trim).filter(|one| !one.is_empty()) {
            let keyword = one.split_once(": ").map(|(key, value)| (key.trim(), value.trim())).filter(|(key, _)| {
                matches!(key.split(' ').next(), Some("data" | "rows" | "free" | "set" | "column" | "cell"))
                    && !key.contains('{')
            });
            if let Some((key, value)) = keyword {
                entries.push((key.to_owned(), value.to_owned()));
            } else if let Some((_, before)) = entries.last_mut() {
                *before = format!("{before} {one}");
            } else {
                return Err(format!("{one:?} cannot be read"));
            }
        }
        for (key, value) in entries {
            let words: Vec<&str> = key.split(' ').collect();
            let number = |word: &str| word.parse::<usize>().map_err(|_| format!("{key}: {word:?} is no number"));
            match words[..] {
                ["data"] => drop(marker.files.insert(String::new(), value)),
                ["data", name] => drop(marker.files.insert(name.to_owned(), value)),
                ["rows"] => marker.rows = value.split('|').map(|row| row.trim().to_owned()).collect(),
                ["free"] => marker.free = value.split(',').map(|word| number(word.trim())).collect::<Result<_, _>>()?,
                ["set", name] => marker.short.push((format!("${name}"), value)),
                ["column", column] => drop(marker.columns.insert(number(column)?, value)),
                ["cell", row, column] => drop(marker.cells.insert((number(row)?, number(column)?), value)),
                _ => return Err(format!("{key:?} cannot be read")),
            }
        }
        Ok(marker)
    }
}

/// The tables of a page; the error begins with its line.
pub fn parse(text: &str) -> Result<Vec<Table>, String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut tables = Vec::new();
    let mut marker: Option<Marker> = None;
    let mut code = false;
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at].trim();
        if line.starts_with("```") {
            code = !code;
        }
        if code || line.is_empty() {
            at += 1;
            continue;
        }
        if line.starts_with("<!-- data: ") {
            let first = at;
            while at < lines.len() && !lines[at].contains("-->") {
                at += 1;
            }
            let comment = lines[first..lines.len().min(at + 1)].join("\n");
            let (inside, _) = comment
                .trim_start()
                .trim_start_matches("<!--")
                .split_once("-->")
                .ok_or_else(|| format!("{}: a comment without its end", first + 1))?;
            marker = Some(Marker::parse(first + 1, inside).map_err(|why| format!("{}: {why}", first + 1))?);
            at += 1;
            continue;
        }
        let ruled = |line: &str| line.starts_with('|') && line.chars().all(|c| "|-: ".contains(c));
        if line.starts_with('|') && lines.get(at + 1).is_some_and(|next| ruled(next.trim())) {
            let begin = at;
            at += 2;
            let mut rows = Vec::new();
            while at < lines.len() && lines[at].trim().starts_with('|') {
                rows.push(cells(lines[at]));
                at += 1;
            }
            tables.push(Table { line: begin + 1, rows, marker: marker.take() });
            continue;
        }
        if let Some(marker) = &marker {
            return Err(format!("{}: no table follows this comment", marker.line));
        }
        at += 1;
    }
    match marker {
        Some(marker) => Err(format!("{}: no table follows this comment", marker.line)),
        None => Ok(tables),
    }
}

/// The cells of a row; `\|` is no border.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim().trim_start_matches('|');
    let mut cells = vec![String::new()];
    let mut escaped = false;
    for c in line.chars() {
        match (c, cells.last_mut()) {
            ('|', _) if !escaped => cells.push(String::new()),
            (c, Some(cell)) => cell.push(c),
            (_, None) => {}
        }
        escaped = c == '\\';
    }
    // After the last border there is nothing.
    cells.pop();
    cells.into_iter().map(|cell| cell.trim().to_owned()).collect()
}

/// The targets of links, without anchors.
pub fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    targets.map(|target| target.split('#').next().unwrap_or(target)).filter(|target| !target.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_found_with_their_comments() {
        let text = "\
text
<!-- data: a.json
data other: b.csv
rows: x | y z
set s: cases > $row
set t: $s > v
column 2: {median($t):.1}
   µs
cell 2 2: {max($t):.0}
free: 3, 4
-->

| h | i |
|---|:--|
| a \\| b | **1** |
| c | |

```text
| no | table |
|---|---|
```
  | in | a list |
  |---|---|
  | a | words |
";
        let tables = parse(text).unwrap();
        assert_eq!(tables.len(), 2);
        assert_eq!((tables[0].line, tables[1].line), (13, 22));
        assert_eq!(tables[0].rows, [["a \\| b", "**1**"], ["c", ""]]);
        assert!(tables[0].has_figures() && !tables[1].has_figures() && tables[1].marker.is_none());
        let marker = tables[0].marker.as_ref().unwrap();
        assert_eq!((marker.line, marker.files[""].as_str(), marker.files["other"].as_str()), (2, "a.json", "b.csv"));
        assert_eq!((&marker.rows, &marker.free), (&vec!["x".to_owned(), "y z".to_owned()], &vec![3, 4]));
        let cell = |row: usize| marker.expand(marker.template(row, 2).unwrap(), &marker.rows[row - 1]);
        assert_eq!(cell(1), "{median(cases > x > v):.1} µs");
        assert_eq!(cell(2), "{max(cases > y z > v):.0}");
        assert_eq!(marker.template(1, 3), None);
    }

    #[test]
    fn comments_with_mistakes_are_errors() {
        for (text, why) in [
            ("<!-- data: a.json -->\ntext\n", "1: no table follows"),
            ("\n<!-- data: a.json -->\n", "2: no table follows"),
            ("<!-- data: a.json\n", "1: a comment without its end"),
            ("<!-- data: a.json\ncolumn x: 1\n-->\n", "1: column x: \"x\" is no number"),
            ("<!-- data: a.json\ncell 1: 1\n-->\n", "1: \"cell 1\" cannot be read"),
        ] {
            let error = parse(text).err().unwrap_or_default();
            assert!(error.starts_with(why), "{text}: {error}");
        }
    }

    #[test]
    fn links_are_found_without_anchors() {
        let text = "[a](b.json) [`c`](../d.csv#x)\n[e](#f) [g](h.md)";
        assert_eq!(links(text).collect::<Vec<_>>(), ["b.json", "../d.csv", "h.md"]);
    }
}
