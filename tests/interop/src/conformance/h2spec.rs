//! h2spec: the cases of RFC 9113 and RFC 7541.

use super::Case;
use crate::backend::Backend;
use crate::gateway::{Gateway, before};
use crate::peers::Said;
use crate::process::run_within;
use crate::site::Site;
use crate::{SETUP, peers};
use std::path::Path;
use std::process::Command;

/// The gateways: with TLS, and with HTTP/2 by prior knowledge.
pub const GATEWAYS: [&str; 2] = ["tls", "plain"];

/// Starts one of [`GATEWAYS`], with a server that answers.
pub fn gateway(site: &Site, name: &str) -> (Gateway, Backend) {
    // Some cases look at DATA, so that the answer is longer than a frame.
    let backend = Backend::saying(&"x".repeat(40_000));
    let setup = before(site, [backend.url()]);
    let setup = if name == "plain" { setup.plain().listener("h2c = true") } else { setup };
    (setup.start(), backend)
}

/// Runs all cases. The error says why there is no h2spec, or what it said instead of results.
pub fn run(program: &Path, gateway: &Gateway, name: &str) -> Result<Vec<Case>, String> {
    let mut command = Command::new(program);
    let port = gateway.address.port().to_string();
    if name == "tls" {
        command.args(["-t", "-k"]);
    }
    command.args(["-h", "127.0.0.1", "-p", &port, "-o", "5", "--max-header-length", "16000"]);
    let said: Said = run_within(&mut command, b"", SETUP).into();
    let cases = cases(&said.text());
    if cases.is_empty() { Err(said.all()) } else { Ok(cases) }
}

/// h2spec, built once.
pub fn program() -> Result<std::path::PathBuf, String> {
    peers::h2spec()
}

/// What it prints: headings, below them the cases. The failed ones are listed again at the end, with what was expected.
fn cases(text: &str) -> Vec<Case> {
    // Only escape sequences for colours are removed: the marks stay.
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    let (results, failures) = plain.split_once("\nFailures:").unwrap_or((&plain, ""));
    let mut found = Vec::new();
    let mut heading = String::new();
    for line in results.lines() {
        // A case is printed once without a mark, and then, behind a carriage return, with one.
        let text = line.rsplit('\r').next().unwrap_or(line).trim();
        let case = ["✔ ", "✓ ", "× ", "✘ "].iter().find_map(|mark| text.strip_prefix(mark).map(|name| (*mark, name)));
        match case {
            Some((mark, name)) => {
                let passed = matches!(mark, "✔ " | "✓ ");
                let result = if passed { Ok(()) } else { Err(said_of(failures, name)) };
                found.push(Case { name: format!("{heading} / {name}"), result });
            }
            // `3.5. HTTP/2 Connection Preface`
            None if text.starts_with(|first: char| first.is_ascii_digit()) => heading = text.to_owned(),
            None => {}
        }
    }
    found
}

/// What is said of a failed case below "Failures", in one line.
fn said_of(failures: &str, name: &str) -> String {
    let mut lines = failures.lines().map(str::trim).skip_while(|line| !line.ends_with(name)).skip(1);
    let said: Vec<&str> = lines.by_ref().take_while(|line| !line.is_empty() && !line.starts_with('×')).collect();
    if said.is_empty() { "failed".to_owned() } else { said.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read() {
        let text = "Generic tests for HTTP/2 server\n  1. Starting HTTP/2\n  \u{1b}[90m1: Sends a client connection preface\u{1b}[0m\r    \u{1b}[32m✔\u{1b}[0m \u{1b}[90m1: Sends a client connection preface\u{1b}[0m\n\n\
                    Hypertext Transfer Protocol Version 2 (HTTP/2)\n  3. Starting HTTP/2\n    3.5. HTTP/2 Connection Preface\n      \
                    ✔ 1: Sends client connection preface\n      × 2: Sends invalid connection preface\n\
                    \nFailures: \n\nHypertext\n  3. Starting HTTP/2\n    3.5. HTTP/2 Connection Preface\n      × 2: Sends invalid connection preface\n\
                    \x20       -> The endpoint MUST\n           Expected: GOAWAY Frame\n             Actual: DATA\n\n\
                    Finished in 0.1 seconds\n3 tests, 2 passed, 0 skipped, 1 failed\n";
        let found = cases(text);
        let names: Vec<&str> = found.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "1. Starting HTTP/2 / 1: Sends a client connection preface",
                "3.5. HTTP/2 Connection Preface / 1: Sends client connection preface",
                "3.5. HTTP/2 Connection Preface / 2: Sends invalid connection preface"
            ]
        );
        let why = "-> The endpoint MUST Expected: GOAWAY Frame Actual: DATA";
        assert_eq!(found[2].result, Err(why.to_owned()));
        assert!(found[..2].iter().all(|case| case.result.is_ok()));
    }
}
