//! Tables of redirects: exact paths, each with its target.
//!
//! A look-up costs one hash. All readings of a path must lead to the same entry (`sealane_route`).

use sealane_http::RequestHead;
use sealane_route::path;
use std::collections::HashMap;

/// The paths of a table and where they lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedirectTable {
    by_path: HashMap<Box<[u8]>, usize>,
    entries: Vec<TableEntry>,
    /// The paths are in lower case, and stand for those in any case.
    ignores_case: bool,
}

/// Where one path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// A path or a URL.
    pub target: Box<str>,
    /// 301, 302, 303, 307 or 308; `None`: what the route says.
    pub status: Option<u16>,
}

/// Why an entry is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// No request has this path: it is not its own literal reading.
    Path,
    /// The path is there already.
    Duplicate,
}

impl RedirectTable {
    /// Adds an entry.
    pub fn insert(&mut self, path: &str, entry: TableEntry) -> Result<(), TableError> {
        if !path::is_literal(path.as_bytes()) {
            return Err(TableError::Path);
        }
        if self.by_path.contains_key(path.as_bytes()) {
            return Err(TableError::Duplicate);
        }
        self.by_path.insert(path.as_bytes().into(), self.entries.len());
        self.entries.push(entry);
        Ok(())
    }

    /// The same table for paths in any case. On failure: what is wrong with it then.
    pub fn ignoring_case(self) -> Result<Self, String> {
        let Self { by_path: written, entries, .. } = self;
        let mut by_path = HashMap::with_capacity(written.len());
        for (path, number) in written {
            let shown = String::from_utf8_lossy(&path).into_owned();
            let leads_back = |entry: &TableEntry| entry.target.as_bytes().eq_ignore_ascii_case(&path);
            if entries.get(number).is_some_and(leads_back) {
                return Err(format!("\"{shown}\" is redirected to itself, because case is ignored"));
            }
            if by_path.insert(path.to_ascii_lowercase().into_boxed_slice(), number).is_some() {
                return Err(format!("a second target for \"{shown}\", because case is ignored"));
            }
        }
        Ok(Self { by_path, entries, ignores_case: true })
    }

    /// Whether the table is for paths in any case.
    pub fn ignores_case(&self) -> bool {
        self.ignores_case
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether there is an entry for this path.
    pub fn contains(&self, path: &str) -> bool {
        self.find(path.as_bytes()).is_some()
    }

    /// The paths of all entries, in no order.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.by_path.keys().filter_map(|path| std::str::from_utf8(path).ok())
    }

    /// The number of the entry for one reading of a path.
    pub(crate) fn find(&self, reading: &[u8]) -> Option<usize> {
        if !self.ignores_case || !reading.iter().any(u8::is_ascii_uppercase) {
            return self.by_path.get(reading).copied();
        }
        // Nearly all paths are short, and need no allocation.
        let mut short = [0; 256];
        let number = match short.get_mut(..reading.len()) {
            Some(lower) => {
                lower.copy_from_slice(reading);
                lower.make_ascii_lowercase();
                self.by_path.get(&*lower)
            }
            None => self.by_path.get(&reading.to_ascii_lowercase()[..]),
        };
        number.copied()
    }

    pub(crate) fn entry(&self, number: usize) -> Option<&TableEntry> {
        self.entries.get(number)
    }
}

impl TableEntry {
    /// Writes the value of `Location`. The request's query comes behind that of the target, before a fragment.
    pub(crate) fn location(&self, head: &RequestHead, keep_query: bool, out: &mut Vec<u8>) {
        out.clear();
        let query = head.target().get(head.path().len() + 1..).unwrap_or_default();
        let (target, fragment) = self.target.split_at(self.target.find('#').unwrap_or(self.target.len()));
        out.extend_from_slice(target.as_bytes());
        if keep_query && !query.is_empty() {
            out.push(if target.contains('?') { b'&' } else { b'?' });
            out.extend_from_slice(query);
        }
        out.extend_from_slice(fragment.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_entry() {
        let entry = |target: &str| TableEntry { target: target.into(), status: None };
        let mut table = RedirectTable::default();
        table.insert("/old", entry("/new")).unwrap();
        assert_eq!(table.insert("/old", entry("/other")), Err(TableError::Duplicate));
        for path in ["old", "/a/../b", "/%61", "//a"] {
            assert_eq!(table.insert(path, entry("/new")), Err(TableError::Path), "{path}");
        }
        assert_eq!((table.len(), table.find(b"/old"), table.find(b"/old/")), (1, Some(0), None));
        assert_eq!(
            (table.paths().collect::<Vec<_>>(), table.contains("/old"), table.contains("/")),
            (vec!["/old"], true, false)
        );
    }

    #[test]
    fn a_table_may_ignore_case() {
        let table = |all: &[(&str, &str)]| {
            let mut table = RedirectTable::default();
            for (path, target) in all {
                table.insert(path, TableEntry { target: (*target).into(), status: None }).unwrap();
            }
            table
        };
        let plain = table(&[("/Jobs", "/careers"), ("/x", "/X/y")]);
        assert_eq!((plain.find(b"/jobs"), plain.find(b"/Jobs"), plain.ignores_case()), (None, Some(0), false));
        let folded = plain.ignoring_case().unwrap();
        for path in ["/jobs", "/Jobs", "/JOBS"] {
            assert_eq!(folded.find(path.as_bytes()), Some(0), "{path}");
        }
        assert_eq!((folded.find(b"/jobs/"), folded.len(), folded.ignores_case()), (None, 2, true));
        let long = format!("/{}", "x".repeat(300));
        let of_long = table(&[(long.as_str(), "/b")]).ignoring_case().unwrap();
        assert_eq!(of_long.find(long.to_uppercase().as_bytes()), Some(0));
        let twice = table(&[("/a", "/b"), ("/A", "/c")]).ignoring_case().unwrap_err();
        assert!(twice.starts_with("a second target for "), "{twice}");
        let back = table(&[("/A", "/a")]).ignoring_case().unwrap_err();
        assert!(back.starts_with("\"/A\" is redirected to itself"), "{back}");
    }

    #[test]
    fn the_query_is_kept_on_request() {
        let location = |target: &str, request: &str, keep| {
            let mut head = RequestHead::new();
            head.set_target(request.as_bytes()).unwrap();
            let mut out = Vec::new();
            TableEntry { target: target.into(), status: None }.location(&head, keep, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(location("/new", "/old?a=b", false), "/new");
        assert_eq!(location("/new", "/old?a=b", true), "/new?a=b");
        assert_eq!(location("/new", "/old?", true), "/new");
        assert_eq!(location("/new", "/old", true), "/new");
        assert_eq!(location("https://x.example/?c#d", "/old?a=b", true), "https://x.example/?c&a=b#d");
    }
}
