//! `allow` and `deny`: who may come, by address, with lists in files.
//!
//! A list whose file changes is read again by itself ([`AccessLists::replace`]); nothing else of the configuration is.

use super::Config;
use super::decode::{At, Section};
use super::diagnostics::{Diagnostic, Errors, Severity, Sink};
use super::identity;
use super::settings::{Setting, Strings, access as s};
use super::surroundings::Answers;
use sealane_route::proxies::{Cidr, CidrError};
use sealane_route::{AccessRule, AddressSet};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most blocks in a file: a set of these takes 32 MB at most.
const MAX_BLOCKS: usize = 1_000_000;
/// Mistakes in one file that are told one by one.
const MAX_TOLD: usize = 5;

/// Where the addresses of an `allow` or a `deny` stand.
#[derive(Clone, Debug, Default)]
struct Addresses {
    /// In the configuration itself.
    written: Option<Arc<AddressSet>>,
    files: Vec<PathBuf>,
}

impl Addresses {
    fn sets(&self, files: &HashMap<PathBuf, Arc<AddressSet>>) -> Box<[Arc<AddressSet>]> {
        let from_files = self.files.iter().filter_map(|file| files.get(file));
        self.written.iter().chain(from_files).cloned().collect()
    }
}

/// The access rules of a configuration, and the lists that they name.
#[derive(Clone, Debug, Default)]
pub struct AccessLists {
    rules: Vec<(Option<Addresses>, Addresses)>,
    files: HashMap<PathBuf, Arc<AddressSet>>,
    /// What lanes get.
    compiled: Arc<[AccessRule]>,
}

impl AccessLists {
    /// The rules as lanes get them: listeners, hosts and routes name them by index.
    pub fn rules(&self) -> &Arc<[AccessRule]> {
        &self.compiled
    }

    /// The files of the lists, in no order.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.keys()
    }

    /// Puts a list that was read again in the place of the one from the same file.
    pub fn replace(&mut self, file: &Path, set: Arc<AddressSet>) {
        if let Some(list) = self.files.get_mut(file) {
            *list = set;
            self.compile();
        }
    }

    pub(super) fn compile(&mut self) {
        let rule = |(allow, deny): &(Option<Addresses>, Addresses)| AccessRule {
            allow: allow.as_ref().map(|allow| allow.sets(&self.files)),
            deny: deny.sets(&self.files),
        };
        self.compiled = self.rules.iter().map(rule).collect();
    }
}

impl Config {
    /// The files with lists of addresses.
    pub fn address_lists(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = self.access.files().cloned().collect();
        files.sort_unstable();
        files
    }
}

/// Reads the settings of a listener, a host or a route. Returns the index of its rule; `None`: everybody may come.
pub(super) fn read(section: &Section, lists: &mut AccessLists) -> Option<usize> {
    let (allow, deny) = (section.optional(&s::allow), section.optional(&s::deny));
    let allow_files = paths(section, &s::allow_file);
    let deny_files = paths(section, &s::deny_file);
    let allow = (allow.is_some() || allow_files.is_some()).then(|| addresses(section, allow, allow_files, lists));
    let has_rule = allow.is_some() || deny.is_some() || deny_files.is_some();
    let deny = addresses(section, deny, deny_files, lists);
    has_rule.then(|| {
        lists.rules.push((allow, deny));
        lists.rules.len() - 1
    })
}

/// Reads two settings that say who is let through. Returns the index of their rule; `None`: nobody is.
pub(super) fn read_allowed(
    section: &Section,
    allow: &Setting<Strings>,
    allow_file: &Setting<Strings>,
    lists: &mut AccessLists,
) -> Option<usize> {
    let (allow, files) = (section.optional(allow), paths(section, allow_file));
    (allow.is_some() || files.is_some()).then(|| {
        let allow = addresses(section, allow, files, lists);
        lists.rules.push((Some(allow), Addresses::default()));
        lists.rules.len() - 1
    })
}

fn paths(section: &Section, setting: &Setting<Strings>) -> Option<Vec<At<PathBuf>>> {
    let files = section.optional(setting)?;
    Some(files.into_iter().map(|f| At { value: section.sink.base.join(f.value), span: f.span }).collect())
}

fn addresses(
    section: &Section,
    written: Option<Vec<At<String>>>,
    files: Option<Vec<At<PathBuf>>>,
    lists: &mut AccessLists,
) -> Addresses {
    let sink = section.sink;
    let written = written.map(|blocks| Arc::new(blocks.iter().filter_map(|text| block(sink, text)).collect()));
    let files = files.unwrap_or_default();
    for file in &files {
        sink.names_file(&file.value);
        if lists.files.contains_key(&file.value) {
            continue;
        }
        let set = match identity::read(sink, "list of addresses", file) {
            Some(bytes) => list(&file.value, bytes).unwrap_or_else(|mistakes| {
                mistakes.into_iter().for_each(|m| sink.error(&file.span, m.message, m.help));
                AddressSet::default()
            }),
            // It is not read, or not yet, or the error is told.
            None => AddressSet::default(),
        };
        lists.files.insert(file.value.clone(), Arc::new(set));
    }
    Addresses { written, files: files.into_iter().map(|f| f.value).collect() }
}

/// A block of addresses; reports what is wrong with it.
pub(super) fn block(sink: &Sink, text: &At<String>) -> Option<Cidr> {
    match text.value.parse::<Cidr>() {
        Ok(block) => Some(block),
        Err(e) => {
            let (message, help) = explained(&text.value, e);
            sink.error(&text.span, message, Some(help));
            None
        }
    }
}

fn explained(text: &str, e: CidrError) -> (String, String) {
    match e {
        CidrError::HostBits(better) => {
            (format!("\"{text}\" has bits beyond its prefix"), format!("write \"{better}\""))
        }
        CidrError::Malformed => {
            let help = "write \"192.0.2.0/24\", \"2001:db8::/32\" or one address".to_owned();
            (format!("\"{text}\" is not a block of addresses"), help)
        }
    }
}

/// A mistake in a list.
struct Mistake {
    /// It names the file and the line.
    message: String,
    help: Option<String>,
}

/// Reads a list: one address or block per line. What follows `#` or `;` is a comment.
fn list(file: &Path, bytes: &[u8]) -> Result<AddressSet, Vec<Mistake>> {
    let shown = file.display();
    let whole = |message: String| vec![Mistake { message, help: None }];
    let text = std::str::from_utf8(bytes)
        .map_err(|e| whole(format!("{shown}: the list is not UTF-8 text at byte {}", e.valid_up_to())))?;
    let mut mistakes = Vec::new();
    let mut wrong = 0;
    let mut blocks = Vec::new();
    for (number, line) in text.strip_prefix('\u{feff}').unwrap_or(text).lines().enumerate() {
        let entry = line.split(['#', ';']).next().unwrap_or_default().trim();
        if entry.is_empty() {
            continue;
        }
        match entry.parse::<Cidr>() {
            Ok(block) => blocks.push(block),
            Err(e) => {
                wrong += 1;
                if wrong <= MAX_TOLD {
                    // A file that is none of ours may have lines of any length.
                    let start: String = entry.chars().take(60).collect();
                    let (message, help) = explained(&start, e);
                    mistakes.push(Mistake { message: format!("{shown}:{}: {message}", number + 1), help: Some(help) });
                }
            }
        }
    }
    if wrong > MAX_TOLD {
        mistakes.push(Mistake { message: format!("{shown}: {} more lines are wrong", wrong - MAX_TOLD), help: None });
    }
    if blocks.len() > MAX_BLOCKS {
        mistakes.extend(whole(format!("{shown}: the list has {} blocks, above {MAX_BLOCKS}", blocks.len())));
    }
    if mistakes.is_empty() { Ok(blocks.into_iter().collect()) } else { Err(mistakes) }
}

/// Reads a list again, for a gateway that serves. `answers` has the file's content.
pub fn read_list_again(file: &Path, answers: &Answers) -> Result<Arc<AddressSet>, Errors> {
    let error = |message: String, help: Option<String>| Diagnostic {
        severity: Severity::Error,
        file: String::new(),
        line: 0,
        column: 0,
        message,
        help,
        excerpt: String::new(),
    };
    let read = match answers.contents.get(file) {
        Some(Ok(content)) => list(file, &content.bytes)
            .map_err(|mistakes| mistakes.into_iter().map(|m| error(m.message, m.help)).collect::<Vec<_>>()),
        Some(Err(e)) => {
            let message = format!("cannot read the list of addresses {}: {}", file.display(), e.why);
            Err(vec![error(message, e.help.clone())])
        }
        None => Err(vec![error(format!("{} was not read", file.display()), None)]),
    };
    read.map(Arc::new).map_err(|errors| Errors { errors, warnings: Vec::new(), files: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AddressSet, Vec<String>> {
        list(Path::new("list"), text.as_bytes()).map_err(|all| all.into_iter().map(|m| m.message).collect())
    }

    #[test]
    fn lists_have_comments() {
        let set = read("# a list\n\n10.0.0.0/8 ; SBL1\r\n2001:db8::/32# b\n192.0.2.1\n").unwrap();
        for ip in ["10.1.2.3", "2001:db8::1", "192.0.2.1"] {
            assert!(set.contains(ip.parse().unwrap()), "{ip}");
        }
        assert_eq!(set.ranges(), 3);
        assert_eq!(read("").unwrap().ranges(), 0);
    }

    #[test]
    fn mistakes_name_their_line() {
        let told = read("10.0.0.0/8\nexample.com\n\n10.1.2.3/8\n").unwrap_err();
        assert_eq!(
            told,
            [
                "list:2: \"example.com\" is not a block of addresses",
                "list:4: \"10.1.2.3/8\" has bits beyond its prefix"
            ]
        );
        let told = read(&"x\n".repeat(1000)).unwrap_err();
        assert_eq!((told.len(), told[MAX_TOLD].as_str()), (MAX_TOLD + 1, "list: 995 more lines are wrong"));
    }
}
