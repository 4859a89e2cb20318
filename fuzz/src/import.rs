//! Configurations: nothing panics; of foreign ones every directive has an outcome, and what is not undecided is a configuration that
//! Sealane accepts.

use sealane_config::Document;
use sealane_import::{Failed, Imported, Memory, Outcome};
use std::borrow::Cow;
use std::net::SocketAddr;
use std::path::Path;

fn check(done: Result<Imported, Failed>) {
    let Ok(Imported { toml, report, .. }) = done else { return };
    let outcomes: usize = Outcome::ALL.iter().map(|o| report.count(*o)).sum();
    assert_eq!(outcomes, report.directives(), "a directive without an outcome");
    let _ = (report.to_short_text(), report.to_text(true), report.to_json());
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
        let reader = Memory::of("/f", data);
        check(sealane_import::nginx::import(&reader, Path::new("/f")));
        // With a second NGINX behind Sealane.
        let inner = Some(SocketAddr::from(([127, 0, 0, 1], 8081)));
        check(sealane_import::nginx::import_with(&reader, Path::new("/f"), inner));
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

/// A configuration of an OpenVPN server.
pub mod openvpn {
    use super::*;

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let done = sealane_import::openvpn::import(&Memory::of("/f", data), Path::new("/f"));
        if let Ok(imported) = &done {
            assert!(imported.toml.parse::<toml::Table>().is_ok(), "{}", imported.toml);
            assert!(imported.files.iter().all(|(name, _)| !name.contains('/')));
        }
        check(done);
    }
}

/// Profiles of OpenVPN name files: the paths of a fuzzer lead nowhere. The slashes of closing tags
/// stay.
fn without_paths(data: &[u8]) -> Option<Cow<'_, str>> {
    let text = std::str::from_utf8(data).ok()?;
    Some(Cow::Owned(text.replace("</", "<\u{1}").replace('/', "_").replace("<\u{1}", "</")))
}

/// A profile of an OpenVPN client.
pub mod profile {
    use super::*;

    /// Runs the target.
    pub fn fuzz_one(data: &[u8]) {
        let Some(text) = without_paths(data) else { return };
        let directives = sealane_ovpn::file::parse(&text);
        if let Ok(directives) = &directives {
            assert!(directives.len() <= text.lines().count() && directives.iter().all(|d| !d.words.is_empty()));
        }
        let profile = sealane_vpn::profile::Profile::parse(&text, Path::new("/nonexistent"));
        assert!(profile.is_err() || directives.is_ok());
    }
}
