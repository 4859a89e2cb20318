//! Lines on the standard error, as text that other programs can read, too: `time level message`.

use crate::times;
use std::io::Write;

/// Writes a line. Texts of objects may be in it, so control characters are escaped.
pub fn write(level: &str, message: &str) {
    let mut line = format!("{} {level} ", times::now());
    for c in message.chars() {
        match c {
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line.push('\n');
    // Nobody reads it: there is nothing that could be done about it.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

macro_rules! info {
    ($($arg:tt)*) => { $crate::log::write("info", &format!($($arg)*)) };
}
macro_rules! warning {
    ($($arg:tt)*) => { $crate::log::write("warn", &format!($($arg)*)) };
}
pub(crate) use {info, warning};
