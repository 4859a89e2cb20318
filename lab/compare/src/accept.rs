//! Differences that a person accepts: the file of `--accept`.
//!
//! An entry names what differs, both results, and the requests. It accepts nothing else, so that another effect of the same line is
//! still a difference. What changes from run to run is not part of a name: addresses of clients, and made certificates.

use crate::difference::{Aspect, Difference};
use crate::draft::{Draft, FORWARDED, forwarded};
use crate::network::client;
use crate::tree::Place;
use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Write as _;
use std::path::Path;
use toml::Spanned;

/// What stands for the address of the client of a request.
const CLIENT: &str = "(client)";

/// A difference, as the file names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    differs: String,
    original: String,
    translation: String,
    request: String,
}

impl Sight {
    /// Of the request with this number.
    pub fn of_request(number: usize, draft: &Draft, difference: &Difference) -> Self {
        let from = draft.from.is_none().then(|| client(number).to_string());
        // Not an address that the request claims because a rule names it.
        let own = forwarded(number);
        let forwarded = draft.headers.iter().find(|(n, v)| n == "X-Forwarded-For" && *v == own);
        let stable = |text: &str| {
            let mut out = text.to_owned();
            if let Some(from) = &from {
                out = replaced(&out, from, CLIENT);
            }
            if let Some((_, value)) = forwarded {
                out = replaced(&out, value, FORWARDED);
            }
            if difference.aspect == Aspect::Certificate {
                // The sum tells certificates of one run apart.
                out = out.rsplit_once(" (").map_or(out.clone(), |(names, _)| names.to_owned());
            }
            out
        };
        Self {
            differs: difference.aspect.title(),
            original: stable(&difference.original),
            translation: stable(&difference.translation),
            request: stable(&draft.text()),
        }
    }

    /// Of a handshake.
    pub fn of_handshake(text: &str, difference: &Difference) -> Self {
        let stable = |text: &str| match difference.aspect {
            Aspect::Certificate => text.rsplit_once(" (").map_or(text, |(names, _)| names).to_owned(),
            _ => text.to_owned(),
        };
        Self {
            differs: difference.aspect.title(),
            original: stable(&difference.original),
            translation: stable(&difference.translation),
            request: text.to_owned(),
        }
    }
}

/// A text with another one in the place of an address: only where the address ends.
fn replaced(text: &str, address: &str, by: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once(address) {
        out.push_str(before);
        out.push_str(if behind.starts_with(|c: char| c.is_ascii_digit()) { address } else { by });
        rest = behind;
    }
    out + rest
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    accept: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    differs: Spanned<String>,
    original: String,
    translation: String,
    requests: Vec<Spanned<String>>,
    #[serde(default)]
    why: String,
}

/// The entries of a file.
pub struct Accepted {
    name: String,
    entries: Vec<Entry>,
    /// The line of each request of each entry, and whether a difference matches.
    used: Vec<Vec<(usize, bool)>>,
}

impl Accepted {
    /// Reads a file. A file that does not exist accepts nothing.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::of(&name, &text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Self::of(&name, ""),
            Err(e) => Err(e).context(name),
        }
    }

    fn of(name: &str, text: &str) -> anyhow::Result<Self> {
        let file: File = toml::from_str(text).with_context(|| name.to_owned())?;
        let line = |at: usize| text.get(..at).map_or(1, |before| before.matches('\n').count() + 1);
        for entry in &file.accept {
            let at = line(entry.differs.span().start);
            if entry.requests.is_empty() {
                bail!("{name}:{at}: an entry without requests accepts nothing: write requests");
            }
            if entry.differs.get_ref().contains('*') {
                bail!(
                    "{name}:{at}: \"differs\" contains \"*\", which is not allowed in this key: write what differs, as the report \
                     prints it"
                );
            }
        }
        let used = |e: &Entry| e.requests.iter().map(|r| (line(r.span().start), false)).collect();
        Ok(Self { name: name.to_owned(), used: file.accept.iter().map(used).collect(), entries: file.accept })
    }

    /// The reason for which a difference is accepted; an empty one accepts nothing. `None`: the file does not list it.
    pub fn why(&mut self, sight: &Sight) -> Option<String> {
        let mut why = None;
        for (entry, used) in self.entries.iter().zip(&mut self.used) {
            let same = *entry.differs.get_ref() == sight.differs
                && matches(&entry.original, &sight.original)
                && matches(&entry.translation, &sight.translation);
            if !same {
                continue;
            }
            for (request, (_, used)) in entry.requests.iter().zip(used) {
                if matches(request.get_ref(), &sight.request) {
                    *used = true;
                    // One entry with a reason is enough.
                    if why.as_ref().is_none_or(|there: &String| there.trim().is_empty()) {
                        why = Some(entry.why.clone());
                    }
                }
            }
        }
        why
    }

    /// The requests of entries that match no difference.
    pub fn stale(&self) -> Vec<Stale> {
        let mut out = Vec::new();
        for (entry, used) in self.entries.iter().zip(&self.used) {
            for (request, (line, _)) in entry.requests.iter().zip(used).filter(|(_, (_, used))| !used) {
                out.push(Stale {
                    file: self.name.clone(),
                    line: *line,
                    differs: entry.differs.get_ref().clone(),
                    request: request.get_ref().clone(),
                });
            }
        }
        out
    }
}

/// A request of an entry that matches no difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    file: String,
    line: usize,
    differs: String,
    request: String,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, differs, request } = self;
        write!(f, "{file}:{line}: stale: no difference matches ({differs}: {request}): remove this request")
    }
}

/// The lines that accept what was seen.
pub fn lines(place: &Place, sights: &[Sight]) -> String {
    let mut groups: BTreeMap<(&str, &str, &str), Vec<&str>> = BTreeMap::new();
    for Sight { differs, original, translation, request } in sights {
        let all = groups.entry((differs, original, translation)).or_default();
        if !all.contains(&request.as_str()) {
            all.push(request);
        }
    }
    let quoted = |text: &str| toml::Value::String(text.replace('*', "\\*")).to_string();
    let mut out = String::new();
    for ((differs, original, translation), requests) in groups {
        out.push_str(&format!("[[accept]]  # {place}\n"));
        out.push_str(&format!("differs = {}\n", toml::Value::String(differs.to_owned())));
        out.push_str(&format!("original = {}\ntranslation = {}\n", quoted(original), quoted(translation)));
        match requests.as_slice() {
            [one] => out.push_str(&format!("requests = [{}]\n", quoted(one))),
            all => {
                out.push_str("requests = [\n");
                all.iter().for_each(|one| out.push_str(&format!("  {},\n", quoted(one))));
                out.push_str("]\n");
            }
        }
        out.push_str("why = \"\"\n");
    }
    out
}

/// Adds lines to a file, which need not exist.
pub fn append(path: &Path, lines: &str) -> anyhow::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let name = || path.display().to_string();
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).with_context(name)?;
    file.write_all(format!("\n{lines}").as_bytes()).with_context(name)
}

/// Whether a text is as a pattern says: `*` stands for any text, `\*` for a star.
pub fn matches(pattern: &str, text: &str) -> bool {
    let mut pieces = vec![String::new()];
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, pieces.last_mut()) {
            ('\\', Some(last)) if rest.peek() == Some(&'*') => last.extend(rest.next()),
            ('*', _) => pieces.push(String::new()),
            (c, Some(last)) => last.push(c),
            (_, None) => {}
        }
    }
    let [first, between @ .., last] = pieces.as_slice() else { return pieces.first().is_some_and(|p| p == text) };
    let Some(mut left) = text.strip_prefix(first.as_str()) else { return false };
    for piece in between {
        let Some((_, behind)) = left.split_once(piece.as_str()) else { return false };
        left = behind;
    }
    left.ends_with(last.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(request: &str) -> Sight {
        Sight {
            differs: "status".to_owned(),
            original: "200".to_owned(),
            translation: "403".to_owned(),
            request: request.to_owned(),
        }
    }

    fn place() -> Place {
        Place { file: "h.cfg".into(), line: 7 }
    }

    #[test]
    fn the_printed_lines_accept_what_was_seen_and_nothing_else() {
        let seen = [sight("GET http://a/ to 203.0.113.10:80"), sight("OPTIONS * to \"x\" \\")];
        let text = lines(&place(), &seen);
        let mut accepted = Accepted::of("a.toml", &text).unwrap();
        for one in &seen {
            assert_eq!(accepted.why(one).as_deref(), Some(""), "{text}");
        }
        assert!(accepted.stale().is_empty());
        for other in [
            sight("GET http://a/x to 203.0.113.10:80"),
            sight("OPTIONS x to \"x\" \\"),
            Sight { translation: "404".to_owned(), ..seen[0].clone() },
            Sight { differs: "Location".to_owned(), ..seen[0].clone() },
        ] {
            assert_eq!(accepted.why(&other), None, "{other:?}");
        }
    }

    #[test]
    fn lines_are_added_to_a_file_and_accept_nothing_without_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("accepted.toml");
        let (one, two) = (sight("GET http://a/"), sight("GET http://b/"));
        append(&path, &lines(&place(), std::slice::from_ref(&one))).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("why = \"\"", "why = \"staff only\"").trim_end()).unwrap();
        append(&path, &lines(&place(), std::slice::from_ref(&two))).unwrap();
        append(&path, "").unwrap();
        let mut accepted = Accepted::read(&path).unwrap();
        assert_eq!(accepted.why(&one).as_deref(), Some("staff only"));
        assert_eq!(accepted.why(&two).as_deref(), Some(""), "it is listed, and not accepted");
        assert!(accepted.stale().is_empty());
        // An entry with a reason counts before one without.
        append(&path, &lines(&place(), std::slice::from_ref(&one))).unwrap();
        assert_eq!(Accepted::read(&path).unwrap().why(&one).as_deref(), Some("staff only"));
    }

    #[test]
    fn entries_that_match_nothing_are_stale() {
        let text = "[[accept]]\ndiffers = \"status\"\noriginal = \"*\"\ntranslation = \"403\"\nwhy = \"staff only\"\nrequests = [\n  \
                    \"GET http://a/*\",\n  \"GET http://b/*\",\n]\n";
        let mut accepted = Accepted::of("a.toml", text).unwrap();
        assert_eq!(accepted.why(&sight("GET http://a/x")).as_deref(), Some("staff only"));
        let stale: Vec<String> = accepted.stale().iter().map(ToString::to_string).collect();
        assert_eq!(stale, ["a.toml:8: stale: no difference matches (status: GET http://b/*): remove this request"]);
    }

    #[test]
    fn a_file_with_a_mistake_is_refused() {
        let error = |text: &str| format!("{:#}", Accepted::of("a.toml", text).err().unwrap());
        let entry = |differs: &str, rest: &str| {
            format!("[[accept]]\ndiffers = \"{differs}\"\noriginal = \"1\"\ntranslation = \"2\"\n{rest}\n")
        };
        assert!(error(&entry("status", "requests = []")).contains("a.toml:2: an entry without requests"));
        assert!(error(&entry("*", "requests = [\"x\"]")).contains("a.toml:2: \"differs\" contains \"*\""));
        assert!(error(&entry("status", "request = \"x\"")).contains("unknown field"));
        assert!(Accepted::read(Path::new("/nonexistent/a.toml")).unwrap().entries.is_empty());
    }

    #[test]
    fn addresses_of_clients_are_not_part_of_a_name() {
        assert_eq!(replaced("198.18.1.1, 198.18.1.12", "198.18.1.1", CLIENT), "(client), 198.18.1.12");
        let draft = crate::draft::cases::draft();
        let names: Vec<Sight> = [(3, "10.1.0.4"), (300, "10.1.1.51")]
            .into_iter()
            .map(|(number, forwarded)| {
                let draft = draft.clone().with("X-Forwarded-For", forwarded);
                let difference = Difference {
                    aspect: Aspect::Received("x-real-ip".to_owned()),
                    original: client(number).to_string(),
                    translation: forwarded.to_owned(),
                    general: None,
                };
                Sight::of_request(number, &draft, &difference)
            })
            .collect();
        assert_eq!(names[0], names[1]);
        assert_eq!((names[0].original.as_str(), names[0].translation.as_str()), (CLIENT, FORWARDED));
    }

    #[test]
    fn patterns_are_compared_as_a_whole() {
        assert!(matches("a*c", "abc") && matches("a*", "a") && matches("*", "") && matches("a\\*", "a*"));
        assert!(!matches("a*c", "abcd") && !matches("a\\*", "ab") && !matches("ab*ba", "aba") && !matches("a", "ab"));
    }
}
