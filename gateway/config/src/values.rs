//! Strings with values from elsewhere: `${env:NAME}`, `${env:NAME:-default}`, `${file:PATH}` and `${credential:NAME}`.
//!
//! They are put in place before the settings are read, so that every string may have them. `sealane config show` reads the text, and so
//! shows the reference and not the value; messages about mistakes have the values masked.

use super::decode::Node;
use super::diagnostics::Sink;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// Where systemd puts the credentials of a service.
const FOLDER: &str = "CREDENTIALS_DIRECTORY";
/// The longest value of a file or a credential, in bytes.
const MAX_VALUE: usize = 64 * 1024;
/// What begins a reference.
const STARTS: [&str; 3] = ["${env:", "${file:", "${credential:"];

/// Where a value comes from.
#[derive(Debug, PartialEq, Eq)]
enum Reference<'a> {
    /// A variable of the environment, and its default.
    Variable(&'a str, Option<&'a str>),
    File(&'a str),
    Credential(&'a str),
    /// It has no end.
    Open,
}

/// Replaces the references in a text by what `find` knows of them; those of which it knows nothing stay.
fn expand<E>(text: &str, mut find: impl FnMut(Reference<'_>) -> Result<Option<String>, E>) -> Result<String, E> {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((at, kind)) = next(rest) {
        out.push_str(&rest[..at]);
        let inner = &rest[at + STARTS[kind].len()..];
        let Some((name, behind)) = inner.split_once('}') else {
            find(Reference::Open)?;
            out.push_str(&rest[at..]);
            return Ok(out);
        };
        let reference = match kind {
            0 => match name.split_once(":-") {
                Some((name, default)) => Reference::Variable(name, Some(default)),
                None => Reference::Variable(name, None),
            },
            1 => Reference::File(name),
            _ => Reference::Credential(name),
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

/// The first reference of a text, and which of [`STARTS`] it is.
fn next(text: &str) -> Option<(usize, usize)> {
    let kind_at = |at: usize| STARTS.iter().position(|start| text[at..].starts_with(start)).map(|kind| (at, kind));
    text.match_indices("${").find_map(|(at, _)| kind_at(at))
}

/// Whether a text has a reference.
pub(super) fn has_reference(text: &str) -> bool {
    next(text).is_some()
}

/// The variables of the environment that a text asks for.
pub(super) fn variables(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let _: Result<_, ()> = expand(text, |reference| {
        match reference {
            Reference::Variable(name, _) => found.insert(name.to_owned()),
            Reference::Credential(_) => found.insert(FOLDER.to_owned()),
            Reference::File(_) | Reference::Open => false,
        };
        Ok(None)
    });
    found
}

/// A text with the variables of the environment in place.
pub(super) fn with_variables(text: &str, environment: &HashMap<String, String>) -> String {
    let found: Result<String, std::convert::Infallible> = expand(text, |reference| {
        Ok(match reference {
            Reference::Variable(name, default) => environment.get(name).cloned().or(default.map(str::to_owned)),
            _ => None,
        })
    });
    found.unwrap_or_else(|never| match never {})
}

/// Puts the values into a table. What is not known is an error; what is only not known yet, or offline, stays as it is.
pub(super) fn fill(sink: &Sink, table: &mut DeTable<'_>, environment: &HashMap<String, String>) {
    for (_, node) in table.iter_mut() {
        fill_node(sink, node, environment);
    }
}

fn fill_node(sink: &Sink, node: &mut Node<'_>, environment: &HashMap<String, String>) {
    let span = node.span();
    match node.get_mut() {
        DeValue::String(text) if next(text).is_some() => {
            let filled = expand(text, |reference| value(sink, environment, reference));
            match filled {
                Ok(filled) => *text = filled.into(),
                Err((message, help)) => sink.error(&span, message, Some(help)),
            }
        }
        DeValue::Array(nodes) => nodes.iter_mut().for_each(|node| fill_node(sink, node, environment)),
        DeValue::Table(table) => fill(sink, table, environment),
        _ => {}
    }
}

fn value(
    sink: &Sink,
    environment: &HashMap<String, String>,
    reference: Reference<'_>,
) -> Result<Option<String>, (String, String)> {
    match reference {
        Reference::Open => Err((
            "a reference has no \"}\" at its end".to_owned(),
            "write ${env:NAME}, ${file:PATH} or ${credential:NAME}".to_owned(),
        )),
        Reference::Variable(name, default) => match environment.get(name) {
            Some(value) => {
                // Short ones are ports and names; a message without them would say nothing.
                sink.mask(value, 8);
                Ok(Some(value.clone()))
            }
            None => default.map(|default| Some(default.to_owned())).ok_or_else(|| {
                let help = format!("set it for the gateway, or write a default: ${{env:{name}:-default}}");
                (format!("the environment has no variable \"{name}\""), help)
            }),
        },
        Reference::File(path) => content(sink, &sink.base.join(path)),
        Reference::Credential(name) if name.is_empty() || name.contains('/') => {
            let help = "write the name that LoadCredential= of the systemd unit gives it".to_owned();
            Err((format!("\"{name}\" is not the name of a credential"), help))
        }
        Reference::Credential(name) => match environment.get(FOLDER) {
            Some(folder) => content(sink, &Path::new(folder).join(name)),
            None if sink.offline() => Ok(None),
            None => {
                let help = format!("add LoadCredential={name}:PATH to the systemd unit, or write ${{file:PATH}}");
                Err((format!("there is no credential \"{name}\": {FOLDER} is not set"), help))
            }
        },
    }
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
        let known = environment(&[("A", "1"), ("B", "${env:A}")]);
        for (text, filled) in [
            ("", ""),
            ("a${env:A}b${env:A}", "a1b1"),
            ("${env:B}", "${env:A}"),
            ("${env:C}", "${env:C}"),
            ("${env:C:-x:-y}", "x:-y"),
            ("${env:A:-x}", "1"),
            ("${file:/x} ${status} $A {1} ${", "${file:/x} ${status} $A {1} ${"),
            ("${env:A", "${env:A"),
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
