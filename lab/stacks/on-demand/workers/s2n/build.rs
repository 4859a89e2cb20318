//! The library does not say its version: it is that of the crate, which the lockfile has.

fn main() {
    println!("cargo::rerun-if-changed=Cargo.lock");
    let lock = std::fs::read_to_string("Cargo.lock").unwrap_or_default();
    let version = lock
        .split_once("name = \"s2n-tls-sys\"\nversion = \"")
        .and_then(|(_, rest)| rest.split_once('"'))
        .map_or("unnamed", |(version, _)| version);
    println!("cargo::rustc-env=S2N_VERSION={version}");
}
