//! OpenVPN's configuration files: words on lines, and blocks with files in them.

use anyhow::{Result, bail};

/// The largest file that is read.
pub const MAX_FILE: u64 = 4 << 20;

/// One line, or one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// From 1.
    pub line: usize,
    /// The name and its arguments; a block has its name alone.
    pub words: Vec<String>,
    /// What a block holds.
    pub inline: Option<String>,
}

impl Directive {
    /// Its name.
    pub fn name(&self) -> &str {
        self.words.first().map_or("", |w| w.strip_prefix("--").unwrap_or(w))
    }

    /// Its arguments.
    pub fn arguments(&self) -> Vec<&str> {
        self.words.iter().skip(1).map(String::as_str).collect()
    }
}

/// Reads a file's text.
pub fn parse(text: &str) -> Result<Vec<Directive>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut out = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, raw)) = lines.next() {
        let number = number + 1;
        let trimmed = raw.trim();
        if let Some(name) = trimmed.strip_prefix('<').and_then(|t| t.strip_suffix('>')).filter(|n| !n.starts_with('/'))
        {
            let (end, mut block, mut closed) = (format!("</{name}>"), String::new(), false);
            for (_, line) in lines.by_ref() {
                if line.trim() == end {
                    closed = true;
                    break;
                }
                block.push_str(line);
                block.push('\n');
            }
            if !closed {
                bail!("line {number}: <{name}> has no </{name}>");
            }
            out.push(Directive { line: number, words: vec![name.to_owned()], inline: Some(block) });
            continue;
        }
        let words = split(trimmed).map_err(|e| anyhow::anyhow!("line {number}: {e}"))?;
        if !words.is_empty() {
            out.push(Directive { line: number, words, inline: None });
        }
    }
    Ok(out)
}

/// Words as OpenVPN splits them: double quotes with backslashes, single quotes without, comments with `#` or `;`.
fn split(line: &str) -> Result<Vec<String>> {
    let (mut words, mut word, mut inside) = (Vec::new(), None::<String>, None::<char>);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (inside, c) {
            (Some('\''), '\'') | (Some('"'), '"') => inside = None,
            (Some('"') | None, '\\') => match chars.next() {
                Some(next) => word.get_or_insert_default().push(next),
                None => bail!("a backslash at the end"),
            },
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                inside = Some(c);
                word.get_or_insert_default();
            }
            (None, '#' | ';') if word.is_none() => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    if inside.is_some() {
        bail!("a quote without its end");
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_as_openvpn_does() {
        let text = "port 1194 # a comment\n; another\npush \"route 10.0.0.0 255.0.0.0\"\n  ca 'a b\\c' x\\ y\n<ca>\n--x\n</ca>\n";
        let got = parse(text).expect("well formed");
        let words: Vec<Vec<&str>> = got.iter().map(|d| d.words.iter().map(String::as_str).collect()).collect();
        assert_eq!(words[0], ["port", "1194"]);
        assert_eq!(words[1], ["push", "route 10.0.0.0 255.0.0.0"]);
        assert_eq!(words[2], ["ca", "a b\\c", "x y"]);
        assert_eq!((got[3].name(), got[3].inline.as_deref(), got[3].line), ("ca", Some("--x\n"), 5));
        for bad in ["push \"x", "a \\", "<ca>\nx"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
