//! HAProxy's lines and words.

use crate::reader::Reader;

/// A line that is not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Words {
    /// The line on which it begins.
    pub line: u32,
    pub words: Vec<String>,
    /// Environment variables in it that are not set.
    pub unset: Vec<String>,
    /// Bytes in it that are no characters of ASCII, as they are written: `\xE0`. Words are texts, and have them in this form.
    pub bytes: Vec<String>,
}

/// Longest line, with its continuations.
const MAX_LINE: usize = 64 << 10;
/// Most lines by which a line is continued.
const MAX_CONTINUED: u32 = 1000;
/// Most words of a line.
const MAX_WORDS: usize = 2000;

/// Splits a text into lines of words.
pub(super) fn lines(text: &str, reader: &dyn Reader) -> Result<Vec<Words>, (u32, String)> {
    let mut out = Vec::new();
    let mut joined = String::new();
    let mut begin = 1;
    for (number, line) in (1u32..).zip(text.lines()) {
        if joined.is_empty() {
            begin = number;
        }
        // An odd number of backslashes: the last one is not escaped, and the line goes on. A comment does not.
        let slashes = line.bytes().rev().take_while(|b| *b == b'\\').count();
        if slashes % 2 == 1 && !ends_in_comment(&joined, line) {
            joined.push_str(&line[..line.len() - 1]);
            joined.push(' ');
            if number - begin > MAX_CONTINUED {
                return Err((begin, "the line goes on for too long".to_owned()));
            }
        } else {
            joined.push_str(line);
            let words = split(&joined, begin, reader)?;
            joined.clear();
            if !words.words.is_empty() {
                out.push(words);
            }
        }
        if joined.len() > MAX_LINE {
            return Err((begin, "the line is too long".to_owned()));
        }
    }
    if !joined.is_empty() {
        let words = split(&joined, begin, reader)?;
        if !words.words.is_empty() {
            out.push(words);
        }
    }
    Ok(out)
}

/// Whether a line, behind those that it continues, ends in a comment.
fn ends_in_comment(before: &str, line: &str) -> bool {
    let mut quote: Option<char> = None;
    let mut rest = before.chars().chain(line.chars());
    while let Some(c) = rest.next() {
        match (c, quote) {
            ('\'', Some('\'')) | ('"', Some('"')) => quote = None,
            (_, Some('\'')) => {}
            ('\\', _) => {
                rest.next();
            }
            ('"' | '\'', None) => quote = Some(c),
            ('#', None) => return true,
            _ => {}
        }
    }
    false
}

fn split(line: &str, number: u32, reader: &dyn Reader) -> Result<Words, (u32, String)> {
    if line.len() > MAX_LINE {
        return Err((number, "the line is too long".to_owned()));
    }
    let mut out = Words { line: number, words: Vec::new(), unset: Vec::new(), bytes: Vec::new() };
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, quote) {
            ('\'', Some('\'')) | ('"', Some('"')) => quote = None,
            (c, Some('\'')) => word.get_or_insert_default().push(c),
            ('\\', quote) => {
                let word = word.get_or_insert_default();
                match rest.next() {
                    // In weak quotation other backslashes stay.
                    Some(c @ ('"' | '\\' | '$' | '\'' | ' ' | '#')) => word.push(c),
                    Some('n') => word.push('\n'),
                    Some('r') => word.push('\r'),
                    Some('t') => word.push('\t'),
                    Some('x') => match hexadecimal(&mut rest) {
                        Some(byte @ 1..0x80) => word.push(char::from(byte)),
                        Some(byte) => {
                            let written = format!("\\x{byte:02X}");
                            word.push_str(&written);
                            out.bytes.push(written);
                        }
                        None => return Err((number, "\\x is not followed by two hexadecimal digits".to_owned())),
                    },
                    Some(c) => {
                        // An unknown escape outside of quotation loses its backslash only where HAProxy says so; regular expressions
                        // keep theirs.
                        word.push('\\');
                        word.push(c);
                    }
                    None if quote.is_some() => break,
                    None => {}
                }
            }
            ('$', Some('"')) => {
                let (name, default, is_list) = variable(&mut rest);
                let word = word.get_or_insert_default();
                match reader.environment(&name).or(default) {
                    // Each of the values of a list is a word of its own.
                    Some(value) if is_list => {
                        let mut values = value.split(' ').filter(|v| !v.is_empty());
                        word.extend(values.next());
                        for value in values {
                            out.words.push(std::mem::replace(word, value.to_owned()));
                        }
                    }
                    Some(value) => word.push_str(&value),
                    None if name.is_empty() => word.push('$'),
                    None => out.unset.push(name),
                }
            }
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('#', None) => break,
            (c, None) if c.is_whitespace() => out.words.extend(word.take()),
            (c, None) => word.get_or_insert_default().push(c),
        }
        if out.words.len() > MAX_WORDS || word.as_ref().is_some_and(|w| w.len() > MAX_LINE) {
            return Err((number, "the line is too long".to_owned()));
        }
    }
    if quote.is_some() {
        return Err((number, "a quotation has no end".to_owned()));
    }
    out.words.extend(word);
    Ok(out)
}

/// `41` behind `\x`: the character A.
fn hexadecimal(rest: &mut std::iter::Peekable<std::str::Chars>) -> Option<u8> {
    let (high, low) = (rest.next()?.to_digit(16)?, rest.next()?.to_digit(16)?);
    u8::try_from(high * 16 + low).ok()
}

/// `NAME`, `{NAME}` or `{NAME-default}` behind a `$`. The last: `{NAME[*]}`, which is a list.
fn variable(rest: &mut std::iter::Peekable<std::str::Chars>) -> (String, Option<String>, bool) {
    let mut name = String::new();
    if rest.peek() != Some(&'{') {
        while let Some(c) = rest.peek().copied().filter(|c| c.is_ascii_alphanumeric() || *c == '_') {
            name.push(c);
            rest.next();
        }
        return (name, None, false);
    }
    rest.next();
    let mut default: Option<String> = None;
    for c in rest.by_ref() {
        match (c, &mut default) {
            ('}', _) => break,
            ('-', None) => default = Some(String::new()),
            (c, Some(d)) => d.push(c),
            (c, None) => name.push(c),
        }
    }
    match name.strip_suffix("[*]") {
        Some(list) => (list.to_owned(), default, true),
        None => (name, default, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    fn words(text: &str) -> Vec<Vec<String>> {
        let mut reader = Memory::default();
        reader.variables.insert("PORT".into(), "8080".into());
        reader.variables.insert("BAD".into(), "10.0.0.1  10.0.0.2".into());
        lines(text, &reader).unwrap().into_iter().map(|w| w.words).collect()
    }

    #[test]
    fn words_are_split_as_in_haproxy() {
        assert_eq!(words("  a b # c\n\n#d\ne"), [vec!["a", "b"], vec!["e"]]);
        assert_eq!(words(r#"a "b c" 'd "e' f\ g h\#i"#), [["a", "b c", "d \"e", "f g", "h#i"]]);
        assert_eq!(words("a b \\\n  c\nd"), [vec!["a", "b", "c"], vec!["d"]]);
        assert_eq!(
            words(r#"bind ":${PORT}" "x$PORT" '$PORT' "${NONE-9}""#),
            [["bind", ":8080", "x8080", "$PORT", "9"]]
        );
        assert_eq!(words(r"acl a path_reg ^/x\.php$"), [["acl", "a", "path_reg", r"^/x\.php$"]]);
        assert_eq!(
            words(r#"src "${BAD[*]}" "x${BAD[*]}""#),
            [["src", "10.0.0.1", "10.0.0.2", "x10.0.0.1", "10.0.0.2"]]
        );
        assert_eq!(words(r#"path_beg /a\x20b "\x2fc""#), [["path_beg", "/a b", "/c"]]);
    }

    #[test]
    fn a_comment_ends_with_its_line() {
        assert_eq!(words("a # note \\\nb\n# note \\\nc"), [["a"], ["b"], ["c"]]);
        assert_eq!(words("a \"#\" \\\nb"), [["a", "#", "b"]]);
        assert_eq!(words("a \\\nb # c \\\nd"), [vec!["a", "b"], vec!["d"]]);
    }

    #[test]
    fn what_has_no_end_is_refused() {
        assert!(lines("a \"b", &Memory::default()).is_err());
        assert!(lines("a \\x4", &Memory::default()).is_err());
        assert_eq!(lines("a \"$NONE\"", &Memory::default()).unwrap()[0].unset, ["NONE"]);
        let odd = lines("a x\\xffy\\x00", &Memory::default()).unwrap().remove(0);
        assert_eq!((odd.words[1].as_str(), odd.bytes), (r"x\xFFy\x00", vec![r"\xFF".to_owned(), r"\x00".to_owned()]));
    }
}
