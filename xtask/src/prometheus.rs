//! The packaged rules, alerts and dashboards, and the metrics' formats, with a newer Prometheus than this machine's Debian has: 3.x, which
//! stores native histograms.
//!
//! It comes from the mirror that this machine's apt uses, with its own C library, and nothing is installed. What is missing is named, and
//! the job is skipped.

use crate::machine::{self, Suite, output};
use crate::metadata::Workspace;
use crate::steps::{self, Checks};
use anyhow::ensure;
use std::fs;
use std::process::Command;

/// A suite that has it.
const SUITE: &str = "sid";
const NEEDS: &[(&str, &str)] = &[("apt-get", "apt"), ("dpkg-deb", "dpkg")];
const PROGRAMS: [&str; 2] = ["usr/bin/prometheus", "usr/bin/promtool"];
/// The tests that start it.
const TESTS: [&str; 4] = ["monitoring::", "monitoring_load::", "metrics_formats::", "traces::prometheus_keeps"];

/// Runs the job; the status is 0 when it passed or was skipped.
pub fn run() -> anyhow::Result<u8> {
    if let Some(missing) = machine::missing(NEEDS) {
        return skip(&missing);
    }
    let workspace = Workspace::load()?;
    let folder = workspace.target().join("prometheus");
    fs::create_dir_all(&folder)?;
    let unpacked = match Suite::open(&folder, SUITE).and_then(|suite| suite.unpack_with_all("prometheus")) {
        Ok(unpacked) => unpacked,
        Err(error) => return skip(&format!("no package: {error:#}")),
    };
    let programs = folder.join("bin");
    machine::wrap(&unpacked, &PROGRAMS, &programs)?;
    let said = output(Command::new(programs.join("prometheus")).arg("--version"))?;
    let version = said.split_whitespace().skip_while(|word| *word != "version").nth(1).unwrap_or_default();
    println!("prometheus: version {version}");
    let major: u32 = version.split('.').next().and_then(|number| number.parse().ok()).unwrap_or(0);
    ensure!(major >= 3, "version {version} is older than 3.0");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(&path)))?;
    let mut worst = 0;
    // With the histograms that everybody stores, and with native ones alone.
    for native in [false, true] {
        println!("prometheus: {} histograms", if native { "native" } else { "classic" });
        let mut command = Checks::On.cargo(&workspace);
        command.args(["test", "--release", "--workspace", "--test", "it", "--"]).args(TESTS).arg("--test-threads=2");
        command.env("PATH", &path);
        if native {
            command.env("SEALANE_NATIVE_HISTOGRAMS", "1");
        }
        worst = worst.max(steps::run(command, &workspace)?);
    }
    Ok(worst)
}

fn skip(why: &str) -> anyhow::Result<u8> {
    println!("prometheus: skipped: {why}");
    Ok(0)
}
