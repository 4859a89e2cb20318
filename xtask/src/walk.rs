//! The walk of an HTTP/1.1 request in `ARCHITECTURE.md`, checked: each function calls the next one, so a reader who follows
//! the walk follows the code; the walk has at most [`FILES`] files; and its functions, with the functions of their own files that
//! they call without a condition, call functions of no other file of the proxy, except those of [`BESIDE`], and these under a
//! condition only, and those of [`RECORDS`]. Methods are not followed.

use anyhow::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The heading above the walk.
const HEADING: &str = "### An HTTP/1.1 request to an HTTP/1.1 server";
/// The folder of files that are named without one of the folders at the repository's root.
const FOLDER: &str = "gateway/proxy/src";
/// The most files that a reader must open to follow a request from its connection to the last byte of its response.
const FILES: usize = 20;
/// Files that the walk's functions call, but that a plain request does not lead through, and why. Each call of them has a condition
/// ([`is_conditional`]).
const BESIDE: &[(&str, &[&str])] = &[
    (
        "another version of HTTP",
        &[
            "client/h2_connection",
            "client/h2_responses",
            "client/h3_responses",
            "memory",
            "quic_driver",
            "upstream/h2",
            "upstream/h2_connection",
            "upstream/h3",
        ],
    ),
    (
        "a feature that is not configured",
        &[
            "accept/syn",
            "access",
            "client/signing",
            "client/tunnel",
            "exchange/authorize",
            "exchange/encoding",
            "exchange/redirection",
            "exchange/response_headers",
            "exchange/routing",
            "exchange/websocket",
            "mirrors",
            "relay",
            "request_ids",
            "traces",
            "udp/relay",
            "upstream/early",
            "upstream/syn",
        ],
    ),
    ("a reload, or the end of a connection", &["lifecycle", "renewal"]),
    ("servers or peers without room", &["exchange/resume", "upstream/queue"]),
    ("a head that comes in pieces", &["scratch"]),
];
/// Files that every request enters when it is over, to be recorded. They decide nothing, so the walk does not have them.
const RECORDS: &[&str] = &["latency"];
/// Where the lane's loop calls the proxy: these functions need no caller in the walk.
const ENTRIES: [&str; 2] = ["turn", "ready"];

/// One line of the walk: a file, and functions of which each calls the next. The last one may be in another file.
#[derive(Debug, PartialEq, Eq)]
struct Stretch {
    file: String,
    functions: Vec<String>,
}

/// One line for each step that the code does not take.
pub fn check(root: &Path) -> anyhow::Result<Vec<String>> {
    let page = root.join("ARCHITECTURE.md");
    let page = std::fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let walk = parse(&page);
    Ok(judge(&walk, |file| std::fs::read_to_string(root.join(file)).ok()))
}

/// Reads the first block of text below the heading.
fn parse(page: &str) -> Vec<Stretch> {
    let lines = page.lines().skip_while(|line| *line != HEADING).skip_while(|line| *line != "```text").skip(1);
    let stretches = lines.take_while(|line| *line != "```").filter_map(|line| {
        let (file, rest) = line.trim().split_once(char::is_whitespace)?;
        if !file.ends_with(".rs") {
            return None; // A line for the reader.
        }
        let file = if file.starts_with("gateway/") { file.into() } else { format!("{FOLDER}/{file}") };
        // Behind two spaces stands a remark.
        let chain = rest.trim_start().split("  ").next().unwrap_or_default();
        let functions = chain.split('→').map(|name| name.trim().to_owned()).collect();
        Some(Stretch { file, functions })
    });
    stretches.collect()
}

fn judge(walk: &[Stretch], source: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut found = Vec::new();
    let files: BTreeSet<&str> = walk.iter().map(|stretch| stretch.file.as_str()).collect();
    if files.is_empty() {
        found.push(format!("ARCHITECTURE.md has no walk below `{HEADING}`"));
    }
    if files.len() > FILES {
        found
            .push(format!("the walk of a request has {} files, more than {FILES}: make the path shorter", files.len()));
    }
    // The bodies of the functions that the walk has come through.
    let mut seen: Vec<String> = Vec::new();
    for Stretch { file, functions } in walk {
        let Some(source) = source(file) else {
            found.push(format!("the walk of a request names `{file}`, which does not exist"));
            continue;
        };
        for (at, name) in functions.iter().enumerate() {
            let body = body(&source, name);
            let is_of_proxy = file.starts_with(FOLDER);
            let followed = if is_of_proxy { with_helpers(&source, name) } else { Vec::new() };
            let elsewhere = followed.iter().flat_map(|(name, body)| {
                called_modules(&source, body)
                    .into_iter()
                    .map(move |(module, is_conditional)| (name, module, is_conditional))
            });
            for (name, module, is_conditional) in elsewhere.filter(|(_, module, _)| !is_walked(walk, module)) {
                let advice = match is_beside(&module) {
                    true if is_conditional => continue,
                    true => {
                        "a plain request gets there as well: give the call a condition, or add the file to the walk"
                    }
                    false => {
                        "add the file to the walk, or, if a plain request does not get there, to xtask/src/walk.rs"
                    }
                };
                found.push(format!("the walk of a request: `{name}` ({file}) calls `{module}`: {advice}"));
            }
            if at == 0 && body.is_none() {
                found.push(format!("the walk of a request: `{file}` has no function `{name}`"));
            }
            let called = match at {
                0 => ENTRIES.contains(&name.as_str()) || seen.iter().any(|body| calls(body, name)),
                _ => seen.last().is_some_and(|body| calls(body, name)),
            };
            if !called {
                found.push(match at.checked_sub(1).and_then(|before| functions.get(before)) {
                    Some(caller) => {
                        format!("the walk of a request: `{caller}` does not call `{name}` ({file}), although the walk says so")
                    }
                    None => format!("the walk of a request: no function before `{name}` ({file}) calls it"),
                });
            }
            seen.extend(body);
        }
    }
    found
}

/// The modules of the proxy whose functions a text calls, by the imports of its file, and whether each call has a condition.
fn called_modules(source: &str, body: &str) -> BTreeMap<String, bool> {
    let mut modules = BTreeMap::new();
    let mut note = |module: &str, places: Vec<(usize, usize)>| {
        if !places.is_empty() && !module.is_empty() {
            let all = modules.entry(module.replace("::", "/")).or_insert(true);
            *all &= places.into_iter().all(|(line, at)| is_conditional(body, line, at));
        }
    };
    for import in source.split("\nuse crate::").skip(1) {
        let Some((import, _)) = import.split_once(';') else { continue };
        let (module, names) = import.rsplit_once("::").unwrap_or(("", import));
        // Of several names the braces stand behind the last path separator.
        let names = names.split([',', '{', '}']).map(str::trim);
        for name in names.filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase())) {
            note(module, places(body, name).collect());
            let inner = format!("{module}::{name}");
            note(inner.trim_start_matches("::"), module_places(body, name));
        }
    }
    modules
}

/// A function and those of its file that it calls without a condition, one after the other: their names and texts. Methods are not
/// among them.
fn with_helpers(source: &str, name: &str) -> Vec<(String, String)> {
    let code = source.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    let declared = code.lines().filter(|line| !line.starts_with([' ', '/'])).filter_map(|line| {
        let (_, declared) = line.split_once("fn ")?;
        declared.split(['(', '<']).next()
    });
    let declared: Vec<&str> = declared.collect();
    let mut all: Vec<(String, String)> = Vec::new();
    let mut next = vec![name];
    while let Some(name) = next.pop() {
        if all.iter().any(|(known, _)| known == name) {
            continue;
        }
        let Some(body) = body(code, name) else { continue };
        let is_called = |helper: &&&str| places(&body, helper).any(|(line, at)| !is_conditional(&body, line, at));
        next.extend(declared.iter().filter(is_called));
        all.push((name.to_owned(), body));
    }
    all
}

/// Whether a module is in the walk, or among the [`RECORDS`].
fn is_walked(walk: &[Stretch], module: &str) -> bool {
    let files = [format!("{FOLDER}/{module}.rs"), format!("{FOLDER}/{module}/mod.rs")];
    walk.iter().any(|stretch| files.contains(&stretch.file)) || RECORDS.contains(&module)
}

/// Whether a module is among those beside the walk.
fn is_beside(module: &str) -> bool {
    BESIDE.iter().any(|(_, modules)| modules.contains(&module))
}

/// Whether a call has a condition: before it in its line, or around it. `at`: where it begins in this line of a function's text. The
/// lines around it are those before it that are indented less.
fn is_conditional(body: &str, line: usize, at: usize) -> bool {
    let lines: Vec<&str> = body.lines().take(line + 1).collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let (Some(first), Some(own)) = (lines.first(), lines.last()) else { return false };
    if ["&& ", "|| ", "=> ", "{ "].iter().any(|sign| own[..at].contains(sign)) {
        return true;
    }
    let mut depth = indent(own);
    for around in lines.iter().rev().skip(1).filter(|line| !line.trim().is_empty()) {
        if indent(around) >= depth || indent(around) <= indent(first) {
            continue;
        }
        depth = indent(around);
        let text = around.trim();
        // A brace alone stands behind a condition of several lines.
        if text == "{" || ["if ", "else", "match ", "while ", "=>"].iter().any(|word| text.contains(word)) {
            return true;
        }
    }
    false
}

/// The text of a function, as rustfmt writes it: to the line with a brace below the beginning of its first line.
fn body(source: &str, name: &str) -> Option<String> {
    let mut lines = source.lines().skip_while(|line| {
        let Some((before, after)) = line.split_once("fn ") else { return true };
        let rest = after.strip_prefix(name);
        let is_name = rest.is_some_and(|rest| rest.starts_with(['(', '<']));
        !is_name || before.trim_start().starts_with("//")
    });
    let first = lines.next()?;
    let end = format!("{}}}", &first[..first.len() - first.trim_start().len()]);
    let mut text = format!("{first}\n");
    for line in lines.take_while(|line| *line != end) {
        text.push_str(line);
        text.push('\n');
    }
    Some(text)
}

/// Whether a function's text calls a function of this name.
fn calls(body: &str, name: &str) -> bool {
    places(body, name).next().is_some()
}

/// Where a function's text calls a function of this name: lines, and places in them.
fn places<'b>(body: &'b str, name: &str) -> impl Iterator<Item = (usize, usize)> + use<'b> {
    let call = format!("{name}(");
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    // Not the line that declares it.
    body.lines().enumerate().skip(1).flat_map(move |(number, line)| {
        let found = line.match_indices(&call).map(|(at, _)| at);
        let found = found.filter(|at| !line[..*at].ends_with(is_part) && !line[..*at].ends_with("fn "));
        found.map(|at| (number, at)).collect::<Vec<_>>()
    })
}

/// Where a function's text calls a function of a module by its path: lines, and places in them.
fn module_places(body: &str, module: &str) -> Vec<(usize, usize)> {
    let path = format!("{module}::");
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (number, line) in body.lines().enumerate().skip(1) {
        for (at, _) in line.match_indices(&path) {
            let function = &line[at + path.len()..];
            let rest = function.trim_start_matches(is_part);
            let is_function = function.starts_with(|c: char| c.is_ascii_lowercase()) && rest.starts_with('(');
            if is_function && !line[..at].ends_with(is_part) {
                found.push((number, at));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "fn turn() {\n    if x {\n        first(1);\n    }\n}\n\nfn first() {\n    second();\n}\n";
    const B: &str = "impl B {\n    pub fn second(&self) {\n        other_third();\n    }\n\n    fn third() {}\n}\n";

    fn page(walk: &str) -> String {
        format!("# A page\n\n```text\nnot.rs this\n```\n\n{HEADING}\n\nText.\n\n```text\n{walk}```\n")
    }

    fn found(walk: &str) -> Vec<String> {
        judge(&parse(&page(walk)), |file| match file {
            "gateway/proxy/src/a.rs" => Some(A.into()),
            "gateway/http/src/b.rs" => Some(B.into()),
            _ => None,
        })
    }

    #[test]
    fn each_function_calls_the_next() {
        let none: [String; 0] = [];
        assert_eq!(found("a.rs  turn → first → second    a remark\n\ngateway/http/src/b.rs  second\n"), none);
        // A call of `other_third` is none of `third`.
        assert_eq!(found("a.rs  turn → first → second\ngateway/http/src/b.rs  second → third\n").len(), 1);
        assert_eq!(found("a.rs  turn → second\n").len(), 1, "a step is left out");
        assert_eq!(found("a.rs  first → second\n").len(), 1, "nobody calls the first");
        assert_eq!(found("a.rs  turn → first\ngateway/http/src/b.rs  first\n").len(), 1, "it is in another file");
        assert_eq!(found("c.rs  turn\n").len(), 1, "there is no such file");
        assert_eq!(found("").len(), 1, "there is no walk");
    }

    #[test]
    fn no_file_is_left_out() {
        let source =
            |function: &str| format!("\nuse crate::beside::{{Type, third}};\nuse crate::relay::fourth;\n{function}");
        let found = |function: &str| {
            judge(&parse(&page("a.rs  turn\n")), |_| Some(source(&format!("\nfn turn() {{\n    {function}\n}}\n"))))
                .len()
        };
        assert_eq!(found("third(1);"), 1);
        assert_eq!(found("if x {\n        fourth(third);\n    }"), 0, "relays are beside, and a name alone is no call");
        assert_eq!(found("fourth(1);"), 1, "a plain request goes there, too");
    }

    #[test]
    fn functions_of_the_same_file_and_paths_are_followed() {
        let found = |function: &str, helper: &str| {
            let source = format!(
                "\nuse crate::beside;\nuse crate::exchange::other;\n\nfn turn() {{\n    {function}\n}}\n\nfn helper() {{\n    \
                 {helper}\n}}\n\n#[cfg(test)]\nmod tests {{}}\n"
            );
            judge(&parse(&page("a.rs  turn\n")), |_| Some(source.clone())).len()
        };
        assert_eq!(found("beside::go(1);", ""), 1);
        assert_eq!(found("helper();", "beside::go(1);"), 1);
        assert_eq!(
            found("helper();", "if x {\n        other::go();\n    }"),
            1,
            "it is not known to be beside the walk"
        );
        assert_eq!(found("if x {\n        helper();\n    }", "beside::go(1);"), 0, "a plain request does not go there");
        assert_eq!(found("helper();", "helper();"), 0, "one that calls itself");
        assert_eq!(found("helper();", "beside::Type(1);"), 0);
    }

    #[test]
    fn a_condition_is_before_a_call_or_around_it() {
        let judge = |text: &str| {
            let body = format!("fn turn() {{\n    {text}\n}}");
            let places: Vec<(usize, usize)> = places(&body, "go").collect();
            let [(line, at)] = places[..] else { panic!("{text}") };
            is_conditional(&body, line, at)
        };
        for conditional in [
            "if a && go() {",
            "let b = if a { go() } else { 1 };",
            "if a {\n        go();",
            "if a\n        && b\n    {\n        go();",
            "let Some(b) = a else {\n        return go();",
            "match a {\n        1 => go(),",
            "match a {\n        1 => {\n            f(\n                go(),",
            "loop {\n        if a {\n            go();",
        ] {
            assert!(judge(conditional), "{conditional}");
        }
        for plain in [
            "go();",
            "if !go() {",
            "let b = go();",
            "if a {\n        b();\n    }\n    go();",
            "loop {\n        if a {\n            b();\n        }\n        go();",
            "f(\n        go(),",
        ] {
            assert!(!judge(plain), "{plain}");
        }
    }

    #[test]
    fn the_walk_has_a_bound() {
        let walk: Vec<Stretch> =
            (0..=FILES).map(|n| Stretch { file: format!("{n}.rs"), functions: vec!["turn".into()] }).collect();
        let source = |_: &str| Some("fn turn() {}\n".into());
        assert_eq!(judge(&walk, source).len(), 1);
        assert_eq!(judge(&walk[1..], source).len(), 0);
    }
}
