//! Finds the `sealane` binary of this source, and builds it where nobody has.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The binary. `SEALANE_BIN` names it where `cargo xtask test` has just built it; else it is built here, once.
pub fn sealane() -> &'static PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| match std::env::var_os("SEALANE_BIN") {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

/// The folder that cargo builds into: `target`, two above the folder of this test's own executable.
pub fn target() -> PathBuf {
    profile_folder().parent().expect("a profile's folder lies in the target folder").to_owned()
}

fn profile_folder() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own executable has a path");
    let mut folder = test.parent().expect("an executable lies in a folder").to_owned();
    if folder.ends_with("deps") || folder.ends_with("examples") {
        folder.pop();
    }
    folder
}

fn build() -> PathBuf {
    let folder = profile_folder();
    let mut cargo = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    // Features as the whole workspace unifies them: what the tests' own build has compiled is used again.
    cargo.args(["build", "--quiet", "--workspace", "--bin", "sealane"]).arg("--target-dir").arg(target());
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo can be started");
    assert!(status.success(), "building sealane: {status}");
    folder.join(format!("sealane{}", std::env::consts::EXE_SUFFIX))
}
