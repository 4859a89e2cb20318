//! Writes TOML for the gateway.
//!
//! Every text comes from objects that users of the cluster write. Here is the only place that puts texts into the configuration, so that
//! none of them can end a string, or be a reference such as `${file:/etc/passwd}`.

use std::fmt::Write;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A number.
    Number(u64),
    /// `true` or `false`.
    Flag(bool),
    /// A list.
    List(Vec<Self>),
    /// A table in one line.
    Table(Table),
}

/// Settings in the order in which they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table(pub Vec<(String, Value)>);

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<Table> for Value {
    fn from(table: Table) -> Self {
        Self::Table(table)
    }
}

impl<T: Into<Self>> From<Vec<T>> for Value {
    fn from(list: Vec<T>) -> Self {
        Self::List(list.into_iter().map(Into::into).collect())
    }
}

impl Table {
    /// Adds a setting.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.0.push((key.to_owned(), value.into()));
    }

    /// Adds a setting, or replaces it.
    pub fn replace(&mut self, key: &str, value: impl Into<Value>) {
        self.0.retain(|(known, _)| known != key);
        self.set(key, value);
    }

    /// The same table with one more setting.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.set(key, value);
        self
    }

    /// Whether there are no settings.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// About how many bytes the settings have as text.
    pub fn size(&self) -> usize {
        self.0.iter().map(|(key, value)| key.len() + value.size() + 5).sum()
    }

    /// The value of a setting.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// Writes a line for each setting.
    pub fn write_lines(&self, out: &mut String) {
        for (key, value) in &self.0 {
            write_key(key, out);
            out.push_str(" = ");
            value.write(out);
            out.push('\n');
        }
    }
}

impl Value {
    fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.len() + 2,
            Self::Number(_) | Self::Flag(_) => 8,
            Self::List(list) => list.iter().map(|value| value.size() + 2).sum(),
            Self::Table(table) => table.size() + 4,
        }
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Text(text) => write_text(text, out),
            Self::Number(number) => {
                let _ = write!(out, "{number}");
            }
            Self::Flag(flag) => {
                let _ = write!(out, "{flag}");
            }
            Self::List(list) => {
                out.push('[');
                for (at, value) in list.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    value.write(out);
                }
                out.push(']');
            }
            Self::Table(table) => {
                out.push('{');
                for (at, (key, value)) in table.0.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { " " });
                    write_key(key, out);
                    out.push_str(" = ");
                    value.write(out);
                }
                out.push_str(" }");
            }
        }
    }
}

fn write_key(key: &str, out: &mut String) {
    let is_bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    match is_bare {
        true => out.push_str(key),
        false => write_quoted(key, out),
    }
}

/// A value; `$${` stands for `${`, which would begin a reference.
fn write_text(text: &str, out: &mut String) {
    write_quoted(&text.replace("${", "$${"), out);
}

fn write_quoted(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        let mut out = String::new();
        Value::from(text).write(&mut out);
        out
    }

    #[test]
    fn texts_stay_texts() {
        for (text, expected) in [
            ("a", r#""a""#),
            ("a\"\n[[host]]", r#""a\"\n[[host]]""#),
            ("a\\", r#""a\\""#),
            ("\u{0}\u{85}", r#""\u0000\u0085""#),
            ("${file:/etc/passwd}", r#""$${file:/etc/passwd}""#),
            ("$${env:A}", r#""$$${env:A}""#),
        ] {
            assert_eq!(written(text), expected);
        }
    }

    #[test]
    fn tables_are_written() {
        let mut out = String::new();
        let inner = Table::default().with("X-A", "1").with("a b\"", vec!["x"]);
        Table::default().with("set", inner).with("n", 3).with("f", true).write_lines(&mut out);
        assert_eq!(out, "set = { X-A = \"1\", \"a b\\\"\" = [\"x\"] }\nn = 3\nf = true\n");
    }
}
