//! Certificates of a configuration: where relative names start, lists of certificates (`crt-list`), and what takes the place of files
//! that are not here.

use crate::files::Files;
use crate::tree::Node;
use crate::words::Named;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Largest list.
const MAX_FILE: u64 = 8 << 20;
/// Most lines of a list that are read.
const MAX_ENTRIES: usize = 5000;
/// Beginnings of names of files whose certificates are for all names below one.
const WILDCARDS: [&str; 5] = ["wildcard.", "wildcard_", "star.", "star_", "_."];

/// Where relative names start.
#[derive(Clone, Debug)]
pub struct Bases {
    folder: PathBuf,
    crt: PathBuf,
}

impl Bases {
    /// `crt-base` is for certificates, also for those that a list names. The list itself is relative to HAProxy's folder. Files of CAs
    /// (`ca-base`) are all replaced, so that their names do not matter.
    pub fn of(tree: &[Node], folder: &Path) -> Self {
        let mut lines = tree.iter().filter(|n| n.name() == "global").flat_map(|n| n.inner());
        let base = lines.find(|n| n.name() == "crt-base");
        Self { folder: folder.to_owned(), crt: base.map_or_else(|| folder.to_owned(), |n| folder.join(n.word(1))) }
    }

    /// The file or folder of a certificate.
    pub fn certificate(&self, name: &str) -> PathBuf {
        self.crt.join(name)
    }

    /// The file of a list.
    pub fn list(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// A line of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    file: String,
    options: Vec<String>,
    /// Names of handshakes; with `!` not for them.
    filters: Vec<String>,
}

impl Entry {
    /// Reads `FILE [OPTIONS] FILTERS`. `None`: the line is empty or a comment.
    fn read(line: &str) -> Option<Self> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (before, options, behind) = match line.split_once('[') {
            Some((before, rest)) => {
                let (options, behind) = rest.split_once(']').unwrap_or((rest, ""));
                (before, words(options), behind)
            }
            None => (line, Vec::new(), ""),
        };
        let mut filters = words(before);
        let file = if filters.is_empty() { return None } else { filters.remove(0) };
        filters.extend(words(behind));
        Some(Self { file, options, filters })
    }

    /// The names for which it is.
    fn names(&self) -> BTreeSet<String> {
        self.filters.iter().filter(|f| !f.starts_with('!')).map(|f| f.to_ascii_lowercase()).collect()
    }

    /// The value of `verify`, if clients are asked for a certificate.
    fn verify(&self) -> Option<&str> {
        let at = self.options.iter().position(|o| o == "verify")?;
        self.options.get(at + 1).map(String::as_str).filter(|v| *v != "none")
    }
}

/// The lines of a list. `None`: it cannot be read here, or is empty.
fn entries(path: &Path) -> Option<Vec<Entry>> {
    if std::fs::metadata(path).ok()?.len() > MAX_FILE {
        return None;
    }
    let text = String::from_utf8_lossy(&std::fs::read(path).ok()?).into_owned();
    let out: Vec<Entry> = text.lines().filter_map(Entry::read).take(MAX_ENTRIES).collect();
    (!out.is_empty()).then_some(out)
}

/// Whether a folder has certificates.
fn holds_certificates(folder: &Path) -> bool {
    let others = [".key", ".issuer", ".ocsp", ".sctl"];
    let is_one = |name: &str| !name.starts_with('.') && !others.iter().any(|o| name.ends_with(o));
    let mut files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.any(|f| f.file_name().to_str().is_some_and(is_one))
}

/// The names that a certificate has for which a file is named, as far as names of the configuration are like it.
fn like(path: &Path, all: &BTreeSet<String>) -> BTreeSet<String> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let stem = [".rsa", ".ecdsa", ".dsa"].iter().find_map(|end| stem.strip_suffix(*end)).unwrap_or(&stem);
    if let Some(base) = WILDCARDS.iter().find_map(|begin| stem.strip_prefix(*begin)).filter(|b| b.contains('.')) {
        return [base.to_owned(), format!("*.{base}")].into();
    }
    all.iter().filter(|n| *n == stem || n.split('.').any(|l| l == stem)).cloned().collect()
}

/// Makes the certificates that a configuration names and that are not here. A file has the names that its list says, or else those that
/// are like its own; a file without such names has all that no other one has.
pub fn prepare(tree: &[Node], folder: &Path, named: &Named, files: &mut Files) -> anyhow::Result<()> {
    let bases = Bases::of(tree, folder);
    let all: BTreeSet<String> = named.dns_names().cloned().collect();
    let mut wanted: Vec<(PathBuf, BTreeSet<String>)> = Vec::new();
    let lines = tree.iter().flat_map(|s| s.inner());
    for node in lines.filter(|n| matches!(n.name(), "bind" | "server" | "default-server")) {
        for pair in node.words.windows(2) {
            match pair[0].as_str() {
                "crt" => {
                    let path = bases.certificate(&pair[1]);
                    if !holds_certificates(&path) {
                        wanted.push((path.clone(), like(&path, &all)));
                    }
                }
                "crt-list" => match entries(&bases.list(&pair[1])) {
                    None => wanted.push((bases.list(&pair[1]), BTreeSet::new())),
                    Some(entries) => wanted.extend(entries.into_iter().map(|entry| {
                        let path = bases.certificate(&entry.file);
                        let names = Some(entry.names()).filter(|n| !n.is_empty());
                        let names = names.unwrap_or_else(|| like(&path, &all));
                        (path, names)
                    })),
                },
                _ => {}
            }
        }
    }
    let taken: BTreeSet<String> = wanted.iter().flat_map(|(_, names)| names).cloned().collect();
    let rest: BTreeSet<String> = all.difference(&taken).cloned().collect();
    let rest = if rest.is_empty() { &all } else { &rest };
    for (path, names) in &wanted {
        files.certificate(path, None, if names.is_empty() { rest } else { names })?;
    }
    Ok(())
}

/// The words for a list in the copy: it names all files with their whole paths.
pub fn copied(name: &str, bases: &Bases, files: &mut Files) -> anyhow::Result<[String; 2]> {
    let path = bases.list(name);
    let Some(entries) = entries(&path) else {
        return Ok(["crt".to_owned(), files.instead(&path).display().to_string()]);
    };
    let mut text = String::new();
    for entry in entries {
        text.push_str(&files.instead(&bases.certificate(&entry.file)).display().to_string());
        let mut options: Vec<String> = Vec::new();
        for option in entry.options {
            let file = match options.last().map(String::as_str) {
                Some("ca-file" | "ca-verify-file") => Some(files.ca()),
                Some("crl-file") => Some(files.crl()?),
                _ => None,
            };
            options.push(file.map_or(option, |file| file.display().to_string()));
        }
        if !options.is_empty() {
            text.push_str(&format!(" [{}]", options.join(" ")));
        }
        entry.filters.iter().for_each(|filter| text.push_str(&format!(" {filter}")));
        text.push('\n');
    }
    Ok(["crt-list".to_owned(), files.copy(&path, "crt-list", &text)?.display().to_string()])
}

/// What the lists of a listener say of names.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// The names for which they have certificates.
    pub names: BTreeSet<String>,
    /// The names for which clients are asked for a certificate.
    asking: BTreeSet<String>,
}

impl Listed {
    /// Those of a `bind`. `all`: the names of the configuration.
    pub fn of(bind: &Node, bases: &Bases, all: &BTreeSet<String>) -> Self {
        let mut out = Self::default();
        let lists = bind.words.windows(2).filter(|pair| pair[0] == "crt-list");
        for entry in lists.filter_map(|pair| entries(&bases.list(&pair[1]))).flatten() {
            let names = entry.names();
            if entry.verify().is_some() {
                out.asking.extend(if names.is_empty() {
                    like(&bases.certificate(&entry.file), all)
                } else {
                    names.clone()
                });
            }
            out.names.extend(names);
        }
        out
    }

    /// Names for which clients are asked for a certificate, as a client writes them.
    pub fn asking(&self) -> impl Iterator<Item = String> + '_ {
        self.asking.iter().map(|name| name.strip_prefix("*.").map_or_else(|| name.clone(), |base| format!("a.{base}")))
    }

    /// Whether clients are asked for a certificate at a host.
    pub fn asks(&self, host: &str) -> bool {
        let host = host.split(':').next().unwrap_or_default().to_ascii_lowercase();
        let is = |name: &String| match name.strip_prefix("*.") {
            Some(base) => host.split_once('.').is_some_and(|(_, rest)| rest == base),
            None => *name == host,
        };
        self.asking.iter().any(is)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Place;

    fn node(line: &str, block: Option<Vec<Node>>) -> Node {
        let words = line.split(' ').map(str::to_owned).collect();
        Node { place: Place { file: "h".into(), line: 1 }, words, block, from: None }
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn a_line_of_a_list_has_a_file_options_and_names() {
        let entry = Entry::read("p.pem [ca-file ca.pem verify required alpn h2]\tP.example !q.example\r").unwrap();
        assert_eq!((entry.file.as_str(), entry.options.len(), entry.verify()), ("p.pem", 6, Some("required")));
        assert_eq!(entry.names(), set(&["p.example"]));
        let entry = Entry::read("a.pem *.a.example").unwrap();
        assert_eq!((entry.file.as_str(), entry.verify(), entry.names()), ("a.pem", None, set(&["*.a.example"])));
        assert_eq!(Entry::read("b.pem[verify none]").unwrap().verify(), None);
        assert!(["", "  ", "# a", "[verify none]"].iter().all(|line| Entry::read(line).is_none()));
    }

    #[test]
    fn names_are_like_those_of_files() {
        let all = set(&["a.example", "shop.example", "www.shop.example"]);
        let of = |name: &str| like(Path::new(name), &all);
        assert_eq!(of("/c/shop.example.rsa.pem"), set(&["shop.example"]));
        assert_eq!(of("/c/shop.pem"), set(&["shop.example", "www.shop.example"]));
        assert_eq!(of("/c/wildcard.shop.example.pem"), set(&["shop.example", "*.shop.example"]));
        assert_eq!(of("/c/other.pem"), set(&[]));
    }

    #[test]
    fn relative_names_start_where_haproxy_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["certs", "lists", "full"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::fs::write(at("certs/here.pem"), "here").unwrap();
        std::fs::write(at("full/a.pem"), "a").unwrap();
        let list = "# default\nhere.pem\np.pem [ca-file p-ca.pem crl-file p.crl verify required] p.example\nrest.pem\n";
        std::fs::write(at("lists/l.txt"), list).unwrap();
        let lines = ["bind :443 ssl crt-list lists/l.txt crt full/ crt none/", "bind :444 ssl crt-list none.txt"];
        let names = node("use_backend b if { req.hdr(host) a.example p.example }", None);
        let block = lines.iter().map(|l| node(l, None)).chain([names]).collect();
        let tree = [node("global", Some(vec![node("crt-base certs", None)])), node("frontend f", Some(block))];
        let mut files = Files::new(&at("made")).unwrap();
        prepare(&tree, folder.path(), &Named::of(&tree), &mut files).unwrap();
        let made = |name: &str| at(name).display().to_string();
        // The folder of certificates is relative to crt-base, too.
        let expected = ["certs/full/", "certs/none/", "certs/p.pem", "certs/rest.pem", "none.txt"].map(made);
        assert_eq!(files.made(), expected);
        let bases = Bases::of(&tree, folder.path());
        let [option, path] = copied("lists/l.txt", &bases, &mut files).unwrap();
        assert_eq!(option, "crt-list");
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], made("certs/here.pem"));
        let (ca, crl) = (files.ca().display().to_string(), files.crl().unwrap().display().to_string());
        assert!(lines[1].ends_with(&format!(" [ca-file {ca} crl-file {crl} verify required] p.example")), "{text}");
        assert!(!text.contains("certs/p.pem") && !text.contains("rest.pem"), "these files are made: {text}");
        assert_eq!(copied("none.txt", &bases, &mut files).unwrap()[0], "crt");
        let listed = Listed::of(&tree[1].inner()[0], &bases, &set(&[]));
        assert_eq!(listed.names, set(&["p.example"]));
        assert!(listed.asks("P.example:443") && !listed.asks("a.example"));
        assert_eq!(listed.asking().collect::<Vec<_>>(), ["p.example"]);
    }
}
