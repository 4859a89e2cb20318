//! `cargo xtask check-measurements`: tables of the documentation agree with the raw data that they come from. A comment
//! beside a table (docs/testing.md) says how each cell is computed. Tables of figures without such a comment are
//! counted in `xtask/unchecked-tables.toml`, whose numbers may only shrink.

mod data;
mod expression;
mod table;

use anyhow::Context;
use data::Sources;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use table::{Marker, Table};

const UNCHECKED: &str = "xtask/unchecked-tables.toml";
const DOCS: &str = "docs";
const MEASUREMENTS: &str = "docs/measurements";
/// Endings of raw data.
const RAW: [&str; 7] = ["json", "csv", "txt", "log", "hlog", "hlog.gz", "hlog.zst"];

/// What is wrong.
pub fn check(root: &Path) -> anyhow::Result<Vec<String>> {
    let committed = committed(root);
    let allowed = std::fs::read_to_string(root.join(UNCHECKED)).with_context(|| UNCHECKED.to_owned())?;
    let allowed: BTreeMap<String, usize> = toml::from_str(&allowed).with_context(|| UNCHECKED.to_owned())?;
    let mut found = Vec::new();
    let mut unchecked = BTreeMap::new();
    for page in pages(root)? {
        let text = std::fs::read_to_string(root.join(&page)).with_context(|| page.clone())?;
        let folder = Path::new(&page).parent().unwrap_or(Path::new(""));
        let page_is_measured = page.starts_with(MEASUREMENTS);
        let files = Files { root, folder, committed: committed.as_ref() };
        match table::parse(&text) {
            Err(why) => found.push(format!("{page}:{why}")),
            Ok(tables) => {
                for table in &tables {
                    match &table.marker {
                        Some(marker) => found.extend(
                            compare(table, marker, &files)
                                .into_iter()
                                .map(|(line, why)| format!("{page}:{line}: {why}")),
                        ),
                        None if table.has_figures() => *unchecked.entry(page.clone()).or_insert(0) += 1,
                        None => {}
                    }
                }
            }
        }
        if page_is_measured {
            found.extend(raw_links(&text, &files).into_iter().map(|why| format!("{page}: {why}")));
            found.extend(skipped_parts(&text, &files).into_iter().map(|why| format!("{page}: {why}")));
        }
    }
    found.extend(ratchet(&allowed, &unchecked));
    Ok(found)
}

/// The files that a page may name.
struct Files<'a> {
    root: &'a Path,
    /// The page's folder, relative to the root.
    folder: &'a Path,
    /// What git has; `None` outside of a repository.
    committed: Option<&'a BTreeSet<String>>,
}

impl Files<'_> {
    /// A file that a page names, relative to the root.
    fn path(&self, name: &str) -> PathBuf {
        let mut path = PathBuf::new();
        for component in self.folder.join(name).components() {
            match component {
                Component::ParentDir => {
                    path.pop();
                }
                Component::CurDir => {}
                other => path.push(other),
            }
        }
        path
    }

    fn is_committed(&self, name: &str) -> bool {
        let path = self.path(name);
        let known = |all: &BTreeSet<String>| path.to_str().is_some_and(|path| all.contains(path));
        self.root.join(&path).is_file() && self.committed.is_none_or(known)
    }

    fn read(&self, name: &str) -> anyhow::Result<Value> {
        anyhow::ensure!(self.is_committed(name), "{name} is not committed");
        data::read(&self.root.join(self.path(name)))
    }
}

/// Where a table differs from its data, with the line.
fn compare(table: &Table, marker: &Marker, files: &Files<'_>) -> Vec<(usize, String)> {
    let read =
        |(name, file): (&String, &String)| -> anyhow::Result<(String, Value)> { Ok((name.clone(), files.read(file)?)) };
    let sources = match marker.files.iter().map(read).collect::<anyhow::Result<BTreeMap<_, _>>>() {
        Ok(all) => Sources(all),
        Err(why) => return vec![(marker.line, format!("{why:#}"))],
    };
    let mut found = Vec::new();
    if marker.rows.len() != table.rows.len() {
        let (names, rows) = (marker.rows.len(), table.rows.len());
        return vec![(marker.line, format!("`rows:` names {names} rows, but the table has {rows}"))];
    }
    for (row, (cells, name)) in table.rows.iter().zip(&marker.rows).enumerate() {
        let line = table.line + 2 + row;
        for (column, cell) in cells.iter().enumerate() {
            let plain = cell.replace("**", "");
            let Some(template) = marker.template(row + 1, column + 1) else {
                if column > 0 && !marker.free.contains(&(column + 1)) && cell.contains(|c: char| c.is_ascii_digit()) {
                    found.push((
                        line,
                        format!("column {}: the comment does not say how {plain:?} is computed", column + 1),
                    ));
                }
                continue;
            };
            match expression::render(&marker.expand(template, name), &sources) {
                Err(why) => found.push((line, format!("column {}: {why:#}", column + 1))),
                Ok(computed) if computed.trim() != plain.trim() => found.push((
                    line,
                    format!("column {}: the table has {:?}, the raw data give {computed:?}", column + 1, plain.trim()),
                )),
                Ok(_) => {}
            }
        }
    }
    found
}

/// Links to raw data that is not committed.
fn raw_links(text: &str, files: &Files<'_>) -> Vec<String> {
    let raw = |link: &str| !link.contains("://") && RAW.iter().any(|end| link.ends_with(&format!(".{end}")));
    let missing = table::links(text).filter(|link| raw(link) && !files.is_committed(link));
    missing.map(|link| format!("{link} is not committed")).collect()
}

/// Parts that were skipped, of a page that says that its run had all parts.
fn skipped_parts(text: &str, files: &Files<'_>) -> Vec<String> {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    if !words.contains("all parts") {
        return Vec::new();
    }
    let reports: BTreeSet<&str> =
        table::links(text).filter(|link| link.ends_with(".json") && !link.contains("://")).collect();
    let mut found = Vec::new();
    for name in reports {
        let Ok(report) = files.read(name) else { continue };
        for page in report["pages"].as_array().into_iter().flatten() {
            let experiment = page["name"].as_str().unwrap_or_default();
            if let Some(why) = page["obstacle"].as_str() {
                found.push(format!("says \"all parts\", but {experiment} did not run ({name}): {why}"));
            }
            for part in page["parts"].as_array().into_iter().flatten() {
                if let Some(why) = part["skipped"].as_str() {
                    let id = part["id"].as_str().unwrap_or_default();
                    found.push(format!("says \"all parts\", but {experiment}.{id} was skipped ({name}): {why}"));
                }
            }
        }
    }
    found
}

/// The numbers of tables without a comment are those of the list.
fn ratchet(allowed: &BTreeMap<String, usize>, unchecked: &BTreeMap<String, usize>) -> Vec<String> {
    let pages: BTreeSet<&String> = allowed.keys().chain(unchecked.keys()).collect();
    let of = |map: &BTreeMap<String, usize>, page: &String| map.get(page).copied().unwrap_or(0);
    let mut found = Vec::new();
    for page in pages {
        let (may, are) = (of(allowed, page), of(unchecked, page));
        if are > may {
            found.push(format!(
                "{page}: {are} tables of figures have no comment that names their raw data ({may} are allowed); \
                 add `<!-- data: … -->` (docs/testing.md)"
            ));
        } else if are < may {
            found.push(format!(
                "{UNCHECKED}: {page} has only {are} tables without raw data: lower its number from {may}"
            ));
        }
    }
    found
}

/// All pages of the documentation, relative to the root.
fn pages(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut pages = Vec::new();
    let mut folders = vec![PathBuf::from(DOCS)];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(root.join(&folder)).with_context(|| folder.display().to_string())?;
        for entry in entries {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                pages.extend(path.to_str().map(str::to_owned));
            }
        }
    }
    pages.sort();
    Ok(pages)
}

/// The files that git has; nothing outside of a repository, such as in the archive of a release.
fn committed(root: &Path) -> Option<BTreeSet<String>> {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().ok()?;
    let names: BTreeSet<String> = String::from_utf8_lossy(&output.stdout)
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    (output.status.success() && !names.is_empty()).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files, removed at the end.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("sealane-measurements-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Self(root)
        }

        fn check(&self) -> Vec<String> {
            check(&self.0).unwrap()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const DATA: &str = r#"{"a": [{"v": 1.0}, {"v": 2.0}, {"v": 4.0}]}"#;

    fn page(cell: &str) -> String {
        format!(
            "<!-- data: d.json\nrows: a\ncolumn 2: {{median($row > * > v):.1}} µs\n-->\n\n| | v |\n|---|---|\n| A | {cell} |\n"
        )
    }

    #[test]
    fn a_table_that_differs_from_its_data_is_found() {
        let tree = |name: &str, text: &str| {
            let files = [(UNCHECKED, ""), ("docs/measurements/p.md", text), ("docs/measurements/d.json", DATA)];
            Tree::new(name, &files).check()
        };
        assert!(tree("same", &page("**2.0 µs**")).is_empty());
        let found = tree("other", &page("2.1 µs"));
        assert_eq!(
            found,
            ["docs/measurements/p.md:8: column 2: the table has \"2.1 µs\", the raw data give \"2.0 µs\""]
        );
        let found = tree("rows", &page("2.0 µs").replace("rows: a", "rows: a | b"));
        assert!(found.len() == 1 && found[0].contains("names 2 rows"), "{found:?}");
        let found = tree("more", &page("2.0 µs").replace("| v |", "| v | w |").replace("2.0 µs |", "2.0 µs | 7 |"));
        assert!(found.len() == 1 && found[0].contains("does not say how \"7\" is computed"), "{found:?}");
    }

    #[test]
    fn data_that_is_not_there_is_found() {
        let tree =
            Tree::new("none", &[(UNCHECKED, ""), ("docs/measurements/p.md", &(page("2.0 µs") + "[raw](e.csv)\n"))]);
        let found = tree.check();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].contains("d.json is not committed") && found[1].contains("e.csv is not committed"),
            "{found:?}"
        );
    }

    #[test]
    fn tables_without_data_may_only_become_fewer() {
        let table = "| | v |\n|---|---|\n| A | 2.0 |\n";
        let found = |allowed: &str| {
            Tree::new(&format!("list{}", allowed.len()), &[(UNCHECKED, allowed), ("docs/p.md", table)]).check()
        };
        assert!(found("\"docs/p.md\" = 1\n").is_empty());
        let more = found("");
        assert!(more.len() == 1 && more[0].contains("1 tables of figures have no comment"), "{more:?}");
        let fewer = found("\"docs/p.md\" = 12\n");
        assert!(fewer.len() == 1 && fewer[0].contains("lower its number from 12"), "{fewer:?}");
    }

    #[test]
    fn all_parts_means_all() {
        let report = |skipped: &str| {
            format!(r#"{{"pages": [{{"name": "x", "parts": [{{"id": "p", "skipped": {skipped}}}]}}]}}"#)
        };
        let found = |name: &str, text: &str, skipped: &str| {
            let report = report(skipped);
            let files =
                [(UNCHECKED, ""), ("docs/measurements/p.md", text), ("docs/measurements/r.json", report.as_str())];
            Tree::new(name, &files).check()
        };
        let says = "It ran with all\nparts: [report](r.json).\n";
        assert!(found("all", says, "null").is_empty());
        let skipped = found("skipped", says, "\"no network\"");
        assert!(skipped.len() == 1 && skipped[0].contains("x.p was skipped (r.json): no network"), "{skipped:?}");
        assert!(found("silent", "[report](r.json)\n", "\"no network\"").is_empty());
    }

    #[test]
    fn this_repository_passes() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let found = check(root).unwrap();
        assert!(found.is_empty(), "{found:#?}");
    }
}
