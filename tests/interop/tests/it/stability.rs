//! What `docs/stability.md` promises.

use std::path::Path;

/// `tests/interop/configurations` holds a complete configuration of each of the last two versions, as `config example`
/// printed it.
#[test]
fn configurations_of_earlier_versions_load() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configurations");
    let files = std::fs::read_dir(folder).expect("the folder is there").map(|entry| entry.expect("an entry").path());
    let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "toml")).collect();
    assert!(!files.is_empty());
    for file in files {
        let name = file.display().to_string();
        let done = sealane_interop::gateway::run(["check", "--offline", "-c", &name]);
        assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

/// Scripts and the packages' tests read this.
#[test]
fn the_version_as_json_names_commit_and_features() {
    let done = sealane_interop::gateway::run(["--version", "--json"]);
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    let json: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let plain = sealane_interop::gateway::run(["--version"]);
    let version = json["version"].as_str().expect("a version");
    assert_eq!(String::from_utf8_lossy(&plain.stdout), format!("sealane {version}\n"));
    // A program from sources without a repository has no commit.
    if let Some(commit) = json["commit"].as_str() {
        let hash = commit.strip_suffix("-modified").unwrap_or(commit);
        assert!(hash.len() == 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{commit}");
    }
    let features = json["features"].as_array().expect("a list");
    assert!(features.iter().all(|feature| feature == "full" || feature == "fips"), "{features:?}");
    let fips = json.get("fips").expect("the FIPS module, or null");
    assert_eq!(fips.is_string(), features.iter().any(|feature| feature == "fips"), "{fips}");
}
