//! What a line of the log looks like.
//!
//! | where | |
//! |---|---|
//! | text | `2026-11-22T18:30:00.123Z INFO sealane: MESSAGE key=value` |
//! | text, to systemd's journal | `<6>MESSAGE key=value`: the journal has the time and the program, and takes the level from the number |
//! | JSON | `{"time":"…","level":"info","target":"…","message":"…","key":"value"}` |

use super::Level;
use serde_json::Value;
use std::fmt::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::time::SystemTime;
use time::OffsetDateTime;
use tracing_core::Event;
use tracing_core::field::{Field, Visit};

/// Where lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A terminal, a file or a pipe.
    Plain,
    /// systemd's journal.
    Journal,
}

/// How lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
}

impl Output {
    /// Finds out what the standard error is. `JOURNAL_STREAM` names the journal's device and inode, and is inherited
    /// by processes whose standard error is something else (systemd.exec(5)).
    pub fn detect() -> Self {
        use std::os::fd::AsFd as _;
        let stderr = std::io::stderr();
        let is_journal = std::env::var("JOURNAL_STREAM").is_ok_and(|named| {
            let file = stderr.as_fd().try_clone_to_owned().map(std::fs::File::from);
            let found = file.and_then(|file| file.metadata()).map(|m| format!("{}:{}", m.dev(), m.ino()));
            found.is_ok_and(|found| found == named)
        });
        if is_journal { Self::Journal } else { Self::Plain }
    }
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
    #[cfg(test)]
    pub fn new(level: Level, target: &'static str, message: &str) -> Self {
        Self { level, target, message: message.to_owned(), fields: Vec::new() }
    }

    /// Takes an event apart.
    pub fn of(event: &Event<'_>) -> Self {
        let metadata = event.metadata();
        let (level, target) = (Level::of(metadata.level()), metadata.target());
        let mut line = Self { level, target, message: String::new(), fields: Vec::new() };
        event.record(&mut line);
        line
    }

    /// Adds a field.
    pub fn field(&mut self, name: &'static str, value: Value) {
        self.fields.push((name, value));
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
                    if s.is_empty() || s.contains(|c: char| c <= ' ' || c == '"' || c == '=' || c.is_control()) =>
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
            let _ = write!(text, ",\"{name}\":{value}");
        }
        text + "}"
    }
}

/// A message may have several lines (the errors of a configuration); those after the first are indented, so that none
/// of them can pass for an entry. Other control characters are escaped: a terminal would obey them.
fn push_message(text: &mut String, message: &str) {
    for c in message.trim_end().chars() {
        match c {
            '\n' => text.push_str("\n  "),
            c if c.is_control() => text.extend(c.escape_default()),
            c => text.push(c),
        }
    }
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
            "message" => value.clone_into(&mut self.message),
            name => self.field(name, value.into()),
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
struct Time(SystemTime);

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
    fn every_line_in_the_journal_has_its_level() {
        let (line, now) = line();
        assert_eq!(
            line.render(Output::Journal, Format::Text, now),
            "<4>not reloaded:\n<4>  x.toml:1: \\u{1b}[31merror file=\"a \\\"b\\\"\" lanes=2 name=plain\n"
        );
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
