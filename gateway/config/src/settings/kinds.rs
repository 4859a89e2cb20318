//! The types that settings have: how a value is read, and what the reference and the JSON Schema say of it.

use super::Table;
use crate::decode::{self, At, Node};
use crate::diagnostics::Sink;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;
use toml::de::DeValue;

/// A type of settings.
pub(crate) trait Kind {
    /// What a value is once it has been read.
    type Value;

    /// Reads a value, or reports what is wrong with it.
    fn decode(&self, sink: &Sink, key: &str, node: &Node) -> Option<Self::Value>;

    /// Which values there are.
    fn shape(&self) -> Shape;
}

/// What the reference, the schema and `sealane config show` know of a type.
pub(crate) trait Described: Sync {
    fn shape(&self) -> Shape;

    /// Whether a value can be read.
    #[cfg(test)]
    fn accepts(&self, sink: &Sink, key: &str, node: &Node) -> bool;
}

impl<K: Kind + Sync> Described for K {
    fn shape(&self) -> Shape {
        Kind::shape(self)
    }

    #[cfg(test)]
    fn accepts(&self, sink: &Sink, key: &str, node: &Node) -> bool {
        self.decode(sink, key, node).is_some()
    }
}

/// The values that a setting may have.
#[derive(Clone)]
pub(crate) enum Shape {
    Flag,
    Count(RangeInclusive<u64>),
    /// Bytes, as a number or with a unit.
    Size(RangeInclusive<u64>),
    Time(RangeInclusive<Duration>),
    /// A string; with a regular expression for the schema.
    Text(Option<&'static str>),
    Path,
    Choice(Vec<&'static str>),
    /// A list of these, or a single one.
    List(Box<Shape>),
    /// One of these.
    Either(Vec<Shape>),
    /// A table whose keys are not settings: names of headers.
    Map(Box<Shape>),
    Table(&'static Table),
    /// A table with settings of another table, whichever it is.
    Settings,
    /// A list of tables, or a single one.
    Tables(&'static Table),
    /// The same, or this word.
    TablesOr(&'static Table, &'static str),
}

/// `true` or `false`.
pub(crate) struct Flag;

impl Kind for Flag {
    type Value = bool;

    fn decode(&self, sink: &Sink, key: &str, node: &Node) -> Option<bool> {
        decode::boolean(sink, key, node)
    }

    fn shape(&self) -> Shape {
        Shape::Flag
    }
}

/// A whole number within bounds.
pub(crate) struct Count(pub RangeInclusive<u64>);

impl Kind for Count {
    type Value = u64;

    fn decode(&self, sink: &Sink, key: &str, node: &Node) -> Option<u64> {
        decode::count(&self.0, sink, key, node)
    }

    fn shape(&self) -> Shape {
        Shape::Count(self.0.clone())
    }
}

/// A number of bytes within bounds.
pub(crate) struct Size(pub RangeInclusive<u64>);

impl Kind for Size {
    type Value = u64;

    fn decode(&self, sink: &Sink, key: &str, node: &Node) -> Option<u64> {
        decode::size(&self.0, sink, key, node)
    }

    fn shape(&self) -> Shape {
        Shape::Size(self.0.clone())
    }
}

/// A duration within bounds.
pub(crate) struct Time(pub RangeInclusive<Duration>);

impl Time {
    /// A duration is no longer: it is surely a slip, and the sum of an instant and a timeout stays in range.
    pub const LONGEST: Duration = Duration::from_secs(366 * 86_400);
    /// Any duration, zero included.
    pub const ANY: Self = Self(Duration::ZERO..=Self::LONGEST);
    /// A duration that is not zero: a timeout of nothing would refuse everybody.
    pub const TIMEOUT: Self = Self(Duration::from_micros(1)..=Self::LONGEST);
}

impl Kind for Time {
    type Value = Duration;

    fn decode(&self, sink: &Sink, key: &str, node: &Node) -> Option<Duration> {
        // A zero without a unit is a zero.
        let d = match node.get_ref() {
            DeValue::Integer(zero) if zero.as_str() == "0" && !self.0.contains(&Duration::ZERO) => Duration::ZERO,
            _ => decode::duration(sink, key, node)?,
        };
        if self.0.contains(&d) {
            return Some(d);
        }
        let (message, help) = match (d.is_zero(), *self.0.end() == Self::LONGEST) {
            (true, true) => {
                (format!("\"{key}\" must be longer than zero"), Some(format!("write a time such as {key} = \"10s\"")))
            }
            _ => (format!("\"{key}\" is out of range: {}", range_of_time(&self.0)), None),
        };
        let help = match *self.0.start() == Duration::ZERO {
            true => Some("\"0s\" switches it off".to_owned()),
            false => help,
        };
        sink.error(&node.span(), message, help);
        None
    }

    fn shape(&self) -> Shape {
        Shape::Time(self.0.clone())
    }
}

/// `1m to 7d`.
pub(crate) fn range_of_time(range: &RangeInclusive<Duration>) -> String {
    match *range.end() == Time::LONGEST {
        true => format!("at least {}", time(*range.start())),
        false => format!("{} to {}", time(*range.start()), time(*range.end())),
    }
}

/// A duration in its largest whole unit.
pub(crate) fn time(d: Duration) -> String {
    let micros = d.as_micros();
    let units = [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms")];
    match units.iter().find(|(unit, _)| micros > 0 && micros.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", micros / unit),
        None if micros == 0 => "0s".to_owned(),
        None => format!("{micros}us"),
    }
}

/// A string.
pub(crate) struct Text;

impl Kind for Text {
    type Value = String;

    fn decode(&self, sink: &Sink, key: &str, node: &Node) -> Option<String> {
        decode::text(sink, key, node)
    }

    fn shape(&self) -> Shape {
        Shape::Text(None)
    }
}

/// Strings; a single one counts as a list of one. Never empty.
pub(crate) struct Strings;

impl Kind for Strings {
    type Value = Vec<At<String>>;

    fn decode(&self, sink: &Sink, key: &str, node: &Node) -> Option<Vec<At<String>>> {
        decode::strings(sink, key, node)
    }

    fn shape(&self) -> Shape {
        Shape::List(Box::new(Shape::Text(None)))
    }
}

/// The path of a file to read.
pub(crate) struct File;

impl Kind for File {
    type Value = PathBuf;

    fn decode(&self, sink: &Sink, key: &str, node: &Node) -> Option<PathBuf> {
        decode::path(sink, key, node)
    }

    fn shape(&self) -> Shape {
        Shape::Path
    }
}

/// The path of a file to write.
pub(crate) struct Output;

impl Kind for Output {
    type Value = PathBuf;

    fn decode(&self, sink: &Sink, key: &str, node: &Node) -> Option<PathBuf> {
        decode::output_path(sink, key, node)
    }

    fn shape(&self) -> Shape {
        Shape::Path
    }
}

/// One of several words.
pub(crate) struct Choice<T: 'static>(pub &'static [(&'static str, T)]);

impl<T: Copy> Kind for Choice<T> {
    type Value = T;

    fn decode(&self, sink: &Sink, key: &str, node: &Node) -> Option<T> {
        let s = decode::text(sink, key, node)?;
        decode::choose(sink, &format!("\"{key}\""), &s, &node.span(), self.0)
    }

    fn shape(&self) -> Shape {
        Shape::Choice(self.0.iter().map(|(name, _)| *name).collect())
    }
}

/// A list of several words, without repetitions, in the user's order.
pub(crate) struct Words<T: 'static>(pub &'static [(&'static str, T)]);

impl<T: Copy + PartialEq> Kind for Words<T> {
    type Value = Vec<T>;

    fn decode(&self, sink: &Sink, key: &str, node: &Node) -> Option<Vec<T>> {
        let mut out = Vec::new();
        let mut good = true;
        for word in decode::strings(sink, key, node)? {
            match decode::choose(sink, &format!("\"{key}\""), &word.value, &word.span, self.0) {
                Some(v) if out.contains(&v) => {}
                Some(v) => out.push(v),
                None => good = false,
            }
        }
        good.then_some(out)
    }

    fn shape(&self) -> Shape {
        Shape::List(Box::new(Shape::Choice(self.0.iter().map(|(name, _)| *name).collect())))
    }
}

/// A type that one setting has: how it is read, and which values there are.
pub(crate) struct Own<T>(pub fn(&Sink, &str, &Node) -> Option<T>, pub fn() -> Shape);

impl<T> Kind for Own<T> {
    type Value = T;

    fn decode(&self, sink: &Sink, key: &str, node: &Node) -> Option<T> {
        (self.0)(sink, key, node)
    }

    fn shape(&self) -> Shape {
        (self.1)()
    }
}

/// A table.
pub(crate) struct One(pub &'static Table);

impl Described for One {
    fn shape(&self) -> Shape {
        Shape::Table(self.0)
    }

    #[cfg(test)]
    fn accepts(&self, _: &Sink, _: &str, node: &Node) -> bool {
        matches!(node.get_ref(), toml::de::DeValue::Table(_))
    }
}

/// A list of tables, a single one, or a word.
pub(crate) struct ManyOr(pub &'static Table, pub &'static str);

impl Described for ManyOr {
    fn shape(&self) -> Shape {
        Shape::TablesOr(self.0, self.1)
    }

    #[cfg(test)]
    fn accepts(&self, _: &Sink, _: &str, node: &Node) -> bool {
        match node.get_ref() {
            toml::de::DeValue::String(s) => s == self.1,
            toml::de::DeValue::Table(_) | toml::de::DeValue::Array(_) => true,
            _ => false,
        }
    }
}

/// A list of tables, or a single one.
pub(crate) struct Many(pub &'static Table);

impl Described for Many {
    fn shape(&self) -> Shape {
        Shape::Tables(self.0)
    }

    #[cfg(test)]
    fn accepts(&self, _: &Sink, _: &str, node: &Node) -> bool {
        matches!(node.get_ref(), toml::de::DeValue::Table(_) | toml::de::DeValue::Array(_))
    }
}
