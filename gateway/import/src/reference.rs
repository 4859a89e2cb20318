//! The reference of what is translated, `docs/reference/import.md`, from the tables.

use crate::{Kind, haproxy, nginx, openvpn};
use std::fmt::Write as _;

/// The page, in Markdown.
pub fn reference() -> String {
    let mut out = include_str!("reference.md").to_owned();
    for (title, what, table) in [
        ("NGINX", "directive", nginx::DIRECTIVES),
        ("HAProxy", "keyword", haproxy::KEYWORDS),
        ("OpenVPN", "option", openvpn::DIRECTIVES),
    ] {
        // Writing to a string cannot fail.
        let _ = write!(out, "\n## {title}\n\n### Translated ({title})\n\n| {what} | becomes |\n|---|---|\n");
        for (name, kind) in table {
            if let Kind::Translated(what) = kind {
                let _ = writeln!(out, "| `{name}` | {what} |");
            }
        }
        for (heading, of) in
            [("Not needed", 0), ("Not translated: do this instead", 1), ("Undecided: a person decides first", 2)]
        {
            let _ = write!(out, "\n### {heading} ({title})\n\n| {what} | |\n|---|---|\n");
            let mut rows: Vec<(&str, Vec<&str>)> = Vec::new();
            for (name, kind) in table {
                let says = match (kind, of) {
                    (Kind::NotNeeded(s), 0) | (Kind::Missing(s), 1) | (Kind::Undecided(s), 2) => *s,
                    _ => continue,
                };
                match rows.iter_mut().find(|(s, _)| *s == says) {
                    Some((_, names)) => names.push(name),
                    None => rows.push((says, vec![name])),
                }
            }
            for (says, names) in rows {
                let names: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
                let _ = writeln!(out, "| {} | {} |", names.join(", "), says.replace('|', "\\|"));
            }
        }
    }
    out
}
