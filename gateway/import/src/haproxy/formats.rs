//! Flags of the items of a format: `%{+Q}ci`, `%{+E}[path]`.
//!
//! What the flags do depends on the item and on the place of the format. This is what HAProxy 2.6 sends:
//!
//! | item | in the value of a header | in a `log-format` |
//! |---|---|---|
//! | a sample (`%[src]`) | Q and X have no effect, E has one | Q and E have an effect, X has none |
//! | a text (`%ci`, `%HM`) | Q and E have an effect, X too for an address | the same |
//! | a number or a time (`%fp`, `%ST`) | Q has no effect | the same |

/// The flags of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// `Q`: quotation marks around the item.
    pub quoted: bool,
    /// `E`: a backslash before `"`, `\` and `]`.
    pub escaped: bool,
    /// `X`: hexadecimal digits.
    pub hexadecimal: bool,
}

impl Flags {
    /// Reads the flags at the beginning of an item, on top of these. Returns them with the rest of the text. `None`: a flag is unknown.
    pub fn read(self, item: &str) -> Option<(Self, &str)> {
        let Some(inner) = item.strip_prefix('{') else { return Some((self, item)) };
        let (list, rest) = inner.split_once('}')?;
        let mut out = self;
        for flag in list.split(',') {
            let on = match flag.get(..1)? {
                "+" => true,
                "-" => false,
                _ => return None,
            };
            match &flag[1..] {
                "Q" => out.quoted = on,
                "E" => out.escaped = on,
                "X" => out.hexadecimal = on,
                _ => return None,
            }
        }
        Some((out, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_added_and_removed() {
        let none = Flags::default();
        let quoted = Flags { quoted: true, ..none };
        assert_eq!(none.read("ci"), Some((none, "ci")));
        assert_eq!(none.read("{+Q}ci"), Some((quoted, "ci")));
        assert_eq!(quoted.read("[src]"), Some((quoted, "[src]")));
        assert_eq!(quoted.read("{-Q,+E}HM"), Some((Flags { escaped: true, ..none }, "HM")));
        assert_eq!(none.read("{+X}ci"), Some((Flags { hexadecimal: true, ..none }, "ci")));
        for bad in ["{Q}ci", "{+Q", "{+Q+X}ci", "{+Q, +X}ci", "{}ci", "{+}ci", "{+B}ci"] {
            assert_eq!(none.read(bad), None, "{bad}");
        }
    }
}
