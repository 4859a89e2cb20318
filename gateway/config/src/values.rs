//! Strings with values from elsewhere: `${env:NAME}`, `${env:NAME:-default}`, `${file:PATH}` and `${credential:NAME}`.
//!
//! They are put in place before the settings are read, so that every string may have them. `sealane config show` reads the text, and so
//! shows the reference and not the value; messages about mistakes have the values masked. `$${` stands for `${`. What only looks like a
//! reference is an error: otherwise the text of a misspelt reference to a secret would be the secret.

use super::decode::{self, Node};
use super::diagnostics::Sink;
use super::settings::{concurrency_limit, listener, log, rate_limit, top, upstream};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// Where systemd puts the credentials of a service.
const FOLDER: &str = "CREDENTIALS_DIRECTORY";
/// The longest value of a file or a credential, in bytes.
const MAX_VALUE: usize = 64 * 1024;
/// What references are to.
const WORDS: [&str; 3] = ["env", "file", "credential"];
/// What else people write for these words.
const ALIASES: [(&str, &str); 6] = [
    ("environment", "env"),
    ("var", "env"),
    ("path", "file"),
    ("cred", "credential"),
    ("creds", "credential"),
    ("secret", "credential"),
];

/// Where a value comes from.
#[derive(Debug, PartialEq, Eq)]
enum Reference<'a> {
    /// A variable of the environment, and its default.
    Variable(&'a str, Option<&'a str>),
    File(&'a str),
    Credential(&'a str),
    /// It has no end.
    Open,
    /// It is to something else: the text between the braces.
    Unknown(&'a str),
}

/// Replaces the references in a text by what `find` knows of them; those of which it knows nothing stay.
fn expand<E>(text: &str, mut find: impl FnMut(Reference<'_>) -> Result<Option<String>, E>) -> Result<String, E> {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("${") {
        let behind = &rest[at + 2..];
        if rest[..at].ends_with('$') {
            out.push_str(&rest[..at - 1]);
            out.push_str("${");
            rest = behind;
            continue;
        }
        out.push_str(&rest[..at]);
        let Some((inner, behind)) = behind.split_once('}') else {
            if let Some(value) = find(Reference::Open)? {
                out.push_str(&value);
            } else {
                out.push_str(&rest[at..]);
            }
            return Ok(out);
        };
        let reference = match inner.split_once(':') {
            Some(("env", name)) => match name.split_once(":-") {
                Some((name, default)) => Reference::Variable(name, Some(default)),
                None => Reference::Variable(name, None),
            },
            Some(("file", path)) => Reference::File(path),
            Some(("credential", name)) => Reference::Credential(name),
            _ => Reference::Unknown(inner),
        };
        match find(reference)? {
            Some(value) => out.push_str(&value),
            None => out.push_str(&rest[at..rest.len() - behind.len()]),
        }
        rest = behind;
    }
    out.push_str(rest);
    Ok(out)
}

/// Whether a text has a reference, or something that looks like one.
pub(super) fn has_reference(text: &str) -> bool {
    let found = expand(text, |_| Err(()));
    found.is_err()
}

/// The variables of the environment that a text asks for.
pub(super) fn variables(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let _: Result<_, ()> = expand(text, |reference| {
        match reference {
            Reference::Variable(name, _) => found.insert(name.to_owned()),
            Reference::Credential(_) => found.insert(FOLDER.to_owned()),
            Reference::File(_) | Reference::Open | Reference::Unknown(_) => false,
        };
        Ok(None)
    });
    found
}

/// A text with the variables of the environment in place.
pub(super) fn with_variables(text: &str, environment: &HashMap<String, String>) -> String {
    let found: Result<String, std::convert::Infallible> = expand(text, |reference| {
        Ok(match reference {
            Reference::Variable(name, default) => variable(environment, name).or(default).map(str::to_owned),
            _ => None,
        })
    });
    found.unwrap_or_else(|never| match never {})
}

/// The value of a variable. One that is empty counts as one that is not set, as for `${NAME:-default}` of a shell.
fn variable<'e>(environment: &'e HashMap<String, String>, name: &str) -> Option<&'e str> {
    environment.get(name).map(String::as_str).filter(|value| !value.is_empty())
}

/// Puts the values into a document. What is not known is an error; what is only not known yet stays as it is. So does every reference
/// offline: such a string is not judged.
pub(super) fn fill(sink: &Sink, document: &mut DeTable<'_>, environment: &HashMap<String, String>) {
    for (key, node) in document.iter_mut() {
        // The template of the access log has variables of its own in braces.
        match node.get_mut() {
            DeValue::Table(log) if **key.get_ref() == *top::log.key => {
                for (key, node) in log.iter_mut() {
                    fill_node(sink, node, environment, **key.get_ref() == *log::format.key);
                }
            }
            _ => fill_node(sink, node, environment, false),
        }
    }
    // What other settings refer to, by its name.
    let named = [
        (&top::listener.key, &[listener::address.key, listener::mode.key][..]),
        (&top::upstream.key, &[upstream::name.key][..]),
        (&top::rate_limit.key, &[rate_limit::name.key][..]),
        (&top::concurrency_limit.key, &[concurrency_limit::name.key][..]),
    ];
    for (kind, keys) in named {
        let tables: &[Node] = match document.get(*kind) {
            Some(node) => node.get_ref().as_array().map_or(std::slice::from_ref(node), |tables| &tables[..]),
            None => &[],
        };
        let is_unknown = |table: &Node| {
            let table = table.get_ref().as_table();
            keys.iter().any(|key| table.and_then(|t| t.get(*key)).is_some_and(|node| sink.is_deferred(&node.span())))
        };
        if tables.iter().any(is_unknown) {
            sink.has_unknown(kind);
        }
    }
}

fn fill_node(sink: &Sink, node: &mut Node<'_>, environment: &HashMap<String, String>, has_variables: bool) {
    let span = node.span();
    match node.get_mut() {
        DeValue::String(text) if text.contains("${") => {
            let mut is_complete = true;
            let filled = expand(text, |reference| match reference {
                Reference::Unknown(name) if has_variables && !name.contains(':') => Ok(None),
                reference => {
                    let value = value(sink, environment, reference)?;
                    is_complete &= value.is_some();
                    Ok(value)
                }
            });
            match filled {
                Ok(filled) => *text = filled.into(),
                Err((message, help)) => {
                    sink.error(&span, message, Some(help));
                    is_complete = false;
                }
            }
            if !is_complete {
                sink.defer(&span);
            }
        }
        DeValue::String(text) => {
            if let Some((message, help)) = without_braces(text) {
                sink.error(&span, message, Some(help));
                sink.defer(&span);
            }
        }
        DeValue::Array(nodes) => nodes.iter_mut().for_each(|node| fill_node(sink, node, environment, has_variables)),
        DeValue::Table(table) => {
            table.iter_mut().for_each(|(_, node)| fill_node(sink, node, environment, has_variables));
        }
        _ => {}
    }
}

/// What is wrong with a text that is a reference in the syntax of something else: `$env:NAME`, `{env:NAME}`, `%{env:NAME}`.
fn without_braces(text: &str) -> Option<(String, String)> {
    let inner = match text.strip_prefix('%').unwrap_or(text).strip_prefix('{') {
        Some(rest) => rest.strip_suffix('}')?,
        None => text.strip_prefix('$')?,
    };
    let (word, name) = inner.split_once(':')?;
    (WORDS.contains(&word) && !name.contains(['{', '}']))
        .then(|| (format!("\"{text}\" is not a reference"), format!("write \"${{{word}:{name}}}\"")))
}

/// What is wrong with `${inner}`.
fn unknown(inner: &str) -> (String, String) {
    let literal = format!("$${{{inner}}} for the text itself");
    let Some((word, name)) = inner.split_once(':') else {
        let is_name = !inner.is_empty() && inner.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let help = match is_name {
            true => format!(
                "write ${{env:{inner}}} for a variable of the environment, {{{inner}}} for a part of the request (where a setting \
                 has them), or {literal}"
            ),
            false => format!("write ${{env:NAME}}, ${{file:PATH}} or ${{credential:NAME}}, or {literal}"),
        };
        return (format!("\"${{{inner}}}\" is not a reference"), help);
    };
    let lower = word.trim().to_ascii_lowercase();
    let alias = ALIASES.iter().find(|(alias, _)| *alias == lower).map(|(_, word)| *word);
    let help = match alias.or_else(|| decode::nearest(&lower, WORDS.into_iter())) {
        Some(meant) => format!("write ${{{meant}:{}}}, or {literal}", name.trim()),
        None => format!("write ${{env:NAME}}, ${{file:PATH}} or ${{credential:NAME}}, or {literal}"),
    };
    (format!("\"${{{inner}}}\" is not a reference: there are no references to \"{word}\""), help)
}

fn value(
    sink: &Sink,
    environment: &HashMap<String, String>,
    reference: Reference<'_>,
) -> Result<Option<String>, (String, String)> {
    match reference {
        Reference::Open => Err((
            "a reference has no \"}\" at its end".to_owned(),
            "write ${env:NAME}, ${file:PATH} or ${credential:NAME}, or $${ for the text \"${\"".to_owned(),
        )),
        Reference::Unknown(inner) => Err(unknown(inner)),
        Reference::Variable(name, _) if !is_variable(name) => {
            let help = "write the name of a variable of the environment, as in ${env:TOKEN}".to_owned();
            Err((format!("\"{name}\" is not the name of a variable"), help))
        }
        Reference::File("") => {
            Err(("a reference names no file".to_owned(), "write its path, as in ${file:secrets/token}".to_owned()))
        }
        Reference::Credential(name) if name.is_empty() || name.contains('/') => {
            let help = "write the name that LoadCredential= of the systemd unit gives it".to_owned();
            Err((format!("\"{name}\" is not the name of a credential"), help))
        }
        Reference::Variable(..) if !sink.replaces_variables => Ok(None),
        Reference::File(_) | Reference::Credential(_) if sink.offline() => Ok(None),
        Reference::Variable(name, default) => match variable(environment, name) {
            Some(value) => {
                // Short ones are ports and names; a message without them would say nothing.
                sink.mask(value, 8);
                Ok(Some(value.to_owned()))
            }
            None => default.map(|default| Some(default.to_owned())).ok_or_else(|| {
                let help = format!("set it for the gateway, or write a default: ${{env:{name}:-default}}");
                let message = match environment.contains_key(name) {
                    true => format!("the variable \"{name}\" of the environment is empty"),
                    false => format!("the environment has no variable \"{name}\""),
                };
                (message, help)
            }),
        },
        Reference::File(path) => content(sink, &sink.base.join(path)),
        Reference::Credential(name) => match environment.get(FOLDER) {
            Some(folder) => content(sink, &Path::new(folder).join(name)),
            None => {
                let help = format!("add LoadCredential={name}:PATH to the systemd unit, or write ${{file:PATH}}");
                Err((format!("there is no credential \"{name}\": {FOLDER} is not set"), help))
            }
        },
    }
}

/// Whether a variable of the environment can have this name.
fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// The text of a file, without the end of its last line.
fn content(sink: &Sink, path: &Path) -> Result<Option<String>, (String, String)> {
    sink.names_file(path);
    let shown = path.display();
    let content = match sink.content(path) {
        None => return Ok(None),
        Some(Err(unreadable)) => {
            let help = unreadable.help.clone().unwrap_or_else(|| "write the path of a text file".to_owned());
            return Err((format!("cannot read {shown}: {}", unreadable.why), help));
        }
        Some(Ok(content)) => &content.bytes[..],
    };
    let text = content.strip_suffix(b"\n").unwrap_or(content);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    match std::str::from_utf8(text) {
        // A secret that is being written, perhaps.
        Ok("") => Err((
            format!("the file {shown} is empty"),
            "write the value into the file; for an empty value, write no reference".to_owned(),
        )),
        Ok(text) if text.len() <= MAX_VALUE => {
            sink.mask(text, 4);
            Ok(Some(text.to_owned()))
        }
        _ => Err((
            format!("{shown} is not a text of at most {} KiB", MAX_VALUE / 1024),
            "is this the right file?".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answers, Content, Document, Reading};
    use zeroize::Zeroizing;

    fn environment(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn references_are_found_and_others_stay() {
        let known = environment(&[("A", "1"), ("B", "${env:A}"), ("E", "")]);
        for (text, filled) in [
            ("", ""),
            ("a${env:A}b${env:A}", "a1b1"),
            ("${env:B}", "${env:A}"),
            ("${env:C}", "${env:C}"),
            ("${env:C:-x:-y}", "x:-y"),
            ("${env:A:-x}", "1"),
            ("${file:/x} ${status} $A {1} ${", "${file:/x} ${status} $A {1} ${"),
            ("${env:A", "${env:A"),
            ("$${env:A} $$${env:A} $$", "${env:A} $${env:A} $$"),
            ("${env:E:-x}${env:E}", "x${env:E}"),
        ] {
            assert_eq!(with_variables(text, &known), filled, "{text}");
        }
        let names: Vec<String> = variables("${env:B:-x} # ${env:A}\n${credential:c}${env:").into_iter().collect();
        assert_eq!(names, ["A", "B", FOLDER]);
    }

    const TEXT: &str = "[[listener]]\naddress = \"127.0.0.1:${env:PORT:-80}\"\n[[host]]\nnames = [\"*\"]\n\
                        respond = { status = 200, body = \"${file:body.txt}-${credential:c}\" }\n";

    /// What is said of the text, with these files.
    fn said(text: &str, known: &[(&str, &str)], files: &[(&str, &[u8])]) -> String {
        let document = Document::of_file(Path::new("/etc/x.toml"), text.as_bytes()).unwrap();
        let document = document.with_environment(environment(known));
        let mut answers = Answers::default();
        for (path, bytes) in files {
            let content = Content { bytes: Zeroizing::new(bytes.to_vec()), mode: 0o600, print: None };
            answers.contents.insert(path.into(), Ok(content));
        }
        answers.ipv6 = Some(true);
        match document.read(&answers, None) {
            Reading::Asks(questions) => format!("asks {questions:?}"),
            Reading::Done(done) => {
                done.map_or_else(|e| e.to_string(), |read| format!("{:?}", read.0.listeners[0].actions))
            }
        }
    }

    #[test]
    fn values_come_from_the_environment_from_files_and_from_credentials() {
        let folder = (FOLDER, "/run/c");
        let files: [(&str, &[u8]); 2] = [("/etc/body.txt", b"hello\r\n"), ("/run/c/c", b"secret")];
        let served = said(TEXT, &[folder], &files);
        assert!(served.contains("hello-secret") || served.contains(&format!("{:?}", b"hello-secret")), "{served}");
        assert!(said(TEXT, &[folder], &[]).starts_with("asks "));
        let refused = said(TEXT, &[], &files);
        assert!(refused.contains("x.toml:5:") && refused.contains("there is no credential \"c\""), "{refused}");
        let refused = said(TEXT, &[folder], &[("/etc/body.txt", b"\xff"), ("/run/c/c", b"")]);
        assert!(refused.contains("/etc/body.txt is not a text"), "{refused}");
        let refused = said(&TEXT.replace(":-80", ""), &[folder], &files);
        assert!(refused.contains("x.toml:2:") && refused.contains("no variable \"PORT\""), "{refused}");
        assert!(said(&TEXT.replace("-80}", "-80"), &[folder], &files).contains("no \"}\" at its end"));
    }

    #[test]
    fn what_only_looks_like_a_reference_is_an_error_in_every_string() {
        let literal = |text: &str| format!("or ${text} for the text itself");
        let all = "write ${env:NAME}, ${file:PATH} or ${credential:NAME}";
        for (written, message, help) in [
            ("${evn:SECRET}", "there are no references to \"evn\"", "write ${env:SECRET}"),
            ("${credentials:x}", "there are no references to \"credentials\"", "write ${credential:x}"),
            ("${ENV:X}", "there are no references to \"ENV\"", "write ${env:X}"),
            ("${ env:X}", "there are no references to \" env\"", "write ${env:X}"),
            ("${secret:x}", "there are no references to \"secret\"", "write ${credential:x}"),
            ("${vault:x}", "there are no references to \"vault\"", all),
            ("${X}", "\"${X}\" is not a reference", "write ${env:X} for a variable of the environment, {X} for a part"),
            ("${}", "\"${}\" is not a reference", all),
        ] {
            for setting in [
                format!("respond = {{ body = \"a {written}\" }}"),
                format!("respond = {{ body = \"x\" }}\nallow_header = {{ X-Edge = [\"{written}\"] }}"),
                format!("respond = {{ body = \"x\" }}\nresponse_headers = {{ set = {{ X-A = \"{written}\" }} }}"),
                format!("redirect = \"https://x/{written}\""),
            ] {
                let text = format!("[[listener]]\naddress = \":80\"\n[[host]]\nnames = [\"*\"]\n{setting}\n");
                let told = said(&text, &[], &[]);
                assert!(told.contains(message) && told.contains(help), "{setting}: {told}");
                assert!(told.contains(&literal(written)) && told.contains("x.toml:"), "{setting}: {told}");
                assert_eq!(told.matches("error:").count(), 1, "{setting}: {told}");
            }
        }
        let of = |setting: &str| format!("[[listener]]\naddress = \":80\"\n[[host]]\nnames = [\"*\"]\n{setting}\n");
        let body = |body: &str| of(&format!("respond = {{ body = \"{body}\" }}"));
        for written in ["$env:X", "{env:X}", "%{env:X}"] {
            let told = said(&body(written), &[], &[]);
            assert!(told.contains("is not a reference") && told.contains("write \"${env:X}\""), "{written}: {told}");
        }
        let told = said(&body("a ${b"), &[], &[]);
        assert!(told.contains("no \"}\" at its end") && told.contains("$${ for the text"), "{told}");
        // How such a text is written, and what is not for this module.
        for (setting, wanted) in [
            ("respond = { body = \"<$${evn:X}> $1 {1} {path}\" }", "<${evn:X}> $1 {1} {path}"),
            ("redirect = \"https://x{path}\"\n[log]\nformat = \"$status ${request_time}s\"", "Redirect"),
            ("redirect = \"https://x{path}\"\n[log]\nformat = \"$status ${request_time}s ${env:X:-y}\"", "Redirect"),
        ] {
            let told = said(&of(setting), &[], &[]);
            let bytes = format!("{:?}", wanted.as_bytes());
            assert!(told.contains(wanted) || told.contains(bytes.trim_matches(['[', ']'])), "{setting}: {told}");
        }
        let told = said(&of("redirect = \"https://x{path}\"\n[log]\nformat = \"$status ${evn:X}\""), &[], &[]);
        assert!(told.contains("there are no references to \"evn\""), "{told}");
    }

    #[test]
    fn an_empty_value_is_an_error() {
        let text = "[[listener]]\naddress = \":80\"\n[[host]]\nnames = [\"*\"]\nrespond = { status = 204 }\n";
        let empty: [(&str, &[u8]); 2] = [("/etc/e", b"\n"), ("/c/e", b"")];
        let variables = [("E", ""), (FOLDER, "/c")];
        for (value, message, help) in [
            ("${env:E}", "the variable \"E\" of the environment is empty", "write a default: ${env:E:-default}"),
            ("key=${env:E}", "the variable \"E\" of the environment is empty", "write a default"),
            ("${file:e}", "/etc/e is empty", "write the value into the file"),
            ("key=${file:e}", "/etc/e is empty", "write the value into the file"),
            ("${credential:e}", "/c/e is empty", "write the value into the file"),
            ("${env:E:-}", "\"X-Edge\" has an empty value", "write false: the header is absent"),
            ("", "\"X-Edge\" has an empty value", "write false: the header is absent"),
        ] {
            for setting in ["allow_header", "deny_header"] {
                let told = said(&format!("{text}{setting} = {{ X-Edge = [\"{value}\"] }}\n"), &variables, &empty);
                assert!(told.contains(message) && told.contains(help), "{setting} {value}: {told}");
            }
        }
        for setting in ["allow_header", "deny_header"] {
            let told = said(&format!("{text}{setting} = {{}}\n"), &[], &[]);
            assert!(told.contains(&format!("\"{setting}\" is empty")) && told.contains("add a header"), "{told}");
        }
    }

    #[test]
    fn a_value_is_in_no_message_and_not_in_what_is_shown() {
        let text = TEXT.replace("127.0.0.1:${env:PORT:-80}", "${file:secret.txt}");
        let refused = said(
            &text,
            &[(FOLDER, "/c")],
            &[("/etc/secret.txt", b"hunter2000"), ("/etc/body.txt", b"b"), ("/c/c", b"")],
        );
        assert!(refused.contains("***") && !refused.contains("hunter2000"), "{refused}");
        let document = Document::of_file(Path::new("/etc/x.toml"), TEXT.as_bytes()).unwrap();
        let document = document.with_environment(environment(&[("PORT", "8443"), (FOLDER, "/c")]));
        let shown = crate::Effective::of_document(&document).unwrap().0.to_toml();
        assert!(shown.contains("${env:PORT:-80}") && !shown.contains("8443"), "{shown}");
    }
}
