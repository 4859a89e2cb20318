//! A copy of a configuration of HAProxy that runs beside others: one thread, files in the run's folder, logs off.

use super::{binds, quic_binds, socket};
use crate::files::{Files, HASH, USER};
use crate::nginx::Abilities;
use crate::tree::{Node, Place};
use crate::words::Named;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Dropped wherever they are: logs, processes, and what would ask somebody else.
const DROPPED: &[&str] = &[
    "user",
    "group",
    "uid",
    "gid",
    "chroot",
    "daemon",
    "pidfile",
    "log",
    "log-send-hostname",
    "log-tag",
    "master-worker",
    "nbthread",
    "nbproc",
    "cpu-map",
    "thread-groups",
    "setcap",
    "ca-base",
    "crt-base",
    "server-state-base",
    "server-state-file",
    "load-server-state-from-file",
    "email-alert",
    "ulimit-n",
    "ssl-engine",
];
/// Most connections, of which each needs two descriptors.
const MAX_CONNECTIONS: u64 = 400;
/// Sections that are left out.
const LEFT_OUT: &[&str] = &["peers", "mailers", "program", "ring", "log-forward", "log-profile", "traces", "acme"];

/// The folder before relative paths of certificates.
fn certificates(tree: &[Node], folder: &Path) -> PathBuf {
    let lines = tree.iter().filter(|n| n.name() == "global").flat_map(|n| n.inner());
    lines.rev().find(|n| n.name() == "crt-base").map_or_else(|| folder.to_owned(), |n| folder.join(n.word(1)))
}

/// Makes the files that a configuration names and that are not here.
pub fn prepare(tree: &[Node], folder: &Path, named: &Named, files: &mut Files) -> anyhow::Result<()> {
    let base = certificates(tree, folder);
    let all: BTreeSet<String> = named.dns_names().cloned().collect();
    for node in tree.iter().flat_map(|s| s.inner()).filter(|n| matches!(n.name(), "bind" | "server" | "default-server"))
    {
        for pair in node.words.windows(2).filter(|w| w[0] == "crt") {
            let path = base.join(&pair[1]);
            if pair[1].ends_with('/') || path.is_dir() {
                continue;
            }
            // A file has the names that are like its own; without such names it has all.
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
            let like: BTreeSet<String> =
                all.iter().filter(|n| **n == stem || n.split('.').any(|l| l == stem)).cloned().collect();
            files.certificate(&path, None, if like.is_empty() { &all } else { &like })?;
        }
    }
    Ok(())
}

/// Where the copy's files are.
#[derive(Clone, Copy, Debug)]
pub struct Paths<'p> {
    /// Relative paths of the original are from here.
    pub folder: &'p Path,
    /// What takes the place of Unix sockets of servers.
    pub sockets: &'p BTreeMap<String, PathBuf>,
}

/// Writes the copy. `refused`: lines that this HAProxy does not know.
pub fn runnable(
    tree: &[Node],
    paths: &Paths<'_>,
    files: &mut Files,
    abilities: &Abilities,
    refused: &BTreeSet<(Place, String)>,
) -> anyhow::Result<crate::nginx::Runnable> {
    let folder = paths.folder;
    let base = certificates(tree, folder);
    let mut text = String::from("global\n    nbthread 1\n");
    let mut places = vec![None, None];
    for section in tree.iter().filter(|s| !LEFT_OUT.contains(&s.name())) {
        let mut line = section.words.iter().map(|w| quoted(w)).collect::<Vec<_>>().join(" ");
        if let Some(from) = &section.from {
            line.push_str(&format!(" from {}", quoted(from)));
        }
        text.push_str(&format!("{line}\n"));
        places.push(Some(section.place.clone()));
        for node in section.inner() {
            if refused.contains(&(node.place.clone(), node.name().to_owned())) {
                continue;
            }
            let Some(mut words) = words(node, &base, folder, files, abilities.http3)? else { continue };
            if let Some(path) = socket(node.word(2)).filter(|_| node.name() == "server")
                && let Some(new) = paths.sockets.get(&path)
            {
                words[2] = format!("unix@{}", new.display());
            }
            let words: Vec<String> = words.iter().map(|w| quoted(w)).collect();
            text.push_str(&format!("    {}\n", words.join(" ")));
            places.push(Some(node.place.clone()));
        }
        if section.name() == "userlist" {
            text.push_str(&format!("    user {} password {}\n", USER, quoted(HASH)));
            places.push(None);
        }
    }
    Ok(crate::nginx::Runnable { text, places })
}

/// The words of a line in the copy; `None` if it is left out.
fn words(
    node: &Node,
    base: &Path,
    folder: &Path,
    files: &mut Files,
    quic: bool,
) -> anyhow::Result<Option<Vec<String>>> {
    let is_kept = |word: &str| binds(word).iter().any(Option::is_some) || (quic && !quic_binds(word).is_empty());
    let is_missing = |word: &str| !folder.join(word).exists();
    if DROPPED.contains(&node.name()) {
        return Ok(None);
    }
    match node.name() {
        "stats" if matches!(node.word(1), "socket" | "timeout") => return Ok(None),
        "bind" if !node.word(1).split(',').any(is_kept) => return Ok(None),
        "errorfile" if is_missing(node.word(2)) => return Ok(None),
        "errorfiles" | "lua-load" | "lua-load-per-thread" | "ssl-dh-param-file" if is_missing(node.word(1)) => {
            return Ok(None);
        }
        "bind" | "server" | "default-server" | "stick-table" => {}
        // As many as the machine lets open.
        "maxconn" => {
            let most = node.word(1).parse::<u64>().map_or(MAX_CONNECTIONS, |n| n.min(MAX_CONNECTIONS));
            return Ok(Some(vec!["maxconn".to_owned(), most.to_string()]));
        }
        _ => {
            // Lists that are not here are empty.
            let mut words = node.words.clone();
            for at in 1..words.len() {
                if words[at - 1] == "-f" && is_missing(&words[at]) {
                    words[at] = files.empty(&folder.join(&words[at]))?.display().to_string();
                }
            }
            return Ok(Some(words));
        }
    }
    let mut out: Vec<String> = Vec::new();
    let mut rest = node.words.iter().enumerate();
    while let Some((at, word)) = rest.next() {
        match word.as_str() {
            // Of several addresses those that are of the network.
            _ if at == 1 && node.name() == "bind" => {
                let kept: Vec<&str> = word.split(',').filter(|w| is_kept(w)).collect();
                out.push(kept.join(","));
            }
            "crt" => {
                let path = rest.next().map(|(_, w)| base.join(w)).unwrap_or_default();
                out.extend(["crt".to_owned(), files.instead(&path).display().to_string()]);
            }
            "ca-file" | "ca-verify-file" => {
                rest.next();
                out.extend([word.clone(), files.ca().display().to_string()]);
            }
            "crl-file" => {
                rest.next();
                out.extend([word.clone(), files.crl()?.display().to_string()]);
            }
            // Other members of a cluster are not here.
            "peers" if node.name() == "stick-table" => drop(rest.next()),
            _ => out.push(word.clone()),
        }
    }
    Ok(Some(out))
}

/// A word as HAProxy reads it: as it is, or in single quotes.
fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.:/,@*()[]{}|!=+%<>&?".contains(&b);
    match !word.is_empty() && word.bytes().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_haproxy_reads_them() {
        assert_eq!(quoted("hdr(host)"), "hdr(host)");
        assert_eq!(quoted(r"^/a(/.*)?$"), r"'^/a(/.*)?$'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
