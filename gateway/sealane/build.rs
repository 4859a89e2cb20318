//! Tells the program what it was built from: commit, profile, target, compiler and the versions of its libraries.
//!
//! `SEALANE_COMMIT` in the environment names the commit where there is no repository (source packages).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The libraries that decide how the gateway speaks to the network.
const LIBRARIES: &[&str] = &["aws-lc-rs", "h2", "hickory-resolver", "quinn-proto", "rustls", "rustls-webpki", "tokio"];

fn main() {
    println!("cargo::rerun-if-env-changed=SEALANE_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    tell("SEALANE_COMMIT", &env::var("SEALANE_COMMIT").ok().or_else(|| commit(&root)).unwrap_or_default());
    tell("SEALANE_PROFILE", &profile().unwrap_or_default());
    tell("SEALANE_TARGET", &env::var("TARGET").unwrap_or_default());
    tell("SEALANE_COMPILER", &compiler().unwrap_or_default());
    tell("SEALANE_LIBRARIES", &libraries(&root.join("Cargo.lock")));
}

fn tell(name: &str, value: &str) {
    println!("cargo::rustc-env={name}={value}");
}

/// The commit of the working tree, with `-modified` where files differ from it.
fn commit(root: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // The log of HEAD changes with every commit and checkout.
    let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])?;
    println!("cargo::rerun-if-changed={log}");
    let commit = git(&["rev-parse", "HEAD"])?;
    let modified = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if modified { commit + "-modified" } else { commit })
}

/// The folder of the output names it: `target/PROFILE/build/sealane-HASH/out`. `PROFILE` itself only says whether the profile
/// inherits from `release`.
fn profile() -> Option<String> {
    let out = PathBuf::from(env::var_os("OUT_DIR")?);
    let folder = out.ancestors().nth(3)?.file_name()?;
    Some(folder.to_string_lossy().into_owned())
}

fn compiler() -> Option<String> {
    let output = Command::new(env::var_os("RUSTC")?).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// `NAME VERSION` of each library in the lock file, separated by commas.
fn libraries(lock: &Path) -> String {
    println!("cargo::rerun-if-changed={}", lock.display());
    let text = fs::read_to_string(lock).unwrap_or_default();
    let mut found = Vec::new();
    let mut name = "";
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("name = ") {
            name = value.trim_matches('"');
        } else if let Some(value) = line.strip_prefix("version = ")
            && LIBRARIES.contains(&name)
        {
            found.push(format!("{name} {}", value.trim_matches('"')));
        }
    }
    found.join(",")
}
