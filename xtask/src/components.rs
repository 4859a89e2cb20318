//! Lists of components (SBOM): the crates in each program, in CycloneDX's JSON, by cargo-cyclonedx.

use crate::metadata::{Workspace, cargo};
use crate::programs::{Architecture, PROGRAMS, commit_time, quiet};
use anyhow::{Context, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version that is installed in target/tools where none is there.
const VERSION: &str = "0.5.9";
/// The name, without its ending, of the files that the tool writes into the folder of each package of the workspace.
const WRITTEN: &str = "cargo-cyclonedx";
/// What stands for the folder of the build in the lists: the same commit gives the same lists.
const FOLDER: &str = "/sealane";

/// The name of a program's list.
pub fn file_name(program: &str) -> String {
    format!("{program}.cdx.json")
}

/// Writes the list of each program for an architecture, and returns the folder where the lists are.
pub fn write(workspace: &Workspace, architecture: Architecture) -> anyhow::Result<PathBuf> {
    let out = workspace.target().join("components").join(architecture.name());
    fs::create_dir_all(&out)?;
    let tool = tool(workspace)?;
    for (program, features) in PROGRAMS {
        let text = list(workspace, &tool, program, features, architecture)?;
        fs::write(out.join(file_name(program)), text)?;
    }
    Ok(out)
}

/// cargo-cyclonedx in target/tools, built there when it is missing.
fn tool(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let tools = workspace.target().join("tools");
    let tool = tools.join("bin/cargo-cyclonedx");
    if !tool.is_file() {
        let mut install = cargo();
        install.args(["install", "--locked", "--quiet", &format!("cargo-cyclonedx@{VERSION}"), "--root"]).arg(&tools);
        // It runs for seconds: to optimise it would take longer than it saves.
        install.envs([("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"), ("CARGO_PROFILE_RELEASE_LTO", "off")]);
        quiet(&mut install)?;
    }
    Ok(tool)
}

fn list(
    workspace: &Workspace,
    tool: &Path,
    program: &str,
    features: &[&str],
    architecture: Architecture,
) -> anyhow::Result<String> {
    let package = workspace.members().find(|package| package.name == program);
    let manifest = &package.with_context(|| format!("there is no package {program}"))?.manifest_path;
    let written = |manifest: &Path| manifest.with_file_name(format!("{WRITTEN}.json"));
    let mut command = Command::new(tool);
    command.args(["cyclonedx", "--format", "json", "--target", architecture.triple(), "--no-build-deps"]);
    command.args(["--override-filename", WRITTEN]).args(features).arg("--manifest-path").arg(manifest);
    command.env("SOURCE_DATE_EPOCH", commit_time(workspace)?).current_dir(workspace.root());
    let done = quiet(&mut command);
    let text = fs::read_to_string(written(manifest)).with_context(|| format!("{} wrote no list", tool.display()));
    // Nothing stays in the working tree, also after a failure.
    for package in workspace.members() {
        let file = written(&package.manifest_path);
        if file.exists() {
            fs::remove_file(&file).with_context(|| file.display().to_string())?;
        }
    }
    done?;
    let text = text?;
    let list: Value = serde_json::from_str(&text).with_context(|| format!("the list of components of {program}"))?;
    let count = list["components"].as_array().map_or(0, Vec::len);
    ensure!(count > 50, "the list of components of {program} has {count} entries");
    Ok(without_folder(&text, workspace.root()))
}

/// Puts [`FOLDER`] in place of the folder of this build, which is part of the ids of our own packages.
fn without_folder(text: &str, root: &Path) -> String {
    text.replace(&format!("path+file://{}/", root.display()), &format!("path+file://{FOLDER}/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_no_folder_of_this_machine() {
        let text = r#"{"bom-ref": "path+file:///work/a/lab/load#sealane-lab-load@0.1.0"}"#;
        let wanted = r#"{"bom-ref": "path+file:///sealane/lab/load#sealane-lab-load@0.1.0"}"#;
        assert_eq!(without_folder(text, Path::new("/work/a")), wanted);
        assert_eq!(without_folder(text, Path::new("/work")), text.replace("/work/", "/sealane/"));
        assert_eq!(without_folder(text, Path::new("/elsewhere")), text);
    }
}
