//! Raw data as JSON, whatever its form: JSON itself, CSV (an array of rows, objects by the header's names), and text (an array of
//! lines, each an array of its words).

use anyhow::Context;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// The data of a table: the file of `data:` under the empty name, those of `data NAME:` under their names.
pub struct Sources(pub BTreeMap<String, Value>);

/// Reads a file.
pub fn read(path: &Path) -> anyhow::Result<Value> {
    let shown = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(shown)?;
    match path.extension().and_then(|end| end.to_str()) {
        Some("json") => serde_json::from_str(&text).with_context(shown),
        Some("csv") => csv(&text).with_context(shown),
        Some("txt" | "log") => Ok(words(&text)),
        _ => anyhow::bail!("{}: only .json, .csv, .txt and .log can be read", shown()),
    }
}

/// A word as a number where it is one: `20,347`, `1.007`.
fn word(text: &str) -> Value {
    let begins = text.trim_start_matches(['-', '+']).starts_with(|c: char| c.is_ascii_digit());
    let number = text.replace(',', "").parse::<f64>().ok().filter(|_| begins);
    number.map_or_else(|| Value::from(text), Value::from)
}

fn words(text: &str) -> Value {
    let line = |line: &str| Value::from(line.split_whitespace().map(word).collect::<Vec<_>>());
    Value::from(text.lines().filter(|l| !l.trim().is_empty()).map(line).collect::<Vec<_>>())
}

fn csv(text: &str) -> anyhow::Result<Value> {
    let mut lines = text.lines().filter(|line| !line.is_empty());
    let header = fields(lines.next().context("no header")?);
    let row = |line: &str| {
        let row: Map<String, Value> = header.iter().cloned().zip(fields(line).iter().map(|f| word(f))).collect();
        Value::from(row)
    };
    Ok(Value::from(lines.map(row).collect::<Vec<_>>()))
}

/// The fields of a line; a field in quotes may contain commas, and two quotes in it are one.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut field, mut quoted) = (Vec::new(), String::new(), false);
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(std::mem::take(&mut field)),
            c => field.push(c),
        }
    }
    fields.push(field);
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn csv_and_text_become_json() {
        let read = csv("a,b\n\"x, \"\"y\"\"\",1.5\nz,\n").unwrap();
        assert_eq!(read, json!([{ "a": "x, \"y\"", "b": 1.5 }, { "a": "z", "b": "" }]));
        assert_eq!(words("# run\n\nkeepalive  20,347 -1\n"), json!([["#", "run"], ["keepalive", 20347.0, -1.0]]));
        assert_eq!(word("nan"), json!("nan"));
        assert!(csv("").is_err());
    }
}
