//! Variables: `http-request set-var(txn.host) req.hdr(host)`, and what uses them.
//!
//! A variable that always has the same sample is put where it is used, before anything is translated. Any other variable stays, and
//! what uses it is not understood. A rule that changes the sample between the two makes its use undecided, as it does without a
//! variable (`rules/apply.rs`).

use super::parser::{Line, Section};
use crate::report::{Place, Report};
use std::collections::{BTreeMap, BTreeSet};

/// Stands before a sample that was taken when the request came: responses know it, too.
pub(super) const SAVED: char = '\u{2}';
/// Longest line with its variables replaced, in bytes.
const MAX_LINE: usize = 16 << 10;

/// A variable in whose place its sample is.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    /// The lines that gave it its value.
    setters: Vec<Line>,
    /// The lines that use it.
    users: Vec<Line>,
}

/// Puts samples in the place of variables.
pub(super) fn replace(sections: &mut [Section]) -> Vec<Replaced> {
    let constants = constants(sections);
    let mut out: BTreeMap<String, Replaced> = BTreeMap::new();
    for section in sections.iter_mut() {
        section.lines.retain_mut(|line| match setter(line) {
            Some(Setter { name, .. }) if constants.contains_key(name) => {
                out.entry(name.to_owned()).or_default().setters.push(line.clone());
                false
            }
            Some(_) => true,
            None => {
                for (name, sample) in &constants {
                    if line.words.iter().any(|word| mentions(word, name)) {
                        out.entry(name.clone()).or_default().users.push(line.clone());
                    }
                    line.words.iter_mut().for_each(|word| put(word, name, sample));
                }
                true
            }
        });
    }
    out.into_values().collect()
}

/// Says of each replaced variable whether the result has its value.
pub(super) fn report(all: &[Replaced], report: &mut Report) {
    for Replaced { setters, users } in all {
        let is_lost = !users.is_empty() && users.iter().all(|line| super::frontend::is_lost(line, report));
        for line in setters {
            match is_lost {
                true => report.missing(
                    line.id,
                    format!(
                        "the result does not have this value, because everything that uses it ({}) is not translated: decide that first",
                        super::frontend::shown_lines(users.iter())
                    ),
                ),
                false => report.same(line.id, "its value is written where the variable is used"),
            }
        }
    }
}

/// Puts a sample in the place of a variable in a word: of a criterion (`var(txn.a),lower`), or of a format (`%[var(txn.a)]`).
fn put(word: &mut String, name: &str, sample: &str) {
    let wanted = format!("var({name})");
    if let Some(rest) = word.strip_prefix(&wanted) {
        *word = format!("{SAVED}{sample}{rest}");
    }
    let formatted = word.replace(&format!("[{wanted}"), &format!("[{sample}"));
    if formatted.len() <= MAX_LINE {
        *word = formatted;
    }
}

/// A line that gives a variable its value.
struct Setter<'l> {
    name: &'l str,
    /// The sample, if it is unconditional, and of a request.
    sample: Option<&'l str>,
}

fn setter(line: &Line) -> Option<Setter<'_>> {
    let action = match line.word(0) {
        "http-request" | "http-response" | "http-after-response" => 1,
        "tcp-request" | "tcp-response" | "http-check" | "tcp-check" => 2,
        _ => 0,
    };
    let word = line.words.get(action..)?.first()?;
    let (kind, rest) = word.split_once('(')?;
    if !matches!(kind, "set-var" | "set-var-fmt" | "unset-var") {
        return None;
    }
    let name = rest.split([',', ')']).next()?;
    let plain = line.word(0) == "http-request" && kind == "set-var" && *word == format!("set-var({name})");
    let sample = match line.from(action + 1) {
        [sample] if plain && !sample.contains(['%', ' ']) => Some(sample.as_str()),
        _ => None,
    };
    Some(Setter { name, sample })
}

/// The header of which a sample is.
fn header_of(sample: &str) -> Option<&str> {
    let (fetch, rest) = sample.split_once('(')?;
    let name = rest.split([',', ')']).next().unwrap_or_default();
    match fetch {
        fetch if fetch.contains("hdr") => Some(name),
        fetch if fetch.contains("cook") => Some("cookie"),
        _ => None,
    }
}

/// Whether a rule may give a header of the request another value.
fn changes(line: &Line, header: &str) -> bool {
    let is_meant = || line.word(2).eq_ignore_ascii_case(header) || line.words.iter().any(|w| w == "-m");
    line.word(0) == "http-request"
        && match line.word(1) {
            "set-uri" | "replace-uri" | "normalize-uri" => header.eq_ignore_ascii_case("host"),
            "set-header" | "add-header" | "del-header" | "replace-header" | "replace-value" => is_meant(),
            _ => false,
        }
}

/// The lines that give each variable its value.
pub(super) type Setters = BTreeMap<String, Vec<Place>>;

/// The variables that are still there, with the lines that give them their values.
pub(super) fn setters(sections: &[Section]) -> Setters {
    let mut out = Setters::new();
    for line in sections.iter().flat_map(|s| &s.lines) {
        if let Some(Setter { name, .. }) = setter(line) {
            out.entry(name.to_owned()).or_default().push(line.place.clone());
        }
    }
    out
}

/// The variables that words use, each with the line that sets it first.
pub(super) fn used<'s>(words: &[String], setters: &'s Setters) -> Vec<(&'s str, &'s Place)> {
    let is_used = |name: &str| {
        // `sub(txn.limit)` takes the name of a variable, too.
        words.iter().any(|w| mentions(w, name) || w.contains(&format!("({name})")) && !w.starts_with("set-var"))
    };
    let all = setters.iter().filter(|(name, _)| is_used(name.as_str()));
    all.filter_map(|(name, lines)| Some((name.as_str(), lines.first()?))).collect()
}

/// Whether a word names a variable.
fn mentions(word: &str, name: &str) -> bool {
    word.contains(&format!("var({name})")) || word.contains(&format!("var({name},"))
}

/// Variables that always have the same sample where they are used, with their samples.
fn constants(sections: &[Section]) -> BTreeMap<String, String> {
    let mut samples: BTreeMap<&str, BTreeSet<Option<&str>>> = BTreeMap::new();
    for setter in sections.iter().flat_map(|s| &s.lines).filter_map(setter) {
        samples.entry(setter.name).or_default().insert(setter.sample);
    }
    let mut out = BTreeMap::new();
    for (name, found) in samples {
        let found: Vec<&Option<&str>> = found.iter().collect();
        let [Some(sample)] = found.as_slice() else { continue };
        // The sample of another variable, or a value that changes by itself.
        let stable = !sample.contains("var(")
            && !["rand", "date", "uuid", "nbsrv", "queue"].iter().any(|f| sample.starts_with(f));
        // Rules of `defaults` come before all others.
        let mut inherited = sections.iter().filter(|s| s.kind == "defaults").flat_map(|s| &s.lines);
        let stable = stable && !header_of(sample).is_some_and(|header| inherited.any(|l| changes(l, header)));
        if stable && sections.iter().all(|s| is_set_before(s, sections, name)) {
            out.insert(name.to_owned(), (*sample).to_owned());
        }
    }
    out
}

/// Whether a variable has its value wherever a section uses it.
fn is_set_before(section: &Section, sections: &[Section], name: &str) -> bool {
    let uses = |l: &Line| setter(l).is_none() && l.words.iter().any(|w| mentions(w, name));
    if !section.lines.iter().any(uses) {
        return true;
    }
    let sets = |s: &Section| s.lines.iter().position(|l| setter(l).is_some_and(|s| s.name == name));
    let acls: Vec<&str> = section.lines.iter().filter(|l| l.word(0) == "acl" && uses(l)).map(|l| l.word(1)).collect();
    let of_acl = |l: &Line| l.words.iter().any(|w| acls.contains(&w.trim_start_matches('!')));
    // What ends the rules of a section before the variable is set, or gives the header another value.
    let ends = |s: &Section, at: usize| {
        let header = setter(&s.lines[at]).and_then(|s| s.sample).and_then(header_of);
        s.lines[..at].iter().any(|l| {
            l.word(0) == "http-request" && matches!(l.word(1), "allow" | "use-service")
                || header.is_some_and(|header| changes(l, header))
        })
    };
    let in_order = |s: &Section, at: usize| {
        let before = &s.lines[..at];
        let used = |l: &Line| l.word(0) != "acl" && l.word(0) != "use_backend" && (uses(l) || of_acl(l));
        !ends(s, at)
            && !before.iter().any(|l| l.word(0).starts_with("http-re") && used(l))
            && !s.lines.iter().any(|l| l.word(0).starts_with("tcp-") && used(l))
    };
    match (sets(section), section.kind.as_str()) {
        (Some(at), _) => in_order(section, at),
        // All that lead to a backend have set it.
        (None, "backend") => {
            let leads = |s: &&Section| matches!(s.kind.as_str(), "frontend" | "listen");
            let mut all = sections.iter().filter(leads).peekable();
            all.peek().is_some()
                && all.all(|s| sets(s).is_some_and(|at| !ends(s, at)))
                && !section.lines.iter().any(|l| l.word(0).starts_with("tcp-") && (uses(l) || of_acl(l)))
        }
        (None, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use crate::haproxy::parser::parse;
    use std::path::Path;

    fn replaced(text: &str) -> (Vec<String>, Vec<Replaced>) {
        let mut report = Report::default();
        let reader = Memory::of("/x.cfg", text.as_bytes());
        let mut sections = parse(&reader, Path::new("/x.cfg"), &mut report).unwrap();
        let replaced = replace(&mut sections);
        let lines = sections.iter().flat_map(|s| &s.lines).map(|l| l.words.join(" ").replace(SAVED, "~")).collect();
        (lines, replaced)
    }

    #[test]
    fn a_sample_is_put_where_its_variable_is_used() {
        let (lines, variables) = replaced(
            "frontend f\n bind :80\n http-request set-var(txn.p) path\n acl a var(txn.p) -m beg /a\n \
             http-request deny if !{ var(txn.p),lower -m str /b }\n http-request set-header X-P %[var(txn.p)]\n \
             http-response set-header A b if a\nbackend b\n http-request deny if { var(txn.p) /c }\n",
        );
        assert_eq!(
            lines[1..],
            [
                "acl a ~path -m beg /a",
                "http-request deny if !{ ~path,lower -m str /b }",
                "http-request set-header X-P %[path]",
                "http-response set-header A b if a",
                "http-request deny if { ~path /c }",
            ]
        );
        assert_eq!(variables.iter().map(|v| (v.setters.len(), v.users.len())).collect::<Vec<_>>(), [(1, 4)]);
    }

    #[test]
    fn a_variable_with_another_value_somewhere_stays() {
        let uses = " http-request deny if { var(txn.p) /a }\n";
        for text in [
            // Not always set, or changed.
            " http-request set-var(txn.p) path if { src 10.0.0.1 }\n",
            " http-request set-var(txn.p) path\n http-request set-var(txn.p) str(/b)\n",
            " http-request set-var(txn.p) path\n http-request unset-var(txn.p)\n",
            " http-request set-var(txn.p) path\n http-response set-var(txn.p) path\n",
            " http-request set-var(txn.p,ifnotexists) path\n",
            " http-request set-var-fmt(txn.p) %[path]\n",
            " tcp-request content set-var(txn.p) path\n",
            " http-request set-var(txn.p) var(txn.q)\n",
            " http-request set-var(txn.p) rand(100)\n",
            // The host is another one.
            " http-request set-header Host x\n http-request set-var(txn.p) req.hdr(host),lower\n",
            " http-request del-header ^h -m reg\n http-request set-var(txn.p) hdr(host),field(1,:)\n",
            // So is another header.
            " http-request del-header X-Role\n http-request set-var(txn.p) req.hdr(x-role)\n",
            " http-request set-header Cookie a=b\n http-request set-var(txn.p) req.cook(a)\n",
            // Set too late, or not for all.
            " http-request deny if { var(txn.p) /b }\n http-request set-var(txn.p) path\n",
            " acl a var(txn.p) /b\n http-request deny if !a\n http-request set-var(txn.p) path\n",
            " http-request allow if { src 10.0.0.1 }\n http-request set-var(txn.p) path\n",
            " http-request set-var(txn.p) path\n tcp-request content reject if { var(txn.p) /b }\n",
            "",
        ] {
            let (lines, _) = replaced(&format!("frontend f\n bind :80\n{text}{uses}"));
            assert!(!lines.iter().any(|l| l.contains('~')), "{text}{lines:?}");
        }
        let of_host = " http-request set-var(txn.p) hdr(host)\n";
        for before in [
            "defaults d\n http-request set-header Host x\nfrontend f\n",
            "frontend f\n http-request set-header Host x\n",
        ] {
            let (lines, _) = replaced(&format!("{before}{of_host}backend b\n{uses}"));
            assert!(!lines.iter().any(|l| l.contains('~')), "{lines:?}");
        }
        // Changed afterwards: the variable has the client's host.
        let (lines, _) = replaced(&format!("frontend f\n{of_host} http-request set-header Host x\n{uses}"));
        assert!(lines.iter().any(|l| l.contains("~hdr(host) /a")), "{lines:?}");
        let (lines, _) = replaced(&format!(
            "frontend f\n http-request set-var(txn.p) path\nfrontend g\n bind :81\nbackend b\n{uses}"
        ));
        assert!(!lines.iter().any(|l| l.contains('~')), "{lines:?}");
    }
}
