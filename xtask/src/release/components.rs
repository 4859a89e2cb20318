//! Lists of components (SBOM): the crates in each program, in CycloneDX's JSON, by cargo-cyclonedx.

use crate::metadata::{Workspace, cargo};
use crate::programs::{PROGRAMS, commit_time, quiet};
use anyhow::{Context, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The version that is installed in target/tools where none is there.
const VERSION: &str = "0.5.9";

/// Writes `PROGRAM.cdx.json` for each program.
pub fn write(workspace: &Workspace, out: &Path) -> anyhow::Result<()> {
    let tools = workspace.target().join("tools");
    let tool = tools.join("bin/cargo-cyclonedx");
    if !tool.is_file() {
        let mut install = cargo();
        install.args(["install", "--locked", "--quiet", &format!("cargo-cyclonedx@{VERSION}"), "--root"]).arg(&tools);
        quiet(&mut install)?;
    }
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    for (program, features) in PROGRAMS {
        let package = workspace.members().find(|package| package.name == *program);
        let manifest = &package.with_context(|| format!("there is no package {program}"))?.manifest_path;
        let mut command = std::process::Command::new(&tool);
        command.args(["cyclonedx", "--format", "json", "--describe", "crate", "--target", &triple, "--no-build-deps"]);
        command.args(["--override-filename", "components"]).args(*features).arg("--manifest-path").arg(manifest);
        quiet(command.env("SOURCE_DATE_EPOCH", commit_time(workspace)?).current_dir(workspace.root()))?;
        let file = manifest.with_file_name("components.json");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let list: Value = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
        let count = list["components"].as_array().map_or(0, Vec::len);
        ensure!(count > 50, "the list of components of {program} has {count} entries");
        fs::write(out.join(format!("{program}.cdx.json")), text)?;
    }
    Ok(())
}
