//! OpenVPN's configuration files: words on lines, and blocks with files in them. Profiles of clients and the import of servers'
//! configurations read them.

use std::fmt;

/// The largest file that is read.
pub const MAX_FILE: u64 = 4 << 20;

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// From 1.
    pub line: usize,
    /// In words.
    pub what: String,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for FileError {}

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
pub fn parse(text: &str) -> Result<Vec<Directive>, FileError> {
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
                return Err(FileError { line: number, what: format!("<{name}> has no </{name}>") });
            }
            out.push(Directive { line: number, words: vec![name.to_owned()], inline: Some(block) });
            continue;
        }
        let words = split(trimmed).map_err(|what| FileError { line: number, what: what.to_owned() })?;
        if !words.is_empty() {
            out.push(Directive { line: number, words, inline: None });
        }
    }
    Ok(out)
}

/// Words as OpenVPN splits them: double quotes with backslashes, single quotes without, comments with `#` or `;`.
fn split(line: &str) -> Result<Vec<String>, &'static str> {
    let (mut words, mut word, mut inside) = (Vec::new(), None::<String>, None::<char>);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (inside, c) {
            (Some('\''), '\'') | (Some('"'), '"') => inside = None,
            (Some('"') | None, '\\') => match chars.next() {
                Some(next) => word.get_or_insert_default().push(next),
                None => return Err("a backslash at the end"),
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
        return Err("a quote without its end");
    }
    words.extend(word);
    Ok(words)
}

/// `verify-x509-name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// The common name is this.
    Name(String),
    /// The common name begins with this.
    Prefix(String),
    /// The whole subject is this, as OpenVPN prints it: `C=KR, O=Example, CN=vpn`.
    Subject(String),
}

impl NameRule {
    /// Reads `verify-x509-name NAME [subject|name|name-prefix]`.
    pub fn of(directive: &Directive) -> Result<Self, FileError> {
        let wrong = |what: String| Err(FileError { line: directive.line, what });
        let arguments = directive.arguments();
        let Some(name) = arguments.first().map(|n| (*n).to_owned()) else {
            return wrong("verify-x509-name without a name".to_owned());
        };
        Ok(match arguments.get(1).copied() {
            Some("name") => Self::Name(name),
            Some("name-prefix") => Self::Prefix(name),
            None | Some("subject") => Self::Subject(name),
            Some(other) => return wrong(format!("verify-x509-name … {other} is not supported")),
        })
    }
}

/// The object identifier of an extended key usage that is named as OpenSSL does; a dotted number stands for itself.
pub fn usage_oid(name: &str) -> Option<String> {
    let last = match name {
        "TLS Web Server Authentication" | "serverAuth" => 1,
        "TLS Web Client Authentication" | "clientAuth" => 2,
        "Code Signing" | "codeSigning" => 3,
        "E-mail Protection" | "emailProtection" => 4,
        "Time Stamping" | "timeStamping" => 8,
        "OCSP Signing" | "OCSPSigning" => 9,
        dotted if dotted.contains('.') && dotted.split('.').all(|n| n.parse::<u64>().is_ok()) => {
            return Some(dotted.to_owned());
        }
        _ => return None,
    };
    Some(format!("1.3.6.1.5.5.7.3.{last}"))
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
