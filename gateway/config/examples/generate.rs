//! Writes the files that are generated from the declarations of the configuration's settings (`cargo xtask generate`).

use std::path::{Path, PathBuf};

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if let Err(e) = write(&root) {
        eprintln!("generate: {e}");
        std::process::exit(1);
    }
}

fn write(root: &Path) -> Result<(), String> {
    let mut pages = Vec::new();
    list(&root.join("docs"), Path::new(""), &mut pages)?;
    for (name, text) in sealane_config::generated(&pages)? {
        let file = root.join(name);
        let folder = file.parent().unwrap_or(root);
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(())
}

/// The files below `docs/folder`, by their paths from `docs`.
fn list(docs: &Path, folder: &Path, into: &mut Vec<PathBuf>) -> Result<(), String> {
    let shown = docs.join(folder);
    for entry in std::fs::read_dir(&shown).map_err(|e| format!("{}: {e}", shown.display()))?.flatten() {
        let path = folder.join(entry.file_name());
        match docs.join(&path).is_dir() {
            true => list(docs, &path, into)?,
            false => into.push(path),
        }
    }
    Ok(())
}
