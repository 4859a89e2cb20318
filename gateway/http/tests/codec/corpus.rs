//! Every case of `corpus/`, in one piece, cut in two at every byte, and byte by byte.

use crate::session::{Side, transcript};
use sealane_http::Method;
use std::collections::HashSet;
use std::path::Path;

struct Case {
    name: String,
    side: Side,
    input: Vec<u8>,
    verdict: String,
}

fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        if b != b'\\' {
            out.push(b);
            continue;
        }
        out.push(match bytes.next() {
            Some(b'r') => b'\r',
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'0') => 0,
            Some(b'\\') => b'\\',
            Some(b'x') => {
                let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            other => panic!("unknown escape {other:?} in {text}"),
        });
    }
    out
}

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut all: Vec<Case> = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "txt") {
            continue;
        }
        let side = if path.ends_with("responses.txt") { Side::Responses(Method::Get) } else { Side::Requests };
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            if let Some(name) = line.strip_prefix("== ") {
                all.push(Case { name: name.to_owned(), side, input: Vec::new(), verdict: String::new() });
                continue;
            }
            let Some(case) = all.last_mut() else { continue };
            if let Some(method) = line.strip_prefix("? ") {
                case.side = Side::Responses(Method::lookup(method.as_bytes()));
            } else if line == "|" {
                case.input.extend_from_slice(b"\r\n");
            } else if let Some(text) = line.strip_prefix("| ") {
                case.input.extend_from_slice(&unescape(text));
                case.input.extend_from_slice(b"\r\n");
            } else if let Some(text) = line.strip_prefix("> ") {
                case.input.extend_from_slice(&unescape(text));
            } else if let Some(verdict) = line.strip_prefix("= ") {
                assert!(case.verdict.is_empty(), "{}: two verdicts", case.name);
                case.verdict = verdict.to_owned();
            }
        }
    }
    all
}

#[test]
fn verdicts() {
    let cases = cases();
    let mut wrong = String::new();
    for case in &cases {
        let got = transcript(case.side, &[&case.input]);
        if got != case.verdict {
            wrong += &format!("{}\n  want {}\n  got  {got}\n", case.name, case.verdict);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    let names: HashSet<_> = cases.iter().map(|c| &c.name).collect();
    assert_eq!(names.len(), cases.len(), "two cases of one name");
    assert!(cases.len() >= 350, "only {} cases were found", cases.len());
}

#[test]
fn verdicts_do_not_depend_on_how_the_bytes_come() {
    for case in cases() {
        for at in 0..=case.input.len() {
            let (a, b) = case.input.split_at(at);
            assert_eq!(transcript(case.side, &[a, b]), case.verdict, "{} cut at {at}", case.name);
        }
        let bytes: Vec<&[u8]> = case.input.chunks(1).collect();
        assert_eq!(transcript(case.side, &bytes), case.verdict, "{} byte by byte", case.name);
    }
}
