//! `errorfile`, `errorfiles` and `http-errors` of HAProxy: the bodies in files beside the result, and what is no page in the report.

use sealane_import::{Imported, Memory, Outcome, haproxy};
use std::path::Path;

const PAGE: &[u8] =
    b"HTTP/1.0 503 Service Unavailable\r\nCache-Control: no-cache\r\nContent-Type: text/html\r\n\r\n<p>busy</p>\n";

fn import(rules: &str, backend: &str, more: &str) -> Imported {
    let text = format!(
        "{more}\ndefaults\n mode http\n errorfile 503 /etc/e/503.http\nfrontend f\n bind :80\n{rules}\n default_backend b\n\
         backend b\n{backend}\n server s 10.0.0.1:80\nbackend c\n server s 10.0.0.2:80\n"
    );
    let mut reader = Memory::of("/etc/x.cfg", text.as_bytes());
    for (name, content) in [
        ("503.http", PAGE),
        ("other.http", b"HTTP/1.1 503 Busy\nContent-Type: text/plain\nX-A: 1\n\nlater\n"),
        ("504.http", b"HTTP/1.1 504 Late\n\nlate\n"),
        ("200.http", b"HTTP/1.1 200 OK\r\n\r\nfine\n"),
        ("empty.http", b""),
        ("text.http", b"<p>no response</p>"),
    ] {
        reader.files.insert(Path::new("/etc/e").join(name), content.to_vec());
    }
    haproxy::import(&reader, Path::new("/etc/x.cfg")).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn page(imported: &Imported, lines: &[&str]) -> bool {
    let plain: Vec<&str> = imported.toml.lines().map(|l| l.split("  # ").next().unwrap_or("")).collect();
    plain.windows(lines.len()).any(|w| w == lines)
}

/// The page for 503 is also the one for what HAProxy responds to with 503.
const DEFAULT: &[&str] = &["statuses = [502, 503, 504]", "file = \"error-503.html\"", "content_type = \"text/html\""];
/// The same, where 504 has a page.
const BESIDE: &[&str] = &["statuses = [502, 503]", "file = \"error-503.html\"", "content_type = \"text/html\""];

#[test]
fn a_file_with_a_response_is_a_page() {
    let imported = import(" use_backend c if { path_beg /c/ }", "", "");
    assert_eq!(imported.report.undecided(), Vec::<String>::new());
    assert_eq!(imported.files, [("error-503.html".to_owned(), b"<p>busy</p>\n".to_vec())]);
    assert!(page(&imported, DEFAULT), "{}", imported.toml);
    // All routes have it, so it is the host's.
    assert_eq!(imported.toml.matches("[[host.error_page]]").count(), 1, "{}", imported.toml);
    let report = imported.report.to_text(true);
    assert_eq!(imported.report.count(Outcome::NotTranslated), 0, "{report}");
    assert!(
        report.contains("also for 502 (a server cannot be reached) and 504 (connecting takes too long)"),
        "{report}"
    );
}

#[test]
fn a_backend_has_its_own_pages_before_those_of_the_frontend() {
    let imported = import(
        " use_backend c if { path_beg /c/ }\n errorfile 504 /etc/e/504.http",
        " errorfile 503 /etc/e/other.http",
        "",
    );
    assert_eq!(imported.files.len(), 3, "{:?}", imported.files);
    let other = &["statuses = [502, 503]", "file = \"error-503.txt\"", "content_type = \"text/plain\""];
    assert!(page(&imported, BESIDE) && page(&imported, other), "{}", imported.toml);
    assert_eq!(imported.toml.matches("statuses = [504]").count(), 3, "{}", imported.toml);
    assert!(imported.report.to_text(false).contains("these headers are left out: X-A"));
}

#[test]
fn errorfiles_name_a_section() {
    let section = "http-errors site\n errorfile 503 /etc/e/other.http\n errorfile 504 /etc/e/504.http\n";
    let all = import(" errorfiles site", " errorfiles site", section);
    assert!(all.toml.contains("statuses = [502, 503]") && all.toml.contains("statuses = [504]"), "{}", all.toml);
    assert!(all.toml.contains("error-503.txt") && !page(&all, BESIDE), "{}", all.toml);
    let one = import(" errorfiles site 504", " errorfiles site 504", section);
    assert!(page(&one, BESIDE) && one.toml.contains("statuses = [504]"), "{}", one.toml);
    assert!(import(" errorfiles none", "", section).report.to_text(false).contains("no section http-errors none"));
}

#[test]
fn what_is_no_page_is_reported() {
    for (line, says) in [
        ("errorfile 503 /etc/e/200.http", "this file has the status 200"),
        ("errorfile 503 /etc/e/empty.http", "closes a connection"),
        ("errorfile 503 /etc/e/text.http", "cannot read the file as an HTTP response"),
        ("errorfile 503 /etc/e/missing.http", "cannot read the file"),
        ("errorfile 200 /etc/e/200.http", "from 400 to 599"),
        ("errorfile x /etc/e/200.http", "names no status"),
    ] {
        let imported = import("", &format!(" {line}"), "");
        let said = imported.report.to_text(false);
        assert!(said.contains(&format!("not translated: {line}")) && said.contains(says), "{line}: {said}");
        assert_eq!(imported.report.undecided(), Vec::<String>::new());
    }
}
