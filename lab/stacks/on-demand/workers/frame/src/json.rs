//! One line of output: a flat JSON object.

use std::fmt::Write;

/// A line that is being written.
pub struct Line(String);

impl Line {
    /// Starts a line of a kind (`stack`, `handshakes`, `bulk`, `feature`, `error`).
    pub fn new(kind: &str) -> Self {
        let mut line = Self(format!("{{\"format\":{}", crate::FORMAT));
        line.push("kind", kind);
        line
    }

    fn push(&mut self, name: &str, text: &str) {
        let _ = write!(self.0, ",\"{name}\":\"");
        for c in text.chars() {
            match c {
                '"' | '\\' => {
                    self.0.push('\\');
                    self.0.push(c);
                }
                c if c.is_control() => {
                    let _ = write!(self.0, "\\u{:04x}", u32::from(c));
                }
                c => self.0.push(c),
            }
        }
        self.0.push('"');
    }

    /// A text.
    pub fn text(mut self, name: &str, text: &str) -> Self {
        self.push(name, text);
        self
    }

    /// A whole number.
    pub fn number(mut self, name: &str, value: u64) -> Self {
        let _ = write!(self.0, ",\"{name}\":{value}");
        self
    }

    /// The line, without its end.
    pub fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Line;

    #[test]
    fn a_line_is_json() {
        let line = Line::new("x").text("a", "say \"\\\n").number("n", 7).end();
        assert_eq!(line, r#"{"format":1,"kind":"x","a":"say \"\\\u000a","n":7}"#);
    }
}
