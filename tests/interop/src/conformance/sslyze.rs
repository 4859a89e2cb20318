//! sslyze: the check against Mozilla's TLS configurations, which includes a scan for known attacks.

use super::Case;
use crate::SETUP;
use crate::backend::Backend;
use crate::gateway::{Gateway, before};
use crate::peers::Said;
use crate::process::run_within;
use crate::site::{self, Site};
use std::path::Path;
use std::process::Command;

/// The presets of the gateway, and the configuration of Mozilla that each is checked against.
pub const PRESETS: [&str; 2] = ["modern", "intermediate"];

/// The package that is needed.
pub const PACKAGE: &str = "sslyze==6.3.1";

/// Starts a gateway with a preset. Its certificate is what Mozilla demands: ECDSA P-256, valid for 90 days.
pub fn gateway(site: &Site, preset: &str) -> (Gateway, Backend) {
    let backend = Backend::saying("hello");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let identity = site.issue_within(&format!("sslyze-{preset}"), &[site::HOST], now - 86_400, now + 89 * 86_400);
    let setup = before(site, [backend.url()]).identities(&[&identity]).tls(&format!("preset = \"{preset}\""));
    (setup.start(), backend)
}

/// What sslyze checks, by its names.
const CRITERIA: &[&str] = &[
    "certificate_types",
    "certificate_curves",
    "certificate_signatures",
    "certificate_path_validation",
    "maximum_certificate_lifespan",
    "rsa_key_size",
    "tls_versions",
    "ciphersuites",
    "ciphers",
    "ecdh_param_size",
    "dh_param_size",
    "tls_curves",
    "tls_vulnerability_compression",
    "tls_vulnerability_ccs_injection",
    "tls_vulnerability_fallback_scsv",
    "tls_vulnerability_heartbleed",
    "tls_vulnerability_robot",
    "tls_vulnerability_renegotiation",
    "tls_vulnerability_extended_master_secret",
];

/// Scans a gateway, and keeps what sslyze says in `log`. The error is what it said instead of a verdict.
pub fn run(python: &Path, gateway: &Gateway, preset: &str, log: &Path) -> Result<Vec<Case>, String> {
    let mut command = Command::new(python);
    command.args(["-m", "sslyze", "--mozilla_config", preset, "--certinfo_ca_file"]).arg(gateway.ca());
    command.args(["--sni", site::HOST]).arg(gateway.address.to_string());
    let said: Said = run_within(&mut command, b"", SETUP).into();
    std::fs::write(log, said.all()).map_err(|error| format!("{}: {error}", log.display()))?;
    cases(&said.text()).ok_or_else(|| said.all())
}

/// One case for each criterion, from the verdict at the end of what sslyze prints: `OK - Compliant`, or the criteria that are not met.
fn cases(text: &str) -> Option<Vec<Case>> {
    let mut lines = text.lines().map(str::trim);
    let verdict = lines.find(|line| line.contains(": OK - Compliant") || line.contains(": FAILED - Not compliant"))?;
    let complaints: Vec<(&str, &str)> = match verdict.contains(": OK") {
        true => Vec::new(),
        false => lines.filter_map(|line| line.strip_prefix("* ")?.split_once(": ")).collect(),
    };
    let result = |name: &str| match complaints.iter().find(|(criterion, _)| *criterion == name) {
        None => Ok(()),
        Some((_, complaint)) => Err((*complaint).to_owned()),
    };
    let unknown = complaints.iter().map(|(name, _)| *name).filter(|name| !CRITERIA.contains(name));
    let names = CRITERIA.iter().copied().chain(unknown);
    Some(names.map(|name| Case { name: name.to_owned(), result: result(name) }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read() {
        let good = cases(" COMPLIANCE\n    127.0.0.1:1: OK - Compliant.\n").expect("a verdict");
        assert!(good.len() == CRITERIA.len() && good.iter().all(|case| case.result.is_ok()));
        let bad = "    127.0.0.1:1: FAILED - Not compliant.\n        * ciphers: Cipher suites {'X'} are supported.\n        * new: bad\n";
        let bad = cases(bad).expect("a verdict");
        let failed: Vec<&str> = bad.iter().filter(|c| c.result.is_err()).map(|c| c.name.as_str()).collect();
        assert_eq!(failed, ["ciphers", "new"]);
        assert!(cases("cannot connect").is_none());
    }
}
