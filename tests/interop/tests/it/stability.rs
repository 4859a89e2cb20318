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
