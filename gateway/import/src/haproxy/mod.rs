//! HAProxy: its language, and its keywords as settings of Sealane.
//!
//! `parser` makes sections, with what they inherit from `defaults`. Rules are read into a condition and what they do (`rules`,
//! `acl`) and then applied to every kind of requests that they tell apart: an address, a host, a path. What is left are routes by
//! method and header, so the order of rules counts as it does in HAProxy.

mod acl;
mod binds;
mod compression;
mod conditions;
mod errors;
mod formats;
mod frontend;
mod global;
mod lexer;
mod log;
mod parser;
mod rules;
mod servers;
mod table;
mod variables;

pub use table::KEYWORDS;

use crate::output::Output;
use crate::report::Report;
use crate::{Failed, Imported, Kind, Outcome, Parsed, Reader, finish};
use acl::Users;
use parser::Section;
use std::collections::BTreeSet;
use std::path::Path;

/// Translates a configuration of HAProxy. `path` should be absolute, since the paths in the result are from its folder.
pub fn import(reader: &dyn Reader, path: &Path) -> Result<Imported, Failed> {
    let mut report = Report::default();
    let mut sections = parser::parse(reader, path, &mut report)?;
    let variables = variables::replace(&mut sections);
    let base = path.parent().unwrap_or(Path::new("")).to_path_buf();
    let mut out =
        Output { title: format!("From {}, by `sealane import haproxy`.", path.display()), ..Output::default() };
    let globals: Vec<&Section> = sections.iter().filter(|s| s.kind == "global").collect();
    let defaults = binds::Defaults::of(&globals);
    global::global(&globals, &mut out, &mut report);
    global::resolvers(&sections, &mut out, &mut report);
    frontend::all(&sections, &defaults, reader, &base, &mut out, &mut report);
    global::limits(&sections, &mut out, &mut report);
    log::log(&sections, &mut out, &mut report);
    peers(&sections, &mut report);
    variables::report(&variables, &mut report);
    rest(&sections, &mut report);
    Ok(finish(out, report, path))
}

/// Reads a configuration of HAProxy into sections with their lines, and translates nothing.
pub fn parsed(reader: &dyn Reader, path: &Path) -> Result<Vec<Parsed>, Failed> {
    let sections = parser::parse(reader, path, &mut Report::default())?;
    let line = |l: &parser::Line| Parsed { place: l.place.clone(), words: l.words.clone(), block: None, from: None };
    let section = |s: &Section| Parsed {
        place: s.place.clone(),
        words: [&s.kind, &s.name].into_iter().filter(|w| !w.is_empty()).cloned().collect(),
        block: Some(s.lines.iter().map(line).collect()),
        from: s.defaults.map(|at| sections[at].name.clone()).filter(|name| !name.is_empty()),
    };
    Ok(sections.iter().map(section).collect())
}

/// Lines that do something by themselves.
const RULES: &[&str] = &[
    "bind",
    "server",
    "server-template",
    "use_backend",
    "redirect",
    "http-request",
    "http-response",
    "http-after-response",
    "tcp-request",
    "default_backend",
];

/// Passwords are in files of their own, which a person writes: one for each list.
fn userlist(sections: &[Section], list: &Section, report: &mut Report) {
    let asked = asked(sections, &list.name);
    if asked.is_empty() {
        return report.same(list.id, "nothing uses it");
    }
    // Without a group, all of them; else those of all groups.
    let every = asked.iter().any(|users| users.groups.is_empty());
    let groups: Vec<String> = asked.iter().filter(|_| !every).flat_map(|users| users.groups.clone()).collect();
    let of = members(list, &groups);
    // HAProxy has the hashes checked by crypt(3).
    let is_read = |l: &&&parser::Line| {
        l.after("password").is_some_and(|p| ["$2a$", "$2b$", "$2y$"].iter().any(|k| p.starts_with(k)))
    };
    let hashes = match (of.iter().filter(is_read).count(), of.len()) {
        (0, _) => "none of its hashes is bcrypt, and Sealane cannot read these: make new ones with `htpasswd -B`",
        (n, all) if n == all => "its hashes are bcrypt: copy them",
        _ => {
            "copy the hashes that begin with $2 (bcrypt); Sealane does not read the others: make new ones with `htpasswd -B`"
        }
    };
    let who = match every {
        true => "each user".to_owned(),
        false => format!("each of these users: {}", of.iter().map(|l| l.word(1)).collect::<Vec<_>>().join(", ")),
    };
    report.decide(
        list.id,
        format!(
            "write the file {}.users beside this configuration, with a line USER:HASH for {who}, and remove this entry; {hashes}",
            list.name
        ),
    );
}

/// The users of a list that the conditions of all sections ask for.
fn asked(sections: &[Section], list: &str) -> BTreeSet<Users> {
    let mut out = BTreeSet::new();
    let (all, some) = (format!("http_auth({list})"), format!("http_auth_group({list})"));
    for line in sections.iter().flat_map(|s| &s.lines) {
        for (at, word) in line.words.iter().enumerate() {
            if word.contains(&all) {
                out.insert(Users { list: list.to_owned(), groups: Vec::new() });
            }
            if word.contains(&some) {
                let groups: Vec<&str> = line
                    .from(at + 1)
                    .iter()
                    .map(String::as_str)
                    .take_while(|w| *w != "}")
                    .filter(|w| !w.starts_with('-'))
                    .collect();
                out.insert(
                    Users::of_groups(list, &groups).unwrap_or(Users { list: list.to_owned(), groups: Vec::new() }),
                );
            }
        }
    }
    out
}

/// The names of the users that have one of some groups. `None`: all users of the list.
fn names_of(sections: &[Section], users: &Users) -> Option<Vec<String>> {
    let list = sections.iter().find(|s| s.kind == "userlist" && s.name == users.list);
    let names = list.map_or_else(Vec::new, |list| members(list, &users.groups));
    (!users.groups.is_empty()).then(|| names.iter().map(|l| l.word(1).to_owned()).collect())
}

/// The lines of a list's users that are in one of some groups. Without groups, of all users.
fn members<'s>(list: &'s Section, groups: &[String]) -> Vec<&'s parser::Line> {
    let has = |names: Option<&str>, one: &str| names.is_some_and(|names| names.split(',').any(|n| n == one));
    let is_member = |user: &parser::Line, group: &String| {
        let of_group = |l: &parser::Line| l.is(&["group", group.as_str()]) && has(l.after("users"), user.word(1));
        has(user.after("groups"), group) || list.lines.iter().any(of_group)
    };
    let users = list.lines.iter().filter(|l| l.word(0) == "user");
    users.filter(|user| groups.is_empty() || groups.iter().any(|group| is_member(user, group))).collect()
}

/// Says of each table that HAProxy copies to others what it means that Sealane does not. A table for which nothing was said before has no
/// limit in the translation.
fn peers(sections: &[Section], report: &mut Report) {
    for line in sections.iter().filter(|s| s.kind != "peers").flat_map(|s| &s.lines) {
        let Some(name) = line.after("peers").filter(|_| line.word(0) == "stick-table") else { continue };
        let others = |s: &Section| s.lines.iter().filter(|l| matches!(l.word(0), "peer" | "server")).count();
        let others = sections.iter().find(|s| s.kind == "peers" && s.name == name).map_or(0, others);
        if report.is_remarked(line.id) {
            report.decide(
                line.id,
                format!(
                    "HAProxy copies this table to the {others} load balancers of \"peers {name}\". If several Sealane gateways serve at the \
                     same time, write [store] with rate_limits = true, which needs a Redis or Valkey server: they apply the limit together. \
                     Without [store], each counts for itself. If one gateway replaces the other, only remove this entry: counting begins anew \
                     there"
                ),
            );
        }
    }
}

/// Why no request gets to a backend, if this is only because the rules that lead to it are undecided.
fn unreached(sections: &[Section], section: &Section, report: &Report) -> Option<String> {
    let all = sections.iter().flat_map(|s| &s.lines);
    let ways: Vec<&parser::Line> = frontend::ways(&section.name, all).filter(|_| section.kind == "backend").collect();
    let (lost, others): (Vec<_>, Vec<_>) =
        ways.into_iter().partition(|l| report.worst(l.id).is_none_or(|worst| worst == Outcome::Undecided));
    let only = !lost.is_empty() && others.iter().all(|l| l.word(1).contains('%'));
    only.then(|| {
        format!(
            "no request of the result gets to this backend: {}",
            rules::because(&frontend::shown_lines(lost.into_iter()))
        )
    })
}

/// Gives every line without an outcome that of the table.
fn rest(sections: &[Section], report: &mut Report) {
    for section in sections {
        let whole = match section.kind.as_str() {
            "userlist" => {
                userlist(sections, section, report);
                Some((Outcome::Same, "see the line \"userlist\""))
            }
            "peers" => Some((
                Outcome::NotTranslated,
                "gateways share rate limits, the keys of session tickets and early data through a store: write [store], which needs a Redis or \
                 Valkey server",
            )),
            "cache" => Some((
                Outcome::NotTranslated,
                "Sealane has no cache: put a cache between Sealane and the server, or let the server cache",
            )),
            "mailers" | "ring" | "log-forward" | "log-profile" | "traces" => {
                Some((Outcome::NotTranslated, "logs are lines on the standard error and in a file"))
            }
            "program" => Some((Outcome::NotTranslated, "the service manager runs programs")),
            "http-errors" => Some((Outcome::Same, "no proxy uses it")),
            "fcgi-app" => {
                Some((Outcome::NotTranslated, "Sealane speaks HTTP to servers: let the application listen with HTTP"))
            }
            "acme" => Some((Outcome::NotTranslated, "write certificates = \"auto\" and [acme]")),
            "crt-store" => Some((Outcome::Undecided, "name the files of certificates and keys at their listener")),
            "dynamic-update" => Some((Outcome::NotTranslated, "`sealane reload` reads files again")),
            _ => None,
        };
        if !report.is_known(section.id) {
            match whole {
                Some((outcome, says)) => report.say(section.id, outcome, says),
                None => report.same(section.id, ""),
            }
        }
        let because = unreached(sections, section, report);
        for line in &section.lines {
            if report.is_known(line.id) {
                continue;
            }
            if let (true, Some(because)) = (RULES.contains(&line.word(0)), &because) {
                report.decide(line.id, because.clone());
                continue;
            }
            if let Some((outcome, says)) = whole {
                report.say(line.id, outcome, says);
                continue;
            }
            let (outcome, says) = match table::kind(&line.words) {
                Some(Kind::NotNeeded(why)) => (Outcome::Same, why),
                Some(Kind::Missing(instead)) => (Outcome::NotTranslated, instead),
                Some(Kind::Undecided(instead)) => (Outcome::Undecided, instead),
                Some(Kind::Translated(_)) if RULES.contains(&line.word(0)) => (
                    Outcome::Undecided,
                    "the import found no request that this rule applies to; check this, because the rule decides about requests",
                ),
                // Inherited by all and overridden by all, or without effect.
                Some(Kind::Translated(_)) => (Outcome::Same, "nothing uses it"),
                None => (Outcome::Undecided, crate::report::UNKNOWN),
            };
            report.say(line.id, outcome, says);
        }
    }
}
