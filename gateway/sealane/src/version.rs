//! `sealane --version`: what this program was built from.

use sealane_control::fips;
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
    /// The FIPS module of AWS-LC, with its version; `None` in a build without it.
    fips: Option<String>,
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
        features: features(),
        fips: fips::module(),
        target: env!("SEALANE_TARGET"),
        compiler: env!("SEALANE_COMPILER"),
        libraries: env!("SEALANE_LIBRARIES").split(',').filter_map(split).collect(),
    }
}

fn features() -> Vec<&'static str> {
    let all = [("full", cfg!(feature = "full")), ("fips", cfg!(feature = "fips"))];
    all.into_iter().filter(|(_, is_on)| *is_on).map(|(name, _)| name).collect()
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
    use std::path::Path;
    use std::process::Command;

    #[test]
    fn the_build_script_found_the_libraries() {
        let version = version();
        for library in ["rustls", "aws-lc-rs", "h2", "quinn-proto", "tokio"] {
            assert!(version.libraries.get(library).is_some_and(|v| v.starts_with(char::is_numeric)), "{library}");
        }
        assert!(["release", "debug", "dist"].contains(&version.profile), "{}", version.profile);
        assert!(version.compiler.starts_with("rustc "), "{}", version.compiler);
    }

    /// `HASH` or `HASH-modified`.
    fn hash(commit: &str) -> &str {
        commit.strip_suffix("-modified").unwrap_or(commit)
    }

    #[test]
    fn the_commit_is_one_of_the_repository() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        // A folder, or in a further working tree a file. Sources without a repository have no commit, or name it themselves.
        if !root.join(".git").exists() {
            return;
        }
        let commit = version().commit.expect("the repository's commit");
        let hash = hash(commit);
        assert_eq!(hash.len(), 40, "{commit}");
        // HEAD may have moved since this program was built.
        let object = format!("{hash}^{{commit}}");
        let found = Command::new("git").arg("-C").arg(&root).args(["cat-file", "-e", &object]).status().expect("git");
        assert!(found.success(), "the repository does not contain {commit}");
    }

    #[test]
    fn json_has_every_field() {
        let text = json().expect("JSON");
        assert!(text.ends_with("}\n"));
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(json["name"], "sealane");
        assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
        // Scripts test for the key, so it is there without a commit, too.
        assert!(json.get("commit").is_some_and(|commit| commit.is_null() || commit.is_string()), "{text}");
        assert_eq!(json["features"], serde_json::json!(features()));
        assert_eq!(json["fips"].is_string(), cfg!(feature = "fips"), "{text}");
        assert!(json["target"].as_str().is_some_and(|target| target.contains("-linux-")), "{text}");
        assert!(json["libraries"]["rustls"].is_string(), "{text}");
    }
}
