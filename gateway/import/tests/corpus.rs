//! Configurations in the style of popular guides: each has the result and the report that are committed beside it.
//!
//! `SEALANE_UPDATE=1 cargo test --test corpus` writes them anew.

use sealane_config::Document;
use sealane_import::{Imported, Memory, Outcome, haproxy, nginx};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn folder(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(kind)
}

/// The configurations of a kind: names, and what they lead to.
fn corpus(kind: &str) -> Vec<(String, Imported)> {
    let (ending, home) = match kind {
        "nginx" => ("conf", "/etc/nginx"),
        _ => ("cfg", "/etc/haproxy"),
    };
    let mut reader = Memory::default();
    let mut names = Vec::new();
    for below in ["", "snippets", "lists"] {
        for entry in std::fs::read_dir(folder(kind).join(below)).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == ending || below == "lists") {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                reader.files.insert(Path::new(home).join(below).join(&name), std::fs::read(&path).unwrap());
                names.extend(below.is_empty().then_some(name));
            }
        }
    }
    names.sort();
    let import = |name: &String| {
        let path = Path::new(home).join(name);
        match kind {
            "nginx" => nginx::import(&reader, &path),
            _ => haproxy::import(&reader, &path),
        }
    };
    names.iter().map(|name| (name.clone(), import(name).unwrap_or_else(|e| panic!("{e}")))).collect()
}

fn expected(kind: &str) {
    let update = std::env::var_os("SEALANE_UPDATE").is_some();
    let all = corpus(kind);
    assert!(all.len() >= 35, "{kind}: {} configurations", all.len());
    for (name, Imported { toml, report, .. }) in all {
        for (ending, text) in [("toml", &toml), ("report", &report.to_text(true))] {
            let file = folder(kind).join(&name).with_extension(ending);
            if update {
                std::fs::write(&file, text).unwrap();
            }
            let wanted = std::fs::read_to_string(&file).unwrap_or_default();
            assert!(*text == wanted, "{} differs; SEALANE_UPDATE=1 writes it anew:\n{text}", file.display());
        }
        // What is not undecided starts; what is undecided does not.
        let checked = Document::of_file(Path::new("sealane.toml"), toml.as_bytes()).unwrap().read_offline();
        let undecided = report.count(Outcome::Undecided);
        match (&checked, undecided) {
            (Ok(_), 0) => {}
            (Err(errors), 1..) => assert!(errors.to_string().contains("not decided yet"), "{name}: {errors}"),
            (Ok(_), _) => panic!("{name}: it would start with {undecided} undecided"),
            (Err(errors), 0) => panic!("{name}: {errors}"),
        }
        // Nothing is passed over.
        let said: usize = Outcome::ALL.iter().map(|o| report.count(*o)).sum();
        assert_eq!(said, report.directives(), "{name}");
    }
}

#[test]
fn nginx_configurations_have_the_expected_result() {
    expected("nginx");
}

#[test]
fn haproxy_configurations_have_the_expected_result() {
    expected("haproxy");
}

/// How many directives of each name are translated, in percent of all.
fn coverage(kind: &str) -> f64 {
    let mut by_name: BTreeMap<String, [usize; 4]> = BTreeMap::new();
    for (_, imported) in corpus(kind) {
        for (name, outcome) in imported.report.outcomes() {
            let at = Outcome::ALL.iter().position(|o| *o == outcome).unwrap();
            by_name.entry(name.to_owned()).or_default()[at] += 1;
        }
    }
    println!("{kind}: same, different, not translated, undecided");
    for (name, counts) in &by_name {
        println!("{name:32} {counts:?}");
    }
    let sum = |at: usize| by_name.values().map(|c| c[at]).sum::<usize>();
    let translated = 100.0 * (sum(0) + sum(1)) as f64 / (0..4).map(sum).sum::<usize>() as f64;
    println!("{kind}: {translated:.1} % translated");
    translated
}

/// `--nocapture` prints the counts for each directive.
#[test]
fn most_directives_are_translated() {
    let (nginx, haproxy) = (coverage("nginx"), coverage("haproxy"));
    assert!(nginx >= 90.0 && haproxy >= 90.0, "NGINX {nginx:.1} %, HAProxy {haproxy:.1} %");
}

#[test]
fn the_reference_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/import.md");
    let written = std::fs::read_to_string(file).unwrap_or_default();
    assert!(written == sealane_import::reference(), "docs/reference/import.md is stale: run `cargo xtask generate`");
}

/// The page that guides through NGINX counts what there is to read of ten sites.
#[test]
fn ten_sites_leave_little_to_read() {
    let file = folder("nginx").join("ten-sites.conf");
    let text = std::fs::read_to_string(file).unwrap();
    let (lines, servers) = (text.lines().count(), text.lines().filter(|l| l.trim() == "server {").count());
    assert!(lines >= 300 && servers > 10, "{lines} lines, {servers} servers");
    let (_, imported) = corpus("nginx").into_iter().find(|(name, _)| name == "ten-sites.conf").unwrap();
    let report = imported.report;
    assert_eq!(report.undecided(), Vec::<String>::new());
    // The last line has the numbers.
    let read: Vec<String> = report.to_short_text().lines().map(str::to_owned).collect();
    let (counts, read) = read.split_last().unwrap();
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/how-to/move-from-nginx.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let said =
        format!("has {lines} lines and {} directives, and the report has {} lines", report.directives(), read.len());
    let guide = guide.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(guide.contains(&said), "the guide should say: {said}\n{counts}\n{}", read.join("\n"));
}

/// The guides show lines of the reports of their configurations, short or with all texts; "…" stands for the rest of a line.
#[test]
fn the_guides_show_lines_of_their_reports() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (kind, file) in [("nginx", "nginx.conf"), ("haproxy", "haproxy.cfg")] {
        let mut reader = Memory::default();
        for entry in std::fs::read_dir(root.join(format!("examples/from-{kind}"))).unwrap() {
            let path = entry.unwrap().path();
            reader.files.insert(path.file_name().unwrap().into(), std::fs::read(&path).unwrap());
        }
        let imported = match kind {
            "nginx" => nginx::import(&reader, Path::new(file)),
            _ => haproxy::import(&reader, Path::new(file)),
        };
        let report = imported.unwrap().report;
        let report = report.to_short_text() + &report.to_text(false);
        let guide = std::fs::read_to_string(root.join(format!("docs/how-to/move-from-{kind}.md"))).unwrap();
        let counts = report.lines().last().unwrap();
        assert!(guide.lines().any(|l| l == counts), "{kind}: the guide shows {counts}");
        let shown: Vec<&str> = guide.lines().filter(|l| l.starts_with(&format!("{file}:"))).collect();
        assert!(shown.len() >= 2, "{kind}");
        for line in shown {
            let begin = line.trim_end_matches('…');
            assert!(report.lines().any(|l| l.starts_with(begin)), "{kind}: {line}\n{report}");
        }
    }
}
