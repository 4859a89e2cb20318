//! What differs between two configurations, setting by setting, with secrets masked.

use super::show::Effective;
use std::collections::BTreeMap;
use std::ops::Bound;
use toml::Value;

/// Lines that are told.
const MAX_LINES: usize = 200;
/// Characters of a value that are told.
const MAX_VALUE: usize = 160;
/// Settings that name a table of a list, so that its settings are found again when others come or go.
const NAMES: [&str; 8] = ["name", "names", "address", "path", "exact", "prefix", "url", "cert"];

impl Effective {
    /// What has changed since `earlier`: a line for each setting, `+` where it is new, `-` where it is gone, `~` where it differs.
    /// A secret that has changed shows no difference.
    pub fn changes_since(&self, earlier: &Self) -> Vec<String> {
        let (now, then) = (settings(self), settings(earlier));
        let mut lines = Vec::new();
        for (path, value) in &then {
            match now.get(path) {
                None => lines.push(format!("- {path} = {value}")),
                Some(new) if new != value => lines.push(format!("~ {path} = {value} → {new}")),
                Some(_) => {}
            }
        }
        lines.extend(
            now.iter().filter(|(path, _)| !then.contains_key(*path)).map(|(path, value)| format!("+ {path} = {value}")),
        );
        lines.sort_by(|a, b| a[2..].cmp(&b[2..]));
        let more = lines.len().saturating_sub(MAX_LINES);
        lines.truncate(MAX_LINES);
        if more > 0 {
            lines.push(format!("and {more} more changes"));
        }
        lines
    }
}

/// All settings by their paths: `host[a.example].upstream`.
fn settings(effective: &Effective) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    effective.values.iter().for_each(|(key, value)| add(&mut found, key, value));
    found
}

fn add(found: &mut BTreeMap<String, String>, path: &str, value: &Value) {
    match value {
        Value::Table(table) => table.iter().for_each(|(key, value)| add(found, &format!("{path}.{key}"), value)),
        Value::Array(list) if list.iter().any(Value::is_table) => {
            for (i, value) in list.iter().enumerate() {
                let mut own = format!("{path}[{}]", name_of(value).unwrap_or_else(|| i.to_string()));
                // Two of the same name are told apart by their place.
                let next = found.range::<str, _>((Bound::Included(own.as_str()), Bound::Unbounded)).next();
                if next.is_some_and(|(known, _)| known.starts_with(&own)) {
                    own = format!("{path}[{i}]");
                }
                add(found, &own, value);
            }
        }
        value => drop(found.insert(path.to_owned(), short(value))),
    }
}

/// What names a table of a list.
fn name_of(value: &Value) -> Option<String> {
    let table = value.as_table()?;
    let named = NAMES.iter().find_map(|key| table.get(*key))?;
    let text = match named {
        Value::Array(list) => list.first()?.as_str()?.to_owned(),
        value => value.as_str()?.to_owned(),
    };
    Some(text.chars().take(MAX_VALUE).collect())
}

/// A value, without what may be a secret in a URL: a user with a password, a query, a fragment.
fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.contains("://") && text.contains(['@', '?', '#']) {
        return "\"***\"".to_owned();
    }
    match text.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(then: &str, now: &str) -> Vec<String> {
        let read = |text: &str| Effective { values: text.parse().expect("it is TOML") };
        read(now).changes_since(&read(then))
    }

    #[test]
    fn settings_are_found_again_by_the_names_of_their_tables() {
        let then = "lanes = 1\n[limits]\na = 1\n[[host]]\nnames = [\"a.example\"]\nupstream = \"one\"\n\
                    [[host]]\nnames = [\"b.example\"]\nupstream = \"one\"\n";
        let now =
            "lanes = 2\n[[host]]\nnames = [\"b.example\"]\nupstream = \"two\"\n[[host]]\nnames = [\"c.example\"]\n";
        assert_eq!(
            changes(then, now),
            [
                "- host[a.example].names = [\"a.example\"]",
                "- host[a.example].upstream = \"one\"",
                "~ host[b.example].upstream = \"one\" → \"two\"",
                "+ host[c.example].names = [\"c.example\"]",
                "~ lanes = 1 → 2",
                "- limits.a = 1",
            ]
        );
        assert!(changes(then, then).is_empty());
    }

    #[test]
    fn tables_of_one_name_do_not_hide_each_other() {
        let text = |to: &str| format!("[[route]]\npath = \"/\"\nto = \"x\"\n[[route]]\npath = \"/\"\nto = {to:?}\n");
        assert_eq!(changes(&text("y"), &text("z")), ["~ route[1].to = \"y\" → \"z\""]);
    }

    #[test]
    fn what_is_told_is_bounded() {
        let many: String = (0..1000).map(|i| format!("s{i} = \"{}\"\n", "ü".repeat(1000))).collect();
        let lines = changes("", &many);
        assert_eq!((lines.len(), lines[MAX_LINES].as_str()), (MAX_LINES + 1, "and 800 more changes"));
        assert!(lines.iter().all(|line| line.chars().count() < 200));
    }

    #[test]
    fn secrets_are_masked() {
        let shown = |token: &str| {
            let text =
                format!("[[host]]\nnames = [\"*\"]\nresponse_headers = {{ set = {{ X-Token = \"{token}\" }} }}\n");
            Effective::of(&text.parse().expect("it is TOML"))
        };
        let lines = shown("hush").changes_since(&Effective::default());
        assert!(!lines.is_empty() && lines.iter().all(|line| !line.contains("hush")), "{lines:?}");
    }
}
