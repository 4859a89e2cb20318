//! Archives with a static program, for systems without a package: unpack and run.

use crate::metadata::Workspace;
use crate::programs::{self, Architecture, checked, quiet};
use anyhow::Context;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Files of the repository that every archive contains.
const FILES: &[&str] = &["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Writes `PROGRAM-VERSION-linux-ARCHITECTURE.tar.gz`: the program, its manual pages and completions, licences.
pub fn write(
    workspace: &Workspace,
    folder: &Path,
    program: &str,
    out: &Path,
    architecture: Architecture,
) -> anyhow::Result<()> {
    let name = format!("{program}-{}-linux-{}", workspace.version()?, architecture.name());
    let stage = workspace.target().join("archive");
    let root = stage.join(&name);
    fs::create_dir_all(&root)?;
    let copy = root.join(program);
    programs::strip(&folder.join(program), &copy, architecture)?;
    programs::manual(&copy, &root.join("man"), architecture)?;
    programs::completions(&copy, program, &root.join("completions"), architecture)?;
    for file in FILES {
        fs::copy(workspace.root().join(file), root.join(file)).context(*file)?;
    }
    if program == "sealane" {
        checked(Command::new("cp").arg("-r").arg(workspace.root().join("examples")).arg(&root))?;
        checked(Command::new("cp").arg("-r").arg(workspace.root().join("packaging/systemd")).arg(&root))?;
    }
    // The same commit gives the same bytes: names sorted, the commit's time, no owner.
    let time = format!("--mtime=@{}", programs::commit_time(workspace)?);
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=go=rX,u+rw,a-s", &time]);
    tar.args(["--use-compress-program=gzip -9 -n", "-cf"]).arg(out.join(format!("{name}.tar.gz")));
    quiet(tar.arg("-C").arg(&stage).arg(&name))?;
    fs::remove_dir_all(&stage).with_context(|| stage.display().to_string())
}
