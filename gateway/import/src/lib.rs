//! Configurations of NGINX, HAProxy and OpenVPN servers as a configuration of Sealane, with a report on every directive.
//!
//! ```text
//!  file ─▶ lexer ─▶ parser (includes, sections) ─▶ translation ─▶ Output ─▶ sealane.toml, with file:line beside each setting
//!                       │                              │
//!                       └── a record per directive ────┴──▶ Report: the same, different, not translated, undecided
//! ```
//!
//! No directive is passed over: each one that the parser reads has a record, and a record without an outcome gets that of its
//! table ([`nginx::DIRECTIVES`], [`haproxy::KEYWORDS`], [`openvpn::DIRECTIVES`]). A directive that decides who may connect or how strong the protection is,
//! and that cannot be translated, is *undecided*: it stands under `undecided` in the result, which does not start before a person
//! has taken it out. A directive that is not known is undecided, too.
//!
//! Files are opened through a [`Reader`] only, so the crate can be tested and fuzzed without a file system. `sealane import`
//! (`gateway/sealane`) is its caller.

mod addresses;
mod ciphers;
pub mod haproxy;
pub mod nginx;
pub mod openvpn;
mod output;
mod parsed;
mod paths;
mod patterns;
mod reader;
mod reference;
mod report;
mod servers;
mod units;
mod values;

pub use parsed::Parsed;
pub use reader::{Memory, Reader};
pub use reference::reference;
pub use report::{Outcome, Place, Report};

use sealane_config::Document;
use std::path::Path;

/// What an import has led to.
#[derive(Debug)]
pub struct Imported {
    /// The configuration.
    pub toml: String,
    /// What became of each directive.
    pub report: Report,
    /// Files that the configuration names, and that belong beside it: names and contents.
    pub files: Vec<(String, Vec<u8>)>,
}

/// Why there is no result: the file cannot be read, or is not what it is said to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Where.
    pub place: Place,
    /// What is wrong.
    pub what: String,
}

impl Failed {
    fn new(place: &Place, what: impl Into<String>) -> Self {
        Self { place: place.clone(), what: what.into() }
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl std::error::Error for Failed {}

/// What a table says about a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is translated, wholly or in part: this is what it becomes.
    Translated(&'static str),
    /// Nothing takes its place, because nothing has to: this is why.
    NotNeeded(&'static str),
    /// There is nothing for it: do this instead.
    Missing(&'static str),
    /// It decides who may connect, or how strong the protection is, and there is nothing for it: do this instead.
    Undecided(&'static str),
}

/// Writes the result, and has it checked: a result that Sealane refuses is undecided.
fn finish(out: output::Output, mut report: Report, main: &Path) -> Imported {
    let toml = out.to_toml(&report);
    if report.count(Outcome::Undecided) > 0 {
        return Imported { toml, report, files: out.files };
    }
    let checked = Document::of_file(Path::new("sealane.toml"), toml.as_bytes()).and_then(|d| d.read_offline());
    let Err(errors) = checked else { return Imported { toml, report, files: out.files } };
    let place = Place::new(&main.to_string_lossy(), 1);
    for error in errors.errors {
        let id = report.record(place.clone(), "the whole file".to_owned());
        let help = error.help.map_or_else(String::new, |help| format!("; {help}"));
        report.decide(id, format!("Sealane refuses the translation: {}{help}", error.message));
    }
    Imported { toml: out.to_toml(&report), report, files: out.files }
}
