//! `cargo xtask docs`: the documentation as a searchable site, built by mdBook.

use crate::metadata::Workspace;
use crate::setup;
use anyhow::Context;
use std::process::Command;

/// Builds the site into `target/book`. Without mdBook nothing is built, and the reason is printed.
pub fn build(workspace: &Workspace, open: bool) -> anyhow::Result<u8> {
    let Some(mdbook) = setup::find("mdbook").or_else(in_cargo_home) else {
        println!("skipped: `mdbook` is not installed (cargo install mdbook --locked)");
        return Ok(0);
    };
    let mut command = Command::new(mdbook);
    command.arg("build").current_dir(workspace.root());
    if open {
        command.arg("--open");
    }
    let status = command.status().context("mdbook")?;
    if status.success() {
        println!("{}", workspace.root().join("target/book/index.html").display());
    }
    Ok(u8::from(!status.success()))
}

/// Where `cargo install` puts programs, which need not be on the path.
fn in_cargo_home() -> Option<std::path::PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(Into::into);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))?;
    Some(home.join("bin/mdbook")).filter(|file: &std::path::PathBuf| file.is_file())
}
