//! How files are opened: by the caller, so that the crate itself opens nothing.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// Opens files and lists folders. Errors are shown as they are.
pub trait Reader {
    /// A file's content.
    fn read(&self, path: &Path) -> Result<Vec<u8>, String>;

    /// The names in a folder, in any order.
    fn list(&self, folder: &Path) -> Result<Vec<String>, String>;

    /// An environment variable, as HAProxy expands them.
    fn environment(&self, name: &str) -> Option<String>;
}

/// Files in memory, for tests.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Paths and contents.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
    /// Environment variables.
    pub variables: BTreeMap<String, String>,
}

impl Memory {
    /// One file.
    pub fn of(path: &str, content: &[u8]) -> Self {
        Self { files: [(PathBuf::from(path), content.to_vec())].into(), variables: BTreeMap::new() }
    }
}

impl Reader for Memory {
    fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        self.files.get(path).cloned().ok_or_else(|| "No such file or directory".to_owned())
    }

    fn list(&self, folder: &Path) -> Result<Vec<String>, String> {
        let inside = |path: &PathBuf| match path.strip_prefix(folder).ok()?.components().next()? {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        };
        let mut names: Vec<String> = self.files.keys().filter_map(inside).collect();
        names.dedup();
        if names.is_empty() { Err("No such file or directory".to_owned()) } else { Ok(names) }
    }

    fn environment(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned()
    }
}

/// Most files of one import.
pub(crate) const MAX_FILES: usize = 1000;
/// Most names in a folder that are looked at.
const MAX_NAMES: usize = 10_000;

/// The paths that a pattern stands for, sorted as by `glob(3)`. A pattern without special characters stands for itself.
pub(crate) fn glob(reader: &dyn Reader, pattern: &Path) -> Result<Vec<PathBuf>, String> {
    let special = |c: &Component| c.as_os_str().to_string_lossy().contains(['*', '?', '[']);
    let mut found = vec![PathBuf::new()];
    let mut known = true;
    for component in pattern.components() {
        if !special(&component) {
            found.iter_mut().for_each(|path| path.push(component));
            continue;
        }
        known = false;
        let wanted = component.as_os_str().to_string_lossy().into_owned();
        let mut next = Vec::new();
        for folder in &found {
            // A folder that is not there has no names.
            let mut names = reader.list(folder).unwrap_or_default();
            names.truncate(MAX_NAMES);
            names.sort();
            let hidden = |name: &str| name.starts_with('.') && !wanted.starts_with('.');
            next.extend(names.iter().filter(|n| !hidden(n) && matches(&wanted, n)).map(|n| folder.join(n)));
            if next.len() > MAX_FILES {
                return Err(format!("the pattern stands for more than {MAX_FILES} files"));
            }
        }
        found = next;
    }
    // What follows a special component may not be there.
    if !known && pattern.components().next_back().is_some_and(|c| !special(&c)) {
        found.retain(|path| reader.read(path).is_ok());
    }
    Ok(found)
}

/// Whether a name matches a pattern of `*`, `?` and `[a-z]`, in time proportional to the product of their lengths.
fn matches(pattern: &str, name: &str) -> bool {
    let (p, n): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut i, mut j) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while j < n.len() {
        let step = match p.get(i) {
            Some('*') => {
                star = Some((i + 1, j));
                i += 1;
                continue;
            }
            Some('?') => Some(1),
            Some('[') => set(&p[i..], n[j]),
            Some(c) if *c == n[j] => Some(1),
            _ => None,
        };
        match (step, star) {
            (Some(len), _) => (i, j) = (i + len, j + 1),
            (None, Some((after, at))) => {
                star = Some((after, at + 1));
                (i, j) = (after, at + 1);
            }
            (None, None) => return false,
        }
    }
    p[i..].iter().all(|c| *c == '*')
}

/// The length of a set such as `[!a-c]` at the beginning of `p` that has `c` in it.
fn set(p: &[char], c: char) -> Option<usize> {
    let end = p.iter().skip(2).position(|c| *c == ']')? + 2;
    let (negated, inner) = match p[1] {
        '!' | '^' => (true, &p[2..end]),
        _ => (false, &p[1..end]),
    };
    let mut found = false;
    let mut i = 0;
    while i < inner.len() {
        if inner.get(i + 1) == Some(&'-') && i + 2 < inner.len() {
            found |= (inner[i]..=inner[i + 2]).contains(&c);
            i += 3;
        } else {
            found |= inner[i] == c;
            i += 1;
        }
    }
    (found != negated).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, is) in [
            ("*.conf", "a.conf", true),
            ("*.conf", "a.conf.bak", false),
            ("*", "anything", true),
            ("a?c", "abc", true),
            ("[0-9]*-x", "10-x", true),
            ("[!0-9]*", "1", false),
            ("*a*b*", "xxaxxbxx", true),
            ("[", "[", false),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern, name), is, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_stands_for_its_files_in_order() {
        let mut files = Memory::default();
        for name in ["/e/c/2.conf", "/e/c/1.conf", "/e/c/.hidden.conf", "/e/c/x", "/e/d/3.conf"] {
            files.files.insert(name.into(), vec![]);
        }
        let glob =
            |p: &str| glob(&files, Path::new(p)).unwrap().iter().map(|p| p.display().to_string()).collect::<Vec<_>>();
        assert_eq!(glob("/e/c/*.conf"), ["/e/c/1.conf", "/e/c/2.conf"]);
        assert_eq!(glob("/e/*/3.conf"), ["/e/d/3.conf"]);
        assert_eq!(glob("/e/none"), ["/e/none"]);
        assert!(glob("/none/*").is_empty());
    }
}
