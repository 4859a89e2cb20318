//! NGINX's words, as `ngx_conf_read_token` splits them.

use crate::report::Place;

/// A word, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub text: String,
    pub line: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Word(Word),
    /// `;`
    End(u32),
    /// `{`
    Open(u32),
    /// `}`
    Close(u32),
}

/// Longest word.
const MAX_WORD: usize = 64 << 10;

/// Splits a file's text. It never goes back, so it takes time proportional to the text.
pub(super) struct Lexer<'t> {
    rest: std::iter::Peekable<std::str::Chars<'t>>,
    line: u32,
}

impl<'t> Lexer<'t> {
    pub fn new(text: &'t str) -> Self {
        Self { rest: text.chars().peekable(), line: 1 }
    }

    pub fn line(&self) -> u32 {
        self.line
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        self.line += u32::from(c == '\n');
        Some(c)
    }

    /// The next token; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Token>, (u32, String)> {
        loop {
            let line = self.line;
            let Some(&c) = self.rest.peek() else { return Ok(None) };
            match c {
                ' ' | '\t' | '\r' | '\n' => {
                    self.bump();
                }
                '#' => {
                    while !matches!(self.rest.peek(), None | Some('\n')) {
                        self.bump();
                    }
                }
                ';' | '{' | '}' => {
                    self.bump();
                    return Ok(Some(match c {
                        ';' => Token::End(line),
                        '{' => Token::Open(line),
                        _ => Token::Close(line),
                    }));
                }
                '"' | '\'' => {
                    self.bump();
                    return self.quoted(c, line).map(Some);
                }
                _ => return self.bare(line).map(Some),
            }
        }
    }

    fn quoted(&mut self, quote: char, line: u32) -> Result<Token, (u32, String)> {
        let mut text = String::new();
        loop {
            match self.bump() {
                None => return Err((line, format!("the quotation that begins here has no end ({quote})"))),
                Some('\\') => self.escape(&mut text),
                Some(c) if c == quote => break,
                Some(c) => text.push(c),
            }
            if text.len() > MAX_WORD {
                return Err((line, "a word is too long".to_owned()));
            }
        }
        match self.rest.peek() {
            None | Some(' ' | '\t' | '\r' | '\n' | ';' | '{' | ')') => {}
            Some(c) => return Err((self.line, format!("unexpected \"{}\" after a quotation", c.escape_default()))),
        }
        // `if ($a = "b")`: the parenthesis belongs to the word.
        if self.rest.peek() == Some(&')') {
            self.bump();
            text.push(')');
        }
        Ok(Token::Word(Word { text, line }))
    }

    /// What follows a backslash: NGINX resolves some escapes, and keeps the backslash of the others.
    fn escape(&mut self, text: &mut String) {
        match self.bump() {
            Some(c @ ('"' | '\'' | '\\')) => text.push(c),
            Some('t') => text.push('\t'),
            Some('r') => text.push('\r'),
            Some('n') => text.push('\n'),
            Some(c) => {
                text.push('\\');
                text.push(c);
            }
            None => text.push('\\'),
        }
    }

    fn bare(&mut self, line: u32) -> Result<Token, (u32, String)> {
        let mut text = String::new();
        let mut is_variable = false;
        while let Some(&c) = self.rest.peek() {
            // Only a dollar that is not escaped begins a variable.
            let begins = std::mem::replace(&mut is_variable, c == '$');
            match c {
                ' ' | '\t' | '\r' | '\n' | ';' => break,
                // `${name}` is part of the word.
                '{' if begins => {
                    self.bump();
                    text.push('{');
                }
                '{' => break,
                '\\' => {
                    self.bump();
                    self.escape(&mut text);
                }
                c => {
                    self.bump();
                    text.push(c);
                }
            }
            if text.len() > MAX_WORD {
                return Err((line, "a word is too long".to_owned()));
            }
        }
        Ok(Token::Word(Word { text, line }))
    }

    /// Skips a block of Lua after its `{`, up to the `}` that closes it.
    pub fn skip_lua(&mut self) -> Result<(), (u32, String)> {
        let line = self.line;
        let mut depth = 1usize;
        while let Some(c) = self.bump() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                '"' | '\'' => {
                    while let Some(next) = self.bump() {
                        match next {
                            '\\' => {
                                self.bump();
                            }
                            next if next == c || next == '\n' => break,
                            _ => {}
                        }
                    }
                }
                '[' => {
                    self.skip_long()?;
                }
                '-' if self.rest.peek() == Some(&'-') => {
                    self.bump();
                    // A long comment is a long string.
                    if self.rest.peek() == Some(&'[') {
                        self.bump();
                        if self.skip_long()? {
                            continue;
                        }
                    }
                    while !matches!(self.rest.peek(), None | Some('\n')) {
                        self.bump();
                    }
                }
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
        Err((line, "the block that begins here has no end".to_owned()))
    }
}

impl Lexer<'_> {
    /// Skips a long string of Lua (`[[…]]`, `[==[…]==]`) after its first bracket; whether it is one.
    fn skip_long(&mut self) -> Result<bool, (u32, String)> {
        let line = self.line;
        let mut level = 0usize;
        while self.rest.peek() == Some(&'=') {
            self.bump();
            level += 1;
        }
        if self.rest.peek() != Some(&'[') {
            return Ok(false);
        }
        self.bump();
        // Equals signs since a closing bracket.
        let mut closing: Option<usize> = None;
        while let Some(c) = self.bump() {
            closing = match (c, closing) {
                (']', Some(n)) if n == level => return Ok(true),
                (']', _) => Some(0),
                ('=', Some(n)) => Some(n + 1),
                _ => None,
            };
        }
        Err((line, "the string that begins here has no end".to_owned()))
    }
}

/// A place in a file.
pub(super) fn place(file: &str, line: u32) -> Place {
    Place::new(file, line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let mut lexer = Lexer::new(text);
        let mut out = Vec::new();
        while let Some(token) = lexer.next().unwrap() {
            out.push(match token {
                Token::Word(w) => w.text,
                Token::End(_) => ";".into(),
                Token::Open(_) => "{".into(),
                Token::Close(_) => "}".into(),
            });
        }
        out
    }

    #[test]
    fn words_are_split_as_in_nginx() {
        assert_eq!(words("a  b;c{d}"), ["a", "b", ";", "c", "{", "d}"]);
        assert_eq!(words("a # b;\nc;"), ["a", "c", ";"]);
        assert_eq!(words("a b#c;"), ["a", "b#c", ";"]);
        assert_eq!(words(r#"a "b c" 'd;"e' ;"#), ["a", "b c", "d;\"e", ";"]);
        assert_eq!(words(r#"a "b\"c\n\d";"#), ["a", "b\"c\n\\d", ";"]);
        assert_eq!(words(r"~ \.php$ {"), ["~", r"\.php$", "{"]);
        assert_eq!(words("return 301 https://${host}/x;"), ["return", "301", "https://${host}/x", ";"]);
        assert_eq!(words(r"~ a\${b;"), ["~", r"a\$", "{", "b", ";"]);
        assert_eq!(words(r"a $${b}c;"), ["a", "$${b}c", ";"]);
        assert_eq!(words(r#"if ($a = "b c") {}"#), ["if", "($a", "=", "b c)", "{", "}"]);
    }

    #[test]
    fn lines_are_counted() {
        let mut lexer = Lexer::new("a\n\"b\nc\"\nd;");
        let mut lines = Vec::new();
        while let Some(token) = lexer.next().unwrap() {
            if let Token::Word(w) = token {
                lines.push(w.line);
            }
        }
        assert_eq!(lines, [1, 2, 4]);
    }

    #[test]
    fn long_strings_of_lua_hide_braces() {
        for text in [
            "local a = [[{]] }after;",
            "a = [==[}]]]=]{]==] }after;",
            "--[[ } ]] x }after;",
            "-- }\n a[1] = b[[}]] }after;",
        ] {
            let mut lexer = Lexer::new(text);
            lexer.skip_lua().unwrap();
            let Some(Token::Word(w)) = lexer.next().unwrap() else { panic!("{text}") };
            assert_eq!(w.text, "after", "{text}");
        }
        assert!(Lexer::new("[[ }").skip_lua().is_err());
    }

    #[test]
    fn a_quotation_ends() {
        assert!(Lexer::new("\"a").next().is_err());
        assert!(Lexer::new("\"a\"b").next().is_err());
    }
}
