//! A copy of a configuration of HAProxy that runs beside others: one thread, files in the run's folder, logs off.

use super::certificates::{Bases, copied};
use super::checks::Checks;
use super::{Proxy, binds, proxies, quic_binds, socket};
use crate::files::{Files, HASH, USER};
use crate::nginx::Abilities;
use crate::tree::{Node, Place};
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
    // The copy is in another folder: HAProxy starts in the folder that this line means.
    "default-path",
    "external-check",
];
/// Options that are dropped: checks whose protocols back-ends do not speak, so that the checks connect.
const CHECKS: &[&str] = &[
    "external-check",
    "ssl-hello-chk",
    "smtpchk",
    "mysql-check",
    "pgsql-check",
    "redis-check",
    "ldap-check",
    "spop-check",
];
/// How long a refused client waits: only that it is refused counts.
const TARPIT: &str = "200ms";
/// Most connections, of which each needs two descriptors.
const MAX_CONNECTIONS: u64 = 400;
/// Sections that are left out.
const LEFT_OUT: &[&str] = &["peers", "mailers", "program", "ring", "log-forward", "log-profile", "traces", "acme"];

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
    let bases = Bases::of(tree, folder);
    let all = proxies(tree);
    let sections = all.iter().filter(|p| p.section.name() != "frontend");
    let checks: Vec<Checks> = sections.map(Checks::of).collect();
    let unanswered: BTreeSet<&Place> = checks.iter().flat_map(|c| &c.unanswered).collect();
    let silent: BTreeSet<&Place> = checks.iter().filter_map(|c| c.silent.as_ref()).collect();
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
            if refused.contains(&(node.place.clone(), node.name().to_owned())) || unanswered.contains(&node.place) {
                continue;
            }
            if silent.contains(&node.place) {
                text.push_str("    http-check connect\n");
                places.push(Some(node.place.clone()));
                continue;
            }
            // The only user of a list is the copy's own, who is in all groups.
            if section.name() == "userlist" && node.name() == "group" {
                text.push_str(&format!("    group {}\n", quoted(node.word(1))));
                places.push(Some(node.place.clone()));
                continue;
            }
            let Some(mut words) = words(node, &bases, folder, files, abilities.http3)? else { continue };
            if let Some(path) = socket(node.word(2)).filter(|_| node.name() == "server")
                && let Some(new) = paths.sockets.get(&path)
            {
                words[2] = format!("unix@{}", new.display());
            }
            let words: Vec<String> = words.iter().map(|w| quoted(w)).collect();
            text.push_str(&format!("    {}\n", words.join(" ")));
            places.push(Some(node.place.clone()));
        }
        let has_tarpit = |p: &Proxy<'_>| p.section.place == section.place && p.lines().any(|n| n.word(1) == "tarpit");
        if all.iter().any(has_tarpit) {
            text.push_str(&format!("    timeout tarpit {TARPIT}\n"));
            places.push(None);
        }
        if section.name() == "userlist" {
            let groups = groups(section);
            let of = match groups.is_empty() {
                true => String::new(),
                false => format!(" groups {}", quoted(&groups.join(","))),
            };
            text.push_str(&format!("    user {} password {}{of}\n", USER, quoted(HASH)));
            places.push(None);
        }
    }
    Ok(crate::nginx::Runnable { text, places })
}

/// The words of a line in the copy; `None` if it is left out.
fn words(
    node: &Node,
    bases: &Bases,
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
        "option" if CHECKS.contains(&node.word(1)) => return Ok(None),
        "stats" if matches!(node.word(1), "socket" | "timeout") => return Ok(None),
        // A response from a cache says nothing of how the request would be passed on.
        "http-request" if node.word(1) == "cache-use" => return Ok(None),
        "http-response" if node.word(1) == "cache-store" => return Ok(None),
        "filter" if node.word(1) == "cache" => return Ok(None),
        // It is written for each section that has such rules.
        "timeout" if node.word(1) == "tarpit" => return Ok(None),
        "bind" if !node.word(1).split(',').any(is_kept) => return Ok(None),
        "errorfile" if is_missing(node.word(2)) => return Ok(None),
        "lua-load" | "lua-load-per-thread" | "ssl-dh-param-file" | "issuers-chain-path" if is_missing(node.word(1)) => {
            return Ok(None);
        }
        "bind" | "server" | "default-server" | "stick-table" => {}
        // As many as the machine lets open.
        "maxconn" => {
            let most = node.word(1).parse::<u64>().map_or(MAX_CONNECTIONS, |n| n.min(MAX_CONNECTIONS));
            return Ok(Some(vec!["maxconn".to_owned(), most.to_string()]));
        }
        _ => {
            let mut words = node.words.clone();
            replies(&mut words, folder, files)?;
            // Lists and maps that are not here are empty.
            for at in 1..words.len() {
                if words[at - 1] == "-f" && is_missing(&words[at]) {
                    words[at] = files.empty(&folder.join(&words[at]))?.display().to_string();
                }
                for map in maps(&node.words[at]).into_iter().filter(|m| is_missing(m)) {
                    let empty = files.empty(&folder.join(map))?.display().to_string();
                    words[at] = words[at].replace(&format!("({map}"), &format!("({empty}"));
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
                let path = rest.next().map(|(_, w)| bases.certificate(w)).unwrap_or_default();
                out.extend(["crt".to_owned(), files.instead(&path).display().to_string()]);
            }
            "crt-list" => {
                let name = rest.next().map_or("", |(_, w)| w.as_str());
                out.extend(copied(name, bases, files)?);
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

/// The folder at which relative paths start: that of the configuration, unless `default-path` names another one.
pub fn folder(tree: &[Node], base: &Path) -> PathBuf {
    let lines = tree.iter().filter(|n| n.name() == "global").flat_map(|n| n.inner());
    let line = lines.rev().find(|n| n.name() == "default-path");
    match line.map(|n| (n.word(1), n.word(2))) {
        Some(("parent", _)) => base.parent().unwrap_or(base).to_owned(),
        Some(("origin", folder)) => base.join(folder),
        _ => base.to_owned(),
    }
}

/// Contents of replies whose files are not here: a text takes their place; whole responses are left out.
fn replies(words: &mut Vec<String>, folder: &Path, files: &mut Files) -> anyhow::Result<()> {
    let is_reply = match words.first().map(String::as_str) {
        Some("http-request" | "http-response" | "http-after-response") => {
            words.get(1).is_some_and(|action| matches!(action.as_str(), "return" | "deny" | "tarpit"))
        }
        Some("http-error") => true,
        _ => false,
    };
    let mut at = 1;
    while is_reply && at + 1 < words.len() && !matches!(words[at].as_str(), "if" | "unless") {
        let path = folder.join(&words[at + 1]);
        match words[at].as_str() {
            // A name and a value.
            "hdr" => at += 3,
            "file" | "lf-file" if !path.exists() => {
                words[at + 1] = files.text(&path)?.display().to_string();
                at += 2;
            }
            "errorfile" if !path.exists() => drop(words.drain(at..at + 2)),
            _ => at += 1,
        }
    }
    Ok(())
}

/// The groups of a list of users.
fn groups(section: &Node) -> Vec<&str> {
    section.all("group").map(|n| n.word(1)).collect()
}

/// The files of the maps in a word.
fn maps(word: &str) -> Vec<&str> {
    let is_map = |name: &str| name == "map" || name.starts_with("map_");
    let mut out = Vec::new();
    for (at, _) in word.match_indices('(') {
        let name = word[..at].rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        let file = word[at + 1..].split([',', ')']).next().unwrap_or_default();
        if is_map(name) && !file.is_empty() {
            out.push(file);
        }
    }
    out
}

/// A word as HAProxy reads it: as it is, or in single quotes. Between quotes a backslash is a character, so that a line break stands
/// outside of them.
fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.:/,@*()[]{}|!=+%<>&?".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    let mut out = String::from("'");
    for c in word.chars() {
        match c {
            '\'' => out.push_str(r"'\''"),
            '\n' => out.push_str(r"'\n'"),
            '\r' => out.push_str(r"'\r'"),
            '\t' => out.push_str(r"'\t'"),
            c if c.is_ascii_control() => out.push_str(&format!(r"'\x{:02x}'", c as u32)),
            c => out.push(c),
        }
    }
    out.push('\'');
    out
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
        assert_eq!(quoted("HTTP/1.1\r\nHost: a"), r"'HTTP/1.1'\r''\n'Host: a'");
        assert_eq!(quoted("a\tb\u{1}"), r"'a'\t'b'\x01''");
    }

    fn node(line: &str, block: Option<Vec<Node>>) -> Node {
        let words = line.split(' ').map(|w| w.replace("~", "\n")).collect();
        Node { place: Place { file: "h".into(), line: 1 }, words, block, from: None }
    }

    /// Lines one after the other.
    fn nodes(lines: &[&str]) -> Vec<Node> {
        let one = |(at, line): (usize, &&str)| {
            let place = Place { file: "h".into(), line: 2 + at as u32 };
            Node { place, ..node(line, None) }
        };
        lines.iter().enumerate().map(one).collect()
    }

    fn text(tree: &[Node], folder: &Path) -> String {
        let mut files = Files::new(&folder.join("made")).unwrap();
        let paths = Paths { folder, sockets: &BTreeMap::new() };
        runnable(tree, &paths, &mut files, &Abilities::default(), &BTreeSet::new()).unwrap().text
    }

    #[test]
    fn a_list_of_users_has_one_user_who_is_in_all_groups() {
        let folder = tempfile::tempdir().unwrap();
        let lines = ["group admins users alice", "group devs", "user alice password x groups devs"];
        let tree = [node("userlist staff", Some(lines.iter().map(|l| node(l, None)).collect()))];
        let text = text(&tree, folder.path());
        assert!(text.contains("userlist staff\n    group admins\n    group devs\n    user compare password"), "{text}");
        assert!(text.trim_end().ends_with(" groups admins,devs") && !text.contains("alice"), "{text}");
    }

    #[test]
    fn missing_maps_are_empty_and_checks_that_no_back_end_answers_only_connect() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("there.map"), "a b\n").unwrap();
        let lines = [
            "use_backend %[req.hdr(host),lower,map(none.map,x)]",
            "use_backend %[req.hdr(host),lower,map_beg(there.map)]",
            "errorfiles pages",
            "option tcp-check",
            "tcp-check connect via-socks4",
            "option redis-check",
            "http-request return status 200 content-type text/plain string a~b",
        ];
        let tree =
            [node("global", Some(vec![node("default-path config", None)])), node("listen l", Some(nodes(&lines)))];
        let text = text(&tree, folder.path());
        assert!(text.contains("/made/empty,x)]") && text.contains("map_beg(there.map)]"), "{text}");
        assert!(text.contains("errorfiles pages") && text.contains(r"'a'\n'b'"), "{text}");
        assert!(
            !text.contains("redis-check") && !text.contains("tcp-check connect") && !text.contains("default-path"),
            "{text}"
        );
        assert_eq!(maps("%[base,map_reg(a.map),x]%[path,map(b.map,c)]"), ["a.map", "b.map"]);
    }

    #[test]
    fn replies_from_missing_files_have_a_text() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("there.html"), "x").unwrap();
        let lines = [
            "http-request return status 503 content-type text/html file none.html hdr file x if { path /file }",
            "http-request return status 200 file there.html",
            "http-request deny deny_status 429 errorfile none.http unless { src 10.0.0.1 }",
            "http-request set-header X-Kind file if { path /x }",
        ];
        let text = text(&[node("frontend f", Some(nodes(&lines)))], folder.path());
        let made = folder.path().join("made/text-0");
        assert!(text.contains(&format!("text/html file {} hdr file x if", made.display())), "{text}");
        assert!(text.contains("file there.html\n") && text.contains("deny_status 429 unless"), "{text}");
        assert!(text.contains("X-Kind file if"), "{text}");
        assert_eq!(std::fs::read_to_string(made).unwrap(), "made for this run\n");
    }

    #[test]
    fn neither_caches_nor_waiting_are_in_the_copy() {
        let folder = tempfile::tempdir().unwrap();
        let lines = [
            "timeout tarpit 10s",
            "http-request cache-use c",
            "http-response cache-store c",
            "filter cache c",
            "http-request tarpit if { path /x }",
        ];
        let tree = [node("frontend f", Some(nodes(&lines))), node("backend b", Some(nodes(&["balance random"])))];
        let tree = tree.map(|n| Node { place: Place { file: n.word(0).into(), line: 1 }, ..n });
        let text = text(&tree, folder.path());
        assert!(!text.contains("cache") && text.matches("timeout tarpit 200ms").count() == 1, "{text}");
    }

    #[test]
    fn checks_that_back_ends_answer_stay() {
        let folder = tempfile::tempdir().unwrap();
        let of = |lines: &[&str]| text(&[node("backend b", Some(nodes(lines)))], folder.path());
        let text = of(&["option tcp-check", "tcp-check send PING", "tcp-check expect string +PONG"]);
        assert!(text.contains("tcp-check send PING\n    tcp-check expect string +PONG"), "{text}");
        let text = of(&["option httpchk GET /up", "http-check expect status 200", "http-check expect rstring (?!a)b"]);
        assert!(text.contains("http-check expect status 200") && !text.contains("rstring"), "{text}");
    }

    #[test]
    fn a_check_without_a_request_only_connects() {
        let folder = tempfile::tempdir().unwrap();
        let own = nodes(&["balance random", "http-check expect status 204", "http-check expect string x"]);
        let tree = [node("defaults", Some(nodes(&["option httpchk GET /d"]))), node("backend b", Some(own))];
        let text = text(&tree, folder.path());
        assert!(text.contains("    http-check connect\n") && !text.contains("expect"), "{text}");
    }

    #[test]
    fn default_path_names_the_folder_of_relative_paths() {
        let of = |line: &str| folder(&[node("global", Some(vec![node(line, None)]))], Path::new("/etc/haproxy"));
        assert_eq!(of("daemon"), Path::new("/etc/haproxy"));
        assert_eq!(of("default-path parent"), Path::new("/etc"));
        assert_eq!(of("default-path origin /srv"), Path::new("/srv"));
    }
}
