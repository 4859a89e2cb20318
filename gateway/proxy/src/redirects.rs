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
        self.by_path.contains_key(path.as_bytes())
    }

    /// The paths of all entries, in no order.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.by_path.keys().filter_map(|path| std::str::from_utf8(path).ok())
    }

    /// The number of the entry for one reading of a path.
    pub(crate) fn find(&self, reading: &[u8]) -> Option<usize> {
        self.by_path.get(reading).copied()
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
