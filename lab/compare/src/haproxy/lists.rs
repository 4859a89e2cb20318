//! Files of lists and maps that a configuration names, and the samples that are looked up in maps.

use super::acl::{Match, Of, Test, of, suffix};
use crate::tree::Node;
use std::path::{Path, PathBuf};

/// The name in the certificate of a client.
const COMMON_NAME: &str = "ssl_c_s_dn(cn)";
/// Largest file.
const MAX_FILE: u64 = 8 << 20;

/// Reads the files that a configuration names.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    folder: PathBuf,
    client: Option<String>,
}

impl Lists {
    /// Relative paths start at this folder.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), client: None }
    }

    /// With the name that a configuration expects in certificates of clients.
    pub fn of(mut self, tree: &[Node]) -> Self {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for node in tree.iter().flat_map(Node::inner) {
            for (at, word) in node.words.iter().enumerate().filter(|(_, w)| w.contains(COMMON_NAME)) {
                let converters = split(word.split(COMMON_NAME).nth(1).unwrap_or_default());
                let map = converters.iter().filter_map(|c| call(c)).find(|(name, _)| name.starts_with("map"));
                match map.and_then(|(name, arguments)| Map::read(name, arguments, &self).ok()) {
                    Some(map) => keys.extend(map.entries.into_iter().map(|(key, _)| key)),
                    None if node.name() == "acl" || at > 0 && node.words[at - 1].ends_with('{') => {
                        values.extend(first_value(&node.words[at + 1..]));
                    }
                    None => {}
                }
            }
        }
        let both = values.iter().find(|v| keys.contains(v));
        let first = both.or(keys.first()).or(values.first());
        self.client = first.filter(|name| is_name(name)).cloned();
        self
    }

    /// The name in certificates of clients that the configuration expects.
    pub fn client(&self) -> Option<&str> {
        self.client.as_deref()
    }

    /// The folder at which relative paths start.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The lines of a file, without comments. `None`: the file cannot be read here.
    pub fn lines(&self, name: &str) -> Option<Vec<String>> {
        let path = self.folder.join(name);
        if std::fs::metadata(&path).ok()?.len() > MAX_FILE {
            return None;
        }
        let text = String::from_utf8_lossy(&std::fs::read(&path).ok()?).into_owned();
        let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
        Some(lines.map(str::to_owned).collect())
    }
}

/// A map of a configuration: the keys of a file, and what stands for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// The file, as the configuration names it.
    pub file: String,
    /// How keys are compared.
    pub how: Match,
    /// Keys and values in the order of the file; the first entry of a key counts.
    pub entries: Vec<(String, String)>,
    /// The value for what is not found.
    pub default: Option<String>,
}

/// A part of a request, as an expression such as `req.hdr(host),lower,map(FILE)` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The part.
    pub of: Of,
    /// How the name of the fetch says that it is compared.
    pub how: Option<Match>,
    /// Whether it is compared in lower case.
    pub lower: bool,
    /// Whether a port is removed.
    pub bare: bool,
    /// The map in which it is looked up.
    pub map: Option<Map>,
}

impl Sample {
    /// Reads an expression. `Err`: why no request is made for it.
    pub fn read(expression: &str, lists: &Lists) -> Result<Self, String> {
        let parts = split(expression);
        let (first, converters) = parts.split_first().ok_or("it is empty")?;
        let (fetch, argument) = call(first).ok_or_else(|| format!("{first} is not understood"))?;
        let (how, fetch) = suffix(fetch);
        let name = lists.client.clone().filter(|_| first.eq_ignore_ascii_case(COMMON_NAME));
        let of = name
            .map(Of::CommonName)
            .or_else(|| of(fetch, argument))
            .ok_or_else(|| format!("no request is made for the criterion {fetch}"))?;
        let mut out = Self { of, how, lower: false, bare: false, map: None };
        for converter in converters {
            if out.map.is_some() {
                return Err(format!("no request is made for the converter {converter} of the value of a map"));
            }
            match (call(converter).ok_or_else(|| format!("{converter} is not understood"))?, &out.of) {
                (("lower", ""), _) => out.lower = true,
                (("field", "1,:") | ("host_only", ""), Of::Host) => out.bare = true,
                ((name, arguments), _) if name == "map" || name.starts_with("map_") => {
                    out.map = Some(Map::read(name, arguments, lists)?);
                }
                ((name, _), _) => return Err(format!("no request is made for the converter {name}")),
            }
        }
        Ok(out)
    }

    /// A criterion with these values.
    pub fn test(&self, how: Match, values: Vec<String>) -> Test {
        Test { of: self.of.clone(), how, ignore_case: self.lower, bare: self.bare, values }
    }
}

impl Map {
    fn read(name: &str, arguments: &str, lists: &Lists) -> Result<Self, String> {
        // The second suffix is the type of the value.
        let how = match name.split('_').nth(1).unwrap_or("str") {
            "str" | "ip" => Match::Is,
            "beg" => Match::Begin,
            "end" => Match::End,
            "sub" => Match::Within,
            "dir" => Match::Folder,
            "dom" => Match::Domain,
            "reg" | "regm" => Match::Regex,
            _ => return Err(format!("no request is made for {name}")),
        };
        let (file, default) = arguments.split_once(',').map_or((arguments, None), |(f, d)| (f, Some(d.to_owned())));
        let lines = lists.lines(file).ok_or_else(|| format!("the map {file} cannot be read here"))?;
        let mut entries: Vec<(String, String)> = Vec::new();
        for line in lines {
            let (key, value) = line.split_once([' ', '\t']).unwrap_or((&line, ""));
            if !entries.iter().any(|(k, _)| k == key) {
                entries.push((key.to_owned(), value.trim().to_owned()));
            }
        }
        match entries.is_empty() && default.is_none() {
            true => Err(format!("the map {file} is empty")),
            false => Ok(Self { file: file.to_owned(), how, entries, default }),
        }
    }
}

/// The expressions in a word: `%[…]`.
pub fn expressions(word: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = word;
    while let Some((_, behind)) = rest.split_once("%[") {
        let mut depth = 0_i32;
        let end = behind.char_indices().find(|(_, c)| {
            depth += i32::from(*c == '(') - i32::from(*c == ')');
            *c == ']' && depth <= 0
        });
        let Some((end, _)) = end else { break };
        out.push(&behind[..end]);
        rest = &behind[end + 1..];
    }
    out
}

/// The parts of an expression: commas in parentheses are part of an argument.
fn split(expression: &str) -> Vec<&str> {
    let (mut out, mut depth, mut begin) = (Vec::new(), 0_i32, 0);
    for (at, c) in expression.char_indices() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if c == ',' && depth == 0 {
            out.push(&expression[begin..at]);
            begin = at + 1;
        }
    }
    out.push(&expression[begin..]);
    out
}

/// The first value behind a criterion, if it is compared as a whole.
fn first_value(words: &[String]) -> Option<String> {
    let mut rest = words.iter();
    loop {
        match rest.next()?.as_str() {
            "-i" | "--" => {}
            "-m" if rest.next()? == "str" => {}
            word => return Some(word.to_owned()).filter(|w| !w.starts_with('-') && w != "}"),
        }
    }
}

/// Whether a text can be the name in a certificate.
fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic() || b == b' ')
}

/// A name and its argument.
fn call(text: &str) -> Option<(&str, &str)> {
    match text.split_once('(') {
        Some((name, argument)) => Some((name, argument.strip_suffix(')')?)),
        None => Some((text, "")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_with_their_maps() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(
            folder.path().join("h.map"),
            "# sites\n\nshop.example.com  shop\nb.example.com blog\nb.example.com x\n",
        )
        .unwrap();
        let lists = Lists::new(folder.path());
        let sample = Sample::read("req.hdr(host),lower,field(1,:),map_dom(h.map,rest)", &lists).unwrap();
        assert_eq!((&sample.of, sample.lower, sample.bare), (&Of::Host, true, true));
        let map = sample.map.unwrap();
        assert_eq!((map.how, map.default.as_deref()), (Match::Domain, Some("rest")));
        let entries: Vec<(&str, &str)> = map.entries.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(entries, [("shop.example.com", "shop"), ("b.example.com", "blog")]);
        let why = |text: &str| Sample::read(text, &lists).unwrap_err();
        assert_eq!(why("path,map(none.map)"), "the map none.map cannot be read here");
        assert_eq!(why("path,crc32"), "no request is made for the converter crc32");
        assert_eq!(why("rand(100)"), "no request is made for the criterion rand");
    }

    #[test]
    fn expressions_end_at_their_bracket() {
        assert_eq!(
            expressions("https://%[req.hdr(host),map(a)]%[path,regsub(^/[a-z]+,)]x"),
            ["req.hdr(host),map(a)", "path,regsub(^/[a-z]+,)"]
        );
        assert!(expressions("plain %[open").is_empty());
    }
}
