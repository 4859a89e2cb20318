//! The files of the gateway: its configuration, and certificates, keys and authorities beside it.

use anyhow::Context;
use sealane_kube_translate::model::FILES;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

fn folder_of(config: &Path) -> PathBuf {
    config.parent().unwrap_or(Path::new(".")).join(FILES)
}

/// Replaces the content of a file in one step. Only the user of this program can read it.
fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let new = path.with_extension("new");
    let inner = || -> std::io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    inner().with_context(|| path.display().to_string())
}

/// Makes the folder, and the configuration with which the gateway starts, unless an earlier one is there.
pub fn prepare(config: &Path, base: &str) -> anyhow::Result<()> {
    let folder = folder_of(config);
    if !folder.is_dir() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .with_context(|| folder.display().to_string())?;
    }
    match config.exists() {
        true => Ok(()),
        false => write(config, base.as_bytes()),
    }
}

/// Writes the files of a configuration that is about to be applied. Their names contain a hash of their content, so a file that is there
/// has the right content, unless it was cut off.
pub fn add(config: &Path, files: &BTreeMap<String, Vec<u8>>) -> anyhow::Result<()> {
    let folder = folder_of(config);
    for (name, content) in files {
        let path = folder.join(name);
        let is_there = fs::metadata(&path).is_ok_and(|known| known.len() == content.len() as u64);
        if !is_there {
            write(&path, content)?;
        }
    }
    Ok(())
}

/// Removes files that the configuration in use does not name.
pub fn remove_others(config: &Path, files: &BTreeMap<String, Vec<u8>>) -> anyhow::Result<()> {
    let folder = folder_of(config);
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(|name| files.contains_key(name)) {
            fs::remove_file(entry.path()).with_context(|| entry.path().display().to_string())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_come_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("run/sealane.toml");
        prepare(&config, "base").unwrap();
        assert_eq!(fs::read_to_string(&config).unwrap(), "base");
        // A container that starts again keeps the last configuration.
        prepare(&config, "other").unwrap();
        assert_eq!(fs::read_to_string(&config).unwrap(), "base");
        let of = |names: &[&str]| -> BTreeMap<String, Vec<u8>> {
            names.iter().map(|name| ((*name).to_owned(), name.as_bytes().to_vec())).collect()
        };
        add(&config, &of(&["a.pem", "b.pem"])).unwrap();
        let key = folder_of(&config).join("a.pem");
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        // One that was cut off is written again.
        fs::write(&key, "").unwrap();
        add(&config, &of(&["a.pem"])).unwrap();
        assert_eq!(fs::read_to_string(&key).unwrap(), "a.pem");
        remove_others(&config, &of(&["a.pem"])).unwrap();
        let left: Vec<_> = fs::read_dir(folder_of(&config)).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["a.pem"]);
    }
}
