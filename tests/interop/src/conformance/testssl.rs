//! testssl.sh: the grade that SSL Labs gives a server (SSL Server Rating Guide), and known attacks.

use super::Case;
use crate::SETUP;
use crate::backend::Backend;
use crate::gateway::{Gateway, before};
use crate::process::run_within;
use crate::site::{self, Site};
use anyhow::{Context, ensure};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The presets of the gateway.
pub const PRESETS: [&str; 2] = ["modern", "intermediate"];

/// The best grade. It requires HSTS, which is a header of the site's responses.
const GRADE: &str = "A+";

/// Attacks, by the names of testssl.sh: those that it also reports of servers with TLS 1.3 only.
const ATTACKS: [&str; 15] = [
    "heartbleed",
    "CCS",
    "ticketbleed",
    "ROBOT",
    "secure_renego",
    "secure_client_renego",
    "CRIME_TLS",
    "POODLE_SSL",
    "fallback_SCSV",
    "FREAK",
    "DROWN",
    "LOGJAM",
    "BEAST",
    "LUCKY13",
    "RC4",
];

/// A clone of testssl.sh.
pub struct Checkout {
    script: PathBuf,
    /// Its commit.
    pub revision: String,
}

impl Checkout {
    /// Looks whether it is one.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        let folder = folder.canonicalize().with_context(|| folder.display().to_string())?;
        let script = folder.join("testssl.sh");
        let is_one = script.is_file() && folder.join("etc/cipher-mapping.txt").is_file();
        ensure!(is_one, "{} is not a clone of testssl.sh", folder.display());
        let output = Command::new("git").arg("-C").arg(&folder).args(["rev-parse", "HEAD"]).output().context("git")?;
        ensure!(output.status.success(), "git rev-parse in {}: {}", folder.display(), output.status);
        Ok(Self { script, revision: String::from_utf8_lossy(&output.stdout).trim().to_owned() })
    }
}

/// Starts a gateway with a preset, before a site with HSTS.
pub fn gateway(site: &Site, preset: &str) -> (Gateway, Backend) {
    let backend = Backend::answering(|_| {
        b"HTTP/1.1 200 OK\r\nStrict-Transport-Security: max-age=31536000\r\nContent-Length: 5\r\n\r\nhello".to_vec()
    });
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let identity = site.issue_within(&format!("testssl-{preset}"), &[site::HOST], now - 86_400, now + 89 * 86_400);
    let setup = before(site, [backend.url()]).identities(&[&identity]).tls(&format!("preset = \"{preset}\""));
    (setup.start(), backend)
}

/// Scans a gateway. The error is what testssl.sh said instead of results.
pub fn run(clone: &Checkout, gateway: &Gateway, results: &Path) -> Result<Vec<Case>, String> {
    // testssl.sh appends to a file that is there.
    let _ = std::fs::remove_file(results);
    let mut command = Command::new("bash");
    command.arg(&clone.script).args(["--color", "0", "--warnings", "batch", "--add-ca"]).arg(gateway.ca());
    if let Some(openssl) = crate::peers::find("openssl") {
        command.arg("--openssl").arg(openssl);
    }
    let (ip, port) = (gateway.address.ip(), gateway.address.port());
    command.arg("--jsonfile").arg(results).args(["--ip", &ip.to_string(), &format!("{}:{port}", site::HOST)]);
    let said = run_within(&mut command, b"", SETUP);
    let read = std::fs::read_to_string(results).map_err(|e| format!("{}: {e}", results.display()));
    read.and_then(|text| cases(&text))
        .map_err(|e| format!("{e}\n{}", String::from_utf8_lossy(&[said.stdout, said.stderr].concat())))
}

#[derive(Deserialize)]
struct Finding {
    id: String,
    severity: String,
    finding: String,
}

/// One case for the grade, and one for each attack.
fn cases(json: &str) -> Result<Vec<Case>, String> {
    let findings: Vec<Finding> = serde_json::from_str(json).map_err(|e| format!("the results do not parse: {e}"))?;
    if let Some(fatal) = findings.iter().find(|finding| finding.severity == "FATAL") {
        return Err(fatal.finding.clone());
    }
    let result = |name: &str, good: &dyn Fn(&Finding) -> bool| {
        let mut found = findings.iter().filter(|finding| finding.id == name).peekable();
        if found.peek().is_none() {
            return Err("testssl.sh says nothing about it".to_owned());
        }
        found.find(|finding| !good(finding)).map_or(Ok(()), |f| Err(format!("{}: {}", f.severity, f.finding)))
    };
    let case = |name: &str, good: &dyn Fn(&Finding) -> bool| Case { name: name.to_owned(), result: result(name, good) };
    let grade = case("overall_grade", &|finding| finding.finding == GRADE);
    let harmless = |finding: &Finding| matches!(finding.severity.as_str(), "OK" | "INFO");
    Ok(std::iter::once(grade).chain(ATTACKS.iter().map(|name| case(name, &harmless))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read() {
        let finding = |id: &str, severity: &str, finding: &str| {
            format!("{{\"id\":\"{id}\",\"ip\":\"a/1.1.1.1\",\"severity\":\"{severity}\",\"finding\":\"{finding}\"}}")
        };
        let all = |grade: &str, robot: &str| {
            let attacks = ATTACKS.iter().map(|id| finding(id, if *id == "ROBOT" { robot } else { "OK" }, "said"));
            let list: Vec<String> = attacks.chain([finding("overall_grade", "OK", grade)]).collect();
            cases(&format!("[{}]", list.join(","))).expect("it is JSON")
        };
        assert!(all("A+", "OK").iter().all(|case| case.result.is_ok()));
        let failed: Vec<String> = all("A", "CRITICAL").into_iter().filter_map(|case| case.result.err()).collect();
        assert_eq!(failed, ["OK: A", "CRITICAL: said"]);
        // What was not tested has not passed.
        assert!(cases("[]").expect("it is JSON").iter().all(|case| case.result.is_err()));
        assert!(cases("cannot connect").is_err());
        let fatal = cases(&format!("[{}]", finding("scanProblem", "FATAL", "there is no dig")));
        assert_eq!(fatal.err().as_deref(), Some("there is no dig"));
    }
}
