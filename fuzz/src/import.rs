//! Imports: nothing panics, every directive has an outcome, and what is not undecided is a configuration that Sealane accepts.

use sealane_config::Document;
use sealane_import::{Failed, Imported, Memory, Outcome};
use std::path::Path;

fn check(done: Result<Imported, Failed>) {
    let Ok(Imported { toml, report }) = done else { return };
    let outcomes: usize = Outcome::ALL.iter().map(|o| report.count(*o)).sum();
    assert_eq!(outcomes, report.directives(), "a directive without an outcome");
    let _ = (report.to_text(true), report.to_json());
    // What is undecided has an entry, which is an error; all else is read as `check --offline` reads it.
    if report.count(Outcome::Undecided) > 0 {
        return assert!(toml.contains("\nundecided = [\n"), "{toml}");
    }
    let read = Document::of_file(Path::new("sealane.toml"), toml.as_bytes()).expect("it is UTF-8").read_offline();
    assert!(read.is_ok(), "{toml}");
}

/// A configuration of NGINX; `include /f` includes it again.
pub mod nginx {
    use super::*;

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        check(sealane_import::nginx::import(&Memory::of("/f", data), Path::new("/f")));
    }
}

/// A configuration of HAProxy.
pub mod haproxy {
    use super::*;

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        check(sealane_import::haproxy::import(&Memory::of("/f", data), Path::new("/f")));
    }
}

/// The gateway's own configuration: it is accepted, or refused with messages that name a place in it.
pub mod config {
    use super::*;

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let Ok(document) = Document::of_file(Path::new("sealane.toml"), data) else { return };
        if let Err(errors) = document.read_offline() {
            assert!(!errors.to_string().is_empty());
        }
    }
}
