//! `sealane --version`: what this program was built from.

use serde::Serialize;
use std::collections::BTreeMap;

/// What the build script has found out.
#[derive(Serialize)]
struct Version {
    name: &'static str,
    version: &'static str,
    /// The commit, with `-modified` where the working tree differed from it; `None` outside a repository.
    commit: Option<&'static str>,
    profile: &'static str,
    features: Vec<&'static str>,
    target: &'static str,
    compiler: &'static str,
    libraries: BTreeMap<&'static str, &'static str>,
}

fn version() -> Version {
    let split = |library: &'static str| library.split_once(' ');
    Version {
        name: "sealane",
        version: env!("CARGO_PKG_VERSION"),
        commit: Some(env!("SEALANE_COMMIT")).filter(|commit| !commit.is_empty()),
        profile: env!("SEALANE_PROFILE"),
        features: if cfg!(feature = "full") { vec!["full"] } else { Vec::new() },
        target: env!("SEALANE_TARGET"),
        compiler: env!("SEALANE_COMPILER"),
        libraries: env!("SEALANE_LIBRARIES").split(',').filter_map(split).collect(),
    }
}

/// One line: name and version.
pub fn line() -> String {
    format!("sealane {}\n", env!("CARGO_PKG_VERSION"))
}

/// All of it, as JSON.
pub fn json() -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(&version())? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_script_found_the_libraries() {
        let version = version();
        for library in ["rustls", "aws-lc-rs", "h2", "quinn-proto", "tokio"] {
            assert!(version.libraries.get(library).is_some_and(|v| v.starts_with(char::is_numeric)), "{library}");
        }
        assert!(["release", "debug", "dist"].contains(&version.profile), "{}", version.profile);
        assert!(version.compiler.starts_with("rustc "), "{}", version.compiler);
    }
}
