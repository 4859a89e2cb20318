//! What a line of the log looks like.
//!
//! | where | |
//! |---|---|
//! | text | `2026-11-22T18:30:00.123Z INFO sealane: MESSAGE key=value` |
//! | text, to systemd's journal | `<6>MESSAGE key=value`: the journal has the time and the program, and takes the level from the number |
//! | JSON | `{"time":"…","level":"info","target":"…","message":"…","key":"value"}` |
//!
//! A line may hold what a stranger has sent. So characters that are not printable are escaped in each of them (control characters,
//! and those that turn the direction of writing around), and what is very long is cut.

use super::Level;
use super::output::Output;
use serde_json::Value;
use std::fmt::{self, Write as _};
use std::time::SystemTime;
use time::OffsetDateTime;
use tracing_core::Event;
use tracing_core::field::{Field, Visit};

/// How lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
}

/// Bytes of a message that are written: there is room for the errors of a configuration.
const MAX_MESSAGE: usize = 16 * 1024;
/// The crate that exports the log.
const EXPORTER: &str = "sealane_otlp";
/// Bytes of a field's text that are written.
const MAX_VALUE: usize = 1024;

/// A line of the log, for those who export it.
#[derive(Clone, Debug)]
pub struct Exported {
    /// When it was logged.
    pub at: SystemTime,
    /// Its level.
    pub level: Level,
    /// What it says.
    pub message: String,
    /// Its fields.
    pub fields: Vec<(&'static str, String)>,
}

/// An event, taken apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    level: Level,
    target: &'static str,
    pub message: String,
    fields: Vec<(&'static str, Value)>,
}

impl Eq for Line {}

impl Line {
    /// A line without an event.
    pub fn new(level: Level, target: &'static str, message: &str) -> Self {
        Self { level, target, message: message.to_owned(), fields: Vec::new() }
    }

    /// Takes an event apart.
    pub fn of(event: &Event<'_>) -> Self {
        let metadata = event.metadata();
        let (level, target) = (super::level_of(metadata), metadata.target());
        let mut line = Self { level, target, message: String::new(), fields: Vec::new() };
        event.record(&mut line);
        line
    }

    /// Whether it is for a collector of logs as well. What the export says of itself is not: each of its lines would cause the next one.
    pub fn is_exported(&self) -> bool {
        self.target != EXPORTER && !self.target.strip_prefix(EXPORTER).is_some_and(|rest| rest.starts_with("::"))
    }

    /// Adds a field.
    pub fn field(&mut self, name: &'static str, value: Value) {
        self.fields.push((name, value));
    }

    /// The line for other programs, with what could pretend to be more escaped as in the text.
    pub fn exported(&self, at: SystemTime) -> Exported {
        let mut message = String::with_capacity(self.message.len());
        push_message(&mut message, &self.message);
        let shown = |value: &Value| match value {
            Value::String(s) => s.clone(),
            other => other.to_string(),
        };
        let fields = self.fields.iter().map(|(name, value)| (*name, shown(value))).collect();
        Exported { at, level: self.level, message, fields }
    }

    /// The line as it is written, with its end.
    pub fn render(&self, output: Output, format: Format, now: SystemTime) -> String {
        let body = match format {
            Format::Text => self.text(output, now),
            Format::Json => self.json(now),
        };
        match output {
            Output::Plain => body + "\n",
            // Each line is an entry of its own there.
            Output::Journal => body.lines().map(|l| format!("<{}>{l}\n", priority(self.level))).collect(),
        }
    }

    fn text(&self, output: Output, now: SystemTime) -> String {
        let mut text = String::with_capacity(self.message.len() + 64);
        if output == Output::Plain {
            let level = self.level.name().to_ascii_uppercase();
            // Writing to a string cannot fail.
            let _ = write!(text, "{} {level} sealane: ", Time(now));
        }
        push_message(&mut text, &self.message);
        for (name, value) in &self.fields {
            let value = match value {
                // As in logfmt: quoted where it would be ambiguous.
                Value::String(s)
                    if s.is_empty()
                        || s.contains(|c: char| matches!(c, ' ' | '"' | '=' | '\\') || !is_printable(c)) =>
                {
                    format!("{s:?}")
                }
                Value::String(s) => s.clone(),
                other => other.to_string(),
            };
            let _ = write!(text, " {name}={value}");
        }
        text
    }

    fn json(&self, now: SystemTime) -> String {
        // Not a map, which would sort its keys.
        let (time, level) = (Time(now), self.level);
        let mut text = format!("{{\"time\":\"{time}\",\"level\":\"{level}\"");
        let [target, message] = [self.target, &self.message].map(Value::from);
        let fields = self.fields.iter().map(|(name, value)| (*name, value));
        for (name, value) in [("target", &target), ("message", &message)].into_iter().chain(fields) {
            let _ = write!(text, ",\"{name}\":");
            push_json(&mut text, value);
        }
        text + "}"
    }
}

/// A message may have several lines (the errors of a configuration); those after the first are indented, so that none
/// of them can pass for an entry.
fn push_message(text: &mut String, message: &str) {
    for c in message.trim_end().chars() {
        match c {
            '\n' => text.push_str("\n  "),
            c => push_printable(text, c),
        }
    }
}

fn push_printable(text: &mut String, c: char) {
    match is_printable(c) {
        true => text.push(c),
        false => text.extend(c.escape_debug()),
    }
}

/// What a stranger has sent, for a terminal: escaped as in the log.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|c| push_printable(&mut out, c));
    out
}

/// RFC 8259 §7 asks for the escapes of characters below U+0020 only.
fn push_json(text: &mut String, value: &Value) {
    for c in value.to_string().chars() {
        if is_printable(c) {
            text.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
    }
}

/// Whether a terminal shows a character as it is. Others it obeys, or shows in another order.
fn is_printable(c: char) -> bool {
    matches!(c, '"' | '\'' | '\\') || c.escape_debug().len() == 1
}

/// A text without what is beyond so many bytes of it.
fn clipped(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}… ({} bytes in all)", &text[..end], text.len())
}

/// syslog(3)'s number for a level, which the journal reads at the start of a line (sd-daemon(3)).
fn priority(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = clipped(value, MAX_MESSAGE),
            name => self.field(name, clipped(value, MAX_VALUE).into()),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.field(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.field(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.field(field.name(), value.into());
    }
}

/// A moment as RFC 3339 has it, in UTC, to the millisecond.
#[derive(Clone, Copy, Debug)]
pub struct Time(pub SystemTime);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = OffsetDateTime::from(self.0);
        let (date, month) = (t.date(), u8::from(t.month()));
        write!(f, "{:04}-{month:02}-{:02}T", date.year(), date.day())?;
        write!(f, "{:02}:{:02}:{:02}.{:03}Z", t.hour(), t.minute(), t.second(), t.millisecond())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn line() -> (Line, SystemTime) {
        let mut line = Line::new(Level::Warn, "sealane_control::run", "not reloaded:\nx.toml:1: \u{1b}[31merror");
        line.field("file", "a \"b\"".into());
        line.field("lanes", 2.into());
        line.field("name", "plain".into());
        (line, UNIX_EPOCH + Duration::from_millis(1_795_372_200_123))
    }

    #[test]
    fn text_is_for_people() {
        let (line, now) = line();
        assert_eq!(
            line.render(Output::Plain, Format::Text, now),
            "2026-11-22T18:30:00.123Z WARN sealane: not reloaded:\n  x.toml:1: \\u{1b}[31merror \
             file=\"a \\\"b\\\"\" lanes=2 name=plain\n"
        );
    }

    #[test]
    fn what_the_export_says_of_itself_is_not_exported() {
        let is_exported = |target| Line::new(Level::Warn, target, "x").is_exported();
        assert!(!is_exported("sealane_otlp") && !is_exported("sealane_otlp::delivery"));
        assert!(is_exported("sealane_control::traces") && is_exported("sealane") && is_exported("sealane_otlpx"));
    }

    #[test]
    fn every_line_in_the_journal_has_its_level() {
        let (line, now) = line();
        assert_eq!(
            line.render(Output::Journal, Format::Text, now),
            "<4>not reloaded:\n<4>  x.toml:1: \\u{1b}[31merror file=\"a \\\"b\\\"\" lanes=2 name=plain\n"
        );
    }

    /// What a stranger sends cannot end a line, start another, move a terminal's cursor or fill a disk.
    #[test]
    fn text_of_strangers_is_escaped_and_cut() {
        let evil = "x\n2026-11-22T18:30:00.123Z ERROR sealane: forged\r\u{1b}[2J\u{9b}2J\u{202e}\u{2028}\u{e0001}\0";
        let mut line = Line::new(Level::Warn, "sealane", evil);
        line.field("name", evil.into());
        assert!(printable(evil).starts_with("x\\n2026-") && printable(evil).chars().all(is_printable));
        assert_eq!(printable("Code (\u{e9}\u{4e2d}): \"now\"?"), "Code (\u{e9}\u{4e2d}): \"now\"?");
        for (output, format) in [
            (Output::Plain, Format::Text),
            (Output::Plain, Format::Json),
            (Output::Journal, Format::Text),
            (Output::Journal, Format::Json),
        ] {
            let written = line.render(output, format, UNIX_EPOCH);
            assert!(written.chars().all(|c| is_printable(c) || c == '\n'), "{written}");
            let lines: Vec<&str> = written.lines().collect();
            match (output, format) {
                (_, Format::Json) => assert_eq!(lines.len(), 1, "{written}"),
                (Output::Plain, Format::Text) => {
                    assert!(lines.len() == 2 && lines[1].starts_with("  2026"), "{written}")
                }
                (Output::Journal, Format::Text) => {
                    assert!(lines.len() == 2 && lines[1].starts_with("<4>  2026"), "{written}");
                }
            }
            if (output, format) == (Output::Plain, Format::Json) {
                let value: Value = serde_json::from_str(&written).expect("JSON");
                assert_eq!((&value["message"], &value["name"]), (&evil.into(), &evil.into()));
            }
        }
        let long = "ä".repeat(MAX_VALUE);
        let cut = clipped(&long, MAX_VALUE - 1);
        assert_eq!(cut, format!("{}… (2048 bytes in all)", "ä".repeat(MAX_VALUE / 2 - 1)));
        assert_eq!(clipped(&long, long.len()), long);
    }

    #[test]
    fn json_is_one_object_per_line() {
        let (line, now) = line();
        let text = line.render(Output::Plain, Format::Json, now);
        assert_eq!(text.matches('\n').count(), 1);
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&value["time"], &value["level"]), (&"2026-11-22T18:30:00.123Z".into(), &"warn".into()));
        assert_eq!(value["message"], "not reloaded:\nx.toml:1: \u{1b}[31merror");
        assert_eq!((&value["target"], &value["lanes"]), (&"sealane_control::run".into(), &2.into()));
    }
}
