//! The newest lines of the log, kept in memory for bug reports (`sealane debug bundle`).

use std::collections::VecDeque;

/// Most bytes that are kept.
const MAX_BYTES: usize = 256 * 1024;

/// The newest lines, the oldest first.
#[derive(Debug, Default)]
pub struct Recent {
    lines: VecDeque<String>,
    bytes: usize,
}

impl Recent {
    /// Keeps a line, and drops the oldest ones that are too much with it.
    pub fn keep(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.bytes > MAX_BYTES {
            let Some(oldest) = self.lines.pop_front() else { return };
            self.bytes -= oldest.len();
        }
    }

    /// All of them.
    pub fn text(&self) -> String {
        self.lines.iter().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_lines_make_room() {
        let mut recent = Recent::default();
        let line = |n: usize| format!("{n:>1023}\n");
        (0..300).for_each(|n| recent.keep(line(n)));
        let text = recent.text();
        assert_eq!(text.len(), MAX_BYTES);
        assert!(text.starts_with(&line(44)) && text.ends_with(&line(299)));
        recent.keep("x".repeat(MAX_BYTES + 1));
        assert_eq!((recent.text(), recent.bytes), (String::new(), 0));
    }
}
